"""Paths of the proximal minimizer through a panel of a line of fields ω(e) = c + e u.

A panel is an interval of e. `follow_panel` follows the minimum of the left end to all nodes of a Gauss-Legendre rule
and to the right end: each step extrapolates along the path and minimizes from there. If another minimum arrives there
than the global minimum of the right end, `find_tie` returns the point at which both have equal values.
`is_unresolved` measures whether the nodes resolve the path.

The arguments are described in `gamp_attention.theory.rules.lines`, which averages over the panels of a line.
"""

import math
from typing import NamedTuple

import numpy as np
from numba.core.types import float64, none

from gamp_attention._kernels.compiled import inline_kernel, sample_kernel
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from
from gamp_attention.problem.denoisers.newton import MIN_PIVOT, ROUNDING, assign, cholesky_solve
from gamp_attention.problem.denoisers.prox import SAME_MINIMUM, factor_hessian, minimize_from

NORMAL = 1 / np.sqrt(2 * np.pi)  # density of the standard Gaussian at 0
END_WEIGHT = 0.1  # weight of differences at the ends of a panel, compared with the last Legendre coefficients
MIN_WIDTH = 1e-5  # width of panels that are not divided at kinks any more
TIE_STEP = 1e-9  # length of the last step in e toward a tie


class Track(NamedTuple):
    """Working memory of one thread: the path of a minimum through the n nodes of a panel, and the stack of panels."""

    z: np.ndarray  # (n, k) minimizer at each node
    value: np.ndarray  # (n,) minimum of the proximal objective at each node
    rate: np.ndarray  # (n, k) derivative ∂z/∂e
    slope: np.ndarray  # (n, k, k) V⁻¹ − V⁻¹ ∂z/∂ω = −∂g/∂ω
    values: np.ndarray  # (n, ·) functions at each node whose averages are computed
    e: np.ndarray  # (n,) nodes
    weight: np.ndarray  # (n,) quadrature weight of each node times Gaussian density
    omega: np.ndarray  # (k,) fields of the current point
    now: np.ndarray  # (k,) minimizer at the current point
    left: np.ndarray  # (k,) minimizer on the left side of a cut
    right: np.ndarray  # (k,) minimizer on the right side of a cut
    scratch: np.ndarray  # (k,)
    ends: np.ndarray  # (panels, 3) ends of the panels on the stack, and their depth of divisions
    at_ends: np.ndarray  # (panels, 2, k) global minimizer at each end, on the side of the panel


@sample_kernel
def minimize_at(loss, p, c, u, e, z, at_metric, at_track, at_ws):
    """Move z to the nearest minimum at the point e of a line, and return its value; ws.hess is the Hessian there."""
    track = load_from(at_track)
    for i in range(c.shape[0]):
        track.omega[i] = c[i] + e * u[i]
    return minimize_from(loss, p, track.omega, at_metric, z, at_ws, 0)[0]


@sample_kernel
def fill_derivatives(u, at_metric, at_track, m, at_ws):
    """Fill track.rate[m] and track.slope[m] from the Hessian of the last minimization. Compiled once for all losses."""
    track, inverse, hess = load_from(at_track), load_from(at_metric).inverse, load_from(at_ws).hess
    rate, slope, is_pair = track.rate[m], track.slope[m], u.shape[0] > 1
    is_short = inverse.shape[1] == 1 and u.shape[0] <= 2
    xy, yy = hess[0, 1] if is_pair else 0.0, hess[1, 1] if is_pair else 1.0
    determinant = hess[0, 0] * yy - xy * xy
    if not (is_short and determinant > MIN_PIVOT * abs(hess[0, 0] * yy)):
        _fill_derivatives(u, at_metric, at_track, m, at_ws)
        return
    # the same in scalars, in a third of the time
    stiff, first = inverse[0, 0, 0], yy / determinant
    slope[0, 0] = stiff - stiff * stiff * first
    rate[0] = stiff * first * u[0]
    if is_pair:
        stiff_y, cross, second = inverse[1, 0, 0], -xy / determinant, hess[0, 0] / determinant
        rate[0] += cross * stiff_y * u[1]
        rate[1] = cross * stiff * u[0] + second * stiff_y * u[1]
        slope[1, 1], slope[0, 1] = stiff_y - stiff_y * stiff_y * second, -stiff * stiff_y * cross
        slope[1, 0] = slope[0, 1]


