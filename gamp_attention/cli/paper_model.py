"""The commands `gamp-attention compare`, `solve` and `trajectory`, which use the model of the paper."""

import argparse
from typing import Any

from gamp_attention._core.display import to_json
from gamp_attention.cli.options import build_penalty
from gamp_attention.cli.output import report, say, select
from gamp_attention.experiments.comparison import Comparison, Interrupted, compare
from gamp_attention.experiments.figures import plot_comparison
from gamp_attention.models.attention import paper_model
from gamp_attention.state_evolution.dynamics.trajectory import trajectory
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution


def _model(options: argparse.Namespace) -> Any:
    noise = options.score_noise
    return paper_model(options.omega, options.sigma, options.lam, penalty=build_penalty(options), score_noise=noise)


def run_compare(options: argparse.Namespace) -> int:
    """Run the command `compare` and return its exit status."""

    def show(result: Comparison) -> None:
        report(options, str(result), result.to_dict())
        plot_comparison(result, options.plot, options.force)
        say(options, f"picture: {options.plot}")

    try:
        result = compare(_model(options), **select(options, "d", "alpha", "seed", "risk", "gd_steps"))
    except Interrupted as stopped:
        show(stopped.result)
        raise
    show(result)
    return 0 if result.converged else 1


def run_solve(options: argparse.Namespace) -> int:
    """Run the command `solve` and return its exit status."""
    wanted = select(options, "alpha", "init", "rtol", "rule", "response", "seed", "rsb", "parisi")
    result = solve_state_evolution(_model(options), **wanted)
    numbers = result.to_dict()
    pairs = ("train_loss", "test_error", "jump_mass", "replicon")  # each is written with its error
    numbers |= {name: [numbers[name], numbers[f"{name}_error"]] for name in pairs}
    report(options, str(result), numbers | {"growth": to_json(result.stability and result.stability.growth)})
    return 0 if result.converged else 1


def run_trajectory(options: argparse.Namespace) -> int:
    """Run the command `trajectory` and return its exit status."""
    path = trajectory(
        _model(options), **select(options, "alpha", "init", "method", "damping", "parisi", "lr", "n_iter", "seed")
    )
    report(options, str(path), path.to_dict())
    return 0
