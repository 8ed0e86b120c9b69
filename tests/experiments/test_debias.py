"""Debiased weights: intervals of planted instances, units, symmetries, and what they refuse."""

import numpy as np
import pytest
from scipy.stats import kstest, norm

import gamp_attention as ga


@pytest.mark.parametrize("penalty", [ga.Ridge(0.3), ga.ElasticNet(0.0, 0.3)], ids=["ridge", "lasso"])
def test_of_linear_labels_they_are_the_teacher_and_gaussian_noise_of_the_size_they_say(penalty):
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), penalty=penalty)
    scores = []
    for seed in range(3):
        data = ga.sample(model, d=300, alpha=1.5, seed=seed)
        found = ga.debias(data, ga.run_gamp(data, "random"))
        scores.append((found.weights - data.Q_star)[:, 0] / found.std[:, 0])
    scores = np.concatenate(scores)
    assert abs(scores.mean()) < 4 / 30
    assert abs(scores.std() - 1) < 0.1
    assert kstest(scores, norm.cdf).pvalue > 1e-3


def test_of_attention_they_follow_the_teacher_without_the_positions():
    data = ga.sample(ga.paper_model(), d=500, alpha=2.0, seed=1)
    gamp = ga.run_gamp(data)
    found, star = ga.debias(data, gamp), data.Q_star
    kappa = np.sum(found.weights * star) / np.sum(star**2)
    scores = (found.weights - kappa * star) / found.std
    assert abs(scores.std() - 1) < 0.12
    p = data.positions[0]
    assert abs(p @ found.weights[:, 0]) < 4 * found.std[0, 0] * np.linalg.norm(p) + abs(kappa * (p @ star[:, 0]))
    inside = np.mean((found.interval(0.9)[..., 0] < kappa * star) & (kappa * star < found.interval(0.9)[..., 1]))
    assert 0.85 < inside < 0.95


def test_weights_that_are_zero_have_uniform_p_values():
    rng = np.random.default_rng(0)
    x, beta = rng.normal(size=(600, 300)), np.zeros(300)
    beta[:20] = 3.0
    y = x @ beta / np.sqrt(300) + 0.5 * rng.normal(size=600)
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, 0.2))
    found = ga.debias(data, ga.run_gamp(data, "random"))
    p = found.p_values[:, 0]
    assert (p[:20] < 1e-3).all()
    assert kstest(p[20:], "uniform").pvalue > 1e-3
    assert str(found).splitlines()[2].split()[0].rstrip(",") in map(str, range(20))


def test_for_many_samples_they_are_least_squares():
    rng = np.random.default_rng(0)
    x, beta = rng.normal(size=(4000, 20)), rng.normal(size=20)
    y = x @ beta / np.sqrt(20) + 0.3 * rng.normal(size=4000)
    found = ga.debias(data := ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=5.0), ga.run_gamp(data, "random"))
    X = x / np.sqrt(20)
    plain = np.linalg.solve(X.T @ X, X.T @ y)
    sizes = 0.3 * np.sqrt(np.diag(np.linalg.inv(X.T @ X)))
    assert np.abs(found.weights[:, 0] - plain).max() < 0.5 * sizes.max()
    assert np.allclose(found.std[:, 0], sizes, rtol=0.1)


def test_intervals_are_nested_and_a_descent_has_the_same():
    data = ga.sample(ga.paper_model(), d=100, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data)
    found, other = ga.debias(data, gamp), ga.debias(data, ga.minimize_risk(data, gamp.Q, "exact", "lbfgs"))
    assert np.allclose(found.weights, other.weights, rtol=0, atol=1e-3 * found.std.max())
    assert np.allclose(found.std, other.std, rtol=1e-3)
    narrow, wide = found.interval(0.5), found.interval(0.99)
    assert narrow.shape == (100, 1, 2)
    assert (wide[..., 0] < narrow[..., 0]).all()
    assert (narrow[..., 1] < wide[..., 1]).all()
    with pytest.raises(ValueError, match="level: needs a probability below 1"):
        found.interval(1)


def test_two_columns_turn_with_the_weights():
    data = ga.sample(ga.attention_model(2, 2, 2, omega=0.2, sigma=0.7, lam=0.1), d=100, alpha=3.0, seed=0)
    gamp = ga.run_gamp(data)
    found = ga.debias(data, gamp)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    turned = ga.debias(data, ga.minimize_risk(data, gamp.Q @ turn, "exact", "lbfgs", tol=1e-6))
    assert np.allclose(turned.weights, found.weights @ turn, atol=1e-2 * found.std.max())
    assert np.allclose(turned.covariance, turn.T @ found.covariance @ turn, rtol=1e-2, atol=1e-3)


def test_what_cannot_be_is_named():
    data = ga.sample(ga.paper_model(), d=60, alpha=1.5, seed=0)
    with pytest.raises(ValueError, match="gamp: needs weights that the exact risk"):
        ga.debias(data, ga.run_gamp(data, risk="asymptotic"))
    noisy = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.6), d=150, alpha=1.0, seed=0)
    assert not ga.debias(noisy, ga.run_gamp(noisy)).trusted
