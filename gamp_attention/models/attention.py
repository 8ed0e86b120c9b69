"""Construction of attention models from a few numbers: models with positions along one direction, and the paper's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention.losses.attention import DotProductAttention
from gamp_attention.losses.heads import MultiHeadAttention
from gamp_attention.models.coordinates import CoordinateLaw, isotropic_law
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import SoftmaxTeacher, Teacher
from gamp_attention.models.value_layers import build_layer, value_model
from gamp_attention.penalties.base import Penalty
from gamp_attention.penalties.standard import require_penalty


def attention_model(
    n_tokens: int = 2,
    rank: int = 1,
    teacher_rank: int = 1,
    *,
    omega: float | None = None,
    sigma: ArrayLike | None = None,
    lam: float | str | Sequence[float | str] = 0.01,
    A: ArrayLike | None = None,
    tau: ArrayLike | None = None,
    student: DotProductAttention | None = None,
    teacher: Teacher | None = None,
    coordinates: CoordinateLaw | None = None,
    penalty: Penalty | None = None,
    score_noise: float = 0.0,
    heads: int | None = None,
    values: int | None = None,
    readout: ArrayLike | None = None,
    intercept: bool = False,
) -> Model:
    """Build a model with isotropic Gaussian tokens, Gaussian teacher weights and positions along one direction.

    Covariances, positions and teacher weights of any other distribution are passed as `coordinates`.

    With `heads`, the layer has several heads: S is their mean (`MultiHeadAttention`). With `values`, heads have value
    matrices of v columns, and the layer returns f(x) = Σ_h S_h[z] z_h R_h for fields z_h (L, v) of the values and a
    fixed read-out R. Its targets (L, p) are labels with the loss ½ ‖y − f(x)‖², and the model is a `SequenceModel`.

    Parameters
    ----------
    n_tokens, rank, teacher_rank : number of tokens L, columns r of the student's Q and columns t of the teacher's Q*.
        With `heads`, r is the number of columns of the queries (and keys) of each head. With `values`, so is t.
    omega : fraction ω of the positional matrix A in the target, in [0, 1]; 0.3 if not given.
    sigma : standard deviation of the tokens, Σ_l = σ_l² I: one number, or one for each token (L,); 0.5 if not given.
    lam : ridge strength λ > 0; or one entry for each column of Q, a number or "sphere" for ‖Q_a‖² = d (`ColumnRidge`).
        Ignored if `penalty` is given.
    A : (L, L) positional part of the target. If not given, 0.6 on the diagonal and 0.4/(L − 1) elsewhere.
    tau : (L,) positions p_l = τ_l 1_d/√d; evenly spaced from 1 to −1 if not given.
    student : attention map S; the tied softmax of eq. (15) if not given.
    teacher : target map T. If not given, the map of eq. (16) with `omega` and `A`.
    coordinates : distribution ν of covariances, positions and teacher weights; replaces `sigma` and `tau`.
    penalty : penalty to use instead of Ridge(lam), e.g. ElasticNet(lam, l1).
    score_noise : s of the targets y = (T[u] + s N)x, in which N (L, L) is white noise, drawn for each sample.
    heads : number of heads H; one head, or the heads of `student`, if not given.
    values : columns v of the value matrix of each head. If not given, the layer has no value matrix. By default, the
        teacher is a layer with the student's heads, values and read-out, and attention (1 − ω) S_h[u] + ω A + s N_h in
        each head. It can also be a function teacher(u, noise) of fields u (L, t), see `sequence_model`.
    readout : (H v, p) read-out R; if not given, the values of the heads are added, so that p = v.
    intercept : with `values`, whether an intercept without a penalty is added to the fields of each column: the biases
        of queries, keys and values.

    Returns
    -------
    Model, or with `values` SequenceModel, whose columns are the scores of all heads, followed by their values.

    Raises
    ------
    TypeError : if an argument has the wrong type, `coordinates` is not a CoordinateLaw, or `teacher` is not callable or
        has no boolean property `even`.
    ValueError : if `n_tokens`, `rank` or `teacher_rank` is below 1; `omega` is outside [0, 1]; `sigma` or `lam` is not
        positive; `score_noise` is negative; `A` or `tau` has another shape; `omega` or `A` is combined with
        `teacher`, or `sigma` or `tau` with `coordinates`; `coordinates` is for another L or t; `teacher` returns
        matrices of another shape; `heads` differs from the heads of `student`, or the student is linear and `heads` is
        above 1 without `values`; or `readout` or `intercept` is given without `values`, or
        `readout` has another shape.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.attention_model(n_tokens=3, rank=2, sigma=[0.4, 0.5, 0.6], tau=[1, 0, -1])
    >>> model.n_tokens, model.rank, model.coordinates.trace.round(12).tolist()
    (3, 2, [0.16, 0.25, 0.36])

    Two heads with value matrices of one column each:

    >>> layer = ga.attention_model(heads=2, values=1, readout=[[1.0, 0.0], [0.0, 1.0]])
    >>> layer.rank, layer.target_shape
    (4, (2, 2))
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    r = check.integer("rank", rank, low=1)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    check.require_memory("n_tokens, rank, teacher_rank", L + r + t, L + r + t)
    if values is None and readout is not None:
        raise check.fail("readout", readout, "to be omitted without `values`, whose columns it reads")
    if check.flag("intercept", intercept) and values is None:
        needs = "False without `values`: outputs in R^d would have an intercept for each of the d coordinates"
        raise check.fail("intercept", intercept, needs)
    heads = require_heads(heads, student)
    values = None if values is None else check.integer("values", values, low=1)
    columns = heads * (r + (values or 0))
    check.require_memory("heads, values, rank", columns, columns)
    if values is None:
        student, r = with_heads(student, heads), heads * r
    penalty = require_penalty(penalty, lam)
    given = omega is not None or A is not None
    if teacher is not None and given:
        raise ValueError("omega, A: need to be omitted if `teacher` is given, which defines the whole target; got both")
    omega = check.real("omega", 0.3 if omega is None else omega, low=0, high=1)
    A = _default_mixing(L) if A is None else check.array("A", A, (L, L))
    if values is not None:
        if coordinates is not None:
            raise check.fail("coordinates", coordinates, "to be omitted with `values`; pass sigma and tau")
        noise = check.real("score_noise", score_noise, low=0)
        layer = build_layer(student, heads, r, values, readout)
        taught = build_layer(student, heads, t, values, readout, "teacher_rank") if teacher is None else teacher
        spread = 0.5 if sigma is None else sigma
        positions = np.linspace(1, -1, L) if tau is None and L > 1 else np.zeros(L) if tau is None else tau
        token_law = {"sigma": spread, "tau": positions, "penalty": penalty, "intercept": intercept}
        return value_model(layer, taught, t, n_tokens=L, omega=omega, A=A, score_noise=noise, **token_law)
    teacher = SoftmaxTeacher(omega, A) if teacher is None else teacher
    coordinates = _require_law(coordinates, L, t, sigma, tau)
    return Model(teacher, coordinates, penalty, r, student, score_noise=score_noise)


