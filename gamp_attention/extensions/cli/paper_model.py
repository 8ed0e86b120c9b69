"""The commands that use the model of the paper: `compare`, `solve`, `trajectory`, `sweep` and `boundaries`."""

import argparse
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

from gamp_attention._tools.display import to_json
from gamp_attention._tools.files import path_of_unfinished
from gamp_attention.extensions.cli.options import build_penalty
from gamp_attention.extensions.cli.output import report, say, select
from gamp_attention.extensions.comparison.comparison import compare
from gamp_attention.extensions.comparison.figures import plot_comparison, plot_phase_diagram
from gamp_attention.extensions.dynamics.message_passing import MessagePassing
from gamp_attention.extensions.dynamics.online_paths import SinglePass
from gamp_attention.extensions.dynamics.stored_times import GradientDescent
from gamp_attention.extensions.dynamics.survey_paths import Survey
from gamp_attention.extensions.dynamics.trajectory import trajectory
from gamp_attention.extensions.phases.phase_boundaries import phase_boundaries
from gamp_attention.extensions.rsb.broken import solve_broken
from gamp_attention.extensions.sweeps.scheduler import local_pool
from gamp_attention.extensions.sweeps.sweep import sweep
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import solve_state_evolution
from gamp_attention.theory.models.attention import paper_model


def _model(options: argparse.Namespace) -> Any:
    noise = options.score_noise
    return paper_model(options.omega, options.sigma, options.lam, penalty=build_penalty(options), score_noise=noise)


def run_compare(options: argparse.Namespace) -> int:
    """Run the command `compare` and return its exit status."""
    result = compare(_model(options), **select(options, "d", "alpha", "seed", "risk", "gd_steps"))
    status = report(options, str(result), result.to_dict(), result.converged)
    plot = options.plot if result.converged else path_of_unfinished(options.plot)
    plot_comparison(result, plot, options.force, options.all)
    say(options, f"The picture is in {plot}.")
    return status


def run_solve(options: argparse.Namespace) -> int:
    """Run the command `solve` and return its exit status."""
    names, model = ("alpha", "init", "rtol"), _model(options)
    if options.steps:
        options.flags["model"] = "--l1" if options.l1 else "--score-noise"  # only these make models that are refused
        result: StateEvolutionResult = solve_broken(model, **select(options, *names, "steps"))
    else:
        result = solve_state_evolution(model, **select(options, *names, "seed"))
    numbers = result.to_dict()
    pairs = ("train_loss", "test_error", "jump_mass", "replicon")  # each is written with its error
    numbers |= {name: [numbers[name], numbers[f"{name}_error"]] for name in pairs}
    numbers["growth"] = to_json(result.stability and result.stability.growth)
    return report(options, str(result), numbers, result.converged)


def _method(options: argparse.Namespace) -> Any:
    """Return the method of --method; raise ValueError if an option is given that it does not use."""
    descent = partial(GradientDescent, lr=0.15)  # the learning rate of the paper
    methods: dict[str, tuple[Any, tuple[str, ...]]] = {
        "gamp": (MessagePassing, ("damping",)),
        "survey": (lambda parisi=None, **others: Survey(parisi, **others), ("damping", "parisi")),
        "gd": (descent, ("lr",)),
        "momentum": (partial(descent, momentum=0.9), ("lr",)),
        "nesterov": (partial(descent, momentum=0.9, nesterov=True), ("lr",)),
        "sgd": (partial(descent, batch=0.1), ("lr",)),
        "online": (partial(SinglePass, lr=0.15), ("lr",)),
    }
    build, used = methods[options.method]
    given = {name: value for name, value in select(options, "damping", "parisi", "lr").items() if value is not None}
    for name in sorted(set(given) - set(used)):
        raise ValueError(f"{name}: needs another --method than {options.method!r}, which does not use it")
    return build(**given)


def run_trajectory(options: argparse.Namespace) -> int:
    """Run the command `trajectory` and return its exit status."""
    path = trajectory(_model(options), method=_method(options), **select(options, "alpha", "init", "n_iter", "seed"))
    return report(options, str(path), path.to_dict())


def run_sweep(options: argparse.Namespace) -> int:
    """Run the command `sweep` and return its exit status."""
    axes: dict[str, Any] = {name: [*chain(*getattr(options, name))] for name in ("alpha", "omega", "lam", "sigma")}
    wanted = axes | select(options, "folder", "d", "seed", "branch", "method", "rtol", "risk")
    with nullcontext() if options.workers is None else local_pool(options.workers) as executor:
        result = sweep(paper_model(), **wanted, warm=not options.cold, executor=executor)
    finished = all(row["status"] in ("converged", "settled", "lost") for row in result.rows)
    return report(options, str(result), result.to_dict(), finished)


def run_boundaries(options: argparse.Namespace) -> int:
    """Run the command `boundaries` and return its exit status."""
    model = paper_model(sigma=options.sigma, lam=options.lam)
    wanted = select(options, "alphas", "tol", "folder")
    with nullcontext() if options.workers is None else local_pool(options.workers) as executor:
        result = phase_boundaries(model, [*chain(*options.omega)], **wanted, executor=executor)
    status = report(options, str(result), result.to_dict() | {"range": [result.low, result.high]}, result.converged)
    if options.plot:
        plot = options.plot if result.converged else path_of_unfinished(options.plot)
        plot_phase_diagram(result, plot, options.force)
        say(options, f"The picture is in {plot}.")
    return status
