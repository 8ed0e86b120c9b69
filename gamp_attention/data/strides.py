"""How the samples of a pass are dealt out: blocks for threads, and strides of a few rows within them."""

from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import interruptible_blocks
from gamp_attention.data.row_kernels import ROWS


class StrideSettings(NamedTuple):
    """How samples are dealt out."""

    max_blocks: int = 32  # whose sums cost memory traffic, too
    max_share: float = 0.025  # of the tokens' size, for the sums of all blocks


STRIDES = StrideSettings()


def strides(n: int, L: int, n_sums: int) -> tuple[int, int]:
    """Samples of a stride, whose rows fill whole loops, and of a block: whole strides, few enough for their sums."""
    stride = ROWS.rows // gcd(ROWS.rows, L)
    n_blocks = max(1, min(STRIDES.max_blocks, int(STRIDES.max_share * n * L / n_sums)))
    return stride, stride * -(-n // (stride * n_blocks))


def over_strides(tokens: np.ndarray, stride: int, block: int, work: Callable[..., Any], long: bool = False) -> None:
    """Call work(first, last, b, rows, stop) for the samples of each block b, whose rows (N, d) start at `first`.

    If it may be `long`, it can be interrupted by `stop`, see `interruptible_blocks`. The samples after the last whole
    stride come by themselves, in rows that zeros fill up to one.
    """
    n, L, d = tokens.shape
    rows, whole = tokens.reshape(n * L, d), n - n % stride
    rest = np.zeros((stride * L, d), dtype=tokens.dtype)
    rest[: len(rows) - whole * L] = rows[whole * L :]

    def task(first: int, last: int, stop: np.ndarray) -> None:
        for begin, end, here in ((first, min(last, whole), rows[first * L :]), (max(first, whole), last, rest)):
            if begin < end:
                work(begin, end, first // block, here, stop)

    interruptible_blocks(task, n, block, long)
