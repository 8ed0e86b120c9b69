"""Phase boundaries α_c and α_l, and the α at which branches end or become unstable, as functions of ω.

The boundaries of each model are computed by one job, whose row is stored like the cells of a sweep.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_with_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.phases.scan import (
    Boundary,
    Scan,
    find_ends,
    find_equal_loss,
    find_equal_test_error,
    find_stable_range,
)
from gamp_attention.extensions.sweeps.jobs import base_digest, digest, short_hash
from gamp_attention.extensions.sweeps.scheduler import check_workers, run_chains
from gamp_attention.extensions.sweeps.store import Store
from gamp_attention.results import Result, Status
from gamp_attention.theory.linear import linear_baseline, require_attention
from gamp_attention.theory.models.model import Model, softmax_teacher, with_parameter

if TYPE_CHECKING:
    from concurrent.futures import Executor

Values = Sequence[float] | np.ndarray
DIAGRAM_FORMAT = 6  # part of every key; increase it if the same job gives other numbers
BRANCHES = ("semantic", "positional")
ENDS = ("from", "to", "stable_from", "stable_to")
LINES = ("alpha_c", "alpha_l", *(f"{branch}_{end}" for branch in BRANCHES for end in ENDS))
HEADS = {  # heads of the columns of the table
    "alpha_c": "α_c", "alpha_l": "α_l", "semantic_from": "semantic from", "semantic_stable_from": "stable from",
    "positional_from": "positional from", "positional_to": "positional to",
}  # fmt: skip
SEARCH = ("low", "high", "tol")  # names of the numbers of a search, as they are stored
STAGES = 8  # number of times that `find_boundaries` reports progress


@dataclass(frozen=True, eq=False)
class DiagramJob:
    """Job that computes the boundaries of one model, to be run by `run_chains`."""

    model: Model
    search: tuple[float, float, float]  # range of α that is searched, and tolerance of the errors of α

    @property
    def key(self) -> str:
        """Hash of everything that determines the row."""
        return short_hash([DIAGRAM_FORMAT, digest(self.model), self.search])

    @property
    def parameters(self) -> dict[str, Any]:
        """Value of ω, and the search."""
        return {"omega": softmax_teacher(self.model).omega} | dict(zip(SEARCH, self.search, strict=True))

    @guard_call
    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """Return a row with every line as [value, error, note], and the points (α, ε_t, ε_g) of both branches."""
        try:
            with Progress(total=STAGES) as task:
                task.describe(f"omega = {softmax_teacher(self.model).omega}")
                lines, scans = find_boundaries(self.model, *self.search, task)
        except Exception as error:
            return {"status": "error", "message": f"{type(error).__name__}: {error}"}
        bad = {name: x for name, x in lines.items() if x.note.startswith("not found") or x.error > self.search[2]}
        points = {
            branch: [[alpha, point.train_loss, point.test_error] for alpha, point in sorted(scan.points.items())]
            for branch, scan in scans.items()
        }
        return {
            "status": "inaccurate" if bad else "converged",
            "message": "; ".join(f"{name}: {line.note or 'error above the tolerance'}" for name, line in bad.items()),
            "lines": {name: list(line) for name, line in lines.items()},
            "points": points,
        }


def find_boundaries(
    model: Model, low: float, high: float, tol: float, task: Progress
) -> tuple[dict[str, Boundary], dict[str, Scan]]:
    """Return all boundaries of a model by name, and the scans of the branches; `task` counts the stages."""
    lines: dict[str, Boundary] = {}
    scans = {branch: Scan(model, branch) for branch in BRANCHES}

    def run_stage(text: str, find: Callable[..., Any], *arguments: Any) -> Any:
        with Progress() as stage:
            stage.describe(text)
            boundaries = find(*arguments)
        task.update()
        return boundaries

    for branch, scan in scans.items():
        scan.solve_grid(low, high)
        task.update()
        ends = run_stage(f"ends of the {branch} branch", find_ends, scan, low, high, tol)
        lines[f"{branch}_from"], lines[f"{branch}_to"] = ends
    semantic, positional = scans.values()
    text = "α_c, where both branches have equal training loss"
    lines["alpha_c"] = run_stage(text, find_equal_loss, semantic, positional, tol)
    text = "α_l, where attention beats the linear baseline"
    lines["alpha_l"] = run_stage(text, lambda: find_equal_test_error(semantic, linear_baseline(model), tol))
    for branch, scan in scans.items():
        ends = run_stage(f"stability of the {branch} branch", find_stable_range, scan, tol)
        lines[f"{branch}_stable_from"], lines[f"{branch}_stable_to"] = ends
    return {name: lines[name] for name in LINES}, scans


@dataclass(frozen=True, eq=False)
class PhaseBoundaries(Result):
    """Boundaries in α for each value of ω. Errors are half-widths of 95 % confidence.

    Attributes
    ----------
    values : (K,) values of ω.
    low, high : range of α that was searched.
    lines : by name, K boundaries with value, error and note; a boundary that does not exist has value NaN and the
        reason as note. "alpha_c" and "alpha_l"; for "semantic" and "positional" the range of α in which the branch
        exists, `_from` and `_to`, and the range in which it is stable against the overlap that is zero on it,
        `_stable_from` and `_stable_to`.
    status : K statuses: CONVERGED, INACCURATE (an error is above the tolerance, or a line was not found) or NONFINITE.
    messages : K messages that name the inaccurate lines.
    rows : K stored results, one for each value.
    """

    values: np.ndarray
    low: float
    high: float
    lines: dict[str, list[Boundary]]
    status: list[Status]
    messages: list[str]
    rows: list[dict[str, Any]]

    @property
    def converged(self) -> bool:
        """True if every line was found to the requested accuracy, or found not to exist."""
        return all(status.converged for status in self.status)

    @property
    def alpha_c(self) -> np.ndarray:
        """(K,) α at which the positional and the semantic branch have equal training loss, or NaN."""
        return self.line("alpha_c")[0]

    @property
    def alpha_c_error(self) -> np.ndarray:
        """(K,) error of alpha_c."""
        return self.line("alpha_c")[1]

    @property
    def alpha_l(self) -> np.ndarray:
        """(K,) α beyond which the semantic branch has a lower test error than the linear baseline, or NaN."""
        return self.line("alpha_l")[0]

    @property
    def alpha_l_error(self) -> np.ndarray:
        """(K,) error of alpha_l."""
        return self.line("alpha_l")[1]

    def line(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return values (K,) and errors (K,) of a line."""
        check.choice("name", name, tuple(self.lines))
        boundaries = self.lines[name]
        return np.array([line.value for line in boundaries]), np.array([line.error for line in boundaries])

    def _rows(self) -> Rows:
        """Return a row for each value with α_c, α_l and the ranges of the branches, and notes on missing lines."""
        rows: Rows = [["omega", *HEADS.values(), "status"]]
        for k, value in enumerate(self.values):
            cells = [self.lines[name][k] for name in HEADS]
            numbers = [format_with_error(boundary.value, boundary.error, 6) for boundary in cells]
            rows.append([f"{value:g}", *numbers, self.status[k].value])
            named = zip(HEADS.values(), cells, strict=True)
            rows += [f"    {head}: {boundary.note}" for head, boundary in named if np.isnan(boundary.value)]
            rows += [f"    {self.messages[k]}"] if self.messages[k] else []
        return rows


