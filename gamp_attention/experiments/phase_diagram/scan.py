"""A branch of state evolution over a range of α: solved at a ladder of values, and at any other on request."""

from dataclasses import dataclass, field

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.continuation.follow import curve_of
from gamp_attention.state_evolution.continuation.track import BranchTrack, TrackPoint
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF, solve_state_evolution, vanished

ROUGH = 1e-2  # accuracy of what is solved for by name, and of α on the ladder
RUNGS = 2.2  # of the ladder in each factor e
MAX_ITER = 60


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, on the coarsest rule.

    Attributes
    ----------
    model, branch : the problem, and the name of the branch.
    found : fixed points by α, where the branch is.
    lost : what solving gave instead, by α.
    """

    model: Model
    branch: str
    found: dict[float, TrackPoint] = field(default_factory=dict)
    lost: dict[float, StateEvolutionResult] = field(default_factory=dict)
    _track: BranchTrack | None = None

    def at(self, alpha: float) -> TrackPoint | None:
        """The fixed point at α, from those known or else by name; None where the branch is not."""
        if alpha in self.found:
            return self.found[alpha]
        nearest = min([*self.found, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
        if nearest in self.found and self._follow(alpha):
            return self.found[alpha]
        result = solve_state_evolution(self.model, alpha, self.branch, rtol=ROUGH, stable=False, max_iter=MAX_ITER)
        if result.converged and self._follow(alpha, result.overlaps):
            return self.found[alpha]
        self.lost[alpha] = result
        return None

    def adopt(self, alpha: float, overlaps: Overlaps) -> bool:
        """Take the branch where it was not found but following it has led; whether it is there."""
        result = solve_state_evolution(self.model, alpha, overlaps, rtol=ROUGH, stable=False, max_iter=MAX_ITER)
        if not result.converged or not self._follow(alpha, result.overlaps):
            return False
        del self.lost[alpha]
        return True

    def approach(self, end: float, alpha: float) -> None:
        """Solve next to an end, where the family that the branch is named after goes to zero as a square root."""
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
        """Forget what was found outside of the range in which, on finer rules, the branch exists: NaN for no limit."""
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
        """Whether the branch goes on to α, from the overlaps given there if any."""
        if self._track is None:
            assert overlaps is not None
            curve = curve_of(self.model, alpha, "alpha", overlaps)
            track = BranchTrack(curve, {alpha: overlaps}, ROUGH)
            self._track = track = track.on(track.coarsest)
        elif overlaps is not None:
            self._track.known[alpha] = overlaps
        point = self._track(alpha, halvings=0)  # beyond its end the branch is not found by small steps either
        if point is None or vanished(self.branch, point.overlaps):
            self._track.known.pop(alpha, None)
            return False
        self.found[alpha] = point
        return True

    def climb(self, low: float, high: float) -> None:
        """Solve at a ladder from low to high: the semantic branch from above, others from below.

        Where no rung is on the branch, it may appear and end between two: then half way between the rungs too.
        """
        rungs = np.geomspace(low, high, max(2, int(np.ceil(RUNGS * np.log(high / low)))))
        for chosen in (rungs, np.sqrt(rungs[1:] * rungs[:-1])):
            for alpha in chosen[::-1] if self.branch == "semantic" else chosen:
                self.at(float(alpha))
            if self.found:
                return
