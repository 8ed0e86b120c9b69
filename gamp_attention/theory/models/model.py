"""Teacher-student models, and their parameters by name.

A `Model` combines a teacher, a student, a token distribution and a penalty. Its task is the loss that the teacher's
fields imply for the student, and the test error: `AttentionTask`, or `LabelTask` for labels. `with_parameter` replaces
the ω, λ or σ of a model.

**Token classes** determine the means and covariances of tokens. A model with classes has S sources, one for each
(token, class) pair. Each combination of classes is a component of the model: a model without classes, whose averages
are weighted with the probability of the combination.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention.problem.losses.attention import DotProductAttention, RiskTerms, pack_attention_parameters
from gamp_attention.problem.losses.point import sample_loss
from gamp_attention.problem.penalties.standard import column_classes, penalty_or_ridge, with_lam
from gamp_attention.problem.sources import ClassLaw
from gamp_attention.problem.students import check_columns, check_student
from gamp_attention.theory.models.coordinates import CoordinateLaw, law_from_samples, require_law, require_seen
from gamp_attention.theory.models.teachers import SoftmaxTeacher, Teacher, check_teacher, keeps_columns, keeps_order


def asymptotic_terms(T: np.ndarray, rho: np.ndarray) -> RiskTerms:
    """Return the terms of the asymptotic risk: G = ρ, M = ρ Tᵀ and the constant ½ Tr T ρ Tᵀ.

    Eq. :eq:`asymptotic-risk`, eq. (41) of Cui et al. (2024).

    T (n, L, L) are the teacher's attention matrices. rho (n, L) are the traces tr Σ_l/d of each sample's tokens; its
    shape is (1, L) if they are equal for all samples.
    """
    M = rho[:, :, None] * T.transpose(0, 2, 1)
    G = rho[:, :, None] * np.eye(rho.shape[1])
    norms = np.einsum("nij,j->n", T**2, rho[0]) if len(rho) == 1 else np.einsum("nij,nj->n", T**2, rho)
    return RiskTerms(pack_attention_parameters(G, M), 0.5 * norms)


@dataclass(frozen=True, eq=False)
class AttentionTask:
    """Learning the outputs T[y] x, or (T[y] + s N) x with white noise N (L, L), of an attention layer by another.

    `attention` states that the loss is a smooth function of the teacher's fields, `jumps` that the proximal map may be
    discontinuous: V̂ is then not the average of its almost-everywhere derivative.
    """

    teacher: Teacher
    student: Any
    trace: np.ndarray  # (L,) tr Σ_l/d
    noise: float = 0.0  # standard deviation s of the score noise
    attention = True
    jumps = True

    @property
    def n_noise(self) -> int:
        """One number for each entry of the target, if there is noise."""
        return len(self.trace) ** 2 if self.noise else 0

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Raise TypeError or ValueError unless student and teacher are attention maps."""
        if not callable(self.student):
            raise check.fail("student", self.student, "an attention map; models of labels: glm_model", TypeError)
        check_teacher(self.teacher, n_tokens, teacher_rank)

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Return the parameters of the asymptotic risk for targets T[y] + s N.

        The sign of N follows the sign of y, so that a sample and its mirror image (all white coordinates negated) have
        the same target.
        """
        targets = self.teacher(y)
        if self.noise:
            signed_noise = np.where(y[:, 0, 0] < 0, -self.noise, self.noise)
            targets = targets + signed_noise[:, None, None] * noise.reshape(targets.shape)
        return asymptotic_terms(targets, self.trace[None])

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Return (1/L) Tr[(S − T) ρ (S − T)ᵀ] of each sample, equation (10), averaged over its noise."""
        difference = self.student(z) - self.teacher(y)
        noise_error = self.noise**2 * float(self.trace.sum())
        return np.einsum("nij,j->n", difference**2, self.trace) / len(self.trace) + noise_error

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return ‖y − f_Q(x)‖_F²/(dL) of each sample, equation (4), with fresh noise from `rng`."""
        targets = self.teacher(y)
        if self.noise:
            targets = targets + self.noise * rng.standard_normal(targets.shape)
        difference = targets @ tokens - self.student(z) @ (tokens + positions)
        return np.einsum("nld,nld->n", difference, difference) / tokens[0].size


class Component(NamedTuple):
    """A component of a mixture: the samples whose tokens have given classes."""

    probability: float  # probability of these classes
    sources: np.ndarray  # (L,) source of each token
    model: "Model"  # model of these samples


@dataclass(frozen=True, eq=False)
class Model(DisplayMixin):
    """A teacher-student attention problem; the size d and the sample complexity α are chosen later.

    Attributes
    ----------
    teacher : target attention T, eq. (1): a `SoftmaxTeacher`, or any callable u (..., L, t) → (..., L, L) with a
        property `even`.
    coordinates : distribution ν of covariances, positions and teacher weights.
    penalty : r(Q) of eq. (3): `Ridge`, `ElasticNet` or a user-defined penalty; a number λ means Ridge(λ).
    rank : number of columns r of the student's Q.
    student : attention map S, eq. (2).
    score_noise : s of the targets y = (T[u] + s N)x, in which N (L, L) is white noise, drawn for each sample.

    Raises
    ------
    TypeError : if `coordinates` is not a CoordinateLaw, or teacher, student or penalty does not have its interface.
    ValueError : if `penalty` as a number is not positive; `rank` is below 1, or not a multiple of the student's number
        of weight matrices; `score_noise` is negative, or positive for labels; `coordinates` is `rotated` and
        `penalty` is not a ridge, or it has an `unseen` part and the model has outputs or several tokens; or teacher and
        student return arrays of another shape.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> model = ga.Model(ga.SoftmaxTeacher(0.3, np.eye(2)), ga.coordinate_law(), penalty=0.01, rank=1)
    >>> model.n_tokens, model.lam, model.even
    (2, 0.01, True)
    """

    teacher: Any
    coordinates: CoordinateLaw
    penalty: Any
    rank: int
    student: Any = field(default_factory=DotProductAttention)
    score_noise: float = field(default=0.0, kw_only=True)
    intercept = False  # True if an intercept without a penalty is added to the fields
    # symmetries of columns of student and teacher, at least two of each, that are known: each may change sign in both,
    # or they may be permuted together and the minimum is unique
    has_column_signs = exchangeable_columns = False

    def __post_init__(self) -> None:
        require_law(self.coordinates)
        object.__setattr__(self, "penalty", penalty_or_ridge(self.penalty))
        object.__setattr__(self, "rank", check.integer("rank", self.rank, low=1))
        object.__setattr__(self, "student", check_student(self.student, self.n_tokens, self.rank))
        check_columns(self.penalty, self.student, self.rank)
        noise = check.real("score_noise", self.score_noise, low=0)
        if noise and not self.attention:
            raise check.fail("score_noise", noise, "0 for labels: set the noise of the label model instead")
        object.__setattr__(self, "score_noise", noise)
        if self.coordinates.spikes is not None and not self.is_mixture:
            raise check.fail("coordinates.spikes", self.coordinates.spikes, "None for tokens without classes")
        if self.attention or self.n_sources > 1:
            require_seen(self.coordinates, "attention layers and several tokens")
        if self.coordinates.rotated and not self.penalty.quadratic:
            needs = "a ridge penalty, because the coordinates are along eigenvectors of a covariance"
            raise check.fail_words("penalty", type(self.penalty).__name__, needs)
        self.task.check(self.n_tokens, self.teacher_rank)

    def as_model(self) -> "Model":
        """Return this model: the interface of objects that solvers accept as models."""
        return self

    @cached_property
    def task(self) -> Any:
        """Learning task: loss and test error as functions of the fields."""
        return AttentionTask(self.teacher, self.student, self.coordinates.trace, self.score_noise)

    def task_of(self, sources: np.ndarray) -> Any:
        """Return the task of samples whose tokens are drawn from given sources (L,), for fields with their means."""
        return self.task

    @cached_property
    def reduced(self) -> "Model":
        """Model with the same state evolution, and fewer random numbers of a sample if possible."""
        return self

    @property
    def attention(self) -> bool:
        """True if the student is an attention layer, False if it is a loss of labels."""
        return self.task.attention

    @property
    def lam(self) -> float:
        """Strength λ: the field `lam` of the penalty."""
        return float(self.penalty.lam)

    @cached_property
    def column_classes(self) -> list[np.ndarray]:
        """Sets (parts, n) of columns that may be rotated into each other without a change of the risk."""
        return column_classes(self.penalty, self.student, self.rank)

    @cached_property
    def classes(self) -> ClassLaw:
        """Joint distribution of the classes of a sample's tokens; without mixtures every token has a single class."""
        return ClassLaw(np.arange(self.n_sources)[None], np.ones(1))

    @cached_property
    def class_means(self) -> np.ndarray:
        """Means √d μ (K, S) of tokens in their classes; zero except in mixtures."""
        return np.zeros_like(self.coordinates.tau)

    @property
    def n_tokens(self) -> int:
        """Number of tokens per sample, L."""
        return self.classes.patterns.shape[1]

    @property
    def n_sources(self) -> int:
        """Number of sources S that tokens are drawn from: L, or the number of (token, class) pairs of a mixture."""
        return self.coordinates.gamma.shape[1]

    @property
    def is_mixture(self) -> bool:
        """Return whether tokens have several classes."""
        return self.n_sources > self.n_tokens

    @cached_property
    def components(self) -> tuple[Component, ...]:
        """Components of a mixture; a model without classes is its only component."""
        return (Component(1.0, np.arange(self.n_tokens), self),)

    def on_coordinates(self, gamma: np.ndarray, tau: np.ndarray, class_means: np.ndarray, pi: np.ndarray) -> "Model":
        """Return this model with the distribution of given coordinates, see `law_from_samples`.

        Class means (d, S) are used by mixtures only.
        """
        law, others = law_from_samples(gamma, tau, pi), self.coordinates
        return replace(self, coordinates=replace(law, unseen=others.unseen, rotated=others.rotated))

    @property
    def teacher_rank(self) -> int:
        """Number of columns t of the teacher's Q*."""
        return self.coordinates.teacher_mean.shape[1]

    @cached_property
    def teacher_shift(self) -> np.ndarray:
        """Means Q*ᵀμ_{l,k}/√d of the teacher's fields in each source, (S, t); zero except in mixtures.

        Eq. :eq:`mixture`.
        """
        law, S = self.coordinates, self.n_sources
        shift = np.einsum("k,kt,ks->st", law.weight, law.teacher_mean, self.class_means)
        if law.spikes is None:
            return shift
        return shift + law.spikes @ np.einsum("k,ktu->tu", law.weight, law.moments[:, S:, S:])

    @property
    def even(self) -> bool:
        """True if a common change of sign is a symmetry: S[−z] = S[z], T[−y] = T[y] and r(−Q) = r(Q).

        Nonzero means of the teacher's fields break it.
        """
        all_even = self.student.even and self.teacher.even and self.penalty.even
        return bool(all_even and not self.teacher_shift.any())

    @property
    def rotations(self) -> bool:
        """True if S and the penalty are invariant under common rotations of the columns of Q."""
        # of all penalties, only the ridge with equal strengths is invariant under all rotations
        return self.student.rotations and self.penalty.quadratic and len(self.column_classes) == 1

    @property
    def has_means(self) -> bool:
        """True if fields of the weights can have means: of positions, classes, spikes or an intercept."""
        return bool(self.coordinates.tau.any() or self.coordinates.spikes is not None or self.intercept)

    @cached_property
    def reversible(self) -> bool:
        """True if reversing the token order and negating positions and teacher fields is known to be a symmetry."""
        return np.array_equal(self.coordinates.tau, -self.coordinates.tau[:, ::-1]) and self._has_token_symmetry(
            np.arange(self.n_tokens)[::-1]
        )

    @cached_property
    def exchangeable(self) -> bool:
        """True if every permutation of the tokens, of which there are at least three, is a symmetry up to positions."""
        tokens = np.arange(self.n_tokens)
        swapped = np.concatenate([tokens[1::-1], tokens[2:]])
        return len(tokens) > 2 and self._has_token_symmetry(swapped) and self._has_token_symmetry(np.roll(tokens, 1))

    @cached_property
    def isotropic(self) -> bool:
        """True if common rotations of the columns of student and teacher, at least two of each, are a symmetry."""
        same_rank = self.rank == self.teacher_rank > 1 and self.student.parts == 1
        return same_rank and self.rotations and self.teacher_may_rotate

    @cached_property
    def teacher_may_rotate(self) -> bool:
        """True if every rotation of the teacher's columns, of which there are at least two, is a symmetry."""
        law, t = self.coordinates, self.teacher_rank
        if not self.attention or t == 1 or law.teacher_mean.any() or self.is_mixture:
            return False
        cov = law.teacher_cov
        is_isotropic = np.array_equal(cov, cov[:, :1, :1] * np.eye(t))
        return is_isotropic and keeps_columns(self.teacher, self.n_tokens, t)

    def _has_token_symmetry(self, order: np.ndarray) -> bool:
        """Return whether a permutation of the tokens keeps student, teacher and covariances."""
        law = self.coordinates
        if not (self.attention and self.even) or law.teacher_mean.any() or self.is_mixture:
            return False
        parts = (self.student, self.rank), (self.teacher, self.teacher_rank)
        same_variances = np.array_equal(law.gamma, law.gamma[:, order])
        return same_variances and all(keeps_order(part, rank, order) for part, rank in parts)

    @property
    def loss(self) -> Any:
        """Loss of a sample as a function of its fields, in the equivalent generalized linear model."""
        return sample_loss(self.student, self.n_tokens, self.rank)


