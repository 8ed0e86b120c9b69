"""The Hessian X̃ᵀ ∇²ℓ X̃ of the losses of all samples, as a dense matrix."""

from collections.abc import Iterable, Iterator

import numpy as np

from gamp_attention._core.numerics import deterministic_product, one_thread
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.stores import token_blocks

BLOCK = 1024  # number of samples in a block of a pass over the tokens


def risk_hessian(data: Dataset, hessians: np.ndarray, free: tuple[np.ndarray, ...] | None = None) -> np.ndarray:
    """Return the Hessian of the losses of a dataset; see `data_hessian`. By default, all weights are free."""
    free = tuple(np.arange(data.dim) for _ in range(data.rank)) if free is None else free
    if not isinstance(data.tokens, np.ndarray) or data.tokens.dtype != float or data.positions.any():
        return data_hessian(scaled_blocks(data), hessians, free)
    # the factor 1/√d of the tokens is moved to the Hessians, which saves a copy of the tokens
    blocks = (slice(first, first + BLOCK) for first in range(0, data.n_samples, BLOCK))
    return data_hessian(((rows, data.tokens[rows]) for rows in blocks), hessians / data.dim, free)


def data_hessian(
    blocks: Iterable[tuple[slice, np.ndarray]], hessians: np.ndarray, free: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Return X̃ᵀ ∇²ℓ X̃ (k, k) of the free weights, which are ordered column after column of Q.

    Parameters
    ----------
    blocks : rows and scaled tokens (m, L, p) of blocks of samples, as returned by `scaled_blocks`.
    hessians : (n, L r, L r) Hessians of the losses in the fields.
    free : indices of the free weights in each of the r columns of Q.
    """
    r = len(free)
    edges = np.cumsum([0, *map(len, free)])
    H = np.zeros((edges[-1], edges[-1]))
    if hessians.shape[1] == 1 and float(hessians.min()) >= 0:
        with one_thread():
            for rows, x in blocks:  # the product of a matrix with its transpose takes half the time
                flat = x.reshape(-1, x.shape[2])
                rooted = np.sqrt(hessians[rows, 0]) * (flat if len(H) == flat.shape[1] else flat[:, free[0]])
                H += rooted.T @ rooted
        return H
    D = hessians.reshape(len(hessians), -1, r, hessians.shape[1] // r, r)
    coupled = [(a, b) for a in range(r) for b in range(a, r) if D[:, :, a, :, b].any()]
    for rows, x in blocks:
        flat = x.reshape(-1, x.shape[2])
        columns = [flat if len(part) == flat.shape[1] else flat[:, part] for part in free]
        for a, b in coupled:
            d, second = D[rows, :, a, :, b], columns[b].reshape(*x.shape[:2], -1)
            weighted = (d * second if x.shape[1] == 1 else d @ second).reshape(len(flat), -1)
            part = deterministic_product(columns[a].T, weighted)
            H[edges[a] : edges[a + 1], edges[b] : edges[b + 1]] += part
            if a != b:
                H[edges[b] : edges[b + 1], edges[a] : edges[a + 1]] += part.T
    return 0.5 * (H + H.T)


def scaled_blocks(data: Dataset) -> Iterator[tuple[slice, np.ndarray]]:
    """Return rows and (x + p)/√d of blocks of samples, in order."""
    for rows, _, tokens in token_blocks(data.tokens):
        for first in range(0, len(tokens), BLOCK):
            part = tokens[first : first + BLOCK]
            begin = rows.start + first
            yield slice(begin, begin + len(part)), (part + data.positions) / np.sqrt(data.dim)
