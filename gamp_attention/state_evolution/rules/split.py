"""A deterministic quadrature rule, which cuts its panels where the proximal map jumps.

The white coordinates of the channel are treated in three ways:

- along one direction e of the student's noise lines are averaged, and cut at jumps (`line_average`);
- along one direction f of the teacher's, where jumps appear and vanish, panels are halved until the line averages are
  resolved;
- in all others what is left is smooth, and has Gauss-Hermite nodes.

Panels of a coordinate, some of them in the square root of the distance from a place where a jump begins.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gamp_attention._core.quadrature import LegendreRule, gauss_hermite, legendre_rule, pruned_product
from gamp_attention.state_evolution.equations.channel import Channel, Moments, reversed_mean
from gamp_attention.state_evolution.equations.symmetry import contrast_basis
from gamp_attention.state_evolution.rules.lines import FieldLines, LineValues, mean_moments, reach
from gamp_attention.state_evolution.rules.rule import Rule


@dataclass(frozen=True)
class Panels:
    """Panels of f for each of several outer nodes, f = v where `side` is 0, else f = place + side · v².

    Where a jump begins, at a place f₀, averages of squared derivatives go like |f − f₀|^(−1/2): smooth in v after df is
    written as 2v dv.
    """

    outer: np.ndarray  # (n,) number of the outer node
    place: np.ndarray  # (n,)
    side: np.ndarray  # (n,) −1, 0 or 1
    first: np.ndarray  # (n,) range of v
    last: np.ndarray  # (n,)

    @classmethod
    def between(cls, ends: np.ndarray, n_outer: int) -> "Panels":
        """The same plain panels for each outer node."""
        outer = np.repeat(np.arange(n_outer), len(ends) - 1)
        zero = np.zeros(len(outer))
        return cls(outer, zero, zero, np.tile(ends[:-1], n_outer), np.tile(ends[1:], n_outer))

    def at(self, nodes: LegendreRule) -> tuple[np.ndarray, np.ndarray]:
        """f at the nodes of each panel, and their weights, both (n, nodes)."""
        v = self._v(nodes)
        width = 0.5 * (self.last - self.first)[:, None]
        return self._f(v), width * nodes.weight * self._slope(v)

    def slope(self, nodes: LegendreRule) -> np.ndarray:
        """df/dv at the nodes (n, nodes), in units of its mean."""
        slope = self._slope(self._v(nodes))
        return slope / slope.mean(axis=1, keepdims=True)

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest f of each panel."""
        a, b = (self._f(v[:, None])[:, 0] for v in (self.first, self.last))
        return np.minimum(a, b), np.maximum(a, b)

    def chosen(self, which: np.ndarray) -> "Panels":
        """Some of the panels."""
        return Panels(*(getattr(self, each.name)[which] for each in fields(self)))

    def parts(self, where: np.ndarray) -> "Panels":
        """The two parts of each panel: on both sides of where a jump begins, or halves where that is NaN."""
        cut, middle = self.chosen(np.isfinite(where)), 0.5 * (self.first + self.last)
        place = where[np.isfinite(where)]
        pieces = [
            replace(cut, place=place, side=0 * place + side, first=0 * place, last=np.sqrt(np.abs(end - place)))
            for side, end in ((-1, cut.first), (1, cut.last))
        ]
        for part in (replace(self, last=middle), replace(self, first=middle)):
            part = part.chosen(~np.isfinite(where))
            low, high = part.ends()
            plain = part.first > 0  # away from the place
            zero, one = np.where(plain, 0.0, part.place), np.where(plain, 0.0, part.side)
            first, last = np.where(plain, low, part.first), np.where(plain, high, part.last)
            keep = part.side == 0
            pieces.append(
                Panels(
                    part.outer,
                    np.where(keep, part.place, zero),
                    np.where(keep, part.side, one),
                    np.where(keep, part.first, first),
                    np.where(keep, part.last, last),
                )
            )
        return Panels(*(np.concatenate([getattr(each, name.name) for each in pieces]) for name in fields(self)))

    def _v(self, nodes: LegendreRule) -> np.ndarray:
        return self.first[:, None] + 0.5 * (self.last - self.first)[:, None] * (1 + nodes.x)

    def _f(self, v: np.ndarray) -> np.ndarray:
        side = self.side[:, None]
        return np.where(side == 0, v, self.place[:, None] + side * v**2)

    def _slope(self, v: np.ndarray) -> np.ndarray:
        return np.where(self.side[:, None] == 0, 1.0, 2 * v)


