"""The runs of `train`: surveys, descents and message passing from several starts, which a checkpoint can resume.

**Several starts** are compared by successive halving (Karnin et al., 2013; Jamieson and Talwalkar, 2016).

**Descents.** For samples with many fields a proximal step, of order (L r)³, takes much longer than a gradient, so that
descents from all starts come first. They are compared at small gradients, and the lowest is completed. If the ends
agree, message passing continues there: a search for lower minima of the proximal objectives shows whether it would
leave the end. If they differ, message passing with searches, which finds lower minima than descents do, is also run
from the starts of the lower half. If samples have too many fields, the result is the lowest descent.

**Flips.** At a minimum of the risk, the proximal objectives of many samples have a second local minimum z' besides the
fields z. To lowest order, the risk changes by the gap between their values at z' and z if the sample moves to z' and
all weights respond (the cavity argument behind message passing). So message passing starts from the smallest gaps.

**Checkpoints** hold what has been finished, and the states of all loops. A resumed call goes through all phases again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.check import read_only
from gamp_attention._tools.checkpoints import CheckpointFile
from gamp_attention._tools.snapshots import Resumable, Tree
from gamp_attention.extensions.train.survey import SurveyEnd, SurveyRecord, SurveyState, run_survey, survey_units
from gamp_attention.gamp.descent import settle
from gamp_attention.gamp.loop import Loop, Plan, show_risk
from gamp_attention.gamp.result import GampResult, run_and_settle, settle_from
from gamp_attention.gamp.step import GampState, gamp_step, initial_state, near_fixed_point
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import denoise_at, is_convex, overlaps, risk_at
from gamp_attention.problem.sources import apply_by_source
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.problem.symmetries import agreement_of
from gamp_attention.results import Overlaps, Result, Status

ROUNDING = 1e-9  # relative difference of training losses up to which they count as equal
SAME_LOSS = 1e-6  # relative difference of training losses up to which two minima are equally low
AGREEMENT = 0.9  # minimum overlap with the selected weights at which weights count as (nearly) the same
SAME_WEIGHTS = 0.99  # smallest overlap of the weights of two surveys that count as equal
N_FLIPS = 6  # maximum number of samples that are flipped at a minimum
FLIP_STEP = 0.3  # step β of the first iteration after a flip
MIN_DISTANCE = 1e-2  # smallest distance of z' and z as two minima, in units of the root mean square of the fields
ESCAPE_STEP = 1e-2  # root mean square of the first change of the weights, in units of a teacher's weights
ESCAPE_GROWTH = 2.0  # factor of the step while the risk falls; while no step lowers it, divided by its square
MAX_TRIALS = 40  # maximum number of steps that are tried in each of the directions v and −v
NamedStart = tuple[str, GampState]


@dataclass(frozen=True, eq=False)
class StartRecord(Result):
    """Outcome of one of the starts of `train`.

    Attributes
    ----------
    name : "spectral 1" and so on, "random 1" and so on, the name given as `init`, or "given" for an array or a state.
    kept : whether the result of `train` comes from this start.
    status : status at the end of the run from this start; None if it was stopped early.
    n_iter : number of iterations of message passing from this start.
    train_loss, gradient_norm, overlaps, Q : at the end of the run, or when it was stopped.
    excess : training loss divided by the training loss of the selected start at its end, minus 1.
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

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except Q as plain data."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


