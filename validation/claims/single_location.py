"""Single-location regression with one or several heads: population risks, runs at finite d, and staged specialization.

The target is the value u_ε = x_ε·v*/√d of one of L tokens, plus noise, and the student is softmax(z_k)ᵀ z_v (arXiv
2509.21936). The mean of token ε is shifted by √ν along the key k*, a model with classes.

Method: (1) The population risk E(u_ε − f)² of softmax attention at k = √ν k*, v = v*, against the Bayes risk by Monte
Carlo; and of the best linear attention, Σ_l (1 + z_k) z_v, against its closed form L/(ν + L²/(L − 1)), derived in the
manual, by evaluation at its minimum and next to it. (2) Trajectories of message passing at growing d against state
evolution, in all overlaps at every iteration, for softmax and linear attention. (3) Minima from an informed start at
growing d, with their test errors, against fixed points of state evolution, which have to be accurate and consistent
with replica symmetry; the gradient at the end of every run by torch. (4) Several heads (arXiv 2603.03993), for a random
token with spike k₁ ± k₂ ± k₃ of coefficients 0.5, 3 and 2, by single-pass gradient descent: runs against theory from an
informed start, and theory from a nearly uninformed start, for heads with a common normalization and for the mean of
heads.

Criterion: softmax attention has the Bayes risk within four standard errors, and linear attention the closed form, which
is lower than its neighbors. Means of runs agree with the theory within four standard errors at the largest d, and state
evolution is accurate and consistent. Gradients by torch are below 1e-6 λ√d. The heads align with feature 1 before they
differ, and differ in feature 2 before they differ in feature 3. (Page "Sequence models" of the
manual.)
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from validation._tools.agreement import gradient_norm_by_torch, mean_and_spread
from validation._tools.drawing import figure
from validation._tools.report import counts_table, run_claim

NOISE, LAM, ALPHA, NU = 0.5, 0.5, 4.0, 4.0
ITERATIONS, DAMPING, SIGMAS, MAX_GRADIENT, RTOL = 12, 0.3, 4.0, 1e-6, 2e-2
FINITE_SIZE = 2.0  # allowed difference in units of 1/d
DIMS, INSTANCES, QUICK_DIMS, QUICK_INSTANCES = (500, 1000, 2000), 5, (200,), 4
N_TEST = 8000  # number of new samples of test errors
POINTS = {"n_paths": 2**13, "n_replicas": 8}  # of population losses
SPIKE = np.array([0.5, 3.0, 2.0])  # coefficients of the three features of a token with several heads
HEADS, STEPS, LR = 4, 300, 0.05
RUNS, QUICK_RUNS = 12, 6  # runs of gradient descent
EVERY = 10  # distance of stored steps
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
    weights = ga.Overlaps(theta @ theta, m, theta, np.full((S, 2, 2), np.nan))
    at = ga.trajectory(model, 1.0, weights, ga.SinglePass(), n_iter=1, **POINTS)  # the test error before the first step
    return 2 * at.test_error[0] - NOISE**2, 2 * at.test_error_error[0]


def bayes_risk(L, nu, n=200_000):
    """Return the mean posterior variance of u_ε for known weights, and its standard error, by Monte Carlo."""
    rng = np.random.default_rng(L)
    chi, values = rng.standard_normal((2, n, L))
    chi[:, 0] += np.sqrt(nu)
    weights = np.exp(np.sqrt(nu) * (chi - chi.max(axis=1, keepdims=True)))
    weights /= weights.sum(axis=1, keepdims=True)
    variances = (weights * values**2).sum(axis=1) - (weights * values).sum(axis=1) ** 2
    return variances.mean(), variances.std() / np.sqrt(n)


def best_linear(L, nu):
    """Return the scales of the best linear attention on spiked tokens, and its risk L/(ν + L²/(L − 1))."""
    x = nu * (L - 1) / L
    return (x / np.sqrt(nu), (1 + x) / (L - 1 + (1 + x) ** 2 + L * x**2 / nu)), L / (nu + L**2 / (L - 1))


def check_population(verdict, table, quick):
    """Compare population risks with Bayes risks and with the closed form of linear attention."""
    for L, nu in product((2,) if quick else (2, 3), (1.0, 4.0)):
        risk, error = risk_at(spiked(L=L, nu=nu), (np.sqrt(nu), 1.0))
        bayes, spread = bayes_risk(L, nu)
        distance = abs(risk - bayes) / np.hypot(error, spread)
        verdict.check(distance < SIGMAS, f"spiked, L = {L}, ν = {nu:g}: softmax is {distance:.1f} errors from Bayes")
        scales, exact = best_linear(L, nu)
        model = spiked(linear_head, L, nu)
        linear, error = risk_at(model, scales)
        near = [risk_at(model, scales * np.array(f))[0] for f in ((1.2, 1), (0.8, 1), (1, 1.1), (1, 0.9))]
        good = abs(linear - exact) < SIGMAS * error and min(near) > linear
        verdict.check(good, f"L = {L}, ν = {nu:g}: the best linear attention has {linear:.4f}, exact {exact:.4f}")
        values = {"Bayes": bayes, "softmax": risk, "linear": linear, "closed form": exact}
        table[f"spiked, L = {L}, ν = {nu:g}"] = {name: f"{value:.4f}" for name, value in values.items()}


class Case(NamedTuple):
    """Model of a comparison with runs: its student, sample complexity and largest dimension."""

    student: Callable = softmax_head
    alpha: float = ALPHA
    largest_d: int = DIMS[-1]

    def model(self):
        """Return the model."""
        return spiked(self.student)


CASES = {
    "spiked, softmax": Case(),
    "spiked, linear": Case(linear_head),
    "spiked, linear, α = 16": Case(linear_head, 16.0, 1000),
}


def flat(overlaps, times=False):
    """Return the entries of q, m, θ and V in one row, or in one row for each time."""
    arrays = overlaps.arrays().values()
    return np.concatenate([v.reshape(len(v), -1) if times else v.ravel() for v in arrays], axis=-1)


def run_instance(name, d, seed):
    """Return the trajectory of one instance, its minimum from an informed start, and the gradient there by torch."""
    case = CASES[name]
    data = ga.sample(case.model(), d, case.alpha, seed=seed)
    path = ga.run_gamp(data, "semantic", damping=DAMPING * ALPHA / case.alpha, max_iter=ITERATIONS, tol=0)
    run = ga.run_gamp(data, "semantic")
    test = ga.sampled_test_error(data, run.Q, n_samples=N_TEST)[0]
    return {
        "path": flat(path.history, times=True).tolist(),
        "converged": run.converged,
        "gradient": gradient_norm_by_torch(data, run.Q, case.student),
        "values": [*flat(run.overlaps).tolist(), run.train_loss, test],
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
        method = ga.MessagePassing(damping=DAMPING * ALPHA / case.alpha)
        path = ga.trajectory(model, case.alpha, "semantic", method, ITERATIONS, n_paths=8192, n_replicas=4)
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


def check_heads(verdict, d, runs):
    """Compare runs of several heads with theory, and return the overlaps of heads and features from a weak start."""
    numbers = {}
    for name, student in {"common normalization": joint_heads, "mean of heads": mean_of_heads}.items():
        model, method = several_heads(student), ga.SinglePass(lr=LR)
        theory = ga.trajectory(model, ALPHA, "semantic", method, 20, n_paths=4096, n_replicas=4)
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
        numbers[name] = {"ratio": ratio, "steps": first, "theta": theta[::EVERY].tolist()}
    return numbers


def plan(quick):
    """Return the instances of all cases."""
    dims, instances = (QUICK_DIMS, QUICK_INSTANCES) if quick else (DIMS, INSTANCES)
    sizes = [(name, d) for name, case in CASES.items() for d in dims if d <= case.largest_d]
    return {run_instance: [{"name": name, "d": d, "seed": seed} for name, d in sizes for seed in range(instances)]}


def judge(verdict, rows):
    """Check population risks, instances and several heads."""
    first, second = {}, {}
    check_population(verdict, first, verdict.quick)
    worst = max(row["gradient"] for row in rows if row["converged"])
    verdict.check(worst < MAX_GRADIENT, f"gradients of converged runs by torch: at most {worst:.1g}")
    dims = QUICK_DIMS if verdict.quick else DIMS
    cases = check_cases(verdict, second, rows, dims)
    heads = check_heads(verdict, dims[0], QUICK_RUNS if verdict.quick else RUNS)
    tables = counts_table(first, "{}", "population risk"), counts_table(second, "{}", "model")
    verdict.write_table("\n\n".join(tables))
    return {"cases": cases, "heads": heads}


def draw(numbers, path):
    """Draw the overlaps of heads and features against the step."""
    with figure(path, 1, 2, (9, 3.2)) as axes:
        for axis, (name, each) in zip(axes[0], numbers["heads"].items(), strict=True):
            theta = np.array(each["theta"])
            for feature in range(3):
                lines = axis.plot(EVERY * np.arange(len(theta)), theta[:, :, feature], color=f"C{feature}")
                lines[0].set_label(f"feature {feature + 1}")
            axis.set(xlabel="step", ylabel="overlap of a head with a feature", title=name)
        axes[0, 0].legend(frameon=False, loc=(0.45, 0.6))


def main():
    run_claim("single_location", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
