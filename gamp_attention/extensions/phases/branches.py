"""Several fixed points of one model, and branches of fixed points as a parameter changes.

`branches` lists the fixed points at one sample complexity that are found from given starts. `continue_branch` follows
one branch in a parameter up to its end, through unstable parts and around folds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import STARTS
from gamp_attention._tools.display import Rows, format_with_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention.extensions.phases import arclength
from gamp_attention.extensions.phases.arclength import WALK, BranchCurve
from gamp_attention.results import SIGNS, Overlaps, Result, Status, cells, spread, stack_overlaps
from gamp_attention.theory.equations.units import Packing, relative_change
from gamp_attention.theory.fixed_points.observables import stationary_loss
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import solve_state_evolution
from gamp_attention.theory.models.model import PARAMETERS, Model, parameter_value, require_model
from gamp_attention.theory.rules.choice import first_rule

MAX_POINTS = 200  # maximum number of points of a branch
SAME = 2e-2  # relative change of the overlaps below which two solutions are considered identical


@dataclass(frozen=True, eq=False)
class Branches(Result):
    """Fixed points at one sample complexity, in order of training loss.

    Attributes
    ----------
    solutions : the fixed points, lowest training loss first.
    names : start from which each was first found.
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


@guard_call
def branches(
    model: Model,
    alpha: float,
    starts: str | Overlaps | Sequence[str | Overlaps] | None = None,
    *,
    rtol: float | None = None,
    stability: bool = True,
    seed: int = 0,
) -> Branches:
    """List the different fixed points of state evolution that are found from given starts.

    Eq. :eq:`conjugates`, :eq:`weights`. The list need not be complete.

    Parameters
    ----------
    model : the model.
    alpha : sample complexity α > 0.
    starts : a name or Overlaps, or a list of them, as for `solve_state_evolution`; by default all names of the model.
    rtol, stability, seed : as for `solve_state_evolution`.

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
    >>> result = ga.branches(model, 1.5, ["semantic", "random"], stability=False)
    >>> result.names, result.missing
    (['semantic'], {'random': 'the solution found from semantic'})
    """
    model = require_model(model)
    if starts is None:
        starts = [name for name in STARTS if name != "positional" or model.coordinates.tau.any()]
    if isinstance(starts, str | Overlaps):
        starts = (starts,)
    if not isinstance(starts, tuple | list) or not starts:
        raise check.fail("starts", starts, "a list of names or Overlaps", TypeError)
    solve = partial(solve_state_evolution, model, alpha, rtol=rtol, stability=stability, seed=seed)
    solutions: list[tuple[str, StateEvolutionResult]] = []
    missing: dict[str, str] = {}
    for number, start in enumerate(starts):
        name = start if isinstance(start, str) else f"overlaps {number}"
        with check.rename(init=f"starts[{number}]"):
            se = solve(start)
        if se.status is Status.LOST:  # the solution that was reached instead is also on the list
            se = solve(se.overlaps)
        if not (np.isfinite(se.overlaps.q).all() and np.isfinite(se.relative_error)):
            missing[name] = se.status.value
        elif twin := _find_same(se.overlaps, solutions):
            missing[name] = f"the solution found from {twin}"
        else:
            solutions.append((name, se))
    solutions.sort(key=lambda entry: entry[1].train_loss)
    return Branches([se for _, se in solutions], [name for name, _ in solutions], missing)


def _find_same(overlaps: Overlaps, solutions: list[tuple[str, StateEvolutionResult]]) -> str | None:
    """Return the name of the solution with the given overlaps, up to the signs of m and θ; None if it is new."""
    for name, solution in solutions:
        for s, t in product((1, -1), repeat=2):
            mirrored = replace(solution.overlaps, m=s * solution.overlaps.m, theta=t * solution.overlaps.theta)
            if relative_change(mirrored, overlaps) < SAME:
                return name
    return None


@dataclass(frozen=True, eq=False)
class BranchPath(Result):
    """Fixed points along a branch, in the order in which they were computed.

    Attributes
    ----------
    parameter, values : name of the parameter that was varied, and its values (P,).
    overlaps : overlaps of the P points, with the points as first axis.
    train_loss : (P,) training loss ε_t.
    end : "reached" (the goal), "fold" (the branch turns back), "vanished" (all weights go to zero, or the overlap that
        distinguishes the branch from a more symmetric branch does), "stalled" (no next point) or "long" (200 points).
    end_value, end_error : parameter value at which the branch turns back or vanishes, with its error; NaN for other
        ends, or if it could not be located.
    """

    parameter: str
    values: np.ndarray
    overlaps: Overlaps
    train_loss: np.ndarray
    end: str
    end_value: float
    end_error: float

    def at(self, index: int) -> Overlaps:
        """Return the overlaps of one point."""
        return Overlaps(**{name: values[index] for name, values in self.overlaps.arrays().items()})

    def _rows(self) -> Rows:
        """Return rows for at most 12 points, and the end of the branch."""
        columns = self.overlaps.scalars() | {"train_loss": self.train_loss}
        points = [[f"{self.values[k]:.6g}", *cells(columns, k)] for k in spread(len(self.values))]
        end = format_with_error(self.end_value, self.end_error, 4)
        note = f"{self.end} at {self.parameter} = {end}" if np.isfinite(self.end_value) else self.end
        return [[self.parameter, *(SIGNS[name][0] for name in columns)], *points, note]


