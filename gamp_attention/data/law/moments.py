"""Second moments of tokens, and products of them without what chance adds, with errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


def jackknifed(of: Callable[..., float], *parts: np.ndarray) -> Estimate:
    """A function of means of parts (B, …), with the error that leaving each part out tells."""
    count = len(parts[0])
    left = [(part.sum(axis=0)[None] - part) / (count - 1) for part in parts]
    values = np.array([of(*each) for each in zip(*left, strict=True)])
    error = np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum())
    return Estimate(float(of(*(part.mean(axis=0) for part in parts))), float(error))


@dataclass(frozen=True, eq=False)
class Products:
    """⟨A, A⟩ of the mean A of matrices A_b of B parts, without the squares that chance adds.

    Products of different parts have no such squares.
    """

    total: float  # ⟨A, A⟩
    with_parts: np.ndarray  # (B,) ⟨A, A_b⟩
    of_parts: np.ndarray  # (B,) ⟨A_b, A_b⟩

    @classmethod
    def of(cls, parts: np.ndarray) -> "Products":
        """Of matrices (B, …)."""
        flat = parts.reshape(len(parts), -1)
        mean = flat.mean(axis=0)
        return cls(float(mean @ mean), flat @ mean, np.einsum("bi,bi->b", flat, flat))

    @property
    def value(self) -> float:
        """The mean of ⟨A_b, A_c⟩ over b ≠ c."""
        count = len(self.of_parts)
        return float((count**2 * self.total - self.of_parts.sum()) / (count * (count - 1)))

    @property
    def without(self) -> np.ndarray:
        """The same (B,) without each of the parts."""
        count = len(self.of_parts)
        left = count**2 * self.total - 2 * count * self.with_parts + self.of_parts
        return (left - (self.of_parts.sum() - self.of_parts)) / ((count - 1) * (count - 2))


def relative_size(of: Products, to: Products) -> Estimate:
    """√(⟨A, A⟩/⟨C, C⟩), zero where chance makes the square negative, and its standard error."""
    square, left, count = of.value / to.value, of.without / to.without, len(of.of_parts)
    error = np.sqrt((count - 1) / count * ((left - left.mean()) ** 2).sum())
    root = float(np.sqrt(max(square, 0.0)))
    return Estimate(root, float(min(error / max(2 * root, 1e-300), np.sqrt(error))))


def part_covariances(first: np.ndarray, second: np.ndarray, parts: int) -> np.ndarray:
    """Second moments (B, d, d) of rows (n, d), in parts of every B-th row."""
    return np.stack([first[b::parts].T @ second[b::parts] / len(first[b::parts]) for b in range(parts)])
