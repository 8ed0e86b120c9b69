"""Where spectral starts have overlap with the teacher for d → ∞: eigenvalues that leave the bulk of the spectrum."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.gaussian import gaussian_points, psd_root
from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention._core.spread import half_width
from gamp_attention.denoisers.spectral_weights import WEIGHTS, Shape, posterior_weights, spectral_weights
from gamp_attention.models.channels.second_moments import field_moments, moment_channel
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import Result
from gamp_attention.state_evolution.equations.channel import fields_and_terms, teacher_size
from gamp_attention.state_evolution.equations.spectrum import Ensemble, Resolvent
from gamp_attention.state_evolution.fixed_points.below_spectrum import lowest_edge, size_of, solution


@dataclass(frozen=True)
class EdgeSettings:
    """Which eigenvalues count as outside the bulk."""

    most_samples: float = 1e12  # n/d
    rtol: float = 1e-8  # of the sizes of V at which eigenvalues lie
    outside: float = 1e-3  # an eigenvalue counts as outside where the map has one by so much above 1 at the edge


EDGE = EdgeSettings()


@dataclass(frozen=True, eq=False)
class SpectralOverlap(Result):
    """The lowest eigenvalues of Σ_μ X̃ᵀ h X̃ and what their eigenvectors have in common with teacher and positions.

    Attributes
    ----------
    edge : lower edge of the bulk of the spectrum.
    strength : the largest eigenvalue of the map of overlaps at the edge, which is above 1 where one is below the edge.
    eigenvalues : (k,) below the bulk, ascending; k = 0 where there is none.
    teacher : (k,) norm of the projection of each eigenvector, of norm 1, on what the columns of Q* span, summed over
        the columns of an eigenvector.
    positions : (k,) the same for the positions.
    edge_error, strength_error, eigenvalues_error, teacher_error, positions_error : half-widths that cover 95 %.
    """

    edge: float
    strength: float
    eigenvalues: np.ndarray
    teacher: np.ndarray
    positions: np.ndarray
    edge_error: float
    strength_error: float
    eigenvalues_error: np.ndarray
    teacher_error: np.ndarray
    positions_error: np.ndarray


@quiet
def spectral_overlap(
    model: Model, alpha: Any, weights: str = "fitted", *, n_points: int = 4096, n_replicas: int = 4, seed: Any = 0
) -> SpectralOverlap:
    """Overlap of spectral starts with the teacher, and with the positions, for d → ∞ at n = αd samples.

    Eq. :eq:`spectral-law`.

    Parameters
    ----------
    model : without classes of tokens, at positions and a teacher that all samples have in common.
    alpha : sample complexity α > 0.
    weights : "fitted", "hessian" or "posterior": the matrices h of the samples, as for `spectral_directions`.
    n_points, n_replicas : randomised points of averages over the teacher's fields, even, and independent sets of them.
    seed : of the points.

    Returns
    -------
    SpectralOverlap

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    Fewer samples than 0.25 d say nothing; twice that do:

    >>> import gamp_attention as ga
    >>> model = ga.paper_model(omega=0.2, sigma=0.8)
    >>> [len(ga.spectral_overlap(model, alpha).eigenvalues) for alpha in (0.1, 1.0)]
    [0, 1]
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=0, high=EDGE.most_samples, strict=True)
    check.choice("weights", weights, WEIGHTS)
    n_points = check.integer("n_points", n_points, low=64)
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    check.fits("n_points, n_replicas", n_points, n_replicas, model.n_tokens * model.rank, model.n_tokens * model.rank)
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    if model.n_sources > model.n_tokens or model.teacher_shift.any():
        raise check.fail("model", type(model).__name__, "tokens without classes")
    if weights == "posterior" and Shape.of(model.student, model.n_tokens, model.rank).columns > 1:
        raise check.fail("weights", weights, "'fitted' or 'hessian' but for students with tied weights")
    rng = generator(seed)
    found = [_lowest(_ensemble(model, alpha, weights, n_points, rng)) for _ in range(n_replicas)]
    k = min(len(each.eigenvalues) for each in found)
    values: dict[str, Any] = {}
    for name in ("edge", "strength", "eigenvalues", "teacher", "positions"):
        several = np.array([np.asarray(getattr(each, name))[..., :k] if np.ndim(getattr(each, name)) else
                            getattr(each, name) for each in found])  # fmt: skip
        values[name], values[f"{name}_error"] = several.mean(axis=0), half_width(several)
    plain: dict[str, Any] = {name: float(value) if value.ndim == 0 else value for name, value in values.items()}
    return SpectralOverlap(**plain)


