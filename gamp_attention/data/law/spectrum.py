"""Spectrum of a covariance from few samples, and unbiased products of second moments with jackknife errors.

Eigenvalues of a sample covariance Ŝ of N rows are more widely spread than the eigenvalues of Σ (Marchenko and Pastur,
1967). State evolution needs only averages that involve the resolvent of Σ, and these follow from the resolvent of Ŝ:
for large d and N

    Ŝ (Ŝ + z)⁻¹ ≃ Σ (Σ + κ)⁻¹,    κ = z / (1 − tr[Ŝ (Ŝ + z)⁻¹]/N)

between fixed vectors and in the trace. So the fractions of coordinates on a grid of eigenvalues are fitted to these
averages by non-negative least squares. Only the averages are determined, not the single eigenvalues.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

N_EIGENVALUES = 60  # number of eigenvalues of Σ on a geometric grid
N_RESOLVENTS = 60  # number of values of z on a geometric grid
LOWEST = 1e-3  # smallest z and smallest eigenvalue of Σ, in units of the mean eigenvalue
LARGEST_Z = 100.0  # largest z, in units of the largest eigenvalue
MIN_FACTOR = 1e-3  # smallest 1 − tr/N; below, the resolvent carries no information
EXACT_WEIGHT = 1e3  # weight of the exact conditions: fractions add to 1, and the trace is given
MIN_TILT = 0.1  # smallest factor of squares along eigenvectors
MAX_STEPS = 20000  # maximum number of steps of the least-squares solver


class Resolvent(NamedTuple):
    """Sample covariance with the averages of the resolvent of Σ that it determines.

    Eq. :eq:`resolvents`.
    """

    eigenvalues: np.ndarray  # (d,) eigenvalues of Ŝ, increasing
    vectors: np.ndarray  # (d, d) eigenvectors of Ŝ in columns
    z: np.ndarray  # (k,) arguments of the resolvent of Ŝ
    kappa: np.ndarray  # (k,) corresponding arguments κ of the resolvent of Σ

    @classmethod
    def of(cls, covariance: np.ndarray, n_rows: float) -> "Resolvent":
        """Return the resolvent of a sample covariance of `n_rows` rows."""
        eigenvalues, vectors = np.linalg.eigh(covariance)
        eigenvalues = eigenvalues.clip(0)
        d, mean = len(eigenvalues), eigenvalues.mean()
        z = np.geomspace(LOWEST * mean, LARGEST_Z * eigenvalues[-1], N_RESOLVENTS)
        factor = 1 - d / n_rows * np.mean(eigenvalues / (eigenvalues + z[:, None]), axis=1)
        usable = factor > MIN_FACTOR
        return cls(eigenvalues, vectors, z[usable], (z / np.maximum(factor, MIN_FACTOR))[usable])

    def averages(self, squares: np.ndarray) -> np.ndarray:
        """Return averages (k,) of γ/(γ + κ) over Σ, with weights (d,) along the eigenvectors of Ŝ."""
        return np.mean(squares * self.eigenvalues / (self.eigenvalues + self.z[:, None]), axis=1)

    def of_grid(self, gamma: np.ndarray) -> np.ndarray:
        """Return γ/(γ + κ), (k, J), for eigenvalues γ (J,)."""
        return gamma / (gamma + self.kappa[:, None])


class Spectrum(NamedTuple):
    """Eigenvalues (J,) of Σ in increasing order, and the fraction (J,) of coordinates with each."""

    gamma: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, resolvent: Resolvent) -> "Spectrum":
        """Fit the spectrum of Σ to the resolvent of Ŝ."""
        from scipy.optimize import nnls  # takes long to import

        mean = resolvent.eigenvalues.mean()
        low = max(0.3 * resolvent.eigenvalues[0], LOWEST * mean)
        gamma = np.geomspace(low, 1.2 * resolvent.eigenvalues[-1], N_EIGENVALUES)
        averages = resolvent.averages(np.ones(len(resolvent.eigenvalues)))
        rows = [resolvent.of_grid(gamma) / averages[:, None], EXACT_WEIGHT * np.stack([gamma**0, gamma / mean])]
        target = np.append(np.ones(len(averages)), [EXACT_WEIGHT] * 2)
        weight, _ = nnls(np.vstack(rows), target, maxiter=MAX_STEPS)
        used = weight > 0
        return cls(gamma[used], weight[used] / weight.sum())

    def eigenvalue_indices(self, d: int) -> np.ndarray:
        """Return the index (d,) of the eigenvalue of Σ for each of d eigenvectors of Ŝ in increasing order."""
        return np.searchsorted(np.cumsum(self.weight), (np.arange(d) + 0.5) / d).clip(max=len(self.gamma) - 1)


def moments_along(resolvent: Resolvent, spectrum: Spectrum, columns: np.ndarray) -> np.ndarray:
    """Return second moments (J, m, m) of the entries of columns (d, m) at each eigenvalue of Σ, as sums over d.

    Eigenvectors of Ŝ in increasing order are assigned the eigenvalues of Σ. They differ from the eigenvectors of Σ, so
    the squares of each column along them are multiplied by a linear function of γ that gives the variance along the
    column, of which Ŝ is an unbiased estimate.
    """
    d, along = len(columns), resolvent.vectors.T @ columns
    index = spectrum.eigenvalue_indices(d)
    gamma = spectrum.gamma[index]
    for column in along.T:
        total = column @ column
        if not total:
            continue
        fraction = column**2 / total
        mean, variance = fraction @ gamma, fraction @ gamma**2 - (fraction @ gamma) ** 2
        tilt = (fraction @ resolvent.eigenvalues - mean) / max(variance, 1e-12 * mean**2)
        factor = np.maximum(1 + tilt * (gamma - mean), MIN_TILT)
        column *= np.sqrt(factor / (fraction @ factor))
    moments = np.zeros((len(spectrum.gamma), columns.shape[1], columns.shape[1]))
    np.add.at(moments, index, along[:, :, None] * along[:, None, :] / d)
    return moments


def ratios_along(resolvent: Resolvent, spectrum: Spectrum, covariance: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Return ratios (J,) of a covariance to the pooled covariance along eigenvectors of Ŝ.

    Both covariances must be estimated from other samples than Ŝ.
    """
    index, total = spectrum.eigenvalue_indices(len(pooled)), np.zeros((2, len(spectrum.gamma)))
    for sums, matrix in zip(total, (covariance, pooled), strict=True):
        np.add.at(sums, index, np.einsum("ia,ij,ja->a", resolvent.vectors, matrix, resolvent.vectors))
    return np.divide(total[0], total[1], out=np.ones(len(spectrum.gamma)), where=total[1] > 0)


class Estimate(NamedTuple):
    """Number with its standard error."""

    value: float
    error: float


def jackknife(of: Callable[..., float], *parts: np.ndarray) -> Estimate:
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
