"""`law_of`: the distribution of given tokens, with a known or fitted teacher, and departures from the assumptions.

A ridge and the losses depend on the d coordinates only through second moments at each eigenvalue of the covariance. So
the d coordinates are replaced by a few classes, which have the same second moments of positions, means and teacher.

Eigenvalues of a sample covariance Ŝ of N rows are more widely spread than the eigenvalues of Σ (Marchenko and Pastur,
1967). State evolution needs only averages that involve the resolvent of Σ, and these follow from the resolvent of Ŝ:
for large d and N

    Ŝ (Ŝ + z)⁻¹ ≃ Σ (Σ + κ)⁻¹,    κ = z / (1 − tr[Ŝ (Ŝ + z)⁻¹]/N)

between fixed vectors and in the trace. So the fractions of coordinates on a grid of eigenvalues are fitted to these
averages by non-negative least squares. Only the averages are determined, not the single eigenvalues. Products of
second moments are unbiased, with jackknife errors from ten parts of the samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.numerics import Stream, generator, guard_call, psd_root, raise_spectrum
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.attention import DotProductAttention
from gamp_attention.problem.penalties.standard import without_intercept
from gamp_attention.problem.stores import hash_samples
from gamp_attention.theory.models.coordinates import CoordinateLaw, require_seen
from gamp_attention.theory.models.data_law import VERDICTS, DataLaw, Departure
from gamp_attention.theory.models.glm import DEFAULT_LABELS, GLMModel
from gamp_attention.theory.models.mixtures import ShiftedTeacher
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.models.teachers import SoftmaxTeacher

N_PARTS = 10  # number of parts of the samples, for jackknife errors
MIN_TILT = 0.1  # smallest factor of squared entries along an eigenvector of the sample covariance
MAX_NUMBERS = 200_000_000  # maximum number of entries of the tokens from which the distribution is estimated
ROUNDING = 1e-12  # standard deviation of tokens, in units of their largest mean, below which they count as equal
SIGNIFICANCE = 4.0  # standard errors above which a mean or a difference counts as significant
GAUSSIAN = (0.2, 1.0), 0.0  # limits and assumption of an excess kurtosis
MEASURES: dict[str, tuple[tuple[float, float], float, str]] = {
    # limits above which a departure is mild or strong, value under the assumption, and meaning of a departure
    "dimensions / number of tokens": ((0.5, 1.0), 0.0, "few tokens, so the estimated spectrum is uncertain"),
    "correlation of tokens": ((0.05, 0.3), 0.0, "ignored by the model"),
    "differences between covariances": ((0.1, 0.5), 0.0, "all Σ_l are given one shape"),
    "largest eigenvalue / median eigenvalue": ((20.0, 200.0), 1.0,
        "a few directions dominate: fields fluctuate from data set to data set as if d were small"),
    "effective dimensions / d": ((0.9, 0.97), 1.0,
        "(tr Σ)²/(d tr Σ²): corrections to d → ∞ are of order 1/√(effective dimensions)"),
    "variance of norms / Gaussian variance": ((0.5, 3.0), 1.0,
        "samples have unequal weights: tr Σ_l/d is a poor approximation of ‖x_l‖²/d"),
    "kurtosis of random fields": (*GAUSSIAN, "fields of random weights are not Gaussian: universality fails"),
    "kurtosis along the leading direction": (*GAUSSIAN,
        "fields are not Gaussian if the weights align with this direction"),
    "kurtosis of the teacher's fields": (*GAUSSIAN, "the teacher's fields are not Gaussian"),
    "norm of the mean token": ((0.2, 3.0), 0.0,
        "means with norms of order one are included; a larger mean is a direction common to all fields"),
    "fraction of duplicate samples": ((0.01, 0.1), 0.0,
        "there are fewer distinct samples than α states, and held-out samples may occur in the training set"),
    "correlation of consecutive samples": ((0.02, 0.1), 0.0,
        "samples are not independent: the errors of all estimates are too small"),
}  # fmt: skip


@guard_call
def law_of(
    data: Dataset, teacher: ArrayLike | None = None, *, target: Any = None, noise: float | None = None
) -> DataLaw:
    """Estimate the distribution of tokens with a known or fitted teacher, and its departures from the assumptions.

    Eq. :eq:`resolvents`.

    Eigenvalues of the covariances, and the second moments of positions and teacher along them, are fitted to the
    resolvent of the sample covariance, whose bias by the finite number of tokens is known (Marchenko and Pastur, 1967).

    Parameters
    ----------
    data : the samples, at least 20.
    teacher : (d, t) weights, known or fitted, for example of a `GampResult`; the last row is the intercept if the data
        has one. If not given, the weights of the data's teacher; if it has none, independent random rows N(0, 1).
    target : the teacher's attention map T, or label model. If not given, the target of the model from which the data
        were sampled, or else the student's attention map, or the default label model of the loss.
    noise : s of targets (T + s N)x. If not given, it is estimated from the outputs: from the part that the teacher does
        not explain if its weights are known, else from the part outside the span of the tokens.

    Returns
    -------
    DataLaw

    Raises
    ------
    TypeError : if `data` is not a Dataset, an argument has the wrong type, or `target` is not given for a loss without
        a default label model.
    ValueError : if there are fewer than 20 samples; the tokens at an index are equal in all samples; `teacher` is not
        of shape (d, t); `noise` is negative; or labels depend on classes.

    Examples
    --------
    Predict a layer that learns from random weights, for given arrays:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal((300, 2, 100)) * np.linspace(0.2, 1, 100)
    >>> positions = np.outer([1, -1], np.full(100, 0.1))
    >>> law = ga.law_of(ga.Dataset(x, x, positions), noise=0.0)
    >>> law.strong, law.trace.round(1).tolist()
    ((), [0.4, 0.4])
    >>> ga.solve_state_evolution(law, 3.0, rtol=1e-2).converged
    True
    """
    if require_dataset(data).n_samples < 2 * N_PARTS:
        needs = f"at least {2 * N_PARTS} samples, to estimate errors"
        raise check.fail("data", count_noun(data.n_samples, "sample"), needs)
    if data.is_labelled and data.is_mixture:
        needs = "samples without classes; their model is data.model"
        raise check.fail_words("data", "targets that depend on classes", needs)
    if teacher is None and data.model is not None:
        require_seen(data.model.coordinates, "estimates with the data's teacher; pass other weights as `teacher`")
    rows = slice(None, None, -(-data.tokens.size // MAX_NUMBERS))
    d = data.dim - data.intercept  # state evolution has a separate equation for the intercept
    seen = SeenTokens(np.asarray(data.tokens)[rows, :, :d].astype(float, copy=False))
    weights = data.Q_star if teacher is None else check.array("teacher", teacher, (data.dim, "t"))
    shift = np.zeros(1) if weights is None else data.intercepts(weights)  # of the teacher's fields
    weights = None if weights is None else weights[:d] * np.sqrt(d / data.dim)
    target = _default_target(data, target)
    outside, s = 0.0, 0.0
    if not data.is_labelled and (data.dim > data.n_tokens or noise is None):
        outside, s = _residuals(data, rows, seen.tokens, weights, target)
    s = s if noise is None else check.real("noise", noise, low=0)
    parts = [part_covariances(seen.unit[:, l]) for l in range(data.n_tokens)]
    pooled = np.sum(parts, axis=0) / data.n_tokens
    n_rows = float((len(seen.tokens) - 1) * data.n_tokens)  # degrees of freedom: each token loses one to its mean
    resolvent = SpectrumFit().resolvent(pooled.mean(axis=0) * (len(seen.tokens) * data.n_tokens / n_rows), n_rows)
    spectrum, size = SpectrumFit().spectrum(resolvent), pair_products(pooled)
    # relative norms of the differences between each Σ_l and the pooled covariance
    shapes = [relative_size(pair_products(part - pooled), size) for part in parts] if len(parts) > 1 else []
    differ = any(shape.value > SIGNIFICANCE * shape.error for shape in shapes)
    gamma = token_eigenvalues(parts, spectrum) if differ else np.tile(spectrum.gamma[:, None], len(parts))
    means = seen.true_means(d / float(spectrum.weight @ spectrum.gamma**2))
    with check.rename(teacher="target", labels="target"):
        coordinates = _coordinates(data, seen, weights, means, resolvent, spectrum, gamma)
        if weights is not None and means.any():
            shift = shift + seen.means @ weights / np.sqrt(d)
        model = _model(data, coordinates, ShiftedTeacher(target, shift) if shift.any() else target, s)
    departures, law = _departures(seen, weights, resolvent, spectrum, size, shapes, differ), coordinates
    return DataLaw(
        law.weight, law.gamma, law.tau, law.teacher_mean, law.teacher_cov, model=model, departures=departures,
        correlation=seen.correlation, noise=s, outside=outside, n_samples=len(seen.tokens),
    )  # fmt: skip


def _departures(
    seen: SeenTokens, weights: np.ndarray | None, resolvent: SampleResolvent, spectrum: Spectrum, size: np.ndarray,
    shapes: list[Estimate], differ: bool,
) -> tuple[Departure, ...]:  # fmt: skip
    """Return all departures of tokens from their estimated distribution; arguments as in `law_of`.

    A departure is mild or strong if it exceeds its standard errors and the limits of `MEASURES`.
    """
    n, L, d = seen.tokens.shape
    measured = {"dimensions / number of tokens": Estimate(d / (n * L))}
    if shapes:
        measured["correlation of tokens"] = seen.largest_correlation()
        measured["differences between covariances"] = max(shapes)
    norms, gaussian = np.einsum("nld,nld->nl", seen.unit, seen.unit) / d, 2 * mean_product(size) / d**2
    median, random = spectrum.eigenvalue_indices(1), generator(0, Stream.PERTURBATIONS).standard_normal((d, 64))
    measured |= {
        "largest eigenvalue / median eigenvalue": Estimate((spectrum.gamma[-1] / spectrum.gamma[median]).item()),
        "effective dimensions / d": Estimate(d / max(mean_product(size), 1e-300)),  # tr Σ = d: (tr Σ)²/(d tr Σ²)
        "variance of norms / Gaussian variance": jackknife(norms, (1, 2), lambda x, xx: (xx - x**2) / gaussian),
        "kurtosis of random fields": _kurtosis(seen.unit @ random),
        "kurtosis along the leading direction": _kurtosis(seen.unit @ resolvent.vectors[:, -1:]),
    }
    if weights is not None:
        measured["kurtosis of the teacher's fields"] = _kurtosis(seen.unit @ weights)
    products = np.einsum("nld,nld->n", seen.unit[1:], seen.unit[:-1]) / (L * d)  # of consecutive samples
    measured |= {
        "norm of the mean token": seen.largest_mean(),
        "fraction of duplicate samples": Estimate(1 - len(np.unique(hash_samples(seen.tokens))) / n),
        "correlation of consecutive samples": Estimate(*mean_and_error(products)),
    }
    # standard errors for Gaussian tokens; heavy tails make the jackknife errors large, too
    second, fourth = (float(spectrum.weight @ spectrum.gamma**power) for power in (2, 4))
    kurtosis_of_norms = 12 * fourth / (d * max(second, 1e-300) ** 2)
    by_chance = dict.fromkeys((name for name in MEASURES if name.startswith("kurtosis")), float(np.sqrt(24 / (n * L))))
    by_chance["variance of norms / Gaussian variance"] = float(np.sqrt((2 + kurtosis_of_norms) / (n * L)))
    departures = []
    for name, (value, error) in measured.items():
        limits, expected, meaning = MEASURES[name]
        if differ and name == "differences between covariances":
            meaning = "each Σ_l has its eigenvalues along common vectors"
        difference = abs(value - expected)
        # a difference counts above three of either standard error; unknown errors (NaN) count as zero
        significant = not (3 * error > difference and 3 * by_chance.get(name, np.inf) > difference)
        step = sum(significant and difference > limit for limit in limits)
        departures.append(Departure(name, value, error, expected, VERDICTS[step], meaning))
    return tuple(departures)


@dataclass(frozen=True, eq=False)
class SeenTokens:
    """Tokens (n, L, d), and statistics over all samples."""

    tokens: np.ndarray

    @cached_property
    def means(self) -> np.ndarray:
        """Mean tokens (L, d)."""
        return self.tokens.mean(axis=0)

    @cached_property
    def scales(self) -> np.ndarray:
        """Variances tr Σ/d (L,) of the tokens; raises if tokens are equal up to rounding, as for a padding."""
        n, L, d = self.tokens.shape
        scales = np.einsum("nld,nld->l", *[self.tokens - self.means] * 2) / (d * max(n - 1, 1))
        constant = np.flatnonzero(scales <= (ROUNDING * np.abs(self.means).max(axis=1)) ** 2)
        if len(constant):
            needs = "tokens that vary between samples at each index, as state evolution assumes"
            got = f"equal tokens at index {constant[0]} (of L = {L}) in all samples"
            raise ValueError(f"{check.fail_words('data', got, needs)}; leave this token out of tokens and outputs")
        return scales

    @cached_property
    def unit(self) -> np.ndarray:
        """Centered tokens (n, L, d) divided by √(tr Σ/d)."""
        return (self.tokens - self.means) / np.sqrt(self.scales)[:, None]

    @cached_property
    def overlaps(self) -> np.ndarray:
        """Products u_l·u_l'/d (n, L, L) of the unit tokens of each sample."""
        return self.unit @ self.unit.transpose(0, 2, 1) / self.tokens.shape[2]

    @property
    def correlation(self) -> np.ndarray:
        """Correlation tr Σ_ll'/√(tr Σ_ll tr Σ_l'l') (L, L) between the tokens of a sample."""
        mean = self.overlaps.mean(axis=0)
        size = np.sqrt(np.diag(mean))
        return mean / np.outer(size, size)

    def largest_correlation(self) -> Estimate:
        """Return the largest mean correlation of two tokens of a sample."""
        above = np.triu(np.abs(self.correlation), 1)
        pair = np.unravel_index(int(np.argmax(above)), above.shape)
        error = self.overlaps.std(axis=0, ddof=1)[pair] / np.sqrt(len(self.tokens))
        return Estimate(float(self.correlation[pair]), float(error))

    def largest_mean(self) -> Estimate:
        """Return the largest norm of a mean token, corrected for the contribution of sampling noise."""
        n, _, d = self.tokens.shape
        chance = self.scales * d / n
        squares = (self.means**2).sum(axis=1) - chance
        largest = int(np.argmax(squares))
        norm, noise = float(np.sqrt(max(squares[largest], 0.0))), float(chance[largest])
        error = min(np.sqrt(noise / d) + noise / np.sqrt(d), 1.0) if norm else np.sqrt(noise)
        return Estimate(norm, float(error))

    def true_means(self, effective_dim: float) -> np.ndarray:
        """Return means (L, d) whose products are corrected for sampling noise; zero if noise explains all of them.

        Sampling noise adds Σ/n, of trace tr Σ/n, to the square of the mean of n tokens.
        """
        n, _, d = self.tokens.shape
        means, chance = self.means, self.scales * d / n
        gram = means @ means.T
        if (np.diag(gram) - chance < SIGNIFICANCE * np.sqrt(2 / effective_dim) * chance).all():
            return np.zeros_like(means)
        # the means of different tokens are over the same samples
        root = psd_root(gram - self.correlation * np.sqrt(np.outer(chance, chance)))
        return root @ np.linalg.pinv(psd_root(gram), rcond=1e-6, hermitian=True) @ means


