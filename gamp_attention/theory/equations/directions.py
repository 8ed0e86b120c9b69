"""Directions of fields in which functions vary, from differences at random points.

Random points with fewer coordinates have smaller errors. A loss of y − z does not change if both fields move together,
a multinomial loss if all fields of z do, and class probabilities if all fields of the teacher do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True)
class DirectionSettings:
    """Settings of the search of directions, and limits of directions in which something is rounding, noise or zero.

    Limits are relative to the largest.
    """

    n_points: int = 256  # number of random points at which differences are computed
    radii: tuple[float, float] = (0.1, 100.0)  # smallest and largest size of these points
    slope_step: float = 1e-5  # step of differences of a function, which hardly ever has a kink between its points
    step: float = 1e-3  # the same for positions of planes on which labels change
    growth: float = 3.0  # largest slope, of fields that are 30 times larger, of losses with a bounded slope
    smallest: float = 1e-6  # change in a direction above which a function depends on it
    later: float = 1e-3  # size, in a comparison of directions, of those that do not concern the student
    rounding: float = 1e-8  # variance of fields on which the loss depends, which may be due to rounding
    steep: float = 1e-2  # part of a flat direction in which the loss varies, or that is not in the span of others
    response: float = 1e-5  # response in a flat direction
    determined: float = 1e-9  # part of q that the teacher does not explain, if it determines the field


DIRECTIONS = DirectionSettings()


def span_of(changes: np.ndarray) -> np.ndarray:
    """Return orthonormal columns (n, K) that span changes (n, samples), as near as possible to the n coordinates."""
    left, size, _ = np.linalg.svd(changes, full_matrices=False)
    left = left[:, size > DIRECTIONS.smallest * size.max(initial=0.0)]
    columns = np.zeros((len(left), 0))
    for column in left @ left.T:
        rest = column - columns @ (columns.T @ column)
        if np.linalg.norm(rest) > DIRECTIONS.steep:
            columns = np.column_stack([columns, rest / np.linalg.norm(rest)])
    return columns


def changes_of(f: Callable[[np.ndarray], np.ndarray], points: np.ndarray) -> np.ndarray:
    """Return differences (n, ·) of a function of points (N, n) in each coordinate, without those that are infinite."""
    steps = DIRECTIONS.slope_step * np.eye(points.shape[1])
    with np.errstate(invalid="ignore"):
        changes = np.array([(f(points + step) - f(points - step)).ravel() for step in steps])
    return changes[:, np.isfinite(changes).all(axis=0)]


@lru_cache(maxsize=32)
def loss_directions(model: Model, labels: tuple[tuple[float, ...], ...] | None) -> tuple[np.ndarray, bool]:
    """Return the directions in which the loss of some sample varies, and whether its slope is bounded.

    The directions, all if the loss does not vary, are orthonormal columns (n, K) for the student's fields, the
    teacher's fields and the noise of labels, n = L (r + t) + noise. With given `labels`, or () for random labels, they
    are for the student's fields only, n = L r.
    """
    rng, (L, r, t) = np.random.default_rng(0), (model.n_tokens, model.rank, model.teacher_rank)
    n, n_student, n_fields = DIRECTIONS.n_points, L * r, L * (r + t)
    points = rng.standard_normal((n, n_fields + model.task.n_noise))
    points *= np.geomspace(*DIRECTIONS.radii, n)[:, None]

    def terms(rest: np.ndarray) -> tuple[np.ndarray, RiskTerms]:
        y = rest[:, : L * t].reshape(-1, L, t)
        return y, model.task.terms(y, rest[:, L * t :])

    y, given = terms(points[:, n_student:])
    if labels:  # all of them, also those that are rare
        given = RiskTerms(np.array(labels)[np.arange(n) % len(labels)], np.zeros(n))

    def errors(x: np.ndarray) -> np.ndarray:
        at = terms(x[:, n_student:]) if labels is None else (y, given)
        return np.asarray(model.task.errors(x[:, :n_student].reshape(n, L, r), *at))

    x = points if labels is None else points[:, :n_student]
    steep = span_of(changes_of(lambda at: errors(at) / np.abs(x).max(axis=1), x))  # rounding grows with the fields
    slopes = [part.max(initial=0.0) for part in np.array_split(np.abs(changes_of(errors, x)), 4, axis=1)]
    with np.errstate(invalid="ignore"):  # differences do not see steps, for example of labels that count
        at, projected = errors(x), errors(x @ steep @ steep.T)
        flat = np.isclose(at, projected, DIRECTIONS.smallest, DIRECTIONS.smallest, equal_nan=True).all()
    return steep if flat and steep.size else np.eye(x.shape[1]), bool(slopes[3] < DIRECTIONS.growth * slopes[1])
