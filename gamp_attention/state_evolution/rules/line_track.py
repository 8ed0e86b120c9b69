"""A minimum of the proximal problem followed along a line of fields ω = c + e u, panel by panel.

Kernels that `line_average` is made of: they follow a minimum by Newton steps, find where two minima tie, and tell
whether the Gauss-Legendre nodes of a panel resolve it.

Newton steps to the next node of a line of fields, from where the last nodes lead.

They are full steps without a guard. Where they do not converge fast, `line_track` takes guarded ones.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention._core.compiled import inline_kernel, overload, sample_kernel
from gamp_attention.denoisers.newton import assign, cholesky, cholesky_solve, minimise_from, objective_derivatives
from gamp_attention.denoisers.prox import SEARCH, factor_hessian
from gamp_attention.losses.attention import is_dot_product_loss
from gamp_attention.losses.two_tokens import is_two_tokens, two_token_expansion


class StepSettings(NamedTuple):
    """When steps have converged, or do not do so fast."""

    most: int = 5
    decrease: float = 0.1  # of the decrement in every step
    share: float = 1e-2  # length of the last step, in units of the tolerance; its square is the error
    last: float = 1e-6  # the same, at most, relative
    least: float = 1e-10  # the same, at least
    tie: float = 1e-9  # last step to where two minima tie


STEPS = StepSettings()


def settle(loss, p, omega, metric, z, tol, ws):
    """The minimum that full Newton steps from z converge to, left there; its value, and whether they did so fast.

    Then ws.chol factors the Hessian of the last step, which is within tol, or so short that its square does not matter.
    Compiled code only.
    """
    raise NotImplementedError("settle() is dispatched by numba on the type of the loss")


@overload(settle)
def _settle(loss, p, omega, metric, z, tol, ws):
    if is_dot_product_loss(loss):

        def settle_attention(loss, p, omega, metric, z, tol, ws):
            if is_two_tokens(loss):
                return _settle_two_tokens(loss, p, omega, metric, z, tol, ws.chol)
            return _settle_in_general(loss, p, omega, metric, z, tol, ws)

        return settle_attention

    def settle_other(loss, p, omega, metric, z, tol, ws):
        return _settle_in_general(loss, p, omega, metric, z, tol, ws)

    return settle_other


@inline_kernel
def _is_last(length, scale, tol):
    return length <= max(STEPS.least * scale, min(STEPS.last * scale, STEPS.share * tol))


@sample_kernel
def _settle_in_general(loss, p, omega, metric, z, tol, ws):
    last = np.inf
    for _ in range(STEPS.most):
        value = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
        if not cholesky(ws.hess, 0.0, ws.chol):
            break
        assign(ws.step, ws.grad)
        cholesky_solve(ws.chol, ws.step)
        decrement, length, scale = 0.0, 0.0, 0.0
        for i in range(z.shape[0]):
            decrement += ws.grad[i] * ws.step[i]
            length = max(length, abs(ws.step[i]))
            scale = max(scale, abs(z[i]) + abs(omega[i]))
        if not decrement < STEPS.decrease * last:
            break
        for i in range(z.shape[0]):
            z[i] -= ws.step[i]
        if _is_last(length, scale, tol):
            return value - 0.5 * decrement, True
        last = decrement
    return np.nan, False


@inline_kernel
def _settle_two_tokens(loss, p, omega, metric, z, tol, chol):
    # the same in numbers instead of arrays, three times faster
    x, y, last = z[0], z[1], np.inf
    stiff_x, stiff_y = metric.inverse[0, 0, 0], metric.inverse[1, 0, 0]
    for _ in range(STEPS.most):
        value, grad_x, grad_y, xx, xy, yy = two_token_expansion(loss, p, x, y)
        to_x, to_y = x - omega[0], y - omega[1]
        grad_x, grad_y = grad_x + stiff_x * to_x, grad_y + stiff_y * to_y
        xx, yy = xx + stiff_x, yy + stiff_y
        share = xy / xx
        rest = yy - share * xy
        if not (xx > 0.0 and rest > 1e-14 * abs(yy)):
            break
        step_y = (grad_y - share * grad_x) / rest
        step_x = grad_x / xx - share * step_y
        decrement = grad_x * step_x + grad_y * step_y
        if not decrement < STEPS.decrease * last:
            break
        length, scale = max(abs(step_x), abs(step_y)), max(abs(x) + abs(omega[0]), abs(y) + abs(omega[1]))
        x, y = x - step_x, y - step_y
        if _is_last(length, scale, tol):
            z[0], z[1] = x, y
            chol[0, 0], chol[1, 1] = np.sqrt(xx), np.sqrt(rest)
            chol[1, 0] = share * chol[0, 0]
            return value + 0.5 * (stiff_x * to_x * to_x + stiff_y * to_y * to_y - decrement), True
        last = decrement
    return np.nan, False


@inline_kernel
def rate_at(metric, u, chol, rate):
    """Fill ∂z/∂e = (V⁻¹ + H)⁻¹ V⁻¹ u."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    for l in range(L):
        for s in range(r):
            acc = 0.0
            for d in range(r):
                acc += metric.inverse[l, s, d] * u[l * r + d]
            rate[l * r + s] = acc
    cholesky_solve(chol, rate)


