"""Survey propagation from random starts: the minima it finds, compared with GAMP, L-BFGS and Adam in equal time.

Method: `train(init="random", survey=True)` on noiseless and noisy attention data with the exact risk, and on phase
retrieval. The competitors start from random weights again and again, the first time from the weights of the survey, as
long as less processor time has passed than survey propagation took in total, and keep the result of lowest training
loss: GAMP with default settings; L-BFGS-B of scipy on the compiled risk, until the gradient is zero (faster than
`minimize_risk`); Adam in torch (1500 steps of 0.05), continued by L-BFGS-B. The last run of each is completed, so that
competitors take longer. "Informed" is message passing from the weights of the teacher. Test errors are on the same
fresh samples for all methods.

Targets: σ = 0.8, ω = 0.2, λ = 0.01, d = 300, one random start. Equal time: the same layer over α and noise s on the
scores, then three and five tokens, rank 2, queries and keys with separate weights ("untied"), two layers, phase
retrieval, and labels ±1 of a logistic model with a bounded loss. Two branches: the founding paper's layer (ω = 0.3, σ =
0.5), whose minima are semantic (cosine with the teacher of at least 0.5) or positional; one random start for each
method, d = 300.

Criterion: in at least 95 % of the instances at α = 1, and 80 % at α = 0.7, the training loss is at most (1 + 1e-6)
times the informed loss and survey propagation takes at most 10 times the processor time of one GAMP run from the same
start (the mean of one run before it and one after it); the same in new instances (seeds from 4000 on), which no part of
the schedule was chosen with; every result of survey propagation has a gradient norm of at most 1e-8 and is a minimum;
in equal time, survey propagation has the lowest median training loss in each setting.

Comparisons: for each setting and competitor, the exact sign test of equal numbers of lower and higher losses, corrected
for the number of comparisons (Holm, 1979).

Fixed samples: the first comparisons have 6 to 14 instances in each setting (`FIRST`). Further instances bring each
setting to 100, in the order of their computing time, as far as the computing time suffices. All 42 comparisons are
tested again with the further instances alone, without looks, by exact sign tests with Holm's correction for 42 tests.
The number of further instances does not depend on their results: it is 100 without the first ones, or the number that
the computing time allowed, counted in the order of seeds up to the first one that is missing. The table also has the
test errors, which are not tested. Criterion: no other method is significantly lower than survey propagation.

Over λ and s: the comparisons above have λ = 0.01 for attention, and s = 0 or 0.3. Four further settings (`VARIED`) of
the layer with two tokens have other λ and s, with 100 instances each, whose seeds begin at 400, so that no part of the
schedule was chosen with their samples. They are a separate family: the training losses are compared by 12 exact sign
tests with Holm's correction for 12 tests, without looks, and the test errors by 12 further tests with the same
correction. The order of the settings is the order of the runs; if the computing time ends, a setting is tested with
its instances up to the first seed that is missing. Criterion: no other method has significantly lower training losses
than survey propagation. There is no criterion for test errors, because a lower training loss can generalize worse.

Separate instances: before the fixed samples, fourteen comparisons were tested with separate instances, whose stored
rows are evaluated and not computed again. Each number of instances and test was decided before the first of these rows:
three comparisons have 60 instances each (seeds from 100 on, `PAIRS`). Four have tests after 5, 10, 15 and 20 instances,
at the level 5 % divided by the four tests and four looks; a setting ends at the look at which both of its tests are
significant (`SEQUENTIAL`). Seven have tests without looks (seeds from 300 on, `STOPPED`): after each instance, a
p-value that is valid at any stopping time is computed (`sequential_p_values`) and compared with 5 % divided by the
seven tests, up to 60 instances; a method is no longer run in a setting as soon as its test is decided.

Every instance is stored in a file of runs and not computed again; `--only` restricts further instances to keys with a
text, and `--instances` changes their number. After a change of the algorithm, delete this file. `--stored` evaluates
the stored instances only.
"""

from functools import partial

import numpy as np

