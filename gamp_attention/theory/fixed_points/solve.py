"""Fixed points of state evolution, equations (7) to (9), from a named start or given overlaps.

`solve_state_evolution` has three stages: a search from the start on a coarse rule finds the fixed point
(`find_fixed_point`); a refinement brings all errors within the requested accuracy (`refine`); finally the stability is
computed. If the named branch has no fixed point, the result describes the point at which the branch was lost.
`solve_near` starts from a solution at another α.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import RESPONSES
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import describe, show_progress
from gamp_attention.results import Overlaps, Status, finish, stack_overlaps
from gamp_attention.theory.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.theory.equations.units import is_feasible, relative_change, subtract_explained
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, SIZES, Root, breakdown, family_size, last_with
from gamp_attention.theory.fixed_points.observables import (
    NEGLIGIBLE_JUMPS,
    column_sums,
    largest_jump_fraction,
    replicon,
    stability as compute_stability,
)
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.refinement import StateEvolutionHistory, StateEvolutionResult, refine
from gamp_attention.theory.fixed_points.search import find_fixed_point
from gamp_attention.theory.models.model import Model, require_model
from gamp_attention.theory.rules.choice import first_rule
from gamp_attention.theory.rules.rule import Rule
from gamp_attention.theory.start_law import require_overlaps, start_law

MAX_STEPS = 200  # default maximum number of steps of a search
FAMILY_OF = {"semantic": "theta", "positional": "m"}  # family of overlaps that distinguishes a named branch
VANISHED = "none: all weights go to zero"


@dataclass(frozen=True)
class WorkSettings:
    """Default budgets of an average: numbers of proximal problems."""

    attention: float = 1e8
    one_field: float = 3e6
    random: float = 1e7
    coarse: float = 5e6  # labels whose loss is not convex, if the requested error is at least `coarse_rtol`
    coarse_rtol: float = 5e-3
    fine: float = 5e7  # the same labels, if the requested error is smaller than `fine_rtol`
    fine_rtol: float = 2e-3

    def budget(self, model: Model, rule: Rule, rtol: float) -> float:
        """Return the default budget for a rule and a requested error."""
        if rule.deterministic:
            return self.attention if model.attention else self.one_field
        if model.attention or not model.task.jumps:  # each proximal problem of other labels needs a search
            return self.random
        return self.coarse if rtol >= self.coarse_rtol else self.fine if rtol < self.fine_rtol else self.random


@dataclass(frozen=True)
class StartSettings:
    """Settings of the search next to the teacher, and from a known solution."""

    small_V: float = 1e-3  # largest entry of V at the start next to the teacher, in units of the largest entry of q
    # part of q that the teacher does not explain after a step from there, up to which the search is done
    max_unexplained: float = 0.01
    same_point: float = 3e-4  # relative change of the overlaps up to which known derivatives hold at the solution
    responds: float = 0.1  # mean of −V ∂g/∂ω below which g hardly depends on the fields: labels are far from them
    wider: float = 1e12  # largest factor of V for a step of the intercept
    # maximum number of steps from a known solution; beyond, the solution from a named start is faster
    near_steps: int = 30


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
    max_iter: int = MAX_STEPS,
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
        "lattice", shifted lattices, for convex losses of labels that vary in at most three directions of the fields;
        "sobol", random points. "auto" uses "panels" for attention with L (r + t) ≤ 4 and if it applies to labels, then
        "lattice" if it applies, and "sobol" otherwise.
    response : form of V̂. "stein" counts the jumps of the proximal map; "derivative" averages the almost-everywhere
        derivative.
    max_iter : maximum number of steps of the search.
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
        The status is INACCURATE if the budget did not allow `rtol`, or V and the test error go to zero (perfect
        recovery: the losses are NaN), and MAX_ITER if the budget did not allow any solution. It is LOST if a
        named branch does not exist, that is, if θ of "semantic" or m of "positional" is zero within its
        error. Then `overlaps` are approximately the overlaps of the solution found instead, without errors and losses,
        and `replicon`, `validity` and `message` describe the point where the branch is lost. If replica symmetry is
        broken there, the branch may exist at finite d. If all weights go to zero, the overlaps are tiny and `message`
        says so.

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
    given = require_model(model)
    model, alpha = given.reduced, check.real("alpha", alpha, low=0, strict=True)
    if max_work is not None:
        max_work = check.real("max_work", max_work, low=1e4)
    first = first_rule(rule, model, (check.integer("seed", seed, low=0),), max_work or np.inf)
    rtol = require_rtol(rtol if rtol is not None else 1e-4 if first.deterministic else 2e-3)
    max_work = max_work or WORK.budget(model, first, rtol)
    first = first_rule(rule, model, (seed,), max_work, refined=True)
    check.choice("response", response, RESPONSES)
    max_iter = check.integer("max_iter", max_iter, low=1)
    check.flag("stability", stability)
    check.flag("raise_on_failure", raise_on_failure)
    describe("search for the fixed point")
    F = OverlapMap(model, alpha, first, response)
    if isinstance(init, str):
        result, last = solve_branch(F, init, rtol, max_work, max_iter)
    else:
        start = require_overlaps(given, init)
        if not is_feasible(given, start, slack=0.0):
            raise check.fail("init", init, "V_l and q_l − θ_l ρ_l⁻¹ θ_lᵀ positive definite")
        root = find_fixed_point(F, start, max_iter)
        result, last = refine_on_branch(root, None, rtol, max_work)
    result = _check_precision(result, model)
    if stability and last is not None:
        describe("stability")
        result = _add_stability(result, last, max_work)
    if result.state is not None:
        result = replace(result, state=replace(result.state, model=given))
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


def _add_stability(result: StateEvolutionResult, last: Root, max_work: float) -> StateEvolutionResult:
    """Return the result with the stability at its overlaps; a failed result if the map breaks down there."""
    F, at = last.F.on(last.F.rule.for_stability()), result.overlaps
    is_near = relative_change(last.overlaps, at) <= START.same_point
    if is_near and last.F.has_expansion(last.overlaps) and last.F.rule.level >= F.rule.level:
        F, at = last.F, last.overlaps  # its derivatives are known
    try:
        return replace(result, stability=compute_stability(F, at))
    except BREAKDOWNS as error:
        return _build_failed(_record_breakdown(last, error), max_work)


def _near_labels(F: OverlapMap, start: Overlaps) -> Overlaps:
    """Return a start with an intercept near the labels, by a step with a large V, if g hardly depends on the fields."""
    wide, fields = start, F.model.n_tokens * F.model.rank
    with suppress(*BREAKDOWNS):
        while F.model.intercept and not F.model.task.jumps and wide.V.max() < START.wider * start.V.max():
            image = F.with_choices_at(wide)._step(wide)
            response = np.einsum("lab,lba->", wide.V, image.hats.V_derivative) / (F.alpha * fields)
            if response > START.responds:
                return start if wide is start else replace(start, m=image.overlaps.m)
            wide = replace(wide, V=10 * wide.V)
    return start


def find_near_teacher(F: OverlapMap, branch: str, status: Status, max_iter: int) -> Root | None:
    """Return the fixed point next to the teacher if the search lost the semantic branch; None if there is none.

    A search starts with V of weights without data, of order 1/λ. With few data the first steps then go so far that
    they miss a fixed point next to the teacher. A start at the teacher with a small V finds it. Without noise, the
    teacher explains nearly all weights after one step from there; otherwise there is no such fixed point.
    """
    if branch != "semantic" or status not in (Status.LOST, Status.NONFINITE):
        return None
    start = start_law(F.model, branch).overlaps(F.model)
    start = replace(start, V=START.small_V * np.abs(start.q).max() / np.abs(start.V).max() * start.V)
    with suppress(*BREAKDOWNS):
        image = F(start)
        if np.abs(subtract_explained(F.model, image)).max() < START.max_unexplained * np.abs(image.q).max():
            root = find_fixed_point(F, start, max_iter)
            return root if root.status.converged and not is_off(branch, root.overlaps) else None
    return None


def solve_branch(
    F: OverlapMap, branch: str, rtol: float, max_work: float = WORK.attention, max_iter: int = MAX_STEPS
) -> tuple[StateEvolutionResult, Root | None]:
    """Solve on a named branch; return the result, and the root on the last rule, None without a solution.

    If the search loses the branch, it is solved from a start next to the teacher.
    """
    start = _near_labels(F, start_law(F.model, branch).overlaps(F.model))
    root = find_fixed_point(F, start, max_iter)
    result, last = refine_on_branch(root, branch, rtol, max_work)
    near = find_near_teacher(F, branch, result.status, max_iter)
    if near is not None:
        again, last_near = refine_on_branch(near, branch, rtol, max_work)
        if last_near is not None:
            return again, last_near
    if branch in FAMILY_OF and result.status is Status.LOST and result.validity != VANISHED:
        result = _describe_lost_branch(result, F, branch)
    return result, last


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, rtol: float
) -> tuple[StateEvolutionResult, bool]:
    """Solve on a named branch from a known solution; return the result, and whether the known solution led to it.

    The known solution `near` is at another α or of another model. If the branch is not found from there, or nothing is
    known, the branch is solved from its name.
    """
    model = model.reduced
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if near is not None and is_feasible(model, near):  # infeasible, for example, if columns are zero
        root = find_fixed_point(F, near, START.near_steps)
        result = refine_on_branch(root, branch, rtol)[0]
        if result.converged:
            return result, True
    return solve_branch(F, branch, rtol)[0], False


def refine_on_branch(
    root: Root, branch: str | None, rtol: float, max_work: float = WORK.attention
) -> tuple[StateEvolutionResult, Root | None]:
    """Return the refined result of a root on the first rule, and the root on the last rule; None without a solution.

    The status is LOST if the family that distinguishes the named branch is practically zero, or zero within its error.
    """
    if not root.status.converged:
        return _build_failed(root, max_work), None
    try:
        if is_off(branch, root.overlaps):
            return _build_failed(replace(root, status=Status.LOST), max_work), None
        describe("refinement")
        result, last = refine(root, rtol, max_work)
    except BREAKDOWNS as error:
        return _build_failed(_record_breakdown(root, error), max_work), None
    words = "" if branch not in FAMILY_OF else _describe_zero(result, FAMILY_OF[branch])
    if is_off(branch, result.overlaps) or words:
        lost = replace(root, status=Status.LOST, path=[*root.path, result.overlaps])
        return replace(_build_failed(lost, max_work), message=words), None
    return result, last


def require_rtol(rtol: Any) -> float:
    """Return a requested accuracy as a float. ValueError if it is outside [1e-10, 0.1]; rounding limits it below."""
    return check.real("rtol", rtol, low=1e-10, high=0.1)


def is_off(branch: str | None, overlaps: Overlaps) -> bool:
    """Return whether the family that distinguishes a named branch has faded."""
    return branch in FAMILY_OF and family_size(overlaps, FAMILY_OF[branch]) < SIZES.faded


def _describe_zero(result: StateEvolutionResult, family: str, n_errors: float = 2.0) -> str:
    """Return a message if a family of overlaps is zero within `n_errors` errors; otherwise an empty string."""
    value, error = result.overlaps.arrays()[family], result.overlaps_error.arrays()[family]
    if (np.abs(value) > n_errors * error).any() or np.isinf(error).any():  # no error is stated if it is infinite
        return ""
    at = np.unravel_index(np.argmax(np.abs(value)), value.shape)
    words = f"{family} = {value[at]:.2g} is zero within its error of {error[at]:.1g} at the solution found"
    return f"{words} (a smaller rtol shows whether a smaller {family} remains)"


def _describe_lost_branch(result: StateEvolutionResult, F: OverlapMap, branch: str) -> StateEvolutionResult:
    """Return a LOST result with the replicon where the branch was last seen, and a description of its end.

    `F` is the map of the search.
    """
    history, family = result.history.arrays(), FAMILY_OF[branch]
    path = [Overlaps(*(history[name][k] for name in history)) for k in range(len(history["q"]))]
    start = Symmetry.of(F.model, start_law(F.model, branch).overlaps(F.model))
    at = start.impose(fix_gauge(F.model, last_with(path, family)))
    message = result.message or f"no {branch} fixed point was found: its overlap {family} decays to zero"
    try:
        hats = F.with_choices_at(path[0]).images(at, squares=True)[0].hats  # with the choices of the search
        value = replicon(F.model, hats, F.response)
        size = np.maximum(np.abs(column_sums(hats.V)), np.abs(column_sums(hats.V_derivative)))
        jumps = largest_jump_fraction(hats.jump_mass, size)
    except BREAKDOWNS:
        words = "unknown: replica symmetry cannot be checked where the branch is lost"
        return replace(result, message=f"{message}; {words}", validity=words)
    mass = f"jump mass {float(f'{100 * jumps:.2g}'):g} % of V̂"
    message += f". Where {family} last had half of its maximum,"
    onwards = "So minima of this kind may exist at finite d: run_gamp and minimize_risk find them if they do"
    if not value < 1:
        message += f" replica symmetry, which these equations assume, is unstable (replicon {value:.3g}, "
        message += f"not below 1). {onwards}"
        words = f"inconsistent: the replicon eigenvalue {value:.3g} is not below 1 where the branch is lost ({mass})"
    elif abs(jumps) > NEGLIGIBLE_JUMPS:
        message += f" many samples jump between two minima of their loss ({mass}; replicon {value:.3g}), which "
        message += f"these equations do not describe. {onwards}"
        words = f"unknown: the proximal map jumps where the branch is lost ({mass}; replicon {value:.3g} without them)"
    else:
        message += f" these equations were consistent (replicon {value:.3g}, below 1; {mass}): there is no "
        message += "such branch for d → ∞"
        words = f"no such branch: replica symmetry is consistent where it is lost (replicon {value:.3g}, {mass})"
    return replace(result, replicon=value, message=message, validity=words)


def _record_breakdown(root: Root, error: Exception) -> Root:
    """Return the root after one of BREAKDOWNS."""
    status, reason = breakdown(error)
    return replace(root, status=status, residual=np.nan, reason=reason)


def _build_failed(root: Root, max_work: float) -> StateEvolutionResult:
    """Return the result if the requested fixed point was not found: the last overlaps if finite, without errors."""
    recovered, arrays = root.status is Status.INACCURATE, root.overlaps.arrays()
    value, error = np.nan, np.inf if recovered else np.nan
    undefined, infinite = (Overlaps(**{name: np.full_like(v, x) for name, v in arrays.items()}) for x in (value, error))
    of_type: dict[Any, Any] = {float: (value, error), np.ndarray: (undefined.V, infinite.V)}
    numbers = [item for item in fields(StateEvolutionResult) if item.type in of_type]
    unknown = {item.name: of_type[item.type][item.name.endswith("_error")] for item in numbers} | {"test_error": value}
    validity, message = _explain_failure(root, max_work)
    values: dict[str, Any] = {
        "status": root.status, "n_iter": len(root.path) - 1,
        "residual": root.residual if np.isfinite(root.residual) else np.inf,
        "history": StateEvolutionHistory(**stack_overlaps(root.path)),
        "overlaps": root.overlaps if recovered or root.status in (Status.MAX_ITER, Status.LOST) else undefined,
        "overlaps_error": infinite, "stability": None, "consistent": False, "validity": validity,
        "response": root.F.response, "rule": root.F.rule.name, "message": message,
        "state": root.F if recovered else None,
    }  # fmt: skip
    return StateEvolutionResult(**unknown | values)


def _explain_failure(root: Root, max_work: float) -> tuple[str, str]:
    """Return the validity and the message of a result without a solution."""
    unsolved, broke_down = "unknown: no fixed point was found", np.isnan(root.residual)
    if root.status is Status.LOST and broke_down:
        return VANISHED, "all weights go to zero, which attracts them: too few data, or too strong a penalty"
    if root.status is Status.LOST:
        return "unknown: the branch was lost", ""
    if root.status is Status.MAX_ITER and broke_down:
        needs = f"an average needs more than max_work = {max_work:g} proximal problems"
        if root.F.model.attention or not root.F.rule.deterministic:
            return unsolved, f"{needs}: raise max_work"
        many = "the proximal map jumps at many fields or values of the noise"
        remedy = 'use rule="sobol", which averages over a limited number of random points, or raise max_work'
        return f"{unsolved}, because {many}", f"{needs}, because {many}: {remedy}"
    words = _describe_infinite_risk(root)
    if words:
        return "unknown: the risk has no minimum at finite weights", words
    if root.status is Status.MAX_ITER:
        return unsolved, f"the overlaps still change by {root.residual:.1g}, relatively, in a step: raise max_iter"
    return unsolved, root.reason or "the overlaps or the averages are not finite numbers any more"


def _describe_infinite_risk(root: Root) -> str:
    """Return a message if λ is negative and the risk has no lower bound; otherwise an empty string.

    The lowest curvature of the loss is zero if there are fewer tokens than dimensions; for the squared loss of single
    tokens of variance γ, more than d, it is γ (√α − 1)², the edge of the Marchenko–Pastur distribution.
    """
    model, alpha, gamma = root.F.model, root.F.alpha, root.F.model.coordinates.gamma
    lam = float(model.penalty.curvature.min()) if model.penalty.by_column else 1.0
    curvature = np.inf
    if model.n_tokens * alpha < 1:
        curvature = 0.0
    elif getattr(model.student, "quadratic", False) and gamma.shape == (1, 1):
        curvature = float(gamma[0, 0]) * (np.sqrt(alpha) - 1) ** 2
    if lam >= -curvature:
        return ""
    edge = f"the lowest eigenvalue {curvature:.3g} of the Hessian of the loss"
    return f"the risk has no lower bound: λ = {lam:g} and {edge} have a negative sum; use a larger λ"
