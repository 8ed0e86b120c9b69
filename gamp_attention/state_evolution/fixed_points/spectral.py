"""Overlap of spectral starts with the teacher for d → ∞: eigenvalues below the bulk of a spectrum.

Spectral starts are eigenvectors of Σ_μ X̃ᵀ h X̃ (Lu and Li, Information and Inference 9, 2020; Mondelli and Montanari,
Foundations of Computational Mathematics 19, 2019). The steps are:

1. Follow the resolvent's variances V and the position x from −∞ up to the lower edge of the bulk (`lowest_edge`). x and
   V grow together up to the edge, where x turns back. At a given x there is no solution beyond the edge, but at a given
   size of V there is. Therefore the size of V is the parameter, and plain Newton steps pass the edge.
2. At each size, a linear map gives the new overlaps of a direction after a step of message passing. x is an eigenvalue
   if this map has the eigenvalue 1 (`_solve_eigenvalue`).
3. The second moments of this eigenvector give its projections on the teacher and on the positions.
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
from gamp_attention.models.sequence_labels import SequenceLabels
from gamp_attention.results import Result
from gamp_attention.state_evolution.equations.channel import fields_and_terms, teacher_size
from gamp_attention.state_evolution.equations.spectrum import Ensemble, Resolvent

# Solutions below the spectrum
MAX_NEWTON = 30  # maximum number of Newton steps
CONVERGED = 1e-11  # relative change of V and x at which Newton steps end
GROWTH = 1.3  # ratio of the sizes of V of successive solutions
MAX_BISECTIONS = 40  # maximum number of bisections of the interval of sizes that contains the edge
EDGE_RTOL = 1e-6  # relative error of the size at the edge; the error of x, which is maximal there, is of second order
MAX_SIZE = 1e12  # size of V relative to the first, above which the edge counts as zero: some eigenvalues are zero

# Eigenvalues outside the bulk
MAX_ALPHA = 1e12  # largest sample complexity
SIZE_RTOL = 1e-8  # relative error of the sizes of V at which eigenvalues lie
OUTSIDE = 1e-3  # smallest excess over 1 of an eigenvalue of the map of overlaps at the edge, for an eigenvalue below it


def size_of(V: np.ndarray) -> float:
    """Return the size of V (L, c, c): the sum of the traces."""
    return float(np.trace(V, axis1=1, axis2=2).sum())


def solve_at_size(ensemble: Ensemble, size: float, near: Resolvent) -> Resolvent | None:
    """Return the solution with a given size of V, by Newton steps from a scaled solution; None if they diverge."""
    V, x = near.V * (size / size_of(near.V)), near.x
    identity = np.tile(np.eye(V.shape[1]), (len(V), 1, 1)).ravel()
    for _ in range(MAX_NEWTON):
        here = Resolvent(ensemble, x, V)
        if not here.inside:
            return None
        residual = np.append((here.W - V).ravel(), size - size_of(V))
        # a change V' of V lowers V_hat by R V' R, so that the derivative is the transpose of the map of squares
        system = np.block([[np.eye(V.size) - here.squares, -here.slope.reshape(-1, 1)], [identity, np.zeros(1)]])
        step = np.linalg.lstsq(system, residual, rcond=None)[0]
        change = step[:-1].reshape(V.shape)
        V, x = V + 0.5 * (change + np.swapaxes(change, 1, 2)), x + float(step[-1])
        if max(np.abs(change).max() / np.abs(V).max(), abs(step[-1] / x)) <= CONVERGED:
            here = Resolvent(ensemble, x, V)
            return here if here.inside else None
    return None


def is_below(solution: Resolvent | None) -> bool:
    """Return whether there is a solution and it is below the edge, so that x still grows with the size of V."""
    return solution is not None and float(np.abs(np.linalg.eigvals(solution.squares)).max()) < 1


def lowest_edge(ensemble: Ensemble) -> list[Resolvent]:
    """Return solutions from far below the spectrum upwards; the last solution is at the lower edge.

    ValueError if the spectrum is zero or not finite.
    """
    (L, c, _), law = ensemble.shape, ensemble.law
    # an upper bound of ‖X̃‖²; positions increase it but do not change the bulk
    scale = float(np.abs(ensemble.h).max() * L * c * law.gamma.max() * (1 + np.sqrt(ensemble.alpha * L)) ** 2)
    if not (np.isfinite(scale) and scale > 0):
        raise check.fail("model", scale, "a spectrum within the range of doubles that is not all zero")
    x = -4 * scale
    V = np.einsum("l,ab->lab", law.trace / -x, np.eye(c))
    first = solve_at_size(ensemble, size_of(V), Resolvent(ensemble, x, V))
    if first is None:
        raise check.fail("model", scale, "a spectrum within the range of doubles")
    path, low = [first], size_of(first.V)
    high = low
    while high < MAX_SIZE * size_of(first.V):
        high = GROWTH * low
        solution = solve_at_size(ensemble, high, path[-1])
        if solution is None or not is_below(solution):
            break
        path.append(solution)
        low = high
    for _ in range(MAX_BISECTIONS):
        if high - low <= EDGE_RTOL * low:
            break
        middle = 0.5 * (low + high)
        solution = solve_at_size(ensemble, middle, path[-1])
        if solution is None or not is_below(solution):
            high = middle
        else:
            path.append(solution)
            low = middle
    return path


@dataclass(frozen=True, eq=False)
class SpectralOverlap(Result):
    """Lowest eigenvalues of Σ_μ X̃ᵀ h X̃, and projections of their eigenvectors on the teacher and the positions.

    Attributes
    ----------
    edge : lower edge of the bulk of the spectrum.
    strength : largest eigenvalue of the map of overlaps at the edge; above 1 if an eigenvalue lies below the edge.
    eigenvalues : (k,) eigenvalues below the bulk, ascending; k = 0 if there are none.
    teacher : (k,) norm of the projection of each normalised eigenvector on the span of the columns of Q*, summed over
        the columns of the eigenvector.
    positions : (k,) the same projection on the span of the positions.
    edge_error, strength_error, eigenvalues_error, teacher_error, positions_error : 95 % half-widths.
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
    model: Model, alpha: float, weights: str = "fitted", *, n_points: int = 4096, n_replicas: int = 4, seed: Any = 0
) -> SpectralOverlap:
    """Compute the overlap of spectral starts with the teacher and the positions, for d → ∞ at n = αd samples.

    Eq. :eq:`spectral-law`.

    Parameters
    ----------
    model : a model without token classes, in which all samples have the same positions and teacher.
    alpha : sample complexity α > 0.
    weights : "fitted", "hessian" or "posterior": the matrices h of the samples, as for `spectral_directions`.
    n_points : number of random points of an average over the teacher's fields, even and at least 64.
    n_replicas : number of independent sets of points, at least 2.
    seed : seed of the points.

    Returns
    -------
    SpectralOverlap

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `alpha` is not in (0, 1e12], `n_points` is odd or too small, `weights` is an unknown name or does
        not apply to the student, the model has token classes, or the spectrum is zero.

    Examples
    --------
    With few samples, no eigenvector overlaps with the teacher; with d samples, one does:

    >>> import gamp_attention as ga
    >>> model = ga.paper_model(omega=0.2, sigma=0.8)
    >>> [len(ga.spectral_overlap(model, alpha).eigenvalues) for alpha in (0.1, 1.0)]
    [0, 1]
    """
    model = require_model(model)
    alpha = check.real("alpha", alpha, low=0, high=MAX_ALPHA, strict=True)
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
    columns = Shape.of(model.student, model.n_tokens, model.rank).columns
    by_column = isinstance(model.teacher, SequenceLabels) and columns == model.teacher_rank
    if weights == "posterior" and columns > 1 and not by_column:
        students = "students with tied weights, or with a column for each column of a teacher that is a function"
        raise check.fail("weights", weights, f"'fitted' or 'hessian', except for {students}")
    rng = generator(seed)
    replicas = [_solve_lowest(_draw_ensemble(model, alpha, weights, n_points, rng)) for _ in range(n_replicas)]
    k = min(len(replica["eigenvalues"]) for replica in replicas)
    numbers: dict[str, Any] = {}
    for name in replicas[0]:
        samples = np.array([values if np.ndim(values) == 0 else values[:k] for values in (r[name] for r in replicas)])
        mean, error = samples.mean(axis=0), half_width(samples)
        numbers |= {name: mean, f"{name}_error": error}
    fields: dict[str, Any] = {name: float(v) if np.ndim(v) == 0 else v for name, v in numbers.items()}
    return SpectralOverlap(**fields)


