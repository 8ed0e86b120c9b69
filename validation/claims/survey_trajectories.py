"""Survey propagation at a fixed Parisi parameter follows its state evolution, also where minima jump.

Method: each run of `survey_step` is compared with the prediction for the teacher of its instance
(`Dataset.instance_model`) and the overlaps of its start. Runs of a model start from the same V and U. The weak starts
are small random weights whose cosine with the teacher is 0.3; the jumps of minima at the nodes of the inner field are
most of the response there. Without any cosine, θ of a run and of a prediction are noise of order d^(−1/2) and
n_paths^(−1/2), which grows to order one within 10 iterations.

Criterion: the mean over seeds differs from state evolution by at most 4 standard errors (of both) in q, θ, V, U and m
at every iteration. (State evolution page of the manual.)

From the teacher's weights, m and its prediction start from an overlap of random sign and of order d^(−1/2). If the
signs of the teacher and of its weights change, m of the run and of the prediction change their signs, so that the mean
difference is zero for every d. With `order_of_m` the script measures whether the differences themselves decrease as
d^(−1/2), and whether the prediction of |m| is biased: the mean of the differences times the sign of m at the start.

Spectral weights are computed from the samples. The script also compares runs of survey propagation and of GAMP from the
first spectral direction of each instance with `trajectory(..., "spectral")`: GAMP with and without damping, and GAMP
whose samples keep their minima after 20 iterations, as in runs. These runs have no known overlaps: the prediction is
the same for all instances, and contains the overlaps of the start. The sign of a run is such that θ starts positive.
Criterion: as above, for the means over instances. In addition, the prediction for weights that do not depend on the
samples, with the same overlaps, differs from the runs at d = 4000 by more than 4 standard errors after one iteration,
so that the comparison finds a missing memory.
"""

from functools import cache, partial
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, WORDS, draw_legend
from gamp_attention.problem.risk import overlaps
from gamp_attention.problem.starts import initial_weights, several_starts
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table, round_curve

STEP, N_ITER = 0.4, 12
KEYS = ("q", "theta", "V", "U", "m")
DRAWN = KEYS[:4]  # overlaps in the picture
TITLES = WORDS | {"U": "variance in a cluster $U$"}
ATTENTION = ga.paper_model(omega=0.2, sigma=0.8)
RUNS = {  # model, α, Parisi parameter, start
    "attention, weak": (ATTENTION, 1.0, 300.0, "weak"),
    "attention, semantic": (ATTENTION, 1.0, 300.0, "semantic"),
    "phase retrieval, weak": (ga.glm_model(ga.PhaseRetrievalLoss()), 3.0, 3.0, "weak"),
}
WEAK = {500: 24, 1000: 24, 2000: 12, 4000: 12}
SIZES = {  # number of instances, by d
    "attention, weak": WEAK,
    "attention, semantic": {500: 200, 1000: 100, 2000: 50, 4000: 24},
    "phase retrieval, weak": WEAK,
}


class SpectralRun(NamedTuple):
    """Method and settings of runs from spectral starts, and the size of their prediction."""

    method: str  # "survey" or "gamp"
    step: float  # β
    n_iter: int
    n_paths: int
    n_replicas: int
    hold_after: int | None = None


SPECTRAL_RUNS = {
    "survey, spectral": SpectralRun("survey", STEP, N_ITER, 32768, 8),
    "GAMP, spectral": SpectralRun("gamp", STEP, N_ITER, 8192, 4),
    "undamped GAMP, spectral": SpectralRun("gamp", 1.0, 4, 8192, 4),  # later iterations amplify deviations in m
    "GAMP with kept minima, spectral": SpectralRun("gamp", 0.5, 30, 8192, 4, hold_after=20),
}
SPECTRAL = {500: 24, 1000: 24, 2000: 24, 4000: 12}  # number of instances, by d
DRAWN_SPECTRAL = ("survey, spectral", "GAMP, spectral")
N_CURVES = 12  # number of instances whose overlaps are drawn, and whose standard errors of the prediction are stored


def build_start(data, init, seed):
    """Return the teacher's weights, or small weights with cosine 0.3 with them."""
    if init == "semantic":
        return initial_weights(data, init, seed)
    return 0.3 * 0.1 * data.Q_star + np.sqrt(1 - 0.3**2) * initial_weights(data, "random", seed)


def first_entries(overlaps, U):
    """Return the entries of q, θ, V, U and m of the first token, on the last axis."""
    first = [x[..., 0, 0, 0] for x in (overlaps.q, overlaps.theta, overlaps.V, U)]
    return np.stack([*first, overlaps.m[..., 0, 0]], axis=-1)


