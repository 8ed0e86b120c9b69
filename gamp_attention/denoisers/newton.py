"""Settings of the local minimisation of a proximal objective, and how it ends.

The guarded Newton steps of `newton.minimise_from` for two tokens and one column, in numbers instead of arrays.

Three times faster, with the same tests in the same order. What is rare is left to the general form, from where they
came: saddles, objectives that rounding no longer tells apart, and long searches.

Local minimisation of one sample's proximal objective by guarded Newton steps.

F(z) = ½ Σ_l (z_l−ω_l)ᵀ V_l⁻¹ (z_l−ω_l) + ℓ(z),   z flattened to L r numbers
"""

from typing import Any, NamedTuple

import numpy as np
from numba import typeof
from numba.core import types
from numba.core.types import float64, int64

from gamp_attention._core.compiled import inline_kernel, inner_kernel, overload
from gamp_attention.losses.attention import differentiate, is_dot_product_loss, loss_value, make_work
from gamp_attention.losses.indirect import MATRIX, VECTOR, TableSlots, load_from, loss_kernel
from gamp_attention.losses.two_tokens import is_two_tokens, two_token_expansion


class NewtonEnd(NamedTuple):
    """How a minimisation ended."""

    failed: int = 0
    solved: int = 1
    merged: int = 2  # on its way to a minimum that is known
    unfinished: int = 3  # left to the general form


class NewtonSettings(NamedTuple):
    """Settings of the local minimisation."""

    max_iter: int = 200
    loiter: int = 30  # once in so many steps, a point where the Hessian is not definite is left as a saddle is
    least: float = 1e-14  # gradient that counts as none, in units of the largest stiffness and the fields
    shift: float = 0.05  # first one of a Hessian that is not definite, in units of the least stiffness
    max_shift: float = 1e300  # of the Hessian: more than any finite one asks for
    enough: float = 1e-4  # decrease of the objective, in units of that of its tangent
    last_step: float = 1e-10  # relative step after which a further one, quadratically smaller, is not worth its cost
    short: float = 1e-6  # of a Newton step; two in a row that are shorter are stuck, as on a kink
    merge: float = 0.3  # a step that lands this much nearer to a known minimum belongs to it
    max_minima: int = 16  # that a global search remembers
    columnwise: int = 12  # size of a matrix up to which its Cholesky factor is formed by columns
    quick: int = 25  # evaluations in numbers, for two tokens
    quick_share: float = 1e-3  # of a step there


END, NEWTON = NewtonEnd(), NewtonSettings()


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


class NotPositiveDefinite(ValueError):
    """V stopped being symmetric positive definite: message passing has broken down."""


class Metric(NamedTuple):
    """The quadratic term: V_l as blocks, and what the kernels need of it."""

    inverse: np.ndarray  # (L, r, r), V_l⁻¹
    root: np.ndarray  # (L, r, r), lower Cholesky factor of V_l
    smallest: float  # of the spectrum of V⁻¹
    largest: float  # of the spectrum of V⁻¹


class Workspace(NamedTuple):
    """Scratch of one thread."""

    grad: np.ndarray
    hess: np.ndarray
    chol: np.ndarray
    step: np.ndarray
    start: np.ndarray
    trial: np.ndarray
    point: np.ndarray
    loss: Any  # what make_work(loss) returns
    minima: np.ndarray
    stop: np.ndarray  # (1,), not zero once the caller was interrupted; see `interruptible_blocks`
    n_hessians: np.ndarray  # (1,), evaluations of Hessians so far


_N, _M, _B, _I = np.empty(1), np.empty((1, 1)), np.empty((1, 1, 1)), np.zeros(1, dtype=np.int64)
METRIC = typeof(Metric(_B, _B, 1.0, 1.0))  # types of numba's, for what is called at addresses
WORKSPACE = typeof(Workspace(_N, _M, _M, _N, _N, _N, _N, 0, _M, _I, _I))


def make_metric(V: np.ndarray) -> Metric:
    """Factor the blocks V (L, r, r); each must be symmetric positive definite."""
    V = np.ascontiguousarray(V, dtype=float)
    spectrum = np.linalg.eigvalsh(V)
    if not (np.isfinite(V).all() and spectrum.min() > 0):
        least = spectrum.min()
        raise NotPositiveDefinite(f"V must hold symmetric positive definite blocks, got smallest eigenvalue {least}")
    inverse = np.linalg.inv(V)
    inverse = np.ascontiguousarray(0.5 * (inverse + inverse.transpose(0, 2, 1)))
    root = np.ascontiguousarray(np.linalg.cholesky(V))
    return Metric(inverse, root, float(1.0 / spectrum.max()), float(1.0 / spectrum.min()))


