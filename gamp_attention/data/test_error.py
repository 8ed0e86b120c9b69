"""Test error of given weights on new samples of the same task."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.seeds import Stream, generator
from gamp_attention._core.spread import mean_and_error
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.drawing import draw_tokens
from gamp_attention.data.fields import local_fields


def sampled_test_error(data: Dataset, Q: Any, *, n_samples: int = 1000, seed: Any = 1) -> tuple[float, float]:
    """Return the test error ε_g = E‖y − f_Q(x)‖_F²/(dL) on new samples of the same teacher, and its standard error.

    Eq. :eq:`test-error`.

    For a generalised linear model it is the mean loss of a new sample.

    Parameters
    ----------
    data : samples drawn from a model.
    Q : (d, r) weights.
    n_samples : number of new samples, at least 2.
    seed : an integer or a numpy Generator.
    """
    if data.model is None or data.Q_star is None:
        raise ValueError("data: needs samples drawn from a model, got your arrays, whose distribution is unknown")
    n = check.integer("n_samples", n_samples, low=2)
    Q = check.array("Q", Q, (data.dim, data.rank))
    rng = generator(seed, Stream.TEST_SAMPLES)
    law = data.dim, data.positions, data.source_means, data.spectra, data.model.classes.draw
    errors, together = [], 500  # number of samples in memory at a time
    for first in range(0, n, together):
        count = min(together, n - first)
        tokens = np.asarray(draw_tokens(rng, count, *law)[0])
        y = tokens @ data.Q_star / np.sqrt(data.dim)
        z = local_fields(tokens, data.positions, Q)
        errors.append(data.model.task.errors_at(tokens, data.positions, z, y, rng))
    return mean_and_error(np.concatenate(errors))
