"""Weights' side of state evolution, equation (7): overlaps from conjugate overlaps.

The weights are x = η(b, A) with A = Σ_l γ_l V̂_l and b = H (τ, π) + ζ, averaged over the coordinates. For the ridge
they are linear in b, x = (λ + A)⁻¹ b, and all averages below have a closed form.
"""

import numpy as np

from gamp_attention.denoisers.input import field_variances, precisions, prior_response
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.weight_averages import WeightAverages, weight_averages


def weights_step(model: Model, hats: Hats, response: str = "stein") -> tuple[Overlaps, float]:
    """Return the new overlaps and the penalty per coordinate, E[r(x)]; `response` selects the form of V̂.

    Eq. :eq:`weights`, :eq:`weights-stein`.
    """
    law, S = model.coordinates, model.n_sources
    if model.penalty.quadratic:
        _, C, V = prior_response(law.gamma.T, model.lam, hats.response(response), law.weight)
        H, noise = drift_and_noise(model, hats)
        first = C @ H @ law.moments  # E[x (τ, π)ᵀ]
        second = first @ np.swapaxes(C @ H, 1, 2) + C @ noise @ C
        penalty = 0.5 * model.lam * float(np.einsum("k,kaa->", law.weight, second))
    else:
        averages = penalised_weights(model, hats, hats.response(response))
        V = field_variances(model.penalty, law.gamma.T, averages.response, law.weight)
        H, _ = drift_and_noise(model, hats)
        mean = np.concatenate([law.tau, law.teacher_mean], axis=1)
        first = averages.x[:, :, None] * mean[:, None]
        # Stein's identity: E[x πᵀ] = E[x] E[π]ᵀ + E[∂x/∂b] cov(b, π)
        first[:, :, S:] += averages.response @ H[:, :, S:] @ law.teacher_cov
        second, penalty = averages.xx, float(law.weight @ averages.penalty)
    return overlaps_of_moments(model, second, first, V), penalty


def overlaps_of_moments(model: Model, second: np.ndarray, first: np.ndarray, V: np.ndarray) -> Overlaps:
    """Return overlaps, given E[x xᵀ] (K, r, r) and E[x (τ, π)ᵀ] (K, r, S + t) in each class of coordinates."""
    law, S = model.coordinates, model.n_sources
    return Overlaps(
        q=np.einsum("k,kl,kab->lab", law.weight, law.gamma, second),
        m=np.einsum("k,kal->la", law.weight, first[:, :, :S]),
        theta=np.einsum("k,kl,kat->lat", law.weight, law.gamma, first[:, :, S:]),
        V=V,
    )


def drift_and_noise(model: Model, hats: Hats) -> tuple[np.ndarray, np.ndarray]:
    """Return H (K, r, S + t) and N (K, r, r) in each class of coordinates, for b = H (τ, π) + ζ with ζ ~ N(0, N).

    Eq. :eq:`drift`.
    """
    gamma = model.coordinates.gamma
    on_positions = np.broadcast_to(hats.m.T, (len(gamma), *hats.m.T.shape))
    H = np.concatenate([on_positions, np.einsum("kl,lrt->krt", gamma, hats.theta)], axis=2)
    return H, np.einsum("kl,lab->kab", gamma, hats.q)


def weights_law(model: Model, hats: Hats) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (K, r) and covariance (K, r, r) of b, including the teacher, in each class of coordinates."""
    law, S = model.coordinates, model.n_sources
    H, noise = drift_and_noise(model, hats)
    mean = np.einsum("kac,kc->ka", H, np.concatenate([law.tau, law.teacher_mean], axis=1))
    return mean, H[:, :, S:] @ law.teacher_cov @ np.swapaxes(H[:, :, S:], 1, 2) + noise


def penalised_weights(model: Model, hats: Hats, V_hat: np.ndarray) -> WeightAverages:
    """Return averages over the weights for a penalty other than the ridge."""
    A = precisions(model.penalty, model.coordinates.gamma.T, V_hat)
    return weight_averages(model.penalty, A, *weights_law(model, hats))


def jump_shift(model: Model, hats: Hats) -> float:
    """Return the relative change of the trace of V, averaged over tokens, when V̂_derivative replaces V̂_Stein.

    Eq. :eq:`jump-shift`.

    At Stein's fixed point it predicts by how much V of minima at finite d differs, see `validity`.
    """
    stein, derivative = (np.trace(weights_step(model, hats, form)[0].V.sum(axis=0)) for form in ("stein", "derivative"))
    return float(derivative / stein - 1)


def response_pairs(model: Model, hats: Hats, V_hat: np.ndarray) -> np.ndarray:
    """Return E[C ⊗ C] (K, r², r²) of the responses C = ∂x/∂b in each class of coordinates."""
    if not model.penalty.quadratic:
        return penalised_weights(model, hats, V_hat).pairs
    law = model.coordinates
    _, C, _ = prior_response(law.gamma.T, model.lam, V_hat, law.weight)
    return np.einsum("kac,kbd->kabcd", C, C).reshape(len(C), C[0].size, C[0].size)


def weights_envelope(model: Model, hats: Hats) -> float:
    """Return E[min_x r(x) + ½ xᵀA x − bᵀx] per coordinate; for the ridge −½ E[bᵀ (λ + A)⁻¹ b]."""
    law = model.coordinates
    if model.penalty.quadratic:
        _, C, _ = prior_response(law.gamma.T, model.lam, hats.V, law.weight)
        H, noise = drift_and_noise(model, hats)
        return -0.5 * float(np.einsum("k,kab,kab->", law.weight, C, H @ law.moments @ np.swapaxes(H, 1, 2) + noise))
    A, (mean, covariance) = precisions(model.penalty, law.gamma.T, hats.V), weights_law(model, hats)
    averages = weight_averages(model.penalty, A, mean, covariance)
    gain = np.einsum("ka,ka->k", mean, averages.x) + np.einsum("kab,kab->k", covariance, averages.response)  # E[b·x]
    return float(law.weight @ (averages.penalty + 0.5 * np.einsum("kab,kab->k", A, averages.xx) - gain))
