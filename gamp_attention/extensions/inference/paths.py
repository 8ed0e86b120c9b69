"""Regularization paths: training along values of λ, and the test error at each value.

1. Training from the weights of the previous value (`_train_along`; warm starts, as in Friedman et al., 2010).
2. Leave-one-out errors at all values, of which some are interpolated (`_leave_out_along`).
3. If the smallest estimate is not trusted: cross-validation, with a separate path for each fold (`_fold_errors`).
4. Selection of the best value (`_select`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.inference.hessian import FORMS, cavity_fields
from gamp_attention.extensions.inference.leave_one_out import FEW_SAMPLES, LeaveOneOut, leave_one_out, require_trained
from gamp_attention.extensions.inference.refits import changes_without, sample_errors, select_paired, variance_of_pairs
from gamp_attention.extensions.train.runs import AGREEMENT
from gamp_attention.extensions.train.train import train
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.risk import is_convex, risk_at, scale_tolerance
from gamp_attention.problem.symmetries import agreement_of
from gamp_attention.results import ConvergenceError, Result

# number of folds. Weights are then trained on 95 % of the samples: on 80 %, they may be on the other side of a
# transition, so that another λ is best
FOLDS = 20
CAUTION = 1.25  # factor of estimates that are not trusted; with many minima they were up to 28 % too low
# relative decrease of the training loss from which a minimum counts as lower; converged runs differ by less
LOWER = 1e-4
BY_FOLDS = "by cross-validation, because the leave-one-out error there is not reliable"
DEPENDENT = (
    "but samples repeat each other, or depend on their neighbors in the order of the arrays, so that all errors are "
    "too low for independent samples: hold out whole times or subjects, or shuffle the samples if their order has no "
    "meaning"
)


@dataclass(frozen=True, eq=False)
class RegularizationPath(Result):
    """Estimated test errors along values of λ, of `regularization_path`.

    Attributes
    ----------
    lam : (k,) values of λ, in the order in which they were given.
    test_error, test_error_error : (k,) estimates of ε_g by leave-one-out or cross-validation, and standard errors,
        which include the covariance of the errors of different samples and the correction by refits.
    in_training : (k,) mean training errors.
    errors : (k, n) error of each sample under weights trained without it.
    form : "cavity" or "hessian", the form of `leave_one_out`, or "folds" for cross-validation.
    best : index of the smallest test error of converged runs; errors that are not trusted are increased by a quarter.
    best_1se : index of the largest value whose test error is within one standard error of the best (Breiman et
        al., 1984).
    trusted : (k,) bool, True if `leave_one_out` trusts the estimate. An interpolated estimate is trusted if both
        neighboring complete estimates are; with folds, if all runs converged and there are at least 30 samples.
    results : results of training at each value.
    message : the outcome in words.
    """

    lam: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    in_training: np.ndarray
    errors: np.ndarray
    form: str
    best: int
    best_1se: int
    trusted: np.ndarray
    results: tuple[GampResult, ...]
    message: str

    def _rows(self) -> Rows:
        rows: Rows = [f"{type(self).__name__}: {count_noun(len(self.lam), 'value')}"]
        rows.append(["", "lam", "ε_g", "in training", ""])
        for k, lam in enumerate(self.lam):
            mark = "best" if k == self.best else "1 s.e." if k == self.best_1se else ""
            error = format_to_error(self.test_error[k], self.test_error_error[k])
            doubt = "" if self.trusted[k] else "not trusted"
            rows.append([mark, f"{lam:.4g}", error, f"{self.in_training[k]:.4g}", doubt])
        return [*rows, self.message]


@guard_call
def regularization_path(
    data: Dataset,
    lams: Sequence[float] | np.ndarray,
    init: Any = "spectral",
    *,
    n_starts: int = 8,
    form: str | None = None,
    tol: float = 1e-3,
    max_iter: int = 10000,
    folds: int | None = None,
    seed: int | np.random.Generator = 0,
    progress: bool | None = None,
) -> RegularizationPath:
    """Train along a path of λ, and estimate the test error at each value by leave-one-out.

    Runs proceed from the smallest to the largest λ, and each run begins at the fixed point of the previous run. For
    more than six values some errors are interpolated, eq. :eq:`interpolated-errors`, but never the error of the best.

    Parameters
    ----------
    data : the samples.
    lams : (k,) values of λ; other parameters of the penalty do not change.
    init : start of the first run, as for `train`, and of runs whose previous run has no usable weights.
    n_starts : number of starts of these runs.
    form : "hessian" or "cavity", as for `leave_one_out`, which selects the form if it is not given.
    tol : gradient norm at which a run has converged, above 0. It is multiplied by the unit of weights (for which fields
        are of order one, or as large as the labels of the squared loss) if this is below 1. With the default, estimates
        differ from their values at exact minima by about a thousandth.
    max_iter : maximum number of iterations of each run.
    folds : number of folds of the cross-validation that replaces leave-one-out if the smallest estimate is not trusted;
        0 for none; if not given, 20, and none for fewer than 30 samples. Without folds, estimates that are not trusted
        are increased by a quarter before they are compared.
    seed : seed of random starts and of the folds.
    progress : whether to show a progress bar; if not given, only on a terminal.

    Returns
    -------
    RegularizationPath

    Raises
    ------
    TypeError : if `data` is not a Dataset.
    ValueError : if `lams` has negative or repeated values, or if `folds` is 1 or above the number of samples.
    ConvergenceError : if no run has converged.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5)), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.01, 0.1, 1.0, 10.0])
    >>> path.lam[path.best].item(), path.best_1se, path.test_error.shape
    (0.1, 2, (4,))
    """
    n, values = require_dataset(data).n_samples, check.array("lams", lams, ("k",))
    if (values < 0).any() or len(np.unique(values)) < len(values):
        raise check.fail("lams", values.tolist(), "distinct values of λ that are not negative")
    form = None if form is None else check.choice("form", form, FORMS)
    if folds is not None and check.integer("folds", folds, low=0, high=n) == 1:
        raise check.fail("folds", folds, "0 or at least 2")
    folds = (FOLDS if n >= FEW_SAMPLES else 0) if folds is None else folds
    tol, max_iter = check.real("tol", tol, low=0, strict=True), check.integer("max_iter", max_iter, low=1)
    if progress is not None:
        check.flag("progress", progress)
    order = np.argsort(values, kind="stable")
    given = np.argsort(order)  # places of the given values in the order of λ
    ascending: list[float] = values[order].tolist()
    start = partial(_train, init=init, n_starts=n_starts, tol=tol, max_iter=max_iter, seed=seed)
    with Progress("path", total=len(ascending) + 1, shown=progress) as bar:
        results = _train_along(data, ascending, start, bar)
        if not any(result.converged for result in results):
            raise ConvergenceError("regularization_path: no run has converged", tuple(results[k] for k in given))
        bar.describe("leave-one-out errors")
        problems = [data.replace(lam=lam) for lam in ascending]
        errors, spread, trusted, complete = _leave_out_along(problems, results, form)
        bar.update()
    dependent, mean = any(estimate.dependent for estimate in complete.values()), errors.mean(axis=1)
    used, remark = complete[0].form, DEPENDENT if dependent else ""
    smallest = min((k for k, result in enumerate(results) if result.converged), key=lambda k: mean[k])
    # random folds do not separate a sample from neighbors that it depends on
    if folds and not (dependent or trusted[smallest]):
        used, remark = "folds", BY_FOLDS
        with Progress("folds", total=folds * len(ascending), shown=progress) as bar:
            errors, spread, trusted = _fold_errors(data, ascending, start, folds, seed, bar)
        mean, trusted = errors.mean(axis=1), trusted & (n >= FEW_SAMPLES)
    pairs = zip(problems, results, strict=True)
    in_training = np.array([sample_errors(problem, problem.fields(result.Q)).mean() for problem, result in pairs])
    best, best_1se, message = _select(ascending, results, mean, spread, trusted, remark)
    return RegularizationPath(
        lam=values, test_error=mean[given], test_error_error=spread[given], errors=errors[given], form=used,
        best=int(order[best]), best_1se=int(order[best_1se]), in_training=in_training[given], trusted=trusted[given],
        results=tuple(results[k] for k in given), message=message,
    )  # fmt: skip


def _train_along(data: Dataset, lams: list[float], start: Callable[..., GampResult], bar: Progress) -> list[GampResult]:
    """Return the results at all values of λ, in ascending order; `start` is `_train` with its options.

    If a minimum becomes unstable between two values, the weights jump to another minimum, which is often lower before
    the jump too. From the value after the jump, runs then return as long as their training loss is lower.
    """
    results = list[GampResult]()
    for lam in lams:
        results.append(start(data.replace(lam=lam), results[-1] if results else None))
        bar.update()
    for k in reversed(range(len(lams) - 1)):
        lower, higher = results[k], results[k + 1]
        if is_convex(data) or not (higher.converged and np.abs(higher.Q).max() > 0):
            continue
        problem = data.replace(lam=lams[k])
        if agreement_of(problem, lower.Q, higher.Q) < AGREEMENT:
            result = start(problem, higher)
            if result.converged and result.train_loss < lower.train_loss - LOWER * abs(lower.train_loss):
                results[k] = result
    return results


def _train(
    data: Dataset, before: GampResult | None, *, init: Any, n_starts: int, tol: float, max_iter: int, seed: Any
) -> GampResult:
    """Return the run at one value, started from the previous run, or from `init` if this has no usable weights."""
    # `run_gamp` scales its tolerance, with a margin that errors of paths do not have
    tol = tol * scale_tolerance(data, 1.0, margin=1.0) / scale_tolerance(data, 1.0)
    if before is not None and before.converged and np.isfinite(before.overlaps.V).all() and np.abs(before.Q).max() > 0:
        return run_gamp(data, before, tol=tol, max_iter=max_iter, iteration=IterationOptions(hold_after=0))
    options = {"n_starts": n_starts, "seed": seed, "tol": tol, "max_iter": max_iter}
    return train(data, init, survey=False, escape=False, **options)


def _leave_out_along(
    problems: list[Dataset], results: list[GampResult], form: str | None, evenly: int = 6
) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[int, LeaveOneOut]]:
    """Return leave-one-out errors (k, n), standard errors (k,) of their means, which are trusted (k,), and estimates.

    The errors by cavity fields cost one pass over the tokens. The difference between a complete estimate and these
    errors changes slowly along λ, and is interpolated between complete estimates, eq. :eq:`interpolated-errors`. After
    `evenly` spaced values, the value with the smallest error is completed until it is complete already. A value is
    trusted if its estimate is, or the estimates between which it is interpolated.
    """

    def complete_at(k: int) -> LeaveOneOut:
        return leave_one_out(problems[k], results[k], form=form)

    # at values without convergence there is nothing to interpolate
    line = [k for k, result in enumerate(results) if result.converged]
    places = np.linspace(0, len(line) - 1, min(evenly, len(line))).round().astype(int).tolist()
    first = {*range(len(results))}.difference(line).union(line[place] for place in places)
    complete, shape = {k: complete_at(k) for k in sorted(first)}, (len(results), problems[0].n_samples)
    rough = dict[int, np.ndarray]()  # errors without refits
    for k in line if len(places) < len(line) else []:
        Q, at = require_trained(problems[k], results[k])
        rough[k] = sample_errors(problems[k], cavity_fields(problems[k], results[k], at, Q))
    while True:
        errors, rest, trusted = np.empty(shape), np.empty(shape[0]), np.empty(shape[0], bool)
        for k, loo in complete.items():
            errors[k], trusted[k] = loo.errors, loo.trusted
            rest[k] = loo.test_error_error**2 - loo.errors.var(ddof=1) / shape[1]
        for a, b in pairwise(k for k in line if k in complete):
            inside = [k for k in line if a < k < b]
            for k, t in zip(inside, np.linspace(0, 1, len(inside) + 2)[1:-1], strict=True):
                errors[k] = rough[k] + (1 - t) * (errors[a] - rough[a]) + t * (errors[b] - rough[b])
                rest[k], trusted[k] = (1 - t) * rest[a] + t * rest[b], trusted[a] and trusted[b]
        best = min(line, key=_cautious(errors.mean(axis=1), trusted).__getitem__)
        if best in complete:
            spread = np.sqrt(errors.var(axis=1, ddof=1) / shape[1] + np.maximum(rest, 0.0))
            return errors, spread, trusted, complete
        complete[best] = complete_at(best)


def _cautious(mean: np.ndarray, trusted: np.ndarray) -> np.ndarray:
    """Return mean errors (k,), increased where they are not trusted, for comparisons."""
    return mean * np.where(trusted, 1.0, CAUTION)


def _fold_errors(
    data: Dataset, lams: list[float], start: Callable[..., GampResult], folds: int, seed: Any, bar: Progress
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return errors (k, n) of samples by cross-validation, standard errors, and whether all runs converged (k,)."""
    n, k = data.n_samples, len(lams)
    errors, converged = np.full((k, n), np.nan), np.ones(k, bool)
    samples, fold_of = select_paired(n), np.zeros(n, int)
    changes = np.zeros((k, len(samples), len(samples)))
    parts = np.array_split(generator(seed, Stream.FOLDS).permutation(n), folds)
    for fold, left_out in enumerate(map(np.sort, parts)):
        rows, fold_of[left_out] = np.setdiff1d(np.arange(n), left_out), fold
        for number, result in enumerate(_train_along(data.select_rows(rows), lams, start, bar)):
            problem = data.replace(lam=lams[number])
            test_data = problem.select_rows(left_out)
            errors[number, left_out] = sample_errors(test_data, test_data.fields(result.Q))
            changes[number] += _fold_changes(problem, rows, result.Q, samples)
            converged[number] &= result.converged
    pairs = [variance_of_pairs(changes[number], np.abs(errors[number]), samples, fold_of) for number in range(k)]
    return errors, np.sqrt(errors.var(axis=1, ddof=1) / n + np.array(pairs)), converged


