"""What can be learned, by whom: the weights that random starts find against α and ω, beside theoretical thresholds.

Method: `train(survey=True)`, `run_gamp` and L-BFGS-B start from the same random weights, once in each instance of
noiseless samples of the attention layer with the exact risk (d = 150, λ = 0.01). A run has found the teacher if its
cosine with the teacher is at least 0.5 and 0.9 times the cosine of the semantic minimum, which is message passing from
the weights of the teacher. Thresholds for d → ∞: weak and full recovery of Bayes-optimal estimation
(`bayes_thresholds`), the α at which an eigenvalue of the matrix of spectral starts leaves the bulk
(`spectral_overlap`), and the stored lines α_c and "semantic branch appears" of the claim `phase_diagram` (σ = 0.5).
Error bars are binomial standard errors.

At the α next to the α at which half of the starts of survey propagation find the teacher there are 14 or 15 instances,
at the others six. These points and the following interval were fixed after six instances. Of the further instances, 34
and later 14 at each point were planned; the time sufficed for eight. The crossing of one half is interpolated between
fractions that are made monotonic in α (isotonic regression, weighted by the numbers of instances). Its interval has the
percentiles 2.5 and 97.5 of the crossings of fractions drawn from Beta(k + ½, n − k + ½) for k of n instances. It
contains the sampling error, not the error of the interpolation.

Criterion: at every (ω, σ), survey propagation finds the teacher in at least as many of the instances as GAMP and L-BFGS
do. Predicted and counted fractions of single surveys are reported and have no criterion.

Every instance is stored in a file of runs and not computed again; `--instances` requests more instances. `--stored`
evaluates the stored rows only.
"""

import json
from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy.optimize import isotonic_regression

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, OMEGA, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table
from validation.claims._survey_comparisons import METHODS
from validation.claims._survey_runs import compute_cosine, draw_starts
from validation.claims.lower_minima import run_lbfgs
from validation.claims.survey_propagation import COLORS, MARKERS, STYLES

PHASE_DIAGRAM = Path(__file__).parents[1] / "results" / "phase_diagram.json"
DIM, INSTANCES = 150, 6
FOUND, SEMANTIC = 0.9, 0.5  # minimum cosine in units of the semantic minimum, and absolute
STUDENTS = ("survey", "gamp", "lbfgs")
FOUNDING, NARROW = (0.3, 0.5), (0.2, 0.8)  # (ω, σ) of the founding paper, and of the targets of survey_propagation
GRIDS = {  # α of the runs, by (ω, σ)
    NARROW: (0.3, 0.45, 0.6, 0.8, 1.0, 1.4),
    FOUNDING: (1.0, 1.25, 1.5, 1.75, 2.0, 2.5),
    (0.14, 0.5): (0.6, 0.9, 1.2, 1.6),
    (0.22, 0.5): (0.8, 1.2, 1.6, 2.0),
    (0.38, 0.5): (1.5, 2.0, 2.5, 3.0),
}
NEAR_HALF = {  # α next to the crossing of one half by survey propagation, with more instances
    NARROW: (0.45, 0.6, 0.8),
    FOUNDING: (1.5, 1.75, 2.0),
    (0.14, 0.5): (0.9, 1.2, 1.6),
    (0.22, 0.5): (1.2, 1.6),
    (0.38, 0.5): (1.5, 2.0),
}
ALL = 10.0  # end of error bars of crossings whose interval has no upper end
N_NEAR, N_DRAWS = 14, 2000  # instances at these α, and draws of fractions for the interval of a crossing
SPECTRAL = (0.2, 0.3, 0.4, 0.5)  # α between which the spectral threshold is interpolated
LINES = {"alpha_c": r"$\alpha_c$: equal training loss", "semantic_from": "semantic branch appears"}
MARKS = {"weak": "Bayes-optimal: weak recovery", "full": "Bayes-optimal: full recovery", "spectral": "spectral"}
RECOVERY, MARK_STYLES = "#CC79A7", {"weak": ":", "full": "-", "spectral": "--"}


@cache
def build_model(omega, sigma):
    """Return the attention layer of the founding paper with other ω and σ."""
    return ga.paper_model(omega=omega, sigma=sigma)


def run_instance(omega, sigma, alpha, d, seed):
    """Return cosines with the teacher and losses of one instance: the semantic minimum, and a random start."""
    data = ga.sample(build_model(omega, sigma), d, alpha, seed)
    start = draw_starts(data, 1, seed)[0]
    weights = {
        "semantic": ga.run_gamp(data, "semantic").Q,
        "survey": ga.train(data, start, survey=True, seed=seed, n_starts=1, escape=False).Q,
        "gamp": ga.run_gamp(data, start).Q,
        "lbfgs": run_lbfgs(data, start)[0],
    }
    return {
        "runs": {
            name: {"cosine": compute_cosine(data, Q), "loss": ga.train_loss(data, Q, "exact")}
            for name, Q in weights.items()
        }
    }


