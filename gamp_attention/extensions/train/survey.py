"""Survey propagation: message passing over clusters of minima, which finds low minima from random starts.

Generalized approximate survey propagation (Lucibello, Saglietti and Lu, 2019) is GAMP with one step of replica symmetry
breaking: besides the weights Q and the variances V, it has the covariance U of the fields between the minima of a
cluster; see `survey_step`. For y = 0 and U = 0 the iteration is GAMP. If U goes to zero, all minima of the cluster
coincide: then it has found a fixed point of GAMP, for example a minimum that no random start of GAMP reaches.

Parisi parameters are in units of the inverse standard deviation over samples of the Moreau envelope at weights without
information, so that they do not depend on the scale of the loss.

The averages over the inner field of a sample are sums over few nodes: the proximal step of each node starts from its
minimizer in the last iteration. Afterwards a node whose objective is lower at the minimizer of the best node continues
from there. The response is the a.e. derivative. With `jumps`, minima are global, and the response is −∂ḡ/∂ω + yΔ by
Stein's identity, R̄_l = yΔ_l − (⟨g_l u_lᵀ⟩ − ⟨g_l⟩⟨u_l⟩ᵀ) U_l^{−1/2}, which differs if the minimum jumps between nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from gamp_attention._tools import progress
from gamp_attention._tools.numerics import diagonalize, psd_root, symmetrize
from gamp_attention._tools.quadrature import gauss_hermite, gaussian_points, tensor_grid
from gamp_attention.gamp.step import averaged_memory
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.input import (
    field_variances,
    initial_variances,
    mean_response,
    products,
    quadratic_response,
)
from gamp_attention.problem.denoisers.newton import NotPositiveDefinite
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.passes import TokenMatrix, next_memory
from gamp_attention.problem.penalties.standard import Ridge
from gamp_attention.problem.risk import is_convex, overlaps, risk_at
from gamp_attention.problem.sources import sum_over_tokens
from gamp_attention.problem.stores import join_parts, token_blocks
from gamp_attention.results import Result

LADDER = (1.5, 3.0)  # Parisi parameters of the surveys from each start; then one random start for each of them
REFINED_AT = 3.0  # Parisi parameter of the survey from the lowest minimum
EQUAL_LOSSES = 1e-6  # standard deviation of losses, in units of their mean, below which all samples count as equal
NODES_PER_FIELD = {2: 4, 3: 3}  # nodes of the product rule in each dimension, by the number of dimensions
END, SPACING = 7.0, 0.35  # largest node of the rule for samples of a single field, and distance between its nodes
MAX_GAIN = 0.9  # maximum eigenvalue of y C^{1/2} Δ C^{1/2}; at 1 the average over the inner field would diverge
OFF_ZERO = 1e-3  # start of a minimization that would begin at zero, in units of √V
MAX_ROWS = 1 << 15  # maximum number of proximal steps, at the nodes of all samples, that are computed at once


class SurveyState(NamedTuple):
    """State of survey propagation between two iterations."""

    Q: np.ndarray  # (d, r) weights
    V: np.ndarray  # (S, r, r) variances of the fields within a minimum; S = L, or the number of sources of a mixture
    U: np.ndarray  # (S, r, r) covariances of the fields between the minima of a cluster
    D: np.ndarray  # (n, L, r) Onsager memory
    z: np.ndarray | None = None  # (n, K, L r) minimizers at the nodes of the inner field; None at first


def survey_step(
    data: Dataset, risk: str, state: SurveyState, beta: float, parisi: float, jumps: bool = False
) -> SurveyState:
    """Return the state after one iteration of survey propagation with step β at the Parisi parameter y.

    Eq. :eq:`survey-step`. With averages over the inner field ω + √U u in `average_fields`,

        ω_l = X̃_l Q − D_l,   V̂_l = (1/d) Σ_μ R̄_l,   Δ_l = (1/d) Σ_μ Δ_{μ,l},   η = mean weights for the force X̃ᵀḡ
        Q ← (1−β) Q + β η,   V ← (1−β) V + β W,   U ← (1−β) U + β W',   D ← (1−β) D + β (W + y W') ḡ

    See `average_fields` for `jumps`. Raises NotPositiveDefinite if V is no longer positive definite.
    """
    Q, V, U = state.Q, state.V, state.U
    params, parts, force = data.terms(risk).params, list[InnerAverages](), np.zeros(Q.shape)
    for rows, sources, block in token_blocks(data.matrix.tokens, data.groups):
        matrix = TokenMatrix(block, data.matrix.positions)
        omega = matrix.fields(Q) - state.D[rows]
        start = None if state.z is None else state.z[rows]
        parts.append(average_fields(data.loss, params[rows], omega, V[sources], U[sources], parisi, start, jumps))
        force += matrix.back_project(parts[-1].g)
    averages = join_parts(parts)
    V_hat, spread = (
        symmetrize(sum_over_tokens(data.groups, data.n_sources, values)) / data.dim
        for values in (averages.response, averages.spread)
    )
    new = quadratic_clusters(data.penalty, data.spectra, V_hat, spread, parisi)
    eta = products(new.response, force + products(new.precision, Q))
    D = next_memory(data.groups, state.D, averages.g, averaged_memory, V, new.W + parisi * new.W_inner, beta)
    Q, V, U = ((1 - beta) * old + beta * to for old, to in ((Q, eta), (V, new.W), (U, new.W_inner)))
    return SurveyState(Q, V, U, D, averages.z)


class SurveyEnd(Enum):
    """Ending of a survey.

    Attributes
    ----------
    COLLAPSED : U went to zero, so that the weights are near a fixed point of message passing.
    SPREAD : it came to rest or reached its last iteration, and the cluster still consists of several minima.
    FAILED : V was no longer positive definite, or numbers were not finite.
    """

    COLLAPSED = "collapsed"
    SPREAD = "spread"
    FAILED = "failed"


@dataclass(frozen=True, eq=False)
class SurveyRecord(Result):
    """Outcome of one survey of `train(survey=...)`, from whose weights message passing continues.

    Attributes
    ----------
    name : name of the start from which the survey began; "minimum" for the survey from the lowest minimum.
    parisi : Parisi parameter y, the inverse of a loss per sample.
    ending : reason for its end.
    n_iter : number of iterations.
    spread : trace of U in units of the trace of the fields' second moments, at the end.
    train_loss : training loss ε_t of its weights.
    Q : (d, r) its weights.
    """

    name: str
    parisi: float
    ending: SurveyEnd
    n_iter: int
    spread: float
    train_loss: float
    Q: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except Q as plain data."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


@dataclass(frozen=True)
class SurveySettings:
    """Step and ends of surveys; spreads are in units of the trace of the fields' second moments."""

    step: float = 0.4  # step β
    n_iter: int = 45  # maximum number of iterations
    collapsed: float = 1e-2  # spread below which a cluster has collapsed
    # iteration from which a survey ends if its spread is above `wide`, because it will not collapse
    late: int = 30
    wide: float = 0.2
    rest: float = 3e-3  # relative change of the weights in an iteration below which a survey may have come to rest
    spread_at_rest: float = 2e-2  # the same for the spread; above it, a survey collapses slowly


