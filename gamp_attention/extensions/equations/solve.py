"""Fixed points x = F(x) of equations of the user, with errors.

1. The flow dx/dt = F(x) − x leads from the start to a fixed point that attracts (`follow_flow`). A start that hardly
   changes counts as near a fixed point, and is solved by Newton steps even if that repels.
2. Newton steps with more accurate averages give the errors (`refined`): twice the change of the solution, and the last
   error of the averages, with their difference from averages with closer nodes, multiplied by the response (1 − F')⁻¹
   of the solution to errors of F.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_to_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import show_progress
from gamp_attention._tools.roots import RootSettings, differences, find_root, follow_flow, refine_until
from gamp_attention.extensions.equations.average import CHECK
from gamp_attention.extensions.equations.system import System, Values, read_start
from gamp_attention.results import Ended, Status, finish

STEPS = RootSettings(max_steps=20, max_move=0.3)
UNDEFINED = (FloatingPointError, np.linalg.LinAlgError)


@dataclass(frozen=True)
class SolutionSettings:
    """Settings of solutions and their refinement; lengths are in units of the order parameters."""

    tol: float = 1e-4  # tolerance of averages, and of residuals, along the flow, if it is above `average_tol`
    average_tol: float = 0.1  # tolerance of averages, in units of `rtol`, in the first refinement
    finer: float = 0.1  # tolerance of averages in units of the last, in the refinement
    max_finer: int = 4  # maximum number of refinements
    safety: float = 2.0  # error in units of the last change of the solution


SOLUTION = SolutionSettings()


@dataclass(frozen=True, eq=False)
class EquationsSolution(Ended):
    """Fixed point of equations: each order parameter, with its error, is an attribute, as in `solution.m_error`.

    Attributes
    ----------
    status, converged, n_iter, residual : as for every solver; the residual is the largest relative change in a step.
    values, errors : order parameters, and half-widths of the intervals that contain them, by name.
    relative_error : largest error of an order parameter, in the unit of `rtol`.
    stability : largest real part of the eigenvalues of the Jacobian of F; below 1, damped steps return to the solution.
    parameters : parameters of the equations.
    history : values along the flow by name, with the steps as first axis; entry 0 is the start.
    message : explanation if the status is not CONVERGED.
    """

    status: Status
    n_iter: int
    residual: float
    values: Values
    errors: Values
    relative_error: float
    stability: float
    parameters: dict[str, Any]
    history: Values
    message: str = ""

    def __getattr__(self, name: str) -> Any:
        for fields in () if name.startswith("__") else (self.values, self.errors):
            if (stem := name if fields is self.values else name.removesuffix("_error")) in fields:
                return fields[stem]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _rows(self) -> Rows:
        cells = []
        for name, value in self.values.items():
            pairs = zip(np.ravel(value), np.ravel(self.errors[name]), strict=True)
            cells.append([f"  {name}", " ".join(format_to_error(float(v), float(e)) for v, e in pairs)])
        note = [f"  {self.message}"] if self.message else []
        return [self._heading(), *cells, ["  stability", f"{self.stability:.4g}"], *note]


@guard_call
@show_progress("equations ")
def solve_equations(
    equations: Callable[..., Mapping[str, Any]], start: Mapping[str, Any], *, rtol: float = 1e-4, max_iter: int = 200,
    raise_on_failure: bool = False, **parameters: Any,
) -> EquationsSolution:  # fmt: skip
    """Solve x = F(x) for named order parameters, such as the saddle-point equations of a replica calculation.

    The solution is the end of the flow dx/dt = F(x) − x from the start, as of iterations with strong damping.

    Parameters
    ----------
    equations : function of x, `average` and the parameters that returns a dict of the new order parameters. x has the
        order parameters as attributes, numbers or arrays. `average(f, n)` is the mean of f(ξ₁, …, ξ_n) over n ≤ 3
        standard normals, for a function f of n arrays; its accuracy is chosen by the solver.
    start : dict of the order parameters at which the flow begins.
    rtol : requested error of each order parameter, relative to its largest entry, or to 1e-6 of its start if larger.
    max_iter : maximum number of steps along the flow.
    raise_on_failure : whether to raise ConvergenceError instead of returning a solution that did not converge.
    **parameters : further arguments of `equations`.

    Returns
    -------
    EquationsSolution
        The status is INACCURATE if the errors exceed `rtol`, MAX_ITER or DIVERGED if there is no fixed point near, and
        NONFINITE if an equation returns NaN.

    Raises
    ------
    TypeError, ValueError : if `start` is not a dict of finite numbers, or the equations return other names or shapes,
        or values at the start that are not finite real numbers.

    Examples
    --------
    Ridge regression with α samples per weight:

    >>> import gamp_attention as ga
    >>> def equations(x, average, alpha, lam):
    ...     V_hat = alpha / (1 + x.V)
    ...     q_hat = alpha * average(lambda u, z: ((u - x.m * u - (x.q - x.m**2) ** 0.5 * z) / (1 + x.V)) ** 2, 2)
    ...     return dict(m=V_hat / (lam + V_hat), q=(V_hat**2 + q_hat) / (lam + V_hat) ** 2, V=1 / (lam + V_hat))
    >>> solution = ga.solve_equations(equations, dict(m=0.1, q=0.5, V=1.0), alpha=2.0, lam=0.1)
    >>> solution.converged, solution.m.round(3).item(), bool(solution.m_error < 1e-4)
    (True, 0.916, True)
    """
    check.function("equations", equations)
    rtol = check.real("rtol", rtol, low=1e-8, high=0.1)
    system = System(equations, read_start(start), parameters, max(SOLUTION.tol, SOLUTION.average_tol * rtol))
    if taken := sorted(set(system.start) & {"converged", *EquationsSolution.__dataclass_fields__}):
        raise check.fail("start", taken, "names other than the attributes of a solution")
    for name, value in parameters.items():
        if (array := check.read_array(value)).dtype.kind == "f":
            check.require_finite(name, array)
    x = system.pack(system.start)
    try:
        system.evaluate(x)
    except FloatingPointError as error:
        raise ValueError(f"equations: needs finite values at the start, but {error}") from None
    status, path, message = _follow(system, x, check.integer("max_iter", max_iter, low=1))
    return finish(refined(system, path, rtol, status, message), raise_on_failure, "solve_equations")


def _follow(system: System, x: np.ndarray, max_iter: int) -> tuple[Status, list[np.ndarray], str]:
    """Return the status at the end of the flow from x, the points on the way, and the reason if it is no solution."""
    found = follow_flow(system, x, system.tol, max_iter)
    if found.failure is not None:
        status = Status.DIVERGED if isinstance(found.failure, OverflowError) else Status.NONFINITE
        return status, found.path, str(found.failure)
    if found.arrived:
        return Status.CONVERGED, found.path, ""
    change = np.abs(found.residual) / _path_units(system, found.path)
    if not change.any():
        return Status.MAX_ITER, found.path, "this fixed point may not be isolated: its Jacobian has an eigenvalue of 1"
    name = _largest(system, change)
    advice = "there may be no fixed point near; otherwise raise max_iter or start closer"
    return Status.MAX_ITER, found.path, f"{name} still changes by {change.max():.1g}, relatively, in a step: {advice}"


def _path_units(system: System, path: list[np.ndarray]) -> np.ndarray:
    """Return the largest unit of each entry (k,) along a path, since a cycle may pass zero."""
    return np.max([system.units(point) for point in path], axis=0)


def _largest(system: System, change: np.ndarray) -> str:
    """Return the name of the order parameter with the largest change."""
    return max(system.start, key=lambda name: float(np.abs(system.unpack(change)[name]).max()))


def refined(system: System, path: list[np.ndarray], rtol: float, status: Status, message: str) -> EquationsSolution:
    """Return the solution at the end of a path, solved with more and more accurate averages."""
    solution = refine_until(_solutions(system, path, rtol, status, message), rtol)
    accurate = solution.relative_error <= rtol
    return replace(solution, status=Status.CONVERGED, message="") if accurate else solution


def _solutions(
    system: System, path: list[np.ndarray], rtol: float, status: Status, message: str
) -> Iterator[EquationsSolution]:
    """Yield the end of the path, without errors, and the solutions with more and more accurate averages."""
    x, unit, residual, bounded = path[-1], system.units(path[-1]), np.nan, False
    error = np.full(len(x), np.nan)
    jacobian = np.diag(error)  # of F(x) − x, whereas `stability` is of F
    for level in range(-1, SOLUTION.max_finer if status.converged else 0):
        try:
            if level < 0:
                residual = float(np.abs(system.residual(x) / _path_units(system, path)).max())
            else:
                before, here, unit = x, system.residual(x), system.units(x)
                steps = system.difference * unit
                jacobian = np.mean([differences(system.residual, x, here, side * steps) for side in (1, -1)], axis=0)
                system = replace(system, tol=SOLUTION.average_tol * rtol * SOLUTION.finer**level)
                root = find_root(system, x, system.tol, STEPS, jacobian)
                last = np.linalg.solve(jacobian, root.residual)
                checked, rest = replace(system, settings=CHECK).evaluate(root.x)
                missed = np.abs(checked - root.x - root.residual) + unit * max(system.tol, rest)
                response = np.abs(np.linalg.inv(jacobian)) @ missed
                error = SOLUTION.safety * (np.abs(root.x - before) + np.abs(last)) + response
                x, residual, status = root.x, root.size, Status.INACCURATE
                message = f"the relative error of {_largest(system, error / unit)} is {np.max(error / unit):.1g}"
                message += f", not rtol = {rtol:g}"
                if rest > system.tol:
                    message += f": an average needs too many nodes, its error is {rest:.1g} of the mean absolute value"
                bounded = rest > system.tol and bool((response > rtol * unit).any())
        except UNDEFINED as failure:
            status, message = Status.NONFINITE, str(failure)
        stability = 1 + float(np.linalg.eigvals(jacobian).real.max()) if np.isfinite(jacobian).all() else np.nan
        rows = [system.unpack(point) for point in [*path, x]]
        history = {name: np.array([row[name] for row in rows]) for name in system.start}
        yield EquationsSolution(
            status, len(path), residual, rows[-1], system.unpack(error), float(np.max(error / unit)), stability,
            system.parameters, history, message,
        )  # fmt: skip
        if bounded or status is Status.NONFINITE:
            return
