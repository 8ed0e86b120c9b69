"""Classes whose methods become part of kernels: a registry of each kind, and their faults told in one line."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any

from numba.core.errors import NumbaError, UnsupportedBytecodeError
from numba.core.ir import Loc

from gamp_attention._core import check
from gamp_attention._core.compiled import user_kernel

PACKAGE = Path(__file__).parent.parent
FAULTS = (AttributeError, IndexError, NameError, ValueError, TypeError, ZeroDivisionError)


@dataclass
class Registry:
    """NamedTuples of one kind: their compiled methods, and traits that have a default where a class has none."""

    function: str  # that registers, for messages
    needed: tuple[str, ...]  # signatures of the methods that a class has
    traits: dict[str, Any]  # default of each trait
    optional: tuple[str, ...] = ()  # names of the methods that a class may have
    compiled_in: tuple[str, ...] = ()  # traits that are True or False for the class
    _methods: dict[type, dict[str, Any]] = field(default_factory=dict)

    def complete(self, cls: Any) -> None:
        """Raise unless a class has what it needs, and give it the traits that it does not name."""
        if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
            raise check.fail(self.function, cls, "a class derived from typing.NamedTuple", TypeError)
        missing = [each for each in self.needed if not callable(vars(cls).get(_name(each)))]
        if missing:
            raise TypeError(f"{self.function}: {cls.__name__} needs a method {' and one '.join(missing)}")
        for trait, default in self.traits.items():
            if not hasattr(cls, trait):
                setattr(cls, trait, default)
        for trait in self.compiled_in:
            if not isinstance(getattr(cls, trait), bool):
                needs = "True or False for the class, as it is compiled in"
                raise check.fail(f"{cls.__name__}.{trait}", getattr(cls, trait), needs, TypeError)

    def add(self, cls: Any) -> None:
        """Make a class known to compiled code, once it is complete."""
        self.complete(cls)
        methods = [*map(_name, self.needed), *self.optional]
        self._methods[cls] = {each: user_kernel(vars(cls)[each]) for each in methods if each in vars(cls)}

    def __contains__(self, cls: Any) -> bool:
        return cls in self._methods

    def method(self, numba_type: Any, name: str) -> Any:
        """A compiled method of the class that a numba type stands for; None where it has none or is not registered."""
        return self._methods.get(getattr(numba_type, "instance_class", object), {}).get(name)


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
    TypeError : with the method, the cause and the line of the user's file, if numba cannot compile the method or if it
        fails when it is called.
    """
    about = f"; {shapes}" if shapes else ""
    try:
        return call(*arguments)
    except (NumbaError, UnsupportedBytecodeError) as error:
        needs = "code that numba compiles" + (f" and that returns {returns}" if returns else "")
        raise TypeError(f"{method}: needs {needs}, got: {_cause(str(error))}{about}") from None
    except FAULTS as error:
        line = _line_compiled(error)
        needs = "code that numba compiles" if line else "to run on arguments of the model's shapes"
        raise TypeError(f"{method}: needs {needs}, got {type(error).__name__}: {error}{line}{about}") from error


def _line_compiled(error: Exception) -> str:
    """Return the line of the user's code that numba was compiling when a plain Python error stopped it, or ""."""
    compiled = [getattr(frame.f_locals.get("self"), "loc", None) for frame, _ in walk_tb(error.__traceback__)]
    return _first_outside([(loc.filename, loc.line) for loc in compiled if isinstance(loc, Loc)])


def _first_outside(places: Iterable[tuple[str, Any]]) -> str:
    """Return the first of some (file, line) that is in the user's code, as text, or ""."""
    own = [(file, line) for file, line in places if "/numba/" not in file and str(PACKAGE) not in file]
    return f" (line {own[0][1]} of {Path(own[0][0]).name})" if own else ""


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
