"""Spectral starts: where a solver begins with data alone, from the lowest eigenvectors of sums over the samples."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.fields import back_project, local_fields
from gamp_attention.data.hessian_pass import hessian_pass
from gamp_attention.denoisers.spectral_weights import Shape, fitted_fields, spectral_weights


@dataclass(frozen=True)
class SpectralSettings:
    """How eigenvectors are computed and made into starts."""

    vectors: int = 3  # of fitted weights, beyond those that one start has for its columns
    mixing: float = 0.5  # share of a second eigenvector added to the first, and subtracted
    tolerance: float = 1e-3  # of eigenvalues, relative
    basis: int = 24  # vectors of the Lanczos iterations, at least
    restarts: int = 300
    small: int = 60  # up to so many weights the matrix is formed
    most: int = 6  # different starts


SPECTRAL = SpectralSettings()


def lowest_eigenvectors(
    data: Dataset, h: np.ndarray, columns: int, k: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The k lowest eigenvalues and eigenvectors (k, d, c) of Σ_μ X̃ᵀ h X̃, by Lanczos iterations from a random vector.

    h has shape (n, L c, L c). Eigenvectors have norm 1, and their largest entry is positive. There
    are none where samples tell no direction from another.
    """
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    shape = data.dim, columns
    nothing = np.zeros(0), np.zeros((0, *shape))
    if not (h.any() and np.isfinite(h).all()):
        return nothing
    n, start = data.dim * columns, random.standard_normal(data.dim * columns)

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_pass(data.tokens, data.positions, h, np.asarray(x).reshape(shape)).ravel()

    k = min(k, n)
    if n <= SPECTRAL.small:
        matrix = np.stack([product(unit) for unit in np.eye(n)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    else:
        operator = LinearOperator((n, n), matvec=product, dtype=float)
        basis = min(n, max(SPECTRAL.basis, 3 * k + 10))
        try:
            values, vectors = eigsh(
                operator, k, which="SA", v0=start, ncv=basis, tol=SPECTRAL.tolerance, maxiter=SPECTRAL.restarts
            )
        except ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
        except ArpackError:  # all products are zero
            return nothing
    order = np.argsort(values)[:k]
    found = vectors[:, order].T
    signs = np.sign(found[np.arange(len(found)), np.abs(found).argmax(axis=1)])
    return values[order], (signs[:, None] * found).reshape(-1, *shape)


def spectral_weights_of(data: Dataset, risk: str, kind: str) -> np.ndarray:
    """The matrices h (n, L c, L c) of the samples."""
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    return spectral_weights(kind, data.loss, data.terms(risk).params, shape)


def spectral_starts(data: Dataset, risk: str, k: int, random: np.random.Generator) -> list[np.ndarray]:
    """Up to k weights (d, r) to start from, at most as many as there are eigenvectors to make them of.

    Their fields are as large as those that fit the samples one by one. Where the loss is not even, the first is the sum
    of these fields times the tokens.
    """
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    z = fitted_fields(data.loss, data.terms(risk).params, shape)
    size, k = shape.size, min(k, SPECTRAL.most)
    lower = size - 1 + SPECTRAL.vectors if k > 1 else size
    vectors = lowest_eigenvectors(data, spectral_weights_of(data, risk, "fitted"), shape.columns, lower, random)[1]
    found = [side_by_side(each, size) for each in _mixtures(vectors, size)]
    if not data.student.even:
        found.insert(0, back_project(data.tokens, data.positions, z))
    if k > 1:
        plain = lowest_eigenvectors(data, spectral_weights_of(data, risk, "hessian"), shape.columns, size, random)[1]
        if len(plain):
            found.insert(1, side_by_side(list(plain), size))
    return [_scaled(data, Q, z) for Q in found[:k]]


def _mixtures(vectors: np.ndarray, size: int) -> list[list[np.ndarray]]:
    """Sets of `size` directions (d, c), most promising first."""
    if not len(vectors):
        return []
    if size > 1:
        several = sorted(combinations(range(len(vectors)), min(size, len(vectors))), key=lambda kept: (sum(kept), kept))
        return [[vectors[i] for i in kept] for kept in several]
    first, others = vectors[0], vectors[1:]
    mixed = [first + sign * SPECTRAL.mixing * other for other in others for sign in (1.0, -1.0)]
    return [[each] for each in [first, *mixed, *others]]


def side_by_side(directions: list[np.ndarray], size: int) -> np.ndarray:
    """Weights (d, c size) with the directions (d, c) as the first columns of each part; zeros where there are fewer."""
    d, c = directions[0].shape
    Q = np.zeros((d, c, size))
    Q[:, :, : len(directions)] = np.stack(directions, axis=2)
    return Q.reshape(d, c * size)


def _scaled(data: Dataset, Q: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The weights with fields of the size of z, and along them where they have a sign."""
    fields = local_fields(data.tokens, data.positions, Q)
    size, wanted = np.linalg.norm(fields), np.linalg.norm(z) or np.sqrt(z.size)
    sign = 1.0 if data.student.even or np.sum(z * fields) >= 0 else -1.0
    return sign * (wanted / size if size > 0 else 1.0) * Q
