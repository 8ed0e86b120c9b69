"""Numbers of the page that reproduces the paper, from the stored results of its validation scripts."""

from typing import Any

import numpy as np

from docs._results import format_number, load_stored
from validation._tools import catalog
from validation.paper.published import load_table

MAIN_OVERLAPS = {"semantic": "theta", "positional": "m"}
ARCHITECTURES = {"correlated_tokens": "correlated", "untied_weights": "untied", "value_matrix": "value"}
SCRIPTS = tuple(script.name for script in catalog.scripts() if script.group == "paper")


def format_percent(value: float, digits: int = 1) -> str:
    """Format a fraction in per cent, with its sign."""
    return f"{100 * value:+.{digits}f} %".replace("-", "−")


def format_range(values: Any, digits: int = 1) -> str:
    """Format the range from the smallest to the largest fraction."""
    return f"{format_percent(min(values), digits)} to {format_percent(max(values), digits)}"


def format_checks(name: str) -> str:
    """State how many checks of a script hold."""
    result = load_stored(name)
    held, failed = len(result["held"]), len(result["failed"])
    return f"all {held} checks hold" if not failed else f"{held} of {held + failed} checks hold"


def build_substitutions() -> dict[str, str]:
    """Return all numbers that the page quotes as {{ name }}."""
    values = {f"checks_{name}": format_checks(name) for name in SCRIPTS}
    return (
        values
        | _summarize_figure2()
        | _summarize_published()
        | _summarize_sizes()
        | _summarize_planes()
        | _summarize_histogram()
        | _summarize_architectures()
        | _summarize_random()
    )


def _summarize_figure2() -> dict[str, str]:
    numbers, values = load_stored("figure2"), {}
    for branch, overlap in MAIN_OVERLAPS.items():
        points = [point for point in numbers[branch] if point["judged"]]
        for name, key in (("q", "q"), ("own", overlap), ("et", "train_loss"), ("eg", "test_error")):
            deviations = [abs(point["gamp"][key]["mean"] / point["theory"][key] - 1) for point in points]
            values[f"f2_{branch}_{name}"] = f"{100 * np.median(deviations):.1f} %"
        values[f"f2_{branch}_count"] = str(len(points))
    for line in ("alpha_c", "alpha_l", "semantic_from"):
        values[f"f2_{line}"] = f"{numbers['lines'][line]['value']:.4f}"
    times = {branch: load_stored("training_time")[branch] for branch in MAIN_OVERLAPS}
    for branch, overlap in MAIN_OVERLAPS.items():
        rows = [row for row in times[branch] if overlap in row["published"]]
        spread = [
            (abs(row["published"][overlap][0] - row["theory"][overlap][0]) / row["published"][overlap][1])
            for row in rows
        ]
        fixed = [
            abs(row["published"][overlap][0] - row["fixed"][overlap]) / row["published"][overlap][1]
            for row in rows
            if row["fixed"]
        ]
        values |= {f"time_{branch}": format_number(max(spread), 2), f"fixed_{branch}": format_number(max(fixed), 2)}
    return values


def _summarize_published() -> dict[str, str]:
    numbers, values = load_stored("published"), {}
    for branch, largest in numbers["largest"].items():
        values[f"pub_{branch}_rule"] = f"{100 * max(largest['rule'].values()):.2f} %"
        values[f"pub_{branch}_count"] = str(largest["judged"])
        values |= {f"pub_{branch}_{key}": format_percent(value) for key, value in largest["ours"].items()}
    for name, line in (("c", "alpha_c"), ("l", "alpha_l")):
        deviations = [row["published"] / row["ours"] - 1 for row in numbers["lines"] if row["line"] == line]
        values[f"pub_alpha_{name}"] = format_range(deviations)
        (point,) = (row for row in numbers["lines"] if row["line"] == line and row["omega"] == 0.3)
        values[f"pub_alpha_{name}_here"] = f"{point['published']:.3f}"
    branch = [row for row in numbers["curves"]["semantic"] if not row["there"] and row["published"]["own"] > 1e-2]
    values["pub_absent"] = f"{max(row['published']['own'] for row in branch):.3f}"
    compared = [row for row in numbers["slices"] if row["ours"] is not None]
    deviations = [abs(row["test_error"] / row["ours"] - 1) for row in compared]
    trained = [row for row in numbers["slices"] if "trained" in row]
    deviating = [row for row in trained if abs(row["test_error"] - row["trained"]) > 3 * row["test_error_spread"]]
    overlaps = [row["m"] for row in deviating if row["branch"] == "semantic"]
    values |= {
        "pub_late": f"{len(trained) - len(deviating)} of {len(trained)}",
        "pub_left": f"{min(overlaps):.2f} to {max(overlaps):.2f}",
    }
    largest = max((row for row in trained if row["ours"] is not None), key=lambda row: row["ours"] / row["test_error"])
    for name, key in (("fixed", "ours"), ("told", "test_error"), ("trained", "trained")):
        values[f"pub_most_{name}"] = f"{1e3 * largest[key]:.2f}"
    values |= {"pub_most_lam": f"{largest['lam']:g}", "pub_most_alpha": f"{largest['alpha']:.2f}"}
    values |= {
        "pub_slices": f"{100 * np.median(deviations):.1f} %",
        "pub_slices_count": str(len(deviations)),
    }
    return values


