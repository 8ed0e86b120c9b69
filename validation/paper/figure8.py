"""Figure 8: slices of the phase diagram, Δε_t = ε_t(positional) − ε_t(semantic) and ε_g against α at several ω.

Method: state evolution uses the cells of `phase_diagram`, which are computed if they are missing. GAMP runs at d =
1000, exact risk, at a few α. Δε_t is measured on one instance, if both runs end on their branches with zero gradient;
other instances are counted and left out.

Criterion: if both branches exist and are stable, and neither ends within 0.08, the means of Δε_t and of ε_g on either
branch are within three standard errors of state evolution, plus half of one instance's spread as an allowance O(1/√d).
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, COLORS, DARK, GREY, draw_legend
from validation._tools import landscape as land
from validation._tools.drawing import BOUNDARIES, draw_means, figure
from validation._tools.report import begin, folder, pool

SIZE = {"omegas": (4, 10, 14, 20), "alphas": range(2, 25, 2), "d": 1000, "seeds": 6, "n_test": 4000}
QUICK = {"omegas": (4, 14), "alphas": (13, 18, 24), "d": 300, "seeds": 8, "n_test": 2000}
DIFFERENCE = r"$10^3\,[\varepsilon_t$(pos.) − $\varepsilon_t$(sem.)]"
QUANTITIES = ("difference", "semantic", "positional")


def main():
    args, verdict = begin("figure8", __doc__, draw, workers=True)
    size = QUICK if args.quick else SIZE
    omegas = land.OMEGAS[list(size["omegas"])]
    with pool(args) as executor:
        theory = land.flatten_rows(land.compute_diagram(args, "paper", executor))
        bounds = land.compute_boundaries(args, "paper", executor)
        points = ga.sweep(
            land.build_model("paper"), folder(args, verdict.name), alpha=land.ALPHAS[list(size["alphas"])],
            omega=omegas, d=size["d"], seed=range(size["seeds"]), method="GAMP", n_test=size["n_test"],
            executor=executor,
        )  # fmt: skip
    runs = land.flatten_rows(points)
    slices = {}
    for omega in omegas:
        at = int(np.argmin(np.abs(bounds.values - omega)))
        lines = {name: float(bounds.line(name)[0][at]) for name in bounds.lines}
        slices[f"{omega:g}"] = {
            "alpha_c": lines["alpha_c"], "alpha_l": lines["alpha_l"],
            "baseline": ga.linear_baseline(land.build_model("paper", omega)).test_error,
            "theory": collect_curves([row for row in theory if row["omega"] == omega]),
            "gamp": compute_means([row for row in runs if row["omega"] == omega], lines),
        }  # fmt: skip
    for omega, part in slices.items():
        check_slice(verdict, omega, part)
    numbers = {"d": size["d"], "slices": slices}
    verdict.end(numbers, draw)


def collect_curves(rows):
    """Return Δε_t and ε_g of both branches against α, NaN if there is no branch."""
    alphas = sorted({row["alpha"] for row in rows})
    at = {(row["branch"], row["alpha"]): row for row in rows if row["status"] == "converged"}
    value = {branch: {a: at.get((branch, a), {}) for a in alphas} for branch in land.BRANCHES}
    loss = {b: land.to_array([value[b][a].get("train_loss") for a in alphas]) for b in land.BRANCHES}
    return {"alpha": alphas, "difference": loss["positional"] - loss["semantic"]} | {
        branch: [value[branch][a].get("test_error", np.nan) for a in alphas] for branch in land.BRANCHES
    }


def compute_means(runs, lines):
    """Return statistics of GAMP at each α, counts of ends, and whether the criterion applies."""
    table = []
    for alpha in sorted({run["alpha"] for run in runs}):
        kept, count = {}, {}
        for branch in land.BRANCHES:
            mine = [run for run in runs if (run["branch"], run["alpha"]) == (branch, alpha)]
            good, count[branch] = land.select_on_branch(mine)
            kept[branch] = {run["seed"]: run for run in good}
        pairs = [(kept["semantic"][s], kept["positional"][s]) for s in kept["semantic"] if s in kept["positional"]]
        both = [{"difference": b["train_loss"] - a["train_loss"]} for a, b in pairs]
        inside = {branch: land.is_inside(branch, alpha, lines) for branch in land.BRANCHES}
        table.append(
            {"alpha": alpha, "count": count, "judged": inside | {"difference": all(inside.values())}}
            | {"difference": land.compute_statistics(both, ["difference"])["difference"]}
            | {b: land.compute_statistics(kept[b].values(), ["test_error"])["test_error"] for b in land.BRANCHES}
        )
    return table


def check_slice(verdict, omega, part):
    """Check the criterion at one ω."""
    theory = {a: i for i, a in enumerate(part["theory"]["alpha"])}
    worst = {name: (0.0, np.nan, np.nan, np.nan) for name in QUANTITIES}
    judged = dict.fromkeys(QUANTITIES, 0)
    for point in part["gamp"]:
        for name in QUANTITIES:
            value, target = point[name], part["theory"][name][theory[point["alpha"]]]
            if point["judged"][name]:
                judged[name] += 1
                off, room = abs(value["mean"] - target), 3 * value["error"] + land.SPREAD * value["spread"]
                ratio = off / room if np.isfinite(off / room) else np.inf  # NaN if runs are too few
                worst[name] = max(worst[name], (ratio, point["alpha"], off, room))
    for name in QUANTITIES:
        ratio, alpha, off, room = worst[name]
        symbol = "Δε_t" if name == "difference" else f"ε_g, {name},"
        if judged[name]:
            verdict.check(
                ratio <= 1,
                f"ω={omega}: {symbol} within the allowed distance of state evolution at {judged[name]} α; "
                f"at worst {off:.1e} of {room:.1e}, at α={alpha:.3f}",
            )


def draw(numbers, path):
    slices = numbers["slices"]
    with figure(path, len(slices), 2, (9.6, 2.9 * len(slices) + 1.4)) as axes:
        for column, (omega, part) in zip(axes, slices.items(), strict=True):
            theory, alpha = part["theory"], land.to_array(part["theory"]["alpha"])
            for name in QUANTITIES:
                axis, color = (column[0], DARK) if name == "difference" else (column[1], COLORS[name])
                scale = 1e3
                label = {"difference": "difference of losses"}.get(name, f"{name} branch")
                axis.plot(alpha, scale * land.to_array(theory[name]), color=color, label=f"{label}, state evolution")
                shown = land.to_array([p["alpha"] for p in part["gamp"]])
                mean, error = (
                    scale * land.to_array([p[name][what] for p in part["gamp"]]) for what in ("mean", "error")
                )
                judged = np.array([p["judged"][name] for p in part["gamp"]])
                draw_means(axis, shown, mean, error, judged, color, label)
            column[0].axhline(0, color=GREY, lw=0.8)
            column[1].axhline(1e3 * part["baseline"], color=DARK, ls="--", lw=1.2, label="linear baseline")
            for name, style in (("alpha_c", "-"), ("alpha_l", ":")):
                if part[name] is not None and part[name] <= alpha.max():
                    label = BOUNDARIES[name]
                    for axis in column:
                        axis.axvline(part[name], color=GREY, ls=style, lw=1.2, label=label)
            column[0].set(title=f"difference of training losses, ω = {omega}", ylabel=DIFFERENCE)
            column[1].set(title=f"test errors, ω = {omega}", ylabel=r"$10^3\,\varepsilon_g$")
            for axis in column:
                axis.set_xlim(0, 1.03 * alpha.max())
        for axis in axes[-1]:
            axis.set_xlabel(ALPHA)
        draw_legend(*axes.flat, columns=3)
        axes[0, 0].figure.suptitle(f"GAMP at d = {numbers['d']}, exact risk; bars: 2 standard errors")


if __name__ == "__main__":
    main()
