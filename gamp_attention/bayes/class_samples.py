"""Samples with classes as observations of `ClassChannel`: groups, targets, and products with the known means."""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import TokenMatrix
from gamp_attention.data.stores import token_blocks
from gamp_attention.models.channels.classes import ClassChannel, Seen, class_channel


class ObservedClasses(NamedTuple):
    """Samples with classes, as a channel sees them."""

    channel: ClassChannel
    seen: Seen
    means: np.ndarray  # (C, L, d) known means μ of the tokens


def observe_classes(data: Dataset, model: Any) -> ObservedClasses:
    """Return the channel of a model, and its observations of samples.

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
    return ObservedClasses(channel, Seen(labels, group, products + np.log(channel.probability)), means)


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
