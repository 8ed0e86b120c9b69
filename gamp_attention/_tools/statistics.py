"""Means, standard errors and intervals."""

import numpy as np
from scipy.special import stdtrit


def half_width(replicas: np.ndarray) -> np.ndarray:
    """Return the half-width of the confidence interval of the mean over the first axis, from Student's t.

    The coverage is 98 % for normally distributed replicas; the margin makes at least 95 % hold otherwise.
    """
    count = len(replicas)
    return float(stdtrit(count - 1, 0.5 + 0.98 / 2)) / np.sqrt(count) * replicas.std(axis=0, ddof=1)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of samples (n,) and its standard error, which is NaN for a single sample."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)
