"""Penalties of columns: one λ for each column of Q, negative λ, and columns of fixed norm, at finite d and for d → ∞.

Method: four models, each with instances of growing d. (1) Least squares with two columns, λ = (0.5, 0.05). (2) Least
squares with a spherical column and a column with λ = −0.05. (3) One neuron with tanh and a spherical column. (4) The
attention layer of Cui et al. (2024, arXiv 2402.03902) with a spherical column in place of the ridge. Message passing
starts from the teacher's weights, on the exact risk. The gradient of the risk, its projection on the tangents of the
spheres, and the norms of the columns are computed by torch from samples and weights only. State evolution starts from
the same weights, to rtol = 1e-3. For attention it describes the asymptotic risk, so that the layer is also trained on
this risk, and the comparison is with these weights.

Criterion: every run converges, with a gradient by torch below 1e-7 √d in the unit of the penalty, and ‖Q_a‖² = d to
1e-8 in spherical columns. Means over the instances of the largest d agree with state evolution within four standard
errors plus the stated error of the theory, in the squared norm and the overlap with the teacher of each column and in
the training loss.
(Section on strengths of columns of the manual.)
"""

import numpy as np
import torch

import gamp_attention as ga
from validation._tools.agreement import column_overlaps, compare_columns
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

DIMS, INSTANCES = (500, 1000, 2000), 8
QUICK_DIMS, QUICK_INSTANCES = (200,), 6
SIGMAS, FINITE_SIZE = 4.0, 1.0  # allowed standard errors; allowed relative difference in units of 1/d
MAX_GRADIENT, MAX_NORM_ERROR, RTOL = 1e-7, 1e-8, 1e-3
LINEAR = "least squares, λ = (0.5, 0.05)"
NEGATIVE = "least squares, sphere and λ = −0.05"
NEURON = "tanh, sphere"
LAYER = "attention, sphere"
ALPHAS = {LINEAR: 2.0, NEGATIVE: 2.0, NEURON: 2.0, LAYER: 1.5}


def tanh(z):
    """Return the output of one neuron."""
    return np.tanh(z[0, 0])


def build_model(name):
    """Return a model."""
    if name == LAYER:
        return ga.attention_model(lam="sphere")
    if name == NEURON:
        return ga.sequence_model(lambda u, xi: tanh(u) + 0.3 * xi[0], tanh, n_tokens=1, rank=1, n_noise=1, lam="sphere")
    lam = [0.5, 0.05] if name == LINEAR else ["sphere", -0.05]
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), rank=2, lam=lam)


def gradient_by_torch(data, Q, name):
    """Return the gradient of the risk at Q (d, r), projected on tangents of spheres, and the largest norm error."""
    penalty, root = data.penalty, data.dim**0.5
    weights = torch.tensor(Q, requires_grad=True)
    tokens = torch.tensor(np.asarray(data.tokens)) + torch.tensor(np.asarray(data.positions))
    fields = tokens @ weights / root
    if name == LAYER:
        outputs = (fields @ fields.transpose(1, 2)).softmax(dim=-1) @ tokens
        risk = ((torch.tensor(np.asarray(data.outputs)) - outputs) ** 2).sum() / (2 * data.dim)
    else:
        predicted = torch.tanh(fields[:, 0]) if name == NEURON else fields[:, 0]
        labels = torch.tensor(np.asarray(data.targets if name == NEURON else data.labels)).reshape(predicted.shape)
        risk = 0.5 * ((labels - predicted) ** 2).sum()
    risk = risk + 0.5 * (torch.tensor(penalty.curvature) * weights**2).sum()
    gradient = torch.autograd.grad(risk, weights)[0].numpy()
    sphere = penalty.sphere
    radial = np.sum(gradient * Q, axis=0) / np.sum(Q**2, axis=0)
    gradient = gradient - np.where(sphere, radial, 0.0) * Q
    norms = np.abs(np.sum(Q**2, axis=0) / data.dim - 1)[sphere]
    return float(np.linalg.norm(gradient)) / (penalty.strength * root), float(norms.max(initial=0.0))


def run_instance(name, d, seed):
    """Train one instance from the teacher's weights; return whether it converged, errors by torch, and overlaps."""
    data = ga.sample(build_model(name), d, ALPHAS[name], seed=seed)
    run = ga.run_gamp(data, "semantic", tol=1e-9)
    gradient, norm_error = gradient_by_torch(data, run.Q, name)
    compared = ga.run_gamp(data, "semantic", "asymptotic", tol=1e-9) if name == LAYER else run
    return {
        "converged": run.converged and compared.converged,
        "gradient": gradient,
        "norm_error": norm_error,
        "values": [*column_overlaps(compared.overlaps), compared.train_loss],
    }


def main():
    args = options(__doc__, workers=True)
    verdict = Verdict("column_penalties", args)
    dims, instances = (QUICK_DIMS, QUICK_INSTANCES) if args.quick else (DIMS, INSTANCES)
    names = [LINEAR, NEGATIVE, NEURON] if args.quick else list(ALPHAS)
    plan = [{"name": name, "d": d, "seed": seed} for name in names for d in dims for seed in range(instances)]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), run_instance, plan, executor)
    verdict.check(all(row["converged"] for row in rows), f"{len(rows)} runs converge")
    worst, off = (max(row[key] for row in rows) for key in ("gradient", "norm_error"))
    verdict.check(worst < MAX_GRADIENT, f"gradients by torch: at most {worst:.1g}")
    verdict.check(off < MAX_NORM_ERROR, f"squared norms of spherical columns differ from d by at most {off:.1g} d")
    shown, table = {}, []
    for name in names:
        model = build_model(name)
        theory = ga.solve_state_evolution(model, ALPHAS[name], "semantic", rtol=RTOL, stability=False)
        numbers, cells = compare_columns(rows, name, dims, theory, SIGMAS, FINITE_SIZE)
        worst, shown, table = max(numbers[-2]["ratio"]), shown | cells, [*table, *numbers]
        said = f"state evolution is {theory.status.value}, {theory.validity}"
        distance = f"{name}, d = {dims[-1]}: {worst:.1f} standard errors from state evolution"
        verdict.check(theory.converged and worst < SIGMAS, f"{distance}, at most {SIGMAS:g}; {said}")
    verdict.write_table(counts_table(shown, "{}", "model"))
    verdict.end({"table": table, "rows": rows})


if __name__ == "__main__":
    main()
