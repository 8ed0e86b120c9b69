"""Attention map S of the student, from local fields z (L, r) to attention matrices (L, L).

A map is a NamedTuple. Compiled code calls `is_bounded` on it, dispatched on its type. The kernels are in
`gamp_attention.losses.attention_kernels` for dot products, and in `gamp_attention.losses.user_attention` for
user-defined maps.
"""

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.compiled import is_instance, overload


class DotProductAttention(NamedTuple):
    """Dot-product attention S[z], with scores z_i·z_j / temperature, or q_i·k_j / temperature for separate keys.

    Eq. :eq:`student`.

    Attributes
    ----------
    temperature : positive number by which the scores are divided.
    tied : whether queries and keys have the same weights, eq. (2), (15). If not, the first half of the columns of Q are
        queries and the second half are keys, eq. (124).
    causal : whether token i attends only to tokens up to i.
    softmax : whether rows are normalised by a softmax; if not, attention is linear: the scores are the weights.

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
        """True: S[−z] = S[z]."""
        return True

    @property
    def rotations(self) -> bool:
        """True: S[z O] = S[z] for every rotation O of the columns, applied to both queries and keys."""
        return True

    @property
    def parts(self) -> int:
        """Number of weight matrices in the columns of Q: 1, or 2 for queries and keys."""
        return 1 if self.tied else 2

    def __call__(self, z: Any) -> Any:
        """Return attention matrices (..., L, L) for local fields (..., L, r), numpy arrays or torch tensors."""
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
    """Return a map after checks: a DotProductAttention needs a positive temperature and three flags."""
    if not isinstance(attention, DotProductAttention):
        return attention
    temperature = check.real(f"{name}.temperature", attention.temperature, low=0, strict=True)
    flags = {flag: check.flag(f"{name}.{flag}", getattr(attention, flag)) for flag in ("tied", "causal", "softmax")}
    return DotProductAttention(temperature, **flags)


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis, without overflow for large scores."""
    columns = [scores[..., j] for j in range(scores.shape[-1])]  # numpy reduces short axes slowly
    top = reduce(np.maximum, columns)
    weights = [np.exp(column - top) for column in columns]
    total = reduce(np.add, weights)
    return np.stack([weight / total for weight in weights], axis=-1)


def is_bounded(attention):
    """Return whether attention weights are positive and add to 1. Compiled code only."""
    raise NotImplementedError("is_bounded() is dispatched by numba on the type of the attention map")


@overload(is_bounded)
def _is_bounded(attention):
    if is_instance(attention, DotProductAttention):
        return lambda attention: attention.softmax
    return None
