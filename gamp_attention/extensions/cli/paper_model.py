"""The commands that use the model of the paper: `compare`, `solve`, `trajectory`, `sweep` and `boundaries`."""

import argparse
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from gamp_attention._tools import check
from gamp_attention._tools.display import to_json
from gamp_attention._tools.files import PICTURE
from gamp_attention._tools.optional import require_modules
from gamp_attention.extensions.cli.options import build_penalty
from gamp_attention.extensions.cli.output import describe_kept, report, say, select, target_of
from gamp_attention.extensions.comparison.comparison import compare
from gamp_attention.extensions.comparison.figures import plot_comparison, plot_phase_diagram
from gamp_attention.extensions.dynamics.gradient_descent import GradientDescent
from gamp_attention.extensions.dynamics.message_passing import MessagePassing
from gamp_attention.extensions.dynamics.online_paths import SinglePass
from gamp_attention.extensions.dynamics.survey_paths import Survey
from gamp_attention.extensions.dynamics.trajectory import trajectory
from gamp_attention.extensions.phases.phase_boundaries import phase_boundaries
from gamp_attention.extensions.rsb.broken import solve_broken
from gamp_attention.extensions.sweeps.scheduler import local_pool
from gamp_attention.extensions.sweeps.sweep import save, sweep
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import solve_state_evolution
from gamp_attention.theory.models.attention import paper_model


def _model(options: argparse.Namespace) -> Any:
    noise = options.score_noise
    return paper_model(options.omega, options.sigma, options.lam, penalty=build_penalty(options), score_noise=noise)


def run_compare(options: argparse.Namespace) -> int:
    """Run the command `compare` and return its exit status."""
    sizes = select(options, "d", "alpha", "seed", "risk", "gd_steps") | ({"instances": 6} if options.all else {})
    result = compare(_model(options), **sizes)
    report(options, str(result), result.to_dict(), result.converged)
    plot = target_of(options, options.plot, PICTURE, result.converged)
    plot_comparison(result, plot, options.force, options.all)
    say(options, f"The picture is in {describe_kept(options.plot, plot)}.")
    return 0 if result.converged else 1


def run_solve(options: argparse.Namespace) -> int:
    """Run the command `solve` and return its exit status."""
    names, model = ("alpha", "init", "rtol"), _model(options)
    if options.steps or options.parisi:
        result: StateEvolutionResult = solve_broken(model, **select(options, *names, "steps", "parisi"))
    else:
        result = solve_state_evolution(model, **select(options, *names, "rule", "response", "seed"))
    numbers = result.to_dict()
    pairs = ("train_loss", "test_error", "jump_mass", "replicon")  # each is written with its error
    numbers |= {name: [numbers[name], numbers[f"{name}_error"]] for name in pairs}
    numbers["growth"] = to_json(result.stability and result.stability.growth)
    report(options, str(result), numbers, result.converged)
    return 0 if result.converged else 1


def _method(options: argparse.Namespace) -> Any:
    """Return the method of --method; raise ValueError if an option is given that it does not use."""
    descent = partial(GradientDescent, lr=0.15)  # the learning rate of the paper
    methods: dict[str, tuple[Any, tuple[str, ...]]] = {
        "gamp": (MessagePassing, ("damping", "hold_after", "compression")),
        "survey": (lambda parisi=None, **others: Survey(parisi, **others), ("damping", "parisi")),
        "gd": (descent, ("lr", "compression")),
        "momentum": (partial(descent, momentum=0.9), ("lr", "compression")),
        "nesterov": (partial(descent, momentum=0.9, nesterov=True), ("lr", "compression")),
        "sgd": (partial(descent, batch=0.1), ("lr",)),
        "online": (partial(SinglePass, lr=0.15), ("lr",)),
    }
    build, used = methods[options.method]
    given = select(options, "damping", "hold_after", "parisi", "lr", "compression")
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if name not in used:
            users = " or ".join(repr(method) for method, (_, names) in methods.items() if name in names)
            needs = f"method {users}, as {options.method!r} does not use it"
            raise ValueError(f"{name}: needs {needs}, got {value!r}; leave {name} out")
    return build(**given)


def run_trajectory(options: argparse.Namespace) -> int:
    """Run the command `trajectory` and return its exit status."""
    path = trajectory(_model(options), method=_method(options), **select(options, "alpha", "init", "n_iter", "seed"))
    report(options, str(path), path.to_dict())
    return 0


@contextmanager
def dask_executor(address: str, timeout: float = 10.0) -> Iterator[Any]:
    """Yield an executor on the cluster of a scheduler, which may be busy but must answer within `timeout` seconds."""
    require_listener(address)
    require_modules("--dask", "distributed")
    from distributed import Client

    with Client(address, timeout=timeout) as client:
        yield client.get_executor()


def require_listener(address: str, timeout: float = 1.5) -> None:
    """Raise ValueError unless a scheduler accepts connections within `timeout` s; only TCP addresses are checked."""
    needs = "the address of a dask scheduler that answers, such as tcp://HOST:8786"
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in ("tcp", "tls"):
        return
    try:
        if not parts.hostname or not parts.port:
            raise check.fail("--dask", address, needs)
        socket.create_connection((parts.hostname, parts.port), timeout=timeout).close()
    except TimeoutError:
        raise check.fail_words("--dask", f"{address}: no answer within {timeout:g} s", needs) from None
    except OSError as error:
        raise check.fail_words("--dask", f"{address}: {error.strerror or error}", needs) from None
    except ValueError as error:
        if str(error).startswith("--dask"):
            raise
        raise check.fail_words("--dask", f"{address}: {error}", needs) from None


def _open_executor(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """Return a context with the executor of --workers or --dask, or with None."""
    if options.dask and options.workers is not None:
        raise ValueError("--workers, --dask: only one of them can be given")
    if options.dask:
        return dask_executor(options.dask)
    return nullcontext() if options.workers is None else local_pool(options.workers)


def _join(lists: list[list[float]] | None) -> list[float] | None:
    return None if lists is None else [value for values in lists for value in values]


def run_sweep(options: argparse.Namespace) -> int:
    """Run the command `sweep` and return its exit status."""
    model = paper_model(A=options.A) if options.A else paper_model()
    axes: dict[str, Any] = {name: _join(getattr(options, name)) for name in ("alpha", "omega", "lam", "sigma")}
    wanted = axes | select(options, "folder", "d", "seed", "branch", "method", "rtol", "risk")
    with _open_executor(options) as executor:
        result = sweep(model, **wanted, warm=not options.cold, executor=executor)
    finished = all(row["status"] in ("converged", "settled", "lost") for row in result.rows)
    report(options, str(result), result.to_dict(), finished)
    if options.out:
        save(result.dataset(), options.out, options.force)
        say(options, f"The dataset is in {options.out}.")
    return 0 if finished else 1


def run_boundaries(options: argparse.Namespace) -> int:
    """Run the command `boundaries` and return its exit status."""
    model = paper_model(sigma=options.sigma, lam=options.lam, **({"A": options.A} if options.A else {}))
    wanted = select(options, "alphas", "tol", "bayes", "folder")
    with _open_executor(options) as executor:
        result = phase_boundaries(model, _join(options.omega), **wanted, executor=executor)
    report(options, str(result), result.to_dict() | {"range": [result.low, result.high]}, result.converged)
    if options.plot:
        plot = target_of(options, options.plot, PICTURE, result.converged)
        plot_phase_diagram(result, plot, options.force)
        say(options, f"The picture is in {describe_kept(options.plot, plot)}.")
    return 0 if result.converged else 1
