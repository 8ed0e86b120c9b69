"""The Parisi parameter from the complexity: a free energy along surveys against fixed multiples of a unit.

The complexity Σ = y² ∂F/∂y is the logarithm of the number of clusters of minima, divided by d. It is computed from the
averages of `survey_step`, without further passes. With ḡ, the mean Moreau envelope ⟨M⟩ and the potential
log E exp(−yM) of each sample, and for the ridge with K_i = λ + A_i and the spread Δ_i of its force,

    Σ = (1/d) Σ_μ [y ⟨M⟩_μ + log E_u exp(−y M_μ) + ½ y² Σ_l ḡ_lᵀ U_l ḡ_l]
        − (1/2d) Σ_i [log det(1 − y K_i⁻¹ Δ_i) + y tr K_i⁻¹ Δ_i].

It follows from the Bethe free energy of y/β replicas at the inverse temperature β → ∞, in which the terms of penalty
and loss are stationary in all averages, so that only the explicit derivative by y remains. A loss without clusters
(U = 0) has Σ = 0. At the ground state Σ vanishes; a smaller y describes more and higher minima.

Formula: for the loss (|z| − y)² at α = 3 (`survey_fixed_points`), samples are drawn from the solution of one step of
replica symmetry breaking, and their complexity is compared with the derivative of its free energy. The samples are
Sobol points in eight independent scramblings, which give the standard error. The averages over the inner field are
computed with the nodes of `survey_step`, with half and with a quarter of their distance, for the same samples. The
check uses a quarter, for which the nodes have no relevant error. The other two columns show the error of the nodes. At
y = 1.3 the nodes of `survey_step` differ from theory by 4.2 standard errors. Undamped surveys at d = 500 are compared
with the same value, in the mean over their last 20 iterations.

Choices of y, each for a single survey from the same random start with at most 45 iterations, followed by GAMP to zero
gradient: fixed multiples of the unit of `initial_survey`; "followed": y begins at 1.5 units and is
multiplied by e^{5Σ} after each iteration, at least by 0.9 and at most by 1.1, so that it approaches Σ = 0;
"vanishing" and "largest": surveys of 15 iterations at 0.5, 1, 2 and 4 units, whose last complexity, interpolated in
log y, vanishes or is largest; then a survey at this y. The time contains these surveys. A complexity without a change
of sign vanishes at the end of the ladder that is nearest to zero.

Criterion: the sampled complexity agrees with the derivative within 4 standard errors, which are at most 0.001, with
nodes whose error (the change from half to a quarter of the distance) is at most one standard error, and the mean of the
runs agrees within 4 standard errors. For each choice the losses are compared with the losses at 1.5 units by an
exact sign test, with Holm's correction. Which choice is lower is reported, with the number of results that are not
above the informed minimum. (Page "Survey propagation" of the manual.)
"""

import time
from functools import partial
from unittest import mock

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

import gamp_attention as ga
from gamp_attention.extensions.train.survey import COLLAPSED, N_ITER, STEP, SurveyState, spread_of
from gamp_attention.extensions.train.survey_averages import average_fields, inner_nodes
from gamp_attention.problem.starts import several_starts
from validation._tools.glasses import AmplitudeLoss, amplitude_model
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.sign_tests import LEVEL, adjust, sign_test
from validation._tools.tables import markdown_table
from validation.claims.survey_fixed_points import ALPHA, LAM, NOISE, PARISI, draw_labels
from validation.claims.survey_phase_retrieval import draw_amplitudes

EQUAL, AGREES, ACCURATE = 1e-6, 4.0, 1e-3  # see the criterion
SCRAMBLES, SAMPLES, RUN_DIM, RUNS, RUN_ITER, RUN_LAST, STEP_V = 8, 4096, 500, 4, 60, 20, 0.3
FIRST_SEED, LADDER, SHORT, GAIN, MOST, FIRST_UNITS = 3000, (0.5, 1.0, 2.0, 4.0), 15, 5.0, 0.1, 1.5
LAYER = {"omega": 0.2, "sigma": 0.8}
SETTINGS = {  # α, noise s (None: amplitudes without noise), d, number of instances
    "α = 0.7": (0.7, 0.0, 300, 24),
    "α = 1": (1.0, 0.0, 300, 8),
    "α = 1.5, s = 0.3": (1.5, 0.3, 300, 12),
    "amplitudes, α = 1.75": (1.75, None, 200, 8),
}
DIVISORS = {"sampled": 1, "fine": 2, "finest": 4}  # of the distance between the nodes, by name of the rows
CHOICES = ("0.75 units", "1.5 units", "3 units", "followed", "vanishing", "largest")
REFERENCE = "1.5 units"


