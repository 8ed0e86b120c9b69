"""Descent on the training risk, which completes runs of message passing that cycle.

The weights of a fixed point of GAMP are a critical point of the risk, whatever V and A are, so that descent on the same
compiled risk can complete a run: L-BFGS (Liu and Nocedal, 1989), accelerated proximal gradient steps (Beck and
Teboulle, 2009) if the penalty has kinks, or an augmented Lagrangian (Rockafellar, 1976) if convex losses have kinks;
then Newton steps, solved by MINRES, that must lower the gradient norm. The end is verified to be a fixed point of GAMP:
for sufficiently small V, the proximal step at ω = z − V g returns z = X̃Q.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.numerics import one_thread
from gamp_attention.gamp.step import GampState
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.output import Denoised
from gamp_attention.problem.losses.kinks import has_kinks
from gamp_attention.problem.penalties.standard import unpenalized
from gamp_attention.problem.risk import (
    KINKS,
    RiskAtPoint,
    denoise_at,
    gradient_norm,
    is_convex,
    on_kinks,
    penalty_total,
    proximal_map,
    risk_at,
    search_line,
    small_unit,
    smallest_subgradient,
    solve_hessian,
)
from gamp_attention.results import Result

MAX_STEPS = 5000  # maximum number of steps of a descent
HANDOVER = 1e-5  # gradient norm at which Newton steps take over
NEWTON_GAIN = 0.9  # maximum ratio of the gradient norms after and before a Newton step that is accepted
EXACT = 1e-10  # relative residual of the linear solver of a Newton step
INEXACT = 1e-3  # the same for more than two fields per sample, as long as the steps are accepted
FIRST_BOUND = 1.0  # first bound on the curvature, for proximal gradient steps
BOUND_GROWTH = 2.0  # factor of the bound when a step overshoots
BOUND_DECAY = 0.9  # factor of the bound at each other step, so that steps become longer
UNMOVED = 1e-6  # relative difference of fields up to which a proximal step has not moved them
ROUNDING = 1e-14  # relative rounding error of ε_t


@dataclass(frozen=True)
class LagrangianSettings:
    """Settings of the augmented Lagrangian; distances of z and X̃Q are in units of the fields."""

    first_V: float = 0.03  # V in the first round, in units of the ratio of fields and slopes
    smaller: float = 0.3  # factor of V after a round that reduces the distance by less than this factor
    max_rounds: int = 40
    max_steps: int = 50  # Newton steps of a round: more are needed only if kinks are curved, as for norms
    together: float = 1e-9  # distance at which the rounds end
    gradient: float = 0.1  # gradient norm at which a round ends, in units of the distance
    accurate: float = 1e-6  # relative residual of the linear solver of a Newton step


LAGRANGIAN = LagrangianSettings()
Risk = Callable[..., RiskAtPoint]
Visit = Callable[[RiskAtPoint], None]


@dataclass(frozen=True, eq=False)
class SettlingHistory(Result):
    """Training loss and gradient norm along the descent of the settling phase."""

    train_loss: np.ndarray  # (K + 1,) ε_t at the start of the descent and after each of its K steps
    gradient_norm: np.ndarray  # (K + 1,) ‖∇R‖_F/(λ√d) at the start of the descent and after each of its K steps


class Settled(NamedTuple):
    """End of a descent."""

    Q: np.ndarray  # (d, r) weights
    gradient_norm: float  # ‖∇R‖_F/(λ√d) at Q
    n_iter: int  # number of L-BFGS or proximal gradient steps, plus Newton steps
    train_loss: float  # ε_t at Q
    history: SettlingHistory
    at: RiskAtPoint


def settle(
    data: Dataset, risk: str, Q: np.ndarray, tol: float, callback: Visit = lambda at: None, max_steps: int = MAX_STEPS
) -> Settled:
    """Minimize the risk from Q until ‖∇R‖_F/(λ√d) <= tol, or until Newton steps no longer lower the gradient norm.

    `callback` is called with the risk at the start and after each step.
    """
    descend, handover = minimize_by_lbfgs if data.penalty.smooth else proximal_gradient, HANDOVER * small_unit(data)
    if has_kinks(data.loss, data.terms(risk).params) and has_lagrangian(data):
        descend, handover = augmented_lagrangian, tol
    losses, norms, latest = list[float](), list[float](), list[tuple[np.ndarray, RiskAtPoint]]()

    def evaluate(Q: np.ndarray, **options: Any) -> RiskAtPoint:
        if options or not latest or latest[0][0] is not Q:
            latest[:] = [(Q, risk_at(data, Q, risk, **options))]
        return latest[0][1]

    def visit(at: RiskAtPoint) -> None:
        losses.append(at.train_loss)
        norms.append(at.gradient_norm)
        callback(at)

    visit(evaluate(Q))
    best, n_iter = Q, 0
    while True:
        best, more = descend(data, evaluate, best, max(tol, handover), max_steps - n_iter, visit)
        n_iter += more
        at, accuracy = evaluate(best), EXACT if data.n_tokens * data.rank <= 2 else INEXACT
        while at.gradient_norm > tol and n_iter < max_steps:
            _, free, curvature = on_kinks(data.penalty, best, at.smooth)  # entries at kinks are not moved
            step, _ = solve_hessian(data, at, -at.gradient, free, curvature, accuracy)
            trial_at = evaluate(trial := best + step)
            n_iter += 1
            if trial_at.gradient_norm < NEWTON_GAIN * at.gradient_norm:
                best, at = trial, trial_at
                visit(at)
            elif accuracy <= EXACT:
                break
            else:
                accuracy = EXACT
        if at.gradient_norm <= tol or handover <= tol or n_iter >= max_steps:
            history = SettlingHistory(np.array(losses), np.array(norms))
            return Settled(best, at.gradient_norm, n_iter, at.train_loss, history, at)
        handover *= 0.1  # Newton steps failed far from the minimum, or before all entries at kinks had been identified


def minimize_by_lbfgs(
    data: Dataset, evaluate: Risk, Q: np.ndarray, tol: float, max_iter: int, visit: Visit = lambda at: None
) -> tuple[np.ndarray, int]:
    """Minimize the risk by L-BFGS (Byrd et al., 1995); return weights and the number of iterations.

    The first step has length 1, so that weights have units: `small_unit`, and one for each column if convex.
    """
    from scipy.optimize import minimize

    shape, latest, unit = Q.shape, list[RiskAtPoint](), small_unit(data)
    gain = 1.0 if unit == 1.0 else data.penalty.strength * unit**2  # unit of the risk
    tokens = data.tokens[:: data.n_samples // 1000 + 1] + data.positions if is_convex(data) else np.ones((1, 1, 1))
    curvatures = data.penalty.strength + data.alpha * (tokens**2).mean(axis=0).sum(axis=0)[:, None]
    units = unit * np.sqrt(np.median(curvatures) / curvatures)

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = evaluate(x.reshape(shape) * units)
        latest[:] = [at]
        return at.train_loss * data.dim / gain, (at.gradient * (units / gain)).ravel()

    gtol = tol * data.penalty.strength * np.sqrt(data.dim / Q.size) * (units.min() / gain)
    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "maxcor": 20, "ftol": 0.0, "gtol": gtol}
    with one_thread():
        minimum = minimize(
            value_and_gradient, (Q / units).ravel(), jac=True, method="L-BFGS-B", options=options,
            callback=lambda _: visit(latest[0]),  # a line search accepts its last point
        )  # fmt: skip
    return minimum.x.reshape(shape) * units, int(minimum.nit)


def proximal_gradient(
    data: Dataset, evaluate: Risk, Q: np.ndarray, tol: float, max_iter: int, visit: Visit = lambda at: None
) -> tuple[np.ndarray, int]:
    """Minimize the risk by accelerated proximal gradient steps; return the weights of smallest gradient norm.

    This is FISTA (Beck and Teboulle, 2009) with restarts (O'Donoghue and Candès, 2015). From y, an extrapolation of the
    last two iterates, the step is x = argmin r(x) + ∇f(y)·x + c‖x − y‖²/2, with r the penalty, f the risk without
    penalty and c a bound on the curvature of f along the step. Momentum is reset if the risk increases in its
    direction. The second value is the number of iterations.
    """
    penalty, x, y = data.penalty, Q, Q
    momentum, bound = 1.0, FIRST_BOUND
    best, best_norm = Q, np.inf
    for n_iter in range(max_iter):
        here = evaluate(y)
        value = data.dim * here.train_loss - penalty_total(penalty, y)
        rounding = ROUNDING * data.dim * abs(value)
        while True:
            moved, _ = proximal_map(penalty, bound * y - here.smooth, bound)
            there = evaluate(moved)
            step = moved - y
            allowed = value + np.sum(here.smooth * step) + 0.5 * bound * np.sum(step**2)
            if data.dim * there.train_loss - penalty_total(penalty, moved) <= allowed + rounding:
                break
            bound *= BOUND_GROWTH
        visit(there)
        if there.gradient_norm < best_norm:
            best, best_norm = moved, there.gradient_norm
        if there.gradient_norm <= tol:
            return best, n_iter + 1
        if np.sum((y - moved) * (moved - x)) > 0:
            momentum = 1.0
        after = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        y = moved + (momentum - 1) / after * (moved - x)
        x, momentum, bound = moved, after, BOUND_DECAY * bound
    return best, max_iter


def has_lagrangian(data: Dataset) -> bool:
    """Return whether `augmented_lagrangian` minimizes risks whose losses have kinks."""
    return bool(data.penalty.smooth and is_convex(data))


def augmented_lagrangian(
    data: Dataset, evaluate: Risk, Q: np.ndarray, tol: float, max_iter: int, visit: Visit = lambda at: None
) -> tuple[np.ndarray, int]:
    """Minimize a convex risk whose losses have kinks; return weights and the number of Newton steps.

    Fields z and X̃Q are separate, with multipliers g. A round minimizes r(Q) + Σ M_V(X̃Q − V g), with the Moreau envelope
    M_V of the loss, by Newton steps (Li, Sun and Toh, 2018); the next multipliers are the forces at its end.
    """

    def state_at(Q: np.ndarray, v: float, slopes: np.ndarray) -> GampState:
        return GampState(Q, np.tile(v * np.eye(data.rank), (data.n_sources, 1, 1)), -v * slopes)

    at, n_iter, apart = evaluate(Q), 0, np.inf
    slopes, fields, unbounded = at.loss_gradients, data.matrix.fields, unpenalized(data.penalty, Q)
    best, best_norm, best_loss = state_at(Q, 1.0, slopes), at.gradient_norm, at.train_loss
    size, slope = np.sqrt([np.mean(at.z**2), np.mean(slopes**2)]) + np.finfo(float).tiny
    v = LAGRANGIAN.first_V * (size + np.mean(np.abs(at.losses)) / slope) / slope  # labels may be far from the fields

    def denoised(Q: np.ndarray) -> tuple[Denoised, float, float]:
        z, known = fields(Q), (at.losses, slopes, at.hessians)
        out = denoise_at(data, replace(at, z=z, known=known), state_at(Q, v, slopes).V, jacobian=True)
        return out, float(out.moreau.sum() + penalty_total(data.penalty, Q)), float(np.abs(out.z - z).max() / size)

    for _ in range(LAGRANGIAN.max_rounds):
        before, t, ended = apart, 1.0, False
        out, value, apart = denoised(Q)
        reach = v * np.sqrt(np.mean(slopes**2))  # of the envelopes
        for _ in range(min(LAGRANGIAN.max_steps, max_iter - n_iter)):
            smooth = data.matrix.back_project(-out.g)
            gradient = smallest_subgradient(data.penalty, Q, smooth)
            goal = LAGRANGIAN.gradient * np.clip(apart, tol, LAGRANGIAN.gradient)
            ended = gradient_norm(data, gradient) <= goal
            if ended or t < KINKS.shortest:
                break
            _, free, curvature = on_kinks(data.penalty, Q, smooth)
            # no envelope may be curved along weights without a penalty, whose steps are bounded
            curvature = curvature + unbounded * np.linalg.norm(gradient[unbounded]) / (np.sqrt(data.dim) * reach)
            curved = replace(at, known=(at.losses, slopes, (np.eye(out.jacobian.shape[1]) - out.jacobian) / v))
            step, _ = solve_hessian(data, curved, -gradient, free, curvature, LAGRANGIAN.accurate)
            t, (out, value, apart) = search_line(denoised, Q, step, value)
            n_iter += 1
            Q = Q + t * step
        state = state_at(Q, v, slopes := -out.g)
        here = evaluate(Q, state=state, rounds=1)
        visit(here)
        fall, rounding = best_loss - here.train_loss, KINKS.noise * abs(best_loss)
        if fall > rounding or (fall >= -rounding and here.gradient_norm <= max(best_norm, tol)):
            best, best_norm, best_loss = state, here.gradient_norm, here.train_loss
        if apart <= LAGRANGIAN.together or t < KINKS.shortest:
            break
        v *= 1 / LAGRANGIAN.smaller if not ended else 1.0 if apart < LAGRANGIAN.smaller * before else LAGRANGIAN.smaller
    evaluate(best.Q, state=best)  # from the multipliers; the caller knows these weights
    return best.Q, n_iter


def is_fixed_point(data: Dataset, at: RiskAtPoint, V: np.ndarray, samples: np.ndarray | None = None) -> bool:
    """Return whether a critical point is a fixed point of GAMP, if each sample keeps its local proximal minimum.

    Eq. :eq:`critical`. V is halved until the proximal objective of every sample is convex at z; then the proximal step
    at ω = z − V g must return z, up to a relative difference of `UNMOVED`. `samples` are the indices of the samples
    that are checked; None for all.
    """
    hessians = at.hessians if samples is None else at.hessians[samples]
    lowest = float((hessians if hessians.shape[1] == 1 else np.linalg.eigvalsh(hessians)).min())
    while np.linalg.eigvalsh(V).max() * max(-lowest, 0.0) > 0.9:
        V = 0.5 * V
    out = denoise_at(data, at, V, samples=samples, hold=True)
    z = at.z if samples is None else at.z[samples]
    residual = np.abs(out.z - z).max() / (np.abs(at.z).max() + np.finfo(float).tiny)
    return bool(out.solved.all() and residual < UNMOVED)
