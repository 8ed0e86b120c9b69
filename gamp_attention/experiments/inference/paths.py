"""Paths of a hyperparameter: training at each value from where the one before has led, and the error left out of it.

Training along values of a hyperparameter, each run from where the one before has led.

Errors of samples left out in parts, each with a path of its own: where leave-one-out is not to be trusted.

Leave-one-out errors of all values of a path, from complete estimates at some of them.

The cavity fields cost a pass over the tokens and are computed at every value. The difference between a complete
estimate (`leave_one_out`) and their errors changes slowly along λ: it is computed at some values and interpolated
between them. Each further complete estimate tests the interpolation, as in adaptive quadrature.

The result of `regularization_path`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.display import Rows, format_to_error
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention._core.progress import Progress
from gamp_attention._core.runs import Checkpoint, CheckpointFile
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.experiments.inference.leave_one_out import (
    BELIEF,
    FORMS,
    cavity_fields,
    is_convex,
    leave_one_out,
    refits_by_default,
    responses,
    sample_errors,
    trained,
)
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import IterationOptions, digest, run_gamp
from gamp_attention.gamp.step import near_fixed_point
from gamp_attention.results import ConvergenceError, Result
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution


@dataclass(frozen=True, eq=False)
class Along:
    """What is trained along a path: a problem (n samples) for each value, in an order, and how.

    The first run begins at `init` with `n_starts`; so do those that have no weights before them, or only zeros.
    """

    values: np.ndarray
    problems: list[Dataset]
    order: list[int]
    init: Any
    n_starts: int
    tol: float
    max_iter: int
    seed: Any

    def runs(self, known: dict[str, Any], rows: np.ndarray | None = None) -> Iterator[tuple[int, Dataset, GampResult]]:
        """Index, data and result of each value in turn, on some of the rows; `known` has weights of earlier calls."""
        ends: dict[int, GampResult] = {}
        before: GampResult | None = None
        for k in self.order:
            data = self.problems[k] if rows is None else self.problems[k].select_rows(rows)
            before = ends[k] = self._trained(data, known.get(str(k)), before, self._extrapolated(k, ends))
            known[str(k)] = {"Q": before.Q, "V": before.overlaps.V}
            yield k, data, before

    def _trained(self, data: Dataset, known: Any, before: GampResult | None, ahead: Any) -> GampResult:
        """The run at one value: confirmed where its weights are known, from those before where there are any."""
        shape, options = (data.dim, data.rank), dict[str, Any](tol=self.tol, max_iter=self.max_iter)
        if known is not None and known["Q"].shape == shape:
            state = near_fixed_point(data, "exact", known["Q"], known["V"])
            return run_gamp(data, state, iteration=IterationOptions(hold_after=0), **options)
        usable = (
            before is not None and before.converged and before.Q.shape == shape and np.isfinite(before.overlaps.V).all()
        )
        if not usable or before is None or not np.abs(before.Q).max() > 0:
            return run_gamp(data, self.init, n_starts=self.n_starts, seed=self.seed, **options)
        Q = before.Q if ahead is None or ahead.shape != shape else ahead
        return run_gamp(data, replace(before, Q=Q), iteration=IterationOptions(hold_after=0), **options)

    def _extrapolated(self, k: int, ends: dict[int, GampResult]) -> np.ndarray | None:
        """Weights on the line through those of the last two positive values, in their logarithm."""
        done = self.order[: len(ends)][-2:]
        points = self.values[[*done, k]]
        if len(done) < 2 or not (points > 0).all() or points[0] == points[1]:
            return None
        first, second = (ends[each] for each in done)
        share = np.log(points[2] / points[1]) / np.log(points[1] / points[0])
        alike = first.Q.shape == second.Q.shape and first.converged and second.converged
        return second.Q + np.clip(share, 0, 2) * (second.Q - first.Q) if alike else None


def fold_errors(
    along: Along, folds: int, known: dict[str, Any], finished: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    """Errors (k, n) of samples by weights trained without their fold, and whether all runs of a value converged (k,).

    `known` has the weights of earlier calls by fold, and takes those of this one; `finished` is called after each run.
    """
    n = along.problems[0].n_samples
    order = generator(along.seed, Stream.FOLDS).permutation(n)
    errors, converged = np.full((len(along.values), n), np.nan), np.ones(len(along.values), bool)
    for fold, out in enumerate(map(np.sort, np.array_split(order, folds))):
        rows = np.setdiff1d(np.arange(n), out)
        for k, _, result in along.runs(known.setdefault(f"fold {fold}", {}), rows):
            aside = along.problems[k].select_rows(out)
            errors[k, out] = sample_errors(aside, aside.fields(result.Q))
            converged[k] &= result.converged
            finished()
    return errors, converged


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
            more = "-" if k == self.best else format_to_error(above, paired)
            rows.append(
                [mark, f"{lam:.4g}", format_to_error(error, spread), more, f"{self.in_training[k]:.4g}", known, doubt]
            )
        return [*rows, self.message]


@dataclass(frozen=True)
class PathSettings:
    """How values are compared."""

    caution: float = 1.25  # factor of estimates that are not trusted: rough landscapes made them up to 28 % too low
    beside: int = 2  # values on each side of one that its roughness is judged with


PATHS = PathSettings()


@ignore_float_errors
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
        file = CheckpointFile(Checkpoint(checkpoint, 0.0), digest(first, values, tol, n_starts, folds))
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
    return values, [data.replace(lam=lam) for lam in values.tolist()]


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
