"""Samples that are held out of the training, to test on."""

from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import Stream, generator


def split_held_out(name: str, fraction: Any, n: int, seed: Any, noun: str = "samples") -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of n samples for training, and of round(fraction n) random samples for tests, in order.

    `name` is the name of the argument `fraction` in errors, and `noun` the word for the counted objects.
    """
    fraction = check.real(name, fraction, low=0)
    count = round(fraction * n)
    if fraction and not 1 <= count < n:
        needs = f"a fraction of the {n} {noun}, below 1, that leaves at least one on each side, or 0 for none"
        is_count = 1 < fraction < n and fraction == round(fraction)
        remedy = f"; for {fraction:g} {noun} give {fraction / n:.3g}" if is_count else ""
        raise ValueError(f"{check.fail(name, fraction, needs)}{remedy}")
    order = generator(seed, Stream.HELD_OUT).permutation(n) if fraction else np.arange(n)
    return np.sort(order[count:]), np.sort(order[:count])
