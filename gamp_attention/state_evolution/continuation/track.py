"""Fixed points along a branch as a parameter is varied, each by Newton steps from those known nearby."""

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
    """How well points are solved, and when they are believed to be on the branch; lengths in units of the overlaps."""

    max_residual: float = 2e-3  # before one last Newton step
    residual: float = 0.05  # the same in units of the relative error asked for of the parameter, where that is less
    min_residual: float = 0.03  # the same, at least, in units of what the rule leaves unresolved
    max_steps: int = 8  # of Newton's; beyond, the value was too far
    max_last_step: float = 0.05  # beyond, one step was not enough
    halvings: int = 2  # of the way to a value that is too far for one step
    max_change: float = 1.0  # from the guess; beyond, it is another branch
    min_family: float = 0.1  # of m and θ in the guess; below, it is another branch, that crosses where they are zero
    reach: float = 1.2  # of a line through two known points, in units of their distance


TRACK = TrackSettings()


@dataclass(frozen=True, eq=False)
class BranchTrack:
    """A branch by the fixed points known on it."""

    curve: Curve
    known: dict[float, Overlaps]  # fixed points by parameter, at least one
    tol: float  # error of the parameter that fixed points are to be good enough for
    _jacobian: list[np.ndarray | None] = field(default_factory=lambda: [None])  # of the last point

    def on(self, rule: Rule, tol: float) -> "BranchTrack":
        """The same branch on another rule and to another tolerance; what either finds is known to both."""
        return replace(self, curve=replace(self.curve, rule=rule), tol=tol)

    def __call__(self, value: float, halvings: int = TRACK.halvings) -> "TrackPoint | None":
        """The fixed point at a value of the parameter, or None where there is none near what is expected there.

        If need be, points half way there are solved first.
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
        if np.abs(step).max() > TRACK.max_last_step or _elsewhere(guess, best):
            return None
        self._jacobian[0] = root.jacobian
        self.known[value] = best
        return TrackPoint(F, root.overlaps, best)

    def guess(self, value: float) -> Overlaps:
        """Overlaps to expect at a value: those of the nearest known point, or on a line through it and another."""
        near = sorted(self.known, key=lambda other: abs(other - value))
        one = self.known[near[0]]
        across = [other for other in near if (other - value) * (near[0] - value) < 0]
        for other in (across or near[1:])[:1]:
            share = (value - near[0]) / (other - near[0])
            guess = _between(one, self.known[other], share)
            if abs(share) <= TRACK.reach and is_feasible(self.curve.model, guess):
                return guess
        return one


def _between(a: Overlaps, b: Overlaps, share: float) -> Overlaps:
    """On a line from a to b; m and θ by their squares, as they fade like square roots."""
    line = {name: v + share * (b.arrays()[name] - v) for name, v in a.arrays().items()}
    for name in ("m", "theta"):
        old, new = a.arrays()[name], b.arrays()[name]
        square = old**2 + share * (new**2 - old**2)
        rooted = (old * new > 0) & (square > 0)
        line[name] = np.where(rooted, np.sign(old) * np.sqrt(np.where(rooted, square, 0)), line[name])
    return Overlaps(**line)


def _elsewhere(guess: Overlaps, found: Overlaps) -> bool:
    """Whether what was found is on another branch than the guess."""
    was, now = guess.arrays(), found.arrays()
    faded = any(np.abs(now[name]).max() < TRACK.min_family * np.abs(was[name]).max() for name in ("m", "theta"))
    return faded or relative_change(guess, found) > TRACK.max_change


@dataclass(frozen=True, eq=False)
class TrackPoint:
    """A fixed point of a map."""

    F: OverlapMap
    at: Overlaps  # that the map was last evaluated at
    overlaps: Overlaps  # the fixed point, one last Newton step from there

    @cached_property
    def train_loss(self) -> float:
        """Training loss ε_t; as the free energy is stationary, its value before the last step will do."""
        return stationary_loss(self.F, self.at, self.F.images(self.at)[0])

    @cached_property
    def test_error(self) -> float:
        """Test error ε_g."""
        return float(predicted_test_error(self.F.model, self.overlaps, self.F.rule).mean())
