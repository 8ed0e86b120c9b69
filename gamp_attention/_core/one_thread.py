"""Dense linear algebra on one thread of BLAS: its results depend on how many there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention._core.compiled import over_blocks

PANEL = 256  # columns of a product that are one task


@lru_cache
def _libraries() -> Any:
    """The libraries that are loaded; looking for them takes milliseconds."""
    import scipy.linalg  # noqa: F401 - brings its own
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """BLAS and LAPACK on one thread each; `over_blocks` may call them on several."""
    with _libraries().limit(limits=1):
        yield


def panels(task: Any, n: int) -> None:
    """Call task(slice) for panels of n columns, on the threads of `over_blocks`."""
    over_blocks(lambda first, last: task(slice(first, last)), n, PANEL)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b, panel by panel: the same to the last bit for any number of threads."""
    out = np.empty((a.shape[0], b.shape[1]))

    def work(columns: slice) -> None:
        out[:, columns] = a @ b[:, columns]

    panels(work, b.shape[1])
    return out