def _draw_ensemble(model: Model, alpha: float, weights: str, n_points: int, rng: np.random.Generator) -> Ensemble:
    """Return the matrices h at random teacher fields."""
    shape = Shape.of(model.student, model.n_tokens, model.rank)
    if weights == "posterior":
        channel, rho = moment_channel(model), model.coordinates.rho
        size = rho.shape[0] * rho.shape[1]
        white = gaussian_points(n_points, size + channel.n_noise, rng)
        y = np.einsum("lst,nlt->nls", psd_root(rho), white[:, :size].reshape(n_points, *rho.shape[:2]))
        seen = channel.observe(y, white[:, size:])
        h = posterior_weights(field_moments(channel, seen, rho, by_column=shape.columns > 1), rho, alpha)
    else:
        y, terms = fields_and_terms(model, gaussian_points(n_points, teacher_size(model), rng))
        h = spectral_weights(weights, model.loss, terms.params, shape)
    L, c = shape.n_tokens, shape.columns
    return Ensemble(model.coordinates, alpha, h.reshape(-1, L, c, L, c), y)


def _solve_lowest(ensemble: Ensemble) -> dict[str, Any]:
    """Return the edge, its strength, the eigenvalues below it and their projections, as in `SpectralOverlap`."""
    path = lowest_edge(ensemble)
    edge, (L, c, t) = path[-1], ensemble.shape
    n_outside = int(np.count_nonzero(_growths(edge) > 1 + OUTSIDE))
    values, teacher, positions = [], [], []
    for j in range(n_outside):
        solution = _solve_eigenvalue(ensemble, path, j)
        growths, vectors = np.linalg.eig(solution.directions)
        vector = vectors[:, np.argsort(-growths.real)[j]].real
        second, first = solution.weights_of(vector[: L * c].reshape(L, c), vector[L * c :].reshape(L, c, t))
        values.append(solution.x)
        teacher.append(_projection(first, ensemble.law, slice(L, L + t), second))
        positions.append(_projection(first, ensemble.law, slice(0, L), second))
    order = np.argsort(values)
    arrays = {"eigenvalues": values, "teacher": teacher, "positions": positions}
    return {"edge": edge.x, "strength": float(_growths(edge)[0])} | {
        name: np.array(entries)[order] for name, entries in arrays.items()
    }


