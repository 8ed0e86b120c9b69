"""Averages of the proximal denoiser along lines of fields, cut where the proximal map jumps.

On a line ω(e) = c + e u, with e ~ N(0, 1), the global minimizer z(e) of the proximal problem is a smooth function of e
except for jumps, where two minima have equal values. The averages of its functions over e are computed panel by panel
with Gauss-Legendre rules, from a stack of panels whose ends carry the global minimizer on their side (`_line`):

1. Take the leftmost panel, and follow the minimum of its left end to all nodes and to its right end (`follow_panel`).
2. If the minimum that arrives at the right end is not the global minimum there, the global minimizer jumps inside of
   the panel. Find the point at which both minima tie (`find_tie`) and divide the panel there. A global search at the
   tie detects a third, lower minimum.
3. Otherwise, if z is at a kink of a loss of one field at some nodes only, divide the panel where it leaves the kink; if
   the last two Legendre coefficients of z(e) exceed the tolerance (`is_unresolved`), divide it in the middle.
4. Otherwise add the panel's contribution to all averages (`_add_panel`).

`gamp_attention.theory.rules.minimizer_path` follows the minimizer through a panel. `FieldLines` applies the
algorithm to lines in the white coordinates of a channel.

Arguments of the compiled functions: p are the parameters of the loss for one sample, `metric` is V as a `Metric`,
fields and minimizers are vectors of k = L r numbers.
"""

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf

from gamp_attention._kernels.compiled import plain_kernel, sample_kernel
from gamp_attention._kernels.pointers import load_from, point_to
from gamp_attention._tools.quadrature import LegendreRule, legendre_panels, legendre_rule
from gamp_attention._tools.threads import interruptible_blocks
from gamp_attention.problem.denoisers.newton import Metric, assign, make_metric, make_workspace, workspace_memory
from gamp_attention.problem.denoisers.prox import MAX_STARTS, make_search, minimize_globally, minimize_single_field
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.problem.losses.point import for_kernels
from gamp_attention.theory.equations.channel import AVERAGES, Channel, Moments, fields_and_terms
from gamp_attention.theory.equations.symmetry import contrast_basis
from gamp_attention.theory.rules.minimizer_path import (
    NORMAL,
    Track,
    are_apart,
    find_kink,
    find_tie,
    follow_panel,
    is_unresolved,
    kink_change,
)
from gamp_attention.theory.rules.rule import WorkExceeded

MAX_PANELS = 256  # maximum number of panels on the stack of a line
MAX_DEPTH = 40  # maximum depth of divisions: 1 for each halving, CUT_DEPTH for each tie
CUT_DEPTH = 4  # a tie counts as four halvings, so that at most ten ties are nested
BLOCK = 64  # number of lines that a thread takes at a time
SHORT_FIELDS = 3  # number of fields per sample up to which a block of lines is too short to be interrupted
# size of the last Newton step in z relative to the tolerance of a line, and its bounds, relative to the size of z. Its
# square is the order of the error of z; the error of the derivative is of its order, and large near folds of the path
LAST_STEP, MAX_LAST_STEP, MIN_LAST_STEP = 1e-2, 1e-6, 1e-10

# columns of `LineMoments.scalars`: averages of the Moreau envelope and of ℓ(z); smallest squared jump of z on the line,
# inf if there is none; numbers of jumps, proximal minimizations and global searches; and, if L r = 1: sum over the
# panels of the change of g times the density of e, average of g³ e, and sum over the jumps of (Δg)³ times the density
MOREAU, LOSS, JUMP, N_JUMPS, N_MINIMIZED, N_SEARCHED, BOUNDARY, CUBE, JUMP_CUBE = range(9)


class LineMoments(NamedTuple):
    """Averages over e on each of n lines, with powers e^j; all but those of derivatives are as accurate as z."""

    g: np.ndarray  # (n, P + 2, L, r) averages of g e^j
    gg: np.ndarray  # (n, P + 1, L, r, r) averages of g_l g_lᵀ e^j
    response: np.ndarray  # (n, P + 1, L, r, r) averages of the almost-everywhere derivative −∂g_l/∂ω_l times e^j
    square: np.ndarray  # (n, L, L, r², r²) average of (∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)
    scalars: np.ndarray  # (n, 9)


class Sums(NamedTuple):
    """The same as one array: the last axis of `values` (n, P + 2, ·) has the entries of g, gg, response and square."""

    values: np.ndarray
    scalars: np.ndarray


