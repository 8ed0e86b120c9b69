"""Numbers of the page that reproduces the paper, from what its validation scripts have stored."""

from typing import Any

import numpy as np

from docs._results import number, stored
from validation.paper.published import load_table

OWN = {"semantic": "theta", "positional": "m"}
ARCHITECTURES = {"correlated_tokens": "correlated", "untied_weights": "untied", "value_matrix": "value"}
SCRIPTS = (
    "figure2", "training_time", "published", "finite_size", "phase_diagram", "explorer", "figure8",
    "phase_diagram_other", "histogram_task", "correlated_tokens", "rank2_student", "untied_weights", "value_matrix",
    "random_starts",
)  # fmt: skip


def percent(value: float, digits: int = 1) -> str:
    """A share with its sign, which is a minus."""
    return f"{100 * value:+.{digits}f} %".replace("-", "−")


def span(values: Any, digits: int = 1) -> str:
    """From the least to the largest share."""
    return f"{percent(min(values), digits)} to {percent(max(values), digits)}"


def checks(name: str) -> str:
    """How many checks of a script held."""
    found = stored(name)
    held, failed = len(found["held"]), len(found["failed"])
    return f"all {held} checks hold" if not failed else f"{held} of {held + failed} checks hold"


def substitutions() -> dict[str, str]:
    """All numbers, as {{ name }}."""
    found = {f"checks_{name}": checks(name) for name in SCRIPTS}
    return found | _figure2() | _published() | _sizes() | _planes() | _histogram() | _architectures() | _random()


def _figure2() -> dict[str, str]:
    numbers, found = stored("figure2"), {}
    for branch, own in OWN.items():
        judged = [point for point in numbers[branch] if point["judged"]]
        for name, key in (("q", "q"), ("own", own), ("et", "train_loss"), ("eg", "test_error")):
            off = [abs(point["gamp"][key]["mean"] / point["theory"][key] - 1) for point in judged]
            found[f"f2_{branch}_{name}"] = f"{100 * np.median(off):.1f} %"
        found[f"f2_{branch}_count"] = str(len(judged))
    for line in ("alpha_c", "alpha_l", "semantic_from"):
        found[f"f2_{line}"] = f"{numbers['lines'][line]['value']:.4f}"
    times = {branch: stored("training_time")[branch] for branch in OWN}
    for branch, own in OWN.items():
        rows = [row for row in times[branch] if own in row["published"]]
        spread = [(abs(row["published"][own][0] - row["theory"][own][0]) / row["published"][own][1]) for row in rows]
        fixed = [
            abs(row["published"][own][0] - row["fixed"][own]) / row["published"][own][1] for row in rows if row["fixed"]
        ]
        found |= {f"time_{branch}": number(max(spread), 2), f"fixed_{branch}": number(max(fixed), 2)}
    return found


def _published() -> dict[str, str]:
    numbers, found = stored("published"), {}
    for branch, most in numbers["largest"].items():
        found[f"pub_{branch}_rule"] = f"{100 * max(most['rule'].values()):.2f} %"
        found[f"pub_{branch}_count"] = str(most["judged"])
        found |= {f"pub_{branch}_{key}": percent(value) for key, value in most["ours"].items()}
    for name, line in (("c", "alpha_c"), ("l", "alpha_l")):
        off = [row["published"] / row["ours"] - 1 for row in numbers["lines"] if row["line"] == line]
        found[f"pub_alpha_{name}"] = span(off)
        (here,) = (row for row in numbers["lines"] if row["line"] == line and row["omega"] == 0.3)
        found[f"pub_alpha_{name}_here"] = f"{here['published']:.3f}"
    rows = ["| ω | α_c published | ours | α_l published | ours |", "|---" * 5 + "|"]
    at = {(row["line"], row["omega"]): row for row in numbers["lines"]}
    for omega in sorted({row["omega"] for row in numbers["lines"]}):
        cells = [at.get((line, omega)) for line in ("alpha_c", "alpha_l")]
        told = [f"{cell['published']:.3f} | {cell['ours']:.3f}" if cell else "– | –" for cell in cells]
        rows.append(f"| {omega:g} | {' | '.join(told)} |")
    branch = [row for row in numbers["curves"]["semantic"] if not row["there"] and row["published"]["own"] > 1e-2]
    found["pub_absent"] = f"{max(row['published']['own'] for row in branch):.3f}"
    judged = [row for row in numbers["slices"] if row["ours"] is not None]
    off = [abs(row["test_error"] / row["ours"] - 1) for row in judged]
    late = [row for row in numbers["slices"] if "trained" in row]
    away = [row for row in late if abs(row["test_error"] - row["trained"]) > 3 * row["test_error_spread"]]
    left = [row["m"] for row in away if row["branch"] == "semantic"]
    found |= {"pub_late": f"{len(late) - len(away)} of {len(late)}", "pub_left": f"{min(left):.2f} to {max(left):.2f}"}
    most = max((row for row in late if row["ours"] is not None), key=lambda row: row["ours"] / row["test_error"])
    for name, key in (("fixed", "ours"), ("told", "test_error"), ("trained", "trained")):
        found[f"pub_most_{name}"] = f"{1e3 * most[key]:.2f}"
    found |= {"pub_most_lam": f"{most['lam']:g}", "pub_most_alpha": f"{most['alpha']:.2f}"}
    found |= {
        "pub_lines": "\n".join(rows),
        "pub_slices": f"{100 * np.median(off):.1f} %",
        "pub_slices_count": str(len(off)),
    }
    return found


