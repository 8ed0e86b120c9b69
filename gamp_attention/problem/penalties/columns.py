"""Quadratic penalties with a strength for each column of Q.

The penalty is r(Q) = Σ_a λ_a ‖Q_a‖²/2 over the penalized columns. New weights are (Λ + A)⁻¹ b with Λ = diag(λ_a), so
that all averages over weights keep their closed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check

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

    @property
    def rank(self) -> int:
        """Number of columns."""
        return len(self.lams)

    @property
    def curvature(self) -> np.ndarray:
        """λ_a of each column (r,)."""
        return np.array(self.lams)

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
        """Smallest λ_a."""
        return min(self.lams)

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
