"""Whether a critical point of the risk is a minimum: the lowest eigenvalue of the Hessian, by Lanczos iterations."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, hessian_product
from gamp_attention.penalties.matrix import on_kinks


@dataclass(frozen=True)
class CurvatureSettings:
    """How far the eigenvalue is computed, λ being the strength of the penalty."""

    rough: float = 0.02  # residual of the first answer, relative: its error is the square of that
    fine: float = 1e-4  # the same where the sign is not clear yet
    clear: float = 0.05  # distance from zero, in λ, at which the sign is clear
    flat: float = 1e-5  # eigenvalues not further below zero, in λ, are no way down
    shift: float = 0.1  # of the spectrum, in λ, as the accuracy is relative and zero is among the answers
    random: float = 0.03  # size of the random part of a start near a known direction
    small: int = 40  # up to so many weights all eigenvalues are computed
    least: int = 20  # products before an answer is looked at
    vectors: int = 80  # of the Lanczos iterations, which then begin again
    restarts: int = 50  # of those, twenty products each


CURVATURE = CurvatureSettings()


@dataclass(frozen=True)
class Curvature:
    """The lowest eigenvalue of ∇²R at Q, its eigenvector (d, r), of norm 1, and whether Q is a minimum.

    With penalties that have kinks, among the weights that are free to move; infinite where there is none.
    """

    lowest_eigenvalue: float
    direction: np.ndarray
    is_minimum: bool


def lowest_curvature(data: Dataset, at: RiskAtPoint, Q: np.ndarray, nearby: np.ndarray | None = None) -> Curvature:
    """The curvature at a critical point Q (d, r), the risk there being `at`.

    Lanczos iterations begin at random, or near the direction (d, r) of lowest curvature of a problem nearby. Where a
    common rotation of the columns changes nothing, its directions are flat: they count as zero.
    """
    _, free, curvature = on_kinks(data.penalty, Q, at.smooth)
    kept, strength = np.flatnonzero(free), data.penalty.strength
    flat = rotations(data, Q)

    def expanded(x: np.ndarray) -> np.ndarray:
        P = np.zeros(Q.size)
        P[kept] = x
        return P.reshape(Q.shape)

    def product(x: np.ndarray) -> np.ndarray:
        """∇²R x, with flat directions raised above zero."""
        P = expanded(x)
        along = np.tensordot(flat, P, 2)
        return (hessian_product(data, at, P, curvature) + strength * np.tensordot(along, flat, 1)).ravel()[kept]

    if not len(kept):
        return Curvature(np.inf, np.zeros(Q.shape), True)
    value, vector = _lowest(product, _first(kept, nearby), strength)
    # the gradient that is left tilts flat directions
    level = -max(CURVATURE.flat * strength, 10 * np.linalg.norm(at.gradient) / max(np.linalg.norm(Q), np.sqrt(Q.size)))
    return Curvature(min(value, 0.0) if len(flat) else value, expanded(vector), bool(value >= level))


def rotations(data: Dataset, Q: np.ndarray) -> np.ndarray:
    """Orthonormal directions (k, d, r) of the common rotations of the columns of each part of Q, where R has them."""
    size = data.rank // data.student.parts
    moves = []
    if data.student.rotations and data.penalty.quadratic:
        for a, b in combinations(range(size), 2):
            turn = np.zeros((size, size))
            turn[a, b], turn[b, a] = 1.0, -1.0
            moves.append((Q @ np.kron(np.eye(data.student.parts), turn)).ravel())
    if not moves:
        return np.zeros((0, *Q.shape))
    _, norms, basis = np.linalg.svd(np.array(moves), full_matrices=False)
    return basis[norms > 1e-8 * np.sqrt(Q.size)].reshape(-1, *Q.shape)


def _first(kept: np.ndarray, nearby: np.ndarray | None) -> np.ndarray:
    """Where Lanczos iterations begin: with a part in all directions, which none that is lower can escape."""
    start = np.random.default_rng(0).standard_normal(len(kept))
    start /= np.linalg.norm(start)
    size = 0.0 if nearby is None else float(np.linalg.norm(nearby.ravel()[kept]))
    return start if nearby is None or not size > 0 else CURVATURE.random * start + nearby.ravel()[kept] / size


def _lowest(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, strength: float
) -> tuple[float, np.ndarray]:
    """The lowest eigenvalue and eigenvector of a symmetric operator, by iterations from a vector (n,)."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    n = len(start)
    if n <= CURVATURE.small:
        matrix = np.stack([product(unit) for unit in np.eye(n)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        return float(values[0]), vectors[:, 0]
    value, start, found = _lanczos(product, start, strength)
    if found:
        return value, start
    tol, shift = CURVATURE.rough, CURVATURE.shift * strength
    while True:
        operator = LinearOperator((n, n), matvec=lambda x: product(x) + shift * x, dtype=float)  # noqa: B023
        try:
            values, vectors = eigsh(operator, k=1, which="SA", tol=tol, v0=start, maxiter=CURVATURE.restarts)
        except ArpackNoConvergence:
            shift *= 3.0  # asks for less
            continue
        value, start = float(values[0]) - shift, vectors[:, 0]
        if tol == CURVATURE.fine or abs(value) > CURVATURE.clear * strength:
            return value, start
        tol = CURVATURE.fine


def _lanczos(
    product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, strength: float
) -> tuple[float, np.ndarray, bool]:
    """The lowest Ritz value and vector in a Krylov space that grows, and whether it is accurate enough.

    All vectors are kept and orthogonalised, so no product is lost to a restart.
    """
    basis, shift = [start / np.linalg.norm(start)], CURVATURE.shift * strength
    diagonal, beside = list[float](), list[float]()
    while True:
        image = product(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        known = np.array(basis)
        for _ in range(2):
            image = image - known.T @ (known @ image)
        size, k = float(np.linalg.norm(image)), len(basis)
        values, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1))
        value, weights = float(values[0]), vectors[:, 0]
        tol = CURVATURE.rough if abs(value) > CURVATURE.clear * strength else CURVATURE.fine
        accurate = k >= CURVATURE.least and size * abs(weights[-1]) <= tol * abs(value + shift)
        whole = size <= np.finfo(float).eps * np.abs(values).max()  # the space does not grow any more
        if accurate or whole or k == min(CURVATURE.vectors, len(start)):
            return value, known.T @ weights, accurate or whole
        beside.append(size)
        basis.append(image / size)
