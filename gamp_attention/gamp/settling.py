"""Settling: drive a state on which message passing cycles to a critical point, and verify it.

Fixed points of GAMP do not depend on V or A, so another descent on the same compiled risk may finish the
work: L-BFGS, or accelerated proximal gradient steps where the penalty has kinks; then Newton steps by MINRES
that must lower the gradient. The end is checked to be a fixed point of GAMP: for a V that is small enough, the
proximal step at ω = z − V g holds z = X̃Q.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, gradient_norm, hessian_product, risk_at
from gamp_attention.denoisers.output import denoise_groups
from gamp_attention.gamp.proximal_gradient import proximal_gradient
from gamp_attention.models.sources import weighted
from gamp_attention.penalties.matrix import on_kinks
from gamp_attention.results import Result

HANDOVER = 1e-5  # gradient norm at which L-BFGS gives way to Newton steps


@dataclass(frozen=True, eq=False, repr=False)
class Settled(Result):
    """End of the settling phase.

    Attributes
    ----------
    Q : (d, r) weights.
    gradient_norm : ‖∇R‖_F/(λ√d) there.
    n_iter : iterations of L-BFGS or proximal gradient steps, plus Newton steps.
    """

    Q: np.ndarray
    gradient_norm: float
    n_iter: int


def settle(data: Dataset, risk: str, Q: np.ndarray, tol: float, max_iter: int = 5000) -> Settled:
    """Minimise the risk from Q until ‖∇R‖_F/(λ√d) <= tol or nothing improves."""
    smooth = data.penalty.smooth
    best, n_iter, handover = Q, 0, HANDOVER
    while True:
        descend = _quasi_newton if smooth else proximal_gradient
        best, more = descend(data, risk, best, max(tol, handover), max_iter - n_iter)
        n_iter += more
        at = risk_at(data, best, risk)
        norm = gradient_norm(data, at.gradient)
        while norm > tol and n_iter < max_iter:
            trial = best + newton_step(data, at, best)
            trial_at = risk_at(data, trial, risk)
            trial_norm = gradient_norm(data, trial_at.gradient)
            n_iter += 1
            if not trial_norm < 0.9 * norm:
                break
            best, at, norm = trial, trial_at, trial_norm
        if smooth or norm <= tol or handover <= tol or n_iter >= max_iter:
            return Settled(best, norm, n_iter)
        handover *= 0.1  # the entries at kinks were not all known yet


def _quasi_newton(data: Dataset, risk: str, Q: np.ndarray, tol: float, max_iter: int) -> tuple[np.ndarray, int]:
    """L-BFGS down to where Newton steps take over: weights and iterations."""
    from scipy.optimize import minimize

    shape = Q.shape

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = risk_at(data, x.reshape(shape), risk)
        return at.train_loss * data.dim, at.gradient.ravel()

    found = minimize(
        value_and_gradient,
        Q.ravel(),
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iter,
            "maxfun": 2 * max_iter,
            "maxcor": 20,
            "ftol": 0.0,
            "gtol": max(tol, HANDOVER) * data.penalty.strength * np.sqrt(data.dim / Q.size),
        },
    )
    return found.x.reshape(shape), int(found.nit)


def newton_step(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """−(∇²R)⁻¹∇R by MINRES, which a flat direction (a rotation of the columns of Q) does not hinder.

    Entries of Q that a kink of the penalty holds stay where they are.
    """
    from scipy.sparse.linalg import LinearOperator, minres

    shape = at.gradient.shape
    _, free, curvature = on_kinks(data.penalty, Q, at.smooth)
    operator = LinearOperator(
        (at.gradient.size, at.gradient.size),
        matvec=lambda x: (free * hessian_product(data, at, free * x.reshape(shape), curvature)).ravel(),
        dtype=float,
    )
    step, _ = minres(operator, -(free * at.gradient).ravel(), rtol=1e-10, maxiter=2000)
    return step.reshape(shape)


def is_fixed_point(data: Dataset, risk: str, at: RiskAtPoint, V: np.ndarray, tol: float = 1e-6) -> bool:
    """Whether a critical point is a fixed point of GAMP with its local minima held.

    Eq. :eq:`critical`.

    V is halved where a sample's proximal objective would be concave at z; ω = z − V g then has z for its
    proximal point.
    """
    params = data.terms(risk).params
    lowest = float(np.linalg.eigvalsh(at.hessians).min())
    while np.linalg.eigvalsh(V).max() * max(-lowest, 0.0) > 0.9:
        V = 0.5 * V
    omega = at.z + weighted(data.groups, V, at.loss_gradients)
    out = denoise_groups(data.groups, data.loss, params, omega, V, at.z, hold=True)
    residual = np.abs(out.z - at.z).max() / (np.abs(at.z).max() + np.finfo(float).tiny)
    return bool(out.solved.all() and residual < tol)
