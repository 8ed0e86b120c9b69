"""Message passing from several starts, of which the starts of highest training loss are stopped early.

Several starts are compared by successive halving (Karnin et al., 2013; Jamieson and Talwalkar, 2016): all runs make a
few iterations, the half with the higher training loss is stopped, the others continue, and so on. The training loss
after few iterations predicts the final loss well enough to discard poor starts at a fraction of the cost of full runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, inf
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.checkpoints import CheckpointFile
from gamp_attention._tools.snapshots import Resumable, Tree
from gamp_attention.extensions.train.records import StartRecord, StoppedRun, order_of
from gamp_attention.extensions.train.saddles import MAX_SADDLES, leave_saddle
from gamp_attention.gamp.loop import Loop, Plan
from gamp_attention.gamp.result import GampResult, run_and_settle, settle_from
from gamp_attention.gamp.step import GampState, initial_state
from gamp_attention.problem.symmetries import agreement_of
from gamp_attention.results import Status

CONTINUED = 0.5  # fraction of the starts that continue after a comparison
# iterations after which runs from flipped samples are compared, and number of runs that then continue
COMPARED_FLIPS, FINISHED_FLIPS = 20, 2
ROUNDING = 1e-9  # relative difference of training losses up to which they count as equal
SAME_LOSS = 1e-6  # relative decrease of the training loss below which flips have not improved a minimum


class SuccessiveHalving(Resumable):
    """Message passing from several starts, of which the starts of lowest training loss are run to the end.

    Parameters
    ----------
    plan : arguments that all runs share.
    starts : names and states.
    n_finish, n_tried : number of starts that are run to the end, and of further starts that are run to the end unless
        they will end in a higher minimum.
    escape : whether to leave saddles.
    file : checkpoint of all runs, from which they resume; None for no checkpoint.
    phases : surveys and descents from which the starts come, which the checkpoint also holds, by name.
    rounds : iterations after which starts are compared.
    stopped, beyond : initial values of the attributes of these names.

    Attributes
    ----------
    n_rounds, n_escapes : number of comparisons, and of saddles that were left, so far.
    beyond : weights beyond the saddle that a run has left last, or at the end of a descent, and their training loss,
        by the index of the start.
    stopped : runs that were stopped early, by the index of their start.
    loops : other runs, by the index of their start.

    Raises
    ------
    ValueError : if a run in the checkpoint is beyond `plan.max_iter`.
    """

    n_rounds: int
    n_escapes: int
    beyond: dict[int, tuple[np.ndarray, float]]
    stopped: dict[int, StoppedRun]

    def __init__(
        self, plan: Plan, starts: list[tuple[str, GampState]], n_finish: int, escape: bool,
        file: CheckpointFile | None, phases: dict[str, Resumable], rounds: tuple[int, ...], n_tried: int = 0,
        stopped: dict[int, StoppedRun] | None = None, beyond: dict[int, tuple[np.ndarray, float]] | None = None,
    ) -> None:  # fmt: skip
        self._escape, self._rounds = escape, rounds
        self._plan, self._n_finish, self._n_tried, self._file, self._phases = plan, n_finish, n_tried, file, phases
        self._names = [name for name, _ in starts]
        self._batches = [0] * len(starts)  # number of the comparison in which a start takes part
        self.n_rounds, self.n_escapes, self.beyond, self.stopped = 0, 0, dict(beyond or {}), dict(stopped or {})
        self._results: dict[int, GampResult] = {}
        self._later: Tree = {}  # snapshots of runs in the checkpoint that `add` begins
        save = self._save_loop = None if file is None else self.save
        n = len(starts)
        titles = [f"start {k} of {n} ({name})" if n > 1 else f"{name} start" for k, name in enumerate(self._names, 1)]
        self.loops = {k: Loop(plan, starts[k][1], save, titles[k]) for k in range(n) if k not in self.stopped}
        tree = None if file is None else file.load()
        if file is not None and tree is not None and "n_rounds" in tree:
            self.restore(tree)
            reached = max(loop.t for loop in self.loops.values())
            if reached > plan.max_iter:
                needs = f"at least {reached}, the iteration of the checkpoint {file.path}"
                raise check.fail("max_iter", plan.max_iter, needs)

    def run(self) -> tuple[GampResult, Loop]:
        """Return the result of lowest training loss, among converged runs if there are any, and its loop."""
        n_continue = self._n_finish + self._n_tried
        for until in self._rounds[self.n_rounds :]:
            # a comparison beyond max_iter is left out: a checkpoint of this run can then continue to a larger max_iter
            if len(self.loops) <= n_continue or until > self._plan.max_iter:
                break
            for loop in self.loops.values():
                loop.run(until)
            last = until == self._rounds[-1]  # then all but `n_continue` are stopped, otherwise half of the runs
            half = max(n_continue, ceil(CONTINUED * len(self.loops)))
            self._stop_worst(self.loops, n_continue if last else half, until)
            self.n_rounds += 1
        order = list(self.loops)
        if self._n_tried:
            until = min(self._rounds[-1], self._plan.max_iter)
            for loop in self.loops.values():
                loop.run(until)
            order = self._sort(order, until)
        self._finish(self._plan, order, self._n_finish if self._n_tried else len(order))
        return self._select()

    def _finish(self, plan: Plan, runs: list[int], n_finish: int) -> None:
        """Run message passing to the end, except in runs after the first `n_finish` that will end in higher minima."""
        for k in runs[:n_finish]:
            self.loops[k].run(plan.max_iter)
        finished = runs[:n_finish] + [k for k in runs[n_finish:] if self._run_unless_higher(k, plan.max_iter)]
        if any(self.loops[k].ended is None for k in finished):
            self.save()  # before max_iter ends the runs, so that a later call can continue them
        self._results |= {k: self._complete(k) for k in finished}

    def _complete(self, k: int) -> GampResult:
        """Return the result of a run.

        If message passing from beyond a saddle, or from the end of a descent, climbs above the training loss at its
        start, it is the result of a descent from this start instead.
        """
        loop = self.loops[k]
        result = run_and_settle(loop)
        Q, bound = self.beyond.get(k, (loop.recorded_Q, inf))
        return result if result.train_loss <= (1 + ROUNDING) * bound else settle_from(loop, Q)

    def _run_unless_higher(self, k: int, until: int) -> bool:
        """Run message passing to an iteration; stop it, and return False, if it will end higher than another run."""
        loop = self.loops[k]
        ends = [result.train_loss for result in self._results.values() if result.converged]
        ends += [other.final_loss() for number, other in self.loops.items() if number not in self._results]
        highest = (1 - SAME_LOSS) * min(ends)

        def ends_higher() -> bool:
            return loop.lower_bound() >= highest

        if loop.run(until, ends_higher) is None and ends_higher():
            self._stop(k)
        return k in self.loops

    def add(self, starts: list[tuple[str, GampState]], hold: bool = False) -> tuple[GampResult, Loop]:
        """Run message passing from further starts; return the result of all runs and its loop.

        Each sample keeps its local proximal minimum if `hold` is True. After `COMPARED_FLIPS` iterations, all but
        `FINISHED_FLIPS` of the runs are stopped.
        """
        plan, new = self._plan, list[int]()
        if hold:
            plan = replace(plan, options=replace(plan.options, hold_after=0))
        batch = self._batches[-1] + 1
        for name, state in starts:
            k = len(self._names)
            self._names.append(name)
            self._batches.append(batch)
            if k not in self.stopped:
                self.loops[k] = loop = Loop(plan, state, self._save_loop, name)
                new.append(k)
                if k in self._later:
                    loop.restore(self._later.pop(k))
        remaining = [k for k in new if self._run_unless_higher(k, min(COMPARED_FLIPS, plan.max_iter))]
        self._finish(plan, self._stop_worst(remaining, FINISHED_FLIPS, COMPARED_FLIPS), 0)
        return self._select()

    def _select(self) -> tuple[GampResult, Loop]:
        """Return the best result, after leaving saddles, and its loop."""
        runs = sorted(self._results)
        best = min(runs, key=lambda k: (not self._results[k].converged, order_of(self._results[k].train_loss)))
        plan, loop, result = self._plan, self.loops[best], self._results[best]
        while self._escape and not result.is_minimum and result.direction is not None and self.n_escapes < MAX_SADDLES:
            self.n_escapes += 1
            self.beyond[best] = Q, _ = leave_saddle(plan.data, plan.risk, result.Q, result.direction)
            loop.restart_from(initial_state(plan.data, Q, plan.options.V))
            result = self._complete(best)
        self._results[best] = result
        return result, loop

    @property
    def reached_limit(self) -> bool:
        """True if message passing from a start ended at `max_iter`."""
        return any(result.message_passing is Status.MAX_ITER for result in self._results.values())

    def _stop_worst(self, runs: Iterable[int], n_continue: int, until: int) -> list[int]:
        """Stop the runs of highest training loss at an iteration; return the others, `n_continue` of lowest loss."""
        order = self._sort(runs, until)
        for k in order[n_continue:]:
            self._stop(k)
        return order[:n_continue]

    def _sort(self, runs: Iterable[int], until: int) -> list[int]:
        """Return runs in the order of their training losses at an iteration, or at their ends."""
        return sorted(runs, key=lambda k: order_of(self.loops[k].record.loss_before(until)))

    def _stop(self, k: int) -> None:
        """Stop a run."""
        loop = self.loops.pop(k)
        last_overlaps, norm, loss = loop.record.last
        self.stopped[k] = StoppedRun(loop.t, loss, norm, last_overlaps, loop.recorded_Q)

    def records(self, selected: GampResult, selected_loop: Loop) -> tuple[StartRecord, ...]:
        """Return a record of every start, compared with the selected result."""
        losses, records = selected.history.train_loss, list[StartRecord]()
        batch = next(self._batches[k] for k, loop in self.loops.items() if loop is selected_loop)
        for k, name in enumerate(self._names):
            is_selected = self.loops.get(k) is selected_loop
            end: Any = selected if is_selected else self.stopped.get(k) or self._results[k]
            # the selected run may have ended before the run from start k was stopped
            at = min(end.n_iter, len(losses)) - 1 if k in self.stopped and self._batches[k] == batch else -1
            loss = losses[at] if at >= 0 else selected.train_loss
            record = StartRecord(
                name=name, kept=is_selected, status=None if k in self.stopped else end.status, n_iter=end.n_iter,
                train_loss=end.train_loss, gradient_norm=end.gradient_norm,
                excess=float(end.train_loss / loss - 1) if loss else 0.0,
                agreement=1.0 if is_selected else agreement_of(self._plan.data, end.Q, selected.Q),
                overlaps=end.overlaps, Q=end.Q,
            )  # fmt: skip
            records.append(record)
        return tuple(records)

    def save(self) -> None:
        """Write all runs to the checkpoint, if there is one."""
        if self._file is not None:
            self._file.save(self.snapshot)

    def snapshot(self) -> Tree:
        """Return the state of all runs that have begun."""
        return super().snapshot() | self._phases | {"loops": {k: loop for k, loop in self.loops.items() if loop.t > 0}}

    def restore(self, tree: Tree) -> None:
        """Continue from a snapshot."""
        super().restore(tree)
        self.loops = {k: loop for k, loop in self.loops.items() if k not in self.stopped}
        trees = {int(k): loop_tree for k, loop_tree in tree.get("loops", {}).items()}
        self._later = {k: loop_tree for k, loop_tree in trees.items() if k >= len(self._names)}
        for k in self.loops.keys() & trees.keys():
            self.loops[k].restore(trees[k])
