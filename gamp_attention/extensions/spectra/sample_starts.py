"""Initial weights that are computed from the samples on which they are then trained: spectral starts.

Spectral weights Q⁰ (`gamp_attention.problem.starts`) depend on the samples, so that their fields on these samples are
not Gaussian, and later iterates have a memory of the forces that Q⁰ is made of. An eigenvector of M = Σ_μ X̃ᵀ h X̃ with
the eigenvalue x is a fixed point of message passing with the quadratic losses ½ zᵀhz and the penalty −x
(`gamp_attention.extensions.spectra.spectrum`). Its iterations up to this fixed point and the iterations that start
there are a single first-order method on the same samples. At the fixed point all earlier iterations are equal, and the
method is described as if there was only one earlier iteration, with the index −1:

    z⁰ = ω⁻¹ + V g⁻¹,   g⁻¹ = −R ω⁻¹,   R = h (1 + V h)⁻¹,   ω⁻¹ = m + ω̃⁰
    x⁰ = C (H (τ, π) + ζ₋₁),   cov(ζ₋₁, ζ_t) = α Σ_l γ_l E[g_l⁻¹ (g_l^t)ᵀ],   C_i = (Σ_l γ_l V̂_l − x)⁻¹

(Mondelli and Venkataramanan, 2021, for generalized linear models with a spectral start and undamped message passing).
V is the variance of the fields in the equations of the spectrum, not the V with which message passing begins, and ω̃⁰
are Gaussians with the overlaps m, θ and q of Q⁰. The memory terms of later iterations then follow from the equations of
all first-order methods: R(t, −1) = E[γ ∂x^t/∂ζ₋₁], and the mean response of g^t to ω̃⁰ contains the response by g⁻¹.

If the loss is not even, the start is X̃ᵀ z with the fields z that fit each sample best. Then g⁻¹ = z does not depend on
any field, and C = 1.
"""

from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.spectra.spectrum import (
    Ensemble,
    block_diagonal,
    eigenvalues_below,
    growths,
    lowest_edge,
)
from gamp_attention.extensions.train.spectral_weights import Shape, fitted_fields, spectral_weights
from gamp_attention.problem.denoisers.input import initial_variances
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.theory.equations.channel import fields_and_terms, teacher_size
from gamp_attention.theory.equations.weights import drift, overlaps_of_moments
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import SPECTRAL, SampleForces, StartLaw

NEGLIGIBLE = 1e-6  # overlap relative to its largest possible value that is zero by symmetry up to rounding


def draw_ensemble(
    model: Model, alpha: float, weights: str, n_points: int, rng: np.random.Generator
) -> tuple[Ensemble, RiskTerms]:
    """Return the matrices h of `spectral_weights` at random teacher fields, and the loss parameters there."""
    shape = Shape.of(model.student, model.n_tokens, model.rank)
    y, terms = fields_and_terms(model, gaussian_points(n_points, teacher_size(model), rng))
    h = spectral_weights(weights, model.loss, terms.params, shape)
    L, c = shape.n_tokens, shape.columns
    return Ensemble(model.coordinates, alpha, h.reshape(-1, L, c, L, c), y), terms


def require_spectral(model: Model) -> None:
    """Raise ValueError if the spectral start of a model is not described by `spectral_start`."""
    size = Shape.of(model.student, model.n_tokens, model.rank).size
    penalty = type(model.penalty).__name__
    conditions = (
        (not model.penalty.quadratic, f"{penalty}, only for the ridge"),
        (model.intercept, "a model with an intercept"),
        (model.is_mixture or model.teacher_shift.any(), "tokens with classes"),
        (size > 1, f"{size} columns that a rotation mixes, as they are {size} eigenvectors"),
    )
    for refused, case in conditions:
        if refused:
            raise check.fail("init", SPECTRAL, f"another start for {case}")


