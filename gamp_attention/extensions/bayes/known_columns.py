"""Bayes-optimal estimation with fixed columns: they are known directions, and their fields are known covariates.

`fix_columns` holds columns K = Q* C at combinations of the columns of the teacher, whose rows are normal with
covariance Σ. Given K, the teacher is

    Q* = K̃ G + U Rᵀ,   K̃ = K W,   G = WᵀCᵀΣ,   R Rᵀ = Σ − GᵀG,

The columns of K̃ and U are independent and standard normal: K̃ is known, and U is to be estimated. The fields of a
sample are u_l = κ̃_l G + w_l Rᵀ, with known κ̃_l = x_l·K̃/√d and unknown w_l = x_l·U/√d, which are independent. The
samples therefore are samples of a model with the teacher U, whose targets are (y, κ) and whose noise contains κ̃:

    y = teacher(κ̃ G + w Rᵀ, ξ),   κ̃_l = mean + σ_l η_l,   η standard normal.

Spikes Q* a/√d of samples with classes are K̃ G a/√d + U Rᵀa/√d. The first part is a known mean. It is informative
about the class by the density of κ̃, whose mean is G a, or, equivalently, by the products of tokens and known means.
State evolution uses the first form. Message passing has all known means anyway and uses the second form, in which the
density of κ̃ is the same for all classes.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from gamp_attention._tools import check
from gamp_attention.extensions.bayes.channels.teacher import teacher_channel
from gamp_attention.extensions.bayes.results import RecoveryStage
from gamp_attention.extensions.sequence.expressions import Graph, Program
from gamp_attention.extensions.sequence.sequence import SequenceModel
from gamp_attention.extensions.sequence.sequence_labels import N_SYMMETRY, LabelsOfClasses, SequenceLabels, are_equal
from gamp_attention.problem.dataset import Dataset
from gamp_attention.theory.models.model import Model

RANK_ERROR = 1e-9  # size of covariances, relative to the variances of the teacher, that count as zero
KNOWN_ERROR = 1e-6  # relative difference up to which fields of fixed columns agree with the values of the columns


@dataclass(frozen=True, eq=False)
class KnownColumns:
    """A model with fixed columns as a model of its unknown columns, see the description of the module.

    Attributes
    ----------
    unknown : model whose teacher has the columns U.
    complete : the model with all columns of the teacher, in which the fields of fixed columns are plain targets.
    outputs : (P, L, T) coefficients of the fields of the teacher in the last P targets, the fields of fixed columns.
    values : (T, P) coefficients C of these columns.
    whitening, known : (P, k) and (k, T) matrices W and G.
    directions : (T, t) directions R of the unknown columns.
    covariance : (T, T) covariance Σ of the rows of the teacher.
    """

    unknown: SequenceModel
    complete: SequenceModel
    outputs: np.ndarray
    values: np.ndarray
    whitening: np.ndarray
    known: np.ndarray
    directions: np.ndarray
    covariance: np.ndarray

    def overlap(self, q: np.ndarray) -> np.ndarray:
        """Return the overlaps (…, T, T) of the teacher for overlaps (…, t, t) of the unknown columns."""
        R = self.directions
        return np.asarray(self.covariance - R @ R.T + R @ q @ R.T)

    def variance(self, V: np.ndarray) -> np.ndarray:
        """Return the posterior covariances (…, T, T) of the teacher's fields, for (…, t, t) of the unknown columns."""
        return np.asarray(self.directions @ V @ self.directions.T)

    def prior_variance(self, rho: np.ndarray) -> np.ndarray:
        """Return the prior covariances (S, T, T) of the teacher's fields, for (S, t, t) of the unknown columns."""
        return np.asarray(rho[:, :1, :1] * self.covariance)

    def stage(self, stage: RecoveryStage) -> RecoveryStage:
        """Return a stage with the columns of the teacher that have the largest components along unknown columns."""
        columns = {int(np.argmax(np.abs(self.directions[:, unknown]))) for unknown in stage.columns}
        return replace(stage, columns=tuple(sorted(columns)))

    def coefficients(self, Q: np.ndarray, Q_star: np.ndarray) -> np.ndarray:
        """Return U (d, t) of an estimate Q (d, T), for known columns of the teacher Q_star (d, T)."""
        rest = Q - Q_star @ self.values @ self.whitening @ self.known
        return np.asarray(rest @ np.linalg.pinv(self.directions.T))

    def estimate(self, U: np.ndarray, Q_star: np.ndarray) -> np.ndarray:
        """Return the estimate Q (d, T) of the teacher with unknown columns U (d, t)."""
        return np.asarray(Q_star @ self.values @ self.whitening @ self.known + U @ self.directions.T)

    def data(self, data: Dataset) -> Dataset:
        """Return the samples with the unknown columns as their teacher.

        Raises
        ------
        ValueError : if the data have no teacher of T columns, or other fields of fixed columns than this teacher.
        """
        assert data.labels is not None
        if data.Q_star is None or data.Q_star.shape[1] != len(self.values):
            needs = "samples of this model, because the values of fixed columns are columns of their teacher"
            raise check.fail_words("data", "data without this teacher", needs)
        u = data.matrix.fields(data.Q_star) - data.positions @ data.Q_star / np.sqrt(data.dim)
        fields = np.einsum("nlt,olt->no", u, self.outputs)
        seen = data.labels[:, -len(self.outputs) :]
        if not np.abs(seen - fields).max() <= KNOWN_ERROR * (1 + np.abs(fields).max()):
            needs = "fields of the columns of the teacher, without positions, as in samples of this model"
            raise check.fail_words("data", "other fields of fixed columns", needs)
        return data.copy_with(Q_star=self.coefficients(data.Q_star, data.Q_star))


