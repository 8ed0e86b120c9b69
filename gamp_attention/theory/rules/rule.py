"""Interface of quadrature rules, and averages over all components of a mixture with any rule.

A rule does not depend on the model: it averages functions of the white noise of one `Channel`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, Moments, n_white, select_sources, sum_over_components
from gamp_attention.theory.models.model import Component, Model


class WorkExceeded(ArithmeticError):
    """Raised if averages need more proximal problems than the limit of work allows."""

    def __init__(self) -> None:
        super().__init__("an average needs more proximal problems than its budget allows")


# averages to first order in the overlaps, of a channel (`ChannelExpansion`) or of all components: `base` are the
# averages at the point of the expansion, `samples` the averages of each replica there, and `at(overlaps)` the averages
# at nearby overlaps, only of equal V unless `includes_V`; if `jumps`, the proximal map jumps and the average of its
# almost-everywhere derivative is not expanded
Expansion = Any


class Rule:
    """Rule for averages over the channel, base class of `PanelRule` and `SobolRule`.

    A rule is immutable. All methods that change its accuracy return another rule.
    """

    name: ClassVar[str]  # name in arguments and results
    deterministic: ClassVar[bool]  # whether levels, not the spread of replicas, estimate errors
    level: int = 0  # level of accuracy; 0 for rules without levels
    unresolved: Any  # largest relative error of averages that a comparison with other levels or replicas may miss
    max_work: float  # maximum number of proximal problems of an average, or of one of its replicas
    n_replicas: int = 1  # number of independent replicas of the averages; 1 for deterministic rules

    @property
    def expands(self) -> bool:
        """True if derivatives of the averages hardly take more time than the averages."""
        return False

    @property
    def initial_tolerance(self) -> float:
        """Residual at which a first solution on this rule is accurate enough to be refined."""
        raise NotImplementedError

    @property
    def tol(self) -> float:
        """Approximate relative error of the averages."""
        return self.initial_tolerance

    def finer(self) -> "Rule | None":
        """Return the next finer rule, or None if there is none."""
        raise NotImplementedError

    def refined_for(self, error_ratio: float) -> "Rule | None":
        """Return a finer rule whose errors are expected to be smaller by the factor `error_ratio`.

        By default the next finer rule, because only random rules have errors of known rate.
        """
        return self.finer()

    def at_level(self, level: int) -> "Rule":
        """Return the rule at another level; self for rules without levels."""
        return self

    def for_search(self) -> "Rule":
        """Return a less accurate rule on which a search of a fixed point takes less time; self if there is none."""
        return self

    def for_stability(self) -> "Rule":
        """Return a rule that is accurate enough for finite differences of the overlap map."""
        return self

    def for_newton(self) -> "Rule":
        """Return a rule that is accurate enough for finite differences of large steps, as for Newton steps."""
        return self

    def for_test_error(self, attention: bool) -> "Rule":
        """Return a rule that is accurate enough for the test error of attention or labels; for random rules only."""
        return self

    def with_subsampled_search(self, often: bool = False) -> "Rule":
        """Return a rule that searches for global minima at few points; self if the rule has no such option.

        If `often`, more points are searched, because the search often finds lower minima.
        """
        return self

    def for_component(self, number: int, probability: float) -> "Rule":
        """Return the rule for a component of a mixture, given the component's index and probability."""
        return self

    def work(self, n_white: int) -> float:
        """Return the approximate number of proximal problems in an average over n_white coordinates."""
        raise NotImplementedError

    def moments(self, channel: Channel, squares: bool = False) -> list[Moments]:
        """Return the averages of each replica; a deterministic rule has one.

        Products of derivatives (`Moments.square`) are accurate only if `squares` is True.
        """
        raise NotImplementedError

    def expansion(self, channel: Channel, squares: bool = False) -> Expansion | None:
        """Return the averages to first order in the overlaps of the channel; None if the rule has no derivatives."""
        return None

    def point_sets(self, channel: Channel, replica: int | None = None) -> Iterator[np.ndarray]:
        """Yield the points (N, n_white) of each replica, or of one of them; nothing for deterministic rules."""
        return iter(())


def component_channels(rule: Rule, model: Model, overlaps: Overlaps) -> Iterator[tuple[float, Rule, Channel]]:
    """Yield the probability, the rule and the channel of every component of a model."""
    for number, (probability, sources, component) in enumerate(model.components):
        channel = Channel(component, select_sources(overlaps, sources))
        yield probability, rule.for_component(number, probability), channel


def average_channels(rule: Rule, model: Model, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
    """Return the moments of each replica, summed over all components of a model."""
    components = [part.moments(channel, squares) for _, part, channel in component_channels(rule, model, overlaps)]
    return [sum_over_components(model.components, list(replica)) for replica in zip(*components, strict=True)]


@dataclass(frozen=True, eq=False)
class ComponentExpansion:
    """Sum of the expansions of all components of a model."""

    components: tuple[Component, ...]
    parts: list[Expansion]
    base: Moments  # the averages at the overlaps of the expansion
    includes_V: bool  # whether the expansions of all components include V
    jumps: bool  # whether the response of a component is not expanded
    samples: list[Moments]  # the averages of each replica

    def at(self, overlaps: Overlaps) -> Moments:
        """Return the averages at nearby overlaps."""
        pairs = zip(self.parts, self.components, strict=True)
        values = [part.at(select_sources(overlaps, component.sources)) for part, component in pairs]
        return sum_over_components(self.components, values)


def expand_channels(rule: Rule, model: Model, overlaps: Overlaps, squares: bool = False) -> ComponentExpansion | None:
    """Return the moments, summed over all components, to first order in the overlaps; None without derivatives."""
    parts: list[Expansion] = []
    for _, part, channel in component_channels(rule, model, overlaps):
        expansion = part.expansion(channel, squares)
        if expansion is None:
            return None
        parts.append(expansion)
    base = sum_over_components(model.components, [part.base for part in parts])
    includes_V, jumps = all(part.includes_V for part in parts), any(part.jumps for part in parts)
    replicas = zip(*(part.samples for part in parts), strict=True)
    samples = [sum_over_components(model.components, list(replica)) for replica in replicas]
    return ComponentExpansion(model.components, parts, base, includes_V, jumps, samples)


def work_of(rule: Rule, model: Model) -> float:
    """Return the approximate number of proximal problems in an average over all components."""
    return sum(
        rule.for_component(number, probability).work(n_white(component))
        for number, (probability, _, component) in enumerate(model.components)
    )
