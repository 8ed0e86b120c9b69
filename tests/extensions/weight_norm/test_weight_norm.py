"""Losses that read the norm of the weights: adversarial training, exact cases, statuses, messages."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import gamp_attention as ga
from docs.examples import own_equations as papers

STRENGTH, LAM = 0.3, 0.1
MODEL = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0), lam=LAM)


def adversarial(z, y, s):
    return np.logaddexp(0, STRENGTH * s - y * z)


def too_strong(z, y, s):
    return np.logaddexp(0, 4.0 * s - y * z)


def risk(data, w, strength=STRENGTH):
    """Return the risk of adversarial training and its gradient, in plain numpy."""
    x, y, root = data.tokens[:, 0] / np.sqrt(data.dim), data.labels[:, 0], np.sqrt(data.dim)
    s = np.linalg.norm(w) / root
    argument = strength * s - y * (x @ w)
    slope = expit(argument)
    value = np.logaddexp(0, argument).sum() + 0.5 * LAM * w @ w
    return value, -x.T @ (slope * y) + slope.sum() * strength * w / (s * data.dim) + LAM * w


@pytest.mark.parametrize("alpha", [0.8, 2.0])
def test_adversarial_training_agrees_with_its_equations(alpha):
    start = {"m": 0.1, "q": 0.5, "V": 1.0}
    own = ga.solve_equations(papers.adversarial, start, alpha=alpha, lam=LAM, strength=STRENGTH)
    se = ga.solve_with_norm(MODEL, alpha, adversarial, convex=True)
    assert se.converged
    assert se.relative_error <= 1e-4
    o, errors = se.overlaps, se.overlaps_error
    for name, value, error in (("m", o.theta, errors.theta), ("q", o.q, errors.q), ("V", o.V, errors.V)):
        assert abs(value.item() - getattr(own, name)) <= error.item() + getattr(own, f"{name}_error")
        assert value.item() == pytest.approx(getattr(own, name), rel=1e-4)


def test_a_square_of_the_norm_adds_to_the_ridge():
    """ℓ = (z − y)²/2 + a s²/2 is the squared loss with the ridge λ + α a."""
    labels, alpha, a = ga.LinearLabels(), 1.5, 0.2
    se = ga.solve_with_norm(
        ga.glm_model(ga.SquaredLoss(), labels, lam=LAM), alpha, lambda z, y, s: 0.5 * (z - y) ** 2 + 0.5 * a * s**2,
        convex=True,
    )  # fmt: skip
    exact = ga.solve_state_evolution(ga.glm_model(ga.SquaredLoss(), labels, lam=LAM + alpha * a), alpha, rtol=1e-6)
    assert se.state.model.lam == pytest.approx(LAM + alpha * a, rel=1e-4)
    for name in ("train_loss", "replicon", "V_hat"):
        assert np.abs(getattr(se, name) - getattr(exact, name)).max() <= np.max(getattr(se, f"{name}_error"))
    assert abs(se.overlaps.q - exact.overlaps.q).item() <= se.overlaps_error.q.item() <= 1e-4 * exact.overlaps.q.item()


def test_a_run_ends_at_the_minimum_of_the_risk():
    data = ga.sample(MODEL, d=120, alpha=2.0, seed=1)
    run = ga.run_gamp_with_norm(data, adversarial, convex=True)
    value, slope = risk(data, run.Q[:, 0])
    assert run.converged
    assert run.is_minimum
    assert np.linalg.norm(slope) / (LAM * np.sqrt(120)) <= 1e-8
    assert run.gradient_norm <= 1e-8
    assert run.train_loss == pytest.approx(value / 120, rel=1e-10)
    lowest = minimize(lambda w: risk(data, w), np.ones(120), jac=True, options={"gtol": 1e-9, "maxiter": 10000})
    np.testing.assert_allclose(run.Q[:, 0], lowest.x, atol=1e-6)


@pytest.mark.parametrize("spectra", [1.0, ga.CoordinateClasses(values=[[0.2], [1.8]], weight=[0.5, 0.5])])
def test_runs_follow_the_theory(spectra):
    """With two variances of the tokens, q is not the square of the norm."""
    law = ga.coordinate_law(spectra, n_tokens=1, tau=[0.0])
    model = replace(MODEL, coordinates=law)
    se = ga.solve_with_norm(model, 2.0, adversarial, convex=True, rtol=1e-3)
    assert se.converged
    runs = [ga.run_gamp_with_norm(ga.sample(model, 120, 2.0, seed=k), adversarial, convex=True) for k in range(8)]
    assert all(run.converged for run in runs)
    found = [(np.linalg.norm(run.Q) / np.sqrt(120), run.overlaps.q.item(), run.train_loss) for run in runs]
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(mean - [se.state.model.teacher.norm, se.overlaps.q.item(), se.train_loss]) <= 4 * error).all()


def test_weights_of_a_run_that_go_to_zero_have_a_status():
    data = ga.sample(MODEL, d=60, alpha=1.0, seed=0)
    run = ga.run_gamp_with_norm(data, too_strong, convex=True)
    assert run.status is ga.Status.LOST
    assert "go to zero" in run.message
    assert risk(data, run.Q[:, 0], 4.0)[0] > risk(data, 1e-9 * run.Q[:, 0], 4.0)[0]
    with pytest.raises(ga.ConvergenceError, match="go to zero"):
        ga.run_gamp_with_norm(data, too_strong, convex=True, raise_on_failure=True)


def test_theory_of_weights_that_go_to_zero_has_a_status():
    se = ga.solve_with_norm(MODEL, 1.0, too_strong, convex=True)
    assert se.status is ga.Status.LOST
    assert "go to zero" in se.message
    assert not se.consistent


@pytest.mark.parametrize(("lam", "alpha"), [(1e-3, 4.0), (0.01, 3.0), (0.1, 3.0)])
def test_perfect_recovery_has_a_status(lam, alpha):
    """Adversarial least squares without noise: the minimum is at the weights of the teacher, for which q = 1."""
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.0), lam=lam)
    se = ga.solve_with_norm(model, alpha, lambda z, y, s: 0.5 * (abs(z - y) + 0.1 * s) ** 2, convex=True, rtol=1e-2)
    assert se.status is ga.Status.INACCURATE
    assert "closer to perfect recovery" in se.message
    assert se.overlaps.q.item() == pytest.approx(1.0, abs=1e-3)
    assert np.isnan(se.relative_error)
    with pytest.raises(ValueError, match="average: needs a solution with errors, got status 'inaccurate'"):
        se.average(lambda target, u, omega, z: z[:, 0, 0])


def test_a_loss_that_falls_with_the_norm_has_no_solution():
    """The ridge λ + c/s is negative: without a bound, larger weights are always better."""
    data = ga.sample(MODEL, d=60, alpha=1.0, seed=0)
    run = ga.run_gamp_with_norm(data, lambda z, y, s: np.logaddexp(0, -3.0 * s - y * z), convex=True)
    assert not run.converged
    assert run.message


@pytest.mark.parametrize(("problem", "options", "words"), [
    (ga.paper_model(), {}, "model: needs a gamp_attention.GLMModel"),
    (ga.glm_model(ga.LogisticLoss(), n_tokens=2, lam=0.1), {}, "model: needs one token"),
    (ga.glm_model(ga.LogisticLoss(), lam=0.1, intercept=True), {}, "without an intercept"),
    (ga.glm_model(ga.LogisticLoss(), penalty=ga.ElasticNet(0.1, 0.1)), {}, "penalty Ridge"),
    (MODEL, {"loss": 3}, "loss: needs"), (MODEL, {"convex": 1}, "convex: needs True or False"),
    (MODEL, {"loss": lambda z, y: z * y}, "loss: needs"), (MODEL, {"rtol": 0.5}, "rtol: needs"),
])  # fmt: skip
def test_wrong_arguments_are_named(problem, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ga.solve_with_norm(problem, 1.0, **{"loss": adversarial} | options)


def test_data_without_labels_are_named():
    with pytest.raises(TypeError, match=r"data: needs a gamp_attention\.LabelledDataset"):
        ga.run_gamp_with_norm(ga.sample(ga.paper_model(), 8, 1.5), adversarial)
