"""Steps towards fixed points of the overlap map: plain damped ones, and guarded quasi-Newton ones."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.denoisers.newton import NotPositiveDefinite
from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.units import Packing, in_units, is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, WeightsVanished, damped
from gamp_attention.state_evolution.fixed_points.vanishing import weights_shrink
from gamp_attention.state_evolution.rules.lines import WorkExceeded

DRIFTS = 0.9  # cosine of the angle between two moves above which damped steps drift rather than overshoot
DRIFTING = 3  # such moves in a row after which the steps are doubled, if they were halved before
BREAKDOWNS = (NotPositiveDefinite, np.linalg.LinAlgError, FloatingPointError, WeightsVanished, WorkExceeded)


@dataclass(frozen=True)
class BroydenSettings:
    """Settings of the quasi-Newton steps, in units of the overlaps."""

    difference: float = 5e-3  # of finite differences: averages are rougher than 1e-4 on coarse rules
    max_step: float = 0.3  # beyond, the Jacobian says little
    shares: tuple[float, ...] = (1.0, 0.5, 0.2, 0.05)  # of a step, tried in turn
    decrease: float = 0.1  # of the residual that is asked of a full step
    slow: float = 0.3  # a residual that is left larger than this share asks for a new Jacobian
    flat: float = 1e-5  # singular values of 1 − J below are flat directions, as a common rotation of the columns is
    max_steps: int = 12  # a few suffice near a fixed point
    good_enough: float = 5.0  # residual in units of the tolerance: cuts that move make small steps, which stop Newton


BROYDEN = BroydenSettings()


@dataclass(frozen=True)
class Root:
    """Where the iteration of a map ended."""

    status: Status
    path: list[Overlaps]  # visited
    residual: float  # largest relative change of an overlap in a full step; NaN where the map broke down
    packing: Packing
    jacobian: np.ndarray | None  # of the map, in the packed overlaps
    F: OverlapMap

    @property
    def overlaps(self) -> Overlaps:
        """The last overlaps."""
        return self.path[-1]

    def solves(self, tol: float) -> bool:
        """Whether the residual is within a tolerance, or as near as Newton steps can come."""
        return self.residual <= BROYDEN.good_enough * tol


def breakdown(error: Exception) -> Status:
    """The status of a solver that one of BREAKDOWNS stopped."""
    if isinstance(error, WeightsVanished):
        return Status.LOST
    return Status.MAX_ITER if isinstance(error, WorkExceeded) else Status.NONFINITE


def iterate(F: OverlapMap, start: Overlaps, tol: float, n_steps: int) -> tuple[list[Overlaps], float]:
    """Take plain damped steps until a full step changes no overlap by more than tol; return the path and that change.

    Steps are halved, down to 1/64, if the change grows and has another direction than before: then they overshoot.
    After a few changes in one direction they are doubled again. A change that grows in its own direction leaves the
    neighbourhood of a fixed point or of a fold, and shorter steps would only take longer. Steps are not halved either
    where weights vanish, as the change of their size never falls.
    """
    path, slower, last, drifting = [start], 1.0, (np.inf, np.zeros(0)), 0
    while True:
        here = path[-1]
        after = F(here)
        change = relative_change(here, after)
        if not change > tol or len(path) > n_steps:
            return path, change
        move = in_units(here, after)
        drifting = drifting + 1 if len(path) > 1 and _is_along(move, last[1]) else 0
        if change > last[0] and not drifting and not weights_shrink(F.model, here, after):
            slower = max(0.5 * slower, 1 / 64)
        elif drifting > DRIFTING:
            slower, drifting = min(2 * slower, 1.0), 0
        last = change, move
        path.append(damped(here, after, slower))


def _is_along(move: np.ndarray, last: np.ndarray) -> bool:
    """Return whether two moves have about the same direction."""
    return bool(move @ last > DRIFTS * np.linalg.norm(move) * np.linalg.norm(last))


def newton_step(jacobian: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """The step from x to the fixed point, to first order in the residual F(x) − x."""
    return np.linalg.lstsq(np.eye(len(rest)) - jacobian, rest, rcond=BROYDEN.flat)[0]


def newton(
    F: OverlapMap,
    start: Overlaps,
    tol: float,
    n_steps: int = BROYDEN.max_steps,
    jacobian: np.ndarray | None = None,
    packing: Packing | None = None,
    reach: float = np.inf,
) -> Root:
    """Guarded Newton steps with Broyden updates of a Jacobian.

    Ends STALLED where no step reduces the residual, or one with a new Jacobian hardly does and it is good enough; or
    where the overlaps have changed by more than `reach`, relatively.
    """
    packing = packing or Packing.of(F.model, start)
    x, J = packing.pack(start), jacobian
    fresh = J is None
    path, rest = [start], packing.pack(F(start)) - x
    if J is None:
        J = F.jacobian(packing, start, BROYDEN.difference)
    for _ in range(n_steps):
        size = float(np.abs(rest).max())
        if size <= tol:
            return Root(Status.CONVERGED, path, size, packing, J, F)
        step = newton_step(J, rest)
        step *= min(1.0, BROYDEN.max_step / np.abs(step).max())
        found = _reduced(F, packing, x, rest, step)
        if found is None:
            if fresh:
                return Root(Status.STALLED, path, size, packing, J, F)
            J, fresh = F.jacobian(packing, path[-1], BROYDEN.difference), True
            continue
        moved, there, after = found
        error = (rest - after) - (moved - J @ moved)  # of (1 − J) moved
        J, was_fresh, fresh = J - np.outer(error, moved) / (moved @ moved), fresh, False
        x, rest = x + moved, after
        path.append(there)
        if relative_change(start, there) > reach:
            return Root(Status.STALLED, path, float(np.abs(rest).max()), packing, J, F)
        left = float(np.abs(rest).max())
        if max(BROYDEN.slow * size, tol) < left:
            if was_fresh and len(path) > 2 and left <= BROYDEN.good_enough * tol:  # cuts move under each Jacobian
                return Root(Status.STALLED, path, left, packing, J, F)
            J, fresh = F.jacobian(packing, there, BROYDEN.difference), True
    return Root(Status.MAX_ITER, path, float(np.abs(rest).max()), packing, J, F)


def _reduced(
    F: OverlapMap, packing: Packing, x: np.ndarray, rest: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, Overlaps, np.ndarray] | None:
    """The first share of a step that reduces the residual: as a vector, where it leads, and the residual there."""
    for share in BROYDEN.shares:
        moved = share * step
        there = packing.unpack(x + moved)
        if not is_feasible(F.model, there):
            continue
        after = packing.pack(F(there)) - x - moved
        if np.linalg.norm(after) < (1 - BROYDEN.decrease * share) * np.linalg.norm(rest):
            return moved, there, after
    return None
