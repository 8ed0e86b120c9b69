"""Starts that know the teacher's map reach its minimum from a few multiples of the weak-recovery threshold on.

Method: the paper's model with σ = 0.8, ω = 0.2 without noise, the exact risk. Message passing trains each instance from
the teacher; from eight spectral starts of fitted weights, which do not use the teacher's map; from the spectral start
of posterior weights and from the posterior mean of Bayes-optimal message passing, which use it. A run reaches the
informed minimum if its weights have an overlap of at least 0.99 with the end of the run from the teacher.

Criterion, with weak recovery at α_w = 1/6 and full recovery at 3.2 α_w: from 3.6 α_w on at least 90 % of the instances
reach the informed minimum from the Bayes-optimal start, and from 6 α_w on from the posterior weights. Below α_w neither
start has a mean overlap with the teacher above 0.25. Between weak and full recovery the fractions are drawn and have no
criterion. (Starts page of the manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, draw_legend
from gamp_attention.problem.symmetries import agreement_of
from validation._tools.drawing import figure
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

WEAK = 1 / 6  # α_w
RATIOS = (0.6, 1.5, 2.25, 3.0, 3.6, 4.5, 6.0, 9.0)  # α in units of α_w
INSTANCES, DIM = 12, 500
QUICK_RATIOS, QUICK_INSTANCES, QUICK_DIM, QUICK_SLACK = (0.6, 6.0), 3, 100, 0.4
SAME, WANTED, MAX_OVERLAP = 0.99, 0.9, 0.25
FROM = {"Bayes-optimal": 3.6, "posterior": 6.0}
KINDS = ("teacher", "8 fitted", "posterior", "Bayes-optimal")


def compute_overlap(data, Q):
    """Return |QᵀQ*| divided by the norms."""
    size = np.linalg.norm(Q) * np.linalg.norm(data.Q_star)
    return float(abs(np.sum(Q * data.Q_star)) / size) if size else 0.0


def run_instance(alpha, d, seed):
    """Run message passing from all starts on one instance: overlaps of the starts, test errors, losses."""
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d, alpha, seed)
    bayes = ga.run_bayes_amp(data, seed=seed)
    starts = {
        "teacher": "semantic",
        "8 fitted": "spectral",
        "posterior": ga.posterior_start(data),
        "Bayes-optimal": bayes.Q,
    }
    if not bayes.Q.any():
        starts["Bayes-optimal"] = starts["posterior"]
    first = ga.posterior_directions(data, k=1).vectors[0]
    row, informed = {}, None
    for kind, init in starts.items():
        result = ga.train(data, init, "exact", n_starts=8 if kind == "8 fitted" else 1, survey=False, escape=False)
        informed = result.Q if informed is None else informed
        row[kind] = {
            "agreement": agreement_of(data, result.Q, informed),
            "test_error": ga.sampled_test_error(data, result.Q, n_samples=2000)[0],
            "train_loss": result.train_loss,
            "converged": result.converged,
        }
    row["posterior"]["overlap"], row["Bayes-optimal"]["overlap"] = (
        compute_overlap(data, first),
        compute_overlap(data, bayes.Q),
    )
    return {"runs": row, "bayes_status": bayes.status.value}


def compute_fractions(rows):
    """Return, for each start, the fraction of instances at the informed minimum, the overlap and the test error."""
    summary = {}
    for kind in KINDS[1:]:
        runs = [row["runs"][kind] for row in rows]
        summary[kind] = {
            "share": float(np.mean([run["agreement"] >= SAME for run in runs])),
            "overlap": float(np.mean([run.get("overlap", np.nan) for run in runs])),
            "test_error": float(np.mean([run["test_error"] for run in runs])),
        }
    return summary


NAMES = {"8 fitted": "8 spectral starts", "posterior": "posterior mean", "Bayes-optimal": "Bayes-optimal estimate"}


def draw(numbers, path):
    """Draw the fraction of instances that reach the informed minimum, and the overlaps of two starts."""
    table, d = numbers["table"], numbers["rows"][0]["d"]
    alphas = [row["alpha"] for row in table]
    with figure(path, 1, 1, (7.5, 4.8)) as axes:
        axis = axes[0, 0]
        for (kind, name), color, marker in zip(NAMES.items(), ("C2", "C1", "C0"), "^so", strict=True):
            fractions = [row["shares"][kind]["share"] for row in table]
            axis.plot(alphas, fractions, f"{marker}-", color=color, label=f"fraction from: {name}")
        for kind, color in (("posterior", "C1"), ("Bayes-optimal", "C0")):
            overlaps = [row["shares"][kind]["overlap"] for row in table]
            axis.plot(alphas, overlaps, ":", lw=2, color=color, label=f"overlap of the {NAMES[kind]}")
        axis.axvline(WEAK, color=DARK, lw=1, ls="--", label="weak recovery, α = 1/6")
        axis.set(xscale="log", xlabel=ALPHA, ylabel="fraction that reaches the teacher's\nminimum; overlap",
                 title=f"{len(numbers['rows']) // len(table)} instances at each α, d = {d}")  # fmt: skip
        ticks = [0.1, 0.2, 0.5, 1.0, 1.5]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        draw_legend(axis, columns=2)


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict = Verdict("informed_minimum", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    ratios = QUICK_RATIOS if args.quick else RATIOS
    instances, d, slack = (QUICK_INSTANCES, QUICK_DIM, QUICK_SLACK) if args.quick else (INSTANCES, DIM, 0.0)
    plan = [{"alpha": WEAK * ratio, "d": d, "seed": seed} for ratio in ratios for seed in range(instances)]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), run_instance, plan, executor)
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} instances ended")
    table, shown = [], {}
    for ratio in ratios:
        mine = [row for row in rows if row["alpha"] == WEAK * ratio]
        summary = compute_fractions(mine)
        table.append({"alpha": WEAK * ratio, "ratio": ratio, "shares": summary})
        where = f"α = {WEAK * ratio:.3f} = {ratio:g} α_w"
        for kind, least in FROM.items():
            if ratio >= least:
                text = f"{where}: {100 * summary[kind]['share']:.0f} % reach it from the {kind} start, at least"
                verdict.check(summary[kind]["share"] >= WANTED - slack, f"{text} {100 * (WANTED - slack):.0f} %")
            if ratio < 1:
                text = f"{where}: the {kind} start has overlap {summary[kind]['overlap']:.2f}, at most"
                verdict.check(summary[kind]["overlap"] <= MAX_OVERLAP + slack, f"{text} {MAX_OVERLAP + slack:g}")
        line = {f"from {kind}": f"{100 * summary[kind]['share']:.0f} %" for kind in KINDS[1:]}
        line |= {f"overlap of {kind}": f"{summary[kind]['overlap']:.2f}" for kind in FROM}
        errors = {"teacher": np.mean([row["runs"]["teacher"]["test_error"] for row in mine])}
        errors |= {kind: summary[kind]["test_error"] for kind in KINDS[1:]}
        shown[where] = line | {f"ε_g from {kind}": round(error, 4) for kind, error in errors.items()}
    text = counts_table(shown, "{:.4f}", "α")
    verdict.write_table(text)
    verdict.end({"table": table, "rows": rows}, draw)


if __name__ == "__main__":
    main()
