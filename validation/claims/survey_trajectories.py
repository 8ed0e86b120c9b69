"""Survey propagation at a fixed Parisi parameter follows its state evolution, also where minima jump.

Method: each run of `survey_step` is compared with the prediction for the teacher of its instance
(`Dataset.instance_model`) and the overlaps of its start. Runs of a model start from the same V and U. The weak starts
are small random weights whose cosine with the teacher is 0.3; the jumps of minima at the nodes of the inner field are
most of the response there. Without any cosine, θ of a run and of a prediction are noise of order d^(−1/2) and
n_paths^(−1/2), which grows to order one within 10 iterations.

Criterion: the mean over seeds differs from state evolution by at most 4 standard errors (of both) in q, θ, V, U and m
at every iteration. (State evolution page of the manual.)
"""

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.data import initial_weights, overlaps
from gamp_attention.experiments import COLORS, DARK, WORDS, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.tables import round_curve

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
    path = ga.trajectory(
        data.instance_model(), data.alpha, overlaps(data, Q, first.V), method="survey", parisi=parisi, damping=STEP,
        n_iter=N_ITER, n_paths=1024, n_replicas=2, seed=1000 * d + seed,
    )  # fmt: skip
    measured = [first_entries(overlaps(data, Q, state.V), state.U)]
    for _ in range(N_ITER):
        state, _ = ga.survey_step(data, "asymptotic", state, STEP, parisi)
        measured.append(first_entries(overlaps(data, state.Q, state.V), state.U))
    errors = first_entries(path.error, path.U_error)
    return np.array(measured), first_entries(path, path.U), errors, float(path.jump_share.min())


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("survey_trajectories", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    sizes = {500: 4} if args.quick else {500: 12, 1000: 12, 2000: 12}
    numbers = {}
    for name, run in RUNS.items():
        data = ga.sample(run[0], 1000, run[1], 0)
        first, unit = ga.initial_survey(data, "asymptotic", build_start(data, run[3], 0))
        worst, median, jumps = {}, [], []
        for d, seeds in sizes.items():
            bar = tqdm(range(seeds), desc=f"{name} d={d}", disable=None, leave=False)
            measured, predicted, errors, share = map(
                np.array, zip(*[compare_instance(run, first, d, seed) for seed in bar], strict=True)
            )
            gaps = measured - predicted
            both = np.sqrt((gaps.var(axis=0, ddof=1) + (errors**2).mean(axis=0)) / seeds)
            deviations = (np.abs(gaps.mean(axis=0)) / np.where(both > 1e-9, both, np.inf)).max(axis=0)
            worst |= {f"{key}, d={d}": value for key, value in zip(KEYS, deviations, strict=True)}
            scale = np.abs(predicted).max(axis=(0, 1))
            median.append(np.median(np.sqrt(np.mean((gaps / scale) ** 2, axis=(1, 2)))))
            jumps.append(share.min())
        print(f"{name}: largest deviation in standard errors: " + ", ".join(f"{k}: {z:.1f}" for k, z in worst.items()))
        numbers[name] = {
            "deviations": worst,
            "deviation_of_one_instance": median,
            "jump_share": min(jumps),
            "parisi_in_units": run[2] / unit,
            "seeds": sizes,
            "curves": build_curves(measured, predicted),  # of the largest d
        }
        verdict.check(max(worst.values()) <= 4, f"{name}: q, θ, V, U, m within 4 standard errors at all iterations")
    verdict.end(numbers, draw)


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
    with figure(path, len(RUNS), len(DRAWN), (9.8, 2.7 * len(RUNS))) as axes:
        for row, name in zip(axes, RUNS, strict=True):
            color = COLORS["semantic" if "semantic" in name else "random"]
            d = max(map(int, numbers[name]["seeds"]))
            words = f"survey propagation, d = {d}, {'teacher' if 'semantic' in name else 'weak'} start"
            for axis, key in zip(row, DRAWN, strict=True):
                curves = numbers[name]["curves"][key]
                predicted, measured = (np.array(curves[part]).T for part in ("predicted", "measured"))
                lines = axis.plot(predicted, color=DARK, lw=1)
                dots = axis.plot(measured, "o", ms=3, color=color, alpha=0.7)
                lines[0].set_label("state evolution, one line for each instance")
                dots[0].set_label(words)
                axis.set(title=TITLES[key], xlabel="iteration", xticks=range(0, N_ITER + 1, 4))
            row[0].set_ylabel(f"{name} start")
        draw_legend(*axes[:, 0], columns=3)


if __name__ == "__main__":
    main()
