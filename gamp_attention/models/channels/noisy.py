"""Channels with noise: the posterior on grids of equal spacing in the whitened fields.

The error of such a sum is like exp(−2π²/h²) for a Gaussian of unit width and spacing h. Noise makes the posterior
narrower than the prior by at most √(1 + (slope/noise)²), and the spacing smaller by as much.

Channels of generalised linear models: labels of the fields, or of their sum over the tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_ndtr, log_softmax

from gamp_attention._core.numerics import psd_root
from gamp_attention._core.quadrature import gauss_hermite, gaussian_points, spaced_grid, tensor_grid
from gamp_attention.models.channels.channel import Channel, Posterior, log_normal, softmax_sum
from gamp_attention.models.teachers import ClassLabels, IntensityLabels, LinearLabels, LogisticLabels, Teacher


@dataclass(frozen=True)
class GridSettings:
    """Grids over the fields of a sample."""

    spacing: float = 0.9  # in units of the narrowest width
    radius: float = 6.5  # in units of the prior's width
    most: int = 1 << 16  # points
    random: int = 1 << 14  # randomised points where a grid would have more
    fewest: float = 200.0  # of these that count, in the median over samples
    together: int = 1 << 17  # points times samples held at a time
    probes: int = 2048  # points that the slope of a teacher is looked up at
    step: float = 1e-4  # of its difference quotients
    steepest: float = 0.99  # quantile of the slope that a grid is made for
    few: int = 64  # number of points per sample up to which separate grids are faster than grids of blocks
    coarser: float = 1.1  # spacing of grids of blocks in units of `spacing`: errors of 1e-9
    closer: float = 6.0  # radius of grids of blocks
    block: float = 1.5  # width of a block of samples with a common grid, in units of the prior's width
    shared: float = 3.0  # minimum mean number of samples in a block; below it, every sample has a separate grid


GRIDS = GridSettings()
# maximum steepness for a Gauss-Hermite rule, and its number of nodes on each axis: errors below 1e-9
HERMITE = ((0.03, 4), (0.1, 6), (0.3, 9))


def points_for(steepness: float, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (J, dim) and the logarithms (J,) of their weights for posteriors up to the given steepness.

    The steepness is the slope over the noise in whitened fields. If it is small, a likelihood is nearly a polynomial,
    and Gauss-Hermite rules need the fewest points; otherwise grids of equal spacing are used. If these would be too
    large, the points are drawn from the prior, and enough of them must have weight.
    """
    for steepest, nodes in HERMITE:
        if steepness <= steepest and nodes**dim <= GRIDS.most:
            x, weight = gauss_hermite(nodes)
            return tensor_grid(x, dim), tensor_grid(np.log(weight), dim).sum(axis=1)
    h = spacing_for(steepness)
    per_axis = 2 * GRIDS.radius / h
    if np.isfinite(per_axis) and dim * np.log(per_axis) < np.log(GRIDS.most):
        points = spaced_grid(h, dim, GRIDS.radius, False)
        prior = -0.5 * np.sum(points**2, axis=1)
        return points, prior - np.log(np.exp(prior).sum())
    points = gaussian_points(GRIDS.random, dim, np.random.default_rng(0))
    return points, np.full(len(points), -np.log(len(points)))


def spacing_for(steepness: float) -> float:
    """Return the spacing of a grid that resolves posteriors up to the given steepness."""
    return GRIDS.spacing / float(np.sqrt(1 + steepness**2))


