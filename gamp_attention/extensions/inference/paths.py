"""Regularization paths: training along the values of a hyperparameter, and the test error at each value.

1. Training from the weights of the previous value (`path_training.py`).
2. Leave-one-out errors at all values, of which some are interpolated (`path_errors.py`).
3. If the smallest estimate is not trusted: cross-validation, with a separate path for each fold (`fold_errors`).
4. Standard errors of the test errors and of their differences, with the covariance of the errors of different samples
   (`covariance.py`), whose changes are interpolated together with the errors.
5. Selection of the best value (`_select`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.checkpoints import Checkpoint, CheckpointFile
from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.inference.covariance import sum_products
from gamp_attention.extensions.inference.leave_one_out import FORMS, LeaveOneOutMethod
from gamp_attention.extensions.inference.path_errors import PathErrors, path_errors
from gamp_attention.extensions.inference.path_training import PathPlan, fold_errors, require_groups, variance_of_mean
from gamp_attention.extensions.inference.refits import sample_errors
from gamp_attention.extensions.train.train import digest_run
from gamp_attention.gamp.result import GampResult
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.results import ConvergenceError, Result
from gamp_attention.theory.fixed_points.solve import solve_state_evolution

PLAUSIBLE = 2.0  # difference from the best value, in standard errors, up to which a value may be the best
SAME = 1e-6  # relative difference of test errors below the accuracy of training
# number of folds, if there are that many samples. Weights are then trained on 95 % of the samples: on 80 %, they may be
# on the other side of a transition, so that another λ is best
FOLDS = 20
GROUP_FOLDS = 5  # the same with groups, of which there may be few
CAUTION = 1.25  # factor of estimates that are not trusted; with many minima they were up to 28 % too low
ROUNDING = 1e-12  # relative difference of test errors up to which they are equal in a table
REMARKS = {  # clauses on the estimate at the best value
    "folds": "by cross-validation, because the leave-one-out error there is not reliable",
    "groups": "by cross-validation that leaves out whole groups",
    "dependent": "but samples repeat each other, or depend on their neighbors in the order of the arrays, so that all "
    "errors are too low for independent samples: pass `groups` with the same label for "
    "samples that are equal or of one time or subject, or shuffle the samples if their order has no meaning",
}


@dataclass(frozen=True, eq=False)
class RegularizationPath(Result):
    """Estimated test errors along the values of a hyperparameter, of `regularization_path`.

    Attributes
    ----------
    parameter : name of the hyperparameter.
    lam : (k,) values of the hyperparameter, in the order in which they were given.
    test_error, test_error_error : (k,) estimates of ε_g by leave-one-out or cross-validation, and standard errors,
        which include the covariance of the errors of different samples and the correction by refits.
    covariance : (k, k) part of the covariance of the test errors at two values that is due to pairs of different
        samples, eq. :eq:`loo-variance`; on the diagonal a part of the squared standard errors.
    in_training : (k,) mean training errors.
    errors : (k, n) error of each sample under weights trained without it.
    form : "cavity" or "hessian", the form of `leave_one_out`, or "folds" for cross-validation.
    best : index of the smallest test error of converged runs; errors that are not trusted are increased by a quarter.
    best_1se : index of the largest value whose test error is within one standard error of the best (Breiman et
        al., 1984).
    trusted : (k,) bool, True if `leave_one_out` trusts the estimate. An interpolated estimate is trusted if both
        neighboring complete estimates are; with folds, if all runs converged. With fewer than 30 samples, False.
    predicted : (k,) ε_g by state evolution of the instance, NaN if it was not requested.
    results : results of training at each value.
    groups : (n,) numbers of the groups of samples that were left out together; None without groups.
    message : the outcome in words.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5)), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.01, 0.1, 1.0, 10.0])
    >>> path.best, path.plausible.tolist()
    (1, [True, True, True, False])
    """

    parameter: str
    lam: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    covariance: np.ndarray
    in_training: np.ndarray
    errors: np.ndarray
    form: str
    best: int
    best_1se: int
    trusted: np.ndarray
    predicted: np.ndarray
    results: tuple[GampResult, ...]
    groups: np.ndarray | None
    message: str

    @property
    def difference(self) -> np.ndarray:
        """(k,) differences between each test error and the test error of the best value."""
        return self.test_error - self.test_error[self.best]

    @property
    def difference_error(self) -> np.ndarray:
        """(k,) standard errors of the differences over paired samples; mostly smaller than `test_error_error`.

        They include the covariance of the differences of two samples, but not the correction by refits.
        """
        differences = self.errors - self.errors[self.best]
        of_pairs = self.covariance + self.covariance[self.best, self.best]
        of_pairs = np.diagonal(of_pairs) - 2 * self.covariance[self.best]
        return np.sqrt(variance_of_mean(differences, self.groups) + np.maximum(of_pairs, 0.0))

    @property
    def plausible(self) -> np.ndarray:
        """(k,) True if a value may be the best: it differs by at most two standard errors, or a millionth of ε_g."""
        return self.difference <= np.maximum(PLAUSIBLE * self.difference_error, SAME * self.test_error[self.best])

    def _rows(self) -> Rows:
        predicts = bool(np.isfinite(self.predicted).any())
        heads = ["", self.parameter, "ε_g", "above the best", "in training", *["by theory"] * predicts, ""]
        rows: Rows = [f"{type(self).__name__}: {count_noun(len(self.lam), 'value')}", heads]
        above, paired = self.difference, self.difference_error
        for k, lam in enumerate(self.lam):
            mark = "best" if k == self.best else "1 s.e." if k == self.best_1se else ""
            error = format_to_error(self.test_error[k], self.test_error_error[k])
            equal = max(abs(above[k]), paired[k]) <= ROUNDING * abs(self.test_error[k])
            more = "-" if k == self.best else "0" if equal else format_to_error(above[k], paired[k])
            known = f"{self.predicted[k]:.4g}" if np.isfinite(self.predicted[k]) else "-"
            doubt = "" if self.trusted[k] else "not trusted"
            rows.append([mark, f"{lam:.4g}", error, more, f"{self.in_training[k]:.4g}", *[known] * predicts, doubt])
        return [*rows, self.message]


@guard_call
def regularization_path(
    data: Dataset | Mapping[float, Dataset],
    lams: Sequence[float] | np.ndarray | None = None,
    init: Any = "spectral",
    *,
    n_starts: int = 8,
    parameter: str = "lam",
    form: str | None = None,
    tol: float = 1e-3,
    max_iter: int = 10000,
    folds: int | None = None,
    groups: Any = None,
    seed: int | np.random.Generator = 0,
    predict: bool = False,
    checkpoint: Any = None,
    progress: bool | None = None,
) -> RegularizationPath:
    """Train along a path of λ, or of any hyperparameter, and estimate the test error at each value by leave-one-out.

    Runs proceed from the smallest to the largest λ, and each run begins at the fixed point of the previous run. For
    more than six values some errors are interpolated, eq. :eq:`interpolated-errors`, but never the error of the best.

    Parameters
    ----------
    data : the samples; or a dictionary with a Dataset for each value of a hyperparameter, such as a temperature.
    lams : (k,) values of λ; other parameters of the penalty do not change. Must be None for a dictionary.
    init : start of the first run, as for `train`, and of runs whose previous run has no usable weights.
    n_starts : number of starts of these runs.
    parameter : name of the hyperparameter of a dictionary, for tables.
    form : "hessian" or "cavity", as for `leave_one_out`, which selects the form if it is not given.
    tol : gradient norm at which a run has converged, above 0. It is multiplied by the unit of weights (for which fields
        are of order one, or as large as the labels of the squared loss) if this is below 1. With the default, estimates
        differ from their values at exact minima by about a thousandth.
    max_iter : maximum number of iterations of each run.
    folds : number of folds of the cross-validation that replaces leave-one-out if the smallest estimate is not trusted;
        0 for none; if not given, 20 (5 with groups) or the number of samples (of groups) if that is smaller. Estimates
        that are not trusted are then increased by a quarter before they are compared.
    groups : (n,) labels of samples that depend on each other, such as the number of a subject who was measured several
        times, or of a block of a time series. Cross-validation then replaces leave-one-out. It leaves out all samples
        of a group at the same time (in the folds of scikit-learn's `GroupKFold`), and standard errors count a group as
        one observation.
    seed : seed of random starts and of the folds; an integer if a checkpoint is given.
    predict : whether state evolution of the instance also predicts ε_g, on the branch of each run; needs sampled data.
    checkpoint : path of a file to which weights are written after each value; if the file exists, the path is resumed.
        The resumed path must have the same data, values, `init`, `n_starts`, `tol`, `max_iter`, `folds`, `groups` and
        `seed`.
    progress : whether to show a progress bar; if not given, only on a terminal.

    Returns
    -------
    RegularizationPath

    Raises
    ------
    TypeError : if `data` is neither a Dataset nor a dictionary of Datasets, or `lams` is missing.
    ValueError : if `lams` has negative or repeated values, or is given with a dictionary; if the datasets have
        different numbers of samples; if `folds` is 1, or with groups 0 or above their number; if `predict` is True for
        data that were not sampled from a model; if `checkpoint` is of another path, or is given with a Generator as
        `seed`.
    ConvergenceError : if no run has converged.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.003, 0.03, 0.3], n_starts=2)
    >>> path.lam[path.best].item(), path.test_error.shape
    (0.003, (3,))
    """
    values, problems = _problems(data, lams)
    form = None if form is None else check.choice("form", form, FORMS)
    if not isinstance(parameter, str):
        raise check.fail("parameter", parameter, "the name of a hyperparameter", TypeError)
    tol = check.real("tol", tol, low=0, strict=True)
    max_iter = check.integer("max_iter", max_iter, low=1)
    if progress is not None:
        check.flag("progress", progress)
    if check.flag("predict", predict) and any(problem.model is None for problem in problems):
        raise check.fail("predict", predict, "data sampled from a model")
    in_memory = all(isinstance(problem.tokens, np.ndarray) for problem in problems)
    folds, groups = _require_folds(folds, groups, problems, in_memory)
    order = np.argsort(values, kind="stable") if not isinstance(data, Mapping) else np.arange(len(values))
    along = PathPlan(values, problems, order.tolist(), init, n_starts, tol, max_iter, seed)
    file, known = None, dict[str, Any]()
    if checkpoint is not None:
        others = [digest_run(problem) for problem in problems[1:]] if isinstance(data, Mapping) else []
        file, known = _open_path_file(checkpoint, along, folds, groups, others)
    ends: dict[int, GampResult] = {}

    def save_progress(is_new: bool = True) -> None:
        if file is not None:
            file.save(lambda: known)
        if is_new:
            bar.update()

    with Progress("path", total=len(values) + 1, shown=progress) as bar:
        for k, _, result in along.runs(known.setdefault("all", {})):
            save_progress(k not in ends)
            ends[k] = result
        results = tuple(ends[k] for k in range(len(values)))
        if not any(result.converged for result in results):
            raise ConvergenceError("regularization_path: no run has converged", results)
        estimates = None
        if groups is None:
            bar.describe("leave-one-out errors")
            estimates = path_errors(problems, results, order, form, not isinstance(data, Mapping), CAUTION)
        bar.update()
    if estimates is None or (folds and in_memory and _needs_folds(estimates, results)):
        used, correction = "folds", np.zeros(len(values))
        remark = REMARKS["folds" if groups is None else "groups"]
        with Progress("folds", total=folds * len(values), shown=progress) as bar:
            errors, trusted, changes = fold_errors(along, folds, known, save_progress, groups)
    else:
        used, correction, changes = estimates.form, estimates.correction, estimates.changes
        errors, trusted = estimates.errors, estimates.trusted
        remark = REMARKS["dependent"] if estimates.dependent else ""
    trusted = trusted & (problems[0].n_samples >= LeaveOneOutMethod().few_samples)
    pairs = list(zip(problems, results, strict=True))
    in_training = np.array([sample_errors(each, each.fields(result.Q)).mean() for each, result in pairs])
    covariance = np.array([[sum_products(first, second) for second in changes] for first in changes])
    covariance[np.diag_indices(len(values))] = np.maximum(np.diagonal(covariance), 0.0)
    spread = np.sqrt(variance_of_mean(errors, groups) + np.diagonal(covariance) + correction)
    best, best_1se, message = _select(parameter, values, results, errors.mean(axis=1), spread, trusted, remark)
    predicted = np.array([_predict(*pair) if predict else np.nan for pair in pairs])
    path = RegularizationPath(
        parameter=parameter, lam=values, test_error=errors.mean(axis=1), test_error_error=spread, covariance=covariance,
        in_training=in_training, errors=errors, form=used, best=best, best_1se=best_1se,
        trusted=np.asarray(trusted, bool), predicted=predicted, results=results, groups=groups, message=message,
    )  # fmt: skip
    likely = values[path.plausible & [result.converged for result in results]]
    if len(likely) < 2:
        return path
    scatter = f"values from {likely.min():.4g} to {likely.max():.4g} may be the best"
    return replace(path, message=f"{message} Within {PLAUSIBLE:g} standard errors, {scatter}.")


def _require_folds(folds: Any, groups: Any, problems: list[Dataset], in_memory: bool) -> tuple[int, np.ndarray | None]:
    """Return the number of folds, and the numbers (n,) of the groups if groups are given; raise if they do not fit."""
    n = {problem.n_samples for problem in problems}
    if len(n) > 1:
        raise check.fail("data", sorted(n), "the same number of samples at each value")
    if folds is not None and check.integer("folds", folds, low=0, high=min(n)) == 1:
        raise check.fail("folds", folds, "0 or at least 2")
    if groups is None:
        return (min(FOLDS, min(n)) if min(n) > 1 else 0) if folds is None else folds, None
    if folds == 0:
        raise check.fail("folds", folds, "at least 2 if `groups` are given")
    groups = require_groups(groups, min(n), folds or 2)
    if not in_memory:
        raise check.fail_words("data", "tokens on the disk", "tokens in memory if `groups` are given")
    return folds or min(GROUP_FOLDS, groups.max() + 1), groups


def _open_path_file(
    checkpoint: Any, along: PathPlan, folds: int, groups: np.ndarray | None, others: list[str]
) -> tuple[CheckpointFile, dict[str, Any]]:
    """Return the file of a path, and the weights that it contains; raise ValueError if it is of another path.

    `others` are the digests of the datasets at the other values, if the path does not lead along λ.
    """
    if isinstance(along.seed, np.random.Generator):  # a resumed path would draw other folds than the stored weights
        raise check.fail_words("seed", "a Generator", "an integer if a checkpoint is given")
    seed = check.integer("seed", along.seed, low=0, high=None)
    options = [along.tol, along.max_iter, along.n_starts, folds, seed, *others, *([] if groups is None else [groups])]
    start = _weights_of(along.init)
    options.append(along.init if start is None else "weights")
    file = CheckpointFile(Checkpoint(checkpoint, 0.0), digest_run(along.problems[0], along.values, *options))
    known = file.load() or {}
    if start is not None and not _are_equal(known.setdefault("init", start), start):
        raise file.refuse()
    return file, known


def _needs_folds(estimates: PathErrors, results: tuple[GampResult, ...]) -> bool:
    """Return whether the smallest leave-one-out error is not trusted, so that cross-validation replaces all of them.

    If samples depend on their neighbors it does not, because random folds do not separate a sample from its neighbors.
    """
    mean = estimates.errors.mean(axis=1)
    smallest = min((k for k, result in enumerate(results) if result.converged), key=lambda k: mean[k])
    return not (estimates.dependent or estimates.trusted[smallest])


def _weights_of(init: Any) -> np.ndarray | None:
    """Return the weights (d, r) of a start, or None for a name or no start."""
    if init is None or isinstance(init, str):
        return None
    return check.array("init", getattr(init, "Q", init), ("d", "r"))


def _are_equal(stored: np.ndarray, start: np.ndarray, tol: float = 0.01) -> bool:
    """Return whether the start of a path is the stored start, up to the accuracy of a run that is resumed, `tol`."""
    if stored.shape != start.shape:
        return False
    return bool(np.linalg.norm(stored - start) <= tol * np.linalg.norm(start))


def _problems(data: Any, lams: Any) -> tuple[np.ndarray, list[Dataset]]:
    """Return the values of the hyperparameter and the datasets."""
    if isinstance(data, Mapping):
        if lams is not None:
            raise check.fail("lams", lams, "None, because `data` is a dictionary of datasets")
        if not data:
            raise check.fail("data", data, "at least one dataset")
        values = np.array([check.real("data", value) for value in data])
        return values, [require_dataset(problem) for problem in data.values()]
    require_dataset(data)
    if lams is None:
        raise check.fail("lams", lams, "values of λ", TypeError)
    values = check.array("lams", lams, ("k",))
    if (values < 0).any() or len(np.unique(values)) < len(values):
        raise check.fail("lams", values.tolist(), "distinct values of λ that are not negative")
    return values, [data.replace(lam=lam) for lam in values.tolist()]


def _select(
    parameter: str, values: np.ndarray, results: tuple[GampResult, ...], mean: np.ndarray, spread: np.ndarray,
    trusted: np.ndarray, remark: str,
) -> tuple[int, int, str]:  # fmt: skip
    """Return the best value, the largest value within one standard error of it, and a message.

    The best of the `values` (k,) has the smallest `mean` error (k,), after errors that are not trusted are increased by
    the factor CAUTION. `spread` (k,) are the standard errors, and `remark` is one of `REMARKS` or empty.
    """
    converged = [k for k in range(len(values)) if results[k].converged]
    cautious = {k: mean[k] * (1.0 if trusted[k] else CAUTION) for k in converged}
    best = min(converged, key=lambda k: cautious[k])
    near = [k for k in converged if cautious[k] <= mean[best] + spread[best]]
    best_1se = max([*near, best], key=lambda k: values[k])
    lower = sum(mean[k] < mean[best] for k in converged)
    message = f"The smallest test error is at {parameter} = {values[best]:.4g}"
    if remark:
        message += f", {remark}"
    elif not trusted[best]:
        message += ", but this estimate is not reliable: compare it with the error of held-out samples"
    elif lower:
        message += f"; {lower} other values have lower errors by estimates that are not reliable"
    if parameter == "lam" and len(values) > 1 and values[best] in (values.min(), values.max()):
        edge, beyond = ("smallest", "smaller") if values[best] == values.min() else ("largest", "larger")
        message += f"; it is the {edge} value tried, and {beyond} values may be better"
    return best, best_1se, f"{message}."


def _predict(data: Dataset, result: GampResult) -> float:
    """Return ε_g of state evolution, started from the overlaps of the training; NaN without convergence."""
    if not result.converged:
        return float("nan")
    solution = solve_state_evolution(data.instance_model(), data.alpha, result.overlaps, rtol=1e-2, stability=False)
    return solution.test_error if solution.converged else float("nan")
