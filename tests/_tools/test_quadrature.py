"""Quadrature rules: exactness for polynomials, and the properties of Gaussian point sets."""

import numpy as np
import pytest

from gamp_attention._tools.quadrature import (
    gauss_hermite,
    gaussian_points,
    gaussian_weights,
    legendre_panels,
    legendre_rule,
    pruned_product,
    spaced_grid,
    tensor_grid,
    whiten_and_mirror,
)
from gamp_attention._tools.sobol import MAX_DIM, sobol_points


def test_gauss_hermite_averages_polynomials():
    x, weight = gauss_hermite(6)
    assert [weight @ x**k for k in (0, 2, 4, 10)] == pytest.approx([1, 1, 3, 945])


def test_legendre_panels_integrate_polynomials():
    x, weight = legendre_panels(np.array([-1.0, 0.5, 2.0]), 4)
    assert x.shape == weight.shape == (2, 4)
    assert np.sum(weight * x**7) == pytest.approx((2**8 - 1) / 8)


def test_legendre_tails_are_the_last_coefficients():
    rule = legendre_rule(5)
    values = np.polynomial.legendre.legval(rule.x, [1, 2, 3, 0.4, 0.5])
    assert rule.before @ values == pytest.approx([2, 3])
    assert rule.tail @ values == pytest.approx([0.4, 0.5])


def test_products_of_rules():
    x, weight = gauss_hermite(5)
    points, weights = pruned_product(x, weight, 2, 0.0)
    assert np.array_equal(points, tensor_grid(x, 2))
    assert weights @ (points[:, 0] ** 2 * points[:, 1] ** 4) == pytest.approx(3)
    assert len(pruned_product(x, weight, 2, 1e-3)[0]) < len(points)


@pytest.mark.parametrize("even", [False, True])
def test_spaced_grids_average_smooth_functions(even):
    points = spaced_grid(0.5, 2, 7.0, even)
    assert gaussian_weights(points) @ np.cos(points.sum(axis=1)) == pytest.approx(np.exp(-1))


def test_gaussian_points_are_symmetric_and_white():
    points = gaussian_points(256, 3, np.random.default_rng(0))
    assert np.array_equal(points[128:], -points[:128])
    assert points.T @ points / 256 == pytest.approx(np.eye(3))


def test_new_columns_are_orthogonal_to_earlier_columns():
    rng = np.random.default_rng(0)
    first = whiten_and_mirror(rng.standard_normal((64, 2)))
    second = whiten_and_mirror(rng.standard_normal((64, 3)), first)
    assert first.T @ second == pytest.approx(0, abs=1e-10)
    assert second.T @ second / 128 == pytest.approx(np.eye(3))


@pytest.mark.parametrize("dim", [1, 2, 5, MAX_DIM, MAX_DIM + 1])
def test_sobol_points_are_those_of_scipy_to_the_last_bit(dim):
    qmc = pytest.importorskip("scipy.stats.qmc")
    for n in (1, 2, 64, 1024):
        ours, theirs = np.random.default_rng(3), np.random.default_rng(3)
        assert np.array_equal(sobol_points(n, dim, ours), qmc.Sobol(dim, rng=theirs).random(n))
        assert ours.random() == theirs.random()
        assert np.array_equal(sobol_points(n, dim), qmc.Sobol(dim, scramble=False).random(n))
    first = sobol_points(1024, dim, np.random.default_rng(3))
    assert np.array_equal(sobol_points(700, dim, np.random.default_rng(3)), first[:700])
    # stratified in each coordinate: every interval of length 1/1024 has one point
    assert np.array_equal(np.sort((1024 * first).astype(int), axis=0), np.tile(np.arange(1024)[:, None], dim))
