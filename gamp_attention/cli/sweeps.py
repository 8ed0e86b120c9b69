"""The commands `gamp-attention sweep` and `gamp-attention boundaries`.

A dask cluster by the address of its scheduler.
"""

import argparse
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules
from gamp_attention.cli.output import chosen, report, say
from gamp_attention.data.dataset import RISKS
from gamp_attention.experiments.figures import plot_phase_diagram
from gamp_attention.experiments.phase_diagram.phase_boundaries import phase_boundaries
from gamp_attention.experiments.sweeps.cells import METHODS
from gamp_attention.experiments.sweeps.scheduler import local_pool
from gamp_attention.experiments.sweeps.sweep import save, sweep
from gamp_attention.models.attention import paper_model
from gamp_attention.models.model import STARTS


class ClusterSettings(NamedTuple):
    """How long an answer is waited for, in seconds."""

    reach: float = 1.5  # that something listens at the address
    greet: float = 10.0  # that it greets as a scheduler, which may be busy


CLUSTER = ClusterSettings()


@contextmanager
def dask_executor(address: str) -> Iterator[Any]:
    """An executor on the cluster of a scheduler; an address where nothing listens is told at once."""
    require_listener(address)
    require_modules("--dask", "distributed")
    from distributed import Client

    with Client(address, timeout=CLUSTER.greet) as client:
        yield client.get_executor()


def require_listener(address: str) -> None:
    """Raise unless something listens at the address of a scheduler; those of other protocols than TCP are not tried."""
    needs = "the address of a dask scheduler that answers, such as tcp://HOST:8786"
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in ("tcp", "tls"):
        return
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise check.fail("--dask", f"{address}: {error}", needs) from None
    if not host or not port:
        raise check.fail("--dask", address, needs)
    heard = [f"no answer within {CLUSTER.reach:g} s"]

    def reach() -> None:
        try:
            socket.create_connection((host, port), timeout=CLUSTER.reach).close()
            heard[0] = ""
        except TimeoutError:
            pass  # as when nothing is heard at all
        except OSError as error:
            heard[0] = error.strerror or str(error)

    trial = threading.Thread(target=reach, daemon=True)  # looking up a name may take longer than any timeout
    trial.start()
    trial.join(CLUSTER.reach)
    if heard[0]:
        raise check.fail("--dask", f"{address}: {heard[0]}", needs)


ROWS = "as .6,.4/.4,.6 or in quotes '.6,.4;.4,.6'"
FORM = "one or more numbers, or FIRST:LAST:COUNT for evenly spaced ones"


