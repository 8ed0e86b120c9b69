"""The command `gamp-attention predict`: predict the outputs of new tokens with a layer that `fit` has trained."""

import argparse
from typing import Any

from gamp_attention._tools.display import count_noun, format_to_error, to_json
from gamp_attention._tools.files import write_archive
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.cli.output import PREDICTIONS, report
from gamp_attention.extensions.train.fit_result import read_result
from gamp_attention.extensions.train.loading import load_tokens
from gamp_attention.problem.layer import require_tokens


def run_predict(options: argparse.Namespace) -> int:
    """Run the command `predict` and return its exit status."""
    result = read_result("RESULT", options.result)
    layer, (tokens, outputs) = result.layer, load_tokens(options.data)
    tokens = require_tokens("tokens", tokens, *layer.positions.shape)
    if outputs is not None:
        outputs = require_tokens("outputs", outputs, *layer.positions.shape)
        if len(outputs) != len(tokens):
            raise ValueError(f"outputs: needs shape {tokens.shape}, got shape {outputs.shape}")
    predicted = result.predict(tokens)
    write_archive("--out", options.out, PREDICTIONS, {"outputs": predicted}, options.force)
    number = count_noun(len(predicted), "sample")
    lines = [f"{options.out} contains the array outputs {predicted.shape}: the predictions for {number}."]
    if not result.converged:
        lines.append(f"WARNING: The training has not converged (status {result.status.value} of {options.result}).")
    numbers: dict[str, Any] = {"predictions": options.out, "samples": len(predicted), "converged": result.converged}
    if outputs is not None:
        error = mean_and_error(layer.errors(tokens, outputs))
        numbers |= dict(zip(("test_error", "test_error_error"), to_json(error), strict=True))
        value = f"{format_to_error(*error)}, with its standard error in units of the last digit"
        lines.append(f"The mean squared error per coordinate, for the outputs of the file, is {value}.")
    report(options, "\n".join(lines), numbers)
    return 0
