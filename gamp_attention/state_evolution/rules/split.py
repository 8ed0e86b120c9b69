"""A deterministic quadrature rule, which cuts its panels where the proximal map jumps.

The white coordinates of the channel are treated in three ways:

- along one direction e of the student's noise lines are averaged, and cut at jumps (`line_average`);
- along one direction f of the teacher's, where jumps appear and vanish, panels are halved until the line averages are
  resolved;
- in all others what is left is smooth, and has Gauss-Hermite nodes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gamp_attention.state_evolution.equations.channel import Channel, Moments, reversed_mean
from gamp_attention.state_evolution.rules.line_track import legendre_nodes
from gamp_attention.state_evolution.rules.lines import FieldLines, LineValues, contrast_basis, mean_moments, reach
from gamp_attention.state_evolution.rules.rule import NodeSet, Rule


@dataclass(frozen=True)
class SplitSettings:
    """Settings of the split rule; those of levels have one entry for each level."""

    max_fields: int = 6  # white coordinates, L (r + t), that a product rule is offered for
    max_halvings: int = 12  # of a panel across lines
    # Gauss-Hermite nodes of each outer coordinate; even: none lies on a plane of symmetry
    outer_nodes: tuple[int, ...] = (4, 8, 12, 14, 18, 22, 26, 30, 34, 38)
    panel_nodes: tuple[int, ...] = (10, 10, 12, 12, 12, 12, 14, 14, 16, 16)  # Gauss-Legendre
    smooth_nodes: tuple[int, ...] = (10, 14, 18, 22, 26, 30, 34, 38, 42, 46)  # for what does not jump, each coordinate
    max_smooth: float = 4e6  # of these, altogether
    finer_lines: float = 1e-2  # tolerance of lines in that of the panels across, or these are halved for nothing
    coarsest: float = 1e-2  # tolerance anywhere
    rare: float = 1e-2  # least probability, relative to the mean, that tolerances are scaled by
    left_out: float = 0.02  # weight of outer nodes that are left out, in units of the tolerance
    tested: tuple[int, ...] = (0, 3)  # which line averages must be resolved: of g and of g gᵀ


SPLIT = SplitSettings()


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
    squares: ClassVar[bool] = True  # products of derivatives are always averaged
    rough: ClassVar[float] = 1e-4  # residual of a first solution that is good enough

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
        return [_Averaging(self, channel).run()]

    def smooth_nodes(self, n_white: int) -> Iterator[NodeSet]:
        """A product rule as fine as this one for a function that does not jump."""
        n = min(SPLIT.smooth_nodes[self.level], int(SPLIT.max_smooth ** (1 / n_white)))
        yield outer_nodes(n, n_white, 0.1 * self.tol)


@lru_cache(maxsize=8)
def outer_nodes(n: int, dim: int, left_out: float) -> tuple[np.ndarray, np.ndarray]:
    """Product of Gauss-Hermite rules: nodes (N, dim) and weights (N,), the least of total `left_out` left out."""
    x, weight = np.polynomial.hermite_e.hermegauss(n)
    x, weight = 0.5 * (x - x[::-1]), weight / weight.sum()
    points, weights = np.zeros((1, 0)), np.ones(1)
    for _ in range(dim):
        points = np.concatenate([np.repeat(points, n, axis=0), np.tile(x, len(points))[:, None]], axis=1)
        weights = np.repeat(weights, n) * np.tile(weight, len(weights))
        kept = weights > left_out / n**dim
        points, weights = points[kept], weights[kept]
    return points, weights / weights.sum()


class _Averaging:
    """One evaluation of the rule."""

    def __init__(self, rule: SplitRule, channel: Channel) -> None:
        L, r, t = channel.shape
        n = SPLIT.panel_nodes[rule.level]
        self.range, self.nodes = reach(rule.tol), legendre_nodes(n)
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
        self.allowed = np.minimum(rule.tol / np.clip(share, SPLIT.rare, 1), SPLIT.coarsest)

    def run(self) -> Moments:
        """Sum over panels in f, halved until the line averages are resolved."""
        ends = np.linspace(0, self.range, 3) if self.half else np.linspace(-self.range, self.range, 4)
        outer = np.repeat(np.arange(len(self.weights)), len(ends) - 1)
        low, high = np.tile(ends[:-1], len(self.weights)), np.tile(ends[1:], len(self.weights))
        kept_weights: list[np.ndarray] = []
        kept_values: list[LineValues] = []
        scale = np.ones(2)
        for depth in range(SPLIT.max_halvings + 1):
            f = low[:, None] + 0.5 * (high - low)[:, None] * (1 + self.nodes.x)
            density = np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi)
            values = self._lines(outer, f, density)
            weights = 0.5 * (high - low)[:, None] * self.nodes.weight * density * self.weights[outer][:, None]
            if depth == 0:
                scale = np.sqrt([np.tensordot(weights.ravel(), values[i] ** 2, 1).max() for i in SPLIT.tested])
            done = np.full(len(outer), depth == SPLIT.max_halvings)
            if depth < SPLIT.max_halvings:
                done = self._unresolved(values, scale, low, high) <= self.allowed[outer]
            accepted = np.repeat(done, f.shape[1])
            kept_weights.append(weights[done].ravel())
            kept_values.append(tuple(v[accepted] for v in values))
            if done.all():
                break
            outer = np.repeat(outer[~done], 2)
            low, middle, high = low[~done], 0.5 * (low + high)[~done], high[~done]
            low, high = np.stack([low, middle], axis=1).ravel(), np.stack([middle, high], axis=1).ravel()
        moments = mean_moments(
            (1 + self.half) * np.concatenate(kept_weights),
            tuple(np.concatenate(columns) for columns in zip(*kept_values, strict=True)),
        )
        return reversed_mean(moments) if self.symmetry.reversal else moments

    def _lines(self, outer: np.ndarray, f: np.ndarray, density: np.ndarray) -> LineValues:
        """Line averages at the nodes f of panels."""
        allowed = np.minimum(self.allowed[outer][:, None] / np.maximum(2.5 * density, SPLIT.rare), SPLIT.coarsest)
        each = np.repeat(outer, f.shape[1])
        teacher = np.outer(f.ravel(), self.along) + self.outer_teacher[each] @ self.teacher.T
        return self.lines.averages(teacher, self.outer_student[each], SPLIT.finer_lines * allowed.ravel())

    def _unresolved(self, values: LineValues, scale: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Largest of the last Legendre coefficients of g and g gᵀ on each panel, relative and weighted."""
        worst = np.zeros(len(low))
        for i, size in zip(SPLIT.tested, scale, strict=True):
            v = values[i].reshape(len(low), len(self.nodes.x), -1) / (size + 1e-300)
            worst = np.maximum(worst, np.abs(np.einsum("sm,pmi->psi", self.nodes.tail, v)).max(axis=(1, 2)))
        nearest = np.maximum(np.maximum(low, -high), 0)
        return worst * np.exp(-0.5 * nearest**2) / np.sqrt(2 * np.pi) * np.minimum(high - low, 1)