def _default_target(data: Dataset, target: Any) -> Any:
    """Return the attention map or label model of the teacher, with the default of the data if `target` is None."""
    if target is not None or data.model is not None:
        return data.model.teacher if target is None else target
    if not data.is_labelled:
        is_map = not isinstance(data.student, DotProductAttention)
        return data.student if is_map else SoftmaxTeacher(0.0, np.eye(data.n_tokens), data.student)
    default = DEFAULT_LABELS.get(type(data.student))
    if default is None:
        needs = "a label model, because this loss has no default; pass one, for example `LogisticLabels()`"
        raise check.fail("target", target, needs, TypeError)
    return default


def _residuals(
    data: Dataset, rows: slice, tokens: np.ndarray, weights: np.ndarray | None, target: Any
) -> tuple[float, float]:
    """Return the mean square of the outputs outside the span of their tokens, and the score noise s.

    The attention matrices that best explain the outputs are T = y xᵀ(x xᵀ)⁻¹. Noise s of y = (T + s N)x is estimated
    from the errors of the targets that the teacher predicts, or, without its weights, from the part of the outputs
    outside the span. White N has E‖N x‖² = L‖x‖². Noise of variance η² on all entries of an output has the same effect
    within the span of its tokens as s² = L η²/‖x‖².
    """
    L, d = tokens.shape[1:]
    outside = 0.0
    if data.targets is not None:
        targets = np.asarray(data.targets)[rows]
    elif d <= L:
        needs = "more dimensions than tokens, so that the outputs determine T; otherwise pass `noise`"
        raise check.fail_words("data", f"{L} tokens in {d} dimensions", needs)
    else:
        outputs = np.asarray(data.outputs)[rows]
        # the pseudo-inverse of x xᵀ serves for linearly dependent tokens as well
        inverse = np.linalg.pinv(tokens @ tokens.transpose(0, 2, 1), rcond=1e-10, hermitian=True)
        targets = outputs @ tokens.transpose(0, 2, 1) @ inverse
        outside = float(np.mean((outputs - targets @ tokens) ** 2))
        outside = outside if outside > 1e-20 * float(np.mean(outputs**2)) else 0.0
    if weights is None:
        within = outside * d / max(d - L, 1) * L**2
    else:
        within = float(np.mean(np.sum(((targets - target(tokens @ weights / np.sqrt(d))) @ tokens) ** 2, axis=(1, 2))))
    square = within / (L * float(np.mean(np.sum(tokens**2, axis=(1, 2)))))
    return outside, float(np.sqrt(square)) if square > 1e-16 else 0.0


