"""Message passing and state evolution give no false answer at extremes and on data outside their assumptions.

Method: random instances. Some have parameters of the paper's model far beyond its range (λ from 1e-8 to 1e3, σ from
1e-3 to 10, ω = 0 and 1, α from 0.01 to 100), or attention of other kinds and sizes. Others are user arrays that violate
the assumptions of GAMP: duplicated samples, tokens in few dimensions, correlated, heavy-tailed, of very unequal sizes,
fewer samples than tokens, d = 1. If message passing does not converge, L-BFGS continues from its best weights, as its
message proposes. Every run is checked independently of its report. "False" counts runs that report convergence although
the gradient, computed again, exceeds the tolerance, or although one more iteration of state evolution moves the fixed
point. "NaN" counts runs with a number that is not finite and no status that reports it. "Raised" counts errors.

Criterion: none of the three occurs, and no instance takes longer than 600 seconds. The number of converged runs is
reported. (Robustness page of the manual.)
"""

import time
from collections import Counter

import numpy as np

import gamp_attention as ga
from gamp_attention.theory.equations.units import relative_change
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.choice import first_rule
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

TOL, RTOL = 1e-8, 1e-2
SLACK = 1.01  # factor on the tolerance, for rounding in the second computation
SEEDS, SE_POINTS = 5, 40
# number of instances in units of SEEDS, 1 for other kinds
MORE = {"the paper's model at extremes": 12, "other maps and sizes": 4, "lasso and elastic net": 4}
QUICK = {"the paper's model at extremes": 4, "lasso and elastic net": 0}  # number of instances, 1 for other kinds
LONGEST = 600
LAMBDAS, SIGMAS, OMEGAS = (1e-8, 1e-5, 1e-2, 1.0, 1e3), (1e-3, 0.5, 10.0), (0.0, 0.3, 1.0)
ALPHAS = (0.01, 0.1, 1.5, 10.0, 100.0)
SIZES = {0.01: 200, 0.1: 100, 1.5: 60, 10.0: 30, 100.0: 6}  # d at each α
STARTS = ("random", "positional", "semantic")


def draw_parameters(seed):
    """Return a point of the paper's model, mostly at an edge of the ranges."""
    rng = np.random.default_rng([seed, 3])
    return [float(rng.choice(values)) for values in (OMEGAS, SIGMAS, LAMBDAS, ALPHAS)]


def build_paper(seed):
    """Return an instance of the paper's model at extreme parameters."""
    omega, sigma, lam, alpha = draw_parameters(seed)
    return ga.sample(ga.paper_model(omega, sigma, lam), SIZES[alpha], alpha, seed)


def build_other_maps(seed):
    """Return an instance with another map, more tokens and columns."""
    rng = np.random.default_rng([seed, 4])
    tied, causal, softmax = (bool(rng.integers(2)) for _ in range(3))
    student = ga.DotProductAttention(float(10 ** rng.uniform(-1, 1)), tied, causal, softmax)
    lam, sigma = 10 ** rng.uniform(-3, 1), rng.uniform(0.1, 2)
    model = ga.attention_model(int(rng.integers(1, 4)), 2, 1, sigma=sigma, lam=lam, student=student)
    return ga.sample(model, 30, float(rng.uniform(0.1, 4)), seed)


def build_lasso(seed):
    """Return an instance with the elastic net or the lasso."""
    rng = np.random.default_rng([seed, 5])
    net = ga.ElasticNet(float(rng.choice([0.0, 1e-3, 0.1])), float(10 ** rng.uniform(-4, 0)))
    return ga.sample(ga.paper_model(penalty=net), 50, float(rng.uniform(0.3, 4)), seed)


def build_arrays(change):
    """Return a function that builds arrays of three tokens, changed by `change`; outputs are the tokens reversed.

    `change` takes tokens (40, 3, 30) and a generator.
    """

    def make(seed):
        rng = np.random.default_rng([seed, 6])
        tokens = change(0.5 * rng.normal(size=(40, 3, 30)), rng)
        d = tokens.shape[2]
        positions = np.outer([1.0, 0.0, -1.0], np.ones(d)) / np.sqrt(d)
        return ga.Dataset(tokens, tokens[:, ::-1], positions, float(10 ** rng.uniform(-4, 0)))

    return make


def correlate(tokens, rng):
    lags = np.abs(np.subtract.outer(np.arange(30), np.arange(30)))
    return tokens @ np.linalg.cholesky(0.98**lags).T


def enlarge_one(tokens, rng):
    tokens[0] *= 10 ** rng.uniform(2, 8)
    return tokens


KINDS = {
    "the paper's model at extremes": build_paper,
    "other maps and sizes": build_other_maps,
    "lasso and elastic net": build_lasso,
    "as assumed, user arrays": build_arrays(lambda x, rng: x),
    "duplicated samples": build_arrays(lambda x, rng: np.repeat(x[:5], 8, axis=0)),
    "tokens of rank one": build_arrays(lambda x, rng: rng.normal(size=(40, 3, 1)) * x[0, 0]),
    "all tokens identical": build_arrays(lambda x, rng: np.repeat(x[:, :1], 3, axis=1)),
    "tokens zero": build_arrays(lambda x, rng: 0 * x),
    "tokens with a mean": build_arrays(lambda x, rng: x + 5),
    "correlated coordinates": build_arrays(correlate),
    "Cauchy tokens": build_arrays(lambda x, rng: 0.1 * rng.standard_cauchy(x.shape)),
    "Student tokens, 2 degrees": build_arrays(lambda x, rng: 0.3 * rng.standard_t(2, x.shape)),
    "one huge sample": build_arrays(enlarge_one),
    "coordinates of sizes 1e-3 to 1e3": build_arrays(lambda x, rng: x * np.logspace(-3, 3, 30)),
    "tokens of size 1e6": build_arrays(lambda x, rng: 1e6 * x),
    "tokens of size 1e-8": build_arrays(lambda x, rng: 1e-8 * x),
    "fewer samples than tokens": build_arrays(lambda x, rng: x[:2]),
    "one sample, one dimension": build_arrays(lambda x, rng: x[:1, :, :1]),
    "one dimension": build_arrays(lambda x, rng: x[:, :, :1]),
}


