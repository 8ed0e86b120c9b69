"""A deterministic rule for averages over the channel, with panels cut where the proximal map jumps.

White coordinates of the fields are split in four: one direction e of the student's noise, along which lines are
averaged and cut at jumps (`line_average`); one direction f of the teacher's, along which jumps appear and vanish, with
panels halved until the line averages are resolved; Gauss-Hermite nodes for all others, in which what is left is smooth.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Moments, reversed_mean
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.rules.line_track import legendre_nodes
from gamp_attention.state_evolution.rules.lines import (
    FieldLines,
    LineValues,
    contrast_basis,
    fields_of,
    mean_moments,
    reach,
)

MAX_FIELDS = 6  # white coordinates, L (r + t), that a product rule is offered for
MAX_HALVINGS = 12
OUTER = (4, 8, 12, 14, 18, 22, 26, 30, 34, 38)  # Gauss-Hermite nodes at each level; even: none on a plane of symmetry
NODES = (10, 10, 12, 12, 12, 12, 14, 14, 16, 16)  # Gauss-Legendre nodes of a panel
FINER_LINES = 1e-2  # lines must be smooth to the panels across them, or these are halved for nothing
RARE = 1e-2  # least probability, relative to the mean, that tolerances are scaled by
COARSEST = 1e-2  # tolerance anywhere
LEFT_OUT = 0.02  # weight of outer nodes that are left out, in units of the tolerance
TESTED = (0, 3)  # which line averages must be resolved: of g and of g gᵀ


@dataclass(frozen=True)
class SplitRule:
    """Averages over the channel at one of ten levels of accuracy, each three to ten times finer than the last.

    Parameters
    ----------
    level : from 0 on.
    most : proximal problems that one evaluation may solve; `WorkExceeded` is raised beyond.
    """

    model: Model
    level: int = 0
    most: float = np.inf
    name: ClassVar[str] = "split"
    deterministic: ClassVar[bool] = True  # errors are those of levels, not of random points
    squares: ClassVar[bool] = True  # products of derivatives are always averaged
    rough: ClassVar[float] = 1e-4  # residual under which a first solution need not go

    @property
    def tol(self) -> float:
        """What panels may leave unresolved."""
        return 10.0 ** -(2 + self.level)

    def finer(self) -> "SplitRule | None":
        """The next level, or None at the last."""
        return replace(self, level=self.level + 1) if self.level + 1 < len(OUTER) else None

    def at_level(self, level: int) -> "SplitRule":
        """The same at another level."""
        return replace(self, level=level)

    def for_stability(self) -> "SplitRule":
        """The level whose averages are good enough for finite differences, without a bound."""
        return replace(self, level=1, most=np.inf)

    @property
    def work(self) -> float:
        """About how many proximal problems one evaluation solves."""
        return 300 * OUTER[self.level] ** (fields_of(self.model) - 2) * (1 + self.level) ** 2

    def moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """The averages, as a list of one."""
        return [_Averaging(self, overlaps).run()]


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

    def __init__(self, rule: SplitRule, overlaps: Overlaps) -> None:
        model, level = rule.model, rule.level
        L, r, t = model.n_tokens, model.rank, model.teacher_rank
        self.tol, self.range, self.nodes = rule.tol, reach(rule.tol), legendre_nodes(NODES[level])
        self.lines = FieldLines(model, overlaps, rule.tol, NODES[level], rule.most)
        teacher = contrast_basis(L, t)
        self.along, self.teacher = teacher[:, 0], teacher[:, 1:]
        points, weights = outer_nodes(OUTER[level], L * (r + t) - 2, LEFT_OUT * rule.tol)
        self.symmetry = symmetry = Symmetry.of(model, overlaps)
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
        self.allowed = np.minimum(rule.tol / np.clip(share, RARE, 1), COARSEST)

    def run(self) -> Moments:
        """Sum over panels in f, halved until the line averages are resolved."""
        ends = np.linspace(0, self.range, 3) if self.half else np.linspace(-self.range, self.range, 4)
        outer = np.repeat(np.arange(len(self.weights)), len(ends) - 1)
        low, high = np.tile(ends[:-1], len(self.weights)), np.tile(ends[1:], len(self.weights))
        kept_weights: list[np.ndarray] = []
        kept_values: list[LineValues] = []
        scale = np.ones(2)
        for depth in range(MAX_HALVINGS + 1):
            f = low[:, None] + 0.5 * (high - low)[:, None] * (1 + self.nodes.x)
            density = np.exp(-0.5 * f**2) / np.sqrt(2 * np.pi)
            values = self._lines(outer, f, density)
            weights = 0.5 * (high - low)[:, None] * self.nodes.weight * density * self.weights[outer][:, None]
            if depth == 0:
                scale = np.array([np.sqrt(np.tensordot(weights.ravel(), values[i] ** 2, 1).max()) for i in TESTED])
            done = np.full(len(outer), depth == MAX_HALVINGS)
            if depth < MAX_HALVINGS:
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
        allowed = np.minimum(self.allowed[outer][:, None] / np.maximum(2.5 * density, RARE), COARSEST)
        each = np.repeat(outer, f.shape[1])
        teacher = np.outer(f.ravel(), self.along) + self.outer_teacher[each] @ self.teacher.T
        return self.lines.averages(teacher, self.outer_student[each], FINER_LINES * allowed.ravel())

    def _unresolved(self, values: LineValues, scale: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Largest of the last Legendre coefficients of g and g gᵀ on each panel, relative and weighted."""
        worst = np.zeros(len(low))
        for i, size in zip(TESTED, scale, strict=True):
            v = values[i].reshape(len(low), len(self.nodes.x), -1) / (size + 1e-300)
            worst = np.maximum(worst, np.abs(np.einsum("sm,pmi->psi", self.nodes.tail, v)).max(axis=(1, 2)))
        nearest = np.maximum(np.maximum(low, -high), 0)
        return worst * np.exp(-0.5 * nearest**2) / np.sqrt(2 * np.pi) * np.minimum(high - low, 1)
