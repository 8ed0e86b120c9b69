"""Values of α at which a branch appears, ends, and gains or loses stability."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.scan import Scan
from gamp_attention.results import ConvergenceError, Status
from gamp_attention.state_evolution.continuation.crossings import Growth, crossing
from gamp_attention.state_evolution.continuation.follow import continue_branch, curve_of
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF
from gamp_attention.state_evolution.fixed_points.stability import family_growth, sector_growth
from gamp_attention.state_evolution.fixed_points.vanishing import weights_are_tiny

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
