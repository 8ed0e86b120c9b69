"""The output channel of state evolution: Gaussian averages over fields and teacher fields, eq. (7)-(9).

For every token, (ω̃_l, y_l) is centred Gaussian with covariance [[q, θ], [θᵀ, ρ]] and ω_l = m_l + ω̃_l; then
z = prox(ω; T[y], V), g_l = V_l⁻¹(z_l − ω_l), and the hats are averages of g.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.data import RiskTerms, asymptotic_terms
from gamp_attention.denoiser import Denoised, denoise
from gamp_attention.models import Model
from gamp_attention.results import Overlaps

DEGENERATE = 1e-9  # share of q not explained by the teacher under which Stein's form is 0/0


@dataclass(frozen=True, eq=False)
class Hats:
    """Conjugate overlaps.

    Attributes
    ----------
    m, q, theta, V : (L, r), (L, r, r), (L, r, t), (L, r, r): m̂, q̂, θ̂ and V̂ in Stein's form.
    V_derivative : (L, r, r) V̂ as the average of the a.e. derivative, which misses the jumps of the prox.
    moreau : α E[Moreau envelope + constant].
    """

    m: np.ndarray
    q: np.ndarray
    theta: np.ndarray
    V: np.ndarray
    V_derivative: np.ndarray
    moreau: float

    @property
    def jump_mass(self) -> np.ndarray:
        """V̂_Stein − V̂_derivative: what the jumps of the proximal map contribute."""
        return self.V - self.V_derivative


def psd_root(covariance: np.ndarray) -> np.ndarray:
    """Symmetric square roots of positive semi-definite matrices, rounding below zero being cut."""
    spectrum, vectors = np.linalg.eigh(0.5 * (covariance + np.swapaxes(covariance, -1, -2)))
    return np.einsum("...ij,...j,...kj->...ik", vectors, np.sqrt(spectrum.clip(min=0)), vectors)


def teacher_fields(model: Model, noise: np.ndarray) -> tuple[np.ndarray, RiskTerms]:
    """Teacher fields y (N, L, t) from white noise of that shape, and the loss parameters they imply."""
    law = model.coordinates
    y = np.einsum("lst,nlt->nls", psd_root(law.rho), noise)
    return y, asymptotic_terms(model.teacher(y), law.trace)


def student_noise(model: Model, overlaps: Overlaps, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Fields ω̃ (N, L, r) given teacher fields y (N, L, t), from white noise (N, L, r)."""
    slope = overlaps.theta @ np.linalg.pinv(model.coordinates.rho, hermitian=True)
    rest = psd_root(overlaps.q - slope @ np.swapaxes(overlaps.theta, 1, 2))
    return np.einsum("lrt,nlt->nlr", slope, y) + np.einsum("lab,nlb->nla", rest, noise)


def denoise_fields(
    model: Model, overlaps: Overlaps, noise: np.ndarray, terms: RiskTerms, start: np.ndarray | None = None
) -> Denoised:
    """The denoiser at ω = m + ω̃."""
    return denoise(model.loss, terms.params, noise + overlaps.m, overlaps.V, start)


def average(
    model: Model, alpha: float, overlaps: Overlaps, y: np.ndarray, noise: np.ndarray, terms: RiskTerms, out: Denoised
) -> Hats:
    """Hats from the denoiser's answer at fields ω̃ = noise with teacher fields y."""
    n, L, r = noise.shape
    rho, theta, g = model.coordinates.rho, overlaps.theta, out.g
    with_noise = alpha * np.einsum("nla,nlb->lab", g, noise) / n
    with_teacher = alpha * np.einsum("nla,nlb->lab", g, y) / n
    derivative = alpha * out.response.mean(axis=0)
    V_hat, theta_hat = np.empty((L, r, r)), np.empty(theta.shape)
    for l in range(L):
        # Stein: α E[g (ω̃, y)ᵀ] = (−V̂, θ̂) cov(ω̃, y)
        covariance = np.block([[overlaps.q[l], theta[l]], [theta[l].T, rho[l]]])
        inverse_rho = np.linalg.pinv(rho[l], hermitian=True)
        rest = overlaps.q[l] - theta[l] @ inverse_rho @ theta[l].T
        if np.linalg.eigvalsh(rest).min() > DEGENERATE * np.linalg.eigvalsh(overlaps.q[l]).max():
            both = np.concatenate([with_noise[l], with_teacher[l]], axis=1) @ np.linalg.pinv(covariance, hermitian=True)
            V_hat[l], theta_hat[l] = -both[:, :r], both[:, r:]
        else:  # ω̃ is a function of y: only the derivative tells V̂ and θ̂ apart
            V_hat[l] = derivative[l]
            theta_hat[l] = (with_teacher[l] + derivative[l] @ theta[l]) @ inverse_rho
    V_hat = 0.5 * (V_hat + V_hat.transpose(0, 2, 1))
    return Hats(
        m=alpha * g.mean(axis=0),
        q=alpha * np.einsum("nla,nlb->lab", g, g) / n,
        theta=theta_hat,
        V=V_hat,
        V_derivative=0.5 * (derivative + derivative.transpose(0, 2, 1)),
        moreau=alpha * float(np.mean(out.moreau + terms.constant)),
    )


def generalisation_error(model: Model, overlaps: Overlaps, y: np.ndarray, noise: np.ndarray) -> float:
    """ε_g of eq. (10): (1/L) E Tr[(S − T) ρ (S − T)ᵀ] at fields m + ω̃."""
    difference = model.student(noise + overlaps.m) - model.teacher(y)
    return float(np.mean(np.einsum("nij,j->n", difference**2, model.coordinates.trace)) / model.n_tokens)
