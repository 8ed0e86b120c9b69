"""Warm starts: cells of state evolution that differ only in α, in an order that depends on the grid alone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gamp_attention.experiments.sweeps.cells import Cell, cell_key
from gamp_attention.experiments.sweeps.compute import Settings, run_cell
from gamp_attention.experiments.sweeps.digests import base_digest
from gamp_attention.models.model import Model

DESCENDING = {"semantic": True, "positional": False}  # each branch is followed from where it certainly exists


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

    State evolution follows the semantic branch to lower α and the positional one to higher α. All else stands alone:
    message passing and descent start from their own data, and a random start means nothing if it is not random.

    Parameters
    ----------
    model, cells, settings : what to compute; the cells all differ.
    warm : whether to warm-start at all.
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
