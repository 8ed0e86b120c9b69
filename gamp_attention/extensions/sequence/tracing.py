"""Tracing of plain Python functions: conversion of a function of arrays to a `Program`.

`trace` calls a function with arrays of `Number` objects. Arithmetic, functions of numpy, `math` and `scipy.special`,
loops and indexing work on these as they do on floats, and each operation is recorded in a `Graph`. The function is
called with copies of itself and of its helper functions (`_Rebinder`), in which `np.zeros` and similar functions return
arrays that can contain recorded numbers. An `if` that depends on the arguments is traced once for each outcome, and the
results are combined by a choice, up to `MAX_BRANCHES` combinations of outcomes.
"""

import builtins
import functools
import math
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeGuard

import numpy as np
from scipy import special

from gamp_attention.extensions.sequence.expressions import (
    CONDITIONS,
    FROM_MATH,
    OPERATIONS,
    UNDIFFERENTIATED,
    Graph,
    Program,
    UntraceableError,
)

MAX_BRANCHES = 64  # maximum number of combinations of outcomes of conditions in one function
MAX_OPERATIONS = 200_000  # maximum number of recorded operations


class _Recorder:
    """A graph, and the outcomes of the conditions that the traced function has evaluated."""

    def __init__(self, n_inputs: int, differentiated: Sequence[int]) -> None:
        self.graph = Graph(n_inputs)
        self.differentiated = differentiated  # inputs in which derivatives must exist
        self.outcomes: dict[int, bool] = {}  # prescribed outcome of each condition
        self.asked: list[int] = []  # conditions without a prescribed outcome, which counted as True
        self.n_branches = 0

    def record(self, name: str, *values: Any) -> "Number":
        """Record an operation on recorded numbers and plain numbers."""
        if len(self.graph.code) > MAX_OPERATIONS:
            raise UntraceableError(f"needs at most {MAX_OPERATIONS} operations, got more; use smaller arrays")
        indices = [self.index(value) for value in values]
        if name not in ("and", "or", "not"):  # a condition in arithmetic counts as 1 or 0
            first = int(name == "where")
            indices[first:] = [self._as_float(k) for k in indices[first:]]
        result = self.graph.apply(name, *indices)
        for variable in self.differentiated if name in UNDIFFERENTIATED else ():
            self.graph.derivative(result, variable)  # raises if it depends on this input
        return Number(self, result)

    def index(self, value: Any) -> int:
        """Return the index of a recorded number, or of a constant."""
        if _is_number(value):
            return value.index
        if isinstance(value, (bool, int, float, np.bool_, np.number)) and not isinstance(value, complex):
            return self.graph.constant(float(value))
        raise UntraceableError(f"needs real numbers, got {type(value).__name__}")

    def decide(self, index: int) -> bool:
        """Return the outcome of a condition on the path that is being traced."""
        value = self.graph.value(index)
        if value is not None:
            return bool(value)
        if self.graph.code[index][0] not in CONDITIONS:
            index = self.graph.apply("not", self.graph.apply("eq", index, self.graph.constant(0.0)))
        if index not in self.outcomes:
            self.outcomes[index] = True
            self.asked.append(index)
        return self.outcomes[index]

    def _as_float(self, index: int) -> int:
        if self.graph.code[index][0] not in CONDITIONS:
            return index
        return self.graph.apply("where", index, self.graph.constant(1.0), self.graph.constant(0.0))


class _Traced:
    """Base of numbers and arrays on which functions of numpy are recorded."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _call_ufunc(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _call_function(function, args, kwargs)


class Number(_Traced, np.lib.mixins.NDArrayOperatorsMixin):
    """A recorded number: an argument of a traced function, or the result of operations on such arguments."""

    __slots__ = ("index", "recorder")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recorder: _Recorder, index: int) -> None:
        self.recorder, self.index = recorder, index

    def __bool__(self) -> bool:
        return self.recorder.decide(self.index)

    def _refuse(self, *_: Any) -> Any:
        raise UntraceableError(
            "cannot use a number that depends on the arguments as an index, a Python int or a Python float; "
            "use np.where to choose between values"
        )

    __float__ = __int__ = __index__ = __complex__ = __round__ = _refuse

    # attributes of numpy's numbers, which functions may read
    shape, ndim, size = (), 0, 1
    T = property(lambda self: self)

    def item(self) -> "Number":
        """Return the number itself, as numbers of numpy do."""
        return self

    sum = max = min = mean = copy = item


class Numbers(_Traced, np.ndarray):
    """Array of recorded and plain numbers."""

    def astype(self, *args: Any, **kwargs: Any) -> Any:
        """Return a copy: recorded numbers have no other type."""
        return self.copy()


def _is_number(value: Any) -> TypeGuard[Number]:
    return isinstance(value, Number)


def _is_array(value: Any) -> TypeGuard[Numbers]:
    return isinstance(value, Numbers)


def _operation(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of single numbers that records an operation if a number is recorded."""

    def apply(*values: Any) -> Any:
        for value in values:
            if _is_number(value):
                return value.recorder.record(name, *values)
        return plain(*values)

    return apply


