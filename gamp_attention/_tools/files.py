"""Output files: written completely or not at all, and only in place of files that the package has written.

Every file that the package writes contains a mark (`mark`, or `SIGNATURE` in pictures), which states the kind of the
file. The mark of an archive or a report has a digest of the contents: if users have changed these, the file counts as
theirs.
"""

import gzip
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import hash_bytes
from gamp_attention._version import __version__

MARK = "gamp_attention"  # key of the mark in archives and JSON
SIGNATURE = f"Written by gamp_attention {__version__}"  # mark of pictures
CHECKPOINT, PICTURE, REPORT = "a checkpoint", "a picture", "a report in JSON"  # kinds of files
MAX_BYTES = 1 << 26  # maximum number of bytes of a file that are searched for the mark
PICTURES = re.compile(rb"\x89PNG|%PDF|%!PS|<\?xml|<svg")


class ForeignFile(ValueError):
    """Error for an output path that contains a file which must not be replaced."""


def as_path(name: str, value: Any) -> Path:
    """Return a path; raise TypeError for any other value."""
    if not isinstance(value, str | os.PathLike):
        raise check.fail(name, value, "a path", TypeError)
    return Path(value)


def mark(kind: str, contents: dict[str, Any]) -> dict[str, Any]:
    """Return the mark of a file of a given kind (words for messages): a report of plain data, or an archive of arrays.

    The mark is a dict for JSON.
    """
    if kind != REPORT:
        arrays = [(name, np.asarray(contents[name])) for name in sorted(contents)]
        contents = {name: hash_bytes(f"{a.dtype} {a.shape}".encode(), a.tobytes()) for name, a in arrays}
    return {"version": __version__, "kind": kind, "digest": hash_bytes(json.dumps(contents).encode())}


def write_atomically(
    path: str | Path, write: Callable[[BinaryIO], Any], *, name: str = "path", kind: str = "", overwrite: bool = False
) -> None:
    """Write a file under another name in the same folder and rename it, so that it is complete or absent.

    `write` writes into an open file, `name` is the argument or option that names the file, and `kind` describes its
    contents in words. Symbolic links are followed; the permissions of a file that is replaced are kept. ForeignFile is
    raised if `path` contains anything but an output of this kind, before or after the writing, unless `overwrite` is
    True, and OSError if the file cannot be written.
    """
    require_replaceable(name, path, kind, overwrite)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f"{target.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        try:
            with open(temporary, "xb") as file:
                write(file)
            with suppress(FileNotFoundError):
                os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
            require_replaceable(name, path, kind, overwrite)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.filename not in (None, str(temporary)):
            raise
        reason = error.strerror or str(error)
        named = OSError(f"{name}: {path} cannot be written: {reason}; free space or choose another folder")
        named.errno = error.errno
        raise named from error


def write_archive(name: str, path: str | Path, kind: str, arrays: dict[str, Any], overwrite: bool = False) -> None:
    """Write arrays as .npz with a mark, which comes first, so that it survives in a file that was cut off."""
    contents = {MARK: np.array(json.dumps(mark(kind, arrays))), **arrays}
    write_atomically(path, lambda file: np.savez(file, **contents), name=name, kind=kind, overwrite=overwrite)


REMEDY = "replace the file with `overwrite=True`"


def require_replaceable(name: str, path: str | Path, kind: str, overwrite: bool = False, remedy: str = REMEDY) -> None:
    """Raise ForeignFile unless a path is free, contains an output of the same kind, or may be overwritten.

    Only regular files are ever replaced.
    """
    needs = f"the name of a new file{f', or of {kind} that this package wrote' if kind else ''}"
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:  # for instance links that name each other
        raise ForeignFile(f"{name}: needs {needs}, got {str(path)!r}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        kind_of_path = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ForeignFile(f"{name}: needs {needs}, got {str(path)!r}, which is {kind_of_path}; choose another name")
    writable = status.st_mode & 0o222 and os.access(path, os.W_OK)  # administrators have access to all files
    if overwrite or (writable and (status.st_size == 0 or (kind and kind_of(path) == kind))):
        return
    holds = f"holds {kind_of(path)}" if kind_of(path) else "this package did not write, or which was changed"
    holds = holds if writable else "is read-only"
    choices = f"choose another name{f', or {remedy}' if remedy else ''}"
    raise ForeignFile(f"{name}: needs {needs}, got {str(path)!r}, which {holds}; {choices}")


def path_of_unfinished(path: str) -> str:
    """Return the path to which a run that did not finish writes an output: `path` if it is free, or a similar name."""
    given = Path(path)
    names = (f"{given.stem}.unfinished{f'-{number}' * (number > 1)}{given.suffix}" for number in count(1))
    paths = chain([path], (str(given.with_name(name)) for name in names))
    return next(path for path in paths if not os.path.exists(path) or os.path.getsize(path) == 0)


def kind_of(path: str | Path) -> str | None:
    """Return the kind of an output file in words; None if the package did not write it."""
    with suppress(Exception):  # numpy and zipfile raise many different types for damaged archives
        with gzip.open(path) if Path(path).suffix == ".svgz" else open(path, "rb") as file:
            start = file.read(MAX_BYTES)
            if PICTURES.match(start):
                return PICTURE if b"Written by gamp_attention " in start else None
            if start[:2] == b"PK":
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    about, contents = json.loads(str(archive[MARK])), {**archive}
            else:
                contents = json.loads(start)
                about = contents[MARK]
        del contents[MARK]
        return about["kind"] if about["digest"] == mark(about["kind"], contents)["digest"] else None
    return None


def require_folder(name: str, path: str | Path) -> None:
    """Raise ValueError unless files can be written in the folder of a path, or in the folder of the file of a link."""
    try:
        with tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent):
            pass
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{name}: {str(path)!r} cannot be written: {why}") from error


def require_checkpoint(name: str, path: str | Path) -> None:
    """Raise ForeignFile unless a path is free or begins as a checkpoint does, which may be damaged."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            start = file.read(1024)
        ours = re.match(rb"PK\x03\x04.{26}" + MARK.encode() + rb"\.npy", start, re.DOTALL)
        if ours and b"checkpoint" in start.replace(b"\0", b""):
            return
    require_replaceable(name, path, CHECKPOINT, remedy="")


def require_distinct(outputs: Iterable[tuple[str, str | Path]], inputs: Iterable[tuple[str, str | Path]]) -> None:
    """Raise ValueError if an output is an input or another output; each is an argument and a path.

    Names that differ in case only count as one file, which they are on some systems.
    """
    used = {os.path.realpath(path).casefold(): argument for argument, path in inputs}
    for name, path in outputs:
        other = used.setdefault(os.path.realpath(path).casefold(), name)
        if other != name:
            needs = f"{name}: needs a file of its own, as inputs are never replaced"
            raise ValueError(f"{needs}, got {str(path)!r}, which is {other}; choose another name")
