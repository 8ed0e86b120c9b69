"""Newton steps to the next node of a line of fields, from where the last nodes lead.

They are full steps without a guard. Where they do not converge fast, `line_track` takes guarded ones.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention._core.compiled import inline_kernel, overload, sample_kernel
from gamp_attention.denoisers.newton import assign, cholesky, cholesky_solve, objective_derivatives
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
