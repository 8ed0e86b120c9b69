"""Data and a model as a problem of Bayes-optimal message passing."""

from collections.abc import Callable
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.bayes.amp import Problem
from gamp_attention.bayes.priors import kinds_of
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.fields import token_products
from gamp_attention.models.channels.channel import Channel
from gamp_attention.models.model import Model, require_model


def posed(data: Dataset, model: Any, channel_of: Callable[[Model], Channel]) -> Problem:
    """What message passing works on; for one's own arrays the targets are y xᵀ(x xᵀ)⁻¹.

    Raises
    ------
    ValueError : where no model is known, or it does not fit the data.
    """
    if model is None and data.model is None:
        raise ValueError("model: needs the law of teacher and noise for one's own arrays, got none")
    model = data.model if model is None else require_model(model)
    if (model.n_tokens, model.attention) != (data.n_tokens, data.labels is None):
        what = "an attention model" if data.labels is None else "a model of labels"
        raise check.fail("model", type(model).__name__, f"{what} of {data.n_tokens} tokens, as the data are")
    channel = channel_of(model)
    kinds = kinds_of(model.coordinates)
    gamma = np.broadcast_to(data.spectra, (len(data.spectra), data.dim)).T
    tau = np.sqrt(data.dim) * data.source_means.T
    kind = np.zeros(data.dim, dtype=int)
    if len(kinds) > 1:
        size = np.array([np.abs(each.gamma).max() for each in kinds]).max(), max(np.abs(tau).max(), 1e-300)
        far = [
            np.sum((gamma - each.gamma) ** 2, axis=1) / size[0] ** 2
            + np.sum((tau - each.tau) ** 2, axis=1) / size[1] ** 2
            for each in kinds
        ]
        kind = np.argmin(far, axis=0)
        gamma = np.stack([each.gamma for each in kinds])[kind]  # as alike as their prior is
    return Problem(
        data, channel.seen(_observed(data)), channel, np.asarray(gamma), kind, [each.prior for each in kinds]
    )


def _observed(data: Dataset) -> np.ndarray:
    """Labels, or targets: those of one's own arrays are y xᵀ(x xᵀ)⁻¹, for d ≥ L."""
    known = data.labels if data.labels is not None else data.targets
    if known is not None:
        return known
    if data.dim < data.n_tokens:
        raise check.fail("data", f"d = {data.dim}", f"at least as many dimensions as tokens, {data.n_tokens}")
    x = np.asarray(data.tokens, dtype=float)
    gram, cross = token_products(x, x), token_products(np.asarray(data.outputs, dtype=float), x)
    return np.linalg.solve(gram, cross.transpose(0, 2, 1)).transpose(0, 2, 1)
