"""Input denoiser: new weights of each coordinate, their response, and the variances of the fields.

For coordinate i with precision A_i and force b_i, the new weights are η_i = argmin_x r(x) + ½ xᵀA_i x − b_iᵀx over x in
R^r, for a penalty r. Their response is C_i = ∂η_i/∂b_i. Both are in closed form for the ridge penalty.
"""

from typing import Any

import numpy as np

from gamp_attention._kernels.compiled import inline_kernel, kernel
from gamp_attention._tools.check import read_only
from gamp_attention._tools.numerics import compose, diagonalize, raise_spectrum, symmetrize
from gamp_attention.problem.denoisers.newton import cholesky, cholesky_solve
from gamp_attention.problem.penalties.base import penalty_prox
from gamp_attention.problem.penalties.standard import by_rows

# Bounds that keep A and W positive definite far from fixed points
MIN_PRECISION = 0.5  # smallest eigenvalue of λ + A, in units of λ; for other penalties, in units of their convexity
MIN_CURVATURE = 1e-2  # smallest eigenvalue of convexity + A, in units of the strength; needed if the convexity is zero
MIN_VARIANCE = 1e-6  # smallest variance of fields, in units of the initial variance; needed if all weights are zero
# Coordinate descent of several columns
MAX_SWEEPS = 1000  # maximum number of sweeps over the columns of one coordinate
TOL = 1e-15  # change in a sweep, relative to the largest weight, that ends the descent


def initial_variances(trace: np.ndarray, strength: float, rank: int) -> np.ndarray:
    """Return initial variances V_l = tr Σ_l/(2dλ) (L, r, r); for the ridge, the middle of the range for A >= 0."""
    return trace[:, None, None] / (2 * strength) * np.eye(rank)


