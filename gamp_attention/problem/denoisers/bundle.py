"""Minimization of the proximal objective of losses of several fields with kinks, by a bundle method.

Near kinks a loss is the maximum of smooth pieces. `minimize_at_kinks` keeps a few of them, each by its value, slope and
Hessian at a point next to the kink, where differences of the loss see this piece only. Each iteration minimizes the
maximum of their tangents at z, the cuts, plus the quadratic term, and adds the piece at the minimum (Lemaréchal and
Zowe, 1994). The weights of the cuts there (`_weigh_cuts`) show which kinks hold z.
"""

import math

import numpy as np
from numba.core.types import Tuple, float64, int64

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, is_instance, overload, sample_kernel
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from, view
from gamp_attention.problem.denoisers.newton import (
    EXTRA_CUTS,
    NEWTON,
    OUTCOME,
    ROUNDING,
    assign,
    cholesky,
    cholesky_solve,
    fill_step,
    max_abs,
    objective,
    quadratic_term,
)
from gamp_attention.problem.losses.protocol import IndirectLoss

PIECE_REACH = 3e-5  # distance at which a piece is examined, relative to the fields; its differences have a fifth of it
PIECE_TRIES = 8  # maximum number of points near a kink at which a piece is examined
ROUGH_PIECE = 2e-5  # second differences, in units of first ones, above which a point is too near to a kink
PIECE_NEAR = 1e-3  # distance, relative to the fields, up to which the curvature of a piece is used
SAME_PIECE = 1e-4  # difference of slopes, relative to their size, of which the older is forgotten
CUT_ERROR = 1e-9  # error of the value that a piece predicts, relative to the objective
TINY_WEIGHT = 1e-9  # weight of a piece at the minimum, up to which z is not held by its kink
HELD_STIFFNESS = 1e8  # curvature across a kink of several fields, in units of the largest along it
LAST_CUT = 3e-11  # step, relative to the fields and to the step that the slopes cause, after which none follows


@dispatch_on_type
def is_kinked(loss):
    """Return whether a loss of several fields has kinks. Compiled code only."""


@overload(is_kinked)
def _is_kinked(loss):
    return (lambda loss: loss.kinked) if is_instance(loss, IndirectLoss) else (lambda loss: False)


@deferred_kernel(float64)
def _examine_piece(loss, p, at_metric, point, number, reach, center, slope, hess, at_ws):
    """Fill center with a point of one piece of the loss near `point`, and its slope and Hessian; return the loss there.

    Near a kink, differences are taken on one side of it, at one of a few points.
    """
    k, h, value = point.shape[0], 0.2 * reach, 0.0
    for attempt in range(PIECE_TRIES):
        for i in range(k):
            center[i] = point[i] + reach * math.cos((number * PIECE_TRIES + attempt + 1.0) * (i + 1.7) + 2.0 * i)
        value = objective(loss, p, center, at_metric, center, at_ws)  # the loss only
        rise, rough = 0.0, 0.0
        for i in range(k):
            x = center[i]
            center[i] = x + h
            right = objective(loss, p, center, at_metric, center, at_ws)
            center[i] = x - h
            left = objective(loss, p, center, at_metric, center, at_ws)
            slope[i], bend = 0.5 * (right - left) / h, right - 2 * value + left
            hess[i, i] = bend / (h * h)
            rise, rough = max(rise, abs(right - left)), max(rough, abs(bend))
            for j in range(i):
                mixed, other = 0.0, center[j]
                for s in (-1.0, 1.0):
                    for t in (-1.0, 1.0):
                        center[i], center[j] = x + s * h, other + t * h
                        mixed += s * t * objective(loss, p, center, at_metric, center, at_ws)
                center[j] = other
                hess[i, j] = hess[j, i] = 0.25 * mixed / (h * h)
                rough = max(rough, abs(mixed))
            center[i] = x
        if rough <= ROUGH_PIECE * rise + ROUNDING * abs(value):
            break
    return value


