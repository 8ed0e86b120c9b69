"""Deterministic quadrature rule for averages over channels with few white coordinates, on adaptive panels.

The student's noise e along the contrast between the tokens (`contrast_basis`) is averaged along lines, which are cut
where the proximal map jumps (`lines`). The line averages are continuous in the other coordinates, but not smooth where
jumps begin. They are averaged over adaptive Gauss-Legendre panels in one or two coordinates (`panel_average`):

- attention: the same contrast of the teacher's fields, f. The remaining function of all other coordinates, called
  outer, is smooth, so that a product of Gauss-Hermite rules is used;
- labels with one field of the student and at most two numbers of the teacher: the teacher's field f and, if labels are
  random, their noise (or a second field). The first panels end at the jumps and kinks of the labels
  (`find_breakpoints`), for example at f = 0 for labels |f|. A fixed point is first searched on short panels that are
  hardly ever halved (`PanelRule.for_search`).

All panels of a level are evaluated together. A panel is halved if the last Legendre coefficients of an average exceed
the tolerance; this also resolves the points where jumps of the proximal map begin.

On a line of one field, ω = c + u e, the almost-everywhere derivative follows from integration by parts on each panel
[a, b],

    u E[∂g/∂ω] = E[g e] + Σ_panels (φ(b) g(b) − φ(a) g(a)),

so that it is as accurate as g where the curvature of the loss jumps. The derivatives of all averages in the overlaps
are averages with powers of e (`Scores`), so that a Jacobian costs few evaluations. Test errors of labels are averages
over panels in all coordinates (`error_within`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gamp_attention._tools.breakpoints import find_breakpoints
from gamp_attention._tools.quadrature import LegendreRule, gauss_hermite, legendre_rule, pruned_product, tensor_grid
from gamp_attention.problem.losses.kinks import has_kinks
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, Moments, complete, fields_and_terms
from gamp_attention.theory.equations.expansions import ChannelExpansion, can_expand, change_of
from gamp_attention.theory.equations.scores import Scores
from gamp_attention.theory.equations.symmetry import contrast_basis
from gamp_attention.theory.equations.units import MIN_UNEXPLAINED
from gamp_attention.theory.rules.lines import (
    BOUNDARY,
    JUMP,
    N_JUMPS,
    FieldLines,
    LineValues,
    first_panels,
    integration_limit,
    runs_of_labels,
)
from gamp_attention.theory.rules.minimizer_path import END_WEIGHT
from gamp_attention.theory.rules.rule import Rule, component_channels

N_LEVELS = 10  # number of levels of accuracy
# numbers of Gauss-Legendre nodes of a panel or a part of a line, by level: for attention, and for labels
TOKEN_NODES = (10, 10, 12, 12, 12, 12, 14, 14, 16, 16)
LABEL_NODES = (10, 10, 12, 14, 14, 14, 16, 16, 16, 16)
ERROR_NODES = 14  # the same for test errors
# number of Gauss-Hermite nodes of an outer coordinate, by level: even, so that no node lies on a plane of symmetry, and
# growing by at least a factor of 1.14, or two levels might agree by accident
OUTER_NODES = (4, 6, 10, 14, 20, 26, 32, 38, 44, 50)
DROPPED_WEIGHT = 0.02  # total weight of the outer nodes that may be dropped, in units of the tolerance
LINE_TOL = 1e-2  # tolerance of lines relative to panels: their errors must not cause divisions
INNER_TOL = 0.1  # tolerance of averages over a second coordinate, in the same unit and for the same reason
MIN_DENSITY = 1e-2  # lower bound of the relative probability by which tolerances are divided
MAX_TOL = 1e-2  # upper bound of all tolerances
# tolerance of panels in units of the rule's: for attention, and for the search of a fixed point of labels
ATTENTION_TOL, SEARCH_TOL = np.sqrt(2 * np.pi), 100.0
SEARCH_WORK = 0.25  # work of an average of that search in units of `max_work`; beyond, level 0 is searched
SEARCH_NODES = 8  # number of Gauss-Legendre nodes of a panel for that search
N_SECANTS, AHEAD = 5, 0.05  # secant steps toward the onset of a jump; distance of the next point from it, relative
MAX_HALVINGS = 30  # maximum number of successive halvings of a panel
# nodes that determine the size of each average of labels: on each first panel, and of coordinates up to a limit; no
# round numbers, as lines take long if all their fields are at a kink
PILOT_PANEL, PILOT_NODES, PILOT_REACH = 4, 12, 6.1
# smallest unit of averages of g, g ω̃ and g y, and of the response, relative to the sizes of their factors
SMALL, MISSED = 1e-3, 0.1
MIN_DIRECTION = 1e-7  # smallest u relative to the fields at which integration by parts gives the derivative
MIN_EXPANDED = 0.02  # smallest u relative to the fields at which powers of e give all derivatives
OTHER_NOISES = (0.3, -0.9)  # values of the second coordinate at which breakpoints in f are computed
SAME_POINT = 1e-6  # distance below which two breakpoints count as equal
NEAR_WIDTHS, MIN_NEAR = 6.0, 1e-9  # width of panels next to a breakpoint, in units of the fields' spread; its minimum
UNRESOLVED = 0.3  # smallest error of averages of labels, also of test errors, in units of the tolerance


@dataclass(frozen=True)
class PanelRule(Rule):
    """Averages over channels on adaptive panels, at each of ten levels several times more accurate than before."""

    labels: bool = False  # whether the rule is for labels with one field of the student; otherwise for attention
    level: int = 0  # level of accuracy, from 0 to 9; the tolerance is 10^−(2 + level)
    # maximum number of proximal problems of one evaluation; `WorkExceeded` is raised if it is exceeded
    max_work: float = np.inf
    # whether panels are divided only if they are very inaccurate: errors are then about 1e-3 instead of 1e-4, at a
    # quarter of the time
    searching: bool = False
    name: ClassVar[str] = "panels"
    deterministic: ClassVar[bool] = True

    @property
    def initial_tolerance(self) -> float:
        """Residual at which a first solution is accurate enough: about the error of the averages."""
        return 1e-3 if self.searching else 1e-4

    @property
    def expands(self) -> bool:
        """True if derivatives of the averages hardly take more time than the averages."""
        return self.labels

    @property
    def tol(self) -> float:
        """Tolerance of the panels, relative to the size of the averages."""
        return 10.0 ** -(2 + self.level)

    @property
    def unresolved(self) -> float:
        """Largest relative error of the averages that a comparison with another level may miss."""
        return UNRESOLVED * self.tol if self.labels else self.tol

    def finer(self) -> "PanelRule | None":
        """Return the rule at the next level, or None at the last level; from the rule for the search, level 0."""
        level = 0 if self.searching else self.level + 1
        return self.at_level(level) if level < N_LEVELS else None

    def at_level(self, level: int) -> "PanelRule":
        """Return the rule at another level."""
        return replace(self, level=level, searching=False)

    def for_search(self) -> "PanelRule":
        """Return the rule for the search of a fixed point of labels; self above level 0 and for attention."""
        return replace(self, searching=True) if self.labels and self.level == 0 and not self.searching else self

    def for_stability(self) -> "PanelRule":
        """Return level 1 without a limit of work, which is accurate enough for finite differences."""
        return replace(self, level=1, max_work=np.inf, searching=False)

    def work(self, n_white: int) -> float:
        """Return the approximate number of proximal problems in an average."""
        if self.labels:
            return 60 * (1 + self.level) * 60 ** (n_white - 1)
        return 300 * OUTER_NODES[self.level] ** (n_white - 2) * (1 + self.level) ** 2

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """Return the averages, as a list with one entry; products of derivatives are accurate only if `squares`."""
        return [(_FieldAverage if self.labels else _TokenAverage)(self, channel, squares).moments()]

    def expansion(self, channel: Channel, squares: bool = False) -> ChannelExpansion | None:
        """Return the averages and their derivatives; None if the teacher nearly determines the student's fields."""
        if not can_expand(channel, MIN_EXPANDED**2 if self.labels else MIN_UNEXPLAINED):
            return None
        return (_FieldAverage if self.labels else _TokenAverage)(self, channel, squares).expansion()


