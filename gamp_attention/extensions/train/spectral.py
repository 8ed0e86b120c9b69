"""Spectral starts: weights from the lowest eigenvectors of Σ_μ X̃ᵀ h X̃; those of `spectral_starts` need no teacher.

Luo et al. (2019), Mondelli and Montanari (2019), Maillard et al. (2022). Each matrix h is computed from the loss of one
sample. There are three kinds:

- "fitted": h = (z zᵀ/κ + 1)⁻¹ minus its mean, where z = prox(0; v) are the fields that fit the sample best. If the loss
  is even, fields z and −z fit equally well, and therefore only z zᵀ enters;
- "hessian": h = ∇²ℓ(0), so that the sum is the Hessian of the risk at Q = 0;
- "posterior": h = (1 − K)(1 + b K)⁻¹ with K = E[u uᵀ | targets], the posterior second moments of the teacher's fields;
  the map of the teacher must be known.

If rotations of columns do not matter, eigenvectors have one column for each part (queries and keys), otherwise r.
"""

from itertools import combinations
from typing import Any

import numpy as np

from gamp_attention._tools.eigenpairs import extreme_eigenpairs
from gamp_attention._tools.numerics import raise_spectrum, symmetrize
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.newton import ROUGH_STEP
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.passes import TokenMatrix

EXTRA_VECTORS = 3  # number of eigenvectors of fitted weights in addition to the columns of one start
MIXING = 0.5  # factor of a second eigenvector, which is added to the first or subtracted from it
MAX_SPECTRAL = 6  # maximum number of spectral starts
DENSE = 60  # largest number of weights for which the matrix X̃ᵀ h X̃ is formed
EIGENVALUE_TOL = 1e-3  # relative accuracy of eigenvalues
MIN_BASIS = 24  # minimum number of vectors in a Lanczos iteration
MAX_RESTARTS = 300  # maximum number of restarts of the Lanczos iteration
REACH = 10.0  # v of fitted fields, in units of the inverse curvature at zero: fields are only weakly drawn to zero
NO_INFORMATION = 1e-9  # size of h below which it is rounding error: all samples contain the same information
PART = 0.1  # weight in the leading eigenmatrix above which a column is found first, relative to the largest
MIN_B = 16.0  # smallest b of posterior weights: larger b hardly increase overlaps and make eigenvalues harder to find
MAX_B = 200.0  # largest b of posterior weights
EXACT_FIELDS = 2  # maximum L r for which the global minimum is searched for; above, a local minimum near zero suffices
FEW_FIELDS = 12  # maximum L r for which each column is fitted; above, one column for each part suffices


def spectral_starts(data: Dataset, risk: str, k: int, random: np.random.Generator) -> list[np.ndarray]:
    """Return up to k spectral starts (d, r); there may be fewer, because they are made of few eigenvectors.

    Each start is scaled so that its fields have the norm of the fields that fit the samples one by one. If the loss is
    not even, the first start is X̃ᵀ times these fields.
    """
    size = data.rank // int(data.student.parts) if data.student.rotations else 1  # number of columns that mix
    columns, params, k = data.rank // size, data.terms(risk).params, min(k, MAX_SPECTRAL)
    z = fitted_fields(data.loss, params, data.n_tokens, data.rank, columns)
    by_part = z.reshape(len(z), data.n_tokens * columns, -1)
    h, n_vectors = weights_of_moments(by_part @ by_part.transpose(0, 2, 1)), size - 1 + EXTRA_VECTORS if k > 1 else size
    vectors = lowest_eigenvectors(data.matrix, h, columns, n_vectors, random)[1]
    starts = [_side_by_side(directions, size) for directions in _mixtures(vectors, size)]
    if not data.student.even:
        starts.insert(0, data.matrix.back_project(z))
    if k > 1:
        reduced = _of_rank(data.loss, columns)
        zero = np.zeros((len(params), data.n_tokens, reduced.rank))
        # the Hessians of the losses at zero fields, for the first of the columns that mix
        indices = np.arange(zero[0].size).reshape(data.n_tokens, columns, -1)[:, :, 0].ravel()
        h = sample_derivatives(reduced, params, zero)[2][:, indices[:, None], indices]
        flattest = lowest_eigenvectors(data.matrix, h, columns, size, random)[1]
        if len(flattest):
            starts.insert(1, _side_by_side(list(flattest), size))
    return [_scale_to_fields(data, Q, z) for Q in starts[:k]]


def lowest_eigenvectors(
    matrix: TokenMatrix, h: np.ndarray, columns: int, k: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k lowest eigenvalues (k,) and eigenvectors (k, d, c) of Σ_μ X̃ᵀ h X̃ for matrices h (n, L c, L c).

    Eq. :eq:`spectral`. Eigenvectors have norm 1, and their largest entry is positive. There are none if h is zero or
    not finite.
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

    limits = EIGENVALUE_TOL, MAX_RESTARTS, min(n, max(MIN_BASIS, 3 * k + 10)), max(DENSE, 2 * k)
    try:
        values, vectors = extreme_eigenpairs(product, k, "SA", start, *limits)
    except ArpackError:  # all products are zero
        return none
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(len(values))])
    return values, (signs * vectors).T.reshape(-1, *shape)


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


