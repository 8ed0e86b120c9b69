"""Which channel a model has.

What samples say of the products of their teacher fields where nothing else is known: E[Σ_a u_a u_aᵀ | sample].
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.channels.channel import Channel
from gamp_attention.models.channels.noiseless import PlaneChannel, SignChannel, hidden_fields
from gamp_attention.models.channels.noisy import KNOWN, ScoreChannel
from gamp_attention.models.model import Model, require_model


def channel_of(model: Model) -> Channel:
    """The posterior channel of a model.

    Raises
    ------
    TypeError, ValueError : for mixtures of tokens, unknown labels, and attention matrices without noise that no exact
        average is known for.
    """
    require_model(model)
    L, t = model.n_tokens, model.teacher_rank
    if model.is_mixture:
        raise check.fail("model", type(model).__name__, "tokens without classes")
    if not model.attention:
        labels: Any = KNOWN.get(type(model.teacher))
        if labels is None:
            needs = "labels of the package: LinearLabels, LogisticLabels, ClassLabels or IntensityLabels"
            raise check.fail("model.teacher", type(model.teacher).__name__, needs)
        return labels(model.teacher, (L, t))
    if model.score_noise:
        return ScoreChannel.of(model.teacher, model.coordinates.rho, model.score_noise)
    if t > 2:
        needs = "score_noise > 0, or at most 2 columns: rotations of more are not averaged over"
        raise check.fail("model.teacher_rank", t, needs)
    kind = SignChannel if t == 1 else PlaneChannel
    return kind(model.teacher, t, hidden_fields(model.teacher, L, t))


@dataclass(frozen=True)
class MomentSettings:
    """Where no exact average is known."""

    noise: float = 0.03  # that targets without noise are taken to have


MOMENTS = MomentSettings()


def moment_channel(model: Model) -> Channel:
    """The channel of a model; for exact attention matrices of which no average is known, that of a little noise."""
    try:
        return channel_of(model)
    except ValueError:
        if not model.attention or model.is_mixture or model.score_noise:
            raise
        return ScoreChannel.of(model.teacher, model.coordinates.rho, MOMENTS.noise)


def field_moments(channel: Channel, seen: np.ndarray, rho: np.ndarray) -> np.ndarray:
    """E[Σ_a u_a u_aᵀ | y] (n, L, L), of fields of covariances ρ (L, t, t) a priori and what is seen of n samples.

    Eq. :eq:`posterior-moments`.
    """
    n, (L, t, _) = len(seen), rho.shape
    found = channel.posterior(seen, np.zeros((n, L, t)), rho)
    products = found.cov.reshape(n, L, t, L, t) + found.mean[:, :, :, None, None] * found.mean[:, None, None]
    return np.trace(products, axis1=2, axis2=4)
