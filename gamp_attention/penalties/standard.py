"""The penalties `Ridge` and `ElasticNet`, intercepts, and penalties of whole matrices.

**Intercept.** The last row of the weights may be an unpenalized intercept. An intercept b (r,) is added to the fields
of all tokens: z = (x + p) Q/√d + b. It is stored as one more coordinate, in which tokens are 0 and positions are 1,
with b = Q_d/√d in the last row of Q. Message passing then needs no further rule: for this row the precision is A =
Σ_l V̂_l, so that a step adds (Σ_l V̂_l)⁻¹ Σ_l m̂_l to b, a Newton step that neglects correlations between tokens. At
fixed points Σ_l m̂_l = 0, the condition that the risk is stationary in b.
"""

import math
import numbers
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.penalties.base import (
    PENALTIES,
    check_penalty,
    proxes,
    register_penalty,
    slopes,
    values,
)
from gamp_attention.penalties.columns import DEFAULT_UNIT, SPHERE, ColumnRidge, curvature_of, has_spheres


@dataclass(frozen=True)
class InterceptPenalty:
    """Penalty of all rows of Q except the last, the intercept.

    Raises
    ------
    ValueError : if the penalty has spherical columns.
    """

    penalty: Any  # the penalty of the other rows
    quadratic = False  # λ differs between rows, so that code for a single λ does not apply

    def __post_init__(self) -> None:
        if has_spheres(self.penalty):
            needs = "a number for each column, as columns on a sphere have no intercept"
            raise check.fail("lam, penalty", list(self.penalty.lams), needs)

    @property
    def lam(self) -> float:
        """Return λ of the penalty of the other rows."""
        return float(self.penalty.lam)

    @property
    def even(self) -> bool:
        """Return whether Q and −Q have the same penalty."""
        return bool(self.penalty.even)

    @property
    def smooth(self) -> bool:
        """Return whether the penalty has no kinks."""
        return bool(self.penalty.smooth)

    @property
    def strength(self) -> float:
        """Return the unit of gradients and variances."""
        return float(self.penalty.strength)

    @property
    def convexity(self) -> float:
        """Return a number μ such that the penalty, minus μx²/2, is convex in all rows."""
        return min(float(self.penalty.convexity), 0.0)


def has_intercept(penalty: Any) -> bool:
    """Return whether the last row of the weights is an intercept."""
    return isinstance(penalty, InterceptPenalty)


def without_intercept(penalty: Any) -> Any:
    """Return the penalty of the rows that are penalized."""
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