@dataclass(frozen=True)
class TrainSettings:
    """Rules of `train`: when starts are compared, and when surveys and flips follow."""

    rounds: tuple[int, ...] = (6, 15, 30)  # iterations after which starts are compared and half of them stopped
    # iterations after which runs from surveys are compared, and number of runs that then continue
    survey_rounds: tuple[int, ...] = (30,)
    finished_surveys: int = 2
    max_rounds: int = 20  # maximum number of minima at which samples are flipped
    # survey="auto" continues from the lowest minimum only if at most this fraction of the starts agree with it, and its
    # training loss is at most this fraction of the loss at zero weights
    few_agree: float = 0.25
    low_loss: float = 0.25
    min_starts: int = 4  # minimum number of starts of survey="auto"
    # maximum number of fields of a sample of survey="auto", whose nodes grow exponentially with it
    max_survey_fields: int = 3
    continued: float = 0.5  # fraction of the starts that continue after a comparison, or after descents that differ
    # iterations after which runs from flipped samples are compared, and number of runs that then continue
    compared_flips: int = 20
    finished_flips: int = 2
    max_saddles: int = 20  # maximum number of saddles that are left
    # gradient norm g, in units of `small_unit`, at which descents are compared: where the curvature is at least the
    # strength λ of the penalty, the training loss is then at most λ g²/2 above the minimum
    descent_tol: float = 1e-2
    search_step: float = 0.3  # step β of the iteration with searches at the end of a descent
    max_fields: int = 24  # maximum L r for message passing after descents


SETTINGS = TrainSettings()


@dataclass(frozen=True)
class StoppedRun:
    """End of a run that was stopped early, because others had a lower training loss."""

    n_iter: int
    train_loss: float
    gradient_norm: float
    overlaps: Overlaps
    Q: np.ndarray


