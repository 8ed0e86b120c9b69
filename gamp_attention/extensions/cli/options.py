"""Options of all commands, in one table. This module loads no solver, so that help and misspelt options are quick."""

import argparse
import re
from argparse import RawDescriptionHelpFormatter
from contextlib import suppress
from textwrap import fill
from typing import Any

from gamp_attention._tools.choices import DESCENTS, RISKS, SOLVERS, STARTS
from gamp_attention._version import __version__

FIT_STARTS = ("spectral", "random", "positional")  # starts of `fit`: other starts need a known teacher
FORM = "one or more numbers, or FIRST:LAST:COUNT for evenly spaced numbers"
FIT = (
    "Train an attention layer with one or several heads, queries equal to keys, weights of low rank, and no value "
    "matrix on your own arrays: f(x) = S x with z = x Q/√d, where S is the mean of softmax(z zᵀ) over the heads. For "
    "value matrices and for separate weights of keys, use GampAttention in Python. Exit status: 0 converged, 1 not "
    "converged, 2 bad input, 130 interrupted."
)


def numbers(text: str) -> list[float]:
    """Return the numbers of an argument: a number, or FIRST:LAST:COUNT with a count of at most 100 000."""
    with suppress(ValueError):
        if ":" not in text:
            return [float(text)]
        first, last, count = text.split(":")
        if 1 <= int(count) <= 100_000:
            import numpy as np  # loaded for ranges only, because help does not need it

            return np.linspace(float(first), float(last), int(count)).tolist()
    raise argparse.ArgumentTypeError(f"needs {FORM}, got {text!r}")


class Option:
    """An option of a command: its name, its type or choices, its default and its help, which states the default.

    `more` are further arguments of `ArgumentParser.add_argument`. A type bool makes a switch, and a pair --NAME and
    --no-NAME if it has a default.
    """

    def __init__(self, flag: str, kind: Any, default: Any, about: str, **more: Any) -> None:
        if default is not None and kind is not bool and "nargs" not in more:
            about += f" (default {default})"
        self.flag, self.settings = flag, {"help": about, "default": default, **more}
        if kind is not bool:
            self.settings["choices" if isinstance(kind, tuple) else "type"] = kind
        elif default is None:
            self.settings |= {"action": "store_true", "default": False}
        else:
            self.settings["action"] = argparse.BooleanOptionalAction


