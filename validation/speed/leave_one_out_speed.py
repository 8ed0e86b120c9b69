"""Leave-one-out errors take at most as long as a run from eight starts, a path of 20 λ at most seven of these runs.

Method: processor times at each size, one after the other and alternating, the minimum of several: `run_gamp` from one
start and from eight, as `gamp-attention fit` runs it; leave-one-out errors by default, which factor the Hessian at
these sizes and refit 64 samples unless the formula is exact; the formula without refits; cavity fields, corrected by
refits; the training along a path of 20 λ, and the path with its errors. The minimum is taken as other programs on the
machine only add time.

Criterion: leave-one-out errors by default take at most as long as a run from eight starts; the path of 20 values takes
at most as long as 7 of these runs, and its errors at most as long as 2.5 in addition to the training.
"""

import time

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.inference.path_training import PathPlan
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

SIZES, REPEATS, LAMS = (300, 1000), 3, tuple(np.logspace(-3, 0.3, 20))
PROBLEMS = {
    "attention": (lambda: ga.paper_model(), 1.5),
    "ridge": (lambda: ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.3), 1.5),
}
MOST, MOST_PATH, MOST_ERRORS = 1.0, 7.0, 2.5


def measure_seconds(function):
    began = time.process_time()
    function()
    return time.process_time() - began


def measure(problem, d, repeats, with_path):
    """Return the minimum processor time of each task, on one instance."""
    make, alpha = PROBLEMS[problem]
    data = ga.sample(make(), d=d, alpha=alpha, seed=0)
    gamp = ga.run_gamp(data, "spectral")
    works = {
        "run": lambda: ga.run_gamp(data, "spectral"),
        "eight": lambda: ga.train(data, "spectral", n_starts=8, survey=False, escape=False),
        "default": lambda: ga.leave_one_out(data, gamp),
        "formula": lambda: ga.leave_one_out(data, gamp, form="hessian", refits=0),
        "cavity": lambda: ga.leave_one_out(data, gamp, form="cavity"),
    }
    if with_path:
        along = PathPlan(
            np.array(LAMS), [data.replace(lam=lam) for lam in LAMS], [*range(len(LAMS))], "spectral", 8, 1e-3, 10000, 0
        )
        works["training"] = lambda: list(along.runs({}))
        works["path"] = lambda: ga.regularization_path(data, LAMS)
    times = {name: [] for name in works}
    for turn in range(repeats + 1):  # the first compiles
        for name, work in works.items():
            if name not in ("training", "path") or turn < 2:
                times[name] += [measure_seconds(work)]
    return {"problem": problem, "d": d} | {name: min(each[1:]) for name, each in times.items()}


def format_table(rows):
    heads = ("problem", "d", "run, s", "eight starts, s", "leave-one-out", "formula only", "cavity fields, corrected",
             "path of 20 λ", "its training")  # fmt: skip
    lines = []
    for row in rows:
        shares = [f"{100 * row[name] / row['run']:.2g} % of the run" for name in ("default", "formula", "cavity")]
        both = [f"{row[name] / row['eight']:.1f} runs of eight starts" for name in ("path", "training") if name in row]
        seconds = f"{row['run']:.3f}", f"{row['eight']:.3f}"
        lines.append([row["problem"], row["d"], *seconds, *shares, *(both or ["–", "–"])])
    return markdown_table(heads, lines)


def main():
    args = options(__doc__)
    verdict, quick = Verdict("leave_one_out_speed", args), args.quick
    rows = [
        measure(problem, d, 2 if quick else REPEATS, not quick or problem == "attention")
        for problem in PROBLEMS for d in ((200,) if quick else SIZES)
    ]  # fmt: skip
    slack = 4.0 if quick else 1.0
    for row in rows:
        share, about = row["default"] / row["eight"], f"{row['problem']}, d = {row['d']}: "
        verdict.check(share <= slack * MOST, about + f"leave-one-out adds {100 * share:.1f} % to a run of eight starts")
        if "path" in row:
            runs = row["path"] / row["eight"]
            verdict.check(runs <= slack * MOST_PATH, about + f"a path of 20 λ takes {runs:.1f} runs of eight starts")
            more = (row["path"] - row["training"]) / row["eight"]
            verdict.check(more <= slack * MOST_ERRORS, about + f"of these its errors take {more:.1f}")
    verdict.write_table(format_table(rows))
    verdict.end({"rows": rows})


if __name__ == "__main__":
    main()
