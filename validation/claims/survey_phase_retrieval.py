"""Survey propagation recovers the signal of phase retrieval, and its fixed points are those of the replica method.

Recovery: amplitudes |z★| without noise and the loss (|z| − y)², λ = 1e-3. `run_gamp(init="random", survey=True)` and
`run_gamp` from the same random weights, over α and d; a run recovers the signal if its cosine with it is at least .99.
The Bayes-optimal algorithm recovers the signal from `bayes_thresholds(...).full_recovery` on (d → ∞).

Fixed points: the same loss at α = 3 without overlap with the signal: labels are |N(0, 1)| plus noise of variance .001,
independent of the tokens, λ = 1e-4. `survey_step(..., jumps=True)` at the published Parisi parameter 1.76699 at which
the complexity of one step of replica symmetry breaking vanishes; q₀ = ‖Q‖²/d, q₁ = q₀ + U and V are averages over the
last iterations and several instances. The published values are those of the code of Lucibello, Saglietti and Lu (2019),
who solve the equations for d → ∞ without ridge.

Criterion: at the largest d, survey propagation recovers the signal in all instances at the largest α, and at each α in
at least as many instances as GAMP. At the largest d the differences of q₁ and V from the published values are at most
5 %, and smaller than at the smallest d or below two standard errors. (Page "Survey propagation" of the manual.)
"""

from functools import partial
from operator import itemgetter

import numpy as np

import gamp_attention as ga
from gamp_attention.data.risk import agreement_of
from gamp_attention.data.starts import several_starts
from gamp_attention.experiments.figures import DARK, figure
from validation._tools.glasses import AmplitudeLoss
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_rows
from validation._tools.tables import markdown_table

ALPHAS, LAM, RECOVERED = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0), 1e-3, 0.99
SIZES = {200: 10, 500: 6, 1000: 4, 2000: 2}  # number of instances, by d
ALPHA, NOISE, PARISI, SMALL = 3.0, 0.001, 1.76699, 1e-4  # fixed points: α, variance of the noise, y, λ
PUBLISHED = {"q0": 0.4725506, "q1": 1.355108, "V": 0.4234896}
POINTS = {500: 6, 1000: 4, 2000: 2, 4000: 1}  # number of instances, by d
STEPS, LAST, NEAR = ((0.4, 40), (0.2, 80)), 40, 0.05  # steps and numbers of iterations; iterations of the averages
COLOURS = {"survey": "#0072B2", "gamp": "#E69F00"}


def draw_amplitudes(d, alpha, seed):
    """Return data with the amplitudes of a signal, and the signal (d, 1)."""
    rng = np.random.default_rng([d, round(100 * alpha), seed])
    tokens, signal = rng.standard_normal((round(alpha * d), d)), rng.standard_normal((d, 1))
    return ga.LabelledDataset(tokens, np.abs(tokens @ signal)[:, 0] / np.sqrt(d), AmplitudeLoss(), lam=LAM), signal


def run_recovery(d, alpha, seed):
    """Return cosines with the signal and training losses of both methods from the same random weights."""
    data, signal = draw_amplitudes(d, alpha, seed)
    Q0 = several_starts(data, "random", 1, seed)[0][1]
    runs = {"survey": ga.run_gamp(data, Q0, survey=True, seed=seed), "gamp": ga.run_gamp(data, Q0)}
    informed = ga.train_loss(data, ga.run_gamp(data, signal).Q, "exact")
    return {
        name: {"cosine": agreement_of(data, run.Q, signal), "loss": run.train_loss / informed}
        for name, run in runs.items()
    }


def run_fixed_point(d, seed):
    """Return q₀, q₁ and V of survey propagation at a fixed Parisi parameter, averaged over the last iterations."""
    rng = np.random.default_rng([d, seed, 1])
    tokens = rng.standard_normal((round(ALPHA * d), d))
    labels = np.abs(rng.standard_normal(len(tokens))) + np.sqrt(NOISE) * rng.standard_normal(len(tokens))
    data = ga.LabelledDataset(tokens, labels, AmplitudeLoss(), lam=SMALL)
    state, _ = ga.initial_survey(data, "exact", 0.5 * rng.standard_normal((d, 1)))
    path = []
    for step, n_iter in STEPS:
        for _ in range(n_iter):
            state, _ = ga.survey_step(data, "exact", state, step, PARISI, jumps=True)
            q0, U, V = np.mean(state.Q**2), state.U[0, 0, 0], state.V[0, 0, 0]
            path.append([q0, q0 + U, V])
    return dict(zip(PUBLISHED, np.mean(path[-LAST:], axis=0), strict=True))


