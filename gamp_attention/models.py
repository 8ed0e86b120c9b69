"""What the problem is: teacher, student, law of the tokens and of the coordinates, penalty."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.attention import DotProductAttention, softmax_rows
from gamp_attention.coordinates import CoordinateLaw
from gamp_attention.losses import AttentionLoss
from gamp_attention.penalties import Ridge, is_even, lam_of, require_penalty, with_lam


@dataclass(frozen=True, eq=False)
class SoftmaxTeacher:
    """T[u] = (1 − ω) softmax_rows(u uᵀ) + ω A, eq. (16)."""

    omega: float
    A: np.ndarray

    @property
    def even(self) -> bool:
        """T[−u] = T[u]."""
        return True

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Target attention matrices (..., L, L) of teacher fields u (..., L, t)."""
        return (1 - self.omega) * softmax_rows(u @ np.swapaxes(u, -1, -2)) + self.omega * self.A


@dataclass(frozen=True, eq=False)
class Model:
    """A teacher-student attention problem; the size d and the sample complexity α are chosen later.

    Attributes
    ----------
    teacher : target attention T, eq. (1).
    coordinates : the law ν of covariances, positions and teacher weights.
    penalty : r(Q) of eq. (3): `Ridge`, `ElasticNet` or one's own; a number stands for Ridge(λ).
    rank : columns r of the student's Q.
    student : attention map S, eq. (2).
    """

    teacher: SoftmaxTeacher
    coordinates: CoordinateLaw
    penalty: Any
    rank: int
    student: DotProductAttention = field(default_factory=DotProductAttention)

    def __post_init__(self) -> None:
        check_rank(self.rank, self.student)
        given = self.penalty if isinstance(self.penalty, tuple) else Ridge(self.penalty)
        object.__setattr__(self, "penalty", require_penalty(given))

    @property
    def lam(self) -> float:
        """λ: the penalty's field of that name, its strength where there is none."""
        return lam_of(self.penalty)

    @property
    def n_tokens(self) -> int:
        """Tokens per sample, L."""
        return self.coordinates.gamma.shape[1]

    @property
    def teacher_rank(self) -> int:
        """Columns t of the teacher's Q*."""
        return self.coordinates.teacher_mean.shape[1]

    @property
    def even(self) -> bool:
        """Whether S[−z] = S[z], T[−y] = T[y] and r(−Q) = r(Q), so that fields and weights may change sign together."""
        return self.student.even and self.teacher.even and is_even(self.penalty)

    @property
    def rotations(self) -> bool:
        """Whether S and the penalty are the same for all common rotations of the columns of Q."""
        return self.student.rotations and type(self.penalty) is Ridge

    @cached_property
    def reversible(self) -> bool:
        """Whether tokens in reverse order, with opposite positions and teacher fields, are the same problem."""
        law, A = self.coordinates, self.teacher.A
        alike = np.array_equal(law.gamma, law.gamma[:, ::-1]) and np.array_equal(A, A[::-1, ::-1])
        return self.even and alike and np.array_equal(law.tau, -law.tau[:, ::-1]) and not law.teacher_mean.any()

    @property
    def loss(self) -> AttentionLoss:
        """The per-sample loss of the equivalent GLM."""
        return AttentionLoss(self.student, self.n_tokens, self.rank)


def check_rank(rank: int, student: Any) -> None:
    """Raise ValueError where the columns of Q cannot be shared out to the map's weight matrices."""
    if rank % student.parts:
        raise check.fail("rank", rank, f"a multiple of {student.parts}: queries and keys have columns of their own")


PARAMETERS = ("alpha", "omega", "lam", "sigma")


def with_parameter(model: Model, name: str, value: float) -> Model:
    """The model with ω, λ or the common standard deviation σ of its tokens changed; α is no part of it.

    Raises
    ------
    TypeError, ValueError : naming the parameter, what it got and what it needs.
    """
    check.choice("parameter", name, PARAMETERS)
    if name == "omega":
        return replace(model, teacher=replace(model.teacher, omega=check.real(name, value, low=0, high=1)))
    if name == "lam":
        return replace(model, penalty=with_lam(model.penalty, value))
    if name == "sigma":
        gamma, sigma = model.coordinates.gamma, check.real(name, value, low=0, strict=True)
        if not (gamma == gamma.flat[0]).all():
            raise check.fail("parameter", name, "another one, as the tokens have no common variance")
        return replace(model, coordinates=replace(model.coordinates, gamma=np.full_like(gamma, sigma**2)))
    return model


