"""run_gamp: the loop around the GAMP step, with its statuses, adaptive damping, verification and settling."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.acceleration import Acceleration
from gamp_attention.data import Dataset
from gamp_attention.denoiser import denoise_groups
from gamp_attention.gamp import GampState, Memory, StepReport, averaged_memory, gamp_step, initial_state
from gamp_attention.gamp_control import HOLD_AFTER, Damping, Watch, responses
from gamp_attention.newton import NotPositiveDefinite, make_metric
from gamp_attention.penalties import Ridge
from gamp_attention.penalty_terms import on_kinks
from gamp_attention.results import History, Overlaps, Recorder, Status, finish
from gamp_attention.risk import RiskAtPoint, gradient_norm, overlaps, risk_at, susceptibility
from gamp_attention.settling import is_fixed_point, settle
from gamp_attention.sources import weighted
from gamp_attention.starts import initial_weights

NEAR_JUMP = 1e-2  # gap to the next minimum, relative to the mean loss of a sample, that counts as a jump nearby

Callback = Callable[[int, GampState, StepReport], None]


@dataclass(frozen=True, eq=False)
class GampResult:
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
    n_off_global : samples whose held proximal minimum is not the global one.
    n_near_jump : samples with another proximal minimum nearly as low.
    state : the last state of message passing, to go on from.
    message : the outcome in words.
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
    n_off_global: int
    n_near_jump: int
    state: GampState
    message: str

    @property
    def converged(self) -> bool:
        """Whether gradient_norm <= tol."""
        return self.status.converged


def run_gamp(
    data: Dataset,
    init: Any = "semantic",
    risk: str | None = None,
    *,
    damping: Any = "adaptive",
    tol: float = 1e-8,
    max_iter: int = 500,
    hold_after: int | None = None,
    accelerate: bool = False,
    settling: bool = True,
    onsager: Any = "empirical",
    memory: Memory = averaged_memory,
    V: Any = None,
    seed: Any = 0,
    callback: Callback | None = None,
    raise_on_failure: bool = False,
) -> GampResult:
    """Run damped GAMP to a critical point of the training risk, eq. (3).

    Eq. :eq:`critical`.

    Parameters
    ----------
    data : the samples.
    init : "semantic", "positional", "random", or weights (d, r).
    risk : "asymptotic" (eq. 41) or "exact"; if not given, asymptotic where the teacher is known.
    damping : the step β in (0, 1], a sequence with one for each iteration, or "adaptive": 0.3 at first, and
        on divergence or a stall back to the best state with a smaller one.
    tol : bound on ‖∇R‖_F/(λ√d). With tol=0 exactly max_iter iterations are run and the last one returned.
    max_iter : bound on iterations of message passing.
    hold_after : iteration from which each sample keeps its local proximal minimum; global minima before.
        If not given, 20, or never where tol=0, since state evolution tracks global minima.
    accelerate : extrapolate by Anderson acceleration, with damped iterations wherever that raises the gradient norm.
        The same fixed points in fewer iterations, but the iterates are no longer those that state evolution tracks.
    settling : finish by descent (see `gamp_attention.settling`) where message passing cycles.
    onsager : "empirical" response, "state_evolution" (taken from `trajectory` at the same start and damping),
        or an array (T, S, r, r) of responses V̂_t, the last one being repeated; S = L but for mixtures.
    memory : rule for the Onsager memory D; see `gamp_attention.gamp.gamp_step`.
    V : (S, r, r) variances to start with; tr Σ_l/(2dλ) if not given.
    seed : for the random part of a start.
    callback : called with (iteration, state, report) at every iteration.
    raise_on_failure : raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    GampResult. `converged` means that the gradient norm is at most tol, `fixed_point` that Q was verified to be a fixed
        point of GAMP.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> result = ga.run_gamp(data, init="semantic", damping=0.5)
    >>> result.converged, result.gradient_norm < 1e-8
    (True, True)
    """
    if not isinstance(data, Dataset):
        raise check.fail("data", data, "a gamp_attention.Dataset", TypeError)
    if risk is None:
        risk = "exact" if data.model is None else "asymptotic"
    data.terms(risk)
    tol = check.real("tol", tol, low=0)
    max_iter = check.integer("max_iter", max_iter, low=1)
    step = Damping(damping)
    if hold_after is None:
        hold_after = HOLD_AFTER if tol > 0 else max_iter + 1
    hold_after = check.integer("hold_after", hold_after, low=0)
    state = initial_state(data, initial_weights(data, init, seed), _variances(V, data))

    def predicted() -> np.ndarray:
        from gamp_attention.state_evolution.trajectory import trajectory

        start = init if isinstance(init, str) and V is None else overlaps(data, state.Q, state.V)
        return trajectory(data.instance_model(), data.alpha, start, damping=damping, n_iter=min(max_iter, 40)).V_hat

    V_hat = responses(onsager, data.n_sources, data.rank, predicted)

    acceleration = Acceleration() if accelerate else None
    record, watch, status = Recorder(), Watch(tol, hold_after, state), Status.MAX_ITER
    for t in range(max_iter + 1):
        try:
            after, report = gamp_step(data, risk, state, step(t), hold=t >= hold_after, V_hat=V_hat(t), memory=memory)
        except (np.linalg.LinAlgError, NotPositiveDefinite):
            after, report = state, None
        verdict = watch.judge(t, state, report, step(t))
        if report is None:
            at = risk_at(data, state.Q, risk)
            record.add(overlaps(data, state.Q, state.V), gradient_norm(data, at.gradient), at.train_loss)
        else:
            record.add(overlaps(data, state.Q, state.V), report.gradient_norm, report.train_loss)
            if callback is not None:
                callback(t, state, report)
        if verdict is Status.CONVERGED:
            status = verdict
            break
        if t == max_iter:
            break
        if verdict is not None:
            if not step.shrink():
                status = verdict
                break
            after = watch.restart(t)
            if acceleration is not None:
                acceleration.restart()
        elif acceleration is not None and report is not None:
            after = acceleration(state, after, report.gradient_norm)
        record.step(step(t))
        state = after
    return finish(_conclude(data, risk, status, tol, settling, t, record, state, watch), raise_on_failure, "run_gamp")


def _variances(V: Any, data: Dataset) -> np.ndarray | None:
    if V is None:
        return None
    V = check.array("V", V, (data.n_sources, data.rank, data.rank))
    make_metric(V)
    return V


def _conclude(
    data: Dataset,
    risk: str,
    passing: Status,
    tol: float,
    settling: bool,
    n_iter: int,
    record: Recorder,
    last: GampState,
    watch: Watch,
) -> GampResult:
    """Settle where message passing cycled, verify, and report the best there is."""
    keep_last = passing is Status.CONVERGED or (tol == 0 and passing is Status.MAX_ITER)
    state = last if keep_last else watch.best_state
    Q, V, status, n_settle = state.Q, state.V, passing, 0
    if tol > 0 and type(data.penalty) is not Ridge:
        Q = on_kinks(data.penalty, Q, risk_at(data, Q, risk).smooth)[0]
    message = f"message passing: {passing.value} after {n_iter} iterations"
    if settling and passing in (Status.STALLED, Status.DIVERGED):
        settled = settle(data, risk, Q, tol)
        n_settle = settled.n_iter
        if settled.gradient_norm <= tol:
            status = Status.SETTLED
        if settled.gradient_norm < watch.best_norm:
            Q = settled.Q
        message += f"; settling: {'converged' if status.converged else 'stalled'} after {n_settle}"
    at = risk_at(data, Q, risk)
    if n_settle:
        settled_V = susceptibility(data, at, Q)
        V = settled_V if np.isfinite(settled_V).all() else V
    fixed = is_fixed_point(data, risk, at, V) if status.converged else None
    n_off, n_near = _competing_minima(data, risk, at, V)
    norm = gradient_norm(data, at.gradient)
    return GampResult(
        status=status,
        n_iter=n_iter,
        residual=norm,
        history=record.history(),
        Q=Q,
        overlaps=overlaps(data, Q, V),
        train_loss=at.train_loss,
        gradient_norm=norm,
        message_passing=passing,
        n_settle=n_settle,
        fixed_point=fixed,
        n_off_global=n_off,
        n_near_jump=n_near,
        state=last,
        message=message,
    )


def _competing_minima(data: Dataset, risk: str, at: RiskAtPoint, V: np.ndarray) -> tuple[int, int]:
    """Samples whose fields z, as the proximal point of ω = z − V g, are not the global one; and nearly not."""
    terms = data.terms(risk)
    omega = at.z + weighted(data.groups, V, at.loss_gradients)
    held = denoise_groups(data.groups, data.loss, terms.params, omega, V, at.z, hold=True)
    best = denoise_groups(data.groups, data.loss, terms.params, omega, V, at.z)
    off = best.moreau < held.moreau - 1e-9 * (1.0 + np.abs(held.moreau))
    spread = np.mean(np.abs(best.loss + terms.constant))
    return int(np.count_nonzero(off)), int(np.count_nonzero(best.gap < NEAR_JUMP * spread))
