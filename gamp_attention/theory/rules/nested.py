"""Deterministic quadrature rule for samples with one field of the student and at most two numbers of the teacher.

The white coordinates are the student's noise e and one or two coordinates of the teacher: its field f and, if labels
are random, their noise (or a second field). Averages are nested: the innermost over e, along lines that are cut where
the proximal map jumps (`lines`); then over the teacher's second coordinate; the outermost over f.

Averages over the teacher's coordinates (`nested_average`) use Gauss-Legendre panels. The first panels end at the jumps
and kinks of the labels (`find_breakpoints`), for example at f = 0 for labels |f|. All panels of a level are evaluated
together. A panel is accepted if the first omitted Legendre coefficients of all averages are expected to be below the
tolerance. Otherwise it is halved, which also resolves the points where jumps of the proximal map begin. A fixed point
is first searched on short panels that are hardly ever halved (`NestedRule.for_search`).

On a line, ω = c + u e, the almost-everywhere derivative follows from integration by parts on each panel [a, b],

    u E[∂g/∂ω] = E[g e] + Σ_panels (φ(b) g(b) − φ(a) g(a)),

so that it is as accurate as g where the curvature of the loss jumps. The derivatives of all averages in the overlaps
are averages with powers of e (`FieldExpansion`), so that a Jacobian costs one evaluation. Test errors are nested
averages over all coordinates (`average_error`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gamp_attention._tools.quadrature import LegendreRule, gauss_hermite, legendre_rule, tensor_grid
from gamp_attention.problem.denoisers.newton import make_metric
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, Moments, fields_and_terms, student_noise_law
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.breakpoints import find_breakpoints
from gamp_attention.theory.rules.lines import LineMoments, first_panels, integration_limit, line_averages
from gamp_attention.theory.rules.rule import LeveledRule, WorkExceeded, component_channels


@dataclass(frozen=True)
class NestedSettings:
    """Settings of the nested rule."""

    panel_nodes: tuple[int, ...] = (10, 10, 10, 12, 12, 12, 14, 14, 16, 16)  # numbers of nodes of a panel, by level
    line_tol: float = 1e-2  # tolerance of lines relative to panels: their errors must not cause divisions
    inner_tol: float = 0.1  # tolerance of averages over the second coordinate, in the same unit and for the same reason
    min_density: float = 1e-2  # lower bound of the relative density by which tolerances are divided
    max_tol: float = 1e-2  # upper bound of all tolerances
    search_tol: float = 100.0  # tolerance of panels for the search of a fixed point, in units of level 0's tolerance
    search_work: float = 0.25  # work of an average of that search in units of `max_work`; beyond, level 0 is searched
    search_nodes: int = 8  # number of Gauss-Legendre nodes of a panel for that search
    max_halvings: int = 30  # maximum number of successive halvings of a panel
    pilot_nodes: int = 6  # number of Gauss-Hermite nodes of each coordinate, which determine the size of each average
    small: float = 1e-3  # smallest unit of averages of g, g ω̃ and g y, relative to the sizes of their factors
    min_direction: float = 1e-7  # smallest u relative to the fields at which integration by parts gives the derivative
    noises: tuple[float, ...] = (0.3, -0.9)  # values of the second coordinate at which breakpoints in f are computed
    same_point: float = 1e-6  # distance below which two breakpoints count as equal
    unresolved: float = 0.3  # smallest error of averages, also of test errors, in units of the tolerance
    near_widths: float = 6.0  # width of the panels next to a breakpoint, in standard deviations of the student's fields
    min_near: float = 1e-9  # smallest width of such panels
    work_of_line: int = 60  # typical number of proximal problems on one line
    min_expanded: float = 0.02  # smallest u relative to the fields at which powers of e give all derivatives
    max_finer: int = 5  # maximum number of smaller tolerances of a test error
    good: float = 0.1  # its error in units of the requested error, below which no smaller tolerance is tried
    n_lines: int = 60  # typical number of panels' nodes along one coordinate of the teacher


NESTED = NestedSettings()


# arguments of `nested_average`: the averaged functions, and the breakpoints in the next coordinate
Leaf = Callable[[np.ndarray, np.ndarray], np.ndarray]
Cuts = Callable[[np.ndarray], list[np.ndarray] | None]


@dataclass(frozen=True)
class NestedRule(LeveledRule):
    """Averages over a channel with one field of the student."""

    # whether panels are divided only if they are very inaccurate: errors are then about 1e-3 instead of 1e-4, at a
    # quarter of the time
    searching: bool = False
    settings: NestedSettings = field(default=NESTED, repr=False)
    name: ClassVar[str] = "nested"
    expands: ClassVar[bool] = True

    @property
    def unresolved(self) -> float:
        """Largest relative error of the averages that a comparison with another level may miss."""
        return self.settings.unresolved * self.tol

    def finer(self) -> "NestedRule | None":
        """Return the rule at the next level; from the rule for the search, level 0."""
        return self.at_level(0) if self.searching else super().finer()

    def at_level(self, level: int) -> "NestedRule":
        """Return the rule at another level."""
        return replace(self, level=level, searching=False)

    def for_search(self) -> "NestedRule":
        """Return the rule for the search of a fixed point; self above level 0."""
        return self if self.searching or self.level > 0 else replace(self, searching=True)

    def for_stability(self) -> "NestedRule":
        """Return level 1 without a limit of work, which is accurate enough for derivatives of the overlap map."""
        return replace(super().for_stability(), searching=False)

    def work(self, n_white: int) -> float:
        """Return the approximate number of proximal problems in an average."""
        return self.settings.work_of_line * (1 + self.level) * self.settings.n_lines ** (n_white - 1)

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """Return the averages, as a list with one entry; products of derivatives are accurate only if `squares`."""
        return [_NestedMoments(self, channel, squares).moments()]

    def expansion(self, channel: Channel, squares: bool = False) -> "FieldExpansion | None":
        """Return the averages and their derivatives in the overlaps; None if the teacher nearly determines ω."""
        return _NestedMoments(self, channel, squares).expansion()


@dataclass(frozen=True, eq=False)
class FieldExpansion:
    """Averages over a channel with one field to first order in its overlaps.

    With ω = m + s·y + u e for teacher fields y, an average of h(ω) over e has the derivatives E[h e]/u in m,
    E[h e] y/u in s and E[h (e² − 1)]/u in u, whether or not h jumps. The derivatives in V follow from
    ∂g/∂V = ½ ∂(g²)/∂ω, which holds with the jumps of g: their positions move with velocity −½ (g₋ + g₊), so that E[g²]
    changes with V by (⅔ E[g³ e] − ⅙ Σ_jumps φ(e) (Δg)³)/u.
    """

    channel: Channel  # the channel at the overlaps of the expansion
    base: Moments  # averages there
    values: np.ndarray  # (3 + t,) averages of g, g e, g² and g y
    slopes: np.ndarray  # (3 + t, 3 + t) their derivatives in m, u, V and s
    boundary: float  # average of the changes of g over panels, see `LineMoments`
    jumps: bool  # whether the proximal map jumps on any line; then `response` has no correct derivative
    includes_V: ClassVar[bool] = True

    def at(self, overlaps: Overlaps) -> Moments:
        """Return the averages at other overlaps; the losses are those at the overlaps of the expansion."""
        here = self.channel.overlaps
        slope, root = student_noise_law(self.channel.model, overlaps)
        u, old = float(root[0, 0, 0]), float(self.channel.root[0, 0, 0])
        shift = [overlaps.m[0, 0] - here.m[0, 0], u - old, overlaps.V[0, 0, 0] - here.V[0, 0, 0]]
        values = self.values + self.slopes @ np.append(shift, (slope - self.channel.slope).ravel())
        g, g_e, gg, g_y = values[0], values[1], values[2], values[3:]
        return replace(
            self.base,
            g=np.full((1, 1), g),
            with_noise=np.full((1, 1, 1), slope.ravel() @ g_y + u * g_e),
            with_teacher=g_y.reshape(1, 1, -1),
            gg=np.full((1, 1, 1), gg),
            response=np.full((1, 1, 1), -(g_e + self.boundary) / u),
        )


def nested_average(leaf: Leaf, cuts: Cuts, n_coordinates: int, limits: "Limits", scale: np.ndarray) -> np.ndarray:
    """Return the averages (K,) of functions of `n_coordinates` independent standard Gaussian coordinates.

    Parameters
    ----------
    leaf : function of points (N, n_coordinates) and tolerances (N,), which returns values (N, K).
    cuts : function of the first coordinates of points (N, j), which returns the N increasing arrays of breakpoints of
        coordinate j; None if there are none.
    limits : integration limits, quadrature rule and tolerance.
    scale : (K,) size of each value, the unit of its tolerance; inf for values that are not tested.
    """

    def average(prefix: np.ndarray, tol: np.ndarray) -> np.ndarray:
        inner_tol = limits.settings.inner_tol
        coordinate, total = prefix.shape[1], np.zeros((len(prefix), len(scale)))
        low = 0.0 if coordinate == 0 and limits.half else -limits.end
        owner, a, b = _first_panels(cuts(prefix), len(prefix), low, limits)
        for depth in range(limits.settings.max_halvings + 1):
            x, weight = _nodes_and_weights(a, b, limits.nodes)
            of_node = np.repeat(owner, x.shape[1])
            points = np.column_stack([prefix[of_node], x.ravel()])
            relative_density = np.clip(np.exp(-0.5 * x.ravel() ** 2), limits.settings.min_density, 1)
            tol_inside = np.minimum(inner_tol * tol[of_node] / relative_density, limits.settings.max_tol)
            is_last = coordinate + 1 == n_coordinates
            values = leaf(points, tol_inside / inner_tol) if is_last else average(points, tol_inside)
            values = values.reshape(*x.shape, -1)
            tail = _omitted_coefficients(values, limits.nodes) / scale
            nearest = np.maximum(np.maximum(a, -b), 0)
            tail = tail.max(axis=1) * np.exp(-0.5 * nearest**2) * np.minimum(b - a, 1)
            accepted = (tail <= tol[owner]) | (depth == limits.settings.max_halvings)
            np.add.at(total, owner[accepted], np.einsum("pm,pmk->pk", weight[accepted], values[accepted]))
            if accepted.all():
                break
            owner, a, b = owner[~accepted], a[~accepted], b[~accepted]
            middle = 0.5 * (a + b)
            owner, a, b = np.tile(owner, 2), np.concatenate([a, middle]), np.concatenate([middle, b])
        return total * (2.0 if low == 0.0 else 1.0)

    return average(np.zeros((1, 0)), np.array([limits.tol * limits.looser]))[0]


@dataclass(frozen=True)
class Limits:
    """Accuracy of a nested average."""

    tol: float  # tolerance of a panel, relative to the size of the values
    half: bool  # True if the values are even, so that positive values of the first coordinate are enough
    n_nodes: int  # number of Gauss-Legendre nodes of a panel
    looser: float = 1.0  # error from which panels of the first coordinate are divided, in units of the tolerance
    settings: NestedSettings = NESTED

    @property
    def end(self) -> float:
        """Integration limit in standard deviations."""
        return integration_limit(self.tol)

    @property
    def nodes(self) -> LegendreRule:
        """Quadrature rule of a panel."""
        return legendre_rule(self.n_nodes)


def _first_panels(
    cuts: list[np.ndarray] | None, n: int, low: float, limits: Limits
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the owner and both ends of the first panels of n intervals [low, limits.end], divided at the cuts."""
    grid = first_panels(limits.tol, limits.n_nodes)
    if low == 0.0:
        grid = np.linspace(0, limits.end, len(grid) // 2 + 1)
    if cuts is None:
        owner = np.repeat(np.arange(n), len(grid) - 1)
        return owner, np.tile(grid[:-1], n), np.tile(grid[1:], n)
    ends = [_merge(grid, points[(points > low) & (points < limits.end)]) for points in cuts]
    owner = np.repeat(np.arange(n), [len(row) - 1 for row in ends])
    return owner, np.concatenate([row[:-1] for row in ends]), np.concatenate([row[1:] for row in ends])


def _merge(grid: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Return the increasing ends of panels: the cuts, and the grid without its inner points close to cuts."""
    if len(cuts) == 0:
        return grid
    close = 0.25 * (grid[1] - grid[0])
    far = np.abs(grid[:, None] - cuts).min(axis=1) > close
    far[[0, -1]] = True
    return np.unique(np.concatenate([grid[far], cuts]))


def _omitted_coefficients(values: np.ndarray, rule: LegendreRule) -> np.ndarray:
    """Return the expected size (P, K) of the first omitted Legendre coefficients of values (P, n, K) at the nodes.

    They are the last two coefficients times their ratio to the two before. If coefficients decrease slowly, as next to
    the point where jumps begin, the ratio is near 1.
    """
    last, before = (
        np.abs(np.einsum("sm,pmk->psk", projections, values)).max(axis=1) for projections in (rule.tail, rule.before)
    )
    return last * np.minimum(last / np.maximum(before, 1e-300), 1.0)


def _nodes_and_weights(a: np.ndarray, b: np.ndarray, rule: LegendreRule) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes (P, n) of panels [a, b], and the quadrature weights times the density of N(0, 1)."""
    half = 0.5 * (b - a)[:, None]
    x = a[:, None] + half * (1 + rule.x)
    return x, half * rule.weight * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


@lru_cache(maxsize=256)
def _label_cuts(
    model: Model, prefix: bytes, n_coordinates: int, coordinate: int, settings: NestedSettings = NESTED
) -> list[np.ndarray]:
    """Return the breakpoints of the labels in a coordinate, for points given by their first coordinates.

    Stored, because they do not depend on the overlaps.
    """
    given = np.frombuffer(prefix).reshape(-1, coordinate) if coordinate else np.zeros((1, 0))
    others = settings.noises if coordinate + 1 < n_coordinates else (0.0,)

    def labels(other: float) -> list[np.ndarray]:
        def function(number: np.ndarray, x: np.ndarray) -> np.ndarray:
            white = np.full((len(x), n_coordinates), other)
            white[:, :coordinate], white[:, coordinate] = given[number], x
            return fields_and_terms(model, white)[1].params

        return find_breakpoints(function, len(given))

    cuts, *at_other_noise = map(labels, others)
    for moved in at_other_noise:  # points that move with the noise are no breakpoints of averages over the noise
        near = settings.same_point
        cuts = [a[[bool((np.abs(b - x) < near).any()) for x in a]] for a, b in zip(cuts, moved, strict=True)]
    return cuts


def label_cuts(channel: Channel, settings: NestedSettings = NESTED) -> Cuts:
    """Return the breakpoints of the labels as a function for `nested_average`; none in the student's coordinate.

    If the student's fields nearly follow from the teacher's, averages vary on a short scale next to a breakpoint in f,
    where kinks of the loss meet kinks of the labels. An additional panel on each side of it has this width.
    """
    n, slope = channel.n_teacher, abs(channel.slope[0, 0, 0]) * np.sqrt(channel.model.coordinates.rho[0, 0, 0])
    width = settings.near_widths * channel.root[0, 0, 0] / slope if slope > 0 else np.inf

    def cuts(prefix: np.ndarray) -> list[np.ndarray] | None:
        coordinate = prefix.shape[1]
        if coordinate >= n:
            return None
        points = _label_cuts(channel.model, np.ascontiguousarray(prefix).tobytes(), n, coordinate, settings)
        if coordinate == 0 and settings.min_near < width < 1:
            return [np.unique(np.concatenate([row, row - width, row + width])) for row in points]
        return points

    return cuts


def size_of_fields(overlaps: Overlaps) -> float:
    """Return the size of the student's fields."""
    return float(np.sqrt(overlaps.q.max()) + np.abs(overlaps.m).max())


class _NestedMoments:
    """One evaluation of the nested rule on a channel with L = r = 1 and one or two coordinates of the teacher."""

    def __init__(self, rule: NestedRule, channel: Channel, squares: bool) -> None:
        settings, overlaps = rule.settings, channel.overlaps
        n = settings.search_nodes if rule.searching else settings.panel_nodes[rule.level]
        self.settings, self.channel, self.squares = settings, channel, squares
        self.work_left = settings.search_work * rule.max_work if rule.searching else rule.max_work
        looser = settings.search_tol if rule.searching else 1.0
        self.limits = Limits(rule.tol, channel.symmetry.m_zero, n, looser, settings)
        self.metric = make_metric(overlaps.V)
        self.direction = channel.root[:, :, 0]
        # an odd number of panels: if all fields are even functions of e, a jump at e = 0 is not the end of a panel
        self.grid, self.nodes = first_panels(rule.tol, n, odd=True), legendre_rule(n)
        self.size = size_of_fields(overlaps)
        self.min_unit = 1e-10 * max(self.size, np.sqrt(overlaps.V.max()))
        self.u = self.direction[0, 0]
        self.has_direction = self.u > settings.min_direction * self.size
        self.unit = max(self.u, self.min_unit)  # unit of the tolerance for z

    def moments(self) -> Moments:
        """Return the averages over all coordinates."""
        return self._moments(self._average(self.lines, self.scale()))

    def _average(self, lines: Leaf, scale: np.ndarray) -> np.ndarray:
        """Return the averages of functions of the teacher's coordinates, see `nested_average`."""
        cuts = label_cuts(self.channel, self.settings)
        return nested_average(lines, cuts, self.channel.n_teacher, self.limits, scale)

    def _moments(self, values: np.ndarray) -> Moments:
        """Return moments from the averages of the columns of `lines`."""
        t = self.channel.shape[2]
        g, with_noise, gg, response, moreau, loss = (float(v) for v in values[[0, 1, 2, 3, 4, 5]])
        return Moments(
            g=np.full((1, 1), 0.0 if self.limits.half else g),
            with_noise=np.full((1, 1, 1), with_noise),
            with_teacher=values[6 : 6 + t].reshape(1, 1, t),
            gg=np.full((1, 1, 1), gg),
            response=np.full((1, 1, 1), response),
            square=values[-1].reshape(1, 1, 1, 1),
            moreau=moreau,
            loss=loss,
        )

    def scale(self) -> np.ndarray:
        """Return the root mean square of each line average, from a few lines; it also adjusts the unit for z."""
        channel, n = self.channel, self.channel.n_teacher
        x, weight = gauss_hermite(self.settings.pilot_nodes)
        values = self.lines(tensor_grid(x, n), np.full(self.settings.pilot_nodes**n, self.settings.max_tol))
        scale = np.sqrt(np.prod(tensor_grid(weight, n), axis=1) @ values**2)
        force = np.sqrt(scale[2])  # size of g
        self.unit = max(min(self.unit, force / self.metric.smallest), self.min_unit)  # z − ω = V g may be small
        fields = np.sqrt([channel.overlaps.q.max(), *np.diagonal(channel.model.coordinates.rho[0])])
        smallest = self.settings.small * force * np.append(1.0, fields)  # averages of g y may vanish by symmetry
        scale[:2] = np.maximum(scale[:2], smallest[:2])
        scale[6:-1] = np.maximum(scale[6:-1], smallest[2:])
        # the tolerance of squares is the square root of the tolerance of other averages, in units of V⁻²
        unit_of_squares = min(self.metric.smallest, 1e150) ** 2 / np.sqrt(self.limits.tol)
        return np.append(scale[:-1] + 1e-300, unit_of_squares if self.squares else np.inf)

    def lines(self, points: np.ndarray, tol: np.ndarray) -> np.ndarray:
        """Return averages over e (N, 7 + t) at white coordinates of the teacher.

        The columns are g, g ω̃, g², −∂g/∂ω, the Moreau envelope, ℓ(z), g y and (∂g/∂ω)².
        """
        return self._columns(*self._averages(points, tol))

    def expansion(self) -> FieldExpansion | None:
        """Return the averages and their derivatives; None if u is too small."""
        channel, t = self.channel, self.channel.shape[2]
        if not self.u > self.settings.min_expanded * self.size:
            return None
        tested = self.scale()
        n, k = len(tested), 3 + t
        scale = np.concatenate([tested, np.full(3 + k * k, np.inf)])

        def lines(points: np.ndarray, tol: np.ndarray) -> np.ndarray:
            y, terms, noise, out = self._averages(points, tol, n_powers=2)
            return np.column_stack([self._columns(y, terms, noise, out), self._derivatives(y[:, 0], out)])

        values = self._average(lines, scale)
        base, (g_e, boundary, n_jumps) = self._moments(values[:n]), values[n : n + 3]
        means = np.concatenate([[base.g[0, 0], g_e, base.gg[0, 0, 0]], base.with_teacher.ravel()])
        slopes = values[n + 3 :].reshape(k, k)
        if self.limits.half:  # averages of odd functions vanish, but were computed over one half
            odd = np.array([True, False, False, *[False] * t])
            # g is an odd function of all fields; so are m and the derivative in m
            slopes = np.where(odd[:, None] == odd[None, :], slopes, 0.0)
        return FieldExpansion(channel, base, means, slopes, float(boundary), bool(n_jumps > 0))

    def _derivatives(self, y: np.ndarray, out: LineMoments) -> np.ndarray:
        """Return averages on lines (N, 3 + k²): g e, changes over panels, number of jumps, derivatives (k, k)."""
        g, g_e, gg = out.g[:, 0, 0], out.g_e[:, 0, 0], out.gg[:, 0, 0, 0]
        (g_ee, g_eee), (gg_e, gg_ee) = out.g_powers[:, :, 0, 0].T, out.gg_powers[:, :, 0, 0, 0].T
        ggg_e, cubes = out.cubes.T
        second = g_ee - g
        in_m = np.column_stack([g_e, second, gg_e, y * g_e[:, None]])
        in_u = np.column_stack([second, g_eee - 2 * g_e, gg_ee - gg, y * second[:, None]])
        in_V = np.column_stack([0.5 * gg_e, 0.5 * (gg_ee - gg), 2 / 3 * ggg_e - cubes / 6, 0.5 * y * gg_e[:, None]])
        slopes = np.stack([in_m, in_u, in_V, *(in_m * column[:, None] for column in y.T)], axis=2) / self.u
        return np.column_stack([g_e, out.boundary, out.work[:, 2], slopes.reshape(len(y), -1)])

    def _averages(
        self, points: np.ndarray, tol: np.ndarray, n_powers: int = 0
    ) -> tuple[np.ndarray, RiskTerms, np.ndarray, LineMoments]:
        """Return y, the loss parameters, the fields ω̃ at e = 0 and averages over e, at coordinates of the teacher."""
        channel = self.channel
        y, terms = channel.teacher(points)
        noise = channel.fields(y, np.zeros((len(y), 1, 1)))
        tol_square = np.sqrt(tol) if self.squares else np.full(len(tol), np.inf)
        out = line_averages(
            channel.loss, terms.params, noise + channel.overlaps.m, self.direction, self.metric, self.grid, self.nodes,
            self.unit * self.settings.line_tol * tol, tol_square, n_powers,
        )  # fmt: skip
        self.work_left -= out.work[:, :2].sum()
        if self.work_left < 0:
            raise WorkExceeded
        return y, terms, noise, out

    def _columns(self, y: np.ndarray, terms: RiskTerms, noise: np.ndarray, out: LineMoments) -> np.ndarray:
        """Return the columns of `lines`."""
        g, g_e = out.g[:, 0, 0], out.g_e[:, 0, 0]
        response = -(g_e + out.boundary) / self.u if self.has_direction else out.response[:, 0, 0, 0]
        columns = (
            g, g * noise[:, 0, 0] + g_e * self.u, out.gg[:, 0, 0, 0], response, out.moreau + terms.constant,
            out.loss + terms.constant, *(g * y[:, 0, s] for s in range(y.shape[2])), out.square[:, 0, 0, 0, 0],
        )  # fmt: skip
        return np.column_stack(columns)


def average_error(model: Model, overlaps: Overlaps, rtol: float) -> tuple[float, float]:
    """Return the test error of a model with one field of the student, and its error.

    The error is the difference from the average with a ten times larger tolerance, and at least a fraction of the
    last tolerance. Tolerances decrease until it is small compared with `rtol`.
    """
    tol = min(rtol, NESTED.max_tol)
    value, error = error_within(model, overlaps, tol), np.inf
    for _ in range(NESTED.max_finer):
        tol = 0.1 * tol
        finer = error_within(model, overlaps, tol)
        value, error = finer, max(abs(finer - value), NESTED.unresolved * tol * abs(finer))
        if error <= NESTED.good * rtol * abs(value):
            break
    return value, error


def error_within(model: Model, overlaps: Overlaps, tol: float) -> float:
    """Return the test error with a tolerance of each panel, relative to the size of the errors."""
    total = 0.0
    for probability, _, channel in component_channels(NestedRule(), model, overlaps):
        total += probability * float(_average_errors(channel, tol)[0])
    return total


def expand_error(model: Model, overlaps: Overlaps, tol: float) -> Callable[[Overlaps], float] | None:
    """Return the test error to first order in the overlaps, as a function of nearby overlaps.

    Its derivatives are averages with powers of e, as in `FieldExpansion`. None if the teacher nearly determines ω.
    """
    parts = []
    for _, _, channel in component_channels(NestedRule(), model, overlaps):
        u = channel.root[0, 0, 0]
        if not u > NESTED.min_expanded * size_of_fields(channel.overlaps):
            return None
        values = _average_errors(channel, tol, expanded=True)
        parts.append((values[0], np.append(values[1:3], values[3:]) / u, channel))

    def error(there: Overlaps) -> float:
        total = 0.0
        channels = component_channels(NestedRule(), model, there)
        for (probability, _, new), (value, slopes, old) in zip(channels, parts, strict=True):
            shift = [new.overlaps.m[0, 0] - old.overlaps.m[0, 0], new.root[0, 0, 0] - old.root[0, 0, 0]]
            total += probability * (value + slopes @ np.append(shift, (new.slope - old.slope).ravel()))
        return float(total)

    return error


def _average_errors(channel: Channel, tol: float, expanded: bool = False) -> np.ndarray:
    """Return the test error of a channel; if `expanded`, also u times its derivatives in m, u and the slope, (3 + t,).

    `tol` is the tolerance of each panel, relative to the size of the errors.
    """

    def errors(points: np.ndarray, _: np.ndarray) -> np.ndarray:
        values = channel.errors(points)[:, None]
        if not expanded:
            return values
        e, y = points[:, -1:], channel.teacher(points[:, :-1])[0][:, 0]
        return np.hstack([values, values * e, values * (e**2 - 1), values * e * y])

    points = gauss_hermite(NESTED.pilot_nodes)[0]
    size = np.abs(errors(tensor_grid(points, channel.n_white), np.zeros(0))).mean(axis=0) + 1e-300
    size[1:] = np.inf
    limits = Limits(min(max(tol, 1e-13), NESTED.max_tol), channel.symmetry.m_zero, NESTED.panel_nodes[0])
    return nested_average(errors, label_cuts(channel), channel.n_white, limits, size)
