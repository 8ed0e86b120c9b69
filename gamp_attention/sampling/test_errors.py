"""Test errors of weights on new samples of the same teacher."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.passes import TokenMatrix
from gamp_attention.problem.risk import require_finite_at
from gamp_attention.sampling.draw import draw_tokens


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
        y = tokens @ data.Q_star / np.sqrt(data.dim)
        z = TokenMatrix(tokens, data.positions).fields(Q)
        for rows, token_sources in sources.groups:
            task = data.model.task_of(token_sources)
            errors.append(task.errors_at(tokens[rows], data.positions, z[rows], y[rows], rng))
    mean, error = mean_and_error(np.concatenate(errors))
    return require_finite_at(Q, mean), error
