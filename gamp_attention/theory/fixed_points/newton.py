"""Newton steps to fixed points of the overlap map, and overlaps that go to zero on the way.

Newton steps (`newton`) solve F(x) = x for the packed overlaps (`OverlapSystem`). Directions that a symmetry leaves
free, such as a common rotation of the columns, are left out of the steps.

Overlaps that go to zero have no scale: a family, m or θ, fades while the weights remain; or all weights vanish, and q
with them. Sizes of families are in units of √q, and sizes of q are in units of the teacher's ρ.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gamp_attention._tools.roots import FoundRoot, NonlinearSystem, RootSettings, find_root, solve_scaled
from gamp_attention.problem.denoisers.newton import NotPositiveDefinite
from gamp_attention.results import Overlaps, Status
from gamp_attention.theory.equations.units import Packing, is_feasible, units
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.rule import WorkExceeded


class TeacherRecovered(ArithmeticError):
    """Error raised if V and the part of q that the teacher does not explain go to zero."""


# status and cause of exceptions that stop a solver; the cause is empty if the status says it
_CAUSES: dict[type[Exception], tuple[Status, str]] = {
    TeacherRecovered: (Status.INACCURATE, "closer to perfect recovery than rounding allows: V and test error go to 0"),
    WeightsVanished: (Status.LOST, ""),
    WorkExceeded: (Status.MAX_ITER, ""),
    NotPositiveDefinite: (
        Status.NONFINITE,
        "V is not positive definite in a step: λ + A is not positive definite at the averages (use a larger λ, or "
        'response="derivative"), or the samples determine a combination of columns exactly (use fewer columns)',
    ),
}
BREAKDOWNS: tuple[type[Exception], ...] = (*_CAUSES, np.linalg.LinAlgError, FloatingPointError)


NEWTON = RootSettings(max_steps=12, max_move=0.3, shortest=0.05, slow=0.3, min_update=1e-8, last=0.05)
NOISY = replace(NEWTON, min_update=5e-3)  # if the map jumps at single points, which is noise on this scale


@dataclass(frozen=True)
class SizeSettings:
    """Sizes of overlaps that go to zero."""

    faded: float = 1e-3  # size of a family that counts as zero: only close to its end a branch has smaller sizes
    present: float = 0.5  # size of a family relative to its largest size, at which a path is still on its branch
    tiny_weights: float = 1e-3  # size of q below which weights may be vanishing
    zero_weights: float = 1e-16  # factor of q of weights that stand for zero
    steady: float = 0.7  # smallest ratio of two rates of a steady decay; rates fall on the way to a size > 0


SIZES = SizeSettings()


class OverlapSystem(NonlinearSystem):
    """Equations F(x) − x = 0 of an overlap map with choices, in packed overlaps.

    Attributes
    ----------
    slopes : (2, L, r, r, k) derivatives of V̂ from the last Jacobian; None if there was none.
    slack : see `is_feasible`.
    """

    flat, slack = 1e-5, 1e-4

    def __init__(self, F: OverlapMap, packing: Packing, slopes: np.ndarray | None = None) -> None:
        self.F, self.packing, self.slopes, self.expands = F, packing, slopes, F.rule.expands

    def packing_at(self, x: np.ndarray) -> Packing:
        """Return the packing with units at x."""
        return replace(self.packing, like=self.packing.unpack(x))

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the unit of each overlap, in units of the packing."""
        return self.packing_at(x).sizes / self.packing.sizes

    def basis(self, x: np.ndarray) -> np.ndarray:
        """Return unit changes of the overlaps as columns, see `Packing.basis`."""
        at = self.packing.unpack(x)
        return self.packing.basis(self.F.model, at, self.F)

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return the change of the overlaps in a full step; FloatingPointError if they are infeasible."""
        there = self.packing.unpack(x)
        if not is_feasible(self.F.model, there, self.slack):
            raise FloatingPointError("V is not positive definite, or q is smaller than the teacher explains, in a step")
        return self.packing.pack(self.F(there)) - x

    def jacobian(self, x: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return the Jacobian of the change, by differences in units at x, and keep the slopes of V̂."""
        packing, unit = self.packing_at(x), self.units(x)
        J, slopes = self.F.linearize(packing, packing.like)
        self.slopes = slopes / unit
        return J * (unit[:, None] / unit) - np.eye(len(x))


@dataclass(frozen=True)
class Root:
    """Last point of an iteration of the map, which is a fixed point if `status` is converged."""

    status: Status  # state of the iteration
    path: list[Overlaps]  # all overlaps visited, the start first
    # largest relative change of an overlap in a full step from the last overlaps; NaN if the map broke down
    residual: float
    packing: Packing  # free overlaps as a vector
    jacobian: np.ndarray | None  # (k, k) of the map in the packed overlaps; None if the map broke down
    F: OverlapMap  # the map, with choices
    # (2, L, r, r, k) derivatives of V̂ from the last finite differences; None if there were none
    response_slopes: np.ndarray | None = None
    reason: str = ""  # cause of a breakdown in words; empty if the map did not break down

    @property
    def overlaps(self) -> Overlaps:
        """The last overlaps."""
        return self.path[-1]

    @cached_property
    def basis(self) -> np.ndarray:
        """Unit changes of the last overlaps as columns, see `Packing.basis`."""
        return self.packing.basis(self.F.model, self.overlaps, self.F)

    def step(self, residual: np.ndarray) -> np.ndarray:
        """Return the Newton step from the last overlaps for a residual F(x) − x there; zero in free directions."""
        assert self.jacobian is not None
        inverse = np.linalg.inv(self.basis)
        matrix = np.eye(len(residual)) - inverse @ self.jacobian @ self.basis
        return np.asarray(self.basis @ solve_scaled(matrix, inverse @ residual, OverlapSystem.flat))

    def attracts(self, margin: float) -> bool:
        """Return whether damped steps return to the fixed point: all eigenvalues of J have real parts < 1 − margin."""
        assert self.jacobian is not None
        return bool(np.linalg.eigvals(self.jacobian).real.max() < 1 - margin)


