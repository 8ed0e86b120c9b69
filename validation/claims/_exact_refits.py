"""Exact refits without single samples, by code that is independent of the package: numpy, scipy, scikit-learn, torch.

Every minimum is verified by its (sub)gradient. Problems that are not convex are minimised from the weights with all
samples.
"""

import warnings
from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga

TOLERANCE = 1e-5  # of gradients, relative to the mean force of a sample
BOUNDED = {"ftol": 0, "maxiter": 5000, "maxfun": 10000, "maxcor": 40}  # of L-BFGS-B in positive and negative parts


def exact_errors(data: ga.Dataset, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Errors (m,) of samples under weights trained without them; NaN where no minimum was reached."""
    if not data.is_labelled:
        return _attention_errors(data, Q, samples)
    x = (data.tokens[:, 0] + data.positions[0]) / np.sqrt(data.dim)
    y = data.labels
    if isinstance(data.student, ga.SquaredLoss) and isinstance(data.penalty, ga.Ridge):
        return _ridge(x, y[:, 0], data.penalty.lam, samples)
    if isinstance(data.student, ga.SquaredLoss):
        return _elastic_net(x, y[:, 0], data.penalty, Q[:, 0], samples)
    value = {
        ga.LogisticLoss: logistic, ga.MultinomialLoss: multinomial, ga.PhaseRetrievalLoss: phase,
    }[type(data.student)]  # fmt: skip
    return _minimised(lambda rows, W: value(x[rows] @ W, y[rows, 0]), x, data.penalty, Q, samples)


def logistic(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses, slopes (n, 1) and curvatures (n, 1, 1)."""
    m = y * z[:, 0]
    p = 0.5 * (1 - np.tanh(0.5 * m))
    return np.logaddexp(0, -m), (-y * p)[:, None], (p * (1 - p))[:, None, None]


def multinomial(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses, slopes (n, r) and curvatures (n, r, r)."""
    top = z.max(axis=1, keepdims=True)
    e = np.exp(z - top)
    p = e / e.sum(axis=1, keepdims=True)
    hot = np.eye(z.shape[1])[y.astype(int)]
    losses = top[:, 0] + np.log(e.sum(axis=1)) - (z * hot).sum(axis=1)
    return losses, p - hot, np.einsum("na,ab->nab", p, np.eye(z.shape[1])) - p[:, :, None] * p[:, None, :]


def phase(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses, slopes (n, 1) and curvatures (n, 1, 1)."""
    s = z[:, 0]
    return 0.25 * (s * s - y) ** 2, (s * (s * s - y))[:, None], (3 * s * s - y)[:, None, None]


def _ridge(x: np.ndarray, y: np.ndarray, lam: float, samples: np.ndarray) -> np.ndarray:
    """In closed form, by the smaller of both systems."""
    n, d = x.shape
    found = []
    for k in samples.tolist():
        rest = np.arange(n) != k
        a, b = x[rest], y[rest]
        if n > d:
            w = np.linalg.solve(a.T @ a + lam * np.eye(d), a.T @ b)
        else:
            w = a.T @ np.linalg.solve(a @ a.T + lam * np.eye(n - 1), b)
        found.append(0.5 * (y[k] - x[k] @ w) ** 2)
    return np.array(found)


def _elastic_net(
    x: np.ndarray, y: np.ndarray, penalty: ga.ElasticNet, w: np.ndarray, samples: np.ndarray
) -> np.ndarray:
    """By scikit-learn; its optimality conditions are checked."""
    from sklearn.linear_model import ElasticNet

    n, found = len(x), []
    for k in samples.tolist():
        rest = np.arange(n) != k
        scale = 1 / (n - 1)
        total = (penalty.lam + penalty.l1) * scale
        model = ElasticNet(alpha=total, l1_ratio=penalty.l1 * scale / total, fit_intercept=False, tol=1e-10,
                           max_iter=20000, warm_start=True)  # fmt: skip
        model.coef_ = w.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(x[rest], y[rest])
        v = model.coef_
        slope = x[rest].T @ (x[rest] @ v - y[rest]) + penalty.lam * v
        left = np.where(v != 0, slope + penalty.l1 * np.sign(v), np.maximum(np.abs(slope) - penalty.l1, 0.0))
        found.append(0.5 * (y[k] - x[k] @ v) ** 2 if np.abs(left).max() < 1e-4 * penalty.l1 else np.nan)
    return np.array(found)


def _minimised(
    terms: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]], x: np.ndarray, penalty: object, Q: np.ndarray,
    samples: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """By Newton steps in a trust region for the ridge; by L-BFGS-B in positive and negative parts for others."""
    n, (d, r) = len(x), Q.shape
    lam, l1 = float(penalty.lam), float(getattr(penalty, "l1", 0.0))  # type: ignore[attr-defined]
    found, every = [], np.ones(n, bool)
    size = float(np.mean(np.linalg.norm(x, axis=1) * np.linalg.norm(terms(every, Q)[1], axis=1)))  # a sample's force
    for k in samples.tolist():
        rest = np.arange(n) != k

        def risk(w: np.ndarray, rest: np.ndarray = rest) -> tuple[float, np.ndarray]:
            W = w.reshape(d, r)
            losses, slopes, _ = terms(rest, W)
            return float(losses.sum() + 0.5 * lam * np.sum(W**2)), (x[rest].T @ slopes + lam * W).ravel()

        def hessian(w: np.ndarray, rest: np.ndarray = rest) -> np.ndarray:
            curved = terms(rest, w.reshape(d, r))[2]
            H = np.einsum("ni,nab,nj->iajb", x[rest], curved, x[rest], optimize=True)
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
            left = np.abs(off).max() / (1e-4 * l1) * TOLERANCE * size  # within 1e-4 of the kink's force
        found.append(terms(np.arange(n) == k, W)[0][0] if left <= TOLERANCE * size else np.nan)
    return np.array(found)


def _attention_errors(data: ga.Dataset, Q: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """By torch's derivatives of the layer itself and scipy's L-BFGS-B."""
    import torch

    n, L, d = data.tokens.shape
    x = torch.as_tensor(data.tokens + data.positions, dtype=torch.float64)
    y = torch.as_tensor(data.outputs, dtype=torch.float64)
    lam, l1 = float(data.penalty.lam), float(getattr(data.penalty, "l1", 0.0))
    found = []

    def losses(W: "torch.Tensor", rows: "torch.Tensor") -> "torch.Tensor":
        z = x[rows] @ W / np.sqrt(d)
        return ((y[rows] - torch.softmax(z @ z.transpose(1, 2), dim=2) @ x[rows]) ** 2).sum((1, 2)) / (2 * d)

    for k in samples.tolist():
        rest, own = torch.arange(n) != k, torch.arange(n) == k

        def risk(w: np.ndarray, rest: "torch.Tensor" = rest) -> tuple[float, np.ndarray]:
            W = torch.tensor(w.reshape(Q.shape), requires_grad=True)
            value = losses(W, rest).sum() + 0.5 * lam * (W**2).sum()
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
        found.append(error if left <= 1e-4 * lam else np.nan)
    return np.array(found)
