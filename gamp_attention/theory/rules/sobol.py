"""Randomized rule for averages over the channel: scrambled Sobol points in mirror pairs, in independent replicas.

The spread of the replicas is the error estimate (randomized quasi-Monte Carlo, see `gamp_attention._tools.quadrature`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gamp_attention._tools.progress import Progress
from gamp_attention._tools.quadrature import gaussian_points, inside_cube
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.theory.equations.channel import Channel, Moments, complete
from gamp_attention.theory.equations.expansions import ChannelExpansion
from gamp_attention.theory.equations.pathwise import expand_along_paths
from gamp_attention.theory.rules.rule import Rule


@dataclass(frozen=True)
class SobolSettings:
    """Settings of random rules."""

    stability_points: int = 4096  # number of points of each replica that finite differences need
    newton_points: int = 1024  # the same for Newton steps, which an error of some percent hardly slows down
    test_error_divisor: int = 8  # the test error of attention needs 1/8 of the points, at least `stability_points`
    test_error_factor: int = 2  # the test error for labels is averaged over twice the number of points,
    outcomes_divisor: int = 2  # or half of it if points are averages over all labels
    safety: float = 0.8  # refinement aims at 0.8 times the required error
    max_growth: float = 16.0  # maximum factor by which a refinement multiplies the number of points
    search_divisor: int = 32  # a subsampled search computes the global minimum at 6 % of the points
    often_divisor: int = 8  # the same at 22 % of the points, if the search often finds lower minima


SOBOL = SobolSettings()
RATE = 0.85  # errors decrease like the number of points to the power −0.85
JUMP_RATE = 0.7  # the same if the proximal map jumps
MAX_STORED = 1 << 16  # largest number of coordinates of a point set that is stored


def component_points(n: int, probability: float, low: int) -> int:
    """Return the number of points for a component: a power of two near probability · n, at least `low`, at most n."""
    return min(n, 1 << int(np.ceil(np.log2(max(probability * n, low)))))


def points_within(n: int, max_work: float) -> int:
    """Return the largest power of two up to n and up to `max_work`; at least 2."""
    return 1 << int(np.log2(max(min(max_work, n), 2)))


@lru_cache(maxsize=64)
def _draw_points(n: int, dim: int, seed: tuple[int, ...], in_cube: bool, paired: bool, whitened: bool) -> np.ndarray:
    """Return points (n, dim) of the unit cube, or Gaussian points, mirror images next to each other if `paired`.

    Small sets are stored: scrambling takes as long as the average of a simple loss.
    """
    if in_cube:
        return inside_cube(sobol_points(n, dim, np.random.default_rng(seed)))
    points = gaussian_points(n, dim, np.random.default_rng(seed), whitened)
    return points.reshape(2, n // 2, dim).swapaxes(0, 1).reshape(n, dim) if paired else points


@dataclass(frozen=True)
class SobolRule(Rule):
    """Averages over the channel on independent randomized point sets; their spread is the error estimate.

    The rule works for any number of tokens and columns. All points are generated from the seed at every use, so a rule
    is a deterministic function of the overlaps.

    Parameters
    ----------
    n_points : even number of points of each replica. If all fields may change sign, half of them are evaluated.
    n_replicas : number of independent replicas, at least 2.
    seed : seed of the point sets, one or more integers.
    max_work : maximum number of proximal problems that a replica may solve, which limits refinements.
    searched : 1 to compute the global minimum at all points; otherwise at n_points/`searched` points and a part of the
        others, and elsewhere the minimum nearest to the fields (see `Channel.moments`); used for labels, and for
        attention if the channel has symmetries.
    rate : power of the number of points with which errors are expected to decrease.
    problems : number of proximal problems at each point, one for each label.
    unresolved : relative error of the averages that the spread of the replicas does not show.
    whitened : whether points have unit covariance. Averages of quadratic functions are then exact, and averages of
        bounded functions have more errors, because the covariance depends on the points that are farthest from 0.
    """

    n_points: int = 4096
    n_replicas: int = 8
    seed: tuple[int, ...] = (0,)
    max_work: float = np.inf
    searched: int = 1
    rate: float = RATE
    problems: int = 1
    unresolved: float = 0.0
    whitened: bool = True
    name: ClassVar[str] = "sobol"
    deterministic: ClassVar[bool] = False

    def finer(self) -> "SobolRule":
        """Return the rule with four times the number of points, in new scramblings."""
        return replace(self, n_points=4 * self.n_points)

    def refined_for(self, error_ratio: float) -> "SobolRule":
        """Return a rule whose error is smaller by the factor `error_ratio`; self if that is at most 1.

        The rule has 2 to 16 times the current number of points, limited by `max_work` but at least doubled.
        """
        if error_ratio <= 1:
            return self
        growth = min((error_ratio / SOBOL.safety) ** (1 / self.rate), SOBOL.max_growth)
        growth_within_work = self.max_work / self.n_points
        doublings = min(np.round(np.log2(growth)), np.floor(np.log2(growth_within_work)))
        return replace(self, n_points=self.n_points << int(max(doublings, 1)))

    def for_stability(self) -> "SobolRule":
        """Return the rule with at most 4096 problems; noise cancels in finite differences on the same points."""
        return replace(self, n_points=points_within(self.n_points, SOBOL.stability_points / self.problems))

    def for_newton(self) -> "SobolRule":
        """Return the rule with at most 1024 problems."""
        return replace(self, n_points=points_within(self.n_points, SOBOL.newton_points / self.problems))

    def with_subsampled_search(self, often: bool = False) -> "SobolRule":
        """Return a rule that computes the global minimum at a part of the points only; at more points if `often`.

        A search costs as much as four local minimizations.
        """
        return replace(self, searched=SOBOL.often_divisor if often else SOBOL.search_divisor)

    def for_test_error(self, attention: bool) -> "SobolRule":
        """Return a rule for the test error, which takes far less time a point than averages over proximal maps.

        It has less noise for attention. For labels it can have more, because near perfect recovery it is an average of
        rare large losses.
        """
        if self.problems > 1:
            return replace(self, n_points=max(self.n_points // SOBOL.outcomes_divisor, 2))
        if not attention:
            return replace(self, n_points=SOBOL.test_error_factor * self.n_points)
        smallest = min(self.n_points, SOBOL.stability_points)
        return replace(self, n_points=max(self.n_points // SOBOL.test_error_divisor, smallest))

    def for_component(self, number: int, probability: float) -> "SobolRule":
        """Return the rule with the component's fraction of the points, drawn independently for each component."""
        seed = (*self.seed, number) if number else self.seed
        n_points = component_points(self.n_points, probability, 128)
        return replace(self, n_points=n_points, seed=seed)

    @property
    def initial_tolerance(self) -> float:
        """Residual at which a first solution is accurate enough; single points that jump cause such residuals."""
        return 20 / self.n_points

    def work(self, n_white: int) -> float:
        """Return the approximate number of proximal problems in an average."""
        return self.n_points * self.n_replicas

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """Return the averages of each replica; products of derivatives only if `squares` is True, otherwise NaN."""
        moments: list[Moments] = []
        subsamples = channel.symmetry.foldable or not channel.model.attention  # the first points of a set are symmetric
        searched = self.searched if subsamples else 1
        with Progress(shown=False) as task:  # shown only inside of a task that is shown
            for white in self.point_sets(channel):
                task.describe(f"average over {self.n_replicas} × {self.n_points} points, {len(moments)} done")
                moments.append(channel.moments(white, squares, searched))
        return [complete(moments_of_replica, channel.symmetry) for moments_of_replica in moments]

    def expansion(self, channel: Channel, squares: bool = False) -> ChannelExpansion | None:
        """Return the averages, with products of derivatives, and their derivatives along the paths of the points.

        None for losses that are not convex, whose proximal map may jump, and if the teacher determines fields of the
        student.
        """
        if channel.model.task.jumps:
            return None
        return expand_along_paths(channel, self.point_sets(channel))

    def point_sets(self, channel: Channel, replica: int | None = None) -> Iterator[np.ndarray]:
        """Yield the points of each replica, or of one of them, in the fundamental domain of the channel."""
        replicas = range(self.n_replicas) if replica is None else [replica]
        seeds = [(*self.seed, self.n_points, number) for number in replicas]
        folded = channel.symmetry.foldable and channel.model.task.jumps  # other points begin with the student's fields
        paired = not folded and self.searched > 1  # so that the first points are symmetric, too
        n, dim = self.n_points // (2 if folded and channel.symmetry.m_zero else 1), channel.n_coordinates
        draw = _draw_points if n * dim <= MAX_STORED else _draw_points.__wrapped__
        sets = (draw(n, dim, seed, folded, paired, self.whitened) for seed in seeds)
        if folded:
            return map(channel.fold, sets)
        return sets
