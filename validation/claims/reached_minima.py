"""Which minima of the positional branch algorithms reach: the ground state, threshold states or the end of descent.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5, asymptotic loss. GAMP, survey propagation (at
the Parisi parameter of the ground state with one step, then GAMP), L-BFGS, and heavy-ball descent followed by L-BFGS
run to zero gradient from the positions of the same instances. Survey propagation also runs from further starts near the
positions, √d p_1 + N(0, 1), on some instances at d = 500; the lowest of all minima of an instance is compared, too.

Differences from GAMP are paired by instance. Their scatter comes partly from the minimum that GAMP happens to reach. It
is reduced by a control variate: the change e of the same number from iteration 20 of GAMP with constant steps to its
minimum, less its mean, which is known from all instances of `positional_minima`. Differences are fitted by δ + b e with
weights d, as if δ did not depend on d, and δ is added to the limit d → ∞ of GAMP (`positional_minima`). The limit of
descent is the stored limit of `end_of_descent`, from d up to 8000. Minima with m < 0.2, which are not on the branch
(m = 0.255, scatter 0.015 at d = 500), are left out. Predictions:


- the ground state, k → ∞ (`further_steps`);
- clusters at a higher energy: `solve_broken(..., parisi=y)` gives the free energy F(y), the complexity
  Σ = y²F'(y), and the energy of the clusters E = F + Σ/y. As dΣ/dE = y, the clusters of largest complexity, the
  threshold states, have the largest energy;
- dynamics: heavy-ball descent in theory after 200 steps, a training time of 6000, by `trajectory` with compression,
  extrapolated in 1/N from two numbers N of paths, for q, m and the training loss.

Solutions and runs are stored when they end (--quick: one y, d = 200).

The effect of broken symmetry on a number is the difference between the minima of an algorithm and replica symmetry. It
is listed for each algorithm with its error.

Criterion: all solutions converge, and 95 % of the runs reach a gradient norm of 1e-6; F(y) is largest where Σ changes
its sign; the threshold states are less than 0.1 % above the ground state; differences from GAMP do not depend on 1/d
by more than 3 errors. The differences of the limits from the predictions are reported in units of their errors. Fixed
before the control variate was used: the errors of q and m are at most a tenth of the effect, which is the difference
from the ground state for GAMP, and the difference from GAMP for L-BFGS and survey propagation. Added with the instances
of the last enlargement: the errors of V, q and m of these three algorithms are at most a tenth of the effect of broken
symmetry. (Page "Replica symmetry breaking" of the manual.)
"""

from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.train.survey import N_ITER, STEP
from validation._tools.catalog import ROOT, load_result
from validation._tools.descents import predicted_descent
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_parts, complete_rows
from validation._tools.tables import extrapolate, fit_sizes, markdown_table, mean_and_error
from validation.claims.end_of_descent import HOW, STEPS
from validation.claims.further_steps import describe, difference, show
from validation.claims.gamp_end_theory import BETA, GLOBAL
from validation.claims.positional_minima import FIRST, KEYS, REACHED, check_reached

ALPHA = 1.5
COUNTS = {500: 54, 1000: 8, 2000: 306, 4000: 48}  # instances by d
# first seeds; the minima of GAMP of `positional_minima` are of the same instances, and of further instances
SEEDS = {500: FIRST[500], 1000: FIRST[1000], 2000: 50_000, 4000: 50_000}
LARGE = 2000  # smallest d without descent by steps, whose end is stored up to d = 8000 by `end_of_descent`
SEARCHED, N_SEARCHES = {500: 19}, 8  # instances with further starts by d, and starts of each
PARISI = (100.0, 200.0, 300.0, 450.0, 600.0, None, 1500.0)  # None: the ground state
SURVEY, SURVEYS = 742.8, (742.8, 300.0)  # Parisi parameters of survey propagation: of the ground state; further starts
SAME = 1e-3  # distance in units of q below which two minima are equal
NEAR_BRANCH = 0.2  # smallest m of a minimum on the branch
DESCENTS = {2**14: 4, 2**16: 3}  # replicas of the theory of descent by number of paths
LONG, COMPRESSION = 200, 3e-3  # its steps and its compression
CONTROL = "gamp, start"  # name of the rows with the numbers of GAMP with constant steps after 20 iterations
TENTH = 0.1  # largest ratio of an error to the effect
SMALL = 1e-3  # largest excess of the energy of threshold states, relative to the ground state
NAMES = {"gamp": "GAMP", "survey": "survey propagation", "lbfgs": "L-BFGS", "descent": "descent, then L-BFGS"}
WORDS = NAMES | {"lowest": "lowest of all minima", "end": "descent, then L-BFGS, d up to 8000"}


