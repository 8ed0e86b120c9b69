"""Eight spectral starts find the minimum that the teacher's weights lead to, from the data only.

Method: the paper's model with σ = 0.8, ω = 0.2, no noise, the exact risk, at d = 300. Each instance is run from the
teacher, from one random start, one spectral start, eight random starts, eight starts as `init="spectral"` makes them,
and from these with all runs completed. Test errors are on the same fresh samples for all runs of an instance. Times are
processor times.

Criterion: with eight spectral starts at least 95 % of the instances at α = 1.5, and 80 % at α = 1, have a test error
within 10 % of the informed run, and the time is at most 3 times the time of one spectral run; stopping starts early
loses at most 5 % of the instances. (Starts page of the manual.)
"""

import time

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

WANTED = {1.0: 0.8, 1.5: 0.95}  # required fractions of instances, by α
INSTANCES, DIM = 40, 300
QUICK_INSTANCES, QUICK_DIM, QUICK_SLACK = 5, 200, 0.3  # the slack is subtracted from fractions of a few instances
WITHIN, SAME = 1.1, 1.001  # largest ratios of test errors and of training losses that count as equal
MOST_TIME, LOST = 3.0, 0.05
KINDS = {
    "teacher": {"init": "semantic", "n_starts": 1},
    "1 random": {"init": "random", "n_starts": 1},
    "1 spectral": {"init": "spectral", "n_starts": 1},
    "8 random": {"init": "random", "n_starts": 8},
    "8 spectral": {"init": "spectral", "n_starts": 8},
    "8 spectral, all to the end": {"init": "spectral", "n_starts": 8, "n_finish": 8},
}


def run_instance(alpha, d, seed):
    """Run all starts on one instance: test errors, losses, times, and the selected start."""
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d, alpha, seed)
    if seed == 0:
        ga.train(data, "spectral", max_iter=1, n_starts=2, survey=False, escape=False)  # compiles
    row = {}
    for kind, asked in KINDS.items():
        began = time.process_time()
        result = ga.train(data, **asked, survey=False, escape=False)
        row[kind] = {
            "seconds": time.process_time() - began,
            "test_error": ga.sampled_test_error(data, result.Q, n_samples=2000)[0],
            "train_loss": result.train_loss,
            "converged": result.converged,
            "kept": next(start.name for start in result.starts if start.kept),
        }
    return {"runs": row}


def summarize(rows):
    """Return rows of the table: fractions of instances, mean test error, and time in units of one spectral run."""
    table = {}
    one = sum(row["runs"]["1 spectral"]["seconds"] for row in rows)
    for kind in KINDS:
        mine, informed = [row["runs"][kind] for row in rows], [row["runs"]["teacher"] for row in rows]
        near = np.mean([a["test_error"] <= WITHIN * b["test_error"] for a, b in zip(mine, informed, strict=True)])
        low = np.mean([a["train_loss"] <= SAME * b["train_loss"] for a, b in zip(mine, informed, strict=True)])
        table[kind] = {
            "test error within 10 %": f"{100 * near:.0f} %",
            "no higher loss": f"{100 * low:.0f} %",
            "mean test error": f"{np.mean([run['test_error'] for run in mine]):.4f}",
            "time": sum(run["seconds"] for run in mine) / one,
        }
        table[kind] |= {"_share": float(near)}
    return table


LABELS = ("teacher", "1 random", "1 spectral", "8 random", "8 spectral", "8 spectral,\nnone stopped early")


def draw(numbers, path):
    """Draw the test errors of all starts relative to the start from the teacher's weights."""
    rows = numbers["rows"]
    with figure(path, 1, 2, (9.5, 4.4)) as axes:
        for axis, alpha in zip(axes[0], WANTED, strict=True):
            mine = [row["runs"] for row in rows if row["alpha"] == alpha]
            for k, kind in enumerate(KINDS):
                ratios = [row[kind]["test_error"] / row["teacher"]["test_error"] for row in mine]
                color = "C0" if "spectral" in kind else "C2" if "random" in kind else DARK
                axis.plot(k + np.linspace(-0.3, 0.3, len(ratios)), ratios, "o", ms=3.5, mew=0, color=color)
            axis.axhline(WITHIN, color=DARK, lw=0.8, ls=":", label="10 % above the teacher's start")
            axis.set(yscale="log", title=f"α = n/d = {alpha:g}; a dot is one instance", xlabel="initial weights")
            ticks = [1, 2, 5, 10, 20]
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.yaxis.minorticks_off()
            axis.set_xticks(range(len(KINDS)), LABELS, rotation=35, ha="right", rotation_mode="anchor")
        axes[0, 0].set_ylabel("test error / test error of\nthe start from the teacher")
        draw_legend(axes[0, 0], columns=1)


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict = Verdict("many_starts", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    instances, d, slack = (QUICK_INSTANCES, QUICK_DIM, QUICK_SLACK) if args.quick else (INSTANCES, DIM, 0.0)
    plan = [{"alpha": alpha, "d": d, "seed": seed} for alpha in WANTED for seed in range(instances)]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), run_instance, plan, executor)
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} instances ended")
    tables, shown = {}, {}
    for alpha, wanted in WANTED.items():
        table = summarize([row for row in rows if row["alpha"] == alpha])
        share = {kind: line.pop("_share") for kind, line in table.items()}
        text = f"α = {alpha}: {100 * share['8 spectral']:.0f} % of instances with eight starts, at least"
        verdict.check(share["8 spectral"] >= wanted - slack, f"{text} {100 * (wanted - slack):.0f} %")
        ratio = table["8 spectral"]["time"]
        verdict.check(ratio <= MOST_TIME, f"α = {alpha}: {ratio:.2f} times the time of one run, at most {MOST_TIME}")
        lost = share["8 spectral, all to the end"] - share["8 spectral"]
        text = f"α = {alpha}: {100 * lost:.0f} % of instances are lost by leaving starts early, at most"
        verdict.check(lost <= LOST + slack, f"{text} {100 * (LOST + slack):.0f} %")
        tables[alpha] = share
        shown |= {f"α = {alpha}, {kind}": line for kind, line in table.items()}
    text = counts_table(shown, "{:.2f}", "start")
    verdict.write_table(text)
    verdict.end({"shares": tables, "table": shown, "rows": rows}, draw)


if __name__ == "__main__":
    main()
