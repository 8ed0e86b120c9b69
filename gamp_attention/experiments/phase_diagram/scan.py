"""A branch of state evolution over a range of α: solved at a ladder of values, and at others on request.

Boundary of one model: its value of α with an error, or the reason why there is none.

Values of α at which a branch appears, ends, and gains or loses stability.

Values of α at which the two branches have equal training loss, and at which attention beats the linear baseline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.progress import Progress
from gamp_attention.baselines.linear import LinearBaseline
from gamp_attention.models.model import Model
from gamp_attention.results import ConvergenceError, Overlaps, Status, shown
from gamp_attention.state_evolution.continuation.branches import continue_branch, curve_of
from gamp_attention.state_evolution.continuation.crossings import BranchTrack, Growth, TrackPoint, crossing, root_along
from gamp_attention.state_evolution.fixed_points.newton import Root, weights_are_tiny
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF, first_root, is_off
from gamp_attention.state_evolution.fixed_points.stability import family_growth, sector_growth


@dataclass(frozen=True)
class ScanSettings:
    """Settings of the ladder of α."""

    tol: float = 1e-2  # of overlaps and of α: enough to be on the branch
    max_iter: int = 104  # what takes longer is near an end, where the branch is followed instead
    rungs: float = 2.2  # of the ladder for each factor e of α


SCAN = ScanSettings()


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, on the coarsest rule."""

    model: Model
    branch: str
    found: dict[float, TrackPoint] = field(default_factory=dict)  # by α, where the branch exists
    lost: dict[float, Root] = field(default_factory=dict)  # what was found instead, by α
    track: BranchTrack = field(init=False)  # through all of `found`, once there is one

    def at(self, alpha: float) -> TrackPoint | None:
        """The fixed point at α, from those known or else by name; None where the branch does not exist."""
        if alpha not in self.found:
            nearest = min([*self.found, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
            if not (nearest in self.found and self._follow(alpha)):
                self.solve(alpha, self.branch)
        return self.found.get(alpha)

    def solve(self, alpha: float, init: Any) -> bool:
        """Solve from a name or overlaps; whether the branch exists at α."""
        root = first_root(self.model, alpha, init, SCAN.max_iter)
        if root.status.converged and self._follow(alpha, root.overlaps):
            self.lost.pop(alpha, None)
            return True
        self.lost[alpha] = root
        return False

    def approach(self, end: float, alpha: float) -> None:
        """Solve next to an end, where the family that the branch is named after fades like a square root."""
        inside = [a for a in self.found if (a - end) * (alpha - end) > 0]
        if alpha in self.found or not inside:
            return
        family, guess = FAMILY_OF[self.branch], self.track.guess(alpha).arrays()
        nearest = min(inside, key=lambda a: abs(a - alpha))
        there = self.found[nearest].overlaps.arrays()[family]
        guess[family] = there * np.sqrt((alpha - end) / (nearest - end))
        if not self._follow(alpha, Overlaps(**guess)):
            self.at(alpha)

    def trim(self, low: float, high: float) -> None:
        """Forget what was found outside of the range where the branch exists on finer rules; NaN for no limit."""
        for alpha in [alpha for alpha in self.found if alpha < low or alpha > high]:
            del self.found[alpha]
            self.track.known.pop(alpha, None)

    def spans(self, alpha: float) -> bool:
        """Whether α lies between values at which the branch was found."""
        return min(self.found, default=np.inf) <= alpha <= max(self.found, default=-np.inf)

    def _follow(self, alpha: float, overlaps: Overlaps | None = None) -> bool:
        """Whether the branch exists at α, by a step from what is known, or from overlaps given there."""
        if overlaps is not None:
            if not hasattr(self, "track"):
                curve = curve_of(self.model, alpha, "alpha", overlaps)
                self.track = BranchTrack(replace(curve, rule=curve.rule.at_level(0)), {}, SCAN.tol)
            self.track.known[alpha] = overlaps
        point = self.track(alpha, halvings=0)  # beyond its end the branch is not found by small steps either
        if point is None or is_off(self.branch, point.overlaps):
            self.track.known.pop(alpha, None)
            return False
        self.found[alpha] = point
        return True

    def climb(self, low: float, high: float) -> None:
        """Solve at a ladder of α: the semantic branch from high to low, others from low to high.

        Where no rung is on the branch, it may appear and end between two of them: then half way between rungs too.
        """
        rungs = np.geomspace(low, high, max(2, int(np.ceil(SCAN.rungs * np.log(high / low)))))
        for chosen in (rungs, np.sqrt(rungs[1:] * rungs[:-1])):
            with Progress(total=len(chosen)) as ladder:
                for alpha in chosen[::-1] if self.branch == "semantic" else chosen:
                    ladder.describe(f"{self.branch} branch at α = {alpha:.3g}")
                    self.at(float(alpha))
                    ladder.update()
            if self.found:
                return


@shown
class Boundary(NamedTuple):
    """Value of α with an error, or NaN and the reason.

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
            return cls.none("not found: secants did not converge")
        return cls(float(value), float(error), note if error <= tol else "error above the tolerance")


ZERO = {"semantic": "m", "positional": "theta"}  # the overlap family that is zero on each branch


@dataclass(frozen=True)
class SpinodalSettings:
    """Settings of the search for the ends of a branch; distances in α are relative."""

    inside: float = 0.04  # distance from an end at which the branch is solved in addition, as it changes fast there
    slack: float = 0.05  # distance beyond two values of α at which a meeting point between them may lie
    max_halvings: int = 3  # halvings of the interval to where q is tiny, over which it changes by orders of magnitude
    same_growth: float = 0.05  # relative difference below which two growths count as equal


SPINODALS = SpinodalSettings()


def existence(scan: Scan, low: float, high: float, tol: float) -> tuple[Boundary, Boundary]:
    """Return the two ends of the branch within a range of α; it is continued where the named start did not find it."""
    if not scan.found:
        none = Boundary.none(f"the {scan.branch} branch is nowhere in [{low:g}, {high:g}]")
        return none, none
    ends = _end(scan, high, low, tol), _end(scan, low, high, tol)
    scan.trim(ends[0].value, ends[1].value)
    for end, inward in zip(ends, (1 + SPINODALS.inside, 1 - SPINODALS.inside), strict=True):
        if np.isfinite(end.value):
            scan.approach(end.value, end.value * inward)
    return ends


def _end(scan: Scan, first: float, last: float, tol: float) -> Boundary:
    """Return the end of the branch towards `last`."""
    downwards, halvings = last < first, 0
    while True:
        here = min(scan.found) if downwards else max(scan.found)
        beyond = [a for a in scan.lost if (a < here if downwards else a > here)]
        if not beyond:
            return Boundary.none(f"none: the branch continues to α = {last:g}")
        gone = max(beyond) if downwards else min(beyond)
        meeting = _meeting(scan, here, gone, tol)
        if meeting is not None:
            return meeting
        if halvings < SPINODALS.max_halvings and weights_are_tiny(scan.model, scan.lost[gone].overlaps):
            halvings += 1
            scan.at(float(np.sqrt(here * gone)))
            continue
        try:
            path = continue_branch(scan.model, here, scan.found[here].overlaps, to=gone, stability=False)
        except ConvergenceError:
            return Boundary.none(f"not found: between α = {gone:.4g} and {here:.4g}")
        if path.end in ("fold", "vanished"):
            return Boundary.found(path.end_value, path.end_error, tol, path.end)
        if path.end != "reached" or not scan.solve(gone, path.at(-1)):
            return Boundary.none(f"not found: following the branch {path.end} between α = {gone:.4g} and {here:.4g}")


def _meeting(scan: Scan, here: float, gone: float, tol: float) -> Boundary | None:
    """Return where the branch splits off from the branch without its family; None if that is not between the two α."""
    other, family = scan.lost[gone], FAMILY_OF[scan.branch]
    if other.status is not Status.LOST:
        return None
    bare = scan.found[here].overlaps.without(family)
    curve = curve_of(scan.model, here, "alpha", bare)
    meeting = crossing(curve, (gone, here), (other.overlaps.without(family), bare), family, family_growth, tol)
    slack = SPINODALS.slack
    inside = min(gone, here) * (1 - slack) <= meeting.value <= max(gone, here) * (1 + slack)
    usable = inside and np.isfinite(meeting.error)
    return Boundary.found(meeting.value, meeting.error, tol, "vanished") if usable else None


def stability_changes(scan: Scan, tol: float) -> tuple[list[tuple[Boundary, bool]], bool]:
    """Return where stability against the family that is zero on the branch changes, and whether it begins stable.

    Each change comes with a flag: whether the branch is stable above it.
    """
    sector, alphas = ZERO[scan.branch], sorted(scan.found)

    def growths(measure: Growth, at: list[float]) -> list[float]:
        return [measure(scan.found[alpha].F, scan.found[alpha].overlaps, sector) for alpha in at]

    # `family_growth` takes half the work and mostly agrees with `sector_growth`: compare both at the two ends
    by_family, by_sector = (growths(growth, [alphas[0], alphas[-1]]) for growth in (family_growth, sector_growth))
    measure = family_growth if np.allclose(by_family, by_sector, rtol=SPINODALS.same_growth) else sector_growth
    rough = growths(measure, alphas)
    changes = []
    for (below, a), (above, b) in pairwise(zip(alphas, rough, strict=True)):
        if (a - 1) * (b - 1) < 0:
            ends = scan.found[below].overlaps, scan.found[above].overlaps
            curve = curve_of(scan.model, above, "alpha", ends[1])
            change = crossing(curve, (below, above), ends, sector, measure, tol)
            changes.append((Boundary.found(change.value, change.error, tol, f"in {sector}"), bool(b < 1)))
    return changes, rough[0] < 1


def equal_loss(semantic: Scan, positional: Scan, tol: float) -> Boundary:
    """Return α_c, at which the training losses of the two branches are equal, with an error of at most tol if possible.

    Eq. :eq:`boundaries`.
    """

    def gap(a: TrackPoint, b: TrackPoint) -> float:
        return b.train_loss - a.train_loss

    values = _on_all((semantic, positional), gap)
    if not values:
        return Boundary.none("none: there is no α with both branches")
    brackets = _sign_changes(values)
    if not brackets:
        lower = "semantic" if values[-1][1] > 0 else "positional"
        return _none(f"the {lower} branch has the lower training loss wherever both exist", values)
    size = semantic.found[brackets[0][0]].train_loss
    value, error, _ = root_along((semantic.track, positional.track), gap, brackets[0], tol, size)
    boundary = Boundary.found(value, error, tol)
    others = f"; {len(brackets) - 1} more at larger α" if len(brackets) > 1 else ""
    return boundary._replace(note=boundary.note + others)


def beats_baseline(semantic: Scan, baseline: LinearBaseline, tol: float) -> Boundary:
    """Return α_l, beyond which the semantic branch has a lower test error than the baseline. Eq. :eq:`boundaries`."""
    values = _on_all((semantic,), lambda se: baseline.test_error - se.test_error)
    if not values:
        return Boundary.none("none: there is no semantic branch")
    brackets = _sign_changes(values)
    if not brackets:
        word = "beats" if values[-1][1] > 0 else "does not beat"
        return _none(f"attention {word} the linear baseline wherever the semantic branch exists", values)
    size = baseline.test_error
    value, error, slope = root_along((semantic.track,), lambda se: size - se.test_error, brackets[-1], tol, size)
    return Boundary.found(value, error + baseline.test_error_error / abs(slope), tol)


def _none(why: str, values: list[tuple[float, float]]) -> Boundary:
    return Boundary.none(f"none: {why}, from α = {values[0][0]:.4g} to {values[-1][0]:.4g}")


def _sign_changes(values: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return neighbouring α between which a function, given as pairs (α, f), changes its sign."""
    return [(a[0], b[0]) for a, b in pairwise(values) if a[1] * b[1] < 0]


def _on_all(scans: Sequence[Scan], difference: Callable[..., float]) -> list[tuple[float, float]]:
    """Return (α, difference) for every α at which at least one branch is known and all exist."""
    for alpha in sorted({alpha for scan in scans for alpha in scan.found}):
        if all(scan.spans(alpha) for scan in scans):
            for scan in scans:
                scan.at(alpha)
    alphas = sorted(set.intersection(*(set(scan.found) for scan in scans)))
    return [(alpha, difference(*(scan.found[alpha] for scan in scans))) for alpha in alphas]
