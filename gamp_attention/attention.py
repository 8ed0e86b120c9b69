"""Student attention maps S: local fields z of shape (L, r) to attention matrices (L, L).

A map is a NamedTuple. Compiled code asks it for five things, dispatched on its type, row by row of the scores s:

- `scores(attention, z, L, r, s)` fills s (L, L);
- `attend_row(attention, s, i)` turns row i of the scores into attention weights, in place;
- `row_derivatives(attention, p, s, i, slack, u, B, GJ)`, with the weights in row i of s and slack = ∂φ_i/∂S_i, fills
  u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i², for φ_i(S) = ½ S G S − S M_i with the parameters p of G and M;
- `is_bounded(attention)` tells whether every row of weights lies in the simplex;
- `score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch)` adds the contribution of row i to the gradient and
  Hessian in z.

Fields are flattened as z[l * r + a].
"""

from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numba.core import types

from gamp_attention import _validation as check
from gamp_attention._numba import inline_kernel, overload


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
    """A map whose fields, where it is a DotProductAttention, are a positive number and three flags."""
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


def is_instance(numba_type: Any, cls: type) -> bool:
    """Whether a numba type is the NamedTuple `cls`; used to choose an overload."""
    return isinstance(numba_type, types.BaseNamedTuple) and getattr(numba_type, "instance_class", None) is cls


def scores(attention, z, L, r, s):
    """Fill s (L, L) with the scores of the flat fields z. Compiled code only."""
    raise NotImplementedError("scores() is dispatched by numba on the type of the attention map")


def is_bounded(attention):
    """Whether attention weights are positive and add to 1. Compiled code only."""
    raise NotImplementedError("is_bounded() is dispatched by numba on the type of the attention map")


def attend_row(attention, s, i):
    """Turn row i of the scores into attention weights. Compiled code only."""
    raise NotImplementedError("attend_row() is dispatched by numba on the type of the attention map")


def row_derivatives(attention, p, s, i, slack, u, B, GJ):
    """Fill u and B, the gradient and Hessian of φ_i in the scores of row i. Compiled code only."""
    raise NotImplementedError("row_derivatives() is dispatched by numba on the type of the attention map")


def score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch):
    """Add row i's part of the gradient and Hessian in z. Compiled code only."""
    raise NotImplementedError("score_pullback() is dispatched by numba on the type of the attention map")


@inline_kernel
def softmax_row(s, i, count):
    """Softmax of the first `count` entries of row i of s (L, L), in place; the others become 0."""
    top = s[i, 0]
    for j in range(1, count):
        top = max(top, s[i, j])
    total = 0.0
    for j in range(count):
        s[i, j] = np.exp(s[i, j] - top)
        total += s[i, j]
    for j in range(count):
        s[i, j] /= total
    for j in range(count, s.shape[1]):
        s[i, j] = 0.0


@inline_kernel
def softmax_derivatives(p, s, i, slack, u, B, GJ):
    """Gradient u and Hessian B of φ_i in the scores of a softmax row with weights s[i], by J = diag(S) − S Sᵀ."""
    L = s.shape[1]
    mean = 0.0
    for j in range(L):
        mean += s[i, j] * slack[j]
    for j in range(L):
        u[j] = s[i, j] * (slack[j] - mean)
    for j in range(L):
        gs = 0.0
        for k in range(L):
            gs += p[j * L + k] * s[i, k]
        for k in range(L):
            GJ[j, k] = (p[j * L + k] - gs) * s[i, k]
    for k in range(L):
        column = 0.0
        for j in range(L):
            column += s[i, j] * GJ[j, k]
        for j in range(L):
            B[j, k] = s[i, j] * (GJ[j, k] - column) - s[i, k] * u[j] - s[i, j] * u[k]
        B[k, k] += u[k]


@overload(scores)
def _scores(attention, z, L, r, s):
    if not is_instance(attention, DotProductAttention):
        return None

    def dot_products(attention, z, L, r, s):
        if attention.tied:
            for i in range(L):
                for j in range(i + 1):
                    dot = 0.0
                    for a in range(r):
                        dot += z[i * r + a] * z[j * r + a]
                    dot /= attention.temperature
                    s[i, j] = dot
                    s[j, i] = dot
        else:
            half = r // 2
            for i in range(L):
                for j in range(L):
                    dot = 0.0
                    for a in range(half):
                        dot += z[i * r + a] * z[j * r + half + a]
                    s[i, j] = dot / attention.temperature

    return dot_products


@overload(is_bounded)
def _is_bounded(attention):
    if is_instance(attention, DotProductAttention):
        return lambda attention: attention.softmax
    return None


@overload(attend_row)
def _attend_row(attention, s, i):
    if not is_instance(attention, DotProductAttention):
        return None

    def masked_softmax(attention, s, i):
        count = i + 1 if attention.causal else s.shape[1]
        if attention.softmax:
            softmax_row(s, i, count)
        else:
            for j in range(count, s.shape[1]):
                s[i, j] = 0.0

    return masked_softmax


@overload(row_derivatives)
def _row_derivatives(attention, p, s, i, slack, u, B, GJ):
    if not is_instance(attention, DotProductAttention):
        return None

    def masked_softmax(attention, p, s, i, slack, u, B, GJ):
        if attention.softmax:
            softmax_derivatives(p, s, i, slack, u, B, GJ)
        else:
            L = s.shape[1]
            count = i + 1 if attention.causal else L
            for j in range(L):
                u[j] = slack[j] if j < count else 0.0
                for k in range(L):
                    B[j, k] = p[j * L + k] if j < count and k < count else 0.0

    return masked_softmax


@overload(score_pullback)
def _score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch):
    if not is_instance(attention, DotProductAttention):
        return None

    def dot_products(attention, z, L, r, i, u, B, grad, hess, scratch):
        b1 = 1.0 / attention.temperature
        if attention.tied:
            _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch)
        else:
            _pull_untied(z, L, r, i, u, B, b1, grad, hess)

    return dot_products


@inline_kernel
def _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch):
    # ∂s_ij/∂z_k = δ_ik z_j + δ_jk z_i, all over the temperature
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


@inline_kernel
def _pull_untied(z, L, r, i, u, B, b1, grad, hess):
    # s_ij = q_i·k_j: derivative k_j in q_i and q_i in k_j, all over the temperature
    half, b2 = r // 2, b1 * b1
    for j in range(L):
        c = b1 * u[j]
        for a in range(half):
            q, k = i * r + a, j * r + half + a
            grad[q] += c * z[k]
            grad[k] += c * z[q]
            hess[q, k] += c
            hess[k, q] += c
    for j in range(L):
        for m in range(L):
            w = b2 * B[j, m]
            for a in range(half):
                for b in range(half):
                    qa, qb = i * r + a, i * r + b
                    ka, kb = j * r + half + a, m * r + half + b
                    hess[qa, qb] += w * z[ka] * z[kb]
                    hess[qa, kb] += w * z[ka] * z[qb]
                    hess[kb, qa] += w * z[ka] * z[qb]
                    hess[ka, kb] += w * z[qa] * z[qb]
