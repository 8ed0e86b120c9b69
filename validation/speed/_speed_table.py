"""The table of the speed of GAMP in the docs, and the picture of how the cost of an iteration grows."""

import numpy as np

from gamp_attention.experiments.figures import figure

PARTS = {
    "reading the tokens": "stream",
    "products and sums in cache": "cached",
    "products and sums": "loops",
    "a risk": "risk",
    "proximal steps": "prox",
    "an iteration": "held",
    "with global minima": "global",
}
ITERATION = {"float64": 1.4, "float32": 1.6}  # targets
TICKS = tuple(lead * 10**power for power in range(6) for lead in (1, 2, 5))  # ms


def draw(path, rows, what="ms an iteration", across=4):
    down = -(-len(rows) // across)
    with figure(path, down, min(len(rows), across), (2.4 * min(len(rows), across), 2.4 * down)) as axes:
        for axis, (name, row) in zip(axes.ravel(), rows.items(), strict=False):
            size, ms = np.array(row["sizes"]), 1e3 * np.array(row["seconds"])
            axis.plot(size, ms, "o", color="#0072B2")
            last = slice(-3, None)
            fit = row["exponent"] * np.log(size[last] / size[-1])
            axis.plot(size[last], np.exp(fit - fit.mean() + np.log(ms[last]).mean()), "-", color="#D55E00")
            axis.set(xscale="log", yscale="log", xlabel=name, title=f"exponent {row['exponent']:.2f}")
            axis.set_xticks(size, [_label(value) for value in size])
            ticks = [tick for tick in TICKS if ms.min() <= 1.1 * tick and tick <= 1.1 * ms.max()]
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        for axis in axes.ravel()[len(rows) :]:
            axis.set_axis_off()
        for row in axes:
            row[0].set_ylabel(what)


def _label(value):
    power = np.log10(value)
    return f"1e{power:.0f}" if power >= 4 and power == int(power) else f"{value:g}"


def table(numbers):
    """The lines of the docs' table."""
    lines = ["| measured | reached | target |", "|---|---|---|"]
    for dtype, row in numbers.get("iteration", {}).items():
        least, limit = row["least"], ITERATION[dtype]
        lines.append(f"| iteration over one `X @ Q`, d = {row['d']}, {dtype} | {least['run']:.2f} | {limit} |")
        parts = ", ".join(f"{part} {least[key]:.2f}" for part, key in PARTS.items())
        lines.append(f"| its parts by themselves, {dtype} | {parts} | |")
        speeds = f"{row['bandwidth'] / 1e9:.0f} GB/s from memory, {row['flops'] / 1e9:.0f} GFlop/s in cache"
        lines.append(f"| bounds, {dtype} | {speeds} | |")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers.get(key, {}).items():
            counts = f"{row['n_iter']:g} iterations, {row['n_lbfgs']:g} evaluations"
            where, each = f"d = {row['d']}, {branch}", [one["over_lbfgs"] for one in row["instances"]]
            lines.append(f"| evaluations of GAMP over L-BFGS-B, {where} | {row['evaluations']:.2f} ({counts}) | 0.5 |")
            spread = f"{min(each):.2f} to {max(each):.2f} in {len(each)} instances; {row['with_verdict']:.2f} with"
            told = f"{row['over_lbfgs']:.2f} ({spread} what is told of the end)"
            lines.append(f"| time of GAMP over L-BFGS-B, {where} | {told} | 0.6 |")
            lines.append(f"| torch descent over GAMP, {where} | {row['torch_over']:.0f} | 100 |")
    for name, row in numbers.get("memory", {}).items():
        lines.append(f"| peak memory over the tokens', d = {row['d']}, {name} | {row['peak']:.2f} | 1.1 + state |")
    for name, row in numbers.get("growth", {}).items():
        lines.append(f"| exponent of an iteration in {name} | {row['exponent']:.2f} | |")
    return "\n".join(lines) + "\n"
