"""Robust regression with outliers among the labels: losses, labels, and state evolution in one dimension.

The setting of arXiv 2502.20003: labels u + √Δ_in ξ, of which a fraction ε is replaced by β u + √Δ_out ξ. The Huber and
Tukey losses ρ(p − z) depend on the residual only. The residual r = p − ω before a proximal step is then Gaussian for
inliers and for outliers, and the force is a function of r, so that all averages of state evolution are integrals in one
dimension. `solve_scalar` uses them, and none of the package: with t = p − z the residual after the step, they are
integrals over t with r = t + V ρ'(t), and a jump of the proximal map cuts an interval out of t.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

import gamp_attention as ga

MAX_CONVEX_V = 1.25  # V above which Tukey's proximal map jumps: 1/0.8, with −0.8 the lowest curvature of the loss
N_TABLE = 20_001  # number of points of the branches of Tukey's proximal map
NODES, WEIGHTS = np.polynomial.legendre.leggauss(80)
MAX_STEPS, TOL = 100, 1e-12  # maximum number of steps of the search for a quantile; error of log probabilities


@dataclass(frozen=True)
class OutlierLabels:
    """Labels u + √inlier ξ, of which a fraction is replaced by slope · u + √outlier ξ.

    Given u, a label is the quantile of this mixture of two Gaussians at the probability of a single random number. It
    is a smooth function of u and of this number, so that averages over labels converge fast.

    Attributes
    ----------
    inlier, outlier : variances Δ_in and Δ_out of the noise.
    fraction : fraction ε of outliers.
    slope : factor β of the field in outliers.
    """

    inlier: float = 0.1
    outlier: float = 1.0
    fraction: float = 0.1
    slope: float = 0.0
    even = False

    def n_noise(self, n_tokens, rank):
        """Return one random number per sample."""
        return 1

    def __call__(self, u, noise):
        """Return labels (N, 1) for fields (N, 1, 1) and noise (N, 1)."""
        probability, slope, variance = np.array(self.parts).T
        side = np.where(noise[:, 0] > 0, -1.0, 1.0)  # labels above the median are mirrored, as 1 − 1e-17 is 1
        level, mean, spread = -np.abs(noise[:, 0]), (side * u[:, 0, 0])[:, None] * slope, np.sqrt(variance)
        goal, quantiles = log_ndtr(level), mean + spread * level[:, None]
        low, high, found = quantiles.min(axis=1), quantiles.max(axis=1), quantiles[:, 0].copy()
        rows = np.arange(len(found))
        for _ in range(MAX_STEPS):  # Newton steps for the logarithm of the probability, inside of the interval
            at = found[rows]
            white = (at[:, None] - mean[rows]) / spread
            below = ndtr(white) @ probability
            gap = np.log(below) - goal[rows]
            low[rows], high[rows] = np.where(gap > 0, low[rows], at), np.where(gap > 0, at, high[rows])
            after = at - gap * below / (np.exp(-0.5 * white**2) @ (probability / spread) / np.sqrt(2 * np.pi))
            inside = (after >= low[rows]) & (after <= high[rows])
            found[rows] = np.where(inside, after, 0.5 * (low[rows] + high[rows]))
            rows = rows[np.abs(gap) > TOL]
            if not len(rows):
                break
        return (side * found)[:, None]

    @property
    def parts(self):
        """Return (probability, slope, variance) of inliers and of outliers."""
        return (1 - self.fraction, 1.0, self.inlier), (self.fraction, self.slope, self.outlier)


@ga.register_loss
class Huber(NamedTuple):
    """Huber's loss: t²/2 for |t| ≤ width, linear beyond."""

    width: float = 1.0
    convex = True

    def value(self, p, z):
        """Return the loss."""
        t = abs(p[0] - z[0, 0])
        return 0.5 * t * t if t < self.width else self.width * t - 0.5 * self.width**2

    def derivatives(self, p, z, grad, hess):
        """Return the loss and fill its derivatives."""
        t = z[0, 0] - p[0]
        inside = abs(t) < self.width
        grad[0] = t if inside else np.copysign(self.width, t)
        hess[0, 0] = 1.0 if inside else 0.0
        return 0.5 * t * t if inside else self.width * abs(t) - 0.5 * self.width**2


@ga.register_loss
class Tukey(NamedTuple):
    """Tukey's biweight loss: width²/6 · (1 − (1 − (t/width)²)³) for |t| ≤ width, constant beyond."""

    width: float = 1.0

    def value(self, p, z):
        """Return the loss."""
        left = max(1.0 - ((p[0] - z[0, 0]) / self.width) ** 2, 0.0)
        return self.width**2 / 6 * (1 - left**3)

    def derivatives(self, p, z, grad, hess):
        """Return the loss and fill its derivatives."""
        t = z[0, 0] - p[0]
        square = (t / self.width) ** 2
        left = max(1.0 - square, 0.0)
        grad[0] = t * left**2
        hess[0, 0] = left * (1 - 5 * square)
        return self.width**2 / 6 * (1 - left**3)

    def floor(self, p):
        """Return a lower bound of the loss."""
        return 0.0

    def curvature(self, p, n_fields, radius):
        """Return the lowest curvature, at t² = 0.6 width²."""
        return -0.8


