"""Runs with default settings converge: cycles are recognized when they begin, and a descent completes the run."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import layer_gradient_norm


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
    data = ga.sample(ga.paper_model(lam=lam, score_noise=s), 150, 1.0, seed=1)
    run_model(data, data.Q_star if start == "teacher" else start)


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
    assert not result.converged
    assert result.residual == result.gradient_norm > 1e-8
    assert result.n_iter == 30
    assert result.n_settle == 0
    assert not result.is_minimum
    assert np.isnan(result.lowest_eigenvalue)
