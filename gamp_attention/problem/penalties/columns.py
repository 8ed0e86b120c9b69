"""Quadratic penalties with a strength for each column of Q, and columns of fixed norm.

The penalty is r(Q) = Σ_a λ_a ‖Q_a‖²/2 over the penalized columns. A spherical column has no penalty but the constraint
‖Q_a‖² = d; its multiplier takes the place of λ_a at every step of message passing and of state evolution. In both cases
new weights are (Λ + A)⁻¹ b with Λ = diag(λ_a), so that all averages over weights keep their closed form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check

SPHERE = "sphere"  # entry of `lam` that stands for the constraint ‖Q_a‖² = d
DEFAULT_UNIT = 0.01  # unit of gradients and variances if no column has a λ other than 0: the default λ of all models


@dataclass(frozen=True)
class ColumnRidge:
    """Penalty Σ_a λ_a ‖Q_a‖²/2 with a strength for each column of Q; columns may be constrained to ‖Q_a‖² = d.

    Attributes
    ----------
    lams : for each column its λ_a, which may be zero or negative, or "sphere" for a column with ‖Q_a‖² = d.

    Raises
    ------
    TypeError : if `lams` is not a sequence of numbers and "sphere".
    ValueError : if `lams` is empty, or a number is not finite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> penalty = ga.ColumnRidge([0.1, "sphere"])
    >>> penalty.lams, ga.attention_model(rank=2, penalty=penalty).penalty == penalty
    ((0.1, 'sphere'), True)
    """

    lams: tuple[float | str, ...]

    # weights are linear in the force b, and the risk has a gradient; Q and −Q have the same penalty
    quadratic = smooth = even = by_column = True
    intercept = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lams", _require_columns(self.lams))

    @property
    def rank(self) -> int:
        """Number of columns."""
        return len(self.lams)

    @property
    def sphere(self) -> np.ndarray:
        """(r,) True for spherical columns."""
        return np.array([value == SPHERE for value in self.lams])

    @property
    def curvature(self) -> np.ndarray:
        """λ_a of each column (r,), 0 for spherical columns."""
        return np.array([0.0 if value == SPHERE else value for value in self.lams])

    @property
    def lam(self) -> float:
        """Largest absolute value of the λ_a, which sweeps over λ set by scaling all λ_a."""
        return float(np.abs(self.curvature).max())

    @property
    def strength(self) -> float:
        """Unit of gradients and variances: the largest absolute value of λ_a, or 0.01 if all are zero."""
        return self.lam or DEFAULT_UNIT

    @property
    def convexity(self) -> float:
        """Smallest λ_a; 0 with spherical columns, whose multipliers are not known in advance."""
        return 0.0 if self.sphere.any() else float(self.curvature.min())

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
        return ColumnRidge(tuple(value if isinstance(value, str) else factor * value for value in self.lams))

    def multipliers(self, Q: np.ndarray, smooth: np.ndarray) -> np.ndarray:
        """Return Λ (r,) at weights Q (d, r) with the gradient `smooth` (d, r) of the risk without penalty.

        The multiplier of a spherical column is −Q_a·∇_a/‖Q_a‖², which removes the radial part of its gradient.
        """
        squares = np.maximum(np.sum(Q**2, axis=0), np.finfo(float).tiny)
        return np.where(self.sphere, -np.sum(Q * smooth, axis=0) / squares, self.curvature)

    def retract(self, Q: np.ndarray) -> np.ndarray:
        """Return Q (d, r) with spherical columns scaled to norm √d; columns that are zero do not change."""
        norms = np.linalg.norm(Q, axis=0)
        factors = np.where(self.sphere & (norms > 0), math.sqrt(len(Q)) / np.where(norms > 0, norms, 1.0), 1.0)
        return Q * factors

    def tangential(self, Q: np.ndarray, P: np.ndarray) -> np.ndarray:
        """Return P (d, r) without its component along Q in spherical columns."""
        squares = np.maximum(np.sum(Q**2, axis=0), np.finfo(float).tiny)
        return P - np.where(self.sphere, np.sum(Q * P, axis=0) / squares, 0.0) * Q


def _require_columns(lams: Any) -> tuple[float | str, ...]:
    """Return λ_a of each column as floats and "sphere"; raise for any other value."""
    needs = 'one number or "sphere" for each column of Q'
    if isinstance(lams, str) or not isinstance(lams, Sequence | np.ndarray) or np.ndim(np.array(lams, object)) != 1:
        raise check.fail("lams", lams, needs, TypeError)
    if not len(lams):
        raise check.fail("lams", lams, needs)
    return tuple(
        value if isinstance(value, str) and value == SPHERE else check.real(f"lams[{a}]", value)
        for a, value in enumerate(lams)
    )


def has_spheres(penalty: Any) -> bool:
    """Return whether a penalty constrains the norm of columns."""
    return bool(np.any(getattr(penalty, "sphere", False)))


def has_one_strength(penalty: Any) -> bool:
    """Return whether a penalty is λ‖Q‖²/2 with one λ for all columns."""
    return bool(penalty.quadratic) and not penalty.by_column


def refuse_spheres(penalty: Any, needs: str) -> None:
    """Raise ValueError, for the argument `needs` describes, if a penalty has spherical columns."""
    if has_spheres(penalty):
        raise check.fail("lam, penalty", list(penalty.lams), needs)


def curvature_of(penalty: Any) -> Any:
    """Return λ of a quadratic penalty, a number or an array (r,) with one for each column, 0 for spherical columns."""
    return penalty.curvature


def layout_of(student: Any, rank: int) -> Any:
    """Return the columns of a student with several heads or value matrices; None for any other student."""
    find = getattr(student, "head_layout", None)
    return None if find is None else find(rank)


def column_classes(penalty: Any, student: Any, rank: int) -> list[np.ndarray]:
    """Return sets of columns that may be rotated into each other without a change of the risk.

    Each set is an array (parts, n): a rotation of its n columns is applied in all weight matrices (queries and keys)
    together. Columns of different heads are in different sets. Columns that may not be rotated are sets of one column
    (n = 1), whose signs may change only if the student and the penalty are even.

    Parameters
    ----------
    penalty : the penalty.
    student : an attention map or a loss, with `parts`, `rotations`, and `head_layout` if it has several heads.
    rank : number of columns r of all weight matrices.
    """
    penalty = getattr(penalty, "penalty", penalty)  # a penalty of all rows except an intercept
    layout = layout_of(student, rank)
    if layout is not None:
        blocks = [layout.scores(head) for head in range(layout.heads)]
    else:
        blocks = [np.arange(rank).reshape(student.parts, -1)]
        if not student.rotations:
            return _single_columns(blocks)
    if not penalty.quadratic:
        return _single_columns(blocks)
    if not penalty.by_column:
        return blocks
    classes: dict[Any, list[np.ndarray]] = {}
    for head, block in enumerate(blocks):
        for column in block.T:
            strengths = tuple(penalty.lams[a] for a in column)
            # a rotation changes the norms of spherical columns
            key = (head, strengths, column[0]) if SPHERE in strengths else (head, strengths)
            classes.setdefault(key, []).append(column)
    return [np.stack(columns, axis=1) for columns in classes.values()]


def _single_columns(blocks: list[np.ndarray]) -> list[np.ndarray]:
    return [column[:, None] for block in blocks for column in block.T]
