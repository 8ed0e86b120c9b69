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


def interval_of_mean(values: np.ndarray, error: float, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the expected value of samples (n,) with standard error `error` of their mean.

    The quantiles are from Student's t distribution with n − 1 degrees of freedom. Rare large samples make the
    distribution of (mean − expected value)/error skewed. The end of the interval on the side of the long tail is
    shifted to first order in the skewness (Johnson (1978), Hall (1992)); the other end is not, because the skewness is
    estimated from the same samples. If no sample is negative, neither is the interval.
    """
    n, spread = len(values), values.std()
    mean, t, shift = float(values.mean()), float(stdtrit(n - 1, 0.5 + level / 2)), 0.0
    if spread > 0 and error > 0:
        skewness = float(np.mean(((values - mean) / spread) ** 3)) * (spread / error) ** 3 / n**2  # of the mean
        shift = skewness / 6 * (1 + 2 * t**2)
    low = mean + (min(shift, 0.0) - t) * error
    return max(low, 0.0) if values.min() >= 0 else low, mean + (max(shift, 0.0) + t) * error