_where = _operation("where", lambda condition, a, b: a if condition else b)


def _maximum(a: Any, b: Any) -> Any:
    return _where(np.less(a, b), b, a)


def _minimum(a: Any, b: Any) -> Any:
    return _where(np.less(b, a), b, a)


def _xlogy(x: Any, y: Any) -> Any:
    """Return x log y, and 0 at x = y = 0, with the derivative in x at the smallest positive number."""
    if not (_is_number(x) or _is_number(y)):
        return special.xlogy(x, y)
    both_zero = np.logical_and(np.equal(x, 0.0), np.equal(y, 0.0))
    return x * np.log(_where(both_zero, math.ulp(0.0), y))


_UFUNCS: dict[Any, Callable[..., Any]] = {
    ufunc: _operation(name, ufunc) for name, ufunc in OPERATIONS.items() if isinstance(ufunc, np.ufunc)
}
_UFUNCS |= {
    np.fabs: _operation("abs", np.fabs), np.float_power: _operation("pow", np.float_power),
    np.bitwise_and: _operation("and", np.bitwise_and), np.bitwise_or: _operation("or", np.bitwise_or),
    np.invert: _operation("not", np.invert),
    np.greater: lambda a, b: np.less(b, a),
    np.greater_equal: lambda a, b: np.less_equal(b, a),
    np.not_equal: lambda a, b: np.logical_not(np.equal(a, b)),
    np.maximum: _maximum, np.fmax: _maximum, np.minimum: _minimum, np.fmin: _minimum,
    np._core.umath.clip: lambda x, low, high: _minimum(_maximum(x, low), high),  # type: ignore[attr-defined]
    np.square: lambda x: x * x,
    np.positive: lambda x: x,
    np.conjugate: lambda x: x,
    np.exp2: lambda x: np.exp(x * math.log(2)),
    np.log2: lambda x: np.log(x) / math.log(2),
    np.log10: lambda x: np.log(x) / math.log(10),
    np.logaddexp2: lambda a, b: np.logaddexp(a * math.log(2), b * math.log(2)) / math.log(2),
    special.ndtr: lambda x: 0.5 * special.erfc(x * -math.sqrt(0.5)),
    special.log_expit: lambda x: -np.logaddexp(0.0, -x),
    special.log_ndtr: lambda x: np.log(0.5 * special.erfc(x * -math.sqrt(0.5))),
    special.xlogy: _xlogy,
    special.huber: lambda delta, r: _where(
        np.less_equal(abs(r), delta), 0.5 * r * r, delta * (abs(r) - 0.5 * delta)
    ),
    special.logit: lambda x: np.log(x) - np.log1p(-x), special.cbrt: _operation("cbrt", np.cbrt),
    special.log1p: _operation("log1p", np.log1p), special.expm1: _operation("expm1", np.expm1),
}  # fmt: skip
_IDENTITIES = {np.add: 0, np.multiply: 1, np.logical_or: False, np.logical_and: True}
_ELEMENTWISE = {
    ufunc: np.frompyfunc(function, ufunc.nargs - 1, 1, identity=_IDENTITIES.get(ufunc))
    for ufunc, function in _UFUNCS.items()
}
_SELECT = np.frompyfunc(_where, 3, 1)


def _plain(value: Any) -> Any:
    """Return an object array of the elements of an argument."""
    return np.asarray(value, dtype=object)


def _wrap_result(result: Any) -> Any:
    """Return an array as `Numbers`, and the element of an array without dimensions."""
    if not isinstance(result, np.ndarray):
        return result
    return result[()] if result.ndim == 0 else result.view(Numbers)


def _is_recorded(value: Any) -> bool:
    """Return whether an argument contains a recorded number."""
    if isinstance(value, np.ndarray):
        return value.dtype == object and any(_is_number(element) for element in value.flat)
    if isinstance(value, (list, tuple)):
        return any(map(_is_recorded, value))
    return _is_number(value)


def _as_floats(value: Any) -> Any:
    """Return an argument without recorded numbers in numpy's own types."""
    if _is_array(value):
        return np.array(value.view(np.ndarray).tolist(), dtype=float).reshape(value.shape)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_floats, value))
    return value


