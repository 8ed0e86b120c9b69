"""Channels of noisy attention matrices (`ScoreChannel`) and of labels (`LinearChannel`, `SumChannel`).

Posteriors without a closed form are sums over points, see `gamp_attention.extensions.bayes.channels.grids`.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.linalg import block_diag
from scipy.special import log_ndtr, log_softmax

from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.channel import Posterior, PosteriorChannel, log_normal, softmax_sum
from gamp_attention.extensions.bayes.channels.grids import DEFAULT_GRIDS, Grids
from gamp_attention.extensions.bayes.channels.integrals import (
    IntegralRule,
    average_odds,
    average_sign,
    average_up_to_sign,
    class_probabilities,
)
from gamp_attention.extensions.bayes.channels.noiseless import posterior_of_sign
from gamp_attention.theory.models.labels import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels
from gamp_attention.theory.models.teachers import Teacher

# mean (N, t), covariance (N, t, t), log Z (N,) and misfit of a sum
SumMoments = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]


@dataclass(frozen=True, eq=False)
class ScoreChannel(PosteriorChannel):
    """Channel of noisy attention matrices y = T[u] + s N (N, L, L), for any teacher T."""

    teacher: Teacher
    shape: tuple[int, int]  # L, t
    noise: float  # s
    slope: float  # largest singular value of ∂T/∂u, as a high quantile over the prior
    seed: int = 0  # seed of the points of posteriors, if these are random
    grids: Grids = DEFAULT_GRIDS

    @classmethod
    def of(cls, teacher: Teacher, rho: np.ndarray, noise: float) -> "ScoreChannel":
        """Return the channel of a teacher whose fields have prior covariances rho (L, t, t)."""
        (L, t, _), grids = rho.shape, DEFAULT_GRIDS
        white = gaussian_points(grids.n_probes, L * t, np.random.default_rng(0)).reshape(-1, L, t)
        u = np.einsum("lst,nlt->nls", psd_root(rho), white)
        columns, size = [], grids.slope_step * np.sqrt(np.trace(rho, axis1=1, axis2=2).max())
        for l in range(L):
            for a in range(t):
                shift = np.zeros((L, t))
                shift[l, a] = size
                columns.append((teacher(u + shift) - teacher(u - shift)).reshape(len(u), -1) / (2 * size))
        slopes = np.linalg.norm(np.stack(columns, axis=2), ord=2, axis=(1, 2))
        return cls(teacher, (L, t), noise, float(np.quantile(slopes, grids.slope_quantile)))

    @property
    def n_noise(self) -> int:
        """Number of entries of the matrix."""
        return self.shape[0] ** 2

    n_seen = n_noise

    @property
    def even(self) -> bool:
        """True if T[−u] = T[u]."""
        return bool(self.teacher.even)

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return T[u] + s N."""
        targets = self.teacher(u)
        return targets + self.noise * white.reshape(targets.shape)

    def with_other_points(self, rho: np.ndarray, rng: np.random.Generator) -> PosteriorChannel:
        """Return the channel with another seed of the points, if posteriors are averages over random points."""
        points = self.grids.points_for(self._steepness(rho), int(np.prod(self.shape)))[0]
        return replace(self, seed=int(rng.integers(1 << 62))) if len(points) == self.grids.n_random else self

    def _steepness(self, V: np.ndarray) -> float:
        """Return the slope of T over the noise, in fields that are whitened with covariances V (L, t, t)."""
        return self.slope * float(np.sqrt(np.linalg.eigvalsh(V).max().clip(min=0))) / self.noise

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior, computed by quadrature on a grid centered at ω with covariance V."""
        (n, L, t), root, y = omega.shape, psd_root(V), y.reshape(len(y), -1)

        def likelihood(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            targets = self.teacher(np.einsum("lab,jlb->jla", root, x.reshape(-1, L, t))).reshape(len(x), -1)
            return targets, -0.5 * np.sum(targets**2, axis=1) / self.noise**2

        centers = np.einsum("lab,nlb->nla", np.linalg.inv(root), omega).reshape(n, -1)
        mean, cov, log_z, means = self.grids.moments(
            centers, self._steepness(V), likelihood, y / self.noise**2, self.seed
        )
        size, full = np.sum(y**2, axis=1), block_diag(*root)
        misfit = size - 2 * np.sum(means[:, :-1] * y, axis=1) - 2 * self.noise**2 * means[:, -1]
        log_z = log_z - 0.5 * size / self.noise**2 - L * L * np.log(np.sqrt(2 * np.pi) * self.noise)
        return Posterior(omega + (mean @ full).reshape(omega.shape), full @ cov @ full, log_z, misfit)

    def with_noise(self, noise: float) -> PosteriorChannel:
        """Return the channel with another s."""
        return replace(self, noise=noise)


@dataclass(frozen=True)
class LabelChannel(PosteriorChannel):
    """Base class of channels of labels (N, P)."""

    labels: Any  # label model of the teacher
    shape: tuple[int, int]  # L, t
    grids: Grids = DEFAULT_GRIDS

    @property
    def noise(self) -> float:
        """Standard deviation of Gaussian noise."""
        return float(getattr(self.labels, "noise", 0.0))

    @property
    def n_noise(self) -> int:
        """Number of random numbers per sample that the label model needs."""
        return int(self.labels.n_noise(*self.shape))

    @property
    def n_seen(self) -> int:
        """Number of labels with Gaussian noise."""
        return 1

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return labels of the fields."""
        return np.asarray(self.labels(u, white))

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the mean square error of the posterior mean of a new label, noise included; NaN for numbered classes.

        `V` and `known` (L, t, t) are the covariances of u − ω and ω.
        """
        return float("nan")

    def with_noise(self, noise: float) -> Self:
        """Return the channel with another noise; raise ValueError if the labels have no Gaussian noise."""
        if not hasattr(self.labels, "noise"):
            raise ValueError("learn: 'noise' needs labels with Gaussian noise, got " + type(self.labels).__name__)
        return replace(self, labels=replace(self.labels, noise=noise))


@dataclass(frozen=True)
class LinearChannel(LabelChannel):
    """Channel of linear labels: every field is observed, with or without Gaussian noise."""

    @property
    def n_seen(self) -> int:
        """Number of fields L t."""
        return self.shape[0] * self.shape[1]

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior, which is Gaussian."""
        (L, t), N = self.shape, len(y)
        total = V + self.noise**2 * np.eye(t)
        gain = V @ np.linalg.inv(total)
        off = y.reshape(N, L, t) - omega
        mean = omega + np.einsum("lab,nlb->nla", gain, off)
        cov = np.zeros((N, L, t, L, t))
        remaining = V - gain @ V
        for l in range(L):
            cov[:, l, :, l] = remaining[l]
        misfit = np.sum((y.reshape(N, L, t) - mean) ** 2, axis=(1, 2)) + np.trace(remaining, axis1=1, axis2=2).sum()
        return Posterior(mean, cov.reshape(N, L * t, L * t), log_normal(off, total), misfit)

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float]:
        """Return E[g gᵀ] (L, t, t) and E[log Z]."""
        total = V + self.noise**2 * np.eye(self.shape[1])
        return np.linalg.inv(total), -0.5 * float(np.linalg.slogdet(2 * np.pi * total)[1].sum() + self.n_seen)

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the total variance of the labels given ω."""
        return float(np.trace(V, axis1=1, axis2=2).sum() + self.noise**2 * self.n_seen)


@dataclass(frozen=True)
class SumChannel(LabelChannel):
    """Channel of labels that depend on S = Σ_l u_l only; the fields are Gaussian given S."""

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the fields, from the posterior of their sum."""
        (L, t), N = self.shape, len(y)
        total = V.sum(axis=0)
        gain = V @ np.linalg.inv(total)  # (L, t, t)
        center = omega.sum(axis=1)
        mean, cov_sum, log_z, misfit = self.of_sum(y, center, total)
        means = omega + np.einsum("lab,nb->nla", gain, mean - center)
        cov = np.einsum("lab,nbc,mdc->nlamd", gain, cov_sum, gain)
        cov -= np.einsum("lab,mbc->lamc", gain, V)
        for l in range(L):
            cov[:, l, :, l] += V[l]
        return Posterior(means, cov.reshape(N, L * t, L * t), log_z, misfit)

    def of_sum(self, y: np.ndarray, center: np.ndarray, total: np.ndarray) -> SumMoments:
        """Return moments of the posterior of the sum, for the prior N(center, total)."""
        raise NotImplementedError

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float] | None:
        """Return E[g gᵀ] (L, t, t) and E[log Z]; g is the same for all tokens."""
        of_sum = self.integrate_sum(*_variances_of_sum(known, V), rule) if self.shape[1] == 1 else None
        return None if of_sum is None else (np.full(V.shape, of_sum[0]), of_sum[1])

    def integrate_sum(self, known: float, V: float, rule: IntegralRule) -> tuple[float, float] | None:
        """Return E[g²] and E[log Z] for a sum N(ω, V) with ω ~ N(0, known), or None."""
        return None