def compute_complexity(data, state, report, y):
    """Return Σ of the state before an iteration, from the report of the iteration, for the ridge."""
    averages, one = report.averages, np.eye(data.rank)
    U = state.U if len(state.U) == data.n_tokens else np.broadcast_to(state.U, (data.n_tokens, *one.shape))
    quadratic = np.einsum("nla,lab,nlb->n", averages.g, U, averages.g)
    samples = y * averages.envelope + averages.potential + 0.5 * y**2 * quadratic
    A, delta = (np.einsum("li,lab->iab", data.spectra, each) for each in (report.V_hat, report.spread))
    gain = y * np.linalg.solve(A + data.penalty.strength * one, delta)
    weights = np.linalg.slogdet(one - gain)[1] + np.trace(gain, axis1=1, axis2=2)
    return float(samples.sum() / data.dim - 0.5 * weights.mean())


def solve_theory(y):
    """Return the solution of one step of replica symmetry breaking at y, without overlap with a signal."""
    begin = np.zeros((1, 1)), np.zeros((1, 1, 1)), np.full((1, 1, 1), 0.42)
    start = ga.Overlaps(np.full((1, 1, 1), 0.9), *begin)
    return ga.solve_broken(amplitude_model(np.sqrt(NOISE), LAM), ALPHA, start, parisi=y, rtol=1e-3)


def sample_complexity(y, n, name):
    """Return Σ of theory, and its mean over scrambled Sobol points from the solution with the standard error.

    The distance of the nodes of the inner field is divided by `DIVISORS[name]`.
    """
    se, (u, _) = solve_theory(y), inner_nodes(1)
    u = np.linspace(u[0], u[-1], DIVISORS[name] * (len(u) - 1) + 1)
    rule = u, -0.5 * u[:, 0] ** 2 - np.log(np.exp(-0.5 * u**2).sum())
    with mock.patch.dict(average_fields.__globals__, inner_nodes=lambda _: rule):
        values = [average_samples(se, y, points) for points in draw_points(n)]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    row = {"key": f"{name} {y:g}", "y": y, "theory": float(se.complexity[0])}
    return [row | {"value": float(np.mean(values)), "error": float(error)}]


def draw_points(n):
    """Return Gaussian points (n, 3) for each scrambling."""
    seeds = np.random.default_rng(5).spawn(SCRAMBLES)
    return [ndtri(qmc.Sobol(3, rng=rng).random(n)) for rng in seeds]


def average_samples(se, y, points):
    """Return Σ for fields and labels that follow from Gaussian points (n, 3)."""
    q0, q1 = (float(each) for each in se.levels[:, 0, 0, 0])
    V, U = np.reshape(se.overlaps.V, (1, 1, 1)), np.full((1, 1, 1), q1 - q0)
    labels = np.abs(points[:, 0]) + np.sqrt(NOISE) * points[:, 1]
    data = ga.LabelledDataset(np.zeros((len(points), 1)), labels, AmplitudeLoss(), lam=LAM)
    omega = np.sqrt(q0) * points[:, 2, None, None]
    averages, _ = average_fields(data.loss, data.terms("exact").params, omega, V, U, y, jumps=True)
    samples = y * averages.envelope + averages.potential + 0.5 * y**2 * U[0, 0, 0] * averages.g[:, 0, 0] ** 2
    gain = y * ALPHA * averages.spread.mean() / (LAM + ALPHA * averages.response.mean())
    return ALPHA * samples.mean() - 0.5 * (np.log(1 - gain) + gain)


