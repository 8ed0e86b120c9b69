"""The command `gamp-attention fit`: train an attention layer on the user's arrays, and report test errors.

The errors are leave-one-out errors, errors of samples held out, and errors of a constant and a linear prediction.
"""

import argparse
import shlex
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check, progress
from gamp_attention._tools.display import count_noun, format_text, format_to_error
from gamp_attention._tools.files import path_of_unfinished, write_archive
from gamp_attention._tools.numerics import Stream, generator
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.cli.options import FIT_STARTS, build_penalty
from gamp_attention.extensions.cli.output import FIT, report, say, select
from gamp_attention.extensions.comparison.figures import plot_fit
from gamp_attention.extensions.inference.leave_one_out import LeaveOneOut, leave_one_out
from gamp_attention.extensions.inference.paths import RegularizationPath, regularization_path
from gamp_attention.extensions.train.survey import SurveyEnd
from gamp_attention.extensions.train.train import TrainResult, train
from gamp_attention.extensions.train.user_arrays import build_dataset, load_arrays, require_same_shape
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.layer import Units, layer_of
from gamp_attention.problem.losses.heads import with_heads
from gamp_attention.problem.risk import scale_tolerance
from gamp_attention.problem.stores import as_tokens
from gamp_attention.results import Status

SPAN, VALUES = 30.0, 20  # --path without values has 20 values from λ/30 to 30 λ
RIDGE = 1e-4  # λ of the linear prediction y = Wx
CLEAR = 2.0  # number of standard errors from which a difference of errors is clear
REFERENCES = ("the linear layer y = Wx", "the mean output")


class FitProblem(NamedTuple):
    """Arrays of a file in their units, the split of the samples, and the dataset for training."""

    tokens: Any
    outputs: Any
    positions: Any  # None if the tokens contain them
    train: np.ndarray  # indices of the training samples
    test: np.ndarray  # indices of the held-out samples
    units: Units
    data: Dataset


def run_fit(options: argparse.Namespace) -> int:
    """Run the command `fit` and return its exit status."""
    if options.survey is True and options.path is not None:
        raise check.fail("--survey", "--path", "a single λ, such as --lam")
    problem, init = load_problem(options), options.init
    data = problem.data
    if init not in FIT_STARTS:
        if not Path(init).exists():
            raise check.fail("--init", init, f"one of {', '.join(FIT_STARTS)}, or an .npz file with weights Q")
        init = check.array("--init", load_arrays(init, ("Q",), argument="--init")["Q"], (data.dim, data.rank))
    check.integer("--n-starts", options.n_starts, low=1)
    check.integer("--max-iter", options.max_iter, low=1)
    check.integer("--seed", options.seed, low=0, high=None)
    check.real("--tol", options.tol, low=0, strict=options.path is not None)
    lams = None if options.path is None else _path_values(options)
    say(options, "\n".join(["Data", *_indent(*_describe_data(problem, options))]))
    path = None
    if lams is not None:
        path = regularization_path(data, lams, init, n_starts=options.n_starts, seed=options.seed)
        say(options, "\n".join(["Choice of λ", *_indent(*_describe_path(path))]))
        init, data = path.results[path.best], data.replace(lam=float(path.lam[path.best]))
        options.n_starts, problem = 1, problem._replace(data=data)
    result = _train(problem, init, options)
    layer = layer_of(data, result.Q, problem.units)
    out = options.out if result.converged else path_of_unfinished(options.out)
    arrays = _layer_arrays(problem, result.Q, options) | {
        **{name: value for name, value in result.overlaps.arrays().items() if value.size},
        "train_loss": result.train_loss, "gradient_norm": result.gradient_norm, "status": result.status.value,
        "n_iter": result.n_iter, "is_minimum": result.is_minimum, "lowest_eigenvalue": result.lowest_eigenvalue,
    }  # fmt: skip
    write_archive("--out", out, FIT, arrays, options.force)  # before errors are computed
    try:
        attention, errors = layer.attention(problem.tokens), layer.errors(problem.tokens, problem.outputs)
        progress.describe("estimating the test error by leave-one-out")
        loo = leave_one_out(data, result)
        left_out = layer.errors(
            problem.tokens[problem.train], problem.outputs[problem.train], layer.student(loo.fields)
        )
    except (KeyboardInterrupt, MemoryError) as error:
        event = str(error) or ("interrupted" if isinstance(error, KeyboardInterrupt) else "out of memory")
        remedy = f"--init {shlex.quote(out)} --n-starts 1 with another --out computes these"
        without = f"{out}, without attention matrices and errors"
        raise type(error)(f"{event}, the weights are trained and in {without}: {remedy}") from None
    lines, numbers, better = _compare_errors(problem, loo, left_out, errors)
    training = _describe_training(result, scale_tolerance(data, options.tol))
    say(options, "\n".join(["Training", *_indent(*training), "Test error", *_indent(*lines)]))
    arrays |= {"attention": attention, "errors": errors, "errors_left_out": left_out}
    write_archive("--out", out, FIT, arrays, options.force)
    files = [f"The weights Q, attention matrices and errors of all samples are in {out}."]
    if options.plot:
        plot = options.plot if result.converged else path_of_unfinished(options.plot)
        plot_fit(result, attention, plot, options.force)
        files.append(f"{plot} shows learning curves, attention matrices and all starts.")
    text = "\n".join(["Files", *_indent(*files), "Next steps", *_indent(*_next_steps(result, better, out, options))])
    numbers |= result.to_dict() | result.to_dict()["overlaps"] | {"result": out, "lam": data.lam}
    numbers |= {"positions": "in the tokens" if problem.positions is None else "given"}
    if path is not None:
        names = ("lam", "test_error", "test_error_error", "in_training", "trusted", "best", "best_1se", "message")
        numbers["path"] = {name: value for name, value in path.to_dict().items() if name in names}
    return report(options, text, numbers | {"standardized": options.standardize}, result.converged)


