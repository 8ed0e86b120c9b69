"""The paper's own training, 5000 steps of .15, predicted: how far from its end it stops, along Figure 2's α.

On both branches at ω = .3, at training time 750, the product of step and steps: the theory of gradient descent; the
fixed points of state evolution, where training may end; descents on instances at d = 1000 of both risks, and where
L-BFGS takes some of them from there; and the means and spreads that the authors published with their code. All but the
paper's own steps, taken at one point, are fewer and longer ones to the same time.

Criterion: longer steps end within .5 % of where the paper's do. Means of descents are within three standard errors and
half of one instance's spread (an O(1/√d), pooled over α) of the theory at time 750 in the branch's own overlap, ε_t and
ε_g. So are the published means, within the published spread of one instance, as their number is not known. On the
semantic branch published θ are more than three spreads off a fixed point somewhere.
"""

from pathlib import Path

import numpy as np

import gamp_attention as ga
from gamp_attention._core.display import to_json
from gamp_attention.data.risk import sampled_test_error
from validation._tools import landscape as land
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.trials import run_trials
from validation.paper._training_time_picture import draw

OMEGA, TIME = 0.3, 750.0
PUBLISHED = Path(__file__).parent / "_published" / "figure2.csv"
PAPER, LONGER = 5000, 150  # steps to that time
RISKS = ("exact", "asymptotic")
OWN = {"semantic": "theta", "positional": "m"}
KEYS = ("q", "m", "theta", "train_loss", "test_error")
PATHS, QUICK_PATHS = {"n_paths": 2048, "n_replicas": 5}, {"n_paths": 1280, "n_replicas": 2}
SIZE = {"d": 1000, "alphas": range(len(land.ALPHAS)), "tried": (5, 10), "slow": 5}
QUICK = {"d": 300, "alphas": (6, 18), "tried": (6,), "slow": 6}
SEEDS, ENDS = 2, 1  # of instances, and of those that are followed to their minimum
SAME = 5e-3  # of ends at one training time
APART, FEW = 3.0, 5  # spreads between published and fixed points; α, with fewer of which that is not asked for


def theory(alpha, branch, n_paths, n_replicas):
    """The prediction at the end of training and the fixed point, each with its errors; of the latter where it is."""
    model = ga.paper_model(OMEGA)
    path = ga.trajectory(
        model, alpha, branch, method="gd", lr=TIME / LONGER, n_iter=LONGER, n_paths=n_paths, n_replicas=n_replicas
    )
    value, error = path.scalars(), path.error.scalars()
    told = {key: (float(value[key][-1]), float(error[key][-1])) for key in KEYS[:3]}
    for key in KEYS[3:]:
        told[key] = float(getattr(path, key)[-1]), float(getattr(path, f"{key}_error")[-1])
    se = ga.solve_state_evolution(model, alpha, branch, rtol=1e-3, stability=False)
    fixed = None
    if se.converged:
        value = se.overlaps.scalars()
        fixed = {key: abs(float(value[key])) for key in KEYS[:3]} | {key: getattr(se, key) for key in KEYS[3:]}
    return {"told": told, "fixed": fixed, "status": se.status.value}


def instance(alpha, branch, risk, d, seed, steps, end):
    """A descent at its end; and, if asked for, where L-BFGS takes it from there."""
    data = ga.sample(ga.paper_model(OMEGA), d, alpha, np.random.default_rng([d, seed, round(1e6 * alpha)]))
    run = ga.minimize_risk(data, branch, risk, "gd", lr=TIME / steps, max_iter=steps, tol=0)
    found = {"stopped": _row(data, run), "gradient": run.gradient_norm}
    if end:
        last = ga.minimize_risk(data, run.Q, risk, "lbfgs", max_iter=1000, tol=1e-5)
        found |= {"ended": _row(data, last), "status": last.status.value}
    return found


def _row(data, run):
    value = {key: abs(float(v)) for key, v in run.overlaps.scalars().items() if key in KEYS}
    error, _ = sampled_test_error(data, run.Q, n_samples=2000)
    return value | {"train_loss": run.train_loss, "test_error": error}


def published():
    """Rows of means and spreads by branch and α, from results_mean_standardA.csv of the authors' repository."""
    table = np.genfromtxt(PUBLISHED, delimiter=",", names=True, dtype=None, encoding="utf-8")
    return {(row["branch"], round(float(row["alpha"]), 4)): row for row in table}


def summarised(branch, alpha, told, rows, reference):
    """What is known at one α of a branch."""
    point = {"alpha": alpha, "theory": told["told"], "fixed": told["fixed"], "status": told["status"]}
    for risk in RISKS:
        mine = [row for row in rows if (row["branch"], row["alpha"], row["risk"]) == (branch, alpha, risk)]
        if not mine:
            continue
        point[risk] = land.statistics([row["stopped"] for row in mine], KEYS)
        point[risk]["gradient"] = float(np.mean([row["gradient"] for row in mine]))
        both = [(row["stopped"], row["ended"]) for row in mine if "ended" in row]
        if both:
            point[risk]["to go"] = {key: float(np.mean([b[key] / a[key] - 1 for a, b in both])) for key in KEYS}
    keys = (OWN[branch], "train_loss", "test_error")
    point["published"] = {key: (float(reference[key]), float(reference[f"{key}_spread"])) for key in keys}
    return point


