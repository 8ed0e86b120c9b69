"""Comparisons of methods in equal time: tables, and sign tests of first, further and separate instances.

The functions evaluate rows of `survey_propagation`, which states the plan of all tests. The entry "runs" of a row has
the loss and the test error of each method in an instance.
"""

from itertools import takewhile

import numpy as np
from scipy.stats import binomtest

from validation._tools.report import plus_minus
from validation._tools.sign_tests import (
    LEVEL,
    adjust,
    find_decision,
    sequential_p_values,
    sign_test,
    test_at_looks,
)
from validation._tools.tables import markdown_table

METHODS = {"survey": "survey", "gamp": "GAMP", "lbfgs": "L-BFGS", "adam": "Adam"}
COMPETITORS = tuple(method for method in METHODS if method != "survey")
EQUAL = 1e-6  # relative difference of losses and test errors that are equal
FIRST = {  # number of instances of the first comparisons, for each setting
    "α = 0.6": 14, "α = 0.8": 13, "α = 1": 13, "α = 1.5": 13, "α = 1.5, s = 0.3": 12, "L = 3, α = 0.5": 13,
    "L = 5, α = 0.3": 13, "untied, α = 1.5": 13, "phases, α = 2": 12, "phases, α = 3": 12, "two layers, α = 2": 12,
    "bounded, α = 1.5": 12, "bounded, α = 3": 6, "r = 2, α = 1.5": 12,
}  # fmt: skip
COMPLETE = 100  # number of instances of each setting, first and further together
# settings with other λ and s, in the order of their runs, and the first seed of their instances
VARIED = ("α = 1, λ = 0.1", "α = 1, s = 0.1", "α = 1, λ = 0.001", "α = 1.5, s = 0.3, λ = 0.1")
FIRST_VARIED = 400
# tests with separate instances: in a fixed number, with looks after some numbers, and valid at any number of instances
PAIRS = {"α = 1.5": ("gamp",), "L = 3, α = 0.5": ("gamp",), "L = 5, α = 0.3": ("lbfgs",)}
SEQUENTIAL = {"bounded, α = 1.5": ("lbfgs", "adam"), "phases, α = 2": ("gamp", "adam")}
STOPPED = {"phases, α = 3": ("gamp", "lbfgs", "adam"), "bounded, α = 3": ("gamp", "lbfgs", "adam"),
           "r = 2, α = 1.5": ("gamp",)}  # fmt: skip
LOOKS = (5, 10, 15, 20)  # numbers of instances after which the tests of `SEQUENTIAL` are made


def collect(rows, part, method, name):
    """Return a number of all instances of a part."""
    return np.array([row["runs"][method][name] for row in rows if row["part"] == part])


def compute_ratios(rows, part, method, other="informed", name="loss"):
    """Return the ratios of a method's losses, or other numbers, to those of another method, for all instances."""
    return collect(rows, part, method, name) / collect(rows, part, other, name)


def list_parts(rows, kind):
    """Return the names of the parts of a kind, in the order of the settings."""
    parts = {row["part"] for row in rows if row["part"].startswith(kind)}
    order = [f"equal time {name}" for name in (*FIRST, *VARIED)]
    return sorted(parts, key=lambda part: (order.index(part) if part in order else 0, part))


def count_signs(rows, part, method, name="loss"):
    """Return the numbers of instances in which a method's loss, or another number, is lower and higher than surveys'.

    The third number is the number of instances.
    """
    ratios = compute_ratios(rows, part, method, "survey", name)
    return int(np.sum(ratios < 1 - EQUAL)), int(np.sum(ratios > 1 + EQUAL)), len(ratios)


def list_signs(rows, part, method):
    """Return the signs of the differences of losses from surveys in the instances of a part that have the method."""
    ratios = compute_ratios([row for row in rows if method in row["runs"]], part, method, "survey")
    return np.where(ratios < 1 - EQUAL, -1, np.where(ratios > 1 + EQUAL, 1, 0))


def format_range(values, form="{:.3f}"):
    """Format the median and the range of numbers."""
    return f"{form} ({form} to {form})".format(np.median(values), np.min(values), np.max(values))


