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
