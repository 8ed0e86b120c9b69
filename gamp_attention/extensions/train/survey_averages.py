"""Denoisers of survey propagation: averages of the denoisers of GAMP over a Gaussian inner field.

Survey propagation describes a cluster of minima by the distribution of its fields: a Gaussian with covariance U_l
around the center ω_l, with the Boltzmann weight of the proximal objective at the Parisi parameter y. For one sample,
with the Moreau envelope M and the denoiser z, g, R = −∂g/∂ω of `gamp_attention.problem.denoisers.output`,

    P(u) ∝ N(u; 0, 1) exp(−y M(ω + √U u))
    ḡ = ⟨g⟩,   R̄_l = ⟨R_l⟩,   Δ_l = ⟨g_l g_lᵀ⟩ − ⟨g_l⟩⟨g_l⟩ᵀ      averages over P, the fields being ω + √U u

For one coordinate of the weights with inner precision A, spread Δ of its force and φ(b) = max_x bᵀx − r(x) − ½ xᵀA x,

    P(u) ∝ N(u; 0, 1) exp(y φ(b + √Δ u)),   η̄ = ⟨x⟩,   C̄ = ⟨∂x/∂b⟩,   Δx = ⟨x xᵀ⟩ − ⟨x⟩⟨x⟩ᵀ

This is one step of replica symmetry breaking at zero temperature (Mézard and Parisi, 2003), for generalized linear
models in Lucibello, Saglietti and Lu (2019). For y → 0 and U = 0 the averages are the denoisers of GAMP.

The averages over fields are sums over few nodes: the proximal step of each node starts from its minimizer in the last
iteration. Afterwards a node whose objective is lower at the minimizer of the best node continues from there. The
response is the a.e. derivative. With `jumps`, minima are global, and the response is −∂ḡ/∂ω + yΔ by Stein's identity,

    R̄_l = yΔ_l − (⟨g_l u_lᵀ⟩ − ⟨g_l⟩⟨u_l⟩ᵀ) U_l^{−1/2},

which differs from the a.e. derivative if the minimum jumps between nodes. With a single field the integrals end at
jumps: M is the smaller of two branches, which are continued to second order from the nodes next to a jump, and an
integrand f = e^{−u²/2 − yM} φ is integrated on both sides up to the field at which they are equal. With a fraction t of
the distance h between the nodes on the side of u_s, the formula of Euler and Maclaurin gives

    ∫_{−∞}^{u*} f = h (½ f_s + Σ_{k<s} f_k + t f_s) + h² (t²/2 − 1/12) f_s' + h³ t³/6 f_s'' + O(h⁴)

and the same on the other side with 1 − t. Without this correction ḡ jumps as a function of ω if a node passes a jump.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.numerics import diagonalize, psd_root, symmetrize
from gamp_attention._tools.quadrature import gauss_hermite, gaussian_points, tensor_grid
from gamp_attention.problem.denoisers.input import (
    MIN_CURVATURE,
    denoise_weights,
    field_variances,
    initial_variances,
    precisions,
    prior_response,
    products,
    quadratic_response,
)
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.penalties.standard import penalty_of_rows

NODES_PER_FIELD = {1: 11, 2: 4, 3: 3}  # nodes of the product rule in each dimension, by the number of dimensions
END, SPACING = 7.0, 0.35  # largest node of the rule for samples of a single field, and distance between its nodes
MAX_GAIN = 0.9  # maximum eigenvalue of y C^{1/2} Δ C^{1/2}; at 1 the average over the inner field would diverge
OFF_ZERO = 1e-3  # start of a minimization that would begin at zero, in units of √V
MAX_ROWS = 1 << 15  # maximum number of proximal steps, at the nodes of all samples, that are computed at once
JUMP = 0.25  # fraction of the change of z between nodes, not explained by its derivative, above which z jumps
CROSSING_STEPS = 4  # number of Newton steps for the field at which two branches of M are equal
MAX_TILT = 0.4  # largest change of the weight of a node by the slope of e^{−u²/2 − yM}, if nodes are too far apart


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
    # (n, L, r, r) ⟨−∂g_l/∂ω_l⟩, the a.e. derivative within each token, or with the jumps of the minimum.
    response: np.ndarray
    spread: np.ndarray  # (n, L, r, r) covariance of g_l under the weights
    envelope: np.ndarray  # (n,) ⟨M⟩, the mean Moreau envelope
    potential: np.ndarray  # (n,) log E_u exp(−y M)


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
        between nodes, as in one step of replica symmetry breaking. With a single field all averages are integrals up to
        the jumps. Needs U positive definite.

    Returns
    -------
    InnerAverages, and the minimizers (n, K, L r) that were reached: minima of the proximal objective.
    """
    n, L, r = omega.shape
    nodes, logs = inner_nodes(L * r)
    inner = InnerField(nodes.reshape(-1, L, r), logs, psd_root(U), parisi, jumps)
    step = max(1, MAX_ROWS // len(logs))
    parts = [
        _average_samples(loss, params[rows], omega[rows], V, inner, None if z is None else z[rows])
        for rows in (slice(first, first + step) for first in range(0, n, step))
    ]
    averages, minimizers = zip(*parts, strict=True)
    return InnerAverages(*map(np.concatenate, zip(*averages, strict=True))), np.concatenate(minimizers)


class InnerField(NamedTuple):
    """Nodes of the inner field, of the same distribution for all samples."""

    nodes: np.ndarray  # (K, L, r)
    logs: np.ndarray  # (K,) logarithms of their weights
    root: np.ndarray  # (L, r, r) √U
    parisi: float
    jumps: bool


def _average_samples(
    loss: Any, params: np.ndarray, omega: np.ndarray, V: np.ndarray, inner: InnerField, z: np.ndarray | None
) -> tuple[InnerAverages, np.ndarray]:
    """Return the averages of a few samples, whose proximal steps at all nodes are computed at once."""
    (n, L, r), K = omega.shape, len(inner.nodes)
    fields = (omega[:, None] + np.einsum("lab,klb->kla", inner.root, inner.nodes)).reshape(n * K, L, r)
    params = np.repeat(params, K, axis=0)
    start = fields if z is None else z.reshape(fields.shape)
    if L * r == 1:  # at zero, an even loss may have a maximum, at which a minimization of one field would stay
        start = np.where(start == 0, OFF_ZERO * np.sqrt(V[0, 0, 0]), start)
    steps = denoise(loss, params, fields, V, start, max_starts=None if inner.jumps else 0)
    best = np.repeat(np.argmin(steps.moreau.reshape(n, K), axis=1) + K * np.arange(n), K)
    away = steps.z[best] - fields
    forces = (np.linalg.inv(V) @ away[..., None])[..., 0]
    there = steps.loss[best] + 0.5 * np.sum(forces * away, axis=(1, 2))
    lower = (there < steps.moreau - 1e-9 * np.abs(steps.moreau)) & (best != np.arange(n * K))
    if lower.any():
        again = denoise(loss, params[lower], fields[lower], V, steps.z[best[lower]], hold=True)
        for name in ("z", "g", "response", "moreau"):
            getattr(steps, name)[lower] = getattr(again, name)
    at_nodes = steps.moreau.reshape(n, K), steps.g.reshape(n, K, L, r), steps.response.reshape(n, K, L, r, r)
    minimizers = steps.z.reshape(n, K, L * r)
    if inner.jumps and L * r == 1:
        moreau, g, response = (part.reshape(n, K) for part in at_nodes)
        return _average_branches(moreau, g, response, minimizers[:, :, 0], V, inner), minimizers
    return _average_nodes(*at_nodes, inner), minimizers


def _average_nodes(moreau: np.ndarray, g: np.ndarray, response: np.ndarray, inner: InnerField) -> InnerAverages:
    """Return the averages of n samples, given proximal steps at the nodes, as sums over the nodes."""
    logs = inner.logs - inner.parisi * moreau
    largest = logs.max(axis=1, keepdims=True)
    weights = np.exp(logs - largest)
    total = weights.sum(axis=1, keepdims=True)
    weights /= total
    mean = np.einsum("nk,nkla->nla", weights, g)
    away = g - mean[:, None]
    weighted = weights[:, :, None, None] * away
    spread = np.einsum("nkla,nklb->nlab", weighted, away)
    if inner.jumps:  # −∂ḡ/∂ω = R̄ − yΔ by Stein's identity
        slopes = np.einsum("klc,lcb->klb", inner.nodes, np.linalg.inv(inner.root))
        mean_response = inner.parisi * spread - np.einsum("nkla,klb->nlab", weighted, slopes)
    else:
        mean_response = np.einsum("nk,nklab->nlab", weights, response)
    potential = (largest + np.log(total))[:, 0]
    return InnerAverages(mean, mean_response, spread, np.sum(weights * moreau, axis=1), potential)


def _average_branches(
    moreau: np.ndarray, g: np.ndarray, response: np.ndarray, z: np.ndarray, V: np.ndarray, inner: InnerField
) -> InnerAverages:
    """Return the averages of n samples with a single field, integrated up to the jumps of the minimum.

    With derivatives by u, the average of φ is Σ_s (values_s φ_s + tilts_s φ_s' + bends_s φ_s''). It is needed for 1, g,
    g², g u, u and M; the third derivative of M is neglected.
    """
    u, root, y = inner.nodes[:, 0, 0], float(inner.root[0, 0, 0]), inner.parisi
    h = u[1] - u[0]
    smooth = -0.5 * root * h * (response[:, :-1] + response[:, 1:])  # change of g by R = −g'
    jumps = np.abs(V[0, 0, 0] * (np.diff(g) - smooth)) > JUMP * np.abs(np.diff(z))
    t = _crossings(root * h, moreau, g, response)
    values, tilts, bends = np.ones_like(g), np.zeros_like(g), np.zeros_like(g)
    # the slope and curvature of the logarithm of e^{−u²/2 − yM}
    slope, curvature = y * root * g - u, -y * root**2 * response - 1.0
    # the integrals over a fraction t of the distance after a node, and over the rest before the next
    for side, nodes, part in ((1.0, slice(None, -1), t), (-1.0, slice(1, None), 1.0 - t)):
        tilt, bend = side * h * (0.5 * part**2 - 1.0 / 12.0), h * h * part**3 / 6.0
        change = tilt * slope[:, nodes] + bend * (slope[:, nodes] ** 2 + curvature[:, nodes])
        values[:, nodes] += np.where(jumps, part - 0.5 + np.clip(change, -MAX_TILT, MAX_TILT), 0.0)
        tilts[:, nodes] += np.where(jumps, tilt + 2.0 * bend * slope[:, nodes], 0.0)
        bends[:, nodes] += np.where(jumps, bend, 0.0)
    logs = inner.logs - y * moreau
    largest = logs.max(axis=1)
    values, tilts, bends = (part * np.exp(logs - largest[:, None]) for part in (values, tilts, bends))
    total, dg = values.sum(axis=1), -root * response
    sums = (
        values * g + tilts * dg,
        values * g**2 + 2.0 * tilts * g * dg + 2.0 * bends * dg**2,
        values * g * u + tilts * (dg * u + g) + 2.0 * bends * dg,
        values * u + tilts,
        values * moreau - root * (tilts * g + bends * dg),
    )
    mean, square, product, center, envelope = (part.sum(axis=1) / total for part in sums)
    spread = np.maximum(square - mean**2, 0.0)
    mean_response = y * spread - (product - mean * center) / root
    one = (len(g), 1, 1, 1)
    matrices = mean_response.reshape(one), spread.reshape(one)
    return InnerAverages(mean.reshape(one[:3]), *matrices, envelope, largest + np.log(total))


def _crossings(distance: float, moreau: np.ndarray, g: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return the fractions (n, K − 1) of the distance from each node at which both branches of M are equal."""
    x, here, there = np.full(g[:, 1:].shape, 0.5 * distance), response[:, :-1], response[:, 1:]
    for _ in range(CROSSING_STEPS):
        to_next = distance - x
        left = moreau[:, :-1] - g[:, :-1] * x + 0.5 * here * x**2
        right = moreau[:, 1:] + g[:, 1:] * to_next + 0.5 * there * to_next**2
        opening = g[:, 1:] + there * to_next - g[:, :-1] + here * x
        steps = (left - right) / np.where(opening > 0.0, opening, np.inf)
        x = np.clip(x - steps, 0.0, distance)
    return x / distance


class ClusterWeights(NamedTuple):
    """Averages over the inner field of K coordinates, or of K classes of coordinates."""

    eta: np.ndarray  # (K, r) new weights ⟨x⟩
    inner: np.ndarray  # (K, r, r) ⟨∂x/∂b⟩, the response for a given inner field
    covariance: np.ndarray  # (K, r, r) covariance Δx of the weights under the inner field


def average_weights(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, spread: np.ndarray, force: np.ndarray, Q: np.ndarray,
    parisi: float,
) -> ClusterWeights:  # fmt: skip
    """Return the averages of the input denoiser at weights Q (d, r) for the force X̃ᵀḡ (d, r).

    Eq. :eq:`survey-weights`.

    The field is b = X̃ᵀḡ + (A − yΔ) Q with A = Σ_l γ_l V̂_l and Δ = Σ_l γ_l Δ_l. Δ is reduced if y C Δ would exceed
    `MAX_GAIN`, which happens only far from fixed points, so that fixed points stay the same. An intercept takes a
    Newton step, and is common to all weights of the cluster.

    Parameters
    ----------
    penalty : the penalty.
    spectra : (L, d) or (L, 1) variances γ_l of the coordinates.
    V_hat, spread : (L, r, r) mean response of the samples at a given inner field, and mean spread of their forces.
    force, Q : (d, r).
    parisi : Parisi parameter y >= 0.
    """
    if penalty.intercept:
        others = average_weights(penalty.penalty, spectra[:, :-1], V_hat, spread, force[:-1], Q[:-1], parisi)
        response = intercept_response(penalty.strength, V_hat, spread, parisi)[None]
        last = Q[-1:] + products(response, force[-1:]), response, np.zeros_like(response)
        n = len(Q) - 1
        each = others.eta, *(np.broadcast_to(part, (n, *part.shape[1:])) for part in others[1:])
        return ClusterWeights(*map(np.concatenate, zip(each, last, strict=True)))
    if penalty.quadratic:
        clusters = quadratic_clusters(penalty, spectra, V_hat, spread, parisi)
        eta = products(clusters.response, force + products(clusters.precision, Q))
        return ClusterWeights(eta, clusters.inner, clusters.covariance)
    A = precisions(penalty, spectra, V_hat)
    largest = np.linalg.inv(A + penalty.convexity * np.eye(A.shape[1]))
    delta = _limit_gain(np.einsum("li,lab->iab", spectra, spread), largest, parisi)
    shape = (len(Q), *A.shape[1:])
    A, delta = np.broadcast_to(A, shape), np.broadcast_to(delta, shape)
    return _average_prox(penalty, force + products(A - parisi * delta, Q), A, delta, parisi)


class ClusterUpdate(NamedTuple):
    """Weights and variances of the fields after a step of survey propagation."""

    Q: np.ndarray  # (d, r) mean weights of the cluster
    V: np.ndarray  # (L, r, r) variances of the fields within it
    U: np.ndarray  # (L, r, r) variances of the inner fields
    W: np.ndarray  # (L, r, r) the values that V approaches
    W_inner: np.ndarray  # (L, r, r) the values that U approaches


def update_cluster(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, spread: np.ndarray, force: np.ndarray, Q: np.ndarray,
    V: np.ndarray, U: np.ndarray, parisi: float, beta: float,
) -> ClusterUpdate:  # fmt: skip
    """Return the weights and the variances after a step β; other arguments as for `average_weights`.

    Eq. :eq:`survey-step`.
    """
    new = average_weights(penalty, spectra, V_hat, spread, force, Q, parisi)
    of_inner, of_covariance = (np.broadcast_to(spectra, (len(spectra), len(x))) for x in (new.inner, new.covariance))
    W = field_variances(penalty, of_inner, new.inner)
    W_inner = symmetrize(np.einsum("li,iab->lab", of_covariance, new.covariance)) / len(new.covariance)
    Q, V, U = (1 - beta) * Q + beta * new.eta, (1 - beta) * V + beta * W, (1 - beta) * U + beta * W_inner
    return ClusterUpdate(Q, V, U, W, W_inner)


class QuadraticClusters(NamedTuple):
    """Averages over the inner field for a quadratic penalty, in closed form, for K coordinates or classes."""

    precision: np.ndarray  # (K, r, r) A − yΔ, so that b = X̃ᵀḡ + (A − yΔ) Q
    inner: np.ndarray  # (K, r, r) c = (Λ + A)⁻¹, the response at a given inner field
    response: np.ndarray  # (K, r, r) C = (Λ + A − yΔ)⁻¹, the response of the mean weights: ⟨x⟩ = C b
    covariance: np.ndarray  # (K, r, r) C Δ c, the covariance of the weights


def quadratic_clusters(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, spread: np.ndarray, parisi: float
) -> QuadraticClusters:
    """Return the averages over the inner field for a quadratic penalty; arguments as for `average_weights`."""
    A, c, _ = quadratic_response(penalty, spectra, V_hat)
    delta = _limit_gain(np.einsum("li,lab->iab", spectra, spread), c, parisi)
    C = np.linalg.inv(np.linalg.inv(c) - parisi * delta)
    return QuadraticClusters(A - parisi * delta, c, C, C @ delta @ c)


def intercept_response(strength: float, V_hat: np.ndarray, spread: np.ndarray, parisi: float) -> np.ndarray:
    """Return C (r, r), the factor of Σ_l m̂_l in a step of an unpenalized intercept: (Σ_l V̂_l − yΔ_l)⁻¹.

    All minima of a cluster have the same intercept, up to deviations of order d^(−1/2). Far from fixed points Δ is
    reduced as for the weights.

    Parameters
    ----------
    strength : unit of variances of the penalty.
    V_hat, spread : (L, r, r) mean response of the samples at a given inner field, and mean spread of their forces.
    parisi : Parisi parameter y >= 0.
    """
    spectrum, vectors = np.linalg.eigh(symmetrize(V_hat.sum(axis=0)))
    A = vectors * np.maximum(spectrum, MIN_CURVATURE * strength) @ vectors.T
    delta = _limit_gain(spread.sum(axis=0)[None], np.linalg.inv(A)[None], parisi)[0]
    return np.linalg.inv(A - parisi * delta)


def _limit_gain(delta: np.ndarray, C: np.ndarray, parisi: float) -> np.ndarray:
    """Return Δ (K, r, r), scaled down if the largest eigenvalue of y C^{1/2} Δ C^{1/2} exceeds `MAX_GAIN`."""
    root = psd_root(C)
    gain = diagonalize(root @ (parisi * delta) @ root)[0][:, -1]
    return delta * np.minimum(1.0, MAX_GAIN / np.maximum(gain, 1e-300))[:, None, None]


def _average_prox(
    penalty: Any, b: np.ndarray, A: np.ndarray, delta: np.ndarray, parisi: float, n_steps: int = 4
) -> ClusterWeights:
    """Return the averages for any penalty, by nodes around the maximum of the weight of the inner field.

    The maximum is approached by a number of Newton steps.
    """
    root, one = psd_root(delta), np.eye(b.shape[1])
    center = np.zeros(b.shape)
    for _ in range(n_steps):  # the maximum solves u = y √Δ x(b + √Δ u)
        x, C = denoise_weights(penalty, b + products(root, center), A)
        curvature = one - parisi * root @ C @ root
        center = center - np.linalg.solve(curvature, (center - parisi * products(root, x))[..., None])[..., 0]
    _, C = denoise_weights(penalty, b + products(root, center), A)
    width = np.linalg.inv(psd_root(one - parisi * root @ C @ root))
    xs, Cs, logs = [], [], []
    for node, log_weight in zip(*gaussian_nodes(b.shape[1]), strict=True):
        u = center + width @ node
        field = b + products(root, u)
        x, C = denoise_weights(penalty, field, A)
        phi = np.sum(field * x - 0.5 * x * products(A, x), axis=1) - penalty_of_rows(penalty, x)
        xs.append(x)
        Cs.append(C)
        logs.append(log_weight + 0.5 * (node @ node - np.sum(u**2, axis=1)) + parisi * phi)
    weights = np.exp(np.array(logs) - np.max(logs, axis=0))
    weights /= weights.sum(axis=0)
    eta = np.einsum("ki,kia->ia", weights, xs)
    away = np.array(xs) - eta
    return ClusterWeights(
        eta, np.einsum("ki,kiab->iab", weights, Cs), np.einsum("ki,kia,kib->iab", weights, away, away)
    )


def first_variances(
    penalty: Any, spectra: np.ndarray, samples: Sequence[tuple[Any, np.ndarray, np.ndarray, float]], rank: int,
    fractions: np.ndarray | None = None, n_steps: int = 20,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Return the variances V and U (S, r, r) from which survey propagation begins, and mean Moreau envelopes.

    U is the second moment of the fields of weights with unit variance, and V the self-consistent variance of uniformly
    weighted inner fields around zero, at most the initial variance of message passing. An intercept is zero.

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
