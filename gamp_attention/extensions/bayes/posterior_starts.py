"""Starts from the posterior moments of the teacher's fields, for samples that were drawn from a model."""

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention.extensions.bayes.channels.channel import PosteriorChannel
from gamp_attention.extensions.bayes.channels.choice import field_moments, moment_channel
from gamp_attention.extensions.train.spectral import SpectralDirections, lowest_eigenvectors, side_by_side
from gamp_attention.extensions.train.spectral_weights import Shape, posterior_weights
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.named_starts import UNINFORMED_SIZE


def _weights_of_samples(data: Dataset) -> np.ndarray:
    """Return the matrices h (n, L c, L c) of the samples from the posterior moments of the teacher's fields."""
    channel, observed, rho = _posterior_problem(data)
    columns = Shape.of(data.student, data.n_tokens, data.rank).columns
    K = field_moments(channel, observed, rho, by_column=columns > 1)
    return posterior_weights(K, rho, data.n_samples / data.dim)


def _posterior_problem(data: Dataset) -> tuple[PosteriorChannel, np.ndarray, np.ndarray]:
    """Return channel, observations and covariances of the teacher's fields; ValueError if posteriors do not apply."""
    columns = Shape.of(data.student, data.n_tokens, data.rank).columns
    model, observed = data.model, data.labels if data.is_labelled else data.targets
    if model is None or observed is None:
        raise check.fail_words("data", "data without a model", "samples that were drawn from a model")
    channel, rho = moment_channel(model), model.coordinates.rho
    if columns > 1 and not (channel.is_function and columns == rho.shape[1]):
        needs = "a student with tied weights, or with a column for each column of a teacher that is a function"
        raise check.fail_words("data", f"samples with a student of {columns} columns", needs)
    return channel, channel.convert_targets(observed), rho


@guard_call
def posterior_directions(data: Dataset, k: int = 3, *, seed: int | np.random.Generator = 0) -> SpectralDirections:
    """Compute the lowest eigenvectors of Σ_μ X̃ᵀ h^μ X̃ for matrices h from the posterior of the teacher's fields.

    Eqs. :eq:`spectral` and :eq:`posterior-weights`.

    Parameters
    ----------
    data : samples that were drawn from a model, whose map of the teacher and noise are known.
    k, seed : as for `spectral_directions`.

    Returns
    -------
    SpectralDirections

    Raises
    ------
    TypeError : if `data` is not a Dataset, or an argument has the wrong type.
    ValueError : if `k` is below 1, the data have no model, samples have classes, or the posterior does not apply to the
        student.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d=200, alpha=0.75, seed=0)
    >>> first = ga.posterior_directions(data).vectors[0, :, 0]
    >>> bool(abs(first @ data.Q_star[:, 0]) / 200**0.5 > 0.5)
    True
    """
    k, columns = check.integer("k", k, low=1), Shape.of(require_dataset(data).student, data.n_tokens, data.rank).columns
    check.require_memory("k", k, data.dim)
    h = _weights_of_samples(data)
    return SpectralDirections(*lowest_eigenvectors(data.matrix, h, columns, k, generator(seed, Stream.STARTS)))


@guard_call
def posterior_start(data: Dataset, seed: int | np.random.Generator = 0) -> np.ndarray:
    """Return weights (d, r) along the lowest eigenvectors of posterior weights, with columns of norm √d.

    If the student has a column for each column of the teacher, only columns that are found first are set; the others
    are small and random. A column whose sign the targets determine is set to the sum of X̃ᵀ E[u | y] instead.

    Parameters
    ----------
    data : samples that were drawn from a model, whose map of the teacher and noise are known.
    seed : seed or generator of the random numbers.

    Returns
    -------
    array (d, r) of initial weights, for example for `run_gamp`.

    Raises
    ------
    TypeError, ValueError : as for `posterior_directions`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d=200, alpha=0.75, seed=0)
    >>> ga.run_gamp(data, ga.posterior_start(data)).converged
    True
    """
    random = generator(seed, Stream.STARTS)
    require_dataset(data)
    shape, size = Shape.of(data.student, data.n_tokens, data.rank), np.sqrt(data.dim)
    if shape.columns == 1:
        h = _weights_of_samples(data)
        vectors = lowest_eigenvectors(data.matrix, h, 1, shape.size, random)[1]
        return size * side_by_side(list(vectors), shape.size) if len(vectors) else np.zeros((data.dim, data.rank))
    channel, observed, rho = _posterior_problem(data)
    Q = UNINFORMED_SIZE * random.standard_normal((data.dim, data.rank))
    signed = ~channel.signless_columns
    if signed.any():
        mean = channel.posterior(observed, np.zeros((data.n_samples, *rho.shape[:2])), rho).mean
        projected = data.matrix.back_project(mean)[:, signed]
        Q[:, signed] = size * projected / np.linalg.norm(projected, axis=0)
        return Q
    h = _weights_of_samples(data)
    vectors = lowest_eigenvectors(data.matrix, h, shape.columns, 1, random)[1]
    if len(vectors):
        used = np.abs(h).max(axis=(0, 1)).reshape(-1, shape.columns).max(axis=0) > 0
        Q[:, used] = np.sqrt(data.dim * used.sum()) * vectors[0][:, used]
    return Q
