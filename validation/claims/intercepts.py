"""Unpenalized intercepts: against scikit-learn and scipy at finite d, and against state evolution for d → ∞.

Method: (1) Logistic regression, the lasso and least squares with several labels, on columns with means, are trained by
message passing with `intercept=True` and by scikit-learn; a robust loss, log cosh, is minimized by scipy. (2) Three
models with shifted labels, each with instances of growing d: least squares, logistic regression with classes of unequal
sizes, and a neuron with tanh. Message passing is compared with state evolution in the intercept, the squared norm, the
overlap with the teacher and the training loss, and at every of its first iterations with the predicted trajectory of
the intercept.

Criterion: weights and intercepts agree with scikit-learn and scipy to 1e-5. Means over the instances of the largest d
agree with state evolution within four standard errors plus the stated error of the theory and 2/d of the value.
(Section on intercepts of the manual.)
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, ndtr
from sklearn.linear_model import Lasso, LogisticRegression, Ridge

import gamp_attention as ga
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

DIMS, INSTANCES, N_ITER = (500, 1000, 2000), 16, 8
QUICK_DIMS, QUICK_INSTANCES = (300,), 8
SIGMAS, FINITE_SIZE, RTOL = 4.0, 2.0, 1e-3  # allowed standard errors; finite-size error in units of 1/d; accuracy
MAX_DIFFERENCE = 1e-5
SEEDS, QUICK_SEEDS = 10, 2
SQUARED, LOGISTIC, NEURON = "least squares", "logistic", "tanh"


class ShiftedLinear:
    """Labels u + 1 + 0.5 N(0, 1)."""

    even = False

    def n_noise(self, n_tokens, rank):
        """Return the number of random numbers of a sample."""
        return 1

    def __call__(self, u, noise):
        """Return labels (N, 1) for fields (N, 1, 1) and noise (N, 1)."""
        return u[:, 0] + 1.0 + 0.5 * noise


class ShiftedClasses:
    """Labels ±1 with log odds 2 u + 1."""

    even = False

    def n_noise(self, n_tokens, rank):
        """Return the number of random numbers of a sample."""
        return 1

    def __call__(self, u, noise):
        """Return labels (N, 1) for fields (N, 1, 1) and noise (N, 1)."""
        return np.where(ndtr(noise) < expit(2 * u[:, 0] + 1), 1.0, -1.0)


def build_model(name):
    """Return a model whose labels are shifted."""
    if name == SQUARED:
        return ga.glm_model(ga.SquaredLoss(), ShiftedLinear(), lam=0.2, intercept=True)
    if name == LOGISTIC:
        return ga.glm_model(ga.LogisticLoss(), ShiftedClasses(), lam=0.1, intercept=True)
    return ga.sequence_model(
        lambda u, xi: np.tanh(u[0, 0] + 0.5) + 0.3 * xi[0], lambda z: np.tanh(z[0, 0]), n_tokens=1, rank=1, n_noise=1,
        lam=0.1, intercept=True,
    )  # fmt: skip


def run_reference(seed):
    """Return the largest differences of weights and intercepts from scikit-learn and scipy, for four problems."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(60, 200)), int(rng.integers(10, 50))
    x = rng.normal(size=(n, d)) * rng.uniform(0.5, 2, d) + rng.uniform(-0.5, 0.5, d)
    score, lam = x[:, :3].sum(axis=1) + 1 + rng.normal(size=n), float(rng.uniform(0.05, 0.5))
    differences = {}

    def compare(name, labels, loss, reference, rank=1, penalty=None):
        data = ga.LabelledDataset(x, labels, loss, lam, rank=rank, penalty=penalty, intercept=True)
        run = ga.run_gamp(data, "random", tol=1e-10)
        coef, b = reference(data.dim)
        ours = run.Q[:-1] / data.dim**0.5
        difference = max(np.abs(ours - coef).max(), np.abs(data.intercepts(run.Q) - b).max())
        differences[name] = float(difference) if run.converged else np.inf

    def logistic(D):
        fit = LogisticRegression(C=1 / (lam * D), tol=1e-12, max_iter=100000).fit(x, np.sign(score))
        return fit.coef_.T, fit.intercept_

    def ridge(D):
        fit = Ridge(alpha=lam * D).fit(x, np.column_stack([score, -2 * score + 5]))
        return fit.coef_.T, fit.intercept_

    def lasso(D):
        fit = Lasso(alpha=D**0.5 / n, tol=1e-13, max_iter=1000000).fit(x, score)
        return fit.coef_[:, None], fit.intercept_

    def robust(D):
        def risk(w):
            off = x @ w[:-1] + w[-1] - score
            slope = np.tanh(off)
            value = np.sum(np.logaddexp(off, -off)) + 0.5 * lam * D * w[:-1] @ w[:-1]
            return value, np.append(x.T @ slope + lam * D * w[:-1], slope.sum())

        w = minimize(risk, np.zeros(d + 1), jac=True, method="BFGS", options={"gtol": 1e-9}).x
        return w[:-1, None], w[-1]

    compare("logistic", np.sign(score), ga.LogisticLoss(), logistic)
    compare("ridge", np.column_stack([score, -2 * score + 5]), ga.SquaredLoss(), ridge, rank=2)
    compare("lasso", score, ga.SquaredLoss(), lasso, penalty=ga.ElasticNet(0.0, 1.0))
    log_cosh = ga.sequence_model(
        lambda u, xi: u[0, 0], lambda z: z[0, 0], lambda y, p: np.logaddexp(p - y, y - p), n_tokens=1, rank=1,
        convex=True,
    )  # fmt: skip
    compare("log cosh", score[:, None], log_cosh.student, robust)
    return {"differences": differences}


