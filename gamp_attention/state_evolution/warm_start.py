"""Fixed points from those of a neighbouring problem, where that certainly leads to the same branch."""

from typing import Any

from gamp_attention.models import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.result import StateEvolutionResult
from gamp_attention.state_evolution.solve import solve_state_evolution, vanished


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, **options: Any
) -> tuple[StateEvolutionResult, bool]:
    """The fixed point on a named branch, and whether it was found from the overlaps of a neighbour.

    Where that did not converge on the branch, or there is no neighbour, it is solved for by name.

    Parameters
    ----------
    model, alpha, branch : the problem, and "semantic", "positional" or "random".
    near : overlaps of a fixed point on the branch, at another α or for another model; or None.
    options : for `solve_state_evolution`.
    """
    if near is not None:
        try:
            found = solve_state_evolution(model, alpha, near, **options)
        except ValueError:  # overlaps on the edge of what is feasible, as of columns that vanish
            found = None
        if found is not None and found.converged and not vanished(branch, found.overlaps):
            return found, True
    return solve_state_evolution(model, alpha, branch, **options), False
