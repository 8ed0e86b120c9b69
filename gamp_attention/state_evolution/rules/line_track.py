"""A minimum of the proximal problem followed along a line of fields ω = c + e u, panel by panel.

Kernels that `line_average` is made of: they follow a minimum by Newton steps, find where two minima tie, and tell
whether the Gauss-Legendre nodes of a panel resolve it.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gamp_attention._core.compiled import inline_kernel, sample_kernel
from gamp_attention.denoisers.newton import assign, cholesky_solve, minimise_from
from gamp_attention.denoisers.prox import SEARCH, factor_hessian
from gamp_attention.state_evolution.rules.line_steps import STEPS, predict, rate_at, settle

NORMAL = 1 / np.sqrt(2 * np.pi)


class Nodes(NamedTuple):
    """A Gauss-Legendre rule on [−1, 1] with the projections on its last two Legendre polynomials."""

    x: np.ndarray
    weight: np.ndarray
    tail: np.ndarray  # (2, n)


@lru_cache
def legendre_nodes(n: int) -> Nodes:
    """Nodes and weights, with the projections that tell whether they resolve a function."""
    x, weight = np.polynomial.legendre.leggauss(n)
    polynomials = np.polynomial.legendre.legvander(x, n - 1)
    tail = np.array([(j + 0.5) * weight * polynomials[:, j] for j in (n - 2, n - 1)])
    return Nodes(x, weight, tail)


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
