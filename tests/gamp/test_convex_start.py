"""Newton's method as a start of message passing: minima of convex risks, compared with message passing and others."""

from typing import NamedTuple

import numba
import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from threadpoolctl import threadpool_limits

import gamp_attention as ga
from gamp_attention.data import risk_at, risk_hessian
from gamp_attention.gamp import can_start, convex_start, newton_start
from gamp_attention.losses import PointLoss, WeightedLoss, sample_derivatives
from gamp_attention.penalties import ScaledPenalty

RNG = np.random.default_rng(5)
N, D = 150, 20
X = RNG.standard_normal((N, D)) @ (np.eye(D) + 0.4) * np.linspace(0.1, 4, D) + 3.0
Y = X @ (RNG.standard_normal(D) / np.linspace(0.1, 4, D)) / np.sqrt(D) + RNG.standard_normal(N)
CLASSES = np.digitize(Y, np.quantile(Y, [0.5, 0.8]))
WEIGHTS = RNG.uniform(0.2, 2, N)
LASSO, MIXED = ga.ElasticNet(0.0, 2.0), ga.ElasticNet(0.05, 1.0)

FITS = {
    "ridge": (ga.GampRegressor(lam=0.1), Y),
    "several labels": (ga.GampRegressor(lam=0.1), np.column_stack([Y, X[:, 0] * X[:, 1]])),
    "lasso": (ga.GampRegressor(penalty=LASSO), Y),
    "elastic net": (ga.GampRegressor(penalty=MIXED, fit_intercept=False), Y),
    "logistic": (ga.GampClassifier(lam=0.01), CLASSES > 0),
    "sparse logistic": (ga.GampClassifier(penalty=MIXED), CLASSES > 0),
    "classes": (ga.GampClassifier(lam=0.01), CLASSES),
    "sparse classes": (ga.GampClassifier(penalty=MIXED), CLASSES),
    "no penalty": (ga.GampRegressor(lam=0), Y),
}


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("name", FITS)
def test_message_passing_from_zero_weights_reaches_the_same_fixed_point(name, weights):
    model, y = FITS[name]
    result = model.fit(X, y, weights).result_
    assert result.status is ga.Status.CONVERGED
    assert result.fixed_point
    assert result.is_minimum
    assert result.message.startswith("Newton's method ended after ")
    assert result.n_iter == 0 < model.n_iter_
    assert result.history.gradient_norm[0] <= 1e-8
    data = model.data_
    run = ga.run_gamp(data, np.zeros((data.dim, data.rank)))
    assert run.n_iter + run.n_settle > 5
    assert np.allclose(result.Q, run.Q, rtol=0, atol=1e-5 * np.abs(run.Q).max())
    assert np.allclose(result.train_loss, run.train_loss, rtol=1e-10)
    if run.message_passing is ga.Status.CONVERGED and not run.n_settle:
        assert np.allclose(result.overlaps.V, run.overlaps.V, rtol=1e-4)


@pytest.mark.parametrize(("rows", "columns"), [(N, 8), (40, 60), (60, 300)])
def test_fits_equal_scikit_learn_for_few_and_many_rows(rows, columns):
    """Float32 input, a constant column, an empty column, and correlated columns."""
    x = RNG.standard_normal((rows, columns)).astype(np.float32) + 2
    x[:, 1] = x[:, 0] + np.float32(1e-2) * x[:, 1]
    x[:, 2], x[:, 3] = 7.0, 0.0
    y = x[:, :2].sum(axis=1).astype(float) + RNG.standard_normal(rows)
    exact = x.astype(float)
    fitted = ga.GampRegressor(lam=0.02).fit(x, y)
    assert np.allclose(fitted.coef_, Ridge(alpha=0.02 * columns).fit(exact, y).coef_, rtol=0, atol=1e-8)
    sparse = ga.GampRegressor(penalty=ga.ElasticNet(0.01, 0.5)).fit(x, y)
    smooth, kink = 0.01 * columns / rows, 0.5 * np.sqrt(columns) / rows
    expected = ElasticNet(alpha=smooth + kink, l1_ratio=kink / (smooth + kink), tol=1e-13, max_iter=200_000)
    assert np.allclose(sparse.coef_, expected.fit(exact, y).coef_, rtol=0, atol=1e-6)
    classifier = ga.GampClassifier(lam=0.02).fit(x, y > y.mean())
    reference = LogisticRegression(C=1 / (0.02 * columns), solver="newton-cholesky", tol=1e-12, max_iter=1000)
    assert np.allclose(classifier.coef_, reference.fit(exact, y > y.mean()).coef_, rtol=0, atol=1e-6)
    for model in (fitted, sparse, classifier):
        assert model.result_.n_iter == 0
        assert not model.coef_.ravel()[2:4].any()


