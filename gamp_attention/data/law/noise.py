"""Attention matrices and noise behind given outputs: T with y = T x, and the part of y outside the span of x."""

from typing import NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset


class OwnTargets(NamedTuple):
    """Attention matrices T (n, L, L) that best explain the outputs, and the mean square outside the tokens' span."""

    targets: np.ndarray
    outside: float


def own_targets(data: Dataset, rows: np.ndarray, tokens: np.ndarray) -> OwnTargets:
    """Return T = y xᵀ(x xᵀ)⁻¹ of each sample; the dimension must be larger than the number of tokens."""
    if data.targets is not None:
        return OwnTargets(np.asarray(data.targets)[rows], 0.0)
    L, d = tokens.shape[1:]
    if d <= L:
        needs = "more dimensions than tokens, so that the outputs determine T; otherwise pass `noise`"
        raise check.fail("data", f"{L} tokens in {d} dimensions", needs)
    outputs = np.asarray(data.outputs)[rows]
    targets = np.einsum("nij,njk->nik", outputs @ tokens.transpose(0, 2, 1), _inverses(tokens))
    remainder = outputs - targets @ tokens
    outside = float(np.mean(remainder**2))
    return OwnTargets(targets, outside if outside > 1e-20 * float(np.mean(outputs**2)) else 0.0)


def _inverses(tokens: np.ndarray) -> np.ndarray:
    """Return (x xᵀ)⁻¹ of each sample, the pseudo-inverse if tokens are linearly dependent."""
    return np.linalg.pinv(tokens @ tokens.transpose(0, 2, 1), rcond=1e-10, hermitian=True)


def score_noise(own: OwnTargets, tokens: np.ndarray, predicted: np.ndarray | None) -> float:
    """Return s of y = (T + s N)x, from the outputs that T does not explain or from their part outside the tokens' span.

    White N has E‖N x‖² = L‖x‖². Noise of variance η² on all entries of an output has the same effect within the span of
    its tokens as s² = L η²/‖x‖².
    """
    L, d = tokens.shape[1:]
    size = float(np.mean(np.einsum("nld,nld->n", tokens, tokens)))
    if predicted is None:
        within = own.outside * d / (d - L) * L**2
    else:
        within = float(np.mean(np.einsum("nld,nld->n", *[(own.targets - predicted) @ tokens] * 2)))
    square = within / (L * size)
    return float(np.sqrt(square)) if square > 1e-16 else 0.0
