"""Errors of predictions without attention, to compare with a layer: zero, the mean output, and a linear layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.display import Rows, count_noun, format_to_error
from gamp_attention._core.numerics import check_squarable, ignore_float_errors, mean_and_error
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.layer import Units, require_same_shape
from gamp_attention.data.stores import Tokens, as_tokens, read_rows, token_blocks
from gamp_attention.results import Result, add_display

LABELS = {"linear": "the linear layer y = Wx", "mean": "the mean output", "zero": "the output y = 0"}
CLEAR = 2.0  # standard errors by which two mean errors must differ to be called different
RIDGE = 1e-4  # λ of the linear layer, as in `fit_linear_baseline`
FLOOR = 1e-12  # smallest λ relative to the mean square of the tokens: below it, rounding makes the equations singular
BLOCK = 512  # samples whose equations are solved at a time


@add_display
class ReferenceVerdict(NamedTuple):
    """Comparison of a layer with the predictions of `reference_errors`, on the same samples.

    Attributes
    ----------
    better : whether the layer has a lower error than every reference, by two standard errors at least.
    worse_than : names of the references with a lower error than the layer, by two standard errors at least.
    not_better_than : names of the references whose error differs from the layer's by less.
    difference : (3,) mean error of each reference minus the mean error of the layer.
    difference_error : (3,) standard errors of these differences, over the differences of single samples, with the
        covariance of the errors of different samples.
    message : the outcome as a sentence.

    Examples
    --------
    A layer that predicts as well as the mean output:

    >>> import gamp_attention as ga
    >>> references = ga.reference_errors(ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0))
    >>> verdict = references.verdict(references.errors[1])
    >>> verdict.better, verdict.worse_than, verdict.not_better_than
    (False, ('linear', 'zero'), ('mean',))
    """

    better: bool
    worse_than: tuple[str, ...]
    not_better_than: tuple[str, ...]
    difference: np.ndarray
    difference_error: np.ndarray
    message: str


@dataclass(frozen=True, eq=False)
class ReferenceErrors(Result):
    """Test errors of three predictions that need no attention.

    Attributes
    ----------
    names : "linear", "mean" and "zero": the linear layer y = Wx, the mean output, and the output y = 0.
    errors : (3, n) ‖y − f(x)‖²/(dL) of each sample.
    test_error, test_error_error : (3,) means of `errors`, which estimate the test error ε_g, and standard errors.
    left_out : whether each sample was left out of the fit by leave-one-out; otherwise the samples are new.
    """

    names: tuple[str, ...]
    errors: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    left_out: bool

    @ignore_float_errors
    def verdict(self, errors: ArrayLike, covariance: float = 0.0) -> ReferenceVerdict:
        """Compare a layer with the references.

        Parameters
        ----------
        errors : (n,) ‖y − f(x)‖²/(dL) of the layer for the same samples, for example `leave_one_out(...).errors`.
        covariance : part of the squared standard error of their mean that is due to the covariance of different
            samples, `leave_one_out(...).covariance`; 0 for new samples. The references depend on so few numbers that
            their leave-one-out errors are independent.

        Returns
        -------
        ReferenceVerdict

        Raises
        ------
        ValueError : if `errors` has another length than the references, or entries whose squares are not finite; if
            `covariance` is negative.
        """
        of_layer = check_squarable("errors", errors, (self.errors.shape[1],))
        pairs = [mean_and_error(reference - of_layer) for reference in self.errors]
        covariance = check.real("covariance", covariance, low=0)
        difference, spread = np.array([mean for mean, _ in pairs]), np.array([error for _, error in pairs])
        spread = np.sqrt(spread**2 + covariance)
        margin = CLEAR * np.nan_to_num(spread, nan=np.inf)  # a single sample shows no difference
        worse = tuple(name for name, lower in zip(self.names, difference < -margin, strict=True) if lower)
        better = difference > margin
        unclear = tuple(name for k, name in enumerate(self.names) if not better[k] and name not in worse)
        return ReferenceVerdict(bool(better.all()), worse, unclear, difference, spread, _verdict(worse, unclear))

    def _rows(self) -> Rows:
        how = "leave-one-out" if self.left_out else "new samples"
        rows: Rows = [f"ReferenceErrors: {count_noun(self.errors.shape[1], 'sample')}, {how}"]
        numbers = zip(self.names, self.test_error, self.test_error_error, strict=True)
        return rows + [[f"  {LABELS[name]}", format_to_error(float(m), float(error))] for name, m, error in numbers]


def _verdict(worse: tuple[str, ...], unclear: tuple[str, ...]) -> str:
    if not worse and not unclear:
        return f"The layer predicts better than {_list_labels(tuple(LABELS))}."
    text = f"The layer predicts worse than {_list_labels(worse)}." if worse else ""
    if unclear:
        also = "; it is" if worse else "The layer is"
        text = f"{text.removesuffix('.')}{also} not clearly better than {_list_labels(unclear)}."
    return text


def _list_labels(names: tuple[str, ...]) -> str:
    *first, last = (LABELS[name] for name in names)
    return f"{', '.join(first)} and {last}" if first else last


@ignore_float_errors
def reference_errors(
    data: Dataset, tokens: ArrayLike | None = None, outputs: ArrayLike | None = None, *, units: Units | None = None
) -> ReferenceErrors:
    """Estimate the test errors of zero, of the mean output and of a linear layer, to compare with a trained layer.

    Without new samples, each sample is left out of the fit exactly (leave-one-out in closed form). With the mean ȳ of
    n outputs, the residual of a sample is (y − ȳ) n/(n − 1). The linear layer y = Wx, with W an (L, L) matrix that
    mixes tokens, minimizes Σ‖y − Wx‖²/(2d) + (λ/2)‖W‖² with λ = 1e-4, as `fit_linear_baseline`; with
    N = λ + Σ xxᵀ/d and the residual e = y − Wx of a sample in the fit, its residual out of the fit is

        e + (e xᵀ/d) (N − xxᵀ/d)⁻¹ x      (Sherman, Morrison and Woodbury).

    Parameters
    ----------
    data : the samples that the mean and the linear layer are fitted to. The linear layer uses tokens without positions.
    tokens, outputs : (m, L, d) new samples to evaluate the predictions at, in place of leave-one-out.
    units : center c and scale s, if `data` holds standardized arrays (x − c)/s. Errors are then in the units of the
        original arrays, and so are `tokens` and `outputs`; y = 0 means zero in these units.

    Returns
    -------
    ReferenceErrors

    Raises
    ------
    TypeError : if `data` has labels in place of outputs.
    ValueError : if only one of `tokens` and `outputs` is given, or if their shapes do not match the data.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(omega=0.1, sigma=0.8), d=100, alpha=1.5, seed=0)
    >>> references = ga.reference_errors(data)
    >>> references.names
    ('linear', 'mean', 'zero')
    >>> layer = ga.leave_one_out(data, ga.run_gamp(data))
    >>> references.verdict(layer.errors, layer.covariance).better
    True
    """
    if require_dataset(data).is_labelled:
        raise check.fail("data", data, "samples with outputs, not labels", TypeError)
    if (tokens is None) != (outputs is None):
        missing = "tokens" if tokens is None else "outputs"
        raise ValueError(f"{missing}: needed together with {'outputs' if tokens is None else 'tokens'}, got None")
    n, L, d = data.tokens.shape
    units = Units.raw(d) if units is None else units
    if not isinstance(units, Units):
        raise check.fail("units", units, "the center and scale of standardized data, or None", TypeError)
    normal, cross, mean = np.zeros((L, L)), np.zeros((L, L)), np.zeros((L, d))
    for x, y in _blocks(data.tokens, data.read_outputs):
        x_t = x.transpose(0, 2, 1)
        normal += (x @ x_t).sum(axis=0) / d
        cross += (y @ x_t).sum(axis=0) / d
        mean += y.sum(axis=0) / n
    ridge = max(RIDGE, FLOOR * float(np.trace(normal)) / L)
    normal += ridge * np.eye(L)
    W = np.linalg.solve(normal, cross.T).T

    def mean_squares(y: np.ndarray, of_linear: np.ndarray, of_mean: np.ndarray) -> np.ndarray:
        of_zero = y + units.center / units.scale
        return np.stack([np.mean((part * units.scale) ** 2, axis=(1, 2)) for part in (of_linear, of_mean, of_zero)])

    parts = []
    if tokens is None:
        mean, grown = (mean, n / (n - 1)) if n > 1 else (0 * mean, 1.0)  # the mean of no samples is taken to be zero
        for x, y in _blocks(data.tokens, data.read_outputs):
            residual = y - W @ x
            x_t = x.transpose(0, 2, 1)
            without = normal - x @ x_t / d
            residual += (residual @ x_t / d) @ np.linalg.solve(without, x)
            parts.append(mean_squares(y, residual, (y - mean) * grown))
    else:
        new, targets = as_tokens("tokens", tokens), as_tokens("outputs", outputs)
        require_same_shape(new, targets)
        if new.shape[1:] != (L, d):
            raise check.fail_words("tokens", f"shape {new.shape}", f"shape (m, {L}, {d}), as in data")
        for x, y in _blocks(new, partial(read_rows, targets)):
            x, y = units.standardize(x), units.standardize(y)
            parts.append(mean_squares(y, y - W @ x, y - mean))
    errors = np.concatenate(parts, axis=1)
    if not np.isfinite(errors).all():
        raise ValueError("tokens, outputs: need products within the range of doubles, got products that overflow")
    means, spread = np.array([mean_and_error(of_reference) for of_reference in errors]).T
    return ReferenceErrors(tuple(LABELS), errors, means, spread, tokens is None)


def _blocks(tokens: Tokens, read_outputs: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield tokens and outputs of consecutive samples, in double precision."""
    for rows, _, block in token_blocks(tokens):
        for first in range(0, len(block), BLOCK):
            x = block[first : first + BLOCK].astype(float)
            begin = rows.start + first
            yield x, np.asarray(read_outputs(slice(begin, begin + len(x))), dtype=float)