def _variances_of_sum(known: np.ndarray, V: np.ndarray) -> tuple[float, float]:
    """Return the variances of ω and of u − ω, summed over tokens, for one column."""
    return float(known.sum(axis=0)[0, 0]), float(V.sum(axis=0)[0, 0])


@dataclass(frozen=True)
class IntensityChannel(SumChannel):
    """Channel of intensities, which are equal for u and −u, with noise as well."""

    reach: float = 8.5  # integration limit of the intensity, in standard deviations of the noise
    sum_reach: float = 9.0  # integration limit of the sum, in standard deviations of the prior
    n_nodes: int = 128  # number of nodes in each of the two intervals
    even = True

    def of_sum(self, y: np.ndarray, center: np.ndarray, total: np.ndarray) -> SumMoments:
        """Return moments of the posterior of the sum."""
        if self.noise:
            return self._intensity(y[:, 0], center[:, 0], float(total[0, 0]))
        found = posterior_of_sign(np.sqrt(np.maximum(y, 0))[:, :, None], center[:, :, None], total[None])
        return found.mean[:, 0], found.cov, found.log_z, None

    def integrate_sum(self, known: float, V: float, rule: IntegralRule) -> tuple[float, float] | None:
        """Return E[g²] and E[log Z] without noise, or None."""
        if self.noise:
            return None
        squares, log_z = average_up_to_sign(np.array([known]), np.array([V]), rule)
        return float(squares[0]), log_z

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the variance of the intensity given ω."""
        determined, unknown = _variances_of_sum(known, V)
        return 4 * determined * unknown + 2 * unknown**2 + self.noise**2

    def _intensity(self, y: np.ndarray, center: np.ndarray, V: float) -> SumMoments:
        """Return averages over equally spaced sums S near √y and −√y, where likelihood and prior are not negligible."""
        noise, reach = self.labels.noise, self.sum_reach * np.sqrt(V)
        high = np.sqrt(np.maximum(y, 0) + self.reach * self.labels.noise)
        low = np.sqrt(np.maximum(y - self.reach * self.labels.noise, 0))
        joined = low == 0  # both intervals meet at zero
        ends = [(np.where(joined, -high, low), high), (-high, np.where(joined, -high, -low))]
        steps, at = [], (np.arange(self.n_nodes) + 0.5) / self.n_nodes
        sums = []
        for begin, end in ends:
            begin, end = np.clip(begin, center - reach, center + reach), np.clip(end, center - reach, center + reach)
            sums.append(begin[:, None] + (end - begin)[:, None] * at)
            steps.append(np.broadcast_to(((end - begin) / self.n_nodes)[:, None], sums[-1].shape))
        S, step = np.concatenate(sums, axis=1), np.concatenate(steps, axis=1)
        squares = (S**2 - y[:, None]) ** 2
        logs = -0.5 * squares / noise**2 - 0.5 * (S - center[:, None]) ** 2 / V
        weights, log_z = softmax_sum(logs + np.log(np.maximum(step, np.finfo(float).tiny)))
        mean = np.einsum("nj,nj->n", weights, S)
        cov = np.einsum("nj,nj->n", weights, (S - mean[:, None]) ** 2)
        log_z = log_z - np.log(2 * np.pi * noise * np.sqrt(V))
        return mean[:, None], cov[:, None, None], log_z, np.einsum("nj,nj->n", weights, squares)


@dataclass(frozen=True)
class BinaryChannel(SumChannel):
    """Channel of labels ±1, the sign of the sum or a class with logistic odds."""

    def of_sum(self, y: np.ndarray, center: np.ndarray, total: np.ndarray) -> SumMoments:
        """Return moments of the posterior of the sum."""
        if not self.labels.temperature:
            return self._sign(y[:, 0], center[:, 0], float(total[0, 0]))
        root, T = psd_root(total), self.labels.temperature

        def likelihood(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            half_odds = x @ root / (2 * T)
            return half_odds, -np.logaddexp(half_odds, -half_odds)[:, 0]

        mean, cov, log_z, _ = self.grids.moments(center @ np.linalg.inv(root), float(root[0, 0]) / T, likelihood, y)
        return center + mean @ root, root @ cov @ root, log_z, None

    def integrate_sum(self, known: float, V: float, rule: IntegralRule) -> tuple[float, float]:
        """Return E[g²] and E[log Z]."""
        temperature = self.labels.temperature
        return average_odds(known, V, temperature, rule) if temperature else average_sign(known, V, rule)

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the variance of the label given ω."""
        determined, unknown = _variances_of_sum(known, V)
        if not self.labels.temperature:  # four times half the probability that two signs differ
            return 4 / np.pi * float(np.arcsin(np.sqrt(0.5 * unknown / (unknown + determined))))
        weight, likely, unlikely, _ = class_probabilities(determined, unknown, self.labels.temperature, rule)
        return 4 * float(weight @ (likely * unlikely))

    def _sign(self, y: np.ndarray, center: np.ndarray, V: float) -> SumMoments:
        """Return the posterior of S given its sign: a Gaussian truncated at zero."""
        at = y * center / np.sqrt(V)
        log_z = log_ndtr(at)
        hazard = np.exp(-0.5 * at**2 - 0.5 * np.log(2 * np.pi) - log_z)
        cov = V * np.clip(1 - hazard * (at + hazard), 0, 1)
        return (center + y * np.sqrt(V) * hazard)[:, None], cov[:, None, None], log_z, None


