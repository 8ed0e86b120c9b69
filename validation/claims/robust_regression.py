"""Robust regression with outliers: Tukey's loss against Huber's loss, with the optimal λ of each.

Method: the setting of arXiv 2502.20003, labels u + √0.1 ξ of which a tenth is replaced by pure noise of variance 1. (1)
Estimation errors ‖Q − Q*‖²/d of state evolution against values computed by the authors' published code (repository
mvilucchio/linear-regression, commit 969f668, run for this comparison) and against one-dimensional integrals that are
computed without the package. (2) For α from 2 to 30, λ ≥ 10⁻³ and the width of each loss that minimize the error, found
by these integrals; state evolution of the package at the optimum, and at α = 3 also at half and twice the optimal λ.
(3) Message passing from random weights at α = 3 and growing d, at the optima. The gradient of the risk is computed by
torch from samples and weights only. (4) Tukey's loss of width 1 at α = 3: `validity` for large and small λ, and the
fraction of instances in which runs from the teacher and from three random starts end in different minima.

Criterion: errors agree with the integrals and with the authors' values to 1e-3. The optimum is a minimum over λ, and
Tukey's error is the smaller error at every α. Means over the instances agree with state evolution within four standard
errors plus 1/d of the value, and gradients by torch are below 1e-7 √d. `validity` is "consistent" if the replicon
eigenvalue of the integrals is below 1 and "inconsistent" if it is above 1, and runs end in different minima in the
latter case only. (Page "Your own loss" of the manual.)
"""

import numpy as np
import torch

import gamp_attention as ga
from validation._tools.drawing import figure
from validation._tools.report import counts_table, run_claim
from validation._tools.robust import Huber, Tukey, build_model, estimation_error, optimize, solve_scalar

KINDS = {"Huber": Huber, "Tukey": Tukey}
LOWEST_LAM, RTOL = 1e-3, 1e-3
AUTHORS = [  # loss, λ, error of the authors' code; α = 10
    (Huber(1.0), 0.1, 0.025013403), (Huber(1.0), 1.0, 0.042908163),
    (Tukey(2.0), 0.1, 0.01580367), (Tukey(2.0), 1.0, 0.0338496),
]  # fmt: skip
AUTHORS_ALPHA = 10.0
ALPHAS, QUICK_ALPHAS = (2.0, 3.0, 5.0, 10.0, 30.0), (3.0,)
RUN_ALPHA, DIMS, INSTANCES = 3.0, (500, 1000, 2000), 8
QUICK_DIMS = (200,)
SIGMAS, MAX_GRADIENT, MAX_DIFFERENCE = 4.0, 1e-7, 1e-3
SMALL_ALPHA, SMALL_WIDTH, SMALL_LAMS = 3.0, 1.0, (2.0, 1.0, 0.1, 0.05)
SMALL_DIM, SMALL_INSTANCES, QUICK_INSTANCES = 500, 8, 4
N_STARTS, SAME = 3, 1e-4  # number of random starts; relative distance of equal weights


def solve(loss, lam, alpha, rtol=RTOL, **options):
    """Return state evolution of a loss from the teacher's weights."""
    return ga.solve_state_evolution(build_model(loss, lam), alpha, "semantic", rtol=rtol, **options)


def check_values(verdict):
    """Compare the package with the authors' values and with integrals in one dimension; return rows."""
    rows = []
    for loss, lam, published in AUTHORS:
        ours = estimation_error(solve(loss, lam, AUTHORS_ALPHA, stability=False).overlaps)
        scalar = solve_scalar(loss, lam, AUTHORS_ALPHA).error
        rows.append({"loss": str(loss), "lam": lam, "authors": published, "integrals": scalar, "error": ours})
    worst = max(abs(row["error"] / row[name] - 1) for row in rows for name in ("authors", "integrals"))
    verdict.check(worst < MAX_DIFFERENCE, f"errors equal the authors' values and the integrals to {worst:.1g}")
    return rows


