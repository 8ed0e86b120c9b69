"""Products with the token matrix X̃ = (x + p)/√d: local fields X̃Q, and X̃ᵀg.

Rows are processed in blocks that do not depend on the number of threads, and block sums are added in order, so results
are identical for any number of threads. X̃ is never formed. Tokens may be in a store.
"""

from functools import partial

import numpy as np

from gamp_attention._core.compiled import field_kernel, over_blocks
from gamp_attention.data.stores import Tokens, token_blocks


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
