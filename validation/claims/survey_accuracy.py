"""No control variate halves the scatter of survey minima on the positional branch; how many pairs a tenth would need.

Method: differences of q and m between minima of survey propagation and of GAMP on the same instances (the stored rows
of `reached_minima`) are fitted with weights d and several sets of control variates: the change of the same number of
GAMP since its iteration 20, which `reached_minima` uses; the changes and the numbers at iteration 20 of V, q, m and the
training loss; and, on 28 instances at d = 500, q, m and the spread of the last iteration of the survey, whose limit
`trajectory(..., Survey(...))` could compute. The scatter that remains, times √d, is compared with the scatter of
surveys from further starts on one instance. A tenth of the effect of broken symmetry is then compared with the three
parts of the error: pairs, the change of GAMP since iteration 20, and the equations of these iterations.

Criterion, fixed before the last iterations of surveys were computed (scatters with the numbers of GAMP were known, the
limits that follow were not): an estimator with further control variates replaces the estimator of `reached_minima` if
it halves the scatter of q and of m. The checks require that the statement stays refuted, and that the scatter that
remains is at most 1.5 times the scatter on one instance, which no number of GAMP explains. (Page "Replica symmetry
breaking" of the manual.)
"""

import json
from functools import partial
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from gamp_attention.problem.risk import overlaps
from validation._tools.catalog import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table, round_number
from validation.claims.positional_minima import KEYS
from validation.claims.reached_minima import (
    ALPHA,
    CONTROL,
    NEAR_BRANCH,
    REACHED,
    SEEDS,
    SURVEY,
    SURVEYS,
    TENTH,
    Controls,
)

NUMBERS = ("q", "m")
SIZE, COUNT = 500, 28  # d, and number of instances whose last survey iterations are computed
LARGE = 4000  # d of the pairs that would be needed
HALF, EQUAL = 0.5, 1.5  # largest ratios of scatters, see the criterion
SAME = 1e-6  # relative difference up to which minima are the stored minima
WAYS = {
    "none": "no control variate",
    "used": "the change of the same number of GAMP since iteration 20",
    "gamp": "changes of V, q, m and the loss of GAMP, and their values at iteration 20",
    "none, last": "28 instances at d = 500: no control variate",
    "survey": "28 instances at d = 500: q, m and spread of the last survey iteration, and the change of GAMP",
    "within": "surveys from further starts on one instance, d = 500",
}
PARTS = {
    "pairs": "pairs",
    "change": "change of GAMP since iteration 20",
    "equations": "equations of 20 iterations",
    "all": "all",
    "allowed": "a tenth of the effect",
    "needed, same": "further pairs at d = 4000, with the other two parts as now",
    "needed, half": "further pairs at d = 4000, with half of the other two parts",
    "needed, none": "further pairs at d = 4000, without the other two parts",
}


class Instances(NamedTuple):
    """Numbers of the same instances, by name."""

    d: np.ndarray  # (n,)
    survey: dict[str, np.ndarray]  # minima of the survey
    gamp: dict[str, np.ndarray]  # minima of GAMP
    start: dict[str, np.ndarray]  # GAMP after 20 iterations
    last: np.ndarray  # (3, n) q, m and the spread of the last iteration of the survey, NaN if it was not computed


def run_survey(seed):
    """Return q, m and the spread of the last iteration of a survey, and q and m of the minimum that follows."""
    data = ga.sample(ga.paper_model(0.3), SIZE, ALPHA, seed)
    run = ga.train(data, "positional", "asymptotic", max_iter=1000, survey=SURVEY, n_starts=1, escape=False)
    last, end = (overlaps(data, Q, run.overlaps.V).scalars() for Q in (run.surveys[0].Q, run.Q))
    row = {"key": seed, "spread": run.surveys[0].spread}
    return [row | {f"{name} {when}": abs(float(value[name])) for when, value in (("last", last), ("end", end))
                   for name in NUMBERS}]  # fmt: skip