def _coordinates(
    data: Dataset, seen: SeenTokens, weights: np.ndarray | None, means: np.ndarray, resolvent: SampleResolvent,
    spectrum: Spectrum, gamma: np.ndarray,
) -> CoordinateLaw:  # fmt: skip
    """Return classes of coordinates with eigenvalues `gamma` (J, L) for tokens of unit variance.

    Their columns √d (p + μ) are fixed, with the `means` μ (L, d). Penalties other than the ridge depend on the basis,
    so that each coordinate is a class.
    """
    d, L = means.shape[::-1]
    t = data.rank if weights is None else weights.shape[1]
    fixed = np.sqrt(d) * (data.positions[:, :d] + means).T
    if not without_intercept(data.penalty).quadratic:
        cov = np.tile(np.eye(t), (d, 1, 1)) if weights is None else np.zeros((d, t, t))
        mean = np.zeros((d, t)) if weights is None else weights
        return CoordinateLaw(np.full(d, 1 / d), seen.tokens.var(axis=0, ddof=1).T, fixed, mean, cov)
    moments = np.zeros((len(gamma), L + t, L + t))
    if weights is None:  # a random teacher has equal moments along all eigenvectors
        moments[:, :L, :L] = moments_along(resolvent, spectrum, fixed)
        moments[:, L:, L:] = spectrum.weight[:, None, None] * np.eye(t)
    else:
        moments = moments_along(resolvent, spectrum, np.concatenate([fixed, weights], axis=1))
    fractions, gamma, *others = _classes_of_moments(spectrum.weight, gamma, moments, L)
    return CoordinateLaw(fractions, gamma / (fractions @ gamma) * seen.scales, *others)


