"""Descent from a saddle of the risk along its direction of lowest curvature."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import risk_at


@dataclass(frozen=True)
class EscapeSettings:
    """Settings of the line search along the direction of lowest curvature."""

    step: float = 1e-2  # root mean square of the first change of the weights; a teacher's weights have 1
    growth: float = 2.0  # factor of the step while the risk falls; if the first step fails, divided by its square
    max_trials: int = 40  # maximum number of steps tried in each of the two senses of the direction
    most: int = 20  # maximum number of saddles that one run leaves


ESCAPE = EscapeSettings()


def way_down(data: Dataset, risk: str, Q: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the weights of lowest training loss on the line Q ± s v, and their training loss.

    v is the direction of lowest curvature (d, r); s is doubled while the risk falls. Q itself is returned if no step
    lowers the risk.
    """
    at = risk_at(data, Q, risk)
    best, lowest = Q, at.train_loss
    for side in (1.0, -1.0):
        size, falling, last = ESCAPE.step * np.sqrt(Q.size), False, at.train_loss
        for _ in range(ESCAPE.max_trials):
            trial = Q + side * size * direction
            loss = risk_at(data, trial, risk).train_loss
            if loss < last:
                falling, last = True, loss
                if loss < lowest:
                    best, lowest = trial, loss
                size *= ESCAPE.growth
            elif falling:
                break
            else:
                size /= ESCAPE.growth**2
    return best, lowest
