"""Attention between correlated tokens, written as a map of decorrelated tokens."""

from typing import NamedTuple

import numpy as np

from gamp_attention.losses.attention_kernels import attend_row, fill_scores
from gamp_attention.losses.dot_product import DotProductAttention
from gamp_attention.losses.registration import register_attention


@register_attention
class TurnedAttention(NamedTuple):
    """Attention map S[H z] H of decorrelated tokens u, for tokens x = H u.

    ‖(T − S) x‖ is the norm of (T H − S H) u, so learning T from x is learning T[H ·] H from u.

    Attributes
    ----------
    attention : attention map S of the correlated tokens.
    mixing : the L² entries of H, row by row.
    """

    attention: DotProductAttention
    mixing: tuple[float, ...]

    @property
    def even(self) -> bool:
        """True if S[−z] = S[z]."""
        return self.attention.even

    @property
    def rotations(self) -> bool:
        """True if S[z O] = S[z] for every rotation O of the columns."""
        return self.attention.rotations

    @property
    def parts(self) -> int:
        """Number of weight matrices in the columns of Q."""
        return self.attention.parts

    def attend(self, z, S):
        """Fill S (L, L) from fields z (L, r). Compiled code."""
        L, r = z.shape
        mixed, row = np.zeros(L * r), np.empty(L)
        for i in range(L):
            for k in range(L):
                for a in range(r):
                    mixed[i * r + a] += self.mixing[i * L + k] * z[k, a]
        fill_scores(self.attention, mixed, L, r, S)
        for i in range(L):
            attend_row(self.attention, S, i)
            for j in range(L):
                row[j] = S[i, j]
                S[i, j] = 0.0
            for k in range(L):
                for j in range(L):
                    S[i, j] += row[k] * self.mixing[k * L + j]

    def torch(self, z):
        """Return attention matrices (n, L, L) for a tensor of fields (n, L, r)."""
        H = z.new_tensor(self.mixing).reshape(z.shape[-2], z.shape[-2])
        return self.attention(H @ z) @ H
