"""State evolution and message passing of Huber's and Tukey's loss with outliers, against integrals in one dimension."""

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

import gamp_attention as ga
from validation._tools.robust import Huber, OutlierLabels, Tukey, build_model, estimation_error, solve_scalar


def test_labels_are_quantiles_of_the_mixture():
    rng = np.random.default_rng(0)
    u, noise = 3 * rng.standard_normal((1000, 1, 1)), 2 * rng.standard_normal((1000, 1))
    labels = OutlierLabels(slope=-0.5)(u, noise)[:, 0]
    side, u = np.where(noise[:, 0] > 0, -1.0, 1.0), u[:, 0, 0]
    below = 0.9 * ndtr(side * (labels - u) / np.sqrt(0.1)) + 0.1 * ndtr(side * (labels + 0.5 * u))
    np.testing.assert_allclose(np.log(below), log_ndtr(-np.abs(noise[:, 0])), rtol=1e-10)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("loss", [Tukey(2.0), Huber(1.0)])
def test_state_evolution_equals_integrals_in_one_dimension(loss):
    theory = ga.solve_state_evolution(build_model(loss, 1.0), 5.0, "semantic", rtol=1e-2, stability=False)
    scalar = solve_scalar(loss, 1.0, 5.0)
    assert theory.converged
    assert estimation_error(theory.overlaps) == pytest.approx(scalar.error, rel=1e-3)
    assert theory.overlaps.V[0, 0, 0] == pytest.approx(scalar.V, rel=1e-3)
    errors = []
    for seed in range(4):
        data = ga.sample(build_model(loss, 1.0), 300, 5.0, seed=seed)
        run = ga.run_gamp(data, "random")
        assert run.converged
        errors.append(np.sum((run.Q - data.Q_star) ** 2) / 300)
    assert abs(np.mean(errors) - scalar.error) < 4 * np.std(errors, ddof=1) / 2 + scalar.error / 300


@pytest.mark.slow
@pytest.mark.parametrize(("lam", "word"), [(1.0, "consistent"), (0.05, "inconsistent")])
def test_validity_of_a_redescending_loss(lam, word):
    theory = ga.solve_state_evolution(build_model(Tukey(1.0), lam), 3.0, "semantic", rtol=1e-2)
    replicon = solve_scalar(Tukey(1.0), lam, 3.0).replicon
    assert (replicon < 1) == (word == "consistent")
    assert theory.validity.startswith(word)
    assert f"{replicon:.2f}"[:4] in theory.validity


def test_jump_of_tukeys_proximal_map():
    """At V = 2.2 the map jumps; integrals with the cut equal a sum over a grid of residuals with global minima."""
    from validation._tools.robust import scalar_step

    loss, V, q, theta = Tukey(1.0), 2.2, 0.8, 0.7
    *after, _ = scalar_step(loss, OutlierLabels(), 2.0, 0.1, q, theta, V)
    t = np.linspace(-6, 6, 6001)
    r = np.linspace(-9, 9, 3001)
    values = np.array([loss.value(np.zeros(1), np.array([[x]])) for x in t])
    best = t[np.argmin((r[:, None] - t) ** 2 / (2 * V) + values, axis=1)]
    force = (r - best) / V
    V_hat = q_hat = theta_hat = 0.0
    for probability, slope, variance in OutlierLabels().parts:
        s = np.sqrt(slope**2 - 2 * slope * theta + q + variance)
        weight = probability * np.exp(-0.5 * (r / s) ** 2) / s / np.sqrt(2 * np.pi) * (r[1] - r[0])
        q_hat += 2 * weight @ force**2
        V_hat += 2 * weight @ (force * r) / s**2
        theta_hat += 2 * slope * weight @ (force * r) / s**2
    expected = (theta_hat**2 + q_hat) / (0.1 + V_hat) ** 2, theta_hat / (0.1 + V_hat), 1 / (0.1 + V_hat)
    np.testing.assert_allclose(after, expected, rtol=3e-3)
