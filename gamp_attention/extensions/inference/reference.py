"""Errors of predictions without attention, to compare with a layer: zero, the mean output, and two linear predictions.

The linear layer mixes the tokens of a sample. Ridge regression predicts all L d numbers of the outputs from all L d
numbers of the tokens, so that it contains every linear prediction. For the centered tokens X = U S Vᵀ (n, L d), the
residuals of samples that are left out of the fit are, with w = s²/(s² + λ),

    (Y − U w UᵀY)_μ/(1 − 1/n − Σ_k U_μk² w_k)

U and s follow from the smaller one of the matrices XXᵀ and XᵀX.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, count_noun, format_to_error
from gamp_attention._tools.numerics import check_squarable, guard_call
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.train.standard_units import require_same_shape
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.layer import Units
from gamp_attention.problem.stores import Tokens, as_tokens, read_rows, token_blocks
from gamp_attention.results import Result, add_display

LABELS = {
    "linear": "the linear layer y = Wx", "mean": "the mean output", "zero": "the output y = 0",
    "ridge": "ridge regression on all tokens",
}  # fmt: skip
FLOOR = 1e-12  # smallest λ relative to the mean square of the tokens: below it, rounding makes the equations singular
LAMS = np.geomspace(1e-6, 1e3, 16)  # values of λ of ridge regression, relative to the mean eigenvalue of XXᵀ


@add_display
class ReferenceVerdict(NamedTuple):
    """Comparison of a layer with the predictions of `reference_errors`, on the same samples.

    Attributes
    ----------
    better : whether the layer has a lower error than every reference, by two standard errors at least.
    worse_than : names of the references with a lower error than the layer, by two standard errors at least.
    not_better_than : names of the references whose error differs from the layer's by less.
    difference : (k,) mean error of each reference minus the mean error of the layer.
    difference_error : (k,) standard errors of these differences, over the differences of single samples, with the
        covariance of the errors of different samples.
    message : the outcome as a sentence.

    Examples
    --------
    A layer that predicts as well as the mean output:

    >>> import gamp_attention as ga
    >>> references = ga.reference_errors(ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0))
    >>> verdict = references.verdict(references.errors[1])
    >>> verdict.better, verdict.worse_than, verdict.not_better_than
    (False, ('linear', 'zero', 'ridge'), ('mean',))
    """

    better: bool
    worse_than: tuple[str, ...]
    not_better_than: tuple[str, ...]
    difference: np.ndarray
    difference_error: np.ndarray
    message: str


@dataclass(frozen=True, eq=False)
class ReferenceErrors(Result):
    """Test errors of predictions that need no attention.

    Attributes
    ----------
    names : (k,) "linear", "mean", "zero" and "ridge": the linear layer y = Wx, the mean output, the output y = 0, and,
        unless it is `skipped`, ridge regression from all tokens to all outputs.
    errors : (k, n) ‖y − f(x)‖²/(dL) of each sample.
    test_error, test_error_error : (k,) means of `errors`, which estimate the test error ε_g, and standard errors.
    left_out : whether each sample was left out of the fit by leave-one-out; otherwise the samples are new.
    covariance : (k,) part of the squared standard errors that is due to the covariance of the errors of different
        samples by leave-one-out, as `LeaveOneOut.covariance`. Only ridge regression depends on enough numbers that it
        matters.
    skipped : the reason for which ridge regression was not computed; empty if it was.
    """

    names: tuple[str, ...]
    errors: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    left_out: bool
    covariance: np.ndarray
    skipped: str = ""

    @guard_call
    def verdict(self, errors: ArrayLike, covariance: float = 0.0) -> ReferenceVerdict:
        """Compare a layer with the references.

        Parameters
        ----------
        errors : (n,) ‖y − f(x)‖²/(dL) of the layer for the same samples, for example `leave_one_out(...).errors`.
        covariance : part of the squared standard error of their mean that is due to the covariance of different
            samples, `leave_one_out(...).covariance`; 0 for new samples.

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
        spread = np.sqrt(spread**2 + covariance + self.covariance)
        margin = 2 * np.nan_to_num(spread, nan=np.inf)  # two standard errors; a single sample shows no difference
        worse = tuple(name for name, lower in zip(self.names, difference < -margin, strict=True) if lower)
        better = difference > margin
        unclear = tuple(name for k, name in enumerate(self.names) if not better[k] and name not in worse)
        message = _verdict_sentence(self.names, worse, unclear)
        return ReferenceVerdict(bool(better.all()), worse, unclear, difference, spread, message)

    def _rows(self) -> Rows:
        how = "leave-one-out" if self.left_out else "new samples"
        rows: Rows = [f"ReferenceErrors: {count_noun(self.errors.shape[1], 'sample')}, {how}"]
        numbers = zip(self.names, self.test_error, self.test_error_error, strict=True)
        rows += [[f"  {LABELS[name]}", format_to_error(float(m), float(error))] for name, m, error in numbers]
        return [*rows, f"  {self.skipped}"] if self.skipped else rows


