"""Processor times against sizes, with exponents and their standard errors.

Method: an iteration of message passing that keeps local minima, for d, n, L and r; a solution of state evolution for
the accuracy; predictions of message passing and of gradient descent for the numbers of steps and paths. The smallest of
three times counts, in a process with one thread, after compilation. An exponent is the slope of a straight line through
the logarithms of the times, and its error the standard error of the slope from the residuals.

Criterion: the exponents in d, n and the number of paths are at most 1 within three errors.

Running time: 4 minutes on one core.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.gamp.step import GampState, gamp_step
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table
from validation._tools.timing import measure_times

REPEATS = 3
BASE = {"d": 1000, "n": 1000, "L": 2, "r": 1}
FEW = {"d": 200, "n": 300, "L": 2, "r": 1}  # for the largest L and r
ITERATION = {"d": (500, 1000, 2000, 4000), "n": (1000, 2000, 4000, 8000), "L": (4, 8, 16, 32), "r": (1, 2, 4, 8)}
PREDICTIONS = {
    "message passing, steps": ("gamp", "n_iter", (20, 40, 80, 160)),
    "message passing, paths": ("gamp", "n_paths", (4096, 8192, 16384, 32768)),
    "descent, steps": ("gd", "n_iter", (40, 80, 120, 160)),
    "descent, paths": ("gd", "n_paths", (1024, 2048, 4096, 8192)),
}
ACCURACIES = {"semantic": (1e-2, 1e-3, 1e-4, 1e-5), "positional": (1e-2, 1e-3, 1e-4, 1e-5)}
LINEAR, ERRORS = ("d", "n", "paths"), 3.0


def best_time(task):
    """Return the smallest processor time of some calls."""
    return min(measure_times(task, REPEATS))


def fit(sizes, seconds):
    """Return sizes, seconds, the exponent and its standard error."""
    x, y = np.log(sizes), np.log(seconds)
    slope, constant = np.polyfit(x, y, 1)
    residual = y - slope * x - constant
    error = np.sqrt(residual @ residual / max(len(x) - 2, 1) / np.sum((x - x.mean()) ** 2))
    return {"sizes": list(sizes), "seconds": list(seconds), "exponent": float(slope), "error": float(error)}


def iteration_seconds(name, value):
    """Return the time of an iteration from a state after four iterations."""
    at = {**(FEW if name in ("L", "r") else BASE), name: value}
    data = ga.sample(ga.attention_model(at["L"], at["r"], 1), at["d"], at["n"] / at["d"], seed=0)
    noise = np.random.default_rng(0).standard_normal((at["d"], at["r"]))
    state = ga.initial_state(data, data.Q_star + noise)  # the teacher has one column
    for _ in range(4):
        state, _ = gamp_step(data, "exact", state, 0.3, hold=True)
    held = GampState(state.Q, state.V, state.D, state.z)
    return best_time(lambda: gamp_step(data, "exact", held, 0.3, hold=True))


def prediction_seconds(method, name, value):
    """Return the time of a prediction from two replicas."""
    sizes = {"n_iter": 40, "n_paths": 2048, "n_replicas": 2, name: value}
    predicted = ga.MessagePassing() if method == "gamp" else ga.GradientDescent(lr=3.0)
    return best_time(lambda: ga.trajectory(ga.paper_model(), 1.5, "positional", predicted, **sizes))


def measure(quick):
    """Return the fit for each size."""
    n, rows = 2 if quick else 4, {}
    for name, values in ITERATION.items():
        rows[f"iteration, {name}"] = fit(values[:n], [iteration_seconds(name, value) for value in values[:n]])
    for branch, values in ACCURACIES.items():
        seconds = [
            best_time(
                lambda rtol=rtol, branch=branch: ga.solve_state_evolution(ga.paper_model(), 1.5, branch, rtol=rtol)
            )
            for rtol in values[:n]
        ]
        rows[f"{branch} solution, 1/rtol"] = fit([1 / rtol for rtol in values[:n]], seconds)
    for name, (method, size, values) in PREDICTIONS.items():
        rows[name] = fit(values[:n], [prediction_seconds(method, size, value) for value in values[:n]])
    return rows


def draw(numbers, path):
    """Draw the times against each size."""
    rows = numbers["rows"]
    with figure(path, 4, 3, (9.0, 10.5)) as axes:
        for axis in axes.flat[len(rows) :]:
            axis.set_visible(False)
        for axis, (name, row) in zip(axes.flat, rows.items(), strict=False):
            axis.loglog(row["sizes"], row["seconds"], "o-")
            axis.set_title(f"exponent {row['exponent']:.2f} ± {row['error']:.2f}", fontsize=10)
            axis.set(xlabel=name, ylabel="processor time (s)")
            axis.set_xticks(row["sizes"], [f"{size:g}" for size in row["sizes"]])
            axis.xaxis.minorticks_off()


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("cost_growth", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    rows, lines = measure(args.quick), []
    for name, row in rows.items():
        words = f"{name}: exponent {row['exponent']:.2f} ± {row['error']:.2f}"
        if name.split(", ")[1] in LINEAR:
            verdict.check(args.quick or row["exponent"] <= 1 + ERRORS * row["error"], f"{words}, at most 1")
        else:
            print(words)
        sizes, seconds = (", ".join(f"{value:.3g}" for value in row[key]) for key in ("sizes", "seconds"))
        lines.append([name, sizes, seconds, f"{row['exponent']:.2f}", f"{row['error']:.2f}"])
    verdict.write_table(markdown_table(["size", "values", "seconds", "exponent", "error"], lines))
    verdict.end({"rows": rows}, draw)


if __name__ == "__main__":
    main()
