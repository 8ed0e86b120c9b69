"""`sweep`: any grid or list of cells, computed where it is missing and kept in a folder.

A sweep as an xarray Dataset, and its netCDF file.
"""

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.display import Rows
from gamp_attention._core.extras import require_modules
from gamp_attention._core.files import MARK, mark, write_atomically
from gamp_attention.baselines.descent import require_method
from gamp_attention.experiments.sweeps.cells import AXES, CELL_FORMAT, METHODS, Cell, base_digest, grid, listed
from gamp_attention.experiments.sweeps.jobs import Settings, chains, row_overlaps
from gamp_attention.experiments.sweeps.scheduler import check_workers, run_chains
from gamp_attention.experiments.sweeps.store import Store
from gamp_attention.models.model import STARTS, Model, require_model
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


WITH_ERROR = ("q", "m", "theta", "V", "train_loss", "test_error", "jump_share", "replicon")
NUMBERS = (*(part for name in WITH_ERROR for part in (name, f"{name}_error")), "gradient_norm", "residual")
MEANING = {
    "q": "trace of QᵀΣ_lQ/d, averaged over tokens",
    "m": "m_1 = Qᵀp_1/√d, or its norm",
    "theta": "QᵀΣ_lQ*/d averaged over tokens, or its norm",
    "V": "trace of V_l per column, averaged over tokens",
    "train_loss": "training loss ε_t",
    "test_error": "test error ε_g",
    "jump_share": "part of V̂ that jumps of the proximal map make",
    "replicon": "replica symmetry is stable below 1",
    "gradient_norm": "‖∇R‖_F/(λ√d)",
    "n_iter": "iterations, -1 where there are none",
    "status": "how the solver ended; missing where the cell was not computed",
}


def to_dataset(source: Any) -> "xarray.Dataset":
    """A Dataset of the scalars of all cells, with errors, status and message.

    A full grid has a dimension for each axis that varies; state evolution, which has no d and seed, is repeated along
    those two. Any other list of cells has the one dimension `cell`. The method is named `solver` here. Running times
    are left out, so that the same sweep gives the same Dataset.

    Parameters
    ----------
    source : a sweep's result, or its folder; cells that the folder lacks have the status "missing" and NaN.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    ImportError : without xarray; install gamp-attention[sweep].
    ValueError : if the folder holds no sweep.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import gamp_attention as ga
    >>> with TemporaryDirectory() as folder:
    ...     ga.sweep(ga.paper_model(), folder, alpha=[1.0, 1.5], method="GAMP", branch="semantic", d=100).counts
    ...     found = ga.to_dataset(folder)
    {'converged': 2}
    >>> found.q.dims, bool(found.converged.all())
    (('alpha',), True)
    """
    require_modules("a dataset", "xarray")
    import xarray

    if isinstance(source, (Store, str, os.PathLike)):
        store = source if isinstance(source, Store) else Store(os.fspath(source))
        manifest = store.manifest()
        if manifest is None or "cells" not in manifest:
            raise check.fail("source", str(store.folder), "the folder of a sweep, with sweep.json")
        parameters, about = manifest["cells"], manifest
        rows: list[Any] = [store.load(cell["key"]) for cell in parameters]
    elif not all(hasattr(source, name) for name in ("parameters", "rows", "about")):
        raise check.fail("source", source, "a sweep's result, or its folder", TypeError)
    else:
        parameters, rows, about = source.parameters, list(source.rows), source.about
    dims, coords, places, shape = _layout(parameters)
    numbers, found = [_numbers(row) for row in rows], {}
    for name in _numbers(None):
        column = np.array([each[name] for each in numbers])
        filled = np.empty(shape, column.dtype)  # the places cover it
        for place, value in zip(places, column, strict=True):
            filled[place] = value
        meaning = {"long_name": MEANING[name]} if name in MEANING else {}
        found[name] = xarray.Variable(dims, filled, meaning)
    # `Dataset.sel(method=...)` has another meaning, and would silently select nothing
    return xarray.Dataset(found, coords, _attributes(rows, about)).rename(method="solver")