def compare_instance(run, first, d, seed):
    """Return measured and predicted overlaps and standard errors of the prediction, each (T + 1, 5)."""
    model, alpha, parisi, init = run
    data = ga.sample(model, d, alpha, np.random.default_rng([d, seed]))
    Q = build_start(data, init, seed)
    state = ga.SurveyState(Q, first.V, first.U, np.zeros((data.n_samples, *first.D.shape[1:])))
    return follow_both(data, state, parisi, 1000 * d + seed)


def follow_both(data, state, parisi, seed):
    """Return measured and predicted overlaps, errors of the prediction and its jumps, from a state of a survey."""
    path = ga.trajectory(
        data.instance_model(), data.alpha, overlaps(data, state.Q, state.V), ga.Survey(parisi=parisi, damping=STEP),
        n_iter=N_ITER, n_paths=1024, n_replicas=2, seed=seed,
    )  # fmt: skip
    measured = run_steps(data, state, N_ITER, partial(ga.survey_step, damping=STEP, parisi=parisi))
    errors = first_entries(path.error, path.U_error)
    return measured, first_entries(path, path.U), errors, float(path.jump_share.min())


def run_steps(data, state, n_iter, *steps):
    """Return the overlaps (T + 1, 5) at every iteration; iteration t is step t, or the last of the steps."""
    measured = []
    for t in range(n_iter + 1):
        U = state.U if isinstance(state, ga.SurveyState) else np.zeros_like(state.V)
        measured.append(first_entries(overlaps(data, state.Q, state.V), U))
        if t < n_iter:
            state, _ = steps[min(t, len(steps) - 1)](data, "asymptotic", state)
    return np.array(measured)


def describe_spectral(name, d, seed):
    """Return the row of a run from the first spectral direction, with θ and m such that θ starts positive."""
    run, (model, alpha, parisi, _) = SPECTRAL_RUNS[name], RUNS["attention, weak"]
    data = ga.sample(model, d, alpha, np.random.default_rng([d, 100 + seed]))
    Q = several_starts(data, "spectral", 1, seed, "asymptotic")[0][1]
    Q *= np.sign(np.sum(Q * data.Q_star))
    if run.method == "survey":
        state, steps = ga.initial_survey(data, "asymptotic", Q)[0], [partial(ga.survey_step, parisi=parisi)]
    else:
        n_global = run.n_iter if run.hold_after is None else run.hold_after
        state, steps = ga.initial_state(data, Q), [ga.gamp_step] * n_global + [partial(ga.gamp_step, hold=True)]
    measured = run_steps(data, state, run.n_iter, *(partial(step, damping=run.step) for step in steps))
    rows = [round_curve(line, 4) for line in measured]
    return [{"key": f"{name} {d} {seed}", "name": name, "d": d, "seed": seed, "measured": rows}]


def predict_spectral(name, quick, independent=False):
    """Return the row of the prediction for a run from spectral starts, or for independent weights with its overlaps."""
    run, (model, alpha, parisi, _) = SPECTRAL_RUNS[name], RUNS["attention, weak"]
    n_paths, n_replicas = (4096, 2) if quick else (run.n_paths, run.n_replicas)
    method = ga.Survey(parisi, run.step) if run.method == "survey" else ga.MessagePassing(run.step, run.hold_after)
    options = {"method": method, "n_paths": n_paths, "n_replicas": n_replicas}
    path = ga.trajectory(model, alpha, "spectral", **options, n_iter=1 if independent else run.n_iter)
    if independent:
        start = ga.Overlaps(path.q[0], path.m[0], path.theta[0], np.full_like(path.V[0], np.nan))
        path = ga.trajectory(model, alpha, start, **options, n_iter=1)
    none = np.zeros_like(path.V)
    U, U_error = (path.U, path.U_error) if run.method == "survey" else (none, none)
    kind = "independent" if independent else "predicted"
    arrays = {"predicted": first_entries(path, U), "errors": first_entries(path.error, U_error)}
    rounded = {part: [round_curve(line, 5) for line in values] for part, values in arrays.items()}
    return [{"key": f"{name}, {kind}", "name": f"{name}, {kind}", "d": 0} | rounded]


def compare_spectral(rows, name, d, kind="predicted"):
    """Return the deviations (T + 1, 5) of the means over instances from a prediction, in standard errors."""
    predicted, errors = (list_arrays(rows, f"{name}, {kind}", 0, part)[0] for part in ("predicted", "errors"))
    measured = list_arrays(rows, name, d, "measured")[:, : len(predicted)]
    both = np.sqrt(measured.var(axis=0, ddof=1) / len(measured) + errors**2)
    # V of GAMP and U at the start do not depend on the samples, up to the rounding of the rows
    return np.abs(measured.mean(axis=0) - predicted) / np.where(both > 1e-6 * np.abs(predicted), both, np.inf)


