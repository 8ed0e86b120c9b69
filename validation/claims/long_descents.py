"""Predictions of 2000 steps of gradient descent, with histories stored at a few times, agree with runs at finite d.

Method: `trajectory` with compressed histories is compared with `trajectory` without compression for 40 to 150 steps:
both branches, a heavy ball on noisy targets, three tokens with two columns, and logistic regression. Predictions of
2000 steps are compared with the means of descents on instances at d = 1000 to 4000, at all recorded steps, from which
the effect of the norms of their teachers is subtracted to first order (from predictions for two teachers with equal
random numbers). Predictions with several compressions have equal random seeds. Time, memory and the number of stored
times are measured against the number of steps; memory is the peak of the arrays during a run.

Criterion: overlaps and losses with and without compression differ by at most 4 standard errors of both at every step.
Means of descents differ from the prediction by at most 4 standard errors of both in the overlaps of the branch and in
the training loss, at every recorded step and every d; the spread of an instance is pooled over all d as s/√d. In both
comparisons "4" is the quantile of Student's t distribution with the probability of 4 standard deviations of a Gaussian.
Predictions with ten times larger and smaller compression, and means over replicas of few paths, differ from the default
by at most 4 stated errors. Added when a stated error diverged, because a difference in units of it then means nothing:
the stated errors of q and θ at the end are at most 10 %. 2000 steps of 4096 paths need less than 1 GB, and less time
than 200 steps without compression. (Dynamics page of the manual.)
"""

import time
import tracemalloc

import numpy as np
from scipy import stats

import gamp_attention as ga
from gamp_attention._tools.display import to_json
from gamp_attention.extensions.comparison.figures import COLORS, DARK, GREY, WORDS, draw_legend
from validation._tools.descents import predicted_descent
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table, round_number

ALPHA, STEPS, MAX_ERRORS = 1.5, 2000, 4.0
MAX_UNSURE = 0.1  # largest stated error, relative to the value, of predictions with other compressions
KEYS = ("q", "m", "theta", "train_loss", "test_error")
GD = {"method": "gd", "lr": 1.0}
MODELS = {
    "paper": ga.paper_model,
    "noisy": lambda: ga.paper_model(score_noise=0.3),
    "columns": lambda: ga.attention_model(3, 2, 1),
    "logistic": lambda: ga.glm_model(ga.LogisticLoss(), lam=0.01),
}
# model, start and options of the comparisons with uncompressed histories
SHORT = {
    "semantic start": ("paper", "semantic", GD | {"n_iter": 150}),
    "positional start": ("paper", "positional", GD | {"n_iter": 150}),
    "heavy ball, noisy targets": (
        "noisy", "semantic", {"method": "momentum", "lr": 0.3, "momentum": 0.8, "n_iter": 100},
    ),
    "three tokens, two columns": ("columns", "semantic", GD | {"n_iter": 40}),
    "logistic regression": ("logistic", "random", GD | {"n_iter": 150}),
}  # fmt: skip
LONG = {  # model, start, and the numbers that are compared with instances
    "semantic": ("paper", "semantic", ("q", "theta", "train_loss")),
    "positional": ("paper", "positional", ("q", "m", "train_loss")),
    "logistic": ("logistic", "random", ("q", "theta", "train_loss")),
}
FIRST_SHOWN, SPACING = 3, 1.15  # first step of the picture, and smallest ratio of steps at which descents are drawn
SEEDS = {1000: 6, 2000: 3, 4000: 2}
SIZE = {"n_paths": 2048, "n_replicas": 6}
MANY = {"n_paths": 8192, "n_replicas": 8}
PAIRED = {"n_paths": 2048, "n_replicas": 4}  # predictions that differ only in their teacher
FEW = {"n_paths": 1024, "n_replicas": 16}  # more fluctuations of averages over paths, which do not cancel in the mean
COMPRESSIONS = (1e-2, 1e-3, 1e-4)
TIMED = {"compressed": (100, 250, 500, 1000, 2000), "uncompressed": (50, 100, 150, 200)}
QUICK = {"steps": 200, "seeds": {300: 3}, "size": {"n_paths": 1024, "n_replicas": 3}, "short": 0.2,
         "timed": {"compressed": (50, 100, 200), "uncompressed": (25, 50)}}  # fmt: skip