def format_count(count, n):
    """Format a number of instances, and the 95 % interval of its fraction by Wilson's method."""
    interval = binomtest(int(count), n).proportion_ci(method="wilson")
    return f"{count} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def compare_pairs(rows, part, method):
    """Return how often a method's loss is lower, equal or higher than the loss of surveys, and its mean logarithm."""
    if method == "survey":
        return "–", "–"
    ratios = compute_ratios(rows, part, method, "survey")
    lower, higher = np.sum(ratios < 1 - EQUAL), np.sum(ratios > 1 + EQUAL)
    logs = np.log(ratios)
    difference = plus_minus(logs.mean(), logs.std(ddof=1) / np.sqrt(len(logs))) if len(logs) > 1 else f"{logs[0]:.3f}"
    return f"{lower}, {len(ratios) - lower - higher}, {higher}", difference


def format_table(rows):
    """Return the table of equal times: medians and ranges for each setting and method, and pairs with surveys."""
    heads = ["setting, instances", "method", "training loss / informed", "not above informed (95 %)",
             "lower, equal, higher than survey", "mean ln(loss / survey)", "test error", "cosine with the teacher",
             "starts", "seconds"]  # fmt: skip
    lines = []
    for part in list_parts(rows, "equal time"):
        for method, words in {"informed": "informed", **METHODS}.items():
            ratios = compute_ratios(rows, part, method)
            name = f"{part.removeprefix('equal time ')}, {len(ratios)}" if method == "informed" else ""
            low = format_count(np.sum(ratios <= 1 + EQUAL), len(ratios)) if method != "informed" else "–"
            form = "{:.3g}" if ratios.max() > 10 else "{:.4f}"
            loss = format_range(ratios, form) if method != "informed" else "1"
            test = format_range(collect(rows, part, method, "test_error"), "{:.3g}")
            cosine = format_range(collect(rows, part, method, "cosine"), "{:.2f}")
            starts = f"{np.median(collect(rows, part, method, 'n_runs')):g}"
            seconds = "–" if method == "informed" else f"{np.median(collect(rows, part, method, 'seconds')):.1f}"
            lines.append([name, words, loss, low, *compare_pairs(rows, part, method), test, cosine, starts, seconds])
    return markdown_table(heads, lines)


def list_first(rows):
    """Return the rows of the first instances of each setting in equal time."""
    first = {f"equal time {name}": n for name, n in FIRST.items()}
    return [row for row in rows if row["seed"] < first.get(row["part"], 0)]


def list_further(rows, name):
    """Return the rows of the further instances of a setting, without a gap in the order of seeds."""
    seeds = range(FIRST_VARIED, FIRST_VARIED + COMPLETE) if name in VARIED else range(FIRST[name], COMPLETE)
    known = {row["seed"]: row for row in rows if row["part"] == f"equal time {name}" and row["seed"] in seeds}
    return [known[seed] for seed in takewhile(known.__contains__, seeds)]


def list_comparisons(rows):
    """Return part, method, counts and adjusted p-value of all comparisons of the first instances in equal time."""
    rows = list_first(rows)
    pairs = [(part, method) for part in list_parts(rows, "equal time") for method in COMPETITORS]
    counts = [count_signs(rows, *pair) for pair in pairs]
    ps = adjust(np.array([sign_test(*each[:2]) for each in counts]))
    return [(*pair, each, float(p)) for pair, each, p in zip(pairs, counts, ps, strict=True)]


