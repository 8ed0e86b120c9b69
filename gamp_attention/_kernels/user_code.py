"""Registries of user-defined classes whose methods are compiled into kernels, and messages about their errors."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any

from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.ir import Loc

from gamp_attention._kernels.compiled import user_kernel
from gamp_attention._kernels.content import check_helpers
from gamp_attention._tools import check

PACKAGE = Path(__file__).parent.parent
ERRORS = (AttributeError, IndexError, NameError, ValueError, TypeError, ZeroDivisionError)


@dataclass
class Registry:
    """Registered NamedTuples of one kind, with their compiled methods and default values of their traits."""

    function: str  # name of the function that registers classes, for messages
    needed: tuple[str, ...]  # signatures of the methods that a class must have
    traits: dict[str, Any]  # default value of each trait
    optional: tuple[str, ...] = ()  # names of the methods that a class may have
    compiled_in: tuple[str, ...] = ()  # traits that are True or False for the class
    _methods: dict[type, dict[str, Any]] = field(default_factory=dict)

    def add(self, cls: Any, compiler: Callable[[Any], Any] = user_kernel) -> None:
        """Register a class, so that kernels can call its methods, and set the traits that it does not define.

        `inline_kernel` compiles methods without arrays. Raise unless the class has all required methods.
        """
        if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
            raise check.fail(self.function, cls, "a class derived from typing.NamedTuple", TypeError)
        missing = [method for method in self.needed if not callable(vars(cls).get(_name(method)))]
        if missing:
            raise TypeError(f"{self.function}: {cls.__name__} needs a method {' and a method '.join(missing)}")
        for trait, default in self.traits.items():
            if not hasattr(cls, trait):
                setattr(cls, trait, default)
        for trait in self.compiled_in:
            if not isinstance(getattr(cls, trait), bool):
                needs = "True or False for the class, as it is compiled in"
                raise check.fail(f"{cls.__name__}.{trait}", getattr(cls, trait), needs, TypeError)
        methods = [*map(_name, self.needed), *self.optional]
        self._methods[cls] = {name: compiler(vars(cls)[name]) for name in methods if name in vars(cls)}
        check_helpers(cls)

    def method(self, numba_type: Any, name: str) -> Any:
        """Return a compiled method of the class of a numba type, or of a base of it; None if there is none."""
        bases = getattr(numba_type, "instance_class", object).__mro__
        return next((self._methods[base].get(name) for base in bases if base in self._methods), None)


def _name(signature: str) -> str:
    return signature.partition("(")[0]


def attempt(method: str, call: Callable[..., Any], *arguments: Any, returns: str = "", shapes: str = "") -> Any:
    """Return the result of a kernel that calls a user's method.

    Parameters
    ----------
    method : name of the class and the method, for messages.
    call, arguments : the kernel and its arguments.
    returns : what the method has to return, for messages.
    shapes : shapes of the method's arguments, for messages.

    Raises
    ------
    TypeError : if numba cannot compile the method, or if the method fails when it is called. The message contains the
        method, the cause and the line of the user's file.
    """
    about = f"; {shapes}" if shapes else ""
    try:
        return call(*arguments)
    except (NumbaError, UnsupportedBytecodeError) as error:
        needs = "code that numba compiles" + (f" and that returns {returns}" if returns else "")
        raise TypeError(f"{method}: needs {needs}, got: {_cause(str(error))}{about}") from None
    except ERRORS as error:
        line = _line_compiled(error)
        needs = "code that numba compiles" if line else "to run on arguments of the model's shapes"
        raise TypeError(f"{method}: needs {needs}, got {type(error).__name__}: {error}{line}{about}") from error


def _line_compiled(error: Exception) -> str:
    """Return the line of the user's code that numba was compiling when a plain Python error stopped it, or ""."""
    compiled = [getattr(frame.f_locals.get("self"), "loc", None) for frame, _ in walk_tb(error.__traceback__)]
    return _first_outside([(loc.filename, loc.line) for loc in compiled if isinstance(loc, Loc)])


def _first_outside(places: Iterable[tuple[str, Any]]) -> str:
    """Return the first of some (file, line) that is in the user's code, as text, or ""."""
    outside = [(file, line) for file, line in places if "/numba/" not in file and str(PACKAGE) not in file]
    return f" (line {outside[0][1]} of {Path(outside[0][0]).name})" if outside else ""


def _cause(message: str) -> str:
    """Return the cause of a numba error, and the line of the user's code, out of the report of all attempts."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", message).splitlines() if line.strip()]
    inner = [k + 1 for k, line in enumerate(lines[:-1]) if "Failed in nopython mode" in line]
    lines_inside = lines[inner[-1] if inner else 0 :]
    cause = lines_inside[0]
    if cause.endswith("found for signature:"):
        calls = [line.removeprefix(">>> ") for line in lines_inside if line.startswith(">>> ")]
        cause = f"numba cannot compile {calls[0]}" if calls else cause
        reasons = [k + 1 for k, line in enumerate(lines_inside[:-1]) if line.endswith("raised a specific error:")]
        if reasons:
            cause += f": {lines_inside[reasons[0]].partition(': ')[2]}"
    if cause.startswith("Untyped global name") and "<class 'function'>" in cause:
        cause += ", decorate this function with numba.njit"
    text = "\n".join(lines)
    places = re.findall(r" at (\S.*) \((\d+)\)$", text, re.MULTILINE) + re.findall(r'File "(.+)", line (\d+):', text)
    return cause + _first_outside(places)
