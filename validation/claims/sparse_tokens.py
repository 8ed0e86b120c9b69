"""Sparse-token classification: two gradient steps on the query, a convex fit of the read-out, and the capacity.

Positive samples have a weak signal in R of L tokens, negative samples are noise, and the classifier is sign(w·f_q(x) +
b) with f_q(x) = xᵀ softmax(x q) (arXiv 2509.25153).

Method: (1) Cosines of w after the first gradient step and of q after the second with the signal, at the parameters of a
figure of the paper (L = 10, R = 3, π = 0.2, θ = 6, rate 0.5): the closed form derived for this comparison, theory of
gradient descent of the package, and descents of the package at finite d. (2) The query of (1) is scaled to norm 1 and
fixed, and the read-out is fitted to new samples (L = 10, R = 1, π = 0.5, θ = 5, λ = 0.1): state evolution of the
package, equations that use nothing of the package, and message passing at finite d. (3) Capacities of attention, of a
linear classifier of the mean token, and of a linear classifier of all tokens in closed form; the fraction of separable
sample sets at finite d by linear programming, at 0.7 and 1.3 times the capacity.

Criterion: theory of the package agrees with the closed form of cosines within 1e-4, and with the equations of the fit
within four times its stated errors. Runs agree within four standard errors plus 1/d of the value. At most a quarter of
the sample sets are on the wrong side of the capacity. (Page "The distribution of your tokens".)
"""

import numpy as np
from scipy.optimize import linprog

import gamp_attention as ga
from validation._tools.drawing import figure
from validation._tools.report import counts_table, run_claim
from validation._tools.sparse import Task, build_model, build_readout, capacity, draw_features, fit_readout, two_steps

STEP_TASK, RATE = Task(10, 3, 0.2, 6.0), 0.5
FIT_TASK, LAM, NORM = Task(10, 1, 0.5, 5.0), 0.1, 1.0
STEP_ALPHAS, STEP_DIM, STEP_RUNS, QUICK_RUNS = (0.5, 1.0, 2.0, 4.0), 500, 10, 4
FIT_ALPHAS, FIT_DIM, FIT_RUNS, STEPS_BEFORE = (2.0, 4.0, 8.0), 400, 6, 2.0
QUICK_DIM, RTOL, SIGMAS = 100, 1e-2, 4.0
LP_DIM, LP_SETS, LP_QUICK, MARGINS = 100, 8, 60, (0.7, 1.3)
MAX_WRONG = 0.25  # largest fraction of sample sets on the wrong side of the capacity
CAPACITY_ALPHAS = (0.5, 2.0)  # samples of the first set per dimension, of the queries whose capacity is measured
N_TEST = 200_000  # number of new samples of test errors


def zero_weights(model):
    """Return the overlaps of zero weights."""
    S, r, t = model.n_sources, model.rank, model.teacher_rank
    return ga.Overlaps(np.zeros((S, r, r)), np.zeros((S, r)), np.zeros((S, r, t)), np.full((S, r, r), np.nan))


def cosines(overlaps, size=1.0):
    """Return the cosines with ξ of w after the first step and of q after the second; `size` is ‖Q*‖/√d."""
    q, theta = overlaps.q[:, 0], overlaps.theta[:, 0, :, 0]
    return np.array([theta[1, 1] / np.sqrt(q[1, 1, 1]), theta[2, 0] / np.sqrt(q[2, 0, 0])]) / size


def check_steps(verdict, table, d, runs):
    """Compare cosines after each step with the closed form; return rows."""
    model, rows = build_model(STEP_TASK, LAM), []
    for alpha in STEP_ALPHAS:
        exact, options = two_steps(STEP_TASK, alpha, RATE), {"method": "gd", "lr": RATE / alpha}
        method = ga.GradientDescent(lr=RATE / alpha)
        path = ga.trajectory(model, alpha, zero_weights(model), method, 2, n_paths=4096, n_replicas=4)
        theory, found = cosines(path), []
        for seed in range(runs):
            data = ga.sample(model, d, alpha, seed=seed)
            run = ga.minimize_risk(data, np.zeros((data.dim, 2)), max_iter=2, tol=0, **options)
            found.append(cosines(run.history, np.linalg.norm(data.Q_star) / np.sqrt(d)))
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(runs)
        distance = float((np.abs(mean - exact[:2]) / (spread + 1 / (SIGMAS * d))).max())
        gap = float(np.abs(theory - exact[:2]).max())
        verdict.check(gap < 1e-4, f"α = {alpha:g}: theory of the package and closed form differ by {gap:.1g}")
        verdict.check(distance < SIGMAS, f"α = {alpha:g}, d = {d}: cosines are {distance:.1f} errors from theory")
        table[f"{alpha:g}"] = {
            "w, closed form": f"{exact.readout:.5f}", "w, package": f"{theory[0]:.5f}",
            "w, runs": f"{mean[0]:.3f} ± {spread[0]:.3f}", "q, closed form": f"{exact.query:.5f}",
            "q, package": f"{theory[1]:.5f}", "q, runs": f"{mean[1]:.3f} ± {spread[1]:.3f}",
        }  # fmt: skip
        rows.append({"alpha": alpha, "exact": exact[:3], "theory": theory.tolist(), "mean": mean.tolist(),
                     "error": spread.tolist()})  # fmt: skip
    return rows


