"""Search for the fixed point of the overlap map to which a start belongs, as damped steps of message passing do.

The flow dx/dt = F(x) − x (`follow_flow`) leads there, first on a coarser rule if there is one. Three cases remain:

1. A given start that hardly changes is near a fixed point, which Newton steps solve even if it repels.
2. A family that fades, m or θ, is set to zero if zero attracts it.
3. All weights go to zero on the way: the search ends with status LOST.
"""

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gamp_attention._tools.roots import follow_flow
from gamp_attention.results import Overlaps, Status
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.equations.units import Packing, unexplained_fraction
from gamp_attention.theory.fixed_points.newton import (
    BREAKDOWNS,
    OverlapSystem,
    Root,
    TeacherRecovered,
    family_size,
    newton,
    root_of,
    stopped_root,
    weights_decay,
)
from gamp_attention.theory.fixed_points.observables import family_growth
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.theory.rules.choice import first_rule
from gamp_attention.theory.rules.rule import Rule


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search for a fixed point, with lengths in units of the overlaps."""

    near: float = 0.05  # largest relative change by Newton steps to a fixed point that is near
    margin: float = 0.05  # distance of an eigenvalue from 1 that the first rule resolves
    max_level: int = 2  # highest level of the panel rule that resolves whether a fading family grows
    acceptable: float = 5.0  # residual, in units of the tolerance, that is accepted if noise of the averages leaves it
    small: float = 0.01  # size of a family below which it counts as zero, if zero attracts it
    left: float = 0.3  # smallest unexplained fraction of q after a step, in units of this fraction before
    # unexplained fraction of q below which it goes to zero if V decreases by more than a fraction `steady` in a step
    recovered: float = 1e-11
    steady: float = 1e-3
    fading: float = 0.2  # size of a family, in units of √q, below which it may fade
    # residual after which a fixed point of a coarser rule is solved: the refinement takes another Newton step, with the
    # exact Jacobian, before it uses it
    coarse_residual: float = 1e-3


SEARCH = SearchSettings()


class _Flow(OverlapSystem):
    """Equations along the flow, on which all weights may go to zero.

    No step leaves less than `SEARCH.left` of the part of q that the teacher does not explain: averages take very long
    if it is tiny, as at the end of a step that is too long.
    """

    def near(self, x: np.ndarray) -> "_Flow":
        """Return the equations for the step from x."""
        left = SEARCH.left * unexplained_fraction(self.F.model, self.packing.unpack(x))
        self.slack = -left if left > 0 else OverlapSystem.slack
        return self

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return the change of the overlaps in a full step; an error if all weights, or their errors, go to zero."""
        change = super().residual(x)
        at = self.packing.unpack(x)
        if weights_decay(self.F, at):
            raise WeightsVanished
        if 0 < (before := unexplained_fraction(self.F.model, at)) < SEARCH.recovered:
            left, V = unexplained_fraction(self.F.model, self.F(at)), self.F(at).V.max()
            if left < before and (1 - SEARCH.steady) * at.V.max() > V:
                raise TeacherRecovered
        return change


def find_fixed_point(F: OverlapMap, start: Overlaps, max_iter: int) -> Root:
    """Return the fixed point to which the flow from `start` leads, or its end after `max_iter` steps.

    If the map F has no choices, they are made at the start. The flow ends if no overlap changes by more than the
    initial tolerance of the rule, relatively, in a full step. If panels for labels take
    too long on the way, because the proximal map jumps at many fields, it is followed with random points first.
    """
    start = Symmetry(columns=F.model.exchangeable_columns).impose(start)
    root = _follow(F, start, max_iter)
    exceeded = root.status is Status.MAX_ITER and np.isnan(root.residual)
    if exceeded and F.rule.deterministic and not F.model.attention:
        random = _follow(F.on(first_rule("sobol", F.model, (0,), F.rule.max_work)), start, max_iter)
        if random.status.converged:
            return _follow(F, random.overlaps, max_iter)
    return root


def _follow(F: OverlapMap, start: Overlaps, max_iter: int) -> Root:
    """Return the fixed point as `find_fixed_point`, on the rule of F and its coarser rule for searches only."""
    coarse, tol, path = F.rule.for_search(), F.rule.initial_tolerance, [start]
    if F.choices is None and coarse is not F.rule:
        root = _find_on_coarse_rule(F, coarse, start, max_iter)
        if root is not None:
            return root
    try:
        F = F.with_choices_at(start)
        continued = False
        while True:
            equations = _Flow(F, Packing.of(F.model, path[-1]))
            found = follow_flow(equations, equations.packing.pack(path[-1]), tol, max_iter, continued)
            path += [equations.packing.unpack(x) for x in found.path[1:]]
            if found.failure is not None:
                raise found.failure
            root, continued = root_of(equations, found, equations.packing_at(found.x)), True
            sizes = {name: family_size(path[-1], name) for name in ("m", "theta")}
            critical = root.attracts(-SEARCH.margin) and not root.attracts(SEARCH.margin)
            unclear = critical and any(0 < size < SEARCH.fading for size in sizes.values())
            finer = F.finer() if F.rule.deterministic and F.rule.level < SEARCH.max_level else None
            solved = found.arrived or found.size <= SEARCH.acceptable * tol
            faded = [name for name, size in sizes.items() if solved and 0 < size < SEARCH.small]
            faded = [name for name in faded if _fades(F, path[-1].without(name), name)]
            if (unclear or not found.arrived) and finer is not None and len(path) <= max_iter:
                F = finer.with_choices_at(path[-1])
            elif faded:
                path.append(path[-1].without(faded[0]))
            else:
                return replace(root, path=path, status=Status.CONVERGED if solved else Status.MAX_ITER)
    except BREAKDOWNS as error:
        return stopped_root(F, path, error)


def _fades(F: OverlapMap, at: Overlaps, family: str) -> bool:
    """Return whether zero is a solution for a family, as for m of an intercept it is not, and attracts it."""
    return family_size(F(at), family) == 0 and family_growth(F, at, family) < 1


def _find_on_coarse_rule(F: OverlapMap, coarse: Rule, start: Overlaps, max_iter: int) -> Root | None:
    """Return the fixed point next to the fixed point on a coarser rule; None if the latter cannot be used.

    The latter cannot be used if it is not found, hardly attracts, or is not close to a fixed point on the rule of F.
    """
    found = _follow(F.on(coarse), start, max_iter)
    if found.status is Status.INACCURATE:
        return found
    if not found.status.converged or not found.attracts(SEARCH.margin):
        return None
    with suppress(*BREAKDOWNS):
        here = F.with_choices_at(found.overlaps, squares=True)  # jump mass and replicon need them later
        exact = here.has_expansion(found.overlaps, jumps=False)  # a Jacobian then needs no other averages
        jacobian, slopes = (None, None) if exact else (found.jacobian, found.response_slopes)
        root = newton(
            here, found.overlaps, SEARCH.coarse_residual, jacobian=jacobian, packing=found.packing,
            reach=SEARCH.near, response_slopes=slopes,
        )  # fmt: skip
        if root.status.converged and root.attracts(SEARCH.margin):
            return replace(root, path=found.path + root.path[1:])
    return None
