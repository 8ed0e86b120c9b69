"""Regularization paths: training along values of λ, and the test error at each value.

1. Training from the weights of the previous value (`_train_along`; warm starts, as in Friedman et al., 2010).
2. Leave-one-out errors at all values, of which some are interpolated (`_Estimates`).
3. If the smallest estimate is not trusted: cross-validation, with a separate path for each fold (`_fold_errors`).
4. Selection of the best value (`_select`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.inference.hessian import cavity_fields
from gamp_attention.extensions.inference.leave_one_out import (
    FEW_SAMPLES,
    FORMS,
    LeaveOneOut,
    leave_one_out,
    require_trained,
)
from gamp_attention.extensions.inference.refits import (
    error_unit,
    responses_without,
    sample_errors,
    select_paired,
    variance_of_pairs,
)
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

# number of folds, if there are that many samples. Weights are then trained on 95 % of the samples: on 80 %, they may be
# on the other side of a transition, so that another λ is best
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

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5)), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.01, 0.1, 1.0, 10.0])
    >>> path.best, path.best_1se
    (1, 2)
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
        0 for none; if not given, 20 or the number of samples if that is smaller, and none for fewer than 30 samples.
        Without folds, estimates that are not trusted are increased by a quarter before they are compared.
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
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.003, 0.03, 0.3], n_starts=2)
    >>> path.lam[path.best].item(), path.test_error.shape
    (0.003, (3,))
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
    plan = _Plan(values, init, n_starts, tol, max_iter, seed)
    problems = [data.replace(lam=lam) for lam in values.tolist()]
    with Progress("path", total=len(values) + 1, shown=progress) as bar:
        results = _train_along(data, plan, bar)
        if not any(result.converged for result in results):
            raise ConvergenceError("regularization_path: no run has converged", results)
        bar.describe("leave-one-out errors")
        estimates = _Estimates(problems, results, form)
        errors, spread, trusted = estimates.at_all_values(np.argsort(values, kind="stable").tolist())
        bar.update()
    dependent, mean = any(estimate.dependent for estimate in estimates.complete.values()), errors.mean(axis=1)
    used, remark = estimates.complete[int(values.argmin())].form, DEPENDENT if dependent else ""
    smallest = min((k for k, result in enumerate(results) if result.converged), key=lambda k: mean[k])
    # random folds do not separate a sample from neighbors that it depends on
    if folds and not (dependent or trusted[smallest]):
        used, remark = "folds", BY_FOLDS
        with Progress("folds", total=folds * len(values), shown=progress) as bar:
            errors, spread, trusted = _fold_errors(data, plan, folds, bar)
        mean, trusted = errors.mean(axis=1), trusted & (n >= FEW_SAMPLES)
    pairs = zip(problems, results, strict=True)
    in_training = np.array([sample_errors(problem, problem.fields(result.Q)).mean() for problem, result in pairs])
    best, best_1se, message = _select(values, results, mean, spread, trusted, remark)
    return RegularizationPath(
        lam=values, test_error=mean, test_error_error=spread, errors=errors, form=used, best=best, best_1se=best_1se,
        in_training=in_training, trusted=trusted, results=results, message=message,
    )  # fmt: skip


class _Plan(NamedTuple):
    """Values (k,) of λ, and the options of `regularization_path` for the training."""

    values: np.ndarray
    init: Any
    n_starts: int
    tol: float
    max_iter: int
    seed: Any


def _train_along(data: Dataset, plan: _Plan, bar: Progress) -> tuple[GampResult, ...]:
    """Return the results at all values.

    If a minimum becomes unstable between two values, the weights jump to another minimum, which is often lower before
    the jump too. From the value after the jump, runs then return as long as their training loss is lower.
    """
    ends: dict[int, GampResult] = {}
    before: GampResult | None = None
    order = np.argsort(plan.values, kind="stable").tolist()
    for k in order:
        ends[k] = before = _train(data.replace(lam=float(plan.values[k])), plan, before)
        bar.update()
    for below, above in reversed(list(pairwise(order))):
        lower, higher = ends[below], ends[above]
        if is_convex(data) or not (higher.converged and np.abs(higher.Q).max() > 0):
            continue
        problem = data.replace(lam=float(plan.values[below]))
        if agreement_of(problem, lower.Q, higher.Q) < AGREEMENT:
            result = _train(problem, plan, higher)
            if result.converged and result.train_loss < lower.train_loss - LOWER * abs(lower.train_loss):
                ends[below] = result
    return tuple(ends[k] for k in range(len(order)))


def _train(data: Dataset, plan: _Plan, before: GampResult | None) -> GampResult:
    """Return the run at one value, started from the previous run, or from `init` if this has no usable weights."""
    # `run_gamp` scales its tolerance, with a margin that errors of paths do not have
    tol = plan.tol * scale_tolerance(data, 1.0, margin=1.0) / scale_tolerance(data, 1.0)
    if before is not None and before.converged and np.isfinite(before.overlaps.V).all() and np.abs(before.Q).max() > 0:
        return run_gamp(data, before, tol=tol, max_iter=plan.max_iter, iteration=IterationOptions(hold_after=0))
    return train(
        data, plan.init, n_starts=plan.n_starts, survey=False, escape=False, seed=plan.seed, tol=tol,
        max_iter=plan.max_iter,
    )  # fmt: skip


class _Estimates:
    """Leave-one-out errors along a path of k values: complete estimates by number of the value, and interpolation.

    The errors by cavity fields cost one pass over the tokens. The difference between a complete estimate and these
    errors changes slowly along λ, and is interpolated between complete estimates, eq. :eq:`interpolated-errors`.
    """

    evenly = 6  # number of evenly spaced values along the path whose estimates are complete

    def __init__(self, problems: list[Dataset], results: tuple[GampResult, ...], form: str | None) -> None:
        self.problems, self.results, self.form = problems, results, form
        self.complete: dict[int, LeaveOneOut] = {}

    def at_all_values(self, order: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return errors (k, n), standard errors (k,) of their means, and which are trusted (k,), for an `order` of λ.

        After the evenly spaced values, the value with the smallest error is completed until it is complete already. A
        value is trusted if its estimate is, or the estimates between which it is interpolated.
        """
        line = [k for k in order if self.results[k].converged]  # at other values there is nothing to interpolate
        places = np.linspace(0, len(line) - 1, min(self.evenly, len(line))).round().astype(int).tolist()
        for k in {*order}.difference(line).union(line[place] for place in places):
            self._complete(k)
        rough = {k: self._rough_errors(k) for k in line} if len(places) < len(line) else {}
        while True:
            shape = len(order), self.problems[0].n_samples
            errors, rest, trusted = np.empty(shape), np.empty(shape[0]), np.empty(shape[0], bool)
            for k, loo in self.complete.items():
                errors[k], trusted[k] = loo.errors, loo.trusted
                rest[k] = loo.test_error_error**2 - loo.errors.var(ddof=1) / shape[1]
            for low, high in pairwise([place for place, k in enumerate(line) if k in self.complete]):
                a, b = line[low], line[high]
                for place in range(low + 1, high):
                    k, t = line[place], (place - low) / (high - low)
                    errors[k] = rough[k] + (1 - t) * (errors[a] - rough[a]) + t * (errors[b] - rough[b])
                    rest[k], trusted[k] = (1 - t) * rest[a] + t * rest[b], trusted[a] and trusted[b]
            best = min(line, key=lambda k: errors[k].mean() * (1.0 if trusted[k] else CAUTION))
            if best in self.complete:
                return errors, np.sqrt(errors.var(axis=1, ddof=1) / shape[1] + np.maximum(rest, 0.0)), trusted
            self._complete(best)

    def _complete(self, k: int) -> None:
        self.complete[k] = leave_one_out(self.problems[k], self.results[k], form=self.form)

    def _rough_errors(self, k: int) -> np.ndarray:
        data, (Q, at) = self.problems[k], require_trained(self.problems[k], self.results[k])
        return sample_errors(data, cavity_fields(data, self.results[k], at, Q))  # without refits


