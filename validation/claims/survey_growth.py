"""Growth of the overlaps of random weights in survey propagation, from order d^(−1/2) to a minimum.

Method: a single survey of `survey_step` from random weights (d = 150, at most 30 iterations, the first Parisi parameter
of `train`), at twelve α and two (ω, σ). The cosines with the teacher and with the positions begin as independent
Gaussians of variance 1/d. A survey approaches the teacher at a level if the cosine with the teacher reaches this level
within a number of iterations, and not after the cosine with the positions.

Linear theory (`follow_growth`): initial cosines grow by predicted factors, and Gaussian fluctuations of predicted
covariance are added. Nonlinear theory (`sample_cosines`): state evolution at the overlaps of each path, with
fluctuations. Nothing is fitted.

Criterion: each fraction of surveys that approach the teacher differs by at most 3 standard errors from the prediction:
of linear theory for the level 0.3 within 10 iterations, and of nonlinear theory for this level and for 0.5 within 30
iterations. The distributions of the iteration at which surveys approach the teacher at 0.5 (never, for surveys that do
not) have a p-value of at least 0.001 in the test of Kolmogorov and Smirnov. Mean differences over all points are
reported and have no criterion. The level 0.3 was chosen with surveys of other seeds (0 to 15). The criterion was fixed
before any outcome of these surveys was seen; each α has its own seeds.

Every survey and path is stored in a file of runs and not computed again. `--stored` evaluates stored rows only.
"""

from functools import cache, partial

import numpy as np
from scipy.stats import chi2, ks_2samp

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import ALPHA, draw_legend
from gamp_attention.extensions.dynamics.survey_paths import follow_growth, sample_cosines
from gamp_attention.extensions.train.survey import LADDER, LATE_ITERATION as LATE, STEP
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import markdown_table
from validation.claims._survey_runs import draw_starts
from validation.claims.survey_map import FOUNDING, GRIDS, NARROW, build_model, compute_row

DIM, SURVEYS, PATHS = 150, 100, 30  # dimension, and numbers of surveys and of paths of nonlinear theory at each point
FIRST_SEED, SEEDS = 1000, 1000  # first seed of the first point, and distance between the first seeds of points
REPLICAS, N_PATHS, N_DRAWS = 2, 8192, 4000  # linear theory: sets of sampled paths, their size, and initial cosines
MIN_PATHS, PATHS_PER_SAMPLE = 2048, 8  # nonlinear theory: minimum number of sampled paths, and relative to αd
LEVELS = (0.1, 0.3, 0.5, 0.8)  # cosines whose first iterations are stored
EARLY, LATER = (0.3, 10), (0.5, LATE)  # level and number of iterations in which it must be reached
AXES = ("semantic", "positional")
NEAR = 0.8  # cosine at the end from which on a survey has found the teacher
MOST, LEAST = 3.0, 1e-3  # largest deviation in standard errors, and smallest p-value
SURVEY, LINEAR, PATH = "#0072B2", "#E69F00", "#009E73"


@cache
def find_start(omega, sigma, alpha, seed):
    """Return the first Parisi parameter of `train`, and the first V of surveys, at d = 1000."""
    data = ga.sample(build_model(omega, sigma), 1000, alpha, seed)
    state, unit = ga.initial_survey(data, "asymptotic", np.zeros((data.dim, 1)))
    return LADDER[0] * unit, state.V


def compute_growth(omega, sigma, alpha, replica):
    """Return the growth of small overlaps, and the fraction of surveys that approach the teacher by linear theory."""
    parisi, _ = find_start(omega, sigma, alpha, replica)
    rng = np.random.default_rng([round(1000 * omega), round(100 * alpha), replica])
    growth = follow_growth(build_model(omega, sigma), alpha, STEP, parisi, EARLY[1], N_PATHS, rng)
    first, curves = [], {}
    for name in AXES:
        factors, covariance = getattr(growth, name), getattr(growth, f"{name}_noise")
        deviations, directions = np.linalg.eigh(covariance)
        root = directions * np.sqrt(np.maximum(deviations, 0.0))
        start, noise = rng.standard_normal((N_DRAWS, 1)), rng.standard_normal((N_DRAWS, len(root))) @ root.T
        first.append(find_first((start * factors + noise) / np.sqrt(DIM)))
        curves |= {name: factors, f"{name}_noise": np.sqrt(np.diag(covariance))}
    row = {name: [float(f"{value:.4g}") for value in values] for name, values in curves.items()}
    return row | {"fraction": float(np.mean(approaches_teacher(*first, *EARLY)))}


