"""Minimization of the proximal objective of losses of several fields with kinks, by a bundle method.

Near kinks a loss is the maximum of smooth pieces. `minimize_at_kinks` keeps a few of them, each by its value, slope and
Hessian at a point next to the kink, where differences of the loss see this piece only. Each iteration minimizes the
maximum of their tangents at z, the cuts, plus the quadratic term, and adds the piece at the minimum (Lemaréchal and
Zowe, 1994), unless the objective there is this minimum: if the loss is convex, it has no lower value. The weights of
the cuts (`_weigh_cuts`) show which kinks hold z.
"""

import math
from typing import NamedTuple

import numpy as np
from numba.core.types import Tuple, float64, int64

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, is_instance, overload
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
    minimize_generally,
    objective,
    quadratic_term,
)
from gamp_attention.problem.losses.protocol import IndirectLoss


class BundleSettings(NamedTuple):
    """Settings of the bundle method, compiled in."""

    reach: float = 3e-5  # distance at which a piece is examined, relative to the fields
    difference: float = 0.2  # step of the differences of a piece, in units of this distance
    tries: int = 8  # maximum number of points near a kink at which a piece is examined
    rough: float = 2e-5  # second differences, in units of first differences, above which a point is too near to a kink
    linear: float = 1e-15  # second differences that are rounding errors, in units of the loss and slopes times fields
    near: float = 1e-3  # distance, relative to the fields, up to which the curvature of a piece is used
    same: float = 1e-4  # difference of slopes, relative to their size, of which the older is forgotten
    cut_error: float = 1e-9  # error of the value that a piece predicts, relative to the objective
    tiny_weight: float = 1e-9  # weight of a piece at the minimum, up to which z is not held by its kink
    stiffness: float = 1e8  # curvature across a kink of several fields, in units of the largest curvature along it
    idle: float = 1e-3  # relative change of the predicted fall, below which a piece at a point above z changed nothing
    hidden: float = 1e-11  # fall of the objective, relative to it, that errors of the pieces may hide
    last_step: float = 3e-11  # step after which none follows, relative to the fields and to the step of the slopes
    # the same after many iterations, if errors of the pieces do not allow the smaller step; and their number
    late_step: float = 1e-7
    late: int = 50
    exact: float = 1e-10  # difference from the predicted objective, relative to its quadratic term


BUNDLE = BundleSettings()


class Bundle(NamedTuple):
    """Scratch arrays of m pieces of the loss, and of their cuts at z."""

    center: np.ndarray  # (m, k) points at which the pieces were examined
    slope: np.ndarray  # (m, k) slopes of the pieces there
    tangent: np.ndarray  # (m, k) slopes of the objective at z if the loss were this piece
    y: np.ndarray  # (m, k) tangents divided by the Cholesky factor of the Hessian
    hess: np.ndarray  # (m, k, k) Hessians of the pieces
    height: np.ndarray  # (m,) values of the pieces at the centers
    excess: np.ndarray  # (m,) loss at z minus the value that the piece predicts; infinite for unused places
    weight: np.ndarray  # (m,) weights of the cuts at the minimum of their maximum
    active: np.ndarray  # (m,) numbers of the cuts whose weights are not zero
    ones: np.ndarray  # (m,) scratch
    trial: np.ndarray  # (m,) weights of the active cuts, which may be negative
    gram: np.ndarray  # (m, m) products of y
    chol: np.ndarray  # (m, m) Cholesky factor of the equations for the weights


@dispatch_on_type
def is_kinked(loss):
    """Return whether a loss of several fields has kinks. Compiled code only."""


@overload(is_kinked)
def _is_kinked(loss):
    return (lambda loss: loss.kinked) if is_instance(loss, IndirectLoss) else (lambda loss: False)


@inline_kernel
def _empty_bundle(memory, k):
    """Return a bundle without pieces, in the memory of `workspace_memory` after the scratch of the loss."""
    m, n = k + EXTRA_CUTS, 1 + (k + 2) * k
    a, squares = view(memory, n, (4, m, k)), view(memory, n + 4 * m * k, (2, m, m))
    b = view(memory, n + 4 * m * k + 2 * m * m, (6, m))
    hess = view(memory, n + 4 * m * k + 2 * m * m + 6 * m, (m, k, k))
    for j in range(m):
        b[1, j], b[2, j] = np.inf, 0.0
    return Bundle(a[0], a[1], a[2], a[3], hess, b[0], b[1], b[2], b[3], b[4], b[5], squares[0], squares[1])


