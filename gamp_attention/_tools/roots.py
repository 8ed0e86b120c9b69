"""Solutions of systems of equations G(x) = 0, by Newton steps near a solution and by a flow far from it.

Newton steps (`find_root`) are guarded, with Broyden's updates of the Jacobian (Broyden, 1965).

The flow dx/dt = G(x) (`follow_flow`) leads to the solution to which a start belongs: for G(x) = F(x) − x, damped
iterations of F follow it in the limit of small steps. Linearly implicit steps, (1/τ − G') Δx = G(x), follow it in few
steps and become Newton steps as τ increases (pseudo-transient continuation, Kelley and Keyes, 1998). As τ stays below
the inverse of each growth rate of the flow, they leave solutions that repel.

Equations that contain averages are solved with more and more accurate averages, until the changes of the solution show
that its errors are as small as requested (`refine_until`).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from gamp_attention._tools.progress import describe


class NonlinearSystem:
    """Equations G(x) = 0 in k unknowns, base class.

    Attributes
    ----------
    difference : step of finite differences in units of the unknowns; larger if G is not smooth.
    flat : singular value of the scaled Jacobian, relative to the largest, below which a direction is free: steps have
        no part in it. If it is 0, no direction is free.
    expands : whether Jacobians hardly take longer than residuals.
    """

    difference: float = 1e-4
    flat: float = 0.0
    expands: bool = False

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return G(x) (k,); FloatingPointError where it is undefined."""
        raise NotImplementedError

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the unit of each unknown and its equation (k,)."""
        return np.ones(len(x))

    def basis(self, x: np.ndarray) -> np.ndarray:
        """Return the unit changes of the unknowns as columns (k, k), in which steps and residuals are measured."""
        return np.diag(self.units(x))

    def jacobian(self, x: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return the Jacobian (k, k) at x; `here` is the residual at x."""
        return differences(self.residual, x, here, self.difference * self.units(x))

    def near(self, x: np.ndarray) -> "NonlinearSystem":
        """Return the equations to use near x, which may have another grid of an integral; self if it is the same."""
        return self


@dataclass(frozen=True)
class RootSettings:
    """Settings of Newton steps; lengths are in units of the unknowns."""

    max_steps: int = 40  # maximum number of steps
    max_move: float = 0.5  # largest change of an unknown in a step
    shortest: float = 1 / 64  # fraction of a step at which the Jacobian is computed again, or the steps end
    slow: float = 0.5  # ratio of successive steps above which the Jacobian is computed again
    min_update: float = 0.0  # length of a step below which changes of residuals are rounding errors
    reach: float = np.inf  # change of an unknown from the start at which the steps end
    last: float = np.inf  # largest step that may remain: close to the end of a curve, residuals are small elsewhere


@dataclass(frozen=True)
class FlowSettings:
    """Settings of the flow; lengths are in units of the unknowns."""

    first: float = 0.5  # τ of the first step
    longest: float = 0.5  # largest change of an unknown in a step
    longer: float = 3.0  # factor of τ after each step
    much_longer: float = 10.0  # the same if the error of the predicted residual is at most `exact`
    shorter: float = 0.5  # factor of τ if a step is too long, or G is undefined at its end
    shortest: float = 1e-6  # τ at which the steps end
    below_pole: float = 0.5  # largest τ times the largest growth rate
    neutral: float = 1e-5  # growth rate that counts as zero, as in free directions
    last: float = 0.05  # largest Newton step that may remain: without a solution, relative changes may be small
    # error of a predicted residual, in units of the residual before the step, from which the Jacobian is computed again
    inexact: float = 0.5
    exact: float = 0.1  # the same up to which the next step is `much_longer`
    # number of steps without a new smallest residual after which the steps end, if τ is `long` and was not reduced
    patience: int = 5
    long: float = 100.0
    at_start: float = 0.02  # residual of a start below which it counts as near a solution
    near: float = 0.05  # largest change of an unknown from such a start to this solution


DEFAULTS, FLOW = RootSettings(), FlowSettings()


class FoundRoot(NamedTuple):
    """Last point of steps toward a solution."""

    path: list[np.ndarray]  # points (k,), the start first
    residual: np.ndarray  # (k,) at the last point
    jacobian: np.ndarray | None  # (k, k) there; None if it has to be computed again
    size: float  # largest residual in its unit
    arrived: bool  # whether the last point is a solution to the requested tolerance
    failure: Exception | None = None  # error that ended the steps

    @property
    def x(self) -> np.ndarray:
        """The last point."""
        return self.path[-1]


