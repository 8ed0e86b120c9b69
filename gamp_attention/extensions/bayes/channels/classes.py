"""Channel of samples with classes: the posterior of the fields is a mixture over the classes that a sample may have.

A sample of class c has tokens x_l = μ_cl + Q* a_cl/√d + σ_cl z_l, and targets teacher(u, ξ, c) of u_l = x_lᵀQ*/√d. The
class is not observed. The tokens are informative about Q*, because their means contain it. As a function of a candidate
Q, with N = QᵀQ/d, and up to factors that do not depend on Q and c, the density of the tokens is

    Π_l exp{[x_l·μ_cl − ½‖μ_cl‖² + a_cl·u_l − ½ a_clᵀ N a_cl]/σ_cl²}.

Given all other samples, u_l ~ N(ω_l, V_l), where V_l = σ_l² C and C = N − q is the posterior covariance of a row of Q*.
The factor exp(a·u/σ²) shifts this Gaussian, so that

    u_l | c ~ N(ω_l + V_l a_cl/σ_l², V_l),
    log P(c) = const + log p_c + Σ_l {[x_l·μ_cl − ½‖μ_cl‖² + a_cl·ω_l]/σ_l² − ½ a_clᵀ q_l a_cl/σ_l⁴},   q_l = σ_l² q.

The posterior given the targets is the mixture of the posteriors of the classes, with P(c) times the density of the
targets. Classes that differ in σ are known for d → ∞, because ‖x_l‖²/d = σ_l²; classes with equal σ form a group, and
mixtures are over the classes of a group.

The targets of a class are in `gamp_attention.extensions.bayes.channels.class_targets`.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.linalg import block_diag

from gamp_attention._tools import check
from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.channel import (
    Channel,
    Halves,
    Posterior,
    refuse_fixed_columns,
    softmax_sum,
)
from gamp_attention.extensions.bayes.channels.class_targets import (
    Evidence,
    LinearTargets,
    SampledMoments,
    SampledTargets,
    class_targets,
)
from gamp_attention.extensions.sequence.sequence_labels import SYMMETRY_ERROR, LabelsOfClasses
from gamp_attention.theory.models.model import Model

MIN_OF_CLASS = 4  # minimum number of points of a class, in units of the number of random numbers of a sample


def _pairs_of_fields(L: int, t: int, blocks: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all pairs of L t fields; with `blocks`, of pairs of the same token."""
    first, second = np.divmod(np.arange((L * t) ** 2), L * t)
    kept = (first // t == second // t) | (not blocks)
    return first[kept], second[kept]


def _mixture_moments(
    weight: np.ndarray, parts: list[Evidence], shifts: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]
) -> SampledMoments:
    """Return moments of a mixture over classes minus its center, second moments for pairs of fields (3, n, K).

    If all moments are exact, there is one set of moments instead of three. The mean of a class c with linear targets is
    the center plus s_c + G_c e_c, with shifts s (C, k), gains G and rests e. Moments of the mixture are therefore sums
    over the classes of P(c), P(c) e_c and P(c) e_c e_cᵀ, times matrices.
    """
    (i, j), kernel = pairs, np.empty((len(parts), len(pairs[0])))
    linear, quadratic, gains, mixed, squares = [], [], [], [], []
    shifts = np.array([s * (part.sampled is None) for part, s in zip(parts, shifts, strict=True)])
    for c, (part, s) in enumerate(zip(parts, shifts, strict=True)):
        kernel[c] = part.cov[i, j] + s[i] * s[j]
        G, scaled = part.gain.T, weight[:, c, None] * part.rest
        linear.append(scaled)
        quadratic.append((scaled[:, :, None] * part.rest[:, None]).reshape(len(weight), -1))
        gains.append(G)
        mixed.append(G[:, i] * s[j] + s[i] * G[:, j])
        squares.append((G[:, None, i] * G[None, :, j]).reshape(-1, len(i)))
    mean = (np.concatenate([weight, *linear], axis=1) @ np.concatenate([shifts, *gains]))[None]
    features = np.concatenate([weight, *linear, *quadratic], axis=1)
    second = (features @ np.concatenate([kernel, *mixed, *squares]))[None]
    for c, part in enumerate(parts):
        if part.sampled is not None:
            w = np.where(weight[:, c] > 0, weight[:, c], 0.0)[:, None]
            mean = mean + w * part.sampled.mean
            second = second + w * part.sampled.second[:, :, i, j]
    return SampledMoments(mean, second)


