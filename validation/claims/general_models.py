"""GAMP, trajectories, fixed points and autograd agree for general models, at two d.

Method: each row is compared with state evolution for its instances, so that fluctuations of the teacher do not
count as a gap: trajectories with `Dataset.instance_model`, mean fixed points with the pooled coordinates of all
instances. For r > 1 the traces of q and the nuclear norms of θ are compared, which do not change if the columns are
rotated. Single eigenvalues would not work: the fluctuations of an instance split eigenvalues that are equal for d → ∞.
Finished parts are stored, and an interrupted run resumes. Numbers in brackets are standard errors in the last digit.
"Need not" marks rows in which theory and measurement need not agree: the proximal map jumps, or the branch does not
exist for d → ∞.

Criterion: if GAMP reports convergence, torch autograd on the layer gives a gradient norm of at most 2e-8 (for a penalty
with kinks, the smallest subgradient). If replica symmetry is consistent (no jumps, replicon < 1) and the branch exists,
trajectories and fixed points agree within 3 combined standard errors plus value/√d at both d, and the median gap of
these rows is smaller at the larger d. Trajectories need not agree if the proximal map jumps on their way. Other rows
are reported with their gaps. (State evolution page of the manual.)

Running time with --quick: about 17 s on one core, after compilation.
"""

import time
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch

import gamp_attention as ga
from gamp_attention._tools.display import format_with_error, to_json
from gamp_attention.descent.torch_risk import TorchRisk
from gamp_attention.extensions.comparison.figures import COLORS, DARK
from gamp_attention.extensions.sweeps.jobs import digest, short_hash
from gamp_attention.problem.starts import initial_weights
from gamp_attention.results import Status
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_rows
from validation._tools.tables import markdown_table


class Row(NamedTuple):
    """A model and its solver settings; append a row to `list_rows` to extend the table.

    The start "both" has the teacher in the first column and the positions in the second. A column that starts without m
    or θ would leave zero by chance, at a time that cannot be predicted.
    """

    name: str
    model: ga.Model
    alpha: float = 1.5
    init: str = "semantic"
    damping: float = 0.5
    rtol: float = 1e-2
    quick: bool = False  # whether the row is part of the reduced run
    more: int = 1  # factor on the number of instances


def list_rows():
    """Return every model of the table."""
    student, build = ga.DotProductAttention, ga.attention_model
    power_law = ga.coordinate_law(ga.power_law_spectrum(1.0, 8))
    own_spectra = ga.coordinate_law([[0.1, 0.5], [0.4, 0.2], [0.25, 0.05]])
    sparse = ga.coordinate_law(teacher=ga.sparse_teacher(0.2, variance=5.0))
    signs = ga.coordinate_law(tau=ga.sign_positions(2))
    linear = build(student=student(softmax=False), tau=(1.0, 1.0))
    return [
        Row("paper", ga.paper_model(0.3), quick=True),
        Row("paper, positional", ga.paper_model(0.3), init="positional", damping=0.3),
        Row("power law a=1, K=8", build(coordinates=power_law), quick=True),
        Row("Σ_l of each token", build(coordinates=own_spectra)),
        Row("sparse teacher, 20%", build(coordinates=sparse)),
        Row("random signs p", build(coordinates=signs)),
        Row("mixture with correlated classes", build_mixture(0.2), alpha=3.0, damping=0.4, rtol=2e-2),
        Row("mixture with larger means", build_mixture(0.5), damping=0.4, rtol=2e-2),
        Row("teacher at temperature 0.5", build(teacher=build_teacher(temperature=0.5))),
        Row("causal", build(student=student(causal=True), teacher=build_teacher(causal=True)), alpha=3.0, quick=True),
        Row("causal student only", build(student=student(causal=True)), alpha=2.5),
        Row("L=3", build(3)),
        Row("r=2, t=1", build(2, 2, 1), init="both", damping=0.2, more=2),
        Row("r=2, t=2", build(2, 2, 2, omega=0.2), alpha=2.0, more=2),
        Row("untied keys, r=1+1", build(2, 2, 1, student=student(tied=False)), damping=0.3, more=2),
        Row("L=8", build(8)),
        Row("linear, identical positions", linear, alpha=3.0, init="positional", damping=0.2, more=3),
        Row("linear, opposite positions", build(student=student(softmax=False)), damping=0.15),
        Row("lasso", ga.paper_model(penalty=ga.ElasticNet(0.0, 0.005)), alpha=3.0, damping=0.3),
        Row("elastic net", ga.paper_model(penalty=ga.ElasticNet(0.008, 0.004)), alpha=2.0, quick=True),
    ]