def find_thresholds(omega, sigma):
    """Return the thresholds of Bayes-optimal estimation and of spectral starts."""
    model = build_model(omega, sigma)
    bayes = ga.bayes_thresholds(model, n_points=512)
    strengths = [ga.spectral_overlap(model, alpha).strength for alpha in SPECTRAL]
    spectral = float(np.interp(1.0, strengths, SPECTRAL, left=np.nan, right=np.nan))
    numbers = {"weak": bayes.weak_recovery, "full": bayes.full_recovery, "spectral": spectral}
    return {name: float(value) if value is not None and np.isfinite(value) else None for name, value in numbers.items()}


def plan_rows(quick, instances):
    """Return functions that compute the rows, by key."""
    grids, d = ({FOUNDING: (2.5,)}, 60) if quick else (GRIDS, DIM)
    plan = {("thresholds", *where): partial(find_thresholds, *where) for where in grids}
    everywhere = 1 if quick else max(instances, INSTANCES)
    for seed in range(1 if quick else max(everywhere, N_NEAR)):
        for where, alphas in (grids if seed < everywhere else NEAR_HALF).items():
            plan |= {("run", *where, alpha, seed): partial(run_instance, *where, alpha, d, seed) for alpha in alphas}
    return plan


def compute_row(key, function):
    """Return the row of a key."""
    return [{"key": list(key)} | function()]


def select(rows, kind, where, alpha=None):
    """Return the rows of a kind at (ω, σ), and at α if given."""
    chosen = [row for row in rows if row["key"][0] == kind and tuple(row["key"][1:3]) == where]
    return [row for row in chosen if alpha is None or row["key"][3] == alpha]


def list_places(rows, kind):
    """Return all (ω, σ) of a kind of rows, in order."""
    return sorted({tuple(row["key"][1:3]) for row in rows if row["key"][0] == kind})


def find_fractions(rows, where, method):
    """Return α, the fraction of instances in which a method found the teacher, and the numbers of instances."""
    alphas = sorted({row["key"][3] for row in select(rows, "run", where)})
    ends = [[has_found(row["runs"], method) for row in select(rows, "run", where, alpha)] for alpha in alphas]
    return np.array(alphas), np.array([np.mean(end) for end in ends]), np.array([len(end) for end in ends])


def has_found(runs, method):
    """Return whether a method found the teacher in one instance."""
    return runs[method]["cosine"] >= max(FOUND * runs["semantic"]["cosine"], SEMANTIC)


def find_half(alphas, fractions, n):
    """Return the α at which monotonic fractions of n instances cross one half; 0 or inf if it is outside."""
    fractions = isotonic_regression(fractions, weights=n).x
    k = int(np.searchsorted(fractions, 0.5))
    if k == 0 or k == len(alphas):
        return 0.0 if k == 0 else np.inf
    part = (0.5 - fractions[k - 1]) / (fractions[k] - fractions[k - 1])
    return float(alphas[k - 1] + part * (alphas[k] - alphas[k - 1]))


def find_crossing(rows, where, method):
    """Return the α at which half of the starts find the teacher, and its interval of 95 %."""
    alphas, fractions, n = find_fractions(rows, where, method)
    counts, rng = fractions * n, np.random.default_rng(0)
    draws = [find_half(alphas, rng.beta(counts + 0.5, n - counts + 0.5), n) for _ in range(N_DRAWS)]
    return find_half(alphas, fractions, n), *np.percentile(draws, [2.5, 97.5], method="nearest")


def format_crossing(alphas, crossing):
    """Return the α of a crossing with its interval; "–" if half of the starts do not find the teacher at any α."""
    value, low, high = crossing
    if not alphas[0] <= value <= alphas[-1]:
        return "–"
    words = f"{low:.2f}" if low > 0 else f"below {alphas[0]:g}", f"{high:.2f}" if np.isfinite(high) else "none"
    return f"{value:.2f} ({words[0]} to {words[1]})"


def format_table(rows):
    """Return the table of runs that found the teacher."""
    heads = ["ω, σ", "α, instances", *(METHODS[name] for name in STUDENTS), "median loss of survey / semantic"]
    lines = []
    for where in list_places(rows, "run"):
        found = {name: find_fractions(rows, where, name) for name in STUDENTS}
        for k, (alpha, n) in enumerate(zip(found["survey"][0], found["survey"][2], strict=True)):
            runs = [row["runs"] for row in select(rows, "run", where, alpha)]
            ratio = np.median([run["survey"]["loss"] / run["semantic"]["loss"] for run in runs])
            counts = [f"{round(found[name][1][k] * n)}" for name in STUDENTS]
            lines.append([f"{where[0]:g}, {where[1]:g}" if k == 0 else "", f"{alpha:g}, {n}", *counts, f"{ratio:.4f}"])
    return markdown_table(heads, lines)


