"""State evolution of Bayes-optimal message passing: identities, closed forms, quadrature and published thresholds.

Fixed points of all label models are tested from α = 0.001 to 10 000.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit

import gamp_attention as ga
from gamp_attention.extensions.bayes.channels.integrals import FINE
from gamp_attention.extensions.bayes.equations import Equations
from gamp_attention.extensions.bayes.priors import MixturePrior, kinds_of
from gamp_attention.extensions.bayes.thresholds import AlphaCurve


def build_linear(noise, **more):
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise), **more)


def build_logistic(temperature, **more):
    return ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature), **more)


def build_intensity(noise, **more):
    return ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(noise), **more)


PHASE, SIGN = build_intensity(0.0), build_logistic(0.0)
SIGNS = ga.CoordinateLaw([0.5, 0.5], np.ones((2, 1)), np.zeros((2, 1)), [[1.0], [-1.0]], np.zeros((2, 1, 1)))
SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.3), n_tokens=1)


def build_equations(model, n_points=8192):
    return Equations(model, n_points, np.random.default_rng(0))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("n_tokens", [2, 3, 4])
def test_weak_recovery_of_attention(n_tokens):
    """The threshold is 1/(L (L + 1)), by integrals and by samples."""
    model = ga.attention_model(n_tokens)
    thresholds = ga.bayes_thresholds(model, n_points=512)
    assert thresholds.weak_recovery == pytest.approx(1 / (n_tokens * (n_tokens + 1)), rel=1e-5)
    assert thresholds.full_recovery == pytest.approx(1 / n_tokens, rel=1e-5)
    assert thresholds.hard is None
    equations = build_equations(model)
    growth = np.linalg.eigvals(equations.growth_map(np.zeros_like(equations.rho), np.arange(1))).real.max()
    assert 1 / growth == pytest.approx(thresholds.weak_recovery, rel=0.03)


def test_weak_recovery_with_different_tokens_and_spectra():
    """Scaled tokens change nothing; of a spectrum, coordinates of large variance are found first."""
    unlike = ga.attention_model(3, sigma=[0.3, 0.6, 0.8])
    assert 1 / build_equations(unlike).growth() == pytest.approx(1 / 12, rel=0.03)
    spectrum = ga.power_law_spectrum(1.0, 4)
    model = ga.attention_model(2, coordinates=ga.coordinate_law(spectrum))
    gain = spectrum.weight @ spectrum.values**2 / (spectrum.weight @ spectrum.values) ** 2
    assert 1 / build_equations(model).growth() == pytest.approx(1 / 6 / gain, rel=0.02)


def test_phase_retrieval_has_its_published_thresholds():
    """Weak recovery 1/2, full recovery 1.128, hard phase from 1: Barbier et al. (2019), Maillard et al. (2020)."""
    thresholds = ga.bayes_thresholds(PHASE)
    assert thresholds.weak_recovery == pytest.approx(0.5, abs=1e-5)
    assert thresholds.full_recovery == pytest.approx(1.128, abs=1e-3)
    assert thresholds.hard == pytest.approx((1.0, thresholds.full_recovery), abs=1e-5)


@pytest.mark.parametrize(("model", "where"), [(ga.attention_model(2), 0.1), (PHASE, 0.02), (SIGN, 0.05)])
@pytest.mark.parametrize("v", [0.9, 0.3])
def test_integrals_are_averages_over_samples(model, where, v):
    sampled = build_equations(model, 1 << 14)
    V = v * sampled.rho
    hats, log_z = sampled.channel.integrate(sampled.rho - V, V, FINE)
    omega, _, y = sampled.samples(V)
    posterior = sampled.channel.posterior(y, omega, V)
    g = (posterior.mean - omega) / V[:, 0]
    np.testing.assert_allclose(hats[:, 0, 0], (g[:, :, 0] ** 2).mean(axis=0), rtol=where)
    assert log_z == pytest.approx(posterior.log_z.mean(), abs=where)


@pytest.mark.parametrize(
    "model",
    [ga.attention_model(3), PHASE, SIGN, build_logistic(0.3), ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.5))],
)
def test_nishimori_identities_of_the_channel(model):
    """E g gᵀ = −E ∂g/∂ω, and the mean square error of posterior means equals the posterior covariance."""
    equations = build_equations(model, 1 << 13)
    L, t = equations.rho.shape[:2]
    V = 0.4 * equations.rho
    omega, u, y = equations.samples(V)
    posterior = equations.channel.posterior(y, omega, V)
    off = (posterior.mean - u).reshape(-1, L * t)
    own = off[:, :, None] * off[:, None, :] - posterior.cov
    assert (np.abs(own.mean(axis=0)) <= 5 * own.std(axis=0) / np.sqrt(len(off) / 2)).all()
    g = np.einsum("lab,nlb->nla", np.linalg.inv(V), posterior.mean - omega)
    inverse = np.linalg.inv(V)
    blocks = posterior.cov.reshape(-1, L, t, L, t)[:, np.arange(L), :, np.arange(L)]  # shape (L, n, t, t)
    slopes = inverse[:, None] - inverse[:, None] @ blocks @ inverse[:, None]
    own = g[:, :, :, None] * g[:, :, None, :] - slopes.transpose(1, 0, 2, 3)
    assert (np.abs(own.mean(axis=0)) <= 5 * own.std(axis=0) / np.sqrt(len(g) / 2) + 1e-12).all()


@pytest.mark.parametrize("law", [SIGNS, SPARSE, ga.coordinate_law(1.0, [0.0], n_tokens=1)])
@pytest.mark.parametrize("A", [0.3, 5.0, 80.0])
def test_nishimori_identities_of_the_prior(law, A):
    """E q̂² = E q̂ q*, and both and E log Z agree with samples."""
    (kind,) = kinds_of(law)
    rng, n = np.random.default_rng(0), 100_000
    k = rng.choice(len(kind.prior.weight), size=n, p=kind.prior.weight)
    teacher = kind.prior.mean[k] + np.sqrt(kind.prior.cov[k][:, 0]) * rng.standard_normal((n, 1))
    posterior = kind.prior.posterior(A * teacher + np.sqrt(A) * rng.standard_normal((n, 1)), np.array([[A]]))
    V, known, net = kind.prior.averages(np.array([[A]]))
    assert V[0, 0] + known[0, 0] == pytest.approx(kind.prior.second[0, 0], rel=1e-9)
    overlaps = posterior.mean * teacher, posterior.mean**2
    for each in overlaps:
        assert each.mean() == pytest.approx(kind.prior.second[0, 0] - V[0, 0], abs=5 * each.std() / np.sqrt(n))
    assert posterior.cov.mean() == pytest.approx(V[0, 0], abs=5 * posterior.cov.std() / np.sqrt(n) + 1e-12)
    log_z = net + 0.5 * A * known[0, 0]
    assert posterior.log_z.mean() == pytest.approx(log_z, abs=5 * posterior.log_z.std() / np.sqrt(n))


def test_priors_of_several_columns_agree_with_their_components():
    """A mixture of two identical Gaussians equals the Gaussian."""
    mean, cov = np.array([[0.3, -0.2]]), np.array([[[1.0, 0.4], [0.4, 0.7]]])
    one = MixturePrior(np.ones(1), mean, cov)
    two = MixturePrior(np.array([0.3, 0.7]), np.repeat(mean, 2, 0), np.repeat(cov, 2, 0))
    b, A = np.array([[0.4, -1.0], [2.0, 0.1]]), np.array([[0.8, 0.2], [0.2, 0.5]])
    for name in ("mean", "cov", "log_z"):
        np.testing.assert_allclose(*(getattr(each.posterior(b, A), name) for each in (one, two)), atol=1e-12)
    exact = np.linalg.inv(np.linalg.inv(cov[0]) + A)
    np.testing.assert_allclose(one.posterior(b, A).mean, (b + np.linalg.solve(cov[0], mean[0])) @ exact, atol=1e-12)
    np.testing.assert_allclose(one.averages(A).cov, exact, atol=1e-12)


def test_fixed_point_without_overlap_has_the_entropy_of_the_prior():
    """Fields known up to a sign have the prior's density, of entropy ½ log 2πe; the intensity has the variance 2."""
    point = ga.solve_bayes_state_evolution(PHASE, 0.4)
    assert not point.q.any()
    assert np.allclose(point.V, 1.0, rtol=1e-12)
    assert point.free_entropy == pytest.approx(-0.4 * 0.5 * np.log(2 * np.pi * np.e), rel=1e-9)
    assert 0 < point.free_entropy_error < 1e-8
    assert point.test_error == pytest.approx(2.0, rel=1e-9)


