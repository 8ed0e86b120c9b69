"""What `gamp-attention fit` says of the test error: leave-one-out, and along a path of λ."""

import argparse
from typing import Any

import numpy as np

from gamp_attention._core.spread import mean_and_error
from gamp_attention._core.text import to_error
from gamp_attention.cli.grids import FORM, numbers
from gamp_attention.cli.output import checkpoint_of_path, chosen, picture_of_path, say
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.layer import Layer
from gamp_attention.data.stores import Tokens
from gamp_attention.experiments.inference.leave_one_out import leave_one_out
from gamp_attention.experiments.inference.path import regularization_path
from gamp_attention.experiments.inference.path_result import RegularizationPath
from gamp_attention.experiments.path_picture import plot_path
from gamp_attention.gamp.result import GampResult

SPAN, VALUES = 30.0, 20  # of a path without values: from λ/30 to 30 λ


def add_path(command: argparse.ArgumentParser) -> None:
    """Add --path."""
    command.add_argument(
        "--path", type=numbers, nargs="*", metavar="LAM",
        help=f"choose λ by its leave-one-out error, among these ({FORM}) or {VALUES} around --lam; a table of all, and "
        "with --plot a second picture",
    )  # fmt: skip


def path_of(data: Dataset, init: Any, options: argparse.Namespace) -> RegularizationPath:
    """The path that --path asks for."""
    lams = [lam for each in options.path for lam in each]
    if not lams:
        lams = list(np.geomspace(options.lam / SPAN, options.lam * SPAN, VALUES)) if options.lam > 0 else [options.lam]
    file = options.checkpoint and checkpoint_of_path(options.checkpoint)
    path = regularization_path(data, lams, init, checkpoint=file, **chosen(options, "n_starts", "seed"))
    say(options, str(path))
    if options.plot:
        target = picture_of_path(options.plot)
        plot_path(path, target, options.force)
        say(options, f"picture: {target}")
    return path


def path_numbers(path: RegularizationPath) -> dict[str, Any]:
    """Of a path, what --json writes."""
    found = path.to_dict()
    names = ("lam", "test_error", "test_error_error", "in_training", "trusted", "best", "best_1se", "message")
    return {name: found[name] for name in names}


def believed(
    data: Dataset, result: GampResult, layer: Layer, tokens: Tokens, outputs: Tokens
) -> tuple[str, dict[str, Any], np.ndarray]:
    """The estimated test error in words and numbers, and the errors of the samples, in the units of the file."""
    loo = leave_one_out(data, result)
    errors = layer.errors(tokens, outputs, layer.student(loo.fields))
    mean, spread = mean_and_error(errors)
    told = {
        "test_error": mean,
        "test_error_error": spread if np.isfinite(spread) else None,
        "trusted": loo.trusted,
        "doubtful": int(np.count_nonzero(loo.doubtful)),
        "form": loo.form,
        "message": loo.message,
    }
    said = f"estimated test error ‖y − f‖²/(dL) {to_error(mean, spread)}, by leaving samples out (standard error)"
    return f"{said}; {loo.message}", told, errors