class Refined(Protocol):
    """Solution of equations with averages of limited accuracy."""

    @property
    def relative_error(self) -> float:
        """Largest stated error in units of its number; infinite or NaN if it is unknown."""


E = TypeVar("E", bound=Refined)


def refine_until(estimates: Iterable[E], rtol: float) -> E:
    """Return the first of solutions with more and more accurate averages whose errors are within `rtol`; else the last.

    There is at least one, and the next is solved when it is needed.
    """
    for estimate in estimates:
        if estimate.relative_error <= rtol:
            break
        if np.isfinite(estimate.relative_error):
            describe(f"relative error {estimate.relative_error:.1g}, rtol = {rtol:g} (a larger rtol takes less time)")
    return estimate


def differences(
    residual: Callable[[np.ndarray], np.ndarray], x: np.ndarray, here: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Return the Jacobian at x by differences with given steps from the residual `here`; the first unknown is last.

    Differences are forward, or backward in unknowns with an undefined residual ahead.
    """
    columns = []
    for shift, step in zip(np.diag(steps)[::-1], steps[::-1], strict=True):
        try:
            columns.append((residual(x + shift) - here) / step)
        except FloatingPointError:
            columns.append((here - residual(x - shift)) / step)
    return np.stack(columns[::-1], axis=1)


def broyden_update(J: np.ndarray, step: np.ndarray, change: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return the Jacobian closest to J, in a basis with this inverse, that predicts the change by a step."""
    scaled = inverse @ step
    return J + np.outer(change - J @ step, scaled @ inverse) / (scaled @ scaled)


def solve_scaled(matrix: np.ndarray, right: np.ndarray, flat: float) -> np.ndarray:
    """Return the solution of a linear system without a part in free directions, see `NonlinearSystem`.

    Rows and columns are scaled to a largest entry of 1 before free directions are identified, because equations may
    depend much more on some unknowns than on others.
    """
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError("the Jacobian is not finite")
    if not flat:
        return np.linalg.solve(matrix, right)
    rows = 1.0 / np.maximum(np.abs(matrix).max(axis=1), flat)
    scaled = rows[:, None] * matrix
    columns = 1.0 / np.maximum(np.abs(scaled).max(axis=0), flat)
    return columns * np.linalg.lstsq(scaled * columns, rows * right, rcond=flat)[0]


def find_root(
    equations: NonlinearSystem, x: np.ndarray, tol: float, settings: RootSettings = DEFAULTS,
    jacobian: np.ndarray | None = None,
) -> FoundRoot:  # fmt: skip
    """Take Newton steps from a start x until the largest residual is at most `tol`, in units of the start.

    A step is accepted if the next step with the same Jacobian is shorter; unlike the norm of residuals, this test does
    not depend on their units (natural monotonicity test, Deuflhard, 2011). The steps also end if no step with a new
    Jacobian is accepted.

    Raises
    ------
    FloatingPointError, LinAlgError : if the residual at the start, or the Jacobian, is not defined.
    """
    path, J, is_new = [x], jacobian, False
    near = equations.near(x)
    here, basis = near.residual(x), equations.basis(x)
    inverse = np.linalg.inv(basis)

    def step_for(residual: np.ndarray) -> np.ndarray:
        return -solve_scaled(inverse @ J @ basis, inverse @ residual, equations.flat)

    for number in range(settings.max_steps + 1):
        x, size = path[-1], float(np.abs(inverse @ here).max())
        if (other := near.near(x)) is not near:
            near, here = other, other.residual(x)
            size = float(np.abs(inverse @ here).max())
        if size <= tol and settings.last == np.inf:
            return FoundRoot(path, here, J, size, True)
        if J is None:
            J, is_new = near.jacobian(x, here), True
        step = step_for(here)
        length = float(np.abs(step).max())
        if np.abs(inverse @ (x - path[0])).max() > settings.reach:
            break
        if size <= tol and length <= settings.last:
            return FoundRoot(path, here, J, size, True)
        if number == settings.max_steps or length == 0:
            break
        longest = min(1.0, settings.max_move / length)
        t, there, ratio = longest, None, np.inf
        while t >= settings.shortest * longest:
            try:
                there = near.residual(x + t * basis @ step)
                ratio = float(np.linalg.norm(step_for(there)) / np.linalg.norm(step))
                if ratio < 1 - 0.1 * t:
                    break
            except FloatingPointError:
                pass
            there, t = None, 0.5 * t
        if there is None and is_new:
            break
        if there is not None:
            if t * length > settings.min_update:
                J = broyden_update(J, t * basis @ step, there - here, inverse)
            path.append(x + t * basis @ step)
            here, is_new = there, False
        if there is None or (ratio > settings.slow and np.abs(inverse @ there).max() > tol):
            J = None
    return FoundRoot(path, here, J, size, False)


def follow_flow(
    equations: NonlinearSystem, start: np.ndarray, tol: float, max_iter: int, continued: bool = False
) -> FoundRoot:
    """Follow the flow from a start until the largest residual is at most `tol`, in units of the last point.

    A start that hardly moves is near a solution, which Newton steps solve even if it repels; but not if the start is
    the end of an earlier flow (`continued`), whose steps are long from the beginning. From other starts the first step
    is explicit, without a Jacobian, unless the residual changes by more than its size. The flow ends at noise of the
    residual as well, where Newton steps do not reduce it. If the residual is undefined at the start or at the end of
    the shortest step, or the Jacobian is not finite, the flow ends with a `failure`.
    """
    path, here, arrived, failure = [start], np.full(len(start), np.nan), False, None
    explicit = known = not continued  # whether the next step is explicit, and J is known: as zero for an explicit step
    J, is_new, size, smallest, n_idle = np.zeros((len(start), len(start))), False, np.inf, np.inf, 0
    tau, shortened = FLOW.long if continued else FLOW.first, False
    try:
        here = equations.residual(start)
        if not continued and np.abs(np.linalg.solve(equations.basis(start), here)).max() < FLOW.at_start:
            with suppress(ArithmeticError, np.linalg.LinAlgError):
                near = find_root(equations, start, tol, RootSettings(reach=FLOW.near, last=FLOW.last))
                if near.arrived:
                    return near
        while True:
            x, basis = path[-1], equations.basis(path[-1])
            equations, inverse = equations.near(x), np.linalg.inv(basis)
            size = float(np.abs(inverse @ here).max())
            describe(f"change {size:.1g} in a step")
            while True:  # a second time with a new Jacobian if the point seems to be a solution
                if not explicit and (not known or (equations.expands and not is_new)):
                    J, known, is_new = equations.jacobian(x, here), True, True
                scaled = inverse @ J @ basis
                growth = float(np.linalg.eigvals(scaled).real.max())
                arrived = False
                if size <= tol and growth <= FLOW.neutral:
                    with suppress(np.linalg.LinAlgError):  # singular if there is no isolated solution
                        remaining = solve_scaled(scaled, inverse @ here, equations.flat)
                        arrived = bool(np.abs(remaining).max() <= FLOW.last)
                if is_new or not arrived:
                    break
                explicit = known = False
            n_idle = 0 if size < smallest or tau < FLOW.long or shortened else n_idle + 1
            smallest = min(smallest, size)
            if arrived or size == 0 or len(path) > max_iter or n_idle == FLOW.patience:
                break
            if growth > FLOW.neutral:
                tau = min(tau, FLOW.below_pole / growth)
            longest = tau
            step, there, tau = _implicit_step(equations, x, basis, inverse @ here, scaled, tau)
            shortened = tau < longest
            change = inverse @ (there - here)
            missed, length = float(np.linalg.norm(change - scaled @ step)), float(np.linalg.norm(inverse @ here))
            if explicit and missed > length:
                explicit = known = False
                continue
            known, explicit = not explicit and missed <= FLOW.inexact * length, False
            J = broyden_update(J, basis @ step, there - here, inverse)
            path.append(x + basis @ step)
            longer = FLOW.much_longer if missed <= FLOW.exact * length else FLOW.longer
            here, is_new, tau = there, False, min(longer * tau, 1 / FLOW.shortest)
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        failure = error
    return FoundRoot(path, here, J if known else None, size, arrived, failure)


def _implicit_step(
    equations: NonlinearSystem, x: np.ndarray, basis: np.ndarray, right: np.ndarray, scaled: np.ndarray, tau: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a step in units, the residual at its end and its τ, at most the given one.

    `right` and `scaled` are the residual and the Jacobian at x, in the unit changes `basis`.
    """
    if not np.isfinite(right).all():
        raise FloatingPointError("the residual is not finite")
    while True:
        step = np.linalg.solve(np.eye(len(x)) / tau - scaled, right)
        move = basis @ step
        if np.abs(move / equations.units(x)).max() <= FLOW.longest:
            try:
                return step, equations.residual(x + move), tau
            except FloatingPointError:
                if tau < FLOW.shortest:
                    raise
        tau *= FLOW.shorter