def _classes_of_moments(
    weight: np.ndarray, gamma: np.ndarray, moments: np.ndarray, n_fixed: int
) -> tuple[np.ndarray, ...]:
    """Return the fields of a `CoordinateLaw` with given second moments: sums over coordinates (J, m + t, m + t).

    The m fixed columns have one value in each class, so an eigenvalue needs a number of classes equal to the rank of
    their moments; the remaining moments of the teacher are Gaussian.
    """
    parts = []
    for fraction, value, second in zip(weight, gamma, moments / weight[:, None, None], strict=True):
        size, vectors = np.linalg.eigh(second[:n_fixed, :n_fixed])
        is_nonzero = size > 1e-9 * max(size.max(initial=0.0), 1e-300)
        rank, root, vectors = max(1, int(is_nonzero.sum())), np.sqrt(size[is_nonzero]), vectors[:, is_nonzero]
        coefficients = second[n_fixed:, :n_fixed] @ vectors / root
        fixed, mean = np.zeros((rank, n_fixed)), np.zeros((rank, len(second) - n_fixed))
        fixed[: len(root)], mean[: len(root)] = np.sqrt(rank) * (vectors * root).T, np.sqrt(rank) * coefficients.T
        # second moments of the teacher that the fixed columns do not explain
        remainder = raise_spectrum(second[n_fixed:, n_fixed:] - coefficients @ coefficients.T)
        weights, covariances = np.full(rank, fraction / rank), np.tile(remainder, (rank, 1, 1))
        parts.append((weights, np.tile(value, (rank, 1)), fixed, mean, covariances))
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def _model(data: Dataset, coordinates: CoordinateLaw, target: Any, noise: float) -> Model:
    """Return the model of the data with the given distribution and target."""
    penalty = without_intercept(data.penalty)
    if data.is_labelled:
        return GLMModel(target, coordinates, penalty, data.rank, data.student, intercept=data.intercept)
    return Model(target, coordinates, penalty, data.rank, data.student, score_noise=noise)