def _verdict_sentence(names: tuple[str, ...], worse: tuple[str, ...], unclear: tuple[str, ...]) -> str:
    if not worse and not unclear:
        return f"The layer predicts better than {_list_labels(names)}."
    text = f"The layer predicts worse than {_list_labels(worse)}." if worse else ""
    if unclear:
        also = "; it is" if worse else "The layer is"
        text = f"{text.removesuffix('.')}{also} not clearly better than {_list_labels(unclear)}."
    return text


def _list_labels(names: tuple[str, ...]) -> str:
    *first, last = (LABELS[name] for name in names)
    return f"{', '.join(first)} and {last}" if first else last


@guard_call
def reference_errors(
    data: Dataset, tokens: ArrayLike | None = None, outputs: ArrayLike | None = None, *, units: Units | None = None
) -> ReferenceErrors:
    """Estimate the test errors of zero, of the mean output and of two linear predictions, to compare with a layer.

    Without new samples, each sample is left out of the fit exactly (leave-one-out in closed form). With the mean ȳ of
    n outputs, the residual of a sample is (y − ȳ) n/(n − 1). The linear layer y = Wx, with W an (L, L) matrix that
    mixes tokens, minimizes Σ‖y − Wx‖²/(2d) + (λ/2)‖W‖² with λ = 1e-4, as `fit_linear_baseline`; with
    N = λ + Σ xxᵀ/d and the residual e = y − Wx of a sample in the fit, its residual out of the fit is

        e + (e xᵀ/d) (N − xxᵀ/d)⁻¹ x      (Sherman, Morrison and Woodbury).

    Ridge regression, with an intercept, predicts all L d numbers of the outputs from all L d numbers of the tokens. Its
    λ has the smallest leave-one-out error of 16 values, as `RidgeCV` of scikit-learn (of 256 random samples if there
    are more). It is skipped if n and L d are above 2000, or n L d is above 5·10⁷.

    Parameters
    ----------
    data : the samples that the predictions are fitted to. They use tokens without positions.
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
    ('linear', 'mean', 'zero', 'ridge')
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
    for x, y in _pair_blocks(data.tokens, data.read_outputs):
        x_t = x.transpose(0, 2, 1)
        normal += (x @ x_t).sum(axis=0) / d
        cross += (y @ x_t).sum(axis=0) / d
        mean += y.sum(axis=0) / n
    ridge = max(1e-4, FLOOR * float(np.trace(normal)) / L)
    normal += ridge * np.eye(L)
    W = np.linalg.solve(normal, cross.T).T

    def mean_squares(y: np.ndarray, of_linear: np.ndarray, of_mean: np.ndarray) -> np.ndarray:
        of_zero = y + units.center / units.scale
        return np.stack([np.mean((part * units.scale) ** 2, axis=(1, 2)) for part in (of_linear, of_mean, of_zero)])

    skipped, covariance = _about_size(n, L * d), np.zeros(3)
    ridge = None if skipped else _Ridge(data, units.scale)
    parts, of_ridge = [], []
    if tokens is None:
        mean, grown = (mean, n / (n - 1)) if n > 1 else (0 * mean, 1.0)  # the mean of no samples is taken to be zero
        for x, y in _pair_blocks(data.tokens, data.read_outputs):
            residual = y - W @ x
            x_t = x.transpose(0, 2, 1)
            without = normal - x @ x_t / d
            residual += (residual @ x_t / d) @ np.linalg.solve(without, x)
            parts.append(mean_squares(y, residual, (y - mean) * grown))
        if ridge is not None:
            errors_of_ridge, of_pairs = ridge.left_out()
            of_ridge, covariance = [errors_of_ridge], np.append(covariance, of_pairs)
    else:
        new, targets = as_tokens("tokens", tokens), as_tokens("outputs", outputs)
        require_same_shape(new, targets)
        if new.shape[1:] != (L, d):
            raise check.fail_words("tokens", f"shape {new.shape}", f"shape (m, {L}, {d}), as in data")
        for x, y in _pair_blocks(new, partial(read_rows, targets)):
            x, y = units.standardize(x), units.standardize(y)
            parts.append(mean_squares(y, y - W @ x, y - mean))
            of_ridge += [] if ridge is None else [ridge.errors(x, y)]
        covariance = np.zeros(3 + (ridge is not None))
    errors = np.concatenate(parts, axis=1)
    if of_ridge:
        errors = np.vstack([errors, np.concatenate(of_ridge)])
    if not np.isfinite(errors).all():
        raise ValueError("tokens, outputs: need products within the range of doubles, got products that overflow")
    means, spread = np.array([mean_and_error(of_reference) for of_reference in errors]).T
    spread, names = np.sqrt(spread**2 + covariance), tuple(LABELS)[: len(errors)]
    return ReferenceErrors(names, errors, means, spread, tokens is None, covariance, skipped)


def _about_size(n: int, size: int, max_entries: float = 5e7, max_size: int = 2000) -> str:
    """Return the reason to skip ridge regression from and to `size` numbers, or an empty string.

    It needs several arrays of n · size entries, and a time in proportion to the cube of the smaller number.
    """
    if n * size > max_entries:
        return f"{LABELS['ridge']} is skipped: it needs n L d ≤ {max_entries:.0e}, got {n * size:.1e}"
    if min(n, size) > max_size:
        return f"{LABELS['ridge']} is skipped: it needs n or L d ≤ {max_size}, got {n} and {size}"
    return ""


class _Ridge:
    """Ridge regression from the centered tokens (n, L d) to the outputs (n, L d) times `scale` (d,).

    The choice of λ and the covariances use at most `selected` random samples.
    """

    def __init__(self, data: Dataset, scale: np.ndarray, selected: int = 256) -> None:
        pairs, (n, L, d) = list(_pair_blocks(data.tokens, data.read_outputs)), data.tokens.shape
        self.scale = scale
        X = np.concatenate([x.reshape(len(x), -1) for x, _ in pairs])
        Y = np.concatenate([(y * scale).reshape(len(y), -1) for _, y in pairs])
        self.means = X.mean(axis=0), Y.mean(axis=0) if n > 1 else np.zeros(L * d)
        X -= self.means[0]
        Y -= self.means[1]
        s, U = np.linalg.eigh(X @ X.T if n <= L * d else X.T @ X)
        kept = s > FLOOR * s[-1]
        s, U = s[kept], U[:, kept]
        if n > L * d:
            U = X @ U / np.sqrt(s)
        self.X, self.Y, self.s, self.U, self.T = X, Y, s, U, U.T @ Y
        self.chosen = np.random.default_rng(0).permutation(n)[:selected]
        lams = LAMS * float(s.sum()) / min(n, L * d) if len(s) else np.ones(1)
        self.lam = float(min(lams, key=lambda lam: float(np.sum(self.residuals(self.chosen, lam)[0] ** 2))))

    def residuals(self, rows: np.ndarray, lam: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the residuals (m, L d) of samples (m,) that are left out of the fit, and 1 − H_μμ (m,)."""
        n, w = len(self.X), self.s / (self.s + lam)
        slack = 1 - 1 / n - self.U[rows] ** 2 @ w if n > 1 else np.ones(1)
        return (self.Y[rows] - (self.U[rows] * w) @ self.T) / slack[:, None], slack

    def left_out(self) -> tuple[np.ndarray, float]:
        """Return the errors (n,) by leave-one-out, and the part of the variance of their mean due to pairs of samples.

        See covariance.py; Δ_μν is the exact change of the error of sample μ if sample ν is left out too. Both residuals
        then solve an equation with the 2 × 2 block of 1 − H, with the hat matrix H, in closed form.
        """
        n, size = self.X.shape
        errors = np.mean(self.residuals(np.arange(n), self.lam)[0] ** 2, axis=1)
        (R, slack), U = self.residuals(self.chosen, self.lam), self.U[self.chosen]
        H, products = (U * (self.s / (self.s + self.lam))) @ U.T + 1 / n, R @ R.T
        squares, both = np.diag(products).copy(), np.outer(slack, slack)
        after = (slack[:, None] ** 2 * squares[:, None] + 2 * slack[:, None] * H * products + H**2 * squares) / size
        after *= (slack / np.maximum(both - H**2, FLOOR * both)) ** 2  # copies of a sample have both = H²
        changes = after - squares[:, None] / size
        np.fill_diagonal(changes, 0.0)
        m = len(changes)
        return errors, max(float(np.sum(changes * changes.T)) * (n - 1) / (n * max(m * (m - 1), 1)), 0.0)

    def errors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the errors (m,) of new samples (m, L, d)."""
        fields = (x.reshape(len(x), -1) - self.means[0]) @ (self.X.T @ self.U) / (self.s + self.lam)
        return np.mean(((y * self.scale).reshape(len(y), -1) - self.means[1] - fields @ self.T) ** 2, axis=1)


def _pair_blocks(tokens: Tokens, read_outputs: Any, size: int = 512) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield tokens and outputs of at most `size` consecutive samples, in double precision."""
    for rows, _, block in token_blocks(tokens):
        for first in range(0, len(block), size):
            x = block[first : first + size].astype(float)
            begin = rows.start + first
            yield x, np.asarray(read_outputs(slice(begin, begin + len(x))), dtype=float)
