"""Channels of generalised linear models: labels of the fields, or of their sum over the tokens."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_ndtr, log_softmax

from gamp_attention._core.gaussian import psd_root
from gamp_attention.models.channels.channel import Channel, Posterior, log_normal, softmax_sum
from gamp_attention.models.channels.grids import GRIDS, in_blocks, on_grid, points_for, spacing_for
from gamp_attention.models.labels import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels


@dataclass(frozen=True)
class IntensitySettings:
    """Quadrature nodes for the posterior of a noisy intensity."""

    likely: float = 8.5  # integration limit of the intensity, in standard deviations of the noise
    reach: float = 9.0  # integration limit of the sum, in standard deviations of the prior
    nodes: int = 128  # number of nodes in each of the two intervals


INTENSITY = IntensitySettings()


@dataclass(frozen=True)
class LabelChannel:
    """What channels of labels (N, P) share."""

    labels: Any  # the teacher of labels
    shape: tuple[int, int]  # L, t

    @property
    def jumps(self) -> bool:
        """Classes by the sign do."""
        return isinstance(self.labels, LogisticLabels) and not self.labels.temperature

    @property
    def noise(self) -> float:
        """Standard deviation of Gaussian noise."""
        return float(getattr(self.labels, "noise", 0.0))

    @property
    def n_noise(self) -> int:
        """As the labels ask for."""
        return int(self.labels.n_noise(*self.shape))

    @property
    def n_seen(self) -> int:
        """One label, where it has Gaussian noise."""
        return 1

    @property
    def even(self) -> bool:
        """Whether labels do not tell −u from u; noise makes no difference to that."""
        return isinstance(self.labels, IntensityLabels)

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Labels."""
        return np.asarray(self.labels(u, white))

    def seen(self, observed: np.ndarray) -> np.ndarray:
        """The labels."""
        return observed

    def with_noise(self, noise: float) -> Channel:
        """With another standard deviation of Gaussian noise."""
        if not hasattr(self.labels, "noise"):
            raise ValueError("learn: needs labels with Gaussian noise for 'noise', got " + type(self.labels).__name__)
        found: Any = replace(self, labels=replace(self.labels, noise=noise))
        return found


