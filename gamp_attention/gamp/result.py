"""The result of run_gamp: settling where message passing cycled, verification, and a report of the best there is."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import progress
from gamp_attention.data.curvature import lowest_curvature
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, denoise_at, overlaps, risk_at, susceptibility
from gamp_attention.gamp.budget import BUDGET, can_solve_for_variances, samples_to_verify
from gamp_attention.gamp.loop import Loop, Plan, described
from gamp_attention.gamp.settling import Settled, SettlingHistory, is_fixed_point, settle
from gamp_attention.gamp.step import GampState
from gamp_attention.penalties.matrix import on_kinks
from gamp_attention.results import Ended, History, Overlaps, Status

CYCLES = (Status.STALLED, Status.DIVERGED, Status.NONFINITE)  # endings of message passing that a descent can improve on


@dataclass(frozen=True, eq=False)
class GampResult(Ended):
    """Outcome of `run_gamp`.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the gradient norm.
    Q : (d, r) weights: the last iterate where converged or tol = 0, else the one of smallest gradient. For other
        penalties than the ridge, and tol > 0, after a proximal step that puts on kinks those that a kink holds.
    overlaps : of Q, with V.
    train_loss, gradient_norm : ε_t and ‖∇R‖_F/(λ√d) at Q.
    message_passing : how the message passing phase ended, before any settling.
    n_settle : iterations of the settling phase, 0 if there was none.
    fixed_point : whether Q was verified to be a fixed point of GAMP; None where it did not converge.
    is_minimum : whether the run converged and no eigenvalue of ∇²R at Q is negative; False for a saddle.
    lowest_eigenvalue : of ∇²R at Q, with the R of `gamp_attention.gradient`, in directions that no kink of the penalty
        holds; NaN where it did not converge. Where a common rotation of the columns of Q changes nothing, it is at
        most 0.
    direction : (d, r) its eigenvector, of norm 1, where the risk is softest, and the way off a saddle; None where the
        run did not converge.
    n_escapes : saddles that the run has left.
    n_off_global : number of searched samples whose proximal minimum is not the global minimum.
    n_near_jump : number of searched samples with another proximal minimum that is nearly as low.
    n_searched : number of samples that were searched for other minima at the end: all samples; after a bounded search
        (see `search` of `run_gamp`) as many as can be searched in little time, each from two further starts.
    state : the last state of message passing, to go on from.
    starts : what became of each start; see `gamp_attention.gamp.many_starts`.
    message : the outcome in words.
    settling_history : training loss and gradient norm along the descent of the settling phase; None without this phase.
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
    direction: np.ndarray | None
    n_escapes: int
    n_off_global: int
    n_near_jump: int
    state: GampState
    message: str
    n_searched: int = 0
    starts: tuple[Any, ...] = ()
    settling_history: SettlingHistory | None = None


ENDINGS = {
    Status.CONVERGED: "converged after {} iterations",
    Status.MAX_ITER: "reached its limit of {} iterations",
    Status.STALLED: "stopped improving after {} iterations",
    Status.DIVERGED: "diverged after {} iterations",
    Status.NONFINITE: "reached numbers that are not finite after {} iterations",
}


def followed(plan: Plan, loop: Loop) -> GampResult:
    """Where message passing leads, or a descent from its start where it goes back up to the saddle it came from."""
    passing = loop.run()
    assert passing is not None
    result = conclude(plan, loop, passing)
    returned = loop.escapes > 0 and not result.train_loss < loop.ceiling
    return conclude(plan, loop, Status.STALLED, loop.start) if returned else result


