"""Where message passing ends on the positional branch: the equations of its iterations, with every memory term.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5, asymptotic loss, β = 0.3 from the positions.
Runs search for the global proximal minimum of each sample in 20 iterations; later, samples keep their local minima.
State evolution does not describe this iteration, because its proximal map jumps and depends on the past. The equations
of `trajectory(..., MessagePassing(hold_after=20))` do: they contain the memory of the data, of the Onsager terms and of
the minima. They are iterated with up to 2^18 paths, and fitted by x + a/N + b (c − E c) for N paths, with the label
constant c as a control variate, as for instances (`positional_minima`). Their error contains the difference between two
tolerances of the stored times. Instances are the instances of `positional_minima`, with the same number of iterations,
without acceleration; numbers are fitted by x + a/d + b (c − E c), and changes since iteration 20 by x + a/d.

Criterion, fixed before the comparison: each of q, m, V and the training loss after 5, 10 and 20 iterations, and their
changes from iteration 20 to 40, 80 and 150, differ from the equations by less than 3.5 errors of the difference (24
comparisons). The changes from iteration 20 to the minima of default runs, which are accelerated, differ from the
changes to iteration 150 of the equations by less than 3.5 errors. V of the equations after 150 iterations differs from
the replica-symmetric fixed point by more than 10 errors. With 0 and 80 iterations with global minima, the changes of q
and of the training loss relative to 20 such iterations agree within 3.5 errors with the minima of `gamp_ends`.
(Page "Replica symmetry breaking" of the manual.)
"""

import json
from functools import partial

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, GREY
from validation._tools.catalog import ROOT, load_result
from validation._tools.drawing import figure
from validation._tools.held_messages import follow_held_messages
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import fit_sizes, markdown_table, mean_and_error
from validation.claims.positional_minima import (
    ALPHA,
    COUNTS,
    FIRST,
    KEYS,
    OTHER_SEED,
    OTHERS,
    expected_constant,
)

BETA, GLOBAL, LAST = 0.3, 20, 150  # step, iterations with global minima, and all iterations
TIMES = (0, 1, 2, 3, 5, 7, 10, 15, GLOBAL, 25, 30, 40, 50, 60, 80, 100, 120, LAST)  # stored iterations
LEVELS, CHANGES = (5, 10, GLOBAL), (40, 80, LAST)  # compared iterations
LONG = {2000: 8, 4000: 4, 8000: 0}  # instances with all iterations at large d; the others end after 20
TOLERANCE, FINE = 1e-2, 3e-3  # tolerances of the stored times, see `follow_held_messages`
PATHS = {
    (2**14, TOLERANCE): 16,
    (2**15, TOLERANCE): 3,
    (2**16, TOLERANCE): 6,
    (2**16, FINE): 3,
    (2**18, TOLERANCE): 12,
}  # replicas
HOLDS, HOLD_PATHS, HOLD_REPLICAS = (0, 80), 2**15, 3  # other numbers of iterations with global minima
AGREES, DIFFERS = 3.5, 10.0  # errors, see the criterion


def run_instance(d, seed, n_iter):
    """Return the numbers of an instance at the stored iterations."""
    data = ga.sample(ga.paper_model(), d, ALPHA, seed)
    iteration = ga.IterationOptions(hold_after=GLOBAL)
    run = ga.run_gamp(data, "positional", "asymptotic", damping=BETA, tol=0, max_iter=n_iter, iteration=iteration)
    path = run.history.scalars() | {"train_loss": run.history.train_loss}
    row = {"key": f"d = {d}, seed {seed}", "d": d, "seed": seed, "norm": run.gradient_norm}
    return [row | select_times(path, n_iter, float(data.terms("asymptotic").constant.mean()))]


def select_times(path, n_iter, constant):
    """Return the label constant and the numbers at the stored iterations."""
    times = [t for t in TIMES if t <= n_iter]
    return {"constant": constant} | {key: [abs(float(path[key][t])) for t in times] for key in KEYS}


def follow_paths(n_paths, tolerance, seed, hold_after=GLOBAL):
    """Return the numbers of one replica of the equations at the stored iterations."""
    settings = ga.paper_model(), ALPHA, "positional", BETA, LAST, hold_after
    path = follow_held_messages(*settings, n_paths, [n_paths, seed], tolerance)
    key = f"{n_paths} paths, {tolerance}, seed {seed}" + (f", hold {hold_after}" if hold_after != GLOBAL else "")
    row = {"key": key, "n_paths": n_paths, "tolerance": tolerance, "seed": seed, "hold": hold_after}
    return [row | select_times(path, LAST, path["constant"])]


