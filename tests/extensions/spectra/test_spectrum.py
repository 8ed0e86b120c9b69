"""Spectra of Hessians at given weights, compared with all eigenvalues of the Hessian by finite differences."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import compute_hessian


def all_eigenvalues(data, Q, risk):
    """Return all eigenvalues and eigenvectors of the Hessian, by central differences of the gradient."""
    hessian = compute_hessian(data, Q, risk, step=1e-4)
    return np.linalg.eigh(0.5 * (hessian + hessian.T))


PAPER = ga.paper_model(0.3, sigma=0.8)
TWO_COLUMNS = ga.attention_model(3, 2, 2, sigma=0.8)
MIXTURE = ga.mixture_model([[0.5, 0.2], [0.1, 0.2]], [[1.0, -1.0], [0.5, -0.5]])
LOGISTIC = ga.glm_model(loss=ga.LogisticLoss(), labels=ga.LogisticLabels(), n_tokens=1, sigma=1.0, lam=0.1)


@pytest.fixture(scope="module", params=["paper", "asymptotic", "two columns", "mixture", "labels"])
def case(request):
    """Data, weights that are no minimum, the name of the risk, and the exact spectrum."""
    model = {"two columns": TWO_COLUMNS, "mixture": MIXTURE, "labels": LOGISTIC}.get(request.param, PAPER)
    risk = "asymptotic" if request.param == "asymptotic" else "exact"
    data = ga.sample(model, d=50, alpha=1.5, seed=3)
    Q = data.Q_star[:, : model.rank] * 0.7 + np.random.default_rng(0).standard_normal((50, model.rank))
    return data, Q, risk, all_eigenvalues(data, Q, risk)


def test_extreme_eigenvalues_agree_with_the_dense_hessian(case):
    data, Q, risk, (values, _) = case
    spectrum = ga.hessian_spectrum(data, Q, risk, n_eigenvalues=6)
    scale = np.abs(values).max()
    assert np.allclose(spectrum.lowest, values[:6], atol=1e-5 * scale)
    assert np.allclose(spectrum.highest, values[-6:], atol=1e-5 * scale)
    assert (np.abs(spectrum.lowest - values[:6]) <= spectrum.lowest_error + 1e-6 * scale).all()
    assert (np.abs(spectrum.highest - values[-6:]) <= spectrum.highest_error + 1e-6 * scale).all()


def test_averages_and_densities_agree_with_the_dense_hessian_within_their_errors(case):
    data, Q, risk, (values, _) = case
    spectrum = ga.hessian_spectrum(data, Q, risk, n_probes=40, seed=5)
    scale = float(np.abs(values).max())
    for function in (lambda x: x / scale, lambda x: (x / scale) ** 2, lambda x: np.exp(-x / scale)):
        mean, error = spectrum.average(function)
        exact = function(values).mean()
        assert abs(mean[0] - exact) < 4.5 * error[0] + 1e-6
        assert 0 < error[0] < 0.2 * abs(exact) + 0.02
    x, width = np.linspace(values[0], values[-1], 30), 0.05 * scale
    density, error = spectrum.density(x, width)
    exact = (width / np.pi / ((values[:, None] - x) ** 2 + width**2)).mean(axis=0)
    assert (np.abs(density - exact) < 5 * error + 1e-6 / scale).all()


def test_a_full_gauss_rule_is_exact_for_every_function():
    """With one step for each weight, mean values of a vector are exact, also of functions that vary fast."""
    data = ga.sample(PAPER, d=30, alpha=1.5, seed=1)
    spectrum = ga.hessian_spectrum(data, data.Q_star, n_steps=30, n_probes=3)
    values = all_eigenvalues(data, data.Q_star, "exact")[0]
    for nodes in spectrum.nodes:
        assert np.allclose(nodes, values, atol=1e-6 * np.abs(values).max())
    assert np.allclose(spectrum.node_weights.sum(axis=1), 1)


def test_directions_of_outside_eigenvalues_are_projected_on_teacher_weights_and_positions():
    data = ga.sample(ga.paper_model(0.3), d=200, alpha=1.5, seed=0)
    result = ga.run_gamp(data, "positional")
    spectrum = ga.hessian_spectrum(data, result.Q)
    values, vectors = all_eigenvalues(data, result.Q, "exact")
    assert spectrum.eigenvalues[-1] == pytest.approx(values[-1], rel=1e-6)
    assert values[-1] > 2 * values[-2]
    assert spectrum.vectors[-1].shape == (200, 1)
    assert np.array_equal(spectrum.vectors[-1], spectrum.highest_vectors[-1])
    assert abs(np.sum(spectrum.lowest_vectors[0] * vectors[:, :1])) == pytest.approx(1, abs=1e-3)
    for name, columns in (("teacher", data.Q_star), ("weights", result.Q), ("positions", data.positions.T)):
        span = np.linalg.svd(columns, full_matrices=False)[0][:, :1]
        assert getattr(spectrum, name)[-1] == pytest.approx(np.linalg.norm(span.T @ vectors[:, -1]), abs=1e-5)


def test_rotations_are_left_out_at_a_minimum():
    data = ga.sample(ga.attention_model(2, 2, 2, sigma=0.8), d=80, alpha=2.0, seed=0)
    Q = ga.run_gamp(data).Q
    values = all_eigenvalues(data, Q, "exact")[0]
    flat = np.argmin(np.abs(values))
    assert abs(values[flat]) < 1e-6 * values[-1]
    spectrum = ga.hessian_spectrum(data, Q, n_eigenvalues=5)
    assert np.allclose(spectrum.lowest, np.delete(values, flat)[:5], atol=1e-5 * values[-1])


@pytest.mark.parametrize(
    ("words", "options"),
    [("n_probes", {"n_probes": 1}), ("n_steps", {"n_steps": 1}), ("n_eigenvalues", {"n_eigenvalues": 0}),
     ("risk", {"risk": "other"}), ("Q", {"Q": np.zeros((3, 1))})],
)  # fmt: skip
def test_bad_input_is_refused_by_name(words, options):
    data = ga.sample(ga.paper_model(), d=20, alpha=1.0, seed=0)
    with pytest.raises(ValueError, match=words):
        ga.hessian_spectrum(**{"data": data, "Q": data.Q_star, **options})


@ga.register_loss
class AbsoluteLoss(NamedTuple):
    convex = True

    def value(self, p, z):
        return abs(p[0] - z[0, 0])


def test_a_loss_with_kinks_has_no_spectrum():
    """At a minimum, many fields are exactly at a kink."""
    model = ga.glm_model(AbsoluteLoss(), ga.LinearLabels(noise=0.5), lam=0.3)
    data = ga.sample(model, d=20, alpha=2.0, seed=0)
    with pytest.raises(ValueError, match=r"data: needs a loss without kinks, .* got AbsoluteLoss"):
        ga.hessian_spectrum(data, data.Q_star)
    fixed_point = ga.solve_state_evolution(model, 2.0, rtol=1e-2, stability=False)
    with pytest.raises(ValueError, match="model: needs a loss without kinks"):
        ga.limiting_spectrum(model, 2.0, fixed_point, n_points=64)
