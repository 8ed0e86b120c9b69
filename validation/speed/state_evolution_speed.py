"""State evolution's averages are at least 500 times faster than scipy's BFGS at every node of a Gauss-Hermite rule.

Method: the baseline is a direct implementation of the equations: for each of the four averages m̂, q̂, θ̂ and V̂ a
product rule of 12 × 12 Gauss-Hermite points in each token's plane (ω̃_l, y_l), and scipy's BFGS on the proximal
objective at every node. That would take minutes, so its time is measured on a random sample of nodes and scaled up. Its
accuracy is found with our denoiser at all of its nodes. Processor times against the accuracy, the tokens and the
columns are drawn, with their exponents.

Criterion: at equal or better accuracy the split rule is at least 500 times faster, on both branches, in one run on one
machine, after compilation. Randomised points reach 1e-3 on semantic branches within 10 s for three tokens and for two
columns of student and teacher, within 30 s for four tokens.

In the stored results, solutions by random points ran while other programs used both cores, and the times compared with
the earlier version are processor times. Exponents in 1/rtol are computed from the last three accuracies; exponents in L
and r are for one average.

With --base PATH whole solutions, a column of the phase diagram, its boundaries and three tokens are timed in another
checkout of the package, side by side. Relative to db457ef no ratio of CPU times may be above `LIMITS`.
"""

import time
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.theory.equations.channel import Channel, average, conjugates
from gamp_attention.theory.rules.sobol import SobolRule
from gamp_attention.theory.rules.split import SplitRule
from validation._tools.checkouts import BASE, run_side_by_side
from validation._tools.report import Verdict, options
from validation.speed.gamp_speed import draw_growth

ACCURACIES = {  # model, α, branch and values of 1/rtol; the last values determine the exponent
    "1/rtol, split rule, semantic": (ga.paper_model(0.3), 1.5, "semantic", (1e2, 1e3, 1e4, 1e5, 1e6)),
    "1/rtol, split rule, positional": (ga.paper_model(0.3), 1.5, "positional", (1e2, 1e3, 1e4, 1e5)),
    "1/rtol, points, three tokens": (ga.attention_model(3), 1.5, "semantic", (1e2, 5e2, 1e3, 2e3)),
    "1/rtol, points, two columns": (ga.attention_model(2, 2, 2), 2.0, "semantic", (1e2, 2e2, 4e2, 8e2)),
}
SIZES = {  # tokens and columns of one average over 8 × 1024 points
    "L, an average by points": {L: (L, 1) for L in (2, 3, 4, 6, 8)},
    "r = t, an average by points": {r: (2, r) for r in (1, 2, 3)},
}
RULE = SobolRule(1024, 8)


def measure_growth(quick):
    """Return seconds of solutions and exponents, by the varied quantity."""
    rows = {}
    for name, (model, alpha, branch, values) in ACCURACIES.items():
        chosen = values[:2] if quick else values
        seconds = [_measure_solution(model, alpha, branch, 1 / value) for value in chosen]
        rows[name] = _fit_exponent(chosen, seconds)
    for name, cases in SIZES.items():
        chosen = list(cases)[:2] if quick else list(cases)
        rows[name] = _fit_exponent(chosen, [_measure_average(*cases[value]) for value in chosen])
    return rows


def _measure_solution(model, alpha, branch, rtol):
    """Return the processor time of a solution, after compilation."""
    ga.solve_state_evolution(model, alpha, branch, rtol=0.1, stability=False)
    began = time.process_time()
    se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stability=False)
    print(f"{model.n_tokens} tokens, {model.rank} columns, {branch}, rtol {rtol:g}: {se.status.value}", flush=True)
    return time.process_time() - began


def _measure_average(n_tokens, rank):
    """Return the processor time of one average by points, the minimum of three."""
    one = np.tile(np.eye(rank), (n_tokens, 1, 1))
    at = ga.Overlaps(0.15 * one, np.zeros((n_tokens, rank)), 0.17 * one, 12.0 * one)
    channel, times = Channel(ga.attention_model(n_tokens, rank, rank), at), []
    for _ in range(3):
        began = time.process_time()
        RULE.moments(channel)
        times.append(time.process_time() - began)
    return min(times)


def _fit_exponent(values, seconds):
    # from the largest sizes, where fixed costs count least
    slope = np.polyfit(np.log(values[-3:]), np.log(seconds[-3:]), 1)[0]
    return {"sizes": list(values), "seconds": seconds, "exponent": float(slope)}


