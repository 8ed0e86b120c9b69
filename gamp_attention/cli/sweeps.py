"""The commands `gamp-attention sweep` and `gamp-attention boundaries`, and their executors."""

import argparse
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.extras import require_modules
from gamp_attention.cli.output import report, say, select
from gamp_attention.data.dataset import RISKS
from gamp_attention.experiments.figures import plot_phase_diagram
from gamp_attention.experiments.phase_diagram.phase_boundaries import phase_boundaries
from gamp_attention.experiments.sweeps.cells import METHODS
from gamp_attention.experiments.sweeps.scheduler import local_pool
from gamp_attention.experiments.sweeps.sweep import save, sweep
from gamp_attention.models.attention import paper_model
from gamp_attention.models.model import STARTS

CONNECTION_TIMEOUT = 1.5  # seconds to wait for a connection to the address of a dask scheduler
SCHEDULER_TIMEOUT = 10.0  # seconds to wait for the answer of the scheduler, which may be busy


@contextmanager
def dask_executor(address: str) -> Iterator[Any]:
    """Yield an executor on the cluster of a scheduler, after a quick check that something listens at its address."""
    require_listener(address)
    require_modules("--dask", "distributed")
    from distributed import Client

    with Client(address, timeout=SCHEDULER_TIMEOUT) as client:
        yield client.get_executor()


def require_listener(address: str) -> None:
    """Raise ValueError unless something listens at the address of a scheduler; only TCP addresses are checked."""
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
    failure = [f"no answer within {CONNECTION_TIMEOUT:g} s"]

    def reach() -> None:
        try:
            socket.create_connection((host, port), timeout=CONNECTION_TIMEOUT).close()
            failure[0] = ""
        except TimeoutError:
            pass  # `failure` has the message already
        except OSError as error:
            failure[0] = error.strerror or str(error)

    trial = threading.Thread(target=reach, daemon=True)  # the lookup of a name ignores timeouts
    trial.start()
    trial.join(CONNECTION_TIMEOUT)
    if failure[0]:
        raise check.fail("--dask", f"{address}: {failure[0]}", needs)


ROWS = "as .6,.4/.4,.6 or in quotes '.6,.4;.4,.6'"
FORM = "one or more numbers, or FIRST:LAST:COUNT for evenly spaced numbers"


