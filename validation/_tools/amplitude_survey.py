"""Survey propagation for phase retrieval with amplitudes in closed form: runs, and their limit in every iteration.

The loss (|z| − p)² with labels p that are independent of the tokens, one field and the ridge λ. For p ≥ 0 the proximal
map is z = sign(x)(|x| + 2Vp)/(1 + 2V), so that M = (|x| − p)²/(1 + 2V) and g = 2(sign(x) p − x)/(1 + 2V). The average
over the inner field x = ω + √U u with weight exp(−yM) is over two truncated Gaussians, for x > 0 and x < 0, and its
jumps are counted exactly (`average_samples`). For p < 0, 1 % of the samples, the map is continuous, and the average is
a sum over nodes.

**Every iteration for d → ∞** (`predict`). Because ḡ^t is a function of the present field ω^t, the memory cancels all
other responses, and with C_t = 1/(λ + V̂_t − yΔ_t)

    x^{t+1} = (1 − β_t) x^t + β_t C_t ζ_t,   cov(ζ_s, ζ_t) = α E[ḡ^s ḡ^t],   cov(ω^s, ω^t) = E[x^s x^t]

for Gaussian x, ζ and ω. The covariance of ḡ at two times follows from the Hermite coefficients of ḡ^t at each label:
E[ḡ^s ḡ^t | p] = Σ_k a_k^s(p) a_k^t(p) ρ^k with the correlation ρ of both fields. There is no sampling. Without damping
of the weights, β_t = 1, the norm of x^{t+1} depends on ω^t only, so that its fixed point is a solution with one step
of replica symmetry breaking, whether the weights come to rest or not.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from gamp_attention._tools.quadrature import legendre_panels

KINKED_NODES = np.linspace(-6.0, 6.0, 61)  # nodes of the inner field for negative labels
LABEL_PANELS = (-0.2, 0.0, 0.2, 2.5, 5.5)  # panels of the labels: their density changes over the noise at zero
LABEL_NODES, FIELD_NODES = 10, np.linspace(-7.0, 7.0, 101)  # nodes of a panel; nodes of ω in units of √q
DEGREES = np.arange(1, 80, 2)  # degrees of the Hermite polynomials: ḡ is an odd function of ω
LARGEST_GAIN = 0.9  # largest y C Δ, as in the package


class Averages(NamedTuple):
    """Averages over the inner field of each sample."""

    g: np.ndarray  # ⟨g⟩
    spread: np.ndarray  # ⟨g²⟩ − ⟨g⟩²
    response: np.ndarray  # yΔ − ∂⟨g⟩/∂ω, with jumps
    envelope: np.ndarray  # ⟨M⟩


class Step(NamedTuple):
    """Numbers of an iteration: its state, and what follows from the averages over samples."""

    W: float  # new V before damping
    W_inner: float  # new U before damping
    C: float  # response of the weights to a force
    A: float  # 1/C − λ, coefficient of the weights in their field
    energy: float  # mean training loss of the minima of the cluster


def average_samples(omega: np.ndarray, labels: np.ndarray, V: float, U: float, y: float) -> Averages:
    """Return the averages for centers ω and labels of equal shape (n,)."""
    result = Averages(*(np.empty(len(omega)) for _ in Averages._fields))
    negative = labels < 0
    for rows, average in ((~negative, _average_truncated), (negative, _average_nodes)):
        for values, part in zip(result, average(omega[rows], labels[rows], V, U, y), strict=True):
            values[rows] = part
    return result


def _average_truncated(omega: np.ndarray, labels: np.ndarray, V: float, U: float, y: float) -> Averages:
    """Return the averages for labels p ≥ 0: two Gaussians of precision τ, truncated at zero."""
    kappa, slope = y / (1 + 2 * V), 2 / (1 + 2 * V)
    tau = 1 / U + 2 * kappa
    logs, moments = [], []
    for side in (1.0, -1.0):
        mean = (omega / U + 2 * kappa * side * labels) / tau
        depth = side * mean * np.sqrt(tau)  # distance of the mean from zero in standard deviations
        logs.append(-kappa * (omega - side * labels) ** 2 / (1 + 2 * kappa * U) + log_ndtr(depth))
        ratio = side * np.exp(-0.5 * depth**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(depth)) / np.sqrt(tau)
        first, second = mean + ratio, mean**2 + 1 / tau + ratio * mean
        away, square = side * labels - first, labels**2 - 2 * side * labels * first + second
        moments.append([first, away, square, side * labels * first - second])
    weight = 1 / (1 + np.exp(logs[1] - logs[0]))
    x, away, square, product = weight * np.array(moments[0]) + (1 - weight) * np.array(moments[1])
    g, spread = slope * away, slope**2 * (square - away**2)
    return Averages(g, spread, y * spread - slope * (product - x * away) / U, square / (1 + 2 * V))


def _average_nodes(omega: np.ndarray, labels: np.ndarray, V: float, U: float, y: float) -> Averages:
    """Return the averages for labels p < 0, whose proximal map is zero for |x| < 2V|p|."""
    x, p = omega[:, None] + np.sqrt(U) * KINKED_NODES, labels[:, None]
    z = np.maximum(np.abs(x) + 2 * V * p, 0.0) / (1 + 2 * V)
    g, envelope = np.sign(x) * (z - np.abs(x)) / V, (z - np.abs(x)) ** 2 / (2 * V) + (z - p) ** 2
    weight = np.exp(-0.5 * KINKED_NODES**2 - y * (envelope - envelope.min(axis=1, keepdims=True)))
    weight /= weight.sum(axis=1, keepdims=True)
    numbers = g, g**2, g * KINKED_NODES, KINKED_NODES, envelope
    mean, square, product, u, M = (np.sum(weight * v, axis=1) for v in numbers)
    spread = square - mean**2
    return Averages(mean, spread, y * spread - (product - mean * u) / np.sqrt(U), M)


def take_step(sums: tuple[float, float, float, float], q: float, V: float, U: float, y: float, lam: float) -> Step:
    """Return the numbers of an iteration from Σ g², Σ Δ, Σ R and Σ M over samples, divided by d."""
    squares, spread, response, envelope = sums
    inner = 1 / (lam + response)
    gain = 1 - min(y * spread * inner, LARGEST_GAIN)
    energy = envelope - 0.5 * V * (squares + spread) + 0.5 * lam * (q + U)
    return Step(inner, (1 / gain - 1) * inner / y, inner / gain, gain / inner - lam, energy)


def run_iterations(
    tokens: np.ndarray, labels: np.ndarray, Q: np.ndarray, V: float, U: float, y: float, lam: float,
    weights: np.ndarray, variances: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return q_0, q_1, V, E and the cosine with the last weights at each iteration (T, 5), last weights and memory.

    Parameters
    ----------
    tokens : (n, d) tokens divided by √d.
    labels : (n,) labels.
    Q, V, U : (d,) weights and variances at the start.
    y, lam : Parisi parameter and strength of the ridge.
    weights, variances : (T,) steps β of the weights and their memory, and of V and U.
    """
    d, memory, path, cosine = len(Q), np.zeros(len(labels)), [], 0.0
    for beta, step_V in zip(weights, variances, strict=True):
        omega = (tokens @ Q.astype(tokens.dtype)).astype(float) - memory
        means = average_samples(omega, labels, V, U, y)
        sums = tuple(float(v.sum()) / d for v in (means.g**2, *means[1:]))
        q = float(np.mean(Q**2))
        step = take_step(sums, q, V, U, y, lam)
        path.append([q, q + U, V, step.energy, cosine])
        force = (means.g.astype(tokens.dtype) @ tokens).astype(float)
        new = (1 - beta) * Q + beta * step.C * (force + step.A * Q)
        cosine = float(new @ Q / np.linalg.norm(new) / np.linalg.norm(Q))
        memory = (1 - beta) * memory + beta * (step.W + y * step.W_inner) * means.g
        Q, V, U = new, (1 - step_V) * V + step_V * step.W, (1 - step_V) * U + step_V * step.W_inner
    return np.array(path), Q, memory


