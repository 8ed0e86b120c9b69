"""The law of the coordinates: covariance eigenvalues, positions and teacher weights."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gamp_attention import _validation as check


@dataclass(frozen=True, eq=False)
class CoordinateLaw:
    """The joint law ν of eq. (5) over the coordinates i of R^d, as a mixture of K classes.

    In class k every coordinate has covariance eigenvalues γ_l and positions τ_l = √d p_l, and a Gaussian
    teacher row π ~ N(mean, covariance).

    Attributes
    ----------
    weight : (K,) shares of the classes, adding to one.
    gamma : (K, L) eigenvalues of Σ_l in the common basis, at least 0.
    tau : (K, L) √d times the coordinate of p_l.
    teacher_mean, teacher_cov : (K, t) and (K, t, t), of the rows of Q*.
    """

    weight: np.ndarray
    gamma: np.ndarray
    tau: np.ndarray
    teacher_mean: np.ndarray
    teacher_cov: np.ndarray

    def __post_init__(self) -> None:
        K, L = check.array("gamma", self.gamma, ("K", "L")).shape
        t = check.array("teacher_mean", self.teacher_mean, (K, "t")).shape[1]
        check.array("weight", self.weight, (K,))
        check.array("tau", self.tau, (K, L))
        check.array("teacher_cov", self.teacher_cov, (K, t, t))
        if (self.weight <= 0).any() or abs(self.weight.sum() - 1) > 1e-12:
            raise check.fail("weight", self.weight, "positive numbers that add to 1")
        if (self.gamma < 0).any():
            raise check.fail(
                "covariance", float(self.gamma.min()), "positive semi-definite Σ_l, eigenvalues of at least 0"
            )
        if np.linalg.eigvalsh(self.teacher_cov).min() < -1e-12:
            raise check.fail("teacher_cov", self.teacher_cov, "positive semi-definite matrices")

    @cached_property
    def trace(self) -> np.ndarray:
        """tr Σ_l / d, of shape (L,)."""
        return self.weight @ self.gamma

    @cached_property
    def moments(self) -> np.ndarray:
        """E[(τ, π)(τ, π)ᵀ] in each class, of shape (K, L + t, L + t)."""
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
