"""Message passing stops converging at the noise at which replica symmetry breaks, over (s, λ, α).

Method: targets y = (T[u] + s N(0, 1)) x of the paper's model. For each α and λ state evolution is solved on the
semantic branch; the line is the s at which the replicon reaches 1 or the branch is lost. At some points across the line
message passing runs at several d with a fixed step, without extrapolation or settling.

Noise η on each output is equivalent to noise s = η/(σ√d) on the scores: (2η/d) ξ·S(x+p) reaches the weights only
through ξ·x_l, a number of variance η² d σ², so it averages over d. This is measured at two d by minima with either
noise.

Criterion: at s of at most half of the line's at least 80 % of the runs at the largest d converge, at twice the line's s
at most 20 %. Minima with η on the outputs have the q and θ of minima with s = η/(σ√d) on the scores, within 4 standard
errors of the mean over seeds. (Noise page of the manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, GREY, LAMBDA, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table, mean_and_error

ALPHAS, LAMBDAS = (1.0, 2.0, 4.0), (0.003, 0.01, 0.03, 0.1)
SIGMA, MOST_NOISE, HALVINGS = 0.5, 1.0, 6
CROSSED = ((2.0, 0.01), (2.0, 0.03))
SHARES, SEEDS, STEPS = (0.5, 0.75, 1.0, 1.5, 2.0), {1000: 8, 2000: 4, 4000: 2}, 400
OUTPUTS = {"noises": (0.1, 0.3), "sizes": (200, 800), "seeds": 16}
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
    return {"converged": bool(run.converged)}


def find_minimum(alpha, lam, s, d, seed, outputs):
    """Return the minimum from the teacher with noise on the scores, or the equivalent noise on the outputs."""
    model = ga.paper_model(sigma=SIGMA, lam=lam, score_noise=0.0 if outputs else s)
    rng = np.random.default_rng([d, seed, 23])
    data = drawn = ga.sample(model, d, alpha, rng)
    if outputs:
        noisy = drawn.outputs + s * SIGMA * np.sqrt(d) * rng.standard_normal(drawn.outputs.shape)
        data = ga.Dataset(drawn.tokens, noisy, drawn.positions, lam=lam)
    run = ga.run_gamp(data, drawn.Q_star)
    Q = run.Q[:, 0]
    theta = float(abs(Q @ drawn.Q_star[:, 0]) / d)
    return {"q": float(Q @ Q / d), "theta": theta, "converged": bool(run.converged)}


def compare_outputs_with_scores(rows, verdict):
    """Check that noise on the outputs is equivalent to noise on the scores."""
    for d, s in sorted({(row["d"], row["s"]) for row in rows}):
        mine = [row for row in rows if (row["d"], row["s"]) == (d, s)]
        for key in ("q", "theta"):
            (a, ea), (b, eb) = (
                mean_and_error([row[key] for row in mine if row["outputs"] == o]) for o in (False, True)
            )
            eta = f"η = s σ √d = {s * SIGMA * np.sqrt(d):.2f}"
            said = f"{key} {a:.4f} ± {ea:.4f} by noise on the scores, {b:.4f} ± {eb:.4f} by {eta} on the outputs"
            verdict.check(abs(a - b) <= MOST_ERRORS * np.hypot(ea, eb), f"d = {d}, s = {s}: {said}")


def draw(numbers, path):
    """Draw the noise at which replica symmetry breaks against λ, and how many runs converge around it."""
    lines, crossings = numbers["lines"], numbers["crossings"]
    with figure(path, 2, 2, (9, 6.6)) as axes:
        *maps, last = axes.ravel()
        for axis, alpha in zip(maps, ALPHAS, strict=True):
            mine = [each for each in lines if each["alpha"] == alpha and each["s"] > 0]
            lams, noises = np.array([(each["lam"], each["s"]) for each in mine]).T
            axis.plot(lams, noises, color=DARK, marker="o", ms=4, label="line: replicon 1, or branch lost")
            axis.fill_between(lams, noises, MOST_NOISE, color="0.85", label="replica symmetry broken")
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


def plan(quick):
    """Return the points of the line, runs around it, and minima with either noise."""
    alphas, lams = ((2.0,), (0.03,)) if quick else (ALPHAS, LAMBDAS)
    sizes = {250: 2} if quick else SEEDS

    def around(lines):
        at = {(each["alpha"], each["lam"]): each["s"] for each in lines}
        return [
            {"alpha": a, "lam": lam, "s": share * at[a, lam], "d": d, "seed": seed}
            for (a, lam), share, (d, seeds) in product(CROSSED, SHARES, sizes.items()) for seed in range(seeds)
            if at.get((a, lam))
        ]  # fmt: skip

    dims, noises, seeds = ((100,), (0.3,), 4) if quick else (OUTPUTS["sizes"], OUTPUTS["noises"], OUTPUTS["seeds"])
    minima = [
        {"alpha": 2.0, "lam": 0.03, "s": s, "d": d, "seed": seed, "outputs": where}
        for d, s, seed, where in product(dims, noises, range(seeds), (False, True))
    ]
    halvings = 2 if quick else HALVINGS
    return {
        find_line: [{"alpha": a, "lam": lam, "halvings": halvings} for a, lam in product(alphas, lams)],
        run_plain: around,
        find_minimum: minima,
    }


def judge(verdict, lines, crossings, minima):
    """Check how many runs converge around the line, and the equivalence of both kinds of noise."""
    heads = ["α", "λ", "replica symmetry broken from s", "factor of uncertainty"]
    cells = [[each["alpha"], each["lam"], f"{each['s']:.3f}", f"{each['factor']:.2f}"] for each in lines]
    verdict.write_table(markdown_table(heads, cells))
    at = {(each["alpha"], each["lam"]): each["s"] for each in lines}
    crossings = [
        {"d": row["d"], "share": round(row["s"] / at[row["alpha"], row["lam"]], 6), "converged": row["converged"]}
        for row in crossings
    ]
    largest = max(row["d"] for row in crossings)
    for low, high, least, most in ((0, 0.5, BEFORE, 1), (2, np.inf, 0, BEYOND)):
        mine = [row["converged"] for row in crossings if low <= row["share"] <= high and row["d"] == largest]
        words = f"{low:g} to {high:g} of the line's s: {100 * np.mean(mine):.0f} % of {len(mine)} runs converge"
        verdict.check(verdict.quick or least <= np.mean(mine) <= most, f"d = {largest}, {words}")
    compare_outputs_with_scores(minima, verdict)
    solved = [row["converged"] for row in minima]
    verdict.check(all(solved), f"{sum(solved)} of {len(solved)} minima reached with defaults")
    return {"lines": lines, "crossings": crossings}


def main():
    run_claim("noise_map", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
