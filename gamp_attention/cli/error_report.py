"""Test errors of `gamp-attention fit`: leave-one-out, samples held out, reference predictions, and paths of λ."""

import argparse
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import progress
from gamp_attention._core.display import format_text, format_to_error
from gamp_attention._core.numerics import mean_and_error
from gamp_attention.baselines.reference import ReferenceErrors, reference_errors
from gamp_attention.cli.options import VALUES
from gamp_attention.cli.output import checkpoint_of_path, indent, picture_of_path, say
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.layer import Layer
from gamp_attention.data.stores import Tokens
from gamp_attention.experiments.figures import plot_path
from gamp_attention.experiments.inference.leave_one_out import leave_one_out
from gamp_attention.experiments.inference.paths import RegularizationPath, regularization_path
from gamp_attention.gamp.result import GampResult

SPAN = 30.0  # range of --path without values: from λ/30 to 30 λ
WIDEST = 1e4  # maximum ratio of a value and --lam, if the path is extended because its best value lies at an edge
ADDED = 8  # number of values by which a path is extended at a time, with the spacing of the other values
FLAT = 0.01  # relative decrease of the error by an extension below which there is no further one
ZERO = 1e-3  # norm ‖Q‖/√d of the weights below which they count as zero
ROWS = {"linear": "linear layer y = Wx", "mean": "mean output", "zero": "y = 0"}


def path_of(data: Dataset, init: Any, options: argparse.Namespace) -> RegularizationPath:
    """Return the path that --path requests, extended until its best value lies inside, unless values are given."""
    given = [lam for values in options.path for lam in values]
    spacing = SPAN ** (2 / (VALUES - 1))
    lams = given or [options.lam]
    if not given and options.lam > 0:
        lams = np.geomspace(options.lam / SPAN, options.lam * SPAN, VALUES).tolist()
    say(options, "Choice of λ")
    path = _path(data, lams, init, options, 0)
    extensions, flat = 0, False
    while not given and options.lam > 0 and not flat and (edge := _direction(path)):
        more = [(path.lam.max() if edge > 0 else path.lam.min()) * spacing ** (edge * k) for k in range(1, ADDED + 1)]
        more = [lam for lam in more if options.lam / WIDEST <= lam <= options.lam * WIDEST]
        if not more:
            break
        before, extensions = path, extensions + 1
        why = _all_zero(path) or f"The best λ is the {'largest' if edge > 0 else 'smallest'} of {len(path.lam)} values"
        say(options, indent(f"{why}: {len(more)} {'larger' if edge > 0 else 'smaller'} values are tried."))
        smallest = path.results[int(np.argmin(path.lam))]
        begin = smallest if smallest.converged else init
        path = _path(data, sorted([*path.lam.tolist(), *more]), begin, options, extensions)
        errors = [float(earlier.test_error[earlier.best]) for earlier in (before, path)]
        flat = errors[1] > (1 - FLAT) * errors[0] and not _all_zero(path)
    table = str(path).partition("\n")[2]  # without the first line, which names the class
    explanation = (
        f"The layer was trained with {len(path.lam)} values of λ. The test errors ε_g are estimated from the training "
        'data, with standard errors in parentheses; "1 s.e." marks the largest λ within one standard error of the best:'
    )
    say(options, indent(explanation, table))
    if edge := _direction(path):
        say(options, indent(_about_edge(path, edge, bool(given), flat)))
    if options.plot:
        target = picture_of_path(options.plot)
        plot_path(path, target, options.force)
        say(options, indent(f"{target} shows the test error as a function of λ."))
    say(options, indent(f"The following sections describe the layer with the best λ, {path.lam[path.best]:.4g}."))
    return path


def _path(
    data: Dataset, lams: list[float], init: Any, options: argparse.Namespace, extension: int
) -> RegularizationPath:
    """Train along values of λ; each extension has a separate checkpoint and a single start."""
    file = options.checkpoint and checkpoint_of_path(options.checkpoint, extension)
    n_starts = 1 if extension else options.n_starts
    return regularization_path(data, lams, init, checkpoint=file, n_starts=n_starts, seed=options.seed)


def _direction(path: RegularizationPath) -> int:
    """Return -1 or 1 if smaller or larger values may be better than all values of a path, else 0.

    This holds if the best value is the smallest or the largest, or if all weights are zero because λ is too large.
    """
    if len(path.lam) < 2:
        return 0
    if _all_zero(path):
        return -1
    best = path.lam[path.best]
    larger = best == path.lam.max() and not _is_zero(path.results[path.best])  # zero weights stay zero at larger λ
    return int(larger) - int(best == path.lam.min())


def _all_zero(path: RegularizationPath) -> str:
    """Return a clause if the weights are zero at every value of a path, else an empty one."""
    return "The weights are zero at every λ" if all(map(_is_zero, path.results)) else ""


def _is_zero(result: GampResult) -> bool:
    """Return whether the weights of a result are zero up to `ZERO`."""
    return bool(np.linalg.norm(result.Q) < ZERO * np.sqrt(len(result.Q)))


