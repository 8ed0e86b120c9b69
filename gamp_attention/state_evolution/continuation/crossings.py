"""Roots of functions along branches, with error estimates; for example of the growth in a sector minus 1."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.continuation.arclength import Curve
from gamp_attention.state_evolution.continuation.track import BranchTrack
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import REFINEMENT
from gamp_attention.state_evolution.fixed_points.stability import sector_growth
from gamp_attention.state_evolution.rules.rule import Rule


@dataclass(frozen=True)
class CrossingSettings:
    """Settings of the secant method for functions that each rule evaluates with a small error."""

    max_steps: int = 12  # maximum number of secant steps on one rule
    close: float = 2e-3  # step relative to the parameter at which the secants on the first rule end
    clear: float = 20.0  # smallest difference of values used for a slope, in units of the rule's unresolved error
    clear_share: float = 0.25  # the same as a fraction of the largest difference, if that is smaller
    slack: float = 1.0  # distance of the root beyond the two given values, at most, in units of their distance
    max_finer: int = 6  # maximum number of finer rules; each takes about three times as long as the last
    slope_error: float = 0.2  # assumed relative error of a secant's slope
    step_share: float = 0.3  # largest effect of the slope's error on the last step, in units of the requested error
    unresolved: float = 1.0  # smallest error in units of the rule's unresolved error: shifts can be small by accident


CROSSING = CrossingSettings()

Growth = Callable[[OverlapMap, Overlaps, str], float]  # growth in a sector at a fixed point of a map
Measure = Callable[[float], float]  # function of the parameter; NaN if the branch is lost there


class Crossing(NamedTuple):
    """Parameter value at which growth in a sector crosses 1, with its error."""

    value: float
    error: float
    sector: str


def crossing(
    curve: Curve,
    ends: tuple[float, float],
    overlaps: tuple[Overlaps, Overlaps],
    sector: str,
    growth: Growth = sector_growth,
    tol: float | None = None,
) -> Crossing:
    """Return the parameter at which growth in a sector crosses 1, near two values with known overlaps.

    The requested error is tol, or 5e-4 of the curve's unit. The stated error is infinite if the branch was lost on the
    way or no crossing is near.
    """
    tol = 5e-4 * curve.unit if tol is None else tol
    track = BranchTrack(curve, dict(zip(ends, overlaps, strict=True)), tol)
    value, error, _ = root_along([track], lambda at: growth(at.F, at.overlaps, sector) - 1, ends, tol, 1.0)
    return Crossing(value, error, sector)


def root_along(
    tracks: Sequence[BranchTrack], measured: Callable[..., float], ends: tuple[float, float], tol: float, size: float
) -> tuple[float, float, float]:
    """Return the root of a function of one fixed point per branch; the other arguments are those of `root_on_rules`."""

    def measure(rule: Rule) -> Measure:
        tracks_here = [track.on(rule, tol) for track in tracks]

        def at(value: float) -> float:
            points = [track(value) for track in tracks_here]
            return np.nan if None in points else measured(*points)

        return at

    return root_on_rules(measure, tracks[0].curve.rule.at_level(0), ends, tol, size)


def root_on_rules(
    measure: Callable[[Rule], Measure], rule: Rule, ends: tuple[float, float], tol: float, size: float
) -> tuple[float, float, float]:
    """Return the root of a function on finer and finer rules, its error (infinite if there is none) and the slope.

    Secants from the two ends give the slope on the first rule. Finer rules then shift the root until the error is
    within tol. The function is a difference of numbers of magnitude `size`; a rule resolves it to its relative
    tolerance times this magnitude.
    """
    coarse = measure(rule)
    value, slope = _secant(coarse, *ends, CROSSING.clear * rule.tol * size)
    error, finer = np.inf, rule.finer()
    for _ in range(CROSSING.max_finer):
        if not np.isfinite(slope) or finer is None or error <= tol:
            break
        fine, split = measure(finer), finer.deterministic
        rest = fine(value)
        shift = (rest - coarse(value)) / slope
        value, last, slope = _polish(
            fine, value, rest, slope, tol if split else np.inf, CROSSING.clear * finer.tol * size
        )
        unresolved = CROSSING.unresolved * finer.tol * size / abs(slope)
        error = REFINEMENT.shift_error * abs(shift) + CROSSING.slope_error * abs(last) + unresolved
        coarse, finer = fine, finer.finer() if split else None
    return value, error if np.isfinite(value) else np.inf, slope


def _secant(measure: Measure, a: float, b: float, clear: float) -> tuple[float, float]:
    """Return an approximate root and the slope there; NaN if the branch is lost or the root is not near.

    A secant goes through the last point and the nearest other point whose value clearly differs. If no value does, a
    fraction of the largest difference is enough, because across the most distant points the function may be nonlinear.
    """
    width = abs(b - a)
    low, high = min(a, b) - CROSSING.slack * width, max(a, b) + CROSSING.slack * width
    values, slope = {a: measure(a), b: measure(b)}, np.nan
    for _ in range(CROSSING.max_steps):
        rises = {x: abs(f - values[b]) for x, f in values.items() if x != b}
        enough = min(clear, CROSSING.clear_share * np.nanmax([0.0, *rises.values()]))
        distinct = [x for x in rises if rises[x] >= enough]  # empty if the branch was lost at b
        if not distinct:
            break
        a = min(distinct, key=lambda x: abs(x - b))
        if rises[a] > 0:
            slope = (values[b] - values[a]) / (b - a)
        c = b - values[b] / slope
        if abs(c - b) <= CROSSING.close * abs(b):
            return c, slope
        bracket = _bracket(values)
        if bracket and not bracket[0] < c < bracket[1]:
            c = 0.5 * (bracket[0] + bracket[1])
        if not low <= c <= high:
            break
        b = c
        values[b] = measure(b)
    return np.nan, np.nan


def _bracket(values: dict[float, float]) -> tuple[float, float] | None:
    """Return the closest pair of arguments between which the sign changes, or None."""
    pairs = [(a, b) for (a, fa), (b, fb) in pairwise(sorted(values.items())) if fa * fb < 0]
    return min(pairs, key=lambda pair: pair[1] - pair[0], default=None)


def _polish(
    measure: Measure, value: float, rest: float, slope: float, tol: float, clear: float
) -> tuple[float, float, float]:
    """Refine a root near `value`, where the function is `rest`; return the root, the last step and the slope."""
    for _ in range(CROSSING.max_steps):
        step = -rest / slope
        if not CROSSING.slope_error * abs(step) > CROSSING.step_share * tol:
            break
        ahead = measure(value + step)
        if abs(ahead - rest) >= clear:
            slope = (ahead - rest) / step
        value, rest = value + step, ahead
    return value + step, step, slope
