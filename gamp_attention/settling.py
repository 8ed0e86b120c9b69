"""Settling: drive a state on which message passing cycles to a critical point, and verify it.

Fixed points of GAMP do not depend on V or A, so another descent on the same compiled risk may finish the
work: L-BFGS, then Newton steps by MINRES that must lower the gradient. The end is checked to be a fixed point
of GAMP: for a V that is small enough, the proximal step at ω = z − V g holds z = X̃Q.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, minres

from gamp_attention.data import Dataset
from gamp_attention.denoiser import denoise
from gamp_attention.risk import RiskAtPoint, gradient_norm, hessian_product, risk_at

HANDOVER = 1e-5  # gradient norm at which L-BFGS gives way to Newton steps


@dataclass(frozen=True, eq=False)
class Settled:
    """End of the settling phase.

    Attributes
    ----------
    Q : (d, r) weights.
    gradient_norm : ‖∇R‖_F/(λ√d) there.
    n_iter : iterations of L-BFGS plus Newton steps.
    """

    Q: np.ndarray
    gradient_norm: float
    n_iter: int


def settle(data: Dataset, risk: str, Q: np.ndarray, tol: float, max_iter: int = 5000) -> Settled:
    """Minimise the risk from Q until ‖∇R‖_F/(λ√d) <= tol or nothing improves."""
    shape, size = Q.shape, data.lam * np.sqrt(data.dim)

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
            "gtol": max(tol, HANDOVER) * size / np.sqrt(Q.size),
        },
    )
    n_iter, best = int(found.nit), found.x.reshape(shape)
    at = risk_at(data, best, risk)
    norm = gradient_norm(data, at.gradient)
    while norm > tol and n_iter < max_iter:
        trial = best + newton_step(data, at)
        trial_at = risk_at(data, trial, risk)
        trial_norm = gradient_norm(data, trial_at.gradient)
        n_iter += 1
        if not trial_norm < 0.9 * norm:
            break
        best, at, norm = trial, trial_at, trial_norm
    return Settled(best, norm, n_iter)


def newton_step(data: Dataset, at: RiskAtPoint) -> np.ndarray:
    """−(∇²R)⁻¹∇R by MINRES, which a flat direction (a rotation of the columns of Q) does not hinder."""
    shape = at.gradient.shape
    operator = LinearOperator(
        (at.gradient.size, at.gradient.size),
        matvec=lambda x: hessian_product(data, at, x.reshape(shape)).ravel(),
        dtype=float,
    )
    step, _ = minres(operator, -at.gradient.ravel(), rtol=1e-10, maxiter=2000)
    return step.reshape(shape)


def is_fixed_point(data: Dataset, risk: str, at: RiskAtPoint, V: np.ndarray, tol: float = 1e-6) -> bool:
    """Whether a critical point is a fixed point of GAMP with its local minima held.

    V is halved where a sample's proximal objective would be concave at z; ω = z − V g then has z for its
    proximal point.
    """
    params = data.terms(risk).params
    lowest = float(np.linalg.eigvalsh(at.hessians).min())
    while np.linalg.eigvalsh(V).max() * max(-lowest, 0.0) > 0.9:
        V = 0.5 * V
    omega = at.z + np.einsum("lab,nlb->nla", V, at.loss_gradients)
    out = denoise(data.loss, params, omega, V, at.z, hold=True)
    residual = np.abs(out.z - at.z).max() / (np.abs(at.z).max() + np.finfo(float).tiny)
    return bool(out.solved.all() and residual < tol)
