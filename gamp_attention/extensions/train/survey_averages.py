"""Denoisers of survey propagation: averages of the denoisers of GAMP over a Gaussian inner field, eq. `survey-fields`.

Survey propagation describes a cluster of minima by the distribution of its fields: a Gaussian with covariance U_l
around the center ω_l, with the Boltzmann weight of the proximal objective at the Parisi parameter y. This is one step
of replica symmetry breaking at zero temperature (Mézard and Parisi, 2003; Lucibello, Saglietti and Lu, 2019). For y → 0
and U = 0 the averages are the denoisers of GAMP.

The averages over fields are sums over few nodes: the proximal step of each node starts from its minimizer in the last
iteration. Afterwards a node whose objective is lower at the minimizer of the best node continues from there. The
response is the a.e. derivative. With `jumps`, minima are global, and the response is −∂ḡ/∂ω + yΔ by Stein's identity,

    R̄_l = yΔ_l − (⟨g_l u_lᵀ⟩ − ⟨g_l⟩⟨u_l⟩ᵀ) U_l^{−1/2},

which differs from the a.e. derivative if the minimum jumps between nodes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.numerics import diagonalize, psd_root, symmetrize
from gamp_attention._tools.quadrature import gauss_hermite, gaussian_points, tensor_grid
from gamp_attention.problem.denoisers.input import (
    initial_variances,
    prior_response,
    quadratic_response,
)
from gamp_attention.problem.denoisers.output import denoise

NODES_PER_FIELD = {1: 11, 2: 4, 3: 3}  # nodes of the product rule in each dimension, by the number of dimensions
END, SPACING = 7.0, 0.35  # largest node of the rule for samples of a single field, and distance between its nodes
MAX_GAIN = 0.9  # maximum eigenvalue of y C^{1/2} Δ C^{1/2}; at 1 the average over the inner field would diverge
OFF_ZERO = 1e-3  # start of a minimization that would begin at zero, in units of √V
MAX_ROWS = 1 << 15  # maximum number of proximal steps, at the nodes of all samples, that are computed at once


@lru_cache
def inner_nodes(n_fields: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (K, n_fields) for the inner field of a sample, and the logarithms of their weights (K,).

    For one field the nodes are equidistant: if the minimum jumps, the integrand has a kink, for which the rule of Gauss
    and Hermite is less accurate.
    """
    if n_fields > 1:
        return gaussian_nodes(n_fields)
    u = np.linspace(-END, END, 1 + round(2 * END / SPACING))
    return u[:, None], -0.5 * u**2 - np.log(np.exp(-0.5 * u**2).sum())


