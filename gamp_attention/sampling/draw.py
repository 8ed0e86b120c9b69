"""Drawing samples and a teacher from a model; test errors of weights on new samples of the same teacher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import Stream, generator, guard_call, psd_root
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.problem.dataset import (
    Dataset,
    LabelledDataset,
    add_intercept,
    attention_terms,
    require_dataset,
    require_product_memory,
    token_moments,
)
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.problem.passes import TokenMatrix
from gamp_attention.problem.penalties.standard import InterceptPenalty
from gamp_attention.problem.risk import require_finite_at
from gamp_attention.problem.sources import Group, Sources, by_group
from gamp_attention.problem.stores import join_parts, token_blocks
from gamp_attention.theory.models.model import Model, asymptotic_terms, require_model

DRAWN_BYTES = 1 << 22  # size in bytes of the numbers that are drawn at a time


def draw_tokens(
    rng: np.random.Generator, n_samples: int, d: int, positions: np.ndarray, means: np.ndarray, spectra: np.ndarray,
    groups: Callable[[int, np.random.Generator], tuple[Group, ...]], dtype: Any = np.float64,
) -> tuple[np.ndarray, Sources]:  # fmt: skip
    """Draw tokens x (n, L, d) with the covariances and means of their sources, which `groups` draws for the samples."""
    L, drawn = len(positions), groups(n_samples, rng)
    tokens, step = np.empty((n_samples, L, d), dtype), max(1, DRAWN_BYTES // (8 * L * d))
    for rows, sources in drawn:
        scale = np.sqrt(spectra[sources])
        for first in range(rows.start, rows.stop, step):
            part = slice(first, min(first + step, rows.stop))
            x = rng.standard_normal((part.stop - first, L, d)) * scale
            tokens[part] = x if means is positions else x + (means[sources] - positions)
    return tokens, Sources(positions, means, drawn)


def require_size(model: Any, d: Any, alpha: Any) -> tuple[Model, int, float]:
    """Return model, d and α; raise TypeError or ValueError if such data cannot be drawn from the model."""
    model = require_model(model)
    d, alpha = check.integer("d", d, low=1), check.real("alpha", alpha, low=0, strict=True)
    if not 1 <= np.round(alpha * d) <= check.MAX_INTEGER:
        raise check.fail("alpha", alpha, f"at least one sample, 1 <= alpha * d, at d = {d}")
    return model, d, alpha


@guard_call
def sample(
    model: Model, d: int, alpha: float, seed: int | np.random.Generator = 0, dtype: DTypeLike = np.float64
) -> Dataset:
    """Draw n = round(αd) samples and the teacher from a model.

    Eq. :eq:`teacher`.

    Parameters
    ----------
    model : the model, or a token distribution estimated from data, see `law_of`.
    d : dimension of a token, at least 1.
    alpha : sample complexity n/d; must give at least one sample.
    seed : an integer or a numpy Generator.
    dtype : of the tokens, float64 or float32; the same numbers, rounded.

    Returns
    -------
    Dataset with Q_star (d, t) and targets (n, L, L), score noise included. If the model has an intercept, d grows by 1,
        and the last coordinate is the intercept's, see `LabelledDataset`.

    Raises
    ------
    TypeError : if `model` is not a model, or an argument has the wrong type.
    ValueError : if `d` is below 1, `alpha` gives no sample, `seed` is negative, `dtype` is unknown, or the tokens do
        not fit into memory.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> data.tokens.shape, data.Q_star.shape
    ((300, 2, 200), (200, 1))
    """
    model, d, alpha = require_size(model, d, alpha)
    n = round(alpha * d)
    rng = generator(seed)
    check.require_memory("d, alpha", n, model.n_tokens, d)
    if model.attention:
        require_product_memory("d, alpha", n, model.n_tokens)
    law = model.coordinates
    # the number of coordinates of each class is its weight times d, rounded
    edges = np.round(np.cumsum(law.weight) * d).astype(int)
    k = np.searchsorted(edges, np.arange(d), side="right").clip(max=len(edges) - 1)
    roots = psd_root(law.teacher_cov)
    Q_star = law.teacher_mean[k] + np.einsum("ist,it->is", roots[k], rng.standard_normal((d, model.teacher_rank)))
    tau = (law.tau - model.class_means)[:, model.classes.first]  # positions without the means of the classes, times √d
    means = positions = np.ascontiguousarray(tau[k].T) / np.sqrt(d)
    if model.is_mixture or not np.array_equal(tau, law.tau):
        means = np.ascontiguousarray(law.means_of(Q_star, k).T) / np.sqrt(d)
    spectra = law.gamma.T.copy() if len(law.weight) == 1 else np.ascontiguousarray(law.gamma[k].T)
    if model.intercept:
        is_plain = means is positions
        positions, spectra = add_intercept(positions, np.broadcast_to(spectra, (len(spectra), d)))
        means = positions if is_plain else np.concatenate([means, np.ones((len(means), 1))], axis=1)
        Q_star, d = np.concatenate([Q_star, np.zeros_like(Q_star[:1])]), d + 1
    tokens, sources = draw_tokens(rng, n, d, positions, means, spectra, model.classes.draw, _precision(dtype))
    return _with_targets(model, tokens, sources, Q_star, spectra, rng)


def new_samples(data: Dataset, n: int, rng: np.random.Generator) -> Dataset:
    """Draw n samples of the same teacher and positions as a dataset that was drawn from a model."""
    model, Q_star, positions, spectra = data.model, data.Q_star, data.positions, data.spectra
    assert model is not None
    assert Q_star is not None
    tokens, sources = draw_tokens(rng, n, data.dim, positions, data.source_means, spectra, model.classes.draw)
    return _with_targets(model, tokens, sources, Q_star, spectra, rng)


def _with_targets(
    model: Model, tokens: np.ndarray, sources: Sources, Q_star: np.ndarray, spectra: np.ndarray,
    rng: np.random.Generator,
) -> Dataset:  # fmt: skip
    """Return samples with the labels or the noisy outputs of a teacher."""
    if model.attention:
        n, L, _ = tokens.shape
        scores = model.score_noise * rng.standard_normal((n, L, L)) if model.score_noise else None
        return teacher_dataset(model, tokens, sources.positions, Q_star, spectra, sources, scores)
    positions, means, groups = sources
    fields = teacher_fields(model, tokens, Q_star, rng)
    noise = rng.standard_normal((len(tokens), model.task.n_noise))
    labels = by_group(groups, lambda rows, of: model.task_of(of).terms(fields[rows], noise[rows]).params)
    penalty = InterceptPenalty(model.penalty) if model.intercept else model.penalty
    first = spectra[model.classes.first]  # of the tokens in their first class
    data = LabelledDataset(
        tokens, labels, model.student, rank=model.rank, positions=positions, spectra=first, penalty=penalty
    )
    return data.copy_with(Q_star=Q_star, model=model, source_means=means, groups=groups, spectra=spectra)


def teacher_fields(model: Model, tokens: np.ndarray, Q_star: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the teacher's fields (n, L, t), with a new draw of the part that is independent of the tokens."""
    fields, unseen = TokenMatrix(tokens, np.zeros(tokens.shape[1:])).fields(Q_star), model.coordinates.unseen
    return fields + rng.standard_normal(fields.shape) @ psd_root(unseen) if unseen.any() else fields


