"""V of finite-d minima is below replica symmetry by 1.35 times the shift if the proximal map jumps.

Method: state evolution is solved with both forms of V̂ for models on their positional branch, and some on the semantic
branch. Minima are found by message passing and, if it does not converge, L-BFGS. V of the minima is compared with three
predicted numbers: the shift, which is the change of V if the weights are updated with V̂ without the jumps at Stein's
fixed point; the difference of the two fixed points; and the jump mass. Each fit is gap of V = factor × number, with the
scatter of the factor over models beyond the errors.

Criterion: the jump mass is nowhere positive. All minima have a gradient norm of at most 1e-8. On every branch that
exists and jumps, V of the minima is below Stein's by 1.35 times the shift, to 20 % of this and three standard errors;
the same holds for models chosen after 1.35 was measured, at other d and for minima of L-BFGS. The scatter of the factor
is below 10 %, and over five times as large for the jump mass. Without jumps there is no gap. The gap of q is between 0
and the gap of the derivative's fixed point, and the training loss has no gap, to three standard errors. (State
evolution page of the manual.)

Running time with --quick: about 20 s on one core, after compilation.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

import gamp_attention as ga
from gamp_attention._tools.display import to_json
from gamp_attention.extensions.comparison.figures import COLORS, DARK, draw_legend
from gamp_attention.problem.risk import overlaps, risk_at
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.weights import jump_shift
from gamp_attention.theory.fixed_points.observables import GAP_PER_SHIFT, NEGLIGIBLE_JUMPS
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table
from validation.claims.general_models import build_mixture, build_teacher


class Row(NamedTuple):
    """A model on one of its branches; append a row to `list_rows` to extend the table.

    `quick` rows are part of the reduced run; `more` rows have L-BFGS and other d, too. `held_out` rows were chosen
    after the relation had been found on the others.
    """

    name: str
    model: ga.Model
    alpha: float = 1.5
    branch: str = "positional"
    quick: bool = False
    more: bool = False
    held_out: bool = False
    rtol: float = 1e-3


def list_rows():
    """Return every row by name."""
    paper, build, law = ga.paper_model, ga.attention_model, ga.coordinate_law
    power = build(coordinates=law(ga.power_law_spectrum(1.0, 8)))
    mild = build(coordinates=law(ga.power_law_spectrum(0.5, 8)))
    large, other, mixed = [[5, -3], [2, 4]], [[0.3, 0.7], [0.8, 0.2]], [[2, -1], [-1, 2]]
    three = ga.mixture_model([[0.5, 0, 0], [0, 0.3, 0], [0, 0, 0.2]], [[0.3, 0, -0.5], [0.2, 0.1, -0.3]])
    spread = ga.mixture_model(np.diag([0.6, 0.3, 0.1]), [[0.2, 0.4, 0.8], [-0.2, -0.1, 0.3]], sigma=0.45)
    causal = ga.DotProductAttention(causal=True)
    table = [
        Row("paper", paper(0.3), quick=True, more=True),
        Row("α = 0.5", paper(0.3), 0.5),
        Row("α = 1", paper(0.3), 1.0),
        Row("α = 2", paper(0.3), 2.0),
        Row("ω = 0.15, α = 1", paper(0.15), 1.0, more=True),
        Row("ω = 0.15, α = 0.5", paper(0.15), 0.5),
        Row("ω = 0.5", paper(0.5)),
        Row("ω = 0.8", paper(0.8)),
        Row("σ = 0.35", paper(0.3, 0.35)),
        Row("σ = 0.6, α = 0.7", paper(0.3, 0.6), 0.7),
        Row("λ = 0.005, α = 1", paper(0.3, lam=0.005), 1.0),
        Row("λ = 0.015", paper(0.3, lam=0.015)),
        Row("A = [[5, −3], [2, 4]], ω = 0.5, α = 2", paper(0.5, A=large), 2.0, quick=True, more=True),
        Row("A = [[5, −3], [2, 4]], ω = 0.5, α = 1", paper(0.5, A=large), 1.0),
        Row("A = [[5, −3], [2, 4]], ω = 0.3, α = 1", paper(0.3, A=large), 1.0),
        Row("A = [[2, −1], [−1, 2]], α = 1", paper(0.3, A=mixed), 1.0),
        Row("A = [[2, −1], [−1, 2]], ω = 0.6, α = 2", paper(0.6, A=mixed), 2.0),
        Row("A = [[0.3, 0.7], [0.8, 0.2]], α = 0.7", paper(0.3, A=other), 0.7),
        Row("power law a = 1, α = 0.5", power, 0.5, more=True),
        Row("power law a = 1, α = 0.8", power, 0.8),
        Row("power law a = 0.5, α = 1", mild, 1.0),
        Row("two classes, means 0.2", build_mixture(0.2)),
        Row("two classes, means 0.5, α = 1", build_mixture(0.5), 1.0),
        Row("three classes", three, more=True),
        Row("three classes, α = 0.7", three, 0.7),
        Row("teacher at temperature 0.5, α = 0.7", build(teacher=build_teacher(temperature=0.5)), 0.7),
        Row("teacher at temperature 2, α = 1", build(teacher=build_teacher(temperature=2.0)), 1.0),
        Row("student at temperature 0.5, α = 0.7", build(student=ga.DotProductAttention(0.5)), 0.7),
        Row("student at temperature 2", build(student=ga.DotProductAttention(2.0))),
        Row("causal", build(student=causal, teacher=build_teacher(causal=True)), held_out=True),
        Row("σ_l = 0.4, 0.6", build(sigma=[0.4, 0.6]), held_out=True),
        Row("τ = (1, −0.5), α = 1", build(tau=[1, -0.5]), 1.0, held_out=True),
        Row("λ = 0.02, ω = 0.15", paper(0.15, lam=0.02), held_out=True),
        Row("A = [[1, 0], [0, 1]], ω = 0.2", paper(0.2, A=[[1, 0], [0, 1]]), held_out=True),
        Row("three classes, means 0.2 to 0.8, α = 0.5", spread, 0.5, held_out=True),
        Row("semantic", paper(0.3), branch="semantic", quick=True),
        Row("semantic, σ = 0.8", paper(0.3, 0.8), branch="semantic"),
        Row("semantic, power law a = 1", power, branch="semantic"),
        Row("semantic, teacher at temperature 2", build(teacher=build_teacher(temperature=2.0)), branch="semantic"),
    ]  # fmt: skip
    return {row.name: row for row in table}


D, SEEDS, OTHER_D = 800, 8, {400: 16, 1600: 6}
QUICK_D, QUICK_SEEDS, QUICK_RTOL = 200, 6, 1e-2
MAX_ITER = 200  # iterations of message passing, before L-BFGS continues
RISK, TOL = "asymptotic", 1e-8
FORMS = ("stein", "derivative")
ON_BRANCH = 0.5  # m or θ of a minimum on the branch, at least, in units of the prediction
WITHIN, SCATTER, WORSE = 0.2, 0.1, 5  # allowed deviation, scatter and ratio of scatters, see the criterion
QUICK_WITHIN = 0.4


def predict(name, rtol):
    """Return both fixed points of a row, and the numbers that may predict the gap."""
    row, solutions = list_rows()[name], {}
    for form in FORMS:
        se = ga.solve_state_evolution(row.model, row.alpha, row.branch, response=form, rtol=rtol, stability=False)
        solutions[form] = {
            "status": se.status.value, "error": se.relative_error, **se.overlaps.arrays(), "train_loss": se.train_loss,
            "test_error": se.test_error, "V_hat": se.V_hat, "jump_mass": se.jump_mass, "replicon": se.replicon,
            "jump_mass_error": se.jump_mass_error, "validity": se.validity,
        }  # fmt: skip
    return to_json(solutions)


def find_minimum(name, d, seed, method):
    """Return a minimum for one instance, from the start of the branch, by message passing or L-BFGS."""
    row = list_rows()[name]
    data = ga.sample(row.model, d, row.alpha, np.random.default_rng([d, seed]))
    Q, how = row.branch, "descent"
    if method == "gamp":
        run = ga.run_gamp(data, row.branch, RISK, max_iter=MAX_ITER)
        Q, how = run.Q, run.status.value
    if how not in ("converged", "settled"):
        Q = ga.minimize_risk(data, Q, RISK, "lbfgs").Q
    at = risk_at(data, Q, RISK)
    values = overlaps(data, Q, susceptibility(data, at, Q))
    return to_json(values.arrays() | {"train_loss": at.train_loss, "gradient_norm": at.gradient_norm, "how": how})


def collect(args):
    """Return predictions by name, and minima of all rows."""
    names = [row.name for row in list_rows().values() if row.quick or not args.quick]
    more = [name for name in names if list_rows()[name].more]
    d, seeds = (QUICK_D, QUICK_SEEDS) if args.quick else (D, SEEDS)
    with pool(args) as executor:
        cells = folder(args, "jump_gaps")
        wanted = [{"name": name, "rtol": QUICK_RTOL if args.quick else list_rows()[name].rtol} for name in names]
        predicted = {row["name"]: row for row in run_trials(cells / "predictions", predict, wanted, executor)}
        plan = [(name, d, seed, "gamp") for name in names for seed in range(seeds)]
        plan += [(name, d, seed, "lbfgs") for name in more for seed in range(seeds)]
        if not args.quick:
            sizes = [(size, seed) for size, many in OTHER_D.items() for seed in range(many)]
            plan += [(name, size, seed, "gamp") for size, seed in sizes for name in more]
        wanted = [dict(zip(("name", "d", "seed", "method"), each, strict=True)) for each in plan]
        return predicted, run_trials(cells / "minima", find_minimum, wanted, executor)


def to_arrays(row):
    """Return a stored row with lists as arrays."""
    return {key: np.array(value, dtype=float) if isinstance(value, list) else value for key, value in row.items()}


def compute_shift(model, se):
    """Return `jump_shift` at a stored fixed point; V of the ridge depends on no conjugates except V̂."""
    zero = np.zeros_like(se["m"])
    V, mass = se["V_hat"], se["jump_mass"]
    return jump_shift(model, Hats(zero, 0 * se["q"], 0 * se["theta"], V, V - mass, np.zeros(0), 0.0, 0.0))


def summarize(row, predicted, minima, d, method):
    """Return relative gaps of minima at one d to Stein's fixed point; m in units of √q; None without a branch."""
    stein, derivative = to_arrays(predicted["stein"]), to_arrays(predicted["derivative"])
    if "lost" in (stein["status"], derivative["status"]):
        return None
    order = "m" if row.branch == "positional" else "theta"

    def share(run, key):
        """Return m or θ along the prediction, in its units; branches have either sign."""
        return abs((run[key] * stein[key]).sum()) / (stein[key] ** 2).sum()

    runs = [to_arrays(run) for run in minima if (run["name"], run["d"], run["method"]) == (row.name, d, method)]
    kept = [run for run in runs if share(run, order) >= ON_BRANCH]
    gaps = {key: [run[key].mean() / stein[key].mean() - 1 for run in kept] for key in ("V", "q")}
    gaps["train_loss"] = [run["train_loss"] / stein["train_loss"] - 1 for run in kept]
    if order == "m":
        size = np.sqrt((stein["m"] ** 2).mean() / stein["q"].mean())
        gaps["m"] = [size * (share(run, "m") - 1) for run in kept]
    return {
        "name": row.name, "alpha": row.alpha, "branch": row.branch, "held_out": row.held_out, "d": d, "method": method,
        "n": len(kept), "left": len(runs) - len(kept), "replicon": stein["replicon"],
        "jump_share": stein["jump_mass"].sum() / stein["V_hat"].sum(),
        "jump_share_error": stein["jump_mass_error"].sum() / abs(stein["V_hat"].sum()),
        "shift": compute_shift(row.model, stein),
        "forms": {key: derivative[key].mean() / stein[key].mean() - 1 for key in ("V", "q")},
        "gaps": {key: compute_mean(values) for key, values in gaps.items()},
    }  # fmt: skip


