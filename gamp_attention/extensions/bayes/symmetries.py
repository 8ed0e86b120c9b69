"""Symmetries of the posterior, which averages over random points do not have exactly.

An orthogonal matrix O (t, t) is a symmetry of the columns if targets are the same for the fields u and u O, and if the
prior of the columns does not change. State evolution then maps covariances with O S Oᵀ = S to such covariances. There
may be infinitely many symmetries, for example all rotations for targets u_1·u_2. Rotations are exponentials of
antisymmetric matrices A with Σ ∂y/∂u_la (u A)_la = 0, a linear system. Finite symmetries are searched among exchanges
of columns with changes of signs.

A small overlap δq near a fixed point without overlap becomes Σ_m E[G_lm δq_m G_lmᵀ] (`bayes.equations`). This map
preserves positive semidefinite matrices, so that its largest eigenvalue has a positive semidefinite eigenmatrix (Krein
and Rutman, 1948), whose average over the symmetries is another: it suffices to search among matrices that do not
change. Without this restriction the eigenvalue can be degenerate, as for targets u_1·u_2. Random errors then select an
arbitrary combination of columns, and the largest of several random eigenvalues is too large.
"""

from functools import lru_cache
from itertools import combinations, permutations, product
from typing import Any

import numpy as np

from gamp_attention.extensions.sequence.sequence_labels import N_SYMMETRY, SequenceLabels, are_equal
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.model import Model

ALL_ORDERS = 4  # number of columns up to which all orders with all signs are tested
STEP = 1e-5  # angle of difference quotients
ROTATION_ERROR = 1e-7  # relative change of targets up to which a rotation by one radian is a symmetry
NO_SLOPE = 1e-12  # eigenvalue, relative to the largest, up to which a squared derivative counts as zero
SAME_MATRIX = 1e-8  # relative difference of matrices up to which they count as equal


def find_column_symmetries(model: Model, channel: Any) -> np.ndarray:
    """Return orthogonal matrices O (n, t, t), with the identity, of which each is a symmetry of the columns.

    A matrix that commutes with all of them commutes with all symmetries of the search: rotations, exchanges of columns,
    and changes of signs. For more than `ALL_ORDERS` columns, only exchanges of one pair of columns are tested. Averages
    over labels of generalized linear models have exact symmetries, for which the identity is returned.
    """
    from scipy.linalg import expm

    law, L, t = model.coordinates, model.n_tokens, model.teacher_rank
    if t == 1 or not channel.is_function:
        return np.eye(t)[None]
    generators, labels = _antisymmetric(t), channel.labels
    exchanges, slopes = _symmetries_of_targets(labels, L, t)
    kept = [O for O in exchanges if _keeps_prior(O, law)]
    rows = [np.concatenate([(A @ law.teacher_cov - law.teacher_cov @ A).ravel(), (law.teacher_mean @ A).ravel()])
            for A in generators]  # fmt: skip
    values, vectors = np.linalg.eigh(slopes + np.array(rows) @ np.array(rows).T)
    for value, weights in zip(values, vectors.T, strict=True):
        if value <= NO_SLOPE * max(values[-1], 1.0):
            rotation = np.asarray(expm(np.einsum("k,kab->ab", weights, generators)))
            if _keeps_targets(labels, L, rotation, ROTATION_ERROR) and _keeps_prior(rotation, law):
                kept.append(rotation)
    return np.array(kept)


def invariant_projector(symmetries: np.ndarray) -> np.ndarray:
    """Return the projector (t, t, t, t) on matrices S = Sᵀ with O S Oᵀ = S for all symmetries O (n, t, t)."""
    t = symmetries.shape[1]
    one = np.eye(t * t)
    conditions = [np.kron(O, O) - one for O in symmetries]
    conditions.append(one.reshape(t, t, t, t).swapaxes(2, 3).reshape(t * t, t * t) - one)
    values, vectors = np.linalg.eigh(sum(condition.T @ condition for condition in conditions))
    basis = vectors[:, values < SAME_MATRIX]
    return np.asarray((basis @ basis.T).reshape(t, t, t, t))


def restrict_symmetries(symmetries: np.ndarray, known: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the symmetries that do not change the covariances `known` (L, t, t), restricted to `columns` (k,).

    The other columns are known, so that these symmetries do not combine both sets of columns.
    """
    changed = np.einsum("nab,lbc,ndc->nlad", symmetries, known, symmetries)
    differences = np.abs(changed - known).max(axis=(1, 2, 3))
    kept = symmetries[differences <= SAME_MATRIX * max(float(np.abs(known).max()), 1e-300)]
    return np.asarray(kept[:, columns[:, None], columns])


@lru_cache(maxsize=16)
def _symmetries_of_targets(labels: SequenceLabels, L: int, t: int) -> tuple[np.ndarray, np.ndarray]:
    """Return exchanges of columns (n, t, t) that keep targets, and products (K, K) of derivatives along rotations."""
    exchanges = np.array([O for O in _exchanges(t) if _keeps_targets(labels, L, O)])
    u, noise = _random_arguments(labels, L, t)
    derivatives = []
    for A in _antisymmetric(t):
        ahead, back = (labels(u + sign * STEP * (u @ A), noise) for sign in (1, -1))
        derivatives.append((ahead - back).ravel() / (2 * STEP))
    rows = np.array(derivatives)
    if not np.isfinite(rows).all():
        return exchanges, np.eye(len(rows))
    return exchanges, rows @ rows.T / max(float(np.abs(labels(u, noise)).max()) ** 2, 1e-300)


def _exchanges(t: int) -> list[np.ndarray]:
    """Return the matrices (t, t) of the tested exchanges of columns and changes of signs, with the identity."""
    moved = t if t <= ALL_ORDERS else 2  # largest number of columns that are not at their index
    orders = [order for order in permutations(range(t)) if sum(a != k for k, a in enumerate(order)) <= moved]
    return [np.eye(t)[list(order)] * signs for order in orders for signs in product((1.0, -1.0), repeat=t)]


def _antisymmetric(t: int) -> np.ndarray:
    """Return a basis (t (t − 1)/2, t, t) of the antisymmetric matrices."""
    return np.array([np.outer(*np.eye(t)[[a, b]]) - np.outer(*np.eye(t)[[b, a]]) for a, b in combinations(range(t), 2)])


def _random_arguments(labels: SequenceLabels, L: int, t: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    return rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, labels.count))


def _keeps_targets(labels: SequenceLabels, L: int, O: np.ndarray, error: float | None = None) -> bool:
    """Return whether targets are the same for fields u and u O, up to a relative `error`, by default rounding.

    Without `error`, the noise may change its sign.
    """
    u, noise = _random_arguments(labels, L, len(O))
    before, after = labels(u, noise), labels(u @ O, noise)
    if error is not None:
        return bool(np.abs(after - before).max() <= error * (1 + np.abs(before).max()))
    return are_equal(before, after) or (labels.count > 0 and are_equal(before, labels(u @ O, -noise)))


def _keeps_prior(O: np.ndarray, law: CoordinateLaw) -> bool:
    """Return whether the prior of the columns in all classes of coordinates is the same after multiplication by O."""
    cov, mean = law.teacher_cov, law.teacher_mean
    return bool(np.allclose(O.T @ cov @ O, cov, rtol=0, atol=SAME_MATRIX * np.abs(cov).max())
                and np.allclose(mean @ O, mean, rtol=0, atol=SAME_MATRIX))  # fmt: skip
