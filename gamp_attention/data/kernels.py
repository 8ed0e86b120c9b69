"""How the samples of a pass are dealt out: blocks for threads, and strides of a few rows within them.

Inner loops of passes over the tokens: fields of four rows, and weighted sums of four rows.

A processor overlaps memory access with computation only if it knows early which addresses it will read. Both loops
therefore process the coordinates in strips, and before each strip prefetch part of the rows that are read next.

One pass over the tokens: fields, proximal step, and both X̃ᵀg and X̃ᵀ∇ℓ, while the rows are in cache.

X is read once and nothing of its size is formed. A block of samples belongs to one thread, which goes through it in
strides of a few rows: it projects and adds up a stride that is in its cache already, and asks for the next one
meanwhile, so that waiting for memory and arithmetic overlap. Blocks do not depend on the number of threads and their
sums are added in order, so results do not either.
"""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import (
    CACHE_LINE,
    field_kernel,
    inline_kernel,
    interruptible_blocks,
    kernel,
    prefetch,
    sample_kernel,
)
from gamp_attention.data.stores import Tokens, joined, token_blocks
from gamp_attention.denoisers.newton import make_metric
from gamp_attention.denoisers.output import (
    Denoised,
    allocate_result,
    denoise_sample,
    finalize_result,
    is_long,
    make_scratch,
)
from gamp_attention.denoisers.prox import MAX_STARTS, search_points
from gamp_attention.losses.attention import RiskTerms, evaluate_gradient
from gamp_attention.losses.point import for_kernels
from gamp_attention.models.sources import Group


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


class StrideSettings(NamedTuple):
    """How samples are dealt out."""

    max_blocks: int = 32  # whose sums cost memory traffic, too
    max_share: float = 0.025  # of the tokens' size, for the sums of all blocks


STRIDES = StrideSettings()


