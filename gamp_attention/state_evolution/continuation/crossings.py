"""Where something measured along branches crosses zero, as the growth in a sector minus 1: roots with errors."""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.continuation.arclength import Curve
from gamp_attention.state_evolution.continuation.track import BranchTrack
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.stability import sector_growth
from gamp_attention.state_evolution.rules.rule import Rule

STEPS = 12
CLOSE = 2e-3  # of the parameter, where secants on the first rule end, relative to it
CLEAR = 20.0  # difference, in units of what a rule leaves unresolved, from which on a secant tells the slope
ENOUGH = 0.25  # of the largest difference, where none is clear
SLACK = 1.0  # beyond the two given values, in units of their distance, where it may lie
SAFETY = 0.5  # error of the root on a rule, in units of its shift from the coarser one
LEAST = 0.5  # error in units of what the rule leaves unresolved, as shifts can be small by accident
SLOPE_ERROR = 0.2  # of a secant, relative,
SETTLED = 0.3  # and what it may make of the error asked for
RULES = 6  # finer ones, at most: each takes about three times as long as the last


Growth = Callable[[OverlapMap, Overlaps, str], float]
Measure = Callable[[float], float]  # of the parameter; NaN where the branch is lost


class Crossing(NamedTuple):
    """Where growth in a sector crosses 1, with an error."""

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
    """The parameter at which growth in a sector crosses 1, near two values of it and overlaps there.

    The error, tol or 5e-4 of the curve's unit if it can be reached, is infinite where the branch was lost on the way,
    or the crossing is not near.
    """
    tol = 5e-4 * curve.unit if tol is None else tol
    track = BranchTrack(curve, dict(zip(ends, overlaps, strict=True)), tol)

    def measure(rule: Rule) -> Measure:
        here = track.on(rule)

        def growing(value: float) -> float:
            found = here(value)
            return np.nan if found is None else growth(found.F, found.overlaps, sector) - 1

        return growing

    value, error, _ = root_on_rules(measure, track.coarsest, ends, tol, 1.0)
    return Crossing(value, error, sector)


def root_on_rules(
    measure: Callable[[Rule], Measure], rule: Rule, ends: tuple[float, float], tol: float, size: float
) -> tuple[float, float, float]:
    """Root of a measured function on ever finer rules, its error, infinite where none is found, and the slope.

    By secants on the first rule, then from there with the slope known, until what a finer rule shifts is within tol.

    Parameters
    ----------
    measure : for each rule, the function of the parameter.
    rule, ends : the first rule, and two values near the root.
    tol : error of the root asked for.
    size : of the numbers whose difference the function is; rules resolve it relative to them.
    """
    coarse = measure(rule)
    value, slope = _secant(coarse, *ends, CLEAR * rule.tol * size)
    error, finer = np.inf, rule.finer()
    for _ in range(RULES):
        if not np.isfinite(slope) or finer is None or error <= tol:
            break
        fine, split = measure(finer), finer.deterministic
        rest = fine(value)
        shift = (rest - coarse(value)) / slope
        value, last, slope = _polish(fine, value, rest, slope, tol if split else np.inf, CLEAR * finer.tol * size)
        error = SAFETY * abs(shift) + SLOPE_ERROR * abs(last) + LEAST * finer.tol * size / abs(slope)
        coarse, finer = fine, finer.finer() if split else None
    return value, error if np.isfinite(value) else np.inf, slope


def _secant(measure: Measure, a: float, b: float, clear: float) -> tuple[float, float]:
    """Root, roughly, and slope there; NaN where the branch is lost or the root is not near.

    Secants go through the last point and the nearest one at which the function clearly differs, or by much of what it
    differs at most: the farthest point, across which the function bends, would tell the slope badly.
    """
    width = abs(b - a)
    low, high = min(a, b) - SLACK * width, max(a, b) + SLACK * width
    known, slope = {a: measure(a), b: measure(b)}, np.nan
    for _ in range(STEPS):
        rises = {x: abs(f - known[b]) for x, f in known.items() if x != b}
        enough = min(clear, ENOUGH * np.nanmax([0.0, *rises.values()]))
        told = [x for x in rises if rises[x] >= enough]  # none where the branch was lost at b
        if not told:
            break
        a = min(told, key=lambda x: abs(x - b))
        if rises[a] > 0:
            slope = (known[b] - known[a]) / (b - a)
        c = b - known[b] / slope
        if abs(c - b) <= CLOSE * abs(b):
            return c, slope
        bracket = _bracket(known)
        if bracket and not bracket[0] < c < bracket[1]:
            c = 0.5 * (bracket[0] + bracket[1])
        if not low <= c <= high:
            break
        b = c
        known[b] = measure(b)
    return np.nan, np.nan


def _bracket(known: dict[float, float]) -> tuple[float, float] | None:
    """The nearest two values between which the sign changes, or None."""
    pairs = [(a, b) for (a, fa), (b, fb) in pairwise(sorted(known.items())) if fa * fb < 0]
    return min(pairs, key=lambda pair: pair[1] - pair[0], default=None)


def _polish(
    measure: Measure, value: float, rest: float, slope: float, tol: float, clear: float
) -> tuple[float, float, float]:
    """Root from near it, where the function is `rest`; the last step, and the slope."""
    for _ in range(STEPS):
        step = -rest / slope
        if not SLOPE_ERROR * abs(step) > SETTLED * tol:
            break
        ahead = measure(value + step)
        if abs(ahead - rest) >= clear:
            slope = (ahead - rest) / step
        value, rest = value + step, ahead
    return value + step, step, slope
