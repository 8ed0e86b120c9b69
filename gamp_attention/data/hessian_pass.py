"""X̃ᵀ H X̃ P in one pass over the tokens, H being the Hessians of the samples."""

import numpy as np

from gamp_attention._core.compiled import kernel, sample_kernel
from gamp_attention.data.row_kernels import add_up, project
from gamp_attention.data.stores import Tokens, token_blocks
from gamp_attention.data.strides import over_strides, strides


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