@pytest.mark.parametrize("init", ["uninformed", "informed"])
@pytest.mark.parametrize(("n_tokens", "alpha"), [(2, 0.168), (2, 0.45), (4, 0.06)])
def test_fixed_points_are_on_the_curve_of_all_fixed_points(n_tokens, alpha, init):
    """The same point for both starts, also next to weak recovery, at 1/6 and 1/20, where q = 0 hardly repels."""
    model = ga.attention_model(n_tokens)
    solution = ga.solve_bayes_state_evolution(model, alpha, init)
    exact = AlphaCurve(build_equations(model)).find_crossing(alpha, np.log(1e-6), np.log(1e3))
    assert solution.converged
    assert is_within(solution.q[0, 0], solution.q_error[0, 0], exact.input.q[0, 0])


@pytest.mark.parametrize("alpha", [0.15, 0.45])
def test_free_entropy_is_stationary_at_fixed_points(alpha):
    """Its derivative with respect to α is E log Z of a sample."""
    model = ga.attention_model(2, coordinates=ga.coordinate_law(ga.power_law_spectrum(1.0, 3)))
    size = {"n_points": 512, "n_replicas": 2, "seed": 3}
    low, here, high = (ga.solve_bayes_state_evolution(model, alpha + 1e-3 * k, **size) for k in (-1, 0, 1))
    sampled = Equations(model, 512, np.random.default_rng(3))
    growth = (high.free_entropy - low.free_entropy) / 2e-3
    assert growth == pytest.approx(sampled.output(here.V).log_z, rel=2e-3)


