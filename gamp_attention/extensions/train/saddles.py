"""Escapes from saddles of the risk, along the direction of lowest curvature, to the lowest point on this line."""

import numpy as np

from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import risk_at

ESCAPE_STEP = 1e-2  # root mean square of the first change of the weights, in units of a teacher's weights
ESCAPE_GROWTH = 2.0  # factor of the step while the risk falls; while no step lowers it, divided by its square
MAX_TRIALS = 40  # maximum number of steps that are tried in each of the directions v and −v
MAX_SADDLES = 20  # maximum number of saddles that a run leaves


def leave_saddle(data: Dataset, risk: str, Q: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lowest of several points Q ± s v along a line, and its training loss; Q itself if none is lower.

    v is the direction of lowest curvature (d, r); s is doubled while the risk falls.
    """
    at = risk_at(data, Q, risk)
    best, lowest = Q, at.train_loss
    for side in (1.0, -1.0):
        size, falling, last = ESCAPE_STEP * np.sqrt(Q.size), False, at.train_loss
        for _ in range(MAX_TRIALS):
            trial = Q + side * size * direction
            loss = risk_at(data, trial, risk).train_loss
            if loss < last:
                falling, last = True, loss
                if loss < lowest:
                    best, lowest = trial, loss
                size *= ESCAPE_GROWTH
            elif falling:
                break
            else:
                size /= ESCAPE_GROWTH**2
    return best, lowest
