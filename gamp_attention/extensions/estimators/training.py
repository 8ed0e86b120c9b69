"""Training of an estimator: seed, sample weights and the run."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from gamp_attention._tools import check
from gamp_attention.extensions.inference.leave_one_out import LeaveOneOut
from gamp_attention.extensions.inference.paths import RegularizationPath
from gamp_attention.extensions.train.train import TrainResult, train
from gamp_attention.problem.dataset import Dataset

Errors = TypeVar("Errors", LeaveOneOut, RegularizationPath)


def train_estimator(estimator: Any, data: Dataset, init: Any, n_starts: int, survey: Any) -> TrainResult:
    """Run message passing on data with the parameters of an estimator; warn without convergence."""
    seed, limits = choose_seed(estimator.random_state), {"tol": estimator.tol, "max_iter": estimator.max_iter}
    result = train(data, init, "exact", **limits, seed=seed, n_starts=n_starts, survey=survey)
    if not result.converged:
        warnings.warn(f"{type(estimator).__name__}: {result.message}", ConvergenceWarning, stacklevel=3)
    return result


def choose_seed(random_state: Any) -> int:
    """Return the seed of a run: an integer as it is, or a random integer from a generator, or from numpy for None."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    return random_state


def require_sample_weight(sample_weight: ArrayLike | None, X: np.ndarray) -> np.ndarray | None:
    """Return the weights (n,) of samples X (n, ...), or None if none are given; raise unless they can be used."""
    if sample_weight is None:
        return None
    given = np.full(len(X), sample_weight) if isinstance(sample_weight, numbers.Real) else sample_weight
    weights = check.array("sample_weight", given, (len(X),))
    if (weights < 0).any():
        raise check.fail("sample_weight", float(weights.min()), "weights that are not negative")
    if not weights.any():
        raise check.fail_words("sample_weight", "zeros only", "a positive weight of one sample at least")
    return weights


def without_zeros(weights: np.ndarray | None, *arrays: np.ndarray) -> tuple[Any, ...]:
    """Return positive weights (n,) and the arrays, without the samples of weight 0."""
    if weights is None:
        return None, *arrays
    positive = weights > 0
    return weights[positive], *(array[positive] for array in arrays)


def average_by_weight(result: Errors, weights: np.ndarray | None, *names: str) -> Errors:
    """Return a result for data with sample weights (n,) whose named errors are weighted means.

    The errors of a dataset with weights are w_μ e_μ. Their mean over the mean weight is Σ w e/Σ w.
    """
    if weights is None:
        return result
    mean, names = float(weights.mean()), ("test_error", "test_error_error", "in_training", *names)
    numbers = {name: getattr(result, name) / mean for name in names}
    return replace(result, covariance=result.covariance / mean**2, **numbers)