def line_averages(
    loss: Any, params: np.ndarray, centers: np.ndarray, direction: np.ndarray, metric: Metric, grid: np.ndarray,
    nodes: LegendreRule, tol: np.ndarray, tol_square: np.ndarray, last_step: np.ndarray, n_powers: int = 0,
) -> LineMoments:  # fmt: skip
    """Return averages over e ~ N(0, 1) at the fields c + e u.

    Parameters
    ----------
    loss : loss of one sample.
    params : (n, n_params) parameters of the loss on each line.
    centers : (n, L, r) centers c of the lines.
    direction : (L, r) direction u, the same for all lines.
    metric : V, see `make_metric`.
    grid : increasing ends of the first panels; the averages are integrals from the first to the last.
    nodes : rule for each panel.
    tol : (n,) tolerance of each panel for z, in units of z, weighted by the density of e.
    tol_square : (n,) tolerance of each panel for ‖V ∂g/∂ω‖², weighted likewise; inf if `square` is not needed.
    last_step : (n,) size of a Newton step in z, relative to the fields, after which none follows.
    n_powers : number P of further averages with powers of e.
    """
    n, L, r = centers.shape
    k, ends = L * r, np.cumsum([L * r, L * r * r, L * r * r, (L * r * r) ** 2])
    out = Sums(np.zeros((n, n_powers + 2, ends[-1])), np.zeros((n, JUMP_CUBE + 1)))
    out.scalars[:, JUMP] = np.inf
    c, u = np.ascontiguousarray(centers).reshape(n, k), np.ascontiguousarray(direction).reshape(k)
    tols = np.stack([tol, tol_square, last_step], axis=1)
    loss, search = for_kernels(loss), make_search(k)

    def work(first: int, last: int, stop: np.ndarray) -> None:
        memory = workspace_memory(loss), _make_track(nodes.x.size, k, out.values.shape[2])
        _lines(first, last, loss, params, c, u, metric, grid, nodes, tols, search, stop, out, memory)

    interruptible_blocks(work, n, BLOCK, k > SHORT_FIELDS)
    g, gg, response, square = np.split(out.values, ends[:-1], axis=2)
    gg, response = (values[:, :-1].reshape(n, n_powers + 1, L, r, r) for values in (gg, response))
    square = square[:, 0].reshape(n, L, L, r * r, r * r)
    return LineMoments(g.reshape(n, n_powers + 2, L, r), gg, response, square, out.scalars)


def _make_track(n: int, k: int, n_values: int) -> Track:
    """Return working memory of one thread for n nodes, k fields and a number of averages."""
    (z, rate), (value, e, weight), slope = np.empty((2, n, k)), np.empty((3, n)), np.empty((n, k, k))
    omega, now, left, right, scratch = np.empty((5, k))
    stack = np.empty((MAX_PANELS, 3)), np.empty((MAX_PANELS, 2, k))
    return Track(z, value, rate, slope, np.empty((n, n_values)), e, weight, omega, now, left, right, scratch, *stack)


@plain_kernel
def _lines(first, last, loss, params, centers, u, metric, grid, nodes, tol, search, stop, out, memory):
    """Average along the lines of a block."""
    at_nodes, at_out, at_track = point_to(nodes), point_to(out), point_to(memory[1])
    at_ws = make_workspace(loss, u.shape[0], stop, memory[0])
    for line in range(first, last):
        if stop[0] != 0:
            return
        p, c = params[line], centers[line]
        at_metric = point_to(Metric(metric.inverse, metric.root, metric.smallest, metric.largest, tol[line, 2]))
        _line(loss, p, c, u, at_metric, grid, at_nodes, tol[line], search, at_out, line, at_track, at_ws)


@sample_kernel
def _search_at(loss, p, c, u, e, start, at_metric, at_track, search, at_ws):
    """Leave the global minimizer at the point e of a line in track.now, after a search from `start`."""
    track = load_from(at_track)
    for i in range(c.shape[0]):
        track.omega[i] = c[i] + e * u[i]
    assign(track.now, start)
    if u.shape[0] == 1:
        minimize_single_field(loss, p, track.omega, at_metric, track.now, MAX_STARTS, search, at_ws)
    else:
        minimize_globally(loss, p, track.omega, at_metric, track.now, MAX_STARTS, search, at_ws)


