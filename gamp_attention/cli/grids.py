"""The commands `gamp-attention sweep` and `gamp-attention boundaries`."""

import argparse
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from gamp_attention.cli.output import say
from gamp_attention.data.dataset import RISKS
from gamp_attention.experiments.sweeps.cells import METHODS
from gamp_attention.models.starts import STARTS

FORM = "one or more numbers, or FIRST:LAST:COUNT for evenly spaced ones"


def add_sweep(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `sweep`."""
    sweep = commands.add_parser("sweep", help="a grid of solvers, resumable, on any number of processes")
    sweep.add_argument("folder", metavar="FOLDER", help="where finished cells are kept; run again to go on")
    sweep.add_argument("--alpha", type=numbers, nargs="+", default=[[1.5]], metavar="A", help=f"n/d: {FORM}")
    sweep.add_argument("--omega", type=numbers, nargs="+", default=[[0.3]], metavar="W", help="positional share")
    sweep.add_argument("--lam", type=numbers, nargs="+", default=[[0.01]], metavar="LAM", help="ridge penalty")
    sweep.add_argument("--sigma", type=numbers, nargs="+", default=[[0.5]], metavar="S", help="deviation of tokens")
    sweep.add_argument("--A", type=matrix, metavar="MATRIX", help="positional part of the task, as .6,.4;.4,.6")
    sweep.add_argument("--method", nargs="+", choices=METHODS, default=["SE"], help="(default SE)")
    sweep.add_argument("--branch", nargs="+", choices=STARTS, default=list(STARTS[:2]), help="(default the two)")
    sweep.add_argument("--d", type=int, nargs="+", default=[1000], help="of GAMP and GD (default 1000)")
    sweep.add_argument("--seed", type=int, nargs="+", default=[0], help="of GAMP and GD (default 0)")
    sweep.add_argument("--rtol", type=float, default=1e-3, help="accuracy of state evolution (default 1e-3)")
    sweep.add_argument("--risk", choices=RISKS, default="exact", help="of GAMP and GD")
    sweep.add_argument("--cold", action="store_true", help="start no cell from its neighbour")
    sweep.add_argument("--out", metavar="FILE.nc", help="also write all cells as one netCDF file")
    _add_workers(sweep)
    sweep.set_defaults(run=_sweep)
    return sweep


def add_boundaries(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `boundaries`."""
    found = commands.add_parser("boundaries", help="phase boundaries α_c, α_l and spinodals, with errors")
    found.add_argument("--omega", type=numbers, nargs="+", metavar="W", help=f"vary ω: {FORM} (default .3)")
    found.add_argument("--lam", type=numbers, nargs="+", metavar="LAM", help="vary λ, or its one value")
    found.add_argument("--sigma", type=numbers, nargs="+", metavar="S", help="vary σ, or its one value")
    found.add_argument("--A", type=matrix, nargs="+", metavar="MATRIX", help="vary A, or its one value")
    found.add_argument("--alphas", type=float, nargs=2, default=(0.05, 4.0), metavar=("LOW", "HIGH"), help="range of α")
    found.add_argument("--tol", type=float, default=1e-3, help="error of α (default 1e-3)")
    found.add_argument("--folder", help="keep what is finished here, and go on from it")
    found.add_argument("--plot", metavar="FILE", help="save a picture")
    _add_workers(found)
    found.set_defaults(run=_boundaries)
    return found


def numbers(text: str) -> list[float]:
    """Numbers of one argument: a number, or FIRST:LAST:COUNT."""
    import numpy as np

    most = 100_000
    try:
        if ":" not in text:
            return [float(text)]
        first, last, count = text.split(":")
        if not 1 <= int(count) <= most:
            raise ValueError
        return np.linspace(float(first), float(last), int(count)).tolist()
    except ValueError:
        form = f"a number or FIRST:LAST:COUNT of at most {most} numbers"
        raise argparse.ArgumentTypeError(f"needs {form}, got {text!r}") from None


def matrix(text: str) -> list[list[float]]:
    """A matrix, rows parted by semicolons and entries by commas."""
    try:
        return [[float(entry) for entry in row.split(",")] for row in text.split(";")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs rows like .6,.4;.4,.6 , got {text!r}") from None


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument("--workers", type=int, metavar="N", help="processes on this machine (default: none, threads)")
    command.add_argument("--dask", metavar="ADDRESS", help="scheduler of a dask cluster that sees the folder")


@contextmanager
def _dask_executor(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("--dask needs dask: pip install distributed") from error
    with Client(address, timeout=10) as client:
        yield client.get_executor()


def _executor(options: argparse.Namespace) -> AbstractContextManager[Any]:
    from gamp_attention.experiments.sweeps.scheduler import local_pool

    if options.dask and options.workers is not None:
        raise ValueError("--workers, --dask: give one of them")
    if options.dask:
        return _dask_executor(options.dask)
    return nullcontext() if options.workers is None else local_pool(options.workers)


def _joined(lists: list[list[float]] | None) -> list[float] | None:
    return None if lists is None else [value for values in lists for value in values]


def _sweep(options: argparse.Namespace) -> int:
    from gamp_attention._core.files import write_json
    from gamp_attention.experiments.sweeps.sweep import sweep
    from gamp_attention.experiments.sweeps.to_xarray import require_netcdf, save
    from gamp_attention.models.attention import paper_model

    if options.out:
        require_netcdf()
    model = paper_model(A=options.A) if options.A else paper_model()
    axes: dict[str, Any] = {name: _joined(getattr(options, name)) for name in ("alpha", "omega", "lam", "sigma")}
    with _executor(options) as executor:
        found = sweep(
            model,
            options.folder,
            **axes,
            d=options.d,
            seed=options.seed,
            branch=options.branch,
            method=options.method,
            rtol=options.rtol,
            risk=options.risk,
            warm=not options.cold,
            executor=executor,
        )
    say(options, str(found))
    if options.out:
        save(found.dataset(), options.out)
        say(options, f"dataset: {options.out}")
    if options.json:
        write_json(options.json, found.to_dict())
    return 0 if all(row["status"] in ("converged", "settled", "lost") for row in found.rows) else 1


def _boundaries(options: argparse.Namespace) -> int:
    from gamp_attention._core.files import write_json
    from gamp_attention.experiments.figures import plot_phase_diagram
    from gamp_attention.experiments.phase_diagram.phase_boundaries import phase_boundaries
    from gamp_attention.models.attention import paper_model

    given: dict[str, Any] = {name: _joined(getattr(options, name)) for name in ("omega", "lam", "sigma")}
    given["A"] = options.A
    varied = [name for name, values in given.items() if values is not None and len(values) > 1]
    if len(varied) > 1:
        raise ValueError(f"--{', --'.join(varied)}: needs several values of one parameter only")
    fixed = {name: values[0] for name, values in given.items() if values is not None and name not in varied}
    arguments = {"omega": "omegas", "lam": "lams", "sigma": "sigmas", "A": "matrices"}
    many = {arguments[name]: given[name] for name in varied}
    with _executor(options) as executor:
        found = phase_boundaries(
            paper_model(**fixed),
            **many,
            alphas=tuple(options.alphas),
            tol=options.tol,
            folder=options.folder,
            executor=executor,
        )
    say(options, str(found))
    if options.plot:
        plot_phase_diagram(found, options.plot)
        say(options, f"picture: {options.plot}")
    if options.json:
        write_json(options.json, found.to_dict() | {"range": [found.low, found.high]})
    return 0 if found.converged else 1