def _precision(dtype: Any) -> np.dtype:
    if isinstance(dtype, (str, type, np.dtype)) and dtype in (np.float64, np.float32, "float64", "float32"):
        return np.dtype(dtype)
    raise check.fail("dtype", dtype, "float64 or float32")


def teacher_dataset(
    model: Model, tokens: np.ndarray, positions: np.ndarray, Q_star: np.ndarray, spectra: np.ndarray,
    sources: Sources | None = None, noise: np.ndarray | None = None,
) -> Dataset:  # fmt: skip
    """Return samples with the outputs y = (T[xQ*/√d] + noise) x of a teacher, which are computed on request."""
    data = Dataset.__new__(Dataset)
    sources = Sources.plain(positions, len(tokens)) if sources is None else sources
    data.describe(tokens, sources, model.penalty, model.rank, spectra, model.student)
    parts = []
    for rows, _, x in token_blocks(data.matrix.tokens):
        T = model.teacher(TokenMatrix(x, np.zeros_like(positions)).fields(Q_star))
        T = T if noise is None else T + noise[rows]
        xx, xp = token_moments(x, positions)
        M = (xx + xp.transpose(0, 2, 1)) @ T.transpose(0, 2, 1)
        parts.append((T, *attention_terms(positions, xx, xp, M, np.einsum("nij,njk,nik->n", T, xx, T))))
    targets, params, constant = map(join_parts, zip(*parts, strict=True))
    risks = {"exact": RiskTerms(params, constant), "asymptotic": asymptotic_terms(targets, data.traces)}
    return data.copy_with(_risks=risks, targets=targets, Q_star=Q_star, model=model)


@guard_call
def sampled_test_error(
    data: Dataset, Q: ArrayLike, *, n_samples: int = 1000, seed: int | np.random.Generator = 1
) -> tuple[float, float]:
    """Estimate the test error ε_g = E‖y − f_Q(x)‖_F²/(dL) from new samples of the same teacher.

    Eq. :eq:`test-error`. For a generalized linear model, the test error is the mean loss of a new sample.

    Parameters
    ----------
    data : samples drawn from a model.
    Q : (d, r) weights.
    n_samples : number of new samples, at least 2.
    seed : an integer or a numpy Generator.

    Returns
    -------
    float, float : the mean over the new samples, and its standard error.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if the data were not drawn from a model, `Q` has another shape, the error overflows, or `n_samples` is
        below 2 or too large for the memory.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> error, standard_error = ga.sampled_test_error(data, ga.run_gamp(data).Q, n_samples=500)
    >>> 0 < standard_error < error < ga.sampled_test_error(data, 0 * data.Q_star)[0]
    True
    """
    require_dataset(data)
    if data.model is None or data.Q_star is None:
        raise ValueError("data: needs samples drawn from a model, got your arrays, whose distribution is unknown")
    n = check.integer("n_samples", n_samples, low=2)
    check.require_memory("n_samples", n)
    Q = check.array("Q", Q, (data.dim, data.rank))
    rng = generator(seed, Stream.TEST_SAMPLES)
    law = data.dim, data.positions, data.source_means, data.spectra, data.model.classes.draw
    errors, block = [], 500  # number of samples in memory at a time
    for first in range(0, n, block):
        count = min(block, n - first)
        tokens, sources = draw_tokens(rng, count, *law)
        y = teacher_fields(data.model, tokens, data.Q_star, rng)
        z = TokenMatrix(tokens, data.positions).fields(Q)
        for rows, token_sources in sources.groups:
            task = data.model.task_of(token_sources)
            errors.append(task.errors_at(tokens[rows], data.positions, z[rows], y[rows], rng))
    mean, error = mean_and_error(np.concatenate(errors))
    return require_finite_at(Q, mean), error
