"""Spectrum of the Hessian of the risk at given weights: density, extreme eigenvalues, and their directions.

The Hessian Σ_μ X̃^μᵀ ∇²ℓ_μ X̃^μ + ∇²r is never formed: all results need products with vectors only, each of which is
one pass over the tokens. The steps are:

1. The highest and the lowest eigenvalues and eigenvectors, by restarted Lanczos iterations. Directions of common
   rotations of the columns, which have no curvature, are moved beyond the other end of the spectrum.
2. The eigenvalues outside the bulk: from each end, as long as the distance to the next eigenvalue is much larger than
   the distances between the following eigenvalues (`_count_outside`).
3. The density, by stochastic Lanczos quadrature: each random vector gives the nodes and weights of a Gauss rule, whose
   mean over random vectors is the average over the spectrum (Ubaru, Chen and Saad, 2017).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import format_with_error
from gamp_attention._tools.eigenpairs import Product, extreme_eigenpairs
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention.problem.curvature import rotations
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.losses.kinks import has_kinks
from gamp_attention.problem.risk import hessian_product, on_kinks, risk_at
from gamp_attention.results import Columns, Result

ALL_EIGENVECTORS = 60  # largest number of weights for which all eigenvectors are computed
TOL = 1e-3  # relative residual of eigenvectors; the relative error of eigenvalues is about its square
MAX_RESTARTS = 400  # maximum number of restarts of the Lanczos iteration
MIN_BASIS = 60  # smallest number of Lanczos vectors between restarts
RAISED = 2.0  # absolute curvature given to rotations, in units of an estimate of the norm of the Hessian
GAP = 4.0  # distance of an eigenvalue outside the bulk from the next, in units of the mean of the following distances
FOLLOWING = 5  # number of following distances in this mean


@dataclass(frozen=True, eq=False)
class HessianSpectrum(Result):
    """Spectrum of the Hessian of the training risk.

    Attributes
    ----------
    lowest, highest : (k,) lowest and highest eigenvalues, ascending. At critical points, zero eigenvalues along common
        rotations of the columns, which do not change the risk, are left out.
    lowest_vectors, highest_vectors : (k, d, r) their eigenvectors, with norm 1.
    lowest_error, highest_error : (k,) norms of the residuals of the eigenvectors, upper bounds of the errors.
    eigenvalues : (j,) eigenvalues outside the bulk, ascending: at most k − 5 from each end.
    eigenvalues_error : (j,) upper bounds of their errors.
    vectors : (j, d, r) their eigenvectors, with norm 1.
    teacher, weights, positions : (j,) norms, from 0 to 1, of the projections of these eigenvectors on the columns of
        Q* (NaN if there is no known teacher), on the columns of Q, and on the positions (in mixtures, on the means of
        all sources).
    nodes, node_weights : (P, m) nodes and weights of the Gauss rule of each random vector. Nodes of weight zero at the
        end of a row have no meaning.
    """

    lowest: np.ndarray
    highest: np.ndarray
    lowest_vectors: np.ndarray
    highest_vectors: np.ndarray
    lowest_error: np.ndarray
    highest_error: np.ndarray
    eigenvalues: np.ndarray
    eigenvalues_error: np.ndarray
    vectors: np.ndarray
    teacher: np.ndarray
    weights: np.ndarray
    positions: np.ndarray
    nodes: np.ndarray
    node_weights: np.ndarray

    _columns: ClassVar[Columns] = {
        "lowest": lambda s: format_with_error(float(s.lowest[0]), float(s.lowest_error[0]), 6),
        "highest": lambda s: format_with_error(float(s.highest[-1]), float(s.highest_error[-1]), 6),
        "eigenvalues outside": lambda s: ", ".join(f"{value:.4g}" for value in s.eigenvalues),
    }

    def average(self, function: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of a function over all eigenvalues, tr f(∇²R)/(d r), and its standard error.

        Parameters
        ----------
        function : maps an array (P, m, 1) of eigenvalues to an array (P, m, G).

        Returns
        -------
        Two arrays (G,): the mean over random vectors, and its standard error from their spread. The error does not
        include the error of the Gauss rules, which is small for functions that vary slowly on the scale of the width of
        the spectrum divided by the number of steps.
        """
        values = np.asarray(function(np.where(self.node_weights > 0, self.nodes, self.nodes[:, :1])[..., None]))
        samples = (self.node_weights[..., None] * values).sum(axis=1)
        return samples.mean(axis=0), samples.std(axis=0, ddof=1) / np.sqrt(len(samples))

    def density(self, x: ArrayLike, width: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the density of all eigenvalues at x (G,), and its standard error.

        It is normalized to one and convolved with the Cauchy distribution of scale `width`, like the density of
        `limiting_spectrum`. `width` should not be smaller than the width of the spectrum divided by the number of steps
        of the Lanczos iteration.

        Raises
        ------
        TypeError : if an argument has the wrong type.
        ValueError : if `width` is not positive or `x` is not one-dimensional.
        """
        points = check.array("x", x, ("G",))
        width = check.real("width", width, low=0, strict=True)
        return self.average(lambda value: width / np.pi / ((value - points) ** 2 + width**2))


@guard_call
def hessian_spectrum(
    data: Dataset,
    Q: ArrayLike,
    risk: str = "exact",
    *,
    n_eigenvalues: int = 8,
    n_probes: int = 8,
    n_steps: int = 100,
    seed: int | np.random.Generator = 0,
) -> HessianSpectrum:
    """Compute the spectrum of the Hessian of the training risk R of equation (3) at given weights.

    Eq. :eq:`hessian-density`.

    Parameters
    ----------
    data : the samples.
    Q : (d, r) weights, for example `Q` of a result of `run_gamp`.
    risk : "exact" or "asymptotic".
    n_eigenvalues : number k of lowest and of highest eigenvalues, at least 1; fewer if there are fewer weights.
    n_probes : number of random vectors for averages over the spectrum, at least 2.
    n_steps : number of products with each random vector, at least 2.
    seed : an integer or a numpy Generator, for the random vectors.

    Returns
    -------
    HessianSpectrum

    Raises
    ------
    TypeError : if `data` is not a Dataset, or an argument has the wrong type.
    ValueError : if `Q` has another shape; `risk` is unknown or not available; a number is too small; the penalty or
        the loss has kinks, at which there is no Hessian; there is an intercept; the Hessian is not finite at Q; or an
        eigenvalue is not found.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=400, alpha=1.5, seed=0)
    >>> spectrum = ga.hessian_spectrum(data, ga.run_gamp(data, "positional").Q)
    >>> bool(spectrum.lowest[0] > 0), bool(spectrum.positions[-1] > 0.9)
    (True, True)
    """
    require_dataset(data).terms(risk)
    Q = check.array("Q", Q, (data.dim, data.rank))
    n_eigenvalues = check.integer("n_eigenvalues", n_eigenvalues, low=1)
    n_probes, n_steps = check.integer("n_probes", n_probes, low=2), check.integer("n_steps", n_steps, low=2)
    check.require_memory("n_steps", min(n_steps, Q.size), Q.size)
    check.require_memory("n_probes", n_probes, min(n_steps, Q.size))
    if data.penalty.intercept:
        raise check.fail_words("data", "an intercept", "weights without an intercept, for the spectrum of the Hessian")
    if not data.penalty.smooth:
        needs = "a penalty without kinks, at which there is no Hessian"
        raise check.fail_words("data", type(data.penalty).__name__, needs)
    require_smooth_loss("data", data, data.terms(risk).params)
    rng = generator(seed, Stream.STARTS)
    at = risk_at(data, Q, risk)
    curvature = on_kinks(data.penalty, Q, at.smooth)[2]
    if not (np.isfinite(at.hessians).all() and np.isfinite(curvature).all()):
        raise check.fail("Q", Q, "weights at which the Hessian is within the range of doubles")

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_product(data, at, np.asarray(x).reshape(Q.shape), curvature).ravel()

    flat, size = _flat_rotations(product, rotations(data, Q).reshape(-1, Q.size), rng)
    beyond = RAISED * float(np.sqrt(Q.size)) * size  # outside of the spectrum
    highest, high_vectors = _extreme(product, Q.size, n_eigenvalues, "LA", flat, -beyond, rng)
    lowest, low_vectors = _extreme(product, Q.size, n_eigenvalues, "SA", flat, beyond, rng)
    values, columns = np.append(lowest, highest), np.append(low_vectors, high_vectors, axis=1)
    errors = np.linalg.norm(np.apply_along_axis(product, 0, columns) - values * columns, axis=0)
    all_vectors, k = columns.T.reshape(-1, *Q.shape), len(lowest)
    n_low, n_high = _count_outside(-lowest), _count_outside(highest[::-1])
    outside = np.r_[:n_low, len(values) - n_high : len(values)]
    rules = [lanczos_quadrature(product, rng.standard_normal(Q.size), n_steps) for _ in range(n_probes)]
    length = max(len(nodes) for nodes, _ in rules)
    nodes, weights = (np.array([np.pad(rule[k], (0, length - len(rule[k]))) for rule in rules]) for k in (0, 1))
    vectors = all_vectors[outside]
    teacher = np.full(len(vectors), np.nan) if data.Q_star is None else _projections(vectors, data.Q_star)
    return HessianSpectrum(
        lowest=lowest, highest=highest, lowest_vectors=all_vectors[:k], highest_vectors=all_vectors[k:],
        lowest_error=errors[:k], highest_error=errors[k:], eigenvalues=values[outside],
        eigenvalues_error=errors[outside], vectors=vectors, teacher=teacher, weights=_projections(vectors, Q),
        positions=_projections(vectors, data.source_means.T), nodes=nodes, node_weights=weights,
    )  # fmt: skip


def require_smooth_loss(name: str, problem: Any, params: np.ndarray) -> None:
    """Raise an error if the loss of a dataset or model has kinks for samples with parameters (n, P)."""
    if has_kinks(problem.loss, params):
        needs = "a loss without kinks, at which there is no Hessian"
        raise check.fail_words(name, type(problem.student).__name__, needs)


def lanczos_quadrature(product: Product, start: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (k,) and weights (k,), k ≤ n_steps, of the Gauss rule for the spectrum seen by a vector (n,).

    For the normalized vector v and a polynomial f of degree below 2 k, vᵀf(A)v is the sum of the weights times f at the
    nodes. k is smaller than `n_steps` if the Krylov space of v is invariant; the rule is then exact for all f. All
    vectors are kept and orthogonalized.
    """
    n_steps = min(n_steps, len(start))
    basis, matrix = np.empty((n_steps, len(start))), np.zeros((n_steps, n_steps))
    basis[0] = start / np.linalg.norm(start)
    for k in range(n_steps):
        image, vectors = product(basis[k]), basis[: k + 1]
        matrix[k, k] = image @ basis[k]
        for _ in range(2):  # the second pass removes the rounding errors of the first
            image = image - vectors.T @ (vectors @ image)
        size = float(np.linalg.norm(image))
        if k + 1 == n_steps or size <= np.finfo(float).eps * np.abs(np.diag(matrix)).max():
            break
        matrix[k, k + 1] = matrix[k + 1, k] = size
        basis[k + 1] = image / size
    nodes, vectors = np.linalg.eigh(matrix[: k + 1, : k + 1])
    return nodes, vectors[0] ** 2


