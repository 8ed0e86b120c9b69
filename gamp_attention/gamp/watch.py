"""How a run of GAMP is steered: the judgement of each iteration, and the responses it uses."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.damping import ADAPTIVE
from gamp_attention.gamp.monitor import StepReport
from gamp_attention.gamp.step import GampState
from gamp_attention.results import Status


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
