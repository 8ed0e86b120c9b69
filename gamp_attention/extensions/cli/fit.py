"""The command `gamp-attention fit`: train an attention layer on the user's arrays, and report test errors.

The errors are leave-one-out, errors of samples held out, and errors of reference predictions; λ may be chosen along a
path (`PathSearch`). `fit_data.py` reads the arrays.
"""

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check, progress
from gamp_attention._tools.checkpoints import Checkpoint
from gamp_attention._tools.choices import FURTHER_STARTS, STARTS
from gamp_attention._tools.display import count_noun, format_text, format_to_error
from gamp_attention._tools.files import PICTURE, path_of_unfinished, write_archive
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.cli.fit_data import FitProblem, describe_data, describe_spread, load_problem
from gamp_attention.extensions.cli.options import FIT_STARTS, VALUES, name_options
from gamp_attention.extensions.cli.output import (
    FIT,
    checkpoint_of_path,
    indent,
    picture_of_path,
    say,
    select,
    target_of,
    write_report,
)
from gamp_attention.extensions.comparison.figures import plot_fit, plot_path
from gamp_attention.extensions.inference.leave_one_out import interval_with_selection, leave_one_out
from gamp_attention.extensions.inference.paths import RegularizationPath, regularization_path
from gamp_attention.extensions.inference.reference import ReferenceErrors, reference_errors
from gamp_attention.extensions.train.loading import load_weights
from gamp_attention.extensions.train.records import AGREEMENT
from gamp_attention.extensions.train.survey import SurveyEnd
from gamp_attention.extensions.train.train import TrainResult, train
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.layer import Layer
from gamp_attention.problem.penalties.standard import with_lam
from gamp_attention.problem.stores import Tokens
from gamp_attention.problem.tolerances import scale_tolerance
from gamp_attention.results import Status

ROWS = {"linear": "linear layer y = Wx", "mean": "mean output", "zero": "y = 0", "ridge": "ridge on all tokens"}


