"""Message passing on attention in plain numpy: data, GAMP, its state evolution, and the gradient of the loss.

The model is defined by Cui, Behrens, Krzakala and Zdeborová (arXiv 2402.03902), Section 5: a sample has two tokens x_1,
x_2 of d numbers, and the layer has one weight vector Q. Row l of the student's attention matrix softmax(z zᵀ) is
(s_l, 1 − s_l), with s_l = 1/(1 + exp(−z_l (z_1 − z_2))) and z_l = (x_l + p_l)·Q/√d. For d → ∞ the squared error of a
sample depends on z and on the teacher's attention t only, and the training loss is

    R(Q)/d = (1/d) Σ_μ ℓ_μ(z_μ) + (λ/2d) ‖Q‖²,    ℓ(z) = σ² Σ_l (s_l − t_l)²,    μ = 1, …, n = α d.

Arrays of fields have shape (2, n). `python gamp_on_one_page.py` compares message passing at d = 1000 with its theory.
"""

import numpy as np
from scipy.special import expit
from scipy.stats import norm, qmc

OMEGA, SIGMA, LAM = 0.3, 0.5, 0.01  # positional fraction of the teacher, standard deviation of the tokens, ridge
A = np.array([[0.6], [0.4]])  # probabilities with which the positional part of the teacher attends to token 1
SIGN = np.array([[1.0], [-1.0]])  # p_1 = −p_2


def attend(z):
    """Return s, the attention of both tokens to token 1."""
    return expit(z * (z[0] - z[1]))


def target(u):
    """Return t, the teacher's attention to token 1: a mixture of attention by content and by position."""
    return (1 - OMEGA) * attend(u) + OMEGA * A


def loss(z, t):
    """Return ℓ(z) (n,), its gradient (2, n), and the entries 11, 12, 22 of its Hessian (3, n)."""
    s, (z1, z2), zero = attend(z), z, np.zeros(z.shape[1])
    slope = s * (1 - s)  # derivative of s_l by a_l = z_l (z_1 − z_2)
    first, second = 2 * SIGMA**2 * (s - t) * slope, 2 * SIGMA**2 * slope * (slope + (s - t) * (1 - 2 * s))
    da = np.array([[2 * z1 - z2, -z1], [z2, z1 - 2 * z2]])  # ∂a_l/∂z_k
    dda = np.array([[2 + zero, -1 + zero, zero], [zero, 1 + zero, -2 + zero]])  # ∂²a_l/∂z_j∂z_k
    products = np.stack([da[:, 0] ** 2, da[:, 0] * da[:, 1], da[:, 1] ** 2], 1)
    hessian = np.sum(second[:, None] * products + first[:, None] * dda, axis=0)
    return SIGMA**2 * np.sum((s - t) ** 2, axis=0), np.sum(first[:, None] * da, axis=0), hessian


def objective(z, omega, t, V):
    """Return Σ_l (z_l − ω_l)²/(2 V_l) + ℓ(z), its gradient and its Hessian, with the shapes of `loss`."""
    value, gradient, (h11, h12, h22) = loss(z, t)
    curvature = np.array([h11 + 1 / V[0], h12, h22 + 1 / V[1]])
    return value + np.sum((z - omega) ** 2 / (2 * V), axis=0), gradient + (z - omega) / V, curvature


def minimize(z, *problem):
    """Return the minimum of the proximal objective next to z, by Newton steps that are shortened if they would rise."""
    (value, g, h), guard = objective(z, *problem), np.zeros(z.shape[1])
    for _ in range(200):
        lowest = (h[0] + h[2]) / 2 - np.hypot((h[0] - h[2]) / 2, h[1])  # eigenvalue, which is made positive
        a, c = h[[0, 2]] + guard + np.maximum(0, 0.01 - lowest)
        step = np.array([c * g[0] - h[1] * g[1], a * g[1] - h[1] * g[0]]) / (a * c - h[1] ** 2)
        trial, *derivatives = objective(z - step, *problem)
        falls = trial <= value + 1e-15
        z, value = np.where(falls, z - step, z), np.where(falls, trial, value)
        g, h = np.where(falls, derivatives[0], g), np.where(falls, derivatives[1], h)
        guard = np.where(falls, guard / 4, 4 * guard + 0.01)
        if np.all(falls) and np.abs(step).max() < 1e-12:
            break
    return z, value, h


def prox(omega, t, V):
    """Return the force g = (z − ω)/V and its slopes ∂g_l/∂ω_l, for the minimum z of the proximal objective.

    ℓ is even and not convex. Of the minima next to ω and three other points, the lowest is kept.
    """
    results = [minimize(z, omega, t, V) for z in (omega, -omega, SIGN * omega, omega.mean(0) + 0 * omega)]
    lowest, samples = np.argmin([value for _, value, _ in results], axis=0), np.arange(omega.shape[1])
    z = np.array([z for z, _, _ in results])[lowest, :, samples].T
    h = np.array([h for _, _, h in results])[lowest, :, samples].T
    dz = h[[2, 0]] / (h[0] * h[2] - h[1] ** 2) / V  # ∂z_l/∂ω_l = (H⁻¹)_ll/V_l
    return (z - omega) / V, (dz - 1) / V


