"""Input channel of state evolution, equation (7): from conjugate overlaps through the weights to overlaps.

The weights of a coordinate are x = η(b, A), the proximal denoiser of the penalty, with A = Σ_l γ_l V̂_l and
b = H (τ, π) + ζ, ζ ~ N(0, N). `weights_step` averages them over the coordinates. For the ridge x = (λ + A)⁻¹ b, and all
averages have a closed form.

For other penalties `weight_averages` computes averages over b ~ N(h, N) in each class of coordinates, with one column
by the trapezoidal rule; since the mean response is computed from Stein's identity E[∂x/∂b] = E[x (b − h)ᵀ] N⁻¹ (Stein,
1981), the averaged functions have kinks at worst. More columns use a fixed symmetric set of Sobol points. Measured
errors, relative to the magnitude of each average, are below 2e-6 for one column, up to 2e-4 for two and three, and up
to 1e-3 for responses.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.numerics import symmetrize
from gamp_attention._tools.quadrature import gaussian_points, gaussian_weights
from gamp_attention.problem.denoisers.input import denoise_weights, field_variances, precisions, quadratic_response
from gamp_attention.problem.penalties.base import values
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.directions import DIRECTIONS, loss_directions
from gamp_attention.theory.models.model import Model

LIMIT = 9.0  # integration limit of the trapezoidal rule, in standard deviations
N_NODES = 2**13 + 1  # number of nodes of the trapezoidal rule
N_POINTS = 2**14  # number of Sobol points, for more than one column
NOISELESS = 1e-8  # standard deviation of b, relative to its size, below which Stein's identity is 0/0


class WeightAverages(NamedTuple):
    """Averages in each of K classes of coordinates."""

    x: np.ndarray  # (K, r), E[x]
    xx: np.ndarray  # (K, r, r), E[x xᵀ]
    response: np.ndarray  # (K, r, r), E[∂x/∂b]
    pairs: np.ndarray  # (K, r², r²), E[(∂x/∂b) ⊗ (∂x/∂b)]
    penalty: np.ndarray  # (K,), E[r(x)]


def weight_averages(penalty: Any, A: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> WeightAverages:
    """Return averages for precisions A (K, r, r), means of b (K, r) and covariances of b (K, r, r)."""
    rank = mean.shape[1]
    if rank > 1:
        white = _points(rank)
        weight = np.full(len(white), 1 / len(white))
    else:
        white = np.linspace(-LIMIT, LIMIT, N_NODES)[:, None]
        weight = gaussian_weights(white)
    averages: list[tuple[np.ndarray, ...]] = []
    for k in range(len(mean)):
        spectrum, vectors = np.linalg.eigh(covariance[k])
        sizes = np.sqrt(np.maximum(spectrum, 0.0))
        root = vectors * sizes
        x, C = denoise_weights(penalty, mean[k] + white @ root.T, A[k : k + 1])
        rho = np.empty(x.size)
        values(penalty, x.ravel(), rho)
        if sizes.min() > NOISELESS * (np.abs(mean[k]).max() + sizes.max()):
            response = (weight[:, None] * x).T @ white @ np.linalg.inv(root)
        else:  # Stein's identity would divide rounding errors by rounding errors
            response = np.einsum("n,nab->ab", weight, C)
        pairs = np.einsum("n,nac,nbd->abcd", weight, C, C, optimize=True).reshape(root.size, root.size)
        xx, strength = (weight[:, None] * x).T @ x, weight @ rho.reshape(x.shape).sum(1)
        averages.append((weight @ x, xx, symmetrize(response), pairs, strength))
    return WeightAverages(*(np.array(values_of_classes) for values_of_classes in zip(*averages, strict=True)))


@lru_cache
def _points(rank: int) -> np.ndarray:
    """Return the Sobol points, which are the same in all calls."""
    return gaussian_points(N_POINTS, rank, np.random.default_rng(0))


def weights_step(model: Model, hats: Hats, response: str = "stein") -> tuple[Overlaps, float]:
    """Return the new overlaps and the penalty per coordinate, E[r(x)]; `response` selects the form of V̂.

    Eq. :eq:`weights`, :eq:`weights-stein`.
    """
    law = model.coordinates
    if model.penalty.quadratic:
        H, noise = drift_and_noise(model, hats)
        _, C, V = linear_response(model, hats.response(response))
        first = C @ H @ law.moments  # E[x (τ, π)ᵀ]
        second = first @ np.swapaxes(C @ H, 1, 2) + C @ noise @ C
        penalty = mean_ridge(model, second)
    else:
        averages = penalized_weights(model, hats, hats.response(response))
        V = field_variances(model.penalty, law.gamma.T, averages.response, law.weight)
        H, _ = drift_and_noise(model, hats)
        # Stein's identity: E[x (τ, π)ᵀ] = E[x] E[(τ, π)]ᵀ + E[∂x/∂b] cov(b, (τ, π))
        first = averages.x[:, :, None] * law.mean[:, None] + averages.response @ H @ law.covariance
        second, penalty = averages.xx, float(law.weight @ averages.penalty)
    return overlaps_of_moments(model, second, first, V), penalty


def mean_ridge(model: Model, second: np.ndarray) -> float:
    """Return E[r(x)] per coordinate for a quadratic penalty, given E[x xᵀ] (K, r, r) in each class of coordinates."""
    strengths = np.broadcast_to(model.penalty.curvature, model.rank)
    return 0.5 * float(np.einsum("a,k,kaa->", strengths, model.coordinates.weight, second))


def intercept_step(hats: Hats, V_hat: np.ndarray) -> np.ndarray:
    """Return the change (r,) of an unpenalized intercept in a step, (Σ_l V̂_l)⁻¹ Σ_l m̂_l.

    It is zero in directions without a response, such as a common change of the fields of all classes.
    """
    return np.asarray(np.linalg.pinv(V_hat.sum(axis=0), DIRECTIONS.response, hermitian=True) @ hats.m.sum(axis=0))


def with_intercept(model: Model, before: Overlaps, after: Overlaps, hats: Hats, V_hat: np.ndarray) -> Overlaps:
    """Return new overlaps with the intercept b, which is added to the means m of the fields of all tokens.

    The intercept before the step is the mean over the tokens of the difference between the means of the fields and the
    contribution of the positions. At a fixed point, this difference is the same for all tokens, and Σ_l m̂_l = 0.
    Directions in which the loss does not depend on the intercept, as of the scores of a softmax over tokens, have none.
    """
    part = model.components[0].model
    steep = loss_directions(part, ())[0].reshape(part.n_tokens, part.rank, -1).sum(axis=0)
    steep = steep @ np.linalg.pinv(steep, DIRECTIONS.steep)
    b = steep @ (before.m - after.m).mean(axis=0) + intercept_step(hats, steep @ V_hat @ steep)
    return replace(after, m=after.m + b)


def linear_response(model: Model, V_hat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, C and W of a quadratic penalty; see `quadratic_response`."""
    law = model.coordinates
    return quadratic_response(model.penalty, law.gamma.T, V_hat, law.weight)


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
    return drift(gamma, hats.m, hats.theta), np.einsum("kl,lab->kab", gamma, hats.q)


