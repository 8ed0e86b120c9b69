"""General models in one table: GAMP at two d against trajectories, fixed points and autograd, a row for each model.

A row is compared at each d with state evolution for its own instances, so that a teacher's fluctuations do not count
as a gap: trajectories with `Dataset.instance_model`, mean fixed points with the pooled coordinates of all instances.
For r > 1 the traces of q and the nuclear norms of θ are compared, which do not change when the columns are rotated.
Single eigenvalues would not do: an instance's fluctuations split those that are equal for d → ∞.

Criterion: wherever GAMP says it converged, torch autograd on the layer finds a gradient norm of at most 2e-8, for a
penalty with kinks the subgradient of smallest norm. Where replica symmetry is consistent (no jumps, replicon < 1) and
the branch exists, trajectories and fixed points agree within 3 combined standard errors plus value/√d, at both d, and
over these rows the median gap is smaller at the larger d. Trajectories need not agree if the proximal map jumps on
their way. Other rows are reported with their gaps. Finished parts are stored, and an interrupted run goes on.
"""

import time
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch

import gamp_attention as ga
from gamp_attention._core.display import to_json
from gamp_attention.baselines.descent import TorchRisk
from gamp_attention.data.starts import initial_weights
from gamp_attention.experiments.sweeps.cells import digest, short_hash
from gamp_attention.results import Status
from validation._tools.parts import kept_rows
from validation._tools.report import Verdict, options
from validation.claims._general_rows import Row, rows
from validation.claims._general_table import draw, markdown

FOLLOWED, N_PATHS, REPLICAS = 15, 1024, 3
SIZES, QUICK_SIZES = {400: 4, 800: 3}, {150: 3}
MAX_WORK = 1e6  # proximal problems of one average of state evolution
MAX_ITER = 800
ROUNDING = 2e-8  # gradient norm that autograd may find where GAMP stopped at 1e-8
JUMPS = 0.05  # of the jump mass in V̂, at most, on the way of a trajectory that must agree: A leaves jumps out
SMALLEST = 0.05  # of √q: smaller overlaps are zero by symmetry, up to fluctuations, and have no relative gap


def invariants(overlaps):
    """What rotations of the columns leave alone, by name; histories keep their axis of time."""
    m, theta = overlaps.m, overlaps.theta
    if m.shape[-1] == theta.shape[-1] == 1:  # with signs: no norms, which noise biases
        found = {"θ": theta[..., 0, 0].mean(axis=-1), "m": m[..., 0, 0]}
    else:
        nuclear = np.linalg.svd(theta, compute_uv=False).sum(axis=-1)
        found = {"θ": nuclear.mean(axis=-1), "m": np.linalg.norm(m, axis=(-2, -1))}
    q = np.trace(overlaps.q, axis1=-2, axis2=-1).mean(axis=-1)
    return {"q": q} | found | {"V": np.trace(overlaps.V, axis1=-2, axis2=-1).mean(axis=-1) / overlaps.V.shape[-1]}


def errors_of(error, keys):
    """Errors of the invariants: the largest error of an entry of that overlap."""
    entries = {"q": (-3, -2, -1), "m": (-2, -1), "θ": (-3, -2, -1), "V": (-3, -2, -1)}
    values = {"q": error.q, "m": error.m, "θ": error.theta, "V": error.V}
    return {key: np.abs(values[key[0]]).max(axis=entries[key[0]]) for key in keys}


def at(history, t):
    """The overlaps of one entry of a history."""
    return ga.Overlaps(**{name: values[t] for name, values in history.arrays().items()})


def one(row: Row, d: int, seed: int) -> dict[str, Any]:
    """GAMP on one instance: its fixed point, and its deviation from the trajectory of its own model."""
    data = ga.sample(row.model, d, row.alpha, np.random.default_rng([d, seed]))
    start = row.init
    if start == "both":
        start = np.concatenate([initial_weights(data, name)[:, :1] for name in ("semantic", "positional")], axis=1)
    run = ga.run_gamp(data, start, "asymptotic", damping=row.damping, max_iter=MAX_ITER, seed=seed)
    followed = ga.run_gamp(data, start, "asymptotic", damping=row.damping, tol=0, max_iter=FOLLOWED, seed=seed)
    path = ga.trajectory(
        data.instance_model(), data.alpha, at(followed.history, 0) if row.init == "both" else row.init,
        damping=row.damping, n_iter=FOLLOWED, n_paths=N_PATHS, n_replicas=REPLICAS, seed=seed,
    )  # fmt: skip
    return {
        "data": data, "status": run.status.value, "message_passing": run.message_passing.value, "n_iter": run.n_iter,
        "n_settle": run.n_settle, "off_global": run.n_off_global, "layer_gradient_norm": layer_gradient(data, run.Q),
        "end": invariants(run.overlaps), "seen": invariants(followed.history), "predicted": invariants(path),
        "jumps": float((np.abs(path.jump_mass).sum(axis=(1, 2, 3)) / np.abs(path.V_hat).sum(axis=(1, 2, 3))).max()),
        "error": errors_of(path.error, invariants(path)), "path_end": list(at(path, -1).arrays().values()),
    }  # fmt: skip


