"""Estimates of the test error are within their intervals on seven kinds of own data, or name the reason.

Method: `GampAttention` with its defaults is trained on sparse counts, Student's t entries with 2.5 degrees of freedom,
correlated columns (coefficient 0.95), tokens whose norms differ by a factor of 100, outputs that are noise (n < d), a
time series (coefficient 0.97 from sample to sample, also of the noise), and ten samples of each of twelve subjects. The
outputs of all others are an attention layer plus noise. `leave_one_out` is compared with the error on 4000 independent
samples, for raw and for standardized arrays. For subjects, and for five blocks of the time series, cross-validation
with `groups` is compared as well.

Criterion (fixed before the first run with these seeds): for independent samples, at least 90 % of the errors on new
data are in the 95 % interval of trusted estimates, and at most 2 % of the samples are called dependent. Of the time
series and subjects, at least 80 % are called dependent, and at most 10 % of the estimates are trusted and have an error
outside of the interval. With `groups`, at least 80 % of the errors for new subjects are in the interval of ±1.96
standard errors around the cross-validated error. After the first run, in which the five folds of nine or ten subjects
failed this criterion, a run with a fold for each subject was added, without a criterion. (Page "Test error from the
training data" of the manual.)
"""

import warnings

import numpy as np

import gamp_attention as ga
from validation._tools.report import Verdict, folder, options, pool
from validation._tools.resumable import run_trials
from validation._tools.tables import markdown_table
from validation.claims.own_data_calls import softmax

DIM, TOKENS, SAMPLES, FRESH, LAM, NOISE = 40, 2, 120, 4000, 0.03, 0.3
SUBJECTS, SIMILAR, SLOW, SEEDS = 12, 0.95, 0.97, 8
DEPENDENT = {"time series": 5, "subjects": SUBJECTS}  # number of groups


def draw_slowly(rng, n):
    """Return entries (n, L, d) of unit variance that change slowly from sample to sample."""
    x = rng.normal(size=(n, TOKENS, DIM))
    for t in range(1, n):
        x[t] = SLOW * x[t - 1] + np.sqrt(1 - SLOW**2) * x[t]
    return x


