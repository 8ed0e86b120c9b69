"""The empirical risk R(Q) of equation (3) at given weights: value and derivatives, overlaps, and test error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.numerics import compose, guard_call, one_thread
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.denoisers.output import Denoised, denoise
from gamp_attention.problem.losses.kinks import JUMP, NEAR, STIFF, has_kinks, subgradients
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.passes import pass_over
from gamp_attention.problem.penalties import base
from gamp_attention.problem.penalties.standard import by_rows
from gamp_attention.problem.sources import apply_by_source
from gamp_attention.problem.stores import join_parts
from gamp_attention.results import Overlaps

T = TypeVar("T", np.ndarray, float)

TOLERANCE_MARGIN = 100.0  # tolerances are proportional to the unit of weights if it is below the inverse
SMALL_UNIT = 0.1  # unit of weights below which thresholds of the gradient norm are multiplied by it
UNIT_SAMPLES = 1000  # maximum number of samples from which the size of tokens is computed, for tolerances
MAX_PRODUCTS = 2000  # maximum number of products with the Hessian that solve a linear system
MAX_ROUNDS = 40  # maximum number of rounds of a search for the smallest subgradient at kinks of several fields
HELD = 1 - 1e-4  # eigenvalue of 1 − ∂z/∂ω above which a kink holds z in this direction
FEW_FIELDS = 3  # maximum r for which derivatives of samples with one token are computed with their Hessians


@dataclass(frozen=True)
class KinkSettings:
    """Settings of the search for the smallest subgradient at kinks of several fields."""

    # sizes of ε s, in units of the fields: slopes are more accurate for large ε, and small ε separate near kinks
    reaches: tuple[float, ...] = (1e-2, 1e-4)
    first_tau: float = 10.0  # first τ, in units of squared weights over squared fields
    growth: float = 3.0  # factor of τ after a round that reduces the norm by less than the factor `smaller`
    smaller: float = 0.3
    gain: float = 0.9  # ratio of the norms after and before a round above which the rounds end
    max_steps: int = 50  # Newton steps of a round
    accurate: float = 0.1  # residual at which a round ends, in units of the risk's subgradient
    small: float = 1e-8  # gradient norm at which the search ends
    relative: float = 1e-3  # relative residual of the linear solver of a Newton step
    shortest: float = 1e-7  # length of a step, in units of Newton's step, at which line searches and rounds end
    noise: float = 1e-12  # relative error of proximal objectives, by which a step may raise their sum


KINKS = KinkSettings()


@dataclass(frozen=True, eq=False)
class RiskAtPoint:
    """Risk and its derivatives at weights Q."""

    train_loss: float  # ε_t = R/d
    gradient: np.ndarray  # (d, r) ∇R, or the subgradient of smallest norm
    gradient_norm: float  # ‖∇R‖_F/(λ√d)
    smooth: np.ndarray  # (d, r) the gradient without the penalty, X̃ᵀ∇ℓ
    loss: Any  # the per-sample loss
    params: np.ndarray  # its rows of parameters
    z: np.ndarray  # (n, L, r) local fields X̃Q
    known: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # losses, gradients and Hessians of the samples

    losses = property(lambda self: self._derivatives[0])  # (n,) ℓ_μ at z
    loss_gradients = property(lambda self: self._derivatives[1])  # (n, L, r) ∇ℓ_μ at z
    hessians = property(lambda self: self._derivatives[2])  # (n, L r, L r) ∇²ℓ_μ at z

    @cached_property
    def _derivatives(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return sample_derivatives(self.loss, self.params, self.z) if self.known is None else self.known


def is_convex(data: Dataset) -> bool:
    """Return whether the risk is convex, as the loss declares; all penalties are convex."""
    return bool(getattr(data.student, "convex", False))


def normalized_risk(data: Dataset, Q: np.ndarray, loss: Any) -> float:
    """Return ε_t = R/d from the sum of all ℓ_μ and their constants."""
    return float((loss + penalty_total(data.penalty, Q)) / data.dim)


def gradient_norm(data: Dataset, gradient: np.ndarray) -> float:
    """Return ‖∇R‖_F / (λ√d), with the strength of the penalty for λ. Eq. :eq:`critical`."""
    return float(np.linalg.norm(gradient) / (data.penalty.strength * np.sqrt(data.dim)))


def risk_at(data: Dataset, Q: np.ndarray, risk: str, state: Any = None, rounds: int = MAX_ROUNDS) -> RiskAtPoint:
    """Evaluate a risk and its derivatives at Q (d, r), in one pass over the tokens.

    At kinks of several fields, the search for the smallest subgradient starts from the slopes −V⁻¹D of a `GampState`,
    or from differences across the kinks. It ends after a number of rounds: the gradient norm is an upper bound.

    For samples with few fields in one token, two products with tokens in the cache and the derivatives of the losses,
    Hessians included, take less time than this pass.
    """
    terms, known, root, r = data.terms(risk), None, np.sqrt(data.dim), data.rank
    rows = data.matrix.small_rows() if r <= FEW_FIELDS else None
    if rows is not None:
        with one_thread():
            z = (rows @ (Q / root))[:, None]
            known = losses, slopes, _ = sample_derivatives(data.loss, terms.params, z)
            smooth = rows.T @ slopes[:, 0] / root
    else:
        no_memory, V = np.zeros((data.n_samples, data.n_tokens, r)), np.tile(np.eye(r), (data.n_sources, 1, 1))
        z, _, losses, _, smooth = pass_over(data, risk, Q, no_memory, V, proximal=False)
    if has_kinks(data.loss, terms.params):
        if data.loss.n_fields > 1:
            at = RiskAtPoint(np.nan, Q, np.nan, smooth, data.loss, terms.params, z)
            known = losses, *_subgradients_of_fields(data, at, Q, state, rounds)
        else:
            known = subgradients(
                data.loss, terms.params, z, data.matrix.rows_of,
                lambda slopes: data.matrix.back_project(slopes).ravel(), _ends_near_kinks(data.penalty, Q),
                STIFF * data.penalty.strength,
            )  # fmt: skip
        smooth = data.matrix.back_project(known[1])
    value, gradient = np.sum(losses + terms.constant), smallest_subgradient(data.penalty, Q, smooth)
    norm = gradient_norm(data, gradient)
    return RiskAtPoint(normalized_risk(data, Q, value), gradient, norm, smooth, data.loss, terms.params, z, known)


@by_rows
def penalty_total(penalty: Any, Q: np.ndarray) -> float:
    """Return r(Q) = Σ ρ(Q_ia)."""
    if penalty.by_column:
        return float(0.5 * penalty.curvature @ np.sum(Q**2, axis=0))
    if penalty.quadratic:
        return 0.5 * penalty.lam * np.sum(Q**2)
    return float(base.call_kernel(penalty, base.values, Q)[0].sum())


@by_rows
def subgradient_ends(penalty: Any, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of ∂r(Q), shaped as Q."""
    if penalty.quadratic:
        return (penalty.curvature * Q,) * 2
    left, right = base.call_kernel(penalty, base.slopes, Q)
    return left, right


