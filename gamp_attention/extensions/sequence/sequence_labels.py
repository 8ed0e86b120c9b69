"""Label models of sequence models: targets that are functions of the teacher's fields, of noise, and of a class.

User functions of a sample are checked, with messages that name them: `UserFunction` calls a function with random
numbers, checks its result, and traces it into a list of operations (`gamp_attention.extensions.sequence.tracing`).
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention.extensions.sequence.expressions import Program, evaluate_rows
from gamp_attention.extensions.sequence.tracing import UntraceableError, trace

PROBE_SIZES = (0.7, 1.0, 4.0)  # standard deviations of the random arguments on which functions are checked
DIFFERENTIATED = "z", "prediction"  # names of arguments in which derivatives are needed
TRACE_ERROR = 1e-9  # allowed relative difference between a function and its traced form


class UserFunction:
    """A user's function of arrays, with checks whose messages name it.

    Parameters
    ----------
    name : name of the argument of `sequence_model`.
    function : the function, or a function compiled by numba.
    arguments : shape of each argument, by name.
    words : the same shapes in words.
    c : a last argument with this value, which messages call c; none if not given.
    tried : values of arguments by name, at which the function is checked; others are random.

    Attributes
    ----------
    function : the function with the last argument filled in, without compilation by numba.
    shapes : words on the shapes of the arguments, for messages.
    """

    def __init__(
        self, name: str, function: Any, arguments: dict[str, tuple[int, ...]], *words: str, c: int | None = None,
        tried: dict[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        signature = f"{name}({', '.join([*arguments, *([] if c is None else ['c'])])})"
        if not callable(function):
            raise check.fail(name, function, f"a function {signature}", TypeError)
        plain = getattr(function, "py_func", function)
        self.name, self.arguments = name, arguments
        self.function = plain if c is None else partial(_call_with, plain, c)
        shapes = zip(arguments.items(), words, strict=True)
        self.shapes = f"in {signature}, " + " and ".join(f"{k} has shape {word} = {v}" for (k, v), word in shapes)
        rng = np.random.default_rng(3)
        self._probes = [[size * rng.standard_normal(shape) for shape in arguments.values()] for size in PROBE_SIZES]
        self._tried = tried or {}
        for k, key in enumerate(arguments):
            for probe, value in zip(self._probes, self._tried.get(key, ()), strict=False):
                probe[k] = value

    def error(self, needs: str, got: str, kind: type[Exception] = ValueError) -> Exception:
        """Return an error whose message names the function, and the shapes of its arguments."""
        return kind(f"{self.name}: needs {needs}, got {got}; {self.shapes}")

    def probe(self) -> tuple[int, ...]:
        """Call the function with random numbers and return the shape of its result; raise if it is not valid."""
        results = [self._call(*values) for values in self._probes]
        shapes = sorted({result.shape for result in results})
        if len(shapes) > 1 or results[0].size == 0:
            raise self.error("to return arrays of one shape, of at least one number", str(shapes))
        for values, called in zip(self._probes, results, strict=True):
            again = self._call(*values)
            if not np.array_equal(again, called):
                remedy = "; its random numbers need to come from its argument noise" * ("noise" in self.arguments)
                needs = "the same values whenever it is called with the same arguments"
                raise self.error(needs, f"{called.tolist()} and {again.tolist()}{remedy}")
        return results[0].shape

    def trace(self) -> Program:
        """Return the traced function; raise if it cannot be traced."""
        try:
            differentiated = [k for k, name in enumerate(self.arguments) if name in DIFFERENTIATED]
            program = trace(self.function, list(self.arguments.values()), differentiated)
        except Exception as error:
            needs, got = "operations that can be differentiated", f"{error}{_line_of(error)}"
            if not isinstance(error, UntraceableError):
                needs, got = "code that also runs on arrays of recorded numbers", f"{type(error).__name__}: {got}"
            raise self.error(needs, got, TypeError) from error
        for values in self._probes:
            inputs = np.concatenate([np.ravel(v) for v in values])[None]
            traced, called = evaluate_rows(program, inputs)[0], self._call(*values).ravel()
            if not are_equal(called, traced, TRACE_ERROR):
                needs = "operations that give the same values when they are recorded as when the function is called"
                raise self.error(needs, f"{traced.tolist()} when recorded and {called.tolist()} when called")
        return program

    def _call(self, *values: np.ndarray) -> np.ndarray:
        """Return the function's result as an array of numbers."""
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                result = self.function(*(value.copy() for value in values))
        except Exception as error:
            got = f"{type(error).__name__}: {error}{_line_of(error)}"
            raise self.error("to run on arrays of these shapes", got, TypeError) from error
        try:
            array = np.asarray(result)
        except ValueError:  # rows of different lengths
            array = np.array(None)
        if array.dtype.kind not in "fiub":
            raise self.error("to return a number or an array of real numbers", type(result).__name__, TypeError)
        if not np.isfinite(array).all():
            at = ", ".join(f"{k} = {v.round(3).tolist()}" for k, v in zip(self.arguments, values, strict=True))
            needs = "to return finite numbers"
            if not self._tried:
                needs += " for random arguments, if necessary by a restriction such as np.log(np.maximum(y, 1e-9))"
            raise self.error(needs, f"{array.tolist()} for {at}")
        return array.astype(float)


