"""The penalties `Ridge`, `ElasticNet` and `ColumnRidge`, intercepts, and penalties of whole matrices.

**Columns.** `ColumnRidge` is r(Q) = Σ_a λ_a ‖Q_a‖²/2. New weights are (Λ + A)⁻¹ b with Λ = diag(λ_a), so that all
averages over weights keep their closed form.

**Intercept.** The last row of the weights may be an unpenalized intercept. An intercept b (r,) is added to the fields
of all tokens: z = (x + p) Q/√d + b. It is stored as one more coordinate, in which tokens are 0 and positions are 1,
with b = Q_d/√d in the last row of Q. Message passing then needs no further rule: for this row the precision is A =
Σ_l V̂_l, so that a step adds (Σ_l V̂_l)⁻¹ Σ_l m̂_l to b, a Newton step that neglects correlations between tokens. At
fixed points Σ_l m̂_l = 0, the condition that the risk is stationary in b.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._kernels.content import require_unchanged
from gamp_attention._tools import check
from gamp_attention.problem.penalties.base import register_penalty

DEFAULT_UNIT = 0.01  # unit of gradients and variances if no column has a λ other than 0: the default λ of all models


@dataclass(frozen=True)
class ColumnRidge:
    """Penalty Σ_a λ_a ‖Q_a‖²/2 with a strength for each column of Q.

    Attributes
    ----------
    lams : for each column its λ_a, which may be zero or negative.

    Raises
    ------
    TypeError : if `lams` is not a sequence of numbers.
    ValueError : if `lams` is empty, or a number is not finite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> penalty = ga.ColumnRidge([0.1, 0.01])
    >>> penalty.lams, ga.attention_model(rank=2, penalty=penalty).penalty == penalty
    ((0.1, 0.01), True)
    """

    lams: tuple[float, ...]

    # weights are linear in the force b, and the risk has a gradient; Q and −Q have the same penalty
    quadratic = smooth = even = by_column = True
    intercept = False

    def __post_init__(self) -> None:
        lams: Any = self.lams
        needs = "one number for each column of Q"
        if isinstance(lams, str) or not isinstance(lams, Sequence | np.ndarray) or np.ndim(np.array(lams, object)) != 1:
            raise check.fail("lams", lams, needs, TypeError)
        if not len(lams):
            raise check.fail("lams", lams, needs)
        object.__setattr__(self, "lams", tuple(check.real(f"lams[{a}]", value) for a, value in enumerate(lams)))

    rank = property(lambda self: len(self.lams))  # number of columns
    curvature = property(lambda self: np.array(self.lams))  # (r,) λ_a of each column
    lam = property(lambda self: float(np.abs(self.curvature).max()))  # max |λ_a|, which sweeps set by scaling all λ_a
    # unit of gradients and variances: the largest absolute value of λ_a, or 0.01 if all are zero
    strength = property(lambda self: self.lam or DEFAULT_UNIT)
    convexity = property(lambda self: min(self.lams))

    @property
    def floor(self) -> float:
        """Value to which eigenvalues of Λ + A are raised far from fixed points."""
        smallest = self.convexity  # halved if it is positive, as A may be negative
        return 0.5 * smallest if smallest > 0 else 0.01 * self.strength

    def checked(self, owner: str) -> "ColumnRidge":
        """Return this penalty, whose numbers are checked when it is made."""
        return self

    def scale_to(self, lam: float) -> "ColumnRidge":
        """Return the penalty with all λ_a scaled by one factor, so that their largest absolute value is `lam`."""
        if lam == self.lam:
            return self
        if self.lam == 0:
            raise check.fail("lam", lam, "a penalty with some λ_a other than 0, which it scales")
        factor = lam / self.lam
        return ColumnRidge(tuple(factor * value for value in self.lams))


def has_one_strength(penalty: Any) -> bool:
    """Return whether a penalty is λ‖Q‖²/2 with one λ for all columns."""
    return bool(penalty.quadratic) and not penalty.by_column


def layout_of(student: Any, rank: int) -> Any:
    """Return the columns of a student with several heads or value matrices; None for any other student."""
    find = getattr(student, "head_layout", None)
    return None if find is None else find(rank)


def column_classes(penalty: Any, student: Any, rank: int) -> list[np.ndarray]:
    """Return sets of columns that may be rotated into each other without a change of the risk.

    Each set is an array (parts, n): a rotation of its n columns is applied in all weight matrices (queries and keys)
    together. Columns of different heads are in different sets. Columns that may not be rotated are sets of one column
    (n = 1), whose signs may change only if the student (an attention map or a loss) and the penalty are even.
    """
    penalty = getattr(penalty, "penalty", penalty)  # a penalty of all rows except an intercept
    layout = layout_of(student, rank)
    if layout is not None:
        blocks = [layout.scores(head) for head in range(layout.heads)]
    else:
        blocks = [np.arange(rank).reshape(student.parts, -1)]
    if not penalty.quadratic or (layout is None and not student.rotations):
        return [column[:, None] for block in blocks for column in block.T]
    if not penalty.by_column:
        return blocks
    classes: dict[Any, list[np.ndarray]] = {}
    for head, block in enumerate(blocks):
        for column in block.T:
            classes.setdefault((head, *(penalty.lams[a] for a in column)), []).append(column)
    return [np.stack(columns, axis=1) for columns in classes.values()]


@dataclass(frozen=True)
class InterceptPenalty:
    """Penalty of all rows of Q except the last, the intercept."""

    penalty: Any  # the penalty of the other rows
    intercept = True
    quadratic = by_column = False  # λ differs between rows, so that code for a λ of a column does not apply

    def checked(self, owner: str) -> "InterceptPenalty":
        """Return this penalty after checking the penalty of the other rows."""
        return InterceptPenalty(_checked(self.penalty, owner))

    # Q and −Q have the same penalty, or the risk has a gradient, if this holds for the penalty of the other rows
    lam = property(lambda self: self.penalty.lam)
    even = property(lambda self: self.penalty.even)
    smooth = property(lambda self: self.penalty.smooth)
    strength = property(lambda self: self.penalty.strength)
    convexity = property(lambda self: min(float(self.penalty.convexity), 0.0))


def by_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of a penalty and of arrays with rows (d, …) apply zero penalty to the row of an intercept."""

    @wraps(function)
    def apply(penalty: Any, *arrays: Any) -> Any:
        if not penalty.intercept:
            return function(penalty, *arrays)
        rows = [(x[:-1], x[-1:]) if np.ndim(x) else (x, x) for x in arrays]
        parts = function(penalty.penalty, *(x for x, _ in rows)), function(NO_PENALTY, *(x for _, x in rows))
        if isinstance(parts[0], tuple):
            return tuple(np.concatenate(part) for part in zip(*parts, strict=True))
        return np.concatenate(parts) if np.ndim(parts[0]) else parts[0]

    return apply


