"""Fixed points from those of a neighbouring problem, where that certainly leads to the same branch."""

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.units import is_feasible
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import RELAX_GIVEN, RELAX_NAMED, named_start, solve_from
from gamp_attention.state_evolution.rules.choice import first_rule

MAX_ITER = 40  # from a neighbour; if it takes more, that is no help


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, rtol: float
) -> tuple[StateEvolutionResult, bool]:
    """The fixed point on a named branch, and whether it was found from the overlaps of a neighbour.

    Where that did not converge on the branch, or there is no neighbour, it is solved for by name.

    Parameters
    ----------
    model, alpha, branch : the problem, and "semantic", "positional" or "random".
    near : overlaps of a fixed point on the branch, at another α or for another model; or None.
    rtol : as for `solve_state_evolution`.
    """
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if near is not None and is_feasible(model, near):  # they may be on the edge, as of columns that vanish
        found = solve_from(F, near, RELAX_GIVEN, branch, rtol, max_iter=MAX_ITER)
        if found.converged:
            return found, True
    return solve_from(F, named_start(F, branch, 0), RELAX_NAMED, branch, rtol), False
