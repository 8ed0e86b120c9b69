"""Code that all estimators use: seeds, sample weights, the run, and what is derived from a finished run."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset
from gamp_attention.experiments.inference.leave_one_out import LeaveOneOut
from gamp_attention.experiments.inference.paths import RegularizationPath, regularization_path
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


def checked_sample_weight(sample_weight: Any, X: np.ndarray) -> np.ndarray | None:
    """Return the weights (n,) of samples X (n, ...), or None if none are given.

    Raises
    ------
    ValueError : if weights are negative, or all zero, or there is another number of them.
    """
    if sample_weight is None:
        return None
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
    if (weights < 0).any():
        raise check.fail("sample_weight", float(weights.min()), "weights that are not negative")
    if not weights.any():
        raise check.fail("sample_weight", "zeros only", "a positive weight of one sample at least")
    return weights


def unweighted(loo: LeaveOneOut, weights: np.ndarray | None) -> LeaveOneOut:
    """Return leave-one-out errors of data with sample weights (n,) as errors of samples and their weighted means.

    The errors of a dataset with weights are w_μ e_μ. Their mean over the mean weight is Σ w e/Σ w.
    """
    if weights is None:
        return loo
    mean = float(weights.mean())
    names = "test_error", "test_error_error", "in_training", "with_choice"
    return replace(loo, errors=loo.errors / weights, **{name: getattr(loo, name) / mean for name in names})


class PathMixin:
    """Estimators with a method `regularization_path`; their `fit` sets `data_` and the start of a run, `_start`."""

    data_: Dataset
    _start: tuple[Any, int]
    random_state: Any

    def regularization_path(self, lams: Any, **options: Any) -> RegularizationPath:
        """Train at each value of λ on the data of the fit, and estimate the test error at each by leave-one-out.

        Parameters
        ----------
        lams : (k,) values of `lam`; if a penalty was given, of its λ.
        options : other keyword arguments of `gamp_attention.regularization_path`.

        Returns
        -------
        RegularizationPath with errors as of `leave_one_out`; for a standardised layer they are in the standard units of
        the fit, in which all coordinates count equally. If samples have weights, test errors are weighted means. The
        estimator does not change: `set_params(lam=...)` and `fit` train it with the value chosen.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self)
        data, (init, n_starts) = self.data_, self._start
        path = regularization_path(
            data, lams, init, **{"n_starts": n_starts, "seed": seed_of(self.random_state), **options}
        )
        if data.sample_weight is None:
            return path
        mean = float(data.sample_weight.mean())
        names = "test_error", "test_error_error", "in_training", "errors"
        return replace(path, **{name: getattr(path, name) / mean for name in names})