@dataclass(frozen=True)
class PathSearch:
    """Choice of λ along a path that is extended until its best value lies inside, and its settings."""

    span: float = 30.0  # range of --path without values: from λ/30 to 30 λ
    widest: float = 1e4  # maximum ratio of a value and --lam if the path is extended
    added: int = 8  # number of values by which a path is extended at a time, with the spacing of the other values
    flat: float = 0.01  # relative decrease of the error by an extension below which there is no further one
    zero: float = 1e-3  # norm ‖Q‖/√d of the weights below which they count as zero

    def run(self, problem: FitProblem, init: Any, options: argparse.Namespace) -> RegularizationPath:
        """Return the path that --path requests, which is extended unless values are given."""
        lams = given_values(options) or [options.lam]
        is_extended = not given_values(options) and options.lam > 0
        if is_extended:
            lams = np.geomspace(options.lam / self.span, options.lam * self.span, VALUES).tolist()
        spacing, extensions, why_ended = self.span ** (2 / (VALUES - 1)), 0, ""
        say(options, "Choice of λ")
        path = _path(problem, lams, init, options, 0)
        while is_extended and not why_ended and (edge := self._direction(path)):
            end, error = path.lam.max() if edge > 0 else path.lam.min(), path.test_error[path.best]
            more = [end * spacing ** (edge * k) for k in range(1, self.added + 1)]
            more = [lam for lam in more if options.lam / self.widest <= lam <= options.lam * self.widest]
            if not more:
                why_ended = f"The path is not extended beyond a factor of {self.widest:g} from --lam."
                break
            extensions += 1
            extreme, beyond = ("largest", "larger") if edge > 0 else ("smallest", "smaller")
            why = "The weights are zero at every λ" if self._all_zero(path) else ""
            why = why or f"The best λ is the {extreme} of {len(path.lam)} values"
            say(options, indent(f"{why}: {len(more)} {beyond} values are tried."))
            smallest = path.results[int(np.argmin(path.lam))]
            start = smallest if smallest.converged else init
            path = _path(problem, sorted([*path.lam.tolist(), *more]), start, options, extensions)
            if path.test_error[path.best] > (1 - self.flat) * error and not self._all_zero(path):
                decrease = f"the last {self.added} values lowered the error by less than {self.flat:.0%}"
                why_ended = f"The path is not extended: {decrease}."
        self._describe(path, why_ended, options)
        return path

    def _describe(self, path: RegularizationPath, why_ended: str, options: argparse.Namespace) -> None:
        """Print the table of a path, and remedies if its best value is at its edge."""
        explanation = (
            f"The layer was trained with {len(path.lam)} values of λ. The test errors ε_g are estimated from the "
            'training data, with standard errors in parentheses; "1 s.e." marks the largest λ within one standard '
            "error of the best:"
        )
        lines = [explanation, str(path).partition("\n")[2]]  # without the first line, which names the class
        if edge := self._direction(path):
            zero = "The weights are zero at every λ. " if self._all_zero(path) else ""
            sizes = "larger" if edge > 0 else "smaller"
            lines.append(f"{zero}{why_ended or f'Give {sizes} values as well, or use --path without values.'}")
        if options.plot:
            target = picture_of_path(options.plot)
            plot_path(path, target, options.force)
            lines.append(f"{target} shows the test error as a function of λ.")
        lines.append(f"The following sections describe the layer with the best λ, {path.lam[path.best]:.4g}.")
        say(options, indent(*lines))

    def _direction(self, path: RegularizationPath) -> int:
        """Return -1 or 1 if smaller or larger values may be better than all values of a path, else 0.

        This holds if the best value is the smallest or the largest, or if all weights are zero because λ is too large.
        """
        if len(path.lam) < 2:
            return 0
        if self._all_zero(path):
            return -1
        best, is_zero = path.lam[path.best], self._is_zero(path.results[path.best])
        larger = best == path.lam.max() and not is_zero  # zero weights stay zero at larger λ
        return int(larger) - int(best == path.lam.min())

    def _all_zero(self, path: RegularizationPath) -> bool:
        return all(map(self._is_zero, path.results))

    def _is_zero(self, result: GampResult) -> bool:
        return bool(np.linalg.norm(result.Q) < self.zero * np.sqrt(len(result.Q)))


def given_values(options: argparse.Namespace) -> list[float]:
    """Return the values of --path, an empty list if there are none."""
    return [lam for values in options.path or [] for lam in values]


def _path(
    problem: FitProblem, lams: list[float], init: Any, options: argparse.Namespace, extension: int
) -> RegularizationPath:
    """Train along values of λ; each extension has a separate checkpoint and a single start."""
    file = options.checkpoint and checkpoint_of_path(options.checkpoint, extension)
    n_starts = 1 if extension else options.n_starts
    groups, seed = problem.groups, options.seed
    return regularization_path(problem.data, lams, init, n_starts=n_starts, groups=groups, seed=seed, checkpoint=file)


class TestErrors(NamedTuple):
    """Test errors of a layer and of the reference predictions, in the units of the file."""

    verdict: str  # sentence that compares the layer with the reference predictions
    better: bool  # True if the layer is better than all references, by at least two standard errors
    text: str  # table and remarks
    numbers: dict[str, Any]  # entries of --json
    left_out: np.ndarray  # (n,) leave-one-out error of each training sample