def add_sweep(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `sweep`."""
    command = commands.add_parser(
        "sweep", help="run solvers on a grid of parameters, resumable, on any number of processes"
    )
    add = command.add_argument
    add("folder", metavar="FOLDER", help="folder of the finished cells; run the same command again to continue")
    add("--alpha", type=numbers, nargs="+", default=[[1.5]], metavar="A", help=f"n/d: {FORM}")
    add("--omega", type=numbers, nargs="+", default=[[0.3]], metavar="W", help="positional fraction ω")
    add("--lam", type=numbers, nargs="+", default=[[0.01]], metavar="LAM", help="ridge penalty")
    add("--sigma", type=numbers, nargs="+", default=[[0.5]], metavar="S", help="standard deviation of tokens")
    add("--A", type=matrix, metavar="MATRIX", help=f"positional part of the task, {ROWS}")
    add("--method", nargs="+", choices=METHODS, default=["SE"], help="solvers (default SE)")
    add(
        "--branch", nargs="+", choices=STARTS, default=list(STARTS[:2]), help="starts (default semantic and positional)"
    )
    add("--d", type=int, nargs="+", default=[1000], help="dimension for GAMP and GD (default 1000)")
    add("--seed", type=int, nargs="+", default=[0], help="seed for GAMP and GD (default 0)")
    add("--rtol", type=float, default=1e-3, help="accuracy of state evolution (default 1e-3)")
    add("--risk", choices=RISKS, default="exact", help="risk of GAMP and GD (default exact)")
    add("--cold", action="store_true", help="do not start cells from the solutions of their neighbours")
    add("--out", metavar="FILE.nc", help="also write all cells as one netCDF file")
    _add_workers(command)
    command.set_defaults(run=_sweep)
    return command


def add_boundaries(commands: Any) -> argparse.ArgumentParser:
    """Add the parser of `boundaries`."""
    command = commands.add_parser("boundaries", help="compute phase boundaries α_c, α_l and spinodals, with errors")
    add = command.add_argument
    add("--omega", type=numbers, nargs="+", metavar="W", help=f"values of ω: {FORM} (default 0.3)")
    add("--lam", type=numbers, nargs="+", metavar="LAM", help="one or several values of λ")
    add("--sigma", type=numbers, nargs="+", metavar="S", help="one or several values of σ")
    add("--A", type=matrix, nargs="+", metavar="MATRIX", help=f"one or several matrices A, {ROWS}")
    add("--alphas", type=float, nargs=2, default=(0.05, 4.0), metavar=("LOW", "HIGH"), help="range of α")
    add("--tol", type=float, default=1e-3, help="error of α (default 1e-3)")
    add("--bayes", action="store_true", help="add the thresholds of the Bayes-optimal estimate")
    add("--folder", help="folder of finished results, from which the command resumes")
    add("--plot", metavar="FILE", help="save a picture")
    _add_workers(command)
    command.set_defaults(run=_boundaries)
    return command


def numbers(text: str) -> list[float]:
    """Return the numbers of an argument: a number, or FIRST:LAST:COUNT."""
    limit = 100_000
    try:
        if ":" not in text:
            return [float(text)]
        first, last, count = text.split(":")
        if not 1 <= int(count) <= limit:
            raise ValueError
        return np.linspace(float(first), float(last), int(count)).tolist()
    except ValueError:
        form = f"a number or FIRST:LAST:COUNT of at most {limit} numbers"
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
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="number of processes on this machine (default: this process, with threads)",
    )
    command.add_argument(
        "--dask", metavar="ADDRESS", help="scheduler of a dask cluster whose workers can access the folder"
    )


def _open_executor(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return a context with the executor of --workers or --dask, or with None."""
    if options.dask and options.workers is not None:
        raise ValueError("--workers, --dask: only one of them can be given")
    if options.dask:
        return dask_executor(options.dask)
    return nullcontext() if options.workers is None else local_pool(options.workers)


def _join(lists: list[list[float]] | None) -> list[float] | None:
    return None if lists is None else [value for values in lists for value in values]


def _sweep(options: argparse.Namespace) -> int:
    model = paper_model(A=options.A) if options.A else paper_model()
    axes: dict[str, Any] = {name: _join(getattr(options, name)) for name in ("alpha", "omega", "lam", "sigma")}
    wanted = axes | select(options, "folder", "d", "seed", "branch", "method", "rtol", "risk")
    with _open_executor(options) as executor:
        result = sweep(model, **wanted, warm=not options.cold, executor=executor)
    report(options, str(result), result.to_dict())
    if options.out:
        save(result.dataset(), options.out, options.force)
        say(options, f"dataset: {options.out}")
    return 0 if all(row["status"] in ("converged", "settled", "lost") for row in result.rows) else 1


def _boundaries(options: argparse.Namespace) -> int:
    given: dict[str, Any] = {name: _join(getattr(options, name)) for name in ("omega", "lam", "sigma")}
    given["A"] = options.A
    varied = [name for name, values in given.items() if values is not None and len(values) > 1]
    if len(varied) > 1:
        raise ValueError(f"--{', --'.join(varied)}: needs several values of one parameter only")
    fixed = {name: values[0] for name, values in given.items() if values is not None and name not in varied}
    arguments = {"omega": "omegas", "lam": "lams", "sigma": "sigmas", "A": "matrices"}
    wanted = {arguments[name]: given[name] for name in varied} | select(options, "alphas", "tol", "bayes", "folder")
    with _open_executor(options) as executor:
        result = phase_boundaries(paper_model(**fixed), **wanted, executor=executor)
    report(options, str(result), result.to_dict() | {"range": [result.low, result.high]})
    if options.plot:
        plot_phase_diagram(result, options.plot, options.force)
        say(options, f"picture: {options.plot}")
    return 0 if result.converged else 1
