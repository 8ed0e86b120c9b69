"""Targets of a class as functions of the fields: their density, and the posterior of the fields given the class.

The posteriors of classes whose targets are linear in the fields and the noise are Gaussian (`LinearTargets`). Constant
targets, for example labels that depend only on the class, are included. Other targets need a density, and at most six
fields; their posteriors are sums over random points (`SampledTargets`). Linear targets of a class lie in an affine
subspace. The class of a sample is one of the classes with the subspace of the smallest dimension that contains its
targets, because targets of other classes lie in this subspace with probability zero.

The tokens of a sample are independent given its class, so that fields of tokens on which the targets of a class do not
depend keep their prior, and do not count as fields of these targets.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.teacher import TeacherChannel, teacher_channel
from gamp_attention.extensions.sequence.expressions import Graph
from gamp_attention.extensions.sequence.sequence_labels import SequenceLabels

SIZES, N_PROBES = (0.7, 1.0, 4.0, 20.0), 32  # sizes and number of random variables at which targets have to be linear
LINEAR_ERROR = 1e-9  # relative deviation from a linear function that counts as rounding
RANK_ERROR = 1e-9  # relative size of singular values that count as zero


class Evidence(NamedTuple):
    """Posterior of the fields of n samples if they have a given class."""

    log_z: np.ndarray  # (n,) logarithm of the density of the targets, −∞ if the class does not have such targets
    # the mean of the fields is their prior mean plus gain · rest, where `rest` is the targets minus their prior mean
    rest: np.ndarray  # (n, r)
    gain: np.ndarray  # (L t, r)
    cov: np.ndarray  # (L t, L t)
    sampled: "SampledMoments | None" = None  # moments from random points; the three arrays above are then zero


class SampledMoments(NamedTuple):
    """Moments of the fields minus a center: of all points, then of two independent halves of the points."""

    mean: np.ndarray  # (3, n, L t)
    second: np.ndarray  # (3, n, L t, L t)


@dataclass(frozen=True, eq=False)
class LinearTargets:
    """Targets y = offset + B u + noise of a class.

    Attributes
    ----------
    offset, slope : (P,) and (P, L t).
    noise : (P, P) covariance of the noise.
    basis : (P, r) orthonormal basis of the subspace offset + span in which the targets lie.
    """

    offset: np.ndarray
    slope: np.ndarray
    noise: np.ndarray
    basis: np.ndarray
    support_error: float = 1e-6  # relative distance up to which targets lie in a subspace
    is_sampled = False

    @property
    def rank(self) -> int:
        """Dimension of the subspace."""
        return self.basis.shape[1]

    def contain(self, y: np.ndarray) -> np.ndarray:
        """Return whether targets (n, P) lie in the subspace of the class."""
        rest = y - self.offset
        outside = rest - rest @ self.basis @ self.basis.T
        return np.asarray(np.abs(outside).max(axis=1) <= self.support_error * (1 + np.abs(y).max(axis=1)))

    def moments(self, center: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, P) and total variances (n,) of the targets for fields N(center, V)."""
        variance = np.trace(self.slope @ V @ self.slope.T + self.noise)
        return self.offset + center @ self.slope.T, np.full(len(center), variance)

    def evidence(self, y: np.ndarray, center: np.ndarray, shift: np.ndarray, V: np.ndarray) -> Evidence:
        """Return the posterior given targets y (n, P), for the prior N(center + shift, V) of the fields (n, L t)."""
        B = self.basis.T @ self.slope
        spread = B @ V @ B.T + self.basis.T @ self.noise @ self.basis
        gain = np.linalg.solve(spread, B @ V).T
        rest = (y - self.offset) @ self.basis - center @ B.T - B @ shift
        log_z = -0.5 * np.einsum("na,na->n", rest, np.linalg.solve(spread, rest.T).T)
        log_z = log_z - 0.5 * np.linalg.slogdet(2 * np.pi * spread)[1]
        return Evidence(np.where(self.contain(y), log_z, -np.inf), rest, gain, V - gain @ B @ V)


