"""Inner loops of passes over the tokens: fields of four rows, and weighted sums of four rows.

A processor overlaps memory access with computation only if it knows early which addresses it will read. Both loops
therefore process the coordinates in strips, and before each strip prefetch part of the rows that are read next.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention._core.compiled import field_kernel, inline_kernel
from gamp_attention._core.prefetch import CACHE_LINE, prefetch


class RowSettings(NamedTuple):
    """Sizes of one step of the loops."""

    rows: int = 4  # rows that one loop projects or adds up
    strip: int = 8  # cache lines of a row between two prefetches
    early: int = 2  # of these lines, prefetched while projecting; the others are prefetched while adding up


ROWS = RowSettings()


@field_kernel
def project(first, ahead, rows, columns, fields):
    """Compute fields (N, r) of rows from `first` on, along columns (r, d); rows from `ahead` on are prefetched."""
    for at in range(0, fields.shape[0], ROWS.rows):
        for a in range(columns.shape[0]):
            _project_four(a, first + at, ahead + at, at, rows, columns, fields)


@field_kernel
def add_up(first, ahead, rows, weights, sums):
    """Add rows from `first` on to the sums (s, d) with weights (N, s); rows from `ahead` on are prefetched."""
    n_sums = sums.shape[0]
    for at in range(0, weights.shape[0], ROWS.rows):
        for a in range(0, n_sums - 1, 2):
            _add_to_two(a, first + at, ahead + at, at, rows, weights, sums)
        if n_sums % 2 == 1:
            _add_to_one(n_sums - 1, first + at, ahead + at, at, rows, weights, sums)


@inline_kernel
def _steps(rows):
    """Return the coordinates in a cache line, a strip and its early part; unsigned: signed indices cost checks."""
    line = np.uint64(CACHE_LINE // rows.itemsize)
    return line, np.uint64(ROWS.strip) * line, np.uint64(ROWS.early) * line


@inline_kernel
def _prefetch_rows(rows, ahead, begin, end, line):
    for i in range(begin, end, line):
        for row in range(ahead, ahead + ROWS.rows):
            prefetch(rows, row, i)


@field_kernel
def _project_four(a, first, ahead, at, rows, columns, fields):
    x0, x1, x2, x3 = rows[first], rows[first + 1], rows[first + 2], rows[first + 3]
    column, d = columns[a], np.uint64(columns.shape[1])
    line, strip, early = _steps(rows)
    z0, z1, z2, z3 = 0.0, 0.0, 0.0, 0.0
    for begin in range(np.uint64(0), d, strip):
        if a == 0:
            _prefetch_rows(rows, ahead, begin, begin + early, line)
        for i in range(begin, min(begin + strip, d)):
            z0 += x0[i] * column[i]
            z1 += x1[i] * column[i]
            z2 += x2[i] * column[i]
            z3 += x3[i] * column[i]
    fields[at, a], fields[at + 1, a], fields[at + 2, a], fields[at + 3, a] = z0, z1, z2, z3


@field_kernel
def _add_to_two(a, first, ahead, at, rows, weights, sums):
    x0, x1, x2, x3 = rows[first], rows[first + 1], rows[first + 2], rows[first + 3]
    b, d = a + 1, np.uint64(sums.shape[1])
    line, strip, early = _steps(rows)
    one, other = sums[a], sums[b]
    v0, v1, v2, v3 = weights[at, a], weights[at + 1, a], weights[at + 2, a], weights[at + 3, a]
    w0, w1, w2, w3 = weights[at, b], weights[at + 1, b], weights[at + 2, b], weights[at + 3, b]
    for begin in range(np.uint64(0), d, strip):
        if a == 0:
            _prefetch_rows(rows, ahead, begin + early, begin + strip, line)
        for i in range(begin, min(begin + strip, d)):
            one[i] += (v0 * x0[i] + v1 * x1[i]) + (v2 * x2[i] + v3 * x3[i])
            other[i] += (w0 * x0[i] + w1 * x1[i]) + (w2 * x2[i] + w3 * x3[i])


@field_kernel
def _add_to_one(a, first, ahead, at, rows, weights, sums):
    x0, x1, x2, x3 = rows[first], rows[first + 1], rows[first + 2], rows[first + 3]
    total, d = sums[a], np.uint64(sums.shape[1])
    line, strip, early = _steps(rows)
    v0, v1, v2, v3 = weights[at, a], weights[at + 1, a], weights[at + 2, a], weights[at + 3, a]
    for begin in range(np.uint64(0), d, strip):
        if a == 0:
            _prefetch_rows(rows, ahead, begin + early, begin + strip, line)
        for i in range(begin, min(begin + strip, d)):
            total[i] += (v0 * x0[i] + v1 * x1[i]) + (v2 * x2[i] + v3 * x3[i])