def plan_rows(quick):
    """Return functions that compute the rows of replicas and instances, by key."""
    paths, first, others = ({(2**12, TOLERANCE): 2}, {200: 2}, {}) if quick else (PATHS, COUNTS, OTHERS)
    plan = {f"{n} paths, {tol}, seed {k}": partial(follow_paths, n, tol, k) for (n, tol), count in paths.items()
            for k in range(count)}  # fmt: skip
    for hold in () if quick else HOLDS:
        for k in range(HOLD_REPLICAS):
            key = f"{HOLD_PATHS} paths, {TOLERANCE}, seed {k}, hold {hold}"
            plan[key] = partial(follow_paths, HOLD_PATHS, TOLERANCE, k, hold)
    for counts, starts in ((first, FIRST), (others, dict.fromkeys(others, OTHER_SEED))):
        for d, count in counts.items():
            for i in range(count):
                seed, is_long = starts.get(d, 0) + i, i < LONG.get(d, count) and (starts is FIRST or d < 4000)
                n_iter = LAST if is_long else GLOBAL
                plan[f"d = {d}, seed {seed}"] = partial(run_instance, d, seed, n_iter)
    return plan


def read_columns(rows, t, since=None):
    """Return the sizes (d or number of paths) of rows, their label constants, and numbers at iteration t by name.

    With `since`, the numbers are changes since this iteration. Rows that end earlier are left out.
    """
    i = TIMES.index(t)
    kept = [row for row in rows if len(row["q"]) > i]
    before = {key: [row[key][TIMES.index(since)] if since is not None else 0.0 for row in kept] for key in KEYS}
    sizes = np.array([row.get("d", row.get("n_paths")) for row in kept], dtype=float)
    constants = np.array([row["constant"] for row in kept])
    return sizes, constants, {key: np.array([row[key][i] for row in kept]) - before[key] for key in KEYS}


def fit_number(rows, t, since, key, expected):
    """Return the limit of a number for infinite size, its error, the coefficient of 1/size, and its error."""
    sizes, constants, numbers = read_columns(rows, t, since)
    found, errors = fit_sizes(sizes, numbers[key], [] if since is not None else [constants - expected])
    return [[float(found[k]), float(errors[k])] for k in (0, 1)]


def predict(replicas, t, since, key, expected):
    """Return a number of the equations and its error, which contains the difference between two tolerances."""
    coarse = [row for row in replicas if row["tolerance"] == TOLERANCE]
    value, error = fit_number(coarse, t, since, key, expected)[0]
    fine = {row["seed"]: row for row in replicas if row["tolerance"] == FINE}
    pairs = [(row, fine[row["seed"]]) for row in coarse if row["seed"] in fine and row["n_paths"] == 2**16]
    away = [np.subtract(*(read_columns([row], t, since)[2][key][0] for row in pair)) for pair in pairs]
    return [value, float(np.hypot(error, np.hypot(*mean_and_error(away))))]


def compare(a, b):
    """Return the difference of two numbers with errors in units of its error."""
    return float((a[0] - b[0]) / np.hypot(a[1], b[1]))


