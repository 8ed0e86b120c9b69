"""Tokens prepared for the estimation of their distribution: statistics, classes, fitted targets, and spectrum.

Eigenvalues of a sample covariance Ŝ of N rows are more widely spread than the eigenvalues of Σ (Marchenko and Pastur,
1967). State evolution needs only averages that involve the resolvent of Σ, and these follow from the resolvent of Ŝ:
for large d and N

    Ŝ (Ŝ + z)⁻¹ ≃ Σ (Σ + κ)⁻¹,    κ = z / (1 − tr[Ŝ (Ŝ + z)⁻¹]/N)

between fixed vectors and in the trace. So the fractions of coordinates on a grid of eigenvalues are fitted to these
averages by non-negative least squares. Only the averages are determined, not the single eigenvalues. Products of
second moments are unbiased, with jackknife errors.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.optional import require_modules
from gamp_attention.problem.dataset import Dataset

N_PARTS = 10  # number of parts of the samples, for jackknife errors
MAX_REPLICAS = 100  # maximum number of jackknife replicas
ROUNDING = 1e-12  # standard deviation of tokens, in units of their largest mean, below which they count as equal
MIN_TILT = 0.1  # smallest factor of squared entries along an eigenvector of the sample covariance
SIGNIFICANCE = 4.0  # standard errors above which a mean or a difference counts as significant


def used_rows(data: Dataset, max_numbers: int = 200_000_000) -> np.ndarray:
    """Return the rows from which the distribution is estimated: evenly spaced, with at most `max_numbers` entries."""
    needed = 2 * N_PARTS
    if data.n_samples < needed:
        raise check.fail("data", count_noun(data.n_samples, "sample"), f"at least {needed} samples, to estimate errors")
    step = -(-data.tokens.size // max_numbers)
    return np.arange(0, data.n_samples, step)


@dataclass(frozen=True, eq=False)
class SeenTokens:
    """Tokens (n, L, d) with the source (n, L) of each, and statistics over all samples."""

    tokens: np.ndarray
    sources: np.ndarray
    n_sources: int
    patterns: tuple[np.ndarray, np.ndarray] = field(repr=False)  # sources (C, L) by pattern; pattern (n,)

    @classmethod
    def of(
        cls, tokens: np.ndarray, patterns: np.ndarray | None = None, pattern: np.ndarray | None = None
    ) -> "SeenTokens":
        """Return tokens with one source per token, or with the sources given by patterns (C, L) and pattern (n,)."""
        n, L, _ = tokens.shape
        if patterns is None or pattern is None:
            patterns, pattern = np.arange(L)[None], np.zeros(n, dtype=int)
        return cls(tokens, patterns[pattern], int(patterns.max()) + 1, (patterns, pattern))

    def without(self, part: int, parts: int) -> "SeenTokens":
        """Leave out every `parts`-th sample, starting from index `part`."""
        included = np.arange(len(self.tokens)) % parts != part
        patterns, pattern = self.patterns
        return SeenTokens(self.tokens[included], self.sources[included], self.n_sources, (patterns, pattern[included]))

    @property
    def token(self) -> np.ndarray:
        """Token (S,) to which each source belongs."""
        token = np.empty(self.n_sources, dtype=int)
        token[self.patterns[0]] = np.arange(self.tokens.shape[1])
        return token

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of tokens (S,) of each source."""
        return np.bincount(self.sources.ravel(), minlength=self.n_sources)

    @cached_property
    def means(self) -> np.ndarray:
        """Mean tokens (S, d) of the sources."""
        total = np.zeros((self.n_sources, self.tokens.shape[2]))
        for l in range(self.tokens.shape[1]):
            np.add.at(total, self.sources[:, l], self.tokens[:, l])
        return total / self.counts[:, None]

    @cached_property
    def centered(self) -> np.ndarray:
        """Tokens (n, L, d) minus the means of their sources."""
        return self.tokens - self.means[self.sources]

    @cached_property
    def scales(self) -> np.ndarray:
        """Variances tr Σ/d (S,) of the sources; raises if tokens are equal up to rounding, as for a padding."""
        squares = np.einsum("nld,nld->nl", self.centered, self.centered) / self.tokens.shape[2]
        total = np.bincount(self.sources.ravel(), squares.ravel(), minlength=self.n_sources)
        scales = total / np.maximum(self.counts - 1, 1)
        constant = np.flatnonzero(scales <= (ROUNDING * np.abs(self.means).max(axis=1)) ** 2)
        if len(constant):
            needs = "tokens that vary between samples at each index, as state evolution assumes"
            got = f"equal tokens at index {self.token[constant[0]]} (of L = {self.tokens.shape[1]}) in all samples"
            remedy = "leave this token out of tokens and outputs"
            if self.n_sources > self.tokens.shape[1]:
                got, remedy = f"{got} of a class", "reduce `classes`"
            raise ValueError(f"{check.fail_words('data', got, needs)}; {remedy}")
        return scales

    @cached_property
    def unit(self) -> np.ndarray:
        """Centered tokens (n, L, d) divided by √(tr Σ/d) of their sources."""
        return self.centered / np.sqrt(self.scales)[self.sources][:, :, None]

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

    def true_means(self, effective_dim: float) -> np.ndarray:
        """Return means (S, d) whose products are corrected for sampling noise; zero if noise explains all of them.

        Sampling noise adds Σ/n_s, of trace tr Σ/n_s, to the square of the mean of n_s tokens.
        """
        d, means = self.tokens.shape[2], self.means
        chance = self.scales * d / self.counts
        gram, squares = means @ means.T, (means**2).sum(axis=1)
        unsure = np.sqrt(2 / effective_dim) * chance
        if (squares - chance < SIGNIFICANCE * unsure).all():
            return np.zeros_like(means)
        by_chance = np.diag(chance)
        if self.n_sources == len(self.correlation):  # the means of different tokens are over the same samples
            by_chance = self.correlation * np.sqrt(np.outer(chance, chance))
        size, vectors = np.linalg.eigh(gram)
        spanned = size > 1e-12 * max(size.max(), 1e-300)
        inverse_root = (vectors[:, spanned] / np.sqrt(size[spanned])) @ vectors[:, spanned].T
        size, vectors = np.linalg.eigh(gram - by_chance)
        return (vectors * np.sqrt(size.clip(0))) @ vectors.T @ inverse_root @ means