@guard_call
def continue_branch(
    model: Model,
    alpha: float,
    init: str | Overlaps,
    parameter: str = "alpha",
    to: float = 0.1,
) -> BranchPath:
    """Follow a branch of fixed points in a parameter, by pseudo-arclength continuation with step control.

    Eq. :eq:`conjugates`, :eq:`weights`. The method is Keller's (1977); it continues around folds and through points at
    which the branch loses its stability.

    Parameters
    ----------
    model, alpha : the model and the sample complexity α > 0 at which to start.
    init : "semantic", "positional", "random" or Overlaps, as for `solve_state_evolution`.
    parameter : "alpha", "omega", "lam" or "sigma".
    to : parameter value at which to end.

    Returns
    -------
    BranchPath

    Raises
    ------
    TypeError : if `model` is not a Model, or an argument has the wrong type.
    ValueError : if `parameter` or `init` is an unknown name, `to` is outside the range of the parameter, or the model
        does not have the parameter.
    ConvergenceError : if there is no such branch at the start.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.continue_branch(ga.paper_model(), 1.5, "semantic", to=1.45)
    >>> path.end, path.values[-1].round(6).item()
    ('reached', 1.45)
    """
    model = require_model(model)
    check.choice("parameter", parameter, PARAMETERS)
    to = check.real("to", to, low=0, strict=parameter != "omega", high=1 if parameter == "omega" else np.inf)
    start = solve_state_evolution(model, alpha, init, rtol=1e-3, stability=False, raise_on_failure=True)
    unit = max(parameter_value(model, alpha, parameter), 0.05)
    rule = first_rule("auto", model, (0,)).at_level(1)  # of moderate cost
    goal = float(np.arcsinh(to / unit))
    curve = BranchCurve(unit, {goal: to}, model, alpha, parameter, rule, Packing.of(model, start.overlaps))
    points: list[np.ndarray] = []
    parts: list[tuple[BranchCurve, list[np.ndarray]]] = []  # of the curve in larger units
    end, reason = "", None
    guess = np.append(curve.packing.pack(start.overlaps), np.arcsinh(parameter_value(model, alpha, parameter) / unit))
    while not end:
        for u in arclength.walk(curve, guess, goal):
            points.append(u)
            reason = arclength.find_end(curve, points)
            if reason or u[-1] == goal or len(points) + sum(len(at) for _, at in parts) >= MAX_POINTS:
                end = "reached" if u[-1] == goal else "long"
                break
            if arclength.has_shrunk(curve, points):  # continue in smaller units
                parts.append((curve, points[:-1]))
                curve = replace(curve, packing=Packing.of(curve.map(u).model, curve.overlaps(u)))
                points, guess = [], np.append(curve.packing.pack(curve.packing.like), u[-1])
                break
        else:
            end, is_zero = "stalled", arclength.weight_sizes(curve, points)[-1] < WALK.zero
            reason = "weights" if is_zero else None
    p, error = np.nan, np.nan
    if reason == "fold":
        end, (p, error), points = "fold", arclength.locate_fold(curve, points), points[:-1]
    elif reason:
        sizes = arclength.weight_sizes(curve, points[:-1])
        end, points = "vanished", [u for u, q in zip(points[:-1], sizes, strict=True) if q > WALK.end_size]
        if reason != "weights":
            p, error = arclength.locate_meeting(curve, points, reason)
        if np.isnan(p):
            p, error = arclength.locate_vanishing(curve, points)
        if not abs(p - points[-1][-1]) <= WALK.max_arc:  # the end is within a step of the last point
            p, error = np.nan, np.nan
    value, error = curve.value(p), error * unit * float(np.cosh(p))
    pairs = [(part, u) for part, at in [*parts, (curve, points)] for u in at]
    overlaps, values = (
        [part.overlaps(u) for part, u in pairs],
        np.array([part.value(float(u[-1])) for part, u in pairs]),
    )
    maps = [part.map(u).with_choices_at(x) for (part, u), x in zip(pairs, overlaps, strict=True)]
    losses = [stationary_loss(F, x, F.images(x)[0]) for F, x in zip(maps, overlaps, strict=True)]
    path = Overlaps(**stack_overlaps(overlaps))
    return BranchPath(parameter, values, path, np.array(losses), end, value, error)
