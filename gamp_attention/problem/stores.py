"""Tokens in memory or in memory-mapped files, and statistics of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention.problem.sources import Group, single_group

BLOCK_BYTES = 1 << 24  # maximum size in bytes of a block of a memory-mapped file; a block has at least one sample


def as_tokens(name: str, value: Any) -> np.ndarray:
    """Return an argument as a finite array (n, L, d) of floats; contiguous memory-mapped files of floats are not read.

    Other numbers, and sections of files that are not contiguous, are copied into memory.
    """
    mapped = isinstance(value, np.memmap) and value.base is not None and value.flags.c_contiguous
    if not (mapped and value.ndim == 3 and value.size and value.dtype in (np.float32, np.float64)):
        return np.ascontiguousarray(check.array(name, value, ("n", "L", "d"), single=True))
    for rows, _, x in token_blocks(value):
        check.require_finite(name, x, rows.start)
    return value


def join_parts(parts: Sequence[Any]) -> Any:
    """Join arrays, or named tuples of arrays, of consecutive samples."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return type(parts[0])(*map(join_parts, zip(*parts, strict=True)))


def token_blocks(
    tokens: np.ndarray, groups: tuple[Group, ...] | None = None
) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yield all samples in order, in blocks of one group each, of which functions may compute arrays of equal size.

    A block is its range of rows, the sources (L,) of its tokens, and the tokens (rows, L, d). A group of tokens in
    memory is one block; of files, blocks are small.
    """
    step = len(tokens)
    if isinstance(tokens, np.memmap):
        step = max(1, BLOCK_BYTES // tokens[0].nbytes)
    for group, sources in single_group(*tokens.shape[:2]) if groups is None else groups:
        for first in range(group.start, group.stop, step):
            rows = slice(first, min(first + step, group.stop))
            yield rows, sources, tokens[rows]


def mean_squares(tokens: np.ndarray, about: np.ndarray | None = None) -> np.ndarray:
    """Return the mean squares (L,) of the entries of each token, minus means (L, d) if given."""
    n, L, d = tokens.shape
    total = np.zeros(L)
    for _, _, x in token_blocks(tokens):
        x = x if about is None else x - about
        total += np.einsum("nld,nld->l", x, x, dtype=float)
    return total / (n * d)


def token_means(tokens: np.ndarray) -> np.ndarray:
    """Return means (L, d) of the tokens over the samples, the estimate of positions that the tokens include."""
    if len(tokens) < 2:
        needs = "an array (L, d), or zeros if there are none: they cannot be estimated from one sample"
        raise check.fail("positions", None, needs)
    return sum(x.sum(axis=0, dtype=float) for _, _, x in token_blocks(tokens)) / len(tokens)


def hash_samples(tokens: np.ndarray) -> np.ndarray:
    """Return numbers (n,) that are equal for identical samples."""
    # the sum with 0 replaces −0 by 0
    return np.array([hash(sample.tobytes()) for _, _, x in token_blocks(tokens) for sample in x + 0.0])