def run_instance(name, d, seed):
    """Return intercept, squared norm, overlap and training loss of one instance, and its intercept in a run."""
    data = ga.sample(build_model(name), d, 3.0, seed=seed)
    run = ga.run_gamp(data, "semantic", tol=1e-9)
    path = ga.run_gamp(data, "semantic", tol=0, max_iter=N_ITER, damping=0.5)
    return {
        "converged": run.converged,
        "values": [*_values(run.overlaps), run.train_loss],
        "path": path.history.m[:, 0, 0].tolist(),
    }


def _values(overlaps):
    return [float(getattr(overlaps, name).ravel()[0]) for name in ("m", "q", "theta")]


def distance(values, predicted, stated, d):
    """Return the largest distance of the mean of values (instances, ...) from a prediction, in standard errors."""
    values, predicted = np.array(values), np.array(predicted)
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    allowed = spread + (np.array(stated) + FINITE_SIZE * np.abs(predicted) / d) / SIGMAS
    return float((np.abs(mean - predicted) / allowed).max())


def main():
    args = options(__doc__, workers=True)
    verdict = Verdict("intercepts", args)
    dims, instances = (QUICK_DIMS, QUICK_INSTANCES) if args.quick else (DIMS, INSTANCES)
    names = (SQUARED, LOGISTIC, NEURON)
    plan = [{"name": name, "d": d, "seed": seed} for name in names for d in dims for seed in range(instances)]
    with pool(args) as executor:
        seeds = [{"seed": seed} for seed in range(QUICK_SEEDS if args.quick else SEEDS)]
        references = run_trials(folder(args, f"{verdict.name}_references"), run_reference, seeds, executor)
        rows = run_trials(folder(args, verdict.name), run_instance, plan, executor)
    for problem in references[0]["differences"]:
        worst = max(row["differences"][problem] for row in references)
        verdict.check(worst < MAX_DIFFERENCE, f"{problem}: differs from scikit-learn or scipy by at most {worst:.1g}")
    verdict.check(all(row["converged"] for row in rows), f"{len(rows)} instances converge")
    shown, stored = {}, []
    for name in names:
        model = build_model(name)
        theory = ga.solve_state_evolution(model, 3.0, "semantic", rtol=RTOL, stability=False)
        predicted = [*_values(theory.overlaps), theory.train_loss]
        stated = [*_values(theory.overlaps_error), theory.train_loss_error]
        path = ga.trajectory(model, 3.0, "semantic", n_iter=N_ITER, n_paths=20000)
        for d in dims:
            of_model = [row for row in rows if (row["name"], row["d"]) == (name, d)]
            values = [row["values"] for row in of_model]
            end = distance(values, predicted, stated, d)
            way = distance([row["path"][1:] for row in of_model], path.m[1:, 0, 0], SIGMAS * path.error.m[1:, 0, 0], d)
            mean = np.mean(values, axis=0)
            shown[f"{name}, d = {d}"] = {
                **{key: f"{value:.4f}" for key, value in zip(("b", "q", "θ", "ε_t"), mean, strict=True)},
                "theory": " ".join(f"{value:.4f}" for value in predicted),
                "standard errors": f"{end:.1f}, trajectory {way:.1f}",
            }
        verdict.check(
            theory.converged and max(end, way) < SIGMAS,
            f"{name}, d = {dims[-1]}: {end:.1f} standard errors from state evolution, {way:.1f} from the trajectory",
        )
        stored.append({"name": name, "predicted": predicted, "stated": stated, "path": path.m[:, 0, 0].tolist()})
    verdict.write_table(counts_table(shown, "{}", "model"))
    verdict.end({"references": references, "rows": rows, "theory": stored})


if __name__ == "__main__":
    main()
