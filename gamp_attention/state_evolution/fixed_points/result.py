"""What `solve_state_evolution` returns."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.renamed import say_renamed
from gamp_attention._core.text import Rows
from gamp_attention.results import Ended, Overlaps, Status
from gamp_attention.state_evolution.fixed_points.stability import Stability


@dataclass(frozen=True, eq=False)
class StateEvolutionHistory(Overlaps):
    """Overlaps along the iteration, entry 0 being the start."""


@dataclass(frozen=True, eq=False)
class StateEvolutionResult(Ended):
    """A fixed point of state evolution. Errors are half-widths that hold in at least 95 % of cases.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the largest relative
        change of an overlap in a full step.
    overlaps, train_loss, test_error : of equations (7), (14) and (10).
    overlaps_error, train_loss_error, test_error_error : their errors.
    relative_error : the largest relative error of an overlap, of V̂ and of the losses; for m and θ in units of √q.
    jump_mass, jump_mass_error : (L, r, r) what jumps of the proximal map add to V̂: V̂_Stein − V̂_derivative. Negative:
        g jumps along the direction in which ω moves, and V̂ is −α E[∂g/∂ω].
    V_hat, V_hat_error : (L, r, r) V̂ in Stein's form, and its error.
    replicon, replicon_error : replica symmetry is stable where this is below 1 and the proximal map does not jump.
        Where there is no fixed point on the branch asked for, the replicon at the last overlaps.
    message : what became of the branch asked for, where it is lost.
    stability : eigenvalues of the overlap map by sector, or None where not asked for.
    consistent, validity : whether the replica-symmetric prediction is consistent, and why, in words; where the proximal
        map jumps, with how much lower V of minima is to be expected.
    response, rule : the form of V̂ that was solved with, and the rule that averaged ("split", "lines" or "sobol").
    """

    status: Status
    n_iter: int
    residual: float
    history: StateEvolutionHistory
    overlaps: Overlaps
    overlaps_error: Overlaps
    relative_error: float
    train_loss: float
    train_loss_error: float
    test_error: float
    test_error_error: float
    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    V_hat: np.ndarray
    V_hat_error: np.ndarray
    replicon: float
    replicon_error: float
    stability: Stability | None
    consistent: bool
    validity: str
    response: str
    rule: str
    message: str = ""

    @property
    def error(self) -> float:
        """Former name of `relative_error`."""
        say_renamed("StateEvolutionResult.error", "relative_error")
        return self.relative_error

    @property
    def variance(self) -> str:
        """Former name of `response`."""
        say_renamed("StateEvolutionResult.variance", "response")
        return self.response

    def _rows(self) -> Rows:
        rows = super()._rows()
        if self.stability is not None:
            rows.append(f"  {self.stability.summary()}")
        return [*rows, f"  replica symmetry: {self.validity}"]
