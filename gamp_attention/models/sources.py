"""Sources: the distributions from which single tokens are drawn, and the assignment of samples to sources.

Without classes there is one source for each token. In mixtures a source is a (token, class) pair, and samples of the
same classes form a group of consecutive rows.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Group(NamedTuple):
    """Samples of the same classes: their rows, and the sources (L,) of their tokens."""

    rows: slice
    sources: np.ndarray


class Sources(NamedTuple):
    """Positions, means and groups of n samples: all that the student's fields depend on except the token noise."""

    positions: np.ndarray  # (L, d) p_l
    means: np.ndarray  # (S, d) means of x_l + p_l: positions p_l without classes, p_l + μ_{l,k} for mixtures
    groups: tuple[Group, ...]  # groups of samples, in the order of their rows

    @classmethod
    def plain(cls, positions: np.ndarray, n_samples: int) -> "Sources":
        """Return the sources of data without classes, one for each token."""
        return cls(positions, positions, single_group(n_samples, len(positions)))


def single_group(n_samples: int, n_tokens: int) -> tuple[Group, ...]:
    """Return all samples as one group, with one source for each token."""
    return (Group(slice(0, n_samples), np.arange(n_tokens)),)


def by_group(groups: tuple[Group, ...], function: Callable[[slice, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return rows (n, …), computed group by group from the rows and the sources of each group."""
    parts = [function(rows, sources) for rows, sources in groups]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def weighted(groups: tuple[Group, ...], V: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return V_s g_l (n, L, r) for g (n, L, r), with the matrix V_s of V (S, r, r) of each token's source."""
    return by_group(groups, lambda rows, sources: np.einsum("lab,nlb->nla", V[sources], g[rows]))


def summed(groups: tuple[Group, ...], n_sources: int, values: np.ndarray) -> np.ndarray:
    """Return sums (S, …) of values (n, L, …) over the tokens of each source."""
    total = np.zeros((n_sources, *values.shape[2:]))
    for rows, sources in groups:
        total[sources] += values[rows].sum(axis=0)
    return total
