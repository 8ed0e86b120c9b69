"""Minima of the risk without single samples, from the minimum with all of them: exact refits of a few samples.

Newton steps with the Hessian of the minimum with all samples, minus the curvature of the sample that is left out, for
many samples at once; each step is a pass over the tokens. If the penalty has kinks, an active-set method determines
which weights are free. Samples for which these steps do not converge are refitted by a descent.

Datasets that differ in the penalty alone, and some of the samples of a dataset.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from gamp_attention.data.curvature import rotations
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, gradient_norm, risk_at
from gamp_attention.experiments.inference.hessian import FactoredHessian, TokenRows, data_hessian, minimum_in
from gamp_attention.gamp.settling import proximal_gradient, quasi_newton
from gamp_attention.losses.point import sample_derivatives
from gamp_attention.penalties.matrix import least_subgradient, on_kinks, penalty_total


@dataclass(frozen=True)
class RefitSettings:
    """Accuracy and bounds of refits."""

    tol: float = 1e-8  # gradient norm at which a descent ends
    accepted: float = 1e-6  # largest gradient norm of a descent that does not improve any more and counts as a minimum
    max_iter: int = 5000  # iterations of a descent
    turns: int = 200  # iterations of a descent in a trust region
    left: float = 1e-3  # expected length of the next Newton step, relative to the first, at which a refit ends
    slow: float = 0.7  # ratio of the lengths of successive Newton steps from which on they are given up
    steps: int = 12  # largest number of Newton steps
    dense: int = 200  # weights up to which a Hessian is computed at each step of a descent
    solved: float = 1e-4  # residual of conjugate gradients, relative to the right-hand side
    products: int = 400  # largest number of their iterations
    kinked: int = 2000  # largest number of weights that may be free in a refit, if the penalty has a kink
    changes: int = 200  # largest number of steps between which weights become free or zero
    kept: float = 1e-4  # gradient of the free weights, relative to the first, at which such a refit ends


REFITS = RefitSettings()


@dataclass(frozen=True, eq=False)
class Refits:
    """Outcome of `refit_samples` for samples (m,).

    Attributes
    ----------
    fields : (m, L, r) fields of each sample under weights trained without it.
    remainder : (m,) length of the second Newton step relative to the first: the change of curvature.
    reached : (m,) whether a minimum was reached.
    """

    fields: np.ndarray
    remainder: np.ndarray
    reached: np.ndarray


def refit_samples(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray, tokens: TokenRows, H: FactoredHessian | None,
    bent: float = np.inf,
) -> Refits:  # fmt: skip
    """Train without each sample from the minimum Q (d, r), at which the exact risk is `at`.

    Eq. :eq:`remainder`.

    With the factored Hessian H in the coordinates of `tokens`; by conjugate gradients if H is None. No descents follow
    for samples whose Newton steps do not converge if the median remainder is above `bent`.
    """
    if data.penalty.smooth or data.penalty.quadratic:
        around = _Smooth(data, at, Q, tokens, samples)
        solver = _Factored(around, H) if H is not None else _Iterative(around)
        found = _newton(around, solver)
        if np.median(found.remainder) > bent:
            return found
        for k in np.flatnonzero(~found.reached).tolist():
            if around.Q.size <= REFITS.dense:
                found.fields[k], found.reached[k] = _descend(around, k)
            elif H is not None:
                found.fields[k], found.reached[k] = _descend_whitened(around, H, k)
    else:
        found = _on_kinks(data, at, Q, samples)
    fields = found.fields
    for k in np.flatnonzero(~found.reached).tolist():
        weights, found.reached[k] = refit(data, Q, int(samples[k]))
        if found.reached[k]:
            fields[k] = tokens_fields(data, weights, samples[k : k + 1])[0]
    return found


def tokens_fields(data: Dataset, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the fields (m, L, r) of samples (m,) under weights Q (d, r)."""
    return TokenRows(data).of_samples(samples) @ Q