@sample_kernel
def _weigh_cuts(y, excess, weight, trial, gram, chol):
    """Fill the weights w of cuts that minimize ½|Σ w y|² + Σ w e, with w ≥ 0 and Σ w = 1, by an active-set method.

    Cuts with an infinite excess e are left out. `trial`, `gram` and `chol` are scratch.
    """
    m, k = y.shape
    best, size = 0, 0.0
    for i in range(m):
        weight[i] = 0.0
        for j in range(i + 1):
            gram[i, j] = 0.0
            for a in range(k):
                gram[i, j] += y[i, a] * y[j, a]
            gram[j, i] = gram[i, j]
        if excess[i] < np.inf:
            size = max(size, gram[i, i])
        if 0.5 * gram[i, i] + excess[i] < 0.5 * gram[best, best] + excess[best]:
            best = i
    weight[best], size = 1.0, max(size, 1e-300)
    for _ in range(4 * m):
        lowest, level, added = np.inf, 0.0, -1
        for i in range(m):
            if excess[i] < np.inf:
                slope = excess[i]
                for j in range(m):
                    slope += gram[i, j] * weight[j] if weight[j] > 0.0 else 0.0
                level += weight[i] * slope
                if slope < lowest:
                    lowest, added = slope, i
        if added < 0 or weight[added] > 0.0 or lowest >= level - ROUNDING * (size + abs(level)):
            break
        weight[added] = 1e-300
        while True:
            # minimum with Σ w = 1 over the weights that are not zero: (G + s 11ᵀ) w = −e + c 1
            n = 0
            for i in range(m):
                if weight[i] > 0.0:
                    trial[0, n], trial[1, n], row = 1.0, excess[i], 0
                    for j in range(i + 1):
                        if weight[j] > 0.0:
                            acc = gram[i, j] + size * (1.0 + (1e-13 if i == j else 0.0))
                            for c in range(row):
                                acc -= chol[n, c] * chol[row, c]
                            chol[n, row] = math.sqrt(max(acc, 1e-14 * size)) if row == n else acc / chol[row, row]
                            row += 1
                    n += 1
            cholesky_solve(chol[:n, :n], trial[0, :n])
            cholesky_solve(chol[:n, :n], trial[1, :n])
            ones, sums = 0.0, 1.0
            for i in range(n):
                ones += trial[0, i]
                sums += trial[1, i]
            step, n = 1.0, 0
            for i in range(m):
                if weight[i] > 0.0:
                    trial[0, n] = trial[0, n] * sums / ones - trial[1, n]
                    if trial[0, n] <= 0.0:
                        step = min(step, weight[i] / (weight[i] - trial[0, n]))
                    n += 1
            n = 0
            for i in range(m):
                if weight[i] > 0.0:
                    w = weight[i] + step * (trial[0, n] - weight[i])
                    weight[i] = w if trial[0, n] > 0.0 or w > 1e-15 else 0.0
                    n += 1
            if step == 1.0:
                break


