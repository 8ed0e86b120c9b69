"""The input denoiser: its precision, its response and the variance it gives the fields.

η_i(b, A) = argmin_x r(x) + ½ xᵀA_i x − b_iᵀx for x in R^r, and C_i = ∂η_i/∂b_i. In closed form for the ridge.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import inline_kernel, kernel
from gamp_attention.penalties.base import penalty_prox
from gamp_attention.penalties.standard import ScaledPenalty


class InputSettings(NamedTuple):
    """Bounds that keep A and W sound far from fixed points, and settings of the coordinate descent."""

    min_precision: float = 0.5  # of λ + A, in units of λ; for other penalties, of the convexity that is known
    min_curvature: float = 1e-2  # of the same, in units of the strength, where that is not enough
    min_variance: float = 1e-6  # of the fields, in units of the initial one, where a penalty can kill all weights
    max_sweeps: int = 1000  # over the columns of a coordinate
    tol: float = 1e-15  # change in a sweep, relative to the largest weight, that ends it


INPUT = InputSettings()


def initial_variances(trace: np.ndarray, strength: float, rank: int) -> np.ndarray:
    """V_l (L, r, r) to start with: tr Σ_l/(2dλ), for the ridge the middle of the range that 0 <= A allows."""
    return trace[:, None, None] / (2 * strength) * np.eye(rank)


def prior_response(
    spectra: np.ndarray, lam: float, V_hat: np.ndarray, share: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A_i = Σ_l γ_l^i V̂_l, C_i = (λ + A_i)⁻¹ and W_l = (1/d) Σ_i γ_l^i C_i of the ridge input denoiser.

    Eq. :eq:`variances`.

    Near a maximum of the risk λ + A is not positive definite; its eigenvalues are kept above min_precision λ,
    in A too, so that fixed points stay what they are.

    Arguments (L, K), λ and (L, r, r), for K coordinates or classes of them with weights `share` (K,), equal
    if not given; returns (K, r, r) twice and (L, r, r).
    """
    spectrum, vectors = _spectrum(spectra, V_hat)
    spectrum = np.maximum(spectrum, (INPUT.min_precision - 1) * lam)
    A = np.einsum("iab,ib,icb->iac", vectors, spectrum, vectors)
    C = np.einsum("iab,ib,icb->iac", vectors, 1 / (lam + spectrum), vectors)
    return A, C, _mean_response(spectra, C, share)


def precisions(penalty: Any, spectra: np.ndarray, V_hat: np.ndarray) -> np.ndarray:
    """A_i (K, r, r) for any penalty, with eigenvalues that keep r(x) + ½ xᵀA x strongly convex."""
    spectrum, vectors = _spectrum(spectra, V_hat)
    convexity = penalty.convexity  # a number, or an array with a number for each coordinate
    least = np.maximum(INPUT.min_precision * convexity, INPUT.min_curvature * penalty.strength) - convexity
    spectrum = np.maximum(spectrum, least)
    vectors = np.broadcast_to(vectors, (len(spectrum), *vectors.shape[1:]))
    return np.einsum("iab,ib,icb->iac", vectors, spectrum, vectors)


def field_variances(penalty: Any, spectra: np.ndarray, C: np.ndarray, share: np.ndarray | None = None) -> np.ndarray:
    """W_l = (1/d) Σ_i γ_l^i C_i (L, r, r) for any penalty, kept positive definite where all weights are dead."""
    W = _mean_response(spectra, C, share)
    share = np.full(spectra.shape[1], 1 / spectra.shape[1]) if share is None else share
    least = INPUT.min_variance * initial_variances(spectra @ share, penalty.strength, W.shape[1])
    spectrum, vectors = np.linalg.eigh(W)
    if (spectrum >= least[:, :1, 0]).all():
        return W
    return np.einsum("lab,lb,lcb->lac", vectors, np.maximum(spectrum, least[:, :1, 0]), vectors)


