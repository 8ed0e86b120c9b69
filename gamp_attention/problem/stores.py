"""Tokens in memory, in a file or in a chunked store, and statistics of them that take one pass.

Passes over the data read blocks of samples in order. Blocks of a store are read into two buffers in turn: the next
block is read while the last block is used.
"""

import hashlib
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention.problem.sources import Group, single_group

BLOCK_BYTES = 1 << 24  # maximum size of a block of a store, in bytes; a block has at least one sample


class TokenStore(ABC):
    """Tokens (n, L, d) that are not in memory."""

    shape: tuple[int, int, int]  # (n, L, d)
    dtype: np.dtype  # float64 or float32
    grain: int = 1  # number of samples that are best read together; blocks begin at its multiples

    @abstractmethod
    def fill(self, rows: slice, out: np.ndarray) -> None:
        """Read samples into an array (rows, L, d) of the dtype; consecutive calls may run in different threads."""

    def read(self, rows: slice) -> np.ndarray:
        """Return a range of samples (rows, L, d), in memory."""
        out = np.empty((rows.stop - rows.start, *self.shape[1:]), self.dtype)
        self.fill(rows, out)
        return out

    @property
    def size(self) -> int:
        """Number of entries n L d."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Return all tokens, in memory."""
        out = self.read(slice(0, len(self)))
        return out if dtype is None else out.astype(dtype, copy=False)


class FileTokens(TokenStore):
    """Tokens in a file, in the order of `numpy.save`.

    Parameters
    ----------
    path : the file.
    offset : position of the first number in the file, in bytes.
    shape : (n, L, d).
    dtype : float64 or float32.
    """

    def __init__(self, path: str | Path, offset: int, shape: tuple[int, int, int], dtype: Any) -> None:
        self.path, self.offset, self.shape, self.dtype = Path(path), offset, shape, np.dtype(dtype)
        needs, status = offset + self.nbytes, self.path.stat()
        if status.st_size < needs:
            raise ValueError(f"tokens: {path} needs {needs} bytes for shape {shape}, got {status.st_size} bytes")
        self._inode: int | None = status.st_ino

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_inode": None}  # a copy of the file on another machine has another number

    def fill(self, rows: slice, out: np.ndarray) -> None:
        """Read samples from the file; raise ValueError if another file has taken its place."""
        with open(self.path, "rb", buffering=0) as file:
            if self._inode not in (None, os.fstat(file.fileno()).st_ino):
                needs = "the file from which the dataset was made"
                raise ValueError(f"tokens: needs {needs}, got {self.path}, which was replaced since")
            file.seek(self.offset + rows.start * prod(self.shape[1:]) * self.dtype.itemsize)
            unread = out.data.cast("B")
            while unread:
                count = file.readinto(unread)
                if not count:
                    raise ValueError(f"tokens: {self.path} ends {len(unread)} bytes too early")
                unread = unread[count:]


class SlicedTokens(TokenStore):
    """Tokens in an object whose slices are arrays, or convert to arrays, such as a zarr, dask or xarray array.

    `name` is the name of the argument in errors.
    """

    def __init__(self, name: str, source: Any) -> None:
        self.name, self.source = name, source
        try:
            n, L, d = map(operator.index, source.shape)
        except TypeError as error:  # dask arrays may have sizes that are not known before they are computed
            needs = "known sizes in its shape (n, L, d) (dask: compute_chunk_sizes)"
            raise check.fail_words(name, f"shape {source.shape}", needs) from error
        self.shape = n, L, d
        self.dtype = np.dtype(np.float32 if source.dtype == np.float32 else np.float64)
        self.grain = _chunk_rows(source)

    def fill(self, rows: slice, out: np.ndarray) -> None:
        """Read samples from the source.

        Raises
        ------
        TypeError : if the samples have masked entries, as slices of netCDF variables may have, or are not real numbers.
        ValueError : if the samples have another shape than the source states.
        """
        part = np.asanyarray(check.read_array(self.source[rows]))
        where = f"{self.name}[{rows.start}:{rows.stop}]"
        check.require_unmasked(where, part)
        if part.dtype.kind not in "biuf":
            raise check.fail_words(where, f"an array of {part.dtype}", "real numbers", TypeError)
        check.require_shape(where, part, out.shape)
        out[...] = part


def _chunk_rows(source: Any) -> int:
    """Return the number of samples of a chunk (zarr, h5py), or of the largest chunk (dask); 1 without chunks."""
    try:
        return max(1, int(np.max(source.chunks[0])))
    except (AttributeError, LookupError, TypeError, ValueError):
        return 1


Tokens = np.ndarray | TokenStore


