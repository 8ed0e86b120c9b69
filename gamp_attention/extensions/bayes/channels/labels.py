"""Channel of a model, and channels of labels: all fields (`LinearChannel`), or their sum over the tokens.

Intensities without noise determine the sum up to its sign. Given a sign, or a class with logistic odds, the sum has a
truncated normal distribution, or a mixture of such distributions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import block_diag
from scipy.special import expit, log_ndtr

from gamp_attention._tools import check
from gamp_attention.extensions.bayes.channels.attention import attention_channel, posterior_of_sign
from gamp_attention.extensions.bayes.channels.channel import (
    LabelChannel,
    Posterior,
    PosteriorChannel,
    log_normal,
    softmax_sum,
)
from gamp_attention.extensions.bayes.channels.integrals import (
    FINE,
    IntegralRule,
    average_odds,
    average_up_to_sign,
    class_probabilities,
    logistic_nodes,
    normal_nodes,
)
from gamp_attention.extensions.bayes.channels.teacher import teacher_channel
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.theory.models.labels import IntensityLabels, LinearLabels, LogisticLabels
from gamp_attention.theory.models.model import Model, require_model


@dataclass(frozen=True)
class LinearChannel(LabelChannel):
    """Channel of linear labels: every field is observed, with or without Gaussian noise."""

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior, which is Gaussian."""
        (L, t), N = self.shape, len(y)
        total = V + self.labels.noise**2 * np.eye(t)
        gain = V @ np.linalg.inv(total)
        off = y.reshape(N, L, t) - omega
        mean = omega + np.einsum("lab,nlb->nla", gain, off)
        cov = np.broadcast_to(block_diag(*(V - gain @ V)), (N, L * t, L * t))
        return Posterior(mean, cov, log_normal(off, total))

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float]:
        """Return E[g gᵀ] (L, t, t) and E[log Z]."""
        total = V + self.labels.noise**2 * np.eye(self.shape[1])
        return np.linalg.inv(total), -0.5 * float(np.linalg.slogdet(2 * np.pi * total)[1].sum() + np.prod(self.shape))

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the total variance of the labels given ω."""
        return float(np.trace(V, axis1=1, axis2=2).sum() + self.labels.noise**2 * np.prod(self.shape))


@dataclass(frozen=True)
class SumChannel(LabelChannel):
    """Channel of labels that depend on S = Σ_l u_l of one column only; the fields are Gaussian given S.

    The sum is treated as the field of a single token.
    """

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the fields, from the posterior of their sum."""
        center, total, v = omega.sum(axis=1, keepdims=True), V.sum(axis=0, keepdims=True), V[:, 0, 0]
        mean, cov, log_z, _ = self.of_sum(y[:, :, None], center, total)
        gain = v / v.sum()
        cov = np.diag(v) + np.outer(gain, gain) * (cov - total)
        return Posterior(omega + gain[:, None] * (mean - center), cov, log_z)

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float] | None:
        """Return E[g gᵀ] (L, 1, 1) and E[log Z]; g is the same for all tokens."""
        square, log_z = self.integrate_sum(known.sum(axis=0, keepdims=True), V.sum(axis=0, keepdims=True), rule)
        return np.full(V.shape, square), log_z

    def of_sum(self, y: np.ndarray, center: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the sum for its prior N(center, V), given labels (N, 1, 1)."""
        raise NotImplementedError

    def integrate_sum(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[Any, float]:
        """Return E[g²] and E[log Z] for a sum N(ω, V) with ω ~ N(0, known)."""
        raise NotImplementedError


@dataclass(frozen=True)
class IntensityChannel(SumChannel):
    """Channel of intensities without noise, which are equal for u and −u."""

    even = True

    def __post_init__(self) -> None:
        if self.labels.noise:
            needs = "0, or a teacher of sequence_model with noise: lambda u, noise: u.sum() ** 2 + s * noise[0]"
            raise check.fail("model.teacher.noise", self.labels.noise, needs)

    def of_sum(self, y: np.ndarray, center: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the sum, over its sign."""
        return posterior_of_sign(np.sqrt(np.maximum(y, 0)), center, V)

    def integrate_sum(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[Any, float]:
        """Return E[g²] and E[log Z]."""
        return average_up_to_sign(known, V, rule)

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the variance of the intensity given ω."""
        return float(4 * known.sum() * V.sum() + 2 * V.sum() ** 2)


@dataclass(frozen=True)
class BinaryChannel(SumChannel):
    """Channel of labels ±1, the sign of the sum or a class with logistic odds."""

    def of_sum(self, y: np.ndarray, center: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior of the sum.

        A class with logistic odds is the sign of S + T τ with logistic noise τ, so that S has a truncated normal
        distribution for each node of τ. If T is above √V, the likelihood is averaged over nodes of S.
        """
        T, v, y, center = self.labels.temperature, V.item(), y[:, :, 0], center[:, :, 0]
        if np.sqrt(v) > T:
            shift, weight = logistic_nodes(T, FINE)
            at = y * (center + shift) / np.sqrt(v)  # S + T τ of this sign has a normal distribution truncated at zero
            logs = log_ndtr(at)
            hazard = np.exp(-0.5 * at**2 - 0.5 * np.log(2 * np.pi) - logs)
            mean, variance = center + y * np.sqrt(v) * hazard, v * np.clip(1 - hazard * (at + hazard), 0, 1)
        else:
            x, weight = normal_nodes(FINE)
            mean = center + np.sqrt(v) * x
            variance, logs = np.zeros_like(mean), np.log(expit(y * mean / T))
        weights, log_z = softmax_sum(logs + np.log(np.maximum(weight, np.finfo(float).tiny)))
        average = np.sum(weights * mean, axis=1, keepdims=True)
        total = np.sum(weights * (variance + (mean - average) ** 2), axis=1, keepdims=True)
        return Posterior(average[:, :, None], total[:, :, None], log_z)

    def integrate_sum(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[Any, float]:
        """Return E[g²] and E[log Z]."""
        return average_odds(known.item(), V.item(), self.labels.temperature, rule)

    def label_error(self, V: np.ndarray, known: np.ndarray, rule: IntegralRule) -> float:
        """Return the variance of the label given ω."""
        temperature = self.labels.temperature
        weight, likely, unlikely, _ = class_probabilities(float(known.sum()), float(V.sum()), temperature, rule)
        return 4 * float(weight @ (likely * unlikely))


LABEL_CHANNELS: dict[type, type[LabelChannel]] = {
    LinearLabels: LinearChannel,
    LogisticLabels: BinaryChannel,
    IntensityLabels: IntensityChannel,
}


def channel_of(model: Model) -> PosteriorChannel:
    """Return the observation model of a model's samples.

    Raises
    ------
    TypeError : if the argument is not a Model.
    ValueError : if tokens have classes; labels are user-defined, numbered classes or noisy intensities; or attention
        matrices do not determine the fields of one column up to their sign, and are not a function that
        `teacher_channel` accepts.
    """
    require_model(model)
    if model.is_mixture:
        raise check.fail_words("model", type(model).__name__, "tokens without classes")
    if is_function(model.teacher):
        return teacher_channel(model.teacher, model.coordinates.rho)
    if model.attention:
        return attention_channel(model)
    label_channel = LABEL_CHANNELS.get(type(model.teacher))
    if label_channel is None:
        needs = "LinearLabels, LogisticLabels, IntensityLabels, or a teacher of sequence_model"
        raise check.fail_words("model.teacher", type(model.teacher).__name__, needs)
    return label_channel(model.teacher, (model.n_tokens, model.teacher_rank))
