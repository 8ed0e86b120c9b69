"""A randomised rule for averages over the channel: scrambled Sobol points in mirror pairs, in independent replicas."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gamp_attention._core.gaussian import gaussian_points
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import (
    Moments,
    average,
    denoise_fields,
    student_noise,
    teacher_fields,
    teacher_size,
)
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.rules.lines import FieldLines, fields_of, mean_moments

NODES = 10  # Gauss-Legendre nodes of a panel on a line
LINE_WORK = 100  # proximal problems of a line, about


@dataclass(frozen=True)
class SobolRule:
    """Averages over the channel on independent randomised point sets, whose spread is the error.

    Works at any number of tokens and columns. The points are redrawn from the seed at every use, so the same
    rule is the same function of the overlaps.

    Parameters
    ----------
    n_points : points of each replica, even.
    n_replicas : independent replicas, at least 2.
    lines : average along a line through every point that crosses the jumps of the proximal map, cut there,
        instead of at the point; what is left is smooth and converges faster.
    seed : of the point sets, one or more integers.
    most : proximal problems that the lines of a replica may solve; `WorkExceeded` is raised beyond.
    """

    model: Model
    n_points: int = 4096
    n_replicas: int = 8
    lines: bool = False
    seed: tuple[int, ...] = (0,)
    most: float = np.inf
    deterministic: ClassVar[bool] = False
    level: ClassVar[int] = 0  # the only one
    squares: ClassVar[bool] = False  # products of derivatives are averaged on request

    @property
    def name(self) -> str:
        """What the rule is called in arguments and results."""
        return "lines" if self.lines else "sobol"

    def finer(self) -> "SobolRule":
        """Four times the points, scrambled anew."""
        return replace(self, n_points=4 * self.n_points)

    def at_level(self, level: int) -> "SobolRule":
        """The rule itself."""
        return self

    def for_stability(self) -> "SobolRule":
        """The rule itself."""
        return self

    @property
    def rough(self) -> float:
        """Residual under which a first solution need not go: single points that jump leave about as much."""
        return 1e-3 if self.lines else 20 / self.n_points

    @property
    def tol(self) -> float:
        """What the averages leave unresolved, about."""
        return self.rough

    @property
    def work(self) -> int:
        """Proximal problems of one evaluation, about."""
        return self.n_points * self.n_replicas * (LINE_WORK if self.lines else 1)

    def generator(self, replica: int) -> np.random.Generator:
        """What the point set of a replica is drawn from."""
        return np.random.default_rng([*self.seed, self.n_points, replica])

    def moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """The averages of each replica; those of products of derivatives only where `squares` asks for them."""
        one = self._on_lines if self.lines else self._at_points
        return [one(overlaps, self.generator(replica), squares) for replica in range(self.n_replicas)]

    def _at_points(self, overlaps: Overlaps, rng: np.random.Generator, squares: bool) -> Moments:
        model, n = self.model, self.n_points
        split = teacher_size(model)
        white = gaussian_points(n, fields_of(model), rng)
        y, terms = teacher_fields(model, white[:, :split])
        noise = student_noise(model, overlaps, y, white[:, split:].reshape(n, *overlaps.m.shape))
        out = denoise_fields(model, overlaps, noise, terms, jacobian=squares)
        return average(y, noise, terms, out, overlaps.V)

    def _on_lines(self, overlaps: Overlaps, rng: np.random.Generator, squares: bool) -> Moments:
        model, n = self.model, self.n_points
        white = gaussian_points(n, fields_of(model) - 1, rng)
        if Symmetry.of(model, overlaps).m_zero:  # mirror images average to the same
            n, white = n // 2, white[: n // 2]
        split = teacher_size(model)
        tol = 1.0 / self.n_points
        lines = FieldLines(model, overlaps, tol, NODES, self.most)
        values = lines.averages(white[:, :split], white[:, split:], np.full(n, tol))
        return mean_moments(np.full(n, 1 / n), values)
