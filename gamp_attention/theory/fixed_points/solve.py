"""Fixed points of state evolution, equations (7) to (9), from a named start or given overlaps.

`solve_state_evolution` has three stages: a search from the start on a coarse rule finds the fixed point
(`find_fixed_point`), on random rules after damped steps on few points (`take_first_steps`); a refinement brings all
errors within the requested accuracy (`refine`); finally the stability is computed. If the named branch has no fixed
point, `failures.py` explains why.

`nearby.py` starts from a solution at another α instead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import RESPONSES
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import describe, show_progress
from gamp_attention.results import Overlaps, Status, finish
from gamp_attention.theory.equations.units import is_feasible, relative_change, subtract_explained
from gamp_attention.theory.fixed_points.failures import (
    FAMILY_OF,
    build_failed,
    describe_lost_branch,
    describe_zero,
    is_lost,
    is_off,
    record_breakdown,
)
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, Root, iterate
from gamp_attention.theory.fixed_points.observables import stability
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult, refine
from gamp_attention.theory.fixed_points.search import find_fixed_point
from gamp_attention.theory.models.model import Model, require_model
from gamp_attention.theory.rules.choice import COARSE, first_rule
from gamp_attention.theory.rules.rule import Rule
from gamp_attention.theory.rules.sobol import SobolRule
from gamp_attention.theory.start_law import require_overlaps, start_law

MAX_DAMPED_STEPS = 500  # default maximum number of damped steps of a search
ABSENT = (Status.LOST, Status.NONFINITE)  # statuses after which the semantic branch is searched next to the teacher


@dataclass(frozen=True)
class WorkSettings:
    """Default budgets of an average: numbers of proximal problems."""

    attention: float = 1e8
    one_field: float = 3e6
    random: float = 1e7
    coarse: float = 5e6  # labels whose loss is not convex, if the requested error is at least `COARSE`
    fine: float = 5e7  # the same labels, if the requested error is smaller than `fine_rtol`
    fine_rtol: float = 2e-3

    def budget(self, model: Model, rule: Rule, rtol: float) -> float:
        """Return the default budget for a rule and a requested error."""
        if rule.deterministic:
            return self.attention if model.attention else self.one_field
        if model.attention or not model.task.jumps:  # each proximal problem of other labels needs a search
            return self.random
        return self.coarse if rtol >= COARSE else self.fine if rtol < self.fine_rtol else self.random


@dataclass(frozen=True)
class StartSettings:
    """Settings of the first steps of a search, and of the search next to the teacher."""

    n_steps: int = 20  # maximum number of damped steps on few random points from a named start
    n_points: int = 256  # number of these points in each of two replicas, enough to come close to the right branch
    change: float = 0.05  # relative change of the overlaps by a step at which these steps end
    max_growth: float = 4.0  # growth of q in these steps, above which they are repeated without jumps in V̂
    # overlap θ relative to its value without jumps, below which it was lost by noise, if the value is above
    # small_theta √q
    lost_part: float = 0.75
    small_theta: float = 0.2
    named_damped: int = 4  # damped steps of the search before its first Newton step, after these steps
    given_damped: int = 1  # the same from given overlaps, which may be near a fixed point that repels
    small_V: float = 1e-3  # largest entry of V at the start next to the teacher, in units of the largest entry of q
    # part of q that the teacher does not explain after a step from there, up to which the search is done
    max_unexplained: float = 0.01
    same_point: float = 3e-4  # relative change of the overlaps up to which known derivatives hold at the solution


WORK, START = WorkSettings(), StartSettings()


@guard_call
@show_progress("state evolution ")
def solve_state_evolution(
    model: Model,
    alpha: float,
    init: str | Overlaps = "semantic",
    *,
    rtol: float | None = None,
    rule: str = "auto",
    response: str = "stein",
    max_iter: int = MAX_DAMPED_STEPS,
    max_work: float | None = None,
    stability: bool = True,
    seed: int = 0,
    raise_on_failure: bool = False,
    progress: bool | None = None,
) -> StateEvolutionResult:
    """Solve state evolution, equations (7) to (9), to a requested accuracy.

    Eq. :eq:`conjugates`, :eq:`weights`, :eq:`training-loss`, :eq:`test-error`.

    State evolution predicts message passing for d → ∞ (Javanmard and Montanari, 2013). The averages over the channel
    are refined until the errors of all reported numbers are within `rtol`. Overlaps that are zero by symmetry, m or θ,
    stay exactly zero, even if the solution is unstable to them.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity n/d, > 0.
    init : "semantic", "positional" or "random"; or Overlaps.
    rtol : requested relative error of the overlaps, V̂ and both losses, between 1e-10 and 0.1. Units are √q for m and θ,
        and the larger of the two forms for V̂. By default 1e-4, or 2e-3 for a random rule. The jump mass, in units of
        V̂, and the replicon, whose threshold is 1, converge more slowly: √rtol and 10 √rtol are requested for them, but
        at most 0.1.
    rule : "panels", adaptive panels that are cut where the proximal map jumps and at kinks of labels (for attention
        with L (r + t) ≤ 6, and for labels with L = r = 1 and at most two numbers of the teacher, fields and noise);
        "sobol", random points. "auto" uses "panels" for attention with L (r + t) ≤ 4 and if it applies to labels, and
        "sobol" otherwise.
    response : form of V̂. "stein" counts the jumps of the proximal map; "derivative" averages the almost-everywhere
        derivative.
    max_iter : maximum number of damped steps of the search. If it is below twice the number of overlaps, there are no
        Newton steps, because each Jacobian costs as much as that number of damped steps.
    max_work : maximum number of proximal problems of one average, at least 1e4; a problem takes 1 to 40 µs. Random
        rules take fewer points to respect it. By default 1e8 for panels of attention, which need a hundredth of it for
        `rtol` above 1e-6, 3e6 for panels of labels, and 1e7 for random rules. For labels whose loss is not convex, it
        is 5e6 if `rtol` is at least 5e-3, and 5e7 if `rtol` is below 2e-3. With random rules, all averages of the
        refinement solve at most five times this number, so that a call ends; the clock is not used, so that results do
        not depend on it. `message` states if the budget ended the refinement.
    stability : whether to compute the stability of the solution.
    seed : seed of the random points.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.
    progress : whether to show the progress of the refinement: its accuracy, and the average that is computed. If None,
        it is shown on a terminal, after a second; elsewhere a line is printed on standard error every 20 seconds, and
        at once before a computation that is expected to take longer.

    Returns
    -------
    StateEvolutionResult
        The status is INACCURATE if the budget did not allow `rtol`, and MAX_ITER if it did not allow any solution. It
        is LOST if a named branch does not exist, that is, if θ of "semantic" or m of "positional" is zero within its
        error. Then `overlaps` are approximately the overlaps of the solution found instead, without errors and losses,
        and `replicon`, `validity` and `message` describe the point where the branch is lost. If replica symmetry is
        broken there, the branch may exist at finite d; if jumps break it, `message` also states whether
        `response="derivative"` has the branch. If all weights go to zero, the overlaps are tiny and `message` says so.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `alpha` is not positive; if `init`, `rule` or `response` is an unknown name; if the given overlaps
        are not feasible; if `rtol`, `max_iter` or `max_work` is out of range; or if `rule` does not apply to the model.
    ConvergenceError : if the result did not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> se = ga.solve_state_evolution(ga.paper_model(), alpha=1.5, rtol=1e-3)
    >>> f"{se.status.value}, q = {se.overlaps.q[0, 0, 0]:.4f}"
    'converged, q = 0.0940'
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    if max_work is not None:
        max_work = check.real("max_work", max_work, low=1e4)
    first = first_rule(rule, model, (check.integer("seed", seed, low=0),), max_work or np.inf)
    rtol = require_rtol(rtol if rtol is not None else 1e-4 if first.deterministic else 2e-3)
    max_work = max_work or WORK.budget(model, first, rtol)
    first = first_rule(rule, model, (seed,), max_work, rtol)
    check.choice("response", response, RESPONSES)
    max_iter = check.integer("max_iter", max_iter, low=1)
    check.flag("stability", stability)
    check.flag("raise_on_failure", raise_on_failure)
    describe("search for the fixed point")
    F = OverlapMap(model, alpha, first, response)
    if isinstance(init, str):
        result, last, _ = solve_branch(F, init, rtol, max_work, max_iter, other_form=True)
    else:
        start = require_overlaps(model, init)
        if not is_feasible(model, start, slack=0.0):
            raise check.fail("init", init, "V_l and q_l − θ_l ρ_l⁻¹ θ_lᵀ positive definite")
        root = find_fixed_point(F, start, first.initial_tolerance, max_iter, START.given_damped)
        result, last = refine_on_branch(root, None, rtol, max_work)
    result = _check_precision(result, model)
    if stability and last is not None:
        describe("stability")
        result = _add_stability(result, last, max_work)
    result = _mention_breaking(result, model)
    return finish(result, raise_on_failure, "solve_state_evolution")


