"""What targets say of the teacher's fields where the teacher's map is known: E[u uᵀ | T[u] + s N]."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.gaussian import gaussian_points, psd_root
from gamp_attention.models.model import Model


@dataclass(frozen=True)
class PosteriorSettings:
    """How posterior averages are taken: by points of the prior, weighted by their likelihood."""

    n_points: int = 4096
    least_noise: float = 0.03  # targets without noise are as if they had so much, so that several points are near each
    together: int = 1 << 24  # likelihoods held at a time


POSTERIOR = PosteriorSettings()


def field_moments(model: Model, targets: np.ndarray) -> np.ndarray:
    """E[Σ_a u_a u_aᵀ | targets], (n, L, L), of teacher fields u with the covariances of the model.

    Eq. :eq:`posterior-weights`.
    """
    (n, L, _), t = targets.shape, model.teacher_rank
    white = gaussian_points(POSTERIOR.n_points, L * t, np.random.default_rng(0)).reshape(-1, L, t)
    u = np.einsum("lst,nlt->nls", psd_root(model.coordinates.rho), white)
    pairs = np.einsum("nia,nja->nij", u, u).reshape(len(u), -1)
    known, seen = model.teacher(u).reshape(len(u), -1), targets.reshape(n, -1)
    variance = max(model.score_noise, POSTERIOR.least_noise) ** 2
    found, step = np.empty((n, L * L)), max(1, POSTERIOR.together // len(u))
    for first in range(0, n, step):
        rows = slice(first, first + step)
        logs = (seen[rows] @ known.T - 0.5 * np.sum(known**2, axis=1)) / variance
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        found[rows] = weights @ pairs / weights.sum(axis=1, keepdims=True)
    return found.reshape(n, L, L)
