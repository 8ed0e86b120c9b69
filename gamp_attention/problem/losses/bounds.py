"""Lower bounds of per-sample losses and of their curvature, which certify that a proximal problem has one minimum.

A point z with a lower proximal objective than a known minimum lies in an ellipsoid around ω, whose size follows from a
lower bound of ℓ. If the Hessian of the objective is positive definite in this ellipsoid, there is no second minimum in
it; see `gamp_attention.problem.denoisers.prox.is_unique`. This module has the bounds of attention layers.
"""

import numpy as np

from gamp_attention._kernels.compiled import inline_kernel


@inline_kernel
def attention_floor(L, p, bounded, B, u, slack):
    """Return a lower bound of the loss of an attention layer; B (L, L), u (L,) and slack (L,) are scratch.

    If `bounded` is True, the attention weights of each row are positive and add up to 1.
    """
    return _simplex_floor(L, p, u, slack) if bounded else _quadratic_floor(L, p, B, u)


@inline_kernel
def _simplex_floor(L, p, S, slack):
    # Lower bound of Σ_i min ½ S·G S − S·M_i over rows S that are positive and add up to 1. G is positive semi-definite,
    # so each row is a convex problem on the simplex. Frank-Wolfe steps with exact line search solve it: the slope of
    # the objective from an iterate toward the best corner, the gap, bounds how far the minimum lies below the iterate,
    # so value − gap is a lower bound after any number of steps. For L = 2 the first step is exact.
    floor = 0.0
    for i in range(L):
        for j in range(L):
            S[j] = 1.0 / L
            gs = 0.0
            for k in range(L):
                gs += p[j * L + k] / L
            slack[j] = gs - p[L * L + j * L + i]
        best = -np.inf
        for _ in range(2 * L):
            value, mean, lowest = 0.0, 0.0, 0
            for j in range(L):
                value += 0.5 * S[j] * (slack[j] - p[L * L + j * L + i])
                mean += S[j] * slack[j]
                if slack[j] < slack[lowest]:
                    lowest = j
            gap = mean - slack[lowest]
            best = max(best, value - gap)
            curvature = p[lowest * L + lowest]
            for j in range(L):
                curvature += S[j] * (slack[j] + p[L * L + j * L + i] - 2.0 * p[lowest * L + j])
            step = 1.0
            if gap < curvature:
                step = gap / curvature
            if gap <= 1e-12 * abs(value) or step <= 0.0:
                break
            for j in range(L):  # G S is updated, so that an iteration costs L operations instead of L²
                S[j] *= 1.0 - step
                slack[j] += step * (p[lowest * L + j] - slack[j] - p[L * L + j * L + i])
            S[lowest] += step
        floor += best
    return floor


@inline_kernel
def _quadratic_floor(L, p, chol, x):
    # −½ Σ_i M_i·G⁻¹ M_i, the minimum of Σ_i ½ S_i·G S_i − S_i·M_i over all rows S_i, by a Cholesky factor of G;
    # −inf if G is not positive definite
    for i in range(L):
        for j in range(i + 1):
            acc = p[i * L + j]
            for m in range(j):
                acc -= chol[i, m] * chol[j, m]
            if i > j:
                chol[i, j] = acc / chol[j, j]
            elif acc > 0.0:
                chol[i, i] = np.sqrt(acc)
            else:
                return -np.inf
    floor = 0.0
    for i in range(L):
        for j in range(L):
            acc = p[L * L + j * L + i]
            for m in range(j):
                acc -= chol[j, m] * x[m]
            x[j] = acc / chol[j, j]
            floor -= 0.5 * x[j] * x[j]
    return floor


@inline_kernel
def gradient_spread(L, p):
    """Return a bound of the difference of two entries of ∂φ_i/∂S_i = G S_i − M_i, for S_i >= 0 that add up to 1."""
    D = 0.0
    for i in range(L):
        for m in range(L):
            low, high = np.inf, -np.inf
            for j in range(L):
                a = p[j * L + m] - p[L * L + j * L + i]
                low, high = min(low, a), max(high, a)
            D = max(D, high - low)
    return D


@inline_kernel
def dot_product_curvature(loss, p, radius):
    """Return a lower bound of the eigenvalues of ∇²ℓ on ‖z‖ ≤ radius, for an AttentionLoss of dot products."""
    # Let b = 1/temperature, and let u_i and B_i be the gradient and Hessian of φ_i in its scores. For tied weights,
    # vᵀ∇²ℓ v = 2b Σ_ij u_ij v_i·v_j + Σ_i w_iᵀ B_i w_i with w_ij = b (z_j·v_i + z_i·v_j).
    # Softmax: the entries of a = ∂φ_i/∂S_i differ by at most D. Then the spectral norm of u is at most D √(L/8),
    # and B_i ≥ −D cov(S_i), so that the second sum is at least −2 D b² ‖z‖² ‖v‖².
    # Linear attention: B_i = G ≥ 0 and ‖u‖ ≤ b ‖G‖ ‖z‖² + ‖M‖.
    # Separate queries and keys: half of these bounds, and scores are at most ½ b ‖z‖² instead of b ‖z‖².
    L = loss.n_tokens
    b = 1.0 / loss.attention.temperature
    factor = 1.0 if loss.attention.tied else 0.5
    if not loss.attention.softmax:
        G, M = 0.0, 0.0
        for j in range(L * L):
            G += p[j] ** 2
            M += p[L * L + j] ** 2
        return -2.0 * b * factor * (factor * b * np.sqrt(G) * radius * radius + np.sqrt(M))
    D = gradient_spread(L, p)
    return -D * factor * (b * np.sqrt(0.5 * L) + 2.0 * b * b * radius * radius)
