"""The overlap map is a pure function: neither earlier evaluations nor their order change a bit of its values."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.units import Packing
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule
from gamp_attention.theory.rules.sobol import SobolRule
from tests.conftest import make_overlaps

TWO_TOKENS = make_overlaps(0.05, 0.2, 0.02, 14.0)
ONE = np.tile(np.eye(2), (2, 1, 1))
TWO_COLUMNS = ga.Overlaps(0.05 * ONE, np.zeros((2, 2)), 0.03 * ONE, 20.0 * ONE)
MAPS = {
    "split": (OverlapMap(ga.paper_model(), 1.5, PanelRule(level=0)), TWO_TOKENS),
    "random": (OverlapMap(ga.paper_model(), 1.5, SobolRule(256, 2)), TWO_TOKENS),
    "rare minima": (OverlapMap(ga.attention_model(2, 2, 2), 2.0, SobolRule(4096, 2)), TWO_COLUMNS),
}


def make_nearby(at, number):
    """Return overlaps that are different for each number; more of them than the map stores averages."""
    return replace(at, q=at.q * (1 + 0.02 * number), V=at.V * (1 - 0.01 * number))


def evaluate(F, order, at):
    """Return the images of nearby overlaps, evaluated twice in a given order, by the number of the overlaps."""
    images = {}
    for number in [*order, *order]:
        image, samples = F.images(make_nearby(at, number), squares=number % 2 == 1)
        arrays = [*F(make_nearby(at, number)).arrays().values(), image.hats.square, *(each.hats.V for each in samples)]
        bits = [array.tobytes() for array in arrays]
        assert images.setdefault(number, bits) == bits
    return images


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("name", MAPS)
def test_values_do_not_depend_on_the_order_of_evaluations(name, chosen):
    F, at = MAPS[name]
    if chosen:
        F = F.with_choices_at(at)
    numbers = list(range(OverlapMap.settings.memory + 2)) if name != "rare minima" else [0, 1, 2]
    forwards = evaluate(F, numbers, at)
    F.linearize(Packing.of(F.model, at), at)
    assert evaluate(F, numbers[::-1], at) == forwards
    # with an empty memory
    assert evaluate(replace(F, _memory={}), numbers, at) == forwards
