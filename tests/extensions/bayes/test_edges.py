"""Bayes-optimal fixed points from α = 0.001 to 10 000: closed forms, quadrature and all label models."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, log_ndtr

import gamp_attention as ga

ALPHAS = (1e-3, 0.1, 1.05, 30.0, 1e4)
BINARY = ga.CoordinateLaw([0.5, 0.5], np.ones((2, 1)), np.zeros((2, 1)), [[1.0], [-1.0]], np.zeros((2, 1, 1)))
SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.1), n_tokens=1)


def build_linear(noise, **more):
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise), **more)


def build_logistic(temperature, **more):
    return ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature), **more)


def build_intensity(noise, **more):
    return ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(noise), **more)


def is_within(value, error, wanted, reference=1e-9):
    """Return whether a number is within its stated error of a value known to a relative accuracy `reference`."""
    return abs(value - wanted) <= error + reference * abs(wanted)


def gauss(x):
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


def average_even(function, scale):
    """Return the Gaussian average of an even function that varies on a given scale."""
    ends = np.unique(np.clip([0, *(scale * np.array([1, 4, 10, 40])), 2, 5, 12], 0, 12))
    weighted = lambda z: gauss(z) * function(z)  # noqa: E731
    return 2 * sum(quad(weighted, a, b, epsabs=1e-17, epsrel=1e-12)[0] for a, b in pairwise(ends))


def sign_square(V):
    """Return E g² for labels that are signs."""
    scale = np.sqrt(V / (1 - V))

    def square(z):
        at = z / scale
        return np.exp(-(at**2) - log_ndtr(at) - log_ndtr(-at)) / (2 * np.pi)

    return average_even(square, scale) / V


def logistic_square(V, temperature):
    """Return E g² and the test error for logistic labels."""
    x = np.linspace(-10, 10, 2001)
    weight = gauss(x) * (x[1] - x[0])

    def parts(z):
        odds = (np.sqrt(1 - V) * z + np.sqrt(V) * x) / temperature
        return weight @ expit(odds), weight @ expit(-odds), weight @ (expit(odds) * expit(-odds)) / temperature

    def square(z):
        up, down, slope = parts(z)
        return slope**2 / max(up * down, 1e-300)

    scale = max(np.sqrt(V), temperature) / np.sqrt(1 - V)
    return average_even(square, scale), average_even(lambda z: 4 * parts(z)[0] * parts(z)[1], scale)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("noise", [1e-3, 0.5, 3.0])
def test_linear_labels_have_their_closed_form(noise, alpha):
    """V² + (α + Δ² − 1) V = Δ², and the free entropy of a Gaussian model."""
    solution = ga.solve_bayes_state_evolution(build_linear(noise), alpha)
    b = noise**2 + alpha - 1
    root = np.hypot(b, 2 * noise)
    V = 2 * noise**2 / (b + root) if b > 0 else 0.5 * (root - b)
    s = alpha / (V + noise**2)
    entropy = -0.5 * alpha * (np.log(2 * np.pi * (V + noise**2)) + 1) + 0.5 * (s * V - np.log1p(s))
    assert solution.converged
    assert solution.stable
    assert not solution.full
    assert is_within(solution.V[0, 0, 0], solution.V_error[0, 0, 0], V, 1e-13)
    assert is_within(solution.q[0, 0], solution.q_error[0, 0], V * s, 1e-13)  # 1 − V loses digits by cancellation
    assert is_within(solution.test_error, solution.test_error_error, V + noise**2, 1e-13)
    assert is_within(solution.free_entropy, solution.free_entropy_error, entropy, 1e-12)
    assert 0 < solution.V_error[0, 0, 0] < 1e-8 * V


def test_linear_labels_of_several_columns_and_tokens():
    """Columns are independent; tokens of variances γ_l give 1/C = 1 + α Σ γ_l/(γ_l C + Δ²)."""
    gamma, noise, alpha = np.array([1.0, 0.25, 0.04]), 0.5, 7.0
    solution = ga.solve_bayes_state_evolution(build_linear(noise, n_tokens=3, rank=2, sigma=np.sqrt(gamma)), alpha)
    C = 1 - solution.q[0, 0]
    assert pytest.approx(1 + alpha * np.sum(gamma / (gamma * C + noise**2)), rel=1e-9) == 1 / C
    np.testing.assert_allclose(solution.V, gamma[:, None, None] * C * np.eye(2), rtol=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_perceptron_agrees_with_quadrature(alpha):
    solution = ga.solve_bayes_state_evolution(build_logistic(0.0), alpha)
    V, error = solution.V[0, 0, 0], solution.V_error[0, 0, 0]
    growth = alpha * sign_square(V)
    assert 1 / (1 + growth) == pytest.approx(V, rel=1e-9)
    assert is_within(solution.q[0, 0], solution.q_error[0, 0], growth / (1 + growth))
    assert error < 1e-8 * V
    wanted = 4 / np.pi * np.arcsin(np.sqrt(0.5 * V))  # twice arccos(q)/π
    assert is_within(solution.test_error, solution.test_error_error, wanted)


def test_perceptron_generalizes_as_published():
    """Error rates 0.442/α of the posterior mean and 0.625/α of a posterior sample (Györgyi and Tishby 1990)."""
    alpha = 1e4
    solution = ga.solve_bayes_state_evolution(build_logistic(0.0), alpha)
    V = solution.V[0, 0, 0]
    assert alpha * np.arcsin(np.sqrt(V)) / np.pi == pytest.approx(0.442, abs=1e-3)  # arccos(√q)/π, Barbier et al. 2019
    assert alpha * solution.test_error / 2 == pytest.approx(0.625, abs=1e-3)


@pytest.mark.parametrize("temperature", [0.1, 0.4, 5.0])
@pytest.mark.parametrize("alpha", [1e-3, 10.0, 1e4])
def test_logistic_labels_agree_with_quadrature(temperature, alpha):
    solution = ga.solve_bayes_state_evolution(build_logistic(temperature), alpha)
    V = solution.V[0, 0, 0]
    square, error = logistic_square(V, temperature)
    assert 1 / (1 + alpha * square) == pytest.approx(V, rel=1e-9)
    assert is_within(solution.test_error, solution.test_error_error, error)


def test_two_classes_are_logistic_labels_of_their_difference():
    """Labels depend on (q₁ − q₀)/√2 with temperature 1/√2, and are independent of the sum of the columns."""
    model = ga.glm_model(ga.MultinomialLoss(), rank=2)
    for alpha in (0.1, 10.0, 1e4):
        solution = ga.solve_bayes_state_evolution(model, alpha, n_points=512)
        V = ga.solve_bayes_state_evolution(build_logistic(np.sqrt(0.5)), alpha).V[0, 0, 0]
        wanted = 0.5 * np.array([[1 + V, 1 - V], [1 - V, 1 + V]])
        assert (np.abs(solution.V[0] - wanted) <= 2 * solution.V_error[0] + 1e-12).all()


@pytest.mark.parametrize("alpha", [1.05, 20.0])
def test_little_noise_of_intensities_is_phase_retrieval(alpha):
    exact = ga.solve_bayes_state_evolution(build_intensity(0.0), alpha)
    noisy = ga.solve_bayes_state_evolution(build_intensity(1e-3), alpha, n_points=256)
    if exact.full:
        assert noisy.V[0, 0, 0] < 1e-5
        assert not noisy.full
    else:
        assert abs(noisy.q[0, 0] - exact.q[0, 0]) <= 2 * noisy.q_error[0, 0] + 1e-3


LAWS = {
    "linear without noise": build_linear(0.0),
    "linear, three tokens": build_linear(0.5, n_tokens=3, sigma=[1.0, 0.5, 0.2]),
    "signs of four tokens": build_logistic(0.0, n_tokens=4),
    "logistic": build_logistic(0.4),
    "nearly signs": build_logistic(1e-3),
    "nearly no information": build_logistic(100.0),
    "phase retrieval": build_intensity(0.0),
    "noisy intensities": build_intensity(0.5, n_tokens=2),
    "three classes": ga.glm_model(ga.MultinomialLoss(), rank=3),
    "binary weights, signs": replace(build_logistic(0.0), coordinates=BINARY),
    "binary weights, linear": replace(build_linear(0.5), coordinates=BINARY),
    "sparse weights, linear": replace(build_linear(0.1), coordinates=SPARSE),
    "two tokens": ga.attention_model(2),
    "three tokens": ga.attention_model(3),
    "four tokens": ga.attention_model(4),
    "tokens that differ": ga.attention_model(
        3, coordinates=ga.coordinate_law(np.array([[1.0, 0.2, 0.5], [0.3, 0.9, 0.1]]), n_tokens=3)
    ),
    "two columns of two tokens": ga.attention_model(2, 2, 2),
    "two columns of four tokens": ga.attention_model(4, 2, 2),
    "score noise": ga.attention_model(2, sigma=1.0, score_noise=0.3),
}


@pytest.mark.slow(keep=4)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LAWS)
def test_every_problem_has_a_fixed_point_at_every_alpha(name):
    last = np.inf
    for alpha in ALPHAS[::2]:
        fixed_points = ga.bayes_fixed_points(LAWS[name], alpha, n_points=128, n_replicas=2)
        stable = [each for each in fixed_points if each.stable]
        assert stable
        for each in fixed_points:
            assert each.status in (ga.Status.CONVERGED, ga.Status.INACCURATE)
            assert each.residual < 1e-6
            assert np.isfinite(each.q).all()
            assert np.isfinite(each.V).all()
            assert (np.linalg.eigvalsh(each.V) >= 0).all()
            assert np.isfinite(each.free_entropy) or each.full
        overlaps = [float(np.trace(each.q)) for each in fixed_points]
        assert overlaps == sorted(overlaps)
        unknown = float(np.trace(stable[0].V.sum(axis=0)))
        slack = float(np.abs(stable[0].V_error).max())
        assert not np.isfinite(slack) or unknown <= last + slack
        last = unknown + (slack if np.isfinite(slack) else 0.0)


@pytest.mark.parametrize("name", ["signs of four tokens", "logistic", "sparse weights, linear", "three tokens"])
def test_iteration_from_both_ends_converges_to_the_stable_fixed_points(name):
    """Iterations from nearly zero and nearly full overlap, averaged over random samples, reach them monotonically."""
    from gamp_attention.extensions.bayes.equations import Equations

    model, alpha = LAWS[name], 0.25 if name == "three tokens" else 2.0
    sampled = Equations(model, 1 << 13, np.random.default_rng(1))
    sampled.exact = False
    fixed_points = ga.bayes_fixed_points(model, alpha)
    assert len([each for each in fixed_points if each.stable]) == 1
    for start in (0.999, 0.01):
        V = start * sampled.rho
        for _ in range(60):
            V = sampled.input(alpha * sampled.output(V).hats).V
        assert np.trace(V.sum(axis=0)) == pytest.approx(np.trace(fixed_points[-1].V.sum(axis=0)), rel=0.08)


def test_status_is_inaccurate_if_sets_of_points_disagree():
    """Just above weak recovery some sets of few points have the fixed point, others do not."""
    model = ga.attention_model(2, sigma=1.0, score_noise=0.3)
    status = [
        each.status
        for alpha in (0.9, 0.95, 1.0)
        for each in ga.bayes_fixed_points(model, alpha, n_points=128, n_replicas=4)
    ]
    assert ga.Status.INACCURATE in status
    clear = ga.bayes_fixed_points(model, 8.0, n_points=128, n_replicas=4)[-1]
    assert clear.status is ga.Status.CONVERGED


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("tokens", "weak", "full"), [(2, None, 1.0), (3, 2 / 12, 0.4), (4, 2 / 20, 2 / 7)])
def test_thresholds_of_two_columns(tokens, weak, full):
    """Full recovery at t/(L t − 1), or t/(L t − 2) for two tokens: unknowns per independent number of a sample."""
    thresholds = ga.bayes_thresholds(ga.attention_model(tokens, 2, 2), n_points=512, n_replicas=4)
    assert thresholds.full_recovery == pytest.approx(full, abs=2 * thresholds.full_recovery_error + 1e-4)
    assert thresholds.full_recovery_error < 0.02
    if weak is not None:
        assert thresholds.weak_recovery == pytest.approx(weak, abs=2 * thresholds.weak_recovery_error)


def test_tokens_of_different_variance_agree_by_integrals_and_by_samples():
    from gamp_attention.extensions.bayes.equations import Equations

    model = LAWS["tokens that differ"]
    equations = Equations(model, 1 << 15, np.random.default_rng(0))
    V = equations.rho * np.array([0.3, 0.5, 0.2])[:, None, None]
    exact = equations.output(V)
    equations.exact = False
    sampled = equations.output(V)
    np.testing.assert_allclose(sampled.hats, exact.hats, rtol=0.05)
    assert sampled.log_z == pytest.approx(exact.log_z, abs=0.02)


def test_a_known_teacher_needs_no_samples():
    """Weights without variance are known at every α."""
    atom = ga.CoordinateLaw([1.0], np.ones((1, 1)), np.zeros((1, 1)), [[0.7]], np.zeros((1, 1, 1)))
    solution = ga.solve_bayes_state_evolution(replace(build_logistic(0.0), coordinates=atom), 3.0)
    assert solution.full
    assert solution.q[0, 0] == pytest.approx(0.49)


@pytest.mark.parametrize("precision", [0.1, 5.0, 20.0, 40.0])
def test_binary_weights_agree_with_quadrature(precision):
    """V = E 1 − tanh²(A + √A z), which linear labels have at α = A (V + Δ²)."""

    def unknown(z):
        return np.cosh(precision + np.sqrt(precision) * z) ** -2.0

    ends = np.sort([-12, 12, *(-np.sqrt(precision) + np.array([-4, -1, 0, 1, 4]) / np.sqrt(1 + precision))])
    V = sum(quad(lambda z: gauss(z) * unknown(z), a, b, epsabs=0, epsrel=1e-12)[0] for a, b in pairwise(ends))
    solution = ga.solve_bayes_state_evolution(replace(build_linear(0.5), coordinates=BINARY), precision * (V + 0.25))
    assert is_within(solution.V[0, 0, 0], solution.V_error[0, 0, 0], V)
