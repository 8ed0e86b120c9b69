"""Penalties of columns: one λ for each column of Q, also zero and negative, against linear algebra and torch."""

from functools import partial

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import layer_risk

LAMS = [0.5, 0.05]
NO_STRENGTHS = (["cube"], "cube", [[0.1]], [], [float("nan")])


def linear_model(lam):
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), rank=2, lam=lam)


def ridge_solution(data, column, lam):
    """Return the minimizer of ½‖xQ/√d − y‖² + λ‖Q‖²/2 for one column."""
    x = np.asarray(data.tokens)[:, 0] / np.sqrt(data.dim)
    return np.linalg.solve(x.T @ x + lam * np.eye(data.dim), x.T @ data.labels[:, column])


@pytest.mark.parametrize(("lams", "alpha"), [(LAMS, 2.0), ([-0.05, 0.0], 3.0)], ids=["positive", "not positive"])
def test_each_column_has_its_ridge_solution(lams, alpha):
    data = ga.sample(linear_model(lams), d=100, alpha=alpha, seed=0)
    gamp = ga.run_gamp(data, "random", tol=1e-10)
    assert gamp.status.value == "converged"
    assert gamp.is_minimum
    for column, lam in enumerate(lams):
        np.testing.assert_allclose(gamp.Q[:, column], ridge_solution(data, column, lam), atol=1e-8)


def test_state_evolution_of_columns_equals_two_single_problems():
    both = ga.solve_state_evolution(linear_model(LAMS), 2.0, rtol=1e-5, stability=False)
    for column, lam in enumerate(LAMS):
        single = ga.solve_state_evolution(
            ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), lam=lam), 2.0, rtol=1e-5, stability=False
        )
        for name in ("q", "theta", "V"):
            ours, theirs = getattr(both.overlaps, name), getattr(single.overlaps, name)
            np.testing.assert_allclose(ours[0, column, column], theirs[0, 0, 0], rtol=1e-4)


def test_gradient_of_attention_vanishes_in_torch():
    pytest.importorskip("torch")
    data = ga.sample(ga.attention_model(rank=2, teacher_rank=2, lam=[0.02, 0.005]), d=60, alpha=2.0, seed=3)
    gamp = ga.run_gamp(data, "semantic", tol=1e-9)
    assert gamp.converged
    risk, gradient = layer_risk(data, gamp.Q, "exact")
    assert risk / 60 == pytest.approx(gamp.train_loss, rel=1e-9)
    assert np.linalg.norm(gradient) < 1e-8 * np.sqrt(60)
    descent = ga.minimize_risk(data, gamp.Q + 1e-3, method="lbfgs")
    assert descent.train_loss == pytest.approx(gamp.train_loss, rel=1e-6)


def test_different_strengths_leave_no_flat_rotation():
    """With equal λ rotations are flat; with different λ the Hessian is positive along them or Q is a saddle."""
    from gamp_attention.problem.curvature import rotations

    Q = np.random.default_rng(0).standard_normal((30, 3))
    data = ga.sample(ga.attention_model(rank=3, lam=0.01), d=30, alpha=1.0, seed=0)
    counts = [
        len(rotations(data.replace(penalty=ga.ColumnRidge(lams)), Q)) for lams in ([1, 1, 1], [1, 2, 1], [1, 2, 3])
    ]
    assert counts == [3, 1, 0]


def test_zero_and_negative_strengths_have_a_state_evolution():
    """Least squares without penalty: q = 1 + noise²/(α − 1)."""
    se = ga.solve_state_evolution(linear_model([-0.05, 0.0]), 3.0, rtol=1e-4, stability=False)
    assert se.status.value == "converged"
    assert se.overlaps.q[0, 1, 1] == pytest.approx(1 + 0.09 / 2, rel=1e-3)


def test_unbounded_problem_is_no_convergence():
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), lam=[-0.5])
    gamp = ga.run_gamp(ga.sample(model, d=60, alpha=2.0, seed=1), "random", max_iter=200)
    assert not (gamp.converged and gamp.is_minimum)
    se = ga.solve_state_evolution(model, 2.0, rtol=1e-3, max_iter=30, stability=False)
    assert not se.converged
    assert "the risk has no lower bound: λ = -0.5 and the lowest eigenvalue 0.172" in se.message
    assert "raise max_iter" not in se.message


@pytest.mark.extensions
def test_leave_one_out_and_replace():
    data = ga.sample(linear_model(LAMS), d=40, alpha=2.0, seed=4)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random", tol=1e-10))
    others = data.select_rows(np.arange(1, data.n_samples))
    for column, lam in enumerate(LAMS):
        field = data.tokens[0, 0] @ ridge_solution(others, column, lam) / np.sqrt(40)
        assert loo.fields[0, 0, column] == pytest.approx(field, rel=1e-6)
    scaled = data.replace(lam=0.25)
    assert scaled.penalty == ga.ColumnRidge([0.25, 0.025])
    assert scaled.lam == 0.25


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ga.attention_model(rank=2, lam=[0.1]), "lam, penalty: needs one number, or one entry for each of the"),
        (lambda: ga.attention_model(lam=[-0.1]), "lam, penalty: needs no negative λ"),
        (lambda: ga.glm_model(ga.LogisticLoss(), lam=[-0.1]), "lam, penalty: needs no negative λ"),
        *(
            (partial(ga.attention_model, lam=lam), "lam: needs a positive number, or a sequence")
            for lam in NO_STRENGTHS
        ),
        (
            lambda: ga.attention_model(rank=2, lam=[0.1, 0.0], student=ga.DotProductAttention(tied=False)),
            "lam, penalty: needs positive λ for queries and keys",
        ),
    ],
)
def test_bad_strengths(build, message):
    with pytest.raises((TypeError, ValueError)) as raised:
        build()
    assert str(raised.value).startswith(message)


@pytest.mark.extensions
def test_methods_for_one_strength_refuse_penalties_of_columns():
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), lam=[0.1])
    with pytest.raises(ValueError, match="SinglePass"):
        ga.trajectory(model, 2.0, method=ga.SinglePass(), n_iter=2)
    with pytest.raises(ValueError, match="model: needs a ridge penalty with one λ"):
        ga.solve_broken(model, 2.0)