@inline_kernel
def _dot(x, y):
    total = 0.0
    for i in range(x.shape[0]):
        total += x[i] * y[i]
    return total


@inline_kernel
def _max_distance(x, y):
    largest = 0.0
    for i in range(x.shape[0]):
        largest = max(largest, abs(x[i] - y[i]))
    return largest


@deferred_kernel(float64)
def _examine_piece(loss, p, at_metric, point, number, reach, center, slope, hess, at_ws):
    """Fill center with a point of one piece of the loss near `point`, and its slope and Hessian; return the loss there.

    Near a kink, differences are taken on one side of it, at one of a few points.
    """
    k, h, value, best, least = point.shape[0], BUNDLE.difference * reach, 0.0, 0, np.inf
    for attempt in range(BUNDLE.tries + 1):  # the last time at the best of the points
        at = number * BUNDLE.tries + 1.0 + (attempt if attempt < BUNDLE.tries else best)
        for i in range(k):
            center[i] = point[i] + (reach * math.cos(at * (i + 1.7) + 2.0 * i) if number + attempt > 0 else 0.0)
        value = objective(loss, p, center, at_metric, center, at_ws)  # the loss only
        rise, rough = 0.0, 0.0
        for i in range(k):
            x = center[i]
            center[i] = x + h
            right = objective(loss, p, center, at_metric, center, at_ws)
            center[i] = x - h
            left = objective(loss, p, center, at_metric, center, at_ws)
            center[i], slope[i], bend = x, 0.5 * (right - left) / h, right - 2 * value + left
            hess[i, i] = bend / (h * h)
            rise, rough = max(rise, abs(right - left)), max(rough, abs(bend))
        hidden = BUNDLE.linear * (abs(value) + max_abs(slope) * max_abs(center))
        for i in range(k):
            for j in range(i):
                mixed, x, y = 0.0, center[i], center[j]
                if max(abs(hess[i, i]), abs(hess[j, j])) * h * h > hidden:  # else ℓ is linear in both fields, if convex
                    for s in (-1.0, 1.0):
                        for t in (-1.0, 1.0):
                            center[i], center[j] = x + s * h, y + t * h
                            mixed += s * t * objective(loss, p, center, at_metric, center, at_ws)
                    center[i], center[j] = x, y
                hess[i, j] = hess[j, i] = 0.25 * mixed / (h * h)
                rough = max(rough, abs(mixed))
        if rough <= BUNDLE.rough * rise + ROUNDING * abs(value):
            break
        if rough < least:
            best, least = attempt, rough
    if rough <= hidden:
        hess[:] = 0.0  # else its errors, times the distance from the center, would move the minimum
    return value


@inline_kernel
def _place_of_new_piece(bundle):
    """Return the place of a cut without weight that is farthest below the objective at z."""
    excess, weight, new = bundle.excess, bundle.weight, 0
    for j in range(weight.shape[0]):
        if weight[j] <= 0.0 and (weight[new] > 0.0 or excess[j] > excess[new]):
            new = j
    return new


