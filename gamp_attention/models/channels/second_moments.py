"""What samples say of the products of their teacher fields where nothing else is known: E[Σ_a u_a u_aᵀ | sample]."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.models.channels.channel import Channel
from gamp_attention.models.channels.choice import channel_of
from gamp_attention.models.channels.grids import ScoreChannel
from gamp_attention.models.model import Model


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
        if not model.attention or model.n_sources > model.n_tokens or model.score_noise:
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
