"""Roots with errors of something measured along branches, as the growth in a sector minus 1."""

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
    """Settings of secants for roots of functions that every rule gets a little wrong."""

    max_steps: int = 12
    close: float = 2e-3  # step, relative to the parameter, at which the first rule has done its part
    clear: float = 20.0  # difference that tells the slope, in units of what a rule leaves unresolved
    clear_share: float = 0.25  # of the largest difference, which tells it where none is clear
    slack: float = 1.0  # beyond the two given values, in units of their distance, where the root may lie
    max_finer: int = 6  # rules: each takes about three times as long as the last
    slope_error: float = 0.2  # of a secant, relative
    step_share: float = 0.3  # what the slope's error may do to the last step, in units of the error asked for
    unresolved: float = 1.0  # least error in units of what the rule leaves unresolved: shifts can be small by accident


CROSSING = CrossingSettings()

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
    """The parameter at which growth in a sector crosses 1, near two values of it with known overlaps.

    The error asked for is tol, or 5e-4 of the curve's unit. It is infinite where the branch was lost on the way, or the
    crossing is not near.
    """
    tol = 5e-4 * curve.unit if tol is None else tol
    track = BranchTrack(curve, dict(zip(ends, overlaps, strict=True)), tol)
    value, error, _ = root_along([track], lambda at: growth(at.F, at.overlaps, sector) - 1, ends, tol, 1.0)
    return Crossing(value, error, sector)


def root_along(
    tracks: Sequence[BranchTrack], measured: Callable[..., float], ends: tuple[float, float], tol: float, size: float
) -> tuple[float, float, float]:
    """Root of what is measured at one fixed point of each branch; the rest is as for `root_on_rules`."""

    def measure(rule: Rule) -> Measure:
        here = [track.on(rule, tol) for track in tracks]

        def at(value: float) -> float:
            found = [track(value) for track in here]
            return np.nan if None in found else measured(*found)

        return at

    return root_on_rules(measure, tracks[0].curve.rule.at_level(0), ends, tol, size)


def root_on_rules(
    measure: Callable[[Rule], Measure], rule: Rule, ends: tuple[float, float], tol: float, size: float
) -> tuple[float, float, float]:
    """Root of a measured function on ever finer rules, its error, infinite where none is found, and the slope.

    Secants from the two ends tell the slope on the first rule. Finer rules then shift the root, until the error is
    within tol. The function is a difference of numbers of a size, and rules resolve it relative to them.
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
    """Root, roughly, and slope there; NaN where the branch is lost or the root is not near.

    Secants go through the last point and the nearest one where the function clearly differs. Where it nowhere does, a
    fair share of the largest difference is enough: across the farthest points the function may bend.
    """
    width = abs(b - a)
    low, high = min(a, b) - CROSSING.slack * width, max(a, b) + CROSSING.slack * width
    known, slope = {a: measure(a), b: measure(b)}, np.nan
    for _ in range(CROSSING.max_steps):
        rises = {x: abs(f - known[b]) for x, f in known.items() if x != b}
        enough = min(clear, CROSSING.clear_share * np.nanmax([0.0, *rises.values()]))
        told = [x for x in rises if rises[x] >= enough]  # none where the branch was lost at b
        if not told:
            break
        a = min(told, key=lambda x: abs(x - b))
        if rises[a] > 0:
            slope = (known[b] - known[a]) / (b - a)
        c = b - known[b] / slope
        if abs(c - b) <= CROSSING.close * abs(b):
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
    for _ in range(CROSSING.max_steps):
        step = -rest / slope
        if not CROSSING.slope_error * abs(step) > CROSSING.step_share * tol:
            break
        ahead = measure(value + step)
        if abs(ahead - rest) >= clear:
            slope = (ahead - rest) / step
        value, rest = value + step, ahead
    return value + step, step, slope
