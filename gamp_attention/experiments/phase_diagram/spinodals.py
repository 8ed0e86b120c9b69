"""Where a branch appears, ends, and gains or loses stability, as α is varied."""

from itertools import pairwise

import numpy as np

from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.scan import Scan
from gamp_attention.results import ConvergenceError, Status
from gamp_attention.state_evolution.continuation.crossings import Growth, crossing
from gamp_attention.state_evolution.continuation.follow import continue_branch, curve_of
from gamp_attention.state_evolution.equations.units import is_faint
from gamp_attention.state_evolution.fixed_points.search import family_growth
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF
from gamp_attention.state_evolution.fixed_points.stability import sector_growth

ZERO = {"semantic": "m", "positional": "theta"}  # the family that is zero on a branch
INSIDE = 0.04  # distance to the end of a branch, relative, at which it is still solved for
SAME = 0.05  # relative difference of growths that are one
HALVINGS = 3  # of the way to where q is tiny, over which it changes by orders of magnitude
SLACK = 0.05  # beyond the bracket, relative, where a meeting point may still lie


def existence(scan: Scan, low: float, high: float, tol: float) -> tuple[Boundary, Boundary]:
    """The least and the largest α of the branch in a range, following it where solving by name did not find it."""
    if not scan.found:
        none = Boundary.none(f"the {scan.branch} branch is nowhere in [{low:g}, {high:g}]")
        return none, none
    ends = _end(scan, high, low, tol), _end(scan, low, high, tol)
    scan.trim(ends[0].value, ends[1].value)
    for end, inward in zip(ends, (1 + INSIDE, 1 - INSIDE), strict=True):
        if np.isfinite(end.value):  # much may change between there and the last rung
            scan.approach(end.value, end.value * inward)
    return ends


def _end(scan: Scan, first: float, last: float, tol: float) -> Boundary:
    """The end of the branch towards `last`."""
    downwards, halvings = last < first, 0
    while True:
        here = min(scan.found) if downwards else max(scan.found)
        beyond = [a for a in scan.lost if (a < here if downwards else a > here)]
        if not beyond:
            return Boundary.none(f"none: the branch goes on to α = {last:g}")
        gone = max(beyond) if downwards else min(beyond)
        found = _meeting(scan, here, gone, tol)
        if found is not None:
            return found
        if halvings < HALVINGS and is_faint(scan.model, scan.lost[gone].overlaps):
            halvings += 1
            scan.at(float(np.sqrt(here * gone)))
            continue
        try:
            path = continue_branch(
                scan.model, here, scan.found[here].overlaps, "alpha", gone, stable=False, variance="stein"
            )
        except ConvergenceError:
            return Boundary.none(f"not found: between α = {gone:.4g} and {here:.4g}")
        if path.end in ("fold", "vanished"):
            return Boundary.found(path.end_value, path.end_error, tol, path.end)
        if path.end != "reached" or not scan.adopt(gone, path.at(-1)):
            return Boundary.none(f"not found: following the branch {path.end} between α = {gone:.4g} and {here:.4g}")


def _meeting(scan: Scan, here: float, gone: float, tol: float) -> Boundary | None:
    """Where the branch splits off from the one without its family, if that lies between; None if not."""
    other, family = scan.lost[gone], FAMILY_OF[scan.branch]
    if other.status is not Status.LOST:
        return None
    bare = scan.found[here].overlaps.without(family)
    curve = curve_of(scan.model, here, "alpha", bare)
    found = crossing(curve, (gone, here), (other.overlaps.without(family), bare), family, family_growth, tol)
    inside = min(gone, here) * (1 - SLACK) <= found.value <= max(gone, here) * (1 + SLACK)
    return Boundary.found(found.value, found.error, tol, "vanished") if inside and np.isfinite(found.error) else None


def stability_changes(scan: Scan, tol: float) -> tuple[list[tuple[Boundary, bool]], bool]:
    """Where the branch gains or loses stability against the family that is zero on it.

    Returns
    -------
    The changes, each with whether the branch is stable above it; and whether it is stable at the lowest α.
    """
    sector, alphas = ZERO[scan.branch], sorted(scan.found)
    # growth that keeps the reversal of tokens takes half the work, and mostly is the largest
    measure: Growth = family_growth
    outer = [alphas[0], alphas[-1]]
    kept, all_of_them = (_rough_growths(scan, outer, each) for each in (family_growth, sector_growth))
    if not np.allclose(kept, all_of_them, rtol=SAME):
        measure = sector_growth
    rough = _rough_growths(scan, alphas, measure)
    changes = []
    for (below, a), (above, b) in pairwise(zip(alphas, rough, strict=True)):
        if (a - 1) * (b - 1) < 0:
            ends = scan.found[below].overlaps, scan.found[above].overlaps
            curve = curve_of(scan.model, above, "alpha", ends[1])
            found = crossing(curve, (below, above), ends, sector, measure, tol)
            changes.append((Boundary.found(found.value, found.error, tol, f"in {sector}"), bool(b < 1)))
    return changes, rough[0] < 1


def _rough_growths(scan: Scan, alphas: list[float], measure: Growth) -> list[float]:
    return [measure(scan.found[alpha].F, scan.found[alpha].overlaps, ZERO[scan.branch]) for alpha in alphas]
