"""Fixed points of survey propagation agree with one step of replica symmetry breaking at the same Parisi parameter.

Method: the loss (|z| − y)² at α = 3 without overlap with a signal: labels are |N(0, 1)| plus noise of variance 0.001,
independent of the tokens, λ = 1e-4. `survey_step(..., jumps=True)` at a fixed Parisi parameter y; q₀ = ‖Q‖²/d,
q₁ = q₀ + U, V and the mean training loss of the minima of the cluster,

    E = (1/d) Σ_μ [⟨M⟩ − ½ V ⟨g²⟩] + ½ λ q₁,

are averages over the last iterations of each instance, and standard errors are over instances. The equations are
`solve_state_evolution(..., rsb=1, parisi=y)`, with E = F + complexity/y. At y = 1.76699 the complexity vanishes; there
Lucibello, Saglietti and Lu (2019) published q₀ = 0.47255, q₁ = 1.35511, V = 0.42349 without ridge. One step is itself
unstable (two steps give a higher F), so that the iteration does not come to rest: its damped average of weights has
too small a norm q₀, and E differs.

Criterion: at the largest d, at each y, q₁ and V differ from the equations by at most 3 %, and not by more than at the
smallest d, unless by less than two standard errors or 1 %. (Page "Survey propagation" of the manual.)
"""

from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np

import gamp_attention as ga
from gamp_attention.experiments import DARK, figure
from validation._tools.glasses import AmplitudeLoss, amplitude_model
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import markdown_table

ALPHA, NOISE, LAM = 3.0, 0.001, 1e-4  # α, variance of the noise, λ
PARISI = (1.3, 1.76699, 2.4)
SIZES = {500: 6, 1000: 4, 2000: 2, 4000: 1}  # number of instances, by d
STEPS, LAST = ((0.4, 40), (0.2, 80)), 60  # steps and numbers of iterations; iterations of the averages
NAMES = {"q0": "q₀", "q1": "q₁", "V": "V", "E": "E"}
COMPARED, NEAR, SAME = ("q1", "V"), 0.03, 0.01
COLORS = {"q0": "#0072B2", "q1": "#009E73", "V": "#D55E00", "E": "#CC79A7"}


def solve_equations(y):
    """Return q₀, q₁, V and E of one step of replica symmetry breaking, and the status."""
    begin = np.zeros((1, 1)), np.zeros((1, 1, 1)), np.full((1, 1, 1), 0.42)
    start = ga.Overlaps(np.full((1, 1, 1), 0.9), *begin)
    se = ga.solve_state_evolution(amplitude_model(np.sqrt(NOISE), LAM), ALPHA, start, rsb=1, parisi=y, rtol=1e-3)
    energy = se.train_loss + float(se.complexity[0]) / y
    values = dict(zip(NAMES, (*se.levels[:, 0, 0, 0], se.overlaps.V[0, 0, 0], energy), strict=True))
    return {name: float(value) for name, value in values.items()}, se.status.value


def run_surveys(d, y, seed):
    """Return a row with q₀, q₁, V and E of survey propagation, averaged over the last iterations."""
    rng = np.random.default_rng([d, seed, 1])
    tokens = rng.standard_normal((round(ALPHA * d), d))
    labels = np.abs(rng.standard_normal(len(tokens))) + np.sqrt(NOISE) * rng.standard_normal(len(tokens))
    data = ga.LabelledDataset(tokens, labels, AmplitudeLoss(), lam=LAM)
    state, _ = ga.initial_survey(data, "exact", 0.5 * rng.standard_normal((d, 1)))
    path = []
    for step, n_iter in STEPS:
        for _ in range(n_iter):
            after, report = ga.survey_step(data, "exact", state, step, y, jumps=True)
            q0, U, V = np.mean(state.Q**2), state.U[0, 0, 0], state.V[0, 0, 0]
            squares = np.sum(report.averages.g**2) + np.sum(report.averages.spread)
            energy = (np.sum(report.averages.envelope) - 0.5 * V * squares) / d + 0.5 * LAM * (q0 + U)
            path.append([q0, q0 + U, V, energy])
            state = after
    means = np.mean(path[-LAST:], axis=0)
    return [{"key": f"{y:g} {d} {seed}", "y": y, "d": d} | dict(zip(NAMES, map(float, means), strict=True))]


