"""Layout of docstrings on the API pages: types from the annotations next to each name, and descriptions below.

A docstring of the package writes `name : description`, and types are annotations. Numpydoc expects `name : type` with
the description below, and would print the first line of a description as if it were a type.
"""

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

import gamp_attention as ga
from validation._tools.names import EVERY

NAMED = ("Parameters", "Attributes")  # sections of entries `name : description`
RAISED = ("Raises", "Warns")  # sections of entries `error : condition`
RETURNED = ("Returns", "Yields")  # sections of entries `type`, perhaps with a description
WORDS: dict[Any, str] = {Any: "", inspect.Parameter.empty: "", None: "None", type(None): "None", np.ndarray: "array"}
ARRAY_LIKE = set(typing.get_args(ArrayLike))


def layout_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the entries of a docstring in place; runs on `autodoc-process-docstring`, before numpydoc."""
    lines[:] = rewrite_entries(lines, lambda entry: describe_type(thing, entry))


def rewrite_entries(lines: list[str], type_of: Callable[[str], str]) -> list[str]:
    """Return the lines of a docstring with types beside the names of all entries and descriptions below them.

    Parameters
    ----------
    lines : lines of a docstring in the style of the package.
    type_of : returns the text of the type of a parameter or attribute; empty if it is unknown.
    """
    rewritten: list[str] = []
    section, in_entry = "", False
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", following.strip()) and line.strip():
            section, in_entry = line.strip(), False
        elif section in NAMED + RAISED and (match := re.match(r"(\*{0,2}\w[\w*., ]*) : (.+)", line)):
            names, text = match.groups()
            kind = type_of(names) if section in NAMED else ""
            rewritten += [f"{names} : {kind}" if kind else names, f"    {_start_sentence(text)}"]
            in_entry = True
            continue
        elif section in RETURNED and line and not line.startswith((" ", "-")):
            rewritten += [f"    {line}"] if in_entry else _split_return(line)
            in_entry = True
            continue
        elif section and in_entry and line.strip():
            line = f"    {line.strip()}"
        rewritten.append(line)
    return rewritten


def _start_sentence(text: str) -> str:
    """Return a description with a capital first letter, if it begins with a lower-case English word."""
    return text[0].upper() + text[1:] if re.match(r"[a-z]{2,}[ ,:.;]|a ", text) and " " in text else text


def _split_return(text: str) -> list[str]:
    """Return the type of a returned object and, below it, its description."""
    if " : " in text:  # several types, then a description
        names, description = text.split(" : ", 1)
        return [", ".join(map(_link, names.split(", "))), f"    {_start_sentence(description)}"]
    match = re.fullmatch(r"((?:list of )?)([A-Z]\w+)(?:, | (?=with ))(.+)", text)
    if match:
        return [match[1] + _link(match[2]), f"    {_start_sentence(match[3])}"]
    return [re.sub(r"^[A-Z]\w+", lambda word: _link(word[0]), text)]


def _link(name: str) -> str:
    """Return a link to a public class; the name of any other class."""
    return f":class:`~gamp_attention.{name}`" if name in EVERY else name


def describe_type(thing: Any, names: str) -> str:
    """Return the text of the type and the default of an entry; several names must have the same type."""
    texts = list(dict.fromkeys(_describe_name(thing, name.strip(" *")) for name in names.split(",")))
    return texts[0] if len(texts) == 1 else ""


def get_parameters(thing: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function or class, with evaluated annotations if their names are defined."""
    try:
        return dict(inspect.signature(thing, eval_str=True).parameters)
    except NameError:  # a name that only type checkers import
        return dict(inspect.signature(thing).parameters)


def get_annotations(thing: Any) -> dict[str, Any]:
    """Return the evaluated annotations of a function or class; names of public classes need not be imported."""
    public = {name: getattr(ga, name) for name in ga.__all__}
    return inspect.get_annotations(thing, globals=public | vars(sys.modules[thing.__module__]), eval_str=True)


def _describe_name(thing: Any, name: str) -> str:
    try:
        parameter = get_parameters(thing).get(name)
    except (TypeError, ValueError):
        parameter = None
    if parameter is not None:
        return _describe_parameter(parameter)
    attribute = inspect.getattr_static(thing, name, None)
    function = getattr(attribute, "fget", getattr(attribute, "func", None))
    if function is not None:
        return format_type(get_annotations(function).get("return", Any))
    for cls in getattr(thing, "__mro__", ()):
        if name in (annotations := get_annotations(cls)):
            return format_type(annotations[name])
    return ""


def _describe_parameter(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if parameter.default is None:
        others = tuple(kind for kind in typing.get_args(annotation) if kind is not type(None))
        text = _join_alternatives(others) if _is_union(annotation) else format_type(annotation)
        return f"{text}, optional" if text else "optional"
    text = format_type(annotation)
    if isinstance(parameter.default, bool | int | float | str):
        return ", ".join(filter(None, (text, f"default {parameter.default!r}")))
    return text


def format_type(annotation: Any) -> str:
    """Return an annotation in words: "float or array", "list of str", with links to public classes."""
    if isinstance(annotation, str):
        return ", ".join(_link(word.strip()) for word in annotation.split(",")) if annotation.isidentifier() else ""
    if annotation in WORDS:
        return WORDS[annotation]
    if annotation == DTypeLike:
        return "dtype"
    if _is_union(annotation):
        return _join_alternatives(typing.get_args(annotation))
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is not None and origin is not type:
        return _format_generic(origin, [argument for argument in arguments if argument is not Ellipsis])
    if origin is type:
        return "class"
    return _format_class(annotation)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _join_alternatives(alternatives: Sequence[Any]) -> str:
    """Return the alternatives of a union; numpy's array_like is a union of many types, among which `str` is last."""
    words = []
    if set(alternatives) >= ARRAY_LIKE:
        words = ["str", "array_like"] if alternatives[0] is str else ["array_like"]
        alternatives = [kind for kind in alternatives if kind not in ARRAY_LIKE]
    words += [format_type(kind) for kind in alternatives]
    if not all(words):
        return ""
    words = sorted(dict.fromkeys(words), key=lambda word: word == "None")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _format_generic(origin: Any, arguments: list[Any]) -> str:
    name = {"tuple": "tuple", "list": "list", "dict": "dict"}.get(origin.__name__, origin.__name__)
    if name == "Callable":
        return "callable"
    plain = {"Sequence": "sequence", "Mapping": "mapping", "Iterable": "iterable"}.get(name, name)
    items = list(dict.fromkeys(format_type(argument) for argument in arguments))
    if name == "Unpack":
        return ""
    if plain in ("dict", "mapping") or not all(items):
        return plain
    return f"{plain} of {' and '.join(items)}"


def _format_class(annotation: Any) -> str:
    name = getattr(annotation, "__name__", "")
    if getattr(annotation, "__module__", "").startswith("gamp_attention"):
        return _link(name)
    if name == "Generator" and annotation is np.random.Generator:
        return "numpy Generator"
    return name