def require_model(model: Any) -> Model:
    """Return the argument if it is a Model, or the model of a token distribution of data; raise TypeError if not."""
    if not hasattr(type(model), "as_model"):
        raise check.fail("model", model, "a gamp_attention.Model", TypeError)
    return model.as_model()


PARAMETERS = ("alpha", "omega", "lam", "sigma")


def with_parameter(model: Model, name: str, value: float) -> Model:
    """Return the model with another ω, λ or common token standard deviation σ; α is not part of a model."""
    check.choice("parameter", name, PARAMETERS)
    if name == "omega":
        return replace(model, teacher=replace(softmax_teacher(model), omega=check.real(name, value, low=0, high=1)))
    if name == "lam":
        return replace(model, penalty=with_lam(model.penalty, value))
    if name == "sigma":
        gamma, sigma = model.coordinates.gamma, check.real(name, value, low=0, strict=True)
        if not has_common_variance(model):
            raise check.fail("parameter", name, "omega, lam or alpha, because the tokens do not have one variance")
        return replace(model, coordinates=replace(model.coordinates, gamma=np.full_like(gamma, sigma**2)))
    return model


def parameter_value(model: Model, alpha: float, name: str) -> float:
    """Return the current value of α, ω, λ or σ."""
    if name == "omega":
        return softmax_teacher(model).omega
    return {"alpha": alpha, "lam": model.lam, "sigma": float(np.sqrt(model.coordinates.gamma.flat[0]))}[name]


def softmax_teacher(model: Model) -> SoftmaxTeacher:
    """Return the teacher of a model; raise TypeError unless it is the softmax teacher of equation (16)."""
    if not has_omega(model):
        got = type(model.teacher).__name__
        raise check.fail_words("model.teacher", got, "a SoftmaxTeacher, with ω and A", TypeError)
    return model.teacher


def has_omega(model: Model) -> bool:
    """Return whether the teacher is the softmax teacher of equation (16), which has an ω."""
    return hasattr(model.teacher, "omega")


def has_common_variance(model: Model) -> bool:
    """Return whether all tokens have the same isotropic variance σ²."""
    return bool(np.ptp(model.coordinates.gamma) == 0)
