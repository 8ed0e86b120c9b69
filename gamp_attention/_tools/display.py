"""Display of values: numbers with errors, short descriptions and tables; and conversion to plain data for JSON."""

import math
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np

WIDTH = 120  # maximum width of a line of `repr`
SMALLEST, LARGEST = -6, 6  # powers of ten of numbers that are written without an exponent, the second excluded
Rows = list[str | list[str]]  # rows of a table: a list of cells, or a line across all columns


def count_noun(n: int, noun: str) -> str:
    """Return a number with its noun in singular or plural, as "1 sample" and "2 samples"."""
    return f"{n} {noun}{'s' * (n != 1)}"


def format_with_error(value: float, error: float, digits: int, most: int = 6) -> str:
    """Return a number with two digits of its error, as 0.0940(12), or with `digits` decimals; '-' if it is infinite."""
    if not math.isfinite(value) or math.isinf(error):
        return "-"
    if error > 0:
        digits = min(max(0, 1 - math.floor(math.log10(error))), most)
    return f"{value:.{digits}f}" + (f"({math.ceil(error * 10**digits)})" if error > 0 else "")


def format_to_error(value: float, error: float) -> str:
    """Return a number with two digits of its error, as 0.0940(12); with four digits if the error is unknown.

    Very small and very large numbers have a power of ten, as 1.31(29)e+07.
    """
    if not (math.isfinite(value) and 0 < error < math.inf):
        return f"{value:.4g}"
    power = math.floor(math.log10(max(abs(value), error)))
    if not SMALLEST <= power < LARGEST:
        scale = 10.0**-power
        return f"{format_to_error(value * scale, error * scale)}e{power:+03d}"
    return format_with_error(value, error, 0, most=99)


def to_json(value: Any) -> Any:
    """Convert to JSON types: arrays to lists, NaN and infinities to None, statuses to strings, dataclasses to dicts."""
    if hasattr(value, "to_dict") and not isinstance(value, tuple):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json(value.tolist())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, complex):
        return [to_json(value.real), to_json(value.imag)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


MAX_CHARACTERS = 90  # largest number of characters of a value in a display


def abbreviate(value: Any) -> str:
    """Describe a value in at most `MAX_CHARACTERS`; arrays and long lists by their size."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"array({', '.join(map(str, value.shape))})"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}"
    if isinstance(value, dict):
        text = "{" + ", ".join(f"{key!r}: {abbreviate(item)}" for key, item in value.items()) + "}"
    elif type(value) in (list, tuple):
        text = f"[{', '.join(map(abbreviate, value[:MAX_CHARACTERS]))}]"
    else:
        text = value._summary() if hasattr(value, "_summary") else repr(value)
    if len(text) <= MAX_CHARACTERS and "\n" not in text:
        return text
    if isinstance(value, str):
        return text[: MAX_CHARACTERS - 1] + "…"
    return f"{len(value)} entries" if type(value) in (dict, list, tuple) else f"{type(value).__name__}(...)"


def format_fields(name: str, items: Iterable[tuple[str, Any]]) -> str:
    """Return `name(field=value, ...)` with short values, in lines of at most `WIDTH` characters."""
    text = ", ".join(f"{field}={abbreviate(value)}" for field, value in items)
    if len(name) + len(text) + 2 <= WIDTH:
        return f"{name}({text})"
    return "\n    ".join([f"{name}(", *wrap(f"{text},", WIDTH - 4, break_long_words=False)]) + "\n)"


def format_text(rows: Rows) -> str:
    """Format a table as text in columns; numbers are aligned right, words and the first column left."""
    columns = list(zip(*(row for row in rows if not isinstance(row, str)), strict=True))
    words = [k == 0 or column[-1][:1].isalpha() for k, column in enumerate(columns)]
    widths = [max(map(len, column)) for column in columns]

    def line(row: list[str]) -> str:
        columns = zip(row, widths, words, strict=True)
        return "  ".join(cell.ljust(width) if word else cell.rjust(width) for cell, width, word in columns).rstrip()

    return "\n".join(row if isinstance(row, str) else line(row) for row in rows)


class DisplayMixin:
    """Mixin for short displays: `repr` lists the fields, `str` gives a summary, notebooks show the summary.

    Classes that are not dataclasses or NamedTuples must define `_items`.
    """

    def __init_subclass__(cls) -> None:
        cls.__repr__ = DisplayMixin.__repr__  # type: ignore[method-assign]  # a dataclass would print whole arrays

    def __repr__(self) -> str:
        return format_fields(type(self).__name__, self._items())

    def __str__(self) -> str:
        return format_text(self._rows())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _items(self) -> list[tuple[str, Any]]:
        names = self._fields if isinstance(self, tuple) else [f.name for f in fields(self) if f.repr]  # type: ignore
        return [(name, getattr(self, name)) for name in names]

    def _rows(self) -> Rows:
        """Return the summary as rows; by default one row for each field."""
        return [type(self).__name__, *([f"  {name}", abbreviate(value)] for name, value in self._items())]
