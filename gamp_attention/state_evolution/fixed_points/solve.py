"""Fixed points of state evolution, equations (7) to (9), from a named start, given overlaps or a solution at another α.

`solve_state_evolution` has four stages: damped message passing from a named start leads close to the branch
(`path_from`); a search on a coarse rule finds the fixed point (`find_fixed_point`); a refinement brings all errors
within the requested accuracy (`refine`); finally the stability is computed. If the named branch has no fixed point,
`describe_lost_branch` explains why.

`solve_near` starts from a solution at another α instead. Derivatives at that solution (`Derivatives`) predict the new
fixed point and its Jacobian, so that few averages are needed.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.choices import RESPONSES
from gamp_attention._core.numerics import Stream, generator, ignore_float_errors
from gamp_attention._core.progress import show_progress
from gamp_attention.losses.glm import SquaredLoss
from gamp_attention.models.model import Model, require_model
from gamp_attention.penalties.columns import ColumnRidge, has_spheres
from gamp_attention.results import Overlaps, Status, finish, stack_overlaps
from gamp_attention.state_evolution.dynamics.field_paths import min_paths
from gamp_attention.state_evolution.dynamics.message_paths import follow
from gamp_attention.state_evolution.dynamics.start_law import require_overlaps, start_law
from gamp_attention.state_evolution.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.broken import require_problem, require_steps, solve_broken
from gamp_attention.state_evolution.fixed_points.newton import (
    BREAKDOWNS,
    SMALL_FAMILY,
    Root,
    breakdown,
    describe_breakdown,
    family_size,
    has_faded,
    last_with,
    newton,
    newton_step,
)
from gamp_attention.state_evolution.fixed_points.observables import (
    NEGLIGIBLE_JUMPS,
    column_sums,
    largest_jump_fraction,
    replicon,
    stability,
)
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.points import response_slopes
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionHistory, StateEvolutionResult, refine
from gamp_attention.state_evolution.fixed_points.search import find_fixed_point
from gamp_attention.state_evolution.rules.choice import COARSE, first_rule

FAMILY_OF = {"semantic": "theta", "positional": "m"}  # family of overlaps that distinguishes a named branch
NESTED_WORK = 3e6  # default budget of the nested rule: proximal problems an average
SPLIT_WORK, RANDOM_WORK = 1e8, 1e7  # default budget of the split rule and of random rules: proximal problems an average
DETERMINISTIC_WORK = {"split": SPLIT_WORK, "nested": NESTED_WORK}
COARSE_WORK = 5e6  # the same for labels whose loss is not convex, if the requested error is at least `COARSE`
FINE, FINE_WORK = 2e-3, 5e7  # the same for these labels, if the requested error is smaller than `FINE`
MAX_ITER = 500  # default maximum number of damped steps of a search
ZERO_ERRORS = 2.0  # overlap in units of its error, below which it counts as zero
OTHER_FORM_STEPS = 12  # maximum number of damped steps to decide whether the other form of V̂ has a branch
VANISHED = "none: all weights go to zero"
GROWING_STEPS, GROWTH = 5, 2.0  # steps in which q grows, and its growth in them, that count as growth without bound

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

# Solutions close to a solution at another α
NEAR_RANGE = 0.35  # largest relative change of α over which the tangent predicts the overlaps
NEAR_STEPS = 4  # maximum number of Newton steps
NEAR_MOVE = 0.1  # largest relative change of an overlap by these steps
NEAR_MARGIN = 0.1  # smallest distance of the eigenvalues of the Jacobian from 1
NEAR_FAMILY = 0.6  # smallest m and θ relative to the known solution
NEAR_ACCURACY = 0.3  # residual on the first rule in units of the requested accuracy
# maximum number of damped steps from the known solution; beyond, the solution from a named start is faster
NEAR_ITER = 60


@ignore_float_errors
@show_progress("state evolution ")
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
    rsb: int | str = 0,
    parisi: ArrayLike | None = None,
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
        two numbers of the teacher, fields and noise); "lines", random lines that are cut at the jumps; "sobol", random
        points. "auto" uses "split" for attention with L (r + t) ≤ 4, "nested" if it applies, and "sobol" otherwise.
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
    rsb : number k of steps of replica symmetry breaking, 0 to 3, or "full" for the limit k → ∞, extrapolated from k = 1
        to 3; its status is INACCURATE if an error of the limit is above `rtol`. For k > 0 the model must have one
        column, a ridge penalty, and labels of one token or attention with two tokens of opposite positions and without
        score noise. `rule`, `response`, `max_iter`, `max_work`, `stability` and `seed` are not used.
    parisi : (k,) fixed Parisi parameters, increasing, for 1 to 3 steps. If not given, they are found such that the free
        energy is largest: the ground state.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.
    progress : whether to show the progress of the refinement: its accuracy, and the average that is computed. If None,
        it is shown on a terminal, after a second.

    Returns
    -------
    StateEvolutionResult
        With `rsb`, a `BrokenStateEvolutionResult` with the overlaps of all levels and the Parisi parameters. Its status
        is LOST if no solution with distinct levels was found, for example because replica symmetry is not broken.

        Without:
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
        are not feasible; if `rtol`, `max_iter` or `max_work` is out of range; if `rule` does not apply
        to the model; if `rsb` or `parisi` is out of range; or if replica symmetry breaking is not implemented for the
        model.
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
    steps, given = require_steps(rsb, parisi)
    if steps:
        problem = require_problem(model, alpha)
        start = start_law(model, init).overlaps(model) if isinstance(init, str) else require_overlaps(model, init)
        broken = solve_broken(model, problem, start, steps, given, rtol)
        return finish(broken, raise_on_failure, "solve_state_evolution")
    F, branch = OverlapMap(model, alpha, first, response), init if isinstance(init, str) else None
    if branch is not None:
        try:
            path, n_damped = path_from(F, branch, seed), NAMED_DAMPED
        except BREAKDOWNS as error:
            result = _build_failed(_broken_start(F, branch, error), max_work)
            return finish(result, raise_on_failure, "solve_state_evolution")
    else:
        path, n_damped = [require_overlaps(model, init)], GIVEN_DAMPED
        if not is_feasible(model, path[-1], slack=0.0):
            raise check.fail("init", init, "V_l and q_l − θ_l ρ_l⁻¹ θ_lᵀ positive definite")
    root = find_fixed_point(F, path[-1], first.initial_tolerance, max_iter, n_damped)
    result, last = refine_on_branch(root, branch, rtol, max_work)
    result = _check_precision(result, model)
    if stability and last is not None:
        result = _add_stability(result, last, max_work)
    result = _mention_breaking(result, model, alpha)
    if branch is not None and is_lost(result, branch):
        result = describe_lost_branch(result, F, branch, path, other_form=True)
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


def _mention_breaking(result: StateEvolutionResult, model: Model, alpha: float) -> StateEvolutionResult:
    """Return the result; if replica symmetry is broken and `rsb` accepts the model, its `validity` mentions `rsb`."""
    solved = result.status in (Status.CONVERGED, Status.INACCURATE) and np.isfinite(result.replicon)
    if result.consistent or not solved or result.response != "stein":
        return result
    try:
        require_problem(model, alpha)
    except (TypeError, ValueError):
        return result
    return replace(result, validity=f"{result.validity}; rsb=1 computes the changes")


def _add_stability(result: StateEvolutionResult, last: Root, max_work: float) -> StateEvolutionResult:
    """Return the result with the stability at its overlaps; a failed result if the map breaks down there."""
    F, at = last.F.on(last.F.rule.for_stability()), result.overlaps
    is_near = relative_change(last.overlaps, at) <= SAME_POINT
    if is_near and last.F.has_expansion(last.overlaps) and last.F.rule.level >= F.rule.level:
        F, at = last.F, last.overlaps  # its derivatives are known
    try:
        return replace(result, stability=stability(F, at))
    except BREAKDOWNS as error:
        return _build_failed(_record_breakdown(last, error), max_work)


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


def _record_breakdown(root: Root, error: Exception) -> Root:
    """Return the root after one of BREAKDOWNS."""
    return replace(root, status=breakdown(error), residual=np.nan, reason=describe_breakdown(error))


def _broken_start(F: OverlapMap, name: str, error: Exception) -> Root:
    """Return the root for message passing that broke down: the overlaps of the named start."""
    start = start_law(F.model, name).overlaps(F.model)
    return Root(
        breakdown(error), [start], np.nan, Packing.of(F.model, start), None, F, reason=describe_breakdown(error)
    )


def first_root(model: Model, alpha: float, init: str | Overlaps, max_iter: int) -> Root:
    """Return the fixed point on the coarsest rule, from a name or Overlaps; LOST if the named branch does not exist."""
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if not isinstance(init, str):
        return find_fixed_point(F, init, F.rule.initial_tolerance, max_iter, GIVEN_DAMPED)
    try:
        start = path_from(F, init, 0)[-1]
    except BREAKDOWNS as error:
        return _broken_start(F, init, error)
    root = find_fixed_point(F, start, F.rule.initial_tolerance, max_iter, NAMED_DAMPED)
    lost = root.status.converged and is_off(init, root.overlaps)
    return replace(root, status=Status.LOST) if lost else root


def refine_on_branch(
    root: Root, branch: str | None, rtol: float, max_work: float = SPLIT_WORK
) -> tuple[StateEvolutionResult, Root | None]:
    """Return the refined result of a root on the first rule, and the root on the last rule; None without a solution.

    The status is LOST if the family that distinguishes the named branch is practically zero, or zero within its error.
    """
    if not root.status.converged:
        return _build_failed(root, max_work), None
    try:
        if is_off(branch, root.overlaps):
            return _build_failed(replace(root, status=Status.LOST), max_work), None
        result, last = refine(root, rtol, max_work)
    except BREAKDOWNS as error:
        return _build_failed(_record_breakdown(root, error), max_work), None
    words = "" if branch not in FAMILY_OF else _describe_zero(result, FAMILY_OF[branch])
    if is_off(branch, result.overlaps) or words:
        lost = replace(root, status=Status.LOST, path=[*root.path, result.overlaps])
        return replace(_build_failed(lost, max_work), message=words), None
    return result, last


def _describe_zero(result: StateEvolutionResult, family: str) -> str:
    """Return a message if a family of overlaps is zero within its error; otherwise an empty string."""
    value, error = result.overlaps.arrays()[family], result.overlaps_error.arrays()[family]
    if (np.abs(value) > ZERO_ERRORS * error).any():
        return ""
    at = np.unravel_index(np.argmax(np.abs(value)), value.shape)
    words = f"{family} = {value[at]:.2g} is zero within its error of {error[at]:.1g} at the solution found"
    return f"{words} (a smaller rtol shows whether a smaller {family} remains)"


def is_off(branch: str | None, overlaps: Overlaps) -> bool:
    """Return whether the family that distinguishes a named branch has faded."""
    return branch in FAMILY_OF and has_faded(overlaps, FAMILY_OF[branch])


def is_lost(result: StateEvolutionResult, branch: str) -> bool:
    """Return whether a solution has lost the family that distinguishes a named branch, but not all weights."""
    return branch in FAMILY_OF and result.status is Status.LOST and result.validity != VANISHED


def describe_lost_branch(
    result: StateEvolutionResult, F: OverlapMap, branch: str, path: list[Overlaps], *, other_form: bool = False
) -> StateEvolutionResult:
    """Return a LOST result with the replicon where the branch was last seen, and a description of its end.

    `F` is the map of the search, and `path` is message passing up to the start of the search. With `other_form`, and if
    jumps break replica symmetry, the description includes whether the derivative form of V̂ has the branch.
    """
    history, family = result.history.arrays(), FAMILY_OF[branch]
    later = [Overlaps(*(history[name][k] for name in history)) for k in range(len(history["q"]))]
    there = last_with(path + later, family)
    start = Symmetry.of(F.model, start_law(F.model, branch).overlaps(F.model))
    at = start.impose(fix_gauge(F.model, there))
    message = result.message or f"damped steps lose {family}"
    try:
        hats = F.with_choices_at(path[-1]).images(at, squares=True)[0].hats  # with the choices of the search
        value = replicon(F.model, hats, F.response)
        size = np.maximum(np.abs(column_sums(hats.V)), np.abs(column_sums(hats.V_derivative)))
        jumps = largest_jump_fraction(hats.jump_mass, size)
    except BREAKDOWNS:
        words = "unknown: replica symmetry cannot be checked where the branch is lost"
        return replace(result, message=f"{message}; {words}", validity=words)
    mass = f"jump mass {float(f'{100 * jumps:.2g}'):g} % of V̂"
    message += f"; at the last overlaps with at least half of its maximum, the replicon is {value:.3g}"
    onwards = "At finite d the branch may continue, without a fixed point here: run_gamp and minimize_risk follow it"
    jumping = abs(jumps) > NEGLIGIBLE_JUMPS
    if not value < 1:
        message += f", not below 1: replica symmetry, which all of this assumes, is unstable there. {onwards}"
        words = f"inconsistent: the replicon eigenvalue {value:.3g} is not below 1 where the branch is lost ({mass})"
    elif jumping:
        message += f", and the proximal map jumps ({mass}), which replica symmetry does not describe. {onwards}"
        words = f"unknown: the proximal map jumps where the branch is lost ({mass}; replicon {value:.3g} without them)"
    else:
        message += f" and {mass}: replica symmetry is consistent, and there is no such branch for d → ∞"
        words = f"no such branch: replica symmetry is consistent where it is lost (replicon {value:.3g}, {mass})"
    if other_form and jumping and F.response == "stein":
        message += _describe_other_form(F, path[-1], family)
    return replace(result, replicon=value, message=message, validity=words)


def _describe_other_form(F: OverlapMap, start: Overlaps, family: str) -> str:
    """Return a sentence: whether the derivative form of V̂, which omits jumps, has a fixed point with the family."""
    other = OverlapMap(F.model, F.alpha, F.rule, "derivative")
    root = find_fixed_point(other, start, F.rule.initial_tolerance, OTHER_FORM_STEPS)
    option = 'response="derivative", which leaves the jumps out of V̂,'
    is_clear = family_size(root.overlaps, family) > SMALL_FAMILY  # larger than the noise of random points
    if root.status.converged and is_clear:
        size = np.abs(root.overlaps.arrays()[family]).max()
        return f". {option} has a fixed point with {family} = {size:.3g}: an approximation, as its `validity` states"
    if root.status is Status.LOST or (root.status.converged and has_faded(root.overlaps, family)):
        return f". {option} loses the branch, too"
    return f". {OTHER_FORM_STEPS} steps did not decide whether {option} has the branch"


def _build_failed(root: Root, max_work: float) -> StateEvolutionResult:
    """Return the result if the requested fixed point was not found: the last overlaps if finite, without errors."""
    undefined = Overlaps(**{name: np.full_like(values, np.nan) for name, values in root.overlaps.arrays().items()})
    of_type: dict[Any, Any] = {float: np.nan, np.ndarray: undefined.V}
    unknown = {item.name: of_type[item.type] for item in fields(StateEvolutionResult) if item.type in of_type}
    validity, message = _explain_failure(root, max_work)
    values: dict[str, Any] = {
        "status": root.status, "n_iter": len(root.path) - 1,
        "residual": root.residual if np.isfinite(root.residual) else np.inf,
        "history": StateEvolutionHistory(**stack_overlaps(root.path)),
        "overlaps": root.overlaps if root.status in (Status.MAX_ITER, Status.LOST) else undefined,
        "overlaps_error": undefined, "stability": None, "consistent": False, "validity": validity,
        "response": root.F.response, "rule": root.F.rule.name, "message": message,
    }  # fmt: skip
    return StateEvolutionResult(**unknown | values)


def _explain_failure(root: Root, max_work: float) -> tuple[str, str]:
    """Return the validity and the message of a result without a solution."""
    unsolved = "unknown: no fixed point was found"
    if root.status is Status.LOST and np.isnan(root.residual):
        return VANISHED, "all weights go to zero, which attracts them: too few data, or too strong a penalty"
    if root.status is Status.LOST:
        return "unknown: the branch was lost", ""
    if root.status is Status.MAX_ITER and np.isnan(root.residual):
        needs = f"an average needs more than max_work = {max_work:g} proximal problems"
        if root.F.rule.name != "nested":
            return unsolved, f"{needs}: raise max_work"
        many = "the proximal map jumps at many fields or values of the noise"
        remedy = 'use rule="sobol", which averages over a limited number of random points, or raise max_work'
        return f"{unsolved}, because {many}", f"{needs}, because {many}: {remedy}"
    words = _describe_unbounded_risk(root)
    if words:
        return "unknown: the risk has no minimum at finite weights, or none was found", words
    if root.status is Status.MAX_ITER:
        return unsolved, f"the overlaps still change by {root.residual:.1g}, relatively, in a step: raise max_iter"
    return unsolved, root.reason or "the overlaps or the averages are not finite numbers any more"


def _describe_unbounded_risk(root: Root) -> str:
    """Return a message if the risk has no lower bound, or q grew without bound under λ ≤ 0; otherwise an empty string.

    The lowest curvature of the loss is zero if there are fewer tokens than dimensions; for the squared loss of single
    tokens of variance γ, more than d, it is γ (√α − 1)², the edge of the Marchenko–Pastur distribution.
    """
    model, alpha, penalty = root.F.model, root.F.alpha, root.F.model.penalty
    lams = penalty.curvature[~penalty.sphere] if isinstance(penalty, ColumnRidge) else np.ones(1)
    if not len(lams) or lams.min() > 0:
        return ""
    gamma, curvature = model.coordinates.gamma, np.inf
    if model.n_tokens * alpha < 1:
        curvature = 0.0
    elif isinstance(model.student, SquaredLoss) and gamma.shape == (1, 1):
        curvature = float(gamma[0, 0]) * (np.sqrt(alpha) - 1) ** 2
    if lams.min() < -curvature:
        edge = f"the lowest eigenvalue {curvature:.3g} of the Hessian of the loss"
        return f"the risk has no lower bound: λ = {lams.min():g} and {edge} have a negative sum; use a larger λ"
    sizes = np.array([np.abs(overlaps.q).max() for overlaps in root.path])
    sizes = sizes[np.isfinite(sizes)]
    later = sizes[len(sizes) // 2 :]
    if len(later) <= GROWING_STEPS or (np.diff(later) <= 0).any() or later[-1] < GROWTH * later[0]:
        return ""
    growth = f"q grew in each of the last {len(later) - 1} steps, from {later[0]:.3g} to {later[-1]:.3g}"
    return (
        f"{growth}: as far as these steps show, overlaps grow without bound, and there is no solution with finite "
        "overlaps; use a larger λ, or a larger max_iter to see whether the growth ends"
    )


def require_rtol(rtol: Any) -> float:
    """Return a requested accuracy as a float. ValueError if it is outside [1e-10, 0.1]; rounding limits it below."""
    return check.real("rtol", rtol, low=1e-10, high=0.1)


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Derivatives at a fixed point, in packed overlaps without units.

    Attributes
    ----------
    alpha : sample complexity of the fixed point.
    names : names of the free families, as in `Packing`.
    jacobian : (k, k) Jacobian of the map.
    slopes : (2, L, r, r, k) derivatives of V̂ in both forms.
    tangent : (k,) derivative of the fixed point in α.
    """

    alpha: float
    names: tuple[str, ...]
    jacobian: np.ndarray
    slopes: np.ndarray
    tangent: np.ndarray

    @classmethod
    def of(cls, root: Root, slopes: np.ndarray) -> Self:
        """Return the derivatives at a root; `slopes` are the derivatives of V̂ in its units."""
        J, packing, F = root.jacobian, root.packing, root.F
        assert J is not None
        tangent, size = newton_step(J, F.slope_in_alpha(packing, root.overlaps)), packing.sizes
        return cls(F.alpha, packing.names, J * (size[:, None] / size), slopes / size, tangent * size)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the derivatives stored by `to_dict`."""
        arrays = {name: np.array(values[name]) for name in ("jacobian", "slopes", "tangent")}
        return cls(float(values["alpha"]), tuple(values["names"]), **arrays)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as numbers and lists."""
        arrays = {name: getattr(self, name).tolist() for name in ("jacobian", "slopes", "tangent")}
        return {"alpha": self.alpha, "names": list(self.names), **arrays}


