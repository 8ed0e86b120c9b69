"""Fixed points of state evolution, equations (7) to (9): started, searched, judged, refined and reported.

What is known of the map next to a fixed point, and a solution at another α from it by a few Newton steps.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import Overlaps, Status, finish, stacked
from gamp_attention.state_evolution.dynamics.message_paths import follow
from gamp_attention.state_evolution.dynamics.start_law import checked_overlaps, start_law
from gamp_attention.state_evolution.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.state_evolution.equations.units import Packing, is_feasible, relative_change
from gamp_attention.state_evolution.fixed_points.newton import (
    BREAKDOWNS,
    BROYDEN,
    VANISHING,
    Root,
    breakdown,
    family_size,
    has_faded,
    last_with,
    newton,
    newton_step,
)
from gamp_attention.state_evolution.fixed_points.overlap_map import RESPONSES, OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionHistory, StateEvolutionResult, refine
from gamp_attention.state_evolution.fixed_points.search import fixed_point
from gamp_attention.state_evolution.fixed_points.stability import STABILITY, replicon, stability
from gamp_attention.state_evolution.rules.choice import first_rule

FAMILY_OF = {"semantic": "theta", "positional": "m"}  # the family that a branch is named after
SPLIT_WORK, RANDOM_WORK = 1e8, 1e7  # proximal problems of one average, if no budget is given
ZERO = 2.0  # overlap, in units of its error, below which it counts as zero
OTHER_FORM = 12  # damped steps at most, to find out whether the other form of V̂ has a branch
VANISHED = "none: all weights go to zero"


@dataclass(frozen=True)
class StartSettings:
    """How a start is followed before the first Newton step."""

    n_steps: int = 20  # of damped GAMP from a name
    damping: float = 0.3
    n_points: int = 512  # that it is averaged on: enough to come near the right branch
    easy: float = 1.5  # sample complexity up to which that damping is small enough
    max_slower: float = 8.0  # the damping is divided by at most this beyond
    relax_named: int = 4  # damped steps of the overlap map after that
    relax_given: int = 1  # the same from given overlaps, which may be near a fixed point that repels


START = StartSettings()


@ignore_float_errors
def solve_state_evolution(
    model: Model,
    alpha: float,
    init: Any = "semantic",
    *,
    rtol: float | None = None,
    rule: str = "auto",
    response: str = "stein",
    max_iter: int = 500,
    max_work: float | None = None,
    stability: bool = True,
    seed: int = 0,
    raise_on_failure: bool = False,
) -> StateEvolutionResult:
    """Solve state evolution, equations (7) to (9), to a stated accuracy.

    Eq. :eq:`conjugates`, :eq:`weights`, :eq:`training-loss`, :eq:`test-error`.

    The averages over the channel are refined until the errors of all that is reported are within rtol. What is zero
    by symmetry, m or θ, stays exactly zero, whether the solution is stable there or not.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity, > 0.
    init : "semantic", "positional" or "random", followed for some steps of damped GAMP; or Overlaps to start from.
    rtol : relative error asked for of the overlaps, V̂ and both losses, in units of √q for m and θ, and of the larger of
        its two forms for V̂; at least 1e-10; 1e-4 if not given, 2e-3 where the rule is random. Of the jump mass, in
        the units of V̂, √rtol is asked, of the replicon, whose threshold is 1, 10√rtol, at most .1 of either, as these
        converge like square roots.
    rule : "split", a product rule cut where the proximal map jumps (L (r + t) <= 6); "lines", randomised lines cut
        there; "sobol", randomised points; "auto" for "split" up to L (r + t) = 4, then "sobol".
    response : form of V̂: "stein" counts the jumps of the proximal map, "derivative" averages the a.e. derivative.
    max_iter : bound on the damped steps of the search. One below twice the number of overlaps leaves out Newton
        steps, as they cost so many.
    max_work : bound on the proximal problems of one average, at least 1e4, of 1 to 40 µs each; fewer random points are
        taken for it. If not given, 1e8 for the split rule, of which levels for `rtol` above 1e-6 take a hundredth, and
        1e7 for random points. A result that the budget ends early says so in `message`.
    stability : also find the stability of the solution.
    seed : of the randomised points.
    raise_on_failure : raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    StateEvolutionResult
        With status INACCURATE if the budget did not allow rtol, and MAX_ITER if it allowed no solution. With LOST if a
        named branch does not exist, or if θ of "semantic" or m of "positional" is zero within its error: then the
        overlaps are roughly those of the solution found instead, without errors or losses, and `replicon`, `validity`
        and `message` state whether replica symmetry holds where the branch is lost, or is broken there, so that the
        branch may exist at finite d; and, where jumps break it, whether `response="derivative"` has the branch. If all
        weights go to zero, they are tiny, and `validity` and `message` say so.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ConvergenceError : with `raise_on_failure`.

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
    max_work = max_work or (SPLIT_WORK if first.deterministic else RANDOM_WORK)
    first = first_rule(rule, model, (seed,), max_work)
    rtol = checked_rtol(rtol if rtol is not None else 1e-4 if first.deterministic else 2e-3)
    check.choice("response", response, RESPONSES)
    max_iter = check.integer("max_iter", max_iter, low=1)
    check.flag("stability", stability)
    check.flag("raise_on_failure", raise_on_failure)
    F = OverlapMap(model, alpha, first, response)
    if isinstance(init, str):
        try:
            path = path_from(F, init, seed)
        except BREAKDOWNS as error:
            begun = start_law(model, init).overlaps(model)
            broken = Root(breakdown(error), [begun], np.nan, Packing.of(model, begun), None, F)
            return finish(_failed(broken, max_work), raise_on_failure, "solve_state_evolution")
        start, branch, n_damped = path[-1], init, START.relax_named
    else:
        start, branch, n_damped = checked_overlaps(model, init), None, START.relax_given
        if not is_feasible(model, start, slack=0.0):
            raise check.fail("init", init, "V_l and q_l − θ_l ρ_l⁻¹ θ_lᵀ positive definite")
    result = solve_from(F, start, branch, rtol, n_damped, max_iter=max_iter, max_work=max_work, stable=stability)
    if branch is not None and is_lost(result, branch):
        result = where_lost(result, F, branch, path, other_form=True)
    return finish(result, raise_on_failure, "solve_state_evolution")