def plan_runs(quick):
    """Return functions that compute the rows of each instance, by key; first instances of all sizes come first."""
    sizes, alphas, points = ({100: 2}, (1.25, 3.0), {200: 2}) if quick else (SIZES, ALPHAS, POINTS)
    plan = {}
    for k in range(max(*sizes.values(), *points.values())):
        for d in (d for d, n in points.items() if k < n):
            plan[f"point {d} {k}"] = partial(run_part, "point", d, ALPHA, k, partial(run_fixed_point, d, k))
        for d in (d for d, n in sizes.items() if k < n):
            for alpha in alphas:
                recovery = partial(run_recovery, d, alpha, k)
                plan[f"recovery {d} {alpha:g} {k}"] = partial(run_part, "recovery", d, alpha, k, recovery)
    return plan


def run_part(part, d, alpha, seed, function):
    """Return the row of an instance with its key."""
    key = f"recovery {d} {alpha:g} {seed}" if part == "recovery" else f"point {d} {seed}"
    about = {"key": key, "part": part, "d": d, "alpha": alpha}
    return [about | {name: value if isinstance(value, dict) else float(value) for name, value in function().items()}]


def count_recoveries(rows, d, alpha, method):
    """Return the number of runs that recover the signal, and the number of instances."""
    cosines = [row[method]["cosine"] for row in rows if (row["part"], row["d"], row["alpha"]) == ("recovery", d, alpha)]
    return int(np.sum(np.array(cosines) >= RECOVERED)), len(cosines)


def list_values(rows, part, name):
    """Return the different values of a number in the rows of a part."""
    return sorted({row[name] for row in rows if row["part"] == part})


def format_recoveries(rows, threshold):
    """Return the table of recoveries: for each α and d the numbers of survey propagation and GAMP."""
    sizes = list_values(rows, "recovery", "d")
    heads = ["α", *(f"d = {d}: survey, GAMP" for d in sizes), "Bayes-optimal (d → ∞)"]
    lines = []
    for alpha in list_values(rows, "recovery", "alpha"):
        cells = []
        for d in sizes:
            (k, n), (other, _) = (count_recoveries(rows, d, alpha, method) for method in COLOURS)
            cells.append(f"{k}, {other} of {n}")
        lines.append([f"{alpha:g}", *cells, "recovers" if alpha > threshold else "fails"])
    return markdown_table(heads, lines)


def compare_points(rows):
    """Return means and standard errors of q₀, q₁ and V by d."""
    points = {}
    for d in list_values(rows, "point", "d"):
        values = np.array(
            [[row[name] for name in PUBLISHED] for row in rows if (row["part"], row["d"]) == ("point", d)]
        )
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(3, np.nan)
        points[d] = {"n": len(values), "mean": values.mean(axis=0), "error": error}
    return points


def format_points(points):
    """Return the table of fixed points."""
    lines = [["published, d → ∞", "", *(f"{value:.4f}" for value in PUBLISHED.values())]]
    for d, row in points.items():
        cells = [plus_minus(*pair) for pair in zip(row["mean"], row["error"], strict=True)]
        lines.append([f"survey propagation, d = {d}", str(row["n"]), *cells])
    return markdown_table(["", "instances", "q₀", "q₁", "V"], lines)


