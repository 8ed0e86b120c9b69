"""Attention layers with value matrices, f(x) = Σ_h S_h[z] z_h R_h, as sequence models.

The fields z = (x + p) Q/√d of a sample contain the queries and keys of all heads, and their values z_h (L, v). The
read-out R (H v, p) is fixed. Since outputs have p numbers for each token, whatever d is, such a layer is a sequence
multi-index model with the loss ½ ‖y − f(x)‖² of a sample. The layer is traced from Python
(`gamp_attention.extensions.sequence.sequence`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention.extensions.sequence.sequence import SequenceModel, sequence_model
from gamp_attention.extensions.sequence.sequence_loss import MAX_OPERATIONS, sequence_loss
from gamp_attention.problem.losses.attention import (
    DotProductAttention,
    HeadLayout,
    require_heads,
    require_valid_attention,
)
from gamp_attention.theory.models.attention import default_mixing
from gamp_attention.theory.models.coordinate_classes import isotropic_law


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
            weights = mixed(self.attention(z[:, self.layout.scores(head).ravel()]), head)
            rows = slice(head * self.layout.values, (head + 1) * self.layout.values)
            total = total + weights @ (z[:, self.layout.value_columns(head)] @ self.readout[rows])
        return total


def _build_layer(
    student: Any, heads: int, rank: int, values: int, readout: np.ndarray, name: str = "rank"
) -> ValueLayer:
    """Return the layer of H heads with `rank` columns of scores and `values` columns of values each, after checks."""
    single = getattr(require_valid_attention("student", student), "single", None)
    if single is None:
        raise check.fail("student", student, "a DotProductAttention for a layer with value matrices", TypeError)
    if rank % single.parts:
        raise check.fail(name, rank, f"a multiple of {single.parts}, as queries and keys have separate columns")
    blocks = readout.reshape(heads, values, -1)
    kinds = tuple(next(k for k in range(h + 1) if np.array_equal(blocks[k], blocks[h])) for h in range(heads))
    return ValueLayer(single, HeadLayout(heads, single.parts, rank // single.parts, values, kinds), readout)


def value_model(
    n_tokens: int = 2,
    rank: int = 1,
    teacher_rank: int = 1,
    *,
    values: int = 1,
    readout: ArrayLike | None = None,
    heads: int | None = None,
    omega: float = 0.3,
    sigma: ArrayLike = 0.5,
    lam: float | str | Sequence[float | str] | None = None,
    A: ArrayLike | None = None,
    tau: ArrayLike | None = None,
    student: DotProductAttention | None = None,
    score_noise: float = 0.0,
    intercept: bool = False,
) -> SequenceModel:
    """Build the model of an attention layer whose heads have value matrices.

    The layer returns f(x) = Σ_h S_h[z] z_h R_h for fields z_h (L, v) of the values and a fixed read-out R. Its targets
    (L, p) are labels with the loss ½ ‖y − f(x)‖², so it is a sequence model. The teacher is a layer with the student's
    heads, values and read-out, and attention (1 − ω) S_h[u] + ω A + s N_h in head h, with white noise N_h (L, L).

    Parameters
    ----------
    n_tokens : number of tokens L.
    rank, teacher_rank : columns of the queries (and keys) of each head, of the student and of the teacher.
    values : columns v of the value matrix of each head. Only small layers can be compiled: with one head and v = 4, for
        example, 4 tokens and p = 20.
    readout : (H v, p) read-out R; if not given, the values of the heads are added, so that p = v.
    heads : number of heads H; one head, or the heads of `student`, if not given.
    omega, sigma, lam, A, tau, student, score_noise : as for `attention_model`.
    intercept : whether an intercept without a penalty is added to the fields of each column: the biases of queries,
        keys and values.

    Returns
    -------
    SequenceModel, whose columns are the scores of all heads, followed by their values.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if a size is below 1; `omega` is outside [0, 1]; `sigma` or `lam` is not positive; `score_noise` is
        negative; `A`, `tau` or `readout` has another shape; `heads` differs from the heads of `student`; or the layer
        is too large.

    Examples
    --------
    Two heads with value matrices of one column each:

    >>> import gamp_attention as ga
    >>> layer = ga.value_model(heads=2, values=1, readout=[[1.0, 0.0], [0.0, 1.0]])
    >>> layer.rank, layer.target_shape
    (4, (2, 2))
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    r, t = check.integer("rank", rank, low=1), check.integer("teacher_rank", teacher_rank, low=1)
    student = DotProductAttention() if student is None else student
    H, v = require_heads(heads, student), check.integer("values", values, low=1)
    check.require_memory("heads, values, rank", H * (r + v), H * (r + v))
    R = np.tile(np.eye(v), (H, 1)) if readout is None else np.array(check.array("readout", readout, (H * v, "p")))
    omega, noise = check.real("omega", omega, low=0, high=1), check.real("score_noise", score_noise, low=0)
    A = default_mixing(L) if A is None else check.array("A", A, (L, L))
    layer, taught = _build_layer(student, H, r, v, R), _build_layer(student, H, t, v, R, "teacher_rank")
    columns, p = layer.layout.rank, np.count_nonzero(R) / (H * v)  # outputs that each value enters
    if 2 * H * L**3 * (p + columns / H - v) * columns > MAX_OPERATIONS:  # at least 5 times fewer than are needed
        got = f"{L} tokens, {count_noun(H, 'head')} with {count_noun(v, 'value')}, {count_noun(R.shape[1], 'output')}"
        needs = "a small layer with value matrices, which is compiled as one function of all fields"
        raise check.fail_words("n_tokens, heads, values, readout", got, needs)
    model = sequence_model(
        partial(_teach_outputs, taught, omega, A, noise), layer, n_tokens=L, rank=columns,
        teacher_rank=taught.layout.rank, n_noise=H * L * L * (noise > 0), sigma=sigma, lam=lam, intercept=intercept,
    )  # fmt: skip
    loss = sequence_loss(model.student.spec._replace(layout=layer.layout))
    law = isotropic_law(L, taught.layout.rank, sigma, np.linspace(1, -1, L) * (L > 1) if tau is None else tau)
    return replace(model, student=loss, head=layer.attention, coordinates=law)


def _teach_outputs(layer: ValueLayer, omega: float, A: np.ndarray, s: float, u: Any, noise: Any) -> Any:
    """Return the outputs (L, p) of a teacher with fields u (L, t)."""
    size = len(A) ** 2

    def mix_attention(weights: Any, head: int) -> Any:
        mixture = (1 - omega) * weights + omega * A
        return mixture + s * noise[head * size : (head + 1) * size].reshape(A.shape) if s else mixture

    return layer(u, mix_attention)
