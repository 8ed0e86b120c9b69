"""Weight matrices h^μ of the samples for spectral starts, each computed from the loss of one sample.

A spectral start takes the eigenvectors of X̃ᵀ h X̃, summed over the samples, with the lowest eigenvalues (Luo et al.,
2019; Mondelli and Montanari, 2019; Maillard et al., 2022). There are three kinds of weights:

- "fitted": h = (z zᵀ/κ + 1)⁻¹ minus its mean, where z = prox(0; v) are the fields that fit the sample best;
- "hessian": h = ∇²ℓ(0), so that the sum is the Hessian of the risk at Q = 0;
- "posterior": h = (1 − K)(1 + b K)⁻¹ with K = E[u uᵀ | targets], the posterior second moments of the teacher's fields;
  the map of the teacher must be known.

If the loss is even, fields z and −z fit equally well. Therefore only z zᵀ enters h.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools.numerics import project_psd, symmetrize
from gamp_attention.problem.denoisers.newton import ROUGH_STEP
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives

REACH = 10.0  # v of fitted fields, in units of the inverse curvature at zero: fields are only weakly drawn to zero
BLUR = 1.0  # matrix added to z zᵀ/κ, whose diagonal has mean 1, in units of the identity
NO_INFORMATION = 1e-9  # size of h below which it is rounding error: all samples contain the same information
PART = 0.1  # weight in the leading eigenmatrix above which a column is found first, relative to the largest
MIN_B = 16.0  # smallest b of posterior weights: larger b hardly increase overlaps and make eigenvalues harder to find
MAX_B = 200.0  # largest b of posterior weights
EXACT_FIELDS = 2  # maximum L r for which the global minimum is searched for; above, a local minimum near zero suffices
FEW_FIELDS = 12  # maximum L r for which each column is fitted; above, one column for each part suffices


@dataclass(frozen=True)
class Shape:
    """Shape of the fields of a sample. If rotations of columns do not matter, one column for each part is enough."""

    n_tokens: int
    rank: int
    parts: int
    rotations: bool

    @classmethod
    def of(cls, student: Any, n_tokens: int, rank: int) -> "Shape":
        """Return the shape of the fields of a student, which is an attention map or a loss."""
        return cls(n_tokens, rank, int(student.parts), bool(student.rotations))

    @property
    def size(self) -> int:
        """Number of columns that a rotation mixes."""
        return self.rank // self.parts if self.rotations else 1

    @property
    def columns(self) -> int:
        """Number c of columns of an eigenvector."""
        return self.rank // self.size


def fitted_fields(loss: Any, params: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the fields (n, L, c) that minimize ℓ(z) + ‖z‖²/(2v), with v above the inverse curvature at zero.

    c is r; for attention that is even and invariant under rotations, with many fields, c is the number of parts.
    """
    n, L = len(params), shape.n_tokens
    reduced = _of_rank(loss, shape.columns)
    rank = shape.rank if L * shape.rank <= FEW_FIELDS or reduced.rank == shape.rank else shape.columns
    flat = sample_derivatives(reduced, params, np.zeros((n, L, reduced.rank)))[2]
    curvature = np.sqrt(np.mean(flat**2) * L * reduced.rank)
    v = REACH / max(curvature, np.finfo(float).tiny) if curvature > 0 else 1.0
    V, k = np.tile(v * np.eye(rank), (L, 1, 1)), L * rank
    starts = None if k <= EXACT_FIELDS else 0
    return denoise(_of_rank(loss, rank), params, np.zeros((n, L, rank)), V, max_starts=starts, last_step=ROUGH_STEP).z


def _of_rank(loss: Any, rank: int) -> Any:
    """Return the loss for `rank` columns if its Hessian at zero is equal for all columns, else the loss itself."""
    return loss._replace(rank=rank) if getattr(getattr(loss, "attention", None), "equal_columns", False) else loss


def second_moments(z: np.ndarray, shape: Shape) -> np.ndarray:
    """Return z zᵀ (n, L c, L c), summed over columns that a rotation mixes."""
    n, L, _ = z.shape
    by_part = z.reshape(n, L * shape.columns, -1)
    return by_part @ by_part.transpose(0, 2, 1)


def weights_of_moments(K: np.ndarray) -> np.ndarray:
    """Return (K/κ + 1)⁻¹ minus its mean over the samples, for second moments K (n, L c, L c) of their fields.

    Eq. :eq:`fitted-weights`. κ is the mean of the diagonal of K.
    """
    scale = np.mean(np.trace(K, axis1=1, axis2=2)) / K.shape[1]
    h = np.linalg.inv((K / scale if scale > 0 else K) + BLUR * np.eye(K.shape[1]))
    centered = h - h.mean(axis=0)
    return centered if np.abs(centered).max() > NO_INFORMATION else np.zeros_like(h)


def posterior_weights(K: np.ndarray, rho: np.ndarray, alpha: float) -> np.ndarray:
    """Return (1 − K)(1 + b K)⁻¹ for posterior second moments K of fields with prior covariances ρ (L, t, t).

    Eq. :eq:`posterior-weights`. Above the weak-recovery threshold α_w = 1/E‖K − 1‖², an eigenvalue leaves the bulk for
    b = κ/(1 − κ) with κ = √(α_w/α). Larger b give larger overlaps at larger α.

    Parameters
    ----------
    K : (n, L, L) moments summed over the columns, or (n, L t, L t). In the second case columns that are found at a
        larger α than others have weights zero, since they would only widen the spectrum.
    rho, alpha : prior covariances of the fields, and sample complexity.
    """
    (L, t, _), one = rho.shape, np.eye(K.shape[1])
    variances = np.trace(rho, axis1=1, axis2=2) if len(one) == L else np.diagonal(rho, axis1=1, axis2=2).ravel()
    size = 1 / np.sqrt(variances)
    K = project_psd(size[:, None] * K * size)  # estimates from few points may have negative eigenvalues
    if len(one) > L:
        first = np.tile(first_columns(K, t), L)
        K = np.where(first[:, None] & first, K, one)
    information = float(np.mean(np.sum((K - one) ** 2, axis=(1, 2))))
    if np.sqrt(information) <= NO_INFORMATION:
        return np.zeros_like(K)
    kappa = 1 / np.sqrt(alpha * information)
    at_threshold = kappa / (1 - kappa) if kappa < 1 else np.inf
    b = float(np.clip(at_threshold, MIN_B, MAX_B))
    h = size[:, None] * np.linalg.solve(one + b * K, one - K) * size
    return symmetrize(h)


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


def spectral_weights(kind: str, loss: Any, params: np.ndarray, shape: Shape) -> np.ndarray:
    """Return matrices h (n, L c, L c) of the samples; `kind` is "fitted" or "hessian"."""
    if kind == "hessian":
        reduced, n, L = _of_rank(loss, shape.columns), len(params), shape.n_tokens
        full = sample_derivatives(reduced, params, np.zeros((n, L, reduced.rank)))[2]
        indices = np.arange(L * reduced.rank).reshape(L, shape.columns, -1)[:, :, 0].ravel()
        return full[:, indices[:, None], indices]
    return weights_of_moments(second_moments(fitted_fields(loss, params, shape), shape))
