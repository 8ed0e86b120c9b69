"""Classes of coordinates that have given second moments at each eigenvalue."""

from typing import NamedTuple

import numpy as np


class Classes(NamedTuple):
    """Classes of coordinates: eigenvalues, fixed columns such as positions, and Gaussian rows of a teacher."""

    weight: np.ndarray  # (K,), fractions of the coordinates
    gamma: np.ndarray  # (K, …), eigenvalues as they were given
    fixed: np.ndarray  # (K, m)
    teacher_mean: np.ndarray  # (K, t)
    teacher_cov: np.ndarray  # (K, t, t)


def classes_of_moments(weight: np.ndarray, gamma: np.ndarray, moments: np.ndarray, n_fixed: int) -> Classes:
    """Return classes with given second moments, which are sums over coordinates (J, m + t, m + t).

    The m fixed columns have one value in each class, so an eigenvalue needs a number of classes equal to the rank of
    their moments; the remaining moments of the teacher are Gaussian.
    """
    parts = []
    for fraction, value, second in zip(weight, gamma, moments / weight[:, None, None], strict=True):
        size, vectors = np.linalg.eigh(second[:n_fixed, :n_fixed])
        along = size > 1e-9 * max(size.max(initial=0.0), 1e-300)
        rank = max(1, int(along.sum()))
        fixed, mean, rest = (
            np.zeros((rank, n_fixed)),
            np.zeros((rank, len(second) - n_fixed)),
            second[n_fixed:, n_fixed:],
        )
        for row, (square, vector) in enumerate(zip(size[along], vectors.T[along], strict=True)):
            coefficient = second[n_fixed:, :n_fixed] @ vector / np.sqrt(square)
            fixed[row], mean[row] = np.sqrt(rank * square) * vector, np.sqrt(rank) * coefficient
            rest = rest - np.outer(coefficient, coefficient)
        values, vectors = np.linalg.eigh(rest)
        rest = (vectors * values.clip(0)) @ vectors.T
        weights = np.full(rank, fraction / rank)
        parts.append((weights, np.tile(value, (rank, 1)), fixed, mean, np.tile(rest, (rank, 1, 1))))
    return Classes(*map(np.concatenate, zip(*parts, strict=True)))
