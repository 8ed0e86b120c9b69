"""Hashes of everything that compiled methods of user-defined classes depend on, in all files.

Numba copies the functions that a method calls, and the values of the global variables that it reads, into the compiled
code, which may be used again only while none of them has changed. `hash_content` follows them from the methods of a
class: functions that numba compiles, their closures and default arguments, attributes of modules, arrays, and nested
classes. Libraries are identified by name: numba checks its version, and the stamp of kernels includes this package.
Anything else, for example an instance of a user-defined class that is no NamedTuple, is unknown, and code that depends
on it is not stored.
"""

import dis
from contextlib import suppress
from enum import Enum, EnumType
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core import types
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

from gamp_attention._tools.numerics import hash_bytes

LIBRARIES = frozenset({"builtins", "math", "cmath", "operator", "numpy", "scipy", "numba", "llvmlite"})
NAMED = (FunctionType, BuiltinFunctionType, type, np.ufunc, type(np.sum))  # objects that libraries define by name
PLAIN = (type(None), bool, int, float, complex, str, bytes)
METHODS: set[Any] = set()  # methods of user-defined classes that kernels call
_READ: dict[type, dict[Any, Any]] = {}  # descriptions of the outer values that classes read when they were first used


def hash_content(value: Any) -> str | None:
    """Return a hash of a class or function with everything that its compiled code depends on; None if unknown."""
    try:
        return hash_bytes(repr(Walk().describe(value)).encode())
    except LookupError:
        return None


def check_helpers(cls: type) -> None:
    """Stop numba from loading stored helper functions of a class, as it checks only the file that defines each."""
    walk = Walk()
    with suppress(LookupError):  # the functions up to there are known
        walk.describe(cls)
    for helper in walk.helpers:
        helper._cache.disable()


def require_unchanged(cls: type) -> None:
    """Raise ValueError if a value that a class reads from outside differs from the first call for this class.

    A process compiles the methods of a class only once, and the code contains the values at that time.
    """
    if cls.__module__.startswith("gamp_attention."):
        return
    walk = Walk()
    with suppress(LookupError):  # the values up to there are known
        walk.describe(cls)
    first = _READ.setdefault(cls, walk.read)
    changed = [key[-1] for key, value in walk.read.items() if first.get(key, value) != value]
    if changed:
        needs = "outer values that stay as they were when its methods were compiled"
        remedy = f"make it a field of {cls.__name__}, or define the class again"
        raise ValueError(f"{cls.__name__}: needs {needs}, got another value of {changed[0]!r}; {remedy}")


