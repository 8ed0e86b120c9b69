"""What is asked of a channel: the posterior of a sample's teacher fields u given what is seen of it, y.

The prior of the fields is Gaussian, u_l ~ N(ω_l, V_l), independent over the tokens: all that other samples say of them.
"""

from typing import NamedTuple, Protocol

import numpy as np


class Posterior(NamedTuple):
    """The posterior of the fields of N samples.

    Eq. :eq:`bayes-output`.
    """

    mean: np.ndarray  # (N, L, t)
    cov: np.ndarray  # (N, L t, L t)
    log_z: np.ndarray  # (N,) log of ∫ N(u; ω, V) P(y | u) du, but for terms without ω and V where y has no density
    misfit: np.ndarray | None = None  # (N,) posterior mean of the noise's sum of squares, where it is Gaussian


class Channel(Protocol):
    """How samples are seen. y is an array (N, …) in a form of the channel's own."""

    @property
    def n_noise(self) -> int:
        """Gaussian numbers that a sample takes beside its fields."""

    @property
    def even(self) -> bool:
        """Whether −u is seen as u is, so that a sample alone says nothing of the sign."""

    @property
    def jumps(self) -> bool:
        """Whether the likelihood jumps, so that only samples near the jump tell of fields that are nearly known."""

    @property
    def noise(self) -> float:
        """Standard deviation of Gaussian noise; 0 where there is none."""

    @property
    def n_seen(self) -> int:
        """Numbers in a sample that have this noise."""

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """y of fields (N, L, t) with white noise (N, n_noise)."""

    def seen(self, observed: np.ndarray) -> np.ndarray:
        """y of targets (N, L, L), or of labels (N, P)."""

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Posterior of the fields given y, at ω (N, L, t) and V (L, t, t)."""

    def with_noise(self, noise: float) -> "Channel":
        """The channel with another standard deviation of its noise."""


def response(posterior: Posterior, omega: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """g = V⁻¹(E u − ω) (N, L, t), and −⟨∂g_l/∂ω_l⟩ = V⁻¹ − V⁻¹⟨Cov u⟩V⁻¹ (L, t, t), averaged over the samples."""
    L, t, _ = V.shape
    inverse = np.linalg.inv(V)
    g = np.einsum("lab,nlb->nla", inverse, posterior.mean - omega)
    mean_cov = posterior.cov.mean(axis=0).reshape(L, t, L, t)[np.arange(L), :, np.arange(L)]
    slope = inverse - inverse @ mean_cov @ inverse
    return g, 0.5 * (slope + slope.transpose(0, 2, 1))


def log_normal(deviation: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Σ_l log N(deviation_l; 0, V_l) of (N, L, t) at V (L, t, t)."""
    square = np.einsum("nla,lab,nlb->n", deviation, np.linalg.inv(V), deviation)
    return -0.5 * (square + np.linalg.slogdet(2 * np.pi * V)[1].sum())


def softmax_sum(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (N, J) that add to one, and log Σ exp (N,), of logarithms (N, J)."""
    top = logs.max(axis=1, keepdims=True)
    weights = np.exp(logs - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total, (top + np.log(total))[:, 0]
