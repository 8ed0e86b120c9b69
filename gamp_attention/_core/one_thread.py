"""Dense linear algebra on one BLAS thread, because its results depend on the number of threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention._core.compiled import over_blocks

PANEL = 256  # number of columns of a product that are one task


@lru_cache
def _libraries() -> Any:
    """Return the controller of the loaded BLAS libraries; cached, because searching for them takes milliseconds."""
    import scipy.linalg  # noqa: F401 - loads the BLAS library of scipy
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and LAPACK to one thread each; `over_blocks` may call them on several threads."""
    with _libraries().limit(limits=1):
        yield


def panels(task: Any, n: int) -> None:
    """Call task(slice) for panels of n columns, on the threads of `over_blocks`."""
    over_blocks(lambda first, last: task(slice(first, last)), n, PANEL)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b, computed in panels: identical to the last bit for any number of threads."""
    out = np.empty((a.shape[0], b.shape[1]))

    def work(columns: slice) -> None:
        out[:, columns] = a @ b[:, columns]

    panels(work, b.shape[1])
    return out
