"""Labels with few outcomes: their probabilities given the student's fields, averaged over the teacher's fields.

The output function g depends on the student's fields ω and the label only. With the probabilities P(label | ω), an
average of g needs points of ω, and a proximal problem for each label (Rao and Blackwell: a conditional expectation has
less variance). Given ω, the teacher's fields are Gaussian, and the probabilities are averages over them with no
proximal problem: for smooth probabilities over Gauss-Hermite nodes in the directions of the teacher's fields on which
they depend; otherwise over uniform points, randomly shifted at each point of ω (Cranley and Patterson, 1976).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import block_diag
from scipy.special import ndtr, ndtri

from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gauss_hermite, inside_cube, pruned_product
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.theory.equations.directions import DIRECTIONS, changes_of, span_of
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True)
class OutcomeSettings:
    """Settings of averages over labels."""

    n_shifts: int = 64  # number of points of the teacher's fields for each point of the student's
    max_nodes: int = 64  # largest number of Gauss-Hermite nodes
    dropped: float = 1e-6  # smallest weight of a node
    smooth: float = 3e-4  # largest error of a probability, without knowledge of ω, up to which nodes are used instead


OUTCOMES = OutcomeSettings()
Outcomes = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def outcomes_of(model: Model) -> Outcomes | None:
    """Return the function that returns labels and probabilities for fields y; None if unknown, or ℓ is not convex."""
    # searches at a part of the points, for losses that are not convex, need points of equal probability
    find: Any = None if model.task.jumps else getattr(model.teacher, "outcomes", None)
    return find if find is not None and find(np.zeros((1, model.n_tokens, model.teacher_rank))) is not None else None


def n_outcomes(model: Model) -> int:
    """Return the number of points with which averages represent a point of white noise: the labels' outcomes, or 1."""
    find = outcomes_of(model)
    return 1 if find is None else len(find(np.zeros((1, model.n_tokens, model.teacher_rank)))[0])


def shift_dimension(model: Model) -> int:
    """Return the number of random coordinates, for each point, of averages over the teacher's fields."""
    return 0 if _gauss_nodes(model) is not None else model.n_tokens * model.teacher_rank


@lru_cache(maxsize=32)
def _gauss_nodes(model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return directions (L t, K) of the teacher's fields y on which the labels depend, nodes (M, K) and weights (M,).

    None if the probabilities are not smooth functions of few directions, or their averages are inaccurate.
    """
    (L, t), find = (model.n_tokens, model.teacher_rank), outcomes_of(model)
    root = block_diag(*psd_root(model.coordinates.rho))
    points = np.random.default_rng(0).standard_normal((DIRECTIONS.n_points, L * t)) @ root

    def probabilities(y: np.ndarray) -> np.ndarray:
        assert find is not None
        return find(y.reshape(-1, L, t))[1]

    axes = span_of(changes_of(probabilities, points))
    K = axes.shape[1]
    if K == 0 or np.abs(probabilities(points) - probabilities(points @ axes @ axes.T)).max() > OUTCOMES.smooth:
        return None
    last: Any = np.inf
    for n in range(2, int(OUTCOMES.max_nodes ** (1 / K)) + 1):
        nodes, weights = pruned_product(*gauss_hermite(n), K, OUTCOMES.dropped)
        parts = [w * probabilities(points + root @ axes @ x) for x, w in zip(nodes, weights, strict=True)]
        here = np.sum(parts, axis=0)
        if np.abs(here - last).max() <= OUTCOMES.smooth:
            return axes, nodes, weights
        last = here
    return None


class LabelsGivenFields(NamedTuple):
    """Labels of N samples with given fields ω of the student, and moments of the teacher's fields y given both."""

    labels: np.ndarray  # (C, P)
    probabilities: np.ndarray  # (N, C)
    y: np.ndarray  # (N, C, L, t) means
    covariance: np.ndarray | None  # (N, C, L, t, L, t); None if not requested


def labels_given_fields(
    model: Model, mean: np.ndarray, root: np.ndarray, eta: np.ndarray, with_covariance: bool = False
) -> LabelsGivenFields:
    """Return labels, their probabilities, and moments of y = mean + root·η given the student's fields.

    Parameters
    ----------
    model : model whose labels have known outcomes.
    mean, root : (N, L, t) means of y given ω, and a root (L, t, t) of its covariance.
    eta : (N, shift_dimension) white noise, from which the shifts of uniform points follow.
    with_covariance : whether to compute the covariances of y.
    """
    (_, L, t), nodes = mean.shape, _gauss_nodes(model)
    find: Any = outcomes_of(model)
    points: Iterable[tuple[np.ndarray, float]] = _shifted(eta)
    covariance = np.zeros((L, t, L, t))
    if nodes is not None:
        axes, x, weights = nodes
        whole = block_diag(*root)
        left, _, right = np.linalg.svd(axes.T @ whole, full_matrices=False)
        at = x @ left @ right  # (M, L t): on other directions of η, labels do not depend
        points = zip(at[:, None], weights, strict=True)
        rest = whole - whole @ right.T @ right
        covariance = (rest @ rest.T).reshape(covariance.shape)
    labels: Any = None
    probabilities: Any = 0.0
    sums: Any = 0.0
    pairs: Any = 0.0
    for noise, part in points:
        y = mean + np.einsum("lst,nlt->nls", root, noise.reshape(-1, L, t))
        labels, weight = find(y)
        weight = part * weight
        probabilities = probabilities + weight
        weighted = np.einsum("nc,nls->ncls", weight, y)
        sums = sums + weighted
        if with_covariance:
            pairs = pairs + np.einsum("ncks,nlu->nckslu", weighted, y)
    scale = 1 / np.maximum(probabilities, 1e-300)
    means = scale[..., None, None] * sums
    if not with_covariance:
        return LabelsGivenFields(labels, probabilities, means, None)
    inside = scale[..., None, None, None, None] * pairs - np.einsum("ncks,nclu->nckslu", means, means)
    return LabelsGivenFields(labels, probabilities, means, inside + covariance)


def _shifted(eta: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
    """Yield points (N, L t) of white noise with their weight, shifted by the noise (N, L t) on the unit cube."""
    shift = ndtr(eta)
    for point in sobol_points(OUTCOMES.n_shifts, shift.shape[1]):
        # the tent map makes the shifted integrand continuous at the faces of the cube
        uniform = inside_cube(1 - np.abs(2 * ((shift + point) % 1) - 1))
        yield ndtri(uniform), 1 / OUTCOMES.n_shifts