def _side_by_side(directions: list[np.ndarray], size: int) -> np.ndarray:
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


def fitted_fields(loss: Any, params: np.ndarray, L: int, rank: int, columns: int) -> np.ndarray:
    """Return the fields (n, L, c) that minimize ℓ(z) + ‖z‖²/(2v), with v above the inverse curvature at zero.

    c is r; for attention that is even and invariant under rotations, with many fields, c is the number of parts.
    """
    reduced = _of_rank(loss, columns)
    rank = rank if L * rank <= FEW_FIELDS or reduced.rank == rank else columns
    zero = np.zeros((len(params), L, reduced.rank))
    curvature = np.sqrt(np.mean(sample_derivatives(reduced, params, zero)[2] ** 2) * L * reduced.rank)
    v = REACH / max(curvature, np.finfo(float).tiny) if curvature > 0 else 1.0
    V, zero = np.tile(v * np.eye(rank), (L, 1, 1)), np.zeros((len(params), L, rank))
    starts = None if L * rank <= EXACT_FIELDS else 0
    return denoise(_of_rank(loss, rank), params, zero, V, max_starts=starts, last_step=ROUGH_STEP).z


def _of_rank(loss: Any, rank: int) -> Any:
    """Return the loss for `rank` columns if its Hessian at zero is equal for all columns, else the loss itself."""
    return loss._replace(rank=rank) if getattr(getattr(loss, "attention", None), "equal_columns", False) else loss


def weights_of_moments(K: np.ndarray) -> np.ndarray:
    """Return (K/κ + 1)⁻¹ minus its mean over the samples, for second moments K (n, L c, L c) of their fields.

    Eq. :eq:`fitted-weights`. κ is the mean of the diagonal of K.
    """
    scale = np.mean(np.trace(K, axis1=1, axis2=2)) / K.shape[1]
    h = np.linalg.inv((K / scale if scale > 0 else K) + np.eye(K.shape[1]))
    centered = h - h.mean(axis=0)
    return centered if np.abs(centered).max() > NO_INFORMATION else np.zeros_like(h)


def posterior_weights(K: np.ndarray, rho: np.ndarray, alpha: float) -> np.ndarray:
    """Return (1 − K)(1 + b K)⁻¹ for posterior second moments K of fields with prior covariances ρ (L, t, t).

    Eq. :eq:`posterior-weights`. Above the weak-recovery threshold α_w = 1/E‖K − 1‖², an eigenvalue leaves the bulk for
    b = κ/(1 − κ) with κ = √(α_w/α). Larger b give larger overlaps at larger α. K (n, L, L) are summed over the columns,
    or K has shape (n, L t, L t): then columns that are found at a larger α than others have weights zero, since they
    would only widen the spectrum.
    """
    (L, t, _), one = rho.shape, np.eye(K.shape[1])
    variances = np.trace(rho, axis1=1, axis2=2) if len(one) == L else np.diagonal(rho, axis1=1, axis2=2).ravel()
    size = 1 / np.sqrt(variances)
    K = raise_spectrum(size[:, None] * K * size)  # estimates from few points may have negative eigenvalues
    if len(one) > L:
        first = np.tile(first_columns(K, t), L)
        K = np.where(first[:, None] & first, K, one)
    information = float(np.mean(np.sum((K - one) ** 2, axis=(1, 2))))
    if np.sqrt(information) <= NO_INFORMATION:
        return np.zeros_like(K)
    kappa = 1 / np.sqrt(alpha * information)
    b = float(np.clip(kappa / (1 - kappa) if kappa < 1 else np.inf, MIN_B, MAX_B))
    return symmetrize(size[:, None] * np.linalg.solve(one + b * K, one - K) * size)


def first_columns(K: np.ndarray, t: int) -> np.ndarray:
    """Return the columns (t,) that are found first, for moments K (n, L t, L t) in units of the prior.

    A small overlap M (t, t) of all tokens grows by the map M ↦ Σ_lm E[G_lm M G_lmᵀ] with G = K − 1, whose leading
    eigenmatrix has the columns that appear at the smallest α.
    """
    G = (K - np.eye(K.shape[1])).reshape(len(K), -1, t, K.shape[1] // t, t)
    growth = np.einsum("nlamc,nlbmd->abcd", G, G, optimize=True).reshape(t * t, t * t)
    values, vectors = np.linalg.eig(growth)
    weight = np.abs(np.diagonal(np.real(vectors[:, np.argmax(np.real(values))]).reshape(t, t)))
    return np.asarray(weight > PART * weight.max())
