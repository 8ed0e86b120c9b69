"""Lines of fields that cross the jumps of the proximal map, in white coordinates of the channel.

Averages of the denoiser along lines of fields, cut where the proximal map jumps.

Along a line ω = c + e u, with e standard Gaussian, the global minimiser z(e) is smooth between jumps. Panels of
Gauss-Legendre nodes follow it from one end to the other. Where the two ends belong to different minima, the panel is
cut at their tie, found by root finding on the gap between the two; where the nodes do not resolve z, it is halved.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf

from gamp_attention._core.compiled import interruptible_blocks, kernel, sample_kernel
from gamp_attention._core.quadrature import LegendreRule, legendre_rule
from gamp_attention.denoisers.newton import Metric, assign, make_metric, make_workspace
from gamp_attention.denoisers.prox import SEARCH, minimise_globally, search_points
from gamp_attention.losses.attention import AttentionLoss, DotProductAttention
from gamp_attention.state_evolution.equations.channel import Channel, Moments
from gamp_attention.state_evolution.equations.symmetry import contrast_basis
from gamp_attention.state_evolution.rules.line_track import (
    NORMAL,
    Track,
    are_apart,
    cut_panel,
    field_at,
    fill_slopes,
    find_tie,
    follow_panel,
    unresolved,
    unresolved_square,
)


class LineSettings(NamedTuple):
    """Bounds on the work of one line."""

    block: int = 32  # lines a thread takes at a time
    max_panels: int = 256  # waiting
    max_depth: int = 40  # halvings of one panel
    short: int = 3  # fields per sample up to which a block of lines takes so little time that it need not be stopped
    two_tokens: int = 48  # starts of a search for two tokens, which have few minima, however large V is


LINE = LineSettings()


class LineMoments(NamedTuple):
    """Averages over e on each of n lines; those from g to loss converge as fast as z."""

    g: np.ndarray  # (n, L, r)
    g_e: np.ndarray  # (n, L, r) of g e
    gg: np.ndarray  # (n, L, r, r) of g_l g_lᵀ
    moreau: np.ndarray  # (n,) of the Moreau envelope
    loss: np.ndarray  # (n,) of ℓ(z)
    response: np.ndarray  # (n, L, r, r) of the a.e. derivative −∂g_l/∂ω_l
    square: np.ndarray  # (n, L, L, r², r²) of (∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)
    jump: np.ndarray  # (n,) least square of a jump of z, inf where there is none
    work: np.ndarray  # (n, 3) proximal minimisations, global searches, jumps


def line_averages(
    loss: Any,
    params: np.ndarray,
    centres: np.ndarray,
    direction: np.ndarray,
    metric: Metric,
    grid: np.ndarray,
    nodes: LegendreRule,
    tol: np.ndarray,
    tol_square: np.ndarray,
) -> LineMoments:
    """Average over e ~ N(0, 1) at fields c + e u, for n centres c (n, L, r) and one direction u (L, r).

    The average is over the range of `grid`, the ends of the first panels. What a panel leaves unresolved, weighted
    by its probability, is at most tol (n,) of z and tol_square (n,) of ‖V ∂g/∂ω‖².
    """
    n, L, r = centres.shape
    token, matrix = (n, L, r), (n, L, r, r)
    shapes = (token, token, matrix, (n,), (n,), matrix, (n, L, L, r * r, r * r))
    out = LineMoments._make([*map(np.zeros, shapes), np.full(n, np.inf), np.zeros((n, 3), dtype=np.int64)])
    c, u = np.ascontiguousarray(centres).reshape(n, L * r), np.ascontiguousarray(direction).reshape(L * r)
    points = search_points(L * r)
    two_tokens = isinstance(loss, AttentionLoss) and isinstance(loss.attention, DotProductAttention) and L * r == 2
    most = LINE.two_tokens if two_tokens and loss.attention.softmax else SEARCH.max_starts

    def work(first: int, last: int, stop: np.ndarray) -> None:
        _lines(first, last, loss, params, c, u, metric, grid, nodes, (tol, tol_square), most, points, stop, out)

    long = L * r > LINE.short
    interruptible_blocks(work, n, LINE.block, long)
    return out


@kernel
def _lines(first, last, loss, params, centres, u, metric, grid, nodes, tol, most, points, stop, out):
    k, n = u.shape[0], nodes.x.shape[0]
    ws = make_workspace(loss, k, stop)
    track = Track(
        np.empty((n, k)), np.empty(n), np.empty((n, k)), np.empty((n, k, k)), np.empty((n, k, k)),
        np.empty((n, k)), np.empty(n), np.empty(k), np.empty(k), np.empty(k), np.empty(k),
        np.empty((LINE.max_panels, 2)), np.empty((LINE.max_panels, 2, k)), np.empty(LINE.max_panels, dtype=np.int64),
    )  # fmt: skip
    for line in range(first, last):
        if stop[0] != 0:
            return
        enough = (tol[0][line], tol[1][line])
        _line(loss, params[line], centres[line], u, metric, grid, nodes, enough, most, points, out, line, track, ws)


@sample_kernel
def _line(loss, p, c, u, metric, grid, nodes, tol, most, points, out, line, track, ws):
    waiting = 0
    work = out.work[line]
    for j in range(grid.shape[0] - 1, -1, -1):  # the leftmost panel ends on top of the stack
        field_at(c, grid[j], u, track.omega)
        assign(track.now, track.omega)
        minimise_globally(loss, p, track.omega, metric, track.now, most, points, ws)
        work[1] += 1
        if j < grid.shape[0] - 1:
            track.ends[waiting, 0] = grid[j]
            assign(track.at_ends[waiting, 0], track.now)
            track.depth[waiting] = 0
            waiting += 1
        if j > 0:
            track.ends[waiting, 1] = grid[j]
            assign(track.at_ends[waiting, 1], track.now)
    while waiting > 0 and ws.stop[0] == 0:
        top = waiting - 1
        a, b = track.ends[top]
        splittable = track.depth[top] < LINE.max_depth and waiting < LINE.max_panels - 1
        follow_panel(loss, p, c, u, metric, nodes, track, top, tol[0], ws)
        work[0] += nodes.x.shape[0] + 1
        if splittable and are_apart(track.now, track.at_ends[top, 1]):
            cut = find_tie(loss, p, c, u, metric, track, top, work, ws)
            work[2] += 1
            size = 0.0
            for i in range(u.shape[0]):
                size += (track.right[i] - track.left[i]) ** 2
            out.jump[line] = min(out.jump[line], size)
            # a third minimum may be lower than the two that tie
            assign(track.now, track.left)
            field_at(c, cut, u, track.omega)
            minimise_globally(loss, p, track.omega, metric, track.now, most, points, ws)
            work[1] += 1
            if are_apart(track.now, track.left) and are_apart(track.now, track.right):
                assign(track.left, track.now)
                assign(track.right, track.now)
            cut_panel(track, top, cut, 4)
            waiting += 1
        elif splittable and (
            unresolved(nodes, track, a, b) > tol[0]
            or (tol[1] < np.inf and unresolved_square(metric, nodes, track, a, b, ws) > tol[1])
        ):
            cut = 0.5 * (a + b)
            field_at(c, cut, u, track.omega)
            assign(track.now, track.z[nodes.x.shape[0] // 2])
            minimise_globally(loss, p, track.omega, metric, track.now, most, points, ws)
            work[1] += 1
            assign(track.left, track.now)
            assign(track.right, track.now)
            cut_panel(track, top, cut, 1)
            waiting += 1
        else:
            _add(c, u, metric, nodes, track, a, b, out, line, ws)
            waiting -= 1


@sample_kernel
def _add(c, u, metric, nodes, track, a, b, out, line, ws):
    """Add a panel's share of every average."""
    fill_slopes(metric, nodes, track, ws)
    L, r, n = metric.inverse.shape[0], metric.inverse.shape[1], nodes.x.shape[0]
    moreau, quadratic, middle, half = 0.0, 0.0, 0.5 * (a + b), 0.5 * (b - a)
    for m in range(n):
        e = middle + half * nodes.x[m]
        weight = half * nodes.weight[m] * NORMAL * np.exp(-0.5 * e * e)
        track.weight[m] = weight
        moreau += weight * track.value[m]
        for l in range(L):
            for s in range(r):
                acc = 0.0
                for d in range(r):
                    i = l * r + d
                    acc += metric.inverse[l, s, d] * (track.z[m, i] - c[i] - e * u[i])
                i = l * r + s
                track.g[m, i] = acc
                quadratic += 0.5 * weight * acc * (track.z[m, i] - c[i] - e * u[i])
    out.moreau[line] += moreau
    out.loss[line] += moreau - quadratic
    for l in range(L):
        for s in range(r):
            mean, with_e = 0.0, 0.0
            for m in range(n):
                share = track.weight[m] * track.g[m, l * r + s]
                mean += share
                with_e += share * (middle + half * nodes.x[m])
            out.g[line, l, s] += mean
            out.g_e[line, l, s] += with_e
            for d in range(r):
                product, response = 0.0, 0.0
                for m in range(n):
                    product += track.weight[m] * track.g[m, l * r + s] * track.g[m, l * r + d]
                    response += track.weight[m] * track.slope[m, l * r + s, l * r + d]
                out.gg[line, l, s, d] += product
                out.response[line, l, s, d] += response
        for j in range(L):
            for s in range(r * r):
                for d in range(r * r):
                    square = 0.0
                    for m in range(n):
                        slope = track.slope[m]
                        square += (
                            track.weight[m]
                            * slope[l * r + s // r, j * r + d // r]
                            * slope[l * r + s % r, j * r + d % r]
                        )
                    out.square[line, l, j, s, d] += square


LineValues = tuple[np.ndarray, ...]  # in the order of the fields of Moments, one row a line
SECOND_MOMENT, ROUNDING = 1e-3, 1e-14  # error of the variance of e, in units of the tolerance, and by rounding
ARRAYS = ("g", "with_noise", "with_teacher", "gg", "response", "square")


def reach(tol: float) -> float:
    """Range, in standard deviations, beyond which a Gaussian average may be cut."""
    margin = 1.5  # beyond where the Gaussian density reaches the tolerance
    return float(np.sqrt(-2 * np.log(tol)) + margin)


@lru_cache
def first_panels(tol: float, n_nodes: int) -> np.ndarray:
    """Return the ends of the first panels of a line, before any is cut.

    The panels are so short that the nodes integrate e² times the Gaussian density to a thousandth of the tolerance.
    Where fields hardly change along a line, nothing else would make them shorter, and averages in which large terms
    cancel, as the training loss, amplify the error.
    """
    end, nodes = reach(tol), legendre_rule(n_nodes)
    density = np.exp(-0.5 * end**2) * np.sqrt(2 / np.pi)
    exact = float(erf(end / np.sqrt(2))) - end * density
    n_panels = 2
    while True:
        ends = np.linspace(-end, end, n_panels + 1)
        half = 0.5 * np.diff(ends)[:, None]
        e = ends[:-1, None] + half * (1 + nodes.x)
        second = float((half * nodes.weight * e**2 * np.exp(-0.5 * e**2)).sum() / np.sqrt(2 * np.pi))
        if abs(second - exact) <= max(SECOND_MOMENT * tol, ROUNDING):
            return ends
        n_panels += 1


class WorkExceeded(ArithmeticError):
    """Lines need more proximal problems than they may."""


class FieldLines:
    """Line averages of a channel, as functions of the other white coordinates.

    All together may solve at most so many proximal problems, then `WorkExceeded` is raised.
    """

    def __init__(self, channel: Channel, tol: float, n_nodes: int, max_work: float = np.inf) -> None:
        (L, r, _), overlaps = channel.shape, channel.overlaps
        self._channel, self._left = channel, max_work
        self._metric = make_metric(overlaps.V)
        self.square_unit = min(self._metric.smallest, 1e150) ** 2  # of products of ∂g/∂ω: V⁻², if that is a number
        student = contrast_basis(L, r)
        self._across = student[:, 1:]
        self._direction = np.einsum("lab,lb->la", channel.root, student[:, 0].reshape(L, r))
        self._grid = first_panels(tol, n_nodes)
        self._nodes = legendre_rule(n_nodes)
        size = np.sqrt(np.abs(overlaps.q).max()) + np.abs(overlaps.m).max()
        # of fields; not less, or rounding looks like structure where all weights are zero
        self._size = max(size, 1e-10 * np.sqrt(overlaps.V.max()))

    def averages(
        self, teacher: np.ndarray, student: np.ndarray, tol: np.ndarray, tol_square: np.ndarray
    ) -> tuple[LineValues, np.ndarray, np.ndarray]:
        """The moments of the channel on n lines, one row each; on each the number of jumps, and the least square.

        Arguments are white coordinates of the teacher (n, n_teacher) and of the student across the lines
        (n, L r − 1), and the tolerances (n,), relative to the size of fields, and of squares of V ∂g/∂ω.
        """
        channel = self._channel
        y, terms = channel.teacher(teacher)
        noise = channel.fields(y, (student @ self._across.T).reshape(len(teacher), *channel.shape[:2]))
        out = line_averages(
            channel.loss, terms.params, noise + channel.overlaps.m, self._direction, self._metric, self._grid,
            self._nodes, self._size * tol, tol_square,
        )  # fmt: skip
        self._left -= out.work[:, :2].sum()
        if self._left < 0:
            raise WorkExceeded
        values = (
            out.g,
            out.g[..., :, None] * noise[..., None, :] + out.g_e[..., :, None] * self._direction[..., None, :],
            out.g[..., :, None] * y[..., None, :],
            out.gg,
            out.response,
            out.square,
            out.moreau + terms.constant,
            out.loss + terms.constant,
        )
        return values, out.work[:, 2], out.jump


def mean_moments(weights: np.ndarray, values: LineValues) -> Moments:
    """Weighted sum of line averages."""
    *arrays, moreau, loss = (np.tensordot(weights, v, 1) for v in values)
    named = dict(zip(ARRAYS, arrays, strict=True))
    return Moments(**named, moreau=float(moreau), loss=float(loss), max_jacobian_trace=np.inf, multimodal_fraction=1.0)