@inline_kernel
def predict(track, m, e, ahead, before):
    """Put the continuation from e to `ahead` into track.now: cubic through two nodes, linear from one."""
    z, rate = track.z[m - 1], track.rate[m - 1]
    h = ahead - e
    for i in range(z.shape[0]):
        track.now[i] = z[i] + h * rate[i]
    if m > 1:
        width, old, slower = e - before, track.z[m - 2], track.rate[m - 2]
        for i in range(z.shape[0]):
            mean = (z[i] - old[i]) / width
            second = (2.0 * rate[i] + slower[i] - 3.0 * mean) / width
            third = (rate[i] + slower[i] - 2.0 * mean) / (width * width)
            track.now[i] += h * h * (second + h * third)


NORMAL = 1 / np.sqrt(2 * np.pi)


class Track(NamedTuple):
    """Scratch of one thread: minimisers at the nodes of a panel, and the stack of panels still to be done."""

    z: np.ndarray  # (nodes, k)
    value: np.ndarray
    rate: np.ndarray  # (nodes, k), ∂z/∂e
    chol: np.ndarray  # (nodes, k, k), lower factor of V⁻¹ + H
    slope: np.ndarray  # (nodes, k, k), V⁻¹ − V⁻¹ ∂z/∂ω
    g: np.ndarray  # (nodes, k)
    weight: np.ndarray
    omega: np.ndarray
    now: np.ndarray
    left: np.ndarray
    right: np.ndarray
    ends: np.ndarray  # (panels, 2)
    at_ends: np.ndarray  # (panels, 2, k), the global minimiser on this side of each end
    depth: np.ndarray


@inline_kernel
def field_at(c, e, u, omega):
    """Fill ω = c + e u."""
    for i in range(c.shape[0]):
        omega[i] = c[i] + e * u[i]


@inline_kernel
def are_apart(z, other):
    """Whether two minimisers differ by more than rounding."""
    distance, scale = 0.0, 0.0
    for i in range(z.shape[0]):
        distance = max(distance, abs(z[i] - other[i]))
        scale = max(scale, abs(z[i]) + abs(other[i]))
    return distance > SEARCH.same_minimum * (1e-3 + scale)


@inline_kernel
def cut_panel(track, top, cut, deeper):
    """Replace the panel on top by its two parts, the left one on top; track.left and track.right hold the cut."""
    track.ends[top + 1, 0] = track.ends[top, 0]
    assign(track.at_ends[top + 1, 0], track.at_ends[top, 0])
    track.ends[top + 1, 1] = cut
    assign(track.at_ends[top + 1, 1], track.left)
    track.ends[top, 0] = cut
    assign(track.at_ends[top, 0], track.right)
    track.depth[top] += deeper
    track.depth[top + 1] = track.depth[top]


@sample_kernel
def follow_panel(loss, p, c, u, metric, nodes, track, top, tol, ws):
    """Follow the minimum of a panel's left end to its nodes, and to its right end, where track.now is left."""
    n, k, z = nodes.x.shape[0], u.shape[0], track.now
    a, b = track.ends[top]
    assign(z, track.at_ends[top, 0])
    e, before = a, a
    for m in range(n + 1):
        ahead = a + 0.5 * (b - a) * (1.0 + nodes.x[m]) if m < n else b
        if m > 0:
            predict(track, m, e, ahead, before)
        before, e = e, ahead
        field_at(c, e, u, track.omega)
        value, fast = settle(loss, p, track.omega, metric, z, tol, ws)
        if not fast:
            assign(z, track.at_ends[top, 0])
            if m > 0:
                for i in range(k):
                    z[i] = track.z[m - 1, i] + (e - before) * track.rate[m - 1, i]
            value, _ = minimise_from(loss, p, track.omega, metric, z, ws, 0)
            factor_hessian(metric, ws)
        if m < n:
            track.value[m] = value
            assign(track.z[m], z)
            for i in range(k):
                assign(track.chol[m, i], ws.chol[i])
            rate_at(metric, u, ws.chol, track.rate[m])


