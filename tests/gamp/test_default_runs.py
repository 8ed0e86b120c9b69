"""Runs with default settings converge: cycles are recognized when they begin, and a descent completes the run."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import layer_gradient_norm


def draw_noisy_scores(d, alpha, s, lam, seed):
    """Return a dataset of arrays with y = (T + s N(0, 1)) x, and the weights of its teacher."""
    rng = np.random.default_rng(seed)
    clean = ga.sample(ga.paper_model(lam=lam), d, alpha, rng)
    outputs = (clean.targets + s * rng.standard_normal(clean.targets.shape)) @ clean.tokens
    return ga.Dataset(clean.tokens, outputs, clean.positions, lam=lam), clean.Q_star


def run_model(data, start, risk="exact"):
    result = ga.run_gamp(data, start, risk)
    assert result.converged, result.message
    assert result.fixed_point
    assert result.n_iter < 500
    norm = np.linalg.norm(ga.gradient(data, result.Q, risk)) / (data.penalty.strength * np.sqrt(data.dim))
    assert norm < 1.1e-8
    if data.penalty.quadratic:
        assert layer_gradient_norm(data, result.Q, risk) < 1.1e-8
    return result


@pytest.mark.parametrize("d", [60, 130, 300])
@pytest.mark.parametrize("seed", range(3))
def test_small_positional_runs_converge(d, seed):
    run_model(ga.sample(ga.paper_model(), d, 1.5, seed=seed), "positional", "asymptotic")


@pytest.mark.parametrize(("s", "lam"), [(0.3, 0.001), (0.3, 0.03), (0.6, 0.01), (0.6, 0.3)])
@pytest.mark.parametrize("start", ["teacher", "positional", "random"])
def test_runs_with_noisy_scores_converge(s, lam, start):
    data, Q_star = draw_noisy_scores(150, 1.0, s, lam, seed=1)
    run_model(data, Q_star if start == "teacher" else start)


MODELS = {
    "untied keys": ga.attention_model(2, 2, 1, student=ga.DotProductAttention(tied=False)),
    "lasso": ga.paper_model(penalty=ga.ElasticNet(0.0, 0.005)),
    "linear attention": ga.attention_model(student=ga.DotProductAttention(softmax=False)),
}


@pytest.mark.parametrize("name", MODELS)
def test_runs_of_other_models_converge(name):
    run_model(ga.sample(MODELS[name], 120, 1.5, seed=0), "semantic")


def test_a_cycle_is_recognized_when_it_begins():
    """The gradient norm of this run would stay above 1e-2 in any number of iterations."""
    data = ga.sample(MODELS["linear attention"], 120, 1.5, seed=0)
    alone = ga.run_gamp(data, "semantic", max_iter=1000, iteration=ga.IterationOptions(settling=False))
    assert not alone.converged
    assert alone.gradient_norm > 1e-2
    result = run_model(data, "semantic")
    assert result.message_passing is ga.Status.STALLED
    assert result.status is ga.Status.SETTLED
    assert result.n_iter < 250


def test_a_given_bound_ends_the_run_without_settling():
    data = ga.sample(MODELS["linear attention"], 120, 1.5, seed=0)
    result = ga.run_gamp(data, "semantic", max_iter=30)
    assert result.status is ga.Status.MAX_ITER
    assert result.n_iter == 30
    assert result.n_settle == 0
    assert not result.is_minimum
    assert np.isnan(result.lowest_eigenvalue)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "lam", "alpha"), [(0.3, 0.05, 3.0), (0.0, 0.01, 2.0)])
def test_rotated_columns_of_a_start_change_searches_for_global_minima_only(noise, lam, alpha):
    """Global searches begin at fixed points in the coordinates of the fields; other steps commute with rotations."""
    model = ga.attention_model(2, 2, 2, omega=0.2, sigma=0.7, score_noise=noise, lam=lam)
    losses, held = np.empty((8, 3)), np.empty((8, 3))
    for seed in range(8):
        data, Q = ga.sample(model, d=100, alpha=alpha, seed=seed), np.random.default_rng(seed).standard_normal((100, 2))
        for k, angle in enumerate((0.0, 0.5, 1.2)):
            rotated = Q @ [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            losses[seed, k] = ga.run_gamp(data, rotated).train_loss
            options = ga.IterationOptions(hold_after=0)
            held[seed, k] = ga.run_gamp(data, rotated, iteration=options).train_loss
    relative, mean = losses / losses[:, :1] - 1, losses.mean(axis=0)
    assert np.abs(held / held[:, :1] - 1).max() < 1e-9
    assert np.abs(relative).max() < (0.004 if noise else 1e-9)
    assert np.abs(mean / mean[0] - 1).max() < 1e-3
    assert (np.abs(relative).max(axis=1) > 1e-6).sum() <= (4 if noise else 0)