def check_optima(verdict, alphas):
    """Compare both losses at their optima; return rows, and the optimal λ and loss by name and α."""
    rows, optima = [], {}
    for alpha in alphas:
        for name, kind in KINDS.items():
            lam, loss = optimize(kind, alpha, LOWEST_LAM)
            optima[name, alpha] = lam, loss
            scalar, ours = solve_scalar(loss, lam, alpha), solve(loss, lam, alpha, stability=False)
            o = ours.overlaps
            rows.append({
                "name": name, "alpha": alpha, "lam": lam, "width": loss.width, "integrals": scalar.error,
                "error": estimation_error(o), "replicon": scalar.replicon,
                "predicted": [o.q[0, 0, 0], o.theta[0, 0, 0], estimation_error(o), ours.train_loss],
            })  # fmt: skip
    worst = max(abs(row["error"] / row["integrals"] - 1) for row in rows)
    verdict.check(worst < MAX_DIFFERENCE, f"optima of {len(rows)} losses equal the integrals to {worst:.1g}")
    errors = {name: np.array([row["error"] for row in rows if row["name"] == name]) for name in KINDS}
    gains = 1 - errors["Tukey"] / errors["Huber"]
    verdict.check((gains > 0).all(), f"Tukey's error is below Huber's by {gains.min():.0%} to {gains.max():.0%}")
    for name in KINDS:
        lam, loss = optima[name, RUN_ALPHA]
        best = next(row["error"] for row in rows if (row["name"], row["alpha"]) == (name, RUN_ALPHA))
        others = [
            estimation_error(solve(loss, factor * lam, RUN_ALPHA, 1e-2, stability=False).overlaps)
            for factor in (0.5, 2.0)
        ]
        verdict.check(best < min(others), f"{name}: λ = {lam:.4f} is optimal, error {best:.5f} < {min(others):.5f}")
    return rows, optima


def gradient_by_torch(data, Q, loss, lam):
    """Return the norm of the gradient of the risk at Q (d, 1), divided by √d."""
    weights = torch.tensor(Q[:, 0], requires_grad=True)
    t = torch.tensor(data.labels[:, 0]) - torch.tensor(np.asarray(data.tokens)[:, 0]) @ weights / data.dim**0.5
    w = loss.width
    if isinstance(loss, Huber):
        values = torch.where(t.abs() < w, 0.5 * t**2, w * t.abs() - 0.5 * w**2)
    else:
        values = w**2 / 6 * (1 - (1 - (t / w) ** 2).clamp(min=0) ** 3)
    (slope,) = torch.autograd.grad(values.sum() + 0.5 * lam * (weights**2).sum(), weights)
    return float(slope.norm()) / data.dim**0.5


def run_instances(loss, lam, alpha, d, instances):
    """Return (q, θ, error, training loss) of runs from random weights (instances, 4), and their largest gradient."""
    values, gradients = [], []
    for seed in range(instances):
        data = ga.sample(build_model(loss, lam), d, alpha, seed=seed)
        run = ga.run_gamp(data, "random", seed=seed)
        o, error = run.overlaps, float(np.sum((run.Q - data.Q_star) ** 2)) / d
        values.append([o.q[0, 0, 0], o.theta[0, 0, 0], error, run.train_loss])
        gradients.append(gradient_by_torch(data, run.Q, loss, lam))
    return np.array(values), max(gradients)


def check_runs(verdict, optimal, optima, dims):
    """Compare message passing at growing d with state evolution; return rows."""
    rows, largest = [], 0.0
    for optimum in [row for row in optimal if row["alpha"] == RUN_ALPHA]:
        name, predicted = optimum["name"], np.array(optimum["predicted"])
        lam, loss = optima[name, RUN_ALPHA]
        for d in dims:
            values, gradient = run_instances(loss, lam, RUN_ALPHA, d, INSTANCES)
            mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(INSTANCES)
            distance = float((np.abs(mean - predicted) / (spread + np.abs(predicted) / (d * SIGMAS))).max())
            verdict.check(distance < SIGMAS, f"{name}, d = {d}: {distance:.1f} standard errors from state evolution")
            largest = max(largest, gradient)
            rows.append({"name": name, "d": d, "mean": mean.tolist(), "error": spread.tolist(),
                         "predicted": predicted.tolist(), "distance": distance})  # fmt: skip
    verdict.check(largest < MAX_GRADIENT, f"gradients by torch: at most {largest:.1g} √d")
    return rows