def _check_precision(result: StateEvolutionResult, model: Model) -> StateEvolutionResult:
    """Return the result, as a failure if Λ + A is not positive definite there: the weights then have no minimum."""
    if not model.penalty.by_column or not np.isfinite(result.V_hat).all():
        return result
    A = np.einsum("kl,lab->kab", model.coordinates.gamma, result.V_hat)
    lowest = float(np.linalg.eigvalsh(A + np.diag(model.penalty.curvature)).min())
    if lowest > model.penalty.floor:
        return result
    message = f"the smallest eigenvalue of Λ + A is {lowest:.3g}: with these λ the risk has no minimum there"
    unbounded = "unknown: the risk has no lower bound, or its minimum is too flat"
    return replace(result, status=Status.DIVERGED, consistent=False, validity=unbounded, message=message)


def _mention_breaking(result: StateEvolutionResult, model: Model) -> StateEvolutionResult:
    """Return the result; if replica symmetry is broken, its `validity` mentions `solve_broken` for one column."""
    solved = result.status in (Status.CONVERGED, Status.INACCURATE) and np.isfinite(result.replicon)
    one_column = model.rank == model.teacher_rank == 1
    if result.consistent or not solved or result.response != "stein" or not one_column:
        return result
    return replace(result, validity=f"{result.validity}; solve_broken, if it accepts the model, computes the changes")