def on_grid(
    points: np.ndarray, prior: np.ndarray, log_likelihood: Callable[[slice], tuple[np.ndarray, Any]], n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Mean (n, D), covariance (n, D, D) of whitened fields, log Z (n,), and the mean of what else the likelihood says.

    Points (J, D) have weights of logarithms `prior` (J,). `log_likelihood` returns logarithms (rows, J) of some rows,
    and (rows, J) or None.
    """
    J, D = points.shape
    random, counting = len(points) == GRIDS.random and not np.ptp(prior), np.empty(n)
    mean, cov, log_z, extra = np.empty((n, D)), np.empty((n, D, D)), np.empty(n), None
    step = max(1, GRIDS.together // J)
    for begin in range(0, n, step):
        rows = slice(begin, min(begin + step, n))
        logs, more = log_likelihood(rows)
        weights, log_z[rows] = softmax_sum(logs + prior)
        mean[rows] = weights @ points
        second = weights @ (points[:, :, None] * points[:, None, :]).reshape(J, D * D)
        cov[rows] = second.reshape(-1, D, D) - mean[rows][:, :, None] * mean[rows][:, None, :]
        if more is not None:
            extra = np.empty(n) if extra is None else extra
            extra[rows] = np.einsum("nj,nj->n", weights, more)
        counting[rows] = 1 / np.einsum("nj,nj->n", weights, weights)
    if random and np.median(counting) < GRIDS.fewest:
        needs = f"more noise: of {GRIDS.random} points {GRIDS.fewest:.0f} at least in the posterior of a sample"
        raise ValueError(f"model: needs {needs}, got {np.median(counting):.0f} of {D} fields")
    return mean, cov, log_z, extra


def in_blocks(
    centres: np.ndarray, h: float, likelihood: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], given: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the posterior of whitened fields x ~ N(centre, I) by grids of blocks, for likelihoods exp(c(x) + f(x)·y).

    Samples with neighbouring centres use the same grid, for which c and f are evaluated once. The logarithms
    of all weights are then products of two matrices.

    Parameters
    ----------
    centres : (n, D).
    h : spacing of the grid.
    likelihood : f (J, P) and c (J,) of fields (J, D).
    given : (n, P) y.

    Returns
    -------
    Means (n, D) of x − centre, covariances (n, D, D), log Z (n,), and means (n, P + 1) of f and c; or None if there are
    fewer than `GRIDS.shared` samples in a block on average.
    """
    n, D = centres.shape
    cells = np.round(centres / GRIDS.block)
    blocks, number, count = np.unique(cells, axis=0, return_inverse=True, return_counts=True)
    if n < GRIDS.shared * len(blocks):
        return None
    points = spaced_grid(h, D, GRIDS.closer + 0.5 * GRIDS.block * np.sqrt(D), False)
    a, b = np.triu_indices(D)
    products = np.concatenate([points, points[:, a] * points[:, b]], axis=1)
    prior = -0.5 * np.sum(points**2, axis=1)
    mean, cov, log_z = np.empty((n, D)), np.empty((n, D, D)), np.empty(n)
    more = np.empty((n, given.shape[1] + 1))
    order, step = np.argsort(number.ravel(), kind="stable"), max(1, GRIDS.together * 8 // len(points))
    for block, rows in zip(blocks * GRIDS.block, np.split(order, np.cumsum(count)[:-1]), strict=True):
        factors, constant = likelihood(block + points)
        left = np.concatenate([points, factors, (prior + constant)[:, None]], axis=1).T
        right = np.concatenate([products, factors, constant[:, None]], axis=1)
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            off = centres[part] - block
            weights = np.concatenate([off, given[part], np.ones((len(part), 1))], axis=1) @ left
            top = weights.max(axis=1, keepdims=True)
            weights -= top
            np.exp(weights, out=weights)
            total = weights.sum(axis=1, keepdims=True)
            moments = (weights @ right) / total
            first = moments[:, :D]
            mean[part] = first - off
            second = np.empty((len(part), D, D))
            second[:, a, b] = second[:, b, a] = moments[:, D : D + len(a)] - first[:, a] * first[:, b]
            cov[part] = second
            log_z[part] = (top + np.log(total))[:, 0] - 0.5 * np.sum(off**2, axis=1)
            more[part] = moments[:, D + len(a) :]
    return mean, cov, log_z + D * np.log(h / np.sqrt(2 * np.pi)), more


@dataclass(frozen=True, eq=False)
class ScoreChannel:
    """Attention matrices with noise, y = T[u] + s N (N, L, L), of any teacher."""

    teacher: Teacher
    shape: tuple[int, int]  # L, t
    noise: float  # s
    slope: float  # the largest singular value of ∂T/∂u, for nearly all fields of the prior
    jumps = False

    @classmethod
    def of(cls, teacher: Teacher, rho: np.ndarray, noise: float) -> "ScoreChannel":
        """The channel of a teacher whose fields have covariances rho (L, t, t)."""
        L, t, _ = rho.shape
        white = gaussian_points(GRIDS.probes, L * t, np.random.default_rng(0)).reshape(-1, L, t)
        u = np.einsum("lst,nlt->nls", psd_root(rho), white)
        columns, size = [], GRIDS.step * np.sqrt(np.trace(rho, axis1=1, axis2=2).max())
        for l in range(L):
            for a in range(t):
                shift = np.zeros((L, t))
                shift[l, a] = size
                columns.append((teacher(u + shift) - teacher(u - shift)).reshape(len(u), -1) / (2 * size))
        slopes = np.linalg.norm(np.stack(columns, axis=2), ord=2, axis=(1, 2))
        return cls(teacher, (L, t), noise, float(np.quantile(slopes, GRIDS.steepest)))

    @property
    def n_noise(self) -> int:
        """One for each entry."""
        return self.shape[0] ** 2

    @property
    def n_seen(self) -> int:
        """One for each entry."""
        return self.n_noise

    @property
    def even(self) -> bool:
        """As the teacher is."""
        return bool(self.teacher.even)

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """T[u] + s N."""
        targets = self.teacher(u)
        return targets + self.noise * white.reshape(targets.shape)

    def seen(self, observed: np.ndarray) -> np.ndarray:
        """The targets."""
        return observed

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """By a grid around ω, as wide as V."""
        (L, t), n = self.shape, len(y)
        root = psd_root(V)
        steepness = self.slope * float(np.sqrt(np.linalg.eigvalsh(V).max().clip(min=0))) / self.noise
        points, prior = points_for(steepness, L * t)
        if np.ptp(prior) and len(points) > GRIDS.few:
            found = self._in_blocks(y.reshape(n, -1), omega, root, GRIDS.coarser * spacing_for(steepness))
            if found is not None:
                return found
        shifts = np.einsum("lab,jlb->jla", root, points.reshape(-1, L, t))
        known, constant = y.reshape(n, -1), L * L * np.log(np.sqrt(2 * np.pi) * self.noise)

        def log_likelihood(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            targets = self.teacher(omega[rows, None] + shifts).reshape(-1, len(shifts), L * L)
            squares = np.sum((targets - known[rows, None]) ** 2, axis=2)
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

        centres = np.einsum("lab,nlb->nla", np.linalg.inv(root), omega).reshape(n, -1)
        found = in_blocks(centres, h, likelihood, y / self.noise**2)
        if found is None:
            return None
        mean, cov, log_z, more = found
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
        """With another s."""
        found: Any = replace(self, noise=noise)
        return found


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
