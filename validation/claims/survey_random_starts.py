"""Survey propagation from random weights at two dimensions, with paths of averages and paths of exactly αd samples.

Method: surveys of ten iterations from random weights at the five points with the largest deviations of nonlinear theory
in `survey_growth`, at d = 150 and 600, with new seeds. Each survey is made twice for the same tokens, labels and
weights: with the Parisi parameter y, the first V and the exact risk of `train` ("default"), and with y and V of
theory and the asymptotic risk ("fixed"). Theory takes the means of y and V over eight data sets of the same d.

*Averages* (`sample_cosines`): state evolution at the overlaps of each path, with fluctuations of the forces on the
teacher and on the positions. *Samples* (`sample_survey`): the fields of exactly αd samples, so that V, U and the growth
factors fluctuate as well. Both have the same y and V as fixed surveys; no parameter is fitted.

Criteria, fixed before the runs:

1. samples: at both d, each fraction of fixed surveys that approach the teacher (a cosine of 0.3 within ten iterations,
   and not after the positions) differs from samples by at most 3 standard errors, and so does the mean over the points.
   The means of |cosine| with the teacher and with the positions, of q and of V differ by at most 4 standard errors at
   every iteration.
2. averages: the same at d = 600, because their errors should vanish for d → ∞. At d = 150 the deviations are reported.

The first plan had 150 surveys, 120 to 150 paths of averages and up to 300 of samples. The numbers were reduced to 100
and 200 after 56 surveys at each point, because the processor was slower than expected; deviations had been seen. Paths
of averages with a fourfold number of fields were planned and not computed for the same reason.

At d = 150, ω = 0.3, α = 1.5, V of samples failed the criterion (4.1 standard errors). This point is repeated with new
surveys and paths. The repetition has the same criterion and was planned after the failure, with 200 of each; it was
stopped for lack of time after 80, before they were evaluated. The failure remains a failure.

Reported: mean differences at both d, and the effect of the parameters of theory (default minus fixed surveys).
"""

from functools import cache, partial

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.dynamics.finite_surveys import sample_survey
from gamp_attention.extensions.dynamics.survey_paths import sample_cosines
from gamp_attention.extensions.train.survey import LADDER, STEP
from gamp_attention.problem.risk import overlaps
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import markdown_table, round_curve
from validation.claims._survey_runs import draw_starts
from validation.claims.survey_growth import (
    EARLY,
    approaches_teacher,
    count_errors,
    find_first,
    mean_and_error,
)
from validation.claims.survey_map import FOUNDING, NARROW, build_model, compute_row

POINTS = ((NARROW, 0.3), (NARROW, 0.6), (FOUNDING, 1.0), (FOUNDING, 1.25), (FOUNDING, 1.5))
COUNTS = {  # number of surveys, of paths of averages and of paths of samples, by d
    150: {"survey": 100, "averages": 100, "samples": 200},
    600: {"survey": 100, "averages": 100, "samples": 100},
}
MIN_FIELDS, PER_SAMPLE = 2048, 8  # minimum number of sampled fields, and number relative to αd
REPEATED, N_REPEATED = (*POINTS[4][0], POINTS[4][1], 150), 80  # repeated point, and number of surveys and of paths
REPEATED_SEED = 600_000  # first seed of the repetition
DATA_SETS, FIRST_DATA_SET = 8, 900  # data sets whose mean y and V theory takes, and the first seed of them
FIRST_SEED = 100_000  # first seed of the surveys
OVERLAPS = ("teacher", "positions", "q", "V")
WORDS = {"teacher": "cosine with the teacher", "positions": "cosine with the positions", "q": "q", "V": "V"}
SHOWN = (1, 2, 3, 5, 10)  # iterations of the table
LARGEST, LARGEST_MEAN = 3.0, 4.0  # largest deviation of fractions and of mean overlaps, in standard errors


@cache
def find_start(omega, sigma, alpha, d):
    """Return the mean first Parisi parameter and the mean first V of surveys over data sets of dimension d."""
    values = []
    for seed in range(FIRST_DATA_SET, FIRST_DATA_SET + DATA_SETS):
        data = ga.sample(build_model(omega, sigma), d, alpha, seed)
        state, unit = ga.initial_survey(data, "exact", np.zeros((data.dim, 1)))
        values.append((LADDER[0] * unit, state.V))
    return tuple(np.mean(each, axis=0) for each in zip(*values, strict=True))


