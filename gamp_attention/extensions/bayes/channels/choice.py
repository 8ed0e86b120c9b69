"""Channel of a model, and the second moments of a sample's fields given its observation only."""

import numpy as np

from gamp_attention._tools import check
from gamp_attention.extensions.bayes.channels.channel import PosteriorChannel
from gamp_attention.extensions.bayes.channels.noiseless import PlaneChannel, SignChannel, hidden_fields
from gamp_attention.extensions.bayes.channels.noisy import LABEL_CHANNELS, ScoreChannel
from gamp_attention.extensions.bayes.channels.teacher import teacher_channel
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.theory.models.model import Model, require_model


def channel_of(model: Model) -> PosteriorChannel:
    """Return the observation model of a model's samples.

    Raises
    ------
    TypeError : if the argument is not a Model.
    ValueError : if tokens have classes; columns are fixed; labels are user-defined; or attention matrices have no noise
        and do not determine the fields up to a rotation of at most two columns.
    """
    require_model(model)
    L, t = model.n_tokens, model.teacher_rank
    if model.is_mixture:
        raise check.fail_words("model", type(model).__name__, "tokens without classes")
    if fixed := getattr(model, "fixed_columns", ()):
        needs = "none for the posterior of the fields, as fixed columns are known and not observed"
        raise check.fail("model.fixed_columns", list(fixed), needs)
    if is_function(model.teacher):
        return teacher_channel(model.teacher, model.coordinates.rho)
    if not model.attention:
        label_channel = LABEL_CHANNELS.get(type(model.teacher))
        if label_channel is None:
            needs = "LinearLabels, LogisticLabels, ClassLabels, IntensityLabels, or a teacher of sequence_model"
            raise check.fail_words("model.teacher", type(model.teacher).__name__, needs)
        return label_channel(model.teacher, (L, t))
    if model.score_noise:
        return ScoreChannel.of(model.teacher, model.coordinates.rho, model.score_noise)
    if t > 2:
        needs = "score_noise > 0, or at most 2 columns: averages over rotations of more columns are not implemented"
        raise check.fail("model.teacher_rank", t, needs)
    kind = SignChannel if t == 1 else PlaneChannel
    return kind(model.teacher, (L, t), hidden_fields(model.teacher, L, t))


ASSUMED_NOISE = 0.03  # score noise that is assumed if the exact posterior of noiseless targets is not available


def moment_channel(model: Model) -> PosteriorChannel:
    """Return the channel of a model; for noiseless attention without an exact posterior, a channel with weak noise."""
    try:
        return channel_of(model)
    except ValueError:
        if not model.attention or model.is_mixture or model.score_noise:
            raise
        return ScoreChannel.of(model.teacher, model.coordinates.rho, ASSUMED_NOISE)


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
