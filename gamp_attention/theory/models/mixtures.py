"""Mixtures of tokens, Appendix C.10: every token has a class, which determines its mean and covariance.

A mixture is a problem with S sources, one for each (token, class) pair; each sample has tokens from L of them.
Distributions, overlaps and variances of the weights have S entries. Averages over samples are computed for fixed
classes first and then averaged over the classes (`TokenClasses`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import DotProductAttention
from gamp_attention.problem.penalties.base import Penalty
from gamp_attention.problem.sources import ClassLaw
from gamp_attention.theory.models.attention import attention_model
from gamp_attention.theory.models.coordinate_classes import CoordinateClasses, value_classes
from gamp_attention.theory.models.coordinates import CoordinateLaw, law_from_samples
from gamp_attention.theory.models.model import Component, Model

MAX_PATTERNS = 4096  # maximum number of combinations of classes, for each of which averages over fields are computed


@dataclass(frozen=True, eq=False)
class ShiftedTeacher:
    """Teacher, or label model, as a map of the fields minus their means."""

    teacher: Any
    shift: np.ndarray  # (L, t) means Q*ᵀμ_l/√d of the teacher's fields, added before it is applied

    @property
    def even(self) -> bool:
        """True if the teacher is even and all means are zero: nonzero means break the symmetry."""
        return bool(self.teacher.even and not self.shift.any())

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers per sample, as of the label model."""
        return self.teacher.n_noise(n_tokens, rank)

    def __call__(self, u: np.ndarray, *noise: np.ndarray) -> np.ndarray:
        """Return target matrices, or labels, for centered fields u (..., L, t) and the noise of labels."""
        return self.teacher(u + self.shift, *noise)


@dataclass(frozen=True, eq=False)
class TokenClasses(Model):
    """Base of models whose tokens have classes.

    `coordinates` is the distribution ν over sources: γ_s of Σ_s, τ_s = √d (p_l + μ_s), teacher weights. `class_means`
    (K, S) are √d μ_s in each class of coordinates, without spikes. They are needed because the teacher reads tokens
    without their positions.

    Raises
    ------
    ValueError : if the distribution of coordinates, the classes and the class means do not agree.
    """

    classes: ClassLaw = field(kw_only=True)
    class_means: np.ndarray = field(kw_only=True)

    def given(self, number: int) -> Model:
        """Return the model of samples with the classes of pattern `number`."""
        raise NotImplementedError

    def __post_init__(self) -> None:
        if self.coordinates.gamma.shape[1] != self.classes.n_sources:
            got = f"{self.coordinates.gamma.shape[1]} sources"
            needs = f"a distribution of the {self.classes.n_sources} sources of `classes`"
            raise check.fail_words("coordinates", got, needs)
        means = check.array("class_means", self.class_means, self.coordinates.tau.shape)
        positions, classes = self.coordinates.tau - means, self.classes
        of_first_class = positions[:, classes.first][:, classes.token]
        if not np.allclose(positions, of_first_class, rtol=0, atol=1e-9 * (1 + np.abs(positions).max())):
            needs = "the same positions coordinates.tau - class_means in all classes of a token"
            raise check.fail("class_means", means, needs)
        super().__post_init__()

    def law_of_pattern(self, number: int) -> CoordinateLaw:
        """Return the distribution of coordinates of samples with the classes of pattern `number`, without spikes."""
        law, at = self.coordinates, self.classes.patterns[number]
        return CoordinateLaw(law.weight, law.gamma[:, at], law.tau[:, at], law.teacher_mean, law.teacher_cov)

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """One component for each pattern of classes."""
        patterns = zip(self.classes.probability, self.classes.patterns, strict=True)
        return tuple(Component(float(p), sources, self.given(k)) for k, (p, sources) in enumerate(patterns))

    def on_coordinates(self, gamma: np.ndarray, tau: np.ndarray, class_means: np.ndarray, pi: np.ndarray) -> Model:
        """Return this model with the distribution of given coordinates.

        The arguments are γ, √d (p + μ) and √d μ, each (d, S) and with spikes, and teacher rows (d, t).
        """
        S, spikes = tau.shape[1], self.coordinates.spikes
        if spikes is not None:
            tau, class_means = tau - pi @ spikes.T, class_means - pi @ spikes.T
        # the means are stacked below τ so that coordinates of one class have equal class means too
        both = law_from_samples(np.tile(gamma, 2), np.concatenate([tau, class_means], axis=1), pi)
        law = replace(both, gamma=both.gamma[:, :S], tau=both.tau[:, :S], spikes=spikes)
        return replace(self, coordinates=law, class_means=both.tau[:, S:])


@dataclass(frozen=True, eq=False)
class MixtureModel(TokenClasses):
    """Problem whose tokens are mixtures, x_l | c_l = k ~ N(μ_{l,k}, Σ_{l,k}), with any joint distribution of classes.

    Attributes
    ----------
    coordinates : distribution ν over sources s = (l, k): γ_s of Σ_{l,k}, τ_s = √d (p_l + μ_{l,k}), teacher weights.
    classes : joint distribution of the classes.
    class_means : (K, S) √d μ_{l,k} in each class of coordinates. Needed because the teacher reads tokens without their
        positions.
    """

    def given(self, number: int) -> Model:
        """Return the model of samples with the classes of pattern `number`."""
        teacher = ShiftedTeacher(self.teacher, self.teacher_shift[self.classes.patterns[number]])
        law = self.law_of_pattern(number)
        return Model(teacher, law, self.penalty, self.rank, self.student, score_noise=self.score_noise)


