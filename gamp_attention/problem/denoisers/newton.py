"""Local minimization of the proximal objective of one sample by guarded Newton steps.

    F(z) = ½ Σ_l (z_l − ω_l)ᵀ V_l⁻¹ (z_l − ω_l) + ℓ(z),   z flattened to L r numbers

Each iteration solves (∇²F + shift) step = ∇F by a Cholesky factorization. The shift is zero if ∇²F is positive
definite, and otherwise increased from a small value until the sum is positive definite, so that the step decreases F.
The step is halved until F falls by at least a fraction of the decrease that its slope predicts (Nocedal and Wright,
2006, chapter 3). Three guards complete the method:

- A stationary point with an indefinite Hessian is a saddle and is left along a direction of negative curvature.
- A minimization that approaches a minimum which the caller has already found ends early.
- Near a minimum, differences of F are smaller than its rounding error. Then the gradient decides when to stop. The
  rounding error of ℓ can be far larger than ℓ: ½ (1 − tanh z) is 1e-10 at z = 11, with an error of 1e-17 to 1e-16. So
  the gradient decides about all Newton steps that are short in units of V^{1/2}, for which F need not fall.

For two tokens and one column, and for registered losses of one field, `minimize_in_scalars` takes such steps in scalars
instead of arrays, in a third of the time. There, an indefinite Hessian is replaced by the matrix of the absolute values
of its eigenvalues (Greenstadt, 1967). In the very rare cases in which this method does not end, and for all other
losses, `minimize_generally` continues from the point that was reached; it is compiled at its first call.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import typeof
from numba.core.types import CPointer, Tuple, boolean, float64, int64

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, is_instance, overload, sample_kernel
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import ROOM, load_from, place, point_to_field, view
from gamp_attention.problem.losses.attention import is_dot_product_loss
from gamp_attention.problem.losses.protocol import (
    VECTOR,
    IndirectLoss,
    TableSlots,
    differentiate,
    loss_kernel,
    loss_value,
    make_work,
    work_size,
)
from gamp_attention.problem.losses.two_tokens import is_two_tokens, two_token_expansion

MIN_PIVOT = 1e-14  # smallest pivot of a positive definite matrix, in units of its diagonal entry
FLAT = 1e-10  # negative curvature, in units of the largest, below which a stationary point counts as a minimum
AT_KINK = 1e100  # curvature of a loss at a kink
# difference of the slopes on both sides of a kink, relative to their size and to their change by the curvature
KINK_SLOPE, KINK_CHANGE = 1e-6, 1e3
MAX_SHIFT = 1e300  # larger than the shift that any finite Hessian needs
ROUNDING = 4e-15  # rounding error of the objective, in units of its value plus gradient times fields
# largest increase of the objective by a hidden step of one field, in units of this error: slopes are inexact
HIDDEN_RISE = 1e5
LAST_STEP = 1e-10  # relative size of a step after which none follows: the next step would be quadratically smaller
ROUGH_STEP = 1e-2  # the same for iterations whose minimum need not be accurate
EXTRA_CUTS = 4  # number of pieces that `bundle` stores for a loss with kinks, in addition to the number of fields
MAX_MINIMA = 16  # number of minima that a global search stores
N_VECTORS, N_MATRICES = 5 + MAX_MINIMA, 5  # number of vectors and matrices in a `Workspace`


class NewtonSettings(NamedTuple):
    """Settings of the minimization of one proximal objective, compiled in: as arguments they cost 7 % of its time."""

    max_iter: int = 200  # maximum number of Newton steps: far more than any minimum needs, for objectives with kinks
    # gradient that counts as zero, in units of the largest eigenvalue of V⁻¹ times the fields: a few rounding errors
    stationary: float = 1e-14
    saddle_interval: int = 30  # number of steps between attempts to leave an indefinite point along negative curvature
    inverse_iterations: int = 20  # for a direction of negative curvature, whose error falls by a third or more in each
    first_shift: float = 0.05  # first shift of an indefinite Hessian, in units of the smallest eigenvalue of V⁻¹
    shift_growth: float = 3.0  # factor between successive shifts; each shift costs a factorization
    sufficient_decrease: float = 1e-4  # decrease of the objective that a step must reach, in units of step times slope
    hidden_step: float = 1e-6  # step, in units of the smallest V^{1/2}, whose decrease of F may be below its rounding
    short: float = 1e-6  # fraction of a step; two successive steps below it mean that the search is stuck, as at a kink
    shortest: float = 1e-12  # fraction of a step below which the line search fails
    merge: float = 0.3  # ratio of distances to a known minimum, after and before a step, below which it is approached
    shortest_single: float = 0.1  # the same for a single field, for which the minimum is then found by bisection
    last_gap: float = 2e-16  # length of an interval, relative to the fields, at which bisection ends
    max_scalar: int = 200  # maximum number of evaluations in scalars, before the general form takes over


NEWTON = NewtonSettings()


class NewtonOutcome(NamedTuple):
    """Ways in which a minimization ends."""

    failed: int = 0
    solved: int = 1
    merged: int = 2  # a step headed for a minimum in `Workspace.minima`, so the minimization ended early
    unfinished: int = 3  # the general form has to continue the minimization


OUTCOME = NewtonOutcome()


class NotPositiveDefinite(ValueError, FloatingPointError):
    """Error if V is not symmetric positive definite: as an argument, or because message passing broke down."""


class Metric(NamedTuple):
    """The quadratic term of the objective, blocks of V and quantities derived from them."""

    inverse: np.ndarray  # (L, r, r), V_l⁻¹
    root: np.ndarray  # (L, r, r), lower Cholesky factor of V_l
    smallest: float  # smallest eigenvalue of V⁻¹
    largest: float  # largest eigenvalue of V⁻¹
    last_step: float  # relative size of a Newton step after which none follows


class Workspace(NamedTuple):
    """Scratch arrays of one thread, with k = L r."""

    grad: np.ndarray  # (k,) gradient of the objective
    hess: np.ndarray  # (k, k) Hessian of the objective
    kept: np.ndarray  # (k, k) Hessian at the lowest minimum that a global search has reached
    chol: np.ndarray  # (k, k) Cholesky factor of the Hessian, shifted if necessary
    step: np.ndarray  # (k,) Newton step
    start: np.ndarray  # (k,) point from which the current step is taken
    trial: np.ndarray  # (k,) point that is only evaluated
    point: np.ndarray  # (k,) start, then minimum, of a minimization within a global search
    loss: Any  # returned by make_work(loss)
    minima: np.ndarray  # (MAX_MINIMA, k) minima that a global search has reached
    stop: np.ndarray  # (1,) not zero if the caller was interrupted; see `interruptible_blocks`
    n_hessians: np.ndarray  # first entry: number of Hessians evaluated so far
    inverse: np.ndarray  # (k, k) inverse of the Hessian, or of its Cholesky factor
    product: np.ndarray  # (k, k) Jacobian ∂z/∂ω, or only its diagonal blocks


# numba types of pointers, for indirect calls
_V, _M, _B = np.empty(1), np.empty((1, 1)), np.empty((1, 1, 1))
METRIC = CPointer(typeof(Metric(_B, _B, 1.0, 1.0, LAST_STEP)))
WORKSPACE = CPointer(typeof(Workspace(_V, _M, _M, _M, _V, _V, _V, _V, _V, _M, np.zeros(1, int), _V, _M, _M)))
point_to_loss_scratch = point_to_field("loss")


def make_metric(V: np.ndarray, last_step: float = LAST_STEP) -> Metric:
    """Return the metric of blocks V (L, r, r); NotPositiveDefinite if a block is not symmetric positive definite."""
    V = np.ascontiguousarray(V, dtype=float)
    numbers = V.shape[1] == 1  # for 1 × 1 matrices LAPACK takes longer
    spectrum = V[:, 0] if numbers else np.linalg.eigvalsh(V)
    if not (np.isfinite(V).all() and spectrum.min() > 0):
        smallest = spectrum.min()
        raise NotPositiveDefinite(f"V: needs symmetric positive definite matrices, got the eigenvalue {smallest}")
    inverse = 1 / V if numbers else np.linalg.inv(V)
    inverse = np.ascontiguousarray(0.5 * (inverse + inverse.transpose(0, 2, 1)))
    root = np.ascontiguousarray(np.sqrt(V) if numbers else np.linalg.cholesky(V))
    return Metric(inverse, root, float(1.0 / spectrum.max()), float(1.0 / spectrum.min()), last_step)


def workspace_memory(loss: Any) -> np.ndarray:
    """Return memory for `make_workspace`: kernels allocate none."""
    k = loss.n_fields
    m = k + EXTRA_CUTS if getattr(loss, "kinked", False) else 0
    return np.zeros(ROOM + work_size(loss) + N_VECTORS * k + N_MATRICES * k * k + 1 + m * (k * k + 4 * k + 6 + 2 * m))


@sample_kernel
def make_workspace(loss, k, stop, memory):
    """Return a pointer to a `Workspace` of one thread for k fields, which is stored in `memory` as well.

    Another thread sets `stop` (1,) to end this thread's work early.
    """
    vectors, n = view(memory, ROOM, (N_VECTORS, k)), ROOM + N_VECTORS * k
    matrices, n_hessians = view(memory, n, (N_MATRICES, k, k)), memory[n + N_MATRICES * k * k :]
    ws = Workspace(
        vectors[0], matrices[0], matrices[1], matrices[2], vectors[1], vectors[2], vectors[3], vectors[4],
        make_work(loss, n_hessians[1:]), vectors[5:], stop, n_hessians, matrices[3], matrices[4],
    )  # fmt: skip
    return place(ws, memory)


@inline_kernel
def assign(target, source):
    """Copy source (k,) to target (k,); a slice assignment would check for overlaps, which takes longer."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@inline_kernel
