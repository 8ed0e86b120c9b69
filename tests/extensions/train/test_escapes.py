"""Escapes from saddles of the risk to lower minima."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.train.saddles import leave_saddle
from gamp_attention.problem.curvature import lowest_curvature
from gamp_attention.problem.risk import risk_at
from tests.conftest import compute_hessian, layer_gradient_norm
from tests.extensions.train.conftest import train_one


@pytest.mark.parametrize("risk", ["exact", "asymptotic"])
def test_a_run_leaves_the_saddle_at_zero_weights(data, risk):
    zeros = np.zeros_like(data.Q_star)
    saddle, result = ga.run_gamp(data, zeros, risk), train_one(data, zeros, risk, escape=True)
    assert saddle.converged
    assert result.converged
    assert result.is_minimum
    assert result.n_escapes >= 1
    assert result.train_loss < saddle.train_loss
    assert layer_gradient_norm(data, result.Q, risk) < 1.1e-8
    assert len(result.history.q) == result.n_iter + 1
    assert np.isnan(result.history.damping).sum() == result.n_escapes
    assert np.linalg.eigvalsh(compute_hessian(data, result.Q, risk))[0] > 0


def test_descent_from_a_saddle_lowers_the_risk_but_not_from_a_minimum(data):
    zeros = np.zeros_like(data.Q_star)
    start = risk_at(data, zeros, "exact")
    Q, loss = leave_saddle(data, "exact", zeros, lowest_curvature(data, start, zeros).direction)
    assert loss == pytest.approx(ga.train_loss(data, Q, "exact"), rel=1e-12)
    assert loss < start.train_loss
    minimum = ga.run_gamp(data, "semantic", "exact")
    Q, loss = leave_saddle(data, "exact", minimum.Q, minimum.direction)
    assert np.array_equal(Q, minimum.Q) or loss < minimum.train_loss  # either no step, or a step to a lower basin


def test_a_run_that_escapes_a_saddle_resumes_from_a_checkpoint(data, tmp_path):
    zeros, path = np.zeros_like(data.Q_star), tmp_path / "run.npz"
    whole = train_one(data, zeros, escape=True)

    def cut(t, state, report):
        if t == 12:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train_one(
            data, zeros, escape=True, checkpoint=ga.Checkpoint(path, 0), iteration=ga.IterationOptions(callback=cut)
        )
    resumed = train_one(data, zeros, escape=True, checkpoint=ga.Checkpoint(path, 0))
    assert np.array_equal(resumed.Q, whole.Q)
    assert np.array_equal(resumed.history.q, whole.history.q)
    assert resumed.n_escapes == whole.n_escapes
    assert resumed.message == whole.message
