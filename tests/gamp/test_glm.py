"""Generalized linear models: comparison with scikit-learn and closed formulas, and calls of the whole interface."""

import numpy as np
import pytest

import gamp_attention as ga

LAM = 0.1


def draw_rows(n=240, d=40, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.standard_normal(n)


def net(lam, l1, n=240):
    """Return arguments of scikit-learn: mean square / 2 + alpha (l1_ratio |w| + (1 - l1_ratio) w² / 2)."""
    return {"alpha": (lam + l1) / n, "l1_ratio": l1 / (lam + l1), "tol": 1e-14, "max_iter": 100_000}


RIDGE, LOGISTIC = {"alpha": LAM, "tol": 1e-12}, {"C": 1 / LAM, "tol": 1e-10, "max_iter": 1000}
SCIKIT_LEARN = {  # loss, penalty, class of scikit-learn and its arguments
    "ridge": (ga.SquaredLoss(), ga.Ridge(LAM), "Ridge", RIDGE),
    "lasso": (ga.SquaredLoss(), ga.ElasticNet(0.0, 0.1), "ElasticNet", net(0.0, 0.1)),
    "elastic net": (ga.SquaredLoss(), ga.ElasticNet(0.05, 0.1), "ElasticNet", net(0.05, 0.1)),
    "strong lasso": (ga.SquaredLoss(), ga.ElasticNet(0.0, 1.0), "ElasticNet", net(0.0, 1.0)),
    "logistic": (ga.LogisticLoss(), ga.Ridge(LAM), "LogisticRegression", LOGISTIC),
    "multinomial": (ga.MultinomialLoss(), ga.Ridge(LAM), "LogisticRegression", LOGISTIC),
}


@pytest.mark.parametrize("name", SCIKIT_LEARN)
def test_fits_equal_models_of_scikit_learn(name):
    linear_model = pytest.importorskip("sklearn.linear_model")
    loss, penalty, model, options = SCIKIT_LEARN[name]
    tokens, labels = draw_rows()
    labels = {"logistic": np.sign(labels), "multinomial": np.digitize(labels, [-0.4, 0.4])}.get(name, labels)
    data = ga.LabelledDataset(tokens, labels, loss, penalty=penalty, rank=3 if name == "multinomial" else 1)
    result = ga.run_gamp(data, init="random", tol=1e-10)
    assert result.converged
    fitted = getattr(linear_model, model)(fit_intercept=False, **options).fit(tokens / np.sqrt(data.dim), labels)
    wanted = np.atleast_2d(fitted.coef_)
    assert pytest.approx(wanted, abs=1e-6) == result.Q.T
    assert np.array_equal(result.Q.T == 0, wanted == 0)
    assert (0 < np.count_nonzero(wanted == 0) < data.dim) == (not penalty.smooth)


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
