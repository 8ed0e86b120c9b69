"""All fixed points of state evolution that are found from a stated set of starts."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._core import check
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

MIXTURES = (0.3, 0.5, 0.7)  # between two solutions found, where a third may separate them
SAME = 2e-2  # relative change under which two rough solutions are one, before they are refined
ROUGH, NEWTON_STEPS = 1e-4, 40


@dataclass(frozen=True, eq=False)
class Branches(Result):
    """Fixed points at one sample complexity, lowest training loss first.

    Attributes
    ----------
    solutions : the fixed points.
    names : what each was first found from, a start or a mixture of two solutions.
    missing : starts that led to no solution of their own, with the status or the solution they led to.
    """

    solutions: list[StateEvolutionResult]
    names: list[str]
    missing: dict[str, str]

    @property
    def global_minimum(self) -> StateEvolutionResult | None:
        """The solution of least training loss among those found."""
        return self.solutions[0] if self.solutions else None

    def _rows(self) -> Rows:
        """A line for each solution, then what was not found."""
        rows: Rows = [["found from", "q", "m_1", "θ", "V", "ε_t", "stable", "replica symmetry"]]
        for name, se in zip(self.names, self.solutions, strict=True):
            values = [f"{float(value):.5f}" for value in se.overlaps.scalars().values()]
            stable = "" if se.stability is None else ("yes" if se.stability.stable else "no")
            rows.append([name, *values, f"{se.train_loss:.7f}", stable, se.validity])
        return rows + [f"{name}: {why}" for name, why in self.missing.items()]


def branches(
    model: Model,
    alpha: float,
    starts: Any = STARTS,
    *,
    rtol: float | None = None,
    variance: str = "stein",
    stable: bool = True,
    seed: int = 0,
) -> Branches:
    """List the fixed points of state evolution found from named or given starts, and from mixtures of them.

    Eq. :eq:`conjugates`, :eq:`weights`.

    Mixtures are solved by Newton steps alone, so that unstable solutions that separate two basins are found too.
    There may be others.

    Parameters
    ----------
    model, alpha : the problem.
    starts : names or Overlaps, as for `solve_state_evolution`.
    rtol, variance, stable, seed : as for `solve_state_evolution`.

    Returns
    -------
    Branches

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.1)
    >>> found = ga.branches(model, 1.5, ["semantic", "random"], stable=False)
    >>> found.names, found.missing
    (['semantic'], {'random': 'the solution found from semantic'})
    """
    require_model(model)
    if isinstance(starts, str | Overlaps):
        starts = (starts,)
    if not isinstance(starts, tuple | list) or not starts:
        raise check.fail("starts", starts, "a list of names or Overlaps", TypeError)
    options: dict[str, Any] = {"variance": variance, "seed": seed}
    found: list[tuple[str, StateEvolutionResult]] = []
    missing: dict[str, str] = {}

    def add(name: str, se: StateEvolutionResult) -> None:
        twin = next((other for other, known in found if _alike(known.overlaps, se.overlaps)), None)
        if twin is not None:
            missing[name] = f"the solution found from {twin}"
        else:
            found.append((name, se))

    for number, start in enumerate(starts):
        name = start if isinstance(start, str) else f"overlaps {number}"
        se = solve_state_evolution(model, alpha, start, rtol=rtol, stable=stable, **options)
        if se.status is Status.LOST:  # what was found instead is a solution too
            se = solve_state_evolution(model, alpha, se.overlaps, rtol=rtol, stable=stable, **options)
        if np.isfinite(se.overlaps.q).all() and np.isfinite(se.error):
            add(name, se)
        else:
            missing[name] = se.status.value
    F = OverlapMap(model, float(alpha), first_rule("auto", model, (seed,)), variance)
    for i, (one, a) in enumerate(list(found)):
        for other, b in list(found)[i + 1 :]:
            for share in MIXTURES:
                rough = _newton_from(F, _mixture(a.overlaps, b.overlaps, share))
                if rough is None or any(_alike(known.overlaps, rough) for _, known in found):
                    continue
                se = solve_state_evolution(model, alpha, rough, rtol=rtol, stable=stable, **options)
                if se.converged and not any(_alike(known.overlaps, se.overlaps) for _, known in found):
                    found.append((f"{one} and {other}, mixed", se))
    found.sort(key=lambda entry: entry[1].train_loss)
    return Branches([se for _, se in found], [name for name, _ in found], missing)


def _alike(a: Overlaps, b: Overlaps) -> bool:
    """Whether two solutions are one, up to the signs of m and θ."""
    return any(relative_change(replace(a, m=s * a.m, theta=t * a.theta), b) < SAME for s in (1, -1) for t in (1, -1))


def _mixture(a: Overlaps, b: Overlaps, share: float) -> Overlaps:
    return Overlaps(**{name: (1 - share) * v + share * b.arrays()[name] for name, v in a.arrays().items()})


def _newton_from(F: OverlapMap, start: Overlaps) -> Overlaps | None:
    """A fixed point by Newton steps alone, or None."""
    if not is_feasible(F.model, start):
        return None
    try:
        root = newton(F, start, ROUGH, NEWTON_STEPS)
    except BREAKDOWNS:
        return None
    return root.overlaps if root.status.converged else None