def run_cell(d, number):
    """Return the minima of all algorithms from the positions on one instance."""
    seed = SEEDS.get(d, 0) + number
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, seed)
    rows, minima = [], {}
    for name in NAMES:
        if name == "descent" and d >= LARGE:
            continue
        if name in ("gamp", "survey"):
            survey = SURVEY if name == "survey" else False
            run = ga.train(data, "positional", "asymptotic", max_iter=1000, survey=survey, n_starts=1, escape=False)
        else:
            Q = "positional"
            if name == "descent":
                Q = ga.minimize_risk(data, Q, "asymptotic", max_iter=STEPS, tol=0, **HOW).Q
            run = ga.minimize_risk(data, Q, "asymptotic", "lbfgs", max_iter=3000)
        scale = np.sign(run.overlaps.m[0, 0]) * 0.5 / np.sqrt(d)  # σ = 0.5
        minima[name] = scale * run.Q[:, 0]
        overlaps = {other: float(Q @ minima[name]) for other, Q in minima.items() if other != name}
        rows.append(describe_run(name, d, seed, run) | {"overlaps": overlaps})
    return rows


def control_cell(d, number):
    """Return the numbers of GAMP with constant steps after the iterations with global minima."""
    seed = SEEDS.get(d, 0) + number
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, seed)
    run = ga.run_gamp(data, "positional", "asymptotic", damping=BETA, tol=0, max_iter=GLOBAL)
    return [describe_run(CONTROL, d, seed, run)]


def describe_run(algorithm, d, seed, run):
    """Return the row of a run: gradient norm, training loss and overlaps."""
    overlaps = {key: abs(float(value)) for key, value in run.overlaps.scalars().items()}
    return {"algorithm": algorithm, "d": d, "seed": seed, "norm": run.gradient_norm, "train_loss": run.train_loss,
            **overlaps}  # fmt: skip


def search_cell(d, number):
    """Return the minima of survey propagation from further starts on one instance."""
    seed = SEEDS.get(d, 0) + number
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, seed)
    position, rows = data.positions[0][:, None], []
    for k, noise in enumerate(np.random.default_rng([seed, 1]).standard_normal((N_SEARCHES, d, 1))):
        run = ga.train(
            data,
            np.sqrt(d) * position + noise,
            "asymptotic",
            max_iter=1000,
            survey=SURVEYS[k % 2],
            n_starts=1,
            escape=False,
        )
        rows.append(describe_run("further", d, seed, run))
    return rows


def solve_at(parisi):
    """Return F, Σ, E, overlaps and replicons at a Parisi parameter, or at the ground state, with errors."""
    model = ga.paper_model()
    symmetric = ga.solve_state_evolution(model, ALPHA, "positional", rtol=1e-3, stability=False)
    se = ga.solve_broken(model, ALPHA, symmetric.overlaps, parisi=parisi, rtol=1e-2)
    y, complexity, error = (float(value[0]) for value in (se.parisi, se.complexity, se.complexity_error))
    return describe(se) | {
        "y": y,
        "complexity": [complexity, error],
        "energy": [se.train_loss + complexity / y, se.train_loss_error + error / y],
    }


def follow_descent(n_paths, n_replicas):
    """Return q, m and the training loss at the end of descent in theory, each with its error."""
    settings = {"n_iter": LONG, "n_paths": n_paths, "n_replicas": n_replicas, "seed": n_paths}
    path = ga.trajectory(ga.paper_model(), ALPHA, "positional", predicted_descent(HOW, COMPRESSION), **settings)
    numbers = {key: [abs(float(getattr(of, key)[-1].flat[0])) for of in (path, path.error)] for key in ("q", "m")}
    return numbers | {"train_loss": [float(path.train_loss[-1]), float(path.train_loss_error[-1])]}