@guard_call
def phase_boundaries(
    model: Model,
    omegas: Values | None = None,
    *,
    alphas: Values = (0.05, 4.0),
    tol: float = 1e-3,
    folder: str | Path | None = None,
    executor: "Executor | None" = None,
) -> PhaseBoundaries:
    """Compute the boundaries of phases in α as functions of ω.

    Eq. :eq:`boundaries`.

    Both branches are solved on a grid of α and continued to their ends (pseudo-arclength continuation, Keller (1977)).
    Roots along the branches are refined until their error is at most `tol`. A branch that appears and ends between two
    neighboring α of the grid is not detected.

    Parameters
    ----------
    model : model with an attention layer as student.
    omegas : values of ω; if not given, the ω of the model.
    alphas : (lowest, highest) α.
    tol : requested error of every boundary, at least 1e-6.
    folder : directory in which finished results are stored, so that the same call resumes; if not given, nothing is
        stored.
    executor : object with `submit` as in concurrent.futures, which gets a job for each value; serial if not given.

    Returns
    -------
    PhaseBoundaries

    Raises
    ------
    TypeError : if `model` is not a model of attention, or an argument has the wrong type.
    ValueError : if `omegas` is empty or has a value that the model does not allow; `alphas` is not increasing and
        positive; `tol` is below 1e-6; or `folder` has results of other settings.
    RuntimeError : if a worker failed.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> pb = ga.phase_boundaries(ga.paper_model(), omegas=[0.3], alphas=(1.0, 2.0))
    >>> f"{pb.alpha_c[0]:.2f} {pb.alpha_l[0]:.2f}"
    '1.25 1.49'
    """
    model = require_attention(model)
    values: Any = [softmax_teacher(model).omega] if omegas is None else omegas
    if check.ndim("omegas", values) == 0 or len(values) == 0:
        raise check.fail("omegas", values, "a list of at least one value")
    with check.rename(omega="omegas"):
        models = [with_parameter(model, "omega", value) for value in values]
    low, high = (check.real("alphas", float(end), low=0, strict=True) for end in check.array("alphas", alphas, (2,)))
    if not low < high:
        raise check.fail("alphas", (low, high), "(lowest, highest) α in this order")
    search = low, high, check.real("tol", tol, low=1e-6)
    check_workers(executor)
    jobs = [DiagramJob(varied, search) for varied in models]
    base = short_hash(["boundaries", base_digest(model)])
    about = {"model": base, "settings": dict(zip(SEARCH, search, strict=True)), "format": DIAGRAM_FORMAT}
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as directory:
        store = Store(directory, temporary=folder is None)
        store.begin(about | {"jobs": [job.parameters | {"key": job.key} for job in jobs]}, [job.key for job in jobs])
        run_chains([[job] for job in jobs], store, executor)
        rows = [store.load(job.key) or {"status": "error", "message": "missing from the folder"} for job in jobs]
    lost = [Boundary.none(f"not found: {row['message']}") for row in rows]
    lines = {
        line: [Boundary(*row["lines"][line]) if "lines" in row else lost[k] for k, row in enumerate(rows)]
        for line in LINES
    }
    statuses = {"converged": Status.CONVERGED, "inaccurate": Status.INACCURATE}
    status = [statuses.get(row["status"], Status.NONFINITE) for row in rows]
    messages = [row["message"] for row in rows]
    return PhaseBoundaries(np.array(values, dtype=float), low, high, lines, status, messages, rows)
