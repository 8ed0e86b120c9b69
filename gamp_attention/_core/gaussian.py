"""Gaussian averages: point sets, and square roots of covariances."""

import warnings

import numpy as np
from scipy.special import ndtri


def sobol(n_points: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Scrambled Sobol points (n_points, dim) of the unit cube, any number of them."""
    from scipy.stats import qmc  # takes long to load

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The balance properties", UserWarning)
        return qmc.Sobol(dim, rng=rng).random(n_points)


def gaussian_points(n_points: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Scrambled Sobol points (n_points, dim) of the standard Gaussian, with their mirror images.

    Symmetric, so odd averages vanish exactly, and transformed to have unit covariance, so linear and quadratic
    functions are averaged exactly. n_points must be even, best a power of two.
    """
    cube = sobol(n_points // 2, dim, rng)
    return symmetrise(ndtri(cube.clip(1e-12, 1 - 1e-12)))


def symmetrise(half: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """Whiten half of a point set (n/2, k), orthogonally to whitened columns `known`, and add its mirror image."""
    n = len(half)
    if known is not None:
        basis = known[:n]
        half = half - basis @ (basis.T @ half) / n
    spectrum, vectors = np.linalg.eigh(half.T @ half / n)
    half = half @ (vectors / np.sqrt(spectrum)) @ vectors.T
    return np.concatenate([half, -half])


def psd_root(covariance: np.ndarray) -> np.ndarray:
    """Symmetric square roots of positive semi-definite matrices; eigenvalues below zero by rounding count as zero."""
    spectrum, vectors = np.linalg.eigh(0.5 * (covariance + np.swapaxes(covariance, -1, -2)))
    return np.einsum("...ij,...j,...kj->...ik", vectors, np.sqrt(spectrum.clip(min=0)), vectors)


def spaced_grid(h: float, dim: int, radius: float, even: bool) -> np.ndarray:
    """Points (N, dim) of spacing h in a ball around zero; one of every mirror pair where `even`."""
    line = (np.arange(-int(radius / h + 0.5), int(radius / h + 0.5)) + 0.5) * h
    points, norm = np.zeros((1, 0)), np.zeros(1)
    for axis in range(dim):
        along = line[line > 0] if even and axis == 0 else line
        longer = norm[:, None] + along**2
        row, column = np.nonzero(longer <= radius**2)
        points, norm = np.concatenate([points[row], along[column][:, None]], axis=1), longer[row, column]
    return points
