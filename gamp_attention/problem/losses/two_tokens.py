"""Closed form of the loss for two tokens, one column of weights and tied softmax attention; ten times faster.

The attention weights of row i depend on one difference of scores, t_1 = b x (y − x) or t_2 = b y (y − x), for fields
z = (x, y) and b = 1/temperature. With weights (1 − w, w), w = 1/(1 + e^{−t}), the loss φ of a row has the derivatives

    φ' = w (1 − w) δ,   φ'' = w (1 − w) (1 − 2w) δ + w² (1 − w)² κ

in t, where δ = ∂φ/∂S_2 − ∂φ/∂S_1 and κ = G_11 − 2 G_12 + G_22.

With u_i = b φ_i' and c_i = b² φ_i'', the Hessian is ∇²ℓ = c_1 a aᵀ + c_2 e eᵀ + U with a = (y − 2x, x) and e = (−y, 2y
− x). The eigenvalues of U are u_2 − u_1 ± √(2 (u_1² + u_2²)). Interval arithmetic on this form bounds the curvature in
a ball.
"""

import math

from gamp_attention._kernels.compiled import inline_kernel


@inline_kernel
def is_two_tokens(loss):
    """Return whether an AttentionLoss of dot products has the closed form of this module."""
    return loss.n_tokens == 2 and loss.rank == 1 and loss.attention.softmax and not loss.attention.causal


@inline_kernel
def _weights(t):
    """Return 1 − w and w at a difference t of scores, each to full relative accuracy."""
    small = math.exp(-abs(t))
    total = 1.0 / (1.0 + small)
    return (small * total, total) if t > 0.0 else (total, small * total)


@inline_kernel
def _row(p, i, t):
    """Return φ_i at a difference t of scores, and w (1 − w), 1 − 2w and δ."""
    first, second = _weights(t)
    value, slope = _loss_of_weights(p, i, first, second)
    return value, first * second, first - second, slope


@inline_kernel
def _loss_of_weights(p, i, first, second):
    """Return φ_i at weights of the two tokens, and δ."""
    Gs1, Gs2 = p[0] * first + p[1] * second, p[2] * first + p[3] * second  # G S
    value = first * (0.5 * Gs1 - p[4 + i]) + second * (0.5 * Gs2 - p[6 + i])
    return value, Gs2 - p[6 + i] - Gs1 + p[4 + i]


@inline_kernel
def two_token_value(loss, p, z):
    """Return ℓ(z)."""
    difference = (z[1] - z[0]) / loss.attention.temperature
    return _row(p, 0, z[0] * difference)[0] + _row(p, 1, z[1] * difference)[0]


@inline_kernel
def two_token_expansion(loss, p, x, y):
    """Return ℓ(x, y), its gradient, and the entries 11, 12 and 22 of its Hessian."""
    b = 1.0 / loss.attention.temperature
    kappa = p[0] - p[1] - p[2] + p[3]
    value1, v1, signed1, delta1 = _row(p, 0, b * x * (y - x))
    value2, v2, signed2, delta2 = _row(p, 1, b * y * (y - x))
    u1, c1 = b * v1 * delta1, b * b * v1 * (signed1 * delta1 + v1 * kappa)
    u2, c2 = b * v2 * delta2, b * b * v2 * (signed2 * delta2 + v2 * kappa)
    slope1, slope2 = y - 2.0 * x, 2.0 * y - x  # ∂t_1/∂x and ∂t_2/∂y, over b; ∂t_1/∂y and ∂t_2/∂x are x and −y
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
    value, grad[0], grad[1], hess[0, 0], hess[0, 1], hess[1, 1] = two_token_expansion(loss, p, z[0], z[1])
    hess[1, 0] = hess[0, 1]
    return value


@inline_kernel
def two_token_floor(loss, p, center, reach):
    """Return a lower bound of the eigenvalues of ∇²ℓ in the ball ‖z − center‖ ≤ reach."""
    b, x, y = 1.0 / loss.attention.temperature, center[0], center[1]
    span = math.sqrt(2.0) * reach  # radius of the interval of y − x
    u1_low, u1_high, c1 = _row_bounds(p, 0, b, x, reach, y - x, span)
    u2_low, u2_high, c2 = _row_bounds(p, 1, b, y, reach, y - x, span)
    wide = math.sqrt(5.0) * reach  # radius of the intervals of y − 2x and 2y − x
    a = (abs(y - 2.0 * x) + wide) ** 2 + (abs(x) + reach) ** 2
    e = (abs(2.0 * y - x) + wide) ** 2 + (abs(y) + reach) ** 2
    u1, u2 = max(-u1_low, u1_high), max(-u2_low, u2_high)
    return min(c1, 0.0) * a + min(c2, 0.0) * e + u2_low - u1_high - math.sqrt(2.0 * (u1 * u1 + u2 * u2))


