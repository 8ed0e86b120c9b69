"""The command `gamp-attention law`: how far own arrays are from what the theory assumes, and what it predicts."""

import argparse
from typing import Any

from gamp_attention._core import check
from gamp_attention._core.text import as_text
from gamp_attention.cli.output import chosen, report
from gamp_attention.data.law.law_of import law_of
from gamp_attention.data.layer import prepared
from gamp_attention.data.loading import load_arrays, load_weights
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution


def add_law(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `law`."""
    found = commands.add_parser("law", help="how far your own arrays are from what the theory assumes")
    found.add_argument("data", metavar="DATA", help="arrays tokens (n,L,d), outputs and perhaps positions, as for fit")
    found.add_argument(
        "--teacher", metavar="FILE.npz", help="weights Q of a teacher, such as fit writes (default: drawn at random)"
    )
    found.add_argument("--alphas", type=float, nargs="+", metavar="A", help="predict errors at these α = n/d")
    found.add_argument("--lam", type=float, default=0.01, help="ridge penalty of the prediction (default 0.01)")
    found.add_argument("--noise", type=float, help="score noise of the prediction (default: from the outputs)")
    found.add_argument("--classes", type=_classes, default=1, help="classes of a token: a number or auto (default 1)")
    found.add_argument("--standardise", action="store_true", help="as for fit")
    found.add_argument("--seed", type=int, default=0, help="seed of the search for classes (default 0)")
    found.set_defaults(run=_law)
    return found


def _classes(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a number of classes >= 1, or auto, got {text!r}")
    return int(text)


def _law(options: argparse.Namespace) -> int:
    alphas = [check.real("--alphas", alpha, low=0, strict=True) for alpha in options.alphas or []]
    stored = load_arrays(options.data)
    weights = None if options.teacher is None else load_weights(options.teacher)
    data, _ = prepared(*stored, options.standardise, lam=options.lam)
    law = law_of(data, weights, **chosen(options, "classes", "noise", "seed"))
    solved = [solve_state_evolution(law.model, alpha, rtol=1e-2, stability=False) for alpha in alphas]
    lines, told = [str(law)], law.to_dict()
    if solved:
        rows = [["  α", "ε_t", "ε_g", "state evolution"]]
        for alpha, each in zip(alphas, solved, strict=True):
            rows.append([f"  {alpha:g}", f"{each.train_loss:.4g}", f"{each.test_error:.4g}", each.status.value])
        lines += ["predicted:", as_text([*rows])]
        told["predicted"] = [each.to_dict() | {"alpha": alpha} for alpha, each in zip(alphas, solved, strict=True)]
    report(options, "\n".join(lines), told)
    return 0 if all(each.converged for each in solved) else 1
