"""When to stop training on noisy data: test error at the best stop, beside the best λ of training to the end.

Targets are y = (T[u] + s N)x. Training starts with weights that overlap with the teacher's by .5, about what spectral
starts give, and ends at time 240. At every noise s and every α the theory of gradient descent predicts the test error
at every step for several λ; noise's own share of it is taken off. Four ways to train are compared: to the end with the
smallest λ; to the end with the best λ; stopped at the best step with the smallest λ; and both, the best step of all λ.

At finite d the weights' overlap m with the positions is not zero, as for d → ∞, but of order d^(−1/2), and the
gradient's own fluctuations add as much: where m = 0 is unstable it grows, by a factor that does not depend on d. So
instances are compared with predictions that start with the m that leads to theirs at step 10; those for d → ∞ are told.

Criterion: at the points that are tried on instances at d = 1000, exact risk, test errors at the best step and at the
end are, on average, within three standard errors of those predicted with their m and half of an instance's spread. At
s = .3, α = 2, λ = .03, d = 500 to 4000, m at step 10 falls like d^(−1/2), and leads to m at the end as predicted.
Where s is .3 or more the best λ at the end has a test error above that of the best stop with the smallest λ, at every
α; stopping and λ together gain less than 5 % on stopping alone. At s = .1 training the smallest λ to the end costs
less than 5 %. The table has test errors times 1000.
"""

import numpy as np

import gamp_attention as ga
from gamp_attention._core.display import to_json
from gamp_attention.data.risk import sampled_test_error
from validation._tools import landscape as land
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.trials import run_trials
from validation.claims._when_to_stop_picture import draw, excess

OMEGA, SIGMA, COSINE, LENGTH = 0.3, 0.5, 0.5, 0.3  # of the start: its overlap with the teacher, its size beside √d
STEPS = [1.0] * 40 + [2.5] * 80  # small ones first, for the best time
TIMES = np.concatenate([[0.0], np.cumsum(STEPS)])
NOISES, ALPHAS = (0.1, 0.2, 0.3, 0.45, 0.6), (1.0, 2.0, 3.0)
LAMBDAS = (0.003, 0.01, 0.03, 0.05, 0.1)
QUICK = {"noises": (0.1, 0.3), "alphas": (2.0,), "lambdas": (0.003, 0.03)}
TRIED = ((0.1, 2.0, 0.003), (0.3, 1.0, 0.003), (0.3, 2.0, 0.003), (0.3, 2.0, 0.03), (0.6, 2.0, 0.003))  # s, α, λ
FOLLOWED, SIZES = (0.3, 2.0, 0.03), {500: 10, 1000: 10, 2000: 8, 4000: 4}  # where and for which d m is looked at
QUICK_SIZES = {250: 4, 500: 4}
PATHS, QUICK_PATHS = {"n_paths": 1024, "n_replicas": 4}, {"n_paths": 1024, "n_replicas": 2}
LATE = {"n_paths": 4096, "n_replicas": 4}  # for the least noise: 1024 paths are 8 % off at the end
EARLY, LADDER = 10, (0.0, 0.003, 0.01, 0.02, 0.04, 0.08)  # the step at which m is seen, and those of the start
GAIN, CLEAR = 0.05, 0.3  # of the error; noise from which on stopping is needed


def theory(noise, alpha, lam, m, n_paths, n_replicas):
    """The predicted test error at every step, less that of the noise, and |m|, with the standard error of the former.

    m is that of the start.
    """
    model, one = ga.paper_model(OMEGA, sigma=SIGMA, lam=lam, score_noise=noise), np.ones((2, 1, 1))
    square = SIGMA**2 * LENGTH
    start = ga.Overlaps(q=square * LENGTH * one, m=m * np.array([[1.0], [-1.0]]), theta=square * COSINE * one, V=one)
    path = ga.trajectory(
        model, alpha, start, method="gd", lr=STEPS, n_iter=len(STEPS), n_paths=n_paths, n_replicas=n_replicas
    )
    return {
        "test_error": (path.test_error - model.task.noise_error).tolist(),
        "spread": path.test_error_error.tolist(), "m_path": np.abs(path.scalars()["m"]).tolist(),
    }  # fmt: skip


