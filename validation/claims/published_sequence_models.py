"""Published statements on single-location regression, several heads and sparse tokens, evaluated in numbers.

The three papers have curves, but no tables of numbers. Each statement of them that can be evaluated, such as a closed
form, a rate, a limit or an order, is compared with the package. Sources: the public code of arXiv 2410.01537, and
abstracts, reviews and summaries of arXiv 2509.21936, 2603.03993 and 2509.25153.

Method: (1) Single location. Risk of erf attention in closed form, as in the code of 2410.01537, derived here again by
integration by parts, against `population_loss` at random overlaps; and projected gradient descent on this risk with the
settings of that code, against `trajectory(..., SinglePass(...))` for many samples. Risk of softmax attention against an
integral over one number (2509.21936, proposition 4.2), its exponent (corollary 4.3), and linear attention: its risk for
ν → ∞, also by a minimization over all weights, and the limit L → ∞ for the token with the largest key. (2) Heads
(2603.03993): smallest risk of H heads with a common normalization for four spikes, by minimization with torch on random
samples, then by `population_loss`; the limit of strong spikes of two heads ±k with separate normalizations. (3) Sparse
tokens (2509.25153): 1 − cosine of the query at growing α, error of the mean token for many samples, convergence of
errors of the squared loss, and order of the errors at the parameters of its figure 1.

Criterion: numbers differ from published numbers by at most four times their errors, and orders and rates hold. The
smallest risk of linear attention, of which secondary sources quote different rates for L = 3, agrees with a
minimization over all weights within 1e-6. (Pages on these three models.)
"""

from functools import partial
from itertools import product

import numpy as np
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import erf, ndtr, roots_hermitenorm
from scipy.stats import norm

import gamp_attention as ga
from validation._tools.report import Verdict, counts_table, options, plus_minus
from validation._tools.sparse import Task, build_model, capacity, draw_features, fit_readout, two_steps
from validation.claims.single_location import NOISE, linear_head, risk_at, softmax_head, spiked

SIGMAS, POINTS = 4.0, {"n_points": 2**14, "n_replicas": 8}
NODES, WEIGHTS = roots_hermitenorm(200)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
DIM, L_ERF, GAMMA2, LAMBDA, STEP = 400, 10, 0.5, 0.1, 4e-3  # settings of the code of arXiv 2410.01537
DESCENT_STEPS, SHOWN = 3000, (500, 1000, 2000, 3000)
SPIKES = np.array([[0.5, 3 * a, 2 * b] for a, b in product((1, -1), repeat=2)])  # features of a token with four spikes


class Table:
    """Rows of statements: published value, value of the package with its error, and their difference in errors."""

    def __init__(self, verdict):
        self.verdict, self.rows, self.numbers = verdict, {}, []

    def add(self, name, published, ours, error, digits=4):
        """Add a statement with a published number, and check it."""
        ratio = abs(ours - published) / error if error else np.inf * (ours != published)
        words = f"{name}: published {published:.{digits}f}, ours {ours:.{digits + 1}f}"
        self.verdict.check(bool(ratio <= SIGMAS), words)
        self.rows[name] = {
            "published": f"{published:.{digits}f}", "ours": plus_minus(ours, error), "difference/error": f"{ratio:.1f}",
        }  # fmt: skip
        self.numbers.append([name, published, ours, error])

    def state(self, name, published, ours, holds):
        """Add a statement in words, and check whether it holds."""
        self.verdict.check(bool(holds), f"{name}: published {published}, ours {ours}")
        self.rows[name] = {"published": published, "ours": ours, "difference/error": "holds" if holds else "differs"}
        self.numbers.append([name, published, ours, bool(holds)])

    def text(self, title):
        """Return the table in Markdown."""
        return counts_table(self.rows, "{}", title)


# Single location


