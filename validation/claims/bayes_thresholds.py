"""Thresholds of Bayes-optimal estimation agree with closed forms and with published values.

Method: attention of two to four tokens has weak recovery at 1/(L (L + 1)) and full recovery at 1/L: by integrals and
the curve of fixed points, and by the linearized channel over random samples. Phase retrieval, binary weights learnt
from signs and sparse weights seen without noise have thresholds in the literature. Noise on the scores increases the
weak-recovery threshold and excludes full recovery.

Criterion: thresholds with a closed form are found within twice their stated errors (half-widths of 95 %) plus 1e-6;
published thresholds within their published digits. There is a hard phase exactly where one is expected. (Bayes page of
the manual.)
"""

from dataclasses import replace

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import markdown_table

SIGNS = ga.CoordinateLaw([0.5, 0.5], np.ones((2, 1)), np.zeros((2, 1)), [[1.0], [-1.0]], np.zeros((2, 1, 1)))
SPARSE = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.1), n_tokens=1)
# for each name weak recovery, full recovery and hard phase: values with the error of the last published digit
KNOWN = {
    "attention, L = 2": ((1 / 6, 0), (1 / 2, 0), None),
    "attention, L = 3": ((1 / 12, 0), (1 / 3, 0), None),
    "attention, L = 4": ((1 / 20, 0), (1 / 4, 0), None),
    "phase retrieval": ((1 / 2, 0), (1.128, 1e-3), ((1.0, 0), (1.128, 1e-3))),
    "binary weights, signs": ((0.0, 0), (1.493, 2e-3), ((1.245, 2e-3), (1.493, 2e-3))),
    "sparse weights, linear": ((0.0, 0), (0.21, 5e-3), ((0.1, 1e-3), (0.21, 5e-3))),
}
WEAK = {name: KNOWN[name][0][0] for name in list(KNOWN)[:3]}
NOISES, QUICK_NOISES = (0.1, 0.2, 0.4), (0.4,)
ALPHAS = {"attention, L = 2": 0.6, "attention, L = 3": 0.4, "attention, L = 4": 0.3, "phase retrieval": 1.3}


def build_model(name, noise=0.0):
    """Return the problem of a name."""
    if name.startswith("attention"):
        return ga.attention_model(int(name.split("L = ")[1][0]), sigma=1.0 if noise else 0.5, score_noise=noise)
    if name == "phase retrieval":
        return ga.glm_model(ga.PhaseRetrievalLoss())
    if name.startswith("binary"):
        return replace(ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0)), coordinates=SIGNS)
    return replace(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.0)), coordinates=SPARSE)


def compute_thresholds(name, n_points, n_replicas):
    """Return all thresholds of a problem."""
    return ga.bayes_thresholds(build_model(name), n_points=n_points, n_replicas=n_replicas).to_dict()


def linearize(name, noise, n_points, n_replicas):
    """Return the weak-recovery threshold by the channel over random samples, with its half-width."""
    from gamp_attention._tools.statistics import half_width
    from gamp_attention.extensions.bayes.equations import Equations

    rng, values = np.random.default_rng(0), []
    for _ in range(n_replicas):
        equations = Equations(build_model(name, noise), n_points, rng)
        growth = equations.growth_map(np.zeros_like(equations.rho), np.arange(equations.rho.shape[1]))
        values.append(1 / np.linalg.eigvals(growth).real.max())
    values = np.array(values)
    return {"value": float(values.mean()), "half": float(half_width(values))}


def solve_curve(name, alpha):
    """Return the overlap at one α, from no hint and from the teacher."""
    both = [
        ga.solve_bayes_state_evolution(build_model(name), alpha, init, n_points=256)
        for init in ("uninformed", "informed")
    ]
    size = np.trace(build_model(name).coordinates.rho[0]) / build_model(name).coordinates.trace[0]
    return {"q": [float(np.trace(each.q) / size) for each in both]}


