"""Which channel a model has."""

from typing import Any

from gamp_attention._core import check
from gamp_attention.models.channels.channel import Channel
from gamp_attention.models.channels.grids import ScoreChannel
from gamp_attention.models.channels.labels import KNOWN
from gamp_attention.models.channels.rotations import PlaneChannel, SignChannel
from gamp_attention.models.channels.scores import hidden_fields
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
    if model.n_sources > L:
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
