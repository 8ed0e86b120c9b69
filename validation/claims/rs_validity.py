"""Minima at finite d on the positional branch are nearer to the derivative's fixed point than to Stein's in V.

Method: the proximal map jumps on this branch, so the two forms of V̂ differ by the jump mass. GAMP runs to zero
gradient at several d, α and for both risks, and its minima are compared with both predictions. Every run is stored when
it ends.

Criterion: all runs reach a gradient norm of 1e-8. Extrapolated to d = ∞, V of the minima is nearer to the derivative's
than to Stein's fixed point, from which it differs by more than three standard errors. The deviations of q, m and ε_t
from both, and the gap against the jump mass, are reported with errors. (State evolution page of the manual.)
"""

from functools import partial
from operator import itemgetter

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, WORDS, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_rows
from validation._tools.tables import extrapolate

ALPHAS = (1.0, 1.5, 2.0)  # at α = 3 most runs leave for the semantic branch
SEEDS = {1000: 16, 2000: 8, 8000: 6, 4000: 8}  # instances by d; the largest d only at α = 1.5
ON_BRANCH = 0.1  # |m_1| of a minimum on the positional branch, at least
KEYS = ("q", "m", "V", "train_loss")


def list_cells(quick):
    """Yield d, α and seed of every run."""
    sizes = {200: 6, 400: 6} if quick else SEEDS
    for d, seeds in sizes.items():
        for alpha in (1.5,) if d == 8000 or quick else ALPHAS:
            yield from ((d, alpha, seed) for seed in range(seeds))


def run_cell(d, alpha, seed):
    data = ga.sample(ga.paper_model(0.3), d, alpha, 50_000 + seed)
    rows = []
    for risk in ("asymptotic", "exact"):
        run = ga.run_gamp(data, "positional", risk, max_iter=1000)
        rows.append(
            {
                "d": d, "alpha": alpha, "seed": seed, "risk": risk, "status": run.status.value,
                "gradient_norm": run.gradient_norm, "n_iter": run.n_iter, "off_global": run.n_off_global,
                **{key: abs(float(value)) for key, value in run.overlaps.scalars().items()},
                "train_loss": run.train_loss,
            }
        )  # fmt: skip
    return rows


def collect(args, path):
    """Return the rows of all cells, stored or computed now."""
    plan = {cell: partial(run_cell, *cell) for cell in list_cells(args.quick)}
    return complete_rows(path, plan, itemgetter("d", "alpha", "seed"), "runs")