def _about_edge(path: RegularizationPath, edge: int, given: bool, flat: bool) -> str:
    """Return a remedy if the best value is at the edge of the path; the message of the path states that it is."""
    zero = f"{_all_zero(path)}. " if _all_zero(path) else ""
    if given:
        return f"{zero}Give {'larger' if edge > 0 else 'smaller'} values as well, or use --path without values."
    if flat:
        return f"{zero}The path is not extended: the last {ADDED} values lowered the error by less than {FLAT:.0%}."
    return f"{zero}The path is not extended beyond a factor of {WIDEST:g} from --lam."


def path_numbers(path: RegularizationPath) -> dict[str, Any]:
    """Return the entries of a path in the file of --json."""
    entries = path.to_dict()
    names = ("lam", "test_error", "test_error_error", "in_training", "trusted", "best", "best_1se", "message")
    return {name: entries[name] for name in names}


class TestErrors(NamedTuple):
    """Test errors of a layer and of the reference predictions, in the units of the file."""

    verdict: str  # sentence that compares the layer with the reference predictions
    better: bool  # True if the layer is better than all references, by at least two standard errors
    text: str  # table and remarks
    numbers: dict[str, Any]  # entries of --json
    left_out: np.ndarray  # (n,) leave-one-out error of each training sample


def test_errors(
    data: Dataset, result: GampResult, layer: Layer, train: tuple[Tokens, Tokens], test: tuple[Tokens, Tokens] | None
) -> TestErrors:
    """Return test errors of a layer by leave-one-out and on held-out samples, and errors of reference predictions.

    Parameters
    ----------
    data, result : the training samples and the run, in the units that they were trained in.
    layer : the trained layer in the units of the file.
    train, test : tokens and outputs of the training and the held-out samples, in the units of the file.
    """
    progress.describe("estimating the test error by leave-one-out")
    loo = leave_one_out(data, result)
    left_out = layer.errors(*train, layer.student(loo.fields))
    columns = {"leave-one-out": (left_out, reference_errors(data, units=layer.units))}
    if test is not None:
        held_out = layer.errors(*test)
        columns[f"{len(held_out)} held out"] = (held_out, reference_errors(data, *test, units=layer.units))
    trust: dict[str, Any] = {"trusted": loo.trusted, "doubtful": int(np.count_nonzero(loo.doubtful))}
    trust |= {"form": loo.form, "message": loo.message}
    numbers: dict[str, Any] = {"leave_one_out": _numbers(*columns["leave-one-out"]) | trust}
    if test is not None:
        in_training = mean_and_error(layer.errors(*train))
        numbers["held_out"] = {"samples": len(held_out), **_numbers(*list(columns.values())[1])}
        numbers["held_out"] |= {"train_error": in_training[0], "train_error_error": _finite(in_training[1])}
    better, verdict = _verdict(columns, loo.trusted)
    rows = {"this layer": [errors for errors, _ in columns.values()]}
    for k, name in enumerate(columns["leave-one-out"][1].names):
        rows[ROWS[name]] = [references.errors[k] for _, references in columns.values()]
    table: list[Any] = [["", *columns]]
    table += [[name, *(format_to_error(*mean_and_error(errors)) for errors in row)] for name, row in rows.items()]
    text = (
        "The table lists mean squared errors per coordinate, ‖y − f(x)‖²/(dL), with standard errors in units of the "
        f"last digit:\n{format_text(table)}\nLeave-one-out is the error of each training sample under weights trained "
        f"without this sample: an approximation that is corrected by refits. For this layer: {loo.message}."
    )
    return TestErrors(verdict, better, text, numbers | {"verdict": verdict, "better_than_references": better}, left_out)


def _verdict(columns: dict[str, tuple[np.ndarray, ReferenceErrors]], trusted: bool) -> tuple[bool, str]:
    """Return whether the layer is better than the references, and a sentence.

    Errors of held-out samples are used if leave-one-out is not trusted, or if they are worse than a reference.
    """
    finite = {how: column for how, column in columns.items() if np.isfinite(column[0]).all()}
    verdicts = [(how, references.verdict(errors)) for how, (errors, references) in finite.items()]
    if not verdicts:
        return False, "The test error of the layer could not be estimated."
    use_last = not trusted or verdicts[-1][1].worse_than
    how, verdict = verdicts[-1] if use_last else verdicts[0]
    doubt = "" if trusted or how != "leave-one-out" else ", which is not reliable here: compare with --held-out 0.2"
    return verdict.better, f"{verdict.message.removesuffix('.')} ({how}{doubt})."


def _numbers(layer_errors: np.ndarray, references: ReferenceErrors) -> dict[str, Any]:
    """Return means and standard errors of errors of the layer and of the references, for --json."""
    numbers: dict[str, Any] = {}
    named = zip(("", *(f"{name}_" for name in references.names)), (layer_errors, *references.errors), strict=True)
    for name, errors in named:
        mean, error = mean_and_error(errors)
        numbers |= {f"{name}test_error": mean, f"{name}test_error_error": _finite(error)}
    return numbers


def _finite(value: float) -> float | None:
    """Return a number, or None if it is not finite, which JSON cannot represent."""
    return value if np.isfinite(value) else None
