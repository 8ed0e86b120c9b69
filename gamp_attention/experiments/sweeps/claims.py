"""Claims of cells: a file next to a cell names the process that computes it, so that other processes compute others.

A claim is made by creating its file, which fails if the file exists. Its process touches the file now and then, and
removes it when the cell is stored. A claim is void if its process has ended, which processes on the same machine see at
once, or, for processes on other machines, if the file has not been touched for `STALE` seconds by the clock of the file
system. A void claim is replaced by one process, which holds a lock meanwhile. Results do not depend on claims: if two
processes compute a cell after all, both write the same numbers, each to a file of its own that then takes the place.
"""

import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

BEAT = 20.0  # seconds between two touches of a claim
STALE = 180.0  # seconds without a touch after which a claim of another machine is void; NFS may delay times by 60 s


class Claim(NamedTuple):
    """The contents of a claim and the time when it was last touched, in seconds of the file system's clock."""

    text: bytes
    touched: float


class Claims:
    """Claims of the cells in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hold(self, key: str) -> Iterator[bool]:
        """Claim a cell during the block; yields False, and claims nothing, if another process holds the claim."""
        path, text = self.folder / f"{key}.claim", json.dumps(process() | {"token": uuid.uuid4().hex}).encode()
        if not (_create(path, text) or self._take_over(path, text)):
            yield False
            return
        ended = threading.Event()
        beat = threading.Thread(target=_touch, args=(path, ended), daemon=True, name="claim")
        beat.start()
        try:
            yield True
        finally:
            ended.set()
            beat.join()
            claim = _read(path)
            if claim is not None and claim.text == text:  # another process takes the claim of one that was suspended
                path.unlink(missing_ok=True)

    def _take_over(self, path: Path, text: bytes) -> bool:
        """Replace a claim that is void; return whether this process did."""
        claim = _read(path)
        if claim is None:  # it was removed meanwhile
            return _create(path, text)
        if not self._is_void(claim):
            return False
        lock = path.with_suffix(".lock")
        if not _create(lock, text):
            left = _read(lock)
            if left is not None and self._is_void(left):  # of a process that was killed with it
                lock.unlink(missing_ok=True)
            return False
        try:
            known = _read(path)
            if known is None or known.text != claim.text:
                return False
            aside = path.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
            aside.write_bytes(text)
            os.replace(aside, path)
            for part in path.parent.glob(f"{path.stem}.json.*.part"):  # left by the process that was killed
                part.unlink(missing_ok=True)
            return True
        finally:
            lock.unlink(missing_ok=True)

    def _is_void(self, claim: Claim) -> bool:
        """Return whether the process of a claim has ended, as far as this process can know."""
        try:
            owner: Any = json.loads(claim.text)
            if owner["host"] == process()["host"] and os.name == "posix":
                return birth(owner["pid"]) != owner["born"]
        except (ValueError, KeyError, TypeError):  # not yet written, or damaged
            pass
        return self._now() - claim.touched > STALE

    def _now(self) -> float:
        """Return the time by the clock of the file system."""
        trial = self.folder / f"{uuid.uuid4().hex}.part"
        trial.write_bytes(b".")
        try:
            return trial.stat().st_mtime
        finally:
            trial.unlink(missing_ok=True)


def process() -> dict[str, Any]:
    """Return what identifies this process: its machine, number and time of birth."""
    return {"host": _host(), "pid": os.getpid(), "born": birth(os.getpid())}


def birth(pid: int) -> str | None:
    """Return when a process on this machine began, in any unit; None if it has ended, "" if only its end is known."""
    try:
        os.kill(pid, 0)
    except PermissionError:  # of another user
        pass
    except OSError:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return None if fields[0] in "ZX" else fields[19]


@lru_cache
def _host() -> str:
    """Return a name of this machine since it was started, and of its process numbers, which a container may have."""
    words = [socket.gethostname()]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        words.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(words)


def _create(path: Path, text: bytes) -> bool:
    """Write a file unless it exists; return whether it was written."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
    except OSError as error:  # a full disk
        path.unlink(missing_ok=True)
        raise OSError(f"folder: {path} cannot be written: {error.strerror}") from error
    return True


def _read(path: Path) -> Claim | None:
    """Return a claim; None if there is none. The file is opened, as only then network file systems give its time."""
    try:
        with open(path, "rb") as file:
            return Claim(file.read(), os.fstat(file.fileno()).st_mtime)
    except FileNotFoundError:
        return None


def _touch(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with suppress(OSError):
            os.utime(path)
