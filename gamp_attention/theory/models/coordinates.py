"""Joint distribution ν of covariances, positions and teacher weights over the d coordinates.

A `CoordinateLaw` has K classes of coordinates. It is built from classes of spectra, positions and teacher weights
(`gamp_attention.theory.models.coordinate_classes`), or by `law_from_samples` from the values of all coordinates: one
class for equal coordinates, or a given number of bins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.numerics import check_squarable, guard_call


@dataclass(frozen=True, eq=False)
class CoordinateLaw(DisplayMixin):
    """Joint distribution ν of covariances, positions and teacher weights over the coordinates of R^d, as K classes.

    This is the ν of equation (5). In class k every coordinate has covariance eigenvalues γ_l and positions
    τ_l = √d p_l, and a Gaussian teacher row π ~ N(mean, covariance).

    Attributes
    ----------
    weight : (K,) fractions of the coordinates in each class; they add to 1.
    gamma : (K, L) eigenvalues of Σ_l in the common basis, at least 0.
    tau : (K, L) √d times the coordinate of p_l.
    teacher_mean, teacher_cov : (K, t) and (K, t, t), mean and covariance of the rows of Q*.
    spikes : (L, t) coefficients a_l of means Q* a_l/√d along the teacher's columns, which are added to the means of the
        tokens, so that the row of all means is τ_l + π·a_l; None if there are none. Only in models with classes.

    Raises
    ------
    TypeError : if a field is not an array of real numbers.
    ValueError : if shapes do not match; `weight` is not positive or does not add to 1; `gamma` has a negative entry or
        a column of zeros; or a matrix of `teacher_cov` is not symmetric positive semi-definite.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> law = ga.CoordinateLaw(
    ...     weight=[0.5, 0.5],
    ...     gamma=[[0.1, 0.1], [0.4, 0.4]],
    ...     tau=[[1, -1], [-1, 1]],
    ...     teacher_mean=np.zeros((2, 1)),
    ...     teacher_cov=np.ones((2, 1, 1)),
    ... )
    >>> law.trace.round(12).tolist(), law.rho.round(12).ravel().tolist()
    ([0.25, 0.25], [0.25, 0.25])
    """

    weight: np.ndarray
    gamma: np.ndarray
    tau: np.ndarray
    teacher_mean: np.ndarray
    teacher_cov: np.ndarray
    spikes: np.ndarray | None = field(default=None, kw_only=True, metadata={"later": True})

    @guard_call
    def __post_init__(self) -> None:
        gamma = check_squarable("gamma", self.gamma, ("K", "L"))
        K, L = gamma.shape
        mean = check_squarable("teacher_mean", self.teacher_mean, (K, "t"))
        checked = {
            "gamma": gamma,
            "teacher_mean": mean,
            "weight": check.fractions("weight", self.weight, K),
            "tau": check_squarable("tau", self.tau, (K, L)),
            "teacher_cov": check_squarable("teacher_cov", self.teacher_cov, (K, mean.shape[1], mean.shape[1])),
        }
        if self.spikes is not None:
            checked["spikes"] = check_squarable("spikes", self.spikes, (L, mean.shape[1]))
        for name, values in checked.items():
            object.__setattr__(self, name, np.array(values))  # a copy, which the caller cannot change
        if (self.gamma < 0).any():
            raise check.fail("gamma", float(self.gamma.min()), "eigenvalues of positive semi-definite Σ_l, at least 0")
        if (self.trace <= 0).any():
            raise check.fail("gamma", self.gamma, "a positive trace of every Σ_l: no column of zeros")
        require_covariances("teacher_cov", self.teacher_cov)

    @cached_property
    def trace(self) -> np.ndarray:
        """Normalized traces tr Σ_l / d, of shape (L,)."""
        return self.weight @ self.gamma

    @cached_property
    def mean(self) -> np.ndarray:
        """Means of (τ, π) in each class, of shape (K, L + t); τ includes spikes π·a."""
        return np.concatenate([self.means_of(self.teacher_mean), self.teacher_mean], axis=1)

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariances of (τ, π) in each class, of shape (K, L + t, L + t)."""
        L, t = self.tau.shape[1], self.teacher_mean.shape[1]
        on_teacher = np.concatenate([np.zeros((L, t)) if self.spikes is None else self.spikes, np.eye(t)])
        return on_teacher @ self.teacher_cov @ on_teacher.T

    @cached_property
    def moments(self) -> np.ndarray:
        """Second moments E[(τ, π)(τ, π)ᵀ] in each class, of shape (K, L + t, L + t)."""
        return self.mean[:, :, None] * self.mean[:, None, :] + self.covariance

    def means_of(self, pi: np.ndarray, k: Any = slice(None)) -> np.ndarray:
        """Return τ + π·a (N, L), the means of the tokens times √d, in coordinates of classes k with teacher rows pi."""
        return self.tau[k] if self.spikes is None else self.tau[k] + pi @ self.spikes.T

    @cached_property
    def rho(self) -> np.ndarray:
        """Teacher overlaps ρ_l = Q*ᵀ Σ_l Q* / d, of shape (L, t, t)."""
        L = self.tau.shape[1]
        return np.einsum("k,kl,kst->lst", self.weight, self.gamma, self.moments[:, L:, L:])


def require_law(coordinates: Any) -> CoordinateLaw:
    """Return the argument if it is a CoordinateLaw; raise TypeError if not."""
    if not isinstance(coordinates, CoordinateLaw):
        raise check.fail("coordinates", coordinates, "a CoordinateLaw", TypeError)
    return coordinates


def require_covariances(name: str, value: np.ndarray) -> None:
    """Raise ValueError unless matrices (K, t, t) are symmetric positive semi-definite."""
    symmetric = np.allclose(value, np.swapaxes(value, 1, 2), rtol=1e-10, atol=1e-12)
    if not symmetric or np.linalg.eigvalsh(value).min() < -1e-12:
        raise check.fail(name, value, "symmetric positive semi-definite matrices")


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


@guard_call
def law_from_samples(gamma: ArrayLike, tau: ArrayLike, pi: ArrayLike, n_classes: int | None = None) -> SampledLaw:
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
    gamma = check_squarable("gamma", gamma, ("d", "L"))
    tau = check_squarable("tau", tau, gamma.shape)
    pi = check_squarable("pi", pi, (len(gamma), "t"))
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
        weight=counts / len(gamma), gamma=gammas, tau=taus, teacher_mean=pis,
        teacher_cov=mean(deviations[:, :, None] * deviations[:, None, :]), gamma_spread=spread(gamma, gammas),
        tau_spread=spread(tau, taus),
    )  # fmt: skip


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
