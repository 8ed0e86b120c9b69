"""Output files: written completely or not at all, and only in place of files that the package has written.

Every file that the package writes contains a mark (`mark`, or `SIGNATURE` in pictures), which states the kind of the
file. The mark of an archive also lists its arrays: if users have added others, the archive counts as theirs.
"""

import gzip
import json
import os
import re
import secrets
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gamp_attention._version import __version__

MARK = "gamp_attention"  # key of the mark in archives, JSON and netCDF
SIGNATURE = f"Written by gamp_attention {__version__}"  # mark of pictures
CHECKPOINT, DATASET, PICTURE, REPORT = "a checkpoint", "a dataset", "a picture", "a report in JSON"  # kinds of files
UNREADABLE = (KeyError, OSError, ValueError, zipfile.BadZipFile)
UNFINISHED = "unfinished"  # part of the names of outputs that must not take the place of outputs of finished runs
MAX_BYTES = 1 << 26  # maximum number of bytes of a file that are searched for the mark
MARKED = re.compile(
    rb'(\{"gamp_attention": |PK.*?|\x89HDF.*?)\{"version": "[^"]*", "kind": "([^"]+)", "finished": (true|false)',
    re.DOTALL,
)  # beginning of a report, an archive or a dataset
PICTURES = re.compile(rb"\x89PNG|%PDF|%!PS|<\?xml|<svg")


class ForeignFile(ValueError):
    """Error for an output path that contains a file which must not be replaced."""


def mark(kind: str, finished: bool = True) -> dict[str, Any]:
    """Return the mark of an output file of a given kind (words for messages), as a dict for JSON.

    `finished` is False for outputs of runs that were interrupted or did not converge.
    """
    return {"version": __version__, "kind": kind, "finished": finished}


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


def write_archive(
    name: str, path: str | Path, kind: str, arrays: dict[str, Any], overwrite: bool = False, finished: bool = True
) -> None:
    """Write arrays as .npz with a mark that lists them, so that archives to which users added arrays are recognized."""
    about = np.array(json.dumps(mark(kind, finished) | {"arrays": sorted(arrays)}))
    contents = {MARK: about, **arrays}  # the mark comes first, so that it survives in a file that was cut off
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
    if overwrite or status.st_size == 0 or (kind and kind_of(path) == kind):
        return
    raise ForeignFile(
        f"{name}: needs {needs}, got {str(path)!r}, which holds {contents(path)}; choose another name"
        + (f", or {remedy}" if remedy else "")
    )


def path_of_unfinished(path: str, kind: str, keep: Iterable[str | Path] = (), overwrite: bool = False) -> str:
    """Return the path to which a run that did not finish writes an output: `path`, or a similar name.

    The path is free, or holds an output of this kind from a run that did not finish either; it is none of the files
    `keep`. With `overwrite`, `path` may hold a file that the package did not write. Kind "" finds a free path.
    """
    kept, given = [*keep], Path(path)
    for number in count():
        suffix = f".{UNFINISHED}" + f"-{number}" * (number > 1)
        target = str(given.with_name(f"{given.stem}{suffix}{given.suffix}")) if number else path
        if not os.path.exists(target) or (os.path.isfile(target) and not os.path.getsize(target)):
            return target
        kind_there, finished = read_mark(target)
        may_replace = overwrite and not number if kind_there is None else kind_there == kind and not finished
        if may_replace and not any(same_path(target, other) for other in kept):
            return target
    raise AssertionError


def kind_of(path: str | Path) -> str | None:
    """Return the kind of an output file in words; None if the package did not write it."""
    return read_mark(path)[0]


def read_mark(path: str | Path) -> tuple[str | None, bool]:
    """Return the kind of an output file, None if the package did not write it, and whether its run finished.

    Pictures of runs that did not finish are known by their name.
    """
    with suppress(*UNREADABLE):
        with gzip.open(path) if Path(path).suffix == ".svgz" else open(path, "rb") as file:
            start = file.read(MAX_BYTES)
        found = MARKED.match(start.replace(b"\0", b""))  # numpy stores four bytes for each letter
        if found is not None:
            if start[:2] == b"PK":
                with np.load(path, allow_pickle=False) as archive:
                    if {*json.loads(str(archive[MARK]))["arrays"], MARK} != {*archive.files}:
                        return None, False
            return found[2].decode(), found[3] == b"true"
        if PICTURES.match(start) and b"Written by gamp_attention " in start:
            return PICTURE, f".{UNFINISHED}" not in Path(path).name
    return None, False


def contents(path: str | Path) -> str:
    """Describe the contents of a file in a few words."""
    kind = kind_of(path)
    if kind is not None:
        return kind
    with suppress(*UNREADABLE), open(path, "rb") as file:
        start = file.read(512)
        if start[:2] == b"PK":
            names = [name.removesuffix(".npy") for name in zipfile.ZipFile(path).namelist()]
            return f"an archive with {', '.join(names[:6])}{', …' * (len(names) > 6)}"
        if is_text(start):
            return "text"
    return "something else"


def is_text(start: bytes) -> bool:
    """Return whether the first bytes of a file are text in UTF-8."""
    text = start.decode(errors="replace").rstrip("\ufffd")  # the last character may be cut
    return all((letter.isprintable() or letter in "\r\n\t\ufeff") and letter != "\ufffd" for letter in text)


def require_checkpoint(name: str, path: str | Path) -> None:
    """Raise ForeignFile unless a path is free or begins as a checkpoint does, which may be damaged."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            start = file.read(1024)
        ours = re.match(rb"PK\x03\x04.{26}" + MARK.encode() + rb"\.npy", start, re.DOTALL)
        if ours and b"checkpoint" in start.replace(b"\0", b""):
            return
    require_replaceable(name, path, CHECKPOINT, remedy="")


def same_path(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths name the same file, also by links or by names that differ in case only."""
    with suppress(OSError):
        if os.path.samefile(one, other):
            return True
    folded, other_folded = (unicodedata.normalize("NFC", os.path.realpath(p)).casefold() for p in (one, other))
    return folded == other_folded


def require_distinct(outputs: Iterable[tuple[str, str | Path]], inputs: Iterable[tuple[str, str | Path]]) -> None:
    """Raise ValueError if two outputs are the same file, or an output is an input; each is an argument and a path."""
    output_files, input_files = list(outputs), list(inputs)
    for number, (name, path) in enumerate(output_files):
        for argument, source in input_files:
            if same_path(path, source):
                needs = f"{name}: needs a file that is not read, as inputs are never replaced"
                raise ValueError(f"{needs}, got {str(path)!r}, which is {argument}; choose another name")
        for other, second in output_files[:number]:
            if same_path(path, second):
                raise ValueError(
                    f"{other}, {name}: need two files, got {str(path)!r} for both; choose another name for {name}"
                )


def picture_metadata(kind: str) -> dict[str, Any]:
    """Return arguments of `savefig` that put the mark into a picture; none for formats without metadata."""
    if kind not in ("png", "pdf", "ps", "eps", "svg", "svgz"):
        return {}
    return {"metadata": {"Software" if kind == "png" else "Creator": SIGNATURE}}
