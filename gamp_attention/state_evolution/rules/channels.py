"""Averages over the channel of a mixture: those given the classes of all tokens, weighted by the law of the classes."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gamp_attention.models.model import Channel, Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Moments
from gamp_attention.state_evolution.rules.sobol import SobolRule
from gamp_attention.state_evolution.rules.split import SplitRule

LEAST_POINTS = 128  # of a random rule, however small its share


def restricted(overlaps: Overlaps, sources: np.ndarray) -> Overlaps:
    """The overlaps of some sources."""
    return Overlaps(**{name: values[sources] for name, values in overlaps.arrays().items()})


def scattered(channels: tuple[Channel, ...], moments: list[Moments]) -> Moments:
    """The moments of each channel, of L tokens, as sums over the sources weighted by the channels' shares.

    Eq. :eq:`mixture-conjugates`.
    """
    if len(channels) == 1:
        return moments[0]
    S = 1 + max(int(channel.sources.max()) for channel in channels)

    def summed(name: str) -> np.ndarray:
        parts = [getattr(each, name) for each in moments]
        total = np.zeros((S, *parts[0].shape[1:]))
        for (share, sources, _), part in zip(channels, parts, strict=True):
            total[sources] += share * part
        return total

    square = np.zeros((S, S, *moments[0].square.shape[2:]))
    for (share, sources, _), each in zip(channels, moments, strict=True):
        square[np.ix_(sources, sources)] += share * each.square
    return Moments(
        g=summed("g"),
        with_noise=summed("with_noise"),
        with_teacher=summed("with_teacher"),
        gg=summed("gg"),
        response=summed("response"),
        square=square,
        moreau=sum(channel.share * each.moreau for channel, each in zip(channels, moments, strict=True)),
        loss=sum(channel.share * each.loss for channel, each in zip(channels, moments, strict=True)),
    )


def points_of(n: int, share: float, least: int) -> int:
    """The number of points for a channel's share of n of them: a power of two, at least `least` but not above n."""
    return min(n, 1 << int(np.ceil(np.log2(max(share * n, least)))))


@dataclass(frozen=True)
class MixtureRule:
    """A rule for each channel of a model, all like a given one.

    Parameters
    ----------
    model : the mixture.
    like : the rule for channels, but for its model and the points and seeds of random rules.
    """

    model: Model
    like: SplitRule | SobolRule

    @cached_property
    def parts(self) -> tuple[SplitRule | SobolRule, ...]:
        """The rule of each channel."""
        found: list[SplitRule | SobolRule] = []
        for number, (share, _, model) in enumerate(self.model.channels):
            if isinstance(self.like, SplitRule):
                found.append(replace(self.like, model=model))
            else:  # independent of each other
                seed = (*self.like.seed, number) if number else self.like.seed
                n_points = points_of(self.like.n_points, share, LEAST_POINTS)
                found.append(replace(self.like, model=model, n_points=n_points, seed=seed))
        return tuple(found)

    @property
    def name(self) -> str:
        """What the rule is called in arguments and results."""
        return self.like.name

    @property
    def deterministic(self) -> bool:
        """Whether errors are those of levels, not of random points."""
        return self.like.deterministic

    @property
    def squares(self) -> bool:
        """Whether products of derivatives are always averaged."""
        return self.like.squares

    @property
    def level(self) -> int:
        """The level of a deterministic rule."""
        return self.like.level

    @property
    def rough(self) -> float:
        """Residual under which a first solution need not go."""
        return self.like.rough

    @property
    def tol(self) -> float:
        """What the averages leave unresolved, about."""
        return self.like.tol

    @property
    def work(self) -> float:
        """About how many proximal problems one evaluation solves."""
        return sum(part.work for part in self.parts)

    def at_level(self, level: int) -> "MixtureRule":
        """The same at another level, if it has levels."""
        return replace(self, like=self.like.at_level(level))

    def finer(self) -> "MixtureRule | None":
        """The next finer rule, or None at the last level."""
        like = self.like.finer()
        return None if like is None else replace(self, like=like)

    def for_stability(self) -> "MixtureRule":
        """The rule whose averages are good enough for finite differences."""
        return replace(self, like=self.like.for_stability())

    def moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """The averages of each replica."""
        channels = self.model.channels
        each = [
            part.moments(restricted(overlaps, channel.sources), squares)
            for part, channel in zip(self.parts, channels, strict=True)
        ]
        return [scattered(channels, list(replica)) for replica in zip(*each, strict=True)]
