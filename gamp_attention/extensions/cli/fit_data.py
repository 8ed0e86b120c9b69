"""The data of the command `gamp-attention fit`: reading, splitting and standardizing arrays, and their description."""

import argparse
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.numerics import Stream, generator
from gamp_attention.extensions.cli.options import build_penalty
from gamp_attention.extensions.cli.output import indent, select
from gamp_attention.extensions.inference.path_training import require_groups
from gamp_attention.extensions.inference.paths import RegularizationPath
from gamp_attention.extensions.train.loading import StoredArrays, load_arrays, load_labels
from gamp_attention.extensions.train.standard_units import build_dataset, require_same_shape
from gamp_attention.gamp.result import GampResult
from gamp_attention.problem.dataset import ZERO_VARIANCE, Dataset
from gamp_attention.problem.layer import Layer, Units
from gamp_attention.problem.losses.heads import with_heads
from gamp_attention.problem.stores import as_tokens, distinct_samples, token_blocks


class FitProblem(NamedTuple):
    """Samples of a file, their split and units, and the dataset for training."""

    arrays: StoredArrays
    train: np.ndarray  # indices of the training samples
    test: np.ndarray  # indices of the held-out samples
    units: Units
    data: Dataset
    groups: np.ndarray | None  # (n_train,) numbers of the groups of the training samples, if --groups is given

    def along(self, path: RegularizationPath) -> tuple["FitProblem", GampResult]:
        """Return the problem with the best λ of a path, and the path's result at this λ."""
        data = self.data.replace(lam=float(path.lam[path.best]))
        return self._replace(data=data), path.results[path.best]

    def layer(self, Q: np.ndarray) -> Layer:
        """Return the layer with weights Q (d, r), in the units of the file."""
        return Layer(self.data.student, Q, self.data.positions * self.units.scale, self.units)

    def layer_arrays(self, layer: Layer, options: argparse.Namespace) -> dict[str, Any]:
        """Return the arrays of a result file that describe a layer and its training."""
        return {
            "Q": layer.Q, "positions": layer.positions, "center": self.units.center, "scale": self.units.scale,
            "heads": options.heads, "lam": self.data.lam, "held_out": self.test,
        }  # fmt: skip


def load_problem(options: argparse.Namespace) -> FitProblem:
    """Return the problem of a file: loaded, split, and standardized as the options require."""
    stored = load_arrays(options.data)
    tokens, outputs = as_tokens("tokens", stored.tokens), as_tokens("outputs", stored.outputs)
    groups = None
    if options.groups is None:
        train, test = split_held_out("--held-out", options.held_out, len(tokens), options.seed)
    else:
        groups = require_groups(load_labels("--groups", options.data, options.groups), len(tokens), 2)
        parts = split_held_out("--held-out", options.held_out, groups.max() + 1, options.seed, "groups")
        train, test = (np.flatnonzero(np.isin(groups, part)) for part in parts)
        groups = groups[train]
    x, y = tokens, outputs
    if len(test):
        require_same_shape(x, y)
        x, y = np.asarray(tokens)[train], np.asarray(outputs)[train]
    heads, rank = check.integer("--heads", options.heads, low=1), check.integer("--rank", options.rank, low=1)
    layer = {"rank": heads * rank, "student": with_heads(None, heads)}
    wanted = select(options, "lam") | layer | {"penalty": build_penalty(options)}
    data, units = build_dataset(x, y, stored.positions, options.standardize, **wanted)
    return FitProblem(stored._replace(tokens=tokens, outputs=outputs), train, test, units, data, groups)


