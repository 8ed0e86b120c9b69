"""A proximal solve takes at most 2 µs, and scipy's BFGS at least 100 times as long.

Method: L = 2, r = 1, one thread; global minima, local minima from the last solution, and scipy's BFGS, on
the same problems.

Criterion: in the convex case a solve takes at most 2 µs (1.3 to 1.6 were measured), and scipy at least 100 times as
long.
"""

import time

import numba
import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import draw_legend
from gamp_attention.problem.losses.attention import pack_attention_parameters
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.timing import measure_times

CASES = {"convex, V = 0.3": (0.3, 0.4), "semantic, V = 16": (16.0, 0.3), "large, V = 100": (100.0, 1.0)}


def measure_median(task, repeats):
    """Return the median time of some calls."""
    return float(np.median(measure_times(task, repeats, time.perf_counter)))


SOLVERS = {
    "held": "local minimum", "global": "global minimum", "scipy": "BFGS of scipy",
}  # fmt: skip


def draw(numbers, path):
    """Draw the time of one proximal problem for each solver."""
    rows = numbers["rows"]
    with figure(path, 1, 1, (7.5, 3.8)) as axes:
        axis, x = axes[0, 0], np.arange(len(rows))
        for shift, (kind, label) in enumerate(SOLVERS.items()):
            axis.bar(x + 0.27 * (shift - 1), [1e6 * row[kind] for row in rows.values()], 0.25, label=label)
        axis.set(yscale="log", ylabel="time of one proximal problem, µs", xticks=x, xticklabels=list(rows))
        draw_legend(axis, columns=3)


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("prox_speed", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    numba.config.NUMBA_NUM_THREADS = 1
    n, repeats = (20_000, 3) if args.quick else (100_000, 7)
    model, rng, rows = ga.paper_model(), np.random.default_rng(0), {}
    for name, (V, size) in CASES.items():
        T = model.teacher(0.5 * rng.normal(size=(n, 2, 1)))
        params = pack_attention_parameters(0.25 * np.eye(2)[None], 0.25 * T.transpose(0, 2, 1))
        omega, blocks = size * rng.normal(size=(n, 2, 1)), np.full((2, 1, 1), V)
        found_z = ga.denoise(model.loss, params, omega, blocks)
        global_time = measure_median(lambda: ga.denoise(model.loss, params, omega, blocks), repeats) / n  # noqa: B023
        held_time = (
            measure_median(
                lambda: ga.denoise(model.loss, params, omega, blocks, hold=True),  # noqa: B023
                repeats,
            )
            / n
        )
        few, began, worse = 100, time.perf_counter(), 0
        for mu in range(few):

            def value(z, mu=mu):
                S = model.student(z.reshape(2, 1))
                return ((z - omega[mu, :, 0]) ** 2).sum() / (2 * V) + 0.125 * ((S - T[mu]) ** 2).sum()  # noqa: B023

            constant = 0.125 * (T[mu] ** 2).sum()
            worse += minimize(value, omega[mu, :, 0], method="BFGS").fun - constant > found_z.moreau[mu] + 1e-6
        scipy_time = (time.perf_counter() - began) / few
        single = float(np.mean(np.isinf(found_z.gap)))
        rows[name] = {"global": global_time, "held": held_time, "scipy": scipy_time, "no_other_minimum": single}
        print(
            f"{name:18} global {global_time * 1e6:6.2f} µs, held {held_time * 1e6:6.2f} µs, scipy BFGS "
            f"{scipy_time * 1e6:8.0f} µs ({scipy_time / global_time:.0f} times), no other minimum in {single:.0%}; "
            f"scipy's is higher in {worse} of {few}"
        )
    convex = rows["convex, V = 0.3"]
    verdict.check(convex["held"] < 2e-6, f"{convex['held'] * 1e6:.2f} µs a solve in the convex case")
    verdict.check(convex["scipy"] / convex["global"] > 100, "at least 100 times faster than scipy's BFGS")
    verdict.end({"rows": rows}, draw)


if __name__ == "__main__":
    main()
