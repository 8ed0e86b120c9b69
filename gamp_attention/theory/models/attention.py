"""Construction of attention models from a few numbers: models with positions along one direction, and the paper's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import DotProductAttention
from gamp_attention.problem.penalties.base import Penalty
from gamp_attention.problem.penalties.standard import require_penalty
from gamp_attention.theory.models.coordinate_classes import isotropic_law
from gamp_attention.theory.models.coordinates import CoordinateLaw, require_law
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.models.teachers import SoftmaxTeacher, Teacher


def attention_model(
    n_tokens: int = 2, rank: int = 1, teacher_rank: int = 1, *, omega: float | None = None,
    sigma: ArrayLike | None = None, lam: float | str | Sequence[float | str] | None = None,
    A: ArrayLike | None = None, tau: ArrayLike | None = None, student: DotProductAttention | None = None,
    teacher: Teacher | None = None, coordinates: CoordinateLaw | None = None, penalty: Penalty | None = None,
    score_noise: float = 0.0,
) -> Model:  # fmt: skip
    """Build a model with isotropic Gaussian tokens, Gaussian teacher weights and positions along one direction.

    Covariances, positions and teacher weights of any other distribution are passed as `coordinates`. Layers with value
    matrices are built by `value_model`.

    Parameters
    ----------
    n_tokens, rank, teacher_rank : number of tokens L, columns r of the student's Q and columns t of the teacher's Q*.
        If the student has several heads (`MultiHeadAttention`), r is the number of columns of each head.
    omega : fraction ω of the positional matrix A in the target, in [0, 1]; 0.3 if not given.
    sigma : standard deviation of the tokens, Σ_l = σ_l² I: one number, or one for each token (L,); 0.5 if not given.
    lam : ridge strength λ > 0; or one entry for each column of Q, a number or "sphere" for ‖Q_a‖² = d (`ColumnRidge`).
        0.01 if not given, which is necessary with `penalty`.
    A : (L, L) positional part of the target. If not given, 0.6 on the diagonal and 0.4/(L − 1) elsewhere.
    tau : (L,) positions p_l = τ_l 1_d/√d; evenly spaced from 1 to −1 if not given.
    student : attention map S; the tied softmax of eq. (15) if not given.
    teacher : target map T. If not given, the map of eq. (16) with `omega` and `A`.
    coordinates : distribution ν of covariances, positions and teacher weights; replaces `sigma` and `tau`.
    penalty : penalty to use instead of Ridge(lam), e.g. ElasticNet(lam, l1).
    score_noise : s of the targets y = (T[u] + s N)x, in which N (L, L) is white noise, drawn for each sample.

    Returns
    -------
    Model

    Raises
    ------
    TypeError : if an argument has the wrong type, `coordinates` is not a CoordinateLaw, or `teacher` is not callable or
        has no boolean property `even`.
    ValueError : if `n_tokens`, `rank` or `teacher_rank` is below 1; `omega` is outside [0, 1]; `sigma` or `lam` is not
        positive; `score_noise` is negative; `A` or `tau` has another shape; `omega` or `A` is combined with
        `teacher`, or `sigma` or `tau` with `coordinates`; `coordinates` is for another L or t; or `teacher`
        returns matrices of another shape.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.attention_model(n_tokens=3, rank=2, sigma=[0.4, 0.5, 0.6], tau=[1, 0, -1])
    >>> model.n_tokens, model.rank, model.coordinates.trace.round(12).tolist()
    (3, 2, [0.16, 0.25, 0.36])
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    r = check.integer("rank", rank, low=1)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    check.require_memory("n_tokens, rank, teacher_rank", L + r + t, L + r + t)
    student = DotProductAttention() if student is None else student
    r *= check.integer("student.heads", getattr(student, "heads", 1), low=1)
    check.require_memory("rank", r, r)
    penalty = require_penalty(penalty, lam)
    given = omega is not None or A is not None
    if teacher is not None and given:
        raise ValueError("omega, A: need to be omitted if `teacher` is given, which defines the whole target; got both")
    omega = check.real("omega", 0.3 if omega is None else omega, low=0, high=1)
    A = default_mixing(L) if A is None else check.array("A", A, (L, L))
    teacher = SoftmaxTeacher(omega, A) if teacher is None else teacher
    if coordinates is None:
        coordinates = isotropic_law(L, t, sigma, tau)
    elif sigma is not None or tau is not None:
        raise ValueError("sigma, tau: need to be omitted if `coordinates` is given, which defines both; got a value")
    elif require_law(coordinates).gamma.shape[1] != L or coordinates.teacher_mean.shape[1] != t:
        got = f"L = {coordinates.gamma.shape[1]}, t = {coordinates.teacher_mean.shape[1]}"
        raise check.fail_words("coordinates", got, f"a distribution of L = {L} tokens and t = {t} teacher columns")
    return Model(teacher, coordinates, penalty, r, student, score_noise=score_noise)


def default_mixing(L: int) -> np.ndarray:
    """Return the default of A (L, L): 0.6 on the diagonal, and 0.4 in equal parts for the other tokens of each row."""
    A = np.full((L, L), 0.4 / max(L - 1, 1))
    np.fill_diagonal(A, 0.6 if L > 1 else 1.0)
    return A


def paper_model(
    omega: float = 0.3, sigma: float = 0.5, lam: float | None = None, A: ArrayLike = ((0.6, 0.4), (0.4, 0.6)),
    penalty: Penalty | None = None, score_noise: float = 0.0,
) -> Model:  # fmt: skip
    """Build the model of Section 5 of Cui et al. (2024): L = 2, r = t = 1, p_1 = −p_2 = 1_d/√d, Q* ~ N(0, I).

    Parameters
    ----------
    omega : fraction ω of the positional matrix A in the target, in [0, 1].
    sigma : standard deviation σ of the tokens, Σ_l = σ² I.
    lam : ridge strength λ > 0; 0.01 if not given, which is necessary with `penalty`.
    A : (2, 2) positional part of the target.
    penalty : penalty to use instead of Ridge(lam), e.g. ElasticNet(lam, l1).
    score_noise : s of the targets y = (T[u] + s N)x, in which N (2, 2) is white noise, drawn for each sample.

    Returns
    -------
    Model

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `omega` is outside [0, 1]; `sigma` or `lam` is not positive; `score_noise` is negative; or `A` is
        not of shape (2, 2).

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.paper_model(omega=0.3)
    >>> model.n_tokens, model.rank, model.coordinates.rho.tolist()
    (2, 1, [[[0.25]], [[0.25]]])
    """
    sigma = check.real("sigma", sigma, low=0, strict=True)
    return attention_model(2, 1, 1, omega=omega, sigma=sigma, lam=lam, A=A, penalty=penalty, score_noise=score_noise)
