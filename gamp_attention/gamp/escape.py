"""The way down from a saddle of the risk, along the direction of its lowest curvature."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import risk_at


@dataclass(frozen=True)
class EscapeSettings:
    """How far to go down, and how often."""

    step: float = 1e-2  # root mean square of the first change of the weights; 1 is that of a teacher
    growth: float = 2.0  # of the step, while the risk falls; shrinks by its square where the first does not lower it
    max_trials: int = 40  # of steps, on each side
    most: int = 20  # saddles that one run leaves


ESCAPE = EscapeSettings()


def way_down(data: Dataset, risk: str, Q: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """The lowest of weights Q ± s v with s doubled while the risk falls, v being the direction of lowest curvature.

    With the training loss there; Q itself where no step lowers it.
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