def plan_runs(quick):
    """Return functions that compute the row of each instance, by key; first instances of all sizes come first."""
    sizes, parisi = ({300: 2}, PARISI[1:2]) if quick else (SIZES, PARISI)
    return {
        f"{y:g} {d} {k}": partial(run_surveys, d, y, k)
        for k in range(max(sizes.values())) for d in sizes if k < sizes[d] for y in parisi
    }  # fmt: skip


def average_instances(rows):
    """Return the number of instances, means and standard errors over instances, by (y, d)."""
    averages = {}
    for key, group in groupby(sorted(rows, key=itemgetter("y", "d")), key=itemgetter("y", "d")):
        values = np.array([[row[name] for name in NAMES] for row in group])
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(len(NAMES), np.nan)
        averages[key] = len(values), values.mean(axis=0), error
    return averages


def format_points(averages, equations):
    """Return the table of fixed points."""
    lines = []
    for y, (values, _) in equations.items():
        lines.append([f"{y:.4g}", "equations", "", *(f"{values[name]:.4f}" for name in NAMES)])
        for (other, d), (n, means, errors) in averages.items():
            if other == y:
                lines.append(["", f"d = {d}", str(n), *map(plus_minus, means, errors)])
    return markdown_table(["y", "", "instances", *NAMES.values()], lines)


def draw(path, averages, equations):
    """Draw relative differences between survey propagation and equations against d, one panel for each y."""
    with figure(path, 1, len(equations), (4 * len(equations), 3.8)) as axes:
        for panel, (y, (values, _)) in zip(axes[0], equations.items(), strict=True):
            sizes = [d for other, d in averages if other == y]
            for k, (name, label) in enumerate(NAMES.items()):
                relative = np.array([averages[y, d][1][k] / values[name] - 1 for d in sizes])
                errors = np.array([averages[y, d][2][k] / values[name] for d in sizes])
                style = {"marker": "osD^"[k], "color": COLORS[name], "label": label, "capsize": 3}
                panel.errorbar(sizes, 100 * relative, 100 * np.nan_to_num(errors), **style)
            panel.axhline(0, color=DARK, lw=0.8)
            panel.set(xscale="log", xlabel="d", title=f"y = {y:.4g}")
            panel.set_xticks(sizes, [f"{d}" for d in sizes])
            panel.minorticks_off()
        axes[0][0].set_ylabel("difference from the equations, %")
        axes[0][0].legend(frameon=False)


def check_points(verdict, averages, equations, quick):
    """Check q₁ and V against the equations, and return relative differences by y, name and d."""
    numbers = {}
    for y, (values, status) in equations.items():
        verdict.check(status == "converged", f"y = {y:.4g}: the equations are {status}")
        sizes = [d for other, d in averages if other == y]
        numbers[f"{y:g}"] = by_name = {}
        for k, name in enumerate(NAMES):
            by_name[name] = relative = {d: float(averages[y, d][1][k] / values[name] - 1) for d in sizes}
            if name not in COMPARED:
                continue
            first, last = abs(relative[sizes[0]]), abs(relative[sizes[-1]])
            noise = 2 * np.nan_to_num(averages[y, sizes[-1]][2][k]) / values[name]
            text = (
                f"y = {y:.4g}, {NAMES[name]}: {100 * first:.2f} % at d = {sizes[0]}, {100 * last:.2f} % at {sizes[-1]}"
            )
            verdict.check(last <= (0.2 if quick else NEAR) and last <= max(first, noise, SAME), text)
    return numbers


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("survey_fixed_points", args)
    rows = verdict.complete_rows(plan_runs(args.quick))
    equations = {y: solve_equations(y) for y in sorted({row["y"] for row in rows})}
    averages = average_instances(rows)
    draw(verdict.path(".png"), averages, equations)
    if args.draw:
        return
    numbers = {"equations": {f"{y:g}": values for y, (values, _) in equations.items()}}
    numbers["relative_differences"] = check_points(verdict, averages, equations, args.quick)
    verdict.write_table(format_points(averages, equations))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
