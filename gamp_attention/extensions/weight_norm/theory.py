"""`solve_with_norm`: state evolution of losses that read the norm of the weights."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import show_progress
from gamp_attention._tools.roots import find_root
from gamp_attention.extensions.equations.prox import compile_loss
from gamp_attention.extensions.weight_norm.equations import NORM, STEPS, NormEquations, require_one_field
from gamp_attention.problem.penalties.standard import Ridge
from gamp_attention.results import Overlaps, Status, finish
from gamp_attention.theory.equations.channel import fields_and_terms, mean_of, teacher_size
from gamp_attention.theory.equations.units import units
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import require_rtol, solve_state_evolution
from gamp_attention.theory.models.glm import GLMModel
from gamp_attention.theory.models.labels import LabelTeacher
from gamp_attention.theory.rules.rule import average_channels

NUMBERS = ("train_loss", "test_error", "V_hat", "replicon", "jump_mass")  # numbers with errors, besides overlaps


@dataclass(frozen=True)
class NormLabels(LabelTeacher):
    """Labels of a teacher, followed by the norm s."""

    labels: Any
    norm: float
    even = property(lambda self: self.labels.even)

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers of the labels."""
        return self.labels.n_noise(n_tokens, rank)

    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return labels and s (N, P + 1)."""
        return np.column_stack([self.labels(u, noise), np.full(len(u), self.norm)])


def average_slope(result: StateEvolutionResult, overlaps: Overlaps) -> float:
    """Return α E[∂ℓ/∂s] over training samples at given overlaps, by central differences of Moreau envelopes."""
    F, teacher, losses = result.state, result.state.model.teacher, []
    for side in (1, -1):
        model = replace(F.model, teacher=replace(teacher, norm=(1 + side * NORM.step) * teacher.norm))
        losses.append(mean_of(average_channels(F.rule, model, overlaps)).moreau)
    return float(F.alpha * (losses[0] - losses[1]) / (2 * NORM.step * teacher.norm))


@guard_call
@show_progress("state evolution ")
def solve_with_norm(
    model: GLMModel, alpha: float, loss: Any, init: str | Overlaps = "semantic", *, convex: bool = False,
    rtol: float = 1e-4, raise_on_failure: bool = False, progress: bool | None = None,
) -> StateEvolutionResult:  # fmt: skip
    """Solve state evolution for a loss that reads the norm of the weights, s = ‖Q‖/√d.

    The risk is R(Q) = Σ_μ ℓ(z_μ, y_μ, s) + λ‖Q‖²/2, as in adversarial training, in which an adversary changes the field
    of a sample in proportion to the norm.

    Parameters
    ----------
    model : teacher, token distribution and ridge λ, with one token and one column; its own loss is not used.
    alpha : sample complexity n/d, > 0.
    loss : function loss(z, y, s) of a field, the labels (one argument each) and the norm s that returns a number ≥ 0,
        which is traced and compiled as by `sequence_model`; or a registered loss, for which s is the last label.
    init : start, as for `solve_state_evolution`.
    convex : True if a function `loss` is convex in z.
    rtol : requested relative error, as for `solve_state_evolution`; 2e-3 is appropriate for random rules.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.
    progress : as for `solve_state_evolution`.

    Returns
    -------
    StateEvolutionResult
        Training loss and test error are of the loss with its norm. The norm is a part of `result.state`, the ordinary
        problem with the same solution: its teacher returns the labels followed by s, and its ridge is
        λ + α E[∂ℓ/∂s]/s. The errors include the errors of both. Replicon and jump mass are of this problem. The status
        is LOST if the weights go to zero, STALLED if the equations of s have no solution, and INACCURATE if `rtol` was
        not reached; near perfect recovery, the errors may be unknown (NaN).

    Raises
    ------
    TypeError, ValueError : if an argument has the wrong type or is out of its range; if the model has more than one
        field, an intercept, or a penalty other than `Ridge`; or if the loss does not accept its labels.
    ConvergenceError : if the result did not converge and `raise_on_failure` is True.

    Examples
    --------
    Adversarial training of logistic regression:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature=0.0), lam=0.1)
    >>> def loss(z, y, s):
    ...     return np.logaddexp(0, 0.3 * s - y * z)
    >>> se = ga.solve_with_norm(model, 2.0, loss, convex=True)
    >>> f"{se.status.value}, q = {se.overlaps.q.item():.3f}, ridge {se.state.model.lam:.3f}"
    'converged, q = 3.634, ridge 0.179'
    """
    check.flag("raise_on_failure", raise_on_failure)
    rtol = require_rtol(rtol)
    require_one_field("model", model, GLMModel)
    white = np.random.default_rng(0).standard_normal((NORM.n_tried, teacher_size(model)))
    labels = fields_and_terms(model, white)[1].params
    compiled = compile_loss(loss, np.column_stack([labels, np.ones(len(labels))]), check.flag("convex", convex))

    def solve(norm: float, ridge: Ridge, tol: float, last: Any) -> tuple[StateEvolutionResult, float, float]:
        problem = GLMModel(NormLabels(model.teacher, norm), model.coordinates, ridge, 1, compiled)
        start = last.overlaps if last is not None and is_solved(last) else init
        result = solve_state_evolution(problem, alpha, start, rtol=tol, stability=False)
        if not is_solved(result):
            return result, np.nan, np.nan
        penalty = result.state.images(result.overlaps)[0].penalty
        return result, np.sqrt(2 * penalty / ridge.lam), average_slope(result, result.overlaps)

    equations = NormEquations(solve, model.lam)
    x, status, message = equations.find(lambda ridge: NORM.error * rtol)
    result = equations.result
    if status is None and not np.isfinite(result.relative_error):  # near perfect recovery
        status, message = Status.INACCURATE, result.message
    if status is None:
        try:
            result = _add_errors(equations, x, rtol)
            if result.relative_error > rtol:  # near Q = 0, errors of s are amplified
                equations.tol = max(0.5 * equations.tol * rtol / result.relative_error, 1e-10)
                result = _add_errors(equations, find_root(equations, x, equations.tol, STEPS).x, rtol)
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            words = f"the errors of the norm cannot be computed: {error}"
            status, message = Status.INACCURATE, "; ".join(filter(None, [words, result.message]))
    if status is not None:
        unknown = {key: np.nan * getattr(result, key) for name in NUMBERS for key in (name, f"{name}_error")}
        unknown |= {"overlaps_error": Overlaps(**{key: np.nan * x for key, x in result.overlaps.arrays().items()})}
        unknown |= {"relative_error": np.nan, "consistent": False, "validity": f"unknown: {message}"}
        result = replace(result, status=status, message=message, **unknown)
    return finish(result, raise_on_failure, "solve_with_norm")


def is_solved(result: StateEvolutionResult) -> bool:
    """Return whether a result is a fixed point, accurate or not."""
    return result.converged or result.status is Status.INACCURATE


def _add_errors(equations: NormEquations, x: np.ndarray, rtol: float) -> StateEvolutionResult:
    """Return the result at a solution x = (log s, c), with errors that include the errors of x.

    The error of x is the inverse Jacobian of the equations times the errors of norm and c of the ordinary solution.
    """

    def solution(x: np.ndarray) -> tuple[np.ndarray, StateEvolutionResult]:
        values = equations.evaluate(x)
        half = 0.5 * x[1] * np.exp(x[0])  # c s/2, the part of the ridge that is not of the risk
        return values, replace(equations.result, train_loss=equations.result.train_loss - half)

    (values, result), steps = solution(x), equations.difference * equations.units(x)
    nearby = [solution(x + step) for step in np.diag(steps)]
    jacobian = np.stack([there - values for there, _ in nearby], axis=1) / steps - np.eye(2)
    errors, slope_error = result.overlaps_error.arrays(), float(equations.tol * abs(x[1]))
    for name, error in errors.items():
        shifted = replace(result.overlaps, **{name: getattr(result.overlaps, name) + error})
        slope_error += abs(average_slope(result, shifted) - values[1])
    missing = np.abs(values - x) + np.array([result.relative_error, slope_error])
    shifts = np.abs(np.linalg.inv(jacobian)) @ missing / steps
    here, others = _numbers(result), [_numbers(there) for _, there in nearby]
    added = {name: sum(w * np.abs(there[name] - here[name]) for w, there in zip(shifts, others, strict=True))
             for name in here}  # fmt: skip
    sizes = here | units(result.overlaps)
    relative = [np.max(added[name] / np.abs(sizes[name]).max(), initial=0.0) for name in (*errors, *NUMBERS[:3])]
    total = float(result.relative_error + max(relative))
    accurate = result.converged and total <= rtol
    message = f"the relative error is {total:.3g}, not rtol = {rtol:g}"
    return replace(
        result, status=Status.CONVERGED if accurate else Status.INACCURATE, relative_error=total,
        message="" if accurate else result.message or message,
        overlaps_error=Overlaps(**{name: error + added[name] for name, error in errors.items()}),
        **{f"{name}_error": getattr(result, f"{name}_error") + added[name] for name in NUMBERS},
    )  # fmt: skip


def _numbers(result: StateEvolutionResult) -> dict[str, Any]:
    """Return all numbers that have errors."""
    return result.overlaps.arrays() | {name: getattr(result, name) for name in NUMBERS}
