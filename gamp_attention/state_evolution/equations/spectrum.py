"""Spectrum of Σ_μ X̃ᵀ h X̃ for d → ∞, for matrices h (L c, L c) that depend on the teacher's fields.

Below the spectrum, at x, the resolvent has variances V_l(x). A direction v with overlaps m_l = vᵀp_l/√d and
θ_l = vᵀΣ_lQ*/d is mapped linearly to a direction with other overlaps:

    R = h (1 + V h)⁻¹,   V̂_l = α E[R_ll],   C_i = (Σ_l γ_l^i V̂_l − x)⁻¹,   V_l = E[γ_l C]
    a_l = m_l + θ_l ρ_l⁻¹ y_l,   m̂_l = −α E[(R a)_l],   θ̂_l = (V̂_l θ_l − α E[(R a)_l y_lᵀ]) ρ_l⁻¹
    b = Σ_l (m̂_l τ_l + γ_l θ̂_l π),   m_l ← E[τ_l C b],   θ_l ← E[γ_l C b πᵀ]

These are the equations of message passing with the quadratic losses ½ zᵀhz and the penalty −x. Mondelli and Montanari
(2019) derived edge and overlap for generalized linear models, which have one token and one column.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.state_evolution.equations.weights import drift


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Samples of matrices h (N, L, c, L, c) with their teacher fields y (N, L, t), at a sample complexity α."""

    law: CoordinateLaw
    alpha: float
    h: np.ndarray
    y: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """Dimensions L, c and t."""
        return (*self.h.shape[1:3], self.y.shape[2])

    @cached_property
    def products(self) -> np.ndarray:
        """Concatenation of 1, y and y yᵀ for each sample, (N, 1 + L t + (L t)²)."""
        flat = self.y.reshape(len(self.y), -1)
        return np.concatenate(
            [np.ones((len(flat), 1)), flat, (flat[:, :, None] * flat[:, None]).reshape(len(flat), -1)], 1
        )

    @cached_property
    def inverse_rho(self) -> np.ndarray:
        """Inverse ρ_l⁻¹ (L, t, t), a pseudo-inverse if ρ_l is singular."""
        return np.linalg.pinv(self.law.rho, hermitian=True)


