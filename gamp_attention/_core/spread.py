"""Errors of means, over a few independent replicas and over many samples."""

import numpy as np
from scipy.special import stdtrit


def half_width(replicas: np.ndarray, coverage: float = 0.98) -> np.ndarray:
    """Return the half-width of the confidence interval of the mean over the first axis, from Student's t.

    The coverage is for normally distributed replicas; 98 % leaves a margin, so that at least 95 % hold otherwise.
    """
    count = len(replicas)
    scale = float(stdtrit(count - 1, 0.5 + coverage / 2)) / np.sqrt(count)
    return scale * replicas.std(axis=0, ddof=1)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of samples (n,) and its standard error, which is NaN for a single sample."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)
