"""Mixtures of tokens at finite d: fixed points are critical points, and runs follow state evolution."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import CLASSES, MEANS, SIGMA, layer_gradient_norm

MEANS_APART = [
    [[0.5, -0.7], [0.3, -0.2]],
    [[-0.5, 0.7], [-0.3, 0.2]],
]  # means along random signs instead of the positions


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


def compute_gaps(model, branch, damping, n_iter, *, seeds=6, d=500, predicted_response=False):
    """Return the largest mean difference of GAMP and the prediction for its instance, for each overlap.

    The unit is four standard errors plus 1/(4√d) of the largest entry.
    """
    pairs = []
    for seed in range(seeds):
        data = ga.sample(model, d, 1.5, seed)
        instance, method = data.instance_model(), ga.MessagePassing(damping)
        path = ga.trajectory(instance, data.alpha, branch, method, n_iter, n_paths=512, n_replicas=2, seed=seed)
        options = ga.IterationOptions(path.V_hat if predicted_response else None)
        run = ga.run_gamp(data, branch, "asymptotic", damping=damping, tol=0, max_iter=n_iter, iteration=options)
        pairs.append((run.history, path))
    excess = {}
    for name in ("q", "m", "theta", "V"):
        gap = np.array([getattr(run, name) - getattr(path, name) for run, path in pairs])
        noise = np.mean([getattr(path.error, name) ** 2 for _, path in pairs], axis=0)
        error = np.sqrt((gap.var(axis=0, ddof=1) + noise) / seeds)
        size = np.abs(np.mean([getattr(path, name) for _, path in pairs], axis=0)).max()
        excess[name] = float((np.abs(gap.mean(axis=0)) / (4 * error + size / np.sqrt(d) / 4 + 1e-12)).max())
    return excess


TRAJECTORIES = {
    "means along the positions": lambda: ga.mixture_model(CLASSES, MEANS),
    "means apart": lambda: ga.mixture_model(CLASSES, MEANS_APART),
    "variances": lambda: ga.mixture_model(CLASSES, MEANS, sigma=SIGMA),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", TRAJECTORIES)
def test_trajectories_follow_state_evolution(name):
    """Every overlap of every source agrees within 4 standard errors over instances plus 1/(4√d) of the largest."""
    assert max(compute_gaps(TRAJECTORIES[name](), "semantic", 0.4, 10).values()) <= 1


def test_trajectories_of_a_teacher_along_the_means_follow_state_evolution(mixture):
    """The response is predicted, because this teacher draws weights along the positions, and the proximal map jumps."""
    assert max(compute_gaps(mixture, "semantic", 0.4, 10, predicted_response=True).values()) <= 1


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


def test_positional_trajectory_follows_state_evolution():
    """The response is predicted, because the empirical response does not contain the jumps of the proximal map."""
    excess = compute_gaps(ga.mixture_model(CLASSES, MEANS), "positional", 0.3, 8, predicted_response=True)
    assert max(excess.values()) <= 1


def test_sweeps_accept_mixtures(tmp_path):
    model = ga.mixture_model([[0.6, 0], [0, 0.4]], [[0.2, -0.2], [0.2, -0.2]])
    axes = {"alpha": 3.0, "branch": "semantic", "method": ["SE", "GAMP", "GD"], "descent": "lbfgs"}
    sweep = ga.sweep(model, tmp_path, **axes, d=100, rtol=1e-2, n_test=50)
    rows = {row["method"]: row for row in sweep.rows}
    assert all(row["converged"] for row in rows.values())
    assert rows["GAMP"]["train_loss"] == pytest.approx(rows["GD"]["train_loss"], abs=1e-9)
    assert np.shape(rows["SE"]["overlaps"]["q"]) == (4, 1, 1)