def erf_risk(k, v):
    """Return E(y − f)² of erf attention for unit vectors with components along k*, v* and two further directions.

    A token has the mean √(d/2) k* and variance γ², the others have mean 0 and variance 1. With G normal, integration by
    parts replaces factors g·v of a function of g·k by derivatives of F = E erf(a + bG) and Z = E erf²(a + bG) in a.
    """
    shift, gamma = np.sqrt(DIM / 2), np.sqrt(GAMMA2)
    kappa, theta, eta, nu, rho = k[0], v[0], k[1], v[1], k @ v

    def moments(a, b):
        x = a + b * NODES
        slope, bend = 2 / np.sqrt(np.pi) * np.exp(-(x**2)), -4 * x / np.sqrt(np.pi) * np.exp(-(x**2))
        F = [WEIGHTS @ erf(x), WEIGHTS @ slope, WEIGHTS @ bend]
        return F, [WEIGHTS @ erf(x) ** 2, WEIGHTS @ (2 * erf(x) * slope), WEIGHTS @ (2 * slope**2 + 2 * erf(x) * bend)]

    b = LAMBDA * gamma
    (F, Z), (F0, Z0) = moments(LAMBDA * shift * kappa, b), moments(0.0, LAMBDA)
    with_target = gamma * (shift * theta * eta * b * F[1] + gamma * (nu * F[0] + eta * rho * b**2 * F[2]))
    marked = (shift**2 * theta**2 + gamma**2) * Z[0] + 2 * shift * theta * gamma * rho * b * Z[1]
    marked += gamma**2 * rho**2 * b**2 * Z[2]
    other = Z0[0] + rho**2 * LAMBDA**2 * Z0[2]
    mean, mean0 = shift * theta * F[0] + gamma * rho * b * F[1], rho * LAMBDA * F0[1]
    crossed = 2 * (L_ERF - 1) * mean * mean0 + (L_ERF - 1) * (L_ERF - 2) * mean0**2
    return gamma**2 - 2 * with_target + marked + (L_ERF - 1) * other + crossed


def erf_head(z, xp=np):
    """Return the values with weights erf(λ key)."""
    from scipy.special import erf as function

    return (function(LAMBDA * z[:, 0]) * z[:, 1]).sum()


def erf_model():
    """Return single-location regression with the settings of the code of arXiv 2410.01537, for two places."""
    spikes, sigma = np.zeros((2, L_ERF, 2)), np.ones((2, L_ERF))
    spikes[(0, 1), (0, 1), 0], sigma[(0, 1), (0, 1)] = np.sqrt(DIM / 2), np.sqrt(GAMMA2)
    return ga.sequence_model(
        lambda u, noise, c: u[c, 1], erf_head, n_tokens=L_ERF, rank=2, lam=1e-9, classes=[0.5, 0.5], spikes=spikes,
        sigma=sigma,
    )  # fmt: skip


def overlaps_of(model, k, v):
    """Return the overlaps of the unit vectors k and v, whose first components are along the teacher's columns."""
    Q, variance = np.stack([k, v]), model.coordinates.gamma[0][:, None, None]
    m = model.coordinates.spikes @ Q[:, :2].T
    return ga.Overlaps(variance * (Q @ Q.T), m, variance * Q[:, :2], np.full((2 * L_ERF, 2, 2), np.nan))


def descend(k, v, step, n_steps):
    """Return κ and ν during projected gradient descent on the risk, by central differences of the closed form."""
    path, h = [(k[0], v[1])], 1e-6
    for _ in range(n_steps):
        gradients = []
        for which in range(2):
            g = np.zeros(4)
            for i in range(4):
                e = h * (np.arange(4) == i)
                plus, minus = ((k + s * e, v) if which == 0 else (k, v + s * e) for s in (1, -1))
                g[i] = (free_risk(*plus) - free_risk(*minus)) / (2 * h)
            gradients.append(g)
        k, v = (w - step * (g - (w @ g) * w) for w, g in zip((k, v), gradients, strict=True))
        k, v = k / np.linalg.norm(k), v / np.linalg.norm(v)
        path.append((k[0], v[1]))
    return np.array(path)


def free_risk(k, v):
    """Return the risk of the unit vectors in the direction of k and v."""
    return erf_risk(k / np.linalg.norm(k), v / np.linalg.norm(v))


