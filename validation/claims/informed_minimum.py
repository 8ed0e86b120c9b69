"""From which sample complexity on the data lead the trained layer to the minimum that the teacher's weights lead to.

The paper's model with σ = .8, ω = .2 without noise, the exact risk. Each instance is trained by message passing from
the teacher; from eight spectral starts of fitted weights, which know nothing of the teacher's map; from the spectral
start of posterior weights, and from the posterior mean of Bayes-optimal message passing, which know it. A run reaches
the informed minimum where its weights have an overlap of .99 with those that the teacher's lead to.

Criterion, with weak recovery at α_w = 1/6 and full recovery at 3.2 α_w: from 3.6 α_w on at least 90 % of instances
reach the informed minimum from the Bayes-optimal start, and from 6 α_w on from the posterior weights' start. Below α_w
neither start has an overlap with the teacher above .25 in the mean. Between weak and full recovery the shares are
drawn, not judged: starts know part of the teacher there, and mostly lead elsewhere.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.data.risk import sampled_test_error
from gamp_attention.experiments.figures import DARK, figure
from gamp_attention.gamp.run import agreement_of
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.trials import run_trials

WEAK = 1 / 6  # α_w
RATIOS = (0.6, 1.5, 2.25, 3.0, 3.6, 4.5, 6.0, 9.0)  # α in units of it
INSTANCES, DIM = 12, 500
QUICK_RATIOS, QUICK_INSTANCES, QUICK_DIM, QUICK_ROOM = (0.6, 6.0), 3, 100, 0.4
SAME, WANTED, MOST = 0.99, 0.9, 0.25
FROM = {"Bayes-optimal": 3.6, "posterior": 6.0}
KINDS = ("teacher", "8 fitted", "posterior", "Bayes-optimal")


def overlap(data, Q):
    """|QᵀQ*| as a share of the norms."""
    size = np.linalg.norm(Q) * np.linalg.norm(data.Q_star)
    return float(abs(np.sum(Q * data.Q_star)) / size) if size else 0.0


def run(alpha, d, seed):
    """All runs on one instance: overlaps of the starts, test errors, losses."""
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d, alpha, seed)
    bayes = ga.run_bayes_amp(data, seed=seed)
    starts = {"teacher": "semantic", "8 fitted": "spectral", "posterior": "posterior", "Bayes-optimal": bayes.Q}
    if not bayes.Q.any():
        starts["Bayes-optimal"] = "posterior"
    first = ga.spectral_directions(data, k=1, weights="posterior").vectors[0]
    row, informed = {}, None
    for kind, init in starts.items():
        found = ga.run_gamp(data, init, "exact", n_starts=8 if kind == "8 fitted" else 1)
        informed = found.Q if informed is None else informed
        row[kind] = {
            "agreement": agreement_of(data, found.Q, informed),
            "test_error": sampled_test_error(data, found.Q, n_samples=2000)[0],
            "train_loss": found.train_loss,
            "converged": found.converged,
        }
    row["posterior"]["overlap"], row["Bayes-optimal"]["overlap"] = overlap(data, first), overlap(data, bayes.Q)
    return {"runs": row, "bayes_status": bayes.status.value}


def shares(rows):
    """For each kind of start the share of instances that reach the informed minimum, and the start's overlap."""
    found = {}
    for kind in KINDS[1:]:
        runs = [row["runs"][kind] for row in rows]
        found[kind] = {
            "share": float(np.mean([run["agreement"] >= SAME for run in runs])),
            "overlap": float(np.mean([run.get("overlap", np.nan) for run in runs])),
            "test_error": float(np.mean([run["test_error"] for run in runs])),
        }
    return found


def main():
    found = options(__doc__, workers=True)
    verdict = Verdict("informed_minimum", found)
    ratios = QUICK_RATIOS if found.quick else RATIOS
    instances, d, room = (QUICK_INSTANCES, QUICK_DIM, QUICK_ROOM) if found.quick else (INSTANCES, DIM, 0.0)
    plan = [{"alpha": WEAK * ratio, "d": d, "seed": seed} for ratio in ratios for seed in range(instances)]
    with pool(found) as executor:
        rows = run_trials(folder(found, verdict.name), run, plan, executor)
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} instances ended")
    table, shown = [], {}
    for ratio in ratios:
        mine = [row for row in rows if row["alpha"] == WEAK * ratio]
        told = shares(mine)
        table.append({"alpha": WEAK * ratio, "ratio": ratio, "shares": told})
        where = f"α = {WEAK * ratio:.3f} = {ratio:g} α_w"
        for kind, least in FROM.items():
            if ratio >= least:
                text = f"{where}: {100 * told[kind]['share']:.0f} % reach it from the {kind} start, at least"
                verdict.check(told[kind]["share"] >= WANTED - room, f"{text} {100 * (WANTED - room):.0f} %")
            if ratio < 1:
                text = f"{where}: the {kind} start has overlap {told[kind]['overlap']:.2f}, at most"
                verdict.check(told[kind]["overlap"] <= MOST + room, f"{text} {MOST + room:g}")
        line = {f"from {kind}": f"{100 * told[kind]['share']:.0f} %" for kind in KINDS[1:]}
        line |= {f"overlap of {kind}": f"{told[kind]['overlap']:.2f}" for kind in FROM}
        errors = {"teacher": np.mean([row["runs"]["teacher"]["test_error"] for row in mine])}
        errors |= {kind: told[kind]["test_error"] for kind in KINDS[1:]}
        shown[where] = line | {f"ε_g from {kind}": round(error, 4) for kind, error in errors.items()}
    text = counts_table(shown, "{:.4f}", "α")
    print(text)
    verdict.path(".md").write_text(text)
    with figure(verdict.path(".png"), 1, 1, (6, 4)) as axes:
        axis, alphas = axes.ravel()[0], [row["alpha"] for row in table]
        for kind, colour in zip(KINDS[1:], ("C2", "C1", "C0"), strict=True):
            axis.plot(alphas, [row["shares"][kind]["share"] for row in table], "o-", color=colour, label=kind)
            if kind in FROM:
                overlaps = [row["shares"][kind]["overlap"] for row in table]
                axis.plot(alphas, overlaps, ":", color=colour, label=f"overlap of {kind} start")
        axis.axvline(WEAK, color=DARK, lw=0.5)
        axis.set(xscale="log", xlabel="α", title=f"d = {d}", ylabel="share that reaches the informed minimum")
        axis.legend(fontsize=7)
    verdict.end({"table": table, "rows": rows})


if __name__ == "__main__":
    main()