def _summarize_sizes() -> dict[str, str]:
    numbers = load_stored("finite_size")
    exponents = [float(claim.split("d^(")[1].split(" ±")[0]) for claim in numbers["held"] if "spreads as" in claim]
    ratios = [row["published"] / row["ours"] for row in load_stored("published")["sizes"]]
    return {"size_exponents": f"{min(exponents):.2f} to {max(exponents):.2f}".replace("-", "−"),
            "size_ratios": f"{min(ratios):.2f} to {max(ratios):.2f}"}  # fmt: skip


def _summarize_planes() -> dict[str, str]:
    values = {}
    for matrix, plane in load_stored("published")["planes"].items():
        for quantity in ("difference", "gain"):
            part = plane[quantity]
            values[f"plane_{matrix}_{quantity}"] = f"{part['same']} of {part['cells']}"
            values[f"plane_{matrix}_{quantity}_clear"] = f"{part['clear same']} of {part['clear']}"
        values[f"plane_{matrix}_rms"] = f"{1e3 * plane['difference']['rms']:.3f}"
        for branch in MAIN_OVERLAPS:
            values[f"plane_{matrix}_{branch}"] = format_percent(plane[f"{branch} train_loss"])
    return values


def _summarize_histogram() -> dict[str, str]:
    numbers = load_stored("histogram_task")
    accuracy = [value for phase in ("frozen", "free") for value in numbers[phase]["test"]["accuracy"]]
    moved = np.divide(numbers["norms"]["moved"], numbers["norms"]["weights"])
    values = {"hist_accuracy": f"{100 * min(accuracy):.1f} %", "hist_moved": f"{100 * max(moved):.2f} %"}
    published = {row["start"]: row for row in load_table("histogram")}
    rows = ["| test accuracy, half of the weights frozen | published, 10 runs | ours, 3 runs |", "|---" * 3 + "|"]
    for start, row in published.items():
        accuracies = [
            v
            for v, (initial, _) in zip(numbers["frozen"]["test"]["accuracy"], numbers["runs"], strict=True)
            if initial == start
        ]
        text = f"{100 * row['accuracy']:.2f} ± {100 * row['accuracy_spread']:.2f} %"
        rows.append(
            f"| {start} | {text} | {100 * np.mean(accuracies):.2f} ± {100 * np.std(accuracies, ddof=1):.2f} % |"
        )
    values["hist_table"] = "\n".join(rows)
    for start, kind, name in (("positional", "positions", "place"), ("semantic", "tokens", "token")):
        runs = [r for r, (initial, _) in enumerate(numbers["runs"]) if initial == start]
        fractions = [numbers[phase]["shares"][kind][r] for phase in ("frozen", "free") for r in runs]
        values[f"hist_{name}"] = f"{100 * min(fractions):.1f} to {100 * max(fractions):.1f} %"
    return values


def _summarize_architectures() -> dict[str, str]:
    values = {}
    for script, name in ARCHITECTURES.items():
        lines = load_stored(script)["lines"]
        for part, label in (("theory", f"{name}, state evolution"), ("finite", f"{name}, d = 300")):
            (row,) = (line for line in lines[label] if line["omega"] == 0.3)
            values[f"arch_{name}_{part}"] = f"{row['alpha_c']:.2f}" + (
                f" ± {row['alpha_c_error']:.2f}" if part == "finite" else ""
            )
    (row,) = (line for line in load_stored("value_matrix")["lines"]["paper, d = 300"] if line["omega"] == 0.3)
    values["arch_paper_finite"] = f"{row['alpha_c']:.2f} ± {row['alpha_c_error']:.2f}"
    deviations = [row["published"] / row["ours"] - 1 for row in load_stored("published")["rank2"]]
    values |= {
        "rank2_most": format_percent(max(deviations), 0),
        "rank2_median": format_percent(float(np.median(deviations)), 0),
    }
    (claim,) = (claim for claim in load_stored("rank2_student")["held"] if "mixed start ends within" in claim)
    values["arch_rank2_mixed"] = claim.rpartition(" in ")[2]
    return values


def _summarize_random() -> dict[str, str]:
    values = {}
    for row in load_stored("random_starts")["table"]:
        if row["d"] == 100 and row["optimizer"] in ("adam", "gamp"):
            percents = {end: f"{100 * value[0]:.0f} %" for end, value in row["shares"].items()}
            values |= {
                f"start_{row['optimizer']}_{end}": percents[end] for end in ("semantic", "positional", "neither")
            }
    return values
