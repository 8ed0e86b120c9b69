"""Checkpoints: a run written to one file, from which it goes on to the same bits.

The parts of a run that change on the way have `snapshot`, which gives a tree as `packed` takes it, and `restore`. The
file is an .npz archive without pickles, written aside and renamed, so that it is whole or absent; archives carry
checksums. It also holds a digest of the data and options, and is refused where these differ.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.files import MARK, require_checkpoint, write_archive
from gamp_attention._core.hashes import hash_bytes
from gamp_attention.data.dataset import Dataset

CHECKPOINT_FORMAT = 2
LENGTH = "#"  # key of the length of a list


def digest(data: Dataset, *options: Any) -> str:
    """A hash of the numbers that a dataset's risks are made of, and of options: arrays, or what `repr` tells apart."""
    arrays = data.terms("exact").params, data.positions, data.spectra, data.source_means
    values = *arrays, data.tokens.shape, data.tokens.dtype.str, data.penalty, data.loss, *options
    return hash_bytes(*(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in values))


class Checkpoint:
    """One file that a run is written to now and then.

    Parameters
    ----------
    path : the file; its folder must exist.
    digest : of data and options.
    every : least seconds between two writes.
    """

    def __init__(self, path: Any, digest: str, every: Any) -> None:
        if not isinstance(path, str | Path):
            raise check.fail("checkpoint", path, "the path of a file", TypeError)
        self.path, self.digest = Path(path), digest
        self.every = check.real("checkpoint_every", every, low=0)
        if not self.path.parent.is_dir():
            raise check.fail("checkpoint", str(path), "a file in a folder that exists")
        self._last = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Return the entries written last, or None if the file does not exist or is empty.

        Raises
        ------
        ValueError : if the file is not a checkpoint of an identical run; such a file is never replaced.
        """
        require_checkpoint("checkpoint", self.path)
        if self.path.exists() and self.path.stat().st_size == 0:  # an empty file, for example from mktemp
            return None
        needs = "checkpoint: needs the name of a new file or of the checkpoint of an identical run"
        try:
            with open(self.path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                found = {name: archive[name] for name in archive.files if name != MARK}
            about = str(found.pop("digest")), int(found.pop("format"))
        except FileNotFoundError:
            return None
        except Exception as error:  # damaged archives fail in a dozen ways
            why = "which is a damaged checkpoint; delete it, or choose another name"
            raise ValueError(f"{needs}, got {self.path}, {why}") from error
        if about != (self.digest, CHECKPOINT_FORMAT):
            why = "which is of another run; choose another name"
            raise ValueError(f"{needs}, with the same data and options, got {self.path}, {why}")
        return unpacked(found)

    def save(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        """Write what a function gives, unless the last one is recent."""
        if time.monotonic() - self._last < self.every:
            return
        about = {"digest": np.array(self.digest), "format": np.array(CHECKPOINT_FORMAT)}
        write_archive("checkpoint", self.path, "checkpoint", packed(snapshot()) | about)
        self._last = time.monotonic()


def packed(tree: Any, name: str = "") -> dict[str, np.ndarray]:
    """Nested dicts and lists of arrays, numbers and None as flat arrays; None is left out."""
    if tree is None:
        return {}
    if isinstance(tree, dict):
        parts = [packed(value, f"{name}/{key}") for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        parts = [{f"{name}/{LENGTH}": np.array(len(tree))}]
        parts += [packed(value, f"{name}/{index}") for index, value in enumerate(tree)]
    else:
        return {name: np.asarray(tree)}
    return {key: value for part in parts for key, value in part.items()}


def unpacked(arrays: dict[str, np.ndarray]) -> Any:
    """The tree of `packed`: numbers come back as arrays of no axes, and None as a missing key."""
    if "" in arrays:
        return arrays[""]
    children: dict[str, dict[str, np.ndarray]] = {}
    for name, value in arrays.items():
        key, _, rest = name.removeprefix("/").partition("/")
        children.setdefault(key, {})[f"/{rest}" if rest else ""] = value
    if LENGTH not in children:
        return {key: unpacked(part) for key, part in children.items()}
    length = int(children.pop(LENGTH)[""])
    return [unpacked(children[str(index)]) if str(index) in children else None for index in range(length)]
