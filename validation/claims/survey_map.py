"""What can be learned, by whom: weights that random starts find against α and ω, with theoretical thresholds.

Method: `run_gamp(survey=True)`, `run_gamp` and L-BFGS-B start from the same random weights, on noiseless samples of the
attention layer with the exact risk; at ω = .2 and σ = .8, the targets of `survey_propagation` are included. A run has
found the teacher if its cosine with the teacher is at least 0.9 times the cosine of the semantic minimum, which is
message passing from the weights of the teacher. Theory for d → ∞: α_c and α_l (`phase_boundaries`), weak and full
recovery of Bayes-optimal estimation (`bayes_thresholds`), the α at which an eigenvalue leaves the bulk
(`spectral_overlap`), and state evolution of survey propagation (y = 1.5 units) and of GAMP from a start whose cosines
with teacher and positions are 1/√300 (`trajectory`). The growth factor is the mean factor per iteration of the cosine
with the teacher, from iteration 5 until the cosine is at least 0.3, at most to iteration 20. The α from which a method
flows to the teacher is the α at which the cosine after 45 iterations crosses 0.5.

Criterion: at every (ω, σ), survey propagation finds the teacher in at least as many of the instances as GAMP and L-BFGS
do; no method finds it below the weak recovery threshold; the theory of survey propagation flows to the teacher at an α
above weak recovery.

Every instance and every trajectory is stored in a file of runs and not computed again; `--instances` requests more
instances. `--stored` evaluates the stored rows only.
"""

import json
from functools import cache, partial

import numpy as np

import gamp_attention as ga
from gamp_attention.experiments.figures import ALPHA, DARK, GREY, OMEGA, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_rows
from validation._tools.tables import markdown_table
from validation.claims.survey_propagation import (
    COLOURS,
    MARKERS,
    METHODS,
    draw_starts,
    format_range,
    measure,
    restart,
    run_survey,
)

DIM = 300
INSTANCES = {True: 10, False: 3}  # instances at the founding paper's (ω, σ), and elsewhere
FOUND, FLOWS = 0.9, 0.5  # cosine in units of the semantic minimum; cosine at which theory has flowed to the teacher
STUDENTS = ("survey", "gamp", "lbfgs")
STYLES = {"survey": "-", "gamp": "--", "lbfgs": ":"}
FOUNDING, NARROW = (0.3, 0.5), (0.2, 0.8)  # (ω, σ) of the founding paper, and of the targets of survey_propagation
GRIDS = {  # α of the runs, by (ω, σ)
    NARROW: (0.3, 0.45, 0.6, 1.5),  # and the α of the targets of survey_propagation
    FOUNDING: (1.0, 1.25, 1.5, 1.75, 2.0, 2.5),
    (0.15, 0.5): (0.6, 0.8, 1.0, 1.5),
    (0.2, 0.5): (0.8, 1.0, 1.25, 1.5, 2.0),
    (0.4, 0.5): (2.0, 2.5, 3.0, 4.0),
    (0.1, 0.5): (0.5, 0.75, 1.0, 1.5),
}
THEORY = {  # α of the trajectories, by (ω, σ)
    FOUNDING: (0.75, 1.0, 1.25, 1.5, 2.0),
    NARROW: (0.3, 0.4, 0.5, 0.6, 0.7),
    (0.1, 0.5): (0.4, 0.6, 0.8),
    (0.2, 0.5): (0.5, 0.75, 1.0),
    (0.4, 0.5): (1.0, 1.5, 2.5),
}
START, N_ITER, UNITS, PATHS = 300**-0.5, 45, 1.5, 2048  # first cosine, iterations, Parisi parameter, paths
LINEAR, LATEST, SMALL = 5, 20, 0.3  # first and last iteration, and largest cosine, of the linear growth
LINES = ("alpha_c", "alpha_l", "semantic_from", "positional_to")  # boundaries in the file of runs
LABELS = {"alpha_c": r"$\alpha_c$: equal training loss", "alpha_l": r"$\alpha_l$: better than the linear baseline",
          "semantic_from": "semantic branch appears", "positional_to": "positional branch ends"}  # fmt: skip


@cache
def build_model(omega, sigma):
    """Return the attention layer of the founding paper with other ω and σ, after compilation of all methods."""
    data = ga.sample(ga.paper_model(), 40, 1.0, 0)
    ga.run_gamp(data, "random", survey=True, max_iter=100)
    return ga.paper_model(omega=omega, sigma=sigma)


def run_instance(omega, sigma, alpha, d, seed):
    """Return the rows of one instance: message passing on both branches, and the methods from a random start."""
    data = ga.sample(build_model(omega, sigma), d, alpha, seed)
    rows = {branch: measure(data, ga.run_gamp(data, branch).Q) for branch in ("semantic", "positional")}
    start = draw_starts(data, 1, seed)
    rows["survey"] = run_survey(data, start[0], seed)
    return {"runs": rows | {name: restart(name, data, start, 0.0) for name in STUDENTS[1:]}}


