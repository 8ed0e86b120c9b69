"""The weights' side of state evolution: overlaps from conjugate overlaps, eq. (7), for the ridge penalty."""

import numpy as np

from gamp_attention.input_denoiser import prior_response
from gamp_attention.models import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.channel import Hats


def weights_step(model: Model, hats: Hats, variance: str = "stein") -> tuple[Overlaps, float]:
    """New overlaps, and ‖Q‖²/d, of x = (λ + A)⁻¹ b with b ~ N(h, N), averaged over the coordinates.

    A = Σ_l γ_l V̂_l with V̂ in the form that `variance` names.
    """
    law = model.coordinates
    L, w, gamma = model.n_tokens, law.weight, law.gamma
    _, C, V = prior_response(gamma.T, model.lam, hats.response(variance), w)
    H, noise = drift_and_noise(model, hats)
    first = C @ H @ law.moments  # E[x (τ, π)ᵀ]
    second = first @ np.swapaxes(C @ H, 1, 2) + C @ noise @ C
    return Overlaps(
        q=np.einsum("k,kl,kab->lab", w, gamma, second),
        m=np.einsum("k,kal->la", w, first[:, :, :L]),
        theta=np.einsum("k,kl,kat->lat", w, gamma, first[:, :, L:]),
        V=V,
    ), float(np.einsum("k,kaa->", w, second))


def drift_and_noise(model: Model, hats: Hats) -> tuple[np.ndarray, np.ndarray]:
    """b = H (τ, π) + ζ with ζ ~ N(0, N): H (K, r, L + t) and N (K, r, r) in each class of coordinates."""
    gamma = model.coordinates.gamma
    K = len(gamma)
    H = np.concatenate(
        [np.broadcast_to(hats.m.T, (K, *hats.m.T.shape)), np.einsum("kl,lrt->krt", gamma, hats.theta)], axis=2
    )
    return H, np.einsum("kl,lab->kab", gamma, hats.q)
