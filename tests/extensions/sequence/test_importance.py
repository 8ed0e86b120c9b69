"""Importance sampling: averages have no bias and less variance; a limit of the work ends a call."""

import numpy as np

import gamp_attention as ga
from docs.examples.two_layers import layers
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, conjugates
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


def test_total_work_ends_a_call():
    channel = two_layer_channel()
    se = ga.solve_state_evolution(channel.model, 3.0, channel.overlaps, rtol=1e-3, max_work=1e4, stability=False)
    assert se.status is ga.Status.INACCURATE
    assert "50000 in total" in se.message
    assert np.isfinite(se.test_error_error)
