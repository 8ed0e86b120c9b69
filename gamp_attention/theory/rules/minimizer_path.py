"""Paths of the proximal minimizer through a panel of a line of fields ω(e) = c + e u.

A panel is an interval of e. `follow_panel` follows the minimum of the left end to all nodes of a Gauss-Legendre rule
and to the right end: each step extrapolates along the path and takes a few Newton steps (`newton_steps`). If another
minimum arrives there than the global minimum of the right end, `find_tie` returns the point at which both have equal
values. `unresolved_minimum` and `unresolved_derivative` measure whether the nodes resolve the path.

The arguments are described in `gamp_attention.theory.rules.lines`, which averages over the panels of a line.
"""

from typing import NamedTuple

import numpy as np
from numba.core import types
from numba.core.types import boolean, float64

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, overload, sample_kernel
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from
from gamp_attention.problem.denoisers.newton import (
    assign,
    cholesky,
    cholesky_solve,
    minimize_from,
    objective_derivatives,
)
from gamp_attention.problem.denoisers.prox import SAME_MINIMUM, factor_hessian
from gamp_attention.problem.losses.attention import is_dot_product_loss
from gamp_attention.problem.losses.two_tokens import is_two_tokens, two_token_expansion

NORMAL = 1 / np.sqrt(2 * np.pi)  # density of the standard Gaussian at 0

# Newton steps without line search, see `newton_steps`
MAX_STEPS = 5  # maximum number of steps
DECREASE = 0.1  # factor by which each step must reduce the Newton decrement
LAST_STEP = 1e-2  # length of the last step, in units of the tolerance; the error is of the order of its square
MAX_LAST_STEP = 1e-6  # upper bound of this length, relative to the size of minimizer and fields
MIN_LAST_STEP = 1e-10  # lower bound of this length, relative to the same size
END_WEIGHT = 0.1  # weight of differences at the ends of a panel, compared with the last Legendre coefficients
TIE_STEP = 1e-9  # length of the last step in e toward a tie


class Track(NamedTuple):
    """Working memory of one thread: the path of a minimum through the n nodes of a panel, and the stack of panels."""

    z: np.ndarray  # (n, k) minimizer at each node
    value: np.ndarray  # (n,) minimum of the proximal objective at each node
    rate: np.ndarray  # (n, k) derivative ∂z/∂e
    chol: np.ndarray  # (n, k, k) lower Cholesky factor of V⁻¹ + ∇²ℓ
    slope: np.ndarray  # (n, k, k) V⁻¹ − V⁻¹ ∂z/∂ω = −∂g/∂ω
    g: np.ndarray  # (n, k) output function
    weight: np.ndarray  # (n,) quadrature weight times Gaussian density
    omega: np.ndarray  # (k,) fields of the current point
    now: np.ndarray  # (k,) minimizer at the current point
    left: np.ndarray  # (k,) minimizer on the left side of a cut
    right: np.ndarray  # (k,) minimizer on the right side of a cut
    column: np.ndarray  # (k,) scratch of `fill_slopes`
    ends: np.ndarray  # (panels, 2) ends of the panels on the stack
    at_ends: np.ndarray  # (panels, 2, k) global minimizer at each end, on the side of the panel
    depth: np.ndarray  # (panels,) depth of divisions


@dispatch_on_type
def newton_steps(loss, p, omega, at_metric, z, tol, at_ws):
    """Take full Newton steps from z to a minimum; return its value and whether the steps converged fast.

    After convergence z is the minimizer and ws.chol factors the Hessian of the last step, whose length is negligible.
    Without convergence z may be anywhere; callers then minimize with a line search. Compiled code only.
    """


@overload(newton_steps)
def _newton_steps(loss, p, omega, at_metric, z, tol, at_ws):
    if is_dot_product_loss(loss):

        def steps_of_attention(loss, p, omega, at_metric, z, tol, at_ws):
            if is_two_tokens(loss):
                metric, ws = load_from(at_metric), load_from(at_ws)
                return _newton_steps_two_tokens(loss, p, omega, metric, z, tol, ws.chol)
            return _newton_steps_general(loss, p, omega, at_metric, z, tol, at_ws)

        return steps_of_attention

    def steps_of_others(loss, p, omega, at_metric, z, tol, at_ws):
        return _newton_steps_general(loss, p, omega, at_metric, z, tol, at_ws)

    return steps_of_others


@inline_kernel
def _is_last(length, scale, tol):
    return length <= max(MIN_LAST_STEP * scale, min(MAX_LAST_STEP * scale, LAST_STEP * tol))


