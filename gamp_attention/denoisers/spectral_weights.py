"""What single samples say of the fields: the matrices h^μ of spectral starts, from the loss of each sample alone.

A start from data sums X̃ᵀ h X̃ over the samples and takes the lowest eigenvectors. With

- "fitted" weights, h = (z zᵀ/κ + 1)⁻¹ less its mean, where z = prox(0; v) are the fields that fit the sample best;
- "hessian" weights, h = ∇²ℓ(0): the sum is the Hessian of the risk at Q = 0;
- "posterior" weights, h = (1 − K)(1 + b K)⁻¹, where K = E[u uᵀ | targets] is what a sample says of the teacher's fields
  where its map is known.

Fields have no sign where the loss is even, so that z zᵀ is all that a sample knows of them. Where it is not, z has one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.denoisers.output import denoise
from gamp_attention.losses.attention import AttentionLoss, DotProductAttention
from gamp_attention.losses.point import sample_derivatives

WEIGHTS = ("fitted", "hessian", "posterior")


@dataclass(frozen=True)
class FitSettings:
    """How fields are fitted to single samples."""

    reach: float = 10.0  # v in units of the inverse curvature at zero: what holds the fields near zero is weak
    blur: float = 1.0  # added to z zᵀ/κ, whose diagonal has mean 1
    rounding: float = 1e-9  # of h, where all samples say the same
    sharpness: float = 16.0  # b at least: more has hardly more overlap, and eigenvalues that are harder to find
    sharpest: float = 200.0
    exact_fields: int = 2  # maximum L r for which the global minimum is computed; above, the minimum next to zero
    n_starts: int = 2  # further starts if L r is above `exact_fields` and at most `few_fields`
    few_fields: int = 12  # maximum L r for which each column is fitted; above, one column for each part suffices


FIT = FitSettings()


@dataclass(frozen=True)
class Shape:
    """The fields of a sample: L tokens and the columns of Q, of which one for each part is enough under rotations."""

    n_tokens: int
    rank: int
    parts: int
    rotations: bool

    @classmethod
    def of(cls, student: Any, n_tokens: int, rank: int) -> "Shape":
        """That of a student's attention map or loss."""
        return cls(n_tokens, rank, int(student.parts), bool(student.rotations))

    @property
    def size(self) -> int:
        """Columns that a rotation mixes."""
        return self.rank // self.parts if self.rotations else 1

    @property
    def columns(self) -> int:
        """Columns c of an eigenvector."""
        return self.rank // self.size


def fitted_fields(loss: Any, params: np.ndarray, shape: Shape) -> np.ndarray:
    """Return the fields (n, L, c) that minimise ℓ(z) + ‖z‖²/(2v), with v above the inverse curvature at zero.

    c is r; for attention that is even and invariant under rotations, with many fields, c is the number of parts.
    """
    n, L = len(params), shape.n_tokens
    reduced = _of_rank(loss, shape.columns)
    rank = shape.rank if L * shape.rank <= FIT.few_fields or reduced.rank == shape.rank else shape.columns
    flat = sample_derivatives(reduced, params, np.zeros((n, L, reduced.rank)))[2]
    curvature = np.sqrt(np.mean(flat**2) * L * reduced.rank)
    v = FIT.reach / max(curvature, np.finfo(float).tiny) if curvature > 0 else 1.0
    V, k = np.tile(v * np.eye(rank), (L, 1, 1)), L * rank
    starts = None if k <= FIT.exact_fields else FIT.n_starts if k <= FIT.few_fields else 0
    return denoise(_of_rank(loss, rank), params, np.zeros((n, L, rank)), V, max_starts=starts).z


def _of_rank(loss: Any, rank: int) -> Any:
    """Return the loss for `rank` columns if it is the loss of a `DotProductAttention`; else return the loss itself.

    The Hessian of this loss at zero is identical for all columns of a part, and zero between columns.
    """
    dot_product = isinstance(loss, AttentionLoss) and isinstance(loss.attention, DotProductAttention)
    return loss._replace(rank=rank) if dot_product else loss


def second_moments(z: np.ndarray, shape: Shape) -> np.ndarray:
    """z zᵀ (n, L c, L c), summed over columns that a rotation mixes."""
    n, L, _ = z.shape
    by_part = z.reshape(n, L * shape.columns, -1)
    return by_part @ by_part.transpose(0, 2, 1)


def weights_of_moments(K: np.ndarray) -> np.ndarray:
    """(K/κ + 1)⁻¹ less its mean over the samples, of second moments K (n, L c, L c) of their fields.

    Eq. :eq:`fitted-weights`. κ makes the mean of the diagonal 1.
    """
    scale = np.mean(np.trace(K, axis1=1, axis2=2)) / K.shape[1]
    h = np.linalg.inv((K / scale if scale > 0 else K) + FIT.blur * np.eye(K.shape[1]))
    centred = h - h.mean(axis=0)
    return centred if np.abs(centred).max() > FIT.rounding else np.zeros_like(h)


def posterior_weights(K: np.ndarray, rho: np.ndarray, alpha: float) -> np.ndarray:
    """(1 − K)(1 + b K)⁻¹ of posterior second moments K (n, L, L) of fields of covariances ρ (L, t, t) a priori.

    Eq. :eq:`posterior-weights`, with K in units of tr ρ. With b = κ/(1 − κ) and κ = √(α_w/α) an eigenvalue leaves the
    bulk from weak recovery at α_w = 1/E‖K − 1‖² on; larger b have more overlap above it.
    """
    size, one = 1 / np.sqrt(np.trace(rho, axis1=1, axis2=2)), np.eye(K.shape[1])
    K = size[:, None] * K * size
    told = float(np.mean(np.sum((K - one) ** 2, axis=(1, 2))))
    if np.sqrt(told) <= FIT.rounding:
        return np.zeros_like(K)
    kappa = 1 / np.sqrt(alpha * told)
    at_threshold = kappa / (1 - kappa) if kappa < 1 else np.inf
    b = float(np.clip(at_threshold, FIT.sharpness, FIT.sharpest))
    h = size[:, None] * np.linalg.solve(one + b * K, one - K) * size
    return 0.5 * (h + h.transpose(0, 2, 1))


def spectral_weights(kind: str, loss: Any, params: np.ndarray, shape: Shape) -> np.ndarray:
    """The matrices h (n, L c, L c) of samples, "fitted" or "hessian"."""
    if kind == "hessian":
        reduced, n, L = _of_rank(loss, shape.columns), len(params), shape.n_tokens
        full = sample_derivatives(reduced, params, np.zeros((n, L, reduced.rank)))[2]
        kept = np.arange(L * reduced.rank).reshape(L, shape.columns, -1)[:, :, 0].ravel()
        return full[:, kept[:, None], kept]
    return weights_of_moments(second_moments(fitted_fields(loss, params, shape), shape))