def _call_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the result of a function of numpy that acts element by element, or of its reduction."""
    out = options.pop("out", None)
    options = {key: value for key, value in options.items() if key not in ("dtype", "casting", "order", "subok")}
    arguments = [_plain(value) for value in inputs]
    if ufunc is np.matmul and method == "__call__":
        result = np.matmul(*arguments, **options)
    elif ufunc in _ELEMENTWISE:
        result = getattr(_ELEMENTWISE[ufunc], method)(*arguments, **options)
    elif not any(map(_is_recorded, arguments)):
        result = getattr(ufunc, method)(*map(_as_floats, inputs), **options)
    else:
        raise UntraceableError(f"cannot differentiate {ufunc.__name__}; write it with other functions")
    if out is None or _is_number(out[0]):  # x += y makes a new number
        return _wrap_result(result)
    if not _is_array(out[0]):
        raise UntraceableError("cannot write numbers that depend on the arguments into an array made outside")
    out[0][...] = result
    return out[0]


def _call_function(function: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of any other function of numpy."""
    if function is np.where and len(args) == 3 and not kwargs:
        return _wrap_result(_SELECT(*map(_plain, args)))
    if function in _REPLACED:
        return _REPLACED[function](*args, **kwargs)
    try:
        result = function._implementation(*args, **kwargs)
    except UntraceableError:
        raise
    except TypeError as error:
        if not _is_recorded(args) and not _is_recorded(tuple(kwargs.values())):
            return function(*map(_as_floats, args), **{key: _as_floats(value) for key, value in kwargs.items()})
        raise UntraceableError(
            f"cannot differentiate np.{function.__name__} ({error}); write it with other functions"
        ) from error
    return _wrap_result(result) if isinstance(result, np.ndarray) and result.dtype == object else result


def _array_maker(function: Any) -> Callable[..., Any]:
    """Return a function of numpy that makes arrays, so that arrays of floats can contain recorded numbers."""

    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> Any:
        if function in (np.array, np.asarray, np.ascontiguousarray, np.copy) and _is_recorded(args[0]):
            return args[0] if _is_number(args[0]) else _wrap_result(np.array(args[0], dtype=object))
        if function is np.full and _is_recorded(args[1:2]):
            result = np.empty(args[0], dtype=object)
            result[...] = _plain(args[1])
            return _wrap_result(result)
        # functions such as np.ones_like need the shape of a recorded array or number, not its content
        args = tuple(np.empty(a.shape) if hasattr(a, "shape") and _is_recorded(a) else _as_floats(a) for a in args)
        result = function(*args, **kwargs)
        return result.astype(object).view(Numbers) if result.ndim and result.dtype.kind == "f" else result

    return make


def softmax(x: Any, axis: Any = None) -> Any:
    """Return the softmax of recorded numbers, as `scipy.special.softmax`."""
    weights = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return weights / np.sum(weights, axis=axis, keepdims=True)


def logsumexp(x: Any, axis: Any = None, b: Any = 1.0, keepdims: bool = False) -> Any:
    """Return log Σ b exp(x) of recorded numbers, as `scipy.special.logsumexp`."""
    top = np.max(x, axis=axis, keepdims=True)
    result = top + np.log(np.sum(b * np.exp(x - top), axis=axis, keepdims=True))
    return result if keepdims else np.sum(result, axis=axis)


def log_softmax(x: Any, axis: Any = None) -> Any:
    """Return the logarithm of the softmax of recorded numbers, as `scipy.special.log_softmax`."""
    return x - logsumexp(x, axis=axis, keepdims=True)


_REPLACED: dict[Any, Any] = {
    function: _array_maker(function)
    for function in (
        np.array, np.asarray, np.ascontiguousarray, np.copy, np.zeros, np.ones, np.empty, np.full, np.zeros_like,
        np.ones_like, np.empty_like, np.full_like, np.eye, np.identity, np.diag,
    )
} | {
    special.softmax: softmax, special.logsumexp: logsumexp, special.log_softmax: log_softmax,
    math.cbrt: np.cbrt, math.floor: np.floor,
}  # fmt: skip
_REPLACED |= {function: OPERATIONS[name] for name, function in FROM_MATH.items() if name in OPERATIONS}
_REPLACED[np.diag] = lambda v, k=0: _wrap_result(np.diag(_plain(v), k))


class _Module:
    """Stand-in for a module, whose functions are replaced as in `_Rebinder.convert`."""

    def __init__(self, module: ModuleType, rebinder: "_Rebinder") -> None:
        self._module, self._rebinder = module, rebinder

    def __getattr__(self, name: str) -> Any:
        return self._rebinder.convert(getattr(self._module, name))


