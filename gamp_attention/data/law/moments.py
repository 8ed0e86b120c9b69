"""Unbiased products of second moments of tokens, with jackknife errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """Number with its standard error."""

    value: float
    error: float


def jackknifed(of: Callable[..., float], *parts: np.ndarray) -> Estimate:
    """Return a function of the means of B parts (B, …), with the jackknife error from leaving each part out."""
    count = len(parts[0])
    leave_one_out = [(part.sum(axis=0)[None] - part) / (count - 1) for part in parts]
    values = np.array([of(*means) for means in zip(*leave_one_out, strict=True)])
    error = np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum())
    return Estimate(float(of(*(part.mean(axis=0) for part in parts))), float(error))


@dataclass(frozen=True, eq=False)
class Products:
    """Unbiased estimate of ⟨A, A⟩, for the mean A of independent estimates A_b from B parts.

    It averages products of different parts only, because ⟨A_b, A_b⟩ includes the variance of A_b.
    """

    total: float  # ⟨A, A⟩
    with_parts: np.ndarray  # (B,) ⟨A, A_b⟩
    of_parts: np.ndarray  # (B,) ⟨A_b, A_b⟩

    @classmethod
    def of(cls, parts: np.ndarray) -> "Products":
        """Return the products of matrices A_b (B, …)."""
        flat = parts.reshape(len(parts), -1)
        mean = flat.mean(axis=0)
        return cls(float(mean @ mean), flat @ mean, np.einsum("bi,bi->b", flat, flat))

    @property
    def value(self) -> float:
        """Mean of ⟨A_b, A_c⟩ over b ≠ c."""
        count = len(self.of_parts)
        return float((count**2 * self.total - self.of_parts.sum()) / (count * (count - 1)))

    @property
    def without(self) -> np.ndarray:
        """Mean of ⟨A_b, A_c⟩ over b ≠ c with each of the parts left out, (B,)."""
        count = len(self.of_parts)
        total = count**2 * self.total - 2 * count * self.with_parts + self.of_parts
        return (total - (self.of_parts.sum() - self.of_parts)) / ((count - 1) * (count - 2))


def relative_size(of: Products, to: Products) -> Estimate:
    """Return √(⟨A, A⟩/⟨C, C⟩), zero if the estimated square is negative, and its standard error."""
    square, without, count = of.value / to.value, of.without / to.without, len(of.of_parts)
    error = np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
    root = float(np.sqrt(max(square, 0.0)))
    return Estimate(root, float(min(error / max(2 * root, 1e-300), np.sqrt(error))))


def part_covariances(first: np.ndarray, second: np.ndarray, parts: int) -> np.ndarray:
    """Return second moments (B, d, d) of rows (n, d); part b has the rows b, b + B, b + 2B, …"""
    return np.stack([first[b::parts].T @ second[b::parts] / len(first[b::parts]) for b in range(parts)])