def copy_matrix(target, source):
    """Copy source (k, k) to target (k, k)."""
    for i in range(target.shape[0]):
        assign(target[i], source[i])


@inline_kernel
def max_abs(x):
    """Return max |x_i|."""
    largest = 0.0
    for i in range(x.shape[0]):
        largest = max(largest, abs(x[i]))
    return largest


@inline_kernel
def cholesky(hess, shift, chol):
    """Factor hess + shift I into chol; return False if it is not positive definite."""
    k = hess.shape[0]
    for i in range(k):
        for j in range(i + 1):
            acc = hess[i, j]
            if i == j:
                acc += shift
            for m in range(j):
                acc -= chol[i, m] * chol[j, m]
            if i == j:
                if not acc > MIN_PIVOT * abs(hess[i, i]):
                    return False
                chol[i, i] = math.sqrt(acc)
            else:
                chol[i, j] = acc / chol[j, j]
    return True


@inline_kernel
def cholesky_solve(chol, x):
    """Solve a linear system in place, with the lower Cholesky factor of its matrix."""
    k = chol.shape[0]
    for i in range(k):
        acc = x[i]
        for m in range(i):
            acc -= chol[i, m] * x[m]
        x[i] = acc / chol[i, i]
    for i in range(k - 1, -1, -1):
        acc = x[i]
        for m in range(i + 1, k):
            acc -= chol[m, i] * x[m]
        x[i] = acc / chol[i, i]


