"""Estimation of the token distribution: covariances, spectrum, classes of coordinates, and the model of these classes.

A ridge and the losses depend on the d coordinates only through second moments at each eigenvalue of the covariance. So
the d coordinates are replaced by a few classes, which have the same second moments of positions, means and teacher.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention.extensions.inference.law.tokens import (
    N_PARTS,
    SIGNIFICANCE,
    Estimate,
    SampleResolvent,
    SeenTokens,
    Spectrum,
    SpectrumFit,
    moments_along,
    pair_products,
    part_covariances,
    ratios_along,
    relative_size,
)
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.attention import DotProductAttention
from gamp_attention.problem.losses.registration import DecorrelatedAttention
from gamp_attention.problem.sources import ClassLaw
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.glm import DEFAULT_LABELS, GLMModel
from gamp_attention.theory.models.labels import ShiftedLabels
from gamp_attention.theory.models.mixtures import MixtureModel, ShiftedTeacher
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.models.teachers import DecorrelatedTeacher, SoftmaxTeacher


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


class TeacherProblem(NamedTuple):
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
    problem: TeacherProblem,
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
    resolvent: SampleResolvent
    spectrum: Spectrum
    shapes: list[Estimate]  # relative norm of the difference between each Σ_l and the pooled covariance
    apart: list[Estimate]  # the same for the part of the difference that is off-diagonal in the pooled eigenvectors
    coordinates: CoordinateLaw
    model: Model

    @classmethod
    def of(cls, seen: SeenTokens, problem: TeacherProblem, correlated: bool) -> "LawParts":
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
        resolvent = SpectrumFit().resolvent(pooled.mean(axis=0) * (n * L / n_rows), n_rows)
        spectrum = SpectrumFit().spectrum(resolvent)
        shapes, apart = _shape_differences(covariances, pooled, resolvent.vectors)
        eigenvalues = spectrum.gamma[:, None] * np.ones(seen.n_sources)
        if differ(shapes) and mixing is None:
            eigenvalues = _token_eigenvalues(covariances, spectrum)[:, seen.token]
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


def _shape_differences(
    covariances: list[np.ndarray], pooled: np.ndarray, vectors: np.ndarray
) -> tuple[list[Estimate], list[Estimate]]:
    """Return the relative size of Σ_l − pooled, and of its off-diagonal part in the basis `vectors`, for each l."""
    if len(covariances) < 2:
        return [], []
    size, shapes, apart = pair_products(pooled), [], []
    for covariance in covariances:
        difference = covariance - pooled
        shapes.append(relative_size(pair_products(difference), size))
        rotated = vectors.T @ difference @ vectors
        rotated[:, np.arange(len(vectors)), np.arange(len(vectors))] = 0.0
        apart.append(relative_size(pair_products(rotated), size))
    return shapes, apart


def _token_eigenvalues(covariances: list[np.ndarray], spectrum: Spectrum) -> np.ndarray:
    """Return eigenvalues (J, L) of each Σ_l along the eigenvectors of the pooled covariance.

    The eigenvectors are computed from one half of the samples and the variances along them from the other, because
    variances along eigenvectors of the same sample are biased; then the halves are exchanged.
    """
    ratio = np.zeros((len(spectrum.gamma), len(covariances)))
    halves = slice(0, None, 2), slice(1, None, 2)
    for half, other in (halves, halves[::-1]):
        vectors = np.linalg.eigh(np.mean([cov[half].mean(axis=0) for cov in covariances], axis=0))[1]
        other_half = [cov[other].mean(axis=0) for cov in covariances]
        for l, covariance in enumerate(other_half):
            ratio[:, l] += ratios_along(vectors, spectrum, covariance, np.mean(other_half, axis=0)) / 2
    return spectrum.gamma[:, None] * ratio


def _classes_and_means(
    seen: SeenTokens, problem: TeacherProblem, resolvent: SampleResolvent, spectrum: Spectrum, eigenvalues: np.ndarray,
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


def _coordinate_classes(seen: SeenTokens, problem: TeacherProblem, fixed: np.ndarray) -> Classes:
    """Return one class for each coordinate, because penalties other than the ridge depend on the basis."""
    d, t = len(fixed), problem.teacher_rank
    squares = np.zeros((seen.n_sources, d))
    for l in range(seen.tokens.shape[1]):
        np.add.at(squares, seen.sources[:, l], seen.centered[:, l] ** 2)
    weights, cov = problem.weights, np.zeros((d, t, t))
    if weights is None:
        weights, cov = np.zeros((d, t)), np.tile(np.eye(t), (d, 1, 1))
    return Classes(np.full(d, 1 / d), (squares / (seen.counts - 1)[:, None]).T, fixed, weights, cov)