def _kurtosis(fields: np.ndarray) -> Estimate:
    """Return the excess kurtosis of fields (n, L, m), averaged over the m directions."""
    return jackknife(fields, (2, 4), lambda square, fourth: np.mean(fourth / np.maximum(square, 1e-300) ** 2) - 3)


class SampleResolvent(NamedTuple):
    """Sample covariance with the averages of the resolvent of Σ that it determines. Eq. :eq:`resolvents`."""

    eigenvalues: np.ndarray  # (d,) eigenvalues of Ŝ, increasing
    vectors: np.ndarray  # (d, d) eigenvectors of Ŝ in columns
    z: np.ndarray  # (k,) arguments of the resolvent of Ŝ
    kappa: np.ndarray  # (k,) corresponding arguments κ of the resolvent of Σ


class Spectrum(NamedTuple):
    """Eigenvalues (J,) of Σ in increasing order, and the fraction (J,) of coordinates with each."""

    gamma: np.ndarray
    weight: np.ndarray

    def eigenvalue_indices(self, d: int) -> np.ndarray:
        """Return the index (d,) of the eigenvalue of Σ for each of d eigenvectors of Ŝ in increasing order."""
        return np.searchsorted(np.cumsum(self.weight), (np.arange(d) + 0.5) / d).clip(max=len(self.gamma) - 1)