def compute_predictions(quick):
    table = {}
    for alpha in (1.5,) if quick else ALPHAS:
        for response in ("stein", "derivative"):
            se = ga.solve_state_evolution(
                ga.paper_model(0.3), alpha, "positional", response=response, rtol=1e-4, stability=False
            )
            table[alpha, response] = {key: abs(float(v)) for key, v in se.overlaps.scalars().items()} | {
                "train_loss": se.train_loss,
                "jump_share": float(se.jump_mass.sum() / se.V_hat.sum()),
            }
    return table


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("rs_validity", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    rows, table = collect(args, verdict.path("_runs.jsonl")), compute_predictions(args.quick)
    reached = [row for row in rows if row["gradient_norm"] <= 1e-8]
    verdict.check(len(reached) == len(rows), f"{len(reached)} of {len(rows)} runs end at gradient norm <= 1e-8")
    reached = [row for row in reached if row["m"] > ON_BRANCH]
    print(f"{len(rows) - len(reached)} of them are not on the positional branch and left out")
    numbers, summary = {}, []
    for alpha in sorted({row["alpha"] for row in rows}):
        stein, derivative = table[alpha, "stein"], table[alpha, "derivative"]
        print(f"\nα = {alpha}: jump mass {100 * stein['jump_share']:.1f} % of V̂ (Stein's fixed point)")
        for risk in ("asymptotic", "exact"):
            for key in KEYS:
                sizes, means, errors = [], [], []
                for d in sorted({row["d"] for row in rows if row["alpha"] == alpha}):
                    values = [r[key] for r in reached if (r["d"], r["alpha"], r["risk"]) == (d, alpha, risk)]
                    sizes.append(d)
                    means.append(np.mean(values))
                    errors.append(np.std(values, ddof=1) / np.sqrt(len(values)))
                at_infinity, error = extrapolate(sizes, means, errors)
                share = (at_infinity - derivative[key]) / (stein[key] - derivative[key])
                share_error = error / abs(stein[key] - derivative[key])
                print(
                    f"{risk:<11}{key:<11}"
                    + " ".join(f"{m:.6g}±{e:.1g}" for m, e in zip(means, errors, strict=True))
                    + f" → {at_infinity:.6g}±{error:.1g}; Stein {stein[key]:.6g}, derivative {derivative[key]:.6g}; "
                    f"fraction of the way to Stein {share:.2f}±{share_error:.2f}"
                )
                numbers[f"{alpha} {risk} {key}"] = {
                    "d": sizes, "mean": means, "error": errors, "limit": (at_infinity, error),
                    "stein": stein[key], "derivative": derivative[key], "share": (share, share_error),
                }  # fmt: skip
                summary.append((alpha, risk, key, stein["jump_share"], at_infinity, error, stein[key], derivative[key]))
    if not args.quick:
        check_criterion(verdict, summary)
    verdict.end({"numbers": numbers, "predictions": {f"{a} {v}": t for (a, v), t in table.items()}}, draw)


def check_criterion(verdict, summary):
    """Check the criterion and print the deviations from both fixed points."""
    print()
    for alpha, risk, key, _, value, error, stein, derivative in summary:
        if key == "V" and abs(stein - derivative) > 6 * error:
            verdict.check(
                abs(value - derivative) < abs(value - stein),
                f"α = {alpha}, {risk}: V of the minima is nearer to the derivative's fixed point than to Stein's",
            )
    for risk in ("asymptotic", "exact"):
        gaps = sorted(
            (abs(jump), 1 - value / stein, error / stein)
            for _, r, key, jump, value, error, stein, _ in summary
            if r == risk and key == "V"
        )
        table = ", ".join(f"{100 * gap:.1f}±{100 * e:.1f} % at {100 * jump:.1f} %" for jump, gap, e in gaps)
        verdict.check(
            all(gap > 3 * e for _, gap, e in gaps), f"{risk}: V lies below Stein's; gap at jump mass: {table}"
        )
    for key in ("q", "m", "train_loss"):
        far = {"Stein": [], "derivative": []}
        for _, _, k, _, value, error, stein, derivative in summary:
            if k == key:
                far["Stein"].append(f"{(value - stein) / error:+.1f}")
                far["derivative"].append(f"{(value - derivative) / error:+.1f}")
        print(
            f"{key}: standard errors from Stein's {' '.join(far['Stein'])}, "
            f"from the derivative's {' '.join(far['derivative'])}"
        )


def draw(numbers, path):
    """Draw means of the minima against 1/d, and both fixed points of state evolution."""
    numbers = numbers["numbers"]
    alphas = sorted({float(name.split()[0]) for name in numbers})
    with figure(path, len(KEYS), len(alphas), (9.6, 9.6)) as axes:
        for row, key in zip(axes, KEYS, strict=True):
            for axis, alpha in zip(row, alphas, strict=True):
                for risk, marker in (("asymptotic", "o"), ("exact", "s")):
                    entry = numbers[f"{alpha} {risk} {key}"]
                    x = 1e3 / np.asarray(entry["d"], dtype=float)
                    axis.errorbar(
                        x, entry["mean"], 2 * np.asarray(entry["error"]), fmt=marker, ms=5,
                        label=f"GAMP, {risk} risk, ± 2 s.e.", color=COLORS["positional"],
                        mfc="white" if risk == "exact" else None,
                    )  # fmt: skip
                axis.axhline(entry["stein"], color=DARK, label=r"state evolution, Stein's form of $\hat V$")
                label = r"state evolution, $\hat V$ from the derivative"
                axis.axhline(entry["derivative"], color=DARK, ls="--", label=label)
                axis.set_xlim(left=0)
            row[0].set_ylabel(WORDS[key].replace("overlap with positions", "overlap with\npositions")
                              .replace("variance of", "variance of\n"))  # fmt: skip
        for axis, alpha in zip(axes[0], alphas, strict=True):
            axis.set_title(f"α = n/d = {alpha:g}")
        for axis in axes[-1]:
            axis.set_xlabel("1000/d (d → ∞ at the left)")
        draw_legend(axes[0, 0], columns=2)


if __name__ == "__main__":
    main()
