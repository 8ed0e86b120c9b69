"""The attention map S of the student, from local fields z (L, r) to attention matrices (L, L).

A map is a NamedTuple. Compiled code asks it, dispatched on its type, whether it `is_bounded`. What it computes is in
`gamp_attention.losses.attention_kernels` for dot products, in `gamp_attention.losses.user_attention` for users' maps.
"""

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.compiled import is_instance, overload


class DotProductAttention(NamedTuple):
    """S[z] from scores z_i·z_j / temperature, or q_i·k_j / temperature where keys have weights of their own.

    Eq. :eq:`student`.

    Attributes
    ----------
    temperature : divides the scores.
    tied : queries and keys share their weights, eq. (2), (15). If not, the first half of the columns of Q are queries,
        the second half keys, eq. (124).
    causal : token i attends only to tokens up to i.
    softmax : rows are normalised by a softmax; if not, attention is linear and the scores are the weights.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> ga.DotProductAttention(causal=True)(np.ones((2, 1))).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    temperature: float = 1.0
    tied: bool = True
    causal: bool = False
    softmax: bool = True

    @property
    def even(self) -> bool:
        """S[−z] = S[z]."""
        return True

    @property
    def rotations(self) -> bool:
        """S[z O] = S[z] for every rotation O of the columns, the same one for queries and keys."""
        return True

    @property
    def parts(self) -> int:
        """Weight matrices that Q holds side by side: one, or queries and keys."""
        return 1 if self.tied else 2

    def __call__(self, z: Any) -> Any:
        """Attention matrices (..., L, L) of local fields (..., L, r); arrays of numpy or tensors of torch."""
        half = z.shape[-1] // 2
        queries, keys = (z, z) if self.tied else (z[..., :half], z[..., half:])
        weights = queries @ keys.swapaxes(-1, -2) / self.temperature
        plain = isinstance(z, np.ndarray)
        if self.causal:
            later, nothing = ~np.tri(z.shape[-2], dtype=bool), -np.inf if self.softmax else 0.0
            if plain:
                weights[..., later] = nothing
            else:
                weights = weights.masked_fill(weights.new_tensor(later) > 0, nothing)
        if not self.softmax:
            return weights
        return softmax_rows(weights) if plain else weights.softmax(dim=-1)


def checked_attention(name: str, attention: Any) -> Any:
    """The map itself; fields of a DotProductAttention have to be a positive number and three flags."""
    if not isinstance(attention, DotProductAttention):
        return attention
    temperature = check.real(f"{name}.temperature", attention.temperature, low=0, strict=True)
    flags = {each: check.flag(f"{name}.{each}", getattr(attention, each)) for each in ("tied", "causal", "softmax")}
    return DotProductAttention(temperature, **flags)


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    """Softmax along the last axis, safe for large scores."""
    columns = [scores[..., j] for j in range(scores.shape[-1])]  # numpy reduces short axes slowly
    top = reduce(np.maximum, columns)
    weights = [np.exp(column - top) for column in columns]
    total = reduce(np.add, weights)
    return np.stack([weight / total for weight in weights], axis=-1)


def is_bounded(attention):
    """Whether attention weights are positive and add to 1. Compiled code only."""
    raise NotImplementedError("is_bounded() is dispatched by numba on the type of the attention map")


@overload(is_bounded)
def _is_bounded(attention):
    if is_instance(attention, DotProductAttention):
        return lambda attention: attention.softmax
    return None
