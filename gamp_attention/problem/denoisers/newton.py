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
losses, `_minimize_generally` continues from the point that was reached; it is compiled at its first call. Losses of
several fields with kinks are minimized by `_minimize_at_kinks`.
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
EXTRA_CUTS = 4  # number of pieces that are stored for a loss with kinks, in addition to two for each field
PIECE_REACH = 3e-5  # distance at which a piece is examined, relative to the fields; its differences have a fifth of it
PIECE_TRIES = 8  # maximum number of points near a kink at which a piece is examined
ROUGH_PIECE = 2e-5  # second differences, in units of first ones, above which a point is too near to a kink
PIECE_NEAR = 1e-3  # distance, relative to the fields, up to which the curvature of a piece is used
SAME_PIECE = 1e-4  # difference of slopes, relative to their size, of which the older is forgotten
CUT_ERROR = 1e-9  # error of the value that a piece predicts, relative to the objective
TINY_WEIGHT = 1e-9  # weight of a piece at the minimum, up to which z is not held by its kink
HELD_STIFFNESS = 1e8  # curvature across a kink of several fields, in units of the largest along it
LAST_CUT = 3e-11  # step, relative to the fields and to the step that the slopes cause, after which none follows
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
    m = 2 * k + EXTRA_CUTS if getattr(loss, "kinked", False) else 0
    return np.zeros(ROOM + work_size(loss) + N_VECTORS * k + N_MATRICES * k * k + 1 + m * (k * k + 4 * k + 5 + 2 * m))


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
def _fill_step(metric, definite, grad, hess, chol, step):
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
        if not _fill_step(metric, False, other, hess, chol, direction):
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
def is_kinked(loss):
    """Return whether a loss of several fields has kinks. Compiled code only."""


@dispatch_on_type
def expand(loss, p, x, y, at_ws):
    """Return ℓ(x, y), its gradient, and the entries 11, 12 and 22 of its Hessian. Compiled code only."""


@overload(in_scalars)
def _in_scalars(loss):
    if is_instance(loss, IndirectLoss):
        return lambda loss: loss.n_fields == 1
    return (lambda loss: is_two_tokens(loss)) if is_dot_product_loss(loss) else (lambda loss: False)


@overload(is_kinked)
def _is_kinked(loss):
    return (lambda loss: loss.kinked) if is_instance(loss, IndirectLoss) else (lambda loss: False)


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


@sample_kernel  # not a `loss_kernel`: compiled once for all registered losses, whose derivatives take most of the time
def minimize_from(loss, p, omega, at_metric, z, at_ws, n_known):
    """Minimize the objective from z, in place, by guarded Newton steps.

    Returns (objective, outcome). After OUTCOME.solved, ws.hess is the Hessian at z, or at a point within one last step
    of relative size `metric.last_step`. The outcome is `merged` if a step heads for one of the first n_known of
    ws.minima.
    """
    ws = load_from(at_ws)
    ws.n_hessians[0] += 1
    if in_scalars(loss):
        value, outcome = minimize_in_scalars(loss, p, omega, at_metric, z, at_ws, n_known)
        if outcome != OUTCOME.unfinished:
            return value, outcome
    if is_kinked(loss):
        return _minimize_at_kinks(loss, p, omega, at_metric, z, at_ws)
    return _minimize_generally(loss, p, omega, at_metric, z, at_ws, n_known)


@deferred_kernel(Tuple((float64, int64)))
def _minimize_generally(loss, p, omega, at_metric, z, at_ws, n_known):
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

        if not _fill_step(metric, definite, ws.grad, ws.hess, ws.chol, ws.step):
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
def _minimize_at_kinks(loss, p, omega, at_metric, z, at_ws):
    """Minimize as `minimize_from`, for a loss of several fields with kinks, by a bundle of its smooth pieces.

    Near kinks, ℓ is the maximum of smooth pieces. Each iteration minimizes the maximum of their tangents at z, the
    cuts, plus the quadratic term (Lemaréchal and Zowe, 1994), with the curvature of the pieces in the metric, and adds
    the piece at the minimum. On return, ws.hess is very stiff across the kinks at z.
    """
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
            _fill_step(metric, False, ws.grad, ws.hess, ws.chol, ws.step)
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
