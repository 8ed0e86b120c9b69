"""Importance sampling and searches at a part of the points: averages have no bias and less variance."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.two_layers import layers
from gamp_attention._tools.quadrature import inside_cube
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, conjugates
from gamp_attention.theory.rules.importance import Proposal
from gamp_attention.theory.rules.sobol import SobolRule


def two_layer_channel():
    def diagonal(first, second):
        return np.tile(np.diag([first, second]), (2, 1, 1))

    model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=0.03)
    overlaps = Overlaps(diagonal(0.41, 0.962), np.zeros((2, 2)), diagonal(0.543, 0.98), diagonal(16.08, 0.849))
    return Channel(model, overlaps)


def values_of(rule, channel):
    """Return g gᵀ, V̂ in Stein's form and the test error of each replica, as one row each."""
    tests = [points.mean(channel.errors(points.white)) for points in rule.point_sets(channel)]
    moments = rule.moments(channel)
    hats = [conjugates(channel.model, 3.0, channel.overlaps, average) for average in moments]
    return np.column_stack([[np.concatenate([np.diag(hat.q[0]), np.diag(hat.V[0])]) for hat in hats], tests])


def test_adapted_points_have_the_same_averages_and_less_variance():
    channel = two_layer_channel()
    plain = SobolRule(16384, 16, searched=32)
    before, after = values_of(plain, channel), values_of(plain.adapted_to([channel]), channel)
    error = np.sqrt((before.var(axis=0, ddof=1) + after.var(axis=0, ddof=1)) / 16)
    assert (np.abs(before.mean(axis=0) - after.mean(axis=0)) < 4 * error).all()
    assert np.log(after.std(axis=0) / before.std(axis=0)).mean() < np.log(0.85)


def test_searches_at_a_part_of_the_points_have_no_bias():
    channel = two_layer_channel()
    rule = SobolRule(8192, 8, searched=1).adapted_to([channel])
    every, some = (values_of(replace(rule, searched=n), channel) for n in (1, 32))
    difference = some - every  # of the same points
    error = difference.std(axis=0, ddof=1) / np.sqrt(8)
    assert (np.abs(difference.mean(axis=0)) <= 4 * error + 1e-12).all()
    assert np.abs(difference).max() < 0.05 * np.abs(every).max()


@pytest.mark.parametrize("mixed", [0.0, 0.3, 0.6])
def test_proposal_has_its_density(mixed):
    """Weighted polynomials have Gaussian averages; without weights, the second moment is 1 + 2 β."""
    cube = inside_cube(sobol_points(4096, 2, np.random.default_rng(0)))
    rotation = np.array([[0.8, -0.6], [0.6, 0.8]])
    proposal = Proposal(rotation, np.array([mixed, 0.0]))
    points = proposal.draw(cube, [-np.eye(2)])
    x = points.white @ rotation
    assert (x[:, 0] > 0).all()
    assert (x[:, 1] > 0).mean() == pytest.approx(0.5, abs=1e-3)
    assert np.mean(x[:, 0] ** 2) == pytest.approx(1 + 2 * mixed, abs=5e-3)
    for power, value in ((0, 1.0), (2, 1.0), (4, 3.0)):
        assert points.mean(x[:, 0] ** power) == pytest.approx(value, abs=0.02)
    weights = np.ones(4096) if points.weights is None else points.weights
    assert np.allclose(weights, proposal.weights(points.white))


def test_reflections_leave_the_channel_unchanged():
    channel = two_layer_channel()
    white = np.random.default_rng(1).standard_normal((50, channel.n_white))
    values = channel.integrands(white).sum(axis=0)
    assert len(channel.reflections) == 3
    for reflection in channel.reflections:
        assert np.allclose(reflection @ reflection, np.eye(channel.n_white))
        assert np.allclose(channel.integrands(white @ reflection).sum(axis=0), values, rtol=1e-6)


def test_total_work_ends_a_call():
    channel = two_layer_channel()
    se = ga.solve_state_evolution(channel.model, 3.0, channel.overlaps, rtol=1e-3, max_work=1e4, stability=False)
    assert se.status is ga.Status.INACCURATE
    assert "50000 in total" in se.message
    assert np.isfinite(se.test_error_error)
