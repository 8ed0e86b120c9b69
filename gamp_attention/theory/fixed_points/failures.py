"""Results without a solution: lost branches, breakdowns, exceeded budgets and unbounded risks, described in words."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from gamp_attention.results import Overlaps, Status, stack_overlaps
from gamp_attention.theory.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.theory.fixed_points.newton import (
    BREAKDOWNS,
    FADING,
    Root,
    breakdown,
    family_size,
    has_faded,
    last_with,
)
from gamp_attention.theory.fixed_points.observables import (
    NEGLIGIBLE_JUMPS,
    column_sums,
    largest_jump_fraction,
    replicon,
)
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.refinement import StateEvolutionHistory, StateEvolutionResult
from gamp_attention.theory.fixed_points.search import find_fixed_point
from gamp_attention.theory.start_law import start_law

FAMILY_OF = {"semantic": "theta", "positional": "m"}  # family of overlaps that distinguishes a named branch
VANISHED = "none: all weights go to zero"


def record_breakdown(root: Root, error: Exception) -> Root:
    """Return the root after one of BREAKDOWNS."""
    status, reason = breakdown(error)
    return replace(root, status=status, residual=np.nan, reason=reason)


def describe_zero(result: StateEvolutionResult, family: str, n_errors: float = 2.0) -> str:
    """Return a message if a family of overlaps is zero within `n_errors` errors; otherwise an empty string."""
    value, error = result.overlaps.arrays()[family], result.overlaps_error.arrays()[family]
    if (np.abs(value) > n_errors * error).any() or np.isinf(error).any():  # no error is stated if it is infinite
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

    `F` is the map of the search, and `path` are the overlaps up to the start of the search. With `other_form`, and if
    jumps break replica symmetry, the description includes whether the derivative form of V̂ has the branch.
    """
    history, family = result.history.arrays(), FAMILY_OF[branch]
    later = [Overlaps(*(history[name][k] for name in history)) for k in range(len(history["q"]))]
    there = last_with(path + later, family)
    start = Symmetry.of(F.model, start_law(F.model, branch).overlaps(F.model))
    at = start.impose(fix_gauge(F.model, there))
    message = result.message or f"no {branch} fixed point was found: its overlap {family} decays to zero"
    try:
        hats = F.with_choices_at(path[-1]).images(at, squares=True)[0].hats  # with the choices of the search
        value = replicon(F.model, hats, F.response)
        size = np.maximum(np.abs(column_sums(hats.V)), np.abs(column_sums(hats.V_derivative)))
        jumps = largest_jump_fraction(hats.jump_mass, size)
    except BREAKDOWNS:
        words = "unknown: replica symmetry cannot be checked where the branch is lost"
        return replace(result, message=f"{message}; {words}", validity=words)
    mass = f"jump mass {float(f'{100 * jumps:.2g}'):g} % of V̂"
    seen = f". Where {family} last had half of its maximum,"
    onwards = "So minima of this kind may exist at finite d: run_gamp and minimize_risk find them if they do"
    jumping = abs(jumps) > NEGLIGIBLE_JUMPS
    if not value < 1:
        message += f"{seen} replica symmetry, which these equations assume, is unstable (replicon {value:.3g}, "
        message += f"not below 1). {onwards}"
        words = f"inconsistent: the replicon eigenvalue {value:.3g} is not below 1 where the branch is lost ({mass})"
    elif jumping:
        message += f"{seen} many samples jump between two minima of their loss ({mass}; replicon {value:.3g}), which "
        message += f"these equations do not describe. {onwards}"
        words = f"unknown: the proximal map jumps where the branch is lost ({mass}; replicon {value:.3g} without them)"
    else:
        message += f"{seen} these equations were consistent (replicon {value:.3g}, below 1; {mass}): there is no "
        message += "such branch for d → ∞"
        words = f"no such branch: replica symmetry is consistent where it is lost (replicon {value:.3g}, {mass})"
    if other_form and jumping and F.response == "stein":
        message += _describe_other_form(F, path[-1], family)
    return replace(result, replicon=value, message=message, validity=words)


def _describe_other_form(F: OverlapMap, start: Overlaps, family: str, max_steps: int = 12) -> str:
    """Return a sentence: whether the derivative form of V̂, which omits jumps, has a fixed point with the family.

    At most `max_steps` damped steps are taken.
    """
    other = OverlapMap(F.model, F.alpha, F.rule, "derivative")
    root = find_fixed_point(other, start, F.rule.initial_tolerance, max_steps)
    option = 'The approximation response="derivative", which leaves the jumps out of V̂,'
    is_clear = family_size(root.overlaps, family) > FADING.small_family  # larger than the noise of random points
    if root.status.converged and is_clear:
        size = np.abs(root.overlaps.arrays()[family]).max()
        return f". {option} has a fixed point with {family} = {size:.3g}"
    if root.status is Status.LOST or (root.status.converged and has_faded(root.overlaps, family)):
        return f". {option} loses the branch, too"
    return f". {option} may have the branch: {max_steps} steps did not decide it"


def build_failed(root: Root, max_work: float) -> StateEvolutionResult:
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
        if root.F.model.attention or not root.F.rule.deterministic:
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


def _describe_unbounded_risk(root: Root, min_steps: int = 5, min_growth: float = 2.0) -> str:
    """Return a message if the risk has no lower bound, or q grew without bound under λ ≤ 0; otherwise an empty string.

    The lowest curvature of the loss is zero if there are fewer tokens than dimensions; for the squared loss of single
    tokens of variance γ, more than d, it is γ (√α − 1)², the edge of the Marchenko–Pastur distribution. q grows without
    bound if it grows by the factor `min_growth` in more than `min_steps` steps.
    """
    model, alpha, penalty = root.F.model, root.F.alpha, root.F.model.penalty
    lams = penalty.curvature if penalty.by_column else np.ones(1)
    if lams.min() > 0:
        return ""
    gamma, curvature = model.coordinates.gamma, np.inf
    if model.n_tokens * alpha < 1:
        curvature = 0.0
    elif getattr(model.student, "quadratic", False) and gamma.shape == (1, 1):
        curvature = float(gamma[0, 0]) * (np.sqrt(alpha) - 1) ** 2
    if lams.min() < -curvature:
        edge = f"the lowest eigenvalue {curvature:.3g} of the Hessian of the loss"
        return f"the risk has no lower bound: λ = {lams.min():g} and {edge} have a negative sum; use a larger λ"
    sizes = np.array([np.abs(overlaps.q).max() for overlaps in root.path])
    sizes = sizes[np.isfinite(sizes)]
    later = sizes[len(sizes) // 2 :]
    if len(later) <= min_steps or (np.diff(later) <= 0).any() or later[-1] < min_growth * later[0]:
        return ""
    growth = f"q grew in each of the last {len(later) - 1} steps, from {later[0]:.3g} to {later[-1]:.3g}"
    return (
        f"{growth}: as far as these steps show, overlaps grow without bound, and there is no solution with finite "
        "overlaps; use a larger λ, or a larger max_iter to see whether the growth ends"
    )
