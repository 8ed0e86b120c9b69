"""Weights that grow without bound: risks without a minimum, which fall for ever along a ray of unpenalized weights.

Examples are classes that a plane separates, for λ = 0, or labels that are all equal, for an intercept. The losses and
their gradients vanish along the ray, so that a run reaches any tolerance at some finite weights, as if it converged.

The test is Newton's method, which does not depend on the units of tokens, weights and losses. It predicts the fall of
the risk in each step, −∇R·P for a step P. Near a minimum, this number soon falls to rounding errors, because Newton's
method converges quadratically. Along a ray it falls only by a factor of e in each step if losses decay as exp(−t), and
by (1 + 1/(k + 1))^k < e if they decay as t^−k. Only the weights without a penalty are varied, because all others are
constant along a ray. If the risk is convex, Newton's method begins at zero, because weights at the end of a run may be
so large that only rounding errors remain of the gradient.
"""

import numpy as np

from gamp_attention._tools.numerics import guard_call, one_thread
from gamp_attention.problem.curvature import data_hessian, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import unpenalized
from gamp_attention.problem.risk import RiskAtPoint, hessian_product, is_convex, risk_at

MAX_STEPS = 100  # maximum number of Newton steps
TAIL = 5  # number of steps in a row that are compared
SMALL = 1e-10  # predicted fall of the risk, in units of the losses at the start, below which steps are compared
SLOW = 0.3  # mean ratio of the predicted falls of a step and the previous step, above which there is no minimum
SHORTEST = 1e-6  # length of a step, in units of the fields, below which Newton's method has converged
NEARER = 0.9  # factor of weights at which the gradient is rounded to zero
HALVINGS = 30  # maximum number of times that a step is halved
DENSE = 2000  # maximum number of weights for which the Hessian is computed as a matrix, if it is not singular
RESIDUAL, MAX_PRODUCTS = 1e-10, 2000  # relative residual and number of products of the linear solver for more weights
SINGULAR = 1e-13  # eigenvalue of the Hessian, for columns of equal sizes, that counts as zero


@guard_call
def grows_without_bound(data: Dataset, Q: np.ndarray, risk: str) -> bool:
    """Return whether the risk falls along a ray of the weights without a penalty, such that it has no minimum.

    `Q` (d, r) are the weights at the end of a run. If the risk is not convex, Newton's method begins there.
    """
    free, convex = unpenalized(data.penalty, Q.shape), is_convex(data)
    if not free.any():
        return False
    Q = np.where(free, 0.0, Q) if convex else Q
    at = risk_at(data, Q, risk)
    for _ in range(HALVINGS):
        if convex or at.smooth[free].any():
            break
        Q = np.where(free, NEARER * Q, Q)  # all losses were rounded to a constant
        at = risk_at(data, Q, risk)
    small = SMALL * float(np.abs(at.losses).sum()) if convex else np.inf
    falls = list[float]()
    for _ in range(MAX_STEPS):
        if not (np.isfinite(at.train_loss) and np.isfinite(at.hessians).all()):
            return False
        step = _newton_step(data, at, free)
        fall = -float(np.sum(at.smooth * step))
        falls = [*falls, fall] if fall <= small else []
        if len(falls) > TAIL:
            return bool(falls[-1] > SLOW**TAIL * falls[0] and max(np.diff(falls)) < 0)
        for t in 0.5 ** np.arange(HALVINGS):
            there = risk_at(data, Q + t * step, risk)
            if there.train_loss < at.train_loss or np.sum(there.smooth * step) <= 0:
                break
        else:
            return False
        if not np.linalg.norm(there.z - at.z) > SHORTEST * np.linalg.norm(there.z):
            return False
        Q, at = Q + t * step, there
    return False


def _newton_step(data: Dataset, at: RiskAtPoint, free: np.ndarray) -> np.ndarray:
    """Return the Newton step (d, r) of the free weights; directions without curvature are not moved."""
    from scipy.linalg import eigh
    from scipy.sparse.linalg import LinearOperator, minres

    places, step = np.flatnonzero(free.T), np.zeros(free.size)
    if len(places) > min(DENSE, data.n_samples * data.n_tokens * data.rank):

        def product(x: np.ndarray) -> np.ndarray:
            return (free * hessian_product(data, at, free * x.reshape(free.shape), 0.0)).ravel()

        operator = LinearOperator((free.size, free.size), matvec=product, dtype=float)
        x, failed = minres(operator, -(free * at.smooth).ravel(), rtol=RESIDUAL, maxiter=MAX_PRODUCTS)
        return np.zeros(free.shape) if failed else x.reshape(free.shape)
    H = data_hessian(scaled_blocks(data), at.hessians, tuple(np.flatnonzero(column) for column in free.T))
    units = np.sqrt(np.abs(np.diag(H)))
    units = np.divide(1.0, units, out=np.zeros(len(H)), where=units > 0)
    with one_thread():
        values, vectors = eigh(H * np.outer(units, units), check_finite=False)
        sizes = np.abs(values)
        inverse = np.where(sizes > SINGULAR * sizes.max(), 1 / np.where(sizes > 0, sizes, 1.0), 0.0)
        step[places] = -units * (vectors @ (inverse * (vectors.T @ (units * at.smooth.T.ravel()[places]))))
    return step.reshape(free.T.shape).T
