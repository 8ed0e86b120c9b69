"""The theory of descent predicts where the paper's training of 5000 steps of 0.15 stops, along figure 2's α.

Method: on both branches at ω = 0.3, at training time 750, the product of step and steps: the theory of gradient
descent; the fixed points of state evolution, where training may end; descents on instances at d = 1000 of both risks,
some of them continued by L-BFGS; and the means and spreads that the authors published with their code. Except at one
point, fewer and longer steps reach the same time.

Criterion: longer steps end within 0.5 % of the paper's steps. Means of descents are within three standard errors and
half of one instance's spread (an O(1/√d), pooled over α) of the theory at time 750 in the branch's overlap, ε_t and
ε_g. Published means are within the published spread of one instance, as their number is not known. On the semantic
branch some published θ is more than three spreads from the fixed point.
"""

from pathlib import Path

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, COLORS, DARK, GREY, WORDS, draw_legend
from validation._tools import landscape as land
from validation._tools.drawing import figure
from validation._tools.report import begin, folder, pool
from validation._tools.resumable import run_trials

OMEGA, TIME = 0.3, 750.0
PUBLISHED = Path(__file__).parent / "_published" / "figure2.csv"
PAPER, LONGER = 5000, 150  # numbers of steps to that time
RISKS = ("exact", "asymptotic")
OWN = {"semantic": "theta", "positional": "m"}
KEYS = ("q", "m", "theta", "train_loss", "test_error")
PATHS, QUICK_PATHS = {"n_paths": 2048, "n_replicas": 5}, {"n_paths": 1280, "n_replicas": 2}
SIZE = {"d": 1000, "alphas": range(len(land.ALPHAS)), "tried": (5, 10), "slow": 5}
QUICK = {"d": 300, "alphas": (6, 18), "tried": (6,), "slow": 6}
SEEDS, ENDS = 2, 1  # number of instances, and of instances that continue to their minimum
SAME = 5e-3  # relative difference of ends at one training time, at most
APART, FEW = 3.0, 5  # distance from the fixed points in spreads; number of α from which on it is checked


def predict(alpha, branch, n_paths, n_replicas):
    """Return the prediction at the end of training with errors, and the fixed point if it exists."""
    model = ga.paper_model(OMEGA)
    path = ga.trajectory(
        model, alpha, branch, ga.GradientDescent(lr=TIME / LONGER), n_iter=LONGER, n_paths=n_paths,
        n_replicas=n_replicas,
    )  # fmt: skip
    value, error = path.scalars(), path.error.scalars()
    values = {key: (float(value[key][-1]), float(error[key][-1])) for key in KEYS[:3]}
    for key in KEYS[3:]:
        values[key] = float(getattr(path, key)[-1]), float(getattr(path, f"{key}_error")[-1])
    se = ga.solve_state_evolution(model, alpha, branch, rtol=1e-3, stability=False)
    fixed = None
    if se.converged:
        value = se.overlaps.scalars()
        fixed = {key: abs(float(value[key])) for key in KEYS[:3]} | {key: getattr(se, key) for key in KEYS[3:]}
    return {"told": values, "fixed": fixed, "status": se.status.value}


def run_descent(alpha, branch, risk, d, seed, steps, end):
    """Return a descent at its end, and the minimum by L-BFGS from there if `end` is set."""
    data = ga.sample(ga.paper_model(OMEGA), d, alpha, np.random.default_rng([d, seed, round(1e6 * alpha)]))
    run = ga.minimize_risk(data, branch, risk, "gd", lr=TIME / steps, max_iter=steps, tol=0)
    row = {"stopped": _collect(data, run), "gradient": run.gradient_norm}
    if end:
        last = ga.minimize_risk(data, run.Q, risk, "lbfgs", max_iter=1000, tol=1e-5)
        row |= {"ended": _collect(data, last), "status": last.status.value}
    return row


def _collect(data, run):
    value = {key: abs(float(v)) for key, v in run.overlaps.scalars().items() if key in KEYS}
    error, _ = ga.sampled_test_error(data, run.Q, n_samples=2000)
    return value | {"train_loss": run.train_loss, "test_error": error}


