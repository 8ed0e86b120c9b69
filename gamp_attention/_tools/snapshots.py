"""Runs that can be interrupted, and snapshots of their state as arrays by name, from which they are resumed.

A class derived from `Resumable` annotates, in its body, the attributes that change during a run. From the annotations
`pack` makes flat arrays, and `Resumable.restore` sets the attributes again. Allowed are numbers, strings, enums,
arrays, dataclasses, lists, tuples and dicts of these, and other `Resumable` objects, which are restored in place.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

LENGTH = "#"  # key of the length of a list
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
