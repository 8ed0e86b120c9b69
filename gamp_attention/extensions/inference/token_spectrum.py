"""Spectrum of the covariance of given tokens, and second moments along its eigenvectors.

Eigenvalues of a sample covariance Ŝ of N rows are more widely spread than the eigenvalues of Σ (Marchenko and Pastur,
1967). State evolution needs only averages that involve the resolvent of Σ, and these follow from the resolvent of Ŝ:
for large d and N

    Ŝ (Ŝ + z)⁻¹ ≃ Σ (Σ + κ)⁻¹,    κ = z / (1 − tr[Ŝ (Ŝ + z)⁻¹]/N)

between fixed vectors and in the trace. So the fractions of coordinates on a grid of eigenvalues are fitted to these
averages by non-negative least squares. Only the averages are determined, not the single eigenvalues. Products of
second moments are unbiased, with jackknife errors from ten parts of the samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

N_PARTS = 10  # number of parts of the samples, for jackknife errors
MIN_TILT = 0.1  # smallest factor of squared entries along an eigenvector of the sample covariance


class SampleResolvent(NamedTuple):
    """Sample covariance with the averages of the resolvent of Σ that it determines.

    Eq. :eq:`resolvents`.
    """

    eigenvalues: np.ndarray  # (d,) eigenvalues of Ŝ, increasing
    vectors: np.ndarray  # (d, d) eigenvectors of Ŝ in columns
    z: np.ndarray  # (k,) arguments of the resolvent of Ŝ
    kappa: np.ndarray  # (k,) corresponding arguments κ of the resolvent of Σ


class Spectrum(NamedTuple):
    """Eigenvalues (J,) of Σ in increasing order, and the fraction (J,) of coordinates with each."""

    gamma: np.ndarray
    weight: np.ndarray

    def eigenvalue_indices(self, d: int) -> np.ndarray:
        """Return the index (d,) of the eigenvalue of Σ for each of d eigenvectors of Ŝ in increasing order."""
        return np.searchsorted(np.cumsum(self.weight), (np.arange(d) + 0.5) / d).clip(max=len(self.gamma) - 1)


@dataclass(frozen=True)
class SpectrumFit:
    """Fit of the spectrum of Σ to a sample covariance Ŝ, and its settings."""

    n_eigenvalues: int = 60  # number of eigenvalues of Σ on a geometric grid
    n_resolvents: int = 60  # number of values of z on a geometric grid
    lowest: float = 1e-3  # smallest z and smallest eigenvalue of Σ, in units of the mean eigenvalue
    largest_z: float = 100.0  # largest z, in units of the largest eigenvalue
    min_factor: float = 1e-3  # smallest 1 − tr/N; below, the resolvent carries no information
    exact_weight: float = 1e3  # weight of the exact conditions: fractions add to 1, and the trace is given
    max_steps: int = 20000  # maximum number of steps of the least-squares solver

    def resolvent(self, covariance: np.ndarray, n_rows: float) -> SampleResolvent:
        """Return the resolvent of a sample covariance of `n_rows` rows."""
        eigenvalues, vectors = np.linalg.eigh(covariance)
        eigenvalues = eigenvalues.clip(0)
        d, mean = len(eigenvalues), eigenvalues.mean()
        z = np.geomspace(self.lowest * mean, self.largest_z * eigenvalues[-1], self.n_resolvents)
        factor = 1 - d / n_rows * np.mean(eigenvalues / (eigenvalues + z[:, None]), axis=1)
        usable = factor > self.min_factor
        return SampleResolvent(eigenvalues, vectors, z[usable], (z / np.maximum(factor, self.min_factor))[usable])

    def spectrum(self, resolvent: SampleResolvent) -> Spectrum:
        """Fit the spectrum of Σ to the resolvent of Ŝ."""
        from scipy.optimize import nnls  # takes long to import

        of_sample, mean = resolvent.eigenvalues, resolvent.eigenvalues.mean()
        gamma = np.geomspace(max(0.3 * of_sample[0], self.lowest * mean), 1.2 * of_sample[-1], self.n_eigenvalues)
        averages = np.mean(of_sample / (of_sample + resolvent.z[:, None]), axis=1)  # of γ/(γ + κ) over Σ
        on_grid = gamma / (gamma + resolvent.kappa[:, None])
        rows = [on_grid / averages[:, None], self.exact_weight * np.stack([gamma**0, gamma / mean])]
        target = np.append(np.ones(len(averages)), [self.exact_weight] * 2)
        weight, _ = nnls(np.vstack(rows), target, maxiter=self.max_steps)
        used = weight > 0
        return Spectrum(gamma[used], weight[used] / weight.sum())


def moments_along(resolvent: SampleResolvent, spectrum: Spectrum, columns: np.ndarray) -> np.ndarray:
    """Return second moments (J, m, m) of the entries of columns (d, m) at each eigenvalue of Σ, as sums over d.

    Eigenvectors of Ŝ in increasing order are assigned the eigenvalues of Σ. They differ from the eigenvectors of Σ, so
    the squares of each column along them are multiplied by a linear function of γ, at least MIN_TILT, that gives the
    variance along the column, of which Ŝ is an unbiased estimate.
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


