"""Validity of the replica-symmetric prediction for weights of several columns."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.fixed_points.observables import column_sums, largest_jump_fraction, validity


def fraction_of(masses, V_hat):
    """Return the fraction that decides, for jump mass and V̂ (L, r) of each token and column."""
    masses, V_hat = (np.einsum("la,ab->lab", values, np.eye(len(values[0]))) for values in (masses, V_hat))
    return largest_jump_fraction(masses, column_sums(V_hat))


def test_jumps_of_a_column_with_small_response_are_not_hidden():
    masses, V_hat = np.array([[-0.5, 0.0], [-0.6, 0.1]]), np.array([[0.5, 90.0], [0.5, 110.0]])
    assert abs(masses.sum() / V_hat.sum()) < 0.01
    assert fraction_of(masses, V_hat) == pytest.approx(-1.1)
    consistent, words = validity(0.5, fraction_of(masses, V_hat))
    assert not consistent
    assert words.startswith("broken: the proximal map jumps (jump mass -110 % of V̂")


@pytest.mark.extensions
@pytest.mark.slow
def test_no_errors_are_stated_of_two_layer_attention_whose_jumps_dominate():
    """Solutions have θ = 0.28 to 0.38 for the first layer, depending on the budget; samples have 0.53."""

    def softmax(scores):
        weights = np.exp(scores - scores.max(axis=1)[:, None])
        return weights / weights.sum(axis=1)[:, None]

    def layers(z):
        second = (np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))) @ z[:, 1]
        return softmax(np.outer(second, second))

    model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=0.01)
    se = ga.solve_state_evolution(model, 2.0, rtol=0.05, max_work=1e5, stability=False)
    assert se.status is ga.Status.INACCURATE
    assert not se.consistent
    assert "replica symmetry" in se.message
    assert np.isinf(se.overlaps_error.theta[:, 0, 0]).all()
