"""Store of a sweep: one file for each finished cell, and claims that divide the cells among processes.

The file of a cell is written completely or not at all. It has a checksum, and the versions of the packages and the
commit with which the cell was computed.

A claim is a file next to the cell; it names the process that computes the cell, so that other processes compute other
cells. A claim is made by creating its file, which fails if the file exists. Its process touches the file every `BEAT`
seconds, and removes it when the cell is stored. A claim is void if its process has ended, which processes on the same
machine can check, or, for processes on other machines, if the time of its last touch differs by more than `STALE`
seconds from the clock of the file system, in either direction: a clock may have been wrong. Only one process replaces a
void claim, protected by a lock file. Results do not depend on claims: if two processes compute the same cell after all,
both write the same numbers, each to a temporary file that then replaces the file of the cell.
"""

import json
import math
import os
import re
import socket
import subprocess
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from gamp_attention._tools import check
from gamp_attention._tools.files import write_atomically
from gamp_attention._version import __version__
from gamp_attention.extensions.sweeps.jobs import short_hash

BEAT = 20.0  # seconds between two touches of a claim
# seconds between now and the last touch of a claim, from which on the claim of another machine is void; NFS may delay
# times by 60 s
STALE = 180.0


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
            if claim is not None and claim.text == text:  # differs if another process took over a suspended claim
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
            old_lock = _read(lock)
            if old_lock is not None and self._is_void(old_lock):  # the process that made this lock was killed
                lock.unlink(missing_ok=True)
            return False
        try:
            current = _read(path)
            if current is None or current.text != claim.text:
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
        return abs(self._now() - claim.touched) > STALE

    def _now(self) -> float:
        """Return the time by the clock of the file system."""
        trial = self.folder / f"{uuid.uuid4().hex}.part"
        trial.write_bytes(b".")
        try:
            return trial.stat().st_mtime
        finally:
            trial.unlink(missing_ok=True)


def process() -> dict[str, Any]:
    """Return the identity of this process: its machine, number and start time."""
    return {"host": _host(), "pid": os.getpid(), "born": birth(os.getpid())}


def birth(pid: int) -> str | None:
    """Return the start time of a process on this machine, in clock ticks since boot.

    Return None if the process has ended, and "" if it exists but the system does not report its start time.
    """
    try:
        os.kill(pid, 0)
    except PermissionError:  # the process belongs to another user
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
    """Touch a file every `BEAT` seconds until the event is set."""
    while not ended.wait(BEAT):
        with suppress(OSError):
            os.utime(path)


CELL_FILE = re.compile(r"[0-9a-f]{24}\.(json|claim|lock)|.*\.part")  # names in the folder of cells
NUMBER = "float"  # numbers that JSON cannot represent are stored as {"float": "nan"}


class Store:
    """Folder with the manifest `sweep.json` and the cells `cells/KEY.json`; `begin` creates it.

    Several processes may use one folder at a time; `claims` divides the cells among them. A `temporary` folder is
    deleted after the call that uses it, so that messages do not propose to continue from it.
    """

    def __init__(self, folder: str | Path, temporary: bool = False) -> None:
        if not isinstance(folder, (str, os.PathLike)):
            raise check.fail("folder", folder, "a path", TypeError)
        if folder == "":  # Path("") is the current folder
            raise check.fail("folder", folder, "the path of a folder")
        self.folder, self.temporary = Path(folder).resolve(), temporary
        self._cells = self.folder / "cells"
        self.claims = Claims(self._cells)

    def begin(self, manifest: dict[str, Any]) -> None:
        """Create the folder and write the manifest: plain data with at least "model", the hash of the model.

        Raise ValueError if the folder belongs to another model or has other files, or cannot be written.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise check.fail("folder", str(self.folder), "a folder, or a path that does not exist yet")
        existing = self.manifest()
        if existing is not None and existing.get("model") != manifest["model"]:
            needs = "another folder, because this folder has the cells of another model"
            raise check.fail("folder", str(self.folder), needs)
        if existing is None and self._has_other_files():
            needs = "the folder of a sweep, or a folder whose subfolder 'cells' has no other files; choose another name"
            raise check.fail("folder", str(self.folder), needs)
        try:
            self._cells.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise check.fail("folder", str(self.folder), f"a folder that can be created ({error.strerror})") from error
        if not os.access(self._cells, os.W_OK):
            raise check.fail("folder", str(self.folder), "a folder that can be written to")
        if existing != manifest:
            text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
            path = self.folder / "sweep.json"
            write_atomically(path, lambda file: file.write(text.encode() + b"\n"), name="folder", overwrite=True)

    def _has_other_files(self) -> bool:
        """Return whether the folder of cells, in a folder without a manifest, holds files that are no cells."""
        names = [entry.name for entry in self._cells.iterdir()] if self._cells.is_dir() else []
        return not all(CELL_FILE.fullmatch(name) for name in names)

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest, or None if there is none."""
        path = self.folder / "sweep.json"
        try:
            manifest = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise ValueError(f"folder: {path} is not the manifest of a sweep: {error}") from error
        if not isinstance(manifest, dict) or "model" not in manifest:
            raise ValueError(f"folder: {path} is not the manifest of a sweep")
        return manifest

    def path(self, key: str) -> Path:
        """Return the path of the file of a cell."""
        if Path(key).name != key:  # a manifest that was altered could name files outside of the folder
            raise check.fail("folder", str(self.folder), "a manifest whose keys are not paths")
        return self._cells / f"{key}.json"

    def present(self) -> set[str]:
        """Return the keys of all stored cells, without reading their files."""
        with os.scandir(self._cells) as entries:
            return {entry.name.removesuffix(".json") for entry in entries if entry.name.endswith(".json")}

    def save(self, key: str, parameters: dict[str, Any], row: dict[str, Any], seconds: float) -> None:
        """Write the file of a cell."""
        origin = {"versions": versions(), "commit": commit(), "seconds": seconds}
        content = _encode({"key": key, **parameters, **row, **origin})
        text = json.dumps({"checksum": short_hash(content), "content": content}, sort_keys=True, allow_nan=False)
        write_atomically(self.path(key), lambda file: file.write(text.encode() + b"\n"), name="folder", overwrite=True)

    def load(self, key: str) -> dict[str, Any] | None:
        """Return the row of a cell with its key, parameters, versions, commit and seconds; None if it is not stored.

        A damaged file causes a warning and is removed, so that its cell is computed again.
        """
        path = self.path(key)
        try:
            stored = json.loads(path.read_bytes())
            content = stored["content"]
            whole = stored["checksum"] == short_hash(content) and content["key"] == key
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):  # the file is not JSON, or has other entries
            whole = False
        if not whole:
            warnings.warn(f"{path} is damaged; its cell is computed again", RuntimeWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None
        return _decode(content)


@lru_cache
def versions() -> dict[str, str]:
    """Return the versions of the installed packages that determine the numbers."""
    numbers = {"gamp_attention": __version__}
    for name in ("numpy", "scipy", "numba", "torch"):
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


@lru_cache
def commit() -> str | None:
    """Return the git commit of the checkout that contains the package; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        finished = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()


def _encode(value: Any) -> Any:
    """Return plain data in which JSON can represent every number."""
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: str(value)}
    return value


def _decode(value: Any) -> Any:
    """Return the data that `_encode` was given."""
    if isinstance(value, dict):
        if set(value) == {NUMBER}:
            return float(value[NUMBER])
        return {key: _decode(item) for key, item in value.items()}
    return [_decode(item) for item in value] if isinstance(value, list) else value