def token_eigenvalues(covariances: list[np.ndarray], spectrum: Spectrum) -> np.ndarray:
    """Return eigenvalues (J, L) of each Σ_l along the eigenvectors of the pooled covariance.

    `covariances` are the parts (B, d, d) of each Σ_l. The eigenvectors are computed from one half of the parts and the
    variances along them from the other, because variances along eigenvectors of the same sample are biased; then the
    halves are exchanged.
    """
    ratios, halves = np.zeros((len(spectrum.gamma), len(covariances))), (slice(0, None, 2), slice(1, None, 2))
    for half, other in (halves, halves[::-1]):
        vectors = np.linalg.eigh(np.mean([parts[half].mean(axis=0) for parts in covariances], axis=0))[1]
        estimates = [parts[other].mean(axis=0) for parts in covariances]
        index, sums = spectrum.eigenvalue_indices(len(vectors)), np.zeros((len(estimates) + 1, len(spectrum.gamma)))
        for total, matrix in zip(sums, [*estimates, np.mean(estimates, axis=0)], strict=True):
            np.add.at(total, index, np.einsum("ia,ij,ja->a", vectors, matrix, vectors))
        ratios += np.divide(sums[:-1], sums[-1], out=np.ones(sums[:-1].shape), where=sums[-1] > 0).T / 2
    return spectrum.gamma[:, None] * ratios


class Estimate(NamedTuple):
    """Number with its standard error."""

    value: float
    error: float


def jackknife(of: Callable[..., float], parts: np.ndarray) -> Estimate:
    """Return a function of the mean of B parts (B, …), with the jackknife error from leaving each part out."""
    count = len(parts)
    values = np.array([of(mean) for mean in (parts.sum(axis=0)[None] - parts) / (count - 1)])
    error = np.sqrt((count - 1) / count * ((values - values.mean()) ** 2).sum())
    return Estimate(float(of(parts.mean(axis=0))), float(error))


def part_covariances(rows: np.ndarray) -> np.ndarray:
    """Return second moments (B, d, d) of rows (n, d); part b has the rows b, b + B, b + 2B, …"""
    parts = [rows[b::N_PARTS] for b in range(N_PARTS)]
    return np.stack([part.T @ part / len(part) for part in parts])


def pair_products(parts: np.ndarray) -> np.ndarray:
    """Return the products ⟨A_b, A_c⟩ (B, B) of estimates A_b (B, …) of A, each from one part of the samples."""
    flat = parts.reshape(len(parts), -1)
    return flat @ flat.T


def mean_product(products: np.ndarray) -> float:
    """Return the mean of products (B, B) over b ≠ c: unbiased for ⟨A, A⟩, as ⟨A_b, A_b⟩ has the variance of A_b too."""
    count = len(products)
    return float((products.sum() - np.trace(products)) / (count * (count - 1)))


def relative_size(of: np.ndarray, to: np.ndarray) -> Estimate:
    """Return √(⟨A, A⟩/⟨C, C⟩) from products (B, B), zero if its square is negative, and its standard error."""

    def ratio(left_out: Any) -> float:
        rows = np.ix_(*[np.delete(np.arange(len(of)), left_out)] * 2)
        return mean_product(of[rows]) / mean_product(to[rows])

    without, count = np.array([ratio(part) for part in range(len(of))]), len(of)
    error = np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum())
    root = float(np.sqrt(max(ratio([]), 0.0)))
    return Estimate(root, float(min(error / max(2 * root, 1e-300), np.sqrt(error))))
