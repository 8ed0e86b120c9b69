"""Sweeps: grids or lists of solver runs, stored in a folder, and their conversion to xarray and netCDF."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import SOLVERS, STARTS, suggestion
from gamp_attention._tools.display import Rows, count_noun
from gamp_attention._tools.files import DATASET, MARK, mark, write_atomically
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.optional import require_modules
from gamp_attention.descent.minimize import require_method
from gamp_attention.extensions.sweeps.jobs import (
    AXES,
    CELL_FORMAT,
    Cell,
    SettingOptions,
    Settings,
    base_digest,
    chains,
    expand_cells,
    grid,
    row_overlaps,
)
from gamp_attention.extensions.sweeps.scheduler import check_workers, run_chains
from gamp_attention.extensions.sweeps.store import Store
from gamp_attention.results import Result
from gamp_attention.theory.models.model import Model, require_model

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import xarray

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

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Fields of each cell by name."""
        return [asdict(cell) for cell in self.cells]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of all fields, with the number of cells of each status."""
        return super().to_dict() | {"counts": self.counts}

    def _rows(self) -> Rows:
        cells = count_noun(len(self.rows), "cell")
        return [f"{cells}, {self.computed} computed now: {self.counts}", f"cells: {self.folder}"]

    def dataset(self) -> "xarray.Dataset":
        """Return the numbers as an xarray Dataset, see `gamp_attention.to_dataset`."""
        return to_dataset(self)


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
    **settings: Unpack[SettingOptions],
) -> Sweep:
    """Run solvers on a grid or list of cells and store each result in a folder; stored cells are not computed again.

    After an interruption, the same call continues with the missing cells. A cell whose solver raises an error is stored
    with the status "error" and the message.

    Parameters
    ----------
    model : the problem; axes that are not given are taken from it.
    folder : directory in which the cells are stored, for one model with any ω, λ and σ. All workers need access to it.
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
        iterations (5000 and 500); `tol`, the value of ‖∇R‖_F/(λ√d) at which a run has converged (1e-8).

    Returns
    -------
    Sweep

    Raises
    ------
    TypeError : if an argument has the wrong type, or a keyword is not a setting.
    ValueError : if neither `alpha` nor `cells` has values of α; if an axis is empty, repeats a value, or has a value
        that the model or solver does not allow; if `folder` belongs to another model or cannot be written.
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
    model = require_model(model)
    for name in settings.keys() - SettingOptions.__annotations__.keys():
        known = (*AXES, *SettingOptions.__annotations__, "cells", "warm", "executor")
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
        require_modules("method: 'GD'", "torch")
        require_method("descent", solver_settings.descent, model.penalty)
    work, store = chains(model, wanted, solver_settings, warm), Store(folder)
    keys = {job.cell: job.key for chain in work for job in chain}
    about = {"model": base_digest(model), "settings": asdict(solver_settings) | {"warm": warm}}
    store.begin(about | {"format": CELL_FORMAT, "cells": [asdict(cell) | {"key": keys[cell]} for cell in wanted]})
    computed = run_chains(work, store, executor)
    rows = [store.load(keys[cell]) for cell in wanted]
    stored = [row for row in rows if row is not None]
    if len(stored) < len(rows):
        missing = len(rows) - len(stored)
        words = f"{count_noun(missing, 'cell')} {'is' if missing == 1 else 'are'} not in {store.folder}"
        raise RuntimeError(f"{words}; check that all workers can access this folder")
    return Sweep(store.folder, wanted, stored, computed, len(wanted) - computed, about)


WITH_ERROR = ("q", "m", "theta", "V", "train_loss", "test_error", "jump_share", "replicon")
NUMBERS = (*(part for name in WITH_ERROR for part in (name, f"{name}_error")), "gradient_norm", "residual")
MEANING = {
    "q": "trace of QᵀΣ_lQ/d, averaged over tokens",
    "m": "m_1 = Qᵀp_1/√d, or its norm",
    "theta": "QᵀΣ_lQ*/d averaged over tokens, or its norm",
    "V": "trace of V_l per column, averaged over tokens",
    "train_loss": "training loss ε_t",
    "test_error": "test error ε_g",
    "jump_share": "fraction of V̂ that is due to jumps of the proximal map",
    "replicon": "replicon; replica symmetry is stable if it is below 1",
    "gradient_norm": "‖∇R‖_F/(λ√d)",
    "n_iter": "number of iterations, -1 if unknown",
    "status": "status of the solver; missing if the cell was not computed",
}


