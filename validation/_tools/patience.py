"""Calls with a budget of time: a process evaluates lines, and is ended where one takes too long.

Time is that of the processor, so that what else the machine does is not counted; what sleeps is ended after WAITING
times as long.
"""

import contextlib
import os
import signal
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Any

WARMING = 600  # seconds for lines that compile what others need
AGAIN, WAITING = 20, 30


class Patient:
    """Evaluates lines of `calls` in a process of its own, one after the other."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def __call__(self, line: str, limit: float, warm: str | None = None) -> dict[str, Any]:
        """The outcome of a line, as `judges.judged` tells it, with the seconds taken; "late" beyond the limit.

        What `warm` compiles is not counted, nor what the line compiles itself: what is late has a second try after it.
        """
        if warm is not None and self._ask("warm", warm, WARMING) is None:
            raise RuntimeError(f"{warm}: not answered within {WARMING} s")
        found = self._ask("judge", line, limit)
        if found is None and self._ask("warm", line, AGAIN * limit) is not None:
            found = self._ask("judge", line, limit)
        late = {"outcome": "late", "status": None, "told": None, "faults": ["late"], "warned": [], "seconds": limit}
        return {"line": line} | (found or late)

    def _ask(self, what: str, line: str, limit: float) -> dict[str, Any] | None:
        if self._process is None:
            context = get_context("spawn")
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=_serve, args=(other,), daemon=True)
            self._process.start()
            other.close()
            assert self._pipe.poll(WARMING), "the process does not start"
            self._pipe.recv()
        self._pipe.send((what, line))
        began, used = time.monotonic(), self._used()
        while self._used() - used < limit and time.monotonic() - began < WAITING * limit:
            if not self._pipe.poll(0.1):
                continue
            try:
                return self._pipe.recv()
            except EOFError:  # it died
                self.end()
                return {"outcome": "died", "status": None, "told": "the process died", "faults": ["raised"],
                        "warned": [], "seconds": 0.0}  # fmt: skip
        self.end()
        return None

    def _used(self) -> float:
        """Seconds that the process has computed."""
        try:
            numbers = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):  # it has ended, or there is no /proc
            return time.monotonic()

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None


def _serve(pipe: Any) -> None:
    from validation._tools.calls import problems
    from validation._tools.judges import Watched, judged

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warmed: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        names = problems(folder) | {"ga": Watched()}
        pipe.send("ready")
        while True:
            what, line = pipe.recv()
            if what == "warm":
                if line not in warmed:
                    with contextlib.suppress(Exception):
                        judged(line, names)
                    warmed.add(line)
                pipe.send({})
                continue
            began = time.process_time()
            found = judged(line, names)
            pipe.send(found | {"seconds": time.process_time() - began})