@sample_kernel
def _line(loss, p, c, u, at_metric, grid, at_nodes, tol, search, at_out, line, at_track, at_ws):
    """Average along one line with a stack of panels; the algorithm is in the module's docstring.

    The arguments `at_` are pointers to a `Metric`, a `LegendreRule`, `Sums`, a `Track` and a `Workspace`.
    """
    metric, nodes, track, ws = load_from(at_metric), load_from(at_nodes), load_from(at_track), load_from(at_ws)
    scalars = load_from(at_out).scalars[line]
    n_panels = grid.shape[0] - 1  # number of panels on the stack, the leftmost on top
    scalars[N_SEARCHED] += n_panels + 1
    for j in range(n_panels, -1, -1):
        _search_at(loss, p, c, u, grid[j], track.omega, at_metric, at_track, search, at_ws)
        for side in range(2):  # the point is the left end of panel j and the right end of panel j − 1
            if 0 <= j - side < n_panels:
                panel = n_panels - 1 - (j - side)
                track.ends[panel, side], track.ends[panel, 2] = grid[j], 0.0
                assign(track.at_ends[panel, side], track.now)
    while n_panels > 0 and ws.stop[0] == 0:
        top = n_panels - 1
        divisible = track.ends[top, 2] < MAX_DEPTH and n_panels < MAX_PANELS - 1
        follow_panel(loss, p, c, u, at_metric, at_nodes, at_track, top, at_ws)
        kink = kink_change(metric, track, top)
        scalars[N_MINIMIZED] += nodes.x.shape[0] + 1
        if divisible and are_apart(track.now, track.at_ends[top, 1]):
            cut, deeper = find_tie(loss, p, c, u, at_metric, at_track, top, at_ws), CUT_DEPTH
            size = 0.0
            for i in range(u.shape[0]):
                size += (track.right[i] - track.left[i]) ** 2
            scalars[N_JUMPS] += 1
            scalars[JUMP] = min(scalars[JUMP], size)
            # a third minimum may be lower than the two that tie: then it is the minimizer on both sides of the cut
            _search_at(loss, p, c, u, cut, track.left, at_metric, at_track, search, at_ws)
            if are_apart(track.now, track.left) and are_apart(track.now, track.right):
                assign(track.left, track.now)
                assign(track.right, track.now)
            if u.shape[0] == 1:
                change = metric.inverse[0, 0, 0] * (track.right[0] - track.left[0])
                scalars[JUMP_CUBE] += NORMAL * math.exp(-0.5 * cut * cut) * change**3
        elif divisible and (kink >= 0 or is_unresolved(metric, nodes, track, top, tol)):
            cut, deeper = 0.5 * (track.ends[top, 0] + track.ends[top, 1]), 1
            if kink >= 0:
                cut = find_kink(c, u, at_metric, at_nodes, at_track, top)
            _search_at(loss, p, c, u, cut, track.z[nodes.x.shape[0] // 2], at_metric, at_track, search, at_ws)
            assign(track.left, track.now)
            assign(track.right, track.now)
        else:
            _add_panel(c, u, at_metric, at_nodes, at_track, top, at_out, line)
            n_panels -= 1
            continue
        # replace the panel by its two parts, the left part on top; track.left and track.right are the minimizers at the
        # cut
        scalars[N_SEARCHED] += 1
        track.ends[top, 2] += deeper
        assign(track.ends[n_panels], track.ends[top])
        track.ends[n_panels, 1] = track.ends[top, 0] = cut
        assign(track.at_ends[n_panels, 0], track.at_ends[top, 0])
        assign(track.at_ends[n_panels, 1], track.left)
        assign(track.at_ends[top, 0], track.right)
        n_panels += 1


@sample_kernel
def _add_panel(c, u, at_metric, at_nodes, at_track, top, at_out, line):
    """Add the contribution of a panel to all averages, in the order of `Sums`. Compiled once for all losses."""
    metric, nodes, track, out = load_from(at_metric), load_from(at_nodes), load_from(at_track), load_from(at_out)
    inverse, scalars, sums = metric.inverse, out.scalars[line], out.values[line]
    L, r, n = inverse.shape[0], inverse.shape[1], nodes.x.shape[0]
    k, matrices = L * r, L * r * (1 + 2 * r)  # end of the entries of g, and of gg and response
    a, b, weight, e = track.ends[top, 0], track.ends[top, 1], track.weight, track.e
    density_a, density_b = NORMAL * math.exp(-0.5 * a * a), NORMAL * math.exp(-0.5 * b * b)
    for m in range(n):
        row, slope, at, quadratic = track.values[m], track.slope[m], matrices, 0.0
        e[m] = 0.5 * (a + b) + 0.5 * (b - a) * nodes.x[m]
        weight[m] = 0.5 * (b - a) * nodes.weight[m] * NORMAL * math.exp(-0.5 * e[m] * e[m])
        for i in range(k):
            token, acc = i // r, 0.0
            for j in range(token * r, token * r + r):
                acc += inverse[token, i - token * r, j - token * r] * (track.z[m, j] - c[j] - e[m] * u[j])
            row[i] = acc
            quadratic += 0.5 * acc * (track.z[m, i] - c[i] - e[m] * u[i])
        for i in range(k):
            for j in range(i // r * r, i // r * r + r):
                pair = k + i * r + j % r
                row[pair], row[pair + k * r] = row[i] * row[j], slope[i, j]
        for token in range(L):
            for other in range(L):
                for first in range(r * r):
                    i, j = token * r + first // r, token * r + first % r
                    for second in range(r * r):
                        row[at] = slope[i, other * r + second // r] * slope[j, other * r + second % r]
                        at += 1
        scalars[MOREAU] += weight[m] * track.value[m]
        scalars[LOSS] += weight[m] * (track.value[m] - quadratic)
        if k == 1:
            scalars[BOUNDARY] += (density_b * nodes.ends[1, m] - density_a * nodes.ends[0, m]) * row[0]
            scalars[CUBE] += weight[m] * e[m] * row[0] ** 3
    for power in range(sums.shape[0]):  # all averages, then without squares; with the last power, g only
        size = sums.shape[1] if power == 0 else matrices if power < sums.shape[0] - 1 else k
        for column in range(size):
            acc = 0.0
            for m in range(n):
                acc += weight[m] * track.values[m, column]
            sums[power, column] += acc
        for m in range(n):
            weight[m] *= e[m]


class LineValues(NamedTuple):
    """Averages along n lines of a channel, with the fields at e = 0."""

    y: np.ndarray  # (n, L, t) teacher fields
    constant: np.ndarray  # (n,) constant of the risk
    noise: np.ndarray  # (n, L, r) fields ω̃ at e = 0
    direction: np.ndarray  # (L, r) direction of the lines
    out: LineMoments

    @property
    def cubes(self) -> np.ndarray:
        """Averages (2, n) of g³ e, and sums over the jumps of (Δg)³ times the density of e, if L r = 1."""
        return self.out.scalars[:, [CUBE, JUMP_CUBE]].T

    def columns(self) -> np.ndarray:
        """Return the averages of all quantities of `Moments` in this order, as one row for each line."""
        g, losses = self.out.g, self.out.scalars[:, [MOREAU, LOSS]] + self.constant[:, None]
        values = (
            g[:, 0],
            g[:, 0, :, :, None] * self.noise[..., None, :] + g[:, 1, :, :, None] * self.direction[..., None, :],
            g[:, 0, :, :, None] * self.y[..., None, :],
            self.out.gg[:, 0],
            self.out.response[:, 0],
            self.out.square,
            losses,
        )
        return np.hstack([value.reshape(len(self.y), -1) for value in values])


def integration_limit(tol: float) -> float:
    """Return the limit, in standard deviations, beyond which a Gaussian average with tolerance `tol` is truncated."""
    margin = 1.5  # standard deviations beyond the point at which the relative density equals the tolerance
    return float(np.sqrt(-2 * np.log(tol)) + margin)


@lru_cache
def first_panels(tol: float, n_nodes: int, odd: bool = False) -> np.ndarray:
    """Return the ends of the first panels of a line, before any division; an odd number of panels if `odd`.

    The panels are so short that the rule integrates e² times the Gaussian density to 1/1000 of the tolerance. If the
    fields hardly change along a line, no other criterion would make them shorter, and averages in which large terms
    cancel, such as the training loss, amplify this error.
    """
    end = integration_limit(tol)
    exact = float(erf(end / np.sqrt(2))) - end * np.exp(-0.5 * end**2) * np.sqrt(2 / np.pi)
    for n_panels in range(3 if odd else 2, MAX_PANELS, 2 if odd else 1):
        ends = np.linspace(-end, end, n_panels + 1)
        e, weight = legendre_panels(ends, n_nodes)
        second = float((weight * e**2 * np.exp(-0.5 * e**2)).sum() * NORMAL)
        if abs(second - exact) <= max(1e-3 * tol, 1e-14):  # 1e-14 is the rounding error
            break
    return ends


def runs_of_labels(y: np.ndarray, terms: RiskTerms, *others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first of successive points with the same fields, parameters and others, and each point's number of it.

    Points that differ only in the noise of labels are such points as long as the labels stay the same, as for classes.
    """
    rows = np.column_stack([y.reshape(len(y), -1), terms.params, *others])
    new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
    return np.flatnonzero(new), np.cumsum(new) - 1


class FieldLines:
    """Line averages of a channel along the student's contrast, as functions of all other white coordinates.

    Parameters
    ----------
    channel : the channel at given overlaps.
    tol : tolerance, which sets the integration limits.
    n_nodes : number of Gauss-Legendre nodes of each panel.
    max_work : maximum number of proximal problems of all calls of `averages` together.
    odd : whether the number of first panels is odd.
    """

    def __init__(self, channel: Channel, tol: float, n_nodes: int, max_work: float = np.inf, odd: bool = False) -> None:
        (L, r, t), overlaps = channel.shape, channel.overlaps
        self._channel, self._work_left = channel, max_work
        self.metric = make_metric(overlaps.V)
        self.square_unit = min(self.metric.smallest, 1e150) ** 2  # V⁻², the unit of products of ∂g/∂ω, kept finite
        basis = contrast_basis(L, r)
        self._across = basis[:, 1:]
        self._direction = np.einsum("lab,lb->la", channel.root, basis[:, 0].reshape(L, r))
        self._grid, self._nodes = first_panels(tol, n_nodes, odd), legendre_rule(n_nodes)
        size = np.sqrt(np.abs(overlaps.q).max()) + np.abs(overlaps.m).max()
        # size of the fields; at zero weights it is bounded below, or rounding errors would count as unresolved
        self.size = max(size, 1e-10 * np.sqrt(overlaps.V.max()))
        matrix = (L, r, r)
        shapes = ((L, r), matrix, (L, r, t), matrix, matrix, (L, L, r * r, r * r), (), ())
        self._shapes = dict(zip(AVERAGES, shapes, strict=True))
        ends = [0, *np.cumsum([int(np.prod(shape)) for shape in shapes]).tolist()]
        self.n_values = ends[-1]
        # columns of `LineValues.columns` that hold each average of `Moments`
        self.columns = {name: slice(*pair) for name, pair in zip(AVERAGES, pairwise(ends), strict=True)}

    def averages(
        self, teacher: np.ndarray, student: np.ndarray, tol: np.ndarray, tol_square: np.ndarray, n_powers: int = 0
    ) -> LineValues:
        """Return the averages on n lines; WorkExceeded is raised if the limit of work is exceeded.

        Parameters
        ----------
        teacher : (n, n_teacher) white coordinates of the teacher.
        student : (n, L r − 1) white coordinates of the student across the lines.
        tol : (n,) tolerance for z, relative to the size of the fields.
        tol_square : (n,) tolerance for squares of V ∂g/∂ω.
        n_powers : number of further averages with powers of e.
        """
        channel = self._channel
        y, terms = fields_and_terms(channel.model, teacher)
        noise = channel.fields(y, (student @ self._across.T).reshape(len(teacher), *channel.shape[:2]))
        first, number = runs_of_labels(y, terms, student)
        rounding = getattr(channel.loss, "noise", 0.0)
        if rounding and not channel.model.attention:  # differences of large losses have large rounding errors
            losses = channel.model.task.errors(noise + channel.overlaps.m, y, terms)
            rounding *= np.maximum(np.abs(losses) / (self.metric.smallest * self.size), 1)
        tol = np.minimum.reduceat(np.maximum(tol, rounding), first)
        out = line_averages(
            channel.loss, terms.params[first], noise[first] + channel.overlaps.m, self._direction, self.metric,
            self._grid, self._nodes, self.size * tol, np.minimum.reduceat(tol_square, first),
            np.clip(LAST_STEP * tol, MIN_LAST_STEP, MAX_LAST_STEP), n_powers,
        )  # fmt: skip
        self._work_left -= out.scalars[:, [N_MINIMIZED, N_SEARCHED]].sum()
        if self._work_left < 0:
            raise WorkExceeded
        out = out if len(first) == len(number) else LineMoments(*(values[number] for values in out))
        return LineValues(y, terms.constant, noise, self._direction, out)

    def unpack(self, values: np.ndarray) -> Moments:
        """Return moments from averages of the columns; jump indicators have their defaults."""
        arrays: dict[str, Any] = {
            name: values[self.columns[name]].reshape(shape) for name, shape in self._shapes.items()
        }
        return Moments(**arrays | {"moreau": float(arrays["moreau"]), "loss": float(arrays["loss"])})
