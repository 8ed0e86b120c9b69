"""What own outputs say of the attention behind them: T with y = T x, and what is left of y."""

from typing import NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset


class OwnTargets(NamedTuple):
    """The attention T (n, L, L) that explains most of the outputs, and the mean square outside of the tokens' span."""

    targets: np.ndarray
    outside: float


def own_targets(data: Dataset, rows: np.ndarray, tokens: np.ndarray) -> OwnTargets:
    """T = y xᵀ(x xᵀ)⁻¹ of each sample, of as many dimensions as tokens at least."""
    if data.targets is not None:
        return OwnTargets(np.asarray(data.targets)[rows], 0.0)
    L, d = tokens.shape[1:]
    if d <= L:
        raise check.fail("data", f"{L} tokens in {d} dimensions", "more dimensions than tokens, or the noise given")
    outputs = np.asarray(data.outputs)[rows]
    targets = np.einsum("nij,njk->nik", outputs @ tokens.transpose(0, 2, 1), _inverses(tokens))
    left = outputs - targets @ tokens
    outside = float(np.mean(left**2))
    return OwnTargets(targets, outside if outside > 1e-20 * float(np.mean(outputs**2)) else 0.0)


def _inverses(tokens: np.ndarray) -> np.ndarray:
    """(x xᵀ)⁻¹ of each sample; its pseudo-inverse where tokens are alike."""
    return np.linalg.pinv(tokens @ tokens.transpose(0, 2, 1), rcond=1e-10, hermitian=True)


def score_noise(own: OwnTargets, tokens: np.ndarray, predicted: np.ndarray | None) -> float:
    """s of y = (T + s N)x: from what the target does not explain, or from the part outside of the span alone.

    White N has E‖N x‖² = L‖x‖². Noise of variance η² on all entries of an output has, within the span of its tokens,
    the size of s² = L η²/‖x‖².
    """
    L, d = tokens.shape[1:]
    size = float(np.mean(np.einsum("nld,nld->n", tokens, tokens)))
    if predicted is None:
        within = own.outside * d / (d - L) * L**2
    else:
        within = float(np.mean(np.einsum("nld,nld->n", *[(own.targets - predicted) @ tokens] * 2)))
    square = within / (L * size)
    return float(np.sqrt(square)) if square > 1e-16 else 0.0
