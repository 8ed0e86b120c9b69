"""Leave-one-out errors of all values of a path, from complete estimates at some of them.

The cavity fields cost a pass over the tokens and are computed at every value. The difference between a complete
estimate (`leave_one_out`) and their errors changes slowly along λ: it is computed at some values and interpolated
between them. Each further complete estimate tests the interpolation, as in adaptive quadrature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.experiments.inference.leave_one_out import (
    BELIEF,
    leave_one_out,
    refits_by_default,
    responses,
    sample_errors,
    trained,
)
from gamp_attention.experiments.inference.removal import cavity_fields
from gamp_attention.gamp.result import GampResult

FEW = 6  # values up to which all estimates are complete
PARTS = 4  # parts of the path within which corrections of any size are interpolated
SMALL = 0.03  # corrections, relative to the estimate, that are interpolated over longer parts


@dataclass(frozen=True, eq=False)
class PathErrors:
    """Errors of samples left out along a path of k values.

    Attributes
    ----------
    errors : (k, n) errors of the samples.
    in_training : (k,) their means with the samples in training.
    complete : (k,) whether `leave_one_out` was computed at the value.
    agreed : (k,) whether its verdict is "trusted"; between complete estimates, whether both are.
    settled : (k,) whether the value is complete, or the test of its interpolation succeeded.
    form : form of the complete estimates.
    """

    errors: np.ndarray
    in_training: np.ndarray
    complete: np.ndarray
    agreed: np.ndarray
    settled: np.ndarray
    form: str


def path_errors(
    problems: Sequence[Dataset], results: Sequence[GampResult], order: np.ndarray, form: str | None,
    interpolated: bool, trusted: Callable[[np.ndarray], np.ndarray], caution: float,
) -> PathErrors:  # fmt: skip
    """Return the errors of samples left out at all values.

    Complete estimates are computed at both ends and in the middle of `order`; then in the middle of intervals until
    the interpolation predicts their mean error up to 1/60, and until they are shorter than a quarter of the path unless
    the corrections are small; then at the value of the least error, and at all values that the error of the
    interpolation leaves open as the least, until these are complete.

    Parameters
    ----------
    problems, results : (k,) the samples at each value, and the training on them.
    order : (k,) indices of the values along the path.
    form : as for `leave_one_out`.
    interpolated : whether the hyperparameter is continuous, so that estimates may be interpolated between its values.
    trusted : function that returns the final verdicts (k,) from `agreed` (k,).
    caution : factor of the mean errors that are not trusted, when the least is chosen.
    """
    path = _Path(problems, results, order, form)
    small = refits_by_default(problems[0]) == problems[0].n_samples
    if not interpolated or small or len(path.line) <= FEW:
        path.complete_all()
        return path.found()
    for place in (0, len(path.line) - 1, len(path.line) // 2):
        path.complete_at(place)
    while (tested := path.next_test()) is not None:
        path.complete_at(tested)
    while True:
        found = path.found()
        mean = found.errors.mean(axis=1)
        counted = np.where(trusted(found.agreed) & found.settled, 1.0, caution) * mean
        candidate = path.next_candidate(mean, counted)
        if candidate is None:
            return found
        path.complete_at(candidate)


class _Path:
    """Complete and interpolated estimates; places are along the values at which the training converged."""

    def __init__(
        self, problems: Sequence[Dataset], results: Sequence[GampResult], order: np.ndarray, form: str | None
    ) -> None:
        self.problems, self.results, self.form = problems, results, form
        self.line = [k for k in order.tolist() if results[k].converged]  # index of each place
        self.full: dict[int, Any] = {}  # complete estimates by place
        self.apart = np.full(len(self.line), np.nan)  # error of the prediction at a place, if it was predicted
        self.rough: list[tuple[np.ndarray, float]] = []  # errors by cavity fields, and the mean in training
        self.outside = {k: leave_one_out(problems[k], results[k], form=form) for k in order if k not in self.line}

    def complete_all(self) -> None:
        for place, k in enumerate(self.line):
            self.full[place] = leave_one_out(self.problems[k], self.results[k], form=self.form)

    def complete_at(self, place: int) -> None:
        """Compute the complete estimate at a place, and by how much its mean differs from the interpolation."""
        if not self.rough:
            self.rough = [_rough(self.problems[k], self.results[k]) for k in self.line]
        predicted = self._errors(place) if len(self.full) > 1 else None
        k = self.line[place]
        self.full[place] = leave_one_out(self.problems[k], self.results[k], form=self.form)
        if predicted is not None:
            self.apart[place] = abs(float(predicted.mean()) - self.full[place].test_error)

    def next_test(self) -> int | None:
        """Return the middle of an interval whose interpolation has not been tested or has failed the test."""
        for low, high in self._intervals():
            if high - low > 1 and not self._settled(low, high):
                return (low + high) // 2
        return None

    def next_candidate(self, mean: np.ndarray, counted: np.ndarray) -> int | None:
        """Return a place that may have the least error, and has no complete estimate."""
        for values in (mean[self.line], counted[self.line]):
            doubt = np.zeros(len(values))
            for low, high in self._intervals():
                doubt[low + 1 : high] = self._doubt(low, high)
            least = values.min()
            open_places = [
                k
                for k in range(len(values))
                if k not in self.full and (values[k] <= least or values[k] - doubt[k] < least)
            ]
            if open_places:
                return min(open_places, key=lambda k: values[k])
        return None

    def found(self) -> PathErrors:
        count, n = len(self.problems), self.problems[0].n_samples
        errors, in_training = np.full((count, n), np.nan), np.full(count, np.nan)
        complete, agreed, settled = np.ones(count, bool), np.zeros(count, bool), np.ones(count, bool)
        every = {self.line[place]: estimate for place, estimate in self.full.items()} | self.outside
        for k, estimate in every.items():
            errors[k], in_training[k], agreed[k] = estimate.errors, estimate.in_training, estimate.trusted
        for low, high in self._intervals():
            for place in range(low + 1, high):
                k = self.line[place]
                errors[k], in_training[k], complete[k] = self._errors(place), self.rough[place][1], False
                agreed[k] = self.full[low].trusted and self.full[high].trusted
                settled[k] = self._settled(low, high)
        return PathErrors(errors, in_training, complete, agreed, settled, next(iter(every.values())).form)

    def _intervals(self) -> list[tuple[int, int]]:
        places = sorted(self.full)
        return list(pairwise(places))

    def _errors(self, place: int) -> np.ndarray:
        """Return the errors (n,) at a place by interpolation between its neighbours that are complete."""
        low = max(each for each in self.full if each < place)
        high = min(each for each in self.full if each > place)
        share = (place - low) / (high - low)
        below, above = (self.full[each].errors - self.rough[each][0] for each in (low, high))
        return self.rough[place][0] + (1 - share) * below + share * above

    def _doubt(self, low: int, high: int) -> float:
        """Return the error of the interpolation that was found when one of the two ends divided a longer interval."""
        times = list(self.full)
        return float(self.apart[max(low, high, key=times.index)])

    def _settled(self, low: int, high: int) -> bool:
        """Return whether the interpolation was tested at an end of the interval, and agreed.

        A long interval also needs small corrections at both ends: one test does not exclude large ones between them.
        """
        means = np.array([self.full[each].test_error for each in (low, high)])
        corrections = means - [float(self.rough[each][0].mean()) for each in (low, high)]
        is_short = high - low <= -(-len(self.line) // PARTS)
        is_small = bool((np.abs(corrections) <= SMALL * means).all())
        return self._doubt(low, high) <= BELIEF.share * means.min() and (is_short or is_small)


def _rough(data: Dataset, result: GampResult) -> tuple[np.ndarray, float]:
    """Return the errors (n,) by cavity fields without refits, and the mean error in training."""
    Q, at = trained(data, result)
    fields = cavity_fields(data, at, responses(data, result, at, Q))
    return sample_errors(data, fields), float(sample_errors(data, at.z).mean())
