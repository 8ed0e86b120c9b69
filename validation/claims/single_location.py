"""Single-location regression with one or several heads: population risks, runs at finite d, and staged specialization.

The target is the value u_ε = x_ε·v*/√d of one of L tokens, plus noise, and the student is softmax(z_k)ᵀ z_v
(arXiv 2509.21936). "Spiked": the mean of token ε is shifted by √ν along the key k*, a model with classes. "Max": ε is
drawn from softmax(ν χ) for the keys χ = x·k*/√d.

Method: (1) The population risk E(u_ε − f)² of softmax attention at k = c_ν k*, v = v*, with c_ν = √ν (spiked) or ν
(max), against the Bayes risk by Monte Carlo; and of the best linear attention, Σ_l (1 + z_k) z_v, for spiked tokens
against its closed form L/(ν + L²/(L − 1)), derived in the manual, by evaluation at its minimum and next to it. (2)
Trajectories of message passing at growing d against state evolution, in all overlaps at every iteration, for softmax
and linear attention. (3) Minima from an informed start at growing d, with their test errors, against fixed points of
state evolution, which have to be accurate and consistent with replica symmetry; the gradient at the end of every run
by torch. (4) Several heads (arXiv 2603.03993), for a random token with spike k₁ ± k₂ ± k₃ of coefficients 0.5, 3 and 2,
by single-pass gradient descent: runs against theory from an informed start, and theory from a nearly uninformed start,
for heads with a common normalization and for the mean of heads. (5) The Bayes-optimal error of spiked tokens, for a
class that is not observed: state evolution for several α, message passing at growing d and α = 2, and the posterior
mean by Hamiltonian Monte Carlo, which evaluates the density of tokens and targets and nothing of the package; for max
tokens state evolution at α = 4.

Criterion: softmax attention has the Bayes risk within four standard errors, and linear attention the closed form,
which is lower than its neighbors. Means of runs agree with the theory within four standard errors at the largest d,
and state evolution is accurate and consistent. Gradients by torch are below 1e-6 λ√d. The heads align with feature 1
before they differ, and differ in feature 2 before they differ in feature 3. Bayes-optimal message passing agrees with
its state evolution within four standard errors at the largest d, in q of key and value, both as overlap and as squared
norm. Its estimate differs from the posterior mean by at most 0.1 of its norm at d = 60, and by
less at d = 240. The Bayes-optimal error decreases with α, is below the error of trained attention, and is within 2 % of
the population Bayes risk at α = 1000. (Pages on single-location regression and on several heads.)
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

import gamp_attention as ga
from validation._tools.agreement import gradient_norm_by_torch, mean_and_spread
from validation._tools.drawing import figure
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

NOISE, LAM, ALPHA, NU = 0.5, 0.5, 4.0, 4.0
ITERATIONS, DAMPING, SIGMAS, MAX_GRADIENT, RTOL = 12, 0.3, 4.0, 1e-6, 2e-2
FINITE_SIZE = 2.0  # allowed difference in units of 1/d
DIMS, INSTANCES, QUICK_DIMS, QUICK_INSTANCES = (500, 1000, 2000), 5, (200,), 4
N_TEST = 8000  # number of new samples of test errors
POINTS = {"n_points": 2**13, "n_replicas": 8}  # of population losses
SPIKE = np.array([0.5, 3.0, 2.0])  # coefficients of the three features of a token with several heads
HEADS, STEPS, LR = 4, 300, 0.05
RUNS, QUICK_RUNS = 12, 6  # runs of gradient descent
BAYES_ALPHAS, BAYES_ALPHA, FAR_ALPHA = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 2.0, 1000.0
BAYES_DIMS, BAYES_RUNS, QUICK_BAYES_DIMS = (500, 1000, 2000), 8, (200,)
CHAINS, N_DRAWS, FAR_FROM_MEAN = (60, 240), 1500, 0.1  # d of Monte Carlo, its draws, and allowed relative difference
SPLIT = 0.05  # spread over the heads of the overlap with a feature at which they count as different


def softmax_head(z, xp=np):
    """Return the value, column 1, of the token that column 0 selects softly."""
    weights = xp.exp(z[:, 0] - z[:, 0].max())
    return (weights * z[:, 1]).sum() / weights.sum()


def linear_head(z, xp=np):
    """Return the values with weights that are linear in the keys."""
    return ((1 + z[:, 0]) * z[:, 1]).sum()


def joint_heads(z, xp=np):
    """Return the value, last column, with the exponentials of all heads, normalized together."""
    weights = xp.exp(z[:, :HEADS] - z[:, :HEADS].max()).sum(1)
    return (weights * z[:, HEADS]).sum() / weights.sum()


def mean_of_heads(z, xp=np):
    """Return the mean of the values that the heads select softly."""
    total = 0.0
    for head in range(HEADS):
        weights = xp.exp(z[:, head] - z[:, head].max())
        total = total + (weights * z[:, HEADS]).sum() / weights.sum()
    return total / HEADS


def spiked(student=softmax_head, L=2, nu=NU, lam=LAM):
    """Return the model in which the mean of a random token is shifted by √ν along the key."""
    spikes = [[[np.sqrt(nu) * (token == c), 0] for token in range(L)] for c in range(L)]
    return ga.sequence_model(
        lambda u, noise, c: u[c, 1] + NOISE * noise[0], student, n_tokens=L, rank=2, n_noise=1, lam=lam,
        classes=np.full(L, 1 / L), spikes=spikes,
    )  # fmt: skip


def largest(student=softmax_head, L=2, nu=2.0, lam=LAM):
    """Return the model in which the location is drawn from softmax(ν χ); noise[1] is the quantile of the location."""

    def teacher(u, noise):
        weights = np.exp(nu * (u[:, 0] - u[:, 0].max()))
        bound, value = ndtr(noise[1]) * weights.sum(), u[L - 1, 1]
        for token in range(L - 2, -1, -1):
            value = np.where(bound < weights[: token + 1].sum(), u[token, 1], value)
        return value + NOISE * noise[0]

    return ga.sequence_model(teacher, student, n_tokens=L, rank=2, n_noise=2, lam=lam)


def several_heads(student):
    """Return the model whose random token has one of four spikes."""
    signs = list(product((1, -1), repeat=2))
    spikes = np.zeros((2 * len(signs), 2, len(SPIKE) + 1))
    for number, (token, sign) in enumerate(product(range(2), signs)):
        spikes[number, token, :3] = SPIKE * (1, *sign)
    return ga.sequence_model(
        lambda u, noise, c: u[c // len(signs), 3], student, n_tokens=2, rank=HEADS + 1, teacher_rank=4, lam=1e-3,
        classes=np.full(len(spikes), 1 / len(spikes)), spikes=spikes,
    )  # fmt: skip


def risk_at(model, scales):
    """Return E(u_ε − f)² and its error for k = scales[0] k*, v = scales[1] v*."""
    S, size = model.n_sources, np.diag(scales)
    theta = np.tile(size, (S, 1, 1))
    m = np.zeros((S, 2)) if model.coordinates.spikes is None else model.coordinates.spikes @ size
    loss = ga.population_loss(model, ga.Overlaps(theta @ theta, m, theta, np.full((S, 2, 2), np.nan)), **POINTS)
    return 2 * float(loss.value) - NOISE**2, 2 * float(loss.error)


def bayes_risk(kind, L, nu, n=200_000):
    """Return the mean posterior variance of u_ε for known weights, and its standard error, by Monte Carlo."""
    rng = np.random.default_rng(L)
    chi, values = rng.standard_normal((2, n, L))
    if kind == "spiked":
        chi[:, 0] += np.sqrt(nu)
    strength = np.sqrt(nu) if kind == "spiked" else nu
    weights = np.exp(strength * (chi - chi.max(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    variances = (weights * values**2).sum(axis=1) - (weights * values).sum(axis=1) ** 2
    return variances.mean(), variances.std() / np.sqrt(n)


def best_linear(L, nu):
    """Return the scales of the best linear attention on spiked tokens, and its risk L/(ν + L²/(L − 1))."""
    x = nu * (L - 1) / L
    return (x / np.sqrt(nu), (1 + x) / (L - 1 + (1 + x) ** 2 + L * x**2 / nu)), L / (nu + L**2 / (L - 1))


def check_population(verdict, table, quick):
    """Compare population risks with Bayes risks and with the closed form of linear attention."""
    rows = []
    for kind, L, nu in product(("spiked", "max"), (2,) if quick else (2, 3), (1.0, 4.0)):
        build, strength = (spiked, np.sqrt(nu)) if kind == "spiked" else (largest, nu)
        risk, error = risk_at(build(L=L, nu=nu), (strength, 1.0))
        bayes, spread = bayes_risk(kind, L, nu)
        distance = abs(risk - bayes) / np.hypot(error, spread)
        verdict.check(distance < SIGMAS, f"{kind}, L = {L}, ν = {nu:g}: softmax is {distance:.1f} errors from Bayes")
        row = {"Bayes": f"{bayes:.4f}", "softmax": f"{risk:.4f}", "linear": "", "closed form": "", "L/((L−1)ν)": ""}
        if kind == "spiked":
            scales, exact = best_linear(L, nu)
            model = spiked(linear_head, L, nu)
            linear, error = risk_at(model, scales)
            near = [risk_at(model, scales * np.array(f))[0] for f in ((1.2, 1), (0.8, 1), (1, 1.1), (1, 0.9))]
            good = abs(linear - exact) < SIGMAS * error and min(near) > linear
            verdict.check(good, f"L = {L}, ν = {nu:g}: the best linear attention has {linear:.4f}, exact {exact:.4f}")
            row |= {"linear": f"{linear:.4f}", "closed form": f"{exact:.4f}", "L/((L−1)ν)": f"{L / ((L - 1) * nu):.4f}"}
        table[f"{kind}, L = {L}, ν = {nu:g}"] = row
        rows.append([kind, L, nu, bayes, spread, risk, error])
    return rows


class Case(NamedTuple):
    """Model of a comparison with runs: its function, student, sample complexity and largest dimension."""

    build: Callable
    student: Callable = softmax_head
    alpha: float = ALPHA
    largest_d: int = DIMS[-1]

    def model(self):
        """Return the model."""
        return self.build(self.student)

    @property
    def damping(self):
        """Step of trajectories, which is smaller for more samples, because deviations grow with α."""
        return DAMPING * ALPHA / self.alpha


CASES = {
    "spiked, softmax": Case(spiked),
    "max, softmax": Case(largest),
    "spiked, linear": Case(spiked, linear_head),
    "spiked, linear, α = 16": Case(spiked, linear_head, 16.0, 1000),
}


def flat(overlaps, times=False):
    """Return the entries of q, m, θ and V in one row, or in one row for each time."""
    arrays = overlaps.arrays().values()
    return np.concatenate([v.reshape(len(v), -1) if times else v.ravel() for v in arrays], axis=-1)


def run_instance(name, d, seed):
    """Return the trajectory of one instance, its minimum from an informed start, and the gradient there by torch."""
    case = CASES[name]
    data = ga.sample(case.model(), d, case.alpha, seed=seed)
    path = ga.run_gamp(data, "semantic", damping=case.damping, max_iter=ITERATIONS, tol=0)
    run = ga.run_gamp(data, "semantic")
    return {
        "path": flat(path.history, times=True).tolist(),
        "converged": run.converged,
        "gradient": gradient_norm_by_torch(data, run.Q, case.student),
        "values": [
            *flat(run.overlaps).tolist(),
            run.train_loss,
            ga.sampled_test_error(data, run.Q, n_samples=N_TEST)[0],
        ],
    }


def compare(rows, predicted, stated, d):
    """Return the largest deviation of means over instances, in units of the errors of both."""
    mean, spread = mean_and_spread(rows)
    scale = np.abs(predicted).max(axis=0) if predicted.ndim > 1 else np.abs(predicted)
    ratio = np.abs(mean - predicted) / (spread + (stated + FINITE_SIZE * np.maximum(scale, 0.1) / d) / SIGMAS)
    return mean, float(np.nanmax(ratio))


def check_cases(verdict, table, rows, dims):
    """Compare trajectories and minima with state evolution."""
    numbers = {}
    for name, case in CASES.items():
        model = case.model()
        path = ga.trajectory(
            model, case.alpha, "semantic", ga.MessagePassing(damping=case.damping), n_iter=ITERATIONS, n_paths=8192,
            n_replicas=4,
        )  # fmt: skip
        theory = ga.solve_state_evolution(model, case.alpha, "semantic", rtol=RTOL)
        predicted = np.array([*flat(theory.overlaps), theory.train_loss, theory.test_error])
        stated = np.array([*flat(theory.overlaps_error), theory.train_loss_error, theory.test_error_error])
        for d in (d for d in dims if d <= case.largest_d):
            chosen = [row for row in rows if row["name"] == name and row["d"] == d]
            at = flat(path, times=True)
            _, on_path = compare([row["path"] for row in chosen], at, flat(path.error, times=True), d)
            mean, ratio = compare([row["values"] for row in chosen], predicted, stated, d)
            table[f"{name}, d = {d}"] = {
                "trajectory": f"{on_path:.1f}", "minimum": f"{ratio:.1f}", "q of v": f"{mean[3]:.4f}",
                "theory": f"{predicted[3]:.4f}", "ε_t": f"{mean[-2]:.4f}", "ε_t, theory": f"{predicted[-2]:.4f}",
                "E(u − f)²": f"{2 * mean[-1] - NOISE**2:.3f}",
                "E(u − f)², theory": f"{2 * predicted[-1] - NOISE**2:.3f}",
            }  # fmt: skip
            numbers[f"{name}, {d}"] = {"mean": mean.tolist(), "trajectory": on_path, "minimum": ratio}
        verdict.check(on_path < SIGMAS, f"{name}, d = {d}: trajectories are {on_path:.1f} standard errors from theory")
        said = f"state evolution is {theory.status.value}, {theory.validity}"
        good = theory.converged and theory.consistent and ratio < SIGMAS
        verdict.check(good, f"{name}, d = {d}: minima are {ratio:.1f} standard errors from it; {said}")
        numbers[name] = {"theory": predicted.tolist(), "stated": stated.tolist(), "validity": theory.validity}
    return numbers


def start_of(model, rng):
    """Return overlaps of nearly uninformed weights, with differences between the heads that break their symmetry."""
    S, theta = model.n_sources, 1e-2 * rng.standard_normal((HEADS + 1, 4))
    theta[HEADS] = 0
    return ga.Overlaps(
        np.tile(0.01 * np.eye(HEADS + 1), (S, 1, 1)), model.coordinates.spikes @ theta.T, np.tile(theta, (S, 1, 1)),
        np.full((S, HEADS + 1, HEADS + 1), np.nan),
    )  # fmt: skip


def check_heads(verdict, dims, runs):
    """Compare runs of several heads with theory, and return the overlaps of heads and features from a weak start."""
    paths, numbers = {}, {}
    for name, student in {"common normalization": joint_heads, "mean of heads": mean_of_heads}.items():
        model, method = several_heads(student), ga.SinglePass(lr=LR)
        theory = ga.trajectory(model, ALPHA, "semantic", method, 20, n_paths=4096, n_replicas=4)
        for d in dims:
            run = partial(ga.single_pass, model, d, ALPHA, "semantic", method, 20)
            ends = [flat(run(seed=seed).history, True) for seed in range(runs)]
            kept = np.isfinite(ends[0]).all(axis=0)
            at, stated = flat(theory, True)[:, kept], flat(theory.error, True)[:, kept]
            _, ratio = compare(np.array(ends)[:, :, kept], at, stated, d)
        verdict.check(ratio < SIGMAS, f"{name}, d = {d}: descents are {ratio:.1f} standard errors from theory")
        steps = 2 * STEPS if student is mean_of_heads else STEPS
        start = start_of(model, np.random.default_rng(0))
        path = ga.trajectory(model, ALPHA, start, method, steps, n_paths=1024, n_replicas=2)
        theta = path.theta[:, 0, :HEADS, :3]
        spread = theta.std(axis=1)
        first = [
            int(np.argmax(np.abs(theta[:, :, 0]).min(axis=1) > SPLIT)),
            *(int(np.argmax(spread[:, k] > SPLIT)) if spread[:, k].max() > SPLIT else steps + 1 for k in (1, 2)),
        ]
        said = f"heads align with feature 1 at step {first[0]}, differ in feature 2 at {first[1]}, in 3 at {first[2]}"
        verdict.check(0 < first[0] < first[1] < first[2], f"{name}: {said}")
        numbers[name] = {"ratio": ratio, "steps": first, "theta": theta[::10].tolist()}
        paths[name] = theta
    return numbers, paths


def sample_posterior(data, n_draws, rng):
    """Return the posterior mean of Q (d, 2) for spiked tokens, and the accepted fraction of draws.

    Hamiltonian Monte Carlo from the teacher's weights.
    """
    x, y, d = np.asarray(data.tokens), np.ravel(data.targets), data.dim
    step, n_steps = 0.12 * (60 / d) ** 0.25, 15

    def evaluate(Q):
        """Return the logarithm of the posterior density and its gradient."""
        u, mean = x @ Q / np.sqrt(d), np.sqrt(NU / d) * Q[:, 0]
        rest = y[:, None] - u[:, :, 1]
        logs = x @ mean - 0.5 * mean @ mean - 0.5 * (rest / NOISE) ** 2
        top = logs.max(axis=1)
        weight = np.exp(logs - top[:, None])
        value = (top + np.log(weight.sum(axis=1))).sum() - 0.5 * (Q**2).sum()
        weight /= weight.sum(axis=1)[:, None]
        along = np.sqrt(NU / d) * (np.tensordot(weight, x, 2) - weight.sum() * mean)
        return value, np.stack([along, np.tensordot(weight * rest / NOISE**2, x, 2) / np.sqrt(d)], axis=1) - Q

    Q, total, accepted = data.Q_star.copy(), 0.0, 0
    value, slope = evaluate(Q)
    for number in range(n_draws):
        start = rng.standard_normal(Q.shape)
        new, force, momentum = Q, slope, start
        for _ in range(n_steps):
            momentum = momentum + 0.5 * step * force
            new = new + step * momentum
            new_value, force = evaluate(new)
            momentum = momentum + 0.5 * step * force
        if np.log(rng.random()) < new_value - value + 0.5 * (start**2).sum() - 0.5 * (momentum**2).sum():
            Q, value, slope, accepted = new, new_value, force, accepted + 1
        total = total + (number >= n_draws // 10) * Q
    return total / (n_draws - n_draws // 10), accepted / n_draws


def run_bayes(d, seed):
    """Return q of key and value, as overlap and as squared norm, of Bayes-optimal message passing."""
    data = ga.sample(spiked(), d, BAYES_ALPHA, seed=seed)
    run = ga.run_bayes_amp(data)
    overlap, norm = np.diagonal(run.overlap), np.diagonal(run.history.norm[-1])
    return {"values": [*overlap.tolist(), *norm.tolist()], "converged": run.converged}


def run_chain(d):
    """Return the relative difference of message passing from the posterior mean, and the accepted fraction of draws."""
    data = ga.sample(spiked(), d, BAYES_ALPHA, seed=1)
    mean, accepted = sample_posterior(data, N_DRAWS, np.random.default_rng(0))
    run = ga.run_bayes_amp(data)
    return {"difference": float(np.linalg.norm(run.Q - mean) / np.linalg.norm(mean)), "accepted": accepted}


def check_bayes(verdict, rows, chains, trained, quick):
    """Compare the Bayes-optimal line with runs, Monte Carlo, the trained layer and the population Bayes risk."""
    model, points = spiked(), {}
    for alpha in (BAYES_ALPHA, ALPHA) if quick else BAYES_ALPHAS:
        points[alpha] = ga.solve_bayes_state_evolution(model, alpha)
    table, point = {}, points[BAYES_ALPHA]
    q, error = np.tile(np.diagonal(point.q), 2), np.tile(np.diagonal(point.q_error), 2)
    for d in sorted({row["d"] for row in rows}):
        mean, ratio = compare([row["values"] for row in rows if row["d"] == d], q, error, d)
        table[f"α = {BAYES_ALPHA:g}, d = {d}"] = {
            "q of k": f"{mean[0]:.4f}", "‖k‖²/d": f"{mean[2]:.4f}", "q of v": f"{mean[1]:.4f}",
            "‖v‖²/d": f"{mean[3]:.4f}", "E(u − f)²": "", "standard errors": f"{ratio:.1f}",
        }  # fmt: skip
    said = f"Bayes-optimal message passing, d = {d}: at most {ratio:.1f} standard errors from theory"
    verdict.check(ratio < SIGMAS and all(row["converged"] for row in rows), said)
    for alpha, found in points.items():
        table[f"α = {alpha:g}, theory"] = {
            "q of k": f"{found.q[0, 0]:.4f}", "‖k‖²/d": "", "q of v": f"{found.q[1, 1]:.4f}", "‖v‖²/d": "",
            "E(u − f)²": f"{found.test_error - NOISE**2:.4f}", "standard errors": "",
        }  # fmt: skip
    errors = np.array([found.test_error for found in points.values()]) - NOISE**2
    stated = np.array([found.test_error_error for found in points.values()])
    verdict.check((np.diff(errors) < 0).all(), f"Bayes-optimal errors decrease with α: {errors.round(4).tolist()}")
    bayes = points[ALPHA].test_error - NOISE**2
    said = f"at α = {ALPHA:g} the Bayes-optimal error is {bayes:.3f}, of trained attention {trained:.3f}"
    verdict.check(bayes + points[ALPHA].test_error_error < trained, said)
    far, (risk, _) = ga.solve_bayes_state_evolution(model, FAR_ALPHA), bayes_risk("spiked", 2, NU)
    ratio = (far.test_error - NOISE**2) / risk
    verdict.check(abs(ratio - 1) < 0.02, f"at α = {FAR_ALPHA:g} the Bayes-optimal error is {ratio:.4f} times the risk")
    gaps = [chain["difference"] for chain in chains]
    said = f"message passing differs from the posterior mean by {', '.join(f'{gap:.3f}' for gap in gaps)} of its norm"
    verdict.check(gaps[0] < FAR_FROM_MEAN and gaps[-1] <= gaps[0], f"{said} at d = {[c['d'] for c in chains]}")
    if not quick:
        largest_key = ga.solve_bayes_state_evolution(largest(), ALPHA, n_points=1024)
        table[f"max, α = {ALPHA:g}, theory"] = {
            "q of k": f"{largest_key.q[0, 0]:.4f}", "‖k‖²/d": "", "q of v": f"{largest_key.q[1, 1]:.4f}", "‖v‖²/d": "",
            "E(u − f)²": f"{largest_key.test_error - NOISE**2:.4f}", "standard errors": "",
        }  # fmt: skip
    numbers = {"alphas": list(points), "errors": errors.tolist(), "stated": stated.tolist(), "risk": risk, "far": ratio}
    return table, numbers | {"chains": chains, "rows": rows}


def draw(paths, bayes, trained, path):
    with figure(path, 1, 3, (9, 3.2)) as axes:
        last = axes.ravel()[2]
        last.semilogx(bayes["alphas"], bayes["errors"], "o-", color="#0072B2", label="Bayes-optimal")
        last.plot(ALPHA, trained, "s", color="#D55E00", label=f"softmax attention, λ = {LAM:g}")
        last.axhline(bayes["risk"], color="0.5", linestyle=":", label="Bayes risk, known weights")
        last.set(xlabel="samples per dimension α", ylabel="E(u − f)²", title="spiked tokens", ylim=(0, 1.3))
        last.set_xticks(bayes["alphas"], [f"{alpha:g}" for alpha in bayes["alphas"]])
        last.minorticks_off()
        last.legend(frameon=False)
        for axis, (name, theta) in zip(axes.ravel()[:2], paths.items(), strict=True):
            for feature in range(3):
                for head in range(HEADS):
                    label = f"feature {feature + 1}" if head == 0 else None
                    axis.plot(theta[:, head, feature], color=f"C{feature}", label=label)
            axis.set(xlabel="step", ylabel="overlap of a head with a feature", title=name)
        axes.ravel()[0].legend(frameon=False, loc=(0.45, 0.6))


def main():
    args = options(__doc__, workers=True)
    verdict = Verdict("single_location", args)
    dims, instances = (QUICK_DIMS, QUICK_INSTANCES) if args.quick else (DIMS, INSTANCES)
    first, second = {}, {}
    population = check_population(verdict, first, args.quick)
    plan = [
        {"name": name, "d": d, "seed": seed}
        for name, case in CASES.items()
        for d in dims
        if d <= case.largest_d
        for seed in range(instances)
    ]
    with pool(args) as executor:
        cells = folder(args, verdict.name)
        rows = run_trials(cells, run_instance, plan, executor)
        bayes_dims = QUICK_BAYES_DIMS if args.quick else BAYES_DIMS
        bayes_plan = [{"d": d, "seed": seed} for d in bayes_dims for seed in range(BAYES_RUNS)]
        bayes_rows = run_trials(cells / "bayes", run_bayes, bayes_plan, executor)
        chains = run_trials(cells / "chains", run_chain, [{"d": d} for d in CHAINS[: 1 if args.quick else 2]], executor)
    worst = max(row["gradient"] for row in rows if row["converged"])
    verdict.check(worst < MAX_GRADIENT, f"gradients of converged runs by torch: at most {worst:.1g}")
    cases = check_cases(verdict, second, rows, dims)
    heads, paths = check_heads(verdict, dims[:1], QUICK_RUNS if args.quick else RUNS)
    trained = 2 * cases["spiked, softmax"]["theory"][-1] - NOISE**2
    third, bayes = check_bayes(verdict, bayes_rows, chains, trained, args.quick)
    draw(paths, bayes, trained, verdict.path(".png"))
    tables = (
        counts_table(first, "{}", "population risk"), counts_table(second, "{}", "model"),
        counts_table(third, "{}", "Bayes-optimal, spiked"),
    )  # fmt: skip
    verdict.write_table("\n\n".join(tables))
    short = [{k: v for k, v in row.items() if k != "path"} for row in rows]
    verdict.end({"population": population, "cases": cases, "heads": heads, "rows": short, "bayes": bayes})


if __name__ == "__main__":
    main()