def test_error(Q, query, data, task, rng):
    """Return the fraction of new samples that weights Q (d + 1, 1) at a query (d + 1,) classify wrongly."""
    d = data.dim - 1
    columns = np.stack([query, Q[:, 0], data.Q_star[:, 0]], axis=1)[:d]
    gram = columns.T @ columns / d
    white = rng.standard_normal((N_TEST, task.L, 2)) @ np.linalg.cholesky(gram[:2, :2]).T
    y = np.where(np.arange(N_TEST) < task.positive * N_TEST, 1, -1)
    white[:, : task.R] += task.strength * gram[2, :2] * (y > 0)[:, None, None]
    attention = np.exp(white[..., 0] - white[..., 0].max(axis=1, keepdims=True))
    field = (attention * white[..., 1]).sum(1) / attention.sum(1) + Q[d, 0] / np.sqrt(data.dim)
    return float((y * field < 0).mean())


def check_fits(verdict, table, d, runs, alphas):
    """Compare fits of the read-out at a fixed query with theory; return rows."""
    rows = []
    cosine = two_steps(FIT_TASK, STEPS_BEFORE, RATE).query
    query = NORM * np.array([cosine, np.sqrt(1 - cosine**2)])
    known = build_readout(FIT_TASK, LAM, query)
    for alpha in alphas:
        exact = fit_readout(draw_features(FIT_TASK, cosine, NORM), alpha, LAM)
        pooled = fit_readout(draw_features(FIT_TASK, 0.0, 0.0), alpha, LAM)
        theory = ga.solve_state_evolution(known, alpha, "random", rtol=RTOL)
        o, e = theory.overlaps, theory.overlaps_error
        of_package = np.array([o.q[0, 0, 0], *o.theta[0, 0], o.V[0, 0, 0], theory.train_loss, theory.test_error])
        stated = np.array(
            [e.q[0, 0, 0], *e.theta[0, 0], e.V[0, 0, 0], theory.train_loss_error, theory.test_error_error]
        )
        predicted = np.array([exact.q, *exact.c[:2], exact.V, exact.train, exact.test])
        ratio = float((np.abs(of_package - predicted) / (stated + RTOL * np.abs(predicted) / SIGMAS)).max())
        said = f"state evolution is {theory.status.value}, {theory.validity}"
        verdict.check(theory.consistent and ratio < SIGMAS, f"α = {alpha:g}: {ratio:.1f} errors from equations; {said}")
        found, converged = [], 0
        for seed in range(runs):
            data = ga.sample(known, d, alpha, seed=seed)
            run = ga.run_gamp(data, "random")
            now = run.overlaps
            column = data.Q_star @ query
            error = test_error(run.Q, column, data, FIT_TASK, np.random.default_rng(seed))
            found.append([now.q[0, 0, 0], *now.theta[0, 0], now.V[0, 0, 0], run.train_loss, error])
            converged += run.converged
        mean, spread = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(runs)
        at = np.array([*predicted[:-1], exact.error])
        distance = float((np.abs(mean - at) / (spread + np.maximum(np.abs(at), 0.1) / (SIGMAS * d))).max())
        verdict.check(converged == runs, f"α = {alpha:g}, d = {d}: {converged} of {runs} runs converged")
        verdict.check(distance < SIGMAS, f"α = {alpha:g}, d = {d}: minima are {distance:.1f} errors from equations")
        verdict.check(
            exact.error < pooled.error, f"α = {alpha:g}: error {exact.error:.4f}, mean token {pooled.error:.4f}"
        )
        table[f"{alpha:g}"] = {
            "error, equations": f"{exact.error:.4f}", "error, runs": f"{mean[-1]:.4f} ± {spread[-1]:.4f}",
            "error, mean token": f"{pooled.error:.4f}", "q, equations": f"{exact.q:.4f}",
            "q, state evolution": f"{of_package[0]:.4f} ± {stated[0]:.4f}",
            "q, runs": f"{mean[0]:.3f} ± {spread[0]:.3f}",
        }  # fmt: skip
        rows.append({"alpha": alpha, "exact": [*predicted, exact.error], "package": of_package.tolist(),
                     "stated": stated.tolist(), "mean": mean.tolist(), "error": spread.tolist(),
                     "mean token": pooled.error})  # fmt: skip
    return rows


def draw_samples(task, n, d, rng):
    """Return labels (n,) and tokens (n, L, d); the signal is along coordinate 0, at random tokens."""
    y, x = np.where(rng.random(n) < task.positive, 1, -1), rng.standard_normal((n, task.L, d))
    for sample in np.flatnonzero(y > 0):
        x[sample, rng.choice(task.L, task.R, replace=False), 0] += task.strength
    return y, x