def check_erf(table, quick):
    """Compare erf attention with the closed form and with the descent of the published code."""
    model, rng = erf_model(), np.random.default_rng(0)
    for number in range(2 if quick else 4):
        k, v = (w / np.linalg.norm(w) for w in rng.standard_normal((2, 4)))
        k, v = (k, v) if number else (np.array([0.6, 0, 0.8, 0]), np.array([0, 0.8, 0, 0.6]))
        found = ga.population_loss(model, overlaps_of(model, k, v), **POINTS)
        name = f"erf attention, risk at κ, ν = {k[0]:.2f}, {v[1]:.2f}"
        table.add(name, erf_risk(k, v), 2 * float(found.value), 2 * float(found.error))
    start = np.array([0.1, 0, np.sqrt(0.99), 0]), np.array([0, 0.1, 0, np.sqrt(0.99)])
    steps = DESCENT_STEPS // (10 if quick else 1)
    published = descend(*start, STEP, steps)
    alpha = 1e8
    path = ga.trajectory(
        model, alpha, overlaps_of(model, *start), ga.SinglePass(lr=2 * STEP / alpha, batch=1.0, spherical=True),
        n_iter=steps, n_paths=256 if quick else 8192, n_replicas=4,
    )  # fmt: skip
    for time in (t for t in SHOWN if t <= steps):
        for name, row, column, s in (("κ", 0, 0, -1), ("ν", 1, 1, -1)):
            ours, error = (values.theta[time, s, row, column] for values in (path, path.error))
            table.add(f"descent, {name} after {time} steps", published[time][row], float(ours), float(error) + 1e-3)


def softmax_risk(nu):
    """Return the Bayes risk of two spiked tokens for known weights, ½ E sech²(D/2) with D ~ N(ν, 2ν)."""

    def density(D):
        return 0.5 / np.cosh(D / 2) ** 2 * norm.pdf(D, nu, np.sqrt(2 * nu))

    return quad(density, -60, 60, points=[0.0], limit=400)[0]


def smallest_linear_risk(L, nu, n_starts=24):
    """Return the smallest risk of Σ_l (1 + z_k) z_v over all weights: components along k*, v* and outside of them.

    All moments of the fields are Gaussian, so that the risk is a polynomial of the components.
    """
    s, rng = np.sqrt(nu), np.random.default_rng(0)

    def risk(x):
        k, v = x[:3], x[3:]  # k*, v*, and one common further direction with a fourth one for the rest of v
        kk, vv, kv = k @ k, v @ v, k @ v[:3]
        mu_k, mu_v = s * k[0], s * v[0]
        # mean and second moments of p = (1 + χ) z of a token with means (mu_k, mu_v), and the product with u
        one = [(1 + a) * b + kv for a, b in ((mu_k, mu_v), (0.0, 0.0))]
        two = []
        for a, b in ((mu_k, mu_v), (0.0, 0.0)):
            A = 1 + a
            two.append(A**2 * (b**2 + vv) + b**2 * kk + kk * vv + 2 * kv**2 + 4 * A * b * kv)
        with_u = (1 + mu_k) * v[1] + mu_v * k[1]
        rest = L - 1
        square = two[0] + rest * two[1] + 2 * rest * one[0] * one[1] + rest * (rest - 1) * one[1] ** 2
        return 1 - 2 * with_u + square

    values = []
    for _ in range(n_starts):
        start = np.concatenate([rng.standard_normal(3), rng.standard_normal(4)])
        values.append(minimize(risk, start, method="BFGS", options={"gtol": 1e-10, "maxiter": 2000}).fun)
    return min(values)


def largest_of(L):
    """Return the mean of the largest of L standard normal numbers."""
    return quad(lambda x: x * L * norm.pdf(x) * ndtr(x) ** (L - 1), -10, 12, limit=200)[0]


