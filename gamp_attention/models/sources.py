"""Sources: the laws that single tokens are drawn from, and which samples draw from which.

Plain data have one source for each token. In mixtures a source is a token together with its class, and samples of the
same classes are a group of consecutive rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Group(NamedTuple):
    """Samples of the same classes: their rows, and the sources (L,) of their tokens."""

    rows: slice
    sources: np.ndarray


class Sources(NamedTuple):
    """What the student sees of the tokens of n samples besides their noise."""

    positions: np.ndarray  # (L, d) p_l
    means: np.ndarray  # (S, d) of x_l + p_l in each source: the positions for plain data, p_l + μ_{l,k} for mixtures
    groups: tuple[Group, ...]  # the samples, in order

    @classmethod
    def plain(cls, positions: np.ndarray, n_samples: int) -> "Sources":
        """One source for each token."""
        return cls(positions, positions, single_group(n_samples, len(positions)))


def single_group(n_samples: int, n_tokens: int) -> tuple[Group, ...]:
    """All samples as one group, with one source for each token."""
    return (Group(slice(0, n_samples), np.arange(n_tokens)),)


def by_group(groups: tuple[Group, ...], function: Callable[[slice, np.ndarray], np.ndarray]) -> np.ndarray:
    """Rows (n, …) from a function of the rows and the sources of each group."""
    parts = [function(rows, sources) for rows, sources in groups]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def weighted(groups: tuple[Group, ...], V: np.ndarray, g: np.ndarray) -> np.ndarray:
    """V_s g_l (n, L, r) with matrices V (S, r, r) of the source of each token, for g (n, L, r)."""
    return by_group(groups, lambda rows, sources: np.einsum("lab,nlb->nla", V[sources], g[rows]))


def summed(groups: tuple[Group, ...], n_sources: int, values: np.ndarray) -> np.ndarray:
    """Sums (S, …) of values (n, L, …) over the tokens of each source."""
    total = np.zeros((n_sources, *values.shape[2:]))
    for rows, sources in groups:
        total[sources] += values[rows].sum(axis=0)
    return total
