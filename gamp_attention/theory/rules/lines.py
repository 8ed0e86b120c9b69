"""Averages of the proximal denoiser along lines of fields, cut where the proximal map jumps.

On a line ω(e) = c + e u, with e ~ N(0, 1), the global minimizer z(e) of the proximal problem is a smooth function of e
except for jumps, where two minima have equal values. The averages of its functions over e are computed panel by panel
with Gauss-Legendre rules, from a stack of panels whose ends carry the global minimizer on their side (`_line`):

1. Take the leftmost panel, and follow the minimum of its left end to all nodes and to its right end (`follow_panel`).
2. If the minimum that arrives at the right end is not the global minimum there, the global minimizer jumps inside of
   the panel. Find the point at which both minima tie (`find_tie`) and divide the panel there. A global search at the
   tie detects a third, lower minimum.
3. Otherwise, if the last two Legendre coefficients of z(e) exceed the tolerance (`unresolved_minimum`,
   `unresolved_derivative`), divide the panel in the middle.
4. Otherwise add the panel's contribution to all averages (`_add_panel`).

`gamp_attention.theory.rules.minimizer_path` follows the minimizer through a panel. `FieldLines` applies the
algorithm to lines in the white coordinates of a channel.

Arguments of the compiled functions: p are the parameters of the loss for one sample, `metric` is V as a `Metric`,
fields and minimizers are vectors of k = L r numbers, `work` counts (proximal minimizations, global searches, jumps).
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, kernel, overload, sample_kernel
from gamp_attention._kernels.pointers import load_from, point_to
from gamp_attention._tools.quadrature import LegendreRule, legendre_panels, legendre_rule
from gamp_attention._tools.threads import interruptible_blocks
from gamp_attention.problem.denoisers.newton import OUTCOME, Metric, assign, make_metric, make_workspace, minimize_from
from gamp_attention.problem.denoisers.prox import (
    MAX_STARTS,
    is_known,
    is_unique,
    make_search,
    minimize_globally,
    minimize_single_field,
)
from gamp_attention.problem.losses.attention import is_dot_product_loss
from gamp_attention.problem.losses.point import for_kernels
from gamp_attention.problem.losses.two_tokens import N_STARTS, is_two_tokens, two_token_start
from gamp_attention.theory.equations.channel import Channel, Moments
from gamp_attention.theory.equations.symmetry import contrast_basis
from gamp_attention.theory.rules.minimizer_path import (
    NORMAL,
    Track,
    are_apart,
    fill_field,
    fill_slopes,
    find_tie,
    follow_panel,
    unresolved_derivative,
    unresolved_minimum,
)
from gamp_attention.theory.rules.rule import WorkExceeded

MAX_PANELS = 256  # maximum number of panels on the stack of a line
MAX_DEPTH = 40  # maximum depth of divisions: 1 for each halving, CUT_DEPTH for each tie
CUT_DEPTH = 4  # a tie counts as four halvings, so that at most ten ties are nested
BLOCK = 32  # number of lines that a thread takes at a time
SHORT_FIELDS = 3  # number of fields per sample up to which a block of lines is too short to be interrupted
TWO_TOKEN_STARTS = 48  # number of starts of a global search for two tokens, which have few minima however large V is


AVERAGES = ("g", "with_noise", "with_teacher", "gg", "response", "square", "moreau", "loss")  # as in `Moments`


class LineMoments(NamedTuple):
    """Averages over e on each of n lines; all but `response` and `square` are as accurate as z."""

    g: np.ndarray  # (n, L, r) average of g
    g_e: np.ndarray  # (n, L, r) average of g e
    gg: np.ndarray  # (n, L, r, r) average of g_l g_lᵀ
    moreau: np.ndarray  # (n,) average of the Moreau envelope
    loss: np.ndarray  # (n,) average of ℓ(z)
    response: np.ndarray  # (n, L, r, r) average of the almost-everywhere derivative −∂g_l/∂ω_l
    square: np.ndarray  # (n, L, L, r², r²) average of (∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)
    jump: np.ndarray  # (n,) smallest squared jump of z on the line, inf if there is none
    # (n,) sum over the panels of the change of g times the density of e, from end to end; if L r = 1, otherwise zero
    boundary: np.ndarray
    # (n, 2) average of g³ e, and sum over the jumps of (Δg)³ times the density of e; if L r = 1, otherwise zero
    cubes: np.ndarray
    g_powers: np.ndarray  # (n, P, L, r) averages of g e², g e³, …; P = 0 unless requested
    gg_powers: np.ndarray  # (n, P, L, r, r) averages of g_l g_lᵀ e, g_l g_lᵀ e², …
    response_powers: np.ndarray  # (n, P, L, r, r) the same for `response`
    work: np.ndarray  # (n, 3) numbers of proximal minimizations, global searches and jumps


def line_averages(
    loss: Any,
    params: np.ndarray,
    centers: np.ndarray,
    direction: np.ndarray,
    metric: Metric,
    grid: np.ndarray,
    nodes: LegendreRule,
    tol: np.ndarray,
    tol_square: np.ndarray,
    n_powers: int = 0,
) -> LineMoments:
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
    n_powers : number P of averages with powers of e.
    """
    n, L, r = centers.shape
    token, matrix = (n, L, r), (n, L, r, r)
    shapes = (token, token, matrix, (n,), (n,), matrix, (n, L, L, r * r, r * r))
    ends = (np.full(n, np.inf), np.zeros(n), np.zeros((n, 2)))
    powers = [np.zeros((n, n_powers, *shape[1:])) for shape in (token, matrix, matrix)]
    work_done = np.zeros((n, 3), dtype=np.int64)
    out = LineMoments._make([*map(np.zeros, shapes), *ends, *powers, work_done])
    c, u = np.ascontiguousarray(centers).reshape(n, L * r), np.ascontiguousarray(direction).reshape(L * r)
    # the kernels for two tokens need few starts, see `two_token_start`
    few = L * r == 2 and getattr(getattr(loss, "attention", None), "softmax", False)
    search = TWO_TOKEN_STARTS if few else MAX_STARTS, make_search(L * r)
    loss = for_kernels(loss)

    def work(first: int, last: int, stop: np.ndarray) -> None:
        _lines(first, last, loss, params, c, u, metric, grid, nodes, (tol, tol_square), search, stop, out)

    interruptible_blocks(work, n, BLOCK, L * r > SHORT_FIELDS)
    return out


