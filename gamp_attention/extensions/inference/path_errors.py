"""Leave-one-out errors along a regularization path, of which most are interpolated.

The errors by cavity fields cost one pass over the tokens and are computed at every value of λ. The difference between a
complete estimate (`leave_one_out`) and these errors changes slowly along λ: it is computed at some values and
interpolated between them, eq. :eq:`interpolated-errors`. Each further complete estimate tests the interpolation, as in
adaptive quadrature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.inference.leave_one_out import LeaveOneOut, LeaveOneOutMethod, require_trained
from gamp_attention.extensions.inference.left_out import cavity_fields, responses
from gamp_attention.extensions.inference.refits import sample_errors
from gamp_attention.gamp.result import GampResult
from gamp_attention.problem.dataset import Dataset


@dataclass(frozen=True, eq=False)
class PathErrors:
    """Leave-one-out errors along a path of k values."""

    errors: np.ndarray  # (k, n) errors of the samples
    in_training: np.ndarray  # (k,) mean training errors
    complete: np.ndarray  # (k,) True if `leave_one_out` was computed at the value
    # (k,) True if `leave_one_out` trusts the estimate; between complete estimates, if both are trusted
    agreed: np.ndarray
    tested: np.ndarray  # (k,) True if the estimate is complete, or the test of its interpolation succeeded
    changes: list[np.ndarray]  # (m, m) scaled changes of the errors of pairs of samples, of each value
    correction: np.ndarray  # (k,) variance of the correction by refits and of the choice among minima
    dependent: bool  # True if samples depend on their neighbors, see `LeaveOneOut.dependent`
    form: str  # form of the complete estimates


def path_errors(
    problems: Sequence[Dataset], results: Sequence[GampResult], order: np.ndarray, form: str | None,
    interpolated: bool, caution: float,
) -> PathErrors:  # fmt: skip
    """Return the leave-one-out errors at all values.

    Complete estimates are computed

    - at both ends and in the middle of `order`;
    - then in the middle of each interval between complete estimates, until the interpolation predicts the mean error up
      to 1/60, and the interval is shorter than a quarter of the path or the corrections are small;
    - then at the value of the smallest error, and at all values whose error may be smaller, given the error of the
      interpolation, until none of them is interpolated.

    Parameters
    ----------
    problems, results : (k,) the samples at each value, and the training on them.
    order : (k,) indices of the values along the path.
    form : as for `leave_one_out`.
    interpolated : whether the hyperparameter is continuous, so that estimates may be interpolated between its values.
    caution : factor by which mean errors that are not trusted are increased before they are compared.
    """
    path = _Path(problems, results, order, form)
    small = path.method.refits_by_default(problems[0]) == problems[0].n_samples
    if not interpolated or small or len(path.line) <= path.few:
        path.full = {index: path.estimate(k) for index, k in enumerate(path.line)}
        return path.collect()
    for index in (0, len(path.line) - 1, len(path.line) // 2):
        path.complete_at(index)
    while (middle := path.next_test()) is not None:
        path.complete_at(middle)
    while True:
        estimates = path.collect()
        mean = estimates.errors.mean(axis=1)
        cautious = np.where(estimates.agreed & estimates.tested, 1.0, caution) * mean
        candidate = path.next_candidate(mean, cautious)
        if candidate is None:
            return estimates
        path.complete_at(candidate)


@dataclass(eq=False)
class _Path:
    """Complete and interpolated estimates.

    An index counts the values at which the training converged (`line`), in the order of the path. At the other values
    (`outside`) there is nothing to interpolate, and all estimates are complete.
    """

    problems: Sequence[Dataset]
    results: Sequence[GampResult]
    order: np.ndarray
    form: str | None
    method: LeaveOneOutMethod = field(default_factory=LeaveOneOutMethod)  # method of complete estimates
    few: int = 6  # number of values up to which all estimates are complete
    parts: int = 4  # corrections of any size are interpolated over at most this fraction, 1/4, of the path
    small: float = 0.03  # maximum correction, relative to the estimate, that is interpolated over longer parts

    def __post_init__(self) -> None:
        self.line = [k for k in self.order.tolist() if self.results[k].converged]  # indices of `problems`
        self.changes: dict[int, np.ndarray] = {}  # changes of pairs at complete estimates, by number of the value
        self.full: dict[int, LeaveOneOut] = {}  # complete estimates by index
        self.deviation = np.full(len(self.line), np.nan)  # error of the interpolation where it was tested, by index
        self.rough: list[tuple[np.ndarray, float]] = []  # errors by cavity fields, and mean training errors, by index
        self.outside = {k: self.estimate(k) for k in self.order if k not in self.line}

    def estimate(self, k: int) -> LeaveOneOut:
        """Return the complete estimate at the k-th value."""
        estimate, self.changes[k] = self.method.estimate(self.problems[k], self.results[k], self.form)
        return estimate

    def complete_at(self, index: int) -> None:
        """Compute the complete estimate at an index, and by how much its mean differs from the interpolation."""
        if not self.rough:
            self.rough = [_rough(self.problems[k], self.results[k]) for k in self.line]
        predicted = self._errors(index) if len(self.full) > 1 else None
        self.full[index] = self.estimate(self.line[index])
        if predicted is not None:
            self.deviation[index] = abs(float(predicted.mean()) - self.full[index].test_error)

    def next_test(self) -> int | None:
        """Return the middle of an interval whose interpolation has not been tested or has failed the test."""
        for low, high in self._intervals():
            if high - low > 1 and not self._is_tested(low, high):
                return (low + high) // 2
        return None

    def next_candidate(self, mean: np.ndarray, cautious: np.ndarray) -> int | None:
        """Return an index that may have the smallest error, and has no complete estimate; None if there is none."""
        for values in (mean[self.line], cautious[self.line]):
            uncertainty = np.zeros(len(values))
            for low, high in self._intervals():
                uncertainty[low + 1 : high] = self._uncertainty(low, high)
            minimum = values.min()
            may_be_lower = (values <= minimum) | (values - uncertainty < minimum)
            candidates = [k for k in range(len(values)) if k not in self.full and may_be_lower[k]]
            if candidates:
                return min(candidates, key=lambda k: values[k])
        return None

    def collect(self) -> PathErrors:
        """Return the errors at all values, complete or interpolated."""
        count, n = len(self.problems), self.problems[0].n_samples
        errors, in_training = np.full((count, n), np.nan), np.full(count, np.nan)
        complete, agreed, tested = np.ones(count, bool), np.zeros(count, bool), np.ones(count, bool)
        changes, correction = dict(self.changes), np.zeros(count)
        every = {self.line[index]: estimate for index, estimate in self.full.items()} | self.outside
        for k, estimate in every.items():
            errors[k], in_training[k], agreed[k] = estimate.errors, estimate.in_training, estimate.trusted
            known = mean_and_error(estimate.errors)[1] ** 2 + estimate.covariance
            correction[k] = max(estimate.test_error_error**2 - known, 0.0)
        for low, high in self._intervals():
            for index in range(low + 1, high):
                k, ends, fraction = self.line[index], (self.line[low], self.line[high]), (index - low) / (high - low)
                changes[k] = _interpolate(self.changes[ends[0]], self.changes[ends[1]], fraction)
                correction[k] = (1 - fraction) * correction[ends[0]] + fraction * correction[ends[1]]
                errors[k], in_training[k], complete[k] = self._errors(index), self.rough[index][1], False
                agreed[k] = self.full[low].trusted and self.full[high].trusted
                tested[k] = self._is_tested(low, high)
        form = next(iter(every.values())).form
        in_order = [changes[k] for k in range(count)]
        dependent = any(estimate.dependent for estimate in every.values())
        return PathErrors(errors, in_training, complete, agreed, tested, in_order, correction, dependent, form)

    def _intervals(self) -> list[tuple[int, int]]:
        """Return the neighboring indices of complete estimates."""
        return list(pairwise(sorted(self.full)))

    def _errors(self, index: int) -> np.ndarray:
        """Return the errors (n,) at an index, by interpolation of the corrections of the nearest complete estimates."""
        low = max(k for k in self.full if k < index)
        high = min(k for k in self.full if k > index)
        fraction = (index - low) / (high - low)
        below, above = (self.full[k].errors - self.rough[k][0] for k in (low, high))
        return self.rough[index][0] + (1 - fraction) * below + fraction * above

    def _uncertainty(self, low: int, high: int) -> float:
        """Return the error of the interpolation that was measured at the end of the interval that was computed last."""
        times = list(self.full)
        return float(self.deviation[max(low, high, key=times.index)])

    def _is_tested(self, low: int, high: int) -> bool:
        """Return whether the test of the interpolation at an end of the interval succeeded.

        In addition, a long interval needs small corrections at both ends, because a single test does not exclude large
        corrections inside of it.
        """
        means = np.array([self.full[k].test_error for k in (low, high)])
        corrections = means - [float(self.rough[k][0].mean()) for k in (low, high)]
        is_short = high - low <= -(-len(self.line) // self.parts)
        is_small = bool((np.abs(corrections) <= self.small * means).all())
        return self._uncertainty(low, high) <= self.method.trusted_error * means.min() and (is_short or is_small)


def _interpolate(below: np.ndarray, above: np.ndarray, fraction: float) -> np.ndarray:
    """Return changes (m, m) between two matrices of changes, of the samples that both have in common."""
    m = min(len(below), len(above))
    return (1 - fraction) * below[:m, :m] + fraction * above[:m, :m]


def _rough(data: Dataset, result: GampResult) -> tuple[np.ndarray, float]:
    """Return the errors (n,) by cavity fields without refits, and the mean training error."""
    Q, at = require_trained(data, result)
    fields = cavity_fields(data, at, responses(data, result, at, Q))
    return sample_errors(data, fields), float(sample_errors(data, at.z).mean())
