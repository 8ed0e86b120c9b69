"""GampRegressor and GampClassifier beside scikit-learn's own models."""

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge

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


def test_intercepts_of_classes_have_the_penalty_of_a_weight():
    """An unbalanced choice: more than two thirds of the rows are of the first class."""
    y = FIELDS[:, 0] > np.quantile(FIELDS[:, 0], 0.7)
    lam = 0.1
    found = ga.GampClassifier(lam=lam).fit(X, y)
    b = found.intercept_[0] + found.coef_[0] @ X.mean(axis=0)  # of centred rows
    wrong = 1 / (1 + np.exp(-found.decision_function(X))) - y
    assert wrong.sum() + lam * b == pytest.approx(0, abs=1e-6)
    assert np.allclose((X - X.mean(axis=0)).T @ wrong + lam * D * found.coef_[0], 0, atol=1e-6)
    free = LogisticRegression(C=1 / (lam * D), tol=1e-10, max_iter=10_000).fit(X - X.mean(axis=0), y)
    assert 0 < (free.intercept_[0] - b) / free.intercept_[0] < 0.05


def test_a_registered_loss_and_its_intercept():
    y = FIELDS[:, 0].copy()
    y[:6] += 100.0
    found = ga.GampRegressor(lam=0.1, loss=Huber()).fit(X, y)
    slope = np.clip(found.predict(X) - y, -1, 1)
    b = found.intercept_ + found.coef_ @ X.mean(axis=0)
    assert slope.sum() + 0.1 * b == pytest.approx(0, abs=1e-5)
    assert np.allclose((X - X.mean(axis=0)).T @ slope + 0.1 * D * found.coef_, 0, atol=1e-5)
    squared = ga.GampRegressor(lam=0.1).fit(X, y)
    error, other = (np.linalg.norm(each.coef_ - W[:, 0]) for each in (found, squared))
    assert error < 0.3 * other


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


def test_without_scikit_learn_the_package_works_and_the_error_says_what_to_install():
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
