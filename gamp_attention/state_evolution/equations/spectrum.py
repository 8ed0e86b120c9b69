"""Spectrum of the random matrix M = Λ + Σ_μ X̃_μᵀ h_μ X̃_μ for d → ∞.

M acts on directions v, weights (d, c). X̃_μ v are the fields (L, c) of v in sample μ, h_μ (L c, L c) is a symmetric
matrix that depends on the teacher's fields of the sample, and Λ is a ridge penalty. Matrices of spectral starts and the
Hessian of a risk have this form. Their spectra follow from message passing: for x below the spectrum, ½ vᵀ(M − x)v is a
risk with the quadratic losses ½ zᵀhz and the penalty Λ − x, so that the equations of state evolution apply to it.

1. **Resolvent.** At given x, the variances V_l = E[γ_l C] of the fields solve

       R = h (1 + V h)⁻¹,   V̂_l = α E[R_ll],   C_i = (Λ + Σ_l γ_l^i V̂_l − x)⁻¹.

   R is the response of the force on a sample, V̂_l its mean, and C_i the response of a weight of class i, which is the
   limit of its block (c, c) on the diagonal of (M − x)⁻¹. The same equations hold at complex x, with which
   Im E[tr C]/(π c) is the density of the spectrum (Marchenko and Pastur, 1967).
2. **Edge.** The solution at real x exists up to the lower edge of the bulk. There, the linear map of the covariances of
   the fields of v in one step (`Resolvent.squares`) has the spectral radius 1.
3. **Eigenvalues outside the bulk.** A direction with the overlaps m_l = vᵀp_l/√d with the positions and
   θ_l = vᵀΣ_lQ*/d with the teacher has the mean fields a_l, given the teacher's fields y. One step of message passing
   gives it new overlaps:

       a_l = m_l + θ_l ρ_l⁻¹ y_l,   m̂_l = −α E[(R a)_l],   θ̂_l = (V̂_l θ_l − α E[(R a)_l y_lᵀ]) ρ_l⁻¹
       b = Σ_l (m̂_l τ_l + γ_l θ̂_l π),   m_l ← E[τ_l C b],   θ_l ← E[γ_l C b πᵀ]

   If this linear map (`Resolvent.directions`) has an eigenvalue 1, x is an eigenvalue of M, and the eigenvector of the
   map contains the overlaps of its direction. Mondelli and Montanari (2019) derived edge and overlap for generalized
   linear models, which have one token and one column.

**Matrices that depend on a student.** In the Hessian of a risk at its minimum Q, h depends on Q as well, and Q depends
on all samples. The columns of Q are then treated as further columns of the teacher: y also contains the fields of each
sample under weights that were trained without it. Message passing is done for v and Q together. Let g be the output
function of Q and U_l = E[γ_l ∂v/∂b] the response of v to the forces b on Q. The mean fields of v are then a + U g, and
the force on v is −R (a + U g). With the conjugate θ̂_Q of the columns of Q, their response C_Q, and the covariance
q̂_l = −α E[(R (a + U g))_l g_lᵀ] of the forces,

    E[v Q] ← E[γ_l C b Qᵀ] + E[γ_l C (Σ_k γ_k q̂_k) C_Q],   U_l ← E[γ_l C (Σ_k γ_k θ̂_{Q,k}) C_Q].
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.models.sources import Group, single_group
from gamp_attention.state_evolution.equations.weights import drift


@dataclass(frozen=True, eq=False)
class Student:
    """Weights Q with r columns on which the matrices h depend; they are the last r columns of the teacher."""

    g: np.ndarray  # (N, L, r) output function of Q for each sample
    response: np.ndarray  # (K, r, r) response C_Q of the weights Q in each class of coordinates


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Samples of matrices h (N, L, c, L, c) with their teacher fields y (N, L, t), at a sample complexity α.

    Attributes
    ----------
    law : distribution of the coordinates, with S sources of tokens.
    alpha, h, y : sample complexity, matrices, and teacher fields with mean zero.
    ridge : (c,) strengths Λ of a ridge penalty.
    weight : (N,) weights of the samples, which add to 1; equal if not given.
    groups : rows of samples with the same sources of tokens; one source for each token if not given.
    student : the dependence of h on a student, if there is one.
    """

    law: CoordinateLaw
    alpha: float
    h: np.ndarray
    y: np.ndarray
    ridge: np.ndarray | float = 0.0
    weight: np.ndarray | None = None
    groups: tuple[Group, ...] | None = None
    student: Student | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of sources S, c and t."""
        return self.law.gamma.shape[1], self.h.shape[2], self.y.shape[2]

    @property
    def n_student(self) -> int:
        """Number of columns of the student on which h depends."""
        return 0 if self.student is None else self.student.g.shape[2]

    @cached_property
    def weighted_groups(self) -> list[tuple[Group, np.ndarray]]:
        """Groups of samples, and α times their weights."""
        N, L = self.h.shape[:2]
        weight = np.full(N, 1 / N) if self.weight is None else self.weight
        groups = single_group(N, L) if self.groups is None else self.groups
        return [(group, self.alpha * weight[group.rows]) for group in groups]

    @cached_property
    def features(self) -> np.ndarray:
        """Numbers (N, L, k) on which the mean fields of a direction depend linearly: 1, y_l and g_l."""
        parts = [np.ones((*self.y.shape[:2], 1)), self.y]
        return np.concatenate(parts if self.student is None else [*parts, self.student.g], axis=2)

    @cached_property
    def inverse_rho(self) -> np.ndarray:
        """Inverse ρ_l⁻¹ (S, t, t), a pseudo-inverse if ρ_l is singular."""
        return np.linalg.pinv(self.law.rho, hermitian=True)

    def negate(self) -> "Ensemble":
        """Return the ensemble of the negative matrices, whose lowest eigenvalues are minus the highest."""
        return replace(self, h=-self.h, ridge=-np.asarray(self.ridge))


class Resolvent:
    """One step V → W of the equations of the resolvent, at x below the spectrum or complex, and V (S, c, c).

    At a solution W = V. The properties are the maps that determine the edge and the eigenvalues outside the bulk. Eq.
    :eq:`spectral-law`.

    Attributes
    ----------
    x, V : the arguments.
    inside : True if x is below the edge according to this step, that is, if all matrices are positive definite; for
        complex x, if the imaginary parts of the variances are positive definite.
    R : (N, L, c, L, c) R = h (1 + V h)⁻¹ of each sample.
    C : (K, c, c) variance of the weights in each class of coordinates; NaN if not `inside`.
    V_hat, W : (S, c, c) conjugate variances and the new V.
    """

    def __init__(self, ensemble: Ensemble, x: complex, V: np.ndarray) -> None:
        self._ensemble, self.x, self.V = ensemble, x, V
        (S, c, _), law, L = ensemble.shape, ensemble.law, ensemble.h.shape[1]
        real, self.inside = not np.iscomplexobj(V), True
        self.R, self.V_hat = np.empty(ensemble.h.shape, dtype=V.dtype), np.zeros((S, c, c), dtype=V.dtype)
        for (rows, sources), weight in ensemble.weighted_groups:
            big = np.zeros((L, c, L, c), dtype=V.dtype)
            big[np.arange(L), :, np.arange(L)] = V[sources]
            flat, h = big.reshape(L * c, L * c), ensemble.h[rows].reshape(-1, L * c, L * c)
            if real and self.inside:
                root = psd_root(flat)
                self.inside = _are_positive_definite(np.eye(L * c) + root @ h @ root)
            self.R[rows] = np.linalg.solve(np.eye(L * c) + h @ flat, h).reshape(-1, L, c, L, c)
            self.V_hat[sources] += np.einsum("n,nlalb->lab", weight, self.R[rows])
        A = np.einsum("kl,lab->kab", law.gamma, self.V_hat) + (np.asarray(ensemble.ridge) - x) * np.eye(c)
        self.inside = self.inside and (not real or _are_positive_definite(A))
        self.C = np.linalg.inv(A) if self.inside else np.full_like(A, np.nan)
        if not real:
            self.inside = _are_positive_definite(V.imag) and _are_positive_definite(self.C.imag)
        self.W = np.einsum("k,kl,kab->lab", law.weight, law.gamma, self.C)

    @property
    def density(self) -> float:
        """Density of the spectrum at the real part of a complex x, with the resolution of its imaginary part."""
        c = self.V.shape[1]
        return float(np.einsum("k,kaa->", self._ensemble.law.weight, self.C).imag / (np.pi * c))

    @cached_property
    def slope(self) -> np.ndarray:
        """Derivative ∂W/∂x (S, c, c)."""
        law = self._ensemble.law
        return np.asarray(np.einsum("k,kl,kab->lab", law.weight, law.gamma, self.C @ self.C))

    @cached_property
    def squares(self) -> np.ndarray:
        """Linear map (S c², S c²) of covariances of the fields in one step; its spectral radius is 1 at the edge."""
        size = len(self._hats_of_q)
        return np.asarray(self._q_of_hats @ self._hats_of_q).reshape(size, size)

    @cached_property
    def _hats_of_q(self) -> np.ndarray:
        """Average α E[R_lp ⊗ R_lp]."""
        (S, c, _), L = self._ensemble.shape, self._ensemble.h.shape[1]
        total = np.zeros((S, S, c, c, c, c), dtype=self.V.dtype)
        for (rows, sources), weight in self._ensemble.weighted_groups:
            flat = self.R[rows].reshape(len(weight), -1)
            pairs = (flat.T @ (weight[:, None] * flat)).reshape(L, c, L, c, L, c, L, c)
            total[np.ix_(sources, sources)] += np.einsum("lapclbpd->lpabcd", pairs)
        return np.asarray(total.transpose(0, 2, 3, 1, 4, 5)).reshape(S * c * c, S * c * c)

    @cached_property
    def _q_of_hats(self) -> np.ndarray:
        """Average E[γ_l γ_p C ⊗ C]."""
        law, size = self._ensemble.law, self.W.size
        average = np.einsum("k,kl,kp,kac,kbd->labpcd", law.weight, law.gamma, law.gamma, self.C, self.C, optimize=True)
        return np.asarray(average).reshape(size, size)

    @cached_property
    def directions(self) -> np.ndarray:
        """Linear map of (m, θ, U), as one vector; it has an eigenvalue 1 if x is an isolated eigenvalue."""
        S, c, t = self._ensemble.shape
        size = S * c * (1 + t + self._ensemble.n_student)
        return np.stack([self._step(unit.reshape(S, c, -1)).ravel() for unit in np.eye(size)], axis=1)

    def _step(self, overlaps: np.ndarray) -> np.ndarray:
        """Return the new overlaps (S, c, 1 + t + r), that is m, θ and U, of a direction."""
        ensemble, law = self._ensemble, self._ensemble.law
        S, r = ensemble.shape[0], ensemble.n_student
        H, cross = self._forces(overlaps)
        with_coordinates = self._with_coordinates(H, cross)
        m = np.einsum("k,kcl->lc", law.weight, with_coordinates[:, :, :S])
        theta = np.einsum("k,kl,kct->lct", law.weight, law.gamma, with_coordinates[:, :, S:])
        if ensemble.student is None:
            return np.concatenate([m[:, :, None], theta], axis=2)
        responses = self.C @ H[:, :, -r:] @ ensemble.student.response
        U = np.einsum("k,kl,kcr->lcr", law.weight, law.gamma, responses)
        return np.concatenate([m[:, :, None], theta, U], axis=2)

    def _forces(self, overlaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return H (K, c, S + t) of the forces H (τ, π) + ζ on a direction, and the covariance of ζ and g (K, c, r)."""
        ensemble, law, t = self._ensemble, self._ensemble.law, self._ensemble.shape[2]
        averages = -np.einsum("lcipdj,pdj->lci", self._force_averages, self._field_coefficients(overlaps))
        with_teacher = averages[:, :, 1 : 1 + t]
        theta_hat = (self.V_hat @ overlaps[:, :, 1 : 1 + t] + with_teacher) @ ensemble.inverse_rho
        cross = np.einsum("kl,lcr->kcr", law.gamma, averages[:, :, 1 + t :])
        return drift(law.gamma, averages[:, :, 0], theta_hat), cross

    def _field_coefficients(self, overlaps: np.ndarray) -> np.ndarray:
        """Return the coefficients (S, c, k) of the mean fields of a direction in `Ensemble.features`."""
        t = self._ensemble.shape[2]
        slope = overlaps[:, :, 1 : 1 + t] @ self._ensemble.inverse_rho
        return np.concatenate([overlaps[:, :, :1], slope, overlaps[:, :, 1 + t :]], axis=2)

    @cached_property
    def _force_averages(self) -> np.ndarray:
        """Averages α E[R_lp φ_l φ_p] (S, c, k, S, c, k) with the features φ."""
        ensemble = self._ensemble
        (S, c, _), (_, L, k) = ensemble.shape, ensemble.features.shape
        total = np.zeros((S, S, c, c, k, k))
        for (rows, sources), weight in ensemble.weighted_groups:
            features = ensemble.features[rows].reshape(len(weight), -1)
            products = (features[:, :, None] * features[:, None]).reshape(len(weight), -1)
            sums = self.R[rows].reshape(len(weight), -1).T @ (weight[:, None] * products)
            sums = sums.reshape(L, c, L, c, L, k, L, k)
            total[np.ix_(sources, sources)] += np.einsum("lapclipj->lpacij", sums)
        return total.transpose(0, 2, 4, 1, 3, 5)

    def _with_coordinates(self, H: np.ndarray, cross: np.ndarray) -> np.ndarray:
        """Return E[v (τ, π)ᵀ] (K, c, S + t) of a direction with given forces."""
        student = self._ensemble.student
        first = self.C @ H @ self._ensemble.law.moments
        if student is not None:
            first[:, :, -cross.shape[2] :] += self.C @ cross @ student.response
        return first

    def weights_of(self, overlaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return E[v vᵀ] (c, c) and E[v (τ, π)ᵀ] (c, S + t) of the eigenvector with overlaps (S, c, 1 + t + r)."""
        ensemble = self._ensemble
        (S, c, t), law, r = ensemble.shape, ensemble.law, ensemble.n_student
        coefficients, theta = self._field_coefficients(overlaps), overlaps[:, :, 1 : 1 + t]
        # q̂ = α E[(R a)(R a)ᵀ] plus the part of the fields that is independent of a, of covariance q − θ ρ⁻¹ θᵀ
        rest = coefficients[:, :, 1 : 1 + t] @ np.swapaxes(theta, 1, 2)
        source = -(self._hats_of_q @ rest.ravel()).reshape(S, c, c)
        for (rows, sources), weight in ensemble.weighted_groups:
            a = np.einsum("lck,nlk->nlc", coefficients[sources], ensemble.features[rows])
            force = np.einsum("nlapc,npc->nla", self.R[rows], a, optimize=True)
            source[sources] += np.einsum("n,nla,nlb->lab", weight, force, force)
        H, cross = self._forces(overlaps)
        with_coordinates, first = self._with_coordinates(H, cross), self.C @ H
        second = with_coordinates @ np.swapaxes(first, 1, 2)
        if ensemble.student is not None:
            second = second + first[:, :, -r:] @ ensemble.student.response @ np.swapaxes(self.C @ cross, 1, 2)
        q = np.einsum("k,kl,kab->lab", law.weight, law.gamma, second).ravel() + self._q_of_hats @ source.ravel()
        q = np.linalg.solve(np.eye(len(q)) - self.squares, q)
        q_hat = source + (self._hats_of_q @ q).reshape(S, c, c)
        second = second + self.C @ np.einsum("kl,lab->kab", law.gamma, q_hat) @ self.C
        return np.einsum("k,kab->ab", law.weight, second), np.einsum("k,kcj->cj", law.weight, with_coordinates)


def _are_positive_definite(matrices: np.ndarray) -> bool:
    """Return whether all given symmetric matrices are positive definite."""
    try:
        np.linalg.cholesky(0.5 * (matrices + np.swapaxes(matrices, -1, -2)))
    except np.linalg.LinAlgError:
        return False
    return True
