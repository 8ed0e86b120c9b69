"""Progress on a terminal: one bar for the outermost task of a process, to which all inner tasks report.

A task is a `with Progress(...)` block. The outermost task of the main thread draws a bar on standard error. A task
inside of it draws none: its progress moves the bar by a fraction of one step of the outer task, and its description
appears behind the bar. Nothing is drawn if standard error is not a terminal, nor in worker processes; tasks with `logs`
then print a line every 20 seconds.
"""

import math
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from tqdm import tqdm

from gamp_attention._tools import check

DELAY = 1.0  # seconds before a bar appears: shorter tasks show none
INTERVAL = 0.1  # seconds between two drawings of a bar
LOG_INTERVAL = 20.0  # seconds between two lines in a log
SCREEN = {"ncols": 120, "nrows": 24}  # columns and rows, if the size of the terminal is not known
COMPILING = "compiling kernels for this loss and type of numbers: 10 to 40 s, only the first time"
WITH_TOTAL = "{desc}{percentage:3.0f}%|{bar:20}| {elapsed}<{remaining}{postfix}"
WITHOUT_TOTAL = "{desc}{elapsed}{postfix}"

Function = TypeVar("Function", bound=Callable[..., Any])
_outermost: "Progress | None" = None  # the task of this process that draws
_announced: "Progress | None" = None  # the last task in which a compilation was announced


class Progress:
    """A task whose progress is shown, as a context manager.

    Parameters
    ----------
    label : short description of the task, in front of the bar.
    total : number of steps; None if it is not known: then only time and description are shown.
    shown : whether a bar is drawn; if None, only on a terminal. It has no effect inside another task.
    logs : whether lines are printed every 20 seconds, if `shown` is None and standard error is not a terminal.
    """

    def __init__(
        self, label: str = "", total: float | None = None, shown: bool | None = None, logs: bool = False
    ) -> None:
        self._label, self._total, self._shown, self._logs = label, total, shown, logs
        self._bar: Any = None
        self._began = self._logged = 0.0
        self.unit_time = math.inf  # shortest time so far of a unit of work, in seconds; others include compilation
        self._outer: Progress | None = None
        self._inner: Progress | None = None
        self.done, self._text = 0.0, ""
        self._thread, self._redrawn, self._shown_fraction = threading.get_ident(), 0.0, 0.0

    def __enter__(self) -> "Progress":
        global _outermost
        if _outermost is None:
            if self._draws():
                _outermost, self._bar = self, self._make_bar()
        elif _outermost._thread == self._thread:
            self._outer = _outermost._innermost
            self._outer._inner = self
        return self

    def __exit__(self, *_: Any) -> None:
        global _outermost
        if self._outer is not None:
            self._outer._inner = None
        if _outermost is self:
            self._bar.close()
            _outermost = None

    def update(self, steps: float = 1.0) -> None:
        """Count steps that are done."""
        self.done += steps
        self._refresh()

    def describe(self, text: str) -> None:
        """Replace the description of the current work; the first description of a task is drawn at once."""
        first, self._text = not self._text, text
        self._refresh(at_once=first)

    def describe_work(self, text: str, work: float) -> None:
        """Describe work that is about to begin, with its estimated time; in a log at once if it takes long.

        Earlier work must have been measured by `measure_work` in the same units.
        """
        root = self._root
        seconds = work * root.unit_time
        if LOG_INTERVAL <= seconds < math.inf:
            root._logged = -LOG_INTERVAL
            text += f", about {seconds:.0f} s" if seconds < 120 else f", about {seconds / 60:.0f} min"
        self.describe(text)

    def _draws(self) -> bool:
        """Return whether this task may be the outermost one; if it shows nothing, tasks inside of it are silent."""
        main = threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None
        return main or bool(self._shown)

    def _make_bar(self) -> Any:
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        shown = on_terminal if self._shown is None else self._shown
        self._logs = self._logs and self._shown is None and not on_terminal and sys.stderr is not None
        self._began = self._logged = time.monotonic()
        self._redrawn = self._began + DELAY - INTERVAL
        form, measured = WITHOUT_TOTAL if self._total is None else WITH_TOTAL, _columns() > 0
        return tqdm(
            desc=self._label, total=self._total, disable=not shown, leave=False, delay=DELAY, file=sys.stderr,
            bar_format=form, dynamic_ncols=measured, **({} if measured else SCREEN),
        )  # fmt: skip

    @property
    def _innermost(self) -> "Progress":
        return self if self._inner is None else self._inner._innermost

    @property
    def _counted(self) -> "Progress":
        """The outermost task with a known number of steps, or this task if there is none."""
        task: Progress | None = self
        while task is not None and task._total is None:
            task = task._inner
        return self if task is None else task

    @property
    def _steps_done(self) -> float:
        """Number of steps done, including the fraction of the current step that an inner task has done."""
        inside = self._inner
        if inside is None or not inside._total:
            return self.done
        return self.done + min(inside._steps_done / inside._total, 1.0)

    @property
    def _words(self) -> str:
        inside = "" if self._inner is None else self._inner._words
        return ": ".join(part for part in (self._text, inside) if part)

    @property
    def _root(self) -> "Progress":
        return self if self._outer is None else self._outer._root

    def _refresh(self, at_once: bool = False) -> None:
        root = self._root
        bar, now = root._bar, time.monotonic()
        if root._logs and now >= root._logged + LOG_INTERVAL:
            root._logged = now
            print(f"{root._label}{now - root._began:.0f} s: {root._words}", file=sys.stderr, flush=True)
        if bar is None or bar.disable or now < root._redrawn + (0.0 if at_once else INTERVAL):
            return
        root._redrawn, counted = now, root._counted
        has_total = counted._total is not None
        bar.bar_format, bar.total = WITH_TOTAL if has_total else WITHOUT_TOTAL, counted._total
        bar.n = counted._shown_fraction = max(counted._shown_fraction, counted._steps_done)
        bar.set_postfix_str(root._words, refresh=False)
        bar.refresh()


