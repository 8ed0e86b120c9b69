"""Reading the user's arrays and writing results: no pickles in, no half-written files out."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gamp_attention.data import Dataset

NEEDED = ("tokens", "outputs", "positions")


def load_dataset(path: str | Path, lam: float, rank: int, penalty: Any = None) -> Dataset:
    """A Dataset from an .npz file with the arrays tokens (n, L, d), outputs (n, L, d) and positions (L, d).

    Raises
    ------
    ValueError : naming the file and what is wrong with it.
    """
    arrays = _arrays(path, NEEDED)
    return Dataset(arrays["tokens"], arrays["outputs"], arrays["positions"], lam, rank=rank, penalty=penalty)


def load_weights(path: str | Path) -> np.ndarray:
    """The array Q of an .npz file, such as `gamp-attention fit` writes.

    Raises
    ------
    ValueError : naming the file and what is wrong with it.
    """
    return _arrays(path, ("Q",), "init: ")["Q"]


def _arrays(path: str | Path, names: tuple[str, ...], argument: str = "") -> dict[str, np.ndarray]:
    """Some arrays of an .npz file, read without pickles."""
    try:
        with open(path, "rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, not an .npz archive")
            missing = [name for name in names if name not in stored]
            if missing:
                raise ValueError(f"it lacks the arrays {', '.join(missing)} and has {', '.join(stored) or 'none'}")
            return {name: stored[name] for name in names}
    except FileNotFoundError as error:
        raise ValueError(f"{argument}{path}: there is no such file") from error
    except Exception as error:  # damaged archives fail in a dozen ways
        raise ValueError(f"{argument}{path}: cannot be read as .npz with {', '.join(names)}: {error}") from error


def write_aside(path: str | Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write a file under another name and rename it, so that it is whole or absent."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(target: str, data: Any) -> None:
    """Write JSON to a file, or to standard output for '-'."""
    text = json.dumps(data, allow_nan=False)
    if target == "-":
        sys.stdout.write(text + "\n")
    else:
        write_aside(target, lambda file: file.write(text.encode() + b"\n"))
