"""Products with the token matrix X̃ = (x + p)/√d: local fields X̃Q, and X̃ᵀg.

Rows are processed in blocks that do not depend on the number of threads, and block sums are added in order, so results
are identical for any number of threads. X̃ is never formed. Tokens may be in a store.

X̃ᵀ H X̃ P in one pass over the tokens, H being the Hessians of the samples.

What needs all samples: the output step of message passing, and the sums that a risk is made of.

Both read the tokens once. Where several processes hold samples, their sums are added.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.check import read_only
from gamp_attention._core.compiled import field_kernel, kernel, over_blocks, sample_kernel
from gamp_attention.data.kernels import Part, add_up, grouped_pass, over_strides, project, strides
from gamp_attention.data.stores import Tokens, token_blocks
from gamp_attention.denoisers.output import Denoised
from gamp_attention.models.sources import Group, summed, weighted


def _block(n_rows: int) -> int:
    """Return the number of rows of one of 32 blocks."""
    return max(1, -(-n_rows // 32))


def local_fields(tokens: Tokens, positions: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """Return z_l = (x_l + p_l)·Q/√d (n, L, r) of tokens (n, L, d), positions (L, d) and Q (d, r). Eq. :eq:`fields`."""
    n, L, d = tokens.shape
    columns = np.ascontiguousarray(Q.T) / np.sqrt(d)
    z = np.empty((n, L, Q.shape[1]))
    for rows, _, block in token_blocks(tokens):
        flat, out = block.reshape(-1, d), z[rows].reshape(-1, Q.shape[1])
        over_blocks(partial(_project, rows=flat, columns=columns, z=out), len(flat), _block(len(flat)))
    return z + positions @ columns.T


def back_project(tokens: Tokens, positions: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return Σ_{μ,l} (x_l + p_l) g_lᵀ/√d (d, s), for tokens (n, L, d), positions (L, d) and g (n, L, s)."""
    d, g = tokens.shape[2], np.ascontiguousarray(g)
    total = np.zeros((d, g.shape[2]))
    for rows, _, block in token_blocks(tokens):
        flat, weights = block.reshape(-1, d), g[rows].reshape(-1, g.shape[2])
        step = _block(len(flat))
        sums = np.zeros((-(-len(flat) // step), weights.shape[1], d))
        over_blocks(partial(_accumulate, step=step, rows=flat, weights=weights, sums=sums), len(flat), step)
        total += sums.sum(axis=0).T
    return (total + positions.T @ g.sum(axis=0)) / np.sqrt(d)


def token_products(tokens: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return x_l·y_k (n, L, K) in float64 within every sample, for (n, L, d) and (n, K, d), without a large copy."""
    n, L, d = tokens.shape
    products = np.empty((n, L, others.shape[1]))
    step = max(1, (1 << 20) // (L * d))  # samples at a time, since tokens in single precision are copied into doubles
    for first in range(0, n, step):
        part = slice(first, first + step)
        products[part] = np.asarray(tokens[part], float) @ np.asarray(others[part], float).transpose(0, 2, 1)
    return products


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


def hessian_pass(tokens: Tokens, positions: np.ndarray, hessians: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Σ_μ X̃^μᵀ H^μ X̃^μ P: (n, L, d), (L, d), (n, L r, L r), (d, r) to (d, r). The tokens are read once."""
    (_, L, d), r = tokens.shape, P.shape[1]
    columns = np.ascontiguousarray(P.T) / np.sqrt(d)
    shift = (positions @ columns.T).ravel()
    found, along = np.zeros((r, d)), np.zeros((L, r))
    for part, _, x in token_blocks(tokens):
        more, total = _block_sums(x, np.ascontiguousarray(hessians[part]), columns, shift)
        found += more
        along += total
    return (found.T + positions.T @ along) / np.sqrt(d)


def _block_sums(
    x: np.ndarray, hessians: np.ndarray, columns: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums over the rows of x v and over the samples of v_l, v = H z being those of tokens (n, L, d) in memory."""
    (n, L, d), r = x.shape, len(columns)
    stride, block = strides(n, L, r)
    sums, totals = np.zeros((-(-n // block), r, d)), np.zeros((-(-n // block), L, r))

    def work(first: int, last: int, b: int, rows: np.ndarray, stop: np.ndarray) -> None:
        _curve(first, last, stride, rows, columns, shift, hessians, sums[b], totals[b])

    over_strides(x, stride, block, work)
    return sums.sum(axis=0), totals.sum(axis=0)


@kernel
def _curve(first, last, stride, rows, columns, shift, hessians, sums, totals):
    k, r = shift.shape[0], columns.shape[0]
    n_rows = stride * (k // r)
    fields, weights = np.empty((stride, k)), np.zeros((stride, k))
    projections, turned = fields.reshape((n_rows, r)), weights.reshape((n_rows, r))
    _curve_in_strides(
        first, last, stride, rows, columns, shift, hessians, fields, projections, weights, turned, sums, totals
    )


@sample_kernel
def _curve_in_strides(
    first, last, stride, rows, columns, shift, hessians, fields, projections, weights, turned, sums, totals
):
    k, r = shift.shape[0], columns.shape[0]
    L = k // r
    for begin in range(first, last, stride):
        here = (begin - first) * L
        ahead = here + stride * L if begin + stride < last else here
        project(here, ahead, rows, columns, projections)
        for mu in range(begin, begin + stride):
            v, z = weights[mu - begin], fields[mu - begin]
            for i in range(k):
                z[i] += shift[i]
                v[i] = 0.0
            if mu >= last:
                continue
            for i in range(k):
                for j in range(k):
                    v[i] += hessians[mu, i, j] * z[j]
                totals[i // r, i % r] += v[i]
        add_up(here, ahead, rows, turned, sums)


Memory = Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]  # D of (D, V g, W g, β)


class Sums(NamedTuple):
    """What samples add to an iteration.

    Attributes
    ----------
    loss : Σ_μ ℓ_μ at the fields X̃Q, constants included.
    force, smooth : (d, r) X̃ᵀg, and X̃ᵀ∇ℓ.
    response : (S, r, r) −Σ_μ ∂g_l/∂ω_l over the tokens of each source.
    """

    loss: float
    force: np.ndarray
    smooth: np.ndarray
    response: np.ndarray


class OutputStep(NamedTuple):
    """Sums, and what each sample keeps, as arrays (n, L, r) or as handles of arrays that are elsewhere.

    Attributes
    ----------
    sums : over all samples.
    z : minimisers of the proximal step.
    remember : the memory D of the next iteration, from a rule, the new V, W and the step β.
    omega, denoised : centres and answer of the proximal step; None where they are elsewhere.
    """

    sums: Sums
    z: Any
    remember: Callable[[Memory, np.ndarray, np.ndarray, float], Any]
    omega: np.ndarray | None = None
    denoised: Denoised | None = None


class RiskSums(NamedTuple):
    """A risk without its penalty: Σ_μ ℓ_μ, X̃ᵀ∇ℓ (d, r), and a function that gives the fields (n, L, r)."""

    loss: float
    smooth: np.ndarray
    fields: Callable[[], np.ndarray]


def output_step(
    data: Part, risk: str, Q: np.ndarray, D: np.ndarray, V: np.ndarray, z: np.ndarray | None, most: int
) -> OutputStep:
    """ω = X̃Q − D, z = prox(ω; V) and g = V⁻¹(z − ω) of the samples in this process, with the sums over them.

    Proximal steps start from the minimisers z of the last iteration, where there are any; `most` bounds the further
    starts of each search for a lower minimum.
    """
    terms = data.risks[risk]
    seen = grouped_pass(data, terms.params, Q, D, V, z, most=most)
    out = seen.denoised
    loss = float(np.sum(seen.losses + terms.constant))
    sums = Sums(loss, seen.force, seen.smooth, summed(data.groups, data.n_sources, out.response))
    return OutputStep(sums, out.z, partial(next_memory, data.groups, D, out.g), seen.omega, out)


def next_memory(
    groups: tuple[Group, ...], D: np.ndarray, g: np.ndarray, rule: Memory, V: np.ndarray, W: np.ndarray, beta: float
) -> np.ndarray:
    """The Onsager memory D of the next iteration by a rule, with V and W of the source of each token."""
    after = check.detach_tensor(rule(read_only(D), weighted(groups, V, g), weighted(groups, W, g), beta))
    if np.shape(after) != D.shape:
        raise ValueError(f"memory: needs to return shape {D.shape}, got shape {np.shape(after)}")
    after = np.asarray(after, dtype=float)
    return after if after.flags.writeable else after.copy()


def sum_risk(data: Part, risk: str, Q: np.ndarray) -> RiskSums:
    """A risk of the samples in this process, in the same pass as message passing makes."""
    terms, (n, L, _), r = data.risks[risk], data.tokens.shape, Q.shape[1]
    V = np.tile(np.eye(r), (data.n_sources, 1, 1))
    seen = grouped_pass(data, terms.params, Q, np.zeros((n, L, r)), V, proximal=False)
    return RiskSums(float(np.sum(seen.losses + terms.constant)), seen.smooth, lambda: seen.omega)
