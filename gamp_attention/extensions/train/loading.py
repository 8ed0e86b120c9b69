"""Reading arrays from .npz files, folders of .npy files and torch files, without running code stored in them."""

import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.files import is_text
from gamp_attention._tools.optional import require_modules

NEEDED, OPTIONAL = ("tokens", "outputs"), ("positions",)
ARRAYS = (*NEEDED, *OPTIONAL)
TORCH_FILES = (".pt", ".pth")
DAMAGED = "is damaged or incomplete; write or copy the file again"
# first bytes of .npz files, .npy files, old torch files, and of HDF5, netCDF4 and newer MATLAB files
ZIP, NPY, PICKLE, HDF5 = b"PK", b"\x93NUMPY", b"\x80", b"\x89HDF\r\n\x1a\n"


class StoredArrays(NamedTuple):
    """Arrays of a file, not yet checked: tokens (n, L, d), outputs (n, L, d), and positions (L, d) or None.

    `names` are the names of all arrays of the file, also of others.
    """

    tokens: Any
    outputs: Any
    positions: Any
    names: tuple[str, ...]


ROWS = " (for rows X (n, d) with labels y (n,) use scikit-learn, or LabelledDataset in Python)"


def load_arrays(path: str | Path) -> StoredArrays:
    """Load tokens, outputs and, if they are stored, positions.

    The path is an .npz file; a folder with tokens.npy and outputs.npy, which stay on the disk and are read at every
    pass; or a .pt file with a dict of tensors, written by torch.save(dict(tokens=..., outputs=...), path).
    """
    arrays, names = _arrays(path, NEEDED, OPTIONAL)
    return StoredArrays(arrays["tokens"], arrays["outputs"], arrays.get("positions"), names)


def load_tokens(path: str | Path) -> tuple[Any, Any]:
    """Load tokens and, if they are stored, outputs, from the files of `load_arrays`."""
    arrays, _ = _arrays(path, ("tokens",), ("outputs",))
    return arrays["tokens"], arrays.get("outputs")


def load_fit(argument: str, path: str | Path) -> dict[str, Any]:
    """Load the arrays and numbers of a result of `gamp-attention fit` from which predictions follow."""
    numbers = ("heads", "status", "n_iter", "train_loss", "gradient_norm", "lam")
    return _arrays(path, ("Q", "positions", "center", "scale", *numbers), argument=f"{argument}: ")[0]


def load_weights(argument: str, path: str | Path) -> np.ndarray:
    """Load the array Q of an .npz file, for example a result of `gamp-attention fit`, that an argument names."""
    return _arrays(path, ("Q",), argument=f"{argument}: ")[0]["Q"]


def load_labels(argument: str, path: str | Path, name: str) -> np.ndarray:
    """Load the array of labels that the value `name` of an argument selects."""
    return np.asarray(_arrays(path, (name,), argument=f"{argument}: ")[0][name])


def _arrays(
    path: str | Path, names: tuple[str, ...], others: tuple[str, ...] = (), argument: str = ""
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return arrays by name, and the names of all arrays of the file; an error names the file and the cause."""
    path = Path(path)
    try:
        with _readers(path) as stored:
            missing = [name for name in names if name not in stored]
            if missing:
                there = ", ".join([*stored][:8]) + (", …" if len(stored) > 8 else "") if stored else "none"
                rows = "" if missing != [*NEEDED] or "y" not in stored else ROWS
                raise ValueError(f"it lacks the arrays {', '.join(missing)} and has {there}{rows}")
            arrays = {name: _read(name, stored[name]) for name in (*names, *others) if name in stored}
            return arrays, tuple(stored)
    except FileNotFoundError as error:
        raise ValueError(f"{argument}{path}: there is no such file") from error
    except ImportError:
        raise
    except zipfile.BadZipFile as error:
        needs = f"{argument}{path}: cannot be read as {_kind(path)} with {', '.join(names)}"
        raise ValueError(f"{needs}: the archive {DAMAGED}") from error
    except Exception as error:  # damaged archives raise many kinds of errors
        why = re.sub(r"\x1b\[[\d;]*m", "", str(error)).partition("\n")[0][:400]
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
    """Yield the functions that read the arrays of a file or folder, by name."""
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        for array in files:
            _require_start(array, (NPY,), "an .npy file as numpy.save writes it")
        yield {array.stem: partial(_map_array, array) for array in files}
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


def _map_array(path: Path) -> np.ndarray:
    """Return the array of an .npy file, which stays on the disk."""
    try:
        return np.load(path, "r", allow_pickle=False)
    except (OSError, ValueError) as error:
        if "allow_pickle" in str(error):
            raise
        raise ValueError(f"{path.name} {DAMAGED}") from error


def _tensors(path: Path) -> dict[str, Callable[[], Any]]:
    """Return the functions that read the tensors of a torch file; objects of other classes are not created."""
    import torch

    needs = "it needs a dict, as torch.save(dict(tokens=..., outputs=...), path) writes it"
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        objects = "objects of Python classes, for instance a whole model, which are not read as they could run any code"
        raise ValueError(f"it holds {objects}; {needs}") from error
    except (EOFError, OSError, RuntimeError) as error:
        raise ValueError(f"it {DAMAGED}") from error
    if not isinstance(tensors, dict):
        raise ValueError(f"it holds a {type(tensors).__name__}; {needs}")
    if not set(NEEDED) & set(tensors) and any(str(name).endswith(("weight", "bias")) for name in tensors):
        some = ", ".join(map(str, [*tensors][:3]))
        raise ValueError(f"it holds the state_dict of a model ({some}), which are weights and no data; {needs}")
    return {str(name): partial(tensors.__getitem__, name) for name in tensors}


def _require_start(path: Path, starts: tuple[bytes, ...], needs: str) -> None:
    """Raise ValueError if a file does not begin with one of `starts`; numpy assumes that any other file is a pickle."""
    if path.exists() and not path.is_file():  # to open a named pipe would wait for its writer
        raise ValueError(f"{path.name} is not a regular file, for instance a pipe; write the arrays to a file first")
    with open(path, "rb") as file:
        head = file.read(512)
    if head.startswith(HDF5):
        script = f"import h5py, numpy; f = h5py.File({str(path)!r}); numpy.savez({path.stem + '.npz'!r}, "
        arrays = "**{k: v[()] for k, v in f.items()})"
        raise ValueError(f'{path.name} is an HDF5 file; convert its arrays: python -c "{script}{arrays}"')
    if not head.startswith(starts):
        content = "text" if is_text(head) else "something else" if head else "nothing"
        raise ValueError(f"{path.name} holds {content}, and needs to be {needs}")
