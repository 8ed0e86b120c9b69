"""Extreme eigenvalues and eigenvectors of symmetric operators, which are given by their products with vectors.

The lowest eigenpair is computed by the Lanczos method with all vectors kept, which is restarted from the best vector if
there are too many. Averages over the whole spectrum use the Gauss quadrature of the Lanczos method (Golub and Welsch,
1969; Ubaru, Chen and Saad, 2017).
"""

from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]  # from a vector (n,) to the product (n,)

MIN_PRODUCTS = 20  # number of products before the Lanczos method accepts an answer
MAX_VECTORS = 200  # number of Lanczos vectors in memory before the method is restarted from the best vector
# residual of the eigenvector, relative to the eigenvalue plus the shift. With larger residuals (0.003), the vector was
# sometimes still a mixture that did not contain the lowest of neighboring eigenvectors.
ACCURACY = 1e-4
SHIFT = 0.1  # shift of the spectrum, in units of `scale`: accuracy is relative, and the eigenvalue may be 0


def all_eigenpairs(product: Product, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all eigenvalues (n,), in increasing order, and eigenvectors (n, n) in columns."""
    matrix = np.stack([product(unit) for unit in np.eye(n)])
    return np.linalg.eigh(0.5 * (matrix + matrix.T))


def restarted_lanczos(
    product: Product, k: int, which: str, start: np.ndarray, tol: float, max_restarts: int, basis: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k lowest ("SA") or highest ("LA") eigenvalues, and eigenvectors (n, k), by ARPACK.

    `start` (n,) is the initial vector, `tol` the relative accuracy of the eigenvalues, `basis` the number of Lanczos
    vectors. Only the converged eigenpairs are returned, possibly none, after `max_restarts` restarts.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    operator = LinearOperator((len(start), len(start)), matvec=product, dtype=float)
    try:
        return eigsh(operator, k, which=which, v0=start, ncv=basis, tol=tol, maxiter=max_restarts)
    except ArpackNoConvergence as error:
        return error.eigenvalues, error.eigenvectors


def lowest_eigenpair(product: Product, start: np.ndarray, scale: float) -> tuple[float, np.ndarray]:
    """Return the lowest eigenvalue and its eigenvector (n,), whose residual is small compared with the eigenvalue.

    `start` (n,) is the initial vector, and `scale` > 0 the size of a typical eigenvalue, in units of which eigenvalues
    near zero are accurate. Of two neighboring eigenvectors, the Lanczos method may find the higher one first if the
    initial vector has a larger part of it. A second iteration, orthogonal to the first result, therefore looks for a
    lower eigenvalue.
    """
    shift = SHIFT * scale
    value, vector = _converge(product, start, shift)

    def others(x: np.ndarray) -> np.ndarray:
        image = product(x - vector * (vector @ x))
        return image - vector * (vector @ image)

    begin = np.random.default_rng(1).standard_normal(len(start))
    other, lower, _ = _lanczos(others, begin - vector * (vector @ begin), shift, value)
    if other >= value:
        return value, vector
    coupling = float(vector @ product(lower))
    weights = np.linalg.eigh([[value, coupling], [coupling, other]])[1][:, 0]
    return _converge(product, weights[0] * vector + weights[1] * lower, shift)


def _converge(product: Product, start: np.ndarray, shift: float) -> tuple[float, np.ndarray]:
    """Return the eigenvalue and eigenvector that the Lanczos method finds from an initial vector, accurately."""
    value, vector, accurate = _lanczos(product, start, shift)
    while not accurate:
        shift *= 1.25  # a larger shift makes the relative accuracy easier to reach
        value, vector, accurate = _lanczos(product, vector, shift)
    return value, vector


def krylov_spaces(product: Product, start: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Yield growing Krylov spaces: orthonormal vectors (k, n), the operator (k, k) in them, and the residual norm.

    All vectors are kept and orthogonalized, so no product is lost to a restart.
    """
    basis, matrix = np.empty((32, len(start))), np.zeros((32, 32))  # doubled as often as necessary
    basis[0] = start / np.linalg.norm(start)
    for k in count():
        if k + 1 == len(basis):
            basis, matrix = np.concatenate([basis, np.empty_like(basis)]), np.pad(matrix, (0, len(matrix)))
        image, vectors = product(basis[k]), basis[: k + 1]
        matrix[k, k] = image @ basis[k]
        for _ in range(2):  # the second pass removes the rounding errors of the first
            image = image - vectors.T @ (vectors @ image)
        size = float(np.linalg.norm(image))
        yield vectors, matrix[: k + 1, : k + 1], size
        matrix[k, k + 1] = matrix[k + 1, k] = size
        basis[k + 1] = image / size


def _lanczos(
    product: Product, start: np.ndarray, shift: float, known: float = np.inf
) -> tuple[float, np.ndarray, bool]:
    """Return the lowest Ritz value and vector in a growing Krylov space, and whether they are accurate enough.

    They also are if, after some more products, the Ritz value exceeds the eigenvalue `known` by more than its residual.
    """
    most = min(MAX_VECTORS, len(start))
    for basis, matrix, size in krylov_spaces(product, start):
        if len(basis) < min(MIN_PRODUCTS, most) and not is_invariant(np.diag(matrix), size):
            continue
        values, vectors = np.linalg.eigh(matrix)
        value, residual = float(values[0]), size * abs(vectors[-1, 0])
        higher = len(basis) >= 2 * MIN_PRODUCTS and value - residual > known
        accurate = residual <= ACCURACY * (abs(value) + shift) or higher or is_invariant(values, size)
        if accurate or len(basis) == most:
            break
    return value, basis.T @ vectors[:, 0], accurate


def is_invariant(values: np.ndarray, size: float) -> bool:
    """Return whether a Krylov space with Ritz values or diagonal entries `values` contains its image."""
    return bool(size <= np.finfo(float).eps * np.abs(values).max())
