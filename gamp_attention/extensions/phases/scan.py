"""Boundaries of the phases of one model.

`Scan` solves a branch of state evolution on a grid of α, and at further values on request. From scans of the two
branches the functions below compute the values of α at which a branch appears, ends, and gains or loses stability, at
which the two branches have equal training loss (α_c), and from which attention is better than the linear baseline
(α_l).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.display import count_noun
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.phases.branches import continue_branch, curve_of
from gamp_attention.extensions.phases.crossings import BranchTrack, TrackPoint, root_along
from gamp_attention.results import ConvergenceError, Overlaps, add_display
from gamp_attention.theory.fixed_points.observables import sector_growth
from gamp_attention.theory.fixed_points.solve import FAMILY_OF, first_root, is_off
from gamp_attention.theory.linear import LinearBaseline
from gamp_attention.theory.models.model import Model

ZERO = {"semantic": "m", "positional": "theta"}  # the overlap family that is zero on each branch


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, with the coarsest quadrature rule."""

    model: Model
    branch: str
    points: dict[float, TrackPoint] = field(default_factory=dict)  # points of the branch by α
    lost: set[float] = field(default_factory=set)  # values of α at which the branch was not found
    track: BranchTrack = field(init=False)  # interpolates all of `points`; exists after the first point
    rough: float = 1e-2  # tolerance of the overlaps and of α during a scan, enough to identify the branch
    max_iter: int = 104  # maximum number of iterations; near an end, the branch is continued instead
    points_per_e: float = 2.2  # number of α of the grid for each factor e
    inside: float = 0.04  # relative distance in α from an end at which the branch, which changes fast, is solved too

    def at(self, alpha: float) -> TrackPoint | None:
        """Return the fixed point at α, continued from known points or started by name; None if there is none."""
        if alpha not in self.points:
            nearest = min([*self.points, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
            if not (nearest in self.points and self._follow(alpha)):
                self.solve(alpha, self.branch)
        return self.points.get(alpha)

    def solve(self, alpha: float, init: Any) -> bool:
        """Solve from a named start or overlaps; return whether the branch exists at α."""
        root = first_root(self.model, alpha, init, self.max_iter)
        exists = root.status.converged and self._follow(alpha, root.overlaps)
        if not exists:
            self.lost.add(alpha)
        return exists

    def approach(self, alpha: float) -> None:
        """Solve at α near an end of the branch, at which the overlap family that gives the branch its name vanishes.

        Newton steps converge to it from larger values, and to zero from much smaller values: they start at its value at
        the nearest point.
        """
        if alpha not in self.points and self.points:
            family, nearest = FAMILY_OF[self.branch], min(self.points, key=lambda a: abs(a - alpha))
            guess = self.track.guess(alpha).arrays() | {family: self.points[nearest].overlaps.arrays()[family]}
            if not self._follow(alpha, Overlaps(**guess)):
                self.at(alpha)

    def trim(self, low: float, high: float) -> None:
        """Remove points outside of the range in which the branch exists on finer rules; NaN for no limit."""
        for alpha in [alpha for alpha in self.points if alpha < low or alpha > high]:
            del self.points[alpha]
            self.track.known.pop(alpha, None)

    def spans(self, alpha: float) -> bool:
        """Return whether α lies between values at which the branch was found."""
        return min(self.points, default=np.inf) <= alpha <= max(self.points, default=-np.inf)

    def _follow(self, alpha: float, overlaps: Overlaps | None = None) -> bool:
        """Return whether the branch exists at α, by a step from known points or from overlaps given at α."""
        if overlaps is not None:
            if not hasattr(self, "track"):
                curve = curve_of(self.model, alpha, "alpha", overlaps)
                self.track = BranchTrack(replace(curve, rule=curve.rule.at_level(0)), {}, self.rough)
            self.track.known[alpha] = overlaps
        point = self.track(alpha, halvings=0)  # smaller steps do not find the branch beyond its end either
        if point is None or is_off(self.branch, point.overlaps):
            self.track.known.pop(alpha, None)
            return False
        self.points[alpha] = point
        return True

    def solve_grid(self, low: float, high: float) -> None:
        """Solve on a grid of α: the semantic branch from high to low α, other branches from low to high.

        If no α of the grid is on the branch, the branch may exist between two of them: then also solve between them.
        """
        grid = np.geomspace(low, high, max(2, int(np.ceil(self.points_per_e * np.log(high / low)))))
        for alphas in (grid, np.sqrt(grid[1:] * grid[:-1])):
            with Progress(total=len(alphas)) as task:
                for alpha in alphas[::-1] if self.branch == "semantic" else alphas:
                    task.describe(f"{self.branch} branch at α = {alpha:.3g}")
                    self.at(float(alpha))
                    task.update()
            if self.points:
                return


@add_display
class Boundary(NamedTuple):
    """Value of α at a phase boundary with its error, or NaN and the reason why there is none.

    Attributes
    ----------
    value, error : α and its half-width, or NaN.
    note : the reason if there is no value, otherwise how the branch ends there; may be empty.
    """

    value: float
    error: float
    note: str

    @classmethod
    def none(cls, note: str) -> "Boundary":
        """Return a boundary without a value, with the reason."""
        return cls(np.nan, np.nan, note)

    @classmethod
    def found(cls, value: float, error: float, tol: float, note: str = "") -> "Boundary":
        """Return a root with its error; a boundary without a value if either is not finite."""
        if not np.isfinite(value + error):
            return cls.none("not found: the branch was lost on the way, or no root is near")
        return cls(float(value), float(error), note if error <= tol else "error above the tolerance")


def find_ends(scan: Scan, low: float, high: float, tol: float) -> tuple[Boundary, Boundary]:
    """Return the two ends of the branch within a range of α; the branch is continued if named starts do not find it."""
    if not scan.points:
        none = Boundary.none(f"the {scan.branch} branch does not exist in [{low:g}, {high:g}]")
        return none, none
    ends = _end(scan, low, min, tol), _end(scan, high, max, tol)
    scan.trim(ends[0].value, ends[1].value)
    for end, inward in zip(ends, (1 + scan.inside, 1 - scan.inside), strict=True):
        if np.isfinite(end.value):
            scan.approach(end.value * inward)
    return ends


def _end(scan: Scan, last: float, outermost: Callable[..., float], tol: float) -> Boundary:
    """Return the end of the branch toward the smallest (`outermost` is min) or the largest (max) α, `last`."""
    while True:
        here = outermost(scan.points)
        beyond = [alpha for alpha in scan.lost - set(scan.points) if outermost(alpha, here) == alpha]
        if not beyond:
            return Boundary.none(f"none: the branch continues to α = {last:g}")
        gone = min(beyond, key=lambda alpha: abs(alpha - here))
        between = f"between α = {gone:.4g} and {here:.4g}"
        try:
            path = continue_branch(scan.model, here, scan.points[here].overlaps, to=gone)
        except ConvergenceError:
            return Boundary.none(f"not found: {between}")
        if path.end in ("fold", "vanished"):
            return Boundary.found(path.end_value, path.end_error, tol, path.end)
        if path.end != "reached" or not scan.solve(gone, path.at(-1)):
            return Boundary.none(f"not found: following the branch {path.end} {between}")


def find_stable_range(scan: Scan, tol: float) -> tuple[Boundary, Boundary]:
    """Return the ends of the range of α in which the branch is stable; if there are several, the last of each kind.

    The stability is against the overlap family that is zero on the branch.
    """
    if not scan.points:
        none = Boundary.none(f"none: there is no {scan.branch} branch")
        return none, none

    def excess(point: TrackPoint) -> float:
        return sector_growth(point.F, point.overlaps, ZERO[scan.branch]) - 1

    values, brackets = _compare((scan,), excess)
    if not brackets:
        none = Boundary.none(f"none: the {scan.branch} branch is {'' if values[0][1] < 0 else 'un'}stable throughout")
        return none, none
    start, end = Boundary.none("none: stable from its lower end on"), Boundary.none("none: stable up to its upper end")
    for bracket in brackets:
        value, error, _ = root_along((scan.track,), excess, bracket, tol, 1.0)
        boundary = Boundary.found(value, error, tol, f"in {ZERO[scan.branch]}")
        start, end = (boundary, end) if dict(values)[bracket[1]] < 0 else (start, boundary)
    return start, end


def find_equal_loss(semantic: Scan, positional: Scan, tol: float) -> Boundary:
    """Return α_c, at which the training losses of the two branches are equal, with an error of at most tol if possible.

    Eq. :eq:`boundaries`.
    """

    def gap(a: TrackPoint, b: TrackPoint) -> float:
        return b.train_loss - a.train_loss

    values, brackets = _compare((semantic, positional), gap)
    if not values:
        return Boundary.none("none: there is no α with both branches")
    if not brackets:
        lower = "semantic" if values[-1][1] > 0 else "positional"
        return _none(f"the {lower} branch has the lower training loss wherever both exist", values)
    size = semantic.points[brackets[0][0]].train_loss
    value, error, _ = root_along((semantic.track, positional.track), gap, brackets[0], tol, size)
    boundary = Boundary.found(value, error, tol)
    others = f"{count_noun(len(brackets) - 1, 'further crossing')} at larger α" if len(brackets) > 1 else ""
    return boundary._replace(note="; ".join(filter(None, (boundary.note, others))))


def find_equal_test_error(semantic: Scan, baseline: LinearBaseline, tol: float) -> Boundary:
    """Return α_l, above which the semantic branch has a lower test error than the baseline.

    Eq. :eq:`boundaries`.
    """
    size = baseline.test_error

    def gap(point: TrackPoint) -> float:
        return size - point.test_error

    values, brackets = _compare((semantic,), gap)
    if not values:
        return Boundary.none("none: there is no semantic branch")
    if not brackets:
        word = "beats" if values[-1][1] > 0 else "does not beat"
        return _none(f"attention {word} the linear baseline wherever the semantic branch exists", values)
    value, error, slope = root_along((semantic.track,), gap, brackets[-1], tol, size)
    return Boundary.found(value, error + baseline.test_error_error / abs(slope), tol)


def _none(why: str, values: list[tuple[float, float]]) -> Boundary:
    """Return a boundary without a value, with the reason and the range of α."""
    return Boundary.none(f"none: {why}, from α = {values[0][0]:.4g} to {values[-1][0]:.4g}")


def _compare(
    scans: Sequence[Scan], difference: Callable[..., float]
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return (α, difference) for every α of any scan at which all branches exist, and pairs of α around its roots."""
    for alpha in sorted({alpha for scan in scans for alpha in scan.points}):
        if all(scan.spans(alpha) for scan in scans):
            for scan in scans:
                scan.at(alpha)
    alphas = sorted(set.intersection(*(set(scan.points) for scan in scans)))
    values = [(alpha, difference(*(scan.points[alpha] for scan in scans))) for alpha in alphas]
    return values, [(a[0], b[0]) for a, b in pairwise(values) if a[1] * b[1] < 0]