def format_thresholds(rows):
    """Return the table of thresholds, and of the α at which half of the random starts find the teacher."""
    heads = ["ω, σ", *MARKS.values(), *(f"half of the starts: {METHODS[name]}" for name in STUDENTS)]
    lines = []
    for where in list_places(rows, "thresholds"):
        numbers = select(rows, "thresholds", where)[0]
        values = [numbers[name] for name in MARKS]
        words = ["–" if value is None or np.isnan(value) else f"{value:.2f}" for value in values]
        alphas = find_fractions(rows, where, "survey")[0]
        words += [format_crossing(alphas, find_crossing(rows, where, name)) for name in STUDENTS]
        lines.append([f"{where[0]:g}, {where[1]:g}", *words])
    return markdown_table(heads, lines)


def check_rows(verdict, rows):
    """Check the claims."""
    for where in list_places(rows, "run"):
        place, runs = f"ω = {where[0]:g}, σ = {where[1]:g}", select(rows, "run", where)
        counts = {name: sum(has_found(row["runs"], name) for row in runs) for name in STUDENTS}
        words = ", ".join(f"{METHODS[name]} {counts[name]}" for name in STUDENTS)
        text = f"the teacher is found in so many of {len(runs)} runs: {words}"
        verdict.check(counts["survey"] >= max(counts.values()), f"{place}: {text}")


def draw_alphas(axis, rows, where, lines):
    """Draw fractions of random starts against α at one (ω, σ), with thresholds."""
    for name in STUDENTS:
        alphas, fractions, n = find_fractions(rows, where, name)
        shift = 0.012 * (STUDENTS.index(name) - 1)
        axis.errorbar(alphas + shift, 100 * fractions, 100 * np.sqrt(fractions * (1 - fractions) / n), lw=2, ms=6,
                      fmt=MARKERS[name] + STYLES[name], color=COLORS[name], label=METHODS[name])  # fmt: skip
    numbers = select(rows, "thresholds", where)[0]
    for name, label in MARKS.items():
        if numbers[name] is not None:
            axis.axvline(numbers[name], color=RECOVERY if name != "spectral" else DARK, ls=MARK_STYLES[name], lw=1.5,
                         label=label)  # fmt: skip
    if where == FOUNDING:
        axis.axvline(lines["alpha_c"][lines["omega"].index(where[0])], color=DARK, lw=1.5, label=LINES["alpha_c"])
    axis.set(xlabel=ALPHA, ylabel="random starts that find the teacher, %", ylim=(-5, 105), xlim=(0, None),
             title=f"ω = {where[0]:g}, σ = {where[1]:g}")  # fmt: skip


def draw_omegas(axis, rows, lines):
    """Draw the α from which on half of the random starts find the teacher against ω, with lines of theory."""
    places = [where for where in list_places(rows, "thresholds") if where[1] == FOUNDING[1]]
    omegas = [where[0] for where in places]
    axis.plot(lines["omega"], np.array(lines["alpha_c"], float), color=DARK, lw=1.5, label=LINES["alpha_c"])
    axis.plot(lines["omega"], np.array(lines["semantic_from"], float), "-.", color=DARK, label=LINES["semantic_from"])
    for name, label in MARKS.items():
        values = np.array([select(rows, "thresholds", where)[0][name] for where in places], float)
        axis.plot(omegas, values, MARK_STYLES[name], color=RECOVERY if name != "spectral" else DARK, label=label)
    for name in STUDENTS:
        halves, low, high = np.transpose([find_crossing(rows, where, name) for where in places])
        shown = np.isfinite(halves) & (halves > 0)
        ends = [low, np.where(np.isfinite(high), high, ALL)]
        halves = np.where(shown, halves, np.nan)
        axis.errorbar(omegas, halves, np.abs(ends - halves), fmt=MARKERS[name] + STYLES[name], lw=2, ms=7,
                      color=COLORS[name], label=METHODS[name])  # fmt: skip
    axis.set(xlabel=OMEGA, ylabel=ALPHA, xlim=(0.1, 0.42), ylim=(0, 3),
             title=f"half of the starts, σ = {FOUNDING[1]:g}")  # fmt: skip


def draw(path, rows):
    """Draw what is found against α at two (ω, σ), and against ω."""
    stored = json.loads(PHASE_DIAGRAM.read_text())
    lines = {"omega": stored["probed"]} | {name: stored["lines"][name] for name in LINES}
    with figure(path, 1, 3, (9.6, 4.8)) as axes:
        draw_alphas(axes[0, 0], rows, NARROW, lines)
        draw_alphas(axes[0, 1], rows, FOUNDING, lines)
        draw_omegas(axes[0, 2], rows, lines)
        draw_legend(*axes[0], columns=3)


def main():
    args = options(
        __doc__, draw=True, stored=True,
        instances={"type": int, "default": 0, "help": "minimum number of instances at each point"},
    )  # fmt: skip
    verdict = Verdict("survey_map", args)
    plan = plan_rows(args.quick, args.instances)
    rows = verdict.complete_rows({key: partial(compute_row, key, work) for key, work in plan.items()})
    if not args.quick:
        draw(verdict.path(".png"), rows)
    if args.draw:
        return
    check_rows(verdict, rows)
    verdict.write_table(format_table(rows))
    verdict.write_table(format_thresholds(rows), "_thresholds.md")
    verdict.end({"n_rows": len(rows)})


if __name__ == "__main__":
    main()
