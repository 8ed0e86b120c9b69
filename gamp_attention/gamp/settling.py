"""Settling: drive a state on which message passing cycles to a critical point, and verify it.

Fixed points of GAMP do not depend on V or A, so another descent on the same compiled risk may finish the work: L-BFGS,
or accelerated proximal gradient steps where the penalty has kinks; then Newton steps by MINRES that must lower
the gradient. The end is checked to be a fixed point of GAMP: for a V that is small enough, the proximal step at
ω = z − V g holds z = X̃Q.

Descent from a saddle of the risk along its direction of lowest curvature.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, denoise_at, hessian_product, risk_at
from gamp_attention.penalties.matrix import on_kinks, penalty_total, proximal_map
from gamp_attention.results import Result, shown


class SettlingSettings(NamedTuple):
    """Settings of the descents."""

    handover: float = 1e-5  # gradient norm at which Newton steps take over
    newton_gain: float = 0.9  # of the gradient norm, at most, after a Newton step that is taken
    exact: float = 1e-10  # relative residual of a Newton step
    inexact: float = (
        1e-3  # relative residual for more than two fields per sample, while such steps reduce the gradient norm
    )
    first_bound: float = 1.0  # on the curvature, for proximal gradient steps
    bound_growth: float = 2.0  # where a step overshoots
    bound_decay: float = 0.9  # at each other step
    rounding: float = 1e-14  # error of ε_t


SETTLING = SettlingSettings()
Risk = Callable[[np.ndarray], RiskAtPoint]
Visit = Callable[[RiskAtPoint], None]


@dataclass(frozen=True, eq=False)
class SettlingHistory(Result):
    """Training loss and gradient norm along the descent of the settling phase.

    Attributes
    ----------
    train_loss : (K + 1,) ε_t at the start of the descent and after each of its K steps.
    gradient_norm : (K + 1,) ‖∇R‖_F/(λ√d) at the start of the descent and after each of its K steps.
    """

    train_loss: np.ndarray
    gradient_norm: np.ndarray


@shown
class Settled(NamedTuple):
    """End of the settling phase."""

    Q: np.ndarray  # (d, r) weights
    gradient_norm: float  # ‖∇R‖_F/(λ√d) at Q
    n_iter: int  # number of L-BFGS or proximal gradient steps, plus Newton steps
    train_loss: float  # ε_t at Q
    history: SettlingHistory


def settle(
    data: Dataset, risk: str, Q: np.ndarray, tol: float, max_iter: int = 5000, callback: Visit | None = None
) -> Settled:
    """Minimise the risk from Q until ‖∇R‖_F/(λ√d) <= tol or nothing improves.

    `callback` is called with the risk at the start and after each step.
    """
    smooth = data.penalty.smooth
    descend = quasi_newton if smooth else proximal_gradient
    losses, norms = list[float](), list[float]()

    def evaluate(Q: np.ndarray) -> RiskAtPoint:
        return risk_at(data, Q, risk)

    def visit(at: RiskAtPoint) -> None:
        losses.append(at.train_loss)
        norms.append(at.gradient_norm)
        if callback is not None:
            callback(at)

    visit(evaluate(Q))
    best, n_iter, handover = Q, 0, SETTLING.handover
    while True:
        best, more = descend(data, evaluate, best, max(tol, handover), max_iter - n_iter, visit)
        n_iter += more
        at = risk_at(data, best, risk)
        accuracy = SETTLING.exact if data.n_tokens * data.rank <= 2 else SETTLING.inexact
        while at.gradient_norm > tol and n_iter < max_iter:
            trial = best + newton_step(data, at, best, accuracy)
            trial_at = risk_at(data, trial, risk)
            n_iter += 1
            if not trial_at.gradient_norm < SETTLING.newton_gain * at.gradient_norm:
                if accuracy <= SETTLING.exact:
                    break
                accuracy = SETTLING.exact
                continue
            best, at = trial, trial_at
            visit(at)
        if smooth or at.gradient_norm <= tol or handover <= tol or n_iter >= max_iter:
            history = SettlingHistory(np.array(losses), np.array(norms))
            return Settled(best, at.gradient_norm, n_iter, at.train_loss, history)
        handover *= 0.1  # the entries at kinks were not all known yet


def quasi_newton(
    data: Dataset, evaluate: Risk, Q: np.ndarray, tol: float, max_iter: int, visit: Visit | None = None
) -> tuple[np.ndarray, int]:
    """Minimise a risk of these data by L-BFGS; return weights and iterations."""
    from scipy.optimize import minimize

    shape, latest = Q.shape, list[RiskAtPoint]()

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = evaluate(x.reshape(shape))
        latest[:] = [at]
        return at.train_loss * data.dim, at.gradient.ravel()

    def accepted(_: np.ndarray) -> None:  # the last point of a line search is the one that is accepted
        if visit is not None:
            visit(latest[0])

    gtol = tol * data.penalty.strength * np.sqrt(data.dim / Q.size)
    options = {"maxiter": max_iter, "maxfun": 2 * max_iter, "maxcor": 20, "ftol": 0.0, "gtol": gtol}
    found = minimize(value_and_gradient, Q.ravel(), jac=True, method="L-BFGS-B", callback=accepted, options=options)
    return found.x.reshape(shape), int(found.nit)


def proximal_gradient(
    data: Dataset, evaluate: Risk, Q: np.ndarray, tol: float, max_iter: int, visit: Visit | None = None
) -> tuple[np.ndarray, int]:
    """Accelerated proximal gradient steps (FISTA with restarts): the weights of smallest gradient, and iterations.

    From y, between the last two iterates and beyond, the step is x = argmin r(x) + ∇f(y)·x + c‖x − y‖²/2 with f the
    risk without penalty and c a bound on its curvature along the step. Momentum is dropped where it points uphill.
    """
    penalty, x, y = data.penalty, Q, Q
    momentum, bound = 1.0, SETTLING.first_bound
    best, best_norm = Q, np.inf
    for n_iter in range(max_iter):
        here = evaluate(y)
        value = data.dim * here.train_loss - penalty_total(penalty, y)
        rounding = SETTLING.rounding * data.dim * abs(value)
        while True:
            moved, _ = proximal_map(penalty, bound * y - here.smooth, bound)
            there = evaluate(moved)
            step = moved - y
            allowed = value + np.sum(here.smooth * step) + 0.5 * bound * np.sum(step**2)
            if data.dim * there.train_loss - penalty_total(penalty, moved) <= allowed + rounding:
                break
            bound *= SETTLING.bound_growth
        if visit is not None:
            visit(there)
        if there.gradient_norm < best_norm:
            best, best_norm = moved, there.gradient_norm
        if there.gradient_norm <= tol:
            return best, n_iter + 1
        if np.sum((y - moved) * (moved - x)) > 0:
            momentum = 1.0
        after = 0.5 * (1 + np.sqrt(1 + 4 * momentum**2))
        y = moved + (momentum - 1) / after * (moved - x)
        x, momentum, bound = moved, after, SETTLING.bound_decay * bound
    return best, max_iter


def newton_step(data: Dataset, at: RiskAtPoint, Q: np.ndarray, rtol: float) -> np.ndarray:
    """−(∇²R)⁻¹∇R by MINRES, which a flat direction (a rotation of the columns of Q) does not hinder.

    Its iterations end at a relative residual of `rtol`. Entries of Q at a kink of the penalty that satisfy
    its optimality condition are not moved.
    """
    from scipy.sparse.linalg import LinearOperator, minres

    shape = at.gradient.shape
    _, free, curvature = on_kinks(data.penalty, Q, at.smooth)
    operator = LinearOperator(
        (at.gradient.size, at.gradient.size),
        matvec=lambda x: (free * hessian_product(data, at, free * x.reshape(shape), curvature)).ravel(),
        dtype=float,
    )
    step, _ = minres(operator, -(free * at.gradient).ravel(), rtol=rtol, maxiter=2000)
    return step.reshape(shape)


def is_fixed_point(
    data: Dataset, at: RiskAtPoint, V: np.ndarray, tol: float = 1e-6, samples: np.ndarray | None = None
) -> bool:
    """Whether a critical point is a fixed point of GAMP with its local minima held.

    Eq. :eq:`critical`.

    V is halved until no sample's proximal objective is concave at z; ω = z − V g then has z for its proximal point.
    `samples` are the indices of the samples that are checked (default: all).
    """
    samples = samples if samples is None or len(samples) else np.zeros(1, dtype=int)
    lowest = float(np.linalg.eigvalsh(at.hessians if samples is None else at.hessians[samples]).min())
    while np.linalg.eigvalsh(V).max() * max(-lowest, 0.0) > 0.9:
        V = 0.5 * V
    out = denoise_at(data, at, V, samples=samples, hold=True)
    z = at.z if samples is None else at.z[samples]
    residual = np.abs(out.z - z).max() / (np.abs(at.z).max() + np.finfo(float).tiny)
    return bool(out.solved.all() and residual < tol)


@dataclass(frozen=True)
class EscapeSettings:
    """Settings of the line search along the direction of lowest curvature."""

    step: float = 1e-2  # root mean square of the first change of the weights; a teacher's weights have 1
    growth: float = 2.0  # factor of the step while the risk falls; if the first step fails, divided by its square
    max_trials: int = 40  # maximum number of steps tried in each of the two senses of the direction
    most: int = 20  # maximum number of saddles that one run leaves


ESCAPE = EscapeSettings()


def way_down(data: Dataset, risk: str, Q: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the weights of lowest training loss on the line Q ± s v, and their training loss.

    v is the direction of lowest curvature (d, r); s is doubled while the risk falls. Q itself is returned if no step
    lowers the risk.
    """
    at = risk_at(data, Q, risk)
    best, lowest = Q, at.train_loss
    for side in (1.0, -1.0):
        size, falling, last = ESCAPE.step * np.sqrt(Q.size), False, at.train_loss
        for _ in range(ESCAPE.max_trials):
            trial = Q + side * size * direction
            loss = risk_at(data, trial, risk).train_loss
            if loss < last:
                falling, last = True, loss
                if loss < lowest:
                    best, lowest = trial, loss
                size *= ESCAPE.growth
            elif falling:
                break
            else:
                size /= ESCAPE.growth**2
    return best, lowest
