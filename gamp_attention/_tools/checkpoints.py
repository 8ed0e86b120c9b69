"""Checkpoints: .npz archives without pickles, from which an interrupted run resumes with identical bits.

A checkpoint also holds a digest of data and options; a file with a different digest is refused.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.files import (
    CHECKPOINT,
    MARK,
    ForeignFile,
    as_path,
    require_checkpoint,
    require_folder,
    write_archive,
)
from gamp_attention._tools.snapshots import Tree, pack, unpack

CHECKPOINT_FORMAT = 4
NEEDS_CHECKPOINT = "checkpoint: needs the name of a new file or of the checkpoint of an identical run"


@dataclass(frozen=True)
class Checkpoint(DisplayMixin):
    """File of a run, and the time between two writes; pass it to `train(checkpoint=...)`.

    Parameters
    ----------
    path : name of the file, in a folder in which files can be written.
    every : number of seconds between two writes, or less at the beginning: at most the time since the start. 0 writes
        at every iteration.

    Raises
    ------
    TypeError : if `path` is not a path, or `every` not a number.
    ValueError : if `every` is negative, or no file can be written in the folder of `path`.
    """

    path: str | Path
    every: float = 60.0

    def __post_init__(self) -> None:
        check.real("every", self.every, low=0)
        require_folder("checkpoint", as_path("checkpoint", self.path))


class CheckpointFile:
    """File of a checkpoint, open to one run whose data and options have a given digest."""

    def __init__(self, checkpoint: Checkpoint, digest: str) -> None:
        self.path, self._every, self._digest = Path(checkpoint.path), checkpoint.every, digest
        self._opened = self._written = time.monotonic()

    def load(self) -> Tree | None:
        """Return the tree written last, or None if the file does not exist or is empty.

        Raise ValueError if the file is not a checkpoint of an identical run; such a file is never replaced.
        """
        require_checkpoint("checkpoint", self.path)
        if self.path.exists() and self.path.stat().st_size == 0:  # an empty file, for example from mktemp
            return None
        try:
            with open(self.path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files if name != MARK}
            identity = str(arrays.pop("digest")), int(arrays.pop("format"))
        except FileNotFoundError:
            return None
        except Exception as error:  # numpy and zipfile raise many different types for damaged archives
            why = "which is a damaged checkpoint; delete it, or choose another name"
            raise ValueError(f"{NEEDS_CHECKPOINT}, got {self.path}, {why}") from error
        if identity != (self._digest, CHECKPOINT_FORMAT):
            why = "which is of another run; choose another name"
            raise ValueError(f"{NEEDS_CHECKPOINT}, with the same data and options, got {self.path}, {why}")
        return unpack(arrays)

    def save(self, snapshot: Callable[[], Tree]) -> None:
        """Write the tree that a function returns, unless the last write is recent; warn if it cannot be written.

        The time between two writes is at most the time before, so that a run that is interrupted early resumes too.
        """
        if time.monotonic() - self._written < min(self._every, self._written - self._opened):
            return
        arrays = pack(snapshot()) | {"digest": np.array(self._digest), "format": np.array(CHECKPOINT_FORMAT)}
        try:
            require_checkpoint("checkpoint", self.path)
            write_archive("checkpoint", self.path, CHECKPOINT, arrays, overwrite=True)
        except (OSError, ForeignFile) as error:  # the result of the run does not need the file
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        self._written = time.monotonic()