def drift(gamma: np.ndarray, m_hat: np.ndarray, theta_hat: np.ndarray) -> np.ndarray:
    """Return H (K, r, S + t) of the mean H (τ, π) of b, for eigenvalues gamma (K, S) of the covariances."""
    on_positions = np.broadcast_to(m_hat.T, (len(gamma), *m_hat.T.shape))
    return np.concatenate([on_positions, np.einsum("kl,lrt->krt", gamma, theta_hat)], axis=2)


def weights_law(model: Model, hats: Hats) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (K, r) and covariance (K, r, r) of b, including the teacher, in each class of coordinates."""
    law = model.coordinates
    H, noise = drift_and_noise(model, hats)
    return np.einsum("kac,kc->ka", H, law.mean), H @ law.covariance @ np.swapaxes(H, 1, 2) + noise


def penalized_weights(model: Model, hats: Hats, V_hat: np.ndarray) -> WeightAverages:
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
        return penalized_weights(model, hats, V_hat).pairs
    _, C, _ = linear_response(model, V_hat)
    return np.einsum("kac,kbd->kabcd", C, C).reshape(len(C), C[0].size, C[0].size)


def weights_envelope(model: Model, hats: Hats) -> float:
    """Return the term of the free energy E[min_x r(x) + ½ xᵀA x − bᵀx] per coordinate.

    For the ridge it is −½ E[bᵀ (λ + A)⁻¹ b].
    """
    law = model.coordinates
    if model.penalty.quadratic:
        H, noise = drift_and_noise(model, hats)
        second = H @ law.moments @ np.swapaxes(H, 1, 2) + noise
        return -0.5 * float(np.einsum("k,kab,kab->", law.weight, linear_response(model, hats.V)[1], second))
    A, (mean, covariance) = precisions(model.penalty, law.gamma.T, hats.V), weights_law(model, hats)
    averages = weight_averages(model.penalty, A, mean, covariance)
    gain = np.einsum("ka,ka->k", mean, averages.x) + np.einsum("kab,kab->k", covariance, averages.response)  # E[b·x]
    return float(law.weight @ (averages.penalty + 0.5 * np.einsum("kab,kab->k", A, averages.xx) - gain))
