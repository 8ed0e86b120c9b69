"""Descents from several starts, from whose lowest ends message passing continues.

For samples with many fields a proximal step takes much longer than a gradient, so that training begins with descents.
At the end of a descent, with the variances V of message passing there, a search for lower minima of the proximal
objectives then shows whether message passing would leave it. If some samples have lower minima, message passing
continues from the state after this iteration; otherwise it verifies the end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gamp_attention._core import progress
from gamp_attention._core.snapshots import Resumable, Tree
from gamp_attention.data.risk import RiskAtPoint, overlaps, risk_at
from gamp_attention.data.susceptibility import susceptibility
from gamp_attention.extensions.train.records import StoppedRun
from gamp_attention.gamp.loop import Plan, describe_risk
from gamp_attention.gamp.settling import settle
from gamp_attention.gamp.step import GampState, gamp_step, initial_state, near_fixed_point

SEARCH_STEP = 0.3  # step β of the iteration with searches at the end of a descent


class DescentPhase(Resumable):
    """Descents from all starts, one after the other.

    Parameters
    ----------
    plan : arguments of the run.
    starts : names and states.
    tree : snapshot from which the phase continues; None if it begins.
    """

    ends: list[np.ndarray]  # (d, r) weights at the ends of the finished descents

    def __init__(self, plan: Plan, starts: list[tuple[str, GampState]], tree: Tree = None) -> None:
        self._plan, self._starts, self.ends = plan, starts, []
        if tree is not None:
            self.restore(tree)

    def run(self, save: Callable[[], None] | None = None) -> list[RiskAtPoint]:
        """Make the descents; return the risk at their ends. `save` is called after each of them."""
        plan, n = self._plan, len(self._starts)
        for number, (name, state) in enumerate(self._starts[len(self.ends) :], len(self.ends) + 1):
            title = f"start {number} of {n} ({name}), descent"

            def show(at: RiskAtPoint, title: str = title) -> None:
                if progress.is_shown():
                    progress.describe(f"{title}, {describe_risk(at)}")

            self.ends.append(settle(plan.data, plan.risk, state.Q, plan.tol, callback=show).Q)
            if save is not None:
                save()
        return [risk_at(plan.data, Q, plan.risk) for Q in self.ends]

    def stopped(self, k: int, at: RiskAtPoint) -> StoppedRun:
        """Return the record of start k, from whose end no message passing continues."""
        Q = self.ends[k]
        return StoppedRun(0, at.train_loss, at.gradient_norm, overlaps(self._plan.data, Q, self._starts[k][1].V), Q)

    def state(self, k: int, at: RiskAtPoint) -> GampState:
        """Return the state from which message passing continues at the end of start k."""
        data, risk, Q = self._plan.data, self._plan.risk, self.ends[k]
        V = susceptibility(data, at, Q, quick=True)
        state = near_fixed_point(data, risk, Q, V) if np.isfinite(V).all() else initial_state(data, Q)
        if not np.isfinite(V).all():
            return state
        further = self._plan.settings.further_starts
        after, _ = gamp_step(data, risk, state, SEARCH_STEP, max_starts=further)
        same = gamp_step(data, risk, state, SEARCH_STEP, hold=True)[0]
        return state if np.allclose(after.Q, same.Q, rtol=1e-6, atol=1e-9 * np.abs(Q).max()) else after