def denoise_weights(penalty: Any, b: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """η (K, r) and C (K, r, r) for b (K, r) and A (K, r, r) or (1, r, r), any penalty. Eq. :eq:`input-denoiser`."""
    if isinstance(penalty, ScaledPenalty):
        return _denoise_scaled(penalty, b, A)
    b = np.ascontiguousarray(b, dtype=float)
    eta, C = np.empty(b.shape), np.empty((*b.shape, b.shape[1]))
    denoise = _denoise_numbers if b.shape[1] == 1 else _denoise_coordinates  # which takes long to compile
    denoise(penalty, b, np.ascontiguousarray(A), eta, C)
    return eta, C


def _denoise_scaled(penalty: ScaledPenalty, b: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return η and C: η and C of ρ in the units of each row; rows without a penalty solve a linear system."""
    c, bare = penalty.units, penalty.scales == 0
    A = A + penalty.ridge[:, None, None] * np.eye(A.shape[1])
    eta, C = denoise_weights(penalty.penalty, b / c[:, None], A / c[:, None, None] ** 2)
    eta, C = eta / c[:, None], C / c[:, None, None] ** 2
    C[bare] = np.linalg.inv(A[bare])
    eta[bare] = _products(C[bare], b[bare])
    return eta, C


def input_step(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, force: np.ndarray, Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """New weights η (d, r) and variances W (L, r, r) from the response V̂ and force = X̃ᵀg (d, r) at weights Q.

    Eq. :eq:`input-denoiser`, :eq:`variances`.
    """
    if penalty.quadratic:
        A, C, W = prior_response(spectra, penalty.lam, V_hat)
        b = force + _products(A, Q)
        eta = _products(C, b)
    else:
        A = precisions(penalty, spectra, V_hat)
        b = force + _products(A, Q)
        eta, C = denoise_weights(penalty, b, A)
        W = field_variances(penalty, np.broadcast_to(spectra, (len(spectra), len(Q))), C)
    return eta, W


def _products(matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A_i x_i (d, r) with matrices (d, r, r), or one for all (1, r, r)."""
    return np.einsum("iab,ib->ia", np.broadcast_to(matrices, (len(x), *matrices.shape[1:])), x)


def _spectrum(spectra: np.ndarray, V_hat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of A_i = Σ_l γ_l^i V̂_l."""
    A = np.einsum("li,lab->iab", spectra, V_hat)
    return np.linalg.eigh(0.5 * (A + A.transpose(0, 2, 1)))


def _mean_response(spectra: np.ndarray, C: np.ndarray, share: np.ndarray | None) -> np.ndarray:
    share = np.full(spectra.shape[1], 1 / spectra.shape[1]) if share is None else share
    return np.einsum("li,i,iab->lab", spectra, share, C)


@inline_kernel
def _entry(penalty, b, A, x, a):
    """x_a given the others, and its derivative in b_a."""
    pull = b[a]
    for c in range(x.shape[0]):
        if c != a:
            pull -= A[a, c] * x[c]
    return penalty_prox(penalty, pull, A[a, a])


@inline_kernel
def _rest(penalty, b, A, x, rest, slope):
    """Fill rest_a = prox(b_a − Σ_c A_ac x_c) − x_a and the slopes of the proxes; returns the largest rest."""
    size = 0.0
    for a in range(x.shape[0]):
        moved, slope[a] = _entry(penalty, b, A, x, a)
        rest[a] = moved - x[a]
        size = max(size, abs(rest[a]))
    return size


@inline_kernel
def _linearise(A, slope, system):
    """Fill 1 + D (A − diag A), minus the Jacobian of the rest; slope = D = 0 takes an entry out."""
    for a in range(slope.shape[0]):
        for c in range(slope.shape[0]):
            system[a, c] = 1.0 if a == c else slope[a] * A[a, c]


@kernel
def _denoise_numbers(penalty, b, A, eta, C):
    for i in range(b.shape[0]):
        eta[i, 0], C[i, 0, 0] = penalty_prox(penalty, b[i, 0], A[i if A.shape[0] > 1 else 0, 0, 0])


@kernel
def _denoise_coordinates(penalty, b, A, eta, C):
    """Cyclic coordinate descent with the scalar prox, sped up by Newton steps; then C by implicit differentiation."""
    n, r = b.shape
    slope, rest, trial = np.empty(r), np.empty(r), np.empty(r)
    system = np.empty((r, r))
    for i in range(n):
        Ai, x = A[i if A.shape[0] > 1 else 0], eta[i]
        x[:] = 0.0
        for _ in range(INPUT.max_sweeps):
            change, scale = 0.0, 0.0
            for a in range(r):
                moved, slope[a] = _entry(penalty, b[i], Ai, x, a)
                change = max(change, abs(moved - x[a]))
                scale = max(scale, abs(moved))
                x[a] = moved
            if change <= INPUT.tol * scale:
                break
            before = _rest(penalty, b[i], Ai, x, rest, slope)
            _linearise(Ai, slope, system)
            trial[:] = x + np.linalg.solve(system, rest)
            if _rest(penalty, b[i], Ai, trial, rest, slope) < 0.5 * before:
                x[:] = trial
        _rest(penalty, b[i], Ai, x, rest, slope)
        _linearise(Ai, slope, system)
        C[i] = np.linalg.solve(system, np.diag(slope))  # (A + diag r'')⁻¹ with r'' = 1/slope − A_aa
