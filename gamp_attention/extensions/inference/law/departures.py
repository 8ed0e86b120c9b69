"""Departures of tokens from the assumptions of the theory, with errors and verdicts."""

import numpy as np

from gamp_attention._tools.numerics import Stream, generator
from gamp_attention.extensions.inference.law.parts import LawParts, differ
from gamp_attention.extensions.inference.law.tokens import (
    N_PARTS,
    Estimate,
    SeenTokens,
    Spectrum,
    jackknife,
    mean_product,
    pair_products,
    part_covariances,
    relative_size,
)
from gamp_attention.problem.stores import distinct_samples
from gamp_attention.theory.models.data_law import VERDICTS, Departure

GAUSSIAN = (0.2, 1.0), 0.0  # limits and assumption of an excess kurtosis
MEASURES: dict[str, tuple[tuple[float, float], float, str]] = {
    # limits above which a departure is mild or strong, value under the assumption, and meaning of a departure
    "dimensions / number of tokens": ((0.5, 1.0), 0.0,
        "few tokens, so the estimated spectrum is uncertain: compute errors with `replicas`"),
    "correlation of tokens": ((0.05, 0.3), 0.0,
        "ignored by the model; include it with `correlated=True`"),
    "differences of correlation between directions": ((0.1, 0.4), 0.0,
        "Σ_12 is not a multiple of Σ; every model here assumes that it is"),
    "differences between covariances": ((0.1, 0.5), 0.0, "all Σ_l are given one shape"),
    "non-commuting part of covariances": ((0.1, 0.3), 0.0,
        "the part of their differences that is off-diagonal in common eigenvectors is ignored"),
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
    "fraction of duplicate tokens": ((0.1, 0.5), 0.0,
        "tokens come from a finite vocabulary: their fields are at most as Gaussian as over the vocabulary"),
    "correlation of consecutive samples": ((0.02, 0.1), 0.0,
        "samples are not independent: the errors of all estimates are too small"),
}  # fmt: skip


def departures(seen: SeenTokens, law: LawParts, correlated: bool, teacher: np.ndarray | None) -> tuple[Departure, ...]:
    """Return all departures of tokens from their estimated distribution."""
    n, L, d = seen.tokens.shape
    size = pair_products(law.pooled)
    measured = {"dimensions / number of tokens": exact(d / (n * L))} | _pairs(seen, law.pooled, size)
    if len(law.shapes) > 1:  # the Σ_l, scaled to unit trace, have a common shape and common eigenvectors
        measured["differences between covariances"] = max(law.shapes)
        measured["non-commuting part of covariances"] = max(law.apart)
    measured |= _spread(seen, size, law) | _kurtosis_of_fields(seen, law.resolvent.vectors, teacher)
    measured |= {"norm of the mean token": _largest_mean(seen)} | _measure_repetition(seen)
    treatments = {"correlation of tokens": "included in the model"} if correlated else {}
    if differ(law.shapes):
        treatments["differences between covariances"] = "each Σ_l has its eigenvalues along common vectors"
    by_chance = _errors_by_chance(n * L, law.spectrum, d)
    return tuple(
        build_departure(name, estimate, treatments.get(name), by_chance.get(name, np.inf))
        for name, estimate in measured.items()
    )


def _errors_by_chance(n_rows: int, spectrum: Spectrum, d: int) -> dict[str, float]:
    """Return the standard errors that kurtosis and variance of norms have for Gaussian tokens.

    The jackknife errors are also large if the tokens have heavy tails, so that they cannot show that there are none.
    """
    gamma, weight = spectrum
    kurtosis_of_norms = 12 * float(weight @ gamma**4) / (d * max(float(weight @ gamma**2), 1e-300) ** 2)
    fields = dict.fromkeys((name for name in MEASURES if name.startswith("kurtosis")), float(np.sqrt(24 / n_rows)))
    return fields | {"variance of norms / Gaussian variance": float(np.sqrt((2 + kurtosis_of_norms) / n_rows))}


def build_departure(
    name: str, measured: Estimate, treatment: str | None, by_chance: float, min_errors: float = 3.0
) -> Departure:
    """Return a departure with its verdict: mild or strong if it exceeds its errors and the limits of `MEASURES`.

    `by_chance` is the standard error of the measured value for tokens as assumed, infinite if it is not known. A
    departure counts if it differs from the assumption by `min_errors` standard errors.
    """
    limits, expected, meaning = MEASURES[name]
    difference = abs(measured.value - expected)
    # unknown errors (NaN) count as zero
    significant = not (measured.error * min_errors > difference and by_chance * min_errors > difference)
    step = int(significant and difference > limits[0]) + int(significant and difference > limits[1])
    return Departure(name, measured.value, measured.error, expected, VERDICTS[step], treatment or meaning)