def predict(model, start, compression, n_paths, n_replicas, n_iter, **how):
    """Return the prediction by name, its errors, the stored times, and the seconds of the processor."""
    begun = time.process_time()
    path = ga.trajectory(
        MODELS[model](), ALPHA, start, predicted_descent(how, compression), n_iter, n_paths=n_paths,
        n_replicas=n_replicas, max_memory=1e10,
    )  # fmt: skip
    overlaps, errors = path.scalars(), path.error.scalars()
    value = {key: overlaps[key].tolist() for key in KEYS[:3]}
    error = {key: errors[key].tolist() for key in KEYS[:3]}
    for key in KEYS[3:]:
        value[key], error[key] = getattr(path, key).tolist(), getattr(path, f"{key}_error").tolist()
    cpu = time.process_time() - begun
    return {"value": value, "errors": error, "stored": path.stored.tolist(), "cpu": cpu}


def measure_sensitivity(run, d, seed, n_paths, n_replicas, n_iter):
    """Return the change of a prediction per relative change of the squared norm of teachers, and its error.

    Both predictions have equal random numbers.
    """
    model, start, _ = LONG[run]
    usual = MODELS[model]()
    own = ga.sample(usual, d, ALPHA, np.random.default_rng([d, seed])).instance_model()
    change = float((own.coordinates.rho / usual.coordinates.rho).mean() - 1)
    options = {"n_paths": n_paths, "n_replicas": n_replicas, "n_iter": n_iter, "method": predicted_descent(GD, 1e-3)}
    values, errors = [], []
    for each in (own, usual):
        path = ga.trajectory(each, ALPHA, start, **options)
        values.append(np.abs([path.scalars()[key] for key in KEYS[:3]] + [path.train_loss]))
        errors.append([path.error.scalars()[key] for key in KEYS[:3]] + [path.train_loss_error])
    slopes, unsure = (values[0] - values[1]) / change, np.hypot(*errors) / abs(change)
    names = KEYS[:4]
    return {
        name: dict(zip(names, each.tolist(), strict=True)) for name, each in (("slope", slopes), ("unsure", unsure))
    }


def subtract_teachers(rows, run, sensitivity):
    """Return the rows of a run without the effects of the norms of the teachers, to first order, and the changes."""
    # the semantic start is the teacher; instances with the same d and seed have the same teacher in units of its size
    norms = {(row["d"], row["seed"]): row["value"]["theta"][0] for row in rows if row["run"] == "semantic"}
    usual, changed = ga.paper_model().coordinates.rho.mean(), []
    for row in (row for row in rows if row["run"] == run):
        change, at = norms[row["d"], row["seed"]] / usual - 1, row["steps"]
        value = {key: np.abs(row["value"][key]) - change * np.array(sensitivity[key])[at] for key in sensitivity}
        changed.append(row | {"value": value, "change": change})
    return changed


def run_descent(run, d, seed, steps):
    """Return overlaps and training losses of a descent on one instance at its recorded steps."""
    model, start, _ = LONG[run]
    data = ga.sample(MODELS[model](), d, ALPHA, np.random.default_rng([d, seed]))
    risk = "asymptotic" if data.model.attention else "exact"
    if start == "random":
        done = ga.minimize_risk(data, start, risk, max_iter=steps, tol=0, seed=seed, **GD)
    else:
        done = ga.minimize_risk(data, start, risk, max_iter=steps, tol=0, **GD)
    values = done.history.scalars()
    return {
        "steps": done.iterations.tolist(),
        "value": {key: values[key].tolist() for key in KEYS[:3]} | {"train_loss": done.history.train_loss.tolist()},
    }


def measure_cost(way, n_iter, n_paths):
    """Return seconds of the processor of one replica, peak memory of its arrays in bytes, and stored times."""
    seconds, peak, stored = [], 0, 0
    for traced in (False, True):  # tracing takes time
        if traced:
            tracemalloc.start()
        begun = time.process_time()
        path = ga.trajectory(
            ga.paper_model(), ALPHA, "semantic", predicted_descent(GD, 1e-3 if way == "compressed" else None),
            n_iter=n_iter, n_paths=n_paths, n_replicas=2, max_memory=1e10,
        )  # fmt: skip
        seconds.append((time.process_time() - begun) / (4 if way == "compressed" else 2))
        if traced:
            peak, stored = tracemalloc.get_traced_memory()[1], len(path.stored)
            tracemalloc.stop()
    return {"cpu": seconds[0], "peak": peak, "stored": stored}


