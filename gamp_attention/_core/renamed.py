"""Keyword arguments that had another name in earlier versions."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that also accepts keywords under their old names (old="new"), with a DeprecationWarning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            given: dict[str, Any] = dict(options)
            for old, new in names.items():
                if old in given:
                    if new in given:
                        raise TypeError(f"{old}, {new}: need one of them, as both are the same argument; got both")
                    say_renamed(f"{function.__name__}(..., {old}=)", new)
                    given[new] = given.pop(old)
            return function(*args, **given)

        return call

    return decorate


def say_renamed(old: str, new: str) -> None:
    """Emit a DeprecationWarning at the caller of the function that calls this."""
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=3)