def load_published():
    """Return rows of means and spreads by branch and α, from results_mean_standardA.csv of the authors' repository."""
    table = np.genfromtxt(PUBLISHED, delimiter=",", names=True, dtype=None, encoding="utf-8")
    return {(row["branch"], round(float(row["alpha"]), 4)): row for row in table}


def summarize(branch, alpha, prediction, rows, reference):
    """Return all results at one α of a branch."""
    point = {"alpha": alpha, "theory": prediction["told"], "fixed": prediction["fixed"], "status": prediction["status"]}
    for risk in RISKS:
        mine = [row for row in rows if (row["branch"], row["alpha"], row["risk"]) == (branch, alpha, risk)]
        if not mine:
            continue
        point[risk] = land.compute_statistics([row["stopped"] for row in mine], KEYS)
        point[risk]["gradient"] = float(np.mean([row["gradient"] for row in mine]))
        both = [(row["stopped"], row["ended"]) for row in mine if "ended" in row]
        if both:
            point[risk]["to go"] = {key: float(np.mean([b[key] / a[key] - 1 for a, b in both])) for key in KEYS}
    keys = (OWN[branch], "train_loss", "test_error")
    point["published"] = {key: (float(reference[key]), float(reference[f"{key}_spread"])) for key in keys}
    return point


COLUMNS = {"semantic": ("q", "theta", "train_loss", "test_error"), "positional": ("q", "m", "train_loss", "test_error")}
SCALED = ("train_loss",)  # drawn divided by α, to which they are nearly proportional


def draw(numbers, path):
    with figure(path, 4, 2, (9.2, 10.6)) as axes:
        for row, branch in zip(axes.T, land.BRANCHES, strict=True):
            table = numbers[branch]
            alpha = np.array([point["alpha"] for point in table])
            for axis, key in zip(row, COLUMNS[branch], strict=True):
                _draw_key(axis, alpha, table, key, branch)
            row[-1].set_xlabel(ALPHA)
        draw_legend(*axes[1], columns=2)
        axes[0, 0].figure.suptitle(f"5000 steps of 0.15, ω = 0.3; d = {numbers['d']}, bars: 2 standard errors")


def _draw_key(axis, alpha, table, key, branch):
    share = alpha if key in SCALED else np.ones_like(alpha)
    fixed = land.to_array([(point["fixed"] or {}).get(key) for point in table])
    predicted, error = np.array([point["theory"][key] for point in table]).T
    axis.plot(alpha, fixed / share, "--", color=GREY, label="fixed point of state evolution")
    axis.plot(alpha, predicted / share, color=COLORS[branch], label=f"theory of this training, {branch} start")
    band = (predicted - 2 * error) / share, (predicted + 2 * error) / share
    axis.fill_between(alpha, *band, color=COLORS[branch], alpha=0.3, lw=0)
    for risk, fill in (("exact", COLORS[branch]), ("asymptotic", "white")):
        tried = np.array([risk in point for point in table])
        mean, error = (
            land.to_array([point[risk][key][what] for point in table if risk in point]) for what in ("mean", "error")
        )
        axis.errorbar(alpha[tried], mean / share[tried], 2 * error / share[tried], fmt="o", ms=5, mfc=fill,
                      color=COLORS[branch], lw=1, label=f"descents, {branch} start, {risk} risk")  # fmt: skip
    if key in table[0]["published"]:
        axis.plot(alpha, [point["published"][key][0] for point in table] / share, "x", color=DARK, label="published")
    top = max(np.nanmax(predicted / share), np.nanmax(fixed / share))
    axis.set(title=f"{branch} start: {WORDS[key]}" + (r"$/\alpha$" if key in SCALED else ""), xlim=(0, None))
    axis.set_ylim(*((0.7 * np.nanmin(predicted / share), 1.1 * top) if key in SCALED else (0, 1.15 * top)))


