"""Read-only views of arrays that users may see but must not change."""

import copy
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def read_only(value: T) -> T:
    """Return an array, or a dataclass or NamedTuple of arrays, as a read-only view; any other value as it is."""
    if isinstance(value, np.ndarray):
        view: Any = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(read_only, value))
    if is_dataclass(value) and not isinstance(value, type):
        copied: Any = copy.copy(value)
        for name, item in list(vars(copied).items()):
            if isinstance(item, np.ndarray | tuple):
                vars(copied)[name] = read_only(item)
        return copied
    return value
