"""Mixtures of tokens at finite d: fixed points are critical points, and runs follow state evolution."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import MEANS, layer_gradient_norm


@pytest.mark.parametrize("risk", ["asymptotic", "exact"])
def test_fixed_points_are_critical_points(mixture, risk):
    data = ga.sample(mixture, 150, 1.5, seed=1)
    result = ga.run_gamp(data, "semantic", risk, max_iter=300)
    assert result.converged
    assert result.fixed_point
    assert layer_gradient_norm(data, result.Q, risk) < 1.1e-8
    assert result.overlaps.m == pytest.approx(data.source_means @ result.Q / np.sqrt(150))
    descent = ga.minimize_risk(data, result.Q + 1e-4, risk, "lbfgs")
    assert np.linalg.norm(descent.Q - result.Q) / np.sqrt(150) < 1e-6


@pytest.mark.slow
def test_fixed_points_at_finite_d_agree_with_state_evolution():
    """They agree within 4 standard errors over instances with different teachers plus 1/(4√d); m is 0 by symmetry."""
    model = ga.mixture_model([[0.6, 0], [0, 0.4]], MEANS, sigma=[[0.45, 0.55], [0.5, 0.4]])
    se = ga.solve_state_evolution(model, 1.5, rtol=1e-2, stability=False)
    assert se.converged
    assert se.consistent
    assert not se.overlaps.m.any()
    runs = [ga.run_gamp(ga.sample(model, 600, 1.5, seed), risk="asymptotic", damping=0.4) for seed in range(6)]
    assert all(run.converged for run in runs)
    for name in ("q", "theta", "V"):
        values, expected = np.array([getattr(run.overlaps, name) for run in runs]), getattr(se.overlaps, name)
        error = values.std(axis=0, ddof=1) / np.sqrt(6) + getattr(se.overlaps_error, name)
        assert (np.abs(values.mean(axis=0) - expected) <= 4 * error + expected / np.sqrt(600) / 4).all(), name
