"""GampRegressor and GampClassifier in comparison with the models of scikit-learn."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ElasticNet, LinearRegression, LogisticRegression, Ridge

import gamp_attention as ga

RNG = np.random.default_rng(0)
N, D = 120, 30
X = RNG.standard_normal((N, D)) * np.linspace(0.5, 3, D) + 2.0
W = RNG.standard_normal((D, 3)) / np.sqrt(D)
FIELDS = X @ W + 0.5 * RNG.standard_normal((N, 3)) - 1.0


@ga.register_loss
class Huber(NamedTuple):
    """Huber loss: quadratic near zero, linear beyond a distance of one."""

    convex = True

    def value(self, p, z):
        distance = abs(z[0, 0] - p[0])
        return 0.5 * distance**2 if distance < 1 else distance - 0.5


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("columns", [0, slice(3)])
def test_squared_loss_is_ridge_regression(columns, fit_intercept):
    y = FIELDS[:, columns]
    fitted = ga.GampRegressor(lam=0.3, fit_intercept=fit_intercept).fit(X, y)
    expected = Ridge(alpha=0.3 * D, fit_intercept=fit_intercept).fit(X, y)
    assert fitted.coef_.shape == expected.coef_.shape
    assert np.allclose(fitted.coef_, expected.coef_, atol=1e-8)
    assert np.allclose(fitted.intercept_, expected.intercept_, atol=1e-8)
    assert np.allclose(fitted.predict(X), expected.predict(X))
    assert fitted.score(X, y) == pytest.approx(expected.score(X, y))


def test_elastic_net_is_the_elastic_net_of_scikit_learn():
    """scikit-learn divides the loss by n, and penalizes the coefficients Q/√d."""
    lam, l1 = 0.1, 1.0
    fitted = ga.GampRegressor(penalty=ga.ElasticNet(lam, l1)).fit(X, FIELDS[:, 0])
    smooth, kink = lam * D / N, l1 * np.sqrt(D) / N
    expected = ElasticNet(alpha=smooth + kink, l1_ratio=kink / (smooth + kink), tol=1e-12, max_iter=100_000)
    expected.fit(X, FIELDS[:, 0])
    assert 0 < np.count_nonzero(fitted.coef_ == 0) < D
    assert np.allclose(fitted.coef_, expected.coef_, atol=1e-7)
    assert fitted.intercept_ == pytest.approx(expected.intercept_)


@pytest.mark.parametrize("classes", [2, 3])
def test_logarithms_of_probabilities_are_exact_for_very_small_ones(classes):
    y = FIELDS[:, :classes].argmax(axis=1)
    fitted = ga.GampClassifier(lam=0.05).fit(X, y)
    assert np.allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X), rtol=1e-12)
    far = 1e5 * X
    assert (fitted.predict_proba(far) == 0).any()
    logarithms, z = fitted.predict_log_proba(far), fitted.decision_function(far)
    assert np.isfinite(logarithms).all()
    assert np.allclose(logarithms[:, 1] - logarithms[:, 0], z if classes == 2 else z[:, 1] - z[:, 0], rtol=1e-9)


def test_numbers_of_starts_are_checked_also_if_the_loss_is_convex():
    with pytest.raises(ValueError, match="n_starts: needs an integer >= 1, got 0"):
        ga.GampRegressor(n_starts=0).fit(X, FIELDS[:, 0])


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_logistic_regression(classes):
    y = np.array(["a", "b", "c"])[FIELDS[:, :classes].argmax(axis=1)]
    fitted = ga.GampClassifier(lam=0.1, fit_intercept=False).fit(X, y)
    expected = LogisticRegression(C=1 / (0.1 * D), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    assert fitted.classes_.tolist() == expected.classes_.tolist()
    assert np.allclose(fitted.coef_, expected.coef_, atol=1e-5)
    assert np.allclose(fitted.predict_proba(X), expected.predict_proba(X), atol=1e-5)
    assert np.allclose(fitted.decision_function(X), expected.decision_function(X), atol=1e-5)
    assert fitted.score(X, y) == expected.score(X, y)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("lam", [0.05, 10.0])
def test_intercepts_of_classes_have_no_penalty(classes, lam):
    """Classes are unbalanced: the last class has few rows."""
    y = (FIELDS[:, :classes] - np.array([0.0] * (classes - 1) + [4.0])).argmax(axis=1)
    fitted = ga.GampClassifier(lam=lam, tol=1e-10).fit(X, y)
    expected = LogisticRegression(C=1 / (lam * D), solver="newton-cholesky", tol=1e-12, max_iter=10_000).fit(X, y)
    assert np.allclose(fitted.coef_, expected.coef_, rtol=0, atol=1e-6)
    assert np.allclose(fitted.intercept_, expected.intercept_, rtol=0, atol=1e-6)
    assert np.allclose(fitted.predict_proba(X).mean(axis=0), np.bincount(y) / N, rtol=0, atol=1e-8)


def test_rare_classes_have_their_base_rate():
    x, y = load_diabetes().data, np.zeros(442, dtype=int)
    y[RNG.choice(442, 17, replace=False)] = 1
    for lam in (0.1, 10.0, 1e4):
        assert ga.GampClassifier(lam=lam).fit(x, y).predict_proba(x)[:, 1].mean() == pytest.approx(17 / 442, rel=1e-6)


def test_fits_with_a_registered_loss_have_zero_subgradient():
    y = FIELDS[:, 0].copy()
    y[:6] += 100.0
    for penalty, pull in ((ga.Ridge(0.1), 0.0), (ga.ElasticNet(0.1, 1.0), 1.0)):
        fitted = ga.GampRegressor(penalty=penalty, loss=Huber()).fit(X, y)
        slope = np.clip(fitted.predict(X) - y, -1, 1)
        assert slope.sum() == pytest.approx(0, abs=1e-5)
        gradient = (X - X.mean(axis=0)).T @ slope + 0.1 * D * fitted.coef_ + pull * np.sqrt(D) * np.sign(fitted.coef_)
        zero = fitted.coef_ == 0
        assert np.allclose(gradient[~zero], 0, atol=1e-4)
        assert (np.abs(gradient[zero]) <= pull * np.sqrt(D)).all()
        assert zero.any() == (pull > 0)
    fitted, squared = ga.GampRegressor(lam=0.1, loss=Huber()).fit(X, y), ga.GampRegressor(lam=0.1).fit(X, y)
    error, other = (np.linalg.norm(model.coef_ - W[:, 0]) for model in (fitted, squared))
    assert error < 0.3 * other


def test_fits_without_penalty_are_least_squares_and_maximum_likelihood():
    fitted, expected = ga.GampRegressor(lam=0).fit(X, FIELDS[:, 0]), LinearRegression().fit(X, FIELDS[:, 0])
    assert fitted.result_.converged
    assert np.allclose(fitted.coef_, expected.coef_, atol=1e-9)
    assert fitted.intercept_ == pytest.approx(expected.intercept_)
    noisy = FIELDS + 8 * RNG.standard_normal(FIELDS.shape)
    for y in (noisy[:, 0] > 0, noisy.argmax(axis=1)):
        model = ga.GampClassifier(lam=0).fit(X[:, :8], y)
        expected_classifier = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(
            X[:, :8], y
        )
        assert model.result_.converged
        assert np.allclose(
            model.predict_proba(X[:, :8]), expected_classifier.predict_proba(X[:, :8]), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("size", [1e8, 1e-8])
def test_a_column_of_another_size_does_not_affect_other_columns(size):
    """The fit equals the fit of scikit-learn, with the penalty on the coefficients of the original columns."""
    moved = X.copy()
    moved[:, 3] *= size
    y = FIELDS[:, 0]
    fitted, expected = ga.GampRegressor(lam=0.1).fit(moved, y), Ridge(alpha=0.1 * D, solver="svd").fit(moved, y)
    assert fitted.result_.converged
    assert np.allclose(fitted.coef_ * moved.std(axis=0), expected.coef_ * moved.std(axis=0), rtol=0, atol=1e-6)
    assert np.allclose(fitted.predict(moved), expected.predict(moved), atol=1e-6)
    classes = y > 0
    model = ga.GampClassifier(lam=0.1).fit(moved, classes)
    assert model.result_.converged
    wrong = model.predict_proba(moved)[:, 1] - classes
    units = moved.std(axis=0)
    assert np.allclose(((moved - moved.mean(axis=0)).T @ wrong + 0.1 * D * model.coef_[0]) / units, 0, atol=1e-6)
    scaled = np.delete(X, 3, axis=1) if size < 1 else moved / np.where(np.arange(D) == 3, 1e3, 1.0)
    if size < 1:  # the coefficient of a small column is zero at this λ
        expected_classifier = LogisticRegression(C=1 / (0.1 * D), solver="newton-cholesky", tol=1e-12).fit(
            scaled, classes
        )
        assert np.allclose(model.predict_proba(moved), expected_classifier.predict_proba(scaled), rtol=0, atol=1e-6)


def test_large_labels_converge_and_are_trusted():
    """Gradients and their rounding errors are proportional to the labels, and so is the tolerance."""
    y, lam = FIELDS[:, 0], 1e-4
    small = ga.GampRegressor(lam=lam).fit(X, y)
    for size in (1e6, 1e12):
        fitted = ga.GampRegressor(lam=lam).fit(X, size * y)  # a ConvergenceWarning would be an error
        assert fitted.result_.converged
        assert np.allclose(fitted.coef_, size * small.coef_, rtol=1e-8)
        loo, expected = fitted.leave_one_out(), small.leave_one_out()
        assert loo.trusted
        assert loo.test_error == pytest.approx(size**2 * expected.test_error, rel=1e-6)


@pytest.mark.parametrize(("lam", "l1"), [(0.1, 0.0), (0.1, 1.0)])
def test_small_labels_are_fitted_as_accurately(lam, l1):
    """Labels of size 1e-20, such as energies in joules: a fixed tolerance would already accept zero weights."""
    y = FIELDS[:, 0]
    expected = ga.GampRegressor(penalty=ga.ElasticNet(lam, l1)).fit(X, y)
    for size in (1e-6, 1e-20):
        fitted = ga.GampRegressor(penalty=ga.ElasticNet(lam, size * l1)).fit(X, size * y)
        assert fitted.result_.converged
        assert np.allclose(fitted.coef_ / size, expected.coef_, rtol=0, atol=1e-7)
        assert fitted.intercept_ / size == pytest.approx(expected.intercept_)
        assert fitted.leave_one_out().test_error / size**2 == pytest.approx(expected.leave_one_out().test_error)


@pytest.mark.parametrize(
    ("model", "rows", "y", "words"),
    [
        (ga.GampRegressor(lam=0), X[:20], FIELDS[:20, 0], "lam: needs a value above 0 unless there are more samples"),
        (ga.GampRegressor(lam=0), X[:, [0, 1, 1]], FIELDS[:, 0], "lam: needs .* linearly independent"),
        (ga.GampClassifier(lam=0), X, X[:, 0] > 2, "lam: needs a value above 0 for classes that a plane separates"),
        (ga.GampClassifier(lam=0), X, FIELDS.argmax(1), "lam: needs a value above 0 for classes that a plane"),
        (ga.GampRegressor(lam=-1), X, FIELDS[:, 0], "lam: needs"),
        (ga.GampRegressor(), X, 1e-150 * FIELDS[:, 0], "labels: needs sizes of at least 1e-100"),
    ],
)
def test_unsuitable_data_raise_a_named_error(model, rows, y, words):
    with pytest.raises(ValueError, match=words):
        model.fit(rows, y)


def test_phase_retrieval_finds_the_signal_up_to_its_sign():
    x = RNG.standard_normal((250, D))
    w = RNG.standard_normal(D) / np.sqrt(D)
    fitted = ga.GampRegressor(lam=1e-4, loss=ga.PhaseRetrievalLoss(), fit_intercept=False).fit(
        x[:200], (x[:200] @ w) ** 2
    )
    cosine = fitted.coef_ @ w / np.linalg.norm(fitted.coef_) / np.linalg.norm(w)
    assert abs(cosine) > 0.999
    assert fitted.score(x[200:], (x[200:] @ w) ** 2) > 0.99
    given = ga.GampRegressor(lam=1e-4, loss=ga.PhaseRetrievalLoss(), init=np.sqrt(D) * w[:, None], n_starts=1).fit(
        x, (x @ w) ** 2
    )
    assert given.coef_ @ w > 0.99 * (w @ w)
    assert abs(given.intercept_) < 0.02


WRONG = {
    "loss": (ga.GampRegressor(loss="squared"), FIELDS[:, 0], "loss: needs"),
    "intercept": (ga.GampRegressor(fit_intercept=1), FIELDS[:, 0], "fit_intercept: needs"),
    "penalty": (ga.GampClassifier(penalty="l2"), FIELDS[:, 0] > 0, "penalty: needs"),
    "init": (
        ga.GampRegressor(loss=ga.PhaseRetrievalLoss(), init=np.ones((3, 1))),
        FIELDS[:, 0] ** 2,
        "init: needs shape",
    ),
    "one class": (ga.GampClassifier(), np.ones(N), "at least two classes"),
    "continuous": (ga.GampClassifier(), FIELDS[:, 0], "Unknown label type"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_bad_arguments_raise_named_errors(kind):
    estimator, y, words = WRONG[kind]
    with pytest.raises((ValueError, TypeError), match=words):
        estimator.fit(X, y)


def test_without_scikit_learn_the_error_names_the_package_to_install():
    code = """
import sys
sys.modules["sklearn"] = None
import gamp_attention as ga
from gamp_attention import *
assert "GampAttention" in dir(ga) and "GampAttention" not in globals()
try:
    ga.GampAttention
except ImportError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "estimators need scikit-learn 1.6 or later: pip install 'gamp-attention[sklearn]'\n"
