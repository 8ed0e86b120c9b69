"""Report of an iteration of message passing on its initial state: training loss, gradient norm and averages."""

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
    """Report of an iteration on the state at which it started.

    Attributes
    ----------
    train_loss, gradient_norm : ε_t and ‖∇R‖_F/(λ√d) at state.Q, evaluated when first accessed. If the penalty has
        kinks, weights that should be at a kink are first moved there by `on_kinks`.
    omega, denoised : (n, L, r) centres of the proximal step, and the result of the output denoiser; None if the samples
        are on other processes.
    V_hat : (L, r, r) the response used for A.
    W : (L, r, r) the new variances before averaging over iterations.
    monitor : function that computes `train_loss` and `gradient_norm`.
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
        """Training loss ε_t."""
        return self._monitored[0]

    @property
    def gradient_norm(self) -> float:
        """Gradient norm ‖∇R‖_F/(λ√d)."""
        return self._monitored[1]

    def _items(self) -> list[tuple[str, Any]]:
        watched = [(name, getattr(self, name)) for name in ("train_loss", "gradient_norm")]
        return watched + [(name, value) for name, value in super()._items() if name != "monitor"]


def monitored(data: Dataset, risk: str, Q: np.ndarray, sums: Sums) -> tuple[float, float]:
    """Return training loss and gradient norm at weights Q (d, r), from the sums of the iteration that started there.

    If the penalty has kinks, they are evaluated at the weights returned by `on_kinks`, which takes another pass over
    the data.
    """
    if data.penalty.smooth:
        gradient = least_subgradient(data.penalty, Q, sums.smooth)
        return normalised_risk(data, Q, sums.loss), gradient_norm(data, gradient)
    at = risk_at(data, on_kinks(data.penalty, Q, sums.smooth)[0], risk)
    return at.train_loss, at.gradient_norm
