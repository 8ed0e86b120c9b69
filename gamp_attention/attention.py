"""Student attention maps S: local fields z of shape (L, r) to attention matrices (L, L).

A map is a NamedTuple. Compiled code asks it for two things, dispatched on its type:

- `scores(attention, z, L, r, s)` fills s[i, j], the argument of the row softmax;
- `score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch)` adds the contribution of row i of
  the scores to the gradient and Hessian in z, given u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i².

Fields are flattened as z[l * r + a].
"""

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from gamp_attention._numba import inline_kernel, overload


class TiedSoftmax(NamedTuple):
    """S[z] = softmax over rows of z zᵀ / temperature: queries and keys share their weights, eq. (2), (15)."""

    temperature: float = 1.0

    @property
    def even(self) -> bool:
        """S[−z] = S[z]."""
        return True

    @property
    def rotations(self) -> bool:
        """S[z O] = S[z] for every rotation O of the columns."""
        return True

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """Attention matrices (..., L, L) of local fields (..., L, r)."""
        return softmax_rows(z @ np.swapaxes(z, -1, -2) / self.temperature)


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    """Softmax along the last axis, safe for large scores."""
    columns = [scores[..., j] for j in range(scores.shape[-1])]  # numpy reduces short axes slowly
    top = reduce(np.maximum, columns)
    weights = [np.exp(column - top) for column in columns]
    total = reduce(np.add, weights)
    return np.stack([weight / total for weight in weights], axis=-1)


@inline_kernel
def softmax_row(s, i):
    """Softmax of row i of s (L, L), in place."""
    top = s[i, 0]
    for j in range(1, s.shape[1]):
        top = max(top, s[i, j])
    total = 0.0
    for j in range(s.shape[1]):
        s[i, j] = np.exp(s[i, j] - top)
        total += s[i, j]
    for j in range(s.shape[1]):
        s[i, j] /= total


def is_instance(numba_type: Any, cls: type) -> bool:
    """Whether a numba type is the NamedTuple `cls`; used to choose an overload."""
    return isinstance(numba_type, types.BaseNamedTuple) and getattr(numba_type, "instance_class", None) is cls


def scores(attention, z, L, r, s):
    """Fill s (L, L) with the scores of the flat fields z. Compiled code only."""
    raise NotImplementedError("scores() is dispatched by numba on the type of the attention map")


def score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch):
    """Add row i's part of the gradient and Hessian in z. Compiled code only."""
    raise NotImplementedError("score_pullback() is dispatched by numba on the type of the attention map")


@overload(scores)
def _scores(attention, z, L, r, s):
    if not is_instance(attention, TiedSoftmax):
        return None

    def tied(attention, z, L, r, s):
        for i in range(L):
            for j in range(i + 1):
                dot = 0.0
                for a in range(r):
                    dot += z[i * r + a] * z[j * r + a]
                dot /= attention.temperature
                s[i, j] = dot
                s[j, i] = dot

    return tied


@overload(score_pullback)
def _score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch):
    if not is_instance(attention, TiedSoftmax):
        return None

    def tied(attention, z, L, r, i, u, B, grad, hess, scratch):
        # ∂s_ij/∂z_k = δ_ik z_j + δ_jk z_i, all over the temperature
        b1 = 1.0 / attention.temperature
        b2 = b1 * b1
        for j in range(L):
            c = b1 * u[j]
            for a in range(r):
                grad[i * r + a] += c * z[j * r + a]
                grad[j * r + a] += c * z[i * r + a]
                hess[i * r + a, j * r + a] += c
                hess[j * r + a, i * r + a] += c
        for m in range(L):  # scratch[m, a] = Σ_j B[j, m] z[j, a]
            for a in range(r):
                acc = 0.0
                for j in range(L):
                    acc += B[j, m] * z[j * r + a]
                scratch[m * r + a] = b2 * acc
        for a in range(r):
            for b in range(r):
                acc = 0.0
                for j in range(L):
                    acc += z[j * r + a] * scratch[j * r + b]
                hess[i * r + a, i * r + b] += acc
                zz = b2 * z[i * r + a] * z[i * r + b]
                for m in range(L):
                    cross = scratch[m * r + a] * z[i * r + b]
                    hess[i * r + a, m * r + b] += cross
                    hess[m * r + b, i * r + a] += cross
                    for k in range(L):
                        hess[k * r + a, m * r + b] += B[k, m] * zz

    return tied
