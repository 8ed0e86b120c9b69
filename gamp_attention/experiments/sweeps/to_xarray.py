"""A sweep as an xarray Dataset, and its netCDF file."""

import json
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules
from gamp_attention._core.files import MARK, mark, write_aside
from gamp_attention.experiments.sweeps.cells import AXES, METHODS
from gamp_attention.experiments.sweeps.jobs import row_overlaps
from gamp_attention.experiments.sweeps.store import Store
from gamp_attention.models.starts import STARTS

if TYPE_CHECKING:
    import xarray

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
    write_aside(path, lambda file: file.write(contents), name="--out", kind="dataset", overwrite=overwrite)


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