def _fold_errors(data: Dataset, plan: _Plan, folds: int, bar: Progress) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return errors (k, n) of samples by cross-validation, standard errors, and whether all runs converged (k,)."""
    n, k = data.n_samples, len(plan.values)
    errors, converged = np.full((k, n), np.nan), np.ones(k, bool)
    samples, fold_of = select_paired(n), np.zeros(n, int)
    changes = np.zeros((k, len(samples), len(samples)))
    parts = np.array_split(generator(plan.seed, Stream.FOLDS).permutation(n), folds)
    for fold, left_out in enumerate(map(np.sort, parts)):
        rows, fold_of[left_out] = np.setdiff1d(np.arange(n), left_out), fold
        for number, result in enumerate(_train_along(data.select_rows(rows), plan, bar)):
            problem = data.replace(lam=float(plan.values[number]))
            test_data = problem.select_rows(left_out)
            errors[number, left_out] = sample_errors(test_data, test_data.fields(result.Q))
            changes[number] += _fold_changes(problem, rows, result.Q, samples)
            converged[number] &= result.converged
    pairs = [variance_of_pairs(changes[number], np.abs(errors[number]), samples, fold_of) for number in range(k)]
    return errors, np.sqrt(errors.var(axis=1, ddof=1) / n + np.array(pairs)), converged


def _fold_changes(data: Dataset, rows: np.ndarray, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the changes (m, m) of errors of cross-validation: of sample i if sample j is left out too.

    Only the entries of samples i that are left out and of samples j that train the weights are not zero: to first
    order, ∇ℓ_iᵀ X̃_i (H_∖j)⁻¹ X̃_jᵀ ∇ℓ_j. The samples `rows` (k,), in ascending order, train the weights Q (d, r).
    """
    part = data.select_rows(rows)
    at, trained = risk_at(part, Q, "exact"), np.isin(samples, rows)
    local, new = np.searchsorted(rows, samples[trained]), data.matrix.rows_of(samples[~trained])
    responses = responses_without(part, at, Q, local, at.loss_gradients[local], None)  # the changes of the weights
    slopes = sample_derivatives(at.loss, data.terms("exact").params[samples[~trained]], new @ Q)[1]
    changes = np.zeros((len(samples), len(samples)))
    changes[np.ix_(~trained, trained)] = np.einsum("paj,mlp,mla->mj", responses, new, slopes, optimize=True)
    return error_unit(data) * changes


