"""Arithmetic beyond the range of doubles: told by statuses and named errors, not by warnings of numpy."""

from typing import Any

import numpy as np

from gamp_attention._core import check

quiet = np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")  # for functions with such answers

MAX_ROOT = 1e150  # size of numbers whose squares, and sums of them, are within the range of doubles


def squarable(name: str, value: Any, shape: tuple[int | str, ...]) -> np.ndarray:
    """A real array of a shape, with squares within the range of doubles: what is computed takes products of entries."""
    found = check.array(name, value, shape)
    largest = float(np.abs(found).max(initial=0.0))
    if not largest < MAX_ROOT:
        raise check.fail(name, largest, f"numbers of size below {MAX_ROOT:g}, with squares within the range of doubles")
    return found