def unpenalized(penalty: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return which weights (d, r) have no penalty: intercepts, and columns with λ_a = 0."""
    free = np.zeros(shape, dtype=bool)
    if isinstance(without_intercept(penalty), ColumnRidge):
        free[:] = [value == 0 for value in without_intercept(penalty).lams]
    if has_intercept(penalty):
        free[-1] = True
    return free


def refuse_intercept(present: bool, needs: str) -> None:
    """Raise ValueError, for the argument `needs` describes, if there is an intercept."""
    if present:
        raise check.fail("intercept", True, needs)


@register_penalty
class Ridge(NamedTuple):
    """Ridge ρ(x) = λ x²/2.

    Attributes
    ----------
    lam : λ > 0.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> penalty = ga.Ridge(lam=0.5)
    >>> penalty.value(2.0), ga.paper_model(penalty=penalty).lam
    (1.0, 0.5)
    """

    lam: float
    even = smooth = quadratic = True  # type: ignore[misc]

    @property
    def strength(self) -> float:
        """Return λ."""
        return self.lam

    @property
    def convexity(self) -> float:
        """Return λ."""
        return self.lam

    def value(self, x):
        """Return ρ(x)."""
        return 0.5 * self.lam * x * x

    def slopes(self, x):
        """Return both ends of ∂ρ(x)."""
        return self.lam * x, self.lam * x

    def prox(self, b, a):
        """Return the minimizer of ρ(x) + a x²/2 − b x, and its derivative in b."""
        response = 1.0 / (self.lam + a)
        return response * b, response


@register_penalty
class ElasticNet(NamedTuple):
    """Elastic net ρ(x) = λ x²/2 + l₁ abs(x) (Zou and Hastie, 2005); λ = 0 is the lasso.

    Attributes
    ----------
    lam, l1 : λ >= 0 and l₁ >= 0, not both zero.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> penalty = ga.ElasticNet(lam=0.5, l1=1.0)
    >>> penalty.value(2.0), ga.paper_model(penalty=penalty).lam
    (3.0, 0.5)
    """

    lam: float
    l1: float

    @property
    def strength(self) -> float:
        """Return λ + l₁."""
        return self.lam + self.l1

    @property
    def convexity(self) -> float:
        """Return λ."""
        return self.lam

    @property
    def even(self) -> bool:
        """Return whether ρ(−x) = ρ(x)."""
        return True

    def value(self, x):
        """Return ρ(x)."""
        return 0.5 * self.lam * x * x + self.l1 * abs(x)

    def slopes(self, x):
        """Return both ends of ∂ρ(x)."""
        smooth = self.lam * x
        if x > 0.0:
            return smooth + self.l1, smooth + self.l1
        if x < 0.0:
            return smooth - self.l1, smooth - self.l1
        return -self.l1, self.l1

    def prox(self, b, a):
        """Return the minimizer of ρ(x) + a x²/2 − b x, and its derivative in b."""
        if abs(b) < self.l1:
            return 0.0, 0.0
        response = 1.0 / (self.lam + a)
        return response * (b - math.copysign(self.l1, b)), response


def require_penalty(penalty: Any, lam: Any = None) -> Any:
    """Return a penalty after checking it; if `penalty` is None, the ridge with λ or with one λ for each column.

    λ is 0.01 if neither is given.

    Raises
    ------
    TypeError : if `penalty` is not a penalty, or an entry of `lam` has the wrong type.
    ValueError : if λ is not allowed, or if `lam` differs from the λ of a given penalty.
    """
    if penalty is None:
        lam = DEFAULT_UNIT if lam is None else lam
        is_number = isinstance(lam, numbers.Real) or (not isinstance(lam, str) and np.ndim(lam) == 0)
        return Ridge(check.real("lam", lam, low=0, strict=True)) if is_number else _ridge_of_columns(lam)
    checked: Any = _checked(penalty, "penalty.")
    contained: Any = getattr(checked, "lam", None)
    if lam is not None and not np.array_equal(lam, contained):
        raise check.fail("lam", lam, f"to be omitted if `penalty` is given, which contains λ ({penalty!r})")
    return checked


def _checked(penalty: Any, owner: str = "") -> Any:
    """Return a penalty after checking its type and its numbers, whose names follow `owner` in errors."""
    if isinstance(penalty, ColumnRidge):
        return penalty
    if isinstance(penalty, InterceptPenalty):
        return InterceptPenalty(_checked(penalty.penalty, owner))
    if type(penalty) is Ridge:
        return Ridge(check.real(f"{owner}lam", penalty.lam, low=0, strict=True))
    if type(penalty) is ElasticNet:
        penalty = ElasticNet(*(check.real(owner + k, v, low=0) for k, v in penalty._asdict().items()))
        if penalty.strength == 0:
            raise check.fail("penalty", penalty, "λ or l₁ above 0")
        return penalty
    if type(penalty) not in PENALTIES:
        needs = "a penalty: Ridge(lam), ColumnRidge(lams), ElasticNet(lam, l1)"
        needs += " or a NamedTuple registered by register_penalty"
        raise check.fail("penalty", penalty, needs, TypeError)
    _check_once(penalty)
    return penalty


def _ridge_of_columns(lam: Any) -> ColumnRidge:
    """Return the ridge for `lam`, a sequence of λ_a and "sphere", or "sphere" alone for a single column."""
    try:
        return ColumnRidge((SPHERE,) if isinstance(lam, str) and lam == SPHERE else lam)
    except (TypeError, ValueError) as error:
        needs = 'a positive number, or a sequence with one finite number or "sphere" for each column of Q'
        raise check.fail("lam", lam, needs, type(error)) from None


_check_once = lru_cache(typed=True)(check_penalty)  # typed: NamedTuples of equal numbers are equal whatever their type


def with_lam(penalty: Any, lam: Any) -> Any:
    """Return the penalty with another λ; raise ValueError if it has no λ, or λ is not allowed."""
    if isinstance(penalty, InterceptPenalty):
        return InterceptPenalty(with_lam(penalty.penalty, lam))
    if isinstance(penalty, ColumnRidge):
        return penalty.scale_to(check.real("lam", lam, low=0))
    if "lam" not in penalty._fields:
        raise check.fail("penalty", penalty, "a field 'lam' to change λ")
    return _checked(penalty._replace(lam=check.real("lam", lam, low=0)))


def penalty_total(penalty: Any, Q: np.ndarray) -> float:
    """Return r(Q) = Σ ρ(Q_ia)."""
    if isinstance(penalty, InterceptPenalty):
        return penalty_total(penalty.penalty, Q[:-1])
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
    if isinstance(penalty, ColumnRidge):
        return Q, np.ones(Q.shape), np.broadcast_to(penalty.multipliers(Q, smooth), Q.shape)
    if penalty.quadratic:
        return Q, np.ones(Q.shape), np.full(Q.shape, penalty.lam)
    stiffness = 1e3 * penalty.strength  # the step is so short that weights which are not at a kink hardly move
    moved, response = proximal_map(penalty, stiffness * Q - smooth, stiffness)
    free = response > 0
    curvature = np.maximum(1 / np.where(free, response, 1.0) - stiffness, 0.0)
    return moved, free.astype(float), np.where(free, curvature, 0.0)
