"""Progress on a terminal: one bar for the outermost task of a process, to which all inner tasks report.

A task is a `with Progress(...)` block. The outermost task of the main thread draws a bar on standard error. A task
inside of it draws none: its progress moves the bar by a fraction of one step of the outer task, and its description
appears behind the bar. Nothing is drawn if standard error is not a terminal, nor in worker processes.
"""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from tqdm import tqdm

from gamp_attention._tools import check

DELAY = 1.0  # seconds before a bar appears: shorter tasks show none
INTERVAL = 0.1  # seconds between two drawings of a bar
COMPILING = "compiling kernels for this loss and type of numbers: 10 to 40 s, only the first time"
WITH_TOTAL = "{desc}{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}{postfix}"
WITHOUT_TOTAL = "{desc}{elapsed}{postfix}"

Function = TypeVar("Function", bound=Callable[..., Any])


class Progress:
    """A task whose progress is shown, as a context manager.

    Parameters
    ----------
    label : short description of the task, in front of the bar.
    total : number of steps; None if it is not known: then only time and description are shown.
    shown : whether a bar is drawn; if None, only on a terminal. It has no effect inside another task.
    """

    def __init__(self, label: str = "", total: float | None = None, shown: bool | None = None) -> None:
        self._label, self._total, self._shown = label, total, shown
        self.done, self._text, self._shown_fraction = 0.0, "", 0.0
        self._thread, self._bar, self._redrawn, self._announced = threading.get_ident(), cast(Any, None), 0.0, False

    def __enter__(self) -> "Progress":
        if not _tasks:
            main = threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None
            if main or self._shown:
                _tasks.append(self)
                on_terminal = sys.stderr is not None and sys.stderr.isatty()
                self._redrawn = time.monotonic() + DELAY - INTERVAL
                self._bar = tqdm(
                    desc=self._label, disable=not (on_terminal if self._shown is None else self._shown), leave=False,
                    delay=DELAY, file=sys.stderr, bar_format=WITHOUT_TOTAL, dynamic_ncols=True,
                )  # fmt: skip
        elif _tasks[0]._thread == self._thread:
            _tasks.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        if self in _tasks:
            del _tasks[_tasks.index(self) :]
        if self._bar is not None:
            self._bar.close()

    def update(self, steps: float = 1.0) -> None:
        """Count steps that are done."""
        self.done += steps
        refresh()

    def describe(self, text: str) -> None:
        """Replace the description of the current work; the first description of a task is drawn at once."""
        first, self._text = not self._text, text
        refresh(at_once=first)


_tasks: list[Progress] = []  # nested tasks of this process, the outermost task first


def refresh(at_once: bool = False) -> None:
    """Draw the bar again if it is due."""
    if not is_shown() or time.monotonic() < _tasks[0]._redrawn + (0.0 if at_once else INTERVAL):
        return
    bar, fraction, counted = _tasks[0]._bar, 0.0, None
    for task in reversed(_tasks):  # fraction of the outermost task with a known number of steps
        if task._total:
            fraction, counted = min((task.done + fraction) / task._total, 1.0), task
    _tasks[0]._redrawn = time.monotonic()
    bar.bar_format, bar.total = (WITHOUT_TOTAL, None) if counted is None else (WITH_TOTAL, 1.0)
    if counted is not None:
        bar.n = counted._shown_fraction = max(counted._shown_fraction, fraction)
    bar.set_postfix_str(": ".join(task._text for task in _tasks if task._text), refresh=False)
    bar.refresh()


def show_progress(label: str) -> Callable[[Function], Function]:
    """Run a function as a task, shown if its argument `progress` is True, or if it is None on a terminal."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run_task(*args: Any, progress: Any = None, **options: Any) -> Any:
            if progress is not None:
                check.flag("progress", progress)
            with Progress(label, shown=progress):
                return function(*args, **options)

        return cast(Function, run_task)

    return decorate


def is_shown() -> bool:
    """Return whether a bar shows the current task, so that descriptions of it are worth their time."""
    return bool(_tasks) and not _tasks[0]._bar.disable and _tasks[0]._thread == threading.get_ident()


def describe(text: str) -> None:
    """Replace the description of the current task."""
    if is_shown():
        _tasks[-1].describe(text)


def clear() -> None:
    """Remove the bar from the terminal, so that a line can be printed; it is drawn again at the next report."""
    if _tasks:
        _tasks[0]._bar.clear()


def announce_compilation() -> None:
    """Print once per outermost task, if progress is shown, that kernels are compiled, which takes long.

    Later tasks of a process may compile kernels for another loss, or for tokens in single precision.
    """
    if _tasks and not _tasks[0]._announced and not _tasks[0]._bar.disable:
        _tasks[0]._announced = True
        clear()
        print(COMPILING, file=sys.stderr, flush=True)
