"""Exact refits without single samples, by numpy, scipy, scikit-learn and torch, independent of the package.

Every minimum is verified by its (sub)gradient. Problems that are not convex are minimized from the weights that were
trained with all samples.
"""

import warnings
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga

TOLERANCE = 1e-5  # norm of gradients, in units of the mean gradient of one sample
# options of L-BFGS-B for the positive and negative parts of the weights
BOUNDED = {"ftol": 0, "maxiter": 5000, "maxfun": 10000, "maxcor": 40}


def compute_exact_errors(data: ga.Dataset, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the errors (m,) of samples under weights trained without them; NaN if no minimum was reached."""
    if not data.is_labelled:
        return _refit_attention(data, Q, samples)
    x = (data.tokens[:, 0] + data.positions[0]) / np.sqrt(data.dim)
    y = data.labels
    if isinstance(data.student, ga.SquaredLoss) and isinstance(data.penalty, ga.Ridge):
        return _refit_ridge(x, y[:, 0], data.penalty.lam, samples)
    if isinstance(data.student, ga.SquaredLoss):
        return _refit_elastic_net(x, y[:, 0], data.penalty, Q[:, 0], samples)
    value = {
        ga.LogisticLoss: evaluate_logistic,
        ga.MultinomialLoss: evaluate_multinomial,
        ga.PhaseRetrievalLoss: evaluate_phase,
    }[type(data.student)]
    return _refit_smooth(lambda rows, W: value(x[rows] @ W, y[rows, 0]), x, data.penalty, Q, samples)


def evaluate_logistic(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses, slopes (n, 1) and curvatures (n, 1, 1) of the logistic loss."""
    m = y * z[:, 0]
    p = 0.5 * (1 - np.tanh(0.5 * m))
    return np.logaddexp(0, -m), (-y * p)[:, None], (p * (1 - p))[:, None, None]


def evaluate_multinomial(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses, slopes (n, r) and curvatures (n, r, r) of the multinomial loss."""
    top = z.max(axis=1, keepdims=True)
    e = np.exp(z - top)
    p = e / e.sum(axis=1, keepdims=True)
    hot = np.eye(z.shape[1])[y.astype(int)]
    losses = top[:, 0] + np.log(e.sum(axis=1)) - (z * hot).sum(axis=1)
    return losses, p - hot, np.einsum("na,ab->nab", p, np.eye(z.shape[1])) - p[:, :, None] * p[:, None, :]


def evaluate_phase(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return losses, slopes (n, 1) and curvatures (n, 1, 1) of the phase retrieval loss."""
    s = z[:, 0]
    return 0.25 * (s * s - y) ** 2, (s * (s * s - y))[:, None], (3 * s * s - y)[:, None, None]


def _refit_ridge(x: np.ndarray, y: np.ndarray, lam: float, samples: np.ndarray) -> np.ndarray:
    """Return errors of ridge regression in closed form, from the smaller of the two linear systems."""
    n, d = x.shape
    errors = []
    for k in samples.tolist():
        others = np.arange(n) != k
        a, b = x[others], y[others]
        if n > d:
            w = np.linalg.solve(a.T @ a + lam * np.eye(d), a.T @ b)
        else:
            w = a.T @ np.linalg.solve(a @ a.T + lam * np.eye(n - 1), b)
        errors.append(0.5 * (y[k] - x[k] @ w) ** 2)
    return np.array(errors)


def _refit_elastic_net(
    x: np.ndarray, y: np.ndarray, penalty: ga.ElasticNet, w: np.ndarray, samples: np.ndarray
) -> np.ndarray:
    """Return errors of the elastic net by scikit-learn; its optimality conditions are checked."""
    from sklearn.linear_model import ElasticNet

    n, errors = len(x), []
    for k in samples.tolist():
        others = np.arange(n) != k
        scale = 1 / (n - 1)
        total = (penalty.lam + penalty.l1) * scale
        model = ElasticNet(alpha=total, l1_ratio=penalty.l1 * scale / total, fit_intercept=False, tol=1e-10,
                           max_iter=20000, warm_start=True)  # fmt: skip
        model.coef_ = w.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x[others], y[others])
        v = model.coef_
        slope = x[others].T @ (x[others] @ v - y[others]) + penalty.lam * v
        left = np.where(v != 0, slope + penalty.l1 * np.sign(v), np.maximum(np.abs(slope) - penalty.l1, 0.0))
        errors.append(0.5 * (y[k] - x[k] @ v) ** 2 if np.abs(left).max() < 1e-4 * penalty.l1 else np.nan)
    return np.array(errors)


def _refit_smooth(
    terms: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]], x: np.ndarray, penalty: object, Q: np.ndarray,
    samples: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return errors of smooth losses, by Newton steps in a trust region if the penalty is a ridge.

    With an l1 penalty, L-BFGS-B minimizes over the positive and negative parts of the weights.
    """
    n, (d, r) = len(x), Q.shape
    lam, l1 = float(penalty.lam), float(getattr(penalty, "l1", 0.0))  # type: ignore[attr-defined]
    errors, every = [], np.ones(n, bool)
    # mean gradient norm of a sample
    size = float(np.mean(np.linalg.norm(x, axis=1) * np.linalg.norm(terms(every, Q)[1], axis=1)))
    for k in samples.tolist():
        others = np.arange(n) != k

        def risk(w: np.ndarray, others: np.ndarray = others) -> tuple[float, np.ndarray]:
            W = w.reshape(d, r)
            losses, slopes, _ = terms(others, W)
            return float(losses.sum() + 0.5 * lam * np.sum(W**2)), (x[others].T @ slopes + lam * W).ravel()

        def hessian(w: np.ndarray, others: np.ndarray = others) -> np.ndarray:
            curved = terms(others, w.reshape(d, r))[2]
            H = np.einsum("ni,nab,nj->iajb", x[others], curved, x[others], optimize=True)
            return H.reshape(d * r, d * r) + lam * np.eye(d * r)

        if l1 == 0:
            end = minimize(risk, Q.ravel(), jac=True, hess=hessian, method="trust-exact",
                           options={"gtol": 0.1 * TOLERANCE * size, "maxiter": 500})  # fmt: skip
            W, left = end.x.reshape(d, r), np.linalg.norm(risk(end.x)[1])
        else:

            def split(u: np.ndarray, risk: Callable[..., tuple[float, np.ndarray]] = risk) -> tuple[float, np.ndarray]:
                value, slope = risk(u[: d * r] - u[d * r :])
                return value + l1 * u.sum(), np.concatenate([slope + l1, l1 - slope])

            start = np.concatenate([np.maximum(Q.ravel(), 0), np.maximum(-Q.ravel(), 0)])
            end = minimize(split, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * d * r),
                           options=BOUNDED | {"gtol": 1e-5 * l1})  # fmt: skip
            W = (end.x[: d * r] - end.x[d * r :]).reshape(d, r)
            slope, w = risk(W.ravel())[1], W.ravel()
            off = np.where(np.abs(w) > 1e-9, slope + l1 * np.sign(w), np.maximum(np.abs(slope) - l1, 0.0))
            left = np.abs(off).max() / (1e-4 * l1) * TOLERANCE * size  # accepted within 1e-4 of l1
        errors.append(terms(np.arange(n) == k, W)[0][0] if left <= TOLERANCE * size else np.nan)
    return np.array(errors)


def _refit_attention(data: ga.Dataset, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return errors of attention, by torch's derivatives of the layer and scipy's L-BFGS-B."""
    import torch

    n, L, d = data.tokens.shape
    x = torch.as_tensor(data.tokens + data.positions, dtype=torch.float64)
    y = torch.as_tensor(data.outputs, dtype=torch.float64)
    lam, l1 = float(data.penalty.lam), float(getattr(data.penalty, "l1", 0.0))
    errors = []

    def losses(W: "torch.Tensor", rows: "torch.Tensor") -> "torch.Tensor":
        z = x[rows] @ W / np.sqrt(d)
        return ((y[rows] - torch.softmax(z @ z.transpose(1, 2), dim=2) @ x[rows]) ** 2).sum((1, 2)) / (2 * d)

    for k in samples.tolist():
        others, own = torch.arange(n) != k, torch.arange(n) == k

        def risk(w: np.ndarray, others: "torch.Tensor" = others) -> tuple[float, np.ndarray]:
            W = torch.tensor(w.reshape(Q.shape), requires_grad=True)
            value = losses(W, others).sum() + 0.5 * lam * (W**2).sum()
            value.backward()
            return value.item(), W.grad.numpy().ravel()

        if l1 == 0:
            end = minimize(risk, Q.ravel(), jac=True, method="L-BFGS-B",
                           options={"ftol": 0, "gtol": 1e-6 * lam, "maxiter": 3000, "maxcor": 30})  # fmt: skip
            W, left = end.x, np.abs(end.jac).max()
        else:

            def split(u: np.ndarray, risk: Callable[..., tuple[float, np.ndarray]] = risk) -> tuple[float, np.ndarray]:
                value, slope = risk(u[: Q.size] - u[Q.size :])
                return value + l1 * u.sum(), np.concatenate([slope + l1, l1 - slope])

            start = np.concatenate([np.maximum(Q.ravel(), 0), np.maximum(-Q.ravel(), 0)])
            end = minimize(split, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * (2 * Q.size),
                           options=BOUNDED | {"gtol": 1e-6 * lam})  # fmt: skip
            W = end.x[: Q.size] - end.x[Q.size :]
            slope = risk(W)[1]
            left = np.abs(np.where(np.abs(W) > 1e-9, slope + l1 * np.sign(W),
                                   np.maximum(np.abs(slope) - l1, 0.0))).max()  # fmt: skip
        with torch.no_grad():
            error = float(losses(torch.as_tensor(W.reshape(Q.shape)), own)[0]) * 2 / L
        errors.append(error if left <= 1e-4 * lam else np.nan)
    return np.array(errors)
