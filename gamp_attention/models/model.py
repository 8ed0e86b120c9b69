"""What the problem is: teacher, student, law of the tokens and of the coordinates, penalty."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.text import Shown
from gamp_attention.data.stores import TokenStore
from gamp_attention.losses.checks import check_attention
from gamp_attention.losses.dot_product import DotProductAttention, checked_attention
from gamp_attention.losses.registration import is_registered_attention, is_registered_loss, sample_loss
from gamp_attention.losses.terms import RiskTerms, asymptotic_terms
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.models.sampled_coordinates import law_from_samples
from gamp_attention.models.sources import Group, Sources, single_group
from gamp_attention.models.teachers import Teacher, check_teacher, is_reversible
from gamp_attention.penalties.standard import Ridge, require_penalty


class Channel(NamedTuple):
    """Samples of a kind: their share, the sources (L,) of their tokens, and the problem that they are drawn from."""

    share: float
    sources: np.ndarray
    model: "Model"


@dataclass(frozen=True, eq=False)
class Model(Shown):
    """A teacher-student attention problem; the size d and the sample complexity α are chosen later.

    Attributes
    ----------
    teacher : target attention T, eq. (1): a `SoftmaxTeacher`, or any callable u (..., L, t) → (..., L, L) with a
        property `even`.
    coordinates : the law ν of covariances, positions and teacher weights.
    penalty : r(Q) of eq. (3): `Ridge`, `ElasticNet` or one's own; a number stands for Ridge(λ).
    rank : columns r of the student's Q.
    student : attention map S, eq. (2).

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> model = ga.Model(ga.SoftmaxTeacher(0.3, np.eye(2)), ga.coordinate_law(), penalty=0.01, rank=1)
    >>> model.n_tokens, model.lam, model.even
    (2, 0.01, True)
    """

    teacher: Teacher
    coordinates: CoordinateLaw
    penalty: Any
    rank: int
    student: Any = field(default_factory=DotProductAttention)

    def __post_init__(self) -> None:
        if not isinstance(self.coordinates, CoordinateLaw):
            raise check.fail("coordinates", self.coordinates, "a CoordinateLaw", TypeError)
        given = self.penalty if isinstance(self.penalty, tuple) else Ridge(self.penalty)
        object.__setattr__(self, "penalty", require_penalty(given))
        object.__setattr__(self, "rank", check.integer("rank", self.rank, low=1))
        object.__setattr__(self, "student", check_student(self.student, self.n_tokens, self.rank))
        self._check_teacher()

    def _check_teacher(self) -> None:
        check_teacher(self.teacher, self.n_tokens, self.teacher_rank)

    @property
    def lam(self) -> float:
        """λ: the penalty's field of that name, its strength where there is none."""
        return float(self.penalty.lam)

    @property
    def n_tokens(self) -> int:
        """Tokens per sample, L."""
        return self.n_sources

    @property
    def n_sources(self) -> int:
        """Sources S that tokens are drawn from: L, or the number of (token, class) pairs of a mixture."""
        return self.coordinates.gamma.shape[1]

    @property
    def token_of_source(self) -> np.ndarray:
        """The token (S,) that is drawn from each source."""
        return np.arange(self.n_sources)

    @property
    def position_tau(self) -> np.ndarray:
        """√d p_l in each class of coordinates, (K, L)."""
        return self.coordinates.tau

    @cached_property
    def channels(self) -> tuple[Channel, ...]:
        """The kinds of samples: a single one, but in mixtures."""
        return (Channel(1.0, np.arange(self.n_tokens), self),)

    def draw_groups(self, n_samples: int, rng: np.random.Generator) -> tuple[Group, ...]:
        """The sources of n samples: without classes, all alike."""
        return single_group(n_samples, self.n_tokens)

    def on_coordinates(self, gamma: np.ndarray, tau: np.ndarray, class_means: np.ndarray, pi: np.ndarray) -> "Model":
        """The model with the law of given coordinates, see `law_from_samples`; class means (d, S) are of mixtures."""
        return replace(self, coordinates=law_from_samples(gamma, tau, pi))

    @property
    def teacher_rank(self) -> int:
        """Columns t of the teacher's Q*."""
        return self.coordinates.teacher_mean.shape[1]

    @property
    def teacher_shift(self) -> np.ndarray:
        """Means of the teacher's fields in each source, (S, t): zero, but in mixtures."""
        return np.zeros((self.n_sources, self.teacher_rank))

    @property
    def even(self) -> bool:
        """Whether S[−z] = S[z], T[−y] = T[y] and r(−Q) = r(Q), so that fields and weights may change sign together."""
        return self.student.even and self.teacher.even and self.penalty.even

    @property
    def rotations(self) -> bool:
        """Whether S and the penalty are the same for all common rotations of the columns of Q."""
        return self.student.rotations and self.penalty.quadratic  # alone of all sums over entries

    @cached_property
    def reversible(self) -> bool:
        """Whether tokens in reverse order, with opposite positions and teacher fields, are the same problem."""
        law, L = self.coordinates, self.n_tokens
        if not self.even or law.teacher_mean.any():
            return False
        alike = np.array_equal(law.gamma, law.gamma[:, ::-1]) and np.array_equal(law.tau, -law.tau[:, ::-1])
        return alike and is_reversible(self.student, L, self.rank) and is_reversible(self.teacher, L, self.teacher_rank)

    @property
    def loss(self) -> Any:
        """The per-sample loss of the equivalent GLM."""
        return sample_loss(self.student, self.n_tokens, self.rank)

    @property
    def n_label_noise(self) -> int:
        """Gaussian numbers beside the teacher's fields that the labels of a sample are drawn with."""
        return 0

    @property
    def attention(self) -> bool:
        """Whether it is an attention layer, whose labels are a smooth function of the teacher's fields."""
        return True

    @property
    def jumps(self) -> bool:
        """Whether the proximal map may jump, so that the average of its a.e. derivative is not the whole response."""
        return True

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Loss parameters for teacher fields y (N, L, t), given label noise (N, n_label_noise)."""
        return asymptotic_terms(self.teacher(y), self.coordinates.trace[None])

    def label(
        self,
        tokens: np.ndarray | TokenStore,
        sources: Sources,
        Q_star: np.ndarray,
        spectra: np.ndarray,
        rng: np.random.Generator,
    ) -> Any:
        """The Dataset of tokens (n, L, d) and teacher weights (d, t); labels may take further random numbers."""
        from gamp_attention.data.dataset import Dataset

        return Dataset.from_teacher(self, tokens, sources.positions, Q_star, spectra, sources)

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Test errors (N,) at fields z (N, L, r): (1/L) Tr[(S − T) ρ (S − T)ᵀ], eq. (10)."""
        difference = self.student(z) - self.teacher(y)
        return np.einsum("nij,j->n", difference**2, self.coordinates.trace) / self.n_tokens

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Test errors (N,) of tokens (N, L, d) with fields z and teacher fields y: ‖y − f_Q(x)‖_F²/(dL), eq. (4)."""
        difference = self.teacher(y) @ tokens - self.student(z) @ (tokens + positions)
        return np.einsum("nld,nld->n", difference, difference) / tokens[0].size


def check_student(student: Any, n_tokens: int, rank: int) -> Any:
    """The student, if it is a map or loss that does what it says.

    Raises
    ------
    TypeError, ValueError : for something else than a map or loss, one with a fault, or a rank that the columns of Q
        cannot be shared out to its weight matrices.
    """
    if is_registered_attention(student):
        check_attention(student, n_tokens, rank)
    elif not isinstance(student, DotProductAttention) and not is_registered_loss(student):
        raise check.fail(
            "student", student, "a DotProductAttention, or a map registered by register_attention", TypeError
        )
    if rank % student.parts:
        raise check.fail("rank", rank, f"a multiple of {student.parts}: queries and keys have columns of their own")
    return checked_attention("student", student)


def require_model(model: Any) -> Model:
    """The argument, if it is a Model.

    Raises
    ------
    TypeError : if it is not.
    """
    if not isinstance(model, Model):
        raise check.fail("model", model, "a gamp_attention.Model", TypeError)
    return model


def require_attention(model: Any) -> Model:
    """The argument, if it is a Model of an attention layer.

    Raises
    ------
    TypeError : if it is not.
    """
    if not require_model(model).attention:
        raise check.fail("model", type(model).__name__, "an attention model", TypeError)
    return model
