"""Survey propagation at a fixed Parisi parameter against one step of replica symmetry breaking, in three comparisons.

The loss (|z| − y)² at α = 3 without overlap with a signal: labels are |N(0, 1)| plus noise of variance 0.001,
independent of the tokens, λ = 1e-4. Compared are q₀ = ‖Q‖²/d, q₁ = q₀ + U, V and the mean training loss of the minima
of the cluster,

    E = (1/d) Σ_μ [⟨M⟩ − ½ V ⟨g²⟩] + ½ λ q₁.

The weights of this iteration do not come to rest at any y: the equations determine their norm, but successive weights
become orthogonal if they are not damped (cosine 0), and a damped average of such weights is shorter. Therefore three
statements are verified:

1. Without damping of the weights, the limit d → ∞ of the iteration (`amplitude_survey.predict`, closed form, without
   sampling) ends at `solve_broken(..., parisi=y)`, with E = F + complexity/y.
2. Runs at finite d without damping of the weights follow this limit, and runs with damped weights follow the limit of
   the damped iteration, in the mean over their last iterations. Its q₀ is smaller than in the equations.
3. These runs use the closed form of the averages over inner fields. `survey_step(..., jumps=True)`, which computes the
   averages at nodes, moves the weights in the same way.

Numbers of runs are averages over the same iterations as in the limit, and are fitted by x + a/d. At y = 1.76699 the
complexity vanishes; there Lucibello, Saglietti and Lu (2019) published q₀ = 0.47255, q₁ = 1.35511, V = .42349 without
ridge.

Criterion: in (1) the relative differences are at most 1e-3 at each y; in (2) the limits of q₀, q₁, V and E differ from
the prediction by less than 3 errors, and the error of q₀ without damping is at most 5 %; in (3) weights differ by at
most 1 % of their norm after two iterations. The error of q₀ at y = 1.3 was 8 % without further instances and 5.1 % with
15 of them, so that 15 more were run; their number does not depend on the values. The first version of this script
required that the differences between damped runs and the equations decrease with d, which theory does not predict.
(Pages "Survey propagation" and "Replica symmetry breaking" of the manual.)
"""

from functools import partial

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, figure
from validation._tools.amplitude_survey import predict, run_iterations
from validation._tools.glasses import AmplitudeLoss, amplitude_model
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import fit_sizes, markdown_table, mean_and_error

ALPHA, NOISE, LAM = 3.0, 0.001, 1e-4  # α, variance of the noise, λ
PARISI = (1.3, 1.76699, 2.4)
SIZES = {1000: 24, 2000: 12, 4000: 5, 8000: 2}  # number of instances, by d
FURTHER = {4000: 30}  # number of further instances at the smallest Parisi parameter only, where q₀ scatters most
STEP_V, LAST, LONG = 0.3, 50, 250  # step of V and U without damping of the weights; iterations of averages; long limit
SCHEDULES = {  # steps of the weights, and of V and U
    "undamped": (np.ones(100), np.full(100, STEP_V)),
    "damped": (np.repeat([0.4, 0.2], [40, 60]), np.repeat([0.4, 0.2], [40, 60])),
}
FIRST_V, FIRST_Q = 1.59, 0.25  # V of `initial_survey` and q of the weights at the start
NAMES = {"q0": "q₀", "q1": "q₁", "V": "V", "E": "E"}
ENDS, AGREES, ACCURATE, SAME_STEP = 1e-3, 3.0, 0.05, 0.01  # see the criterion
KINDS = {"undamped": "weights without damping", "damped": "damped weights"}


def solve_equations(y):
    """Return q₀, q₁, V and E of one step of replica symmetry breaking, replicons, and the status."""
    begin = np.zeros((1, 1)), np.zeros((1, 1, 1)), np.full((1, 1, 1), 0.42)
    start = ga.Overlaps(np.full((1, 1, 1), 0.9), *begin)
    se = ga.solve_broken(amplitude_model(np.sqrt(NOISE), LAM), ALPHA, start, parisi=y, rtol=1e-3)
    energy = se.train_loss + float(se.complexity[0]) / y
    values = map(float, (*se.levels[:, 0, 0, 0], se.overlaps.V[0, 0, 0], energy))
    return dict(zip(NAMES, values, strict=True)), se.replicons, se.status.value


