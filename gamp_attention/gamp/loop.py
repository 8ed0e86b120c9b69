"""Message passing from a start to a status: damping, acceleration, detection of stalls, and bounded searches.

`Loop` repeats the iteration of `gamp_attention.gamp.step`. At each iteration `ProgressMonitor` decides whether the run
has converged, is in trouble (it diverged, or stopped improving), or continues. On trouble, adaptive damping returns to
the best state with a smaller step; if the step may not shrink any more, the run ends, and the caller may finish it by
descent (`gamp_attention.gamp.settling`).

**Bounded searches of default runs:** few further starts, in few iterations, within a budget of operations. State
evolution describes proximal steps to global minima. A search for a global minimum costs up to 400 minimizations per
sample. For two tokens and one column this is cheap; for long samples it takes more than a hundred times as long as the
products X̃Q and X̃ᵀg of an iteration. A run to a tolerance need not follow state evolution: it needs a good minimum of
the risk. So it searches each sample at every second iteration, from the mirror image of the last minimum and from the
center, and otherwise keeps the local minimum next to the last minimum, which need not be accurate. Near a critical
point, and if message passing has spent its budget, a descent, which evaluates only gradients, completes the run. If the
descent takes long, message passing is resumed, in the second case with a larger budget, and the lower of both minima is
the result.

The unit of the budget is one evaluation of the gradient of the risk. Costs are computed from the numbers of operations,
not from measured times, so that runs are reproducible.

**Guarded Anderson acceleration.** With u_k the states (Q, D, V) and f_k = G(u_k) − u_k the moves of the damped
iteration G, the next state is G(u) − Σ_j c_j (Δu_j + Δf_j), in which Δ are differences between consecutive iterations
and c minimizes ‖f − Σ_j c_j Δf_j‖ (Anderson, 1965; Walker and Ni, 2011). This leaves the fixed points of G unchanged,
at which D = V g, but state evolution describes only the fixed point and no longer the iterates.

Extrapolation may diverge, or converge to an unstable fixed point. So the gradient norm is monitored: if it rises, the
run returns to the damped successor of its best state, and makes some damped iterations before it extrapolates again.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from gamp_attention._core import progress
from gamp_attention._core.check import read_only
from gamp_attention._core.runs import Run
from gamp_attention._core.snapshots import Resumable
from gamp_attention.damping import FIRST_STEP, Damping, Steps
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import Memory
from gamp_attention.data.risk import RiskAtPoint, is_convex, overlaps, risk_at
from gamp_attention.denoisers.newton import LAST_STEP, ROUGH_STEP, NotPositiveDefinite
from gamp_attention.denoisers.prox import MAX_STARTS
from gamp_attention.gamp.step import GampState, StepReport, gamp_step
from gamp_attention.losses.attention import AttentionLoss, DotProductAttention
from gamp_attention.results import Recorder, Status

DEPTH = 15  # maximum number of differences Δf in the least-squares problem
WARM_UP = 3  # damped iterations before the first extrapolation
MAX_RISE = 2.0  # an extrapolation is undone if the gradient norm exceeds its minimum by this factor
PAUSE = 5  # after the k-th undone extrapolation, PAUSE · k damped iterations follow
MIN_VARIANCE = 0.1  # smallest accepted eigenvalue of the extrapolated V, in units of the damped V
REGULARIZATION = 1e-14  # relative ridge of the least-squares problem, against rounding
LATE_BELOW = 0.03  # gradient norm below which runs extrapolate by default; at larger norms they may still cycle
CONVEX_BELOW = 1.0  # the same for convex risks, which have one minimum; it is then reached in fewer iterations


class Acceleration(Resumable):
    """Extrapolation from the last iterations, which returns to damped iterations if the gradient norm rises.

    Parameters
    ----------
    warm_up : damped iterations before the first extrapolation.
    """

    n_refused: int  # number of extrapolations that were undone
    wait: int  # number of damped iterations before the next extrapolation
    moves: list[np.ndarray]  # differences Δf of (Q, D) between consecutive iterations, as vectors
    steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]]  # the differences Δu + Δf of (Q, D, V) that belong to them
    last: tuple[np.ndarray, GampState] | None  # f and the damped successor of the last iteration
    lowest_norm: float  # minimum of the gradient norm since the last restart
    fallback: GampState | None  # damped successor of the state with this norm

    def __init__(self, warm_up: int = WARM_UP) -> None:
        self.n_refused, self.wait = 0, warm_up
        self._forget()

    def _forget(self) -> None:
        self.moves, self.steps, self.last = [], [], None
        self.lowest_norm, self.fallback = np.inf, None

    def __call__(self, state: GampState, after: GampState, norm: float) -> GampState:
        """Return the next state, given a state, its damped successor `after` and the gradient norm at the state."""
        if self.fallback is not None and norm > MAX_RISE * self.lowest_norm:
            fallback = self.fallback
            self.n_refused += 1
            self.wait = PAUSE * self.n_refused
            self._forget()
            return fallback
        changes = after.Q - state.Q, after.D - state.D
        # each part has unit weight per entry, so that neither Q nor D dominates the norm that c minimizes
        move = np.concatenate([change.ravel() / np.sqrt(change.size) for change in changes])
        if self.last is not None:
            before, reached = self.last
            self.moves = [*self.moves, move - before][-DEPTH:]
            step = after.Q - reached.Q, after.D - reached.D, after.V - reached.V
            self.steps = [*self.steps, step][-DEPTH:]
        self.last = move, after
        if self.wait > 0:  # no check against the smallest norm: damped iterations may pass through larger gradients
            self.wait -= 1
            return after
        if norm < self.lowest_norm:
            self.lowest_norm, self.fallback = norm, after
        return self._extrapolate(after, move)

    def restart(self) -> None:
        """Discard all differences, because the state or the damping was changed from outside."""
        self._forget()
        self.wait = max(self.wait, WARM_UP)

    def _extrapolate(self, after: GampState, move: np.ndarray) -> GampState:
        if not self.moves:
            return after
        moves = np.array(self.moves)
        gram = moves @ moves.T
        scale = np.sqrt(np.diag(gram))
        if not (scale > 0).all():
            return after
        gram = gram / np.outer(scale, scale) + REGULARIZATION * np.eye(len(gram))
        c = np.linalg.lstsq(gram, moves @ move / scale, rcond=None)[0] / scale
        Q, D, V = (
            start - sum(weight * part for weight, part in zip(c, parts, strict=True))
            for start, parts in zip((after.Q, after.D, after.V), zip(*self.steps, strict=True), strict=True)
        )
        if not (np.isfinite(Q).all() and np.isfinite(D).all() and np.isfinite(V).all()):
            return after
        if np.linalg.eigvalsh(V).min() < MIN_VARIANCE * np.linalg.eigvalsh(after.V).min():
            V = after.V
        return GampState(Q, V, D, after.z)


FULL_SEARCH_FIELDS = 2  # maximum L r for which default runs search for global minima
SEARCH_INTERVAL = 2  # number of iterations between searches; the first iteration makes no search
FURTHER_STARTS = 2  # number of further starts: mirror image of the last minimum, and center ω
HAND_OVER_BELOW = 0.3  # gradient norm below which descent takes over
SHORT_DESCENT = 40  # maximum number of steps of a descent after which message passing is not resumed in this case
PATIENCE = 12  # iterations without progress after the last search, after which descent takes over
FIRST_LIMIT = 250.0  # budget of message passing, in evaluations of the gradient
GRADIENTS_PER_DESCENT_STEP = 10.0  # budget after a descent, in gradients per step of it
MIN_EXTENSION = 0.4  # minimum added budget for which message passing is resumed, in units of FIRST_LIMIT
MIN_ITERATIONS = 8  # if the budget suffices for fewer iterations, the run is only a descent
VERIFICATION_LIMIT = 60.0  # maximum cost of each check of the result, in evaluations of the gradient
HESSIANS_TO_HOLD = 3.0  # Hessians per sample of a proximal step that starts at its minimum
HESSIANS_PER_ITERATION = 5.0  # typical number of Hessians per sample and iteration
HESSIANS_TO_SEARCH = 45.0  # Hessians per sample of a search with FURTHER_STARTS starts
# costs of operations, of which only the ratios matter
PRODUCT = 0.25e-9  # seconds of a multiplication and addition of X̃Q or X̃ᵀg
EXPONENTIAL = 8e-9  # seconds of an attention weight
DENSE = 0.25e-9  # seconds of an operation in a long loop over matrices (L, L)
SCATTERED = 3e-9  # seconds of an entry of the Hessian (L r, L r)
FACTOR = 0.09e-9  # seconds of the factor of the Hessian, over (L r)³
CALL = 0.5e-6  # seconds of a call per sample


class Costs(NamedTuple):
    """Seconds per sample for a gradient of the risk and for a Hessian of the proximal objective."""

    gradient: float
    hessian: float

    @classmethod
    def of(cls, data: Dataset) -> "Costs":
        """Return the costs for the shapes of a dataset."""
        L, r, d, loss = data.n_tokens, data.rank, data.dim, data.loss
        k, value = L * r, CALL + EXPONENTIAL * L * L
        if isinstance(loss, AttentionLoss) and isinstance(loss.attention, DotProductAttention):
            slope = value + 2 * DENSE * (L**3 + 4 * L * k)
            hessian = value + DENSE * L**3 * (2 + r * (r + 1) / 2)
        else:  # derivatives by central differences of values
            slope, hessian = 4 * k * value, 4 * k * (k + 1) * value
        hessian += SCATTERED * k**2 + FACTOR * k**3
        return cls(slope + 4 * L * d * r * PRODUCT, hessian)


def samples_to_verify(data: Dataset, bounded: bool, n_hessians: float) -> np.ndarray | None:
    """Return indices of the samples that a bounded run checks at its end, evenly spaced; None for all samples.

    A check costs `n_hessians` Hessians per sample. If one sample exceeds the limit, the array is empty.
    """
    gradient, hessian = Costs.of(data)
    n, fraction = data.n_samples, VERIFICATION_LIMIT * gradient / (n_hessians * hessian)
    return None if not bounded or fraction >= 1 else np.linspace(0, n - 1, int(fraction * n)).astype(int)


def can_solve_for_variances(data: Dataset, bounded: bool) -> bool:
    """Return whether solving for V at a critical point costs little compared with the rest of a bounded run."""
    gradient, hessian = Costs.of(data)
    return not bounded or 10 * hessian <= 3 * VERIFICATION_LIMIT * gradient


class Budget(Resumable):
    """Work of message passing from one start, in evaluations of the gradient.

    Parameters
    ----------
    data : the samples.
    bounded : whether the work is bounded.

    Attributes
    ----------
    spent : cost of the iterations so far, in evaluations of the gradient.
    limit : cost, in evaluations of the gradient, from which on descent takes over.
    """

    spent: float
    limit: float

    def __init__(self, data: Dataset, bounded: bool) -> None:
        self._costs, self.spent, self.limit = Costs.of(data), 0.0, FIRST_LIMIT if bounded else np.inf

    def iteration(self, n_hessians: float) -> float:
        """Return the cost of an iteration of message passing with `n_hessians` Hessians per sample."""
        gradient, hessian = self._costs
        return 1.5 + (n_hessians + 1) * hessian / gradient

    @property
    def is_spent(self) -> bool:
        """Return whether the budget does not suffice for another iteration, so that descent takes over."""
        return self.spent + self.iteration(HESSIANS_PER_ITERATION) > self.limit

    @property
    def suffices(self) -> bool:
        """Return whether the budget suffices for the minimum number of iterations of message passing."""
        return MIN_ITERATIONS * self.iteration(HESSIANS_PER_ITERATION) <= self.limit

    def extend(self, n_descent: int) -> bool:
        """Extend the budget once, in proportion to the steps of a descent; return whether it was extended.

        If a descent takes long, the risk usually has many minima, so that a longer search for a lower minimum pays.
        """
        limit = GRADIENTS_PER_DESCENT_STEP * n_descent
        if self.limit != FIRST_LIMIT or limit - self.spent < MIN_EXTENSION * FIRST_LIMIT:
            return False
        self.limit = limit
        return True

    def add(self, report: StepReport) -> None:
        """Add the cost of an iteration."""
        seen = report.denoised
        self.spent += self.iteration(HESSIANS_PER_ITERATION if seen is None else float(np.mean(seen.n_hessians)))


def starts_of_searches(t: int, hold_after: int, bounded: bool) -> int:
    """Return the maximum number of further starts of each sample's search at iteration t."""
    if bounded:
        return FURTHER_STARTS if 0 < t < hold_after and t % SEARCH_INTERVAL == 1 else 0
    return MAX_STARTS if t < hold_after else 0


