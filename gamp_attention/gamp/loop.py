"""The loop around the GAMP step: adaptive damping, acceleration, callbacks and checkpoints, to a status.

How a run of GAMP is steered: the judgement of each iteration, and the responses it uses.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check, progress
from gamp_attention._core.check import read_only
from gamp_attention.damping import ADAPTIVE, Damping
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import Memory
from gamp_attention.data.risk import overlaps, risk_at
from gamp_attention.denoisers.newton import NotPositiveDefinite
from gamp_attention.gamp.acceleration import ACCELERATION, Acceleration
from gamp_attention.gamp.budget import BUDGET, Budget, starts_of_searches
from gamp_attention.gamp.step import GampState, StepReport, gamp_step
from gamp_attention.results import Recorder, Status


@dataclass(frozen=True)
class WatchSettings:
    """When a run is in trouble."""

    hold_after: int = 20  # iterations of global minima before branches are held, unless told
    patience: float = 40  # held iterations, at the first adaptive step, that may pass without progress
    progress: float = 0.5  # of the gradient norm since progress was last made
    loss_progress: float = 0.99  # the same of the training loss: while it falls, a minimum is still being chosen
    searches: float = 100.0  # minimisations per sample and iteration above which default runs bound their searches
    max_growth: float = 1e4  # of the gradient over its best; more is divergence


WATCH = WatchSettings()


class Watch:
    """Judges each iteration since a start, and keeps the best state, by gradient norm.

    Attributes
    ----------
    best_state, best_norm : the state of smallest gradient norm, and this norm.
    lowest_Q, lowest_loss : the weights of lowest training loss, and this loss.
    """

    def __init__(self, tol: float, hold_after: int, settling: bool, start: GampState, patience: float) -> None:
        self._tol, self._hold_after, self._settling, self._patience = tol, hold_after, settling, patience
        self.best_state, self.best_norm = start, np.inf
        self.lowest_Q, self.lowest_loss = start.Q, np.inf
        self._mark = 0  # iteration at which progress was last made
        self._mark_norm = self._mark_loss = np.inf

    def judge(self, t: int, state: GampState, report: StepReport | None, step: float) -> Status | None:
        """CONVERGED, a kind of trouble, or None to go on. A tol of 0 goes on whatever happens, but for a breakdown."""
        if report is None:
            return Status.DIVERGED
        norm, loss = report.gradient_norm, report.train_loss
        if not np.isfinite(norm):
            return Status.NONFINITE
        self.note(state, norm, loss)
        if self._tol == 0:
            return None
        if norm <= self._tol:
            return Status.CONVERGED
        if norm > WATCH.max_growth * max(self.best_norm, 1.0):
            return Status.DIVERGED
        if t <= self._hold_after:
            self._mark, self._mark_norm, self._mark_loss = t, norm, loss
        elif norm <= WATCH.progress * self._mark_norm or loss <= WATCH.loss_progress * self._mark_loss:
            self._mark, self._mark_norm, self._mark_loss = t, min(norm, self._mark_norm), min(loss, self._mark_loss)
        elif t - self._mark > self._patience * ADAPTIVE.start / min(step, ADAPTIVE.start):
            return Status.STALLED
        return None

    def note(self, state: GampState, norm: float, loss: float) -> None:
        """Keep a state if it is the best so far."""
        if norm < self.best_norm:
            self.best_state, self.best_norm = state, norm
        if loss < self.lowest_loss:
            self.lowest_Q, self.lowest_loss = state.Q, loss

    def worth_a_smaller_step(self, verdict: Status) -> bool:
        """Whether to go on from the best state with a smaller step: not where a descent ends a cycle sooner."""
        return not (self._settling and verdict is Status.STALLED)

    def restart(self, t: int) -> GampState:
        """Go back to the best state."""
        self._mark, self._mark_norm, self._mark_loss = t, self.best_norm, np.inf
        return self.best_state

    def hurry(self, patience: float) -> None:
        """Reduce the number of iterations without progress that end the run to `patience`."""
        self._patience = patience

    def resume(self, t: int) -> None:
        """Measure progress from iteration t on, with the patience of a run without a budget.

        The lowest training loss is reset, so that only later iterations count.
        """
        self._mark, self._mark_norm, self._mark_loss = t, np.inf, np.inf
        self._patience, self.lowest_loss = WATCH.patience, np.inf

    def snapshot(self) -> dict[str, Any]:
        """What has changed since the start."""
        best = {"state": self.best_state.snapshot(), "norm": self.best_norm}
        lowest = {"lowest_Q": self.lowest_Q, "lowest_loss": self.lowest_loss}
        return best | lowest | {"mark": self._mark, "mark_norm": self._mark_norm, "mark_loss": self._mark_loss}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.best_state, self.best_norm = GampState(**snapshot["state"]), float(snapshot["norm"])
        self._mark, self._mark_norm = int(snapshot["mark"]), float(snapshot["mark_norm"])
        self._mark_loss = float(snapshot["mark_loss"])
        self.lowest_Q, self.lowest_loss = snapshot["lowest_Q"], float(snapshot["lowest_loss"])


def responses(
    onsager: Any, empirical_after: int | None, n_sources: int, r: int, predicted: Callable[[], np.ndarray]
) -> Callable[[int], np.ndarray | None]:
    """The response V̂_t to use at iteration t, None for the empirical one; see `run_gamp`."""
    if isinstance(onsager, str):
        if check.choice("onsager", onsager, ("empirical", "state_evolution")) == "empirical":
            return lambda t: None
        onsager = predicted()
    table = check.array("onsager", onsager, ("T", n_sources, r, r))
    last = math.inf if empirical_after is None else empirical_after
    return lambda t: table[min(t, len(table) - 1)] if t < last else None


LATE = "late"
Callback = Callable[[int, GampState, StepReport], None]


@dataclass(frozen=True)
class Plan:
    """Arguments that do not change during a run; see `run_gamp`.

    In addition: `bounded`, whether searches are bounded (see `gamp_attention.gamp.budget`); `may_bound`, whether they
    are bounded after an iteration with more than `WATCH.searches` minimisations per sample; `V_hat`, a function of the
    iteration; `direction`, the initial vector of the search for the direction of lowest curvature; and `accelerate`,
    which may be LATE: steps then grow near the end, and extrapolation waits until minima are held and the gradient is
    small.
    """

    data: Dataset
    risk: str
    damping: Any
    tol: float
    max_iter: int
    hold_after: int
    accelerate: bool | str
    settling: bool
    V_hat: Callable[[int], np.ndarray | None]
    memory: Memory
    callback: Callback | None
    direction: np.ndarray | None = None
    bounded: bool = False
    may_bound: bool = False


def described(at: Any) -> str:
    """Return the training loss and the gradient norm of a `StepReport` or a `RiskAtPoint` in words."""
    return f"training loss {at.train_loss:.4g}, gradient norm {at.gradient_norm:.1e}"


class Loop:
    """Message passing from a start, and from further starts after it has ended.

    Attributes
    ----------
    t : iterations so far, over all starts.
    state : the last one.
    watch, record : the judgement of the states since the last start, and the history of all.
    escapes : further starts so far.
    seen : the weights of the last entry of the history.
    bounded : whether searches are currently bounded.
    start, ceiling : the weights of the last start, and a bound on the training loss that it was chosen for.
    name : name of the start, for the display of progress.
    """

    def __init__(self, plan: Plan, state: GampState, save: Callable[[], None] | None = None, name: str = "") -> None:
        self._plan, self._save, self.name = plan, save, name
        self.t, self.escapes, self.record, self.seen = 0, 0, Recorder(), state.Q
        self._begin(state, np.inf)

    def _begin(self, state: GampState, ceiling: float) -> None:
        plan = self._plan
        self.state, self._began, self.start, self.ceiling = state, self.t, state.Q, ceiling
        self._ended: Status | None = None
        self._after: GampState | None = None  # next state of a stalled run, from which it can be resumed
        self.bounded = plan.bounded
        patience = BUDGET.patience if plan.bounded else WATCH.patience
        self.watch = Watch(plan.tol, plan.hold_after, plan.settling, state, patience)
        self._budget = Budget(plan.data, plan.bounded and plan.settling)
        late = plan.accelerate == LATE
        self._step = Damping(plan.damping, grows=late)
        self._acceleration = Acceleration(0 if late else ACCELERATION.warm_up) if plan.accelerate else None

    def leave(self, state: GampState, ceiling: float) -> None:
        """Begin again from another state, which takes the place of an iteration in the history."""
        self.record.step(np.nan)
        self.t, self.escapes = self.t + 1, self.escapes + 1
        self._begin(state, ceiling)

    @property
    def descends(self) -> bool:
        """Return whether the run is a descent from its start, because message passing would cost too much."""
        return self.t == self._began and not self._budget.suffices

    def resume(self, n_descent: int) -> bool:
        """Continue a stalled run if the budget allows it after `n_descent` steps of descent; return whether it does."""
        stalled = self._ended is Status.STALLED and self._after is not None and self.t < self._plan.max_iter
        if not (self.bounded and stalled and self._budget.extend(n_descent)):
            return False
        self.record.step(self._step(self.t - self._began))
        assert self._after is not None
        self.t, self.state, self._ended, self._after = self.t + 1, self._after, None, None
        self.watch.resume(self.t - self._began)
        return True

    def run(self, until: float = np.inf) -> Status | None:
        """Iterate until the watch says how it has ended; None where iteration `until` comes first."""
        first = self.t
        while self._ended is None and self.t < until:
            if self._save is not None and self.t > first:
                self._save()
            self._ended = self._iterate()
        return self._ended

    def _iterate(self) -> Status | None:
        """One iteration, or how the run has ended."""
        plan, t = self._plan, self.t - self._began
        beta = self._step(t)
        if self.descends:
            return self._stay()
        after, report = self._next(t, beta)
        verdict = self.watch.judge(t, self.state, report, beta)
        if report is not None:
            self._budget.add(report)
            if plan.may_bound and not self.bounded and report.denoised is not None:
                self._bound(float(np.mean(report.denoised.n_hessians)))
            if verdict is None and self._budget.is_spent:
                verdict = Status.STALLED
        seen = risk_at(plan.data, self.state.Q, plan.risk) if report is None else report
        self.record.add(overlaps(plan.data, self.state.Q, self.state.V), seen.gradient_norm, seen.train_loss)
        self.seen = self.state.Q
        if progress.is_shown():
            progress.describe(f"{self.name}, iteration {self.t}, {described(seen)}")
        if plan.callback is not None and report is not None:
            plan.callback(self.t, read_only(self.state), read_only(report))
        if verdict is Status.CONVERGED:
            return verdict
        if self.t >= plan.max_iter:
            return Status.MAX_ITER
        if verdict is not None:
            if not self.watch.worth_a_smaller_step(verdict) or not self._step.shrink():
                self._after = after
                return verdict
            after = self.watch.restart(t)
            if self._acceleration is not None:
                self._acceleration.restart()
        elif self._acceleration is not None and report is not None and self._extrapolates(t, report):
            after = self._acceleration(self.state, after, report.gradient_norm)
        self.record.step(self._step(t))
        if self._step.follow(seen.gradient_norm) and self._acceleration is not None:
            self._acceleration.restart()
        self.t, self.state = self.t + 1, after
        return None

    def _bound(self, searches: float) -> None:
        """Bound all later searches if the last search took too many minimisations per sample."""
        if searches > WATCH.searches:
            self.bounded, self._budget = True, Budget(self._plan.data, self._plan.settling)
            self.watch.hurry(BUDGET.patience)

    def _stay(self) -> Status:
        """End the run at its start, from which a descent begins, because message passing would cost too much."""
        at = risk_at(self._plan.data, self.state.Q, self._plan.risk)
        self.watch.note(self.state, at.gradient_norm, at.train_loss)
        self.record.add(overlaps(self._plan.data, self.state.Q, self.state.V), at.gradient_norm, at.train_loss)
        self.seen = self.state.Q
        if not np.isfinite(at.gradient_norm):
            return Status.NONFINITE
        return Status.CONVERGED if at.gradient_norm <= self._plan.tol else Status.STALLED

    def _extrapolates(self, t: int, report: StepReport) -> bool:
        late = t >= self._plan.hold_after and report.gradient_norm < ACCELERATION.late
        return late or self._plan.accelerate != LATE

    def _next(self, t: int, beta: float) -> tuple[GampState, StepReport | None]:
        """The next state, and what was seen at this one; nothing where the step breaks down."""
        plan = self._plan
        try:
            return gamp_step(
                plan.data, plan.risk, self.state, beta, hold=False, V_hat=plan.V_hat(t), memory=plan.memory,
                max_starts=starts_of_searches(t, plan.hold_after, self.bounded),
            )  # fmt: skip
        except (np.linalg.LinAlgError, NotPositiveDefinite):
            return self.state, None

    def _parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {"damping": self._step, "watch": self.watch, "record": self.record}
        parts |= {"budget": self._budget} if self._plan.bounded or self._plan.may_bound else {}
        return parts if self._acceleration is None else parts | {"acceleration": self._acceleration}

    def snapshot(self) -> dict[str, Any]:
        """What has changed since the beginning."""
        numbers = {
            "bounded": int(self.bounded),
            "t": self.t,
            "began": self._began,
            "escapes": self.escapes,
            "ceiling": self.ceiling,
        }
        own = numbers | {"start": self.start, "seen": self.seen, "state": self.state.snapshot()}
        own["ended"] = None if self._ended is None else self._ended.value
        return own | {name: part.snapshot() for name, part in self._parts().items()}

    def restore(self, stored: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self.t, self._began, self.escapes = (int(stored[name]) for name in ("t", "began", "escapes"))
        self.start, self.ceiling, self.state = stored["start"], float(stored["ceiling"]), GampState(**stored["state"])
        self.seen, self.bounded = stored["seen"], bool(int(stored["bounded"]))
        self._ended = Status(str(stored["ended"])) if "ended" in stored else None
        for name, part in self._parts().items():
            part.restore(stored[name])
