"""Bayes-optimal message passing for samples with classes: the problem, and the differences from other samples.

The posterior of a sample (`gamp_attention.extensions.bayes.channels.classes`) depends on Q through its fields u,
through N = QᵀQ/d, and through the products h_cl = Qᵀμ_cl/√d with the known means. N and h are sums over all coordinates
and enter with their means, N = QᵀQ/d + C and h at the current weights. Their derivatives are terms of the messages to a
row,

    A_i = Σ_s γ_s α [−⟨∂g_s/∂ω_s⟩ + ⟨a aᵀ⟩/σ_s⁴],   b_i = Σ_μl x_li g_l/√d − Σ_μl ⟨√d μ_cl,i a_cl⟩/(d σ_l²) + …,

where averages over classes are taken with the posterior probabilities of each sample. The Onsager terms of b contain
−⟨∂g/∂ω⟩ only. The second term of b cancels the part of the first that the known means contribute on average. The
group of a sample, which determines its variances, follows from the norms of its tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import project_psd, symmetrize
from gamp_attention.extensions.bayes.channels.channel import Posterior
from gamp_attention.extensions.bayes.channels.classes import ClassChannel, Seen, class_channel
from gamp_attention.extensions.bayes.messages import AmpProblem, Responses
from gamp_attention.extensions.bayes.priors import MixturePrior
from gamp_attention.extensions.train.spectral_weights import weights_of_groups
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.passes import TokenMatrix
from gamp_attention.problem.stores import token_blocks


@dataclass(frozen=True, eq=False)
class ClassAmpProblem(AmpProblem):
    """Samples with classes. `gamma` (d, S), variances V and precisions A have an entry for each group and token.

    Attributes
    ----------
    y : targets, groups and weights of the classes of all samples, for h = 0.
    means : (C, L, d) known means μ of the tokens.
    Others : as for `AmpProblem`.
    """

    y: Seen
    channel: ClassChannel
    means: np.ndarray

    def posterior(self, omega: np.ndarray, V: np.ndarray, Q: np.ndarray, blocks: bool = True) -> Posterior:
        """Return the posterior of the fields for prior means ω (n, L, t), covariances V (S, t, t) and weights Q.

        With `blocks`, covariances are within tokens only, as the messages need them.
        """
        channel, d = self.channel, len(Q)
        known = channel.group_variance.reshape(-1, 1, 1) * (Q.T @ Q / d)
        products = np.einsum("cld,dt,clt->c", self.means, Q / np.sqrt(d), self._scaled_spikes, optimize=True)
        seen = self.y._replace(log_weight=self.y.log_weight - products)
        return channel.posterior(seen, omega, V, known, blocks)

    @property
    def _scaled_spikes(self) -> np.ndarray:
        """Spikes a/σ² (C, L, t)."""
        return np.asarray(self.channel.spikes / self.channel.variance[:, :, None])

    def respond(self, samples: Posterior, omega: np.ndarray, V: np.ndarray) -> Responses:
        """Return the contributions of the posteriors of the samples to the update of the weights."""
        channel, n, d = self.channel, len(omega), len(self.gamma)
        (L, t), a = channel.shape, self._scaled_spikes
        inverse = np.linalg.inv(V)
        g = np.einsum("nlab,nlb->nla", self.of_samples(inverse), samples.mean - omega)
        assert samples.of_class is not None
        counts = samples.of_class.sum(axis=0)
        slope, tilt = np.empty_like(V), np.zeros_like(V)
        for k in range(channel.n_groups):
            rows, part = self.y.group == k, slice(k * L, (k + 1) * L)
            cov = samples.cov[rows].sum(axis=0).reshape(L, t, L, t)[np.arange(L), :, np.arange(L)]
            slope[part] = symmetrize(rows.sum() * inverse[part] - inverse[part] @ cov @ inverse[part]) / n
            members = channel.group == k
            tilt[part] = np.einsum("c,cla,clb->lab", counts[members] / n, a[members], a[members], optimize=True)
        shift = -np.einsum("c,cld,clt->dt", counts, self.means, a, optimize=True) / np.sqrt(d)
        alpha = self.data.alpha
        return Responses(g, alpha * project_psd(slope + tilt), alpha * slope, shift)

    def of_samples(self, V: np.ndarray) -> np.ndarray:
        """Return the matrices (n, L, t, t) of each sample for V (S, t, t); (1, L, t, t) if there is one group."""
        blocks = V.reshape(self.channel.n_groups, -1, *V.shape[1:])
        return blocks if len(blocks) == 1 else blocks[self.y.group]

    def of_sources(self, V: np.ndarray) -> np.ndarray:
        """Return variances (C L, t, t) of all pairs of class and token."""
        return V[self.channel.sources]

    @property
    def without_information(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means ω (n, L, t), covariances V (S, t, t) and weights Q (d, t) without information on the teacher."""
        n, d, (L, t) = self.data.n_samples, self.data.dim, self.channel.shape
        return np.zeros((n, L, t)), self.channel.rho, np.zeros((d, t))

    def field_moments(self) -> np.ndarray:
        """Return second moments E[u uᵀ | y] (n, L t, L t) of the fields, without information on the weights."""
        return self.remaining_moments(*self.without_information)

    def remaining_moments(self, omega: np.ndarray, V: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """Return second moments (n, L t, L t) given the fields of some columns; Q is zero in the others."""
        posterior = self.posterior(omega, V, Q, blocks=False)
        flat = posterior.mean.reshape(len(omega), -1)
        return np.asarray(posterior.cov + flat[:, :, None] * flat[:, None])

    def weights_of(self, moments: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return posterior weights (n, L k, L k) of some columns (k,), for second moments (n, L t, L t) of all."""
        L, t = self.channel.shape
        k = len(columns)
        chosen = moments.reshape(-1, L, t, L, t)[:, :, columns][:, :, :, :, columns]
        deviation = np.sqrt(np.diagonal(self.channel.rho, axis1=1, axis2=2)[:, columns])
        return weights_of_groups(chosen, deviation.reshape(-1, L * k)[self.y.group], self.data.alpha)


def build_class_problem(data: Dataset, model: Any) -> ClassAmpProblem:
    """Return the problem of data that were sampled from a sequence model with classes.

    Raises
    ------
    ValueError : as for `class_channel`; or if no teacher is known and the means differ between classes of coordinates,
        or a sample has targets that no class of its group has.
    """
    channel = class_channel(model)
    C, (L, _) = len(channel.probability), channel.shape
    means = _known_means(data, model, channel)
    norms = np.empty((data.n_samples, L))
    directions = np.ascontiguousarray(np.sqrt(data.dim) * means.reshape(C * L, -1).T)
    along = TokenMatrix(data.tokens, np.zeros_like(data.positions)).fields(directions).reshape(-1, L, C, L)
    along = along[:, np.arange(L), :, np.arange(L)]  # (L, n, C) products of token l and the mean of token l in class c
    for rows, _, block in token_blocks(data.tokens):
        norms[rows] = np.einsum("nld,nld->nl", block, block, dtype=float)
    squares = np.einsum("cld,cld->lc", means, means)
    products = np.einsum("lnc,cl->nc", along - 0.5 * squares[:, None], 1 / channel.variance)
    sigma2 = channel.group_variance
    group = np.argmax(-0.5 * norms @ (1 / sigma2).T - 0.5 * data.dim * np.log(sigma2).sum(axis=1), axis=1)
    labels = np.asarray(data.labels, dtype=float).reshape(data.n_samples, -1)
    possible = np.stack([of_class.contain(labels) for of_class in channel.targets], axis=1)
    possible &= group[:, None] == channel.group
    if not possible.any(axis=1).all():
        got = f"{int((~possible.any(axis=1)).sum())} samples whose targets no class has"
        raise check.fail_words("data", got, "samples of the model")
    prior = MixturePrior(np.ones(1), np.zeros((1, channel.shape[1])), channel.prior[None])
    return ClassAmpProblem(
        data=data, y=Seen(labels, group, products + np.log(channel.probability)), channel=channel,
        gamma=np.tile(sigma2.ravel(), (data.dim, 1)), kind=np.zeros(data.dim, dtype=int), priors=[prior], means=means,
    )  # fmt: skip


def _known_means(data: Dataset, model: Any, channel: ClassChannel) -> np.ndarray:
    """Return the means μ (C, L, d) of the tokens without spikes."""
    at, d = model.classes.patterns, data.dim
    if data.Q_star is not None and data.is_mixture:
        spikes = np.einsum("clt,dt->cld", channel.spikes, data.Q_star) / np.sqrt(d)
        return np.asarray(data.source_means[at] - data.positions - spikes)
    if len(model.class_means) > 1:
        needs = "samples of the model, if means differ between classes of coordinates"
        raise check.fail_words("data", "data without a teacher", needs)
    means = np.repeat(model.class_means[0][at][..., None], d, axis=2) / np.sqrt(d - data.intercept)
    means[..., d - data.intercept :] = 0
    return means
