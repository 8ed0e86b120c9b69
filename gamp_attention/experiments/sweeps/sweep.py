"""`sweep`: any grid or list of cells, computed where it is missing and kept in a folder."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules
from gamp_attention._core.text import Rows
from gamp_attention.baselines.descent import require_method
from gamp_attention.experiments.sweeps.cells import CELL_FORMAT, Cell, grid, listed
from gamp_attention.experiments.sweeps.digests import base_digest
from gamp_attention.experiments.sweeps.jobs import Settings, chains
from gamp_attention.experiments.sweeps.scheduler import check_workers, run_chains
from gamp_attention.experiments.sweeps.store import Store
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import Result

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """Outcome of `sweep`.

    Attributes
    ----------
    folder : where the cells are kept.
    cells : what was asked for.
    rows : a dict for each cell, with its key, its fields, what `jobs.run_cell` returns, and versions, commit and
        seconds.
    computed, reused : how many cells were computed now, and how many before.
    about : the model's hash as "model", and "settings".
    """

    folder: Path
    cells: list[Cell]
    rows: list[dict[str, Any]]
    computed: int
    reused: int
    about: dict[str, Any]

    @property
    def counts(self) -> dict[str, int]:
        """Cells by status."""
        return dict(sorted(Counter(row["status"] for row in self.rows).items()))

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """The fields of the cells."""
        return [asdict(cell) for cell in self.cells]

    def to_dict(self) -> dict[str, Any]:
        """Plain data of all fields, with the counts."""
        return super().to_dict() | {"counts": self.counts}

    def _rows(self) -> Rows:
        return [f"{len(self.rows)} cells, {self.computed} computed now: {self.counts}", f"cells: {self.folder}"]

    def dataset(self) -> "xarray.Dataset":
        """The numbers as an xarray Dataset, see `gamp_attention.to_dataset`."""
        from gamp_attention.experiments.sweeps.to_xarray import to_dataset

        return to_dataset(self)


def sweep(
    model: Model,
    folder: str | Path,
    *,
    alpha: Any = None,
    omega: Any = None,
    lam: Any = None,
    sigma: Any = None,
    d: Any = 1000,
    seed: Any = 0,
    branch: Any = ("semantic", "positional"),
    method: Any = "SE",
    cells: Any = None,
    rtol: float = 1e-3,
    risk: str = "exact",
    n_test: int = 1000,
    descent: str = "gd",
    gd_steps: int = 5000,
    gamp_steps: int = 500,
    tol: float = 1e-8,
    warm: bool = True,
    executor: Any = None,
    threads: int | None = None,
) -> Sweep:
    """Compute all cells of a grid or a list that the folder does not hold yet, each stored as it is finished.

    Interrupted at any moment, it goes on where it was when called again. A cell that fails is a row with the status
    "error" and a message, and is kept like any other.

    Parameters
    ----------
    model : the problem; axes that are not given are taken from it.
    folder : where the cells are kept, of this model alone, whatever its ω, λ and σ. All workers must see it.
    alpha, omega, lam, sigma, d, seed, branch, method : the axes, each one value or a sequence. Methods are "SE",
        "GAMP" and "GD", branches "semantic", "positional" and "random"; d and seed do not concern "SE".
    cells : in place of one grid, a list of dicts with axes as keys, each a grid of its own; axes that a dict lacks are
        taken from above.
    rtol : accuracy of state evolution.
    risk : of message passing and descent, "exact" or "asymptotic".
    n_test : fresh sentences that the test error is measured on.
    descent, gd_steps, gamp_steps : method of descent, and bounds on the iterations.
    tol : bound on ‖∇R‖_F/(λ√d) of message passing and descent.
    warm : start state evolution from the neighbouring solution in α, where that stays on the branch.
    executor : any executor as in concurrent.futures, for instance `gamp_attention.local_pool(2)` or `get_executor()`
        of a dask client; serial if not given.
    threads : of the compiled kernels in a cell; all when serial and one on an executor, if not given.

    Returns
    -------
    Sweep

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ImportError : if descents are asked for without torch.
    RuntimeError : if a worker failed, or wrote to another file system.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import gamp_attention as ga
    >>> with TemporaryDirectory() as folder:
    ...     done = ga.sweep(ga.paper_model(), folder, alpha=[1.0, 1.5], method="GAMP", branch="semantic", d=100)
    >>> done.counts, done.computed
    ({'converged': 2}, 2)
    """
    model = require_model(model)
    settings = Settings(rtol, risk, n_test, descent, gd_steps, gamp_steps, tol)
    check.flag("warm", warm)
    check_workers(executor, threads)
    axes = {"omega": omega, "lam": lam, "sigma": sigma, "d": d, "seed": seed, "branch": branch, "method": method}
    if cells is not None:
        wanted = listed(model, cells, alpha=alpha, **axes)
    elif alpha is None:
        raise check.fail("alpha", alpha, "a number or a sequence of them")
    else:
        wanted = grid(model, alpha=alpha, **axes)
    if any(cell.method == "GD" for cell in wanted):
        require_modules("method: 'GD'", "torch")
        require_method("descent", settings.descent, model.penalty)
    work, store = chains(model, wanted, settings, warm), Store(folder)
    keys = {job.cell: job.key for chain in work for job in chain}
    about = {"model": base_digest(model), "settings": asdict(settings) | {"warm": warm}}
    store.begin(about | {"format": CELL_FORMAT, "cells": [asdict(cell) | {"key": keys[cell]} for cell in wanted]})
    computed = run_chains(work, store, executor, threads=threads)
    rows = [store.load(keys[cell]) for cell in wanted]
    found = [row for row in rows if row is not None]
    if len(found) < len(rows):
        raise RuntimeError(f"{len(rows) - len(found)} cells are not in {store.folder}: do all workers see it?")
    return Sweep(store.folder, wanted, found, computed, len(wanted) - computed, about)