def build_mixture(mean):
    """Return a mixture of two tokens with two classes each that mostly agree; means and variances depend on them."""
    means = [[mean, -mean], [0.6 * mean, -0.6 * mean]]
    return ga.mixture_model([[0.4, 0.1], [0.1, 0.4]], means, sigma=[[0.5, 0.4], [0.5, 0.4]])


def build_teacher(**attention):
    """Return the paper's teacher with another attention map."""
    A = np.array([[0.6, 0.4], [0.4, 0.6]])
    return ga.SoftmaxTeacher(0.3, A, ga.DotProductAttention(**attention))


FOLLOWED, N_PATHS, REPLICAS = 15, 1024, 3
SIZES, QUICK_SIZES = {400: 4, 800: 3}, {150: 3}
MAX_WORK = 1e6  # number of proximal problems of one average of state evolution, at most
MAX_ITER = 800
ROUNDING = 2e-8  # gradient norm by autograd, at most, if GAMP stopped at 1e-8
JUMPS = 0.05  # jump mass / V̂ on the way of a trajectory that must agree, at most: A_t leaves jumps out
SMALLEST = 0.05  # in units of √q: smaller overlaps are zero by symmetry and have no relative gap


def compute_invariants(overlaps):
    """Return the numbers that do not change when columns are rotated, by name; histories keep their time axis."""
    m, theta = overlaps.m, overlaps.theta
    if m.shape[-1] == theta.shape[-1] == 1:  # with signs: no norms, which noise biases
        values = {"θ": theta[..., 0, 0].mean(axis=-1), "m": m[..., 0, 0]}
    else:
        nuclear = np.linalg.svd(theta, compute_uv=False).sum(axis=-1)
        values = {"θ": nuclear.mean(axis=-1), "m": np.linalg.norm(m, axis=(-2, -1))}
    q = np.trace(overlaps.q, axis1=-2, axis2=-1).mean(axis=-1)
    return {"q": q} | values | {"V": np.trace(overlaps.V, axis1=-2, axis2=-1).mean(axis=-1) / overlaps.V.shape[-1]}


def compute_errors(error, keys):
    """Return errors of the invariants: the largest error of an entry of that overlap."""
    entries = {"q": (-3, -2, -1), "m": (-2, -1), "θ": (-3, -2, -1), "V": (-3, -2, -1)}
    values = {"q": error.q, "m": error.m, "θ": error.theta, "V": error.V}
    return {key: np.abs(values[key[0]]).max(axis=entries[key[0]]) for key in keys}


def select_time(history, t):
    """Return the overlaps of one entry of a history."""
    return ga.Overlaps(**{name: values[t] for name, values in history.arrays().items()})


def run_instance(row: Row, d: int, seed: int) -> dict[str, Any]:
    """Run GAMP on one instance and compare it with the trajectory of its `instance_model`."""
    data = ga.sample(row.model, d, row.alpha, np.random.default_rng([d, seed]))
    start = row.init
    if start == "both":
        start = np.concatenate([initial_weights(data, name)[:, :1] for name in ("semantic", "positional")], axis=1)
    run = ga.run_gamp(data, start, "asymptotic", damping=row.damping, max_iter=MAX_ITER, seed=seed)
    followed = ga.run_gamp(data, start, "asymptotic", damping=row.damping, tol=0, max_iter=FOLLOWED, seed=seed)
    path = ga.trajectory(
        data.instance_model(), data.alpha, select_time(followed.history, 0) if row.init == "both" else row.init,
        ga.MessagePassing(damping=row.damping), n_iter=FOLLOWED, n_paths=N_PATHS, n_replicas=REPLICAS, seed=seed,
    )  # fmt: skip
    return {
        "data": data, "status": run.status.value, "message_passing": run.message_passing.value, "n_iter": run.n_iter,
        "n_settle": run.n_settle, "off_global": run.n_off_global,
        "layer_gradient_norm": compute_layer_gradient(data, run.Q), "end": compute_invariants(run.overlaps),
        "seen": compute_invariants(followed.history), "predicted": compute_invariants(path),
        "jumps": float((np.abs(path.jump_mass).sum(axis=(1, 2, 3)) / np.abs(path.V_hat).sum(axis=(1, 2, 3))).max()),
        "error": compute_errors(path.error, compute_invariants(path)),
        "path_end": list(select_time(path, -1).arrays().values()),
    }  # fmt: skip


