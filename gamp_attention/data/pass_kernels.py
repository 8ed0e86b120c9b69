"""One pass over the tokens: fields, proximal step, and both X̃ᵀg and X̃ᵀ∇ℓ, while the rows are in cache.

X is read once and nothing of its size is formed. A block of samples belongs to one thread, which goes through it in
strides of a few rows: it projects and adds up a stride that is in its cache already, and asks for the next one
meanwhile, so that waiting for memory and arithmetic overlap. Blocks do not depend on the number of threads and their
sums are added in order, so results do not either.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import kernel, sample_kernel
from gamp_attention._core.prefetch import CACHE_LINE, prefetch
from gamp_attention.data.row_kernels import add_up, project
from gamp_attention.data.stores import Tokens, joined, token_blocks
from gamp_attention.data.strides import over_strides, strides
from gamp_attention.denoisers.newton import make_metric
from gamp_attention.denoisers.output import Denoised, denoise_sample, empty_answer, finished, is_long, make_scratch
from gamp_attention.denoisers.prox import SEARCH, search_points
from gamp_attention.losses.attention import evaluate_gradient
from gamp_attention.losses.point import for_kernels
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.models.sources import Group


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
    most: int = SEARCH.max_starts,
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
    out = empty_answer(omega if start is None else start.reshape(n, L * r), r)
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
    denoised = finished(out)
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
