"""Commands, one after the other or some at a time, that Ctrl-C stops together."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

PAUSE = 0.05  # seconds between two looks at what runs


class Task(NamedTuple):
    """A command with its environment. One that unblocks SIGINT itself sees no Ctrl-C until then."""

    name: str
    command: Sequence[str]
    environment: dict[str, str]
    unblocks: bool = False


class Ended(NamedTuple):
    """A task with its exit status, the time when it began, and the seconds that it took."""

    task: Task
    status: int
    began: float
    seconds: float


class _Running(NamedTuple):
    task: Task
    process: subprocess.Popen[Any]
    began: float


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after which all tasks have ended; and whether one of them has said so on the terminal."""

    def __init__(self, said: bool) -> None:
        super().__init__()
        self.said = said


def run_tasks(tasks: Sequence[Task], jobs: int, logs: Path) -> Iterator[Ended]:
    """Tasks as they end. Where several run at a time, the output of each goes to NAME.log in a folder.

    Raises
    ------
    Interrupted : after Ctrl-C.
    """
    waiting, running = list(tasks), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop(0)
                if jobs == 1 and len(tasks) > 1:
                    print(f"\n== {task.name}, {len(tasks) - len(waiting)} of {len(tasks)}", flush=True)
                running.append(_start(task, logs / f"{task.name}.log" if jobs > 1 else None))
            time.sleep(PAUSE)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                yield Ended(each.task, each.process.returncode, each.began, time.time() - each.began)
    except KeyboardInterrupt as interrupt:
        _stop(running)
        raise Interrupted(jobs == 1 and any(each.process.returncode == 130 for each in running)) from interrupt
    except BaseException:
        _stop(running)
        raise


def _start(task: Task, log: Path | None) -> _Running:
    """Start a task in a process group of its own, so that signals reach it through us alone."""
    began = time.time()
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("wb"))
        if task.unblocks:  # what is blocked here is blocked there
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            stack.callback(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGINT})
        process = subprocess.Popen(
            task.command, env=task.environment, stdout=output, stderr=output and subprocess.STDOUT, process_group=0
        )
    return _Running(task, process, began)


def _stop(running: Sequence[_Running]) -> None:
    """Pass Ctrl-C on and wait; a second one kills."""
    try:
        _signal(running, signal.SIGINT)
        for each in running:
            each.process.wait()
    except KeyboardInterrupt:
        _signal(running, signal.SIGKILL)


def _signal(running: Sequence[_Running], which: signal.Signals) -> None:
    for each in running:
        if each.process.poll() is None:
            os.killpg(each.process.pid, which)