def run_complexity(y, d, seed, n_iter):
    """Return Σ of a survey without damping of the weights, averaged over its last iterations."""
    rng = np.random.default_rng([d, seed, 3])
    tokens = rng.standard_normal((round(ALPHA * d), d))
    data = ga.LabelledDataset(tokens, draw_labels(rng, len(tokens)), AmplitudeLoss(), lam=LAM)
    state, _ = ga.initial_survey(data, "exact", 0.5 * rng.standard_normal((d, 1)))
    values = []
    for _ in range(n_iter):
        after, report = ga.survey_step(data, "exact", state, 1.0, y, jumps=True)
        values.append(compute_complexity(data, state, report, y))
        V, U = state.V + STEP_V * (report.W - state.V), state.U + STEP_V * (report.W_inner - state.U)
        state = SurveyState(after.Q, V, U, after.D, after.z)
    return [{"key": f"run {y:g} {seed}", "y": y, "value": float(np.mean(values[-RUN_LAST:]))}]


def survey(data, Q, y, n_iter, follow=False):
    """Return weights, last complexity and last y of a survey that ends if it collapses."""
    state, unit = ga.initial_survey(data, "exact", Q)
    y, jumps, complexity = y * unit, data.n_tokens * data.rank == 1, 0.0
    for _ in range(n_iter):
        before, (state, report) = state, ga.survey_step(data, "exact", state, STEP, y, jumps)
        complexity = compute_complexity(data, before, report, y)
        if follow:
            y *= np.exp(np.clip(GAIN * complexity, -MOST, MOST))
        if spread_of(data, state) < COLLAPSED:
            break
    return state.Q, complexity, y / unit


def choose_units(choice, data, Q):
    """Return the multiple of the unit for a survey from Q, by the complexities of short surveys or fixed."""
    if choice.endswith("units"):
        return float(choice.split()[0])
    logs, values = np.log(LADDER), np.array([survey(data, Q, each, SHORT)[1] for each in LADDER])
    if choice == "largest":
        return float(LADDER[int(np.argmax(values))])
    changes = np.flatnonzero((values[:-1] > 0) & (values[1:] <= 0))
    if not len(changes):
        return float(LADDER[int(np.argmin(np.abs(values)))])
    k = changes[0]
    fraction = values[k] / (values[k] - values[k + 1])
    return float(np.exp(logs[k] + fraction * (logs[k + 1] - logs[k])))


def run_choices(setting, seed):
    """Return a row for each choice of y: loss relative to the informed minimum, units and processor time."""
    alpha, s, d, _ = SETTINGS[setting]
    if s is None:
        data, teacher = draw_amplitudes(d, alpha, seed)
    else:
        data = ga.sample(ga.paper_model(**LAYER, score_noise=s), d, alpha, seed)
        teacher = data.Q_star
    Q = several_starts(data, "random", 1, seed)[0][1]
    informed, rows = ga.run_gamp(data, teacher).train_loss, []
    survey(data, Q, 1.0, 1)  # compiles
    for choice in CHOICES:
        began = time.process_time()
        follow = choice == "followed"
        units = FIRST_UNITS if follow else choose_units(choice, data, Q)
        weights, complexity, last = survey(data, Q, units, N_ITER, follow)
        run = ga.run_gamp(data, weights)
        seconds = time.process_time() - began
        row = {"choice": choice, "units": last, "complexity": complexity, "loss": run.train_loss / informed}
        rows.append({"key": f"{setting} {seed}", "setting": setting, "seconds": seconds} | row)
    return rows


def plan_rows(quick):
    """Return functions that compute the rows, by key; all settings in turn."""
    n = 512 if quick else SAMPLES
    points = PARISI[:1] if quick else PARISI
    plan = {f"{name} {y:g}": partial(sample_complexity, y, n, name) for name in DIVISORS for y in points}
    if not quick:
        runs = [(y, seed) for seed in range(RUNS) for y in PARISI]
        plan |= {f"run {y:g} {seed}": partial(run_complexity, y, RUN_DIM, seed, RUN_ITER) for y, seed in runs}
    sizes = {"α = 1": 2} if quick else {name: setting[3] for name, setting in SETTINGS.items()}
    for k in range(max(sizes.values())):
        seed = FIRST_SEED + k
        plan |= {f"{name} {seed}": partial(run_choices, name, seed) for name, size in sizes.items() if k < size}
    return plan


