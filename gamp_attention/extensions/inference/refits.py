"""Exact refits: minima of the risk without a sample, started from the minimum with all samples.

For each of some samples μ, the risk without it, R_∖μ(Q + P) = R(Q + P) − ℓ_μ(Q + P), is minimized over the step P:

1. Smooth or ridge penalty: Newton steps for many samples at the same time, with the Hessian at the minimum with all
   samples minus the curvature of sample μ. It stays fixed, so that each step costs one pass over the tokens (`_newton`,
   `RisksWithout`).
2. Penalty with a kink: Newton steps among the free weights in an active-set method (`_refit_on_kinks`).
3. Samples for which these steps do not converge: descent on the risk without the sample (`refit`).

The responses of the weights to the samples also give the covariance of their errors (`covariance_of_errors`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from gamp_attention.extensions.inference.hessian import FactoredHessian, field_derivatives, solve_all
from gamp_attention.gamp.descent import minimize_by_lbfgs, proximal_gradient
from gamp_attention.problem.curvature import data_hessian, rotations, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.penalties.standard import unpenalized
from gamp_attention.problem.risk import RiskAtPoint, gradient_norm, on_kinks, risk_at, small_unit, smallest_subgradient


@dataclass(frozen=True)
class Refitter:
    """Minimization of the risk without a sample, and its settings."""

    converged: float = 1e-3  # length of the next step, or gradient, relative to the first, at which a refit ends
    smallest: float = 1e-6  # gradient norm below which the end of a descent counts as a minimum in any case
    max_descent: int = 5000  # maximum number of iterations of `refit`
    slow: float = 0.7  # ratio of the lengths of successive Newton steps above which a descent replaces them
    max_newton: int = 12  # maximum number of Newton steps
    max_free: int = 2000  # maximum number of weights that may be free in a refit if the penalty has a kink
    max_changes: int = 200  # maximum number of steps of the active-set method, each of which may free or fix a weight
    kink_tol: float = 1e-4  # largest gradient entry, relative to the first, at which the active-set method ends
    growth: float = 0.3  # relative change of weights without a penalty up to which they do not grow without bound
    flat_slope: float = 1e-6  # relative slope of the losses beyond the end of a refit at which weights grow on

    def refit_samples(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray, H: FactoredHessian | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Minimize the risk without each of the samples (m,), from the minimum Q (d, r) with all samples.

        `at` is the exact risk at Q, and H the factored Hessian; conjugate gradients are used if it is None. Returns the
        fields (m, L, r) of each sample under the weights without it, whether a minimum was reached (m,), and whether
        there is none, because weights grow without bound (m,).
        """
        if data.penalty.smooth or data.penalty.quadratic:
            steps, reached = self._newton(RisksWithout(data, at, Q, samples, H))
        else:
            steps, reached = self._refit_on_kinks(data, at, Q, samples)
        for k in np.flatnonzero(~reached).tolist():
            weights, reached[k] = self.refit(data, Q, int(samples[k]), H)
            if reached[k]:
                steps[k] = weights - Q
        fields = at.z[samples] + data.matrix.rows_of(samples) @ steps
        pairs = zip(samples.tolist(), steps, strict=True)
        unbounded = np.array([self._grows_on(data, at, Q, sample, step) for sample, step in pairs], bool)
        return fields, reached & ~unbounded, unbounded

    def refit(
        self, data: Dataset, Q: np.ndarray, sample: int, H: FactoredHessian | None = None
    ) -> tuple[np.ndarray, bool]:
        """Return the weights (d, r) after a descent from Q on the risk without a sample, and whether it converged.

        If the Hessian H at Q is given, L-BFGS begins in coordinates in which it is the identity.
        """
        from scipy.optimize import minimize

        evaluate, start = partial(without, data, sample=sample), Q
        tol = max(self.converged * evaluate(Q).gradient_norm, self.smallest * small_unit(data))
        if H is not None and data.penalty.smooth:

            def move(w: np.ndarray) -> np.ndarray:
                return Q + H.unpack(H.whiten(w[:, None], transposed=True))[..., 0]

            def evaluate_white(w: np.ndarray) -> tuple[float, np.ndarray]:
                at = evaluate(move(w))
                return at.train_loss * data.dim, H.whiten(H.pack(at.gradient[..., None]))[:, 0]

            white = np.zeros(int(H.free.sum()))
            gtol = self.converged * float(np.abs(evaluate_white(white)[1]).max())
            options = {"gtol": gtol, "ftol": 0.0, "maxiter": self.max_descent}
            start = move(minimize(evaluate_white, white, jac=True, method="L-BFGS-B", options=options).x)
        descend = minimize_by_lbfgs if data.penalty.smooth else proximal_gradient
        end = descend(data, evaluate, start, tol, self.max_descent)[0]
        return end, evaluate(end).gradient_norm <= 1.1 * tol

    def _grows_on(self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, sample: int, step: np.ndarray) -> bool:
        """Return whether weights without a penalty grow without bound if a sample is left out.

        The losses of all other samples then decrease along the changes of these weights, a part of the `step` (d, r),
        even beyond its end, at which their gradient is small: for example the intercept if the sample is the only
        member of its class. At a minimum the slope beyond its end is positive, and as large as the slope at Q.
        """
        free = unpenalized(data.penalty, Q)
        along = np.where(free, step, 0.0)
        if np.linalg.norm(along) <= self.growth * np.linalg.norm(Q[free]):
            return False
        beyond = float(np.sum(without(data, Q + step + along, sample).smooth * along))
        slope = float(np.sum(at.loss_gradients[sample] * (data.matrix.rows_of(np.array([sample]))[0] @ along)))
        return not beyond > self.flat_slope * abs(slope)

    def _newton(self, around: "RisksWithout") -> tuple[np.ndarray, np.ndarray]:
        """Return steps (m, d, r), and whether a minimum was reached (m,), by Newton steps with the Hessians at Q.

        Lengths of steps are measured in the norm of the Hessian, relative to the first step. As it is fixed, they
        decrease geometrically; a refit ends if the next step would be shorter than `converged`. A sample is given up if
        the energy of its step is not positive, or if its lengths decrease by less than the factor `slow`.
        """
        m = len(around.samples)
        P, reached, active = np.zeros((*around.Q.shape, m)), np.zeros(m, bool), np.arange(m)
        G = -np.einsum("mlp,mla->pam", around.x, around.at.loss_gradients[around.samples])  # the gradients at P = 0
        first, before = np.ones(m), np.full(m, 2 / self.slow)  # first steps are taken
        for iteration in range(self.max_newton):
            step = around.solve(G, active)
            energy = np.einsum("pac,pac->c", G, step)
            decreasing = np.isfinite(energy) & (energy >= 0)
            energy = np.where(decreasing, energy, 0.0)
            if iteration == 0:
                first = np.where(energy > 0, energy, 1.0)
            length = np.sqrt(energy / first[active])
            ratio = length / before[active]
            decreasing &= ratio <= self.slow
            P[..., active[decreasing]] -= step[..., decreasing]
            before[active] = length
            done = decreasing & (length * ratio <= self.converged)  # the expected length of the next step
            reached[active[done]] = True
            active = active[decreasing & ~done]
            if not len(active):
                break
            G = around.gradients(P[..., active], active)
        return np.ascontiguousarray(P.transpose(2, 0, 1)), reached

    def _refit_on_kinks(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (m, d, r) and which samples reached a minimum, by an active-set method for kinks of a penalty.

        In turn: a Newton step among the free weights, shortened so that it ends at the first weight that becomes zero,
        which is then fixed. Once the gradient of the free weights is small, the fixed weight with the largest
        subgradient becomes free, if it is among the `max_free` considered weights, until all subgradients are small.
        """
        start = on_kinks(data.penalty, Q, at.smooth)[0]
        # the curvature of the penalty, also of weights that are zero now and may become free
        curvature = on_kinks(data.penalty, np.where(start != 0, start, 1.0), at.smooth)[2]
        order = np.argsort(-np.where(start != 0, np.inf, np.abs(at.smooth)), axis=None, kind="stable")
        considered, index = np.zeros(Q.shape, bool), np.full(Q.shape, -1)
        considered.flat[order[: self.max_free]] = True
        whole = data_hessian(data, at.hessians, considered)
        index.T[considered.T] = np.arange(len(whole))  # the order of `data_hessian`: column after column of Q
        x = np.concatenate([part for _, part in scaled_blocks(data)])
        n, L, d = x.shape
        smallest = self.smallest * small_unit(data) * data.penalty.strength
        steps, reached = np.zeros((len(samples), *Q.shape)), np.zeros(len(samples), bool)
        for k, sample in enumerate(samples.tolist()):
            columns = field_derivatives(x[sample : sample + 1], considered)
            removed = columns @ at.hessians[sample] @ columns.T
            weights, free, bound = start.copy(), start != 0, 0.0
            for iteration in range(self.max_changes):
                slopes = sample_derivatives(at.loss, at.params, at.z + x @ (weights - start))[1] - at.loss_gradients
                slopes[sample] = -at.loss_gradients[sample]
                smooth = at.smooth + x.reshape(n * L, d).T @ slopes.reshape(n * L, -1)
                gradient = np.abs(subgradient := smallest_subgradient(data.penalty, weights, smooth))
                if iteration == 0:
                    bound = max(self.kink_tol * float(gradient.max()), smallest)
                if gradient.max() <= bound:
                    reached[k] = True
                    break
                if gradient[free].max(initial=0.0) <= bound:  # a minimum over the free weights
                    free.flat[np.argmax(np.where(free, 0.0, gradient))] = True
                inside = index[free]
                if (inside < 0).any():  # a weight became free that is not among the considered weights
                    break
                H = (whole - removed)[np.ix_(inside, inside)]
                H[np.diag_indices(len(inside))] += curvature[free]
                try:
                    step = -cho_solve(cho_factor(H, check_finite=False), subgradient[free], check_finite=False)
                except LinAlgError:
                    break
                # the step ends where the first weight becomes zero
                crossing = np.where(weights[free] * step < 0, -weights[free] / step, np.inf)
                length = min(1.0, float(crossing.min(initial=np.inf)))
                weights[free] = np.where(crossing <= length, 0.0, weights[free] + length * step)
                free[free] = weights[free] != 0
            steps[k] = weights - Q
        return steps, reached


class RisksWithout:
    """Derivatives of the risks without each of the samples (m,), around the minimum Q (d, r) with all samples.

    The gradient at Q + P is computed as a difference to the gradient at Q, which is zero, so that small steps P do not
    lose accuracy to cancellation. Conjugate gradients replace the factored Hessian H if it is None.
    """

    solved = 1e-4  # residual of conjugate gradients, relative to the right-hand side, at which they end
    max_conjugate = 400  # maximum number of iterations of conjugate gradients

    def __init__(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray, H: FactoredHessian | None
    ) -> None:
        self.data, self.at, self.Q, self.samples, self._H = data, at, Q, samples, H
        self.x = data.matrix.rows_of(samples)
        if H is None:
            self._flat = rotations(data, Q)  # these directions get the curvature `_level`
            self._level = float(at.hessians.trace(axis1=1, axis2=2).mean()) + data.penalty.strength
            _, free, self._curvature = on_kinks(data.penalty, Q, at.smooth)
            diagonal = self._curvature.copy()
            for rows, x in scaled_blocks(data):
                of_fields = np.diagonal(at.hessians[rows], axis1=1, axis2=2).reshape(*x.shape[:2], -1)
                diagonal += np.einsum("mlp,mla->pa", x**2, of_fields)
            self._preconditioner = np.where(free > 0, 1 / np.maximum(diagonal, 1e-300), 0.0)[..., None]
            return
        # (H − XᵀDX)⁻¹ = H⁻¹ + H⁻¹Xᵀ (1 − D A)⁻¹ D X H⁻¹ for the derivatives X of the fields of a sample, A = X H⁻¹ Xᵀ
        k = self.x.shape[1] * Q.shape[1]
        derivatives = field_derivatives(self.x, H.free)
        self._solutions = H.solve(derivatives).reshape(len(derivatives), len(samples), k)  # H⁻¹Xᵀ
        A = np.einsum("imk,iml->mkl", derivatives.reshape(self._solutions.shape), self._solutions)
        D = at.hessians[samples]
        self._correction = solve_all(np.eye(k) - D @ A, D)  # (1 − D A)⁻¹ D

    def gradients(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the gradients (d, r, c) at weights Q + P (d, r, c) without each of the samples at indices (c,)."""
        at, c, penalty, nothing = self.at, P.shape[2], self.data.penalty, np.zeros(self.Q.shape)
        before = at.loss_gradients.reshape(len(at.z), -1, 1)

        def slopes(rows: slice, moved: np.ndarray) -> np.ndarray:
            there = at.z[rows] + moved.transpose(2, 0, 1).reshape(c, *at.z[rows].shape)
            params = np.tile(at.params[rows], (c, 1))
            found = sample_derivatives(at.loss, params, there.reshape(-1, *there.shape[2:]))[1]
            return found.reshape(c, len(moved), -1).transpose(1, 2, 0) - before[rows]

        out = self._sum_forces(P, columns, slopes, -before[self.samples[columns], :, 0])
        pull = smallest_subgradient(penalty, self.Q, nothing)
        for k in range(c):
            out[..., k] += smallest_subgradient(penalty, self.Q + P[..., k], nothing) - pull
        return out

    def _sum_forces(
        self, P: np.ndarray, columns: np.ndarray, slopes: Callable[..., np.ndarray], left_out: np.ndarray
    ) -> np.ndarray:
        """Return X̃ᵀ slopes (d, r, c) of all samples but those at indices (c,), whose slopes are `left_out` (c, L r).

        `slopes` is a function (b, L r, c) of the changes of the fields of a block of samples.
        """
        out, samples = np.zeros(P.shape), self.samples[columns]
        for rows, x in scaled_blocks(self.data):
            flat = x.reshape(-1, len(P))
            slope = slopes(rows, (flat @ P.reshape(len(P), -1)).reshape(len(x), -1, P.shape[2]))
            inside = np.flatnonzero((samples >= rows.start) & (samples < rows.stop))
            slope[samples[inside] - rows.start, :, inside] = left_out[inside]
            out += (flat.T @ slope.reshape(len(flat), -1)).reshape(P.shape)
        return out

    def solve(self, G: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the steps (d, r, c) of gradients (d, r, c) by the Hessians without the samples at indices (c,)."""
        if self._H is None:
            return self._solve_by_conjugate_gradients(G, columns)
        flat, solutions = self._H.pack(G), self._solutions[:, columns]
        forces = (self._correction[columns] @ np.einsum("imk,im->mk", solutions, flat)[..., None])[..., 0]
        return self._H.unpack(self._H.solve(flat) + np.einsum("imk,mk->im", solutions, forces))

    def _products(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the Hessians without each of the samples at indices (c,), at P = 0, times P (d, r, c)."""
        hessians = self.at.hessians
        out = self._sum_forces(P, columns, lambda rows, moved: hessians[rows] @ moved, np.zeros((P.shape[2], 1)))
        along = np.tensordot(self._flat, P, 2)
        return out + self._curvature[..., None] * P + self._level * np.tensordot(self._flat, along, (0, 0))

    def _solve_by_conjugate_gradients(self, G: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the steps of `solve`; the systems of all samples are solved at the same time.

        A system that has converged, or along which the curvature is not positive, is not changed further.
        """
        X, R = np.zeros(G.shape), G.copy()
        P = self._preconditioner * R
        power = np.einsum("pac,pac->c", R, P)
        first, active = power.copy(), np.flatnonzero(power > 0)
        for _ in range(self.max_conjugate):
            if not len(active):
                break
            HP = self._products(P[..., active], columns[active])
            curvature = np.einsum("pac,pac->c", P[..., active], HP)
            length = np.where(curvature > 0, power[active] / np.where(curvature > 0, curvature, 1.0), 0.0)
            X[..., active] += length * P[..., active]
            R[..., active] -= length * HP
            Z = self._preconditioner * R[..., active]
            after = np.einsum("pac,pac->c", R[..., active], Z)
            P[..., active] = Z + after / power[active] * P[..., active]
            power[active] = after
            active = active[(after > self.solved**2 * first[active]) & (curvature > 0)]
        return X


def changes_without(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray, slopes: np.ndarray, H: FactoredHessian | None,
    x: np.ndarray, others: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return the changes ∇ℓ_iᵀ X̃_i (H_∖j)⁻¹ X̃_jᵀ ∇ℓ_j (k, m) of errors if samples (m,) are left out, to first order.

    `slopes` (m, L, r) are the ∇ℓ_j of the samples that are left out; `x` (k, L, d) and `others` (k, L, r) are the
    scaled tokens and the ∇ℓ_i of the samples whose errors change. See `Refitter.refit_samples` for H.
    """
    around = RisksWithout(data, at, Q, samples, H)
    weights = around.solve(np.einsum("mlp,mla->pam", around.x, slopes), np.arange(len(samples)))
    return error_unit(data) * np.einsum("pam,klp,kla->km", weights, x, others, optimize=True)


def select_paired(n: int, count: int = 64) -> np.ndarray:
    """Return the `count` random samples whose pairs are computed, see `variance_of_pairs`."""
    return np.random.default_rng(0).permutation(n)[:count]


def variance_of_pairs(
    changes: np.ndarray, sizes: np.ndarray, samples: np.ndarray, groups: np.ndarray | None = None
) -> float:
    """Return Σ_{μ≠ν} Δ_μν Δ_νμ/n², the variance of a mean error that is due to pairs of samples.

    Eq. :eq:`loo-variance`; Bayle et al. (2020). The errors of two samples are correlated, because each sample was in
    the training set of the other. Δ_μν is the change of the error of sample μ if sample ν is left out too. It is given
    for the pairs of some samples (m,) as `changes` (m, m). The sum over all samples is estimated as a ratio: Δ_μν Δ_νμ
    is roughly proportional to s_μ s_ν, with `sizes` s (n,) of all samples. Samples of one of the `groups` (n,) are left
    out together, so that their pairs do not count.
    """
    n = len(sizes)
    groups = np.arange(n) if groups is None else groups
    others = groups[samples][:, None] != groups[samples]
    computed = float(np.sum(np.outer(sizes[samples], sizes[samples])[others]))  # Σ s_μ s_ν over the pairs of `changes`
    total = float(sizes.sum() ** 2 - np.sum(np.bincount(groups, weights=sizes) ** 2))  # the same sum over all pairs
    if not (computed > 0 and total > 0):
        return 0.0
    return max(total / computed * float(np.sum((changes * changes.T)[others])), 0.0) / n**2


def covariance_of_errors(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, fields: np.ndarray, H: FactoredHessian | None
) -> float:
    """Return the part of the variance of the mean error at a minimum Q that is due to pairs of samples.

    `fields` (n, L, r) are the fields without each sample. The sizes of the samples are s_μ = |∇ℓ_μ·(z_∖μ − z_μ)|,
    which is Δ_μμ to first order.
    """
    samples = select_paired(data.n_samples)
    slopes = sample_derivatives(at.loss, at.params, fields)[1]
    sizes = np.abs(np.einsum("nla,nla->n", slopes, fields - at.z))
    chosen, x = slopes[samples], data.matrix.rows_of(samples)
    return variance_of_pairs(changes_without(data, at, Q, samples, chosen, H, x, chosen), sizes, samples)


def sample_errors(data: Dataset, fields: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
    """Return the errors (n,) of samples with fields (n, L, r): ‖y − f(x)‖²/(dL), or the loss of labels."""
    terms = data.terms("exact")
    return error_unit(data) * (sample_derivatives(data.loss, terms.params[rows], fields)[0] + terms.constant[rows])


def error_unit(data: Dataset) -> float:
    """Return the error of a sample in units of its loss."""
    return 1.0 if data.is_labelled else 2 / data.n_tokens


def has_squared_loss(data: Dataset) -> bool:
    """Return whether the loss is quadratic in the fields, as the loss declares."""
    return bool(getattr(data.student, "quadratic", False))


def without(data: Dataset, Q: np.ndarray, sample: int) -> RiskAtPoint:
    """Return the exact risk at Q without a sample; its fields and Hessians contain all samples."""
    at, terms = risk_at(data, Q, "exact"), data.terms("exact")
    x = data.matrix.rows_of(np.array([sample]))[0]
    loss, slope, _ = sample_derivatives(at.loss, at.params[sample : sample + 1], (x @ Q)[None])
    smooth = at.smooth - x.T @ slope[0]
    gradient = smallest_subgradient(data.penalty, Q, smooth)
    train_loss = at.train_loss - float(loss[0] + terms.constant[sample]) / data.dim
    return replace(
        at, train_loss=train_loss, gradient=gradient, smooth=smooth, gradient_norm=gradient_norm(data, gradient)
    )
