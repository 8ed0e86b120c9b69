"""Estimation of the token distribution from data, and departures of tokens from the assumptions of the theory.

A ridge and the losses depend on the d coordinates only through second moments at each eigenvalue of the covariance. So
the d coordinates are replaced by a few classes, which have the same second moments of positions, means and teacher.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.numerics import Stream, generator, ignore_float_errors
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.law.tokens import (
    MAX_REPLICAS,
    N_PARTS,
    SIGNIFICANCE,
    Estimate,
    Products,
    Resolvent,
    SeenTokens,
    Spectrum,
    fit_targets,
    jackknife,
    moments_along,
    part_covariances,
    ratios_along,
    relative_size,
    score_noise,
    token_classes,
    used_rows,
)
from gamp_attention.data.stores import distinct_samples
from gamp_attention.losses.attention import DotProductAttention
from gamp_attention.losses.registration import DecorrelatedAttention
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.models.data_law import VERDICTS, DataLaw, Departure
from gamp_attention.models.glm import DEFAULT_LABELS, GLMModel
from gamp_attention.models.mixtures import MixtureModel, ShiftedTeacher
from gamp_attention.models.model import Model
from gamp_attention.models.sources import ClassLaw
from gamp_attention.models.teachers import DecorrelatedTeacher, ShiftedLabels, SoftmaxTeacher


class Classes(NamedTuple):
    """Classes of coordinates: eigenvalues, fixed columns such as positions, and Gaussian rows of a teacher."""

    weight: np.ndarray  # (K,), fractions of the coordinates
    gamma: np.ndarray  # (K, …), eigenvalues as they were given
    fixed: np.ndarray  # (K, m)
    teacher_mean: np.ndarray  # (K, t)
    teacher_cov: np.ndarray  # (K, t, t)


def classes_of_moments(weight: np.ndarray, gamma: np.ndarray, moments: np.ndarray, n_fixed: int) -> Classes:
    """Return classes with given second moments, which are sums over coordinates (J, m + t, m + t).

    The m fixed columns have one value in each class, so an eigenvalue needs a number of classes equal to the rank of
    their moments; the remaining moments of the teacher are Gaussian.
    """
    parts = []
    for fraction, value, second in zip(weight, gamma, moments / weight[:, None, None], strict=True):
        size, vectors = np.linalg.eigh(second[:n_fixed, :n_fixed])
        is_nonzero = size > 1e-9 * max(size.max(initial=0.0), 1e-300)
        rank = max(1, int(is_nonzero.sum()))
        fixed, mean = np.zeros((rank, n_fixed)), np.zeros((rank, len(second) - n_fixed))
        remainder = second[n_fixed:, n_fixed:]  # second moments of the teacher that the fixed columns do not explain
        for row, (square, vector) in enumerate(zip(size[is_nonzero], vectors.T[is_nonzero], strict=True)):
            coefficient = second[n_fixed:, :n_fixed] @ vector / np.sqrt(square)
            fixed[row], mean[row] = np.sqrt(rank * square) * vector, np.sqrt(rank) * coefficient
            remainder = remainder - np.outer(coefficient, coefficient)
        values, vectors = np.linalg.eigh(remainder)
        remainder = (vectors * values.clip(0)) @ vectors.T
        weights = np.full(rank, fraction / rank)
        parts.append((weights, np.tile(value, (rank, 1)), fixed, mean, np.tile(remainder, (rank, 1, 1))))
    return Classes(*map(np.concatenate, zip(*parts, strict=True)))


class Problem(NamedTuple):
    """The part of the model that is independent of the token distribution: teacher, loss, penalty and noise."""

    data: Dataset
    weights: np.ndarray | None  # (d, t) weights of the teacher; None if unknown
    target: Any  # attention map or label model of the teacher
    noise: float  # score noise s

    @property
    def teacher_rank(self) -> int:
        """Number of columns of the teacher's weights."""
        return self.data.rank if self.weights is None else self.weights.shape[1]


def default_target(data: Dataset, target: Any) -> Any:
    """Return the attention map or label model of the teacher, with the default of the data if `target` is None."""
    if target is not None:
        return target
    if data.model is not None:
        return data.model.teacher
    if not data.is_labelled:
        if isinstance(data.student, DotProductAttention):
            return SoftmaxTeacher(0.0, np.eye(data.n_tokens), data.student)
        return data.student
    default = DEFAULT_LABELS.get(type(data.student))
    if default is None:
        needs = "a label model, because this loss has no default; pass one, for example `LogisticLabels()`"
        raise check.fail("target", target, needs, TypeError)
    return default


