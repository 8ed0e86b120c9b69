"""Newton's method on a convex risk: a start of message passing that is already the minimum.

A convex risk has one minimum, and message passing reaches it from any start. If the Hessian of the d r weights is
small, Newton's method reaches it in the time of a few iterations, also for correlated columns, for which message
passing takes many. Message passing from there verifies the minimum: the gradient norm at its first iteration is below
the tolerance, and its proximal steps return the fields.

Each step minimizes the risk with the losses replaced by their quadratic model, g·P + ½ PᵀHP for a step P:

- for weights without kinks of the penalty r: (H + r'') P = −∇R, by a Cholesky factor;
- for a penalty with kinks: coordinate descent on the model (Friedman, Hastie and Tibshirani, 2010), which makes this a
  proximal Newton method (Lee, Sun and Saunders, 2014). Once the descent has identified the weights at kinks, the linear
  system of the other weights gives the next steps. The model has only the weights whose subgradient is not zero, and
  further weights are added if their subgradients become the larger part.

Steps are halved until the risk falls. A Hessian takes as long as many gradients, so it is used for several steps, as
long as they reduce the gradient norm. For a smooth penalty it is meanwhile updated by the changes of the gradient, as
in the L-BFGS method (Nocedal, 1980).
"""

from collections.abc import Callable
from copy import copy
from math import inf
from typing import Any

import numpy as np

from gamp_attention._core.compiled import kernel
from gamp_attention._core.numerics import ignore_float_errors, one_thread
from gamp_attention.data.curvature import risk_hessian
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, is_convex, risk_at
from gamp_attention.data.susceptibility import susceptibility
from gamp_attention.denoisers.input import initial_variances
from gamp_attention.gamp.step import GampState
from gamp_attention.losses.glm import SquaredLoss
from gamp_attention.models.sources import apply_by_source
from gamp_attention.penalties.base import penalty_prox
from gamp_attention.penalties.columns import has_spheres
from gamp_attention.penalties.standard import ScaledPenalty, on_kinks, penalty_total

MAX_DENSE = 3000  # maximum d r for which a Hessian is computed
MAX_KINKS = 1000  # maximum d r for penalties with kinks, for which every step needs a Hessian
MAX_STEPS = 200  # default maximum number of Newton steps
MIN_USE = 0.25  # minimum number of steps with a Hessian, in units of the number of steps that take its time
GAIN = 0.5  # ratio of the gradient norms after and before a step, at or below which the step is accepted in any case
ROUNDING = 1e-14  # relative change of the risk that counts as a rounding error: the gradient norm then decides
SUFFICIENT_DECREASE = 1e-4  # decrease of the risk that a step must reach, in units of the predicted decrease
SHORTEST = 1e-4  # fraction of a step below which the line search fails
USEFUL = 1e-2  # ratio of the gradient norms after and before Newton's method, above which it has failed
TYPICAL = 30  # typical number of steps without a Hessian
MEMORY = 8  # number of previous steps that update a Hessian; more take longer and save few steps
MOST = 0.7  # fraction of the weights above which a model for a penalty with kinks has all weights
MAX_SWEEPS = 2000  # maximum number of sweeps of a coordinate descent
SWEEP_TOL = 1e-14  # decrease of the model at one weight, relative to the largest so far, that ends the descent
MIN_CURVATURE = 1e-3  # curvature of the model for weights that affect no field, in units of the penalty's strength
# costs of operations on rows, of which only the ratios matter
PRODUCT = 0.15e-9  # seconds of a multiplication and addition of a product with the tokens
DENSE = 0.05e-9  # seconds of a multiplication and addition of a product of matrices
COPY = 1e-9  # seconds of the scaling of an entry of the tokens
CALL = 50e-9  # seconds of the derivatives of the loss of a sample
STEP = 3e-4  # seconds of a step in addition


