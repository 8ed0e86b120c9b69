"""Spectrum of the random matrix M = Λ + Σ_μ X̃_μᵀ h_μ X̃_μ for d → ∞.

M acts on directions v, weights (d, c). X̃_μ v are the fields (L, c) of v in sample μ, h_μ (L c, L c) is a symmetric
matrix that depends on the teacher's fields of the sample, and Λ is a ridge penalty. The Hessian of a risk and matrices
of spectral starts have this form. Their spectra follow from message passing: for x below the spectrum, ½ vᵀ(M − x)v is
a risk with the quadratic losses ½ zᵀhz and the penalty Λ − x, to which the equations of state evolution apply.

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

**Solutions of these equations.**

1. Lower edge. The resolvent's variances V and the position x are followed from −∞ up to the edge (`lowest_edge`). x and
   V grow together up to the edge, where x turns back. At a given x there is no solution beyond the edge, but at a given
   size of V there is. Therefore the size of V is the parameter, and plain Newton steps pass the edge. The upper edge is
   the lower edge of the negative matrices.
2. Eigenvalues outside. At each size, a linear map gives the new overlaps of a direction after a step of message
   passing. x is an eigenvalue if this map has the eigenvalue 1, and the second moments of this eigenvector give its
   projections (`eigenvalues_below`).
3. Density. At x + iη, η > 0, there is one solution with positive imaginary part. Newton steps start from the solution
   nearby, and from the solution at larger η if they fail (`densities`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import block_diag

from gamp_attention._tools import check
from gamp_attention._tools.numerics import psd_root, symmetrize
from gamp_attention.problem.sources import Group
from gamp_attention.theory.equations.weights import drift
from gamp_attention.theory.models.coordinates import CoordinateLaw


@dataclass(frozen=True)
class SpectrumSettings:
    """Settings of the solutions below, outside and inside the bulk."""

    max_newton: int = 30  # maximum number of Newton steps
    converged: float = 1e-10  # relative change of V in a step of message passing at which Newton steps end
    growth: float = 1.3  # ratio of the sizes of V of successive solutions
    edge_rtol: float = 1e-6  # relative error of the size at the edge, where x is maximal: its error is of second order
    max_size: float = 1e12  # size of V relative to the first, above which the edge is zero: some eigenvalues are zero
    size_rtol: float = 1e-8  # relative error of the sizes of V at which eigenvalues lie
    outside: float = 1e-3  # smallest growth of overlaps at the edge, minus 1, for an eigenvalue below the edge
    nearest: float = 1e-7  # η in units of the largest eigenvalue, below which the requested distance follows
    far: float = 4.0  # first η in units of the largest eigenvalue, where V is nearly that of independent weights


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Samples of matrices h (N, L, c, L, c) with their teacher fields y (N, L, t), at a sample complexity α.

    The last r columns of the teacher are the weights Q with r columns on which h depends; r = 0 if there are none.
    """

    law: CoordinateLaw  # distribution of the coordinates, with S sources of tokens
    # alpha, h, y: sample complexity, matrices, and teacher fields with mean zero
    alpha: float
    h: np.ndarray
    y: np.ndarray
    ridge: np.ndarray  # (c,) strengths Λ of a ridge penalty
    weight: np.ndarray  # (N,) weights of the samples, which add to 1
    groups: tuple[Group, ...]  # rows of samples with the same sources of tokens
    g: np.ndarray  # (N, L, r) output function of Q for each sample
    response: np.ndarray  # (K, r, r) response C_Q of the weights Q in each class of coordinates
    settings: SpectrumSettings = SpectrumSettings()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of sources S, c and t."""
        return self.law.gamma.shape[1], self.h.shape[2], self.y.shape[2]

    @property
    def student(self) -> slice:
        """The columns of Q among positions and teacher."""
        S, _, t = self.shape
        return slice(S + t - self.g.shape[2], S + t)

    @property
    def scale(self) -> float:
        """Upper bound of the eigenvalues without the ridge; positions increase it but do not change the bulk."""
        L, c = self.h.shape[1:3]
        return float(np.abs(self.h).max() * L * c * self.law.gamma.max() * (1 + np.sqrt(self.alpha * L)) ** 2)

    @cached_property
    def weighted_groups(self) -> list[tuple[Group, np.ndarray]]:
        """Groups of samples, and α times their weights."""
        return [(group, self.alpha * self.weight[group.rows]) for group in self.groups]

    @cached_property
    def features(self) -> np.ndarray:
        """Numbers (N, L, k) on which the mean fields of a direction depend linearly: 1, y_l and g_l."""
        return np.concatenate([np.ones((*self.y.shape[:2], 1)), self.y, self.g], axis=2)


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
            flat, h = block_diag(*V[sources]), ensemble.h[rows].reshape(-1, L * c, L * c)
            if real and self.inside:
                root = psd_root(flat)
                self.inside = _are_positive_definite(np.eye(L * c) + root @ h @ root)
            self.R[rows] = np.linalg.solve(np.eye(L * c) + h @ flat, h).reshape(-1, L, c, L, c)
            self.V_hat[sources] += np.einsum("n,nlalb->lab", weight, self.R[rows])
        A = np.einsum("kl,lab->kab", law.gamma, self.V_hat) + (ensemble.ridge - x) * np.eye(c)
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
        return np.asarray(self._q_of_hats @ self._hats_of_q)

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
        size = S * c * (1 + t + self._ensemble.g.shape[2])
        return np.stack([self._step(unit.reshape(S, c, -1)).ravel() for unit in np.eye(size)], axis=1)

    def _step(self, overlaps: np.ndarray) -> np.ndarray:
        """Return the new overlaps (S, c, 1 + t + r), that is m, θ and U, of a direction."""
        ensemble, law = self._ensemble, self._ensemble.law
        S, (H, cross) = ensemble.shape[0], self._forces(overlaps)
        with_coordinates = self._with_coordinates(H, cross)
        m = np.einsum("k,kcl->lc", law.weight, with_coordinates[:, :, :S])
        theta = np.einsum("k,kl,kct->lct", law.weight, law.gamma, with_coordinates[:, :, S:])
        responses = self.C @ H[:, :, ensemble.student] @ ensemble.response
        U = np.einsum("k,kl,kcr->lcr", law.weight, law.gamma, responses)
        return np.concatenate([m[:, :, None], theta, U], axis=2)

    def _forces(self, overlaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return H (K, c, S + t) of the forces H (τ, π) + ζ on a direction, and the covariance of ζ and g (K, c, r)."""
        ensemble, law, t = self._ensemble, self._ensemble.law, self._ensemble.shape[2]
        averages = -np.einsum("lcipdj,pdj->lci", self._force_averages, self._field_coefficients(overlaps))
        with_teacher = averages[:, :, 1 : 1 + t]
        theta_hat = (self.V_hat @ overlaps[:, :, 1 : 1 + t] + with_teacher) @ ensemble.law.rho_inverse
        cross = np.einsum("kl,lcr->kcr", law.gamma, averages[:, :, 1 + t :])
        return drift(law.gamma, averages[:, :, 0], theta_hat), cross

    def _field_coefficients(self, overlaps: np.ndarray) -> np.ndarray:
        """Return the coefficients (S, c, k) of the mean fields of a direction in `Ensemble.features`."""
        t = self._ensemble.shape[2]
        slope = overlaps[:, :, 1 : 1 + t] @ self._ensemble.law.rho_inverse
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
        first = self.C @ H @ self._ensemble.law.moments
        first[:, :, self._ensemble.student] += self.C @ cross @ self._ensemble.response
        return first

    def project(self, overlaps: np.ndarray, parts: Iterable[slice]) -> list[float]:
        """Return the norms, from 0 to 1, of the projections of a normalized eigenvector on parts of (τ, π).

        The eigenvector has the overlaps (S, c, 1 + t + r). Its entries are v = C (H (τ, π) + ζ) with a noise ζ of
        covariance Σ_l γ_l q̂_l.
        """
        ensemble = self._ensemble
        (S, c, t), law = ensemble.shape, ensemble.law
        coefficients, theta = self._field_coefficients(overlaps), overlaps[:, :, 1 : 1 + t]
        # q̂ = α E[(R a)(R a)ᵀ] plus the part of the fields that is independent of a, of covariance q − θ ρ⁻¹ θᵀ
        rest = coefficients[:, :, 1 : 1 + t] @ np.swapaxes(theta, 1, 2)
        source = -(self._hats_of_q @ rest.ravel()).reshape(S, c, c)
        for (rows, sources), weight in ensemble.weighted_groups:
            a = np.einsum("lck,nlk->nlc", coefficients[sources], ensemble.features[rows])
            force = np.einsum("nlapc,npc->nla", self.R[rows], a, optimize=True)
            source[sources] += np.einsum("n,nla,nlb->lab", weight, force, force)
        H, cross = self._forces(overlaps)
        first, coupled = self._with_coordinates(H, cross), self.C @ H
        second = first @ np.swapaxes(coupled, 1, 2)
        second += coupled[:, :, ensemble.student] @ ensemble.response @ np.swapaxes(self.C @ cross, 1, 2)
        q = np.einsum("k,kl,kab->lab", law.weight, law.gamma, second).ravel() + self._q_of_hats @ source.ravel()
        q = np.linalg.solve(np.eye(len(q)) - self.squares, q)
        q_hat = source + (self._hats_of_q @ q).reshape(S, c, c)
        second = second + self.C @ np.einsum("kl,lab->kab", law.gamma, q_hat) @ self.C
        size, norms = np.einsum("k,kaa->", law.weight, second), []
        moments, averages = np.tensordot(law.weight, law.moments, 1), np.tensordot(law.weight, first, 1)
        for along, part in ((averages[:, part], part) for part in parts):
            inside = np.trace(along @ np.linalg.pinv(moments[part, part], rcond=1e-10, hermitian=True) @ along.T)
            norms.append(float(np.sqrt(max(inside, 0.0) / size)))
        return norms


