"""From rows of scores to attention weights, in compiled code, and the derivatives of a sample's loss in the scores.

Kernels ask an attention map for two things here, dispatched on its type:

- `attend_row(attention, s, i)` turns row i of the scores s (L, L) into attention weights, in place;
- `row_derivatives(attention, p, s, i, slack, u, B, GJ)`, with the weights in row i of s and slack = ∂φ_i/∂S_i, fills
  u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i², for φ_i(S) = ½ S G S − S M_i with the parameters p of G and M.
"""

import numpy as np

from gamp_attention._core.compiled import inline_kernel, is_instance, overload
from gamp_attention.losses.dot_product import DotProductAttention


def attend_row(attention, s, i):
    """Turn row i of the scores into attention weights. Compiled code only."""
    raise NotImplementedError("attend_row() is dispatched by numba on the type of the attention map")


def row_derivatives(attention, p, s, i, slack, u, B, GJ):
    """Fill u and B, the gradient and Hessian of φ_i in the scores of row i. Compiled code only."""
    raise NotImplementedError("row_derivatives() is dispatched by numba on the type of the attention map")


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
