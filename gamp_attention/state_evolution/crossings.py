"""Where a branch gains or loses stability: roots of an eigenvalue's growth, minus 1, along the branch."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.arclength import Curve
from gamp_attention.state_evolution.overlap_map import OverlapMap
from gamp_attention.state_evolution.packing import Packing
from gamp_attention.state_evolution.root import BREAKDOWNS, newton
from gamp_attention.state_evolution.split_rule import SplitRule
from gamp_attention.state_evolution.stability import sector_growth

SOLVED = 1e-4  # residual of the fixed points
STEPS = 12
CLOSE = 3e-4  # of the parameter, where secants end on the rule at hand, relative to it
SLACK = 1.0  # beyond the two given values, in units of their distance, where it may lie
SAFETY = 0.5  # error of the root on a rule, in units of its shift from the coarser one


Growth = Callable[[OverlapMap, Overlaps, str], float]


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
) -> Crossing:
    """The parameter at which growth in a sector crosses 1, near two values of it and overlaps there.

    By secants along the branch that Newton steps follow; then, from there, on the next finer rule. The error is
    infinite where the branch was lost on the way, or the crossing is not near.
    """
    track = _Track(curve, ends, overlaps, sector, growth)
    value, slope = _secant(track, *ends)
    finer = curve.rule.finer()
    if finer is None or not np.isfinite(slope):
        return Crossing(value, np.inf, sector)
    track = track.on(replace(curve, rule=finer))
    refined = value - track(value) / slope
    if isinstance(curve.rule, SplitRule) and abs(refined - value) > 10 * CLOSE * abs(value):
        step = refined - value
        refined, slope = _secant(track, value, refined)
        return Crossing(refined, 0.1 * abs(step) + CLOSE * abs(refined), sector)
    return Crossing(refined, SAFETY * abs(refined - value) + CLOSE * abs(value), sector)


class _Track:
    """Growth − 1 in a sector along the fixed points that lead from one pair of overlaps to the other."""

    def __init__(
        self,
        curve: Curve,
        ends: tuple[float, float],
        overlaps: tuple[Overlaps, Overlaps],
        sector: str,
        growth: Growth,
    ) -> None:
        self.curve, self.sector, self.growth = curve, sector, growth
        self.packing = Packing.of(curve.model, overlaps[0])
        self.known = [(value, self.packing.pack(x)) for value, x in zip(ends, overlaps, strict=True)]
        self.jacobian: np.ndarray | None = None
        width = abs(ends[1] - ends[0])
        self.limits = min(ends) - SLACK * width, max(ends) + SLACK * width

    def on(self, curve: Curve) -> "_Track":
        """The same on another rule, with what is known as starting points."""
        other = copy(self)
        other.curve = curve
        return other

    def __call__(self, value: float) -> float:
        (a, x), (b, y) = sorted(self.known, key=lambda point: abs(point[0] - value))[:2]
        start = self.packing.unpack(x + (value - a) / (b - a) * (y - x))
        F = self.curve.map(np.array([value / self.curve.unit]))
        try:
            root = newton(F, start, SOLVED, STEPS, self.jacobian, self.packing)
            found = self.growth(F, root.overlaps, self.sector) - 1
        except (*BREAKDOWNS, ValueError):
            return np.nan
        self.jacobian = root.jacobian
        self.known = [point for point in self.known if point[0] != value] + [(value, self.packing.pack(root.overlaps))]
        return found


def _secant(track: _Track, a: float, b: float) -> tuple[float, float]:
    """Root and slope there; NaN where the track is lost or leads beyond its limits."""
    fa, fb, slope = track(a), track(b), np.nan
    for _ in range(STEPS):
        if fb != fa:
            slope = (fb - fa) / (b - a)
        c = b - fb / slope
        if abs(c - b) <= CLOSE * abs(b):
            return c, slope
        if not track.limits[0] <= c <= track.limits[1]:
            c = 0.5 * (a + b) if fa * fb < 0 else np.nan
        if not np.isfinite(c):
            break
        fc = track(c)
        if fa * fb < 0 and fc * fb > 0 and abs(c - a) < abs(c - b):  # keep the pair that brackets, or the nearer one
            b, fb = a, fa
        a, fa, b, fb = b, fb, c, fc
    return np.nan, np.nan