class _Column(NamedTuple):
    """Errors of a layer by leave-one-out or on held-out samples, and of the reference predictions."""

    how: str
    errors: np.ndarray  # (n,)
    mean: float
    error: float  # standard error of the mean
    covariance: float  # see `LeaveOneOut`
    selection: float  # see `LeaveOneOut`
    references: ReferenceErrors

    def interval(self) -> str:
        """Return a 95 % interval of the error of the layer on new data."""
        low, high = interval_with_selection(self.errors, self.error, self.selection)
        return f"{low:.3g} to {high:.3g} ({self.how})" if np.isfinite([low, high]).all() else f"unknown ({self.how})"

    def numbers(self) -> dict[str, Any]:
        """Return means and standard errors of the layer and of the references, for --json."""
        names = ("", *(f"{name}_" for name in self.references.names))
        errors = [self.error, *self.references.test_error_error.tolist()]
        means = zip(names, [self.mean, *self.references.test_error.tolist()], strict=True)
        numbers = {f"{name}test_error": mean for name, mean in means}
        return numbers | {f"{name}test_error_error": _finite(e) for name, e in zip(names, errors, strict=True)}


def test_errors(
    data: Dataset, result: TrainResult, layer: Layer, train: tuple[Tokens, Tokens], test: tuple[Tokens, Tokens] | None
) -> TestErrors:
    """Return test errors of a layer by leave-one-out and on held-out samples, and errors of reference predictions.

    `data` and `result` have the units of the training; the layer, and the tokens and outputs `train` and `test`, have
    the units of the file.
    """
    progress.describe("estimating the test error by leave-one-out")
    loo = leave_one_out(data, result)
    left_out = layer.errors(*train, layer.student(loo.fields))
    references = reference_errors(data, units=layer.units)
    columns = [_Column("leave-one-out", left_out, *loo.average_in_units(left_out), references)]
    trust = {"trusted": loo.trusted, "doubtful": int(np.count_nonzero(loo.doubtful)), "form": loo.form}
    numbers: dict[str, Any] = {"leave_one_out": columns[0].numbers() | trust | {"message": loo.message}}
    if test is not None:
        errors, (train_error, error) = layer.errors(*test), mean_and_error(layer.errors(*train))
        held_out, of_held_out = f"{len(errors)} held out", reference_errors(data, *test, units=layer.units)
        columns.append(_Column(held_out, errors, *mean_and_error(errors), 0.0, 0.0, of_held_out))
        numbers["held_out"] = {"samples": len(errors), **columns[1].numbers()}
        numbers["held_out"] |= {"train_error": train_error, "train_error_error": _finite(error)}
    better, verdict = _compare_references(columns, loo.trusted)
    table: list[Any] = [["", *(column.how for column in columns)]]
    table.append(["this layer", *(format_to_error(column.mean, column.error) for column in columns)])
    for k, name in enumerate(references.names):
        pairs = [(column.references.test_error[k], column.references.test_error_error[k]) for column in columns]
        table.append([ROWS[name], *(format_to_error(*pair) for pair in pairs)])
    skipped = f"{references.skipped.capitalize()}.\n" if references.skipped else ""
    intervals = ", ".join(column.interval() for column in columns)
    text = (
        "The table lists mean squared errors per coordinate, ‖y − f(x)‖²/(dL), with standard errors in units of the "
        f"last digit:\n{format_text(table)}\n{skipped}95 % intervals for the error of this layer on new samples: "
        f"{intervals}.\nLeave-one-out is the error of each training sample under weights trained without this sample: "
        f"an approximation that is corrected by refits. For this layer: {loo.message}."
    )
    return TestErrors(verdict, better, text, numbers | {"verdict": verdict, "better_than_references": better}, left_out)


def _compare_references(columns: list[_Column], trusted: bool) -> tuple[bool, str]:
    """Return whether the layer is better than the references, and a sentence.

    Errors of held-out samples are used if leave-one-out is not trusted, or if they are worse than a reference.
    """
    finite = [column for column in columns if np.isfinite(column.errors).all()]
    verdicts = [(column.how, column.references.verdict(column.errors, column.covariance)) for column in finite]
    if not verdicts:
        return False, "The test error of the layer could not be estimated."
    use_last = not trusted or verdicts[-1][1].worse_than
    how, verdict = verdicts[-1] if use_last else verdicts[0]
    doubt = "" if trusted or how != "leave-one-out" else ", which is not reliable here: compare with --held-out 0.2"
    return verdict.better, f"{verdict.message.removesuffix('.')} ({how}{doubt})."


