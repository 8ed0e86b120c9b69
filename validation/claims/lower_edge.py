"""Whether positional minima are marginal: the lower edge of the Hessian's spectrum with k steps of breaking.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5. In theory the spectrum begins at
x_k = Σ_l γ_l |jump mass_l| (page "Curvature"), which is computed on two grids at the stored solutions with k = 0 to 3
steps (`further_steps`), extrapolated to k → ∞ as by `steps="full"`. At finite d, the lowest eigenvalues at the minima
that GAMP finds from the positions, together with the minima of `curvature`, are fitted by x + b d^(−2/5): the number of
eigenvalues below x increases as x^(5/2) if small curvatures come from samples near a jump. Rows are stored when they
end (--quick: replica symmetry, d = 200). The exponent of d is measured, too, by a fit of b d^(−a) without a gap.

Criterion: 95 % of the runs end in a minimum on the branch. The edge decreases with each step, and its limit is less
than 2 errors from zero; the fitted edge of minima differs from this limit by less than 3 errors, and from the edge of
replica symmetry by more than 3.
"""

import json
from functools import partial

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.rsb.broken import extrapolate_steps
from gamp_attention.extensions.rsb.two_fields import TwoFields
from gamp_attention.extensions.rsb.weights import Levels
from validation._tools.catalog import ROOT, load_result
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_instances, complete_parts
from validation._tools.tables import fit_sizes, markdown_table, mean_and_error
from validation.claims.further_steps import ALPHA, difference
from validation.claims.positional_minima import ON_BRANCH, REACHED

GAMMA = 0.25  # γ_l = σ² of both tokens
RESOLUTIONS, SAFETY = (1, 2), 1.5  # of the grids; error in units of the change from one to the next
COUNTS = {4000: 30, 2000: 60, 1000: 150, 500: 300}  # instances by d, for an expected error of 1e-4
POWER, LIMIT_POWER = 0.4, 2.0  # powers of 1/d and of 1/k


def edge_of(k):
    """Return the lower edge with k steps and its error."""
    r = load_result(ROOT / "results" / "further_steps.json")["results"][f"k = {k}"]
    q, parisi = (np.array(r[key][0]) for key in ("levels", "parisi")) if k else (np.array(r["q"][:1]), np.zeros(0))
    both = np.ones(2)
    levels = Levels(np.outer(q, both), r["m"][0] * np.array([1.0, -1.0]), 0 * both, r["V"][0] * both)
    hats = [TwoFields(ga.paper_model(), ALPHA).hats(levels, parisi, i, replicons=False) for i in RESOLUTIONS]
    edges = [GAMMA * float(np.sum(each.V_derivative - each.V)) for each in hats]
    return [edges[-1], SAFETY * abs(edges[-1] - edges[0])]


def run_cell(d, seed):
    """Return the lowest eigenvalue at the minimum of an instance."""
    run = ga.run_gamp(ga.sample(ga.paper_model(), d, ALPHA, seed), "positional", "asymptotic", max_iter=1000)
    m = abs(float(run.overlaps.m[0, 0]))
    return [{"d": d, "seed": seed, "norm": run.gradient_norm, "m": m, "lowest": run.lowest_eigenvalue}]


def main():
    args = options(__doc__)
    verdict = Verdict("lower_edge", args)
    steps, counts = ((0,), {200: 4}) if args.quick else (range(4), COUNTS)
    quick = "_quick" if args.quick else ""
    parts = {f"k = {k}": partial(edge_of, k) for k in steps}
    edges = complete_parts(args.out / f"lower_edge{quick}_parts.json", parts)
    rows = complete_instances(verdict.path("_runs.jsonl"), run_cell, counts)
    minima = [row for row in rows if row["norm"] <= REACHED and row["m"] > ON_BRANCH]
    verdict.check(len(minima) >= 0.95 * len(rows), f"{len(minima)} of {len(rows)} runs end in a minimum on the branch")
    if args.quick:
        verdict.end({})
        return
    minima += read_minima()
    values = [edge for edge, _ in edges.values()]
    verdict.check(values == sorted(values, reverse=True), f"the edge decreases with each step: {values}")
    limit, error = extrapolate_steps(values[1:], LIMIT_POWER)
    error += abs(limit - values[-1]) + edges["k = 3"][1]
    edges["k → ∞"] = [limit, error]
    verdict.check(abs(limit) < 2 * error, f"the limit of the edge is {limit:.2g} ± {error:.1g}")
    fit = fit_edge(minima)
    for name, words in (("k → ∞", "less than 3"), ("k = 0", "more than 3")):
        away = difference(fit, edges[name])
        agrees = abs(away) < 3 if name == "k → ∞" else abs(away) > 3
        verdict.check(agrees, f"the edge of minima differs from {name} by {away:.1f} errors, {words}")
    table = [
        [name, plus_minus(*(1e4 * v for v in pair)), f"{difference(fit, pair):.1f}"] for name, pair in edges.items()
    ]
    for d in sorted(counts):
        lowest = [1e4 * row["lowest"] for row in minima if row["d"] == d]
        table.append([f"lowest eigenvalue of {len(lowest)} minima, d = {d}", plus_minus(*mean_and_error(lowest)), ""])
    table.append(["minima, d → ∞", plus_minus(*(1e4 * v for v in fit)), ""])
    exponent = fit_exponent(minima)
    table.append([f"minima, exponent a of b d⁻ᵃ (expected {POWER})", plus_minus(*exponent), ""])
    verdict.write_table(markdown_table(["", "lower edge, 10⁻⁴", "minima: difference/error"], table))
    verdict.end({"edges": edges, "minima": fit, "exponent": exponent})


def read_minima():
    """Return the lowest eigenvalues at the stored minima of `curvature`, at d of `COUNTS`."""
    rows = map(json.loads, (ROOT / "results" / "curvature_runs.jsonl").read_text().splitlines())
    return [
        {"d": row["d"], "lowest": row["lowest"][0]}
        for row in rows
        if row["branch"] == "positional" and row["d"] in COUNTS and row["gradient_norm"] <= REACHED
    ]


def fit_edge(minima):
    """Return the limit x of the lowest eigenvalues x + b d^(−2/5) and its error; their scatter decreases like b."""
    sizes, lowest = ([row[key] for row in minima] for key in ("d", "lowest"))
    (edge, _), (error, _) = fit_sizes(sizes, lowest, power=POWER, scatter=POWER)
    return [float(edge), float(error)]


def fit_exponent(minima):
    """Return the exponent a of means of lowest eigenvalues that decrease as d^(−a), and its error."""
    sizes = sorted({row["d"] for row in minima})
    means, errors = np.array([mean_and_error([row["lowest"] for row in minima if row["d"] == d]) for d in sizes]).T
    design = np.stack([np.ones(len(sizes)), -np.log(sizes)], axis=1) * (means / errors)[:, None]
    covariance = np.linalg.inv(design.T @ design)
    return [float((covariance @ design.T @ (np.log(means) * means / errors))[1]), float(np.sqrt(covariance[1, 1]))]


if __name__ == "__main__":
    main()