def as_tokens(name: str, value: Any) -> Tokens:
    """Return an argument of shape (n, L, d) as a finite array, or as a store if it is not in memory.

    Memory-mapped arrays, and objects with a shape, a dtype and slices that are not arrays (zarr, h5py, dask), stay
    where they are; the numbers are checked when they are read.
    """
    if isinstance(value, TokenStore):
        return value
    check.require_dense(name, value)
    value = check.detach_tensor(value)
    mapped = isinstance(value, np.memmap) and value.base is not None
    sliced = not isinstance(value, np.ndarray) and all(hasattr(value, a) for a in ("shape", "dtype", "__getitem__"))
    if not (mapped or sliced) or getattr(value, "__module__", "").startswith("torch"):
        return np.ascontiguousarray(check.array(name, value, ("n", "L", "d"), single=True))
    if len(value.shape) != 3 or min(value.shape) < 1:
        raise ValueError(f"{name}: needs shape (n, L, d), got shape {tuple(value.shape)}")
    if getattr(value.dtype, "kind", "") not in tuple("biuf"):
        raise check.fail_words(name, f"an array of {value.dtype}", "real numbers", TypeError)
    whole = mapped and not isinstance(value.base, np.ndarray) and value.flags.c_contiguous and value.mode != "c"
    if whole and value.dtype in (np.float32, np.float64) and value.dtype.isnative and value.filename is not None:
        return FileTokens(value.filename, value.offset, value.shape, value.dtype)
    return SlicedTokens(name, value)


def read_rows(values: Tokens, rows: slice) -> np.ndarray:
    """Return a range of samples (rows, L, d) of tokens or outputs, in memory."""
    return values[rows] if isinstance(values, np.ndarray) else values.read(rows)


def join_parts(parts: Sequence[Any]) -> Any:
    """Join arrays, or named tuples of arrays, of consecutive samples."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0])(*map(join_parts, zip(*parts, strict=True)))


class Block(NamedTuple):
    """Samples in memory: their range of rows, the sources (L,) of their tokens, and the tokens (rows, L, d)."""

    rows: slice
    sources: np.ndarray
    tokens: np.ndarray


def token_blocks(tokens: Tokens, groups: tuple[Group, ...] | None = None) -> Iterator[Block]:
    """Yield all samples in order, in blocks of one group each; arrays in memory have one block for each group.

    A block of a store is overwritten two blocks later.
    """
    groups = single_group(*tokens.shape[:2]) if groups is None else groups
    if isinstance(tokens, np.ndarray):
        yield from (Block(rows, sources, tokens[rows]) for rows, sources in groups)
        return
    plan = [(rows, sources) for group, sources in groups for rows in _block_rows(tokens, group)]
    size = max(rows.stop - rows.start for rows, _ in plan)
    buffers = [np.empty((size, *tokens.shape[1:]), tokens.dtype) for _ in range(min(2, len(plan)))]

    def fetch(number: int) -> Block:
        rows, sources = plan[number]
        block = buffers[number % 2][: rows.stop - rows.start]
        tokens.fill(rows, block)
        return Block(rows, sources, block)

    with ThreadPoolExecutor(1) as reader:
        next_block = reader.submit(fetch, 0)
        for number in range(len(plan)):
            block = next_block.result()
            if number + 1 < len(plan):
                next_block = reader.submit(fetch, number + 1)
            yield block


def _block_rows(tokens: TokenStore, group: slice) -> list[slice]:
    """Return the blocks of a group; they depend only on shapes and the grain, so sums over them are reproducible."""
    sample = prod(tokens.shape[1:]) * tokens.dtype.itemsize
    step = max(1, BLOCK_BYTES // (sample * tokens.grain)) * tokens.grain
    edges = [group.start, *range(group.start // step * step + step, group.stop, step), group.stop]
    return [slice(first, last) for first, last in pairwise(edges)]


def mean_squares(tokens: Tokens, about: np.ndarray | None = None) -> np.ndarray:
    """Return the mean squares (L,) of the entries of each token, minus means (L, d) if given.

    Raise ValueError if a store contains numbers that are not finite.
    """
    n, L, d = tokens.shape
    total = np.zeros(L)
    for rows, _, x in token_blocks(tokens):
        x = x if about is None else x - about
        total += np.einsum("nld,nld->l", x, x, dtype=float)
        if not np.isfinite(total).all():
            check.require_finite("tokens", x, rows.start)
    return total / (n * d)


def token_means(tokens: Tokens) -> np.ndarray:
    """Return means (L, d) of the tokens over the samples, the estimate of positions that the tokens include."""
    n = tokens.shape[0]
    if n < 2:
        needs = "an array (L, d), or zeros if there are none: they cannot be estimated from one sample"
        raise check.fail("positions", None, needs)
    total = np.zeros(tokens.shape[1:])
    for rows, _, x in token_blocks(tokens):
        total += x.sum(axis=0, dtype=float)
        if not np.isfinite(total).all():
            check.require_finite("tokens", x, rows.start)
    return total / n


def hash_samples(tokens: Tokens) -> np.ndarray:
    """Return numbers (n,) that are equal for identical samples."""
    # the sum with 0 replaces −0 by 0
    return np.array([hash(sample.tobytes()) for _, _, x in token_blocks(tokens) for sample in x + 0.0])


def distinct_samples(tokens: Tokens) -> int:
    """Return the number of distinct samples."""
    return len(np.unique(hash_samples(tokens)))


def hash_tokens(tokens: Tokens) -> str:
    """Return a hash of all tokens, which does not depend on where they are stored."""
    digest = hashlib.blake2b(digest_size=16)
    for _, _, x in token_blocks(tokens):
        digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()