def can_start(data: Dataset) -> bool:
    """Return whether `newton_start` accepts the data, and takes less time than message passing usually does."""
    smooth, size = data.penalty.smooth, data.dim * data.rank
    accepted = smooth or (isinstance(data.penalty, ScaledPenalty) and size <= MAX_KINKS)
    return is_convex(data) and accepted and not has_spheres(data.penalty) and data.rows_here


@ignore_float_errors
def newton_start(data: Dataset, tol: float, max_steps: int = MAX_STEPS) -> tuple[GampState | None, RiskAtPoint, int]:
    """Return the state of message passing at the minimum of a convex risk, the risk, and the number of Newton steps.

    The steps end at a gradient norm of at most `tol`, or if rounding errors prevent any further decrease. The state is
    None if Newton's method fails, for example because the risk has no minimum.
    """
    Q = np.zeros((data.dim, data.rank))
    at = risk_at(data, Q, "exact")
    smooth, quadratic, n_cheap = data.penalty.smooth, isinstance(data.student, SquaredLoss), _steps_per_hessian(data)
    # the Hessian of the squared loss is the same at all weights, so that one step is enough
    begin, since, model, identified = at.gradient_norm, 0, None, smooth
    first, n_steps, dense = begin, 0, not smooth or (quadratic and n_cheap < TYPICAL)
    while at.gradient_norm > tol and n_steps < max_steps:
        if model is None:
            model = _Model(data, at, dense, None if smooth else _working_set(data, at, Q))
            begin, since = at.gradient_norm, 0
        elif not smooth and model.misses_most(at):
            model, identified = model.extend(data, at, _working_set(data, at, Q)), False
        # if weights are at kinks, a shorter step of the others is no better: the descent then finds the kinks again
        end = _search_line(data, at, Q, model.solve(at, Q), SHORTEST if smooth else 1.0) if identified else None
        if end is None and not smooth:
            end = _search_line(data, at, Q, model.sweep(at, Q), SHORTEST)
        n_steps, since, identified = n_steps + 1, since + 1, True
        if end is None:
            if (since == 1 and dense) or n_cheap == inf:
                break
            model, dense = None, True
            continue
        before, (Q, at), moved = at, end, end[0] - Q
        if smooth:
            model.add_pair(moved, at.gradient - before.gradient)
        if since >= MIN_USE * n_cheap and _steps_left(begin, at.gradient_norm, since, tol) > n_cheap + 3:
            model, dense = None, True  # a new Hessian takes less time than the remaining steps
    if not at.gradient_norm <= max(tol, USEFUL * first):
        return None, at, n_steps
    V = susceptibility(data, at, Q, quick=True)
    if not np.isfinite(V).all():
        V = initial_variances(data.spectra.mean(axis=1), data.penalty.strength, data.rank)
    direction = model.lowest_direction(at, Q) if quadratic and model is not None else None
    return GampState(Q, V, apply_by_source(data.groups, V, -at.loss_gradients), at.z.copy(), direction), at, n_steps


def _steps_left(begin: float, now: float, n_steps: int, tol: float) -> float:
    """Return the number of steps to `tol` if the gradient norm falls at the rate of n_steps from `begin` to `now`."""
    return float(np.log(now / tol) / max(np.log(begin / now) / n_steps, 1e-9))


def _steps_per_hessian(data: Dataset) -> float:
    """Return the number of steps without a Hessian that take its time, from the numbers of operations.

    It is infinite if the Hessian has too many entries.
    """
    n, d, r = data.n_samples, data.dim, data.rank
    if d * r > MAX_DENSE:
        return inf
    products = 0.5 if r == 1 else r * (r + 1) / 2
    hessian = n * d * (COPY + products * d * DENSE) + DENSE * (d * r) ** 3 / 3
    return hessian / (STEP + n * (CALL + 2 * d * r * PRODUCT))