Callback = Callable[[int, GampState, StepReport], None]
LATE = "late"  # value of Plan.accelerate


STALL_PATIENCE = 40  # iterations without progress, at the first adaptive step, after which a run has stalled
NORM_RATIO = 0.5  # ratio to the gradient norm at the last progress, at or below which there is progress
LOSS_RATIO = 0.99  # the same ratio for the training loss: while it falls, a minimum is still being selected
MAX_MINIMIZATIONS = 100.0  # minimizations per sample and iteration above which default runs bound their searches
EXACT_BELOW = 3.0  # estimate of the gradient norm, over the tolerance, below which it is computed for weights at kinks
MAX_GROWTH = 1e4  # ratio of the gradient norm to max(1, its minimum) above which a run diverges


@dataclass(frozen=True)
class Plan:
    """Arguments that do not change during a run; see `run_gamp` and `IterationOptions`."""

    data: Dataset
    risk: str
    damping: Steps
    tol: float
    max_iter: int
    hold_after: int
    # whether to extrapolate, or LATE: steps then grow near the end, and extrapolation waits until local minima are kept
    # and the gradient norm is small
    accelerate: bool | str
    settling: bool
    # function of the iteration that returns the response V̂_t, or None for the empirical response
    V_hat: Callable[[int], np.ndarray | None]
    memory: Memory
    callback: Callback | None
    # (d, r) initial vector of the search for the direction of lowest curvature; None for a random vector
    direction: np.ndarray | None
    bounded: bool  # whether searches for global proximal minima are bounded; see `gamp_attention.gamp.loop`
    # whether searches become bounded after an iteration with more than `MAX_MINIMIZATIONS` minimizations per sample
    may_bound: bool
    unit: float = 1.0  # thresholds of the gradient norm are multiplied by it, see `small_unit`