def _select(
    values: np.ndarray, results: tuple[GampResult, ...], mean: np.ndarray, spread: np.ndarray, trusted: np.ndarray,
    remark: str,
) -> tuple[int, int, str]:  # fmt: skip
    """Return the best value, the largest value within one standard error of it, and a message.

    Errors that are not trusted are increased by the factor CAUTION; `spread` are standard errors, `remark` a clause.
    """
    converged = [k for k in range(len(values)) if results[k].converged]
    best = min(converged, key=lambda k: mean[k] * (1.0 if trusted[k] else CAUTION))
    near = [k for k in converged if mean[k] * (1.0 if trusted[k] else CAUTION) <= mean[best] + spread[best]]
    best_1se = max([*near, best], key=lambda k: values[k])
    lower = sum(mean[k] < mean[best] for k in converged)
    message = f"The smallest test error is at lam = {values[best]:.4g}"
    if remark:
        message += f", {remark}"
    elif not trusted[best]:
        message += ", but this estimate is not reliable: compare it with the error of held-out samples"
    elif lower:
        message += f"; {lower} other values have lower errors by estimates that are not reliable"
    if len(values) > 1 and values[best] in (values.min(), values.max()):
        edge, beyond = ("smallest", "smaller") if values[best] == values.min() else ("largest", "larger")
        message += f"; it is the {edge} value tried, and {beyond} values may be better"
    return best, best_1se, f"{message}."
