"""Accelerated proximal gradient steps on the compiled risk, for penalties with kinks (FISTA with restarts)."""

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import gradient_norm, risk_at
from gamp_attention.penalties.matrix import penalty_total, proximal_map

GROW, SHRINK = 2.0, 0.9  # of the bound on the curvature: where a step overshoots, and otherwise
FIRST = 1.0  # that bound, to start with
ROUNDING = 1e-14  # error of ε_t


def proximal_gradient(data: Dataset, risk: str, Q: np.ndarray, tol: float, max_iter: int) -> tuple[np.ndarray, int]:
    """Descend from Q until ‖∇R‖_F/(λ√d) <= tol: the weights of smallest gradient, and the iterations taken.

    From y, between the last two iterates and beyond, the step is x = argmin r(x) + ∇f(y)·x + c‖x − y‖²/2 with f the
    risk without penalty and c a bound on its curvature along the step. Momentum is dropped where it points uphill.
    """
    penalty, x, y = data.penalty, Q, Q
    momentum, bound = 1.0, FIRST
    best, best_norm = Q, np.inf
    for n_iter in range(max_iter):
        here = risk_at(data, y, risk)
        value = data.dim * here.train_loss - penalty_total(penalty, y)
        while True:
            moved, _ = proximal_map(penalty, bound * y - here.smooth, bound)
            there = risk_at(data, moved, risk)
            step = moved - y
            allowed = value + np.sum(here.smooth * step) + 0.5 * bound * np.sum(step**2)
            if data.dim * there.train_loss - penalty_total(penalty, moved) <= allowed + ROUNDING * data.dim * abs(
                value
            ):
                break
            bound *= GROW
        norm = gradient_norm(data, there.gradient)
        if norm < best_norm:
            best, best_norm = moved, norm
        if norm <= tol:
            return best, n_iter + 1
        if np.sum((y - moved) * (moved - x)) > 0:
            momentum = 1.0
        after = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        y = moved + (momentum - 1) / after * (moved - x)
        x, momentum, bound = moved, after, SHRINK * bound
    return best, max_iter
