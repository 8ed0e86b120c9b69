"""Posteriors without a closed form, as sums over points in the whitened fields, u = ω + V^½ x.

For a Gaussian of unit width the error of a sum over a grid of equal spacing h is of the order of exp(−2π²/h²). The
posterior is narrower than the prior by at most √(1 + (slope/noise)²), where slope is the largest derivative of the
noiseless observation with respect to x, and h is reduced by this factor (`Grids.spacing_for`). Two other rules need
fewer points: Gauss-Hermite rules if the likelihood is nearly constant over the prior (`Grids.points_for`), and grids
that neighboring samples have in common (`Grids.in_blocks`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gamp_attention._tools.quadrature import gauss_hermite, gaussian_points, spaced_grid, tensor_grid
from gamp_attention.extensions.bayes.channels.channel import softmax_sum

Likelihood = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Grids:
    """Settings of sums over grids or random points. Errors are below 1e-9 unless stated."""

    spacing: float = 0.9  # spacing of the grid of a sample, in units of the smallest width of the posterior
    radius: float = 6.5  # radius in units of the prior's width
    max_points: int = 1 << 16  # maximum number of points of a grid
    n_random: int = 1 << 14  # number of random points, which are used if a grid would have more than `max_points`
    min_effective: float = 200.0  # minimum effective number of random points, in the median over samples
    block_size: int = 1 << 17  # maximum number of points times samples in memory
    # maximum steepness for a Gauss-Hermite rule, and its number of nodes on each axis
    hermite: tuple[tuple[float, int], ...] = ((0.03, 4), (0.1, 6), (0.3, 9))
    few_points: int = 64  # number of points up to which separate grids are faster than grids of a block of samples
    block_spacing: float = 1.1  # spacing of the grid of a block, in units of the spacing of separate grids
    block_radius: float = 6.0  # radius in units of the prior's width
    block_width: float = 1.5  # width of a block, in units of the prior's width
    min_per_block: float = 3.0  # minimum mean number of samples in a block; below it, every sample has a separate grid
    n_probes: int = 2048  # number of random fields at which the slope of a teacher is evaluated
    slope_step: float = 1e-4  # step of its difference quotients, in units of the standard deviation of the fields
    slope_quantile: float = 0.99  # quantile of the slopes for which grids are fine enough

    def points_for(self, steepness: float, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return points (J, dim) and the logarithms (J,) of their weights for posteriors up to the given steepness.

        The steepness is the slope over the noise in whitened fields. If it is small, a likelihood is nearly a
        polynomial, and Gauss-Hermite rules need the fewest points; otherwise grids of equal spacing are used. If a grid
        would be too large, random points are drawn from the prior with this seed.
        """
        for steepest, nodes in self.hermite:
            if steepness <= steepest and nodes**dim <= self.max_points:
                x, weight = gauss_hermite(nodes)
                return tensor_grid(x, dim), tensor_grid(np.log(weight), dim).sum(axis=1)
        h = self.spacing_for(steepness)
        per_axis = 2 * self.radius / h
        if np.isfinite(per_axis) and dim * np.log(per_axis) < np.log(self.max_points):
            points = spaced_grid(h, dim, self.radius, False)
            prior = -0.5 * np.sum(points**2, axis=1)
            return points, prior - np.log(np.exp(prior).sum())
        points = gaussian_points(self.n_random, dim, np.random.default_rng(seed))
        return points, np.full(len(points), -np.log(len(points)))

    def spacing_for(self, steepness: float) -> float:
        """Return the spacing of a grid that resolves posteriors up to the given steepness."""
        return self.spacing / float(np.sqrt(1 + steepness**2))

    def moments(
        self, centers: np.ndarray, steepness: float, likelihood: Likelihood, observations: np.ndarray, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return moments of the posterior of whitened fields x ~ N(center, I) of n samples, as sums over points.

        Likelihoods are exp(c(x) + f(x)·y).

        Parameters
        ----------
        centers : (n, D) prior means of the whitened fields.
        steepness, seed : as for `points_for`.
        likelihood : function that returns f (J, P) and c (J,) at whitened fields (J, D).
        observations : (n, P) y of each sample.

        Returns
        -------
        Means (n, D) of x − center, covariances (n, D, D), log Z (n,), and means (n, P + 1) of f and c.

        Raises
        ------
        ValueError : if random points are needed, and too few of them have weight.
        """
        (n, D), P = centers.shape, observations.shape[1]
        points, prior = self.points_for(steepness, D, seed)
        J, is_random = len(points), not np.ptp(prior)
        if not is_random and len(points) > self.few_points:
            of_blocks = self._in_blocks(centers, self.spacing_for(steepness), likelihood, observations)
            if of_blocks is not None:
                return of_blocks
        mean, cov, log_z, averages = np.empty((n, D)), np.empty((n, D, D)), np.empty(n), np.empty((n, P + 1))
        effective, step = np.empty(n), max(1, self.block_size // J)
        for begin in range(0, n, step):
            rows = slice(begin, min(begin + step, n))
            factors, constant = likelihood((centers[rows, None] + points).reshape(-1, D))
            factors, constant = factors.reshape(-1, J, P), constant.reshape(-1, J)
            logs = constant + (factors @ observations[rows, :, None])[:, :, 0] + prior
            weights, log_z[rows] = softmax_sum(logs)
            mean[rows] = weights @ points
            second = weights @ (points[:, :, None] * points[:, None, :]).reshape(J, D * D)
            cov[rows] = second.reshape(-1, D, D) - mean[rows][:, :, None] * mean[rows][:, None, :]
            averages[rows, :P] = (weights[:, None] @ factors)[:, 0]
            averages[rows, P] = np.einsum("nj,nj->n", weights, constant)
            effective[rows] = 1 / np.einsum("nj,nj->n", weights, weights)
        if is_random and np.median(effective) < self.min_effective:
            part = f"{self.min_effective:.0f} of {self.n_random} random points"
            needs = f"more noise, so that at least {part} lie in a sample's posterior"
            raise ValueError(f"model: needs {needs}, got {np.median(effective):.0f} points for {D} fields per sample")
        return mean, cov, log_z, averages

    def _in_blocks(
        self, centers: np.ndarray, spacing: float, likelihood: Likelihood, observations: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Return the moments by grids of blocks; None if there are fewer than `min_per_block` samples in a block.

        Samples with neighboring centers use the same grid, on which f and c are evaluated once. The logarithms of all
        weights are then products of two matrices.
        """
        n, D = centers.shape
        cells = np.round(centers / self.block_width)
        blocks, block_of_sample, count = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
        if n < self.min_per_block * len(blocks):
            return None
        h = self.block_spacing * spacing
        points = spaced_grid(h, D, self.block_radius + 0.5 * self.block_width * np.sqrt(D), False)
        a, b = np.triu_indices(D)
        products = np.concatenate([points, points[:, a] * points[:, b]], axis=1)
        prior = -0.5 * np.sum(points**2, axis=1)
        mean, cov, log_z = np.empty((n, D)), np.empty((n, D, D)), np.empty(n)
        averages = np.empty((n, observations.shape[1] + 1))
        order, step = np.argsort(block_of_sample.ravel(), kind="stable"), max(1, self.block_size * 8 // len(points))
        for block, rows in zip(blocks * self.block_width, np.split(order, np.cumsum(count)[:-1]), strict=True):
            factors, constant = likelihood(block + points)
            log_factors = np.concatenate([points, factors, (prior + constant)[:, None]], axis=1).T
            averaged = np.concatenate([products, factors, constant[:, None]], axis=1)
            for begin in range(0, len(rows), step):
                part = rows[begin : begin + step]
                offsets = centers[part] - block
                logs = np.concatenate([offsets, observations[part], np.ones((len(part), 1))], axis=1) @ log_factors
                weights, log_z[part] = softmax_sum(logs)
                log_z[part] -= 0.5 * np.sum(offsets**2, axis=1)
                moments = weights @ averaged
                first = moments[:, :D]
                mean[part] = first - offsets
                second = np.empty((len(part), D, D))
                second[:, a, b] = second[:, b, a] = moments[:, D : D + len(a)] - first[:, a] * first[:, b]
                cov[part] = second
                averages[part] = moments[:, D + len(a) :]
        return mean, cov, log_z + D * np.log(h / np.sqrt(2 * np.pi)), averages


DEFAULT_GRIDS = Grids()