NODES, AVERAGES = 12, 4
SCRIPT = Path(__file__).with_name("_state_evolution_times.py")
BY_POINTS = {  # model, α and largest seconds
    "three tokens": (ga.attention_model(3), 1.5, 10.0),
    "four tokens": (ga.attention_model(4), 1.5, 30.0),
    "two columns": (ga.attention_model(2, 2, 2), 2.0, 10.0),
}
LIMITS = {"semantic 1e-4": 0.37, "positional 1e-4": 0.37, "diagram": 0.36, "boundaries": 0.4, "three tokens": 0.04}


def build_baseline_rule():
    """Return white nodes (12⁴, 4) and weights of the product rule."""
    x, w = np.polynomial.hermite_e.hermegauss(NODES)
    grids = np.meshgrid(x, x, x, x, indexing="ij")
    weights = np.einsum("i,j,k,l->ijkl", w, w, w, w).ravel()
    return np.stack([grid.ravel() for grid in grids], axis=1), weights / weights.sum()


def evaluate_objective(z, omega, V, T, rho):
    """Return ½ Σ (z−ω)²/V + ½ Tr S ρ Sᵀ − Tr S ρ Tᵀ, as in the equations."""
    scores = np.outer(z, z)
    S = np.exp(scores - scores.max(axis=1, keepdims=True))
    S /= S.sum(axis=1, keepdims=True)
    return 0.5 * np.sum((z - omega) ** 2 / V) + np.sum((0.5 * S - T) * S * rho)


LABELS = {
    "1/rtol, split rule, semantic": "accuracy 1/rtol,\nsplit rule, semantic",
    "1/rtol, split rule, positional": "accuracy 1/rtol,\nsplit rule, positional",
    "1/rtol, points, three tokens": "accuracy 1/rtol,\npoints, three tokens",
    "1/rtol, points, two columns": "accuracy 1/rtol,\npoints, two columns",
    "L, an average by points": "tokens per sample L,\none average by points",
    "r = t, an average by points": "columns r = t,\none average by points",
}  # fmt: skip


def draw(numbers, path):
    """Draw the time of a solution against accuracy and sizes."""
    draw_growth(path, numbers["growth"], "time, ms", 3, LABELS)