def list_separate(rows):
    """Return setting, method, signs, kind of test, adjusted p-value and its instances of tests with separate instances.

    p-values are multiplied by the number of tests of their kind, and by the number of looks.
    """
    pairs, looks, stopped = (
        [(name, method) for name, methods in kind.items() for method in methods]
        for kind in (PAIRS, SEQUENTIAL, STOPPED)
    )
    tests, signs = [], [list_signs(rows, f"pairs {name}", method) for name, method in pairs]
    ps = adjust(np.array([sign_test(*count(each)) for each in signs]))
    for pair, each, p in zip(pairs, signs, ps, strict=True):
        tests.append((*pair, each, "fixed", p, len(each)))
    for name, method in looks:
        each = list_signs(rows, f"pairs {name}", method)
        end, _ = test_at_looks(each, LOOKS, len(looks))
        p = sign_test(*count(each[:end])) * len(looks) * len(LOOKS)
        tests.append((name, method, each, "looks", p, end))
    for name, method in stopped:
        each = list_signs(rows, f"stopped {name}", method)
        end = find_decision(each, LEVEL / len(stopped)) or len(each)
        p = sequential_p_values(each)[end - 1] * len(stopped)
        tests.append((name, method, each, "any time", p, end))
    return [(*test, min(p, 1.0), end) for *test, p, end in tests]


def count(signs):
    """Return the numbers of negative and of positive signs."""
    return int(np.sum(signs < 0)), int(np.sum(signs > 0))


def format_separate(rows):
    """Return the table of the tests with separate instances."""
    heads = ["setting", "method", "test", "lower, equal, higher than survey", "p, adjusted", "after"]
    lines = []
    for name, method, signs, kind, p, end in list_separate(rows):
        lower, higher = count(signs)
        counts = f"{lower}, {len(signs) - lower - higher}, {higher}"
        lines.append([name, METHODS[method], kind, counts, f"{p:.1g}", end])
    return markdown_table(heads, lines)


def list_fixed(rows):
    """Return setting, method, counts and adjusted p-value of all comparisons of the further instances in equal time."""
    return test_further(rows, FIRST, "loss")


def list_varied(rows, name="loss"):
    """Return setting, method, counts and adjusted p-value of the comparisons over λ and s, of losses or test errors."""
    return test_further(rows, VARIED, name)


def test_further(rows, settings, number):
    """Return setting, method, counts and p-value, adjusted for all comparisons, of a number in further instances."""
    pairs = [(name, method) for name in settings for method in COMPETITORS]
    counts = [count_signs(list_further(rows, name), f"equal time {name}", method, number) for name, method in pairs]
    ps = adjust(np.array([sign_test(*each[:2]) for each in counts]))
    return [(*pair, each, float(p)) for pair, each, p in zip(pairs, counts, ps, strict=True)]


def format_fixed(rows):
    """Return the table of comparisons of the further instances, with differences of losses and test errors."""
    heads = ["setting, further instances", "method", "lower, equal, higher than survey", "p, adjusted",
             "mean ln(loss / survey)", "test error lower, higher", "mean ln(test error / survey)"]  # fmt: skip
    return markdown_table(heads, [line for line, _ in describe_tests(rows, list_fixed(rows))])


def format_varied(rows):
    """Return the table of comparisons over λ and s, with tests of losses and of test errors."""
    heads = ["setting, instances", "method", "lower, equal, higher than survey", "p, adjusted",
             "mean ln(loss / survey)", "test error lower, higher", "mean ln(test error / survey)",
             "p of test errors, adjusted"]  # fmt: skip
    ps = {(name, method): p for name, method, _, p in list_varied(rows, "test_error")}
    lines = describe_tests(rows, list_varied(rows))
    return markdown_table(heads, [[*line, f"{ps[pair]:.2g}"] for line, pair in lines])


def describe_tests(rows, tests):
    """Return the entries of a line of a table, and setting and method, for each test that has instances."""
    lines = []
    for name, method, (lower, higher, n), p in tests:
        if n > 1:
            further, part = list_further(rows, name), f"equal time {name}"
            logs = [np.log(compute_ratios(further, part, method, "survey", each)) for each in ("loss", "test_error")]
            counts = f"{np.sum(logs[1] < -EQUAL)}, {np.sum(logs[1] > EQUAL)}"
            means = [plus_minus(each.mean(), each.std(ddof=1) / np.sqrt(n)) for each in logs]
            setting = f"{name}, {n}" if method == COMPETITORS[0] else ""
            signs = f"{lower}, {n - lower - higher}, {higher}"
            lines.append(([setting, METHODS[method], signs, f"{p:.2g}", means[0], counts, means[1]], (name, method)))
    return lines
