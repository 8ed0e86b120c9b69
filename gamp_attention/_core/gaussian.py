"""Point sets for Gaussian averages, and square roots of covariances."""

import warnings

import numpy as np
from scipy.special import ndtri


def sobol(n_points: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return any number of scrambled Sobol points (n_points, dim) of the unit cube."""
    from scipy.stats import qmc  # imported here because it takes long to load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The balance properties", UserWarning)
        return qmc.Sobol(dim, rng=rng).random(n_points)


def gaussian_points(n_points: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return scrambled Sobol points (n_points, dim) of the standard Gaussian, together with their mirror images.

    The set is symmetric, so averages of odd functions vanish exactly, and has unit covariance, so linear and quadratic
    functions are averaged exactly. n_points must be even, best a power of two.
    """
    cube = sobol(n_points // 2, dim, rng)
    return symmetrise(ndtri(cube.clip(1e-12, 1 - 1e-12)))


def symmetrise(half: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Whiten half a point set (n/2, k), orthogonally to whitened columns `known`, and append its mirror image."""
    n = len(half)
    if known is not None:
        basis = known[:n]
        half = half - basis @ (basis.T @ half) / n
    spectrum, vectors = np.linalg.eigh(half.T @ half / n)
    half = half @ (vectors / np.sqrt(spectrum)) @ vectors.T
    return np.concatenate([half, -half])


def psd_root(covariance: np.ndarray) -> np.ndarray:
    """Return symmetric square roots of positive semi-definite matrices; negative eigenvalues count as zero."""
    spectrum, vectors = np.linalg.eigh(0.5 * (covariance + np.swapaxes(covariance, -1, -2)))
    return np.einsum("...ij,...j,...kj->...ik", vectors, np.sqrt(spectrum.clip(min=0)), vectors)


def spaced_grid(h: float, dim: int, radius: float, even: bool) -> np.ndarray:
    """Return points (N, dim) of spacing h in a ball around zero; if `even`, one point of every mirror pair."""
    line = (np.arange(-int(radius / h + 0.5), int(radius / h + 0.5)) + 0.5) * h
    points, norm = np.zeros((1, 0)), np.zeros(1)
    for axis in range(dim):
        along = line[line > 0] if even and axis == 0 else line
        longer = norm[:, None] + along**2
        row, column = np.nonzero(longer <= radius**2)
        points, norm = np.concatenate([points[row], along[column][:, None]], axis=1), longer[row, column]
    return points