@kernel
def _lines(first, last, loss, params, centers, u, metric, grid, nodes, tol, search, stop, out):
    """Average along the lines of a block."""
    k, n = u.shape[0], nodes.x.shape[0]
    ws = make_workspace(loss, k, stop)
    track = Track(
        np.empty((n, k)), np.empty(n), np.empty((n, k)), np.empty((n, k, k)), np.empty((n, k, k)),
        np.empty((n, k)), np.empty(n), np.empty(k), np.empty(k), np.empty(k), np.empty(k), np.empty(k),
        np.empty((MAX_PANELS, 2)), np.empty((MAX_PANELS, 2, k)), np.empty(MAX_PANELS, dtype=np.int64),
    )  # fmt: skip
    _average_lines(first, last, loss, params, centers, u, metric, grid, nodes, tol, search, out, track, ws)


@sample_kernel
def _average_lines(first, last, loss, params, centers, u, metric, grid, nodes, tol, search, out, track, ws):
    at_metric, at_nodes, at_out, at_track, at_ws = (
        point_to(metric),
        point_to(nodes),
        point_to(out),
        point_to(track),
        point_to(ws),
    )
    for line in range(first, last):
        if ws.stop[0] != 0:
            return
        p, c, tols = params[line], centers[line], (tol[0][line], tol[1][line])
        _line(loss, p, c, u, at_metric, grid, at_nodes, tols, search, at_out, line, at_track, at_ws)


@dispatch_on_type
def _find_minimizer(loss, p, omega, at_metric, z, max_starts, search, at_ws):
    """Find the global minimizer from the start z, in place. Compiled code only."""