def run_path(omega, sigma, alpha, k):
    """Return the iterations at which a path of nonlinear theory reaches the levels, and its last cosines."""
    n_paths = max(MIN_PATHS, 2 ** int(np.ceil(np.log2(PATHS_PER_SAMPLE * alpha * DIM))))
    rng = np.random.default_rng([round(1000 * omega), round(100 * alpha), 10 + k])
    starts = [find_start(omega, sigma, alpha, seed) for seed in range(REPLICAS)]
    parisi, V = (np.mean(values, axis=0) for values in zip(*starts, strict=True))
    path = sample_cosines(build_model(omega, sigma), alpha, DIM, STEP, parisi, LATE, n_paths, rng, V)
    return describe([path.semantic, path.positional])


def run_survey(omega, sigma, alpha, d, seed):
    """Return the iterations at which one survey from random weights reaches the levels, and its last cosines."""
    data = ga.sample(build_model(omega, sigma), d, alpha, seed)
    state, unit = ga.initial_survey(data, "exact", draw_starts(data, 1, seed)[0])
    axes = np.stack([data.Q_star[:, 0], data.positions[0]])
    axes /= np.linalg.norm(axes, axis=1)[:, None]
    cosines = [axes @ state.Q[:, 0] / np.linalg.norm(state.Q)]
    for _ in range(LATE):
        state, _ = ga.survey_step(data, "exact", state, STEP, LADDER[0] * unit)
        cosines.append(axes @ state.Q[:, 0] / np.linalg.norm(state.Q))
    return describe(np.transpose(cosines))


def describe(cosines):
    """Return the row of both cosines: first iterations, with None for levels that are not reached, and last values."""
    first = [[None if np.isinf(t) else int(t) for t in find_first(curve)] for curve in cosines]
    return {"first": first, "last": [float(f"{abs(curve[-1]):.3g}") for curve in cosines]}


def find_first(cosines):
    """Return the first iterations (..., levels) at which cosines (..., T + 1) reach the levels; inf if they do not."""
    reached = np.abs(cosines)[..., None, :] >= np.array(LEVELS)[:, None]
    return np.where(reached.any(axis=-1), reached.argmax(axis=-1), np.inf)


def approaches_teacher(semantic, positional, level, n_iter):
    """Return whether a survey approaches the teacher, from the first iterations (..., levels) of both cosines."""
    k = LEVELS.index(level)
    return (semantic[..., k] <= n_iter) & (semantic[..., k] <= positional[..., k])


def plan_rows(quick):
    """Return functions that compute the rows, by key."""
    d, plan = 60 if quick else DIM, {}
    points = [(where, alpha) for where in (NARROW, FOUNDING) for alpha in GRIDS[where]]
    points = points[4:5] if quick else points
    for replica in range(REPLICAS):
        plan |= {("growth", *where, a, replica): partial(compute_growth, *where, a, replica) for where, a in points}
    for k in range(4 if quick else SURVEYS):
        for p, (where, alpha) in enumerate(points):
            seed = FIRST_SEED + SEEDS * p + k
            plan["survey", *where, alpha, seed] = partial(run_survey, *where, alpha, d, seed)
    for k in range(2 if quick else PATHS):
        plan |= {("path", *where, alpha, k): partial(run_path, *where, alpha, k) for where, alpha in points}
    return plan


def select(rows, kind, where, alpha):
    """Return the rows of a kind at (ω, σ) and α."""
    return [row for row in rows if row["key"][:4] == [kind, *where, alpha]]


def list_points(rows):
    """Return (ω, σ) and α of all points with surveys, in order."""
    points = {(tuple(row["key"][1:3]), row["key"][3]) for row in rows if row["key"][0] == "survey"}
    return sorted(points)


