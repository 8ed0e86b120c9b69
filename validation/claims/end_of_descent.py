"""The theory of descent predicts where long training ends on the positional branch; the fixed point does not.

Method: replica symmetry is broken on the positional branch, so training does not end at its fixed point. Heavy-ball
descent, whose 150 steps are a training time of 4500, has almost stopped by then at all d (gradients of at most 4e-3),
and L-BFGS continues to zero gradient. `trajectory` predicts the same time with the correction for rare jumps
(`RareResponses`), and with sampled responses only, which miss them at late times. The predicted end is the mean over
the last third of the steps; its error is the spread over replicas plus the drift since the middle third. Instances are
relative to the fixed point for their teacher. Plain descent and descent with more momentum are run on some
instances; the fraction that ends in another minimum is reported.

Criterion: the theory ends within four standard errors (of both) of the descents in q and m; the replica-symmetric fixed
point is more than four standard errors away in q or m. If GAMP ends in another minimum, it is lower in at least three
quarters of the instances. (Dynamics page of the manual.)

Running time with --quick: about 40 s on one core, after compilation.
"""

from dataclasses import replace

import numpy as np

import gamp_attention as ga
from gamp_attention._tools.display import to_json
from gamp_attention.extensions.comparison.figures import COLORS, DARK, GREY, WORDS, draw_legend
from gamp_attention.extensions.dynamics.descent_paths import RareResponses
from validation._tools import landscape as land
from validation._tools.descents import predicted_descent
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table

ALPHA, START = 1.5, "positional"
HOW = {"method": "momentum", "lr": 6.0, "momentum": 0.8}  # a step advances the training time by 30
OTHERS = ({"method": "gd", "lr": 6.0}, {"method": "momentum", "lr": 6.0, "momentum": 0.9})
STEPS, PER_STEP = 150, 30.0
SEEDS = {1000: 12, 2000: 10, 4000: 4, 8000: 1}
QUICK = {300: 4}
WAYS = ("as sampled", "with jumps counted")
REPLICAS = {"n_paths": 4096, "seeds": 4}  # each seed has two replicas
QUICK_REPLICAS = {"n_paths": 1280, "seeds": 2}
KEYS = ("q", "m")
SAME, MAX_ERRORS, DEEPER, MANY_SEEDS = 1e-5, 4.0, 0.75, 4  # ‖ΔQ‖/√d, standard errors, fraction, instances


def predict_path(way, n_paths, seed):
    """Return the means over two replicas of the prediction at every step."""
    rare = RareResponses(min_carriers=0.0 if way == WAYS[0] else 8.0)
    method = replace(predicted_descent(HOW), rare=rare)
    path = ga.trajectory(ga.paper_model(), ALPHA, START, method, STEPS, n_paths=n_paths, n_replicas=2, seed=seed)
    value = path.scalars()
    return {key: value[key].tolist() for key in KEYS} | {"train_loss": path.train_loss.tolist()}


def collect_scalars(overlaps, loss):
    """Return |q|, |m|, |V| and the loss."""
    value = overlaps.scalars()
    return {key: abs(float(value[key])) for key in ("q", "m", "V")} | {"train_loss": loss}


def run_trial(d, seed):
    """Return a descent at every step and at its end, GAMP's minimum, and the fixed point for the instance's teacher."""
    data = ga.sample(ga.paper_model(), d, ALPHA, np.random.default_rng([d, seed]))
    descent = ga.minimize_risk(data, START, "asymptotic", max_iter=STEPS, tol=0, **HOW)
    ended = ga.minimize_risk(data, descent.Q, "asymptotic", "lbfgs", max_iter=2000, tol=1e-6)
    gamp = ga.run_gamp(data, START, "asymptotic")
    se = ga.solve_state_evolution(data.instance_model(), data.alpha, START, rtol=1e-3, stability=False)
    history = {key: np.abs(value).tolist() for key, value in descent.history.scalars().items() if key in KEYS}
    return {
        "path": history | {"train_loss": descent.history.train_loss.tolist()},
        "gradient": descent.gradient_norm, "moved": float(np.linalg.norm(ended.Q - descent.Q) / np.sqrt(d)),
        "descent": collect_scalars(ended.overlaps, ended.train_loss) | {"status": ended.status.value},
        "gamp": collect_scalars(gamp.overlaps, gamp.train_loss) | {"status": gamp.status.value},
        "fixed": collect_scalars(se.overlaps, se.train_loss) | {"status": se.status.value},
        "distance": compute_distance(ended.Q, gamp.Q),
    }  # fmt: skip