@lru_cache
def gaussian_nodes(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (K, dim) of the standard normal distribution and the logarithms of their weights (K,).

    A product rule of Gauss and Hermite up to three dimensions, else quasi-random points in pairs ±u with equal weights,
    at least four for each dimension.
    """
    if dim not in NODES_PER_FIELD:
        n_points = 1 << (4 * dim - 1).bit_length()
        points = gaussian_points(n_points, dim, np.random.default_rng(11))
        return np.ascontiguousarray(points), np.full(len(points), -np.log(len(points)))
    x, weight = gauss_hermite(NODES_PER_FIELD[dim])
    nodes, logs = tensor_grid(x, dim), tensor_grid(np.log(weight / weight.sum()), dim).sum(axis=1)
    return np.ascontiguousarray(nodes), np.ascontiguousarray(logs)


class InnerAverages(NamedTuple):
    """Averages over the inner field of n samples."""

    g: np.ndarray  # (n, L, r) ⟨g⟩
    # (n, L, r, r) ⟨−∂g_l/∂ω_l⟩, the a.e. derivative within each token, or with the jumps of the minimum
    response: np.ndarray
    spread: np.ndarray  # (n, L, r, r) covariance of g_l under the weights
    envelope: np.ndarray  # (n,) ⟨M⟩, the mean Moreau envelope


def average_fields(
    loss: Any, params: np.ndarray, omega: np.ndarray, V: np.ndarray, U: np.ndarray, parisi: float,
    z: np.ndarray | None = None, jumps: bool = False,
) -> tuple[InnerAverages, np.ndarray]:  # fmt: skip
    """Return the averages of the output denoiser over the inner field, and the minimizers at its nodes.

    Eq. :eq:`survey-fields`.

    Parameters
    ----------
    loss, params : the per-sample loss and its parameters (n, P).
    omega : (n, L, r) centers ω.
    V : (L, r, r) symmetric positive definite blocks.
    U : (L, r, r) covariance of the inner field, positive semidefinite.
    parisi : Parisi parameter y >= 0, the inverse of a loss per sample.
    z : (n, K, L r) minimizers from which the proximal steps at the K nodes start; the fields at the nodes if None.
    jumps : whether minima at the nodes are searched for globally, and the response contains the jumps of the minimum
        between nodes, as in one step of replica symmetry breaking. Needs U positive definite.

    Returns
    -------
    InnerAverages, and the minimizers (n, K, L r) that were reached: minima of the proximal objective.
    """
    n, L, r = omega.shape
    nodes, logs = inner_nodes(L * r)
    root, u, step = psd_root(U), nodes.reshape(-1, L, r), max(1, MAX_ROWS // len(logs))
    inner = np.einsum("lab,klb->kla", root, u)
    slopes = np.einsum("klc,lcb->klb", u, np.linalg.inv(root)) if jumps else None
    parts = []
    for first in range(0, n, step):
        rows = slice(first, first + step)
        fields, start = omega[rows, None] + inner, None if z is None else z[rows]
        at_nodes = _denoise_nodes(loss, params[rows], fields, V, start, jumps)
        parts.append((*_average_nodes(*at_nodes[:3], logs, slopes, parisi), at_nodes[3]))
    *averages, minimizers = map(np.concatenate, zip(*parts, strict=True))
    return InnerAverages(*averages), minimizers


def _denoise_nodes(
    loss: Any, params: np.ndarray, fields: np.ndarray, V: np.ndarray, z: np.ndarray | None, jumps: bool
) -> tuple[np.ndarray, ...]:
    """Return M (n, K), g and R at all nodes of n samples, for fields (n, K, L, r), and the minimizers (n, K, L r)."""
    n, K, L, r = shape = fields.shape
    params, fields = np.repeat(params, K, axis=0), fields.reshape(n * K, L, r)
    start = fields if z is None else z.reshape(fields.shape)
    if L * r == 1:  # at zero, an even loss may have a maximum, at which a minimization of one field would stay
        start = np.where(start == 0, OFF_ZERO * np.sqrt(V[0, 0, 0]), start)
    steps = denoise(loss, params, fields, V, start, max_starts=None if jumps else 0)
    best = np.repeat(np.argmin(steps.moreau.reshape(n, K), axis=1) + K * np.arange(n), K)
    away = steps.z[best] - fields
    forces = (np.linalg.inv(V) @ away[..., None])[..., 0]
    there = steps.loss[best] + 0.5 * np.sum(forces * away, axis=(1, 2))
    lower = (there < steps.moreau - 1e-9 * np.abs(steps.moreau)) & (best != np.arange(n * K))
    if lower.any():
        again = denoise(loss, params[lower], fields[lower], V, steps.z[best[lower]], hold=True)
        for name in ("z", "g", "response", "moreau"):
            getattr(steps, name)[lower] = getattr(again, name)
    response = steps.response.reshape(*shape, r)
    return steps.moreau.reshape(n, K), steps.g.reshape(shape), response, steps.z.reshape(n, K, L * r)


def _average_nodes(
    moreau: np.ndarray, g: np.ndarray, response: np.ndarray, logs: np.ndarray, slopes: np.ndarray | None, parisi: float
) -> InnerAverages:
    """Return the averages of n samples, given proximal steps at the nodes; `slopes` u U^{−½} if with jumps."""
    logs = logs - parisi * moreau
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    mean = np.einsum("nk,nkla->nla", weights, g)
    away = g - mean[:, None]
    weighted = weights[:, :, None, None] * away
    spread = np.einsum("nkla,nklb->nlab", weighted, away)
    if slopes is None:
        mean_response = np.einsum("nk,nklab->nlab", weights, response)
    else:  # −∂ḡ/∂ω = R̄ − yΔ by Stein's identity
        mean_response = parisi * spread - np.einsum("nkla,klb->nlab", weighted, slopes)
    return InnerAverages(mean, mean_response, spread, np.sum(weights * moreau, axis=1))


class QuadraticClusters(NamedTuple):
    """Averages over the inner field for a quadratic penalty, in closed form, for K coordinates or classes."""

    precision: np.ndarray  # (K, r, r) A − yΔ, so that b = X̃ᵀḡ + (A − yΔ) Q
    inner: np.ndarray  # (K, r, r) c = (Λ + A)⁻¹, the response at a given inner field
    response: np.ndarray  # (K, r, r) C = (Λ + A − yΔ)⁻¹, the response of the mean weights: ⟨x⟩ = C b
    covariance: np.ndarray  # (K, r, r) C Δ c, the covariance of the weights


def quadratic_clusters(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, spread: np.ndarray, parisi: float
) -> QuadraticClusters:
    """Return the averages of the weights over the inner field for a quadratic penalty. Eq. :eq:`survey-weights`.

    With A = Σ_l γ_l V̂_l, Δ = Σ_l γ_l Δ_l and the field b = X̃ᵀḡ + (A − yΔ) Q, the mean weights are C b. Δ is reduced if
    y C Δ would exceed `MAX_GAIN`, which happens only far from fixed points, so that fixed points stay the same.

    Parameters
    ----------
    penalty : the penalty.
    spectra : (L, d), (L, 1) or (L, K) variances γ_l of the coordinates or classes.
    V_hat, spread : (L, r, r) mean response of the samples at a given inner field, and mean spread of their forces.
    parisi : Parisi parameter y >= 0.
    """
    A, c, _ = quadratic_response(penalty, spectra, V_hat)
    delta = _limit_gain(np.einsum("li,lab->iab", spectra, spread), c, parisi)
    C = np.linalg.inv(np.linalg.inv(c) - parisi * delta)
    return QuadraticClusters(A - parisi * delta, c, C, C @ delta @ c)


def _limit_gain(delta: np.ndarray, C: np.ndarray, parisi: float) -> np.ndarray:
    """Return Δ (K, r, r), scaled down if the largest eigenvalue of y C^{1/2} Δ C^{1/2} exceeds `MAX_GAIN`."""
    root = psd_root(C)
    gain = diagonalize(root @ (parisi * delta) @ root)[0][:, -1]
    return delta * np.minimum(1.0, MAX_GAIN / np.maximum(gain, 1e-300))[:, None, None]


def first_variances(
    penalty: Any, spectra: np.ndarray, samples: Sequence[tuple[Any, np.ndarray, np.ndarray, float]], rank: int,
    fractions: np.ndarray | None = None, n_steps: int = 20,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Return the variances V and U (S, r, r) from which survey propagation begins, and mean Moreau envelopes.

    U is the second moment of the fields of weights with unit variance, and V the self-consistent variance of uniformly
    weighted inner fields around zero, at most the initial variance of message passing.

    Parameters
    ----------
    penalty : the penalty.
    spectra : (S, K) variances γ of K coordinates, or of K classes of coordinates.
    samples : for each group of samples the loss, its parameters (n, P), the sources (L,) of the tokens, and the number
        by which sums over the group are divided: the dimension d.
    rank : number of columns r.
    fractions : (K,) fraction of the coordinates in each class; equal if not given.
    n_steps : number of damped iterations.
    """
    fractions = np.full(spectra.shape[1], 1 / spectra.shape[1]) if fractions is None else fractions
    U = (spectra @ fractions)[:, None, None] * np.eye(rank)
    V = highest = initial_variances(spectra @ fractions, penalty.strength, rank)
    z: list[np.ndarray | None] = [None] * len(samples)
    envelopes = [np.zeros(0)] * len(samples)
    for _ in range(n_steps):
        responses = np.zeros(V.shape)
        for k, (loss, params, sources, dim) in enumerate(samples):
            zero = np.zeros((len(params), len(sources), rank))
            averages, z[k] = average_fields(loss, params, zero, V[sources], U[sources], 0.0, z[k])
            responses[sources] += averages.response.sum(axis=0) / dim
            envelopes[k] = averages.envelope
        W = prior_response(spectra, penalty.strength, symmetrize(responses), fractions)[2]
        excess = np.trace(W, axis1=1, axis2=2) / np.trace(highest, axis1=1, axis2=2)
        V = 0.5 * (V + W / np.maximum(excess, 1.0)[:, None, None])
    return V, U, envelopes
