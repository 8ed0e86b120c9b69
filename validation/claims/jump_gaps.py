"""How far minima at finite d are from replica symmetry where the proximal map jumps, and what predicts it.

State evolution is solved in both forms of V̂ for models on their positional branch, and some on the semantic one, and
minima are found by message passing, finished by L-BFGS where it does not converge. V of the minima is compared with
three numbers of the predictions: the shift, which is the change of V when the weights are given V̂ without the jumps at
Stein's fixed point; the difference of the two fixed points; and the jump mass. Each fit is V's gap = factor × number,
with the scatter of the factor over models that errors do not explain.

Criterion: the jump mass is nowhere positive. All minima have a gradient norm of at most 1e-8. On every branch that
exists and jumps, V of the minima is below Stein's by 1.35 times the shift, to 20 % of this and three standard errors;
so it is for models chosen after 1.35 was measured, at other d and for minima of L-BFGS alone. The scatter of the factor
is below 10 %, and over five times as large for the jump mass. Without jumps there is no gap. The gap of q lies between
0 and that of the derivative's fixed point, and the training loss has none, to three standard errors.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention._core.display import plain
from gamp_attention.data.risk import overlaps, risk_at, susceptibility
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.weights import jump_shift
from gamp_attention.state_evolution.fixed_points.stability import GAP_PER_SHIFT, NEGLIGIBLE_JUMPS
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.trials import run_trials
from validation.claims._jump_rows import rows
from validation.claims._jump_table import draw, markdown, scattered

D, SEEDS, OTHER_D = 800, 8, {400: 16, 1600: 6}
QUICK_D, QUICK_SEEDS, QUICK_RTOL = 200, 6, 1e-2
MAX_ITER = 200  # of message passing, before L-BFGS goes on
RISK, TOL = "asymptotic", 1e-8
FORMS = ("stein", "derivative")
ON_BRANCH = 0.5  # of the prediction's m or θ, at least, at a minimum that belongs to the branch
WITHIN, SCATTER, WORSE = 0.2, 0.1, 5  # of the relation, see the criterion
QUICK_WITHIN = 0.4


def prediction(name, rtol):
    """Both fixed points of a row, and what could tell how far minima are from them."""
    row, found = rows()[name], {}
    for form in FORMS:
        se = ga.solve_state_evolution(row.model, row.alpha, row.branch, response=form, rtol=rtol, stability=False)
        found[form] = {
            "status": se.status.value, "error": se.relative_error, **se.overlaps.arrays(), "train_loss": se.train_loss,
            "test_error": se.test_error, "V_hat": se.V_hat, "jump_mass": se.jump_mass, "replicon": se.replicon,
            "jump_mass_error": se.jump_mass_error, "validity": se.validity,
        }  # fmt: skip
    return plain(found)


def minimum(name, d, seed, method):
    """A minimum of the risk of one instance, from the start of the branch by message passing or by L-BFGS alone."""
    row = rows()[name]
    data = ga.sample(row.model, d, row.alpha, np.random.default_rng([d, seed]))
    Q, how = row.branch, "descent"
    if method == "gamp":
        run = ga.run_gamp(data, row.branch, RISK, max_iter=MAX_ITER)
        Q, how = run.Q, run.status.value
    if how not in ("converged", "settled"):
        Q = ga.minimize_risk(data, Q, RISK, "lbfgs").Q
    at = risk_at(data, Q, RISK)
    found = overlaps(data, Q, susceptibility(data, at, Q))
    return plain(found.arrays() | {"train_loss": at.train_loss, "gradient_norm": at.gradient_norm, "how": how})


def collect(found):
    """Predictions by name, and minima of all rows."""
    names = [row.name for row in rows().values() if row.quick or not found.quick]
    more = [name for name in names if rows()[name].more]
    d, seeds = (QUICK_D, QUICK_SEEDS) if found.quick else (D, SEEDS)
    with pool(found) as executor:
        cells = folder(found, "jump_gaps")
        wanted = [{"name": name, "rtol": QUICK_RTOL if found.quick else rows()[name].rtol} for name in names]
        predicted = {row["name"]: row for row in run_trials(cells / "predictions", prediction, wanted, executor)}
        plan = [(name, d, seed, "gamp") for name in names for seed in range(seeds)]
        plan += [(name, d, seed, "lbfgs") for name in more for seed in range(seeds)]
        if not found.quick:
            sizes = [(size, seed) for size, many in OTHER_D.items() for seed in range(many)]
            plan += [(name, size, seed, "gamp") for size, seed in sizes for name in more]
        wanted = [dict(zip(("name", "d", "seed", "method"), each, strict=True)) for each in plan]
        return predicted, run_trials(cells / "minima", minimum, wanted, executor)


def arrays(row):
    """Lists of a stored row as arrays."""
    return {key: np.array(value, dtype=float) if isinstance(value, list) else value for key, value in row.items()}


def shift_of(model, se):
    """`jump_shift` at a stored fixed point: V of the ridge depends on no other hats."""
    zero = np.zeros_like(se["m"])
    V, mass = se["V_hat"], se["jump_mass"]
    return jump_shift(model, Hats(zero, 0 * se["q"], 0 * se["theta"], V, V - mass, np.zeros(0), 0.0, 0.0))


def part_of(row, predicted, minima, d, method):
    """Gaps of minima at one d to Stein's fixed point, relative, m in units of √q; None where there is no branch."""
    stein, derivative = arrays(predicted["stein"]), arrays(predicted["derivative"])
    if "lost" in (stein["status"], derivative["status"]):
        return None
    order = "m" if row.branch == "positional" else "theta"

    def share(run, key):
        """Of the prediction's m or θ, along it; branches come with either sign."""
        return abs((run[key] * stein[key]).sum()) / (stein[key] ** 2).sum()

    runs = [arrays(run) for run in minima if (run["name"], run["d"], run["method"]) == (row.name, d, method)]
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
        "shift": shift_of(row.model, stein),
        "forms": {key: derivative[key].mean() / stein[key].mean() - 1 for key in ("V", "q")},
        "gaps": {key: mean_and_error(values) for key, values in gaps.items()},
    }  # fmt: skip


