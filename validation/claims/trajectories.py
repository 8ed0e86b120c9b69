"""GAMP's trajectories follow state evolution, with deviations like d^(−1/2); the naive Onsager term fails.

Method: each instance is compared with the prediction for its own teacher (`Dataset.instance_model`), which removes the
fluctuations of the teacher.

Criterion: the mean over seeds differs from state evolution by at most 4 standard errors (of both) in q, m, θ at every
iteration; in V too on the semantic branch, and on the positional branch if A_t is taken from state evolution. The
deviation of one instance falls like d^(−1/2). The naive Onsager term D = V g fails the same check. (Theory page of the
manual.)
"""

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.experiments.comparison import deviation
from gamp_attention.experiments.figures import COLOURS, DARK, LABELS, draw_legend
from gamp_attention.gamp.step import averaged_memory, naive_memory
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options

ALPHA, OMEGA = 1.5, 0.3
# for each name the branch, damping, number of iterations, onsager, memory, and checked overlaps
RUNS = {
    "semantic": ("semantic", 0.5, 20, "empirical", averaged_memory, ("q", "m", "theta", "V")),
    "undamped": ("semantic", 1.0, 4, "empirical", averaged_memory, ("q", "m", "theta", "V")),
    "positional": ("positional", 0.3, 20, "empirical", averaged_memory, ("q", "m", "theta")),
    "positional, A from state evolution": (
        "positional",
        0.3,
        20,
        "state_evolution",
        averaged_memory,
        ("q", "m", "theta", "V"),
    ),
    "naive semantic": ("semantic", 0.5, 20, "empirical", naive_memory, ("q", "m", "theta", "V")),
    "naive positional": ("positional", 0.3, 20, "empirical", naive_memory, ("q", "m", "theta")),
}


def compute_deviations(d, seeds, run):
    """Return deviations of GAMP from the prediction for its instance, and their errors, each (seeds, T + 1)."""
    branch, damping, n_iter, onsager, memory, _ = run
    model, deviations = ga.paper_model(OMEGA), []
    for seed in tqdm(range(seeds), desc=f"{branch} d={d}", disable=None, leave=False):
        data = ga.sample(model, d, ALPHA, np.random.default_rng([d, seed]))
        deviations.append(
            deviation(data, branch, "asymptotic", damping, n_iter, seed=1000 * d + seed, onsager=onsager, memory=memory)
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
    args = options(__doc__)
    verdict = Verdict("trajectories", args)
    sizes = {500: 10, 1000: 8} if args.quick else {500: 24, 1000: 24, 2000: 20, 4000: 16}
    numbers, curves = {}, {}
    for name, run in RUNS.items():
        branch, damping, n_iter, _, _, checked = run
        path = ga.trajectory(ga.paper_model(OMEGA), ALPHA, branch, damping=damping, n_iter=n_iter, seed=1)
        predicted, naive = path.scalars(), name.startswith("naive")
        sizes_here = dict([list(sizes.items())[-1]]) if naive else sizes
        sizes_of_one, worst = [], {}
        for d, seeds in sizes_here.items():
            both = compute_deviations(d, seeds, run)
            gaps = {key: values for key, (values, _) in both.items()}
            worst |= {f"{key}, d={d}": find_worst(*both[key], np.abs(predicted[key]).max()) for key in LABELS}
            curves |= {(name, d, key): (predicted[key], gaps[key]) for key in LABELS}
            main_overlap = "theta" if branch == "semantic" else "m"
            squares = [(gaps[key] / np.abs(predicted[key]).max()) ** 2 for key in ("q", main_overlap)]
            sizes_of_one.append(np.sqrt(np.mean(squares, axis=(0, 2))))
        print(f"{name}: largest deviation in standard errors: " + ", ".join(f"{k}: {z:.1f}" for k, z in worst.items()))
        numbers[name] = {
            "deviations": worst,
            "deviation_of_one_instance": [np.median(x) for x in sizes_of_one],
            "seeds": sizes_here,
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
                curves[name, max(sizes), "V"][1][:, -1].mean() / predicted["V"][-1],
                path.jump_mass / path.V_hat,
            )
            print(
                f"positional: V of GAMP at d={max(sizes)}, iteration {n_iter}, is {gap:+.1%} from the prediction; "
                f"jump mass {share[-1].mean():+.1%} of V̂ there"
            )
            numbers[name] |= {"V_gap": gap, "jump_mass_share": share[:, 0, 0, 0]}
    draw(curves, numbers, sizes, verdict.path(".png"))
    verdict.end(numbers)


def draw(curves, numbers, sizes, path):
    names, d = ["semantic", "positional", "naive semantic"], max(sizes)
    with figure(path, len(names), 5, (9.8, 7)) as axes:
        for row, name in zip(axes, names, strict=True):
            colour = COLOURS["positional" if name == "positional" else "semantic"]
            for axis, key in zip(row, LABELS, strict=False):
                predicted, gaps = curves[name, d, key]
                time, error = np.arange(len(predicted)), gaps.std(axis=0, ddof=1) / np.sqrt(len(gaps))
                axis.plot(time, predicted, color=DARK, label="state evolution")
                label = f"GAMP, d = {d}, mean ± 2 s.e."
                axis.errorbar(time, predicted + gaps.mean(axis=0), 2 * error, fmt="o", ms=3, color=colour, label=label)
                axis.set_title(LABELS[key])
                axis.set_xlabel("iteration")
            row[0].set_ylabel({"naive semantic": "semantic, naive Onsager term"}.get(name, f"{name} branch"))
            if name.startswith("naive"):
                row[4].axis("off")
                continue
            x, rms = np.array(list(sizes)), numbers[name]["deviation_of_one_instance"]
            row[4].loglog(x, rms, "o", color=colour)
            row[4].loglog(x, rms[0] * (x / x[0]) ** -0.5, color=DARK, label="$d^{-1/2}$")
            row[4].set_title("relative deviation")
            row[4].set_xlabel("dimension d")
            row[4].set_xticks(x, x, minor=False)
            row[4].set_xticks([], minor=True)
            row[4].tick_params(axis="x", rotation=60)
            row[4].legend()
        draw_legend(axes[0, 0], columns=2)


if __name__ == "__main__":
    main()
