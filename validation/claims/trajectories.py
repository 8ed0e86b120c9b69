"""GAMP's trajectories follow state evolution, with deviations like d^(−1/2); the naive Onsager term fails.

Method: each instance is compared with the prediction for its teacher (`Dataset.instance_model`), which removes the
fluctuations of the teacher.

Criterion: the mean over seeds differs from state evolution by at most 4 standard errors (of both) in q, m, θ at every
iteration; in V too on the semantic branch, and on the positional branch if A_t is taken from state evolution. The
deviation of one instance falls like d^(−1/2). The naive Onsager term D = V g fails the same check. (Theory page of the
manual.)
"""

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.extensions.comparison.comparison import deviation
from gamp_attention.extensions.comparison.figures import COLORS, DARK, LABELS, WORDS, draw_legend
from gamp_attention.gamp.step import averaged_memory, naive_memory
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.tables import round_curve

ALPHA, OMEGA = 1.5, 0.3
DEVIATIONS = (0.003, 0.005, 0.01, 0.02, 0.03)  # labelled on the axis of relative deviations
# for each name the branch, damping, number of iterations, whether V_hat is predicted, memory, and checked overlaps
RUNS = {
    "semantic": ("semantic", 0.5, 20, False, averaged_memory, ("q", "m", "theta", "V")),
    "undamped": ("semantic", 1.0, 4, False, averaged_memory, ("q", "m", "theta", "V")),
    "positional": ("positional", 0.3, 20, False, averaged_memory, ("q", "m", "theta")),
    "positional, A from state evolution": (
        "positional",
        0.3,
        20,
        True,
        averaged_memory,
        ("q", "m", "theta", "V"),
    ),
    "naive semantic": ("semantic", 0.5, 20, False, naive_memory, ("q", "m", "theta", "V")),
    "naive positional": ("positional", 0.3, 20, False, naive_memory, ("q", "m", "theta")),
}


def compute_deviations(d, seeds, run):
    """Return deviations of GAMP from the prediction for its instance, and their errors, each (seeds, T + 1)."""
    branch, damping, n_iter, predicted, memory, _ = run
    model, deviations = ga.paper_model(OMEGA), []
    for seed in tqdm(range(seeds), desc=f"{branch} d={d}", disable=None, leave=False):
        data = ga.sample(model, d, ALPHA, np.random.default_rng([d, seed]))
        deviations.append(
            deviation(
                data,
                branch,
                "asymptotic",
                damping,
                n_iter,
                seed=1000 * d + seed,
                predicted_response=predicted,
                memory=memory,
            )
        )
    return {
        key: tuple(np.array([each[which][key] for each in deviations]) for which in (0, 1)) for key in deviations[0][0]
    }


def find_worst(gaps, errors, scale):
    """Return the largest |mean deviation over seeds| in standard errors of GAMP and the predictions."""
    both = np.sqrt((gaps.var(axis=0, ddof=1) + (errors**2).mean(axis=0)) / len(gaps))
    known = both > 1e-9 * scale  # the start is exact
    return float((np.abs(gaps.mean(axis=0)) / np.where(known, both, np.inf)).max())


def fit_slope(sizes, samples):
    """Return the slope of log median against log d, and its standard error by bootstrap over seeds."""
    rng = np.random.default_rng(0)

    def fit(chosen):
        return np.polyfit(np.log(sizes), np.log([np.median(x) for x in chosen]), 1)[0]

    again = [fit([rng.choice(x, len(x)) for x in samples]) for _ in range(1000)]
    return fit(samples), float(np.std(again))


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("trajectories", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    sizes = {500: 10, 1000: 8} if args.quick else {500: 24, 1000: 24, 2000: 20, 4000: 16}
    numbers = {}
    for name, run in RUNS.items():
        branch, damping, n_iter, _, _, checked = run
        path = ga.trajectory(
            ga.paper_model(OMEGA), ALPHA, branch, ga.MessagePassing(damping=damping), n_iter=n_iter, seed=1
        )
        predicted, naive = path.scalars(), name.startswith("naive")
        sizes_here = dict([list(sizes.items())[-1]]) if naive else sizes
        sizes_of_one, worst = [], {}
        for d, seeds in sizes_here.items():
            both = compute_deviations(d, seeds, run)
            gaps = {key: values for key, (values, _) in both.items()}
            worst |= {f"{key}, d={d}": find_worst(*both[key], np.abs(predicted[key]).max()) for key in LABELS}
            main_overlap = "theta" if branch == "semantic" else "m"
            squares = [(gaps[key] / np.abs(predicted[key]).max()) ** 2 for key in ("q", main_overlap)]
            sizes_of_one.append(np.sqrt(np.mean(squares, axis=(0, 2))))
        print(f"{name}: largest deviation in standard errors: " + ", ".join(f"{k}: {z:.1f}" for k, z in worst.items()))
        numbers[name] = {
            "deviations": worst,
            "deviation_of_one_instance": [np.median(x) for x in sizes_of_one],
            "seeds": sizes_here,
            "curves": {key: build_curve(predicted[key], gaps[key]) for key in LABELS},  # of the largest d
        }
        relevant = max(z for k, z in worst.items() if k.split(",")[0] in checked)
        if naive:
            verdict.check(relevant > 4, f"{name}: the naive Onsager term fails the check, by {relevant:.0f}")
            continue
        verdict.check(relevant <= 4, f"{name}: {', '.join(checked)} within 4 standard errors")
        slope, error = fit_slope(list(sizes), sizes_of_one)
        numbers[name] |= {"slope": slope, "slope_error": error}
        verdict.check(
            abs(slope + 0.5) <= 3 * error and (args.quick or error < 0.2),
            f"{name}: one instance deviates (median) like d^({slope:.2f} ± {error:.2f}), expected -0.5",
        )
        if name == "positional":
            gap, share = (
                gaps["V"][:, -1].mean() / predicted["V"][-1],
                path.jump_mass / path.V_hat,
            )
            print(
                f"positional: V of GAMP at d={max(sizes)}, iteration {n_iter}, is {gap:+.1%} from the prediction; "
                f"jump mass {share[-1].mean():+.1%} of V̂ there"
            )
            numbers[name] |= {"V_gap": gap, "jump_mass_share": share[:, 0, 0, 0]}
    verdict.end(numbers, draw)


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
            d = max(map(int, numbers[name]["seeds"]))
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
            x = np.array(list(numbers[name]["seeds"]), float)
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


if __name__ == "__main__":
    main()