@dataclass(frozen=True)
class ClassLabelChannel(SumChannel):
    """Channel of numbered classes with softmax odds; a common shift of all columns does not change their odds."""

    has_common_shifts = True

    def of_sum(self, y: np.ndarray, center: np.ndarray, total: np.ndarray) -> SumMoments:
        """Return averages over a grid of the t − 1 differences of the columns, given which their mean is Gaussian."""
        t = center.shape[1]
        basis = np.linalg.qr(np.concatenate([np.ones((t, 1)), np.eye(t)[:, 1:]], axis=1))[0][:, 1:]  # (t, t − 1)
        W = basis.T @ total @ basis
        root, gain = psd_root(W), total @ basis @ np.linalg.inv(W)

        def likelihood(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.asarray(log_softmax(x @ root @ basis.T, axis=1)), np.zeros(len(x))

        centers, steepness = center @ basis @ np.linalg.inv(root), float(np.sqrt(np.linalg.eigvalsh(W).max()))
        mean, cov, log_z, _ = self.grids.moments(centers, steepness, likelihood, np.eye(t)[y[:, 0].astype(int)])
        cov_sum = total - gain @ W @ gain.T + gain @ (root @ cov @ root) @ gain.T
        return center + mean @ root @ gain.T, cov_sum, log_z, None


LABEL_CHANNELS: dict[type, type[LabelChannel]] = {
    LinearLabels: LinearChannel,
    LogisticLabels: BinaryChannel,
    IntensityLabels: IntensityChannel,
    ClassLabels: ClassLabelChannel,
}
