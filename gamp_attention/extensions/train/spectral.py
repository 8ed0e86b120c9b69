"""Spectral starts: weights from the lowest eigenvectors of a sum over the samples; they need no teacher."""

from itertools import combinations

import numpy as np

from gamp_attention._tools.eigenpairs import all_eigenpairs, restarted_lanczos
from gamp_attention.extensions.train.spectral_weights import (
    Shape,
    fitted_fields,
    second_moments,
    spectral_weights,
    weights_of_moments,
)
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.passes import TokenMatrix

EXTRA_VECTORS = 3  # number of eigenvectors of fitted weights in addition to the columns of one start
MIXING = 0.5  # factor of a second eigenvector, which is added to the first or subtracted from it
MAX_SPECTRAL = 6  # maximum number of spectral starts
DENSE = 60  # largest number of weights for which the matrix X̃ᵀ h X̃ is formed
EIGENVALUE_TOL = 1e-3  # relative accuracy of eigenvalues
MIN_BASIS = 24  # minimum number of vectors in a Lanczos iteration
MAX_RESTARTS = 300  # maximum number of restarts of the Lanczos iteration


def lowest_eigenvectors(
    matrix: TokenMatrix, h: np.ndarray, columns: int, k: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k lowest eigenvalues (k,) and eigenvectors (k, d, c) of Σ_μ X̃ᵀ h X̃ for matrices h (n, L c, L c).

    Eq. :eq:`spectral`.

    Eigenvectors have norm 1, and their largest entry is positive. None are returned if h is zero or not finite.
    """
    from scipy.sparse.linalg import ArpackError

    shape = matrix.positions.shape[1], columns
    none = np.zeros(0), np.zeros((0, *shape))
    if not (h.any() and np.isfinite(h).all()):
        return none
    n = shape[0] * columns
    start = random.standard_normal(n)

    def product(x: np.ndarray) -> np.ndarray:
        return matrix.hessian_product(h, np.asarray(x).reshape(shape)).ravel()

    if n <= max(DENSE, 2 * k):
        values, vectors = all_eigenpairs(product, n)
    else:
        basis = min(n, max(MIN_BASIS, 3 * k + 10))
        try:
            values, vectors = restarted_lanczos(product, k, "SA", start, EIGENVALUE_TOL, MAX_RESTARTS, basis)
        except ArpackError:  # all products are zero
            return none
    order = np.argsort(values)[:k]
    vectors = vectors[:, order].T
    signs = np.sign(vectors[np.arange(len(vectors)), np.abs(vectors).argmax(axis=1)])
    return values[order], (signs[:, None] * vectors).reshape(-1, *shape)


def spectral_starts(data: Dataset, risk: str, k: int, random: np.random.Generator) -> list[np.ndarray]:
    """Return up to k spectral starts (d, r); there may be fewer, because they are made of few eigenvectors.

    Each start is scaled so that its fields have the norm of the fields that fit the samples one by one. If the loss is
    not even, the first start is X̃ᵀ times these fields.
    """
    shape, params = Shape.of(data.student, data.n_tokens, data.rank), data.terms(risk).params
    z, size, k = fitted_fields(data.loss, params, shape), shape.size, min(k, MAX_SPECTRAL)
    n_vectors = size - 1 + EXTRA_VECTORS if k > 1 else size
    h = weights_of_moments(second_moments(z, shape))
    vectors = lowest_eigenvectors(data.matrix, h, shape.columns, n_vectors, random)[1]
    starts = [side_by_side(directions, size) for directions in _mixtures(vectors, size)]
    if not data.student.even:
        starts.insert(0, data.matrix.back_project(z))
    if k > 1:
        h = spectral_weights("hessian", data.loss, params, shape)
        flattest = lowest_eigenvectors(data.matrix, h, shape.columns, size, random)[1]
        if len(flattest):
            starts.insert(1, side_by_side(list(flattest), size))
    return [_scale_to_fields(data, Q, z) for Q in starts[:k]]


def _mixtures(vectors: np.ndarray, size: int) -> list[list[np.ndarray]]:
    """Return sets of `size` directions (d, c), in the order of their eigenvalues."""
    if not len(vectors):
        return []
    if size > 1:
        indices = combinations(range(len(vectors)), min(size, len(vectors)))
        return [[vectors[i] for i in chosen] for chosen in sorted(indices, key=lambda chosen: (sum(chosen), chosen))]
    first, others = vectors[0], vectors[1:]
    mixed = [first + sign * MIXING * other for other in others for sign in (1.0, -1.0)]
    return [[direction] for direction in [first, *mixed, *others]]


def side_by_side(directions: list[np.ndarray], size: int) -> np.ndarray:
    """Return weights (d, c size): in each of c parts the columns of the directions (d, c), then zeros."""
    d, c = directions[0].shape
    Q = np.zeros((d, c, size))
    Q[:, :, : len(directions)] = np.stack(directions, axis=2)
    return Q.reshape(d, c * size)


def _scale_to_fields(data: Dataset, Q: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return weights whose fields have the norm of z and, if the loss is not even, a product with z >= 0."""
    fields = data.matrix.fields(Q)
    size, target = np.linalg.norm(fields), np.linalg.norm(z) or np.sqrt(z.size)
    sign = 1.0 if data.student.even or np.sum(z * fields) >= 0 else -1.0
    return sign * (target / size if size > 0 else 1.0) * Q
