"""The step of gradient descent that the curvature of the risk at its start allows."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import hessian_product, risk_at


@dataclass(frozen=True)
class StableStepSettings:
    """How near to instability steps are."""

    share: float = 0.7  # of 1/L: half as much again is left for where the curvature grows along the way
    accuracy: float = 0.01  # of L
    restarts: int = 50  # of the Lanczos iterations


STABLE_STEP = StableStepSettings()


def stable_step(data: Dataset, Q: np.ndarray, risk: str) -> float:
    """A step η ≤ .7/L, to one digit, where L is the largest eigenvalue of ∇²R at Q (d, r); 2/L is unstable.

    Of the smooth part of the risk, where the penalty has kinks.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    at, ridge = risk_at(data, Q, risk), data.penalty.lam if data.penalty.quadratic else 0.0

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_product(data, at, x.reshape(Q.shape), ridge).ravel()

    if Q.size < 3:  # too small for Lanczos iterations
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
