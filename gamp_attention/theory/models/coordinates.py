"""Joint distribution ν of covariances, positions and teacher weights over the d coordinates.

A `CoordinateLaw` has K classes of coordinates. It is built from classes of spectra, positions and teacher weights
(`gamp_attention.theory.models.coordinate_classes`), or by `law_from_samples` from the values of all coordinates.
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
    unseen : (t, t) covariance of a Gaussian part of the teacher's fields that is independent of the tokens; 0 if not
        given. Only for labels of single tokens, see `coordinate_law`.
    rotated : True if coordinates are along eigenvectors of a covariance: models then need a ridge penalty.

    Raises
    ------
    TypeError : if a field is not an array of real numbers.
    ValueError : if shapes do not match; `weight` is not positive or does not add to 1; `gamma` has a negative entry or
        a column of zeros; or a matrix of `teacher_cov`, or `unseen`, is not symmetric positive semi-definite.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> law = ga.CoordinateLaw(
    ...     weight=[0.5, 0.5], gamma=[[0.1, 0.1], [0.4, 0.4]], tau=[[1, -1], [-1, 1]],
    ...     teacher_mean=np.zeros((2, 1)), teacher_cov=np.ones((2, 1, 1)),
    ... )
    >>> law.trace.round(12).tolist(), law.rho.round(12).ravel().tolist()
    ([0.25, 0.25], [0.25, 0.25])
    """

    weight: np.ndarray
    gamma: np.ndarray
    tau: np.ndarray
    teacher_mean: np.ndarray
    teacher_cov: np.ndarray
    spikes: np.ndarray | None = field(default=None, kw_only=True)
    unseen: np.ndarray = field(default=None, kw_only=True)  # type: ignore[arg-type]
    rotated: bool = field(default=False, kw_only=True)

    @guard_call
    def __post_init__(self) -> None:
        gamma = check_squarable("gamma", self.gamma, ("K", "L"))
        K, L = gamma.shape
        mean = check_squarable("teacher_mean", self.teacher_mean, (K, "t"))
        t = mean.shape[1]
        checked = {
            "gamma": gamma,
            "teacher_mean": mean,
            "weight": check.fractions("weight", self.weight, K),
            "tau": check_squarable("tau", self.tau, (K, L)),
            "teacher_cov": check_squarable("teacher_cov", self.teacher_cov, (K, t, t)),
            "unseen": check_squarable("unseen", np.zeros((t, t)) if self.unseen is None else self.unseen, (t, t)),
        }
        if self.spikes is not None:
            checked["spikes"] = check_squarable("spikes", self.spikes, (L, t))
        for name, values in checked.items():
            object.__setattr__(self, name, np.array(values))  # a copy, which the caller cannot change
        if (self.gamma < 0).any():
            raise check.fail("gamma", float(self.gamma.min()), "eigenvalues of positive semi-definite Σ_l, at least 0")
        if (self.trace <= 0).any():
            raise check.fail("gamma", self.gamma, "a positive trace of every Σ_l: no column of zeros")
        require_covariances("teacher_cov", self.teacher_cov)
        require_covariances("unseen", self.unseen[None])
        object.__setattr__(self, "rotated", check.flag("rotated", self.rotated))

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
        """Covariances ρ_l = Q*ᵀ Σ_l Q* / d + `unseen` of the teacher's fields, of shape (L, t, t)."""
        L = self.tau.shape[1]
        return np.einsum("k,kl,kst->lst", self.weight, self.gamma, self.moments[:, L:, L:]) + self.unseen

    @cached_property
    def rho_inverse(self) -> np.ndarray:
        """Pseudo-inverse of each ρ_l, of shape (L, t, t)."""
        return np.linalg.pinv(self.rho, hermitian=True)


def require_law(coordinates: Any) -> CoordinateLaw:
    """Return the argument if it is a CoordinateLaw; raise TypeError if not."""
    if not isinstance(coordinates, CoordinateLaw):
        raise check.fail("coordinates", coordinates, "a CoordinateLaw", TypeError)
    return coordinates


def require_seen(law: CoordinateLaw, purpose: str) -> None:
    """Raise ValueError if a part of the teacher's fields is independent of the tokens."""
    if law.unseen.any():
        raise check.fail("coordinates.unseen", law.unseen, f"0 for {purpose}")


def require_covariances(name: str, value: np.ndarray) -> None:
    """Raise ValueError unless matrices (K, t, t) are symmetric positive semi-definite."""
    scaled = value / (np.linalg.norm(value) or 1)
    symmetric = np.allclose(scaled, np.swapaxes(scaled, 1, 2), rtol=1e-10, atol=1e-12)
    if not symmetric or np.linalg.eigvalsh(scaled).min() < -1e-12:
        raise check.fail(name, value, "symmetric positive semi-definite matrices")


@guard_call
def law_from_samples(gamma: ArrayLike, tau: ArrayLike, pi: ArrayLike) -> CoordinateLaw:
    """Return the distribution ν of equation (5) of d given coordinates, e.g. of one instance of data.

    Coordinates with equal γ and τ form a class, and their teacher rows are replaced by a Gaussian of the same mean and
    covariance. With the ridge penalty only these moments matter. A class never contains both zero and nonzero teacher
    rows.

    Parameters
    ----------
    gamma : (d, L) eigenvalues of Σ_l along the coordinates.
    tau : (d, L) positions √d p_l.
    pi : (d, t) rows of Q*.

    Returns
    -------
    CoordinateLaw

    Raises
    ------
    TypeError : if an argument is not an array of real numbers.
    ValueError : if shapes do not match, or `gamma` has a negative entry or a column of zeros.

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
    keys = np.column_stack([gamma, tau, pi.any(axis=1)]).round(12)
    _, first, group, counts = np.unique(keys, axis=0, return_index=True, return_inverse=True, return_counts=True)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(counts), *values.shape[1:]))
        np.add.at(total, group, values)
        return total / counts.reshape(-1, *(1 for _ in values.shape[1:]))

    means = mean(pi)
    deviations = pi - means[group]
    covariances = mean(deviations[:, :, None] * deviations[:, None, :])
    return CoordinateLaw(counts / len(gamma), gamma[first], tau[first], means, covariances)