def _finite(value: float) -> float | None:
    """Return a number, or None if it is not finite, which JSON cannot represent."""
    return value if np.isfinite(value) else None


def run_fit(options: argparse.Namespace) -> int:
    """Run the command `fit` and return its exit status."""
    if options.survey is True and options.path is not None:
        raise check.fail("--survey", "--path", "a single λ, such as --lam")
    if options.groups is not None and options.path is None and not options.held_out:
        raise check.fail("--groups", options.groups, "--path or --held-out, which leave out whole groups")
    init, problem = _load_init(options.init), load_problem(options)
    _check_numbers(problem, init, options)
    say(options, describe_data(problem, options))
    path = None
    if options.path is not None:
        try:
            path = PathSearch().run(problem, init, options)
        except KeyboardInterrupt:
            raise _resumable(options.checkpoint and checkpoint_of_path(options.checkpoint)) from None
        problem, init = problem.along(path)
        options.n_starts, options.lam = 1, float(path.lam[path.best])
    result = _run(problem, init, options)
    layer = problem.layer(result.Q)
    tokens, outputs, positions, _ = problem.arrays
    arrays: dict[str, Any] = problem.layer_arrays(layer, options) | {
        **{name: value for name, value in result.overlaps.arrays().items() if value.size},
        "train_loss": result.train_loss, "gradient_norm": result.gradient_norm, "status": result.status.value,
        "n_iter": result.n_iter, "is_minimum": result.is_minimum, "lowest_eigenvalue": result.lowest_eigenvalue,
    }  # fmt: skip
    weights = path_of_unfinished(options.out, "")  # written before errors are computed, where there is no file
    write_archive("--out", weights, FIT, arrays, finished=False)
    without = f"{weights}, without attention matrices and errors"
    train, test = (tokens, outputs), None
    if len(problem.test):
        x, y = np.asarray(tokens), np.asarray(outputs)
        train, test = (x[problem.train], y[problem.train]), (x[problem.test], y[problem.test])
    try:
        attention, errors = layer.attention(tokens), layer.errors(tokens, outputs)
        estimated = test_errors(problem.data, result, layer, train, test)
    except (KeyboardInterrupt, MemoryError) as error:
        event = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else "out of memory")
        remedy = f"--init {shlex.quote(weights)} --n-starts 1 with another --out computes these"
        raise type(error)(f"{event}, the weights are trained and in {without}: {remedy}") from None
    in_training = format_to_error(*mean_and_error(errors[problem.train]))
    verdict = f"{'' if estimated.better else 'WARNING: '}{estimated.verdict}"
    quality = [verdict, f"The mean error of the training samples is {in_training}.", estimated.text]
    training = _describe_training(result, scale_tolerance(problem.data, options.tol))
    say(options, "\n".join(["Training", indent(*training), "Test error", indent(*quality)]))
    arrays |= {"attention": attention, "errors": errors, "errors_left_out": estimated.left_out}
    out = target_of(options, options.out, FIT, result.converged)
    try:
        write_archive("--out", out, FIT, arrays, options.force, result.converged)
    except OSError as error:
        raise OSError(f"{error}; the weights are in {without}") from None
    if weights != out:
        Path(weights).unlink(missing_ok=True)
    numbers = result.to_dict()
    numbers |= numbers["overlaps"] | {"result": out, "positions": "in the tokens" if positions is None else "given"}
    numbers |= {"standardized": options.standardize, "lam": problem.data.lam} | estimated.numbers
    if path is not None:
        names = ("lam", "test_error", "test_error_error", "in_training", "trusted", "best", "best_1se", "message")
        numbers["path"] = {name: value for name, value in path.to_dict().items() if name in names}
    write_report(options, numbers, result.converged)
    files = [f"{out} contains the weights Q, and the attention matrix and the error of each sample."]
    if out != options.out:
        files.append(f"{options.out} is unchanged: it holds the result of a run that has converged.")
    if options.plot:
        plot = target_of(options, options.plot, PICTURE, result.converged)
        plot_fit(result, attention, plot, options.force)
        files.append(f"{plot} shows learning curves, attention matrices and all starts.")
    options.out = out
    steps = _next_steps(result, estimated, options)
    if not result.converged and not options.standardize and describe_spread(problem):
        steps.insert(0, "Give all coordinates of the tokens the same scale, of order 1: --standardize.")
    say(options, "\n".join(["Files", indent(*files), "Next steps", indent(*steps)]))
    return 0 if result.converged else 1


