"""Bayes-optimal estimation of teachers that are functions of the fields: against closed forms and exact integrals."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import gamp_attention as ga
from docs.examples.two_layers import layers
from gamp_attention.extensions.bayes.channels.labels import channel_of


def build_model(teacher, n_tokens=1, rank=1, n_noise=0):
    """Return a sequence model of a teacher, with a student that has no effect on these functions."""
    shape = np.shape(teacher(np.ones((n_tokens, rank)), np.ones(n_noise)))
    return ga.sequence_model(teacher, lambda z: z[0, 0] * np.ones(shape), n_tokens=n_tokens, rank=rank, n_noise=n_noise)


def linear(u, noise):
    return u[0, 0] + 0.3 * noise[0]


def two_layers(u, noise):
    return layers(u)


def test_linear_targets_with_noise_have_their_closed_form():
    point = ga.solve_bayes_state_evolution(build_model(linear, n_noise=1), 1.5, n_points=512)
    exact = ga.solve_bayes_state_evolution(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3)), 1.5)
    assert abs(point.q[0, 0] - exact.q[0, 0]) <= point.q_error[0, 0] + 1e-3
    assert abs(point.test_error - exact.test_error) <= point.test_error_error + 2e-3
    assert abs(point.free_entropy - exact.free_entropy) <= point.free_entropy_error + 0.02


INVERTIBLE = {
    "u": lambda u, noise: u[0, 0],
    "affine": lambda u, noise: 1 - 2 * u[0, 0],
    "redundant": lambda u, noise: np.array([u[0, 0], 2 * u[0, 0] + 1]),
    "leaky relu": lambda u, noise: np.maximum(u[0, 0], 0.1 * u[0, 0]),
    "sinh": lambda u, noise: np.sinh(u[0, 0]),
}


@pytest.mark.parametrize("teacher", INVERTIBLE.values(), ids=INVERTIBLE)
def test_fields_that_targets_determine_have_the_overlap_alpha(teacher):
    """α independent linear equations for each weight determine the fraction α of the weights."""
    model = build_model(teacher)
    point = ga.solve_bayes_state_evolution(model, 0.5, n_points=64)
    assert abs(point.q[0, 0] - 0.5) <= point.q_error[0, 0] < 1e-6
    full = ga.solve_bayes_state_evolution(model, 1.05, "informed", n_points=64)
    assert full.full
    assert (full.q[0, 0], full.q_error[0, 0], full.test_error) == (1, 0, 0)


def test_message_passing_uses_linear_targets_without_noise():
    for teacher, n_tokens in ((INVERTIBLE["u"], 1), (INVERTIBLE["affine"], 1), (INVERTIBLE["u"], 2)):
        found = ga.run_bayes_amp(ga.sample(build_model(teacher, n_tokens), d=500, alpha=0.9, seed=0))
        assert found.overlap[0, 0] == pytest.approx(0.9, abs=0.1)  # the norm of the teacher has scatter 0.06


@pytest.mark.parametrize(("init", "alpha"), [("informed", 1.05), ("informed", 3.0), ("uninformed", 1.3)])
def test_full_recovery_is_exact(init, alpha):
    """For 1 < α < 1.13 there is a fixed point with less overlap, and a start with the overlap 0.999 would not do."""
    model = build_model(lambda u, noise: abs(u[0, 0]))
    point = ga.solve_bayes_state_evolution(model, alpha, init, n_points=512)
    assert point.full
    assert (point.q[0, 0], point.q_error[0, 0], point.V_error[0, 0, 0]) == (1, 0, 0)
    assert np.isposinf(point.free_entropy)


def test_unknown_columns_remain_beside_a_column_without_error():
    """The sum of two columns is found for α > 1, their difference never."""
    model = build_model(lambda u, noise: np.array([u[0, 0] + u[0, 1], 2 * u[0, 0] + 2 * u[0, 1]]), rank=2)
    point = ga.solve_bayes_state_evolution(model, 1.5, "informed", n_points=128)
    assert not point.full
    assert (np.abs(point.q - 0.5) <= 3 * point.q_error).all()
    assert point.test_error < 1e-8


@pytest.mark.parametrize(("noise", "alpha"), [(1e-3, 0.5), (1e-6, 1.0), (1e-3, 2.0)])
def test_weak_noise_limits_the_overlap(noise, alpha):
    """V = 1/(1 + α/(V + noise²))."""
    model = build_model(lambda u, xi: u[0, 0] + noise * xi[0], n_noise=1)
    point = ga.solve_bayes_state_evolution(model, alpha, n_points=128)
    b = noise**2 + alpha - 1
    exact = 2 * noise**2 / (b + np.sqrt(b**2 + 4 * noise**2))
    assert abs(point.V[0, 0, 0] - exact) <= 3 * point.V_error[0, 0, 0]
    # in units of the prior; next to α = 1, where V is 1e-6, rounding decides where the search ends: up to 2.3 V
    assert point.V_error[0, 0, 0] < 1e-5


def test_steps_have_the_overlap_of_their_integral():
    """A field between two steps has a truncated normal distribution."""
    model = build_model(lambda u, noise: np.where(u[0, 0] > 1, 1.0, np.where(u[0, 0] < -1, -1.0, 0.0)))
    point = ga.solve_bayes_state_evolution(model, 8.0, n_points=512)
    line, V = np.linspace(-9, 9, 4001), 1 - point.q[0, 0]
    ends = (np.array([-np.inf, -1, 1, np.inf])[:, None] - np.sqrt(1 - V) * line) / np.sqrt(V)
    likely = np.diff(norm.cdf(ends), axis=0)
    squares = np.diff(norm.pdf(ends), axis=0) ** 2 / np.where(likely > 1e-12, likely, np.inf) / V
    hat = 8 * np.trapezoid(squares.sum(axis=0) * norm.pdf(line), line)
    assert abs(hat / (1 + hat) - point.q[0, 0]) <= 3 * point.q_error[0, 0] < 2e-3


def test_message_passing_agrees_with_the_linear_channel():
    data = ga.sample(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3)), d=100, alpha=1.5, seed=0)
    exact = ga.run_bayes_amp(data)
    found = ga.run_bayes_amp(data, model=build_model(linear, n_noise=1), tol=1e-3)
    assert found.converged
    assert np.linalg.norm(found.Q - exact.Q) < 0.05 * np.linalg.norm(exact.Q)


def test_posterior_of_two_layers_agrees_with_a_separate_integral():
    """The log-odds of the rows give the scores up to a sign, and these the second layer for each first layer.

    The posterior is computed from points for this prior, and from points that were drawn for a wider prior.
    """
    rng, n, V = np.random.default_rng(0), 40, np.array([0.5, 0.3])
    omega = np.sqrt(1 - V) * rng.standard_normal((n, 2, 2))
    u = omega + np.sqrt(V) * rng.standard_normal((n, 2, 2))
    channel = replace(channel_of(build_model(two_layers, 2, 2)), n_nodes=1024)
    y, covariances = channel.observe(u, np.zeros((n, 0))), np.tile(np.diag(V), (2, 1, 1))
    wider = channel.draw(y, 0.7 * omega, 1.5 * covariances).weigh(omega, covariances)[0]
    line = np.linspace(-5.5, 5.5, 79)
    grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
    exact = np.empty((n, 2, 2))
    for i, T in enumerate(y.reshape(n, 2, 2)):
        l1, l2 = np.log(T[0, 0] / T[0, 1]), np.log(T[1, 1] / T[1, 0])
        s = np.array([l1, -l2]) / np.sqrt(l1 + l2)
        z1 = omega[i, :, 0] + np.sqrt(V[0]) * grid
        B = np.exp(z1[:, :, None] * z1[:, None, :])
        B = np.eye(2) + B / B.sum(axis=2, keepdims=True)
        z2 = np.linalg.solve(B, np.broadcast_to(s, (len(B), 2))[:, :, None])[:, :, 0]
        both = np.concatenate([z2, -z2])
        logs = -0.5 * np.sum(grid**2, axis=1) - np.log(np.abs(np.linalg.det(B)))
        logs = np.tile(logs, 2) - 0.5 * np.sum((both - omega[i, :, 1]) ** 2, axis=1) / V[1]
        weight = np.exp(logs - logs.max())
        weight /= weight.sum()
        exact[i] = np.stack([weight @ np.tile(z1, (2, 1)), weight @ both], axis=1)
    exact = (exact - omega) / V
    for posterior in (channel.posterior(y, omega, covariances), wider):
        error = (((posterior.mean - omega) / V - exact) ** 2).mean(axis=(0, 1)) / (exact**2).mean(axis=(0, 1))
        assert (error < 0.02).all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("n_tokens", [1, 2])
def test_weak_recovery_of_fields_known_up_to_a_sign(n_tokens):
    model = build_model(lambda u, noise: np.outer(u[:, 0], u[:, 0]), n_tokens)
    thresholds = ga.bayes_thresholds(model, n_points=8192 if n_tokens == 1 else 1024)
    exact = 1 / (n_tokens * (n_tokens + 1))
    assert abs(thresholds.weak_recovery - exact) <= thresholds.weak_recovery_error
    assert thresholds.weak_recovery_error < 0.1 * exact
    assert "not computed" in thresholds.notes["full_recovery"]


def test_column_with_a_sign_is_found_from_any_number_of_samples():
    model = build_model(lambda u, noise: u[0, 0] ** 2 * u[0, 1], rank=2)
    thresholds = ga.bayes_thresholds(model, n_points=256, n_replicas=3)
    assert thresholds.weak_recovery == 0
    assert thresholds.notes["weak_recovery"].startswith("0: any number")
    point = ga.solve_bayes_state_evolution(model, 0.3, n_points=256, n_replicas=2)
    assert not point.q[0].any()  # the other column vanishes below the threshold 1/2 that it has if this column is known
    assert point.q[1, 1] > 0.05


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (build_model(lambda u, noise: np.maximum(u[0, 0], 0.0)), "same number of fields"),
        (build_model(lambda u, noise: u.sum(), n_tokens=4, rank=2), "at most 6"),
        (build_model(lambda u, noise: float(np.linalg.eigvalsh(u @ u.T)[0])), "cannot be traced"),
    ],
    ids=["rank", "size", "trace"],
)
def test_refusals_name_the_reason(model, message):
    with pytest.raises(ValueError, match=message):
        ga.bayes_thresholds(model)


def inner_product(u, noise):
    return u[0, 0] * u[1, 0] + u[0, 1] * u[1, 1]


def product_of_pairs(u, noise):
    return u[0, 0] * u[0, 2] + u[0, 1] * u[0, 3]


@pytest.mark.parametrize(
    ("teacher", "n_tokens", "rank", "exact"),
    [
        # y = u_1·u_2 in two dimensions: |y| is exponential, E[|u_1|² | y] = |y| + 1 and E[u_1 u_2ᵀ | y] = y/2, so that
        # the growth of the sum of both tokens is 2 (E[(|y| − 1)²/4] + E[y²/4]) = 3/2; the growth of pairs is 3/4
        (inner_product, 2, 2, 2 / 3),
        (product_of_pairs, 1, 4, 4 / 3),
    ],
)
def test_weak_recovery_of_equivalent_columns(teacher, n_tokens, rank, exact):
    thresholds = ga.bayes_thresholds(build_model(teacher, n_tokens, rank), n_points=512, n_replicas=4, seed=2)
    assert thresholds.weak_recovery_error < 0.3 * exact
    assert abs(thresholds.weak_recovery - exact) < 2 * thresholds.weak_recovery_error


def test_message_passing_finds_both_layers_from_the_teacher():
    data = ga.sample(build_model(two_layers, 2, 2), d=100, alpha=3.0, seed=0)
    run = ga.run_bayes_amp(data, "informed", max_iter=40, tol=1e-2)
    assert run.converged
    assert (np.abs(np.diagonal(run.overlap)) > 0.85).all()


@pytest.mark.parametrize(("square", "is_found"), [(0.5, True), (0.02, False)])
def test_message_passing_finds_or_names_a_column_without_a_sign(square, is_found):
    """The sign of the first column is known, the sign of the second is not."""
    model = build_model(lambda u, noise: u[0, 0] + square * u[0, 1] ** 2 + 0.2 * noise[0], rank=2, n_noise=1)
    run = ga.run_bayes_amp(ga.sample(model, d=250, alpha=5.0, seed=0))
    assert run.converged
    assert run.overlap[0, 0] > 0.8
    assert (abs(run.overlap[1, 1]) > 0.8) == is_found
    assert ("columns [1] of Q went to zero" in run.message) != is_found