def separate_known_columns(model: Model, *, centered: bool = False) -> KnownColumns | None:
    """Return a model with fixed columns as a model of its unknown columns; None if no columns are fixed.

    Eq. :eq:`bayes-known`.

    Parameters
    ----------
    model : the model.
    centered : whether the known fields have the mean zero in all classes, because means are taken into account
        otherwise.

    Raises
    ------
    ValueError : if the fixed columns determine the teacher, its prior has a mean or differs between coordinates, or the
        teacher is not accepted by `teacher_channel`.
    """
    if not isinstance(model, SequenceModel) or not model.fixed_columns:
        return None
    law, L, f = model.coordinates, model.n_tokens, len(model.fixed_columns)
    if (law.teacher_cov != law.teacher_cov[:1]).any() or law.teacher_mean.any():
        needs = "one normal prior of mean zero for all coordinates, for fixed columns"
        raise check.fail_words(
            "coordinates.teacher_cov", "a prior that differs between coordinates or has a mean", needs
        )
    of_class = model.teacher.of_class if model.is_mixture else (model.teacher,)
    cov, T = law.teacher_cov[0], model.teacher_rank
    outputs = _coefficients(of_class[0], L, T, f)
    values = outputs.sum(axis=1).T
    scales, vectors = np.linalg.eigh(values.T @ cov @ values)
    kept = scales > RANK_ERROR * max(scales[-1], 1e-300)
    whitening = vectors[:, kept] / np.sqrt(scales[kept])
    known = whitening.T @ values.T @ cov
    directions = _directions(cov - known.T @ known, RANK_ERROR * np.trace(cov))
    if not directions.shape[1]:
        needs = "at least one column of the teacher that the fixed columns do not determine"
        raise check.fail("model.fixed_columns", list(model.fixed_columns), needs)
    spikes = None if law.spikes is None else law.spikes @ directions
    t, K = directions.shape[1], len(law.weight)
    unknown_law = replace(law, teacher_mean=np.zeros((K, t)), teacher_cov=np.tile(np.eye(t), (K, 1, 1)), spikes=spikes)
    labels = []
    for c, of_this in enumerate(of_class):
        sources = model.classes.patterns[c]
        sigma = np.sqrt(law.weight @ law.gamma[:, sources])
        means = np.zeros((L, len(known)))
        if law.spikes is not None and not centered:
            means = law.spikes[sources] @ known.T
        labels.append(_reduce(of_this, (known, directions, outputs @ known.T), sigma, means))
    teacher: Any = LabelsOfClasses(tuple(labels)) if model.is_mixture else labels[0]
    complete = replace(model, fixed_columns=())
    unknown = replace(complete, teacher=teacher, coordinates=unknown_law)
    return KnownColumns(unknown, complete, outputs, values, whitening, known, directions, cov)


