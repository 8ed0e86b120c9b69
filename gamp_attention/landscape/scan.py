"""A branch of state evolution over a range of α: solved at a ladder of values, and at any other on request."""

from dataclasses import dataclass, field

import numpy as np

from gamp_attention.models import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.result import StateEvolutionResult
from gamp_attention.state_evolution.solve import solve_state_evolution, vanished
from gamp_attention.state_evolution.warm_start import solve_near

ROUGH = 1e-2  # accuracy on the ladder
RUNGS = 2.2  # of the ladder in each factor e
MAX_ITER = 60


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model.

    Attributes
    ----------
    model, branch : the problem, and the name of the branch.
    found : fixed points by α, where the branch is.
    lost : what solving gave instead, by α.
    """

    model: Model
    branch: str
    found: dict[float, StateEvolutionResult] = field(default_factory=dict)
    lost: dict[float, StateEvolutionResult] = field(default_factory=dict)

    def at(self, alpha: float, rtol: float = ROUGH) -> StateEvolutionResult | None:
        """The fixed point at α to an accuracy, started from the nearest one known; None where the branch is not."""
        known = self.found.get(alpha)
        if known is not None and known.error <= rtol:
            return known
        nearest = min([*self.found, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
        start = self.found[nearest].overlaps if nearest in self.found else None
        result, _ = solve_near(self.model, alpha, self.branch, start, rtol=rtol, stable=False, max_iter=MAX_ITER)
        if result.converged:
            self.found[alpha] = result
            return result
        if alpha not in self.found:
            self.lost[alpha] = result
        return None

    def adopt(self, alpha: float, overlaps: Overlaps) -> bool:
        """Take the branch where it was not found but following it has led; whether it is there."""
        result = solve_state_evolution(self.model, alpha, overlaps, rtol=ROUGH, stable=False, max_iter=MAX_ITER)
        if not result.converged or vanished(self.branch, result.overlaps):
            return False
        self.found[alpha] = result
        del self.lost[alpha]
        return True

    def climb(self, low: float, high: float) -> None:
        """Solve at a ladder from low to high: the semantic branch from above, others from below."""
        rungs = np.geomspace(low, high, max(2, int(np.ceil(RUNGS * np.log(high / low)))))
        for alpha in rungs[::-1] if self.branch == "semantic" else rungs:
            self.at(float(alpha))
