"""Generalized linear models: comparison with scikit-learn and closed formulas, and calls of the whole interface."""

import numpy as np
import pytest
from scipy.optimize import brentq

import gamp_attention as ga

LAM = 0.1


def draw_rows(n=240, d=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal(n)


def fit(tokens, labels, loss, lam=LAM, rank=1):
    data = ga.LabelledDataset(tokens, labels, loss, lam, rank=rank)
    result = ga.run_gamp(data, init="random", tol=1e-10)
    assert result.converged
    return data, result


def test_squared_loss_equals_ridge_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    tokens, labels = draw_rows()
    data, result = fit(tokens, labels, ga.SquaredLoss())
    features = tokens / np.sqrt(data.dim)
    wanted = linear_model.Ridge(alpha=LAM, fit_intercept=False, tol=1e-12).fit(features, labels).coef_
    assert result.Q[:, 0] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize(("lam", "l1"), [(0.0, 0.1), (0.05, 0.1), (0.0, 1.0)])
def test_squared_loss_equals_lasso_and_elastic_net_of_scikit_learn(lam, l1):
    linear_model = pytest.importorskip("sklearn.linear_model")
    tokens, labels = draw_rows()
    n, d = tokens.shape
    data = ga.LabelledDataset(tokens, labels, ga.SquaredLoss(), penalty=ga.ElasticNet(lam, l1))
    result = ga.run_gamp(data, init="random", tol=1e-10)
    assert result.converged
    # scikit-learn: mean square / 2 + alpha (l1_ratio |w| + (1 - l1_ratio) w² / 2)
    model = linear_model.ElasticNet(
        alpha=(lam + l1) / n, l1_ratio=l1 / (lam + l1), fit_intercept=False, tol=1e-14, max_iter=100_000
    )
    wanted = model.fit(tokens / np.sqrt(d), labels).coef_
    assert result.Q[:, 0] == pytest.approx(wanted, abs=1e-6)
    assert np.array_equal(result.Q[:, 0] == 0, wanted == 0)
    assert 0 < np.count_nonzero(wanted == 0) < d


def test_logistic_loss_equals_logistic_regression_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    tokens, labels = draw_rows()
    data, result = fit(tokens, np.sign(labels), ga.LogisticLoss())
    model = linear_model.LogisticRegression(C=1 / LAM, fit_intercept=False, tol=1e-10, max_iter=1000)
    wanted = model.fit(tokens / np.sqrt(data.dim), np.sign(labels)).coef_[0]
    assert result.Q[:, 0] == pytest.approx(wanted, abs=1e-6)


def test_multinomial_loss_equals_multinomial_regression_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    tokens, labels = draw_rows()
    classes = np.digitize(labels, [-0.4, 0.4])
    data, result = fit(tokens, classes, ga.MultinomialLoss(), rank=3)
    model = linear_model.LogisticRegression(C=1 / LAM, fit_intercept=False, tol=1e-10, max_iter=1000)
    wanted = model.fit(tokens / np.sqrt(data.dim), classes).coef_
    assert pytest.approx(wanted, abs=1e-6) == result.Q.T


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_ridge_state_evolution_follows_the_marchenko_pastur_law(alpha):
    """V, q and θ of ridge regression with noisy labels equal the values from the resolvent of a Wishart matrix."""
    noise = 0.5
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise), lam=LAM)
    solution = ga.solve_state_evolution(model, alpha, "random", rtol=1e-9, stability=False)
    assert solution.converged
    # V = tr (XᵀX/d + λ)⁻¹/d solves V (λ + α/(1 + V)) = 1
    V = brentq(lambda v: v * (LAM + alpha / (1 + v)) - 1, 1e-12, 1 / LAM, xtol=1e-15)
    derivative = -1 / (1 / V**2 - alpha / (1 + V) ** 2)  # dV/dλ
    theta = 1 - LAM * V
    # q = tr of S (S + λ)⁻² (S + noise²), with S = XᵀX/d
    square = -derivative
    q = 1 - 2 * LAM * V + LAM**2 * square + noise**2 * (V - LAM * square)
    assert solution.overlaps.V[0, 0, 0] == pytest.approx(V, abs=1e-8)
    assert solution.overlaps.theta[0, 0, 0] == pytest.approx(theta, abs=1e-8)
    assert solution.overlaps.q[0, 0, 0] == pytest.approx(q, abs=1e-8)


MODELS = {
    "logistic": (ga.glm_model(ga.LogisticLoss(), lam=LAM), "semantic"),
    "multinomial": (ga.glm_model(ga.MultinomialLoss(), rank=3, lam=LAM), "semantic"),
    "phase retrieval": (ga.glm_model(ga.PhaseRetrievalLoss(), lam=LAM), "semantic"),
    "two sources": (
        ga.glm_model(ga.LogisticLoss(), n_tokens=2, sigma=(1.0, 0.5), tau=(0.3, -0.2), lam=LAM),
        "semantic",
    ),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", MODELS)
def test_gamp_on_glms_agrees_with_state_evolution(name):
    """Three independent sets of samples of one teacher, so that state evolution is solved only once."""
    model, init = MODELS[name]
    whole, gaps = ga.sample(model, d=250, alpha=12.0, seed=0), []
    here = ga.solve_state_evolution(whole.instance_model(), 4.0, init, rtol=1e-2, stability=False)
    assert here.converged
    for rows in np.arange(3000).reshape(3, 1000):
        result = ga.run_gamp(whole.select_rows(rows), init)
        assert result.converged
        assert result.fixed_point
        gaps.append([np.trace(a - b, axis1=-2, axis2=-1).sum() / np.trace(b, axis1=-2, axis2=-1).sum() for a, b in zip(
            (result.overlaps.q, result.overlaps.theta, result.overlaps.V),
            (here.overlaps.q, here.overlaps.theta, here.overlaps.V), strict=True)])  # fmt: skip
    gaps = np.array(gaps)
    allowed = 3 * gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps)) + 0.01
    assert (np.abs(gaps.mean(axis=0)) < allowed).all(), gaps


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_glms_equal_gradients_of_torch(name):
    torch = pytest.importorskip("torch")
    from gamp_attention.descent.torch_risk import TorchRisk

    model, _ = MODELS[name]
    data = ga.sample(model, d=30, alpha=3.0, seed=1)
    Q = np.random.default_rng(2).standard_normal((30, model.rank))
    there = torch.tensor(Q, requires_grad=True)
    TorchRisk(data, "exact", "cpu")(there).backward()
    assert ga.gradient(data, Q) == pytest.approx(there.grad.numpy(), abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((draw_rows()[0], np.zeros(240), ga.LogisticLoss()), "labels: needs -1 and 1"),
        ((draw_rows()[0], np.zeros(239), ga.LogisticLoss()), "labels: needs shape"),
        ((draw_rows()[0], np.ones((240, 2)), ga.SquaredLoss()), "labels: needs shape"),
        (
            (draw_rows()[0], np.ones(240), "logistic"),
            "loss: needs an instance of a loss .*for example gamp_attention.LogisticLoss",
        ),
        ((draw_rows()[0], np.full(240, 5.0), ga.MultinomialLoss()), "rank: needs at least 2 classes"),
    ],
)
def test_errors_describe_wrong_labels(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ga.LabelledDataset(*arguments)