from gamp_attention.extensions.comparison.figures import ALPHA, DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.sign_tests import LEVEL
from validation._tools.tables import markdown_table
from validation.claims._survey_comparisons import (
    COMPLETE,
    EQUAL,
    FIRST,
    FIRST_VARIED,
    METHODS,
    VARIED,
    collect,
    compute_ratios,
    format_fixed,
    format_range,
    format_separate,
    format_table,
    format_varied,
    list_comparisons,
    list_fixed,
    list_parts,
    list_separate,
    list_varied,
)
from validation.claims._survey_runs import SETTINGS, TOL, run_branches, run_part, run_setting, run_target

TARGETS = {1.0: 0.95, 0.7: 0.8}  # required fractions of instances, by α
FIRST_NEW = 4000  # first seed of the instances that no part of the schedule was chosen with
DIM, MOST_TIME, SEMANTIC = 300, 10.0, 0.5
BRANCH_ALPHAS, BRANCH_INSTANCES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5), 12
LOWEST_FROM = 1.25  # α_c: the semantic solution has the lower training loss above it (d → ∞)
COLORS = {"survey": "#0072B2", "gamp": "#E69F00", "lbfgs": "#009E73", "adam": "#CC79A7"}  # Okabe and Ito
MARKERS = {"survey": "o", "gamp": "s", "lbfgs": "^", "adam": "D"}
STYLES = {"survey": "-", "gamp": "--", "lbfgs": ":"}


def plan_runs(quick, instances):
    """Return functions that compute the rows of each instance, by key, in order of priority."""
    n, d = (3, 200) if quick else (instances, DIM)
    plan = {f"target {alpha:g} {seed}": partial(run_target, alpha, d, seed) for seed in range(n) for alpha in TARGETS}
    if quick:
        plan["branches 2.5 0"] = partial(run_branches, BRANCH_ALPHAS[-1], 100, 0)
        return plan | {f"equal time α = 1 {seed}": partial(run_setting, "α = 1", 100, seed) for seed in range(2)}
    for seed in range(FIRST_NEW, FIRST_NEW + instances):
        plan |= {f"new target {alpha:g} {seed}": partial(run_target, alpha, d, seed) for alpha in TARGETS}
    for seed in range(instances):
        for name in FIRST:
            plan[f"equal time {name} {seed}"] = partial(run_setting, name, SETTINGS[name][3], seed)
        if seed < BRANCH_INSTANCES:
            plan |= {f"branches {alpha:g} {seed}": partial(run_branches, alpha, DIM, seed) for alpha in BRANCH_ALPHAS}
    for name in VARIED:
        for seed in range(FIRST_VARIED, FIRST_VARIED + instances):
            plan[f"equal time {name} {seed}"] = partial(run_setting, name, SETTINGS[name][3], seed)
    return plan


def format_branches(rows):
    """Return the table of both branches: semantic ends, and losses relative to both branches."""
    heads = ["α, instances", "method", "semantic", "loss / semantic", "loss / positional", "below both branches",
             "cosine with the teacher"]  # fmt: skip
    lines = []
    for part in list_parts(rows, "branches"):
        both = [collect(rows, part, branch, "loss") for branch in ("semantic", "positional")]
        for method in list(METHODS)[:3]:
            loss, cosine = (collect(rows, part, method, name) for name in ("loss", "cosine"))
            name = f"{part.removeprefix('branches ')}, {len(loss)}" if method == "survey" else ""
            ratios = [format_range(loss / other, "{:.4f}") for other in both]
            counts = [np.sum(cosine >= SEMANTIC), np.sum(loss < np.minimum(*both) * (1 - EQUAL))]
            lines.append([name, METHODS[method], counts[0], *ratios, counts[1], format_range(cosine, "{:.2f}")])
    return markdown_table(heads, lines)