def named_start(F: OverlapMap, name: str, seed: int) -> Overlaps:
    """Where damped GAMP goes from a named start, with what is zero by symmetry exactly zero."""
    return path_from(F, name, seed)[-1]


def path_from(F: OverlapMap, name: str, seed: int) -> list[Overlaps]:
    """Overlaps of damped GAMP from a named start; in the last ones what is zero by symmetry is exactly zero."""
    rng = generator(seed, Stream.STARTS)
    law = start_law(F.model, name)
    slower = min(max(1.0, F.alpha / START.easy), START.max_slower)  # the mean direction overshoots in proportion to α
    n_steps = int(START.n_steps * min(slower, 2))  # its cost grows with the square
    path = follow(F.model, F.alpha, law, START.damping / slower, n_steps, START.n_points, rng)[0]
    begun = law.overlaps(F.model)
    end = Symmetry.of(F.model, begun).impose(fix_gauge(F.model, path[-1]))
    if F.model.even:  # of two mirror images, the one that it started near
        side = {name: np.sign(np.sum(begun.arrays()[name] * end.arrays()[name])) or 1 for name in ("m", "theta")}
        end = replace(end, m=side["m"] * end.m, theta=side["theta"] * end.theta)
    return [*path[:-1], end]


def first_root(model: Model, alpha: float, init: Any, max_iter: int) -> Root:
    """The fixed point on the coarsest rule from a name or Overlaps; LOST where a named branch does not exist."""
    F, named = OverlapMap(model, alpha, first_rule("auto", model, (0,))), isinstance(init, str)
    try:
        start = named_start(F, init, 0) if named else init
    except BREAKDOWNS as error:
        begun = start_law(model, init).overlaps(model)
        return Root(breakdown(error), [begun], np.nan, Packing.of(model, begun), None, F)
    root = fixed_point(F, start, F.rule.initial_tolerance, max_iter, START.relax_named if named else START.relax_given)
    lost = root.status.converged and named and is_off(init, root.overlaps)
    return replace(root, status=Status.LOST) if lost else root