def draw(d, alpha, rng):
    """Return X = (x + p)/√d (2, n, d), the teacher's attention t (2, n) and its weights (d,)."""
    x, teacher = SIGMA * rng.standard_normal((2, int(alpha * d), d)), rng.standard_normal(d)
    return (x + SIGN[:, :, None] / np.sqrt(d)) / np.sqrt(d), target(x @ teacher / np.sqrt(d)), teacher


def gamp(X, t, Q, n_iter, beta=0.3):
    """Return weights Q (d,) and variances V (2, 1) after `n_iter` iterations of message passing with step β.

    D is the Onsager term: it removes the contribution of each sample to the weights from the fields of this sample. The
    moving average of W g is its exact form for damped iterations.
    """
    V, D = np.full((2, 1), SIGMA**2 / (2 * LAM)), np.zeros(t.shape)
    for _ in range(n_iter):
        g, slopes = prox(X @ Q - D, t, V)
        precision = -(SIGMA**2) * slopes.sum() / len(Q)
        C = 1 / (LAM + precision)
        eta, W = C * (np.einsum("lnd,ln->d", X, g) + precision * Q), np.full((2, 1), SIGMA**2 * C)
        Q, V, D = (1 - beta) * Q + beta * eta, (1 - beta) * V + beta * W, (1 - beta) * D + beta * W * g
    return Q, V


def gradient(X, t, Q):
    """Return ∇R (d,) at weights Q; it vanishes at a fixed point of message passing."""
    return np.einsum("lnd,ln->d", X, loss(X @ Q, t)[1]) + LAM * Q


def state_evolution(alpha, q, m, theta, V=SIGMA**2 / (2 * LAM), n_iter=50, log2_points=11, beta=0.3, seed=0):
    """Return q = σ²‖Q‖²/d, m = p_1·Q/√d, θ = σ² Q·Q★/d and V at a fixed point of message passing for d → ∞.

    Damped iterations begin at the given overlaps. Expectations over the fields ω̃ of the student and u of the teacher,
    which are Gaussian with covariances q, θ and σ², are averages over quasi-random points with all signs of ω̃ and u.
    """
    normal = norm.ppf(qmc.Sobol(4, rng=seed).random_base2(log2_points)).T.reshape(2, 2, -1)
    normal = np.concatenate([normal, -normal, normal * SIGN[:, None], -normal * SIGN[:, None]], axis=2)
    for _ in range(n_iter):
        u = SIGMA * normal[0]
        field = theta / SIGMA**2 * u + np.sqrt(q - (theta / SIGMA) ** 2) * normal[1]
        g, _ = prox(field + m * SIGN, target(u), np.full((2, 1), V))
        m_hat, q_hat = alpha * np.mean(g * SIGN), alpha * np.mean(g**2)
        # Stein's lemma gives the mean slopes, also if the proximal map jumps
        products = alpha * np.array([np.mean(g * field), np.mean(g * u)])
        slope, theta_hat = np.linalg.solve([[q, theta], [theta, SIGMA**2]], products)  # α E ∂g/∂ω̃, α E ∂g/∂u
        C = 1 / (LAM - 2 * SIGMA**2 * slope)
        # a weight is C times a force with mean 2 (m̂ + σ² θ̂ Q★) and variance 2 σ² q̂
        mean_p, mean_teacher = 2 * C * m_hat, 2 * SIGMA**2 * C * theta_hat
        mean_square = mean_p**2 + mean_teacher**2 + 2 * (SIGMA * C) ** 2 * q_hat
        new = SIGMA**2 * mean_square, mean_p, SIGMA**2 * mean_teacher, SIGMA**2 * C
        q, m, theta, V = (1 - beta) * np.array([q, m, theta, V]) + beta * np.array(new)
    return q, m, theta, V


def main(d=1000, alpha=1.5):
    """Print the overlaps of message passing from two starts, their predictions, and the norm of the gradient."""
    rng = np.random.default_rng(0)
    X, t, teacher = draw(d, alpha, rng)
    starts = {
        "content": (teacher + 0.5 * rng.standard_normal(d), 1.25 * SIGMA**2, 0.0, SIGMA**2),
        "position": (0.25 * np.ones(d), (0.25 * SIGMA) ** 2, 0.25, 0.0),
    }
    for name, (start, *overlaps) in starts.items():
        Q, V = gamp(X, t, start, n_iter=100)
        print(f"attention by {name}, |∇R|/(λ√d) = {np.linalg.norm(gradient(X, t, Q)) / (LAM * np.sqrt(d)):.1e}")
        measured = [SIGMA**2 * Q @ Q / d, Q.mean(), SIGMA**2 * Q @ teacher / d, V[0, 0]]
        for symbol, number, predicted in zip("qmθV", measured, state_evolution(alpha, *overlaps), strict=True):
            print(f"  {symbol}: {number:8.4f}, predicted {predicted:8.4f}")


if __name__ == "__main__":
    main()
