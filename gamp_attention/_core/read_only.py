"""Arrays that are shown and must not be changed."""

import copy
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def read_only(value: T) -> T:
    """An array, or a dataclass or NamedTuple of arrays, that refuses to be written to; anything else as it is."""
    if isinstance(value, np.ndarray):
        view: Any = value.view()
        view.flags.writeable = False
        return view
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(read_only, value))
    if is_dataclass(value) and not isinstance(value, type):
        shown: Any = copy.copy(value)
        for name, each in list(vars(shown).items()):
            if isinstance(each, np.ndarray | tuple):
                vars(shown)[name] = read_only(each)
        return shown
    return value
