"""Randomized rule for averages of convex losses that vary in few directions: shifted, rotated and stretched lattices.

The sum of a function over a randomly shifted lattice, times the volume of a cell, has the integral as its mean, and its
error is the sum of the function's Fourier coefficients at the dual lattice. It is exponentially small in the number
of points n for smooth functions (Trefethen and Weideman, 2014). For functions with kinks in K directions it decreases
like n^−(K+3)/(2K), compared to about 1/n for Sobol points: faster for K < 3.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtri

from gamp_attention._tools.quadrature import inside_cube, spaced_grid
from gamp_attention.theory.equations.channel import Channel
from gamp_attention.theory.equations.outcomes import shift_dimension
from gamp_attention.theory.rules.sobol import SobolRule


@dataclass(frozen=True)
class LatticeRule(SobolRule):
    """Averages over the channel on lattices, for convex losses of labels. Parameters as for `SobolRule`."""

    # points s of a lattice in a ball are taken to x = s (1 + a s²) in a ball of radius `reach`, so that fewer points
    # have small weights: errors for kinks are ten times smaller. Points outside matter neither for slopes of the loss
    # that are bounded nor, beyond `far`, for other losses of labels that grow like exp(2u)
    ball: float = 2.0  # radius of the first ball
    reach: float = 7.0
    far: ClassVar[float] = 10.0
    name: ClassVar[str] = "lattice"

    def point_sets(self, channel: Channel, replica: int | None = None) -> Iterator[np.ndarray]:
        """Yield the points of each replica, or of one of them, with a factor of each point as the last coordinate."""
        n_shifts = shift_dimension(channel.model)
        K, a = channel.n_coordinates - n_shifts, (self.reach / self.ball - 1) / self.ball**2
        h = self.ball * (math.pi ** (K / 2) / math.gamma(K / 2 + 1) / self.n_points) ** (1 / K)
        # shifts on the unit cube, which average over labels, are further coordinates of the lattice: irrational steps
        steps = np.sqrt([2, 3])[: K * n_shifts].reshape(K, n_shifts)
        for number in range(self.n_replicas) if replica is None else [replica]:
            rng = np.random.default_rng((*self.seed, self.n_points, number))
            points = spaced_grid(h, K, self.ball, False, rng.random(K))
            shifts = (points / h @ steps + rng.random(n_shifts)) % 1
            stretch = 1 + a * np.sum(points**2, axis=1)
            points = stretch[:, None] * points
            weights = stretch ** (K - 1) * (3 * stretch - 2) * np.exp(-0.5 * np.sum(points**2, axis=1))
            rotation = np.linalg.qr(rng.standard_normal((K, K)))[0]
            yield np.column_stack([points @ rotation, ndtri(inside_cube(shifts)), weights / weights.mean()])
