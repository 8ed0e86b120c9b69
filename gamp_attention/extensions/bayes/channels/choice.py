"""Channel of a model, and the second moments of a sample's fields given its observation only."""

import numpy as np

from gamp_attention._tools import check
from gamp_attention.extensions.bayes.channels.attention import attention_channel
from gamp_attention.extensions.bayes.channels.channel import PosteriorChannel
from gamp_attention.extensions.bayes.channels.labels import LABEL_CHANNELS
from gamp_attention.extensions.bayes.channels.teacher import teacher_channel
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.theory.models.model import Model, require_model


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


def field_moments(channel: PosteriorChannel, seen: np.ndarray, rho: np.ndarray, by_column: bool = False) -> np.ndarray:
    """Return second moments E[Σ_a u_a u_aᵀ | y] (n, L, L) of the fields of n samples, or of all fields (n, L t, L t).

    Eq. :eq:`posterior-moments`.

    Parameters
    ----------
    channel, seen : observation model, and observations y of n samples.
    rho : (L, t, t) prior covariances.
    by_column : whether to return E[u uᵀ | y] for all pairs of fields in place of the sum over columns.
    """
    n, (L, t, _) = len(seen), rho.shape
    first, second = channel.posterior(seen, np.zeros((n, L, t)), rho).second_moments()
    products = 0.5 * (first + second)
    return products if by_column else np.trace(products.reshape(n, L, t, L, t), axis1=2, axis2=4)