def _solve_eigenvalue(ensemble: Ensemble, path: list[Resolvent], j: int) -> Resolvent:
    """Return the solution at which the j-th eigenvalue of the map of overlaps is 1."""
    from scipy.optimize import brentq

    solutions = {size_of(solution.V): solution for solution in path}

    def excess(size: float) -> float:
        if size not in solutions:
            nearest = solutions[min(solutions, key=lambda other: abs(other - size))]
            solutions[size] = solve_at_size(ensemble, size, nearest) or nearest
        return float(_growths(solutions[size])[j] - 1)

    first_above = next(k for k, solution in enumerate(path) if excess(size_of(solution.V)) > 0)
    if first_above == 0:
        return path[0]
    size = brentq(excess, *(size_of(path[k].V) for k in (first_above - 1, first_above)), rtol=SIZE_RTOL)
    excess(size)
    return solutions[size]


def _projection(first: np.ndarray, law: Any, part: slice, second: np.ndarray) -> float:
    """Return the norm, from 0 to 1, of the projection of a random vector on the span of some coordinates.

    `first` are its first moments with all coordinates, and `second` its second moments.
    """
    moments = np.einsum("k,kij->ij", law.weight, law.moments)[part, part]
    inside = np.trace(first[:, part] @ np.linalg.pinv(moments, rcond=1e-10, hermitian=True) @ first[:, part].T)
    return float(np.sqrt(max(inside, 0.0) / np.trace(second)))


def _growths(at: Resolvent) -> np.ndarray:
    """Return the eigenvalues of the map of overlaps, all of which are real, in descending order."""
    return np.sort(np.linalg.eigvals(at.directions).real)[::-1]