def test_steps_without_a_hessian_reach_the_same_minimum(monkeypatch):
    x = RNG.standard_normal((120, 200))
    data = ga.LabelledDataset(x, np.sign(x[:, 0] + 0.5), ga.LogisticLoss(), lam=0.05)
    state, _, n_dense = newton_start(data, 1e-9)
    monkeypatch.setattr(convex_start, "MAX_DENSE", 0)
    monkeypatch.setattr(convex_start, "risk_hessian", None)
    other, _, n_cheap = newton_start(data, 1e-9)
    assert n_dense < n_cheap < 60
    assert np.allclose(state.Q, other.Q, rtol=0, atol=1e-7)
    logistic = minimize(
        lambda q: np.logaddexp(0, -data.labels[:, 0] * (x @ q) / np.sqrt(200)).sum() + 0.025 * q @ q,
        np.zeros(200), method="BFGS", options={"gtol": 1e-7, "maxiter": 5000},
    )  # fmt: skip
    assert np.allclose(state.Q[:, 0], logistic.x, rtol=0, atol=1e-4)


class Cosh(NamedTuple):
    """Loss log cosh(z − p), whose derivatives are computed by differences."""

    convex = True

    def value(self, p, z):
        distance = abs(z[0, 0] - p[0])
        return distance + np.log1p(np.exp(-2 * distance))


ga.register_loss(Cosh)


def test_a_registered_loss_without_derivatives():
    y = Y.copy()
    y[::10] += 30
    fitted = ga.GampRegressor(lam=0.1, loss=Cosh()).fit(X, y)
    assert fitted.result_.n_iter == 0
    slope = np.tanh(fitted.predict(X) - y)
    assert slope.sum() == pytest.approx(0, abs=1e-6)
    assert np.allclose((X - X.mean(axis=0)).T @ slope + 0.1 * D * fitted.coef_, 0, atol=1e-5)


def test_there_is_no_start_if_there_is_no_minimum_or_the_risk_is_not_convex():
    """Without a penalty, weights of separable classes grow without bound."""
    y = np.sign(X[:, 0] - X[:, 0].mean())
    rows = (X - X.mean(axis=0)) / X.std(axis=0)
    bare = ScaledPenalty(ga.Ridge(0.0), np.ones(D), (1e-3, 1.0), np.zeros(D))
    data = ga.LabelledDataset(rows, y, ga.LogisticLoss(), penalty=bare)
    state, _, n_steps = newton_start(data, 1e-8, 5)
    assert n_steps == 5
    assert state is None or risk_at(data, state.Q, "exact").gradient_norm > 1e-8
    assert not can_start(ga.LabelledDataset(rows, y**2, ga.PhaseRetrievalLoss(), lam=0.1))
    sphere = ga.LabelledDataset(rows, y, ga.LogisticLoss(), lam="sphere")
    assert not can_start(sphere)


def test_a_run_without_newton_steps():
    """With tol=0 exactly `max_iter` iterations of message passing are made, and `run_gamp` makes no Newton steps."""
    with pytest.warns(UserWarning, match="limit of 3 iterations"):
        model = ga.GampRegressor(tol=0, max_iter=3).fit(X, Y)
    assert model.result_.n_iter == model.n_iter_ == 3
    assert ga.run_gamp(model.data_, np.zeros((D + 1, 1)), max_iter=4).n_iter == 4


