"""Fixed points along a branch as functions of a parameter, each found by Newton steps from known neighbours."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.continuation.arclength import Curve
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.free_energy import stationary_loss
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS, newton, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.test_error import predicted_test_error
from gamp_attention.state_evolution.rules.rule import Rule


@dataclass(frozen=True)
class TrackSettings:
    """Settings for solving a point and for accepting it as a point of the branch; lengths in units of the overlaps."""

    max_residual: float = 2e-3  # largest residual before the final Newton step
    residual: float = 0.05  # the same in units of the requested relative error of the parameter, if that is smaller
    min_residual: float = 0.03  # but not below this, in units of the rule's unresolved error
    max_steps: int = 8  # maximum number of Newton steps; if more are needed, the value was too far
    max_last_step: float = 0.05  # largest final Newton step; a larger step would need another
    halvings: int = 2  # how often the distance to a value that is too far may be halved
    max_change: float = 1.0  # largest relative change from the guess; beyond, the point is on another branch
    min_family: float = 0.1  # smallest m and θ relative to the guess; below, it is a crossing branch without them
    reach: float = 1.2  # largest extrapolation along a line through two known points, in units of their distance


TRACK = TrackSettings()


@dataclass(frozen=True, eq=False)
class BranchTrack:
    """Branch given by its known fixed points; calling it solves for the fixed point at another parameter value."""

    curve: Curve
    known: dict[float, Overlaps]  # fixed points by parameter value, at least one
    tol: float  # requested error of the parameter, which sets the accuracy of the fixed points
    _jacobian: list[np.ndarray | None] = field(default_factory=lambda: [None])  # Jacobian at the last point

    def on(self, rule: Rule, tol: float) -> "BranchTrack":
        """Return the branch on another rule and with another tolerance; both use the same dict of known points."""
        return replace(self, curve=replace(self.curve, rule=rule), tol=tol)

    def __call__(self, value: float, halvings: int = TRACK.halvings) -> "TrackPoint | None":
        """Return the fixed point at a parameter value, or None if there is none near the expected overlaps.

        If necessary, intermediate points are solved first.
        """
        point = self._solve(value)
        if point is None and halvings:
            nearest = min(self.known, key=lambda other: abs(other - value))
            if nearest != value and self(0.5 * (nearest + value), halvings - 1) is not None:
                point = self._solve(value)
        return point

    def _solve(self, value: float) -> "TrackPoint | None":
        guess = self.guess(value)
        packing = Packing.of(self.curve.model, guess)
        F = self.curve.map(np.array([value / self.curve.unit]))
        asked = TRACK.residual * self.tol / max(abs(value), 1e-3)
        enough = min(TRACK.max_residual, max(asked, TRACK.min_residual * self.curve.rule.tol))
        try:
            root = newton(F, guess, enough, TRACK.max_steps, self._jacobian[0], packing)
            self._jacobian[0] = None
            if not root.solves(enough):
                return None
            assert root.jacobian is not None
            at = packing.pack(root.overlaps)
            step = newton_step(root.jacobian, packing.pack(F(root.overlaps)) - at)
            best = packing.unpack(at + step)
        except (*BREAKDOWNS, ValueError):
            return None
        if np.abs(step).max() > TRACK.max_last_step or _on_other_branch(guess, best):
            return None
        self._jacobian[0] = root.jacobian
        self.known[value] = best
        return TrackPoint(F, root.overlaps, best)

    def guess(self, value: float) -> Overlaps:
        """Return the expected overlaps at a value: of the nearest known point, or on a line through it and another."""
        near = sorted(self.known, key=lambda other: abs(other - value))
        nearest = self.known[near[0]]
        across = [other for other in near if (other - value) * (near[0] - value) < 0]
        for other in (across or near[1:])[:1]:
            weight = (value - near[0]) / (other - near[0])
            guess = _between(nearest, self.known[other], weight)
            if abs(weight) <= TRACK.reach and is_feasible(self.curve.model, guess):
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


def _on_other_branch(guess: Overlaps, solution: Overlaps) -> bool:
    """Return whether the solution is on another branch than the guess."""
    was, now = guess.arrays(), solution.arrays()
    faded = any(np.abs(now[name]).max() < TRACK.min_family * np.abs(was[name]).max() for name in ("m", "theta"))
    return faded or relative_change(guess, solution) > TRACK.max_change


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
