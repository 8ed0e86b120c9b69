"""Options of all commands. This module loads no solver, so that help and misspelt options are answered at once."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from gamp_attention._tools.choices import DESCENTS, RESPONSES, RISKS, RULES, SOLVERS, STARTS, suggestion
from gamp_attention._version import __version__

FIT_STARTS = ("spectral", "random", "positional")  # starts of `fit`: other starts need a known teacher
VALUES = 20  # number of values of --path without values
LAYER = (
    "an attention layer with one or several heads (--heads), queries equal to keys, weights of low rank, and no value "
    "matrix: f(x) = S x with z = x Q/√d, where S is the mean of softmax(z zᵀ) over the heads"
)
ROWS = "as 0.6,0.4/0.4,0.6 or in quotes '0.6,0.4;0.4,0.6'"
FIT = (
    f"Train {LAYER}, on your own arrays. For value matrices and for separate weights of keys, use GampAttention in "
    "Python. Exit status: 0 converged, 1 not converged, 2 bad input, 130 interrupted. The section 'Test error' of "
    "the output states whether the layer predicts better than a constant and than a linear layer."
)
FORM = "one or more numbers, or FIRST:LAST:COUNT for evenly spaced numbers"
Add = Callable[..., Any]  # method `add_argument` of the parser of a command


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = Parser(prog="gamp-attention", description="Message passing on dot-product attention.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (summary, add_options) in COMMANDS.items():
        description = FIT if name == "fit" else f"{summary[0].upper()}{summary[1:]}."
        epilog = "\n".join(["examples:", *(f"  gamp-attention {name} {words}".rstrip() for words in EXAMPLES[name])])
        command = commands.add_parser(
            name, help=summary, description=description, epilog=epilog, formatter_class=Formatter
        )
        add = command.add_argument
        add_options(add)
        add("--json", metavar="FILE", help="write the result as JSON; '-' for standard output")
        force = "also replace files that this program did not write; inputs are never replaced"
        add("--force", action="store_true", help=force)
        flags = {action.dest: action.option_strings[0] for action in command._actions if action.option_strings}
        # names in Python that differ from the options; `path` is the file of a picture or dataset
        flags |= {"path": "--plot" if "plot" in flags else "--out", "regularization_path": "--path"}
        command.set_defaults(flags=flags | {"overwrite": "--force"})
    return parser


def _add_compare(add: Add) -> None:
    """Add the options of `compare`."""
    _add_model(add)
    add("--d", type=int, default=1000, help="dimension of a token (default 1000)")
    add("--seed", type=int, default=0, help="seed of the instance (default 0)")
    add("--risk", choices=RISKS, default="asymptotic", help="training risk (default asymptotic)")
    add("--gd-steps", type=int, help="number of steps of gradient descent (default: as in the paper)")
    add("--plot", metavar="FILE", default="compare.png", help="file of the picture (default compare.png)")
    add("--all", action="store_true", help="ten panels, with q, all ends and the spread of six other instances")


def _add_fit(add: Add) -> None:
    """Add the options of `fit`."""
    add(
        "data", metavar="DATA",
        help="arrays tokens (n,L,d), outputs (n,L,d) and, unless the tokens contain them, positions (L,d): an .npz "
        "file, a folder of .npy files, or a .pt file with a dict of tensors",
    )  # fmt: skip
    start = f"first start: {', '.join(FIT_STARTS)}, or an .npz file with weights Q (default spectral)"
    add("--init", default="spectral", help=start)
    starts = "number of starts: --init, then random starts; the lowest training loss is selected (default 8)"
    add("--n-starts", type=int, default=8, metavar="K", help=starts)
    add(
        "--survey", action=argparse.BooleanOptionalAction, default="auto",
        help="begin with survey propagation, which takes longer and often finds a lower training loss: at most two "
        "surveys from each start, two more from random starts, and one from the lowest minimum; --no-survey makes no "
        "surveys (default: one survey from the lowest minimum, if its loss is low and few starts agree)",
    )  # fmt: skip
    add("--heads", type=int, default=1, metavar="H", help="number of heads (default 1)")
    add("--rank", type=int, default=1, help="columns of Q for each head (default 1)")
    add("--lam", type=float, default=0.01, help="ridge penalty (default 0.01)")
    _add_l1(add)
    add(
        "--path", type=numbers, nargs="*", metavar="LAM",
        help=f"choose λ by its leave-one-out error, among the given values ({FORM}) or, without values, among {VALUES} "
        "values around --lam and further values if the best value lies at the edge; prints a table, and with --plot "
        "saves a second picture",
    )  # fmt: skip
    add(
        "--standardize", action="store_true",
        help="shift each of the d coordinates of tokens and outputs by its mean over all tokens, and divide it by its "
        "standard deviation (default: arrays are used without change)",
    )  # fmt: skip
    test_help = "fraction of the samples, or of the groups of --groups, drawn at random, to test on (default 0)"
    add("--held-out", type=float, default=0.0, metavar="FRACTION", help=test_help)
    groups = "array (n,) of DATA with a label for each sample, such as a subject: --path and --held-out leave out all "
    add("--groups", metavar="NAME", help=f"{groups}samples of a label together (default: samples are independent)")
    add("--seed", type=int, default=0, help="seed of starts and of the held-out samples (default 0)")
    add("--tol", type=float, default=1e-8, help="gradient norm at which training has converged (default 1e-8)")
    add("--max-iter", type=int, default=10000, help="maximum number of iterations (default 10000)")
    add(
        "--escape", action=argparse.BooleanOptionalAction, default=True,
        help="if training ends at a saddle of the risk, continue to a minimum (default: yes)",
    )  # fmt: skip
    add("--out", metavar="FILE.npz", help="result file (default DATA.fit.npz)")
    add("--plot", metavar="FILE", help="save a picture of learning curve, attention matrices and starts")
    add("--checkpoint", metavar="FILE", help="save progress to this file, and resume from it if it exists")
    add("--checkpoint-every", type=float, default=60.0, metavar="S", help="seconds between saves (default 60)")


def _add_law(add: Add) -> None:
    """Add the options of `law`."""
    add("data", metavar="DATA", help="arrays tokens (n,L,d), outputs and optionally positions, as for fit")
    add("--teacher", metavar="FILE.npz", help="weights Q of a teacher, such as fit writes (default: drawn at random)")
    alphas = "sample complexities α = n/d at which errors are predicted"
    add("--alphas", type=float, nargs="+", metavar="A", help=alphas)
    add("--lam", type=float, default=0.01, help="ridge penalty of the prediction (default 0.01)")
    add("--noise", type=float, help="score noise of the prediction (default: from the outputs)")
    add("--classes", type=_classes, default=1, help="classes of a token: a number or auto (default 1)")
    add("--standardize", action="store_true", help="as for fit")
    add("--seed", type=int, default=0, help="seed of the search for classes (default 0)")


def _add_predict(add: Add) -> None:
    """Add the options of `predict`."""
    add("result", metavar="RESULT", help="result file of fit, such as DATA.fit.npz")
    tokens = "array tokens (n,L,d) in an .npz file, a folder of .npy files, or a .pt file; if outputs (n,L,d) are there"
    add("data", metavar="TOKENS", help=f"{tokens}, the error of the predictions is printed")
    out = "file of the predictions, with an array outputs (n,L,d) (default TOKENS.predictions.npz)"
    add("--out", metavar="FILE.npz", help=out)


def _add_solve(add: Add) -> None:
    """Add the options of `solve`."""
    _add_model(add)
    _add_l1(add)
    add("--init", choices=STARTS, default="semantic", help="initial weights (default semantic)")
    add("--rtol", type=float, help="relative error of the overlaps (default 1e-4)")
    add("--rule", choices=RULES, default="auto", help="quadrature rule (default auto)")
    add("--response", "--variance", choices=RESPONSES, default="stein", help="formula for V̂ (default stein)")
    add("--seed", type=int, default=0, help="seed of randomized points (default 0)")
    steps = "steps of replica symmetry breaking: 1, 2, 3, or full for their limit (default 0)"
    add("--rsb", dest="steps", type=_breaking_steps, default=0, metavar="K", help=steps)
    parisi = "K increasing Parisi parameters of --rsb (default: of the ground state)"
    add("--parisi", type=float, nargs="+", metavar="Y", help=parisi)


def _add_trajectory(add: Add) -> None:
    """Add the options of `trajectory`."""
    _add_model(add)
    _add_l1(add)
    spectral = "spectral weights are computed from the samples"
    start = f"initial weights, default semantic; {spectral}"
    add("--init", choices=(*STARTS, "spectral"), default="semantic", help=start)
    methods = ("gamp", "survey", *DESCENTS, "online")
    add("--method", choices=methods, default="gamp", help="algorithm whose iterations are predicted (default gamp)")
    add("--damping", type=float, help="step β, only for --method gamp (default 0.5) and survey (default 0.4)")
    held = "number of iterations with global proximal minima, as in runs; only for gamp (default: all iterations)"
    add("--hold-after", type=int, metavar="N", help=held)
    add("--parisi", type=float, help="Parisi parameter y; only for --method survey, and required there")
    add("--lr", type=float, help="step size of gradient descent; only for descents (default 0.15)")
    compression = "tolerance of histories at a few stored times (default 0.001 if all of them need too much memory)"
    add("--compression", type=float, help=f"{compression}; only for --hold-after and descents without minibatches")
    add("--n-iter", type=int, default=20, help="number of iterations (default 20)")
    add("--seed", type=int, default=0, help="seed of the paths (default 0)")


def _add_sweep(add: Add) -> None:
    """Add the options of `sweep`."""
    add("folder", metavar="FOLDER", help="folder of the finished cells; run the same command again to continue")
    add("--alpha", type=numbers, nargs="+", default=[[1.5]], metavar="A", help=f"n/d: {FORM}")
    add("--omega", type=numbers, nargs="+", default=[[0.3]], metavar="W", help="positional fraction ω")
    add("--lam", type=numbers, nargs="+", default=[[0.01]], metavar="LAM", help="ridge penalty")
    add("--sigma", type=numbers, nargs="+", default=[[0.5]], metavar="S", help="standard deviation of tokens")
    add("--A", type=matrix, metavar="MATRIX", help=f"positional part of the task, {ROWS}")
    add("--method", nargs="+", choices=SOLVERS, default=["SE"], help="solvers (default SE)")
    branches = "starts (default semantic and positional)"
    add("--branch", nargs="+", choices=STARTS, default=list(STARTS[:2]), help=branches)
    add("--d", type=int, nargs="+", default=[1000], help="dimension for GAMP and GD (default 1000)")
    add("--seed", type=int, nargs="+", default=[0], help="seed for GAMP and GD (default 0)")
    add("--rtol", type=float, default=1e-3, help="accuracy of state evolution (default 1e-3)")
    add("--risk", choices=RISKS, default="exact", help="training risk of GAMP and GD (default exact)")
    add("--cold", action="store_true", help="do not start cells from the solutions of their neighbors")
    add("--out", metavar="FILE.nc", help="also write all cells as one netCDF file")
    _add_workers(add)


def _add_boundaries(add: Add) -> None:
    """Add the options of `boundaries`."""
    add("--omega", type=numbers, nargs="+", metavar="W", help=f"values of ω: {FORM} (default 0.3)")
    add("--lam", type=float, default=0.01, help="ridge penalty (default 0.01)")
    add("--sigma", type=float, default=0.5, help="standard deviation of tokens (default 0.5)")
    add("--A", type=matrix, metavar="MATRIX", help=f"positional part of the task, {ROWS}")
    ends: Any = {"nargs": 2, "default": (0.05, 4.0), "metavar": ("LOW", "HIGH")}
    add("--alphas", type=float, **ends, help="range of α (default 0.05 4)")
    add("--tol", type=float, default=1e-3, help="error of α (default 1e-3)")
    add("--folder", help="folder of finished results, from which the command resumes")
    add("--plot", metavar="FILE", help="save a picture")
    _add_workers(add)


def _add_model(add: Add) -> None:
    add("--alpha", type=float, default=1.5, help="sample complexity n/d (default 1.5)")
    add("--omega", type=float, default=0.3, help="positional fraction ω of the task (default 0.3)")
    add("--sigma", type=float, default=0.5, help="standard deviation of tokens (default 0.5)")
    add("--lam", type=float, default=0.01, help="ridge penalty (default 0.01)")
    add("--score-noise", type=float, default=0.0, help="s of targets (T + s N)x (default 0)")


def _add_l1(add: Add) -> None:
    """Add --l1 to a command with --lam."""
    add("--l1", type=float, default=0.0, help="l1 penalty, in addition to --lam (default 0)")


def _add_workers(add: Add) -> None:
    workers = "number of processes on this machine (default: this process, with threads)"
    add("--workers", type=int, metavar="N", help=workers)
    add("--dask", metavar="ADDRESS", help="scheduler of a dask cluster whose workers can access the folder")


COMMANDS: dict[str, tuple[str, Callable[[Add], None]]] = {
    "compare": ("compare GAMP, state evolution and gradient descent on one instance", _add_compare),
    "fit": ("train an attention layer on your own arrays", _add_fit),
    "law": ("compare your arrays with the assumptions of the theory, and predict errors", _add_law),
    "predict": ("predict the outputs of new tokens with a layer that fit has trained", _add_predict),
    "solve": ("solve for a fixed point of state evolution", _add_solve),
    "trajectory": ("predict every iteration of message passing or gradient descent for large d", _add_trajectory),
    "sweep": ("run solvers on a grid of parameters, resumable, on any number of processes", _add_sweep),
    "boundaries": ("compute the boundaries of the phase diagram, with errors", _add_boundaries),
}
EXAMPLES: dict[str, tuple[str, ...]] = {
    "compare": ("", "--d 500 --alpha 2 --omega 0.2 --plot mine.png --json mine.json"),
    "fit": (
        "mine.npz", "mine.npz --path --standardize --plot fit.png",
        "mine.npz --heads 2 --lam 0.1 --held-out 0.2 --out heads.npz", "mine.npz --checkpoint run.npz",
    ),
    "law": ("mine.npz", "mine.npz --teacher mine.fit.npz --alphas 1 2 4"),
    "predict": ("mine.fit.npz new.npz", "mine.fit.npz new.npz --out predicted.npz --json errors.json"),
    "solve": ("--alpha 1.5 --omega 0.3", "--init positional --l1 0.01 --json -"),
    "trajectory": ("--n-iter 40", "--method gd --lr 0.1 --init random"),
    "sweep": (
        "cells --alpha 0.5:3:11 --omega 0.1 0.3", "cells --alpha 1 2 --method SE GAMP --d 500 --out cells.nc",
    ),
    "boundaries": (
        "--omega 0.1:0.5:5 --folder diagram --plot diagram.png", "--sigma 0.8 --alphas 0.5 3 --workers 2",
    ),
}  # fmt: skip


def numbers(text: str) -> list[float]:
    """Return the numbers of an argument: a number, or FIRST:LAST:COUNT."""
    limit = 100_000
    try:
        if ":" not in text:
            return [float(text)]
        first, last, count = text.split(":")
        if not 1 <= int(count) <= limit:
            raise ValueError
        import numpy as np  # loaded for ranges only, because help does not need it

        return np.linspace(float(first), float(last), int(count)).tolist()
    except ValueError:
        form = f"a number or FIRST:LAST:COUNT of at most {limit} numbers"
        raise argparse.ArgumentTypeError(f"needs {form}, got {text!r}") from None


def matrix(text: str) -> list[list[float]]:
    """Return a square matrix from text, with entries separated by commas and rows by slashes or semicolons."""
    try:
        rows = [[float(entry) for entry in row.split(",")] for row in text.replace(";", "/").split("/")]
    except ValueError:
        rows = []
    if not rows or any(len(row) != len(rows) for row in rows):
        needs = f"a square matrix, {ROWS}, since a shell ends a command at a semicolon"
        raise argparse.ArgumentTypeError(f"needs {needs}, got {text!r}")
    return rows


def _breaking_steps(text: str) -> int | str:
    """Return a number of steps, or the word full."""
    return int(text) if text.isdecimal() else text


def _classes(text: str) -> int | str:
    """Return the value of --classes: a number, or "auto"."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a number of classes >= 1, or auto, got {text!r}")
    return int(text)