@cache
def build_first(name):
    """Return the first state of all runs of a model, and the unit of the Parisi parameter."""
    model, alpha, _, init = RUNS[name]
    data = ga.sample(model, 1000, alpha, 0)
    return ga.initial_survey(data, "asymptotic", build_start(data, init, 0))


def describe_instance(name, d, seed):
    """Return the row of an instance: differences from the prediction; its errors and overlaps for some instances."""
    measured, predicted, errors, share = compare_instance(RUNS[name], build_first(name)[0], d, seed)
    key = f"{name} {d} {seed}"
    row = {"key": key, "name": name, "d": d, "seed": seed, "jump_share": share, "first_m": float(predicted[0, -1])}
    arrays = {"gaps": (measured - predicted, 3)}
    if seed < N_CURVES:
        arrays |= {"errors": (errors, 2), "measured": (measured, 4)}
    return [row | {part: [round_curve(line, digits) for line in values] for part, (values, digits) in arrays.items()}]


def list_arrays(rows, name, d, part):
    """Return an array of the rows of a model and a d, with an entry for each instance."""
    return np.array([row[part] for row in rows if (row["name"], row["d"]) == (name, d) and part in row])


def compare_means(rows, name, d):
    """Return the largest deviation of the mean over instances by key, in standard errors, and the number of them."""
    gaps, errors = (list_arrays(rows, name, d, part) for part in ("gaps", "errors"))
    deviations = largest_deviations(gaps, errors)
    return {f"{key}, d={d}": value for key, value in zip(KEYS, deviations, strict=True)}, len(gaps)


def largest_deviations(gaps, errors):
    """Return the largest deviation over iterations of the mean over instances, in standard errors, (5,)."""
    both = np.sqrt((gaps.var(axis=0, ddof=1) + (errors**2).mean(axis=0)) / len(gaps))
    return (np.abs(gaps.mean(axis=0)) / np.where(both > 1e-9, both, np.inf)).max(axis=0)


def order_of_m(rows, name, d):
    """Return, times √d, the standard deviation of differences in m, and the mean of signed differences, with error.

    Both are means over the iterations from the third on.
    """
    gaps, first = (list_arrays(rows, name, d, part) for part in ("gaps", "first_m"))
    gaps = np.sqrt(d) * gaps[:, 3:, KEYS.index("m")]
    signed = np.sign(first) * gaps.mean(axis=1)
    return {
        "standard_deviation": float(gaps.std(axis=0, ddof=1).mean()),
        "signed_mean": float(signed.mean()),
        "error": float(signed.std(ddof=1) / np.sqrt(len(signed))),
        "blocks": count_blocks(rows, name, d),
    }


def count_blocks(rows, name, d, size=12):
    """Return how many blocks of 12 instances deviate in m by more than 4 standard errors, and the number of blocks."""
    gaps, errors = (list_arrays(rows, name, d, part) for part in ("gaps", "errors"))
    blocks = [gaps[k : k + size] for k in range(0, len(gaps) - size + 1, size)]
    return [int(sum(largest_deviations(block, errors)[KEYS.index("m")] > 4 for block in blocks)), len(blocks)]