def survey_units(data: Dataset, risk: str) -> tuple[np.ndarray, np.ndarray, float]:
    """Return V and U (S, r, r) from which surveys begin, and the unit of the Parisi parameter."""
    terms = data.terms(risk)
    samples = [(data.loss, terms.params[rows], sources, float(data.dim)) for rows, sources in data.groups]
    V, U, envelopes = first_variances(data.penalty, data.spectra, samples, data.rank)
    losses = np.concatenate(envelopes) + terms.constant
    deviation, mean = float(np.std(losses)), float(np.mean(np.abs(losses)))
    scale = deviation if deviation > EQUAL_LOSSES * mean else mean
    return V, U, 1 / scale if np.isfinite(scale) and scale > 0 else 1.0


def run_survey(
    data: Dataset, risk: str, name: str, start: SurveyState, parisi: float, settings: SurveySettings = SurveySettings()
) -> SurveyRecord:
    """Return the record of the survey from a start of a name.

    It ends as soon as it has come to rest, or if its spread is still large at a late iteration; but not from a minimum,
    where it first seems to rest.
    """
    jumps = data.n_tokens * data.rank == 1 and not is_convex(data)  # searches of one field are cheap
    state, t, spread, ending, rests = start, 0, np.inf, SurveyEnd.SPREAD, False
    while t < settings.n_iter and not rests and ending is SurveyEnd.SPREAD:
        progress.describe(f"survey from {name}, iteration {t}, spread {spread:.1e}")
        try:
            after = survey_step(data, risk, state, settings.step, parisi, jumps)
            if not (np.isfinite(after.Q).all() and np.isfinite(after.U).all()):
                raise FloatingPointError
        except (np.linalg.LinAlgError, NotPositiveDefinite, FloatingPointError):
            ending = SurveyEnd.FAILED
            break
        change = float(np.linalg.norm(after.Q - state.Q)) / max(float(np.linalg.norm(after.Q)), 1e-300)
        moments = np.einsum("laa->", overlaps(data, after.Q).q)  # of the fields
        state, t, before = after, t + 1, spread
        spread = float(np.trace(after.U, axis1=1, axis2=2).sum() / max(moments, np.finfo(float).tiny))
        if spread < settings.collapsed:
            ending = SurveyEnd.COLLAPSED
        at_rest = change < settings.rest and abs(spread - before) < settings.spread_at_rest * spread
        rests = name != "minimum" and (at_rest or (t >= settings.late and spread > settings.wide))
    return SurveyRecord(name, parisi, ending, t, spread, risk_at(data, state.Q, risk).train_loss, state.Q)


