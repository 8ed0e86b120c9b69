"""Checks of arguments, with errors that name the argument, its requirement and the value received; read-only views."""

import copy
import importlib.util
import math
import numbers
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any, TypeVar

import numpy as np

from gamp_attention._tools.choices import suggestion

MAX_INTEGER = sys.maxsize  # largest integer argument, except seeds
EXTRAS = {"torch": "torch", "matplotlib": "plot"}  # extras of the package that install optional modules


def fail(name: str, got: Any, needs: str, error: type[Exception] = ValueError) -> Exception:
    """Return an exception that names an argument, its requirement and the value received."""
    if isinstance(got, np.ndarray) and got.size > 8:
        return fail_words(name, f"shape {got.shape}", needs, error)
    if isinstance(got, int) and abs(got) > MAX_INTEGER:  # Python does not print integers of any length
        return fail_words(name, f"an integer of {got.bit_length()} bits", needs, error)
    text = repr(got)
    if "\n" in text:  # the fields of a dataset or of a result do not help
        text = " ".join(text.split()) if isinstance(got, np.ndarray) else f"{type(got).__name__}(…)"
    return fail_words(name, text, needs, error)


def fail_words(name: str, got: str, needs: str, error: type[Exception] = ValueError) -> Exception:
    """Return an exception as `fail` does, for a value that `got` describes in words."""
    return error(f"{name}: needs {needs}, got {got if len(got) <= 200 else got[:200] + '…'}")


def require_attributes(name: str, value: Any, needs: str, *attributes: str) -> None:
    """Raise TypeError unless a value has the attributes of the objects that a function accepts."""
    if not all(hasattr(value, attribute) for attribute in attributes):
        raise fail(name, value, needs, TypeError)


def require_module(purpose: str, module: str) -> None:
    """Raise ImportError unless an optional module is installed, without importing it; `purpose` names its user."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(f"{purpose} needs {module}: pip install 'gamp-attention[{EXTRAS[module]}]'")


@contextmanager
def rename(**names: str) -> Iterator[None]:
    """Replace names of arguments at the beginning of error messages by the names that the caller knows."""
    try:
        yield
    except (TypeError, ValueError) as error:
        head, colon, needs = str(error).partition(": ")
        found = [re.fullmatch(r"(\w+)(.*)", word) for word in head.split(", ")]
        if not colon or not all(found) or not any(match[1] in names for match in found if match):
            raise
        renamed = [names.get(match[1], match[1]) + match[2] for match in found if match]
        raise type(error)(f"{', '.join(renamed)}: {needs}") from error


def real(name: str, value: Any, *, low: float = -math.inf, high: float = math.inf, strict: bool = False) -> float:
    """Return a finite number in [low, high], or in (low, high] if `strict`; raise for any other value."""
    bound = f"{'>' if strict else '>='} {low:g}" + (f" and <= {high:g}" if high < math.inf else "")
    needs = "a finite number" + (f" {bound}" if low > -math.inf else "")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise fail(name, value, needs, TypeError)
    try:
        value = float(value)
    except OverflowError:
        raise fail(name, value, needs) from None
    if not math.isfinite(value) or value < low or value > high or (strict and value == low):
        raise fail(name, value, needs)
    return value


def integer(name: str, value: Any, *, low: int, high: int | None = MAX_INTEGER) -> int:
    """Return an integer in [low, high]; raise for any other value. Messages name `high` only if it is exceeded."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise fail(name, value, f"an integer >= {low}", TypeError)
    if value < low:
        raise fail(name, int(value), f"an integer >= {low}")
    if high is not None and int(value) > high:
        raise fail(name, int(value), f"an integer >= {low} and <= {high}")
    return int(value)


def flag(name: str, value: Any) -> bool:
    """Return True or False; raise for any other value."""
    if not isinstance(value, bool | np.bool_):
        raise fail(name, value, "True or False", TypeError)
    return bool(value)


def function(name: str, value: Any) -> Any:
    """Return a callable object; raise for any other value."""
    if not callable(value):
        raise fail(name, value, "a function", TypeError)
    return value


def over_samples(name: str, value: Any, n: int) -> np.ndarray:
    """Return the real values of a function of n samples as floats (n, ...); ValueError for any others."""
    values = np.asarray(value)
    if values.shape[:1] != (n,) or values.dtype.kind not in "biuf":
        raise fail_words(name, f"{values.dtype} of shape {values.shape}", "to return real numbers, samples in front")
    return values.astype(float)


def require_memory(name: str, *shape: int) -> None:
    """Raise ValueError if an array of doubles of some shape is larger than the memory of this machine."""
    size = 8 * math.prod(shape)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else MAX_INTEGER
    if size > memory:
        sizes = f"{size / 2**30:.3g} GiB of {memory / 2**30:.3g} GiB"
        raise ValueError(f"{name}: needs arrays that fit into memory, got shape {shape}, {sizes}")


def detach_tensor(value: Any) -> Any:
    """Detach a tensor of torch and copy it to the CPU; return any other value unchanged.

    Tensors of types that numpy lacks, such as bfloat16, are converted to float32, which represents the same numbers.
    """
    if not (hasattr(value, "detach") and hasattr(value, "cpu")):
        return value
    try:
        value = value.detach().cpu()
    except RuntimeError:  # a tensor on the device "meta" has no numbers; the caller raises an error that names it
        return value
    narrow = getattr(value, "is_floating_point", bool)() and value.element_size() <= 2
    return value.float() if narrow else value


