"""Sentences and teachers drawn from a model. All data randomness is here and in `gamp_attention.data.drawing`."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.gaussian import psd_root
from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.drawing import draw_tokens, require_storage
from gamp_attention.data.labelled import label_dataset
from gamp_attention.models.glm import GLMModel
from gamp_attention.models.model import Model, require_model


def checked_size(model: Any, d: Any, alpha: Any) -> tuple[int, float]:
    """d and α of data that can be drawn from a model."""
    require_model(model)
    d, alpha = check.integer("d", d, low=1), check.real("alpha", alpha, low=0, strict=True)
    if not 1 <= np.round(alpha * d) <= check.MAX_INTEGER:
        raise check.fail("alpha", alpha, f"at least one sample and a number of them, 1 <= alpha * d, at d = {d}")
    return d, alpha


@quiet
def sample(
    model: Model, d: int, alpha: float, seed: Any = 0, dtype: Any = np.float64, storage: Any = "memory",
    overwrite: bool = False,
) -> Dataset:  # fmt: skip
    """Draw n = round(αd) sentences and the teacher from a model.

    Eq. :eq:`teacher`.

    Parameters
    ----------
    model : what to draw from, or the law of own data.
    d : dimension of a token, at least 1.
    alpha : sample complexity n/d; must give at least one sample.
    seed : an integer or a numpy Generator.
    dtype : of the tokens, float64 or float32; the same numbers, rounded.
    storage : where the tokens are: "memory"; the path of an .npy file that is written, and read at every pass; or
        "none": they are drawn anew at every pass, so that d and n are bounded by time alone. The same bits each time.
    overwrite : replace a file at the path `storage` even if it does not hold tokens that were sampled before.

    Returns
    -------
    Dataset with Q_star (d, t) and targets (n, L, L), score noise included.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> data.tokens.shape, data.Q_star.shape
    ((300, 2, 200), (200, 1))
    """
    d, alpha = checked_size(model, d, alpha)
    model = require_model(model)
    n = round(alpha * d)
    rng, where = generator(seed), require_storage(storage, check.flag("overwrite", overwrite))
    if storage == "memory":
        check.fits("d, alpha", n, model.n_tokens, d)
    law = model.coordinates
    # as many coordinates of each class as its share asks for
    edges = np.round(np.cumsum(law.weight) * d).astype(int)
    k = np.searchsorted(edges, np.arange(d), side="right").clip(max=len(edges) - 1)
    roots = psd_root(law.teacher_cov)
    Q_star = law.teacher_mean[k] + np.einsum("ist,it->is", roots[k], rng.standard_normal((d, model.teacher_rank)))
    tau = (law.tau - model.class_means)[:, model.classes.first]  # of tokens, without the means of their classes
    means = positions = np.ascontiguousarray(tau[k].T) / np.sqrt(d)
    if not np.array_equal(tau, law.tau):
        means = np.ascontiguousarray(law.tau[k].T) / np.sqrt(d)
    spectra = law.gamma.T.copy() if len(law.weight) == 1 else np.ascontiguousarray(law.gamma[k].T)
    tokens, sources = draw_tokens(
        rng, n, d, positions, means, spectra, model.classes.draw, _precision(dtype), where, overwrite
    )
    if isinstance(model, GLMModel):
        return label_dataset(model, tokens, positions, Q_star, spectra, rng)
    noise = None
    if model.score_noise:
        noise = model.score_noise * rng.standard_normal((n, model.n_tokens, model.n_tokens))
    return Dataset.from_teacher(model, tokens, positions, Q_star, spectra, sources, noise)


def _precision(dtype: Any) -> np.dtype:
    if isinstance(dtype, (str, type, np.dtype)) and dtype in (np.float64, np.float32, "float64", "float32"):
        return np.dtype(dtype)
    raise check.fail("dtype", dtype, "float64 or float32")