class ProgressMonitor(Resumable):
    """Decision at each iteration whether a run continues, and the best states since its start."""

    # best_state, best_norm: state of smallest gradient norm, and this norm
    best_state: GampState
    best_norm: float
    # lowest_Q, lowest_loss: weights of lowest training loss, and this loss
    lowest_Q: np.ndarray
    lowest_loss: float
    # number of iterations without progress, at the first adaptive step, after which the run has stalled
    patience: float
    # mark, mark_norm, mark_loss: iteration of the last progress, and the gradient norm and training loss to improve on
    mark: int
    mark_norm: float
    mark_loss: float

    def __init__(self, plan: Plan, start: GampState) -> None:
        self._tol, self._hold_after, self._settling, self._unit = plan.tol, plan.hold_after, plan.settling, plan.unit
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
        if norm > MAX_GROWTH * max(self.best_norm, self._unit):
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

    @property
    def lowest_end(self) -> float:
        """Estimated lower bound of the training loss at the end of message passing; −inf while samples are searched.

        If the curvature of the risk is at least the strength λ of the penalty in all directions, the training loss at
        a gradient norm g exceeds its minimum by at most λ g²/2.
        """
        plan = self._plan
        if self.t - self.began <= plan.hold_after:
            return -math.inf
        _, norm, loss = self.record.last
        return loss - 0.5 * plan.data.penalty.strength * norm**2

    @property
    def end_loss(self) -> float:
        """Training loss at the end of message passing; inf before, and for runs that diverged or reached `max_iter`."""
        if self.ended is Status.CONVERGED:
            return self.record.last[2]
        return self.monitor.lowest_loss if self.ended is Status.STALLED else math.inf

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
        if self.damping.follow(at.gradient_norm / plan.unit) and self.acceleration is not None:
            self.acceleration.restart()
        self.t, self.state = self.t + 1, after
        return None

    def _iterate(self, t: int, step: float) -> tuple[GampState, StepReport | None]:
        """Return the next state and a report on the current state; the report is None if the step breaks down."""
        plan = self._plan
        try:
            after, report = gamp_step(
                plan.data, plan.risk, self.state, step, hold=False, V_hat=plan.V_hat(t), memory=plan.memory,
                max_starts=starts_of_searches(t, plan.hold_after, self.bounded),
                last_step=ROUGH_STEP if self.bounded and t < plan.hold_after else LAST_STEP,
            )  # fmt: skip
        except (np.linalg.LinAlgError, NotPositiveDefinite):
            return self.state, None
        if plan.tol > 0 and not plan.data.penalty.smooth:
            report = replace(report, monitor=partial(report.monitor, exact_below=EXACT_BELOW * plan.tol))
        return after, report

    def _account(self, report: StepReport) -> None:
        """Add the cost of an iteration to the budget; bound later searches if this search was too expensive."""
        self.budget.add(report)
        if not self._plan.may_bound or self.bounded or report.denoised is None:
            return
        if float(np.mean(report.denoised.n_hessians)) > MAX_MINIMIZATIONS:
            self.bounded, self.budget = True, Budget(self._plan.data, self._plan.settling)
            self.monitor.patience = PATIENCE

    def _is_near_end(self, report: StepReport) -> bool:
        """Return whether the gradient is so small that a descent, whose steps take less time, takes over."""
        if not (self.bounded and self.may_hand_over and self._plan.settling and self._plan.accelerate == LATE):
            return False
        return report.gradient_norm < HAND_OVER_BELOW * self._plan.unit

    def _may_extrapolate(self, t: int, report: StepReport) -> bool:
        """Return whether to extrapolate: always, or only near the end of the run if `Plan.accelerate` is LATE."""
        if self._plan.accelerate != LATE:
            return True
        if is_convex(self._plan.data):
            return report.gradient_norm < CONVEX_BELOW * self._plan.unit
        return t >= self._plan.hold_after and report.gradient_norm < LATE_BELOW * self._plan.unit

    def _end_at_start(self) -> Status:
        """End a run that is only a descent; return STALLED, so that the descent follows, unless it is not needed."""
        at = risk_at(self._plan.data, self.state.Q, self._plan.risk)
        self.monitor.keep_best(self.state, at.gradient_norm, at.train_loss)
        self._add_to_history(at)
        if not np.isfinite(at.gradient_norm):
            return Status.NONFINITE
        return Status.CONVERGED if at.gradient_norm <= self._plan.tol else Status.STALLED

    def _add_to_history(self, at: StepReport | RiskAtPoint) -> None:
        self.record.add(overlaps(self._plan.data, self.state.Q, self.state.V), at.gradient_norm, at.train_loss)
        self.recorded_Q = self.state.Q