class _Rebinder:
    """Copies of functions whose global names and closures refer to replaced functions."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}  # functions, so that their identities stay valid, and their copies

    def convert(self, value: Any) -> Any:
        """Return the value that a traced function receives in place of a value outside of it."""
        if isinstance(value, ModuleType):
            return value if value is builtins else _Module(value, self)
        try:
            if value in _REPLACED:
                return _REPLACED[value]
        except TypeError:  # not hashable
            return value
        python = getattr(value, "py_func", value)  # the function that numba compiles
        if isinstance(value, functools.partial):
            return functools.partial(self.convert(value.func), *map(self.convert, value.args), **value.keywords)
        if isinstance(python, MethodType):
            return MethodType(self.convert(python.__func__), python.__self__)
        if isinstance(python, FunctionType):
            library = (python.__module__ or "").partition(".")[0]
            return python if library in ("numpy", "scipy", "functools", "gamp_attention") else self._copy(python)
        return value

    def callable(self, function: Any) -> Any:
        """Return a copy of any callable object."""
        converted = self.convert(function)
        if converted is function and not isinstance(function, (type, np.ufunc)):
            call = getattr(type(function), "__call__", None)  # noqa: B004
            if isinstance(call, FunctionType):
                return MethodType(self._copy(call), function)
        return converted

    def _copy(self, function: FunctionType) -> FunctionType:
        if id(function) not in self._copies:
            names = _global_names(function.__code__)
            scope: dict[str, Any] = {"__builtins__": builtins, "__name__": function.__module__}
            closure = tuple(CellType() for _ in function.__closure__ or ())
            copy = FunctionType(function.__code__, scope, function.__name__, None, closure)
            self._copies[id(function)] = function, copy  # before the names are converted: functions may call each other
            scope.update({n: self.convert(function.__globals__[n]) for n in names if n in function.__globals__})
            copy.__defaults__ = tuple(map(self.convert, function.__defaults__ or ()))
            copy.__kwdefaults__ = {name: self.convert(v) for name, v in (function.__kwdefaults__ or {}).items()}
            for cell, original in zip(closure, function.__closure__ or (), strict=True):
                try:
                    cell.cell_contents = self.convert(original.cell_contents)
                except ValueError:  # an empty cell
                    continue
        return self._copies[id(function)][1]


def _global_names(code: CodeType) -> set[str]:
    """Return the names that a function and the functions inside of it may read from the module."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def trace(function: Any, shapes: Sequence[tuple[int, ...]], differentiated: Sequence[int] = ()) -> Program:
    """Return the program of a function of arrays of given shapes.

    The inputs of the program are the entries of all arguments, one argument after the other in row-major order. Its
    outputs are the entries of the result. Derivatives in the arguments with the numbers `differentiated` must exist.

    Raises
    ------
    UntraceableError : if the function uses an operation that cannot be recorded or differentiated.
    Any exception of the function itself.
    """
    sizes = [math.prod(shape) for shape in shapes]
    argument = np.repeat(range(len(sizes)), sizes)
    variables = np.flatnonzero(np.isin(argument, differentiated)).tolist()
    recorder, rebound = _Recorder(sum(sizes), variables), _Rebinder().callable(function)
    inputs = np.empty(sum(sizes), dtype=object)
    inputs[:] = [Number(recorder, k) for k in recorder.graph.inputs]
    parts = np.split(inputs, np.cumsum(sizes)[:-1])

    def run(outcomes: dict[int, bool]) -> np.ndarray:
        """Trace the function with given outcomes of conditions, and all paths that begin with these outcomes."""
        recorder.n_branches += 1
        if recorder.n_branches > MAX_BRANCHES:
            raise UntraceableError(
                f"cannot trace more than {MAX_BRANCHES} combinations of outcomes of its conditions; use np.where, "
                "np.maximum or np.minimum in place of if, max, min or sorting"
            )
        recorder.outcomes, recorder.asked = dict(outcomes), []
        arguments = [part.reshape(shape).copy().view(Numbers) for part, shape in zip(parts, shapes, strict=True)]
        result = _plain(rebound(*arguments))
        asked = recorder.asked
        for number in reversed(range(len(asked))):
            others = run(outcomes | dict.fromkeys(asked[:number], True) | {asked[number]: False})
            if others.shape != result.shape:
                raise UntraceableError(f"needs one shape of its result, got {result.shape} and {others.shape}")
            condition = Number(recorder, asked[number])
            result = _plain(_SELECT(_plain(condition), result, others))
        return result

    return recorder.graph.program([recorder._as_float(recorder.index(value)) for value in run({}).flat])
