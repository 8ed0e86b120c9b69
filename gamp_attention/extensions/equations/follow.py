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
from gamp_attention.extensions.phases.arclength import WALK, Curve, is_closed, locate_fold, walk
from gamp_attention.results import Result, Status, spread

MAX_POINTS = 300  # maximum number of points in each direction
FRACTION = 0.05  # unit of a parameter that is zero at the start, in units of its range


@dataclass(frozen=True, eq=False)
class EquationsCurve(Result):
    """Solutions of equations along a curve; order parameters, errors, `stability` and the parameter are arrays (P, …).

    Attributes
    ----------
    parameter : name of the parameter.
    solutions : solutions in the order of the curve, whose parameter changes its direction at folds. Next to a fold, a
        solution may have the status INACCURATE.
    folds, folds_error : (F,) parameter values at folds, and their errors.
    crossings, crossings_error : (C,) other values at which the stability passes 1, because another branch crosses.
    ends : reason for the end of the curve in both directions, "reached" (the given value), "returned" (beyond a fold,
        to the other given value, or around a closed curve, whose first and last points are the given solution),
        "stalled" (no further point was found) or "long" (the maximum number of points).
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
        notes = [
            f"{kind[:-1]} at {self.parameter} = {format_with_error(value, error, 4)}"
            for kind in ("folds", "crossings")
            for value, error in np.transpose([getattr(self, kind), getattr(self, f"{kind}_error")]).tolist()
        ]
        return [names, *points, *notes, f"ends: {', '.join(self.ends)}"]


@dataclass(frozen=True)
class _ParameterCurve(Curve):
    """Equations with a parameter as unknown; order parameters are units · sinh(u), as the parameter."""

    system: System
    name: str
    units: np.ndarray  # (k,) of a solution
    crosses = True

    @property
    def tol(self) -> float:
        """Residual of a point at which Newton steps end: below the tolerance of averages, which may be exact."""
        return min(SOLUTION.finer * self.system.tol, WALK.residual)

    def at(self, u: np.ndarray) -> System:
        """Return the equations at the parameter value of u (k + 1,)."""
        return replace(self.system, parameters={**self.system.parameters, self.name: self.value(float(u[-1]))})

    def solve(self, u: np.ndarray, rtol: float) -> tuple[EquationsSolution, np.ndarray]:
        """Return the solution at the parameter value of u, and its u and stability minus 1 (k + 2,)."""
        describe(f"solution at {self.name} = {self.value(float(u[-1])):.4g}")
        solution = refined(self.at(u), [self.units * np.sinh(u[:-1])], rtol, Status.CONVERGED, "")
        x = np.arcsinh(self.system.pack(solution.values) / self.units)
        return solution, np.array([*x, u[-1], solution.stability - 1])

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return F(x; p) − x in units; FloatingPointError where it is undefined."""
        return self.at(u).residual(self.units * np.sinh(u[:-1])) / (self.units * np.cosh(u[:-1]))

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
    unit = min(abs(low), abs(high)) if low * high > 0 else abs(here) or FRACTION * (high - low)
    exact = {float(np.arcsinh(value / unit)): value for value in (low, high, here)}
    curve, ends = _ParameterCurve(unit, exact, system, name, system.units(x)), list(exact)[:2]
    guess = np.append(np.arcsinh(x / curve.units), np.arcsinh(here / unit))
    before, first = _walk(curve, guess, *ends)
    closed = len(before) > 1 and before[-1] is before[0]
    after, last = (before[:1], first) if closed else _walk(curve, guess, *reversed(ends))
    points = [*before[:0:-1], *(after or before[:1])]
    ring, n = points + points[1:2] * closed, len(points) - closed
    turns = [k for k in range(1, len(ring) - 1) if np.prod(np.diff([u[-1] for u in ring[k - 1 : k + 2]])) < 0]
    solutions, rows = zip(*(curve.solve(u, rtol) for u in points), strict=True)
    crossings = [
        _locate_crossing(curve, np.array(rows[max(j - 1, 0) : k + 2]), rtol)
        for j, k in pairwise(range(len(points)))
        if rows[j][-1] * rows[k][-1] < 0 and not {j % n, k % n} & {turn % n for turn in turns}
    ]
    folds = [locate_fold(curve, ring[k - 1 : k + 2]) for k in turns]
    arrays: dict[str, Any] = {}
    for kind, found in (("folds", folds), ("crossings", crossings)):
        p, error = np.reshape(found, (-1, 2)).T
        arrays |= {kind: unit * np.sinh(p), f"{kind}_error": unit * np.cosh(p) * error}
    return EquationsCurve(name, list(solutions), **arrays, ends=(first, last))


def _locate_crossing(curve: _ParameterCurve, rows: np.ndarray, rtol: float) -> tuple[float, float]:
    """Return p at which the stability passes 1 between points, and its error.

    The rows have u and the stability minus 1. Polynomials in the arclength through them give the crossing and the
    starts of solutions around it, but not next to it, because there the Jacobian is singular.
    """
    from scipy.optimize import brentq

    at, error, inaccuracy = np.inf, np.inf, 0.0
    for _ in range(WALK.max_parabolas):
        arc = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(rows[:, :-1], axis=0), axis=1)))
        signs = np.flatnonzero(rows[:-1, -1] * rows[1:, -1] < 0)
        if not len(signs):
            break
        pair, fit, before = slice(signs[0], signs[0] + 2), np.polyfit(arc, rows, len(rows) - 1), at
        middle = brentq(lambda s, fit=fit: np.polyval(fit, s)[-1], *arc[pair])
        at, change = float(np.polyval(fit, middle)[-2]), np.diff(rows[pair], axis=0)[0]
        # an error of the solution changes the stability by about as much
        error = abs(at - before) + inaccuracy * float(abs(change[-2] / change[-1]))
        if error <= rtol:
            break
        half = max(WALK.closer * np.ptp(arc[pair]), WALK.parabola_arc)
        near = [curve.solve(np.polyval(fit, middle + part * half)[:-1], rtol) for part in (-1.0, -0.5, 0.5, 1.0)]
        inaccuracy = max(solution.relative_error for solution, _ in near)
        rows = np.array([row for _, row in near])
    return at, error


def _walk(curve: _ParameterCurve, guess: np.ndarray, goal: float, other: float) -> tuple[list[np.ndarray], str]:
    """Return the points from a guess to p = `goal`, beyond a fold to the other limit, or back; and the end."""
    points: list[np.ndarray] = []
    if goal == guess[-1]:
        return points, "reached"
    for u in walk(curve, guess, goal, other):
        points.append(u)
        describe(f"{curve.name} = {curve.value(float(u[-1])):.4g}")
        if len(points) > 1 and u[-1] in (goal, other):
            return points, "reached" if u[-1] == goal else "returned"
        if len(points) > 2 and is_closed(curve, points[0], *points[-2:]):
            return [*points[:-1], points[0]], "returned"
        if len(points) >= MAX_POINTS:
            return points, "long"
    return points, "stalled"
