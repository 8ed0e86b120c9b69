"""Classes of tokens in mixtures, and sources: the distributions from which single tokens are drawn.

`ClassLaw` is the joint distribution of the classes of a sample's tokens, and `Sources` assigns samples to sources.
Without classes there is one source for each token. In mixtures a source is a (token, class) pair, and samples of the
same classes form a group of consecutive rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin


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


def apply_by_source(groups: tuple[Group, ...], V: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return V_s g_l (n, L, r) for g (n, L, r), with the matrix V_s of V (S, r, r) of each token's source."""
    return by_group(groups, lambda rows, sources: np.einsum("lab,nlb->nla", V[sources], g[rows]))


def sum_over_tokens(groups: tuple[Group, ...], n_sources: int, values: np.ndarray) -> np.ndarray:
    """Return sums (S, …) of values (n, L, …) over the tokens of each source."""
    total = np.zeros((n_sources, *values.shape[2:]))
    for rows, sources in groups:
        total[sources] += values[rows].sum(axis=0)
    return total


@dataclass(frozen=True, eq=False)
class ClassLaw(DisplayMixin):
    """Joint distribution of the classes of a sample's tokens.

    Attributes
    ----------
    patterns : (C, L) sources of the tokens in each combination of classes. Each source belongs to one token, and all S
        sources appear.
    probability : (C,) probability of each combination, positive.

    Raises
    ------
    TypeError : if a field is not an array of real numbers.
    ValueError : if `patterns` does not contain exactly the sources 0 to S − 1, each in one column, or `probability` is
        not positive or does not add to 1.

    Examples
    --------
    Two tokens whose classes agree:

    >>> import gamp_attention as ga
    >>> law = ga.ClassLaw([[0, 2], [1, 3]], [0.6, 0.4])
    >>> law.n_sources, law.token.tolist()
    (4, [0, 0, 1, 1])
    """

    patterns: np.ndarray
    probability: np.ndarray

    def __post_init__(self) -> None:
        given = check.array("patterns", self.patterns, ("C", "L"))
        object.__setattr__(self, "patterns", given.astype(int))
        check.fractions("probability", self.probability, len(given))
        used = np.sort(np.concatenate([np.unique(column) for column in given.T]))
        if not np.array_equal(used, np.arange(len(used))):
            raise check.fail("patterns", given, "the sources 0 to S - 1, each in one column")

    @property
    def n_sources(self) -> int:
        """Number of sources S."""
        return int(self.patterns.max()) + 1

    @cached_property
    def first(self) -> np.ndarray:
        """First source (L,) of every token."""
        return np.unique(self.token, return_index=True)[1]

    def draw(self, n_samples: int, rng: np.random.Generator) -> tuple[Group, ...]:
        """Draw the classes of n samples independently, from a child generator of rng; return consecutive groups."""
        if len(self.patterns) == 1:
            return (Group(slice(0, n_samples), self.patterns[0]),)
        ends = np.cumsum(rng.spawn(1)[0].multinomial(n_samples, self.probability))
        starts = np.concatenate([[0], ends[:-1]])
        patterns = zip(starts.tolist(), ends.tolist(), self.patterns, strict=True)
        return tuple(Group(slice(a, b), pattern) for a, b, pattern in patterns if a < b)

    @cached_property
    def token(self) -> np.ndarray:
        """Token (S,) of each source."""
        token = np.empty(self.n_sources, dtype=int)
        token[self.patterns] = np.arange(self.patterns.shape[1])
        return token