@deferred_kernel(none)
def _fill_derivatives(u, at_metric, at_track, m, at_ws):
    metric, track, ws = load_from(at_metric), load_from(at_track), load_from(at_ws)
    inverse, column, rate, slope = metric.inverse, track.scratch, track.rate[m], track.slope[m]
    L, r = inverse.shape[0], inverse.shape[1]
    factor_hessian(metric, ws.hess, ws.chol)
    rate[:] = 0.0
    for token in range(L):
        for d in range(r):
            j = token * r + d
            column[:] = 0.0
            for s in range(r):
                column[token * r + s] = inverse[token, s, d]
            cholesky_solve(ws.chol, column)  # column j of ∂z/∂ω = (V⁻¹ + ∇²ℓ)⁻¹ V⁻¹
            for l in range(L):
                for s in range(r):
                    i = l * r + s
                    rate[i] += column[i] * u[j]
                    acc = inverse[l, s, d] if l == token else 0.0
                    for a in range(r):
                        acc -= inverse[l, s, a] * column[l * r + a]
                    slope[i, j] = acc


@inline_kernel
def extrapolate(track, m, e, ahead, before):
    """Fill track.now with the extrapolation of z from node m − 1 at e to `ahead`.

    It is the cubic Hermite polynomial of the last two nodes, at `before` and e, or linear if there is one node.
    """
    z, rate = track.z[m - 1], track.rate[m - 1]
    h = ahead - e
    for i in range(z.shape[0]):
        track.now[i] = z[i] + h * rate[i]
    if m > 1 and e > before:
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
def follow_panel(loss, p, c, u, at_metric, at_nodes, at_track, top, at_ws):
    """Follow the minimum of a panel's left end to all nodes and to the right end; leave it in track.now."""
    nodes, track = load_from(at_nodes), load_from(at_track)
    n, a, b = nodes.x.shape[0], track.ends[top, 0], track.ends[top, 1]
    assign(track.now, track.at_ends[top, 0])
    e, before = a, a
    for m in range(n + 1):
        ahead = a + 0.5 * (b - a) * (1.0 + nodes.x[m]) if m < n else b
        if m > 0:
            extrapolate(track, m, e, ahead, before)
        before, e = e, ahead
        value = minimize_at(loss, p, c, u, e, track.now, at_metric, at_track, at_ws)
        if m < n:
            track.value[m] = value
            assign(track.z[m], track.now)
            fill_derivatives(u, at_metric, at_track, m, at_ws)


@inline_kernel
def _distance_along(track, start, end, width):
    """Return the squared distance of node `end` from node `start` plus `width` times the mean of both rates."""
    distance = 0.0
    for i in range(track.z.shape[1]):
        mean_rate = 0.5 * (track.rate[start, i] + track.rate[end, i])
        distance += (track.z[end, i] - track.z[start, i] - width * mean_rate) ** 2
    return distance


