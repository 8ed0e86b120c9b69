"""The error of a mean over few independent replicas."""

import numpy as np
from scipy.special import stdtrit


def half_width(replicas: np.ndarray, coverage: float = 0.98) -> np.ndarray:
    """Half-width of the mean over the first axis, from Student's t.

    The coverage is that under normal statistics, so that 95 % hold where they are not quite normal.
    """
    count = len(replicas)
    scale = float(stdtrit(count - 1, 0.5 + coverage / 2)) / np.sqrt(count)
    return scale * replicas.std(axis=0, ddof=1)
