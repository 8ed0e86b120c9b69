"""Models whose averages are averages of polynomials of Gaussian coordinates.

The proximal map of the squared loss is (ω + V p)/(1 + V). If the labels p are affine functions of the teacher's fields
and noise, the map is affine in all white coordinates, and the integrands of state evolution are polynomials.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gamp_attention._core.quadrature import gauss_hermite, tensor_grid
from gamp_attention.losses.glm import SquaredLoss
from gamp_attention.models.model import Model
from gamp_attention.state_evolution.equations.channel import fields_and_terms, teacher_size

REACH, N_POINTS = 9.0, 38  # half-width, in standard deviations, and number of points of the grid along each coordinate
N_NODES = 6  # number of Gauss-Hermite nodes of each coordinate
EXACT = 1e-12  # relative error of averages of polynomials, which is due to rounding
ROUNDING = 1e-12  # largest difference from an affine function, in units of the largest label


@lru_cache(maxsize=256)
def is_affine(model: Model) -> bool:
    """Return whether the loss is the squared loss and all labels are affine functions of the teacher's coordinates.

    The labels are compared with affine functions on a grid; stored, because this does not depend on the overlaps.
    """
    return all(_has_affine_labels(component) for _, _, component in model.components)


def _has_affine_labels(model: Model) -> bool:
    """Return whether one component of a model has the squared loss and affine labels."""
    if not isinstance(model.student, SquaredLoss):
        return False
    n = teacher_size(model)
    white = tensor_grid(np.linspace(-REACH, REACH, N_POINTS), n)
    terms = fields_and_terms(model, white)[1]
    values = np.column_stack([terms.params, np.broadcast_to(terms.constant, len(white))])
    basis = np.column_stack([np.ones(len(white)), white])
    affine = basis @ np.linalg.lstsq(basis, values)[0]
    return bool(np.abs(values - affine).max() <= ROUNDING * np.abs(values).max())


def average_polynomials(function: Callable[[np.ndarray], np.ndarray], n: int) -> np.ndarray:
    """Return the averages (K,) of polynomials, a function of points (N, n), of degree 11 or less in each coordinate."""
    x, weight = gauss_hermite(N_NODES)
    return np.prod(tensor_grid(weight, n), axis=1) @ function(tensor_grid(x, n))
