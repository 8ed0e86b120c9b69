"""The commands `gamp-attention fit` and `gamp-attention law` for the user's arrays.

`fit` trains an attention layer. `law` compares the arrays with the assumptions of the theory, and predicts errors.
"""

import argparse
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.display import format_text, format_to_error
from gamp_attention._core.files import write_archive
from gamp_attention._core.numerics import mean_and_error
from gamp_attention._core.runs import Checkpoint
from gamp_attention.cli.error_report import add_path, path_numbers, path_of, test_errors
from gamp_attention.cli.output import report, say, select
from gamp_attention.cli.parser import add_l1, build_penalty
from gamp_attention.data.dataset import Dataset, split_held_out
from gamp_attention.data.law.law_of import law_of
from gamp_attention.data.layer import Layer, Units, build_dataset, require_same_shape
from gamp_attention.data.loading import StoredArrays, load_arrays, load_weights
from gamp_attention.data.starts import DATA_STARTS
from gamp_attention.data.stores import as_tokens, distinct_samples
from gamp_attention.experiments.figures import plot_fit
from gamp_attention.experiments.inference.paths import RegularizationPath
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp
from gamp_attention.gamp.survey import SurveyEnd, SurveyRecord
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution

LAYER = (
    "one attention layer with one head, queries equal to keys, weights of low rank, and no value matrix: "
    "f(x) = softmax(z zᵀ) x with z = x Q/√d"
)
ALTERNATIVES = (
    "The layer has one head, queries equal to keys, low rank and no value matrix. For outputs of a general attention "
    "layer train torch.nn.MultiheadAttention; for keys with separate weights see DotProductAttention(tied=False)."
)


