"""Survey propagation recovers the signal of phase retrieval from random starts.

Method: amplitudes |z★| without noise and the loss (|z| − y)², λ = 1e-3. `train(init="random", survey=True)` and
`run_gamp` from the same random weights, over α and d; a run recovers the signal if its cosine with it is at least 0.99.
The Bayes-optimal algorithm recovers the signal from `bayes_thresholds(...).full_recovery` on (d → ∞), and the published
state evolution of survey propagation at a fixed Parisi parameter from the α of `survey_recovery` on. In the first
version of the stored rows, averages over the inner field were sums over nodes instead of integrals that end at jumps
(entry "integrals"). All instances were repeated with these integrals.

Criterion: at the largest d, survey propagation recovers the signal in all instances at the largest α, and at each α in
at least as many instances as GAMP. (Page "Survey propagation" of the manual.)
"""

from functools import partial

import numpy as np
from scipy.stats import beta

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, figure
from gamp_attention.extensions.train.survey import LADDER
from gamp_attention.problem.starts import several_starts
from gamp_attention.problem.symmetries import agreement_of
from validation._tools.glasses import AmplitudeLoss
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

ALPHAS, LAM, RECOVERED = (1.15, 1.25, 1.5, 1.75, 2.0, 2.5), 1e-3, 0.99
SIZES = {200: 10, 500: 6, 1000: 4, 2000: 2}  # number of instances, by d
COLORS = {"survey": "#0072B2", "gamp": "#E69F00"}


def draw_amplitudes(d, alpha, seed):
    """Return data with the amplitudes of a signal, and the signal (d, 1)."""
    rng = np.random.default_rng([d, round(100 * alpha), seed])
    tokens, signal = rng.standard_normal((round(alpha * d), d)), rng.standard_normal((d, 1))
    return ga.LabelledDataset(tokens, np.abs(tokens @ signal)[:, 0] / np.sqrt(d), AmplitudeLoss(), lam=LAM), signal


def run_recovery(d, alpha, seed):
    """Return cosines with the signal and training losses of both methods from the same random weights."""
    data, signal = draw_amplitudes(d, alpha, seed)
    Q0 = several_starts(data, "random", 1, seed)[0][1]
    runs = {
        "survey": ga.train(data, Q0, survey=True, seed=seed, n_starts=1, escape=False),
        "gamp": ga.run_gamp(data, Q0),
    }
    informed = ga.train_loss(data, ga.run_gamp(data, signal).Q, "exact")
    return {
        name: {"cosine": agreement_of(data, run.Q, signal), "loss": run.train_loss / informed}
        for name, run in runs.items()
    }


def plan_runs(quick):
    """Return functions that compute the rows of each instance, by key, in the order of d."""
    sizes, alphas = ({100: 2}, (1.25, 2.5)) if quick else (SIZES, ALPHAS)
    return {
        f"{d} {alpha:g} {k}": partial(describe_recovery, d, alpha, k)
        for d in sizes for k in range(sizes[d]) for alpha in alphas
    }  # fmt: skip


def describe_recovery(d, alpha, seed):
    """Return the row of an instance with its key."""
    about = {"key": f"{d} {alpha:g} {seed}", "d": d, "alpha": alpha, "schedule": "present", "integrals": True}
    return [about | run_recovery(d, alpha, seed)]


def count_recoveries(rows, d, alpha, method):
    """Return the number of runs that recover the signal, and the number of instances."""
    cosines = [row[method]["cosine"] for row in rows if (row["d"], row["alpha"]) == (d, alpha)]
    return int(np.sum(np.array(cosines) >= RECOVERED)), len(cosines)


def list_values(rows, name):
    """Return the different values of a number in the rows."""
    return sorted({row[name] for row in rows})


def format_recoveries(rows, threshold):
    """Return the table of recoveries: for each α and d the numbers of survey propagation and GAMP."""
    sizes = list_values(rows, "d")
    heads = ["α", *(f"d = {d}: survey, GAMP" for d in sizes), "Bayes-optimal (d → ∞)"]
    lines = []
    for alpha in list_values(rows, "alpha"):
        cells = []
        for d in sizes:
            (k, n), (other, _) = (count_recoveries(rows, d, alpha, method) for method in COLORS)
            cells.append(f"{k}, {other} of {n}")
        lines.append([f"{alpha:g}", *cells, "recovers" if alpha > threshold else "fails"])
    return markdown_table(heads, lines)


