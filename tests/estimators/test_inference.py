"""Inference by fitted estimators: leave-one-out errors, paths of λ and intervals of coefficients."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge

import gamp_attention as ga

RNG = np.random.default_rng(2)
N, D = 60, 12
X = RNG.standard_normal((N, D)) @ (np.eye(D) + 0.5 * np.eye(D, k=1)) * np.linspace(0.3, 3, D) + 1.0
BETA = RNG.standard_normal(D) / np.linspace(0.3, 3, D)
Y = X @ BETA + 0.5 * RNG.standard_normal(N) + 3.0
WEIGHTS = RNG.uniform(0.5, 2, N)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("intercept", [True, False])
def test_errors_of_a_ridge_equal_refits_with_the_intercept(weights, intercept):
    model = ga.GampRegressor(lam=0.2, fit_intercept=intercept).fit(X, Y, weights)
    loo = model.leave_one_out(form="hessian")
    errors = []
    for row in range(N):
        others = np.arange(N) != row
        refit = Ridge(alpha=0.2 * D, fit_intercept=intercept)
        refit.fit(X[others], Y[others], sample_weight=None if weights is None else weights[others])
        errors.append(0.5 * (Y[row] - refit.predict(X[row : row + 1])[0]) ** 2)
    assert np.allclose(loo.errors, errors, rtol=1e-6)
    assert np.allclose(0.5 * (Y - loo.fields[:, 0, 0]) ** 2, errors, rtol=1e-6)
    assert loo.test_error == pytest.approx(np.average(errors, weights=weights))
    assert loo.in_training == pytest.approx(np.average(0.5 * (Y - model.predict(X)) ** 2, weights=weights))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("classes", [2, 3])
def test_errors_of_a_classifier_equal_refits(classes):
    y = np.digitize(Y + RNG.standard_normal(N), [3.0, 6.0][: classes - 1])
    model = ga.GampClassifier(lam=5.0).fit(X, y)
    loo, errors = model.leave_one_out(form="hessian"), []
    for row in range(N):
        others = np.arange(N) != row
        refit = LogisticRegression(C=1 / (5.0 * D), solver="newton-cholesky", tol=1e-10).fit(X[others], y[others])
        errors.append(-refit.predict_log_proba(X[row : row + 1])[0, y[row]])
    assert loo.test_error == pytest.approx(np.mean(errors), rel=0.02)
    assert np.corrcoef(loo.errors, errors)[0, 1] > 0.99


def test_a_path_has_the_errors_of_fits_with_each_penalty():
    lams, model = [0.02, 0.2, 2.0, 20.0], ga.GampRegressor(lam=0.7)
    for weights in (None, WEIGHTS):
        path = model.fit(X, Y, weights).regularization_path(lams, form="hessian", tol=1e-8)
        for k, lam in enumerate(lams):
            loo = ga.GampRegressor(lam=lam).fit(X, Y, weights).leave_one_out(form="hessian")
            assert path.test_error[k] == pytest.approx(loo.test_error, rel=1e-4)
    assert path.best in (0, 1)


def test_coefficients_without_the_penalty_are_least_squares_for_correlated_columns():
    debiased = ga.GampRegressor(lam=2.0).fit(X, Y).debias()
    design = np.column_stack([X, np.ones(N)])
    plain, residual = np.linalg.lstsq(design, Y, rcond=None)[:2]
    sizes = np.sqrt(residual[0] / (N - D - 1) * np.diag(np.linalg.inv(design.T @ design)))
    assert debiased.trusted, debiased.message
    assert np.allclose(debiased.weights[:, 0], plain[:D], rtol=1e-5)
    assert np.allclose(debiased.std[:, 0], sizes[:D], rtol=1e-5)
    assert np.allclose(debiased.covariance[:, 0, 0], sizes[:D] ** 2, rtol=1e-5)
    assert debiased.interval(0.9).shape == (D, 1, 2)


def test_intervals_of_independent_columns_contain_the_coefficients():
    inside = []
    for seed in range(4):
        rng = np.random.default_rng([seed, 3])
        x = rng.standard_normal((150, 60)) * np.exp(np.linspace(-2, 2, 60)) + 1.0
        beta = rng.standard_normal(60) / np.exp(np.linspace(-2, 2, 60)) / 8
        model = ga.GampRegressor(lam=0.1).fit(x, x @ beta + 0.4 * rng.standard_normal(150) + 2)
        debiased = model.debias()
        assert debiased.trusted, debiased.message
        inside.append((debiased.interval(0.9)[:, 0, 0] < beta) & (beta < debiased.interval(0.9)[:, 0, 1]))
    assert 0.84 < np.mean(inside) < 0.96  # three standard errors of 240 intervals


@pytest.fixture(scope="module")
def layer():
    data = ga.sample(ga.paper_model(sigma=0.8, omega=0.2), d=60, alpha=4.0, seed=0)
    return data, ga.GampAttention(positions=data.positions, n_starts=4).fit(data.tokens, data.outputs)


def test_a_layer_equals_inference_from_its_data_and_result(layer):
    data, model = layer
    given = ga.Dataset(data.tokens, data.outputs, data.positions)
    assert np.array_equal(model.leave_one_out().errors, ga.leave_one_out(given, model.result_).errors)
    assert np.array_equal(model.debias().weights, ga.debias(given, model.result_).weights)
    lams = [0.003, 0.03, 0.3]
    path, other = model.regularization_path(lams), ga.regularization_path(given, lams, n_starts=4)
    assert np.allclose(path.test_error, other.test_error)


def test_errors_of_standardized_layers_are_in_the_units_of_the_outputs(layer):
    data, _ = layer
    scale, shift = np.linspace(1, 5, 60), np.linspace(-9, 9, 60)
    moved = data.tokens * scale + shift, data.outputs * scale + shift
    model = ga.GampAttention(standardize=True, positions=data.positions * scale, n_starts=2).fit(*moved)
    loo = model.leave_one_out()
    assert loo.in_training == pytest.approx(model.test_error(*moved)[0], rel=1e-6)
    others = np.arange(240) != 7
    refit = ga.GampAttention(standardize=True, positions=data.positions * scale, init=model.Q_, n_starts=1)
    refit.fit(moved[0][others], moved[1][others])
    error = refit.test_error(moved[0][7:8], moved[1][7:8])[0]
    assert loo.errors[7] == pytest.approx(error, rel=0.05)
    assert loo.test_error > loo.in_training


def test_inference_after_pickling_and_errors_without_data(layer):
    _, model = layer
    restored = pickle.loads(pickle.dumps(model))
    assert np.array_equal(restored.leave_one_out().errors, model.leave_one_out().errors)
    rows = pickle.loads(pickle.dumps(ga.GampClassifier().fit(X, Y > 3, WEIGHTS)))
    assert rows.leave_one_out().errors.shape == (N,)
    del rows.data_
    assert rows.predict(X).shape == (N,)
    for estimator in (ga.GampAttention(), ga.GampRegressor(), clone(rows)):
        for call in (estimator.leave_one_out, estimator.debias, lambda: estimator.regularization_path([1.0])):  # noqa: B023
            with pytest.raises(NotFittedError):
                call()


def test_a_path_with_a_checkpoint_needs_a_fixed_seed(tmp_path):
    """A path that is resumed would otherwise draw another seed, and be refused as another run."""
    model, file = ga.GampRegressor(lam=0.2, random_state=None).fit(X, Y), tmp_path / "path.npz"
    with pytest.raises(ValueError, match="random_state: needs an integer if a checkpoint is given, got None"):
        model.regularization_path([0.1, 0.2], checkpoint=file)
    assert not file.exists()
    for _ in range(2):
        assert model.regularization_path([0.1, 0.2], checkpoint=file, seed=3).best in (0, 1)
