"""Hessian of the risk, and its lowest eigenvalue at a critical point, which decides about a minimum."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.eigenpairs import lowest_eigenpair
from gamp_attention._tools.numerics import deterministic_product, one_thread, symmetrize
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import column_classes, on_kinks
from gamp_attention.problem.risk import RiskAtPoint, hessian_product

BLOCK = 1024  # number of samples in a block of a pass over the tokens
FLAT = 1e-5  # eigenvalues above minus this value, in units of the strength of the penalty, count as zero
DENSE = 512  # maximum number of weights for which the Hessian is computed as a matrix
RANDOM = 0.03  # norm of the random part of an initial vector near a known direction, which has norm 1


class Curvature(NamedTuple):
    """Lowest eigenvalue of ∇²R at Q over all weights that are not at a kink of the penalty; infinite without any."""

    lowest_eigenvalue: float
    lowest_eigenvalue_error: float  # norm of the residual of the eigenvector
    direction: np.ndarray  # (d, r) eigenvector of norm 1
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
        rows = tuple(np.flatnonzero(column) for column in free.T)
        places = np.concatenate([part * free.shape[1] + a for a, part in enumerate(rows)])  # in the order of the matrix
        H = data_hessian(scaled_blocks(data), at.hessians, rows)
        H[np.diag_indices(len(H))] += curvature.ravel()[places]
        directions = flat.reshape(len(flat), free.size)[:, places]
        H += strength * directions.T @ directions
        with one_thread():
            values, vectors = eigh(H, subset_by_index=[0, 0], overwrite_a=True, check_finite=False)
        value, vector = float(values[0]), vectors[np.argsort(places), 0]
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


def data_hessian(
    blocks: Iterable[tuple[slice, np.ndarray]], hessians: np.ndarray, free: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Return X̃ᵀ ∇²ℓ X̃ (k, k) of the free weights, which are ordered column after column of Q.

    `blocks` are returned by `scaled_blocks`, `hessians` (n, L r, L r) are the Hessians of the losses in the fields, and
    `free` has the indices of the free weights in each column of Q.
    """
    r = len(free)
    edges = np.cumsum([0, *map(len, free)])
    H = np.zeros((edges[-1], edges[-1]))
    if hessians.shape[1] == 1 and float(hessians.min()) >= 0:
        with one_thread():
            for rows, x in blocks:  # the product of a matrix with its transpose takes half the time
                flat = x.reshape(-1, x.shape[2])
                rooted = np.sqrt(hessians[rows, 0]) * (flat if len(H) == flat.shape[1] else flat[:, free[0]])
                H += rooted.T @ rooted
        return H
    D = hessians.reshape(len(hessians), -1, r, hessians.shape[1] // r, r)
    coupled = [(a, b) for a in range(r) for b in range(a, r) if D[:, :, a, :, b].any()]
    for rows, x in blocks:
        flat = x.reshape(-1, x.shape[2])
        columns = [flat if len(part) == flat.shape[1] else flat[:, part] for part in free]
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
        part = data.tokens[first : first + BLOCK]
        yield slice(first, first + len(part)), (part + data.positions) / np.sqrt(data.dim)
