"""Prior of the teacher's rows: a Gaussian mixture for each kind of coordinates with equal covariances and positions."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention._tools.quadrature import legendre_panels
from gamp_attention.extensions.bayes.channels.channel import softmax_sum
from gamp_attention.theory.models.coordinates import CoordinateLaw, require_seen


@dataclass(frozen=True)
class PriorPanels:
    """Panels of Gauss-Legendre nodes for averages over b."""

    nodes: int = 12  # number of nodes in each panel
    reach: float = 10.0  # integration limit, in standard deviations of each component
    max_panels: int = 80  # maximum number in a standard deviation: separates atoms up to a probability of e^(−200)
    n_doublings: int = 30  # number of panels on each side of a component's mean, each twice as wide as the last

    def mixture(self, weight: np.ndarray, centers: np.ndarray, spreads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes b (J,), and their weights times the density of a mixture of K Gaussians.

        Panels are fine near the means of all components, where the posterior probability of another component may rise.
        """
        steps = 0.5 * spreads.min() * 2.0 ** np.arange(self.n_doublings)
        # between two atoms the posterior changes within 1/|μ_j − μ_k|, which is √A |μ_j − μ_k| times less than a spread
        apart = float(np.ptp(centers)) / float(spreads.min())
        parts = int(np.clip(np.ceil(2 * apart), 1, self.max_panels))
        fine = np.outer(spreads, np.arange(-self.reach, self.reach + 1 / parts, 1 / parts))
        ends = np.unique([*centers, *(centers[:, None] + fine).flat, *np.add.outer(centers, [steps, -steps]).flat])
        low, high = (centers - self.reach * spreads).min(), (centers + self.reach * spreads).max()
        nodes, panel = (part.ravel() for part in legendre_panels(ends[(ends >= low) & (ends <= high)], self.nodes))
        density = np.exp(-0.5 * ((nodes[:, None] - centers) / spreads) ** 2) @ (weight / spreads) / np.sqrt(2 * np.pi)
        return nodes, panel * density


class PriorAverages(NamedTuple):
    """Averages of the posterior over rows q* of the prior and observations b = A q* + N(0, A)."""

    cov: np.ndarray  # (t, t) E Cov(q | b)
    known: np.ndarray  # (t, t) E q̂ q̂ᵀ, the prior's second moment minus cov, computed without cancellation
    net: float  # E log Z − ½ Tr A known, the contribution of a row to the free entropy; Z as in `InputPosterior`


class InputPosterior(NamedTuple):
    """Posterior of N rows, of `MixturePrior.posterior`."""

    mean: np.ndarray  # (N, t)
    cov: np.ndarray  # (N, t, t)
    log_z: np.ndarray  # (N,) log of ∫ P(q) exp(bᵀq − qᵀAq/2) dq


@dataclass(frozen=True, eq=False)
class MixturePrior:
    """Mixture P(q) = Σ_k w_k N(q; μ_k, Σ_k) for rows of t numbers. Components of zero covariance are atoms."""

    weight: np.ndarray  # (K,)
    mean: np.ndarray  # (K, t)
    cov: np.ndarray  # (K, t, t)

    def posterior(self, b: np.ndarray, A: np.ndarray) -> InputPosterior:
        """Return the posterior P(q) exp(bᵀq − qᵀAq/2)/Z of rows with fields b (N, t) and precision A (t, t).

        Eq. :eq:`bayes-input`.
        """
        t = b.shape[1]
        stretch = np.linalg.inv(np.eye(t) + self.cov @ A)  # (I + ΣA)⁻¹
        narrow = symmetrize(stretch @ self.cov)
        off = b[:, None] - self.mean @ A.T  # (N, K, t)
        shift = np.einsum("kab,nkb->nka", narrow, off)
        logs = b @ self.mean.T - 0.5 * np.einsum("ka,ab,kb->k", self.mean, A, self.mean)
        logs = logs + 0.5 * np.einsum("nka,nka->nk", off, shift) + 0.5 * np.linalg.slogdet(stretch)[1]
        probability, log_z = softmax_sum(logs + np.log(self.weight))
        means = self.mean + shift
        mean = np.einsum("nk,nka->na", probability, means)
        deviations = means - mean[:, None]
        cov = np.einsum("nk,nka,nkb->nab", probability, deviations, deviations)
        return InputPosterior(mean, cov + np.einsum("nk,kab->nab", probability, narrow), log_z)

    @property
    def first(self) -> np.ndarray:
        """Mean E q (t,)."""
        return self.weight @ self.mean

    @property
    def second(self) -> np.ndarray:
        """Second moment E q qᵀ (t, t)."""
        return np.einsum("k,kab->ab", self.weight, self.cov + self.mean[:, :, None] * self.mean[:, None, :])

    def averages(self, A: np.ndarray) -> PriorAverages:
        """Return averages of the posterior over rows q* of the prior and observations b = A q* + N(0, A).

        A Gaussian prior has closed forms. For mixtures of numbers (t = 1) b is integrated by quadrature; mixtures of
        rows of more numbers raise ValueError.

        Parameters
        ----------
        A : (t, t) precision of the observation, positive semi-definite.
        """
        if len(self.weight) == 1:
            mu, cov = self.mean[0], self.cov[0]
            stretch = np.linalg.inv(np.eye(len(A)) + cov @ A)
            posterior_cov, explained = symmetrize(stretch @ cov), symmetrize(stretch @ cov @ A @ cov)
            # E log Z = ½ log det + ½ Tr A (Σ + μμᵀ), and Σ is the posterior covariance plus the explained part
            net = 0.5 * float(np.linalg.slogdet(stretch)[1] + np.sum(A * posterior_cov))
            return PriorAverages(posterior_cov, explained + np.outer(mu, mu), net)
        if len(A) > 1:
            needs = "one column (teacher_rank = 1), or Gaussian teacher rows"
            raise check.fail_words("model", f"a mixture of rows of {len(A)} numbers", needs)
        a = max(float(A[0, 0]), np.finfo(float).tiny)
        b, weight = PriorPanels().mixture(self.weight, a * self.mean[:, 0], np.sqrt(a * a * self.cov[:, 0, 0] + a))
        posterior = self.posterior(b[:, None], np.array([[a]]))
        known = weight @ posterior.mean**2
        net = float(weight @ posterior.log_z - 0.5 * a * known[0])
        return PriorAverages(np.einsum("j,jab->ab", weight, posterior.cov), known[:, None], net)


class Kind(NamedTuple):
    """Coordinates with equal covariances and positions, which the student cannot distinguish."""

    fraction: float  # fraction of the coordinates
    gamma: np.ndarray  # (L,) variances of the tokens
    tau: np.ndarray  # (L,) positions
    prior: MixturePrior  # prior of the teacher's rows


def kinds_of(law: CoordinateLaw) -> list[Kind]:
    """Return the kinds of coordinates of a distribution.

    Classes of coordinates that differ only in the teacher are components of one prior.
    """
    require_seen(law, "Bayes-optimal estimates")
    rows, number = np.unique(np.concatenate([law.gamma, law.tau], axis=1), axis=0, return_inverse=True)
    kinds, L = [], law.gamma.shape[1]
    for j, row in enumerate(rows):
        members = np.nonzero(number.ravel() == j)[0]
        fraction = law.weight[members].sum()
        prior = MixturePrior(law.weight[members] / fraction, law.teacher_mean[members], law.teacher_cov[members])
        kinds.append(Kind(float(fraction), row[:L], row[L:], prior))
    return kinds