@deferred_kernel(types.Tuple((float64, boolean)))
def _newton_steps_general(loss, p, omega, at_metric, z, tol, at_ws):
    ws, last = load_from(at_ws), np.inf
    for _ in range(MAX_STEPS):
        value = objective_derivatives(loss, p, omega, at_metric, z, at_ws)
        if not cholesky(ws.hess, 0.0, ws.chol):
            break
        assign(ws.step, ws.grad)
        cholesky_solve(ws.chol, ws.step)
        decrement, length, scale = 0.0, 0.0, 0.0
        for i in range(z.shape[0]):
            decrement += ws.grad[i] * ws.step[i]
            length = max(length, abs(ws.step[i]))
            scale = max(scale, abs(z[i]) + abs(omega[i]))
        if not decrement < DECREASE * last:
            break
        for i in range(z.shape[0]):
            z[i] -= ws.step[i]
        if _is_last(length, scale, tol):
            return value - 0.5 * decrement, True
        last = decrement
    return np.nan, False


@inline_kernel
def _newton_steps_two_tokens(loss, p, omega, metric, z, tol, chol):
    # identical to the general steps, but with scalars instead of arrays, which is three times faster
    x, y, last = z[0], z[1], np.inf
    stiff_x, stiff_y = metric.inverse[0, 0, 0], metric.inverse[1, 0, 0]
    for _ in range(MAX_STEPS):
        value, grad_x, grad_y, xx, xy, yy = two_token_expansion(loss, p, x, y)
        to_x, to_y = x - omega[0], y - omega[1]
        grad_x, grad_y = grad_x + stiff_x * to_x, grad_y + stiff_y * to_y
        xx, yy = xx + stiff_x, yy + stiff_y
        ratio = xy / xx
        pivot = yy - ratio * xy
        if not (xx > 0.0 and pivot > 1e-14 * abs(yy)):
            break
        step_y = (grad_y - ratio * grad_x) / pivot
        step_x = grad_x / xx - ratio * step_y
        decrement = grad_x * step_x + grad_y * step_y
        if not decrement < DECREASE * last:
            break
        length, scale = max(abs(step_x), abs(step_y)), max(abs(x) + abs(omega[0]), abs(y) + abs(omega[1]))
        x, y = x - step_x, y - step_y
        if _is_last(length, scale, tol):
            z[0], z[1] = x, y
            chol[0, 0], chol[1, 1] = np.sqrt(xx), np.sqrt(pivot)
            chol[1, 0] = ratio * chol[0, 0]
            return value + 0.5 * (stiff_x * to_x * to_x + stiff_y * to_y * to_y - decrement), True
        last = decrement
    return np.nan, False


@inline_kernel
def fill_field(c, e, u, omega):
    """Fill ω = c + e u."""
    for i in range(c.shape[0]):
        omega[i] = c[i] + e * u[i]


@inline_kernel
def fill_rate(metric, u, chol, rate):
    """Fill ∂z/∂e = (V⁻¹ + ∇²ℓ)⁻¹ V⁻¹ u."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    for l in range(L):
        for s in range(r):
            acc = 0.0
            for d in range(r):
                acc += metric.inverse[l, s, d] * u[l * r + d]
            rate[l * r + s] = acc
    cholesky_solve(chol, rate)


@inline_kernel
def extrapolate(track, m, e, ahead, before):
    """Fill track.now with the extrapolation of z from node m − 1 at e to `ahead`.

    It is the cubic Hermite polynomial of the last two nodes, at `before` and e, or linear if there is one node.
    """
    z, rate = track.z[m - 1], track.rate[m - 1]
    h = ahead - e
    for i in range(z.shape[0]):
        track.now[i] = z[i] + h * rate[i]
    if m > 1:
        width, old, old_rate = e - before, track.z[m - 2], track.rate[m - 2]
        for i in range(z.shape[0]):
            mean = (z[i] - old[i]) / width
            second = (2.0 * rate[i] + old_rate[i] - 3.0 * mean) / width
            third = (rate[i] + old_rate[i] - 2.0 * mean) / (width * width)
            track.now[i] += h * h * (second + h * third)


@inline_kernel
def are_apart(z, other):
    """Return whether two minimizers differ by more than rounding."""
    distance, scale = 0.0, 0.0
    for i in range(z.shape[0]):
        distance = max(distance, abs(z[i] - other[i]))
        scale = max(scale, abs(z[i]) + abs(other[i]))
    return distance > SAME_MINIMUM * (1e-3 + scale)


@sample_kernel
def follow_panel(loss, p, c, u, at_metric, at_nodes, at_track, top, tol, at_ws):
    """Follow the minimum of a panel's left end to all nodes and to the right end; leave it in track.now."""
    metric, nodes, track, ws = load_from(at_metric), load_from(at_nodes), load_from(at_track), load_from(at_ws)
    n, k, z = nodes.x.shape[0], u.shape[0], track.now
    a, b = track.ends[top]
    assign(z, track.at_ends[top, 0])
    e, before = a, a
    for m in range(n + 1):
        ahead = a + 0.5 * (b - a) * (1.0 + nodes.x[m]) if m < n else b
        if m > 0:
            extrapolate(track, m, e, ahead, before)
        before, e = e, ahead
        fill_field(c, e, u, track.omega)
        value, fast = newton_steps(loss, p, track.omega, at_metric, z, tol, at_ws)
        if not fast:  # minimize with a line search, from the linear extrapolation
            assign(z, track.at_ends[top, 0])
            if m > 0:
                for i in range(k):
                    z[i] = track.z[m - 1, i] + (e - before) * track.rate[m - 1, i]
            value, _ = minimize_from(loss, p, track.omega, at_metric, z, at_ws, 0)
            factor_hessian(metric, ws.hess, ws.chol)
        if m < n:
            track.value[m] = value
            assign(track.z[m], z)
            for i in range(k):
                assign(track.chol[m, i], ws.chol[i])
            fill_rate(metric, u, ws.chol, track.rate[m])


