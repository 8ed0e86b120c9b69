"""Newton's method on a convex risk: a start of message passing that is already the minimum.

A convex risk has one minimum, and message passing reaches it from any start. If the Hessian of the d r weights is
small, Newton's method reaches it in the time of a few iterations, also for correlated columns, for which message
passing takes many. Message passing from there verifies the minimum: the gradient norm at its first iteration is below
the tolerance, and its proximal steps return the fields.

Each step minimises the risk with the losses replaced by their quadratic model, g·P + ½ PᵀHP for a step P:

- for weights without kinks of the penalty r: (H + r'') P = −∇R, by a Cholesky factor;
- for a penalty with kinks: coordinate descent on the model (Friedman, Hastie and Tibshirani, 2010), which makes this a
  proximal Newton method (Lee, Sun and Saunders, 2014). Once the descent has identified the weights at kinks, the linear
  system of the other weights gives the next steps.

Steps are halved until the risk falls. A Hessian takes as long as many gradients, so it is used for several steps, as
long as they reduce the gradient norm. For a smooth penalty it is meanwhile updated by the changes of the gradient, as
in the L-BFGS method (Nocedal, 1980).
"""

from typing import Any

import numpy as np

from gamp_attention._core.compiled import kernel
from gamp_attention._core.numerics import ignore_float_errors, one_thread
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.hessian import risk_hessian
from gamp_attention.data.risk import RiskAtPoint, is_convex, risk_at, susceptibility
from gamp_attention.denoisers.input import initial_variances
from gamp_attention.gamp.step import GampState
from gamp_attention.losses.glm import SquaredLoss
from gamp_attention.models.sources import weighted
from gamp_attention.penalties.base import penalty_prox
from gamp_attention.penalties.matrix import on_kinks, penalty_total
from gamp_attention.penalties.standard import ScaledPenalty

MAX_WEIGHTS = 600  # maximum d r for which Newton steps take less time than message passing
MAX_WEIGHTS_SQUARED = 1200  # the same for the squared loss, for which one Hessian is enough
MAX_STEPS = 50  # default maximum number of Newton steps
KEEP_BELOW = 0.7  # ratio of the gradient norms after and before a step, at or below which the Hessian is kept
GAIN = 0.5  # the same ratio, at or below which a step is accepted even if the risk does not fall, by rounding errors
SUFFICIENT_DECREASE = 1e-4  # decrease of the risk that a step must reach, in units of the predicted decrease
SHORTEST = 1e-4  # fraction of a step below which the line search fails
USEFUL = 1e-2  # ratio of the gradient norms after and before Newton's method, above which it has failed
MAX_SWEEPS = 2000  # maximum number of sweeps of a coordinate descent
SWEEP_TOL = 1e-14  # decrease of the model at one weight, relative to the largest so far, that ends the descent
MIN_CURVATURE = 1e-3  # curvature of the model for weights that affect no field, in units of the penalty's strength


def can_start(data: Dataset) -> bool:
    """Return whether `newton_start` accepts the data, and takes less time than message passing usually does."""
    limit = MAX_WEIGHTS_SQUARED if isinstance(data.student, SquaredLoss) else MAX_WEIGHTS
    has_kernel = data.penalty.smooth or isinstance(data.penalty, ScaledPenalty)
    return is_convex(data) and has_kernel and data.rows_here and data.dim * data.rank <= limit


@ignore_float_errors
def newton_start(data: Dataset, tol: float, max_steps: int = MAX_STEPS) -> tuple[GampState | None, int]:
    """Return the state of message passing at the minimum of a convex risk, and the number of Newton steps.

    The steps end at a gradient norm of at most `tol`, or if rounding errors prevent any further decrease. The state is
    None if Newton's method fails, for example because the risk has no minimum.
    """
    Q = np.zeros((data.dim, data.rank))
    at = risk_at(data, Q, "exact")
    first, n_steps, model, identified = at.gradient_norm, 0, None, data.penalty.smooth
    while at.gradient_norm > tol and n_steps < max_steps:
        fresh = model is None
        model = _Model(data, at) if model is None else model
        # if weights are at kinks, a shorter step of the others is no better: the descent then finds the kinks again
        shortest = SHORTEST if data.penalty.smooth else 1.0
        end = _search_line(data, at, Q, model.solve(at, Q), shortest) if identified else None
        if end is None and not data.penalty.smooth:
            end = _search_line(data, at, Q, model.sweep(at, Q), SHORTEST)
        n_steps, identified = n_steps + 1, True
        if end is None and fresh:
            break
        if end is None or end[1].gradient_norm > KEEP_BELOW * at.gradient_norm:
            model = None
        elif data.penalty.smooth:
            model.add_pair(end[0] - Q, end[1].gradient - at.gradient)
        Q, at = (Q, at) if end is None else end
    if not at.gradient_norm <= max(tol, USEFUL * first):
        return None, n_steps
    V = susceptibility(data, at, Q, quick=True)
    if not np.isfinite(V).all():
        V = initial_variances(data.spectra.mean(axis=1), data.penalty.strength, data.rank)
    return GampState(Q, V, weighted(data.groups, V, -at.loss_gradients), at.z.copy()), n_steps