def test_atoms_with_a_sign_have_their_known_transitions():
    """Signs determine binary weights above α = 1.245, and message passing finds them above α = 1.493 (Györgyi 1990)."""
    thresholds = ga.bayes_thresholds(replace(SIGN, coordinates=SIGNS), n_points=64)
    assert thresholds.hard == pytest.approx((1.245, 1.493), abs=2e-3)
    assert thresholds.full_recovery == pytest.approx(1.493, abs=2e-3)


def test_test_error_without_information_equals_the_linear_baseline():
    model = ga.paper_model(omega=0.3)
    solution = ga.solve_bayes_state_evolution(model, 0.1)
    assert solution.q[0, 0] == pytest.approx(0, abs=1e-8)
    baseline = ga.linear_baseline(model).test_error
    assert solution.test_error == pytest.approx(baseline, abs=3 * solution.test_error_error + 1e-3 * baseline)


ALPHAS = (1e-3, 0.1, 1.05, 30.0, 1e4)


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
    assert not solution.full
    assert is_within(solution.V[0, 0, 0], solution.V_error[0, 0, 0], V, 1e-13)
    assert is_within(solution.q[0, 0], solution.q_error[0, 0], V * s, 1e-13)  # 1 − V loses digits by cancellation
    assert is_within(solution.test_error, solution.test_error_error, V + noise**2, 1e-13)
    assert is_within(solution.free_entropy, solution.free_entropy_error, entropy, 1e-12)
    assert 0 < solution.V_error[0, 0, 0] < 1e-8 * V


@pytest.mark.parametrize("noise", [1e-7, 1e-8])
def test_errors_hold_where_noise_is_below_the_rounding_of_v(noise):
    """V = Δ²/(α − 1) for Δ → 0."""
    solution = ga.solve_bayes_state_evolution(build_linear(noise), 1000.0)
    assert solution.status is ga.Status.INACCURATE
    assert is_within(solution.V[0, 0, 0], solution.V_error[0, 0, 0], noise**2 / 999.0)
    assert is_within(solution.test_error, solution.test_error_error, noise**2 * 1000 / 999)


