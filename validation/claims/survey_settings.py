"""Settings of survey propagation: nodes of the inner field, cost and memory of an iteration, and steps under noise.

Nodes: from a random start, surveys of 10 and 30 iterations at 1.5 units of the Parisi parameter, for two to four fields
(ω = 0.2, σ = 0.8, no noise). In the state that they reach, the averages over the inner field with few nodes are
compared with a rule of many nodes: V̂ and Δ, which are sums over samples, and the norm of the differences of the forces
ḡ.

Cost: processor time of an iteration of survey propagation, divided by the number of nodes and by the time of an
iteration of GAMP, both from the minimizers of the last iteration; the largest number of bytes that an iteration
allocates, divided by n L r times the number of nodes, at two numbers of samples.

Steps: with noise s = 0.3 on the scores, α = 1.5, surveys at 3 units of the Parisi parameter with constant and with
decreasing steps: the relative change of the weights per unit of the step in the last iteration, and the training loss
of GAMP from the weights at the end. Further surveys have a smaller Parisi parameter y, or a y that falls until the
weights come to rest, or GAMP begins from the mean of the last 30 weights.

Criterion: V̂ at the nodes that are used is within 3 % after 30 iterations; an iteration costs at most as much as one
iteration of GAMP for each node; bytes per sample, field and node grow by at most 10 % from the smaller to the larger
number of samples, so that memory is of order n. (Page "Survey propagation" of the manual.)
"""

import time
import tracemalloc
from unittest import mock

import numpy as np

import gamp_attention as ga
from gamp_attention._tools.quadrature import gauss_hermite, gaussian_points
from gamp_attention.extensions.train.survey_averages import average_fields, inner_nodes
from gamp_attention.gamp.step import GampState, gamp_step
from gamp_attention.problem.starts import several_starts
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import markdown_table

LAYER, STEP, UNITS, ITERATIONS = {"omega": 0.2, "sigma": 0.8}, 0.4, 1.5, (10, 30)
CASES = {  # fields: model, d, α, rules, rule of many nodes
    2: (ga.paper_model(**LAYER), 300, 0.7, (3, 4, 5), 15),
    3: (ga.attention_model(3, **LAYER), 200, 0.5, (3,), 7),
    4: (ga.attention_model(2, 2, 2, **LAYER), 150, 1.5, (16, 32, 64), 1024),
}
QUICK_CASES = {2: (ga.paper_model(**LAYER), 60, 0.7, (3, 4), 15)}
NOISE, NOISY, INSTANCES, NOISY_UNITS = 0.3, (200, 1.5), 10, 3.0
AT_REST, FALL, MEAN = 0.01, 0.95, 30  # change at rest; factor of y in an iteration above it; weights in the mean
SCHEDULES = {  # number of iterations, and step and factor of y in iteration t, after a change of the weights
    "0.4, 45 iterations": (45, lambda t, change: (0.4, 1.0)),
    "0.2, 90 iterations": (90, lambda t, change: (0.2, 1.0)),
    "0.4, from iteration 20 on 8/t, 90 iterations": (90, lambda t, change: (0.4 if t < 20 else 8 / t, 1.0)),
    "0.4, 90 iterations": (90, lambda t, change: (0.4, 1.0)),
    "0.4, 90 iterations at 1.5 units": (90, lambda t, change: (0.4, 0.5 if t == 0 else 1.0)),
    "0.4, 90 iterations at 0.6 units": (90, lambda t, change: (0.4, 0.2 if t == 0 else 1.0)),
    "0.4, 120 iterations; from iteration 45 on y falls by 5 % until the change is below 0.01": (
        120, lambda t, change: (0.4, FALL if t >= 45 and change > AT_REST else 1.0),
    ),
}  # fmt: skip
AVERAGED = "0.4, 90 iterations"  # schedule after which GAMP also begins from the mean of the last weights
REPEATS, LARGER = 3, 4  # timed iterations; factor between both numbers of samples


def build_rule(fields, size):
    """Return nodes and logarithms of weights: a product of Gauss and Hermite, or quasi-random for four fields."""
    if fields > 3:
        points = gaussian_points(size, fields, np.random.default_rng(11))
        return np.ascontiguousarray(points), np.full(size, -np.log(size))
    x, w = gauss_hermite(size)
    nodes = np.stack(np.meshgrid(*fields * [x], indexing="ij"), axis=-1).reshape(-1, fields)
    logs = np.stack(np.meshgrid(*fields * [np.log(w / w.sum())], indexing="ij"), axis=-1).reshape(-1, fields)
    return np.ascontiguousarray(nodes), np.ascontiguousarray(logs.sum(axis=1))


