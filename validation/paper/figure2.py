"""Figure 2: overlaps and errors against α at ω = 0.3, by state evolution, GAMP and gradient descent at d = 1000.

Method: all on the exact risk. Runs start from Q* (semantic) or from the positions (positional), and their overlaps show
on which branch they ended. Runs that ended on the other branch, or not at zero gradient, are counted, printed and
stored, but are not part of the means.

Criterion for GAMP, at every α at which state evolution has a stable branch that does not end within 0.08: its means are
within three standard errors and an allowance O(1/√d) of state evolution, in q, θ, ε_t and ε_g on the semantic branch,
in m, ε_t and ε_g on the positional one. The allowance is half of the spread s of one instance, as s falls like 1/√d; at
d = 250 and 40 instances deviations of up to 0.4 s were measured. Both branches continue through α_c, so it is included.
Replica symmetry is only approximate on the positional branch, so its q may be anywhere between the fixed points with
Stein's V̂ and with the derivative's, and outside of them by at most the same allowance.

Criterion for descents, on a few instances: the loss that gradient descent reaches as in the paper (step 0.15, 5000
steps, which leave gradients of 1e-3) is at most 1 % above GAMP's and at most 0.1 % below it. L-BFGS from the same
start, to zero gradient, ends in GAMP's minimum or in one whose loss is at most 0.1 % lower; on the semantic branch in
GAMP's minimum at least two times in three, as the positional branch has many minima near each other.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, COLORS, DARK, GREY, WORDS, draw_legend
from gamp_attention.extensions.sweeps.jobs import row_overlaps
from validation._tools import landscape as land
from validation._tools.drawing import BOUNDARIES, draw_means, figure
from validation._tools.report import begin, folder, pool

OMEGA = 0.3
KEYS = ("q", "m", "theta", "train_loss", "test_error")


def summarize_branch(branch, theory, runs, descents, polished_runs, lines):
    """Return the results of a branch at each α by state evolution, GAMP, gradient descent and L-BFGS."""
    table, ends = [], {name: line["value"] for name, line in lines.items()}
    for raw, se in zip(theory.rows, land.flatten_rows(theory), strict=True):
        if se["branch"] != branch:
            continue
        alpha, exists = se["alpha"], se["status"] == "converged"
        mine = [row for row in runs if (row["branch"], row["alpha"]) == (branch, alpha)]
        kept, count = land.select_on_branch(mine)
        same = {row["seed"]: row for row in kept}
        pairs, polished = (
            [
                (row, same[row["seed"]])
                for row in table_of
                if (row["branch"], row["alpha"], row["reached"]) == (branch, alpha, branch) and row["seed"] in same
            ]
            for table_of in (descents, polished_runs)
        )
        table.append(
            {
                "alpha": alpha, "exists": exists, "status": se["status"], "count": count,
                "judged": exists and land.is_inside(branch, alpha, ends),
                "theory": {k: se[k] if exists else np.nan for k in KEYS},
                "theory_error": collect_errors(raw) if exists else {},
                "derivative": solve_derivative(alpha, raw) if exists and branch == "positional" else {},
                "gamp": land.compute_statistics(kept, KEYS),
                "elsewhere": [{k: r[k] for k in ("seed", "status", "reached", *KEYS)} for r in mine if r not in kept],
                "gd": land.compute_statistics([row for row, _ in pairs], KEYS),
                "gd_minus_gamp": {k: [a[k] - b[k] for a, b in pairs] for k in KEYS},
                "lbfgs_minus_gamp": {k: [a[k] - b[k] for a, b in polished] for k in KEYS},
                "gamp_loss": [b["train_loss"] for _, b in pairs],
            }
        )  # fmt: skip
    return table


def collect_errors(raw):
    value = row_overlaps(raw, "overlaps_error").scalars()
    return {k: float(value[k]) for k in ("q", "m", "theta")} | {
        k: raw[f"{k}_error"] for k in ("train_loss", "test_error")
    }


def solve_derivative(alpha, raw):
    """Return the fixed point with the derivative's V̂, started from Stein's."""
    se = ga.solve_state_evolution(
        ga.paper_model(OMEGA), alpha, row_overlaps(raw), rtol=1e-3, response="derivative", stability=False
    )
    if not se.converged:
        return {}
    value = {k: abs(float(v)) for k, v in se.overlaps.scalars().items()}
    return {k: value[k] for k in ("q", "m", "theta")} | {"train_loss": se.train_loss, "test_error": se.test_error}


ABOVE, BELOW = 1e-2, -1e-3  # relative excess of the loss of descent over GAMP's, at most and at least
SAME, OFTEN = 1e-5, 2 / 3  # distance of overlaps in one minimum, and required fraction of instances
JUDGED = {
    "semantic": ("q", "theta", "train_loss", "test_error"),
    "positional": ("m", "train_loss", "test_error", "q"),
}
SIZE = {"d": 1000, "alphas": range(25), "seeds": 16, "gd": (12, 18, 24), "gd_seeds": 2, "n_test": 4000}
QUICK = {"d": 300, "alphas": (1, 6, 12, 18, 24), "seeds": 8, "gd": (18,), "gd_seeds": 2, "n_test": 2000}


def draw(numbers, path):
    with figure(path, 2, 3, (9.8, 7.6)) as axes:
        for axis, key in zip(axes.flat, KEYS, strict=False):
            for branch in land.BRANCHES:
                _draw_branch(axis, key, branch, numbers[branch])
            for name, style in (("alpha_c", "-"), ("alpha_l", ":")):
                if numbers["lines"][name]["value"]:
                    label = BOUNDARIES[name]
                    axis.axvline(numbers["lines"][name]["value"], color=GREY, ls=style, lw=1, label=label)
            axis.set(title=WORDS[key], xlabel=ALPHA, xlim=(0, None))
        axes[1, 1].axhline(numbers["baseline"], color=DARK, ls="--", lw=1.2, label="linear baseline")
        _draw_gap(axes[1, 2], numbers["positional"])
        draw_legend(axes[1, 1], axes[1, 2], columns=3)
        axes[0, 0].figure.suptitle(f"ω = {OMEGA:g}, d = {numbers['d']}, exact risk; bars: 2 standard errors")


def _draw_branch(axis, key, branch, table):
    alpha = land.to_array([p["alpha"] for p in table])
    axis.plot(
        alpha,
        land.to_array([p["theory"][key] for p in table]),
        color=COLORS[branch],
        label=f"{branch}, state evolution",
    )
    mean, error = (land.to_array([p["gamp"][key][what] for p in table]) for what in ("mean", "error"))
    judged = np.array([p["judged"] for p in table])
    draw_means(axis, alpha, mean, error, judged, COLORS[branch], branch)
    ends = [p for p in table if p["gd"][key]["mean"] is not None and np.isfinite(p["gd"][key]["mean"])]
    if ends:
        axis.plot([p["alpha"] for p in ends], [p["gd"][key]["mean"] for p in ends], "D", ms=9, mfc="none",
                  mec=DARK, label="gradient descent, few instances")  # fmt: skip
        same = [p["gd"][key]["mean"] - np.mean(p["gd_minus_gamp"][key]) for p in ends]
        axis.plot([p["alpha"] for p in ends], same, "+", ms=7, color=DARK, label="GAMP, the same instances")


def _draw_gap(axis, table):
    """Draw q of the positional branch relative to Stein's fixed point."""
    shown = [p for p in table if p["exists"] and p["derivative"]]
    alpha, stein = (land.to_array(v) for v in ([p["alpha"] for p in shown], [p["theory"]["q"] for p in shown]))
    axis.axhline(0, color=COLORS["positional"], label=r"state evolution, Stein's form of $\hat V$")
    gap = land.to_array([p["derivative"]["q"] for p in shown]) / stein - 1
    axis.plot(alpha, 100 * gap, color=DARK, ls="--", label=r"state evolution, $\hat V$ from the derivative")
    mean, error = (land.to_array([p["gamp"]["q"][what] for p in shown]) for what in ("mean", "error"))
    axis.errorbar(alpha, 100 * (mean / stein - 1), 200 * error / stein, fmt="o", ms=4.5, capsize=2,
                  color=COLORS["positional"])  # fmt: skip
    axis.set(title="positional branch: $q$ minus\nStein's fixed point, %", xlabel=ALPHA, xlim=(0, None))


