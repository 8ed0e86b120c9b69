"""Numerical tools: floating-point errors, linear algebra, errors of means, hashes, and random streams of a seed."""

import hashlib
import numbers
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.interrupts import interruptible
from gamp_attention._tools.threads import over_blocks

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_ROOT = 1e150  # bound of numbers whose squares, and sums of squares, are within the range of doubles


def guard_call(function: Function) -> Function:
    """Decorate a public function: overflow leads to a status or an error, not to numpy warnings; Ctrl-C is not lost."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"), interruptible():
            return function(*args, **options)

    return cast(Function, call)


def check_squarable(name: str, value: Any, shape: tuple[int | str, ...]) -> np.ndarray:
    """Return `value` as a real array of a shape; raise ValueError if squares of its entries would overflow."""
    result = check.array(name, value, shape)
    largest = float(np.abs(result).max(initial=0.0))
    if not largest < MAX_ROOT:
        raise check.fail(name, largest, f"numbers of size below {MAX_ROOT:g}, with squares within the range of doubles")
    return result


PANEL = 256  # number of columns of a product that one task computes


@lru_cache
def _libraries() -> Any:
    """Return the controller of the loaded BLAS libraries; cached, because searching for them takes milliseconds."""
    import scipy.linalg  # noqa: F401 - loads the BLAS library of scipy
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and LAPACK to one thread, because their results depend on the number of threads.

    `over_blocks` may call them on several threads.
    """
    with _libraries().limit(limits=1):
        yield


def over_panels(task: Any, n: int) -> None:
    """Call task(slice) for panels of n columns, on the threads of `over_blocks`."""
    over_blocks(lambda first, last: task(slice(first, last)), n, PANEL)


def psd_root(covariance: np.ndarray) -> np.ndarray:
    """Return symmetric square roots of positive semi-definite matrices; negative eigenvalues count as zero."""
    spectrum, vectors = diagonalize(symmetrize(covariance))
    return compose(np.sqrt(spectrum.clip(min=0)), vectors)


def diagonalize(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending eigenvalues (..., k) and eigenvectors (..., k, k) of symmetric matrices; fast for k = 1."""
    if matrices.shape[-1] == 1:
        return matrices[..., 0].copy(), np.ones(matrices.shape)
    spectrum, vectors = np.linalg.eigh(matrices)
    return spectrum, vectors


def compose(spectrum: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return symmetric matrices (..., k, k) with given eigenvalues (..., k) and eigenvectors, see `diagonalize`."""
    return np.asarray((vectors * spectrum[..., None, :]) @ np.swapaxes(vectors, -1, -2))


def raise_spectrum(matrices: np.ndarray, lowest: Any = 0.0) -> np.ndarray:
    """Return symmetric matrices (..., k, k) with eigenvalues raised to at least `lowest`."""
    spectrum, vectors = diagonalize(matrices)
    return matrices if (spectrum >= lowest).all() else compose(np.maximum(spectrum, lowest), vectors)


def apply_to_rows(matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return M_l x_nl (n, L, a) for matrices (L, a, b) and vectors x (n, L, b)."""
    return (x.swapaxes(0, 1) @ matrices.swapaxes(1, 2)).swapaxes(0, 1)


def symmetrize(matrices: np.ndarray) -> np.ndarray:
    """Return the symmetric parts (M + Mᵀ)/2 of square matrices (..., k, k)."""
    return np.asarray(0.5 * (matrices + np.swapaxes(matrices, -1, -2)))


def hash_bytes(*parts: bytes | memoryview, size: int = 16) -> str:
    """Return 2 × size hexadecimal digits for the concatenation of the parts (BLAKE2b), equal in every process."""
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


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
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise check.fail("seed", seed, "an integer >= 0 or a numpy Generator", TypeError)
    seed = check.integer("seed", seed, low=0, high=None)
    return np.random.default_rng([seed] if stream is None else [seed, int(stream)])