def layer_gradient(data, Q):
    """‖∇R‖/(λ√d) by torch autograd on the layer, apart from the compiled kernels, with the smallest subgradient."""
    weights = torch.tensor(Q, requires_grad=True)
    (gradient,) = torch.autograd.grad(TorchRisk(data, "asymptotic", "cpu")(weights), weights)
    gradient = gradient.numpy()
    if isinstance(data.penalty, ga.ElasticNet):
        lam, l1 = data.penalty.lam, data.penalty.l1
        gradient += lam * Q + l1 * np.sign(Q)
        gradient -= np.where(Q == 0, np.clip(gradient, -l1, l1), 0.0)
    return float(np.linalg.norm(gradient) / (data.penalty.strength * data.dim**0.5))


def pooled(model, instances):
    """The model with the coordinates of all instances: to first order, its solution is the mean of theirs."""
    parts = [data.coordinate_samples() for data in instances]
    return model.on_coordinates(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def cell(row: Row, d: int, seeds: int) -> dict[str, Any]:
    """A row at one d, against state evolution."""
    began = time.perf_counter()
    runs = [one(row, d, seed) for seed in range(seeds)]
    model, alpha = pooled(row.model, [run["data"] for run in runs]), runs[0]["data"].alpha
    gamp_seconds = time.perf_counter() - began
    begin = row.init
    if begin == "both":  # a mean of overlaps is feasible for the mean teacher; those of one instance may not be
        begin = ga.Overlaps(*(np.mean(part, axis=0) for part in zip(*(run["path_end"] for run in runs), strict=True)))
    se = ga.solve_state_evolution(model, alpha, begin, rtol=row.rtol, max_work=MAX_WORK, stability=False)
    expected = {key: float(value) for key, value in invariants(se.overlaps).items()}
    expected_error = {key: float(value) for key, value in errors_of(se.overlaps_error, expected).items()}
    fixed, followed = {}, {}
    for key, value in expected.items():
        ends, predicted = np.array([run["end"][key] for run in runs]), np.array([run["predicted"][key] for run in runs])
        own = predicted[:, -1] - predicted[:, -1].mean()  # what the instance's teacher does to it
        spread = (ends - own).std(ddof=1) / np.sqrt(seeds)
        fixed[key] = {
            "gamp": ends.mean(), "se": value, "error": np.hypot(spread, 0.5 * np.nan_to_num(expected_error[key])),
        }  # fmt: skip
        gaps = np.array([run["seen"][key] for run in runs]) - predicted
        noise = np.mean([run["error"][key] ** 2 for run in runs], axis=0)
        followed[key] = {
            "gap": gaps.mean(axis=0), "predicted": predicted.mean(axis=0),
            "error": np.sqrt((gaps.var(axis=0, ddof=1) + noise) / seeds),
        }  # fmt: skip
    return to_json({
        "d": d, "seeds": seeds, "statuses": [run["status"] for run in runs],
        "message_passing": [run["message_passing"] for run in runs], "n_iter": [run["n_iter"] for run in runs],
        "n_settle": [run["n_settle"] for run in runs], "off_global": [run["off_global"] for run in runs],
        "layer_gradient_norm": [run["layer_gradient_norm"] for run in runs],
        "se_status": se.status.value, "se_error": se.relative_error, "rule": se.rule, "replicon": se.replicon,
        "jump_share": float(se.jump_mass.sum() / se.V_hat.sum()), "consistent": se.consistent, "validity": se.validity,
        "jumps_followed": np.mean([run["jumps"] for run in runs]),
        "fixed": fixed, "followed": followed, "gamp_seconds": gamp_seconds,
        "seconds": time.perf_counter() - began,
    })  # fmt: skip


def excess(gap, error, value, d):
    """Largest of |gap| over 3 standard errors plus value/√d; not above 1 where they agree."""
    gap, error, value = (np.array(each, dtype=float) for each in (gap, error, value))
    return float(np.max(np.abs(gap) / (3 * error + np.abs(value) / np.sqrt(d) + 1e-12)))


def judged(row: Row, part: dict[str, Any]) -> dict[str, Any]:
    """Which overlaps count, and by how much they exceed what is allowed; whether this part must agree."""
    d, size = part["d"], np.sqrt(part["fixed"]["q"]["se"])
    units = {"q": size**2, "θ": size, "m": size, "V": part["fixed"]["V"]["se"]}
    keys = [key for key, v in part["fixed"].items() if abs(v["se"]) > SMALLEST * units[key[0]]]
    fixed = {key: part["fixed"][key] for key in keys}
    ended = all(Status(status).converged for status in part["statuses"])
    return part | {
        "name": row.name, "alpha": row.alpha, "init": row.init, "keys": keys,
        "fixed_excess": max(excess(v["gamp"] - v["se"], v["error"], v["se"], d) for v in fixed.values()),
        "followed_excess": max(
            excess(v["gap"][1:], v["error"][1:], v["predicted"][1:], d)
            for key, v in part["followed"].items() if key in keys
        ),
        "binding": bool(part["consistent"]) and ended and part["se_status"] in ("converged", "inaccurate"),
        "smooth_way": part.get("jumps_followed", 0.0) <= JUMPS,
    }  # fmt: skip


def worst_gap(part):
    """Largest relative gap of a fixed point's overlaps."""
    return max(abs(part["fixed"][key]["gamp"] / part["fixed"][key]["se"] - 1) for key in part["keys"])


def collect(found, verdict):
    """All parts, those stored before and those missing, the smaller d first."""
    settings, chosen = [FOLLOWED, N_PATHS, REPLICAS, MAX_WORK, MAX_ITER], {}
    for d, seeds in (QUICK_SIZES if found.quick else SIZES).items():
        for number, row in enumerate(rows()):
            if row.quick or not found.quick:
                many = seeds * row.more
                described = [digest(row.model), row.alpha, row.init, row.damping, row.rtol, d, many, settings]
                chosen[short_hash(described)] = number, d, row, many

    def run(key):
        _, d, row, many = chosen[key]
        part = cell(row, d, many) | {"key": key}
        report(judged(row, part))
        return [part]

    plan = {} if found.draw else {key: partial(run, key) for key in chosen}
    have = {part["key"]: part for part in kept_rows(verdict.path("_runs.jsonl"), plan, itemgetter("key"), "parts")}
    wanted = sorted((key for key in chosen if key in have), key=lambda key: chosen[key][:2])
    return [judged(chosen[key][2], have[key]) for key in wanted]


def report(part):
    values = ", ".join(f"{key} {v['gamp']:.4g} ({v['se']:.4g} ± {v['error']:.1g})" for key, v in part["fixed"].items())
    print(
        f"{part['name']:28} d={part['d']:4} {'/'.join(part['statuses'])} "
        f"gradient {max(part['layer_gradient_norm']):.1e} SE {part['se_status']}, {part['validity']}; "
        f"excess {part['fixed_excess']:.2f} fixed, {part['followed_excess']:.2f} followed; {values}; "
        f"{part['gamp_seconds']:.0f} of {part['seconds']:.0f} s",
        flush=True,
    )


def main():
    found = options(__doc__, draw=True)
    verdict = Verdict("general_models", found)
    parts = collect(found, verdict)
    ended = [
        norm
        for part in parts
        for norm, status in zip(part["layer_gradient_norm"], part["statuses"], strict=True)
        if Status(status).converged
    ]
    total = sum(part["seeds"] for part in parts)
    verdict.check(
        bool(ended) and max(ended) <= ROUNDING,
        f"autograd's gradient norm is at most {max(ended):.1e} in the {len(ended)} of {total} runs that converged",
    )
    for part in parts:
        if part["binding"]:
            verdict.check(part["fixed_excess"] <= 1, f"{part['name']}, d={part['d']}: fixed points agree")
            if part["smooth_way"]:
                verdict.check(part["followed_excess"] <= 1, f"{part['name']}, d={part['d']}: trajectories agree")
    if not found.quick:
        binding = {(part["name"], part["d"]): worst_gap(part) for part in parts if part["binding"]}
        both = [name for name, d in binding if d == min(SIZES) and (name, max(SIZES)) in binding]
        small, large = (np.median([binding[name, d] for name in both]) for d in (min(SIZES), max(SIZES)))
        verdict.check(large < small, f"median gap of the rows that must agree: {small:.1%}, then {large:.1%}")
    verdict.path(".md").write_text(markdown(parts))
    draw(parts, verdict.path(".png"))
    verdict.end({"parts": parts})


if __name__ == "__main__":
    main()