def _check_numbers(problem: FitProblem, init: Any, options: argparse.Namespace) -> None:
    """Raise before the work if options do not fit the data or each other."""
    if not isinstance(init, str):
        check.array("--init", init, (problem.data.dim, problem.data.rank))
    check.integer("--n-starts", options.n_starts, low=1)
    check.integer("--max-iter", options.max_iter, low=1)
    check.integer("--seed", options.seed, low=0, high=None)
    check.real("--tol", options.tol, low=0, strict=options.path is not None)
    check.real("--checkpoint-every", options.checkpoint_every, low=0)
    lams = given_values(options)
    if len(set(lams)) < len(lams):
        raise check.fail("--path", lams, "values that all differ")
    for lam in lams:
        try:
            with_lam(problem.data.penalty, lam)
        except ValueError as error:
            raise ValueError(name_options(str(error), {"lam": "--path"})) from error


def _load_init(name: str) -> Any:
    """Return the start that --init names: a start that needs no teacher, or the weights of a file."""
    if name in (*STARTS, *FURTHER_STARTS) and name not in FIT_STARTS:
        remedy = f"use {', '.join(FIT_STARTS)} or an .npz file with weights Q"
        raise ValueError(f"--init: {name!r} needs a known teacher, which the arrays of a file do not have; {remedy}")
    return name if name in FIT_STARTS else load_weights("--init", name)


def _describe_training(result: TrainResult, tol: float) -> list[str]:
    """Return sentences on the outcome of the training, with the tolerance in the unit of the weights."""
    norm = f"Its gradient norm is {result.gradient_norm:.2g}; --tol requires at most {tol:.3g}."
    loss = f"{result.train_loss:.6g}" if result.train_loss > 0 else "zero up to rounding errors"
    lines = [result.message, f"The training loss is {loss}. {norm}"]
    if result.is_minimum:
        eigenvalue = f"the lowest eigenvalue of its Hessian is {result.lowest_eigenvalue:.2g}"
        lines.append(f"The weights are a minimum of the training loss: {eigenvalue}.")
    if [record.name for record in result.surveys] == ["minimum"]:
        ends = [record for record in result.starts if record.status is not None]
        before = min(record.train_loss for record in ends if not record.name.startswith(("minimum", "flip")))
        decrease = f"decreased the training loss by {100 * (1 - result.train_loss / before):.2g} %"
        lines.append(
            "As few starts agreed and the training loss was low, survey propagation continued from the lowest minimum. "
            f"It {decrease if result.train_loss < before else 'found no lower minimum'}."
        )
    elif result.surveys:
        n_collapsed = sum(record.ending is SurveyEnd.COLLAPSED for record in result.surveys)
        lowest = min(record.train_loss for record in result.surveys)
        lines.append(
            f"Before message passing, survey propagation made {count_noun(len(result.surveys), 'survey')}, "
            f"{n_collapsed} of which collapsed to a single minimum. Their lowest training loss was {lowest:.6g}."
        )
    return lines


