"""Extreme eigenvalues and eigenvectors of symmetric operators, by the implicitly restarted Lanczos method of ARPACK."""

from collections.abc import Callable

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]  # from a vector (n,) to the product (n,)

ACCURACY = 1e-4  # error of the lowest eigenvalue, relative to the eigenvalue plus the shift
SHIFT = 0.1  # shift of the spectrum, in units of `scale`: accuracy is relative, and the eigenvalue may be 0
BASIS, MAX_RESTARTS = 40, 100  # number of Lanczos vectors in memory, and of restarts before the shift is increased


def extreme_eigenpairs(
    product: Product, k: int, which: str, start: np.ndarray, tol: float, max_restarts: int, basis: int | None = None,
    dense: int = 0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return the k lowest ("SA") or highest ("LA") eigenvalues, ascending, and eigenvectors (n, k), by ARPACK.

    `start` (n,) is the initial vector, `tol` the relative accuracy of the eigenvalues, `basis` the number of Lanczos
    vectors. Only the converged eigenpairs are returned, possibly none, after `max_restarts` restarts. If n is at most
    `dense`, the matrix of the operator is formed and diagonalized instead.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = len(start)
    if n <= dense:
        matrix = np.stack([product(unit) for unit in np.eye(n)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        chosen = slice(0, k) if which == "SA" else slice(max(n - k, 0), n)
        return values[chosen], vectors[:, chosen]
    operator = LinearOperator((n, n), matvec=product, dtype=float)
    try:
        values, vectors = eigsh(operator, k, which=which, v0=start, ncv=basis, tol=tol, maxiter=max_restarts)
    except ArpackNoConvergence as error:
        values, vectors = error.eigenvalues, error.eigenvectors
    order = np.argsort(values)
    return values[order], vectors[:, order]


def lowest_eigenpair(product: Product, start: np.ndarray, scale: float) -> tuple[float, np.ndarray]:
    """Return the lowest eigenvalue of an operator with n > 2 and its eigenvector (n,).

    `start` (n,) is the initial vector, and `scale` > 0 the size of a typical eigenvalue, in units of which eigenvalues
    near zero are accurate. Of two neighboring eigenvectors, the method may find the higher one first if the initial
    vector has a larger part of it; therefore the second is computed, too.
    """
    shift, basis = SHIFT * scale, min(BASIS, len(start))

    def shifted(x: np.ndarray) -> np.ndarray:
        return product(x) + shift * x

    while True:
        values, vectors = extreme_eigenpairs(shifted, 2, "SA", start, ACCURACY, MAX_RESTARTS, basis)
        if len(values) == 2:
            return float(values[0]) - shift, vectors[:, 0]
        shift *= 2  # a larger shift makes the relative accuracy easier to reach