def follow(omega, sigma, alpha, n_iter):
    """Return the cosines with the teacher that state evolution predicts for both methods, at every iteration."""
    model = build_model(omega, sigma)
    unit = ga.initial_survey(ga.sample(model, 2000, alpha, 0), "asymptotic", np.zeros((2000, 1)))[1]
    one, law = np.ones((2, 1, 1)), model.coordinates
    positions = np.sqrt(law.weight @ np.einsum("kii->ki", law.moments[:, :2, :2]))
    signs = np.sign(law.weight @ law.moments[:, 0, :2])  # the positions of both tokens may be opposite
    start = ga.Overlaps(
        q=sigma**2 * one, m=START * (signs * positions)[:, None], theta=START * sigma**2 * one, V=np.nan * one
    )
    curves = {}
    for method, settings in (("survey", {"parisi": UNITS * unit}), ("gamp", {})):
        path = ga.trajectory(model, alpha, start, method=method, n_iter=n_iter, n_paths=PATHS, n_replicas=2, **settings)
        cosine = np.abs(path.theta[:, 0, 0, 0]) / np.sqrt(path.q[:, 0, 0, 0]) / sigma
        curves[method] = {"cosine": [float(f"{x:.4g}") for x in cosine], "growth": compute_growth(cosine)}
    return {"curves": curves}


def compute_growth(cosine):
    """Return the mean factor per iteration of a cosine, as long as it is small."""
    large = np.flatnonzero(cosine[LINEAR + 1 :] >= SMALL)
    last = min(LATEST, LINEAR + 1 + large[0] if len(large) else LATEST, len(cosine) - 1)
    return float((cosine[last] / cosine[LINEAR]) ** (1 / (last - LINEAR)))


def find_boundaries(omega, sigma):
    """Return α_c and other boundaries, the thresholds of Bayes-optimal estimation and of spectral starts."""
    model = build_model(omega, sigma)
    lines = ga.phase_boundaries(model, alphas=(0.1, 4.0), tol=1e-2)
    bayes = ga.bayes_thresholds(model, n_points=1024)
    grid = np.array([0.2, 0.3, 0.4, 0.5])
    strengths = np.array([ga.spectral_overlap(model, alpha).strength for alpha in grid])
    numbers = {name: float(getattr(lines, name)[0]) for name in LINES}
    numbers = {name: value if np.isfinite(value) else None for name, value in numbers.items()}
    spectral = float(np.interp(1.0, strengths, grid))
    return numbers | {"weak": bayes.weak_recovery, "full": bayes.full_recovery, "spectral": spectral}


def plan_rows(quick, instances):
    """Return functions that compute the rows, by key, in order of priority."""
    grids = {FOUNDING: (2.5,)} if quick else GRIDS
    theory, n_iter, d = ({FOUNDING: (2.5,)}, 12, 100) if quick else (THEORY, N_ITER, DIM)
    plan = {("lines", *where): partial(find_boundaries, *where) for where in grids}
    for where, alphas in theory.items():
        plan |= {("theory", *where, alpha): partial(follow, *where, alpha, n_iter) for alpha in alphas}
    for seed in range(1 if quick else max(instances, *INSTANCES.values())):
        for where, alphas in grids.items():
            if seed < max(instances, INSTANCES[where == FOUNDING]):
                plan |= {("run", *where, a, seed): partial(run_instance, *where, a, d, seed) for a in alphas}
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


def list_alphas(rows, kind, where):
    """Return all α of a kind of rows at (ω, σ), in order."""
    return sorted({row["key"][3] for row in select(rows, kind, where)})


