"""How far tokens are from what the theory assumes: numbers, errors, and what they do."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.seeds import Stream, generator
from gamp_attention.data.law.moments import Estimate, Products, jackknifed, part_covariances, relative_size
from gamp_attention.data.law.parts import LawParts
from gamp_attention.data.law.tokens import SAMPLES, SeenTokens
from gamp_attention.models.own_law import VERDICTS, Departure


@dataclass(frozen=True)
class DepartureSettings:
    """Distances from what is assumed from which on a departure is mild, and strong, if it is beyond its errors."""

    errors: float = 3.0
    correlation: tuple[float, float] = (0.05, 0.3)
    unlike_number: tuple[float, float] = (0.1, 0.4)  # of cross-covariances, relative to covariances
    shapes: tuple[float, float] = (0.1, 0.5)
    commuting: tuple[float, float] = (0.1, 0.3)
    kurtosis: tuple[float, float] = (0.2, 1.0)
    norms: tuple[float, float] = (0.5, 3.0)  # of variances over Gaussian ones
    spikes: tuple[float, float] = (20.0, 200.0)  # largest eigenvalue over the median one
    dimensions: tuple[float, float] = (0.9, 0.97)  # of the share of dimensions that carry no variance
    means: tuple[float, float] = (0.2, 3.0)
    repeated: tuple[float, float] = (0.01, 0.1)
    vocabulary: tuple[float, float] = (0.1, 0.5)
    neighbours: tuple[float, float] = (0.02, 0.1)
    rows: tuple[float, float] = (0.5, 1.0)  # dimensions over tokens
    directions: int = 64  # random ones


DEPARTURES = DepartureSettings()


def judged(name: str, found: Estimate, expected: float, limits: tuple[float, float], meaning: str) -> Departure:
    """A departure with its verdict."""
    away = abs(found.value - expected)
    sure = not found.error * DEPARTURES.errors > away  # errors that are not known count as none
    step = int(sure and away > limits[0]) + int(sure and away > limits[1])
    return Departure(name, found.value, found.error, expected, VERDICTS[step], meaning)


def exact(value: float) -> Estimate:
    """A number that is counted."""
    return Estimate(float(value), np.nan)


def departures(seen: SeenTokens, law: LawParts, turned: bool, teacher: np.ndarray | None) -> tuple[Departure, ...]:
    """All of them, for tokens with the law that was found for them."""
    n, L, d = seen.tokens.shape
    size = Products.of(law.pooled)
    told = [
        judged("dimensions per token", exact(d / (n * L)), 0.0, DEPARTURES.rows,
               "few tokens leave the spectrum uncertain: see `replicas`"),
        *_pairs(seen, law.pooled, size, turned),
        *_shapes(law),
        *_spread(seen, size, law),
        *_fields(seen, law.resolvent.vectors, teacher),
        _means(seen),
        *_repeated(seen),
    ]  # fmt: skip
    return tuple(told)


def _pairs(seen: SeenTokens, pooled: np.ndarray, size: Products, turned: bool) -> list[Departure]:
    """Correlation between tokens of a sample: the number that the law may hold, and the rest."""
    L, parts = seen.tokens.shape[1], SAMPLES.parts
    if L < 2:
        return []
    pairs = [(l, k) for l in range(L) for k in range(l + 1, L)]
    most = max(pairs, key=lambda pair: abs(seen.correlation[pair]))
    number = Estimate(float(seen.correlation[most]), float(seen.correlation_error[most]))
    held = "held by the model, in turned tokens" if turned else "tokens are taken for independent, unless `correlated`"
    rest = max(
        (relative_size(Products.of(_rest(seen.unit, pooled, pair, parts)), size) for pair in pairs),
        key=lambda each: each.value,
    )
    return [
        judged("correlation of tokens", number, 0.0, DEPARTURES.correlation, held),
        judged("correlation beyond a number", rest, 0.0, DEPARTURES.unlike_number,
               "Σ_12 is no multiple of Σ: directions differ in correlation, which no model here has"),
    ]  # fmt: skip


def _rest(u: np.ndarray, pooled: np.ndarray, pair: tuple[int, int], parts: int) -> np.ndarray:
    cross = part_covariances(u[:, pair[0]], u[:, pair[1]], parts)
    share = np.trace(cross.mean(axis=0)) / np.trace(pooled.mean(axis=0))
    return cross - share * pooled


def _shapes(law: LawParts) -> list[Departure]:
    """Differences of the Σ_l, on unit scale, from their mean, and the part that is not diagonal in its basis."""
    if len(law.shapes) < 2:
        return []
    held = "eigenvalues of each Σ_l along common vectors are held" if law.unlike else "one shape is taken for all Σ_l"
    return [
        judged("shapes of covariances", max(law.shapes), 0.0, DEPARTURES.shapes, held),
        judged("covariances that do not commute", max(law.apart), 0.0, DEPARTURES.commuting,
               "the part of that difference that is not along common vectors is left out"),
    ]  # fmt: skip


def _spread(seen: SeenTokens, size: Products, law: LawParts) -> list[Departure]:
    """Heavy eigenvalues, and norms that differ more than those of Gaussian tokens."""
    d, parts = seen.tokens.shape[2], SAMPLES.parts
    gamma, weight = law.spectrum
    median = gamma[np.searchsorted(np.cumsum(weight), 0.5)]
    effective = d / max(size.value, 1e-300)  # tr Σ = d: (tr Σ)²/(d tr Σ²)
    norms = np.einsum("nld,nld->nl", seen.unit, seen.unit) / d
    moments = np.stack([np.stack([norms[b::parts].mean(), (norms[b::parts] ** 2).mean()]) for b in range(parts)])
    gaussian = 2 * size.value / d**2
    ratio = jackknifed(lambda m: (m[1] - m[0] ** 2) / gaussian, moments)
    return [
        judged("largest eigenvalue over the median", exact(gamma[-1] / median), 1.0, DEPARTURES.spikes,
               "single directions weigh: fields fluctuate from sample to sample of data as d were small"),
        judged("effective dimensions, share of d", exact(effective), 1.0, DEPARTURES.dimensions,
               "(tr Σ)²/(d tr Σ²): corrections to d → ∞ go with 1/√(d times this)"),
        judged("variance of norms, over Gaussian", ratio, 1.0, DEPARTURES.norms,
               "samples weigh unequally: tr Σ_l/d does not stand for ‖x_l‖²/d"),
    ]  # fmt: skip


def _fields(seen: SeenTokens, vectors: np.ndarray, teacher: np.ndarray | None) -> list[Departure]:
    """Excess kurtosis of projections."""
    d = seen.tokens.shape[2]
    random = generator(0, Stream.PERTURBATIONS).standard_normal((d, DEPARTURES.directions))
    named = {
        "kurtosis of random fields": (random, "fields of drawn weights are not Gaussian: universality fails"),
        "kurtosis along the leading direction": (vectors[:, -1:], "fields are not Gaussian once weights turn to it"),
    }
    if teacher is not None:
        named["kurtosis of the teacher's fields"] = teacher, "the teacher's fields are not Gaussian"
    return [
        judged(name, excess_kurtosis(seen, directions), 0.0, DEPARTURES.kurtosis, meaning)
        for name, (directions, meaning) in named.items()
    ]


def excess_kurtosis(seen: SeenTokens, directions: np.ndarray) -> Estimate:
    """Mean over directions (d, m) of the excess kurtosis of fields of all tokens on unit scale."""
    fields, parts = seen.unit @ directions, SAMPLES.parts
    moments = np.stack([np.stack([(fields[b::parts] ** k).mean(axis=(0, 1)) for k in (2, 4)]) for b in range(parts)])
    return jackknifed(lambda m: float(np.mean(m[1] / np.maximum(m[0], 1e-300) ** 2)) - 3, moments)


def _means(seen: SeenTokens) -> Departure:
    """The largest norm of a mean, without what chance adds."""
    d = seen.tokens.shape[2]
    chance = seen.scales * d / seen.counts
    squares = (seen.means**2).sum(axis=1) - chance
    most = int(np.argmax(squares))
    norm = float(np.sqrt(max(squares[most], 0.0)))
    error = min(np.sqrt(chance[most] / d) + chance[most] / np.sqrt(d), 1.0) if norm else np.sqrt(chance[most])
    meaning = "norms of order one are held as means; larger ones are a direction that all fields have in common"
    return judged("norm of the mean token", Estimate(norm, float(error)), 0.0, DEPARTURES.means, meaning)


def _repeated(seen: SeenTokens) -> list[Departure]:
    """Samples, and tokens, that are there more than once, and likeness of samples that follow each other."""
    n, L, d = seen.tokens.shape
    samples = len({hash(each.tobytes()) for each in seen.tokens})
    tokens = len({hash(each.tobytes()) for each in seen.tokens.reshape(n * L, d)})
    likeness = np.einsum("nld,nld->n", seen.unit[1:], seen.unit[:-1]) / (L * d)
    near = Estimate(float(likeness.mean()), float(likeness.std(ddof=1) / np.sqrt(n - 1)))
    return [
        judged("samples there before", exact(1 - samples / n), 0.0, DEPARTURES.repeated,
               "fewer samples than α says, and none held out is new"),
        judged("tokens there before", exact(1 - tokens / (n * L)), 0.0, DEPARTURES.vocabulary,
               "a vocabulary: what is Gaussian about fields is at most the vocabulary's law"),
        judged("likeness of neighbouring samples", near, 0.0, DEPARTURES.neighbours,
               "samples are not independent: errors of all estimates are too small"),
    ]  # fmt: skip
