"""Roots of functions along branches of fixed points, for example where the growth in a sector crosses 1.

A branch is a function of the parameter that is known at some values (`BranchTrack`). Its fixed point at another value
is predicted by interpolation between known points and corrected by Newton steps.

A root is found in two stages (`root_on_rules`). On the coarsest rule, Brent's method between two given values finds it
and the slope of the function (`_root_between`). Each finer rule then shifts the root by the change of the function
there divided by the slope, and the shifts give the error. Thus the expensive rules evaluate the function only a few
times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gamp_attention.extensions.phases.arclength import BranchCurve
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.units import Packing, is_feasible, relative_change
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, newton, newton_step
from gamp_attention.theory.fixed_points.observables import predicted_test_error, stationary_loss
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.rule import Rule


@dataclass(frozen=True)
class TrackSettings:
    """Settings of the points of a branch; lengths are in units of the overlaps."""

    max_residual: float = 2e-3  # largest residual before the final Newton step
    tol_residual: float = 0.05  # the same in units of the requested relative error of the parameter, if that is smaller
    min_residual: float = 0.03  # lower limit of the requested residual, in units of the rule's unresolved error
    max_last_step: float = 0.05  # largest final Newton step: close to its end, a branch has small residuals
    max_steps: int = 8  # maximum number of Newton steps; if more are needed, the value was too far from known points
    halvings: int = 2  # number of times that the distance to a value that is too far may be halved
    max_change: float = 1.0  # largest relative change from the prediction; beyond, the point is on another branch
    min_family: float = 0.1  # smallest m and θ relative to the prediction; below, the point is on a branch without them
    max_weight: float = 1.2  # largest extrapolation along a line through two known points, in units of their distance


@dataclass(frozen=True)
class RootSettings:
    """Settings of roots of functions that each rule evaluates with a small error."""

    max_secants: int = 12  # maximum number of secant steps on one rule
    close: float = 2e-3  # relative width of the last bracket on the first rule
    clear: float = 20.0  # smallest difference of values used for a slope, in units of the rule's unresolved error
    slack: float = 1.0  # largest distance of the root beyond the two given values, in units of their distance
    max_finer: int = 6  # maximum number of finer rules; each takes about three times as long as the last
    shift_error: float = 0.5  # error of a root, in units of its shift by a finer rule
    slope_error: float = 0.2  # assumed relative error of a secant's slope
    step_fraction: float = 0.3  # largest effect of the slope's error on the last step, in units of the requested error


TRACK, ROOT = TrackSettings(), RootSettings()

Measure = Callable[[float], float]  # function of the parameter; NaN if the branch is lost there


@dataclass(frozen=True, eq=False)
class TrackPoint:
    """Fixed point of an overlap map."""

    F: OverlapMap
    at: Overlaps  # overlaps at which the map was last evaluated
    overlaps: Overlaps  # the fixed point, one final Newton step from there

    @cached_property
    def train_loss(self) -> float:
        """Training loss ε_t, evaluated before the last step; the free energy is stationary, so the error is small."""
        return stationary_loss(self.F, self.at, self.F.images(self.at)[0])

    @cached_property
    def test_error(self) -> float:
        """Test error ε_g."""
        return float(predicted_test_error(self.F.model, self.overlaps, self.F.rule).mean())


@dataclass(frozen=True, eq=False)
class BranchTrack:
    """Branch given by its known fixed points; calling it solves for the fixed point at another parameter value.

    Each solved point is added to the known points, from which later points are predicted: within the accuracy `tol`,
    results may depend on the order of the calls.
    """

    curve: BranchCurve
    known: dict[float, Overlaps]  # fixed points by parameter value, at least one
    tol: float  # requested error of the parameter, which sets the accuracy of the fixed points
    _jacobian: list[np.ndarray | None] = field(default_factory=lambda: [None])  # Jacobian at the last point

    def on(self, rule: Rule, tol: float) -> "BranchTrack":
        """Return the branch on another rule and with another tolerance; both use the same dict of known points."""
        return replace(self, curve=replace(self.curve, rule=rule), tol=tol)

    def __call__(self, value: float, halvings: int = TRACK.halvings) -> TrackPoint | None:
        """Return the fixed point at a parameter value, or None if there is none near the expected overlaps.

        If necessary, intermediate points are solved first.
        """
        point = self._solve(value)
        if point is None and halvings:
            nearest = min(self.known, key=lambda other: abs(other - value))
            if nearest != value and self(0.5 * (nearest + value), halvings - 1) is not None:
                point = self._solve(value)
        return point

    def _solve(self, value: float) -> TrackPoint | None:
        """Return the fixed point found by Newton steps from the guess; None if they fail or reach another branch."""
        guess = self.guess(value)
        packing = Packing.of(self.curve.model, guess)
        F = self.curve.map(np.array([value / self.curve.unit]))
        requested = TRACK.tol_residual * self.tol / max(abs(value), 1e-3)
        tol = min(TRACK.max_residual, max(requested, TRACK.min_residual * self.curve.rule.tol))
        try:
            root = newton(F, guess, tol, TRACK.max_steps, self._jacobian[0], packing)
            self._jacobian[0] = None
            if not root.solves(tol):
                return None
            assert root.jacobian is not None
            at = packing.pack(root.overlaps)
            step = newton_step(root.jacobian, packing.pack(root.F(root.overlaps)) - at)
            best = packing.unpack(at + step)
        except (*BREAKDOWNS, ValueError):
            return None
        expected, solved = guess.arrays(), best.arrays()
        faded = any(
            np.abs(solved[name]).max() < TRACK.min_family * np.abs(expected[name]).max() for name in ("m", "theta")
        )
        if faded or relative_change(guess, best) > TRACK.max_change or np.abs(step).max() > TRACK.max_last_step:
            return None
        self._jacobian[0] = root.jacobian
        self.known[value] = best
        return TrackPoint(root.F, root.overlaps, best)

    def guess(self, value: float) -> Overlaps:
        """Return overlaps expected at a value: on a line through two known points, or at the nearest known point."""
        by_distance = sorted(self.known, key=lambda other: abs(other - value))
        nearest = self.known[by_distance[0]]
        # points on the other side of the value, because interpolation is safer than extrapolation
        opposite = [other for other in by_distance if (other - value) * (by_distance[0] - value) < 0]
        for other in (opposite or by_distance[1:])[:1]:
            weight = (value - by_distance[0]) / (other - by_distance[0])
            guess = _between(nearest, self.known[other], weight)
            if abs(weight) <= TRACK.max_weight and is_feasible(self.curve.model, guess):
                return guess
        return nearest


def _between(a: Overlaps, b: Overlaps, weight: float) -> Overlaps:
    """Interpolate linearly from a to b; m and θ by their squares, because they vanish like square roots."""
    line = {name: v + weight * (b.arrays()[name] - v) for name, v in a.arrays().items()}
    for name in ("m", "theta"):
        old, new = a.arrays()[name], b.arrays()[name]
        square = old**2 + weight * (new**2 - old**2)
        rooted = (old * new > 0) & (square > 0)
        line[name] = np.where(rooted, np.sign(old) * np.sqrt(np.where(rooted, square, 0)), line[name])
    return Overlaps(**line)


def root_along(
    tracks: Sequence[BranchTrack], measured: Callable[..., float], ends: tuple[float, float], tol: float, size: float
) -> tuple[float, float, float]:
    """Return the root of a function of one fixed point per branch; for the other arguments see `root_on_rules`."""

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

    The function is a difference of numbers of magnitude `size`; a rule resolves it to its relative tolerance times this
    magnitude. Secant steps on a rule end when the error of the slope affects the root by a small fraction of `tol`; the
    slope is updated only from values that differ clearly.
    """
    coarse, error = measure(rule), np.inf
    value, slope = _root_between(coarse, *ends, ROOT.clear * rule.tol * size)
    for _ in range(ROOT.max_finer):
        finer = rule.finer()
        if finer is None or not np.isfinite(slope) or error <= tol:
            break
        fine = measure(finer)
        remainder = fine(value)
        shift, step = (remainder - coarse(value)) / slope, -remainder / slope
        for _ in range(ROOT.max_secants if finer.deterministic else 0):
            if not ROOT.slope_error * abs(step) > ROOT.step_fraction * tol:
                break
            ahead = fine(value + step)
            if abs(ahead - remainder) >= ROOT.clear * finer.tol * size:
                slope = (ahead - remainder) / step
            value, remainder = value + step, ahead
            step = -remainder / slope
        value += step
        error = ROOT.shift_error * abs(shift) + ROOT.slope_error * abs(step) + finer.tol * size / abs(slope)
        if not finer.deterministic:
            break
        coarse, rule = fine, finer
    return value, error if np.isfinite(value) else np.inf, slope


