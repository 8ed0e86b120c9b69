"""The joint distribution ν of covariances, positions and teacher weights over the coordinates."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet, squarable
from gamp_attention._core.text import Shown
from gamp_attention.models.coordinate_classes import class_shares, value_classes


@dataclass(frozen=True, eq=False)
class CoordinateLaw(Shown):
    """Joint distribution ν of covariances, positions and teacher weights over the coordinates of R^d, as K classes.

    This is the ν of equation (5). In class k every coordinate has covariance eigenvalues γ_l and positions
    τ_l = √d p_l, and a Gaussian teacher row π ~ N(mean, covariance).

    Attributes
    ----------
    weight : (K,) fractions of the coordinates in each class; they add to 1.
    gamma : (K, L) eigenvalues of Σ_l in the common basis, at least 0.
    tau : (K, L) √d times the coordinate of p_l.
    teacher_mean, teacher_cov : (K, t) and (K, t, t), mean and covariance of the rows of Q*.

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

    @quiet
    def __post_init__(self) -> None:
        gamma = squarable("gamma", self.gamma, ("K", "L"))
        K, L = gamma.shape
        mean = squarable("teacher_mean", self.teacher_mean, (K, "t"))
        checked = {
            "gamma": gamma,
            "teacher_mean": mean,
            "weight": class_shares("weight", self.weight, K),
            "tau": squarable("tau", self.tau, (K, L)),
            "teacher_cov": squarable("teacher_cov", self.teacher_cov, (K, mean.shape[1], mean.shape[1])),
        }
        for name, values in checked.items():
            object.__setattr__(self, name, values)
        if (self.gamma < 0).any():
            raise check.fail("gamma", float(self.gamma.min()), "eigenvalues of positive semi-definite Σ_l, at least 0")
        if (self.trace <= 0).any():
            raise check.fail("gamma", self.gamma, "a positive trace of every Σ_l: no column of zeros")
        _covariances("teacher_cov", self.teacher_cov)

    @cached_property
    def trace(self) -> np.ndarray:
        """Normalized traces tr Σ_l / d, of shape (L,)."""
        return self.weight @ self.gamma

    @cached_property
    def moments(self) -> np.ndarray:
        """Second moments E[(τ, π)(τ, π)ᵀ] in each class, of shape (K, L + t, L + t)."""
        mean = np.concatenate([self.tau, self.teacher_mean], axis=1)
        second = mean[:, :, None] * mean[:, None, :]
        L = self.tau.shape[1]
        second[:, L:, L:] += self.teacher_cov
        return second

    @cached_property
    def rho(self) -> np.ndarray:
        """Teacher overlaps ρ_l = Q*ᵀ Σ_l Q* / d, of shape (L, t, t)."""
        L = self.tau.shape[1]
        return np.einsum("k,kl,kst->lst", self.weight, self.gamma, self.moments[:, L:, L:])


def coordinate_law(
    spectra: Any = 0.25, tau: Any = None, teacher: Any = None, *, n_tokens: int = 2, teacher_rank: int = 1
) -> CoordinateLaw:
    """Return the distribution of coordinates in which covariances, positions and teacher weights are independent.

    Each of the three is an array of equally frequent values, or `CoordinateClasses` with other fractions; the result
    has a class for every combination. If they are dependent, build a `CoordinateLaw` or use `law_from_samples`.

    Parameters
    ----------
    spectra : eigenvalues of Σ_l: a number, (K,) common to all tokens, or (K, L) in a common basis.
    tau : (L,) or (J, L) positions τ = √d p; evenly spaced from 1 to −1, the same in all coordinates, if not given.
    teacher : (t, t) or (J, t, t) covariances of the rows of Q*, Gaussian of mean zero; the identity if not given.
    n_tokens, teacher_rank : number of tokens L and of teacher columns t.

    Returns
    -------
    CoordinateLaw

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if `n_tokens` or `teacher_rank` is below 1; `spectra` has a negative value or only zeros for a token;
        `teacher` has a matrix that is not symmetric positive semi-definite; or a shape does not match L or t.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> law = ga.coordinate_law(ga.power_law_spectrum(1.0, 4), teacher=ga.sparse_teacher(0.5))
    >>> law.gamma.shape, law.trace.round(12).tolist(), law.rho[0].round(12).tolist()
    ((8, 2), [0.25, 0.25], [[0.125]])
    """
    L = check.integer("n_tokens", n_tokens, low=1)
    t = check.integer("teacher_rank", teacher_rank, low=1)
    check.fits("n_tokens, teacher_rank", max(L, t), t)
    gamma = value_classes("spectra", spectra, (), (L,))
    if not (gamma.values >= 0).all() or not gamma.values.any(axis=0).all():
        needs = "eigenvalues of positive semi-definite Σ_l: at least 0, with a positive trace of each Σ_l"
        raise check.fail("spectra", gamma.values, needs)
    gamma = gamma._replace(values=np.broadcast_to(gamma.values.reshape(len(gamma.values), -1), (len(gamma.values), L)))
    tau = value_classes("tau", np.linspace(1, -1, L) if tau is None else tau, (L,))
    cov = value_classes("teacher", np.eye(t) if teacher is None else teacher, (t, t))
    _covariances("teacher", cov.values)
    sizes = [len(part.weight) for part in (gamma, tau, cov)]
    k, j, i = np.unravel_index(np.arange(np.prod(sizes)), sizes)
    return CoordinateLaw(
        weight=gamma.weight[k] * tau.weight[j] * cov.weight[i],
        gamma=np.ascontiguousarray(gamma.values[k]),
        tau=tau.values[j],
        teacher_mean=np.zeros((len(k), t)),
        teacher_cov=cov.values[i],
    )


def _covariances(name: str, value: np.ndarray) -> None:
    symmetric = np.allclose(value, np.swapaxes(value, 1, 2), rtol=1e-10, atol=1e-12)
    if not symmetric or np.linalg.eigvalsh(value).min() < -1e-12:
        raise check.fail(name, value, "symmetric positive semi-definite matrices")