class Runs(Resumable):
    """All runs of a call of `train`: its plan, whether to leave saddles, and a checkpoint from which they resume."""

    surveys: list[SurveyRecord]  # finished surveys
    ends: list[np.ndarray]  # (d, r) weights at the ends of the finished descents
    n_rounds: int  # number of comparisons of the first runs
    stopped: dict[int, StoppedRun]  # runs that were stopped early, by number
    passed: dict[int, int]  # number of times that a run continued in `_run_unless_higher`, by number
    # weights beyond the saddle that a run has left last, or at the end of a descent, and their training loss, by number
    beyond: dict[int, tuple[np.ndarray, float]]
    n_escapes: int  # number of saddles that were left

    def __init__(self, plan: Plan, escape: bool, file: CheckpointFile | None) -> None:
        self._plan, self._escape, self._file = plan, escape, file
        self.surveys, self.ends, self.n_rounds, self.stopped, self.passed = [], [], 0, {}, {}
        self.beyond, self.n_escapes = {}, 0
        self._n_surveys = 0  # number of surveys that were requested so far
        self._units: tuple[np.ndarray, np.ndarray, float] | None = None  # of surveys
        self._asked = Counter[int]()  # number of calls of `_run_unless_higher` by run
        self._names: list[str] = []
        self._loops: dict[int, Loop] = {}  # runs that were not stopped
        self._results: dict[int, GampResult] = {}
        self._saved: dict[int, Tree] = {}  # loops in the checkpoint
        Q = np.zeros((plan.data.dim, plan.data.rank))
        self._zero = Q, risk_at(plan.data, Q, plan.risk).train_loss
        tree = None if file is None else file.load()
        if tree is not None:
            self.restore(tree)
            self._saved = {int(k): loop for k, loop in tree.get("loops", {}).items()}

    def save(self) -> None:
        """Write all runs to the checkpoint, if there is one."""
        if self._file is not None:
            self._file.save(self.snapshot)

    def snapshot(self) -> Tree:
        """Return the state of all runs that have begun."""
        return super().snapshot() | {"loops": self._saved | {k: loop for k, loop in self._loops.items() if loop.t > 0}}

    # Surveys

    def make_survey(self, name: str, Q: np.ndarray, parisi: float, absolute: bool) -> SurveyRecord:
        """Return the record of the survey from weights Q (d, r); `parisi` is in units of the data, or `absolute`."""
        self._n_surveys += 1
        if len(self.surveys) < self._n_surveys:
            data, risk = self._plan.data, self._plan.risk
            self._units = self._units or survey_units(data, risk)
            V, U, unit = self._units
            start = SurveyState(Q, V, U, initial_state(data, Q).D)
            self.surveys.append(run_survey(data, risk, name, start, parisi if absolute else parisi * unit))
            self.save()
        return self.surveys[self._n_surveys - 1]

    def agree(self) -> bool:
        """Return whether two surveys so far found the same weights."""
        done = [record for record in self.surveys[: self._n_surveys] if record.ending is not SurveyEnd.FAILED]
        return len(self._distinct(done)) < len(done)

    def survey_starts(self) -> list[NamedStart]:
        """Return the starts from the surveys so far that found different weights."""
        return [self.survey_start(record) for record in self._distinct(self.surveys[: self._n_surveys])]

    def _distinct(self, records: list[SurveyRecord]) -> list[SurveyRecord]:
        distinct = list[SurveyRecord]()
        for record in records:
            if all(agreement_of(self._plan.data, record.Q, other.Q) < SAME_WEIGHTS for other in distinct):
                distinct.append(record)
        return distinct

    def survey_start(self, record: SurveyRecord) -> NamedStart:
        """Return the start of message passing from the weights of a survey."""
        state = initial_state(self._plan.data, record.Q, self._plan.options.V)
        return f"{record.name}, survey at y = {record.parisi:.3g}", state

    # Descents

    def descend(self, starts: list[NamedStart]) -> None:
        """Make descents from all starts, and add message passing that follows from them, and is then run to the end."""
        plan, data = self._plan, self._plan.data
        tol, limited = max(plan.tol, SETTINGS.descent_tol * plan.unit), False
        for k, (name, state) in enumerate(starts[len(self.ends) :], len(self.ends)):
            show = partial(show_risk, f"start {k + 1} of {len(starts)} ({name}), descent")
            descent = settle(data, plan.risk, state.Q, tol, show, plan.max_iter)
            limited = limited or (descent.gradient_norm > tol and descent.n_iter >= plan.max_iter)
            self.ends.append(Q := descent.Q)
            if plan.options.callback is not None:
                at = risk_at(data, Q, plan.risk)
                plan.options.callback(0, read_only(initial_state(data, Q)), read_only(at))  # type: ignore[arg-type]
            if not limited:  # so that a later call can continue to a larger max_iter
                self.save()
        risks = [risk_at(data, Q, plan.risk) for Q in self.ends]
        ranks = [(not at.gradient_norm <= tol, _order_of(at.train_loss)) for at in risks]
        order = sorted(range(len(risks)), key=lambda k: ranks[k])
        lowest, Q = risks[order[0]].train_loss, self.ends[order[0]]
        margin = data.penalty.strength * tol**2 + SAME_LOSS * lowest
        same = [
            at.train_loss - lowest <= margin or agreement_of(data, end, Q) >= AGREEMENT
            for end, at in zip(self.ends, risks, strict=True)
        ]
        only = limited or data.n_tokens * data.rank > SETTINGS.max_fields  # no message passing follows
        conclusive = only or 2 * sum(same) >= len(same)
        n_kept = 1 if conclusive else ceil(SETTINGS.continued * len(order))
        for k in order[n_kept:]:
            last = overlaps(data, self.ends[k], starts[k][1].V)
            self.stopped[k] = StoppedRun(0, risks[k].train_loss, risks[k].gradient_norm, last, self.ends[k])
        k, state = order[0], initial_state(data, Q)
        if not only:
            done = settle(data, plan.risk, Q, plan.tol, max_steps=plan.max_iter)
            self.beyond.setdefault(k if conclusive else len(starts), (done.Q, done.train_loss))
            state = self._state_at(done.Q)
        if conclusive:
            self.begin([*starts[:k], (starts[k][0], state), *starts[k + 1 :]])
        else:
            self.begin([*starts, (f"{starts[k][0]}, descent", state)])
        if only:
            for loop in self._loops.values():
                loop.end_at_start(Status.MAX_ITER if limited else Status.STALLED)
        self.compare(() if conclusive else SETTINGS.rounds, 0 if conclusive else 1)

    def _state_at(self, Q: np.ndarray) -> GampState:
        """Return the state from which message passing continues at the end of a descent."""
        data, risk, step = self._plan.data, self._plan.risk, SETTINGS.search_step
        V = susceptibility(data, risk_at(data, Q, risk), Q, quick=True)
        if not np.isfinite(V).all():
            return initial_state(data, Q)
        state = near_fixed_point(data, risk, Q, V)
        after, _ = gamp_step(data, risk, state, step, max_starts=self._plan.settings.further_starts)
        same, _ = gamp_step(data, risk, state, step, hold=True)
        return state if np.allclose(after.Q, same.Q, rtol=1e-6, atol=1e-9 * np.abs(Q).max()) else after

    # Message passing

    def begin(self, starts: list[NamedStart], hold: bool = False) -> list[int]:
        """Add or resume runs, in which samples keep local proximal minima if `hold` is True; return their numbers."""
        plan, first, new = self._plan, len(self._names), list[int]()
        if hold:
            plan = replace(plan, options=replace(plan.options, hold_after=0))
        for k, (name, state) in enumerate(starts, first):
            self._names.append(name)
            if k in self.stopped:
                continue
            title = f"start {k + 1} of {len(starts)} ({name})" if len(starts) > 1 else f"{name} start"
            self._loops[k] = loop = Loop(plan, state, self.save, name if first else title)
            new.append(k)
            if k in self._saved:
                loop.restore(self._saved.pop(k))
                if loop.t > plan.max_iter and self._file is not None:
                    needs = f"at least {loop.t}, the iteration of the checkpoint {self._file.path}"
                    raise check.fail("max_iter", plan.max_iter, needs)
        return new

    def compare(self, rounds: tuple[int, ...], n_tried: int) -> None:
        """Run the first runs, which are compared after some iterations, and the lowest to its end.

        `n_tried` is the number of further runs that are run to the end unless they will end in a higher minimum.
        """
        runs, limit = list(self._loops), self._plan.max_iter
        n_continue = 1 + max(0, min(n_tried, len(runs) - 1))
        for until in rounds[self.n_rounds :]:
            # a comparison beyond max_iter is left out: a checkpoint of this run can then continue to a larger max_iter
            if len(runs) <= n_continue or until > limit:
                break
            for k in runs:
                self._loops[k].run(until)
            last = until == rounds[-1]  # then all but `n_continue` are stopped, otherwise half of the runs
            half = max(n_continue, ceil(SETTINGS.continued * len(runs)))
            runs = self._stop_worst(runs, n_continue if last else half, until)
            self.n_rounds += 1
        if n_continue > 1:
            until = min(rounds[-1], limit)
            for k in runs:
                self._loops[k].run(until)
            runs = self._stop_worst(sorted(runs), len(runs), until)
        self._finish(runs, 1 if n_continue > 1 else len(runs))

    def add(self, starts: list[NamedStart], hold: bool = False) -> None:
        """Run message passing from further starts, to the end unless it will end in higher minima."""
        new, until = self.begin(starts, hold), SETTINGS.compared_flips
        remaining = [k for k in new if self._run_unless_higher(k, min(until, self._plan.max_iter))]
        self._finish(self._stop_worst(remaining, SETTINGS.finished_flips, until), 0)

    def _finish(self, runs: list[int], n_finish: int) -> None:
        """Run message passing to the end, except in runs after the first `n_finish` that will end in higher minima."""
        limit = self._plan.max_iter
        for k in runs[:n_finish]:
            self._loops[k].run(limit)
        finished = runs[:n_finish] + [k for k in runs[n_finish:] if self._run_unless_higher(k, limit)]
        if any(self._loops[k].ended is None for k in finished):
            self.save()  # before max_iter ends the runs, so that a later call can continue them
        self._results |= {k: self._complete(k) for k in finished}

    def _run_unless_higher(self, k: int, until: int) -> bool:
        """Run message passing to an iteration; stop it, and return False, if it will end higher than another run."""
        loop = self._loops[k]
        ends = [result.train_loss for result in self._results.values() if result.converged]
        ends += [other.final_loss() for number, other in self._loops.items() if number not in self._results]

        def ends_higher(highest: float = (1 - SAME_LOSS) * min(ends)) -> bool:
            return loop.lower_bound() >= highest

        self._asked[k] += 1
        if self.passed.get(k, 0) >= self._asked[k]:
            return True
        if loop.run(until, ends_higher) is None and ends_higher():
            self._stop(k)
            return False
        if loop.t < self._plan.max_iter:  # else a later call may continue it
            self.passed[k] = self._asked[k]
        return True

    def _complete(self, k: int) -> GampResult:
        """Return the result of a run.

        If message passing from beyond a saddle, or from the end of a descent, climbs above the training loss at its
        start, it is the result of a descent from this start instead; otherwise of a descent from zero weights if it
        ends above their training loss.
        """
        loop = self._loops[k]
        result = run_and_settle(loop)
        Q, bound = self.beyond.get(k, self._zero)
        bound = inf if k not in self.beyond and result.status is Status.MAX_ITER else bound
        return result if result.train_loss <= (1 + ROUNDING) * bound else settle_from(loop, Q)

    def select(self) -> GampResult:
        """Return the result of lowest training loss, among converged runs if there are any, after leaving saddles."""
        data, risk, best = self._plan.data, self._plan.risk, self._best()
        loop, result = self._loops[best], self._results[best]
        while self._escape and not result.is_minimum and result.direction is not None:
            if self.n_escapes == SETTINGS.max_saddles:
                break
            self.n_escapes += 1
            self.beyond[best] = Q, _ = leave_saddle(data, risk, result.Q, result.direction)
            loop.restart_from(initial_state(data, Q, self._plan.options.V))
            result = self._results[best] = self._complete(best)
        return result

    def _best(self) -> int:
        ranks = {k: (not end.converged, _order_of(end.train_loss), k) for k, end in self._results.items()}
        return min(ranks, key=lambda k: ranks[k])

    @property
    def reached_limit(self) -> bool:
        """True if message passing from a start ended at `max_iter`."""
        return any(result.message_passing is Status.MAX_ITER for result in self._results.values())

    def _stop_worst(self, runs: list[int], n_continue: int, until: int) -> list[int]:
        """Stop all but some runs of lowest training loss at an iteration; return these in the order of their losses."""
        order = sorted(runs, key=lambda k: _order_of(self._loops[k].record.loss_before(until)))
        for k in order[n_continue:]:
            self._stop(k)
        return order[:n_continue]

    def _stop(self, k: int) -> None:
        loop = self._loops.pop(k)
        last_overlaps, norm, loss = loop.record.last
        self.stopped[k] = StoppedRun(loop.t, loss, norm, last_overlaps, loop.recorded_Q)

    def records(self, selected: GampResult) -> tuple[StartRecord, ...]:
        """Return a record of every start, compared with the selected result."""
        best, records = self._best(), list[StartRecord]()
        for k, name in enumerate(self._names):
            end: Any = self.stopped.get(k) or self._results[k]
            record = StartRecord(
                name=name, kept=k == best, status=None if k in self.stopped else end.status, n_iter=end.n_iter,
                train_loss=end.train_loss, gradient_norm=end.gradient_norm,
                excess=float(end.train_loss / selected.train_loss - 1) if selected.train_loss else 0.0,
                agreement=1.0 if k == best else agreement_of(self._plan.data, end.Q, selected.Q),
                overlaps=end.overlaps, Q=end.Q,
            )  # fmt: skip
            records.append(record)
        return tuple(records)

    def may_improve(self, selected: GampResult) -> bool:
        """Return whether few starts ended in the lowest minimum, although its loss is low: a lower minimum is likely.

        If the loss is high, because of noise or a wrong model, a lower minimum often has a larger test error.
        """
        records = self.records(selected)
        n_agree = sum(record.agreement >= AGREEMENT for record in records)
        return n_agree <= SETTINGS.few_agree * len(records) and selected.train_loss <= SETTINGS.low_loss * self._zero[1]

    def flip_samples(self, result: GampResult) -> GampResult:
        """Return the result after flips of single samples at the lowest minimum, repeated while the loss falls."""
        plan = self._plan.data, self._plan.risk
        for _ in range(SETTINGS.max_rounds):
            starts, before = flipped_starts(*plan, result.Q, result.overlaps.V), result.train_loss
            if not starts or not result.converged or self.reached_limit:
                break
            self.add(starts, hold=True)
            result = self.select()
            if not result.train_loss < (1 - SAME_LOSS) * before:
                break
        return result


