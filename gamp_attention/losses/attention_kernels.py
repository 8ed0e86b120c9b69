"""`DotProductAttention` in compiled code: from fields to scores to attention weights, and derivatives all the way back.

Fields are flattened as z[l * r + a]; φ_i(S) = ½ S G S − S M_i is the loss of row i, with the parameters p of G and M.
"""

import numpy as np

from gamp_attention._core.compiled import inline_kernel


@inline_kernel
def fill_scores(attention, z, L, r, s):
    """Fill s (L, L) with the scores of the fields."""
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


@inline_kernel
def attend_row(attention, s, i):
    """Turn row i of the scores s (L, L) into attention weights, in place."""
    count = i + 1 if attention.causal else s.shape[1]
    if attention.softmax:
        _softmax_row(s, i, count)
    else:
        for j in range(count, s.shape[1]):
            s[i, j] = 0.0


@inline_kernel
def _softmax_row(s, i, count):
    # of the first `count` entries; the others become 0
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
def row_derivatives(attention, p, s, i, slack, u, B, GJ):
    """Fill u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i², with the weights in row i of s and slack = ∂φ_i/∂S_i."""
    if attention.softmax:
        _softmax_derivatives(p, s, i, slack, u, B, GJ)
    else:
        L = s.shape[1]
        count = i + 1 if attention.causal else L
        for j in range(L):
            u[j] = slack[j] if j < count else 0.0
            for k in range(L):
                B[j, k] = p[j * L + k] if j < count and k < count else 0.0


@inline_kernel
def _softmax_derivatives(p, s, i, slack, u, B, GJ):
    # by J = diag(S) − S Sᵀ
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


@inline_kernel
def pull_back(attention, z, L, r, i, u, B, grad, hess, scratch):
    """Add the part of row i, with derivatives u and B in its scores, to the gradient and Hessian in z."""
    b1 = 1.0 / attention.temperature
    if attention.tied:
        _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch)
    else:
        _pull_untied(z, L, r, i, u, B, b1, grad, hess)


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