def check_targets(verdict, rows, kind, slack, most):
    """Check the targets in the parts of a kind and return their numbers.

    Required fractions are reduced by `slack`, and `most` is the maximum time in runs of GAMP.
    """
    numbers = {}
    for alpha, target in TARGETS.items():
        part = f"{kind} {alpha:g}"
        low = {name: compute_ratios(rows, part, name) <= 1 + EQUAL for name in ("survey", "gamp")}
        times = compute_ratios(rows, part, "survey", "gamp", "seconds")
        reached, in_time = low["survey"].mean(), (low["survey"] & (times <= most)).mean()
        text = f"{100 * reached:.0f} % of {len(times)} instances are not above the informed loss, {100 * in_time:.0f} %"
        verdict.check(in_time >= target - slack, f"{kind}, α = {alpha:g}: {text} within {most:g} GAMP runs")
        numbers[f"{alpha:g}"] = {
            "instances": len(times), "fraction": float(reached), "in_time": float(in_time),
            "within_time": float((times <= most).mean()), "gamp": float(low["gamp"].mean()),
            "time": float(np.median(times)), "largest_time": float(times.max()),
            "loss": format_range(compute_ratios(rows, part, "survey"), "{:.5f}"),
        }  # fmt: skip
    return numbers


def check_minima(verdict, rows):
    """Check that all results of survey propagation are minima."""
    surveys = [row["runs"]["survey"] for row in rows]
    norms, minima = (np.array([each[name] for each in surveys]) for name in ("gradient_norm", "is_minimum"))
    text = f"{np.sum(norms <= TOL)} of {len(rows)} gradients are at most 1e-8 (largest {norms.max():.1e})"
    verdict.check(bool(np.all(norms <= TOL) and np.all(minima)), f"{text}, {np.sum(minima)} are minima")


def check_equal_times(verdict, rows):
    """Check that survey propagation has the lowest median loss, and return medians."""
    numbers = {}
    for part in list_parts(rows, "equal time"):
        medians = {method: float(np.median(compute_ratios(rows, part, method))) for method in METHODS}
        name, others = part.removeprefix("equal time "), min(medians[method] for method in list(METHODS)[1:])
        text = f"median loss of survey propagation is {medians['survey']:.4f} of the informed loss, lowest other method"
        verdict.check(medians["survey"] <= others * (1 + EQUAL), f"{name}: {text} {others:.4f}")
        numbers[name] = medians
    return numbers


def check_tests(verdict, tests, words):
    """Check that no method is significantly lower than survey propagation in tests, and return counts."""
    significant = [(lower, higher) for *_, (lower, higher, _), p in tests if p <= LEVEL]
    n_lower = sum(lower > higher for lower, higher in significant)
    n_tests = sum(n > 0 for *_, (_, _, n), _ in tests)
    text = f"{words}: {len(significant)} of {n_tests} comparisons are significant, other methods lower in"
    verdict.check(n_lower == 0, f"{text} {n_lower}")
    instances = {name: n for name, _, (_, _, n), _ in tests}
    return {"comparisons": n_tests, "significant": len(significant), "lower": n_lower, "instances": instances}


def draw(path, rows):
    """Draw losses relative to the informed minimum for all methods, and the fraction of semantic ends."""
    parts = [*list_parts(rows, "target")[::-1], *list_parts(rows, "equal time")]
    parts = [part for part in parts if not part.startswith("equal time phases")]
    with figure(path, 1, 2, (9.6, 1.5 + 0.45 * max(len(parts), 5))) as axes:
        losses, ends = axes[0]
        losses.get_gridspec().set_width_ratios([2.4, 1])
        draw_losses(losses, rows, parts)
        draw_ends(ends, rows)
        draw_legend(losses, columns=4)


