"""Runs scripts, each in a separate process, and prints one table of their checks.

Several commands can run at the same time; Ctrl-C stops them together.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from validation._tools import catalog, checksums
from validation._tools.catalog import Script
from validation._tools.resumable import write_json

PAUSE = 0.05  # seconds between two polls of the running processes


class Task(NamedTuple):
    """A command with its environment. If `unblocks`, it sees no Ctrl-C until it has unblocked SIGINT."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    unblocks: bool = False


class FinishedTask(NamedTuple):
    """A task with its exit status, its start time, and its duration in seconds."""

    task: Task
    status: int
    began: float
    seconds: float


class _RunningTask(NamedTuple):
    task: Task
    process: subprocess.Popen[Any]
    began: float


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after which all tasks have ended; `said` if a task has printed the message already."""

    def __init__(self, said: bool) -> None:
        super().__init__()
        self.said = said


def run_tasks(tasks: Sequence[Task], jobs: int, logs: Path) -> Iterator[FinishedTask]:
    """Run tasks and yield each when it ends. With several jobs, the output of each goes to NAME.log in a folder.

    Raises
    ------
    Interrupted : after Ctrl-C.
    """
    waiting, running = list(tasks), list[_RunningTask]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                if jobs == 1 and len(tasks) > 1:
                    print(f"\n== {task.name}, {len(tasks) - len(waiting)} of {len(tasks)}", flush=True)
                running.append(_start_task(task, logs / f"{task.name}.log" if jobs > 1 else None))
            time.sleep(PAUSE)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                yield FinishedTask(each.task, each.process.returncode, each.began, time.time() - each.began)
    except KeyboardInterrupt as interrupt:
        _stop_tasks(running)
        raise Interrupted(jobs == 1 and any(each.process.returncode == 130 for each in running)) from interrupt
    except BaseException:
        _stop_tasks(running)
        raise


def _start_task(task: Task, log: Path | None) -> _RunningTask:
    """Start a task in a separate process group, so that signals reach it only through this process."""
    began = time.time()
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("wb"))
        if task.unblocks:  # a child inherits blocked signals
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            stack.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGINT})
        process = subprocess.Popen(
            task.command, env=task.environment, stdout=output, stderr=output and subprocess.STDOUT, process_group=0
        )
    return _RunningTask(task, process, began)


def _stop_tasks(running: Sequence[_RunningTask]) -> None:
    """Send Ctrl-C to the tasks and wait; a second Ctrl-C kills them."""
    try:
        _send_signal(running, signal.SIGINT)
        for each in running:
            each.process.wait()
    except KeyboardInterrupt:
        _send_signal(running, signal.SIGKILL)


def _send_signal(running: Sequence[_RunningTask], which: signal.Signals) -> None:
    for each in running:
        if each.process.poll() is None:
            os.killpg(each.process.pid, which)


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
    """Run the scripts that an interrupted run of the same command has not finished, and return the exit status."""
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    asked = [*options.names, *(f"--{flag}" for flag in ("quick", "draw") if getattr(options, flag)), *more]
    unfinished = UnfinishedRuns(logs / "unfinished.json", " ".join(asked))
    rows = {} if options.fresh else unfinished.rows()
    if rows:
        print(f"finished before: {', '.join(rows)}; --fresh runs them again")
    threads = ONE_THREAD if options.jobs > 1 else {}
    beside = [words.partition("=") for words in options.beside]
    tasks = [Task(name, ["bash", "-c", words], os.environ | threads) for name, _, words in beside]
    names = [*(task.name for task in tasks), *(script.name for script in scripts)]
    for script in (script for script in scripts if script.name not in rows):
        words = _build_options(script, options)
        if words is None:
            rows[script.name] = Row(script.name, None, None, 0, "draws nothing by itself", True)
        else:
            tasks.append(
                Task(script.name, build_command(script, [*words, *more]), build_environment() | threads, unblocks=True)
            )
    try:
        with tqdm(total=len(tasks), desc="scripts", leave=False, disable=None if options.jobs > 1 else True) as bar:
            for ended in run_tasks(tasks, options.jobs, logs):
                row = rows[ended.task.name] = _summarize(ended, scripts, options)
                if options.jobs > 1:
                    log = "" if row.good else (logs / f"{row.name}.log").read_text(errors="replace")
                    bar.write(f"{log}{row.name}: {row.outcome} ({row.seconds:.0f} s)")
                    bar.update()
                unfinished.keep(row for row in rows.values() if row.held is not None)
    except Interrupted as interrupted:
        if not interrupted.said:
            print(
                "validation: interrupted: run the same command again; finished scripts are not run twice",
                file=sys.stderr,
            )
        return 130
    ordered = [rows[name] for name in names]
    print(format_table(ordered), flush=True)
    if (options.out / checksums.NAME).exists():
        checksums.write_sums(options.out)
    if all(row.good or row.held is not None for row in ordered):
        unfinished.keep(())
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


class UnfinishedRuns:
    """File with the rows of runs that were interrupted, or in which a script ended without storing a result."""

    def __init__(self, path: Path, asked: str) -> None:
        self._path, self._asked = path, asked

    def rows(self) -> dict[str, Row]:
        """Return the stored rows of a run with the same words, by script."""
        return {row[0]: Row(*row) for row in self._all().get(self._asked, [])}

    def keep(self, rows: Any) -> None:
        """Store the rows of this run; an empty list removes them."""
        table = self._all() | {self._asked: list(rows)}
        write_json(self._path, {asked: rows for asked, rows in table.items() if rows})

    def _all(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}


def _build_options(script: Script, options: argparse.Namespace) -> list[str] | None:
    """Return the options that the script understands; None if it cannot draw from stored numbers."""
    words = ["--out", str(options.out), *["--quick"] * options.quick]
    if options.draw or options.workers:
        usage = subprocess.run(
            build_command(script, ["--help"]), env=build_environment(), capture_output=True, text=True
        ).stdout
        if options.draw and "--draw" not in usage:
            return None
        words += ["--draw"] * options.draw
        words += ["--workers", str(options.workers)] if options.workers and "--workers" in usage else []
    return words


def _summarize(ended: FinishedTask, scripts: Sequence[Script], options: argparse.Namespace) -> Row:
    """Return the row of the table for an ended task."""
    name, status, good = ended.task.name, ended.status, ended.status == 0
    how = "holds" if good else f"exit status {status}" if status > 0 else f"killed by signal {-status}"
    script = next((script for script in scripts if script.name == name), None)
    if script is None:
        return Row(name, None, None, ended.seconds, how, good)
    if options.draw:
        return Row(name, None, None, ended.seconds, "drawn" if good else how, good)
    new = [path for path in script.results(options.out, options.quick) if path.stat().st_mtime >= ended.began]
    if not new or status not in (0, 1):
        return Row(name, None, None, ended.seconds, f"no verdict, {how}", False)
    held, failed = (sum(len(catalog.load_result(path)[key]) for path in new) for key in ("held", "failed"))
    return Row(name, held, failed, ended.seconds, "holds" if good else "fails", good)