def spectral_start(model: Model, alpha: float, rng: np.random.Generator, n_points: int = 4096) -> StartLaw:
    """Return the distribution of the first spectral start for d → ∞, with the sign of a positive overlap.

    Eq. :eq:`spectral-memory`.

    Parameters
    ----------
    model, alpha : the model and the sample complexity.
    rng : generator of the points.
    n_points : number of points of averages over the teacher's fields, even.

    Raises
    ------
    ValueError : if the model is not of the described kind, or no eigenvalue lies below the bulk of the spectrum.
    """
    require_spectral(model)
    if not model.student.even:
        return _sum_of_fitted_fields(model, alpha, rng, n_points)
    ensemble, terms = draw_ensemble(model, alpha, "fitted", n_points, rng)
    path = lowest_edge(ensemble)
    outside = eigenvalues_below(ensemble, path)
    if not outside:
        strength = f"a strength of {growths(path[-1])[0]:.3g} in spectral_overlap, where 'spectral' needs more than 1"
        needs = "an alpha at which an eigenvalue lies outside the bulk, so that the start has overlap with the teacher"
        raise check.fail_words("init", f"alpha = {alpha:g} with {strength}", needs)
    vector, shape, r = outside[0], Shape.of(model.student, model.n_tokens, model.rank), model.rank
    V, law = vector.solution.V, model.coordinates

    def forces(params: np.ndarray, omega: np.ndarray) -> np.ndarray:
        L = omega.shape[1]
        h = spectral_weights("fitted", model.loss, params, shape)
        R = np.linalg.solve(np.eye(L * r) + h @ block_diagonal(V), h)
        return -np.einsum("nij,nj->ni", R, omega.reshape(-1, L * r)).reshape(omega.shape)

    H, second, first = vector.H, vector.second, vector.first
    now = overlaps_of_moments(model, second, first, V)
    # mean square of the fields (1 + V h)⁻¹ ω⁻¹, averaged over ω⁻¹ at given fields of the teacher
    slope = now.theta @ ensemble.inverse_rho
    rest = now.q - slope @ np.swapaxes(now.theta, 1, 2)
    factors = np.eye(len(V) * r) - block_diagonal(V) @ vector.solution.R.reshape(-1, len(V) * r, len(V) * r)
    mean = np.einsum("lat,nlt->nla", slope, ensemble.y) + now.m
    squares = np.mean(np.sum(np.einsum("nij,nj->ni", factors, mean.reshape(len(mean), -1)) ** 2, axis=1))
    squares += np.mean(np.einsum("nij,jk,nik->n", factors, block_diagonal(rest), factors, optimize=True))
    z = fitted_fields(model.loss, terms.params, shape)
    scale = np.sqrt(np.mean(np.sum(z**2, axis=(1, 2))) / squares) * _sign(now.theta, now.m)
    # by symmetry, the eigenvector has no overlap with either the teacher or the positions
    first, H = scale * first, scale * H
    S, sizes = model.n_sources, np.sqrt(np.einsum("kaa,kjj->kj", scale**2 * second, law.moments))
    for part in (slice(0, S), slice(S, None)):
        if np.abs(first[:, :, part]).max(initial=0.0) <= NEGLIGIBLE * sizes[:, part].max(initial=0.0):
            first[:, :, part] = H[:, :, part] = 0.0
    return _start_law(model, scale**2 * second, first, SampleForces(vector.solution.C, H, forces))


def _sum_of_fitted_fields(model: Model, alpha: float, rng: np.random.Generator, n_points: int) -> StartLaw:
    """Return the distribution of the start X̃ᵀ z, with the fields z that fit each sample best."""
    shape, law, r = Shape.of(model.student, model.n_tokens, model.rank), model.coordinates, model.rank
    y, terms = fields_and_terms(model, gaussian_points(n_points, teacher_size(model), rng))
    z, inverse_rho = fitted_fields(model.loss, terms.params, shape), np.linalg.pinv(law.rho, hermitian=True)
    theta_hat = alpha * np.einsum("nla,nlt->lat", z, y) / n_points @ inverse_rho
    H = drift(law.gamma, alpha * z.mean(axis=0), theta_hat)
    q_hat = alpha * np.einsum("nla,nlb->lab", z, z) / n_points
    first = H @ law.moments
    second = first @ np.swapaxes(H, 1, 2) + np.einsum("kl,lab->kab", law.gamma, q_hat)
    now = overlaps_of_moments(model, second, first, np.zeros_like(q_hat))
    slope = now.theta @ inverse_rho
    rest = now.q - slope @ np.swapaxes(now.theta, 1, 2)
    # fields m + ω̃ + E[γ] z of the samples
    mean = now.m + np.einsum("lat,nlt->nla", slope, y) + law.trace[:, None] * z
    squares = np.mean(np.sum(mean**2, axis=(1, 2))) + np.trace(rest, axis1=1, axis2=2).sum()
    scale = np.sqrt(np.mean(np.sum(z**2, axis=(1, 2))) / squares)

    def forces(params: np.ndarray, omega: np.ndarray) -> np.ndarray:
        return np.asarray(scale * fitted_fields(model.loss, params, shape))

    response = np.tile(np.eye(r), (len(law.weight), 1, 1))
    return _start_law(model, scale**2 * second, scale * first, SampleForces(response, scale * H, forces))


def _start_law(model: Model, second: np.ndarray, first: np.ndarray, forces: SampleForces) -> StartLaw:
    """Return the second moments of (x⁰, τ, π), given E[x⁰x⁰ᵀ] (K, r, r) and E[x⁰(τ, π)ᵀ] (K, r, S + t)."""
    law, r = model.coordinates, model.rank
    moments = np.zeros((len(law.weight), *(r + np.array(law.moments.shape[1:]))))
    moments[:, :r, :r], moments[:, :r, r:], moments[:, r:, r:] = second, first, law.moments
    moments[:, r:, :r] = np.swapaxes(first, 1, 2)
    return StartLaw(moments, initial_variances(law.trace, model.penalty.strength, r), forces=forces)


def _sign(theta: np.ndarray, m: np.ndarray) -> float:
    """Return the sign with which the largest overlap with the teacher, or with the positions, is positive."""
    entries: Any = theta if np.abs(theta).max() > NEGLIGIBLE * np.abs(m).max(initial=0.0) else m
    return -1.0 if entries.flat[np.argmax(np.abs(entries))] < 0 else 1.0
