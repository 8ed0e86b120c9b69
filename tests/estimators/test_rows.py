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
    """Squared near zero, absolute far from it."""

    convex = True

    def value(self, p, z):
        distance = abs(z[0, 0] - p[0])
        return 0.5 * distance**2 if distance < 1 else distance - 0.5


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("columns", [0, slice(3)])
def test_squared_loss_is_ridge_regression(columns, fit_intercept):
    y = FIELDS[:, columns]
    found = ga.GampRegressor(lam=0.3, fit_intercept=fit_intercept).fit(X, y)
    known = Ridge(alpha=0.3 * D, fit_intercept=fit_intercept).fit(X, y)
    assert found.coef_.shape == known.coef_.shape
    assert np.allclose(found.coef_, known.coef_, atol=1e-8)
    assert np.allclose(found.intercept_, known.intercept_, atol=1e-8)
    assert np.allclose(found.predict(X), known.predict(X))
    assert found.score(X, y) == pytest.approx(known.score(X, y))


def test_the_elastic_net_is_scikit_learns():
    """There the loss is divided by n, and penalties are of the coefficients Q/√d."""
    lam, l1 = 0.1, 1.0
    found = ga.GampRegressor(penalty=ga.ElasticNet(lam, l1)).fit(X, FIELDS[:, 0])
    smooth, kink = lam * D / N, l1 * np.sqrt(D) / N
    known = ElasticNet(alpha=smooth + kink, l1_ratio=kink / (smooth + kink), tol=1e-12, max_iter=100_000)
    known.fit(X, FIELDS[:, 0])
    assert 0 < np.count_nonzero(found.coef_ == 0) < D
    assert np.allclose(found.coef_, known.coef_, atol=1e-7)
    assert found.intercept_ == pytest.approx(known.intercept_)


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_logistic_regression(classes):
    y = np.array(["a", "b", "c"])[FIELDS[:, :classes].argmax(axis=1)]
    found = ga.GampClassifier(lam=0.1, fit_intercept=False).fit(X, y)
    known = LogisticRegression(C=1 / (0.1 * D), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(X, y)
    assert found.classes_.tolist() == known.classes_.tolist()
    assert np.allclose(found.coef_, known.coef_, atol=1e-5)
    assert np.allclose(found.predict_proba(X), known.predict_proba(X), atol=1e-5)
    assert np.allclose(found.decision_function(X), known.decision_function(X), atol=1e-5)
    assert found.score(X, y) == known.score(X, y)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("lam", [0.05, 10.0])
def test_intercepts_of_classes_have_no_penalty(classes, lam):
    """An unbalanced choice: the last class has few rows."""
    y = (FIELDS[:, :classes] - np.array([0.0] * (classes - 1) + [4.0])).argmax(axis=1)
    found = ga.GampClassifier(lam=lam, tol=1e-10).fit(X, y)
    known = LogisticRegression(C=1 / (lam * D), solver="newton-cholesky", tol=1e-12, max_iter=10_000).fit(X, y)
    assert np.allclose(found.coef_, known.coef_, rtol=0, atol=1e-6)
    assert np.allclose(found.intercept_, known.intercept_, rtol=0, atol=1e-6)
    assert np.allclose(found.predict_proba(X).mean(axis=0), np.bincount(y) / N, rtol=0, atol=1e-8)


def test_rare_classes_have_their_base_rate():
    x, y = load_diabetes().data, np.zeros(442, dtype=int)
    y[RNG.choice(442, 17, replace=False)] = 1
    for lam in (0.1, 10.0, 1e4):
        assert ga.GampClassifier(lam=lam).fit(x, y).predict_proba(x)[:, 1].mean() == pytest.approx(17 / 442, rel=1e-6)


def test_a_registered_loss_and_its_intercept():
    y = FIELDS[:, 0].copy()
    y[:6] += 100.0
    for penalty, pull in ((ga.Ridge(0.1), 0.0), (ga.ElasticNet(0.1, 1.0), 1.0)):
        found = ga.GampRegressor(penalty=penalty, loss=Huber()).fit(X, y)
        slope = np.clip(found.predict(X) - y, -1, 1)
        assert slope.sum() == pytest.approx(0, abs=1e-5)
        rest = (X - X.mean(axis=0)).T @ slope + 0.1 * D * found.coef_ + pull * np.sqrt(D) * np.sign(found.coef_)
        held = found.coef_ == 0
        assert np.allclose(rest[~held], 0, atol=1e-4)
        assert (np.abs(rest[held]) <= pull * np.sqrt(D)).all()
        assert held.any() == (pull > 0)
    found, squared = ga.GampRegressor(lam=0.1, loss=Huber()).fit(X, y), ga.GampRegressor(lam=0.1).fit(X, y)
    error, other = (np.linalg.norm(each.coef_ - W[:, 0]) for each in (found, squared))
    assert error < 0.3 * other


def test_without_a_penalty_they_are_least_squares_and_maximum_likelihood():
    found, known = ga.GampRegressor(lam=0).fit(X, FIELDS[:, 0]), LinearRegression().fit(X, FIELDS[:, 0])
    assert found.result_.converged
    assert np.allclose(found.coef_, known.coef_, atol=1e-9)
    assert found.intercept_ == pytest.approx(known.intercept_)
    noisy = FIELDS + 8 * RNG.standard_normal(FIELDS.shape)
    for y in (noisy[:, 0] > 0, noisy.argmax(axis=1)):
        model = ga.GampClassifier(lam=0).fit(X[:, :8], y)
        likely = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000).fit(X[:, :8], y)
        assert model.result_.converged
        assert np.allclose(model.predict_proba(X[:, :8]), likely.predict_proba(X[:, :8]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1e8, 1e-8])
