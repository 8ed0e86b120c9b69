"""Survey propagation at a fixed Parisi parameter recovers the signal of phase retrieval from the published α on.

Published values: Lucibello, Saglietti and Lu (2019) store the overlaps at the end of state evolution from a weak
overlap with their code (CarloLucibello/GASP.jl, src/replica_abs/plot_1RSB_lambda_effect), for the loss (|z| − y)²,
amplitudes without noise, λ = 1e-3 and several Parisi parameters, on a grid of α with steps of 0.025. For each Parisi
parameter, the table below has the row of the largest α without recovery, and the smallest α with recovery.

Method: (1) The published overlaps of the former row are inserted in the equations of one step of replica symmetry
breaking of the package, which return them up to the tolerance of the published iteration if they are a fixed point of
both. (2) State evolution of undamped survey propagation at both α: the equations are iterated from an overlap θ = 0.05
until θ > 0.9 (recovery) or the overlaps come to rest. For y > 20 this start has too small a variance in a cluster, so
that (2) is left out. (3) Single surveys of `survey_step` at y = 5 with step 0.4 from random weights, at most 120
iterations, until the cosine with the signal exceeds 0.9.

Criterion: (1) θ, q₀, q₁ and V change by at most 0.5 %, and F is equal to the published value within 1e-6; (2) recovery
at the smallest α with published recovery and not at the α before; (3) is reported. (Page "Survey propagation".)
"""

from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK
from gamp_attention.extensions.rsb.one_field import OneField
from gamp_attention.extensions.rsb.weights import Levels
from gamp_attention.problem.starts import several_starts
from gamp_attention.problem.symmetries import agreement_of
from validation._tools.drawing import figure
from validation._tools.glasses import AmplitudeLoss, amplitude_model
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table


class Row(NamedTuple):
    """Published overlaps at the largest α without recovery, and the smallest α with recovery."""

    alpha: float
    q0: float
    q1: float
    theta: float
    V: float
    F: float
    recovery: float


PUBLISHED = {  # by Parisi parameter
    1: Row(2.025, 0.152861, 1.849140, 0.254288, 2.177624, 0.0359271, 2.05),
    2: Row(1.85, 0.262985, 1.996192, 0.309965, 2.070918, 0.0208296, 1.875),
    5: Row(1.65, 0.271674, 2.360680, 0.231270, 1.829483, 0.0093376, 1.675),
    10: Row(1.575, 0.352913, 2.489109, 0.240259, 1.559393, 0.0088811, 1.6),
    20: Row(1.525, 0.394111, 2.511077, 0.255827, 1.420833, 0.0079468, 1.55),
    50: Row(1.45, 0.438360, 2.363244, 0.322956, 1.454324, 0.0048877, 1.475),
    100: Row(1.375, 0.571244, 2.026199, 0.476521, 1.665173, 0.0027908, 1.4),
}
LAM = 1e-3
NEAR, SAME = 5e-3, 1e-6  # largest relative change of overlaps, and difference of F
ITERATED, WEAK, RECOVERED, AT_REST, MOST = 20, 0.05, 0.9, 1e-6, 1000  # largest y, and settings of state evolution
SINGLE_PARISI, SINGLE_ALPHAS, DIM, INSTANCES = 5.0, (1.5, 1.6, 1.7, 1.8, 2.0, 2.5), 300, 12
STEP, N_ITER = 0.4, 120


def build_problem(alpha):
    """Return the equations of one step of replica symmetry breaking."""
    return OneField(amplitude_model(0.0, LAM), alpha)


def insert_published(y, row):
    """Return the published overlaps after one iteration of the equations, and F."""
    problem, parisi = build_problem(row.alpha), np.array([float(y)])
    levels = Levels(np.array([[row.q0], [row.q1]]), np.zeros(1), np.array([row.theta]), np.array([row.V]))
    hats = problem.hats(levels, parisi, resolution=3)
    new = problem.weights.step(hats, parisi)
    values = {"q0": new.q[0, 0], "q1": new.q[1, 0], "theta": new.theta[0], "V": new.V[0]}
    values["F"] = problem.weights.free_energy(levels, hats, parisi)
    return [{name: float(value) for name, value in values.items()}]


def insert(y):
    """Return the published overlaps at a Parisi parameter after one iteration."""
    return insert_published(y, PUBLISHED[y])[0]


def iterate(y, alpha):
    """Return the end of state evolution of undamped survey propagation from a weak overlap with the signal."""
    problem, parisi, row = build_problem(alpha), np.array([float(y)]), PUBLISHED[y]
    levels = Levels(np.array([[WEAK**2], [row.q1]]), np.zeros(1), np.array([WEAK]), np.array([row.V]))
    n_iter, theta, change = 0, WEAK, np.inf
    while n_iter < MOST and theta <= RECOVERED and change >= AT_REST:
        before, levels = levels, problem.weights.step(problem.hats(levels, parisi, resolution=0), parisi)
        n_iter, theta = n_iter + 1, float(levels.theta[0])
        change = abs(theta - float(before.theta[0]))
    return {"n_iter": n_iter, "theta": theta}


def draw_amplitudes(d, alpha, seed):
    """Return data with the amplitudes of a signal, and the signal (d, 1)."""
    rng = np.random.default_rng([d, round(100 * alpha), seed])
    tokens, signal = rng.standard_normal((round(alpha * d), d)), rng.standard_normal((d, 1))
    return ga.LabelledDataset(tokens, np.abs(tokens @ signal)[:, 0] / np.sqrt(d), AmplitudeLoss(), lam=LAM), signal


