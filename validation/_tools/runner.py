"""Runs scripts, each in a separate process, and prints one table of their checks."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from validation._tools import catalog, checksums
from validation._tools.catalog import Script

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


class Row(NamedTuple):
    """A row of the table; the numbers of checks are None if no result was stored."""

    name: str
    held: int | None
    failed: int | None
    seconds: float
    outcome: str
    good: bool


def run_scripts(scripts: Sequence[Script], options: argparse.Namespace, more: Sequence[str]) -> int:
    """Run the scripts and return the exit status. With several jobs, the output of each goes to NAME.log in a folder.

    Ctrl-C also reaches the scripts, each of which stores what it has finished.
    """
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = {}
    with ThreadPoolExecutor(options.jobs) as executor:
        futures = [executor.submit(_run, script, options, more, logs) for script in scripts]
        try:
            for ended in as_completed(futures):
                row = ended.result()
                rows[row.name] = row
                print(f"{row.name}: {row.outcome} ({row.seconds:.0f} s)", flush=True)
        except KeyboardInterrupt:
            executor.shutdown(cancel_futures=True)
            print("validation: interrupted: run the same command again; stored trials are kept", file=sys.stderr)
            return 130
    ordered = [rows[script.name] for script in scripts]
    print(format_table(ordered), flush=True)
    if (options.out / checksums.NAME).exists():
        checksums.write_sums(options.out)
    return int(not all(row.good for row in ordered))


def build_command(script: Script, words: Sequence[str]) -> list[str]:
    """Return the command that runs a script."""
    return [sys.executable, "-m", script.module, *words]


def build_environment() -> dict[str, str]:
    """Return the environment of this process, with the scripts on the path."""
    paths = [str(catalog.ROOT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def format_table(rows: Sequence[Row]) -> str:
    """Return the table of checks, with a line for each script."""
    lines: list[tuple[str, ...]] = [("script", "held", "failed", "seconds", "outcome")]
    for row in rows:
        counts = ("–" if count is None else str(count) for count in (row.held, row.failed))
        lines.append((row.name, *counts, f"{row.seconds:.0f}", row.outcome))
    if len(rows) > 1:
        totals = (sum(getattr(row, name) or 0 for row in rows) for name in ("held", "failed", "seconds"))
        good = sum(row.good for row in rows)
        lines.append((f"{len(rows)} in all", *(f"{total:.0f}" for total in totals), f"{good} of {len(rows)} hold"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n" + "\n".join(
        "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:]), outcome])
        for name, *numbers, outcome in lines
    )


def _run(script: Script, options: argparse.Namespace, more: Sequence[str], logs: Path) -> Row:
    """Run one script and return its row."""
    words = ["--out", str(options.out), *["--quick"] * options.quick]
    environment = build_environment() | (ONE_THREAD if options.jobs > 1 else {})
    if options.draw or options.workers:
        usage = subprocess.run(build_command(script, ["--help"]), env=environment, capture_output=True, text=True)
        if options.draw and "--draw" not in usage.stdout:
            return Row(script.name, None, None, 0, "draws nothing by itself", True)
        words += ["--draw"] * options.draw
        words += ["--workers", str(options.workers)] if options.workers and "--workers" in usage.stdout else []
    began = time.time()
    command = build_command(script, [*words, *more])
    if options.jobs > 1:
        with (logs / f"{script.name}.log").open("wb") as log:
            status = subprocess.call(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    else:
        status = subprocess.call(command, env=environment)
    return _summarize(script, options, status, began)


def _summarize(script: Script, options: argparse.Namespace, status: int, began: float) -> Row:
    """Return the row of the table for an ended script."""
    seconds, good = time.time() - began, status == 0
    how = "holds" if good else f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
    if options.draw:
        return Row(script.name, None, None, seconds, "drawn" if good else how, good)
    new = [path for path in script.results(options.out, options.quick) if path.stat().st_mtime >= began]
    if not new or status not in (0, 1):
        return Row(script.name, None, None, seconds, f"no verdict, {how}", False)
    held, failed = (sum(len(catalog.load_result(path)[key]) for path in new) for key in ("held", "failed"))
    return Row(script.name, held, failed, seconds, "holds" if good else "fails", good)
