"""Which minimum descent finds on the positional branch: long training predicted, beside descents and GAMP at finite d.

Replica symmetry is broken on the positional branch, so its fixed point is not where training ends. Heavy-ball descent,
whose 150 steps are a training time of 4500, has nearly stopped by then at any d tried (gradients of 4e-3 and less), and
L-BFGS finishes it. Its theory is followed as long, by `trajectory`, which counts what too few of its paths carry
(`MIN_CARRIERS`), and by sampled responses alone, which miss it at late times. Where it ends is the mean over the last
third of the steps, its error the spread over replicas and the drift since the middle third. Instances are told relative
to the fixed point for their own teacher.

Plain descent and one with more momentum are started on some instances, too; how many end elsewhere is told.

Criterion: the theory ends within four standard errors (of both) of where descents do, in q and
m; the replica-symmetric fixed point is more than four standard errors from there in q or m. GAMP's minimum is
the lower one in at least three quarters as many instances as have two.
"""

from contextlib import nullcontext
from unittest.mock import patch

import numpy as np

import gamp_attention as ga
from gamp_attention._core.display import plain
from gamp_attention.state_evolution.dynamics import descent_paths
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.trials import run_trials
from validation.claims._end_of_descent_picture import draw

ALPHA, START = 1.5, "positional"
HOW = {"method": "momentum", "lr": 6.0, "momentum": 0.8}  # 30 of training time a step
OTHERS = ({"method": "gd", "lr": 6.0}, {"method": "momentum", "lr": 6.0, "momentum": 0.9})
STEPS, PER_STEP = 150, 30.0
SEEDS = {1000: 12, 2000: 10, 4000: 4, 8000: 1}
QUICK = {300: 4}
WAYS = ("as sampled", "with jumps counted")
REPLICAS = {"n_paths": 4096, "seeds": 4}  # of two each
QUICK_REPLICAS = {"n_paths": 1280, "seeds": 2}
KEYS = ("q", "m")
SAME, MOST, DEEPER, MANY_SEEDS = 1e-5, 4.0, 0.75, 4  # ‖ΔQ‖/√d, standard errors, share, instances to follow


def theory(way, n_paths, seed):
    """Two replicas of the prediction: their means at every step."""
    with patch.object(descent_paths, "MIN_CARRIERS", 0.0) if way == WAYS[0] else nullcontext():
        path = ga.trajectory(
            ga.paper_model(), ALPHA, START, n_iter=STEPS, n_paths=n_paths, n_replicas=2, seed=seed, **HOW
        )
    value = path.scalars()
    return {key: value[key].tolist() for key in KEYS} | {"train_loss": path.train_loss.tolist()}


def scalars(overlaps, loss):
    value = overlaps.scalars()
    return {key: abs(float(value[key])) for key in ("q", "m", "V")} | {"train_loss": loss}


def trial(d, seed):
    """A descent at every step and at its end, GAMP's minimum, and the fixed point for the instance's own teacher."""
    data = ga.sample(ga.paper_model(), d, ALPHA, np.random.default_rng([d, seed]))
    descent = ga.minimize_risk(data, START, "asymptotic", max_iter=STEPS, tol=0, **HOW)
    ended = ga.minimize_risk(data, descent.Q, "asymptotic", "lbfgs", max_iter=2000, tol=1e-6)
    gamp = ga.run_gamp(data, START, "asymptotic")
    se = ga.solve_state_evolution(data.instance_model(), data.alpha, START, rtol=1e-3, stability=False)
    history = {key: np.abs(value).tolist() for key, value in descent.history.scalars().items() if key in KEYS}
    return {
        "path": history | {"train_loss": descent.history.train_loss.tolist()},
        "gradient": descent.gradient_norm, "moved": float(np.linalg.norm(ended.Q - descent.Q) / np.sqrt(d)),
        "descent": scalars(ended.overlaps, ended.train_loss) | {"status": ended.status.value},
        "gamp": scalars(gamp.overlaps, gamp.train_loss) | {"status": gamp.status.value},
        "fixed": scalars(se.overlaps, se.train_loss) | {"status": se.status.value},
        "distance": apart(ended.Q, gamp.Q),
    }  # fmt: skip


def others(d, seed):
    """How far from the heavy ball's minimum other descents end, ‖ΔQ‖/√d."""
    data = ga.sample(ga.paper_model(), d, ALPHA, np.random.default_rng([d, seed]))
    ends = []
    for how in (HOW, *OTHERS):
        run = ga.minimize_risk(data, START, "asymptotic", max_iter=400, tol=1e-7, **how)
        ends.append(ga.minimize_risk(data, run.Q, "asymptotic", "lbfgs", max_iter=2000, tol=1e-7).Q)
    return {"apart": [apart(ends[0], Q) for Q in ends[1:]]}


def apart(Q, other):
    """‖ΔQ‖/√d up to the sign."""
    return float(min(np.linalg.norm(Q - sign * other) for sign in (1, -1)) / np.sqrt(len(Q)))