def predict_runs(y):
    """Return averages of the limit d → ∞ over the iterations of both kinds of runs, and its end without damping."""
    settings, names = (ALPHA, NOISE, LAM, y, FIRST_Q, FIRST_V, 1.0), (*NAMES, "cosine")
    parts = {kind: predict(*settings, *steps)[-LAST:] for kind, steps in SCHEDULES.items()}
    parts["end"] = predict(*settings, np.ones(LONG), np.full(LONG, STEP_V))[-1:]
    return {key: dict(zip(names, map(float, part.mean(axis=0)), strict=True)) for key, part in parts.items()}


def draw_labels(rng, n):
    """Return labels that are independent of the tokens."""
    return np.abs(rng.standard_normal(n)) + np.sqrt(NOISE) * rng.standard_normal(n)


def draw_instance(d, seed):
    """Return tokens, labels and initial weights."""
    rng = np.random.default_rng([d, seed, 1])
    tokens = rng.standard_normal((round(ALPHA * d), d))
    labels = draw_labels(rng, len(tokens))
    return tokens, labels, 0.5 * rng.standard_normal((d, 1))


def run_instance(d, seed, parisi=PARISI):
    """Return a row for each y and kind of run, with averages over the last iterations."""
    rng = np.random.default_rng([d, seed, 2])
    tokens = rng.standard_normal((round(ALPHA * d), d), dtype=np.float32)
    tokens /= np.float32(np.sqrt(d))
    labels, Q = draw_labels(rng, len(tokens)), np.sqrt(FIRST_Q) * rng.standard_normal(d)
    rows, names = [], (*NAMES, "cosine")
    for y in parisi:
        for kind, steps in SCHEDULES.items():
            path, _, _ = run_iterations(tokens, labels, Q, FIRST_V, 1.0, y, LAM, *steps)
            means = dict(zip(names, map(float, path[-LAST:].mean(axis=0)), strict=True))
            rows.append({"key": f"{d} {seed}", "kind": kind, "y": y, "d": d} | means)
    return rows


def plan_runs(quick):
    """Return functions that compute the rows of each instance, by key; first instances of all sizes come first."""
    sizes = {500: 2} if quick else SIZES
    plan = {f"{d} {k}": partial(run_instance, d, k) for k in range(max(sizes.values())) for d in sizes if k < sizes[d]}
    for d, count in ({} if quick else FURTHER).items():
        plan |= {f"{d} {k}": partial(run_instance, d, k, PARISI[:1]) for k in range(SIZES[d], SIZES[d] + count)}
    return plan


def compare_iterations():
    """Return the distance between weights after two iterations of `survey_step` and in closed form, and their norm."""
    tokens, labels, Q = draw_instance(400, 0)
    data = ga.LabelledDataset(tokens, labels, AmplitudeLoss(), lam=LAM)
    state, _ = ga.initial_survey(data, "exact", Q)
    V, U, steps = float(state.V[0, 0, 0]), float(state.U[0, 0, 0]), np.full(2, 0.4)
    _, closed, _ = run_iterations(tokens / np.sqrt(400), labels, Q[:, 0], V, U, PARISI[1], LAM, steps, steps)
    for step in steps:
        state, _ = ga.survey_step(data, "exact", state, step, PARISI[1], jumps=True)
    return float(np.linalg.norm(state.Q[:, 0] - closed)), float(np.linalg.norm(closed))


def select(rows, kind, y):
    """Return the rows of runs of a kind at a Parisi parameter."""
    return [row for row in rows if row["y"] == y and row["kind"] == kind]


def fit_limits(rows):
    """Return the limit d → ∞ of each number and its error."""
    d = [row["d"] for row in rows]
    fits = {name: fit_sizes(d, [row[name] for row in rows]) for name in NAMES}
    return {name: [float(found[0]), float(errors[0])] for name, (found, errors) in fits.items()}


def check_points(verdict, y, equations, theory, limits):
    """Check the three statements at a Parisi parameter."""
    for name, label in NAMES.items():
        away = theory["end"][name] / equations[name] - 1
        verdict.check(abs(away) <= ENDS, f"y = {y:.4g}, {label}: the limit without damping ends {away:.1e} off")
        for kind, words in KINDS.items():
            value, error = limits[kind][name]
            off = (value - theory[kind][name]) / error
            verdict.check(abs(off) < AGREES, f"y = {y:.4g}, {label}, {words}: {off:.1f} errors from the limit")
    accuracy = limits["undamped"]["q0"][1] / equations["q0"]
    verdict.check(accuracy <= ACCURATE, f"y = {y:.4g}: q₀ without damping has an error of {100 * accuracy:.1f} %")


