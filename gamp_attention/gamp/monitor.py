"""What an iteration of message passing sees at the state that it starts from, and what a run watches of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gamp_attention._core.text import Shown
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import Sums
from gamp_attention.data.risk import gradient_norm, normalised_risk, risk_at
from gamp_attention.denoisers.output import Denoised
from gamp_attention.penalties.matrix import least_subgradient, on_kinks


@dataclass(frozen=True, eq=False)
class StepReport(Shown):
    """What an iteration saw at the state that it started from.

    Attributes
    ----------
    train_loss, gradient_norm : ε_t and ‖∇R‖_F/(λ√d) at state.Q; for penalties with kinks, after `on_kinks`
        has put on kinks the weights that a kink holds.
    omega, denoised : (n, L, r) centres of the proximal step, and the output denoiser's answer; None for samples that
        other processes hold.
    V_hat : (L, r, r) the response used for A.
    W : (L, r, r) the new variances before averaging.
    monitor : what gives the first two, when one of them is asked for.
    """

    omega: np.ndarray | None
    denoised: Denoised | None
    V_hat: np.ndarray
    W: np.ndarray
    monitor: Callable[[], tuple[float, float]]

    @cached_property
    def _monitored(self) -> tuple[float, float]:
        return self.monitor()

    @property
    def train_loss(self) -> float:
        """ε_t."""
        return self._monitored[0]

    @property
    def gradient_norm(self) -> float:
        """‖∇R‖_F/(λ√d)."""
        return self._monitored[1]

    def _items(self) -> list[tuple[str, Any]]:
        watched = [(name, getattr(self, name)) for name in ("train_loss", "gradient_norm")]
        return watched + [(name, value) for name, value in super()._items() if name != "monitor"]


def monitored(data: Dataset, risk: str, Q: np.ndarray, sums: Sums) -> tuple[float, float]:
    """Training loss and gradient norm at weights Q, from the sums of the iteration that started there.

    For a penalty with kinks, at the weights that `on_kinks` gives, which takes another pass over the data.
    """
    if data.penalty.smooth:
        gradient = least_subgradient(data.penalty, Q, sums.smooth)
        return normalised_risk(data, Q, sums.loss), gradient_norm(data, gradient)
    at = risk_at(data, on_kinks(data.penalty, Q, sums.smooth)[0], risk)
    return at.train_loss, at.gradient_norm
