"""Starts from the posterior moments of the teacher's fields, for samples that were drawn from a model."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.class_samples import ObservedClasses, observe_classes
from gamp_attention.data.dataset import Dataset
from gamp_attention.denoisers.spectral_weights import Shape, posterior_weights, weights_of_groups
from gamp_attention.extensions.train.spectral import lowest_eigenvectors, side_by_side
from gamp_attention.models.channels.channel import Channel
from gamp_attention.models.channels.choice import field_moments, moment_channel
from gamp_attention.models.channels.teacher import TeacherChannel
from gamp_attention.models.named_starts import UNINFORMED_SIZE
from gamp_attention.models.sequence import SequenceMixture


def posterior_weights_of(data: Dataset, argument: str) -> np.ndarray:
    """Return the matrices h (n, L c, L c) of the samples from the posterior moments of the teacher's fields.

    `argument` is the name of the requested weights or start in errors.
    """
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    if isinstance(data.model, SequenceMixture) and shape.columns == data.model.teacher_rank:
        return _class_weights(data, observe_classes(data, data.model))
    channel, observed, rho = _posterior_problem(data, argument)
    K = field_moments(channel, observed, rho, by_column=shape.columns > 1)
    return posterior_weights(K, rho, data.n_samples / data.dim)


def _posterior_problem(data: Dataset, argument: str) -> tuple[Channel, np.ndarray, np.ndarray]:
    """Return channel, observations and covariances of the teacher's fields; ValueError if posteriors do not apply."""
    columns = Shape.of(data.student, data.n_tokens, data.rank).columns
    model, observed = data.model, data.labels if data.is_labelled else data.targets
    if model is None or observed is None or data.is_mixture:
        needs = "unless samples are drawn from a model, and models with classes have a column for each of the teacher"
    else:
        channel, rho = moment_channel(model), model.coordinates.rho
        if columns == 1 or (isinstance(channel, TeacherChannel) and columns == rho.shape[1]):
            return channel, channel.convert_targets(observed), rho
        needs = (
            "except for students with tied weights, or with a column for each column of a teacher that is a function"
        )
    others = "'fitted' or 'hessian'" if argument == "weights" else "another start"
    raise check.fail(argument, "posterior", f"{others}, {needs}")


def _class_weights(data: Dataset, observed: ObservedClasses) -> np.ndarray:
    """Return the posterior weights (n, L t, L t) of samples with classes."""
    channel, seen, _ = observed
    (L, t), n = channel.shape, data.n_samples
    posterior = channel.posterior(seen, np.zeros((n, L, t)), channel.rho, np.zeros_like(channel.rho))
    deviation = np.sqrt(np.diagonal(channel.rho, axis1=1, axis2=2)).reshape(-1, L * t)[seen.group]
    moments = np.mean(posterior.second_moments(), axis=0).reshape(n, L, t, L, t)
    return weights_of_groups(moments, deviation, n / data.dim)


def _class_means(data: Dataset, observed: ObservedClasses) -> np.ndarray:
    """Return Σ X̃ᵀ ρ⁻¹E[u | y] (d, t) of samples with classes, without the part of the known means, see `class_amp`."""
    channel, seen, means = observed
    (L, t), n = channel.shape, data.n_samples
    posterior = channel.posterior(seen, np.zeros((n, L, t)), channel.rho, np.zeros_like(channel.rho), blocks=True)
    inverse = np.linalg.inv(channel.rho).reshape(-1, L, t, t)[seen.group]
    assert posterior.of_class is not None
    a = channel.spikes / channel.variance[:, :, None]
    known = np.einsum("c,cld,clt->dt", posterior.of_class.sum(axis=0), means, a, optimize=True)
    projected = data.matrix.back_project(np.einsum("nlab,nlb->nla", inverse, posterior.mean))
    return np.asarray(projected - known / np.sqrt(data.dim))


def posterior_start(data: Dataset, risk: str, random: np.random.Generator) -> np.ndarray:
    """Return weights (d, r) along the lowest eigenvectors of posterior weights, with columns of norm √d.

    If the student has a column for each column of the teacher, only columns that are found first are set; the others
    are small and random. A column whose sign the targets determine is set to the sum of X̃ᵀ E[u | y] instead.
    """
    shape, size = Shape.of(data.student, data.n_tokens, data.rank), np.sqrt(data.dim)
    if shape.columns == 1:
        h = posterior_weights_of(data, "init")
        vectors = lowest_eigenvectors(data.matrix, h, 1, shape.size, random)[1]
        return size * side_by_side(list(vectors), shape.size) if len(vectors) else np.zeros((data.dim, data.rank))
    if isinstance(data.model, SequenceMixture) and shape.columns == data.model.teacher_rank:
        return _class_start(data, random)
    channel, observed, rho = _posterior_problem(data, "init")
    assert isinstance(channel, TeacherChannel)
    Q = UNINFORMED_SIZE * random.standard_normal((data.dim, data.rank))
    signed = ~channel.signless_columns
    if signed.any():
        mean = channel.posterior(observed, np.zeros((data.n_samples, *rho.shape[:2])), rho).mean
        projected = data.matrix.back_project(mean)[:, signed]
        Q[:, signed] = size * projected / np.linalg.norm(projected, axis=0)
        return Q
    h = posterior_weights(field_moments(channel, observed, rho, by_column=True), rho, data.n_samples / data.dim)
    return _set_first_columns(data, Q, h, random)


def _class_start(data: Dataset, random: np.random.Generator) -> np.ndarray:
    """Return the start of `posterior_start` for samples with classes."""
    assert isinstance(data.model, SequenceMixture)
    observed, size = observe_classes(data, data.model), np.sqrt(data.dim)
    Q = UNINFORMED_SIZE * random.standard_normal((data.dim, data.rank))
    signed = ~observed.channel.signless_columns
    if signed.any():
        projected = _class_means(data, observed)[:, signed]
        Q[:, signed] = size * projected / np.linalg.norm(projected, axis=0)
        return Q
    return _set_first_columns(data, Q, _class_weights(data, observed), random)


def _set_first_columns(data: Dataset, Q: np.ndarray, h: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return Q with the lowest eigenvector of weights h (n, L t, L t) in the columns that have weights."""
    vectors = lowest_eigenvectors(data.matrix, h, Q.shape[1], 1, random)[1]
    if len(vectors):
        used = np.abs(h).max(axis=(0, 1)).reshape(-1, Q.shape[1]).max(axis=0) > 0
        Q[:, used] = np.sqrt(data.dim * used.sum()) * vectors[0][:, used]
    return Q


class PosteriorStarts(NamedTuple):
    """Functions that data drawn from a model have for the start "posterior" and spectral weights of this name."""

    weights: Callable[[Dataset, str], np.ndarray] = posterior_weights_of
    start: Callable[[Dataset, str, np.random.Generator], np.ndarray] = posterior_start
