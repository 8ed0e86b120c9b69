"""Where solvers start on data: weights by name, or given ones.

Spectral starts: where a solver begins with data alone, from the lowest eigenvectors of sums over the samples.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import quiet
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.passes import back_project, hessian_pass, local_fields
from gamp_attention.denoisers.spectral_weights import (
    WEIGHTS,
    Shape,
    fitted_fields,
    posterior_weights,
    second_moments,
    spectral_weights,
    weights_of_moments,
)
from gamp_attention.models.channels.choice import field_moments, moment_channel
from gamp_attention.models.model import STARTS, UNINFORMED_SIZE, fill_start
from gamp_attention.results import Result


@dataclass(frozen=True)
class SpectralSettings:
    """How eigenvectors are computed and made into starts."""

    vectors: int = 3  # of fitted weights, beyond those that one start has for its columns
    mixing: float = 0.5  # share of a second eigenvector added to the first, and subtracted
    tolerance: float = 1e-3  # of eigenvalues, relative
    basis: int = 24  # vectors of the Lanczos iterations, at least
    restarts: int = 300
    small: int = 60  # up to so many weights the matrix is formed
    most: int = 6  # different starts


SPECTRAL = SpectralSettings()


@dataclass(frozen=True, eq=False)
class SpectralDirections(Result):
    """Lowest eigenvalues and eigenvectors of Σ_μ X̃ᵀ h X̃.

    Attributes
    ----------
    eigenvalues : (k,) ascending.
    vectors : (k, d, c) of norm 1. Where a rotation of the columns of Q changes nothing, c is 1, or 2 for queries and
        keys; else it is r.
    """

    eigenvalues: np.ndarray
    vectors: np.ndarray


@quiet
def spectral_directions(
    data: Dataset, k: int = 3, weights: str = "fitted", *, risk: str = "exact", seed: Any = 0
) -> SpectralDirections:
    """The directions that spectral starts are made of: the lowest eigenvectors of Σ_μ X̃ᵀ h^μ X̃.

    Eq. :eq:`spectral`.

    Parameters
    ----------
    data : the samples.
    k : eigenvectors; fewer are returned where there are no more, or where samples tell no direction from another.
    weights : "fitted", from the fields that fit each sample best; "hessian", the Hessian of the risk at Q = 0; or
        "posterior", from what samples drawn from a model say of the teacher's fields, noise included.
    risk : "exact" or "asymptotic".
    seed : of the vector that Lanczos iterations start from.

    Returns
    -------
    SpectralDirections

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d=200, alpha=1.5, seed=0)
    >>> first = ga.spectral_directions(data).vectors[0, :, 0]
    >>> teacher = data.Q_star[:, 0] / 200**0.5
    >>> bool(abs(first @ teacher) > 0.5)
    True
    """
    require_dataset(data).terms(risk)
    k = check.integer("k", k, low=1)
    check.fits("k", k, data.dim)
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    random = generator(seed, Stream.STARTS)
    return SpectralDirections(
        *lowest_eigenvectors(data, spectral_weights_of(data, risk, weights), shape.columns, k, random)
    )


def lowest_eigenvectors(
    data: Dataset, h: np.ndarray, columns: int, k: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The k lowest eigenvalues and eigenvectors (k, d, c) of Σ_μ X̃ᵀ h X̃, by Lanczos iterations from a random vector.

    Eq. :eq:`spectral`.

    h has shape (n, L c, L c). Eigenvectors have norm 1, and their largest entry is positive. There
    are none where samples tell no direction from another.
    """
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    shape = data.dim, columns
    nothing = np.zeros(0), np.zeros((0, *shape))
    if not (h.any() and np.isfinite(h).all()):
        return nothing
    n, start = data.dim * columns, random.standard_normal(data.dim * columns)

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_pass(data.tokens, data.positions, h, np.asarray(x).reshape(shape)).ravel()

    if n <= max(SPECTRAL.small, 2 * k):
        matrix = np.stack([product(unit) for unit in np.eye(n)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    else:
        operator = LinearOperator((n, n), matvec=product, dtype=float)
        basis = min(n, max(SPECTRAL.basis, 3 * k + 10))
        try:
            values, vectors = eigsh(
                operator, k, which="SA", v0=start, ncv=basis, tol=SPECTRAL.tolerance, maxiter=SPECTRAL.restarts
            )
        except ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
        except ArpackError:  # all products are zero
            return nothing
    order = np.argsort(values)[:k]
    found = vectors[:, order].T
    signs = np.sign(found[np.arange(len(found)), np.abs(found).argmax(axis=1)])
    return values[order], (signs[:, None] * found).reshape(-1, *shape)


def spectral_weights_of(data: Dataset, risk: str, kind: str, argument: str = "weights") -> np.ndarray:
    """The matrices h (n, L c, L c) of the samples; errors name the argument that asks for this kind."""
    check.choice(argument, kind, WEIGHTS)
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    if kind != "posterior":
        return spectral_weights(kind, data.loss, data.terms(risk).params, shape)
    model, seen = data.model, data.targets if data.labels is None else data.labels
    if model is None or seen is None or data.n_sources > data.n_tokens or shape.columns > 1:
        others = "'fitted' or 'hessian'" if argument == "weights" else "another start"
        needs = f"{others} but for samples of models without classes and with tied weights"
        raise check.fail(argument, kind, needs)
    channel, rho = moment_channel(model), model.coordinates.rho
    return posterior_weights(field_moments(channel, channel.seen(seen), rho), rho, data.n_samples / data.dim)


def posterior_start(data: Dataset, risk: str, random: np.random.Generator) -> np.ndarray:
    """Weights (d, r) along the lowest eigenvectors of posterior weights, as large as teachers are."""
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    h = spectral_weights_of(data, risk, "posterior", "init")
    vectors = lowest_eigenvectors(data, h, shape.columns, shape.size, random)[1]
    size = np.sqrt(data.dim)
    return size * side_by_side(list(vectors), shape.size) if len(vectors) else np.zeros((data.dim, data.rank))


def spectral_starts(data: Dataset, risk: str, k: int, random: np.random.Generator) -> list[np.ndarray]:
    """Up to k weights (d, r) to start from, at most as many as there are eigenvectors to make them of.

    Their fields are as large as those that fit the samples one by one. Where the loss is not even, the first is the sum
    of these fields times the tokens.
    """
    shape = Shape.of(data.student, data.n_tokens, data.rank)
    z = fitted_fields(data.loss, data.terms(risk).params, shape)
    size, k = shape.size, min(k, SPECTRAL.most)
    lower = size - 1 + SPECTRAL.vectors if k > 1 else size
    vectors = lowest_eigenvectors(data, weights_of_moments(second_moments(z, shape)), shape.columns, lower, random)[1]
    found = [side_by_side(each, size) for each in _mixtures(vectors, size)]
    if not data.student.even:
        found.insert(0, back_project(data.tokens, data.positions, z))
    if k > 1:
        plain = lowest_eigenvectors(data, spectral_weights_of(data, risk, "hessian"), shape.columns, size, random)[1]
        if len(plain):
            found.insert(1, side_by_side(list(plain), size))
    return [_scaled(data, Q, z) for Q in found[:k]]


def _mixtures(vectors: np.ndarray, size: int) -> list[list[np.ndarray]]:
    """Sets of `size` directions (d, c), most promising first."""
    if not len(vectors):
        return []
    if size > 1:
        several = sorted(combinations(range(len(vectors)), min(size, len(vectors))), key=lambda kept: (sum(kept), kept))
        return [[vectors[i] for i in kept] for kept in several]
    first, others = vectors[0], vectors[1:]
    mixed = [first + sign * SPECTRAL.mixing * other for other in others for sign in (1.0, -1.0)]
    return [[each] for each in [first, *mixed, *others]]


def side_by_side(directions: list[np.ndarray], size: int) -> np.ndarray:
    """Weights (d, c size) with the directions (d, c) as the first columns of each part; zeros where there are fewer."""
    d, c = directions[0].shape
    Q = np.zeros((d, c, size))
    Q[:, :, : len(directions)] = np.stack(directions, axis=2)
    return Q.reshape(d, c * size)


def _scaled(data: Dataset, Q: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The weights with fields of the size of z, and along them where they have a sign."""
    fields = local_fields(data.tokens, data.positions, Q)
    size, wanted = np.linalg.norm(fields), np.linalg.norm(z) or np.sqrt(z.size)
    sign = 1.0 if data.student.even or np.sum(z * fields) >= 0 else -1.0
    return sign * (wanted / size if size > 0 else 1.0) * Q


DATA_STARTS = (*STARTS, "spectral", "posterior")


def default_start(data: Dataset) -> str:
    """Return the name of the start that solvers use by default: "semantic" with a teacher, else "spectral"."""
    return "spectral" if data.Q_star is None else "semantic"


def initial_weights(data: Dataset, init: Any, seed: Any = 0, risk: str = "exact") -> np.ndarray:
    """Return weights (d, r) from an array, a name of `DATA_STARTS`, or None for the default start of the data."""
    return several_starts(data, init, 1, seed, risk)[0][1]


def several_starts(
    data: Dataset, init: Any, n_starts: int, seed: Any = 0, risk: str = "exact"
) -> list[tuple[str, np.ndarray]]:
    """Weights (d, r) to start from, with names: the start asked for, or the spectral ones, then random ones."""
    check.fits("rank", data.dim, data.rank)
    init = default_start(data) if init is None else init
    random, found = generator(seed, Stream.STARTS), list[tuple[str, np.ndarray]]()
    if not isinstance(init, str):
        found.append(("given", check.array("init", init, (data.dim, data.rank)).copy()))
    elif check.choice("init", init, DATA_STARTS) == "spectral":
        several = spectral_starts(data, risk, n_starts, random)
        found += [(f"spectral {k + 1}", Q) for k, Q in enumerate(several)]
    elif init == "posterior":
        found.append((init, posterior_start(data, risk, random)))
    elif init != "random":
        found.append((init, _named(data, init, random)))
    further = range(1, n_starts - len(found) + 1)
    return found + [(f"random {k}", _named(data, "random", random)) for k in further]


def _named(data: Dataset, init: str, random: np.random.Generator) -> np.ndarray:
    Q = UNINFORMED_SIZE * random.standard_normal((data.dim, data.rank))
    fill_start(Q, init, data.student.parts, data.Q_star, lambda: position_directions(data.source_means))
    return Q


def position_directions(means: np.ndarray) -> np.ndarray:
    """Orthogonal directions (d, k) of norm √d that means (S, d) span, leading one first, signed along the first."""
    _, size, directions = np.linalg.svd(means, full_matrices=False)
    directions = directions[size > 1e-10 * max(size.max(), 1e-300)]
    signs = np.where(directions @ means[0] < 0, -1.0, 1.0)
    return np.sqrt(means.shape[1]) * (signs[:, None] * directions).T