@deferred_kernel(float64)
def find_tie(loss, p, c, u, at_metric, at_track, top, at_ws):
    """Return the point e at which the minima of the two ends of a panel have equal values.

    track.left and track.right are set to both minimizers there. With the two minimum values F_l(e) and F_r(e),
    (F_r − F_l)' = −Σ (z_r − z_l)ᵀ V⁻¹ u by the envelope theorem: Newton steps in a bracket find the root of F_r − F_l.
    Nodes 0 and 1 of the track are the minima at the ends of the bracket.
    """
    metric, track = load_from(at_metric), load_from(at_track)
    r = metric.inverse.shape[1]
    low, high = track.ends[top, 0], track.ends[top, 1]
    left, right, z = track.left, track.right, track.z
    for side in range(2):
        assign(z[side], track.at_ends[top, side])
        minimize_at(loss, p, c, u, track.ends[top, side], z[side], at_metric, at_track, at_ws)
        fill_derivatives(u, at_metric, at_track, side, at_ws)
    assign(left, z[0])
    assign(right, z[1])
    e = 0.5 * (low + high)
    for _ in range(100):
        value_left = minimize_at(loss, p, c, u, e, left, at_metric, at_track, at_ws)
        value_right = minimize_at(loss, p, c, u, e, right, at_metric, at_track, at_ws)
        if not are_apart(left, right):
            # only one of the two minima exists at e, and so is the lower: it continues the minimum of one end
            assign(z[2], left)
            fill_derivatives(u, at_metric, at_track, 2, at_ws)
            side = 0 if _distance_along(track, 0, 2, e - low) < _distance_along(track, 2, 1, high - e) else 1
            assign(z[side], z[2])
            assign(track.rate[side], track.rate[2])
            assign(left, z[0])
            assign(right, z[1])
            low, high = (e, high) if side == 0 else (low, e)
            if high - low < 1e-10:
                break
        else:
            gap, rate = value_right - value_left, 0.0
            low, high = (e, high) if gap > 0.0 else (low, e)
            for i in range(u.shape[0]):
                for d in range(r):
                    rate -= (right[i] - left[i]) * metric.inverse[i // r, i % r, d] * u[i // r * r + d]
            step = -gap / rate if rate != 0.0 else np.inf
            if abs(step) < TIE_STEP or high - low < 1e-13:
                e += step if low < e + step < high else 0.0
                break
            e += step
        if not low < e < high:
            e = 0.5 * (low + high)
    return e


@inline_kernel
def kink_change(metric, track, top):
    """Return the first node that differs from the next in whether z is at a kink of the loss of one field; −1 if none.

    At a kink, −∂g/∂ω is exactly V⁻¹. Panels shorter than `MIN_WIDTH` are not examined.
    """
    if track.z.shape[1] == 1 and track.ends[top, 1] - track.ends[top, 0] > MIN_WIDTH:
        stiff = metric.inverse[0, 0, 0]
        for m in range(track.z.shape[0] - 1):
            if (track.slope[m, 0, 0] == stiff) != (track.slope[m + 1, 0, 0] == stiff):
                return m
    return -1


@deferred_kernel(float64)
def find_kink(c, u, at_metric, at_nodes, at_track, top):
    """Return the point at which z leaves a kink k of the loss between two nodes, or else the center of the panel.

    The point is where ω = k + V ℓ'(k), with the slope of the loss on the side of k on which z lies beyond the point. It
    is extrapolated from z there, where ℓ' = (ω − z)/V, by the curvature ℓ'' = R/(1 − V R) for R = −∂g/∂ω.
    """
    metric, nodes, track = load_from(at_metric), load_from(at_nodes), load_from(at_track)
    a, b, m = track.ends[top, 0], track.ends[top, 1], kink_change(metric, track, top)
    stiff = metric.inverse[0, 0, 0]
    first, last = 0.5 * (a + b) + 0.5 * (b - a) * nodes.x[m], 0.5 * (a + b) + 0.5 * (b - a) * nodes.x[m + 1]
    at, other, e = (m, m + 1, last) if track.slope[m, 0, 0] == stiff else (m + 1, m, first)
    kink, z, R = track.z[at, 0], track.z[other, 0], track.slope[other, 0, 0]
    slope = stiff * (c[0] + e * u[0] - z) - R / (1.0 - R / stiff) * (z - kink)
    cut = (kink + slope / stiff - c[0]) / u[0]
    return cut if first <= cut <= last else 0.5 * (a + b)


@inline_kernel
def is_unresolved(metric, nodes, track, top, tol):
    """Return whether nodes do not resolve z(e) to tol[0], and rounding, or ‖∂g/∂ω‖² to tol[1] unless that is inf.

    The error of z is the largest of its last two Legendre coefficients, times a weight: the largest density on the
    panel, times the width if that is below 1. For one field, it is at least a fraction of the largest difference, at
    both ends of the panel, of the polynomial through the nodes from the minimizer. This difference is large if the
    minimum that was followed ceases to exist between the last node and the right end, or the minimum of the left end
    before the first node. For more fields this is very improbable.

    Near the onset of a jump the derivative is large and changes fast on panels on which z hardly changes. Its error is
    the larger of the two coefficients in units of V⁻², times the largest density and the width.
    """
    k, largest, largest_square, size = track.z.shape[1], 0.0, 0.0, 0.0
    for s in range(nodes.tail.shape[0]):
        square = 0.0
        for i in range(k):
            coefficient, at_end = 0.0, -track.at_ends[top, s, i]
            size = max(size, abs(at_end))
            for m in range(nodes.x.shape[0]):
                coefficient += nodes.tail[s, m] * track.z[m, i]
                at_end += nodes.ends[s, m] * track.z[m, i]
                for j in range(k if tol[1] < np.inf else 0):
                    square += nodes.tail[s, m] * track.slope[m, i, j] ** 2
            largest = max(largest, abs(coefficient), END_WEIGHT * abs(at_end) if k == 1 else 0.0)
        largest_square = max(largest_square, abs(square))
    a, b = track.ends[top, 0], track.ends[top, 1]
    nearest = max(a, -b, 0.0)
    density, width = NORMAL * math.exp(-0.5 * nearest * nearest), b - a
    unresolved = largest * density * min(width, 1.0) > tol[0] + 10.0 * ROUNDING * size
    return unresolved or largest_square / metric.smallest**2 * density * width > tol[1]
