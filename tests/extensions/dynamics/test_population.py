"""Population loss: closed form, quadrature, and its minima on the sphere."""

import numpy as np
import pytest
from scipy.special import softmax

import gamp_attention as ga


def test_linear_regression_has_a_closed_form():
    """E ½ (u + s ξ − z)² = ½ (1 + s² − 2 θ + q) with m = 0, and + ½ m² with a position."""
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), tau=[1.0])
    q, m, theta = np.array([0.3, 1.2]), np.array([0.4, -0.1]), np.array([0.2, 0.7])
    unknown = np.full((2, 1, 1, 1), np.nan)
    at = ga.Overlaps(q[:, None, None, None], m[:, None, None], theta[:, None, None, None], unknown)
    loss = ga.population_loss(model, at, n_points=256)
    assert np.allclose(loss.value, 0.5 * (1.25 - 2 * theta + q + m**2), rtol=0, atol=1e-9)
    single = ga.population_loss(model, ga.Overlaps(at.q[0], at.m[0], at.theta[0], unknown[0]), n_points=256)
    assert np.isclose(single.value, loss.value[0], rtol=0, atol=1e-12)


def quadrature_loss(omega, A, e, c, nodes=24):
    """Return E ½ ‖T − S‖² by a product of Gauss-Hermite rules, for unit tokens, p_1 = −p_2 and ‖Q‖² = d."""
    x, weight = np.polynomial.hermite_e.hermegauss(nodes)
    u1, u2, w1, w2 = np.meshgrid(x, x, x, x, indexing="ij")
    weights = np.einsum("i,j,k,l->ijkl", *[weight / weight.sum()] * 4).ravel()
    u = np.stack([u1.ravel(), u2.ravel()], axis=1)
    z = c * u + np.sqrt(1 - c**2) * np.stack([w1.ravel(), w2.ravel()], axis=1) + e * np.array([1, -1])

    def attention(fields):
        return softmax(fields[:, :, None] * fields[:, None, :], axis=2)

    gap = (1 - omega) * attention(u) + omega * A - attention(z)
    return 0.5 * weights @ (gap**2).sum(axis=(1, 2))


A = softmax(np.array([[1.0, -1.0], [-1.0, 1.0]]), axis=1)


def test_attention_agrees_with_a_product_rule():
    model, errors = ga.paper_model(0.6, 1.0, A=A), []
    for e, c in ((0.0, 0.0), (0.6, 0.3), (0.1, 0.9)):
        at = ga.Overlaps(np.ones((2, 1, 1)), np.array([[e], [-e]]), np.full((2, 1, 1), c), np.ones((2, 1, 1)))
        loss = ga.population_loss(model, at, n_replicas=16)
        errors.append((loss.value - quadrature_loss(0.6, A, e, c)) / loss.error)
    assert np.abs(errors).max() < 4


@pytest.mark.parametrize(("omega", "expected"), [(0.3, [(0, 1)]), (0.67, [(0, 1), (1, 0)]), (1.0, [(1, 0)])])
def test_minima_of_attention_on_the_sphere(omega, expected):
    """Semantic, both, and positional (arXiv 2506.02651); descent from zero overlap changes direction at 0.64."""
    landscape = ga.population_map(ga.paper_model(omega, 1.0, A=A), n_grid=9, n_points=2048)
    found = [(at.positional, at.semantic) for at in landscape.minima]
    assert np.allclose(np.abs(found), expected, rtol=0, atol=0.03)
    positional, semantic = np.diag(landscape.curvature)
    assert (positional < semantic) == (omega > 0.64)
    assert np.isnan(landscape.loss[0, 0])


@pytest.mark.parametrize(
    ("model", "options", "name"),
    [
        (ga.attention_model(2, 2, 1), {}, "model"),
        (ga.paper_model(), {"n_grid": 3}, "n_grid"),
        (ga.paper_model(), {"n_points": 101}, "n_points"),
        (ga.paper_model(), {"n_replicas": 1}, "n_replicas"),
    ],
)
def test_bad_maps_are_named(model, options, name):
    with pytest.raises(ValueError, match=name):
        ga.population_map(model, **options)