def run_surveys(omega, sigma, alpha, d, seed):
    """Return the overlaps of the survey of one data set with the y and V of `train`, and with y and V of theory."""
    data = ga.sample(build_model(omega, sigma), d, alpha, seed)
    Q, (parisi, V) = draw_starts(data, 1, seed)[0], find_start(omega, sigma, alpha, d)
    state, unit = ga.initial_survey(data, "exact", Q)
    fixed = ga.SurveyState(state.Q, V, state.U, state.D)
    return {
        "default": follow_run(data, "exact", state, LADDER[0] * unit),
        "fixed": follow_run(data, "asymptotic", fixed, parisi),
    }


def run_fixed(omega, sigma, alpha, d, seed):
    """Return the overlaps of the survey of one data set with y and V of theory."""
    return {"theory": run_surveys(omega, sigma, alpha, d, seed)["fixed"]}


def follow_run(data, risk, state, parisi):
    """Return the overlaps of a survey at every iteration."""
    axes = np.stack([data.Q_star[:, 0], data.positions[0]])
    axes /= np.linalg.norm(axes, axis=1)[:, None]
    rows = []
    for t in range(EARLY[1] + 1):
        q = overlaps(data, state.Q, state.V).q[0, 0, 0]
        rows.append([*(axes @ state.Q[:, 0] / np.linalg.norm(state.Q)), q, state.V[0, 0, 0]])
        if t < EARLY[1]:
            state, _ = ga.survey_step(data, risk, state, STEP, parisi)
    return round_rows(np.transpose(rows))


def run_averages(omega, sigma, alpha, d, k):
    """Return the overlaps of one path of averages."""
    n_fields = max(MIN_FIELDS, 2 ** int(np.ceil(np.log2(PER_SAMPLE * alpha * d))))
    rng = np.random.default_rng([round(1000 * omega), round(100 * alpha), d, PER_SAMPLE, k])
    parisi, V = find_start(omega, sigma, alpha, d)
    return {"theory": round_sample(
        sample_cosines(build_model(omega, sigma), alpha, d, STEP, parisi, EARLY[1], n_fields, rng, V)
    )}  # fmt: skip


def run_samples(omega, sigma, alpha, d, k):
    """Return the overlaps of one path of exactly αd samples."""
    rng = np.random.default_rng([round(1000 * omega), round(100 * alpha), d, k])
    parisi, V = find_start(omega, sigma, alpha, d)
    return {"theory": round_sample(
        sample_survey(build_model(omega, sigma), alpha, d, STEP, parisi, EARLY[1], rng, V)
    )}  # fmt: skip


def round_sample(sample):
    """Return the overlaps of a path as lists."""
    return round_rows([sample.semantic, sample.positional, sample.q[:, 0], sample.V[:, 0]])


def round_rows(curves):
    """Return the curves of all overlaps, rounded to four digits."""
    return [round_curve(curve, 4) for curve in curves]


def plan_rows(quick):
    """Return functions that compute the rows, by key; any first part of the plan has all points and kinds."""
    counts = {60: {"survey": 12, "averages": 12, "samples": 12}} if quick else COUNTS
    points, plan = POINTS[1:2] if quick else POINTS, {}
    for k in range(max(n for each in counts.values() for n in each.values())):
        for d, each in counts.items():
            for p, (where, alpha) in enumerate(points):
                at = (*where, alpha, d)
                if k < each["survey"]:
                    seed = FIRST_SEED + 1000 * p + k
                    plan["survey", *at, seed] = partial(run_surveys, *at, seed)
                if k < each["averages"]:
                    plan["averages", *at, k] = partial(run_averages, *at, k)
                if k < each["samples"]:
                    plan["samples", *at, k] = partial(run_samples, *at, k)
    for seed in range(REPEATED_SEED, REPEATED_SEED + N_REPEATED * (not quick)):
        plan["surveys again", *REPEATED, seed] = partial(run_fixed, *REPEATED, seed)
        plan["samples again", *REPEATED, seed] = partial(run_samples, *REPEATED, seed)
    return plan


