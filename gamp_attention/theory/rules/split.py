"""Deterministic quadrature rule for averages over the channel, adapted to the jumps of the proximal map.

The white coordinates of the channel are split into three groups:

- e, along the contrast between the tokens in the student's noise (`contrast_basis`). The proximal map jumps across this
  direction. Averages over e are computed along lines that are cut at the jumps (`lines`);
- f, along the same contrast of the teacher's fields. The line averages are continuous in f, but not smooth where a
  jump begins to exist. They are averaged over adaptive Gauss-Legendre panels (`Panels`, `_SplitAverage`);
- all other coordinates, called outer. The remaining function is smooth, so a product of Gauss-Hermite rules is used.

Adaptive quadrature in f, for all outer nodes at once: start with a few equal panels and compute the line averages at
the nodes of all panels. A panel is accepted if the last two Legendre coefficients of its values are below the
tolerance. Every other panel is divided: at the point f₀ where a jump begins, if there is one (`_jump_onsets`),
otherwise in the middle. Beyond f₀ averages of squared derivatives behave like |f − f₀|^(−1/2); on panels that begin at
f₀ the integration variable is v = |f − f₀|^(1/2), in which they are smooth.
"""

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gamp_attention._tools.quadrature import LegendreRule, gauss_hermite, legendre_rule, pruned_product
from gamp_attention.theory.equations.channel import Channel, Moments, average_over_reversal
from gamp_attention.theory.equations.scores import ScoreExpansion, Scores
from gamp_attention.theory.equations.symmetry import Symmetry, contrast_basis
from gamp_attention.theory.rules.lines import N_VALUES, FieldLines, LineValues, integration_limit, mean_moments
from gamp_attention.theory.rules.rule import LeveledRule


@dataclass(frozen=True)
class SplitSettings:
    """Settings of the split rule."""

    # number of Gauss-Hermite nodes of an outer coordinate, for each level: even, so that no node lies on a plane of
    # symmetry, and growing by at least a factor of 1.14, or two levels might agree by accident
    outer_nodes: tuple[int, ...] = (4, 6, 10, 14, 20, 26, 32, 38, 44, 50)
    # number of Gauss-Legendre nodes of a panel or a part of a line, for each level
    panel_nodes: tuple[int, ...] = (10, 10, 12, 12, 12, 12, 14, 14, 16, 16)
    max_halvings: int = 12  # maximum number of successive divisions of a panel
    panel_tol: tuple[float, ...] = (1.0, 2.0)  # in units of the level's tolerance: levels 0 and 1, other levels
    line_tol: float = 1e-2  # tolerance of lines relative to panels: their errors must not cause divisions
    max_tol: float = 1e-2  # upper bound of all tolerances
    min_density: float = 1e-2  # lower bound of the relative probability by which tolerances are divided
    dropped_weight: float = 0.02  # total weight of the outer nodes that may be dropped, in units of the tolerance
    n_secants: int = 5  # number of secant steps toward the onset of a jump
    ahead: float = 0.05  # the next secant point is beyond the estimated onset by 5 % of the distance of the last point


TESTED = (0, 3)  # indices of the line averages that panels must resolve: E[g] and E[g gᵀ]
SQUARE = 5  # index of the line averages of squared derivatives; panels must resolve them if they are requested


