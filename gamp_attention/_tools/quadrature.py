"""Quadrature rules: nodes and weights for integrals over intervals and for averages over standard Gaussians.

Three families are used in the package:

- Gauss rules, exact for polynomials: Legendre on panels of an interval, Hermite for a Gaussian weight;
- equally spaced nodes with Gaussian weights: the trapezoidal rule, whose error decreases exponentially with the
  inverse spacing for analytic functions (Trefethen and Weideman, 2014);
- scrambled Sobol points (randomized quasi-Monte Carlo; Owen, 1998), mapped to Gaussians by
  the inverse distribution function, in mirror pairs and with unit covariance. The spread of independent scramblings
  is the error estimate.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from gamp_attention._tools.sobol import sobol_points

NodesAndWeights = tuple[np.ndarray, np.ndarray]


class LegendreRule(NamedTuple):
    """Gauss-Legendre rule with n nodes on [−1, 1], and projections that test its resolution.

    The values of a function at the nodes determine its Legendre coefficients up to degree n − 1. If the last two are
    small, the nodes resolve the function.
    """

    x: np.ndarray  # (n,) nodes
    weight: np.ndarray  # (n,) weights, with sum 2
    before: np.ndarray  # (2, n), maps values at the nodes to the Legendre coefficients of degree n − 4 and n − 3
    tail: np.ndarray  # (2, n), the same for degree n − 2 and n − 1
    ends: np.ndarray  # (2, n), maps values at the nodes to the values of their polynomial at −1 and 1


@lru_cache
def legendre_rule(n: int) -> LegendreRule:
    """Return the Gauss-Legendre rule with n ≥ 4 nodes."""
    x, weight = np.polynomial.legendre.leggauss(n)
    polynomials = np.polynomial.legendre.legvander(x, n - 1)
    coefficients = (np.arange(n) + 0.5)[:, None] * weight * polynomials.T
    signs = np.array([-1.0, 1.0])[:, None] ** np.arange(n)  # Legendre polynomials at −1 and 1
    return LegendreRule(x, weight, coefficients[-4:-2].copy(), coefficients[-2:].copy(), signs @ coefficients)


def gauss_hermite(n: int) -> NodesAndWeights:
    """Return n Gauss-Hermite nodes and weights for averages over N(0, 1); exact for polynomials of degree 2n − 1."""
    x, weight = np.polynomial.hermite_e.hermegauss(n)
    return x, weight / weight.sum()


def legendre_panels(ends: np.ndarray, n: int) -> NodesAndWeights:
    """Return nodes and weights (P, n) of n-point Gauss-Legendre rules on the P panels between successive `ends`."""
    x, weight = legendre_rule(n)[:2]
    half = 0.5 * np.diff(ends)
    return (ends[:-1] + half)[:, None] + half[:, None] * x, half[:, None] * weight


def tensor_grid(x: np.ndarray, dim: int) -> np.ndarray:
    """Return all points (n**dim, dim) whose coordinates are among the n entries of x; the last varies fastest."""
    return np.take(x, np.indices((len(x),) * dim).reshape(dim, len(x) ** dim).T)


def pruned_product(x: np.ndarray, weight: np.ndarray, dim: int, min_weight: float) -> NodesAndWeights:
    """Return points (N, dim) and weights (N,) of a product rule, without points of weight below `min_weight`.

    The weights of one coordinate are at most 1, so a point can be dropped as soon as the weight of its first
    coordinates is too small. The remaining weights are scaled to have sum 1.
    """
    points, weights = np.zeros((1, 0)), np.ones(1)
    for _ in range(dim):
        points = np.concatenate([np.repeat(points, len(x), axis=0), np.tile(x, len(points))[:, None]], axis=1)
        weights = np.repeat(weights, len(x)) * np.tile(weight, len(weights))
        large = weights > min_weight
        points, weights = points[large], weights[large]
    return points, weights / weights.sum()


def spaced_grid(h: float, dim: int, radius: float, even: bool, shift: np.ndarray | None = None) -> np.ndarray:
    """Return points (N, dim) of spacing h in a ball around zero; if `even`, one point of every mirror pair.

    `shift` (dim,) are the coordinates of one of the points in units of h, from 0 to 1; by default, ½.
    """
    numbers = np.arange(-int(radius / h + 1), int(radius / h + 1))
    points, norm = np.zeros((1, 0)), np.zeros(1)
    for axis in range(dim):
        line = (numbers + (0.5 if shift is None else shift[axis])) * h
        along = line[line > 0] if even and axis == 0 else line
        longer = norm[:, None] + along**2
        row, column = np.nonzero(longer <= radius**2)
        points, norm = np.concatenate([points[row], along[column][:, None]], axis=1), longer[row, column]
    return points


def gaussian_weights(points: np.ndarray) -> np.ndarray:
    """Return weights (N,) proportional to the standard Gaussian density at points (N, dim), with sum 1."""
    weights = np.exp(-0.5 * np.sum(points**2, axis=1))
    return weights / weights.sum()


def inside_cube(cube: np.ndarray) -> np.ndarray:
    """Return uniform numbers moved away from 0 and 1 by 1e-12, where Gaussian quantiles are infinite."""
    return cube.clip(1e-12, 1 - 1e-12)


def gaussian_points(n_points: int, dim: int, rng: np.random.Generator, whitened: bool = True) -> np.ndarray:
    """Return scrambled Sobol points (n_points, dim) of the standard Gaussian, together with their mirror images.

    The set is symmetric, so averages of odd functions vanish exactly, and, if `whitened`, has unit covariance, so that
    quadratic functions are averaged exactly. n_points must be even, best a power of two.
    """
    half = ndtri(inside_cube(sobol_points(n_points // 2, dim, rng)))
    return whiten_and_mirror(half) if whitened else np.concatenate([half, -half])


def whiten(half: np.ndarray, white: np.ndarray | None = None) -> np.ndarray:
    """Whiten half of a point set (n/2, k): its second moments become 1.

    If `white` (n/2, j) or (n, j) is given, the columns of an earlier result, with or without mirror images, the new
    columns are made orthogonal to them.
    """
    n = len(half)
    if white is not None:
        basis = white[:n]
        half = half - basis @ (basis.T @ half) / n
    spectrum, vectors = np.linalg.eigh(half.T @ half / n)
    return half @ (vectors / np.sqrt(spectrum)) @ vectors.T


def whiten_and_mirror(half: np.ndarray, white: np.ndarray | None = None) -> np.ndarray:
    """Whiten half of a point set as `whiten`, and append its mirror image; the result (n, k) has covariance 1."""
    half = whiten(half, white)
    return np.concatenate([half, -half])