def _coefficients(labels: SequenceLabels, L: int, T: int, f: int) -> np.ndarray:
    """Return the coefficients (L f, L, T) of the fields u in the last L f targets, the fields of fixed columns."""
    rows = labels(np.eye(L * T).reshape(-1, L, T), np.zeros((L * T, labels.count)))
    return np.asarray(rows[:, -L * f :].T.reshape(L * f, L, T))


def _directions(rest: np.ndarray, rounding: float) -> np.ndarray:
    """Return R (T, t) with R Rᵀ = rest; columns of the teacher that are independent of all others are kept.

    Entries up to the size `rounding` count as zero.
    """
    T, rest = len(rest), np.where(np.abs(rest) > rounding, rest, 0.0)
    apart = [c for c in range(T) if rest[c, c] > 0 and not np.delete(rest[c], c).any()]
    joint = [c for c in range(T) if c not in apart]
    columns = [np.sqrt(rest[c, c]) * np.eye(T)[c] for c in apart]
    scales, vectors = np.linalg.eigh(rest[np.ix_(joint, joint)])
    for scale, vector in zip(scales, vectors.T, strict=True):
        if scale > rounding:
            column = np.zeros(T)
            column[joint] = np.sqrt(scale) * vector
            columns.append(column)
    order = sorted(range(len(columns)), key=lambda k: int(np.argmax(np.abs(columns[k]))))
    return np.array([columns[k] for k in order]).reshape(-1, T).T


def _reduce(
    labels: SequenceLabels, matrices: tuple[np.ndarray, np.ndarray, np.ndarray], sigma: np.ndarray, means: np.ndarray
) -> SequenceLabels:
    """Return the targets (y, κ) as a function of w (L, t) and of noise (ξ, η).

    `matrices` are G, R, and the coefficients (P, L, k) of κ̃ in the fields κ of fixed columns.
    """
    (known, directions, back), (L, k) = matrices, means.shape
    T, t = directions.shape
    if labels.program is None:  # raises, because only traced teachers are accepted
        teacher_channel(labels, np.tile(np.eye(T), (L, 1, 1)))
    program = cast(Program, labels.program)
    count, n_targets = labels.count + L * k, len(program.outputs) - len(back)
    graph = Graph(L * t + count)
    w = [graph.inputs[l * t : (l + 1) * t] for l in range(L)]
    xi, eta = graph.inputs[L * t : L * t + labels.count], graph.inputs[L * t + labels.count :]
    fields, known_fields = [], []
    for l in range(L):
        white = [
            graph.apply("add", graph.constant(means[l, j]), _scale(graph, float(sigma[l]), eta[l * k + j]))
            for j in range(k)
        ]
        fields += [_combine(graph, [*known[:, c], *directions[c]], [*white, *w[l]]) for c in range(T)]
        known_fields += white
    seen = [_combine(graph, list(factors.ravel()), known_fields) for factors in back]
    outputs = graph.include(program, [*fields, *xi])[:n_targets]
    reduced = SequenceLabels(None, labels.target_shape, L * t, count, False, graph.program([*outputs, *seen]))
    rng = np.random.default_rng(5)
    u, noise = rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, count))
    return replace(reduced, even=are_equal(reduced(u, noise), reduced(-u, -noise)))


def _scale(graph: Graph, factor: float, value: Any) -> Any:
    """Return the expression factor · value."""
    return graph.apply("mul", graph.constant(factor), value)


def _combine(graph: Graph, factors: list[float], values: list[Any]) -> Any:
    """Return the expression Σ factor · value, without terms of factor zero."""
    total = graph.constant(0.0)
    for factor, value in zip(factors, values, strict=True):
        if factor:
            total = graph.apply("add", total, _scale(graph, float(factor), value))
    return total
