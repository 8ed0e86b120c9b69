"""Paths of a hyperparameter: training at each value from where the one before has led, and the error left out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.progress import Progress
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.experiments.inference.along import Along
from gamp_attention.experiments.inference.folds import fold_errors
from gamp_attention.experiments.inference.leave_one_out import FORMS, is_convex
from gamp_attention.experiments.inference.neighbours import at_lam
from gamp_attention.experiments.inference.path_errors import path_errors
from gamp_attention.experiments.inference.path_result import RegularizationPath
from gamp_attention.gamp.checkpoint import Checkpoint, digest
from gamp_attention.gamp.result import GampResult
from gamp_attention.results import ConvergenceError
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution


@dataclass(frozen=True)
class PathSettings:
    """How values are compared."""

    caution: float = 1.25  # factor of estimates that are not trusted: rough landscapes made them up to 28 % too low
    beside: int = 2  # values on each side of one that its roughness is judged with


PATHS = PathSettings()


@quiet
def regularization_path(
    data: Any,
    lams: Any = None,
    init: Any = "spectral",
    *,
    n_starts: int = 8,
    parameter: str = "lam",
    form: str | None = None,
    tol: float = 1e-3,
    max_iter: int = 10000,
    folds: int = 5,
    seed: Any = 0,
    predict: bool = False,
    checkpoint: Any = None,
    progress: bool | None = None,
) -> RegularizationPath:
    """Train along a path of λ, or of any hyperparameter, and estimate the test error at each value by leave-one-out.

    From the smallest λ on, each run begins at the fixed point of the one before. For more than six values the errors of
    some are interpolated, eq. :eq:`interpolated-errors`, but never the error of the chosen one.

    Parameters
    ----------
    data : the samples; or a dictionary with a Dataset for each value of a hyperparameter, such as a temperature.
    lams : (k,) values of λ; the penalty's other numbers stay as they are. Not with a dictionary.
    init : where the first run begins, as for `run_gamp`; also others that have no weights before them, or only zeros.
    n_starts : its starts.
    parameter : the name of the hyperparameter of a dictionary, for tables.
    form : "hessian" or "cavity", as for `leave_one_out`, which chooses if it is not given.
    tol : bound on the gradient norms, above 0. By default the estimates are those of minima to a thousandth or so.
    max_iter : bound on the iterations of each run, which then ends without having converged.
    folds : number of parts in which the samples are left out, each with a path of its own, if the least estimate is
        not trusted; 0 for none: estimates that are not trusted then count a quarter more.
    seed : for the random part of starts, and for folds.
    predict : whether state evolution of the instance predicts ε_g too, on each run's branch; sampled data alone.
    checkpoint : path of a file that weights are written to after each value, and taken from where it exists.
    progress : whether a bar is drawn; if not given, on a terminal.

    Returns
    -------
    RegularizationPath

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ConvergenceError : where no run has converged.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> path = ga.regularization_path(data, lams=[0.003, 0.03, 0.3], n_starts=2)
    >>> path.lam[path.best].item(), path.test_error.shape
    (0.003, (3,))
    """
    values, problems = _problems(data, lams)
    first = problems[0]
    if form is not None:
        check.choice("form", form, FORMS)
    tol = check.real("tol", tol, low=0, strict=True)
    max_iter = check.integer("max_iter", max_iter, low=1)
    if progress is not None:
        check.flag("progress", progress)
    if check.flag("predict", predict) and any(each.model is None for each in problems):
        raise check.fail("predict", predict, "data sampled from a model")
    n = {each.n_samples for each in problems}
    if len(n) > 1:
        raise check.fail("data", sorted(n), "the same number of samples at each value")
    if check.integer("folds", folds, low=0, high=min(n)) == 1:
        raise check.fail("folds", folds, "0 or at least 2")
    order = np.argsort(values, kind="stable") if isinstance(data, Dataset) else np.arange(len(values))
    along = Along(values, problems, order.tolist(), init, n_starts, tol, max_iter, seed)
    file, known = None, dict[str, Any]()
    if checkpoint is not None:
        file = Checkpoint(checkpoint, digest(first, values, tol, n_starts, folds), 0.0)
        known = file.load() or {}
    ends: dict[int, GampResult] = {}

    def finished() -> None:
        if file is not None:
            file.save(lambda: known)
        bar.update()

    with Progress("path", total=len(values) + 1, shown=progress) as bar:
        for k, _, result in along.runs(known.setdefault("all", {})):
            ends[k] = result
            finished()
        results = tuple(ends[k] for k in range(len(values)))
        if not any(each.converged for each in results):
            raise ConvergenceError("regularization_path: no run has converged", results)
        bar.describe("leave-one-out errors")

        def verdicts(agreed: np.ndarray) -> np.ndarray:
            return _trusted(agreed, order, data)

        left = path_errors(problems, results, order, form, isinstance(data, Dataset), verdicts, PATHS.caution)
        errors, trusted, form = left.errors, verdicts(left.agreed) & left.settled, left.form
        bar.update()
    here = all(isinstance(each.tokens, np.ndarray) for each in problems)
    if folds and here and _undecided(errors, trusted, results):
        form = "folds"
        with Progress("folds", total=folds * len(values), shown=progress) as bar:
            errors, trusted = fold_errors(along, folds, known, finished)
    return _judged(parameter, along, results, left.in_training, errors, trusted, form, predict)


def _problems(data: Any, lams: Any) -> tuple[np.ndarray, list[Dataset]]:
    """Values and datasets."""
    if isinstance(data, Mapping):
        if lams is not None:
            raise check.fail("lams", lams, "None beside a dictionary of datasets")
        if not data:
            raise check.fail("data", data, "one dataset at least")
        values = np.array([check.real("data", value) for value in data])
        return values, [require_dataset(each) for each in data.values()]
    require_dataset(data)
    if lams is None:
        raise check.fail("lams", lams, "values of λ", TypeError)
    values = check.array("lams", lams, ("k",))
    if (values < 0).any() or len(np.unique(values)) < len(values):
        raise check.fail("lams", values.tolist(), "values of λ that differ, none below 0")
    return values, [at_lam(data, lam) for lam in values.tolist()]


def _trusted(own: np.ndarray, order: np.ndarray, data: Any) -> np.ndarray:
    """Return whether each estimate is trusted (k,), from the verdicts (k,) of single estimates.

    Whether a risk has many minima is decided along λ by the majority of a value and its neighbours.
    """
    if not isinstance(data, Dataset) or is_convex(data):
        return own
    found, beside = own.copy(), PATHS.beside
    for place in range(len(order)):
        found[order[place]] = own[order[max(place - beside, 0) : place + beside + 1]].mean() > 0.5
    return found


def _undecided(errors: np.ndarray, trusted: np.ndarray, results: tuple[GampResult, ...]) -> bool:
    """Whether the least estimate is not to be trusted."""
    ended = [k for k, each in enumerate(results) if each.converged]
    return not trusted[min(ended, key=lambda k: errors[k].mean())]


def _judged(
    parameter: str, along: Along, results: tuple[GampResult, ...], in_training: np.ndarray, errors: np.ndarray,
    trusted: np.ndarray, form: str, predict: bool,
) -> RegularizationPath:  # fmt: skip
    """The best value: the least error, where those that are not trusted count more."""
    values = along.values
    mean, spread = errors.mean(axis=1), errors.std(axis=1, ddof=1) / np.sqrt(errors.shape[1])
    ended = [k for k in range(len(values)) if results[k].converged]
    counted = {k: mean[k] * (1.0 if trusted[k] else PATHS.caution) for k in ended}
    best = min(ended, key=lambda k: counted[k])
    near = [k for k in ended if counted[k] <= mean[best] + spread[best]]
    best_1se = max([*near, best], key=lambda k: values[k])
    lower = sum(mean[k] < mean[best] for k in ended)
    message = f"the least test error at {parameter} = {values[best]:.4g}"
    if form == "folds":
        message += ", by samples left out in parts, as the leave-one-out error is not to be trusted there"
    elif not trusted[best]:
        message += ", where it is not to be trusted: compare with samples held out"
    elif lower:
        message += f"; {lower} others are lower by estimates that are not to be trusted"
    if parameter == "lam" and len(values) > 1:
        if values[best] == values.min():
            message += "; it is the smallest value that was tried: extend the range"
        elif values[best] == values.max():
            message += "; it is the largest value that was tried: extend the range"
    ran = zip(along.problems, results, strict=True)
    predicted = np.array([_predicted(*each) if predict else np.nan for each in ran])
    return RegularizationPath(
        parameter=parameter, lam=values, test_error=mean, test_error_error=spread,
        in_training=in_training, errors=errors, form=form, best=best,
        best_1se=best_1se, trusted=np.asarray(trusted, bool), predicted=predicted, results=results,
        message=message,
    )  # fmt: skip


def _predicted(data: Dataset, result: GampResult) -> float:
    """ε_g of state evolution from the overlaps that training has led to."""
    if not result.converged:
        return float("nan")
    found = solve_state_evolution(data.instance_model(), data.alpha, result.overlaps, rtol=1e-2, stability=False)
    return found.test_error if found.converged else float("nan")
