"""Several heads, value matrices and biases: torch's MultiheadAttention is a special case; theory of message passing.

Method: (1) A `torch.nn.MultiheadAttention` with random weights and biases is written as a `GampAttention` with value
matrices, and both are applied to the same tokens. The estimator is then trained on the outputs of torch's layer, from
12 spectral and random starts. The gradient of its risk is computed by torch, from torch's layer with these weights.
(2) Three teacher-student models: two heads without values, one head with a value column, and two heads with a value
column each. Message passing with step 1/2 from the teacher's weights, on the asymptotic risk where the layer has no
values, is compared with its trajectory predicted by state evolution at every iteration. As in `compare`, it uses the
response V̂ of the theory, because the average of derivatives that message passing would use omits the jumps of the
proximal map. With values these are large: the loss does not change if the fields of a head's scores change sign. The
fixed point is compared for the first model only; state evolution to 1e-2 does not reach this accuracy for the second.

Criterion: outputs agree to 1e-12, gradients by torch are below 1e-6 √d, and at least three quarters of the trained
layers explain all but 1e-6 of the variance; others end in a local minimum with zero gradient. Means over the instances
of the squared norms of the columns and of their overlaps with the teacher agree with state evolution within 4.5
standard errors, plus the stated error of the theory and 1/d of the value, in all columns at all iterations.
(Section on heads of the manual.)
"""

from functools import cache

import numpy as np
import torch

import gamp_attention as ga
from validation._tools.report import counts_table, run_claim

DIM, INSTANCES, N_ITER = 2000, 24, 10
QUICK_DIM, QUICK_INSTANCES = 400, 6
SIGMAS, FINITE_SIZE, RTOL = 4.5, 1.0, 1e-2  # allowed standard errors; finite-size error in units of 1/d; accuracy
MAX_OUTPUT_ERROR, MAX_GRADIENT, MAX_UNEXPLAINED = 1e-12, 1e-6, 1e-6
TORCH_LAYERS = [(4, 2, 2), (6, 2, 2), (4, 1, 3)]  # dimension d, heads H, tokens L
QUICK_LAYERS = 1
LAM, N_STARTS = 1e-5, 12
MIN_EXPLAINED = 0.75  # smallest fraction of the layers of torch whose outputs the trained layers explain
HEADS, VALUE, BOTH = "two heads", "one head, value column", "two heads, value columns"
NAMES = (HEADS, VALUE, BOTH)
ALPHA, N_PATHS = 2.0, 4000
FIXED_POINTS = (HEADS,)


def build_model(name):
    """Return a teacher-student model."""
    if name == HEADS:
        teacher = ga.SoftmaxTeacher(0.2, np.array([[0.6, 0.4], [0.4, 0.6]]), ga.MultiHeadAttention(2))
        return ga.attention_model(
            student=ga.MultiHeadAttention(2), teacher_rank=2, teacher=teacher, sigma=1.0, lam=0.05
        )
    readout = [[1.0]] if name == VALUE else [[1.0, 0.0], [0.0, 1.0]]
    heads = 1 if name == VALUE else 2
    return ga.value_model(heads=heads, values=1, readout=readout, omega=0.2, score_noise=0.2, tau=[0, 0], lam=0.2,
                              sigma=1.0)  # fmt: skip


