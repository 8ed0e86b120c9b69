"""Channels of noisy attention matrices (`ScoreChannel`) and of labels (`LinearChannel`, `SumChannel`).

Posteriors without a closed form are sums over a grid of equal spacing h in the whitened fields, u = ω + V^½ x. For a
Gaussian of unit width the error of such a sum is of the order of exp(−2π²/h²). The posterior is narrower than the prior
by at most √(1 + (slope/noise)²), where slope is the largest derivative of the noiseless observation with respect to x,
and h is reduced by this factor (`spacing_for`). Two other rules need fewer points: Gauss-Hermite rules if the
likelihood is nearly constant over the prior (`points_for`), and grids that neighboring samples have in common
(`in_blocks`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import log_ndtr, log_softmax

from gamp_attention._core.numerics import psd_root
from gamp_attention._core.quadrature import gauss_hermite, gaussian_points, spaced_grid, tensor_grid
from gamp_attention.models.channels.channel import Channel, Posterior, log_normal, softmax_sum
from gamp_attention.models.teachers import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels, Teacher

# Grids of a sample
SPACING = 0.9  # spacing in units of the smallest width of the posterior
RADIUS = 6.5  # radius in units of the prior's width
MAX_POINTS = 1 << 16
N_RANDOM = 1 << 14  # number of random points, which are used if a grid would have more than `MAX_POINTS`
MIN_EFFECTIVE = 200.0  # minimum effective number of random points, in the median over samples
BLOCK_SIZE = 1 << 17  # maximum number of points times samples in memory

# Common grids of a block of samples
FEW_POINTS = 64  # number of points up to which separate grids are faster
BLOCK_SPACING = 1.1  # spacing in units of the spacing of separate grids: errors of 1e-9
BLOCK_RADIUS = 6.0  # radius in units of the prior's width
BLOCK_WIDTH = 1.5  # width of a block, in units of the prior's width
MIN_PER_BLOCK = 3.0  # minimum mean number of samples in a block; below it, every sample has a separate grid

# Slope of a teacher
N_PROBES = 2048  # number of random fields at which the slope is evaluated
SLOPE_STEP = 1e-4  # step of difference quotients, in units of the standard deviation of the fields
SLOPE_QUANTILE = 0.99  # quantile of the slopes for which grids are fine enough

# maximum steepness for a Gauss-Hermite rule, and its number of nodes on each axis: errors below 1e-9
HERMITE = ((0.03, 4), (0.1, 6), (0.3, 9))


def points_for(steepness: float, dim: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return points (J, dim) and the logarithms (J,) of their weights for posteriors up to the given steepness.

    The steepness is the slope over the noise in whitened fields. If it is small, a likelihood is nearly a polynomial,
    and Gauss-Hermite rules need the fewest points; otherwise grids of equal spacing are used. If a grid would be too
    large, random points are drawn from the prior with this seed; `on_grid` raises ValueError if too few of them have
    weight.
    """
    for steepest, nodes in HERMITE:
        if steepness <= steepest and nodes**dim <= MAX_POINTS:
            x, weight = gauss_hermite(nodes)
            return tensor_grid(x, dim), tensor_grid(np.log(weight), dim).sum(axis=1)
    h = spacing_for(steepness)
    per_axis = 2 * RADIUS / h
    if np.isfinite(per_axis) and dim * np.log(per_axis) < np.log(MAX_POINTS):
        points = spaced_grid(h, dim, RADIUS, False)
        prior = -0.5 * np.sum(points**2, axis=1)
        return points, prior - np.log(np.exp(prior).sum())
    points = gaussian_points(N_RANDOM, dim, np.random.default_rng(seed))
    return points, np.full(len(points), -np.log(len(points)))


def spacing_for(steepness: float) -> float:
    """Return the spacing of a grid that resolves posteriors up to the given steepness."""
    return SPACING / float(np.sqrt(1 + steepness**2))


