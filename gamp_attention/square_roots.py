"""Square roots of covariances."""

import numpy as np


def psd_root(covariance: np.ndarray) -> np.ndarray:
    """Symmetric square roots of positive semi-definite matrices, rounding below zero being cut."""
    spectrum, vectors = np.linalg.eigh(0.5 * (covariance + np.swapaxes(covariance, -1, -2)))
    return np.einsum("...ij,...j,...kj->...ik", vectors, np.sqrt(spectrum.clip(min=0)), vectors)