@dataclass(frozen=True)
class SpectrumFit:
    """Fit of the spectrum of Σ to a sample covariance Ŝ."""

    n_eigenvalues: int = 60  # number of eigenvalues of Σ on a geometric grid
    n_resolvents: int = 60  # number of values of z on a geometric grid
    lowest: float = 1e-3  # smallest z and smallest eigenvalue of Σ, in units of the mean eigenvalue
    largest_z: float = 100.0  # largest z, in units of the largest eigenvalue
    min_factor: float = 1e-3  # smallest 1 − tr/N; below, the resolvent carries no information
    exact_weight: float = 1e3  # weight of the exact conditions: fractions add to 1, and the trace is given
    max_steps: int = 20000  # maximum number of steps of the least-squares solver

    def resolvent(self, covariance: np.ndarray, n_rows: float) -> SampleResolvent:
        """Return the resolvent of a sample covariance of `n_rows` rows."""
        eigenvalues, vectors = np.linalg.eigh(covariance)
        eigenvalues = eigenvalues.clip(0)
        d, mean = len(eigenvalues), eigenvalues.mean()
        z = np.geomspace(self.lowest * mean, self.largest_z * eigenvalues[-1], self.n_resolvents)
        factor = 1 - d / n_rows * np.mean(eigenvalues / (eigenvalues + z[:, None]), axis=1)
        usable = factor > self.min_factor
        return SampleResolvent(eigenvalues, vectors, z[usable], (z / np.maximum(factor, self.min_factor))[usable])

    def spectrum(self, resolvent: SampleResolvent) -> Spectrum:
        """Fit the spectrum of Σ to the resolvent of Ŝ."""
        from scipy.optimize import nnls  # takes long to import

        of_sample, mean = resolvent.eigenvalues, resolvent.eigenvalues.mean()
        gamma = np.geomspace(max(0.3 * of_sample[0], self.lowest * mean), 1.2 * of_sample[-1], self.n_eigenvalues)
        averages = np.mean(of_sample / (of_sample + resolvent.z[:, None]), axis=1)  # of γ/(γ + κ) over Σ
        on_grid = gamma / (gamma + resolvent.kappa[:, None])
        rows = [on_grid / averages[:, None], self.exact_weight * np.stack([gamma**0, gamma / mean])]
        target = np.append(np.ones(len(averages)), [self.exact_weight] * 2)
        weight, _ = nnls(np.vstack(rows), target, maxiter=self.max_steps)
        used = weight > 0
        return Spectrum(gamma[used], weight[used] / weight.sum())


