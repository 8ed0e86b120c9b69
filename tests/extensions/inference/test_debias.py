"""Debiased weights: intervals of planted instances, units, symmetries, and refusals."""

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest, norm, t

import gamp_attention as ga
from validation.speed.several_fields import Errors


@pytest.mark.parametrize("penalty", [ga.Ridge(0.3), ga.ElasticNet(0.0, 0.3)], ids=["ridge", "lasso"])
def test_debiased_weights_are_the_teacher_with_gaussian_noise_of_the_stated_size(penalty):
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), penalty=penalty)
    scores = []
    for seed in range(4):
        data = ga.sample(model, d=200, alpha=1.5, seed=seed)
        found = ga.debias(data, ga.run_gamp(data, "random"))
        scores.append((found.weights - data.Q_star)[:, 0] / found.std[:, 0])
    zero = replace(found, weights=(found.weights - data.Q_star))  # as if the teacher were zero
    assert kstest(zero.p_values[:, 0], "uniform").pvalue > 1e-3
    scores = np.concatenate(scores)
    assert abs(scores.mean()) < 4 / 28
    assert abs(scores.std() - 1) < 0.1
    assert kstest(scores, norm.cdf).pvalue > 1e-3


def test_debiased_weights_of_attention_are_proportional_to_the_teacher():
    data = ga.sample(ga.paper_model(), d=300, alpha=2.0, seed=1)
    found, star = ga.debias(data, ga.run_gamp(data)), data.Q_star
    kappa = np.sum(found.weights * star) / np.sum(star**2)
    scores = (found.weights - kappa * star) / found.std
    assert abs(scores.std() - 1) < 0.12
    inside = np.mean((found.interval(0.9)[..., 0] < kappa * star) & (kappa * star < found.interval(0.9)[..., 1]))
    assert 0.85 < inside < 0.95