@overload(_find_minimizer)
def _find_minimizer_of(loss, p, omega, at_metric, z, max_starts, search, at_ws):
    def find(loss, p, omega, at_metric, z, max_starts, search, at_ws):
        if z.shape[0] == 1:
            minimize_single_field(loss, p, omega, at_metric, z, max_starts, search, at_ws)
        else:
            minimize_globally(loss, p, omega, at_metric, z, max_starts, search, at_ws)

    def find_of_attention(loss, p, omega, at_metric, z, max_starts, search, at_ws):
        if not is_two_tokens(loss) or not _search_two_tokens(loss, p, omega, at_metric, z, at_ws):
            minimize_globally(loss, p, omega, at_metric, z, max_starts, search, at_ws)

    return find_of_attention if is_dot_product_loss(loss) else find


@sample_kernel
def _search_two_tokens(loss, p, omega, at_metric, z, at_ws):
    """Find the global minimizer for two tokens from the few starts that the loss needs; return whether it was found."""
    metric, ws = load_from(at_metric), load_from(at_ws)
    value, outcome = minimize_from(loss, p, omega, at_metric, z, at_ws, 0)
    if outcome != OUTCOME.solved:
        return False
    if is_unique(loss, p, omega, metric.smallest, value, ws.loss)[0]:
        return True
    assign(ws.minima[0], z)
    n_known = 1
    for number in range(N_STARTS):
        two_token_start(loss, p, omega, ws.minima[0], number, ws.point)
        trial, outcome = minimize_from(loss, p, omega, at_metric, ws.point, at_ws, n_known)
        if outcome != OUTCOME.solved or is_known(ws.point, ws.minima, n_known):
            continue
        assign(ws.minima[n_known], ws.point)
        n_known += 1
        if trial < value:
            value = trial
            assign(z, ws.point)
    return True


@sample_kernel
def _search_at(loss, p, c, u, e, start, at_metric, at_track, search, work, at_ws):
    """Leave the global minimizer at the point e of a line in track.now, after a search from `start`."""
    track = load_from(at_track)
    fill_field(c, e, u, track.omega)
    assign(track.now, start)
    _find_minimizer(loss, p, track.omega, at_metric, track.now, search[0], search[1], at_ws)
    work[1] += 1