def moments_along(resolvent: SampleResolvent, spectrum: Spectrum, columns: np.ndarray) -> np.ndarray:
    """Return second moments (J, m, m) of the entries of columns (d, m) at each eigenvalue of Σ, as sums over d.

    Eigenvectors of Ŝ in increasing order are assigned the eigenvalues of Σ. They differ from the eigenvectors of Σ, so
    the squares of each column along them are multiplied by a linear function of γ, at least MIN_TILT, that gives the
    variance along the column, of which Ŝ is an unbiased estimate. As factors differ between columns, the products of
    the columns change, too: the nearest columns with the given products are taken.
    """
    d, along = len(columns), resolvent.vectors.T @ columns
    index = spectrum.eigenvalue_indices(d)
    gamma = spectrum.gamma[index]
    for column in along.T:
        total = column @ column
        if not total:
            continue
        fraction = column**2 / total
        mean, variance = fraction @ gamma, fraction @ gamma**2 - (fraction @ gamma) ** 2
        tilt = (fraction @ resolvent.eigenvalues - mean) / max(variance, 1e-12 * mean**2)
        factor = np.maximum(1 + tilt * (gamma - mean), MIN_TILT)
        column *= np.sqrt(factor / (fraction @ factor))
    root = psd_root(columns.T @ columns)
    left, _, right = np.linalg.svd(along @ root, full_matrices=False)
    along = left @ right @ root
    moments = np.zeros((len(spectrum.gamma), columns.shape[1], columns.shape[1]))
    np.add.at(moments, index, along[:, :, None] * along[:, None, :] / d)
    return moments