def _are_positive_definite(matrices: np.ndarray) -> bool:
    """Return whether all given symmetric matrices are positive definite."""
    try:
        np.linalg.cholesky(symmetrize(matrices))
    except np.linalg.LinAlgError:
        return False
    return True


def sum_of_traces(V: np.ndarray) -> float:
    """Return the size of V (S, c, c): the sum of the traces."""
    return float(np.trace(V, axis1=1, axis2=2).sum())


def solve(ensemble: Ensemble, x: complex, V: np.ndarray, size: float | None = None) -> Resolvent | None:
    """Return the solution by Newton steps from V, at a complex x or at the real x where V has a given size.

    None if the steps fail.
    """
    V = V if size is None else V * (size / sum_of_traces(V))
    identity = np.tile(np.eye(V.shape[1]), (len(V), 1, 1)).ravel()
    for _ in range(ensemble.settings.max_newton):
        here = Resolvent(ensemble, x, V)
        if not here.inside:
            return None
        residual = (here.W - V).ravel()
        if np.abs(residual).max() <= ensemble.settings.converged * np.abs(V).max():
            return here
        # a change V' of V lowers V_hat by R V' R, so that the derivative is the transpose of the map of squares
        system = np.eye(V.size) - here.squares
        if size is not None:
            system = np.block([[system, -here.slope.reshape(-1, 1)], [identity, np.zeros(1)]])
            residual = np.append(residual, 0.0)
        step = np.linalg.lstsq(system, residual, rcond=None)[0]
        V = V + symmetrize(step[: V.size].reshape(V.shape))
        x = x if size is None else x + float(step[-1])
    return None