def draw_losses(axis, rows, parts):
    """Draw the losses of all instances relative to the informed minimum, with a row for each part."""
    axis.axvline(0, color=DARK, lw=0.8)
    for k, method in enumerate(METHODS):
        label, color = METHODS[method], COLORS[method]
        for y, part in enumerate(parts):
            if all(method in row["runs"] for row in rows if row["part"] == part):
                excess = 100 * (compute_ratios(rows, part, method) - 1)
                at = y + 0.2 * (k - 1.5) + np.linspace(-0.08, 0.08, len(excess))
                axis.plot(np.sort(excess), at, MARKERS[method], ms=4, alpha=0.7, mew=0, color=color, label=label)
                axis.plot([np.median(excess)] * 2, at[[0, -1]] + [-0.03, 0.03], color=color, lw=2.5)
                label = None
    for y in range(1, len(parts)):
        axis.axhline(y - 0.5, color=DARK, lw=0.3)
    words = [part.replace("target ", "one start, α = ").removeprefix("equal time ") for part in parts]
    axis.set_yticks(range(len(parts)), words)
    axis.set_xscale("symlog", linthresh=1.0)
    axis.set_xlim(*1.5 * axis.dataLim.intervalx)
    ticks = (-10, -1, 0, 1, 10, 100, 1000)
    axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    words = "training loss relative to the minimum next to the teacher, %"
    axis.set(xlabel=words, title="all runs; bars: medians", ylim=(len(parts) - 0.5, -0.5))


def draw_ends(axis, rows):
    """Draw the fraction of random starts that end in the semantic minimum against α."""
    parts = list_parts(rows, "branches")
    for k, method in enumerate(STYLES):
        fractions = [100 * np.mean(collect(rows, part, method, "cosine") >= SEMANTIC) for part in parts]
        style = {"ms": 12 - 3 * k, "lw": 2, "color": COLORS[method]}  # lines may lie on one another
        axis.plot([float(part.split()[1]) for part in parts], fractions, MARKERS[method] + STYLES[method], **style)
    axis.axvline(LOWEST_FROM, color=DARK, ls="--", lw=1)
    axis.annotate(r"$\alpha_c$", (LOWEST_FROM, 50), (4, 0), textcoords="offset points")
    axis.set(xlabel=ALPHA, ylabel="runs that end in the semantic minimum, %", ylim=(-4, 104),
             title="one start (ω = 0.3, σ = 0.5)", box_aspect=1.6, anchor="N")  # fmt: skip


def main():
    args = options(
        __doc__,
        draw=True,
        stored=True,
        instances={"type": int, "default": COMPLETE, "help": "number of instances of each setting (default 100)"},
        only={"default": "", "help": "only run further instances whose key or setting contains this text"},
    )
    verdict = Verdict("survey_propagation", args)
    plan = plan_runs(args.quick, args.instances)
    rows = verdict.complete_rows({key: partial(run_part, key, run) for key, run in plan.items() if args.only in key})
    draw(verdict.path(".png"), rows)
    if args.draw:
        return
    slack, most = (0.5, 3 * MOST_TIME) if args.quick else (0.0, MOST_TIME)
    numbers = {"targets": check_targets(verdict, rows, "target", slack, most)}
    if not args.quick:
        numbers["new_targets"] = check_targets(verdict, rows, "new target", slack, most)
    check_minima(verdict, rows)
    numbers["equal_times"] = check_equal_times(verdict, rows)
    if not args.quick:
        numbers["fixed"] = check_tests(verdict, list_fixed(rows), "further instances")
        verdict.write_table(format_fixed(rows), "_fixed.md")
    if any(n for *_, (_, _, n), _ in list_varied(rows)):
        numbers["varied"] = check_tests(verdict, list_varied(rows), "over λ and s")
        verdict.write_table(format_varied(rows), "_varied.md")
    verdict.write_table(format_table(rows))
    verdict.write_table(format_branches(rows), "_branches.md")
    if any(row["part"].startswith("stopped") for row in rows):
        verdict.write_table(format_separate(rows), "_separate.md")
        ps = [p for *_, p, _ in list_separate(rows)]
        numbers["separate"] = {"comparisons": len(ps), "significant": int(np.sum(np.array(ps) <= LEVEL))}
    ps = [p for *_, p in list_comparisons(rows)]
    numbers["comparisons"] = {"number": len(ps), "significant": int(np.sum(np.array(ps) <= LEVEL))}
    verdict.end(numbers)


if __name__ == "__main__":
    main()