def draw(path, rows, threshold):
    """Draw fractions of recovered signals against α, and deviations of fixed points against d."""
    points = compare_points(rows)
    with figure(path, 1, 2, (11, 4.2)) as axes:
        fractions, deviations = axes[0]
        alphas, sizes = list_values(rows, "recovery", "alpha"), list_values(rows, "recovery", "d")
        for method, label in (("survey", "survey propagation"), ("gamp", "GAMP")):
            for k, d in enumerate(sizes):
                counts = np.array([count_recoveries(rows, d, alpha, method) for alpha in alphas])
                style = {"alpha": 0.35 + 0.65 * (k + 1) / len(sizes), "ms": 5, "lw": 1 + 0.4 * k}
                name = f"{label}, d = {d}"
                fractions.plot(
                    alphas, 100 * counts[:, 0] / counts[:, 1], "os^D"[k % 4] + "-", color=COLOURS[method], label=name,
                    **style,
                )  # fmt: skip
        fractions.axvline(threshold, color=DARK, ls="--", lw=1, label="Bayes-optimal algorithm, d → ∞")
        fractions.set(xlabel="α", ylabel="signal recovered, %", title="amplitudes without noise, one random start")
        fractions.legend(fontsize=7, frameon=False)
        deviations.axhline(0, color=DARK, lw=0.8)
        labels = dict(zip(PUBLISHED, ("$q_0$", "$q_1$", "$V$"), strict=True))
        for k, (name, colour) in enumerate(zip(PUBLISHED, ("#0072B2", "#009E73", "#D55E00"), strict=True)):
            relative = [100 * (row["mean"][k] / PUBLISHED[name] - 1) for row in points.values()]
            errors = [100 * np.nan_to_num(row["error"][k]) / PUBLISHED[name] for row in points.values()]
            style = {"marker": "osD"[k], "color": colour, "label": labels[name], "capsize": 3}
            deviations.errorbar(list(points), relative, errors, **style)
        deviations.set(xscale="log", xlabel="d", ylabel="difference from the published value, %")
        deviations.set_title(f"fixed points at y = {PARISI:.3f}, α = 3, no overlap")
        deviations.set_xticks(list(points), [f"{d}" for d in points])
        deviations.minorticks_off()
        deviations.legend(frameon=False)


def check_recoveries(verdict, rows):
    """Check the fractions of recovered signals, and return them."""
    d, alphas = max(list_values(rows, "recovery", "d")), list_values(rows, "recovery", "alpha")
    counts = {method: [count_recoveries(rows, d, alpha, method) for alpha in alphas] for method in COLOURS}
    k, n = counts["survey"][-1]
    verdict.check(
        k == n, f"d = {d}, α = {alphas[-1]:g}: survey propagation recovers the signal in {k} of {n} instances"
    )
    fewer = [alpha for alpha, a, b in zip(alphas, counts["survey"], counts["gamp"], strict=True) if a[0] < b[0]]
    verdict.check(not fewer, f"d = {d}: numbers of α at which GAMP recovers the signal more often: {len(fewer)}")
    return {
        f"{method}, d = {size}": {f"{alpha:g}": count_recoveries(rows, size, alpha, method) for alpha in alphas}
        for method in COLOURS for size in list_values(rows, "recovery", "d")
    }  # fmt: skip


def check_points(verdict, points, quick):
    """Check q₁ and V against the published values, and return relative differences."""
    first, last = next(iter(points.values())), list(points.values())[-1]
    numbers = {}
    for k, name in enumerate(PUBLISHED):
        numbers[name] = {d: float(row["mean"][k] / PUBLISHED[name] - 1) for d, row in points.items()}
        if name == "q0":
            continue
        difference, before = (abs(float(row["mean"][k] / PUBLISHED[name] - 1)) for row in (last, first))
        most = 0.25 if quick else NEAR
        verdict.check(
            difference <= most, f"{name} at d = {max(points)}: {100 * difference:.2f} % from the published value"
        )
        errors = 2 * np.nan_to_num(first["error"][k]) / PUBLISHED[name]
        text = f"{name}: {100 * before:.2f} % at d = {min(points)}, {100 * difference:.2f} % at d = {max(points)}"
        verdict.check(difference <= max(before, errors, 0.01), text)
    return numbers


def main():
    args = options(
        __doc__, draw=True, stored={"action": "store_true", "help": "evaluate the stored instances without new runs"}
    )
    verdict = Verdict("survey_phase_retrieval", args)
    path = verdict.path("_runs.jsonl")
    if args.quick:
        path.unlink(missing_ok=True)
    todo = {} if args.draw or args.stored else plan_runs(args.quick)
    rows = complete_rows(path, todo, itemgetter("key"), "instances")
    full = ga.bayes_thresholds(ga.glm_model(ga.PhaseRetrievalLoss())).full_recovery
    threshold = float(getattr(full, "value", full))
    draw(verdict.path(".png"), rows, threshold)
    if args.draw:
        return
    numbers = {"bayes_optimal": threshold, "recovery": check_recoveries(verdict, rows)}
    points = compare_points(rows)
    numbers["relative_differences"] = check_points(verdict, points, args.quick)
    numbers["published"] = PUBLISHED
    verdict.write_table(format_recoveries(rows, threshold) + "\n" + format_points(points))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