def save(dataset: "xarray.Dataset", path: str | Path, overwrite: bool = False) -> None:
    """Write a Dataset as netCDF, whole or not at all.

    Raises
    ------
    ImportError : without xarray, h5netcdf and h5py.
    ValueError : if `path` holds a file that is not such a Dataset, unless `overwrite`.
    OSError : naming the file, if it cannot be written.
    """
    require_netcdf()
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    about = mark("dataset") | {"variables": sorted({*map(str, dataset.variables), *map(str, dataset.dims)})}
    memory = BytesIO()  # first, as HDF5 ends the process if the disk is full
    with h5netcdf.File(memory, "w") as file:
        dataset.assign_attrs({MARK: json.dumps(about)}).dump_to_store(H5NetCDFStore(file))
    contents = memory.getvalue()
    write_atomically(path, lambda file: file.write(contents), name="--out", kind="dataset", overwrite=overwrite)


def require_netcdf() -> None:
    """Raise ImportError, with the command to install them, if the packages that write netCDF files are missing."""
    require_modules("a netCDF file", "xarray", "h5netcdf", "h5py")


def _layout(parameters: list[dict[str, Any]]) -> tuple[tuple[str, ...], dict[str, Any], list[Any], tuple[int, ...]]:
    """Dimensions, coordinates, where each cell goes, and the shape."""
    values = {name: _values(name, parameters) for name in AXES}
    fixed = {name: found[0] for name, found in values.items() if len(found) == 1}
    dims = tuple(name for name in AXES if len(values[name]) > 1)
    shape = tuple(len(values[name]) for name in dims)
    places, count = [], np.zeros(shape, dtype=int)
    for cell in parameters:
        # a cell is repeated along the axes that it lacks: d and seed of state evolution
        at = [slice(None) if cell[name] is None else values[name].index(cell[name]) for name in dims]
        places.append(tuple(at))
        count[tuple(at)] += 1
    if (count == 1).all():
        return dims, fixed | {name: np.array(values[name]) for name in dims}, places, shape
    listed = {name: [np.nan if cell[name] is None else cell[name] for cell in parameters] for name in AXES}
    along = {name: ("cell", np.array(listed[name])) for name in AXES if values[name]}
    return ("cell",), along, list(range(len(parameters))), (len(parameters),)


def _values(name: str, parameters: list[dict[str, Any]]) -> list[Any]:
    """The different values on an axis, in an order that does not depend on that of the cells."""
    found = {cell[name] for cell in parameters} - {None}
    words: dict[str, tuple[str, ...]] = {"method": METHODS, "branch": STARTS}
    return sorted(found, key=words[name].index) if name in words else sorted(found)


def _numbers(row: dict[str, Any] | None) -> dict[str, Any]:
    """The variables of one cell."""
    row = {"status": "missing", "message": "", "converged": False, "n_iter": -1} | (row or {})
    values: dict[str, Any] = dict(row)
    for name, suffix in (("overlaps", ""), ("overlaps_error", "_error")):
        overlaps = row_overlaps(row, name)
        if overlaps is not None:
            values |= {scalar + suffix: value for scalar, value in overlaps.scalars().items()}
    ending = {name: row[name] for name in ("status", "message", "converged", "n_iter")}
    return ending | {name: float(values.get(name, np.nan)) for name in NUMBERS}


def _attributes(rows: list[Any], about: dict[str, Any]) -> dict[str, str]:
    computed = [row for row in rows if row is not None]
    versions: dict[str, list[str]] = {}
    for name, version in sorted({each for row in computed for each in row["versions"].items()}):
        versions.setdefault(name, []).append(version)
    return {
        "model": about["model"],
        "settings": json.dumps(about["settings"], sort_keys=True),
        "versions": json.dumps({name: ", ".join(found) for name, found in versions.items()}),
        "commits": ", ".join(sorted({str(row["commit"]) for row in computed})),
    }
