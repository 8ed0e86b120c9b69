"""GAMP's trajectories follow state evolution: mean deviation, its scaling with d, and the naive Onsager term's failure.

Criterion: |mean over seeds − state evolution| <= 4 standard errors (of both) in q, m, θ at every iteration (V too on
the semantic branch, and on the positional one with A_t from state evolution), single-instance deviations fall like
d^(−1/2), and the naive Onsager term D = V g fails the same check.
"""

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.comparison import scalars
from gamp_attention.gamp import averaged_memory, naive_memory
from gamp_attention.plotting import COLOURS, DARK, LABELS, figure
from validation._report import Verdict, options

ALPHA, OMEGA = 1.5, 0.3
# name: branch, damping, iterations, onsager, memory, overlaps that are checked
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


def follow(path, d, seeds, run):
    """Scalars of GAMP at every iteration, each of shape (seeds, T + 1)."""
    branch, damping, n_iter, onsager, memory, _ = run
    if onsager == "state_evolution":
        onsager = path.V_hat
    found = []
    for seed in tqdm(range(seeds), desc=f"{branch} d={d}", disable=None, leave=False):
        data = ga.sample(ga.paper_model(OMEGA), d, ALPHA, np.random.SeedSequence([d, seed]).generate_state(1)[0].item())
        result = ga.run_gamp(
            data, branch, "asymptotic", damping=damping, tol=0, max_iter=n_iter, onsager=onsager, memory=memory
        )
        found.append(scalars(result.history))
    return {key: np.array([each[key] for each in found]) for key in found[0]}


def main():
    found = options(__doc__)
    verdict = Verdict("trajectories", found)
    sizes = {200: 24, 400: 24} if found.quick else {500: 64, 1000: 48, 2000: 32, 4000: 24}
    n_paths = 2048 if found.quick else 16384
    model, numbers, curves = ga.paper_model(OMEGA), {}, {}
    for name, run in RUNS.items():
        branch, damping, n_iter, _, _, checked = run
        path = ga.trajectory(model, ALPHA, branch, damping=damping, n_iter=n_iter, n_paths=n_paths, seed=1)
        predicted, error = scalars(path), scalars(path.error)
        naive = name.startswith("naive")
        sizes_here = dict([list(sizes.items())[-1]]) if naive else sizes
        rms, worst = [], {}
        for d, seeds in sizes_here.items():
            seen = follow(path, d, seeds, run)
            for key in LABELS:
                spread = seen[key].std(axis=0, ddof=1)
                both = np.sqrt(spread**2 / seeds + error[key] ** 2)
                gap = seen[key].mean(axis=0) - predicted[key]
                z = np.abs(gap) / np.where(both > 0, both, np.inf)
                worst[f"{key}, d={d}"] = float(z.max())
                curves[name, d, key] = seen[key], predicted[key], error[key]
            deviation = [
                np.abs(seen[key] - predicted[key]) / np.abs(predicted[key]).max()
                for key in ("q", "theta" if branch == "semantic" else "m")
            ]
            rms.append(float(np.sqrt(np.mean(np.square(deviation)))))
        relevant = {k: z for k, z in worst.items() if k.split(",")[0] in checked}
        print(f"{name}: largest deviation in standard errors: " + ", ".join(f"{k}: {z:.1f}" for k, z in worst.items()))
        numbers[name] = {"deviations": worst, "rms": rms, "sizes": sizes_here}
        if naive:
            verdict.check(max(relevant.values()) > 4, f"{name}: the naive Onsager term fails the check")
            continue
        verdict.check(max(relevant.values()) <= 4, f"{name}: {', '.join(checked)} within 4 standard errors")
        slope, cov = (
            np.polyfit(np.log(list(sizes)), np.log(rms), 1, cov=len(sizes) > 3)
            if len(sizes) > 3
            else (
                np.polyfit(np.log(list(sizes)), np.log(rms), 1),
                np.full((2, 2), np.nan),
            )
        )
        numbers[name] |= {"slope": slope[0], "slope_error": np.sqrt(cov[0, 0])}
        wide = 0.5 if found.quick else 0.15
        verdict.check(
            abs(slope[0] + 0.5) < wide, f"{name}: a single instance deviates like d^{slope[0]:.2f} (expected -0.5)"
        )
        if name == "positional":
            d = max(sizes)
            seen, expected, _ = curves[name, d, "V"]
            share = path.jump_mass[-1].mean() / path.V_hat[-1].mean()
            print(
                f"positional: V at d={d}, last iteration: {seen[:, -1].mean():.3f} against {expected[-1]:.3f} "
                f"({seen[:, -1].mean() / expected[-1] - 1:+.1%}); jump mass {share:+.1%} of V̂ in the prediction"
            )
            numbers[name] |= {"V_gap": seen[:, -1].mean() / expected[-1] - 1, "jump_mass_share": share}
    draw(curves, max(sizes), numbers, sizes, verdict.path(".png"))
    verdict.end(numbers)


def draw(curves, d, numbers, sizes, path):
    names = ["semantic", "positional", "naive semantic"]
    with figure(path, len(names), 5, (15, 8)) as axes:
        for row, name in zip(axes, names, strict=True):
            colour = COLOURS["positional" if name == "positional" else "semantic"]
            for axis, key in zip(row, LABELS, strict=False):
                seen, predicted, error = curves[name, d, key]
                time, se = np.arange(len(predicted)), seen.std(axis=0, ddof=1) / np.sqrt(len(seen))
                axis.fill_between(time, predicted - 2 * error, predicted + 2 * error, color=DARK, alpha=0.3, lw=0)
                axis.plot(time, predicted, color=DARK, label="state evolution ± 2 s.e.")
                label = f"GAMP, d = {d}, mean ± 2 s.e."
                axis.errorbar(time, seen.mean(axis=0), 2 * se, fmt="o", ms=3, color=colour, label=label)
                axis.set_title(LABELS[key])
                axis.set_xlabel("iteration")
            row[0].set_ylabel(name)
            row[0].legend(fontsize=8, frameon=False)
            if "naive" in name:
                row[4].axis("off")
                continue
            x = np.array(list(sizes))
            row[4].loglog(x, numbers[name]["rms"], "o", color=colour)
            row[4].loglog(x, numbers[name]["rms"][0] * (x / x[0]) ** -0.5, color=DARK, label="$d^{-1/2}$")
            row[4].set_title("deviation of one instance")
            row[4].set_xlabel("d")
            row[4].legend(fontsize=8, frameon=False)


if __name__ == "__main__":
    main()
