"""Results of `run_gamp`: descent from states on which message passing cycles, checks of the weights, and the report."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import progress
from gamp_attention._core.display import count_noun
from gamp_attention.data.curvature import Curvature, lowest_curvature
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.layer import Layer, TracedLayer, layer_of
from gamp_attention.data.recession import grows_without_bound
from gamp_attention.data.risk import RiskAtPoint, denoise_at, is_convex, overlaps, risk_at
from gamp_attention.data.susceptibility import susceptibility
from gamp_attention.gamp.loop import (
    FURTHER_STARTS,
    HESSIANS_TO_HOLD,
    HESSIANS_TO_SEARCH,
    Loop,
    Plan,
    can_solve_for_variances,
    describe_risk,
    samples_to_verify,
)
from gamp_attention.gamp.settling import Settled, SettlingHistory, is_fixed_point, settle
from gamp_attention.gamp.step import GampState
from gamp_attention.gamp.survey import SurveyRecord
from gamp_attention.models.sources import apply_by_source
from gamp_attention.penalties.standard import is_ridge, on_kinks
from gamp_attention.results import Columns, Ended, History, Overlaps, Result, Status

CYCLES = (Status.STALLED, Status.DIVERGED, Status.NONFINITE)  # endings of message passing that a descent can improve on
NEARLY_AS_LOW = 1e-2  # difference of two proximal minima, in units of the mean loss of a sample, that counts as small
ENDINGS = {
    Status.CONVERGED: "converged after {}",
    Status.MAX_ITER: "reached its limit of {}",
    Status.STALLED: "stopped improving after {}",
    Status.DIVERGED: "diverged after {}",
    Status.NONFINITE: "reached numbers that are not finite after {}",
}
NEAR_END = "came near a critical point after {}"
BUDGET_SPENT = "ended after {}, because a descent takes less time"
NO_ITERATION = "made no iteration, because a descent takes less time"
GROWS = (
    " But the weights grow without bound: the risk has no minimum, because weights without a penalty separate the "
    "samples, or all labels are equal. Give them a penalty (lam > 0, intercept=False), or leave out their columns."
)


@dataclass(frozen=True, eq=False)
class StartRecord(Result):
    """Outcome of one of several starts of `run_gamp`.

    Attributes
    ----------
    name : "spectral 1" and so on, "random 1" and so on, the name given as `init`, or "given" for an array or a state.
    kept : whether the result of `run_gamp` comes from this start.
    status : status at the end of the run from this start; None if it was stopped early.
    n_iter : number of iterations of message passing from this start.
    train_loss, gradient_norm, overlaps, Q : at the end of the run, or when it was stopped.
    excess : training loss divided by the training loss of the selected start, minus 1: at the same iteration if the run
        was stopped early in a comparison with the selected run, otherwise at the end of the selected run.
    agreement : overlap between these weights and the weights of the selected start, in [0, 1]; 1 means equal up to the
        symmetries of the model.
    """

    name: str
    kept: bool
    status: Status | None
    n_iter: int
    train_loss: float
    gradient_norm: float
    excess: float
    agreement: float
    overlaps: Overlaps
    Q: np.ndarray

    _columns: ClassVar[Columns] = {
        "ε_t": lambda record: f"{record.train_loss:.6f}",
        "excess": lambda record: f"{record.excess:.2g}",
        "agreement": lambda record: f"{record.agreement:.3f}",
    }

    def _heading(self) -> str:
        ending = "stopped early" if self.status is None else self.status.value
        return f"{type(self).__name__}: {self.name}, {ending} after {count_noun(self.n_iter, 'iteration')}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except Q as plain data."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


class Trained(Ended):
    """Base class of results with a trained layer."""

    layer: Layer | TracedLayer | None

    def predict(self, tokens: ArrayLike) -> np.ndarray:
        """Predict the outputs for new tokens, in the units of the training data.

        Parameters
        ----------
        tokens : (n, L, d) tokens, with the L and d of the training; in memory or on the disk, as for `Dataset`.

        Returns
        -------
        array (n, L, d) of outputs; for sequence models (n, ...) with the shape of a target.

        Raises
        ------
        TypeError : if `tokens` is not an array of real numbers.
        ValueError : if `tokens` has another shape or numbers that are not finite, or if the run was trained on labels
            from which no predictions follow.
        """
        if self.layer is None:
            needs = "a result for outputs (n, L, d), or for samples of a sequence model"
            remedy = "the fields of new tokens are (tokens + positions) @ result.Q / sqrt(d)"
            raise ValueError(f"predict: needs {needs}, got a result for labels; {remedy}")
        return self.layer.predict(tokens)


@dataclass(frozen=True, eq=False)
class GampResult(Trained):
    """Outcome of `run_gamp`.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the gradient norm.
    Q : (d, r) weights: the last iterate if the run converged or tol = 0, otherwise the iterate of smallest gradient. If
        the penalty has kinks and tol > 0, entries that satisfy the optimality condition of a kink are moved to it.
    overlaps : overlaps of Q, with the variances V.
    train_loss, gradient_norm : training loss ε_t and gradient norm ‖∇R‖_F/(λ√d) at Q.
    message_passing : status at the end of message passing, before any descent.
    n_settle : number of steps of descent after message passing, 0 if there was none.
    fixed_point : whether Q was verified to be a fixed point of GAMP; None if the run did not converge.
    is_minimum : whether the run converged and no eigenvalue of ∇²R at Q is negative; False for a saddle.
    lowest_eigenvalue : lowest eigenvalue of ∇²R at Q, with the R of `gamp_attention.gradient`, over all entries of Q
        that are not at a kink of the penalty; NaN if the run did not converge. If the risk is invariant under common
        rotations of the columns of Q, it is at most 0, which is their eigenvalue.
    lowest_eigenvalue_error : norm of the residual of `direction`, ∇²R P − λ₁ P, an upper bound of the error; its square
        divided by the distance to the next eigenvalue is a smaller bound.
    direction : (d, r) eigenvector P of this eigenvalue λ₁, of norm 1; None if the run did not converge.
    n_escapes : number of saddles that the run has left.
    n_off_global : number of searched samples whose proximal minimum is not the global minimum.
    n_near_jump : number of searched samples with another proximal minimum that is nearly as low.
    n_searched : number of samples that were searched for other minima at the end: all samples; after a bounded search
        (see `IterationOptions`) the number that can be searched in little time, each from two further starts.
    state : last state of message passing; pass it as `init` to continue.
    starts : a `StartRecord` for each start.
    surveys : a `SurveyRecord` for each survey, if `survey` was given; each survey is a start.
    message : the outcome in words.
    settling_history : training loss and gradient norm along the descent after message passing; None without descent.
    layer : the trained layer, which `predict` uses; None for labels from which no predictions follow.
    """

    status: Status
    n_iter: int
    residual: float
    history: History
    Q: np.ndarray
    overlaps: Overlaps
    train_loss: float
    gradient_norm: float
    message_passing: Status
    n_settle: int
    fixed_point: bool | None
    is_minimum: bool
    lowest_eigenvalue: float
    lowest_eigenvalue_error: float
    direction: np.ndarray | None
    n_escapes: int
    n_off_global: int
    n_near_jump: int
    state: GampState
    message: str
    n_searched: int = 0
    starts: tuple[StartRecord, ...] = ()
    surveys: tuple[SurveyRecord, ...] = ()
    settling_history: SettlingHistory | None = None
    layer: Layer | TracedLayer | None = None


def run_and_settle(plan: Plan, loop: Loop) -> GampResult:
    """Run message passing to its end, settle it by descent if it cycles, and return the result.

    If message passing from beyond a saddle climbs back, so that its training loss is not below the training loss at
    the start of the loop, the result is a descent from this start instead.
    """
    ending = loop.run()
    assert ending is not None
    result = _settle_and_report(plan, loop, ending)
    if loop.n_escapes > 0 and not result.train_loss < loop.loss_bound:
        return _settle_and_report(plan, loop, Status.STALLED, loop.start)
    return result


def _settle_and_report(plan: Plan, loop: Loop, ending: Status, start: np.ndarray | None = None) -> GampResult:
    """Settle message passing by descent if its `ending` is a cycle, and return the better result of both.

    The descent begins at the weights `start`, by default at the weights of lowest training loss. A run with a budget
    may then resume message passing. Of several critical points, the point of lowest training loss is reported.
    """
    descents = list[Settled]()

    def show(at: RiskAtPoint) -> None:
        if progress.is_shown():
            progress.describe(f"{loop.name}, descent after message passing, {describe_risk(at)}")

    monitor = loop.monitor
    while plan.settling and ending in CYCLES and (start is not None or np.isfinite(monitor.lowest_loss)):
        begin = monitor.lowest_Q if start is None else start
        descents.append(settle(plan.data, plan.risk, begin, plan.tol, callback=show))
        if start is not None or descents[-1].gradient_norm > plan.tol or not loop.resume(descents[-1].n_iter):
            break
        resumed = loop.run()
        assert resumed is not None
        ending = resumed
    return _build_result(plan, loop, ending, descents, start is not None)


def _build_result(plan: Plan, loop: Loop, ending: Status, descents: list[Settled], at_start: bool) -> GampResult:
    """Select the best weights of message passing and descents, check them, and return the result.

    Parameters
    ----------
    plan, loop : arguments, and message passing after its end.
    ending : status at the end of message passing.
    descents : ends of the descents after it.
    at_start : whether the descent began at the start of the loop, so that its end is selected in any case.
    """
    data, risk, tol = plan.data, plan.risk, plan.tol
    keep_last = ending is Status.CONVERGED or (tol == 0 and ending is Status.MAX_ITER)
    best = loop.state if keep_last else loop.monitor.best_state
    Q, V, status, descent = best.Q, best.V, ending, None
    if tol > 0 and not data.penalty.smooth:
        Q = on_kinks(data.penalty, Q, risk_at(data, Q, risk).smooth)[0]
    if descents:
        status, settled = _select_descent(plan, loop, ending, descents, at_start, Q)
        if settled is not None:
            Q, descent = settled.Q, settled.history
    message = _describe_ending(loop, ending, descents, at_start, status)

    progress.describe(f"{loop.name}, checking whether the weights are a minimum")
    at = risk_at(data, Q, risk)
    if descents and can_solve_for_variances(data, loop.bounded):
        solved_V = susceptibility(data, at, Q, quick=loop.bounded, start=V if loop.handed_over else None)
        V = solved_V if np.isfinite(solved_V).all() else V
    grows = tol > 0 and status is not Status.NONFINITE and grows_without_bound(data, Q, risk)
    status = Status.DIVERGED if grows else status
    fixed_point, curvature = None, None
    if status.converged:
        fixed_point = is_fixed_point(data, at, V, samples=samples_to_verify(data, loop.bounded, HESSIANS_TO_HOLD))
        curvature = lowest_curvature(data, at, Q, plan.direction)
    samples = samples_to_verify(data, loop.bounded, HESSIANS_TO_SEARCH)
    n_off, n_near = _count_lower_minima(data, risk, at, V, samples, FURTHER_STARTS if loop.bounded else None)
    message += GROWS if grows else _advice(data, risk, tol, status, at.gradient_norm, curvature)
    return GampResult(
        status=status,
        n_iter=loop.t,
        residual=at.gradient_norm,
        history=loop.record.history(),
        Q=Q,
        overlaps=overlaps(data, Q, V),
        train_loss=at.train_loss,
        gradient_norm=at.gradient_norm,
        message_passing=ending,
        n_settle=sum(settled.n_iter for settled in descents),
        fixed_point=fixed_point,
        is_minimum=curvature is not None and curvature.is_minimum,
        lowest_eigenvalue=np.nan if curvature is None else curvature.lowest_eigenvalue,
        lowest_eigenvalue_error=np.nan if curvature is None else curvature.lowest_eigenvalue_error,
        direction=None if curvature is None else curvature.direction,
        n_escapes=loop.n_escapes,
        n_off_global=n_off,
        n_near_jump=n_near,
        n_searched=data.n_samples if samples is None else len(samples),
        state=loop.state if data.rows_here else loop.state.fetch(),
        message=message,
        settling_history=descent,
        layer=layer_of(data, Q),
    )


def _select_descent(
    plan: Plan, loop: Loop, ending: Status, descents: list[Settled], at_start: bool, Q: np.ndarray
) -> tuple[Status, Settled | None]:
    """Return the status of a run with descents, and the descent whose end is selected; None for the weights Q."""
    lowest = min(descents, key=lambda settled: (not settled.gradient_norm <= plan.tol, settled.train_loss))
    converged = lowest.gradient_norm <= plan.tol
    # resumed message passing may have converged as well: then the critical point of lower training loss is selected
    improves = ending is not Status.CONVERGED or (
        converged and lowest.train_loss < risk_at(plan.data, Q, plan.risk).train_loss
    )
    selected = improves and (at_start or converged or lowest.gradient_norm < loop.monitor.best_norm)
    return Status.SETTLED if converged and improves else ending, lowest if selected else None


def _describe_ending(loop: Loop, ending: Status, descents: list[Settled], at_start: bool, status: Status) -> str:
    """Return a sentence on the end of message passing and of the descents after it."""
    words = ENDINGS[ending]
    if ending is Status.STALLED and loop.is_only_descent:
        words = NO_ITERATION if loop.t == 0 else BUDGET_SPENT
    elif loop.handed_over:
        words = NEAR_END
    elif ending is Status.STALLED and loop.budget.is_spent:
        words = BUDGET_SPENT
    message = f"Message passing {words.format(count_noun(loop.t, 'iteration'))}"
    if descents:
        begin = "its start" if at_start or loop.t == 0 else "the weights of lowest training loss"
        descent_ending = "converged" if status.converged else "stopped without converging"
        n_settle = sum(settled.n_iter for settled in descents)
        message += f"; a descent from {begin} {descent_ending} after {count_noun(n_settle, 'step')}"
    return message + "."


def _advice(data: Dataset, risk: str, tol: float, status: Status, norm: float, curvature: Curvature | None) -> str:
    """Return a sentence on how to continue from a saddle, or from weights that did not converge; else nothing."""
    if curvature is not None and not curvature.is_minimum:
        eigenvalue = f"lowest eigenvalue of the Hessian {curvature.lowest_eigenvalue:.2g}"
        remedy = "escape=True (gamp-attention fit: --escape) leaves it"
        return f" The weights are a saddle of the risk ({eigenvalue}): {remedy}."
    if tol == 0 or status.converged:
        return ""
    method = "lbfgs" if is_ridge(data.penalty) else "gd"
    longer = "a larger max_iter or " if status is Status.MAX_ITER else ""
    return (
        f" Not converged, gradient norm {norm:.2g}: {longer}minimize_risk(data, result.Q, {risk!r}, {method!r}) "
        "(gamp-attention fit: --init RESULT.npz) continues from these weights, the best so far."
    )


def _count_lower_minima(
    data: Dataset, risk: str, at: RiskAtPoint, V: np.ndarray, samples: np.ndarray | None, max_starts: int | None
) -> tuple[int, int]:
    """Return the numbers of samples with a proximal minimum lower than at the fields z, and nearly as low.

    The proximal objective is taken at ω = z − V g, of which z is a local minimum. Only `samples` are searched (default:
    all), each from at most `max_starts` further starts.
    """
    if is_convex(data) or (samples is not None and not len(samples)):
        return 0, 0  # a convex proximal objective has one minimum
    best = denoise_at(data, at, V, samples=samples, max_starts=max_starts)
    slopes = at.loss_gradients
    here = at.losses + 0.5 * np.sum(slopes * apply_by_source(data.groups, V, slopes), axis=(1, 2))  # objective at z
    here = here if samples is None else here[samples]
    off = best.moreau < here - 1e-9 * (1.0 + np.abs(here))
    constant = data.terms(risk).constant
    mean_loss = np.mean(np.abs(best.loss + (constant if samples is None else constant[samples])))
    return int(np.count_nonzero(off)), int(np.count_nonzero(best.gap < NEARLY_AS_LOW * mean_loss))