def build_model(loss, lam, labels=OutlierLabels()):
    """Return the model of a loss with the ridge λ."""
    return ga.glm_model(loss, labels, lam=lam)


def estimation_error(overlaps):
    """Return ‖Q − Q*‖²/d = q − 2θ + 1."""
    return float(overlaps.q[0, 0, 0] - 2 * overlaps.theta[0, 0, 0] + 1)


class Scalars(NamedTuple):
    """Fixed point of state evolution in one dimension."""

    q: float
    theta: float
    V: float
    replicon: float  # α V² E[(∂g/∂ω)²] without the jumps of the proximal map

    @property
    def error(self):
        """Return ‖Q − Q*‖²/d."""
        return self.q - 2 * self.theta + 1


def _slope(loss, t):
    """Return ρ'(t) for t ≥ 0."""
    if isinstance(loss, Huber):
        return np.minimum(t, loss.width)
    return t * np.maximum(1 - (t / loss.width) ** 2, 0) ** 2


def _reached(loss, V):
    """Return the intervals of t in [0, width] that global proximal minima reach; one, or two around a jump."""
    w = loss.width
    if isinstance(loss, Huber) or V <= MAX_CONVEX_V:
        return [(0.0, w)]
    t = np.append(np.linspace(0, w, N_TABLE), 20 * w)
    r = t + V * _slope(loss, t)
    energy = 0.5 * V * _slope(loss, t) ** 2 + w**2 / 6 * (1 - np.maximum(1 - (t / w) ** 2, 0) ** 3)
    falls = np.flatnonzero(np.diff(r) < 0)
    first, last = falls[0], falls[-1] + 1  # between them, r decreases: no minima
    at = np.linspace(r[last], r[first], N_TABLE)
    gap = np.interp(at, r[: first + 1], energy[: first + 1]) - np.interp(at, r[last:], energy[last:])
    jump = np.interp(0.0, gap, at)  # both minima have the same energy
    left, right = np.interp(jump, r[: first + 1], t[: first + 1]), np.interp(jump, r[last:], t[last:])
    return [(0.0, left)] + ([(right, w)] if right < w else [])


def scalar_step(loss, labels, alpha, lam, q, theta, V):
    """Return the next (q, θ, V) of state evolution and the replicon."""
    q_hat = theta_hat = V_hat = squares = 0.0
    for probability, slope, variance in labels.parts:
        s = np.sqrt(slope**2 - 2 * slope * theta + q + variance)  # standard deviation of r
        force_square = response = curvature_square = 0.0
        for low, high in _reached(loss, V):
            t = 0.5 * (low + high) + 0.5 * (high - low) * NODES
            u = (t / loss.width) ** 2
            curvature = np.ones_like(t) if isinstance(loss, Huber) else (1 - u) * (1 - 5 * u)
            f, r = _slope(loss, t), t + V * _slope(loss, t)
            weight = (high - low) * WEIGHTS * (1 + V * curvature) * norm.pdf(r / s) / s
            force_square += weight @ f**2
            response += weight @ (f * r) / s**2  # Stein's identity for E[∂f/∂r], which counts jumps
            curvature_square += weight @ (curvature / (1 + V * curvature)) ** 2
        if isinstance(loss, Huber):
            edge = loss.width * (1 + V) / s
            force_square += 2 * loss.width**2 * norm.sf(edge)
            response += 2 * loss.width * norm.pdf(edge) / s
        q_hat += alpha * probability * force_square
        theta_hat += alpha * probability * slope * response
        V_hat += alpha * probability * response
        squares += alpha * probability * curvature_square
    V = 1 / (lam + V_hat)
    return V**2 * (theta_hat**2 + q_hat), V * theta_hat, V, squares * V**2


def solve_scalar(loss, lam, alpha, labels=OutlierLabels(), tol=1e-10, max_iter=5000):
    """Return the fixed point of state evolution from integrals in one dimension; None if it is not reached."""
    x = np.array([0.9, 0.9, 0.3])
    for _ in range(max_iter):
        *after, replicon = scalar_step(loss, labels, alpha, lam, *x)
        change = np.abs(after - x).max()
        x = 0.3 * x + 0.7 * np.array(after)
        if not np.isfinite(x).all():
            return None
        if change < tol:
            return Scalars(*map(float, x), float(replicon))
    return None


def optimize(kind, alpha, lowest_lam, labels=OutlierLabels()):
    """Return λ ≥ lowest_lam and the loss of a class, of optimal width, with the smallest estimation error."""

    def error(x):
        end = solve_scalar(kind(np.exp(x[1])), max(np.exp(x[0]), lowest_lam), alpha, labels, 1e-8)
        return 10.0 if end is None else end.error

    start = np.log([0.1, 0.4 if kind is Huber else 1.6])
    best = minimize(error, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-10, "maxfev": 150})
    return max(float(np.exp(best.x[0])), lowest_lam), kind(float(np.exp(best.x[1])))
