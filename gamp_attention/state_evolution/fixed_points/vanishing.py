"""Whether weights go to zero: by overlaps so small that the map is linear in them."""

from typing import NamedTuple

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.units import relative_change, weights_fade
from gamp_attention.state_evolution.fixed_points.newton import damped
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap

TINY = 1e-8  # q, in units of the teacher's, that stands for zero
STEPS, SETTLED = 40, 1e-4  # damped steps there at most, and the change under which they end
RUNAWAY = 10.0  # growth at which zero certainly repels
STEADY = 0.7  # of the rate of decay at zero that q has where it goes there, and not to another size


class NearZero(NamedTuple):
    """Overlaps of tiny weights, in the shape that they have as they vanish, and the growth of q in a full step."""

    overlaps: Overlaps
    growth: float


def near_zero(F: OverlapMap, overlaps: Overlaps) -> NearZero:
    """Where damped steps lead from given overlaps while q is held at a tiny size."""
    x, growth = _tiny(F.model, overlaps), np.inf
    for _ in range(STEPS):
        after = F(x)
        growth = float(np.abs(after.q).max() / np.abs(x.q).max())
        new = _tiny(F.model, damped(x, after))
        change = relative_change(x, new)
        x = new
        if change < SETTLED or growth > RUNAWAY:
            break
    return NearZero(x, growth)


def vanishing(F: OverlapMap, overlaps: Overlaps) -> Overlaps | None:
    """Tiny overlaps on the way to zero weights, if that is where damped steps from given overlaps lead."""
    after = F(overlaps)
    if not weights_fade(F.model, overlaps, after):
        return None
    zero = near_zero(F, overlaps)
    rate = np.log(np.abs(after.q).max() / np.abs(overlaps.q).max())
    return zero.overlaps if zero.growth < 1 and rate < STEADY * np.log(zero.growth) else None


def _tiny(model: Model, overlaps: Overlaps) -> Overlaps:
    share = TINY * np.abs(model.coordinates.rho).max() / np.abs(overlaps.q).max()
    return Overlaps(
        q=share * overlaps.q, m=np.sqrt(share) * overlaps.m, theta=np.sqrt(share) * overlaps.theta, V=overlaps.V
    )