def quadratic_response(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, fractions: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, C and W for a quadratic penalty: A_i = Σ_l γ_l^i V̂_l, C_i = (Λ + A_i)⁻¹ and W_l = (1/d) Σ_i γ_l^i C_i.

    Eq. :eq:`variances`, :eq:`column-strengths`. `penalty` is the ridge, Λ = λ, or a ridge with one strength for each
    column. Near a maximum of the risk, Λ + A is not positive definite. Its eigenvalues are raised to at least
    MIN_PRECISION λ, also in A, so that fixed points do not change. `spectra` (L, K) are the variances γ_l of K
    coordinates, or of K classes of coordinates with `fractions` (K,), and V̂ is (L, r, r).
    """
    strengths = np.diag(np.broadcast_to(penalty.curvature, V_hat.shape[1]))
    lowest = penalty.floor if penalty.by_column else MIN_PRECISION * penalty.lam
    A = _precisions(spectra, V_hat)
    spectrum, vectors = diagonalize(A + strengths)
    if (spectrum < lowest).any():
        spectrum = np.maximum(spectrum, lowest)
        A = compose(spectrum, vectors) - strengths
    C = compose(1 / spectrum, vectors)
    return A, C, mean_response(spectra, C, fractions)


def precisions(penalty: Any, spectra: np.ndarray, V_hat: np.ndarray) -> np.ndarray:
    """Return A (K, r, r) for any penalty, with eigenvalues raised such that r(x) + ½ xᵀA x is strongly convex.

    An intercept is a coordinate whose variance is zero and whose position is 1, so that its precision is Σ_l V̂_l.
    """
    if penalty.intercept:
        inner, others = penalty.penalty, spectra[:, :-1]
        A = quadratic_response(inner, others, V_hat)[0] if inner.quadratic else precisions(inner, others, V_hat)
        last = raise_spectrum(V_hat.sum(axis=0, keepdims=True), MIN_CURVATURE * penalty.strength)
        return np.concatenate([np.broadcast_to(A, (others.shape[1], *A.shape[1:])), last])
    lowest = max(MIN_PRECISION * penalty.convexity, MIN_CURVATURE * penalty.strength) - penalty.convexity
    return raise_spectrum(_precisions(spectra, V_hat), lowest)


def field_variances(
    penalty: Any, spectra: np.ndarray, C: np.ndarray, fractions: np.ndarray | None = None
) -> np.ndarray:
    """Return W_l = (1/d) Σ_i γ_l^i C_i (L, r, r) for any penalty, kept positive definite if all weights are zero."""
    W = mean_response(spectra, C, fractions)
    trace = np.average(spectra, axis=1, weights=fractions)
    lowest = MIN_VARIANCE * initial_variances(trace, penalty.strength, W.shape[1])
    return raise_spectrum(W, lowest[:, :1, 0])


@by_rows
def denoise_weights(penalty: Any, b: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return η (K, r) and C (K, r, r) for b (K, r) and A (K, r, r) or (1, r, r) and any penalty.

    Eq. :eq:`input-denoiser`.
    """
    if penalty.quadratic:
        C = np.linalg.inv(A + np.diag(np.broadcast_to(penalty.curvature, A.shape[1])))
        return products(C, b), np.broadcast_to(C, (len(b), *C.shape[1:])).copy()
    b = np.ascontiguousarray(b, dtype=float)
    eta, C = np.empty(b.shape), np.empty((*b.shape, b.shape[1]))
    denoise = _denoise_numbers if b.shape[1] == 1 else _denoise_coordinates  # the former is compiled in less time
    denoise(penalty, b, read_only(np.ascontiguousarray(A)), eta, C)
    return eta, C


def input_step(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, force: np.ndarray, Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return new weights η (d, r), responses C (d or 1, r, r) and variances W (L, r, r), from V̂ and the force at Q.

    The force is X̃ᵀg (d, r). Eq. :eq:`input-denoiser`, :eq:`variances`; the input step of GAMP (Rangan, 2011).
    """
    if penalty.quadratic:
        A, C, W = quadratic_response(penalty, spectra, V_hat)
        b = force + products(A, Q)
        eta = products(C, b)
    else:
        A = precisions(penalty, spectra, V_hat)
        b = force + products(A, Q)
        eta, C = denoise_weights(penalty, b, A)
        W = field_variances(penalty, np.broadcast_to(spectra, (len(spectra), len(Q))), C)
    return eta, C, W


def products(matrices: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return A_i x_i (d, r) for matrices (d, r, r), or for one matrix (1, r, r) for all rows."""
    return np.einsum("iab,ib->ia", np.broadcast_to(matrices, (len(x), *matrices.shape[1:])), x)


def _precisions(spectra: np.ndarray, V_hat: np.ndarray) -> np.ndarray:
    """Return A_i = Σ_l γ_l^i V̂_l (K, r, r)."""
    return symmetrize(np.einsum("li,lab->iab", spectra, V_hat))


def mean_response(spectra: np.ndarray, C: np.ndarray, fractions: np.ndarray | None) -> np.ndarray:
    """Return (1/d) Σ_i γ_l^i C_i (L, r, r), for K coordinates or for classes of coordinates with `fractions` (K,)."""
    fractions = np.full(spectra.shape[1], 1 / spectra.shape[1]) if fractions is None else fractions
    return np.einsum("li,i,iab->lab", spectra, fractions, C)


@inline_kernel
def _entry(penalty, b, A, x, a):
    """Return the minimizer over x_a for the given other entries of x, and its derivative in b_a."""
    pull = b[a]
    for c in range(x.shape[0]):
        if c != a:
            pull -= A[a, c] * x[c]
    return penalty_prox(penalty, pull, A[a, a])


@inline_kernel
def _residual(penalty, b, A, x, residual, root):
    """Fill residual_a = prox(b_a − Σ_c A_ac x_c) − x_a and the roots of its slopes; return the largest |residual_a|."""
    size = 0.0
    for a in range(x.shape[0]):
        new, slope = _entry(penalty, b, A, x, a)
        residual[a], root[a] = new - x[a], np.sqrt(slope)
        size = max(size, abs(residual[a]))
    return size


@inline_kernel
def _factor(A, root, system, chol):
    """Factor 1 + R (A − diag A) R with R = diag(root), which is R (A + diag r'') R, into chol.

    The Jacobian of the residual is −(1 + R² (A − diag A)).
    """
    for a in range(root.shape[0]):
        for c in range(root.shape[0]):
            system[a, c] = 1.0 if a == c else root[a] * A[a, c] * root[c]
    cholesky(system, 0.0, chol)


@kernel
def _denoise_numbers(penalty, b, A, eta, C):
    for i in range(b.shape[0]):
        eta[i, 0], C[i, 0, 0] = penalty_prox(penalty, b[i, 0], A[i if A.shape[0] > 1 else 0, 0, 0])


@kernel
def _denoise_coordinates(penalty, b, A, eta, C):
    """Minimize by cyclic coordinate descent with the scalar prox, and differentiate the minimum to obtain C.

    After each sweep, a Newton step on the residual is taken if it reduces the residual by half: coordinate descent
    alone converges slowly if the columns are strongly coupled.
    """
    n, r = b.shape
    root, residual, trial, step = np.empty(r), np.empty(r), np.empty(r), np.empty(r)
    system, chol = np.empty((r, r)), np.empty((r, r))
    for i in range(n):
        Ai, x = A[i if A.shape[0] > 1 else 0], eta[i]
        for a in range(r):
            x[a] = 0.0
        for _ in range(MAX_SWEEPS):
            change, scale = 0.0, 0.0
            for a in range(r):
                new, _ = _entry(penalty, b[i], Ai, x, a)
                change = max(change, abs(new - x[a]))
                scale = max(scale, abs(new))
                x[a] = new
            if change <= TOL * scale:
                break
            before = _residual(penalty, b[i], Ai, x, residual, root)
            _factor(Ai, root, system, chol)
            for a in range(r):  # the step is residual + R w with (1 + R (A − diag A) R) w = −R (A − diag A) residual
                step[a] = 0.0
                for c in range(r):
                    if c != a:
                        step[a] -= root[a] * Ai[a, c] * residual[c]
            cholesky_solve(chol, step)
            for a in range(r):
                trial[a] = x[a] + residual[a] + root[a] * step[a]
            if _residual(penalty, b[i], Ai, trial, residual, root) < 0.5 * before:
                for a in range(r):
                    x[a] = trial[a]
        _residual(penalty, b[i], Ai, x, residual, root)
        _factor(Ai, root, system, chol)
        for a in range(r):  # C = (A + diag r'')⁻¹ = R (1 + R (A − diag A) R)⁻¹ R
            for c in range(r):
                step[c] = root[c] if c == a else 0.0
            cholesky_solve(chol, step)
            for c in range(r):
                C[i, c, a] = root[c] * step[c]
