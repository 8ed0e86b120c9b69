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
MIN_UNIT = 0.05  # smallest unit of the parameter, in units of its range


@dataclass(frozen=True, eq=False)
class EquationsCurve(Result):
    """Solutions of equations along a curve; order parameters, errors, `stability` and the parameter are arrays (P, …).

    Attributes
    ----------
    parameter : name of the parameter.
    solutions : solutions in the order of the curve, whose parameter changes its direction at folds. Next to a fold, a
        solution may have the status INACCURATE.
    folds, folds_error : (F,) parameter values at folds, and their errors.
    crossings, crossings_error : (C,) parameter values at which the stability passes 1 elsewhere, and their errors:
        another branch crosses there.
    ends : reason for the end of the curve in both directions, "reached" (the given value), "returned" (beyond a fold,
        to the other given value), "stalled" (no further point was found) or "long" (the maximum number of points).
    """

    parameter: str
    solutions: list[EquationsSolution]
    folds: np.ndarray
    folds_error: np.ndarray
    crossings: np.ndarray
    crossings_error: np.ndarray
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
        kinds = {"fold": (self.folds, self.folds_error), "crossing": (self.crossings, self.crossings_error)}
        notes = [
            f"{kind} at {self.parameter} = {format_with_error(value, error, 4)}"
            for kind, values in kinds.items()
            for value, error in np.transpose(values).tolist()
        ]
        return [names, *points, *notes, f"ends: {', '.join(self.ends)}"]


@dataclass(frozen=True)
class _ParameterCurve:
    """Equations with a parameter as unknown, in the units of a solution; p is its logarithm if its range is positive.

    Linear steps in a unit would be too large for the smallest values of a wide range, or too small for the largest.
    """

    system: System
    name: str
    units: np.ndarray  # (k,)
    limits: tuple[float, float]  # range of the parameter
    unit: float  # of p

    @property
    def tol(self) -> float:
        """Residual of a point at which Newton steps end: the tolerance of the averages."""
        return min(self.system.tol, WALK.residual)

    def position(self, value: float) -> float:
        """Return p of a parameter value."""
        return float(np.log(value)) if self.limits[0] > 0 else value / self.unit

    def value(self, p: float) -> float:
        """Return the parameter value at p, exactly at the limits."""
        exact = {self.position(limit): limit for limit in self.limits}
        return exact.get(p, float(np.exp(p)) if self.limits[0] > 0 else p * self.unit)

    def at(self, u: np.ndarray) -> System:
        """Return the equations at the parameter value of u (k + 1,)."""
        return replace(self.system, parameters={**self.system.parameters, self.name: self.value(float(u[-1]))})

    def solve(self, u: np.ndarray, rtol: float) -> EquationsSolution:
        """Return the solution at the parameter value of u, next to u."""
        return refined(self.at(u), [u[:-1] * self.units], rtol, Status.CONVERGED, "")

    def row(self, p: float, solution: EquationsSolution) -> np.ndarray:
        """Return u of a solution at p, and its stability minus 1 (k + 2,)."""
        return np.concatenate([self.system.pack(solution.values) / self.units, [p, solution.stability - 1]])

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return F(x; p) − x in units; FloatingPointError where it is undefined."""
        return self.at(u).residual(u[:-1] * self.units) / self.units

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
        followed from the solution in both directions, in steps of the logarithm if both values are positive.

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
    unit = 1.0 if low > 0 else max(abs(here), MIN_UNIT * (high - low))
    curve = _ParameterCurve(system, name, system.units(x), (low, high), unit)
    guess = np.append(x / curve.units, curve.position(here))
    (before, first), (after, last) = (_walk(curve, guess, *ends) for ends in ((low, high), (high, low)))
    points = [*before[:0:-1], *(after or before[:1])]
    turns = [k for k in range(1, len(points) - 1) if np.prod(np.diff([u[-1] for u in points[k - 1 : k + 2]])) < 0]
    solutions = []
    for number, u in enumerate(points):
        describe(f"point {number + 1} of {len(points)}")
        solutions.append(curve.solve(u, rtol))
    rows = np.array([curve.row(u[-1], s) for u, s in zip(points, solutions, strict=True)])
    crossings = [
        _locate_crossing(curve, rows[max(j - 1, 0) : k + 2], rtol)
        for j, k in pairwise(range(len(points)))
        if rows[j, -1] * rows[k, -1] < 0 and not {j, k} & set(turns)
    ]
    folds = [locate_fold(curve, points[k - 1 : k + 2]) for k in turns]
    (at_folds, folds_error), (at_crossings, crossings_error) = (_in_units(curve, each) for each in (folds, crossings))
    return EquationsCurve(
        name, solutions, at_folds, folds_error, at_crossings, crossings_error, (first, last)
    )  # fmt: skip


def _in_units(curve: _ParameterCurve, found: list[tuple[float, float]]) -> np.ndarray:
    """Return the parameter values (2, n) and errors of n values of p with errors."""
    p, error = np.reshape(found, (-1, 2)).T
    values = np.exp(p) if curve.limits[0] > 0 else p * curve.unit
    return np.array([values, error * (values if curve.limits[0] > 0 else curve.unit)])


def _locate_crossing(curve: _ParameterCurve, rows: np.ndarray, rtol: float) -> tuple[float, float]:
    """Return p at which the stability passes 1 between points, and its error.

    The rows have u and the stability minus 1. Polynomials in the arclength through them give the crossing and the
    starts of solutions around it, but not next to it, because there the Jacobian is singular.
    """
    from scipy.interpolate import BarycentricInterpolator
    from scipy.optimize import brentq

    at, error, inaccuracy = np.inf, np.inf, 0.0
    for _ in range(WALK.max_parabolas):
        arc = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(rows[:, :-1], axis=0), axis=1)))
        signs = np.flatnonzero(rows[:-1, -1] * rows[1:, -1] < 0)
        if not len(signs):
            break
        pair, fit = slice(signs[0], signs[0] + 2), BarycentricInterpolator(arc, rows)
        middle, before = brentq(lambda s, fit=fit: fit(s)[-1], *arc[pair]), at
        at, change = float(fit(middle)[-2]), np.diff(rows[pair], axis=0)[0]
        # an error of the solution changes the stability by about as much
        error = abs(at - before) + inaccuracy * float(abs(change[-2] / change[-1]))
        if error <= rtol:
            break
        half = max(WALK.closer * np.ptp(arc[pair]), WALK.parabola_arc)
        guesses = [fit(middle + part * half)[:-1] for part in (-1.0, -0.5, 0.5, 1.0)]
        solutions = [curve.solve(guess, rtol) for guess in guesses]
        inaccuracy = max(solution.relative_error for solution in solutions)
        rows = np.array([curve.row(u[-1], s) for u, s in zip(guesses, solutions, strict=True)])
    return at, error


def _walk(curve: _ParameterCurve, guess: np.ndarray, goal: float, other: float) -> tuple[list[np.ndarray], str]:
    """Return the points from a guess to a parameter value, or beyond a fold to the other limit, and the end."""
    ends = {curve.position(other): "returned", curve.position(goal): "reached"}
    points: list[np.ndarray] = []
    if curve.position(goal) == guess[-1]:
        return points, "reached"
    for u in walk(curve, guess, curve.position(goal), curve.position(other)):
        points.append(u)
        describe(f"{curve.name} = {curve.value(float(u[-1])):.4g}")
        if u[-1] in ends and (len(points) > 1 or u[-1] != guess[-1]):
            return points, ends[u[-1]]
        if len(points) >= MAX_POINTS:
            return points, "long"
    return points, "stalled"
