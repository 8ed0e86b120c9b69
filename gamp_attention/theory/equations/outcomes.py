"""Labels with few outcomes: their probabilities given the student's fields, averaged over the teacher's fields.

The output function g depends on the student's fields ω and the label only. With the probabilities P(label | ω), an
average of g needs points of ω, and a proximal problem for each label (Rao and Blackwell: a conditional expectation has
less variance). Given ω, the teacher's fields are Gaussian, and the probabilities are averages over them with no
proximal problem: over a small set of uniform points, randomly shifted at each point of ω (Cranley and Patterson, 1976).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from gamp_attention._tools.numerics import compose
from gamp_attention._tools.quadrature import inside_cube
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True)
class OutcomeSettings:
    """Settings of averages over labels."""

    n_shifts: int = 32  # number of points of the teacher's fields for each point of the student's
    n_gradients: int = 64  # number of random points that show the directions on which a loss depends
    gradient_step: float = 1e-3  # step of differences of the loss
    smallest_gradient: float = 1e-6  # relative gradient above which the loss depends on a direction


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


@lru_cache(maxsize=32)
def steep_directions(model: Model) -> np.ndarray:
    """Return projectors (L, r, r) on the directions of each token's fields on which the loss of some label depends."""
    rng, n = np.random.default_rng(0), OUTCOMES.n_gradients
    L, r, t = model.n_tokens, model.rank, model.teacher_rank
    z, y = rng.standard_normal((n, L, r)), rng.standard_normal((n, L, t))
    terms = model.task.terms(y, rng.standard_normal((n, model.task.n_noise)))
    steps = OUTCOMES.gradient_step * np.eye(L * r).reshape(L, r, L, r)
    changes = [
        [model.task.errors(z + step, y, terms) - model.task.errors(z - step, y, terms) for step in of_token]
        for of_token in steps
    ]
    _, size, right = np.linalg.svd(np.swapaxes(changes, 1, 2), full_matrices=False)  # (L, r), (L, r, r)
    return compose((size > OUTCOMES.smallest_gradient * size.max()).astype(float), np.swapaxes(right, 1, 2))


class LabelsGivenFields(NamedTuple):
    """Labels of N samples with given fields ω of the student, and moments of the teacher's fields y given both."""

    labels: np.ndarray  # (C, P)
    probabilities: np.ndarray  # (N, C)
    y: np.ndarray  # (N, C, L, t) means
    covariance: np.ndarray  # (N, C, L, t, L, t); zeros if not requested


@lru_cache(maxsize=8)
def _shifts(dim: int) -> np.ndarray:
    """Return the points (OUTCOMES.n_shifts, dim) of the unit cube that are shifted."""
    return sobol_points(OUTCOMES.n_shifts, dim)


def labels_given_fields(
    outcomes: Outcomes, mean: np.ndarray, root: np.ndarray, eta: np.ndarray, with_covariance: bool = False
) -> LabelsGivenFields:
    """Return labels, their probabilities, and moments of y = mean + root·η given the student's fields.

    Parameters
    ----------
    outcomes : function of fields (N, L, t) that returns labels (C, P) and probabilities (N, C).
    mean, root : (N, L, t) means of y given ω, and a root (L, t, t) of its covariance.
    eta : (N, L, t) white noise, from which the shifts follow.
    with_covariance : whether to compute the covariances of y.
    """
    (N, L, t), shift = mean.shape, ndtr(eta.reshape(len(eta), -1))
    labels: Any = None
    probabilities: Any = 0.0
    sums: Any = 0.0
    pairs: Any = 0.0
    for point in _shifts(L * t):
        # the tent map makes the shifted integrand continuous at the faces of the cube
        uniform = inside_cube(1 - np.abs(2 * ((shift + point) % 1) - 1))
        y = mean + np.einsum("lst,nlt->nls", root, ndtri(uniform).reshape(mean.shape))
        labels, weight = outcomes(y)
        probabilities = probabilities + weight / OUTCOMES.n_shifts
        weighted = np.einsum("nc,nls->ncls", weight / OUTCOMES.n_shifts, y)
        sums = sums + weighted
        if with_covariance:
            pairs = pairs + np.einsum("ncks,nlu->nckslu", weighted, y)
    scale = 1 / np.maximum(probabilities, 1e-300)
    means = scale[..., None, None] * sums
    covariance = np.zeros((N, 1, L, t, L, t))
    if with_covariance:
        covariance = scale[..., None, None, None, None] * pairs - np.einsum("ncks,nclu->nckslu", means, means)
    return LabelsGivenFields(labels, probabilities, means, covariance)