def _flat_rotations(product: Product, directions: np.ndarray, rng: Any) -> tuple[np.ndarray, float]:
    """Return the directions (f, n) of rotations if the Hessian vanishes along all of them, otherwise none (0, n).

    It vanishes at critical points; elsewhere its product with these directions is proportional to the gradient. Also
    return the root mean square of its eigenvalues, estimated by a random vector.
    """
    random = rng.standard_normal(directions.shape[1])
    size = float(np.linalg.norm(product(random)) / np.linalg.norm(random))
    is_flat = all(np.linalg.norm(product(direction)) <= TOL * size for direction in directions)
    return directions if is_flat else directions[:0], size


def _extreme(
    product: Product, n: int, k: int, which: str, flat: np.ndarray, raised: float, rng: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k lowest ("SA") or highest ("LA") eigenvalues, ascending, and eigenvectors (n, k).

    Flat directions (f, n) are given the eigenvalue `raised`, which must not be among the eigenvalues that are computed.
    """

    def operator(x: np.ndarray) -> np.ndarray:
        along = flat @ x
        image = product(x - flat.T @ along)
        return image - flat.T @ (flat @ image) + raised * (flat.T @ along)

    k = min(k, n - len(flat))
    dense, basis = max(ALL_EIGENVECTORS, 3 * k), min(n, max(MIN_BASIS, 4 * k))
    start = rng.standard_normal(n) if n > dense else np.zeros(n)  # not used
    values, vectors = extreme_eigenpairs(operator, k, which, start, TOL, MAX_RESTARTS, basis, dense)
    if len(values) < k:
        got = f"{len(values)} of {k} extreme eigenvalues found"
        raise check.fail_words("Q", got, "weights whose spectrum has few clusters")
    return values, vectors


def _count_outside(inward: np.ndarray) -> int:
    """Return the number of eigenvalues outside the bulk, for eigenvalues (k,) of which the first is the outermost."""
    distances = np.abs(np.diff(inward))
    ends = range(len(distances) - FOLLOWING)
    return max((j + 1 for j in ends if distances[j] > GAP * distances[j + 1 :][:FOLLOWING].mean()), default=0)


def _projections(vectors: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the norms (j,) of the projections of vectors (j, d, r) on the span of columns (d, c)."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    span = left[:, sizes > 1e-12 * sizes.max(initial=0.0)]
    return np.asarray(np.linalg.norm(np.swapaxes(vectors, 1, 2) @ span, axis=(1, 2)))
