"""What every quadrature rule can do, and averages over all components of a model with any of them.

A rule knows no model. It averages over the white noise of one `Channel`, in which the fields are functions.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import (
    Channel,
    Moments,
    n_white,
    select_sources,
    sum_over_components,
)


class Rule(Protocol):
    """A rule for averages over the channel, the base of `SplitRule` and `SobolRule`."""

    @property
    def name(self) -> str:
        """What the rule is called in arguments and results."""

    @property
    def deterministic(self) -> bool:
        """Whether its error is told by its levels; if not, by the spread of independent replicas."""

    @property
    def level(self) -> int:
        """The level of accuracy, 0 where there is only one."""
        return 0

    @property
    def initial_tolerance(self) -> float:
        """Residual of a first solution that is good enough."""

    @property
    def tol(self) -> float:
        """About what the averages leave unresolved; as much as a first solution may, unless a rule knows better."""
        return self.initial_tolerance

    def finer(self) -> "Rule | None":
        """The next finer rule, or None if there is none."""

    def refined_for(self, excess: float) -> "Rule | None":
        """A finer rule, likely to make errors smaller by this factor, where that can be told; else the next finer."""
        return self.finer()

    def at_level(self, level: int) -> "Rule":
        """The same at another level, where there are levels."""
        return self

    def for_stability(self) -> "Rule":
        """The rule whose averages are good enough for finite differences."""
        return self

    def for_test_error(self) -> "Rule":
        """The rule whose points are enough for the test error, where it is random."""
        return self

    def with_subsampled_search(self) -> "Rule":
        """The rule with less search for lower minima, where that can be left out."""
        return self

    def for_component(self, number: int, share: float) -> "Rule":
        """The rule for a component of a mixture of given number and share."""
        return self

    def work(self, n_white: int) -> float:
        """About how many proximal problems one average solves, for so many white coordinates."""

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """The averages of each replica."""

    def point_sets(self, channel: Channel, replica: int | None = None) -> Iterator[np.ndarray]:
        """The points (N, n_white) of each replica, or of one of them, where the rule is random."""
        return iter(())


def component_channels(rule: Rule, model: Model, overlaps: Overlaps) -> Iterator[tuple[float, Rule, Channel]]:
    """The share, the rule and the channel of every component."""
    for number, (share, sources, given) in enumerate(model.components):
        own = overlaps if given is model else select_sources(overlaps, sources)
        yield share, rule.for_component(number, share), Channel(given, own)


def average_channels(rule: Rule, model: Model, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
    """The moments of each replica, over all components of a model."""
    parts = [part.moments(channel, squares) for _, part, channel in component_channels(rule, model, overlaps)]
    return [sum_over_components(model.components, list(replica)) for replica in zip(*parts, strict=True)]


def work_of(rule: Rule, model: Model) -> float:
    """About how many proximal problems one average over all components solves."""
    numbered = enumerate(model.components)
    return sum(rule.for_component(number, share).work(n_white(given)) for number, (share, _, given) in numbered)
