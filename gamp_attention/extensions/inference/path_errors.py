"""Leave-one-out errors along a regularization path, of which most are interpolated.

The errors by cavity fields cost one pass over the tokens and are computed at every value of λ. The difference between a
complete estimate (`leave_one_out`) and these errors changes slowly along λ: it is computed at some values and
interpolated between them, eq. :eq:`interpolated-errors`. Each further complete estimate tests the interpolation, as in
adaptive quadrature.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.inference.leave_one_out import LeaveOneOut, LeaveOneOutMethod, require_trained
from gamp_attention.extensions.inference.left_out import cavity_fields, responses
from gamp_attention.extensions.inference.refits import sample_errors
from gamp_attention.gamp.result import GampResult
from gamp_attention.problem.dataset import Dataset

FEW = 6  # number of values up to which all estimates are complete
PARTS = 4  # corrections of any size are interpolated over at most this fraction, 1/4, of the path
SMALL = 0.03  # maximum correction, relative to the estimate, that is interpolated over longer parts


@dataclass(frozen=True, eq=False)
class PathErrors:
    """Leave-one-out errors along a path of k values."""

    errors: np.ndarray  # (k, n) errors of the samples
    trusted: np.ndarray  # (k,) True if `leave_one_out` trusts the estimate, or both between which it is interpolated
    changes: list[np.ndarray]  # (m, m) scaled changes of the errors of pairs of samples, of each value
    correction: np.ndarray  # (k,) variance of the correction by refits and of the choice among minima
    dependent: bool  # True if samples depend on their neighbors, see `LeaveOneOut.dependent`
    form: str  # form of the complete estimates


def path_errors(
    problems: Sequence[Dataset], results: Sequence[GampResult], order: np.ndarray, form: str | None,
    interpolated: bool, caution: float,
) -> PathErrors:  # fmt: skip
    """Return the leave-one-out errors at all values of a path, whose indices have the `order` (k,).

    Unless `interpolated` is False, complete estimates are computed at both ends, then in the middle of each interval
    between complete estimates, until the interpolation predicts the mean error up to 1/60, and the interval is shorter
    than a quarter of the path or the corrections are small; then at all values whose error may be the smallest, given
    the error of the interpolation. Errors that are not trusted are also compared after an increase by `caution`.
    """
    path = _Path(problems, results, form)
    line = [k for k in order.tolist() if results[k].converged]  # at other values there is nothing to interpolate
    small = path.method.refits_by_default(problems[0]) == problems[0].n_samples
    if not interpolated or small or len(line) <= FEW:
        line = []
    for k in set(order.tolist()).difference(line[1:-1]):
        path.complete(k)
    if not line:
        return path.collect()
    path.line, path.rough = line, [_rough(problems[k], results[k]) for k in line]
    path.split(0, len(line) - 1, len(line) // 2)
    while True:
        estimates = path.collect()
        mean = estimates.errors.mean(axis=1)
        cautious = np.where(estimates.trusted, 1.0, caution) * mean
        candidate = path.next_candidate(mean[line]) or path.next_candidate(cautious[line])
        if candidate is None:
            return estimates
        path.split(*candidate)


class _Path:
    """Complete estimates by number of the value, and intervals between them.

    Intervals are pairs of indices of `line`, the numbers of the values in the order of the path, with the error of the
    interpolation that was measured at one of their ends. `rough` are the errors (n,) by cavity fields of
    the values of `line`.
    """

    def __init__(self, problems: Sequence[Dataset], results: Sequence[GampResult], form: str | None) -> None:
        self.problems, self.results, self.form, self.method = problems, results, form, LeaveOneOutMethod()
        self.full: dict[int, tuple[LeaveOneOut, np.ndarray]] = {}  # with the changes of the errors of pairs of samples
        self.line: list[int] = []
        self.rough: list[np.ndarray] = []
        self.intervals: dict[tuple[int, int], float] = {}

    def complete(self, k: int) -> LeaveOneOut:
        """Compute the complete estimate of the k-th value."""
        self.full[k] = self.method.estimate(self.problems[k], self.results[k], self.form)
        return self.full[k][0]

    def split(self, low: int, high: int, index: int) -> None:
        """Complete the estimate at an index within an interval, and split the parts in which interpolation is wrong.

        Long parts also need small corrections at both ends, because a single test does not exclude large corrections
        inside of them.
        """
        predicted = float(self._errors(low, high, index).mean())
        deviation = abs(predicted - self.complete(self.line[index]).test_error)
        self.intervals.pop((low, high), None)
        for part in ((low, index), (index, high)):
            means = np.array([self.full[self.line[end]][0].test_error for end in part])
            corrections = means - [float(self.rough[end].mean()) for end in part]
            length, is_small = part[1] - part[0], bool((np.abs(corrections) <= SMALL * means).all())
            is_accurate = deviation <= self.method.trusted_error * means.min()
            if length == 1 or (is_accurate and (is_small or length <= -(-len(self.line) // PARTS))):
                self.intervals[part] = deviation
            else:
                self.split(*part, sum(part) // 2)

    def next_candidate(self, values: np.ndarray) -> tuple[int, int, int] | None:
        """Return an interval and an index within it whose value may be the smallest; None if there is none."""
        minimum, candidates = values.min(), list[tuple[float, tuple[int, int, int]]]()
        for (low, high), deviation in self.intervals.items():
            for index in range(low + 1, high):
                if values[index] <= minimum or values[index] - deviation < minimum:
                    candidates.append((values[index], (low, high, index)))
        return min(candidates)[1] if candidates else None

    def collect(self) -> PathErrors:
        """Return the errors at all values, complete or interpolated."""
        count, n = len(self.problems), self.problems[0].n_samples
        errors, correction, trusted = np.full((count, n), np.nan), np.zeros(count), np.zeros(count, bool)
        changes = [np.zeros((0, 0))] * count
        for k, (estimate, of_pairs) in self.full.items():
            errors[k], trusted[k] = estimate.errors, estimate.trusted
            known = mean_and_error(estimate.errors)[1] ** 2 + estimate.covariance
            correction[k], changes[k] = max(estimate.test_error_error**2 - known, 0.0), of_pairs
        for low, high in self.intervals:
            first, last = self.line[low], self.line[high]
            m = min(len(changes[first]), len(changes[last]))  # the samples that both have in common
            for index in range(low + 1, high):
                k, fraction = self.line[index], (index - low) / (high - low)
                errors[k], trusted[k] = self._errors(low, high, index), trusted[first] and trusted[last]
                correction[k] = (1 - fraction) * correction[first] + fraction * correction[last]
                changes[k] = (1 - fraction) * changes[first][:m, :m] + fraction * changes[last][:m, :m]
        estimates = [estimate for estimate, _ in self.full.values()]
        dependent = any(estimate.dependent for estimate in estimates)
        return PathErrors(errors, trusted, changes, correction, dependent, estimates[0].form)

    def _errors(self, low: int, high: int, index: int) -> np.ndarray:
        """Return the errors (n,) at an index, by interpolation of the corrections at the ends of an interval."""
        fraction = (index - low) / (high - low)
        below, above = (self.full[self.line[end]][0].errors - self.rough[end] for end in (low, high))
        return self.rough[index] + (1 - fraction) * below + fraction * above


def _rough(data: Dataset, result: GampResult) -> np.ndarray:
    """Return the errors (n,) by cavity fields without refits."""
    Q, at = require_trained(data, result)
    return sample_errors(data, cavity_fields(data, at, responses(data, result, at, Q)))
