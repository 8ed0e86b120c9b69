"""Descents from several starts, from whose lowest ends message passing continues.

For samples with many fields a proximal step takes much longer than a gradient, so that training begins with descents.
They are compared at small gradients, and only the lowest is completed. At its end, with the variances V of message
passing there, a search for lower minima of the proximal objectives then shows whether message passing would leave it.
If some samples have lower minima, message passing continues from the state after this iteration; otherwise it verifies
the end.

If the ends of the descents differ, the risk has many minima. Then message passing with searches, which finds lower
minima than descents do, is also run from the starts of the lower half of the descents. A proximal step takes a time of
order (L r)³: if samples have too many fields, the result is the lowest descent, without message passing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np

from gamp_attention._tools import progress
from gamp_attention._tools.check import read_only
from gamp_attention._tools.snapshots import Resumable, Tree
from gamp_attention.extensions.train.records import AGREEMENT, StoppedRun, order_of
from gamp_attention.gamp.descent import settle
from gamp_attention.gamp.loop import Plan, describe_risk
from gamp_attention.gamp.step import GampState, gamp_step, initial_state, near_fixed_point
from gamp_attention.problem.risk import RiskAtPoint, overlaps, risk_at
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.problem.symmetries import agreement_of


@dataclass(frozen=True)
class DescentSettings:
    """Settings of `DescentPhase`."""

    search_step: float = 0.3  # step β of the iteration with searches at the end of a descent
    # gradient norm g, in units of `small_unit`, at which descents are compared: where the curvature is at least the
    # strength λ of the penalty, the training loss is then at most λ g²/2 above the minimum
    compared_at: float = 1e-2
    same_loss: float = 1e-6  # relative difference of training losses up to which two minima are equally low
    continued: float = 0.5  # fraction of the starts from which message passing is run if the ends differ
    # maximum L r for message passing from the starts, or from the lowest end
    max_fields: int = 24


class DescentPhase(Resumable):
    """Descents from all starts, one after the other.

    Parameters
    ----------
    plan : arguments of the run.
    starts : names and states.
    tree : snapshot from which the phase continues; None if it begins.
    settings : see `DescentSettings`.
    """

    ends: list[np.ndarray]  # (d, r) weights at the ends of the finished descents

    def __init__(
        self,
        plan: Plan,
        starts: list[tuple[str, GampState]],
        tree: Tree = None,
        settings: DescentSettings = DescentSettings(),
    ) -> None:
        self._plan, self._starts, self._settings, self.ends = plan, starts, settings, []
        self._tol = max(plan.tol, settings.compared_at * plan.unit)
        if tree is not None:
            self.restore(tree)

    def run(self, save: Callable[[], None] | None = None) -> None:
        """Make the descents. `save` is called after each of them."""
        plan, n = self._plan, len(self._starts)
        for number, (name, state) in enumerate(self._starts[len(self.ends) :], len(self.ends) + 1):
            title = f"start {number} of {n} ({name}), descent"

            def show(at: RiskAtPoint, title: str = title) -> None:
                if progress.is_shown():
                    progress.describe(f"{title}, {describe_risk(at)}")

            Q = settle(plan.data, plan.risk, state.Q, self._tol, callback=show).Q
            self.ends.append(Q)
            if plan.options.callback is not None:
                at = risk_at(plan.data, Q, plan.risk)
                plan.options.callback(0, read_only(initial_state(plan.data, Q)), read_only(at))  # type: ignore[arg-type]
            if save is not None:
                save()

    @cached_property
    def _risks(self) -> list[RiskAtPoint]:
        return [risk_at(self._plan.data, Q, self._plan.risk) for Q in self.ends]

    @property
    def order(self) -> list[int]:
        """Indices of the starts, the lowest end first; ends that did not converge come last."""
        keys = [(not at.gradient_norm <= self._tol, order_of(at.train_loss)) for at in self._risks]
        return sorted(range(len(keys)), key=lambda k: keys[k])

    @property
    def only(self) -> bool:
        """True if samples have more fields than `max_fields`, so that no message passing follows."""
        return self._plan.data.n_tokens * self._plan.data.rank > self._settings.max_fields

    @property
    def conclusive(self) -> bool:
        """True if half of the descents ended at the lowest loss or near its weights, or no message passing follows."""
        if self.only:
            return True
        data, k = self._plan.data, self.order[0]
        margin = data.penalty.strength * self._tol**2 + self._settings.same_loss * self._risks[k].train_loss
        same = [
            at.train_loss - self._risks[k].train_loss <= margin or agreement_of(data, Q, self.ends[k]) >= AGREEMENT
            for Q, at in zip(self.ends, self._risks, strict=True)
        ]
        return 2 * sum(same) >= len(same)

    def continued(
        self, n_finish: int
    ) -> tuple[list[tuple[str, GampState]], dict[int, StoppedRun], dict[int, tuple[np.ndarray, float]]]:
        """Return the starts of message passing, the starts without it, and ends of descents with their training losses.

        If the descents are conclusive, message passing continues from the `n_finish` lowest ends; otherwise it begins
        at the lowest end and at the starts of the lower half of the descents.
        """
        order, starts = self.order, list(self._starts)
        if self.conclusive:
            kept = order[:n_finish]
            ends = {} if self.only else {k: self._complete(k) for k in kept}
            for k in kept:
                starts[k] = starts[k][0], self._state(self.ends[k] if self.only else ends[k][0])
        else:
            kept = order[: max(n_finish, ceil(self._settings.continued * len(order)))]
            ends = {len(starts): self._complete(kept[0])}
            starts.append((f"{starts[kept[0]][0]}, descent", self._state(ends[len(starts)][0])))
        return starts, {k: self._stopped(k) for k in order if k not in kept}, ends

    def _complete(self, k: int) -> tuple[np.ndarray, float]:
        """Continue the descent from start k to the tolerance; return its weights (d, r) and their training loss."""
        end = settle(self._plan.data, self._plan.risk, self.ends[k], self._plan.tol)
        return end.Q, end.train_loss

    def _stopped(self, k: int) -> StoppedRun:
        """Return the record of start k, from which no message passing continues."""
        at, Q = self._risks[k], self.ends[k]
        return StoppedRun(0, at.train_loss, at.gradient_norm, overlaps(self._plan.data, Q, self._starts[k][1].V), Q)

    def _state(self, Q: np.ndarray) -> GampState:
        """Return the state from which message passing continues at the end of a descent."""
        data, risk, settings = self._plan.data, self._plan.risk, self._settings
        if self.only:
            return initial_state(data, Q)
        V = susceptibility(data, risk_at(data, Q, risk), Q, quick=True)
        if not np.isfinite(V).all():
            return initial_state(data, Q)
        state = near_fixed_point(data, risk, Q, V)
        after, _ = gamp_step(data, risk, state, settings.search_step, max_starts=self._plan.settings.further_starts)
        same, _ = gamp_step(data, risk, state, settings.search_step, hold=True)
        return state if np.allclose(after.Q, same.Q, rtol=1e-6, atol=1e-9 * np.abs(Q).max()) else after