def run_other_descents(d, seed):
    """Return the distances ‖ΔQ‖/√d of other descents from the minimum of the heavy ball."""
    data = ga.sample(ga.paper_model(), d, ALPHA, np.random.default_rng([d, seed]))
    ends = []
    for how in (HOW, *OTHERS):
        run = ga.minimize_risk(data, START, "asymptotic", max_iter=400, tol=1e-7, **how)
        ends.append(ga.minimize_risk(data, run.Q, "asymptotic", "lbfgs", max_iter=2000, tol=1e-7).Q)
    return {"apart": [compute_distance(ends[0], Q) for Q in ends[1:]]}


def compute_distance(Q, other):
    """Return ‖ΔQ‖/√d up to the sign."""
    return float(min(np.linalg.norm(Q - sign * other) for sign in (1, -1)) / np.sqrt(len(Q)))


def draw(numbers, path):
    """Draw overlaps along training, and the ends of descents and GAMP's minima against d."""
    with figure(path, 2, 2, (9.6, 6.8)) as axes:
        for row, key in zip(axes, ("q", "m"), strict=True):
            _draw_training(row[0], numbers, key)
            _draw_ends(row[1], numbers, key)
        draw_legend(*axes[0], columns=3)


def _draw_training(axis, numbers, key):
    time, styles = np.array(numbers["times"]), (("--", GREY, "as sampled"), ("-", DARK, "with jumps counted"))
    for theory, (style, color, words) in zip(numbers["theory"].values(), styles, strict=True):
        mean, error = (100 * np.array(theory[key][what]) for what in ("mean", "error"))
        axis.plot(time, mean, style, color=color, label=f"theory, {words}")
        axis.fill_between(time, mean - 2 * error, mean + 2 * error, color=color, alpha=0.2, lw=0)
    d, seen = numbers["followed"], numbers["path"][key]
    axis.errorbar(time, 100 * np.array(seen["mean"]), 200 * np.array(seen["error"]), fmt="o", ms=2.5, lw=0.6,
                  color=COLORS["positional"], label=f"descents, d = {d}, ± 2 s.e.", zorder=0)  # fmt: skip
    axis.axhline(0, color=GREY, lw=0.8)
    axis.set(title=f"{WORDS[key]} during training", xlabel="training time: steps × step size", ylim=(-12, 8))
    axis.set_ylabel("difference to the fixed point, %")


def _draw_ends(axis, numbers, key):
    for name, marker, color in (("descent", "o", COLORS["positional"]), ("gamp", "s", COLORS["semantic"])):
        table = numbers["ends"][name]
        d = np.array([float(each) for each in table])
        mean, error = (100 * land.to_array([table[each][key][what] for each in table]) for what in ("mean", "error"))
        label = {"descent": "ends of descents", "gamp": "minima of GAMP"}[name]
        axis.errorbar(1 / np.sqrt(d), mean, 2 * error, fmt=marker, ms=5, capsize=2, color=color, label=label)
        limit = numbers["limits"][name][key]
        axis.errorbar([0.0], [100 * limit["mean"]], [200 * limit["error"]], fmt=marker, ms=7, mfc="white", color=color)
    ways = zip(numbers["theory"].values(), (-0.001, -0.002), (GREY, DARK), WAYS, strict=True)
    for theory, x, color, words in ways:
        end = theory[key]["end"]
        axis.errorbar([x], [100 * end["mean"]], [200 * end["error"]], fmt="D", ms=5, color=color,
                      label=f"theory, {words}, d → ∞")  # fmt: skip
    axis.axhline(0, color=GREY, lw=0.8)
    axis.set(title=f"{WORDS[key]} at the end", xlabel=r"$1/\sqrt{d}$ (limit $d \to \infty$ at the left)")
    axis.set_ylabel("difference to the fixed point, %")
    axis.plot([], [], "o", ms=7, mfc="white", color=DARK, label="limit d → ∞ of the same color")


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict, sizes = Verdict("end_of_descent", args), QUICK if args.quick else SEEDS
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    size, where = QUICK_REPLICAS if args.quick else REPLICAS, folder(args, verdict.name)
    paths = [{"way": way, "n_paths": size["n_paths"], "seed": seed} for way in WAYS for seed in range(size["seeds"])]
    plan = [{"d": d, "seed": seed} for d, seeds in sizes.items() for seed in range(seeds)]
    with pool(args) as executor:
        predictions = run_trials(where / "theory", predict_path, paths, executor)
        rows = run_trials(where / "instances", run_trial, plan, executor)
        same = run_trials(
            where / "others", run_other_descents, [place for place in plan if place["d"] <= 2000][::4], executor
        )
    numbers = summarize(predictions, rows, sizes) | {"same": [row["apart"] for row in same]}
    table = format_table(numbers)
    verdict.write_table(table)
    check_criterion(verdict, numbers, rows)
    draw(to_json(numbers), verdict.path(".png"))
    verdict.end(numbers)


