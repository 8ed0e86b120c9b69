"""Where Bayes-optimal message passing starts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.bayes.amp import AmpState, Problem
from gamp_attention.data.spectral import lowest_eigenvectors
from gamp_attention.denoisers.spectral_weights import posterior_weights
from gamp_attention.models.channels.second_moments import field_moments


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
        directions = _spectral(problem, random) if init == "spectral" else None
        share = SHARES.random if directions is None else SHARES.spectral
        white = random.standard_normal((d, t)) if directions is None else directions
        Q = np.sqrt(share) * deviation * white
    V = problem.variances((1 - min(share, SHARES.informed)) * second)
    return AmpState(Q, V, np.zeros((problem.data.n_samples, L, t)))


def _spectral(problem: Problem, random: np.random.Generator) -> np.ndarray | None:
    """The directions (d, t), of entries of order one, of posterior weights, which know most where nothing is known."""
    d, t = problem.data.dim, problem.second.shape[1]
    rho = problem.variances(problem.second)
    K = field_moments(problem.channel, problem.y, rho)
    h = posterior_weights(K, rho, problem.data.n_samples / d)
    if d <= t or not h.any():
        return None
    _, vectors = lowest_eigenvectors(_Unshifted(problem), h, 1, t, random)  # type: ignore[arg-type]
    if len(vectors) < t:
        return None
    return np.sqrt(d) * vectors[:t, :, 0].T


class _Unshifted:
    """Tokens without the positions, which teachers do not see."""

    def __init__(self, problem: Problem) -> None:
        self.tokens, self.dim = problem.data.tokens, problem.data.dim
        self.positions = np.zeros_like(problem.data.positions)