def follow_survey():
    """Return |m| and the spread U/(q + U) of the survey for d → ∞, each with its error, by iteration."""
    path = ga.trajectory(
        ga.paper_model(), ALPHA, "positional", ga.Survey(parisi=SURVEY, damping=STEP), n_iter=N_ITER, n_paths=4096,
        n_replicas=3, seed=0,
    )  # fmt: skip
    q, U = path.q[:, 0, 0, 0], path.U[:, 0, 0, 0]
    spread = np.array([U, path.U_error[:, 0, 0, 0]]) / (q + U)
    return {"m": [abs(path.m[:, 0, 0]), path.error.m[:, 0, 0]], "spread": spread}


def tabulate_survey(path):
    """Return m and the spread of the survey for d → ∞ at some iterations as a table."""
    columns = np.array([*path["m"], *path["spread"]]).T
    rows = [[t, plus_minus(m, m_error), plus_minus(*spread)] for t, (m, m_error, *spread) in enumerate(columns)]
    return markdown_table(["iteration of the survey", "m", "spread"], rows[::3])


def main():
    args = options(__doc__, stored=True)
    verdict = Verdict("reached_minima", args)
    parisi = (400.0,) if args.quick else PARISI
    parts = {"ground state" if y is None else f"y = {y:g}": partial(solve_at, y) for y in parisi}
    descents = {} if args.quick else DESCENTS
    paths = {f"descent, {n} paths": partial(follow_descent, n, count) for n, count in descents.items()}
    surveys = {} if args.quick else {"survey": follow_survey}
    plan, quick = plan_cells(args.quick), "_quick" if args.quick else ""
    if args.stored:
        stored = verdict.stored()["solutions"]
    else:
        stored = complete_parts(args.out / f"reached_minima{quick}_parts.json", parts | paths | surveys)
    rows = complete_rows(verdict.path("_runs.jsonl"), {} if args.stored else plan, key_of, "instances")
    rows = [row for row in rows if key_of(row) in plan]
    for name in parts:
        verdict.check(stored[name]["status"] == "converged", f"{name}: {stored[name]['status']}")
    controls, rows = ([row for row in rows if (row["algorithm"] == CONTROL) is each] for each in (True, False))
    check_reached(verdict, rows)
    if args.quick:
        verdict.end({})
        return
    rows = [row for row in rows if row["norm"] <= REACHED and row["m"] > NEAR_BRANCH]
    solutions = sorted((stored[name] for name in parts), key=itemgetter("y"))
    bottom = stored["ground state"]["train_loss"][0]
    states = predictions(check_clusters(verdict, solutions, bottom), [stored[name] for name in paths])
    measured, ends = (
        load_result(ROOT / "results" / f"{name}.json") for name in ("positional_minima", "end_of_descent")
    )
    gamp = {key: measured["limits"][key]["limit"] for key in KEYS}
    rows += lowest(rows)
    controls = Controls(rows, controls, measured["limits"])
    fits = {name: {key: controls.fit(name, key) for key in KEYS} for name in ("survey", "lbfgs", "descent", "lowest")}
    changes = {name: {key: fit.change for key, fit in by_key.items()} for name, by_key in fits.items()}
    limits = {"gamp": gamp} | {name: {key: fit.limit for key, fit in by_key.items()} for name, by_key in fits.items()}
    limits["end"] = relative_to(ends["fixed"], ends["limits"]["descent"])
    verdict.write_table(markdown_table(COLUMNS, [tabulate_solution(solution, bottom) for solution in solutions]))
    verdict.write_table(tabulate_limits(limits, states), "_limits.md")
    verdict.write_table(tabulate_effects(verdict, limits), "_effects.md")
    verdict.write_table(tabulate_pairs(rows, changes, gamp), "_pairs.md")
    verdict.write_table(tabulate_overlaps(rows), "_overlaps.md")
    verdict.write_table(tabulate_survey(stored["survey"]), "_survey.md")
    for name in ("survey", "lbfgs"):
        for key in ("q", "m"):
            drift, error = controls.change_with_size(name, key)
            claim = f"{name}: the difference of {key} from GAMP depends on 1/d by {drift / error:.1f} errors"
            verdict.check(abs(drift) < 3 * error, claim)
    check_accuracy(verdict, gamp, changes, states)
    verdict.end({"solutions": stored, "limits": limits, "changes": changes, "states": states})


