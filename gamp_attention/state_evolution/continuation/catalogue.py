"""Search for all fixed points of state evolution that can be reached from a stated set of starts."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.renamed import renamed
from gamp_attention._core.text import Rows
from gamp_attention.models.model import Model, require_model
from gamp_attention.models.starts import STARTS
from gamp_attention.results import Overlaps, Result, Status
from gamp_attention.state_evolution.equations.units import is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS, newton
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution
from gamp_attention.state_evolution.rules.choice import first_rule


@dataclass(frozen=True)
class CatalogueSettings:
    """Settings of the search for further solutions between known solutions."""

    mixtures: tuple[float, ...] = (0.3, 0.5, 0.7)  # weights of linear mixtures of two solutions, used as starts
    residual: float = 1e-4  # residual to which Newton steps solve from a mixture
    max_steps: int = 40  # maximum number of Newton steps; a mixture may be far from a solution
    same: float = 2e-2  # relative change of the overlaps below which two solutions are considered identical


CATALOGUE = CatalogueSettings()


@dataclass(frozen=True, eq=False)
class Branches(Result):
    """Fixed points at one sample complexity, in order of training loss.

    Attributes
    ----------
    solutions : the fixed points, lowest training loss first.
    names : start, or mixture of two solutions, from which each was first found.
    missing : for each start without a new solution: the status, or the name of the start with the same solution.
    """

    solutions: list[StateEvolutionResult]
    names: list[str]
    missing: dict[str, str]

    @property
    def global_minimum(self) -> StateEvolutionResult | None:
        """Solution with the lowest training loss among those found; None if there is none."""
        return self.solutions[0] if self.solutions else None

    def _rows(self) -> Rows:
        """Return a row for each solution, then a line for each start without a new solution."""
        rows: Rows = [["found from", "q", "m_1", "θ", "V", "ε_t", "stable", "replica symmetry"]]
        for name, se in zip(self.names, self.solutions, strict=True):
            values = [f"{float(value):.5f}" for value in se.overlaps.scalars().values()]
            stable = "" if se.stability is None else ("yes" if se.stability.stable else "no")
            rows.append([name, *values, f"{se.train_loss:.7f}", stable, se.validity])
        return rows + [f"{name}: {why}" for name, why in self.missing.items()]


@renamed(stable="stability", variance="response")
@quiet
def branches(
    model: Model,
    alpha: float,
    starts: Any = STARTS,
    *,
    rtol: float | None = None,
    response: str = "stein",
    stability: bool = True,
    seed: int = 0,
) -> Branches:
    """List the fixed points of state evolution found from given starts and from mixtures of the solutions.

    Eq. :eq:`conjugates`, :eq:`weights`.

    From mixtures only Newton steps are used, which also converge to unstable solutions that separate two basins. The
    list need not be complete.

    Parameters
    ----------
    model : the model.
    alpha : sample complexity α > 0.
    starts : a name or Overlaps, or a list of them, as for `solve_state_evolution`.
    rtol, response, stability, seed : as for `solve_state_evolution`.

    Returns
    -------
    Branches

    Raises
    ------
    TypeError : if `model` is not a Model, or `starts` is not a list of names or Overlaps or is empty.
    ValueError : if a start is an unknown name, or an argument is invalid for `solve_state_evolution`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.1)
    >>> found = ga.branches(model, 1.5, ["semantic", "random"], stability=False)
    >>> found.names, found.missing
    (['semantic'], {'random': 'the solution found from semantic'})
    """
    model = require_model(model)
    if isinstance(starts, str | Overlaps):
        starts = (starts,)
    if not isinstance(starts, tuple | list) or not starts:
        raise check.fail("starts", starts, "a list of names or Overlaps", TypeError)
    solve = partial(solve_state_evolution, model, alpha, rtol=rtol, response=response, stability=stability, seed=seed)
    found: list[tuple[str, StateEvolutionResult]] = []
    missing: dict[str, str] = {}
    for number, start in enumerate(starts):
        name = start if isinstance(start, str) else f"overlaps {number}"
        se = solve(start)
        if se.status is Status.LOST:  # the solution that was reached instead is also on the list
            se = solve(se.overlaps)
        if not (np.isfinite(se.overlaps.q).all() and np.isfinite(se.relative_error)):
            missing[name] = se.status.value
        elif twin := _name_of(se.overlaps, found):
            missing[name] = f"the solution found from {twin}"
        else:
            found.append((name, se))
    F = OverlapMap(model, float(alpha), first_rule("auto", model, (seed,)), response)
    for i, (first, a) in enumerate(list(found)):
        for second, b in found[i + 1 :]:
            for weight in CATALOGUE.mixtures:
                rough = _newton_from(F, _mixture(a.overlaps, b.overlaps, weight))
                if rough is None or _name_of(rough, found):
                    continue
                se = solve(rough)
                if se.converged and not _name_of(se.overlaps, found):
                    found.append((f"{first} and {second}, mixed", se))
    found.sort(key=lambda entry: entry[1].train_loss)
    return Branches([se for _, se in found], [name for name, _ in found], missing)


def _name_of(overlaps: Overlaps, found: list[tuple[str, StateEvolutionResult]]) -> str | None:
    """Return the name of the solution with given overlaps, up to the signs of m and θ; None if it is new."""
    for name, known in found:
        for s, t in product((1, -1), repeat=2):
            mirrored = replace(known.overlaps, m=s * known.overlaps.m, theta=t * known.overlaps.theta)
            if relative_change(mirrored, overlaps) < CATALOGUE.same:
                return name
    return None


def _mixture(a: Overlaps, b: Overlaps, weight: float) -> Overlaps:
    return Overlaps(**{name: (1 - weight) * v + weight * b.arrays()[name] for name, v in a.arrays().items()})


def _newton_from(F: OverlapMap, start: Overlaps) -> Overlaps | None:
    """Return a fixed point found by Newton steps without damped steps, or None."""
    if not is_feasible(F.model, start):
        return None
    try:
        root = newton(F, start, CATALOGUE.residual, CATALOGUE.max_steps)
    except BREAKDOWNS:
        return None
    return root.overlaps if root.status.converged else None
