"""Fixed points of the overlap map: quasi-Newton steps, never far from where plain damped steps lead."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.newton import (
    BREAKDOWNS,
    BROYDEN,
    VANISHING,
    Root,
    breakdown,
    fading_families,
    family_size,
    has_faded,
    iterate,
    newton,
    vanishing_weights,
    weights_are_tiny,
)
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.state_evolution.fixed_points.stability import family_growth


@dataclass(frozen=True)
class RootSearchSettings:
    """When answers of Newton's method are believed."""

    reach: tuple[float, float] = (0.05, 10.0)  # distance of the answer: this much, and so many last damped changes
    drift: tuple[float, float] = (30.0, 1e-6)  # from the answer by damped steps: in tolerances, or absolute if larger
    astray: float = 1.2  # units of the largest Newton step from which none comes back to a neighbour
    kept: float = 0.8  # share of m and θ left at an answer, from which on they do not fade
    as_fast: float = 0.5  # share of the rate of decay next to zero, at which a family is on its way there
    clear: float = 0.05  # distance of a growth from 1 that the first rule resolves
    max_level: int = 2  # of the split rule, up to which a growth near 1 is resolved
    newton: int = 2  # damped steps that Newton's method costs at least, in units of the number of overlaps
    min_share: float = 0.3  # of the size expected of a family, under which another fixed point was found


ROOT_SEARCH = RootSearchSettings()
SEED = 10.0  # size at which a family is tried again, in units of the size below which it counts as gone


@dataclass(frozen=True)
class Neighbour:
    """A fixed point without one family of overlaps, and how the family grows there."""

    root: Root
    growth: float  # below 1, damped steps bring the family back to zero


def fixed_point(
    F: OverlapMap, start: Overlaps, tol: float, max_iter: int, n_damped: int = 4, anywhere: bool = False
) -> Root:
    """A fixed point near where plain damped steps from `start` lead.

    There are ever more damped steps, at most max_iter, until they converge by themselves or one of three shortcuts is
    safe:

    - Where weights vanish, the status is LOST as soon as zero is seen to attract.
    - Where m or θ is as good as zero and falls, it is set to zero, and the solution without it is taken if it attracts.
    - Where m or θ fades slowly, the fixed point without it is taken as soon as that is seen to attract; if it repels,
      one between.
    - Newton's answer is taken if it lies near the damped iterate it started from, or `anywhere` if it attracts, and
      damped steps from it stay there.
    """
    path = [start]
    looked_at: dict[str, Neighbour | None] = {}
    gone: set[str] = set()
    try:
        while True:
            latest, change = iterate(F, path[-1], tol, min(n_damped, max_iter - len(path) + 1))
            path += latest[1:]
            if not tol < change < np.inf or len(path) > max_iter:
                return _ended(F, path, change, tol)
            zero = vanishing_weights(F, path[-1])
            if zero is not None:
                path.append(zero)
                raise WeightsVanished
            if ROOT_SEARCH.newton * len(Packing.of(F.model, path[-1]).pack(path[-1])) > max_iter:
                n_damped = max_iter
                continue
            family = _gone(F, path[-1], gone)
            if family is not None:
                gone.add(family)
                left = max(max_iter - len(path), 1)
                other = fixed_point(F, path[-1].without(family), tol, left, n_damped, True)
                if not other.status.converged or not _grows_back(F, other.overlaps, family, tol):
                    return replace(other, path=path + other.path)
                seed = path[-1].arrays()[family] * (SEED * VANISHING.faded / family_size(path[-1], family))
                path += [*other.path, Overlaps(**other.overlaps.arrays() | {family: seed})]
                continue
            root = _clearly_faded(F, latest, tol, looked_at)
            if root is not None:
                return replace(root, path=path + root.path)
            near = _newton_nearby(F, path[-1], tol, np.inf if anywhere else change)
            if near is None or not _keeps(path[-1], near):
                root = _without_fading(F, latest, tol, looked_at)
                if root is not None:
                    return replace(root, path=path + root.path)
            if near is not None:
                return replace(near, status=Status.CONVERGED, path=path + near.path[1:])
            n_damped = 2 * n_damped + 4
    except BREAKDOWNS as error:
        return Root(breakdown(error), path, np.nan, Packing.of(F.model, path[-1]), None, F)


def _ended(F: OverlapMap, path: list[Overlaps], change: float, tol: float) -> Root:
    """Where damped steps ended by themselves."""
    packing = Packing.of(F.model, path[-1])
    if change <= tol:
        return Root(Status.CONVERGED, path, change, packing, F.jacobian(packing, path[-1], BROYDEN.difference), F)
    return Root(Status.MAX_ITER if np.isfinite(change) else Status.NONFINITE, path, change, packing, None, F)


def _gone(F: OverlapMap, overlaps: Overlaps, known: set[str]) -> str | None:
    """Return a family, not among `known`, that is as good as zero and falls in a full step; None if there is none."""
    for family in ("m", "theta") if F.model.even else ():
        size = family_size(overlaps, family)
        if family in known or size == 0 or not has_faded(overlaps, family):
            continue
        if family_size(F(overlaps), family) < (1 - ROOT_SEARCH.clear) * size:
            return family
    return None