def check_accuracy(verdict, gamp, changes, states):
    """Check that errors of q and m are at most a tenth of the effect, for each of the three algorithms."""
    bottom = states["ground state, k → ∞"]
    for key in ("q", "m"):
        effects = {"gamp": [gamp[key][0] - bottom[key][0], gamp[key][1]]}
        effects |= {name: changes[name][key] for name in ("lbfgs", "survey")}
        for name, (effect, error) in effects.items():
            ratio = error / abs(effect)
            from_what = "the ground state" if name == "gamp" else "GAMP"
            words = f"{100 * ratio:.1f} % of the difference from {from_what}"
            verdict.check(ratio <= TENTH, f"{NAMES[name]}: the error of {key} is {words}")


def plan_cells(quick):
    """Return functions that compute the rows of each instance, by key."""
    counts, searched = ({200: 4}, {200: 2}) if quick else (COUNTS, SEARCHED)
    cells = (run_cell, "minima", counts), (search_cell, "further", searched), (control_cell, "control", counts)
    return {(d, SEEDS.get(d, 0) + i, kind): partial(cell, d, i) for cell, kind, numbers in cells
            for d, count in numbers.items() for i in range(count)}  # fmt: skip


def key_of(row):
    """Return the key of a row: d, seed of the instance, and the kind of its runs."""
    return row["d"], row["seed"], {"further": "further", CONTROL: "control"}.get(row["algorithm"], "minima")


COLUMNS = ("y", "V", "q", "m", "F above the ground state, 10⁻⁹", "complexity Σ, 10⁻³",
           "energy E above the ground state, 10⁻⁹", "replicons, level 0 and 1")  # fmt: skip


def tabulate_solution(solution, bottom):
    """Return a row of the table of clusters."""
    above = [[1e9 * (solution[name][0] - bottom), 1e9 * solution[name][1]] for name in ("train_loss", "energy")]
    complexity = [1e3 * value for value in solution["complexity"]]
    replicons = ", ".join(f"{value:.3f}" for value in solution["replicons"][0])
    pairs = [f"{value:.4g} ± {error:.1g}" for value, error in (above[0], complexity, above[1])]
    return [f"{solution['y']:.1f}", *(show(*solution[key]) for key in ("V", "q", "m")), *pairs, replicons]


def check_clusters(verdict, solutions, bottom):
    """Check free energies and complexities, and return the solution of largest energy: the threshold states."""
    signs = [solution["complexity"][0] > 0 for solution in solutions if solution["train_loss"][0] != bottom]
    best = int(np.argmax([solution["train_loss"][0] for solution in solutions]))
    verdict.check(
        signs == sorted(signs, reverse=True) and solutions[best]["train_loss"][0] == bottom,
        f"the complexity decreases through zero at the largest F, y = {solutions[best]['y']:.0f}",
    )
    threshold = max(solutions, key=lambda solution: solution["energy"][0])
    excess = threshold["energy"][0] / bottom - 1
    claim = f"threshold states at y = {threshold['y']:.0f} are {100 * excess:.4f} % above the ground state"
    verdict.check(0 < excess + threshold["energy"][1] / bottom < SMALL, claim)
    return threshold


def predictions(threshold, descents):
    """Return V, q, m and the training loss with errors of the states; NaN without a prediction."""
    full = load_result(ROOT / "results" / "further_steps.json")["limit"][-1]
    few, many = descents
    end = {key: extrapolate(list(DESCENTS), *zip(few[key], many[key], strict=True)) for key in few}
    return {
        "ground state, k → ∞": {key: full[key] for key in KEYS},
        "threshold states": {key: threshold["energy" if key == "train_loss" else key] for key in KEYS},
        "end of descent, theory": {key: list(end.get(key, (np.nan, np.nan))) for key in KEYS},
    }


def relative_to(fixed, numbers):
    """Return q and m with errors from deviations relative to the fixed point; the other numbers are NaN."""
    known = {key: [fixed[key] * (1 + numbers[key]["mean"]), fixed[key] * numbers[key]["error"]] for key in ("q", "m")}
    return {key: known.get(key, [np.nan, np.nan]) for key in KEYS}


def paired_mean(rows, name, key):
    """Return the mean difference of an algorithm from GAMP, with weights d, and its error."""
    d, y = paired(rows, name, key)
    mean = float(np.average(y, weights=d))
    return [mean, float(np.sqrt(np.sum((d * (y - mean)) ** 2)) / d.sum())]


def paired(rows, name, key):
    """Return d and the differences from GAMP of an algorithm, of instances where both end on the branch."""
    kept = {(row["algorithm"], row["d"], row["seed"]): row[key] for row in rows if np.isfinite(row[key])}
    both = [(d, seed) for algorithm, d, seed in kept if algorithm == name and ("gamp", d, seed) in kept]
    changes = [kept[name, d, seed] - kept["gamp", d, seed] for d, seed in both]
    return np.array([d for d, _ in both], dtype=float), np.array(changes)


