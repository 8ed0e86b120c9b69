"""Weights with k steps of replica symmetry breaking: from conjugates at every level to overlaps, and the free energy.

For the ridge penalty, r = t = 1, and one class of coordinates with eigenvalues γ_l,

    1/c_k = λ + Σ_l γ_l V̂_l,   1/c_{j−1} = 1/c_j − y_j D_j,   D_j = Σ_l γ_l (q̂_j − q̂_{j−1}),
    V_l = γ_l c_k,   q_j − q_{j−1} = γ_l (c_{j−1} − c_j)/y_j,   q_0 = γ_l c_0² (E h² + Σ_l γ_l q̂_0),
    m_l = τ_l c_0 E h,   θ_l = γ_l c_0 E[h π],   h = Σ_l (m̂_l τ_l + γ_l θ̂_l π),

and all overlaps are averaged over the classes. The free energy

    F = Σ_l [m̂m + θ̂θ + ½q̂_kV − ½V̂q_k + ½Σ_j y_j (q̂_j q_j − q̂_{j−1} q_{j−1})]
        − ½ (E h² + N_0) c_0 + Σ_j log(c_j/c_{j−1})/(2y_j) − α E φ_0

is stationary in all overlaps and conjugates, and the ground state is its stationary point in the Parisi parameters y_j.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention.theory.equations.weights import drift
from gamp_attention.theory.models.coordinates import CoordinateLaw

MARGIN = 1e-9  # smallest 1/c_0 of a class, in units of 1/c_k, at which the average over the weights is finite
SMALLEST = 1e-8  # smallest variance of the outermost field given the teacher's fields, in units of q_k


class WeightsUnbounded(FloatingPointError):
    """Error raised if the average over the weights diverges, 1/c_0 ≤ 0, which happens far from solutions."""


class Levels(NamedTuple):
    """Overlaps of k-step replica symmetry breaking for r = t = 1."""

    q: np.ndarray  # (k + 1, L) overlaps q_0 ≤ … ≤ q_k
    # m, theta, V: (L,) as in `Overlaps`; V is the response within the innermost clusters
    m: np.ndarray
    theta: np.ndarray
    V: np.ndarray

    @property
    def gaps(self) -> np.ndarray:
        """Differences q_j − q_{j−1} (k, L)."""
        return np.diff(self.q, axis=0)


class LevelHats(NamedTuple):
    """Conjugates, the averages of the output channel, multiplied by α."""

    q: np.ndarray  # (k + 1, L) q̂_j = α E (φ_j')²
    # m, theta, V: (L,) m̂, θ̂ and V̂ including the jumps of the proximal map
    m: np.ndarray
    theta: np.ndarray
    V: np.ndarray
    V_derivative: np.ndarray  # (L,) V̂ without jumps, the average of the a.e. derivative over P_k
    phi: np.ndarray  # (k + 1,) α E φ_j over P_j; −phi[k] is α times the average Moreau envelope of a minimum
    squares: np.ndarray  # (k + 1, L, L) α E (∂²φ_j/∂ω_l∂ω_l')² over P_j, for the replicons


class LabelAverages(NamedTuple):
    """Averages for one label; tokens in the order of the fields."""

    phi: np.ndarray  # (k + 1,) averages of φ_j over P_j
    slopes: np.ndarray  # (k + 1, L) averages of (φ_j')²
    first: np.ndarray  # (L,) average of φ_0'
    bend: np.ndarray  # (L,) average of −φ_0'', by Stein's identity for the outer field
    response: np.ndarray  # (L,) average of the a.e. derivative −∂g/∂ω over P_k.
    # (k + 1, L, L) averages of (∂²φ_j)², the last without jumps; NaN for j < k if they were not requested
    squares: np.ndarray


def average_labels(
    averages: list[LabelAverages], share: np.ndarray, u: np.ndarray, signs: np.ndarray, levels: Levels,
    parisi: np.ndarray, rho: float,
) -> LevelHats:  # fmt: skip
    """Return the conjugates, averaged over the tokens, from the averages for each label.

    `share` (n,) is α times the probability of each label, `u` (n, L) are its teacher fields of variance ρ, and `signs`
    (L,) the signs of m. V̂ = −αE φ_0'' + Σ_j y_j (q̂_j − q̂_{j−1}) is the mean response of the innermost level including
    its jumps, and Stein's identity α E[φ_0' u] = θ̂ρ − θ α E[−φ_0''] gives θ̂.
    """
    phi, slopes, first, bend, response, squares = (
        np.einsum("n,n...->...", share, [getattr(a, name) for a in averages]) for name in LabelAverages._fields
    )
    L, theta, theta_hat = len(signs), float(levels.theta[0]), 0.0
    one, slopes, bend = np.ones(L), slopes.mean(axis=1), float(bend.mean())
    if theta:
        along = float(np.einsum("n,nl,nl->", share, [a.first for a in averages], u)) / L
        theta_hat = (along + bend * theta) / rho
    return LevelHats(
        q=np.outer(slopes, one),
        m=(float(first @ signs) / L if levels.m[0] else 0.0) * signs,
        theta=theta_hat * one,
        V=(bend + float(parisi @ np.diff(slopes))) * one,
        V_derivative=float(response.mean()) * one,
        phi=phi,
        squares=0.5 * (squares + squares[:, ::-1, ::-1]),
    )


@dataclass(frozen=True, eq=False)
class BrokenWeights:
    """Input channel: the distribution of the coordinates, and the ridge strength λ."""

    law: CoordinateLaw
    lam: float

    def _precisions(self, hats: LevelHats, parisi: np.ndarray) -> np.ndarray:
        """Return 1/c_j (k + 1, K) of each level and class."""
        gaps = np.diff(hats.q, axis=0) @ self.law.gamma.T
        top = self.lam + self.law.gamma @ hats.V
        below = top - np.cumsum((parisi[:, None] * gaps)[::-1], axis=0)[::-1]
        precisions = np.concatenate([below, top[None]])
        if not precisions.min() > MARGIN * np.abs(top).max():
            raise WeightsUnbounded("the average over the weights of a cluster diverges: 1/c_0 is not positive")
        return precisions

    def _drift(self, hats: LevelHats) -> tuple[np.ndarray, np.ndarray]:
        """Return E[h (τ, π)] (K, L + 1) and E h² (K,) in each class."""
        H = drift(self.law.gamma, hats.m[:, None], hats.theta[:, None, None])
        first = H @ self.law.moments
        return first[:, 0], np.einsum("kac,kac->k", first, H)

    def step(self, hats: LevelHats, parisi: np.ndarray) -> Levels:
        """Return the overlaps of weights with given conjugates and Parisi parameters (k,)."""
        c = 1 / self._precisions(hats, parisi)
        first, second = self._drift(hats)
        gamma, fraction, L = self.law.gamma, self.law.weight, self.law.gamma.shape[1]
        outer = (fraction * c[0] ** 2 * (second + gamma @ hats.q[0])) @ gamma
        gaps = np.einsum("jk,k,kl->jl", (c[:-1] - c[1:]) / parisi[:, None], fraction, gamma)
        means = c[0][:, None] * first
        return Levels(
            q=np.cumsum(np.concatenate([outer[None], gaps]), axis=0),
            m=fraction @ means[:, :L],
            theta=(fraction * means[:, L]) @ gamma,
            V=(fraction * c[-1]) @ gamma,
        )

    def free_energy(self, levels: Levels, hats: LevelHats, parisi: np.ndarray) -> float:
        """Return F for independent overlaps and conjugates."""
        precisions = self._precisions(hats, parisi)
        _, second = self._drift(hats)
        coupling = hats.m @ levels.m + hats.theta @ levels.theta + 0.5 * (hats.q[-1] @ levels.V)
        coupling += -0.5 * (hats.V @ levels.q[-1]) + 0.5 * float(parisi @ np.diff((hats.q * levels.q).sum(axis=1)))
        prior = -0.5 * (second + self.law.gamma @ hats.q[0]) / precisions[0]
        prior = prior + (np.log(precisions[:-1] / precisions[1:]) / (2 * parisi[:, None])).sum(axis=0)
        return float(coupling + self.law.weight @ prior - hats.phi[0])

    def parisi_slopes(self, levels: Levels, hats: LevelHats, parisi: np.ndarray) -> np.ndarray:
        """Return ∂F/∂y_j (k,) at the overlaps that follow from the conjugates; y_j² times it is the complexity."""
        precisions = self._precisions(hats, parisi)
        gaps = np.diff(hats.q, axis=0) @ self.law.gamma.T
        c, y = 1 / precisions, parisi[:, None]
        # of the terms of the weights: 1/c_i with i < j decreases by D_j; their sum over i is ½ D_j q_{j−1} of the class
        _, second = self._drift(hats)
        outer = c[0] ** 2 * (second + self.law.gamma @ hats.q[0])
        inside = np.cumsum(np.concatenate([outer[None], (c[:-1] - c[1:]) / y]), axis=0)[:-1]
        slope = -0.5 * gaps * inside - np.log(precisions[:-1] / precisions[1:]) / (2 * y**2) - gaps * c[:-1] / (2 * y)
        coupling = 0.5 * np.diff((hats.q * levels.q).sum(axis=1))
        return coupling + slope @ self.law.weight - np.diff(hats.phi) / parisi

    def replicons(self, hats: LevelHats, parisi: np.ndarray) -> np.ndarray:
        """Return the replicon eigenvalue (k + 1,) of each level, which is stable against further steps if it is < 1.

        At level j it is the spectral radius of E[γ c_j² γ'] α E[(∂²φ_j)²] over the tokens.
        """
        c = 1 / self._precisions(hats, parisi)
        gamma = self.law.gamma
        response = np.einsum("k,jk,kl,km->jlm", self.law.weight, c**2, gamma, gamma)
        return np.array([np.abs(np.linalg.eigvals(a @ b)).max() for a, b in zip(response, hats.squares, strict=True)])