@dataclass(frozen=True, eq=False)
class SampledTargets:
    """Targets of a class that are not linear in fields and noise, but have a density.

    Attributes
    ----------
    channel : posterior of the fields of the used tokens by sums over random points.
    rank : number of entries of a target.
    used : indices (L t,) as True or False of the fields of the tokens on which the targets depend. The fields of other
        tokens are independent of the targets.
    """

    channel: TeacherChannel
    rank: int
    used: np.ndarray
    n_points: int = 256  # number of points for the moments of targets
    is_sampled = True

    def contain(self, y: np.ndarray) -> np.ndarray:
        """Return whether targets (n, P) are finite; targets without density have log Z = −∞ in `evidence`."""
        return np.asarray(np.isfinite(y).all(axis=1))

    def evidence(self, y: np.ndarray, center: np.ndarray, shift: np.ndarray, V: np.ndarray) -> Evidence:
        """Return the posterior given targets y (n, P), for the prior N(center + shift, V) of the fields (n, L t)."""
        used, n, k = self.used, len(y), len(self.used)
        log_z, of_used = self._moments_of_used(y, center[:, used], shift[used], V[np.ix_(used, used)])
        if used.all():
            return Evidence(log_z, np.zeros((n, 0)), np.zeros((k, 0)), np.zeros((k, k)), of_used)
        rest = np.concatenate([np.nonzero(used)[0], np.nonzero(~used)[0]])
        apart = np.broadcast_to(shift[~used], (3, n, k - used.sum()))
        mean = np.concatenate([of_used.mean, apart], axis=2)
        second = mean[..., :, None] * mean[..., None, :]
        second[:, :, : used.sum(), : used.sum()] = of_used.second
        second[:, :, used.sum() :, used.sum() :] += V[np.ix_(~used, ~used)]
        order = np.argsort(rest)
        moments = SampledMoments(mean[:, :, order], second[:, :, order[:, None], order])
        return Evidence(log_z, np.zeros((n, 0)), np.zeros((k, 0)), np.zeros((k, k)), moments)

    def _moments_of_used(
        self, y: np.ndarray, center: np.ndarray, shift: np.ndarray, V: np.ndarray
    ) -> tuple[np.ndarray, SampledMoments]:
        """Return log Z (n,) and the moments of the fields of the used tokens, for their prior N(center + shift, V)."""
        (L, t), n = self.channel.shape, len(y)
        k, tokens = L * t, np.arange(L)
        blocks = V.reshape(L, t, L, t)[tokens, :, tokens]
        omega = (center + shift).reshape(n, L, t)
        posterior, effective = self.channel.draw(y, omega, blocks).weigh(omega, blocks)
        assert posterior.halves is not None
        mean = np.concatenate([posterior.mean[None], posterior.halves.mean]).reshape(3, n, k)
        first = posterior.cov + mean[0, :, :, None] * mean[0, :, None]
        second = np.concatenate([first[None], posterior.halves.second])
        cross = center[:, :, None] * mean[:, :, None]
        second += center[:, :, None] * center[:, None] - cross - cross.swapaxes(2, 3)
        log_z = np.where(effective > 0, posterior.log_z, -np.inf)
        return log_z, SampledMoments(mean - center, second)

    def moments(self, center: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, P) and total variances (n,) of the targets for fields N(center, V), averaged over points."""
        center, V = center[:, self.used], V[np.ix_(self.used, self.used)]
        (L, t), k = self.channel.shape, center.shape[1]
        white = gaussian_points(self.n_points, k + self.channel.n_noise, np.random.default_rng(6))
        noise, root = white[:, k:], psd_root(V)
        total, squares = np.zeros(1), np.zeros(1)
        for move, xi in zip(white[:, :k] @ root, noise, strict=True):
            fields = (center + move).reshape(-1, L, t)
            y = self.channel.observe(fields, np.broadcast_to(xi, (len(center), len(xi)))).reshape(len(center), -1)
            total, squares = total + y, squares + y**2
        mean = total / self.n_points
        return mean, np.sum(squares / self.n_points - mean**2, axis=1)


def class_targets(labels: SequenceLabels, rho: np.ndarray, c: int) -> LinearTargets | SampledTargets:
    """Return the targets of class c, for prior covariances (L, t, t) of the fields.

    Raises
    ------
    ValueError : if the targets are not linear and `teacher_channel` does not accept them, or they have no density.
    """
    linear = linear_targets(labels, (len(rho), rho.shape[1]))
    if linear is not None:
        return linear
    used = _used_tokens(labels, len(rho))
    channel = teacher_channel(_restrict(labels, used, rho.shape[1]), rho[used])
    if channel.subsets.chosen.shape[1] != channel.n_seen:
        needs = "targets with a density, or linear targets, for each class, because the class of a sample is not known"
        raise check.fail_words("model.teacher", f"targets of class {c} that determine each other", needs)
    return SampledTargets(channel, channel.n_seen, np.repeat(used, rho.shape[1]))


def _used_tokens(labels: SequenceLabels, L: int) -> np.ndarray:
    """Return the tokens (L,) on whose fields traced targets depend, as True or False; all if none or not traced."""
    if labels.program is None:
        return np.ones(L, dtype=bool)
    read = {arguments[0] for name, *arguments in labels.program.drop_unused().code if name == "input"}
    used = np.isin(np.arange(labels.n_fields), list(read)).reshape(L, -1).any(axis=1)
    return np.asarray(used) if used.any() else np.ones(L, dtype=bool)


def _restrict(labels: SequenceLabels, used: np.ndarray, t: int) -> SequenceLabels:
    """Return targets as a function of the fields of the used tokens (L,) only."""
    if used.all():
        return labels
    assert labels.program is not None
    size = int(used.sum()) * t
    graph = Graph(size + labels.count)
    given, zero = iter(graph.inputs[:size]), graph.constant(0.0)
    fields = [next(given) if is_used else zero for is_used in np.repeat(used, t)]
    program = graph.program(graph.include(labels.program, [*fields, *graph.inputs[size:]]))
    return replace(labels, n_fields=size, program=program)


def linear_targets(labels: SequenceLabels, shape: tuple[int, int]) -> LinearTargets | None:
    """Return targets as a linear function of fields and noise; None if they are not linear."""
    L, t = shape
    k, D = L * t, L * t + labels.count

    def evaluate(v: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return labels(v[:, :k].reshape(-1, L, t), v[:, k:])

    at = evaluate(np.concatenate([np.zeros((1, D)), np.eye(D)]))
    offset, slope = at[0], (at[1:] - at[0]).T
    probes = np.random.default_rng(12).standard_normal((N_PROBES, D))
    for size in SIZES:
        values = evaluate(size * probes)
        if not np.abs(offset + size * probes @ slope.T - values).max() <= LINEAR_ERROR * (1 + np.abs(values).max()):
            return None
    left, values, _ = np.linalg.svd(slope)
    basis = left[:, : int(np.sum(values > RANK_ERROR * max(values[0], 1e-300)))]
    return LinearTargets(offset, slope[:, :k], slope[:, k:] @ slope[:, k:].T, basis)
