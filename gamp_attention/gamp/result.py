"""Results of `run_gamp`: descent from states on which message passing cycles, checks of the weights, and the report."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import progress
from gamp_attention._tools.display import count_noun
from gamp_attention.gamp.descent import Settled, SettlingHistory, is_fixed_point, settle
from gamp_attention.gamp.loop import Loop, show_risk
from gamp_attention.gamp.step import GampState
from gamp_attention.problem.curvature import Curvature, grows_without_bound, lowest_curvature
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.layer import Predictor, layer_of
from gamp_attention.problem.penalties.standard import is_ridge
from gamp_attention.problem.risk import on_kinks, overlaps, risk_at
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.results import Ended, History, Overlaps, Status

CYCLES = (Status.STALLED, Status.DIVERGED, Status.NONFINITE)  # endings of message passing that a descent can improve on
CHECKED_ENTRIES = 100_000  # number of Hessian entries of the samples for which a run with bounded searches is checked
FACTORIZED = 64  # number of fields for which factorizing a Hessian takes as long as computing it
UNCONFIRMED = 100.0  # ratio of the gradient norm to the tolerance above which message passing has not converged
ENDINGS = {
    Status.CONVERGED: "converged after {}",
    Status.MAX_ITER: "reached its limit of {}",
    Status.STALLED: "stopped improving after {}",
    Status.DIVERGED: "diverged after {}",
    Status.NONFINITE: "reached numbers that are not finite after {}",
}
GROWS = (
    " But the weights grow without bound: the risk has no minimum, because weights without a penalty separate the "
    "samples, or all labels are equal. Give them a penalty (lam > 0, intercept=False), or leave out their columns."
)


class Trained(Ended):
    """Base class of results with a trained layer."""

    layer: Predictor | None

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
    state : last state of message passing; pass it as `init` to continue.
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
    state: GampState
    message: str
    settling_history: SettlingHistory | None = None
    layer: Predictor | None = None


def run_and_settle(loop: Loop) -> GampResult:
    """Run message passing to its end, complete it by descent if it cycles, and return the checked result."""
    ending, lowest = loop.run(), loop.monitor.lowest_loss
    assert ending is not None
    settles = loop.plan.options.settling and ending in CYCLES and np.isfinite(lowest)
    return _build_result(loop, ending, _descend(loop, loop.monitor.lowest_Q) if settles else None)


def settle_from(loop: Loop, Q: np.ndarray) -> GampResult:
    """Return the checked result of a descent from weights Q (d, r), in place of the end of message passing."""
    return _build_result(loop, Status.STALLED, _descend(loop, Q), at_start=True)


def _descend(loop: Loop, Q: np.ndarray) -> Settled:
    """Return the end of a descent, which shows its progress under the name of the loop."""
    show = partial(show_risk, f"{loop.name}, descent after message passing")
    return settle(loop.plan.data, loop.plan.risk, Q, loop.plan.tol, callback=show)


def _build_result(loop: Loop, ending: Status, descent: Settled | None, at_start: bool = False) -> GampResult:
    """Select the better weights of message passing and a descent after it, check them, and return the result.

    If the descent began at the start of the loop (`at_start`), its end is selected in any case.
    """
    plan, status = loop.plan, ending
    data, risk, tol = plan.data, plan.risk, plan.tol
    keep_last = ending is Status.CONVERGED or (tol == 0 and ending is Status.MAX_ITER)
    best = loop.state if keep_last else loop.monitor.best_state
    Q, V = best.Q, best.V
    state: GampState | None = best  # at kinks, its slopes are the start of a search for the smallest subgradient
    if tol > 0 and not data.penalty.smooth:
        Q = on_kinks(data.penalty, Q, risk_at(data, Q, risk).smooth)[0]
    if descent is not None:
        converged = descent.gradient_norm <= tol
        status = Status.SETTLED if converged else ending
        if at_start or converged or descent.gradient_norm < loop.monitor.best_norm:
            Q, state = descent.Q, None

    progress.describe(f"{loop.name}, checking whether the weights are a minimum")
    at = descent.at if descent is not None and Q is descent.Q else risk_at(data, Q, risk, state)
    if ending is Status.CONVERGED and not at.gradient_norm <= UNCONFIRMED * tol:  # rounded to zero at huge fields
        settles = plan.options.settling
        return _build_result(loop, Status.STALLED, _descend(loop, loop.monitor.lowest_Q) if settles else None)
    if descent is not None:
        solved_V = susceptibility(data, at, Q, quick=loop.bounded)
        V = solved_V if np.isfinite(solved_V).all() else V
    grows = tol > 0 and status is not Status.NONFINITE and grows_without_bound(data, Q, risk)
    status = Status.DIVERGED if grows else status
    fixed_point, curvature = None, Curvature(np.nan, np.nan, None, False)
    if status.converged:
        fixed_point = is_fixed_point(data, at, V, samples=_samples_to_check(data) if loop.bounded else None)
        curvature = lowest_curvature(data, at, Q, plan.direction)
    message = _describe_ending(loop, ending, descent, at_start)
    message += GROWS if grows else _advice(data, risk, tol, status, at.gradient_norm, curvature)
    return GampResult(
        status=status, n_iter=loop.t, residual=at.gradient_norm, history=loop.record.history(), Q=Q,
        overlaps=overlaps(data, Q, V), train_loss=at.train_loss, gradient_norm=at.gradient_norm,
        message_passing=ending, n_settle=0 if descent is None else descent.n_iter, fixed_point=fixed_point,
        state=loop.state, message=message, settling_history=None if descent is None else descent.history,
        layer=layer_of(data, Q), **curvature._asdict(),
    )  # fmt: skip


def _samples_to_check(data: Dataset) -> np.ndarray | None:
    """Return indices of the samples that a run with bounded searches checks, evenly spaced; None for all samples.

    The entries of their Hessians, (L r)² each, are limited. For more than a few hundred fields, one sample is checked.
    """
    n_fields = data.n_tokens * data.rank
    n = max(1, int(CHECKED_ENTRIES / (n_fields**2 * (1 + n_fields / FACTORIZED))))
    return None if n >= data.n_samples else np.linspace(0, data.n_samples - 1, n).astype(int)


def _describe_ending(loop: Loop, ending: Status, descent: Settled | None, at_start: bool) -> str:
    """Return a sentence on the end of message passing and of the descent after it."""
    message = f"Message passing {ENDINGS[ending].format(count_noun(loop.t, 'iteration'))}"
    if descent is not None:
        begin = "weights of lower" if at_start else "the weights of lowest"
        outcome = "converged" if descent.gradient_norm <= loop.plan.tol else "stopped without converging"
        message += f"; a descent from {begin} training loss {outcome} after {count_noun(descent.n_iter, 'step')}"
    return message + "."


def _advice(data: Dataset, risk: str, tol: float, status: Status, norm: float, curvature: Curvature) -> str:
    """Return a sentence on how to continue from a saddle, or from weights that did not converge; else nothing."""
    if status.converged and not curvature.is_minimum:
        eigenvalue = f"lowest eigenvalue of the Hessian {curvature.lowest_eigenvalue:.2g}"
        remedy = "gamp_attention.train leaves it (escape=True)"
        return f" The weights are a saddle of the risk ({eigenvalue}): {remedy}."
    if tol == 0 or status.converged:
        return ""
    method = "lbfgs" if is_ridge(data.penalty) else "gd"
    longer = "a larger max_iter or " if status is Status.MAX_ITER else ""
    return (
        f" Not converged, gradient norm {norm:.2g}: {longer}minimize_risk(data, result.Q, {risk!r}, {method!r}) "
        "continues from these weights, the best so far."
    )
