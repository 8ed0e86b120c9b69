"""Both risks written as a GLM: rows of loss parameters, and the part that does not depend on the weights."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.losses.attention import pack_attention_parameters


@dataclass(frozen=True, eq=False)
class RiskTerms:
    """Risk as a GLM: ℓ_μ(z) + constant_μ summed over samples, with rows of loss parameters."""

    params: np.ndarray  # (n, P) loss parameters of each sample; for attention G and M, P = 2 L², see `AttentionLoss`
    constant: np.ndarray  # (n,) the part of each sample's loss that does not depend on Q


def asymptotic_terms(T: np.ndarray, rho: np.ndarray) -> RiskTerms:
    """Return the loss parameters of the asymptotic risk of equation (41): G = ρ, M = ρ Tᵀ, constant ½ Tr T ρ Tᵀ.

    Eq. :eq:`asymptotic-risk`.

    T has shape (n, L, L); rho, the traces tr Σ_l/d of each sample's tokens, has shape (n, L), or (1, L) if they are
    equal for all samples.
    """
    M = rho[:, :, None] * T.transpose(0, 2, 1)
    G = rho[:, :, None] * np.eye(rho.shape[1])
    norms = np.einsum("nij,j->n", T**2, rho[0]) if len(rho) == 1 else np.einsum("nij,nj->n", T**2, rho)
    return RiskTerms(pack_attention_parameters(G, M), 0.5 * norms)