def model_of(
    problem: Problem,
    law: Classes,
    token: np.ndarray,
    patterns: tuple[np.ndarray, np.ndarray],
    mixing: np.ndarray | None,
    shift: np.ndarray,
) -> tuple[CoordinateLaw, Model]:
    """Return the distribution of coordinates and the model, for classes with fixed columns √d p (L) and √d μ (S).

    If tokens are mixed by `mixing`, there are only L fixed columns, √d (p + μ) of the decorrelated tokens. `patterns`
    are the patterns of sources and the pattern of each sample; `shift` (L, t) are means of the teacher's fields.
    """
    data, L = problem.data, len(token) if mixing is not None else problem.data.n_tokens
    means = law.fixed[:, L:] if mixing is None else np.zeros_like(law.fixed)
    tau = law.fixed[:, token] + means
    coordinates = CoordinateLaw(law.weight, law.gamma, tau, law.teacher_mean, law.teacher_cov)
    target, student, noise = problem.target, data.student, problem.noise
    if data.is_labelled:
        target = ShiftedLabels(target, shift) if shift.any() else target
        return coordinates, GLMModel(target, coordinates, data.penalty, data.rank, student)
    sources, pattern = patterns
    if len(sources) > 1:
        probability = np.bincount(pattern, minlength=len(sources)) / len(pattern)
        return coordinates, MixtureModel(
            target, coordinates, data.penalty, data.rank, student, score_noise=noise,
            classes=ClassLaw(sources, probability), class_means=means,
        )  # fmt: skip
    target = ShiftedTeacher(target, shift) if shift.any() else target
    if mixing is not None:
        target = DecorrelatedTeacher(target, mixing)
        student = DecorrelatedAttention(student, tuple(map(float, mixing.ravel())))
        noise *= float(np.sqrt(np.trace(mixing @ mixing) / L))  # keeps the total size of N x, approximated as white
    return coordinates, Model(target, coordinates, data.penalty, data.rank, student, score_noise=noise)


@dataclass(frozen=True, eq=False)
class LawParts:
    """Parts from which a token distribution and its departures are computed."""

    pooled: np.ndarray  # (B, d, d) covariances of all tokens, scaled to tr Σ/d = 1, for each of B parts of the samples
    resolvent: Resolvent
    spectrum: Spectrum
    shapes: list[Estimate]  # relative norm of the difference between each Σ_l and the pooled covariance
    apart: list[Estimate]  # the same for the part of the difference that is off-diagonal in the pooled eigenvectors
    coordinates: CoordinateLaw
    model: Model

    @classmethod
    def of(cls, seen: SeenTokens, problem: Problem, correlated: bool) -> "LawParts":
        """Estimate all parts from tokens, in five steps; `correlated` selects a model with correlated tokens.

        1. Scale all tokens to unit variance, after decorrelating the tokens of a sample if `correlated` is True.
        2. Estimate one covariance for each token and their mean, the pooled covariance, and from it the spectrum of Σ.
        3. If the covariances differ in shape, estimate the eigenvalues of each along the pooled eigenvectors.
        4. Distribute positions, means and teacher over the eigenvalues: this gives classes of coordinates.
        5. Build the model of these classes.
        """
        n, L, d = seen.tokens.shape
        mixing = _mixing(seen) if correlated else None
        u = seen.unit if mixing is None else np.linalg.inv(mixing) @ seen.centered
        covariances = [part_covariances(u[:, l], u[:, l], N_PARTS) for l in range(L)]
        pooled = np.sum(covariances, axis=0) / L
        n_rows = float((seen.counts - 1).sum())  # degrees of freedom: each source loses one to its mean
        resolvent = Resolvent.of(pooled.mean(axis=0) * (n * L / n_rows), n_rows)
        spectrum = Spectrum.of(resolvent)
        shapes, apart = _differences(covariances, pooled, resolvent.vectors)
        eigenvalues = spectrum.gamma[:, None] * np.ones(seen.n_sources)
        if differ(shapes) and mixing is None:
            eigenvalues = _token_eigenvalues(covariances, spectrum, n_rows)[:, seen.token]
        classes, means = _classes_and_means(seen, problem, resolvent, spectrum, eigenvalues, mixing)
        shift = np.zeros((L, problem.teacher_rank))
        if problem.weights is not None and means.any():
            shift = seen.means[:L] @ problem.weights / np.sqrt(d)
        coordinates, model = model_of(problem, classes, seen.token, seen.patterns, mixing, shift)
        return cls(pooled, resolvent, spectrum, shapes, apart, coordinates, model)


