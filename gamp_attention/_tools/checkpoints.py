"""Runs that can be interrupted and resumed with identical bits: snapshots of their state, and checkpoint files.

A class derived from `Resumable` annotates, in its body, the attributes that change during a run. From the annotations
`pack` makes flat arrays, and `Resumable.restore` sets the attributes again. Allowed are numbers, strings, enums,
arrays, dataclasses, lists, tuples and dicts of these, and other `Resumable` objects, which are restored in place.

A checkpoint is an .npz archive without pickles. It also holds a digest of data and options; a file with a different
digest is refused.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.files import CHECKPOINT, MARK, require_checkpoint, write_archive

LENGTH = "#"  # key of the length of a list
CHECKPOINT_FORMAT = 4
NEEDS_CHECKPOINT = "checkpoint: needs the name of a new file or of the checkpoint of an identical run"
Tree = Any  # nested dicts and lists of arrays, numbers and None
Outcome = TypeVar("Outcome")


class Resumable:
    """Base class of the parts of a run that checkpoints store: the attributes annotated in the body of the class."""

    def snapshot(self) -> Tree:
        """Return the annotated attributes by name."""
        return {name: getattr(self, name) for name in get_type_hints(type(self))}

    def restore(self, tree: Tree) -> None:
        """Set the annotated attributes from a tree that `unpack` has returned."""
        for name, hint in get_type_hints(type(self)).items():
            current, part = getattr(self, name), (tree or {}).get(name)
            if isinstance(current, Resumable):
                current.restore(part)
            else:
                setattr(self, name, _build(hint, part))


class Run(Resumable, Generic[Outcome]):
    """A run of an iterative solver, from its start until `advance` returns how it ended.

    Between two iterations, it calls `save` to write a checkpoint, if that is given.
    """

    t: int  # number of iterations so far

    def __init__(self, save: Callable[[], None] | None = None) -> None:
        self.t, self._save = 0, save
        self.ended: Outcome | None = None

    @abstractmethod
    def advance(self) -> Outcome | None:
        """Do one iteration; return how the run ended, or None if it continues."""

    def run(self, until: float = math.inf, pause: Callable[[], bool] | None = None) -> Outcome | None:
        """Iterate until the run ends; return how it ended.

        None if it reaches iteration `until` first, or if `pause` returns True after an iteration.
        """
        first = self.t
        while self.ended is None and self.t < until:
            if self._save is not None and self.t > first:
                self._save()
            self.ended = self.advance()
            if pause is not None and self.ended is None and pause():
                break
        return self.ended


def pack(value: Any, name: str = "") -> dict[str, np.ndarray]:
    """Flatten an object into arrays by name, for an archive; None is left out."""
    if value is None:
        return {}
    if isinstance(value, Resumable):
        return pack(value.snapshot(), name)
    if isinstance(value, np.ndarray):
        return {name: value}
    if is_dataclass(value):
        return pack({field.name: getattr(value, field.name) for field in fields(value)}, name)
    if isinstance(value, dict):
        parts = [pack(part, f"{name}/{key}") for key, part in value.items()]
    elif isinstance(value, list | tuple):
        parts = [{f"{name}/{LENGTH}": np.array(len(value))}]
        parts += [pack(part, f"{name}/{index}") for index, part in enumerate(value)]
    else:
        return {name: np.asarray(value.value if isinstance(value, Enum) else value)}
    return {key: array for part in parts for key, array in part.items()}


def unpack(arrays: dict[str, np.ndarray]) -> Tree:
    """Return the tree of `pack`, in which numbers are arrays without axes, and None is a missing key."""
    if "" in arrays:
        return arrays[""]
    children: dict[str, dict[str, np.ndarray]] = {}
    for name, value in arrays.items():
        key, _, remainder = name.removeprefix("/").partition("/")
        children.setdefault(key, {})[f"/{remainder}" if remainder else ""] = value
    if LENGTH not in children:
        return {key: unpack(part) for key, part in children.items()}
    length = int(children.pop(LENGTH)[""])
    return [unpack(children[str(index)]) if str(index) in children else None for index in range(length)]


def _build(hint: Any, tree: Tree) -> Any:
    """Return the value of type `hint` that a tree describes."""
    kind: Any = get_origin(hint) or hint
    arguments = get_args(hint)
    if kind is UnionType:  # a type or None
        optional = next(argument for argument in arguments if argument is not NoneType)
        return None if tree is None else _build(optional, tree)
    if kind is dict:
        key_type, value_type = arguments
        return {key_type(key): _build(value_type, part) for key, part in (tree or {}).items()}
    if kind is list:
        return [_build(arguments[0], part) for part in tree]
    if kind is tuple:
        types = [arguments[0]] * len(tree) if arguments[1:] == (...,) else arguments
        return tuple(_build(argument, part) for argument, part in zip(types, tree, strict=True))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        values = {field.name: _build(hints[field.name], tree.get(field.name)) for field in fields(kind)}
        return kind(**values)  # type: ignore[operator]
    return tree if kind is np.ndarray else kind(tree.item())


@dataclass(frozen=True)
class Checkpoint(DisplayMixin):
    """File of a run, and the time between two writes; pass it to `train(checkpoint=...)`.

    Parameters
    ----------
    path : name of the file, in a folder that exists.
    every : minimum number of seconds between two writes; 0 writes at every iteration.

    Raises
    ------
    TypeError : if `path` is not a path, or `every` not a number.
    ValueError : if `every` is negative, or the folder of `path` does not exist.
    """

    path: str | Path
    every: float = 60.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | Path):
            raise check.fail("checkpoint", self.path, "the path of a file", TypeError)
        check.real("every", self.every, low=0)
        if not Path(self.path).parent.is_dir():
            raise check.fail("checkpoint", str(self.path), "a file in a folder that exists")


class CheckpointFile:
    """File of a checkpoint, open to one run whose data and options have a given digest."""

    def __init__(self, checkpoint: Checkpoint, digest: str) -> None:
        self.path, self._every, self._digest = Path(checkpoint.path), checkpoint.every, digest
        self._written = time.monotonic()

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
            raise self.refuse()
        return unpack(arrays)

    def refuse(self) -> ValueError:
        """Return the error for a checkpoint of another run."""
        why = "which is of another run; choose another name"
        return ValueError(f"{NEEDS_CHECKPOINT}, with the same data and options, got {self.path}, {why}")

    def save(self, snapshot: Callable[[], Tree]) -> None:
        """Write the tree that a function returns, unless the last write is more recent than `every` seconds."""
        if time.monotonic() - self._written < self._every:
            return
        identity = {"digest": np.array(self._digest), "format": np.array(CHECKPOINT_FORMAT)}
        write_archive("checkpoint", self.path, CHECKPOINT, pack(snapshot()) | identity)
        self._written = time.monotonic()