@lru_cache
def inner_nodes(n_fields: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (K, n_fields) for the inner field of a sample, and the logarithms of their weights (K,).

    For one field they are equidistant, because the integrand has a kink where the minimum jumps; for up to three fields
    the product rule of Gauss and Hermite, else quasi-random points in pairs ±u, at least four for each dimension.
    """
    if n_fields == 1:
        u = np.linspace(-END, END, 1 + round(2 * END / SPACING))
        return u[:, None], -0.5 * u**2 - np.log(np.exp(-0.5 * u**2).sum())
    if n_fields not in NODES_PER_FIELD:
        points = gaussian_points(1 << (4 * n_fields - 1).bit_length(), n_fields, np.random.default_rng(11))
        return points, np.full(len(points), -np.log(len(points)))
    x, weight = gauss_hermite(NODES_PER_FIELD[n_fields])
    return tensor_grid(x, n_fields), tensor_grid(np.log(weight), n_fields).sum(axis=1)


class InnerAverages(NamedTuple):
    """Averages over the inner field of n samples."""

    g: np.ndarray  # (n, L, r) ⟨g⟩
    # (n, L, r, r) ⟨−∂g_l/∂ω_l⟩, the a.e. derivative within each token, or with the jumps of the minimum
    response: np.ndarray
    spread: np.ndarray  # (n, L, r, r) covariance of g_l under the weights
    envelope: np.ndarray  # (n,) ⟨M⟩, the mean Moreau envelope
    z: np.ndarray  # (n, K, L r) minimizers at the K nodes of the inner field


def average_fields(
    loss: Any, params: np.ndarray, omega: np.ndarray, V: np.ndarray, U: np.ndarray, parisi: float,
    z: np.ndarray | None = None, jumps: bool = False,
) -> InnerAverages:  # fmt: skip
    """Return the averages of the output denoiser over the inner field. Eq. :eq:`survey-fields`.

    Parameters
    ----------
    loss, params : the per-sample loss and its parameters (n, P).
    omega, V, U : centers ω (n, L, r), variances and covariances (L, r, r) of the inner field.
    parisi : Parisi parameter y >= 0, the inverse of a loss per sample.
    z : (n, K, L r) minimizers from which the proximal steps at the nodes start; the fields at the nodes if None.
    jumps : whether minima at the nodes are searched for globally, and the response contains the jumps of the minimum
        between nodes, as in one step of replica symmetry breaking. Needs U positive definite.
    """
    n, L, r = omega.shape
    nodes, logs = inner_nodes(L * r)
    root, u, step = psd_root(U), nodes.reshape(-1, L, r), max(1, MAX_ROWS // len(logs))
    inner = np.einsum("lab,klb->kla", root, u)
    slopes = np.einsum("klc,lcb->klb", u, np.linalg.inv(root)) if jumps else None  # u U^{−½}
    parts = []
    for first in range(0, n, step):
        rows = slice(first, first + step)
        fields, start = omega[rows, None] + inner, None if z is None else z[rows]
        moreau, g, response, minimizers = _denoise_nodes(loss, params[rows], fields, V, start, jumps)
        weights = softmax(logs - parisi * moreau, axis=1)
        mean = np.einsum("nk,nkla->nla", weights, g)
        away = g - mean[:, None]
        weighted = weights[:, :, None, None] * away
        spread = np.einsum("nkla,nklb->nlab", weighted, away)
        if slopes is None:
            response = np.einsum("nk,nklab->nlab", weights, response)
        else:  # −∂ḡ/∂ω = R̄ − yΔ by Stein's identity
            response = parisi * spread - np.einsum("nkla,klb->nlab", weighted, slopes)
        parts.append(InnerAverages(mean, response, spread, np.sum(weights * moreau, axis=1), minimizers))
    return join_parts(parts)


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


class QuadraticClusters(NamedTuple):
    """Averages over the inner field for a quadratic penalty, for K coordinates or classes."""

    precision: np.ndarray  # (K, r, r) A − yΔ, so that b = X̃ᵀḡ + (A − yΔ) Q
    response: np.ndarray  # (K, r, r) C = (Λ + A − yΔ)⁻¹, the response of the mean weights: ⟨x⟩ = C b
    W: np.ndarray  # (L, r, r) variances of the fields, from c = (Λ + A)⁻¹, the response at a given inner field
    W_inner: np.ndarray  # (L, r, r) W', covariances of the fields, from the covariance C Δ c of the weights


def quadratic_clusters(
    penalty: Any, spectra: np.ndarray, V_hat: np.ndarray, spread: np.ndarray, parisi: float,
    fractions: np.ndarray | None = None,
) -> QuadraticClusters:  # fmt: skip
    """Return the averages of the weights over the inner field for a quadratic penalty. Eq. :eq:`survey-weights`.

    With A = Σ_l γ_l V̂_l, Δ = Σ_l γ_l Δ_l and the field b = X̃ᵀḡ + (A − yΔ) Q, the mean weights are C b. `spectra` are
    variances γ_l of the coordinates or classes (L, K), with `fractions` (K,) that are equal if not given, and V̂ and Δ
    have shape (L, r, r). Δ is reduced if y C Δ would exceed `MAX_GAIN`, which happens only far from fixed points, so
    that fixed points stay the same.
    """
    A, c, _ = quadratic_response(penalty, spectra, V_hat)
    delta, root = np.einsum("li,lab->iab", spectra, spread), psd_root(c)
    gain = diagonalize(root @ (parisi * delta) @ root)[0][:, -1]  # the largest eigenvalue of y C^{1/2} Δ C^{1/2}
    delta *= np.minimum(1.0, MAX_GAIN / np.maximum(gain, 1e-300))[:, None, None]
    C = np.linalg.inv(np.linalg.inv(c) - parisi * delta)
    W, W_inner = field_variances(penalty, spectra, c, fractions), mean_response(spectra, C @ delta @ c, fractions)
    return QuadraticClusters(A - parisi * delta, C, W, symmetrize(W_inner))


def first_variances(
    penalty: Any, spectra: np.ndarray, samples: Sequence[tuple[Any, np.ndarray, np.ndarray, float]], rank: int,
    fractions: np.ndarray | None = None, n_steps: int = 20,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Return the variances V and U (S, r, r) from which survey propagation begins, and mean Moreau envelopes.

    U is the second moment of the fields of weights with unit variance, and V the self-consistent variance of uniformly
    weighted inner fields around zero, at most the initial variance of message passing. `samples` has, for each group
    of samples, the loss, its parameters (n, P), the sources (L,) of the tokens, and the number by which sums over the
    group are divided: the dimension d. `spectra` are variances γ (S, K) of K coordinates or classes, with `fractions`
    (K,) that are equal if not given.
    """
    trace = np.average(spectra, axis=1, weights=fractions)
    U = trace[:, None, None] * np.eye(rank)
    V = highest = initial_variances(trace, penalty.strength, rank)
    z: list[np.ndarray | None] = [None] * len(samples)
    envelopes = [np.zeros(0)] * len(samples)
    for _ in range(n_steps):
        responses = np.zeros(V.shape)
        for k, (loss, params, sources, dim) in enumerate(samples):
            zero = np.zeros((len(params), len(sources), rank))
            averages = average_fields(loss, params, zero, V[sources], U[sources], 0.0, z[k])
            responses[sources] += averages.response.sum(axis=0) / dim
            envelopes[k], z[k] = averages.envelope, averages.z
        W = quadratic_response(Ridge(penalty.strength), spectra, symmetrize(responses), fractions)[2]
        excess = np.trace(W, axis1=1, axis2=2) / np.trace(highest, axis1=1, axis2=2)
        V = 0.5 * (V + W / np.maximum(excess, 1.0)[:, None, None])
    return V, U, envelopes