# arguments of `panel_average`: the averaged functions; the breakpoints in the next coordinate; the sizes of the values,
# which are either given or computed from the mean squares on the first panels; and successive points of equal averages
Leaf = Callable[[np.ndarray, np.ndarray], np.ndarray]
Cuts = Callable[[np.ndarray], list[np.ndarray] | None]
Scale = np.ndarray | Callable[[np.ndarray], np.ndarray]
Runs = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Limits:
    """Accuracy of an average over panels."""

    tol: float  # tolerance of a panel, relative to the size of the values
    half: bool  # True if positive values of the first coordinate are enough
    n_nodes: int  # number of Gauss-Legendre nodes of a panel
    # whether a panel is accepted by the expected size of the first omitted coefficients, instead of the last ones
    extrapolates: bool = True
    edges: tuple[float, ...] = (-1 + 1e-7, 1 - 1e-7)  # compared ends: inside, as breakpoints have errors of 1e-11
    # columns of squared derivatives, whose tolerance is the square root of the others'; panels are then divided where
    # jumps begin, see `_find_onsets`
    squares: slice | None = None

    @property
    def end(self) -> float:
        """Integration limit in standard deviations."""
        return integration_limit(self.tol)


def panel_average(
    leaf: Leaf, cuts: Cuts, n_coordinates: int, limits: Limits, scale: Scale, tol: np.ndarray,
    outer: np.ndarray | None = None, outer_weights: np.ndarray | None = None, runs: Runs | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the averages (K,) of functions of standard Gaussian coordinates, the last `n_coordinates` on panels.

    Parameters
    ----------
    leaf : function of points (N, outer + n_coordinates) and tolerances (N,), which returns values (N, K).
    cuts : function of the first coordinates of points (N, j), which returns the N increasing arrays of breakpoints of
        coordinate j; None if there are none.
    n_coordinates : number of coordinates on panels.
    limits : integration limits, quadrature rule and tolerance.
    scale : (K,) size of each value, the unit of its tolerance; inf for values that are not tested.
    tol : (M,) tolerance of panels in the first coordinate, for each outer node.
    outer, outer_weights : (M, outer) nodes and (M,) weights of the other coordinates; none by default.
    runs : function of the coordinates of points without the last, which returns the first of successive points with
        equal averages over the last coordinate, and each point's number of it.
    """
    outer = np.zeros((1, 0)) if outer is None else outer
    first = outer.shape[1]

    def average(prefix: np.ndarray, tol: np.ndarray, weights: np.ndarray | None, scale: Scale) -> np.ndarray:
        """Return weighted sums (1, K) of averages over the next coordinates, or all averages (N, K) without weights."""
        coordinate, total = prefix.shape[1], np.zeros(0)
        is_half, is_last = coordinate == first and limits.half, coordinate + 1 == first + n_coordinates
        panels = _first_panels(cuts(prefix), len(prefix), 0.0 if is_half else -limits.end, limits)
        rule = legendre_rule(limits.n_nodes)
        rule = rule._replace(x=np.append(rule.x, limits.edges), weight=np.pad(rule.weight, (0, len(limits.edges))))
        for depth in range(MAX_HALVINGS + 1):
            x, slope, weight = panels.nodes(rule)
            of_node = np.repeat(panels.owner, x.shape[1])
            points = np.column_stack([prefix[of_node], x.ravel()])
            relative_density = np.clip(np.exp(-0.5 * x.ravel() ** 2), MIN_DENSITY, 1)
            tol_inside = np.minimum(INNER_TOL * tol[of_node] / relative_density, MAX_TOL)
            if is_last:
                values = leaf(points, tol_inside / INNER_TOL)
            elif runs is None or coordinate + 2 < first + n_coordinates:
                values = average(points, tol_inside, None, scale)
            else:
                start, number = runs(points)
                values = average(points[start], np.minimum.reduceat(tol_inside, start), None, scale)[number]
            values = values.reshape(*x.shape, -1)
            if weights is not None:
                weight = weight * weights[panels.owner, None]
            if callable(scale):
                scale = scale(np.einsum("pm,pmk->k", weight, values**2))
            nearest = np.maximum(np.maximum(panels.low, -panels.high), 0)
            tested = np.flatnonzero(np.isfinite(scale))
            tail = _last_coefficients(values[:, :, tested] * slope[..., None], limits) / scale[tested]
            tail *= (np.exp(-0.5 * nearest**2) * np.minimum(panels.high - panels.low, 1))[:, None]
            if limits.squares is not None:
                tail[:, (tested >= limits.squares.start) & (tested < limits.squares.stop)] **= 2
            tail = tail.max(axis=1, initial=0.0)
            accepted = (tail <= tol[panels.owner]) | (depth == MAX_HALVINGS)
            if depth == 0:
                total = np.zeros((len(prefix) if weights is None else 1, values.shape[2]))
            sums = np.einsum("pm,pmk->pk", weight[accepted], values[accepted])
            if weights is None:
                np.add.at(total, panels.owner[accepted], sums)
            else:
                total += sums.sum(axis=0)
            if accepted.all():
                break
            panels = panels.select(~accepted)
            onsets = np.full(len(panels.owner), np.nan)
            if limits.squares is not None:
                onsets = _find_onsets(leaf, prefix, tol, panels, x[~accepted], values[~accepted, :, -2:])
            panels = panels.divide(onsets)
        return total * (2.0 if is_half else 1.0)

    return average(outer, tol, np.ones(1) if outer_weights is None else outer_weights, scale)[0]


class Panels(NamedTuple):
    """Panels [low, high] in a coordinate f; if `side` is not 0, nodes are denser at an end with a singularity.

    With f = end ± width · s² for s in [0, 1], a singularity |f − end|^(−1/2) is removed, because df ∝ s ds.
    """

    owner: np.ndarray  # (P,) index of the point to which the panel belongs
    low: np.ndarray  # (P,)
    high: np.ndarray  # (P,)
    side: np.ndarray  # (P,) 1 if a jump begins at the lower end, −1 at the upper end, otherwise 0

    def nodes(self, rule: LegendreRule) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return f at the nodes (P, n), df/ds relative to its mean, and weights times the density of N(0, 1)."""
        s, low, high, side = 0.5 * (1 + rule.x), *(values[:, None] for values in self[1:])
        step = (high - low) * np.where(side == 0, s, s**2)
        f, slope = np.where(side < 0, high - step, low + step), np.where(side == 0, 1.0, 2 * s)
        weight = 0.5 * rule.weight * slope * (high - low) * np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi)
        return f, slope / slope.mean(axis=1, keepdims=True), weight

    def select(self, which: np.ndarray) -> "Panels":
        """Return some of the panels, given by a mask."""
        return Panels(*(values[which] for values in self))

    def divide(self, onsets: np.ndarray) -> "Panels":
        """Return two parts of each panel, divided at onsets of jumps (P,), or in the middle of s if they are NaN."""
        found = ~np.isnan(onsets)
        middle = self.low + (self.high - self.low) * np.choose(self.side.astype(int) + 1, [0.75, 0.5, 0.25])
        cut = np.where(found, onsets, middle)
        lower, upper = np.where(found, -1, np.maximum(self.side, 0)), np.where(found, 1, np.minimum(self.side, 0))
        parts = (self.owner, self.low, cut, lower), (self.owner, cut, self.high, upper)
        return Panels(*map(np.concatenate, zip(*parts, strict=True)))