def main():
    found = options(__doc__, draw=True, workers=True)
    verdict = Verdict("training_time", found)
    if found.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    size = QUICK if found.quick else SIZE
    alphas, where = [float(alpha) for alpha in land.ALPHAS[list(size["alphas"])]], folder(found, verdict.name)
    places = [{"alpha": alpha, "branch": branch} for alpha in alphas for branch in land.BRANCHES]
    tried = [float(alpha) for alpha in land.ALPHAS[list(size["tried"])]]
    plan = [
        {"alpha": alpha, "branch": branch, "risk": risk, "d": size["d"], "seed": seed, "steps": LONGER,
         "end": seed < ENDS and risk == "exact"}
        for alpha in tried for branch in land.BRANCHES for risk in RISKS for seed in range(SEEDS)
    ]  # fmt: skip
    last = {"risk": "exact", "d": size["d"], "seed": 0, "steps": PAPER, "end": False}
    slow = [{"alpha": float(land.ALPHAS[size["slow"]]), "branch": "semantic"} | last]
    with pool(found) as executor:
        paths = QUICK_PATHS if found.quick else PATHS
        told = run_trials(where / "theory", theory, [place | paths for place in places], executor)
        rows = run_trials(where / "instances", instance, plan, executor)
        paper = run_trials(where / "instances", instance, slow, executor)
    reference = published()
    numbers = {
        branch: [
            summarised(branch, each["alpha"], each, rows, reference[branch, round(each["alpha"], 4)])
            for each in told if each["branch"] == branch
        ]
        for branch in land.BRANCHES
    }  # fmt: skip
    numbers |= {"d": size["d"], "seeds": SEEDS, "steps apart": steps_apart(paper, rows)}
    table = markdown(numbers)
    print(table)
    verdict.path(".md").write_text(table)
    judge(verdict, numbers)
    draw(to_json(numbers), verdict.path(".png"))
    verdict.end(numbers)


def steps_apart(paper, rows):
    """The largest relative difference that long steps make, of q, the branch's own overlap and ε_t."""
    found = []
    for row in paper:
        same = [each for each in rows if all(each[k] == row[k] for k in ("alpha", "branch", "risk", "d", "seed"))]
        for key in ("q", OWN[row["branch"]], "train_loss"):
            found.append(abs(same[0]["stopped"][key] / row["stopped"][key] - 1))
    return max(found)


def offs(whole, key, of):
    """Numbers beside the theory's at time 750 and beside the fixed point's, in units of their room or spread."""
    table = [point for point in whole if of in point]
    told = np.array([point["theory"][key] for point in table])
    fixed = land.numbers([(point["fixed"] or {}).get(key) for point in table])
    if of == "published":
        value, spread = np.array([point["published"][key] for point in table]).T
        return (value - told[:, 0]) / spread, (value - fixed) / spread
    value, spread = (np.array([point[of][key][what] for point in table]) for what in ("mean", "spread"))
    share = np.sqrt(np.mean((spread / value) ** 2)) * value  # pooled: few instances at each α
    count = (spread / np.array([point[of][key]["error"] for point in table])) ** 2
    room = 3 * np.hypot(share / np.sqrt(count), told[:, 1]) + land.SPREAD * share
    return (value - told[:, 0]) / room, (value - fixed) / room


def judge(verdict, numbers):
    apart = numbers["steps apart"]
    verdict.check(
        apart <= SAME, f"{LONGER} steps of {TIME / LONGER:g} end within {100 * apart:.2f} % of {PAPER} of .15"
    )
    for branch in land.BRANCHES:
        table = numbers[branch]
        for of in (*RISKS, "published"):
            for key in (OWN[branch], "train_loss", "test_error"):
                here, there = (np.abs(each) for each in offs(table, key, of))
                unit = "of its spread" if of == "published" else "of its room"
                words = f"{branch}, {of}: {land.SYMBOLS[key]} at most {here.max():.2f} {unit} off at time {TIME:g}"
                off = f"{np.nanmax(there):.2f}" if np.isfinite(there).any() else "–"
                verdict.check(here.max() <= 1, f"{words}; {off} from the fixed point where there is one")
    if len(numbers["semantic"]) >= FEW:
        most = np.nanmax(np.abs(offs(numbers["semantic"], "theta", "published")[1]))
        words = f"published θ is up to {most:.1f} of its spread off the fixed points of the semantic branch"
        verdict.check(most > APART, words)


def markdown(numbers):
    lines = [
        "| start | α | own overlap: fixed point | at time 750 | published | descents, exact "
        "| q: fixed point | at time 750 | 1000 ε_t: fixed point | at time 750 | published |",
    ]
    lines += ["|" + "---|" * lines[0].count(" | ") + "---|"]
    for branch in land.BRANCHES:
        for point in numbers[branch]:
            own, fixed = OWN[branch], point["fixed"] or {}
            cells = [branch, f"{point['alpha']:.3f}"]
            for key in (own, "q", "train_loss"):
                scale, digits = (1e3, 3) if key == "train_loss" else (1, 4)
                cells.append(f"{scale * fixed[key]:.{digits}f}" if key in fixed else "–")
                value, error = point["theory"][key]
                cells.append(plus_minus(scale * abs(value), scale * error))
                if key in point["published"]:
                    value, spread = point["published"][key]
                    cells.append(f"{scale * value:.{digits}f} (spread {scale * spread:.{digits}f})")
                if key == own:
                    seen = point.get("exact", {}).get(key)
                    cells.append(plus_minus(seen["mean"], seen["error"]) if seen else "–")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
