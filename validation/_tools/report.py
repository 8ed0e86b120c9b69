"""Command line, formatting of numbers and stored verdict of a script."""

import argparse
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy

import gamp_attention as ga
from gamp_attention._tools.files import write_atomically
from gamp_attention.extensions.sweeps import store
from validation._tools.catalog import ROOT, load_result, open_results
from validation._tools.resumable import run_trials, write_json as write
from validation._tools.tables import markdown_table

FINEST = 1e-5  # smallest number that tables distinguish from zero


def options(description: str, *, draw: bool = False, workers: bool = False, **more: Any) -> argparse.Namespace:
    """Parse the command line of a script: --quick and --out, and --draw and --workers if requested.

    `more` has further options by name, with the arguments of `add_argument`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run at a reduced size, for CI")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder of the stored numbers and pictures")
    if draw:
        parser.add_argument("--draw", action="store_true", help="only draw the picture from stored numbers")
    if workers:
        parser.add_argument("--workers", type=int, default=1, help="number of processes (default 1)")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    args = parser.parse_args()
    try:
        open_results(args.out)
    except ValueError as error:
        parser.error(str(error))
    quiet_interrupts()
    return args


def quiet_interrupts() -> None:
    """Let Ctrl-C end a script with exit status 130 and one line that explains how to resume."""

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            traceback.print_exception(kind, error, trace)
            return
        message = (
            str(error) or "interrupted: run the same command again; stored trials and cells are not computed again"
        )
        print(f"{Path(sys.argv[0]).stem}: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(130)

    sys.excepthook = hook
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the runner blocks it until the imports are done


def folder(args: argparse.Namespace, name: str) -> Path:
    """Return the folder of a script's cells, which is not in git."""
    return args.out / "cells" / name


def pool(args: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """Return an executor with the number of processes of the command line, or None for one process."""
    return ga.local_pool(args.workers) if args.workers > 1 else nullcontext()


def plus_minus(value: float, error: float) -> str:
    """Format a number with its error to one digit, two if the first is below 3; alone if the error is not finite."""
    if not np.isfinite(error):
        return f"{value:.3g}" if np.isfinite(value) else "–"
    if max(abs(value), error) < FINEST:
        return "0"
    decimals = int(np.clip(-np.floor(np.log10(max(error, FINEST) / 3)), 0, None))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def counts_table(table: dict[str, dict[str, Any]], last: str, what: str = "instances") -> str:
    """Return a table in Markdown with a row for each name; `last` formats the last column, which is no count."""
    rows = [[name, *list(row.values())[:-1], last.format([*row.values()][-1])] for name, row in table.items()]
    return markdown_table([what, *next(iter(table.values()))], rows)


def commit() -> str:
    """Return the commit of the code, with a plus if files have changed since; "unknown" outside of git."""
    known = store.commit()
    if known is None:
        return "unknown"
    words = ["git", "status", "--porcelain", "--untracked-files=no", "--", "*.py"]
    changed = subprocess.run(words, cwd=ROOT.parent, capture_output=True, check=True).stdout
    return known[:10] + "+" * bool(changed)


class Verdict:
    """The checks of a script; `end` stores them with the numbers and sets the exit status."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self.quick, self._options = name + ("_quick" if args.quick else ""), args.quick, args
        self._commit = commit()  # at the start, as another commit may be checked out before the end
        self.held: list[str] = []
        self.failed: list[str] = []

    def check(self, condition: bool, claim: str, reason: str = "") -> None:
        """Print a claim and whether it holds; a known reason for a failure is stored with the claim."""
        print(("holds   " if condition else "FAILS   ") + claim, flush=True)
        if condition:
            self.held.append(claim)
        else:
            self.failed.append(f"{claim} (reason: {reason})" if reason else claim)

    def path(self, suffix: str) -> Path:
        """Return the path of a stored file of this script."""
        return self._options.out / f"{self.name}{suffix}"

    def write_table(self, text: str, suffix: str = ".md") -> None:
        """Print a table in Markdown and store it."""
        print(text)
        write_atomically(self.path(suffix), lambda file: file.write(text.encode()), overwrite=True)

    def stored(self) -> dict[str, Any]:
        """Return the numbers of an earlier run, to draw from."""
        return load_result(self.path(".json"))

    def end(self, numbers: dict[str, Any], draw: Callable[[Any, Path], None] | None = None) -> None:
        """Store the numbers with date, versions, commit and checks, and exit with status 1 if a check failed.

        `draw` draws the picture from the stored numbers, as --draw does, to a path.
        """
        versions = {module.__name__: module.__version__ for module in (ga, np, scipy, numba)}
        when = f"{datetime.now(UTC):%Y-%m-%d}"
        about = {"versions": versions, "when": when, "commit": self._commit, "held": self.held, "failed": self.failed}
        write(self.path(".json"), about | numbers)
        if draw is not None:
            draw(self.stored(), self.path(".png"))
        print(f"numbers: {self.path('.json')}; {len(self.failed)} checks failed")
        sys.exit(bool(self.failed))


def begin(
    name: str, description: str, draw: Callable[[Any, Path], None] | None, **more: Any
) -> tuple[argparse.Namespace, Verdict]:
    """Return the command line and the verdict of a script; with --draw, only draw from stored numbers, and exit.

    The arguments are as for `run_claim`, and `more` as for `options`.
    """
    args = options(description, draw=draw is not None, **more)
    verdict = Verdict(name, args)
    if draw is not None and args.draw:
        draw(verdict.stored(), verdict.path(".png"))
        sys.exit()
    return args, verdict


Plan = Mapping[Callable[..., dict[str, Any]], Sequence[dict[str, Any]] | Callable[..., Sequence[dict[str, Any]]]]


def run_claim(
    name: str, description: str, plan: Callable[[bool], Plan], judge: Callable[..., dict[str, Any]],
    draw: Callable[[Any, Path], None] | None = None,
) -> None:  # fmt: skip
    """Run a script: compute its rows, check its criterion, store the numbers, and draw the picture.

    Parameters
    ----------
    name, description : name of the stored files, and docstring of the script.
    plan : function of `quick` that returns, for each function, the arguments of its calls, or a function that returns
        them from the rows of the functions before.
    judge : function of the verdict and of the rows of each function in the plan; it checks the criterion, writes
        tables, and returns the numbers to store.
    draw : function of the stored numbers and a path.
    """
    args, verdict = begin(name, description, draw, workers=True)
    parts = []
    with pool(args) as executor:
        for function, planned in plan(args.quick).items():
            arguments = planned(*parts) if callable(planned) else planned
            rows = run_trials(folder(args, name) / function.__name__, function, arguments, executor)
            if arguments:
                verdict.check(len(rows) == len(arguments), f"{len(rows)} of {len(arguments)} trials ended")
            parts.append(rows)
    verdict.end(judge(verdict, *parts), None if args.quick else draw)