def main():
    args, verdict = begin("figure2", __doc__, draw, workers=True)
    size = QUICK if args.quick else SIZE
    alphas, where = land.ALPHAS[list(size["alphas"])], folder(args, verdict.name)
    model, instances = ga.paper_model(OMEGA), {"d": size["d"], "n_test": size["n_test"]}
    descents = {"alpha": land.ALPHAS[list(size["gd"])], "seed": range(size["gd_seeds"]), "method": "GD"}
    with pool(args) as executor:
        theory = ga.sweep(model, where / "theory", alpha=alphas, executor=executor)
        bounds = ga.phase_boundaries(
            model, alphas=(land.LOWEST, land.HIGHEST), folder=where / "boundaries", executor=executor
        )
        message_passing = ga.sweep(
            model,
            where / "gamp",
            alpha=alphas,
            seed=range(size["seeds"]),
            method="GAMP",
            executor=executor,
            **instances,
        )
        descent = ga.sweep(model, where / "gd", executor=executor, **descents, **instances)
        ends = ga.sweep(model, where / "lbfgs", descent="lbfgs", executor=executor, **descents, **instances)
    lines = {name: bounds.lines[name][0]._asdict() for name in bounds.lines}
    numbers = {"d": size["d"], "baseline": ga.linear_baseline(model).test_error, "lines": lines}
    runs = [land.flatten_rows(cells) for cells in (message_passing, descent, ends)]
    numbers |= {branch: summarize_branch(branch, theory, *runs, lines) for branch in land.BRANCHES}
    for branch in land.BRANCHES:
        check_branch(verdict, branch, numbers[branch])
    verdict.end(numbers, draw)


