"""The result of `leave_one_out`."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.text import Rows, to_error
from gamp_attention.results import Result


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Result):
    """Errors of samples under weights trained without them, of `leave_one_out`.

    Attributes
    ----------
    test_error, test_error_error : mean of `errors`, an estimate of ε_g, and its standard error, which includes the
        standard error of the correction by refits.
    in_training : the same mean with the samples in training.
    errors : (n,) ‖y − f(x)‖²/(dL) of each sample; of labels their loss.
    fields : (n, L, r) fields z of each sample under weights trained without it.
    form : "hessian" or "cavity" (see `leave_one_out`).
    trusted : whether the mean agrees with exact refits: within 5 % or three standard errors; `message` says why not.
    doubtful : (n,) whether the formula is doubtful for a sample, because only this sample determines some weights or
        because its removal changes the curvature of the other samples.
    remainder : (n,) length of the second Newton step without the sample relative to the first; NaN if the sample was
        not refitted, zero for penalties with kinks.
    refitted : (n,) whether the error is the error of an exact refit.
    with_choice : the mean where the start was chosen anew without each sample; NaN where one start alone was followed
        to its end.
    message : the outcome in words.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> loo = ga.leave_one_out(data, ga.run_gamp(data))
    >>> loo.in_training < loo.test_error < loo.bound(0.9)
    True
    """

    test_error: float
    test_error_error: float
    in_training: float
    errors: np.ndarray
    fields: np.ndarray
    form: str
    trusted: bool
    doubtful: np.ndarray
    remainder: np.ndarray
    refitted: np.ndarray
    with_choice: float
    message: str

    def bound(self, level: float = 0.9) -> float:
        """A bound that the error of a new sample keeps with a probability of about `level`: split-conformal of errors.

        Eq. :eq:`error-bound`. The (1 + 1/n) `level` quantile of the errors; infinite where n is too small for it. For
        the squared loss of a single field, labels are then within sqrt(2 bound) of z.
        """
        level = check.real("level", level, low=0, high=1, strict=True)
        rank = int(np.ceil(level * (len(self.errors) + 1)))
        return float(np.sort(self.errors)[rank - 1]) if rank <= len(self.errors) else float("inf")

    def _rows(self) -> Rows:
        rows: Rows = [f"{type(self).__name__}: {len(self.errors)} samples, {self.form}"]
        numbers = [("ε_g", self.test_error, self.test_error_error), ("in training", self.in_training, np.nan)]
        rows += [[f"  {name}", to_error(value, error)] for name, value, error in numbers]
        rows.append(["  doubtful", str(np.count_nonzero(self.doubtful))])
        return [*rows, f"  {self.message}"]