def load_problem(options: argparse.Namespace) -> FitProblem:
    """Return the problem of a file: loaded, split, and standardized as the options require."""
    stored = load_arrays(options.data, ("tokens", "outputs"), ("positions",))
    tokens, outputs = as_tokens("tokens", stored["tokens"]), as_tokens("outputs", stored["outputs"])
    train, test = split_held_out(options.held_out, len(tokens), options.seed)
    x, y = tokens, outputs
    if len(test):
        require_same_shape(x, y)
        x, y = tokens[train], outputs[train]
    heads, rank = check.integer("--heads", options.heads, low=1), check.integer("--rank", options.rank, low=1)
    wanted = {"rank": heads * rank, "student": with_heads(None, heads), "penalty": build_penalty(options)}
    data, units = build_dataset(x, y, stored.get("positions"), options.standardize, lam=options.lam, **wanted)
    return FitProblem(tokens, outputs, stored.get("positions"), train, test, units, data)


def split_held_out(fraction: float, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of n samples for training, and of round(fraction n) random samples for tests, in order."""
    fraction = check.real("--held-out", fraction, low=0)
    count = round(fraction * n)
    if fraction and not 1 <= count < n:
        needs = f"a fraction of the {n} samples, below 1, that leaves at least one on each side, or 0 for none"
        raise check.fail("--held-out", fraction, needs)
    order = generator(seed, Stream.HELD_OUT).permutation(n) if fraction else np.arange(n)
    return np.sort(order[count:]), np.sort(order[:count])


def _path_values(options: argparse.Namespace) -> list[float]:
    """Return the values of --path."""
    lams = [*chain(*options.path)]
    if not lams:
        lam = check.real("--lam", options.lam, low=0, strict=True)
        return np.geomspace(lam / SPAN, lam * SPAN, VALUES).tolist()
    if len(set(lams)) < len(lams):
        raise check.fail("--path", lams, "values that all differ")
    return [check.real("--path", lam, low=0, strict=True) for lam in lams]


def _train(problem: FitProblem, init: Any, options: argparse.Namespace) -> TrainResult:
    """Return the result of training; if interrupted, write the weights with the lowest training loss."""
    seen: list[Any] = []

    def remember(t: int, state: Any, step: Any) -> None:
        if not seen or step.train_loss <= seen[2].train_loss:
            seen[:] = t, state.Q, step

    wanted = select(options, "tol", "max_iter", "escape", "seed", "n_starts", "survey", "checkpoint")
    try:
        return train(problem.data, init, "exact", **wanted, iteration=IterationOptions(callback=remember))
    except KeyboardInterrupt:
        resumes = options.checkpoint and Path(options.checkpoint).exists()
        remedy = f"the same command resumes from {options.checkpoint}"
        if not seen:  # during a survey
            raise KeyboardInterrupt(*[f"interrupted: {remedy}"] * bool(resumes)) from None
        t, Q, step = seen
        arrays = _layer_arrays(problem, Q, options) | {"status": Status.INTERRUPTED.value, "n_iter": t}
        arrays |= {"train_loss": step.train_loss, "gradient_norm": step.gradient_norm}
        out = path_of_unfinished(options.out)
        write_archive("--out", out, FIT, arrays, options.force)
        remedy = remedy if resumes else f"--init {shlex.quote(out)} with another --out continues from them"
        raise KeyboardInterrupt(f"interrupted, the weights of iteration {t} are in {out}: {remedy}") from None


def _layer_arrays(problem: FitProblem, Q: np.ndarray, options: argparse.Namespace) -> dict[str, Any]:
    """Return the arrays of a result file that describe a layer and its training."""
    data, (center, scale, _) = problem.data, problem.units
    return {
        "Q": Q, "positions": data.positions * scale, "center": center, "scale": scale, "heads": options.heads,
        "lam": data.lam, "held_out": problem.test,
    }  # fmt: skip


def _compare_errors(
    problem: FitProblem, loo: LeaveOneOut, left_out: np.ndarray, errors: np.ndarray
) -> tuple[list[str], dict[str, Any], bool]:
    """Return sentences on test errors, entries of --json, and whether the layer is better than the references.

    `left_out` (n_train,) and `errors` (n,) are errors of the layer by leave-one-out, and of all samples.
    """
    unit = left_out.mean() / loo.test_error if loo.test_error > 0 else 1.0  # of the file, relative to the training
    of_layer = {"leave-one-out": (left_out, unit * loo.test_error_error, unit**2 * loo.covariance, loo.trusted)}
    if len(problem.test):
        held_out = errors[problem.test]
        of_layer[f"{len(held_out)} held out"] = held_out, mean_and_error(held_out)[1], 0.0, True
    labels = {"test_error": "this layer", "linear_test_error": "linear layer y = Wx", "mean_test_error": "mean output"}
    rows, numbers = {key: [label] for key, label in labels.items()}, dict[str, Any]()
    better, verdict = False, "The test error of the layer could not be estimated."
    for how, (each, error, covariance, trusted) in of_layer.items():
        references = _reference_errors(problem, how != "leave-one-out")
        pairs = [(float(each.mean()), error), *(mean_and_error(reference) for reference in references)]
        found = numbers["leave_one_out" if how == "leave-one-out" else "held_out"] = dict[str, Any]()
        for (key, row), (mean, error_of_mean) in zip(rows.items(), pairs, strict=True):
            row.append(format_to_error(mean, error_of_mean))
            found |= {key: mean, f"{key}_error": error_of_mean if np.isfinite(error_of_mean) else None}
        if np.isfinite(each).all():
            better, verdict = _verdict(each, references, covariance)
            doubt = "" if trusted else ", which is not reliable here: compare with --held-out 0.2"
            verdict += f" ({how}{doubt})."
    numbers["leave_one_out"] |= {"trusted": loo.trusted, "form": loo.form, "message": loo.message}
    if len(problem.test):
        numbers["held_out"] |= {"samples": len(problem.test), "train_error": float(errors[problem.train].mean())}
    in_training = format_to_error(*mean_and_error(errors[problem.train]))
    about = "The table lists mean squared errors per coordinate, ‖y − f(x)‖²/(dL), with standard errors in units of the"
    lines = [
        f"{'' if better else 'WARNING: '}{verdict}", f"The mean error of the training samples is {in_training}.",
        f"{about} last digit:", format_text([["", *of_layer], *rows.values()]),
        "Leave-one-out is the error of each training sample under weights trained without this sample: an "
        f"approximation that is corrected by refits. For this layer: {loo.message}.",
    ]  # fmt: skip
    return lines, numbers | {"verdict": verdict, "better_than_references": better}, better


def _verdict(errors: np.ndarray, references: np.ndarray, covariance: float) -> tuple[bool, str]:
    """Return whether the layer is clearly better than all references, and a sentence without its end.

    `covariance` is the part of the squared standard error of the layer that different samples have in common.
    """
    pairs = [mean_and_error(reference - errors) for reference in references]
    margins = [CLEAR * np.sqrt(np.nan_to_num(error, nan=np.inf) ** 2 + covariance) for _, error in pairs]
    signs = [int(mean > margin) - int(mean < -margin) for (mean, _), margin in zip(pairs, margins, strict=True)]
    words = {1: "predicts better than", 0: "is not clearly better than", -1: "predicts worse than"}
    named = {
        sign: " and ".join(name for name, found in zip(REFERENCES, signs, strict=True) if found == sign)
        for sign in sorted(set(signs))
    }
    return min(signs) > 0, "The layer " + "; it ".join(f"{words[sign]} {names}" for sign, names in named.items())


def _reference_errors(problem: FitProblem, new: bool) -> np.ndarray:
    """Return the errors (2, n) of the linear layer y = Wx and of the mean output, in the units of the file.

    They are fitted to the training samples, and evaluated at held-out samples if they are `new`, else by exact
    leave-one-out. W minimizes Σ‖y − Wx‖²/(2d) + (λ/2)‖W‖²; with N = λ + Σ xxᵀ/d, the residual e of a sample in the fit
    is e + (e xᵀ/d)(N − xxᵀ/d)⁻¹ x out of the fit (Sherman, Morrison and Woodbury).
    """
    units, n = problem.units, len(problem.train)

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return units.standardize(problem.tokens[rows]), units.standardize(problem.outputs[rows])

    x, y = read(problem.train)
    mean, d = y.mean(axis=0), x.shape[2]
    products, cross = x @ x.transpose(0, 2, 1) / d, y @ x.transpose(0, 2, 1) / d
    normal = products.sum(axis=0) + RIDGE * np.eye(x.shape[1])
    W = np.linalg.solve(normal, cross.sum(axis=0).T).T
    if new:
        x, y = read(problem.test)
        residuals = y - W @ x, y - mean
    else:
        linear = y - W @ x
        linear += (linear @ x.transpose(0, 2, 1) / d) @ np.linalg.solve(normal - products, x)
        residuals = linear, (y - mean) * n / (n - 1) if n > 1 else y
    return np.stack([np.mean((residual * units.scale) ** 2, axis=(1, 2)) for residual in residuals])


def _indent(*lines: str) -> list[str]:
    """Return the lines of a section, indented below its title."""
    return [f"  {row}" for line in lines for row in line.split("\n")]


def _describe_data(problem: FitProblem, options: argparse.Namespace) -> list[str]:
    """Return sentences on the arrays, their preprocessing, and the layer."""
    data, n_train, (n, L, d) = problem.data, len(problem.train), problem.tokens.shape
    sizes = f"{count_noun(n, 'sample')} of {count_noun(L, 'token')} in {count_noun(d, 'dimension')}"
    lines = [f"{options.data} contains {sizes}."]
    if len(problem.test):
        test = f"the test {count_noun(len(problem.test), 'sample')}, selected at random with seed {options.seed}"
        lines.append(f"Training uses {count_noun(n_train, 'sample')}, and {test}.")
    positions = 0.0 if problem.positions is None else problem.positions
    if not np.ptp(problem.tokens + positions, axis=1).any():
        lines.append("WARNING: The tokens of each sample are equal, so that the outputs do not depend on the weights.")
    lines.append(
        "The file contains positions, which are added to the tokens."
        if problem.positions is not None
        else "The file contains no positions. The mean token at each index is used instead, which changes neither the "
        "training loss nor its minima."
    )
    if options.standardize:
        constant = problem.units.constant
        only = f" Coordinates that are constant are only shifted: {constant} of them." if constant else ""
        lines.append(
            "The arrays are standardized: each coordinate of tokens and outputs is shifted by its mean over all tokens "
            f"and divided by its standard deviation.{only} λ, weights and training loss are in these units, errors and "
            "attention in the units of the file."
        )
    else:
        scales = problem.tokens.std(axis=(0, 1))
        spread = f"{scales.min():.3g} to {scales.max():.3g}"
        lines.append(
            f"The arrays are used in their units; coordinates have standard deviations from {spread}. If their scales "
            "have no meaning, use --standardize, since coordinates with large numbers dominate the training loss."
        )
    heads = "one head" if options.heads == 1 else f"the mean of {options.heads} heads"
    penalty = "Its penalty λ is chosen below" if options.path is not None else f"The penalty is λ = {data.lam:g}"
    l1 = f", with an l1 penalty of {options.l1:g}" if options.l1 else ""
    lines.append(
        f"The layer is f(x) = softmax(z zᵀ) x with z = x Q/√d: {heads}, queries equal to keys, no value matrix. Q has "
        f"{count_noun(data.rank, 'column')}. {penalty}{l1}."
    )
    return lines


def _describe_path(path: RegularizationPath) -> list[str]:
    """Return the table of a path, and the chosen value."""
    best = float(path.lam[path.best])
    return [
        'The test errors ε_g are estimated from the training data, with standard errors in parentheses; "1 s.e." marks '
        "the largest λ within one standard error of the best:",
        str(path).partition("\n")[2],  # without the first line, which names the class
        f"The following sections describe the layer with the best λ, {best:.4g}.",
    ]  # fmt: skip


def _describe_training(result: TrainResult, tol: float) -> list[str]:
    """Return sentences on the outcome of the training, with the tolerance in the unit of the weights."""
    norm = f"Its gradient norm is {result.gradient_norm:.2g}; --tol requires at most {tol:.3g}."
    lines = [result.message, f"The training loss is {result.train_loss:.6g}. {norm}"]
    if result.is_minimum:
        eigenvalue = f"the lowest eigenvalue of its Hessian is {result.lowest_eigenvalue:.2g}"
        lines.append(f"The weights are a minimum of the training loss: {eigenvalue}.")
    if [record.name for record in result.surveys] == ["minimum"]:
        ends = [record for record in result.starts if record.status is not None]
        before = min(record.train_loss for record in ends if not record.name.startswith(("minimum", "flip")))
        lines.append(
            "As few starts agreed and the training loss was low, survey propagation continued from the lowest minimum. "
            f"It decreased the training loss by {100 * (1 - result.train_loss / before):.2g} %."
        )
    elif result.surveys:
        collapsed = sum(record.ending is SurveyEnd.COLLAPSED for record in result.surveys)
        made = f"{count_noun(len(result.surveys), 'survey')}, {collapsed} of which collapsed to a single minimum"
        lines.append(f"Before message passing, survey propagation made {made}.")
    return lines


def _next_steps(result: TrainResult, better: bool, out: str, options: argparse.Namespace) -> list[str]:
    """Return proposals for the next command, the most important first."""
    steps = []
    if not result.converged:
        longer = ", a larger --max-iter" * (result.status is Status.MAX_ITER)
        steps.append(f"Continue from these weights: --init {shlex.quote(out)} --n-starts 1{longer} and another --out.")
    elif not better:
        steps.append(
            f"If the outputs come from a layer with more heads, try --heads {options.heads + 1}. For value matrices or "
            "separate weights of keys, use GampAttention in Python or torch.nn.MultiheadAttention."
        )
    elif options.path is None:
        steps.append("Choose the penalty λ by its leave-one-out error: --path.")
    if not options.plot:
        steps.append("Draw learning curves, attention matrices and starts: --plot fit.png.")
    return [*steps, f"Predict outputs in Python: gamp_attention.load_result({out!r}).predict(tokens)."]
