"""Search for the fixed point that damped steps from a start lead to, without taking all of these steps.

Damped steps converge to the right fixed point but may need hundreds of steps. Newton steps need few but may end at
another fixed point: at a point that repels, or at a point without m or θ. The search (`find_fixed_point`) therefore
alternates between them. After each block of damped steps, each longer than the last, it checks in this order:

1. Damped steps have converged, or their maximum number is reached: the search ends there.
2. All weights go to zero, and zero attracts (`find_vanished_weights`): the search ends with status LOST.
3. A Jacobian costs more evaluations than all remaining damped steps: only damped steps are taken from here on.
4. m or θ is practically zero and decreases (`_find_absent_family`): it is set to zero and the remaining overlaps are
   solved. If the family does not grow back from there, this is the solution; otherwise the search continues from a
   larger value of it.
5. m or θ fades as fast as it does next to the fixed point without it (`_solve_faded`): this is the solution.
6. Newton steps from the last overlaps end close to them, and damped steps stay there (`_solve_nearby`). This is the
   solution if it attracts and has about the same m and θ as the last overlaps.
7. If it does not, m or θ may fade slowly (`_solve_fading`): the fixed point without it is the solution if it attracts;
   if it repels, the fixed point that has branched off from it is.

If a column of the student may change sign alone, as a layer of attention that enters the loss as z zᵀ, its overlaps
with the teacher can be zero by symmetry at a solution. Random points leave a small value there, whose noise is
amplified if such overlaps decay slowly. A solution with a small value is therefore replaced by the fixed point next to
it with zero, if zero attracts (`remove_columns`).
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from gamp_attention.results import Overlaps, Status
from gamp_attention.theory.equations.symmetry import Symmetry, free_columns, without_column
from gamp_attention.theory.equations.units import Packing, is_feasible, relative_change
from gamp_attention.theory.fixed_points.newton import (
    BREAKDOWNS,
    FADING,
    STEPS,
    Root,
    fading_families,
    family_size,
    find_vanished_weights,
    has_faded,
    iterate,
    newton,
    stopped_root,
    weights_are_tiny,
)
from gamp_attention.theory.fixed_points.observables import family_growth, odd_growth
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
    as_fast: float = 0.5  # smallest rate of decay, relative to the rate at zero, of a family on its way to zero
    resolved_growth: float = 0.05  # distance of a growth or an eigenvalue from 1 that the first rule resolves
    small_column: float = 0.15  # overlap of a column in units of √q, below which the fixed point without it is tried
    max_level: int = 2  # highest level of the panel rule that resolves a growth close to 1
    min_newton: int = 2  # cost of Newton's method in damped steps, in units of the number of overlaps
    min_predicted: float = 0.3  # smallest family relative to its predicted size; below, another fixed point was found
    # residual after which a fixed point of a coarser rule is solved: the refinement takes another Newton step, with the
    # exact Jacobian, before it uses it
    coarse_residual: float = 1e-3
    restart: float = 10.0  # size from which a family that grows back is solved again, in units of `faded`


SEARCH = SearchSettings()


@dataclass(frozen=True)
class Neighbor:
    """Fixed point at which m or θ is zero, and the growth of this family there by one full step."""

    root: Root
    growth: float  # below 1, damped steps return the family to zero


def find_fixed_point(
    F: OverlapMap, start: Overlaps, tol: float, max_iter: int, n_damped: int = 4, anywhere: bool = False,
) -> Root:  # fmt: skip
    """Return the fixed point to which damped steps from `start` lead, or their end if they do not converge.

    Parameters
    ----------
    F : the map. If it has no choices, they are made at the start.
    start : overlaps.
    tol : relative change of an overlap by a full step at which damped steps have converged.
    max_iter : maximum number of damped steps.
    n_damped : number of damped steps in the first block.
    anywhere : accept the solution of Newton steps at any distance from their start if it attracts.
    """
    coarse = F.rule.for_search()
    if F.choices is None and coarse is not F.rule:
        root = _find_on_coarse_rule(F, coarse, start, tol, max_iter, n_damped, anywhere)
        if root is not None:
            return root
    path = [start]
    try:
        F = F.with_choices_at(start)
        return _Search(F, tol, max_iter, anywhere, path, n_damped).run()
    except BREAKDOWNS as error:
        return stopped_root(F, path, error)


def _find_on_coarse_rule(
    F: OverlapMap, coarse: Rule, start: Overlaps, tol: float, max_iter: int, n_damped: int, anywhere: bool,
) -> Root | None:  # fmt: skip
    """Return the fixed point next to the fixed point on a coarser rule; None if the latter cannot be used.

    The latter cannot be used if it is not found, hardly attracts, or is not close to a fixed point on the rule of F.
    """
    found = find_fixed_point(F.on(coarse), start, tol, max_iter, n_damped, anywhere)
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


@dataclass
class _Search:
    """State of a search."""

    F: OverlapMap
    tol: float
    max_iter: int
    anywhere: bool
    path: list[Overlaps]  # all overlaps of damped steps
    n_damped: int  # number of damped steps in the next block
    # nearby fixed points at which a family is zero, by family; None after it has been tried as the solution
    neighbors: dict[str, Neighbor | None] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)  # families that were set to zero and grew back

    def run(self) -> Root:
        """Take blocks of damped steps until one of the checks gives the solution."""
        while True:
            n_steps = min(self.n_damped, self.max_iter - len(self.path) + 1)
            block, change = iterate(self.F, self.path[-1], self.tol, n_steps)
            self.path += block[1:]
            root = self._check(block, change)
            if root is not None:
                return self._remove_columns(root)

    def _check(self, block: list[Overlaps], change: float) -> Root | None:
        """Return the solution after a block of damped steps; None if more are needed, of which it sets the number."""
        if not self.tol < change < np.inf or len(self.path) > self.max_iter:
            return self._end(change)
        zero = find_vanished_weights(self.F, self.path[-1])
        if zero is not None:
            self.path.append(zero)
            raise WeightsVanished
        n_overlaps = len(Packing.of(self.F.model, self.path[-1]).pack(self.path[-1]))
        if SEARCH.min_newton * n_overlaps > self.max_iter:
            self.n_damped = self.max_iter
            return None
        family = self._find_absent_family()
        if family is not None:
            return self._solve_without(family)
        root = self._solve_faded(block)
        if root is not None:
            return self._prepend_path(root)
        nearby = self._solve_nearby(change)
        if nearby is None or not self._is_same_branch(nearby):
            root = self._solve_fading(block)
            if root is not None:
                return self._prepend_path(root)
        if nearby is not None:
            return replace(nearby, status=Status.CONVERGED, path=self.path + nearby.path[1:])
        self.n_damped = 2 * self.n_damped + 4
        return None

    def _remove_columns(self, root: Root) -> Root:
        """Return the fixed point without the small overlaps of columns that may change sign alone, if zero attracts."""
        here = root.overlaps
        columns = [
            a
            for a in (free_columns(self.F.model) if root.status.converged else [])
            if 0 < np.abs(here.theta[:, a]).max() < SEARCH.small_column * np.sqrt(here.q[:, a, a].max())
        ]
        found = remove_columns(root, columns, self.tol) if columns else None
        return root if found is None else replace(found[0], path=root.path + found[0].path)

    def _end(self, change: float) -> Root:
        """Return the end of damped steps that converged, are not finite, or reached their maximum number."""
        packing, last = Packing.of(self.F.model, self.path[-1]), self.path[-1]
        if change <= self.tol:
            J, slopes = self.F.linearize(packing, last)
            return Root(Status.CONVERGED, self.path, change, packing, J, self.F, slopes)
        status = Status.MAX_ITER if np.isfinite(change) else Status.NONFINITE
        return Root(status, self.path, change, packing, None, self.F)

    def _prepend_path(self, root: Root) -> Root:
        """Return a root whose path includes the damped steps that led to it."""
        return replace(root, path=self.path + root.path)

    def _find_absent_family(self) -> str | None:
        """Return a family that is practically zero and decreases in a full step; None if there is none."""
        here = self.path[-1]
        for family in ("m", "theta") if self.F.model.even else ():
            size = family_size(here, family)
            if family in self.removed or size == 0 or not has_faded(here, family):
                continue
            if family_size(self.F(here), family) < (1 - SEARCH.resolved_growth) * size:
                return family
        return None

    def _solve_without(self, family: str) -> Root | None:
        """Solve with a family set to zero; if it grows back there, continue from a larger value of it."""
        self.removed.add(family)
        here, n_left = self.path[-1], max(self.max_iter - len(self.path), 1)
        root = find_fixed_point(self.F, here.without(family), self.tol, n_left, self.n_damped, True)
        if not root.status.converged or not self._grows_back(root.overlaps, family):
            return self._prepend_path(root)
        larger = here.arrays()[family] * (SEARCH.restart * FADING.faded / family_size(here, family))
        self.path += [*root.path, Overlaps(**root.overlaps.arrays() | {family: larger})]
        return None

    def _grows_back(self, overlaps: Overlaps, family: str) -> bool:
        """Return whether a small family grows at a fixed point at which it is zero."""
        neighbor = find_neighbor(self.F, overlaps, family, self.tol)
        return (family_growth(self.F, overlaps, family) if neighbor is None else neighbor.growth) >= 1

    def _solve_faded(self, block: list[Overlaps]) -> Root | None:
        """Return the fixed point without a family, if the family fades about as fast as it does close to that point.

        At such a rate, no other fixed point lies in between. None if there is no such family.
        """
        for family in fading_families(block):
            here, rates = block[-1], -np.diff(np.log([family_size(overlaps, family) for overlaps in block]))
            growth = family_size(self.F(here), family) / family_size(here, family)
            slows_down = rates[-1] < FADING.steady * rates[0]
            if family in self.neighbors or growth > 1 - SEARCH.resolved_growth or slows_down:
                continue
            neighbor = find_neighbor(self.F, here, family, self.tol)
            if neighbor is not None:
                self.neighbors[family] = neighbor
                if neighbor.growth < 1 and 1 - growth > SEARCH.as_fast * (1 - neighbor.growth):
                    return neighbor.root
        return None

    def _solve_fading(self, block: list[Overlaps]) -> Root | None:
        """Return the fixed point without a fading family; if it grows there, the fixed point that branched off."""
        for family in fading_families(block):
            if family in self.neighbors:
                neighbor = self.neighbors[family]
            else:
                neighbor = find_neighbor(self.F, block[-1], family, self.tol)
            if neighbor is not None:
                self.neighbors[family] = None  # a neighbor is tried only once
                if neighbor.growth < 1:
                    return neighbor.root
                root = solve_branched_off(neighbor, block[-1], family, self.tol)
                if root is not None:
                    return root
        return None

    def _solve_nearby(self, change: float) -> Root | None:
        """Return the solution of Newton steps from the last overlaps; None if it cannot be trusted.

        The solution has to be near the last overlaps, or to attract if it is accepted at any distance. In addition, two
        damped steps from it must hardly move, because Newton steps may stall at a small residual without a fixed point.
        """
        start = self.path[-1]
        root = newton(self.F, start, self.tol, reach=np.inf if self.anywhere else SEARCH.reach)
        if not root.solves(self.tol):
            return None
        if self.anywhere:
            trusted = root.attracts(SEARCH.resolved_growth)
        else:
            near = SEARCH.near + SEARCH.changes * change
            trusted = relative_change(start, root.overlaps) <= min(STEPS.max_step, near)
        if not trusted:
            return None
        _, drift = iterate(self.F, root.overlaps, 0.0, 2)
        return root if drift <= max(SEARCH.drift[0] * self.tol, SEARCH.drift[1]) else None

    def _is_same_branch(self, root: Root) -> bool:
        """Return whether a fixed point attracts, and m and θ are hardly smaller there than at the last overlaps."""
        here = self.path[-1]
        families_remain = all(
            family_size(root.overlaps, name) >= SEARCH.same_family * family_size(here, name) for name in ("m", "theta")
        )
        return families_remain and root.attracts(SEARCH.resolved_growth)


def remove_columns(root: Root, columns: list[int], tol: float) -> tuple[Root, np.ndarray] | None:
    """Return the fixed point next to a root at which columns have no overlaps, and the remaining entries.

    The columns may change sign alone, so that their overlaps with the teacher, positions and other columns are zero by
    symmetry there. The second array (k, number of remaining entries) selects the entries of the new packing from the
    k entries of the packing of the root. None if small overlaps of these columns grow.
    """
    F, packing, start = root.F, root.packing, root.overlaps
    for column in columns:
        start = without_column(start, column)
    smaller = replace(packing, absent=Symmetry.of(F.model, start).absent)
    x = smaller.pack(start)
    units = [packing.pack(smaller.unpack(x + unit)) - packing.pack(smaller.unpack(x)) for unit in np.eye(len(x))]
    remaining = np.round(np.array(units)).T  # entries have the same units in both
    odd = np.flatnonzero(~remaining.any(axis=1))
    assert root.jacobian is not None
    try:
        found = newton(F, start, tol, jacobian=remaining.T @ root.jacobian @ remaining, packing=smaller)
        if not found.status.converged or len(odd) == 0:
            return None
        growth = odd_growth(F.on(F.rule.for_stability()), packing, found.overlaps, odd)
        if abs(growth - 1) < SEARCH.resolved_growth:
            growth = odd_growth(F, packing, found.overlaps, odd)
    except BREAKDOWNS:  # there is no fixed point without these overlaps nearby
        return None
    return (found, remaining) if growth < 1 else None


def find_neighbor(F: OverlapMap, overlaps: Overlaps, family: str, tol: float) -> Neighbor | None:
    """Return the fixed point next to given overlaps at which m or θ is zero; None if there is none nearby.

    The rule is refined until it resolves whether the growth of the family there is above or below 1.
    """
    x, last = overlaps.without(family), None
    while True:
        tiny = weights_are_tiny(F.model, x)  # tiny weights may change by a large factor and stay close
        root = newton(F, x, tol, reach=np.inf if tiny else SEARCH.reach)
        is_near = relative_change(x, root.overlaps) <= STEPS.max_step
        is_near = is_near or (tiny and weights_are_tiny(F.model, root.overlaps))
        if not (is_near and root.status.converged):
            return None
        F = root.F
        neighbor = Neighbor(root, family_growth(F, root.overlaps, family))
        error = SEARCH.resolved_growth if last is None else abs(neighbor.growth - last.growth)
        finer = F.finer() if F.rule.deterministic and F.rule.level < SEARCH.max_level else None
        if abs(neighbor.growth - 1) > error or finer is None:
            return neighbor
        x, last, F = root.overlaps, neighbor, finer


def solve_branched_off(neighbor: Neighbor, overlaps: Overlaps, family: str, tol: float) -> Root | None:
    """Return the fixed point that has just branched off from a neighbor, with a small family; None if not found.

    To third order, a full step changes the size s of the family by (γ − 1) s − c s³. With c from a step at the given
    overlaps, this gives the size that does not change.
    """
    F = neighbor.root.F
    size = family_size(overlaps, family)
    c = (neighbor.growth - family_size(F(overlaps), family) / size) / size**2
    fraction = np.sqrt(max(neighbor.growth - 1, 0) / c) / size if c > 0 else 0.0
    if not 0 < fraction < 1:
        return None
    base, there = neighbor.root.overlaps.arrays(), overlaps.arrays()
    even = {name: base[name] + fraction**2 * (there[name] - base[name]) for name in base}
    start = Overlaps(**even | {family: fraction * there[family]})
    if not is_feasible(F.model, start):
        return None
    root = newton(F, start, tol)
    as_predicted = SEARCH.min_predicted * fraction < family_size(root.overlaps, family) / size < 1
    return root if root.status.converged and as_predicted else None
