"""Searches at a part of the points have no bias; budgets and Ctrl-C end long averages."""

from dataclasses import replace

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
    tests = [channel.errors(points).mean() for points in rule.point_sets(channel)]
    moments = rule.moments(channel)
    hats = [conjugates(channel.model, 3.0, channel.overlaps, average) for average in moments]
    return np.column_stack([[np.concatenate([np.diag(hat.q[0]), np.diag(hat.V[0])]) for hat in hats], tests])


def test_searches_at_a_part_of_the_points_have_no_bias():
    channel = two_layer_channel()
    rule = SobolRule(8192, 8, searched=1)
    every, some = (values_of(replace(rule, searched=n), channel) for n in (1, 32))
    difference = some - every  # of the same points
    error = difference.std(axis=0, ddof=1) / np.sqrt(8)
    assert (np.abs(difference.mean(axis=0)) <= 4 * error + 1e-12).all()
    assert np.abs(difference).max() < 0.05 * np.abs(every).max()


def test_total_work_ends_a_call():
    channel = two_layer_channel()
    se = ga.solve_state_evolution(channel.model, 3.0, channel.overlaps, rtol=1e-3, max_work=1e4, stability=False)
    assert se.status is ga.Status.INACCURATE
    assert "50000 in total" in se.message
    assert np.isfinite(se.test_error_error)
