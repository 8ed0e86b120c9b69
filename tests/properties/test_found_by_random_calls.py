"""Calls that were slow, or raised errors that named no argument, in tests with random arguments."""

import numpy as np
import pytest

import gamp_attention as ga

MASKED = np.ma.masked_array([1.0, 2.0], [True, False])
COARSE = {"rtol": 0.1, "max_work": 1e4, "max_iter": 5, "stability": False}
FIELDS = np.full((3, 2, 1), 0.3)
LOSS = ga.AttentionLoss(ga.DotProductAttention(), n_tokens=2, rank=1)


def test_weights_that_overflow_have_a_status():
    se = ga.solve_state_evolution(ga.paper_model(penalty=ga.Ridge(lam=1e300)), 1.5, **COARSE)
    assert not se.converged
    assert se.message


@pytest.mark.extensions
def test_trajectories_that_overflow_raise():
    with pytest.raises(ValueError, match=r"^model, alpha, damping: needs .* got"):
        ga.trajectory(ga.paper_model(penalty=ga.Ridge(lam=1e300)), 1.5, n_iter=3, n_paths=128, n_replicas=2)
    with pytest.raises(ValueError, match=r"^model, alpha, lr: needs .* such as a smaller lr, .* got"):
        ga.trajectory(ga.paper_model(), 1.5, method=ga.GradientDescent(lr=1e60), n_iter=4, n_paths=128, n_replicas=2)


def test_masked_flags_are_rejected():
    with pytest.raises(TypeError, match=r"student.tied: needs True or False, got masked_array"):
        ga.attention_model(student=ga.DotProductAttention(tied=MASKED))
    with pytest.raises(TypeError, match=r"hold: needs True or False, got masked_array"):
        ga.denoise(LOSS, np.ones((3, 8)), FIELDS, np.ones((2, 1, 1)), start=FIELDS, hold=MASKED)
