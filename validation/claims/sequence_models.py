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

If it states a larger change of V, the comparison is shown in the table and is not a criterion, because replica symmetry
does not describe these minima.
(Page on sequence models of the manual.)
"""

import re

import numpy as np
import torch

import gamp_attention as ga
from validation._tools.agreement import column_overlaps, compare_columns, gradient_norm_by_torch
from validation._tools.report import counts_table, run_claim

DIMS, INSTANCES = (500, 1000, 2000), 6
FEWER_DIMS, FEWER_INSTANCES = (500, 1000), 4  # for further settings of two-layer attention
SIGMAS, FINITE_SIZE = 4.0, 1.0  # allowed standard errors; allowed relative difference in units of 1/d
DERIVATIVE_ERROR, MAX_GRADIENT, RTOL = 1e-12, 1e-7, 1e-2
SMALL_CHANGE = 0.05  # stated relative change of V up to which the plain comparison is a criterion
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


def stated_change(theory):
    """Return the relative change of V of minima that `validity` states; 0 if it states none."""
    found = re.search(r"expect V of minima about ([0-9.]+) % lower", theory.validity)
    return -float(found.group(1)) / 100 if found else 0.0


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


def plan(quick):
    """Return the instances of all models."""
    if quick:
        return {run_instance: [{"name": n, "d": 200, "seed": s} for n in ("tanh", "amplitude") for s in range(6)]}
    sizes = {name: (FEWER_DIMS, FEWER_INSTANCES) if "two layers" in name else (DIMS, INSTANCES) for name in MODELS}
    return {
        run_instance: [
            {"name": name, "d": d, "seed": seed}
            for name, (dims, instances) in sizes.items() for d in dims for seed in range(instances)
        ]
    }  # fmt: skip


def judge(verdict, rows):
    """Check derivatives, gradients, and means against state evolution."""
    errors = [largest_derivative_error(seed) for seed in range(20)]
    verdict.check(max(errors) < DERIVATIVE_ERROR, f"derivatives differ from autograd by at most {max(errors):.1g}")
    worst = max(row["gradient"] for row in rows if row["converged"])
    verdict.check(worst < MAX_GRADIENT, f"gradients of converged runs by torch: at most {worst:.1g}")
    shown, table = {}, []
    for name in dict.fromkeys(row["name"] for row in rows):
        model, _ = build_model(name)
        theory = ga.solve_state_evolution(model, MODELS[name][3], "semantic", rtol=RTOL, stability=False)
        dims = sorted({row["d"] for row in rows if row["name"] == name})
        numbers, cells = compare_columns(rows, name, dims, theory, SIGMAS, FINITE_SIZE)
        worst, shown, table = max(numbers[-2]["ratio"]), shown | cells, [*table, *numbers]
        said = f"state evolution is {theory.status.value}, {theory.validity}"
        distance = f"{name}, d = {dims[-1]}: {worst:.1f} standard errors from state evolution"
        if theory.consistent or (theory.replicon < 1 and -SMALL_CHANGE <= stated_change(theory) < 0):
            verdict.check(theory.converged and worst < SIGMAS, f"{distance}, at most {SIGMAS:g}; {said}")
        else:
            print(f"{distance}, no criterion because replica symmetry is broken: {said}", flush=True)
    verdict.write_table(counts_table(shown, "{}", "model"))
    return {"table": table}


def main():
    run_claim("sequence_models", __doc__, plan, judge)


if __name__ == "__main__":
    main()