def _add_stability(result: StateEvolutionResult, last: Root, max_work: float) -> StateEvolutionResult:
    """Return the result with the stability at its overlaps; a failed result if the map breaks down there."""
    F, at = last.F.on(last.F.rule.for_stability()), result.overlaps
    is_near = relative_change(last.overlaps, at) <= START.same_point
    if is_near and last.F.has_expansion(last.overlaps) and last.F.rule.level >= F.rule.level:
        F, at = last.F, last.overlaps  # its derivatives are known
    try:
        return replace(result, stability=stability(F, at))
    except BREAKDOWNS as error:
        return build_failed(record_breakdown(last, error), max_work)


def take_first_steps(F: OverlapMap, start: Overlaps, max_steps: int) -> list[Overlaps]:
    """Return overlaps from a named start after damped steps on few random points, from which the search begins.

    Near the teacher of labels with several fields, Stein's form of V̂ is noise on few points: q can grow, and a column
    can lose its overlap. Then the steps omit the jumps of V̂.
    """
    few = F.on(SobolRule(START.n_points, 2))

    def take_steps(response: str) -> list[Overlaps]:
        G = replace(few, response=response).with_choices_at(start)
        return iterate(G, start, START.change, min(START.n_steps, max_steps))[0]

    path = [start]
    with suppress(*BREAKDOWNS):
        path = take_steps(F.response)
    if not F.model.attention and F.model.n_tokens * F.model.rank > 1:
        with suppress(*BREAKDOWNS):
            smooth = take_steps("derivative")
            grows = np.abs(path[-1].q).max() > START.max_growth * np.abs(start.q).max()
            path = path if len(path) > 1 and not grows and _keeps_columns(path[-1], smooth[-1]) else smooth
    return path


def _keeps_columns(overlaps: Overlaps, smooth: Overlaps) -> bool:
    """Return whether no overlap θ is much smaller than on a path without jumps in V̂."""
    theta, expected = np.abs(overlaps.theta), np.abs(smooth.theta)
    present = expected > START.small_theta * np.sqrt(np.diagonal(smooth.q, axis1=1, axis2=2))[:, :, None]
    return bool((theta >= START.lost_part * expected)[present].all())