class Seen(NamedTuple):
    """Known properties of n samples, in addition to the fields."""

    targets: np.ndarray  # (n, P)
    group: np.ndarray  # (n,) groups of classes with equal standard deviations
    log_weight: np.ndarray  # (n, C) log p_c + Σ_l [x_l·μ_cl − ½‖μ_cl‖²]/σ_l², up to a number for each sample


@dataclass(frozen=True, eq=False)
class ClassChannel(Channel):
    """Observation model of samples with classes.

    Eq. :eq:`bayes-class`.

    Attributes
    ----------
    labels : label models of the classes.
    shape : shape (L, t) of the fields.
    probability : (C,) probabilities of the classes.
    variance : (C, L) variances σ² of the tokens.
    group : (C,) group of each class: classes of a group have equal variances.
    spikes : (C, L, t) components a of the means along the teacher.
    mean_products : (C, C) products Σ_l μ_cl·μ_c'l/σ_cl² of the means that are known.
    targets : targets of each class.
    prior : (t, t) second moment of the rows of the teacher, of mean zero.
    """

    labels: LabelsOfClasses
    shape: tuple[int, int]
    probability: np.ndarray
    variance: np.ndarray
    group: np.ndarray
    spikes: np.ndarray
    mean_products: np.ndarray
    targets: tuple[LinearTargets | SampledTargets, ...]
    prior: np.ndarray

    is_function = True
    noise = float("nan")

    @property
    def n_noise(self) -> int:
        """Number of random numbers that the teacher receives for each sample."""
        return self.labels.count

    @property
    def n_groups(self) -> int:
        """Number of groups of classes with equal variances."""
        return int(self.group.max()) + 1

    @property
    def group_variance(self) -> np.ndarray:
        """Variances (groups, L) of the tokens."""
        return self.variance[np.unique(self.group, return_index=True)[1]]

    @property
    def rho(self) -> np.ndarray:
        """Prior covariances (groups L, t, t) of the fields, without the shift by the spikes."""
        return self.group_variance.reshape(-1, 1, 1) * self.prior

    @property
    def sources(self) -> np.ndarray:
        """Index (C L,) in `rho` of the pair of group and token, for each pair of class and token."""
        L = self.shape[0]
        return np.asarray((L * self.group[:, None] + np.arange(L)).ravel())

    @property
    def even(self) -> bool:
        """True if the sign of each column can be changed, alone or with others."""
        return bool(self.signless_columns.all())

    @cached_property
    def column_signs(self) -> np.ndarray:
        """Changes of signs (F, t) of the teacher's columns after which samples have the same distribution.

        Changes of signs may exchange classes, and change the sign of the noise. Together with a class c, all classes
        that are equal to c are exchanged with all classes that are equal to its image.
        """
        (L, t), C, rng = self.shape, len(self.probability), np.random.default_rng(4)
        u, noise = rng.standard_normal((8, L, t)), rng.standard_normal((8, self.n_noise))
        plain = np.array([labels(u, noise) for labels in self.labels.of_class]).reshape(C, -1)
        scale = 1 + np.abs(plain).max()

        def matches(signs: np.ndarray, of_noise: float) -> np.ndarray:
            changed = np.array([labels(signs * u, of_noise * noise) for labels in self.labels.of_class]).reshape(C, -1)
            same = np.abs(plain[:, None] - changed[None]).max(axis=2) <= SYMMETRY_ERROR * scale
            same &= np.abs(self.spikes[:, None] - signs * self.spikes[None]).max(axis=(2, 3)) <= SYMMETRY_ERROR
            D = self.mean_products
            distance = np.diagonal(D)[:, None] + np.diagonal(D)[None] - 2 * D
            same &= (self.group[:, None] == self.group[None]) & (np.abs(distance) <= SYMMETRY_ERROR * (1 + np.abs(D)))
            return np.asarray(same @ self.probability)

        equal = matches(np.ones(t), 1.0)
        found = []
        for signs in (np.array(s) for s in product((1.0, -1.0), repeat=t)):
            choices = (1.0, -1.0) if self.n_noise else (1.0,)
            if any(np.allclose(matches(signs, of_noise), equal, rtol=1e-9, atol=0) for of_noise in choices):
                found.append(signs)
        return np.array(found)

    def posterior(
        self, seen: Seen, omega: np.ndarray, V: np.ndarray, known: np.ndarray | None = None, blocks: bool = False
    ) -> Posterior:
        """Return the posterior of the fields.

        Eq. :eq:`posterior-classes`.

        Parameters
        ----------
        seen : the samples.
        omega : (n, L, t) means ω of the fields, given all other samples.
        V, known : (groups L, t, t) their covariances V, and the covariances q of ω; ρ − V if not given.
        blocks : whether only covariances within tokens are needed. The others are then zero, which takes a fraction 1/L
            of the time if there are many classes.
        """
        n, (L, t) = len(omega), self.shape
        known = self.rho - V if known is None else known
        mean, cov = np.empty((n, L * t)), np.zeros((n, L * t, L * t))
        log_z, of_class = np.empty(n), np.zeros((n, len(self.probability)))
        means, seconds = np.empty((2, n, L * t)), np.zeros((2, n, L * t, L * t))
        for g in range(self.n_groups):
            in_group, members = np.nonzero(seen.group == g)[0], np.nonzero(self.group == g)[0]
            logs, shifts = self._class_weights(seen, omega, V, known, g)
            block, targets = block_diag(*V[g * L : (g + 1) * L]), [self.targets[c] for c in members]
            y, at = seen.targets[in_group], omega[in_group].reshape(-1, L * t)
            ranks = np.array([of_class.rank for of_class in targets])
            parts = [part.evidence(y, at, s.ravel(), block) for part, s in zip(targets, shifts, strict=True)]
            logs += np.stack([part.log_z for part in parts], axis=1)
            smallest = np.where(np.isfinite(logs), ranks, np.iinfo(int).max).min(axis=1)
            weight, log_z[in_group] = softmax_sum(np.where(ranks > smallest[:, None], -np.inf, logs))
            of_class[np.ix_(in_group, members)] = weight
            pairs = _pairs_of_fields(L, t, blocks)
            i, j = pairs
            moves, entries = _mixture_moments(weight, parts, shifts.reshape(len(parts), -1), pairs)
            mean[in_group] = at + moves[0]
            cov[in_group[:, None], i, j] = entries[0] - moves[0][:, i] * moves[0][:, j]
            if self.is_sampled:
                halves = slice(1, 3) if len(moves) > 1 else slice(0, 1)
                means[:, in_group] = at + moves[halves]
                crossed = at[:, i] * at[:, j] + at[:, i] * moves[halves][..., j] + moves[halves][..., i] * at[:, j]
                seconds[:, in_group[:, None], i, j] = entries[halves] + crossed
        both = Halves(means.reshape(2, n, L, t), seconds) if self.is_sampled else None
        return Posterior(mean.reshape(n, L, t), cov, log_z, halves=both, of_class=of_class)

    @property
    def is_sampled(self) -> bool:
        """True if posteriors of a class are sums over random points."""
        return any(targets.is_sampled for targets in self.targets)

    def _class_weights(
        self, seen: Seen, omega: np.ndarray, V: np.ndarray, known: np.ndarray, g: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return log P(c) without targets (n_g, C_g), and the shifts V a/σ² (C_g, L, t) of the fields, for a group."""
        L, members, rows = self.shape[0], self.group == g, seen.group == g
        part, sigma2 = slice(g * L, (g + 1) * L), self.group_variance[g]
        a = self.spikes[members] / sigma2[:, None]
        logs = seen.log_weight[np.ix_(rows, members)] + np.einsum("nla,cla->nc", omega[rows], a)
        logs = logs - 0.5 * np.einsum("cla,lab,clb->c", a, known[part], a)
        return logs, np.einsum("lab,clb->cla", V[part], a)

    def target_error(self, seen: Seen, omega: np.ndarray, V: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return the posterior variance (n,) of the targets of samples whose tokens are known, summed over entries."""
        (L, t), errors = self.shape, np.empty(len(omega))
        for g in range(self.n_groups):
            rows, members = seen.group == g, np.nonzero(self.group == g)[0]
            logs, shifts = self._class_weights(seen, omega, V, known, g)
            weight, _ = softmax_sum(logs)
            block, at = block_diag(*V[g * L : (g + 1) * L]), omega[rows].reshape(-1, L * t)
            means, variances = [], []
            for c, shift in zip(members, shifts, strict=True):
                of_class = self.targets[c]
                expected, variance = of_class.moments(at + shift.ravel(), block)
                means.append(expected)
                variances.append(variance)
            mean = np.einsum("nc,cnp->np", weight, np.array(means))
            apart = np.sum((np.array(means) - mean) ** 2, axis=2) + np.array(variances)
            errors[rows] = np.einsum("nc,cn->n", weight, apart)
        return errors


class ClassSamples(NamedTuple):
    """Random samples with classes, in the order of their classes."""

    of_class: np.ndarray  # (N,) class of each sample
    u: np.ndarray  # (N, L, t) fields of the teacher
    white: np.ndarray  # (N, L, t) further standard normal numbers
    weight: np.ndarray  # (N,) weights, which add to 1
    seen: Seen


def draw_class_samples(channel: ClassChannel, n_points: int, rng: np.random.Generator) -> ClassSamples:
    """Draw fields, targets and products with known means of samples, `n_points` times the probability of each class."""
    (L, t), C, parts = channel.shape, len(channel.probability), []
    k, roots = L * t, psd_root(channel.rho).reshape(-1, L, t, t)
    for c in range(C):
        same = channel.group == channel.group[c]
        products = channel.mean_products * np.outer(same, same)
        side = psd_root(products) if products.any() else np.zeros((C, 0))
        dim = 2 * k + channel.n_noise + side.shape[1]
        size = max(round(n_points * channel.probability[c] / 2) * 2, MIN_OF_CLASS * dim)
        white = gaussian_points(size, dim, rng)
        u = np.einsum("lab,nlb->nla", roots[channel.group[c]], white[:, :k].reshape(-1, L, t))
        u += channel.spikes[c] @ channel.prior
        y = channel.labels.of_class[c](u, white[:, 2 * k : 2 * k + channel.n_noise])
        logs = products[c] - 0.5 * np.diagonal(products) + white[:, 2 * k + channel.n_noise :] @ side.T
        logs = logs + np.log(channel.probability)
        parts.append((np.full(len(u), c), u, white[:, k : 2 * k].reshape(-1, L, t), y, logs))
    of_class, u, white, y, logs = (np.concatenate(part) for part in zip(*parts, strict=True))
    weight = (channel.probability / np.bincount(of_class))[of_class]
    return ClassSamples(of_class, u, white, weight, Seen(y.reshape(len(y), -1), channel.group[of_class], logs))


def class_channel(model: Model) -> ClassChannel:
    """Return the channel of a sequence model with classes.

    Raises
    ------
    ValueError : if columns are fixed; if the variances of tokens or the prior of the teacher differ between
        coordinates; if the teacher has a mean; or if the targets of a class are not accepted by `class_targets`.
    """
    refuse_fixed_columns(model)
    law, (C, L), t = model.coordinates, model.classes.patterns.shape, model.teacher_rank
    for name in ("gamma", "teacher_cov"):
        values = getattr(law, name)
        if (values != values[:1]).any():
            raise check.fail(f"coordinates.{name}", values, "equal values in all coordinates, for samples with classes")
    if law.teacher_mean.any():
        needs = "zeros for samples with classes: a mean of the teacher would be known together with the means of tokens"
        raise check.fail("coordinates.teacher_mean", law.teacher_mean, needs)
    at, spikes = model.classes.patterns, law.spikes
    variance = law.gamma[0][at]
    _, first, group = np.unique(variance, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))  # groups in the order of their first classes
    means = model.class_means[:, at]
    products = np.einsum("k,kcl,kel,cl->ce", law.weight, means, means, 1 / variance)
    rho = variance[:, :, None, None] * law.teacher_cov[0]
    targets = [class_targets(labels, rho[c], c) for c, labels in enumerate(model.teacher.of_class)]
    return ClassChannel(
        labels=model.teacher, shape=(L, t), probability=model.classes.probability, variance=variance,
        group=order[group.ravel()], spikes=np.zeros((C, L, t)) if spikes is None else spikes[at],
        mean_products=products, targets=tuple(targets), prior=law.teacher_cov[0],
    )  # fmt: skip
