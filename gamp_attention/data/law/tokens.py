"""Tokens prepared for the estimation of their distribution: in memory, centred, scaled, with optional classes."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset


@dataclass(frozen=True)
class SampleSettings:
    """Settings of the samples from which a distribution is estimated, and of their parts."""

    most_numbers: int = 200_000_000  # maximum number of token entries; of more, evenly spaced samples are used
    parts: int = 10  # number of parts of the samples, for jackknife errors
    most_replicas: int = 100  # maximum number of jackknife replicas
    sure: float = 4.0  # standard errors above which a mean or a difference counts as significant


SAMPLES = SampleSettings()


def used_rows(data: Dataset) -> np.ndarray:
    """Return the rows of the samples from which the distribution is estimated."""
    needed = 2 * SAMPLES.parts
    if data.n_samples < needed:
        raise check.fail("data", f"{data.n_samples} samples", f"at least {needed} samples, to estimate errors")
    step = -(-data.tokens.size // SAMPLES.most_numbers)
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
        kept = np.arange(len(self.tokens)) % parts != part
        patterns, pattern = self.patterns
        return SeenTokens(self.tokens[kept], self.sources[kept], self.n_sources, (patterns, pattern[kept]))

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
        if (squares - chance < SAMPLES.sure * unsure).all():
            return np.zeros_like(means)
        by_chance = np.diag(chance)
        if self.n_sources == len(self.correlation):  # the means of different tokens are over the same samples
            by_chance = self.correlation * np.sqrt(np.outer(chance, chance))
        size, vectors = np.linalg.eigh(gram)
        spanned = size > 1e-12 * max(size.max(), 1e-300)
        inverse_root = (vectors[:, spanned] / np.sqrt(size[spanned])) @ vectors[:, spanned].T
        size, vectors = np.linalg.eigh(gram - by_chance)
        return (vectors * np.sqrt(size.clip(0))) @ vectors.T @ inverse_root @ means