def without_intercept(penalty: Any) -> Any:
    """Return the penalty of the rows that are penalized."""
    return penalty.penalty if penalty.intercept else penalty


def is_ridge(penalty: Any) -> bool:
    """Return whether a penalty is quadratic in all rows of the weights, or in all except an intercept."""
    return bool(without_intercept(penalty).quadratic)


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
    strength = convexity = property(lambda self: self.lam)  # type: ignore[misc]

    def checked(self, owner: str) -> "Ridge":
        """Return this penalty after checking λ, whose name follows `owner` in errors."""
        return Ridge(check.real(f"{owner}lam", self.lam, low=0, strict=True))

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


NO_PENALTY = Ridge(0.0)  # penalty of an intercept


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

    def checked(self, owner: str) -> "ElasticNet":
        """Return this penalty after checking λ and l₁, whose names follow `owner` in errors."""
        penalty = ElasticNet(*(check.real(owner + name, value, low=0) for name, value in self._asdict().items()))
        if penalty.strength == 0:
            raise check.fail("penalty", penalty, "λ or l₁ above 0")
        return penalty

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
        if isinstance(lam, numbers.Real) or (not isinstance(lam, str) and np.ndim(lam) == 0):
            return Ridge(check.real("lam", lam, low=0, strict=True))
        try:
            return ColumnRidge(lam)
        except (TypeError, ValueError) as error:
            needs = "a positive number, or a sequence with one finite number for each column of Q"
            raise check.fail("lam", lam, needs, type(error)) from None
    checked: Any = _checked(penalty, "penalty.")
    contained: Any = getattr(checked, "lam", None)
    if lam is not None and not np.array_equal(lam, contained):
        raise check.fail("lam", lam, f"to be omitted if `penalty` is given, which contains λ ({penalty!r})")
    return checked


def penalty_or_ridge(given: Any) -> Any:
    """Return a penalty after checking it; a number λ means the ridge."""
    is_number = isinstance(given, numbers.Real)
    return Ridge(check.real("penalty", given, low=0, strict=True)) if is_number else _checked(given, "penalty.")


def _checked(penalty: Any, owner: str = "") -> Any:
    """Return a penalty after checking its type and its numbers, whose names follow `owner` in errors."""
    find = getattr(type(penalty), "checked", None)
    if find is None:
        needs = "a penalty: Ridge(lam), ColumnRidge(lams), ElasticNet(lam, l1)"
        needs += " or a NamedTuple registered by register_penalty"
        raise check.fail("penalty", penalty, needs, TypeError)
    require_unchanged(type(penalty))
    return find(penalty, owner)


def with_lam(penalty: Any, lam: Any) -> Any:
    """Return the penalty with another λ; raise ValueError if it has no λ, or λ is not allowed."""
    if penalty.intercept:
        return InterceptPenalty(with_lam(penalty.penalty, lam))
    if penalty.by_column:
        return penalty.scale_to(check.real("lam", lam, low=0))
    if "lam" not in penalty._fields:
        raise check.fail("penalty", penalty, "a field 'lam' to change λ")
    return _checked(penalty._replace(lam=check.real("lam", lam, low=0)))


@by_rows
def unpenalized(penalty: Any, Q: np.ndarray) -> np.ndarray:
    """Return which weights Q (d, r) have no penalty: intercepts, and columns with λ_a = 0."""
    return np.broadcast_to(penalty.quadratic & (np.asarray(penalty.curvature) == 0), Q.shape)
