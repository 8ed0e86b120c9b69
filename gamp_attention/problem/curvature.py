"""Hessian of the risk: its lowest eigenvalue at a critical point, and risks without a minimum.

**Weights that grow without bound.** A risk may fall for ever along a ray of unpenalized weights. Examples are classes
that a plane separates, for λ = 0, or labels that are all equal, for an intercept. The losses and their gradients vanish
along the ray, so that a run reaches any tolerance at some finite weights, as if it converged.

The test is Newton's method, which does not depend on the units of tokens, weights and losses. It predicts the fall of
the risk in each step, −∇R·P for a step P. Near a minimum, this number soon falls to rounding errors, because Newton's
method converges quadratically. Along a ray it falls only by a factor of e in each step if losses decay as exp(−t), and
by (1 + 1/(k + 1))^k < e if they decay as t^−k. Only the weights without a penalty are varied, because all others are
constant along a ray. If the risk is convex, Newton's method begins at zero, because weights at the end of a run may be
so large that only rounding errors remain of the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.eigenpairs import lowest_eigenpair
from gamp_attention._tools.numerics import guard_call, one_thread, over_panels, symmetrize
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import column_classes, unpenalized
from gamp_attention.problem.risk import RiskAtPoint, hessian_product, is_convex, on_kinks, risk_at, solve_hessian

BLOCK = 1024  # number of samples in a block of a pass over the tokens
FLAT = 1e-5  # eigenvalues above minus this value, in units of the strength of the penalty, count as zero
DENSE = 512  # maximum number of weights for which the Hessian is computed as a matrix
RANDOM = 0.03  # norm of the random part of an initial vector near a known direction, which has norm 1
MAX_STEPS = 100  # maximum number of Newton steps in the test for weights that grow without bound
TAIL = 5  # number of steps in a row that are compared
SMALL = 1e-10  # predicted fall of the risk, in units of the losses at the start, below which steps are compared
SLOW = 0.3  # mean ratio of the predicted falls of a step and the previous step, above which there is no minimum
SHORTEST = 1e-6  # length of a step, in units of the fields, below which Newton's method has converged
NEARER = 0.9  # factor of weights at which the gradient is rounded to zero
HALVINGS = 30  # maximum number of times that a step is halved
DENSE_STEP = 2000  # maximum number of weights for which the Hessian is computed as a matrix, if it is not singular
RESIDUAL = 1e-10  # relative residual of the linear solver for more weights
SINGULAR = 1e-13  # eigenvalue of the Hessian, for columns of equal sizes, that counts as zero


class Curvature(NamedTuple):
    """Lowest eigenvalue of ∇²R at Q over all weights that are not at a kink of the penalty; infinite without any."""

    lowest_eigenvalue: float
    lowest_eigenvalue_error: float  # norm of the residual of the eigenvector
    direction: np.ndarray | None  # (d, r) eigenvector of norm 1; None if it was not computed
    is_minimum: bool


def lowest_curvature(data: Dataset, at: RiskAtPoint, Q: np.ndarray, nearby: np.ndarray | None = None) -> Curvature:
    """Return the lowest curvature at a critical point Q (d, r), at which the risk is `at`.

    The initial vector is random, or near `nearby` (d, r), the direction of lowest curvature of a similar problem. The
    eigenvalue of directions of common rotations of the columns, under which the risk is invariant, is zero.
    """
    from scipy.linalg import eigh

    _, free, curvature = on_kinks(data.penalty, Q, at.smooth)
    movable, strength = np.flatnonzero(free), data.penalty.strength
    flat = rotations(data, Q)

    def expand(x: np.ndarray) -> np.ndarray:
        P = np.zeros(Q.size)
        P[movable] = x
        return P.reshape(Q.shape)

    def product(x: np.ndarray, flat: np.ndarray = flat) -> np.ndarray:
        """Return ∇²R x, with the eigenvalues of flat directions raised above zero."""
        P = expand(x)
        along = np.tensordot(flat, P, 2)
        return (hessian_product(data, at, P, curvature) + strength * np.tensordot(along, flat, 1)).ravel()[movable]

    if not len(movable):
        return Curvature(np.inf, 0.0, np.zeros(Q.shape), True)
    if len(movable) <= DENSE:
        # for few weights, the whole matrix takes less time than the products with vectors of the Lanczos method
        by_column = free.T > 0
        H, directions = data_hessian(data, at.hessians, by_column.T), flat.swapaxes(1, 2)[:, by_column]
        H[np.diag_indices(len(H))] += curvature.T[by_column]
        H += strength * directions.T @ directions
        with one_thread():
            values, vectors = eigh(H, subset_by_index=[0, 0], overwrite_a=True, check_finite=False)
        lowest = np.zeros(Q.shape)
        lowest.T[by_column] = vectors[:, 0]
        value, vector = float(values[0]), lowest.ravel()[movable]
    else:
        start = np.random.default_rng(0).standard_normal(len(movable))  # so that no eigenvector is orthogonal to it
        start /= np.linalg.norm(start)
        known = np.zeros(len(movable)) if nearby is None else nearby.ravel()[movable]
        if (size := float(np.linalg.norm(known))) > 0:
            start = RANDOM * start + known / size
        value, vector = lowest_eigenpair(product, start, strength)
    # a nonzero gradient tilts the flat directions
    level = -max(FLAT * strength, 10 * np.linalg.norm(at.gradient) / max(np.linalg.norm(Q), np.sqrt(Q.size)))
    is_minimum = bool(value >= level)
    if len(flat) and value > 0:
        value, vector = 0.0, flat[0].ravel()[movable]
    error = float(np.linalg.norm(product(vector, flat[:0]) - value * vector))
    return Curvature(value, error, expand(vector), is_minimum)


def rotations(data: Dataset, Q: np.ndarray) -> np.ndarray:
    """Return orthonormal directions (k, d, r) of common rotations of the columns of each part of Q that preserve R."""
    moves = []
    for columns in column_classes(data.penalty, data.student, data.rank):
        for a, b in combinations(range(columns.shape[1]), 2):
            move = np.zeros_like(Q)
            move[:, columns[:, a]], move[:, columns[:, b]] = -Q[:, columns[:, b]], Q[:, columns[:, a]]
            moves.append(move.ravel())
    if not moves:
        return np.zeros((0, *Q.shape))
    with one_thread():
        _, norms, basis = np.linalg.svd(np.array(moves), full_matrices=False)
    return basis[norms > 1e-8 * np.sqrt(Q.size)].reshape(-1, *Q.shape)


def data_hessian(data: Dataset, hessians: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return X̃ᵀ ∇²ℓ X̃ (k, k) of the weights that are True in `free` (d, r), ordered column after column of Q.

    `hessians` (n, L r, L r) are the Hessians of the losses in the fields.
    """
    r = free.shape[1]
    edges = np.cumsum([0, *free.sum(axis=0)])
    H = np.zeros((edges[-1], edges[-1]))
    if hessians.shape[1] == 1 and float(hessians.min()) >= 0:
        with one_thread():
            for rows, x in scaled_blocks(data):  # the product of a matrix with its transpose takes half the time
                flat = x.reshape(-1, x.shape[2])
                rooted = np.sqrt(hessians[rows, 0]) * (flat if free.all() else flat[:, free[:, 0]])
                H += rooted.T @ rooted
        return H
    D = hessians.reshape(len(hessians), -1, r, hessians.shape[1] // r, r)
    coupled = [(a, b) for a in range(r) for b in range(a, r) if D[:, :, a, :, b].any()]
    for rows, x in scaled_blocks(data):
        flat = x.reshape(-1, x.shape[2])
        columns = [flat if part.all() else flat[:, part] for part in free.T]
        for a, b in coupled:
            d, second = D[rows, :, a, :, b], columns[b].reshape(*x.shape[:2], -1)
            weighted = (d * second if x.shape[1] == 1 else d @ second).reshape(len(flat), -1)
            part = deterministic_product(columns[a].T, weighted)
            H[edges[a] : edges[a + 1], edges[b] : edges[b + 1]] += part
            if a != b:
                H[edges[b] : edges[b + 1], edges[a] : edges[a + 1]] += part.T
    return symmetrize(H)


def scaled_blocks(data: Dataset) -> Iterator[tuple[slice, np.ndarray]]:
    """Return rows and (x + p)/√d of blocks of samples, in order."""
    for first in range(0, data.n_samples, BLOCK):
        rows = slice(first, min(first + BLOCK, data.n_samples))
        yield rows, data.matrix.rows_of(rows)


@guard_call
def grows_without_bound(data: Dataset, Q: np.ndarray, risk: str) -> bool:
    """Return whether the risk falls along a ray of the weights without a penalty, such that it has no minimum.

    `Q` (d, r) are the weights at the end of a run. If the risk is not convex, Newton's method begins there.
    """
    free, convex = unpenalized(data.penalty, Q), is_convex(data)
    if not free.any():
        return False
    Q = np.where(free, 0.0, Q) if convex else Q
    at = risk_at(data, Q, risk)
    for _ in range(HALVINGS):
        if convex or at.smooth[free].any():
            break
        Q = np.where(free, NEARER * Q, Q)  # all losses were rounded to a constant
        at = risk_at(data, Q, risk)
    small = SMALL * float(np.abs(at.losses).sum()) if convex else np.inf
    falls = list[float]()
    for _ in range(MAX_STEPS):
        if not (np.isfinite(at.train_loss) and np.isfinite(at.hessians).all()):
            return False
        step = _newton_step(data, at, free)
        fall = -float(np.sum(at.smooth * step))
        falls = [*falls, fall] if fall <= small else []
        if len(falls) > TAIL:
            return bool(falls[-1] > SLOW**TAIL * falls[0] and max(np.diff(falls)) < 0)
        for t in 0.5 ** np.arange(HALVINGS):
            there = risk_at(data, Q + t * step, risk)
            if there.train_loss < at.train_loss or np.sum(there.smooth * step) <= 0:
                break
        else:
            return False
        if not np.linalg.norm(there.z - at.z) > SHORTEST * np.linalg.norm(there.z):
            return False
        Q, at = Q + t * step, there
    return False


def _newton_step(data: Dataset, at: RiskAtPoint, free: np.ndarray) -> np.ndarray:
    """Return the Newton step (d, r) of the free weights; directions without curvature are not moved."""
    from scipy.linalg import eigh

    places, step = np.flatnonzero(free.T), np.zeros(free.size)
    if len(places) > min(DENSE_STEP, data.n_samples * data.n_tokens * data.rank):
        x, solved = solve_hessian(data, at, -at.smooth, free, 0.0, RESIDUAL)
        return x if solved else np.zeros(free.shape)
    H = data_hessian(data, at.hessians, free)
    units = np.sqrt(np.abs(np.diag(H)))
    units = np.divide(1.0, units, out=np.zeros(len(H)), where=units > 0)
    with one_thread():
        values, vectors = eigh(H * np.outer(units, units), check_finite=False)
        sizes = np.abs(values)
        inverse = np.where(sizes > SINGULAR * sizes.max(), 1 / np.where(sizes > 0, sizes, 1.0), 0.0)
        step[places] = -units * (vectors @ (inverse * (vectors.T @ (units * at.smooth.T.ravel()[places]))))
    return step.reshape(free.T.shape).T


def deterministic_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a @ b, computed in panels: identical to the last bit for any number of threads."""
    out = np.empty((a.shape[0], b.shape[1]))

    def work(columns: slice) -> None:
        out[:, columns] = a @ b[:, columns]

    over_panels(work, b.shape[1])
    return out
