"""Samples kept aside from training."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.seeds import Stream, generator


def held_out(name: str, share: Any, n: int, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and a share of round(share n) rows drawn at random to test on, each in order.

    A share of 0 holds none out; another has to leave a sample on each side.
    """
    share = check.real(name, share, low=0)
    count = round(share * n)
    if share and not 1 <= count < n:
        needs = f"a fraction of the {n} samples, below 1, that leaves at least one on each side, or 0 for none"
        remedy = f"; for {share:g} samples give {share / n:.3g}" if 1 < share < n and share == round(share) else ""
        raise ValueError(f"{check.fail(name, share, needs)}{remedy}")
    order = generator(seed, Stream.HELD_OUT).permutation(n) if share else np.arange(n)
    return np.sort(order[count:]), np.sort(order[:count])