def strides(n: int, L: int, n_sums: int) -> tuple[int, int]:
    """Samples of a stride, whose rows fill whole loops, and of a block: whole strides, few enough for their sums."""
    stride = ROWS.rows // gcd(ROWS.rows, L)
    n_blocks = max(1, min(STRIDES.max_blocks, int(STRIDES.max_share * n * L / n_sums)))
    return stride, stride * -(-n // (stride * n_blocks))


def over_strides(tokens: np.ndarray, stride: int, block: int, work: Callable[..., Any], long: bool = False) -> None:
    """Call work(first, last, b, rows, stop) for the samples of each block b, whose rows (N, d) start at `first`.

    If it may be `long`, it can be interrupted by `stop`, see `interruptible_blocks`. The samples after the last whole
    stride come by themselves, in rows that zeros fill up to one.
    """
    n, L, d = tokens.shape
    rows, whole = tokens.reshape(n * L, d), n - n % stride
    rest = np.zeros((stride * L, d), dtype=tokens.dtype)
    rest[: len(rows) - whole * L] = rows[whole * L :]

    def task(first: int, last: int, stop: np.ndarray) -> None:
        for begin, end, here in ((first, min(last, whole), rows[first * L :]), (max(first, whole), last, rest)):
            if begin < end:
                work(begin, end, first // block, here, stop)

    interruptible_blocks(task, n, block, long)


class Part(NamedTuple):
    """What passes ask of the data: all samples of a dataset, or consecutive ones."""

    tokens: Tokens  # (n, L, d)
    positions: np.ndarray  # (L, d)
    groups: tuple[Group, ...]
    n_sources: int
    loss: Any
    risks: dict[str, RiskTerms]


class Pass(NamedTuple):
    """What one pass over n samples finds at weights Q.

    Attributes
    ----------
    omega : (n, L, r) centres of the proximal step, fields less their memory.
    denoised : the output denoiser's answer.
    losses : (n,) ℓ at the fields.
    force : (d, r) X̃ᵀg; that of several parts of the data is the sum, and so with the next.
    smooth : (d, r) X̃ᵀ∇ℓ, the gradient at Q without the penalty.
    """

    omega: np.ndarray
    denoised: Denoised
    losses: np.ndarray
    force: np.ndarray
    smooth: np.ndarray


def data_pass(
    tokens: np.ndarray,
    positions: np.ndarray,
    Q: np.ndarray,
    D: np.ndarray,
    V: np.ndarray,
    loss: Any,
    params: np.ndarray,
    start: np.ndarray | None = None,
    *,
    most: int = MAX_STARTS,
    proximal: bool = True,
) -> Pass:
    """Read the tokens once; see `gamp_attention.denoisers.output.denoise` for the proximal step.

    Parameters
    ----------
    tokens : (n, L, d) in float64 or float32; sums are taken in float64.
    positions : (L, d) added to the tokens.
    Q, D, V : (d, r), (n, L, r), (L, r, r) the state of message passing.
    loss, params : the per-sample loss, with rows of parameters (n, P).
    start : (n, L, r) where minimisations begin; ω if not given.
    most : bound on the further starts of each search for a lower minimum; 0 keeps the minimum that `start` leads to.
    proximal : if not, there is no proximal step and no force, and `denoised` is not filled; the rest has the same bits.
    """
    n, L, d = tokens.shape
    r = Q.shape[1]
    columns = np.ascontiguousarray(Q.T) / np.sqrt(d)
    shift = (positions @ columns.T).ravel()
    omega, losses = np.array(D, dtype=float).reshape(n, L * r), np.empty(n)
    out = allocate_result(omega if start is None else start.reshape(n, L * r), r)
    out.g[:] = 0.0
    stride, block = strides(n, L, 2 * r)
    # sums over the rows of a block of x g, x ∇ℓ; and over the samples of g_l, ∇ℓ_l
    sums, totals = np.zeros((-(-n // block), 2 * r, d)), np.zeros((-(-n // block), L, 2 * r))
    long = proximal and is_long(loss, n, most)
    loss, params = for_kernels(loss), np.ascontiguousarray(params, dtype=float)
    problem = loss, params, make_metric(V), most, search_points(L * r), proximal
    fresh = start is None

    def work(first: int, last: int, b: int, rows: np.ndarray, stop: np.ndarray) -> None:
        problem_and_stop = *problem, stop, fresh
        _pass(first, last, stride, rows, columns, shift, *problem_and_stop, omega, out, losses, sums[b], totals[b])

    over_strides(tokens, stride, block, work, long)
    both = (sums.sum(axis=0).T + positions.T @ totals.sum(axis=0)) / np.sqrt(d)
    denoised = finalize_result(out)
    return Pass(omega.reshape(n, L, r), denoised, losses, both[:, :r], both[:, r:])


def grouped_pass(
    data: Part,
    params: np.ndarray,
    Q: np.ndarray,
    D: np.ndarray,
    V: np.ndarray,
    start: np.ndarray | None = None,
    **options: Any,
) -> Pass:
    """The same over all samples of a dataset, each group with the V (S, r, r) of its sources."""
    parts, sums = [], np.zeros((2, *Q.shape))
    for rows, sources, tokens in token_blocks(data.tokens, data.groups):
        begin = None if start is None else start[rows]
        seen = data_pass(tokens, data.positions, Q, D[rows], V[sources], data.loss, params[rows], begin, **options)
        sums += seen.force, seen.smooth
        parts.append(seen[:3])
    return Pass(*map(joined, zip(*parts, strict=True)), *sums)


@kernel
def _pass(
    first, last, stride, rows, columns, shift, loss, params, metric, most, points, proximal, stop, fresh,
    omega, out, losses, sums, totals,
):  # fmt: skip
    """Allocate the scratch of one thread, and go through samples whose rows are given from the first one on."""
    k, r = shift.shape[0], columns.shape[0]
    scratch = make_scratch(loss, k, stop)
    grad, hess, fields = np.empty(k), np.empty((k, k)), np.empty((stride, k))
    weights = np.zeros((stride * (k // r), 2 * r))
    work = scratch, grad, hess, fields, fields.reshape((stride * (k // r), r)), weights
    _pass_in_strides(
        first, last, stride, rows, columns, shift, loss, work, params, metric, most, points, proximal, fresh,
        omega, out, losses, sums, totals,
    )  # fmt: skip


@sample_kernel
def _pass_in_strides(
    first, last, stride, rows, columns, shift, loss, work, params, metric, most, points, proximal, fresh,
    omega, out, losses, sums, totals,
):  # fmt: skip
    scratch, grad, hess, fields, projections, weights = work  # weights: g and ∇ℓ of rows
    k, r = shift.shape[0], columns.shape[0]
    L = k // r
    for begin in range(first, last, stride):
        if scratch.newton.stop[0] != 0:
            return
        here = (begin - first) * L
        ahead = here + stride * L if begin + stride < last else here
        project(here, ahead, rows, columns, projections)
        for mu in range(begin + stride, min(begin + 2 * stride, last)):
            for i in range(0, params.shape[1], CACHE_LINE // 8):
                prefetch(params, mu, i)
            prefetch(omega, mu, 0)
            prefetch(out.z, mu, 0)
        for row in range(weights.shape[0]):
            for a in range(2 * r):
                weights[row, a] = 0.0
        for mu in range(begin, min(begin + stride, last)):
            z = fields[mu - begin]
            for i in range(k):
                z[i] += shift[i]
                omega[mu, i] = z[i] - omega[mu, i]
                if fresh:
                    out.z[mu, i] = omega[mu, i]
            if proximal:
                denoise_sample(mu, loss, params[mu], omega[mu], metric, most, points, scratch, out)
            losses[mu] = evaluate_gradient(loss, params[mu], z, grad, hess, scratch.newton.loss)
            for l in range(L):
                for a in range(r):
                    g, slope = out.g[mu, l * r + a], grad[l * r + a]
                    weights[(mu - begin) * L + l, a] = g
                    weights[(mu - begin) * L + l, r + a] = slope
                    totals[l, a] += g
                    totals[l, r + a] += slope
        add_up(here, ahead, rows, weights, sums)
