"""The input denoiser of the ridge penalty: its precision, its response and the variance it gives the fields."""

import numpy as np

LEAST_PRECISION = 0.5  # of λ + A, in units of λ


def initial_variances(trace: np.ndarray, lam: float, rank: int) -> np.ndarray:
    """V_l (L, r, r) to start with: tr Σ_l/(2dλ), the middle of the range that 0 <= A allows."""
    return trace[:, None, None] / (2 * lam) * np.eye(rank)


def prior_response(
    spectra: np.ndarray, lam: float, V_hat: np.ndarray, share: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A_i = Σ_l γ_l^i V̂_l, C_i = (λ + A_i)⁻¹ and W_l = (1/d) Σ_i γ_l^i C_i of the ridge input denoiser.

    Near a maximum of the risk λ + A is not positive definite; its eigenvalues are kept above LEAST_PRECISION λ,
    in A too, so that fixed points stay what they are.

    Arguments (L, K), λ and (L, r, r), for K coordinates or classes of them with weights `share` (K,), equal
    if not given; returns (K, r, r) twice and (L, r, r).
    """
    A = np.einsum("li,lab->iab", spectra, V_hat)
    spectrum, vectors = np.linalg.eigh(0.5 * (A + A.transpose(0, 2, 1)))
    spectrum = np.maximum(spectrum, (LEAST_PRECISION - 1) * lam)
    A = np.einsum("iab,ib,icb->iac", vectors, spectrum, vectors)
    C = np.einsum("iab,ib,icb->iac", vectors, 1 / (lam + spectrum), vectors)
    share = np.full(spectra.shape[1], 1 / spectra.shape[1]) if share is None else share
    return A, C, np.einsum("li,i,iab->lab", spectra, share, C)