@dataclass(frozen=True)
class _Lowest:
    edge: float
    strength: float
    eigenvalues: np.ndarray
    teacher: np.ndarray
    positions: np.ndarray


def _ensemble(model: Model, alpha: float, weights: str, n_points: int, rng: np.random.Generator) -> Ensemble:
    shape = Shape.of(model.student, model.n_tokens, model.rank)
    if weights == "posterior":
        channel, rho = moment_channel(model), model.coordinates.rho
        size = rho.shape[0] * rho.shape[1]
        white = gaussian_points(n_points, size + channel.n_noise, rng)
        y = np.einsum("lst,nlt->nls", psd_root(rho), white[:, :size].reshape(n_points, *rho.shape[:2]))
        h = posterior_weights(field_moments(channel, channel.observe(y, white[:, size:]), rho), rho, alpha)
    else:
        y, terms = fields_and_terms(model, gaussian_points(n_points, teacher_size(model), rng))
        h = spectral_weights(weights, model.loss, terms.params, shape)
    L, c = shape.n_tokens, shape.columns
    return Ensemble(model.coordinates, alpha, h.reshape(-1, L, c, L, c), y)


def _lowest(ensemble: Ensemble) -> _Lowest:
    """The edge, and what is below it."""
    path = lowest_edge(ensemble)
    edge, (L, c, t) = path[-1], ensemble.shape
    outside = int(np.count_nonzero(_growths(edge) > 1 + EDGE.outside))
    values, teacher, positions = [], [], []
    for j in range(outside):
        found = _eigenvalue(ensemble, path, j)
        growths, vectors = np.linalg.eig(found.directions)
        vector = vectors[:, np.argsort(-growths.real)[j]].real
        second, first = found.weights_of(vector[: L * c].reshape(L, c), vector[L * c :].reshape(L, c, t))
        values.append(found.x)
        shares = [_share(first[:, part], ensemble.law, part, second) for part in (slice(L, L + t), slice(0, L))]
        teacher.append(shares[0])
        positions.append(shares[1])
    order = np.argsort(values)
    return _Lowest(edge.x, float(_growths(edge)[0]), *(np.array(each)[order] for each in (values, teacher, positions)))


def _eigenvalue(ensemble: Ensemble, path: list[Resolvent], j: int) -> Resolvent:
    """The solution at which the j-th eigenvalue of the map of overlaps is 1."""
    from scipy.optimize import brentq

    at = {size_of(each.V): each for each in path}

    def excess(size: float) -> float:
        if size not in at:
            near = min(at, key=lambda known: abs(known - size))
            at[size] = solution(ensemble, size, at[near]) or at[near]
        return float(_growths(at[size])[j] - 1)

    above = next(k for k, each in enumerate(path) if excess(size_of(each.V)) > 0)
    if above == 0:
        return path[0]
    size = brentq(excess, *(size_of(path[k].V) for k in (above - 1, above)), rtol=EDGE.rtol)
    excess(size)
    return at[size]


def _share(first: np.ndarray, law: Any, part: slice, second: np.ndarray) -> float:
    """How much of a vector with second moments lies in the span of some coordinates, as a norm from 0 to 1."""
    among = np.einsum("k,kij->ij", law.weight, law.moments)[part, part]
    inside = np.trace(first @ np.linalg.pinv(among, rcond=1e-10, hermitian=True) @ first.T)
    return float(np.sqrt(max(inside, 0.0) / np.trace(second)))


def _growths(at: Resolvent) -> np.ndarray:
    """Eigenvalues of the map of overlaps, all real, in descending order."""
    return np.sort(np.linalg.eigvals(at.directions).real)[::-1]