def average_with(rule, arguments):
    """Return the averages over the inner field with a rule."""
    with mock.patch.dict(average_fields.__globals__, inner_nodes=lambda _: rule):
        return average_fields(*arguments)[0]


def draw_start(data, seed=0):
    """Return random weights."""
    return several_starts(data, "random", 1, seed, "exact")[0][1]


def measure_nodes(fields, case):
    """Return rows of errors of the averages: rule, iterations, errors of V̂, Δ and ḡ."""
    model, d, alpha, rules, many = case
    data = ga.sample(model, d, alpha, seed=0)
    state, unit = ga.initial_survey(data, "exact", draw_start(data))
    rows = []
    for t in range(1, max(ITERATIONS) + 1):
        before, (state, report) = state, ga.survey_step(data, "exact", state, STEP, UNITS * unit)
        if t in ITERATIONS:
            params = data.terms("exact").params
            arguments = data.loss, params, report.omega, before.V, before.U, UNITS * unit
            wanted = average_with(build_rule(fields, many), arguments)
            for size in rules:
                rule = build_rule(fields, size)
                seen = average_with(rule, arguments)
                errors = [
                    float(np.trace(seen.response.mean(axis=(0, 1))) / np.trace(wanted.response.mean(axis=(0, 1))) - 1),
                    float(np.trace(seen.spread.mean(axis=(0, 1))) / np.trace(wanted.spread.mean(axis=(0, 1))) - 1),
                    float(np.linalg.norm(seen.g - wanted.g) / np.linalg.norm(wanted.g)),
                ]
                used = len(rule[0]) == len(inner_nodes(fields)[0])
                rows.append(
                    {"fields": fields, "size": size, "nodes": len(rule[0]), "used": used, "t": t, "errors": errors}
                )
    return rows


def time_best(task):
    """Return the smallest processor time of some calls."""
    seconds = []
    for _ in range(REPEATS):
        began = time.process_time()
        task()
        seconds.append(time.process_time() - began)
    return min(seconds)


def measure_cost(fields, case):
    """Return times of an iteration of both algorithms, and bytes per sample, field and node at two sizes."""
    model, d, alpha, *_ = case
    numbers = {"nodes": len(inner_nodes(fields)[0]), "bytes": []}
    for factor in (1, LARGER):
        data = ga.sample(model, d, factor * alpha, seed=0)
        Q = draw_start(data)
        state, unit = ga.initial_survey(data, "exact", Q)
        plain = ga.initial_state(data, Q)
        for _ in range(5):
            state, _ = ga.survey_step(data, "exact", state, STEP, UNITS * unit)
            plain, _ = gamp_step(data, "exact", plain, STEP)
        tracemalloc.start()
        ga.survey_step(data, "exact", state, STEP, UNITS * unit)
        numbers["bytes"].append(tracemalloc.get_traced_memory()[1] / data.n_samples / fields / numbers["nodes"])
        tracemalloc.stop()
        if factor == 1:
            held = GampState(plain.Q, plain.V, plain.D, plain.z)
            numbers["seconds"] = [
                time_best(lambda d=data, s=state, y=UNITS * unit: ga.survey_step(d, "exact", s, STEP, y)),
                time_best(lambda d=data, s=held: gamp_step(d, "exact", s, STEP, hold=True)),
            ]
    return numbers


def measure_steps(instances):
    """Return for each schedule the relative changes in the last iteration, final y, and losses, for all instances."""
    names = *SCHEDULES, f"{AVERAGED}, mean of the last {MEAN}"
    rows = {name: {"change": [], "units": [], "loss": []} for name in names}
    for seed in range(instances):
        data = ga.sample(ga.paper_model(**LAYER, score_noise=NOISE), *NOISY, seed=seed)
        Q = draw_start(data, seed)
        for name, (n_iter, schedule) in SCHEDULES.items():
            state, unit = ga.initial_survey(data, "exact", Q)
            change, units, weights = np.inf, NOISY_UNITS, []
            for t in range(n_iter):
                beta, factor = schedule(t, change)
                units *= factor
                before, (state, _) = state, ga.survey_step(data, "exact", state, beta, units * unit)
                change = float(np.linalg.norm(state.Q - before.Q) / np.linalg.norm(state.Q) / beta)
                weights.append(state.Q)
            ends = {name: state.Q}
            if name == AVERAGED:
                ends[names[-1]] = np.mean(weights[-MEAN:], axis=0)
            for end, last in ends.items():
                row = {"change": change, "units": units, "loss": ga.run_gamp(data, last).train_loss}
                for key, value in row.items():
                    rows[end][key].append(value)
    return rows


