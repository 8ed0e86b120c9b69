"""The table of the speed of GAMP in the docs, and the picture of how the cost of an iteration grows."""

import numpy as np

from gamp_attention.experiments.figures import figure

PARTS = {"projections X̃Q": "fields", "one of the two sums X̃ᵀg, X̃ᵀ∇ℓ": "sums", "proximal steps": "prox"}
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # ms


def draw(path, rows):
    with figure(path, 1, len(rows), (2.4 * len(rows), 2.4)) as axes:
        for axis, (name, row) in zip(axes[0], rows.items(), strict=True):
            size, ms = np.array(row["sizes"]), 1e3 * np.array(row["seconds"])
            axis.plot(size, ms, "o", color="#0072B2")
            last = slice(-3, None)
            fit = row["exponent"] * np.log(size[last] / size[-1])
            axis.plot(size[last], np.exp(fit - fit.mean() + np.log(ms[last]).mean()), "-", color="#D55E00")
            axis.set(xscale="log", yscale="log", xlabel=name, title=f"exponent {row['exponent']:.2f}")
            axis.set_xticks(size, [str(value) for value in size])
            ticks = [tick for tick in TICKS if ms.min() <= 1.1 * tick and tick <= 1.1 * ms.max()]
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        axes[0, 0].set_ylabel("ms an iteration")


def table(numbers):
    """The lines of the docs' table."""
    lines = ["| measured | reached | target |", "|---|---|---|"]
    for dtype, row in numbers.get("iteration", {}).items():
        name = f"iteration over one `X @ Q`, d = {row['d']}, {dtype}"
        held, least = f"{row['held']:.2f}", f"{row['least']['held']:.2f}"
        lines.append(f"| {name} | {held}, of least times {least} (global minima: {row['global']:.2f}) | 1.3 |")
        parts = ", ".join(f"{part} {row[key]:.2f}" for part, key in PARTS.items())
        lines.append(f"| its parts by themselves, {dtype} | {parts} | |")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers.get(key, {}).items():
            counts = f"{row['n_iter']:g} iterations, {row['n_lbfgs']:g} evaluations"
            where, each = f"d = {row['d']}, {branch}", [one["over_lbfgs"] for one in row["instances"]]
            spread = f"{min(each):.2f} to {max(each):.2f} in {len(each)} instances, {counts}"
            lines.append(f"| accelerated GAMP over L-BFGS-B, {where} | {row['over_lbfgs']:.2f} ({spread}) | 0.5 |")
            lines.append(f"| torch descent over accelerated GAMP, {where} | {row['torch_over']:.0f} | 100 |")
    for name, row in numbers.get("memory", {}).items():
        lines.append(f"| peak memory over the tokens', d = {row['d']}, {name} | {row['peak']:.2f} | 1.1 + state |")
    for name, row in numbers.get("growth", {}).items():
        lines.append(f"| exponent of an iteration in {name} | {row['exponent']:.2f} | |")
    return "\n".join(lines) + "\n"
