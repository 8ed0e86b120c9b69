"""Equations of six papers in at most 15 lines each have the solutions of trained weights, and of the package.

Method: `docs/examples/own_equations.py` is solved by `solve_equations`. (1) Logistic regression is compared with
`solve_state_evolution`. (2) Each model is drawn at finite d and trained by L-BFGS of scipy (support vectors by the dual
problem, bootstrap by linear algebra), without the package; random features are drawn once, and their spectrum enters
the equations.

Criterion: differences in (1) are within the stated errors, which are at most 1e-4 of the values. In (2), means over
instances agree with the solutions within four standard errors plus 2/d of the value. No function has more than 15
lines without its docstring. (Page "Your own equations" of the manual.)
"""

import ast
import inspect

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

import gamp_attention as ga
from docs.examples import own_equations as papers
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

START = {"m": 0.1, "q": 0.5, "V": 1.0}
ALPHA, LAM, SIGMAS, MOST_LINES = 2.0, 0.1, 4.0, 15
FLIPPED, STRENGTH, DISTANCE, POSITIVE, NOISE = 0.1, 0.3, 1.5, 0.2, 0.5
CASES = {  # equations, start, parameters other than α and λ
    "logistic": (papers.logistic, START, {}),
    "support vectors": (papers.support_vectors, START, {"flipped": FLIPPED}),
    "random features": (papers.random_features, START, {}),
    "adversarial": (papers.adversarial, START, {"strength": STRENGTH}),
    "mixture": (papers.mixture, START | {"b": 0.0}, {"distance": DISTANCE, "positive": POSITIVE}),
    "bootstrap": (papers.bootstrap, START | {"r": 0.1}, {"noise": NOISE}),
}


def features(d, seed=0):
    """Return a square root of Ω, and Φᵀθ, of random linear features F x with noise, for a teacher of norm √d."""
    rng = np.random.default_rng(seed)
    F, teacher = rng.standard_normal((d, d)) / np.sqrt(d), rng.standard_normal(d)
    teacher *= np.sqrt(d) / np.linalg.norm(teacher)
    return 0.7 * F, 0.5, teacher


def spectrum(d):
    """Return the eigenvalues of Ω and the entries of Φᵀθ in its basis."""
    F, noise, teacher = features(d)
    omega, vectors = np.linalg.eigh(F @ F.T + noise**2 * np.eye(d))
    return {"omega": omega, "s": vectors.T @ (F @ teacher)}


def descend(x, y, margin=0.0, bias=False):
    """Return the weights, and the bias, that minimize the logistic risk; y z is lowered by margin ‖w‖/√d."""
    d = x.shape[1]

    def risk(v):
        w, size = v[:d], np.linalg.norm(v[:d]) / np.sqrt(d) + 1e-300
        t = y * (x @ w / np.sqrt(d) + bias * v[d]) - margin * size
        slope = -expit(-t)
        gradient = x.T @ (slope * y) / np.sqrt(d) - margin * slope.sum() * w / (d * size) + LAM * w
        return np.logaddexp(0, -t).sum() + LAM * w @ w / 2, np.append(gradient, bias * (slope @ y))

    start = np.append(0.1 * np.random.default_rng(0).standard_normal(d), 0.0)
    v = minimize(risk, start, jac=True, method="L-BFGS-B", options={"gtol": 1e-7, "ftol": 0, "maxiter": 5000}).x
    return v[:d], v[d]


def support(x, y):
    """Return the weights of a support vector machine, from its dual problem."""
    rows = x * y[:, None] / np.sqrt(x.shape[1])

    def dual(a):
        w = rows.T @ a / LAM
        return LAM / 2 * w @ w - a.sum(), rows @ w - 1

    options = {"gtol": 1e-7, "ftol": 0, "maxiter": 20000, "maxfun": 40000}
    a = minimize(dual, np.full(len(y), 0.5), jac=True, bounds=[(0, 1)] * len(y), method="L-BFGS-B", options=options).x
    return rows.T @ a / LAM


