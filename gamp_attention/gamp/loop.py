"""Message passing from a start to a status: damping, acceleration, detection of stalls, and bounded searches.

`Loop` repeats the iteration of `gamp_attention.gamp.step`. At each iteration `ProgressMonitor` decides whether the run
has converged, is in trouble (it diverged, or stopped improving), or continues. On trouble, adaptive damping returns to
the best state with a smaller step; if the step may not shrink any more, the run ends, and the caller may finish it by
descent (`gamp_attention.gamp.settling`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gamp_attention._core import progress
from gamp_attention._core.check import read_only
from gamp_attention._core.runs import Resumable, Run
from gamp_attention.damping import FIRST_STEP, Damping, Steps
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import Memory
from gamp_attention.data.risk import RiskAtPoint, overlaps, risk_at
from gamp_attention.denoisers.newton import LAST_STEP, ROUGH_STEP, NotPositiveDefinite
from gamp_attention.gamp.acceleration import LATE_BELOW, WARM_UP, Acceleration
from gamp_attention.gamp.budget import HAND_OVER_BELOW, PATIENCE, SHORT_DESCENT, Budget, starts_of_searches
from gamp_attention.gamp.step import GampState, StepReport, gamp_step
from gamp_attention.results import Recorder, Status

Callback = Callable[[int, GampState, StepReport], None]
LATE = "late"  # value of Plan.accelerate


STALL_PATIENCE = 40  # iterations without progress, at the first adaptive step, after which a run has stalled
NORM_RATIO = 0.5  # ratio to the gradient norm at the last progress, at or below which there is progress
LOSS_RATIO = 0.99  # the same ratio for the training loss: while it falls, a minimum is still being selected
MAX_MINIMISATIONS = 100.0  # minimisations per sample and iteration above which default runs bound their searches
MAX_GROWTH = 1e4  # ratio of the gradient norm to max(1, its minimum) above which a run diverges


@dataclass(frozen=True)
class Plan:
    """Arguments that do not change during a run; see `run_gamp` and `IterationOptions`.

    Attributes
    ----------
    accelerate : whether to extrapolate, or LATE: steps then grow near the end, and extrapolation waits until local
        minima are kept and the gradient norm is small.
    V_hat : function of the iteration that returns the response V̂_t, or None for the empirical response.
    direction : (d, r) initial vector of the search for the direction of lowest curvature; None for a random vector.
    bounded : whether searches for global proximal minima are bounded; see `gamp_attention.gamp.budget`.
    may_bound : whether searches become bounded after an iteration with more than `MAX_MINIMISATIONS` minimisations per
        sample.
    """

    data: Dataset
    risk: str
    damping: Steps
    tol: float
    max_iter: int
    hold_after: int
    accelerate: bool | str
    settling: bool
    V_hat: Callable[[int], np.ndarray | None]
    memory: Memory
    callback: Callback | None
    direction: np.ndarray | None
    bounded: bool
    may_bound: bool


class ProgressMonitor(Resumable):
    """Decision at each iteration whether a run continues, and the best states since its start.

    Attributes
    ----------
    best_state, best_norm : state of smallest gradient norm, and this norm.
    lowest_Q, lowest_loss : weights of lowest training loss, and this loss.
    patience : number of iterations without progress, at the first adaptive step, after which the run has stalled.
    mark, mark_norm, mark_loss : iteration of the last progress, and the gradient norm and training loss to improve on.
    """

    best_state: GampState
    best_norm: float
    lowest_Q: np.ndarray
    lowest_loss: float
    patience: float
    mark: int
    mark_norm: float
    mark_loss: float

    def __init__(self, plan: Plan, start: GampState) -> None:
        self._tol, self._hold_after, self._settling = plan.tol, plan.hold_after, plan.settling
        self.patience = PATIENCE if plan.bounded else STALL_PATIENCE
        self.best_state, self.best_norm = start, np.inf
        self.lowest_Q, self.lowest_loss = start.Q, np.inf
        self._set_mark(0, np.inf, np.inf)

    def _set_mark(self, t: int, norm: float, loss: float) -> None:
        self.mark, self.mark_norm, self.mark_loss = t, norm, loss

    def assess(self, t: int, state: GampState, report: StepReport | None, step: float) -> Status | None:
        """Return CONVERGED, a kind of trouble, or None if the run continues.

        With tol = 0, only a step that breaks down or numbers that are not finite end the run.
        """
        if report is None:
            return Status.DIVERGED
        norm, loss = report.gradient_norm, report.train_loss
        if not np.isfinite(norm):
            return Status.NONFINITE
        self.keep_best(state, norm, loss)
        if self._tol == 0:
            return None
        if norm <= self._tol:
            return Status.CONVERGED
        if norm > MAX_GROWTH * max(self.best_norm, 1.0):
            return Status.DIVERGED
        if t <= self._hold_after:  # changes of the proximal minima may raise gradient and loss
            self._set_mark(t, norm, loss)
        elif norm <= NORM_RATIO * self.mark_norm or loss <= LOSS_RATIO * self.mark_loss:
            self._set_mark(t, min(norm, self.mark_norm), min(loss, self.mark_loss))
        elif t - self.mark > self.patience * FIRST_STEP / min(step, FIRST_STEP):
            return Status.STALLED
        return None

    def keep_best(self, state: GampState, norm: float, loss: float) -> None:
        """Keep a state if its gradient norm, or the training loss of its weights, is the smallest so far."""
        if norm < self.best_norm:
            self.best_state, self.best_norm = state, norm
        if loss < self.lowest_loss:
            self.lowest_Q, self.lowest_loss = state.Q, loss

    def allows_smaller_step(self, trouble: Status) -> bool:
        """Return whether to retry from the best state with a smaller step.

        A stalled run is not retried if a descent may follow, because the descent ends a cycle sooner.
        """
        return not (self._settling and trouble is Status.STALLED)

    def return_to_best(self, t: int) -> GampState:
        """Return the best state, and measure progress from iteration t on."""
        self._set_mark(t, self.best_norm, np.inf)
        return self.best_state

    def resume(self, t: int) -> None:
        """Measure progress from iteration t on, with the patience of a run without a budget.

        The lowest training loss is reset, so that only later iterations count.
        """
        self._set_mark(t, np.inf, np.inf)
        self.patience, self.lowest_loss = STALL_PATIENCE, np.inf


def describe_risk(at: StepReport | RiskAtPoint) -> str:
    """Return the training loss and the gradient norm in words."""
    return f"training loss {at.train_loss:.4g}, gradient norm {at.gradient_norm:.1e}"


class Loop(Run[Status]):
    """A run of message passing from a start, and, after it has ended, from further starts.

    Parameters
    ----------
    plan : arguments that do not change.
    state : the start.
    save : called between two iterations, to write a checkpoint; None for no checkpoints.
    name : name of the start, for the display of progress.

    Attributes
    ----------
    t : number of iterations so far, over all starts.
    state : the state before the next iteration.
    ended : status with which the run from the last start ended; None while it continues.
    resume_from : state after the last iteration of a run that stopped improving, from which it may be resumed.
    recorded_Q : weights of the last entry of the history.
    began, start, loss_bound : iteration and weights of the last start, and the training loss that the run from there
        must not exceed.
    n_escapes : number of further starts so far.
    bounded : whether searches for global proximal minima are currently bounded.
    may_hand_over : whether message passing ends near a critical point, so that a descent takes over.
    handed_over : whether it has ended for this reason.
    monitor, record : best states since the last start, and history since the first.
    """

    state: GampState
    ended: Status | None
    resume_from: GampState | None
    recorded_Q: np.ndarray
    began: int
    start: np.ndarray
    loss_bound: float
    n_escapes: int
    bounded: bool
    may_hand_over: bool
    handed_over: bool
    record: Recorder
    monitor: ProgressMonitor
    budget: Budget
    damping: Damping
    acceleration: Acceleration | None

    def __init__(self, plan: Plan, state: GampState, save: Callable[[], None] | None = None, name: str = "") -> None:
        super().__init__(save)
        self._plan, self.name = plan, name
        self.n_escapes, self.record, self.recorded_Q = 0, Recorder(), state.Q
        self._begin(state, math.inf)

    def _begin(self, state: GampState, loss_bound: float) -> None:
        plan = self._plan
        self.state, self.began, self.start, self.loss_bound = state, self.t, state.Q, loss_bound
        self.ended = self.resume_from = None
        self.bounded, self.may_hand_over, self.handed_over = plan.bounded, True, False
        self.monitor = ProgressMonitor(plan, state)
        self.budget = Budget(plan.data, plan.bounded and plan.settling)
        late = plan.accelerate == LATE
        self.damping = Damping(plan.damping, grows=late)
        self.acceleration = Acceleration(0 if late else WARM_UP) if plan.accelerate else None

    def restart_from(self, state: GampState, loss_bound: float) -> None:
        """Begin again from another state; the change of state counts as an iteration, whose damping is NaN."""
        self.record.step(np.nan)
        self.t, self.n_escapes = self.t + 1, self.n_escapes + 1
        self._begin(state, loss_bound)

    def resume(self, n_descent: int) -> bool:
        """Continue a stalled run if the budget allows it after `n_descent` steps of descent; return whether it does.

        A run that descent has taken over near a critical point continues if the descent was not short.
        """
        if self.ended is not Status.STALLED or self.resume_from is None or self.t >= self._plan.max_iter:
            return False
        if self.handed_over:
            if n_descent <= SHORT_DESCENT:
                return False
            self.may_hand_over = self.handed_over = False
        elif not (self.bounded and self.budget.extend(n_descent)):
            return False
        self.record.step(self.damping(self.t - self.began))
        self.t, self.state, self.ended, self.resume_from = self.t + 1, self.resume_from, None, None
        self.monitor.resume(self.t - self.began)
        return True

    @property
    def is_only_descent(self) -> bool:
        """True if message passing would cost too much, so that the run is only a descent from its start."""
        return self.t == self.began and not self.budget.suffices

    def advance(self) -> Status | None:
        """Do one iteration; return the status of the run if it has ended, or None if it continues."""
        if self.is_only_descent:
            return self._end_at_start()
        plan, t = self._plan, self.t - self.began
        step = self.damping(t)
        after, report = self._iterate(t, step)
        verdict = self.monitor.assess(t, self.state, report, step)
        if report is not None:
            self._account(report)
            if verdict is None and self.budget.is_spent:
                verdict = Status.STALLED
            elif verdict is None and self._is_near_end(report):
                self.handed_over, verdict = True, Status.STALLED
        at = risk_at(plan.data, self.state.Q, plan.risk) if report is None else report
        self._add_to_history(at)
        if progress.is_shown():
            progress.describe(f"{self.name}, iteration {self.t}, {describe_risk(at)}")
        if plan.callback is not None and report is not None:
            plan.callback(self.t, read_only(self.state), read_only(report))
        if verdict is Status.CONVERGED:
            return verdict
        if self.t >= plan.max_iter:
            return Status.MAX_ITER
        if verdict is not None:
            if not self.monitor.allows_smaller_step(verdict) or not self.damping.shrink():
                self.resume_from = after
                return verdict
            after = self.monitor.return_to_best(t)
            if self.acceleration is not None:
                self.acceleration.restart()
        elif self.acceleration is not None and report is not None and self._may_extrapolate(t, report):
            after = self.acceleration(self.state, after, report.gradient_norm)
        self.record.step(self.damping(t))
        if self.damping.follow(at.gradient_norm) and self.acceleration is not None:
            self.acceleration.restart()
        self.t, self.state = self.t + 1, after
        return None

    def _iterate(self, t: int, step: float) -> tuple[GampState, StepReport | None]:
        """Return the next state and a report on the current state; the report is None if the step breaks down."""
        plan = self._plan
        try:
            return gamp_step(
                plan.data, plan.risk, self.state, step, hold=False, V_hat=plan.V_hat(t), memory=plan.memory,
                max_starts=starts_of_searches(t, plan.hold_after, self.bounded),
                last_step=ROUGH_STEP if self.bounded and t < plan.hold_after else LAST_STEP,
            )  # fmt: skip
        except (np.linalg.LinAlgError, NotPositiveDefinite):
            return self.state, None

    def _account(self, report: StepReport) -> None:
        """Add the cost of an iteration to the budget; bound later searches if this search was too expensive."""
        self.budget.add(report)
        if not self._plan.may_bound or self.bounded or report.denoised is None:
            return
        if float(np.mean(report.denoised.n_hessians)) > MAX_MINIMISATIONS:
            self.bounded, self.budget = True, Budget(self._plan.data, self._plan.settling)
            self.monitor.patience = PATIENCE

    def _is_near_end(self, report: StepReport) -> bool:
        """Return whether the gradient is so small that a descent, whose steps take less time, takes over."""
        if not (self.bounded and self.may_hand_over and self._plan.settling and self._plan.accelerate == LATE):
            return False
        return report.gradient_norm < HAND_OVER_BELOW

    def _may_extrapolate(self, t: int, report: StepReport) -> bool:
        """Return whether to extrapolate: always, or only near the end of the run if `Plan.accelerate` is LATE."""
        near_end = t >= self._plan.hold_after and report.gradient_norm < LATE_BELOW
        return near_end or self._plan.accelerate != LATE

    def _end_at_start(self) -> Status:
        """End a run that is only a descent; return STALLED, so that the descent follows, unless it is not needed."""
        return self.end_at(risk_at(self._plan.data, self.state.Q, self._plan.risk))

    def end_at(self, at: RiskAtPoint) -> Status:
        """End the run without an iteration at the current state, at which the risk is `at`; return its status."""
        self.monitor.keep_best(self.state, at.gradient_norm, at.train_loss)
        self._add_to_history(at)
        if not np.isfinite(at.gradient_norm):
            return Status.NONFINITE
        return Status.CONVERGED if at.gradient_norm <= self._plan.tol else Status.STALLED

    def _add_to_history(self, at: StepReport | RiskAtPoint) -> None:
        self.record.add(overlaps(self._plan.data, self.state.Q, self.state.V), at.gradient_norm, at.train_loss)
        self.recorded_Q = self.state.Q