def draw(path, rows, threshold):
    """Draw fractions of recovered signals against α, with Jeffreys intervals of 68 %."""
    from validation.claims.survey_recovery import PUBLISHED  # which imports this module

    with figure(path, 1, 1, (8.6, 4.2)) as axes:
        fractions = axes[0][0]
        alphas, sizes = list_values(rows, "alpha"), list_values(rows, "d")
        for method, label in (("survey", "survey propagation"), ("gamp", "GAMP")):
            for k, d in enumerate(sizes):
                n_recovered, n = np.array([count_recoveries(rows, d, alpha, method) for alpha in alphas]).T
                ends = beta.ppf([[0.16], [0.84]], n_recovered + 0.5, n - n_recovered + 0.5)
                errors = np.maximum(0, [n_recovered / n - ends[0], ends[1] - n_recovered / n])
                style = {"alpha": 0.35 + 0.65 * (k + 1) / len(sizes), "ms": 5, "lw": 1 + 0.4 * k, "elinewidth": 1}
                shift = 0.012 * (k - (len(sizes) - 1) / 2)  # so that the errors of different d do not overlap
                fractions.errorbar(
                    np.array(alphas) + shift, 100 * n_recovered / n, 100 * errors, fmt="os^D"[k % 4] + "-",
                    color=COLORS[method], label=f"{label}, d = {d}", **style,
                )  # fmt: skip
        fractions.axvline(threshold, color=DARK, ls="--", lw=1, label="Bayes-optimal algorithm, d → ∞")
        ends = [PUBLISHED[y].recovery for y in (100, 10)]
        fractions.axvspan(*ends, color="0.88", lw=0, label="published recovery, d → ∞, y = 100 to 10")
        fractions.set(xlabel="α", ylabel="signal recovered, %", title="amplitudes without noise, one random start")
        fractions.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))


def check_recoveries(verdict, rows):
    """Check the fractions of recovered signals, and return them."""
    d, alphas = max(list_values(rows, "d")), list_values(rows, "alpha")
    counts = {method: [count_recoveries(rows, d, alpha, method) for alpha in alphas] for method in COLORS}
    k, n = counts["survey"][-1]
    verdict.check(
        k == n, f"d = {d}, α = {alphas[-1]:g}: survey propagation recovers the signal in {k} of {n} instances"
    )
    fewer = [alpha for alpha, a, b in zip(alphas, counts["survey"], counts["gamp"], strict=True) if a[0] < b[0]]
    verdict.check(not fewer, f"d = {d}: numbers of α at which GAMP recovers the signal more often: {len(fewer)}")
    return {
        f"{method}, d = {size}": {f"{alpha:g}": count_recoveries(rows, size, alpha, method) for alpha in alphas}
        for method in COLORS for size in list_values(rows, "d")
    }  # fmt: skip


def compute_parisi(alpha, d, seeds):
    """Return the lowest and the highest Parisi parameter of the surveys of `train` in some instances."""
    data = [draw_amplitudes(d, alpha, seed)[0] for seed in range(seeds)]
    units = [ga.initial_survey(each, "exact", np.zeros((d, 1)))[1] for each in data]
    return min(LADDER) * min(units), max(LADDER) * max(units)


def main():
    args = options(__doc__, draw=True, stored=True)
    verdict = Verdict("survey_phase_retrieval", args)
    rows = verdict.complete_rows(plan_runs(args.quick))
    full = ga.bayes_thresholds(ga.glm_model(ga.PhaseRetrievalLoss())).full_recovery
    threshold = float(getattr(full, "value", full))
    draw(verdict.path(".png"), rows, threshold)
    if args.draw:
        return
    numbers = {"bayes_optimal": threshold, "recovery": check_recoveries(verdict, rows)}
    numbers["parisi"] = {f"{alpha:g}": compute_parisi(alpha, 200 if args.quick else 1000, 2) for alpha in ALPHAS}
    numbers["integrals"] = sum("integrals" in row for row in rows)
    verdict.write_table(format_recoveries(rows, threshold))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