def draw_similar(rng, n):
    """Return entries (n, L, d) of unit variance that are similar for the samples of a subject."""
    subjects = rng.normal(size=(SUBJECTS, TOKENS, DIM))[np.arange(n) * SUBJECTS // n]
    return SIMILAR * subjects + np.sqrt(1 - SIMILAR**2) * rng.normal(size=(n, TOKENS, DIM))


def draw_correlated(rng, n):
    """Return entries (n, L, d) with correlated neighboring columns."""
    x = rng.normal(size=(n, TOKENS, DIM))
    for i in range(1, DIM):
        x[..., i] = 0.95 * x[..., i - 1] + np.sqrt(1 - 0.95**2) * x[..., i]
    return x


def draw_normal(rng, n):
    """Return independent normal entries (n, L, d)."""
    return rng.normal(size=(n, TOKENS, DIM))


def draw_counts(rng, n):
    """Return counts (n, L, d), most of which are zero."""
    return rng.poisson(np.random.default_rng(9).gamma(0.3, 0.5, size=DIM), size=(n, TOKENS, DIM)).astype(float)


def draw_heavy(rng, n):
    """Return entries (n, L, d) of Student's t distribution with 2.5 degrees of freedom."""
    return rng.standard_t(2.5, size=(n, TOKENS, DIM))


def draw_unequal(rng, n):
    """Return tokens (n, L, d) whose norms differ by factors of up to 100."""
    return rng.normal(size=(n, TOKENS, DIM)) * 10 ** rng.uniform(-1, 1, size=(n, TOKENS, 1))


# distributions of the tokens in training and of new tokens
KINDS = {
    "sparse counts": (draw_counts, draw_counts), "heavy tails": (draw_heavy, draw_heavy),
    "correlated columns": (draw_correlated, draw_correlated), "norms of 1 to 100": (draw_unequal, draw_unequal),
    "noise, n < d": (draw_normal, draw_normal), "time series": (draw_slowly, draw_normal),
    "subjects": (draw_similar, draw_normal),
}  # fmt: skip


def build_arrays(kind, seed):
    """Return tokens and outputs of the training samples, and of new samples."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind), 57])
    n = 30 if kind.startswith("noise") else SAMPLES
    training, new = KINDS[kind]
    x = np.concatenate([training(rng, n), new(rng, FRESH)])
    noise = np.concatenate([(training if kind in DEPENDENT else draw_normal)(rng, n), draw_normal(rng, FRESH)])
    z = x @ rng.normal(size=(DIM, 1))
    maps = z @ z.transpose(0, 2, 1)
    y = softmax(1.5 * maps / maps[:n].std()) @ x
    y = noise if kind.startswith("noise") else y + NOISE * y[:n].std() * noise
    return x[:n], y[:n], x[n:], y[n:]


def compare_estimates(kind, standardize, seed):
    """Return the estimates by leave-one-out and with groups, and the error on new samples."""
    x, y, new_x, new_y = build_arrays(kind, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # runs that do not converge, whose estimates are not trusted
        layer = ga.GampAttention(lam=LAM, standardize=standardize).fit(x, y)
        loo = layer.leave_one_out()
    row = {
        "new": layer.test_error(new_x, new_y)[0], "estimate": loo.test_error, "interval": list(loo.interval()),
        "trusted": loo.trusted, "dependent": loo.dependent, "message": loo.message,
    }  # fmt: skip
    if kind in DEPENDENT and not standardize:  # errors along paths of a standardized layer have other units
        groups = np.arange(len(x)) * DEPENDENT[kind] // len(x)
        path = layer.regularization_path([LAM], groups=groups)
        row |= {"grouped": float(path.test_error[0]), "grouped_error": float(path.test_error_error[0])}
    return row


def leave_out_each_subject(seed):
    """Return the error on new subjects, and cross-validation with a fold for each subject."""
    x, y, new_x, new_y = build_arrays("subjects", seed)
    layer = ga.GampAttention(lam=LAM).fit(x, y)
    groups = np.arange(len(x)) * SUBJECTS // len(x)
    path = layer.regularization_path([LAM], groups=groups, folds=SUBJECTS)
    return {
        "new": layer.test_error(new_x, new_y)[0], "grouped": float(path.test_error[0]),
        "grouped_error": float(path.test_error_error[0]),
    }  # fmt: skip


def is_inside(row):
    """Return whether the error on new samples is in the interval of leave-one-out."""
    return row["interval"][0] <= row["new"] <= row["interval"][1]


def is_inside_with_groups(row):
    """Return whether the error on new samples is within 1.96 standard errors of cross-validation with groups."""
    return abs(row["grouped"] - row["new"]) <= 1.96 * row["grouped_error"]


def format_table(rows):
    """Return a row for each kind."""
    heads = ("kind", "estimates", "estimate − error on new samples", "trusted", "in the interval, of trusted",
             "called dependent", "with `groups`", "in the interval with `groups`")  # fmt: skip
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        trusted, grouped = [row for row in mine if row["trusted"]], [row for row in mine if "grouped" in row]
        apart = 100 * np.mean([row["estimate"] / row["new"] - 1 for row in mine])
        by_groups = f"{100 * np.mean([row['grouped'] / row['new'] - 1 for row in grouped]):+.0f} %" if grouped else ""
        lines.append([
            kind, len(mine), f"{apart:+.1f} %", len(trusted), sum(map(is_inside, trusted)),
            sum(row["dependent"] for row in mine), by_groups,
            f"{sum(map(is_inside_with_groups, grouped))} of {len(grouped)}" if grouped else "",
        ])  # fmt: skip
    return markdown_table(heads, lines)


def main():
    args = options(__doc__, workers=True)
    verdict, quick = Verdict("own_data_kinds", args), args.quick
    kinds = ["heavy tails", "subjects"] if quick else KINDS
    asked = [
        {"kind": kind, "standardize": standardize, "seed": seed}
        for seed in range(2 if quick else SEEDS) for kind in kinds for standardize in (False, True)
    ]  # fmt: skip
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), compare_estimates, asked, executor)
        seeds = [{"seed": seed} for seed in range(1 if quick else SEEDS)]
        single = run_trials(folder(args, f"{verdict.name}_single"), leave_out_each_subject, seeds, executor)
    verdict.check(len(rows) == len(asked), f"{len(rows)} of {len(asked)} estimates ran")
    alone = [row for row in rows if row["kind"] not in DEPENDENT]
    trusted = [row for row in alone if row["trusted"]]
    inside = sum(map(is_inside, trusted))
    about = f"independent samples: {inside} of {len(trusted)} errors on new data are in the interval, if trusted"
    verdict.check(inside >= 0.9 * len(trusted), about)
    wrong = sum(row["dependent"] for row in alone)
    verdict.check(wrong <= 0.02 * len(alone), f"{wrong} of {len(alone)} independent datasets are called dependent")
    others = [row for row in rows if row["kind"] in DEPENDENT]
    named = sum(row["dependent"] for row in others)
    verdict.check(named >= 0.8 * len(others), f"{named} of {len(others)} dependent datasets are called dependent")
    low = sum(row["trusted"] and not is_inside(row) for row in others)
    about = f"dependent samples: {low} of {len(others)} estimates are trusted, with an error outside of the interval"
    verdict.check(low <= 0.1 * len(others), about)
    grouped = [row for row in rows if row["kind"] == "subjects" and "grouped" in row]
    inside = sum(map(is_inside_with_groups, grouped))
    about = f"new subjects: {inside} of {len(grouped)} errors are in the interval of cross-validation with groups"
    verdict.check(inside >= (0.5 if quick else 0.8) * len(grouped), about)
    inside, apart = (
        sum(map(is_inside_with_groups, single)),
        np.mean([row["grouped"] / row["new"] - 1 for row in single]),
    )
    about = f"a fold for each subject: {inside} of {len(single)} errors are in the interval, {100 * apart:+.0f} % off"
    print(f"        {about}")
    verdict.write_table(format_table(rows))
    verdict.end({"rows": rows, "single": single})


if __name__ == "__main__":
    main()
