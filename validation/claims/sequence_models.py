"""Sequence models from plain functions: exact derivatives, zero gradients, and state evolution of GAMP at finite d.

Method: (1) twenty models whose student is a random composition of smooth functions of the fields (2, 2); gradient and
Hessian of the squared loss at random fields, compared with autograd of torch. (2) Four models: two-layer attention
(arXiv 2502.00901), single-location regression with a softmax student (arXiv 2410.01537), a noisy tanh neuron, and
phase retrieval with amplitudes. For each of them, message passing from the teacher's weights, on the exact risk, on
instances of growing d; the gradient at its end by torch; and state evolution from the same start to rtol = 1e-2.

Criterion: derivatives agree to 1e-12 of their size. At the end of every converged run the gradient by torch is below
1e-7 λ√d. Means over the instances of the largest d agree with state evolution within four standard errors plus the
stated error of the theory, in the squared norm and the overlap with the teacher of each column and in the training
loss. This applies if state evolution states that replica symmetry holds, or that V of minima is at most 5 % lower.

If it states a larger change of V, the comparison above is shown in the table and is not a criterion, because replica
symmetry does not describe these minima. Instead, V of minima has to be lower by as much as stated, within 20 % of the
statement and three standard errors, as in `jump_gaps`: (a) from the teacher's weights, and (b) from the teacher's
weights with a random first column, because the solution of replica symmetry has no overlap of this column. These two
checks were added after V = 7.7 from the teacher's weights at d = 2000 was known, and before any run of (b).
(Page on sequence models of the manual.)
"""

import re

import numpy as np
import torch

import gamp_attention as ga
from validation._tools.agreement import column_overlaps, compare_columns, gradient_norm_by_torch
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

DIMS, INSTANCES = (500, 1000, 2000), 6
FEWER_DIMS, FEWER_INSTANCES = (500, 1000), 4  # for further settings of two-layer attention
QUICK_DIMS, QUICK_INSTANCES = (200,), 6
SIGMAS, FINITE_SIZE = 4.0, 1.0  # allowed standard errors; allowed relative difference in units of 1/d
DERIVATIVE_ERROR, MAX_GRADIENT, RTOL = 1e-12, 1e-7, 1e-2
SMALL_CHANGE = 0.05  # stated relative change of V up to which the plain comparison is a criterion
STARTS = ("the teacher's weights", "the teacher's weights with a random first column")
BROKEN_DIM, BROKEN_INSTANCES = 1000, 6
V_ERROR, V_SIGMAS = 0.2, 3.0  # allowed difference of V in units of its stated change, and standard errors
UNARY = (
    lambda x, xp: xp.tanh(x), lambda x, xp: xp.sin(x), lambda x, xp: xp.exp(-x * x), lambda x, xp: xp.sqrt(1 + x * x),
    lambda x, xp: xp.log(2 + x * x), lambda x, xp: xp.arctan(x), lambda x, xp: 1 / (1 + x * x),
)  # fmt: skip


def softmax(scores, xp=np):
    """Return the softmax of each row."""
    weights = xp.exp(scores - scores.max())
    return weights / weights.sum(1)[:, None]


def two_layers(z, xp=np):
    """Return the attention matrix (2, 2) of the second of two layers."""
    second = (xp.eye(2) + softmax(xp.outer(z[:, 0], z[:, 0]), xp)) @ z[:, 1]
    return softmax(xp.outer(second, second), xp)


def location(z, xp=np):
    """Return the value, column 1, of the token that column 0 selects softly."""
    weights = xp.exp(z[:, 0] - z[:, 0].max())
    return (weights * z[:, 1]).sum() / weights.sum()


def tanh(z, xp=np):
    """Return the output of one neuron."""
    return xp.tanh(z[0, 0])


def amplitude(z, xp=np):
    """Return the modulus of the only field."""
    return xp.abs(z[0, 0])


MODELS = {
    "two-layer attention": (two_layers, 0.0, {"n_tokens": 2, "rank": 2, "lam": 0.1}, 3.0),
    "single location": (location, 0.3, {"n_tokens": 2, "rank": 2, "lam": 0.1, "n_noise": 1}, 3.0),
    "two layers, λ = 0.01": (two_layers, 0.0, {"n_tokens": 2, "rank": 2, "lam": 0.01}, 3.0),
    "two layers, α = 6, λ = 0.05": (two_layers, 0.0, {"n_tokens": 2, "rank": 2, "lam": 0.05}, 6.0),
    "tanh": (tanh, 0.3, {"n_tokens": 1, "rank": 1, "lam": 0.05, "n_noise": 1}, 3.0),
    "amplitude": (amplitude, 0.0, {"n_tokens": 1, "rank": 1, "lam": 0.001}, 3.0),
}


def dims_of(name, args):
    """Return the dimensions and the number of instances of a setting."""
    if args.quick:
        return QUICK_DIMS, QUICK_INSTANCES
    return (FEWER_DIMS, FEWER_INSTANCES) if name.startswith("two layers") else (DIMS, INSTANCES)


def build_model(name):
    """Return a model and the function of its student."""
    function, noise, sizes, _ = MODELS[name]

    def teacher(u, xi):
        return function(u) + noise * xi[0] if noise else function(u)

    return ga.sequence_model(teacher, function, **sizes), function


def run_instance(name, d, seed):
    """Train one instance from the teacher's weights; return its status, gradient by torch, overlaps and loss."""
    model, function = build_model(name)
    data = ga.sample(model, d, MODELS[name][3], seed=seed)
    run = ga.run_gamp(data, "semantic")
    return {
        "converged": run.converged,
        "gradient": gradient_norm_by_torch(data, run.Q, function),
        "values": [*column_overlaps(run.overlaps), run.train_loss],
    }


