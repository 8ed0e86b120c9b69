"""Arithmetic beyond the range of doubles, reported by statuses and named errors instead of numpy warnings."""

from typing import Any

import numpy as np

from gamp_attention._core import check

# for functions that report overflow by a status or by an error
quiet = np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")

MAX_ROOT = 1e150  # bound of numbers whose squares, and sums of squares, are within the range of doubles


def squarable(name: str, value: Any, shape: tuple[int | str, ...]) -> np.ndarray:
    """Return `value` as a real array of a shape; raise ValueError if squares of its entries would overflow."""
    result = check.array(name, value, shape)
    largest = float(np.abs(result).max(initial=0.0))
    if not largest < MAX_ROOT:
        raise check.fail(name, largest, f"numbers of size below {MAX_ROOT:g}, with squares within the range of doubles")
    return result
