"""Sparse-token classification: its model, closed forms for two gradient steps, equations of the read-out, and capacity.

A sample has L tokens x_l = θ v_l ξ + noise, with ‖ξ‖ = 1 and unit noise. A positive sample (y = 1, probability π) has
v_l = 1 for R random tokens, and a negative one (y = −1) for none. The classifier is the sign of w·f_q(x) + b with
f_q(x) = xᵀ softmax(x q), and the loss is log(1 + exp(−y (w·f + b))) (arXiv 2509.25153). As f_q does not depend on the
order of the tokens, the first R tokens can have the signal.

After a fit, w = c_ξ ξ + c_e e + noise of norm ω, with the unit vector e orthogonal to ξ in the plane of ξ and q. Given
the attention a of a sample, the field w·f + b is Gaussian with the mean c·F, F = (a·xξ, a·xe, 1), and the variance
ω² ‖a‖². Nothing in this file uses the package's solvers.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize, root
from scipy.special import expit, ndtr, ndtri
from scipy.stats import qmc

import gamp_attention as ga

MAX_RESIDUAL = 1e-8  # largest violation of an equation of the read-out


class Task(NamedTuple):
    """Number of tokens L, tokens R with the signal, fraction π of positive samples, and signal strength θ."""

    L: int
    R: int
    positive: float
    strength: float


def attend(z: Any, xp: Any = np) -> Any:
    """Return the value, column 1, of the tokens that column 0 selects softly."""
    weights = xp.exp(z[:, 0] - z[:, 0].max())
    return (weights * z[:, 1]).sum() / weights.sum()


def build_model(task: Task, lam: float) -> ga.SequenceModel:
    """Return the model with the columns q and w √d and the intercept; the first column of the teacher is √d ξ."""
    spikes = np.zeros((2, task.L, 1))
    spikes[0, : task.R] = task.strength
    return ga.sequence_model(
        lambda u, noise, c: 1.0 - 2.0 * c, attend, lambda y, field: np.logaddexp(0.0, -y * field), n_tokens=task.L,
        rank=2, teacher_rank=1, lam=lam, intercept=True, classes=[task.positive, 1 - task.positive], spikes=spikes,
    )  # fmt: skip


def build_readout(task: Task, lam: float, query: np.ndarray) -> ga.SequenceModel:
    """Return the model of the column w √d and the intercept at a query with coefficients (2,) along ξ and e.

    The fields of the query are known. They are entries of the target, after the label.
    """
    spikes = np.zeros((2, task.L, 2))
    spikes[0, : task.R, 0] = task.strength
    return ga.sequence_model(
        lambda u, noise, c: np.concatenate([np.array([1.0 - 2.0 * c]), u @ query]),
        lambda z: np.concatenate([np.zeros(1), z[:, 0]]),
        lambda y, z: np.logaddexp(0.0, -y[0] * attend(np.stack([y[1:], z[1:]], axis=1))), n_tokens=task.L,
        rank=1, teacher_rank=2, lam=lam, convex=True, intercept=True, classes=[task.positive, 1 - task.positive],
        spikes=spikes,
    )  # fmt: skip


class Steps(NamedTuple):
    """Weights after two gradient steps from zero: cosines of w and q with ξ, and the norm of q."""

    readout: float
    query: float
    norm: float


def two_steps(task: Task, alpha: float, rate: float) -> Steps:
    """Return the limit of the weights after two steps −rate · gradient of the mean loss, d → ∞ at n = α d.

    The first step gives w = (rate/2) mean(y x̄), with the means x̄ of the tokens. The second step is
    q = −(rate/(n L)) Σ_i h_i S_i w, S_i = Σ_l (x_l − x̄)(x_l − x̄)ᵀ, with the slope h_i of the loss at the field
    w·x̄_i + b, which includes the contribution rate y_i/(2 α L) of sample i to w. Deviations from the mean are
    independent of x̄, therefore q is the sum of w, of ξ, and of independent Gaussian noise.
    """
    L, R, positive, theta = task
    along = rate / 2 * positive * theta * R / L
    norm2 = along**2 + (rate / 2) ** 2 / (alpha * L)
    nodes, weights = hermegauss(101)
    weights = weights / weights.sum()
    first, second = {}, {}  # E[h], E[h²] of positive and negative samples, times their probabilities
    for y, probability in ((1, positive), (-1, 1 - positive)):
        mean = rate / 2 * (2 * positive - 1) + (y > 0) * theta * R / L * along + rate / 2 * y / (alpha * L)
        h = -y * expit(-y * (mean + np.sqrt(norm2 / L) * nodes))
        first[y], second[y] = probability * (weights @ h), probability * (weights @ h**2)
    spread = theta**2 * R * (L - R) / L  # ‖Σ_l (v_l − R/L) θ‖²
    of_w, of_signal = (L - 1) * (first[1] + first[-1]), spread * first[1] * along
    noise = ((L - 1) * norm2 * (second[1] + second[-1]) + spread * along**2 * second[1]) / alpha
    q_along = of_w * along + of_signal
    q_norm = np.sqrt(of_w**2 * norm2 + 2 * of_w * along * of_signal + of_signal**2 + noise)
    return Steps(along / np.sqrt(norm2), -q_along / q_norm, rate / L * q_norm)


class Features(NamedTuple):
    """Random samples after attention: labels y, weights, F (n, 3), ‖a‖, and white noise of the field."""

    y: np.ndarray
    weights: np.ndarray
    F: np.ndarray
    norms: np.ndarray
    noise: np.ndarray


def draw_features(task: Task, cosine: float, norm: float, log2_points: int = 13) -> Features:
    """Return features at a query with a given cosine with ξ and norm; norm 0 is a mean over the tokens."""
    L = task.L
    cube = qmc.Sobol(2 * L + 1, rng=np.random.default_rng(0)).random_base2(log2_points)
    white = ndtri(cube.clip(1e-12, 1 - 1e-12))
    parts = []
    for y, probability in ((1, task.positive), (-1, 1 - task.positive)):
        along, across = white[:, :L].copy(), white[:, L : 2 * L]
        along[:, : task.R] += task.strength * (y > 0)
        scores = norm * (cosine * along + np.sqrt(1 - cosine**2) * across)
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        n = len(white)
        F = np.stack([(attention * along).sum(1), (attention * across).sum(1), np.ones(n)], axis=1)
        parts.append((np.full(n, y), np.full(n, probability / n), F, np.linalg.norm(attention, axis=1), white[:, -1]))
    return Features(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class Fit(NamedTuple):
    """Fit of the read-out: c = (c_ξ, c_e, b), ω, V, ‖w‖², classification error, test loss and training risk over d."""

    c: np.ndarray
    omega: float
    V: float
    q: float
    error: float
    test: float
    train: float


def _prox(y: np.ndarray, field: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return argmin log(1 + exp(−y p)) + (p − field)²/(2 v), by Newton steps within a bracket."""
    low, high = np.minimum(field, field + y * v), np.maximum(field, field + y * v)
    p = field.copy()
    for _ in range(200):
        slope = expit(-y * p)
        residual = p - field - v * y * slope
        low, high = np.where(residual < 0, p, low), np.where(residual > 0, p, high)
        new = p - residual / (1 + v * slope * (1 - slope))
        new = np.where((new > low) & (new < high), new, (low + high) / 2)
        change, p = np.abs(new - p).max(), new
        if change < 1e-12 * (1 + np.abs(p).max()):
            break
    return p