class Fit(NamedTuple):
    """Difference of an algorithm from GAMP, and its limit, each with its error."""

    change: list[float]
    limit: list[float]


class Controls:
    """Differences from GAMP, with the change of GAMP since its iteration `GLOBAL` as a control variate.

    Parameters
    ----------
    rows : minima.
    controls : numbers of GAMP with constant steps after `GLOBAL` iterations.
    limits : limits of GAMP of `positional_minima`, with the limits of this change and its coefficients of 1/d.
    """

    def __init__(self, rows, controls, limits):
        self._rows, self._limits = rows, limits
        self._start = {(row["d"], row["seed"]): row for row in controls}

    def _select(self, name, key):
        """Return d, the differences from GAMP, and the control variate of an algorithm."""
        kept = {(row["algorithm"], row["d"], row["seed"]): row[key] for row in self._rows if np.isfinite(row[key])}
        both = [(d, seed) for algorithm, d, seed in kept if algorithm == name and ("gamp", d, seed) in kept]
        (mean, _), (slope, _) = self._limits[key]["change"]
        gamp = np.array([kept["gamp", *instance] for instance in both])
        start = np.array([self._start[instance][key] for instance in both])
        d = np.array([d for d, _ in both], dtype=float)
        return d, np.array([kept[name, *instance] for instance in both]) - gamp, gamp - start - mean - slope / d

    def fit(self, name, key):
        """Return the difference δ by a fit of δ + b e with weights d, and the limit; errors from the residuals.

        The mean of e has the error of the limit of the change of GAMP, which is also in the limit of GAMP.
        """
        d, y, e = self._select(name, key)
        design = np.stack([np.ones(len(y)), e], axis=1)
        inverse = np.linalg.inv(design.T @ (d[:, None] * design))
        found = inverse @ design.T @ (d * y)
        pulls = design * (d * (y - design @ found))[:, None]
        variance = (inverse @ pulls.T @ pulls @ inverse)[0, 0] * len(y) / (len(y) - 2)
        limit, change = self._limits[key]["limit"], self._limits[key]["change"][0]
        known = limit[1] ** 2 - change[1] ** 2  # variance of the number at iteration `GLOBAL`, from its equations
        return Fit(
            [float(found[0]), float(np.sqrt(variance + (found[1] * change[1]) ** 2))],
            [float(limit[0] + found[0]), float(np.sqrt(variance + known + ((1 + found[1]) * change[1]) ** 2))],
        )

    def change_with_size(self, name, key):
        """Return the coefficient of 1/d of the difference from GAMP and its error."""
        d, y, e = self._select(name, key)
        found, errors = fit_sizes(d, y, [e])
        return float(found[1]), float(errors[1])


def tabulate_overlaps(rows):
    """Return distances between minima of two algorithms on the same instance by d, and of the equations, as a table.

    The distance is the mean of both q minus their overlap, which is q_k − q_j for two minima in different clusters.
    """
    kept = {(row["algorithm"], row["d"], row["seed"]): row for row in rows if row.get("overlaps")}
    q = {(row["algorithm"], row["d"], row["seed"]): row["q"] for row in rows}
    table = []
    for first, second in (("gamp", "survey"), ("gamp", "lbfgs"), ("survey", "lbfgs")):
        cells = {"q, mean of both": [], "distance, 10⁻⁴": [], "fraction of equal pairs": []}
        for size in COUNTS:
            pairs = [
                (0.5 * (q[first, d, seed] + row["q"]), row["overlaps"][first])
                for (name, d, seed), row in kept.items()
                if (name, d) == (second, size) and (first, d, seed) in q
            ]
            mean, distance = np.array([(a, a - b) for a, b in pairs]).T
            cells["q, mean of both"].append(plus_minus(*mean_and_error(mean)))
            cells["distance, 10⁻⁴"].append(plus_minus(*mean_and_error(1e4 * distance)))
            cells["fraction of equal pairs"].append(f"{np.mean(distance < SAME * mean):.2f} of {len(pairs)}")
        names = f"{NAMES[first]}, {NAMES[second]}"
        table += [[names, label, *values, ""] for label, values in cells.items()]
    steps = load_result(ROOT / "results" / "further_steps.json")["results"]
    for name in ("k = 1", "k = 3"):
        levels = np.array(steps[name]["levels"][0])
        values = ", ".join(f"{1e4 * (levels[-1] - value):.2f}" for value in levels[:-1])
        table.append([f"equations, {name}", "q_k − q_j, 10⁻⁴", *[""] * len(COUNTS), values])
    return markdown_table(["minima", "", *(f"d = {d}" for d in COUNTS), "prediction"], table)