def _next_steps(result: TrainResult, estimated: TestErrors, options: argparse.Namespace) -> list[str]:
    """Return proposals for the next command, the most important first."""
    steps, out = [], shlex.quote(options.out)
    if not result.converged:
        longer = ", a larger --max-iter" * (result.status is Status.MAX_ITER)
        steps.append(f"Continue from these weights: --init {out} --n-starts 1{longer} and another name for --out.")
    elif not result.is_minimum:
        steps.append("Leave the saddle for a minimum: --escape.")
    if not estimated.numbers["leave_one_out"]["trusted"] and "held_out" not in estimated.numbers:
        steps.append("Measure the test error on other samples, as leave-one-out is not reliable here: --held-out 0.2.")
    if result.converged and not estimated.better:
        steps += [
            f"If the outputs come from a layer with {'more' if options.heads > 1 else 'several'} heads, try --heads "
            f"{options.heads + 1}. For value matrices and for separate weights of keys, use GampAttention in Python or "
            "torch.nn.MultiheadAttention.",
            f"Otherwise try {'other penalties (--path), ' * (options.path is None)}more columns of Q (--rank 2) or "
            "more samples.",
        ]
    elif result.converged and options.path is None:
        steps.append("Choose the penalty λ by its leave-one-out error: --path.")
    if (
        len(result.starts) > 1
        and options.survey is not True
        and sum(r.agreement >= AGREEMENT for r in result.starts) == 1
    ):
        steps.append("Look for a lower training loss, as no other start gave these weights: --survey or --n-starts 32.")
    if not options.plot:
        steps.append("Draw learning curves, attention matrices and starts: --plot fit.png.")
    if estimated.better and options.heads == 1:  # the theory of the command is for one head
        law = f"gamp-attention law {shlex.quote(options.data)} --teacher {out}{' --standardize' * options.standardize}"
        steps.append(f"Predict the error for other numbers of samples, if theory applies: {law} --alphas 1 2 4.")
    steps.append(f"Predict outputs for other tokens: gamp-attention predict {out} TOKENS.npz.")
    steps.append(f"Use the layer in Python: gamp_attention.load_result({options.out!r}).")
    return steps


def _run(problem: FitProblem, init: Any, options: argparse.Namespace) -> TrainResult:
    """Return the result of message passing; if interrupted, write the weights with the lowest training loss."""
    seen: list[Any] = []

    def remember(t: int, state: Any, step: Any) -> None:
        if not seen or step.train_loss <= seen[2].train_loss:
            seen[:] = t, state.Q, step

    wanted = select(options, "tol", "max_iter", "escape", "seed", "n_starts", "survey")
    checkpoint = options.checkpoint and Checkpoint(options.checkpoint, options.checkpoint_every)
    try:
        iteration = IterationOptions(callback=remember)
        return train(problem.data, init, "exact", **wanted, checkpoint=checkpoint, iteration=iteration)
    except KeyboardInterrupt:
        if not seen:  # during a survey
            raise _resumable(options.checkpoint) from None
        t, Q, step = seen
        arrays = problem.layer_arrays(problem.layer(Q), options) | {"status": "interrupted", "n_iter": t}
        arrays |= {"train_loss": step.train_loss, "gradient_norm": step.gradient_norm}
        out = target_of(options, options.out, FIT, False)
        write_archive("--out", out, FIT, arrays, options.force, finished=False)
        kept = "" if out == options.out else f", and {options.out}, the result of an earlier run, is unchanged"
        where = f"the weights of iteration {t} are in {out}{kept}"
        another = " with another --out" * (out == options.out)
        remedy = f"{where}: --init {shlex.quote(out)}{another} continues from them"
        if checkpoint and Path(options.checkpoint).exists():
            remedy = f"{where}; the same command resumes from {options.checkpoint}"
        raise KeyboardInterrupt(f"interrupted, {remedy}") from None


def _resumable(checkpoint: str | None) -> KeyboardInterrupt:
    """Return the error of an interruption before there are weights; it names the checkpoint, if there is one."""
    if not (checkpoint and Path(checkpoint).exists()):
        return KeyboardInterrupt()
    return KeyboardInterrupt(f"interrupted: the same command resumes from {checkpoint}")
