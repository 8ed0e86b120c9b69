"""State evolution of Bayes-optimal message passing: identities, closed forms and published thresholds."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.bayes.channels.integrals import FINE
from gamp_attention.extensions.bayes.equations import Equations
from gamp_attention.extensions.bayes.priors import MixturePrior, kinds_of

PHASE = ga.glm_model(ga.PhaseRetrievalLoss())
SIGN = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0))
SIGNS = ga.CoordinateLaw([0.5, 0.5], np.ones((2, 1)), np.zeros((2, 1)), [[1.0], [-1.0]], np.zeros((2, 1, 1)))
SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.3), n_tokens=1)


def build_equations(model, n_points=8192):
    return Equations(model, n_points, np.random.default_rng(0))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("n_tokens", [2, 3, 4])
def test_weak_recovery_of_attention(n_tokens):
    """The threshold is 1/(L (L + 1)), by integrals along the curve and by samples at its end."""
    model = ga.attention_model(n_tokens)
    thresholds = ga.bayes_thresholds(model, n_points=512)
    assert thresholds.weak_recovery == pytest.approx(1 / (n_tokens * (n_tokens + 1)), rel=1e-5)
    assert thresholds.full_recovery == pytest.approx(1 / n_tokens, rel=1e-5)
    assert thresholds.hard is None
    assert 1 / build_equations(model).linear_growth() == pytest.approx(thresholds.weak_recovery, rel=0.03)


def test_weak_recovery_of_two_columns():
    """Rotations are not determined either, so that the number of samples is t times larger."""
    assert 1 / build_equations(ga.attention_model(3, 2, 2)).linear_growth() == pytest.approx(2 / 12, rel=0.03)


def test_growth_of_weak_signals_does_not_depend_on_the_number_of_columns():
    """Noisy scores of small fields are linear in u_l·u_m, so that E[u_l u_mᵀ | y] has equal entries for any t."""
    one, two = (build_equations(ga.attention_model(2, t, t, sigma=0.1, score_noise=1.0), 1024) for t in (1, 2))
    assert two.linear_growth() == pytest.approx(one.linear_growth(), rel=2e-3)


def integrate_gram_matrix(teacher, y, noise, n=24):
    """Return E[u_l·u_m | y]/t − δ_lm (n, 2, 2) of two tokens with two columns of variance 1, in polar coordinates."""
    x, weight = np.polynomial.legendre.leggauss(n)
    r = 4.25 * (x + 1)
    weight = weight * r * np.exp(-0.5 * r**2)
    first, second, angle = (each.ravel() for each in np.meshgrid(r, r, np.pi * (np.arange(2 * n) + 0.5) / (2 * n)))
    fields = np.zeros((len(first), 2, 2))
    fields[:, 0, 0], fields[:, 1] = first, (second * np.array([np.cos(angle), np.sin(angle)])).T
    prior = np.log(np.repeat(np.outer(weight, weight).ravel(), 2 * n))
    squares = ((teacher(fields).reshape(-1, 1, 4) - y.reshape(1, -1, 4)) ** 2).sum(axis=2)
    logs = prior[:, None] - 0.5 * squares / noise**2
    weights = np.exp(logs - logs.max(axis=0))
    gram = np.einsum("jla,jma->jlm", fields, fields) / 2
    return np.einsum("jn,jlm->nlm", weights / weights.sum(axis=0), gram) - np.eye(2)


@pytest.mark.parametrize("spread", [1.0, 0.5])
def test_growth_of_columns_is_an_eigenvalue_of_symmetric_overlaps(spread):
    """Overlaps are restricted to matrices that rotations of equal columns, and signs of all columns, do not change."""
    model = ga.attention_model(2, 2, 2, sigma=1.0, score_noise=0.3)
    cov = model.coordinates.teacher_cov * np.outer([1, spread], [1, spread])
    equations = Equations(
        replace(model, coordinates=replace(model.coordinates, teacher_cov=cov)), 64, np.random.default_rng(0)
    )
    growth = equations.growth_map(np.zeros_like(equations.rho), np.arange(2)).reshape(2, 4, 2, 4)
    unequal = growth[:, [0, 3]][:, :, :, [0, 3]]
    assert np.abs(growth).sum() == pytest.approx(np.abs(unequal).sum())
    assert np.allclose(unequal.sum(axis=3), unequal.sum(axis=3)[:, ::-1]) == (spread == 1.0)


@pytest.mark.slow
def test_growth_of_noisy_columns_has_no_bias_of_the_largest_eigenvalue():
    """The exact growth of the same samples, Σ E[(E[u_l·u_m | y]/t − δ_lm)²], is within errors of independent points."""
    model, rng, differences = ga.attention_model(2, 2, 2, sigma=1.0, score_noise=0.3), np.random.default_rng(0), []
    for _ in range(32):
        equations = Equations(model, 24, rng)
        y = equations.samples(equations.rho, np.zeros_like(equations.rho))[2]
        exact = np.sum(integrate_gram_matrix(model.teacher, y, 0.3) ** 2, axis=(1, 2)).mean()
        found = equations.linear_growth()
        equations.symmetries = None
        differences.append([found / exact - 1, equations.linear_growth() / exact - 1])
    mean, error = np.mean(differences, axis=0), np.std(differences, axis=0, ddof=1) / np.sqrt(32)
    assert error.max() < 1e-3
    assert abs(mean[0]) < 3 * error[0]
    assert mean[1] > 4 * error[1]  # the largest of four noisy eigenvalues, before symmetries were used


def test_weak_recovery_with_different_tokens_and_spectra():
    """Scaled tokens change nothing; of a spectrum, coordinates of large variance are found first."""
    unlike = ga.attention_model(3, sigma=[0.3, 0.6, 0.8])
    assert 1 / build_equations(unlike).linear_growth() == pytest.approx(1 / 12, rel=0.03)
    spectrum = ga.power_law_spectrum(1.0, 4)
    model = ga.attention_model(2, coordinates=ga.coordinate_law(spectrum))
    gain = spectrum.weight @ spectrum.values**2 / (spectrum.weight @ spectrum.values) ** 2
    assert 1 / build_equations(model).linear_growth() == pytest.approx(1 / 6 / gain, rel=0.02)


def test_phase_retrieval_has_its_published_thresholds():
    """Weak recovery 1/2, full recovery 1.128, hard phase from 1: Barbier et al. (2019), Maillard et al. (2020)."""
    thresholds = ga.bayes_thresholds(PHASE)
    assert thresholds.weak_recovery == pytest.approx(0.5, abs=1e-5)
    assert thresholds.full_recovery == pytest.approx(1.128, abs=1e-3)
    assert thresholds.hard == pytest.approx((1.0, thresholds.full_recovery), abs=1e-5)


@pytest.mark.parametrize(("model", "where"), [(ga.attention_model(2), 0.1), (PHASE, 0.02), (SIGN, 0.05)])
@pytest.mark.parametrize("v", [0.9, 0.3])
def test_integrals_are_averages_over_samples(model, where, v):
    sampled = build_equations(model, 1 << 16)
    V = v * sampled.rho
    hats, log_z = sampled.channel.integrate(sampled.rho - V, V, FINE)
    omega, _, y = sampled.samples(V)
    posterior = sampled.channel.posterior(y, omega, V)
    g = (posterior.mean - omega) / V[:, 0]
    np.testing.assert_allclose(hats[:, 0, 0], (g[:, :, 0] ** 2).mean(axis=0), rtol=where)
    assert log_z == pytest.approx(posterior.log_z.mean(), abs=where)


@pytest.mark.parametrize(
    "model",
    [ga.attention_model(3), ga.attention_model(3, 2, 2), ga.attention_model(2, sigma=1.0, score_noise=0.3), PHASE, SIGN,
     ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.5))],
)  # fmt: skip
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
    rng, n = np.random.default_rng(0), 400_000
    k = rng.choice(len(kind.prior.weight), size=n, p=kind.prior.weight)
    teacher = kind.prior.mean[k] + np.sqrt(kind.prior.cov[k][:, 0]) * rng.standard_normal((n, 1))
    posterior = kind.prior.posterior(A * teacher + np.sqrt(A) * rng.standard_normal((n, 1)), np.array([[A]]))
    V, known, log_z, _ = kind.prior.averages(np.array([[A]]))
    assert V[0, 0] + known[0, 0] == pytest.approx(kind.prior.second[0, 0], rel=1e-9)
    overlaps = posterior.mean * teacher, posterior.mean**2
    for each in overlaps:
        assert each.mean() == pytest.approx(kind.prior.second[0, 0] - V[0, 0], abs=5 * each.std() / np.sqrt(n))
    assert posterior.cov.mean() == pytest.approx(V[0, 0], abs=5 * posterior.cov.std() / np.sqrt(n) + 1e-12)
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


def test_linear_labels_have_the_closed_form_of_ridge_regression():
    """1/V = 1 + α/(V + Δ²), to rounding."""
    noise, alpha = 0.4, 1.3
    solution = ga.solve_bayes_state_evolution(
        ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise)), alpha, n_points=64, n_replicas=2
    )
    b = noise**2 + alpha - 1  # V² + bV − Δ² = 0
    V = 0.5 * (-b + np.sqrt(b**2 + 4 * noise**2))
    assert solution.V[0, 0, 0] == pytest.approx(V, rel=1e-8)
    assert solution.q[0, 0] == pytest.approx(1 - V, rel=1e-8)
    assert solution.stable


def test_ridge_with_the_optimal_penalty_is_bayes():
    """The package's state evolution of ridge regression at λ = Δ² has the same overlaps."""
    noise, alpha = 0.5, 1.5
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise), lam=noise**2)
    ridge = ga.solve_state_evolution(model, alpha, rtol=1e-10, stability=False)
    bayes = ga.solve_bayes_state_evolution(model, alpha, n_points=64, n_replicas=2)
    assert ridge.overlaps.q[0, 0, 0] == pytest.approx(bayes.q[0, 0], rel=1e-8)
    assert ridge.overlaps.theta[0, 0, 0] == pytest.approx(bayes.q[0, 0], rel=1e-8)


