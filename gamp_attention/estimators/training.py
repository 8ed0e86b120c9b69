"""What estimators have in common: seeds, the run, and a warning where it does not converge."""

import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from gamp_attention.data.dataset import Dataset
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp


def train(estimator: Any, data: Dataset, init: Any, n_starts: int) -> GampResult:
    """Message passing on data with the settings of an estimator."""
    seed = seed_of(estimator.random_state)
    result = run_gamp(data, init, "exact", tol=estimator.tol, max_iter=estimator.max_iter, seed=seed, n_starts=n_starts)
    if not result.converged:
        warnings.warn(f"{type(estimator).__name__}: {result.message}", ConvergenceWarning, stacklevel=3)
    return result


def seed_of(random_state: Any) -> int:
    """The seed of a run: integers are seeds themselves, generators and None give one."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    return random_state
