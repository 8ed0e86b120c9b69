"""Checks of arguments: every error names the argument, what it got and what it needs."""

import math
import numbers
from typing import Any

import numpy as np


def fail(name: str, got: Any, needs: str, error: type[Exception] = ValueError) -> Exception:
    """An error that names the argument, what it got and what it needs."""
    shown = f"shape {got.shape}" if isinstance(got, np.ndarray) and got.size > 8 else repr(got)
    return error(f"{name}: needs {needs}, got {shown}")


def real(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, strict: bool = False) -> float:
    """A finite number in [low, high], or in (low, high] where strict."""
    bound = f"{'>' if strict else '>='} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
    needs = "a finite number" + (f" {bound}" if low > -math.inf else "")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise fail(name, value, needs, TypeError)
    value = float(value)
    if not math.isfinite(value) or value < low or value > high or (strict and value == low):
        raise fail(name, value, needs)
    return value


def integer(name: str, value: Any, *, low: int) -> int:
    """An integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise fail(name, value, f"an integer >= {low}", TypeError)
    if value < low:
        raise fail(name, int(value), f"an integer >= {low}")
    return int(value)


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    """One of a few words."""
    if not isinstance(value, str):
        raise fail(name, value, "one of " + ", ".join(map(repr, options)), TypeError)
    if value not in options:
        raise fail(name, value, "one of " + ", ".join(map(repr, options)))
    return value


def array(name: str, value: Any, shape: tuple[int | str, ...], *, single: bool = False) -> np.ndarray:
    """A finite float array of a given shape; letters stand for any size of at least one.

    `single` leaves arrays of single precision as they are.
    """
    wanted = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    try:
        result = np.asarray(value)
        if result.dtype == object or np.iscomplexobj(result):
            raise TypeError("not real numbers")
        if not (single and result.dtype == np.float32):
            result = result.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise fail(name, type(value).__name__, f"a real array of shape {wanted}", TypeError) from error
    matches = result.ndim == len(shape) and all(
        size == want if isinstance(want, int) else size >= 1 for size, want in zip(result.shape, shape, strict=True)
    )
    if not matches:
        raise ValueError(f"{name}: needs shape {wanted}, got shape {result.shape}")
    if not np.isfinite(result).all():
        raise ValueError(f"{name}: needs finite numbers, got {np.count_nonzero(~np.isfinite(result))} NaN or infinite")
    return result


def namedtuple_class(name: str, value: Any, methods: tuple[str, ...]) -> type:
    """A class derived from NamedTuple that defines some methods."""
    if not (isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")):
        raise fail(name, value, "a class derived from typing.NamedTuple", TypeError)
    missing = [each for each in methods if not callable(vars(value).get(each.partition("(")[0]))]
    if missing:
        raise TypeError(f"{name}: {value.__name__} needs a method {' and one '.join(missing)}")
    return value


def generator(seed: Any, *stream: int) -> np.random.Generator:
    """A numpy Generator from a seed or a Generator.

    Integers that name a stream keep numbers apart from others drawn from the same seed.
    """
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng([integer("seed", seed, low=0), *stream])