def check_branch(verdict, branch, table):
    judged = [point for point in table if point["judged"]]
    few = [p for p in judged if p["count"]["on the branch"] < 0.5 * (len(p["elsewhere"]) + p["count"]["on the branch"])]
    verdict.check(
        len(judged) > 0 and not few, f"{branch}: most runs end on the branch at all {len(judged)} α with a criterion"
    )
    for key in JUDGED[branch]:
        ratios = []
        for point in judged:
            gamp = point["gamp"][key]
            targets = [point["theory"][key]]
            if (branch, key) == ("positional", "q"):
                targets.append(point["derivative"].get("q", np.nan))
            off = max(np.min(targets) - gamp["mean"], gamp["mean"] - np.max(targets), 0.0)
            room = 3 * gamp["error"] + land.SPREAD * gamp["spread"] + point["theory_error"][key]
            ratios.append((off / room, point["alpha"], off, room))
        ratio, alpha, off, room = max(ratios, key=lambda r: np.inf if np.isnan(r[0]) else r[0])
        what = (
            "state evolution, Stein's to the derivative's,"
            if (branch, key) == ("positional", "q")
            else "state evolution"
        )
        verdict.check(
            ratio <= 1, f"{branch}: {land.SYMBOLS[key]} within the allowed distance of {what} at {len(judged)} α; "
            f"at worst {off:.1e} of {room:.1e}, at α={alpha:.3f}"
        )  # fmt: skip
    check_descent(verdict, branch, [point for point in judged if point["gamp_loss"]])


def check_descent(verdict, branch, table):
    """Check gradient descent and L-BFGS against GAMP, over all instances of a branch."""

    def all_of(name, key):
        return np.concatenate([point[name][key] for point in table])

    loss = np.concatenate([point["gamp_loss"] for point in table])
    excess, lower = (all_of(name, "train_loss") / loss for name in ("gd_minus_gamp", "lbfgs_minus_gamp"))
    verdict.check(
        excess.min() >= BELOW and excess.max() <= ABOVE,
        f"{branch}: GD's loss after 5000 steps is {100 * excess.min():.3f} to {100 * excess.max():.3f} % above GAMP's, "
        f"on {len(excess)} instances",
    )
    same = (np.abs([all_of("lbfgs_minus_gamp", key) for key in KEYS[:3]]) <= SAME).all(axis=0)
    verdict.check(
        lower.min() >= BELOW and (branch == "positional" or same.mean() >= OFTEN),
        f"{branch}: L-BFGS ends in GAMP's minimum on {same.sum()} of {len(same)} instances, in others "
        f"{100 * lower.min():.3f} to {100 * lower.max():.3f} % above it",
    )


if __name__ == "__main__":
    main()
