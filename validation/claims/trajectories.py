"""GAMP's trajectories follow state evolution, with deviations like d^(−1/2); the naive Onsager term fails.

Method: each instance is compared with the prediction for its teacher (`Dataset.instance_model`), which removes the
fluctuations of the teacher.

Criterion: the mean over seeds differs from state evolution by at most 4 standard errors (of both) in q, m, θ at every
iteration; in V too on the semantic branch, and on the positional branch if A_t is taken from state evolution. The
deviation of one instance falls like d^(−1/2). The naive Onsager term D = V g fails the same check. (Theory page of the
manual.)
"""

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, LABELS, WORDS, draw_legend
from gamp_attention.gamp.step import averaged_memory, naive_memory
from validation._tools.drawing import figure
from validation._tools.report import run_claim
from validation._tools.tables import fit_slope, round_curve

ALPHA, OMEGA = 1.5, 0.3
DEVIATIONS = (0.003, 0.005, 0.01, 0.02, 0.03)  # labelled on the axis of relative deviations
# for each name the branch, damping, number of iterations, whether V_hat is predicted, memory, and checked overlaps
RUNS = {
    "semantic": ("semantic", 0.5, 20, False, averaged_memory, ("q", "m", "theta", "V")),
    "undamped": ("semantic", 1.0, 4, False, averaged_memory, ("q", "m", "theta", "V")),
    "positional": ("positional", 0.3, 20, False, averaged_memory, ("q", "m", "theta")),
    "positional, A from state evolution": ("positional", 0.3, 20, True, averaged_memory, ("q", "m", "theta", "V")),
    "naive semantic": ("semantic", 0.5, 20, False, naive_memory, ("q", "m", "theta", "V")),
    "naive positional": ("positional", 0.3, 20, False, naive_memory, ("q", "m", "theta")),
}


def measure_deviation(name, d, seed):
    """Return deviations of GAMP from the prediction for its instance, and their errors, (T + 1) each, by overlap."""
    branch, damping, n_iter, predicted, memory, _ = RUNS[name]
    data = ga.sample(ga.paper_model(OMEGA), d, ALPHA, np.random.default_rng([d, seed]))
    path = ga.trajectory(
        data.instance_model(),
        data.alpha,
        branch,
        ga.MessagePassing(damping),
        n_iter,
        n_replicas=2,
        seed=1000 * d + seed,
    )
    iteration = ga.IterationOptions(path.V_hat if predicted else None, memory=memory)
    run = ga.run_gamp(data, branch, "asymptotic", damping=damping, tol=0, max_iter=n_iter, iteration=iteration)
    measured, expected, errors = run.history.scalars(), path.scalars(), path.error.scalars()
    return {
        "gaps": {key: (measured[key] - expected[key]).tolist() for key in LABELS},
        "errors": {key: errors[key].tolist() for key in LABELS},
    }


def find_worst(gaps, errors, scale):
    """Return the largest |mean deviation over seeds| in standard errors of GAMP and the predictions."""
    both = np.sqrt((gaps.var(axis=0, ddof=1) + (errors**2).mean(axis=0)) / len(gaps))
    known = both > 1e-9 * scale  # the start is exact
    return float((np.abs(gaps.mean(axis=0)) / np.where(known, both, np.inf)).max())


def plan(quick):
    """Return the instances; runs with the naive Onsager term have the largest d only."""
    sizes = {500: 10, 1000: 8} if quick else {500: 24, 1000: 24, 2000: 20, 4000: 16}
    return {
        measure_deviation: [
            {"name": name, "d": d, "seed": seed} for name in RUNS for d, seeds in sizes.items() for seed in range(seeds)
            if d == max(sizes) or not name.startswith("naive")
        ]
    }  # fmt: skip