def exact(value: float) -> Estimate:
    """Return a counted number as an estimate with unknown error."""
    return Estimate(float(value), np.nan)


def _pairs(seen: SeenTokens, pooled: np.ndarray, size: np.ndarray) -> dict[str, Estimate]:
    """Return the largest mean correlation of two tokens, and its largest dependence on the direction.

    The dependence is the norm of the cross-covariance minus the multiple of the pooled covariance with the same trace.
    """
    L = seen.tokens.shape[1]
    if L < 2:
        return {}
    pairs = [(l, k) for l in range(L) for k in range(l + 1, L)]
    largest = max(pairs, key=lambda pair: abs(seen.correlation[pair]))
    correlation_error = seen.overlaps.std(axis=0, ddof=1) / np.sqrt(len(seen.tokens))
    number = Estimate(float(seen.correlation[largest]), float(correlation_error[largest]))
    dependence = []
    for l, k in pairs:
        cross = part_covariances(seen.unit[:, l], seen.unit[:, k], N_PARTS)
        multiple = np.trace(cross.mean(axis=0)) / np.trace(pooled.mean(axis=0))
        dependence.append(relative_size(pair_products(cross - multiple * pooled), size))
    strongest = max(dependence, key=lambda estimate: estimate.value)
    return {"correlation of tokens": number, "differences of correlation between directions": strongest}


def _spread(seen: SeenTokens, size: np.ndarray, law: LawParts) -> dict[str, Estimate]:
    """Return measures of the spectrum and of the token norms: heavy eigenvalues, norms that vary too much."""
    d, parts = seen.tokens.shape[2], N_PARTS
    gamma, weight = law.spectrum
    median = gamma[np.searchsorted(np.cumsum(weight), 0.5)]
    effective = d / max(mean_product(size), 1e-300)  # tr Σ = d: (tr Σ)²/(d tr Σ²)
    norms = np.einsum("nld,nld->nl", seen.unit, seen.unit) / d
    moments = np.stack([np.stack([norms[b::parts].mean(), (norms[b::parts] ** 2).mean()]) for b in range(parts)])
    gaussian = 2 * mean_product(size) / d**2
    return {
        "largest eigenvalue / median eigenvalue": exact(gamma[-1] / median),
        "effective dimensions / d": exact(effective),
        "variance of norms / Gaussian variance": jackknife(lambda m: (m[1] - m[0] ** 2) / gaussian, moments),
    }


def _kurtosis_of_fields(
    seen: SeenTokens, vectors: np.ndarray, teacher: np.ndarray | None, n_directions: int = 64
) -> dict[str, Estimate]:
    """Return the excess kurtosis of projections of the tokens of unit scale, averaged over directions (d, m)."""
    random = generator(0, Stream.PERTURBATIONS).standard_normal((seen.tokens.shape[2], n_directions))
    named = {"kurtosis of random fields": random, "kurtosis along the leading direction": vectors[:, -1:]}
    named |= {} if teacher is None else {"kurtosis of the teacher's fields": teacher}
    kurtosis = {}
    for name, directions in named.items():
        fields = seen.unit @ directions
        parts = [fields[b::N_PARTS] for b in range(N_PARTS)]
        moments = np.stack([np.stack([(part**k).mean(axis=(0, 1)) for k in (2, 4)]) for part in parts])
        kurtosis[name] = jackknife(lambda m: float(np.mean(m[1] / np.maximum(m[0], 1e-300) ** 2)) - 3, moments)
    return kurtosis


def _largest_mean(seen: SeenTokens) -> Estimate:
    """Return the largest norm of a mean token, corrected for the contribution of sampling noise."""
    d = seen.tokens.shape[2]
    chance = seen.scales * d / seen.counts
    squares = (seen.means**2).sum(axis=1) - chance
    largest = int(np.argmax(squares))
    norm = float(np.sqrt(max(squares[largest], 0.0)))
    error = min(np.sqrt(chance[largest] / d) + chance[largest] / np.sqrt(d), 1.0) if norm else np.sqrt(chance[largest])
    return Estimate(norm, float(error))


def _measure_repetition(seen: SeenTokens) -> dict[str, Estimate]:
    """Return the fractions of duplicate samples and tokens, and the correlation of consecutive samples."""
    n, L, d = seen.tokens.shape
    samples, tokens = distinct_samples(seen.tokens), distinct_samples(seen.tokens.reshape(n * L, 1, d))
    products = np.einsum("nld,nld->n", seen.unit[1:], seen.unit[:-1]) / (L * d)
    near = Estimate(float(products.mean()), float(products.std(ddof=1) / np.sqrt(n - 1)))
    return {
        "fraction of duplicate samples": exact(1 - samples / n),
        "fraction of duplicate tokens": exact(1 - tokens / (n * L)),
        "correlation of consecutive samples": near,
    }