def instance(noise, alpha, lam, best, d, seed):
    """Test errors, without noise's, of a descent on the layer at the step that theory says and at the end; and |m|."""
    rng = np.random.default_rng([d, seed])
    data = ga.sample(ga.paper_model(OMEGA, sigma=SIGMA, lam=lam, score_noise=noise), d, alpha, seed)
    clean = ga.sample(ga.paper_model(OMEGA, sigma=SIGMA, lam=lam), d, alpha, seed)  # of the same teacher
    Q = LENGTH * (COSINE * data.Q_star + np.sqrt(1 - COSINE**2) * rng.standard_normal((d, 1)))
    found = {}
    for name, steps in (("stopped", best), ("ended", len(STEPS))):
        run = ga.minimize_risk(data, Q, "exact", "gd", lr=STEPS, max_iter=max(steps, 1), tol=0)
        found[name] = sampled_test_error(clean, run.Q, n_samples=4000)[0]
    return found | {"m_path": np.abs(run.history.scalars()["m"]).tolist()}


def ways(rows):
    """The four ways to train at one noise and α, from the predictions for all λ; each with its time and λ."""
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


def main():
    found = options(__doc__, draw=True, workers=True)
    verdict = Verdict("when_to_stop", found)
    if found.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    where = folder(found, verdict.name)
    noises, alphas, lambdas = QUICK.values() if found.quick else (NOISES, ALPHAS, LAMBDAS)
    grid = [place(s, alpha, lam) for s in noises for alpha in alphas for lam in lambdas]
    sizes = {s: QUICK_PATHS if found.quick else LATE if s == min(noises) else PATHS for s in noises}
    with pool(found) as executor:
        told = run_trials(
            where / "theory", theory, [each | {"m": 0.0} | sizes[each["noise"]] for each in grid], executor
        )
        known = {place_of(row): row for row in told}
        tried = [each for each in ([FOLLOWED] if found.quick else TRIED) if each in known]
        steps = [place(*each) | {"m": m} | sizes[each[0]] for each in tried for m in LADDER]
        rungs = run_trials(where / "theory", theory, steps, executor)
        d, seeds, counts = (300, 3, QUICK_SIZES) if found.quick else (1000, 4, SIZES)
        plan = {(each, d, seed): None for each in tried for seed in range(seeds)}
        plan |= {(FOLLOWED, n, seed): None for n, count in counts.items() for seed in range(count)}
        best = {each: int(np.argmin(known[each]["test_error"])) for each in tried}
        calls = [place(*each) | {"best": best[each], "d": n, "seed": seed} for each, n, seed in plan]
        rows = run_trials(where / "instances", instance, calls, executor)
    ladders = {each: [row for row in rungs if place_of(row) == each] for each in tried}
    rows = [row | {"own": predicted(ladders[place_of(row)], row["m_path"][EARLY])} for row in rows]
    points = [
        {"noise": s, "alpha": alpha, "ways": ways([row for row in told if (row["noise"], row["alpha"]) == (s, alpha)])}
        for s in noises for alpha in alphas
    ]  # fmt: skip
    seen = [
        summarised(ladders[each], [row for row in rows if place_of(row) == each and row["d"] == d]) for each in tried
    ]
    followed = ladders[FOLLOWED]
    growth = [grown(n, followed, [row for row in rows if place_of(row) == FOLLOWED and row["d"] == n]) for n in counts]
    table = markdown(points, seen, growth)
    print(table)
    judge(verdict, points, seen, growth)
    numbers = {
        "d": d, "times": TIMES, "noises": noises, "alphas": alphas, "points": points, "tried": seen, "growth": growth,
        "told": [{key: row[key] for key in ("noise", "alpha", "lam", "test_error", "spread")} for row in told],
    }  # fmt: skip
    verdict.path(".md").write_text(table)
    draw(to_json(numbers), verdict.path(".png"))
    verdict.end(numbers)


def place(noise, alpha, lam):
    return {"noise": noise, "alpha": alpha, "lam": lam}


def place_of(row):
    return row["noise"], row["alpha"], row["lam"]


def mean_and_error(values):
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def predicted(ladder, early):
    """Test error and |m| at every step, of the start that leads to an early |m|: between those of a ladder."""
    starts = np.interp(early, [row["m_path"][EARLY] for row in ladder], LADDER)
    return {
        key: [float(np.interp(starts, LADDER, values)) for values in zip(*[row[key] for row in ladder], strict=True)]
        for key in ("test_error", "m_path")
    }