def main():
    args = options(__doc__, draw=True, stored=True)
    verdict = Verdict("survey_trajectories", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    sizes = {name: {500: 4} for name in RUNS} if args.quick else SIZES
    plan = {
        f"{name} {d} {seed}": partial(describe_instance, name, d, seed)
        for name, counts in sizes.items() for d, count in counts.items() for seed in range(count)
    }  # fmt: skip
    spectral = {500: 4} if args.quick else SPECTRAL
    for name in SPECTRAL_RUNS:
        plan |= {
            f"{name} {d} {seed}": partial(describe_spectral, name, d, seed)
            for d, count in spectral.items() for seed in range(count)
        }  # fmt: skip
        plan[f"{name}, predicted"] = partial(predict_spectral, name, args.quick)
    for name in DRAWN_SPECTRAL:
        plan[f"{name}, independent"] = partial(predict_spectral, name, args.quick, independent=True)
    rows, numbers, lines = verdict.complete_rows(plan), {}, []
    for name, run in RUNS.items():
        worst, median, jumps, counts = {}, [], [], {}
        for d in sorted({row["d"] for row in rows if row["name"] == name}):
            deviations, counts[d] = compare_means(rows, name, d)
            worst |= deviations
            measured, gaps = (list_arrays(rows, name, d, part) for part in ("measured", "gaps"))
            predicted = measured - gaps[: len(measured)]
            scale = np.abs(predicted).max(axis=(0, 1))
            relative = gaps[..., scale > 0] / scale[scale > 0]  # m is zero without positions
            median.append(np.median(np.sqrt(np.mean(relative**2, axis=(1, 2)))))
            jumps += list(list_arrays(rows, name, d, "jump_share"))
            lines.append([name, d, counts[d], *(f"{worst[f'{key}, d={d}']:.1f}" for key in KEYS)])
        numbers[name] = {
            "deviations": worst,
            "deviation_of_one_instance": median,
            "jump_share": min(jumps),
            "parisi_in_units": run[2] / build_first(name)[1],
            "seeds": counts,
            "curves": build_curves(measured, predicted),  # of the largest d
        }
        if run[3] == "semantic":
            numbers[name]["m"] = {d: order_of_m(rows, name, d) for d in counts}
            print(f"{name}, order of m:", numbers[name]["m"])
        verdict.check(max(worst.values()) <= 4, f"{name}: q, θ, V, U, m within 4 standard errors at all iterations")
    for name in SPECTRAL_RUNS:
        worst, counts = {}, {}
        for d in sorted({row["d"] for row in rows if row["name"] == name}):
            largest = compare_spectral(rows, name, d).max(axis=0)
            measured = list_arrays(rows, name, d, "measured")
            counts[d] = len(measured)
            worst |= {f"{key}, d={d}": float(value) for key, value in zip(KEYS, largest, strict=True)}
            shown = [f"{value:.1f}" for value in largest]
            shown[KEYS.index("U")] = shown[KEYS.index("U")] if SPECTRAL_RUNS[name].method == "survey" else "–"
            lines.append([name, d, counts[d], *shown])
        numbers[name] = {"deviations": worst, "seeds": counts}
        if name in DRAWN_SPECTRAL:
            predicted = list_arrays(rows, f"{name}, predicted", 0, "predicted")
            numbers[name]["curves"] = build_curves(measured, predicted)
            numbers[name]["independent"] = compare_independent(rows, name, d)
            z = numbers[name]["independent"]["theta"][-1]
            claim = f"{name}, d = {d}: θ after one iteration differs from the prediction for independent weights"
            if not args.quick:
                verdict.check(z > 4, f"{claim} ({z:.1f} standard errors)")
        verdict.check(max(worst.values()) <= 4, f"{name}: q, θ, V, U, m within 4 standard errors at all iterations")
    verdict.write_table(markdown_table(["run", "d", "instances", "q", "θ", "V", "U", "m"], lines))
    verdict.end(numbers, draw)


def compare_independent(rows, name, d):
    """Return measured mean, prediction, prediction for independent weights and its deviation at iteration 1, by key."""
    measured = list_arrays(rows, name, d, "measured")[:, 1].mean(axis=0)
    kinds = [list_arrays(rows, f"{name}, {kind}", 0, "predicted")[0, 1] for kind in ("predicted", "independent")]
    deviations = compare_spectral(rows, name, d, "independent")[1]
    return {
        key: [float(values[k]) for values in (measured, *kinds, deviations)]
        for k, key in enumerate(KEYS) if key != "m"
    }  # fmt: skip


def build_curves(measured, predicted):
    """Return measured and predicted overlaps of each seed by key, with four digits; θ starts positive."""
    signs = np.ones(predicted.shape[::2])
    for name in ("theta", "m"):
        signs[:, KEYS.index(name)] = np.where(predicted[:, 0, KEYS.index(name)] < 0, -1.0, 1.0)
    return {
        key: {
            "measured": [round_curve(curve, 4) for curve in (signs[:, None] * measured)[..., k]],
            "predicted": [round_curve(curve, 4) for curve in (signs[:, None] * predicted)[..., k]],
        }
        for k, key in enumerate(KEYS)
    }


def draw(numbers, path):
    """Draw q, θ, V and U of each seed at the largest d with its prediction."""
    names = *RUNS, *DRAWN_SPECTRAL
    with figure(path, len(names), len(DRAWN), (9.8, 2.7 * len(names))) as axes:
        for row, name in zip(axes, names, strict=True):
            color = COLORS["semantic" if "semantic" in name else "random"]
            d = max(map(int, numbers[name]["seeds"]))
            start = {"weak": "weak", "semantic": "teacher", "spectral": "spectral"}[name.split(", ")[-1]]
            words = f"{'GAMP' if 'GAMP' in name else 'survey propagation'}, d = {d}, {start} start"
            for axis, key in zip(row, DRAWN, strict=True):
                curves = numbers[name]["curves"][key]
                predicted, measured = (np.array(curves[part]).T for part in ("predicted", "measured"))
                if not predicted.any():  # U of GAMP
                    axis.axis("off")
                    continue
                lines = axis.plot(predicted, color=DARK, lw=1)
                dots = axis.plot(measured, "o", ms=3, color=color, alpha=0.7)
                lines[0].set_label("state evolution, one line for each instance or for all")
                dots[0].set_label(words)
                axis.set(title=TITLES[key], xlabel="iteration", xticks=range(0, N_ITER + 1, 4))
            row[0].set_ylabel(f"{name} start")
        draw_legend(*axes[:, 0], columns=3)


if __name__ == "__main__":
    main()