def check_single_location(table, quick):
    """Compare softmax and linear attention with statements of arXiv 2509.21936."""
    check_erf(table, quick)
    for nu in (2.0, 5.0):
        risk, error = risk_at(spiked(softmax_head, 2, nu), (np.sqrt(nu), 1.0))
        table.add(f"softmax = Bayes risk, L = 2, ν = {nu:g}", softmax_risk(nu), risk, error)
    nus = np.array([100.0, 200.0])
    slope = -np.diff(np.log([softmax_risk(nu) * np.sqrt(nu) for nu in nus]))[0] / np.diff(nus)[0]
    table.state("softmax, ν → ∞: error decreases as exp(−cν)", "c > 0", f"c = {slope:.4f}", abs(slope - 0.25) < 1e-3)
    for L in (2, 3):
        closed, found = L / (20 + L**2 / (L - 1)), smallest_linear_risk(L, 20.0)
        words = f"L = {L}, ν = 20: search {found:.7f}, closed form {closed:.7f}"
        table.verdict.check(abs(found - closed) < 1e-6, words)
        if L == 2:  # for L = 3 secondary sources quote different rates
            table.add("linear, ν → ∞: limit of ν E, L = 2", L / (L - 1), 1e6 * L / (1e6 + L**2 / (L - 1)), 1e-4)
    for L in (2, 3):
        closed = 1 - (1 + largest_of(L) ** 2) / L
        model = ga.sequence_model(
            lambda u, noise: u[np.argmax(u[:, 0]), 1] + NOISE * noise[0], linear_head, n_tokens=L, rank=2, n_noise=1
        )
        e = largest_of(L)
        risk, error = risk_at(model, (e, 1 / L))
        words = f"max, ν → ∞, L = {L}: linear attention has {risk:.4f}, closed form {closed:.4f}"
        table.verdict.check(abs(risk - closed) < SIGMAS * error, words)
    sizes = [2, 10, 100, 10_000]
    errors = [1 - (1 + largest_of(L) ** 2) / L for L in sizes]
    words = ", ".join(f"{e:.3f}" for e in errors)
    holds = np.all(np.diff(errors) > 0) and errors[-1] > 0.99
    table.state("max, ν → ∞: linear for L = 2, 10, 100, 10⁴", "→ 1", words, holds)
    model = ga.sequence_model(
        lambda u, noise: u[np.argmax(u[:, 0]), 1] + NOISE * noise[0], softmax_head, n_tokens=3, rank=2, n_noise=1
    )
    risks = [risk_at(model, (scale, 1.0))[0] for scale in (10.0, 100.0, 1000.0)]
    words = ", ".join(f"{r:.4f}" for r in risks)
    table.state("max, ν → ∞: softmax, L = 3, ‖k‖ = 10, 10², 10³", "→ 0", words, risks[-1] < 0.01 < risks[0])


# Several heads


def joint_heads(z, H, xp=np):
    """Return the value, last column, with the exponentials of H heads, normalized together."""
    weights = xp.exp(z[:, :H] - z[:, :H].max()).sum(1)
    return (weights * z[:, H]).sum() / weights.sum()