def root_near(F: OverlapMap, solution: Overlaps, derivatives: Derivatives, tol: float) -> Root | None:
    """Return the fixed point at the α of the map from a `solution` at another α; None if it may be elsewhere.

    The tangent predicts the new fixed point, and the stored Jacobian is used for the first Newton step. Stability under
    damped steps follows from the updated Jacobian only.
    """
    packing, distance = Packing.of(F.model, solution), F.alpha - derivatives.alpha
    if packing.names != derivatives.names or abs(distance) > NEAR_RANGE * derivatives.alpha:
        return None
    start = packing.unpack(packing.pack(solution) + distance * derivatives.tangent / packing.sizes)
    if len(derivatives.tangent) != len(packing.sizes) or not is_feasible(F.model, start):
        return None
    packing = Packing.of(F.model, start)
    size = packing.sizes
    jacobian, slopes = derivatives.jacobian * (size / size[:, None]), derivatives.slopes * size
    try:
        root = newton(F, start, tol, NEAR_STEPS, jacobian, packing, response_slopes=slopes)
    except BREAKDOWNS:
        return None
    if not root.status.converged or relative_change(start, root.overlaps) > NEAR_MOVE:
        return None
    families_remain = all(
        family_size(root.overlaps, name) >= NEAR_FAMILY * family_size(solution, name) for name in ("m", "theta")
    )
    return root if families_remain and root.attracts(NEAR_MARGIN) else None


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, rtol: float, derivatives: Derivatives | None = None
) -> tuple[StateEvolutionResult, Derivatives | None, bool]:
    """Solve on a named branch from a known solution; return the result, derivatives there, and whether that succeeded.

    The known solution `near` is at another α or of another model; `derivatives` belong to it and to the same model. If
    the branch is not found from there, or nothing is known, the branch is solved from its name.
    """
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if near is not None and is_feasible(model, near):  # infeasible, for example, if columns are zero
        tol = max(F.rule.initial_tolerance, NEAR_ACCURACY * rtol)
        predicted = None if derivatives is None else root_near(F, near, derivatives, tol)
        for root in [None] if predicted is None else [predicted, None]:
            root = root or find_fixed_point(F, near, F.rule.initial_tolerance, NEAR_ITER, GIVEN_DAMPED)
            result, last = refine_on_branch(root, branch, rtol)
            if result.converged:
                return result, _derivatives_at(last, root), True
    path = path_from(F, branch, 0)
    root = find_fixed_point(F, path[-1], F.rule.initial_tolerance, MAX_ITER, NAMED_DAMPED)
    result, last = refine_on_branch(root, branch, rtol)
    if is_lost(result, branch):
        result = describe_lost_branch(result, F, branch, path)
    return result, _derivatives_at(last, root), False


def _derivatives_at(last: Root | None, first: Root) -> Derivatives | None:
    """Return the derivatives at the root on the last rule, with the slopes of V̂ on the first; None without a root."""
    return None if last is None else Derivatives.of(last, response_slopes(first))