def tabulate(rows, y, equations, theory, limits):
    """Return the rows of the table at a Parisi parameter."""
    table = [[f"{y:.4g}", "equations", "", *(f"{equations[name]:.4f}" for name in NAMES), ""]]
    table.append(["", "without damping, theory, at its end", "", *(f"{theory['end'][name]:.4f}" for name in NAMES),
                  f"{theory['end']['cosine']:.3f}"])  # fmt: skip
    for kind, words in KINDS.items():
        table.append(["", f"{words}, theory, iterations of the runs", "",
                      *(f"{theory[kind][name]:.4f}" for name in NAMES), f"{theory[kind]['cosine']:.3f}"])  # fmt: skip
        runs = select(rows, kind, y)
        for d in sorted({row["d"] for row in runs}):
            here = [row for row in runs if row["d"] == d]
            columns = [plus_minus(*mean_and_error([row[name] for row in here])) for name in (*NAMES, "cosine")]
            table.append(["", f"d = {d}", str(len(here)), *columns])
        table.append(["", "d → ∞", "", *(plus_minus(*limits[kind][name]) for name in NAMES), ""])
        off = [(limits[kind][name][0] - theory[kind][name]) / limits[kind][name][1] for name in NAMES]
        table.append(["", "− theory, in errors", "", *(f"{v:.1f}" for v in off), ""])
    return table


def draw(path, rows, equations, theory):
    """Draw q₀ and E relative to the equations against d, with the theory of both kinds of runs as lines."""
    colors = {"undamped": "#0072B2", "damped": "#D55E00"}
    with figure(path, 2, len(equations), (4 * len(equations), 6)) as axes:
        for column, (y, exact) in zip(axes.T, equations.items(), strict=True):
            for panel, name in zip(column, ("q0", "E"), strict=True):
                for kind, color in colors.items():
                    runs = select(rows, kind, y)
                    sizes = sorted({row["d"] for row in runs})
                    values = [mean_and_error([row[name] for row in runs if row["d"] == d]) for d in sizes]
                    means, errors = 100 * np.array(values).T / exact[name]
                    style = {"marker": "o", "ls": "", "color": color, "label": KINDS[kind], "capsize": 3}
                    panel.errorbar(sizes, means - 100, np.nan_to_num(errors), **style)
                    panel.axhline(100 * theory[y][kind][name] / exact[name] - 100, color=color, lw=1.2)
                panel.axhline(0, color=DARK, lw=0.8, ls=":")
                panel.set(xscale="log", title=f"{NAMES[name]}, y = {y:.4g}")
                ticks = sorted({row["d"] for row in rows})
                panel.set_xticks(ticks, [f"{d}" for d in ticks])
                panel.minorticks_off()
            column[-1].set_xlabel("d")
        for row in axes:
            row[0].set_ylabel("difference from the equations, %")
        axes[0][0].legend(frameon=False)


def main():
    args = options(__doc__, draw=True, stored=True)
    verdict = Verdict("survey_fixed_points", args)
    rows = verdict.complete_rows(plan_runs(args.quick))
    parisi = PARISI[1:2] if args.quick else PARISI
    solutions = {y: solve_equations(y) for y in parisi}
    equations = {y: values for y, (values, _, _) in solutions.items()}
    theory = {y: predict_runs(y) for y in parisi}
    if not args.quick:
        draw(verdict.path(".png"), rows, equations, theory)
    if args.draw:
        return
    distance, norm = compare_iterations()
    claim = f"two iterations in closed form differ by {100 * distance / norm:.2g} % from survey_step"
    verdict.check(distance <= SAME_STEP * norm, claim)
    numbers, table = {}, []
    for y, (values, replicons, status) in solutions.items():
        verdict.check(status == "converged", f"y = {y:.4g}: the equations are {status}")
        numbers[f"{y:g}"] = here = {"equations": values, "replicons": replicons.tolist(), "theory": theory[y]}
        if args.quick:
            away = theory[y]["end"]["q0"] / values["q0"] - 1
            verdict.check(abs(away) <= ENDS, f"y = {y:.4g}: q₀ of the limit without damping ends {away:.1e} off")
            continue
        here["limits"] = {kind: fit_limits(select(rows, kind, y)) for kind in KINDS}
        check_points(verdict, y, values, theory[y], here["limits"])
        table += tabulate(rows, y, values, theory[y], here["limits"])
    if table:
        heads = ["y", "", "instances", *NAMES.values(), "cosine with the last weights"]
        verdict.write_table(markdown_table(heads, table))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