def add_sweep(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `sweep`."""
    found = commands.add_parser("sweep", help="a grid of solvers, resumable, on any number of processes")
    found.add_argument("folder", metavar="FOLDER", help="where finished cells are kept; run again to go on")
    found.add_argument("--alpha", type=numbers, nargs="+", default=[[1.5]], metavar="A", help=f"n/d: {FORM}")
    found.add_argument("--omega", type=numbers, nargs="+", default=[[0.3]], metavar="W", help="positional share")
    found.add_argument("--lam", type=numbers, nargs="+", default=[[0.01]], metavar="LAM", help="ridge penalty")
    found.add_argument("--sigma", type=numbers, nargs="+", default=[[0.5]], metavar="S", help="deviation of tokens")
    found.add_argument("--A", type=matrix, metavar="MATRIX", help=f"positional part of the task, {ROWS}")
    found.add_argument("--method", nargs="+", choices=METHODS, default=["SE"], help="(default SE)")
    found.add_argument("--branch", nargs="+", choices=STARTS, default=list(STARTS[:2]), help="(default the two)")
    found.add_argument("--d", type=int, nargs="+", default=[1000], help="of GAMP and GD (default 1000)")
    found.add_argument("--seed", type=int, nargs="+", default=[0], help="of GAMP and GD (default 0)")
    found.add_argument("--rtol", type=float, default=1e-3, help="accuracy of state evolution (default 1e-3)")
    found.add_argument("--risk", choices=RISKS, default="exact", help="of GAMP and GD")
    found.add_argument("--cold", action="store_true", help="start no cell from its neighbour")
    found.add_argument("--out", metavar="FILE.nc", help="also write all cells as one netCDF file")
    _add_workers(found)
    found.set_defaults(run=_sweep)
    return found


def add_boundaries(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `boundaries`."""
    found = commands.add_parser("boundaries", help="phase boundaries α_c, α_l and spinodals, with errors")
    found.add_argument("--omega", type=numbers, nargs="+", metavar="W", help=f"vary ω: {FORM} (default .3)")
    found.add_argument("--lam", type=numbers, nargs="+", metavar="LAM", help="vary λ, or its one value")
    found.add_argument("--sigma", type=numbers, nargs="+", metavar="S", help="vary σ, or its one value")
    found.add_argument("--A", type=matrix, nargs="+", metavar="MATRIX", help=f"vary A, or its one value, {ROWS}")
    found.add_argument("--alphas", type=float, nargs=2, default=(0.05, 4.0), metavar=("LOW", "HIGH"), help="range of α")
    found.add_argument("--tol", type=float, default=1e-3, help="error of α (default 1e-3)")
    found.add_argument("--bayes", action="store_true", help="also where the Bayes-optimal estimate works")
    found.add_argument("--folder", help="keep what is finished here, and go on from it")
    found.add_argument("--plot", metavar="FILE", help="save a picture")
    _add_workers(found)
    found.set_defaults(run=_boundaries)
    return found


def numbers(text: str) -> list[float]:
    """Numbers of one argument: a number, or FIRST:LAST:COUNT."""
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
    """Return a square matrix from text, with entries separated by commas and rows by slashes or semicolons."""
    try:
        rows = [[float(entry) for entry in row.split(",")] for row in text.replace(";", "/").split("/")]
    except ValueError:
        rows = []
    if not rows or any(len(row) != len(rows) for row in rows):
        needs = f"a square matrix, {ROWS}, since a shell ends a command at a semicolon"
        raise argparse.ArgumentTypeError(f"needs {needs}, got {text!r}")
    return rows


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument("--workers", type=int, metavar="N", help="processes on this machine (default: none, threads)")
    command.add_argument("--dask", metavar="ADDRESS", help="scheduler of a dask cluster that sees the folder")


def _executor(options: argparse.Namespace) -> AbstractContextManager[Any]:
    if options.dask and options.workers is not None:
        raise ValueError("--workers, --dask: give one of them")
    if options.dask:
        return dask_executor(options.dask)
    return nullcontext() if options.workers is None else local_pool(options.workers)


def _joined(lists: list[list[float]] | None) -> list[float] | None:
    return None if lists is None else [value for values in lists for value in values]


def _sweep(options: argparse.Namespace) -> int:
    model = paper_model(A=options.A) if options.A else paper_model()
    axes: dict[str, Any] = {name: _joined(getattr(options, name)) for name in ("alpha", "omega", "lam", "sigma")}
    wanted = axes | chosen(options, "folder", "d", "seed", "branch", "method", "rtol", "risk")
    with _executor(options) as executor:
        found = sweep(model, **wanted, warm=not options.cold, executor=executor)
    report(options, str(found), found.to_dict())
    if options.out:
        save(found.dataset(), options.out, options.force)
        say(options, f"dataset: {options.out}")
    return 0 if all(row["status"] in ("converged", "settled", "lost") for row in found.rows) else 1


def _boundaries(options: argparse.Namespace) -> int:
    given: dict[str, Any] = {name: _joined(getattr(options, name)) for name in ("omega", "lam", "sigma")}
    given["A"] = options.A
    varied = [name for name, values in given.items() if values is not None and len(values) > 1]
    if len(varied) > 1:
        raise ValueError(f"--{', --'.join(varied)}: needs several values of one parameter only")
    fixed = {name: values[0] for name, values in given.items() if values is not None and name not in varied}
    arguments = {"omega": "omegas", "lam": "lams", "sigma": "sigmas", "A": "matrices"}
    wanted = {arguments[name]: given[name] for name in varied} | chosen(options, "alphas", "tol", "bayes", "folder")
    with _executor(options) as executor:
        found = phase_boundaries(paper_model(**fixed), **wanted, executor=executor)
    report(options, str(found), found.to_dict() | {"range": [found.low, found.high]})
    if options.plot:
        plot_phase_diagram(found, options.plot, options.force)
        say(options, f"picture: {options.plot}")
    return 0 if found.converged else 1