SIGMA = Option("--sigma", float, 0.5, "standard deviation of tokens")
LAM = Option("--lam", float, 0.01, "ridge penalty")
L1 = Option("--l1", float, 0.0, "l1 penalty, in addition to --lam")
WORKERS = Option("--workers", int, None, "number of processes (default: this process, with threads)", metavar="N")
MODEL = (
    Option("--alpha", float, 1.5, "sample complexity n/d"),
    Option("--omega", float, 0.3, "positional fraction ω of the task"),
    SIGMA,
    LAM,
    Option("--score-noise", float, 0.0, "s of targets (T + s N)x"),
)
COMMON = (
    Option("--json", str, None, "write the result as JSON; '-' for standard output", metavar="FILE"),
    Option("--force", bool, None, "also replace files that this program did not write; inputs are never replaced"),
)
SURVEY = (
    "begin with survey propagation, which takes longer and often finds a lower training loss: at most two surveys from "
    "each start, two more from random starts, and one from the lowest minimum; --no-survey makes no surveys (default: "
    "one survey from the lowest minimum, if its loss is low and few starts agree)"
)
# for each command its help, arguments of the examples below the help, and its options
COMMANDS: dict[str, tuple[str, tuple[str, ...], tuple[Option, ...]]] = {
    "compare": (
        "compare GAMP, state evolution and gradient descent on one instance",
        ("", "--d 500 --alpha 2 --omega 0.2 --plot mine.png --json mine.json"),
        (
            *MODEL,
            Option("--d", int, 1000, "dimension of a token"),
            Option("--seed", int, 0, "seed of the instance"),
            Option("--risk", RISKS, "asymptotic", "training risk"),
            Option("--gd-steps", int, None, "number of steps of gradient descent (default: as in the paper)"),
            Option("--plot", str, "compare.png", "file of the picture", metavar="FILE"),
            Option("--all", bool, None, "ten panels, with q and the ends of all solvers"),
        ),
    ),
    "fit": (
        "train an attention layer on your own arrays",
        ("mine.npz", "mine.npz --path --standardize --plot fit.png", "mine.npz --heads 2 --held-out 0.2 --out h.npz"),
        (
            Option(
                "data", str, None, metavar="DATA",
                about="arrays tokens (n,L,d), outputs (n,L,d) and, unless the tokens contain them, positions (L,d): an "
                ".npz file or a folder of .npy files",
            ),
            Option("--init", str, "spectral", f"first start: {', '.join(FIT_STARTS)}, or an .npz file with weights Q"),
            Option(
                "--n-starts", int, 8, metavar="K",
                about="number of starts: --init, then random starts; the lowest training loss is selected",
            ),
            Option("--survey", bool, "auto", SURVEY),
            Option("--heads", int, 1, "number of heads", metavar="H"),
            Option("--rank", int, 1, "columns of Q for each head"),
            LAM,
            L1,
            Option(
                "--path", numbers, None, nargs="*", metavar="LAM",
                about=f"choose λ by its leave-one-out error, among the given values ({FORM}) or, without values, among "
                "20 values around --lam",
            ),
            Option(
                "--standardize", bool, None, "shift each of the d coordinates of tokens and outputs by its mean over "
                "all tokens, and divide it by its standard deviation (default: arrays are used without change)",
            ),
            Option("--held-out", float, 0.0, "fraction of the samples, at random, to test on", metavar="FRACTION"),
            Option("--seed", int, 0, "seed of starts and of the held-out samples"),
            Option("--tol", float, 1e-8, "gradient norm at which training has converged"),
            Option("--max-iter", int, 10000, "maximum number of iterations"),
            Option("--escape", bool, True, "if training ends at a saddle of the risk, continue to a minimum"),
            Option("--out", str, None, "result file (default DATA.fit.npz)", metavar="FILE.npz"),
            Option("--plot", str, None, "picture of learning curve, attention matrices and starts", metavar="FILE"),
            Option("--checkpoint", str, None, "save progress (at least once a minute), and resume", metavar="FILE"),
        ),
    ),
    "solve": (
        "solve for a fixed point of state evolution",
        ("--alpha 1.5 --omega 0.3", "--init positional --l1 0.01 --json -"),
        (
            *MODEL,
            L1,
            Option("--init", STARTS, "semantic", "initial weights"),
            Option("--rtol", float, None, "relative error of the overlaps (default 1e-4)"),
            Option("--seed", int, 0, "seed of randomized points"),
            Option(
                "--rsb", lambda text: int(text) if text.isdecimal() else text, 0, dest="steps", metavar="K",
                about="steps of replica symmetry breaking: 1, 2, 3, or full for their limit",
            ),
        ),
    ),
    "trajectory": (
        "predict every iteration of message passing or gradient descent for large d",
        ("--n-iter 40", "--method gd --lr 0.1 --init random"),
        (
            *MODEL,
            L1,
            Option("--init", STARTS, "semantic", "initial weights"),
            Option("--method", ("gamp", "survey", *DESCENTS, "online"), "gamp", "algorithm that is predicted"),
            Option("--damping", float, None, "step β of gamp (default 0.5) and survey (default 0.4)"),
            Option("--parisi", float, None, "Parisi parameter y of survey, which requires it"),
            Option("--lr", float, None, "step size of gradient descent (default 0.15)"),
            Option("--n-iter", int, 20, "number of iterations"),
            Option("--seed", int, 0, "seed of the paths"),
        ),
    ),
    "sweep": (
        "run solvers on a grid of parameters, resumable, on any number of processes",
        ("cells --alpha 0.5:3:11 --omega 0.1 0.3", "cells --alpha 1 2 --method SE GAMP --d 500"),
        (
            Option(
                "folder", str, None, "folder of the finished cells; run the same command again to continue",
                metavar="FOLDER",
            ),
            Option("--alpha", numbers, [[1.5]], f"n/d (default 1.5): {FORM}", nargs="+", metavar="A"),
            Option("--omega", numbers, [[0.3]], "positional fraction ω (default 0.3)", nargs="+", metavar="W"),
            Option("--lam", numbers, [[0.01]], "ridge penalty (default 0.01)", nargs="+", metavar="LAM"),
            Option("--sigma", numbers, [[0.5]], "standard deviation of tokens (default 0.5)", nargs="+", metavar="S"),
            Option("--method", SOLVERS, ["SE"], "solvers (default SE)", nargs="+"),
            Option("--branch", STARTS, list(STARTS[:2]), "starts (default semantic and positional)", nargs="+"),
            Option("--d", int, [1000], "dimension for GAMP and GD (default 1000)", nargs="+"),
            Option("--seed", int, [0], "seed for GAMP and GD (default 0)", nargs="+"),
            Option("--rtol", float, 1e-3, "accuracy of state evolution"),
            Option("--risk", RISKS, "exact", "training risk of GAMP and GD"),
            Option("--cold", bool, None, "do not start cells from the solutions of their neighbors"),
            WORKERS,
        ),
    ),
    "boundaries": (
        "compute the boundaries of the phase diagram, with errors",
        ("--omega 0.1:0.5:5 --folder diagram --plot diagram.png", "--sigma 0.8 --alphas 0.5 3 --workers 2"),
        (
            Option("--omega", numbers, [[0.3]], f"values of ω: {FORM} (default 0.3)", nargs="+", metavar="W"),
            LAM,
            SIGMA,
            Option("--alphas", float, (0.05, 4.0), "range of α (default 0.05 4)", nargs=2, metavar=("LOW", "HIGH")),
            Option("--tol", float, 1e-3, "error of α"),
            Option("--folder", str, None, "folder of finished results, from which the command resumes"),
            Option("--plot", str, None, "save a picture", metavar="FILE"),
            WORKERS,
        ),
    ),
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(prog="gamp-attention", description="Message passing on dot-product attention.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, examples, options) in COMMANDS.items():
        description = FIT if name == "fit" else f"{summary[0].upper()}{summary[1:]}."
        epilog = "\n".join(["examples:", *(f"  gamp-attention {name} {words}".rstrip() for words in examples)])
        settings: Any = {"description": fill(description, 80), "epilog": epilog}
        command = commands.add_parser(name, help=summary, formatter_class=RawDescriptionHelpFormatter, **settings)
        actions = [command.add_argument(option.flag, **option.settings) for option in (*options, *COMMON)]
        flags = {action.dest: action.option_strings[0] for action in actions if action.option_strings}
        # names in Python that differ from the options; `path` is the file of a picture
        flags |= {"path": "--plot", "lams": "--path", "overwrite": "--force", "omegas": "--omega", "penalty.l1": "--l1"}
        command.set_defaults(flags=flags)
    return parser


def build_penalty(options: argparse.Namespace) -> Any:
    """Return the elastic net if --l1 is given, otherwise None for the ridge penalty."""
    from gamp_attention.problem.penalties.standard import ElasticNet  # loads compiled code, which help does not need

    l1 = getattr(options, "l1", 0.0)
    return ElasticNet(options.lam, l1) if l1 else None


def name_options(message: str, flags: dict[str, str]) -> str:
    """Return a message with options (flags) in place of arguments of Python, at its beginning and in backticks."""
    names, colon, needs = message.partition(": ")
    return ", ".join(flags.get(name, name) for name in names.split(", ")) + colon + quote_options(needs, flags)


def quote_options(text: str, flags: dict[str, str]) -> str:
    """Return a text with options (flags) in place of arguments of Python in backticks, such as `escape=True`."""
    return re.sub(r"`(\w+)(?:=True)?`", lambda match: flags.get(match[1], match[0]), text)
