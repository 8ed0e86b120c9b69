"""Where the two branches have equal training loss, and where attention beats the linear baseline."""

from collections.abc import Callable

import numpy as np

from gamp_attention.landscape.boundary import COARSE, Boundary, crossings_of, root
from gamp_attention.landscape.scan import Scan
from gamp_attention.linear_baseline import LinearBaseline

INSIDE = 0.02  # distance to the end of a branch, relative, at which it is still solved for


def equal_loss(semantic: Scan, positional: Scan, ends: tuple[float, float], tol: float) -> Boundary:
    """α_c, where the training losses of the two branches are equal.

    Parameters
    ----------
    semantic, positional : the branches.
    ends : where the range with both ends; NaN where it does not.
    tol : error of α asked for.
    """

    def gap(alpha: float, rtol: float) -> tuple[float, float] | None:
        a, b = semantic.at(alpha, rtol), positional.at(alpha, rtol)
        if a is None or b is None:
            return None
        return b.train_loss - a.train_loss, a.train_loss_error + b.train_loss_error

    def visit() -> list[tuple[float, float]]:
        both = sorted(semantic.found.keys() & positional.found.keys())
        return [(a, positional.found[a].train_loss - semantic.found[a].train_loss) for a in both]

    values = _up_to_the_ends(gap, visit, ends)
    if not values:
        return Boundary.none("none: there is no α with both branches")
    brackets = crossings_of(values)
    if not brackets:
        lower = "semantic" if values[-1][1] > 0 else "positional"
        return Boundary.none(
            f"none: the {lower} branch has the lower training loss wherever both exist, "
            f"from α = {values[0][0]:.4g} to {values[-1][0]:.4g}"
        )
    found = root(gap, brackets[0], tol)
    others = f"; {len(brackets) - 1} more at larger α" if len(brackets) > 1 else ""
    return found._replace(note=found.note + others)


def beats_baseline(semantic: Scan, baseline: LinearBaseline, ends: tuple[float, float], tol: float) -> Boundary:
    """α_l, from which on the test error of the semantic branch is below the linear baseline's."""

    def gap(alpha: float, rtol: float) -> tuple[float, float] | None:
        found = semantic.at(alpha, rtol)
        if found is None:
            return None
        return baseline.test_error - found.test_error, baseline.test_error_error + found.test_error_error

    def visit() -> list[tuple[float, float]]:
        return [(a, baseline.test_error - semantic.found[a].test_error) for a in sorted(semantic.found)]

    values = _up_to_the_ends(gap, visit, ends)
    if not values:
        return Boundary.none("none: there is no semantic branch")
    brackets = crossings_of(values)
    if not brackets:
        word = "beats" if values[-1][1] > 0 else "does not beat"
        return Boundary.none(
            f"none: attention {word} the linear baseline wherever the semantic branch exists, "
            f"from α = {values[0][0]:.4g} to {values[-1][0]:.4g}"
        )
    return root(gap, brackets[-1], tol)


def _up_to_the_ends(
    gap: Callable[[float, float], tuple[float, float] | None],
    visit: Callable[[], list[tuple[float, float]]],
    ends: tuple[float, float],
) -> list[tuple[float, float]]:
    """Values at all α known, and just inside the ends, where these may hide a change of sign."""
    if visit():
        for end, inward in zip(ends, (1 + INSIDE, 1 - INSIDE), strict=True):
            if np.isfinite(end):
                gap(end * inward, COARSE)
    return visit()
