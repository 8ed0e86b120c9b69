"""Steps towards fixed points of the overlap map: plain damped ones, and guarded quasi-Newton ones."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.gaussian import psd_root
from gamp_attention.denoisers.newton import NotPositiveDefinite
from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change, weights_fade
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.state_evolution.rules.lines import WorkExceeded

MIXING, MEAN_MIXING = 0.5, 0.2  # of plain damped steps
SLOWEST = 1 / 64  # of those steps
DIFFERENCE = 5e-3  # finite-difference step for the Jacobian, in units of the overlaps
LONGEST = 0.3  # Newton step, in the same units
FLAT = 1e-5  # singular values of 1 − J below this are flat directions, as a common rotation of the columns is
SLOW = 0.3  # a residual that falls by less asks for a new Jacobian
BREAKDOWNS = (NotPositiveDefinite, np.linalg.LinAlgError, FloatingPointError, WeightsVanished, WorkExceeded)


@dataclass(frozen=True)
class Root:
    """Where the iteration ended.

    Attributes
    ----------
    path : overlaps visited.
    residual : largest relative change of an overlap in a full step; NaN where the map broke down.
    jacobian : of the map, in the packed overlaps, or None.
    F : the map.
    """

    status: Status
    path: list[Overlaps]
    residual: float
    packing: Packing
    jacobian: np.ndarray | None
    F: OverlapMap

    @property
    def overlaps(self) -> Overlaps:
        """The last overlaps."""
        return self.path[-1]


def damped(old: Overlaps, new: Overlaps, slower: float = 1.0) -> Overlaps:
    """Average two overlaps, q by its square root, as where weights, not their squares, are averaged.

    The mean direction overshoots most, and is moved least.
    """

    def between(a: np.ndarray, b: np.ndarray, share: float = MIXING) -> np.ndarray:
        return (1 - share * slower) * a + share * slower * b

    root = between(psd_root(old.q), psd_root(new.q))
    return Overlaps(
        q=root @ root,
        m=between(old.m, new.m, MEAN_MIXING),
        theta=between(old.theta, new.theta),
        V=between(old.V, new.V),
    )


def iterate(F: OverlapMap, start: Overlaps, tol: float, n_steps: int) -> tuple[list[Overlaps], float]:
    """Plain damped steps until a full step changes no overlap by more than tol: the path, and that change.

    Steps are halved while they do not reduce the change, but not where the weights fade: their size never settles.
    """
    path, slower, last = [start], 1.0, np.inf
    while True:
        after = F(path[-1])
        change = relative_change(path[-1], after)
        if not change > tol or len(path) > n_steps:
            return path, change
        if change > last and not weights_fade(F.model, path[-1], after):
            slower = max(0.5 * slower, SLOWEST)
        last = change
        path.append(damped(path[-1], after, slower))


def newton_step(jacobian: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Where a residual F(x) − x says that the fixed point is, from x on."""
    return np.linalg.lstsq(np.eye(len(rest)) - jacobian, rest, rcond=FLAT)[0]


def newton(
    F: OverlapMap,
    start: Overlaps,
    tol: float,
    n_steps: int,
    jacobian: np.ndarray | None = None,
    packing: Packing | None = None,
) -> Root:
    """Guarded Newton steps with Broyden updates of a Jacobian; ends STALLED where no step reduces the residual."""
    packing = packing or Packing.of(F.model, start)
    x, J = packing.pack(start), jacobian
    fresh = J is None
    path, rest = [start], packing.pack(F(start)) - x
    if J is None:
        J = F.jacobian(packing, start, DIFFERENCE)
    for _ in range(n_steps):
        size = float(np.abs(rest).max())
        if size <= tol:
            return Root(Status.CONVERGED, path, size, packing, J, F)
        step = newton_step(J, rest)
        step *= min(1.0, LONGEST / np.abs(step).max())
        found = None
        for share in (1.0, 0.5, 0.2, 0.05):
            trial = packing.unpack(x + share * step)
            if not is_feasible(F.model, trial):
                continue
            after = packing.pack(F(trial)) - x - share * step
            if np.linalg.norm(after) < (1 - 0.1 * share) * np.linalg.norm(rest):
                found = share * step, trial, after
                break
        if found is None:
            if fresh:
                return Root(Status.STALLED, path, size, packing, J, F)
            J, fresh = F.jacobian(packing, path[-1], DIFFERENCE), True
            continue
        moved, trial, after = found
        slow = np.abs(after).max() > SLOW * size
        error = (rest - after) - (moved - J @ moved)  # of (1 − J) moved
        J = J - np.outer(error, moved) / (moved @ moved)
        fresh = False
        x, rest = x + moved, after
        path.append(trial)
        if slow and np.abs(rest).max() > tol:
            J, fresh = F.jacobian(packing, trial, DIFFERENCE), True
    return Root(Status.MAX_ITER, path, float(np.abs(rest).max()), packing, J, F)
