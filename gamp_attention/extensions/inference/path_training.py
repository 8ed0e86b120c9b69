"""Training along a path of hyperparameters, on all samples or without the samples of a fold (cross-validation).

Each run of a path starts from the weights of the previous value, extrapolated (warm starts, as in Friedman et al.,
2010). In cross-validation, samples of one group, such as measurements of one subject, are in the same fold, and the
standard error of their mean error counts a group as one observation.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.numerics import Stream, generator
from gamp_attention.extensions.inference.covariance import fold_changes, scale_changes, select_paired
from gamp_attention.extensions.inference.refits import sample_errors
from gamp_attention.extensions.train.records import AGREEMENT
from gamp_attention.extensions.train.train import train
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp
from gamp_attention.gamp.step import near_fixed_point
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import is_convex
from gamp_attention.problem.symmetries import agreement_of
from gamp_attention.problem.tolerances import scale_tolerance


@dataclass(frozen=True, eq=False)
class PathPlan:
    """Plan of the training along a path: a dataset (n samples) for each value, their order, and the options.

    The first run begins at `init` with `n_starts`, as does a run if the previous run did not converge, or its weights
    are zero or have another shape.
    """

    values: np.ndarray  # (k,) values of the hyperparameter
    problems: list[Dataset]  # the samples at each value
    order: list[int]  # indices of the values along the path
    init: Any  # start of the first run, as for `train`
    n_starts: int  # number of starts of the first run
    tol: float  # gradient norm at convergence, in units of the weights if these are below 1
    max_iter: int  # maximum number of iterations of a run
    seed: Any  # seed of random starts and of the folds
    # relative decrease of the training loss from which a minimum counts as lower; converged runs differ by less
    lower: float = 1e-4

    def runs(self, known: dict[str, Any], rows: np.ndarray | None = None) -> Iterator[tuple[int, Dataset, GampResult]]:
        """Yield index, data and result of each value in turn, and again if a lower minimum is found at a value.

        If a minimum becomes unstable between two values, the weights jump to another minimum, which is often lower
        before the jump too. From the value after the jump, runs then return as long as their training loss is lower.

        `known` are weights of earlier calls by index, which are used instead of training, and to which weights of new
        runs are added; `rows` are the indices of the training samples, all samples if not given.
        """
        ends: dict[int, GampResult] = {}
        before: GampResult | None = None
        for k in self.order:
            data = self._data(k, rows)
            before = ends[k] = self._train(data, known.get(str(k)), before, self._extrapolate_weights(k, ends))
            known[str(k)] = {"Q": before.Q, "V": before.overlaps.V}
            yield k, data, before
        for below, above in reversed(list(pairwise(self.order))):
            data, lower, higher = self._data(below, rows), ends[below], ends[above]
            if is_convex(data) or not self._has_jumped(data, lower, higher):
                continue
            result = self._train(data, None, higher, None)
            if result.converged and result.train_loss < lower.train_loss - self.lower * abs(lower.train_loss):
                ends[below], known[str(below)] = result, {"Q": result.Q, "V": result.overlaps.V}
                yield below, data, result

    def _data(self, k: int, rows: np.ndarray | None) -> Dataset:
        """Return the training samples at the k-th value."""
        return self.problems[k] if rows is None else self.problems[k].select_rows(rows)

    def _has_jumped(self, data: Dataset, lower: GampResult, higher: GampResult) -> bool:
        """Return whether the weights (d, r) of two successive values belong to different minima."""
        if lower.Q.shape != higher.Q.shape or not (higher.converged and np.abs(higher.Q).max() > 0):
            return False
        return agreement_of(data, lower.Q, higher.Q) < AGREEMENT

    def _train(self, data: Dataset, known: Any, before: GampResult | None, ahead: Any) -> GampResult:
        """Return the run at one value, started from known weights, from the previous run, or from `init`."""
        shape = data.dim, data.rank
        # `run_gamp` scales its tolerance, with a margin that errors of paths do not have
        tol = self.tol * scale_tolerance(data, 1.0, margin=1.0) / scale_tolerance(data, 1.0)
        options = dict[str, Any](tol=tol, max_iter=self.max_iter)
        if known is not None and known["Q"].shape == shape:
            state = near_fixed_point(data, "exact", known["Q"], known["V"])
            return run_gamp(data, state, iteration=IterationOptions(hold_after=0), **options)
        fits = before is not None and before.converged and before.Q.shape == shape
        if before is None or not (fits and np.isfinite(before.overlaps.V).all() and np.abs(before.Q).max() > 0):
            return train(data, self.init, n_starts=self.n_starts, survey=False, escape=False, seed=self.seed, **options)
        Q = before.Q if ahead is None or ahead.shape != shape else ahead
        return run_gamp(data, replace(before, Q=Q), iteration=IterationOptions(hold_after=0), **options)

    def _extrapolate_weights(self, k: int, ends: dict[int, GampResult]) -> np.ndarray | None:
        """Return weights extrapolated from the last two values, linearly in the logarithm of positive values."""
        done = self.order[: len(ends)][-2:]
        points = self.values[[*done, k]]
        if len(done) < 2 or not (points > 0).all() or points[0] == points[1]:
            return None
        first, second = (ends[index] for index in done)
        ratio = np.log(points[2] / points[1]) / np.log(points[1] / points[0])
        usable = first.Q.shape == second.Q.shape and first.converged and second.converged
        return second.Q + np.clip(ratio, 0, 2) * (second.Q - first.Q) if usable else None


def require_groups(groups: Any, n: int, folds: int) -> np.ndarray:
    """Return the numbers (n,) of the groups, 0 to G − 1, of labels (n,) of any type.

    Raises
    ------
    TypeError : if the labels have different types or masked entries.
    ValueError : if the shape is not (n,), or if there are fewer groups than `folds`.
    """
    check.require_unmasked("groups", groups)
    labels = np.asarray(groups)
    if labels.shape != (n,):
        raise check.fail("groups", labels.shape, f"a label for each sample, shape ({n},)")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise check.fail_words("groups", "NaN or infinity", "labels that are not NaN or infinite")
    try:
        distinct, numbers = np.unique(labels, return_inverse=True)
    except TypeError:  # None or a mixture of types, which have no order
        raise check.fail_words("groups", "labels of different types", "labels of one type", TypeError) from None
    if len(distinct) < folds:
        needs = f"at least {folds} groups, one for each fold"
        raise check.fail_words("groups", count_noun(len(distinct), "group"), needs)
    return numbers


def split_groups(groups: np.ndarray, folds: int) -> list[np.ndarray]:
    """Return the samples of each fold: each group, from the largest to the smallest, is put into the smallest fold.

    This is the rule of scikit-learn's `GroupKFold`. `groups` (n,) are numbers from 0.
    """
    sizes = np.bincount(groups)
    filled, fold_of = np.zeros(folds), np.zeros(len(sizes), int)
    for group in np.argsort(sizes, kind="stable")[::-1].tolist():
        fold_of[group] = fold = int(filled.argmin())
        filled[fold] += sizes[group]
    return [np.flatnonzero(fold_of[groups] == fold) for fold in range(folds)]


def variance_of_mean(errors: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the variances (k,) of the means of errors (k, n) of samples, which are independent between groups only.

    Eq. :eq:`group-variance`. For G groups the variance is G/(G − 1) Σ_g (Σ_{i in g} (e_i − ē))²/n²; without groups each
    sample is a group.
    """
    n = errors.shape[1]
    if groups is None:
        return errors.var(axis=1, ddof=1) / n
    totals = np.array([np.bincount(groups, weights=row) for row in errors - errors.mean(axis=1, keepdims=True)])
    count = totals.shape[1]
    return count / (count - 1) * np.sum(totals**2, axis=1) / n**2