def differ(shapes: list[Estimate]) -> bool:
    """Return whether at least one covariance differs from the others by more than SIGNIFICANCE standard errors."""
    return any(shape.value > SIGNIFICANCE * shape.error for shape in shapes)


def _mixing(seen: SeenTokens) -> np.ndarray:
    """Return the symmetric matrix H (L, L) with H H = tr Σ_ll'/d, the covariances between tokens."""
    covariance = seen.correlation * np.sqrt(np.outer(seen.scales, seen.scales))
    size, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(size.clip(1e-6 * size[-1]))) @ vectors.T


def _differences(
    covariances: list[np.ndarray], pooled: np.ndarray, vectors: np.ndarray
) -> tuple[list[Estimate], list[Estimate]]:
    """Return the relative size of Σ_l − pooled, and of its off-diagonal part in the basis `vectors`, for each l."""
    if len(covariances) < 2:
        return [], []
    size, shapes, apart = Products.of(pooled), [], []
    for covariance in covariances:
        difference = covariance - pooled
        shapes.append(relative_size(Products.of(difference), size))
        rotated = vectors.T @ difference @ vectors
        rotated[:, np.arange(len(vectors)), np.arange(len(vectors))] = 0.0
        apart.append(relative_size(Products.of(rotated), size))
    return shapes, apart


def _token_eigenvalues(covariances: list[np.ndarray], spectrum: Spectrum, n_rows: float) -> np.ndarray:
    """Return eigenvalues (J, L) of each Σ_l along the eigenvectors of the pooled covariance.

    The eigenvectors are computed from one half of the samples and the variances along them from the other, because
    variances along eigenvectors of the same sample are biased; then the halves are exchanged.
    """
    ratio = np.zeros((len(spectrum.gamma), len(covariances)))
    halves = slice(0, None, 2), slice(1, None, 2)
    for half, other in (halves, halves[::-1]):
        resolvent = Resolvent.of(np.mean([cov[half].mean(axis=0) for cov in covariances], axis=0), n_rows / 2)
        other_half = [cov[other].mean(axis=0) for cov in covariances]
        for l, covariance in enumerate(other_half):
            ratio[:, l] += ratios_along(resolvent, spectrum, covariance, np.mean(other_half, axis=0)) / 2
    return spectrum.gamma[:, None] * ratio


def _classes_and_means(
    seen: SeenTokens, problem: Problem, resolvent: Resolvent, spectrum: Spectrum, eigenvalues: np.ndarray,
    mixing: np.ndarray | None,
) -> tuple[Classes, np.ndarray]:  # fmt: skip
    """Return classes of coordinates, and the means (S, d) of the sources, corrected for sampling noise.

    The fixed columns of the classes are √d p (L) and √d μ (S), or √d (p + μ) of the decorrelated tokens (L).
    `eigenvalues` (J, S) are the eigenvalues of each source, for tokens of unit variance.
    """
    gamma, weight = spectrum
    d, t = seen.tokens.shape[2], problem.teacher_rank
    means = seen.true_means(d / float(weight @ gamma**2))
    positions = problem.data.positions
    if mixing is None:
        fixed = np.sqrt(d) * np.concatenate([positions, means]).T
    else:
        fixed = np.sqrt(d) * np.linalg.solve(mixing, positions + means).T
    m = fixed.shape[1]
    if not problem.data.penalty.quadratic:
        return _coordinate_classes(seen, problem, fixed), means
    moments = np.zeros((len(gamma), m + t, m + t))
    if problem.weights is None:  # a random teacher has equal moments along all eigenvectors
        moments[:, :m, :m] = moments_along(resolvent, spectrum, fixed)
        moments[:, m:, m:] = weight[:, None, None] * np.eye(t)
    else:
        moments = moments_along(resolvent, spectrum, np.concatenate([fixed, problem.weights], axis=1))
    classes = classes_of_moments(weight, eigenvalues, moments, m)
    trace = classes.weight @ classes.gamma
    scales = seen.scales if mixing is None else np.ones(len(trace))
    return classes._replace(gamma=classes.gamma / trace * scales), means


