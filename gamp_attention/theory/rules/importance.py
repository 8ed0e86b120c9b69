"""Importance sampling of white noise: densities that are adapted to the averages over a channel.

For losses of several fields, most of an average comes from few samples, for example from samples whose tokens differ
much. A `Proposal` draws such samples more often:

1. The directions are the axes of the white noise, or sums and differences of tokens that may be interchanged. The
   symmetries of the channel change only signs of coordinates along them, so that some of the coordinates can be
   restricted to positive values. (Rotations to eigenvectors of the moments below were tried: points in low dimensions
   are then less even, and errors were larger than without importance sampling.)
2. A pilot average computes the second moments μ = E|f| x²/E|f| of the white noise x along each direction, weighted with
   the integrands f.
3. Along a direction with μ > 1, the density is (1 − β) φ(x) + β x² φ(x) with β ≤ (μ − 1)/2, of which the second moment
   is at most μ. Weights are at most 1/(1 − β) for each direction. All β are multiplied by the factor for which the
   variance of the pilot is minimal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtr, ndtri

from gamp_attention._tools.quadrature import inside_cube
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.theory.equations.channel import Channel
from gamp_attention.theory.rules.rule import Points

PILOT = 4096  # number of points of the pilot average
MAX_COORDINATES = 24  # maximum number of white coordinates for which proposals are adapted
MAX_DIRECTIONS = 4  # maximum number of directions with another density, because their weights multiply
MAX_MIXED = 0.6  # maximum β
MIN_MIXED = 0.05  # minimum β; below, a direction has the Gaussian density
SCALES = (1.0, 0.75, 0.5, 0.25, 0.0)  # fractions of all β that are compared on the pilot
LARGEST = 100.0  # bound of integrands, in units of their mean, so that single points do not determine the density
PILOT_SEED = 41  # stream of the pilot average
RANGE = 9.0  # quantiles of the standard Gaussian that are tabulated
NODES = 1801  # number of nodes of the table


@lru_cache(maxsize=64)
def _quantiles(mixed: float) -> Any:
    """Return x with distribution (1 − β) φ + β x² φ as a function of the Gaussian quantile of the same probability."""
    from scipy.interpolate import CubicSpline  # imported here because it takes long to load

    x = np.linspace(0.0, RANGE + 2, NODES)
    below, density = ndtr(-x), np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    quantile = -ndtri(below + mixed * x * density)  # of the upper tail, without cancellation
    quantile[0] = 0.0
    return CubicSpline(np.concatenate([-quantile[:0:-1], quantile]), np.concatenate([-x[:0:-1], x]))


@dataclass(frozen=True, eq=False)
class Proposal:
    """Density of white noise: products of densities along orthonormal directions.

    Attributes
    ----------
    basis : (n, n) directions, as columns.
    mixed : (n,) β of each direction.
    """

    basis: np.ndarray
    mixed: np.ndarray

    def draw(self, cube: np.ndarray, reflections: Sequence[np.ndarray]) -> Points:
        """Return points for uniform numbers (N, n), in a fundamental domain of the reflections (n, n)."""
        positive = self._positive_coordinates(reflections)
        coordinates = np.empty_like(cube)
        for k, mixed in enumerate(self.mixed):
            gaussian = -ndtri(0.5 * (1 - cube[:, k])) if k in positive else ndtri(cube[:, k])
            coordinates[:, k] = _quantiles(float(mixed))(gaussian) if mixed else gaussian
        return Points(coordinates @ self.basis.T, self._weights(coordinates) if self.mixed.any() else None)

    def weights(self, white: np.ndarray) -> np.ndarray:
        """Return the ratio (N,) of the Gaussian density to the proposal at points of white noise (N, n)."""
        return self._weights(white @ self.basis)

    def _weights(self, coordinates: np.ndarray) -> np.ndarray:
        """Return the same ratio (N,) at points with given coordinates (N, n) along the directions."""
        return 1 / np.prod(1 - self.mixed + self.mixed * coordinates**2, axis=1)

    def _positive_coordinates(self, reflections: Sequence[np.ndarray]) -> set[int]:
        """Return coordinates that reflections can make positive: the first whose signs are independent.

        Reflections that do not map each direction to itself up to the sign are not used: a proposal may be used for a
        channel with more symmetries than the channel that it was adapted to.
        """
        signs = [np.einsum("ik,ij,jk->k", self.basis, reflection, self.basis) for reflection in reflections]
        rows = [np.flatnonzero(row < 0) for row in signs if np.allclose(np.abs(row), 1, atol=1e-6)]
        flipped = np.zeros((len(rows), len(self.mixed)), dtype=bool)
        for row, columns in zip(flipped, rows, strict=True):
            row[columns] = True
        positive = set()
        for k in range(flipped.shape[1]):  # Gaussian elimination over the field of two elements
            if not flipped[:, k].any():
                continue
            pivot = int(np.argmax(flipped[:, k]))
            row = flipped[pivot].copy()
            flipped = np.delete(flipped, pivot, axis=0)
            flipped[flipped[:, k]] ^= row
            positive.add(k)
        return positive


def _directions(channel: Channel) -> np.ndarray:
    """Return orthonormal directions (n, n) of white noise that all reflections of the channel map to themselves."""
    L, r, t = channel.shape
    tokens, symmetry = np.eye(L), channel.symmetry
    pairs = zip(range(L // 2), range(L)[::-1], strict=False) if symmetry.reversal else []
    pairs = zip(range(0, L - 1, 2), range(1, L, 2), strict=True) if symmetry.exchange else pairs
    for first, second in pairs:
        tokens[[[first], [second]], [first, second]] = np.array([[1, 1], [1, -1]]) / np.sqrt(2)
    noise = np.eye(channel.n_white - L * (r + t))
    return block_diag(np.kron(tokens, np.eye(t)), noise, np.kron(tokens, np.eye(r)))


def adapt_proposal(channel: Channel, seed: tuple[int, ...]) -> Proposal | None:
    """Return a proposal for the averages over a channel; None if there are too many coordinates or it saves nothing."""
    n = channel.n_white
    if n > MAX_COORDINATES:
        return None
    cube = inside_cube(sobol_points(PILOT, n, np.random.default_rng((*seed, PILOT_SEED))))
    white = ndtri(cube)
    integrands = channel.integrands(white)
    sizes = np.abs(integrands)
    means = sizes.mean(axis=1, keepdims=True)
    if not (np.isfinite(means).all() and (means > 0).any()):
        return None
    used = means[:, 0] > 0
    weights = np.minimum(sizes[used] / means[used], LARGEST).mean(axis=0) / len(white)
    basis = _directions(channel)
    mixed = np.clip(0.5 * (weights @ (white @ basis) ** 2 / weights.sum() - 1), 0, MAX_MIXED)
    mixed[np.argsort(-mixed, kind="stable")[MAX_DIRECTIONS:]] = 0
    scaled = [scale * mixed for scale in SCALES]
    candidates = [Proposal(basis, np.where(some < MIN_MIXED, 0.0, some)) for some in scaled]
    squares = (integrands[used] / means[used]) ** 2
    variances = [float((squares * candidate.weights(white)).mean()) for candidate in candidates]
    best = candidates[int(np.argmin(variances))]
    return best if best.mixed.any() or len(channel.reflections) > 1 else None