def main():
    args = options(__doc__, draw=True, base=BASE)
    verdict = Verdict("state_evolution_speed", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    model, alpha, numbers = ga.paper_model(0.3), 1.5, {}
    rng = np.random.default_rng(0)
    sample_size = 40 if args.quick else 400
    for branch in ("semantic", "positional"):
        se = ga.solve_state_evolution(model, alpha, branch, rtol=1e-4 if args.quick else 1e-6, stability=False)
        o, rho = se.overlaps, model.coordinates.trace
        channel = Channel(model, o)
        exact = conjugates(model, alpha, o, SplitRule(3 if args.quick else 4).moments(channel)[0])
        white, weights = build_baseline_rule()
        y, terms = channel.teacher(white[:, :2])
        noise = channel.fields(y, white[:, 2:, None])
        omega, T, V = (noise + o.m)[:, :, 0], model.teacher(y), o.V[:, 0, 0]

        chosen = rng.choice(len(white), sample_size, replace=False)
        began = time.perf_counter()
        for i in chosen:
            minimize(evaluate_objective, omega[i], args=(omega[i], V, T[i], rho), method="BFGS")
        baseline_seconds = (time.perf_counter() - began) / sample_size * len(white) * AVERAGES

        out = ga.denoise(
            model.loss, terms.params, noise + o.m, o.V
        )  # the same rule with exact minima, for its accuracy
        share = (weights * len(weights))[:, None, None]
        weighted = out._replace(g=out.g * share, response=out.response * share[..., None])
        moments = average(y, noise, terms, weighted, o.V)
        gg = np.einsum("n,nla,nlb->lab", weights, out.g, out.g)
        rough = conjugates(model, alpha, o, type(moments)(**{**vars(moments), "gg": gg}))

        def error(hats, exact=exact):
            return {
                key: float(np.abs(getattr(hats, key) - getattr(exact, key)).max() / np.abs(getattr(exact, key)).max())
                for key in ("m", "q", "theta", "V")
                if np.abs(getattr(exact, key)).max() > 1e-8
            }

        rough_error = error(rough)
        for level in range(4):  # the coarsest level that is at least as accurate
            rule = SplitRule(level)
            our_error = error(conjugates(model, alpha, o, rule.moments(channel)[0]))
            if max(our_error.values()) <= max(rough_error.values()):
                break
        ours = []
        for _ in range(7):
            began = time.perf_counter()
            rule.moments(Channel(model, o))
            ours.append(time.perf_counter() - began)
        seconds = float(np.median(ours))
        ratio = baseline_seconds / seconds
        print(
            f"{branch}: BFGS at 12⁴ nodes, four averages: {baseline_seconds:.0f} s, errors {format_errors(rough_error)}"
        )
        print(f"{branch}: split rule, level {rule.level}: {seconds * 1e3:.1f} ms, errors {format_errors(our_error)}")
        verdict.check(ratio >= 500, f"{branch}: {ratio:.0f} times faster")
        verdict.check(
            max(our_error.values()) <= max(rough_error.values()),
            f"{branch}: worst error {max(our_error.values()):.1e} against {max(rough_error.values()):.1e}",
        )
        numbers[branch] = {
            "baseline_seconds": baseline_seconds, "seconds": seconds, "ratio": ratio,
            "baseline_error": rough_error, "error": our_error,
        }  # fmt: skip
    check_accuracies(verdict, model, alpha, numbers, args.quick)
    check_points(verdict, numbers, args.quick)
    numbers["growth"] = measure_growth(args.quick)
    for name, row in numbers["growth"].items():
        print(f"exponent of the time in {name}: {row['exponent']:.2f}")
    if args.base:
        numbers["beside"] = compare_checkouts(verdict, args.base, args.quick)
    verdict.end(numbers, draw)


def compare_checkouts(verdict, base, quick):
    """Return CPU seconds in another checkout and in this checkout."""
    rows = {}
    for old, new in zip(*run_side_by_side(base, SCRIPT, *["quick"] * quick), strict=True):
        name, ratio = old["name"], new["seconds"] / old["seconds"]
        rows[name] = {"base": old, "here": new, "ratio": ratio}
        words = f"{name}: {new['seconds']:.2f} s against {old['seconds']:.2f} s, {ratio:.2f} of the time"
        verdict.check(ratio <= LIMITS[name], f"{words}, at most {LIMITS[name]}")
    return rows


def check_accuracies(verdict, model, alpha, numbers, quick):
    """Check accuracy and time of whole solutions."""
    asked = [("semantic", 1e-4, 1.0), ("positional", 1e-4, 1.0)]
    if not quick:
        asked += [("semantic", 1e-8, 60.0), ("positional", 1e-6, 60.0)]
    for branch, rtol, limit in asked:
        times = []
        for _ in range(5 if limit <= 1 else 1):
            began = time.perf_counter()
            se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stability=False)
            times.append(time.perf_counter() - began)
        seconds = float(np.median(times))
        numbers[f"{branch} {rtol:g}"] = {
            "seconds": seconds,
            "error": se.relative_error,
            "overlaps": se.overlaps.arrays(),
        }
        print(f"{branch}, rtol {rtol:g}: {seconds:.2f} s, error {se.relative_error:.1e} ({se.status.value})")
        verdict.check(se.converged and se.relative_error <= rtol, f"{branch}: {rtol:g} is reached")
        if not quick:
            verdict.check(seconds <= limit, f"{branch}: {rtol:g} within {limit:g} s")


def check_points(verdict, numbers, quick):
    """Check the times to an accuracy for problems that need randomised points."""
    for name, (model, alpha, limit) in BY_POINTS.items():
        ga.solve_state_evolution(model, alpha, rtol=0.1, stability=False)  # compiles
        rtol = 1e-2 if quick else 1e-3
        began = time.perf_counter()
        se = ga.solve_state_evolution(model, alpha, rtol=rtol, stability=False)
        seconds = time.perf_counter() - began
        numbers[f"{name} {rtol:g}"] = {"seconds": seconds, "error": se.relative_error, "overlaps": se.overlaps.arrays()}
        print(f"{name}, rtol {rtol:g}: {seconds:.2f} s, error {se.relative_error:.1e} ({se.status.value})")
        verdict.check(se.converged and se.relative_error <= rtol, f"{name}: {rtol:g} is reached")
        if not quick:
            verdict.check(seconds <= limit, f"{name}: {rtol:g} within {limit:g} s, took {seconds:.1f}")


def format_errors(errors):
    return ", ".join(f"{key} {value:.1e}" for key, value in errors.items())


if __name__ == "__main__":
    main()