@pytest.mark.parametrize("columns", [50, 400])
def test_the_lowest_eigenvalue_of_a_convex_risk(columns):
    """It is exact for up to 256 weights, and an upper bound for more."""
    x = RNG.standard_normal((800, columns))
    for y, loss in ((x[:, 0] + RNG.standard_normal(800), ga.SquaredLoss()), (np.sign(x[:, 0]), ga.LogisticLoss())):
        data = ga.LabelledDataset(x, y, loss, lam=0.2)
        result = ga.run_gamp(data, newton_start(data, 1e-8)[0])
        z = x @ result.Q[:, 0] / np.sqrt(columns)
        curvature = np.ones(800) if isinstance(loss, ga.SquaredLoss) else 0.25 / np.cosh(z / 2) ** 2
        H = x.T @ (curvature[:, None] * x) / columns + 0.2 * np.eye(columns)
        assert np.allclose(risk_hessian(data, curvature[:, None, None]), H - 0.2 * np.eye(columns))
        lowest = np.linalg.eigvalsh(H)[0]
        assert result.lowest_eigenvalue == pytest.approx(lowest, rel=1e-6 if columns <= 256 else 0.5)
        assert result.lowest_eigenvalue >= lowest * (1 - 1e-9)
        v = result.direction[:, 0]
        assert v @ H @ v == pytest.approx(result.lowest_eigenvalue)


@pytest.mark.parametrize("name", ["squared", "logistic"])
def test_a_model_of_few_weights_is_enough_for_the_lasso(name, monkeypatch):
    """Only weights whose subgradient is not zero enter the Hessian; later weights are added to it."""
    x = np.random.default_rng(1).standard_normal((150, 120))
    y = x[:, :6].sum(axis=1) + np.random.default_rng(2).standard_normal(150)
    loss, labels = (ga.SquaredLoss(), y) if name == "squared" else (ga.LogisticLoss(), np.sign(y))
    units = ScaledPenalty(
        ga.ElasticNet(0.0, 1.5 if name == "squared" else 0.6), np.ones(120), (1e-3, 1.0), np.zeros(120)
    )
    data = ga.LabelledDataset(x, labels, loss, penalty=units)
    sizes, extended = [], []
    hessian, extend = convex_start.risk_hessian, convex_start._Model.extend
    monkeypatch.setattr(convex_start, "risk_hessian", lambda *args: sizes.append(len(hessian(*args))) or hessian(*args))
    monkeypatch.setattr(convex_start._Model, "extend", lambda *args: extended.append(1) or extend(*args))
    state, at, _ = newton_start(data, 1e-9)
    assert at.gradient_norm <= 1e-9
    assert 0 < max(sizes) < 0.7 * 120
    assert extended or name == "logistic"
    monkeypatch.setattr(convex_start, "MOST", 0.0)  # all weights
    other, _, _ = newton_start(data, 1e-9)
    assert sizes[-1] == 120
    assert np.allclose(state.Q, other.Q, rtol=0, atol=1e-7 * np.abs(other.Q).max())
    assert np.array_equal(state.Q == 0, other.Q == 0)


@pytest.mark.parametrize("name", ["ridge", "lasso", "logistic", "sparse classes"])
def test_fits_have_the_same_bits_for_any_number_of_threads(name, monkeypatch):
    model, y = FITS[name]
    x = np.concatenate([X, RNG.standard_normal((N, 80))], axis=1)
    weights = []
    for threads in (1, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        with threadpool_limits(threads):
            weights.append(model.fit(x, y).result_)
    assert np.array_equal(weights[0].Q, weights[1].Q)
    assert weights[0].lowest_eigenvalue == weights[1].lowest_eigenvalue


def test_losses_of_single_fields_equal_compiled_losses():
    """Many samples are computed in numpy, by formulas that are compiled for one sample elsewhere."""
    z, p = 3 * RNG.standard_normal((50, 1, 1)), np.sign(RNG.standard_normal((50, 1)))
    weighted = np.column_stack([p, np.full(50, 0.3)])
    for loss in (ga.SquaredLoss(), ga.LogisticLoss()):
        value, slope, curvature = (part.ravel() for part in sample_derivatives(PointLoss(loss, 1, 1), p, z))
        expected = [loss.value(label, field) for label, field in zip(p, z, strict=True)]
        assert np.allclose(value, expected, rtol=1e-14)
        grad, hess = np.empty(1), np.empty((1, 1))
        for mu in range(50):
            assert np.isclose(loss.derivatives(p[mu], z[mu], grad, hess), value[mu], rtol=1e-14)
            assert np.allclose([grad[0], hess[0, 0]], [slope[mu], curvature[mu]], rtol=1e-13)
        parts = sample_derivatives(WeightedLoss(PointLoss(loss, 1, 1)), weighted, z)
        assert np.allclose(
            np.array([part.ravel() for part in parts]), 0.3 * np.array([value, slope, curvature]), rtol=1e-14
        )
