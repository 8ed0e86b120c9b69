"""What the scripts share: their command line, numbers as words, and the verdict that is stored."""

import argparse
import os
import signal
import subprocess
import sys
import traceback
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy

import gamp_attention as ga
from gamp_attention.experiments.sweeps import store
from validation._tools.catalogue import ROOT, load_result, open_results
from validation._tools.resumable import write_json as write

FINEST = 1e-5  # error that is told from zero in tables


def options(description: str, *, draw: bool = False, workers: bool = False, **more: Any) -> argparse.Namespace:
    """Command line of a script: --quick and --out; --draw and --workers where it has them.

    Further ones are given by name, each with its `add_argument`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a reduced size, for CI")
    parser.add_argument("--out", type=Path, default=ROOT / "results", help="folder of the stored numbers and pictures")
    if draw:
        parser.add_argument("--draw", action="store_true", help="only from the stored numbers, whatever is missing")
    if workers:
        parser.add_argument("--workers", type=int, default=1, help="processes; 1 for none beside this one")
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
    """Let Ctrl-C end a script with one line that says how to go on, and exit status 130."""

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            traceback.print_exception(kind, error, trace)
            return
        message = str(error) or "interrupted: run the same again; trials and cells that were stored are not run twice"
        print(f"{Path(sys.argv[0]).stem}: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(130)

    sys.excepthook = hook
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `processes` blocks it while we are imported


def folder(args: argparse.Namespace, name: str) -> Path:
    """Where a script keeps its cells, which are not in git."""
    return args.out / "cells" / name


def pool(args: argparse.Namespace) -> AbstractContextManager[Executor | None]:
    """As many processes as asked for, to be used as an executor."""
    return ga.local_pool(args.workers) if args.workers > 1 else nullcontext()


def plus_minus(value: float, error: float) -> str:
    """A number with its error to one digit, two where the first is below 3; alone where the error is not known."""
    if not np.isfinite(error):
        return f"{value:.3g}" if np.isfinite(value) else "–"
    if max(abs(value), error) < FINEST:
        return "0"
    decimals = int(np.clip(-np.floor(np.log10(max(error, FINEST) / 3)), 0, None))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def counts_table(table: dict[str, dict[str, Any]], last: str, what: str = "instances") -> str:
    """A table in Markdown of rows of counts, by name; the last column, which is no count, has a format of its own."""
    columns = [*next(iter(table.values()))]
    lines = [f"| {what} | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    for name, row in table.items():
        *counts, measure = row.values()
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + f" | {last.format(measure)} |")
    return "\n".join(lines) + "\n"


def commit() -> str:
    """The commit that the code is of, with a plus where it has been changed since; "unknown" outside of git."""
    known = store.commit()
    if known is None:
        return "unknown"
    words = ["git", "status", "--porcelain", "--untracked-files=no", "--", "*.py"]
    changed = subprocess.run(words, cwd=ROOT.parent, capture_output=True, check=True).stdout
    return known[:10] + "+" * bool(changed)


class Verdict:
    """Collects checks; `end` stores the numbers and exits non-zero where a check failed."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.name, self._options = name + ("_quick" if args.quick else ""), args
        self._commit = commit()  # of the code that runs, whatever is checked out before it ends
        self.held: list[str] = []
        self.failed: list[str] = []

    def check(self, condition: bool, claim: str) -> None:
        """Print a claim and whether it holds."""
        print(("holds   " if condition else "FAILS   ") + claim, flush=True)
        (self.held if condition else self.failed).append(claim)

    def path(self, suffix: str) -> Path:
        """Where this script stores a file."""
        return self._options.out / f"{self.name}{suffix}"

    def stored(self) -> dict[str, Any]:
        """The numbers of an earlier run, to draw from."""
        return load_result(self.path(".json"))

    def end(self, numbers: dict[str, Any]) -> None:
        """Store the numbers with the day, versions, commit and checks, and exit."""
        versions = {module.__name__: module.__version__ for module in (ga, np, scipy, numba)}
        when = f"{datetime.now(UTC):%Y-%m-%d}"
        about = {"versions": versions, "when": when, "commit": self._commit, "held": self.held, "failed": self.failed}
        write(self.path(".json"), about | numbers)
        print(f"numbers: {self.path('.json')}; {len(self.failed)} checks failed")
        sys.exit(bool(self.failed))