def check_small_penalties(verdict, d, instances):
    """Compare `validity` at small λ with the minima from two starts; return rows."""
    rows, loss = [], Tukey(SMALL_WIDTH)
    for lam in SMALL_LAMS:
        theory, scalar = solve(loss, lam, SMALL_ALPHA, 1e-2), solve_scalar(loss, lam, SMALL_ALPHA)
        different, errors = 0, []
        for seed in range(instances):
            data = ga.sample(build_model(loss, lam), d, SMALL_ALPHA, seed=seed)
            starts = np.random.default_rng(seed).standard_normal((N_STARTS, d, 1))
            informed, *others = (ga.run_gamp(data, start, seed=seed).Q for start in (data.Q_star, *starts))
            distances = [np.linalg.norm(informed - Q) / np.linalg.norm(informed) for Q in others]
            different += bool(max(distances) > SAME)
            errors.append(float(np.sum((informed - data.Q_star) ** 2)) / d)
        row = {"lam": lam, "replicon": scalar.replicon, "validity": theory.validity, "different": different / instances}
        spread = float(np.std(errors, ddof=1) / np.sqrt(instances))
        rows.append(row | {"error": scalar.error, "measured": float(np.mean(errors)), "spread": spread})
    for row in rows:
        word = "consistent" if row["replicon"] < 1 else "inconsistent"
        text = f"λ = {row['lam']}: {row['validity']}; several minima in {row['different']:.0%} of the instances"
        verdict.check(row["validity"].startswith(word), text)
    unique, several = ([row["different"] for row in rows if (row["replicon"] < 1) == below] for below in (True, False))
    found = max(several) > 0 or d < SMALL_DIM  # the few small instances of --quick may have one minimum each
    verdict.check(max(unique) == 0 and found, "runs end in several minima only if the replicon exceeds 1")
    return rows


def judge(verdict):
    """Compute the numbers and check the criterion."""
    values = check_values(verdict)
    optimal, optima = check_optima(verdict, QUICK_ALPHAS if verdict.quick else ALPHAS)
    runs = check_runs(verdict, optimal, optima, QUICK_DIMS if verdict.quick else DIMS)
    sizes = (QUICK_DIMS[0], QUICK_INSTANCES) if verdict.quick else (SMALL_DIM, SMALL_INSTANCES)
    small = check_small_penalties(verdict, *sizes)
    shown = {
        f"{row['name']}, α = {row['alpha']:g}": {
            "optimal λ": f"{row['lam']:.3f}", "optimal width": f"{row['width']:.3f}",
            "error, integrals": f"{row['integrals']:.5f}", "error, state evolution": f"{row['error']:.5f}",
            "replicon": f"{row['replicon']:.3f}",
        }
        for row in optimal
    }  # fmt: skip
    verdict.write_table(counts_table(shown, "{}", "loss"))
    return {"values": values, "optima": optimal, "runs": runs, "small": small}


def draw(numbers, path):
    with figure(path, 1, 2, (8.4, 3.6)) as axes:
        left, right = axes.ravel()
        for name, color in zip(KINDS, ("C0", "C1"), strict=True):
            rows = [row for row in numbers["optima"] if row["name"] == name]
            left.loglog([row["alpha"] for row in rows], [row["error"] for row in rows], color=color, label=name)
        left.set(xlabel="samples per dimension α", ylabel="‖Q − Q*‖²/d", title="optimal λ and width")
        left.set_xticks([2, 3, 5, 10, 30], ["2", "3", "5", "10", "30"])
        left.set_xticks([], minor=True)
        left.legend(frameon=False)
        small = {key: [row[key] for row in numbers["small"]] for key in ("lam", "replicon", "different")}
        right.semilogx(small["lam"], small["replicon"], "o", color="C1", label="replicon eigenvalue")
        right.semilogx(small["lam"], small["different"], "s", color="0.4", label="fraction with several minima")
        right.axhline(1, color="0.7", lw=1)
        right.set(xlabel="λ", title="Tukey's loss, width 1, α = 3")
        right.legend(frameon=False)


def main():
    run_claim("robust_regression", __doc__, lambda quick: {}, judge, draw)


if __name__ == "__main__":
    main()