def test_fixed_point_without_overlap_has_the_entropy_of_the_prior():
    """Fields known up to a sign have the prior's density, of entropy ½ log 2πe; the intensity has the variance 2."""
    point = ga.bayes_fixed_points(PHASE, 1.1)[0]
    assert not point.q.any()
    assert np.allclose(point.V, 1.0, rtol=1e-12)
    assert point.free_entropy == pytest.approx(-1.1 * 0.5 * np.log(2 * np.pi * np.e), rel=1e-9)
    assert 0 < point.free_entropy_error < 1e-8
    assert point.test_error == pytest.approx(2.0, rel=1e-9)


def test_free_entropy_selects_among_fixed_points_of_phase_retrieval():
    fixed_points = ga.bayes_fixed_points(PHASE, 1.05, n_points=512)
    assert [each.stable for each in fixed_points] == [False, True, False, True]
    assert fixed_points[-1].full
    assert fixed_points[-1].free_entropy == np.inf
    assert [each.q[0, 0] for each in fixed_points] == sorted(each.q[0, 0] for each in fixed_points)
    assert ga.solve_bayes_state_evolution(PHASE, 1.05, "informed", n_points=512).full
    assert not ga.solve_bayes_state_evolution(PHASE, 1.05, n_points=512).full
    assert max(each.residual for each in fixed_points) < 1e-6


@pytest.mark.parametrize("alpha", [0.15, 0.3, 0.45])
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


def test_overlap_increases_with_data_and_decreases_with_noise():
    models = [ga.attention_model(2, sigma=1.0, score_noise=s) for s in (0.3, 0.6)]
    size = {"n_points": 256, "n_replicas": 2}
    q = [[ga.solve_bayes_state_evolution(m, a, **size).q[0, 0] for a in (2.0, 6.0)] for m in models]
    assert q[0][0] < q[0][1]
    assert q[1][1] < q[0][1]
