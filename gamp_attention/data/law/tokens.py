"""Tokens prepared for the estimation of their distribution: statistics, classes, and targets fitted to outputs."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules
from gamp_attention.data.dataset import Dataset

MAX_NUMBERS = 200_000_000  # maximum number of token entries; of more, evenly spaced samples are used
N_PARTS = 10  # number of parts of the samples, for jackknife errors
MAX_REPLICAS = 100  # maximum number of jackknife replicas
SIGNIFICANCE = 4.0  # standard errors above which a mean or a difference counts as significant


def used_rows(data: Dataset) -> np.ndarray:
    """Return the rows of the samples from which the distribution is estimated."""
    needed = 2 * N_PARTS
    if data.n_samples < needed:
        raise check.fail("data", f"{data.n_samples} samples", f"at least {needed} samples, to estimate errors")
    step = -(-data.tokens.size // MAX_NUMBERS)
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
    def centred(self) -> np.ndarray:
        """Tokens (n, L, d) minus the means of their sources."""
        return self.tokens - self.means[self.sources]

    @cached_property
    def scales(self) -> np.ndarray:
        """Variances tr Σ/d (S,) of the sources."""
        squares = np.einsum("nld,nld->nl", self.centred, self.centred) / self.tokens.shape[2]
        total = np.bincount(self.sources.ravel(), squares.ravel(), minlength=self.n_sources)
        return total / np.maximum(self.counts - 1, 1)

    @cached_property
    def unit(self) -> np.ndarray:
        """Centred tokens (n, L, d) divided by √(tr Σ/d) of their sources."""
        return self.centred / np.sqrt(self.scales)[self.sources][:, :, None]

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

    @cached_property
    def correlation_error(self) -> np.ndarray:
        """Standard error (L, L) of the correlation."""
        return self.overlaps.std(axis=0, ddof=1) / np.sqrt(len(self.tokens))

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


MAX_DIRECTIONS = 8  # maximum number of leading directions of the covariance in which classes are fitted
MAX_CLASSES = 6  # maximum number of classes of a token for "auto"
N_FITS = 3  # number of initializations of each Gaussian mixture
MIN_TOKENS = 10  # minimum number of tokens of a class; tokens of smaller classes are assigned to other classes


def token_classes(tokens: np.ndarray, classes: Any, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Assign tokens (n, L, d) to classes, by Gaussian mixtures in the leading directions (scikit-learn).

    `classes` is the number of classes of each token, or "auto" for the number with the smallest BIC.

    Returns
    -------
    Patterns (C, L) of sources and the index (n,) of the pattern of each sample; None if each token has one class.
    """
    if isinstance(classes, str):
        check.choice("classes", classes, ("auto",))
        tried = range(1, MAX_CLASSES + 1)
    else:
        k = check.integer("classes", classes, low=1)
        if k == 1:
            return None
        tried = range(k, k + 1)
    n, L, _ = tokens.shape
    leading = _leading_directions(tokens)
    labels, offset = np.empty((n, L), dtype=int), 0
    for l in range(L):
        token_labels = _fit_classes(tokens[:, l] @ leading, tried, seed)
        labels[:, l] = token_labels + offset
        offset += token_labels.max() + 1
    if offset == L:
        return None
    patterns, pattern = np.unique(labels, axis=0, return_inverse=True)
    return patterns, pattern.ravel()


def _leading_directions(tokens: np.ndarray) -> np.ndarray:
    """Return directions (d, k) whose variance exceeds the edge of the spectrum of pure noise, at least two."""
    n, L, d = tokens.shape
    rows = (tokens - tokens.mean(axis=0)).reshape(n * L, d)
    size, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    edge = np.median(size) * (1 + np.sqrt(d / len(rows))) ** 2
    count = int(np.clip((size > edge).sum(), 2, MAX_DIRECTIONS))
    return vectors[:, -count:]


def _fit_classes(points: np.ndarray, tried: range, seed: int) -> np.ndarray:
    """Return the classes (n,) of points (n, k), numbered from zero without gaps."""
    require_modules("classes", "sklearn")
    from sklearn.mixture import GaussianMixture

    fits = []
    for k in tried:
        if MIN_TOKENS * k > len(points):
            break
        fits.append(GaussianMixture(k, n_init=N_FITS, random_state=seed).fit(points))
    if not fits:
        raise check.fail("classes", tried[0], f"at most {len(points) // MIN_TOKENS}, for {len(points)} samples")
    best = min(fits, key=lambda fit: fit.bic(points)) if len(tried) > 1 else fits[0]
    probabilities = best.predict_proba(points)
    while True:
        labels = probabilities.argmax(axis=1)
        counts = np.bincount(labels, minlength=probabilities.shape[1])
        small = np.flatnonzero((counts > 0) & (counts < MIN_TOKENS))
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
        raise check.fail("data", f"{L} tokens in {d} dimensions", needs)
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
