"""All boundaries of one model, as a job that is stored as one row."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gamp_attention._core.overflow import quiet
from gamp_attention._core.progress import Progress
from gamp_attention.baselines.linear import linear_baseline
from gamp_attention.bayes.thresholds import bayes_thresholds
from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.scan import Scan
from gamp_attention.experiments.phase_diagram.spinodals import existence, stability_changes
from gamp_attention.experiments.phase_diagram.transitions import beats_baseline, equal_loss
from gamp_attention.experiments.sweeps.digests import digest, short_hash
from gamp_attention.models.model import Model

DIAGRAM_FORMAT = 3  # part of every key: to be raised when the same job gives other numbers
BRANCHES = ("semantic", "positional")
LINES = (
    "alpha_c",
    "alpha_l",
    *(f"{branch}_{what}" for branch in BRANCHES for what in ("from", "to", "stable_from", "stable_to")),
)
STAGES = 8  # number of times that `find` reports progress
BAYES_LINES = ("weak_recovery", "full_recovery", "hard_from", "hard_to")


@dataclass(frozen=True)
class Search:
    """The range of α to look in, and the error of α asked for."""

    low: float
    high: float
    tol: float


@dataclass(frozen=True, eq=False)
class DiagramJob:
    """The boundaries of one model; a job for `gamp_attention.experiments.sweeps.scheduler`."""

    model: Model
    name: str
    value: Any
    search: Search
    bayes: bool = False  # whether the thresholds of Bayes-optimal estimation are among the lines

    @property
    def key(self) -> str:
        """A hash of all that determines the row."""
        more = ["bayes"] if self.bayes else []
        return short_hash([DIAGRAM_FORMAT, digest(self.model), asdict(self.search), *more])

    @property
    def parameters(self) -> dict[str, Any]:
        """What is varied, its value, and the search."""
        return {"parameter": self.name, "value": self.value, **asdict(self.search)}

    @quiet
    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """Every line as [value, error, note], and the points that were solved on the way."""
        try:
            with Progress(total=STAGES + self.bayes) as task:
                task.describe(f"{self.name} = {self.value}")
                found, scans = find(self.model, self.search, task)
                if self.bayes:
                    task.describe(f"{self.name} = {self.value}, thresholds of the Bayes-optimal estimate")
                    found |= thresholds(self.model)
        except Exception as error:
            return {"status": "error", "message": f"{type(error).__name__}: {error}"}
        late = [
            name for name, line in found.items() if line.note.startswith("not found") or line.error > self.search.tol
        ]
        return {
            "status": "inaccurate" if late else "converged",
            "message": "; ".join(f"{name}: {found[name].note or 'error above the tolerance'}" for name in late),
            "lines": {name: list(line) for name, line in found.items()},
            "points": {
                branch: [[a, point.train_loss, point.test_error] for a, point in sorted(scan.found.items())]
                for branch, scan in scans.items()
            },
        }


def find(model: Model, search: Search, task: Progress) -> tuple[dict[str, Boundary], dict[str, Scan]]:
    """Return all boundaries of a model by name, and the branches they come from; `task` counts the stages."""
    found, scans = {}, {branch: Scan(model, branch) for branch in BRANCHES}
    for branch, scan in scans.items():
        scan.climb(search.low, search.high)
        task.update()
        with Progress() as stage:
            stage.describe(f"ends of the {branch} branch")
            found[f"{branch}_from"], found[f"{branch}_to"] = existence(scan, search.low, search.high, search.tol)
        task.update()
    semantic, positional = scans.values()
    with Progress() as stage:
        stage.describe("α_c, where both branches have equal training loss")
        found["alpha_c"] = equal_loss(semantic, positional, search.tol)
    task.update()
    with Progress() as stage:
        stage.describe("α_l, where attention beats the linear baseline")
        found["alpha_l"] = beats_baseline(semantic, linear_baseline(model), search.tol)
    task.update()
    for branch, scan in scans.items():
        with Progress() as stage:
            stage.describe(f"stability of the {branch} branch")
            found[f"{branch}_stable_from"], found[f"{branch}_stable_to"] = _stable(scan, search.tol)
        task.update()
    return {name: found[name] for name in LINES}, scans


def thresholds(model: Model) -> dict[str, Boundary]:
    """Where the Bayes-optimal estimate begins to work and is complete, and between which α it is hard to find."""
    try:
        found = bayes_thresholds(model)
    except ValueError as error:
        return dict.fromkeys(BAYES_LINES, Boundary.none(f"none: {error}"))
    lines = {}
    for name in BAYES_LINES[:2]:
        pair = getattr(found, name), getattr(found, f"{name}_error")
        lines[name] = Boundary(*pair, "") if np.isfinite(pair[0]) else Boundary.none(found.notes[name])
    ends = zip(BAYES_LINES[2:], found.hard or (), found.hard_error or (), strict=False)
    hard = {name: Boundary(end, half, "") for name, end, half in ends}
    return lines | (
        hard or dict.fromkeys(BAYES_LINES[2:], Boundary.none(found.notes.get("hard", "none: nowhere hard")))
    )


def _stable(scan: Scan, tol: float) -> tuple[Boundary, Boundary]:
    """The ends of the range of α in which the branch is stable; of the range at largest α, where there are several."""
    if not scan.found:
        none = Boundary.none(f"none: there is no {scan.branch} branch")
        return none, none
    changes, stable_below = stability_changes(scan, tol)
    if not changes:
        none = Boundary.none(f"none: the {scan.branch} branch is {'' if stable_below else 'un'}stable throughout")
        return none, none
    above = [line for line, stable in changes if stable]
    below = [line for line, stable in changes if not stable]
    return (
        above[-1] if above else Boundary.none("none: stable from its lower end on"),
        below[-1] if below else Boundary.none("none: stable up to its upper end"),
    )
