"""Where spectral starts have overlap with the teacher for d → ∞: eigenvalues that leave the bulk of the spectrum.

The solutions of the resolvent's equations below a spectrum, from −∞ to its lower edge, one for each size of V.

x and V grow together up to the edge, where x turns back. In x the equations have no solution beyond it; in the size of
V they always have, so that steps towards the edge and beyond are plain Newton steps.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import half_width, ignore_float_errors, psd_root
from gamp_attention._core.quadrature import gaussian_points
from gamp_attention._core.seeds import generator
from gamp_attention.denoisers.spectral_weights import WEIGHTS, Shape, posterior_weights, spectral_weights
from gamp_attention.models.channels.choice import field_moments, moment_channel
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import Result
from gamp_attention.state_evolution.equations.channel import fields_and_terms, teacher_size
from gamp_attention.state_evolution.equations.spectrum import Ensemble, Resolvent


@dataclass(frozen=True)
class BelowSettings:
    """How solutions are followed and the edge is found."""

    newton: int = 30  # steps at most
    converged: float = 1e-11  # relative change of V and x
    growth: float = 1.3  # of the size of V from one solution to the next
    bisections: int = 40  # of the interval of sizes that holds the edge
    rtol: float = 1e-6  # of the size at the edge; x, which is largest there, is known to its square
    largest: float = 1e12  # size of V in units of the first, from which on the edge is zero, as some eigenvalues are


BELOW = BelowSettings()


def size_of(V: np.ndarray) -> float:
    """The trace of V (L, c, c)."""
    return float(np.trace(V, axis1=1, axis2=2).sum())


def solution(ensemble: Ensemble, size: float, near: Resolvent) -> Resolvent | None:
    """The solution with a size of V, by Newton steps from another, scaled; None where they lead nowhere."""
    V, x = near.V * (size / size_of(near.V)), near.x
    identity = np.tile(np.eye(V.shape[1]), (len(V), 1, 1)).ravel()
    for _ in range(BELOW.newton):
        here = Resolvent(ensemble, x, V)
        if not here.inside:
            return None
        rest = np.append((here.W - V).ravel(), size - size_of(V))
        # V_hat falls by R V' R, so that the derivative is the transpose of the map of squares
        system = np.block([[np.eye(V.size) - here.squares, -here.slope.reshape(-1, 1)], [identity, np.zeros(1)]])
        step = np.linalg.lstsq(system, rest, rcond=None)[0]
        change = step[:-1].reshape(V.shape)
        V, x = V + 0.5 * (change + np.swapaxes(change, 1, 2)), x + float(step[-1])
        if max(np.abs(change).max() / np.abs(V).max(), abs(step[-1] / x)) <= BELOW.converged:
            here = Resolvent(ensemble, x, V)
            return here if here.inside else None
    return None


def below(here: Resolvent | None) -> bool:
    """Whether there is a solution and x still grows with its V."""
    return here is not None and float(np.abs(np.linalg.eigvals(here.squares)).max()) < 1


def lowest_edge(ensemble: Ensemble) -> list[Resolvent]:
    """Solutions from far below the spectrum upwards, the last of them at its lower edge."""
    (L, c, _), law = ensemble.shape, ensemble.law
    # ‖X̃‖² is at most this, and positions add what is no part of the bulk
    scale = float(np.abs(ensemble.h).max() * L * c * law.gamma.max() * (1 + np.sqrt(ensemble.alpha * L)) ** 2)
    if not (np.isfinite(scale) and scale > 0):
        raise check.fail("model", scale, "a spectrum within the range of doubles that is not all zero")
    x = -4 * scale
    V = np.einsum("l,ab->lab", law.trace / -x, np.eye(c))
    first = solution(ensemble, size_of(V), Resolvent(ensemble, x, V))
    if first is None:
        raise check.fail("model", scale, "a spectrum within the range of doubles")
    found, low = [first], size_of(first.V)
    high = low
    while high < BELOW.largest * size_of(first.V):
        high = BELOW.growth * low
        there = solution(ensemble, high, found[-1])
        if there is None or not below(there):
            break
        found.append(there)
        low = high
    for _ in range(BELOW.bisections):
        if high - low <= BELOW.rtol * low:
            break
        middle = 0.5 * (low + high)
        there = solution(ensemble, middle, found[-1])
        if there is None or not below(there):
            high = middle
        else:
            found.append(there)
            low = middle
    return found


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


@ignore_float_errors
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
    check.require_memory(
        "n_points, n_replicas", n_points, n_replicas, model.n_tokens * model.rank, model.n_tokens * model.rank
    )
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    if model.is_mixture or model.teacher_shift.any():
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
