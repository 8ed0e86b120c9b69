"""Paths of λ: errors, the best value, and cross-validation."""

from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeCV

import gamp_attention as ga
from gamp_attention._tools.numerics import Stream
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.inference.paths import _fold_errors, _train
from tests.extensions.inference.test_leave_one_out import correlated_rows, ridge_rows

LAMS = [3.0, 0.1, 0.3, 1.0]


@pytest.fixture(scope="module")
def rows():
    x, y = ridge_rows(n=80, d=25)
    return ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=0.5)


@pytest.fixture(scope="module")
def sentences():
    return ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)


def test_the_choice_for_the_ridge_is_scikit_learns(rows):
    path = ga.regularization_path(rows, LAMS, form="hessian", n_starts=1, tol=1e-10)
    known = RidgeCV(alphas=25 * np.array(LAMS), fit_intercept=False, store_cv_results=True)
    known.fit(rows.tokens[:, 0], rows.labels[:, 0])
    assert np.allclose(path.test_error, known.cv_results_.mean(axis=0) / 2, rtol=1e-9)
    assert 25 * path.lam[path.best] == known.alpha_
    assert path.lam.tolist() == LAMS


def test_each_value_equals_a_separate_run(sentences):
    path = ga.regularization_path(sentences, LAMS, tol=1e-8, n_starts=2)
    for lam, result, error in zip(LAMS, path.results, path.test_error, strict=True):
        there = ga.Dataset(sentences.tokens, sentences.outputs, sentences.positions, lam=lam, spectra=sentences.spectra)
        assert result.converged
        assert np.linalg.norm(ga.gradient(there, result.Q)) < 1e-8 * lam * 10 * 1.001
        assert np.isclose(result.train_loss, ga.train_loss(there, result.Q), rtol=1e-10)
        assert np.isclose(ga.leave_one_out(there, result).test_error, error, rtol=1e-6)


def test_the_largest_value_within_one_standard_error_is_reported(rows):
    path = ga.regularization_path(rows, np.geomspace(0.05, 20, 12), form="hessian", n_starts=1)
    beyond = (path.test_error - path.test_error[path.best]) / path.test_error_error[path.best]
    assert ((beyond > 1) & (beyond < 2)).any()  # otherwise two standard errors would give the same value
    assert path.lam[path.best_1se] == path.lam[beyond <= 1].max() > path.lam[path.best]


NOISY = ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.6)


@pytest.mark.slow
def test_paths_with_many_minima_use_folds():
    data, lams = ga.sample(NOISY, d=100, alpha=2.0, seed=0), np.logspace(-3, 0.5, 6)
    path = ga.regularization_path(data, lams, n_starts=4, folds=3)
    assert path.form == "folds"
    assert path.trusted.tolist() == [True] * 6
    assert path.lam[path.best] >= 0.1
    assert "cross-validation" in path.message
    fresh = ga.sampled_test_error(data, path.results[0].Q, n_samples=4000, seed=0)[0]
    loo = ga.leave_one_out(data.replace(lam=lams[0]), path.results[0])
    assert not loo.trusted
    assert loo.test_error < 0.9 * fresh < path.test_error[0]


def test_estimates_that_are_not_trusted_are_increased_before_they_are_compared():
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.2), d=40, alpha=2.0, seed=1)
    path = ga.regularization_path(data, [0.03, 0.1, 0.3], "random", n_starts=1, folds=0)
    assert path.trusted.tolist() == [False, True, True]
    assert path.test_error[0] < path.test_error[1] < 1.25 * path.test_error[0]
    assert path.best == 1
    assert "1 other values have lower errors by estimates that are not reliable" in path.message


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("neighbors", ga.SquaredLoss()),
        ("norms", ga.SquaredLoss()),
        ("independent", ga.LogisticLoss()),
        ("factor", ga.LogisticLoss()),
    ],
)
def test_interpolated_errors_agree_with_complete_estimates(kind, loss):
    """Estimates of most values are interpolated: each is within 3 % of the complete estimate at its value."""
    x, signal, rng = correlated_rows(kind, 420, 100, seed=5)
    y = signal + 0.6 * rng.normal(size=420)
    y = y if isinstance(loss, ga.SquaredLoss) else np.where(y > 0, 1.0, -1.0)
    data, lams = ga.LabelledDataset(x, y, loss), np.geomspace(1e-3, 30, 16)
    path = ga.regularization_path(data, lams, init="random", n_starts=1)
    complete = [ga.leave_one_out(data.replace(lam=lam), end) for lam, end in zip(lams, path.results, strict=True)]
    errors = np.array([estimate.test_error for estimate in complete])
    assert np.allclose(path.test_error[path.trusted], errors[path.trusted], rtol=0.03)
    assert path.trusted.sum() >= 14
    if kind == "independent":
        assert np.count_nonzero(path.test_error != errors) >= 4
    assert np.isclose(path.test_error[path.best], errors[path.best], rtol=1e-6)
    assert errors[path.best] <= 1.005 * errors.min()


