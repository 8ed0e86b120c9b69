"""Channels of attention matrices: one column without noise (`SignChannel`) or with noise, any other as a function."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.bayes.channels.channel import Posterior, PosteriorChannel, log_normal
from gamp_attention.extensions.bayes.channels.integrals import IntegralRule, average_up_to_sign
from gamp_attention.extensions.bayes.channels.scores import ScoreChannel
from gamp_attention.extensions.bayes.channels.teacher import teacher_channel
from gamp_attention.extensions.sequence.sequence_labels import trace_teacher
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.models.teachers import SoftmaxTeacher


def attention_channel(model: Model) -> PosteriorChannel:
    """Return the channel of an attention model; ValueError if its posterior is not available.

    Without noise, a softmax or linear attention of one column with tied weights determines the fields up to their sign.
    With noise, posteriors of one column are sums over grids, if these do not need too many points. Other teachers are
    functions of the fields and of the noise of the scores.
    """
    teacher, L, t = model.teacher, model.n_tokens, model.teacher_rank
    if isinstance(teacher, SoftmaxTeacher):
        attention = teacher.attention
        if teacher.omega == 1 and not model.score_noise:
            raise check.fail("model.teacher.omega", 1.0, "omega < 1, so that targets depend on the fields")
        if attention.softmax and L < 2:
            raise check.fail("model.n_tokens", L, "at least two tokens")
        if t == 1 and attention.tied and not attention.causal and not model.score_noise:
            return SignChannel(teacher, (L, t))
    if t == 1 and model.score_noise:
        channel = ScoreChannel.of(teacher, model.coordinates.rho, model.score_noise)
        if channel.is_affordable(model.coordinates.rho):
            return channel
    n_noise = L * L if model.score_noise else 0
    teach = partial(_teach_scores, teacher, model.score_noise)
    return teacher_channel(trace_teacher(teach, L, t, n_noise, None), model.coordinates.rho)


def _teach_scores(teacher: Any, s: float, u: Any, noise: Any) -> Any:
    """Return T[u] + s N for fields u (L, t) and noise (L²,), with operations that can be traced."""
    T = teacher(u)
    return T + s * noise.reshape(T.shape) if s else T


def fields_of_targets(teacher: SoftmaxTeacher, targets: np.ndarray) -> np.ndarray:
    """Return the fields (N, L, 1) of attention matrices (N, L, L), up to a common sign.

    Eq. :eq:`bayes-inversion`.
    """
    weights = (targets - teacher.omega * teacher.A) / (1 - teacher.omega)
    if not teacher.attention.softmax:
        return _factors(teacher.attention.temperature * weights)
    if not (weights > 0).all():
        raise check.fail("targets", float(weights.min()), "positive attention weights, as the model's teacher produces")
    scores = teacher.attention.temperature * np.log(weights)  # u uᵀ up to a constant in each row
    centered = scores - scores.mean(axis=2, keepdims=True)  # u (u − ū)ᵀ
    differences = _factors(centered - centered.mean(axis=1, keepdims=True))  # (u − ū)(u − ū)ᵀ
    return centered @ differences / np.sum(differences**2, axis=1, keepdims=True)


def _factors(products: np.ndarray) -> np.ndarray:
    """Return v (N, L, 1) with v vᵀ = products (N, L, L)."""
    spectrum, vectors = np.linalg.eigh(symmetrize(products))
    return vectors[:, :, -1:] * np.sqrt(np.maximum(spectrum[:, None, -1:], np.finfo(float).tiny))


def posterior_of_sign(y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
    """Return the posterior of fields that are known as y (N, L, 1) up to a sign: E u = y tanh(Σ_l y_l ω_l/V_l)."""
    field = np.einsum("nl,nl,l->n", y[:, :, 0], omega[:, :, 0], 1 / V[:, 0, 0])
    variance = 1 / np.cosh(np.clip(field, -300, 300)) ** 2
    cov = variance[:, None, None] * y * y[:, None, :, 0]
    log_z = log_normal(y, V) + log_normal(omega, V) - log_normal(np.zeros_like(y[:1]), V)
    return Posterior(np.tanh(field)[:, None, None] * y, cov, log_z + np.logaddexp(field, -field) - np.log(2))


@dataclass(frozen=True)
class SignChannel(PosteriorChannel):
    """Channel of attention matrices of one column without noise; the observations y are the fields up to their sign."""

    teacher: SoftmaxTeacher
    shape: tuple[int, int]  # L, 1
    even = True

    def observe(self, u: np.ndarray, white: np.ndarray) -> np.ndarray:
        """Return the fields."""
        return u

    def convert_targets(self, observed: np.ndarray) -> np.ndarray:
        """Return the fields of the targets."""
        return fields_of_targets(self.teacher, observed)

    def posterior(self, y: np.ndarray, omega: np.ndarray, V: np.ndarray) -> Posterior:
        """Return the posterior over the sign."""
        return posterior_of_sign(y, omega, V)

    def integrate(self, known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float] | None:
        """Return E[g gᵀ] (L, 1, 1) and E[log Z].

        None if the ratios known/V of the tokens differ, for which these averages are integrals over L numbers.
        """
        ratio = known / V
        return average_up_to_sign(known, V, rule) if np.ptp(ratio) <= 1e-9 * ratio.max() else None