def main():
    args = options(__doc__, draw=True, stored=True)
    verdict = Verdict("gamp_end_theory", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    rows = verdict.complete_rows(plan_rows(args.quick))
    replicas, instances = ([row for row in rows if name in row] for name in ("n_paths", "d"))
    others, replicas = ([row for row in replicas if (row["hold"] != GLOBAL) is each] for each in (True, False))
    if args.quick:
        for key, label in KEYS.items():
            theory, runs = (np.mean([row[key][-1] for row in part]) for part in (replicas, instances))
            verdict.check(abs(theory / runs - 1) < 0.5, f"{label} after {LAST} iterations: {theory:.4g}, {runs:.4g}")
        verdict.end({})
        return
    expected, table, numbers = expected_constant(), [], {}
    ends = measure_ends(instances)
    for t in (*LEVELS, *CHANGES, "end"):
        since = GLOBAL if t not in LEVELS else None
        words = f"{t}" if since is None else f"{t}, change since {GLOBAL}"
        cells = {"equations": [], "instances, d → ∞": [], "coefficient of 1/d": [], "difference/error": []}
        numbers[f"{t}"] = {}
        for key, label in KEYS.items():
            theory = predict(replicas, LAST if t == "end" else t, since, key, expected)
            if t == "end":
                limit, slope = ends[key]
            else:
                limit, slope = fit_number(instances, t, since, key, expected)
            off = compare(limit, theory)
            verdict.check(abs(off) < AGREES, f"{words}: {label} differs from the equations by {off:.1f} errors")
            numbers[f"{t}"][key] = {"theory": theory, "limit": limit, "slope": slope}
            factor = 1e6 if key == "train_loss" else 1.0
            for name, pair in zip(cells, (theory, limit, slope), strict=False):
                cells[name].append(plus_minus(*(factor * v for v in pair)))
            cells["difference/error"].append(f"{off:.1f}")
        table += [[words if name == "equations" else "", name, *values] for name, values in cells.items()]
    heads = ["iteration", "", *KEYS.values()]
    verdict.write_table(markdown_table([*heads[:-1], "training loss, 10⁻⁶"], table))
    check_holds(verdict, replicas, others)
    last = {key: predict(replicas, LAST, None, key, expected) for key in KEYS}
    check_fixed_point(verdict, last)
    curves = {f"{t}": {key: predict(replicas, t, None, key, expected) for key in KEYS} for t in TIMES[1:]}
    verdict.end({"comparison": numbers, "last": last, "curves": curves, "means": mean_paths(instances, expected)}, draw)


def measure_ends(instances):
    """Return limits and coefficients of 1/d of the changes from iteration 20 to the minima of default runs."""
    lines = (ROOT / "results" / "positional_minima_runs.jsonl").read_text().splitlines()
    minima = {(row["d"], row["seed"]): row for row in map(json.loads, lines)}
    both = [(row, minima[row["d"], row["seed"]]) for row in instances if (row["d"], row["seed"]) in minima]
    sizes, i = [row["d"] for row, _ in both], TIMES.index(GLOBAL)
    fits = {key: fit_sizes(sizes, [end[key] - row[key][i] for row, end in both]) for key in KEYS}
    return {
        key: [[float(found[k]), float(errors[k])] for k in (0, 1)] for key, (found, errors) in fits.items()
    }  # fmt: skip


def check_holds(verdict, replicas, others):
    """Check the dependence of the end on the number of iterations with global minima against stored minima.

    Differences are paired: by seed of the paths, and by instance.
    """
    base = {row["seed"]: row for row in replicas if (row["n_paths"], row["tolerance"]) == (HOLD_PATHS, TOLERANCE)}
    stored = load_result(ROOT / "results" / "gamp_ends.json")["changes"]
    table = []
    for hold in HOLDS:
        pairs = [(row, base[row["seed"]]) for row in others if row["hold"] == hold]
        for key in ("q", "m", "train_loss"):
            mean = np.mean([row[key][-1] for _, row in pairs])
            theory, runs = mean_and_error([a[key][-1] - b[key][-1] for a, b in pairs]), stored[f"{hold}"][key]
            off = compare(runs, theory)
            if key != "m":
                claim = f"{hold} iterations with global minima: {KEYS[key]} differs by {off:.1f} errors"
                verdict.check(abs(off) < AGREES, claim)
            cells = [plus_minus(*(100 * v / mean for v in pair)) for pair in (theory, runs)]
            table.append([f"{hold}", KEYS[key], *cells, f"{off:.1f}"])
    heads = ["iterations with global minima", "", "equations, %", "minima, %", "difference/error"]
    verdict.write_table(markdown_table(heads, table), "_holds.md")


def check_fixed_point(verdict, last):
    """Check that V of the equations differs from the replica-symmetric fixed point, and report the ground state."""
    steps = load_result(ROOT / "results" / "further_steps.json")["limit"][-1]
    symmetric = ga.solve_state_evolution(ga.paper_model(), ALPHA, "positional", rtol=1e-4, stability=False)
    V = abs(float(symmetric.overlaps.scalars()["V"]))
    off = (last["V"][0] - V) / last["V"][1]
    verdict.check(abs(off) > DIFFERS, f"V after {LAST} iterations differs from replica symmetry by {off:.0f} errors")
    table = [["equations"], ["ground state, k → ∞"], ["difference/error"]]
    for key in KEYS:
        factor = 1e6 if key == "train_loss" else 1.0
        for cells, pair in zip(table, (last[key], steps[key]), strict=False):
            cells.append(plus_minus(*(factor * v for v in pair)))
        table[-1].append(f"{compare(last[key], steps[key]):.1f}")
    heads = [f"after {LAST} iterations", *list(KEYS.values())[:-1], "training loss, 10⁻⁶"]
    verdict.write_table(markdown_table(heads, table), "_ground.md")


def mean_paths(instances, expected):
    """Return means and errors of instances at the stored iterations by d, without the scatter due to labels."""
    means = {}
    for d in (1000, 4000):
        means[f"{d}"] = {key: [] for key in KEYS}
        for t in TIMES[1:]:
            sizes, constants, numbers = read_columns(instances, t)
            for key, values in numbers.items():
                excess = constants - expected
                found, _ = fit_sizes(sizes, values, [excess])
                means[f"{d}"][key].append(mean_and_error((values - found[2] * excess)[sizes == d]))
    return means


def draw(numbers, path):
    """Draw q, m, V and the training loss at each iteration: equations, and means of instances."""
    times, colors = TIMES[1:], {"1000": COLORS["random"], "4000": COLORS["positional"]}
    with figure(path, 2, 2, (9.0, 6.4)) as axes:
        for axis, (key, label) in zip(axes.ravel(), KEYS.items(), strict=True):
            curve = np.array([numbers["curves"][f"{t}"][key] for t in times])
            axis.plot(times, curve[:, 0], "-", color=DARK, label="equations, d → ∞")
            for d, color in colors.items():
                mean, error = np.array(numbers["means"][d][key]).T
                style = {"fmt": "o", "ms": 3.5, "lw": 0.8, "color": color, "label": f"instances, d = {d}, ± 2 s.e."}
                axis.errorbar(times, mean, 2 * error, **style)
            axis.axvline(GLOBAL, color=GREY, lw=0.8, ls=":")
            axis.set(xscale="log", xlabel="iteration", title=label)
        axes[1, 1].legend(frameon=False)


if __name__ == "__main__":
    main()