def _find_onsets(
    leaf: Leaf, prefix: np.ndarray, tol: np.ndarray, panels: Panels, x: np.ndarray, jumps: np.ndarray
) -> np.ndarray:
    """Return the point of each panel where a jump of the proximal map begins; NaN if there is none.

    Beyond it, averages of squared derivatives behave like |f − f₀|^(−1/2). `x` (P, n) are the nodes, and `jumps`
    (P, n, 2) the smallest squared jump and the number of jumps there, the last values of `leaf`. Near the onset f₀ the
    squared jump is proportional to |f − f₀|, so that the secant through two points with the jump leads close to f₀. A
    point without the jump, on the other side of f₀, serves as a bracket.
    """
    onsets, counts = np.full(len(x), np.nan), jumps[:, :, 1]
    changes = np.diff(counts, axis=1) != 0
    found = np.flatnonzero((panels.side == 0) & changes.any(axis=1))
    if len(found) == 0:
        return onsets
    left = np.argmax(changes[found], axis=1)  # first pair of neighboring nodes with different numbers of jumps
    towards = np.where(counts[found, left] < counts[found, left + 1], 1, -1)  # direction of more jumps
    outside = np.where(towards > 0, left, left + 1)  # the node of this pair that has fewer jumps
    near = outside + towards
    far = np.clip(near + towards, 0, x.shape[1] - 1)
    bracket, fewer = x[found, outside], counts[found, outside]
    (a, size_a), (b, size_b) = ((x[found, k], jumps[found, k, 0]) for k in (far, near))
    for step in range(N_SECANTS):
        with np.errstate(all="ignore"):  # the sizes may be equal or infinite
            onset = b - size_b * (b - a) / (size_b - size_a)
        inside = (onset - bracket) * (onset - b) < 0
        onset = np.where(inside, onset, 0.5 * (bracket + b))
        if step < N_SECANTS - 1:
            ahead = onset + AHEAD * (b - onset)
            points = np.column_stack([prefix[panels.owner[found]], ahead])
            sizes, numbers = leaf(points, tol[panels.owner[found]])[:, -2:].T
            more = numbers > fewer
            bracket = np.where(more, bracket, ahead)
            a, size_a = np.where(more, b, a), np.where(more, size_b, size_a)
            b, size_b = np.where(more, ahead, b), np.where(more, sizes, size_b)
    onsets[found] = onset
    return onsets