def read_first(rows):
    """Return the first iterations (2, N, levels) of rows for both cosines; inf for levels that are not reached."""
    return np.nan_to_num(np.array([row["first"] for row in rows], float), nan=np.inf).transpose(1, 0, 2)


def mean_and_error(events):
    """Return the fraction of events and its binomial standard error, that of at least half an event."""
    p, n = np.mean(events), len(events)
    return p, np.sqrt(max(p * (1 - p), 0.5 / n * (1 - 0.5 / n)) / n)


def compare_point(rows, where, alpha):
    """Return fractions with errors, median iterations and the p-value at one point, by name."""
    surveys, paths = (select(rows, kind, where, alpha) for kind in ("survey", "path"))
    linear = [row["fraction"] for row in select(rows, "growth", where, alpha)]
    values = {
        "n": (len(surveys), len(paths)),
        "linear": (np.mean(linear), np.std(linear, ddof=1) / np.sqrt(len(linear))),
    }
    times = {}
    for name, group in (("survey", surveys), ("path", paths)):
        first = read_first(group)
        times[name] = np.where(approaches_teacher(*first, *LATER), first[0, :, LEVELS.index(LATER[0])], np.inf)
        values |= {
            f"{name} early": mean_and_error(approaches_teacher(*first, *EARLY)),
            f"{name} late": mean_and_error(approaches_teacher(*first, *LATER)),
            f"{name} minimum": mean_and_error(np.array([row["last"][0] for row in group]) >= NEAR),
            f"{name} median": np.median(times[name]),
        }
    censored = [np.where(np.isinf(value), 2 * LATE, value) for value in times.values()]
    return values | {"p": ks_2samp(*censored).pvalue, "times": times}


def count_errors(one, other):
    """Return the difference of two values in units of its standard error."""
    return (one[0] - other[0]) / np.hypot(one[1], other[1])


def pool(points, measured, predicted):
    """Return the mean difference of two fractions over all points with its standard error."""
    differences = [values[measured][0] - values[predicted][0] for values in points.values()]
    errors = [np.hypot(values[measured][1], values[predicted][1]) for values in points.values()]
    return float(np.mean(differences)), float(np.linalg.norm(errors) / len(errors))


COMPARED = {  # name, measured fraction, predicted fraction
    "linear theory, level 0.3 within 10 iterations": ("survey early", "linear"),
    "nonlinear theory, level 0.3 within 10 iterations": ("survey early", "path early"),
    f"nonlinear theory, level 0.5 within {LATE} iterations": ("survey late", "path late"),
}


def check_points(verdict, points):
    """Check fractions and distributions of iterations, and return deviations in standard errors."""
    numbers = {}
    for name, (measured, predicted) in COMPARED.items():
        z = np.array([count_errors(values[measured], values[predicted]) for values in points.values()])
        p = chi2.sf(np.sum(z**2), len(z))
        text = f"{name}: largest of {len(z)} deviations {np.abs(z).max():.1f} standard errors, p of Σz² {p:.2g}"
        verdict.check(np.abs(z).max() <= MOST, text)
        numbers[name] = {
            "deviations": z.round(2).tolist(),
            "p": p,
            "mean difference": pool(points, measured, predicted),
        }
    numbers["cosine at the end"] = {"mean difference": pool(points, "survey minimum", "path minimum")}
    ps = np.array([values["p"] for values in points.values()])
    verdict.check(
        ps.min() >= LEAST, f"iterations to a cosine of {LATER[0]}: smallest of {len(ps)} p-values {ps.min():.2g}"
    )
    return numbers | {"p of distributions": ps.tolist()}


