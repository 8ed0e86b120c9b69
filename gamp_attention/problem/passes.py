"""Passes over the tokens: products with the token matrix, one step of message passing, and sums of the risk.

X̃ = (x + p)/√d is never formed, and a pass reads the tokens once. A block of samples belongs to one thread, which
processes it in strides of a few rows: it computes the fields of a stride, then all that follows from the fields, and
adds the weighted rows to its sums while the rows are in the cache. Blocks do not depend on the number of threads and
their sums are added in order, so results are identical for any number of threads.

A processor overlaps memory access with computation only if it knows early which addresses it will read. The inner loops
therefore process the coordinates in strips, and before each strip prefetch part of the rows of the next stride.
"""

from collections.abc import Callable
from functools import partial
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._kernels.compiled import CACHE_LINE, field_kernel, inline_kernel, plain_kernel, prefetch
from gamp_attention._kernels.pointers import load_from, point_to
from gamp_attention._tools import check
from gamp_attention._tools.check import read_only
from gamp_attention._tools.numerics import one_thread
from gamp_attention._tools.threads import interruptible_blocks, over_blocks
from gamp_attention.problem.denoisers.bundle import is_kinked
from gamp_attention.problem.denoisers.newton import (
    LAST_STEP,
    make_metric,
    make_workspace,
    point_to_loss_scratch,
    workspace_memory,
)
from gamp_attention.problem.denoisers.output import Denoised, allocate_result, denoise_rows, finalize_result, is_long
from gamp_attention.problem.denoisers.prox import MAX_STARTS, make_search
from gamp_attention.problem.losses.kinks import for_proximal_steps
from gamp_attention.problem.losses.protocol import differentiate
from gamp_attention.problem.sources import Group, apply_by_source
from gamp_attention.problem.stores import join_parts

LOOP_ROWS = 4  # rows whose fields, or weighted sums, one inner loop computes
STRIP = 8  # cache lines of a row between two prefetches
EARLY = 2  # lines of a strip that are prefetched while fields are computed; the others, while rows are added up
MAX_BLOCKS = 32  # maximum number of blocks of samples, because the sums of each block cost memory traffic
MIN_ROWS = 64  # minimum number of rows of a block of a product, because each call of a kernel takes microseconds
MAX_SUMS = 0.025  # maximum size of the sums of all blocks, as a fraction of the size of the tokens
CACHE = 2e7  # size in bytes of tokens that fit into the cache, so that a second product with them takes little time
PRODUCT_NUMBERS = 1 << 20  # token entries in one product of tokens, because single precision is copied into doubles