def main():
    args = options(__doc__, stored=True)
    verdict = Verdict("survey_accuracy", args)
    count = 2 if args.quick else COUNT
    ends = verdict.complete_rows({SEEDS[SIZE] + i: partial(run_survey, SEEDS[SIZE] + i) for i in range(count)})
    lines = (ROOT / "results" / "reached_minima_runs.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    kept = [row for row in rows if row["algorithm"] == CONTROL or on_branch(row)]
    stored = {(row["d"], row["seed"]): row for row in kept if row["algorithm"] == "survey"}
    changed = max(abs(row[f"{name} end"] / stored[SIZE, row["key"]][name] - 1) for row in ends for name in NUMBERS
                  if (SIZE, row["key"]) in stored)  # fmt: skip
    verdict.check(changed < SAME, f"the minima of the surveys are the stored minima up to {changed:.0e}")
    if args.quick:
        verdict.end({})
        return
    instances = select_instances(kept, {row["key"]: row for row in ends})
    scatters = {name: measure_scatters(instances, name) | {"within": measure_within(rows, name)} for name in NUMBERS}
    table = [[words, *(f"{scatters[name][way]:.4f}" for name in NUMBERS)] for way, words in WAYS.items()]
    verdict.write_table(markdown_table(["scatter of one instance times √d", *NUMBERS], table))
    for way, base in (("gamp", "none"), ("survey", "none, last")):
        ratios = [scatters[name][way] / scatters[name][base] for name in NUMBERS]
        words = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        claim = f"refuted: {WAYS[way]} halve the scatter of q and m (they change it by factors {words})"
        verdict.check(max(ratios) > HALF, claim)
    for name in NUMBERS:
        ratio = scatters[name]["used"] / scatters[name]["within"]
        claim = f"{name}: the scatter that remains is {ratio:.2f} times the scatter of surveys on one instance"
        verdict.check(ratio < EQUAL, claim)
    budgets = {name: divide_error(kept, instances, name, scatters[name]["used"]) for name in NUMBERS}
    table = [[words, *(describe(budgets[name][part]) for name in NUMBERS)] for part, words in PARTS.items()]
    verdict.write_table(markdown_table(["part of the error, 10⁻⁵", *NUMBERS], table), "_needed.md")
    verdict.end({"scatters": scatters, "parts": budgets})


def select_instances(rows, ends):
    """Return the numbers of all instances on which the survey and GAMP end on the branch."""
    by_key = {(row["algorithm"], row["d"], row["seed"]): row for row in rows}
    both = [(d, seed) for algorithm, d, seed in by_key if algorithm == "survey" and ("gamp", d, seed) in by_key]
    survey, gamp, start = (
        {name: np.array([by_key[algorithm, *each][name] for each in both]) for name in KEYS}
        for algorithm in ("survey", "gamp", CONTROL)
    )
    unknown = {"q last": np.nan, "m last": np.nan, "spread": np.nan}
    last = [ends.get(seed, unknown) if d == SIZE else unknown for d, seed in both]
    columns = np.array([[row[name] for row in last] for name in unknown])
    return Instances(np.array([d for d, _ in both], dtype=float), survey, gamp, start, columns)


def measure_scatters(instances, name):
    """Return the standard deviation times √d that each set of control variates leaves."""
    difference = instances.survey[name] - instances.gamp[name]
    changes = {key: instances.gamp[key] - instances.start[key] for key in KEYS}
    every = [*changes.values(), *instances.start.values()]
    known = np.isfinite(instances.last[0])
    some = [column[known] for column in (*instances.last, changes[name])]
    d = instances.d
    return {
        "none": fit_scatter(d, difference, []),
        "used": fit_scatter(d, difference, [changes[name]]),
        "gamp": fit_scatter(d, difference, every),
        "none, last": fit_scatter(d[known], difference[known], []),
        "survey": fit_scatter(d[known], difference[known], some),
    }


def fit_scatter(d, values, columns):
    """Return the standard deviation times √d of the residuals of a fit of values by a constant and columns."""
    design = np.stack([np.ones(len(d)), *columns], axis=1) * np.sqrt(d)[:, None]
    target = values * np.sqrt(d)
    residuals = target - design @ np.linalg.lstsq(design, target)[0]
    return float(np.sqrt(np.sum(residuals**2) / (len(d) - design.shape[1])))


def measure_within(rows, name):
    """Return the standard deviation times √d of minima of surveys from further starts on one instance.

    Only surveys with the Parisi parameter of the ground state are used, every second start of `search_cell`.
    """
    further = [row for row in rows if row["algorithm"] == "further"]
    by_seed = [[row for row in further if row["seed"] == seed] for seed in sorted({row["seed"] for row in further})]
    groups = [[row[name] for row in group[:: len(SURVEYS)] if on_branch(row)] for group in by_seed]
    return float(np.sqrt(SIZE * np.mean([np.var(group, ddof=1) for group in groups if len(group) > 1])))


def on_branch(row):
    """Return whether a run ended in a minimum on the positional branch."""
    return row["norm"] <= REACHED and row["m"] > NEAR_BRANCH


def divide_error(rows, instances, name, scatter):
    """Return the parts of the error of a number of the survey, and the pairs at d = `LARGE` that a tenth needs."""
    limits = load_result(ROOT / "results" / "positional_minima.json")["limits"]
    effect = load_result(ROOT / "results" / "reached_minima.json")["limits"]["survey"][name][0]
    symmetric = ga.solve_state_evolution(ga.paper_model(), ALPHA, "positional", rtol=1e-4, stability=False)
    effect -= abs(float(symmetric.overlaps.scalars()[name]))
    minima = [row for row in rows if row["algorithm"] != CONTROL]
    controls = Controls(minima, [row for row in rows if row["algorithm"] == CONTROL], limits)
    fit, change = controls.fit("survey", name), limits[name]["change"][0][1]
    equations = np.sqrt(limits[name]["limit"][1] ** 2 - change**2)
    pairs = scatter / np.sqrt(instances.d.sum())
    change = np.sqrt(max(fit.limit[1] ** 2 - equations**2 - pairs**2, 0.0))
    allowed = TENTH * abs(effect)
    needed = {
        f"needed, {part}": count_pairs(scatter, allowed, np.hypot(change, equations) * factor, instances.d.sum())
        for part, factor in (("same", 1.0), ("half", 0.5), ("none", 0.0))
    }
    return {"pairs": pairs, "change": change, "equations": equations, "all": fit.limit[1], "allowed": allowed} | needed


def count_pairs(scatter, allowed, other, weight):
    """Return the number of further pairs at d = `LARGE` for an error `allowed`; NaN if other errors exceed it.

    `weight` is the sum of d over the stored pairs.
    """
    left = allowed**2 - other**2
    return max(scatter**2 / left - weight, 0.0) / LARGE if left > 0 else np.nan


def describe(value):
    """Return an error in units of 10⁻⁵, or a number of pairs."""
    if not np.isfinite(value):
        return "not with pairs alone"
    return f"{value:.0f}" if value > 1 or value == 0 else f"{round_number(1e5 * value, 2):g}"


if __name__ == "__main__":
    main()