class Walk:
    """Description of values by plain tuples; functions and classes are described once, as they may refer to another."""

    def __init__(self) -> None:
        self.helpers: list[Any] = []  # functions that numba compiles, in the order in which they are found
        self.read: dict[Any, Any] = {}  # descriptions of outer values; keys are the function or module, and the name
        self._described: dict[int, Any] = {}
        cpu_target.typing_context.refresh()  # it then contains functions of `overload` and `register_jitable`

    def is_library(self, package: str) -> bool:
        """Return whether functions and classes of a package are identified by their names."""
        return package in LIBRARIES

    def describe(self, value: Any) -> Any:
        """Return plain data that is equal in two processes if and only if the values are."""
        kind = type(value)
        if kind in PLAIN:
            return kind.__name__, repr(value)
        if isinstance(value, Enum):
            return kind.__qualname__, value.name, self.describe(value.value)
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            array = np.asarray(value)
            layout = array.dtype.descr, array.shape, array.flags.c_contiguous, array.flags.f_contiguous
            return kind.__name__, layout, hash_bytes(array.tobytes())
        if isinstance(value, types.Type | np.dtype | slice | range):
            return kind.__name__, str(value)
        if isinstance(value, frozenset):
            return kind.__name__, sorted(map(repr, map(self.describe, value)))
        if isinstance(value, dict):
            return kind.__name__, [(self.describe(key), self.describe(item)) for key, item in value.items()]
        if isinstance(value, tuple | list):
            own = kind.__name__ if kind in (tuple, list) else self.describe(kind)
            return own, [self.describe(item) for item in value]
        if id(value) in self._described:
            return "described", list(self._described).index(id(value))
        self._described[id(value)] = value
        return self._describe_definition(value)

    def _describe_definition(self, value: Any) -> Any:
        """Return a description of a function, class or code."""
        library = str(getattr(value, "__module__", None) or "builtins").partition(".")[0]
        if isinstance(value, NAMED) and (library == "gamp_attention" or self.is_library(library)):
            return "library", getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__)
        if isinstance(value, CodeType):
            names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
            counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags
            return value.co_code, value.co_exceptiontable, names, counts, self.describe(value.co_consts)
        if isinstance(value, FunctionType):
            return self._describe_function(value)
        if isinstance(value, Dispatcher):
            if library == "gamp_attention":
                return "library", value.py_func.__module__, value.py_func.__qualname__
            self.helpers.append(value)
            given = not getattr(value, "_can_compile", True)  # argument types in the decorator convert arguments
            signatures = str(value.nopython_signatures) if given else None
            return "dispatcher", self.describe(value.targetoptions), signatures, self._describe_function(value.py_func)
        if isinstance(value, EnumType):
            return "enum", value.__qualname__, [self.describe(member) for member in value]  # type: ignore[var-annotated]
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            return self._describe_class(value)
        raise LookupError(repr(value))

    def _describe_class(self, cls: Any) -> Any:
        """Return a description of the fields, traits and compiled methods of a NamedTuple."""
        content = {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}
        methods = {key for key, value in content.items() if isinstance(value, FunctionType) and value in METHODS}
        used = [(k, v) for k, v in sorted(content.items()) if (type(v) in PLAIN and k[:2] != "__") or k in methods]
        fields = cls._fields, cls._field_defaults
        return "class", cls.__qualname__, self.describe(fields), [(k, self.describe(v)) for k, v in used]

    def _describe_function(self, function: Any) -> Any:
        """Return a description of a function and of all values that it reads from outside."""
        code, scope = function.__code__, function.__globals__
        outer = {name: scope[name] for name in _global_names(code) if name in scope}
        try:
            outer |= {n: c.cell_contents for n, c in zip(code.co_freevars, function.__closure__ or (), strict=True)}
        except ValueError:
            raise LookupError(f"{function.__qualname__}, which reads a variable without a value") from None
        read = self._describe_outer(f"{function.__module__}.{function.__qualname__}", outer, _names(code))
        # numba compiles these functions in place of a function that is decorated by `overload` or `register_jitable`
        templates = getattr(cpu_target.typing_context._lookup_global(function), "templates", ())
        compiled = [template._overload_func for template in templates if hasattr(template, "_overload_func")]
        return (
            "function", self.describe(code), self.describe((function.__defaults__, function.__kwdefaults__)), read,
            [self._describe_function(f) for f in compiled],
        )  # fmt: skip

    def _describe_outer(self, owner: str, outer: dict[str, Any], names: frozenset[str]) -> list[Any]:
        """Return descriptions of the outer values of a function or module; for modules, of attributes with `names`."""
        read = []
        for name, value in sorted(outer.items()):
            if not isinstance(value, ModuleType):
                described = self.describe(value)
            elif self.is_library(value.__name__.partition(".")[0]) or id(value) in self._described:
                described = "module", value.__name__
            else:
                self._described[id(value)] = value
                attributes = {name: getattr(value, name) for name in names if hasattr(value, name)}
                described = "module", self._describe_outer(value.__name__, attributes, names)
                del self._described[id(value)]  # another function may read other attributes
            self.read[owner, name] = described
            read.append((name, described))
        return read


@lru_cache
def _names(code: CodeType) -> frozenset[str]:
    """Return the names of global variables and attributes in a function and in the functions inside of it."""
    return frozenset(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


@lru_cache
def _global_names(code: CodeType) -> frozenset[str]:
    """Return the names of global variables that a function and the functions inside of it read."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return frozenset(names).union(*(_global_names(c) for c in code.co_consts if isinstance(c, CodeType)))