@inline_kernel
def _mix_hessians(metric, weight, hessians, hess):
    """Fill hess with V⁻¹ + Σ w H for the weights and Hessians of cuts."""
    k, r = hess.shape[0], metric.inverse.shape[1]
    for i in range(k):
        for c in range(k):
            hess[i, c] = metric.inverse[i // r, i % r, c % r] if i // r == c // r else 0.0
            for j in range(weight.shape[0]):
                hess[i, c] += weight[j] * hessians[j, i, c] if weight[j] > 0.0 else 0.0


@deferred_kernel(Tuple((float64, int64)))
def minimize_at_kinks(loss, p, omega, at_metric, z, at_ws):
    """Minimize as `minimize_from`, for a loss of several fields with kinks. On return, ws.hess is stiff across them."""
    metric, ws, k = load_from(at_metric), load_from(at_ws), z.shape[0]
    L, r, m, first = metric.inverse.shape[0], metric.inverse.shape[1], 2 * k + EXTRA_CUTS, 1 + (k + 2) * k
    vectors, hessians = view(ws.n_hessians, first, (4, m, k)), view(ws.n_hessians, first + 4 * m * k, (m, k, k))
    numbers = view(ws.n_hessians, first + 4 * m * k + m * k * k, (5, m))
    grams = view(ws.n_hessians, first + 4 * m * k + m * k * k + 5 * m, (2, m, m))
    center, slope, tangent, y = vectors[0], vectors[1], vectors[2], vectors[3]
    height, excess, weight = numbers[0], numbers[1], numbers[2]
    for j in range(m):
        excess[j], weight[j] = np.inf, 0.0
    value = here = objective(loss, p, omega, at_metric, z, at_ws)
    assign(ws.trial, z)
    target, solved, moved, reach = np.inf, False, True, PIECE_REACH
    for number in range(NEWTON.max_iter):
        if not math.isfinite(value) or ws.stop[0] != 0:
            break
        if here <= target:
            assign(z, ws.trial)
            value, moved = here, True
        scale = 1.0 / math.sqrt(metric.largest)
        for i in range(k):
            scale = max(scale, abs(z[i]) + abs(omega[i]))
        new = 0
        for j in range(m):
            if weight[j] <= 0.0 and (weight[new] > 0.0 or excess[j] > excess[new]):
                new = j
        height[new] = _examine_piece(
            loss, p, at_metric, ws.trial, number, reach * scale, center[new], slope[new], hessians[new], at_ws
        )
        excess[new], weight[new], size = 0.0, 1.0 if number == 0 else 0.0, 0.0
        for l in range(L):
            for a in range(r):
                i = l * r + a
                ws.grad[i] = 0.0
                for b in range(r):
                    ws.grad[i] += metric.inverse[l, a, b] * (z[l * r + b] - omega[l * r + b])
                size = max(size, abs(ws.grad[i]))
        level, error = value - quadratic_term(metric, omega, z), abs(value) + size * scale
        for j in range(m):
            if excess[j] == np.inf:
                continue
            distance, predicted = 0.0, height[j]
            for i in range(k):
                distance = max(distance, abs(z[i] - center[j, i]))
            for i in range(k):
                bend = 0.0
                if distance <= PIECE_NEAR * scale:
                    for c in range(k):
                        bend += hessians[j, i, c] * (z[c] - center[j, c])
                predicted += (slope[j, i] + 0.5 * bend) * (z[i] - center[j, i])
                tangent[j, i] = slope[j, i] + bend + ws.grad[i]
            excess[j] = level - predicted
        if excess[new] < -CUT_ERROR * error and not moved:  # ℓ is not convex: try a point nearer to z
            excess[new] = np.inf
            for i in range(k):
                ws.trial[i] = 0.5 * (z[i] + ws.trial[i])
            here = objective(loss, p, omega, at_metric, ws.trial, at_ws)
            continue
        steepest = max_abs(tangent[new]) + size
        for j in range(m):
            difference = 0.0
            for i in range(k):
                difference = max(difference, abs(tangent[j, i] - tangent[new, i]))
            if j != new and (excess[j] < -CUT_ERROR * error or difference <= SAME_PIECE * steepest):
                weight[new] += weight[j]
                excess[j], weight[j] = np.inf, 0.0
            elif excess[j] < np.inf:
                excess[j] = max(excess[j], 0.0)

        _mix_hessians(metric, weight, hessians, ws.hess)
        if not cholesky(ws.hess, 0.0, ws.chol):
            fill_step(metric, False, ws.grad, ws.hess, ws.chol, ws.step)
        for j in range(m):
            if excess[j] < np.inf:
                for i in range(k):
                    y[j, i] = tangent[j, i]
                    for c in range(i):
                        y[j, i] -= ws.chol[i, c] * y[j, c]
                    y[j, i] /= ws.chol[i, i]
        _weigh_cuts(y, excess, weight, numbers[3:], grams[0], grams[1])
        fall = 0.0
        for i in range(k):
            ws.step[i], ws.start[i] = 0.0, 0.0
        for j in range(m):
            if weight[j] > 0.0:
                fall += weight[j] * excess[j]
                for i in range(k):
                    ws.step[i] -= weight[j] * tangent[j, i]
                    ws.start[i] += weight[j] * y[j, i]
        for i in range(k):
            fall += 0.5 * ws.start[i] ** 2
        cholesky_solve(ws.chol, ws.step)
        for i in range(k):
            ws.trial[i] = z[i] + ws.step[i]
        unexplained = np.inf
        for j in range(m):
            unexplained = min(unexplained, excess[j])
        if unexplained > CUT_ERROR * error:  # the piece of z is thinner than the distance at which it was examined
            reach *= 0.7
            here = value
            if number % 2:
                assign(ws.trial, z)
                continue
        elif fall <= ROUNDING * error or max_abs(ws.step) <= LAST_CUT * (scale + steepest / metric.smallest):
            solved = True
            break
        here = objective(loss, p, omega, at_metric, ws.trial, at_ws)
        target, moved = value - NEWTON.sufficient_decrease * fall + ROUNDING * error, False
    if not solved:
        return value, OUTCOME.failed
    assign(z, ws.trial)
    # the differences of the slopes of the pieces that meet at z span the directions in which the kink holds z
    _mix_hessians(metric, weight, hessians, ws.hess)
    largest, reference, n = 0.0, 0, 0
    for i in range(k):
        largest = max(largest, ws.hess[i, i])
    for j in range(m):
        if weight[j] > weight[reference]:
            reference = j
    for j in range(m):
        if j == reference or weight[j] <= TINY_WEIGHT:
            continue
        before, after = 0.0, 0.0
        for i in range(k):
            ws.step[i] = tangent[j, i] - tangent[reference, i]
            before += ws.step[i] ** 2
        for c in range(n):
            product = 0.0
            for i in range(k):
                product += ws.step[i] * y[c, i]
            for i in range(k):
                ws.step[i] -= product * y[c, i]
        for i in range(k):
            after += ws.step[i] ** 2
        if after > SAME_PIECE**2 * before and n < k:
            for i in range(k):
                y[n, i] = ws.step[i] / math.sqrt(after)
            for i in range(k):
                for c in range(k):
                    ws.hess[i, c] += HELD_STIFFNESS * largest * y[n, i] * y[n, c]
            n += 1
    return value, OUTCOME.solved
