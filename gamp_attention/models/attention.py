"""Construction of attention models from a few numbers: models with positions along one direction, and the paper's.

**Layers with value matrices**, f(x) = Σ_h S_h[z] z_h R_h, are functions of the fields of a sample. The fields z = (x +
p) Q/√d contain the queries and keys of all heads, and their values z_h (L, v). The read-out R (H v, p) is fixed. Since
outputs have p numbers for each token, whatever d is, such a layer is a sequence multi-index model with the loss ½ ‖y −
f(x)‖² of a sample. The layer is traced from Python (`gamp_attention.models.sequence`).

**Layers without value matrices as sequence models.** The loss of a sample depends on tokens and outputs through G, M
and a constant c (`AttentionLoss`, `RiskTerms`). With these 2 L² + 1 numbers as its targets, a layer is a sequence
model:

    ℓ(y; z) = ½ Tr[S G Sᵀ] − Tr[S M] + c,   y = (G, M, c),   S = S[z]

In the limit d → ∞, a teacher has the targets G = ρ, M = ρ Tᵀ and c = ½ Tr[T ρ Tᵀ], and ℓ = ½ Tr[(S − T) ρ (S − T)ᵀ].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.display import count_noun
from gamp_attention.losses.attention import DotProductAttention, RiskTerms, require_valid_attention
from gamp_attention.losses.heads import HeadLayout, MultiHeadAttention, layout_of
from gamp_attention.losses.sequence import (
    MAX_OPERATIONS,
    SequenceLoss,
    SequenceSpec,
    TooLargeError,
    sequence_loss,
)
from gamp_attention.models.coordinates import CoordinateLaw, isotropic_law
from gamp_attention.models.model import Model
from gamp_attention.models.sequence import SequenceModel, sequence_model
from gamp_attention.models.sequence_labels import UserFunction, trace_teacher
from gamp_attention.models.teachers import SoftmaxTeacher, Teacher
from gamp_attention.penalties.base import Penalty
from gamp_attention.penalties.standard import require_penalty


@dataclass(frozen=True, eq=False)
class ValueLayer:
    """Attention layer with value matrices, as a function of the fields of a sample."""

    attention: DotProductAttention  # the map of a single head
    layout: HeadLayout  # columns of the weights
    readout: np.ndarray  # (H v, p) read-out R

    def __call__(self, z: Any, mixed: Callable[[Any, int], Any] = lambda weights, head: weights) -> list[Any]:
        """Return the outputs, L rows (p,), for fields z (L, r); `mixed` changes the attention weights of a head."""
        total: Any = 0.0
        for head in range(self.layout.heads):
            columns = self.layout.scores(head)
            weights = mixed(self._attend(z[:, columns[0]], z[:, columns[-1]]), head)
            rows = slice(head * self.layout.values, (head + 1) * self.layout.values)
            total = total + weights @ (z[:, self.layout.value_columns(head)] @ self.readout[rows])
        return total

    def least_operations(self, L: int) -> float:
        """Return a lower bound of the number of operations of the second derivatives of the loss for L tokens.

        It is 5 to 9 times smaller than the numbers of softmax layers with 2 to 8 tokens.
        """
        H, columns, v = self.layout.heads, self.layout.rank, self.layout.values
        scores, outputs_of_value = columns / H - v, np.count_nonzero(self.readout) / (H * v)
        return 2 * H * L**2 * (outputs_of_value + scores) * L * columns

    def _attend(self, queries: Any, keys: Any) -> Any:
        """Return the attention weights (L, L) of a head, with operations that can be traced."""
        scores = queries @ keys.T / self.attention.temperature
        if not self.attention.softmax:
            return scores * np.tri(len(queries)) if self.attention.causal else scores
        if not self.attention.causal:
            return _softmax(scores)
        rows = [_softmax(scores[i : i + 1, : i + 1])[0] for i in range(len(queries))]
        return np.stack([np.concatenate([row, np.zeros(len(queries) - len(row))]) for row in rows])


def _softmax(scores: Any) -> Any:
    """Return the softmax of each row, with operations that can be traced."""
    weights = np.exp(scores - np.max(scores, axis=1)[:, None])
    return weights / np.sum(weights, axis=1)[:, None]


def build_layer(
    attention: Any, heads: int, rank: int, values: int, readout: ArrayLike | None, name: str = "rank"
) -> ValueLayer:
    """Return the layer of H heads with `rank` columns of scores and `values` columns of values each, after checks."""
    attention = DotProductAttention() if attention is None else require_valid_attention("student", attention)
    if isinstance(attention, MultiHeadAttention):
        attention = DotProductAttention(attention.temperature, attention.tied, attention.causal)
    if not isinstance(attention, DotProductAttention):
        raise check.fail("student", attention, "a DotProductAttention for a layer with value matrices", TypeError)
    if rank % attention.parts:
        raise check.fail(name, rank, f"a multiple of {attention.parts}, as queries and keys have separate columns")
    R = (
        np.tile(np.eye(values), (heads, 1))
        if readout is None
        else np.array(check.array("readout", readout, (heads * values, "p")))
    )
    blocks = R.reshape(heads, values, -1)
    kinds = tuple(next(k for k in range(h + 1) if np.array_equal(blocks[k], blocks[h])) for h in range(heads))
    return ValueLayer(attention, HeadLayout(heads, attention.parts, rank // attention.parts, values, kinds), R)


def value_model(
    student: ValueLayer,
    teacher: Any,
    teacher_rank: int,
    *,
    n_tokens: int,
    omega: float = 0.0,
    A: np.ndarray,
    score_noise: float = 0.0,
    **options: Any,
) -> SequenceModel:
    """Return the model of a layer with value matrices that learns outputs y = Σ_h T_h u_h R_h (L, p) of a teacher.

    The teacher's attention is T_h = (1 − ω) S_h[u] + ω A + s N_h, with white noise N_h (L, L) for each head.

    Parameters
    ----------
    student : the layer.
    teacher : a ValueLayer, or a function teacher(u, noise) without noise numbers that returns the outputs.
    teacher_rank : number of columns of a teacher that is a function; not used for a layer.
    n_tokens, omega, A, score_noise : L, ω, A and s.
    options : sigma, tau, lam and penalty of `sequence_model`.
    """
    L, n_noise = n_tokens, 0
    target, layer = teacher, cast(Any, student)  # functions of recorded numbers too
    if isinstance(teacher, ValueLayer):
        n_noise = teacher.layout.heads * L * L if score_noise else 0
        target, teacher_rank = partial(_teach_outputs, teacher, omega, A, score_noise), teacher.layout.rank
    error = _too_large(student, L)
    if student.least_operations(L) > MAX_OPERATIONS:
        raise error
    try:
        model = sequence_model(
            target, layer, n_tokens=L, rank=student.layout.rank, teacher_rank=teacher_rank, n_noise=n_noise, **options
        )
    except TooLargeError:
        raise error from None
    loss = sequence_loss(model.student.spec._replace(layout=student.layout))
    return replace(model, student=loss, head=student.attention)


def _too_large(layer: ValueLayer, L: int) -> ValueError:
    """Return the error that is raised for a layer with value matrices that is too large to be compiled."""
    layout, p = layer.layout, layer.readout.shape[1]
    needs = "a small layer with value matrices: its second derivatives are compiled as one function of all fields"
    got = f"{L} tokens, {count_noun(layout.heads, 'head')} with value matrices of {count_noun(layout.values, 'column')}"
    remedy = "4 tokens, one head, 4 columns and 20 outputs are possible; without value matrices there is no such limit"
    got = f"{got}, and {count_noun(p, 'output')} of a token"
    return ValueError(f"{check.fail_words('n_tokens, heads, values, readout', got, needs)}; {remedy}")


def _teach_outputs(layer: ValueLayer, omega: float, A: np.ndarray, s: float, u: Any, noise: Any) -> Any:
    """Return the outputs (L, p) of a teacher with fields u (L, t)."""
    size = len(A) ** 2

    def mix_attention(weights: Any, head: int) -> Any:
        mixture = (1 - omega) * weights + omega * A
        return mixture + s * noise[head * size : (head + 1) * size].reshape(A.shape) if s else mixture

    return layer(u, mix_attention)


def attention_model(
    n_tokens: int = 2,
    rank: int = 1,
    teacher_rank: int = 1,
    *,
    omega: float | None = None,
    sigma: ArrayLike | None = None,
    lam: float | str | Sequence[float | str] | None = None,
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
        0.01 if not given, which is necessary with `penalty`.
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
        each head. It can also be a function teacher(u, noise) of fields u (L, t), see `sequence_model`. Only small
        layers can be compiled: with one head and v = 4, for example, 4 tokens and p = 20.
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
        `readout` has another shape; or a layer with `values` is too large.

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
        raise check.fail_words("coordinates", got, f"a distribution of L = {L} tokens and t = {t} teacher columns")
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
    lam: float | None = None,
    A: ArrayLike = ((0.6, 0.4), (0.4, 0.6)),
    penalty: Penalty | None = None,
    score_noise: float = 0.0,
) -> Model:
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


def is_traceable(student: Any) -> bool:
    """Return whether `attention_loss` accepts the student."""
    return isinstance(student, DotProductAttention | MultiHeadAttention)


def attention_loss(student: Any, L: int, r: int) -> SequenceLoss:
    """Return the loss of a layer with r columns as a function of G, M and c (2 L² + 1,) and of the fields (L, r)."""
    P, loss = 2 * L * L + 1, partial(_evaluate_loss, student)
    program = UserFunction("loss", loss, {"target": (P,), "z": (L, r)}, "(2 L² + 1,)", "(L, r)").trace(required=True)
    assert program is not None
    layout = layout_of(student, r) or HeadLayout(1, student.parts, r // student.parts, 0, (0,))
    return sequence_loss(SequenceSpec(program, (P,), L, r, 0.0, -np.inf, False, student.even, False, layout))


def _evaluate_loss(student: Any, target: Any, z: Any) -> Any:
    """Return the loss of a sample, with operations that can be traced."""
    L = len(z)
    G, M = target[:-1].reshape(2, L, L)
    S = student.torch(z) if isinstance(student, MultiHeadAttention) else student(z)
    return 0.5 * np.sum(S * (S @ G)) - np.sum(S * M.T) + target[-1]


def sequence_targets(terms: RiskTerms) -> np.ndarray:
    """Return the targets (n, 2 L² + 1) of samples of a layer."""
    return np.column_stack([terms.params, terms.constant])


def attention_as_sequence(model: Model) -> SequenceModel:
    """Return the sequence model of an attention layer, in the limit d → ∞, for a student that `is_traceable`."""
    L, t, rho = model.n_tokens, model.teacher_rank, model.coordinates.trace
    teacher = partial(_teach_targets, model.teacher, rho, model.score_noise)
    labels = trace_teacher(teacher, L, t, L * L if model.score_noise else 0, None)
    loss = attention_loss(model.student, L, model.rank)
    return SequenceModel(labels, model.coordinates, model.penalty, model.rank, loss)


def _teach_targets(teacher: Any, rho: np.ndarray, s: float, u: Any, noise: Any) -> Any:
    """Return the targets of a sample with fields u (L, t), with operations that can be traced."""
    T, L = teacher(u), len(rho)
    if s:
        T = T + s * noise.reshape(L, L)
    constant = 0.5 * np.sum(T * T * rho)
    return np.concatenate([np.diag(rho).ravel(), (rho[:, None] * T.T).ravel(), np.array([constant])])