@dataclass(frozen=True)
class Panels:
    """Panels in f, each for one outer node, parametrized by v.

    f = v if `side` is 0, otherwise f = origin + side · v². The second form removes a singularity |f − origin|^(−1/2) at
    the end of a panel, because df = 2v dv.
    """

    outer: np.ndarray  # (n,) index of the outer node
    origin: np.ndarray  # (n,) point where a jump begins; 0 if `side` is 0
    side: np.ndarray  # (n,) −1, 0 or 1
    first: np.ndarray  # (n,) lower limit of v
    last: np.ndarray  # (n,) upper limit of v

    @classmethod
    def between(cls, ends: np.ndarray, n_outer: int) -> "Panels":
        """Return panels between successive `ends`, the same for each of n_outer nodes."""
        outer = np.repeat(np.arange(n_outer), len(ends) - 1)
        zero = np.zeros(len(outer))
        return cls(outer, zero, zero, np.tile(ends[:-1], n_outer), np.tile(ends[1:], n_outer))

    def nodes_and_weights(self, rule: LegendreRule) -> tuple[np.ndarray, np.ndarray]:
        """Return f at the nodes of each panel, and the quadrature weights of ∫ df; both (n, nodes)."""
        v = self._v(rule)
        width = 0.5 * (self.last - self.first)[:, None]
        return self._f(v), width * rule.weight * self._slope(v)

    def relative_slope(self, rule: LegendreRule) -> np.ndarray:
        """Return df/dv at the nodes (n, nodes), divided by its mean over the panel."""
        slope = self._slope(self._v(rule))
        return slope / slope.mean(axis=1, keepdims=True)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the smallest and the largest f of each panel."""
        a, b = (self._f(v[:, None])[:, 0] for v in (self.first, self.last))
        return np.minimum(a, b), np.maximum(a, b)

    def select(self, which: np.ndarray) -> "Panels":
        """Return some of the panels, given by indices or a mask."""
        return Panels(*(getattr(self, item.name)[which] for item in fields(self)))

    def divide(self, onsets: np.ndarray) -> "Panels":
        """Return the two parts of each panel, divided at `onsets` (n,), or in the middle if its entry is NaN.

        Panels that are divided at an onset must have side 0.
        """
        cut = np.isfinite(onsets)
        parts = (*self.select(cut)._cut_at(onsets[cut]), *self.select(~cut)._halves())
        return Panels(*(np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(self)))

    def _cut_at(self, origin: np.ndarray) -> tuple["Panels", "Panels"]:
        """Return the parts below and above `origin`, in the variable v = |f − origin|^(1/2)."""
        zero = 0 * origin
        below = replace(self, origin=origin, side=zero - 1, first=zero, last=np.sqrt(np.abs(self.first - origin)))
        above = replace(self, origin=origin, side=zero + 1, first=zero, last=np.sqrt(np.abs(self.last - origin)))
        return below, above

    def _halves(self) -> tuple["Panels", "Panels"]:
        """Return the lower and the upper half of the range of v."""
        middle = 0.5 * (self.first + self.last)
        return replace(self, last=middle)._simplify(), replace(self, first=middle)._simplify()

    def _simplify(self) -> "Panels":
        """Return the same panels with v = f for all that do not reach their origin: there averages are smooth in f."""
        low, high = self.ends()
        smooth = (self.side != 0) & (self.first > 0)
        return replace(
            self,
            origin=np.where(smooth, 0.0, self.origin),
            side=np.where(smooth, 0.0, self.side),
            first=np.where(smooth, low, self.first),
            last=np.where(smooth, high, self.last),
        )

    def _v(self, rule: LegendreRule) -> np.ndarray:
        return self.first[:, None] + 0.5 * (self.last - self.first)[:, None] * (1 + rule.x)

    def _f(self, v: np.ndarray) -> np.ndarray:
        side = self.side[:, None]
        return np.where(side == 0, v, self.origin[:, None] + side * v**2)

    def _slope(self, v: np.ndarray) -> np.ndarray:
        return np.where(self.side[:, None] == 0, 1.0, 2 * v)


@dataclass(frozen=True)
class SplitRule(LeveledRule):
    """Averages over the channel, at each level three to ten times more accurate than at the level before."""

    settings: SplitSettings = field(default=SplitSettings(), repr=False)
    name: ClassVar[str] = "split"

    def work(self, n_white: int) -> float:
        """Return the approximate number of proximal problems in an average."""
        return 300 * self.settings.outer_nodes[self.level] ** (n_white - 2) * (1 + self.level) ** 2

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """Return the averages, as a list with one entry; products of derivatives are accurate only if `squares`."""
        return [_SplitAverage(self, channel, squares).moments()]

    def expansion(self, channel: Channel, squares: bool = False) -> ScoreExpansion | None:
        """Return the averages to first order in q, m and θ; None if the distribution of the fields is singular."""
        return _SplitAverage(self, channel, squares, Scores(channel)).expansion() if Scores.exist(channel) else None


@lru_cache(maxsize=8)
def outer_rule(n: int, dim: int, dropped: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (N, dim) and weights (N,) of a product of n-point Gauss-Hermite rules.

    Nodes whose weight is below `dropped` / n**dim are left out; their total weight is at most `dropped`.
    """
    return pruned_product(*gauss_hermite(n), dim, dropped / n**dim)