def compute_mean(values):
    """Return mean and standard error over the first axis."""
    values = np.asarray(values)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
    return {"mean": values.mean(axis=0), "error": spread / np.sqrt(len(values))}


def summarize(predictions, rows, sizes):
    """Return theory and instances relative to the replica-symmetric fixed points, minus one."""
    se = ga.solve_state_evolution(ga.paper_model(), ALPHA, START, rtol=1e-4, stability=False)
    fixed = collect_scalars(se.overlaps, se.train_loss)
    summary = {"times": PER_STEP * np.arange(STEPS + 1), "fixed": fixed, "theory": {}, "ends": {}, "limits": {}}
    third = STEPS // 3
    for way in WAYS:
        mine = [row for row in predictions if row["way"] == way]
        summary["theory"][way] = {}
        for key in KEYS:
            off = np.array([row[key] for row in mine]) / fixed[key] - 1
            end, before = (
                compute_mean(off[:, part].mean(axis=1)) for part in (slice(-third, None), slice(third, -third))
            )
            drift = abs(end["mean"] - before["mean"])
            end["error"] = float(np.hypot(end["error"], drift))
            summary["theory"][way][key] = compute_mean(off) | {"end": end, "drift": drift}
    for name in ("descent", "gamp"):
        offs = {
            d: {key: [row[name][key] / row["fixed"][key] - 1 for row in rows if row["d"] == d] for key in (*KEYS, "V")}
            for d in sizes
        }
        summary["ends"][name] = {
            d: {key: compute_mean(values) for key, values in each.items()} for d, each in offs.items()
        }
        summary["limits"][name] = {key: pool_means({d: each[key] for d, each in offs.items()}) for key in (*KEYS, "V")}
    followed = max(d for d, seeds in sizes.items() if seeds >= MANY_SEEDS)
    mine = [row for row in rows if row["d"] == followed]
    summary["followed"] = followed
    summary["path"] = {
        key: compute_mean([np.array(row["path"][key]) / row["fixed"][key] - 1 for row in mine]) for key in KEYS
    }
    return summary


def pool_means(by_size):
    """Return the mean over all instances, weighted by d as the spread falls like 1/√d, and its standard error."""
    d = np.concatenate([np.full(len(values), float(size)) for size, values in by_size.items()])
    values = np.concatenate(list(by_size.values()))
    mean = np.average(values, weights=d)
    spread = np.sqrt(np.sum(d * (values - mean) ** 2) / (len(d) - 1))
    return {"mean": float(mean), "error": float(spread / np.sqrt(d.sum()))}


def check_criterion(verdict, numbers, rows):
    alone = np.mean([each > SAME for pair in numbers["same"] for each in pair])
    print(f"other descents end in other minima than the heavy ball's in {alone:.0%}")
    limit, theory = numbers["limits"]["descent"], numbers["theory"][WAYS[-1]]
    beyond = []
    for key in KEYS:
        gap = abs(theory[key]["end"]["mean"] - limit[key]["mean"])
        ratio = gap / np.hypot(theory[key]["end"]["error"], limit[key]["error"])
        verdict.check(ratio <= MAX_ERRORS, f"{key}: the theory ends {ratio:.1f} standard errors from where descents do")
        beyond.append(abs(limit[key]["mean"]) / limit[key]["error"])
    words = " and ".join(f"{each:.1f} in {key}" for each, key in zip(beyond, KEYS, strict=True))
    enough = verdict.name.endswith("_quick") or max(beyond) > MAX_ERRORS  # a few seeds do not suffice
    verdict.check(enough, f"the fixed point is {words} standard errors from where descents end")
    lower = np.mean([row["gamp"]["train_loss"] < row["descent"]["train_loss"] for row in rows])
    other = np.mean([row["distance"] > SAME for row in rows])
    verdict.check(lower >= DEEPER * other, f"GAMP's minimum is another in {other:.0%}, of lower loss in {lower:.0%}")


def format_table(numbers):
    lines = []

    def row(name, values):
        cells = [plus_minus(100 * values[key]["mean"], 100 * values[key]["error"]) if key in values else "–"
                 for key in (*KEYS, "V")]  # fmt: skip
        lines.append([name, *cells])

    for way in WAYS:
        row(f"end of descent, theory, {way}", {key: numbers["theory"][way][key]["end"] for key in KEYS})
    for name, words in (("descent", "end of descent"), ("gamp", "GAMP's minimum")):
        for d, values in numbers["ends"][name].items():
            row(f"{words}, d = {d}", values)
        row(f"{words}, all d", numbers["limits"][name])
    return markdown_table(("% off the fixed point", "q", "m", "V"), lines)


if __name__ == "__main__":
    main()