@dataclass(frozen=True)
class SplitSettings:
    """Settings of the split rule; those of levels have one entry for each level."""

    max_fields: int = 6  # white coordinates, L (r + t), that a product rule is offered for
    unresolved: tuple[float, float] = (1.0, 2.0)  # by panels, in units of a level's tolerance: first two levels, others
    max_halvings: int = 12  # of a panel across lines
    # Gauss-Hermite nodes of each outer coordinate; even: none lies on a plane of symmetry
    # each half as many again, so that two levels never agree for want of a difference
    outer_nodes: tuple[int, ...] = (4, 6, 10, 14, 20, 26, 32, 38, 44, 50)
    panel_nodes: tuple[int, ...] = (10, 10, 12, 12, 12, 12, 14, 14, 16, 16)  # Gauss-Legendre
    finer_lines: float = 1e-2  # tolerance of lines in that of the panels across, or these are halved for nothing
    coarsest: float = 1e-2  # tolerance anywhere
    rare: float = 1e-2  # least probability, relative to the mean, that tolerances are scaled by
    left_out: float = 0.02  # weight of outer nodes that are left out, in units of the tolerance
    tested: tuple[int, ...] = (0, 3)  # which line averages must be resolved: of g and of g gᵀ
    squared: int = 5  # and, in units of V⁻², those of squares of the derivative
    squares: float = 1.0  # their tolerance in the square root of that of the others
    secants: int = 5  # to where a jump begins
    ahead: float = 0.05  # of the last point there, where the next is taken on the side of the jump