def train(name, d, seed):
    """Return the order parameters of one instance."""
    rng = np.random.default_rng([7, seed])
    x, teacher = rng.standard_normal((int(ALPHA * d), d)), rng.standard_normal(d)
    teacher *= np.sqrt(d) / np.linalg.norm(teacher)
    u = x @ teacher / np.sqrt(d)
    if name == "bootstrap":
        y, w = u + NOISE * rng.standard_normal(len(u)), []
        for _ in range(2):
            counts = rng.poisson(1.0, len(u))
            w.append(
                np.linalg.solve(x.T @ (counts[:, None] * x) / d + LAM * np.eye(d), x.T @ (counts * y) / np.sqrt(d))
            )
        return {"m": w[0] @ teacher / d, "q": w[0] @ w[0] / d, "r": w[0] @ w[1] / d}
    if name == "mixture":
        y, along = np.where(rng.random(len(u)) < POSITIVE, 1.0, -1.0), np.ones(d) / np.sqrt(d)
        w, b = descend(x + DISTANCE * y[:, None] * along, y, bias=True)
        return {"m": w @ along / np.sqrt(d), "q": w @ w / d, "b": b}
    if name == "random features":
        F, noise, teacher = features(d)
        v = x @ F.T + noise * rng.standard_normal((len(x), d))
        w, _ = descend(v, np.sign(x @ teacher))
        return {"m": w @ (F @ teacher) / d, "q": (np.sum((F.T @ w) ** 2) + noise**2 * w @ w) / d}
    if name == "logistic":
        y = np.where(rng.random(len(u)) < expit(u), 1.0, -1.0)
        w, _ = descend(x, y)
    elif name == "adversarial":
        w, _ = descend(x, np.sign(u), STRENGTH)
    else:
        w = support(x, np.sign(u) * np.where(rng.random(len(u)) < FLIPPED, -1, 1))
    return {"m": w @ teacher / d, "q": w @ w / d}


def plan(quick):
    """Return the instances of each model."""
    d, instances = (100, 4) if quick else (500, 24)
    return {train: [{"name": name, "d": d, "seed": seed} for name in CASES for seed in range(instances)]}


def judge(verdict, trained):
    """Solve the equations and compare."""
    d, numbers, rows = (100 if verdict.quick else 500), {}, []
    for name, (equations, start, parameters) in CASES.items():
        parameters = parameters | (spectrum(d) if name == "random features" else {})
        solution = ga.solve_equations(equations, start, alpha=ALPHA, lam=LAM, **parameters)
        body = ast.parse(inspect.getsource(equations)).body[0].body[1:]
        lines = body[-1].end_lineno - body[0].lineno + 1
        verdict.check(solution.converged and lines <= MOST_LINES, f"{name}: {solution.status.value}, {lines} lines")
        runs, worst = [run for run in trained if run["name"] == name], 0.0
        for key in (key for key in solution.values if key in runs[0]):
            values = np.array([run[key] for run in runs])
            allowed = SIGMAS * values.std(ddof=1) / np.sqrt(len(runs)) + 2 / d * abs(solution.values[key])
            worst = max(worst, abs(values.mean() - solution.values[key]) / allowed)
            rows.append({"model": name, "parameter": key, "solution": float(solution.values[key]),
                         "error": float(solution.errors[key]), "mean": float(values.mean()),
                         "standard error": float(values.std(ddof=1) / np.sqrt(len(runs)))})  # fmt: skip
        verdict.check(worst <= 1, f"{name}: finite d within {worst:.2f} of the allowed difference")
        numbers[name] = {key: float(value) for key, value in solution.values.items()}
        if name == "logistic":
            model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=LAM)
            o = ga.solve_state_evolution(model, ALPHA, rtol=1e-6, stability=False).overlaps
            exact = {"m": o.theta.item(), "q": o.q.item(), "V": o.V.item()}
            away = max(abs(solution.values[key] - exact[key]) / solution.errors[key] for key in exact)
            verdict.check(away <= 1, f"{name}: state evolution within {away:.2f} of the stated errors")
    table = [
        [v if isinstance(v, str) else f"{v:.3g}" if "error" in k else f"{v:.4f}" for k, v in row.items()]
        for row in rows
    ]
    verdict.write_table(markdown_table(rows[0], table))
    return {"solutions": numbers, "rows": rows}


def main():
    run_claim("own_equations", __doc__, plan, judge)


if __name__ == "__main__":
    main()
