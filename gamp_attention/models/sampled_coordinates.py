"""Laws of coordinates from samples: a class for equal coordinates, or a given number of bins."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet, squarable
from gamp_attention.models.coordinates import CoordinateLaw


@dataclass(frozen=True, eq=False)
class SampledLaw(CoordinateLaw):
    """A law from samples, with what its classes do not resolve.

    Attributes
    ----------
    gamma_spread, tau_spread : (L,) binning error: root mean squares of the distances of γ_l and τ_l from the means of
        their classes, in units of the root mean squares of γ_l and τ_l; zero, up to rounding, where nothing was binned.
        As means of γ, τ, π and π πᵀ within classes are exact, errors of overlaps are of second order in the spreads
        where there are no correlations within classes.
    """

    gamma_spread: np.ndarray
    tau_spread: np.ndarray


@quiet
def law_from_samples(gamma: Any, tau: Any, pi: Any, n_classes: int | None = None) -> SampledLaw:
    """The law ν of equation (5) of d given coordinates, as of an instance of data.

    Coordinates of one class share γ and τ, and their teacher rows are replaced by a Gaussian of the same mean and
    covariance. With the ridge penalty only these moments matter. Rows of zeros are kept apart from others.

    Parameters
    ----------
    gamma : (d, L) eigenvalues of Σ_l along the coordinates.
    tau : (d, L) positions, √d times those of data.
    pi : (d, t) rows of Q*.
    n_classes : bin the coordinates into at most so many classes, by cutting the widest class in two again and again; if
        not given, coordinates with equal (γ, τ) are a class, and there may be d of them.

    Returns
    -------
    SampledLaw, which states the error of binning.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

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
            "gamma", gamma, "eigenvalues, at least 0, of positive semi-definite Σ_l, and a positive trace of each"
        )
    alike = np.column_stack([gamma, tau, pi.any(axis=1)])
    _, first, group, counts = np.unique(
        alike.round(12), axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    most = len(counts) if n_classes is None else check.integer("n_classes", n_classes, low=1)
    binned = most < len(counts)
    if binned:
        group = _bins(np.column_stack([gamma, tau]), most)
        counts = np.bincount(group)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(counts), *values.shape[1:]))
        np.add.at(total, group, values)
        return total / counts.reshape(-1, *(1 for _ in values.shape[1:]))

    def spread(values: np.ndarray, means: np.ndarray) -> np.ndarray:
        size = np.sqrt((values**2).mean(axis=0))
        return np.sqrt(((values - means[group]) ** 2).mean(axis=0)) / np.maximum(size, 1e-300)

    gammas, taus = (mean(gamma), mean(tau)) if binned else (gamma[first], tau[first])
    pis = mean(pi)
    rest = pi - pis[group]
    return SampledLaw(
        weight=counts / len(gamma),
        gamma=gammas,
        tau=taus,
        teacher_mean=pis,
        teacher_cov=mean(rest[:, :, None] * rest[:, None, :]),
        gamma_spread=spread(gamma, gammas),
        tau_spread=spread(tau, taus),
    )


def _bins(points: np.ndarray, n_classes: int) -> np.ndarray:
    """Labels (d,) of bins: again and again the bin of largest inner sum of squares is cut at the mean of a column.

    Columns are in units of their spread. Fewer than n_classes where no bin is left with two different points.
    """
    scale = points.std(axis=0)
    points = points / np.where(scale > 1e-12 * (np.abs(points).max(axis=0) + 1e-300), scale, np.inf)
    label = np.zeros(len(points), dtype=int)

    def squares(bin_number: int) -> np.ndarray:
        inside = points[label == bin_number]
        return ((inside - inside.mean(axis=0)) ** 2).sum(axis=0)

    inner = [squares(0)]
    while len(inner) < n_classes:
        widest = int(np.argmax([each.sum() for each in inner]))
        if inner[widest].sum() <= 1e-18 * len(points):
            break
        column = points[:, int(np.argmax(inner[widest]))]
        inside = label == widest
        label[inside & (column > column[inside].mean())] = len(inner)
        inner[widest] = squares(widest)
        inner.append(squares(len(inner)))
    return label
