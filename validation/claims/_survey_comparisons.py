"""Comparisons of methods in equal time: sign tests of first and further instances, and sequential tests.

The functions evaluate rows of `survey_propagation`, which states the plan of all tests. The entry "runs" of a row has
the loss and the test error of each method in an instance.
"""

from itertools import takewhile

import numpy as np

from validation._tools.report import plus_minus
from validation._tools.sign_tests import (
    LEVEL,
    MAX_INSTANCES,
    adjust,
    find_decision,
    find_required,
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
COMPLETE = 100  # number of instances of each setting, first and further together, if the time suffices
# settings with other λ and s, in the order of their runs, and the first seed of their instances
VARIED = ("α = 1, λ = 0.1", "α = 1, s = 0.1", "α = 1, λ = 0.001", "α = 1.5, s = 0.3, λ = 0.1")
FIRST_VARIED = 400
# comparisons with looks after some numbers of further instances, until both tests of a setting are significant
SEQUENTIAL = {"bounded, α = 1.5": ("lbfgs", "adam"), "phases, α = 2": ("gamp", "adam")}
LOOKS, N_TESTS = (5, 10, 15, 20), sum(map(len, SEQUENTIAL.values()))
# comparisons with tests that may stop after any further instance
STOPPED = {"phases, α = 3": ("gamp", "lbfgs", "adam"), "bounded, α = 3": ("gamp", "lbfgs", "adam"),
           "r = 2, α = 1.5": ("gamp",)}  # fmt: skip
STOPPED_LEVEL = LEVEL / sum(map(len, STOPPED.values()))


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


def find_end(rows, name):
    """Return whether the sequential tests of a setting have ended: both are significant, or it is the last look."""
    ends = [test_at_looks(list_signs(rows, f"pairs {name}", method), LOOKS, N_TESTS) for method in SEQUENTIAL[name]]
    return all(significant for _, significant in ends) or min(n for n, _ in ends) == max(LOOKS)


def format_comparisons(rows):
    """Return the table of comparisons that are not significant, with instances that would be required, and new ones."""
    heads = ["setting", "method", "lower, equal, higher than survey", "p, adjusted", "instances required",
             "further instances: lower, equal, higher", "p of these"]  # fmt: skip
    comparisons, lines = list_comparisons(rows), []
    level = LEVEL / max(sum(p > LEVEL for *_, p in comparisons), 1)
    for part, method, (lower, higher, n), p in comparisons:
        if p > LEVEL:
            required = find_required(lower, higher, n, level)
            name, further = part.removeprefix("equal time "), ("–", "–")
            more = [row for row in rows if row["part"] == f"pairs {name}" and method in row["runs"]]
            if more:
                low, high, size = count_signs(more, f"pairs {name}", method)
                further = f"{low}, {size - low - high}, {high}", f"{sign_test(low, high):.1g}"
                if method in SEQUENTIAL.get(name, ()):
                    look, significant = test_at_looks(
                        list_signs(rows, part.replace("equal time", "pairs"), method), LOOKS, N_TESTS
                    )
                    further = further[0], f"{further[1]}, {'significant' if significant else 'open'} after {look}"
            words = f"> {MAX_INSTANCES}" if required is None else f"{required}"
            lines.append(
                [name, METHODS[method], f"{lower}, {n - lower - higher}, {higher}", f"{p:.2g}", words, *further]
            )
    return markdown_table(heads, lines)


def format_stopped(rows):
    """Return the table of tests that may stop after any instance."""
    heads = ["setting", "method", "lower, equal, higher than survey", "p at any stopping time", "decided after"]
    lines = []
    for name, methods in STOPPED.items():
        for method in methods:
            signs = list_signs(rows, f"stopped {name}", method)
            if len(signs):
                counts = ", ".join(str(np.sum(signs == sign)) for sign in (-1, 0, 1))
                decision = find_decision(signs, STOPPED_LEVEL)
                words = "open" if decision is None else f"{decision}"
                lines.append([name, METHODS[method], counts, f"{sequential_p_values(signs)[-1]:.2g}", words])
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