def conclude(plan: Plan, loop: Loop, passing: Status, start: np.ndarray | None = None) -> GampResult:
    """Settle where message passing cycled, verify, and report the best there is.

    Settling begins at the weights `start`, by default at the weights of lowest training loss. A run with a budget may
    then resume message passing. Of the critical points found, the point of lowest training loss is reported.
    """
    data, risk, tol, watch = plan.data, plan.risk, plan.tol, loop.watch
    descents = list[Settled]()

    def show(at: RiskAtPoint) -> None:
        if progress.is_shown():
            progress.describe(f"{loop.name}, descent after message passing, {described(at)}")

    while plan.settling and passing in CYCLES and (start is not None or np.isfinite(watch.lowest_loss)):
        settled = settle(data, risk, watch.lowest_Q if start is None else start, tol, callback=show)
        descents.append(settled)
        if start is not None or settled.gradient_norm > tol or not loop.resume(settled.n_iter):
            break
        resumed = loop.run()
        assert resumed is not None
        passing = resumed

    last = loop.state
    keep_last = passing is Status.CONVERGED or (tol == 0 and passing is Status.MAX_ITER)
    best = last if keep_last else watch.best_state
    Q, V, status, n_settle = best.Q, best.V, passing, sum(settled.n_iter for settled in descents)
    if tol > 0 and not data.penalty.smooth:
        Q = on_kinks(data.penalty, Q, risk_at(data, Q, risk).smooth)[0]
    message, descent = f"Message passing {ENDINGS[passing].format(loop.t)}", None
    lowest = min(descents, key=lambda settled: (not settled.gradient_norm <= tol, settled.train_loss), default=None)
    if lowest is not None:
        reached, higher = lowest.gradient_norm <= tol, passing is Status.CONVERGED
        if higher:
            higher = not reached or lowest.train_loss >= risk_at(data, Q, risk).train_loss
        if reached and not higher:
            status = Status.SETTLED
        if not higher and (start is not None or reached or lowest.gradient_norm < watch.best_norm):
            Q, descent = lowest.Q, lowest.history
        begin = "its start" if start is not None else "the weights of lowest training loss"
        ending = "converged" if status.converged else "stopped without converging"
        message += f"; a descent from {begin} {ending} after {n_settle} steps"
    message += "."

    progress.describe(f"{loop.name}, checking whether the weights are a minimum")
    at = risk_at(data, Q, risk)
    if lowest is not None and can_solve_for_variances(data, loop.bounded):
        settled_V = susceptibility(data, at, Q, quick=loop.bounded)
        V = settled_V if np.isfinite(settled_V).all() else V
    some = samples_to_verify(data, loop.bounded, BUDGET.held)
    fixed = is_fixed_point(data, at, V, samples=some) if status.converged else None
    curvature = lowest_curvature(data, at, Q, plan.direction) if status.converged else None
    if curvature is not None and not curvature.is_minimum:
        eigenvalue = f"lowest eigenvalue of the Hessian {curvature.lowest_eigenvalue:.2g}"
        remedy = "escape=True (gamp-attention fit: --escape) leaves it"
        message += f" The weights are a saddle of the risk ({eigenvalue}): {remedy}."
    samples = samples_to_verify(data, loop.bounded, BUDGET.searches)
    n_off, n_near = _competing_minima(data, risk, at, V, samples, BUDGET.starts if loop.bounded else None)
    if tol > 0 and not status.converged:
        message += _advice(data, risk, status, at.gradient_norm)
    return GampResult(
        status=status, n_iter=loop.t, residual=at.gradient_norm, history=loop.record.history(), Q=Q,
        overlaps=overlaps(data, Q, V), train_loss=at.train_loss, gradient_norm=at.gradient_norm,
        message_passing=passing, n_settle=n_settle, fixed_point=fixed,
        is_minimum=curvature is not None and curvature.is_minimum,
        lowest_eigenvalue=np.nan if curvature is None else curvature.lowest_eigenvalue,
        direction=None if curvature is None else curvature.direction, n_escapes=loop.escapes,
        n_off_global=n_off, n_near_jump=n_near, n_searched=data.n_samples if samples is None else len(samples),
        state=last if data.rows_here else last.fetched(), message=message, settling_history=descent,
    )  # fmt: skip


def _advice(data: Dataset, risk: str, status: Status, norm: float) -> str:
    """Return a sentence on how to continue from weights that did not converge."""
    method = "lbfgs" if data.penalty.quadratic else "gd"
    longer = "a larger max_iter or " if status is Status.MAX_ITER else ""
    return (
        f" Not converged, gradient norm {norm:.2g}: {longer}minimize_risk(data, result.Q, {risk!r}, {method!r}) "
        "continues from these weights, the best so far."
    )


def _competing_minima(
    data: Dataset,
    risk: str,
    at: RiskAtPoint,
    V: np.ndarray,
    samples: np.ndarray | None,
    max_starts: int | None,
    near: float = 1e-2,
) -> tuple[int, int]:
    """Samples whose fields z are not the global minimum of their proximal objective at ω = z − V g, and nearly not.

    A minimum counts as nearly as low if it is higher by less than `near`, in units of the mean loss of a sample. Only
    `samples` are searched (default: all), each from at most `max_starts` further starts.
    """
    if samples is not None and not len(samples):
        return 0, 0
    held = denoise_at(data, at, V, samples=samples, hold=True)
    best = denoise_at(data, at, V, samples=samples, max_starts=max_starts)
    off = best.moreau < held.moreau - 1e-9 * (1.0 + np.abs(held.moreau))
    constant = data.terms(risk).constant
    mean_loss = np.mean(np.abs(best.loss + (constant if samples is None else constant[samples])))
    return int(np.count_nonzero(off)), int(np.count_nonzero(best.gap < near * mean_loss))
