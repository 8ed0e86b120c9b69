"""Stable step size of gradient descent, from the curvature of the risk at the initial weights."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import hessian_product, risk_at


@dataclass(frozen=True)
class StableStepSettings:
    """Safety factor and accuracy of the step size."""

    share: float = 0.7  # step in units of 1/L: the curvature may grow by 40 % before the step exceeds 1/L
    accuracy: float = 0.01  # relative accuracy of the largest eigenvalue L
    restarts: int = 50  # maximum number of restarts of the Lanczos iteration


STABLE_STEP = StableStepSettings()


def stable_step(data: Dataset, Q: np.ndarray, risk: str) -> float:
    """Return a step η ≤ 0.7/L, rounded down to one digit; L is the largest eigenvalue of ∇²R at Q (d, r).

    Gradient descent is unstable for steps above 2/L. If the penalty has kinks, L is the curvature of the smooth part of
    the risk. L is computed by the implicitly restarted Lanczos method (ARPACK).
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    at, ridge = risk_at(data, Q, risk), data.penalty.lam if data.penalty.quadratic else 0.0

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_product(data, at, x.reshape(Q.shape), ridge).ravel()

    if Q.size < 3:  # ARPACK needs more dimensions than eigenvalues: compute the full spectrum
        values = np.linalg.eigvalsh([product(unit) for unit in np.eye(Q.size)])
    else:
        operator: Any = LinearOperator((Q.size, Q.size), matvec=product, dtype=float)
        start = np.random.default_rng(0).standard_normal(Q.size)
        try:
            options = {
                "tol": STABLE_STEP.accuracy,
                "maxiter": STABLE_STEP.restarts,
                "v0": start,
                "return_eigenvectors": False,
            }
            values = eigsh(operator, k=1, which="LA", **options)
        except ArpackNoConvergence as error:
            values = error.eigenvalues if len(error.eigenvalues) else np.array([np.linalg.norm(product(start))])
    step = STABLE_STEP.share / max(float(values[-1]), data.penalty.strength)
    digit = 10.0 ** math.floor(math.log10(step))
    return math.floor(step / digit) * digit