def show_progress(label: str, logs: bool = False) -> Callable[[Function], Function]:
    """Run a function as a task, shown if its argument `progress` is True, or if it is None on a terminal.

    With `logs`, lines are printed elsewhere if `progress` is None.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run_task(*args: Any, progress: Any = None, **options: Any) -> Any:
            if progress is not None:
                check.flag("progress", progress)
            with Progress(label, shown=progress, logs=logs):
                return function(*args, **options)

        return cast(Function, run_task)

    return decorate


def is_shown() -> bool:
    """Return whether a bar or lines show the current task, so that descriptions of it are worth their time."""
    root = _outermost
    shown = root is not None and (not root._bar.disable or root._logs)
    return shown and root._thread == threading.get_ident()  # type: ignore[union-attr]


def describe(text: str) -> None:
    """Replace the description of the current task."""
    if is_shown():
        assert _outermost is not None
        _outermost._innermost.describe(text)


@contextmanager
def measure_work(work: float) -> Iterator[None]:
    """Measure the time of work, see `Progress.describe_work`."""
    began = time.monotonic()
    yield
    if is_shown() and work:
        assert _outermost is not None
        _outermost.unit_time = min(_outermost.unit_time, (time.monotonic() - began) / work)


def refresh() -> None:
    """Show the description of the current task again if it is due."""
    if is_shown():
        assert _outermost is not None
        _outermost._innermost._refresh()


def clear() -> None:
    """Remove the bar from the terminal, so that a line can be printed; it is drawn again at the next report."""
    if _outermost is not None:
        _outermost._bar.clear()


def announce_compilation() -> None:
    """Print once per outermost task, if progress is shown, that kernels are compiled, which takes long.

    Later tasks of a process may compile kernels for another loss, or for tokens in single precision.
    """
    global _announced
    if _outermost is not None and _outermost is not _announced and not _outermost._bar.disable:
        _announced = _outermost
        clear()
        print(COMPILING, file=sys.stderr, flush=True)


def _columns() -> int:
    """Return the width of the terminal, 0 if it is not known, as within `script` or a container."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0
