"""Exact refits: minima of the risk without a sample, started from the minimum with all samples.

For each of some samples μ, the risk without it, R_∖μ(Q + P) = R(Q + P) − ℓ_μ(Q + P), is minimized over the step P:

1. Smooth or ridge penalty: Newton steps for many samples at the same time. They use the Hessian at the minimum with all
   samples minus the curvature of sample μ, which stays fixed, so that each step costs one pass over the tokens. The
   linear systems are solved with the factored Hessian and a correction of low rank for the sample (the
   Sherman–Morrison–Woodbury formula), or by conjugate gradients if the Hessian is too large to be factored.
2. Penalty with a kink: Newton steps among the free weights in an active-set method (see `_refit_on_kinks`).
3. Samples for which these steps do not converge: descent on the risk without the sample by L-BFGS (see `_descend`), and
   finally by `refit`.

Notation: p coordinates of the tokens (see `TokenRows`), r columns of Q, L tokens in a sample, m samples that are
refitted at the same time.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention.extensions.inference.hessian import FactoredHessian, TokenRows, minimum_in
from gamp_attention.gamp.descent import minimize_by_lbfgs, proximal_gradient
from gamp_attention.problem.curvature import data_hessian, rotations, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.penalties.standard import on_kinks, penalty_total, smallest_subgradient
from gamp_attention.problem.risk import RiskAtPoint, gradient_norm, risk_at
from gamp_attention.problem.tolerances import small_unit


@dataclass(frozen=True, eq=False)
class Refits:
    """Outcome of `Refitter.refit_samples` for samples (m,)."""

    fields: np.ndarray  # (m, L, r) fields of each sample under weights trained without it
    remainder: np.ndarray  # (m,) length of the second Newton step relative to the first: the change of curvature
    reached: np.ndarray  # (m,) True if a minimum was reached
    unbounded: np.ndarray  # (m,) True if there is no minimum, because weights grow without bound


class _RisksWithout:
    """Gradients of the risks without each of the samples (m,), around the minimum with all samples.

    The gradient at Q + P is computed as a difference to the gradient at Q, which is zero, so that small steps P do not
    lose accuracy to cancellation.
    """

    def __init__(self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows, samples: np.ndarray) -> None:
        self.data, self.at, self.tokens, self.samples = data, at, tokens, samples
        self.Q = minimum_in(tokens, at, Q)
        self.x = tokens.of_samples(samples)
        smooth = at.smooth if tokens.coordinates is None else -data.penalty.curvature * self.Q
        # weights (p, r) that are free (not at a kink), and second derivatives of the penalty
        _, self.free, self.curvature = on_kinks(data.penalty, self.Q, smooth)
        self.flat = rotations(data, self.Q)  # directions without curvature, which get the curvature `level`
        self.level = float(at.hessians.trace(axis1=1, axis2=2).mean()) + data.penalty.strength

    def penalty_change(self, P: np.ndarray) -> tuple[float, np.ndarray]:
        """Return r(Q + P) − r(Q) − ∇r(Q)·P and its gradient (p, r)."""
        penalty, Q = self.data.penalty, self.Q
        if penalty.quadratic:
            strengths = penalty.curvature
            return 0.5 * float(np.sum(strengths * P**2)), strengths * P
        nothing = np.zeros(Q.shape)
        pull = smallest_subgradient(penalty, Q, nothing)
        change = penalty_total(penalty, Q + P) - penalty_total(penalty, Q)
        return change - float(np.sum(pull * P)), smallest_subgradient(penalty, Q + P, nothing) - pull

    def loss_change(self, P: np.ndarray, k: int) -> tuple[float, np.ndarray]:
        """Return the change of the losses from Q to Q + P without the k-th sample, and its gradient (p, r).

        Terms of first order cancel with the penalty and are left out.
        """
        at, sample, z = self.at, self.samples[k], self.at.z.copy()
        for rows, x in self.tokens.blocks():
            z[rows] += x @ P
        losses, slopes, _ = sample_derivatives(at.loss, at.params, z)
        changes = losses - at.losses - np.einsum("nla,nla->n", at.loss_gradients, z - at.z)
        changes[sample] = -np.sum(at.loss_gradients[sample] * (z - at.z)[sample])
        slopes = slopes - at.loss_gradients
        slopes[sample] = -at.loss_gradients[sample]
        gradient = sum(
            x.reshape(-1, len(P)).T @ slopes[rows].reshape(-1, P.shape[1]) for rows, x in self.tokens.blocks()
        )
        return float(changes.sum()), np.asarray(gradient)

    def first(self) -> np.ndarray:
        """Return the gradients (p, r, m) at P = 0: minus the gradients of the left-out losses."""
        return -np.einsum("mlp,mla->pam", self.x, self.at.loss_gradients[self.samples])

    def gradients(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the gradients (p, r, c) at weights Q + P (p, r, c) without each of the samples at indices (c,)."""
        at, c = self.at, P.shape[2]
        before = at.loss_gradients.reshape(len(at.z), -1, 1)

        def slopes(rows: slice, moved: np.ndarray) -> np.ndarray:
            there = at.z[rows] + moved.transpose(2, 0, 1).reshape(c, *at.z[rows].shape)
            params = np.tile(at.params[rows], (c, 1))
            found = sample_derivatives(at.loss, params, there.reshape(-1, *there.shape[2:]))[1]
            return found.reshape(c, len(moved), -1).transpose(1, 2, 0) - before[rows]

        out = self._sum_forces(P, columns, slopes, -before[self.samples[columns], :, 0])
        return out + np.stack([self.penalty_change(P[..., k])[1] for k in range(c)], axis=-1)

    def products(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the Hessians without each of the samples at indices (c,), at P = 0, times P (p, r, c)."""
        hessians = self.at.hessians
        out = self._sum_forces(P, columns, lambda rows, moved: hessians[rows] @ moved, np.zeros((P.shape[2], 1)))
        along = np.tensordot(self.flat, P, 2)
        return out + self.curvature[..., None] * P + self.level * np.tensordot(self.flat, along, (0, 0))

    def _sum_forces(self, P: np.ndarray, columns: np.ndarray, slopes: Any, left_out: np.ndarray) -> np.ndarray:
        """Return X̃ᵀ slopes (p, r, c) of all samples but those at indices (c,), whose slopes are `left_out` (c, L r).

        `slopes` is a function (b, L r, c) of the changes of the fields of a block of samples.
        """
        out, samples = np.zeros(P.shape), self.samples[columns]
        for rows, x in self.tokens.blocks():
            flat = x.reshape(-1, len(P))
            slope = slopes(rows, (flat @ P.reshape(len(P), -1)).reshape(len(x), -1, P.shape[2]))
            inside = np.flatnonzero((samples >= rows.start) & (samples < rows.stop))
            slope[samples[inside] - rows.start, :, inside] = left_out[inside]
            out += (flat.T @ slope.reshape(len(flat), -1)).reshape(P.shape)
        return out

    def diagonal(self) -> np.ndarray:
        """Return the diagonal (p, r) of the Hessian."""
        r, out = self.Q.shape[1], self.curvature.copy()
        for rows, x in self.tokens.blocks():
            D = self.at.hessians[rows].reshape(len(x), x.shape[1], r, x.shape[1], r)
            out += np.einsum("mlp,mla->pa", x**2, np.einsum("mlala->mla", D))
        return out


Solver = Callable[[np.ndarray, np.ndarray], np.ndarray]  # steps (p, r, c) of gradients (p, r, c), for indices (c,)


@dataclass(frozen=True)
class Refitter:
    """Minimization of the risk without a sample, and its settings."""

    tol: float = 1e-8  # gradient norm at which a descent ends
    accepted: float = 1e-6  # maximum gradient norm of a minimum, if a descent no longer improves
    max_descent: int = 5000  # maximum number of iterations of `refit`
    max_lbfgs: int = 200  # maximum number of iterations of the descent around the minimum
    converged: float = 1e-3  # expected length of the next Newton step, relative to the first, at which a refit ends
    slow: float = 0.7  # ratio of the lengths of successive Newton steps above which a descent replaces them
    max_newton: int = 12  # maximum number of Newton steps
    solved: float = 1e-4  # residual of conjugate gradients, relative to the right-hand side, at which they end
    max_conjugate: int = 400  # maximum number of iterations of conjugate gradients
    max_free: int = 2000  # maximum number of weights that may be free in a refit if the penalty has a kink
    max_changes: int = 200  # maximum number of steps of the active-set method, each of which may free or fix a weight
    growth: float = 0.3  # relative change of weights without a penalty up to which they do not grow without bound
    flat_slope: float = 1e-6  # relative slope of the losses beyond the end of a refit at which weights grow on
    kink_tol: float = 1e-4  # largest gradient entry, relative to the first, at which the active-set method ends

    def refit_samples(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray, tokens: TokenRows,
        H: FactoredHessian | None,
    ) -> Refits:  # fmt: skip
        """Minimize the risk without each of the samples (m,), from the minimum Q (d, r) with all samples.

        Eq. :eq:`remainder`. `at` is the exact risk at Q, and H the factored Hessian in the coordinates of the tokens;
        conjugate gradients are used if it is None.
        """
        if data.penalty.smooth or data.penalty.quadratic:
            around = _RisksWithout(data, at, Q, tokens, samples)
            steps, remainder, reached = self._newton(around, self._solver(around, H))
            for k in np.flatnonzero(~reached).tolist():
                if H is not None:
                    steps[k], reached[k] = self._descend(around, H, k)
        else:
            steps, reached = self._refit_on_kinks(data, at, Q, samples)
            remainder = np.zeros(len(samples))
        fields = at.z[samples] + np.einsum("mlp,mpa->mla", tokens.of_samples(samples), steps)
        for k in np.flatnonzero(~reached).tolist():
            weights, reached[k] = self.refit(data, Q, int(samples[k]))
            if reached[k]:
                fields[k] = tokens_fields(data, weights, samples[k : k + 1])[0]
                if tokens.coordinates is None:
                    steps[k] = weights - Q
        unbounded = np.zeros(len(samples), bool)
        free = smallest_subgradient(data.penalty, np.ones(Q.shape), np.zeros(Q.shape)) == 0  # weights without a penalty
        if free.any():
            pairs = zip(samples.tolist(), steps, strict=True)
            unbounded = np.array([self._grows_on(data, at, Q, sample, step, free) for sample, step in pairs], bool)
        return Refits(fields, remainder, reached & ~unbounded, unbounded)

    def responses_without(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray, fields: np.ndarray, tokens: TokenRows,
        H: FactoredHessian | None,
    ) -> np.ndarray:  # fmt: skip
        """Return (H_∖i)⁻¹ f_i (p, r, m) for samples (m,), with the forces f = X̃ᵀ∇ℓ at their `fields` (m, L, r).

        To first order, this is the change of the weights if sample i is left out and the fields are at Q. The other
        arguments are as for `refit_samples`.
        """
        slopes = sample_derivatives(at.loss, at.params[samples], fields)[1]
        around = _RisksWithout(data, at, Q, tokens, samples)
        forces = np.einsum("mlp,mla->pam", around.x, slopes)
        return self._solver(around, H)(forces, np.arange(len(samples)))

    def refit(self, data: Dataset, Q: np.ndarray, sample: int) -> tuple[np.ndarray, bool]:
        """Return the weights (d, r) after a descent from Q on the risk without a sample, and whether it converged."""

        def evaluate(Q: np.ndarray) -> RiskAtPoint:
            return without(data, Q, sample)

        end = descend_risk(data, evaluate, Q, self.tol, self.max_descent)
        return end, evaluate(end).gradient_norm <= self.accepted * small_unit(data)

    def _grows_on(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, sample: int, step: np.ndarray, free: np.ndarray
    ) -> bool:
        """Return whether `free` weights without a penalty grow without bound if a sample is left out.

        The losses of all other samples then decrease along the changes of these weights, a part of the `step` (d, r),
        even beyond its end, at which their gradient is small: for example the intercept if the sample is the only
        member of its class. At a minimum the slope beyond its end is positive, and as large as the slope at Q.
        """
        along = np.where(free, step, 0.0)
        if np.linalg.norm(along) <= self.growth * np.linalg.norm(Q[free]):
            return False
        beyond = float(np.sum(without(data, Q + step + along, sample).smooth * along))
        left_out = tokens_fields(data, along, np.array([sample]))[0]
        return not beyond > self.flat_slope * abs(float(np.sum(at.loss_gradients[sample] * left_out)))

    def _solver(self, around: _RisksWithout, H: FactoredHessian | None) -> Solver:
        """Return a solver for the Hessians without a sample, by the factored Hessian or by conjugate gradients.

        Conjugate gradients have a diagonal preconditioner. The systems of all samples are solved at the same time; a
        system that has converged, or along which the curvature is not positive, is not changed further.
        """
        if H is not None:
            return _factored_solver(around, H)
        inverse = np.where(around.free > 0, 1 / np.maximum(around.diagonal(), 1e-300), 0.0)[..., None]

        def solve(G: np.ndarray, columns: np.ndarray) -> np.ndarray:
            X, R = np.zeros(G.shape), G.copy()
            Z = inverse * R
            P, power = Z.copy(), np.einsum("pac,pac->c", R, Z)
            first, active = power.copy(), np.flatnonzero(power > 0)
            for _ in range(self.max_conjugate):
                if not len(active):
                    break
                HP = around.products(P[..., active], columns[active])
                curvature = np.einsum("pac,pac->c", P[..., active], HP)
                length = np.where(curvature > 0, power[active] / np.where(curvature > 0, curvature, 1.0), 0.0)
                X[..., active] += length * P[..., active]
                R[..., active] -= length * HP
                Z = inverse * R[..., active]
                after = np.einsum("pac,pac->c", R[..., active], Z)
                P[..., active] = Z + after / power[active] * P[..., active]
                power[active] = after
                active = active[(after > self.solved**2 * first[active]) & (curvature > 0)]
            return X

        return solve

    def _newton(self, around: _RisksWithout, solver: Solver) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return steps (m, p, r), and `remainder` and `reached` of `Refits`, by Newton steps with the Hessians at Q.

        The length of a step is measured in the norm of the Hessian, relative to the first step. As the Hessian is
        fixed, the lengths decrease geometrically; a refit ends if the next step would be shorter than `converged`. A
        sample is given up if the energy of its step is not positive, or if its lengths decrease by less than the factor
        `slow`.
        """
        m = len(around.samples)
        P, reached, remainder = np.zeros((*around.Q.shape, m)), np.zeros(m, bool), np.zeros(m)
        active, G = np.arange(m), around.first()
        first, before = np.zeros(m), np.full(m, np.inf)
        for iteration in range(self.max_newton):
            step = solver(G, active)
            energy = np.einsum("pac,pac->c", G, step)
            decreasing = np.isfinite(energy) & (energy >= 0)
            energy = np.where(decreasing, energy, 0.0)
            if iteration == 0:
                first = energy
            length = np.sqrt(energy / np.where(first[active] > 0, first[active], 1.0))
            if iteration == 1:
                remainder[active] = length
            ratio = np.where(before[active] > 0, length / np.where(before[active] > 0, before[active], 1.0), 0.0)
            decreasing &= (ratio <= self.slow) | (iteration == 0)
            P[..., active[decreasing]] -= step[..., decreasing]
            before[active] = length
            # the expected length of the next step; one step gives no ratio
            following = length * ratio if iteration else np.where(first[active] > 0, np.inf, 0.0)
            done = decreasing & (following <= self.converged)
            reached[active[done]] = True
            active = active[decreasing & ~done]
            if not len(active):
                break
            G = around.gradients(P[..., active], active)
        return np.ascontiguousarray(P.transpose(2, 0, 1)), remainder, reached

    def _descend(self, around: _RisksWithout, H: FactoredHessian, k: int) -> tuple[np.ndarray, bool]:
        """Return the change of the weights (p, r) without the k-th sample, and whether a minimum was reached.

        L-BFGS (Liu and Nocedal, 1989) in coordinates w = FᵀP in which the Hessian H = F Fᵀ is the identity.
        """
        from scipy.optimize import minimize

        def step(w: np.ndarray) -> np.ndarray:
            return H.unpack(H.whiten(w[:, None], transposed=True), len(around.Q))[..., 0]

        def evaluate(w: np.ndarray) -> tuple[float, np.ndarray]:
            P = step(w)
            (value, gradient), (penalty, pull) = around.loss_change(P, k), around.penalty_change(P)
            return value + penalty, H.whiten(H.pack((gradient + pull)[..., None]))[:, 0]

        start = np.zeros(around.Q.size)
        first = float(np.linalg.norm(evaluate(start)[1]))
        options = {"gtol": 0.3 * self.converged * first / np.sqrt(len(start)), "ftol": 0.0, "maxiter": self.max_lbfgs}
        minimum = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
        reached = float(np.linalg.norm(evaluate(minimum.x)[1])) <= self.converged * first
        return step(minimum.x), reached

    def _refit_on_kinks(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (m, d, r) and which samples reached a minimum, by an active-set method for kinks of a penalty.

        Weights are free (not zero) or fixed at zero. In turn: a Newton step among the free weights, shortened so that
        it ends at the first weight that becomes zero, which is then fixed. Once the gradient of the free weights is
        small, the fixed weight with the largest subgradient becomes free, if it is among those of `_near_kinks`. The
        refit ends if all subgradients are small.
        """
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        near, smallest_bound = self._near_kinks(data, at, Q), self.tol * small_unit(data) * data.penalty.strength
        x = np.concatenate([part for _, part in TokenRows(data).blocks()])
        n, L, d = x.shape
        r = data.rank
        whole = data_hessian(scaled_blocks(data), at.hessians, tuple(np.flatnonzero(column) for column in near.T))
        number = np.full(Q.shape, -1)
        number.T[near.T] = np.arange(len(whole))  # the order of `data_hessian`: column after column of Q
        flat = x.reshape(n * L, d)
        start, _, curvature = on_kinks(data.penalty, Q, at.smooth)
        free_at_start = start != 0
        # the curvature of the penalty for weights that are zero now and may become free
        off_kink = on_kinks(data.penalty, np.where(free_at_start, start, 1.0), at.smooth)[2]
        curvature = np.where(free_at_start, curvature, off_kink)
        steps, reached = np.zeros((len(samples), *Q.shape)), np.zeros(len(samples), bool)
        for k, sample in enumerate(samples.tolist()):
            derivatives = np.zeros((len(whole), L, r))
            for a in range(r):
                derivatives[number[near[:, a], a], :, a] = x[sample][:, near[:, a]].T
            columns = derivatives.reshape(len(whole), L * r)
            D = at.hessians[sample]
            weights, free, first = start.copy(), free_at_start.copy(), 0.0
            change = -x[sample].T @ at.loss_gradients[sample]  # change of the smooth gradient since the minimum
            for iteration in range(self.max_changes):
                gradient = smallest_subgradient(data.penalty, weights, at.smooth + change)
                inner, outer = (float(np.abs(gradient[part]).max(initial=0.0)) for part in (free, ~free))
                first = max(inner, outer) if iteration == 0 else first
                bound = max(self.kink_tol * first, smallest_bound)
                if max(inner, outer) <= bound:
                    reached[k] = True
                    break
                if inner <= bound:  # a minimum over the free weights: free the fixed weight of the largest subgradient
                    free.flat[np.argmax(np.where(free, 0.0, np.abs(gradient)))] = True
                inside = number[free]
                if (inside < 0).any():  # a weight became free that is not among the considered weights
                    break
                H = whole[np.ix_(inside, inside)] - columns[inside] @ D @ columns[inside].T
                H[np.diag_indices(len(inside))] += curvature[free]
                try:
                    step = -cho_solve(cho_factor(H, check_finite=False), gradient[free], check_finite=False)
                except LinAlgError:
                    break
                weights[free] = _step_to_first_zero(weights[free], step)
                free[free] = weights[free] != 0
                change = _gradient_change(at, flat, weights - start, sample)
            steps[k] = weights - Q
        return steps, reached

    def _near_kinks(self, data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
        """Return a mask (d, r) of the weights that may become free: all, or the `max_free` weights closest to it."""
        if Q.size <= self.max_free:
            return np.ones(Q.shape, bool)
        weights, free, _ = on_kinks(data.penalty, Q, at.smooth)
        slack = np.full(Q.shape, np.inf)
        for sign in (-1.0, 1.0):  # `slack` is the force that frees a weight, in units of the penalty's strength
            for size in np.linspace(0.0, 1.0, 21):
                push = sign * size * data.penalty.strength
                freed = on_kinks(data.penalty, weights, at.smooth + push)[1] > 0
                slack = np.where(freed, np.minimum(slack, size), slack)
        slack[free > 0] = -1.0
        return slack <= np.partition(slack.ravel(), self.max_free - 1)[self.max_free - 1]


def descend_risk(
    data: Dataset, evaluate: Callable[[np.ndarray], RiskAtPoint], Q: np.ndarray, tol: float, max_steps: int
) -> np.ndarray:
    """Return the end of a descent from Q (d, r) on a risk; the tolerance is relative to small units of the weights."""
    method, unit = minimize_by_lbfgs if data.penalty.smooth else proximal_gradient, small_unit(data)
    return method(data, evaluate, Q, tol * unit, max_steps, None, unit)[0]


def sample_errors(data: Dataset, fields: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
    """Return the errors (n,) of samples with fields (n, L, r): ‖y − f(x)‖²/(dL), or the loss of labels."""
    terms = data.terms("exact")
    losses = sample_derivatives(data.loss, terms.params[rows], fields)[0] + terms.constant[rows]
    return losses if data.is_labelled else 2 * losses / data.n_tokens


def tokens_fields(data: Dataset, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the fields (m, L, r) of samples (m,) under weights Q (d, r)."""
    return TokenRows(data).of_samples(samples) @ Q


def without(data: Dataset, Q: np.ndarray, sample: int) -> RiskAtPoint:
    """Return the exact risk at Q without a sample; its fields and Hessians contain all samples."""
    at = risk_at(data, Q, "exact")
    x = TokenRows(data).of_samples(np.array([sample]))[0]
    terms = data.terms("exact")
    loss, slope, _ = sample_derivatives(at.loss, at.params[sample : sample + 1], (x @ Q)[None])
    smooth = at.smooth - x.T @ slope[0]
    gradient = smallest_subgradient(data.penalty, Q, smooth)
    lower = float(loss[0] + terms.constant[sample]) / data.dim
    train_loss, norm = at.train_loss - lower, gradient_norm(data, gradient)
    return replace(at, train_loss=train_loss, gradient=gradient, smooth=smooth, gradient_norm=norm)


def _factored_solver(around: _RisksWithout, H: FactoredHessian) -> Solver:
    """Return a solver for the Hessians without a sample by the Sherman–Morrison–Woodbury formula.

    With H the Hessian of all samples, X the derivatives of the fields of the left-out sample, D = ∇²ℓ and
    A = X H⁻¹ Xᵀ, the inverse without the sample is (H − XᵀDX)⁻¹ = H⁻¹ + H⁻¹Xᵀ (1 − D A)⁻¹ D X H⁻¹.
    """
    m, k = len(around.samples), around.x.shape[1] * around.Q.shape[1]
    derivatives = H.columns(around.x)
    all_solutions = H.solve(derivatives).reshape(H.size, m, k)  # H⁻¹Xᵀ
    A = np.einsum("imk,iml->mkl", derivatives.reshape(H.size, m, k), all_solutions)
    D = around.at.hessians[around.samples]
    try:
        correction = np.linalg.solve(np.eye(k) - D @ A, D)  # (1 − D A)⁻¹ D
    except np.linalg.LinAlgError:  # only one sample determines some weights
        correction = np.linalg.pinv(np.eye(k) - D @ A) @ D

    def solve(G: np.ndarray, columns: np.ndarray) -> np.ndarray:
        flat, solutions = H.pack(G), all_solutions[:, columns]
        forces = (correction[columns] @ np.einsum("imk,im->mk", solutions, flat)[..., None])[..., 0]
        return H.unpack(H.solve(flat) + np.einsum("imk,mk->im", solutions, forces), len(G))

    return solve


def _step_to_first_zero(weights: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return the weights after a step, which is shortened so that it ends where the first weight becomes zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(weights * step < 0, -weights / step, np.inf)
    length = min(1.0, float(crossing.min(initial=np.inf)))
    return np.where(crossing <= length, 0.0, weights + length * step)


def _gradient_change(at: RiskAtPoint, flat: np.ndarray, P: np.ndarray, sample: int) -> np.ndarray:
    """Return the change of the smooth gradient (d, r) due to a step P (d, r) and the removal of the sample."""
    z = at.z + (flat @ P).reshape(at.z.shape)
    slope = sample_derivatives(at.loss, at.params, z)[1] - at.loss_gradients
    slope[sample] = -at.loss_gradients[sample]
    return flat.T @ slope.reshape(len(flat), -1)