@sample_kernel
def fill_slopes(metric, nodes, track, ws):
    """Fill V⁻¹ − V⁻¹ ∂z/∂ω at the nodes of the last panel that was followed."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    k = L * r
    if k == 2 and r == 1:  # in numbers
        one, two = metric.inverse[0, 0, 0], metric.inverse[1, 0, 0]
        for m in range(nodes.x.shape[0]):
            slope, last = track.slope[m], 1.0 / track.chol[m, 1, 1]
            first = 1.0 / track.chol[m, 0, 0]
            across = track.chol[m, 1, 0] * first * last
            slope[0, 0] = one - one * one * (first * first + across * across)
            slope[0, 1] = one * two * across * last
            slope[1, 0] = slope[0, 1]
            slope[1, 1] = two - two * two * last * last
        return
    for m in range(nodes.x.shape[0]):
        slope = track.slope[m]
        for l in range(L):
            for d in range(r):
                for i in range(k):
                    ws.step[i] = 0.0
                for s in range(r):
                    ws.step[l * r + s] = metric.inverse[l, s, d]
                cholesky_solve(track.chol[m], ws.step)
                for i in range(k):
                    first = i // r * r
                    acc = metric.inverse[l, i - first, d] if first == l * r else 0.0
                    for s in range(r):
                        acc -= metric.inverse[i // r, i - first, s] * ws.step[first + s]
                    slope[i, l * r + d] = acc


@sample_kernel
def settled(loss, p, metric, track, z, ws):
    """The value of the minimum next to z, at the fields in track.omega; z is left there."""
    assign(track.now, z)
    value, fast = settle(loss, p, track.omega, metric, z, 0.0, ws)
    if not fast:
        assign(z, track.now)
        value, _ = minimise_from(loss, p, track.omega, metric, z, ws, 0)
    return value


@sample_kernel
def find_tie(loss, p, c, u, metric, track, top, work, ws):
    """Where the minima of the two ends of a panel tie; track.left and track.right are left there.

    With F_l and F_r the two minima, (F_r − F_l)' = −Σ (z_r − z_l)ᵀ V⁻¹ u: Newton steps kept in a bracket.
    """
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    low, high = track.ends[top]
    left, right = track.left, track.right
    assign(left, track.at_ends[top, 0])
    assign(right, track.at_ends[top, 1])
    x = 0.5 * (low + high)
    for _ in range(100):
        field_at(c, x, u, track.omega)
        value_left = settled(loss, p, metric, track, left, ws)
        value_right = settled(loss, p, metric, track, right, ws)
        work[0] += 2
        if not are_apart(left, right):  # one of the two does not reach x: the other is the lower here
            to_left, to_right = 0.0, 0.0
            for i in range(u.shape[0]):
                to_left += (left[i] - track.at_ends[top, 0, i]) ** 2
                to_right += (left[i] - track.at_ends[top, 1, i]) ** 2
            if to_left < to_right:
                low = x
                assign(right, track.at_ends[top, 1])
            else:
                high = x
                assign(left, track.at_ends[top, 0])
            x = 0.5 * (low + high)
            if high - low < 1e-10:
                break
            continue
        gap = value_right - value_left
        if gap > 0.0:
            low = x
        else:
            high = x
        rate = 0.0
        for l in range(L):
            for s in range(r):
                for d in range(r):
                    rate -= (right[l * r + s] - left[l * r + s]) * metric.inverse[l, s, d] * u[l * r + d]
        step = -gap / rate if rate != 0.0 else np.inf
        if abs(step) < STEPS.tie or high - low < 1e-13:
            x += step if low < x + step < high else 0.0
            break
        x += step
        if not low < x < high:
            x = 0.5 * (low + high)
    return x


@inline_kernel
def unresolved(nodes, track, a, b):
    """Largest of the last Legendre coefficients of z on a panel, weighted by the panel's probability."""
    worst = 0.0
    for i in range(track.z.shape[1]):
        for s in range(nodes.tail.shape[0]):
            coefficient = 0.0
            for m in range(nodes.x.shape[0]):
                coefficient += nodes.tail[s, m] * track.z[m, i]
            worst = max(worst, abs(coefficient))
    nearest = max(a, -b, 0.0)
    return worst * NORMAL * np.exp(-0.5 * nearest * nearest) * min(b - a, 1.0)


@inline_kernel
def unresolved_square(metric, nodes, track, a, b, ws):
    """Largest of the last Legendre coefficients of ‖∂g/∂ω‖² on a panel, weighted by its probability, in units of V⁻².

    Next to where a jump begins the derivative is large on a panel over which z hardly changes.
    """
    fill_slopes(metric, nodes, track, ws)
    k, worst = track.z.shape[1], 0.0
    for s in range(nodes.tail.shape[0]):
        coefficient = 0.0
        for m in range(nodes.x.shape[0]):
            square = 0.0
            for i in range(k):
                for j in range(k):
                    square += track.slope[m, i, j] ** 2
            coefficient += nodes.tail[s, m] * square
        worst = max(worst, abs(coefficient))
    nearest = max(a, -b, 0.0)
    return worst / metric.smallest**2 * NORMAL * np.exp(-0.5 * nearest * nearest) * (b - a)
