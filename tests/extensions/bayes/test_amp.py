"""Bayes-optimal message passing on data: comparison with state evolution and closed formulas, and statuses."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare, norm

import gamp_attention as ga

SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.2), n_tokens=1)
LINEAR = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3))
SIGN = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("model", "alpha"),
    [(ga.paper_model(), 0.45), (ga.attention_model(3), 0.25),
     (SIGN, 1.5), (replace(LINEAR, coordinates=SPARSE), 0.6)],
)  # fmt: skip
def test_runs_end_at_the_overlap_of_state_evolution(model, alpha):
    d, n = 600, 3
    predicted = ga.solve_bayes_state_evolution(model, alpha, n_points=512, n_replicas=3)
    runs = [ga.run_bayes_amp(ga.sample(model, d, alpha, seed)) for seed in range(n)]
    assert all(run.residual < 1e-2 for run in runs)
    overlaps = [np.linalg.norm(run.overlap) / np.sqrt(len(run.overlap)) for run in runs]
    size = np.trace(predicted.q) / len(predicted.q)
    assert np.mean(overlaps) == pytest.approx(
        size, abs=0.12 * np.trace(model.coordinates.rho[0]) / model.coordinates.trace[0]
    )
    if model.attention and model.n_tokens == 2:
        assert np.mean([run.free_entropy for run in runs]) == pytest.approx(predicted.free_entropy, abs=0.06)
    for run in runs:  # squared mean plus variance is the second moment of the teacher
        total = (np.sum(run.Q**2) + np.sum(run.variance)) / d
        assert total == pytest.approx(np.trace(predicted.q) + run.variance.sum() / d, abs=0.2)


def test_linear_labels_end_at_the_posterior_mean_of_ridge_regression():
    """GAMP's fixed point is the solution of the normal equations."""
    data = ga.sample(LINEAR, 150, 1.4, seed=1)
    result = ga.run_bayes_amp(data, tol=1e-13, max_iter=3000)
    x = data.tokens[:, 0] / np.sqrt(data.dim)
    ridge = np.linalg.solve(x.T @ x + 0.3**2 * np.eye(150), x.T @ data.labels)
    np.testing.assert_allclose(result.Q, ridge, atol=1e-8)


@pytest.mark.parametrize("model", [LINEAR, SIGN], ids=["linear", "sign"])
def test_true_weights_have_uniform_ranks_in_their_posterior_marginals(model):
    """Simulation-based calibration; marginals with 1.5 times or 1/1.5 of the variance do not pass.

    Of the 80 weights of a repetition, 10 are used, because more are correlated.
    """
    deviations = []
    for seed in range(150):
        data = ga.sample(model, 80, 1.5, seed=seed)
        run = ga.run_bayes_amp(data, tol=1e-3)
        deviations.append(((data.Q_star - run.Q) / np.sqrt(run.variance))[::8, 0])

    def p_value(factor):
        ranks = norm.cdf(np.ravel(deviations) / np.sqrt(factor))
        return chisquare(np.histogram(ranks, bins=10, range=(0, 1))[0]).pvalue

    assert p_value(1.0) > 1e-2
    assert max(p_value(1.5), p_value(1 / 1.5)) < 1e-6


def test_starts_end_at_the_same_weights_up_to_a_sign():
    data = ga.sample(ga.paper_model(), 400, 0.6, seed=2)
    spectral, informed = (ga.run_bayes_amp(data, init, tol=1e-8) for init in ("spectral", "informed"))
    runs = [ga.run_bayes_amp(data, "random", seed=seed, tol=1e-8) for seed in range(3)]
    several = max(runs, key=lambda run: run.free_entropy)
    for run in (spectral, several):
        sign = np.sign(np.sum(run.Q * informed.Q))
        np.testing.assert_allclose(sign * run.Q, informed.Q, atol=2e-4)
    np.testing.assert_allclose(informed.Q, data.Q_star, atol=1e-3)


def test_positions_and_student_do_not_matter():
    data = ga.sample(ga.paper_model(), 200, 0.6, seed=3)
    moved = ga.Dataset(data.tokens, data.outputs, 5 * data.positions, lam=3.0, rank=2)
    result = ga.run_bayes_amp(data)
    again = ga.run_bayes_amp(moved, model=data.model)
    sign = np.sign(np.sum(result.Q * again.Q))
    np.testing.assert_allclose(sign * again.Q, result.Q, atol=1e-3)
    assert np.isnan(again.overlap).all()


def test_a_run_without_a_signal_has_status_lost():
    data = ga.sample(ga.paper_model(), 300, 0.05, seed=0)
    result = ga.run_bayes_amp(data, "random")
    assert result.status is ga.Status.LOST
    assert "no signal" in result.message
    assert np.abs(result.Q).max() < 1e-2
    np.testing.assert_allclose(result.variance, 1, atol=0.3)
    with pytest.raises(ga.ConvergenceError, match="no signal"):
        ga.run_bayes_amp(data, "random", raise_on_failure=True)


BAD = {
    "unknown name": (lambda d: ga.run_bayes_amp(d, "semantic"), "init"),
    "step of zero": (lambda d: ga.run_bayes_amp(d, damping=0.0), "damping"),
    "model of labels": (lambda d: ga.run_bayes_amp(d, model=LINEAR), "model"),
    "arrays without a model": (
        lambda d: ga.run_bayes_amp(ga.Dataset(d.tokens, d.outputs, d.positions)),
        "model: needs a model of teacher and noise",
    ),
    "weights of another shape": (lambda d: ga.run_bayes_amp(d, np.ones((3, 1))), "init"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_raise_named_errors(name):
    call, words = BAD[name]
    data = ga.sample(ga.paper_model(), 20, 1.0, seed=0)
    with pytest.raises((ValueError, TypeError), match=words):
        call(data)