class _Smooth:
    """The gradients of the risks without each of some samples (m,), around the minimum with all of them."""

    def __init__(self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows, samples: np.ndarray) -> None:
        self.data, self.at, self.tokens, self.samples = data, at, tokens, samples
        self.Q = minimum_in(tokens, at, Q)
        self.own = tokens.of_samples(samples)
        self.curvature = self._penalty_curvature()
        self.flat = rotations(data, self.Q)  # directions without curvature, raised to `level`
        self.level = float(at.hessians.trace(axis1=1, axis2=2).mean()) + data.penalty.strength

    def _penalty_curvature(self) -> np.ndarray:
        smooth = self.at.smooth if self.tokens.coordinates is None else -self.data.penalty.lam * self.Q
        return on_kinks(self.data.penalty, self.Q, smooth)[2]

    def penalty_change(self, P: np.ndarray) -> tuple[float, np.ndarray]:
        """Return r(Q + P) − r(Q) − ∇r(Q)·P and its gradient (p, r)."""
        penalty, Q = self.data.penalty, self.Q
        if penalty.quadratic:
            return 0.5 * penalty.lam * float(np.sum(P**2)), penalty.lam * P
        nothing = np.zeros(Q.shape)
        pull = least_subgradient(penalty, Q, nothing)
        change = penalty_total(penalty, Q + P) - penalty_total(penalty, Q)
        return change - float(np.sum(pull * P)), least_subgradient(penalty, Q + P, nothing) - pull

    def first(self) -> np.ndarray:
        """Return the gradients (p, r, m) at the minimum with all samples."""
        return -np.einsum("mlp,mla->pam", self.own, self.at.loss_gradients[self.samples])

    def gradients(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the gradients (p, r, c) at weights Q + P (p, r, c) without each of the samples at indices (c,)."""
        _, r, c = P.shape
        at, out = self.at, np.zeros(P.shape)
        samples, flat_P = self.samples[columns], P.reshape(len(P), -1)
        for rows, x in self.tokens.blocks():
            b, L, p = x.shape
            flat = x.reshape(b * L, p)
            moved = (flat @ flat_P).reshape(b, L, r, c)
            there = np.ascontiguousarray((at.z[rows][..., None] + moved).transpose(3, 0, 1, 2))
            params = np.tile(at.params[rows], (c, 1))
            slope = sample_derivatives(at.loss, params, there.reshape(c * b, L, r))[1].reshape(c, b, L, r)
            slope = slope - at.loss_gradients[rows]
            inside = np.flatnonzero((samples >= rows.start) & (samples < rows.stop))
            slope[inside, samples[inside] - rows.start] = -at.loss_gradients[samples[inside]]
            out += (flat.T @ slope.transpose(1, 2, 3, 0).reshape(b * L, r * c)).reshape(p, r, c)
        return out + np.stack([self.penalty_change(P[..., k])[1] for k in range(c)], axis=-1)

    def products(self, P: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the Hessians without each of the samples, at the minimum with all, times P (p, r, c)."""
        _, r, c = P.shape
        out, samples = np.zeros(P.shape), self.samples[columns]
        for rows, x in self.tokens.blocks():
            b, L, p = x.shape
            flat = x.reshape(b * L, p)
            moved = (flat @ P.reshape(p, -1)).reshape(b, L * r, c)
            slope = self.at.hessians[rows] @ moved
            inside = np.flatnonzero((samples >= rows.start) & (samples < rows.stop))
            slope[samples[inside] - rows.start, :, inside] = 0.0
            out += (flat.T @ slope.reshape(b * L, r * c)).reshape(p, r, c)
        along = np.tensordot(self.flat, P, 2)
        return out + self.curvature[..., None] * P + self.level * np.tensordot(self.flat, along, (0, 0))

    def diagonal(self) -> np.ndarray:
        """Return the diagonal (p, r) of the Hessian."""
        r, out = self.Q.shape[1], self.curvature.copy()
        for rows, x in self.tokens.blocks():
            D = self.at.hessians[rows].reshape(len(x), x.shape[1], r, x.shape[1], r)
            out += np.einsum("mlp,mla->pa", x**2, np.einsum("mlala->mla", D))
        return out


class _Factored:
    """Solutions of the Hessian without each sample by the factored Hessian, corrected for the sample."""

    def __init__(self, around: _Smooth, H: FactoredHessian) -> None:
        m, L, _ = around.own.shape
        self.H, self.shape = H, around.Q.shape
        k = L * around.Q.shape[1]
        columns = H.columns(around.own)
        self.own = H.solve(columns).reshape(H.size, m, k)
        A = np.einsum("imk,iml->mkl", columns.reshape(H.size, m, k), self.own)
        D = around.at.hessians[around.samples]
        self.turn = np.linalg.solve(np.eye(k) - D @ A, D)  # (1 − D A)⁻¹ D

    def __call__(self, G: np.ndarray, columns: np.ndarray) -> np.ndarray:
        flat = G.transpose(1, 0, 2).reshape(-1, G.shape[2])  # the factor has column after column of Q
        steps = self.H.solve(flat)
        own = self.own[:, columns]
        felt = (self.turn[columns] @ np.einsum("imk,im->mk", own, flat)[..., None])[..., 0]
        steps = steps + np.einsum("imk,mk->im", own, felt)
        return steps.reshape(self.shape[1], self.shape[0], -1).transpose(1, 0, 2)


class _Iterative:
    """Solutions of the Hessian without each sample by conjugate gradients with a diagonal preconditioner."""

    def __init__(self, around: _Smooth) -> None:
        self.around = around
        self.inverse = 1 / np.maximum(around.diagonal(), 1e-300)[..., None]

    def __call__(self, G: np.ndarray, columns: np.ndarray) -> np.ndarray:
        X, R = np.zeros(G.shape), G.copy()
        Z = self.inverse * R
        P, power = Z.copy(), np.einsum("pac,pac->c", R, Z)
        first, active = power.copy(), np.flatnonzero(power > 0)
        for _ in range(REFITS.products):
            if not len(active):
                break
            HP = self.around.products(P[..., active], columns[active])
            bend = np.einsum("pac,pac->c", P[..., active], HP)
            length = np.where(bend > 0, power[active] / np.where(bend > 0, bend, 1.0), 0.0)
            X[..., active] += length * P[..., active]
            R[..., active] -= length * HP
            Z = self.inverse * R[..., active]
            after = np.einsum("pac,pac->c", R[..., active], Z)
            P[..., active] = Z + after / power[active] * P[..., active]
            power[active] = after
            active = active[(after > REFITS.solved**2 * first[active]) & (bend > 0)]
        return X


def _newton(around: _Smooth, solver: _Factored | _Iterative) -> Refits:
    """Newton steps with the curvature of the minimum with all samples."""
    m = len(around.samples)
    P, reached, remainder = np.zeros((*around.Q.shape, m)), np.zeros(m, bool), np.zeros(m)
    active, G = np.arange(m), around.first()
    first, before = np.zeros(m), np.full(m, np.inf)
    for turn in range(REFITS.steps):
        step = solver(G, active)
        energy = np.einsum("pac,pac->c", G, step)
        sound = np.isfinite(energy) & (energy >= 0)
        energy = np.where(sound, energy, 0.0)
        if turn == 0:
            first = energy
        length = np.sqrt(energy / np.where(first[active] > 0, first[active], 1.0))
        if turn == 1:
            remainder[active] = length
        ratio = np.where(before[active] > 0, length / np.where(before[active] > 0, before[active], 1.0), 0.0)
        sound &= (ratio <= REFITS.slow) | (turn == 0)
        P[..., active[sound]] -= step[..., sound]
        before[active] = length
        following = length * ratio if turn else np.where(first[active] > 0, np.inf, 0.0)  # lengths are geometric
        done = sound & (following <= REFITS.left)
        reached[active[done]] = True
        active = active[sound & ~done]
        if not len(active):
            break
        G = around.gradients(P[..., active], active)
    fields = around.at.z[around.samples] + np.einsum("mlp,pam->mla", around.own, P)
    return Refits(fields, remainder, reached)


def _descend(around: _Smooth, k: int) -> tuple[np.ndarray, bool]:
    """Minimise the risk without the k-th sample in a trust region: its fields, and whether that is a minimum."""
    from scipy.optimize import minimize

    at, data, sample = around.at, around.data, around.samples[k]
    tokens = around.tokens
    whole = tuple(np.arange(around.Q.shape[0]) for _ in range(around.Q.shape[1]))
    shape, scale = around.Q.shape, data.penalty.strength * np.sqrt(data.dim)
    still = sample_derivatives(at.loss, at.params, at.z)[0]

    @lru_cache(maxsize=2)
    def evaluate(key: bytes) -> tuple[float, np.ndarray, np.ndarray]:
        P = np.frombuffer(key).reshape(shape)
        z = at.z.copy()
        for rows, x in tokens.blocks():
            z[rows] += x @ P
        losses, slopes, hessians = sample_derivatives(at.loss, at.params, z)
        missed = losses - still - np.einsum("nla,nla->n", at.loss_gradients, z - at.z)
        missed[sample] = -np.sum(at.loss_gradients[sample] * (z - at.z)[sample])
        change = slopes - at.loss_gradients
        change[sample], hessians[sample] = -at.loss_gradients[sample], 0.0
        gradient = np.zeros(shape)
        for rows, x in tokens.blocks():
            gradient += np.einsum("mlp,mla->pa", x, change[rows], optimize=True)
        H = data_hessian(tokens, hessians, whole)
        ends = around.penalty_change(P)
        H[np.diag_indices(len(H))] += around.curvature.T.ravel()
        return float(missed.sum()) + ends[0], gradient + ends[1], H

    def column_first(x: np.ndarray) -> bytes:
        return np.ascontiguousarray(x.reshape(shape[::-1]).T).tobytes()

    found = minimize(
        lambda x: evaluate(column_first(x))[0], np.zeros(around.Q.size), method="trust-exact",
        jac=lambda x: evaluate(column_first(x))[1].T.ravel(), hess=lambda x: evaluate(column_first(x))[2],
        options={"gtol": 0.5 * REFITS.accepted * scale, "maxiter": REFITS.turns},
    )  # fmt: skip
    P = np.frombuffer(column_first(found.x)).reshape(shape)
    _, gradient, _ = evaluate(column_first(found.x))
    return at.z[sample] + around.own[k] @ P, bool(np.linalg.norm(gradient) <= REFITS.accepted * scale)


def _descend_whitened(around: _Smooth, H: FactoredHessian, k: int) -> tuple[np.ndarray, bool]:
    """Minimise the risk without the k-th sample by L-BFGS in coordinates in which H = 1: its fields, and success."""
    from scipy.linalg import solve_triangular
    from scipy.optimize import minimize

    at, sample = around.at, around.samples[k]
    shape = around.Q.shape
    still = sample_derivatives(at.loss, at.params, at.z)[0]

    def step(w: np.ndarray) -> np.ndarray:
        flat = solve_triangular(H.whitener, w, lower=True, trans=1, check_finite=False)
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)

    def evaluate(w: np.ndarray) -> tuple[float, np.ndarray]:
        P, z = step(w), at.z.copy()
        for rows, x in around.tokens.blocks():
            z[rows] += x @ P
        losses, slopes, _ = sample_derivatives(at.loss, at.params, z)
        missed = losses - still - np.einsum("nla,nla->n", at.loss_gradients, z - at.z)
        missed[sample] = -np.sum(at.loss_gradients[sample] * (z - at.z)[sample])
        change = slopes - at.loss_gradients
        change[sample] = -at.loss_gradients[sample]
        value, gradient = around.penalty_change(P)
        for rows, x in around.tokens.blocks():
            gradient = gradient + x.reshape(-1, shape[0]).T @ change[rows].reshape(-1, shape[1])
        white = solve_triangular(H.whitener, gradient.T.ravel(), lower=True, check_finite=False)
        return float(missed.sum()) + value, white

    start = np.zeros(around.Q.size)
    first = float(np.linalg.norm(evaluate(start)[1]))
    options = {"gtol": 0.3 * REFITS.left * first / np.sqrt(len(start)), "ftol": 0.0, "maxiter": REFITS.turns}
    found = minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options)
    reached = float(np.linalg.norm(evaluate(found.x)[1])) <= REFITS.left * first
    return at.z[sample] + around.own[k] @ step(found.x), reached