def _root_between(measure: Measure, a: float, b: float, clear: float) -> tuple[float, float]:
    """Return an approximate root and the slope there; NaN if the branch is lost or no root is near the two values.

    If the function has the same sign at both, the interval is extended at the end with the smaller value. The slope is
    a secant between the closest points on both sides of the root whose values differ by `clear`, if there are any.
    """
    from scipy.optimize import brentq

    values: dict[float, float] = {}

    def evaluate(x: float) -> float:
        if x not in values:
            values[x] = measure(x)
        if np.isnan(values[x]):
            raise ValueError("the branch is lost")
        return values[x]

    try:
        if evaluate(a) * evaluate(b) > 0:
            a, b = (a, b) if abs(evaluate(b)) < abs(evaluate(a)) else (b, a)
            a, b = b, b + ROOT.slack * (b - a)
        root = float(brentq(evaluate, a, b, xtol=ROOT.close * max(abs(a), abs(b))))
    except ValueError:  # also if the sign is still the same
        return np.nan, np.nan
    x, f = np.array(sorted(values.items())).T
    below, above = x < root, x > root
    if not (below.any() and above.any()):  # an end is the root
        return root, (f[-1] - f[0]) / (x[-1] - x[0])
    size = np.abs(f)
    enough = min(0.5 * clear, size[below].max(), size[above].max())
    i, j = np.flatnonzero(below & (size >= enough))[-1], np.flatnonzero(above & (size >= enough))[0]
    return root, float((f[j] - f[i]) / (x[j] - x[i]))