def build_penalty(options: argparse.Namespace) -> Any:
    """Return the elastic net if --l1 is given, otherwise None for the ridge penalty."""
    from gamp_attention.problem.penalties.standard import ElasticNet  # loads compiled code, which help does not need

    l1 = getattr(options, "l1", 0.0)
    return ElasticNet(options.lam, l1) if l1 else None


def name_options(message: str, flags: Mapping[str, str]) -> str:
    """Return a message with options (flags) in place of arguments of Python, at its beginning and in backticks."""
    names, colon, needs = message.partition(": ")
    return ", ".join(flags.get(name, name) for name in names.split(", ")) + colon + quote_options(needs, flags)


def quote_options(text: str, flags: Mapping[str, str]) -> str:
    """Return a text with options (flags) in place of arguments of Python in backticks, such as `escape=True`."""
    return re.sub(r"`(\w+)(?:=True)?`", lambda match: flags.get(match[1], match[0]), text)


class Formatter(argparse.HelpFormatter):
    """Formatter that keeps the lines of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """ArgumentParser that suggests the nearest command, word or option if the given word does not exist."""

    def error(self, message: str) -> NoReturn:
        """Print the message with a suggestion, if one is near, and exit with status 2."""
        match = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        message = message.replace("invalid float value: ", "needs a number, got ")
        message = message.replace("invalid int value: ", "needs an integer, got ")
        if match:
            message += suggestion(match[1], (word.strip("' ") for word in match[2].split(",")))
        super().error(message)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse all arguments; an unknown option is an error that suggests the nearest option."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            subparsers = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
            commands: dict[Any, Any] = next((dict(action.choices) for action in subparsers), {})
            command = commands.get(getattr(options, "command", None), self)
            near = suggestion(unknown[0].partition("=")[0], command._option_string_actions)
            command.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return options
