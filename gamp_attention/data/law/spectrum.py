"""The spectrum of a covariance from samples of it that are few.

Eigenvalues of a sample covariance Ŝ of N rows spread beyond those of Σ (Marchenko and Pastur). What state evolution
needs of Σ are averages with its resolvent, and these follow from the resolvent of Ŝ: for large d and N

    Ŝ (Ŝ + z)⁻¹ ≃ Σ (Σ + κ)⁻¹,    κ = z / (1 − tr[Ŝ (Ŝ + z)⁻¹]/N)

between fixed vectors, and in the trace. So shares of coordinates on a grid of eigenvalues are fitted to them, as
non-negative least squares. Only these averages are determined, not the eigenvalues one by one.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class SpectrumSettings:
    """Grids of the fit."""

    eigenvalues: int = 60  # of Σ, geometric
    resolvents: int = 60  # values of z, geometric
    below: float = 1e-3  # of the mean eigenvalue, the smallest z and eigenvalue of Σ
    beyond: float = 100.0  # times the largest eigenvalue, the largest z
    least_kappa: float = 1e-3  # of 1 − tr/N: where it is smaller the resolvent tells nothing
    exact: float = 1e3  # weight of what is known exactly: shares that add to 1, the trace
    least_tilt: float = 0.1  # factor of squares along eigenvectors
    max_steps: int = 20000


SPECTRUM = SpectrumSettings()


class Resolvent(NamedTuple):
    """A sample covariance, with the resolvents of Σ that it tells of.

    Eq. :eq:`resolvents`.
    """

    eigenvalues: np.ndarray  # (d,) of Ŝ
    vectors: np.ndarray  # (d, d), in columns
    z: np.ndarray  # (k,)
    kappa: np.ndarray  # (k,)

    @classmethod
    def of(cls, covariance: np.ndarray, n_rows: float) -> "Resolvent":
        """That of a sample covariance of so many rows."""
        eigenvalues, vectors = np.linalg.eigh(covariance)
        eigenvalues = eigenvalues.clip(0)
        d, mean = len(eigenvalues), eigenvalues.mean()
        z = np.geomspace(SPECTRUM.below * mean, SPECTRUM.beyond * eigenvalues[-1], SPECTRUM.resolvents)
        left = 1 - d / n_rows * np.mean(eigenvalues / (eigenvalues + z[:, None]), axis=1)
        told = left > SPECTRUM.least_kappa
        return cls(eigenvalues, vectors, z[told], (z / np.maximum(left, SPECTRUM.least_kappa))[told])

    def averages(self, squares: np.ndarray) -> np.ndarray:
        """Averages (k,) of γ/(γ + κ) over Σ, with weights (d,) along the vectors of Ŝ."""
        return np.mean(squares * self.eigenvalues / (self.eigenvalues + self.z[:, None]), axis=1)

    def of_grid(self, gamma: np.ndarray) -> np.ndarray:
        """γ/(γ + κ), (k, J)."""
        return gamma / (gamma + self.kappa[:, None])


class Spectrum(NamedTuple):
    """Eigenvalues (J,) of Σ, rising, and the share (J,) of coordinates that has each."""

    gamma: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, found: Resolvent) -> "Spectrum":
        """That of Σ, fitted to the resolvent of Ŝ."""
        from scipy.optimize import nnls  # takes long to import

        mean = found.eigenvalues.mean()
        low = max(0.3 * found.eigenvalues[0], SPECTRUM.below * mean)
        gamma = np.geomspace(low, 1.2 * found.eigenvalues[-1], SPECTRUM.eigenvalues)
        averages = found.averages(np.ones(len(found.eigenvalues)))
        rows = [found.of_grid(gamma) / averages[:, None], SPECTRUM.exact * np.stack([gamma**0, gamma / mean])]
        target = np.append(np.ones(len(averages)), [SPECTRUM.exact] * 2)
        weight, _ = nnls(np.vstack(rows), target, maxiter=SPECTRUM.max_steps)
        told = weight > 0
        return cls(gamma[told], weight[told] / weight.sum())

    def places(self, d: int) -> np.ndarray:
        """The eigenvalue's number (d,) for each of d eigenvectors of Ŝ, in rising order, that shares say."""
        return np.searchsorted(np.cumsum(self.weight), (np.arange(d) + 0.5) / d).clip(max=len(self.gamma) - 1)


def moments_along(found: Resolvent, spectrum: Spectrum, columns: np.ndarray) -> np.ndarray:
    """Second moments (J, m, m) of the entries of columns (d, m) at each eigenvalue of Σ; their sum is that over all d.

    Eigenvectors of Ŝ in rising order take the eigenvalues of Σ. As they are not those of Σ, the squares of each column
    along them are tilted, linearly in γ, to the variance along the column, of which Ŝ is an unbiased estimate.
    """
    d, along = len(columns), found.vectors.T @ columns
    place = spectrum.places(d)
    gamma = spectrum.gamma[place]
    for column in along.T:
        total = column @ column
        if not total:
            continue
        share = column**2 / total
        mean, variance = share @ gamma, share @ gamma**2 - (share @ gamma) ** 2
        tilt = (share @ found.eigenvalues - mean) / max(variance, 1e-12 * mean**2)
        factor = np.maximum(1 + tilt * (gamma - mean), SPECTRUM.least_tilt)
        column *= np.sqrt(factor / (share @ factor))
    moments = np.zeros((len(spectrum.gamma), columns.shape[1], columns.shape[1]))
    np.add.at(moments, place, along[:, :, None] * along[:, None, :] / d)
    return moments


def ratios_along(found: Resolvent, spectrum: Spectrum, covariance: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Variances of one covariance over the pooled ones, (J,), along eigenvectors of Ŝ, which is of other samples."""
    place, total = spectrum.places(len(pooled)), np.zeros((2, len(spectrum.gamma)))
    for sums, matrix in zip(total, (covariance, pooled), strict=True):
        np.add.at(sums, place, np.einsum("ia,ij,ja->a", found.vectors, matrix, found.vectors))
    return np.divide(total[0], total[1], out=np.ones(len(spectrum.gamma)), where=total[1] > 0)
