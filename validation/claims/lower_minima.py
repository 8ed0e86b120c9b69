"""Message passing, L-BFGS and Adam from the same starts: the minima they find, and exact convergence of all.

Method: instances of the paper's model with the exact risk on a grid in α, noise s on the scores, and λ, from the
teacher and from one random start: message passing with default settings; L-BFGS-B of scipy on the compiled risk,
restarted when it stops until the gradient is zero; Adam in torch (1500 steps of 0.05), continued by L-BFGS-B to zero
gradient. Without a given start, also message passing from eight starts, spectral starts first. Losses that differ by
less than a millionth are equal. Test errors are on the same fresh samples.

Criterion: every answer of message passing has a gradient norm of at most 1e-8. Rounding of the loss stops the line
search of L-BFGS-B before; its answers must reach 1e-5, where the loss is accurate to much better than a millionth. The
fractions of lowest losses are reported with standard errors and have no criterion. (Noise page of the manual.)
"""

import time
from itertools import product

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.problem.risk import risk_at
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table

GRID = {"alpha": (1.0, 2.0), "s": (0.0, 0.3, 0.6), "lam": (0.01, 0.1)}
D, SEEDS, SIGMA, OMEGA = 100, 100, 0.8, 0.2
QUICK = {"alpha": (1.0,), "s": (0.0, 0.3), "lam": (0.1,)}
TOL, ROUGH, EQUAL, TESTED = 1e-8, 1e-5, 1e-6, 4000
ROUNDS = 20  # number of restarts of L-BFGS-B, each from the previous end
METHODS = {"gamp": "message passing", "lbfgs": "L-BFGS", "adam": "Adam", "starts": "8 starts"}
STARTS = ("teacher", "random")


def run_lbfgs(data, Q):
    """Return weights, gradient norm and evaluations of L-BFGS-B, restarted until the gradient is zero."""
    scale, count, norm = data.penalty.strength * np.sqrt(data.dim), 0, np.inf

    def both(x):
        at = risk_at(data, x.reshape(Q.shape), "exact")
        return at.train_loss * data.dim, at.gradient.ravel()

    for _ in range(ROUNDS):
        settings = {
            "gtol": 0.1 * TOL * scale / np.sqrt(Q.size),
            "ftol": 0.0,
            "maxiter": 5000,
            "maxfun": 20000,
            "maxcor": 30,
        }
        result = minimize(both, Q.ravel(), jac=True, method="L-BFGS-B", options=settings)
        Q, count = result.x.reshape(Q.shape), count + result.nfev
        before, norm = norm, float(np.linalg.norm(result.jac)) / scale
        if norm <= TOL or norm > 0.9 * before:
            break
    return Q, norm, count


def run_instance(alpha, s, lam, seed, d):
    """Run all methods on one instance."""
    model = ga.paper_model(omega=OMEGA, sigma=SIGMA, lam=lam, score_noise=s)
    data = ga.sample(model, d, alpha, np.random.default_rng([seed, d, 224]))
    random = 0.5 * np.random.default_rng([seed, d, 225]).standard_normal((d, 1))
    rows = {}
    for start, Q0 in zip(STARTS, (data.Q_star, random), strict=True):
        for name in METHODS:
            if name == "starts" and start == "teacher":
                continue
            began, clock = time.process_time(), time.perf_counter()
            Q, norm = run_method(name, data, Q0, seed)
            seconds = min(time.process_time() - began, time.perf_counter() - clock)
            rows[f"{start} {name}"] = {
                "loss": ga.train_loss(data, Q, "exact"), "norm": norm, "seconds": seconds,
                "test_error": ga.sampled_test_error(data, Q, n_samples=TESTED, seed=seed)[0],
                "theta": float(abs(Q[:, 0] @ data.Q_star[:, 0])) / d,
            }  # fmt: skip
    return {"rows": rows}


def run_method(name, data, Q0, seed):
    """Return the weights of a method from a start, and their gradient norm."""
    if name == "gamp":
        run = ga.run_gamp(data, Q0)
    elif name == "starts":
        run = ga.train(data, "spectral", n_starts=8, seed=seed, survey=False, escape=False)
    elif name == "lbfgs":
        return run_lbfgs(data, Q0)[:2]
    else:
        walked = ga.minimize_risk(data, Q0, "exact", "adam", lr=0.05, max_iter=1500, tol=TOL)
        return run_lbfgs(data, walked.Q)[:2]
    return run.Q, run.gradient_norm


