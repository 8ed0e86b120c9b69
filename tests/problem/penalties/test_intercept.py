"""Unpenalized intercepts, against scikit-learn, linear algebra and torch, and state evolution of models with them."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.models.mixtures import ShiftedTeacher

SHIFT = 0.7


def shifted_model():
    """Return a model of labels u + 0.7 + 0.3 N(0, 1)."""
    labels = ShiftedTeacher(ga.LinearLabels(0.3), np.full((1, 1), SHIFT))
    return ga.glm_model(ga.SquaredLoss(), labels, intercept=True, lam=0.2)


def test_logistic_regression_equals_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 40)) + 0.3
    y = np.sign(x[:, 0] + 1.0 + 0.5 * rng.normal(size=200))
    data = ga.LabelledDataset(x, y, ga.LogisticLoss(), lam=0.1, intercept=True)
    gamp = ga.run_gamp(data, "random")
    theirs = linear_model.LogisticRegression(C=1 / (0.1 * data.dim), tol=1e-12, max_iter=10000).fit(x, y)
    assert gamp.status.value == "converged"
    np.testing.assert_allclose(data.intercepts(gamp.Q), theirs.intercept_, atol=1e-6)
    np.testing.assert_allclose(gamp.Q[:-1, 0] / data.dim**0.5, theirs.coef_[0], atol=1e-6)
    descent = ga.minimize_risk(data, "random", method="lbfgs")
    np.testing.assert_allclose(descent.Q, gamp.Q, atol=1e-5)


@pytest.mark.parametrize("lam", [0.2, [0.5, 0.05]])
def test_squared_loss_equals_centered_regressions(lam):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(120, 30)), rng.normal(size=(120, 2)) + np.array([3.0, -2.0])
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam, rank=2, intercept=True)
    gamp = ga.run_gamp(data, "random", tol=1e-10)
    centered = (x - x.mean(axis=0)) / data.dim**0.5
    for a, strength in enumerate(np.broadcast_to(lam, 2)):
        Q = np.linalg.solve(centered.T @ centered + strength * np.eye(30), centered.T @ y[:, a])
        np.testing.assert_allclose(gamp.Q[:-1, a], Q, atol=1e-7)
        b = y[:, a].mean() - x.mean(axis=0) @ Q / data.dim**0.5
        assert data.intercepts(gamp.Q)[a] == pytest.approx(b, abs=1e-8)


def test_lasso_equals_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(2)
    x = rng.normal(size=(80, 30))
    y = 2 * x[:, 0] + 5 + rng.normal(size=80)
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, 1.0), intercept=True)
    gamp = ga.run_gamp(data, "random", tol=1e-10)
    theirs = linear_model.Lasso(alpha=data.dim**0.5 / 80, tol=1e-12, max_iter=100000).fit(x, y)
    np.testing.assert_allclose(gamp.Q[:-1, 0] / data.dim**0.5, theirs.coef_, atol=1e-6)
    assert data.intercepts(gamp.Q)[0] == pytest.approx(theirs.intercept_, abs=1e-6)
    assert (gamp.Q == 0).sum() > 5


def test_gradient_without_a_penalty_of_the_intercept_equals_torch():
    torch = pytest.importorskip("torch")
    data = ga.sample(shifted_model(), d=40, alpha=2.0, seed=0)
    Q = np.random.default_rng(0).normal(size=(41, 1))
    weights = torch.tensor(Q, requires_grad=True)
    x = np.concatenate([data.tokens[:, 0, :-1], np.ones((80, 1))], axis=1)
    risk = 0.5 * ((torch.tensor(x) @ weights / 41**0.5 - torch.tensor(data.labels)) ** 2).sum()
    risk = risk + 0.1 * (weights[:-1] ** 2).sum()
    risk.backward()
    np.testing.assert_allclose(ga.gradient(data, Q), weights.grad.numpy(), atol=1e-12)
    assert ga.train_loss(data, Q) == pytest.approx(risk.item() / 41, rel=1e-12)


@pytest.mark.extensions
def test_leave_one_out_is_exact_for_the_squared_loss():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(60, 15)), rng.normal(size=60) + 2
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), 0.3, intercept=True)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random", tol=1e-11), refits=0)
    design, penalty = np.column_stack([x / 4, np.ones(60)]), np.diag([0.3] * 15 + [0.0])  # √(15 + 1) = 4
    hat = design @ np.linalg.solve(design.T @ design + penalty, design.T)
    np.testing.assert_allclose(loo.errors, 0.5 * ((y - hat @ y) / (1 - np.diag(hat))) ** 2, rtol=1e-6)


def test_state_evolution_of_least_squares_has_the_intercept_of_the_teacher():
    """With an intercept the problem is equivalent to centered labels: other overlaps do not depend on the shift."""
    with_shift = ga.solve_state_evolution(shifted_model(), 2.0, rtol=1e-4, stability=False)
    plain = ga.solve_state_evolution(
        ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), lam=0.2), 2.0, rtol=1e-4, stability=False
    )
    assert with_shift.converged
    assert with_shift.overlaps.m[0, 0] == pytest.approx(SHIFT, rel=2e-3)
    for name in ("q", "theta", "V"):
        np.testing.assert_allclose(getattr(with_shift.overlaps, name), getattr(plain.overlaps, name), rtol=2e-3)
    assert with_shift.train_loss == pytest.approx(plain.train_loss, rel=2e-3)


@pytest.mark.extensions
def test_a_sequence_model_has_an_intercept_in_each_column():
    model = ga.sequence_model(
        lambda u, xi: np.tanh(u[0, 0] + 0.5) + 0.1 * xi[0], lambda z: np.tanh(z[0, 0]), n_tokens=1, rank=1, n_noise=1,
        lam=0.05, intercept=True,
    )  # fmt: skip
    data = ga.sample(model, d=400, alpha=4.0, seed=0)
    gamp = ga.run_gamp(data, "semantic")
    assert gamp.converged
    assert data.intercepts(gamp.Q)[0] == pytest.approx(0.5, abs=0.1)
    assert data.replace(lam=0.1).intercept
    assert data.replace(penalty=ga.ElasticNet(0.1, 0.1)).intercept


@pytest.mark.extensions
def test_models_without_intercepts_raise_named_errors(named_error):
    named_error(lambda: ga.solve_broken(shifted_model(), 1.0), "replica")
    named_error(lambda: ga.glm_model(ga.SquaredLoss(), intercept=1), "intercept")
