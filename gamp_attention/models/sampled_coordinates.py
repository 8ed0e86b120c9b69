"""Distributions of coordinates from samples: one class for equal coordinates, or a given number of bins."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet, squarable
from gamp_attention.models.coordinates import CoordinateLaw


@dataclass(frozen=True, eq=False)
class SampledLaw(CoordinateLaw):
    """Distribution of coordinates from samples, with the error of binning them into classes.

    Attributes
    ----------
    gamma_spread, tau_spread : (L,) binning error: root mean square distance of γ_l and τ_l from the means of their
        classes, divided by the root mean square of γ_l and τ_l; zero, up to rounding, if nothing was binned. Means of
        γ, τ, π and π πᵀ within classes are exact, so errors of overlaps are of second order in the spreads if there are
        no correlations within classes.
    """

    gamma_spread: np.ndarray
    tau_spread: np.ndarray


@quiet
def law_from_samples(gamma: Any, tau: Any, pi: Any, n_classes: int | None = None) -> SampledLaw:
    """Return the distribution ν of equation (5) of d given coordinates, e.g. of one instance of data.

    Coordinates of one class have the same γ and τ, and their teacher rows are replaced by a Gaussian of the same mean
    and covariance. With the ridge penalty only these moments matter. Unless coordinates are binned, a class never
    contains both zero and nonzero teacher rows.

    Parameters
    ----------
    gamma : (d, L) eigenvalues of Σ_l along the coordinates.
    tau : (d, L) positions √d p_l.
    pi : (d, t) rows of Q*.
    n_classes : maximum number of classes. If there are more distinct coordinates, they are binned by repeatedly cutting
        the widest bin in two. If not given, coordinates with equal (γ, τ) form a class, and there may be d classes.

    Returns
    -------
    SampledLaw, with the binning error.

    Raises
    ------
    TypeError : if an argument is not an array of real numbers, or `n_classes` not an integer.
    ValueError : if shapes do not match, `gamma` has a negative entry or a column of zeros, or `n_classes` is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> law = ga.law_from_samples(np.full((4, 2), 0.25), [[1, -1], [1, -1], [1, -1], [-1, 1]], np.ones((4, 1)))
    >>> law.weight.tolist(), law.tau.tolist()
    ([0.25, 0.75], [[-1.0, 1.0], [1.0, -1.0]])
    """
    gamma = squarable("gamma", gamma, ("d", "L"))
    tau = squarable("tau", tau, gamma.shape)
    pi = squarable("pi", pi, (len(gamma), "t"))
    if (gamma < 0).any() or not gamma.any(axis=0).all():
        raise check.fail(
            "gamma", gamma, "eigenvalues of positive semi-definite Σ_l: at least 0, with a positive trace of each Σ_l"
        )
    keys = np.column_stack([gamma, tau, pi.any(axis=1)])
    _, first, group, counts = np.unique(
        keys.round(12), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    max_classes = len(counts) if n_classes is None else check.integer("n_classes", n_classes, low=1)
    binned = max_classes < len(counts)
    if binned:
        group = _assign_bins(np.column_stack([gamma, tau]), max_classes)
        counts = np.bincount(group)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(counts), *values.shape[1:]))
        np.add.at(total, group, values)
        return total / counts.reshape(-1, *(1 for _ in values.shape[1:]))

    def spread(values: np.ndarray, means: np.ndarray) -> np.ndarray:
        scale = np.sqrt((values**2).mean(axis=0))
        return np.sqrt(((values - means[group]) ** 2).mean(axis=0)) / np.maximum(scale, 1e-300)

    gammas, taus = (mean(gamma), mean(tau)) if binned else (gamma[first], tau[first])
    pis = mean(pi)
    deviations = pi - pis[group]
    return SampledLaw(
        weight=counts / len(gamma),
        gamma=gammas,
        tau=taus,
        teacher_mean=pis,
        teacher_cov=mean(deviations[:, :, None] * deviations[:, None, :]),
        gamma_spread=spread(gamma, gammas),
        tau_spread=spread(tau, taus),
    )


def _assign_bins(points: np.ndarray, n_classes: int) -> np.ndarray:
    """Return bin labels (d,) of points (d, k).

    The bin with the largest sum of squares about its mean is cut in two, at the mean of the column that contributes
    most, until there are n_classes bins or all points within each bin are equal. Columns are divided by their standard
    deviation first.
    """
    scale = points.std(axis=0)
    points = points / np.where(scale > 1e-12 * (np.abs(points).max(axis=0) + 1e-300), scale, np.inf)
    label = np.zeros(len(points), dtype=int)

    def squares(bin_number: int) -> np.ndarray:
        inside = points[label == bin_number]
        return ((inside - inside.mean(axis=0)) ** 2).sum(axis=0)

    inner = [squares(0)]
    while len(inner) < n_classes:
        widest = int(np.argmax([column_squares.sum() for column_squares in inner]))
        if inner[widest].sum() <= 1e-18 * len(points):
            break
        column = points[:, int(np.argmax(inner[widest]))]
        inside = label == widest
        label[inside & (column > column[inside].mean())] = len(inner)
        inner[widest] = squares(widest)
        inner.append(squares(len(inner)))
    return label