@dataclass(frozen=True)
class ClassSearch:
    """Search for classes of tokens by Gaussian mixtures in the leading directions (scikit-learn), and its settings."""

    max_directions: int = 8  # maximum number of leading directions of the covariance in which classes are fitted
    max_classes: int = 6  # maximum number of classes of a token for "auto"
    n_fits: int = 3  # number of initializations of each Gaussian mixture
    min_tokens: int = 10  # minimum number of tokens of a class; tokens of smaller classes are assigned to other classes

    def assign(self, tokens: np.ndarray, classes: Any, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return patterns (C, L) of sources, and the pattern (n,) of each sample; None if each token has one class.

        `classes` is the number of classes of each token, or "auto" for the number with the smallest BIC.
        """
        if isinstance(classes, str):
            check.choice("classes", classes, ("auto",))
            tried = range(1, self.max_classes + 1)
        else:
            k = check.integer("classes", classes, low=1)
            if k == 1:
                return None
            tried = range(k, k + 1)
        n, L, _ = tokens.shape
        leading = self._leading_directions(tokens)
        labels, offset = np.empty((n, L), dtype=int), 0
        for l in range(L):
            token_labels = self._fit_classes(tokens[:, l] @ leading, tried, seed)
            labels[:, l] = token_labels + offset
            offset += token_labels.max() + 1
        if offset == L:
            return None
        patterns, pattern = np.unique(labels, axis=0, return_inverse=True)
        return patterns, pattern.ravel()

    def _leading_directions(self, tokens: np.ndarray) -> np.ndarray:
        """Return directions (d, k) whose variance exceeds the edge of the spectrum of pure noise, at least two."""
        n, L, d = tokens.shape
        rows = (tokens - tokens.mean(axis=0)).reshape(n * L, d)
        size, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
        edge = np.median(size) * (1 + np.sqrt(d / len(rows))) ** 2
        count = int(np.clip((size > edge).sum(), 2, self.max_directions))
        return vectors[:, -count:]

    def _fit_classes(self, points: np.ndarray, tried: range, seed: int) -> np.ndarray:
        """Return the classes (n,) of points (n, k), numbered from zero without gaps."""
        require_modules("classes", "sklearn")
        from sklearn.mixture import GaussianMixture

        fits = []
        for k in tried:
            if self.min_tokens * k > len(points):
                break
            fits.append(GaussianMixture(k, n_init=self.n_fits, random_state=seed).fit(points))
        if not fits:
            raise check.fail(
                "classes", tried[0], f"at most {len(points) // self.min_tokens}, for {len(points)} samples"
            )
        best = min(fits, key=lambda fit: fit.bic(points)) if len(tried) > 1 else fits[0]
        probabilities = best.predict_proba(points)
        while True:
            labels = probabilities.argmax(axis=1)
            counts = np.bincount(labels, minlength=probabilities.shape[1])
            small = np.flatnonzero((counts > 0) & (counts < self.min_tokens))
            if not len(small):
                return np.unique(labels, return_inverse=True)[1]
            probabilities[:, small[0]] = 0.0


class FittedTargets(NamedTuple):
    """Attention matrices T (n, L, L) that best explain the outputs, and the mean square outside the tokens' span."""

    targets: np.ndarray
    outside: float


def fit_targets(data: Dataset, rows: np.ndarray, tokens: np.ndarray) -> FittedTargets:
    """Return T = y xᵀ(x xᵀ)⁻¹ of each sample; the dimension must be larger than the number of tokens."""
    if data.targets is not None:
        return FittedTargets(np.asarray(data.targets)[rows], 0.0)
    L, d = tokens.shape[1:]
    if d <= L:
        needs = "more dimensions than tokens, so that the outputs determine T; otherwise pass `noise`"
        raise check.fail_words("data", f"{L} tokens in {d} dimensions", needs)
    outputs = np.asarray(data.outputs)[rows]
    # the pseudo-inverse of x xᵀ serves for linearly dependent tokens as well
    inverse = np.linalg.pinv(tokens @ tokens.transpose(0, 2, 1), rcond=1e-10, hermitian=True)
    targets = np.einsum("nij,njk->nik", outputs @ tokens.transpose(0, 2, 1), inverse)
    remainder = outputs - targets @ tokens
    outside = float(np.mean(remainder**2))
    return FittedTargets(targets, outside if outside > 1e-20 * float(np.mean(outputs**2)) else 0.0)


def score_noise(fitted: FittedTargets, tokens: np.ndarray, predicted: np.ndarray | None) -> float:
    """Estimate s of y = (T + s N)x from the errors of predicted targets, or from outputs outside the tokens' span.

    White N has E‖N x‖² = L‖x‖². Noise of variance η² on all entries of an output has the same effect within the span of
    its tokens as s² = L η²/‖x‖².
    """
    L, d = tokens.shape[1:]
    size = float(np.mean(np.einsum("nld,nld->n", tokens, tokens)))
    if predicted is None:
        within = fitted.outside * d / (d - L) * L**2
    else:
        within = float(np.mean(np.einsum("nld,nld->n", *[(fitted.targets - predicted) @ tokens] * 2)))
    square = within / (L * size)
    return float(np.sqrt(square)) if square > 1e-16 else 0.0


class SampleResolvent(NamedTuple):
    """Sample covariance with the averages of the resolvent of Σ that it determines.

    Eq. :eq:`resolvents`.
    """

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
    """Fit of the spectrum of Σ to a sample covariance Ŝ, and its settings."""

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
        low = max(0.3 * of_sample[0], self.lowest * mean)
        gamma = np.geomspace(low, 1.2 * of_sample[-1], self.n_eigenvalues)
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
    variance along the column, of which Ŝ is an unbiased estimate.
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
    moments = np.zeros((len(spectrum.gamma), columns.shape[1], columns.shape[1]))
    np.add.at(moments, index, along[:, :, None] * along[:, None, :] / d)
    return moments


def ratios_along(vectors: np.ndarray, spectrum: Spectrum, covariance: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Return ratios (J,) of a covariance to the pooled covariance along eigenvectors (d, d) of Ŝ.

    Both covariances must be estimated from other samples than Ŝ.
    """
    index, total = spectrum.eigenvalue_indices(len(pooled)), np.zeros((2, len(spectrum.gamma)))
    for sums, matrix in zip(total, (covariance, pooled), strict=True):
        np.add.at(sums, index, np.einsum("ia,ij,ja->a", vectors, matrix, vectors))
    return np.divide(total[0], total[1], out=np.ones(len(spectrum.gamma)), where=total[1] > 0)


class Estimate(NamedTuple):
    """Number with its standard error."""

    value: float
    error: float


def jackknife(of: Callable[..., float], *parts: np.ndarray) -> Estimate:
    """Return a function of the means of B parts (B, …), with the jackknife error from leaving each part out."""
    count = len(parts[0])
    leave_one_out = [(part.sum(axis=0)[None] - part) / (count - 1) for part in parts]
    values = np.array([of(*means) for means in zip(*leave_one_out, strict=True)])
    error = np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum())
    return Estimate(float(of(*(part.mean(axis=0) for part in parts))), float(error))


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

    def ratio(left_out: Any) -> float:
        kept = np.delete(np.arange(len(of)), left_out)
        rows = np.ix_(kept, kept)
        return mean_product(of[rows]) / mean_product(to[rows])

    without, count = np.array([ratio(part) for part in range(len(of))]), len(of)
    error = np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
    root = float(np.sqrt(max(ratio([]), 0.0)))
    return Estimate(root, float(min(error / max(2 * root, 1e-300), np.sqrt(error))))


def part_covariances(first: np.ndarray, second: np.ndarray, parts: int) -> np.ndarray:
    """Return second moments (B, d, d) of rows (n, d); part b has the rows b, b + B, b + 2B, …"""
    return np.stack([first[b::parts].T @ second[b::parts] / len(first[b::parts]) for b in range(parts)])
