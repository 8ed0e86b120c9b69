"""Fixed points of state evolution, equations (7) to (9), from a named start or given overlaps.

`solve_state_evolution` has four stages: damped message passing from a named start leads close to the branch
(`path_from`); a search on a coarse rule finds the fixed point (`find_fixed_point`); a refinement brings all errors
within the requested accuracy (`refine`); finally the stability is computed. If the named branch has no fixed point,
`failures.py` explains why.

`nearby.py` starts from a solution at another α instead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.choices import RESPONSES
from gamp_attention._core.numerics import Stream, generator, guard_call
from gamp_attention._core.progress import describe, show_progress
from gamp_attention.models.model import Model, require_model
from gamp_attention.penalties.columns import ColumnRidge, has_spheres
from gamp_attention.results import Overlaps, Status, finish
from gamp_attention.state_evolution.dynamics.field_paths import min_paths
from gamp_attention.state_evolution.dynamics.message_paths import follow
from gamp_attention.state_evolution.dynamics.start_law import require_overlaps, start_law
from gamp_attention.state_evolution.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.state_evolution.equations.units import is_feasible, relative_change, subtract_explained
from gamp_attention.state_evolution.fixed_points.failures import (
    FAMILY_OF,
    broken_start,
    build_failed,
    describe_lost_branch,
    describe_zero,
    is_lost,
    is_off,
    record_breakdown,
)
from gamp_attention.state_evolution.fixed_points.newton import (
    BREAKDOWNS,
    Root,
)
from gamp_attention.state_evolution.fixed_points.observables import (
    stability,
)
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionResult, refine
from gamp_attention.state_evolution.fixed_points.search import find_fixed_point
from gamp_attention.state_evolution.rules.choice import COARSE, first_rule

NESTED_WORK = 3e6  # default budget of the nested rule: proximal problems an average
SPLIT_WORK, RANDOM_WORK = 1e8, 1e7  # default budget of the split rule and of random rules: proximal problems an average
DETERMINISTIC_WORK = {"split": SPLIT_WORK, "nested": NESTED_WORK}
COARSE_WORK = 5e6  # the same for labels whose loss is not convex, if the requested error is at least `COARSE`
FINE, FINE_WORK = 2e-3, 5e7  # the same for these labels, if the requested error is smaller than `FINE`
MAX_ITER = 500  # default maximum number of damped steps of a search

# Message passing from a named start, before the search
START_STEPS = 20  # number of iterations
START_DAMPING = 0.3  # step β of an iteration
MAX_START_GROWTH = 4.0  # growth of q in these iterations, above which they are repeated without jumps in V̂
START_POINTS = 512  # number of random points of its averages, enough to come close to the right branch
# overlap θ relative to its value without jumps, below which it was lost by noise, if the value is above SMALL_THETA √q
LOST_PART, SMALL_THETA = 0.75, 0.2
EASY_ALPHA = 1.5  # sample complexity up to which this damping suffices
MAX_SLOWER = 8.0  # largest factor by which the step is divided at larger sample complexities
SAME_POINT = 3e-4  # relative change of the overlaps up to which known derivatives are those at the solution
NAMED_DAMPED = 4  # damped steps of the search before its first Newton step, after message passing
GIVEN_DAMPED = 1  # the same from given overlaps, which may be near a fixed point that repels
ABSENT = (Status.LOST, Status.NONFINITE)  # statuses after which the semantic branch is searched next to the teacher
SMALL_V = 1e-3  # largest entry of V at the start of that search, in units of the largest entry of q
MAX_UNEXPLAINED = 0.01  # part of q that the teacher does not explain after a step from there, up to which it is done


@guard_call
@show_progress("state evolution ", logs=True)
def solve_state_evolution(
    model: Model,
    alpha: float,
    init: str | Overlaps = "semantic",
    *,
    rtol: float | None = None,
    rule: str = "auto",
    response: str = "stein",
    max_iter: int = MAX_ITER,
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
    init : "semantic", "positional" or "random", followed by message passing for some iterations; or Overlaps.
    rtol : requested relative error of the overlaps, V̂ and both losses, between 1e-10 and 0.1. Units are √q for m and θ,
        and the larger of the two forms for V̂. By default 1e-4, or 2e-3 for a random rule. The jump mass, in units of
        V̂, and the replicon, whose threshold is 1, converge more slowly: √rtol and 10 √rtol are requested for them, but
        at most 0.1.
    rule : "split", a product rule that is cut where the proximal map jumps (for attention with L (r + t) ≤ 6);
        "nested", nested adaptive averages, cut there and at kinks of the labels (for labels with L = r = 1 and at most
        two numbers of the teacher, fields and noise); "sobol", random points. "auto" uses "split" for attention with
        L (r + t) ≤ 4, "nested" if it applies, and "sobol" otherwise.
    response : form of V̂. "stein" counts the jumps of the proximal map; "derivative" averages the almost-everywhere
        derivative.
    max_iter : maximum number of damped steps of the search. If it is below twice the number of overlaps, there are no
        Newton steps, because each Jacobian costs as much as that number of damped steps.
    max_work : maximum number of proximal problems of one average, at least 1e4; a problem takes 1 to 40 µs. Random
        rules take fewer points to respect it. By default 1e8 for the split rule, which needs a hundredth of it for
        `rtol` above 1e-6, 3e6 for the nested rule, and 1e7 for random rules. For labels whose loss is not convex, it is
        5e6 if `rtol` is at least 5e-3, and 5e7 if `rtol` is below 2e-3. With random rules, all averages of the
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
    searches = not model.attention and model.task.jumps  # each proximal problem of labels needs a search
    random_work = RANDOM_WORK
    if searches:
        random_work = COARSE_WORK if rtol >= COARSE else FINE_WORK if rtol < FINE else RANDOM_WORK
    max_work = max_work or (DETERMINISTIC_WORK[first.name] if first.deterministic else random_work)
    first = first_rule(rule, model, (seed,), max_work, rtol)
    check.choice("response", response, RESPONSES)
    max_iter = check.integer("max_iter", max_iter, low=1)
    check.flag("stability", stability)
    check.flag("raise_on_failure", raise_on_failure)
    describe("search for the fixed point")
    F = OverlapMap(model, alpha, first, response)
    if isinstance(init, str):
        result, last, _ = solve_branch(F, init, rtol, max_work, max_iter, seed, other_form=True)
    else:
        start = require_overlaps(model, init)
        if not is_feasible(model, start, slack=0.0):
            raise check.fail("init", init, "V_l and q_l − θ_l ρ_l⁻¹ θ_lᵀ positive definite")
        root = find_fixed_point(F, start, first.initial_tolerance, max_iter, GIVEN_DAMPED)
        result, last = refine_on_branch(root, None, rtol, max_work)
    result = _check_precision(result, model)
    if stability and last is not None:
        describe("stability")
        result = _add_stability(result, last, max_work)
    result = _mention_breaking(result, model)
    return finish(result, raise_on_failure, "solve_state_evolution")


def _check_precision(result: StateEvolutionResult, model: Model) -> StateEvolutionResult:
    """Return the result, as a failure if Λ + A is not positive definite there: the weights then have no minimum."""
    if not isinstance(model.penalty, ColumnRidge) or not np.isfinite(result.V_hat).all():
        return result
    if has_spheres(model.penalty):  # multipliers make Λ + A positive definite
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
    is_near = relative_change(last.overlaps, at) <= SAME_POINT
    if is_near and last.F.has_expansion(last.overlaps) and last.F.rule.level >= F.rule.level:
        F, at = last.F, last.overlaps  # its derivatives are known
    try:
        return replace(result, stability=stability(F, at))
    except BREAKDOWNS as error:
        return build_failed(record_breakdown(last, error), max_work)


def path_from(F: OverlapMap, name: str, seed: int) -> list[Overlaps]:
    """Return the overlaps of message passing from a named start; the last have all symmetries of the start exactly."""
    law = start_law(F.model, name)
    slower = min(max(1.0, F.alpha / EASY_ALPHA), MAX_SLOWER)  # the mean direction overshoots in proportion to α
    n_steps = int(START_STEPS * min(slower, 2))  # the cost grows with the square of the number of steps

    # long samples have more fields at all times than START_POINTS can represent
    n_paths = max(START_POINTS, 1 << (min_paths(F.model, n_steps) - 1).bit_length())

    def pass_messages(jumps: bool) -> list[Overlaps]:
        rng = generator(seed, Stream.STARTS)
        return follow(F.model, F.alpha, law, START_DAMPING / slower, n_steps, n_paths, rng, jumps=jumps)[0]

    if F.model.attention or F.model.n_tokens * F.model.rank == 1:
        path = pass_messages(jumps=True)
    else:
        # near perfect recovery of several fields, Stein's form of V̂ is too noisy on few points, and q grows
        try:
            path = pass_messages(jumps=True)
        except BREAKDOWNS:
            path = []
        sizes = [float(np.abs(overlaps.q).max()) for overlaps in path]
        if not path or not max(sizes) < MAX_START_GROWTH * sizes[0] or F.model.task.jumps:
            smooth = pass_messages(jumps=False)
            # the noise can also lead to a branch on which a column has no overlap
            kept = path and max(sizes) < MAX_START_GROWTH * sizes[0] and _keeps_columns(path[-1], smooth[-1])
            path = path if kept else smooth
    start = law.overlaps(F.model)
    end = Symmetry.of(F.model, start).impose(fix_gauge(F.model, path[-1]))
    if F.model.even:  # of two mirror images, take the image near the start
        sign = {name: np.sign(np.sum(start.arrays()[name] * end.arrays()[name])) or 1 for name in ("m", "theta")}
        end = replace(end, m=sign["m"] * end.m, theta=sign["theta"] * end.theta)
    return [*path[:-1], end]


def _keeps_columns(overlaps: Overlaps, smooth: Overlaps) -> bool:
    """Return whether no overlap θ is much smaller than in a path without jumps in V̂."""
    theta, expected = np.abs(overlaps.theta), np.abs(smooth.theta)
    present = expected > SMALL_THETA * np.sqrt(np.diagonal(smooth.q, axis1=1, axis2=2))[:, :, None]
    return bool((theta >= LOST_PART * expected)[present].all())


def find_on_branch(F: OverlapMap, branch: str, max_iter: int, seed: int = 0) -> tuple[Root, list[Overlaps]]:
    """Return the fixed point that message passing from a named start leads to, and its overlaps before the search."""
    try:
        path = path_from(F, branch, seed)
    except BREAKDOWNS as error:
        root = broken_start(F, branch, error)
        return root, root.path
    return find_fixed_point(F, path[-1], F.rule.initial_tolerance, max_iter, NAMED_DAMPED), path


def find_near_teacher(F: OverlapMap, branch: str, status: Status, max_iter: int) -> Root | None:
    """Return the fixed point next to the teacher if message passing lost the semantic branch; None if there is none.

    Message passing starts with V of weights without data, of order 1/λ. With few data its first steps then go so far
    that they miss a fixed point next to the teacher. A start at the teacher with a small V finds it. Without noise, the
    teacher explains nearly all weights after one step from there; otherwise there is no such fixed point.
    """
    if branch != "semantic" or status not in ABSENT:
        return None
    start = start_law(F.model, branch).overlaps(F.model)
    start = replace(start, V=SMALL_V * np.abs(start.q).max() / np.abs(start.V).max() * start.V)
    with suppress(*BREAKDOWNS):
        image = F(start)
        if np.abs(subtract_explained(F.model, image)).max() < MAX_UNEXPLAINED * np.abs(image.q).max():
            root = find_fixed_point(F, start, F.rule.initial_tolerance, max_iter, NAMED_DAMPED)
            return root if root.status.converged and not is_off(branch, root.overlaps) else None
    return None


def solve_branch(
    F: OverlapMap, branch: str, rtol: float, max_work: float = SPLIT_WORK, max_iter: int = MAX_ITER, seed: int = 0,
    *, other_form: bool = False,
) -> tuple[StateEvolutionResult, Root | None, Root]:  # fmt: skip
    """Solve on a named branch; return the result, and the roots on the last and on the first rule.

    If message passing loses the branch, it is solved from a start next to the teacher. For `other_form` see
    `describe_lost_branch`.
    """
    root, path = find_on_branch(F, branch, max_iter, seed)
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
        return find_fixed_point(F, init, F.rule.initial_tolerance, max_iter, GIVEN_DAMPED)
    root = find_on_branch(F, init, max_iter)[0]
    lost = root.status.converged and is_off(init, root.overlaps)
    root = replace(root, status=Status.LOST) if lost else root
    return find_near_teacher(F, init, root.status, max_iter) or root


def refine_on_branch(
    root: Root, branch: str | None, rtol: float, max_work: float = SPLIT_WORK
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
