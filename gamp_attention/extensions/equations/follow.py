"""Solutions of equations of the user along a parameter, around folds, by pseudo-arclength continuation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_with_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import describe, show_progress
from gamp_attention.extensions.equations.solve import SOLUTION, EquationsSolution, refined
from gamp_attention.extensions.equations.system import System, read_start
from gamp_attention.extensions.phases.arclength import WALK, locate_fold, walk
from gamp_attention.results import Result, Status, spread

MAX_POINTS = 300  # maximum number of points in each direction
MIN_UNIT = 0.05  # smallest unit of the parameter


@dataclass(frozen=True, eq=False)
class EquationsCurve(Result):
    """Solutions of equations along a curve; order parameters, errors, `stability` and the parameter are arrays (P, …).

    Attributes
    ----------
    parameter : name of the parameter.
    solutions : solutions in the order of the curve, whose parameter changes its direction at folds. Next to a fold, a
        solution may have the status INACCURATE.
    folds, folds_error : (F,) parameter values at folds, and their errors.
    crossings : (C,) parameter values at which the stability passes 1 elsewhere: another branch crosses there.
    ends : reason for the end of the curve in both directions, "reached" (the given value), "returned" (beyond a fold,
        to the other given value), "stalled" (no further point was found) or "long" (the maximum number of points).
    """

    parameter: str
    solutions: list[EquationsSolution]
    folds: np.ndarray
    folds_error: np.ndarray
    crossings: np.ndarray
    ends: tuple[str, str]

    @property
    def converged(self) -> bool:
        """True if all solutions converged."""
        return all(solution.converged for solution in self.solutions)

    def __getattr__(self, name: str) -> np.ndarray:
        if name.startswith("__") or not self.solutions:
            raise AttributeError(name)
        values = self.solutions[0].values
        if name == self.parameter:
            return np.array([solution.parameters[name] for solution in self.solutions])
        if name == "stability" or name.removesuffix("_error") in values:
            return np.array([getattr(solution, name) for solution in self.solutions])
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _rows(self) -> Rows:
        names = [self.parameter, *self.solutions[0].values]
        points = [[f"{np.ravel(getattr(self, name)[k])[0]:.5g}" for name in names] for k in spread(len(self.solutions))]
        pairs = zip(self.folds.tolist(), self.folds_error.tolist(), strict=True)
        folds = [f"fold at {self.parameter} = {format_with_error(*pair, 4)}" for pair in pairs]
        return [names, *points, *folds, f"ends: {', '.join(self.ends)}"]


@dataclass(frozen=True)
class _ParameterCurve:
    """Equations with a parameter p as unknown, in the units of a solution."""

    system: System
    name: str
    units: np.ndarray  # (k,)
    unit: float  # of p

    @property
    def tol(self) -> float:
        """Residual of a point at which Newton steps end: the tolerance of the averages."""
        return min(self.system.tol, WALK.residual)

    def at(self, u: np.ndarray) -> System:
        """Return the equations at the parameter value of u (k + 1,)."""
        return replace(self.system, parameters={**self.system.parameters, self.name: float(u[-1] * self.unit)})

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return F(x; p) − x in units; FloatingPointError where it is undefined."""
        return self.at(u).evaluate(u[:-1] * self.units)[0] / self.units - u[:-1]

    def finer(self) -> "_ParameterCurve":
        """Return the curve with more accurate averages."""
        return replace(self, system=replace(self.system, tol=SOLUTION.finer * self.system.tol))


