"""The result of `regularization_path`."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.text import Rows, to_error
from gamp_attention.gamp.result import GampResult
from gamp_attention.results import Result

PLAUSIBLE = 2.0  # standard errors of a difference within which one value is as good as the best


@dataclass(frozen=True, eq=False)
class RegularizationPath(Result):
    """Leave-one-out errors along a hyperparameter, of `regularization_path`.

    Attributes
    ----------
    parameter : its name.
    lam : (k,) its values, in the order that they were given in.
    test_error, test_error_error : (k,) estimates of ε_g by samples left out, and their standard errors.
    in_training : (k,) the same means with the samples in training.
    errors : (k, n) of each sample.
    form : how samples were left out: "cavity", "hessian", or in "folds", by weights trained on the other folds.
    best : index of the least test error, among those that are trusted where there are any.
    best_1se : index of the largest value whose test error is within one standard error of the best.
    trusted : (k,) bool, whether `leave_one_out` trusts each estimate. An interpolated estimate is trusted if its
        neighbours are and the test of the interpolation succeeded; with folds, if all runs converged.
    predicted : (k,) ε_g by state evolution of the instance, NaN where it was not asked for.
    results : what training gave at each value.
    message : the outcome in words.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5)), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.01, 0.1, 1.0, 10.0])
    >>> path.best, path.plausible.tolist()
    (1, [False, True, True, False])
    """

    parameter: str
    lam: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    in_training: np.ndarray
    errors: np.ndarray
    form: str
    best: int
    best_1se: int
    trusted: np.ndarray
    predicted: np.ndarray
    results: tuple[GampResult, ...]
    message: str

    @property
    def difference(self) -> np.ndarray:
        """(k,) by how much each test error is above that of the best."""
        return self.test_error - self.test_error[self.best]

    @property
    def difference_error(self) -> np.ndarray:
        """(k,) standard errors of the differences, over the same samples; mostly smaller than those of the errors."""
        apart = self.errors - self.errors[self.best]
        return apart.std(axis=1, ddof=1) / np.sqrt(apart.shape[1])

    @property
    def plausible(self) -> np.ndarray:
        """(k,) whether a value may be the best: those within two standard errors of their difference from it."""
        return self.difference <= PLAUSIBLE * self.difference_error

    def _rows(self) -> Rows:
        heads = ["", self.parameter, "ε_g", "above the best", "in training", "by theory", ""]
        rows: Rows = [f"{type(self).__name__}: {len(self.lam)} values", heads]
        values = zip(
            self.lam, self.test_error, self.test_error_error, self.difference, self.difference_error, strict=True
        )
        for k, (lam, error, spread, above, paired) in enumerate(values):
            mark = "best" if k == self.best else "1 s.e." if k == self.best_1se else ""
            known = f"{self.predicted[k]:.4g}" if np.isfinite(self.predicted[k]) else "-"
            doubt = "" if self.trusted[k] else "not trusted"
            more = "-" if k == self.best else to_error(above, paired)
            rows.append([mark, f"{lam:.4g}", to_error(error, spread), more, f"{self.in_training[k]:.4g}", known, doubt])
        return [*rows, self.message]
