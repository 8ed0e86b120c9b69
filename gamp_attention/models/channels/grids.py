"""Channels with noise: the posterior on grids of equal spacing in the whitened fields.

The error of such a sum is like exp(−2π²/h²) for a Gaussian of unit width and spacing h. Noise makes the posterior
narrower than the prior by at most √(1 + (slope/noise)²), and the spacing smaller by as much.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._core.gaussian import gaussian_points, psd_root, spaced_grid
from gamp_attention.models.channels.channel import Channel, Posterior, softmax_sum
from gamp_attention.models.teachers import Teacher


@dataclass(frozen=True)
class GridSettings:
    """Grids over the fields of a sample."""

    spacing: float = 0.9  # in units of the narrowest width
    radius: float = 6.5  # in units of the prior's width
    most: int = 1 << 16  # points
    random: int = 1 << 14  # randomised points where a grid would have more
    fewest: float = 200.0  # of these that count, in the median over samples
    together: int = 1 << 17  # points times samples held at a time
    probes: int = 2048  # points that the slope of a teacher is looked up at
    step: float = 1e-4  # of its difference quotients
    steepest: float = 0.99  # quantile of the slope that a grid is made for


GRIDS = GridSettings()


def points_for(steepness: float, dim: int) -> np.ndarray:
    """Points (J, dim) that resolve a posterior of at most that steepness, slope over noise in whitened fields.

    Points of the prior where a grid would be too large; then as many as count have to be enough.
    """
    h = GRIDS.spacing / np.sqrt(1 + steepness**2)
    per_axis = 2 * GRIDS.radius / h
    if np.isfinite(per_axis) and dim * np.log(per_axis) < np.log(GRIDS.most):
        return spaced_grid(float(h), dim, GRIDS.radius, False)
    return gaussian_points(GRIDS.random, dim, np.random.default_rng(0))


def on_grid(
    points: np.ndarray, log_likelihood: Callable[[slice, np.ndarray], tuple[np.ndarray, np.ndarray | None]], n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Mean (n, D), covariance (n, D, D) of whitened fields, log Z (n,), and the mean of what else the likelihood says.

    It is asked for rows and the points, and gives logarithms (rows, J), and (rows, J) or None.
    """
    J, D = points.shape
    random, counting = len(points) == GRIDS.random, np.empty(n)
    prior = np.zeros(J) if random else -0.5 * np.sum(points**2, axis=1)
    prior = prior - np.log(np.exp(prior).sum())
    mean, cov, log_z, extra = np.empty((n, D)), np.empty((n, D, D)), np.empty(n), None
    step = max(1, GRIDS.together // J)
    for begin in range(0, n, step):
        rows = slice(begin, min(begin + step, n))
        logs, more = log_likelihood(rows, points)
        weights, log_z[rows] = softmax_sum(logs + prior)
        mean[rows] = weights @ points
        second = weights @ (points[:, :, None] * points[:, None, :]).reshape(J, D * D)
        cov[rows] = second.reshape(-1, D, D) - mean[rows][:, :, None] * mean[rows][:, None, :]
        if more is not None:
            extra = np.empty(n) if extra is None else extra
            extra[rows] = np.einsum("nj,nj->n", weights, more)
        counting[rows] = 1 / np.einsum("nj,nj->n", weights, weights)
    if random and np.median(counting) < GRIDS.fewest:
        needs = f"more noise: of {GRIDS.random} points {GRIDS.fewest:.0f} at least in the posterior of a sample"
        raise ValueError(f"model: needs {needs}, got {np.median(counting):.0f} of {D} fields")
    return mean, cov, log_z, extra


@dataclass(frozen=True, eq=False)
class ScoreChannel:
    """Attention matrices with noise, y = T[u] + s N (N, L, L), of any teacher."""

    teacher: Teacher
    shape: tuple[int, int]  # L, t
    noise: float  # s
    slope: float  # the largest singular value of ∂T/∂u, for nearly all fields of the prior
    jumps = False

    @classmethod
    def of(cls, teacher: Teacher, rho: np.ndarray, noise: float) -> "ScoreChannel":
        """The channel of a teacher whose fields have covariances rho (L, t, t)."""
        L, t, _ = rho.shape
        white = gaussian_points(GRIDS.probes, L * t, np.random.default_rng(0)).reshape(-1, L, t)
        u = np.einsum("lst,nlt->nls", psd_root(rho), white)
        columns, size = [], GRIDS.step * np.sqrt(np.trace(rho, axis1=1, axis2=2).max())
        for l in range(L):
            for a in range(t):
                shift = np.zeros((L, t))
                shift[l, a] = size
                columns.append((teacher(u + shift) - teacher(u - shift)).reshape(len(u), -1) / (2 * size))
        slopes = np.linalg.norm(np.stack(columns, axis=2), ord=2, axis=(1, 2))
        return cls(teacher, (L, t), noise, float(np.quantile(slopes, GRIDS.steepest)))

    @property
    def n_noise(self) -> int:
        """One for each entry."""
        return self.shape[0] ** 2

    @property
    def n_seen(self) -> int:
        """One for each entry."""
        return self.n_noise

    @property
    def even(self) -> bool:
        """As the teacher is."""
        return bool(self.teacher.even)

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """T[u] + s N."""
        targets = self.teacher(u)
        return targets + self.noise * white.reshape(targets.shape)

    def seen(self, observed: np.ndarray) -> np.ndarray:
        """The targets."""
        return observed

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """By a grid around ω, as wide as V."""
        (L, t), n = self.shape, len(y)
        root = psd_root(V)
        steepness = self.slope * float(np.sqrt(np.linalg.eigvalsh(V).max().clip(min=0))) / self.noise
        points = points_for(steepness, L * t)
        shifts = np.einsum("lab,jlb->jla", root, points.reshape(-1, L, t))
        known, constant = y.reshape(n, -1), L * L * np.log(np.sqrt(2 * np.pi) * self.noise)

        def log_likelihood(rows: slice, _: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            targets = self.teacher(omega[rows, None] + shifts).reshape(-1, len(shifts), L * L)
            squares = np.sum((targets - known[rows, None]) ** 2, axis=2)
            return -0.5 * squares / self.noise**2 - constant, squares

        mean, cov, log_z, misfit = on_grid(points, log_likelihood, n)
        full = np.zeros((L * t, L * t))
        for l in range(L):
            full[l * t : (l + 1) * t, l * t : (l + 1) * t] = root[l]
        return Posterior(omega + (mean @ full).reshape(n, L, t), full @ cov @ full, log_z, misfit)

    def with_noise(self, noise: float) -> Channel:
        """With another s."""
        found: Any = replace(self, noise=noise)
        return found