class _Model:
    """The Hessian H of the losses at some weights; its rows and columns are ordered column after column of Q."""

    def __init__(self, data: Dataset, at: RiskAtPoint) -> None:
        self._penalty, self._shape = data.penalty, (data.dim, data.rank)
        self._H = risk_hessian(data, at.hessians)
        self._system: tuple[np.ndarray, np.ndarray, Any] | None = None  # free weights, curvatures and factor
        self._pairs = list[tuple[np.ndarray, np.ndarray]]()

    def add_pair(self, step: np.ndarray, change: np.ndarray) -> None:
        """Correct the later solutions of a smooth problem by the change (d, r) of the gradient along a step."""
        s, y = step.T.ravel(), change.T.ravel()
        if y @ s > 0:
            self._pairs.append((s, y))

    def solve(self, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray | None:
        """Return the step P (d, r) to the minimum of the model over the weights that are not at kinks.

        The other weights move to their kinks. Return None if the linear system is not positive definite.
        """
        from scipy.linalg import LinAlgError, cho_factor, cho_solve

        moved, free, curvature = (array.T.ravel() for array in on_kinks(self._penalty, Q, at.smooth))
        movable = np.flatnonzero(free)
        with one_thread():
            try:
                if self._system is None or not all(map(np.array_equal, self._system, (free, curvature))):
                    H = self._H.copy() if len(movable) == len(free) else self._H[np.ix_(movable, movable)]
                    H[np.diag_indices(len(H))] += curvature[movable]
                    self._system = free, curvature, cho_factor(H, overwrite_a=True, check_finite=False)
            except LinAlgError:
                return None
            slope, weights = at.gradient.T.ravel(), list[float]()
            for s, y in reversed(self._pairs):  # the recursion of Nocedal (1980)
                weights.append((s @ slope) / (y @ s))
                slope = slope - weights[-1] * y
            step = moved - Q.T.ravel()
            step[movable] -= cho_solve(self._system[2], slope[movable], check_finite=False)
            for (s, y), weight in zip(self._pairs, reversed(weights), strict=True):
                step -= s * (weight + (y @ step) / (y @ s))
        return step.reshape(self._shape[::-1]).T

    def sweep(self, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
        """Return the step P (d, r) to the minimum of the model and a `ScaledPenalty`, by coordinate descent."""
        penalty, r = self._penalty, self._shape[1]
        x, slope = Q.T.ravel(), at.smooth.T.ravel()
        rows = (np.tile(array, r) for array in (penalty.units, penalty.scales == 0, penalty.ridge))
        _descend(penalty.penalty, self._H, slope, x, *rows, MIN_CURVATURE * penalty.strength, SWEEP_TOL, MAX_SWEEPS)
        return x.reshape(self._shape[::-1]).T - Q


def _search_line(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, P: np.ndarray | None, shortest: float
) -> tuple[np.ndarray, RiskAtPoint] | None:
    """Return weights Q + t P and the risk there, for the first t of 1, 1/2, 1/4, ... that is accepted; None if none is.

    A step is accepted if the risk falls by a fraction of the predicted decrease, or the gradient norm falls by half.
    """
    if P is None or not np.isfinite(P).all():
        return None
    penalty, t = data.penalty, 1.0
    slope = float(np.sum(at.smooth * P)) + penalty_total(penalty, Q + P) - penalty_total(penalty, Q)
    while t >= shortest:
        there = risk_at(data, Q + t * P, "exact")
        falls = slope < 0 and data.dim * (there.train_loss - at.train_loss) <= SUFFICIENT_DECREASE * t * slope
        if falls or there.gradient_norm <= GAIN * at.gradient_norm:
            return Q + t * P, there
        t *= 0.5
    return None


@kernel
def _descend(penalty, H, slope, x, units, bare, ridge, lowest, tol, max_sweeps):
    """Minimise slope·P + ½ PᵀHP + Σ_i [ρ(c_i y_i) + ε_i y_i²/2] over y = x + P by coordinate descent; y replaces x.

    `units` are c_i, `bare` marks coordinates without ρ, and `ridge` are ε_i; `slope` becomes slope + H P. Sweeps over
    the coordinates that the last whole sweep has moved follow each whole sweep. `lowest` is a lower bound of the
    curvatures that are used.
    """
    k, largest, whole = x.shape[0], 0.0, True
    moves = np.ones(k, dtype=np.bool_)
    for _ in range(max_sweeps):
        change = 0.0
        for i in range(k):
            if not (whole or moves[i]):
                continue
            a = max(H[i, i] + ridge[i], lowest)
            b = (a - ridge[i]) * x[i] - slope[i]
            new = b / a
            if not bare[i]:
                new, _ = penalty_prox(penalty, b / units[i], a / units[i] ** 2)
                new /= units[i]
            step = new - x[i]
            moves[i] = step != 0.0
            if step != 0.0:
                x[i] = new
                for j in range(k):
                    slope[j] += step * H[i, j]
                change = max(change, a * step * step)
        largest = max(largest, change)
        if change > tol * largest:
            whole = False
        elif whole:
            break
        else:
            whole = True
