"""State evolution as the authors solved it: their quadrature, their damping and when they stopped."""

import numpy as np

import gamp_attention as ga
from gamp_attention.losses.attention import asymptotic_terms

STARTS = {"semantic": (0.906838209589, 0.0002, 14.575, 0.3472), "positional": (0.0206838209589, 0.2, 14.575, 0.0)}
NEW, STOP, MOST = 0.2, 1e-4, 300  # share of a step that is taken; change of q, m or θ at which they stopped; steps


def plane_rule():
    """Twelve points for averages over two standard Gaussians, exact to degree 7 (Stroud 1971, E2r2 7-1)."""
    root = np.sqrt(5)
    near, far = np.sqrt((9 - 3 * root) / 4), np.sqrt((9 + 3 * root) / 4)
    signs = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)], dtype=float)
    axes = np.sqrt(6) * np.array([(1, 0), (-1, 0), (0, 1), (0, -1)], dtype=float)
    weights = np.repeat([1 / 36, (5 + 2 * root) / 45, (5 - 2 * root) / 45], 4)
    return np.concatenate([axes, near * signs, far * signs]), weights


def overlaps(model, alpha, branch):
    """q, m, V and θ at which the authors' iteration stops.

    The four overlaps of the paper's model, which is symmetric in its two tokens up to the sign of m.
    """
    points, weights = plane_rule()
    n = len(points)
    fields = np.repeat(points, n, axis=0), np.tile(points, (n, 1))  # of the student, and what the teacher adds to them
    at = np.array(STARTS[branch])
    for _ in range(MOST):
        new = _step(model, alpha, at, *fields, np.outer(weights, weights).ravel())
        if np.abs(new - at)[[0, 1, 3]].max() < STOP:
            break
        at = NEW * new + (1 - NEW) * at
    return dict(zip(("q", "m", "V", "theta"), at.tolist(), strict=True))


def _step(model, alpha, at, own, rest, weight):
    """One undamped step of equation (7) of the paper."""
    (q, m, V, theta), rho, lam = at, model.coordinates.rho[0, 0, 0], float(model.lam)
    left = np.sqrt(rho - theta**2 / q)
    omega = np.sqrt(q) * own + m * np.array([1.0, -1.0])
    terms = asymptotic_terms(model.teacher((left * rest + theta / np.sqrt(q) * own)[:, :, None]), np.full((1, 2), rho))
    out = ga.denoise(model.loss, terms.params, omega[:, :, None], np.full((2, 1, 1), V))
    g = (out.z[:, :, 0] - omega) / V
    m_hat = alpha * weight @ (g[:, 0] - g[:, 1])
    q_hat = alpha * weight @ (g**2).sum(axis=1)
    theta_hat = alpha * weight @ (g * rest).sum(axis=1) / left
    V_hat = theta * theta_hat / q - alpha * weight @ (g * own).sum(axis=1) / np.sqrt(q)
    scale = lam + V_hat * rho
    new_q = (q_hat * rho + m_hat**2 + theta_hat**2 * rho**2) * rho / scale**2
    return np.array([new_q, m_hat / scale, rho / scale, theta_hat * rho**2 / scale])