def _sizes() -> dict[str, str]:
    numbers = stored("finite_size")
    exponents = [float(claim.split("d^(")[1].split(" ±")[0]) for claim in numbers["held"] if "spreads as" in claim]
    ratios = [row["published"] / row["ours"] for row in stored("published")["sizes"]]
    return {"size_exponents": f"{min(exponents):.2f} to {max(exponents):.2f}".replace("-", "−"),
            "size_ratios": f"{min(ratios):.2f} to {max(ratios):.2f}"}  # fmt: skip


def _planes() -> dict[str, str]:
    found = {}
    for matrix, one in stored("published")["planes"].items():
        for what in ("difference", "gain"):
            part = one[what]
            found[f"plane_{matrix}_{what}"] = f"{part['same']} of {part['cells']}"
            found[f"plane_{matrix}_{what}_clear"] = f"{part['clear same']} of {part['clear']}"
        found[f"plane_{matrix}_rms"] = f"{1e3 * one['difference']['rms']:.3f}"
        for branch in OWN:
            found[f"plane_{matrix}_{branch}"] = percent(one[f"{branch} train_loss"])
    return found


def _histogram() -> dict[str, str]:
    numbers = stored("histogram_task")
    accuracy = [value for phase in ("frozen", "free") for value in numbers[phase]["test"]["accuracy"]]
    moved = np.divide(numbers["norms"]["moved"], numbers["norms"]["weights"])
    found = {"hist_accuracy": f"{100 * min(accuracy):.1f} %", "hist_moved": f"{100 * max(moved):.2f} %"}
    published = {row["start"]: row for row in load_table("histogram")}
    rows = ["| test accuracy, half of the weights frozen | published, 10 runs | ours, 3 runs |", "|---" * 3 + "|"]
    for start, row in published.items():
        mine = [
            v
            for v, (each, _) in zip(numbers["frozen"]["test"]["accuracy"], numbers["runs"], strict=True)
            if each == start
        ]
        told = f"{100 * row['accuracy']:.2f} ± {100 * row['accuracy_spread']:.2f} %"
        rows.append(f"| {start} | {told} | {100 * np.mean(mine):.2f} ± {100 * np.std(mine, ddof=1):.2f} % |")
    found["hist_table"] = "\n".join(rows)
    for start, what, name in (("positional", "positions", "place"), ("semantic", "tokens", "token")):
        runs = [r for r, (each, _) in enumerate(numbers["runs"]) if each == start]
        share = [numbers[phase]["shares"][what][r] for phase in ("frozen", "free") for r in runs]
        found[f"hist_{name}"] = f"{100 * min(share):.1f} to {100 * max(share):.1f} %"
    return found


def _architectures() -> dict[str, str]:
    found = {}
    for script, name in ARCHITECTURES.items():
        lines = stored(script)["lines"]
        for part, label in (("theory", f"{name}, state evolution"), ("finite", f"{name}, d = 300")):
            (row,) = (each for each in lines[label] if each["omega"] == 0.3)
            found[f"arch_{name}_{part}"] = f"{row['alpha_c']:.2f}" + (
                f" ± {row['alpha_c_error']:.2f}" if part == "finite" else ""
            )
    (row,) = (each for each in stored("value_matrix")["lines"]["paper, d = 300"] if each["omega"] == 0.3)
    found["arch_paper_finite"] = f"{row['alpha_c']:.2f} ± {row['alpha_c_error']:.2f}"
    off = [row["published"] / row["ours"] - 1 for row in stored("published")["rank2"]]
    found |= {"rank2_most": percent(max(off), 0), "rank2_median": percent(float(np.median(off)), 0)}
    (claim,) = (claim for claim in stored("rank2_student")["held"] if "mixed start ends within" in claim)
    found["arch_rank2_mixed"] = claim.rpartition(" in ")[2]
    return found


def _random() -> dict[str, str]:
    found = {}
    for row in stored("random_starts")["table"]:
        if row["d"] == 100 and row["optimiser"] in ("adam", "gamp"):
            shares = {end: f"{100 * value[0]:.0f} %" for end, value in row["shares"].items()}
            found |= {f"start_{row['optimiser']}_{end}": shares[end] for end in ("semantic", "positional", "neither")}
    return found
