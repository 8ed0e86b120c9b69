"""Channel of a mixture: averages for given classes of all tokens, weighted by the probabilities of the classes."""

import numpy as np

from gamp_attention.models.model import Component
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.moments import Moments


def restricted(overlaps: Overlaps, sources: np.ndarray) -> Overlaps:
    """Return the overlaps of some of the sources."""
    return Overlaps(**{name: values[sources] for name, values in overlaps.arrays().items()})


def scattered(components: tuple[Component, ...], moments: list[Moments]) -> Moments:
    """Return the moments summed over components into sources, weighted by the probabilities of the components.

    The moments of a component have L tokens, the result has S sources. Eq. :eq:`mixture-conjugates`.
    """
    if len(components) == 1:
        return moments[0]
    pairs = list(zip(components, moments, strict=True))
    S = 1 + max(int(component.sources.max()) for component in components)

    def summed(name: str, axes: int = 1) -> np.ndarray:
        total = np.zeros((S,) * axes + getattr(moments[0], name).shape[axes:])
        for (share, sources, _), each in pairs:
            total[np.ix_(*[sources] * axes)] += share * getattr(each, name)
        return total

    return Moments(
        **{name: summed(name) for name in ("g", "with_noise", "with_teacher", "gg", "response")},
        square=summed("square", axes=2),
        moreau=sum(component.share * each.moreau for component, each in pairs),
        loss=sum(component.share * each.loss for component, each in pairs),
        steepest=max(each.steepest for each in moments),
        doubled=max(each.doubled for each in moments),
    )