def judge(verdict, rows):
    """Check mean deviations in standard errors, and the exponent of the deviation of one instance."""
    numbers = {}
    for name, (branch, damping, n_iter, _, _, checked) in RUNS.items():
        method = ga.MessagePassing(damping=damping)
        predicted = ga.trajectory(ga.paper_model(OMEGA), ALPHA, branch, method, n_iter=n_iter, seed=1).scalars()
        mine = [row for row in rows if row["name"] == name]
        sizes, deviations, worst = sorted({row["d"] for row in mine}), [], {}
        main_overlap = "theta" if branch == "semantic" else "m"
        for d in sizes:
            gaps, errors = (
                {key: np.array([row[part][key] for row in mine if row["d"] == d]) for key in LABELS}
                for part in ("gaps", "errors")
            )
            scales = {key: np.abs(predicted[key]).max() for key in LABELS}
            worst |= {f"{key}, d={d}": find_worst(gaps[key], errors[key], scales[key]) for key in LABELS}
            squares = [(gaps[key] / scales[key]) ** 2 for key in ("q", main_overlap)]
            deviations.append(np.sqrt(np.mean(squares, axis=(0, 2))))
        numbers[name] = {
            "deviation_of_one_instance": [np.median(x) for x in deviations], "sizes": sizes,
            "curves": {key: build_curve(predicted[key], gaps[key]) for key in LABELS},  # of the largest d
        }  # fmt: skip
        relevant = max(z for k, z in worst.items() if k.split(",")[0] in checked)
        if name.startswith("naive"):
            verdict.check(relevant > 4, f"{name}: the naive Onsager term fails the check, by {relevant:.0f}")
            continue
        verdict.check(relevant <= 4, f"{name}: {', '.join(checked)} within 4 standard errors")
        slope, error = fit_slope(sizes, deviations)
        said = f"{name}: one instance deviates (median) like d^({slope:.2f} ± {error:.2f}), expected -0.5"
        verdict.check(abs(slope + 0.5) <= 3 * error and (verdict.quick or error < 0.2), said)
    return numbers


def build_curve(predicted, gaps):
    """Return the prediction, the mean over seeds and its standard error at each iteration, with five digits."""
    error = gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))
    curve = {"predicted": predicted, "mean": predicted + gaps.mean(axis=0), "error": error}
    return {name: round_curve(values) for name, values in curve.items()}


def draw(numbers, path):
    """Draw the overlaps of three runs at the largest d, and the deviation of one instance against d."""
    names = {"semantic": "semantic branch", "positional": "positional branch", "naive semantic": "naive Onsager term"}
    with figure(path, len(names) + 1, len(LABELS), (9.8, 9.6)) as axes:
        for row, (name, words) in zip(axes, names.items(), strict=False):
            d = max(numbers[name]["sizes"])
            color, label = COLORS[_get_branch(name)], f"GAMP, d = {d}, {_get_branch(name)} branch, mean ± 2 s.e."
            for axis, (key, curve) in zip(row, numbers[name]["curves"].items(), strict=True):
                predicted, mean, error = (np.array(curve[part]) for part in ("predicted", "mean", "error"))
                time = np.arange(len(predicted))
                axis.plot(time, predicted, color=DARK, label="state evolution")
                axis.errorbar(time, mean, 2 * error, fmt="o", ms=3, color=color, label=label)
                axis.set(title=WORDS[key], xlabel="iteration")
            row[0].set_ylabel(words)
        for axis in axes[-1, 2:]:
            axis.axis("off")
        for axis, name in zip(axes[-1], ("semantic", "positional"), strict=False):
            x = np.array(numbers[name]["sizes"], float)
            rms = np.array(numbers[name]["deviation_of_one_instance"])
            axis.loglog(x, rms, "o", color=COLORS[name])
            axis.loglog(x, rms[0] * (x / x[0]) ** -0.5, "--", color=DARK, label="slope $d^{-1/2}$")
            axis.set(title=f"{name} branch", xlabel="dimension d")
            axis.set_xticks(x, [f"{d:.0f}" for d in x], minor=False)
            axis.set_xticks([], minor=True)
            limits = axis.get_ylim()
            axis.set_yticks(DEVIATIONS, [f"{100 * value:g} %" for value in DEVIATIONS])
            axis.set_yticks([], minor=True)
            axis.set_ylim(limits)
        axes[-1, 0].set_ylabel("relative deviation\nof one instance")
        draw_legend(*axes[:, 0], columns=2)


def _get_branch(name):
    """Return the branch of a run."""
    return RUNS[name][0]


def main():
    run_claim("trajectories", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