def _coordinate_classes(seen: SeenTokens, problem: Problem, fixed: np.ndarray) -> Classes:
    """Return one class for each coordinate, because penalties other than the ridge depend on the basis."""
    d, t = len(fixed), problem.teacher_rank
    squares = np.zeros((seen.n_sources, d))
    for l in range(seen.tokens.shape[1]):
        np.add.at(squares, seen.sources[:, l], seen.centered[:, l] ** 2)
    weights, cov = problem.weights, np.zeros((d, t, t))
    if weights is None:
        weights, cov = np.zeros((d, t)), np.tile(np.eye(t), (d, 1, 1))
    return Classes(np.full(d, 1 / d), (squares / (seen.counts - 1)[:, None]).T, fixed, weights, cov)


MIN_ERRORS = 3.0  # number of standard errors by which a departure must differ from the assumption
N_DIRECTIONS = 64  # number of random directions for the kurtosis
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
    size = Products.of(law.pooled)
    measured = {"dimensions / number of tokens": exact(d / (n * L))} | _pairs(seen, law.pooled, size)
    if len(law.shapes) > 1:  # the Σ_l, scaled to unit trace, have a common shape and common eigenvectors
        measured["differences between covariances"] = max(law.shapes)
        measured["non-commuting part of covariances"] = max(law.apart)
    measured |= _spread(seen, size, law) | _fields(seen, law.resolvent.vectors, teacher)
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


def build_departure(name: str, measured: Estimate, treatment: str | None, by_chance: float) -> Departure:
    """Return a departure with its verdict: mild or strong if it exceeds its errors and the limits of `MEASURES`.

    `by_chance` is the standard error of the measured value for tokens as assumed, infinite if it is not known.
    """
    limits, expected, meaning = MEASURES[name]
    difference = abs(measured.value - expected)
    # unknown errors (NaN) count as zero
    significant = not (measured.error * MIN_ERRORS > difference and by_chance * MIN_ERRORS > difference)
    step = int(significant and difference > limits[0]) + int(significant and difference > limits[1])
    return Departure(name, measured.value, measured.error, expected, VERDICTS[step], treatment or meaning)


def exact(value: float) -> Estimate:
    """Return a counted number as an estimate with unknown error."""
    return Estimate(float(value), np.nan)


def _pairs(seen: SeenTokens, pooled: np.ndarray, size: Products) -> dict[str, Estimate]:
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
        dependence.append(relative_size(Products.of(cross - multiple * pooled), size))
    strongest = max(dependence, key=lambda estimate: estimate.value)
    return {"correlation of tokens": number, "differences of correlation between directions": strongest}


def _spread(seen: SeenTokens, size: Products, law: LawParts) -> dict[str, Estimate]:
    """Return measures of the spectrum and of the token norms: heavy eigenvalues, norms that vary too much."""
    d, parts = seen.tokens.shape[2], N_PARTS
    gamma, weight = law.spectrum
    median = gamma[np.searchsorted(np.cumsum(weight), 0.5)]
    effective = d / max(size.value, 1e-300)  # tr Σ = d: (tr Σ)²/(d tr Σ²)
    norms = np.einsum("nld,nld->nl", seen.unit, seen.unit) / d
    moments = np.stack([np.stack([norms[b::parts].mean(), (norms[b::parts] ** 2).mean()]) for b in range(parts)])
    gaussian = 2 * size.value / d**2
    return {
        "largest eigenvalue / median eigenvalue": exact(gamma[-1] / median),
        "effective dimensions / d": exact(effective),
        "variance of norms / Gaussian variance": jackknife(lambda m: (m[1] - m[0] ** 2) / gaussian, moments),
    }


def _fields(seen: SeenTokens, vectors: np.ndarray, teacher: np.ndarray | None) -> dict[str, Estimate]:
    """Return the excess kurtosis of projections of the tokens of unit scale, averaged over directions (d, m)."""
    random = generator(0, Stream.PERTURBATIONS).standard_normal((seen.tokens.shape[2], N_DIRECTIONS))
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