def test_recovery_threshold_without_noise_has_a_status():
    """At α = 1/2 an iteration from complete information does not change V, and the Jacobian is zero."""
    solution = ga.solve_bayes_state_evolution(ga.paper_model(0.3), 0.5, "informed")
    assert solution.q[0, 0] == pytest.approx(1)


def test_linear_labels_of_several_columns_and_tokens():
    """Columns are independent; tokens of variances γ_l give 1/C = 1 + α Σ γ_l/(γ_l C + Δ²)."""
    gamma, noise, alpha = np.array([1.0, 0.25, 0.04]), 0.5, 7.0
    solution = ga.solve_bayes_state_evolution(build_linear(noise, n_tokens=3, rank=2, sigma=np.sqrt(gamma)), alpha)
    C = 1 - solution.q[0, 0]
    assert pytest.approx(1 + alpha * np.sum(gamma / (gamma * C + noise**2)), rel=1e-9) == 1 / C
    np.testing.assert_allclose(solution.V, gamma[:, None, None] * C * np.eye(2), rtol=1e-9)


@pytest.mark.parametrize("temperature", [0.1, 5.0])
@pytest.mark.parametrize("alpha", [1e-3, 1e4])
def test_logistic_labels_agree_with_quadrature(temperature, alpha):
    solution = ga.solve_bayes_state_evolution(build_logistic(temperature), alpha)
    V = solution.V[0, 0, 0]
    square, error = logistic_square(V, temperature)
    assert 1 / (1 + alpha * square) == pytest.approx(V, rel=1e-9)
    assert is_within(solution.test_error, solution.test_error_error, error)


LAWS = {
    "linear without noise": build_linear(0.0),
    "signs of four tokens": build_logistic(0.0, n_tokens=4),
    "logistic": build_logistic(0.4),
    "nearly signs": build_logistic(1e-3),
    "phase retrieval": build_intensity(0.0),
    "binary weights, signs": replace(SIGN, coordinates=SIGNS),
    "sparse weights, linear": replace(build_linear(0.1), coordinates=SPARSE),
    "two tokens": ga.attention_model(2),
    "tokens that differ": ga.attention_model(
        3, coordinates=ga.coordinate_law(np.array([[1.0, 0.2, 0.5], [0.3, 0.9, 0.1]]), n_tokens=3)
    ),
    "score noise": ga.attention_model(2, sigma=1.0, score_noise=0.3),
}


@pytest.mark.slow(keep=4)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", LAWS)
def test_every_problem_has_fixed_points_at_every_alpha(name):
    last = np.inf
    for alpha in ALPHAS[::2]:
        uninformed, informed = (
            ga.solve_bayes_state_evolution(LAWS[name], alpha, init, n_points=128, n_replicas=2)
            for init in ("uninformed", "informed")
        )
        for point in (uninformed, informed):
            assert point.status in (ga.Status.CONVERGED, ga.Status.INACCURATE)
            assert point.residual < 1e-3
            assert np.isfinite(point.q).all()
            assert (np.linalg.eigvalsh(point.V) >= 0).all()
            assert np.isfinite(point.free_entropy) or point.full
        slack = np.nan_to_num(uninformed.q_error + informed.q_error, nan=np.inf).max()
        assert np.trace(uninformed.q) <= np.trace(informed.q) + slack + 1e-9
        unknown = float(np.trace(uninformed.V.sum(axis=0)))
        assert unknown <= last + slack
        last = unknown + slack


def test_status_is_inaccurate_if_sets_of_points_disagree():
    """Just above weak recovery some sets of few points have the fixed point, others do not."""
    model = ga.attention_model(2, sigma=1.0, score_noise=0.3)
    solve = ga.solve_bayes_state_evolution
    status = [solve(model, alpha, n_points=128, n_replicas=4).status for alpha in (0.85, 0.95, 1.05)]
    assert ga.Status.INACCURATE in status
    assert solve(model, 8.0, n_points=128, n_replicas=4).status is ga.Status.CONVERGED


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
    solution = ga.solve_bayes_state_evolution(replace(build_linear(0.5), coordinates=SIGNS), precision * (V + 0.25))
    assert is_within(solution.V[0, 0, 0], solution.V_error[0, 0, 0], V)
