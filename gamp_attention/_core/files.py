"""Writing results: no half-written files."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_aside(path: str | Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file under another name and rename it, so that it is whole or absent."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        mask = os.umask(0)  # which can only be read by setting it
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(target: str, data: Any) -> None:
    """Write JSON to a file, or to standard output for '-'."""
    text = json.dumps(data, allow_nan=False)
    if target == "-":
        sys.stdout.write(text + "\n")
    else:
        write_aside(target, lambda file: file.write(text.encode() + b"\n"))
