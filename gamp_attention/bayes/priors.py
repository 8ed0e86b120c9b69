"""The prior of the teacher's rows: a mixture of Gaussians for every kind of coordinate that can be told from others."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.quadrature import legendre_panels
from gamp_attention.models.channels.channel import softmax_sum
from gamp_attention.models.coordinates import CoordinateLaw


@dataclass(frozen=True)
class PanelSettings:
    """Gauss-Legendre panels between the points around which a component of the prior shows beside the others."""

    nodes: int = 12
    reach: float = 10.0  # in units of a component's own deviation
    finest: int = 80  # panels in a deviation, at most: atoms further apart are known but for e^(−200)
    doublings: int = 30  # of the distance from a point, at most


PANELS = PanelSettings()


class PriorAverages(NamedTuple):
    """Averages over rows q* of the prior, observed as b = A q* + N(0, A)."""

    cov: np.ndarray  # (t, t) E Cov(q | b)
    known: np.ndarray  # (t, t) E q̂ q̂ᵀ, the prior's second moment minus cov, computed without cancellation
    log_z: float  # E log Z
    net: float  # E log Z − ½ Tr A known, the contribution of a row to the free entropy


class InputPosterior(NamedTuple):
    """Posterior of N rows."""

    mean: np.ndarray  # (N, t)
    cov: np.ndarray  # (N, t, t)
    log_z: np.ndarray  # (N,) log of ∫ P(q) exp(bᵀq − qᵀAq/2) dq
    share: np.ndarray  # (N, K) of the components
    second: np.ndarray  # (N, K, t, t) second moment about its mean of each component


@dataclass(frozen=True, eq=False)
class MixturePrior:
    """P(q) = Σ_k w_k N(q; μ_k, Σ_k) of rows of t numbers. Covariances of zero are atoms."""

    weight: np.ndarray  # (K,)
    mean: np.ndarray  # (K, t)
    cov: np.ndarray  # (K, t, t)

    def posterior(self, b: np.ndarray, A: np.ndarray) -> InputPosterior:
        """Under the factor exp(bᵀq − qᵀAq/2), with b (N, t) and A (t, t).

        Eq. :eq:`bayes-input`.
        """
        t = b.shape[1]
        stretch = np.linalg.inv(np.eye(t) + self.cov @ A)  # (I + ΣA)⁻¹
        narrow = stretch @ self.cov
        narrow = 0.5 * (narrow + narrow.transpose(0, 2, 1))
        off = b[:, None] - self.mean @ A.T  # (N, K, t)
        shift = np.einsum("kab,nkb->nka", narrow, off)
        logs = b @ self.mean.T - 0.5 * np.einsum("ka,ab,kb->k", self.mean, A, self.mean)
        logs = logs + 0.5 * np.einsum("nka,nka->nk", off, shift) + 0.5 * np.linalg.slogdet(stretch)[1]
        share, log_z = softmax_sum(logs + np.log(self.weight))
        each = self.mean + shift
        mean = np.einsum("nk,nka->na", share, each)
        away = each - mean[:, None]
        cov = np.einsum("nk,kab->nab", share, narrow) + np.einsum("nk,nka,nkb->nab", share, away, away)
        second = narrow + shift[:, :, :, None] * shift[:, :, None, :]
        return InputPosterior(mean, cov, log_z, share, second)

    @property
    def first(self) -> np.ndarray:
        """Mean (t,)."""
        return self.weight @ self.mean

    @property
    def second(self) -> np.ndarray:
        """Second moments (t, t)."""
        return np.einsum("k,kab->ab", self.weight, self.cov + self.mean[:, :, None] * self.mean[:, None, :])

    def averages(self, A: np.ndarray) -> PriorAverages:
        """Return the averages of the posterior over b = A q* + N(0, A), with rows q* of the prior.

        Parameters
        ----------
        A : (t, t) precision of the observation, positive semi-definite.

        Returns
        -------
        PriorAverages

        Raises
        ------
        ValueError : for mixtures with more than one column.
        """
        if len(self.weight) == 1:
            mu, cov = self.mean[0], self.cov[0]
            stretch = np.linalg.inv(np.eye(len(A)) + cov @ A)
            narrow, told = stretch @ cov, stretch @ cov @ A @ cov
            narrow, told = 0.5 * (narrow + narrow.T), 0.5 * (told + told.T)
            # E log Z = ½ log det + ½ μᵀAμ + ½ Tr[C Cov(b)], and C (AΣA + A) = ΣA
            half_det = 0.5 * float(np.linalg.slogdet(stretch)[1])
            log_z = half_det + 0.5 * float(mu @ A @ mu) + 0.5 * float(np.trace(cov @ A))
            return PriorAverages(narrow, told + np.outer(mu, mu), log_z, half_det + 0.5 * float(np.sum(A * narrow)))
        if len(A) > 1:
            raise check.fail("model", f"a mixture of rows of {len(A)} numbers", "one column, or Gaussian teacher rows")
        a = max(float(A[0, 0]), np.finfo(float).tiny)
        spreads, centres = np.sqrt(a * a * self.cov[:, 0, 0] + a), a * self.mean[:, 0]
        cov = known = log_z = 0.0
        for k, weight in enumerate(self.weight):
            b, density = _panels(k, centres, spreads)
            found = self.posterior(b[:, None], np.array([[a]]))
            cov += weight * float(density @ found.cov[:, 0, 0])
            known += weight * float(density @ found.mean[:, 0] ** 2)
            log_z += weight * float(density @ found.log_z)
        return PriorAverages(np.array([[cov]]), np.array([[known]]), log_z, log_z - 0.5 * a * known)

    def learned(self, posterior: InputPosterior) -> "MixturePrior":
        """Expectation maximisation: shares and covariances as the posterior has them. Means and atoms stay."""
        share = posterior.share.mean(axis=0)
        total = np.maximum(posterior.share.sum(axis=0), np.finfo(float).tiny)
        second = np.einsum("nk,nkab->kab", posterior.share, posterior.second) / total[:, None, None]
        atoms = np.abs(self.cov).max(axis=(1, 2)) == 0
        cov = np.where(atoms[:, None, None], 0.0, 0.5 * (second + second.transpose(0, 2, 1)))
        return replace(self, weight=np.maximum(share, np.finfo(float).tiny), cov=cov)


def _panels(k: int, centres: np.ndarray, spreads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (J,) and weights times the density of component k; fine where other components begin to show."""
    low, high = centres[k] - PANELS.reach * spreads[k], centres[k] + PANELS.reach * spreads[k]
    steps = 0.5 * spreads.min() * 2.0 ** np.arange(PANELS.doublings)
    ends = np.concatenate([[low, high], centres, *(centres[:, None] + sign * steps for sign in (1, -1))], axis=None)
    # between two atoms the posterior changes within 1/|μ_j − μ_k|, which is √A |μ_j − μ_k| times less than a spread
    apart = float(np.ptp(centres)) / float(spreads.min())
    parts = int(np.clip(np.ceil(2 * apart), 1, PANELS.finest))
    ends = np.unique(
        np.append(ends, centres[k] + spreads[k] * np.arange(-PANELS.reach, PANELS.reach + 1 / parts, 1 / parts))
    )
    ends = ends[(ends >= low) & (ends <= high)]
    nodes, weight = legendre_panels(ends, PANELS.nodes)
    density = np.exp(-0.5 * ((nodes - centres[k]) / spreads[k]) ** 2) / (spreads[k] * np.sqrt(2 * np.pi))
    return nodes.ravel(), (weight * density).ravel()


class Kind(NamedTuple):
    """Coordinates that the student cannot tell from each other, having the same covariances and positions."""

    share: float
    gamma: np.ndarray  # (L,)
    tau: np.ndarray  # (L,)
    prior: MixturePrior


def kinds_of(law: CoordinateLaw) -> list[Kind]:
    """The kinds of coordinates of a law: classes that differ in the teacher alone are components of one prior."""
    rows, number = np.unique(np.concatenate([law.gamma, law.tau], axis=1), axis=0, return_inverse=True)
    found, L = [], law.gamma.shape[1]
    for j, row in enumerate(rows):
        mine = np.nonzero(number.ravel() == j)[0]
        share = law.weight[mine].sum()
        prior = MixturePrior(law.weight[mine] / share, law.teacher_mean[mine], law.teacher_cov[mine])
        found.append(Kind(float(share), row[:L], row[L:], prior))
    return found
