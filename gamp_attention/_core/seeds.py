"""Random number generators from a seed, with a separate stream for each purpose, so that streams are independent."""

from enum import IntEnum
from typing import Any

import numpy as np

from gamp_attention._core import check


class Stream(IntEnum):
    """Purposes of random numbers other than data, which are drawn from the seed without a stream."""

    STARTS = 1
    TEST_SAMPLES = 2
    PERTURBATIONS = 3
    MINIBATCHES = 4
    HELD_OUT = 5
    FOLDS = 6


def generator(seed: Any, stream: Stream | None = None) -> np.random.Generator:
    """Return a numpy Generator for a seed and a stream; a Generator given as seed is returned as it is."""
    if isinstance(seed, np.random.Generator):
        return seed
    seed = check.integer("seed", seed, low=0, high=None)
    return np.random.default_rng([seed] if stream is None else [seed, int(stream)])