def test_bad_paths_are_named(rows):
    for options, error, text in [
        ({"lams": [0.1, 0.1]}, ValueError, "lams: needs distinct values of λ"),
        ({"lams": [-1.0]}, ValueError, "lams: needs distinct values of λ that are not negative"),
        ({"lams": [0.1], "form": "newton"}, ValueError, "form"),
        ({"lams": [0.1], "folds": 1}, ValueError, "folds: needs 0 or at least 2"),
        ({"lams": [0.1], "folds": 81}, ValueError, "folds"),
        ({"lams": [0.1], "tol": 0}, ValueError, "tol: needs a finite number > 0"),
    ]:
        with pytest.raises(error, match=text):
            ga.regularization_path(rows, **options)
    with pytest.raises(ga.ConvergenceError, match="no run has converged") as stopped:
        ga.regularization_path(rows, [0.1, 0.3], n_starts=1, tol=1e-12, max_iter=3)
    assert [each.n_iter for each in stopped.value.result] == [3, 3]


def test_the_covariance_agrees_with_regressions_without_two_samples():
    """(1/n²) Σ Δ_ij Δ_ji of all pairs, from ridge regressions without one or two samples."""
    (x, y), lam, n, d = ridge_rows(n=60, d=40), 0.3, 60, 40
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=lam)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random", tol=1e-10))
    gram = x.T @ x + lam * d * np.eye(d)

    def errors(left_out):
        kept = np.setdiff1d(np.arange(n), left_out)
        w = np.linalg.solve(gram - x[left_out].T @ x[left_out], x[kept].T @ y[kept])
        return 0.5 * (y[left_out] - x[left_out] @ w) ** 2

    alone, changes = np.array([errors([i])[0] for i in range(n)]), np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            changes[[i, j], [j, i]] = errors([i, j]) - alone[[i, j]]
    assert loo.covariance == pytest.approx(np.sum(changes * changes.T) / n**2, rel=0.15)
    assert loo.test_error_error**2 == pytest.approx(loo.errors.var(ddof=1) / n + loo.covariance)


def test_folds_are_trained_without_their_samples(rows):
    start = partial(_train, init="random", n_starts=1, tol=1e-10, max_iter=1000, seed=0)
    with Progress(total=8) as bar:
        errors, spread, converged = _fold_errors(rows, [0.1, 1.0], start, 4, 0, bar)
    assert converged.all()
    assert (spread > errors.std(axis=1, ddof=1) / np.sqrt(80)).all()
    out = np.sort(np.array_split(np.random.default_rng([0, int(Stream.FOLDS)]).permutation(80), 4)[1])
    rest, x, y = np.setdiff1d(np.arange(80), out), rows.tokens[:, 0], rows.labels[:, 0]
    for k, lam in enumerate((0.1, 1.0)):
        model = Ridge(alpha=lam * 25, fit_intercept=False).fit(x[rest], y[rest])
        assert np.allclose(errors[k, out], (y[out] - model.predict(x[out])) ** 2 / 2, rtol=1e-6)


def test_a_path_returns_from_a_jump_to_lower_minima():
    """The weights jump to another minimum at the last value, which is lower at the value before too."""
    data = ga.sample(ga.paper_model(omega=0.3, sigma=0.5, lam=0.01), d=60, alpha=1.0, seed=0)
    lams, before, losses = [0.01, 0.02, 0.04], "positional", []
    for lam in lams:
        before = ga.run_gamp(data.replace(lam=lam), before, tol=1e-6)
        losses.append(before.train_loss)
    path = ga.regularization_path(data, lams, "positional", n_starts=1, tol=1e-6, folds=0)
    assert path.results[1].train_loss < 0.999 * losses[1]
    assert path.results[1].is_minimum
    cosine = np.sum(path.results[1].Q * path.results[2].Q) / np.prod([np.linalg.norm(r.Q) for r in path.results[1:]])
    assert abs(cosine) > 0.9