def solve_from(
    F: OverlapMap,
    start: Overlaps,
    branch: str | None,
    rtol: float,
    n_damped: int = START.relax_named,
    *,
    max_iter: int = 500,
    max_work: float = SPLIT_WORK,
    stable: bool = False,
) -> StateEvolutionResult:
    """The fixed point that a start leads to after some damped steps; LOST where it is not on the branch named."""
    result, last = refined(fixed_point(F, start, F.rule.initial_tolerance, max_iter, n_damped), branch, rtol, max_work)
    if not stable or last is None:
        return result
    try:
        return replace(result, stability=stability(last.F.on(last.F.rule.for_stability()), result.overlaps))
    except BREAKDOWNS as error:
        return _failed(replace(last, status=breakdown(error), residual=np.nan), max_work)


def refined(
    root: Root, branch: str | None, rtol: float, max_work: float = SPLIT_WORK
) -> tuple[StateEvolutionResult, Root | None]:
    """Return the solution that begins with a root on the first rule, and the root on the last, None without a solution.

    The status is LOST if the family of overlaps that the branch is named after is as good as zero, or zero within its
    error.
    """
    if not root.status.converged:
        return _failed(root, max_work), None
    try:
        if is_off(branch, root.overlaps):
            return _failed(replace(root, status=Status.LOST), max_work), None
        result, last = refine(root, rtol, max_work)
    except BREAKDOWNS as error:
        return _failed(replace(root, status=breakdown(error), residual=np.nan), max_work), None
    words = "" if branch not in FAMILY_OF else _zero_within_error(result, FAMILY_OF[branch])
    if is_off(branch, result.overlaps) or words:
        lost = replace(root, status=Status.LOST, path=[*root.path, result.overlaps])
        return replace(_failed(lost, max_work), message=words), None
    return result, last


def _zero_within_error(result: StateEvolutionResult, family: str) -> str:
    """Return words on a family of overlaps that is zero within its error, empty if it is not zero."""
    value, error = (each.arrays()[family] for each in (result.overlaps, result.overlaps_error))
    if (np.abs(value) > ZERO * error).any():
        return ""
    at = np.unravel_index(np.argmax(np.abs(value)), value.shape)
    told = f"{family} = {value[at]:.2g} is zero within its error of {error[at]:.1g} at the solution found"
    return f"{told} (a smaller rtol tells whether a smaller {family} is left)"


def is_off(branch: str | None, overlaps: Overlaps) -> bool:
    """Whether the family that a branch is named after has faded."""
    return branch in FAMILY_OF and has_faded(overlaps, FAMILY_OF[branch])


def is_lost(result: StateEvolutionResult, branch: str) -> bool:
    """Return whether a solution has lost the overlaps that a branch is named after, and weights are left."""
    return branch in FAMILY_OF and result.status is Status.LOST and result.validity != VANISHED


def where_lost(
    result: StateEvolutionResult, F: OverlapMap, branch: str, path: list[Overlaps], *, other_form: bool = False
) -> StateEvolutionResult:
    """Return a LOST result with the replicon where the branch was last seen, and a description of the branch in words.

    With `other_form`, that includes whether the derivative form of V̂ has the branch, if jumps break Stein's.
    """
    history, family = result.history.arrays(), FAMILY_OF[branch]
    later = [Overlaps(*(history[name][k] for name in history)) for k in range(len(history["q"]))]
    there = last_with(path + later, family)
    begun = Symmetry.of(F.model, start_law(F.model, branch).overlaps(F.model))
    at = begun.impose(fix_gauge(F.model, there))
    told = result.message or f"damped steps lose {family}"
    try:
        hats = F.images(at, squares=True)[0].hats
        value = replicon(F.model, hats, F.response)
        jumps = float(hats.jump_mass.sum() / max(abs(hats.V.sum()), abs(hats.V_derivative.sum())))
    except BREAKDOWNS:
        words = "unknown: replica symmetry cannot be checked where the branch is lost"
        return replace(result, message=f"{told}; {words}", validity=words)
    mass = f"jump mass {float(f'{100 * jumps:.2g}'):g} % of V̂"
    told += f"; where it last is half as large, the replicon is {value:.3g}"
    onwards = "At finite d the branch may go on, without a fixed point here: run_gamp and minimize_risk follow it"
    jumping = abs(jumps) > STABILITY.negligible_jumps
    if not value < 1:
        told += f", not below 1: replica symmetry, which all of this assumes, is unstable there. {onwards}"
        words = f"inconsistent: the replicon eigenvalue {value:.3g} is not below 1 where the branch is lost ({mass})"
    elif jumping:
        told += f", and the proximal map jumps ({mass}), which replica symmetry does not describe. {onwards}"
        words = f"unknown: the proximal map jumps where the branch is lost ({mass}; replicon {value:.3g} without them)"
    else:
        told += f" and {mass}: replica symmetry is consistent, and there is no such branch for d → ∞"
        words = f"no such branch: replica symmetry is consistent where it is lost (replicon {value:.3g}, {mass})"
    if other_form and jumping and F.response == "stein":
        told += _in_other_form(F, path[-1], family)
    return replace(result, replicon=value, message=told, validity=words)