@sample_kernel
def fill_slopes(at_metric, at_nodes, at_track):
    """Fill track.slope = V⁻¹ − V⁻¹ ∂z/∂ω at the nodes of the panel that was followed last.

    Compiled once for all losses.
    """
    metric, nodes, track = load_from(at_metric), load_from(at_nodes), load_from(at_track)
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    k = L * r
    if k == 2 and r == 1:  # the same formula in scalars, which is faster
        stiff_x, stiff_y = metric.inverse[0, 0, 0], metric.inverse[1, 0, 0]
        for m in range(nodes.x.shape[0]):
            slope, last = track.slope[m], 1.0 / track.chol[m, 1, 1]
            first = 1.0 / track.chol[m, 0, 0]
            across = track.chol[m, 1, 0] * first * last
            slope[0, 0] = stiff_x - stiff_x * stiff_x * (first * first + across * across)
            slope[0, 1] = stiff_x * stiff_y * across * last
            slope[1, 0] = slope[0, 1]
            slope[1, 1] = stiff_y - stiff_y * stiff_y * last * last
        return
    for m in range(nodes.x.shape[0]):
        slope = track.slope[m]
        for l in range(L):
            for d in range(r):
                for i in range(k):
                    track.column[i] = 0.0
                for s in range(r):
                    track.column[l * r + s] = metric.inverse[l, s, d]
                cholesky_solve(track.chol[m], track.column)
                for i in range(k):
                    first = i // r * r
                    acc = metric.inverse[l, i - first, d] if first == l * r else 0.0
                    for s in range(r):
                        acc -= metric.inverse[i // r, i - first, s] * track.column[first + s]
                    slope[i, l * r + d] = acc


@sample_kernel
def nearest_minimum(loss, p, at_metric, at_track, z, at_ws):
    """Move z to the nearest minimum at the fields track.omega, and return its value."""
    track = load_from(at_track)
    assign(track.now, z)
    value, fast = newton_steps(loss, p, track.omega, at_metric, z, 0.0, at_ws)
    if not fast:
        assign(z, track.now)
        value, _ = minimize_from(loss, p, track.omega, at_metric, z, at_ws, 0)
        ws = load_from(at_ws)
        factor_hessian(load_from(at_metric), ws.hess, ws.chol)
    return value


@inline_kernel
def _distance_along(start, start_rate, end, end_rate, width):
    """Return the squared distance of `end` from `start` plus `width` times the mean of both rates."""
    distance = 0.0
    for i in range(start.shape[0]):
        distance += (end[i] - start[i] - 0.5 * width * (start_rate[i] + end_rate[i])) ** 2
    return distance


@sample_kernel
def _follow_ends(loss, p, c, u, at_metric, at_track, top, at_ws):
    """Set rows 0 and 1 of track.z and track.rate to the minimizers at both ends of a panel and their derivatives."""
    metric, track, ws = load_from(at_metric), load_from(at_track), load_from(at_ws)
    for side in range(2):
        assign(track.z[side], track.at_ends[top, side])
        fill_field(c, track.ends[top, side], u, track.omega)
        nearest_minimum(loss, p, at_metric, at_track, track.z[side], at_ws)
        fill_rate(metric, u, ws.chol, track.rate[side])


@deferred_kernel(float64)
def find_tie(loss, p, c, u, at_metric, at_track, top, work, at_ws):
    """Return the point e at which the minima of the two ends of a panel have equal values.

    track.left and track.right are set to both minimizers there. With the two minimum values F_l(e) and F_r(e),
    (F_r − F_l)' = −Σ (z_r − z_l)ᵀ V⁻¹ u by the envelope theorem: Newton steps in a bracket find the root of F_r − F_l.
    """
    metric, track, ws = load_from(at_metric), load_from(at_track), load_from(at_ws)
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    low, high = track.ends[top]
    left, right, z, rates = track.left, track.right, track.z, track.rate
    assign(left, track.at_ends[top, 0])
    assign(right, track.at_ends[top, 1])
    e, has_rates = 0.5 * (low + high), False
    for _ in range(100):
        fill_field(c, e, u, track.omega)
        value_left = nearest_minimum(loss, p, at_metric, at_track, left, at_ws)
        value_right = nearest_minimum(loss, p, at_metric, at_track, right, at_ws)
        work[0] += 2
        if not are_apart(left, right):
            # only one of the two minima exists at e, and so is the lower: it continues the minimum of one end
            if not has_rates:
                _follow_ends(loss, p, c, u, at_metric, at_track, top, at_ws)
                fill_field(c, e, u, track.omega)
                nearest_minimum(loss, p, at_metric, at_track, left, at_ws)
                work[0], has_rates = work[0] + 3, True
            fill_rate(metric, u, ws.chol, rates[2])
            to_left = _distance_along(z[0], rates[0], left, rates[2], e - low)
            side = 0 if to_left < _distance_along(left, rates[2], z[1], rates[1], high - e) else 1
            assign(z[side], left)
            assign(rates[side], rates[2])
            assign(left, z[0])
            assign(right, z[1])
            if side == 0:
                low = e
            else:
                high = e
            e = 0.5 * (low + high)
            if high - low < 1e-10:
                break
            continue
        gap = value_right - value_left
        if gap > 0.0:
            low = e
        else:
            high = e
        rate = 0.0
        for l in range(L):
            for s in range(r):
                for d in range(r):
                    rate -= (right[l * r + s] - left[l * r + s]) * metric.inverse[l, s, d] * u[l * r + d]
        step = -gap / rate if rate != 0.0 else np.inf
        if abs(step) < TIE_STEP or high - low < 1e-13:
            e += step if low < e + step < high else 0.0
            break
        e += step
        if not low < e < high:
            e = 0.5 * (low + high)
    return e


@inline_kernel
def unresolved_minimum(nodes, track, top, a, b):
    """Return the largest of the last two Legendre coefficients of z on a panel [a, b].

    It is weighted by the largest density on the panel, and by the width if that is below 1.
    """
    largest = 0.0
    for i in range(track.z.shape[1]):
        for s in range(nodes.tail.shape[0]):
            coefficient = 0.0
            for m in range(nodes.x.shape[0]):
                coefficient += nodes.tail[s, m] * track.z[m, i]
            largest = max(largest, abs(coefficient))
    if track.z.shape[1] == 1:
        largest = max(largest, END_WEIGHT * _difference_at_ends(nodes, track, top))
    nearest = max(a, -b, 0.0)
    return largest * NORMAL * np.exp(-0.5 * nearest * nearest) * min(b - a, 1.0)


@inline_kernel
def _difference_at_ends(nodes, track, top):
    """Return the largest difference, at both ends of a panel, of the polynomial through the nodes from the minimizer.

    It is large if the minimum that was followed ceases to exist between the last node and the right end, or the minimum
    of the left end before the first node. For more than one field this is not tested, as it is very improbable.
    """
    left, right = 0.0, 0.0
    for m in range(nodes.x.shape[0]):
        left += nodes.ends[0, m] * track.z[m, 0]
        right += nodes.ends[1, m] * track.z[m, 0]
    return max(abs(left - track.at_ends[top, 0, 0]), abs(right - track.at_ends[top, 1, 0]))


@inline_kernel
def unresolved_derivative(at_metric, at_nodes, at_track, a, b):
    """Return the larger of the last two Legendre coefficients of ‖∂g/∂ω‖² on a panel, in units of V⁻², weighted.

    Near the onset of a jump the derivative is large and changes fast on panels on which z hardly changes.
    """
    fill_slopes(at_metric, at_nodes, at_track)
    metric, nodes, track = load_from(at_metric), load_from(at_nodes), load_from(at_track)
    k, largest = track.z.shape[1], 0.0
    for s in range(nodes.tail.shape[0]):
        coefficient = 0.0
        for m in range(nodes.x.shape[0]):
            square = 0.0
            for i in range(k):
                for j in range(k):
                    square += track.slope[m, i, j] ** 2
            coefficient += nodes.tail[s, m] * square
        largest = max(largest, abs(coefficient))
    nearest = max(a, -b, 0.0)
    return largest / metric.smallest**2 * NORMAL * np.exp(-0.5 * nearest * nearest) * (b - a)
