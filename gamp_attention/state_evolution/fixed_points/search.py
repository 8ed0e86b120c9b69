"""Fixed points of the overlap map: quasi-Newton steps, never far from where plain damped steps lead."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.equations.units import Packing, is_faint, is_feasible, relative_change, units
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS, DIFFERENCE, LONGEST, Root, iterate, newton
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.state_evolution.fixed_points.vanishing import vanishing
from gamp_attention.state_evolution.rules.lines import WorkExceeded

SMALL, TINY = 0.7, 0.2  # size of m or θ, in units, under which it may be fading; or surely is while it falls
LONG = 5  # path that tells
STEADY = 0.7  # of its rate of decay that is left, where it goes to zero and not to another size
STALLED = 5  # residual, in units of the tolerance, that is good enough where Newton steps cannot reduce it
MARGIN = 0.05  # distance of a growth from 1 that the coarsest rule resolves
DECISIVE = 2  # level of the split rule up to which a growth near 1 is resolved


def fixed_point(F: OverlapMap, start: Overlaps, tol: float, max_iter: int, relax: int = 4) -> Root:
    """A fixed point near where plain damped steps from `start` lead.

    Newton's answer is taken only if it lies within reach of the damped iterate it started from, and plain damped
    steps from it stay there; otherwise there are more damped steps, until they converge by themselves. Where m or θ
    fades away slowly, the fixed point without it is taken as soon as it is seen to attract; if it repels, one between.
    Where all weights fade the status is LOST, as soon as zero is seen to attract.
    """
    path, n_steps = [start], relax
    looked_at: set[str] = set()
    try:
        while True:
            more, change = iterate(F, path[-1], tol, n_steps)
            path += more[1:]
            if not change > tol or len(path) > max_iter or not np.isfinite(change):
                status = Status.CONVERGED if change <= tol else Status.MAX_ITER
                if not np.isfinite(change):
                    status = Status.NONFINITE
                packing = Packing.of(F.model, path[-1])
                J = F.jacobian(packing, path[-1], DIFFERENCE) if status is Status.CONVERGED else None
                return Root(status, path, change, packing, J, F)
            zero = vanishing(F, path[-1])
            if zero is not None:
                path.append(zero)
                raise WeightsVanished
            for family in set(_fading(more)) - looked_at:
                near = neighbour(F, path[-1], family, tol)
                if near is not None:
                    looked_at.add(family)
                    root = near.root if near.attracts else beyond(near, path[-1], family, tol)
                    if root is not None:
                        return replace(root, path=path + root.path)
            root = newton(F, path[-1], tol, 12)
            reach = min(LONGEST, 0.05 + 10 * change)
            solved = root.status.converged or root.residual <= STALLED * tol  # cuts that move make small steps
            if solved and relative_change(path[-1], root.overlaps) <= reach:
                _, drift = iterate(F, root.overlaps, 0.0, 2)
                if drift <= max(30 * tol, 1e-6):
                    return replace(root, status=Status.CONVERGED, path=path + root.path[1:])
            n_steps = min(2 * n_steps + 4, max_iter)
    except BREAKDOWNS as error:
        return Root(breakdown(error), path, np.nan, Packing.of(F.model, path[-1]), None, F)


def breakdown(error: Exception) -> Status:
    """How a solver ends that one of BREAKDOWNS stopped."""
    if isinstance(error, WeightsVanished):
        return Status.LOST
    return Status.MAX_ITER if isinstance(error, WorkExceeded) else Status.NONFINITE


@dataclass(frozen=True)
class Neighbour:
    """A fixed point without one family of overlaps, and how the family grows there."""

    root: Root
    growth: float

    @property
    def attracts(self) -> bool:
        """Whether damped steps bring the family back to zero."""
        return self.growth < 1


def neighbour(F: OverlapMap, overlaps: Overlaps, family: str, tol: float) -> Neighbour | None:
    """The fixed point next to the given overlaps with a family, "m" or "theta", at zero; None if there is none near.

    The rule is refined until the growth of the family there is resolved from 1.
    """
    x = overlaps.without(family)
    last = None
    while True:
        root = newton(F, x, tol, 12)
        near = relative_change(x, root.overlaps) <= LONGEST or (
            is_faint(F.model, x) and is_faint(F.model, root.overlaps)
        )
        if not (near and root.status.converged):
            return None
        found = Neighbour(root, family_growth(F, root.overlaps, family))
        clear = MARGIN if last is None else abs(found.growth - last.growth)
        finer = F.finer() if F.rule.deterministic and F.rule.level < DECISIVE else None
        if abs(found.growth - 1) > clear or finer is None:
            return found
        x, last, F = root.overlaps, found, finer


def beyond(near: Neighbour, overlaps: Overlaps, family: str, tol: float) -> Root | None:
    """The fixed point with a family not zero that has just branched off from a neighbour; None if none is found.

    Along the family a full step changes its size s by (γ − 1) s − c s³, which tells the size where it changes none.
    """
    F = near.root.F
    s = _size(overlaps, family)
    c = (near.growth - _size(F(overlaps), family) / s) / s**2
    share = np.sqrt(max(near.growth - 1, 0) / c) / s if c > 0 else 0.0
    if not 0 < share < 1:
        return None
    base, there = near.root.overlaps.arrays(), overlaps.arrays()
    even = {name: base[name] + share**2 * (there[name] - base[name]) for name in base}
    start = Overlaps(**even | {family: share * there[family]})
    root = newton(F, start, tol, 12) if is_feasible(F.model, start) else None
    if root is None or not root.status.converged or not 0.3 * share < _size(root.overlaps, family) / s < 1:
        return None
    return root


def family_growth(F: OverlapMap, at: Overlaps, family: str) -> float:
    """Largest real part of the eigenvalues of the overlap map in a family that is zero; above 1, it grows.

    Only in directions that keep the reversal of tokens, where the overlaps have it.
    """
    J = F.jacobian(Packing(at, (family,), Symmetry.of(F.model, at).reversal), at, DIFFERENCE, odd=True)
    return float(np.linalg.eigvals(J).real.max())


def _fading(path: list[Overlaps]) -> list[str]:
    """Families that fell along the whole path, to something tiny or as if to zero, and are not zero by symmetry."""
    found = []
    for family in ("m", "theta"):
        size = np.array([_size(x, family) for x in path])
        if len(size) < LONG or not 0 < size[-1] < SMALL or (np.diff(size) >= 0).any():
            continue
        rate = -np.diff(np.log(size))
        if size[-1] < TINY or rate[-1] > STEADY * rate[len(rate) // 2]:
            found.append(family)
    return found


def _size(overlaps: Overlaps, family: str) -> float:
    return float(np.abs(overlaps.arrays()[family]).max() / units(overlaps)[family])