def _on_kinks(data: Dataset, at: RiskAtPoint, Q: np.ndarray, samples: np.ndarray) -> Refits:
    """Newton steps among the weights that are not zero, of which a step changes at most one: an active-set method."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    near = _near_kinks(data, at, Q)
    x = np.concatenate([part for _, part in TokenRows(data).blocks()])
    n, L, d = x.shape
    r = data.rank
    whole = data_hessian(TokenRows(data), at.hessians, tuple(np.flatnonzero(column) for column in near.T))
    number = np.full(Q.shape, -1)
    number.T[near.T] = np.arange(len(whole))  # the order of `data_hessian`: column after column of Q
    flat = x.reshape(n * L, d)
    kept_Q, _, curvature = on_kinks(data.penalty, Q, at.smooth)
    at_start = kept_Q != 0
    curvature = np.where(at_start, curvature, on_kinks(data.penalty, np.where(at_start, kept_Q, 1.0), at.smooth)[2])
    fields, remainder, reached = at.z[samples].copy(), np.zeros(len(samples)), np.zeros(len(samples), bool)
    for k, sample in enumerate(samples.tolist()):
        own = np.zeros((len(whole), L, r))
        for a in range(r):
            own[number[near[:, a], a], :, a] = x[sample][:, near[:, a]].T
        columns = own.reshape(len(whole), L * r)
        D = at.hessians[sample]
        weights, free, first = kept_Q.copy(), at_start.copy(), 0.0
        rest = -x[sample].T @ at.loss_gradients[sample]  # the change of the smooth gradient
        for turn in range(REFITS.changes):
            gradient = least_subgradient(data.penalty, weights, at.smooth + rest)
            inner, outer = (float(np.abs(gradient[part]).max(initial=0.0)) for part in (free, ~free))
            first = max(inner, outer) if turn == 0 else first
            bound = max(REFITS.kept * first, REFITS.tol * data.penalty.strength)
            if max(inner, outer) <= bound:
                reached[k] = True
                break
            if inner <= bound:  # a minimum among the free weights: free the weight of the largest gradient
                free.flat[np.argmax(np.where(free, 0.0, np.abs(gradient)))] = True
            inside = number[free]
            if (inside < 0).any():
                break
            H = whole[np.ix_(inside, inside)] - columns[inside] @ D @ columns[inside].T
            H[np.diag_indices(len(inside))] += curvature[free]
            try:
                step = -cho_solve(cho_factor(H, check_finite=False), gradient[free], check_finite=False)
            except LinAlgError:
                break
            at_free = weights[free]
            with np.errstate(divide="ignore", invalid="ignore"):
                crossing = np.where(at_free * step < 0, -at_free / step, np.inf)
            length = min(1.0, float(crossing.min(initial=np.inf)))
            at_free = np.where(crossing <= length, 0.0, at_free + length * step)
            weights[free] = at_free
            free[free] = at_free != 0
            rest = _change(data, at, flat, weights - kept_Q, sample)
        fields[k] = x[sample] @ weights
    return Refits(fields, remainder, reached)


def _near_kinks(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """Return which weights (d, r) may become free: all, or those nearest to leaving their kink."""
    if Q.size <= REFITS.kinked:
        return np.ones(Q.shape, bool)
    weights, free, _ = on_kinks(data.penalty, Q, at.smooth)
    slack = np.full(Q.shape, np.inf)
    for sign in (-1.0, 1.0):  # the force that frees a weight, in units of the strength
        for size in np.linspace(0.0, 1.0, 21):
            push = sign * size * data.penalty.strength
            freed = on_kinks(data.penalty, weights, at.smooth + push)[1] > 0
            slack = np.where(freed, np.minimum(slack, size), slack)
    slack[free > 0] = -1.0
    return slack <= np.partition(slack.ravel(), REFITS.kinked - 1)[REFITS.kinked - 1]


def _change(data: Dataset, at: RiskAtPoint, flat: np.ndarray, P: np.ndarray, sample: int) -> np.ndarray:
    """Return the change of the smooth gradient (d, r) by a step P (d, r) and by leaving the sample out."""
    z = at.z + (flat @ P).reshape(at.z.shape)
    slope = sample_derivatives(at.loss, at.params, z)[1] - at.loss_gradients
    slope[sample] = -at.loss_gradients[sample]
    return flat.T @ slope.reshape(len(flat), -1)


def refit(data: Dataset, Q: np.ndarray, sample: int) -> tuple[np.ndarray, bool]:
    """Return the end of a descent from Q on the exact risk without a sample, and whether it is a minimum."""

    def evaluate(Q: np.ndarray) -> RiskAtPoint:
        return without(data, Q, sample)

    descend = quasi_newton if data.penalty.smooth else proximal_gradient
    end, _ = descend(data, evaluate, Q, REFITS.tol, REFITS.max_iter)
    return end, evaluate(end).gradient_norm <= REFITS.accepted


def without(data: Dataset, Q: np.ndarray, sample: int) -> RiskAtPoint:
    """Return the exact risk at Q without a sample; its fields and Hessians are of all samples."""
    at = risk_at(data, Q, "exact")
    x = TokenRows(data).of_samples(np.array([sample]))[0]
    terms = data.terms("exact")
    loss, slope, _ = sample_derivatives(at.loss, at.params[sample : sample + 1], (x @ Q)[None])
    smooth = at.smooth - x.T @ slope[0]
    gradient = least_subgradient(data.penalty, Q, smooth)
    lower = float(loss[0] + terms.constant[sample]) / data.dim
    return replace(
        at,
        train_loss=at.train_loss - lower,
        gradient=gradient,
        smooth=smooth,
        gradient_norm=gradient_norm(data, gradient),
    )