def build_torch_layer(d, heads, seed):
    """Return a layer of torch with random weights and biases, and the arguments of the estimator that contains it."""
    torch.manual_seed(seed)
    layer = torch.nn.MultiheadAttention(d, heads, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(layer.in_proj_bias, std=0.3)
    size = d // heads
    student = ga.DotProductAttention(size**0.5, tied=False)
    readout = layer.out_proj.weight.detach().numpy().T
    return layer, {"heads": heads, "rank": 2 * size, "value_rank": size, "readout": readout, "student": student}


def risk_by_torch(layer, x, y, Q, b):
    """Return the risk without penalty of torch's layer with the weights Q (d, r) and biases b (r,), as a tensor."""
    weights = (Q / x.shape[2] ** 0.5).T
    parameters = dict(layer.named_parameters()) | {"in_proj_weight": weights, "in_proj_bias": b}
    outputs = torch.func.functional_call(layer, parameters, (x, x, x), {"need_weights": False})[0]
    return 0.5 * ((outputs - y) ** 2).sum()


def run_torch_layer(d, heads, n_tokens, seed, n=60):
    """Compare a layer of torch with the model, and train the model on its outputs."""
    layer, arguments = build_torch_layer(d, heads, seed)
    x = np.random.default_rng(seed).normal(size=(n, n_tokens, d))
    tokens = torch.tensor(x)
    with torch.no_grad():
        y = layer(tokens, tokens, tokens, need_weights=False)[0]
    estimator = ga.GampAttention(LAM, fit_intercept=True, n_starts=N_STARTS, max_iter=400, **arguments)
    estimator.fit(x, y.numpy())
    layout, Q = estimator.data_.student.head_layout(0), d**0.5 * layer.in_proj_weight.detach().numpy().T
    given = estimator.result_.layer.model.predict(x @ Q / d**0.5 + layer.in_proj_bias.detach().numpy())
    ends = [torch.tensor(value, requires_grad=True) for value in (estimator.Q_, estimator.intercept_)]
    slopes = torch.autograd.grad(risk_by_torch(layer, tokens, y, *ends), ends)
    # the penalty acts on weights in the unit of the data, which have one more coordinate
    gradient = slopes[0].numpy() + LAM * (d + 1) / d * estimator.Q_
    norm = float(np.linalg.norm(gradient) + np.linalg.norm(slopes[1].numpy())) / d**0.5
    return {
        "fields": layout.rank * n_tokens,
        "output_error": float(np.abs(given - y.numpy()).max()),
        "converged": estimator.result_.converged,
        "gradient": norm,
        "unexplained": 1 - estimator.score(x, y.numpy()),
    }


@cache
def predict(name, n_paths):
    """Return the predicted trajectory of a model."""
    return ga.trajectory(build_model(name), ALPHA, "semantic", n_iter=N_ITER, n_paths=n_paths)


def run_instance(name, d, seed):
    """Return squared norms and overlaps with the teacher of one instance, at all iterations and at its fixed point."""
    data = ga.sample(build_model(name), d, ALPHA, seed=seed)
    risk = "asymptotic" if name == HEADS else "exact"
    iteration = ga.IterationOptions(V_hat=predict(name, N_PATHS).V_hat)
    path = ga.run_gamp(data, "semantic", risk, tol=0, max_iter=N_ITER, damping=0.5, iteration=iteration)
    end = ga.run_gamp(data, "semantic", risk) if name in FIXED_POINTS else None
    return {
        "path": _values(path.history).tolist(),
        "end": None if end is None else _values(end.overlaps).tolist(),
        "converged": end is None or end.converged,
    }


def _values(overlaps):
    """Return the squared norms and overlaps with the teacher of the columns (..., 2 r), averaged over the tokens."""
    q, theta = (np.diagonal(getattr(overlaps, name).mean(axis=-3), axis1=-2, axis2=-1) for name in ("q", "theta"))
    return np.concatenate([q, theta], axis=-1)


def compare(values, predicted, stated, d):
    """Return the largest distance of the mean of values (instances, ...) from a prediction, in standard errors."""
    values = np.array(values)
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    return float((np.abs(mean - predicted) / (spread + (stated + FINITE_SIZE * np.abs(predicted) / d) / SIGMAS)).max())


def plan(quick):
    """Return the layers of torch and the instances."""
    d, instances = (QUICK_DIM, QUICK_INSTANCES) if quick else (DIM, INSTANCES)
    layers = TORCH_LAYERS[: QUICK_LAYERS if quick else None]
    return {
        run_torch_layer: [{"d": n, "heads": H, "n_tokens": L, "seed": seed} for n, H, L in layers for seed in range(2)],
        run_instance: [{"name": name, "d": d, "seed": seed} for name in NAMES for seed in range(instances)],
    }


def judge(verdict, layers, rows):
    """Check layers of torch, and instances against the theory."""
    error, gradient = (max(row[key] for row in layers) for key in ("output_error", "gradient"))
    verdict.check(error < MAX_OUTPUT_ERROR, f"outputs of torch's layer: equal to {error:.1g}")
    verdict.check(all(row["converged"] for row in layers), f"{len(layers)} trained layers converge")
    verdict.check(gradient < MAX_GRADIENT, f"gradients by torch: at most {gradient:.1g}")
    explained = sum(row["unexplained"] < MAX_UNEXPLAINED for row in layers)
    text = f"{explained} of {len(layers)} trained layers explain all but {MAX_UNEXPLAINED:g} of the variance"
    verdict.check(explained >= MIN_EXPLAINED * len(layers), text)
    verdict.check(all(row["converged"] for row in rows), f"{len(rows)} instances converge")
    shown, d = {}, rows[0]["d"]
    for name in NAMES:
        mine, model = [row for row in rows if row["name"] == name], build_model(name)
        path = predict(name, N_PATHS if verdict.quick else 4 * N_PATHS)
        paths = [row["path"] for row in mine]
        distance = compare(paths, _values(path), SIGMAS * _values(path.error), d)
        verdict.check(distance < SIGMAS, f"{name}: {distance:.1f} standard errors from the predicted trajectory")
        last = [each[-1] for each in paths]
        shown[f"{name}, iteration {N_ITER}"] = show(last, _values(path)[-1], distance)
        if name in FIXED_POINTS:
            theory = ga.solve_state_evolution(model, ALPHA, "semantic", rtol=RTOL, stability=False)
            ends, predicted = [row["end"] for row in mine], _values(theory.overlaps)
            distance = compare(ends, predicted, _values(theory.overlaps_error), d)
            words = f"{name}: {distance:.1f} standard errors at the end; state evolution is {theory.status.value}"
            verdict.check(theory.converged and distance < SIGMAS, words)
            shown[f"{name}, fixed point"] = show(ends, predicted, distance)
    verdict.write_table(counts_table(shown, "{}", f"model, d = {d}"))
    return {"torch": layers}


def show(values, predicted, distance):
    """Return a row of the table: squared norms, followed by overlaps with the teacher."""
    mean, theory = (" ".join(f"{value:.4f}" for value in row) for row in (np.mean(values, axis=0), predicted))
    return {"squared norms, overlaps": mean, "theory": theory, "standard errors": f"{distance:.1f}"}


def main():
    run_claim("attention_heads", __doc__, plan, judge)


if __name__ == "__main__":
    main()