def four_spikes(H):
    """Return the model with H heads whose random token, one of two, has one of four spikes."""
    spikes = np.zeros((8, 2, 4))
    for number, (token, spike) in enumerate(product(range(2), SPIKES)):
        spikes[number, token, :3] = spike
    return ga.sequence_model(
        lambda u, noise, c: u[c // 4, 3], partial(joint_heads, H=H), n_tokens=2, rank=H + 1, teacher_rank=4,
        classes=np.full(8, 1 / 8), spikes=spikes,
    )  # fmt: skip


def best_heads(H, n=2**14):
    """Return keys (H, 3) and the scale of the value with the smallest risk on random samples, by L-BFGS in torch."""
    import torch

    rng, best = np.random.default_rng(0), (np.inf, None)
    fields = rng.standard_normal((n, 2, 4))
    fields[:, 0, :3] += SPIKES[np.arange(n) % 4]
    x = torch.tensor(fields)
    for _ in range(6):
        at = torch.tensor(np.concatenate([rng.standard_normal((H, 3)).ravel() * 2, [1.0]]), requires_grad=True)
        solver = torch.optim.LBFGS([at], max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

        def risk(at=at):
            scores = torch.logsumexp(x[:, :, :3] @ at[:-1].reshape(H, 3).T, dim=2)
            return ((x[:, 0, 3] - at[-1] * (torch.softmax(scores, 1) * x[:, :, 3]).sum(1)) ** 2).mean()

        def closure(at=at, solver=solver, risk=risk):
            solver.zero_grad()
            value = risk()
            value.backward()
            return value

        solver.step(closure)
        value = float(risk().detach())
        if value < best[0]:
            best = value, at.detach().numpy().copy()
    return best[1][:-1].reshape(H, 3), best[1][-1]


def risk_of_heads(keys, scale):
    """Return E(u − f)² and its error of heads with a common normalization, by `population_loss`."""
    H = len(keys)
    model, Q = four_spikes(H), np.zeros((H + 1, 4))
    Q[:H, :3], Q[H, 3] = keys, scale
    S = model.n_sources
    V = np.full((S, H + 1, H + 1), np.nan)
    overlaps = ga.Overlaps(np.tile(Q @ Q.T, (S, 1, 1)), model.coordinates.spikes @ Q.T, np.tile(Q, (S, 1, 1)), V)
    found = ga.population_loss(model, overlaps, **POINTS)
    return 2 * float(found.value), 2 * float(found.error)


def bayes_of_spikes(n=400_000):
    """Return the Bayes risk for known spikes, and its standard error."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, 2, 3))
    x[:, 0] += SPIKES[np.arange(n) % 4]
    logs = np.logaddexp.reduce(x @ SPIKES.T, axis=2)  # all spikes have the same norm
    w = 1 / (1 + np.exp(logs[:, 1] - logs[:, 0]))
    values = 2 * w * (1 - w)  # posterior variance of u, averaged over the values of the tokens
    return values.mean(), values.std() / np.sqrt(n)


def strong_spikes(L, plus_one):
    """Return the smallest risk of two heads ±k with separate normalizations, for a token with a strong spike ±k*.

    One head selects the token. The other has a uniform average of the other tokens, with 1 in the denominator for
    softmax-1: f = b (u + noise), whose noise has the variance (L − 1)/(L − 1 + [1])².
    """
    variance = (L - 1) / (L - 1 + plus_one) ** 2
    return variance / (1 + variance)


def check_heads(table, quick):
    """Compare heads with statements of arXiv 2603.03993."""
    (bayes, spread), risks = bayes_of_spikes(), {}
    for H in (1, 4) if quick else (1, 2, 3, 4, 5):
        risks[H] = risk_of_heads(SPIKES, 1.0) if H == 4 else risk_of_heads(*best_heads(H))
    risk, error = risks[4]
    table.add("common normalization = Bayes risk at H = 4 heads", bayes, risk, float(np.hypot(error, spread)))
    words = ", ".join(f"{H}: {value:.4f}" for H, (value, _) in risks.items())
    before = [value for H, (value, _) in risks.items() if H < 4]
    holds = min(before) > bayes + SIGMAS * np.hypot(error, spread)
    if 5 in risks:
        holds &= risks[5][0] > bayes - SIGMAS * np.hypot(risks[5][1], spread) and np.all(np.diff([*before, risk]) < 0)
    table.state("one head for each of 4 spikes: risk by H", "smallest at H = 4, no gain after it", words, holds)
    for L in (2, 5):
        floor, run = strong_spikes(L, 0), strong_run(L, 0)
        table.add(f"separate softmax, strong spikes: error > 0, L = {L}", floor, run, 2e-3)
    ones = [strong_spikes(L, 1) for L in (2, 5)]
    runs = [strong_run(L, 1) for L in (2, 5)]
    words = f"softmax-1: {np.round(runs, 4).tolist()} by search, {np.round(ones, 4).tolist()} in closed form"
    table.verdict.check(np.allclose(ones, runs, atol=2e-3), words)
    words = ", ".join(f"{one:.3f} ({strong_spikes(L, 0):.3f})" for L, one in zip((2, 5), ones, strict=True))
    table.state("softmax-1 (softmax): less noise from other heads", "smaller", words, ones[0] < 0.5 and ones[1] < 0.2)


def strong_run(L, plus_one, strength=400.0, n=2**15):
    """Return the smallest risk of two heads ±k over the norms of key and value, on random samples."""
    rng = np.random.default_rng(2)
    chi, z = rng.standard_normal((2, n, L))
    chi[:, 0] += strength

    def risk(x):
        f = 0.0
        for sign in (1, -1):
            scores = sign * np.exp(x[0]) * chi
            top = np.maximum(scores.max(axis=1, keepdims=True), 0.0 if plus_one else -np.inf)
            w = np.exp(scores - top)
            f = f + (w * z).sum(axis=1) / (w.sum(axis=1) + plus_one * np.exp(-top[:, 0]))
        b = (f @ z[:, 0]) / (f @ f)
        return np.mean((z[:, 0] - b * f) ** 2)

    return min(minimize(risk, [x], method="Nelder-Mead").fun for x in (-3.0, -1.0, 1.0))


# Sparse tokens

FIGURE = Task(10, 1, 0.5, 5.0)  # parameters of figure 1 of arXiv 2509.25153, which has λ = 1e-5
STEPS_TASK, RATE = Task(10, 3, 0.2, 6.0), 0.5  # parameters of the figure on the two steps


def square_model(L, spike):
    """Return ridge regression of labels ±1 on two clouds: the mean token, or all tokens as one vector."""
    return ga.sequence_model(
        lambda u, noise, c: 1.0 - 2.0 * c, lambda z: z[0, 0], n_tokens=1, rank=1, lam=1e-6, convex=True, intercept=True,
        classes=[0.5, 0.5], spikes=[[[spike]], [[0.0]]],
    )  # fmt: skip


def classification_error(theory):
    """Return the error of the sign of the prediction of two clouds."""
    m, q = theory.overlaps.m[:, 0], theory.overlaps.q[0, 0, 0]
    b = theory.intercept if hasattr(theory, "intercept") and np.isscalar(theory.intercept) else 0.0
    return float(0.5 * ndtr(-(m[0] + b) / np.sqrt(q)) + 0.5 * ndtr((m[1] + b) / np.sqrt(q)))


def check_sparse(table, quick):
    """Compare sparse-token classification with statements of arXiv 2509.25153."""
    alphas = (100.0, 1000.0, 10_000.0)
    gaps = [alpha * (1 - two_steps(STEPS_TASK, alpha, RATE).query) for alpha in alphas]
    words = ", ".join(f"{gap:.4f}" for gap in gaps)
    table.state("query: α (1 − cosine) at α = 10², 10³, 10⁴", "→ constant", words, abs(gaps[-1] / gaps[-2] - 1) < 1e-2)
    model, zero = build_model(STEPS_TASK, 0.1), np.zeros
    S = model.n_sources
    start = ga.Overlaps(zero((S, 2, 2)), zero((S, 2)), zero((S, 2, 1)), np.full((S, 2, 2), np.nan))
    path = ga.trajectory(model, 100.0, start, ga.GradientDescent(lr=RATE / 100.0), n_iter=2, n_paths=4096)
    place = STEPS_TASK.R
    cosine = float(path.theta[2, place, 0, 0] / np.sqrt(path.q[2, place, 0, 0]))
    table.add("query: cosine at α = 100, closed form", two_steps(STEPS_TASK, 100.0, RATE).query, cosine, 1e-4)
    L, strength = FIGURE.L, FIGURE.strength
    limit = float(ndtr(-strength / (2 * np.sqrt(L))))
    mean_token = draw_features(FIGURE, 0.0, 0.0)
    found = fit_readout(mean_token, 2000.0, 1e-3).error
    table.add("mean token: error for α → ∞ is Φ(−θR/(2√L))", limit, found, 2e-4)
    lam, rows = 0.1, {}
    query = two_steps(FIGURE, 4.0, RATE)
    features = draw_features(FIGURE, query.query, 1.0)
    for alpha in (4.0, 8.0) if quick else (4.0, 8.0, 16.0):
        attention = fit_readout(features, alpha, lam).error
        pooled = fit_readout(mean_token, alpha, lam).error
        # a linear classifier of all tokens is a classifier of one token in dimension L d with the same separation
        rows[alpha] = attention, pooled, fit_readout(mean_token, alpha / L, lam / L).error
    words = "; ".join(f"{a:.3f}, {p:.3f}, {v:.3f}" for a, p, v in rows.values())
    holds = all(a < p < v for a, p, v in rows.values())
    name = (
        f"figure 1 with λ = 0.1, errors of attention, mean token, all tokens at α = {', '.join(f'{a:g}' for a in rows)}"
    )
    table.state(name, "attention is lowest", words, holds)
    sizes = capacity(features), capacity(mean_token)
    words, holds = f"{L * sizes[1]:.2f} > {sizes[0]:.2f} > {sizes[1]:.2f}", L * sizes[1] > sizes[0] > sizes[1]
    table.state("figure 1, capacities: all tokens > attention > mean token", "order", words, holds)
    gaps = []
    for alpha in (20.0, 40.0, 80.0):
        theory = ga.solve_state_evolution(square_model(L, strength / np.sqrt(L)), alpha, "semantic", rtol=1e-3)
        gaps.append(alpha * (classification_error(theory) - limit))
    words = ", ".join(f"{gap:.3f}" for gap in gaps)
    name = "squared loss, mean token: α (error − limit) at α = 20, 40, 80"
    table.state(name, "→ constant", words, abs(gaps[-1] / gaps[-2] - 1) < 0.1)


def main():
    args = options(__doc__)
    verdict, numbers = Verdict("published_sequence_models", args), {}
    parts = {"location": check_single_location, "heads": check_heads, "sparse": check_sparse}
    for name, part in parts.items():
        table = Table(verdict)
        part(table, args.quick)
        verdict.write_table(table.text("statement"), f"_{name}.md")
        numbers[name] = table.numbers
    verdict.end({"statements": numbers})


if __name__ == "__main__":
    main()
