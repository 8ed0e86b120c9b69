"""Limits of Hessian spectra, compared with closed forms and with eigenvalues at finite d."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

import gamp_attention as ga

RIDGE = 0.3


def linear_model(spike=0.0, spectrum=1.0):
    """Return linear regression on one token, in which the Hessian is a sample covariance matrix plus λ."""
    model = ga.glm_model(loss=ga.SquaredLoss(), labels=ga.LinearLabels(), lam=RIDGE)
    return replace(model, coordinates=ga.coordinate_law(spectrum, tau=[np.sqrt(spike)], n_tokens=1))


@lru_cache
def solve(model, alpha, init="semantic", rtol=1e-3):
    return ga.solve_state_evolution(model, alpha, init, rtol=rtol, stability=False)


def marchenko_pastur(x, width, alpha):
    """Return the density of XᵀX/d + λ for n = αd rows, convolved with a Cauchy distribution."""
    z = x - RIDGE + 1j * width
    roots = np.array([np.roots([value, value - alpha + 1, 1]) for value in z])  # of the Stieltjes transform
    return roots.imag.max(axis=1) / np.pi


@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_linear_regression_has_the_marchenko_pastur_law(alpha):
    model = linear_model()
    x = np.linspace(0.2, 7.0, 9)
    spectrum = ga.limiting_spectrum(model, alpha, solve(model, alpha), x, 0.05, n_points=64, n_replicas=2)
    if alpha > 1:  # below, a fraction 1 − α of the eigenvalues is λ
        assert spectrum.lower_edge == pytest.approx(RIDGE + (1 - np.sqrt(alpha)) ** 2, rel=1e-6)
    assert spectrum.upper_edge == pytest.approx(RIDGE + (1 + np.sqrt(alpha)) ** 2, rel=1e-6)
    assert np.allclose(spectrum.density, marchenko_pastur(x, 0.05, alpha), rtol=1e-6)
    assert len(spectrum.eigenvalues) == 0
    assert spectrum.width == 0.05


@pytest.mark.parametrize("spike", [0.5, 2.0])
def test_a_spike_has_the_eigenvalue_and_the_overlap_of_a_spiked_covariance(spike):
    """Baik, Ben Arous and Péché (2005), with its threshold at spike = 1/√α."""
    alpha = 2.0
    model = linear_model(spike)
    spectrum = ga.limiting_spectrum(model, alpha, solve(model, alpha), [1.0], n_points=64, n_replicas=2)
    if spike < 1 / np.sqrt(alpha):
        assert len(spectrum.eigenvalues) == 0
        return
    assert spectrum.eigenvalues == pytest.approx([RIDGE + (1 + spike) * (alpha + 1 / spike)], rel=1e-6)
    overlap = np.sqrt((1 - 1 / (alpha * spike**2)) / (1 + 1 / (alpha * spike)))
    assert spectrum.positions == pytest.approx([overlap], rel=1e-5)
    data = ga.sample(model, d=600, alpha=alpha, seed=0)
    measured = ga.hessian_spectrum(data, data.Q_star)
    assert measured.eigenvalues[-1:] == pytest.approx(spectrum.eigenvalues, rel=0.1)
    assert measured.positions[-1:] == pytest.approx(spectrum.positions, abs=0.05)


def test_means_of_classes_along_the_teacher_are_a_spike():
    """Tokens ±Q*/√d + N(0, 1) have a covariance with the spike 1 along the teacher."""
    model = ga.sequence_model(
        lambda u, noise, c: 2.0 * c - 1 + 0 * u[0, 0], lambda z: z[0, 0],
        n_tokens=1, rank=1, lam=RIDGE, classes=[0.5, 0.5], spikes=[[[1.0]], [[-1.0]]],
    )  # fmt: skip
    spectrum = ga.limiting_spectrum(model, 2.0, solve(model, 2.0, "random"), [1.0], n_points=64, n_replicas=2)
    assert spectrum.eigenvalues == pytest.approx([RIDGE + 6], rel=1e-4)
    assert spectrum.teacher == pytest.approx([3**-0.5], rel=1e-3)


def test_correlated_coordinates_agree_with_eigenvalues_at_finite_d():
    model = linear_model(spectrum=ga.power_law_spectrum(1.0, n_classes=4, variance=1.0))
    x, width = np.linspace(0.2, 5.0, 20), 0.1
    spectrum = ga.limiting_spectrum(model, 2.0, solve(model, 2.0), x, width, n_points=64, n_replicas=2)
    data = ga.sample(model, d=800, alpha=2.0, seed=0)
    rows = data.tokens[:, 0] / np.sqrt(800)
    values = np.linalg.eigvalsh(rows.T @ rows) + RIDGE
    exact = (width / np.pi / ((values[:, None] - x) ** 2 + width**2)).mean(axis=0)
    assert np.abs(spectrum.density - exact).max() < 0.02 * exact.max()
    assert spectrum.upper_edge == pytest.approx(values[-1], rel=0.03)


def eigenvalues_at_minima(model, alpha, init, d, seeds, n_probes=2):
    """Return spectra of Hessians of the asymptotic risk at minima that message passing finds."""
    spectra = []
    for seed in range(seeds):
        data = ga.sample(model, d=d, alpha=alpha, seed=seed)
        result = ga.run_gamp(data, init, "asymptotic", max_iter=1000)
        spectra.append(ga.hessian_spectrum(data, result.Q, "asymptotic", n_probes=n_probes))
    return spectra


LOGISTIC = ga.glm_model(loss=ga.LogisticLoss(), labels=ga.LogisticLabels(), n_tokens=1, sigma=1.0, lam=0.1)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("model", "alpha", "init"),
    [(ga.paper_model(0.3), 1.5, "semantic"), (LOGISTIC, 3.0, "semantic")],
    ids=["semantic", "logistic"],
)
def test_density_agrees_with_minima_at_finite_d(model, alpha, init):
    se = solve(model, alpha, init, 2e-3)
    theory = ga.limiting_spectrum(model, alpha, se, n_points=128, n_replicas=2)
    assert np.trapezoid(theory.density, theory.x) == pytest.approx(1, abs=0.03)
    spectra = eigenvalues_at_minima(model, alpha, init, 300, 2, n_probes=20)
    width = 3 * theory.width
    theory = ga.limiting_spectrum(model, alpha, se, theory.x, width, n_points=512, n_replicas=2)
    measured = np.mean([spectrum.density(theory.x, width)[0] for spectrum in spectra], axis=0)
    assert np.trapezoid(np.abs(measured - theory.density), theory.x) < 0.06


def test_variances_of_a_convex_problem_equal_state_evolution():
    se = solve(LOGISTIC, 3.0, rtol=1e-4)
    theory = ga.limiting_spectrum(LOGISTIC, 3.0, se, [1.0])
    assert np.abs(theory.V - se.overlaps.V).max() < theory.V_error.max() + 1e-3 * se.overlaps.V.max()
    assert theory.V_error.max() < 0.02 * se.overlaps.V.max()
    assert theory.lower_edge > 0.1


@pytest.mark.slow
def test_eigenvalues_outside_and_their_directions_agree_with_minima_at_finite_d():
    model = ga.paper_model(0.3)
    theory = ga.limiting_spectrum(model, 1.5, solve(model, 1.5), [0.02])
    spectra = eigenvalues_at_minima(model, 1.5, "semantic", 1000, 6)
    rows = np.array([[s.highest[-2], s.highest[-1], s.teacher[-2], s.weights[-2], s.positions[-1]] for s in spectra])
    mean, error = rows.mean(axis=0), rows.std(axis=0, ddof=1) / np.sqrt(len(rows))
    predicted = [*theory.eigenvalues, theory.teacher[0], theory.weights[0], theory.positions[1]]
    assert (np.abs(mean - predicted) < 4 * error + [1e-3, 1e-3, 0.01, 0.01, 0.01]).all()
    assert mean[0] > 0.0839 + 2 * error[0]


def test_jumps_of_the_proximal_map_lower_the_variances_and_determine_the_lower_edge():
    model = ga.paper_model(0.3)
    se = solve(model, 1.5, "positional")
    theory = ga.limiting_spectrum(model, 1.5, se, [0.02], n_replicas=3)
    assert 0 < theory.lower_edge < 0.002
    assert theory.V.max() + theory.V_error.max() < se.overlaps.V.max()
    assert theory.positions == pytest.approx([0.919], abs=0.005)
    # the bulk begins at Σ_l γ_l |jump mass|, γ = σ² = 1/4, because V(x) ends at the V of the fixed point there
    edge, error = -0.25 * se.jump_mass.sum(), 0.25 * se.jump_mass_error.sum()
    assert abs(theory.lower_edge - edge) < 2 * theory.lower_edge_error + error


def test_one_step_of_breaking_weights_the_fields_of_minima_in_their_clusters():
    """Without overlap between clusters, the fields of a minimum have the density exp(−y M(ω)) N(ω; 0, q_1)."""
    model = ga.glm_model(loss=ga.PhaseRetrievalLoss(), labels=ga.IntensityLabels(), n_tokens=1, sigma=1.0, lam=0.1)
    alpha, y = 3.0, 0.2
    se = ga.solve_broken(model, alpha, "random", parisi=[y], rtol=3e-2)
    q_0, q_1 = se.levels[:, 0, 0, 0]
    assert q_0 < 1e-3 * q_1
    theory = ga.limiting_spectrum(model, alpha, se, [1.0], n_points=1024)
    assert len(theory.eigenvalues) == 0
    # the same average by a product rule over the teacher's field and the student's field
    u, weight_u = np.polynomial.hermite_e.hermegauss(40)
    w, weight_w = np.polynomial.hermite_e.hermegauss(120)
    labels, fields = (v.ravel() for v in np.meshgrid(u, np.sqrt(q_1) * w, indexing="ij"))
    terms = model.task.terms(labels[:, None, None], np.zeros((len(labels), model.task.n_noise)))
    out = ga.denoise(model.loss, terms.params, fields[:, None, None], se.overlaps.V)
    tilted = weight_w * np.exp(-y * out.moreau.reshape(40, 120))
    weight = (weight_u / weight_u.sum())[:, None] * tilted / tilted.sum(axis=1, keepdims=True)
    response = out.response.ravel()
    D = response / (1 - se.overlaps.V.ravel() * response)
    V = 1.0
    for _ in range(500):
        V = 0.5 * V + 0.5 / (model.penalty.lam + alpha * np.sum(weight.ravel() * D / (1 + V * D)))
    assert theory.V.ravel() == pytest.approx([V], rel=0.03)
    assert 0.5 * se.overlaps.V.max() > V  # the proximal map jumps for many samples


BAD = {
    "n_points": lambda model, se: ga.limiting_spectrum(model, 1.5, se, n_points=65),
    "n_replicas": lambda model, se: ga.limiting_spectrum(model, 1.5, se, n_replicas=1),
    "width": lambda model, se: ga.limiting_spectrum(model, 1.5, se, width=0.0),
    "x": lambda model, se: ga.limiting_spectrum(model, 1.5, se, [0.2, 0.1]),
    "alpha": lambda model, se: ga.limiting_spectrum(model, 0.0, se),
    "fixed_point": lambda model, se: ga.limiting_spectrum(ga.attention_model(3), 1.5, se),
    "Hessian": lambda model, se: ga.limiting_spectrum(ga.attention_model(penalty=ga.ElasticNet(0.1, 0.1)), 1.5, se),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_refused_by_name(words):
    with pytest.raises(ValueError, match=words):
        BAD[words](ga.paper_model(), solve(ga.paper_model(), 1.5, rtol=1e-2))