def select(rows, kind, point, d, part="theory"):
    """Return the overlaps (N, 4, T + 1) of the rows of a kind at a point and a d, cosines by their size."""
    (where, alpha), chosen = point, []
    for row in rows:
        if row["key"][:-1] == [kind, *where, alpha, d]:
            chosen.append(row[part])
    return np.abs(np.array(chosen))


def find_events(curves):
    """Return whether each survey or path approaches the teacher."""
    return approaches_teacher(*(find_first(curves[:, k]) for k in (0, 1)), *EARLY)


def list_sizes(rows):
    """Return all d and all points of the rows, in order."""
    points = sorted({(tuple(row["key"][1:3]), row["key"][3]) for row in rows})
    return sorted({row["key"][4] for row in rows}), points


def compare_fractions(rows, points, d, kind):
    """Return the deviations of fractions in standard errors, by point, and the mean difference with its error."""
    surveys = [mean_and_error(find_events(select(rows, "survey", point, d, "fixed"))) for point in points]
    paths = [mean_and_error(find_events(select(rows, kind, point, d))) for point in points]
    z = [count_errors(*pair) for pair in zip(surveys, paths, strict=True)]
    differences = np.array(surveys)[:, 0] - np.array(paths)[:, 0]
    error = np.sqrt(np.sum(np.square([surveys, paths])[..., 1])) / len(points)
    return np.array(z), (float(differences.mean()), float(error))


def compare_theories(rows, points, d):
    """Return the mean difference of fractions, samples minus averages, with its error."""
    samples, averages = (
        [mean_and_error(find_events(select(rows, kind, point, d))) for point in points]
        for kind in ("samples", "averages")
    )
    error = np.sqrt(np.sum(np.square([samples, averages])[..., 1])) / len(points)
    return float(np.mean(np.array(samples)[:, 0] - np.array(averages)[:, 0])), float(error)


def compare_overlaps(rows, points, d, kind):
    """Return the deviations of mean overlaps (points, 4, T) in standard errors, from the first iteration on."""
    groups = [(select(rows, "survey", point, d, "fixed"), select(rows, kind, point, d)) for point in points]
    return np.array([compare_means(*pair) for pair in groups])


def compare_means(one, other):
    """Return the differences (4, T) of mean overlaps of two groups in standard errors."""
    variance = sum(group.var(axis=0, ddof=1) / len(group) for group in (one, other))
    return (one.mean(axis=0) - other.mean(axis=0))[:, 1:] / np.sqrt(variance[:, 1:])


def check_repetition(verdict, rows):
    """Compare surveys and samples of the repeated point; return the largest deviation of each overlap."""
    *where, alpha, d = REPEATED
    groups = [select(rows, kind, (tuple(where), alpha), d) for kind in ("surveys again", "samples again")]
    deviations = np.abs(compare_means(*groups)).max(axis=1)
    for name, value in zip(OVERLAPS, deviations, strict=True):
        text = f"{len(groups[0])} new surveys at α = {alpha:g}, d = {d}, samples: largest deviation of {WORDS[name]}"
        verdict.check(bool(value <= LARGEST_MEAN), f"{text} {value:.1f} standard errors")
    return dict(zip(OVERLAPS, deviations.round(2).tolist(), strict=True))


def compare_parameters(rows, points, d):
    """Return the mean paired difference of fractions, default minus fixed surveys, with its error."""
    parts = [[find_events(select(rows, "survey", point, d, part)) for part in ("default", "fixed")] for point in points]
    differences = [default.astype(float) - fixed for default, fixed in parts]
    errors = [each.std(ddof=1) / np.sqrt(len(each)) for each in differences]
    return float(np.mean([each.mean() for each in differences])), float(np.linalg.norm(errors) / len(points))


