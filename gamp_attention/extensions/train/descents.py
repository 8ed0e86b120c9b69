"""Descents from several starts, from whose lowest ends message passing continues.

For samples with many fields a proximal step takes much longer than a gradient, so that training begins with descents.
At the end of a descent, with the variances V of message passing there, a search for lower minima of the proximal
objectives then shows whether message passing would leave it. If some samples have lower minima, message passing
continues from the state after this iteration; otherwise it verifies the end.

If the ends of the descents differ, the risk has many minima. Then, unless samples have too many fields, message passing
with searches, which finds lower minima than descents do, is also run from the starts themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

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
    # maximum L r for message passing from the starts: a proximal step takes a time of order (L r)³
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

            Q = settle(plan.data, plan.risk, state.Q, plan.tol, callback=show).Q
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
        keys = [(not at.gradient_norm <= self._plan.tol, order_of(at.train_loss)) for at in self._risks]
        return sorted(range(len(keys)), key=lambda k: keys[k])

    @property
    def conclusive(self) -> bool:
        """True if half of the descents ended in (nearly) the lowest weights, or if message passing takes too long."""
        if self._plan.data.n_tokens * self._plan.data.rank > self._settings.max_fields:
            return True
        lowest = self.ends[self.order[0]]
        same = [agreement_of(self._plan.data, Q, lowest) >= AGREEMENT for Q in self.ends]
        return 2 * sum(same) >= len(same)

    def end(self, k: int) -> tuple[np.ndarray, float]:
        """Return the weights (d, r) at the end of start k, and their training loss."""
        return self.ends[k], self._risks[k].train_loss

    def stopped(self, k: int) -> StoppedRun:
        """Return the record of start k, from whose end no message passing continues."""
        at, Q = self._risks[k], self.ends[k]
        return StoppedRun(0, at.train_loss, at.gradient_norm, overlaps(self._plan.data, Q, self._starts[k][1].V), Q)

    def state(self, k: int) -> GampState:
        """Return the state from which message passing continues at the end of start k."""
        data, risk, Q = self._plan.data, self._plan.risk, self.ends[k]
        V = susceptibility(data, self._risks[k], Q, quick=True)
        if not np.isfinite(V).all():
            return initial_state(data, Q)
        state = near_fixed_point(data, risk, Q, V)
        after, _ = gamp_step(
            data, risk, state, self._settings.search_step, max_starts=self._plan.settings.further_starts
        )
        same, _ = gamp_step(data, risk, state, self._settings.search_step, hold=True)
        return state if np.allclose(after.Q, same.Q, rtol=1e-6, atol=1e-9 * np.abs(Q).max()) else after