class Resolvent:
    """Result of one step of the equations at given x and V (L, c, c); valid only below the edge of the spectrum.

    Eq. :eq:`spectral-law`.

    Attributes
    ----------
    x, V : the arguments.
    inside : True if x is below the edge according to this step, that is, if all matrices are positive definite.
    R : (N, L, c, L, c) R = h (1 + V h)⁻¹ of each sample.
    C : (K, c, c) variance of the weights in each class of coordinates; NaN if not `inside`.
    V_hat, W : (L, c, c) conjugate variances and the new V.
    """

    def __init__(self, ensemble: Ensemble, x: float, V: np.ndarray) -> None:
        self._ensemble, self.x, self.V = ensemble, x, V
        (L, c, _), law = ensemble.shape, ensemble.law
        big = np.zeros((L, c, L, c))
        big[np.arange(L), :, np.arange(L)] = V
        flat, h = big.reshape(L * c, L * c), ensemble.h.reshape(-1, L * c, L * c)
        root = psd_root(flat)
        self.inside = _are_positive_definite(np.eye(L * c) + root @ h @ root)
        self.R = np.linalg.solve(np.eye(L * c) + h @ flat, h).reshape(-1, L, c, L, c)
        self.V_hat = ensemble.alpha * np.einsum("nlalb->lab", self.R) / len(h)
        A = np.einsum("kl,lab->kab", law.gamma, self.V_hat) - x * np.eye(c)
        self.inside = self.inside and _are_positive_definite(A)
        self.C = np.linalg.inv(A) if self.inside else np.full_like(A, np.nan)
        self.W = np.einsum("k,kl,kab->lab", law.weight, law.gamma, self.C)

    @cached_property
    def slope(self) -> np.ndarray:
        """Derivative ∂W/∂x (L, c, c)."""
        law = self._ensemble.law
        return np.asarray(np.einsum("k,kl,kab->lab", law.weight, law.gamma, self.C @ self.C))

    @cached_property
    def squares(self) -> np.ndarray:
        """Linear map (L c², L c²) of covariances of the fields in one step; its spectral radius is 1 at the edge."""
        size = len(self._hats_of_q)
        return np.asarray(self._q_of_hats @ self._hats_of_q).reshape(size, size)

    @cached_property
    def _hats_of_q(self) -> np.ndarray:
        """Average α E[R_lp ⊗ R_lp]."""
        L, c, _ = self._ensemble.shape
        flat = self.R.reshape(len(self.R), -1)
        pairs = (flat.T @ flat).reshape(L, c, L, c, L, c, L, c) * (self._ensemble.alpha / len(flat))
        return np.asarray(np.einsum("lapclbpd->labpcd", pairs)).reshape(L * c * c, L * c * c)

    @cached_property
    def _q_of_hats(self) -> np.ndarray:
        """Average E[γ_l γ_p C ⊗ C]."""
        law, size = self._ensemble.law, self.W.size
        average = np.einsum("k,kl,kp,kac,kbd->labpcd", law.weight, law.gamma, law.gamma, self.C, self.C, optimize=True)
        return np.asarray(average).reshape(size, size)

    @cached_property
    def directions(self) -> np.ndarray:
        """Linear map of (m, θ), as one vector; it has an eigenvalue 1 if x is an isolated eigenvalue."""
        L, c, t = self._ensemble.shape
        size = L * c * (1 + t)
        columns = []
        for unit in np.eye(size):
            m, theta = self.overlaps(*self.hats(unit[: L * c].reshape(L, c), unit[L * c :].reshape(L, c, t)))
            columns.append(np.concatenate([m.ravel(), theta.ravel()]))
        return np.stack(columns, axis=1)

    def hats(self, m: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return m̂ (L, c) and θ̂ (L, c, t) for overlaps m and θ."""
        inverse, slope = self._ensemble.inverse_rho, theta @ self._ensemble.inverse_rho
        plain, left, right, both = self._forces
        m_hat = np.einsum("lapc,pc->la", plain, m) + np.einsum("lapct,pct->la", right, slope)
        with_teacher = np.einsum("lapcs,pc->las", left, m) + np.einsum("lapcst,pct->las", both, slope)
        return m_hat, (self.V_hat @ theta + with_teacher) @ inverse

    @cached_property
    def _forces(self) -> tuple[np.ndarray, ...]:
        """Averages −α E[R_lp], and the same multiplied by y_l, by y_p, and by both."""
        L, c, t = self._ensemble.shape
        products = self._ensemble.products
        sums = (self.R.reshape(len(products), -1).T @ products) * (-self._ensemble.alpha / len(products))
        plain, first, second = np.split(sums, [1, 1 + L * t], axis=1)
        first, second = first.reshape(L, c, L, c, L, t), second.reshape(L, c, L, c, L, t, L, t)
        left, right = np.einsum("lapcls->lapcs", first), np.einsum("lapcpt->lapct", first)
        return plain.reshape(L, c, L, c), left, right, np.einsum("lapclspt->lapcst", second)

    def overlaps(self, m_hat: np.ndarray, theta_hat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return m (L, c) and θ (L, c, t) for given hats."""
        law, L = self._ensemble.law, self._ensemble.shape[0]
        first = self.C @ drift(law.gamma, m_hat, theta_hat) @ law.moments
        m = np.einsum("k,kcl->lc", law.weight, first[:, :, :L])
        return m, np.einsum("k,kl,kct->lct", law.weight, law.gamma, first[:, :, L:])

    def weights_of(self, m: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return E[v vᵀ] (c, c) and E[v (τ, π)ᵀ] (c, L + t) of the eigenvector with overlaps m and θ."""
        ensemble = self._ensemble
        (L, c, _), law = ensemble.shape, ensemble.law
        slope = theta @ ensemble.inverse_rho
        a = m + np.einsum("lct,nlt->nlc", slope, ensemble.y)
        force = np.einsum("nlapc,npc->nla", self.R, a, optimize=True)
        # q̂ = α E[(R a)(R a)ᵀ] plus the part of the fields that is independent of a, of covariance q − θ ρ⁻¹ θᵀ
        source = ensemble.alpha * np.einsum("nla,nlb->lab", force, force) / len(self.R)
        source -= (self._hats_of_q @ (slope @ np.swapaxes(theta, 1, 2)).ravel()).reshape(L, c, c)
        first = self.C @ drift(law.gamma, *self.hats(m, theta))
        with_coordinates = first @ law.moments
        second = with_coordinates @ np.swapaxes(first, 1, 2)
        q = np.einsum("k,kl,kab->lab", law.weight, law.gamma, second).ravel() + self._q_of_hats @ source.ravel()
        q = np.linalg.solve(np.eye(len(q)) - self.squares, q)
        q_hat = source + (self._hats_of_q @ q).reshape(L, c, c)
        second = second + self.C @ np.einsum("kl,lab->kab", law.gamma, q_hat) @ self.C
        return np.einsum("k,kab->ab", law.weight, second), np.einsum("k,kcj->cj", law.weight, with_coordinates)


def _are_positive_definite(matrices: np.ndarray) -> bool:
    """Return whether all given symmetric matrices are positive definite."""
    try:
        np.linalg.cholesky(0.5 * (matrices + np.swapaxes(matrices, -1, -2)))
    except np.linalg.LinAlgError:
        return False
    return True