def _order_of(loss: float) -> float:
    return loss if np.isfinite(loss) else inf


def summarize_starts(records: tuple[StartRecord, ...]) -> str:
    """Return sentences on the starts: the selected start, how many agree with it, and the losses of the others."""
    kept = next(record for record in records if record.kept)
    others = [1 + record.excess for record in records if record.agreement < AGREEMENT]
    best, n, n_agree = f"Best of {len(records)} starts: {kept.name!r}.", len(records), len(records) - len(others)
    if not others:
        return f"{best} {'Both' if n == 2 else f'All {n}'} gave (nearly) the same weights."
    same = f"{n_agree} of {n} gave (nearly) the same weights" if n_agree > 1 else "No other start gave the same weights"
    if not kept.Q.any():  # weights that are zero have no overlap with other weights, equal or not
        same = "All of its weights are zero, because the penalty outweighs the data"
    low, high = f"{min(others):.3g}", f"{max(others):.3g}"
    span = low if low == high else f"{low} to {high}"
    return f"{best} {same}; the other {len(others)} had {span} times its training loss when they ended or were stopped."


def flipped_starts(data: Dataset, risk: str, Q: np.ndarray, V: np.ndarray) -> list[NamedStart]:
    """Return names and states of the starts next to a minimum, at most `N_FLIPS`, in the order of their gaps.

    The search for z' begins at the mirror image 2ω − z, at which the quadratic part of the proximal objective is equal.
    The states are states after one iteration, because the gradient at the minimum itself is zero. There are none if the
    loss is convex or V is not positive definite. V are the variances (S, r, r) of message passing at the minimum Q.
    """
    if is_convex(data) or not (np.isfinite(V).all() and np.linalg.eigvalsh(V).min() > 0):
        return []
    at, state = risk_at(data, Q, risk), near_fixed_point(data, risk, Q, V)
    here = denoise_at(data, at, V, hold=True)
    there = denoise_at(data, at, V, hold=True, start=at.z + 2 * apply_by_source(data.groups, V, at.loss_gradients))
    distance = np.sqrt(np.mean((there.z - here.z) ** 2, axis=(1, 2)) / np.mean(here.z**2))
    gap = np.where(distance > MIN_DISTANCE, there.moreau - here.moreau, np.inf)
    starts = []
    for mu in np.argsort(gap, kind="stable")[:N_FLIPS]:
        if np.isfinite(gap[mu]):
            z = np.where(np.arange(len(gap))[:, None, None] == mu, there.z, here.z)
            after, _ = gamp_step(data, risk, GampState(state.Q, state.V, state.D, z), FLIP_STEP, hold=True)
            starts.append((f"flip of sample {mu}", after))
    return starts


def leave_saddle(data: Dataset, risk: str, Q: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lowest of several points Q ± s v along a line, and its training loss; Q itself if none is lower.

    v is the direction of lowest curvature (d, r); s is doubled while the risk falls.
    """
    best, start = Q, risk_at(data, Q, risk).train_loss
    lowest = start
    for side in (1.0, -1.0):
        size, falling, last = ESCAPE_STEP * np.sqrt(Q.size), False, start
        for _ in range(MAX_TRIALS):
            trial = Q + side * size * direction
            loss = risk_at(data, trial, risk).train_loss
            if loss < last:
                falling, last = True, loss
                if loss < lowest:
                    best, lowest = trial, loss
                size *= ESCAPE_GROWTH
            elif falling:
                break
            else:
                size /= ESCAPE_GROWTH**2
    return best, lowest