def _call_with(function: Any, c: int, *values: Any) -> Any:
    """Return the value of a user's function for a class c."""
    return function(*values, c)


def _line_of(error: BaseException) -> str:
    """Return the last line of the user's code that an error passed, as text, or ""."""
    package, numpy_folder = str(Path(__file__).parent.parent), str(Path(np.__file__).parent)
    frames = extract_tb(error.__traceback__)
    outside = [f for f in frames if package not in f.filename and numpy_folder not in f.filename]
    return f" (line {outside[-1].lineno} of {Path(outside[-1].filename).name})" if outside else ""


SYMMETRY_ERROR = 1e-11  # relative difference up to which values count as equal by symmetry
N_TARGETS = 8192  # number of random fields at which all values of targets are found, if there are few
N_SYMMETRY = 16  # number of random arguments on which symmetries are checked


def are_equal(a: np.ndarray, b: np.ndarray, error: float = SYMMETRY_ERROR) -> bool:
    """Return whether two arrays are equal up to a relative error, by default rounding."""
    return bool(np.abs(a - b).max() <= error * (1 + np.abs(a).max()))


@dataclass(frozen=True, eq=False)
class SequenceLabels:
    """Label model of a sequence model: the targets of a function teacher(u, noise), flattened to one row per sample."""

    # the function of one sample, u (L, t) and noise (n_noise,), if it cannot be traced; else None
    function: Callable[[np.ndarray, np.ndarray], Any] | None
    target_shape: tuple[int, ...]  # shape of its result
    count: int  # number of random numbers per sample
    even: bool  # True if targets stay the same when all fields and the noise change sign
    # the traced function; None if it cannot be traced, so that `function` is called once for each sample
    program: Program | None = field(repr=False, default=None)
    # label model of each class of samples with classes, of which this is the first
    of_class: tuple["SequenceLabels", ...] = field(repr=False, default=())
    values: np.ndarray | None = None  # (C, P) all targets, if they are functions of the fields with few values

    def n_noise(self, n_tokens: int, rank: int) -> int:
        """Return the number of random numbers per sample."""
        return self.count

    @guard_call
    def __call__(self, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return targets (N, P) for fields (N, L, t) and white noise (N, n_noise)."""
        n, P = len(u), prod(self.target_shape)
        if self.program is None:
            assert self.function is not None
            rows = [np.asarray(self.function(*row), dtype=float).ravel() for row in zip(u, noise, strict=True)]
            return np.array(rows).reshape(n, P)
        inputs = np.concatenate([u.reshape(n, -1), noise.reshape(n, -1)], axis=1)
        return evaluate_rows(self.program, inputs)

    def outcomes(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return all targets (C, P) and their probabilities (N, C), which are 0 or 1; None if there are many."""
        if self.values is None or self.of_class:
            return None
        is_value = (self(u, np.zeros((len(u), 0)))[:, None] == self.values).all(axis=2)
        if not is_value.any(axis=1).all():
            needs = f"the values that {N_TARGETS} random fields show, or n_noise = 1, with which targets are drawn"
            raise check.fail_words("teacher", "a target that is very rare", needs)
        return self.values, is_value.astype(float)


def is_function(teacher: Any) -> bool:
    """Return whether a teacher is a function of the fields, for samples with or without classes."""
    return hasattr(teacher, "count")


def trace_teacher(teacher: Any, L: int, t: int, n_noise: int, c: int | None) -> SequenceLabels:
    """Return the label model of a teacher for samples of class c, after checks on random numbers."""
    shapes = {"u": (L, t), "noise": (n_noise,)}
    function = UserFunction("teacher", teacher, shapes, "(L, t)", "(n_noise,)", c=c)
    labels = SequenceLabels(function.function, function.probe(), n_noise, False)
    with suppress(TypeError, ValueError):  # a program is picklable, and functions defined inside of others are not
        labels = replace(labels, function=None, program=function.trace())
    rng = np.random.default_rng(5)
    u, noise = rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, n_noise))
    even, values = are_equal(labels(u, noise), labels(-u, -noise)), None
    if not n_noise and labels.program is not None:
        of_all_sizes = np.geomspace(0.01, 100, N_TARGETS)[:, None, None] * rng.standard_normal((N_TARGETS, L, t))
        found = np.unique(labels(of_all_sizes, np.zeros((N_TARGETS, 0))), axis=0)
        values = found if len(found) <= N_SYMMETRY else None
    return replace(labels, even=even, values=values)
