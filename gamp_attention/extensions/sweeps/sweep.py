"""Sweeps: grids or lists of solver runs, stored in a folder."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import suggestion
from gamp_attention._tools.display import Rows, count_noun
from gamp_attention._tools.numerics import guard_call
from gamp_attention.descent.minimize import require_method
from gamp_attention.extensions.sweeps.jobs import (
    AXES,
    CELL_FORMAT,
    Cell,
    Settings,
    base_digest,
    chains,
    expand_cells,
    grid,
)
from gamp_attention.extensions.sweeps.scheduler import check_workers, run_chains
from gamp_attention.extensions.sweeps.store import Store
from gamp_attention.results import Result
from gamp_attention.theory.models.model import Model, require_model

if TYPE_CHECKING:
    from concurrent.futures import Executor

Numbers = float | Sequence[float] | np.ndarray
Integers = int | Sequence[int] | np.ndarray
Words = str | Sequence[str]


@dataclass(frozen=True, eq=False)
class Sweep(Result):
    """Result of `sweep`.

    Attributes
    ----------
    folder : directory in which the cells are stored.
    cells : the requested cells.
    rows : a dict for each cell: its key and fields, the numbers of its solver, package versions, commit, and seconds.
        ``pandas.json_normalize(rows)`` makes a table of them.
    computed, reused : numbers of cells that this call computed, and that were stored already.
    about : hash of the model as "model", and "settings".
    """

    folder: Path
    cells: list[Cell]
    rows: list[dict[str, Any]]
    computed: int
    reused: int
    about: dict[str, Any]

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells with each status."""
        return dict(sorted(Counter(row["status"] for row in self.rows).items()))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of all fields, with the number of cells of each status."""
        return super().to_dict() | {"counts": self.counts}

    def _rows(self) -> Rows:
        cells = count_noun(len(self.rows), "cell")
        return [f"{cells}, {self.computed} computed now: {self.counts}", f"cells: {self.folder}"]


@guard_call
def sweep(
    model: Model,
    folder: str | Path,
    *,
    alpha: Numbers | None = None,
    omega: Numbers | None = None,
    lam: Numbers | None = None,
    sigma: Numbers | None = None,
    d: Integers = 1000,
    seed: Integers = 0,
    branch: Words = ("semantic", "positional"),
    method: Words = "SE",
    cells: Iterable[Mapping[str, Any]] | None = None,
    warm: bool = True,
    executor: "Executor | None" = None,
    **settings: Any,
) -> Sweep:
    """Run solvers on a grid or list of cells and store each result in a folder; stored cells are not computed again.

    After an interruption, the same call continues with the missing cells. A cell whose solver raises an error is stored
    with the status "error" and the message.

    Parameters
    ----------
    model : the problem; axes that are not given are taken from it.
    folder : directory in which the cells are stored, for one model with any ω, λ and σ; a model with edited classes of
        yours, or with classes that another version of Python runs, is another model. All workers need access to it.
    alpha, omega, lam, sigma, d, seed, branch, method : the axes, each a single value or a sequence. Methods are "SE"
        (state evolution), "GAMP" and "GD" (gradient descent); branches are "semantic", "positional" and "random". "SE"
        does not use d and seed.
    cells : instead of a single grid, a list of dicts with axes as keys, each of which defines a grid; axes that a dict
        lacks are taken from the arguments above.
    warm : whether to start state evolution from the neighboring solution in α, if that stays on the branch.
    executor : object with `submit` as in concurrent.futures, for instance `gamp_attention.local_pool(2)` or
        `get_executor()` of a dask client, on which the kernels of a cell use one thread; serial, with all threads, if
        not given.
    **settings : settings of the solvers. `rtol`: relative accuracy of state evolution (1e-3). For message passing and
        descent: `risk`, "exact" or "asymptotic" ("exact"); `n_test`, number of new samples on which the test error is
        measured (1000); `descent`, method of descent ("gd"); `gd_steps` and `gamp_steps`, maximum numbers of
        iterations (5000 and 10000); `tol`, the value of ‖∇R‖_F/(λ√d) at which a run has converged (1e-8).

    Returns
    -------
    Sweep

    Raises
    ------
    TypeError : if an argument has the wrong type, or a keyword is not a setting.
    ValueError : if neither `alpha` nor `cells` has values of α; if an axis is empty, repeats a value, or has a value
        that the model or solver does not allow; if `folder` belongs to another model, or cannot be written.
    ImportError : if `method` contains "GD" and torch is not installed.
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
    model, names = require_model(model), [field.name for field in fields(Settings)]
    for name in settings.keys() - set(names):
        known = (*AXES, *names, "cells", "warm", "executor")
        near = suggestion(name, known)
        raise TypeError(f"sweep: {name}: unknown argument; arguments are {', '.join(known)}{near}")
    solver_settings = Settings(**settings)
    check.flag("warm", warm)
    check_workers(executor)
    axes = {"omega": omega, "lam": lam, "sigma": sigma, "d": d, "seed": seed, "branch": branch, "method": method}
    if cells is not None:
        wanted = expand_cells(model, cells, alpha=alpha, **axes)
    elif alpha is None:
        raise check.fail("alpha", alpha, "a number or a sequence of them")
    else:
        wanted = grid(model, alpha=alpha, **axes)
    if any(cell.method == "GD" for cell in wanted):
        check.require_module("method: 'GD'", "torch")
        require_method("descent", solver_settings.descent, model.penalty)
    work, store = chains(model, wanted, solver_settings, warm), Store(folder)
    keys = {job.cell: job.key for chain in work for job in chain}
    about = {"model": base_digest(model), "settings": asdict(solver_settings) | {"warm": warm}}
    listed = [asdict(cell) | {"key": keys[cell]} for cell in wanted]
    store.begin(about | {"format": CELL_FORMAT, "cells": listed}, keys.values())
    computed = run_chains(work, store, executor)
    stored = [row for cell in wanted if (row := store.load(keys[cell])) is not None]
    if missing := len(wanted) - len(stored):
        words = f"{count_noun(missing, 'cell')} {'is' if missing == 1 else 'are'} not in {store.folder}"
        raise RuntimeError(f"{words}; check that all workers can access this folder")
    return Sweep(store.folder, wanted, stored, computed, len(wanted) - computed, about)
