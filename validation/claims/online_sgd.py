"""Single-pass gradient descent: runs at finite d against theory.

Method: runs of `single_pass` at growing d, from new samples at every step, for an attention layer, logistic regression
and single-location regression. Overlaps with teacher, positions and themselves, and the loss of each batch are compared
with `trajectory(..., SinglePass(...))`.

Criterion: means over the runs at the largest d agree with the theory at every step within four standard errors. (Page
"Theory of gradient descent" of the manual.)
"""

import numpy as np

import gamp_attention as ga
from validation._tools.drawing import figure
from validation._tools.report import counts_table, run_claim

STEPS, RUNS, QUICK_RUNS = 20, 12, 6
DIMS, QUICK_DIMS = (500, 1000, 2000), (200,)
SIGMAS = 4.0


def location(z):
    """Return the value, column 1, of the token that column 0 selects softly."""
    weights = np.exp(z[:, 0] - z[:, 0].max())
    return (weights * z[:, 1]).sum() / weights.sum()


def build_sequence():
    """Return single-location regression with noise in the targets."""
    noisy = {"n_tokens": 2, "rank": 2, "n_noise": 1, "lam": 0.1}
    return ga.sequence_model(lambda u, noise: location(u) + 0.3 * noise[0], location, **noisy)


# name: model, start, α, settings
CASES = {
    "attention, positional": (ga.paper_model, "positional", 1.5, {"lr": 2.0, "batch": 0.2}),
    "attention, semantic": (ga.paper_model, "semantic", 1.5, {"lr": 2.0, "batch": 0.2}),
    "logistic": (
        lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), "semantic", 2.0, {"lr": [0.5, 0.2], "batch": 0.1}
    ),
    "single location": (build_sequence, "semantic", 2.0, {"lr": 0.2, "batch": 0.1}),
}  # fmt: skip


def rows_of(path):
    """Return q, m, θ and the training loss at every step, (T + 1, ·)."""
    values = [path.q, path.m, path.theta, path.train_loss]
    return np.concatenate([value.reshape(STEPS + 1, -1) for value in values], axis=1)


def compare(name, d, runs):
    """Return predictions and means of runs (T + 1, ·), and the deviations in standard errors."""
    build, init, alpha, how = CASES[name]
    model = build()
    path = ga.trajectory(model, alpha, init, ga.SinglePass(**how), STEPS)
    stated = ga.Trajectory(**vars(path) | path.error.arrays() | {"train_loss": path.train_loss_error})
    risk = "asymptotic" if model.attention else "exact"
    histories = [
        ga.single_pass(model, d, alpha, init, ga.SinglePass(**how), STEPS, risk=risk, seed=seed).history
        for seed in range(runs)
    ]
    values = np.array([rows_of(history) for history in histories])
    error = np.sqrt(values.var(axis=0, ddof=1) / runs + rows_of(stated) ** 2)
    gap = np.abs(values.mean(axis=0) - rows_of(path))
    return rows_of(path), values.mean(axis=0), gap / np.maximum(error, 1e-9)


def judge(verdict):
    """Compute the numbers and check the criterion."""
    dims, runs = (QUICK_DIMS, QUICK_RUNS) if verdict.quick else (DIMS, RUNS)
    table, numbers = {}, {}
    for name in CASES:
        for d in dims:
            predicted, mean, ratio = compare(name, d, runs)
            table[f"{name}, d = {d}"] = {
                "largest deviation": f"{ratio.max():.1f}", "root mean square": f"{np.sqrt(np.mean(ratio**2)):.2f}"
            }  # fmt: skip
            numbers[f"{name}, {d}"] = {"predicted": predicted[:, -1].tolist(), "mean": mean[:, -1].tolist()}
        verdict.check(
            ratio.max() <= SIGMAS, f"{name}, d = {d}: at most {ratio.max():.1f} standard errors from the theory"
        )
    verdict.write_table(counts_table(table, "{}", "run"))
    return numbers | {"largest d": dims[-1]}


def draw(numbers, path):
    """Draw training losses with their theory."""
    with figure(path, 1, 1, (5.2, 3.8)) as axes:
        ax, d = axes[0][0], numbers["largest d"]
        for number, name in enumerate(CASES):
            predicted, mean = (np.array(numbers[f"{name}, {d}"][key]) for key in ("predicted", "mean"))
            ax.plot(predicted / predicted[0], color=f"C{number}", label=name)
            ax.plot(mean / predicted[0], "o", ms=3, color=f"C{number}")
        ax.set(xlabel="iteration", ylabel="training loss / first loss", title=f"theory (lines), runs, d = {d}")
        ax.legend(frameon=False, fontsize=9.2)


def main():
    run_claim("online_sgd", __doc__, lambda quick: {}, judge, draw)


if __name__ == "__main__":
    main()
