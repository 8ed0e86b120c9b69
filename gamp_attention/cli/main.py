"""Command line: gamp-attention COMMAND. Exit status: 0 done, 1 not converged, 2 bad input, 130 interrupted."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from gamp_attention._core import interrupts
from gamp_attention._core.display import to_json
from gamp_attention._core.progress import Progress
from gamp_attention._version import __version__
from gamp_attention.cli.fit import add_fit, add_law
from gamp_attention.cli.output import (
    add_json_and_force,
    check_extras,
    check_outputs,
    forgiving_streams,
    report,
    say,
    select,
)
from gamp_attention.cli.parser import Parser, add_l1, build_penalty
from gamp_attention.cli.sweeps import add_boundaries, add_sweep
from gamp_attention.data.dataset import RISKS
from gamp_attention.experiments.comparison import Comparison, Interrupted, compare
from gamp_attention.experiments.figures import plot_comparison
from gamp_attention.models.attention import paper_model
from gamp_attention.models.model import STARTS
from gamp_attention.state_evolution.dynamics.descent_paths import DESCENTS
from gamp_attention.state_evolution.dynamics.trajectory import trajectory
from gamp_attention.state_evolution.fixed_points.overlap_map import RESPONSES
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution
from gamp_attention.state_evolution.rules.choice import RULES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    forgiving_streams()
    options = _parser().parse_args(arguments)
    try:
        interrupts.raise_interrupts()
        check_extras(options)
        check_outputs(options)
        # solvers nest their progress bars in this bar
        with interrupts.interruptible(), Progress(f"{options.command} "):
            return options.run(options)
    except (ValueError, TypeError, ImportError, OSError, MemoryError) as error:
        print(f"gamp-attention {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        message = str(error) or "interrupted, nothing was written: run the same command again for the same numbers"
        print(f"gamp-attention {options.command}: {message}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="gamp-attention", description="Message passing on dot-product attention.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    comparison = commands.add_parser(
        "compare", help="compare GAMP, state evolution and gradient descent on one instance"
    )
    _add_model(comparison)
    comparison.add_argument("--d", type=int, default=1000, help="dimension of a token (default 1000)")
    comparison.add_argument("--seed", type=int, default=0, help="seed of the instance (default 0)")
    comparison.add_argument("--risk", choices=RISKS, default="asymptotic")
    comparison.add_argument("--gd-steps", type=int, help="steps of plain gradient descent")
    comparison.add_argument(
        "--plot", metavar="FILE", default="compare.png", help="file of the picture (default compare.png)"
    )
    comparison.set_defaults(run=_compare)

    fit = add_fit(commands)

    solve = commands.add_parser("solve", help="solve for a fixed point of state evolution")
    _add_model(solve)
    add_l1(solve)
    solve.add_argument("--init", choices=STARTS, default="semantic")
    solve.add_argument("--rtol", type=float, help="relative error of the overlaps (default 1e-4)")
    solve.add_argument("--rule", choices=RULES, default="auto")
    solve.add_argument(
        "--response", "--variance", choices=RESPONSES, default="stein", help="formula for V̂ (default stein)"
    )
    solve.add_argument("--seed", type=int, default=0, help="seed of randomised points (default 0)")
    solve.set_defaults(run=_solve)

    path = commands.add_parser(
        "trajectory", help="predict every iteration of message passing or gradient descent for large d"
    )
    _add_model(path)
    add_l1(path)
    path.add_argument("--init", choices=STARTS, default="semantic")
    path.add_argument(
        "--method",
        choices=("gamp", "survey", *DESCENTS),
        default="gamp",
        help="algorithm whose iterations are predicted (default gamp)",
    )
    path.add_argument(
        "--damping", type=float, help="step β, only for --method gamp (default 0.5) and survey (default 0.4)"
    )
    path.add_argument("--parisi", type=float, help="Parisi parameter y; only for --method survey, and required there")
    path.add_argument("--lr", type=float, help="step size of gradient descent; only for descents (default 0.15)")
    path.add_argument("--n-iter", type=int, default=20, help="number of iterations (default 20)")
    path.add_argument("--seed", type=int, default=0, help="seed of the paths (default 0)")
    path.set_defaults(run=_trajectory)

    for command in (comparison, fit, add_law(commands), solve, path, add_sweep(commands), add_boundaries(commands)):
        add_json_and_force(command)
    return parser


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--alpha", type=float, default=1.5, help="sample complexity n/d (default 1.5)")
    command.add_argument("--omega", type=float, default=0.3, help="positional fraction ω of the task (default 0.3)")
    command.add_argument("--sigma", type=float, default=0.5, help="standard deviation of tokens (default 0.5)")
    command.add_argument("--lam", type=float, default=0.01, help="ridge penalty (default 0.01)")
    command.add_argument("--score-noise", type=float, default=0.0, help="s of targets (T + s N)x (default 0)")


def _model(options: argparse.Namespace) -> Any:
    noise = options.score_noise
    return paper_model(options.omega, options.sigma, options.lam, penalty=build_penalty(options), score_noise=noise)


def _compare(options: argparse.Namespace) -> int:
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


def _solve(options: argparse.Namespace) -> int:
    wanted = select(options, "alpha", "init", "rtol", "rule", "response", "seed")
    result = solve_state_evolution(_model(options), **wanted)
    numbers = result.to_dict()
    pairs = ("train_loss", "test_error", "jump_mass", "replicon")  # each is written with its error
    numbers |= {name: [numbers[name], numbers[f"{name}_error"]] for name in pairs}
    report(options, str(result), numbers | {"growth": to_json(result.stability and result.stability.growth)})
    return 0 if result.converged else 1


def _trajectory(options: argparse.Namespace) -> int:
    path = trajectory(
        _model(options), **select(options, "alpha", "init", "method", "damping", "parisi", "lr", "n_iter", "seed")
    )
    report(options, str(path), path.to_dict())
    return 0
