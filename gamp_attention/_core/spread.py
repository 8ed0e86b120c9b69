"""The error of a mean: over few independent replicas, and over many samples."""

import numpy as np
from scipy.special import stdtrit


def half_width(replicas: np.ndarray, coverage: float = 0.98) -> np.ndarray:
    """Half-width of the mean over the first axis, from Student's t.

    The coverage is that under normal statistics, so that 95 % hold where they are not quite normal.
    """
    count = len(replicas)
    scale = float(stdtrit(count - 1, 0.5 + coverage / 2)) / np.sqrt(count)
    return scale * replicas.std(axis=0, ddof=1)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Mean of samples (n,) and its standard error, NaN where there is one sample alone."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)