@inline_kernel
def _row_bounds(p, i, b, z, reach, difference, span):
    """Return lower and upper bounds of u_i, and a lower bound of c_i.

    t_i = b z (y − x), where z is within `reach` of its central value and y − x is within `span` of `difference`.
    """
    t1, t2 = (z - reach) * (difference - span), (z - reach) * (difference + span)
    t3, t4 = (z + reach) * (difference - span), (z + reach) * (difference + span)
    low, high = b * min(t1, t2, t3, t4), b * max(t1, t2, t3, t4)
    first1, w1 = _weights(low)
    first2, w2 = _weights(high)
    v1, v2 = first1 * w1, first2 * w2
    # w (1 − w) is largest, 1/4, at t = 0
    v_low, v_high = min(v1, v2), 0.25 if low < 0.0 < high else max(v1, v2)
    kappa = p[0] - p[1] - p[2] + p[3]
    delta_0 = p[2] - p[0] - p[6 + i] + p[4 + i]  # δ at w = 0; δ = delta_0 + κ w
    d1, d2 = min(delta_0 + kappa * w1, delta_0 + kappa * w2), max(delta_0 + kappa * w1, delta_0 + kappa * w2)
    o1, o2 = first2 - w2, first1 - w1  # bounds of 1 − 2w
    bend = min(o1 * d1, o1 * d2, o2 * d1, o2 * d2) + kappa * (v_low if kappa > 0.0 else v_high)
    return (
        b * d1 * (v_high if d1 < 0.0 else v_low),
        b * d2 * (v_high if d2 > 0.0 else v_low),
        b * b * bend * (v_high if bend < 0.0 else v_low),
    )


N_STARTS = 9  # number of starts of `two_token_start`
# smallest attention weight that the starts aim at: the loss is flat at weights near 0 and 1
MIN_WEIGHT = 0.06
MIN_SUM = 0.3  # smallest absolute value of (x + y)/2 in the valley of both rows, in units of 1/√b


@inline_kernel
def _best_weight(p, i, least):
    """Return the attention weight w of row i, from `least` to 1 − `least`, at which its loss φ_i is lowest."""
    kappa = p[0] - p[1] - p[2] + p[3]
    delta_0 = p[2] - p[0] - p[6 + i] + p[4 + i]  # δ at w = 0; δ = delta_0 + κ w
    if kappa > 0.0:
        return min(max(-delta_0 / kappa, least), 1.0 - least)
    return least if delta_0 > 0.0 else 1.0 - least


@inline_kernel
def two_token_lowest(p):
    """Return the minimum of ℓ over all attention weights, a lower bound of ℓ."""
    w1, w2 = _best_weight(p, 0, 0.0), _best_weight(p, 1, 0.0)
    return _loss_of_weights(p, 0, 1.0 - w1, w1)[0] + _loss_of_weights(p, 1, 1.0 - w2, w2)[0]


@inline_kernel
def two_token_start(loss, p, omega, z, number, point):
    """Fill point (2,) with one of the `N_STARTS` starts of a search for the global minimum of the proximal objective.

    The loss φ_i of a row has one minimum, at a difference t_i* of scores, and is constant where |t_i| is large. So the
    minima of the objective are near the fields ω, in the valleys t_1 = t_1* or t_2 = t_2* of one row, in their
    intersections, or in the valley x ≈ y of both rows, in which t_1 ≈ t_2. The starts are the points of these sets
    near ω, ω itself, and the mirror image of the lowest known minimum z.
    Of 108 000 random problems, in half of which there are several minima, this search missed the lowest one in 52, and
    the search from points of the ball, in 10 to 30 times the time, in 45.
    """
    b, x, y = 1.0 / loss.attention.temperature, omega[0], omega[1]
    w1, w2 = _best_weight(p, 0, MIN_WEIGHT), _best_weight(p, 1, MIN_WEIGHT)
    t1, t2 = math.log(w1 / (1.0 - w1)), math.log(w2 / (1.0 - w2))
    if number == 0 or number == N_STARTS - 1:
        point[0], point[1] = -z[0], -z[1]
    elif number == 1:
        point[0], point[1] = x, y
    elif number <= 3:  # intersections of both valleys: b (y − x)² = t_2 − t_1
        gap = math.sqrt(max(t2 - t1, 0.05) / b)
        gap = gap if number == 2 else -gap
        point[0], point[1] = t1 / (b * gap), t2 / (b * gap)
    elif number <= 5:  # both points of the valley of the first row, b x (y − x) = t_1, at the given y
        root = math.sqrt(max(y * y - 4.0 * t1 / b, 0.0))
        along = y + root if y > 0.0 else y - root
        point[0], point[1] = 0.5 * along, y
        if number == 5:
            point[0] = 2.0 * t1 / (b * along) if along != 0.0 else 0.0
    elif number == 6:  # valley of the second row: b y (y − x) = t_2 at the given x
        root = math.sqrt(x * x + 4.0 * max(t2 / b, -0.25 * x * x))
        along = x + root if x > 0.0 else x - root
        point[0], point[1] = x, -2.0 * t2 / (b * along) if along != 0.0 else 0.0
    else:  # valley of both rows: b (y − x) (x + y)/2 is the t at which the sum of both losses is lowest
        mean, least, both = 0.5 * (x + y), MIN_SUM / math.sqrt(b), 0.5 * (w1 + w2)
        if abs(mean) < least:
            mean = least if mean > 0.0 else -least
        half = 0.5 * math.log(both / (1.0 - both)) / (b * mean)
        point[0], point[1] = mean - half, mean + half