def main():
    args, verdict = begin("training_time", __doc__, draw, workers=True)
    size = QUICK if args.quick else SIZE
    alphas, where = [float(alpha) for alpha in land.ALPHAS[list(size["alphas"])]], folder(args, verdict.name)
    places = [{"alpha": alpha, "branch": branch} for alpha in alphas for branch in land.BRANCHES]
    tried = [float(alpha) for alpha in land.ALPHAS[list(size["tried"])]]
    plan = [
        {"alpha": alpha, "branch": branch, "risk": risk, "d": size["d"], "seed": seed, "steps": LONGER,
         "end": seed < ENDS and risk == "exact"}
        for alpha in tried for branch in land.BRANCHES for risk in RISKS for seed in range(SEEDS)
    ]  # fmt: skip
    last = {"risk": "exact", "d": size["d"], "seed": 0, "steps": PAPER, "end": False}
    slow = [{"alpha": float(land.ALPHAS[size["slow"]]), "branch": "semantic"} | last]
    with pool(args) as executor:
        paths = QUICK_PATHS if args.quick else PATHS
        predictions = run_trials(where / "theory", predict, [place | paths for place in places], executor)
        rows = run_trials(where / "instances", run_descent, plan, executor)
        paper = run_trials(where / "instances", run_descent, slow, executor)
    reference = load_published()
    numbers = {
        branch: [
            summarize(branch, each["alpha"], each, rows, reference[branch, round(each["alpha"], 4)])
            for each in predictions if each["branch"] == branch
        ]
        for branch in land.BRANCHES
    }  # fmt: skip
    numbers |= {"d": size["d"], "seeds": SEEDS, "steps apart": compare_steps(paper, rows)}
    check_criterion(verdict, numbers)
    verdict.end(numbers, draw)


def compare_steps(paper, rows):
    """Return the largest relative difference that long steps make in q, the branch's overlap and ε_t."""
    differences = []
    for row in paper:
        same = [each for each in rows if all(each[k] == row[k] for k in ("alpha", "branch", "risk", "d", "seed"))]
        for key in ("q", OWN[row["branch"]], "train_loss"):
            differences.append(abs(same[0]["stopped"][key] / row["stopped"][key] - 1))
    return max(differences)


def compute_differences(whole, key, of):
    """Return differences from the theory at time 750 and from the fixed point, in units of tolerance or spread."""
    table = [point for point in whole if of in point]
    predicted = np.array([point["theory"][key] for point in table])
    fixed = land.to_array([(point["fixed"] or {}).get(key) for point in table])
    if of == "published":
        value, spread = np.array([point["published"][key] for point in table]).T
        return (value - predicted[:, 0]) / spread, (value - fixed) / spread
    value, spread = (np.array([point[of][key][what] for point in table]) for what in ("mean", "spread"))
    share = np.sqrt(np.mean((spread / value) ** 2)) * value  # pooled: few instances at each α
    count = (spread / np.array([point[of][key]["error"] for point in table])) ** 2
    room = 3 * np.hypot(share / np.sqrt(count), predicted[:, 1]) + land.SPREAD * share
    return (value - predicted[:, 0]) / room, (value - fixed) / room


def check_criterion(verdict, numbers):
    apart = numbers["steps apart"]
    verdict.check(
        apart <= SAME, f"{LONGER} steps of {TIME / LONGER:g} end within {100 * apart:.2f} % of {PAPER} of 0.15"
    )
    for branch in land.BRANCHES:
        table = numbers[branch]
        for of in (*RISKS, "published"):
            for key in (OWN[branch], "train_loss", "test_error"):
                here, there = (np.abs(each) for each in compute_differences(table, key, of))
                unit = "of its spread" if of == "published" else "of the allowed deviation"
                words = f"{branch}, {of}: {land.SYMBOLS[key]} at most {here.max():.2f} {unit} off at time {TIME:g}"
                off = f"{np.nanmax(there):.2f}" if np.isfinite(there).any() else "–"
                verdict.check(here.max() <= 1, f"{words}; {off} from the fixed point if there is one")
    if len(numbers["semantic"]) >= FEW:
        most = np.nanmax(np.abs(compute_differences(numbers["semantic"], "theta", "published")[1]))
        words = f"published θ is up to {most:.1f} of its spread off the fixed points of the semantic branch"
        verdict.check(most > APART, words)


if __name__ == "__main__":
    main()