@sample_kernel
def _line(loss, p, c, u, at_metric, grid, at_nodes, tol, search, at_out, line, at_track, at_ws):
    """Average along one line with a stack of panels; the algorithm is in the module's docstring.

    The arguments `at_` are pointers to a `Metric`, a `LegendreRule`, a `LineMoments`, a `Track` and a `Workspace`.
    """
    metric, nodes, out = load_from(at_metric), load_from(at_nodes), load_from(at_out)
    track, ws = load_from(at_track), load_from(at_ws)
    n_panels = 0  # number of panels on the stack
    work = out.work[line]
    for j in range(grid.shape[0] - 1, -1, -1):  # begin at the right end: then the leftmost panel is on top of the stack
        _search_at(loss, p, c, u, grid[j], track.omega, at_metric, at_track, search, work, at_ws)
        if j < grid.shape[0] - 1:
            track.ends[n_panels, 0] = grid[j]
            assign(track.at_ends[n_panels, 0], track.now)
            track.depth[n_panels] = 0
            n_panels += 1
        if j > 0:
            track.ends[n_panels, 1] = grid[j]
            assign(track.at_ends[n_panels, 1], track.now)
    while n_panels > 0 and ws.stop[0] == 0:
        top = n_panels - 1
        a, b = track.ends[top]
        divisible = track.depth[top] < MAX_DEPTH and n_panels < MAX_PANELS - 1
        follow_panel(loss, p, c, u, at_metric, at_nodes, at_track, top, tol[0], at_ws)
        work[0] += nodes.x.shape[0] + 1
        if divisible and are_apart(track.now, track.at_ends[top, 1]):
            cut = find_tie(loss, p, c, u, at_metric, at_track, top, work, at_ws)
            work[2] += 1
            size = 0.0
            for i in range(u.shape[0]):
                size += (track.right[i] - track.left[i]) ** 2
            out.jump[line] = min(out.jump[line], size)
            # a third minimum may be lower than the two that tie: then it is the minimizer on both sides of the cut
            _search_at(loss, p, c, u, cut, track.left, at_metric, at_track, search, work, at_ws)
            if are_apart(track.now, track.left) and are_apart(track.now, track.right):
                assign(track.left, track.now)
                assign(track.right, track.now)
            if u.shape[0] == 1:
                change = metric.inverse[0, 0, 0] * (track.right[0] - track.left[0])
                out.cubes[line, 1] += NORMAL * np.exp(-0.5 * cut * cut) * change**3
            divide_panel(track, top, cut, CUT_DEPTH)
            n_panels += 1
        elif divisible and (
            unresolved_minimum(nodes, track, top, a, b) > tol[0]
            or (tol[1] < np.inf and unresolved_derivative(at_metric, at_nodes, at_track, a, b) > tol[1])
        ):
            cut, middle = 0.5 * (a + b), track.z[nodes.x.shape[0] // 2]
            _search_at(loss, p, c, u, cut, middle, at_metric, at_track, search, work, at_ws)
            assign(track.left, track.now)
            assign(track.right, track.now)
            divide_panel(track, top, cut, 1)
            n_panels += 1
        else:
            _add_panel(c, u, at_metric, at_nodes, at_track, a, b, at_out, line)
            n_panels -= 1


@inline_kernel
def divide_panel(track, top, cut, deeper):
    """Replace the panel at the top of the stack by its two parts, the left part on top.

    track.left and track.right are the minimizers on both sides of the cut.
    """
    track.ends[top + 1, 0] = track.ends[top, 0]
    assign(track.at_ends[top + 1, 0], track.at_ends[top, 0])
    track.ends[top + 1, 1] = cut
    assign(track.at_ends[top + 1, 1], track.left)
    track.ends[top, 0] = cut
    assign(track.at_ends[top, 0], track.right)
    track.depth[top] += deeper
    track.depth[top + 1] = track.depth[top]


@sample_kernel
def _add_panel(c, u, at_metric, at_nodes, at_track, a, b, at_out, line):
    """Add the contribution of a panel to all averages. Compiled once for all losses."""
    fill_slopes(at_metric, at_nodes, at_track)
    metric, nodes, track, out = load_from(at_metric), load_from(at_nodes), load_from(at_track), load_from(at_out)
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
    if u.shape[0] == 1:
        first, last = 0.0, 0.0
        for m in range(n):
            first += nodes.ends[0, m] * track.g[m, 0]
            last += nodes.ends[1, m] * track.g[m, 0]
            out.cubes[line, 0] += track.weight[m] * track.g[m, 0] ** 3 * (middle + half * nodes.x[m])
        out.boundary[line] += NORMAL * (np.exp(-0.5 * b * b) * last - np.exp(-0.5 * a * a) * first)
    out.moreau[line] += moreau
    out.loss[line] += moreau - quadratic
    for l in range(L):
        for s in range(r):
            mean, with_e = 0.0, 0.0
            for m in range(n):
                term = track.weight[m] * track.g[m, l * r + s]
                mean += term
                with_e += term * (middle + half * nodes.x[m])
            out.g[line, l, s] += mean
            out.g_e[line, l, s] += with_e
            for d in range(r):
                product, response = 0.0, 0.0
                for m in range(n):
                    product += track.weight[m] * track.g[m, l * r + s] * track.g[m, l * r + d]
                    response += track.weight[m] * track.slope[m, l * r + s, l * r + d]
                out.gg[line, l, s, d] += product
                out.response[line, l, s, d] += response
            for power in range(out.g_powers.shape[1]):
                _add_power(track, middle, half, nodes, power, l, s, out, line)
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


@inline_kernel
def _add_power(track, middle, half, nodes, power, l, s, out, line):
    """Add the contribution of a panel to the averages with one power of e, for row s of token l."""
    r = out.g_powers.shape[3]
    for m in range(nodes.x.shape[0]):
        e = middle + half * nodes.x[m]
        weight = track.weight[m] * e ** (power + 1)
        out.g_powers[line, power, l, s] += weight * e * track.g[m, l * r + s]
        for d in range(r):
            out.gg_powers[line, power, l, s, d] += weight * track.g[m, l * r + s] * track.g[m, l * r + d]
            out.response_powers[line, power, l, s, d] += weight * track.slope[m, l * r + s, l * r + d]


class LineValues(NamedTuple):
    """Averages along n lines of a channel, with the fields at e = 0."""

    y: np.ndarray  # (n, L, t) teacher fields
    constant: np.ndarray  # (n,) constant of the risk
    noise: np.ndarray  # (n, L, r) fields ω̃ at e = 0
    direction: np.ndarray  # (L, r) direction of the lines
    out: LineMoments

    def columns(self) -> np.ndarray:
        """Return the averages of all quantities of `Moments` in this order, as one row for each line."""
        out = self.out
        values = (
            out.g,
            out.g[..., :, None] * self.noise[..., None, :] + out.g_e[..., :, None] * self.direction[..., None, :],
            out.g[..., :, None] * self.y[..., None, :],
            out.gg,
            out.response,
            out.square,
            out.moreau + self.constant,
            out.loss + self.constant,
        )
        return np.hstack([value.reshape(len(self.y), -1) for value in values])

    def powers(self) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return averages of g, g gᵀ and the derivative times powers of e, see `Scores.products`."""
        out, powers = self.out, [(self.out.g, self.out.g_e, *np.moveaxis(self.out.g_powers, 1, 0))]
        for first, others in ((out.gg, out.gg_powers), (out.response, out.response_powers)):
            powers.append((first, *np.moveaxis(others, 1, 0)))
        return tuple(powers)


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
    density = np.exp(-0.5 * end**2) * np.sqrt(2 / np.pi)
    exact = float(erf(end / np.sqrt(2))) - end * density
    n_panels = 3 if odd else 2
    while True:
        ends = np.linspace(-end, end, n_panels + 1)
        e, weight = legendre_panels(ends, n_nodes)
        second = float((weight * e**2 * np.exp(-0.5 * e**2)).sum() / np.sqrt(2 * np.pi))
        if abs(second - exact) <= max(1e-3 * tol, 1e-14):  # 1e-14 is the rounding error
            return ends
        n_panels += 2 if odd else 1


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
        self._grid = first_panels(tol, n_nodes, odd)
        self._nodes = legendre_rule(n_nodes)
        size = np.sqrt(np.abs(overlaps.q).max()) + np.abs(overlaps.m).max()
        # size of the fields; at zero weights it is bounded below, or rounding errors would count as unresolved
        self.size = max(size, 1e-10 * np.sqrt(overlaps.V.max()))
        matrix = (L, r, r)
        shapes = ((L, r), matrix, (L, r, t), matrix, matrix, (L, L, r * r, r * r), (), ())
        self._shapes = dict(zip(AVERAGES, shapes, strict=True))
        self._ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        self.n_values = int(self._ends[-1])

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
        n_powers : number of averages with powers of e.
        """
        channel = self._channel
        y, terms = channel.teacher(teacher)
        noise = channel.fields(y, (student @ self._across.T).reshape(len(teacher), *channel.shape[:2]))
        out = line_averages(
            channel.loss, terms.params, noise + channel.overlaps.m, self._direction, self.metric, self._grid,
            self._nodes, self.size * tol, tol_square, n_powers,
        )  # fmt: skip
        self._work_left -= out.work[:, :2].sum()
        if self._work_left < 0:
            raise WorkExceeded
        return LineValues(y, terms.constant, noise, self._direction, out)

    def columns_of(self, name: str) -> slice:
        """Return the columns of `LineValues.columns` that hold an average of `Moments`."""
        number = AVERAGES.index(name)
        return slice(int(self._ends[number - 1]) if number else 0, int(self._ends[number]))

    def unpack(self, values: np.ndarray) -> Moments:
        """Return moments from averages of the columns; jump indicators have their defaults."""
        arrays: dict[str, Any] = {
            name: values[self.columns_of(name)].reshape(shape) for name, shape in self._shapes.items()
        }
        return Moments(**arrays | {"moreau": float(arrays["moreau"]), "loss": float(arrays["loss"])})
