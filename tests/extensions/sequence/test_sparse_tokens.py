"""Sparse-token classification: gradient steps, fits at a fixed query, and capacities, against independent equations."""

import numpy as np
import pytest

import gamp_attention as ga
from validation._tools.sparse import Task, build_model, build_readout, draw_features, fit_readout, two_steps
from validation.claims.sparse_tokens import cosines, zero_weights

TASK = Task(4, 1, 0.4, 4.0)
COSINE, NORM = 0.8, 1.2
QUERY = NORM * np.array([COSINE, np.sqrt(1 - COSINE**2)])


@pytest.mark.parametrize("alpha", [0.7, 3.0])
def test_two_gradient_steps_follow_the_closed_form(alpha):
    model = build_model(TASK, 0.1)
    path = ga.trajectory(
        model, alpha, zero_weights(model), ga.GradientDescent(lr=0.5 / alpha), n_iter=2, n_paths=1024, n_replicas=2
    )
    exact = two_steps(TASK, alpha, 0.5)
    assert cosines(path) == pytest.approx(exact[:2], abs=1e-4)
    assert np.sqrt(path.q[2, 0, 0, 0]) == pytest.approx(exact.norm, rel=1e-4)
    assert abs(exact.query - two_steps(TASK, 1.1 * alpha, 0.5).query) > 1e-3
    data = ga.sample(model, 300, alpha, seed=0)
    run = ga.minimize_risk(data, np.zeros((data.dim, 2)), method="gd", lr=0.5 / data.alpha, max_iter=2, tol=0)
    x, y = np.asarray(data.tokens)[:, :, :-1], data.labels[:, 0]
    means = x.mean(axis=1)
    w, b = 0.25 * (y[:, None] * means).mean(axis=0), 0.25 * y.mean()
    h = -y / (1 + np.exp(y * (means @ w + b)))
    centered = x - means[:, None]
    query = -0.5 / 4 * np.einsum("n,nld->d", h, (centered @ w)[..., None] * centered) / len(y)
    np.testing.assert_allclose(run.Q[:-1, 0] / np.sqrt(data.dim), query, rtol=1e-9, atol=1e-12)


def test_fit_of_the_readout_follows_its_equations():
    known = build_readout(TASK, 0.2, QUERY)
    theory = ga.solve_state_evolution(known, 2.0, "random", rtol=1e-2, stability=False)
    exact = fit_readout(draw_features(TASK, COSINE, NORM, 12), 2.0, 0.2)
    assert theory.converged
    assert theory.consistent
    o = theory.overlaps
    assert [o.q[0, 0, 0], o.V[0, 0, 0], theory.train_loss] == pytest.approx([exact.q, exact.V, exact.train], rel=1e-2)
    assert o.theta[0, 0] == pytest.approx(exact.c[:2], abs=1e-2)
    assert o.m[1, 0] == pytest.approx(exact.c[2], abs=3e-2)  # tokens without a signal have the intercept as their mean
    assert theory.test_error == pytest.approx(exact.test, rel=1e-2)


def test_minimum_at_a_fixed_query_equals_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    data = ga.sample(build_readout(TASK, 0.2, QUERY), 60, 4.0, seed=0)
    query = data.Q_star @ QUERY
    assert data.n_sources == 8
    run = ga.run_gamp(data, "random", tol=1e-10)
    assert run.converged
    x, size = np.asarray(data.tokens)[:, :, :-1], np.sqrt(data.dim)
    attention = np.exp(x @ query[:-1] / size)
    pooled = np.einsum("sl,sld->sd", attention / attention.sum(axis=1, keepdims=True), x) / size
    fit = LogisticRegression(C=1 / 0.2, tol=1e-10, max_iter=10_000).fit(pooled, data.labels[:, 0])
    np.testing.assert_allclose(run.Q[:-1, 0], fit.coef_[0], atol=1e-4)
    assert run.Q[-1, 0] / size == pytest.approx(fit.intercept_[0], abs=1e-4)