def summarised(ladder, rows):
    """Test errors of instances, stopped and at the end, beside those predicted with their m and for d → ∞."""
    found, sizes = place(*place_of(rows[0])) | {"best": rows[0]["best"]}, np.array([row["m_path"] for row in ladder])
    for name, step in (("stopped", rows[0]["best"]), ("ended", -1)):
        values, own = (np.array(each) for each in zip(
            *[(row[name], row["own"]["test_error"][step]) for row in rows], strict=True))  # fmt: skip
        (mean, error), (gap, spread) = mean_and_error(values), mean_and_error(values - own)
        found[name] = {
            "mean": mean, "error": error, "spread": float(values.std(ddof=1)), "own": float(own.mean()), "gap": gap,
            "limit": ladder[0]["test_error"][step], "gap_error": float(np.hypot(spread, ladder[0]["spread"][step])),
            "grown": float(sizes[1, step] / LADDER[1]),
        }  # fmt: skip
    return found


def grown(d, ladder, rows):
    """The root mean square of m at step 10 and at the end, of instances and as predicted from step 10 on.

    Beside it √d times that at step 10 which the start alone would lead to.
    """
    early, seen = (np.array([row["m_path"][step] for row in rows]) for step in (EARLY, -1))
    told = np.array([row["own"]["m_path"][-1] for row in rows])
    gap, error = mean_and_error(seen - told)
    sizes = {"early": early, "end": seen, "told": told}
    found = {name: float(np.sqrt(np.mean(values**2))) for name, values in sizes.items()}
    alone = LENGTH * ladder[1]["m_path"][EARLY] / LADDER[1]
    return {"d": d, "seeds": len(rows), "gap": gap, "gap_error": error, "alone": alone} | found


def judge(verdict, points, seen, growth):
    ratios = [
        abs(each["gap"]) / (3 * each["gap_error"] + land.SPREAD * each["spread"])
        for row in seen for each in (row["stopped"], row["ended"])
    ]  # fmt: skip
    words = f"{len(ratios)} means over instances: at most {max(ratios):.2f} of their room off, with their m"
    verdict.check(max(ratios) <= 1, words)
    sizes = np.array([row["d"] for row in growth])
    scaled = np.array([row["early"] for row in growth]) * np.sqrt(sizes)
    room = 3 / np.sqrt(2 * np.array([row["seeds"] for row in growth]))  # of a root mean square of so many Gaussians
    usual = np.average(scaled, weights=[row["seeds"] for row in growth])
    words, alone = (
        ", ".join(f"{each:.2f} at d = {d}" for each, d in zip(scaled, sizes, strict=True)),
        growth[0]["alone"],
    )
    verdict.check(
        bool((abs(scaled / usual - 1) <= room).all()), f"√d m at step {EARLY}: {words}; {alone:.2f} by the start alone"
    )
    off = [abs(row["gap"]) / row["gap_error"] for row in growth]
    verdict.check(max(off) <= 4, f"m at the end: at most {max(off):.1f} standard errors from where step {EARLY} leads")
    noisy = [point["ways"] for point in points if point["noise"] >= CLEAR]
    least = min(excess(each) for each in noisy)
    words = f"s >= {CLEAR:g}: at the end the best λ errs {100 * least:.0f} % or more above the best stop"
    verdict.check(least > 0, words)
    gains = [1 - each["best λ, stopped"]["test_error"] / each["smallest λ, stopped"]["test_error"] for each in noisy]
    verdict.check(max(gains) <= GAIN, f"s >= {CLEAR:g}: both together gain at most {100 * max(gains):.1f} % on a stop")
    calm = [point["ways"] for point in points if point["noise"] == min(NOISES)]
    loss = [each["smallest λ, to the end"]["test_error"] / each["smallest λ, stopped"]["test_error"] for each in calm]
    words = f"s = {min(NOISES):g}: training the smallest λ to the end costs at most {100 * (max(loss) - 1):.1f} %"
    verdict.check(max(loss) <= 1 + GAIN, words)


def markdown(points, seen, growth):
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
            told = [f"{1e3 * each['own']:.2f}", f"{1e3 * each['limit']:.2f}", f"{each['grown']:.1f}"]
            mean = plus_minus(1e3 * each["mean"], 1e3 * each["error"])
            cells = [*where, "the stop" if name == "stopped" else "the end", mean, *told]
            lines.append("| " + " | ".join(cells) + " |")
    heads = ["d", "instances", f"√d m at step {EARLY}", "m at the end", "predicted"]
    lines += ["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in growth:
        lines.append(f"| {row['d']} | {row['seeds']} | {np.sqrt(row['d']) * row['early']:.2f} | {row['end']:.3f} "
                     f"| {row['told']:.3f} |")  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