def _default_mixing(L: int) -> np.ndarray:
    """Return the default of A (L, L): 0.6 on the diagonal, and 0.4 in equal parts for the other tokens of each row."""
    A = np.full((L, L), 0.4 / max(L - 1, 1))
    np.fill_diagonal(A, 0.6 if L > 1 else 1.0)
    return A


def _require_law(coordinates: Any, L: int, t: int, sigma: Any, tau: Any) -> CoordinateLaw:
    """Return the distribution of the coordinates, by default isotropic; raise if it contradicts other arguments."""
    if coordinates is None:
        return isotropic_law(L, t, sigma, tau)
    if sigma is not None or tau is not None:
        raise ValueError("sigma, tau: need to be omitted if `coordinates` is given, which defines both; got a value")
    if not isinstance(coordinates, CoordinateLaw):
        raise check.fail("coordinates", coordinates, "a CoordinateLaw", TypeError)
    if (coordinates.gamma.shape[1], coordinates.teacher_mean.shape[1]) != (L, t):
        got = f"L = {coordinates.gamma.shape[1]}, t = {coordinates.teacher_mean.shape[1]}"
        raise check.fail("coordinates", got, f"a distribution of L = {L} tokens and t = {t} teacher columns")
    return coordinates


def require_heads(heads: Any, student: Any) -> int:
    """Return the number of heads; raise if it contradicts the student."""
    known = student.heads if isinstance(student, MultiHeadAttention) else None
    if heads is None:
        return 1 if known is None else check.integer("student.heads", known, low=1)
    heads = check.integer("heads", heads, low=1)
    if known is not None and heads != known:
        raise check.fail("heads", heads, f"{known}, the number of heads of the student, or no value")
    return heads


def with_heads(student: Any, heads: int) -> Any:
    """Return the attention map of several heads, each like the given student."""
    student = DotProductAttention() if student is None else student
    if heads == 1 or isinstance(student, MultiHeadAttention):
        return student
    if not isinstance(student, DotProductAttention):
        raise check.fail(
            "student", student, "a DotProductAttention, which all heads share, for several heads", TypeError
        )
    if not student.softmax:
        needs = "softmax = True for several heads without values: the mean of linear maps is a single linear map"
        raise check.fail("student", student, needs)
    return MultiHeadAttention(heads, student.temperature, student.tied, student.causal)  # type: ignore[call-arg]


def paper_model(
    omega: float = 0.3,
    sigma: float = 0.5,
    lam: float = 0.01,
    A: ArrayLike = ((0.6, 0.4), (0.4, 0.6)),
    penalty: Penalty | None = None,
    score_noise: float = 0.0,
) -> Model:
    """Build the model of the paper's Section 5: L = 2, r = t = 1, p_1 = −p_2 = 1_d/√d, Q* ~ N(0, I).

    Parameters
    ----------
    omega : fraction ω of the positional matrix A in the target, in [0, 1].
    sigma : standard deviation σ of the tokens, Σ_l = σ² I.
    lam : ridge strength λ > 0; ignored if `penalty` is given.
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