def fit_readout(features: Features, alpha: float, lam: float) -> Fit:
    """Return the minimum of Σ_i loss_i + (λ d/2) ‖w‖² over w and b, for d → ∞ at n = α d.

    With g = −loss'(prox) at the prox of variance V ‖a‖², the conditions are λ c = α E[g F] (0 = E[g] for b),
    ω² = V² α E[‖a‖² g²] and 1/V = λ + α E[‖a‖² loss''/(1 + V ‖a‖² loss'')].
    """
    y, weights, F, norms, noise = features

    def parts(x: np.ndarray) -> tuple[np.ndarray, float, float, np.ndarray, np.ndarray]:
        c, omega, V = x[:3], float(np.exp(x[3])), float(np.exp(x[4]))
        field = F @ c + omega * norms * noise
        return c, omega, V, field, _prox(y, field, V * norms**2)

    def conditions(x: np.ndarray, lam: float) -> list[float]:
        c, omega, V, _, p = parts(x)
        slope, v = expit(-y * p), V * norms**2
        forces, curvature = alpha * (weights * y * slope) @ F, slope * (1 - slope)
        return [
            V * (lam * c[0] - forces[0]), V * (lam * c[1] - forces[1]), forces[2] / alpha,
            np.log(omega**2 / (V**2 * alpha * (weights @ (norms * slope) ** 2))),
            np.log(V * (lam + alpha * (weights @ (norms**2 * curvature / (1 + v * curvature))))),
        ]  # fmt: skip

    x = np.array([0.5, 0.0, 0.0, 0.0, 0.0])
    for penalty in np.geomspace(max(lam, 1.0), lam, 1 + int(np.ceil(4 * np.log10(max(lam, 1.0) / lam)))):
        solution = root(conditions, x, penalty, tol=1e-10)
        x = solution.x
    worst = float(np.abs(solution.fun).max())
    if not worst < MAX_RESIDUAL:
        raise ArithmeticError(f"the equations of the read-out are violated by {worst:.2g}: {solution.message}")
    c, omega, V, field, p = parts(x)
    size = float(c[0] ** 2 + c[1] ** 2 + omega**2)
    mean, spread = F @ c, omega * norms
    losses = [float(weights @ np.logaddexp(0, -y * values)) for values in (field, p)]
    return Fit(c, omega, V, size, float(weights @ ndtr(-y * mean / spread)), losses[0],
               alpha * losses[1] + lam / 2 * size)  # fmt: skip


def capacity(features: Features) -> float:
    """Return the largest n/d at which the samples are separable for d → ∞: 1/min_c E[(Z − c·ψ)₊²], ψ = y F/‖a‖.

    Divided by ‖a‖ > 0, the condition y (w·f + b) > 0 of a sample has a white Gaussian part that is independent of its
    other part c·ψ. Separability therefore is the existence of a positive vector in the sum of a random subspace and of
    the span of ψ, whose threshold follows from the conic kinematic formula (Candès and Sur, 2020).
    """
    psi, weights = features.y[:, None] * features.F / features.norms[:, None], features.weights

    def mean_square(c: np.ndarray) -> tuple[float, np.ndarray]:
        m = psi @ c
        tail, density = ndtr(-m), np.exp(-(m**2) / 2) / np.sqrt(2 * np.pi)
        return float(weights @ ((1 + m**2) * tail - m * density)), psi.T @ (weights * 2 * (m * tail - density))

    return 1 / float(minimize(mean_square, np.zeros(3), jac=True, method="BFGS", options={"gtol": 1e-9}).fun)
