"""Reading the user's arrays, without pickles: .npz files, folders of .npy files, files of torch."""

import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.extras import require_modules
from gamp_attention._core.files import is_text

NEEDED, OPTIONAL = ("tokens", "outputs"), ("positions",)
ARRAYS = (*NEEDED, *OPTIONAL)
TORCH_FILES = (".pt", ".pth")
ZIP, NPY, PICKLE = b"PK", b"\x93NUMPY", b"\x80"  # first bytes of .npz files, .npy files and old files of torch


class OwnArrays(NamedTuple):
    """tokens (n, L, d), outputs (n, L, d) and positions (L, d) or None, as they were stored and not yet checked."""

    tokens: Any
    outputs: Any
    positions: Any


def load_arrays(path: str | Path) -> OwnArrays:
    """Tokens, outputs and, where they are there, positions.

    From an .npz file; a folder with tokens.npy and so on, which stay on the disk and are read at every pass; or a .pt
    file with a dict of tensors, as torch.save(dict(tokens=..., outputs=...), path) writes.
    """
    found = _arrays(path, NEEDED, OPTIONAL)
    return OwnArrays(found["tokens"], found["outputs"], found.get("positions"))


def load_weights(path: str | Path) -> np.ndarray:
    """The array Q of an .npz file, such as `gamp-attention fit` writes."""
    return _arrays(path, ("Q",), argument="init: ")["Q"]


def _arrays(
    path: str | Path, names: tuple[str, ...], others: tuple[str, ...] = (), argument: str = ""
) -> dict[str, Any]:
    """Return some arrays by name; an error names the file and what is wrong with it."""
    path = Path(path)
    try:
        with _readers(path) as stored:
            missing = [name for name in names if name not in stored]
            if missing:
                there = ", ".join([*stored][:8]) + (", …" if len(stored) > 8 else "") if stored else "none"
                raise ValueError(f"it lacks the arrays {', '.join(missing)} and has {there}")
            return {name: _read(name, stored[name]) for name in (*names, *others) if name in stored}
    except FileNotFoundError as error:
        raise ValueError(f"{argument}{path}: there is no such file") from error
    except ImportError:
        raise
    except Exception as error:  # damaged archives fail in a dozen ways
        why = re.sub(r"\x1b\[[\d;]*m", "", str(error)).partition("\n")[0][:200]
        raise ValueError(f"{argument}{path}: cannot be read as {_kind(path)} with {', '.join(names)}: {why}") from error


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except ValueError as error:
        if "allow_pickle" in str(error):
            why = f"{name} holds Python objects, and reading them could run any code; it needs an array of numbers"
            raise ValueError(why) from error
        raise


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder of .npy files"
    return "a dict of tensors" if path.suffix in TORCH_FILES else ".npz"


@contextmanager
def _readers(path: Path) -> Iterator[dict[str, Callable[[], Any]]]:
    """Yield what reads each array of a file or folder, by name."""
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        for each in files:
            _require_start(each, (NPY,), "an .npy file as numpy.save writes it")
        yield {each.stem: partial(np.load, each, "r", allow_pickle=False) for each in files}
    elif path.suffix in TORCH_FILES:
        _require_start(path, (ZIP, PICKLE), "a file as torch.save writes it")
        require_modules(str(path), "torch")
        yield _tensors(path)
    else:
        _require_start(path, (ZIP, NPY), "an .npz file as numpy.savez writes it")
        with open(path, "rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, not an .npz archive; a folder may hold tokens.npy, outputs.npy")
            yield {name: partial(stored.__getitem__, name) for name in stored}


def _tensors(path: Path) -> dict[str, Callable[[], Any]]:
    """Return what reads each tensor of a file of torch, whose objects of other classes are not made."""
    import torch

    needs = "it needs a dict, as torch.save(dict(tokens=..., outputs=...), path) writes it"
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        what = "objects of Python classes, for instance a whole model, which are not read as they could run any code"
        raise ValueError(f"it holds {what}; {needs}") from error
    if not isinstance(tensors, dict):
        raise ValueError(f"it holds a {type(tensors).__name__}; {needs}")
    if not set(NEEDED) & set(tensors) and any(str(name).endswith(("weight", "bias")) for name in tensors):
        some = ", ".join(map(str, [*tensors][:3]))
        raise ValueError(f"it holds the state_dict of a model ({some}), which are weights and no data; {needs}")
    return {str(name): partial(tensors.__getitem__, name) for name in tensors}


def _require_start(path: Path, starts: tuple[bytes, ...], needs: str) -> None:
    """Raise ValueError unless a file begins as files of its kind do; numpy takes any other file for a pickle."""
    with open(path, "rb") as file:
        found = file.read(512)
    if not found.startswith(starts):
        what = "text" if is_text(found) else "something else" if found else "nothing"
        raise ValueError(f"{path.name} holds {what}, and needs to be {needs}")