@inner_kernel
def make_workspace(loss, n_fields, stop):
    """Allocate the scratch of one thread; another thread sets `stop` (1,) to end the work of this thread early."""
    k, minima = n_fields, np.empty((NEWTON.max_minima, n_fields))
    return Workspace(
        np.empty(k), np.empty((k, k)), np.empty((k, k)), np.empty(k), np.empty(k), np.empty(k), np.empty(k),
        make_work(loss), minima, stop, np.zeros(1, dtype=np.int64),
    )  # fmt: skip


@inline_kernel
def assign(target, source):
    """target (k,) = source; slices would be copied with care for overlaps, which costs."""
    for i in range(target.shape[0]):
        target[i] = source[i]


@inline_kernel
def cholesky(hess, shift, chol):
    """Factor hess + shift I into chol; False where it is not positive definite."""
    k = hess.shape[0]
    if k > NEWTON.columnwise:
        return cholesky_by_rows(hess, shift, chol)
    for i in range(k):
        for j in range(i + 1):
            acc = hess[i, j]
            if i == j:
                acc += shift
            for m in range(j):
                acc -= chol[i, m] * chol[j, m]
            if i == j:
                if not acc > 1e-14 * abs(hess[i, i]):
                    return False
                chol[i, i] = np.sqrt(acc)
            else:
                chol[i, j] = acc / chol[j, j]
    return True


@inline_kernel
def cholesky_by_rows(hess, shift, chol):
    """Factorise a large matrix as `cholesky` does, but row by row: each row is subtracted from all later rows at once.

    The transposed factor is formed in the upper triangle, where rows are contiguous, and copied to the lower one.
    """
    k = hess.shape[0]
    for i in range(k):
        for j in range(i, k):
            chol[i, j] = hess[i, j]
        chol[i, i] += shift
    for m in range(k):
        if not chol[m, m] > 1e-14 * abs(hess[m, m]):
            return False
        root = np.sqrt(chol[m, m])
        chol[m, m] = root
        root = 1.0 / root
        for j in range(m + 1, k):
            chol[m, j] *= root
        for i in range(m + 1, k):
            c = chol[m, i]
            for j in range(i, k):
                chol[i, j] -= c * chol[m, j]
    for i in range(k):
        for j in range(i):
            chol[i, j] = chol[j, i]
    return True


@inline_kernel
def cholesky_solve(chol, x):
    """Solve in place with the lower factor."""
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


@loss_kernel(TableSlots.OBJECTIVE, float64, VECTOR, VECTOR, METRIC, VECTOR, int64)
def objective(loss, p, omega, metric, z, work):
    """The proximal objective at z."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    quadratic = 0.0
    for l in range(L):
        for a in range(r):
            for b in range(r):
                quadratic += (
                    (z[l * r + a] - omega[l * r + a]) * metric.inverse[l, a, b] * (z[l * r + b] - omega[l * r + b])
                )
    return 0.5 * quadratic + loss_value(load_from(loss), p, z, work)


@loss_kernel(TableSlots.OBJECTIVE_DERIVATIVES, float64, VECTOR, VECTOR, METRIC, VECTOR, VECTOR, MATRIX, int64)
def objective_derivatives(loss, p, omega, metric, z, grad, hess, work):
    """The objective at z, filling its gradient and Hessian."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    value = differentiate(loss, p, z, grad, hess, work)
    for l in range(L):
        for a in range(r):
            acc = 0.0
            for b in range(r):
                acc += metric.inverse[l, a, b] * (z[l * r + b] - omega[l * r + b])
                hess[l * r + a, l * r + b] += metric.inverse[l, a, b]
            grad[l * r + a] += acc
            value += 0.5 * acc * (z[l * r + a] - omega[l * r + a])
    return value


