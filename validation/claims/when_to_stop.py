"""On noisy data, stopping in time beats the best λ of training to the end, as the theory predicts.

Method: targets are y = (T[u] + s N)x. Training starts with weights that have an overlap of 0.5 with the teacher, about
as spectral starts have, and ends at time 240. At every noise s and every α the theory of gradient descent predicts the
test error at every step for several λ, without the contribution of the noise itself. Four ways to train are compared:
to the end with the smallest λ; to the end with the best λ; stopped at the best step with the smallest λ; and the best
step of all λ.

At finite d the weights' overlap m with the positions is not zero, as for d → ∞, but of order d^(−1/2), and the
fluctuations of the gradient add as much: if m = 0 is unstable, m grows by a factor that does not depend on d. So
instances are compared with predictions whose initial m leads to the instance's m at step 10; predictions for d → ∞ are
reported too.

Criterion: at the points that are run on instances at d = 1000, exact risk, test errors at the best step and at the end
are, on average, within three standard errors and half of an instance's spread of the predictions with their m. At s =
0.3, α = 2, λ = 0.03, d = 500 to 4000, m at step 10 falls like d^(−1/2), and leads to m at the end as predicted. If s is
0.3 or more, the best λ at the end has a larger test error than the best stop with the smallest λ, at every α; stopping
and λ together gain less than 5 % over stopping only. At s = 0.1 training the smallest λ to the end costs less than 5 %.
The table has test errors times 1000. (Dynamics page of the manual.)

Running time with --quick: about 50 s on one core, after compilation.
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention._tools.display import to_json
from gamp_attention.extensions.comparison.figures import ALPHA, DARK, GREY, draw_legend
from validation._tools import landscape as land
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import mean_and_error

# model; overlap of the start with the teacher, and its norm in units of √d
OMEGA, SIGMA, COSINE, LENGTH = 0.3, 0.5, 0.5, 0.3
STEPS = [1.0] * 40 + [2.5] * 80  # small steps first, to resolve the best time
TIMES = np.concatenate([[0.0], np.cumsum(STEPS)])
NOISES, ALPHAS = (0.1, 0.2, 0.3, 0.45, 0.6), (1.0, 2.0, 3.0)
LAMBDAS = (0.003, 0.01, 0.03, 0.05, 0.1)
QUICK = {"noises": (0.1, 0.3), "alphas": (2.0,), "lambdas": (0.003, 0.03)}
TRIED = ((0.1, 2.0, 0.003), (0.3, 1.0, 0.003), (0.3, 2.0, 0.003), (0.3, 2.0, 0.03), (0.6, 2.0, 0.003))  # s, α, λ
# point and values of d at which m is measured
FOLLOWED, SIZES = (0.3, 2.0, 0.03), {500: 10, 1000: 10, 2000: 8, 4000: 4}
QUICK_SIZES = {250: 4, 500: 4}
PATHS, QUICK_PATHS = {"n_paths": 1024, "n_replicas": 4}, {"n_paths": 1024, "n_replicas": 2}
LATE = {"n_paths": 4096, "n_replicas": 4}  # paths for the smallest noise: 1024 paths are 8 % off at the end
EARLY, LADDER = 10, (0.0, 0.003, 0.01, 0.02, 0.04, 0.08)  # step at which m is measured; values of m at the start
GAIN, CLEAR = 0.05, 0.3  # relative gain of the error; smallest noise at which stopping must win


def predict(noise, alpha, lam, m, n_paths, n_replicas):
    """Return the predicted test error (without the noise's part), its standard error, and |m| at every step.

    `m` is the overlap with the positions at the start.
    """
    model, one = ga.paper_model(OMEGA, sigma=SIGMA, lam=lam, score_noise=noise), np.ones((2, 1, 1))
    square = SIGMA**2 * LENGTH
    start = ga.Overlaps(q=square * LENGTH * one, m=m * np.array([[1.0], [-1.0]]), theta=square * COSINE * one, V=one)
    path = ga.trajectory(
        model, alpha, start, ga.GradientDescent(lr=STEPS), n_iter=len(STEPS), n_paths=n_paths, n_replicas=n_replicas
    )
    return {
        "test_error": (path.test_error - model.task.noise_error).tolist(),
        "spread": path.test_error_error.tolist(), "m_path": np.abs(path.scalars()["m"]).tolist(),
    }  # fmt: skip


def run_instance(noise, alpha, lam, best, d, seed):
    """Return test errors without noise of a descent at the predicted best step and at the end, and |m|."""
    rng = np.random.default_rng([d, seed])
    data = ga.sample(ga.paper_model(OMEGA, sigma=SIGMA, lam=lam, score_noise=noise), d, alpha, seed)
    clean = ga.sample(ga.paper_model(OMEGA, sigma=SIGMA, lam=lam), d, alpha, seed)  # with the same teacher
    Q = LENGTH * (COSINE * data.Q_star + np.sqrt(1 - COSINE**2) * rng.standard_normal((d, 1)))
    row = {}
    for name, steps in (("stopped", best), ("ended", len(STEPS))):
        run = ga.minimize_risk(data, Q, "exact", "gd", lr=STEPS, max_iter=max(steps, 1), tol=0)
        row[name] = ga.sampled_test_error(clean, run.Q, n_samples=4000)[0]
    return row | {"m_path": np.abs(run.history.scalars()["m"]).tolist()}


def compare_ways(rows):
    """Return the four ways to train at one noise and α from the predictions for all λ, each with time and λ."""
    curves = {row["lam"]: np.array(row["test_error"]) for row in rows}
    small = min(curves)
    last = min(curves, key=lambda lam: curves[lam][-1])
    any_time = min(curves, key=lambda lam: curves[lam].min())
    steps = {
        "smallest λ, to the end": (small, -1), "best λ, to the end": (last, -1),
        "smallest λ, stopped": (small, int(curves[small].argmin())),
        "best λ, stopped": (any_time, int(curves[any_time].argmin())),
    }  # fmt: skip
    return {
        name: {"lam": lam, "time": float(TIMES[step]), "test_error": float(curves[lam][step])}
        for name, (lam, step) in steps.items()
    }


SHOWN = (0.3, 2.0)  # s and α of the drawn curves
WAYS = {  # colors (Okabe and Ito) and line styles
    "smallest λ, to the end": ("#999999", "--"), "best λ, to the end": ("#D55E00", "-"),
    "smallest λ, stopped": ("#0072B2", "-"), "best λ, stopped": ("#009E73", ":"),
}  # fmt: skip


def compute_excess(ways):
    """Return the relative excess of the best λ at the end over the smallest λ stopped in time."""
    return ways["best λ, to the end"]["test_error"] / ways["smallest λ, stopped"]["test_error"] - 1


def draw(numbers, path):
    noises, alphas = (np.array(numbers[name]) for name in ("noises", "alphas"))
    noise, alpha = (
        values[np.abs(values - wanted).argmin()] for values, wanted in zip((noises, alphas), SHOWN, strict=True)
    )
    with figure(path, 2, 3, (9.8, 7.6)) as axes:
        _draw_curves(axes[0, 0], numbers, noise, alpha)
        _draw_ways(axes[0, 1], numbers, "noise", noises, lambda point: point["alpha"] == alpha)
        axes[0, 1].set(xlabel="noise s on the scores", title=f"α = n/d = {alpha:g}")
        _draw_ways(axes[0, 2], numbers, "alpha", alphas, lambda point: point["noise"] == noise)
        axes[0, 2].set(xlabel=ALPHA, title=f"s = {noise:g}")
        ways = {(point["noise"], point["alpha"]): point["ways"] for point in numbers["points"]}
        maps = (
            (
                "best λ to the end: % above\nthe best stop, smallest λ",
                lambda w: 100 * compute_excess(w),
                "{:+.0f}",
            ),
            ("time to stop\nwith the smallest λ", lambda w: w["smallest λ, stopped"]["time"], "{:.0f}"),
            ("best λ for training\nto the end", lambda w: w["best λ, to the end"]["lam"], "{:g}"),
        )
        for axis, (title, value, words) in zip(axes[1], maps, strict=True):
            _draw_map(axis, noises, alphas, np.array([[value(ways[s, a]) for s in noises] for a in alphas]), words)
            axis.set(title=title, xlabel="noise s on the scores")
        axes[1, 0].set_ylabel(ALPHA)
        draw_legend(*axes[0, :2], columns=4)


def _draw_curves(axis, numbers, noise, alpha):
    times = np.array(numbers["times"])
    mine = [row for row in numbers["told"] if (row["noise"], row["alpha"]) == (noise, alpha)]
    for k, row in enumerate(mine):
        color = (0.1, 0.25 + 0.6 * k / max(len(mine) - 1, 1), 0.75 - 0.5 * k / max(len(mine) - 1, 1))
        axis.plot(times[1:], row["test_error"][1:], color=color, label=f"λ = {row['lam']:g}")
        for point in numbers["tried"]:
            if all(point[key] == row[key] for key in ("noise", "alpha", "lam")):
                for name, step in (("stopped", point["best"]), ("ended", -1)):
                    seen = point[name]
                    axis.errorbar(times[step], seen["mean"], 2 * seen["error"], fmt="o", ms=4, color=color)
                    axis.plot(times[step], seen["own"], "x", ms=7, color=color)
    axis.set(xscale="log", xlabel="training time: steps × step size", title=f"s = {noise:g}, α = n/d = {alpha:g}")
    axis.plot([], [], "o", ms=4, color=GREY, label=f"instances, d = {numbers['d']}")
    axis.plot([], [], "x", ms=7, color=GREY, label="predicted for their m")
    axis.set_ylabel("test error − part due to the noise")


def _draw_ways(axis, numbers, key, values, chosen):
    points = sorted((point for point in numbers["points"] if chosen(point)), key=lambda point: point[key])
    for name, (color, style) in WAYS.items():
        axis.plot(values, [point["ways"][name]["test_error"] for point in points], style, marker="o", ms=4,
                  color=color, label=name)  # fmt: skip
    axis.set(yscale="log", ylabel="test error − part due to the noise")


def _draw_map(axis, noises, alphas, values, words):
    axis.imshow(np.log(np.maximum(np.abs(values), 1e-3)), origin="lower", aspect="auto", cmap="Blues", alpha=0.6)
    for i in range(len(alphas)):
        for j in range(len(noises)):
            axis.text(j, i, words.format(values[i, j]), ha="center", va="center", color=DARK)
    axis.set_xticks(range(len(noises)), [f"{s:g}" for s in noises])
    axis.set_yticks(range(len(alphas)), [f"{a:g}" for a in alphas])
    axis.tick_params(color=GREY)


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict = Verdict("when_to_stop", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    where = folder(args, verdict.name)
    noises, alphas, lambdas = QUICK.values() if args.quick else (NOISES, ALPHAS, LAMBDAS)
    grid = [build_place(s, alpha, lam) for s in noises for alpha in alphas for lam in lambdas]
    sizes = {s: QUICK_PATHS if args.quick else LATE if s == min(noises) else PATHS for s in noises}
    with pool(args) as executor:
        predictions = run_trials(
            where / "theory", predict, [each | {"m": 0.0} | sizes[each["noise"]] for each in grid], executor
        )
        known = {get_place(row): row for row in predictions}
        tried = [each for each in ([FOLLOWED] if args.quick else TRIED) if each in known]
        steps = [build_place(*each) | {"m": m} | sizes[each[0]] for each in tried for m in LADDER]
        rungs = run_trials(where / "theory", predict, steps, executor)
        d, seeds, counts = (300, 3, QUICK_SIZES) if args.quick else (1000, 4, SIZES)
        plan = {(each, d, seed): None for each in tried for seed in range(seeds)}
        plan |= {(FOLLOWED, n, seed): None for n, count in counts.items() for seed in range(count)}
        best = {each: int(np.argmin(known[each]["test_error"])) for each in tried}
        calls = [build_place(*each) | {"best": best[each], "d": n, "seed": seed} for each, n, seed in plan]
        rows = run_trials(where / "instances", run_instance, calls, executor)
    ladders = {each: [row for row in rungs if get_place(row) == each] for each in tried}
    rows = [row | {"own": interpolate(ladders[get_place(row)], row["m_path"][EARLY])} for row in rows]
    points = []
    for s, alpha in product(noises, alphas):
        mine = [row for row in predictions if (row["noise"], row["alpha"]) == (s, alpha)]
        points.append({"noise": s, "alpha": alpha, "ways": compare_ways(mine)})
    seen = [
        summarize(ladders[each], [row for row in rows if get_place(row) == each and row["d"] == d]) for each in tried
    ]
    followed = ladders[FOLLOWED]
    growth = [
        summarize_growth(n, followed, [row for row in rows if get_place(row) == FOLLOWED and row["d"] == n])
        for n in counts
    ]
    table = format_table(points, seen, growth)
    verdict.write_table(table)
    check_criterion(verdict, points, seen, growth)
    numbers = {
        "d": d, "times": TIMES, "noises": noises, "alphas": alphas, "points": points, "tried": seen, "growth": growth,
        "told": [{key: row[key] for key in ("noise", "alpha", "lam", "test_error", "spread")} for row in predictions],
    }  # fmt: skip
    draw(to_json(numbers), verdict.path(".png"))
    verdict.end(numbers)


def build_place(noise, alpha, lam):
    return {"noise": noise, "alpha": alpha, "lam": lam}


def get_place(row):
    return row["noise"], row["alpha"], row["lam"]


def interpolate(ladder, early):
    """Return test error and |m| at every step for the start that leads to an early |m|, between starts of a ladder."""
    starts = np.interp(early, [row["m_path"][EARLY] for row in ladder], LADDER)
    return {
        key: [float(np.interp(starts, LADDER, values)) for values in zip(*[row[key] for row in ladder], strict=True)]
        for key in ("test_error", "m_path")
    }


def summarize(ladder, rows):
    """Return test errors of instances, stopped and at the end, and predictions with their m and for d → ∞."""
    summary, sizes = (
        build_place(*get_place(rows[0])) | {"best": rows[0]["best"]},
        np.array([row["m_path"] for row in ladder]),
    )
    for name, step in (("stopped", rows[0]["best"]), ("ended", -1)):
        values, own = (np.array(each) for each in zip(
            *[(row[name], row["own"]["test_error"][step]) for row in rows], strict=True))  # fmt: skip
        (mean, error), (gap, spread) = mean_and_error(values), mean_and_error(values - own)
        summary[name] = {
            "mean": mean, "error": error, "spread": float(values.std(ddof=1)), "own": float(own.mean()), "gap": gap,
            "limit": ladder[0]["test_error"][step], "gap_error": float(np.hypot(spread, ladder[0]["spread"][step])),
            "grown": float(sizes[1, step] / LADDER[1]),
        }  # fmt: skip
    return summary


def summarize_growth(d, ladder, rows):
    """Return rms m at step 10 and at the end, measured and predicted from step 10 on.

    "alone" is √d times m at step 10 as the start without fluctuations of the gradient would lead to.
    """
    early, seen = (np.array([row["m_path"][step] for row in rows]) for step in (EARLY, -1))
    predicted_ends = np.array([row["own"]["m_path"][-1] for row in rows])
    gap, error = mean_and_error(seen - predicted_ends)
    sizes = {"early": early, "end": seen, "told": predicted_ends}
    row_means = {name: float(np.sqrt(np.mean(values**2))) for name, values in sizes.items()}
    alone = LENGTH * ladder[1]["m_path"][EARLY] / LADDER[1]
    return {"d": d, "seeds": len(rows), "gap": gap, "gap_error": error, "alone": alone} | row_means


def check_criterion(verdict, points, seen, growth):
    ratios = [
        abs(each["gap"]) / (3 * each["gap_error"] + land.SPREAD * each["spread"])
        for row in seen for each in (row["stopped"], row["ended"])
    ]  # fmt: skip
    words = f"{len(ratios)} means over instances: at most {max(ratios):.2f} of the allowed deviation, with their m"
    verdict.check(max(ratios) <= 1, words)
    sizes = np.array([row["d"] for row in growth])
    scaled = np.array([row["early"] for row in growth]) * np.sqrt(sizes)
    # relative error of the rms of that many Gaussians, times three
    slack = 3 / np.sqrt(2 * np.array([row["seeds"] for row in growth]))
    usual = np.average(scaled, weights=[row["seeds"] for row in growth])
    words, alone = (
        ", ".join(f"{each:.2f} at d = {d}" for each, d in zip(scaled, sizes, strict=True)),
        growth[0]["alone"],
    )
    verdict.check(
        bool((abs(scaled / usual - 1) <= slack).all()), f"√d m at step {EARLY}: {words}; {alone:.2f} by the start only"
    )
    off = [abs(row["gap"]) / row["gap_error"] for row in growth]
    verdict.check(max(off) <= 4, f"m at the end: at most {max(off):.1f} standard errors from where step {EARLY} leads")
    noisy = [point["ways"] for point in points if point["noise"] >= CLEAR]
    least = min(compute_excess(each) for each in noisy)
    words = f"s >= {CLEAR:g}: at the end the best λ errs {100 * least:.0f} % or more above the best stop"
    verdict.check(least > 0, words)
    gains = [1 - each["best λ, stopped"]["test_error"] / each["smallest λ, stopped"]["test_error"] for each in noisy]
    verdict.check(max(gains) <= GAIN, f"s >= {CLEAR:g}: both together gain at most {100 * max(gains):.1f} % on a stop")
    calm = [point["ways"] for point in points if point["noise"] == min(NOISES)]
    loss = [each["smallest λ, to the end"]["test_error"] / each["smallest λ, stopped"]["test_error"] for each in calm]
    words = f"s = {min(NOISES):g}: training the smallest λ to the end costs at most {100 * (max(loss) - 1):.1f} %"
    verdict.check(max(loss) <= 1 + GAIN, words)


def format_table(points, seen, growth):
    names = list(points[0]["ways"])
    lines = ["| s | α | " + " | ".join(names) + " |", "|" + "---|" * (len(names) + 2)]
    for point in points:
        cells = []
        for name in names:
            way = point["ways"][name]
            stop = f", t = {way['time']:g}" if name.endswith("stopped") else ""
            cells.append(f"{1e3 * way['test_error']:.2f} (λ = {way['lam']:g}{stop})")
        lines.append(f"| {point['noise']:g} | {point['alpha']:g} | " + " | ".join(cells) + " |")
    heads = ["s", "α", "λ", "at", "instances", "predicted with their m", "for d → ∞", "m grows by"]
    lines += ["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in seen:
        for name in ("stopped", "ended"):
            each, where = row[name], [f"{row[key]:g}" for key in ("noise", "alpha", "lam")]
            numbers = [f"{1e3 * each['own']:.2f}", f"{1e3 * each['limit']:.2f}", f"{each['grown']:.1f}"]
            mean = plus_minus(1e3 * each["mean"], 1e3 * each["error"])
            cells = [*where, "the stop" if name == "stopped" else "the end", mean, *numbers]
            lines.append("| " + " | ".join(cells) + " |")
    heads = ["d", "instances", f"√d m at step {EARLY}", "m at the end", "predicted"]
    lines += ["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in growth:
        lines.append(f"| {row['d']} | {row['seeds']} | {np.sqrt(row['d']) * row['early']:.2f} | {row['end']:.3f} "
                     f"| {row['told']:.3f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
