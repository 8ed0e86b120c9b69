"""Run one script in two checkouts of the package at the same time, for ratios of times on one machine."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from validation._tools.catalog import ROOT

BASE: dict[str, Any] = {"type": Path, "help": "folder of another checkout to compare times with", "default": None}


def run_side_by_side(base: Path, script: Path, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """Return the lines of JSON that a script prints with another checkout of the package and with this one.

    Each process has one thread and an empty folder for compiled kernels.
    """
    return run_rounds(base, script, 1, *arguments)[0]


def run_rounds(base: Path, script: Path, n: int, *arguments: Any) -> list[tuple[list[Any], list[Any]]]:
    """Return the results of `run_side_by_side` n times, each in new processes that share the compiled kernels.

    The place of the code in memory differs between processes, and with it the times.
    """
    with tempfile.TemporaryDirectory() as aside:
        return [_run_both(base, script, aside, arguments) for _ in range(n)]


def _run_both(base: Path, script: Path, aside: str, arguments: tuple[Any, ...]) -> tuple[list[Any], list[Any]]:
    running = []
    for number, checkout in enumerate((base.resolve(), ROOT.parent)):
        variables = {"PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": f"{aside}/{number}"}
        variables |= dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        command = [sys.executable, str(script), *map(str, arguments)]
        running.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables, cwd=checkout)
        )
    outputs = [process.communicate()[0] for process in running]
    for process in running:
        if process.returncode:
            raise RuntimeError(f"{' '.join(map(str, process.args))} ended with {process.returncode}")
    before, now = ([json.loads(line) for line in text.splitlines()] for text in outputs)
    return before, now
