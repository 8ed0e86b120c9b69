"""Bayes-optimal message passing at finite d agrees with its state evolution.

Method: attention of two and three tokens below and above full recovery, with noise on the scores, with a spectrum;
signs of linear functions; sparse weights seen with noise. Each runs from its default start on independent instances at
several d. The overlap with the teacher and the squared norm of the posterior mean, equal for d → ∞, are extrapolated
linearly in 1/d.

Criterion: both numbers, and the free entropy if it is finite, are within four standard errors of state evolution, whose
errors are included, extrapolated and at the largest d. No run is lost or diverges.
"""

from dataclasses import replace

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import extrapolate, markdown_table

SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.2), n_tokens=1)
SPECTRUM = ga.coordinate_law(ga.power_law_spectrum(1.0, 4))
SIZES = {500: 24, 1000: 16, 2000: 10, 4000: 6}
FEW = {500: 6, 1000: 4}
QUICK, QUICK_CASES = {200: 4, 400: 3}, ("L = 2, α = 0.6", "signs, α = 1.5")
# name: model, α, sizes
CASES = {
    "L = 2, α = 0.4": (ga.paper_model(), 0.4, SIZES),
    "L = 2, α = 0.6": (ga.paper_model(), 0.6, SIZES),
    "L = 3, α = 0.25": (ga.attention_model(3), 0.25, SIZES),
    "L = 2, spectrum, α = 0.4": (ga.attention_model(2, coordinates=SPECTRUM), 0.4, SIZES),
    "L = 2, s = 0.3, α = 3": (ga.attention_model(2, sigma=1.0, score_noise=0.3), 3.0, FEW),
    "signs, α = 1.5": (ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0)), 1.5, SIZES),
    "sparse, α = 0.6": (replace(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3)), coordinates=SPARSE), 0.6, SIZES),
}
MAX_ERRORS = 4.0  # allowed deviation, in standard errors
KEYS = ("overlap", "norm", "free_entropy")


def predict(case, n_points):
    """Return overlap, norm and free entropy of state evolution, with errors."""
    model, alpha, _ = CASES[case]
    prediction = ga.solve_bayes_state_evolution(model, alpha, n_points=n_points, n_replicas=4)
    q, error = float(np.trace(prediction.q)), float(np.trace(prediction.q_error))
    entropy = [prediction.free_entropy, prediction.free_entropy_error] if np.isfinite(prediction.free_entropy) else None
    return {"overlap": [q, error], "norm": [q, error], "free_entropy": entropy}


def measure(case, d, seed):
    """Run one instance and return its overlap, norm and free entropy."""
    model, alpha, _ = CASES[case]
    result = ga.run_bayes_amp(ga.sample(model, d, alpha, seed))
    return {
        "overlap": float(abs(result.overlap[0, 0])),
        "norm": float(result.Q[:, 0] @ result.Q[:, 0]) / d,
        "free_entropy": result.free_entropy,
        "status": result.status.value,
        "iterations": result.n_iter,
    }


def check_case(verdict, case, theory, rows):
    """Check one case and return its numbers."""
    sizes, summary = sorted({row["d"] for row in rows}), {}
    for key in KEYS:
        if theory[key] is None:
            continue
        wanted, own = theory[key]
        values = {d: np.array([row[key] for row in rows if row["d"] == d]) for d in sizes}
        # a few instances determine their spread badly: pool it over d, as it falls like 1/√d
        pooled = np.sqrt(
            np.mean(np.concatenate([d * (v - v.mean()) ** 2 * len(v) / (len(v) - 1) for d, v in values.items()]))
        )
        table = {d: (float(v.mean()), float(max(pooled / np.sqrt(d * len(v)), 1e-12))) for d, v in values.items()}
        limit, error = extrapolate(list(table), *np.transpose(list(table.values())))
        last, spread = table[sizes[-1]]
        summary[key] = {"theory": wanted, "theory_error": own, "limit": limit, "error": error, "sizes": table}
        for where, value, se in (("d → ∞", limit, error), (f"d = {sizes[-1]}", last, spread)):
            text = f"{case}: {key} {plus_minus(value, se)} for {where}, theory {plus_minus(wanted, own)}"
            verdict.check(abs(value - wanted) <= MAX_ERRORS * (se + own / 2), text)
    lost = sum(row["status"] not in ("converged", "max_iter") for row in rows)
    verdict.check(not lost, f"{case}: {lost} of {len(rows)} runs lost or diverged")
    summary["converged"] = sum(row["status"] == "converged" for row in rows), len(rows)
    summary["iterations"] = float(np.median([row["iterations"] for row in rows]))
    return summary


def format_line(case, summary):
    """Return a row of the table."""
    cells = [case]
    for key in KEYS:
        if key in summary:
            cells += [plus_minus(summary[key]["limit"], summary[key]["error"]), f"{summary[key]['theory']:.4f}"]
        else:
            cells += ["–", "∞"]
    done, of = summary["converged"]
    return [*cells, f"{done} of {of}", f"{summary['iterations']:.0f}"]


def draw(numbers, path):
    """Draw overlaps in units of state evolution; points of one d are shifted sideways."""
    summaries = numbers["told"]
    with figure(path, 1, 1, (7.5, 4.6)) as axes:
        axis = axes[0, 0]
        for k, ((case, each), marker) in enumerate(zip(summaries.items(), "osD^vPX", strict=False)):
            sizes, theory = each["overlap"]["sizes"], each["overlap"]["theory"]
            mean, error = np.array(list(sizes.values())).T
            at = np.array([1e3 / float(d) for d in sizes]) + 0.03 * (k - (len(summaries) - 1) / 2)
            axis.errorbar(at, mean / theory, 2 * error / theory, fmt=marker, color=f"C{k}", label=case, ms=5)
        axis.axhline(1, color=DARK, lw=0.5)
        axis.set(
            xlabel="1000/d (dimension d grows to the left)",
            ylabel="overlap with the teacher\n/ prediction of state evolution",
            title="L: tokens per sample; s: noise on the scores; bars: 2 standard errors",
        )
        draw_legend(axis, columns=4)


def plan(quick):
    """Return the predictions and the instances."""
    cases = {name: QUICK if quick else CASES[name][2] for name in (QUICK_CASES if quick else CASES)}
    return {
        predict: [{"case": case, "n_points": 512 if quick else 4096} for case in cases],
        measure: [
            {"case": c, "d": d, "seed": s} for c, sizes in cases.items() for d, n in sizes.items() for s in range(n)
        ],
    }


def judge(verdict, theories, rows):
    """Check all cases, and return their numbers."""
    summaries = {
        t["case"]: check_case(verdict, t["case"], t, [r for r in rows if r["case"] == t["case"]]) for t in theories
    }
    heads = ["problem", "overlap, d → ∞", "theory", "size", "theory", "Φ", "theory", "converged", "iterations"]
    verdict.write_table(markdown_table(heads, [format_line(*item) for item in summaries.items()]))
    return {"told": summaries}


def main():
    run_claim("bayes_amp", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