def predict(
    alpha: float, noise: float, lam: float, y: float, q: float, V: float, U: float, weights: np.ndarray,
    variances: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return q_0, q_1, V, E and the cosine with the last weights for d → ∞ at each iteration (T, 5).

    Labels are |N(0, 1)| plus noise of variance `noise`; `q` is the square of the weights at the start. The other
    parameters are the parameters of `run_iterations`.
    """
    labels, probability = _label_nodes(noise)
    u, density = FIELD_NODES, np.exp(-0.5 * FIELD_NODES**2)
    density /= density.sum()
    polynomials = hermite(u) * density
    T = len(weights)
    coefficients = np.empty((T, len(labels), len(DEGREES)))
    fields = np.zeros((T + 1, T + 1))  # E[x^s x^t]
    forces = np.zeros((T, T + 1))  # E[ζ_t x^s]
    fields[0, 0], path, gains = q, [], list[float]()
    for t, (beta, step_V) in enumerate(zip(weights, variances, strict=True)):
        q = fields[t, t]
        omega = np.sqrt(q) * np.tile(u, len(labels))
        means = [v.reshape(len(labels), len(u)) for v in average_samples(omega, np.repeat(labels, len(u)), V, U, y)]
        sums = tuple(alpha * float(probability @ (v @ density)) for v in (means[0] ** 2, *means[1:]))
        step = take_step(sums, q, V, U, y, lam)
        coefficients[t] = means[0] @ polynomials.T
        scale = np.sqrt(np.diag(fields)[: t + 1] * q)
        correlation = np.clip(fields[t, : t + 1] / scale, -1.0, 1.0)
        both = np.einsum("p,spk,pk->sk", probability, coefficients[: t + 1], coefficients[t])
        covariance = alpha * np.sum(both * correlation[:, None] ** DEGREES, axis=1)
        covariance[t] = sums[0]
        path.append([q, q + U, V, step.energy, correlation[t - 1] if t else 0.0])
        # forces of the present with all earlier weights, from x^{s+1} = (1 − β_s) x^s + β_s C_s ζ_s
        for s in range(t):
            forces[t, s + 1] = (1 - weights[s]) * forces[t, s] + weights[s] * gains[s] * covariance[s]
        gains.append(step.C)
        row = (1 - beta) * fields[t, : t + 1] + beta * step.C * forces[t, : t + 1]
        fields[t + 1, : t + 1] = fields[: t + 1, t + 1] = row
        cross = beta * (1 - beta) * step.C * forces[t, t]
        fields[t + 1, t + 1] = (1 - beta) ** 2 * q + 2 * cross + (beta * step.C) ** 2 * covariance[t]
        V, U = (1 - step_V) * V + step_V * step.W, (1 - step_V) * U + step_V * step.W_inner
    return np.array(path)


def _label_nodes(noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and probabilities of labels |N(0, 1)| plus noise of a variance."""
    p, width = legendre_panels(np.array(LABEL_PANELS), LABEL_NODES)
    p, width = p.ravel(), width.ravel()
    weight = width * np.exp(-0.5 * p**2 / (1 + noise)) * ndtr(p / np.sqrt(noise * (1 + noise)))
    return p, weight / weight.sum()


def hermite(u: np.ndarray) -> np.ndarray:
    """Return the orthonormal Hermite polynomials of `DEGREES` at the points u."""
    values = [np.ones(len(u)), u]
    for k in range(2, DEGREES[-1] + 1):
        values.append((u * values[-1] - np.sqrt(k - 1) * values[-2]) / np.sqrt(k))
    return np.array(values)[DEGREES]
