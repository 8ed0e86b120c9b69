"""The proximal denoiser of one sample: the global minimiser over its L r local fields.

    z(ω) = argmin_z ½ Σ_l (z_l−ω_l)ᵀ V_l⁻¹ (z_l−ω_l) + ℓ(z)

ℓ is not convex, so the objective can hold several minima. One start is used only where a bound shows
that no second minimum can compete; elsewhere the ellipsoid that must contain any better point is searched.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba.core import types
from numba.core.types import float64, int64
from scipy.special import ndtri

from gamp_attention._core.compiled import inline_kernel, sample_kernel
from gamp_attention._core.function_tables import behind
from gamp_attention._core.quadrature import sobol_points
from gamp_attention.denoisers.newton import (
    END,
    NEWTON,
    assign,
    cholesky,
    minimise_from,
    objective,
    objective_derivatives,
)
from gamp_attention.losses.bounds import curvature_floor_near, loss_floor
from gamp_attention.losses.indirect import PLACES, VECTOR, loss_kernel


class SearchSettings(NamedTuple):
    """Settings of the global search."""

    max_starts: int = 400  # maximum number of starts of an unbounded search: far more than any tested problem needs
    n_attempts: int = 20  # minimum number of starts of a bounded search while no minimum has been found
    n_points: int = 2048  # that starts are chosen from
    n_compared: int = 4  # of these, for each start
    feature: float = 0.5  # distance in z over which a softmax of quadratic scores can change the shape of ℓ
    same_minimum: float = 1e-6  # relative distance under which two minimisers count as one


SEARCH = SearchSettings()


@lru_cache
def search_points(n_fields: int) -> np.ndarray:
    """Points of the unit ball (n_points, L r) for global searches, denser at its centre, in pairs ±u.

    Any first ones of them are well spread.
    """
    cube = sobol_points(SEARCH.n_points // 2, n_fields + 1, np.random.default_rng(7))
    gauss = ndtri(np.clip(cube[:, 1:], 1e-9, 1 - 1e-9))
    ball = np.sqrt(cube[:, :1]) * gauss / np.linalg.norm(gauss, axis=1, keepdims=True)
    return np.ascontiguousarray(np.stack([ball, -ball], axis=1).reshape(SEARCH.n_points, n_fields))


@inline_kernel
def factor_hessian(metric, ws):
    """Factor the Hessian at a minimum into ws.chol, shifted where a held one is about to vanish."""
    shift = 1e-12 * metric.smallest
    while not cholesky(ws.hess, shift, ws.chol) and shift < NEWTON.max_shift:
        shift = max(10.0 * shift, 1e-12)


@loss_kernel(
    PLACES.is_unique,
    types.Tuple((types.boolean, float64)),
    VECTOR,
    VECTOR,
    float64,
    float64,
    int64,
    inline=inline_kernel,
)
def is_unique(loss, p, omega, smallest, value, work):
    """Whether a point at least as good as `value` must be the minimum already found.

    Any such point lies in ½ (z−ω)ᵀV⁻¹(z−ω) ≤ value − inf ℓ; the objective may be convex there.
    Returns that answer and the radius of the ellipsoid in units of V^{1/2}.
    """
    radius = np.sqrt(max(0.0, 2.0 * (value - loss_floor(behind(loss), p, work))))
    reach = radius / np.sqrt(smallest)
    return curvature_floor_near(behind(loss), p, omega, reach) + smallest > 0.0, radius


@inline_kernel
def is_known(z, minima, n_known):
    """Whether z is one of the first n_known minima up to rounding."""
    for c in range(n_known):
        distance, scale = 0.0, 0.0
        for i in range(z.shape[0]):
            distance = max(distance, abs(z[i] - minima[c, i]))
            scale = max(scale, abs(z[i]))
        if distance <= SEARCH.same_minimum * (1.0 + scale):
            return True
    return False


@inline_kernel
def has_fields(omega):
    """Return whether any entry of ω is not zero."""
    largest = 0.0
    for i in range(omega.shape[0]):
        largest = max(largest, abs(omega[i]))
    return largest > 0.0


@sample_kernel
def next_start(number, loss, p, omega, metric, points, radius, z, ws):
    """Put the start of search `number` into ws.point: mirror images first, then points of the ellipsoid."""
    L, r = metric.root.shape[0], metric.root.shape[1]
    k = L * r
    tokens = number >> 1  # as a bit set
    if number == 0:  # ℓ is even for attention: the mirror image is the usual competitor
        for i in range(k):
            ws.point[i] = -z[i]
    elif number == 1:
        assign(ws.point, omega)
    elif tokens < 2 ** min(L, 4) and number % 2 == 0:  # the signs of some tokens turned
        for i in range(k):
            ws.point[i] = -omega[i] if tokens >> (i // r) & 1 else omega[i]
    elif tokens < 2 ** min(L, 4):  # some tokens made alike: their mutual attention is then undecided
        for a in range(r):
            total, count = 0.0, 0
            for l in range(L):
                if tokens >> l & 1:
                    total += omega[l * r + a]
                    count += 1
            for l in range(L):
                ws.point[l * r + a] = omega[l * r + a]
                if tokens >> l & 1:
                    ws.point[l * r + a] = total / count if count > 1 else 0.0
    else:  # the better of a few points
        best = np.inf
        for s in range(SEARCH.n_compared):
            row = (number * SEARCH.n_compared + s) % points.shape[0]
            for l in range(L):
                for a in range(r):
                    acc = 0.0
                    for b in range(a + 1):
                        acc += metric.root[l, a, b] * points[row, l * r + b]
                    ws.trial[l * r + a] = omega[l * r + a] + radius * acc
            value = objective(loss, p, omega, metric, ws.trial, ws.loss)
            if value < best:
                best = value
                assign(ws.point, ws.trial)


@inline_kernel
def is_worth_a_descent(number, loss, p, omega, metric, value, ws):
    """Return whether a search with shortcuts minimises from the start ws.point.

    Start number 0 is the mirror image −z of the current minimum z, which is close to a minimum of its own. If the
    objective at −z is higher than at z, that minimum is nearly always higher, too, so it is not computed.
    """
    return number > 0 or not objective(loss, p, omega, metric, ws.point, ws.loss) > value


@sample_kernel
def minimise_globally(loss, p, omega, metric, z, most, points, ws):
    """Find the global minimum of the proximal objective, started at z and left there.

    Returns (objective, gap to the next minimum found, status); the gap is inf where the minimum is
    certified unique or no other was found. On return ws.hess holds the Hessian at z.
    The search ends if the Bayesian estimate of the number of minima (Boender and Rinnooy Kan) exceeds the number of
    minima found by less than one half, but not before the number of starts has reached the number of features of ℓ
    that fit into the ellipsoid. `most` bounds the number of starts. The lowest minimum found is returned. A search of
    at most `SEARCH.n_attempts` starts skips unpromising starts (`is_worth_a_descent`). With `most` = 0 the local
    minimum next to z is kept.
    """
    value, status = minimise_from(loss, p, omega, metric, z, ws, 0)
    if most == 0:
        return value, np.inf, status
    unique, radius = is_unique(loss, p, omega, metric.smallest, value, ws.loss)
    if unique and status == END.solved:
        return value, np.inf, status
    n_known = 0
    if status == END.solved:
        assign(ws.minima[0], z)
        n_known = 1
    else:
        value = np.inf
    runner_up = np.inf
    extent = radius / np.sqrt(metric.smallest)
    n_starts = int(min(SEARCH.max_starts, 3.0 * (extent / SEARCH.feature) ** 2))
    n_capacity = ws.minima.shape[0]
    shortcuts, first = most <= SEARCH.n_attempts, 0
    if shortcuts:
        if not np.isfinite(radius):  # ℓ has no lower bound: the objective at ω limits the distance instead
            radius = np.sqrt(2.0 * abs(objective(loss, p, omega, metric, omega, ws.loss) - value))
        if not has_fields(omega):  # for ω = 0 mirror images and sign changes give no new starts
            first = 2 ** (min(metric.root.shape[0], 4) + 1)
    for number in range(first, first + SEARCH.max_starts):
        if number - first > max(n_starts, 2 * n_known * n_known + 3 * n_known) or ws.stop[0] != 0:
            break
        if number - first >= (most if n_known > 0 else max(most, SEARCH.n_attempts)):
            break
        next_start(number, loss, p, omega, metric, points, radius, z, ws)
        if shortcuts and n_known > 0 and not is_worth_a_descent(number, loss, p, omega, metric, value, ws):
            continue
        trial, trial_status = minimise_from(loss, p, omega, metric, ws.point, ws, n_known)
        if trial_status != END.solved or is_known(ws.point, ws.minima, n_known):
            continue
        if n_known < n_capacity:
            assign(ws.minima[n_known], ws.point)
            n_known += 1
        if trial < value:
            runner_up = value
            value, status = trial, trial_status
            assign(z, ws.point)
        elif trial < runner_up:
            runner_up = trial
    value = objective_derivatives(loss, p, omega, metric, z, ws.grad, ws.hess, ws.loss)
    return value, runner_up - value, status