def to_dataset(source: Any) -> "xarray.Dataset":
    """Return the scalars of all cells of a sweep as an xarray Dataset, with errors, status and message.

    A full grid has a dimension for each axis that varies; state evolution, which has no d and seed, is repeated along
    these two dimensions. Any other list of cells has the single dimension `cell`. The method is named `solver`. Running
    times are omitted, so that repeated sweeps give identical Datasets.

    Parameters
    ----------
    source : result of `sweep`, or its folder; cells that are not in the folder have the status "missing" and NaN.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    ImportError : without xarray; install gamp-attention[sweep].
    TypeError : if `source` is neither the result of a sweep nor a path.
    ValueError : if the folder does not contain a sweep.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import gamp_attention as ga
    >>> with TemporaryDirectory() as folder:
    ...     ga.sweep(ga.paper_model(), folder, alpha=[1.0, 1.5], method="GAMP", branch="semantic", d=100).counts
    ...     dataset = ga.to_dataset(folder)
    {'converged': 2}
    >>> dataset.q.dims, bool(dataset.converged.all())
    (('alpha',), True)
    """
    require_modules("a dataset", "xarray")
    import xarray

    if isinstance(source, (str, os.PathLike)):
        store = Store(os.fspath(source))
        manifest = store.manifest()
        if manifest is None or "cells" not in manifest:
            raise check.fail("source", str(store.folder), "the folder of a sweep, with sweep.json")
        parameters, about = manifest["cells"], manifest
        rows: list[Any] = [store.load(cell["key"]) for cell in parameters]
    else:
        needs = "the result of a sweep, or its folder"
        check.require_attributes("source", source, needs, "parameters", "rows", "about")
        parameters, rows, about = source.parameters, list(source.rows), source.about
    dims, coords, indices, shape = _layout(parameters)
    numbers, variables = [_numbers(row) for row in rows], {}
    for name in _numbers(None):
        column = np.array([cell[name] for cell in numbers])
        values = np.empty(shape, column.dtype)  # the indices cover all entries
        for index, value in zip(indices, column, strict=True):
            values[index] = value
        attributes = {"long_name": MEANING[name]} if name in MEANING else {}
        variables[name] = xarray.Variable(dims, values, attributes)
    # not `method`, since `Dataset.sel(method=...)` is an option of xarray and would silently select nothing
    return xarray.Dataset(variables, coords, _attributes(rows, about)).rename(method="solver")


def save(dataset: "xarray.Dataset", path: str | Path, overwrite: bool = False) -> None:
    """Write a Dataset as a netCDF file, completely or not at all.

    Raises
    ------
    ImportError : without xarray, h5netcdf and h5py.
    ValueError : if `path` is a file that `save` did not write, unless `overwrite` is True.
    OSError : if the file cannot be written.
    """
    require_modules("a netCDF file", "xarray", "h5netcdf", "h5py")
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    about = mark(DATASET) | {"variables": sorted({*map(str, dataset.variables), *map(str, dataset.dims)})}
    memory = BytesIO()  # HDF5 ends the process if the disk is full, so it does not write to the disk itself
    with h5netcdf.File(memory, "w") as file:
        dataset.assign_attrs({MARK: json.dumps(about)}).dump_to_store(H5NetCDFStore(file))
    contents = memory.getvalue()
    write_atomically(path, lambda file: file.write(contents), kind=DATASET, overwrite=overwrite)


def _layout(parameters: list[dict[str, Any]]) -> tuple[tuple[str, ...], dict[str, Any], list[Any], tuple[int, ...]]:
    """Return dimensions, coordinates, the index of each cell, and the shape."""
    values = {name: _values(name, parameters) for name in AXES}
    fixed = {name: column[0] for name, column in values.items() if len(column) == 1}
    dims = tuple(name for name in AXES if len(values[name]) > 1)
    shape = tuple(len(values[name]) for name in dims)
    indices, count = [], np.zeros(shape, dtype=int)
    for cell in parameters:
        # a cell is repeated along the axes that it lacks: d and seed of state evolution
        index = tuple(slice(None) if cell[name] is None else values[name].index(cell[name]) for name in dims)
        indices.append(index)
        count[index] += 1
    if (count == 1).all():
        return dims, fixed | {name: np.array(values[name]) for name in dims}, indices, shape
    columns = {name: [np.nan if cell[name] is None else cell[name] for cell in parameters] for name in AXES}
    along = {name: ("cell", np.array(columns[name])) for name in AXES if values[name]}
    return ("cell",), along, list(range(len(parameters))), (len(parameters),)


def _values(name: str, parameters: list[dict[str, Any]]) -> list[Any]:
    """Return the distinct values on an axis, in an order that does not depend on the order of the cells."""
    values = {cell[name] for cell in parameters} - {None}
    words: dict[str, tuple[str, ...]] = {"method": SOLVERS, "branch": STARTS}
    return sorted(values, key=words[name].index) if name in words else sorted(values)


def _numbers(row: dict[str, Any] | None) -> dict[str, Any]:
    """Return the variables of one cell by name."""
    row = {"status": "missing", "message": "", "converged": False, "n_iter": -1} | (row or {})
    values: dict[str, Any] = dict(row)
    for name, suffix in (("overlaps", ""), ("overlaps_error", "_error")):
        overlaps = row_overlaps(row, name)
        if overlaps is not None:
            values |= {scalar + suffix: value for scalar, value in overlaps.scalars().items()}
    ending = {name: row[name] for name in ("status", "message", "converged", "n_iter")}
    return ending | {name: float(values.get(name, np.nan)) for name in NUMBERS}


def _attributes(rows: list[Any], about: dict[str, Any]) -> dict[str, str]:
    """Return the attributes of the Dataset: model, settings, package versions and commits."""
    computed = [row for row in rows if row is not None]
    versions: dict[str, list[str]] = {}
    for name, version in sorted({item for row in computed for item in row["versions"].items()}):
        versions.setdefault(name, []).append(version)
    return {
        "model": about["model"],
        "settings": json.dumps(about["settings"], sort_keys=True),
        "versions": json.dumps({name: ", ".join(numbers) for name, numbers in versions.items()}),
        "commits": ", ".join(sorted({str(row["commit"]) for row in computed})),
    }