@dataclass(frozen=True)
class LinearChannel(LabelChannel):
    """Every field is seen, with Gaussian noise or without."""

    @property
    def n_seen(self) -> int:
        """One label for every field."""
        return self.shape[0] * self.shape[1]

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Gaussian."""
        (L, t), N = self.shape, len(y)
        total = V + self.noise**2 * np.eye(t)
        gain = V @ np.linalg.inv(total)
        off = y.reshape(N, L, t) - omega
        mean = omega + np.einsum("lab,nlb->nla", gain, off)
        cov = np.zeros((N, L, t, L, t))
        rest = V - gain @ V
        for l in range(L):
            cov[:, l, :, l] = rest[l]
        misfit = np.sum((y.reshape(N, L, t) - mean) ** 2, axis=(1, 2)) + np.trace(rest, axis1=1, axis2=2).sum()
        return Posterior(mean, cov.reshape(N, L * t, L * t), log_normal(off, total), misfit)


@dataclass(frozen=True)
class SumChannel(LabelChannel):
    """Labels of S = Σ_l u_l: its posterior gives that of the fields, which are Gaussian given S."""

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """From the posterior of the sum."""
        (L, t), N = self.shape, len(y)
        total = V.sum(axis=0)
        gain = V @ np.linalg.inv(total)  # (L, t, t)
        centre = omega.sum(axis=1)
        mean, cov_sum, log_z, misfit = self.of_sum(y, centre, total)
        means = omega + np.einsum("lab,nb->nla", gain, mean - centre)
        cov = np.einsum("lab,nbc,mdc->nlamd", gain, cov_sum, gain)
        cov -= np.einsum("lab,mbc->lamc", gain, V)
        for l in range(L):
            cov[:, l, :, l] += V[l]
        return Posterior(means, cov.reshape(N, L * t, L * t), log_z, misfit)

    def of_sum(
        self, y: np.ndarray, centre: np.ndarray, total: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Mean (N, t), covariance (N, t, t), log Z (N,) and misfit of the sum, whose prior is N(centre, total)."""
        if isinstance(self.labels, IntensityLabels) and not self.labels.noise:
            return self._modulus(y[:, 0], centre[:, 0], float(total[0, 0]))
        if self.jumps:
            return self._sign(y[:, 0], centre[:, 0], float(total[0, 0]))
        if isinstance(self.labels, IntensityLabels):
            return self._intensity(y[:, 0], centre[:, 0], float(total[0, 0]))
        if isinstance(self.labels, ClassLabels):
            return self._classes(y[:, 0].astype(int), centre, total)
        root = psd_root(total)
        points, prior = points_for(self._slope() * float(np.sqrt(np.linalg.eigvalsh(total).max())), total.shape[0])
        shifts = points @ root

        def log_likelihood(rows: slice) -> tuple[np.ndarray, None]:
            return self._log_odds(y[rows], centre[rows, None] + shifts), None

        mean, cov, log_z, misfit = on_grid(points, prior, log_likelihood, len(y))
        return centre + mean @ root, root @ cov @ root, log_z, misfit

    def _modulus(self, y: np.ndarray, centre: np.ndarray, V: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Phase retrieval: S = ±√y."""
        size = np.sqrt(np.maximum(y, 0))
        field = size * centre / V
        log_z = np.logaddexp(field, -field) - np.log(2) - 0.5 * (size**2 + centre**2) / V - 0.5 * np.log(2 * np.pi * V)
        unsure = size**2 / np.cosh(np.clip(field, -300, 300)) ** 2
        return (size * np.tanh(field))[:, None], unsure[:, None, None], log_z, None

    def _intensity(
        self, y: np.ndarray, centre: np.ndarray, V: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Average over equally spaced sums S near √y and −√y, within the support of likelihood and prior."""
        noise, reach = self.labels.noise, INTENSITY.reach * np.sqrt(V)
        high = np.sqrt(np.maximum(y, 0) + INTENSITY.likely * self.labels.noise)
        low = np.sqrt(np.maximum(y - INTENSITY.likely * self.labels.noise, 0))
        joined = low == 0  # both intervals join at zero
        ends = [(np.where(joined, -high, low), high), (-high, np.where(joined, -high, -low))]
        steps, at = [], (np.arange(INTENSITY.nodes) + 0.5) / INTENSITY.nodes
        sums = []
        for begin, end in ends:
            begin, end = np.clip(begin, centre - reach, centre + reach), np.clip(end, centre - reach, centre + reach)
            sums.append(begin[:, None] + (end - begin)[:, None] * at)
            steps.append(np.broadcast_to(((end - begin) / INTENSITY.nodes)[:, None], sums[-1].shape))
        S, step = np.concatenate(sums, axis=1), np.concatenate(steps, axis=1)
        squares = (S**2 - y[:, None]) ** 2
        logs = -0.5 * squares / noise**2 - 0.5 * (S - centre[:, None]) ** 2 / V
        weights, log_z = softmax_sum(logs + np.log(np.maximum(step, np.finfo(float).tiny)))
        mean = np.einsum("nj,nj->n", weights, S)
        cov = np.einsum("nj,nj->n", weights, (S - mean[:, None]) ** 2)
        log_z = log_z - np.log(2 * np.pi * noise * np.sqrt(V))
        return mean[:, None], cov[:, None, None], log_z, np.einsum("nj,nj->n", weights, squares)

    def _sign(self, y: np.ndarray, centre: np.ndarray, V: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Classes by the sign of S: a Gaussian that is cut at zero."""
        at = y * centre / np.sqrt(V)
        log_z = log_ndtr(at)
        hazard = np.exp(-0.5 * at**2 - 0.5 * np.log(2 * np.pi) - log_z)
        cov = V * np.clip(1 - hazard * (at + hazard), 0, 1)
        return (centre + y * np.sqrt(V) * hazard)[:, None], cov[:, None, None], log_z, None

    def _classes(
        self, y: np.ndarray, centre: np.ndarray, total: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Average over a grid of the t − 1 differences of the fields, given which their mean is Gaussian."""
        n, t = centre.shape
        basis = np.linalg.qr(np.concatenate([np.ones((t, 1)), np.eye(t)[:, 1:]], axis=1))[0][:, 1:]  # (t, t − 1)
        W = basis.T @ total @ basis
        root, gain = psd_root(W), total @ basis @ np.linalg.inv(W)
        steepness = self._slope() * float(np.sqrt(np.linalg.eigvalsh(W).max()))
        points, prior = points_for(steepness, t - 1)
        middle = centre @ basis

        def log_probabilities(differences: np.ndarray) -> np.ndarray:
            return np.asarray(log_softmax(differences @ basis.T, axis=-1))

        found: Any = None
        if len(points) > GRIDS.few:
            found = in_blocks(
                middle @ np.linalg.inv(root), GRIDS.coarser * spacing_for(steepness),
                lambda x: (log_probabilities(x @ root), np.zeros(len(x))), np.eye(t)[y],
            )  # fmt: skip
        if found is None:

            def log_likelihood(rows: slice) -> tuple[np.ndarray, None]:
                logs = log_probabilities(middle[rows, None] + points @ root)
                return np.take_along_axis(logs, y[rows, None, None], axis=2)[:, :, 0], None

            found = on_grid(points, prior, log_likelihood, n)
        mean, cov, log_z = found[:3]
        cov_sum = total - gain @ W @ gain.T + gain @ (root @ cov @ root) @ gain.T
        return centre + mean @ root @ gain.T, cov_sum, log_z, None

    def _slope(self) -> float:
        """The largest slope of the logarithm of the likelihood's root, as that of a Gaussian's exponent."""
        return 1 / self.labels.temperature if isinstance(self.labels, LogisticLabels) else 1.0

    def _log_odds(self, y: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Logarithms (N, J) of the probabilities of classes y (N, 1) at sums (N, J, 1)."""
        return -np.logaddexp(0, -y * s[:, :, 0] / self.labels.temperature)


KNOWN = {LinearLabels: LinearChannel, LogisticLabels: SumChannel, IntensityLabels: SumChannel, ClassLabels: SumChannel}
