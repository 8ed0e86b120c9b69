"""Message passing stops converging at the noise at which replica symmetry breaks, over (s, λ, α).

Method: targets y = (T[u] + s N(0, 1)) x of the paper's model. For each α and λ state evolution is solved on the
semantic branch; the line is the s at which the replicon reaches 1 or the branch is lost. At some points across the line
message passing runs at several d with a fixed step, without extrapolation or settling. The λ of smallest test error is
measured at finite-d minima.

Noise η on each output is equivalent to noise s = η/(σ√d) on the scores: (2η/d) ξ·S(x+p) reaches the weights only
through ξ·x_l, a number of variance η² d σ², so it averages over d. This is measured at two d by minima with either
noise. Other kinds of noise, at two d: targets of a fraction of the samples from another teacher's weights (outliers),
flipped classes of a logistic regression, noise of fixed size on the outputs. For each the fraction of plain runs that
converge is reported.

Criterion: at s of at most half of the line's at least 80 % of the runs at the largest d converge, at twice the line's s
at most 20 %. Minima with η on the outputs have the q and θ of minima with s = η/(σ√d) on the scores, within 4 standard
errors of the mean over seeds. With flipped classes, where the risk is convex, every run converges. (Noise page of the
manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, GREY, LAMBDA, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table, mean_and_error

ALPHAS, LAMBDAS = (1.0, 2.0, 4.0), (0.003, 0.01, 0.03, 0.1)
SIGMA, MOST_NOISE, HALVINGS = 0.5, 1.0, 6
CROSSED = ((2.0, 0.01), (2.0, 0.03))
SHARES, SEEDS, STEPS = (0.5, 0.75, 1.0, 1.5, 2.0), {1000: 8, 2000: 4, 4000: 2}, 400
LEAST = {"d": 400, "seeds": 4, "noises": (0.0, 0.05, 0.1, 0.2, 0.4), "lams": tuple(np.logspace(-3, 0, 10))}
OUTPUTS = {"noises": (0.1, 0.3), "sizes": (200, 800), "seeds": 16}
KINDS = {
    "none": (0.0,), "scores": (0.03, 0.1, 0.3), "outputs": (0.3, 1.0), "outliers": (0.02, 0.1, 0.3),
    "flips": (0.1, 0.3),
}  # fmt: skip
KIND = {"alpha": 2.0, "lam": 0.01, "sizes": (500, 1000), "seeds": 8}
BEFORE, BEYOND, MOST_ERRORS = 0.8, 0.2, 4.0


def find_line(alpha, lam, halvings):
    """Return the largest s with a semantic branch and a replicon below 1, by bisection in log s; 0 if there is none."""

    def stable(s):
        model = ga.paper_model(sigma=SIGMA, lam=lam, score_noise=s)
        se = ga.solve_state_evolution(model, alpha, rtol=1e-2, max_work=3e5, stability=False)
        there = se.status in (ga.Status.CONVERGED, ga.Status.INACCURATE)
        return bool(there and se.replicon < 1), there, se.replicon

    low, high, lost = 0.01, MOST_NOISE, False
    if not stable(low)[0]:
        return {"s": 0.0, "factor": np.nan, "by_loss": False}
    for _ in range(halvings):
        middle = float(np.sqrt(low * high))
        good, there, _ = stable(middle)
        low, high, lost = (middle, high, lost) if good else (low, middle, not there)
    return {"s": float(np.sqrt(low * high)), "factor": float(np.sqrt(high / low)), "by_loss": lost}


def run_plain(alpha, lam, s, d, seed):
    """Run plain message passing on one instance and return whether it converges."""
    model = ga.paper_model(sigma=SIGMA, lam=lam, score_noise=s)
    data = ga.sample(model, d, alpha, np.random.default_rng([d, seed, 22]))
    run = ga.run_gamp(
        data, "semantic", damping=0.5, max_iter=STEPS, iteration=ga.IterationOptions(accelerate=False, settling=False)
    )
    return {"converged": bool(run.converged), "gradient_norm": run.gradient_norm, "n_iter": run.n_iter}


def find_minimum(alpha, lam, s, d, seed, outputs=False):
    """Return the minimum from the teacher with noise on the scores, or the equivalent noise on the outputs."""
    model = ga.paper_model(sigma=SIGMA, lam=lam, score_noise=0.0 if outputs else s)
    rng = np.random.default_rng([d, seed, 23])
    data = drawn = ga.sample(model, d, alpha, rng)
    eta = s * SIGMA * np.sqrt(d)
    if outputs:
        noisy = drawn.outputs + eta * rng.standard_normal(drawn.outputs.shape)
        data = ga.Dataset(drawn.tokens, noisy, drawn.positions, lam=lam)
    run = ga.run_gamp(data, drawn.Q_star)
    Q = run.Q[:, 0]
    theta = float(abs(Q @ drawn.Q_star[:, 0]) / d)
    # noise contributes s² Σ_l|x_l|²/(dL) to targets, and η² on outputs
    excess = run.train_loss - (eta**2 if outputs else 0.0)
    test = np.nan if outputs else ga.sampled_test_error(drawn, run.Q, seed=seed)[0]
    row = {"status": run.status.value, "q": float(Q @ Q / d), "theta": theta, "loss": float(excess), "test_error": test}
    return row | {"converged": bool(run.converged), "by_itself": run.message_passing.value == "converged"}


def run_with_noise(kind, amount, d, seed):
    """Run plain message passing on data with one kind of noise and return whether it converges."""
    alpha, lam, rng = KIND["alpha"], KIND["lam"], np.random.default_rng([d, seed, 24])
    if kind == "flips":
        clean = ga.sample(ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(temperature=0.0), lam=lam), d, alpha, rng)
        labels = np.where(rng.random(len(clean.labels)) < amount, -1, 1) * clean.labels[:, 0]
        data = ga.LabelledDataset(clean.tokens, labels, ga.LogisticLoss(), lam=lam)
    else:
        model = ga.paper_model(sigma=SIGMA, lam=lam, score_noise=amount if kind == "scores" else 0.0)
        clean = ga.sample(model, d, alpha, rng)
        outputs = np.array(clean.outputs)
        if kind == "outputs":
            outputs += amount * rng.standard_normal(outputs.shape)
        if kind == "outliers":
            wrong = rng.random(len(outputs)) < amount
            elsewhere = model.teacher(clean.tokens[wrong] @ rng.standard_normal((d, 1)) / np.sqrt(d))
            outputs[wrong] = elsewhere @ clean.tokens[wrong]
        data = ga.Dataset(clean.tokens, outputs, clean.positions, lam=lam)
    run = ga.run_gamp(
        data, clean.Q_star, damping=0.5, max_iter=STEPS, iteration=ga.IterationOptions(accelerate=False, settling=False)
    )
    return {"converged": bool(run.converged), "gradient_norm": run.gradient_norm, "n_iter": run.n_iter}


def format_kinds(rows):
    """Return the number of converged runs for each kind and amount of noise, at each d."""
    sizes = sorted({row["d"] for row in rows})
    lines = []
    for kind, amounts in KINDS.items():
        for amount in amounts:
            mine = [
                [r["converged"] for r in rows if (r["kind"], r["amount"], r["d"]) == (kind, amount, d)] for d in sizes
            ]
            lines.append([f"{kind} {amount:g}", *(f"{sum(each)} of {len(each)}" for each in mine)])
    return markdown_table(["noise", *(f"d = {d}" for d in sizes)], lines)


def compare_outputs_with_scores(rows, verdict):
    """Check that noise on the outputs is equivalent to noise on the scores; return the differences."""
    differences = []
    for d, s in sorted({(row["d"], row["s"]) for row in rows}):
        pair = [
            [row for row in rows if (row["d"], row["s"], row["outputs"]) == (d, s, where)] for where in (False, True)
        ]
        for key in ("q", "theta"):
            (a, ea), (b, eb) = (mean_and_error([row[key] for row in part]) for part in pair)
            away = abs(a - b) / np.hypot(ea, eb)
            differences.append({"d": d, "s": s, "key": key, "scores": (a, ea), "outputs": (b, eb), "away": away})
            verdict.check(
                away <= MOST_ERRORS,
                f"d = {d}, s = {s}: {key} {a:.4f} ± {ea:.4f} by noise on the scores, {b:.4f} ± {eb:.4f} by η = s σ √d"
                f" = {s * SIGMA * np.sqrt(d):.2f} on the outputs",
            )  # fmt: skip
    return differences


def find_best_lams(rows):
    """Return the λ of smallest mean test error for each α and s, with that error."""
    best_values = []
    for alpha, s in sorted({(row["alpha"], row["s"]) for row in rows}):
        mine = [row for row in rows if (row["alpha"], row["s"]) == (alpha, s)]
        errors = {lam: [row["test_error"] for row in mine if row["lam"] == lam] for lam in LEAST["lams"]}
        table = {lam: mean_and_error(values) for lam, values in errors.items()}
        best = min(table, key=lambda lam: table[lam][0])
        best_values.append({"alpha": alpha, "s": s, "lam": float(best), "test_error": table[best]})
    return best_values


def draw(numbers, path):
    """Draw the noise at which replica symmetry breaks against λ, and how many runs converge around it."""
    lines, best, crossings = (numbers[name] for name in ("lines", "best", "crossings"))
    with figure(path, 2, 2, (9, 6.6)) as axes:
        *maps, last = axes.ravel()
        for axis, alpha in zip(maps, ALPHAS, strict=True):
            mine = [each for each in lines if each["alpha"] == alpha and each["s"] > 0]
            lams, noises = np.array([(each["lam"], each["s"]) for each in mine]).T
            axis.plot(lams, noises, color=DARK, marker="o", ms=4, label="line: replicon 1, or branch lost")
            axis.fill_between(lams, noises, MOST_NOISE, color="0.85", label="replica symmetry broken")
            least = [each for each in best if each["alpha"] == alpha and each["s"] > 0]
            axis.plot([each["lam"] for each in least], [each["s"] for each in least], "s", color="C1", ms=6,
                      label=f"λ of smallest test error, d = {LEAST['d']}")  # fmt: skip
            axis.set(xscale="log", yscale="log", xlabel=LAMBDA, ylabel="noise on the scores, s",
                     title=f"α = n/d = {alpha:g}", xlim=(2e-3, 0.3), ylim=(0.04, 1.1))  # fmt: skip
            axis.set_yticks([0.05, 0.1, 0.2, 0.5, 1.0], ["0.05", "0.1", "0.2", "0.5", "1"])
            axis.yaxis.minorticks_off()
        for d, marker in zip(sorted({each["d"] for each in crossings}), "osD", strict=False):
            shares = sorted({each["share"] for each in crossings})
            rates = [np.mean([e["converged"] for e in crossings if (e["d"], e["share"]) == (d, x)]) for x in shares]
            last.plot(shares, rates, marker=marker, label=f"message passing, d = {d}")
        last.axvline(1, color=GREY, lw=1, ls="--", label="on the line")
        last.set(xlabel="noise s / noise s of the line", ylabel="fraction of runs that converge", ylim=(-0.03, 1.03),
                 title="message passing around the line, α = 2")  # fmt: skip
        draw_legend(maps[0], last, columns=3)


def main():
    args = options(__doc__, draw=True, workers=True)
    verdict, quick = Verdict("noise_map", args), args.quick
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    alphas, lams = ((2.0,), (0.03,)) if quick else (ALPHAS, LAMBDAS)
    with pool(args) as executor:
        asked = [{"alpha": a, "lam": lam, "halvings": 2 if quick else HALVINGS} for a, lam in product(alphas, lams)]
        lines = run_trials(folder(args, "noise_lines"), find_line, asked, executor)
        at = {(each["alpha"], each["lam"]): each["s"] for each in lines}
        sizes = {250: 2} if quick else SEEDS
        asked = [
            {"alpha": a, "lam": lam, "s": share * at[a, lam], "d": d, "seed": seed}
            for (a, lam), share, (d, seeds) in product(CROSSED, SHARES, sizes.items()) for seed in range(seeds)
            if (a, lam) in at and at[a, lam] > 0
        ]  # fmt: skip
        crossings = run_trials(folder(args, "noise_crossings"), run_plain, asked, executor)
        crossings = [row | {"share": round(row["s"] / at[row["alpha"], row["lam"]], 6)} for row in crossings]
        sizes, noises = ((100,), (0.3,)) if quick else (OUTPUTS["sizes"], OUTPUTS["noises"])
        asked = [
            {"alpha": 2.0, "lam": 0.03, "s": s, "d": d, "seed": seed, "outputs": where}
            for d, s, seed, where in product(sizes, noises, range(4 if quick else OUTPUTS["seeds"]), (False, True))
        ]  # fmt: skip
        either = run_trials(folder(args, "noise_kinds"), find_minimum, asked, executor)
        noises, seeds = ((0.4,), 1) if quick else (LEAST["noises"], LEAST["seeds"])
        asked = [
            {"alpha": a, "lam": float(lam), "s": s, "d": LEAST["d"], "seed": seed}
            for a, lam, s, seed in product(alphas, LEAST["lams"], noises, range(seeds))
        ] if not quick else []  # fmt: skip
        asked_kinds = [
            {"kind": kind, "amount": amount, "d": d, "seed": seed}
            for kind, amounts in KINDS.items() for amount in amounts
            for d in ((100,) if quick else KIND["sizes"]) for seed in range(1 if quick else KIND["seeds"])
        ]  # fmt: skip
        others = run_trials(folder(args, "noise_others"), run_with_noise, asked_kinds, executor)
        minima = run_trials(folder(args, "noise_minima"), find_minimum, asked, executor)
    for each in lines:
        print(
            f"α = {each['alpha']:g}, λ = {each['lam']:g}: broken from s = {each['s']:.3f} on (×/÷ {each['factor']:.2f})"
        )
    largest = max(row["d"] for row in crossings)
    for low, high, least, most in ((0, 0.5, BEFORE, 1), (2, np.inf, 0, BEYOND)):
        mine = [row["converged"] for row in crossings if low <= row["share"] <= high and row["d"] == largest]
        share = float(np.mean(mine))
        verdict.check(
            quick or least <= share <= most,
            f"d = {largest}, {low:g} to {high:g} of the line's s: {100 * share:.0f} % of {len(mine)} runs converge",
        )
    verdict.write_table(format_kinds(others))
    flipped = [row["converged"] for row in others if row["kind"] == "flips"]
    verdict.check(
        all(flipped), f"flipped classes: {sum(flipped)} of {len(flipped)} runs converge, as the risk is convex"
    )
    kinds, best = compare_outputs_with_scores(either, verdict), find_best_lams(minima)
    solved = [row["converged"] for row in minima + either]
    verdict.check(all(solved), f"{sum(solved)} of {len(solved)} minima reached with defaults")
    numbers = {"lines": lines, "crossings": crossings, "kinds": kinds, "best": best, "others": others}
    numbers |= {"by_itself": float(np.mean([row["by_itself"] for row in minima or either]))}
    verdict.end(numbers, None if quick else draw)


if __name__ == "__main__":
    main()
