"""Tolerances of the gradient norm in the unit of the weights, which follows from the sizes of tokens and labels."""

import numpy as np

from gamp_attention.problem.dataset import Dataset

TOLERANCE_MARGIN = 100.0  # tolerances are proportional to the unit of weights if it is below the inverse
SMALL_UNIT = 0.1  # unit of weights below which thresholds of the gradient norm are multiplied by it
UNIT_SAMPLES = 1000  # maximum number of samples from which the size of tokens is computed, for tolerances


def scale_tolerance(data: Dataset, tol: float, margin: float = TOLERANCE_MARGIN) -> float:
    """Return the tolerance of the gradient norm: `tol`, or if this is smaller, tol × margin × the unit of weights.

    The gradient norm has the unit of the weights. If these are small because tokens are large, or labels small, a fixed
    tolerance would be inaccurate.
    """
    return tol * min(1.0, margin * weight_unit(data))


def small_unit(data: Dataset) -> float:
    """Return the unit of weights if it is small, otherwise 1."""
    unit = weight_unit(data)
    return unit if unit < SMALL_UNIT else 1.0


def weight_unit(data: Dataset) -> float:
    """Return the size of weights for which fields have the size of the labels, or are of order one without labels."""
    tokens, size = data.tokens[:: -(-data.n_samples // UNIT_SAMPLES)] + data.positions, 1.0
    if data.labels is not None:
        size = float(data.student.field_size(_typical_size(np.mean(data.labels**2, axis=0))))
    return size / _typical_size(np.mean(tokens**2, axis=(0, 1), dtype=float))


def _typical_size(squares: np.ndarray) -> float:
    """Return the root of the median of the positive squares (k,), or 1 if there are none."""
    positive = squares[squares > 0]
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0
