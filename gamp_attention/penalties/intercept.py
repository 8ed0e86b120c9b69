"""Penalties of weights whose last row is an unpenalised intercept.

An intercept b (r,) is added to the fields of all tokens: z = (x + p) Q/√d + b. It is stored as one more coordinate, in
which tokens are 0 and positions are 1, with b = Q_d/√d in the last row of Q. Message passing then needs no rule of its
own: for this row the precision is A = Σ_l V̂_l, so that a step adds (Σ_l V̂_l)⁻¹ Σ_l m̂_l to b, a Newton step that
neglects correlations between tokens. At fixed points Σ_l m̂_l = 0, the condition that the risk is stationary in b.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.penalties.columns import curvature_of, has_spheres


@dataclass(frozen=True)
class InterceptPenalty:
    """Penalty of all rows of Q except the last, the intercept.

    Raises
    ------
    ValueError : if the penalty has spherical columns.
    """

    penalty: Any  # the penalty of the other rows

    # the response of the last row differs from the others, so that code for a single λ does not apply
    quadratic = False

    def __post_init__(self) -> None:
        if has_spheres(self.penalty):
            needs = "a number for each column, as columns on a sphere have no intercept"
            raise check.fail("lam", list(self.penalty.lams), needs)

    @property
    def lam(self) -> float:
        """Return λ of the penalty."""
        return float(self.penalty.lam)

    @property
    def strength(self) -> float:
        """Return the unit of gradients and variances."""
        return float(self.penalty.strength)

    @property
    def convexity(self) -> float:
        """Return a number μ such that the penalty, minus μx²/2, is convex in all rows."""
        return min(float(self.penalty.convexity), 0.0)

    @property
    def even(self) -> bool:
        """Return whether Q and −Q have the same penalty."""
        return bool(self.penalty.even)

    @property
    def smooth(self) -> bool:
        """Return whether the penalty has no kinks."""
        return bool(self.penalty.smooth)


def has_intercept(penalty: Any) -> bool:
    """Return whether the last row of the weights is an intercept."""
    return isinstance(penalty, InterceptPenalty)


def without_intercept(penalty: Any) -> Any:
    """Return the penalty of the rows that are penalised."""
    return penalty.penalty if isinstance(penalty, InterceptPenalty) else penalty


def is_ridge(penalty: Any) -> bool:
    """Return whether a penalty is quadratic in all rows of the weights, or in all except an intercept."""
    return bool(without_intercept(penalty).quadratic)


def ridge_strengths(penalty: Any, d: int) -> Any:
    """Return λ of a penalty that `is_ridge` accepts: a number, an array (r,), or (d, 1) or (d, r) with an intercept."""
    strengths = curvature_of(without_intercept(penalty))
    if not has_intercept(penalty):
        return strengths
    rows = np.tile(np.atleast_1d(strengths), (d, 1))
    rows[-1] = 0.0
    return rows


def refuse_intercept(present: bool, needs: str) -> None:
    """Raise ValueError, for the argument `needs` describes, if there is an intercept."""
    if present:
        raise check.fail("intercept", True, needs)