def find_on_branch(F: OverlapMap, branch: str, max_iter: int) -> tuple[Root, list[Overlaps]]:
    """Return the fixed point that damped steps from a named start lead to, and the overlaps before the search.

    For labels with a deterministic rule, the search begins at the start itself, unless the map breaks down there: the
    first V are large, so that proximal maps can have more jumps than the work allows.
    """
    start = start_law(F.model, branch).overlaps(F.model)
    if F.rule.deterministic and not F.model.attention:
        root = find_fixed_point(F, start, F.rule.initial_tolerance, max_iter, START.named_damped)
        if len(root.path) > 1 or root.status.converged:
            return root, [start]
    path = take_first_steps(F, start, max_iter)
    return find_fixed_point(F, path[-1], F.rule.initial_tolerance, max_iter, START.named_damped), path


def find_near_teacher(F: OverlapMap, branch: str, status: Status, max_iter: int) -> Root | None:
    """Return the fixed point next to the teacher if damped steps lost the semantic branch; None if there is none.

    Damped steps start with V of weights without data, of order 1/λ. With few data the first steps then go so far that
    they miss a fixed point next to the teacher. A start at the teacher with a small V finds it. Without noise, the
    teacher explains nearly all weights after one step from there; otherwise there is no such fixed point.
    """
    if branch != "semantic" or status not in ABSENT:
        return None
    start = start_law(F.model, branch).overlaps(F.model)
    start = replace(start, V=START.small_V * np.abs(start.q).max() / np.abs(start.V).max() * start.V)
    with suppress(*BREAKDOWNS):
        image = F(start)
        if np.abs(subtract_explained(F.model, image)).max() < START.max_unexplained * np.abs(image.q).max():
            root = find_fixed_point(F, start, F.rule.initial_tolerance, max_iter, START.named_damped)
            return root if root.status.converged and not is_off(branch, root.overlaps) else None
    return None


def solve_branch(
    F: OverlapMap, branch: str, rtol: float, max_work: float = WORK.attention, max_iter: int = MAX_DAMPED_STEPS, *,
    other_form: bool = False,
) -> tuple[StateEvolutionResult, Root | None, Root]:  # fmt: skip
    """Solve on a named branch; return the result, and the roots on the last and on the first rule.

    If damped steps lose the branch, it is solved from a start next to the teacher. For `other_form` see
    `describe_lost_branch`.
    """
    root, path = find_on_branch(F, branch, max_iter)
    result, last = refine_on_branch(root, branch, rtol, max_work)
    near = find_near_teacher(F, branch, result.status, max_iter)
    if near is not None:
        again, last_near = refine_on_branch(near, branch, rtol, max_work)
        if last_near is not None:
            return again, last_near, near
    if is_lost(result, branch):
        result = describe_lost_branch(result, F, branch, path, other_form=other_form)
    return result, last, root


def first_root(model: Model, alpha: float, init: str | Overlaps, max_iter: int) -> Root:
    """Return the fixed point on the coarsest rule, from a name or Overlaps; LOST if the named branch does not exist."""
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if not isinstance(init, str):
        return find_fixed_point(F, init, F.rule.initial_tolerance, max_iter, START.given_damped)
    root = find_on_branch(F, init, max_iter)[0]
    lost = root.status.converged and is_off(init, root.overlaps)
    root = replace(root, status=Status.LOST) if lost else root
    return find_near_teacher(F, init, root.status, max_iter) or root


def refine_on_branch(
    root: Root, branch: str | None, rtol: float, max_work: float = WORK.attention
) -> tuple[StateEvolutionResult, Root | None]:
    """Return the refined result of a root on the first rule, and the root on the last rule; None without a solution.

    The status is LOST if the family that distinguishes the named branch is practically zero, or zero within its error.
    """
    if not root.status.converged:
        return build_failed(root, max_work), None
    try:
        if is_off(branch, root.overlaps):
            return build_failed(replace(root, status=Status.LOST), max_work), None
        describe("refinement")
        result, last = refine(root, rtol, max_work)
    except BREAKDOWNS as error:
        return build_failed(record_breakdown(root, error), max_work), None
    words = "" if branch not in FAMILY_OF else describe_zero(result, FAMILY_OF[branch])
    if is_off(branch, result.overlaps) or words:
        lost = replace(root, status=Status.LOST, path=[*root.path, result.overlaps])
        return replace(build_failed(lost, max_work), message=words), None
    return result, last


def require_rtol(rtol: Any) -> float:
    """Return a requested accuracy as a float. ValueError if it is outside [1e-10, 0.1]; rounding limits it below."""
    return check.real("rtol", rtol, low=1e-10, high=0.1)