def run_single(d, alpha, seed):
    """Return the cosine with the signal at the end of one survey from random weights."""
    data, signal = draw_amplitudes(d, alpha, seed)
    state, _ = ga.initial_survey(data, "exact", several_starts(data, "random", 1, seed)[0][1])
    n_iter, cosine = 0, 0.0
    while n_iter < N_ITER and cosine <= RECOVERED:
        state, _ = ga.survey_step(data, "exact", state, STEP, SINGLE_PARISI, jumps=True)
        n_iter, cosine = n_iter + 1, agreement_of(data, state.Q, signal)
    return {"cosine": float(cosine), "n_iter": n_iter}


def plan(quick):
    """Return the Parisi parameters and α of all rows."""
    ys = (1, 5) if quick else PUBLISHED
    iterated = [] if quick else [y for y in PUBLISHED if y <= ITERATED]
    alphas, d, n = ((2.5,), 100, 1) if quick else (SINGLE_ALPHAS, DIM, INSTANCES)
    return {
        insert: [{"y": y} for y in ys],
        iterate: [{"y": y, "alpha": alpha} for y in iterated for alpha in (PUBLISHED[y].alpha, PUBLISHED[y].recovery)],
        run_single: [{"d": d, "alpha": alpha, "seed": seed} for seed in range(n) for alpha in alphas],
    }


def judge(verdict, inserted, iterated, singles):
    """Check inserted overlaps and recovery of state evolution against published values."""
    lines = []
    for row in inserted:
        y, published = row["y"], PUBLISHED[row["y"]]
        largest = max(abs(row[name] / getattr(published, name) - 1) for name in ("q0", "q1", "theta", "V"))
        gap = abs(row["F"] - published.F)
        text = f"y = {y}: published overlaps change by at most {100 * largest:.2f} %, and F by {gap:.1e}"
        verdict.check(largest <= NEAR and gap <= SAME, text)
        cells = [f"{getattr(published, name):.4f}, {row[name]:.4f}" for name in ("theta", "q0", "q1", "V")]
        ends = {each["alpha"]: each["theta"] for each in iterated if each["y"] == y}
        words = "; ".join(f"α = {alpha:g}: θ = {theta:.3f}" for alpha, theta in ends.items()) or "–"
        energy = f"{published.F:.6f}, {row['F']:.6f}"
        lines.append([str(y), f"{published.recovery:g}", f"{published.alpha:g}", *cells, energy, words])
    for row in iterated:
        expected = row["alpha"] >= PUBLISHED[row["y"]].recovery
        text = f"y = {row['y']}, α = {row['alpha']:g}: θ = {row['theta']:.3f} after {row['n_iter']} iterations"
        verdict.check((row["theta"] > RECOVERED) == expected, text + (", recovery" if expected else ", no recovery"))
    heads = ["y", "published: recovery from α =", "before, at α =", "θ", "q₀", "q₁", "V", "F", "iterated from θ = 0.05"]
    verdict.write_table(markdown_table(heads, lines))
    counts = {}
    for alpha in sorted({row["alpha"] for row in singles}):
        recovered = [row["cosine"] > RECOVERED for row in singles if row["alpha"] == alpha]
        counts[f"{alpha:g}"] = [sum(recovered), len(recovered)]
    return {"iterated": [[row["y"], row["alpha"], row["theta"]] for row in iterated], "single": counts}


def draw(numbers, path):
    """Draw the published α of recovery against y, and the fraction of recovering single surveys at one y."""
    with figure(path, 1, 2, (9.0, 3.8)) as axes:
        line, fractions = axes[0]
        ys = np.array(list(PUBLISHED))
        alphas = [row.recovery - 0.0125 for row in PUBLISHED.values()]
        line.errorbar(ys, alphas, 0.0125, fmt="o", color=DARK, capsize=3, label="published")
        for recovers, color, marker in ((True, "#009E73", "^"), (False, "#D55E00", "v")):
            points = [(y, alpha) for y, alpha, theta in numbers["iterated"] if (theta > RECOVERED) == recovers]
            label = "our state evolution: " + ("recovery" if recovers else "no recovery")
            line.plot(*np.transpose(points), marker, color=color, ms=5, label=label)
        line.set(xscale="log", xlabel="Parisi parameter y", ylabel="α from which the signal is recovered")
        line.set_xticks(ys, [f"{y}" for y in ys])
        line.minorticks_off()
        line.legend(frameon=False)
        k, n = np.transpose(list(numbers["single"].values()))
        style = {"fmt": "o-", "color": "#0072B2", "capsize": 3, "label": f"one survey, d = {DIM}"}
        fractions.errorbar(list(map(float, numbers["single"])), 100 * k / n, 100 * np.sqrt(k * (n - k) / n**3), **style)
        published = PUBLISHED[int(SINGLE_PARISI)]
        fractions.axvspan(published.alpha, published.recovery, color=DARK, alpha=0.25, lw=0, label="published, d → ∞")
        fractions.set(xlabel="α", ylabel="signal recovered, %", title=f"y = {SINGLE_PARISI:g}, random weights")
        fractions.legend(frameon=False)


def main():
    run_claim("survey_recovery", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