def read_targets(path):
    """Return the rows of the targets of survey_propagation as rows of runs; L-BFGS is not among their methods."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    targets = [row for row in rows if row["part"].startswith("target")]
    return [
        {"key": ["run", *NARROW, float(row["part"].split()[1]), row["seed"]],
         "runs": {"semantic": row["runs"]["informed"], **row["runs"]}}
        for row in targets
    ]  # fmt: skip


def has_found(run, method):
    """Return whether a method found the teacher in one instance."""
    return run[method]["cosine"] >= FOUND * run["semantic"]["cosine"]


def find_ends(rows, where, alpha, method):
    """Return for all instances of a method whether it found the teacher."""
    runs = [row["runs"] for row in select(rows, "run", where, alpha)]
    return np.array([has_found(run, method) for run in runs if method in run])


def find_half(alphas, values, level):
    """Return the first α at which values cross a level for good, by linear interpolation; None if they never do."""
    above = np.asarray(values) >= level
    if not above[-1]:
        return None
    last = len(above) - 1 - int(np.argmin(above[::-1])) if not above.all() else -1
    if last < 0:
        return None  # the crossing is below the smallest α
    x, y = alphas[last : last + 2], values[last : last + 2]
    return float(x[0] + (level - y[0]) / (y[1] - y[0]) * (x[1] - x[0]))


def half_of_runs(rows, where, method):
    """Return the α from which on half of the instances find the teacher."""
    ends = {alpha: find_ends(rows, where, alpha, method) for alpha in list_alphas(rows, "run", where)}
    fractions = {alpha: float(end.mean()) for alpha, end in ends.items() if len(end)}
    return find_half(list(fractions), list(fractions.values()), 0.5) if fractions else None


def flow_from(rows, where, method):
    """Return the α from which on the theory of a method flows to the teacher."""
    curves = {row["key"][3]: row["curves"][method]["cosine"][-1] for row in select(rows, "theory", where)}
    alphas = sorted(curves)
    return find_half(alphas, [curves[alpha] for alpha in alphas], FLOWS) if alphas else None


def growth_from(rows, where, method):
    """Return the α from which on a small cosine grows by the theory of a method."""
    factors = {row["key"][3]: row["curves"][method]["growth"] for row in select(rows, "theory", where)}
    alphas = sorted(factors)
    return find_half(alphas, [factors[alpha] for alpha in alphas], 1.0) if alphas else None


def format_table(rows):
    """Return the table of runs that found the teacher."""
    heads = ["ω, σ", "α, instances", *(METHODS[name] for name in STUDENTS), "cosine: semantic", "survey", "GAMP",
             "loss: survey / semantic", "survey / positional"]  # fmt: skip
    lines = []
    for where in list_places(rows, "run"):
        for alpha in list_alphas(rows, "run", where):
            runs = [row["runs"] for row in select(rows, "run", where, alpha)]
            counts = [find_ends(rows, where, alpha, name).sum() for name in STUDENTS]
            cosines = [[run[name]["cosine"] for run in runs] for name in ("semantic", "survey", "gamp")]
            ratios = [
                [run["survey"]["loss"] / run[name]["loss"] for run in runs] for name in ("semantic", "positional")
            ]
            place = f"{where[0]:g}, {where[1]:g}" if alpha == list_alphas(rows, "run", where)[0] else ""
            ranges = [format_range(each, "{:.2f}") for each in cosines] + [
                format_range(x, "{:.4f}") if x else "–" for x in ratios
            ]
            lines.append([place, f"{alpha:g}, {len(runs)}", *counts, *ranges])
    return markdown_table(heads, lines)


def format_lines(rows):
    """Return the table of thresholds."""
    heads = [
        "ω, σ",
        "weak recovery",
        "spectral",
        "full recovery",
        "semantic from",
        "α_c",
        "α_l",
        "positional to",
        "survey: growth",
        "survey: flow",
        "GAMP: growth",
        "GAMP: flow",
        *(f"half: {METHODS[x]}" for x in STUDENTS),
    ]
    lines = []
    for where in list_places(rows, "lines"):
        numbers = select(rows, "lines", where)[0]
        values = [numbers[name] for name in ("weak", "spectral", "full", "semantic_from", "alpha_c", "alpha_l",
                                             "positional_to")]  # fmt: skip
        values += [find(rows, where, name) for name in ("survey", "gamp") for find in (growth_from, flow_from)]
        values += [half_of_runs(rows, where, name) for name in STUDENTS]
        lines.append([f"{where[0]:g}, {where[1]:g}", *("–" if x is None else f"{x:.2f}" for x in values)])
    return markdown_table(heads, lines)


def check_rows(verdict, rows):
    """Check the claims."""
    for where in list_places(rows, "run"):
        alphas, place = list_alphas(rows, "run", where), f"ω = {where[0]:g}, σ = {where[1]:g}"
        for name in STUDENTS[1:]:
            runs = [row["runs"] for row in select(rows, "run", where) if name in row["runs"]]
            counts = [sum(has_found(run, each) for run in runs) for each in ("survey", name)]
            text = f"the teacher is found in {counts[0]} of {len(runs)} runs by survey propagation"
            verdict.check(counts[0] >= counts[1], f"{place}: {text}, {counts[1]} by {METHODS[name]}")
        for line in select(rows, "lines", where):
            low = [find_ends(rows, where, a, name).any() for a in alphas if a < line["weak"] for name in STUDENTS]
            verdict.check(not any(low), f"{place}: no method finds the teacher below weak recovery")
            start = flow_from(rows, where, "survey")
            if start is not None:
                verdict.check(start > line["weak"], f"{place}: theory of survey propagation flows from α = {start:.2f}")


def draw_alphas(axis, rows, where):
    """Draw fractions of random starts and theory against α at one (ω, σ)."""
    for name in STUDENTS:
        ends = {alpha: find_ends(rows, where, alpha, name) for alpha in list_alphas(rows, "run", where)}
        alphas = [alpha for alpha, end in ends.items() if len(end)]
        fractions = [100 * ends[alpha].mean() for alpha in alphas]
        style = {"ms": 9 if name == "survey" else 6, "lw": 2, "color": COLOURS[name]}
        axis.plot(alphas, fractions, MARKERS[name] + STYLES[name], **style, label=f"{METHODS[name]}, d = {DIM}")
    for name in ("survey", "gamp"):
        theory = {row["key"][3]: row["curves"][name]["cosine"][-1] for row in select(rows, "theory", where)}
        label = f"theory of {METHODS[name]}: cosine after {N_ITER} iterations, %"
        axis.plot(sorted(theory), [100 * theory[a] for a in sorted(theory)], lw=1, color=COLOURS[name], alpha=0.7,
                  label=label)  # fmt: skip
    numbers = select(rows, "lines", where)[0]
    marks = {"weak": "weak", "spectral": "spectral", "full": "full", "alpha_c": r"$\alpha_c$", "alpha_l": r"$\alpha_l$"}
    height = 116
    for name, word in marks.items():
        if numbers[name] is not None:
            axis.axvline(numbers[name], ymax=0.8, color=GREY, lw=1, ls="--")
            axis.annotate(word, (numbers[name], height), ha="center", fontsize=8, color=DARK)
            height = 230 - height  # two rows, so that neighbours do not overlap
    axis.set(xlabel=ALPHA, ylabel="found the teacher, %", ylim=(-5, 128), yticks=range(0, 101, 25),
             title=f"ω = {where[0]:g}, σ = {where[1]:g}")  # fmt: skip


def draw_omegas(axis, rows):
    """Draw lines of theory, and the α from which on half of the random starts find the teacher, against ω."""
    places = [where for where in list_places(rows, "lines") if where[1] == FOUNDING[1]]
    omegas = np.array([where[0] for where in places])
    numbers = [select(rows, "lines", where)[0] for where in places]
    for name, style in (("alpha_c", "-"), ("alpha_l", "--"), ("semantic_from", ":")):
        values = np.array([line[name] if line[name] is not None else np.nan for line in numbers])
        axis.plot(omegas, values, style, color=DARK, lw=1, label=LABELS[name])
    for name, style in (("weak", ":"), ("full", "-")):
        label = f"Bayes-optimal: {name} recovery"
        axis.plot(omegas, [line[name] for line in numbers], style, color="#CC79A7", lw=1.5, label=label)
    for name in STUDENTS:
        halves = np.array([half_of_runs(rows, where, name) or np.nan for where in places])
        label = f"half of the starts: {METHODS[name]}"
        axis.plot(omegas, halves, MARKERS[name] + STYLES[name], lw=2, ms=7, color=COLOURS[name], label=label)
    for name in ("survey", "gamp"):
        flows = np.array([flow_from(rows, where, name) or np.nan for where in places])
        axis.plot(omegas, flows, "x", ms=8, mew=2, color=COLOURS[name], label=f"theory flows: {METHODS[name]}")
    axis.set(xlabel=OMEGA, ylabel=ALPHA, ylim=(0, 4), title=f"σ = {FOUNDING[1]:g}")


def draw(path, rows):
    """Draw what is found against α at two (ω, σ), and against ω and α."""
    with figure(path, 1, 3, (10.4, 5.2)) as axes:
        draw_alphas(axes[0, 0], rows, NARROW)
        draw_alphas(axes[0, 1], rows, FOUNDING)
        draw_omegas(axes[0, 2], rows)
        draw_legend(*axes[0], columns=3)


def main():
    args = options(
        __doc__, draw=True,
        instances={"type": int, "default": 0, "help": "minimum number of instances at each point"},
        stored={"action": "store_true", "help": "evaluate the stored rows, without further rows"},
    )  # fmt: skip
    verdict = Verdict("survey_map", args)
    path = verdict.path("_runs.jsonl")
    if args.quick:
        path.unlink(missing_ok=True)
    plan = plan_rows(args.quick, args.instances)
    todo = {} if args.draw or args.stored else {key: partial(compute_row, key, work) for key, work in plan.items()}
    rows = complete_rows(path, todo, lambda row: tuple(row["key"]), "rows")
    rows += read_targets(path.with_name(path.name.replace("survey_map", "survey_propagation")))
    if not args.quick:
        draw(verdict.path(".png"), rows)
    if args.draw:
        return
    check_rows(verdict, rows)
    verdict.write_table(format_table(rows))
    verdict.write_table(format_lines(rows), "_lines.md")
    verdict.end({"n_rows": len(rows)})


if __name__ == "__main__":
    main()