def compute_ratios(one, other, keys=KEYS):
    """Return differences of two predictions in standard errors of both, by name; 0 where both are exact."""
    ratios = {}
    for key in keys:
        gap = np.array(one["value"][key]) - np.array(other["value"][key])
        both = np.hypot(one["errors"][key], other["errors"][key])
        scale = 1e-9 * max(np.abs(one["value"][key]).max(), 1e-9)
        ratios[key] = np.divide(gap, both, out=np.zeros_like(gap), where=both > scale)
    return ratios


def compute_limit(freedom):
    """Return the number of standard errors with the probability of four, given degrees of freedom."""
    return float(stats.t.isf(stats.norm.sf(MAX_ERRORS), freedom))


def pool_spread(rows, key):
    """Return the standard deviation of one instance times √d at every recorded step, from the instances at all d."""
    squares, freedom = 0.0, 0
    for d in {row["d"] for row in rows}:
        seen = np.array([np.abs(row["value"][key]) for row in rows if row["d"] == d])
        squares, freedom = squares + d * ((seen - seen.mean(axis=0)) ** 2).sum(axis=0), freedom + len(seen) - 1
    return np.sqrt(squares / freedom)


def compare_with_instances(theory, rows, d, keys, unsure):
    """Return the recorded steps, and differences of means at one d from the theory with their errors, by name."""
    chosen = [row for row in rows if row["d"] == d]
    steps, gaps, errors = np.array(chosen[0]["steps"]), {}, {}
    for key in keys:
        seen = np.mean([np.abs(row["value"][key]) for row in chosen], axis=0)
        gaps[key] = seen - np.abs(np.array(theory["value"][key]))[steps]
        spread = pool_spread(rows, key) / np.sqrt(d * len(chosen))
        correction = np.mean([row["change"] for row in chosen]) * np.array(unsure[key])[steps]
        errors[key] = np.sqrt(spread**2 + np.array(theory["errors"][key])[steps] ** 2 + correction**2)
    return steps, gaps, errors


