"""Generalized linear models of rows take at most 3 times as long as in scikit-learn, with the same coefficients.

Method: `GampRegressor` and `GampClassifier`, and `Ridge`, `Lasso` and `LogisticRegression` of scikit-learn, are fitted
in turn to the same rows (normally distributed; 30 % of the teacher's weights are not zero), on one thread. Reported are
the minimum processor time of several fits of each, the ratio of both, and the largest difference of coefficients.
`parts` are the minimum processor times of the parts of the fits of this package. The tolerances of scikit-learn are
1e-8; its logistic regression then stops at gradients about a thousand times as large as in this package.

Criterion: ratios of at most 3; for more than 5000 rows and columns at most 1; coefficients differ by less than 1e-6.
"""

import time
from collections import defaultdict
from contextlib import contextmanager
from unittest import mock

import numpy as np
from sklearn.linear_model import Lasso, LogisticRegression, Ridge

import gamp_attention as ga
from gamp_attention.estimators import rows as estimators
from gamp_attention.gamp import convex_start, result
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

SIZES, REPEATS = {(20_000, 50): 9, (2000, 500): 9, (6000, 6000): 2}, 2
LAM, MOST, FAR, CLOSE = 0.1, 3.0, 5000, 1e-6
PARTS = {
    "gradients": (convex_start, "risk_at"),
    "Hessians": (convex_start, "risk_hessian"),
    "variances": (convex_start, "susceptibility"),
    "Newton start, whole": (estimators, "newton_start"),
    "fixed point": (result, "is_fixed_point"),
    "lowest eigenvalue": (result, "lowest_curvature"),
    "verification, whole": (estimators, "report_minimum"),
}


def measure_seconds(function):
    began = time.process_time()
    value = function()
    return time.process_time() - began, value


@contextmanager
def timed_parts():
    """Yield a dictionary that collects the processor time of each part."""
    times = defaultdict(float)

    def timed(name, function):
        def call(*arguments, **named):
            seconds, value = measure_seconds(lambda: function(*arguments, **named))
            times[name] += seconds
            return value

        return call

    patches = [mock.patch.object(m, f, timed(name, getattr(m, f))) for name, (m, f) in PARTS.items()]
    for patch in patches:
        patch.start()
    try:
        yield times
    finally:
        for patch in patches:
            patch.stop()


def draw_problems(n, d):
    """Return the estimators of both packages and the labels for each problem, and the rows."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d))
    w = rng.standard_normal(d) * (rng.random(d) < 0.3)
    y = x @ w * min(1.0, 3 / np.linalg.norm(w)) + rng.standard_normal(n)
    l1 = 5.0 if n > d else 0.5
    lasso = Lasso(alpha=l1 * np.sqrt(d) / n, tol=1e-8, max_iter=10_000)
    return x, {
        "ridge": (ga.GampRegressor(lam=LAM), Ridge(alpha=LAM * d), y),
        "lasso": (ga.GampRegressor(penalty=ga.ElasticNet(0.0, l1)), lasso, y),
        "logistic": (ga.GampClassifier(lam=LAM), LogisticRegression(C=1 / (LAM * d), tol=1e-8, max_iter=1000), y > 0),
    }  # fmt: skip


def measure(n, d, repeats):
    """Return a row for each problem."""
    x, problems = draw_problems(n, d)
    rows = []
    for name, (ours, theirs, y) in problems.items():
        ours.fit(x[:100, :5], y[:100])  # compiles
        seconds = {"ours": [], "theirs": []}
        for _ in range(repeats):
            seconds["ours"].append(measure_seconds(lambda: ours.fit(x, y))[0])  # noqa: B023
            seconds["theirs"].append(measure_seconds(lambda: theirs.fit(x, y))[0])  # noqa: B023
        parts = {}
        for _ in range(repeats):
            with timed_parts() as times:
                ours.fit(x, y)
            parts = {part: min(parts.get(part, np.inf), value) for part, value in times.items()}
        row = {"problem": name, "n": n, "d": d, **{key: min(values) for key, values in seconds.items()}}
        row |= {
            "ratio": row["ours"] / row["theirs"],
            "steps": ours.n_iter_ - ours.result_.n_iter,
            "iterations": ours.result_.n_iter,
            "converged": ours.result_.converged and bool(ours.result_.fixed_point),
            "difference": float(np.abs(ours.coef_ - theirs.coef_).max()),
            "parts": parts,
        }
        rows.append(row)
        print({key: value for key, value in row.items() if key != "parts"}, flush=True)
    return rows


def format_table(rows):
    heads = ("problem", "n", "d", "this package, ms", "scikit-learn, ms", "ratio", "Newton steps", "difference")
    lines = []
    for row in rows:
        times = f"{1e3 * row['ours']:.1f}", f"{1e3 * row['theirs']:.1f}", f"{row['ratio']:.1f}"
        lines.append([row["problem"], row["n"], row["d"], *times, row["steps"], f"{row['difference']:.1g}"])
    return markdown_table(heads, lines)


def main():
    args = options(__doc__)
    verdict = Verdict("glm_speed", args)
    sizes = {(2000, 50): REPEATS, (500, 200): REPEATS} if args.quick else SIZES
    rows = [row for (n, d), repeats in sizes.items() for row in measure(n, d, repeats)]
    for row in rows:
        about = f"{row['problem']}, n = {row['n']}, d = {row['d']}: "
        most = 20.0 if args.quick else 1.0 if min(row["n"], row["d"]) > FAR else MOST
        verdict.check(row["ratio"] <= most, about + f"{row['ratio']:.1f} times the time of scikit-learn")
        verdict.check(
            row["converged"] and row["difference"] < CLOSE, about + f"coefficients within {row['difference']:.1g}"
        )
    verdict.write_table(format_table(rows))
    verdict.end({"rows": rows})


if __name__ == "__main__":
    main()