def format_nodes(rows):
    """Return the table of errors of the averages; rules that are used are bold."""
    lines = []
    for fields, nodes in dict.fromkeys((row["fields"], row["nodes"]) for row in rows):
        same = [row for row in rows if (row["fields"], row["nodes"]) == (fields, nodes)]
        size = same[0]["size"]
        name = f"{fields}, " + (f"{nodes}" if fields > 3 else " × ".join(fields * [str(size)]))
        cells = [", ".join(f"{100 * e:.1f} %" for e in row["errors"]) for row in same]
        lines.append([f"**{name}**" if same[0]["used"] else name, *cells])
    return markdown_table(["fields, nodes", *(f"after {t} iterations: V̂, Δ, ḡ" for t in ITERATIONS)], lines)


def format_cost(costs):
    """Return the table of times and memory."""
    lines = [
        [
            fields, row["nodes"], f"{row['seconds'][0] / row['seconds'][1]:.1f}",
            f"{row['seconds'][0] / row['seconds'][1] / row['nodes']:.2f}", ", ".join(f"{b:.1f}" for b in row["bytes"]),
        ]
        for fields, row in costs.items()
    ]  # fmt: skip
    heads = ["fields", "nodes", "time of an iteration in iterations of GAMP", "the same per node",
             f"bytes per sample, field and node; the same for {LARGER} n"]  # fmt: skip
    return markdown_table(heads, lines)


def format_steps(rows):
    """Return the table of schedules of the step; losses relative to the first schedule."""
    first, lines = np.array(next(iter(rows.values()))["loss"]), []
    for name, row in rows.items():
        logs = np.log(np.array(row["loss"]) / first)
        error = logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.inf
        at_rest = f"{np.sum(np.array(row['change']) <= AT_REST)} of {len(logs)}"
        changed = f"{np.median(row['change']):.2g}"
        lines.append([name, changed, at_rest, f"{np.median(row['units']):.2g}", plus_minus(logs.mean(), error)])
    heads = ["steps", "relative change of the weights per unit of the step", f"changes of at most {AT_REST}",
             "last y, in units", "mean ln(loss / loss of the first)"]  # fmt: skip
    return markdown_table(heads, lines)


def main():
    only = {"action": "store_true", "help": "only run the steps under noise again, with stored nodes and costs"}
    args = options(__doc__, stored=True, steps=only)
    verdict = Verdict("survey_settings", args)
    cases = QUICK_CASES if args.quick else CASES
    if args.stored or args.steps:
        nodes, costs, steps = (verdict.stored()[name] for name in ("nodes", "costs", "steps"))
    else:
        nodes = [row for fields, case in cases.items() for row in measure_nodes(fields, case)]
        costs = {fields: measure_cost(fields, case) for fields, case in cases.items()}
    if not args.stored:
        steps = measure_steps(2 if args.quick else INSTANCES)
    worst = max(abs(row["errors"][0]) for row in nodes if row["used"] and row["t"] == max(ITERATIONS))
    verdict.check(worst <= 0.03, f"largest error of V̂ after {max(ITERATIONS)} iterations: {100 * worst:.1f} %")
    per_node = max(row["seconds"][0] / row["seconds"][1] / row["nodes"] for row in costs.values())
    verdict.check(per_node <= 1, f"largest time per node: {per_node:.2f} iterations of GAMP, at most 1")
    growth = max(row["bytes"][1] / row["bytes"][0] - 1 for row in costs.values())
    verdict.check(
        growth <= 0.1, f"bytes per sample, field and node change by at most {100 * growth:.1f} % at {LARGER} n"
    )
    verdict.write_table(format_nodes(nodes))
    verdict.write_table(format_cost(costs), "_cost.md")
    verdict.write_table(format_steps(steps), "_steps.md")
    verdict.end({"nodes": nodes, "costs": costs, "steps": steps})


if __name__ == "__main__":
    main()