def format_points(points):
    """Return the table of predicted and counted fractions."""
    heads = ["ω, σ", "α", "0.3 within 10: linear theory", "nonlinear theory", "surveys",
             f"0.5 within {LATE}: nonlinear theory", "surveys", f"cosine ≥ {NEAR:g} at the end: nonlinear theory",
             "surveys", "median iteration to 0.5: nonlinear theory", "surveys", "p of the distributions"]  # fmt: skip
    names = ("linear", "path early", "survey early", "path late", "survey late", "path minimum", "survey minimum")
    lines, last = [], None
    for (where, alpha), values in points.items():
        cells = [f"{100 * p:.0f} ± {max(100 * e, 0.5):.0f} %" for p, e in (values[name] for name in names)]
        medians = [values[f"{name} median"] for name in ("path", "survey")]
        cells += [f"{value:g}" if np.isfinite(value) else f"> {LATE}" for value in medians]
        label = f"{where[0]:g}, {where[1]:g}" if where != last else ""
        lines.append([label, f"{alpha:g}", *cells, f"{values['p']:.2g}"])
        last = where
    return markdown_table(heads, lines)


def draw(path, points):
    """Draw fractions against α, and distributions of the iteration at which the cosine reaches 0.5."""
    places = sorted({where for where, _ in points})
    with figure(path, 2, len(places), (9.4, 6.6)) as axes:
        for column, where in enumerate(places):
            alphas = np.array([alpha for place, alpha in points if place == where])
            here = [points[where, alpha] for alpha in alphas]
            draw_fractions(axes[0, column], alphas, here)
            axes[0, column].set(title=f"ω = {where[0]:g}, σ = {where[1]:g}")
            for k, color in ((0, "#D55E00"), (3, "#CC79A7"), (5, SURVEY)):
                draw_times(axes[1, column], here[k]["times"], color, alphas[k])
            axes[1, column].legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 1.0))
        draw_legend(axes[0, 0], columns=3)


def draw_fractions(axis, alphas, points):
    """Draw predicted and counted fractions of surveys that approach the teacher."""
    for name, color, style, label in (
        ("linear", LINEAR, ":", "0.3 within 10 iterations, linear theory"),
        ("path early", PATH, "--", "0.3 within 10, nonlinear theory"),
        ("path late", PATH, "-", f"0.5 within {LATE}, nonlinear theory"),
    ):
        means, errors = 100 * np.transpose([values[name] for values in points])
        axis.plot(alphas, means, style, color=color, lw=1.5, label=label)
        axis.fill_between(alphas, means - errors, means + errors, color=color, alpha=0.15, lw=0)
    labels = ("surveys, 0.3 within 10", f"surveys, 0.5 within {LATE}")
    for name, marker, label in zip(("survey early", "survey late"), "os", labels, strict=True):
        means, errors = 100 * np.transpose([values[name] for values in points])
        axis.errorbar(alphas, means, errors, fmt=marker, mfc="none", ms=6, color=SURVEY, label=label)
    axis.set(xlabel=ALPHA, ylabel="approach the teacher, %", ylim=(0, 105))


def draw_times(axis, times, color, alpha):
    """Draw the fraction of surveys and of paths whose cosine reaches 0.5 within t iterations."""
    t = np.arange(LATE + 1)
    for name, style in (("survey", "-"), ("path", "--")):
        words = f"α = {alpha:g}" if name == "survey" else None
        reached = 100 * np.mean(times[name][:, None] <= t, axis=0)
        axis.step(t, reached, style, where="post", color=color, lw=1.5, label=words)
    axis.set(xlabel="iteration t", ylabel="cosine of 0.5 reached by t, %", ylim=(0, 125), xlim=(0, LATE),
             yticks=range(0, 101, 20), title="surveys (solid), nonlinear theory (dashed)")  # fmt: skip


def main():
    args = options(__doc__, draw=True, stored=True)
    verdict = Verdict("survey_growth", args)
    rows = verdict.complete_rows({key: partial(compute_row, key, work) for key, work in plan_rows(args.quick).items()})
    points = {point: compare_point(rows, *point) for point in list_points(rows)}
    if not args.quick:
        draw(verdict.path(".png"), points)
    if args.draw:
        return
    numbers = check_points(verdict, points)
    verdict.write_table(format_points(points))
    for name, values in numbers.items():
        if "mean difference" in values:
            print(f"{name}, mean of surveys minus theory:", plus_minus(*values["mean difference"]))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
