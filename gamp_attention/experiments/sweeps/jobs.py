"""Cells as jobs: the numbers of one cell, and chains of warm starts in an order that depends on the grid alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention.baselines.descent import METHODS, minimize_risk
from gamp_attention.baselines.torch_loops import few_threads
from gamp_attention.damping import DAMPING
from gamp_attention.data.dataset import RISKS
from gamp_attention.data.sampling import sample
from gamp_attention.data.test_error import sampled_test_error
from gamp_attention.experiments.sweeps.cells import Cell, cell_key
from gamp_attention.experiments.sweeps.digests import base_digest
from gamp_attention.gamp.run import run_gamp
from gamp_attention.models.model import Model
from gamp_attention.models.parameters import with_parameter
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.fixed_points.derivatives import Derivatives, solve_near
from gamp_attention.state_evolution.fixed_points.solve import checked_rtol

DESCENDING = {"semantic": True, "positional": False}  # each branch is followed from the end at which it exists
USED = {  # settings that matter to each method
    "SE": ("rtol",),
    "GAMP": ("risk", "n_test", "gamp_steps", "tol"),
    "GD": ("risk", "n_test", "descent", "gd_steps", "tol"),
}


@dataclass(frozen=True)
class Settings:
    """What all cells of a sweep share."""

    rtol: float = 1e-3  # accuracy of state evolution; all below is for message passing and descent
    risk: str = "exact"
    n_test: int = 1000  # fresh sentences for the test error
    descent: str = "gd"
    gd_steps: int = 5000  # bounds on the iterations
    gamp_steps: int = 500
    tol: float = 1e-8  # bound on the gradient norm

    def __post_init__(self) -> None:
        plain = {
            "rtol": checked_rtol(self.rtol),
            "risk": check.choice("risk", self.risk, RISKS),
            "n_test": check.integer("n_test", self.n_test, low=2),
            "descent": check.choice("descent", self.descent, METHODS),
            "gd_steps": check.integer("gd_steps", self.gd_steps, low=1),
            "gamp_steps": check.integer("gamp_steps", self.gamp_steps, low=1),
            "tol": check.real("tol", self.tol, low=0),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def used_by(self, method: str) -> dict[str, Any]:
        """The settings that matter to a method, by name."""
        return {name: getattr(self, name) for name in USED[method]}


@quiet
def run_cell(
    model: Model, cell: Cell, settings: Settings, previous_row: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The row of a cell: plain numbers, lists and words.

    The cell replaces the model's ω, λ and σ. State evolution is started from the row before it in a chain, if any.

    Returns
    -------
    dict with status, message, and where the solver returned: converged, n_iter, residual, start, overlaps and
    overlaps_error (lists by name), train_loss, test_error, replicon, jump_share, gradient_norm, and errors named
    *_error. Numbers that a method does not have are left out. A cell that raises has the status "error".
    """
    try:
        for name in ("omega", "lam", "sigma"):
            if getattr(cell, name) is not None:
                model = with_parameter(model, name, getattr(cell, name))
        if cell.method == "SE":
            return _state_evolution(model, cell, settings, previous_row)
        return _finite_size(model, cell, settings)
    except Exception as error:
        return {"status": "error", "message": f"{type(error).__name__}: {error}"}


def row_overlaps(row: dict[str, Any], name: str = "overlaps") -> Overlaps | None:
    """The overlaps that a row holds, or None."""
    found = row.get(name)
    return None if found is None else Overlaps(**{key: np.array(values) for key, values in found.items()})


def _state_evolution(
    model: Model, cell: Cell, settings: Settings, previous_row: dict[str, Any] | None
) -> dict[str, Any]:
    before = previous_row if previous_row is not None and previous_row.get("converged") else {}
    known = Derivatives.from_dict(before["derivatives"]) if before.get("derivatives") else None
    result, known, warm = solve_near(model, cell.alpha, cell.branch, row_overlaps(before), settings.rtol, known)
    numbers = ("relative_error", "train_loss_error", "test_error", "test_error_error", "replicon", "replicon_error")
    total = result.V_hat.sum()
    row = _common(result, result.validity, "predecessor" if warm else "name")
    row |= {name: float(getattr(result, name)) for name in numbers}
    return row | {
        "derivatives": None if known is None else known.to_dict(),
        "overlaps_error": _lists(result.overlaps_error),
        "jump_share": float(result.jump_mass.sum() / total),
        "jump_share_error": float(result.jump_mass_error.sum() / total),
    }


def _finite_size(model: Model, cell: Cell, settings: Settings) -> dict[str, Any]:
    assert cell.d is not None
    assert cell.seed is not None
    data = sample(model, cell.d, cell.alpha, cell.seed)
    options: Any = {"tol": settings.tol, "seed": cell.seed}
    if cell.method == "GAMP":
        options |= {"damping": DAMPING.get(cell.branch, "adaptive"), "max_iter": settings.gamp_steps}
        result: Any = run_gamp(data, cell.branch, settings.risk, **options)
        message = result.message
    else:
        options |= {"method": settings.descent, "max_iter": settings.gd_steps}
        with few_threads(0):  # sums in torch depend on the number of threads, which a cell must not
            result = minimize_risk(data, cell.branch, settings.risk, **options)
        message = f"{settings.descent}: {result.status.value} after {result.n_iter} steps"
    error, error_error = sampled_test_error(data, result.Q, n_samples=settings.n_test, seed=cell.seed)
    return _common(result, message, "name") | {
        "test_error": error,
        "test_error_error": error_error,
        "gradient_norm": float(result.gradient_norm),
    }


def _common(result: Any, message: str, start: str) -> dict[str, Any]:
    return {
        "status": result.status.value,
        "message": message,
        "start": start,
        "converged": bool(result.converged),
        "n_iter": int(result.n_iter),
        "residual": float(result.residual),
        "overlaps": _lists(result.overlaps),
        "train_loss": float(result.train_loss),
    }


def _lists(overlaps: Overlaps) -> dict[str, Any]:
    return {name: values.tolist() for name, values in overlaps.arrays().items()}


@dataclass(frozen=True, eq=False)
class CellJob:
    """A cell as a job for `scheduler`."""

    key: str
    model: Model
    cell: Cell
    settings: Settings

    @property
    def parameters(self) -> dict[str, Any]:
        """The cell's fields."""
        return asdict(self.cell)

    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """The row of the cell."""
        return run_cell(self.model, self.cell, self.settings, previous)


def chains(model: Model, cells: Sequence[Cell], settings: Settings, warm: bool = True) -> list[list[CellJob]]:
    """Cells as chains of jobs; each job is started from the row of the one before it.

    Where `warm`, state evolution follows the semantic branch to lower α and the positional one to higher α. All other
    cells stand alone: message passing and descent start from their own data, and random starts are drawn anew.
    """
    groups: dict[Cell | tuple[Cell], list[Cell]] = {}
    for cell in cells:
        follows = warm and cell.method == "SE" and cell.branch in DESCENDING
        groups.setdefault(replace(cell, alpha=0.0) if follows else (cell,), []).append(cell)
    base = base_digest(model)
    found = []
    for group in groups.values():
        key, jobs = None, []
        for cell in sorted(group, key=lambda cell: cell.alpha, reverse=DESCENDING.get(group[0].branch, False)):
            key = cell_key(cell, base, settings.used_by(cell.method), key)
            jobs.append(CellJob(key, model, cell, settings))
        found.append(jobs)
    return found