def on_grid(
    points: np.ndarray, prior: np.ndarray, log_likelihood: Callable[[slice], tuple[np.ndarray, Any]], n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Return moments of the posterior of n samples as sums over points; ValueError if random points are too few.

    Parameters
    ----------
    points, prior : (J, D) whitened fields, and logarithms (J,) of their prior weights.
    log_likelihood : function of a slice of samples that returns log-likelihoods (rows, J), and further numbers (rows,
        J) to average, or None.
    n : number of samples.

    Returns
    -------
    Means (n, D), covariances (n, D, D), log Z (n,), and posterior means (n,) of the further numbers, or None.
    """
    J, D = points.shape
    is_random, effective = len(points) == N_RANDOM and not np.ptp(prior), np.empty(n)
    mean, cov, log_z, extra = np.empty((n, D)), np.empty((n, D, D)), np.empty(n), None
    step = max(1, BLOCK_SIZE // J)
    for begin in range(0, n, step):
        rows = slice(begin, min(begin + step, n))
        logs, numbers = log_likelihood(rows)
        weights, log_z[rows] = softmax_sum(logs + prior)
        mean[rows] = weights @ points
        second = weights @ (points[:, :, None] * points[:, None, :]).reshape(J, D * D)
        cov[rows] = second.reshape(-1, D, D) - mean[rows][:, :, None] * mean[rows][:, None, :]
        if numbers is not None:
            extra = np.empty(n) if extra is None else extra
            extra[rows] = np.einsum("nj,nj->n", weights, numbers)
        effective[rows] = 1 / np.einsum("nj,nj->n", weights, weights)
    if is_random and np.median(effective) < MIN_EFFECTIVE:
        needs = (
            f"more noise, so that at least {MIN_EFFECTIVE:.0f} of {N_RANDOM} random points lie in a sample's posterior"
        )
        raise ValueError(f"model: needs {needs}, got {np.median(effective):.0f} points for {D} fields per sample")
    return mean, cov, log_z, extra


def in_blocks(
    centers: np.ndarray,
    h: float,
    likelihood: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    observations: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the posterior of whitened fields x ~ N(center, I) by grids of blocks, for likelihoods exp(c(x) + f(x)·y).

    Samples with neighboring centers use the same grid, for which c and f are evaluated once. The logarithms
    of all weights are then products of two matrices.

    Parameters
    ----------
    centers : (n, D) prior means of the whitened fields.
    h : spacing of the grid.
    likelihood : function that returns f (J, P) and c (J,) at whitened fields (J, D).
    observations : (n, P) y of each sample.

    Returns
    -------
    Means (n, D) of x − center, covariances (n, D, D), log Z (n,), and means (n, P + 1) of f and c; or None if there are
    fewer than `MIN_PER_BLOCK` samples in a block on average.
    """
    n, D = centers.shape
    cells = np.round(centers / BLOCK_WIDTH)
    blocks, block_of_sample, count = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    if n < MIN_PER_BLOCK * len(blocks):
        return None
    points = spaced_grid(h, D, BLOCK_RADIUS + 0.5 * BLOCK_WIDTH * np.sqrt(D), False)
    a, b = np.triu_indices(D)
    products = np.concatenate([points, points[:, a] * points[:, b]], axis=1)
    prior = -0.5 * np.sum(points**2, axis=1)
    mean, cov, log_z = np.empty((n, D)), np.empty((n, D, D)), np.empty(n)
    averages = np.empty((n, observations.shape[1] + 1))
    order, step = np.argsort(block_of_sample.ravel(), kind="stable"), max(1, BLOCK_SIZE * 8 // len(points))
    for block, rows in zip(blocks * BLOCK_WIDTH, np.split(order, np.cumsum(count)[:-1]), strict=True):
        factors, constant = likelihood(block + points)
        log_factors = np.concatenate([points, factors, (prior + constant)[:, None]], axis=1).T
        averaged = np.concatenate([products, factors, constant[:, None]], axis=1)
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            offsets = centers[part] - block
            weights = np.concatenate([offsets, observations[part], np.ones((len(part), 1))], axis=1) @ log_factors
            top = weights.max(axis=1, keepdims=True)
            weights -= top
            np.exp(weights, out=weights)
            total = weights.sum(axis=1, keepdims=True)
            moments = (weights @ averaged) / total
            first = moments[:, :D]
            mean[part] = first - offsets
            second = np.empty((len(part), D, D))
            second[:, a, b] = second[:, b, a] = moments[:, D : D + len(a)] - first[:, a] * first[:, b]
            cov[part] = second
            log_z[part] = (top + np.log(total))[:, 0] - 0.5 * np.sum(offsets**2, axis=1)
            averages[part] = moments[:, D + len(a) :]
    return mean, cov, log_z + D * np.log(h / np.sqrt(2 * np.pi)), averages


@dataclass(frozen=True, eq=False)
class ScoreChannel:
    """Channel of noisy attention matrices y = T[u] + s N (N, L, L), for any teacher T."""

    teacher: Teacher
    shape: tuple[int, int]  # L, t
    noise: float  # s
    slope: float  # largest singular value of ∂T/∂u, as a high quantile over the prior
    seed: int = 0  # seed of the points of posteriors, if these are random
    jumps = False

    @classmethod
    def of(cls, teacher: Teacher, rho: np.ndarray, noise: float) -> "ScoreChannel":
        """Return the channel of a teacher whose fields have prior covariances rho (L, t, t)."""
        L, t, _ = rho.shape
        white = gaussian_points(N_PROBES, L * t, np.random.default_rng(0)).reshape(-1, L, t)
        u = np.einsum("lst,nlt->nls", psd_root(rho), white)
        columns, size = [], SLOPE_STEP * np.sqrt(np.trace(rho, axis1=1, axis2=2).max())
        for l in range(L):
            for a in range(t):
                shift = np.zeros((L, t))
                shift[l, a] = size
                columns.append((teacher(u + shift) - teacher(u - shift)).reshape(len(u), -1) / (2 * size))
        slopes = np.linalg.norm(np.stack(columns, axis=2), ord=2, axis=(1, 2))
        return cls(teacher, (L, t), noise, float(np.quantile(slopes, SLOPE_QUANTILE)))

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

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return the targets."""
        return observed

    def has_random_points(self, rho: np.ndarray) -> bool:
        """Return whether posteriors with the prior covariances rho (L, t, t) are averages over random points."""
        return len(points_for(self._steepness(rho), int(np.prod(self.shape)))[0]) == N_RANDOM

    def _steepness(self, V: np.ndarray) -> float:
        """Return the slope of T over the noise, in fields that are whitened with covariances V (L, t, t)."""
        return self.slope * float(np.sqrt(np.linalg.eigvalsh(V).max().clip(min=0))) / self.noise

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior, computed by quadrature on a grid centered at ω with covariance V."""
        (L, t), n = self.shape, len(y)
        root, steepness = psd_root(V), self._steepness(V)
        points, prior = points_for(steepness, L * t, self.seed)
        if np.ptp(prior) and len(points) > FEW_POINTS:
            posterior = self._in_blocks(y.reshape(n, -1), omega, root, BLOCK_SPACING * spacing_for(steepness))
            if posterior is not None:
                return posterior
        shifts = np.einsum("lab,jlb->jla", root, points.reshape(-1, L, t))
        flat, constant = y.reshape(n, -1), L * L * np.log(np.sqrt(2 * np.pi) * self.noise)

        def log_likelihood(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            targets = self.teacher(omega[rows, None] + shifts).reshape(-1, len(shifts), L * L)
            squares = np.sum((targets - flat[rows, None]) ** 2, axis=2)
            return -0.5 * squares / self.noise**2 - constant, squares

        mean, cov, log_z, extra = on_grid(points, prior, log_likelihood, n)
        assert extra is not None
        return self._of_whitened(omega, root, mean, cov, log_z, extra)

    def _in_blocks(self, y: np.ndarray, omega: np.ndarray, root: np.ndarray, h: float) -> Posterior | None:
        """Return the posterior by grids of blocks, or None if blocks contain too few samples."""
        n, L, t = omega.shape

        def likelihood(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            targets = self.teacher(np.einsum("lab,jlb->jla", root, x.reshape(-1, L, t))).reshape(len(x), -1)
            return targets, -0.5 * np.sum(targets**2, axis=1) / self.noise**2

        centers = np.einsum("lab,nlb->nla", np.linalg.inv(root), omega).reshape(n, -1)
        moments = in_blocks(centers, h, likelihood, y / self.noise**2)
        if moments is None:
            return None
        mean, cov, log_z, more = moments
        size = np.sum(y**2, axis=1)
        misfit = size - 2 * np.sum(more[:, :-1] * y, axis=1) - 2 * self.noise**2 * more[:, -1]
        log_z = log_z - 0.5 * size / self.noise**2 - L * L * np.log(np.sqrt(2 * np.pi) * self.noise)
        return self._of_whitened(omega, root, mean, cov, log_z, misfit)

    def _of_whitened(
        self, omega: np.ndarray, root: np.ndarray, mean: np.ndarray, cov: np.ndarray, log_z: np.ndarray, misfit: Any
    ) -> Posterior:
        """Return the posterior of fields from the moments of whitened deviations from ω."""
        n, L, t = omega.shape
        full = np.zeros((L * t, L * t))
        for l in range(L):
            full[l * t : (l + 1) * t, l * t : (l + 1) * t] = root[l]
        return Posterior(omega + (mean @ full).reshape(n, L, t), full @ cov @ full, log_z, misfit)

    def with_noise(self, noise: float) -> Channel:
        """Return the channel with another s."""
        return replace(self, noise=noise)


# Quadrature of the posterior of a noisy intensity
INTENSITY_REACH = 8.5  # integration limit of the intensity, in standard deviations of the noise
SUM_REACH = 9.0  # integration limit of the sum, in standard deviations of the prior
N_INTENSITY_NODES = 128  # number of nodes in each of the two intervals


@dataclass(frozen=True)
class LabelChannel:
    """Base class of channels of labels (N, P)."""

    labels: Any  # label model of the teacher
    shape: tuple[int, int]  # L, t

    @property
    def jumps(self) -> bool:
        """True for classes given by the sign of the sum."""
        return isinstance(self.labels, LogisticLabels) and not self.labels.temperature

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

    @property
    def even(self) -> bool:
        """True for intensities, which are equal for u and −u, with noise as well."""
        return isinstance(self.labels, IntensityLabels)

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return labels of the fields."""
        return np.asarray(self.labels(u, white))

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return the labels."""
        return observed

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

    def of_sum(
        self, y: np.ndarray, center: np.ndarray, total: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Return mean (N, t), covariance (N, t, t), log Z (N,) and misfit of a sum with prior N(center, total)."""
        if isinstance(self.labels, IntensityLabels) and not self.labels.noise:
            return self._modulus(y[:, 0], center[:, 0], float(total[0, 0]))
        if self.jumps:
            return self._sign(y[:, 0], center[:, 0], float(total[0, 0]))
        if isinstance(self.labels, IntensityLabels):
            return self._intensity(y[:, 0], center[:, 0], float(total[0, 0]))
        if isinstance(self.labels, ClassLabels):
            return self._classes(y[:, 0].astype(int), center, total)
        root = psd_root(total)
        points, prior = points_for(self._slope() * float(np.sqrt(np.linalg.eigvalsh(total).max())), total.shape[0])
        shifts = points @ root

        def log_likelihood(rows: slice) -> tuple[np.ndarray, None]:  # of classes y = ±1 with logistic odds
            sums = (center[rows, None] + shifts)[:, :, 0]
            return -np.logaddexp(0, -y[rows] * sums / self.labels.temperature), None

        mean, cov, log_z, misfit = on_grid(points, prior, log_likelihood, len(y))
        return center + mean @ root, root @ cov @ root, log_z, misfit

    def _modulus(self, y: np.ndarray, center: np.ndarray, V: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Return the posterior of S = ±√y, for intensities without noise."""
        size = np.sqrt(np.maximum(y, 0))
        field = size * center / V
        log_z = np.logaddexp(field, -field) - np.log(2) - 0.5 * (size**2 + center**2) / V - 0.5 * np.log(2 * np.pi * V)
        variance = size**2 / np.cosh(np.clip(field, -300, 300)) ** 2
        return (size * np.tanh(field))[:, None], variance[:, None, None], log_z, None

    def _intensity(
        self, y: np.ndarray, center: np.ndarray, V: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return averages over equally spaced sums S near √y and −√y, where likelihood and prior are not negligible."""
        noise, reach = self.labels.noise, SUM_REACH * np.sqrt(V)
        high = np.sqrt(np.maximum(y, 0) + INTENSITY_REACH * self.labels.noise)
        low = np.sqrt(np.maximum(y - INTENSITY_REACH * self.labels.noise, 0))
        joined = low == 0  # both intervals meet at zero
        ends = [(np.where(joined, -high, low), high), (-high, np.where(joined, -high, -low))]
        steps, at = [], (np.arange(N_INTENSITY_NODES) + 0.5) / N_INTENSITY_NODES
        sums = []
        for begin, end in ends:
            begin, end = np.clip(begin, center - reach, center + reach), np.clip(end, center - reach, center + reach)
            sums.append(begin[:, None] + (end - begin)[:, None] * at)
            steps.append(np.broadcast_to(((end - begin) / N_INTENSITY_NODES)[:, None], sums[-1].shape))
        S, step = np.concatenate(sums, axis=1), np.concatenate(steps, axis=1)
        squares = (S**2 - y[:, None]) ** 2
        logs = -0.5 * squares / noise**2 - 0.5 * (S - center[:, None]) ** 2 / V
        weights, log_z = softmax_sum(logs + np.log(np.maximum(step, np.finfo(float).tiny)))
        mean = np.einsum("nj,nj->n", weights, S)
        cov = np.einsum("nj,nj->n", weights, (S - mean[:, None]) ** 2)
        log_z = log_z - np.log(2 * np.pi * noise * np.sqrt(V))
        return mean[:, None], cov[:, None, None], log_z, np.einsum("nj,nj->n", weights, squares)

    def _sign(self, y: np.ndarray, center: np.ndarray, V: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Return the posterior of S given its sign: a Gaussian truncated at zero."""
        at = y * center / np.sqrt(V)
        log_z = log_ndtr(at)
        hazard = np.exp(-0.5 * at**2 - 0.5 * np.log(2 * np.pi) - log_z)
        cov = V * np.clip(1 - hazard * (at + hazard), 0, 1)
        return (center + y * np.sqrt(V) * hazard)[:, None], cov[:, None, None], log_z, None

    def _classes(
        self, y: np.ndarray, center: np.ndarray, total: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, None]:
        """Return averages over a grid of the t − 1 differences of the columns, given which their mean is Gaussian."""
        n, t = center.shape
        basis = np.linalg.qr(np.concatenate([np.ones((t, 1)), np.eye(t)[:, 1:]], axis=1))[0][:, 1:]  # (t, t − 1)
        W = basis.T @ total @ basis
        root, gain = psd_root(W), total @ basis @ np.linalg.inv(W)
        steepness = self._slope() * float(np.sqrt(np.linalg.eigvalsh(W).max()))
        points, prior = points_for(steepness, t - 1)
        middle = center @ basis

        def log_probabilities(differences: np.ndarray) -> np.ndarray:
            return np.asarray(log_softmax(differences @ basis.T, axis=-1))

        moments: Any = None
        if len(points) > FEW_POINTS:
            moments = in_blocks(
                middle @ np.linalg.inv(root), BLOCK_SPACING * spacing_for(steepness),
                lambda x: (log_probabilities(x @ root), np.zeros(len(x))), np.eye(t)[y],
            )  # fmt: skip
        if moments is None:

            def log_likelihood(rows: slice) -> tuple[np.ndarray, None]:
                logs = log_probabilities(middle[rows, None] + points @ root)
                return np.take_along_axis(logs, y[rows, None, None], axis=2)[:, :, 0], None

            moments = on_grid(points, prior, log_likelihood, n)
        mean, cov, log_z = moments[:3]
        cov_sum = total - gain @ W @ gain.T + gain @ (root @ cov @ root) @ gain.T
        return center + mean @ root @ gain.T, cov_sum, log_z, None

    def _slope(self) -> float:
        """Return the slope of the likelihood in the sense of slope/noise of Gaussian noise, see `points_for`."""
        return 1 / self.labels.temperature if isinstance(self.labels, LogisticLabels) else 1.0


LABEL_CHANNELS: dict[type, type[LinearChannel] | type[SumChannel]] = {
    LinearLabels: LinearChannel,
    LogisticLabels: SumChannel,
    IntensityLabels: SumChannel,
    ClassLabels: SumChannel,
}