def read_array(value: Any) -> np.ndarray:
    """Return an array in memory, with its mask if it has one, of anything that converts to an array."""
    return np.asanyarray(detach_tensor(value))


def require_unmasked(name: str, value: Any) -> None:
    """Raise TypeError if a value is a masked array of numpy with masked entries, which conversions to arrays ignore."""
    if np.ma.is_masked(value):
        needs, remedy = "an array without masked entries", "leave these samples out, or fill the entries with `filled`"
        raise TypeError(f"{fail_words(name, 'an array with masked entries', needs)}; {remedy}")


def ndim(name: str, value: Any) -> int:
    """Return the number of axes of an array or of nested lists; raise ValueError if rows have different lengths."""
    if isinstance(getattr(value, "shape", None), tuple):
        return len(value.shape)
    try:
        return np.ndim(value)
    except ValueError as error:
        raise fail_words(name, "rows of different lengths", "rows of equal lengths") from error


def choice(name: str, value: Any, options: tuple[str, ...]) -> str:
    """Return one of the strings `options`; raise for any other value, with a suggestion."""
    if isinstance(value, str) and value in options:
        return value
    text = "one of " + ", ".join(map(repr, options))
    if not isinstance(value, str):
        raise fail(name, value, text, TypeError)
    raise ValueError(f"{fail(name, value, text)}{suggestion(value.lower(), options)}")


def array(name: str, value: Any, shape: tuple[int | str, ...], *, single: bool = False) -> np.ndarray:
    """Return a finite array of doubles of a given shape, in which letters stand for any size of at least one.

    With `single`, arrays of single precision are not converted. Tensors are used without their gradients.
    """
    wanted = "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"
    if "sparse" in str(getattr(value, "layout", "")) or type(value).__module__.startswith("scipy.sparse"):
        dense = "to_dense" if hasattr(value, "to_dense") else "toarray"
        raise TypeError(f"{name}: needs a dense array, got a sparse {type(value).__name__}; pass {name}.{dense}()")
    try:
        given = read_array(value)
        if given.dtype == object and np.array_equal(floats := given.astype(float), given):  # as in tables of pandas
            given = floats
        if given.dtype.kind not in "biuf":
            raise TypeError("not real numbers")
        result = np.asarray(given)
        if not (single and result.dtype == np.float32):
            with np.errstate(over="ignore"):  # longer floats may overflow; infinities are rejected below
                result = result.astype(np.float64, copy=False)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(value, list | tuple) and isinstance(error, ValueError):
            ndim(name, value)
        got = repr(value) if isinstance(value, str) else f"an object of type {type(value).__name__}"
        if isinstance(value, np.ndarray):
            got = f"an array of {value.dtype}"
        elif hasattr(value, "detach"):
            got = f"a tensor of {value.dtype} on {value.device}"
        raise fail_words(name, got, f"a real array of shape {wanted}", TypeError) from error
    require_unmasked(name, given)
    pairs = list(zip(result.shape, shape, strict=False))
    if result.ndim != len(shape) or not all(size == want if isinstance(want, int) else size for size, want in pairs):
        letters = ", ".join(size for size in shape if isinstance(size, str))
        least = f" with {letters} >= 1" if letters and result.ndim == len(shape) and not result.size else ""
        raise ValueError(f"{name}: needs shape {wanted}{least}, got shape {result.shape}")
    require_finite(name, result)
    return result


def require_finite(name: str, value: np.ndarray, start: int = 0) -> None:
    """Raise ValueError if numbers are not finite; `start` is the index of the first row in the argument."""
    if not np.isfinite(value).all():
        where = np.argwhere(~np.isfinite(value))
        first = f", the first at index {(start + int(where[0, 0]), *where[0, 1:].tolist())}" if value.ndim else ""
        raise ValueError(f"{name}: needs finite numbers, got {len(where)} NaN or infinite{first}")


def require_shape(name: str, value: Any, shape: tuple[int | str, ...]) -> None:
    """Raise unless a value is an array of real numbers, finite or not, of a given shape: for arrays of inner loops."""
    if ndim(name, value) != len(shape) or np.shape(value) != shape:
        raise fail_words(name, f"shape {np.shape(value)}", f"shape {shape}")
    if hasattr(value, "detach") or (isinstance(value, np.ndarray) and value.dtype.kind not in "biuf"):
        raise fail_words(name, f"{type(value).__name__} of {value.dtype}", "an array of real numbers", TypeError)


def standard_deviations(name: str, value: Any, shape: tuple[int | str, ...]) -> np.ndarray:
    """Return an array of positive standard deviations whose squares are positive and finite."""
    result = array(name, value, shape)
    with np.errstate(over="ignore", under="ignore"):
        squares = result**2
    if (result <= 0).any() or (squares == 0).any() or not np.isfinite(squares).all():
        raise fail(name, result, "positive standard deviations, with squares within the range of doubles")
    return result


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


def fractions(name: str, value: Any, K: int) -> np.ndarray:
    """Return the fractions (K,) of the classes; raise ValueError unless they are positive and add to 1."""
    weight = array(name, value, (K,))
    if (weight <= 0).any() or abs(weight.sum() - 1) > 1e-12:
        raise fail(name, weight, "positive numbers that add to 1, the fractions of the classes")
    return weight
