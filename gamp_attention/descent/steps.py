"""Steps of first-order methods, shared by gradient descent in torch and by its theory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check


@dataclass(frozen=True)
class PlainSteps:
    """Steps Q ← Q − η_t ∇R; `lr` is the step size, or a sequence of step sizes, whose last entry is repeated."""

    lr: float | Sequence[float] | np.ndarray = 1.0

    def __post_init__(self) -> None:
        lr: Any = self.lr
        if check.ndim("lr", lr) == 1:
            if len(lr) == 0:
                raise check.fail("lr", lr, "a number > 0, or a sequence of at least one such number")
            steps: Any = tuple(check.real(f"lr[{t}]", step, low=0, strict=True) for t, step in enumerate(lr))
        else:
            steps = check.real("lr", lr, low=0, strict=True)
        object.__setattr__(self, "lr", steps)

    def step_size(self, t: int) -> float:
        """Return the step size η_t."""
        lr: Any = self.lr
        return float(lr[min(t, len(lr) - 1)] if isinstance(lr, tuple) else lr)

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the velocity after step t with the gradient `slope`."""
        return x - self.step_size(t) * slope, velocity


@dataclass(frozen=True)
class DescentSteps(PlainSteps):
    """Steps v ← μ v + ∇R, Q ← Q − η_t v with the momentum μ, as in `torch.optim.SGD`.

    Nesterov's method takes the steps Q ← Q − η_t (∇R + μ v) instead.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "momentum", check.real("momentum", self.momentum, low=0, high=1))
        if self.momentum == 1:
            raise check.fail("momentum", self.momentum, "a number in [0, 1)")
        if check.flag("nesterov", self.nesterov) and not self.momentum:
            raise check.fail_words("nesterov", "True with momentum=0", "a momentum > 0, without which it has no effect")

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the velocity after step t with the gradient `slope`."""
        velocity = self.momentum * velocity + slope
        move = slope + self.momentum * velocity if self.nesterov else velocity
        return x - self.step_size(t) * move, velocity