def compute_fraction(flags):
    """Return a fraction in per cent with its standard error."""
    p = float(np.mean(flags))
    return 100 * p, 100 * float(np.sqrt(max(p * (1 - p), 0.25 / len(flags)) / len(flags)))


def build_table(rows):
    """Return, for each point and start, how often each method is lowest, and comparisons with message passing."""
    table = {}
    for alpha, s, lam in sorted({(row["alpha"], row["s"], row["lam"]) for row in rows}):
        mine = [row["rows"] for row in rows if (row["alpha"], row["s"], row["lam"]) == (alpha, s, lam)]
        for start in STARTS:
            names = [name for name in METHODS if f"{start} {name}" in mine[0]]
            loss, test, seconds = (
                np.array([[each[f"{start} {name}"][key] for name in names] for each in mine])
                for key in ("loss", "test_error", "seconds")
            )
            single = loss[:, :3]
            lowest = single <= single.min(axis=1, keepdims=True) * (1 + EQUAL)
            cell = {
                "instances": len(mine),
                "equal": compute_fraction(np.ptp(single, axis=1) <= EQUAL * single.min(axis=1)),
            }
            for k, name in enumerate(names):
                cell[name] = {
                    "lowest": compute_fraction(lowest[:, k]) if k < 3 else None,
                    "gamp_lower": compute_fraction(loss[:, 0] < loss[:, k] * (1 - EQUAL)),
                    "gamp_higher": compute_fraction(loss[:, 0] > loss[:, k] * (1 + EQUAL)),
                    "loss": float(loss[:, k].mean()), "test_error": float(test[:, k].mean()),
                    "test_beyond": (float((test[:, k] - test[:, 0]).mean()),
                                    float((test[:, k] - test[:, 0]).std(ddof=1) / np.sqrt(len(mine)))),
                    "seconds": float(np.median(seconds[:, k])),
                }  # fmt: skip
            table[f"{alpha:g} {s:g} {lam:g} {start}"] = cell
    return table


def format_table(table):
    """Return fractions in per cent, and test errors in thousandths, with standard errors in brackets."""
    names = ("message passing", "L-BFGS", "Adam", "8 starts")
    head = ["α, s, λ, start", "all equal", *(f"lowest: {names[0]}", *names[1:3]), f"test error: {names[0]}",
            *(f"{name} beyond" for name in names[1:]), "seconds"]  # fmt: skip
    lines = []
    for name, cell in table.items():
        shares = [f"{p:.0f} ({e:.0f})" for p, e in (cell["equal"], *(cell[k]["lowest"] for k in list(METHODS)[:3]))]
        beyond = [cell[k]["test_beyond"] if k in cell else None for k in list(METHODS)[1:]]
        tests = [f"{1e3 * v:+.1f} ({1e3 * e:.1f})" if e > 1e-9 else "0" for v, e in filter(None, beyond)]
        tests = [f"{1e3 * cell['gamp']['test_error']:.1f}", *tests, *["–"] * beyond.count(None)]
        seconds = ", ".join(f"{cell[k]['seconds']:.2f}" for k in METHODS if k in cell)
        lines.append([", ".join(name.split()), *shares, *tests, seconds])
    return markdown_table(head, lines)


def main():
    args = options(__doc__, workers=True)
    verdict, quick = Verdict("lower_minima", args), args.quick
    grid = QUICK if quick else GRID
    asked = [
        {"alpha": alpha, "s": s, "lam": lam, "seed": seed, "d": 60 if quick else D}
        for seed, alpha, s, lam in product(range(4 if quick else SEEDS), *grid.values())
    ]
    with pool(args) as executor:
        rows = run_trials(folder(args, "lower_minima"), run_instance, asked, executor)
    verdict.check(len(rows) == len(asked), f"{len(rows)} of {len(asked)} instances ended")
    for name, words in METHODS.items():
        norms = [each["norm"] for row in rows for key, each in row["rows"].items() if key.endswith(f" {name}")]
        good = float(np.mean(np.array(norms) <= TOL * 1.01))
        verdict.check(
            max(norms) <= ROUGH, f"{words}: {100 * good:.1f} % of {len(norms)} at 1e-8, worst {max(norms):.1e}"
        )
    table = build_table(rows)
    verdict.write_table(format_table(table))
    verdict.end({"table": table})


if __name__ == "__main__":
    main()
