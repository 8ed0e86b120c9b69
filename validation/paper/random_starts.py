"""Figure 15: the minima that Adam, gradient descent and message passing reach from random starts.

Method: ω = 0.3 and α = 2; weights start at 0.1 N(0, 1). On the exact risk, Adam takes the paper's 2500 steps of size
0.01 and gradient descent its 5000 of 0.15. L-BFGS then takes both to zero gradient, to identify the minimum of their
basin. GAMP reaches zero gradient without it. A minimum counts as semantic or positional if it is close to the minimum
that the informed start of the same instance leads to: the point (|θ|/σ, σ|m_1|), √q times the cosines of the angles
with Q* and p_1, is within a fifth of the distance between the two informed minima, and the loss differs by at most 2 %.
All other minima are "neither".

Criterion: at least 95 % of all runs end at zero gradient. At d = 100 Adam finds both minima, in different instances, as
the paper reports, and so does GAMP. Fractions have 95 % intervals (Wilson).
"""

import numpy as np
from scipy.stats import binomtest

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, GREY, draw_legend
from gamp_attention.problem.starts import initial_weights
from validation._tools.drawing import figure
from validation._tools.report import begin, folder, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table

OMEGA, ALPHA, SIGMA = 0.3, 2.0, 0.5
SEEDS, QUICK_SEEDS = {100: 100, 300: 60, 1000: 16}, {60: 8}
STEPS = {"adam": 2500, "gd": 5000}
ENDS = ("semantic", "positional", "neither")
NEAR, LOSS = 0.2, 0.02  # tolerances, in units of the distance of the informed minima, and of the loss
NAMES = {"adam": "Adam", "gd": "gradient descent", "gamp": "GAMP"}


def get_position(result):
    """Return (|θ|/σ, σ|m_1|), √q times the cosines of the angles with Q* and p_1, and the loss."""
    values = result.overlaps.scalars()
    return np.array([abs(float(values["theta"])) / SIGMA, abs(float(values["m"])) * SIGMA]), result.train_loss


def classify(result, informed):
    """Return the informed minimum that a minimum is close to."""
    if not result.converged:
        return "not converged"
    (at, loss), apart = get_position(result), np.linalg.norm(informed["semantic"][0] - informed["positional"][0])
    for name, (where, lowest) in informed.items():
        if np.linalg.norm(at - where) < NEAR * apart and abs(loss / lowest - 1) < LOSS:
            return name
    return "neither"


def run_trial(d, seed):
    """Return the two informed minima of one instance, and the end of each optimizer from one random start."""
    data = ga.sample(ga.paper_model(OMEGA), d, ALPHA, seed)
    results = {name: ga.minimize_risk(data, name, "exact", "lbfgs") for name in ("semantic", "positional")}
    informed = {name: get_position(result) for name, result in results.items()}
    start = initial_weights(data, "random", np.random.default_rng([seed, 7]))
    row = {"informed": {name: [*where.tolist(), loss] for name, (where, loss) in informed.items()}}
    for name, steps in STEPS.items():
        walked = ga.minimize_risk(data, start, "exact", name, max_iter=steps)
        end = ga.minimize_risk(data, walked.Q, "exact", "lbfgs")
        (theta, m), loss = get_position(end)
        row[name] = {
            "end": classify(end, informed), "theta": theta, "m": m, "train_loss": loss, "status": end.status.value,
        }  # fmt: skip
    end = ga.run_gamp(data, start, "exact", max_iter=1000)
    (theta, m), loss = get_position(end)
    row["gamp"] = {
        "end": classify(end, informed), "theta": theta, "m": m, "train_loss": loss, "status": end.status.value,
    }  # fmt: skip
    return row


def count_ends(rows):
    """Return fractions of the ends by d and optimizer, with intervals."""
    table = []
    for d in sorted({row["d"] for row in rows}):
        mine = [row for row in rows if row["d"] == d]
        for name in NAMES:
            ends = [row[name]["end"] for row in mine]
            shares = {}
            for end in (*ENDS, "not converged"):
                test = binomtest(ends.count(end), len(ends)).proportion_ci(method="wilson")
                shares[end] = [ends.count(end) / len(ends), float(test.low), float(test.high)]
            table.append({"d": d, "optimizer": name, "runs": len(ends), "shares": shares})
    return table


def format_table(table):
    heads = ("d", "optimizer", "runs", *ENDS, "not converged")
    lines = []
    for row in table:
        shares = [f"{v:.0%} ({low:.0%} to {high:.0%})" for v, low, high in row["shares"].values()]
        lines.append([row["d"], NAMES[row["optimizer"]], row["runs"], *shares])
    return markdown_table(heads, lines)


def draw(numbers, path):
    """Draw the fractions of the ends, and all ends in the plane of overlaps."""
    rows, table = numbers["rows"], numbers["table"]
    sizes = sorted({row["d"] for row in rows})
    colors = COLORS | {"neither": GREY}
    with figure(path, 2, len(NAMES), (9.6, 7.2)) as axes:
        for column, (name, label) in enumerate(NAMES.items()):
            axis = axes[0, column]
            mine = [row for row in table if row["optimizer"] == name]
            for number, end in enumerate(ENDS):
                value, low, high = np.array([row["shares"][end] for row in mine]).T
                x = np.arange(len(sizes)) + 0.25 * (number - 1)
                axis.bar(x, value, 0.22, color=colors[end], label=end)
                axis.errorbar(x, value, [value - low, high - value], fmt="none", color="black", lw=1, capsize=2)
            axis.set(title=label, ylim=(0, 1), xlabel="dimension d", xticks=range(len(sizes)), xticklabels=sizes)
            axis = axes[1, column]
            for row in (row for row in rows if row["d"] == sizes[-1]):
                for end, where in row["informed"].items():
                    axis.plot(where[1], where[0], "x", color=colors[end], ms=5, alpha=0.6)
                got = row[name]
                axis.plot(got["m"], got["theta"], "o", ms=4, mfc="none", color=colors.get(got["end"], "black"))
            axis.set_xlabel(r"overlap with positions $\sigma |m_1|$")
        axes[1, 0].set_ylabel(r"overlap with teacher $|\theta|/\sigma$")
        axes[0, 0].set_ylabel("fraction of the runs, ± 95 % interval")
        draw_legend(axes[0, 0], columns=len(ENDS))
        axes[0, 0].figure.suptitle(
            f"Minima reached from random starts, ω = {OMEGA:g}, α = {ALPHA:g}. Lower row, d = {sizes[-1]}:\n"
            "circles are ends of runs, crosses are minima reached from informed starts"
        )


def main():
    args, verdict = begin("random_starts", __doc__, draw, workers=True)
    sizes = QUICK_SEEDS if args.quick else SEEDS
    plan = [{"d": d, "seed": seed} for d, seeds in sizes.items() for seed in range(seeds)]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), run_trial, plan, executor)
    table = count_ends(rows)
    verdict.write_table(format_table(table))
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} instances were finished")
    ends = [row[name]["end"] for row in rows for name in NAMES]
    at_zero = np.mean([end in ENDS for end in ends])
    verdict.check(at_zero >= 0.95, f"{at_zero:.1%} of {len(ends)} runs end at zero gradient")
    for name in () if args.quick else ("adam", "gamp"):
        kinds = {row[name]["end"] for row in rows if row["d"] == 100} & {"semantic", "positional"}
        verdict.check(len(kinds) == 2, f"{NAMES[name]} finds {' and '.join(sorted(kinds))} minima at d = 100")
    verdict.end({"table": table, "rows": rows}, draw)


if __name__ == "__main__":
    main()