def add_fit(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `fit`."""
    about = (
        f"Train {LAYER}, on your own arrays. For several heads or value matrices use torch.nn.MultiheadAttention; for "
        "keys with separate weights, run_gamp in Python with DotProductAttention(tied=False). Exit status: 0 "
        "converged, 1 not converged, 2 bad input, 130 interrupted. The first line of the summary states whether the "
        "layer predicts better than a constant and than a linear layer."
    )
    command = commands.add_parser("fit", help="train an attention layer on your own arrays", description=about)
    add = command.add_argument
    add(
        "data", metavar="DATA",
        help="arrays tokens (n,L,d), outputs (n,L,d) and, unless the tokens contain them, positions (L,d): an .npz "
        "file, a folder of .npy files, or a .pt file with a dict of tensors",
    )  # fmt: skip
    add("--init", default="spectral", help="spectral (default), random, positional, or an .npz file with weights Q")
    add(
        "--n-starts", type=int, default=8, metavar="K",
        help="number of starts: --init, then random starts; the lowest training loss is selected (default 8)",
    )  # fmt: skip
    add(
        "--survey", action="store_true",
        help="begin with survey propagation, which takes longer and often finds a lower training loss: at most two "
        "surveys from each start, two more from random starts, and three from the lowest minimum",
    )  # fmt: skip
    add("--rank", type=int, default=1, help="columns of Q (default 1)")
    add("--lam", type=float, default=0.01, help="ridge penalty (default 0.01)")
    add_l1(command)
    add_path(command)
    add(
        "--standardise", action="store_true",
        help="shift each of the d coordinates of tokens and outputs by its mean over all tokens, and divide it by its "
        "standard deviation (default: arrays are used without change)",
    )  # fmt: skip
    test_help = "fraction of the samples, drawn at random, to test on (default 0)"
    add("--held-out", type=float, default=0.0, metavar="FRACTION", help=test_help)
    add("--seed", type=int, default=0, help="seed of starts and of the held-out samples (default 0)")
    add("--tol", type=float, default=1e-8, help="gradient norm at which training has converged (default 1e-8)")
    add("--max-iter", type=int, default=10000, help="maximum number of iterations (default 10000)")
    add("--escape", action="store_true", help="if training ends at a saddle of the risk, continue to a minimum")
    add("--out", metavar="FILE.npz", help="result file (default DATA.fit.npz)")
    add("--plot", metavar="FILE", help="save a picture of learning curve, attention matrices and starts")
    add("--checkpoint", metavar="FILE", help="save progress to this file, and resume from it if it exists")
    add("--checkpoint-every", type=float, default=60.0, metavar="S", help="seconds between saves (default 60)")
    command.set_defaults(run=_fit)
    return command


class Problem(NamedTuple):
    """Samples of a file, their split and units, and the dataset for training."""

    arrays: StoredArrays
    train: np.ndarray  # indices of the training samples
    test: np.ndarray  # indices of the held-out samples
    units: Units
    data: Dataset

    def along(self, path: RegularizationPath) -> tuple["Problem", GampResult]:
        """Return the problem with the best λ of a path, and the path's result at this λ."""
        data = self.data.replace(lam=float(path.lam[path.best]))
        return self._replace(data=data), path.results[path.best]

    def layer(self, Q: np.ndarray) -> Layer:
        """Return the layer with weights Q (d, r), in the units of the file."""
        return Layer(self.data.student, Q, self.data.positions * self.units.scale, self.units)


def _problem(options: argparse.Namespace) -> Problem:
    """Return the problem of a file: loaded, split, and standardised as the options require."""
    stored = load_arrays(options.data)
    tokens, outputs = as_tokens("tokens", stored.tokens), as_tokens("outputs", stored.outputs)
    train, test = split_held_out("--held-out", options.held_out, len(tokens), options.seed)
    x, y = tokens, outputs
    if len(test):
        require_same_shape(x, y)
        x, y = np.asarray(tokens)[train], np.asarray(outputs)[train]
    wanted = select(options, "lam", "rank") | {"penalty": build_penalty(options)}
    data, units = build_dataset(x, y, stored.positions, options.standardise, **wanted)
    return Problem(StoredArrays(tokens, outputs, stored.positions), train, test, units, data)


def _described(problem: Problem, options: argparse.Namespace) -> str:
    """Return a description of the arrays and of their preprocessing."""
    data, units = problem.data, problem.units
    n, L, d = problem.arrays.tokens.shape
    lines = [f"{n} sample{'s' * (n > 1)} of {L} token{'s' * (L > 1)} in {d} dimension{'s' * (d > 1)}"]
    if len(problem.test):
        lines[0] += f": {len(problem.train)} for training, {len(problem.test)} held out (seed {options.seed})"
    if repeated := n - distinct_samples(problem.arrays.tokens):
        overlap = "; held-out samples may also be training samples" if len(problem.test) else ""
        lines.append(f"duplicates: {repeated} samples have the same tokens as another sample{overlap}")
    if problem.arrays.positions is None:
        norms, chance = np.linalg.norm(data.source_means, axis=1), np.sqrt(data.traces[0] / data.alpha)
        lines.append(
            "positions: not in the file. The mean token at each place is used instead. "
            f"Its norm is {_list_numbers(norms)}; random tokens alone would give {_list_numbers(chance)}."
        )
    else:
        lines.append("positions: from the file, added to the tokens")
    if options.standardise:
        low, high = units.scale.min(), units.scale.max()
        constant = f" ({units.constant} constant coordinates are only shifted)" if units.constant else ""
        lines.append(
            "standardised: each coordinate of tokens and outputs is shifted by its mean over all tokens (up to "
            f"{np.abs(units.centre).max():.3g}) and divided by its standard deviation ({low:.3g} to {high:.3g})"
            f"{constant}. λ, weights and training loss are in these units, errors and attention in units of the file."
        )
    else:
        lines.append(f"not standardised: variance of the tokens at each place {_list_numbers(data.traces[0])}")
    return "\n".join(lines)


def _list_numbers(values: np.ndarray) -> str:
    """Return up to eight numbers of an array to three digits, separated by commas; only one if all are equal."""
    words = [f"{value:.3g}" for value in values]
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(words[:8]) + (", …" if len(words) > 8 else "")


def _fit(options: argparse.Namespace) -> int:
    """Run the command `fit` and return its exit status."""
    if options.survey and options.path is not None:
        raise check.fail("--survey", "--path", "a single λ, such as --lam")
    problem = _problem(options)
    out = options.out
    init = options.init if options.init in DATA_STARTS else load_weights(options.init)
    say(options, _described(problem, options))
    path = None
    if options.path is not None:
        path = path_of(problem.data, init, options)
        problem, init = problem.along(path)
        options.n_starts, options.lam = 1, float(path.lam[path.best])
    result = _run(problem.data, init, out, options)
    layer = problem.layer(result.Q)
    tokens, outputs, positions = problem.arrays
    attention, errors = layer.attention(tokens), layer.errors(tokens, outputs)
    train, test = (tokens, outputs), None
    if len(problem.test):
        x, y = np.asarray(tokens), np.asarray(outputs)
        train, test = (x[problem.train], y[problem.train]), (x[problem.test], y[problem.test])
    estimated = test_errors(problem.data, result, layer, train, test)
    arrays: dict[str, Any] = {
        "Q": result.Q,
        **{name: value for name, value in result.overlaps.arrays().items() if value.size},
        "train_loss": result.train_loss,
        "gradient_norm": result.gradient_norm,
        "status": result.status.value,
        "n_iter": result.n_iter,
        "is_minimum": result.is_minimum,
        "lowest_eigenvalue": result.lowest_eigenvalue,
        "attention": attention,
        "errors": errors,
        "errors_left_out": estimated.left_out,
        "lam": problem.data.lam,
        "held_out": problem.test,
        "positions": layer.positions,
        "centre": problem.units.centre,
        "scale": problem.units.scale,
    }
    write_archive("--out", out, "fit", arrays, options.force)
    in_training = format_to_error(*mean_and_error(errors[problem.train]))
    lines = [
        f"{'' if estimated.better else 'WARNING: '}{estimated.verdict}",
        *([] if estimated.better else [ALTERNATIVES]),
        result.message,
        f"training loss {result.train_loss:.6g}, gradient norm {result.gradient_norm:.2g}, lowest eigenvalue of the "
        f"Hessian {result.lowest_eigenvalue:.2g}; error of the training samples {in_training}",
        estimated.text,
    ]
    if result.surveys:
        lines.insert(-1, _about_surveys(result.surveys))
    if result.n_off_global:
        searched = " that were searched for other minima" if result.n_searched < len(problem.train) else ""
        off = f"{result.n_off_global} of {result.n_searched} samples{searched}"
        lines.append(f"{off} are not at the global minimum of their proximal step: other minima of the risk are near.")
    numbers = result.to_dict()
    numbers |= numbers["overlaps"] | {"result": out, "positions": "in the tokens" if positions is None else "given"}
    numbers |= {"standardised": options.standardise, "lam": problem.data.lam} | estimated.numbers
    numbers |= {"path": path_numbers(path)} if path is not None else {}
    report(options, "\n".join([*lines, f"result: {out}"]), numbers)
    if options.plot:
        plot_fit(result, attention, options.plot, options.force)
        say(options, f"picture: {options.plot}")
    return 0 if result.converged else 1


def _about_surveys(surveys: tuple[SurveyRecord, ...]) -> str:
    """Return a sentence on the surveys before message passing."""
    losses = f"lowest training loss {min(record.train_loss for record in surveys):.6g} before message passing"
    n_collapsed = sum(record.ending is SurveyEnd.COLLAPSED for record in surveys)
    n = f"{len(surveys)} survey{'s' * (len(surveys) > 1)}"
    return f"survey propagation: {n}, {n_collapsed} of which collapsed to a single minimum ({losses})"


def _run(data: Dataset, init: Any, out: str, options: argparse.Namespace) -> GampResult:
    """Return the result of message passing; if interrupted, write the weights with the lowest training loss."""
    seen: list[Any] = []

    def remember(t: int, state: Any, step: Any) -> None:
        if not seen or step.train_loss <= seen[2].train_loss:
            seen[:] = t, state.Q, step

    wanted = select(options, "tol", "max_iter", "escape", "seed", "n_starts", "survey")
    checkpoint = options.checkpoint and Checkpoint(options.checkpoint, options.checkpoint_every)
    try:
        return run_gamp(data, init, "exact", **wanted, checkpoint=checkpoint, callback=remember)
    except KeyboardInterrupt:
        if not seen:
            raise
        t, Q, step = seen
        arrays = {"Q": Q, "gradient_norm": step.gradient_norm, "status": "interrupted", "n_iter": t}
        write_archive("--out", out, "fit", arrays | {"train_loss": step.train_loss}, options.force)
        remedy = f"the weights of iteration {t} are in {out}: --init {out} with another --out continues from them"
        raise KeyboardInterrupt(f"interrupted, {remedy}") from None


def add_law(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `law`."""
    command = commands.add_parser(
        "law", help="compare your arrays with the assumptions of the theory, and predict errors"
    )
    add = command.add_argument
    add("data", metavar="DATA", help="arrays tokens (n,L,d), outputs and optionally positions, as for fit")
    add("--teacher", metavar="FILE.npz", help="weights Q of a teacher, such as fit writes (default: drawn at random)")
    add("--alphas", type=float, nargs="+", metavar="A", help="predict errors at these α = n/d")
    add("--lam", type=float, default=0.01, help="ridge penalty of the prediction (default 0.01)")
    add("--noise", type=float, help="score noise of the prediction (default: from the outputs)")
    add("--classes", type=_classes, default=1, help="classes of a token: a number or auto (default 1)")
    add("--standardise", action="store_true", help="as for fit")
    add("--seed", type=int, default=0, help="seed of the search for classes (default 0)")
    command.set_defaults(run=_law)
    return command


def _classes(text: str) -> int | str:
    """Return the value of --classes: a number, or "auto"."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"needs a number of classes >= 1, or auto, got {text!r}")
    return int(text)


def _law(options: argparse.Namespace) -> int:
    """Run the command `law` and return its exit status."""
    alphas = [check.real("--alphas", alpha, low=0, strict=True) for alpha in options.alphas or []]
    stored = load_arrays(options.data)
    weights = None if options.teacher is None else load_weights(options.teacher)
    data, _ = build_dataset(*stored, options.standardise, lam=options.lam)
    law = law_of(data, weights, **select(options, "classes", "noise", "seed"))
    solved = [solve_state_evolution(law.model, alpha, rtol=1e-2, stability=False) for alpha in alphas]
    lines, numbers = [str(law)], law.to_dict()
    if solved:
        rows = [["  α", "ε_t", "ε_g", "state evolution"]]
        for alpha, point in zip(alphas, solved, strict=True):
            rows.append([f"  {alpha:g}", f"{point.train_loss:.4g}", f"{point.test_error:.4g}", point.status.value])
        lines += ["predicted:", format_text([*rows])]
        numbers["predicted"] = [point.to_dict() | {"alpha": alpha} for alpha, point in zip(alphas, solved, strict=True)]
    report(options, "\n".join(lines), numbers)
    return 0 if all(point.converged for point in solved) else 1
