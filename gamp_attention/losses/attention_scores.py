"""From local fields to scores, in compiled code, and derivatives in the scores pulled back to the fields.

Kernels ask an attention map for two things here, dispatched on its type:

- `scores(attention, z, L, r, s)` fills s (L, L);
- `score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch)` adds the contribution of row i, with first and
  second derivatives u and B in the scores, to the gradient and Hessian in z.

Fields are flattened as z[l * r + a].
"""

from gamp_attention._core.compiled import inline_kernel, is_instance, overload
from gamp_attention.losses.dot_product import DotProductAttention


def scores(attention, z, L, r, s):
    """Fill s (L, L) with the scores of the flat fields z. Compiled code only."""
    raise NotImplementedError("scores() is dispatched by numba on the type of the attention map")


def score_pullback(attention, z, L, r, i, u, B, grad, hess, scratch):
    """Add row i's part of the gradient and Hessian in z. Compiled code only."""
    raise NotImplementedError("score_pullback() is dispatched by numba on the type of the attention map")


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