def run_broken(name, start, d, seed):
    """Train one instance from one of STARTS; return the trace of V, summed over tokens, and its overlaps."""
    model, _ = build_model(name)
    data = ga.sample(model, d, MODELS[name][3], seed=seed)
    Q = data.Q_star.copy()
    if start == STARTS[1]:
        Q[:, 0] = np.random.default_rng((seed, 5)).standard_normal(d)
    run = ga.run_gamp(data, Q)
    V = float(np.trace(run.overlaps.V.sum(axis=0)))
    return {"converged": run.converged, "V": V, "values": [*column_overlaps(run.overlaps), run.train_loss]}


def stated_change(theory):
    """Return the relative change of V of minima that `validity` states; 0 if it states none."""
    found = re.search(r"expect V of minima about ([0-9.]+) % lower", theory.validity)
    return -float(found.group(1)) / 100 if found else 0.0


def check_broken(verdict, rows, name, theory):
    """Check that V of minima from each start is lower than the theory's V by the stated change; return the numbers."""
    stated, numbers = stated_change(theory), []
    predicted = np.trace(theory.overlaps.V.sum(axis=0))
    for start in STARTS:
        chosen = [row for row in rows if row["name"] == name and row["start"] == start]
        changes = np.array([row["V"] for row in chosen]) / predicted - 1
        mean, error = float(changes.mean()), float(changes.std(ddof=1) / np.sqrt(len(changes)))
        overlap = np.mean([row["values"][len(row["values"]) // 2] for row in chosen])
        text = f"{name}, from {start}: V is {-100 * mean:.1f}({100 * error:.1f}) % lower than replica symmetry, stated"
        text += f" {-100 * stated:.0f} %; overlap of the first column {overlap:.2f}"
        verdict.check(abs(mean - stated) <= V_ERROR * abs(stated) + V_SIGMAS * error, text)
        numbers.append({"start": start, "change": mean, "error": error, "stated": stated, "overlap": float(overlap)})
    return numbers


def largest_derivative_error(seed):
    """Return the largest relative difference of gradient and Hessian from autograd, for one random model."""
    rng = np.random.default_rng(seed)
    plan = rng.integers(0, [len(UNARY), len(UNARY), 2, 2, 2, 2], (3, 6))

    def student(z, xp=np):
        total = 0.0
        for first, second, l, a, k, b in plan:
            total = total + UNARY[first](z[l, a] * UNARY[second](z[k, b], xp), xp) * z[k, a]
        return total

    model = ga.sequence_model(lambda u, noise: student(u), student, n_tokens=2, rank=2)
    target, z = rng.standard_normal(), rng.standard_normal((2, 2))
    _, gradient, hessian = model.derivatives(np.array([target]), z[None])

    def loss(fields):
        return 0.5 * (target - student(fields, torch)) ** 2

    fields = torch.tensor(z, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(fields), fields)
    curvature = torch.autograd.functional.hessian(loss, fields).numpy()
    differences = np.abs(gradient[0] - slope.numpy()).max(), np.abs(hessian[0] - curvature).max()
    return float(max(differences) / (1 + np.abs(curvature).max()))


def main():
    args = options(__doc__, workers=True)
    verdict = Verdict("sequence_models", args)
    names = ["tanh", "amplitude"] if args.quick else list(MODELS)
    errors = [largest_derivative_error(seed) for seed in range(20)]
    verdict.check(max(errors) < DERIVATIVE_ERROR, f"derivatives differ from autograd by at most {max(errors):.1g}")
    sizes = {name: dims_of(name, args) for name in names}
    plan = [
        {"name": name, "d": d, "seed": seed}
        for name, (dims, instances) in sizes.items()
        for d in dims
        for seed in range(instances)
    ]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), run_instance, plan, executor)
    worst = max(row["gradient"] for row in rows if row["converged"])
    verdict.check(worst < MAX_GRADIENT, f"gradients of converged runs by torch: at most {worst:.1g}")
    shown, table, broken = {}, [], {}
    for name in names:
        model, _ = build_model(name)
        theory = ga.solve_state_evolution(model, MODELS[name][3], "semantic", rtol=RTOL, stability=False)
        dims = sizes[name][0]
        numbers, cells = compare_columns(rows, name, dims, theory, SIGMAS, FINITE_SIZE)
        worst, shown, table = max(numbers[-2]["ratio"]), shown | cells, [*table, *numbers]
        said = f"state evolution is {theory.status.value}, {theory.validity}"
        distance = f"{name}, d = {dims[-1]}: {worst:.1f} standard errors from state evolution"
        if theory.consistent or (theory.replicon < 1 and -SMALL_CHANGE <= stated_change(theory) < 0):
            verdict.check(theory.converged and worst < SIGMAS, f"{distance}, at most {SIGMAS:g}; {said}")
            continue
        print(f"{distance}, no criterion because replica symmetry is broken: {said}", flush=True)
        runs = [
            {"name": name, "start": start, "d": BROKEN_DIM, "seed": seed}
            for start in STARTS
            for seed in range(BROKEN_INSTANCES)
        ]
        with pool(args) as executor:
            runs = run_trials(folder(args, verdict.name) / "broken", run_broken, runs, executor)
        broken[name] = check_broken(verdict, runs, name, theory)
    verdict.write_table(counts_table(shown, "{}", "model"))
    verdict.end({"derivative_errors": errors, "table": table, "broken": broken, "rows": rows})


if __name__ == "__main__":
    main()
