"""One architecture over the (α, ω) plane beside the paper's model on the same samples, and its state evolution."""

from dataclasses import dataclass
from typing import Any

from validation._tools.report import Verdict, folder, options, pool
from validation._tools.trials import run_trials
from validation.paper._architectures.checks import compare, judge
from validation.paper._architectures.figures import draw, markdown
from validation.paper._architectures.instances import ARCHITECTURES, ORDERS, SLICE, descents
from validation.paper._architectures.tables import by_alpha, cell, finite_crossing
from validation.paper._architectures.theory import crossing, point

FULL = {
    "alphas": (0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2), "omegas": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5), "d": 300,
    "seeds": 4, "slice_seeds": 16, "predicted": (0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2), "crossed": (0.1, 0.2, 0.3, 0.4),
}  # fmt: skip
QUICK = {
    "alphas": (0.8, 1.6, 3.2), "omegas": (0.1, 0.3), "d": 100, "seeds": 2, "slice_seeds": 4, "predicted": (3.2,),
    "crossed": (),
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """What was computed of an architecture: instances of it and of the paper's model, predictions, sizes."""

    name: str
    size: dict[str, Any]
    rows: list[dict[str, Any]]
    paper: list[dict[str, Any]]
    theory: list[dict[str, Any]]
    lines: dict[str, list[dict[str, Any]]]

    @property
    def starts(self):
        return ARCHITECTURES[self.name].starts

    @property
    def kinds(self):
        """Whether minima are of one kind or the other; those of a rank-2 student may be of both."""
        return "mixed" not in self.starts


def main(description, script, name, own_checks):
    """The script of an architecture: run, judge, store, draw."""
    found = options(description, draw=True, workers=True)
    verdict = Verdict(script, found)
    if found.draw:
        return show(verdict.stored(), verdict)
    study = run(found, name)
    judge(verdict, study)
    own_checks(verdict, study)
    result = numbers(study)
    show(result, verdict)
    verdict.end(result)


def show(result, verdict):
    """The table and the picture."""
    verdict.path(".md").write_text(markdown(result))
    draw(result, verdict.path(".png"))


def run(found, name):
    """All instances and predictions, those stored before and those missing."""
    size = QUICK if found.quick else FULL
    plan = {
        which: [
            {
                "architecture": which, "omega": omega, "alpha": alpha, "d": size["d"], "seed": seed,
                "gamp": omega == SLICE and not found.quick,
            }
            for omega in size["omegas"] for alpha in size["alphas"]
            for seed in range(size["slice_seeds" if omega == SLICE else "seeds"])
        ]
        for which in ("paper", name)
    }  # fmt: skip
    branches = ("mixed",) if name == "rank2" else ORDERS
    predicted = [
        {"architecture": name, "omega": SLICE, "alpha": alpha, "branch": branch}
        for alpha in size["predicted"] for branch in branches
    ]  # fmt: skip
    crossed = [
        {"architecture": which, "omega": omega, "alphas": list(size["alphas"])}
        for which in ("paper", *(() if name == "rank2" else (name,))) for omega in size["crossed"]
    ]  # fmt: skip
    with pool(found) as executor:
        where = folder(found, "architectures")
        rows = {which: run_trials(where / "descents", descents, jobs, executor) for which, jobs in plan.items()}
        theory = run_trials(where / "theory", point, predicted, executor)
        lines = run_trials(where / "alpha_c", crossing, crossed, executor)
    transitions = {}
    for which in ("paper",) if name == "rank2" else (name, "paper"):
        transitions[f"{which}, state evolution"] = [line for line in lines if line["architecture"] == which]
        transitions[f"{which}, d = {size['d']}"] = [
            {"omega": omega} | finite_crossing(rows[which], omega) for omega in size["omegas"]
        ]
    return Study(name, size, rows[name], rows["paper"], theory, transitions)


def numbers(study):
    """What is stored and drawn: means of all cells, predictions, transitions."""

    def cells(rows, starts, kinds):
        return [cell(part, starts, kinds) for omega in study.size["omegas"] for part in by_alpha(rows, omega).values()]

    return {
        "architecture": study.name, "title": ARCHITECTURES[study.name].title, "size": study.size, "slice": SLICE,
        "starts": study.starts, "kinds": study.kinds, "theory": study.theory, "lines": study.lines,
        "cells": cells(study.rows, study.starts, study.kinds), "paper": cells(study.paper, ORDERS, True),
        "compared": compare(study),
    }  # fmt: skip
