"""The channel of a mixture: averages given the classes of all tokens, weighted by the law of the classes."""

import numpy as np

from gamp_attention.models.model import Component
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Moments


def restricted(overlaps: Overlaps, sources: np.ndarray) -> Overlaps:
    """The overlaps of some sources."""
    return Overlaps(**{name: values[sources] for name, values in overlaps.arrays().items()})


def scattered(components: tuple[Component, ...], moments: list[Moments]) -> Moments:
    """The moments of each component, of L tokens, as sums over the sources weighted by the components' shares.

    Eq. :eq:`mixture-conjugates`.
    """
    if len(components) == 1:
        return moments[0]
    pairs = list(zip(components, moments, strict=True))
    S = 1 + max(int(component.sources.max()) for component in components)

    def summed(name: str) -> np.ndarray:
        total = np.zeros((S, *getattr(moments[0], name).shape[1:]))
        for (share, sources, _), each in pairs:
            total[sources] += share * getattr(each, name)
        return total

    square = np.zeros((S, S, *moments[0].square.shape[2:]))
    for (share, sources, _), each in pairs:
        square[np.ix_(sources, sources)] += share * each.square
    return Moments(
        **{name: summed(name) for name in ("g", "with_noise", "with_teacher", "gg", "response")},
        square=square,
        moreau=sum(component.share * each.moreau for component, each in pairs),
        loss=sum(component.share * each.loss for component, each in pairs),
    )