def all_finite(*values):
    return all(np.isfinite(value).all() for value in values)


def run_message_passing(kind, seed):
    """Run message passing from one start, check the answer, and continue by L-BFGS if it did not converge."""
    data, began = KINDS[kind](seed), time.perf_counter()
    start = STARTS[seed % (3 if data.Q_star is not None else 2)]
    if start == "positional" and not data.positions.any():
        start = "random"
    row = {"raised": None, "false": False, "nan": False, "fallback": None}
    with np.errstate(all="ignore"):
        try:
            result = ga.run_gamp(data, start, "exact", tol=TOL, seed=seed)
        except Exception as error:
            return row | {"status": "raised", "raised": f"{type(error).__name__}: {error}", "took": 0.0}
        norm = np.linalg.norm(ga.gradient(data, result.Q)) / (data.penalty.strength * np.sqrt(data.dim))
        row["took"] = time.perf_counter() - began
        row["status"], row["gradient_norm"] = result.status.value, float(norm)
        row["false"] = bool(result.converged and not norm <= SLACK * TOL)
        row["nan"] = not all_finite(result.Q, result.train_loss, norm, *result.overlaps.arrays().values())
        if not result.converged and data.penalty.quadratic and "minimize_risk" in result.message:
            descent = ga.minimize_risk(data, result.Q, "exact", "lbfgs", tol=TOL, max_iter=2000)
            row["fallback"], row["fallback_norm"] = descent.status.value, descent.gradient_norm
    return row


def solve_fixed_point(seed):
    """Solve state evolution at extreme parameters and apply its equations once more."""
    omega, sigma, lam, alpha = draw_parameters(seed)
    model, began = ga.paper_model(omega, sigma, lam), time.perf_counter()
    row = {"raised": None, "false": False, "nan": False}
    budget = {"max_iter": 44, "max_work": 3e5, "stability": False}
    with np.errstate(all="ignore"):
        try:
            result = ga.solve_state_evolution(model, alpha, STARTS[seed % 3], rtol=RTOL, **budget)
        except Exception as error:
            return row | {"status": "raised", "raised": f"{type(error).__name__}: {error}", "took": 0.0}
        row["took"], row["status"] = time.perf_counter() - began, result.status.value
        if result.converged:
            F = OverlapMap(model, alpha, first_rule("auto", model, (0,)), "stein")
            row["moves"] = float(relative_change(F(result.overlaps), result.overlaps))
            row["false"] = not row["moves"] < 10 * RTOL
            row["nan"] = not all_finite(result.train_loss, result.test_error, *result.overlaps.arrays().values())
    return row


COLUMNS = ("runs", "converged", "settled", "not converged", "then by L-BFGS", "false", "NaN", "raised", "longest")


def count_outcomes(rows):
    """Return the numbers of the columns above."""
    seen = Counter(row["status"] for row in rows)
    unsolved = len(rows) - seen["converged"] - seen["settled"] - seen["raised"]
    saved = sum(row.get("fallback") == "converged" for row in rows)
    bad = [sum(bool(row[name]) for row in rows) for name in ("false", "nan", "raised")]
    values = (len(rows), seen["converged"], seen["settled"], unsolved, saved, *bad, max(row["took"] for row in rows))
    return dict(zip(COLUMNS, values, strict=True))


def main():
    args = options(__doc__, workers=True)
    verdict = Verdict("robustness", args)
    many = {kind: QUICK.get(kind, 1) if args.quick else SEEDS * MORE.get(kind, 1) for kind in KINDS}
    runs, points = [{"kind": kind, "seed": seed} for kind in KINDS for seed in range(many[kind])], SE_POINTS
    if args.quick:
        points = 2
    with pool(args) as executor:
        place = folder(args, verdict.name)
        rows = run_trials(place / "passing", run_message_passing, runs, executor)
        se = run_trials(place / "evolution", solve_fixed_point, [{"seed": seed} for seed in range(points)], executor)
    table = {kind: count_outcomes([row for row in rows if row["kind"] == kind]) for kind in KINDS if many[kind]}
    table["all of message passing"] = count_outcomes(rows)
    table["state evolution at extremes"] = count_outcomes(se)
    verdict.write_table(counts_table(table, "{:.1f} s"))
    verdict.check(
        len(rows) + len(se) == len(runs) + points, f"{len(rows) + len(se)} of {len(runs) + points} runs ended"
    )
    for name in ("all of message passing", "state evolution at extremes"):
        row = table[name]
        for column in ("false", "NaN", "raised"):
            verdict.check(row[column] == 0, f"{name}: {row[column]} of {row['runs']} {column}")
        verdict.check(row["longest"] <= LONGEST, f"{name}: longest {row['longest']:.0f} s")
    verdict.end({"table": table, "rows": rows + se})


if __name__ == "__main__":
    main()
