"""Lowest eigenvalue of the Hessian at a critical point of the risk, which decides whether it is a minimum.

It is computed by the Lanczos method, at first with all vectors kept, then restarted (ARPACK).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, hessian_product
from gamp_attention.penalties.matrix import on_kinks


@dataclass(frozen=True)
class CurvatureSettings:
    """Settings of the eigenvalue computation; λ is the strength of the penalty."""

    rough: float = 0.02  # relative residual of the first answer; the error of the eigenvalue is its square
    fine: float = 1e-4  # relative residual required if the sign is not clear at the first answer
    clear: float = 0.05  # absolute value of the eigenvalue, in λ, above which the sign is clear
    flat: float = 1e-5  # eigenvalues above minus this value, in λ, count as zero
    shift: float = 0.1  # shift of the spectrum, in λ, because accuracy is relative and the eigenvalue may be zero
    random: float = 0.03  # norm of the random part of an initial vector near a known direction, which has norm 1
    small: int = 40  # largest number of weights for which all eigenvalues are computed
    least: int = 20  # minimum number of Hessian products before an answer is accepted
    vectors: int = 80  # maximum number of stored Lanczos vectors; then the restarted method is used
    restarts: int = 50  # maximum number of its restarts, of about twenty products each


CURVATURE = CurvatureSettings()


@dataclass(frozen=True)
class Curvature:
    """Lowest eigenvalue of ∇²R at Q, its eigenvector (d, r) of norm 1, and whether Q is a minimum.

    If the penalty has kinks, only weights that are not at a kink are varied; the eigenvalue is infinite if there
    are none.
    """

    lowest_eigenvalue: float
    direction: np.ndarray
    is_minimum: bool


def lowest_curvature(data: Dataset, at: RiskAtPoint, Q: np.ndarray, nearby: np.ndarray | None = None) -> Curvature:
    """Return the lowest curvature at a critical point Q (d, r), at which the risk is `at`.

    The initial vector is random, or near `nearby` (d, r), the direction of lowest curvature of a similar problem. If
    the risk is invariant under common rotations of the columns, the directions of the rotations count as zero
    curvature.
    """
    _, free, curvature = on_kinks(data.penalty, Q, at.smooth)
    kept, strength = np.flatnonzero(free), data.penalty.strength
    flat = rotations(data, Q)

    def expanded(x: np.ndarray) -> np.ndarray:
        P = np.zeros(Q.size)
        P[kept] = x
        return P.reshape(Q.shape)

    def product(x: np.ndarray) -> np.ndarray:
        """Return ∇²R x, with the eigenvalues of flat directions raised above zero."""
        P = expanded(x)
        along = np.tensordot(flat, P, 2)
        return (hessian_product(data, at, P, curvature) + strength * np.tensordot(along, flat, 1)).ravel()[kept]

    if not len(kept):
        return Curvature(np.inf, np.zeros(Q.shape), True)
    value, vector = _lowest_eigenpair(product, _initial_vector(kept, nearby), strength)
    # a nonzero gradient tilts the flat directions
    level = -max(CURVATURE.flat * strength, 10 * np.linalg.norm(at.gradient) / max(np.linalg.norm(Q), np.sqrt(Q.size)))
    return Curvature(min(value, 0.0) if len(flat) else value, expanded(vector), bool(value >= level))


def rotations(data: Dataset, Q: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (k, d, r) of common rotations of the columns of each part of Q that preserve R."""
    size = data.rank // data.student.parts
    moves = []
    if data.student.rotations and data.penalty.quadratic:
        for a, b in combinations(range(size), 2):
            generator = np.zeros((size, size))
            generator[a, b], generator[b, a] = 1.0, -1.0
            moves.append((Q @ np.kron(np.eye(data.student.parts), generator)).ravel())
    if not moves:
        return np.zeros((0, *Q.shape))
    _, norms, basis = np.linalg.svd(np.array(moves), full_matrices=False)
    return basis[norms > 1e-8 * np.sqrt(Q.size)].reshape(-1, *Q.shape)


def _initial_vector(kept: np.ndarray, nearby: np.ndarray | None) -> np.ndarray:
    """Return an initial vector with a random part, so that no eigenvector is orthogonal to it."""
    start = np.random.default_rng(0).standard_normal(len(kept))
    start /= np.linalg.norm(start)
    size = 0.0 if nearby is None else float(np.linalg.norm(nearby.ravel()[kept]))
    return start if nearby is None or not size > 0 else CURVATURE.random * start + nearby.ravel()[kept] / size


def _lowest_eigenpair(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, strength: float
) -> tuple[float, np.ndarray]:
    """Return the lowest eigenvalue and eigenvector of a symmetric operator, by iterations from a vector (n,)."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = len(start)
    if n <= CURVATURE.small:
        matrix = np.stack([product(unit) for unit in np.eye(n)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        return float(values[0]), vectors[:, 0]
    value, start, accurate = _lanczos(product, start, strength)
    if accurate:
        return value, start
    tol, shift = CURVATURE.rough, CURVATURE.shift * strength
    while True:
        operator = LinearOperator((n, n), matvec=lambda x: product(x) + shift * x, dtype=float)  # noqa: B023
        try:
            values, vectors = eigsh(operator, k=1, which="SA", tol=tol, v0=start, maxiter=CURVATURE.restarts)
        except ArpackNoConvergence:
            shift *= 3.0  # a larger shift makes the relative accuracy easier to reach
            continue
        value, start = float(values[0]) - shift, vectors[:, 0]
        if tol == CURVATURE.fine or abs(value) > CURVATURE.clear * strength:
            return value, start
        tol = CURVATURE.fine


def _lanczos(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, strength: float
) -> tuple[float, np.ndarray, bool]:
    """Return the lowest Ritz value and vector in a growing Krylov space, and whether they are accurate enough.

    All vectors are kept and orthogonalised, so no product is lost to a restart.
    """
    basis, shift = [start / np.linalg.norm(start)], CURVATURE.shift * strength
    diagonal, off_diagonal = list[float](), list[float]()
    while True:
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        vectors_so_far = np.array(basis)
        for _ in range(2):  # the second pass removes the rounding errors of the first
            image = image - vectors_so_far.T @ (vectors_so_far @ image)
        size, k = float(np.linalg.norm(image)), len(basis)
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(off_diagonal, 1) + np.diag(off_diagonal, -1))
        value, weights = float(values[0]), vectors[:, 0]
        tol = CURVATURE.rough if abs(value) > CURVATURE.clear * strength else CURVATURE.fine
        accurate = k >= CURVATURE.least and size * abs(weights[-1]) <= tol * abs(value + shift)
        exhausted = size <= np.finfo(float).eps * np.abs(values).max()  # the Krylov space is invariant
        if accurate or exhausted or k == min(CURVATURE.vectors, len(start)):
            return value, vectors_so_far.T @ weights, accurate or exhausted
        off_diagonal.append(size)
        basis.append(image / size)
