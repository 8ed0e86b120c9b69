"""Reading the user's arrays, without pickles."""

from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset


def load_dataset(path: str | Path, lam: float, rank: int, penalty: Any = None) -> Dataset:
    """A Dataset from an .npz file with the arrays tokens (n, L, d), outputs (n, L, d) and positions (L, d)."""
    return Dataset(**_arrays(path, ("tokens", "outputs", "positions")), lam=lam, rank=rank, penalty=penalty)


def load_weights(path: str | Path) -> np.ndarray:
    """The array Q of an .npz file, such as `gamp-attention fit` writes."""
    return _arrays(path, ("Q",), "init: ")["Q"]


def _arrays(path: str | Path, names: tuple[str, ...], argument: str = "") -> dict[str, Any]:
    """Some arrays of an .npz file, or an error that names the file and what is wrong with it."""
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
