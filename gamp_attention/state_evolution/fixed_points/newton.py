"""Steps towards fixed points of the overlap map: plain damped ones, and guarded quasi-Newton ones.

Overlaps that go to zero: a family, m or θ, fades; weights vanish, and q with them, in units of the teacher's ρ.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.denoisers.newton import NotPositiveDefinite
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.units import Packing, in_units, is_feasible, relative_change, units
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, WeightsVanished, damped
from gamp_attention.state_evolution.rules.lines import WorkExceeded


@dataclass(frozen=True)
class VanishingSettings:
    """What is small, and what goes to zero. Families are in units of √q, q in units of ρ."""

    faded: float = 1e-3  # a family below this is gone: no branch has one so small, but next to its end
    surely: float = 0.2  # a family that falls and is below this fades
    perhaps: float = 0.7  # one that falls and is below this fades if its rate of decay is steady
    steady: float = 0.7  # share of a rate that is left; less where the decay is to another size than zero
    kept: float = 0.5  # share of its largest size that a family still has on its branch
    min_path: int = 5  # overlaps that tell a rate
    tiny: float = 1e-3  # q below which weights may be vanishing
    zero: float = 1e-8  # q that stands for zero: the map is linear there
    max_steps: int = 40  # damped steps at zero; the shape of the overlaps settles in a few
    settled: float = 1e-4  # change of the overlaps under which they end
    repels: float = 10.0  # growth at which they end too


VANISHING = VanishingSettings()


def family_size(overlaps: Overlaps, family: str) -> float:
    """The largest entry of m or θ, in units of √q."""
    return float(np.abs(overlaps.arrays()[family]).max() / units(overlaps)[family])


def fading_families(path: list[Overlaps]) -> list[str]:
    """Families that fell along the whole path, to a small size or as if to zero, and are not zero by symmetry."""
    found = []
    for family in ("m", "theta"):
        size = np.array([family_size(x, family) for x in path])
        if len(size) < VANISHING.min_path or not 0 < size[-1] < VANISHING.perhaps or (np.diff(size) >= 0).any():
            continue
        rate = -np.diff(np.log(size))
        if size[-1] < VANISHING.surely or rate[-1] > VANISHING.steady * rate[len(rate) // 2]:
            found.append(family)
    return found


def last_with(path: list[Overlaps], family: str) -> Overlaps:
    """The last overlaps of a path in which a family is at least half as large as it once was."""
    size = np.array([family_size(x, family) for x in path])
    return path[int(np.flatnonzero(size >= VANISHING.kept * size.max())[-1])]


def has_faded(overlaps: Overlaps, family: str) -> bool:
    """Whether a family is as good as zero."""
    return bool(np.abs(overlaps.arrays()[family]).max() < VANISHING.faded * units(overlaps)[family])


def weights_are_tiny(model: Model, overlaps: Overlaps) -> bool:
    """Whether q is so small that it may change much in its own units, and yet stay where it is."""
    return bool(0 < np.abs(overlaps.q).max() < VANISHING.tiny * np.abs(model.coordinates.rho).max())


def weights_shrink(model: Model, old: Overlaps, new: Overlaps) -> bool:
    """Whether weights are tiny and become smaller, as where they vanish."""
    return weights_are_tiny(model, old) and bool(np.abs(new.q).max() < np.abs(old.q).max())


def zero_weights(F: OverlapMap, overlaps: Overlaps) -> tuple[Overlaps, float]:
    """Where damped steps from given overlaps lead while q is held at zero, and the growth of q there in a full step."""
    x, growth = _scaled_to_zero(F.model, overlaps), np.inf
    for _ in range(VANISHING.max_steps):
        after = F(x)
        growth = float(np.abs(after.q).max() / np.abs(x.q).max())
        new = _scaled_to_zero(F.model, damped(x, after))
        change = relative_change(x, new)
        x = new
        if change < VANISHING.settled or growth > VANISHING.repels:
            break
    return x, growth


def vanishing_weights(F: OverlapMap, overlaps: Overlaps) -> Overlaps | None:
    """What stands for zero weights, if damped steps from given overlaps lead there; else None."""
    after = F(overlaps)
    if not weights_shrink(F.model, overlaps, after):
        return None
    zero, growth = zero_weights(F, overlaps)
    rate = np.log(np.abs(after.q).max() / np.abs(overlaps.q).max())
    return zero if growth < 1 and rate < VANISHING.steady * np.log(growth) else None


def _scaled_to_zero(model: Model, overlaps: Overlaps) -> Overlaps:
    share = VANISHING.zero * np.abs(model.coordinates.rho).max() / np.abs(overlaps.q).max()
    root = np.sqrt(share)
    return Overlaps(share * overlaps.q, root * overlaps.m, root * overlaps.theta, overlaps.V)


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