def parameter_value(model: Model, alpha: float, name: str) -> float:
    """The present value of α, ω, λ or σ."""
    return {
        "alpha": alpha,
        "omega": model.teacher.omega,
        "lam": model.lam,
        "sigma": float(np.sqrt(model.coordinates.gamma.flat[0])),
    }[check.choice("parameter", name, PARAMETERS)]


def require_model(model: Any) -> Model:
    """The argument, if it is a Model.

    Raises
    ------
    TypeError : if it is not.
    """
    if not isinstance(model, Model):
        raise check.fail("model", model, "a gamp_attention.Model", TypeError)
    return model


def attention_model(
    n_tokens: int = 2,
    rank: int = 1,
    teacher_rank: int = 1,
    *,
    omega: float = 0.3,
    sigma: Any = 0.5,
    lam: float = 0.01,
    A: Any = None,
    tau: Any = None,
    student: DotProductAttention | None = None,
    penalty: Any = None,
) -> Model:
    """Model with isotropic tokens, Gaussian teacher weights and positions along one direction.

    Parameters
    ----------
    n_tokens, rank, teacher_rank : L, r and t.
    omega : share ω of the positional matrix A in the target, in [0, 1].
    sigma : standard deviation of the tokens, one number or one for each token; Σ_l = σ_l² I.
    lam : ridge λ > 0; not used where a penalty is given.
    A : (L, L) positional part of the target; 0.6 on the diagonal and the rest shared, if not given.
    tau : (L,) positions p_l = τ_l 1_d/√d; evenly spaced from 1 to −1 if not given.
    student : the attention map S; the tied softmax of eq. (15) if not given.
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1).

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    r = check.integer("rank", rank, low=1)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    omega = check.real("omega", omega, low=0, high=1)
    penalty = require_penalty(penalty, lam)
    sigma = np.broadcast_to(sigma, (L,)) if np.ndim(sigma) == 0 else sigma
    sigma = check.array("sigma", sigma, (L,))
    if (sigma <= 0).any():
        raise check.fail("sigma", sigma, "positive standard deviations")
    if A is None:
        A = np.full((L, L), 0.4 / max(L - 1, 1))
        np.fill_diagonal(A, 0.6 if L > 1 else 1.0)
    A = check.array("A", A, (L, L))
    tau = check.array("tau", np.linspace(1, -1, L) if tau is None else tau, (L,))
    law = CoordinateLaw(
        weight=np.ones(1),
        gamma=sigma[None] ** 2,
        tau=tau[None],
        teacher_mean=np.zeros((1, t)),
        teacher_cov=np.eye(t)[None],
    )
    return Model(SoftmaxTeacher(omega, A), law, penalty, r, DotProductAttention() if student is None else student)


def paper_model(
    omega: float = 0.3,
    sigma: float = 0.5,
    lam: float = 0.01,
    A: Any = ((0.6, 0.4), (0.4, 0.6)),
    penalty: Any = None,
) -> Model:
    """The model of the paper's Section 5: L = 2, r = t = 1, p_1 = −p_2 = 1_d/√d, Q* ~ N(0, I).

    Parameters
    ----------
    omega : share ω of the positional matrix A in the target, in [0, 1].
    sigma : standard deviation of the tokens.
    lam : ridge λ > 0; not used where a penalty is given.
    A : (2, 2) positional part of the target.
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1).

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.paper_model(omega=0.3)
    >>> model.n_tokens, model.rank, model.coordinates.rho.tolist()
    (2, 1, [[[0.25]], [[0.25]]])
    """
    sigma = check.real("sigma", sigma, low=0, strict=True)
    return attention_model(2, 1, 1, omega=omega, sigma=sigma, lam=lam, A=A, penalty=penalty)