def _in_other_form(F: OverlapMap, start: Overlaps, family: str) -> str:
    """Say whether the derivative form of V̂, which leaves jumps out, has a fixed point with a family of overlaps."""
    other = OverlapMap(F.model, F.alpha, F.rule, "derivative")
    root = fixed_point(other, start, F.rule.initial_tolerance, OTHER_FORM)
    option = 'response="derivative", which leaves the jumps out of V̂,'
    clear = family_size(root.overlaps, family) > VANISHING.surely  # and no noise of random points
    if root.status.converged and clear:
        size = np.abs(root.overlaps.arrays()[family]).max()
        return f". {option} has a fixed point with {family} = {size:.3g}: an approximation, whose `validity` says so"
    if root.status is Status.LOST or (root.status.converged and has_faded(root.overlaps, family)):
        return f". {option} loses the branch, too"
    return f". Whether {option} has the branch was not decided in {OTHER_FORM} steps"


def _failed(root: Root, max_work: float) -> StateEvolutionResult:
    """Return the result if there is no fixed point as requested: the last overlaps, if finite, without errors."""
    nothing = Overlaps(**{name: np.full_like(values, np.nan) for name, values in root.overlaps.arrays().items()})
    of_type: dict[Any, Any] = {float: np.nan, np.ndarray: nothing.V}
    unknown = {each.name: of_type[each.type] for each in fields(StateEvolutionResult) if each.type in of_type}
    validity, message = _why(root, max_work)
    known: dict[str, Any] = {
        "status": root.status,
        "n_iter": len(root.path) - 1,
        "residual": root.residual if np.isfinite(root.residual) else np.inf,
        "history": StateEvolutionHistory(**stacked(root.path)),
        "overlaps": root.overlaps if root.status in (Status.MAX_ITER, Status.LOST) else nothing,
        "overlaps_error": nothing,
        "stability": None,
        "consistent": False,
        "validity": validity,
        "response": root.F.response,
        "rule": root.F.rule.name,
        "message": message,
    }
    return StateEvolutionResult(**unknown | known)


def _why(root: Root, max_work: float) -> tuple[str, str]:
    """Return the validity and the message of a result without a solution."""
    unsolved = "unknown: no fixed point was found"
    if root.status is Status.LOST and np.isnan(root.residual):
        return VANISHED, "all weights go to zero, which attracts them: too few data, or too strong a penalty"
    if root.status is Status.LOST:
        return "unknown: the branch was lost", ""
    if root.status is Status.MAX_ITER and np.isnan(root.residual):
        return unsolved, f"an average needs more than max_work = {max_work:g} proximal problems: raise max_work"
    if root.status is Status.MAX_ITER:
        return unsolved, f"the overlaps still change by {root.residual:.1g}, relatively, in a step: raise max_iter"
    return unsolved, "the overlaps or the averages are not finite numbers any more"


def checked_rtol(rtol: Any) -> float:
    """An accuracy to ask for: rounding in the proximal maps allows 1e-10."""
    return check.real("rtol", rtol, low=1e-10, high=0.1)


@dataclass(frozen=True)
class NearSettings:
    """When a solution at another α is believed to be the same branch."""

    range: float = 0.35  # change of α, relative, over which the tangent is followed
    max_steps: int = 4  # of Newton's
    moved: float = 0.1  # of an overlap by these, relative
    attracts: float = 0.9  # largest growth at the solution, as the Jacobian tells it
    kept: float = 0.6  # share of m and θ that is left
    share: float = 0.3  # of the accuracy asked for, to which the first rule is solved
    max_iter_given: int = 60  # damped steps from a neighbour; if it takes more, that is no help
    max_iter: int = 500  # from a name


