"""Columns of a teacher that rotations or exchanges map to each other are found together, at the exact α."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.bayes.equations import Equations


def inner_product(u, noise):
    return u[0, 0] * u[1, 0] + u[0, 1] * u[1, 1]


def determinant(u, noise):
    return u[0, 0] * u[1, 1] - u[0, 1] * u[1, 0]


def product_of_pairs(u, noise):
    return u[0, 0] * u[0, 2] + u[0, 1] * u[0, 3]


def sum_of_moduli(u, noise):
    return abs(u[0, 0]) + abs(u[0, 1])


def weighted_moduli(u, noise):
    return abs(u[0, 0]) + 3 * abs(u[0, 1])


AXIS = np.array([1, 2, 2]) / 3


def distance_from_axis(u, noise):
    return u[0] @ u[0] - (u[0] @ AXIS) ** 2


def build_model(teacher, n_tokens, rank):
    return ga.sequence_model(teacher, lambda z: z[0, 0], n_tokens=n_tokens, rank=rank)


def threshold_of_moduli():
    """Return 1/E[(E[|u|²/2 | y] − 1)²], by quadrature over y and over the points of |u_1| + |u_2| = y."""
    nodes, weights = np.polynomial.legendre.leggauss(100)
    y, first = np.meshgrid(6 * (nodes + 1), 0.5 * (nodes + 1), indexing="ij")
    first, second = y * first, y * (1 - first)
    density = 6 * weights[:, None] * 0.5 * y * weights * 2 / np.pi * np.exp(-0.5 * (first**2 + second**2))
    of_y = density.sum(axis=1)
    mean = (density * (first**2 + second**2)).sum(axis=1) / of_y
    return 1 / (of_y @ (mean / 2 - 1) ** 2)


@pytest.mark.parametrize(
    ("teacher", "n_tokens", "rank", "exact"),
    [
        # y = u_1·u_2 in two dimensions: |y| is exponential, E[|u_1|² | y] = |y| + 1 and E[u_1 u_2ᵀ | y] = y/2, so that
        # the growth of the sum of both tokens is 2 (E[(|y| − 1)²/4] + E[y²/4]) = 3/2; the growth of pairs is 3/4
        (inner_product, 2, 2, 2 / 3),
        (determinant, 2, 2, 2 / 3),
        (product_of_pairs, 1, 4, 4 / 3),
        (sum_of_moduli, 1, 2, threshold_of_moduli()),
        # E[u uᵀ | y] = y/2 in a plane in which y has the variance 4: the growth is E[(y/2 − 1)²] = 1
        pytest.param(distance_from_axis, 1, 3, 1.0, marks=pytest.mark.slow),
    ],
)
def test_equivalent_columns_are_found_together(teacher, n_tokens, rank, exact):
    thresholds = ga.bayes_thresholds(build_model(teacher, n_tokens, rank), n_points=512, n_replicas=4, seed=2)
    (stage,) = thresholds.stages
    assert stage.columns == tuple(range(rank))
    assert stage.alpha_error < 0.3 * exact
    assert abs(stage.alpha - exact) < 2 * stage.alpha_error


@pytest.mark.parametrize("seed", range(4))
def test_directions_that_grow_at_one_rate_end_the_search(seed):
    """Without the symmetry, some seeds give a direction without diagonal entries, and a search without end."""
    thresholds = ga.bayes_thresholds(build_model(inner_product, 2, 2), n_points=128, n_replicas=3, seed=seed)
    assert [stage.columns for stage in thresholds.stages] == [(0, 1)]


def test_different_columns_are_found_one_after_another():
    thresholds = ga.bayes_thresholds(build_model(weighted_moduli, 1, 2), n_points=256, n_replicas=4, seed=2)
    assert [stage.columns for stage in thresholds.stages] == [(1,), (0,)]


@pytest.mark.parametrize(("teacher", "equal"), [(sum_of_moduli, True), (weighted_moduli, False)])
def test_conjugates_have_the_symmetries_of_the_teacher(teacher, equal):
    equations = Equations(build_model(teacher, 1, 2), 64, np.random.default_rng(0))
    first, second = np.diagonal(equations.output(0.5 * equations.rho).hats[0])
    assert (abs(first - second) < 1e-12 * first) == equal


def test_conjugates_have_rotations_about_any_axis():
    equations = Equations(build_model(distance_from_axis, 1, 3), 64, np.random.default_rng(0))
    plane = np.eye(3) - np.outer(AXIS, AXIS)
    hats = plane @ equations.output(0.5 * equations.rho).hats[0] @ plane
    assert np.abs(hats - 0.5 * np.trace(hats) * plane).max() < 1e-6 * np.trace(hats)
