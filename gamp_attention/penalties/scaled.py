"""A penalty with a factor for each row of the weights: rows in units of their own, and rows without a penalty."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class ScaledPenalty:
    """r(Q) = Σ_ia [ρ(c_i Q_ia) + ε_i Q_ia²/2] for a penalty ρ of single weights.

    If column i of the rows is divided by s_i, its weight is multiplied by s_i, and c_i = 1/s_i keeps the penalty of the
    original weight. c_i = 0 leaves row i without a penalty (an intercept). Ridge(0) is allowed here, for data that
    determine the weights without a penalty.

    Attributes
    ----------
    penalty : the penalty ρ.
    scales : (d,) factors c_i >= 0.
    bounds : smallest and largest `strength`, > 0: sizes of gradients and variances are measured in units of the data's
        own curvature if the penalty is much weaker or stronger.
    ridge : (d,) ε_i >= 0, a curvature that makes directions unique in which the risk is flat.
    """

    penalty: Any
    scales: np.ndarray
    bounds: tuple[float, float]
    ridge: np.ndarray

    quadratic = False  # λ differs from row to row, and code for one λ does not apply

    @property
    def lam(self) -> float:
        """λ of ρ."""
        return float(self.penalty.lam)

    @property
    def strength(self) -> float:
        """The strength of ρ at the median factor of the penalised rows, within `bounds`."""
        positive = self.scales[self.scales > 0]
        middle = float(np.median(positive)) if len(positive) else 0.0
        return float(np.clip(float(self.penalty.strength) * middle**2, *self.bounds))

    @property
    def convexity(self) -> np.ndarray:
        """(d, 1) numbers μ_i such that the penalty of a weight in row i, less μ_i x²/2, is convex."""
        return (self.penalty.convexity * self.scales**2 + self.ridge)[:, None]

    @property
    def even(self) -> bool:
        """Return whether ρ(−x) = ρ(x)."""
        return bool(self.penalty.even)

    @property
    def smooth(self) -> bool:
        """Return whether ρ has no kinks."""
        return bool(self.penalty.smooth)

    @property
    def units(self) -> np.ndarray:
        """(d,) factors c_i, with 1 in place of 0, to divide by."""
        return np.where(self.scales > 0, self.scales, 1.0)