def check_kind(verdict, rows, points, d, kind, required):
    """Compare one kind of paths with surveys at a d; check the criteria if they are required."""
    z, mean = compare_fractions(rows, points, d, kind)
    text = f"d = {d}, {kind}: largest of {len(z)} deviations of fractions {np.abs(z).max():.1f} standard errors"
    mean_text = f"d = {d}, {kind}: mean difference {100 * mean[0]:.1f} ± {100 * mean[1]:.1f} %"
    numbers = {"deviations": z.round(2).tolist(), "mean difference": mean}
    checks = [(np.abs(z).max() <= LARGEST, text), (abs(mean[0]) <= LARGEST * mean[1], mean_text)]
    overlaps = compare_overlaps(rows, points, d, kind)
    for name, values in zip(OVERLAPS, np.abs(overlaps).max(axis=(0, 2)), strict=True):
        text = f"d = {d}, {kind}: largest deviation of {WORDS[name]} {values:.1f} standard errors"
        checks.append((values <= LARGEST_MEAN, text))
        numbers[f"largest deviation of {name}"] = round(float(values), 2)
    for holds, text in checks:
        if required:
            verdict.check(bool(holds), text)
        else:
            print("        " + text)
    return numbers


def format_fractions(rows, sizes, points):
    """Return the table of fractions that approach the teacher."""
    heads = ["ω, σ", "α", "d", "surveys of `train`", "surveys, y and V of theory", "αd samples", "averages"]
    lines = []
    for point in points:
        for d in sizes:
            (omega, sigma), alpha = point
            groups = [select(rows, "survey", point, d, part) for part in ("default", "fixed")]
            groups += [select(rows, kind, point, d) for kind in ("samples", "averages")]
            cells = [format_fraction(group) for group in groups]
            lines.append([f"{omega:g}, {sigma:g}", f"{alpha:g}", f"{d}", *cells])
    return markdown_table(heads, lines)


def format_fraction(curves):
    """Return a fraction with its error in percent, and the number of surveys or paths."""
    p, error = mean_and_error(find_events(curves))
    return f"{100 * p:.0f} ± {max(100 * error, 0.5):.0f} % of {len(curves)}"


def format_overlaps(rows, points, d):
    """Return the table of mean overlaps at some iterations."""
    heads = ["ω, σ, α", "t"]
    for name in OVERLAPS:
        heads += [f"{WORDS[name]}: surveys", "αd samples", "averages"]
    lines = []
    for point in points:
        groups = [select(rows, "survey", point, d, "fixed")]
        groups += [select(rows, kind, point, d) for kind in ("samples", "averages")]
        for t in SHOWN:
            cells = []
            for k in range(len(OVERLAPS)):
                for group in groups:
                    values = group[:, k, t]
                    cells.append(plus_minus(values.mean(), values.std(ddof=1) / np.sqrt(len(values))))
            label = f"{point[0][0]:g}, {point[0][1]:g}, {point[1]:g}" if t == SHOWN[0] else ""
            lines.append([label, f"{t}", *cells])
    return markdown_table(heads, lines)


def main():
    args = options(__doc__, stored=True)
    verdict = Verdict("survey_random_starts", args)
    rows = verdict.complete_rows({key: partial(compute_row, key, work) for key, work in plan_rows(args.quick).items()})
    sizes, points = list_sizes(rows)
    numbers = {}
    for d in sizes:
        for kind in ("samples", "averages"):
            required = kind == "samples" or d == max(sizes)
            numbers[f"{kind}, d = {d}"] = check_kind(verdict, rows, points, d, kind, required)
        numbers[f"default minus fixed, d = {d}"] = compare_parameters(rows, points, d)
        numbers[f"samples minus averages, d = {d}"] = compare_theories(rows, points, d)
        print(f"d = {d}, samples minus averages:", plus_minus(*numbers[f"samples minus averages, d = {d}"]))
        print(f"d = {d}, default minus fixed surveys:", plus_minus(*numbers[f"default minus fixed, d = {d}"]))
    if any(row["key"][0] == "surveys again" for row in rows):
        numbers["repetition"] = check_repetition(verdict, rows)
    verdict.write_table(format_fractions(rows, sizes, points))
    for d in sizes:
        verdict.write_table(format_overlaps(rows, points, d), f"_{d}.md")
    verdict.end(numbers)


if __name__ == "__main__":
    main()