@ignore_float_errors
def law_of(
    data: Dataset,
    teacher: ArrayLike | None = None,
    *,
    target: Any = None,
    noise: float | None = None,
    correlated: bool = False,
    classes: int | str = 1,
    replicas: int = 0,
    seed: int = 0,
) -> DataLaw:
    """Estimate the distribution of tokens with a known or fitted teacher, and its departures from the assumptions.

    Eq. :eq:`resolvents`.

    Eigenvalues of the covariances, and the second moments of positions and teacher along them, are fitted to the
    resolvent of the sample covariance, whose bias by the finite number of tokens is known (Marchenko and Pastur, 1967).

    Parameters
    ----------
    data : the samples, at least 20.
    teacher : (d, t) weights, known or fitted, for example of a `GampResult`. If not given, the weights of the data's
        teacher; if it has none, independent random rows N(0, 1).
    target : the teacher's attention map T, or label model. If not given, the target of the model from which the data
        were sampled, or else the student's attention map, or the default label model of the loss.
    noise : s of targets (T + s N)x. If not given, it is estimated from the outputs: from the part that the teacher does
        not explain if its weights are known, else from the part outside the span of the tokens.
    correlated : whether the model includes the correlation between tokens, see `DataLaw.correlated`. State evolution
        then takes minutes. Requires a `DotProductAttention`, a ridge penalty, and one class for each token.
    classes : number of classes of each token, for a mixture, or "auto" for the number with the smallest BIC. Classes
        are found by scikit-learn's GaussianMixture in the leading directions.
    replicas : number of jackknife replicas, each estimated without one part of the samples, for errors of computed
        values (see `DataLaw.jackknife`); 0, or 2 to 100.
    seed : seed of the search for classes.

    Returns
    -------
    DataLaw

    Raises
    ------
    TypeError : if `data` is not a Dataset with its tokens in this process, an argument has the wrong type, or `target`
        is not given for a loss without a default label model.
    ValueError : if there are fewer than 20 samples; `teacher` is not of shape (d, t); `noise` is negative; `correlated`
        is True but its requirements are not met; `classes` is not 1 for labels; targets depend on classes; or
        `replicas` is 1 or above 100.

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
    parts = check.integer("replicas", replicas, low=0, high=MAX_REPLICAS)
    seed = check.integer("seed", seed, low=0)
    if parts == 1:
        raise check.fail("replicas", parts, "0, or at least 2: a jackknife error needs two replicas")
    if not isinstance(require_dataset(data).tokens, np.ndarray) and not hasattr(data.tokens, "fill"):
        needs = "tokens in the memory of this process, not in a store that is spread over several"
        raise check.fail_words("data", type(data).__name__, needs, TypeError)
    rows = used_rows(data)
    tokens = np.asarray(data.tokens)[rows].astype(float, copy=False)
    weights = data.Q_star if teacher is None else check.array("teacher", teacher, (data.dim, "t"))
    if data.is_labelled and classes != 1:
        raise check.fail("classes", classes, "1 for data with labels: mixtures are implemented for attention only")
    if data.is_labelled and data.is_mixture:
        raise check.fail_words(
            "data", "targets that depend on classes", "samples without classes; their model is data.model"
        )
    assigned = token_classes(tokens, classes, seed)
    seen = SeenTokens.of(tokens) if assigned is None else SeenTokens.of(tokens, *assigned)
    correlated = _check_correlated(data, seen, correlated)
    problem = Problem(data, weights, default_target(data, target), 0.0)
    fitted = fit_targets(data, rows, tokens) if not data.is_labelled and data.dim > data.n_tokens else None
    if noise is not None:
        problem = problem._replace(noise=check.real("noise", noise, low=0))
    elif fitted is not None:
        predicted = None if weights is None else problem.target(tokens @ weights / np.sqrt(data.dim))
        problem = problem._replace(noise=score_noise(fitted, tokens, predicted))
    estimate = LawParts.of(seen, problem, correlated)
    jackknife_models = tuple(LawParts.of(seen.without(part, parts), problem, correlated).model for part in range(parts))
    law = estimate.coordinates
    return DataLaw(
        law.weight, law.gamma, law.tau, law.teacher_mean, law.teacher_cov,
        model=estimate.model, departures=departures(seen, estimate, correlated, weights),
        correlation=seen.correlation, correlated=correlated, noise=problem.noise,
        outside=fitted.outside if fitted else 0.0, n_samples=len(rows), replicas=jackknife_models,
    )  # fmt: skip


def _check_correlated(data: Dataset, seen: SeenTokens, correlated: Any) -> bool:
    """Return whether the model includes the correlation between tokens; raise ValueError if it cannot."""
    is_possible = isinstance(data.student, DotProductAttention) and seen.n_sources == data.n_tokens > 1
    if check.flag("correlated", correlated) and not (is_possible and data.penalty.quadratic):
        needs = "False, unless there are a DotProductAttention, a ridge and several tokens of one class each"
        raise check.fail("correlated", correlated, needs)
    return bool(correlated)