@guard_call
@show_progress("curve ")
def follow_equations(
    equations: Callable[..., Mapping[str, Any]], solution: EquationsSolution, *, rtol: float = 1e-4,
    **parameter: tuple[float, float],
) -> EquationsCurve:  # fmt: skip
    """Follow a solution of `solve_equations` in one of its parameters, around folds (Keller, 1977).

    Parameters
    ----------
    equations : the equations of the solution.
    solution : a point of the curve.
    rtol : requested relative error of the points.
    **parameter : name of the parameter with its smallest and largest value, as in `alpha=(0.1, 10.0)`. The curve is
        followed from the solution in both directions.

    Returns
    -------
    EquationsCurve

    Raises
    ------
    TypeError, ValueError : if no parameter of the solution is named, or its values do not enclose the solution's.
    ConvergenceError : if the solution is none of these equations.

    Examples
    --------
    The two stable magnetizations of a ferromagnet in a field, and the unstable one between them:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> def equations(x, average, field):
    ...     return dict(m=np.tanh(1.5 * x.m + field))
    >>> start = ga.solve_equations(equations, dict(m=1.0), field=0.3)
    >>> curve = ga.follow_equations(equations, start, field=(-0.3, 0.3))
    >>> sorted(curve.folds.round(4).tolist()), curve.ends
    ([-0.2075, 0.2075], ('reached', 'reached'))
    """
    check.function("equations", equations)
    if len(parameter) != 1 or not set(parameter) <= set(solution.parameters):
        needs = f"one of the solution's parameters {sorted(solution.parameters)} with its range"
        raise check.fail("follow_equations", sorted(parameter), needs, TypeError)
    (name, limits), rtol = next(iter(parameter.items())), check.real("rtol", rtol, low=1e-8, high=0.1)
    low, high = check.array(name, limits, (2,)).tolist()
    here = float(solution.parameters[name])
    if not (low <= here <= high and low < high):
        raise check.fail(name, limits, f"a range that contains the solution's value {here:g}")
    system = System(equations, read_start(solution.values), solution.parameters, SOLUTION.average_tol * rtol)
    x = system.pack(solution.values)
    unit = max(abs(here), MIN_UNIT * (high - low))
    curve = _ParameterCurve(system, name, system.units(x), unit)
    guess = np.append(x / curve.units, here / unit)
    (before, first), (after, last) = (_walk(curve, guess, goal, (low, high)) for goal in (low, high))
    points = [*before[:0:-1], *(after or before[:1])]
    turns = [k for k in range(1, len(points) - 1) if np.prod(np.diff([u[-1] for u in points[k - 1 : k + 2]])) < 0]
    folds = np.array([locate_fold(curve, points[k - 1 : k + 2]) for k in turns]).reshape(-1, 2)
    solutions = []
    for number, u in enumerate(points):
        describe(f"point {number + 1} of {len(points)}")
        solutions.append(refined(curve.at(u), [u[:-1] * curve.units], rtol, Status.CONVERGED, ""))
    distance = np.array([point.stability - 1 for point in solutions])
    values = np.array([u[-1] * unit for u in points])
    crossings = [
        values[j] - distance[j] * (values[k] - values[j]) / (distance[k] - distance[j])
        for j, k in pairwise(range(len(points)))
        if distance[j] * distance[k] < 0 and not {j, k} & set(turns)
    ]
    return EquationsCurve(name, solutions, folds[:, 0], folds[:, 1], np.array(crossings), (first, last))


def _walk(
    curve: _ParameterCurve, guess: np.ndarray, goal: float, limits: tuple[float, float]
) -> tuple[list[np.ndarray], str]:
    """Return the points from a guess toward a parameter value, without points outside the limits, and the end."""
    if goal == guess[-1] * curve.unit:
        return [], "reached"
    points: list[np.ndarray] = []
    for u in walk(curve, guess, goal / curve.unit):
        value = u[-1] * curve.unit
        if not limits[0] <= value <= limits[1] and abs(value - goal) > 1e-9 * curve.unit:
            return points, "returned"
        points.append(u)
        describe(f"{curve.name} = {value:.4g}")
        if u[-1] == goal / curve.unit:
            return points, "reached"
        if len(points) >= MAX_POINTS:
            return points, "long"
    return points, "stalled"
