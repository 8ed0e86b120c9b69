"""Attention layers with value matrices: f(x) = Σ_h S_h[z] z_h R_h, a function of the fields of a sample.

The fields z = (x + p) Q/√d contain the queries and keys of all heads, and their values z_h (L, v). The read-out R
(H v, p) is fixed. Since outputs have p numbers for each token, whatever d is, such a layer is a sequence multi-index
model with the loss ½ ‖y − f(x)‖² of a sample. The layer is traced from Python (`gamp_attention.models.sequence`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention.losses.attention import DotProductAttention, require_valid_attention
from gamp_attention.losses.heads import HeadLayout, MultiHeadAttention
from gamp_attention.losses.sequence import sequence_loss
from gamp_attention.models.sequence import SequenceModel, sequence_model


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
        else check.array("readout", readout, (heads * values, "p"))
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
        target, teacher_rank = partial(_teach, teacher, omega, A, score_noise), teacher.layout.rank
    model = sequence_model(
        target, layer, n_tokens=L, rank=student.layout.rank, teacher_rank=teacher_rank, n_noise=n_noise, **options
    )
    loss = sequence_loss(model.student.spec._replace(layout=student.layout))
    return replace(model, student=loss, head=student.attention)


def _teach(layer: ValueLayer, omega: float, A: np.ndarray, s: float, u: Any, noise: Any) -> Any:
    """Return the outputs (L, p) of a teacher with fields u (L, t)."""
    size = len(A) ** 2

    def mix_attention(weights: Any, head: int) -> Any:
        mixture = (1 - omega) * weights + omega * A
        return mixture + s * noise[head * size : (head + 1) * size].reshape(A.shape) if s else mixture

    return layer(u, mix_attention)
