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
        raise check.fail(name, share, f"a share of the {n} samples, or 0, that leaves one at least on each side")
    order = generator(seed, Stream.HELD_OUT).permutation(n) if share else np.arange(n)
    return np.sort(order[count:]), np.sort(order[:count])