class _SplitAverage:
    """One evaluation of the split rule on a channel."""

    def __init__(self, rule: SplitRule, channel: Channel, squares: bool, scores: Scores | None = None) -> None:
        L, r, t = channel.shape
        self.settings = rule.settings
        n = self.settings.panel_nodes[rule.level]
        self.squares, self.symmetry = squares, channel.symmetry
        self.range, self.nodes = integration_limit(rule.tol), legendre_rule(n)
        self.scores, self.lines = scores, FieldLines(channel, rule.tol, n, rule.max_work, scores)
        teacher_basis = contrast_basis(L, t)
        self.f_direction, self.outer_basis = teacher_basis[:, 0], teacher_basis[:, 1:]
        n_outer, dropped = self.settings.outer_nodes[rule.level], self.settings.dropped_weight * rule.tol
        points, weights = outer_rule(n_outer, L * (r + t) - 2, dropped)
        domain = _outer_domain(points, self.symmetry, L, r, t)
        self.weights = weights[domain] / weights[domain].sum()
        self.outer_student, self.outer_teacher = points[domain, : L * r - 1], points[domain, L * r - 1 :]
        # if L = 2 and r = t = 1, both symmetries together map f < 0 to f > 0: averages over f > 0 are enough
        self.half = self.symmetry.m_zero and _reversal_flips_outer(self.symmetry, L, r, t)
        # averages at outer nodes of small weight may be less accurate: all nodes contribute equally to the error
        relative_weight = self.weights * len(self.weights)
        tol = self.settings.panel_tol[rule.level > 1] * rule.tol
        self.tol = np.minimum(tol / np.clip(relative_weight, self.settings.min_density, 1), self.settings.max_tol)

    def moments(self) -> Moments:
        """Return the averages over all coordinates."""
        moments = mean_moments(*self._lines())
        return average_over_reversal(moments) if self.symmetry.reversal else moments

    def expansion(self) -> ScoreExpansion:
        """Return the averages over all coordinates and their derivatives."""
        assert self.scores is not None
        weights, values = self._lines()
        moments = mean_moments(weights, values)
        moments = average_over_reversal(moments) if self.symmetry.reversal else moments
        return self.scores.complete(moments, tuple(np.tensordot(weights, v, 1) for v in values[N_VALUES:]))

    def _lines(self) -> tuple[np.ndarray, LineValues]:
        """Return weights and averages of lines by adaptive quadrature in f, see the module's docstring."""
        ends = np.linspace(0, self.range, 3) if self.half else np.linspace(-self.range, self.range, 4)
        panels = Panels.between(ends, len(self.weights))
        all_weights: list[np.ndarray] = []
        all_values: list[LineValues] = []
        scale = np.ones(len(TESTED))
        for depth in range(self.settings.max_halvings + 1):
            f, measure = panels.nodes_and_weights(self.nodes)
            values, n_jumps, jump_size = self._line_averages(panels.outer, f, panels.relative_slope(self.nodes))
            weights = measure * _density(f) * self.weights[panels.outer][:, None]
            if depth == 0:
                scale = np.sqrt([np.tensordot(weights.ravel(), values[i] ** 2, 1).max() for i in TESTED])
            accepted = np.full(len(f), depth == self.settings.max_halvings)
            if depth < self.settings.max_halvings:
                accepted = self._measure_tails(values, scale, panels) <= self.tol[panels.outer]
            lines = np.repeat(accepted, f.shape[1])
            all_weights.append(weights[accepted].ravel())
            all_values.append(tuple(v[lines] for v in values))
            if accepted.all():
                break
            panels, onsets = panels.select(~accepted), np.full(sum(~accepted), np.nan)
            if self.squares:  # averages without squared derivatives are resolved by halving panels
                onsets = self._jump_onsets(panels, f[~accepted], n_jumps[~accepted], jump_size[~accepted])
            panels = panels.divide(onsets)
        weights = (1 + self.half) * np.concatenate(all_weights)
        return weights, tuple(np.concatenate(columns) for columns in zip(*all_values, strict=True))

    def _line_averages(
        self, outer: np.ndarray, f: np.ndarray, relative_slope: np.ndarray
    ) -> tuple[LineValues, np.ndarray, np.ndarray]:
        """Return averages over e at points f (panels, nodes), flattened to one axis.

        Also the number of jumps on each line and the smallest squared jump, both (panels, nodes). Lines of small
        density have a larger tolerance.
        """
        density = 2.5 * _density(f)  # near 1 at f = 0
        lowest = self.settings.min_density
        tol = np.minimum(self.tol[outer][:, None] / np.maximum(density, lowest), self.settings.max_tol)
        tol_square = np.sqrt(tol) / np.maximum(relative_slope, lowest) if self.squares else 0 * f + np.inf
        outer_of_line = np.repeat(outer, f.shape[1])
        teacher = np.outer(f.ravel(), self.f_direction) + self.outer_teacher[outer_of_line] @ self.outer_basis.T
        values, n_jumps, jump_size = self.lines.averages(
            teacher, self.outer_student[outer_of_line], self.settings.line_tol * tol.ravel(), tol_square.ravel()
        )
        return values, n_jumps.reshape(f.shape), jump_size.reshape(f.shape)

    def _jump_onsets(self, panels: Panels, f: np.ndarray, n_jumps: np.ndarray, jump_size: np.ndarray) -> np.ndarray:
        """Return the point of each panel where a jump of the proximal map begins; NaN if there is none.

        f, n_jumps and jump_size (panels, nodes) are the nodes, the number of jumps on their lines and the smallest
        squared jump. A jump begins where two minima merge. Near this onset f₀ the squared jump is proportional to
        |f − f₀|, so the secant through two points with the jump leads close to f₀. A point without the jump, on the
        other side of f₀, serves as a bracket. Only panels with side 0 are searched.
        """
        onsets = np.full(len(f), np.nan)
        changes = np.diff(n_jumps, axis=1) != 0
        searched = np.flatnonzero((panels.side == 0) & changes.any(axis=1))
        if len(searched) == 0:
            return onsets
        left = np.argmax(changes[searched], axis=1)  # first pair of neighboring nodes with different numbers of jumps
        towards = np.where(n_jumps[searched, left] < n_jumps[searched, left + 1], 1, -1)  # direction of more jumps
        outside = np.where(towards > 0, left, left + 1)  # the node of this pair that has fewer jumps
        near = outside + towards
        far = np.clip(near + towards, 0, f.shape[1] - 1)
        bracket, fewer = f[searched, outside], n_jumps[searched, outside]
        (x, size_x), (y, size_y) = ((f[searched, k], jump_size[searched, k]) for k in (far, near))
        for step in range(self.settings.n_secants):
            with np.errstate(all="ignore"):  # the sizes may be equal or infinite
                onset = y - size_y * (y - x) / (size_y - size_x)
            inside = (onset - bracket) * (onset - y) < 0
            onset = np.where(inside, onset, 0.5 * (bracket + y))
            if step == self.settings.n_secants - 1:
                break
            ahead = onset + self.settings.ahead * (y - onset)
            _, counts, sizes = self._line_averages(panels.outer[searched], ahead[:, None], np.ones((len(searched), 1)))
            jumps = counts[:, 0] > fewer
            bracket = np.where(jumps, bracket, ahead)
            x, size_x = np.where(jumps, y, x), np.where(jumps, size_y, size_x)
            y, size_y = np.where(jumps, ahead, y), np.where(jumps, sizes[:, 0], size_y)
        onsets[searched] = onset
        return onsets

    def _measure_tails(self, values: LineValues, scale: np.ndarray, panels: Panels) -> np.ndarray:
        """Return the largest of the last two Legendre coefficients on each panel (n,), relative to `scale`.

        The coefficients are weighted by the largest density on the panel, and by its width if that is below 1. Squared
        derivatives are functions of v, multiplied by df/dv, in units of V⁻².
        """
        low, high = panels.ends()
        weight = _density(np.maximum(np.maximum(low, -high), 0)) * np.minimum(high - low, 1)

        def tail(values: np.ndarray, unit: float) -> np.ndarray:
            v = values.reshape(len(low), len(self.nodes.x), -1) / (unit + 1e-300)
            return weight * np.abs(np.einsum("sm,pmi->psi", self.nodes.tail, v)).max(axis=(1, 2))

        largest = np.max([tail(values[i], unit) for i, unit in zip(TESTED, scale, strict=True)], axis=0)
        if not self.squares:
            return largest
        slope = panels.relative_slope(self.nodes)
        squares = values[SQUARE].reshape(*slope.shape, -1) * slope[..., None]
        # the tolerance of squares is the square root of the tolerance of other averages
        return np.maximum(largest, tail(squares, self.lines.square_unit) ** 2)


def _reversal_flips_outer(symmetry: Symmetry, L: int, r: int, t: int) -> bool:
    """Return whether reversal of the tokens changes the sign of all outer coordinates and of no other coordinate."""
    return symmetry.reversal and (L, r, t) == (2, 1, 1)


def _outer_domain(points: np.ndarray, symmetry: Symmetry, L: int, r: int, t: int) -> np.ndarray:
    """Return a mask (N,) of outer nodes, one of each set of nodes whose averages are equal by symmetry."""
    mask = np.ones(len(points), dtype=bool)
    if L * r > 1 and (symmetry.m_zero or _reversal_flips_outer(symmetry, L, r, t)):
        mask &= points[:, 0] > 0
    if L * t > 1 and symmetry.theta_zero:
        mask &= points[:, L * r - 1] > 0
    return mask


def _density(f: np.ndarray) -> np.ndarray:
    """Return the density of the standard Gaussian at f."""
    return np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi)
