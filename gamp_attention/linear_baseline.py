"""The purely positional baseline, a linear layer with one trainable L × L matrix: eq. (17)-(20)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.models import Model, require_model
from gamp_attention.state_evolution.channel import teacher_fields
from gamp_attention.state_evolution.gaussian_points import gaussian_points


@dataclass(frozen=True, eq=False)
class LinearBaseline:
    """The learnt matrix and its test error in the limit d → ∞, at any sample complexity.

    Attributes
    ----------
    weights, weights_error : (L, L) Ŵ = E T[y] of eq. (19), and its standard error.
    test_error, test_error_error : ε_lin = (1/L) E Tr[(T − Ŵ) ρ (T − Ŵ)ᵀ] of eq. (20), and its standard error.
    """

    weights: np.ndarray
    weights_error: np.ndarray
    test_error: float
    test_error_error: float


def linear_baseline(model: Model, *, n_points: int = 16384, n_replicas: int = 8, seed: Any = 0) -> LinearBaseline:
    """Asymptotic weights and test error of the linear layer y = W x trained on the same task.

    Parameters
    ----------
    model : the problem.
    n_points : points of each replica, even.
    n_replicas : independent point sets, at least 2.
    seed : an integer or a numpy Generator.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """
    require_model(model)
    n_points = 2 * (check.integer("n_points", n_points, low=64) // 2)
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    rng = check.generator(seed)
    L, t = model.n_tokens, model.teacher_rank
    weights, errors = [], []
    for _ in range(n_replicas):
        y, _ = teacher_fields(model, gaussian_points(n_points, L * t, rng).reshape(n_points, L, t))
        T = model.teacher(y)
        weights.append(T.mean(axis=0))
        errors.append(float(T.var(axis=0).sum(axis=0) @ model.coordinates.trace) / L)
    share = 1 / np.sqrt(n_replicas)
    return LinearBaseline(
        np.mean(weights, axis=0),
        np.std(weights, axis=0, ddof=1) * share,
        float(np.mean(errors)),
        float(np.std(errors, ddof=1) * share),
    )