def compute_layer_gradient(data, Q):
    """Return ‖∇R‖/(λ√d) by torch autograd on the layer, with the smallest subgradient, without compiled kernels."""
    weights = torch.tensor(Q, requires_grad=True)
    (gradient,) = torch.autograd.grad(TorchRisk(data, "asymptotic", "cpu")(weights), weights)
    gradient = gradient.numpy()
    if isinstance(data.penalty, ga.ElasticNet):
        lam, l1 = data.penalty.lam, data.penalty.l1
        gradient += lam * Q + l1 * np.sign(Q)
        gradient -= np.where(Q == 0, np.clip(gradient, -l1, l1), 0.0)
    return float(np.linalg.norm(gradient) / (data.penalty.strength * data.dim**0.5))


def pool_coordinates(model, instances):
    """Return the model with the coordinates of all instances: to first order, its solution is the mean of theirs."""
    parts = [data.coordinate_samples() for data in instances]
    return model.on_coordinates(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def compute_part(row: Row, d: int, seeds: int) -> dict[str, Any]:
    """Run a row at one d and compare it with state evolution."""
    began = time.perf_counter()
    runs = [run_instance(row, d, seed) for seed in range(seeds)]
    model, alpha = pool_coordinates(row.model, [run["data"] for run in runs]), runs[0]["data"].alpha
    gamp_seconds = time.perf_counter() - began
    begin = row.init
    if begin == "both":  # a mean of overlaps is feasible for the mean teacher; the overlaps of one instance may not be
        begin = ga.Overlaps(*(np.mean(part, axis=0) for part in zip(*(run["path_end"] for run in runs), strict=True)))
    se = ga.solve_state_evolution(model, alpha, begin, rtol=row.rtol, max_work=MAX_WORK, stability=False)
    expected = {key: float(value) for key, value in compute_invariants(se.overlaps).items()}
    expected_error = {key: float(value) for key, value in compute_errors(se.overlaps_error, expected).items()}
    fixed, followed = {}, {}
    for key, value in expected.items():
        ends, predicted = np.array([run["end"][key] for run in runs]), np.array([run["predicted"][key] for run in runs])
        own = predicted[:, -1] - predicted[:, -1].mean()  # effect of the instance's teacher
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


def compute_excess(gap, error, value, d):
    """Return the largest |gap| in units of 3 standard errors plus value/√d; at most 1 if they agree."""
    gap, error, value = (np.array(each, dtype=float) for each in (gap, error, value))
    return float(np.max(np.abs(gap) / (3 * error + np.abs(value) / np.sqrt(d) + 1e-12)))


def assess(row: Row, part: dict[str, Any]) -> dict[str, Any]:
    """Add the overlaps that count, their excess over the allowed gap, and whether this part must agree."""
    d, size = part["d"], np.sqrt(part["fixed"]["q"]["se"])
    units = {"q": size**2, "θ": size, "m": size, "V": part["fixed"]["V"]["se"]}
    keys = [key for key, v in part["fixed"].items() if abs(v["se"]) > SMALLEST * units[key[0]]]
    fixed = {key: part["fixed"][key] for key in keys}
    ended = all(Status(status).converged for status in part["statuses"])
    return part | {
        "name": row.name, "alpha": row.alpha, "init": row.init, "keys": keys,
        "fixed_excess": max(compute_excess(v["gamp"] - v["se"], v["error"], v["se"], d) for v in fixed.values()),
        "followed_excess": max(
            compute_excess(v["gap"][1:], v["error"][1:], v["predicted"][1:], d)
            for key, v in part["followed"].items() if key in keys
        ),
        "binding": bool(part["consistent"]) and ended and part["se_status"] in ("converged", "inaccurate"),
        "smooth_way": part.get("jumps_followed", 0.0) <= JUMPS,
    }  # fmt: skip


def find_worst_gap(part):
    """Return the largest relative gap of a fixed point's overlaps."""
    return max(abs(part["fixed"][key]["gamp"] / part["fixed"][key]["se"] - 1) for key in part["keys"])


def collect(args, verdict):
    """Return all parts, stored or computed now, the smaller d first."""
    settings, chosen = [FOLLOWED, N_PATHS, REPLICAS, MAX_WORK, MAX_ITER], {}
    for d, seeds in (QUICK_SIZES if args.quick else SIZES).items():
        for number, row in enumerate(list_rows()):
            if row.quick or not args.quick:
                many = seeds * row.more
                described = [digest(row.model), row.alpha, row.init, row.damping, row.rtol, d, many, settings]
                chosen[short_hash(described)] = number, d, row, many

    def run(key):
        _, d, row, many = chosen[key]
        part = compute_part(row, d, many) | {"key": key}
        print_part(assess(row, part))
        return [part]

    plan = {key: partial(run, key) for key in chosen}
    have = {part["key"]: part for part in complete_rows(verdict.path("_runs.jsonl"), plan, itemgetter("key"), "parts")}
    wanted = sorted((key for key in chosen if key in have), key=lambda key: chosen[key][:2])
    return [assess(chosen[key][2], have[key]) for key in wanted]


def print_part(part):
    values = ", ".join(f"{key} {v['gamp']:.4g} ({v['se']:.4g} ± {v['error']:.1g})" for key, v in part["fixed"].items())
    print(
        f"{part['name']:28} d={part['d']:4} {'/'.join(part['statuses'])} "
        f"gradient {max(part['layer_gradient_norm']):.1e} SE {part['se_status']}, {part['validity']}; "
        f"excess {part['fixed_excess']:.2f} fixed, {part['followed_excess']:.2f} followed; {values}; "
        f"{part['gamp_seconds']:.0f} of {part['seconds']:.0f} s",
        flush=True,
    )


TICKS = (-100, -10, 0, 10, 100)
HEADS = (
    "model", "α", "start", "d", "GAMP ended", "‖∇R‖ by autograd", "overlap", "GAMP", "state evolution", "gap",
    "trajectory, worst", "replica symmetry", "agrees",
)  # fmt: skip


def format_table(parts):
    """Return a line for each model, d and overlap that does not vanish by symmetry."""
    lines = []
    for part in parts:
        first = [
            part["name"], f"{part['alpha']:g}", part["init"], str(part["d"]), _format_statuses(part),
            f"{max(part['layer_gradient_norm']):.0e}",
        ]  # fmt: skip
        last = [_format_validity(part), _format_agreement(part)]
        for number, key in enumerate(part["keys"]):
            v = part["fixed"][key]
            gap = v["gamp"] - v["se"]
            middle = [
                key, _format_number(v["gamp"], v["error"]), f"{v['se']:.4g}",
                f"{gap / v['error']:+.1f} s.e., {100 * gap / abs(v['se']):+.1f} %",
                _format_worst(part["followed"][key]),
            ]  # fmt: skip
            lines.append([*(first if not number else [""] * 6), *middle, *(last if not number else [""] * 2)])
    return markdown_table(HEADS, lines)


def _format_number(value, error):
    digits = int(np.clip(1 - np.floor(np.log10(max(error, 1e-12))), 0, 8))
    return format_with_error(value, error, digits)


def _format_statuses(part):
    """Return counts of statuses, and the range of iterations."""
    counts = {status: part["statuses"].count(status) for status in dict.fromkeys(part["statuses"])}
    iterations = f"{min(part['n_iter'])} to {max(part['n_iter'])} iterations"
    return ", ".join(f"{n} {status}" for status, n in counts.items()) + f" ({iterations})"


def _format_worst(followed):
    gap, error, size = (np.array(followed[k], dtype=float)[1:] for k in ("gap", "error", "predicted"))
    return f"{np.max(np.abs(gap) / error):.1f} s.e., {100 * np.max(np.abs(gap) / np.abs(size).max()):.1f} %"


def _format_validity(part):
    if part["se_status"] == "lost":
        return "no such branch"
    share = (
        f"replicon {part['replicon']:.2g}, jumps {100 * part['jump_share']:.2g} %" if part["replicon"] else "unknown"
    )
    return ("consistent: " if part["consistent"] else "approximate: ") + share + f", {part['se_status']}"


def _format_agreement(part):
    fixed, followed = part["fixed_excess"] <= 1, part["followed_excess"] <= 1
    words = "yes" if fixed and followed else "fixed points" if fixed else "trajectories" if followed else "no"
    if not part["binding"]:
        return words + ", need not"
    return words + ("" if part["smooth_way"] else "; trajectories jump on their way, and need not")


def draw(numbers, path):
    """Draw gaps of fixed points and trajectories in per cent, one line for each model; the smaller d is pale."""
    parts = numbers["parts"]
    names = list(dict.fromkeys(part["name"] for part in parts))
    largest = max(part["d"] for part in parts)
    with figure(path, 1, 2, (9.8, 2 + 0.38 * len(names))) as axes:
        for part in parts:
            place = len(names) - 1 - names.index(part["name"])
            color = COLORS["semantic"] if part["binding"] else DARK
            for number, key in enumerate(part["keys"]):
                v, f = part["fixed"][key], part["followed"][key]
                y = place + 0.3 - 0.6 * number / max(1, len(part["keys"]) - 1)
                style = {"color": color, "alpha": 1 if part["d"] == largest else 0.35, "ms": 4}
                scale = 100 / abs(v["se"])
                axes[0, 0].errorbar(
                    scale * (v["gamp"] - v["se"]), y, xerr=2 * scale * v["error"], fmt="o", lw=1, **style
                )
                gap, size = np.array(f["gap"]), np.abs(f["predicted"]).max()
                worst = int(np.argmax(np.abs(gap)))
                axes[0, 1].errorbar(
                    100 * gap[worst] / size, y, xerr=200 * f["error"][worst] / size, fmt="s", lw=1, **style
                )
        labels = [name.replace("Σ_l", "$Σ_l$") for name in names[::-1]]
        axes[0, 0].set(yticks=range(len(names)), yticklabels=labels, xlabel="fixed point: GAMP − state evolution, %")
        axes[0, 1].set(yticks=range(len(names)), yticklabels=[], xlabel="trajectory: largest difference, %")
        for axis in axes[0]:
            axis.axvline(0, color=DARK, lw=0.8)
            axis.set_xscale("symlog", linthresh=5)
            axis.set_xticks(TICKS, [f"{tick:g}".replace("-", "−") for tick in TICKS])
            axis.minorticks_off()
        axes[0, 0].figure.suptitle(
            "From top to bottom in each row: q, θ or m, V. Blue: must agree; dark gray: jumps or no branch.\n"
            f"Pale: d = {min(part['d'] for part in parts)}, else d = {largest}. Bars: 2 standard errors"
        )


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("general_models", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    parts = collect(args, verdict)
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
    if not args.quick:
        binding = {(part["name"], part["d"]): find_worst_gap(part) for part in parts if part["binding"]}
        both = [name for name, d in binding if d == min(SIZES) and (name, max(SIZES)) in binding]
        small, large = (np.median([binding[name, d] for name in both]) for d in (min(SIZES), max(SIZES)))
        verdict.check(large < small, f"median gap of the rows that must agree: {small:.1%}, then {large:.1%}")
    verdict.path(".md").write_text(format_table(parts))
    verdict.end({"parts": parts}, draw)


if __name__ == "__main__":
    main()