def fold_errors(
    along: PathPlan,
    folds: int,
    known: dict[str, Any],
    finished: Callable[[bool], None],
    groups: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return the errors (k, n) of samples by cross-validation, and whether all runs of a value converged (k,).

    The third result is a list of the changes (m, m) of the errors of pairs of samples at each value, scaled for
    `sum_products`. `known` are the weights of earlier calls by fold, to which the weights of this call are added.
    `finished` is called after each run; its argument is False if the run replaces an earlier one. All samples of one
    of the `groups` (n,) are left out together; without groups, folds are random.
    """
    n = along.problems[0].n_samples
    if groups is None:
        parts = list(map(np.sort, np.array_split(generator(along.seed, Stream.FOLDS).permutation(n), folds)))
    else:
        parts = split_groups(groups, folds)
    errors, converged = np.full((len(along.values), n), np.nan), np.ones(len(along.values), bool)
    samples, fold_of = select_paired(n), np.zeros(n, int)
    changes = np.zeros((len(along.values), len(samples), len(samples)))
    for fold, left_out in enumerate(parts):
        rows, fold_of[left_out] = np.setdiff1d(np.arange(n), left_out), fold
        ends: dict[int, GampResult] = {}
        for k, _, result in along.runs(known.setdefault(f"fold {fold}", {}), rows):
            finished(k not in ends)
            ends[k] = result
        for k, result in ends.items():
            test_data = along.problems[k].select_rows(left_out)
            errors[k, left_out] = sample_errors(test_data, test_data.fields(result.Q))
            changes[k] += fold_changes(along.problems[k], rows, result.Q, samples)
            converged[k] &= result.converged
    sizes = np.abs(errors)
    scaled = [scale_changes(changes[k], sizes[k], samples, fold_of) for k in range(len(along.values))]
    return errors, converged, scaled
