"""Compiled code of `DotProductAttention`: scores of the fields, attention weights, and derivatives of the loss.

Fields are flattened as z[l * r + a]. φ_i(S) = ½ S G S − S M_i is the loss of row i; p contains G and M. Derivatives are
computed in three steps: of φ_i in the attention weights (`slack`), in the scores (u, B), and in the fields.
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
    """Replace row i of the scores s (L, L) by attention weights."""
    count = i + 1 if attention.causal else s.shape[1]
    if attention.softmax:
        _softmax_row(s, i, count)
    else:
        for j in range(count, s.shape[1]):
            s[i, j] = 0.0


@inline_kernel
def _softmax_row(s, i, count):
    # softmax of the first `count` entries; the other entries are set to 0
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
def row_derivatives(attention, p, s, i, slack, u, B, GS):
    """Fill u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i², with the weights in row i of s and slack = ∂φ_i/∂S_i."""
    if attention.softmax:
        _softmax_derivatives(p, s, i, slack, u, B, GS)
    else:
        L = s.shape[1]
        count = i + 1 if attention.causal else L
        for j in range(L):
            u[j] = slack[j] if j < count else 0.0
            for k in range(L):
                B[j, k] = p[j * L + k] if j < count and k < count else 0.0


@inline_kernel
def _softmax_derivatives(p, s, i, slack, u, B, GS):
    # ∂S/∂s = diag(S) − S Sᵀ; with GS = G S, whose mean under the weights S is c, and for symmetric G,
    # B_jk = S_j S_k (G_jk − GS_j − GS_k + c) − S_j u_k − S_k u_j + δ_jk u_k
    L = s.shape[1]
    softmax_slope(s, i, slack, u)
    total = 0.0
    for j in range(L):
        GS[j] = slack[j] + p[L * L + j * L + i]
        total += s[i, j] * GS[j]
    for j in range(L):
        weight, slope, product = s[i, j], u[j], GS[j] - total
        for k in range(L):
            B[j, k] = s[i, k] * (weight * (p[j * L + k] - product - GS[k]) - slope) - weight * u[k]
        B[j, j] += slope


@inline_kernel
def softmax_slope(s, i, slack, u):
    """Fill u = ∂φ_i/∂s_i with the weights in row i of s and slack = ∂φ_i/∂S_i."""
    L, mean = s.shape[1], 0.0
    for j in range(L):
        mean += s[i, j] * slack[j]
    for j in range(L):
        u[j] = s[i, j] * (slack[j] - mean)


@inline_kernel
def fill_slack(p, s, i, slack):
    """Fill slack = ∂φ_i/∂S_i = (G S_i) − M_i for the weights in row i of s (L, L), and return φ_i."""
    L = s.shape[1]
    for j in range(L):
        slack[j] = 0.0
    for k in range(L):  # G is symmetric, and its rows are contiguous
        weight = s[i, k]
        for j in range(L):
            slack[j] += weight * p[k * L + j]
    value = 0.0
    for j in range(L):
        m = p[L * L + j * L + i]
        value += s[i, j] * (0.5 * slack[j] - m)
        slack[j] -= m
    return value


@inline_kernel
def row_slope(attention, s, i, slack, u):
    """Fill u = ∂φ_i/∂s_i, like `row_derivatives` without second derivatives."""
    if attention.softmax:
        softmax_slope(s, i, slack, u)
    else:
        L = s.shape[1]
        count = i + 1 if attention.causal else L
        for j in range(L):
            u[j] = slack[j] if j < count else 0.0


@inline_kernel
def pull_back_slope(attention, z, L, r, i, u, grad):
    """Add the gradient of φ_i in z to grad, where u = ∂φ_i/∂s_i; like `pull_back` without the Hessian."""
    b1 = 1.0 / attention.temperature
    half = r if attention.tied else r // 2
    first = 0 if attention.tied else half  # column of the keys
    for j in range(L):
        c = b1 * u[j]
        for a in range(half):
            q, k = i * r + a, j * r + first + a
            along, across = c * z[k], c * z[q]
            grad[q] += along
            grad[k] += across


@inline_kernel
def pull_back(attention, z, L, r, i, u, B, grad, hess, scratch, blocks):
    """Add the gradient and Hessian of φ_i in z to grad and hess, where u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i².

    For tied weights, most of the Hessian is added to `blocks`, and `add_blocks` adds it to hess after the last row.
    """
    b1 = 1.0 / attention.temperature
    if attention.tied:
        _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch, blocks)
    else:
        _pull_untied(z, L, r, i, u, B, b1, grad, hess)


@inline_kernel
def clear_blocks(L, r, blocks):
    """Set `blocks` (r (r + 1)/2, L²) to zero: one L × L matrix for each pair of columns."""
    for pair in range(r * (r + 1) // 2):
        for e in range(L * L):
            blocks[pair, e] = 0.0


@inline_kernel
def add_blocks(L, r, blocks, hess):
    """Add the matrix of columns a ≥ b, blocks[a (a + 1)/2 + b], to the entries (k a, m b) and (k b, m a) of hess."""
    for a in range(r):
        for b in range(a + 1):
            pair = a * (a + 1) // 2 + b
            for k in range(L):
                for m in range(L):
                    hess[k * r + a, m * r + b] += blocks[pair, k * L + m]
                    if a > b:
                        hess[k * r + b, m * r + a] += blocks[pair, k * L + m]


@inline_kernel
def _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch, blocks):
    # ∂s_ij/∂z_k = δ_ik z_j + δ_jk z_i, all over the temperature
    b2 = b1 * b1
    for j in range(L):
        c = b1 * u[j]
        for a in range(r):
            grad[i * r + a] += c * z[j * r + a]
            grad[j * r + a] += c * z[i * r + a]
            hess[i * r + a, j * r + a] += c
            hess[j * r + a, i * r + a] += c
    Bz = scratch.reshape((r, L))
    for a in range(r):
        for m in range(L):
            Bz[a, m] = 0.0
    for j in range(L):  # Bz[a, m] = b2 Σ_j B[j, m] z[j, a]: rows of B are contiguous
        for a in range(r):
            weight = b2 * z[j * r + a]
            for m in range(L):
                Bz[a, m] += weight * B[j, m]
    for a in range(r):
        for b in range(r):
            acc = 0.0
            for j in range(L):
                acc += z[j * r + a] * Bz[b, j]
            hess[i * r + a, i * r + b] += acc
            for m in range(L):
                cross = Bz[a, m] * z[i * r + b]
                hess[i * r + a, m * r + b] += cross
                hess[m * r + b, i * r + a] += cross
    flat = B.reshape(L * L)
    for a in range(r):
        for b in range(a + 1):  # Σ_i z_ia z_ib B_i: long loops over matrices are faster than short loops over columns
            zz, pair = b2 * z[i * r + a] * z[i * r + b], a * (a + 1) // 2 + b
            for e in range(L * L):
                blocks[pair, e] += zz * flat[e]


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
