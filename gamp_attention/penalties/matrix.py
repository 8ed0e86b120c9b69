"""The penalty of all entries of Q: value, subgradients, proximal steps."""

from typing import Any

import numpy as np

from gamp_attention.penalties.base import proxes, proxes_of_each, slopes, values
from gamp_attention.penalties.standard import ScaledPenalty


def penalty_total(penalty: Any, Q: np.ndarray) -> float:
    """r(Q) = Σ ρ(Q_ia)."""
    if isinstance(penalty, ScaledPenalty):
        own = 0.5 * float(penalty.ridge @ np.sum(Q**2, axis=1))
        return own + penalty_total(penalty.penalty, penalty.scales[:, None] * Q)
    if penalty.quadratic:
        return 0.5 * penalty.lam * np.sum(Q**2)
    flat = np.ascontiguousarray(Q, dtype=float).ravel()
    out = np.empty(flat.shape)
    values(penalty, flat, out)
    return float(out.sum())


def least_subgradient(penalty: Any, Q: np.ndarray, smooth: np.ndarray) -> np.ndarray:
    """The element of smallest norm of smooth + ∂r(Q), shaped as Q; zero exactly at critical points."""
    if isinstance(penalty, ScaledPenalty):
        c, smooth = penalty.units[:, None], smooth + penalty.ridge[:, None] * Q
        found = c * least_subgradient(penalty.penalty, c * Q, smooth / c)
        return np.where(penalty.scales[:, None] > 0, found, smooth)
    if penalty.quadratic:
        return penalty.lam * Q + smooth
    flat, rest = np.ascontiguousarray(Q, dtype=float).ravel(), np.ascontiguousarray(smooth).ravel()
    left, right = np.empty(flat.shape), np.empty(flat.shape)
    slopes(penalty, flat, left, right)
    return (rest + np.minimum(np.maximum(-rest, left), right)).reshape(Q.shape)


def proximal_map(penalty: Any, b: np.ndarray, a: float) -> tuple[np.ndarray, np.ndarray]:
    """argmin r(X) + a ‖X‖²/2 − Tr bᵀX, and its derivative entry by entry, shaped as b."""
    if isinstance(penalty, ScaledPenalty):
        c, total = penalty.units[:, None], np.broadcast_to(a + penalty.ridge[:, None], b.shape)
        moved, response = np.empty(b.shape), np.empty(b.shape)
        proxes_of_each(
            penalty.penalty, (b / c).ravel(), (total / c**2).ravel(), moved.reshape(-1), response.reshape(-1)
        )
        free = penalty.scales[:, None] == 0
        return np.where(free, b / total, moved / c), np.where(free, 1 / total, response / c**2)
    flat = np.ascontiguousarray(b, dtype=float).ravel()
    x, dx = np.empty(flat.shape), np.empty(flat.shape)
    proxes(penalty, flat, float(a), x, dx)
    return x.reshape(b.shape), dx.reshape(b.shape)


def on_kinks(penalty: Any, Q: np.ndarray, smooth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights after one short proximal gradient step, which puts on kinks of ρ those that a kink holds.

    Averages over iterations, as damped message passing takes, approach a kink but do not get there.

    Returns
    -------
    The weights; 1.0 for those free to move, 0.0 for those held; and ρ'' of the free ones. All are shaped as Q.
    """
    if isinstance(penalty, ScaledPenalty):
        c, smooth = penalty.units[:, None], smooth + penalty.ridge[:, None] * Q
        kept, free, curvature = on_kinks(penalty.penalty, c * Q, smooth / c)
        bare = penalty.scales[:, None] == 0
        kept, free, curvature = (
            np.where(bare, plain, found) for plain, found in ((Q, kept / c), (1.0, free), (0.0, c**2 * curvature))
        )
        return kept, free, curvature + penalty.ridge[:, None] * free
    if penalty.quadratic:
        return Q, np.ones(Q.shape), np.full(Q.shape, penalty.lam)
    stiffness = 1e3 * penalty.strength  # short enough that weights which no kink holds hardly move
    kept, response = proximal_map(penalty, stiffness * Q - smooth, stiffness)
    free = response > 0
    curvature = np.maximum(1 / np.where(free, response, 1.0) - stiffness, 0.0)
    return kept, free.astype(float), np.where(free, curvature, 0.0)
