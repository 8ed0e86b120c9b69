"""Penalties of whole weight matrices: value, subgradients, proximal steps."""

from typing import Any

import numpy as np

from gamp_attention.penalties.base import proxes, proxes_of_each, slopes, values
from gamp_attention.penalties.columns import ColumnRidge
from gamp_attention.penalties.standard import InterceptPenalty, ScaledPenalty


def penalty_total(penalty: Any, Q: np.ndarray) -> float:
    """Return r(Q) = Σ ρ(Q_ia)."""
    if isinstance(penalty, InterceptPenalty):
        return penalty_total(penalty.penalty, Q[:-1])
    if isinstance(penalty, ScaledPenalty):
        ridge = 0.5 * float(penalty.ridge @ np.sum(Q**2, axis=1))
        return ridge + penalty_total(penalty.penalty, penalty.scales[:, None] * Q)
    if isinstance(penalty, ColumnRidge):
        return float(0.5 * penalty.curvature @ np.sum(Q**2, axis=0))
    if penalty.quadratic:
        return 0.5 * penalty.lam * np.sum(Q**2)
    flat = np.ascontiguousarray(Q, dtype=float).ravel()
    out = np.empty(flat.shape)
    values(penalty, flat, out)
    return float(out.sum())


def penalty_of_rows(penalty: Any, Q: np.ndarray) -> np.ndarray:
    """Return the penalty of each row, Σ_a ρ(Q_ia), (d,) for Q (d, r)."""
    if isinstance(penalty, InterceptPenalty):
        return np.append(penalty_of_rows(penalty.penalty, Q[:-1]), 0.0)
    if isinstance(penalty, ScaledPenalty):
        ridge = 0.5 * penalty.ridge * np.sum(Q**2, axis=1)
        return ridge + penalty_of_rows(penalty.penalty, penalty.scales[:, None] * Q)
    flat = np.ascontiguousarray(Q, dtype=float).ravel()
    out = np.empty(flat.shape)
    values(penalty, flat, out)
    return out.reshape(Q.shape).sum(axis=1)


def smallest_subgradient(penalty: Any, Q: np.ndarray, smooth: np.ndarray) -> np.ndarray:
    """Return the element of smallest norm of smooth + ∂r(Q), shaped as Q; it is zero exactly at critical points.

    A spherical column has the projected gradient plus its strength times (‖Q_a‖²/d − 1) Q_a/2, which is zero exactly if
    the column is a critical point on the sphere and has the norm √d.
    """
    if isinstance(penalty, InterceptPenalty):
        return np.concatenate([smallest_subgradient(penalty.penalty, Q[:-1], smooth[:-1]), smooth[-1:]])
    if isinstance(penalty, ScaledPenalty):
        c, smooth = penalty.units[:, None], smooth + penalty.ridge[:, None] * Q
        subgradient = c * smallest_subgradient(penalty.penalty, c * Q, smooth / c)
        return np.where(penalty.scales[:, None] > 0, subgradient, smooth)
    if isinstance(penalty, ColumnRidge):
        excess = np.sum(Q**2, axis=0) / len(Q) - 1
        outward = np.where(penalty.sphere, 0.5 * penalty.strength * excess, 0.0)
        return (penalty.multipliers(Q, smooth) + outward) * Q + smooth
    if penalty.quadratic:
        return penalty.lam * Q + smooth
    flat, given = np.ascontiguousarray(Q, dtype=float).ravel(), np.ascontiguousarray(smooth).ravel()
    left, right = np.empty(flat.shape), np.empty(flat.shape)
    slopes(penalty, flat, left, right)
    return (given + np.minimum(np.maximum(-given, left), right)).reshape(Q.shape)


def proximal_map(penalty: Any, b: np.ndarray, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Return argmin r(X) + a ‖X‖²/2 − Tr bᵀX, and its derivative entry by entry, shaped as b."""
    if isinstance(penalty, InterceptPenalty):
        parts = proximal_map(penalty.penalty, b[:-1], a)
        last = b[-1:] / a, np.full((1, b.shape[1]), 1 / a)
        return np.concatenate([parts[0], last[0]]), np.concatenate([parts[1], last[1]])
    if isinstance(penalty, ScaledPenalty):
        c, total = penalty.units[:, None], np.broadcast_to(a + penalty.ridge[:, None], b.shape)
        moved, response = np.empty(b.shape), np.empty(b.shape)
        proxes_of_each(
            penalty.penalty, (b / c).ravel(), (total / c**2).ravel(), moved.reshape(-1), response.reshape(-1)
        )
        free = penalty.scales[:, None] == 0
        return np.where(free, b / total, moved / c), np.where(free, 1 / total, response / c**2)
    if isinstance(penalty, ColumnRidge):
        response = np.broadcast_to(1 / (penalty.curvature + a), b.shape)
        return response * b, response
    flat = np.ascontiguousarray(b, dtype=float).ravel()
    x, dx = np.empty(flat.shape), np.empty(flat.shape)
    proxes(penalty, flat, float(a), x, dx)
    return x.reshape(b.shape), dx.reshape(b.shape)


def on_kinks(penalty: Any, Q: np.ndarray, smooth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move weights that are optimal at a kink of ρ exactly to the kink, by one short proximal gradient step.

    Damped message passing averages over iterations, so its weights approach a kink but do not reach it.

    Spherical columns get their multiplier as ρ''.

    Returns
    -------
    The weights; 1.0 for each weight that is free to move, 0.0 for each weight at a kink; and ρ'' of the free weights, 0
    for the others. All are shaped as Q.
    """
    if isinstance(penalty, InterceptPenalty):
        ends = Q[-1:], np.ones_like(Q[-1:]), np.zeros_like(Q[-1:])
        parts = on_kinks(penalty.penalty, Q[:-1], smooth[:-1])
        moved, free, curvature = (np.concatenate([part, end]) for part, end in zip(parts, ends, strict=True))
        return moved, free, curvature
    if isinstance(penalty, ScaledPenalty):
        c, smooth = penalty.units[:, None], smooth + penalty.ridge[:, None] * Q
        moved, free, curvature = on_kinks(penalty.penalty, c * Q, smooth / c)
        bare = penalty.scales[:, None] == 0  # rows without a penalty
        moved, free = np.where(bare, Q, moved / c), np.where(bare, 1.0, free)
        return moved, free, np.where(bare, 0.0, c**2 * curvature) + penalty.ridge[:, None] * free
    if isinstance(penalty, ColumnRidge):
        return Q, np.ones(Q.shape), np.broadcast_to(penalty.multipliers(Q, smooth), Q.shape)
    if penalty.quadratic:
        return Q, np.ones(Q.shape), np.full(Q.shape, penalty.lam)
    stiffness = 1e3 * penalty.strength  # the step is so short that weights which are not at a kink hardly move
    moved, response = proximal_map(penalty, stiffness * Q - smooth, stiffness)
    free = response > 0
    curvature = np.maximum(1 / np.where(free, response, 1.0) - stiffness, 0.0)
    return moved, free.astype(float), np.where(free, curvature, 0.0)