@by_rows
def proximal_map(penalty: Any, b: np.ndarray, a: float) -> tuple[np.ndarray, np.ndarray]:
    """Return argmin r(X) + a ‖X‖²/2 − Tr bᵀX, and its derivative entry by entry, shaped as b."""
    if penalty.quadratic:
        response = np.broadcast_to(1 / (penalty.curvature + a), b.shape)
        return response * b, response
    x, dx = base.call_kernel(penalty, base.proxes, b, float(a))
    return x, dx


@by_rows
def smallest_subgradient(penalty: Any, Q: np.ndarray, smooth: np.ndarray) -> np.ndarray:
    """Return the element of smallest norm of smooth + ∂r(Q), shaped as Q; it is zero exactly at critical points."""
    if penalty.quadratic:
        return penalty.curvature * Q + smooth
    left, right = subgradient_ends(penalty, Q)
    return smooth + np.minimum(np.maximum(-smooth, left), right)


@by_rows
def on_kinks(penalty: Any, Q: np.ndarray, smooth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Move weights that are optimal at a kink of ρ exactly to the kink, by one short proximal gradient step.

    Damped message passing averages over iterations, so its weights approach a kink but do not reach it.

    Returns
    -------
    The weights; 1.0 for each weight that is free to move, 0.0 for each weight at a kink; and ρ'' of the free weights, 0
    for the others. All are shaped as Q.
    """
    if penalty.quadratic:
        return Q, np.ones(Q.shape), np.broadcast_to(penalty.curvature, Q.shape)
    stiffness = 1e3 * penalty.strength  # the step is so short that weights which are not at a kink hardly move
    moved, response = proximal_map(penalty, stiffness * Q - smooth, stiffness)
    free = response > 0
    curvature = np.maximum(1 / np.where(free, response, 1.0) - stiffness, 0.0)
    return moved, free.astype(float), np.where(free, curvature, 0.0)


def _ends_near_kinks(penalty: Any, Q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of ∂r(Q), at weights next to a kink the ends at the kink.

    Weights of damped message passing approach kinks, but do not reach them.
    """
    reach = NEAR * (np.abs(Q) + np.sqrt(np.mean(Q**2)))
    left, right = subgradient_ends(penalty, Q - reach)[0], subgradient_ends(penalty, Q + reach)[1]
    at_kink = right - left > JUMP * np.abs(left + right).mean()
    exact = subgradient_ends(penalty, Q)
    return np.where(at_kink, left, exact[0]), np.where(at_kink, right, exact[1])


@dataclass
class _Projection:
    """Projection Π of slopes (n, L, r) of losses of several fields on subgradients at z, by proximal steps at z + ε s.

    A slope s is a subgradient at z if the proximal step at z + ε s returns z.
    """

    data: Dataset
    at: RiskAtPoint
    Q: np.ndarray
    z: np.ndarray  # (n, L, r) fields, moved onto kinks next to them
    eps: float  # ε
    tau: float = 1.0  # τ of a round

    def project(self, slopes: np.ndarray, P: np.ndarray | None = None) -> tuple[Denoised, float, np.ndarray]:
        """Return proximal steps at s + τ X̃P, the potential of P (d, r), and the risk's subgradient with the forces."""
        data, (_, L, r) = self.data, self.z.shape
        V, moved = np.tile(self.eps * np.eye(r), (L, 1, 1)), self.z + self.eps * slopes
        if P is not None:
            moved += self.eps * self.tau * data.matrix.fields(P)
        out = denoise(data.loss, self.at.params, moved, V, self.z, hold=True, jacobian=True)
        subgradient, value = smallest_subgradient(data.penalty, self.Q, data.matrix.back_project(-out.g)), np.nan
        if P is not None:
            left = subgradient_ends(data.penalty, self.Q)[0]
            value = float(0.5 * np.sum(P**2) + np.sum(left * P) + out.moreau.sum() / (self.eps * self.tau))
        return out, value, subgradient

    def held(self, out: Denoised) -> np.ndarray:
        """Return 1 − ∂z/∂ω (n, L r, L r), with eigenvalues 1 along the axes in which kinks hold z."""
        return np.eye(out.jacobian.shape[1]) - out.jacobian

    def move_to_kinks(self, out: Denoised, allowed: np.ndarray) -> None:
        """Move fields, by up to `allowed`, to where kinks hold proximal steps."""
        held, axes = np.linalg.eigh(self.held(out))
        across = compose((held >= HELD).astype(float), axes) @ (out.z - self.z).reshape(len(self.z), -1, 1)
        there = self.z + across.reshape(self.z.shape)
        self.z = np.where(np.abs(there - self.at.z).max(axis=(1, 2), keepdims=True) <= allowed, there, self.z)

    def round(self, slopes: np.ndarray, residual: np.ndarray) -> tuple[Denoised, np.ndarray]:
        """Return the proximal steps of s ← Π(s + τ X̃P), P = −(∇r + X̃ᵀs) for the new s, and the subgradient (d, r).

        Newton steps in P minimize its potential. `residual` is the risk's subgradient for the old slopes.
        """
        left, right = subgradient_ends(self.data.penalty, self.Q)
        free, t = (left == right).astype(float), 1.0
        P = -free * residual
        out, value, subgradient = self.project(slopes, P)
        for _ in range(KINKS.max_steps):
            force = free * (P + subgradient)
            ended = np.linalg.norm(force) <= KINKS.accurate * np.linalg.norm(subgradient)
            if ended or t < KINKS.shortest:
                break
            curved = replace(self.at, known=(self.at.losses, slopes, self.tau * self.held(out)))
            step, _ = solve_hessian(self.data, curved, -force, free, 1.0, KINKS.relative)
            t, (out, value, subgradient) = search_line(partial(self.project, slopes), P, step, value)
            P = P + t * step
        return out, subgradient


def search_line(evaluate: Any, start: np.ndarray, step: np.ndarray, value: float) -> tuple[float, Any]:
    """Return a length of a step, a power of ½, at which the second result of `evaluate` has not risen, and results."""
    t, results = 1.0, evaluate(start + step)
    while t > KINKS.shortest and not results[1] <= value + KINKS.noise * abs(value):
        t *= 0.5
        results = evaluate(start + t * step)
    return t, results


def _subgradients_of_fields(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, state: Any, rounds: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return subgradients (n, L, r) and curvatures (n, L r, L r) of losses of several fields with kinks at z.

    The risk's subgradient of smallest norm is the limit of rounds of the proximal point algorithm (Rockafellar, 1976),
    see `_Projection.round`, by Newton steps (Li, Sun and Toh, 2018). Samples whose proximal step does not return z have
    no such kink, and keep their gradient.
    """
    slopes = at.loss_gradients if state is None else -apply_by_source(data.groups, np.linalg.inv(state.V), state.D)
    size = np.sqrt(np.mean(at.z**2)) + 1e-300
    unit = size / (np.sqrt(np.mean(at.loss_gradients**2)) + 1e-300)
    allowed = NEAR * (size + np.abs(at.z).max(axis=(1, 2), keepdims=True))
    tau, stiffness = KINKS.first_tau * np.sum(Q**2) / (size**2 * at.z.size), STIFF * data.penalty.strength
    found, lowest = (slopes, at.hessians), np.inf
    for reach, n_rounds in ((1.0, 0), *((reach, rounds) for reach in KINKS.reaches), (1.0, 0)):
        search = _Projection(data, at, Q, at.z, reach * unit, tau)
        out, _, residual = search.project(found[0])
        norm = gradient_norm(data, residual)
        for _ in range(n_rounds if norm > KINKS.small else 0):
            search.move_to_kinks(out, allowed)
            there, after = search.round(-out.g, residual)
            before, norm = norm, gradient_norm(data, after)
            if norm < KINKS.gain * before:
                out, residual = there, after
            if not KINKS.small < norm < KINKS.gain * before:
                break
            search.tau *= 1.0 if norm < KINKS.smaller * before else KINKS.growth
        if (np.abs(out.z - at.z) > allowed).any():
            out, _, _ = search.project(-out.g)
        far = (np.abs(out.z - at.z) > allowed).any(axis=(1, 2), keepdims=True) | ~out.solved[:, None, None]
        held, axes = np.linalg.eigh(search.held(out))
        curvatures = np.where(held < HELD, held / (search.eps * (1 - np.minimum(held, HELD))), stiffness)
        trial = np.where(far, at.loss_gradients, -out.g), np.where(far, at.hessians, compose(curvatures, axes))
        norm = gradient_norm(data, smallest_subgradient(data.penalty, Q, data.matrix.back_project(trial[0])))
        found, lowest = (trial, norm) if norm < lowest else (found, lowest)
        if lowest <= KINKS.small:
            break
    return found


def denoise_at(
    data: Dataset, at: RiskAtPoint, V: np.ndarray, *, samples: np.ndarray | None = None,
    start: np.ndarray | None = None, **options: Any,
) -> Denoised:  # fmt: skip
    """Evaluate the output denoiser at ω = z − V g with g = −∇ℓ(z), starting from z, a stationary point, or `start`.

    V (S, r, r) has one matrix for the tokens of each source. `samples` are the indices of the samples to denoise, in
    ascending order, by default all; `options` are keyword arguments of `denoise`.
    """
    omega = at.z + apply_by_source(data.groups, V, at.loss_gradients)
    chosen, start = np.arange(data.n_samples) if samples is None else samples, at.z if start is None else start
    parts = [(chosen[(chosen >= rows.start) & (chosen < rows.stop)], sources) for rows, sources in data.groups]
    return join_parts([
        denoise(at.loss, at.params[rows], omega[rows], V[sources], start[rows], **options)
        for rows, sources in parts if len(rows)
    ])  # fmt: skip


def hessian_product(data: Dataset, at: RiskAtPoint, P: np.ndarray, curvature: Any) -> np.ndarray:
    """Return ∇²R P (d, r) at the point `at`; `curvature` of the penalty is a number or an array (d, r)."""
    return curvature * P + data.matrix.hessian_product(at.hessians, P)


def solve_hessian(
    data: Dataset, at: RiskAtPoint, b: np.ndarray, free: np.ndarray, curvature: Any, rtol: float
) -> tuple[np.ndarray, bool]:
    """Solve ∇²R P = b in the free weights (d, r), by MINRES; return P and whether the relative residual is `rtol`.

    `curvature` is explained in `hessian_product`. MINRES also solves singular systems: a common rotation of the columns
    of Q is a direction without curvature.
    """
    from scipy.sparse.linalg import LinearOperator, minres

    def product(x: np.ndarray) -> np.ndarray:
        return (free * hessian_product(data, at, free * x.reshape(b.shape), curvature)).ravel()

    operator = LinearOperator((b.size, b.size), matvec=product, dtype=float)
    x, failed = minres(operator, (free * b).ravel(), rtol=rtol, maxiter=MAX_PRODUCTS)
    return x.reshape(b.shape), not failed


@guard_call
def gradient(data: Dataset, Q: ArrayLike, risk: str = "exact") -> np.ndarray:
    """Compute the gradient of the risk R of equation (3), or of its asymptotic form, equation (41), without 1/d.

    Eq. :eq:`risk`.

    Parameters
    ----------
    data : the samples.
    Q : (d, r) weights.
    risk : "exact" or "asymptotic".

    Returns
    -------
    (d, r) array ∇R(Q) = X̃ᵀ∇ℓ(X̃Q) + ∇r(Q), with ∇r(Q) = λQ for the ridge. If the penalty has kinks at Q, the
        subgradient of smallest norm, which is zero at critical points.

    Raises
    ------
    TypeError : if `data` is not a Dataset, or `Q` is not an array of real numbers.
    ValueError : if `Q` has another shape, `risk` is unknown or not available, or the gradient overflows.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> Q = ga.run_gamp(data).Q
    >>> bool(abs(ga.gradient(data, Q)).max() < 1e-8 < abs(ga.gradient(data, data.Q_star)).max())
    True
    """
    require_dataset(data).terms(risk)
    return require_finite_at(Q, risk_at(data, check.array("Q", Q, (data.dim, data.rank)), risk).gradient)


@guard_call
def train_loss(data: Dataset, Q: ArrayLike, risk: str = "exact") -> float:
    """Compute the training loss ε_t = R/d of equation (3), or of its asymptotic form, equation (41).

    Eq. :eq:`risk`.

    Parameters
    ----------
    data, Q, risk : as for `gradient`.

    Returns
    -------
    A number.

    Raises
    ------
    TypeError, ValueError : as for `gradient`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> informed, without = ga.train_loss(data, data.Q_star), ga.train_loss(data, 0 * data.Q_star)
    >>> 0 < informed < without
    True
    """
    require_dataset(data).terms(risk)
    return require_finite_at(Q, risk_at(data, check.array("Q", Q, (data.dim, data.rank)), risk).train_loss)


def require_finite_at(Q: Any, value: T) -> T:
    """Return a value computed at weights Q; raise ValueError if it is not finite."""
    if not np.isfinite(value).all():
        raise check.fail("Q", np.asarray(Q), "weights at which the risk is within the range of doubles")
    return value


def overlaps(data: Dataset, Q: np.ndarray, V: np.ndarray | None = None) -> Overlaps:
    """Return the overlaps of weights Q (d, r) with covariances, means and teacher, for each source of a dataset.

    Eq. :eq:`overlaps`. V is NaN if it is not given.
    """
    d, S = data.dim, data.n_sources
    SQ = data.spectra[:, :, None] * Q[None]  # (S, d, r)
    star = np.empty((d, 0)) if data.Q_star is None else data.Q_star
    q = np.einsum("lia,ib->lab", SQ, Q) / d
    theta = np.einsum("lia,ib->lab", SQ, star) / d if star.shape[1] else np.empty((S, Q.shape[1], 0))
    return Overlaps(q, data.source_means @ Q / np.sqrt(d), theta, np.full_like(q, np.nan) if V is None else V)


def scale_tolerance(data: Dataset, tol: float, margin: float = TOLERANCE_MARGIN) -> float:
    """Return the tolerance of the gradient norm: `tol`, or if this is smaller, tol × margin × the unit of weights.

    The gradient norm has the unit of the weights. If these are small because tokens are large, or labels small, a fixed
    tolerance would be inaccurate.
    """
    return tol * min(1.0, margin * weight_unit(data))


def small_unit(data: Dataset) -> float:
    """Return the unit of weights if it is small, otherwise 1."""
    unit = weight_unit(data)
    return unit if unit < SMALL_UNIT else 1.0


def weight_unit(data: Dataset) -> float:
    """Return the size of weights for which fields have the size of the labels, or are of order one without labels."""
    tokens, size = data.tokens[:: -(-data.n_samples // UNIT_SAMPLES)] + data.positions, 1.0
    if data.labels is not None:
        size = float(data.student.field_size(_typical_size(np.mean(data.labels**2, axis=0))))
    return size / _typical_size(np.mean(tokens**2, axis=(0, 1), dtype=float))


def _typical_size(squares: np.ndarray) -> float:
    """Return the root of the median of the positive squares (k,), or 1 if there are none."""
    positive = squares[squares > 0]
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0
