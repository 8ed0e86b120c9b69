"""Numerical tools: floating-point errors, linear algebra, errors of means, hashes, and random streams of a seed."""

import hashlib
import numbers
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import numpy as np
from scipy.special import stdtrit

from gamp_attention._core import check
from gamp_attention._core.interrupts import interruptible
from gamp_attention._core.threads import over_blocks

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


def deterministic_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b, computed in panels: identical to the last bit for any number of threads."""
    out = np.empty((a.shape[0], b.shape[1]))

    def work(columns: slice) -> None:
        out[:, columns] = a @ b[:, columns]

    over_panels(work, b.shape[1])
    return out


def half_width(replicas: np.ndarray) -> np.ndarray:
    """Return the half-width of the confidence interval of the mean over the first axis, from Student's t.

    The coverage is 98 % for normally distributed replicas; the margin makes at least 95 % hold otherwise.
    """
    return width_factor(len(replicas)) * replicas.std(axis=0, ddof=1)


def width_factor(count: int) -> float:
    """Return the half-width of this confidence interval in units of the standard deviation of `count` replicas."""
    return float(stdtrit(count - 1, 0.5 + 0.98 / 2)) / np.sqrt(count)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of samples (n,) and its standard error, which is NaN for a single sample."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)


def interval_of_mean(values: np.ndarray, error: float, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the expected value of samples (n,) with standard error `error` of their mean.

    The quantiles are from Student's t distribution with n − 1 degrees of freedom. Rare large samples make the
    distribution of (mean − expected value)/error skewed. The end of the interval on the side of the long tail is
    shifted to first order in the skewness (Johnson (1978), Hall (1992)); the other end is not, because the skewness is
    estimated from the same samples. If no sample is negative, neither is the interval.
    """
    n, spread = len(values), values.std()
    mean, t, shift = float(values.mean()), float(stdtrit(n - 1, 0.5 + level / 2)), 0.0
    if spread > 0 and error > 0:
        skewness = float(np.mean(((values - mean) / spread) ** 3)) * (spread / error) ** 3 / n**2  # of the mean
        shift = skewness / 6 * (1 + 2 * t**2)
    low = mean + (min(shift, 0.0) - t) * error
    return max(low, 0.0) if values.min() >= 0 else low, mean + (max(shift, 0.0) + t) * error


def psd_root(covariance: np.ndarray) -> np.ndarray:
    """Return symmetric square roots of positive semi-definite matrices; negative eigenvalues count as zero."""
    if covariance.shape[-1] == 1:
        return np.asarray(np.sqrt(covariance.clip(min=0)))
    spectrum, vectors = np.linalg.eigh(symmetrize(covariance))
    return np.einsum("...ij,...j,...kj->...ik", vectors, np.sqrt(spectrum.clip(min=0)), vectors)


def diagonalize(matrices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending eigenvalues (..., k) and eigenvectors (..., k, k) of symmetric matrices; fast for k = 1."""
    if matrices.shape[-1] == 1:
        return matrices[..., 0].copy(), np.ones(matrices.shape)
    spectrum, vectors = np.linalg.eigh(matrices)
    return spectrum, vectors


def project_psd(matrices: np.ndarray) -> np.ndarray:
    """Return symmetric matrices with negative eigenvalues replaced by zero."""
    values, vectors = np.linalg.eigh(matrices)
    return (vectors * values.clip(min=0)[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def symmetrize(matrices: np.ndarray) -> np.ndarray:
    """Return the symmetric parts (M + Mᵀ)/2 of square matrices (..., k, k)."""
    return np.asarray(0.5 * (matrices + np.swapaxes(matrices, -1, -2)))


def hash_bytes(*parts: bytes, size: int = 16) -> str:
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