def token_eigenvalues(covariances: list[np.ndarray], spectrum: Spectrum) -> np.ndarray:
    """Return eigenvalues (J, L) of each Σ_l along the eigenvectors of the pooled covariance.

    `covariances` are the parts (B, d, d) of each Σ_l. The eigenvectors are computed from one half of the parts and the
    variances along them from the other, because variances along eigenvectors of the same sample are biased; then the
    halves are exchanged.
    """
    ratios, halves = np.zeros((len(spectrum.gamma), len(covariances))), (slice(0, None, 2), slice(1, None, 2))
    for half, other in (halves, halves[::-1]):
        vectors = np.linalg.eigh(np.mean([parts[half].mean(axis=0) for parts in covariances], axis=0))[1]
        estimates = [parts[other].mean(axis=0) for parts in covariances]
        index, sums = spectrum.eigenvalue_indices(len(vectors)), np.zeros((len(estimates) + 1, len(spectrum.gamma)))
        for total, matrix in zip(sums, [*estimates, np.mean(estimates, axis=0)], strict=True):
            np.add.at(total, index, np.einsum("ia,ij,ja->a", vectors, matrix, vectors))
        ratios += np.divide(sums[:-1], sums[-1], out=np.ones(sums[:-1].shape), where=sums[-1] > 0).T / 2
    return spectrum.gamma[:, None] * ratios


class Estimate(NamedTuple):
    """Number with its standard error, NaN for a counted number."""

    value: float
    error: float = np.nan


def jackknife(values: np.ndarray, powers: tuple[int, int], of: Callable[..., float]) -> Estimate:
    """Return a function of two moments of values (n, L, …) over samples and tokens, with its jackknife error."""
    parts = [values[b::N_PARTS] for b in range(N_PARTS)]
    moments = np.array([[(part**power).mean(axis=(0, 1)) for power in powers] for part in parts])  # (B, 2, …)
    without = (moments.sum(axis=0) - moments) / (N_PARTS - 1)
    return Estimate(float(of(*moments.mean(axis=0))), jackknife_error(np.array([of(*pair) for pair in without])))


def jackknife_error(values: np.ndarray) -> float:
    """Return the standard error of an estimate from its values without each of the parts."""
    return float(np.std(values) * np.sqrt(N_PARTS - 1))


def part_covariances(rows: np.ndarray) -> np.ndarray:
    """Return second moments (B, d, d) of rows (n, d); part b has the rows b, b + B, b + 2B, …"""
    parts = [rows[b::N_PARTS] for b in range(N_PARTS)]
    return np.stack([part.T @ part / len(part) for part in parts])


def pair_products(parts: np.ndarray) -> np.ndarray:
    """Return the products ⟨A_b, A_c⟩ (B, B) of estimates A_b (B, …) of A, each from one part of the samples."""
    flat = parts.reshape(len(parts), -1)
    return flat @ flat.T


def mean_product(products: np.ndarray) -> float:
    """Return the mean of products (B, B) over b ≠ c: unbiased for ⟨A, A⟩, as ⟨A_b, A_b⟩ has the variance of A_b too."""
    count = len(products)
    return float((products.sum() - np.trace(products)) / (count * (count - 1)))


def relative_size(of: np.ndarray, to: np.ndarray) -> Estimate:
    """Return √(⟨A, A⟩/⟨C, C⟩) from products (B, B), zero if its square is negative, and its standard error."""
    products = np.stack([of, to]) * (1 - np.eye(len(of)))  # of different parts
    sums, rows = products.sum(axis=(1, 2)), products.sum(axis=2)
    without = sums[:, None] - 2 * rows  # sums without each of the parts
    error, root = jackknife_error(without[0] / without[1]), float(np.sqrt(max(sums[0] / sums[1], 0.0)))
    return Estimate(root, float(min(error / max(2 * root, 1e-300), np.sqrt(error))))