def _working_set(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray | None:
    """Return the sorted indices of the weights that are not at kinks, or whose subgradient is not zero; None for all.

    Weights are counted column after column of Q. If most weights would be selected, all are.
    """
    _, free, _ = on_kinks(data.penalty, Q, at.smooth)
    chosen = np.flatnonzero(((free > 0) | (at.gradient != 0)).T.ravel())
    return chosen if len(chosen) < MOST * Q.size else None


class _Model:
    """The Hessian H of the losses at some weights; its rows and columns are ordered column after column of Q.

    If `dense` is False, H is an estimate of its diagonal only. Weights outside of `indices` (k,), sorted in this
    order, have no steps; None stands for all weights.
    """

    def __init__(self, data: Dataset, at: RiskAtPoint, dense: bool, indices: np.ndarray | None = None) -> None:
        self._penalty, self._shape, self.dense = data.penalty, (data.dim, data.rank), dense
        self._indices = np.arange(data.dim * data.rank) if indices is None else indices
        if dense:
            columns = np.split(self._indices, np.searchsorted(self._indices, data.dim * np.arange(1, data.rank)))
            free = tuple(part - data.dim * a for a, part in enumerate(columns))
            self._H = risk_hessian(data, at.hessians, None if indices is None else free)
        else:
            sums = np.einsum("naa->a", at.hessians) / data.dim
            self._H = (
                np.outer(sums, data.spectra[0]).ravel()
                if data.n_tokens == 1
                else np.full(data.dim * data.rank, sums.sum())
            )
        self._system: tuple[np.ndarray, np.ndarray, Any] | None = None  # free weights, curvatures and factor
        self._pairs = list[tuple[np.ndarray, np.ndarray]]()

    def misses_most(self, at: RiskAtPoint) -> bool:
        """Return whether the larger part of the subgradient belongs to weights that the model does not have."""
        squares = at.gradient.T.ravel() ** 2
        return float(squares[self._indices].sum()) < 0.5 * float(squares.sum())

    def extend(self, data: Dataset, at: RiskAtPoint, more: np.ndarray | None) -> "_Model":
        """Return the model at the current weights with further weights `more`, or None for all."""
        indices = np.arange(data.dim * data.rank) if more is None else np.union1d(self._indices, more)
        rows = data.matrix.small_rows()
        if rows is None or not (isinstance(data.student, SquaredLoss) and data.rank == 1):
            return _Model(data, at, self.dense, indices)
        other = copy(self)  # the Hessian does not change: only the new rows and columns are computed
        other._indices, other._system = indices, None
        old, new = np.searchsorted(indices, self._indices), np.setdiff1d(indices, self._indices)
        with one_thread():
            products = (rows[:, new] * at.hessians[:, 0]).T @ rows / data.dim
        other._H = np.empty((len(indices), len(indices)))
        other._H[np.ix_(old, old)] = self._H
        at_new = np.searchsorted(indices, new)
        other._H[at_new] = products[:, indices]
        other._H[:, at_new] = products[:, indices].T
        return other

    def add_pair(self, step: np.ndarray, change: np.ndarray) -> None:
        """Correct the later solutions of a smooth problem by the change (d, r) of the gradient along a step."""
        s, y = step.T.ravel(), change.T.ravel()
        if y @ s > 0:
            self._pairs = [*self._pairs[1 - MEMORY :], (s, y)]

    def solve(self, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray | None:
        """Return the step P (d, r) to the minimum of the model over the weights that are not at kinks.

        The other weights move to their kinks. Return None if the linear system is not positive definite.
        """
        from scipy.linalg import LinAlgError

        indices = self._indices
        moved, free, curvature = (array.T.ravel()[indices] for array in on_kinks(self._penalty, Q, at.smooth))
        movable = np.flatnonzero(free)
        try:
            if self._system is None or not all(map(np.array_equal, self._system, (free, curvature))):
                self._system = free, curvature, self._factor(movable, curvature)
        except LinAlgError:
            return None
        slope, weights = at.gradient.T.ravel()[indices], list[float]()
        for s, y in reversed(self._pairs):  # the recursion of Nocedal (1980)
            weights.append((s @ slope) / (y @ s))
            slope = slope - weights[-1] * y
        step = moved - Q.T.ravel()[indices]
        step[movable] -= self._system[2](slope[movable])
        for (s, y), weight in zip(self._pairs, reversed(weights), strict=True):
            step -= s * (weight + (y @ step) / (y @ s))
        return self._expand(step)

    def _expand(self, step: np.ndarray) -> np.ndarray:
        """Return the step (d, r) of all weights for a step of the weights in the model."""
        whole = np.zeros(self._shape[::-1])
        whole.reshape(-1)[self._indices] = step
        return whole.T

    def _restrict(self, movable: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """Return H + r'' of the movable weights."""
        H = self._H.copy() if len(movable) == len(self._H) else self._H[np.ix_(movable, movable)]
        H[np.diag_indices(len(H))] += curvature[movable]
        return H

    def _factor(self, movable: np.ndarray, curvature: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        """Return the function that solves linear systems with H + r'' of the movable weights."""
        from scipy.linalg import cho_factor, cho_solve

        if not self.dense:
            return lambda x: x / (self._H + curvature)
        with one_thread():
            factor = cho_factor(self._restrict(movable, curvature), overwrite_a=True, check_finite=False)
        return lambda x: cho_solve(factor, x, check_finite=False)

    def lowest_direction(self, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray | None:
        """Return the direction (d, r) of lowest curvature of H + r'' of the free weights; None if there are none."""
        from scipy.linalg import eigh

        _, free, curvature = (array.T.ravel() for array in on_kinks(self._penalty, Q, at.smooth))
        n_free, free, curvature = np.count_nonzero(free), free[self._indices], curvature[self._indices]
        movable, direction = np.flatnonzero(free), np.zeros(free.shape)
        if not (self.dense and len(movable) == n_free > 0):
            return None
        with one_thread():
            H = self._restrict(movable, curvature)
            direction[movable] = eigh(H, subset_by_index=[0, 0], overwrite_a=True, check_finite=False)[1][:, 0]
        return self._expand(direction)

    def sweep(self, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
        """Return the step P (d, r) to the minimum of the model and a `ScaledPenalty`, by coordinate descent."""
        penalty, r, indices = self._penalty, self._shape[1], self._indices
        before, slope = Q.T.ravel()[indices], at.smooth.T.ravel()[indices]
        rows = (np.tile(array, r)[indices] for array in (penalty.units, penalty.scales == 0, penalty.ridge))
        x = before.copy()
        _descend(penalty.penalty, self._H, slope, x, *rows, MIN_CURVATURE * penalty.strength, SWEEP_TOL, MAX_SWEEPS)
        return self._expand(x - before)


def _search_line(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, P: np.ndarray | None, shortest: float
) -> tuple[np.ndarray, RiskAtPoint] | None:
    """Return weights Q + t P and the risk there, for the first t of 1, 1/2, 1/4, ... that is accepted; None if none is.

    A step is accepted if the risk falls by a fraction of the predicted decrease, or the gradient norm falls by half. If
    rounding errors hide the change of the risk, the gradient norm must fall.
    """
    if P is None or not np.isfinite(P).all():
        return None
    penalty, t = data.penalty, 1.0
    slope = float(np.sum(at.smooth * P)) + penalty_total(penalty, Q + P) - penalty_total(penalty, Q)
    while t >= shortest:
        there = risk_at(data, Q + t * P, "exact")
        change, ratio = there.train_loss - at.train_loss, there.gradient_norm / at.gradient_norm
        falls = slope < 0 and data.dim * change <= SUFFICIENT_DECREASE * t * slope
        if falls or ratio <= GAIN or (ratio < 1 and abs(change) <= ROUNDING * abs(at.train_loss)):
            return Q + t * P, there
        t *= 0.5
    return None


@kernel
def _descend(penalty, H, slope, x, units, bare, ridge, lowest, tol, max_sweeps):
    """Minimize slope·P + ½ PᵀHP + Σ_i [ρ(c_i y_i) + ε_i y_i²/2] over y = x + P by coordinate descent; y replaces x.

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
