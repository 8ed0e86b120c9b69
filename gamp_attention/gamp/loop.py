"""Message passing from a start to a status: damping, acceleration, and detection of stalls.

`Loop` repeats the iteration of `gamp_attention.gamp.step`. At each iteration `ProgressMonitor` decides whether the run
has converged, is in trouble (it diverged, or stopped improving), or continues. On trouble, adaptive damping returns to
the best state with a smaller step; if the step may not shrink any more, the run ends, and the caller may finish it by
descent (`gamp_attention.gamp.descent`).

**Bounded searches.** State evolution describes proximal steps to global minima. A search for a global minimum costs up
to 400 minimizations per sample: for two tokens and one column this is cheap; for long samples it takes more than a
hundred times as long as the products X̃Q and X̃ᵀg of an iteration. A run to a tolerance need not follow state evolution:
it needs a good minimum of the risk. So it searches each sample at every second iteration only, from the mirror image of
the last minimum and from the center, and otherwise keeps the local minimum next to the last minimum, which need not be
accurate.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gamp_attention._tools import progress
from gamp_attention._tools.check import read_only
from gamp_attention._tools.snapshots import Resumable, Run
from gamp_attention.gamp.acceleration import WARM_UP, Acceleration
from gamp_attention.gamp.damping import FIRST_STEP, Damping, Steps
from gamp_attention.gamp.options import LATE, IterationOptions
from gamp_attention.gamp.step import GampState, StepReport, gamp_step
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.newton import LAST_STEP, ROUGH_STEP, NotPositiveDefinite
from gamp_attention.problem.denoisers.prox import MAX_STARTS
from gamp_attention.problem.risk import RiskAtPoint, is_convex, overlaps, risk_at
from gamp_attention.recorder import Recorder
from gamp_attention.results import Status


@dataclass(frozen=True)
class LoopSettings:
    """Thresholds at which a loop changes its way or ends; gradient norms are in units of `small_unit` of the data."""

    patience: int = 40  # iterations without progress, at the first adaptive step, after which a run has stalled
    bounded_patience: int = 12  # the same with bounded searches, whose descent costs less than further iterations
    kink_patience: int = 200  # the same for losses with kinks, which fields reach slowly
    slow_patience: int = 500  # the same if descents are slow or there is none: losses not convex, or penalty with kinks
    norm_ratio: float = 0.5  # ratio to the gradient norm at the last progress, at or below which there is progress
    loss_ratio: float = 0.99  # the same ratio for the training loss: while it falls, a minimum is still being selected
    max_growth: float = 1e4  # ratio of the gradient norm to max(1, its minimum) above which a run diverges
    # estimate of the gradient norm, over the tolerance, below which it is computed for weights at kinks
    exact_below: float = 3.0
    # gradient norm below which runs extrapolate if `accelerate` is LATE: at larger norms they may still cycle; convex
    # risks have one minimum, which is reached in fewer iterations
    late_below: float = 0.03
    convex_below: float = 1.0
    max_minimizations: float = 100.0  # minimizations per sample above which search="auto" bounds further searches
    search_interval: int = 2  # number of iterations between bounded searches; the first iteration makes no search
    further_starts: int = 2  # starts of a bounded search: mirror image of the last minimum, and center ω


@dataclass(frozen=True)
class Plan:
    """Arguments that do not change during a run; see `run_gamp`. `options` are resolved: no None or "auto"."""

    data: Dataset
    risk: str
    damping: Steps
    tol: float
    max_iter: int
    options: IterationOptions
    unit: float = 1.0  # thresholds of the gradient norm are multiplied by it, see `small_unit`
    # (d, r) initial vector of the search for the direction of lowest curvature; None for a random vector
    direction: np.ndarray | None = None
    settings: LoopSettings = LoopSettings()


class ProgressMonitor(Resumable):
    """Decision at each iteration whether a run continues, and the best states since its start."""

    best_state: GampState  # state of smallest gradient norm
    best_norm: float
    lowest_Q: np.ndarray  # weights of lowest training loss
    lowest_loss: float
    mark: int  # iteration of the last progress
    mark_norm: float  # gradient norm and training loss to improve on
    mark_loss: float

    def __init__(self, plan: Plan, start: GampState) -> None:
        self._plan = plan
        self.best_state, self.best_norm = start, np.inf
        self.lowest_Q, self.lowest_loss = start.Q, np.inf
        self.set_mark(0, np.inf, np.inf)

    def set_mark(self, t: int, norm: float, loss: float) -> None:
        """Measure progress from iteration t on, in comparison with a gradient norm and a training loss."""
        self.mark, self.mark_norm, self.mark_loss = t, norm, loss

    def assess(
        self, t: int, state: GampState, report: StepReport | None, step: float, patience: float
    ) -> Status | None:
        """Return CONVERGED, a kind of trouble, or None if the run continues.

        With tol = 0, only a step that breaks down or numbers that are not finite end the run.
        """
        if report is None:
            return Status.DIVERGED
        norm, loss, settings = report.gradient_norm, report.train_loss, self._plan.settings
        if not np.isfinite(norm):
            return Status.NONFINITE
        if norm < self.best_norm:
            self.best_state, self.best_norm = state, norm
        if loss < self.lowest_loss:
            self.lowest_Q, self.lowest_loss = state.Q, loss
        if self._plan.tol == 0:
            return None
        if norm <= self._plan.tol:
            return Status.CONVERGED
        if norm > settings.max_growth * max(self.best_norm, self._plan.unit):
            return Status.DIVERGED
        if t <= self._plan.options.last_search:  # changes of the proximal minima may raise gradient and loss
            self.set_mark(t, norm, loss)
        elif norm <= settings.norm_ratio * self.mark_norm or loss <= settings.loss_ratio * self.mark_loss:
            self.set_mark(t, min(norm, self.mark_norm), min(loss, self.mark_loss))
        elif t - self.mark > patience * FIRST_STEP / min(step, FIRST_STEP):
            return Status.STALLED
        return None


def show_risk(task: str, at: StepReport | RiskAtPoint) -> None:
    """Show the training loss and the gradient norm behind the name of a task."""
    progress.describe(f"{task}, training loss {at.train_loss:.4g}, gradient norm {at.gradient_norm:.1e}")


class Loop(Run[Status]):
    """A run of message passing from a start, whose progress is displayed under a name; see also `Run`."""

    state: GampState  # the state before the next iteration
    ended: Status | None  # status with which the run ended; None while it continues
    recorded_Q: np.ndarray  # weights of the last entry of the history
    bounded: bool  # whether searches for global proximal minima are currently bounded
    began: int  # iteration at which the run began, or began again from another state
    record: Recorder  # the complete history
    monitor: ProgressMonitor  # best states since the run began
    damping: Damping
    acceleration: Acceleration | None

    def __init__(self, plan: Plan, state: GampState, save: Callable[[], None] | None = None, name: str = "") -> None:
        super().__init__(save)
        self.plan, self.name = plan, name
        self.record, self.recorded_Q = Recorder(), state.Q
        self._begin(state)

    def _begin(self, state: GampState) -> None:
        plan, late = self.plan, self.plan.options.accelerate == LATE
        self.state, self.began, self.ended = state, self.t, None
        self.bounded = plan.options.search == "bounded"
        self.monitor = ProgressMonitor(plan, state)
        self.damping = Damping(plan.damping, grows=late)
        self.acceleration = Acceleration(0 if late else WARM_UP) if plan.options.accelerate else None

    def restart_from(self, state: GampState) -> None:
        """Begin again from another state; the change of state counts as an iteration, whose damping is NaN."""
        self.record.step(np.nan)
        self.t += 1
        self._begin(state)

    def end_at_start(self, status: Status = Status.STALLED) -> None:
        """End the run without an iteration; after STALLED, a descent from its start replaces message passing."""
        self.monitor.lowest_loss = self._record(None).train_loss
        self.ended = status

    def advance(self) -> Status | None:
        """Do one iteration; return the status of the run if it has ended, or None if it continues."""
        plan, t = self.plan, self.t - self.began
        step = self.damping(t)
        after, report = self._iterate(t, step)
        descends = self.bounded and plan.options.settling
        patience = plan.settings.bounded_patience if descends else plan.settings.patience
        verdict = self.monitor.assess(t, self.state, report, step, patience)
        at = self._record(report)
        if verdict is Status.CONVERGED:
            return verdict
        if self.t >= plan.max_iter:
            return Status.MAX_ITER
        if verdict is not None:
            # a stalled run is not retried if a descent may follow, because the descent ends a cycle sooner
            if (plan.options.settling and verdict is Status.STALLED) or not self.damping.shrink():
                return verdict
            after = self.monitor.best_state
            self.monitor.set_mark(t, self.monitor.best_norm, np.inf)
            if self.acceleration is not None:
                self.acceleration.restart()
        elif self.acceleration is not None and report is not None and self._may_extrapolate(t, report):
            after = self.acceleration(self.state, after, report.gradient_norm)
        self.record.step(self.damping(t))
        if self.damping.follow(at.gradient_norm / plan.unit) and self.acceleration is not None:
            self.acceleration.restart()
        self.t, self.state = self.t + 1, after
        return None

    def _iterate(self, t: int, step: float) -> tuple[GampState, StepReport | None]:
        """Return the next state and a report on the current state; the report is None if the step breaks down."""
        plan, options = self.plan, self.plan.options
        try:
            after, report = gamp_step(
                plan.data, plan.risk, self.state, step, hold=False, V_hat=options.response(t), memory=options.memory,
                max_starts=self._starts_of_searches(t),
                last_step=ROUGH_STEP if self.bounded and t < options.last_search else LAST_STEP,
                exact_below=plan.settings.exact_below * plan.tol if plan.tol else math.inf,
            )  # fmt: skip
        except (np.linalg.LinAlgError, NotPositiveDefinite):
            return self.state, None
        if options.search == "auto":  # an expensive search bounds the later searches
            self.bounded |= float(np.mean(report.denoised.n_hessians)) > plan.settings.max_minimizations
        return after, report

    def _starts_of_searches(self, t: int) -> int:
        """Return the maximum number of further starts of each sample's search at iteration t."""
        settings = self.plan.settings
        if t >= self.plan.options.last_search:
            return 0
        if self.bounded:
            return settings.further_starts if t % settings.search_interval == settings.search_interval - 1 else 0
        return MAX_STARTS

    def _may_extrapolate(self, t: int, report: StepReport) -> bool:
        """Return whether to extrapolate: always, or only near the end of the run if `accelerate` is LATE."""
        plan = self.plan
        if plan.options.accelerate != LATE:
            return True
        if is_convex(plan.data):
            return report.gradient_norm < plan.settings.convex_below * plan.unit
        return t >= plan.options.last_search and report.gradient_norm < plan.settings.late_below * plan.unit

    def _record(self, report: StepReport | None) -> StepReport | RiskAtPoint:
        """Add the current state to the history, show it, and call the callback; return its risk."""
        plan = self.plan
        at = risk_at(plan.data, self.state.Q, plan.risk) if report is None else report
        self.record.add(overlaps(plan.data, self.state.Q, self.state.V), at.gradient_norm, at.train_loss)
        self.recorded_Q = self.state.Q
        show_risk(f"{self.name}, iteration {self.t}", at)
        if plan.options.callback is not None and report is not None:
            plan.options.callback(self.t, read_only(self.state), read_only(report))
        return at

    def lower_bound(self) -> float:
        """Return an estimated lower bound of the final training loss; −inf while samples are searched.

        If the curvature of the risk is at least the strength λ of the penalty in all directions, the training loss at
        a gradient norm g exceeds its minimum by at most λ g²/2.
        """
        if self.t - self.began <= self.plan.options.last_search:
            return -math.inf
        _, norm, loss = self.record.last
        return loss - 0.5 * self.plan.data.penalty.strength * norm**2

    def final_loss(self) -> float:
        """Return the training loss at the end of message passing; inf before, or after divergence or `max_iter`."""
        if self.ended is Status.CONVERGED:
            return self.record.last[2]
        return self.monitor.lowest_loss if self.ended is Status.STALLED else math.inf
