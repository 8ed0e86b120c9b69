"""Free energy: its derivatives are the equations, and at a fixed point it equals the training loss."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.channel import Channel
from gamp_attention.theory.fixed_points.observables import free_energy, moreau_loss
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule

ALPHA = 1.5


def perturb(family, values, index, step):
    """Return a family of overlaps or hats with one entry changed; for symmetric matrices, with its mirror entry."""
    values = values.copy()
    values[index] += step
    return {family: values}


def list_entries(family, values):
    return [index for index in np.ndindex(values.shape) if family in ("m", "theta") or index[1] >= index[2]]


@pytest.fixture(scope="module", params=["semantic", "positional"])
def point(request, model):
    """Map, fixed point and image of a named branch."""
    se = ga.solve_state_evolution(model, ALPHA, request.param, rtol=1e-5, stability=False)
    F = OverlapMap(model, ALPHA, PanelRule(level=2))
    return F, se, F.images(se.overlaps)[0]


@pytest.mark.slow(keep=1)
def test_three_routes_give_the_training_loss(point):
    F, se, _ = point
    image = F.on(PanelRule(level=3)).images(se.overlaps)[0]  # a rule as accurate as the rule of the solution
    routes = (
        moreau_loss(se.overlaps, image.hats, image.penalty),
        image.hats.loss + image.penalty,
        free_energy(F.model, se.overlaps, image.hats),
    )
    for value in routes:
        assert abs(value - se.train_loss) <= 3 * se.train_loss_error + 1e-4 * se.relative_error * se.train_loss + 1e-10


@pytest.mark.slow(keep=1)
def test_hats_make_the_free_energy_stationary_in_every_overlap(point):
    """∂f/∂(m, q, θ, V), hats fixed, by central differences of the Moreau average: zero at the fixed point."""
    F, se, image = point
    step = 2e-3
    for family, unit in (("m", 0.1), ("q", 0.05), ("theta", 0.1), ("V", 10.0)):
        values = se.overlaps.arrays()[family]
        hat = np.abs(getattr(image.hats, {"m": "m", "q": "V", "theta": "theta", "V": "q"}[family])).max()
        for index in list_entries(family, values):
            ends = [replace(se.overlaps, **perturb(family, values, index, s * step * unit)) for s in (1, -1)]
            averages = [F.rule.moments(Channel(F.model, end))[0].moreau for end in ends]
            hats = [replace(image.hats, moreau=ALPHA * average) for average in averages]
            there = [free_energy(F.model, end, at) for end, at in zip(ends, hats, strict=True)]
            slope = (there[0] - there[1]) / (2 * step * unit)
            assert abs(slope) <= 2e-3 * hat + 2e-6, (family, index, slope, hat)


def test_overlaps_make_the_free_energy_stationary_in_every_hat(point):
    """∂f/∂(m̂, q̂, θ̂, V̂) are the equations for the overlaps, on the positional branch with V̂ in Stein's form."""
    F, se, image = point
    for family in ("m", "q", "theta", "V"):
        values = getattr(image.hats, family)
        overlap = np.abs(se.overlaps.arrays()[{"m": "m", "q": "V", "theta": "theta", "V": "q"}[family]]).max()
        step = 1e-4 * max(np.abs(values).max(), 1e-4)
        for index in list_entries(family, values):
            ends = [replace(image.hats, **perturb(family, values, index, s * step)) for s in (1, -1)]
            there = [free_energy(F.model, se.overlaps, end) for end in ends]
            slope = (there[0] - there[1]) / (2 * step)
            assert abs(slope) <= 1e-4 * overlap + 1e-7, (family, index, slope, overlap)