NEAR = NearSettings()


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Derivatives at a fixed point, in packed overlaps that are not in units.

    Attributes
    ----------
    alpha : sample complexity.
    names : the families that are free, as of `Packing`.
    jacobian : (k, k) of the map.
    slopes : (2, L, r, r, k) of V̂ in both forms.
    tangent : (k,) of the fixed point, in α.
    """

    alpha: float
    names: tuple[str, ...]
    jacobian: np.ndarray
    slopes: np.ndarray
    tangent: np.ndarray

    @classmethod
    def of(cls, root: Root, slopes: np.ndarray) -> Self:
        """Those at a root."""
        J, packing, F = root.jacobian, root.packing, root.F
        assert J is not None
        tangent, size = newton_step(J, F.slope_in_alpha(packing, root.overlaps)), packing.sizes
        return cls(F.alpha, packing.names, J * (size[:, None] / size), slopes / size, tangent * size)

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Self:
        """From plain data."""
        arrays = {name: np.array(found[name]) for name in ("jacobian", "slopes", "tangent")}
        return cls(float(found["alpha"]), tuple(found["names"]), **arrays)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        arrays = {name: getattr(self, name).tolist() for name in ("jacobian", "slopes", "tangent")}
        return {"alpha": self.alpha, "names": list(self.names), **arrays}


def root_near(F: OverlapMap, known: Overlaps, derivatives: Derivatives, tol: float) -> Root | None:
    """The fixed point of a map at another α than that of the one known, or None where it may be on another branch.

    Its tangent tells where to begin, its Jacobian is that of the first Newton step. That damped steps stay at the
    answer is told by the Jacobian alone, which has seen these steps.
    """
    packing, away = Packing.of(F.model, known), F.alpha - derivatives.alpha
    if packing.names != derivatives.names or abs(away) > NEAR.range * derivatives.alpha:
        return None
    start = packing.unpack(packing.pack(known) + away * derivatives.tangent / packing.sizes)
    if len(derivatives.tangent) != len(packing.sizes) or not is_feasible(F.model, start):
        return None
    packing = Packing.of(F.model, start)
    size = packing.sizes
    F.give_slopes(packing, derivatives.slopes * size)
    try:
        root = newton(F, start, tol, NEAR.max_steps, derivatives.jacobian * (size / size[:, None]), packing)
    except BREAKDOWNS:
        return None
    if not root.status.converged or relative_change(start, root.overlaps) > NEAR.moved:
        return None
    kept = all(family_size(root.overlaps, name) >= NEAR.kept * family_size(known, name) for name in ("m", "theta"))
    assert root.jacobian is not None
    return root if kept and np.linalg.eigvals(root.jacobian).real.max() < NEAR.attracts else None


def solve_near(
    model: Model, alpha: float, branch: str, near: Overlaps | None, rtol: float, derivatives: Derivatives | None = None
) -> tuple[StateEvolutionResult, Derivatives | None, bool]:
    """The fixed point on a named branch, derivatives there, and whether it was found from the overlaps of a neighbour.

    The neighbour is at another α or for another model; `derivatives` are those there, for the same model. Where that
    did not converge on the branch, or there is none, it is solved for by name.
    """
    F = OverlapMap(model, alpha, first_rule("auto", model, (0,)))
    if near is not None and is_feasible(model, near):  # they may be on the edge, as of columns that are zero
        enough = max(F.rule.initial_tolerance, NEAR.share * rtol)
        root = None if derivatives is None else root_near(F, near, derivatives, enough)
        for start in ([root] if root is not None else []) + [None]:
            start = start or fixed_point(F, near, F.rule.initial_tolerance, NEAR.max_iter_given, START.relax_given)
            found, last = refined(start, branch, rtol)
            if found.converged:
                return found, _derivatives(start, last), True
    path = path_from(F, branch, 0)
    root = fixed_point(F, path[-1], F.rule.initial_tolerance, NEAR.max_iter, START.relax_named)
    found, last = refined(root, branch, rtol)
    if is_lost(found, branch):
        found = where_lost(found, F, branch, path)
    return found, _derivatives(root, last), False


def _derivatives(first: Root, last: Root | None) -> Derivatives | None:
    """Derivatives at a solution; those of V̂ are of the first rule."""
    return (
        None
        if last is None
        else Derivatives.of(last, first.F.response_slopes(first.packing, first.overlaps, BROYDEN.difference))
    )