def round_numbers(tree):
    """Return nested lists and dictionaries with all numbers rounded to five digits."""
    if isinstance(tree, dict):
        return {name: round_numbers(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [round_numbers(value) for value in tree]
    return round_number(tree, 5) if isinstance(tree, float) else tree


def draw(numbers, path):
    """Draw predictions with instances, differences from uncompressed predictions, and cost against steps."""
    with figure(path, 3, 2, (9.6, 10.2)) as axes:
        for axis, (run, key) in zip(
            axes[:2].ravel(),
            (("semantic", "theta"), ("semantic", "train_loss"), ("positional", "m"), ("positional", "train_loss")),
            strict=True,
        ):
            _draw_run(axis, numbers, run, key)
        _draw_differences(axes[2, 0], numbers)
        _draw_cost(axes[2, 1], numbers)
        draw_legend(*axes[0], columns=2)


def _draw_run(axis, numbers, run, key):
    theory = numbers["long"][run]["theory"]
    value, error = (np.abs(np.array(theory[what][key])) for what in ("value", "errors"))
    for (d, seen), marker in zip(numbers["long"][run]["instances"].items(), "osD", strict=False):
        shown = _space_evenly(seen["steps"])
        t, gap, error_of = (np.array(seen[what][key] if what != "steps" else seen[what])[shown]
                            for what in ("steps", "gap", "error"))  # fmt: skip
        axis.errorbar(t, value[t] + gap, 2 * error_of, fmt=marker, ms=2.5, lw=0.6, label=f"descents, d = {d}, ± 2 s.e.")
    t, value, error = np.arange(FIRST_SHOWN, len(value)), value[FIRST_SHOWN:], error[FIRST_SHOWN:]
    axis.plot(t, value, color=DARK, label="theory, compressed histories", zorder=3)
    axis.fill_between(t, value - 2 * error, value + 2 * error, color=DARK, alpha=0.25, lw=0)
    axis.set(xscale="log", xlabel="step", title=f"{WORDS[key]}, {run} start")
    axis.margins(y=0.05)


def _space_evenly(steps):
    """Return indices of steps with a ratio of at least SPACING, so that error bars do not overlap."""
    shown, last = [], FIRST_SHOWN / SPACING
    for i, t in enumerate(steps):
        if t >= SPACING * last:
            shown.append(i)
            last = t
    return shown


def _draw_differences(axis, numbers):
    for name, ratios in numbers["short"].items():
        axis.plot(np.abs(np.array(list(ratios["ratios"].values()))).max(axis=0), lw=1, label=name)
    axis.axhline(MAX_ERRORS, color=GREY, lw=0.8, ls="--")
    axis.set(xlabel="step", ylabel="standard errors", title="largest difference from uncompressed histories")
    axis.set_ylim(0, 7.5)
    axis.legend(loc="upper right")


def _draw_cost(axis, numbers):
    for way, marker, color in (("uncompressed", "s", COLORS["positional"]), ("compressed", "o", COLORS["semantic"])):
        rows = [row for row in numbers["cost"] if row["way"] == way]
        steps = [row["n_iter"] for row in rows]
        axis.plot(steps, [row["cpu"] for row in rows], marker + "-", ms=4, color=color, label=f"{way}: seconds")
        axis.plot(steps, [row["peak"] / 1e8 for row in rows], marker + ":", ms=4, mfc="white", color=color,
                  label=f"{way}: memory, 100 MB")  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="number of steps", title="cost of one replica of 4096 paths")
    axis.set_ylim(top=30 * axis.get_ylim()[1])
    axis.legend(loc="upper left")


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("long_descents", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    where, size = folder(args, verdict.name), QUICK["size"] if args.quick else SIZE
    steps, seeds = (QUICK["steps"], QUICK["seeds"]) if args.quick else (STEPS, SEEDS)
    ga.trajectory(ga.paper_model(), ALPHA, "semantic", predicted_descent(GD), 2, n_paths=64, n_replicas=2)  # compiles

    plan = [
        {"model": model, "start": start, "compression": 1e-3, "n_iter": steps} | (size if args.quick else MANY) | GD
        for model, start, _ in LONG.values()
    ]
    long = dict(zip(LONG, run_trials(where / "long", predict, plan), strict=True))
    plan = [
        {"run": run, "d": d, "seed": seed, "steps": steps}
        for d, n_seeds in seeds.items()
        for run in LONG
        for seed in range(n_seeds)
        if run != "logistic" or d <= 1000
    ]
    rows = run_trials(where / "instances", run_descent, plan)
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} descents were finished")
    corrected, unsure = {}, {}
    for run in LONG:
        plan = [{"run": run, "d": min(seeds), "seed": 0, "n_iter": steps} | (QUICK["size"] if args.quick else PAIRED)]
        found = run_trials(where / "teachers", measure_sensitivity, plan)[0]
        corrected[run], unsure[run] = subtract_teachers(rows, run, found["slope"]), found["unsure"]
    shorts = {"compressed": {}, "uncompressed": {}}
    for name, (model, start, how) in SHORT.items():
        how = how | ({"n_iter": int(QUICK["short"] * how["n_iter"])} if args.quick else {})
        for way, compression in (("compressed", 1e-3), ("uncompressed", None)):
            plan = [{"model": model, "start": start, "compression": compression} | size | how]
            shorts[way][name] = run_trials(where / "short", predict, plan)[0]
    few = {}
    for run in ("semantic",):
        model, start, _ = LONG[run]
        plan = [{"model": model, "start": start, "compression": 1e-3, "n_iter": steps} | (FEW | GD)]
        few[run] = run_trials(where / "long", predict, plan)[0]
    compressed = [
        run_trials(where / "long", predict, [
            {"model": "paper", "start": "semantic", "compression": each, "n_iter": steps} | size | GD
        ])[0] for each in COMPRESSIONS
    ]  # fmt: skip
    plan = [
        {"way": way, "n_iter": n_iter, "n_paths": size["n_paths"] if args.quick else 4096}
        for way, all_steps in (QUICK["timed"] if args.quick else TIMED).items()
        for n_iter in all_steps
    ]
    cost = run_trials(where / "cost", measure_cost, plan)

    stored = {"short": {}, "long": {}, "few": {}, "cost": cost, "compressions": {}}
    for name, one in shorts["compressed"].items():
        ratios = compute_ratios(one, shorts["uncompressed"][name])
        worst = max(float(np.abs(each).max()) for each in ratios.values())
        ratio = {key: float(np.median(np.divide(one["errors"][key][5:], np.maximum(
            shorts["uncompressed"][name]["errors"][key][5:], 1e-300)))) for key in ("q", "train_loss")}  # fmt: skip
        n_iter, n_stored = len(one["value"]["q"]) - 1, len(one["stored"])
        seconds = [shorts[way][name]["cpu"] for way in ("uncompressed", "compressed")]
        stored["short"][name] = {
            "ratios": ratios, "worst": worst, "n_iter": n_iter, "stored": n_stored, "seconds": seconds,
            "error ratio": ratio,
        }  # fmt: skip
        words = f"{name}, {n_iter} steps: compressed and uncompressed differ by at most {worst:.1f} standard errors"
        limit = compute_limit(2 * size["n_replicas"] - 2)
        verdict.check(worst <= limit, f"{words}, of {limit:.1f}")
    for run, one in few.items():
        ratios = compute_ratios(one, long[run], LONG[run][2])
        worst = max(float(np.abs(each).max()) for each in ratios.values())
        stored["few"][run] = {
            "worst": worst, "ratios": {key: each[-1] for key, each in ratios.items()},
            "relative error": {key: one["errors"][key][-1] / abs(one["value"][key][-1]) for key in LONG[run][2]},
        }  # fmt: skip
        words = f"{run}: means over replicas of {FEW['n_paths']} paths differ from means of more paths by at most"
        verdict.check(worst <= MAX_ERRORS, f"{words} {worst:.1f} standard errors")
    table = []
    for run, (_, _, keys) in LONG.items():
        theory, instances, own = long[run], {}, corrected[run]
        limit = compute_limit(len(own) - len({row["d"] for row in own}))
        for d in sorted({row["d"] for row in own}):
            at, gaps, errors = compare_with_instances(theory, own, d, keys, unsure[run])
            ratios = {key: np.abs(gaps[key][1:]) / errors[key][1:] for key in keys}
            worst = max(float(each.max()) for each in ratios.values())
            instances[d] = {"steps": at, "gap": gaps, "error": errors, "worst": worst}
            words = f"{run}, d = {d}, {seeds[d]} descents of {steps} steps: at most {worst:.1f} standard errors"
            verdict.check(worst <= limit, f"{words} from the prediction, of {limit:.1f}")
            last = [f"{100 * gaps[key][-1] / abs(theory['value'][key][-1]):.2f} ± "
                    f"{100 * errors[key][-1] / abs(theory['value'][key][-1]):.2f}" for key in keys]  # fmt: skip
            table.append([run, d, seeds[d], *last, f"{worst:.1f}"])
        stored["long"][run] = {"theory": theory, "instances": instances}
    default = compressed[COMPRESSIONS.index(1e-3)]
    for compression, one in zip(COMPRESSIONS, compressed, strict=True):
        ratios = compute_ratios(one, default, ("q", "theta", "train_loss", "test_error"))
        worst = max(float(np.abs(each).max()) for each in ratios.values())
        stored["compressions"][compression] = {
            "worst": worst, "stored": len(one["stored"]), "seconds": one["cpu"],
            "relative error": {key: one["errors"][key][-1] / one["value"][key][-1] for key in ("q", "theta")},
        }  # fmt: skip
        words = f"compression {compression:g}: {len(one['stored'])} stored times, at most {worst:.1f} stated errors"
        verdict.check(worst <= MAX_ERRORS, f"{words} from compression 0.001")
        unsure = max(stored["compressions"][compression]["relative error"].values())
        words = f"compression {compression:g}: the stated errors of q and θ at the end are at most {100 * unsure:.3g} %"
        verdict.check(unsure <= MAX_UNSURE, words)
    last = next(row for row in cost if row["way"] == "compressed" and row["n_iter"] == steps)
    longest = [row for row in cost if row["way"] == "uncompressed"][-1]
    verdict.check(last["peak"] < 1e9, f"{steps} steps: {last['peak'] / 1e6:.0f} MB")
    words = f"{steps} steps compressed: {last['cpu']:.1f} s for a replica; {longest['n_iter']} steps uncompressed"
    verdict.check(args.quick or last["cpu"] < longest["cpu"], f"{words}: {longest['cpu']:.1f} s")
    heads = ["start", "d", "descents", "q", "θ or m", "training loss", "largest difference at any step, s.e."]
    verdict.write_table(markdown_table(heads, table))
    verdict.end(round_numbers(to_json(stored)), draw)


if __name__ == "__main__":
    main()
