"""Reduction of the attention layer to L × L matrices of each sample, in one pass over the tokens.

The exact risk depends on tokens and outputs only through G = (x+p)(x+p)ᵀ/d, M = (x+p)yᵀ/d and ‖y‖²/d of each sample,
and on the weights only through the local fields: it is a generalised linear model (GLM).
"""

from collections.abc import Callable

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.passes import local_fields, token_products
from gamp_attention.data.stores import Tokens, joined, token_blocks
from gamp_attention.losses.attention import RiskTerms, pack_attention_parameters


def _terms(
    positions: np.ndarray, xx: np.ndarray, xp: np.ndarray, M: np.ndarray, norm: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return loss parameters from x xᵀ, x pᵀ and (x+p) yᵀ (N, L, L) and the squares ‖y‖² (N,), all divided by d."""
    G = xx + xp + xp.transpose(0, 2, 1) + positions @ positions.T / positions.shape[1]
    return pack_attention_parameters(G, M), norm / 2


def own_terms(tokens: Tokens, positions: np.ndarray, outputs: Tokens) -> RiskTerms:
    """Return the terms of the exact risk for tokens and outputs (n, L, d)."""
    d, parts = tokens.shape[2], []
    for rows, _, x in token_blocks(tokens):
        y = outputs[rows] if isinstance(outputs, np.ndarray) else outputs.read(rows)
        M = (token_products(x, y) + positions @ y.transpose(0, 2, 1)) / d
        norm = np.einsum("nld,nld->n", y, y, dtype=float) / d
        parts.append(_terms(positions, token_products(x, x) / d, _with_positions(x, positions) / d, M, norm))
    return RiskTerms(*map(joined, zip(*parts, strict=True)))


def taught_terms(
    tokens: Tokens, positions: np.ndarray, teacher: Callable[[np.ndarray], np.ndarray], Q_star: np.ndarray,
    noise: np.ndarray | None = None,
) -> tuple[np.ndarray, RiskTerms]:  # fmt: skip
    """Return targets T[xQ*/√d] + noise (n, L, L), and the exact risk's terms of y = targets · x, without forming y."""
    d, parts = tokens.shape[2], []
    for rows, _, x in token_blocks(tokens):
        T = teacher(local_fields(x, np.zeros_like(positions), Q_star))
        T = T if noise is None else T + noise[rows]
        xx, xp = token_products(x, x) / d, _with_positions(x, positions) / d
        M = (xx + xp.transpose(0, 2, 1)) @ T.transpose(0, 2, 1)
        parts.append((T, *_terms(positions, xx, xp, M, np.einsum("nij,njk,nik->n", T, xx, T))))
    targets, params, constant = map(joined, zip(*parts, strict=True))
    return targets, RiskTerms(params, constant)


def _with_positions(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return token_products(x, np.broadcast_to(positions, x.shape))


def mean_squares(tokens: Tokens, about: np.ndarray | None = None) -> np.ndarray:
    """Return the mean squares (L,) of the entries of each token, minus means (L, d) if given.

    Raise ValueError if a store contains numbers that are not finite.
    """
    n, L, d = tokens.shape
    total = np.zeros(L)
    for rows, _, x in token_blocks(tokens):
        x = x if about is None else x - about
        total += np.einsum("nld,nld->l", x, x, dtype=float)
        if not isinstance(tokens, np.ndarray) and not np.isfinite(total).all() and not np.isfinite(x).all():
            raise ValueError(f"tokens: need finite numbers, got others in samples {rows.start} to {rows.stop - 1}")
    return total / (n * d)


def token_means(tokens: Tokens) -> np.ndarray:
    """Return means (L, d) of the tokens over the samples, the estimate of positions that the tokens include."""
    n = tokens.shape[0]
    if n < 2:
        needs = "an array (L, d), or zeros if there are none: they cannot be estimated from one sample"
        raise check.fail("positions", None, needs)
    return np.add.reduce([x.sum(axis=0, dtype=float) for _, _, x in token_blocks(tokens)]) / n


def distinct_samples(tokens: Tokens) -> int:
    """Return the number of distinct samples."""
    return len({hash(sample.tobytes()) for _, _, x in token_blocks(tokens) for sample in x})