def pool(x, cosine):
    """Return samples after attention (n, d) at a query of norm `NORM`."""
    attention = np.exp(x[..., :2] @ (NORM * np.array([cosine, np.sqrt(1 - cosine**2)])))
    return np.einsum("sl,sld->sd", attention / attention.sum(1, keepdims=True), x)


def is_separable(y, x):
    """Return whether y (x·w + b) ≥ 1 for some w and b, by linear programming."""
    rows = -y[:, None] * np.column_stack([x, np.ones(len(x))])
    free = np.zeros(rows.shape[1])
    return linprog(free, A_ub=rows, b_ub=-np.ones(len(rows)), bounds=(None, None), method="highs").status == 0


def separable_fractions(most, d, sets, features):
    """Return the fractions of separable sample sets at n = margin · capacity · d, for `MARGINS`."""
    fractions = []
    for margin in MARGINS:
        rng, separable = np.random.default_rng(0), 0
        for _ in range(sets):
            y, x = draw_samples(FIT_TASK, round(margin * most * d), d, rng)
            separable += is_separable(y, features(x))
        fractions.append(separable / sets)
    return fractions


def check_capacity(verdict, table, d, sets):
    """Compare capacities with linear programming; return rows."""
    mean_token = capacity(draw_features(FIT_TASK, 0.0, 0.0))
    # ψ = y F/‖a‖ is the same for the sum of all tokens over √L, the only direction of all tokens that has a signal
    all_tokens, rows = FIT_TASK.L * mean_token, []
    cases = {"mean token": (mean_token, d, lambda x: x.mean(1)),
             "all tokens": (all_tokens, d // FIT_TASK.L, lambda x: x.reshape(len(x), -1))}  # fmt: skip
    for alpha in CAPACITY_ALPHAS:
        cosine = two_steps(FIT_TASK, alpha, RATE).query
        most = capacity(draw_features(FIT_TASK, cosine, NORM))
        verdict.check(mean_token < most < all_tokens, f"capacities {mean_token:.2f} < {most:.2f} < {all_tokens:.2f}")
        cases[f"attention, cosine {cosine:.3f}"] = most, d, lambda x, cosine=cosine: pool(x, cosine)
    for name, (most, size, features) in cases.items():
        fractions = separable_fractions(most, size, sets, features)
        good = fractions[0] >= 1 - MAX_WRONG and fractions[1] <= MAX_WRONG
        verdict.check(good, f"{name}: separable at {MARGINS} times the capacity {most:.2f}: {fractions}")
        table[name] = {"capacity": f"{most:.2f}", **{
            f"separable at {margin:g} of it": f"{fraction:.0%}"
            for margin, fraction in zip(MARGINS, fractions, strict=True)
        }}  # fmt: skip
        rows.append({"name": name, "capacity": most, "fractions": fractions})
    return rows


def draw(numbers, path):
    fine = np.geomspace(0.25, 8, 12)
    with figure(path, 1, 2, (9.0, 3.3)) as axes:
        first, second = axes.ravel()
        exact = np.array([two_steps(STEP_TASK, alpha, RATE)[:2] for alpha in fine])
        rows = numbers["steps"]
        for k, name in enumerate(("read-out, step 1", "query, step 2")):
            first.plot(fine, exact[:, k], color=f"C{k}", label=name)
            mean, error = (np.array([row[key][k] for row in rows]) for key in ("mean", "error"))
            first.errorbar([row["alpha"] for row in rows], mean, error, fmt="o", color=f"C{k}")
        first.set(xlabel="samples per dimension, first set", ylabel="cosine with the signal", xlim=(0, 8.2))
        first.legend(frameon=False)
        rows = numbers["fits"]
        alphas = [row["alpha"] for row in rows]
        second.plot(alphas, [row["exact"][-1] for row in rows], color="C0", label="attention")
        second.errorbar(alphas, [row["mean"][-1] for row in rows], [row["error"][-1] for row in rows], fmt="o")
        second.plot(alphas, [row["mean token"] for row in rows], color="C1", label="mean token")
        second.set(xlabel="samples per dimension, second set", ylabel="test error", ylim=(0, 0.32))
        second.legend(frameon=False)


def judge(verdict):
    """Check both steps, the fits and the capacities."""
    quick, first, second, third = verdict.quick, {}, {}, {}
    steps = check_steps(verdict, first, QUICK_DIM if quick else STEP_DIM, QUICK_RUNS if quick else STEP_RUNS)
    sizes = (QUICK_DIM, QUICK_RUNS, FIT_ALPHAS[:1]) if quick else (FIT_DIM, FIT_RUNS, FIT_ALPHAS)
    fits = check_fits(verdict, second, *sizes)
    capacities = check_capacity(verdict, third, LP_QUICK if quick else LP_DIM, LP_SETS)
    heads = {"α of the first set": first, "α of the second set": second, "classifier": third}
    verdict.write_table("\n\n".join(counts_table(table, "{}", head) for head, table in heads.items()))
    return {"steps": steps, "fits": fits, "capacity": capacities}


def main():
    run_claim("sparse_tokens", __doc__, lambda quick: {}, judge, draw)


if __name__ == "__main__":
    main()