def compute_mean(values):
    """Return mean and standard error of the finite values."""
    known = np.array([value for value in values if np.isfinite(value)])
    return (known.mean(), known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else (np.nan, np.nan)


def compute_excess(part, within):
    """Return the distance of V's gap from the relation, in units of the allowed distance."""
    gap, error = part["gaps"]["V"]
    expected = GAP_PER_SHIFT * part["shift"]
    return abs(gap - expected) / (within * abs(expected) + 3 * error)


def format_names(bad):
    """Return a list of names for the end of a claim; empty without names."""
    return f", not for {'; '.join(bad)}" if bad else ""


def check_criterion(verdict, parts, quick):
    """Check the criterion on rows of gaps for each model, d and method, and return the fits."""
    jumping = [part for part in parts if abs(part["jump_share"]) > NEGLIGIBLE_JUMPS]
    main = [part for part in jumping if part["method"] == "gamp" and part["d"] == (QUICK_D if quick else D)]
    highest = max(parts, key=lambda part: part["jump_share"] - part["jump_share_error"])
    verdict.check(
        highest["jump_share"] <= highest["jump_share_error"] + 1e-9,
        f"no jump mass is above zero by more than its error: at most {highest['jump_share']:.1e} of V̂",
    )
    groups = {
        "models on which it was found": [part for part in main if not part["held_out"]],
        "models chosen afterwards": [part for part in main if part["held_out"]],
        "other d": [part for part in jumping if part["d"] not in (D, QUICK_D)],
        "minima of L-BFGS": [part for part in jumping if part["method"] == "lbfgs"],
    }
    for words, group in groups.items():
        if group:
            bad = [part["name"] for part in group if not compute_excess(part, QUICK_WITHIN if quick else WITHIN) <= 1]
            verdict.check(
                not bad, f"{words}: V is as predicted in {len(group) - len(bad)} of {len(group)}{format_names(bad)}"
            )
    smooth = [part for part in parts if part not in jumping]
    bad = [p["name"] for p in smooth if not abs(p["gaps"]["V"][0]) <= 3 * p["gaps"]["V"][1] + 1 / p["d"]]
    if quick:
        return {}
    verdict.check(
        not bad, f"without jumps V has no gap in {len(smooth) - len(bad)} of {len(smooth)}{format_names(bad)}"
    )
    numbers = {"shift": [p["shift"] for p in main], "forms": [p["forms"]["V"] for p in main]}
    numbers |= {"jump mass": [p["jump_share"] for p in main]}
    fits = {name: fit_factor(values, [part["gaps"]["V"] for part in main]) for name, values in numbers.items()}
    for name, (factor, spread) in fits.items():
        print(f"gap of V = {factor:.3f} × {name}, scatter over models {spread / factor:.1%}")
    factor, spread = fits["shift"]
    verdict.check(spread <= SCATTER * factor, f"gap of V = {factor:.2f} × shift, to {spread / factor:.0%} over models")
    other = fits["jump mass"][1] / fits["jump mass"][0]
    verdict.check(other > WORSE * spread / factor, f"the jump mass has a scatter of {other:.0%}")
    for key, low in (("q", [part["forms"]["q"] for part in main]), ("train_loss", [0.0] * len(main))):
        away = [
            max(gap, least - gap, 0) / error
            for (gap, error), least in zip((part["gaps"][key] for part in main), low, strict=True)
        ]
        words = "between both fixed points" if key == "q" else "Stein's"
        verdict.check(sum(a > 3 for a in away) == 0, f"{key} is {words} in all, to {max(away):.1f} standard errors")
    largest = {key: min(part["gaps"][key][0] for part in main) for key in ("V", "q")}
    return fits | {"models": len(main), "largest": largest}


HEADS = (
    "model", "α", "d", "minima", "jump mass / V̂", "shift of V", "derivative's V", "V of minima", "over shift", "q",
    "m", "ε_t",
)  # fmt: skip


def fit_factor(x, gaps):
    """Return the factor c of gap = c x, and the scatter of c over models beyond the errors (random effects)."""
    gaps, x = np.array(gaps), np.array(x)
    ratio, error = gaps[:, 0] / x, np.abs(gaps[:, 1] / x)

    def surplus(spread):
        weight = 1 / (error**2 + spread**2)
        return (weight * (ratio - (weight @ ratio) / weight.sum()) ** 2).sum() - (len(x) - 1)

    spread = brentq(surplus, 0, 10 * np.abs(ratio).max()) if surplus(0) > 0 else 0.0
    weight = 1 / (error**2 + spread**2)
    return float((weight @ ratio) / weight.sum()), float(spread)


def format_table(parts):
    """Return a line for each model, d and method."""
    lines = []
    for part in parts:
        gap, error = part["gaps"]["V"]
        jumps = abs(part["jump_share"]) > NEGLIGIBLE_JUMPS
        over = f"{gap / part['shift']:.2f} ± {abs(error / part['shift']):.2f}" if jumps else "–"
        end = [_format_percent(part["gaps"].get(key)) for key in ("q", "m", "train_loss")]
        how = " (L-BFGS)" if part["method"] == "lbfgs" else ""
        cells = [
            part["name"].partition(", α =")[0], f"{part['alpha']:g}", f"{part['d']}{how}", str(part["n"]),
            *(f"{100 * value:.1f} %" for value in (part["jump_share"], part["shift"], part["forms"]["V"])),
            _format_percent(part["gaps"]["V"]), over, *end,
        ]  # fmt: skip
        lines.append(cells)
    return markdown_table(HEADS, lines)


def _format_percent(gap):
    if gap is None:
        return "–"
    return f"{100 * gap[0]:+.1f} ± {100 * gap[1]:.1f} %"


def draw(parts, path):
    """Draw the gap of V against the three numbers that might predict it."""
    d = max({part["d"] for part in parts}, key=[part["d"] for part in parts].count)
    shown = [part for part in parts if part["d"] == d and part["method"] == "gamp"]
    numbers = {
        "predicted shift of $V$ without\njumps in $\\hat V$, %": lambda part: part["shift"],
        "$V$, fixed point with the derivative\nminus fixed point with Stein's form, %": lambda part: part["forms"]["V"],
        "contribution of jumps to $\\hat V$, %\n(logarithmic beyond 5)": lambda part: part["jump_share"],
    }
    with figure(path, 1, len(numbers), (3.25 * len(numbers), 4.4)) as axes:
        for axis, (label, number) in zip(axes[0], numbers.items(), strict=True):
            for part in shown:
                gap, error = part["gaps"]["V"]
                axis.errorbar(
                    100 * number(part), 100 * gap, 200 * error, fmt="s" if part["held_out"] else "o", ms=4, lw=1,
                    color=COLORS[part["branch"]], mfc="none" if part["held_out"] else None,
                )  # fmt: skip
            axis.axhline(0, color=DARK, lw=0.6)
            axis.set_xlabel(label)
        ends = np.array([100 * min(part["shift"] for part in shown), 0])
        factor = GAP_PER_SHIFT
        axes[0, 0].plot(ends, factor * ends, color=DARK, lw=1, label=f"{factor} × shift")
        axes[0, 0].set_ylabel(f"$V$ of minima at d = {d} minus\nstate evolution, %, ± 2 s.e.")
        for branch in dict.fromkeys(part["branch"] for part in shown):
            axes[0, 0].plot([], [], "o", ms=5, color=COLORS[branch], label=f"{branch} branch")
        axes[0, 0].plot([], [], "s", ms=5, mfc="none", color=DARK, label="model chosen after the factor was measured")
        draw_legend(axes[0, 0], columns=4)
        axes[0, 2].set_xscale("symlog", linthresh=5)
        axes[0, 2].set(xlim=(-4000, 2), xticks=(-1000, -100, -10, 0), xticklabels=("−1000", "−100", "−10", "0"))
        axes[0, 2].minorticks_off()


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict = Verdict("jump_gaps", args)
    if args.draw:
        parts, fits = verdict.stored()["parts"], verdict.stored()["fits"]
    else:
        predicted, minima = collect(args)
        worst = max(run["gradient_norm"] for run in minima)
        verdict.check(worst <= 1.01 * TOL, f"gradient norms of all {len(minima)} minima are at most {worst:.1e}")
        places = dict.fromkeys((run["name"], run["d"], run["method"]) for run in minima)
        parts = [summarize(list_rows()[name], predicted[name], minima, d, method) for name, d, method in places]
        parts = to_json([part for part in parts if part is not None and part["n"] > 1])
        print(f"{sum(part['left'] for part in parts)} minima are on another branch and left out")
        fits = to_json(check_criterion(verdict, parts, args.quick))
    verdict.path(".md").write_text(format_table(parts))
    draw(parts, verdict.path(".png"))
    if not args.draw:
        verdict.end({"parts": parts, "fits": fits})


if __name__ == "__main__":
    main()