SPLIT = SplitSettings()
Lines = tuple[LineValues, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SplitRule(Rule):
    """Averages over the channel at one of ten levels of accuracy, each three to ten times finer than the last.

    Parameters
    ----------
    level : from 0 on.
    max_work : proximal problems that one evaluation may solve; `WorkExceeded` is raised beyond.
    """

    level: int = 0
    max_work: float = np.inf
    name: ClassVar[str] = "split"
    deterministic: ClassVar[bool] = True  # errors are those of levels, not of random points
    initial_tolerance: ClassVar[float] = 1e-4  # residual of a first solution that is good enough

    @property
    def tol(self) -> float:
        """What panels may leave unresolved."""
        return 10.0 ** -(2 + self.level)

    def finer(self) -> "SplitRule | None":
        """The next level, or None at the last."""
        return replace(self, level=self.level + 1) if self.level + 1 < len(SPLIT.outer_nodes) else None

    def at_level(self, level: int) -> "SplitRule":
        """The same at another level."""
        return replace(self, level=level)

    def for_stability(self) -> "SplitRule":
        """The level whose averages are good enough for finite differences, without a bound."""
        return replace(self, level=1, max_work=np.inf)

    def work(self, n_white: int) -> float:
        """About how many proximal problems one average solves."""
        return 300 * SPLIT.outer_nodes[self.level] ** (n_white - 2) * (1 + self.level) ** 2

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """The averages, as a list of one."""
        return [_Averaging(self, channel, squares).run()]


@lru_cache(maxsize=8)
def outer_nodes(n: int, dim: int, left_out: float) -> tuple[np.ndarray, np.ndarray]:
    """Product of Gauss-Hermite rules: nodes (N, dim) and weights (N,), the least of total `left_out` left out."""
    return pruned_product(*gauss_hermite(n), dim, left_out / n**dim)


class _Averaging:
    """One evaluation of the rule."""

    def __init__(self, rule: SplitRule, channel: Channel, squares: bool) -> None:
        L, r, t = channel.shape
        self.squares = squares
        n = SPLIT.panel_nodes[rule.level]
        self.range, self.nodes = reach(rule.tol), legendre_rule(n)
        self.lines = FieldLines(channel, rule.tol, n, rule.max_work)
        teacher = contrast_basis(L, t)
        self.along, self.teacher = teacher[:, 0], teacher[:, 1:]
        points, weights = outer_nodes(SPLIT.outer_nodes[rule.level], L * (r + t) - 2, SPLIT.left_out * rule.tol)
        self.symmetry = symmetry = channel.symmetry
        kept = np.ones(len(points), dtype=bool)  # one node of every set of mirror images
        pair = symmetry.reversal and (L, r, t) == (2, 1, 1)  # reversal changes the sign of both outer coordinates
        if L * r > 1 and (symmetry.m_zero or pair):
            kept &= points[:, 0] > 0
        if L * t > 1 and symmetry.theta_zero:
            kept &= points[:, L * r - 1] > 0
        self.half = symmetry.m_zero and pair  # f > 0 is enough as well
        self.weights = weights[kept] / weights[kept].sum()
        self.outer_student, self.outer_teacher = points[kept, : L * r - 1], points[kept, L * r - 1 :]
        # rare nodes may be less exact, so that all contribute alike to the error
        share = self.weights * len(self.weights)
        allowed = SPLIT.unresolved[rule.level > 1] * rule.tol
        self.allowed = np.minimum(allowed / np.clip(share, SPLIT.rare, 1), SPLIT.coarsest)

    def run(self) -> Moments:
        """Sum over panels in f, cut where jumps begin and halved until the line averages are resolved."""
        ends = np.linspace(0, self.range, 3) if self.half else np.linspace(-self.range, self.range, 4)
        panels = Panels.between(ends, len(self.weights))
        kept_weights: list[np.ndarray] = []
        kept_values: list[LineValues] = []
        scale = np.ones(len(SPLIT.tested))
        for depth in range(SPLIT.max_halvings + 1):
            f, measure = panels.at(self.nodes)
            values, number, size = self._lines(panels.outer, f, panels.slope(self.nodes))
            weights = measure * _density(f) * self.weights[panels.outer][:, None]
            if depth == 0:
                scale = np.sqrt([np.tensordot(weights.ravel(), values[i] ** 2, 1).max() for i in SPLIT.tested])
            done = np.full(len(f), depth == SPLIT.max_halvings)
            if depth < SPLIT.max_halvings:
                done = self._unresolved(values, scale, panels) <= self.allowed[panels.outer]
            accepted = np.repeat(done, f.shape[1])
            kept_weights.append(weights[done].ravel())
            kept_values.append(tuple(v[accepted] for v in values))
            if done.all():
                break
            panels, places = panels.chosen(~done), np.full(sum(~done), np.nan)
            if self.squares:
                places = self._places(panels, f[~done], number[~done], size[~done])
            panels = panels.parts(places)
        moments = mean_moments(
            (1 + self.half) * np.concatenate(kept_weights),
            tuple(np.concatenate(columns) for columns in zip(*kept_values, strict=True)),
        )
        return reversed_mean(moments) if self.symmetry.reversal else moments

    def _lines(self, outer: np.ndarray, f: np.ndarray, slope: np.ndarray) -> Lines:
        """Line averages at some f (panels, nodes) that have so much weight; number and size of jumps, at each f."""
        density = _density(f)
        allowed = np.minimum(self.allowed[outer][:, None] / np.maximum(2.5 * density, SPLIT.rare), SPLIT.coarsest)
        squares = SPLIT.squares * np.sqrt(allowed) / np.maximum(slope, SPLIT.rare) if self.squares else 0 * f + np.inf
        each = np.repeat(outer, f.shape[1])
        teacher = np.outer(f.ravel(), self.along) + self.outer_teacher[each] @ self.teacher.T
        values, number, size = self.lines.averages(
            teacher, self.outer_student[each], SPLIT.finer_lines * allowed.ravel(), squares.ravel()
        )
        return values, number.reshape(f.shape), size.reshape(f.shape)

    def _places(self, panels: Panels, f: np.ndarray, number: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Where on each panel a jump begins, NaN where none does.

        Its square goes to zero there like the distance: secants come near in a few steps.
        """
        where = np.full(len(f), np.nan)
        changed = np.diff(number, axis=1) != 0
        found = np.flatnonzero((panels.side == 0) & changed.any(axis=1))
        without = np.argmax(changed[found], axis=1)
        towards = np.where(number[found, without] < number[found, without + 1], 1, -1)
        without = np.where(towards > 0, without, without + 1)  # the node next to the place where there is no jump
        near = without + towards
        far = np.clip(near + towards, 0, f.shape[1] - 1)
        barred, points = f[found, without], [(f[found, k], size[found, k]) for k in (far, near)]
        for step in range(SPLIT.secants):
            (x, u), (y, v) = points
            with np.errstate(all="ignore"):
                place = y - v * (y - x) / (v - u)
            inside = (place - barred) * (place - y) < 0
            place = np.where(inside, place, 0.5 * (barred + y))
            if step == SPLIT.secants - 1 or not len(found):
                break
            ahead = place + SPLIT.ahead * (y - place)
            _, counted, least = self._lines(panels.outer[found], ahead[:, None], np.ones((len(found), 1)))
            jumps = counted[:, 0] > number[found, without]
            barred = np.where(jumps, barred, ahead)
            points = [
                tuple(np.where(jumps, new, old) for new, old in zip(*pair, strict=True))
                for pair in (((y, v), (x, u)), ((ahead, least[:, 0]), (y, v)))
            ]
        where[found] = place if len(found) else []
        return where

    def _unresolved(self, values: LineValues, scale: np.ndarray, panels: Panels) -> np.ndarray:
        """Largest of the last Legendre coefficients of g, g gᵀ and squares on each panel, relative and weighted."""
        low, high = panels.ends()
        weight = _density(np.maximum(np.maximum(low, -high), 0)) * np.minimum(high - low, 1)

        def left(values: np.ndarray, size: float) -> np.ndarray:
            v = values.reshape(len(low), len(self.nodes.x), -1) / (size + 1e-300)
            return weight * np.abs(np.einsum("sm,pmi->psi", self.nodes.tail, v)).max(axis=(1, 2))

        worst = np.max([left(values[i], size) for i, size in zip(SPLIT.tested, scale, strict=True)], axis=0)
        if not self.squares:
            return worst
        squares = (
            values[SPLIT.squared].reshape(*panels.slope(self.nodes).shape, -1) * panels.slope(self.nodes)[..., None]
        )
        return np.maximum(worst, (left(squares, self.lines.square_unit) / SPLIT.squares) ** 2)


def _density(f: np.ndarray) -> np.ndarray:
    """That of the standard Gaussian."""
    return np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi)