def _fold_changes(data: Dataset, rows: np.ndarray, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the changes (m, m) of errors of cross-validation: of sample i if sample j is left out too.

    Only the entries of samples i that are left out and of samples j that train the weights are not zero. The samples
    `rows` (k,), in ascending order, train the weights Q (d, r).
    """
    part = data.select_rows(rows)
    at, trained = risk_at(part, Q, "exact"), np.isin(samples, rows)
    local, new = np.searchsorted(rows, samples[trained]), data.matrix.rows_of(samples[~trained])
    slopes = sample_derivatives(at.loss, data.terms("exact").params[samples[~trained]], new @ Q)[1]
    between = changes_without(part, at, Q, local, at.loss_gradients[local], None, new, slopes)
    changes = np.zeros((len(samples), len(samples)))
    changes[np.ix_(~trained, trained)] = between
    return changes


def _select(
    lams: list[float], results: list[GampResult], mean: np.ndarray, spread: np.ndarray, trusted: np.ndarray, remark: str
) -> tuple[int, int, str]:
    """Return the best of ascending values, the largest value within one standard error of it, and a message.

    `spread` are standard errors, `remark` a clause of the message.
    """
    converged, compared = [k for k, result in enumerate(results) if result.converged], _cautious(mean, trusted)
    best = min(converged, key=compared.__getitem__)
    best_1se = max([best, *(k for k in converged if compared[k] <= mean[best] + spread[best])])
    lower = sum(mean[k] < mean[best] for k in converged)
    message = f"The smallest test error is at lam = {lams[best]:.4g}"
    if remark:
        message += f", {remark}"
    elif not trusted[best]:
        message += ", but this estimate is not reliable: compare it with the error of held-out samples"
    elif lower:
        message += f"; {lower} other values have lower errors by estimates that are not reliable"
    if len(lams) > 1 and best in (0, len(lams) - 1):
        edge, beyond = ("largest", "larger") if best else ("smallest", "smaller")
        message += f"; it is the {edge} value tried, and {beyond} values may be better"
    return best, best_1se, f"{message}."