def _first_panels(cuts: list[np.ndarray] | None, n: int, low: float, limits: Limits) -> Panels:
    """Return the first panels of n intervals [low, limits.end], divided at the cuts."""
    grid = first_panels(limits.tol, limits.n_nodes)
    if not limits.extrapolates:
        grid = np.linspace(low, limits.end, 3 if low == 0.0 else 4)
    elif low == 0.0:
        grid = np.linspace(0, limits.end, len(grid) // 2 + 1)
    counts = np.array([len(row) for row in cuts]) if cuts else np.zeros(n, dtype=int)
    inside, inner = np.full((n, counts.max()), np.nan), np.tile(grid, (n, 1))
    if inside.size:
        inside[np.arange(counts.max()) < counts[:, None]] = np.concatenate(cuts or [])
        inside[(inside <= low) | (inside >= limits.end)] = np.nan
        distance = np.nan_to_num(np.abs(inner[:, 1:-1, None] - inside[:, None]), nan=np.inf).min(axis=2)
        inner[:, 1:-1][distance <= 0.25 * (grid[1] - grid[0])] = np.nan  # points of the grid close to cuts
    ends = np.sort(np.hstack([inner, inside]), axis=1)  # NaN is last
    owner, first = np.nonzero(ends[:, 1:] > ends[:, :-1])
    return Panels(owner, ends[owner, first], ends[owner, first + 1], np.zeros(len(owner)))


def _last_coefficients(values: np.ndarray, limits: Limits) -> np.ndarray:
    """Return the size (P, K) of the last two Legendre coefficients of values (P, n, K) at the nodes.

    If `limits.extrapolates`, they are multiplied by their ratio to the two coefficients before, for the expected size
    of the first omitted coefficients. If coefficients decrease slowly, as next to the point where jumps begin, the
    ratio is near 1. The last values are at `limits.edges`: a difference of the polynomial from them, of which the
    result is a fraction at least, shows a fast change between an edge and the nodes, as at a kink of the loss.
    """
    nodes, values, at_edges = legendre_rule(limits.n_nodes), values[:, : limits.n_nodes], values[:, limits.n_nodes :]
    last = np.abs(np.einsum("sm,pmk->psk", nodes.tail, values)).max(axis=1)
    if limits.extrapolates:
        before = np.abs(np.einsum("sm,pmk->psk", nodes.before, values)).max(axis=1)
        last *= np.minimum(last / np.maximum(before, 1e-300), 1.0)
    misfit = np.einsum("sm,pmk->psk", nodes.ends[: len(limits.edges)], values) - at_edges
    return np.maximum(last, END_WEIGHT * np.abs(misfit).max(axis=1, initial=0.0))


@lru_cache(maxsize=8)
def _outer_rule(n: int, dim: int, dropped: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (N, dim) and weights (N,) of a product of n-point Gauss-Hermite rules.

    Nodes whose weight is below `dropped` / n**dim are left out; their total weight is at most `dropped`.
    """
    return pruned_product(*gauss_hermite(n), dim, dropped / n**dim)


class _Average:
    """One evaluation of the rule on a channel."""

    lines: FieldLines
    limits: Limits

    def __init__(self, rule: PanelRule, channel: Channel, squares: bool) -> None:
        self.rule, self.channel, self.squares = rule, channel, squares

    def moments(self) -> Moments:
        """Return the averages over all coordinates."""
        return self._complete(self._average(None)[: self.lines.n_values])

    def expansion(self) -> ChannelExpansion:
        """Return the averages over all coordinates and their derivatives."""
        scores, n = Scores(self.channel), self.lines.n_values
        values = self._average(scores)
        jumps = scores.includes_V and values[-1] > 0
        return scores.complete(self._complete(values[:n]), values[n:-2], jumps)

    def _average(self, scores: Scores | None) -> np.ndarray:
        """Return the averages of the columns of lines, of products with scores, and of size and number of jumps."""
        raise NotImplementedError

    def _complete(self, values: np.ndarray) -> Moments:
        """Return moments from the averages of the columns of lines."""
        raise NotImplementedError

    def _values(self, lines: LineValues, scores: Scores | None) -> np.ndarray:
        """Return the integrands of `_average`, as one row for each line."""
        values = [lines.columns()]
        if scores is not None:
            values.append(scores.products(lines))
        return np.hstack([*values, np.nan_to_num(lines.out.scalars[:, [JUMP, N_JUMPS]], posinf=0.0)])


class _TokenAverage(_Average):
    """Average over a channel of attention."""

    def __init__(self, rule: PanelRule, channel: Channel, squares: bool) -> None:
        super().__init__(rule, channel, squares)
        (L, r, t), symmetry = channel.shape, channel.symmetry
        self.lines = FieldLines(channel, rule.tol, TOKEN_NODES[rule.level], rule.max_work)
        # whether reversal of the tokens changes the sign of all outer coordinates and of no other coordinate
        flips_outer = symmetry.reversal and (L, r, t) == (2, 1, 1)
        half = symmetry.m_zero and flips_outer  # both together map f < 0 to f > 0: averages over f > 0 are enough
        columns = self.lines.columns["square"] if squares else None
        self.limits = Limits(rule.tol, half, TOKEN_NODES[rule.level], False, (), columns)
        self.basis = np.roll(contrast_basis(L, t), -1, axis=1)  # f is the last coordinate
        points, weights = _outer_rule(OUTER_NODES[rule.level], L * (r + t) - 2, DROPPED_WEIGHT * rule.tol)
        # one of each set of nodes whose averages are equal by symmetry
        domain = np.ones(len(points), dtype=bool)
        if L * r > 1 and (symmetry.m_zero or flips_outer):
            domain &= points[:, 0] > 0
        if L * t > 1 and symmetry.theta_zero:
            domain &= points[:, L * r - 1] > 0
        self.outer, self.weights = points[domain], weights[domain] / weights[domain].sum()
        # averages at outer nodes of small weight may be less accurate: all nodes contribute equally to the error
        relative_weight = np.clip(self.weights * len(self.weights), MIN_DENSITY, 1)
        self.tol = ATTENTION_TOL * np.minimum(rule.tol * (1 + (rule.level > 1)) / relative_weight, MAX_TOL)

    def _complete(self, values: np.ndarray) -> Moments:
        # the rule is not symmetric under permutations
        return complete(self.lines.unpack(values), replace(self.channel.symmetry, exchange=False))

    def _average(self, scores: Scores | None) -> np.ndarray:
        n_student = self.outer.shape[1] - self.basis.shape[1] + 1

        def leaf(points: np.ndarray, tol: np.ndarray) -> np.ndarray:
            tol = np.minimum(tol / ATTENTION_TOL, MAX_TOL)
            tol_square = np.sqrt(tol) if self.squares else np.full(len(tol), np.inf)
            teacher = points[:, n_student:] @ self.basis.T
            lines = self.lines.averages(teacher, points[:, :n_student], LINE_TOL * tol, tol_square, 2 * bool(scores))
            return self._values(lines, scores)

        def scale(mean_squares: np.ndarray) -> np.ndarray:
            sizes = np.full(len(mean_squares), np.inf)
            for name in ("g", "gg"):  # panels must resolve these averages
                columns = self.lines.columns[name]
                sizes[columns] = np.sqrt(mean_squares[columns].max() * (2.0 if self.limits.half else 1.0)) + 1e-300
            if self.squares:
                sizes[self.lines.columns["square"]] = np.sqrt(ATTENTION_TOL) * self.lines.square_unit
            return sizes

        return panel_average(leaf, lambda _: None, 1, self.limits, scale, self.tol, self.outer, self.weights)


class _FieldAverage(_Average):
    """Average over a channel of labels with one field and one or two coordinates of the teacher."""

    def __init__(self, rule: PanelRule, channel: Channel, squares: bool) -> None:
        super().__init__(rule, channel, squares)
        n = SEARCH_NODES if rule.searching else LABEL_NODES[rule.level]
        max_work = SEARCH_WORK * rule.max_work if rule.searching else rule.max_work
        # an odd number of panels: if all fields are even functions of e, a jump at e = 0 is not the end of a panel
        self.lines = FieldLines(channel, rule.tol, n, max_work, odd=True)
        self.limits = Limits(rule.tol, channel.symmetry.m_zero, n, edges=() if rule.searching else Limits.edges)
        self.tol = np.array([rule.tol * (SEARCH_TOL if rule.searching else 1.0)])
        self.u = channel.root[0, 0, 0]
        self.min_unit = 1e-10 * max(self.lines.size, np.sqrt(channel.overlaps.V.max()))
        self.unit = max(self.u, self.min_unit)  # unit of the tolerance for z

    def _complete(self, values: np.ndarray) -> Moments:
        return complete(self.lines.unpack(values), self.channel.symmetry)

    def _average(self, scores: Scores | None) -> np.ndarray:
        channel, scale = self.channel, self._scale()

        def leaf(points: np.ndarray, tol: np.ndarray) -> np.ndarray:
            return self._values(self._lines(points, tol, 2 * bool(scores)), scores)

        scale = np.append(scale, np.full(2 + (scores.n_products if scores else 0), np.inf))
        return panel_average(leaf, label_cuts(channel), channel.n_teacher, self.limits, scale, self.tol)

    def _scale(self) -> np.ndarray:
        """Return the root mean square of each line average, from a few lines; it also adjusts the unit for z."""
        channel, lines, limits = self.channel, self.lines, self.limits
        points, weight = pilot_points(channel, limits, channel.n_teacher)
        values = self._values(self._lines(points, np.full(len(points), MAX_TOL)), None)[:, :-2]
        scale = np.sqrt(weight @ values**2)
        force = float(np.sqrt(scale[lines.columns["gg"]][0]))  # size of g
        self.unit = max(min(self.unit, force / lines.metric.smallest), self.min_unit)  # z − ω = V g may be small
        fields = np.sqrt([channel.overlaps.q.max(), *np.diagonal(channel.model.coordinates.rho[0])])
        # averages of g y may vanish by symmetry; by Stein's identity, a response that these points miss is of order g/ω
        sizes = {"g": np.full(1, SMALL), "with_noise": SMALL * fields[:1], "with_teacher": SMALL * fields[1:]}
        for name, size in (sizes | {"response": MISSED / fields.max(keepdims=True)}).items():
            columns = lines.columns[name]
            scale[columns] = np.maximum(scale[columns], force * size)
        # the loss is a difference of two averages, which is rounding if the weights interpolate the labels at a kink
        scale[-1] = max(scale[-1], SMALL * scale[-2])
        scale += 1e-300
        # the tolerance of squares is the square root of the tolerance of other averages, in units of V⁻²
        scale[lines.columns["square"]] = lines.square_unit / np.sqrt(self.limits.tol) if self.squares else np.inf
        return scale

    def _lines(self, points: np.ndarray, tol: np.ndarray, n_powers: int = 0) -> LineValues:
        """Return averages over e at white coordinates of the teacher."""
        tol_square = np.sqrt(tol) if self.squares else np.full(len(tol), np.inf)
        tol = self.unit / self.lines.size * LINE_TOL * tol
        return self.lines.averages(points, np.zeros((len(points), 0)), tol, tol_square, n_powers)

    def _values(self, lines: LineValues, scores: Scores | None) -> np.ndarray:
        values = super()._values(lines, scores)
        if self.u > MIN_DIRECTION * self.lines.size:  # integration by parts
            response = -(lines.out.g[:, 1, 0, 0] + lines.out.scalars[:, BOUNDARY]) / self.u
            values[:, self.lines.columns["response"]] = response[:, None]
        return values


def pilot_points(channel: Channel, limits: Limits, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (N, n) with weights (N,) that determine the sizes of averages over n coordinates of labels.

    They are equidistant, because losses may vanish up to several standard deviations of the noise. If the labels have
    breakpoints in the first coordinate, it has panels there: averages may differ from zero only next to them.
    """
    y = x = np.linspace(-PILOT_REACH, PILOT_REACH, PILOT_NODES)
    part = weight = np.exp(-0.5 * y**2) / np.exp(-0.5 * y**2).sum()
    cuts = label_cuts(channel)(np.zeros((1, 0)))
    if cuts is not None and len(cuts[0]):
        first = _first_panels(cuts, 1, 0.0 if limits.half else -limits.end, limits)
        x, _, weight = (values.ravel() for values in first.nodes(legendre_rule(PILOT_PANEL)))
    others, parts = tensor_grid(y, n - 1), np.prod(tensor_grid(part, n - 1), axis=1)
    points = np.column_stack([np.repeat(x, len(others)), np.tile(others, (len(x), 1))])
    return points, np.outer(weight / weight.sum(), parts).ravel()


@lru_cache(maxsize=256)
def _label_cuts(model: Any, prefix: bytes, n_coordinates: int, coordinate: int) -> list[np.ndarray]:
    """Return the breakpoints of the labels in a coordinate, for points given by their first coordinates.

    Stored, because they do not depend on the overlaps.
    """
    given = np.frombuffer(prefix).reshape(-1, coordinate) if coordinate else np.zeros((1, 0))
    cuts: list[np.ndarray] = []
    for other in OTHER_NOISES if coordinate + 1 < n_coordinates else (0.0,):

        def labels(number: np.ndarray, x: np.ndarray, other: float = other) -> np.ndarray:
            white = np.full((len(x), n_coordinates), other)
            white[:, :coordinate], white[:, coordinate] = given[number], x
            return fields_and_terms(model, white)[1].params

        points = find_breakpoints(labels, len(given))
        # points that move with the noise are no breakpoints of averages over the noise
        pairs = zip(cuts or points, points, strict=True)
        cuts = [a[[bool((np.abs(b - x) < SAME_POINT).any()) for x in a]] for a, b in pairs]
    return cuts


def label_cuts(channel: Channel) -> Cuts:
    """Return the breakpoints of the labels as a function for `panel_average`; none in the student's coordinate.

    Next to a breakpoint in f, where kinks of the loss meet kinks of the labels, averages may vary on a short scale: of
    the student's noise if its fields nearly follow from the teacher's, of its fields if they are small, or of V.
    Additional panels on each side of it have these widths.
    """
    n, slope = channel.n_teacher, abs(channel.slope[0, 0, 0]) * np.sqrt(channel.model.coordinates.rho[0, 0, 0])
    spread, field = channel.root[0, 0, 0], np.sqrt(channel.overlaps.q[0, 0, 0])
    near = NEAR_WIDTHS * np.array([spread / slope if slope > 0 else np.inf, field])
    widths = [float(width) for width in (*near, channel.overlaps.V[0, 0, 0]) if MIN_NEAR < width < 1]

    def cuts(prefix: np.ndarray) -> list[np.ndarray] | None:
        coordinate = prefix.shape[1]
        if coordinate >= n:
            return None
        points = _label_cuts(channel.model, np.ascontiguousarray(prefix).tobytes(), n, coordinate)
        if coordinate == 0 and widths:
            sides = [0.0, *widths, *(-width for width in widths)]
            return [np.unique(row[:, None] + sides) for row in points]
        return points

    return cuts


def error_within(model: Any, overlaps: Overlaps, tol: float) -> float:
    """Return the test error of labels with one field, with a tolerance of each panel, relative to the errors' size."""
    channels = component_channels(PanelRule(labels=True), model, overlaps)
    return sum(probability * float(_average_errors(channel, tol)[0]) for probability, _, channel in channels)


def expand_error(model: Any, overlaps: Overlaps, tol: float) -> Callable[[Overlaps], float] | None:
    """Return the test error to first order in the overlaps, as a function of nearby overlaps.

    Its derivatives are averages of products with scores. None if the teacher nearly determines ω.
    """
    rule, parts = PanelRule(labels=True), []
    for _, _, channel in component_channels(rule, model, overlaps):
        if not can_expand(channel, MIN_EXPANDED**2):
            return None
        parts.append((channel.overlaps, _average_errors(channel, tol, Scores(channel))))

    def error(there: Overlaps) -> float:
        channels = zip(component_channels(rule, model, there), parts, strict=True)
        values = [p * (v[0] + v[1:] @ change_of(at, new.overlaps, False)) for (p, _, new), (at, v) in channels]
        return float(sum(values))

    return error


def _average_errors(channel: Channel, tol: float, scores: Scores | None = None) -> np.ndarray:
    """Return the test error of a channel and, with `scores`, its derivatives, (1 + K,).

    `tol` is the tolerance of each panel, relative to the size of the errors.
    """

    def errors(points: np.ndarray, _: Any = None) -> np.ndarray:
        y, terms, noise = channel.at(points)
        values = channel.model.task.errors(noise + channel.overlaps.m, y, terms)[:, None]
        return values if scores is None else np.hstack([values, values * scores.values(noise, y)])

    def runs(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return runs_of_labels(*fields_and_terms(channel.model, points))

    limits = Limits(min(max(tol, 1e-13), MAX_TOL), channel.symmetry.m_zero, ERROR_NODES)
    (pilot, weight), of_labels = pilot_points(channel, limits, channel.n_white), label_cuts(channel)
    kinked = has_kinks(channel.loss, channel.at(pilot)[1].params)

    def cuts(prefix: np.ndarray) -> list[np.ndarray] | None:
        if not kinked or prefix.shape[1] < channel.n_teacher:
            return of_labels(prefix)
        return find_breakpoints(lambda k, x: errors(np.column_stack([prefix[k], x]))[:, :1], len(prefix))

    size = weight @ np.abs(errors(pilot)) + 1e-300
    size[1:] = np.inf
    return panel_average(errors, cuts, channel.n_white, limits, size, np.array([limits.tol]), runs=runs)
