"""Where Bayes-optimal message passing starts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.bayes.amp import AmpState, Problem
from gamp_attention.data.spectral import lowest_eigenvectors


@dataclass(frozen=True)
class BayesStartSettings:
    """Sizes of starts, as shares of the prior's second moment."""

    random: float = 0.01
    spectral: float = 0.1
    informed: float = 0.999


SHARES = BayesStartSettings()


def bayes_start(problem: Problem, init: Any, random: np.random.Generator) -> AmpState:
    """Weights, and variances that go with their size."""
    d, L = problem.gamma.shape
    second = problem.second
    t = second.shape[1]
    first = np.stack([prior.first for prior in problem.priors])[problem.kind]
    deviation = np.sqrt(np.diagonal(second, axis1=1, axis2=2))
    share = 0.0
    if not isinstance(init, str):
        Q = check.array("init", init, (d, t)).copy()
        share = min(float(np.sum(Q**2)) / problem.size**2, SHARES.informed)
    elif init == "informed":
        Q_star = problem.data.Q_star
        if Q_star is None or Q_star.shape != (d, t):
            raise check.fail("init", init, "data with a teacher, with as many columns as the model's")
        Q, share = Q_star.copy(), SHARES.informed
    elif not problem.channel.even or first.any():
        Q = first + np.sqrt(SHARES.random) * deviation * random.standard_normal((d, t)) * (init == "random")
        share = float(np.sum(Q**2)) / problem.size**2
    else:
        directions = _growing(problem, random) if init == "spectral" else None
        share = SHARES.random if directions is None else SHARES.spectral
        white = random.standard_normal((d, t)) if directions is None else directions
        Q = np.sqrt(share) * deviation * white
    V = problem.variances((1 - min(share, SHARES.informed)) * second)
    return AmpState(Q, V, np.zeros((problem.data.n_samples, L, t)))


def _growing(problem: Problem, random: np.random.Generator) -> np.ndarray | None:
    """The directions (d, t), of entries of order one, that message passing amplifies most where nothing is known.

    Its linearisation there has the sum of X̃ᵀ G X̃ over the samples, with G = V⁻¹ Cov(u | y) V⁻¹ − V⁻¹ at ω = 0.
    """
    d, L = problem.gamma.shape
    t, n = problem.second.shape[1], problem.data.n_samples
    V = problem.variances(problem.second)
    cov = problem.channel.posterior(problem.y, np.zeros((n, L, t)), V).cov.reshape(n, L, t, L, t)
    inverse = np.linalg.inv(V)
    G = np.einsum("lab,nlbmc,mcd->nlamd", inverse, cov, inverse, optimize=True)
    G = np.trace(G, axis1=2, axis2=4) / t  # (n, L, L)
    G[:, np.arange(L), np.arange(L)] -= np.trace(inverse, axis1=1, axis2=2) / t
    if d <= t or not np.abs(G - G.mean(axis=0)).max() > 1e-9 * np.abs(G).max():
        return None
    _, vectors = lowest_eigenvectors(_Unshifted(problem), -G, 1, t, random)  # type: ignore[arg-type]
    if len(vectors) < t:
        return None
    return np.sqrt(d) * vectors[:t, :, 0].T


class _Unshifted:
    """Tokens without the positions, which teachers do not see."""

    def __init__(self, problem: Problem) -> None:
        self.tokens, self.dim = problem.data.tokens, problem.data.dim
        self.positions = np.zeros_like(problem.data.positions)