def class_law(classes: Any) -> tuple[ClassLaw, np.ndarray]:
    """Return the distribution of classes with given joint probabilities, and the token and class (S, 2) of each source.

    `classes` is an array (K_1, …, K_L). Combinations and sources of probability zero are left out; sources are ordered
    by token, then class.
    """
    L = max(check.ndim("classes", classes), 1)
    table = check.array("classes", classes, tuple(f"K_{l + 1}" for l in range(L)))
    if (table < 0).any() or abs(table.sum() - 1) > 1e-9:
        raise check.fail("classes", table, "probabilities that add to 1")
    seen = np.argwhere(table > 0)
    if len(seen) > MAX_PATTERNS:
        raise check.fail(
            "classes", len(seen), f"at most {MAX_PATTERNS} combinations of classes of positive probability"
        )
    pairs = [(l, k) for l in range(table.ndim) for k in np.unique(seen[:, l])]
    patterns = np.array([[pairs.index((l, k)) for l, k in enumerate(row)] for row in seen])
    probability = table[tuple(seen.T)]
    return ClassLaw(patterns, probability / probability.sum()), np.array(pairs)


def mixture_model(
    classes: ArrayLike, means: ArrayLike | CoordinateClasses, rank: int = 1, *, omega: float | None = None,
    sigma: ArrayLike = 0.5, lam: float | str | Sequence[float | str] | None = None, A: ArrayLike | None = None,
    tau: ArrayLike | CoordinateClasses | None = None, teacher_mean: ArrayLike | None = None,
    student: DotProductAttention | None = None, penalty: Penalty | None = None,
) -> MixtureModel:  # fmt: skip
    """Build a model whose tokens are Gaussian mixtures, Appendix C.10: x_l | c_l = k ~ N(μ_{l,k}, σ_{l,k}² I).

    Eq. :eq:`mixture`.

    Parameters
    ----------
    classes : (K_1, …, K_L) joint probabilities of the classes of the L tokens; patterns of probability 0 are dropped.
    means : (L, K) class means μ_{l,k} = means[l, k] 1_d/√d, K being the largest number of classes of a token. For means
        along other directions than 1_d, (J, L, K) or `CoordinateClasses` of such values: one for each of J classes of
        coordinates.
    rank : columns r of the student's Q; the teacher's Q* has one.
    omega : as for `attention_model`.
    sigma : standard deviations of the tokens in their classes: one number, (L,) or (L, K).
    lam, A : as for `attention_model`.
    tau : (L,) or (J, L) positions as for `coordinate_law`; evenly spaced from 1 to −1, the same in all coordinates, if
        not given. Classes of coordinates of positions and of means are independent.
    teacher_mean : (1,) mean of the entries of Q*, whose variance is 1; zero if not given.
    student, penalty : as for `attention_model`.

    Returns
    -------
    MixtureModel, with one source for each (token, class) pair of positive probability, ordered by token, then class.
        Overlaps have one entry for each source.

    Raises
    ------
    TypeError : if an argument has the wrong type, or `student` is a loss of labels.
    ValueError : if `classes` are not probabilities that add to 1, or have more than 4096 combinations of positive
        probability; a shape does not match; `sigma` is not positive; or a condition of `attention_model` is violated.

    Examples
    --------
    Two tokens of two classes each that mostly agree, with means along the positions:

    >>> import gamp_attention as ga
    >>> model = ga.mixture_model([[0.4, 0.1], [0.1, 0.4]], [[0.5, -0.5], [0.5, -0.5]])
    >>> model.n_tokens, model.n_sources, model.classes.patterns.tolist()
    (2, 4, [[0, 2], [0, 3], [1, 2], [1, 3]])
    """
    law, pairs = class_law(classes)
    (token, number), L, K = pairs.T, law.patterns.shape[1], max(np.shape(classes))
    plain = attention_model(L, rank, omega=omega, lam=lam, A=A, student=student, penalty=penalty)
    mu = value_classes("means", means, (L, K))
    p = value_classes("tau", np.linspace(1, -1, L) if tau is None else tau, (L,))
    shape: tuple[int, ...] = {0: (), 1: (L,)}.get(check.ndim("sigma", sigma), (L, K))
    sigma = check.standard_deviations("sigma", sigma, shape)
    sigma = np.broadcast_to(sigma[:, None] if sigma.ndim == 1 else sigma, (L, K))
    mean = np.zeros(1) if teacher_mean is None else check.array("teacher_mean", teacher_mean, (1,))
    j, i = np.indices((len(p.weight), len(mu.weight))).reshape(2, -1)
    class_means = np.ascontiguousarray(mu.values[i][:, token, number])
    coordinates = CoordinateLaw(
        weight=p.weight[j] * mu.weight[i],
        gamma=np.tile(sigma[token, number] ** 2, (len(j), 1)),
        tau=p.values[j][:, token] + class_means,
        teacher_mean=np.tile(mean, (len(j), 1)),
        teacher_cov=np.ones((len(j), 1, 1)),
    )
    return MixtureModel(
        plain.teacher, coordinates, plain.penalty, plain.rank, plain.student, classes=law,
        class_means=class_means,
    )  # fmt: skip
