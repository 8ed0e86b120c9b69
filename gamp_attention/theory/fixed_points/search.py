"""Search for the fixed point that damped steps from a start lead to, without taking all of these steps.

Damped steps converge to the right fixed point but may need hundreds of steps. Newton steps need few but may end at
another fixed point: at a point that repels, or at a point without m or θ. The search (`find_fixed_point`) therefore
alternates between them. After each block of damped steps, each longer than the last, it checks in this order:

1. Damped steps have converged, or their maximum number is reached: the search ends there.
2. All weights go to zero, and zero attracts (`find_vanished_weights`): the search ends with status LOST.
3. Newton steps from the last overlaps end close to them, and damped steps stay there (`_solve_nearby`). This is the
   solution if it attracts and has about the same m and θ as the last overlaps.
4. If it does not, m or θ may fade (`_solve_fading`): the fixed point without it is the solution if it attracts.
   Otherwise the fixed point of step 3 is the solution, if there is one.
"""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gamp_attention.results import Overlaps, Status
from gamp_attention.theory.equations.units import Packing, relative_change
from gamp_attention.theory.fixed_points.newton import (
    BREAKDOWNS,
    STEPS,
    Root,
    fading_families,
    family_size,
    find_vanished_weights,
    iterate,
    newton,
    stopped_root,
    weights_are_tiny,
)
from gamp_attention.theory.fixed_points.observables import family_growth
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.theory.rules.rule import Rule


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search for a fixed point, with lengths in units of the overlaps."""

    reach: float = 1.2 * STEPS.max_step  # relative change at which Newton steps have left the neighborhood
    # largest relative change from the start of Newton steps to their solution: `near` + `changes` times the last damped
    # change
    near: float = 0.05
    changes: float = 10.0
    # largest change by two damped steps from that solution: in units of the tolerance; absolute
    drift: tuple[float, ...] = (30.0, 1e-6)
    same_family: float = 0.8  # smallest m and θ there, relative to the start, at which neither counts as faded
    resolved_growth: float = 0.05  # distance of a growth or an eigenvalue from 1 that the first rule resolves
    max_level: int = 2  # highest level of the panel rule that resolves a growth close to 1
    min_newton: int = 2  # cost of Newton's method in damped steps, in units of the number of overlaps
    far_steps: int = 100  # maximum number of Newton steps if there is a single fixed point, however far away
    # residual after which a fixed point of a coarser rule is solved: the refinement takes another Newton step, with the
    # exact Jacobian, before it uses it
    coarse_residual: float = 1e-3


SEARCH = SearchSettings()


def find_fixed_point(F: OverlapMap, start: Overlaps, tol: float, max_iter: int, n_damped: int = 4) -> Root:
    """Return the fixed point to which damped steps from `start` lead, or their end if they do not converge.

    If the map F has no choices, they are made at the start. Damped steps, at most `max_iter` and `n_damped` in the
    first block, have converged if no overlap changes by more than `tol`, relatively, in a full step.
    """
    coarse = F.rule.for_search()
    if F.choices is None and coarse is not F.rule:
        root = _find_on_coarse_rule(F, coarse, start, tol, max_iter, n_damped)
        if root is not None:
            return root
    path = [start]
    try:
        F = F.with_choices_at(start)
        n_overlaps = len(Packing.of(F.model, start).pack(start))
        tried: set[str] = set()  # families whose fading has been checked
        while True:
            block, change = iterate(F, path[-1], tol, min(n_damped, max_iter - len(path) + 1))
            path += block[1:]
            if not tol < change < np.inf or len(path) > max_iter:
                return _end(F, path, change, tol)
            zero = find_vanished_weights(F, path[-1])
            if zero is not None:
                path.append(zero)
                raise WeightsVanished
            if SEARCH.min_newton * n_overlaps > max_iter:  # a Jacobian costs more than all damped steps
                n_damped = max_iter
                continue
            nearby = _solve_nearby(F, path[-1], change, tol)
            if nearby is None or not _is_same_branch(nearby, path[-1]):
                root = _solve_fading(F, block, tol, tried)
                if root is not None:
                    return replace(root, path=path + root.path)
            if nearby is not None:
                return replace(nearby, status=Status.CONVERGED, path=path + nearby.path[1:])
            n_damped = 2 * n_damped + 4
    except BREAKDOWNS as error:
        return stopped_root(F, path, error)


def _find_on_coarse_rule(
    F: OverlapMap, coarse: Rule, start: Overlaps, tol: float, max_iter: int, n_damped: int
) -> Root | None:
    """Return the fixed point next to the fixed point on a coarser rule; None if the latter cannot be used.

    The latter cannot be used if it is not found, hardly attracts, or is not close to a fixed point on the rule of F.
    """
    found = find_fixed_point(F.on(coarse), start, tol, max_iter, n_damped)
    if not found.status.converged or found.jacobian is None or not found.attracts(SEARCH.resolved_growth):
        return None
    if found.F.rule != coarse:  # the search has refined the rule
        return found
    with suppress(*BREAKDOWNS):
        here = F.with_choices_at(found.overlaps, squares=True)  # jump mass and replicon need them later
        exact = here.has_expansion(found.overlaps, jumps=False)  # a Jacobian then needs no other averages
        jacobian, slopes = (None, None) if exact else (found.jacobian, found.response_slopes)
        root = newton(
            here, found.overlaps, SEARCH.coarse_residual, jacobian=jacobian, packing=found.packing,
            reach=SEARCH.near, response_slopes=slopes,
        )  # fmt: skip
        if root.status.converged and root.attracts(SEARCH.resolved_growth):
            return replace(root, path=found.path + root.path[1:])
    return None


def _end(F: OverlapMap, path: list[Overlaps], change: float, tol: float) -> Root:
    """Return the end of damped steps that converged, are not finite, or reached their maximum number."""
    packing = Packing.of(F.model, path[-1])
    if change <= tol:
        J, slopes = F.linearize(packing, path[-1])
        return Root(Status.CONVERGED, path, change, packing, J, F, slopes)
    return Root(Status.MAX_ITER if np.isfinite(change) else Status.NONFINITE, path, change, packing, None, F)


def _solve_nearby(F: OverlapMap, start: Overlaps, change: float, tol: float) -> Root | None:
    """Return the solution of Newton steps from given overlaps; None if it is not near.

    In addition, two damped steps from it must hardly move, because Newton steps may stall at a small residual without a
    fixed point. `change` is the last change by a damped step.
    """
    if F.model.task.jumps:
        root = newton(F, start, tol, reach=SEARCH.reach)
        near = min(STEPS.max_step, SEARCH.near + SEARCH.changes * change)
    else:  # the loss is convex, so that there is a single fixed point
        root, near = newton(F, start, tol), np.inf
        while not root.solves(tol) and len(root.path) <= SEARCH.far_steps:  # in units of the overlaps that were reached
            further = newton(F, root.overlaps, tol)
            root = replace(further, path=root.path + further.path[1:])
            if len(further.path) == 1:
                break
    if not root.solves(tol) or relative_change(start, root.overlaps) > near:
        return None
    _, drift = iterate(F, root.overlaps, 0.0, 2)
    return root if drift <= max(SEARCH.drift[0] * tol, SEARCH.drift[1]) else None


def _is_same_branch(root: Root, here: Overlaps) -> bool:
    """Return whether a fixed point attracts, and m and θ are hardly smaller there than at given overlaps."""
    families_remain = all(
        family_size(root.overlaps, name) >= SEARCH.same_family * family_size(here, name) for name in ("m", "theta")
    )
    return families_remain and root.attracts(SEARCH.resolved_growth)


def _solve_fading(F: OverlapMap, block: list[Overlaps], tol: float, tried: set[str]) -> Root | None:
    """Return the fixed point without a family that fades along damped steps, if it attracts; each is tried once."""
    for family in fading_families(block):
        neighbor = None if family in tried else find_neighbor(F, block[-1], family, tol)
        if neighbor is not None:
            tried.add(family)
            if neighbor[1] < 1:
                return neighbor[0]
    return None


def find_neighbor(F: OverlapMap, overlaps: Overlaps, family: str, tol: float) -> tuple[Root, float] | None:
    """Return the fixed point next to given overlaps at which m or θ is zero, and the growth of this family there.

    The growth is by one full step; below 1, damped steps return the family to zero. The rule is refined until it
    resolves whether the growth is above or below 1. None if there is no such fixed point nearby.
    """
    x, last = overlaps.without(family), None
    while True:
        tiny = weights_are_tiny(F.model, x)  # tiny weights may change by a large factor and stay close
        root = newton(F, x, tol, reach=np.inf if tiny else SEARCH.reach)
        is_near = relative_change(x, root.overlaps) <= STEPS.max_step
        is_near = is_near or (tiny and weights_are_tiny(F.model, root.overlaps))
        if not (is_near and root.status.converged):
            return None
        growth = family_growth(root.F, root.overlaps, family)
        error = SEARCH.resolved_growth if last is None else abs(growth - last)
        finer = root.F.finer() if F.rule.deterministic and F.rule.level < SEARCH.max_level else None
        if abs(growth - 1) > error or finer is None:
            return root, growth
        x, last, F = root.overlaps, growth, finer
