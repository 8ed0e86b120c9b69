"""A branch of state evolution over a range of α: solved at a ladder of values, and at others on request."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gamp_attention._core.progress import Progress
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.continuation.follow import curve_of
from gamp_attention.state_evolution.continuation.track import BranchTrack, TrackPoint
from gamp_attention.state_evolution.fixed_points.newton import Root
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF, first_root, is_off


@dataclass(frozen=True)
class ScanSettings:
    """Settings of the ladder of α."""

    tol: float = 1e-2  # of overlaps and of α: enough to be on the branch
    max_iter: int = 104  # what takes longer is near an end, where the branch is followed instead
    rungs: float = 2.2  # of the ladder for each factor e of α


SCAN = ScanSettings()


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, on the coarsest rule."""

    model: Model
    branch: str
    found: dict[float, TrackPoint] = field(default_factory=dict)  # by α, where the branch exists
    lost: dict[float, Root] = field(default_factory=dict)  # what was found instead, by α
    track: BranchTrack = field(init=False)  # through all of `found`, once there is one

    def at(self, alpha: float) -> TrackPoint | None:
        """The fixed point at α, from those known or else by name; None where the branch does not exist."""
        if alpha not in self.found:
            nearest = min([*self.found, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
            if not (nearest in self.found and self._follow(alpha)):
                self.solve(alpha, self.branch)
        return self.found.get(alpha)

    def solve(self, alpha: float, init: Any) -> bool:
        """Solve from a name or overlaps; whether the branch exists at α."""
        root = first_root(self.model, alpha, init, SCAN.max_iter)
        if root.status.converged and self._follow(alpha, root.overlaps):
            self.lost.pop(alpha, None)
            return True
        self.lost[alpha] = root
        return False

    def approach(self, end: float, alpha: float) -> None:
        """Solve next to an end, where the family that the branch is named after fades like a square root."""
        inside = [a for a in self.found if (a - end) * (alpha - end) > 0]
        if alpha in self.found or not inside:
            return
        family, guess = FAMILY_OF[self.branch], self.track.guess(alpha).arrays()
        nearest = min(inside, key=lambda a: abs(a - alpha))
        there = self.found[nearest].overlaps.arrays()[family]
        guess[family] = there * np.sqrt((alpha - end) / (nearest - end))
        if not self._follow(alpha, Overlaps(**guess)):
            self.at(alpha)

    def trim(self, low: float, high: float) -> None:
        """Forget what was found outside of the range where the branch exists on finer rules; NaN for no limit."""
        for alpha in [alpha for alpha in self.found if alpha < low or alpha > high]:
            del self.found[alpha]
            self.track.known.pop(alpha, None)

    def spans(self, alpha: float) -> bool:
        """Whether α lies between values at which the branch was found."""
        return min(self.found, default=np.inf) <= alpha <= max(self.found, default=-np.inf)

    def _follow(self, alpha: float, overlaps: Overlaps | None = None) -> bool:
        """Whether the branch exists at α, by a step from what is known, or from overlaps given there."""
        if overlaps is not None:
            if not hasattr(self, "track"):
                curve = curve_of(self.model, alpha, "alpha", overlaps)
                self.track = BranchTrack(replace(curve, rule=curve.rule.at_level(0)), {}, SCAN.tol)
            self.track.known[alpha] = overlaps
        point = self.track(alpha, halvings=0)  # beyond its end the branch is not found by small steps either
        if point is None or is_off(self.branch, point.overlaps):
            self.track.known.pop(alpha, None)
            return False
        self.found[alpha] = point
        return True

    def climb(self, low: float, high: float) -> None:
        """Solve at a ladder of α: the semantic branch from high to low, others from low to high.

        Where no rung is on the branch, it may appear and end between two of them: then half way between rungs too.
        """
        rungs = np.geomspace(low, high, max(2, int(np.ceil(SCAN.rungs * np.log(high / low)))))
        for chosen in (rungs, np.sqrt(rungs[1:] * rungs[:-1])):
            with Progress(total=len(chosen)) as ladder:
                for alpha in chosen[::-1] if self.branch == "semantic" else chosen:
                    ladder.describe(f"{self.branch} branch at α = {alpha:.3g}")
                    self.at(float(alpha))
                    ladder.update()
            if self.found:
                return
