"""The guarded Newton steps of `newton.minimise_from` for two tokens and one column, in numbers instead of arrays.

Three times faster, with the same tests in the same order. What is rare is left to the general form, from where they
came: saddles, objectives that rounding no longer tells apart, and long searches.
"""

import numpy as np

from gamp_attention._core.compiled import inline_kernel, overload
from gamp_attention.denoisers.newton_settings import END, NEWTON
from gamp_attention.losses.attention import is_dot_product_loss
from gamp_attention.losses.two_tokens import is_two_tokens, two_token_expansion


def minimise_in_numbers(loss, p, omega, metric, z, ws, n_known):
    """As `minimise_from`, or END.unfinished with z as far as it came. Compiled code only."""
    raise NotImplementedError("minimise_in_numbers() is dispatched by numba on the type of the loss")


@overload(minimise_in_numbers)
def _minimise_in_numbers(loss, p, omega, metric, z, ws, n_known):
    if is_dot_product_loss(loss):

        def two_tokens(loss, p, omega, metric, z, ws, n_known):
            if is_two_tokens(loss):
                return _minimise(loss, p, omega, metric, z, ws, n_known)
            return np.nan, END.unfinished

        return two_tokens

    def others(loss, p, omega, metric, z, ws, n_known):
        return np.nan, END.unfinished

    return others


@inline_kernel
def _minimise(loss, p, omega, metric, z, ws, n_known):
    stiff_x, stiff_y = metric.inverse[0, 0, 0], metric.inverse[1, 0, 0]
    x, y = z[0], z[1]
    ahead_x, ahead_y, step_x, step_y, t = x, y, 0.0, 0.0, 1.0
    value, slope, rounding = np.nan, np.inf, 0.0
    for number in range(NEWTON.quick):
        trial, grad_x, grad_y, xx, xy, yy = two_token_expansion(loss, p, ahead_x, ahead_y)
        to_x, to_y = ahead_x - omega[0], ahead_y - omega[1]
        trial += 0.5 * (stiff_x * to_x * to_x + stiff_y * to_y * to_y)
        if number > 0 and not trial <= value - NEWTON.enough * t * slope + rounding:
            t *= 0.5
            if t < NEWTON.quick_share:
                break
            ahead_x, ahead_y = x - t * step_x, y - t * step_y
            continue
        x, y, value = ahead_x, ahead_y, trial
        grad_x, grad_y, xx, yy = grad_x + stiff_x * to_x, grad_y + stiff_y * to_y, xx + stiff_x, yy + stiff_y
        size, scale = max(abs(grad_x), abs(grad_y)), max(abs(x) + abs(omega[0]), abs(y) + abs(omega[1]))
        if slope <= rounding or not NEWTON.least * metric.largest * scale < size < np.inf:
            break
        shift, more = 0.0, NEWTON.shift * metric.smallest
        share = xy / xx
        rest = yy - share * xy
        while not (xx + shift > 1e-14 * abs(xx) and rest > 1e-14 * abs(yy)) and shift < NEWTON.max_shift:
            shift, more = more, 3.0 * more
            share = xy / (xx + shift)
            rest = yy + shift - share * xy
        step_y = (grad_y - share * grad_x) / rest
        step_x = grad_x / (xx + shift) - share * step_y
        if shift == 0.0:
            for c in range(n_known):
                left_x, left_y = x - ws.minima[c, 0], y - ws.minima[c, 1]
                landing = (left_x - step_x) ** 2 + (left_y - step_y) ** 2
                if landing <= NEWTON.merge * NEWTON.merge * (left_x * left_x + left_y * left_y):
                    return value, END.merged
        slope = grad_x * step_x + grad_y * step_y
        if shift == 0.0 and max(abs(step_x), abs(step_y)) <= NEWTON.last_step * scale:
            z[0], z[1] = x - step_x, y - step_y
            ws.hess[0, 0], ws.hess[0, 1], ws.hess[1, 0], ws.hess[1, 1] = xx, xy, xy, yy
            return value - 0.5 * slope, END.solved
        rounding, t = 4e-15 * (abs(value) + size * scale), 1.0
        ahead_x, ahead_y = x - step_x, y - step_y
    z[0], z[1] = x, y
    return value, END.unfinished
