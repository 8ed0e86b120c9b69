"""A branch of state evolution over a range of α: solved at a ladder of values, and at others on request."""

from dataclasses import dataclass, field

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.continuation.follow import curve_of
from gamp_attention.state_evolution.continuation.track import BranchTrack, TrackPoint
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF, is_off, solve_state_evolution


@dataclass(frozen=True)
class ScanSettings:
    """Settings of the ladder of α."""

    tol: float = 1e-2  # of overlaps and of α: enough to be on the branch
    max_iter: int = 60  # what takes longer is near an end, where the branch is followed instead
    rungs: float = 2.2  # of the ladder for each factor e of α


SCAN = ScanSettings()


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, on the coarsest rule.

    Attributes
    ----------
    model, branch : the problem, and the name of the branch.
    found : fixed points by α, where the branch exists.
    lost : what solving gave instead, by α, where it was not found.
    """

    model: Model
    branch: str
    found: dict[float, TrackPoint] = field(default_factory=dict)
    lost: dict[float, StateEvolutionResult] = field(default_factory=dict)
    _track: BranchTrack | None = None

    def at(self, alpha: float) -> TrackPoint | None:
        """The fixed point at α, from those known or else by name; None where the branch does not exist."""
        if alpha in self.found:
            return self.found[alpha]
        nearest = min([*self.found, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
        if nearest in self.found and self._follow(alpha):
            return self.found[alpha]
        result = solve_state_evolution(
            self.model, alpha, self.branch, rtol=SCAN.tol, stable=False, max_iter=SCAN.max_iter
        )
        if result.converged and self._follow(alpha, result.overlaps):
            return self.found[alpha]
        self.lost[alpha] = result
        return None

    def adopt(self, alpha: float, overlaps: Overlaps) -> bool:
        """Solve from overlaps at an α where solving by name missed the branch; whether it exists there."""
        result = solve_state_evolution(self.model, alpha, overlaps, rtol=SCAN.tol, stable=False, max_iter=SCAN.max_iter)
        if not result.converged or not self._follow(alpha, result.overlaps):
            return False
        del self.lost[alpha]
        return True

    def approach(self, end: float, alpha: float) -> None:
        """Solve next to an end, where the family that the branch is named after fades like a square root."""
        assert self._track is not None
        inside = [a for a in self.found if (a - end) * (alpha - end) > 0]
        if alpha in self.found or not inside:
            return
        family, guess = FAMILY_OF[self.branch], self._track.guess(alpha).arrays()
        nearest = min(inside, key=lambda a: abs(a - alpha))
        there = self.found[nearest].overlaps.arrays()[family]
        guess[family] = there * np.sqrt((alpha - end) / (nearest - end))
        if not self._follow(alpha, Overlaps(**guess)):
            self.at(alpha)

    def trim(self, low: float, high: float) -> None:
        """Forget what was found outside of the range where the branch exists on finer rules; NaN for no limit."""
        assert self._track is not None
        for alpha in [alpha for alpha in self.found if alpha < low or alpha > high]:
            del self.found[alpha]
            self._track.known.pop(alpha, None)

    def spans(self, alpha: float) -> bool:
        """Whether α lies between values at which the branch was found."""
        return min(self.found, default=np.inf) <= alpha <= max(self.found, default=-np.inf)

    def track(self, tol: float) -> BranchTrack:
        """The branch between all α at which it was found, for roots to a tolerance."""
        assert self._track is not None
        return self._track.within(tol)

    def _follow(self, alpha: float, overlaps: Overlaps | None = None) -> bool:
        """Whether the branch exists at α, by a step from what is known, or from overlaps given there."""
        if self._track is None:
            assert overlaps is not None
            curve = curve_of(self.model, alpha, "alpha", overlaps)
            track = BranchTrack(curve, {alpha: overlaps}, SCAN.tol)
            self._track = track = track.on(track.coarsest)
        elif overlaps is not None:
            self._track.known[alpha] = overlaps
        point = self._track(alpha, halvings=0)  # beyond its end the branch is not found by small steps either
        if point is None or is_off(self.branch, point.overlaps):
            self._track.known.pop(alpha, None)
            return False
        self.found[alpha] = point
        return True

    def climb(self, low: float, high: float) -> None:
        """Solve at a ladder of α: the semantic branch from high to low, others from low to high.

        Where no rung is on the branch, it may appear and end between two of them: then half way between rungs too.
        """
        rungs = np.geomspace(low, high, max(2, int(np.ceil(SCAN.rungs * np.log(high / low)))))
        for chosen in (rungs, np.sqrt(rungs[1:] * rungs[:-1])):
            for alpha in chosen[::-1] if self.branch == "semantic" else chosen:
                self.at(float(alpha))
            if self.found:
                return
