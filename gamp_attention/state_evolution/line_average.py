"""Averages of the denoiser along lines of fields, cut where the proximal map jumps.

Along a line ω = c + e u, with e standard Gaussian, the global minimiser z(e) is smooth between jumps. Panels of
Gauss-Legendre nodes follow it from one end to the other. Where the two ends belong to different minima, the panel is
cut at their tie, found by root finding on the gap between the two; where the nodes do not resolve z, it is halved.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gamp_attention._numba import inline_kernel, kernel, over_blocks
from gamp_attention.denoiser import search_points
from gamp_attention.losses import AttentionLoss, loss_value
from gamp_attention.newton import HUGE, Metric, cholesky, cholesky_solve, make_workspace, minimise_from
from gamp_attention.prox import minimise_globally

BLOCK = 8  # lines a thread takes at a time
MAX_PANELS = 256  # waiting on one line
MAX_DEPTH = 40  # halvings of one panel
SAME = 1e-6  # relative distance under which two minimisers count as one
NORMAL = 1 / np.sqrt(2 * np.pi)


class Nodes(NamedTuple):
    """A Gauss-Legendre rule on [−1, 1] with the projections on its last two Legendre polynomials."""

    x: np.ndarray
    weight: np.ndarray
    tail: np.ndarray  # (2, n)


@lru_cache
def legendre_nodes(n: int) -> Nodes:
    """Nodes, weights, and what tells whether a function is resolved."""
    x, weight = np.polynomial.legendre.leggauss(n)
    polynomials = np.polynomial.legendre.legvander(x, n - 1)
    tail = np.array([(j + 0.5) * weight * polynomials[:, j] for j in (n - 2, n - 1)])
    return Nodes(x, weight, tail)


class LineMoments(NamedTuple):
    """Averages over e on each of n lines; the first six are what the jumps leave smooth.

    Attributes
    ----------
    g, g_e : (n, L, r) of g and g e.
    gg : (n, L, r, r) of g_l g_lᵀ.
    moreau, loss : (n,) of the Moreau envelope and of ℓ(z).
    response : (n, L, r, r) of the a.e. derivative −∂g_l/∂ω_l.
    square : (n, L, L, r², r²) of (∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k).
    work : (n, 3) proximal minimisations, global searches, jumps.
    """

    g: np.ndarray
    g_e: np.ndarray
    gg: np.ndarray
    moreau: np.ndarray
    loss: np.ndarray
    response: np.ndarray
    square: np.ndarray
    work: np.ndarray


class _Track(NamedTuple):
    """Scratch of one thread: minimisers at the nodes of a panel, and the panels that wait."""

    z: np.ndarray  # (nodes, k)
    value: np.ndarray
    slope: np.ndarray  # (nodes, k, k), V⁻¹ − V⁻¹ ∂z/∂ω
    omega: np.ndarray
    now: np.ndarray
    left: np.ndarray
    right: np.ndarray
    ends: np.ndarray  # (panels, 2)
    at_ends: np.ndarray  # (panels, 2, k), the global minimiser on this side of each end
    depth: np.ndarray


def line_averages(
    loss: AttentionLoss,
    params: np.ndarray,
    centres: np.ndarray,
    direction: np.ndarray,
    metric: Metric,
    grid: np.ndarray,
    nodes: Nodes,
    tol: np.ndarray,
) -> LineMoments:
    """Average over e ~ N(0, 1) at fields c + e u, for n centres c (n, L, r) and one direction u (L, r).

    Parameters
    ----------
    params : (n, P) rows of loss parameters.
    metric : of the variances V, see `gamp_attention.newton.make_metric`.
    grid : ends of the first panels; the average is over their range.
    tol : (n,) bound on what a panel leaves unresolved of z, weighted by its probability.
    """
    n, L, r = centres.shape
    k = L * r
    out = LineMoments(
        g=np.zeros((n, L, r)),
        g_e=np.zeros((n, L, r)),
        gg=np.zeros((n, L, r, r)),
        moreau=np.zeros(n),
        loss=np.zeros(n),
        response=np.zeros((n, L, r, r)),
        square=np.zeros((n, L, L, r * r, r * r)),
        work=np.zeros((n, 3), dtype=np.int64),
    )
    flat = np.ascontiguousarray(centres).reshape(n, k)
    u = np.ascontiguousarray(direction).reshape(k)
    directions = search_points(k)

    def block(first: int, last: int) -> None:
        _lines(first, last, loss, params, flat, u, metric, grid, nodes, tol, directions, out)

    over_blocks(block, n, BLOCK)
    return out


@kernel
def _lines(first, last, loss, params, centres, u, metric, grid, nodes, tol, directions, out):
    k, n = u.shape[0], nodes.x.shape[0]
    ws = make_workspace(loss, k)
    track = _Track(
        np.empty((n, k)), np.empty(n), np.empty((n, k, k)), np.empty(k), np.empty(k), np.empty(k), np.empty(k),
        np.empty((MAX_PANELS, 2)), np.empty((MAX_PANELS, 2, k)), np.empty(MAX_PANELS, dtype=np.int64),
    )  # fmt: skip
    for line in range(first, last):
        _line(loss, params[line], centres[line], u, metric, grid, nodes, tol[line], directions, out, line, track, ws)


@kernel
def _line(loss, p, c, u, metric, grid, nodes, tol, directions, out, line, track, ws):
    waiting = 0
    work = out.work[line]
    for j in range(grid.shape[0] - 1, -1, -1):  # the leftmost panel ends on top of the stack
        _field(c, grid[j], u, track.omega)
        track.now[:] = track.omega
        minimise_globally(loss, p, track.omega, metric, track.now, directions, ws)
        work[1] += 1
        if j < grid.shape[0] - 1:
            track.ends[waiting, 0] = grid[j]
            track.at_ends[waiting, 0] = track.now
            track.depth[waiting] = 0
            waiting += 1
        if j > 0:
            track.ends[waiting, 1] = grid[j]
            track.at_ends[waiting, 1] = track.now
    while waiting > 0:
        top = waiting - 1
        a, b = track.ends[top]
        splittable = track.depth[top] < MAX_DEPTH and waiting < MAX_PANELS - 1
        _follow(loss, p, c, u, metric, nodes, track, top, ws)
        work[0] += nodes.x.shape[0] + 1
        if splittable and _apart(track.now, track.at_ends[top, 1]):
            cut = _tie(loss, p, c, u, metric, track, top, work, ws)
            work[2] += 1
            # a third minimum may be lower than the two that tie
            track.now[:] = track.left
            _field(c, cut, u, track.omega)
            minimise_globally(loss, p, track.omega, metric, track.now, directions, ws)
            work[1] += 1
            if _apart(track.now, track.left) and _apart(track.now, track.right):
                track.left[:] = track.now
                track.right[:] = track.now
            _cut(track, top, cut, 4)
            waiting += 1
        elif splittable and _unresolved(nodes, track, a, b) > tol:
            cut = 0.5 * (a + b)
            _field(c, cut, u, track.omega)
            track.now[:] = track.z[nodes.x.shape[0] // 2]
            minimise_globally(loss, p, track.omega, metric, track.now, directions, ws)
            work[1] += 1
            track.left[:] = track.now
            track.right[:] = track.now
            _cut(track, top, cut, 1)
            waiting += 1
        else:
            _add(loss, p, c, u, metric, nodes, track, a, b, out, line, ws)
            waiting -= 1


@inline_kernel
def _field(c, e, u, omega):
    for i in range(c.shape[0]):
        omega[i] = c[i] + e * u[i]


@inline_kernel
def _apart(z, other):
    distance, scale = 0.0, 0.0
    for i in range(z.shape[0]):
        distance = max(distance, abs(z[i] - other[i]))
        scale = max(scale, abs(z[i]) + abs(other[i]))
    return distance > SAME * (1e-3 + scale)


@inline_kernel
def _cut(track, top, cut, deeper):
    """Replace the panel on top by its two parts, the left one on top; track.left and track.right hold the cut."""
    track.ends[top + 1, 0] = track.ends[top, 0]
    track.at_ends[top + 1, 0] = track.at_ends[top, 0]
    track.ends[top + 1, 1] = cut
    track.at_ends[top + 1, 1] = track.left
    track.ends[top, 0] = cut
    track.at_ends[top, 0] = track.right
    track.depth[top] += deeper
    track.depth[top + 1] = track.depth[top]


@kernel
def _follow(loss, p, c, u, metric, nodes, track, top, ws):
    """Follow the minimum of a panel's left end to its nodes, and to its right end, where track.now is left."""
    k, L, r = u.shape[0], metric.inverse.shape[0], metric.inverse.shape[1]
    a, b = track.ends[top]
    z = track.now
    z[:] = track.at_ends[top, 0]
    e = a
    for m in range(nodes.x.shape[0]):
        ahead = a + 0.5 * (b - a) * (1.0 + nodes.x[m])
        if m > 0:
            for i in range(k):
                z[i] += (ahead - e) * ws.step[i]
        e = ahead
        _field(c, e, u, track.omega)
        track.value[m], _ = minimise_from(loss, p, track.omega, metric, z, ws, 0)
        track.z[m] = z
        shift = 1e-12 * metric.smallest  # a held minimum may be about to vanish
        while not cholesky(ws.hess, shift, ws.chol) and shift < HUGE:
            shift = max(10.0 * shift, 1e-12)
        slope = track.slope[m]
        for l in range(L):
            for d in range(r):
                ws.step[:] = 0.0
                for s in range(r):
                    ws.step[l * r + s] = metric.inverse[l, s, d]
                cholesky_solve(ws.chol, ws.step)
                for i in range(k):
                    first = i // r * r
                    acc = metric.inverse[l, i - first, d] if first == l * r else 0.0
                    for s in range(r):
                        acc -= metric.inverse[i // r, i - first, s] * ws.step[first + s]
                    slope[i, l * r + d] = acc
        for l in range(L):  # ∂z/∂e = (V⁻¹ + H)⁻¹ V⁻¹ u, to start the next node with
            for s in range(r):
                acc = 0.0
                for d in range(r):
                    acc += metric.inverse[l, s, d] * u[l * r + d]
                ws.step[l * r + s] = acc
        cholesky_solve(ws.chol, ws.step)
    for i in range(k):
        z[i] += (b - e) * ws.step[i]
    _field(c, b, u, track.omega)
    minimise_from(loss, p, track.omega, metric, z, ws, 0)


@kernel
def _tie(loss, p, c, u, metric, track, top, work, ws):
    """Where the minima of the two ends of a panel tie; track.left and track.right are left there.

    With F_l and F_r the two minima, (F_r − F_l)' = −Σ (z_r − z_l)ᵀ V⁻¹ u: Newton steps kept in a bracket.
    """
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    low, high = track.ends[top]
    left, right = track.left, track.right
    left[:] = track.at_ends[top, 0]
    right[:] = track.at_ends[top, 1]
    x = 0.5 * (low + high)
    for _ in range(100):
        _field(c, x, u, track.omega)
        value_left, _ = minimise_from(loss, p, track.omega, metric, left, ws, 0)
        value_right, _ = minimise_from(loss, p, track.omega, metric, right, ws, 0)
        work[0] += 2
        if not _apart(left, right):  # one of the two does not reach x: the other is the lower here
            to_left, to_right = 0.0, 0.0
            for i in range(u.shape[0]):
                to_left += (left[i] - track.at_ends[top, 0, i]) ** 2
                to_right += (left[i] - track.at_ends[top, 1, i]) ** 2
            if to_left < to_right:
                low = x
                right[:] = track.at_ends[top, 1]
            else:
                high = x
                left[:] = track.at_ends[top, 0]
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
        if abs(step) < 1e-13 or high - low < 1e-13:
            break
        x += step
        if not low < x < high:
            x = 0.5 * (low + high)
    return x


@inline_kernel
def _unresolved(nodes, track, a, b):
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


@kernel
def _add(loss, p, c, u, metric, nodes, track, a, b, out, line, ws):
    """Add a panel's share of every average."""
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    for m in range(nodes.x.shape[0]):
        e = a + 0.5 * (b - a) * (1.0 + nodes.x[m])
        weight = 0.5 * (b - a) * nodes.weight[m] * NORMAL * np.exp(-0.5 * e * e)
        z, slope, g = track.z[m], track.slope[m], track.now
        for l in range(L):
            for s in range(r):
                acc = 0.0
                for d in range(r):
                    i = l * r + d
                    acc += metric.inverse[l, s, d] * (z[i] - c[i] - e * u[i])
                g[l * r + s] = acc
        for l in range(L):
            for s in range(r):
                out.g[line, l, s] += weight * g[l * r + s]
                out.g_e[line, l, s] += weight * e * g[l * r + s]
                for d in range(r):
                    out.gg[line, l, s, d] += weight * g[l * r + s] * g[l * r + d]
                    out.response[line, l, s, d] += weight * slope[l * r + s, l * r + d]
            for j in range(L):
                for s in range(r * r):
                    for d in range(r * r):
                        out.square[line, l, j, s, d] += (
                            weight * slope[l * r + s // r, j * r + d // r] * slope[l * r + s % r, j * r + d % r]
                        )
        out.moreau[line] += weight * track.value[m]
        out.loss[line] += weight * loss_value(loss, p, z, ws.loss)