def _grows_back(F: OverlapMap, overlaps: Overlaps, family: str, tol: float) -> bool:
    """Return whether a small family grows at a fixed point where it is zero."""
    near = neighbour(F, overlaps, family, tol)
    return (family_growth(F, overlaps, family) if near is None else near.growth) >= 1


def _clearly_faded(
    F: OverlapMap, path: list[Overlaps], tol: float, looked_at: dict[str, Neighbour | None]
) -> Root | None:
    """The fixed point without a family that fades as fast as next to it, so that none lies between; or None."""
    for family in fading_families(path):
        here, rates = path[-1], -np.diff(np.log([family_size(x, family) for x in path]))
        now = family_size(F(here), family) / family_size(here, family)  # growth where the path ends
        if family in looked_at or now > 1 - ROOT_SEARCH.clear or rates[-1] < VANISHING.steady * rates[0]:
            continue
        near = neighbour(F, here, family, tol)
        if near is not None:
            looked_at[family] = near
            if near.growth < 1 and 1 - now > ROOT_SEARCH.as_fast * (1 - near.growth):
                return near.root
    return None


def _without_fading(
    F: OverlapMap, path: list[Overlaps], tol: float, looked_at: dict[str, Neighbour | None]
) -> Root | None:
    """The fixed point that a family fades towards along a path; None where none fades, or none is found."""
    for family in fading_families(path):
        near = looked_at[family] if family in looked_at else neighbour(F, path[-1], family, tol)
        if near is not None:
            looked_at[family] = None  # once is enough
            root = near.root if near.growth < 1 else beyond(near, path[-1], family, tol)
            if root is not None:
                return root
    return None


def _newton_nearby(F: OverlapMap, start: Overlaps, tol: float, change: float) -> Root | None:
    """Return Newton's answer from a damped iterate; None if it is not to be trusted.

    `change` is the change by the last damped step. If it is infinite, an answer that attracts is taken at any distance.
    """
    if change == np.inf:
        root = newton(F, start, tol)
        assert root.jacobian is not None
        if not (root.solves(tol) and np.linalg.eigvals(root.jacobian).real.max() < 1 - ROOT_SEARCH.clear):
            return None
    else:
        root = newton(F, start, tol, reach=ROOT_SEARCH.astray * BROYDEN.max_step)
        near, changes = ROOT_SEARCH.reach
        reach = min(BROYDEN.max_step, near + changes * change)
        if not (root.solves(tol) and relative_change(start, root.overlaps) <= reach):
            return None
    _, drift = iterate(F, root.overlaps, 0.0, 2)
    tolerances, least = ROOT_SEARCH.drift
    return root if drift <= max(tolerances * tol, least) else None


def _keeps(start: Overlaps, root: Root) -> bool:
    """Whether a fixed point clearly attracts damped steps, and m and θ are hardly smaller there than at a start."""
    assert root.jacobian is not None
    kept = all(
        family_size(root.overlaps, name) >= ROOT_SEARCH.kept * family_size(start, name) for name in ("m", "theta")
    )
    return kept and bool(np.linalg.eigvals(root.jacobian).real.max() < 1 - ROOT_SEARCH.clear)


def neighbour(F: OverlapMap, overlaps: Overlaps, family: str, tol: float) -> Neighbour | None:
    """The fixed point next to given overlaps where a family, "m" or "theta", is zero; None if there is none near.

    The rule is refined until it is clear whether the growth of the family there is above or below 1.
    """
    x = overlaps.without(family)
    last = None
    while True:
        tiny = weights_are_tiny(F.model, x)  # which may change much
        root = newton(F, x, tol, reach=np.inf if tiny else ROOT_SEARCH.astray * BROYDEN.max_step)
        near = relative_change(x, root.overlaps) <= BROYDEN.max_step or (
            tiny and weights_are_tiny(F.model, root.overlaps)
        )
        if not (near and root.status.converged):
            return None
        found = Neighbour(root, family_growth(F, root.overlaps, family))
        clear = ROOT_SEARCH.clear if last is None else abs(found.growth - last.growth)
        finer = F.finer() if F.rule.deterministic and F.rule.level < ROOT_SEARCH.max_level else None
        if abs(found.growth - 1) > clear or finer is None:
            return found
        x, last, F = root.overlaps, found, finer


def beyond(near: Neighbour, overlaps: Overlaps, family: str, tol: float) -> Root | None:
    """The fixed point that has just branched off from a neighbour, where the family is not zero; None if not found.

    A full step changes the size s of the family by (γ − 1) s − c s³, which tells the size that does not change.
    """
    F = near.root.F
    s = family_size(overlaps, family)
    c = (near.growth - family_size(F(overlaps), family) / s) / s**2
    share = np.sqrt(max(near.growth - 1, 0) / c) / s if c > 0 else 0.0
    if not 0 < share < 1:
        return None
    base, there = near.root.overlaps.arrays(), overlaps.arrays()
    even = {name: base[name] + share**2 * (there[name] - base[name]) for name in base}
    start = Overlaps(**even | {family: share * there[family]})
    if not is_feasible(F.model, start):
        return None
    root = newton(F, start, tol)
    kept = ROOT_SEARCH.min_share * share < family_size(root.overlaps, family) / s < 1
    return root if root.status.converged and kept else None