def mean_and_error(values):
    """Mean and standard error of those that are known."""
    known = np.array([value for value in values if np.isfinite(value)])
    return (known.mean(), known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else (np.nan, np.nan)


def excess(part, within):
    """How far V's gap is from the relation, in units of what is allowed."""
    gap, error = part["gaps"]["V"]
    expected = GAP_PER_SHIFT * part["shift"]
    return abs(gap - expected) / (within * abs(expected) + 3 * error)


def told(bad):
    """Names after a count, where there are any."""
    return f", not for {'; '.join(bad)}" if bad else ""


def judge(verdict, parts, quick):
    """The criterion, for one row of gaps for each model, d and method."""
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
        "minima of L-BFGS alone": [part for part in jumping if part["method"] == "lbfgs"],
    }
    for words, group in groups.items():
        if group:
            bad = [part["name"] for part in group if not excess(part, QUICK_WITHIN if quick else WITHIN) <= 1]
            verdict.check(not bad, f"{words}: V is as predicted in {len(group) - len(bad)} of {len(group)}{told(bad)}")
    smooth = [part for part in parts if part not in jumping]
    bad = [p["name"] for p in smooth if not abs(p["gaps"]["V"][0]) <= 3 * p["gaps"]["V"][1] + 1 / p["d"]]
    if quick:
        return {}
    verdict.check(not bad, f"without jumps V has no gap in {len(smooth) - len(bad)} of {len(smooth)}{told(bad)}")
    numbers = {"shift": [p["shift"] for p in main], "forms": [p["forms"]["V"] for p in main]}
    numbers |= {"jump mass": [p["jump_share"] for p in main]}
    fits = {name: scattered(values, [part["gaps"]["V"] for part in main]) for name, values in numbers.items()}
    for name, (factor, spread) in fits.items():
        print(f"gap of V = {factor:.3f} × {name}, scatter over models {spread / factor:.1%}")
    factor, spread = fits["shift"]
    verdict.check(spread <= SCATTER * factor, f"gap of V = {factor:.2f} × shift, to {spread / factor:.0%} over models")
    other = fits["jump mass"][1] / fits["jump mass"][0]
    verdict.check(other > WORSE * spread / factor, f"the jump mass by itself has a scatter of {other:.0%}")
    for key, low in (("q", [part["forms"]["q"] for part in main]), ("train_loss", [0.0] * len(main))):
        away = [
            max(gap, least - gap, 0) / error
            for (gap, error), least in zip((part["gaps"][key] for part in main), low, strict=True)
        ]
        words = "between both fixed points" if key == "q" else "Stein's"
        verdict.check(sum(a > 3 for a in away) == 0, f"{key} is {words} in all, to {max(away):.1f} standard errors")
    largest = {key: min(part["gaps"][key][0] for part in main) for key in ("V", "q")}
    return fits | {"models": len(main), "largest": largest}


def main():
    found = options(__doc__, draw=True, workers=True)
    verdict = Verdict("jump_gaps", found)
    if found.draw:
        parts, fits = verdict.stored()["parts"], verdict.stored()["fits"]
    else:
        predicted, minima = collect(found)
        worst = max(run["gradient_norm"] for run in minima)
        verdict.check(worst <= 1.01 * TOL, f"gradient norms of all {len(minima)} minima are at most {worst:.1e}")
        places = dict.fromkeys((run["name"], run["d"], run["method"]) for run in minima)
        parts = [part_of(rows()[name], predicted[name], minima, d, method) for name, d, method in places]
        parts = plain([part for part in parts if part is not None and part["n"] > 1])
        print(f"{sum(part['left'] for part in parts)} minima are on another branch and left out")
        fits = plain(judge(verdict, parts, found.quick))
    verdict.path(".md").write_text(markdown(parts))
    draw(parts, verdict.path(".png"))
    if not found.draw:
        verdict.end({"parts": parts, "fits": fits})


if __name__ == "__main__":
    main()