def check_problem(verdict, name, thresholds):
    """Check one problem and return its row of the table."""
    weak, full, hard = KNOWN[name]
    pairs = [("weak recovery", thresholds["weak_recovery"], thresholds["weak_recovery_error"], weak),
             ("full recovery", thresholds["full_recovery"], thresholds["full_recovery_error"], full)]  # fmt: skip
    if hard is not None and thresholds["hard"] is not None:
        for end, value, error, wanted in zip(
            ("from", "to"), thresholds["hard"], thresholds["hard_error"], hard, strict=True
        ):
            pairs.append((f"hard phase {end}", value, error, wanted))
    for what, value, error, (wanted, digits) in pairs:
        text = f"{name}: {what} at {plus_minus(value, error)}, known {wanted:.6g}"
        verdict.check(abs(value - wanted) <= digits + 2 * error + 1e-6, text)
    verdict.check(
        (hard is None) == (thresholds["hard"] is None), f"{name}: hard phase {thresholds['hard'] or 'nowhere'}"
    )
    cells = [f"{value:.5f}" for _, value, _, _ in pairs[:2]]
    cells.append("–" if thresholds["hard"] is None else " to ".join(f"{end:.4f}" for end in thresholds["hard"]))
    cells.append(f"{weak[0]:.4g}, {full[0]:.4g}" + ("" if hard is None else f", {hard[0][0]:.4g} to {hard[1][0]:.4g}"))
    return [name, *cells]


def draw(numbers, path):
    """Draw the overlap of the fixed points against α, from no knowledge and from the teacher."""
    with figure(path, 1, 1, (7.5, 4.6)) as axes:
        axis = axes[0, 0]
        for k, name in enumerate(ALPHAS):
            mine = [row for row in numbers["curves"] if row["name"] == name]
            alphas, q = [row["alpha"] for row in mine], np.array([row["q"] for row in mine])
            axis.plot(alphas, q[:, 0], color=f"C{k}", label=name.replace("L = ", "tokens: "))
            axis.plot(alphas, q[:, 1], ":", color=f"C{k}", lw=2.5)
            axis.axvline(KNOWN[name][0][0], color=f"C{k}", lw=0.8, ls="--")
        axis.plot([], [], color=DARK, label="start without knowledge")
        axis.plot([], [], ":", color=DARK, lw=2.5, label="start from the teacher")
        axis.plot([], [], "--", color=DARK, lw=0.8, label="weak recovery, known value")
        axis.set(xlabel=ALPHA, ylabel="overlap with the teacher, 1 = complete")
        draw_legend(axis, columns=3)


def plan(quick):
    """Return the problems, the linearized channels, and the points of the curves."""
    size = {"n_points": 1024, "n_replicas": 4} if quick else {"n_points": 1 << 14, "n_replicas": 8}
    few = {"n_points": 256 if quick else 2048, "n_replicas": 4}
    lines = [{"name": name, "noise": 0.0} | size for name in WEAK]
    lines += [{"name": "attention, L = 2", "noise": noise} | few for noise in (QUICK_NOISES if quick else NOISES)]
    alphas = {name: np.linspace(0, last, 7 if quick else 41)[1:] for name, last in ALPHAS.items()}
    return {
        compute_thresholds: [
            {"name": name, "n_points": 64, "n_replicas": 4} for name in list(KNOWN)[: 4 if quick else None]
        ],
        linearize: lines,
        solve_curve: [{"name": name, "alpha": float(alpha)} for name in ALPHAS for alpha in alphas[name]],
    }


def judge(verdict, rows, linear, curves):
    """Check thresholds against known values."""
    table = [check_problem(verdict, row["name"], row) for row in rows]
    for row in linear:
        shown = plus_minus(row["value"], row["half"])
        if not row["noise"]:
            text = f"{row['name']}: weak recovery {shown} by random samples, known {WEAK[row['name']]:.5f}"
            verdict.check(abs(row["value"] - WEAK[row["name"]]) <= 2 * row["half"], text)
        table.append([f"{row['name']}, random samples, s = {row['noise']:g}", shown, "", "", ""])
    noisy = [1 / 6, *(row["value"] for row in linear if row["noise"])]
    verdict.check(sorted(noisy) == noisy, "noise on the scores takes more samples, and more of it more")
    heads = ("problem", "weak recovery", "full recovery", "hard phase", "known")
    verdict.write_table(markdown_table(heads, table))
    return {"curves": curves}


def main():
    run_claim("bayes_thresholds", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
