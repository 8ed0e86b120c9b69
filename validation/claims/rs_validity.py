"""Minima at finite d on the positional branch are nearer to the derivative's fixed point than to Stein's in V.

Method: the proximal map jumps on this branch, so the two forms of V̂ differ by the jump mass. GAMP runs to zero
gradient at several d, α and for both risks, and its minima are compared with both predictions.

Criterion: all runs reach a gradient norm of 1e-8. Extrapolated to d = ∞, V of the minima is nearer to the derivative's
than to Stein's fixed point, from which it differs by more than three standard errors. The deviations of q, m and ε_t
from both, and the gap against the jump mass, are reported with errors. (State evolution page of the manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, WORDS, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import extrapolate, markdown_table, mean_and_error

ALPHAS = (1.0, 1.5, 2.0)  # at α = 3 most runs leave for the semantic branch
SEEDS = {1000: 16, 2000: 8, 8000: 6, 4000: 8}  # instances by d; the largest d only at α = 1.5
ON_BRANCH = 0.1  # |m_1| of a minimum on the positional branch, at least
RISKS = ("asymptotic", "exact")
KEYS = ("q", "m", "V", "train_loss")


def run_cell(d, alpha, seed, risk):
    """Return overlaps and loss of the minimum that GAMP reaches on one instance."""
    data = ga.sample(ga.paper_model(0.3), d, alpha, 50_000 + seed)
    run = ga.run_gamp(data, "positional", risk, max_iter=1000)
    overlaps = {key: abs(float(value)) for key, value in run.overlaps.scalars().items()}
    return overlaps | {"gradient_norm": run.gradient_norm, "train_loss": run.train_loss}


def predict(alpha, response):
    """Return the fixed point of state evolution with one form of V̂."""
    se = ga.solve_state_evolution(
        ga.paper_model(0.3), alpha, "positional", response=response, rtol=1e-4, stability=False
    )
    overlaps = {key: abs(float(value)) for key, value in se.overlaps.scalars().items()}
    return overlaps | {"train_loss": se.train_loss, "jump_share": float(se.jump_mass.sum() / se.V_hat.sum())}


def plan(quick):
    """Return all instances and fixed points."""
    sizes, alphas = ({200: 6, 400: 6}, (1.5,)) if quick else (SEEDS, ALPHAS)
    return {
        run_cell: [
            {"d": d, "alpha": alpha, "seed": seed, "risk": risk}
            for d, seeds in sizes.items() for alpha in ((1.5,) if d == 8000 else alphas) for seed in range(seeds)
            for risk in RISKS
        ],
        predict: [{"alpha": alpha, "response": form} for alpha in alphas for form in ("stein", "derivative")],
    }  # fmt: skip


def judge(verdict, rows, predictions):
    """Compare the limits of the minima with both fixed points."""
    table = {(row["alpha"], row["response"]): row for row in predictions}
    reached = [row for row in rows if row["gradient_norm"] <= 1e-8]
    verdict.check(len(reached) == len(rows), f"{len(reached)} of {len(rows)} runs end at gradient norm <= 1e-8")
    reached = [row for row in reached if row["m"] > ON_BRANCH]
    numbers, lines, gaps = {}, [], {risk: [] for risk in RISKS}
    for alpha, risk, key in product(sorted({row["alpha"] for row in rows}), RISKS, KEYS):
        stein, derivative = (table[alpha, form][key] for form in ("stein", "derivative"))
        mine = [row for row in reached if (row["alpha"], row["risk"]) == (alpha, risk)]
        sizes = sorted({row["d"] for row in mine})
        means, errors = zip(*(mean_and_error([r[key] for r in mine if r["d"] == d]) for d in sizes), strict=True)
        limit, error = extrapolate(sizes, means, errors)
        numbers[f"{alpha} {risk} {key}"] = {
            "d": sizes, "mean": means, "error": errors, "limit": (limit, error), "stein": stein,
            "derivative": derivative,
        }  # fmt: skip
        scale = 1e3 if key == "train_loss" else 1
        values = plus_minus(scale * limit, scale * error), f"{scale * stein:.5g}", f"{scale * derivative:.5g}"
        lines.append([f"{alpha:g}", risk, "10³ ε_t" if key == "train_loss" else key, *values])
        if key == "V" and not verdict.quick:
            gaps[risk].append((abs(table[alpha, "stein"]["jump_share"]), 1 - limit / stein, error / stein))
            if abs(stein - derivative) > 6 * error:
                said = f"α = {alpha}, {risk}: V of the minima is nearer to the derivative's fixed point than to Stein's"
                verdict.check(abs(limit - derivative) < abs(limit - stein), said)
    for risk, each in gaps.items():
        words = ", ".join(f"{100 * gap:.1f}±{100 * e:.1f} % at {100 * jump:.1f} %" for jump, gap, e in sorted(each))
        verdict.check(
            all(gap > 3 * e for _, gap, e in each), f"{risk}: V lies below Stein's; gap at jump mass: {words}"
        )
    heads = ["α", "risk", "", "minima, d → ∞", "Stein's fixed point", "the derivative's fixed point"]
    verdict.write_table(markdown_table(heads, lines))
    return {"numbers": numbers, "predictions": {f"{row['alpha']} {row['response']}": row for row in predictions}}


def draw(numbers, path):
    """Draw means of the minima against 1/d, and both fixed points of state evolution."""
    numbers = numbers["numbers"]
    alphas = sorted({float(name.split()[0]) for name in numbers})
    with figure(path, len(KEYS), len(alphas), (9.6, 9.6)) as axes:
        for row, key in zip(axes, KEYS, strict=True):
            for axis, alpha in zip(row, alphas, strict=True):
                for risk, marker in zip(RISKS, "os", strict=True):
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


def main():
    run_claim("rs_validity", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