def lowest_edge(ensemble: Ensemble, limit: np.ndarray | None = None) -> list[Resolvent]:
    """Return solutions from far below the spectrum upwards; the last solution is at the lower edge.

    If `limit` (S, c, c) is given, the spectrum begins at the latest where V is no longer below this matrix: samples of
    the ensemble come arbitrarily close to matrices h for which 1 + `limit` h is singular.

    ValueError if the spectrum is zero or not finite.
    """
    scale = ensemble.scale + float(np.abs(ensemble.ridge).max())
    if not (np.isfinite(scale) and scale > 0):
        raise check.fail("model", scale, "a spectrum within the range of doubles that is not all zero")
    x = -4 * scale
    V = np.einsum("l,ab->lab", ensemble.law.trace / -x, np.eye(ensemble.shape[1]))

    def is_below(solution: Resolvent) -> bool:
        """Return whether a solution is below the edge, so that x still grows with the size of V."""
        if limit is not None and np.linalg.eigvalsh(limit - solution.V).min() <= 0:
            return False
        return float(np.abs(np.linalg.eigvals(solution.squares)).max()) < 1

    first = solve(ensemble, x, V, sum_of_traces(V))
    if first is None:
        raise check.fail("model", scale, "a spectrum within the range of doubles")
    path, low, high = [first], sum_of_traces(first.V), np.inf
    settings, largest = ensemble.settings, ensemble.settings.max_size * low
    while low < largest and high - low > settings.edge_rtol * low:
        middle = min(settings.growth * low, 0.5 * (low + high))
        solution = solve(ensemble, path[-1].x, path[-1].V, middle)
        if solution is None or not is_below(solution):
            high = middle
        else:
            path.append(solution)
            low = middle
    return path