class TokenMatrix(NamedTuple):
    """Products with the token matrix X̃ = (x + p)/√d of n samples."""

    tokens: np.ndarray  # (n, L, d) in float64 or float32; all sums are computed in float64
    positions: np.ndarray  # (L, d) added to the tokens

    def small_rows(self) -> np.ndarray | None:
        """Return the tokens as rows (n, d) for products by BLAS, or None if other products are faster or necessary.

        BLAS reads the tokens once for each product, which is faster only if they fit into the cache. Samples must have
        one token without a position, in double precision.
        """
        tokens = self.tokens
        if tokens.shape[1] > 1 or tokens.dtype != float or tokens.nbytes > CACHE or self.positions.any():
            return None
        return tokens[:, 0]

    def fields(self, Q: np.ndarray) -> np.ndarray:
        """Return the local fields X̃Q: z_l = (x_l + p_l)·Q/√d (n, L, r) for Q (d, r). Eq. :eq:`fields`."""
        rows, columns = _as_rows(self.tokens), np.ascontiguousarray(Q.T) / np.sqrt(len(Q))
        z, block = np.empty((len(rows), Q.shape[1])), max(MIN_ROWS, -(-len(rows) // MAX_BLOCKS))
        over_blocks(partial(_project, rows=rows, columns=columns, z=z), len(rows), block)
        return z.reshape(*self.tokens.shape[:2], -1) + self.positions @ columns.T

    def rows_of(self, samples: np.ndarray | slice) -> np.ndarray:
        """Return X̃ = (x + p)/√d of samples (m, L, d)."""
        return (np.asarray(self.tokens)[samples] + self.positions) / np.sqrt(self.tokens.shape[2])

    def back_project(self, g: np.ndarray) -> np.ndarray:
        """Return X̃ᵀg = Σ_{μ,l} (x_l + p_l) g_lᵀ/√d (d, s) for g (n, L, s)."""
        rows, g = _as_rows(self.tokens), np.ascontiguousarray(g)
        weights, step = g.reshape(-1, g.shape[2]), max(MIN_ROWS, -(-len(rows) // MAX_BLOCKS))
        sums = np.zeros((-(-len(rows) // step), g.shape[2], rows.shape[1]))
        over_blocks(partial(_accumulate, step=step, rows=rows, weights=weights, sums=sums), len(rows), step)
        return (sums.sum(axis=0).T + self.positions.T @ g.sum(axis=0)) / np.sqrt(rows.shape[1])

    def hessian_product(self, hessians: np.ndarray, P: np.ndarray) -> np.ndarray:
        """Return Σ_μ X̃^μᵀ H^μ X̃^μ P (d, r) for H (n, L r, L r) and P (d, r), in one pass over the tokens."""
        (n, L, d), r = self.tokens.shape, P.shape[1]
        small = self.small_rows()
        if small is not None:
            with one_thread():
                return small.T @ np.einsum("nab,nb->na", hessians, small @ P) / d
        hessians, columns = np.ascontiguousarray(hessians), np.ascontiguousarray(P.T) / np.sqrt(d)
        shift, (stride, block) = (self.positions @ columns.T).ravel(), strides(n, L, r)
        # sums of x v over the rows of a block, and of v_l over its samples, with v = H z; `add_up` needs even numbers
        sums, totals = np.zeros((-(-n // block), r + r % 2, d)), np.zeros((-(-n // block), L, r))

        def work(first: int, last: int, b: int, rows: np.ndarray, stop: np.ndarray) -> None:
            fields, weights = np.empty((stride * L, r)), np.zeros((stride * L, r + r % 2))
            _curve(first, last, (stride, rows, columns, shift), hessians, fields, weights, sums[b], totals[b])

        over_strides(self.tokens, stride, block, work)
        return (sums.sum(axis=0)[:r].T + self.positions.T @ totals.sum(axis=0)) / np.sqrt(d)


def _as_rows(tokens: np.ndarray) -> np.ndarray:
    """Return tokens (n, L, d) as rows (n L, d), read-only, as kernels are compiled for tokens in files as well."""
    return read_only(np.asarray(tokens).reshape(-1, tokens.shape[2]))


def token_products(tokens: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return x_l·y_k (n, L, K) in float64 within each sample, for (n, L, d) and (n, K, d), without a large copy."""
    n, L, d = tokens.shape
    products = np.empty((n, L, others.shape[1]))
    step = max(1, PRODUCT_NUMBERS // (L * d))
    for first in range(0, n, step):
        part = slice(first, first + step)
        products[part] = np.asarray(tokens[part], float) @ np.asarray(others[part], float).transpose(0, 2, 1)
    return products


class Pass(NamedTuple):
    """Outcome of one pass over n samples at weights Q."""

    omega: np.ndarray  # (n, L, r) centers of the proximal step: fields minus their memory
    denoised: Denoised  # result of the output denoiser
    losses: np.ndarray  # (n,) ℓ at the fields
    force: np.ndarray  # (d, r) X̃ᵀg
    smooth: np.ndarray  # (d, r) X̃ᵀ∇ℓ, the gradient at Q without the penalty


def data_pass(
    matrix: TokenMatrix, Q: np.ndarray, D: np.ndarray, V: np.ndarray, loss: Any, params: np.ndarray,
    start: np.ndarray | None = None, *, max_starts: int = MAX_STARTS, last_step: float = LAST_STEP,
    proximal: bool = True,
) -> Pass:  # fmt: skip
    """Pass over tokens (n, L, d); see `gamp_attention.problem.denoisers.output.denoise` for the proximal step.

    Q (d, r), D (n, L, r) and V (L, r, r) are the state of message passing, `params` (n, P) are the parameters of the
    losses, and `start` (n, L, r) the initial points of the minimizations, ω if not given. `max_starts` is the
    maximum number of further starts of each search for a lower minimum; 0 keeps the minimum next to the start. After a
    Newton step of the relative size `last_step`, none follows. If `proximal` is False, there is no proximal step and no
    force, and `denoised` is not filled; the other results have the same bits.
    """
    n, L, d = matrix.tokens.shape
    r = Q.shape[1]
    columns = np.ascontiguousarray(Q.T) / np.sqrt(d)
    shift = (matrix.positions @ columns.T).ravel()
    omega, losses = np.array(D, dtype=float).reshape(n, L * r), np.empty(n)
    out = allocate_result(omega if start is None else start.reshape(n, L * r), r)
    out.g[:] = 0.0
    stride, block = strides(n, L, 2 * r)
    # sums of x g and x ∇ℓ over the rows of a block, and of g_l and ∇ℓ_l over its samples
    sums, totals = np.zeros((-(-n // block), 2 * r, d)), np.zeros((-(-n // block), L, 2 * r))
    long = proximal and is_long(loss, n, max_starts)
    params = np.ascontiguousarray(params, dtype=float)
    loss = for_proximal_steps(loss, params)
    metric, search = make_metric(V, last_step), make_search(L * r)
    problem = loss, params, metric, max_starts, search, proximal, start is None

    def work(first: int, last: int, b: int, rows: np.ndarray, stop: np.ndarray) -> None:
        output = omega, out, losses, sums[b], totals[b]
        fields, weights = np.empty((stride * L, r)), np.zeros((stride * L, 2 * r))
        memory = workspace_memory(loss), fields, fields.reshape(stride, -1), weights
        _pass(first, last, (stride, rows, columns, shift), problem, stop, output, memory)

    over_strides(matrix.tokens, stride, block, work, long)
    both = (sums.sum(axis=0).T + matrix.positions.T @ totals.sum(axis=0)) / np.sqrt(d)
    denoised = finalize_result(out)
    return Pass(omega.reshape(n, L, r), denoised, losses, both[:, :r], both[:, r:])


def pass_over(
    data: Any, risk: str, Q: np.ndarray, D: np.ndarray, V: np.ndarray, start: np.ndarray | None = None, **options: Any
) -> Pass:
    """Pass over the samples of a dataset for a risk, each group with the matrices V (S, r, r) of its sources.

    The arguments are explained in `data_pass`.
    """
    params, parts, sums, (tokens, positions) = data.terms(risk).params, [], np.zeros((2, *Q.shape)), data.matrix
    for rows, sources in data.groups:
        begin, matrix = None if start is None else start[rows], TokenMatrix(tokens[rows], positions)
        part = data_pass(matrix, Q, D[rows], V[sources], data.loss, params[rows], begin, **options)
        sums += part.force, part.smooth
        parts.append(part[:3])
    return Pass(*map(join_parts, zip(*parts, strict=True)), *sums)


Memory = Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]  # returns the next D from D, V g, W g and β


def next_memory(
    groups: tuple[Group, ...], D: np.ndarray, g: np.ndarray, rule: Memory, V: np.ndarray, W: np.ndarray, beta: float
) -> np.ndarray:
    """Return the Onsager memory D of the next iteration by a rule, with V and W of the source of each token."""
    after = check.detach_tensor(rule(read_only(D), apply_by_source(groups, V, g), apply_by_source(groups, W, g), beta))
    if np.shape(after) != D.shape:
        raise ValueError(f"memory: needs to return shape {D.shape}, got shape {np.shape(after)}")
    after = np.asarray(after, dtype=float)
    return after if after.flags.writeable else after.copy()


def strides(n: int, L: int, n_sums: int) -> tuple[int, int]:
    """Return the number of samples in a stride, whose rows fill whole inner loops, and in a block of whole strides."""
    stride = LOOP_ROWS // gcd(LOOP_ROWS, L)
    n_blocks = max(1, min(MAX_BLOCKS, int(MAX_SUMS * n * L / n_sums)))
    return stride, stride * -(-n // (stride * n_blocks))


def over_strides(tokens: np.ndarray, stride: int, block: int, work: Callable[..., Any], long: bool = False) -> None:
    """Call work(first, last, b, rows, stop) for the samples of each block b, whose rows (N, d) start at `first`.

    If `long` is True, the pass can be interrupted by `stop`, see `interruptible_blocks`. The samples after the last
    whole stride are passed in a separate call, in rows that are padded with zeros to a whole stride.
    """
    n, L, d = tokens.shape
    rows, whole = _as_rows(tokens), n - n % stride
    padded = np.zeros((stride * L, d), dtype=tokens.dtype)
    padded[: len(rows) - whole * L] = rows[whole * L :]
    padded = read_only(padded)

    def task(first: int, last: int, stop: np.ndarray) -> None:
        for begin, end, here in ((first, min(last, whole), rows[first * L :]), (max(first, whole), last, padded)):
            if begin < end:
                work(begin, end, first // block, here, stop)

    interruptible_blocks(task, n, block, long)


@plain_kernel
def _pass(first, last, tokens, problem, stop, output, memory):
    """Pass over samples whose rows start with the first sample.

    `tokens` are the number of samples in a stride, whose rows are processed at once, the rows (N, d), the columns
    (r, d) along which fields are computed (weights over √d), and the fields (L r,) of the positions. `problem` are the
    loss, its parameters (n, P), the metric, the maximum number of further starts of a search, the search, whether there
    are proximal steps, and whether they start from their centers. `output` are the memory (n, L r), in place of which
    the centers of the proximal steps are written, the result of the denoiser, the losses (n,), the sums (2 r, d) of x g
    and x ∇ℓ over the rows of the block, and the sums (L, 2 r) of g_l and ∇ℓ_l over its samples. `memory` is scratch of
    one thread.
    """
    stride, rows, columns, shift = tokens
    loss, params, metric, most, search, proximal, fresh = problem
    omega, out, losses, sums, totals = output
    workspace, projections, fields, weights = memory  # fields (stride L, r) and (stride, L r), and g and ∇ℓ of rows
    k, r = shift.shape[0], columns.shape[0]
    L = k // r
    at_ws = make_workspace(loss, k, stop, workspace)
    at_metric, at_out, ws = point_to(metric), point_to(out), load_from(at_ws)
    for begin in range(first, last, stride):
        if ws.stop[0] != 0:
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
            end = min(begin + stride, last)
            denoise_rows(begin, end, loss, params, omega, at_metric, most, search, at_ws, at_out)
        for mu in range(begin, min(begin + stride, last)):
            z = fields[mu - begin]
            losses[mu] = differentiate(loss, params[mu], z, ws.grad, ws.hess, point_to_loss_scratch(at_ws), False)
            if proximal and k == 1 and out.response[mu, 0, 0, 0] == metric.inverse[0, 0, 0]:
                ws.grad[0] = -out.g[mu, 0]  # the proximal point is at a kink of ℓ, with this subgradient
            if proximal and is_kinked(loss):  # differences across a kink are no slopes; V⁻¹(X̃Q − z) vanishes at the end
                for i in range(k):
                    ws.grad[i] = -out.g[mu, i]
                    for b in range(r):
                        j = i // r * r + b
                        ws.grad[i] += metric.inverse[i // r, i % r, b] * (z[j] - out.z[mu, j])
            for l in range(L):
                for a in range(r):
                    g, slope = out.g[mu, l * r + a], ws.grad[l * r + a]
                    weights[(mu - begin) * L + l, a] = g
                    weights[(mu - begin) * L + l, r + a] = slope
                    totals[l, a] += g
                    totals[l, r + a] += slope
        add_up(here, ahead, rows, weights, sums)


@plain_kernel
def _curve(first, last, tokens, hessians, fields, weights, sums, totals):
    """Add x v and v_l to the sums, with v = H z, for samples whose rows start with the first sample.

    `tokens` are explained in `_pass`; `fields` and `weights` are scratch.
    """
    stride, rows, columns, shift = tokens
    k, r = shift.shape[0], columns.shape[0]
    L = k // r
    for begin in range(first, last, stride):
        here = (begin - first) * L
        ahead = here + stride * L if begin + stride < last else here
        project(here, ahead, rows, columns, fields)
        for row in range(stride * L):
            mu, l = begin + row // L, row % L
            for a in range(r):
                force = 0.0
                if mu < last:
                    for j in range(k):
                        z = fields[row - l + j // r, j % r] + shift[j]
                        force += hessians[mu, l * r + a, j] * z
                weights[row, a] = force
                totals[l, a] += force
        add_up(here, ahead, rows, weights, sums)


@field_kernel
def project(first, ahead, rows, columns, fields):
    """Compute fields (N, r) of rows from `first` on, along columns (r, d); rows from `ahead` on are prefetched."""
    for at in range(0, fields.shape[0], LOOP_ROWS):
        for a in range(columns.shape[0]):
            _project_four(a, first + at, ahead + at, at, rows, columns, fields)


@field_kernel
def add_up(first, ahead, rows, weights, sums):
    """Add rows from `first` on to an even number of sums (s, d) with weights (N, s); prefetch rows from `ahead` on."""
    for at in range(0, weights.shape[0], LOOP_ROWS):
        for a in range(0, sums.shape[0], 2):
            _add_to_two(a, first + at, ahead + at, at, rows, weights, sums)


@inline_kernel
def _steps(rows):
    """Return the coordinates in a cache line, a strip and its early part; unsigned: signed indices cost checks."""
    line = np.uint64(CACHE_LINE // rows.itemsize)
    return line, np.uint64(STRIP) * line, np.uint64(EARLY) * line


@inline_kernel
def _prefetch_rows(rows, ahead, begin, end, line):
    for i in range(begin, end, line):
        for row in range(ahead, ahead + LOOP_ROWS):
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
def _project(first, last, rows, columns, z):
    for row in range(first, last):
        for a in range(columns.shape[0]):
            acc = 0.0
            for i in range(rows.shape[1]):
                acc += rows[row, i] * columns[a, i]
            z[row, a] = acc


@field_kernel
def _accumulate(first, last, step, rows, weights, sums):
    total = sums[first // step]
    for row in range(first, last):
        for a in range(weights.shape[1]):
            w = weights[row, a]
            for i in range(rows.shape[1]):
                total[a, i] += w * rows[row, i]
