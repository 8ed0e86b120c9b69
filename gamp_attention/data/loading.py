"""Reading the user's arrays, without pickles: .npz files, folders of .npy files, files of torch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NEEDED, OPTIONAL = ("tokens", "outputs"), ("positions",)
ARRAYS = (*NEEDED, *OPTIONAL)
TORCH_FILES = (".pt", ".pth")


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
    """Some arrays by name, or an error that names the file and what is wrong with it."""
    path = Path(path)
    try:
        with _readers(path) as stored:
            missing = [name for name in names if name not in stored]
            if missing:
                raise ValueError(f"it lacks the arrays {', '.join(missing)} and has {', '.join(stored) or 'none'}")
            return {name: stored[name]() for name in (*names, *others) if name in stored}
    except FileNotFoundError as error:
        raise ValueError(f"{argument}{path}: there is no such file") from error
    except ImportError:
        raise
    except Exception as error:  # damaged archives fail in a dozen ways
        why = str(error).partition("\n")[0][:200]
        raise ValueError(f"{argument}{path}: cannot be read as {_kind(path)} with {', '.join(names)}: {why}") from error


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder of .npy files"
    return "a dict of tensors" if path.suffix in TORCH_FILES else ".npz"


@contextmanager
def _readers(path: Path) -> Iterator[dict[str, Callable[[], Any]]]:
    """What reads each array of a file or folder, by name."""
    if path.is_dir():
        yield {file.stem: partial(np.load, file, "r", allow_pickle=False) for file in sorted(path.glob("*.npy"))}
    elif path.suffix in TORCH_FILES:
        try:
            import torch
        except ImportError as error:
            raise ImportError(f"{path}: needs torch: pip install 'gamp-attention[torch]'") from error
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(tensors, dict):
            raise ValueError(f"it holds a {type(tensors).__name__}")
        yield {str(name): partial(tensors.__getitem__, name) for name in tensors}
    else:
        with open(path, "rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, not an .npz archive; a folder may hold tokens.npy, outputs.npy")
            yield {name: partial(stored.__getitem__, name) for name in stored}