def test_a_column_of_another_size_changes_nothing_else(size):
    """scikit-learn has the same answer in columns of size one, with the penalty of the original columns."""
    moved = X.copy()
    moved[:, 3] *= size
    y = FIELDS[:, 0]
    found, known = ga.GampRegressor(lam=0.1).fit(moved, y), Ridge(alpha=0.1 * D, solver="svd").fit(moved, y)
    assert found.result_.converged
    assert np.allclose(found.coef_ * moved.std(axis=0), known.coef_ * moved.std(axis=0), rtol=0, atol=1e-6)
    assert np.allclose(found.predict(moved), known.predict(moved), atol=1e-6)
    classes = y > 0
    model = ga.GampClassifier(lam=0.1).fit(moved, classes)
    assert model.result_.converged
    wrong = model.predict_proba(moved)[:, 1] - classes
    units = moved.std(axis=0)
    assert np.allclose(((moved - moved.mean(axis=0)).T @ wrong + 0.1 * D * model.coef_[0]) / units, 0, atol=1e-6)
    scaled = np.delete(X, 3, axis=1) if size < 1 else moved / np.where(np.arange(D) == 3, 1e3, 1.0)
    if size < 1:  # such a column has no weight at this λ
        likely = LogisticRegression(C=1 / (0.1 * D), solver="newton-cholesky", tol=1e-12).fit(scaled, classes)
        assert np.allclose(model.predict_proba(moved), likely.predict_proba(scaled), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "rows", "y", "words"),
    [
        (ga.GampRegressor(lam=0), X[:20], FIELDS[:20, 0], "lam: needs a value above 0 unless there are more samples"),
        (ga.GampRegressor(lam=0), X[:, [0, 1, 1]], FIELDS[:, 0], "lam: needs .* linearly independent"),
        (ga.GampClassifier(lam=0), X, X[:, 0] > 2, "lam: needs a value above 0 for classes that a plane separates"),
        (ga.GampClassifier(lam=0), X, FIELDS.argmax(1), "lam: needs a value above 0 for classes that a plane"),
        (ga.GampRegressor(lam=-1), X, FIELDS[:, 0], "lam: needs"),
    ],
)
def test_data_without_a_minimum_are_refused_without_a_penalty(model, rows, y, words):
    with pytest.raises(ValueError, match=words):
        model.fit(rows, y)


def test_phase_retrieval_finds_the_signal_up_to_its_sign():
    x = RNG.standard_normal((250, D))
    w = RNG.standard_normal(D) / np.sqrt(D)
    found = ga.GampRegressor(lam=1e-4, loss=ga.PhaseRetrievalLoss(), fit_intercept=False).fit(
        x[:200], (x[:200] @ w) ** 2
    )
    cosine = found.coef_ @ w / np.linalg.norm(found.coef_) / np.linalg.norm(w)
    assert abs(cosine) > 0.999
    assert found.score(x[200:], (x[200:] @ w) ** 2) > 0.99
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
def test_bad_arguments_are_refused(kind):
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "estimators need scikit-learn 1.6 or later: pip install 'gamp-attention[sklearn]'\n"
