"""Code shared by all estimators: seeds, sample weights, the run, and inference from a finished run."""

import numbers
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset
from gamp_attention.experiments.inference.debias import DebiasedWeights, debias
from gamp_attention.experiments.inference.leave_one_out import LeaveOneOut, leave_one_out
from gamp_attention.experiments.inference.paths import RegularizationPath, regularization_path
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp

Errors = TypeVar("Errors", LeaveOneOut, RegularizationPath)


def train(
    estimator: Any, data: Dataset, init: Any, n_starts: int, survey: Any = False, tol: float | None = None
) -> GampResult:
    """Run message passing on data with the parameters of an estimator, or another `tol`; warn without convergence."""
    seed = choose_seed(estimator.random_state)
    limits = {"tol": estimator.tol if tol is None else tol, "max_iter": estimator.max_iter}
    result = run_gamp(data, init, "exact", **limits, seed=seed, n_starts=n_starts, survey=survey)
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
    weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
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


class InferenceMixin:
    """Methods of fitted estimators: leave-one-out, regularization paths and debiased weights.

    `fit` must set `data_`, `result_` and the arguments `init` and `n_starts` of the run, `_start`.
    """

    data_: Dataset
    result_: GampResult
    _start: tuple[Any, int]
    random_state: Any

    def leave_one_out(self, **options: Any) -> LeaveOneOut:
        """Estimate the test error from the training data: each sample is predicted by a fit without it.

        Parameters
        ----------
        options : keyword arguments of `gamp_attention.leave_one_out`, which is applied to `data_` and `result_`.

        Returns
        -------
        LeaveOneOut. For a layer, `errors` are ‖y − f(x)‖²/(dL) in the units of the outputs, as in `test_error`; for
        rows they are losses: half a squared deviation of a label, or minus the log-likelihood of a class. If samples
        have weights, `test_error` is the weighted mean of the errors, and a sample is left out with all of its weight.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self)
        loo, weights = leave_one_out(self.data_, self.result_, **options), self.data_.sample_weight
        if weights is not None:
            loo = replace(average_by_weight(loo, weights, "with_choice", "selection"), errors=loo.errors / weights)
        return self._convert_errors(loo)

    def debias(self) -> DebiasedWeights:
        """Compute weights without the bias of the penalty, with standard deviations and intervals.

        Returns
        -------
        DebiasedWeights, see `gamp_attention.debias`. For a layer they have the units of `Q_`; for rows the units of
        `coef_`, in arrays (d, k) with a row for each column of X.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self)
        return self._convert_weights(debias(self.data_, self.result_))

    def regularization_path(self, lams: Sequence[float] | np.ndarray, **options: Any) -> RegularizationPath:
        """Train at each value of λ on the data of the fit, and estimate each test error by leave-one-out.

        Parameters
        ----------
        lams : (k,) values of `lam`, or of the λ of the penalty if there is one.
        options : keyword arguments of `gamp_attention.regularization_path`.

        Returns
        -------
        RegularizationPath with the errors of `leave_one_out`, except that the errors of a standardized layer are in the
        standard units of the fit, in which all coordinates count equally. If samples have weights, test errors are
        weighted means. The estimator does not change: train it with the chosen value by `set_params(lam=...)` and
        `fit`.

        Raises
        ------
        NotFittedError : before `fit`.
        ValueError : if `checkpoint` is given, but neither `random_state` nor the option `seed` is an integer.
        """
        check_is_fitted(self)
        init, n_starts = self._start
        is_fixed = isinstance(self.random_state, numbers.Integral) or "seed" in options
        if options.get("checkpoint") is not None and not is_fixed:  # a resumed path would draw another seed
            raise check.fail("random_state", self.random_state, "an integer if a checkpoint is given")
        options = {"n_starts": n_starts, "seed": choose_seed(self.random_state), **options}
        path = regularization_path(self.data_, lams, init, **options)
        return average_by_weight(path, self.data_.sample_weight, "errors")

    def _convert_errors(self, loo: LeaveOneOut) -> LeaveOneOut:
        """Convert errors from the units of `data_` to the units of the user."""
        return loo

    def _convert_weights(self, weights: DebiasedWeights) -> DebiasedWeights:
        """Convert weights from the units of `data_` to the units of the user."""
        return weights