def breakdown(error: Exception) -> tuple[Status, str]:
    """Return the status of a solver that was stopped by one of BREAKDOWNS, and the cause in words."""
    return _CAUSES.get(type(error), (Status.NONFINITE, f"an average or a matrix is not finite in a step ({error})"))


def stopped_root(F: OverlapMap, path: list[Overlaps], error: Exception) -> Root:
    """Return the root at the end of a path on which the map broke down; at tiny overlaps if all weights vanished."""
    status, reason = breakdown(error)
    if status is Status.LOST and not weights_are_tiny(F.model, path[-1]):
        path = [*path, _scaled(path[-1], SIZES.zero_weights)]
    return Root(status, path, np.nan, Packing.of(F.model, path[-1]), None, F, reason=reason)


def family_size(overlaps: Overlaps, family: str) -> float:
    """Return the largest absolute entry of m or θ, in units of √q."""
    return float(np.abs(overlaps.arrays()[family]).max() / units(overlaps)[family])


def last_with(path: list[Overlaps], family: str) -> Overlaps:
    """Return the last overlaps of a path in which a family is at least half as large as its maximum on the path."""
    size = np.array([family_size(overlaps, family) for overlaps in path])
    return path[int(np.flatnonzero(size >= SIZES.present * size.max())[-1])]


def weights_are_tiny(model: Model, overlaps: Overlaps) -> bool:
    """Return whether q is so small that it can change by a large factor although the step is small."""
    return bool(0 < np.abs(overlaps.q).max() < SIZES.tiny_weights * np.abs(model.coordinates.rho).max())


def weights_decay(F: OverlapMap, overlaps: Overlaps) -> bool:
    """Return whether tiny weights decrease about as fast as much smaller weights of the same shape."""
    if not weights_are_tiny(F.model, overlaps):
        return False
    points = (overlaps, _scaled(overlaps, SIZES.zero_weights))
    here, at_zero = (float(np.log(np.abs(F(x).q).max() / np.abs(x.q).max())) for x in points)
    return here < SIZES.steady * at_zero < 0


def _scaled(overlaps: Overlaps, factor: float) -> Overlaps:
    """Return the overlaps of the same weights after q is scaled by a factor."""
    root = np.sqrt(factor)
    return Overlaps(factor * overlaps.q, root * overlaps.m, root * overlaps.theta, overlaps.V)


def newton(
    F: OverlapMap,
    start: Overlaps,
    tol: float,
    n_steps: int = NEWTON.max_steps,
    jacobian: np.ndarray | None = None,
    packing: Packing | None = None,
    reach: float = np.inf,
    response_slopes: np.ndarray | None = None,
) -> Root:
    """Solve F(x) = x by guarded Newton steps.

    Parameters
    ----------
    F : the map. If it has no choices, they are made at the start.
    start : overlaps of the first step.
    tol : residual F(x) − x, in units of the start, at which the status is CONVERGED if the next step is small as well.
    n_steps : maximum number of steps.
    jacobian, response_slopes : estimates of the Jacobian and of the slopes of V̂ at the start; by finite differences
        if no Jacobian is given.
    packing : free overlaps and their units; from the start by default.
    reach : relative change of the overlaps from the start at which the status is STALLED. It is STALLED as well if no
        step with a new Jacobian reduces the residual, or after `n_steps`.
    """
    F, packing = F.with_choices_at(start), packing or Packing.of(F.model, start)
    equations = OverlapSystem(F, packing, response_slopes)
    settings = replace(NOISY if F.is_noisy else NEWTON, max_steps=n_steps, reach=reach)
    known = None if jacobian is None else jacobian - np.eye(len(jacobian))
    found = find_root(equations, packing.pack(start), tol, settings, known)
    return root_of(equations, found, packing)


def root_of(equations: OverlapSystem, found: FoundRoot, packing: Packing) -> Root:
    """Return the last point of steps as overlaps, with derivatives in the units of a packing of the same overlaps."""
    J, F = found.jacobian, equations.F
    J = equations.jacobian(found.x, found.residual) if J is None else J
    unit = packing.sizes / equations.packing.sizes
    slopes = None if equations.slopes is None else equations.slopes * unit
    status = Status.CONVERGED if found.arrived else Status.STALLED
    path = [equations.packing.unpack(x) for x in found.path]
    return Root(status, path, found.size, packing, J * (unit / unit[:, None]) + np.eye(len(J)), F, slopes)
