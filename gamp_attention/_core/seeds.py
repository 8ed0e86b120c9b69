"""Random numbers from a seed: each purpose has a stream of its own, so that none shifts the numbers of another."""

from enum import IntEnum
from typing import Any

import numpy as np

from gamp_attention._core import check


class Stream(IntEnum):
    """Purposes of random numbers, other than data, which are drawn from the seed alone."""

    STARTS = 1
    TEST_SAMPLES = 2
    PERTURBATIONS = 3
    MINIBATCHES = 4
    HELD_OUT = 5
    FOLDS = 6


def generator(seed: Any, stream: Stream | None = None) -> np.random.Generator:
    """A numpy Generator from a seed and the name of a stream, or the Generator itself that is given for a seed."""
    if isinstance(seed, np.random.Generator):
        return seed
    seed = check.integer("seed", seed, low=0, high=None)
    return np.random.default_rng([seed] if stream is None else [seed, int(stream)])