@inner_kernel
def descend_from_saddle(loss, p, omega, metric, z, value, ws):
    """At a stationary point, step along the most negative curvature until the objective falls.

    False where no negative curvature is left.
    """
    k = z.shape[0]
    for i in range(k):
        for j in range(k):
            if not np.isfinite(ws.hess[i, j]):
                return False
    spectrum, vectors = np.linalg.eigh(ws.hess)
    if spectrum[0] > -1e-10 * max(abs(spectrum[k - 1]), metric.smallest):
        return False
    t = 1.0 / np.sqrt(metric.smallest)
    for _ in range(60):
        for i in range(k):
            ws.trial[i] = z[i] + t * vectors[i, 0]
        if objective(loss, p, omega, metric, ws.trial, ws.loss) < value:
            assign(z, ws.trial)
            return True
        t *= 0.5
    return False


@loss_kernel(TableSlots.MINIMISE_FROM, types.Tuple((float64, int64)), VECTOR, VECTOR, METRIC, VECTOR, WORKSPACE, int64)
def minimise_from(loss, p, omega, metric, z, ws, n_known):
    """Guarded Newton from z, in place. Returns (objective, status), with ws.hess the Hessian at z up to one last step.

    The Hessian is shifted until it is positive definite, the step halved until the objective falls enough.
    Stops as `merged` once a Newton step heads for one of the first n_known of ws.minima.
    """
    value, end = minimise_in_numbers(load_from(loss), p, omega, metric, z, ws, n_known)
    if end != END.unfinished:
        ws.n_hessians[0] += 1
        return value, end
    k, was_short = z.shape[0], False
    ws.n_hessians[0] += 1
    value = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
    for number in range(NEWTON.max_iter):
        size, scale = 0.0, 0.0
        for i in range(k):
            size = max(size, abs(ws.grad[i]))
            scale = max(scale, abs(z[i]) + abs(omega[i]))
        if not np.isfinite(size) or ws.stop[0] != 0:
            return value, END.failed
        definite = cholesky(ws.hess, 0.0, ws.chol)
        if size <= NEWTON.least * metric.largest * scale or size < 1e-300:
            if definite or not descend_from_saddle(loss, p, omega, metric, z, value, ws):
                return value, END.solved
            value = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
            continue
        # from next to a saddle, steps grow by a factor each: far from it in few, but not from 1e-100
        loitering = number % NEWTON.loiter == NEWTON.loiter - 1 and not definite
        if loitering and descend_from_saddle(loss, p, omega, metric, z, value, ws):
            value = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
            continue
        shifted = not definite
        shift = NEWTON.shift * metric.smallest
        while not definite and shift < NEWTON.max_shift:
            definite = cholesky(ws.hess, shift, ws.chol)
            shift *= 3.0
        if not definite:
            return value, END.failed
        for i in range(k):
            ws.step[i] = ws.grad[i]
        cholesky_solve(ws.chol, ws.step)
        if not shifted:
            for c in range(n_known):
                distance, landing = 0.0, 0.0
                for i in range(k):
                    distance += (z[i] - ws.minima[c, i]) ** 2
                    landing += (z[i] - ws.step[i] - ws.minima[c, i]) ** 2
                if landing <= NEWTON.merge * NEWTON.merge * distance:
                    return value, END.merged
        slope, length = 0.0, 0.0
        for i in range(k):
            slope += ws.grad[i] * ws.step[i]
            length = max(length, abs(ws.step[i]))
            ws.start[i] = z[i]
        if not shifted and length <= NEWTON.last_step * scale:
            for i in range(k):
                z[i] -= ws.step[i]
            return value - 0.5 * slope, END.solved
        rounding = 4e-15 * (abs(value) + size * scale)
        t = 1.0
        while True:
            for i in range(k):
                z[i] = ws.start[i] - t * ws.step[i]
            ws.n_hessians[0] += 1
            trial = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
            if trial <= value - NEWTON.enough * t * slope + rounding:
                break
            t *= 0.5
            if t < 1e-12 or (was_short and t < NEWTON.short):
                return value, END.failed
        was_short = t < NEWTON.short
        if slope <= rounding:  # the objective no longer tells steps apart: stop when the gradient no longer falls
            after = 0.0
            for i in range(k):
                after = max(after, abs(ws.grad[i]))
            if after >= 0.5 * size:
                if after > size:
                    assign(z, ws.start)
                    trial = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
                definite = cholesky(ws.hess, 0.0, ws.chol)
                if definite or not descend_from_saddle(loss, p, omega, metric, z, trial, ws):
                    return trial, END.solved
                trial = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
        value = trial
    return value, END.failed
