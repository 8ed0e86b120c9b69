"""Figures 3 (left) and 7: overlaps and errors of GAMP, exact risk, against d at ω = 0.3 and α = 1.5.

Method: runs that leave their branch, or do not reach zero gradient, are counted and printed, and left out of the means.

Criterion, on both branches, for ε_t, ε_g and every overlap that is not zero by symmetry: from d = 100 on the spread
over instances falls as d to the power -1/2, within three standard errors (by bootstrap over instances) and an allowance
of 0.1. The means approach state evolution: at the largest d they deviate by at most three standard errors, the error of
state evolution, and half of one instance's spread, which is O(1/√d). On the positional branch the replica-symmetric
solution is approximate, so q may be anywhere between the fixed points with Stein's V̂ and with the derivative's.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, GREY, WORDS, draw_legend
from validation._tools import landscape as land
from validation._tools.drawing import figure
from validation._tools.report import begin, folder, pool

OMEGA, ALPHA = 0.3, 1.5
SIZES = {30: 200, 60: 200, 100: 100, 200: 100, 400: 60, 1000: 40, 2000: 30}  # number of instances by d
QUICK = {30: 40, 100: 40, 300: 24}
MIN_D = 100  # smallest d of the fits of exponents at full size
KEYS = ("q", "m", "theta", "train_loss", "test_error")
ZERO = {"semantic": "m", "positional": "theta"}  # overlap that is zero by symmetry at d = ∞
SLOPE = 0.1  # tolerance of the exponent, for moderate d


def compute_predictions():
    """Return state evolution by branch and form of V̂."""
    predictions = {}
    for branch in land.BRANCHES:
        for response in ("stein", "derivative"):
            se = ga.solve_state_evolution(
                ga.paper_model(OMEGA), ALPHA, branch, rtol=1e-3, response=response, stability=False
            )
            value, error = se.overlaps.scalars(), se.overlaps_error.scalars()
            row = {k: (float(value[k]), float(error[k])) for k in ("q", "m", "theta")}
            row |= {k: (getattr(se, k), getattr(se, f"{k}_error")) for k in ("train_loss", "test_error")}
            predictions[f"{branch} {response}"] = row
    return predictions


def fit_exponent(samples, sizes):
    """Return the exponent of the spread in d and its standard error, by bootstrap."""
    rng, log_d = np.random.default_rng(0), np.log(sizes)
    draws = []
    for repeat in range(400):
        chosen = [values if repeat == 0 else rng.choice(values, len(values)) for values in samples]
        spread = np.log([np.std(values, ddof=1) for values in chosen])
        weight = np.sqrt([len(values) for values in samples])  # log of a spread has the error 1/√(2N)
        draws.append(np.polyfit(log_d, spread, 1, w=weight)[0])
    return float(draws[0]), float(np.std(draws[1:]))


def main():
    args, verdict = begin("finite_size", __doc__, draw, workers=True)
    sizes = QUICK if args.quick else SIZES
    wanted = [{"d": d, "seed": range(seeds)} for d, seeds in sizes.items()]
    with pool(args) as executor:
        result = ga.sweep(
            ga.paper_model(OMEGA), folder(args, verdict.name), cells=wanted, alpha=ALPHA, method="GAMP",
            n_test=4000 if args.quick else 16000, executor=executor,
        )  # fmt: skip
    rows = land.flatten_rows(result)
    prediction, table = compute_predictions(), {branch: {} for branch in land.BRANCHES}
    for branch in land.BRANCHES:
        kept = {}
        for d in sizes:
            kept[d], count = land.select_on_branch([row for row in rows if (row["branch"], row["d"]) == (branch, d)])
            table[branch][d] = land.compute_statistics(kept[d], KEYS) | {"count": count}
        check_branch(verdict, branch, kept, table[branch][max(sizes)], prediction)
    numbers = {"prediction": prediction, "finite_d": table}
    verdict.end(numbers, draw)


def check_branch(verdict, branch, kept, last, prediction):
    """Check the criterion on one branch."""
    se, other = prediction[f"{branch} stein"], prediction[f"{branch} derivative"]
    for key in KEYS:
        symbol = f"{branch}: {land.SYMBOLS[key]}"
        if key != ZERO[branch]:
            sizes = [d for d in kept if d >= (min(QUICK) if len(kept) == len(QUICK) else MIN_D)]
            exponent, error = fit_exponent([[run[key] for run in kept[d]] for d in sizes], sizes)
            verdict.check(
                abs(exponent + 0.5) <= 3 * error + SLOPE, f"{symbol} spreads as d^({exponent:.2f} ± {error:.2f})"
            )
        value, error = se[key]
        inside = [value, other[key][0]] if (branch, key) == ("positional", "q") else [value]
        off = max(min(inside) - last[key]["mean"], last[key]["mean"] - max(inside), 0.0)
        room = 3 * last[key]["error"] + error + land.SPREAD * last[key]["spread"]
        target = f"{value:.5g}" if len(inside) == 1 else f"{min(inside):.5g} to {max(inside):.5g}"
        verdict.check(off <= room, f"{symbol} at d={max(kept)} is {off:.1e} off {target}, allowed {room:.1e}")


def draw(numbers, path):
    with figure(path, 5, 2, (8.8, 11)) as axes:
        for row, (branch, table) in zip(axes.T, numbers["finite_d"].items(), strict=True):
            se, other = numbers["prediction"][f"{branch} stein"], numbers["prediction"][f"{branch} derivative"]
            sizes = np.array([int(d) for d in table])
            for axis, key in zip(row, KEYS, strict=True):
                mean, spread, error = (
                    land.to_array([stats[key][what] for stats in table.values()])
                    for what in ("mean", "spread", "error")
                )
                axis.fill_between(sizes, mean - spread, mean + spread, color=COLORS[branch], alpha=0.2, lw=0,
                                  label=f"spread of one instance, {branch}")  # fmt: skip
                axis.errorbar(sizes, mean, 2 * error, fmt="o", ms=4, capsize=2, color=COLORS[branch],
                              label=f"GAMP, {branch}, mean ± 2 s.e.")  # fmt: skip
                axis.axhline(se[key][0], color=DARK, lw=1.2, label="state evolution")
                if branch == "positional":
                    label = r"state evolution, $\hat V$ from the derivative"
                    axis.axhline(other[key][0], color=GREY, ls="--", lw=1.2, label=label)
                axis.set(title=f"{branch} branch: {WORDS[key]}", xscale="log")
                shown = [d for d in (30, 100, 300, 1000, 2000) if sizes.min() <= d <= sizes.max() and d != 2000]
                axis.set_xticks(shown, [str(d) for d in shown])
                axis.set_xticks([], minor=True)
            row[-1].set_xlabel("dimension d")
        axes[0, 0].figure.suptitle(f"GAMP, exact risk, ω = {OMEGA:g}, α = {ALPHA:g}")
        draw_legend(*axes[0], columns=3)


if __name__ == "__main__":
    main()