def eigenvalues_below(ensemble: Ensemble, path: list[Resolvent], parts: Sequence[slice]) -> list[list[float]]:
    """Return the eigenvalues below the bulk, each with the projections of its eigenvector on parts of (τ, π).

    `path` are the solutions of `lowest_edge`.
    """
    rows = []
    for j in range(np.count_nonzero(_growths(path[-1]) > 1 + ensemble.settings.outside)):
        solution = _solve_eigenvalue(ensemble, path, j)
        values, vectors = np.linalg.eig(solution.directions)
        overlaps = vectors[:, np.argsort(-values.real)[j]].real.reshape(*ensemble.shape[:2], -1)
        rows.append([float(np.real(solution.x)), *solution.project(overlaps, parts)])
    return rows


def _growths(at: Resolvent) -> np.ndarray:
    """Return the real parts of the eigenvalues of the map of overlaps in descending order."""
    return np.sort(np.linalg.eigvals(at.directions).real)[::-1]


def _solve_eigenvalue(ensemble: Ensemble, path: list[Resolvent], j: int) -> Resolvent:
    """Return the solution at which the j-th eigenvalue of the map of overlaps is 1."""
    from scipy.optimize import brentq  # takes long to import

    solutions = {sum_of_traces(solution.V): solution for solution in path}

    def excess(size: float) -> float:
        if size not in solutions:
            nearest = solutions[min(solutions, key=lambda other: abs(other - size))]
            solutions[size] = solve(ensemble, nearest.x, nearest.V, size) or nearest
        return float(_growths(solutions[size])[j] - 1)

    sizes = list(solutions)
    first_above = next(k for k, size in enumerate(sizes) if excess(size) > 0)
    if first_above == 0:
        return path[0]
    size = brentq(excess, *sizes[first_above - 1 : first_above + 1], rtol=ensemble.settings.size_rtol)
    excess(size)
    return solutions[size]


def densities(ensemble: Ensemble, x: np.ndarray, width: float) -> np.ndarray:
    """Return the density of the spectrum at increasing x (k,), with the resolution `width`; NaN if not found.

    The density is convolved with the Cauchy distribution of scale `width`.
    """
    values, near = list[float](), None
    for position in x:
        near = near and solve(ensemble, complex(position, width), near.V)
        near = near or solve_near_axis(ensemble, position, width)
        values.append(near.density if near else np.nan)
    return np.array(values)


def solve_near_axis(ensemble: Ensemble, x: float, width: float) -> Resolvent | None:
    """Return the solution at x + i `width`, from solutions farther from the real axis; None if Newton steps fail."""
    settings, scale = ensemble.settings, ensemble.scale
    highest, lowest = settings.far * max(scale, abs(x), width), max(width, settings.nearest * scale)
    heights = np.geomspace(highest, lowest, int(np.ceil(np.log2(highest / lowest))), endpoint=False)  # halved each time
    V = np.einsum("l,ab->lab", ensemble.law.trace / -complex(x, highest), np.eye(ensemble.shape[1]))
    for height in (*heights, width):
        here = solve(ensemble, complex(x, height), V)
        if here is None:
            break
        V = here.V
    return here
