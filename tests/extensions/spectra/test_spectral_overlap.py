"""Spectra of spectral starts for d → ∞, compared with closed forms and with matrices at finite d."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.spectra.spectrum import Ensemble, lowest_edge
from gamp_attention.extensions.train.spectral import lowest_eigenvectors


def measure_at_finite_d(model, alpha, weights, d, k, instances=4):
    """Return means and standard errors of k eigenvalues and of their overlaps with teacher and positions."""
    rows = []
    for seed in range(instances):
        data = ga.sample(model, d=d, alpha=alpha, seed=seed)
        posterior = weights == "posterior"
        directions = ga.posterior_directions(data, k) if posterior else ga.spectral_directions(data, k, weights)
        spans = [np.linalg.qr(each)[0] for each in (data.Q_star, data.positions.T)]
        shares = [[np.linalg.norm(span.T @ v) for v in directions.vectors] for span in spans]
        rows.append([directions.eigenvalues, *shares])
    return np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) / np.sqrt(instances)


@pytest.mark.parametrize("alpha", [0.3, 2.0, 4.0])
def test_edge_of_a_wishart_matrix_is_the_marchenko_pastur_edge(alpha):
    """X̃ᵀX̃ of two tokens of variance v is a Wishart matrix of 2n rows."""
    variance, ratio = 0.7, 2 * alpha
    law = ga.coordinate_law(variance)
    h = np.tile(np.eye(2).reshape(2, 1, 2, 1), (4, 1, 1, 1, 1))
    edge = lowest_edge(Ensemble(law, alpha, -h, np.zeros((4, 2, 1))))[-1]
    assert edge.x == pytest.approx(-variance * (1 + np.sqrt(ratio)) ** 2, rel=1e-8)
    assert (edge.V > 0).all()


PAPER = ga.paper_model(omega=0.2, sigma=0.8)
INTENSITIES = ga.glm_model(loss=ga.PhaseRetrievalLoss(), labels=ga.IntensityLabels(), n_tokens=1, sigma=1.0)
NOISY = ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.3)
TWO_COLUMNS = ga.attention_model(3, 2, 2, sigma=0.8)
UNTIED = ga.attention_model(2, 2, student=ga.DotProductAttention(tied=False), sigma=0.8)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("model", "alpha", "weights"),
    [
        (PAPER, 1.5, "fitted"),
        (PAPER, 4.0, "hessian"),
        (INTENSITIES, 3.0, "fitted"),
        (UNTIED, 3.0, "fitted"),
        (NOISY, 4.0, "posterior"),
        (PAPER, 0.5, "posterior"),
        (INTENSITIES, 2.0, "posterior"),
        (TWO_COLUMNS, 1.0, "posterior"),
    ],
    ids=["paper", "paper, Hessian", "phase retrieval", "untied", "noisy scores", "known", "intensities", "two columns"],
)
def test_eigenvalues_and_overlaps_agree_with_large_matrices(model, alpha, weights):
    theory = ga.spectral_overlap(model, alpha, weights, n_points=1024, n_replicas=3)
    k = len(theory.eigenvalues)
    assert k >= 1
    mean, error = measure_at_finite_d(model, alpha, weights, 500, k)
    scale = abs(theory.edge)
    assert (
        np.abs(mean[0] - theory.eigenvalues).max() < 4 * error[0].max() + theory.eigenvalues_error.max() + 0.03 * scale
    )
    seen = theory.teacher > 0.3
    assert np.abs(mean[1] - theory.teacher)[seen].max(initial=0) < 4 * error[1].max() + 0.03
    seen = theory.positions > 0.3
    assert np.abs(mean[2] - theory.positions)[seen].max(initial=0) < 4 * error[2].max() + 0.03
    assert seen.any() or (theory.teacher > 0.3).any()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("n_tokens", "weak"), [(2, 1 / 6), (3, 1 / 12), (4, 1 / 20)])
def test_posterior_weights_reach_weak_recovery(n_tokens, weak):
    """At α = 1/(L(L+1)) without noise; the strength is √(α/α_w) near it."""
    model = ga.attention_model(n_tokens, sigma=0.5)
    for ratio in (0.93, 1.07):
        predicted = ga.spectral_overlap(model, ratio * weak, "posterior", n_points=2048, n_replicas=3)
        assert predicted.strength == pytest.approx(np.sqrt(ratio), abs=0.005 + predicted.strength_error)
        assert len(predicted.eigenvalues) == (ratio > 1)


def test_a_start_from_the_posterior_needs_fewer_samples():
    """With half of the samples that fitted weights need, it leads to the same solution as the teacher."""
    data = ga.sample(PAPER, 300, 0.75, seed=0)
    informed, spectral = (ga.run_gamp(data, init, "exact") for init in ("semantic", ga.posterior_start(data)))
    assert spectral.train_loss == pytest.approx(informed.train_loss, rel=1e-6)
    assert ga.minimize_risk(data, init=ga.posterior_start(data), risk="exact", method="lbfgs").converged
    with pytest.raises(ValueError, match="data: needs samples that were drawn from a model"):
        ga.posterior_start(ga.Dataset(data.tokens, data.outputs, data.positions))


def test_invalid_arguments_raise_named_errors():
    model = ga.paper_model()
    for options, text in [
        ({"alpha": 0}, "alpha"),
        ({"alpha": 1, "weights": "best"}, "weights"),
        ({"alpha": 1, "n_points": 65}, "n_points"),
        ({"alpha": 1, "n_replicas": 1}, "n_replicas"),
    ]:
        with pytest.raises(ValueError, match=text):
            ga.spectral_overlap(model, **options)
    mixture = ga.mixture_model(classes=[[0.25, 0.25], [0.25, 0.25]], means=np.eye(2))
    with pytest.raises(ValueError, match="model"):
        ga.spectral_overlap(mixture, 1.0)
    own = ga.Dataset(np.ones((20, 2, 9)), np.ones((20, 2, 9)), np.zeros((2, 9)))
    with pytest.raises(ValueError, match="weights"):
        ga.spectral_directions(own, weights="none")
    for data in (own, ga.sample(UNTIED, 9, 1.0)):
        with pytest.raises(ValueError, match="data: needs"):
            ga.posterior_directions(data)
    with pytest.raises(ValueError, match="weights"):
        ga.spectral_overlap(UNTIED, 1.0, "posterior")


@pytest.mark.parametrize("risk", ["exact", "asymptotic"])
def test_directions_are_the_lowest_eigenvectors_of_the_hessian_at_zero(risk):
    """The initial vector of the Lanczos iteration does not change them."""
    data = ga.sample(ga.paper_model(sigma=0.8), 70, 1.5, seed=0)
    directions = ga.spectral_directions(data, k=4, weights="hessian", risk=risk)
    other = ga.spectral_directions(data, k=4, weights="hessian", risk=risk, seed=np.random.default_rng(3))
    assert other.eigenvalues == pytest.approx(directions.eigenvalues, rel=1e-6)
    step = 1e-5
    hessian = np.stack([ga.gradient(data, step * unit[:, None], risk)[:, 0] / step for unit in np.eye(70)])
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T) - data.lam * np.eye(70))
    assert directions.eigenvalues == pytest.approx(values[:4], rel=1e-4)
    assert np.abs(np.sum(directions.vectors[:, :, 0].T * vectors[:, :4], axis=0)) == pytest.approx(np.ones(4), abs=1e-2)
    small = ga.sample(ga.paper_model(sigma=0.8), 9, 1.5, seed=0)
    h = np.ones((small.n_samples, 2, 2))
    assert len(lowest_eigenvectors(small.matrix, h, 1, 30, np.random.default_rng(0))[0]) == 9
