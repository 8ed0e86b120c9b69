"""Interface of a channel: the posterior of a sample's teacher fields u given its observation y.

The fields have a Gaussian prior u_l ~ N(ω_l, V_l), independent over the tokens: the information of all other samples
(the cavity distribution of message passing). See Rangan (2011) for output channels in generalized message passing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.numerics import symmetrize


class Halves(NamedTuple):
    """Moments of a posterior that was computed from random points, separately for two independent sets of points.

    Products of a moment of the first set and a moment of the second have no bias from the number of points.
    """

    mean: np.ndarray  # (2, N, L, t)
    second: np.ndarray  # (2, N, L t, L t) second moments


class Posterior(NamedTuple):
    """Posterior of the fields of N samples.

    Eq. :eq:`bayes-output`.
    """

    mean: np.ndarray  # (N, L, t)
    cov: np.ndarray  # (N, L t, L t)
    log_z: np.ndarray  # (N,) log of ∫ N(u; ω, V) P(y | u) du; without noise, up to terms that do not depend on ω and V
    halves: Halves | None = None  # only if the posterior was computed from random points of each sample

    def second_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return two independent estimates of the second moments (N, L t, L t); twice the same if they are exact."""
        if self.halves is not None:
            return self.halves.second[0], self.halves.second[1]
        mean = self.mean.reshape(len(self.mean), -1)
        exact = self.cov + mean[:, :, None] * mean[:, None]
        return exact, exact


class PosteriorChannel:
    """Base class of observation models. Observations y are arrays (N, …), whose form depends on the channel.

    Attributes
    ----------
    shape : shape (L, t) of the fields.
    is_function : whether targets are a function of a user, whose columns are found separately, and whose posteriors
        without exact moments are sums over random points.
    """

    shape: tuple[int, int]
    is_function = False

    @property
    def n_noise(self) -> int:
        """Number of Gaussian random numbers per sample that observations need in addition to the fields."""
        return 0

    @property
    def even(self) -> bool:
        """True if u and −u have the same distribution of y, so that samples do not determine the sign of u."""
        return False

    @property
    def has_mirror_images(self) -> bool:
        """True if a sample and its mirror image −u, −ω have equal averages over the same random points."""
        return False

    @property
    def signless_columns(self) -> np.ndarray:
        """Columns (t,) whose sign can be changed, alone or with others, without a change of the distribution of y."""
        return np.full(self.shape[1], self.even)

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return observations y of fields (N, L, t), given white noise (N, n_noise)."""
        raise NotImplementedError

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return observations y for targets (N, L, L) or labels (N, P)."""
        return observed

    def posterior(self, y: Any, omega: np.ndarray, V: np.ndarray, /) -> Posterior:
        """Return the posterior of the fields given y, for prior means ω (N, L, t) and covariances V (L, t, t)."""
        raise NotImplementedError

    def reuse(self, y: np.ndarray, rho: np.ndarray) -> Callable[[np.ndarray, np.ndarray], Posterior]:
        """Return the posterior of given samples as a function of ω and V; `rho` is the largest V."""
        return partial(self.posterior, y)

    def with_other_points(self, rng: np.random.Generator) -> "PosteriorChannel":
        """Return the channel with other random points, if posteriors are sums over them."""
        return self

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: Any) -> tuple[np.ndarray, float] | None:
        """Return E[g gᵀ] (L, t, t) and E[log Z] by an `IntegralRule`, or None if these averages are not integrals.

        Parameters
        ----------
        known, V : (L, t, t) covariances of ω and of u − ω, whose sum is ρ.
        rule : nodes of the quadrature rule.
        """
        return None


@dataclass(frozen=True)
class LabelChannel(PosteriorChannel):
    """Base class of channels of labels (N, P)."""

    labels: Any  # label model of the teacher
    shape: tuple[int, int]  # L, t

    @property
    def n_noise(self) -> int:
        """Number of random numbers per sample that the label model needs."""
        return int(self.labels.n_noise(*self.shape))

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return labels (N, P) of fields (N, L, t), given the noise (N, n_noise)."""
        return np.asarray(self.labels(u, white))

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: Any) -> float:
        """Return the mean square error of the posterior mean of a new label, noise included.

        `V` and `known` (L, t, t) are the covariances of u − ω and ω.
        """
        raise NotImplementedError


def channel_response(posterior: Posterior, omega: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return g = V⁻¹(E u − ω) (N, L, t), and the mean over samples −⟨∂g_l/∂ω_l⟩ = V⁻¹ − V⁻¹⟨Cov u⟩V⁻¹ (L, t, t)."""
    L, t, _ = V.shape
    inverse = np.linalg.inv(V)
    g = np.einsum("lab,nlb->nla", inverse, posterior.mean - omega)
    mean_cov = posterior.cov.mean(axis=0).reshape(L, t, L, t)[np.arange(L), :, np.arange(L)]
    slope = inverse - inverse @ mean_cov @ inverse
    return g, symmetrize(slope)


def log_normal(deviation: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return Σ_l log N(x_l; 0, V_l) (N,) for deviations x (N, L, t) and covariances V (L, t, t)."""
    square = np.einsum("nla,lab,nlb->n", deviation, np.linalg.inv(V), deviation)
    return -0.5 * (square + np.linalg.slogdet(2 * np.pi * V)[1].sum())


def softmax_sum(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (N, J) that add to 1 over J, and log Σ_j exp (N,), for logarithms (N, J)."""
    top = logs.max(axis=1, keepdims=True)
    weights = logs - top
    np.exp(weights, out=weights)
    total = weights.sum(axis=1, keepdims=True)
    weights /= total
    return weights, (top + np.log(total))[:, 0]