def main():
    found = options(__doc__, draw=True, workers=True)
    verdict, sizes = Verdict("end_of_descent", found), QUICK if found.quick else SEEDS
    if found.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    size, where = QUICK_REPLICAS if found.quick else REPLICAS, folder(found, verdict.name)
    paths = [{"way": way, "n_paths": size["n_paths"], "seed": seed} for way in WAYS for seed in range(size["seeds"])]
    plan = [{"d": d, "seed": seed} for d, seeds in sizes.items() for seed in range(seeds)]
    with pool(found) as executor:
        told = run_trials(where / "theory", theory, paths, executor)
        rows = run_trials(where / "instances", trial, plan, executor)
        same = run_trials(where / "others", others, [place for place in plan if place["d"] <= 2000][::4], executor)
    numbers = summarised(told, rows, sizes) | {"same": [row["apart"] for row in same]}
    table = markdown(numbers)
    print(table)
    verdict.path(".md").write_text(table)
    judge(verdict, numbers, rows)
    draw(plain(numbers), verdict.path(".png"))
    verdict.end(numbers)


def mean_and_error(values):
    """Over the first axis."""
    values = np.asarray(values)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1:], np.nan)
    return {"mean": values.mean(axis=0), "error": spread / np.sqrt(len(values))}


def summarised(told, rows, sizes):
    """Theory and instances relative to the replica-symmetric fixed points, less one."""
    se = ga.solve_state_evolution(ga.paper_model(), ALPHA, START, rtol=1e-4, stability=False)
    fixed = scalars(se.overlaps, se.train_loss)
    found = {"times": PER_STEP * np.arange(STEPS + 1), "fixed": fixed, "theory": {}, "ends": {}, "limits": {}}
    third = STEPS // 3
    for way in WAYS:
        mine = [row for row in told if row["way"] == way]
        found["theory"][way] = {}
        for key in KEYS:
            off = np.array([row[key] for row in mine]) / fixed[key] - 1
            end, before = (
                mean_and_error(off[:, part].mean(axis=1)) for part in (slice(-third, None), slice(third, -third))
            )
            drift = abs(end["mean"] - before["mean"])
            end["error"] = float(np.hypot(end["error"], drift))
            found["theory"][way][key] = mean_and_error(off) | {"end": end, "drift": drift}
    for name in ("descent", "gamp"):
        offs = {
            d: {key: [row[name][key] / row["fixed"][key] - 1 for row in rows if row["d"] == d] for key in (*KEYS, "V")}
            for d in sizes
        }
        found["ends"][name] = {
            d: {key: mean_and_error(values) for key, values in each.items()} for d, each in offs.items()
        }
        found["limits"][name] = {key: pooled({d: each[key] for d, each in offs.items()}) for key in (*KEYS, "V")}
    followed = max(d for d, seeds in sizes.items() if seeds >= MANY_SEEDS)
    mine = [row for row in rows if row["d"] == followed]
    found["followed"] = followed
    found["path"] = {
        key: mean_and_error([np.array(row["path"][key]) / row["fixed"][key] - 1 for row in mine]) for key in KEYS
    }
    return found


def pooled(by_size):
    """The mean over all instances, each weighted by its d, as the spread of one is s/√d; and its standard error."""
    d = np.concatenate([np.full(len(values), float(size)) for size, values in by_size.items()])
    values = np.concatenate(list(by_size.values()))
    mean = np.average(values, weights=d)
    spread = np.sqrt(np.sum(d * (values - mean) ** 2) / (len(d) - 1))
    return {"mean": float(mean), "error": float(spread / np.sqrt(d.sum()))}


def judge(verdict, numbers, rows):
    alone = np.mean([each > SAME for pair in numbers["same"] for each in pair])
    print(f"other descents end in other minima than the heavy ball's in {alone:.0%}")
    limit, told = numbers["limits"]["descent"], numbers["theory"][WAYS[-1]]
    beyond = []
    for key in KEYS:
        gap = abs(told[key]["end"]["mean"] - limit[key]["mean"])
        ratio = gap / np.hypot(told[key]["end"]["error"], limit[key]["error"])
        verdict.check(ratio <= MOST, f"{key}: the theory ends {ratio:.1f} standard errors from where descents do")
        beyond.append(abs(limit[key]["mean"]) / limit[key]["error"])
    words = " and ".join(f"{each:.1f} in {key}" for each, key in zip(beyond, KEYS, strict=True))
    enough = verdict.name.endswith("_quick") or max(beyond) > MOST  # a few seeds cannot tell
    verdict.check(enough, f"the fixed point is {words} standard errors from where descents end")
    lower = np.mean([row["gamp"]["train_loss"] < row["descent"]["train_loss"] for row in rows])
    other = np.mean([row["distance"] > SAME for row in rows])
    verdict.check(lower >= DEEPER * other, f"GAMP's minimum is another in {other:.0%}, of lower loss in {lower:.0%}")


def markdown(numbers):
    lines = ["| % off the fixed point | q | m | V |", "|---|---|---|---|"]

    def row(name, values):
        cells = [plus_minus(100 * values[key]["mean"], 100 * values[key]["error"]) if key in values else "–"
                 for key in (*KEYS, "V")]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    for way in WAYS:
        row(f"end of descent, theory, {way}", {key: numbers["theory"][way][key]["end"] for key in KEYS})
    for name, words in (("descent", "end of descent"), ("gamp", "GAMP's minimum")):
        for d, values in numbers["ends"][name].items():
            row(f"{words}, d = {d}", values)
        row(f"{words}, all d", numbers["limits"][name])
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
