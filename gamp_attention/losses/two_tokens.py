"""Loss of two tokens and one column of weights with tied softmax, in closed form; ten times faster than in general.

Each row of scores has one difference, t_1 = b z_1 (z_2 − z_1) and t_2 = b z_2 (z_2 − z_1), with b = 1/temperature. With
weights (1 − w, w), w = 1/(1 + e^{−t}), the loss φ of a row has φ' = w (1 − w) δ and φ'' = w (1 − w) (1 − 2w) δ
+ w² (1 − w)² κ in t, δ = ∂φ/∂S_2 − ∂φ/∂S_1 and κ = G_11 − 2 G_12 + G_22.

Lower bounds of the curvature of the two-token loss near a point: interval arithmetic on the form in `two_tokens`.

With the rows' slopes u_i = b φ_i' and curvatures c_i = b² φ_i'', ∇²ℓ = c_1 a aᵀ + c_2 e eᵀ + U, where a = (y − 2x, x),
e = (−y, 2y − x) and U has the eigenvalues u_2 − u_1 ± √(2 (u_1² + u_2²)).
"""

import numpy as np

from gamp_attention._core.compiled import inline_kernel


@inline_kernel
def is_two_tokens(loss):
    """Return whether an AttentionLoss of dot products has the closed form of this module."""
    return loss.n_tokens == 2 and loss.rank == 1 and loss.attention.softmax and not loss.attention.causal


@inline_kernel
def _row(p, i, t):
    """Return φ_i at a difference t of scores, and w (1 − w), 1 − 2w and δ."""
    small = np.exp(-abs(t))
    total = 1.0 / (1.0 + small)
    first, second = (small * total, total) if t > 0.0 else (total, small * total)
    along, across = p[0] * first + p[1] * second, p[2] * first + p[3] * second
    value = first * (0.5 * along - p[4 + i]) + second * (0.5 * across - p[6 + i])
    return value, first * second, first - second, across - p[6 + i] - along + p[4 + i]


@inline_kernel
def two_token_value(loss, p, z):
    """Return ℓ(z)."""
    apart = (z[1] - z[0]) / loss.attention.temperature
    return _row(p, 0, z[0] * apart)[0] + _row(p, 1, z[1] * apart)[0]


@inline_kernel
def two_token_expansion(loss, p, x, y):
    """Return ℓ(x, y), its gradient, and the entries 11, 12 and 22 of its Hessian."""
    b = 1.0 / loss.attention.temperature
    kappa = p[0] - p[1] - p[2] + p[3]
    value1, v1, odd1, delta1 = _row(p, 0, b * x * (y - x))
    value2, v2, odd2, delta2 = _row(p, 1, b * y * (y - x))
    u1, c1 = b * v1 * delta1, b * b * v1 * (odd1 * delta1 + v1 * kappa)
    u2, c2 = b * v2 * delta2, b * b * v2 * (odd2 * delta2 + v2 * kappa)
    slope1, slope2 = y - 2.0 * x, 2.0 * y - x  # ∂t_1/∂x and ∂t_2/∂y; the others are x and −y
    return (
        value1 + value2,
        u1 * slope1 - u2 * y,
        u1 * x + u2 * slope2,
        c1 * slope1 * slope1 + c2 * y * y - 2.0 * u1,
        c1 * slope1 * x - c2 * y * slope2 + u1 - u2,
        c1 * x * x + c2 * slope2 * slope2 + 2.0 * u2,
    )


@inline_kernel
def two_token_derivatives(loss, p, z, grad, hess):
    """Return ℓ(z), and fill its gradient (2,) and Hessian (2, 2)."""
    value, grad[0], grad[1], hess[0, 0], cross, hess[1, 1] = two_token_expansion(loss, p, z[0], z[1])
    hess[0, 1] = cross
    hess[1, 0] = cross
    return value


@inline_kernel
def two_token_floor(loss, p, center, reach):
    """Return a lower bound of the spectrum of ∇²ℓ in the ball ‖z − center‖ ≤ reach."""
    b, x, y = 1.0 / loss.attention.temperature, center[0], center[1]
    span = np.sqrt(2.0) * reach  # radius of the interval of y − x
    u1_low, u1_high, c1 = _row_bounds(p, 0, b, x, reach, y - x, span)
    u2_low, u2_high, c2 = _row_bounds(p, 1, b, y, reach, y - x, span)
    wide = np.sqrt(5.0) * reach  # radius of the intervals of y − 2x and 2y − x
    a = (abs(y - 2.0 * x) + wide) ** 2 + (abs(x) + reach) ** 2
    e = (abs(2.0 * y - x) + wide) ** 2 + (abs(y) + reach) ** 2
    u1, u2 = max(-u1_low, u1_high), max(-u2_low, u2_high)
    return min(c1, 0.0) * a + min(c2, 0.0) * e + u2_low - u1_high - np.sqrt(2.0 * (u1 * u1 + u2 * u2))


@inline_kernel
def _row_bounds(p, i, b, z, reach, apart, span):
    """Return lower and upper bounds of u_i, and a lower bound of c_i, for t_i = b z (y − x) in intervals."""
    t1, t2 = (z - reach) * (apart - span), (z - reach) * (apart + span)
    t3, t4 = (z + reach) * (apart - span), (z + reach) * (apart + span)
    low, high = b * min(t1, t2, t3, t4), b * max(t1, t2, t3, t4)
    first1, w1 = _weights(low)
    first2, w2 = _weights(high)
    v1, v2 = first1 * w1, first2 * w2
    least, most = min(v1, v2), 0.25 if low < 0.0 < high else max(v1, v2)
    kappa = p[0] - p[1] - p[2] + p[3]
    start = p[2] - p[0] - p[6 + i] + p[4 + i]
    d1, d2 = min(start + kappa * w1, start + kappa * w2), max(start + kappa * w1, start + kappa * w2)
    o1, o2 = first2 - w2, first1 - w1
    bend = min(o1 * d1, o1 * d2, o2 * d1, o2 * d2) + kappa * (least if kappa > 0.0 else most)
    return (
        b * d1 * (most if d1 < 0.0 else least),
        b * d2 * (most if d2 > 0.0 else least),
        b * b * bend * (most if bend < 0.0 else least),
    )


@inline_kernel
def _weights(t):
    """Return 1 − w and w at a difference t of scores, each to full relative accuracy."""
    small = np.exp(-abs(t))
    total = 1.0 / (1.0 + small)
    return (small * total, total) if t > 0.0 else (total, small * total)