def test_fits_that_almost_interpolate_use_the_residuals_of_the_columns():
    """With λ near 0 the noise has n − d = 8 degrees of freedom, too few for independent columns; with λ = 1, 39."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(48, 40))
    y = x @ rng.normal(size=40) / np.sqrt(40) + 0.3 * rng.normal(size=48)
    for lam, form in ((1e-4, "orthogonal"), (1.0, "independent")):
        data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=lam)
        found = ga.debias(data, ga.run_gamp(data, "random"))
        assert (found.form, found.trusted) == (form, True)
        assert (found.dof == 8) == (form == "orthogonal")


def rows(kind, rng, n, d):
    x = rng.standard_normal((n, d))
    if kind == "sizes":
        x *= np.exp(np.linspace(-2, 2, d))
    if kind == "correlated":
        for i in range(1, d):
            x[:, i] = 0.8 * x[:, i - 1] + 0.6 * x[:, i]
    if kind == "norms":
        x *= np.exp(0.8 * rng.standard_normal((n, 1)))
    return x


def fitted(x, y, loss, penalty, **options):
    data = ga.LabelledDataset(x, y, loss, penalty=penalty, **options)
    return ga.debias(data, ga.run_gamp(data, np.zeros((data.dim, 1))))


@pytest.mark.parametrize("kind", ["sizes", "norms"])
def test_debiased_weights_of_independent_columns_solve_the_problem_without_each_column(kind):
    """For the ridge w_i = x_iᵀMy / x_iᵀMx_i, M projecting on the residual of a ridge of the other columns."""
    rng = np.random.default_rng(5)
    n, d, lam = 50, 40, 0.4
    x = rows(kind, rng, n, d)
    y = x @ rng.standard_normal(d) / np.sqrt(d) + rng.standard_normal(n)
    found, X = fitted(x, y, ga.SquaredLoss(), ga.Ridge(lam)), x / np.sqrt(d)
    for i in range(d):
        others = np.delete(X, i, axis=1)
        M = np.eye(n) - others @ np.linalg.solve(others.T @ others + lam * np.eye(d - 1), others.T)
        assert found.weights[i, 0] == pytest.approx(X[:, i] @ M @ y / (X[:, i] @ M @ X[:, i]), rel=1e-5)
    assert found.form == "independent"


@pytest.mark.parametrize("penalty", [ga.Ridge(0.3), ga.ElasticNet(0.1, 0.5)])
def test_debiased_weights_of_correlated_columns_are_least_squares(penalty):
    rng = np.random.default_rng(6)
    x = rows("correlated", rng, 120, 40)
    y = x @ rng.standard_normal(40) / np.sqrt(40) + rng.standard_normal(120)
    found, X = fitted(x, y, ga.SquaredLoss(), penalty), x / np.sqrt(40)
    plain, rest = np.linalg.lstsq(X, y, rcond=None)[:2]
    assert (found.form, found.dof, found.trusted) == ("orthogonal", 80, True)
    assert np.allclose(found.weights[:, 0], plain, atol=1e-6)
    assert np.allclose(found.std[:, 0], np.sqrt(rest[0] / 80 * np.diag(np.linalg.inv(X.T @ X))), rtol=1e-6)
    ends, wide = found.interval(0.9)[:, 0], t.ppf(0.95, 80) * found.std[:, 0]
    assert np.allclose(ends[:, 1] - ends[:, 0], 2 * wide)


def test_debiased_weights_of_correlated_classes_agree_with_regressions_and_refits():
    """The formula by inverses against residuals of regressions, and forces after training the other weights again."""
    rng = np.random.default_rng(7)
    n, d, lam = 200, 12, 0.3
    x = rows("correlated", rng, n, d)
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-x @ rng.standard_normal(d))), 1.0, -1.0)
    data = ga.LabelledDataset(x, y, ga.LogisticLoss(), lam=lam)
    gamp = ga.run_gamp(data, np.zeros((d, 1)), tol=1e-11)
    found, X, Q = ga.debias(data, gamp), x / np.sqrt(d), gamp.Q[:, 0]

    def forces(weights):
        return y / (1 + np.exp(y * (X @ weights)))

    for i in (0, 5, 11):
        others = np.delete(np.arange(d), i)
        v = X[:, i] - X[:, others] @ np.linalg.lstsq(X[:, others], X[:, i], rcond=None)[0]
        moved = []
        for step in (-1e-4, 1e-4):
            weights = Q.copy()
            weights[i] += step
            for _ in range(20):  # Newton steps of the other weights
                g = forces(weights)
                curvature = g * y * (1 - g * y)
                H = X[:, others].T @ (curvature[:, None] * X[:, others]) + lam * np.eye(d - 1)
                weights[others] += np.linalg.solve(H, X[:, others].T @ g - lam * weights[others])
            moved.append(forces(weights))
        slope = -v @ (moved[1] - moved[0]) / 2e-4
        assert found.weights[i, 0] == pytest.approx(Q[i] + v @ forces(Q) / slope, rel=1e-5)


def test_violated_assumptions_are_named():
    rng = np.random.default_rng(9)
    for x, lam, words in (
        (rows("correlated", rng, 50, 60), 0.3, "columns are correlated .*: 50 for 60"),
        (rng.standard_normal((50, 60)) + 1, 0.3, "columns are correlated"),
        (rows("", rng, 60, 60), 1e-4, "effective degrees of freedom"),
    ):
        y = 2 * x @ rng.standard_normal(60) / np.sqrt(60) + 0.2 * rng.standard_normal(len(x))
        found = fitted(x, y, ga.SquaredLoss(), ga.Ridge(lam))
        assert not found.trusted
        assert re.search(f"not to be trusted: .*{words}", found.message), found.message


@pytest.mark.parametrize("kind", ["independent", "correlated", "tokens"])
def test_correlated_tokens_are_named(kind):
    rng = np.random.default_rng(10)
    n, d = 200, 60
    x = 0.8 * np.stack([rows(kind, rng, n, d) for _ in range(2)], axis=1)
    if kind == "tokens":
        x[:, 1] = 0.6 * x[:, 0] + 0.8 * x[:, 1]
    star = rng.standard_normal((d, 1))
    u = x @ star / np.sqrt(d)
    T = np.exp(u @ u.transpose(0, 2, 1))
    data = ga.Dataset(x, T / T.sum(axis=2, keepdims=True) @ x, np.zeros((2, d)), lam=0.02)
    found = ga.debias(data, ga.run_gamp(data, star))
    if kind == "independent":
        assert found.trusted, found.message
    else:
        words = {"correlated": "columns are correlated", "tokens": "tokens of a sample are correlated"}
        assert not found.trusted
        assert words[kind] in found.message


def test_invalid_arguments_of_debias_are_named():
    data = ga.sample(ga.paper_model(), d=60, alpha=1.5, seed=0)
    with pytest.raises(ValueError, match="gamp: needs weights trained on the exact risk"):
        ga.debias(data, ga.run_gamp(data, risk="asymptotic"))
    with pytest.raises(ValueError, match="level: needs a probability below 1"):
        ga.debias(data, ga.run_gamp(data)).interval(1)
    noisy = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.6), d=150, alpha=1.0, seed=0)
    assert not ga.debias(noisy, ga.run_gamp(noisy)).trusted


@pytest.mark.parametrize("rank", [1, 2])
def test_weights_that_kinks_hold_almost_completely_are_not_trusted(rank):
    """The response to a column depends on the few directions that no kink holds."""
    inside, trusted = [], []
    for lam in (1.0, 0.1):
        model = ga.glm_model(Errors(1.0, 1.0), ga.LinearLabels(noise=0.5), rank=rank, lam=lam)
        data = ga.sample(model, d=80, alpha=2.0, seed=1)
        found = ga.debias(data, ga.run_gamp(data, "random"))
        low, high = np.moveaxis(found.interval(0.9), -1, 0)
        inside.append(np.mean((low < data.Q_star) & (data.Q_star < high)))
        trusted.append(found.trusted)
    assert trusted == [True, False]
    assert 0.84 < inside[0] < 0.96
    assert "effective degrees of freedom" in found.message


def test_columns_that_do_not_vary_or_depend_on_each_other():
    rng = np.random.default_rng(12)
    x = rows("correlated", rng, 150, 20)
    y = x @ rng.standard_normal(20) / np.sqrt(20) + 0.5 * rng.standard_normal(150)
    empty = np.column_stack([x[:, :7], np.zeros(150), x[:, 7:]]) * np.sqrt(21 / 20)
    plain, found = (fitted(each, y, ga.SquaredLoss(), ga.Ridge(0.3)) for each in (x, empty))
    assert found.trusted, found.message
    assert np.isinf(found.std[7, 0])
    assert found.p_values[7, 0] == 1
    kept = np.delete(np.arange(21), 7)
    assert np.allclose(found.weights[kept], plain.weights, atol=1e-5)
    assert np.allclose(found.std[kept], plain.std)
    twice = fitted(np.column_stack([x, x[:, :1]]), y, ga.SquaredLoss(), ga.Ridge(0.3))
    assert not twice.trusted
    assert "linearly independent" in twice.message


@pytest.mark.parametrize("loss", [ga.SquaredLoss(), ga.LogisticLoss()], ids=["regression", "classes"])
@pytest.mark.parametrize("kind", ["series", "copies"])
def test_dependent_samples_are_not_trusted(kind, loss):
    """Intervals of 90 % contain the weight in 49 to 63 % of such data; in a random order a series is not dependent."""
    rng = np.random.default_rng(13)
    x, noise = rng.standard_normal((240, 8)), rng.standard_normal(240)
    order = rng.permutation(240)
    if kind == "series":
        for step in range(1, 240):
            x[step], noise[step] = (0.95 * part[step - 1] + 0.3 * part[step] for part in (x, noise))
    else:
        x, noise = np.tile(x[:80], (3, 1))[order], np.tile(noise[:80], 3)[order]
    y = x @ rng.standard_normal(8) / 3 + noise
    labels = y if isinstance(loss, ga.SquaredLoss) else np.sign(y)
    found = fitted(x, labels, loss, ga.Ridge(0.1))
    assert not found.trusted
    assert "samples repeat each other or depend on their neighbors" in found.message
    if kind == "series":
        assert "depend on their neighbors" not in fitted(x[order], labels[order], loss, ga.Ridge(0.1)).message


def test_designs_of_dummy_variables_are_trusted():
    """Entries of dummy variables are not Gaussian, and two samples determine the weight of a rare one."""
    inside, trusted = [], []
    for seed in range(12):
        rng = np.random.default_rng([seed, 14])
        x = (rng.random((200, 16)) < np.repeat([0.02, 0.2], 8)).astype(float)
        star = rng.standard_normal(16)
        y = x @ star + rng.standard_normal(200)
        found = fitted(x, y, ga.SquaredLoss(), ga.Ridge(0.1), intercept=True)
        low, high = found.interval(0.9)[:16, 0].T / np.sqrt(17)
        trusted.append(found.trusted)
        inside.append((low < star) & (star < high))
    assert np.mean(trusted) > 0.9
    assert 0.83 < np.mean(inside) < 0.97  # three and a half standard errors of 192 intervals