def lowest(rows):
    """Return the lowest minimum of each instance with further starts."""
    instances = {(row["d"], row["seed"]) for row in rows if row["algorithm"] == "further"}
    minima = [[row for row in rows if (row["d"], row["seed"]) == instance] for instance in sorted(instances)]
    return [min(each, key=itemgetter("train_loss")) | {"algorithm": "lowest"} for each in minima]


def tabulate_limits(limits, states):
    """Return limits and predictions, and their differences in units of the errors of the differences."""
    table = [[name, *(scaled(key, state[key]) for key in KEYS)] for name, state in states.items()]
    for name, limit in limits.items():
        table.append([WORDS[name], *(scaled(key, limit[key]) for key in KEYS)])
        for state, prediction in states.items():
            away = [difference(limit[key], prediction[key]) for key in KEYS]
            table.append([f"− {state}, in errors", *(f"{v:.1f}" if np.isfinite(v) else "" for v in away)])
    return markdown_table(["", "V", "q", "m", "training loss, 10⁻⁶"], table)


def tabulate_effects(verdict, limits):
    """Return limits, their differences from replica symmetry, and the errors relative to these differences, as a table.

    The errors of V, q and m of GAMP, L-BFGS and survey propagation are checked to be at most a tenth of the difference.
    """
    symmetric = ga.solve_state_evolution(ga.paper_model(), ALPHA, "positional", rtol=1e-4, stability=False)
    numbers = {key: abs(float(value)) for key, value in symmetric.overlaps.scalars().items()}
    numbers["train_loss"] = symmetric.train_loss
    table = [["replica symmetry", "value", *(scaled(key, [numbers[key], 0.0]) for key in KEYS)]]
    for name, limit in limits.items():
        effects = {key: [limit[key][0] - numbers[key], limit[key][1]] for key in KEYS}
        rows = {
            "value, d → ∞": [scaled(key, limit[key]) for key in KEYS],
            "effect: value − replica symmetry": [scaled(key, effect) for key, effect in effects.items()],
            "effect/error": [f"{effect / error:.1f}" if error > 0 else "" for effect, error in effects.values()],
            "error, % of the effect": [
                f"{100 * error / abs(effect):.1f}" if error > 0 else "" for effect, error in effects.values()
            ],
        }
        table += [[WORDS[name], words, *cells] for words, cells in rows.items()]
        for key in ("V", "q", "m") if name in ("gamp", "lbfgs", "survey") else ():
            effect, error = effects[key]
            claim = f"{NAMES[name]}: the error of {key} is {100 * error / abs(effect):.1f} % of the effect of breaking"
            verdict.check(error <= TENTH * abs(effect), claim)
    return markdown_table(["", "", "V", "q", "m", "training loss, 10⁻⁶"], table)


def scaled(key, pair):
    """Return a number with its error, training losses in units of 10⁻⁶; empty if it is NaN."""
    factor = 1e6 if key == "train_loss" else 1.0
    return plus_minus(*(factor * value for value in pair)) if np.isfinite(pair[0]) else ""


def tabulate_pairs(rows, changes, gamp):
    """Return numbers of pairs and mean differences from GAMP in per cent of GAMP's limits by d as a table."""
    table = []
    for name, change in changes.items():
        sizes = paired(rows, name, "q")[0]
        table.append([WORDS[name], "pairs", *(f"{np.sum(sizes == size)}" for size in COUNTS), f"{len(sizes)}"])
        for key, label in KEYS.items():
            d, y = paired(rows, name, key)
            percent = [100 * y[d == size] / gamp[key][0] for size in COUNTS]
            means = [plus_minus(*mean_and_error(values)) if len(values) else "" for values in percent]
            table.append(["", label, *means, plus_minus(*(100 * value / gamp[key][0] for value in change[key]))])
    return markdown_table(["difference from GAMP, %", "", *(f"d = {d}" for d in COUNTS), "all"], table)


if __name__ == "__main__":
    main()