@inline_kernel
def quadratic_term(metric, omega, z):
    """Return ½ Σ_l (z_l − ω_l)ᵀ V_l⁻¹ (z_l − ω_l)."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    total = 0.0
    for l in range(L):
        for a in range(r):
            for b in range(r):
                total += (z[l * r + a] - omega[l * r + a]) * metric.inverse[l, a, b] * (z[l * r + b] - omega[l * r + b])
    return 0.5 * total


# From here on, `at_metric` and `at_ws` are pointers to a `Metric` and a `Workspace`.


@loss_kernel(TableSlots.OBJECTIVE, float64, VECTOR, VECTOR, METRIC, VECTOR, WORKSPACE)
def objective(loss, p, omega, at_metric, z, at_ws):
    """Return the proximal objective at z."""
    quadratic = quadratic_term(load_from(at_metric), omega, z)
    return quadratic + loss_value(load_from(loss), p, z, point_to_loss_scratch(at_ws))


@loss_kernel(TableSlots.OBJECTIVE_DERIVATIVES, float64, VECTOR, VECTOR, METRIC, VECTOR, WORKSPACE)
def objective_derivatives(loss, p, omega, at_metric, z, at_ws):
    """Return the objective at z, and fill ws.grad and ws.hess with its gradient and Hessian."""
    metric, ws = load_from(at_metric), load_from(at_ws)
    grad, hess = ws.grad, ws.hess
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    value = differentiate(loss, p, z, grad, hess, point_to_loss_scratch(at_ws), True)
    for l in range(L):
        for a in range(r):
            acc = 0.0
            for b in range(r):
                acc += metric.inverse[l, a, b] * (z[l * r + b] - omega[l * r + b])
                hess[l * r + a, l * r + b] += metric.inverse[l, a, b]
            grad[l * r + a] += acc
            value += 0.5 * acc * (z[l * r + a] - omega[l * r + a])
    return value


@inline_kernel
def fill_step(metric, definite, grad, hess, chol, step):
    """Fill `step` with the Newton step; return False if no shift makes the Hessian positive definite.

    If `definite` is True, chol is the factor of hess; otherwise the Hessian is shifted.
    """
    shift = NEWTON.first_shift * metric.smallest
    while not definite and shift < MAX_SHIFT:
        definite = cholesky(hess, shift, chol)
        shift *= NEWTON.shift_growth
    if definite:
        assign(step, grad)
        cholesky_solve(chol, step)
    return definite


@sample_kernel
def _lowest_curvature(metric, hess, chol, other, direction):
    """Fill direction (k,) with nearly the lowest eigenvector, of length 1, by inverse iteration; return its curvature.

    The curvature is NaN if the matrix is not finite. Compiled once for all losses.
    """
    k, curvature = direction.shape[0], 0.0
    for i in range(k):
        other[i] = math.cos(i + 1.0)  # without symmetry: most saddles are symmetric, and are left by breaking it
    for _ in range(NEWTON.inverse_iterations):
        if not fill_step(metric, False, other, hess, chol, direction):
            return np.nan
        norm = 0.0
        for i in range(k):
            norm += direction[i] ** 2
        for i in range(k):
            direction[i] /= math.sqrt(norm)
        assign(other, direction)
    for i in range(k):
        for j in range(k):
            curvature += direction[i] * hess[i, j] * direction[j]
    return curvature


@deferred_kernel(Tuple((boolean, float64)))
def descend_from_saddle(loss, p, omega, at_metric, z, value, at_ws):
    """Move z along negative curvature of ws.hess until the objective is below `value`; overwrites ws.step and ws.trial.

    Returns True and the objective, with its gradient and Hessian in ws.grad and ws.hess; or False, with z unchanged, if
    there is no negative curvature.
    """
    metric, ws = load_from(at_metric), load_from(at_ws)
    k, largest = z.shape[0], metric.smallest
    for i in range(k):
        largest = max(largest, abs(ws.hess[i, i]))
    if not _lowest_curvature(metric, ws.hess, ws.chol, ws.trial, ws.step) <= -FLAT * largest:
        return False, value
    t = 1.0 / math.sqrt(metric.smallest)  # first step length: the largest standard deviation of the fields under V
    for _ in range(60):
        for i in range(k):
            ws.trial[i] = z[i] + t * ws.step[i]
        if objective(loss, p, omega, at_metric, ws.trial, at_ws) < value:
            assign(z, ws.trial)
            return True, objective_derivatives(loss, p, omega, at_metric, z, at_ws)
        t *= -0.5  # both signs: next to a fold the objective increases in one direction
    return False, value


@dispatch_on_type
def in_scalars(loss):
    """Return whether `minimize_in_scalars` applies to a loss. Compiled code only."""


@dispatch_on_type
def expand(loss, p, x, y, at_ws):
    """Return ℓ(x, y), its gradient, and the entries 11, 12 and 22 of its Hessian. Compiled code only."""


@overload(in_scalars)
def _in_scalars(loss):
    if is_instance(loss, IndirectLoss):
        return lambda loss: loss.n_fields == 1
    return (lambda loss: is_two_tokens(loss)) if is_dot_product_loss(loss) else (lambda loss: False)


@overload(expand)
def _expand(loss, p, x, y, at_ws):
    if is_dot_product_loss(loss):
        return lambda loss, p, x, y, at_ws: two_token_expansion(loss, p, x, y)
    if not is_instance(loss, IndirectLoss):
        return lambda loss, p, x, y, at_ws: (np.nan, np.nan, np.nan, np.nan, np.nan, np.nan)

    def expand_single_field(loss, p, x, y, at_ws):
        ws = load_from(at_ws)
        ws.trial[0] = x
        value = differentiate(loss, p, ws.trial, ws.grad, ws.hess, point_to_loss_scratch(at_ws), True)
        return value, ws.grad[0], 0.0, ws.hess[0, 0], 0.0, 0.0

    return expand_single_field


@deferred_kernel(Tuple((float64, float64, float64, boolean)))
def _bisect(loss, p, omega, stiff, x, at_ws):
    """Return the minimum of a single field that a descent from x reaches, its curvature and value, and if it exists.

    The slope of the objective is negative on the left of a minimum and positive on its right. The minimum is at a kink
    if the slopes at both ends of the shortest interval differ by more than the curvature explains; the curvature is
    then `AT_KINK`.
    """
    reach = NEWTON.last_gap * (abs(x) + abs(omega))
    low = high = x
    slope_low, slope_high, value, curvature = -np.inf, np.inf, np.nan, np.nan
    for _ in range(NEWTON.max_scalar):
        trial, slope, _, trial_curvature, _, _ = expand(loss, p, x, 0.0, at_ws)
        slope += stiff * (x - omega)
        if not abs(slope) < np.inf:
            return x, np.nan, np.nan, False
        if slope > 0.0:
            high, slope_high = x, slope
        else:
            low, slope_low = x, slope
        if slope_low == -np.inf or slope_high == np.inf:
            reach *= 4.0
            x -= math.copysign(reach, slope)
            continue
        value, curvature = trial + 0.5 * stiff * (x - omega) ** 2, trial_curvature + stiff
        x = 0.5 * (low + high)
        if not low < x < high or high - low <= NEWTON.last_gap * (abs(x) + abs(omega)):
            change = slope_high - slope_low
            is_kink = change > KINK_SLOPE * (abs(slope_high) + abs(stiff * (x - omega)))
            is_kink = is_kink and change > KINK_CHANGE * abs(curvature) * (high - low)
            return x, AT_KINK if is_kink else curvature, value, True
    return x, curvature, value, False


@inline_kernel
def minimize_in_scalars(loss, p, omega, at_metric, z, at_ws, n_known):
    """Minimize as `minimize_from`, or return OUTCOME.unfinished with z at the point reached.

    Fields are (x, y), and the Hessian has entries xx, xy and yy; a single field has y = 0. If the Hessian is not
    positive definite, steps use the absolute values of its eigenvalues. (new_x, new_y) is the point that the line
    search evaluates.
    """
    metric, ws, is_pair = load_from(at_metric), load_from(at_ws), z.shape[0] > 1
    stiff_x, stiff_y = metric.inverse[0, 0, 0], metric.inverse[1, 0, 0] if is_pair else 1.0
    x, y, omega_x, omega_y = z[0], z[1] if is_pair else 0.0, omega[0], omega[1] if is_pair else 0.0
    new_x, new_y, step_x, step_y, t = x, y, 0.0, 0.0, 1.0
    value, slope, rounding, last_size, solved = np.nan, np.inf, 0.0, np.inf, False
    xx, xy, yy = np.nan, np.nan, np.nan
    for number in range(NEWTON.max_scalar):
        trial, grad_x, grad_y, xx, xy, yy = expand(loss, p, new_x, new_y, at_ws)
        offset_x, offset_y = new_x - omega_x, new_y - omega_y
        trial += 0.5 * (stiff_x * offset_x * offset_x + stiff_y * offset_y * offset_y)
        if number > 0 and not trial <= value - NEWTON.sufficient_decrease * t * slope + rounding:
            t *= 0.5
            if t < (NEWTON.shortest if is_pair else NEWTON.shortest_single):
                break
            new_x, new_y = x - t * step_x, y - t * step_y
            continue
        x, y, value = new_x, new_y, trial
        grad_x, grad_y = grad_x + stiff_x * offset_x, grad_y + stiff_y * offset_y
        xx, yy = xx + stiff_x, yy + stiff_y
        size, scale = max(abs(grad_x), abs(grad_y)), max(abs(x) + abs(omega_x), abs(y) + abs(omega_y))
        if not size < np.inf:
            break
        # if rounding hides the decrease of the objective, steps continue while they reduce the gradient by half
        stationary = size <= NEWTON.stationary * metric.largest * scale or (slope <= rounding and 2 * size >= last_size)
        last_size, t = size, 1.0
        ratio = xy / xx
        pivot = yy - ratio * xy  # the second pivot of the Hessian; the first is xx
        if xx > MIN_PIVOT * abs(xx) and pivot > MIN_PIVOT * abs(yy):
            step_y = (grad_y - ratio * grad_x) / pivot
            step_x = grad_x / xx - ratio * step_y
            for c in range(n_known):
                distance_x, distance_y = x - ws.minima[c, 0], y - ws.minima[c, 1] if is_pair else 0.0
                landing = (distance_x - step_x) ** 2 + (distance_y - step_y) ** 2
                if landing <= NEWTON.merge**2 * (distance_x * distance_x + distance_y * distance_y):
                    return value, OUTCOME.merged
            slope = grad_x * step_x + grad_y * step_y
            length = max(abs(step_x), abs(step_y))
            solved = stationary or length <= metric.last_step * scale
            if solved:
                if not stationary:
                    x, y, value = x - step_x, y - step_y, value - 0.5 * slope
                break
            hidden = length * length * metric.largest <= NEWTON.hidden_step**2
        else:
            # eigenvector (cos, sin) of the larger eigenvalue; no step is longer than the standard deviation of V
            half, root = 0.5 * (xx - yy), math.sqrt(0.25 * (xx - yy) ** 2 + xy * xy)
            angle = 0.5 * math.atan2(xy, half)
            cos, sin = math.cos(angle), math.sin(angle)
            up, down = cos * grad_x + sin * grad_y, cos * grad_y - sin * grad_x
            high, low = 0.5 * (xx + yy) + root, 0.5 * (xx + yy) - root
            bound = math.sqrt(metric.smallest)
            up_step = up / max(abs(high), abs(up) * bound, 1e-300)
            down_step = down / max(abs(low), abs(down) * bound, 1e-300)
            if stationary:
                solved = low > -FLAT * max(high, metric.smallest)
                if solved:
                    break
                # at a saddle, along negative curvature; the gradient grows
                up_step, down_step, last_size = 0.0, math.copysign(1.0 / bound, down), np.inf
            step_x, step_y = cos * up_step - sin * down_step, sin * up_step + cos * down_step
            slope, hidden = up * up_step + down * down_step, False
        rounding = ROUNDING * (abs(value) + size * scale)
        if hidden:  # but a step of one field over a kink, which V does not measure, increases the objective much more
            rounding = np.inf if is_pair else HIDDEN_RISE * rounding
        new_x, new_y = x - step_x, y - step_y
    if not (solved or is_pair):
        x, xx, value, solved = _bisect(loss, p, omega_x, stiff_x, x, at_ws)
    z[0], ws.hess[0, 0] = x, xx
    if is_pair:
        z[1], ws.hess[0, 1], ws.hess[1, 0], ws.hess[1, 1] = y, xy, xy, yy
    return value, OUTCOME.solved if solved else OUTCOME.unfinished


@inline_kernel
def _heads_for_known_minimum(z, step, minima, n_known):
    """Return whether z − step is much nearer than z to one of the first n_known minima."""
    for c in range(n_known):
        distance, landing = 0.0, 0.0
        for i in range(z.shape[0]):
            distance += (z[i] - minima[c, i]) ** 2
            landing += (z[i] - step[i] - minima[c, i]) ** 2
        if landing <= NEWTON.merge**2 * distance:
            return True
    return False


@deferred_kernel(Tuple((float64, int64)))
def minimize_generally(loss, p, omega, at_metric, z, at_ws, n_known):
    """Minimize as `minimize_from`, for any number of fields."""
    metric, ws = load_from(at_metric), load_from(at_ws)
    k, was_short = z.shape[0], False
    value = objective_derivatives(loss, p, omega, at_metric, z, at_ws)
    for number in range(NEWTON.max_iter):
        size, scale = 0.0, 0.0
        for i in range(k):
            size = max(size, abs(ws.grad[i]))
            scale = max(scale, abs(z[i]) + abs(omega[i]))
        if not math.isfinite(size) or ws.stop[0] != 0:
            return value, OUTCOME.failed
        definite = cholesky(ws.hess, 0.0, ws.chol)

        # Stationary points are minima or saddles. Near a saddle, steps grow only geometrically: from a distance of
        # 1e-100 it would take too many to leave it, so the negative curvature is tried at regular intervals, too.
        stationary = size <= NEWTON.stationary * metric.largest * scale or size < 1e-300
        tries_curvature = stationary or number % NEWTON.saddle_interval == NEWTON.saddle_interval - 1
        if tries_curvature and not definite:
            moved, lower = descend_from_saddle(loss, p, omega, at_metric, z, value, at_ws)
            if moved:
                value = lower
                continue
        if stationary:
            return value, OUTCOME.solved

        if not fill_step(metric, definite, ws.grad, ws.hess, ws.chol, ws.step):
            return value, OUTCOME.failed
        # Only a Newton step with the Hessian itself predicts the minimum; a shifted step does not.
        if definite and _heads_for_known_minimum(z, ws.step, ws.minima, n_known):
            return value, OUTCOME.merged
        slope, length = 0.0, 0.0
        for i in range(k):
            slope += ws.grad[i] * ws.step[i]
            length = max(length, abs(ws.step[i]))
            ws.start[i] = z[i]
        if definite and length <= metric.last_step * scale:
            for i in range(k):
                z[i] -= ws.step[i]
            return value - 0.5 * slope, OUTCOME.solved

        rounding = ROUNDING * (abs(value) + size * scale)
        short = definite and length * length * metric.largest <= NEWTON.hidden_step**2
        t = 1.0
        while True:
            for i in range(k):
                z[i] = ws.start[i] - t * ws.step[i]
            ws.n_hessians[0] += 1
            trial = objective_derivatives(loss, p, omega, at_metric, z, at_ws)
            if short or trial <= value - NEWTON.sufficient_decrease * t * slope + rounding:
                break
            t *= 0.5
            if t < NEWTON.shortest or (was_short and t < NEWTON.short):
                return value, OUTCOME.failed
        was_short = t < NEWTON.short

        if short or slope <= rounding:  # rounding may hide the decrease: stop if the gradient does not fall by half
            new_size = max_abs(ws.grad)
            if new_size >= 0.5 * size:
                if new_size > size:  # the step made it worse: return to its start
                    assign(z, ws.start)
                    trial = objective_derivatives(loss, p, omega, at_metric, z, at_ws)
                if cholesky(ws.hess, 0.0, ws.chol):
                    return trial, OUTCOME.solved
                moved, trial = descend_from_saddle(loss, p, omega, at_metric, z, trial, at_ws)
                if not moved:
                    return trial, OUTCOME.solved
        value = trial
    return value, OUTCOME.failed
