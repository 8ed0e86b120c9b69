"""A randomised rule for averages over the channel: scrambled Sobol points in mirror pairs, in independent replicas."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gamp_attention._core.quadrature import gaussian_points, inside_cube, sobol_points
from gamp_attention.state_evolution.equations.channel import Channel, Moments
from gamp_attention.state_evolution.rules.lines import FieldLines, mean_moments
from gamp_attention.state_evolution.rules.rule import Rule


@dataclass(frozen=True)
class SobolSettings:
    """Numbers of points that are enough for less than the overlaps."""

    stability: int = 4096
    test_error: int = 8  # a share of them, but as many as for the stability
    stability_lines: int = 256
    rate: float = 0.85  # errors fall like the number of points to this power
    aim: float = 0.8  # at this share of the error asked for
    most: float = 16.0  # times as many points at once
    searched: int = 16  # of so many points one is searched for lower minima where these are rare


SOBOL = SobolSettings()


def points_of(n: int, share: float, low: int) -> int:
    """The number of points for a component's share of n: a power of two, at least `low` but not above n."""
    return min(n, 1 << int(np.ceil(np.log2(max(share * n, low)))))


def points_within(n: int, work: float) -> int:
    """At most n points, and no more than a budget of proximal problems allows: a power of two."""
    return min(n, 1 << int(np.log2(max(min(work, n), 2))))


@dataclass(frozen=True)
class SobolRule(Rule):
    """Averages over the channel on independent randomised point sets, whose spread is the error.

    Works at any number of tokens and columns. The points are redrawn from the seed at every use, so the same
    rule is the same function of the overlaps.

    Parameters
    ----------
    n_points : points of each replica, even; where all fields may change sign, one of two mirror images is enough.
    n_replicas : independent replicas, at least 2.
    lines : average along a line through every point that crosses the jumps of the proximal map, cut there,
        instead of at the point; what is left is smooth and converges faster.
    seed : of the point sets, one or more integers.
    max_work : proximal problems that a replica may solve; where its lines need more, `WorkExceeded` is raised.
    searched : of so many points one is searched for lower minima than that next to the fields, where symmetries allow.
    """

    n_points: int = 4096
    n_replicas: int = 8
    lines: bool = False
    seed: tuple[int, ...] = (0,)
    max_work: float = np.inf
    searched: int = 1
    deterministic: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """What the rule is called in arguments and results."""
        return "lines" if self.lines else "sobol"

    def finer(self) -> "SobolRule":
        """Four times the points, scrambled anew."""
        return replace(self, n_points=4 * self.n_points)

    def refined_for(self, excess: float) -> "SobolRule":
        """As many points as bring the error down by this factor, 2 to 16 times those of now; the same if it is below 1.

        Not more than may be solved, but for twice those of now.
        """
        if excess <= 1:
            return self
        times = min((excess / SOBOL.aim) ** (1 / SOBOL.rate), SOBOL.most)
        room = self.max_work / (self.work(1) / self.n_replicas)
        doublings = min(np.round(np.log2(times)), np.floor(np.log2(room)))
        return replace(self, n_points=self.n_points << int(max(doublings, 1)))

    def for_stability(self) -> "SobolRule":
        """No more points than the first rule has: differences on the same points hardly see their noise."""
        return replace(self, n_points=min(self.n_points, SOBOL.stability_lines if self.lines else SOBOL.stability))

    def with_subsampled_search(self) -> "SobolRule":
        """The same with few searches for lower minima, each of which takes the time of four minimisations."""
        return self if self.lines else replace(self, searched=SOBOL.searched)

    def for_test_error(self) -> "SobolRule":
        """Fewer points, as many as the test error needs: it knows no proximal maps, and has less noise."""
        return replace(self, n_points=max(self.n_points // SOBOL.test_error, min(self.n_points, SOBOL.stability)))

    def for_component(self, number: int, share: float) -> "SobolRule":
        """As many of the points as the share asks for, drawn independently for each component."""
        seed = (*self.seed, number) if number else self.seed
        return replace(self, n_points=points_of(self.n_points, share, 128), seed=seed)

    @property
    def initial_tolerance(self) -> float:
        """Residual of a first solution that is good enough: single points that jump leave about as much."""
        return 1e-3 if self.lines else 20 / self.n_points

    def work(self, n_white: int) -> float:
        """About how many proximal problems one average solves: a hundred on a line."""
        return self.n_points * self.n_replicas * (100 if self.lines else 1)

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """The averages of each replica; those of products of derivatives only where `squares` asks for them."""
        if self.lines:
            found = [self._on_lines(channel, replica) for replica in range(self.n_replicas)]
        else:
            searched = self.searched if channel.folds else 1
            found = [channel.moments(white, squares, searched) for white in self.point_sets(channel)]
        return [channel.completed(each) for each in found]

    def point_sets(self, channel: Channel, replica: int | None = None) -> Iterator[np.ndarray]:
        """The point set of each replica, or of one of them, on a part of the channel where symmetries map it to all."""
        chosen = range(self.n_replicas) if replica is None else [replica]
        if not channel.folds:
            return (gaussian_points(self.n_points, channel.n_white, self._rng(each)) for each in chosen)
        number = self.n_points // (2 if channel.symmetry.m_zero else 1)
        cubes = (sobol_points(number, channel.n_folded, self._rng(each)) for each in chosen)
        return (channel.folded(inside_cube(cube)) for cube in cubes)

    def _rng(self, replica: int) -> np.random.Generator:
        return np.random.default_rng([*self.seed, self.n_points, replica])

    def _on_lines(self, channel: Channel, replica: int) -> Moments:
        n, white = self.n_points, gaussian_points(self.n_points, channel.n_white - 1, self._rng(replica))
        if channel.symmetry.m_zero:  # mirror images average to the same
            n, white = n // 2, white[: n // 2]
        split, tol = channel.n_teacher, 1.0 / self.n_points
        lines = FieldLines(channel, tol, n_nodes=10, max_work=self.max_work)
        values, _, _ = lines.averages(white[:, :split], white[:, split:], np.full(n, tol), np.full(n, tol))
        return mean_moments(np.full(n, 1 / n), values)