def split_held_out(name: str, fraction: Any, n: int, seed: Any, noun: str = "samples") -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of n samples for training, and of round(fraction n) random samples for tests, in order.

    `name` is the name of the argument `fraction` in errors, and `noun` the word for the counted objects.
    """
    fraction = check.real(name, fraction, low=0)
    count = round(fraction * n)
    if fraction and not 1 <= count < n:
        needs = f"a fraction of the {n} {noun}, below 1, that leaves at least one on each side, or 0 for none"
        is_count = 1 < fraction < n and fraction == round(fraction)
        remedy = f"; for {fraction:g} {noun} give {fraction / n:.3g}" if is_count else ""
        raise ValueError(f"{check.fail(name, fraction, needs)}{remedy}")
    order = generator(seed, Stream.HELD_OUT).permutation(n) if fraction else np.arange(n)
    return np.sort(order[count:]), np.sort(order[:count])


def describe_data(problem: FitProblem, options: argparse.Namespace) -> str:
    """Return the sections "Data" and "Assumptions": the arrays, their preprocessing, and the layer."""
    data, n_train, n_test = problem.data, len(problem.train), len(problem.test)
    n, L, d = problem.arrays.tokens.shape
    sizes = f"{count_noun(n, 'sample')} of {count_noun(L, 'token')} in {count_noun(d, 'dimension')}"
    lines = [f"{options.data} contains {sizes}."]
    if n_test:
        whole = " in whole groups" if options.groups else ""
        test = f"{count_noun(n_test, 'sample')}, selected at random{whole} with seed {options.seed}, "
        test += "is held out to test it" if n_test == 1 else "are held out to test it"
        lines.append(f"{count_noun(n_train, 'sample')} train{'s' * (n_train == 1)} the layer; {test}.")
    if problem.groups is not None:
        n_groups = count_noun(len(np.unique(problem.groups)), "group")
        lines.append(
            f"The array {options.groups} assigns the training samples to {n_groups}; --path and --held-out leave out "
            "whole groups. Leave-one-out leaves out single samples, and standard errors in the section 'Test error' "
            "assume independent samples: both are too small if samples of a group depend on each other."
        )
    elif "groups" in problem.arrays.names:
        lines.append("The array groups of the file is not used; --groups groups leaves out its groups as a whole.")
    if repeated := n - distinct_samples(problem.arrays.tokens):
        overlap = ", and held-out samples may also be training samples" if n_test else ""
        lines.append(
            f"{repeated} samples have the same tokens as another sample. The other sample trains the layer if one of "
            f"them is left out, so that leave-one-out errors may be too low{overlap}."
        )
    lines += _describe_ineffective(problem)
    given = f"The penalty of its weights is λ = {data.lam:g}"
    ridge = given if options.path is None else "Its penalty λ is chosen below"
    form, heads = "softmax(z zᵀ) x with z = x Q/√d", "one head"
    if options.heads > 1:
        form = "S x, where S is the mean of softmax(z zᵀ) over the heads and z = x Q/√d has the columns of a head"
        heads = f"{options.heads} heads with {count_noun(options.rank, 'column')} of Q each"
    layer = (
        f"The layer is f(x) = {form}: {heads}, queries equal to keys, no value matrix. Q has "
        f"{count_noun(data.rank, 'column')}. {ridge}{f', with an l1 penalty of {options.l1:g}' if options.l1 else ''}."
    )
    assumptions = [_describe_positions(problem), _describe_units(problem, options.standardize), layer]
    return "\n".join(["Data", indent(*lines), "Assumptions", indent(*assumptions)])


def _describe_ineffective(problem: FitProblem) -> list[str]:
    """Return a warning if no weights can change the outputs, because the tokens of each sample are equal."""
    tokens, positions = problem.arrays.tokens, problem.arrays.positions
    added = 0.0 if positions is None else positions
    all_zero = not any(np.any(x) for _, _, x in token_blocks(tokens))
    if any(np.ptp(x + added, axis=1).any() for _, _, x in token_blocks(tokens)):
        effect = "WARNING: All tokens are zero, so that the outputs of the layer depend on the positions only."
        return [effect] if all_zero else []
    if all_zero:
        why = "All tokens are zero"
    else:
        why = "The tokens of each sample are equal"
    return [f"WARNING: {why}, so that the outputs of the layer do not depend on its weights."]


def _describe_positions(problem: FitProblem) -> str:
    """Return sentences on the positions of the tokens."""
    data = problem.data
    if problem.arrays.positions is not None:
        return "The file contains positions, which are added to the tokens."
    norms, chance = np.linalg.norm(data.source_means, axis=1), np.sqrt(_token_variances(data) / data.alpha)
    return (
        "The file contains no positions. The mean token at each index is used instead, which changes neither the "
        f"training loss nor its minima. The norm of these means is {_list_numbers(norms)}; for tokens without "
        f"positions it would be about {_list_numbers(chance)}."
    )


def _describe_units(problem: FitProblem, standardized: bool) -> str:
    """Return sentences on the units of tokens and outputs."""
    units = problem.units
    if not standardized:
        variances = _list_numbers(_token_variances(problem.data))
        text = f"The arrays are used in their units. The variance of the tokens at each index is {variances}."
        return f"{text}{describe_spread(problem)}"
    low, high = units.scale.min(), units.scale.max()
    constant = f" Coordinates that are constant are only shifted: {units.constant} of them." if units.constant else ""
    return (
        "The arrays are standardized: each coordinate of tokens and outputs is shifted by its mean over all tokens (at "
        f"most {np.abs(units.center).max():.3g}) and divided by its standard deviation ({low:.3g} to {high:.3g})."
        f"{constant} λ, weights and training loss are in these units, errors and attention in the units of the file."
    )


def _token_variances(data: Dataset) -> np.ndarray:
    """Return the variances (L,) of the tokens at each index, which may be zero."""
    return np.where(data.traces[0] > ZERO_VARIANCE, data.traces[0], 0.0)


def describe_spread(problem: FitProblem, unequal: float = 10.0, shifted: float = 3.0, tiny: float = 1e-6) -> str:
    """Return sentences if coordinates have different units or a large mean, or λ is tiny for them, else nothing.

    --standardize is proposed from the ratio `unequal` of their standard deviations on, from a mean of `shifted`
    standard deviations on, and below the ratio `tiny` of λ and the mean square of the tokens.
    """
    stored = problem.arrays.tokens
    if not isinstance(stored, np.ndarray):  # on the disk
        return ""
    flat = stored.reshape(-1, stored.shape[2])
    flat = flat[:, np.ptp(flat, axis=0) > 0]
    means, scales = np.abs(flat.mean(axis=0)), flat.std(axis=0)
    if not len(scales):
        return ""
    if scales.max() < unequal * scales.min() and (means < shifted * scales).all():
        square = float(np.mean(flat**2))
        if problem.data.lam >= tiny * square:
            return ""
        return (
            f" λ is less than {tiny:g} of the mean square of the tokens, {square:.3g}, so that the run may not "
            "converge. Use --standardize if their scale has no meaning, or give a larger --lam."
        )
    return (
        f" The coordinates have standard deviations from {scales.min():.3g} to {scales.max():.3g} and means of up to "
        f"{means.max():.3g}. Unless these scales have a meaning, use --standardize: the layer has no "
        "bias, and coordinates with large numbers dominate its fields and its training loss."
    )


def _list_numbers(values: np.ndarray) -> str:
    """Return up to eight numbers of an array to three digits, separated by commas; only one if all are equal."""
    words = [f"{value:.3g}" for value in values]
    if len(set(words)) == 1:
        return words[0]
    return ", ".join(words[:8]) + (", …" if len(words) > 8 else "")