@inline_kernel
def _fill_cuts(bundle, metric, omega, z, value, grad, near):
    """Fill tangents and excesses at z, for the objective `value` there, and grad with the slope of the quadratic term.

    The curvature of a piece is used up to the distance `near`.
    """
    (m, k), r, level = bundle.center.shape, metric.inverse.shape[1], value
    for i in range(k):
        grad[i], first = 0.0, i - i % r
        for b in range(r):
            grad[i] += metric.inverse[i // r, i % r, b] * (z[first + b] - omega[first + b])
        level -= 0.5 * grad[i] * (z[i] - omega[i])
    for j in range(m):
        if bundle.excess[j] < np.inf:
            center, is_near, predicted = bundle.center[j], _max_distance(z, bundle.center[j]) <= near, bundle.height[j]
            for i in range(k):
                bend = 0.0
                if is_near:
                    for c in range(k):
                        bend += bundle.hess[j, i, c] * (z[c] - center[c])
                predicted += (bundle.slope[j, i] + 0.5 * bend) * (z[i] - center[i])
                bundle.tangent[j, i] = bundle.slope[j, i] + bend + grad[i]
            bundle.excess[j] = level - predicted


@inline_kernel
def _forget_cuts(bundle, new, same, error):
    """Forget cuts above the objective by more than `error`, and older cuts with the slope of the new cut, up to `same`.

    Their weights go to the new cut. An excess of rounding errors is set to zero. Returns the smallest excess.
    """
    excess, weight, tangent, smallest = bundle.excess, bundle.weight, bundle.tangent, np.inf
    for j in range(weight.shape[0]):
        if j != new and (excess[j] < -error or _max_distance(tangent[j], tangent[new]) <= same):
            weight[new] += weight[j]
            excess[j], weight[j] = np.inf, 0.0
        excess[j] = max(excess[j], 0.0)
        smallest = min(smallest, excess[j])
    return smallest


@inline_kernel
def _mix_hessians(metric, bundle, hess):
    """Fill hess with V⁻¹ + Σ w H for the weights and Hessians of the pieces."""
    k, r, weight = hess.shape[0], metric.inverse.shape[1], bundle.weight
    for i in range(k):
        for c in range(k):
            hess[i, c] = metric.inverse[i // r, i % r, c % r] if i // r == c // r else 0.0
            for j in range(weight.shape[0]):
                hess[i, c] += weight[j] * bundle.hess[j, i, c] if weight[j] > 0.0 else 0.0


@inline_kernel
def _start_weights(bundle, chol):
    """Fill y and their products, for the factor of the Hessian; set the best weight to 1; return the largest |y|²."""
    m, k = bundle.y.shape
    y, gram, excess, best, size = bundle.y, bundle.gram, bundle.excess, 0, 1e-300
    for j in range(m):
        bundle.weight[j] = 0.0
        if excess[j] < np.inf:
            for i in range(k):
                acc = bundle.tangent[j, i]
                for c in range(i):
                    acc -= chol[i, c] * y[j, c]
                y[j, i] = acc / chol[i, i]
            for i in range(j + 1):
                gram[i, j] = gram[j, i] = _dot(y[i], y[j])
            size = max(size, gram[j, j])
            if 0.5 * gram[j, j] + excess[j] < 0.5 * gram[best, best] + excess[best]:
                best = j
    bundle.weight[best] = 1.0
    return size


@inline_kernel
def _fill_trial_weights(bundle, size):
    """Fill active and trial with the minimum over the weights that are not zero, for Σ w = 1; return their number."""
    active, ones, trial, n = bundle.active, bundle.ones, bundle.trial, 0
    for i in range(active.shape[0]):  # (G + s 11ᵀ) w = −e + c 1 with products G, size s, excess e and some c
        if bundle.weight[i] > 0.0:
            active[n], ones[n], trial[n] = i, 1.0, bundle.excess[i]
            for c in range(n + 1):
                bundle.chol[n, c] = bundle.gram[i, int(active[c])] + size
            n += 1
    chol = bundle.chol[:n, :n]
    cholesky(chol, 1e-13 * size, chol)
    cholesky_solve(chol, ones[:n])
    cholesky_solve(chol, trial[:n])
    total, change = 1.0, 0.0
    for c in range(n):
        total += trial[c]
        change += ones[c]
    for c in range(n):
        trial[c] = ones[c] * total / change - trial[c]
    return n


@inline_kernel
def _weigh_cuts(bundle, chol):
    """Fill the weights w of cuts that minimize ½|Σ w y|² + Σ w e, with w ≥ 0 and Σ w = 1, by an active-set method.

    Cuts with an infinite excess e are left out. y are the tangents divided by the factor `chol`.
    """
    m, excess, weight = bundle.weight.shape[0], bundle.excess, bundle.weight
    size = _start_weights(bundle, chol)
    for _ in range(4 * m):
        lowest, level, added = np.inf, 0.0, 0
        for i in range(m):
            if excess[i] < np.inf:
                slope = excess[i]
                for j in range(m):
                    slope += bundle.gram[i, j] * weight[j] if weight[j] > 0.0 else 0.0
                level += weight[i] * slope
                if slope < lowest:
                    lowest, added = slope, i
        if weight[added] > 0.0 or not lowest < level - ROUNDING * (size + abs(level)):
            break
        weight[added], step = 1e-300, 0.0
        while step < 1.0:  # go to the minimum over the active weights, or until one of them is zero
            n, step = _fill_trial_weights(bundle, size), 1.0
            for c in range(n):
                w, target = weight[int(bundle.active[c])], bundle.trial[c]
                step = min(step, w / (w - target)) if target <= 0.0 else step
            for c in range(n):
                i, target = int(bundle.active[c]), bundle.trial[c]
                weight[i] += step * (target - weight[i])
                if target <= 0.0 and weight[i] <= 1e-15:
                    weight[i] = 0.0


@inline_kernel
def _fill_bundle_step(bundle, chol, slope, step):
    """Fill step with the step to the minimum of the cuts; return by how much the objective falls if they are exact."""
    weight, fall = bundle.weight, 0.0
    for i in range(step.shape[0]):
        slope[i] = 0.0
    for j in range(weight.shape[0]):
        if weight[j] > 0.0:
            fall += weight[j] * bundle.excess[j]
            for i in range(step.shape[0]):
                slope[i] -= weight[j] * bundle.tangent[j, i]
    assign(step, slope)
    cholesky_solve(chol, step)
    return fall + 0.5 * _dot(slope, step)


@inline_kernel
def _shift_to_piece(bundle, point, change, reach, error):
    """Shift a point to the side of a kink where the loss is the piece whose weighted excess is the largest.

    The piece was examined too far from z, or its excess would be zero. Nothing happens if all excesses are errors.
    `change` is scratch.
    """
    tangent, weight, excess, k, far = bundle.tangent, bundle.weight, bundle.excess, point.shape[0], 0
    for j in range(weight.shape[0]):
        if weight[j] > 0.0 and not weight[j] * excess[j] <= weight[far] * excess[far]:
            far = j
    if not weight[far] * excess[far] > error or weight[far] >= 1.0:
        return
    for i in range(k):
        change[i] = tangent[far, i] / (1.0 - weight[far])
        for j in range(weight.shape[0]):
            change[i] -= weight[j] * tangent[j, i] / (1.0 - weight[far]) if weight[j] > 0.0 else 0.0
    size = math.sqrt(_dot(change, change))
    for i in range(k if size > 0.0 else 0):
        point[i] += 2.0 * (reach + excess[far] / size) * change[i] / size


@inline_kernel
def _stiffen_kinks(metric, bundle, hess, change):
    """Fill hess with the Hessian along the kinks that hold z, and a large curvature across them.

    The differences of the slopes of the pieces that meet at z span the directions across. `change` is scratch.
    """
    _mix_hessians(metric, bundle, hess)
    tangent, weight, k, largest, heaviest = bundle.tangent, bundle.weight, change.shape[0], 0.0, 0
    for i in range(k):
        largest = max(largest, hess[i, i])
    for j in range(weight.shape[0]):
        heaviest = j if weight[j] > weight[heaviest] else heaviest
    for j in range(weight.shape[0]):
        if weight[j] > BUNDLE.tiny_weight and j != heaviest:
            for i in range(k):
                change[i] = tangent[j, i] - tangent[heaviest, i]
            stiffness = BUNDLE.stiffness * largest / _dot(change, change)
            for i in range(k):
                for c in range(k):
                    hess[i, c] += stiffness * change[i] * change[c]


@inline_kernel
def _farthest(bundle, z):
    """Return the largest distance of z from the center of a cut, with which its errors grow, and curvature of a cut."""
    far, bend = 0.0, 0.0
    for j in range(bundle.weight.shape[0]):
        far = max(far, _max_distance(z, bundle.center[j]) if bundle.weight[j] > 0.0 else 0.0)
        for i in range(z.shape[0] if bundle.weight[j] > 0.0 else 0):
            bend = max(bend, abs(bundle.hess[j, i, i]))
    return far, bend


@deferred_kernel(Tuple((float64, int64)))
def minimize_at_kinks(loss, p, omega, at_metric, z, at_ws):
    """Minimize as `minimize_from`, for a loss of several fields with kinks. On return, ws.hess is stiff across them."""
    metric, ws, k = load_from(at_metric), load_from(at_ws), z.shape[0]
    bundle = _empty_bundle(ws.n_hessians, k)
    excess, trial = bundle.excess, ws.trial
    assign(trial, z)
    value, target, moved, reach = np.nan, np.inf, True, BUNDLE.reach
    scale, error, least, n_idle, expected = 0.0, 0.0, np.inf, 0, np.nan
    for number in range(NEWTON.max_iter):
        here = objective(loss, p, omega, at_metric, trial, at_ws)
        if here <= target:
            assign(z, trial)
            value, moved, least = here, True, np.inf
            if abs(here - expected) <= BUNDLE.exact * quadratic_term(metric, omega, z):
                far, bend = _farthest(bundle, z)
                if bend == 0.0 and far <= scale:  # if ℓ is convex, no objective is below such cuts
                    _stiffen_kinks(metric, bundle, ws.hess, ws.step)
                    return value, OUTCOME.solved
        elif n_idle == 1:  # the last piece changed nothing
            _shift_to_piece(bundle, trial, ws.start, reach * scale, BUNDLE.cut_error * error)
        if not math.isfinite(value) or ws.stop[0] != 0:
            break
        scale, new = 1.0 / math.sqrt(metric.largest), _place_of_new_piece(bundle)
        for i in range(k):
            scale = max(scale, abs(z[i]) + abs(omega[i]))
        center, slope, hess, distance = bundle.center[new], bundle.slope[new], bundle.hess[new], reach * scale
        bundle.height[new] = _examine_piece(loss, p, at_metric, trial, number, distance, center, slope, hess, at_ws)
        excess[new], bundle.weight[new] = 0.0, 1.0 if number == 0 else 0.0
        _fill_cuts(bundle, metric, omega, z, value, ws.grad, BUNDLE.near * scale)
        steepest, error = max_abs(bundle.tangent[new]) + max_abs(ws.grad), abs(value) + max_abs(ws.grad) * scale
        if excess[new] < -BUNDLE.cut_error * error and not moved:  # ℓ is not convex: try a point nearer to z
            excess[new] = np.inf
            for i in range(k):
                trial[i] = 0.5 * (z[i] + trial[i])
            continue
        unexplained = _forget_cuts(bundle, new, BUNDLE.same * steepest, BUNDLE.cut_error * error)
        _mix_hessians(metric, bundle, ws.hess)
        fill_step(metric, cholesky(ws.hess, 0.0, ws.chol), ws.grad, ws.hess, ws.chol, ws.step)
        _weigh_cuts(bundle, ws.chol)
        fall = _fill_bundle_step(bundle, ws.chol, ws.start, ws.step)
        n_idle = n_idle + 1 if not moved and fall > (1 - BUNDLE.idle) * least else 0
        least = min(least, fall)
        length = 0.5 ** max(n_idle - 1, 0)  # shorter where pieces of different curvature meet: the Maratos effect
        for i in range(k):
            trial[i] = z[i] + length * ws.step[i]
        last_step = BUNDLE.last_step if number < BUNDLE.late else BUNDLE.late_step
        moved, hidden = False, ROUNDING if fall > BUNDLE.hidden * error else BUNDLE.hidden
        target, expected = value - NEWTON.sufficient_decrease * length * fall + hidden * error, value - fall
        if unexplained > BUNDLE.cut_error * error:  # the piece of z is thinner than the distance of its center
            reach, expected = 0.7 * reach, np.nan
            if number % 2:
                assign(trial, z)  # with another center
                target = np.inf
        elif fall <= ROUNDING * error or max_abs(ws.step) <= last_step * (scale + steepest / metric.smallest):
            assign(z, trial)
            value, target = objective(loss, p, omega, at_metric, z, at_ws), np.inf
            if number >= BUNDLE.late or _farthest(bundle, z)[0] <= BUNDLE.near * scale:
                _stiffen_kinks(metric, bundle, ws.hess, ws.step)
                return value, OUTCOME.solved
    # far from kinks, but next to large third derivatives, differences at z are more accurate than at other points
    return minimize_generally(loss, p, omega, at_metric, z, at_ws, 0)