def check_formula(verdict, rows, quick):
    """Check sampled complexities and runs against theory, and return the numbers."""
    numbers, lines = {}, []
    for y in (row["y"] for row in rows if row["key"].startswith("sampled")):
        sampled = {name: next(row for row in rows if row["key"] == f"{name} {y:g}") for name in DIVISORS}
        theory, value, error = (sampled["finest"][name] for name in ("theory", "value", "error"))
        away, changed = abs(value - theory), abs(value - sampled["fine"]["value"])
        text = f"y = {y:.4g}: complexity {theory:.5f} by theory, {value:.5f} from samples, {away / error:.1f} errors"
        verdict.check(away <= AGREES * error and (quick or error <= ACCURATE), text)
        text = f"y = {y:.4g}: half the distance of nodes changes the samples by {changed / error:.2f} errors"
        verdict.check(quick or changed <= error, text)
        runs = np.array([each["value"] for each in rows if each["key"].startswith(f"run {y:g} ")])
        words = "–"
        if len(runs) > 1:
            spread = runs.std(ddof=1) / np.sqrt(len(runs))
            words = plus_minus(runs.mean(), spread)
            off = abs(runs.mean() - theory) / spread
            verdict.check(off <= AGREES, f"y = {y:.4g}: runs at d = {RUN_DIM} are {off:.1f} errors from theory")
        numbers[f"{y:.4g}"] = {
            "theory": theory,
            **{name: [row["value"], row["error"]] for name, row in sampled.items()},
            "runs": runs.tolist(),
        }
        cells = [plus_minus(row["value"], row["error"]) for row in sampled.values()]
        lines.append([f"{y:.4g}", f"{theory:.5f}", *cells[::-1], words])
    heads = ["y", "derivative of F by theory", "samples of the solution, a quarter of the distance of nodes"]
    heads += ["half the distance", "nodes of `survey_step`", f"runs, d = {RUN_DIM}"]
    verdict.write_table(markdown_table(heads, lines), "_formula.md")
    return numbers


def compare_choices(rows):
    """Return a line for each setting and choice, with sign tests against the reference."""
    tests, lines = [], []
    for setting in dict.fromkeys(row["setting"] for row in rows if "setting" in row):
        parts = {each: [row for row in rows if (row.get("setting"), row.get("choice")) == (setting, each)]
                 for each in CHOICES}  # fmt: skip
        losses = {each: np.array([row["loss"] for row in part]) for each, part in parts.items()}
        for choice, part in parts.items():
            ratios = losses[choice] / losses[REFERENCE]
            counts = int(np.sum(ratios < 1 - EQUAL)), int(np.sum(ratios > 1 + EQUAL))
            tests.append(1.0 if choice == REFERENCE else sign_test(*counts))
            logs = np.log(ratios)
            lines.append([
                f"{setting}, {len(ratios)}" if choice == CHOICES[0] else "", choice,
                f"{np.median([row['units'] for row in part]):.2g}", int(np.sum(losses[choice] <= 1 + EQUAL)),
                "–" if choice == REFERENCE else f"{counts[0]}, {len(ratios) - sum(counts)}, {counts[1]}",
                "–" if choice == REFERENCE else plus_minus(logs.mean(), logs.std(ddof=1) / np.sqrt(len(logs))),
                f"{np.median([row['seconds'] for row in part]):.2f}",
            ])  # fmt: skip
    others = [k for k, line in enumerate(lines) if line[1] != REFERENCE]
    adjusted = adjust(np.array([tests[k] for k in others]))
    for k, p in zip(others, adjusted, strict=True):
        lines[k].insert(6, f"{p:.2g}")
    for line in lines:
        if line[1] == REFERENCE:
            line.insert(6, "–")
    return lines, int(np.sum(adjusted <= LEVEL))


def main():
    args = options(__doc__, stored=True)
    verdict = Verdict("survey_complexity", args)
    rows = verdict.complete_rows(plan_rows(args.quick))
    numbers = {"formula": check_formula(verdict, rows, args.quick)}
    lines, numbers["significant"] = compare_choices(rows)
    heads = ["setting, instances", "Parisi parameter", "last y, in units", "not above informed"]
    heads += [f"lower, equal, higher than {REFERENCE}", "mean ln of the ratio of losses", "p, adjusted", "seconds"]
    verdict.write_table(markdown_table(heads, lines))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
