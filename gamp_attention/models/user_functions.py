"""User functions of a sample, with checks whose messages name them, and their traced form.

`UserFunction` calls a function with random numbers, checks what it returns, and traces it into a list of operations
(`gamp_attention._core.tracing`).
"""

import warnings
from pathlib import Path
from traceback import extract_tb
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.expressions import Program
from gamp_attention._core.tracing import UntraceableError, trace

PROBE_SIZES = (0.7, 1.0, 4.0)  # standard deviations of the random arguments on which functions are checked
TRACE_ERROR = 1e-9  # allowed relative difference between a function and its traced form
BLOCK = 8192  # number of samples that are evaluated at a time, so that intermediate results stay in the cache


def evaluate_rows(program: Program, inputs: np.ndarray) -> np.ndarray:
    """Return the results (N, outputs) of a program for rows of inputs (N, n_inputs)."""
    out = np.empty((len(inputs), len(program.outputs)))
    for first in range(0, len(inputs), BLOCK):
        columns = np.ascontiguousarray(inputs[first : first + BLOCK].T)
        for number, values in enumerate(program.evaluate(list(columns))):
            out[first : first + BLOCK, number] = values
    return out


class UserFunction:
    """A user's function of arrays, with checks whose messages name it.

    Parameters
    ----------
    name : name of the argument of `sequence_model`.
    function : the function, or a function compiled by numba.
    arguments : shape of each argument, by name.
    words : the same shapes in words.
    c : a last argument with this value, which messages call c; none if not given.
    """

    def __init__(
        self, name: str, function: Any, arguments: dict[str, tuple[int, ...]], *words: str, c: int | None = None
    ) -> None:
        signature = f"{name}({', '.join([*arguments, *([] if c is None else ['c'])])})"
        if not callable(function):
            raise check.fail(name, function, f"a function {signature}", TypeError)
        if c is not None:
            plain = getattr(function, "py_func", function)
            function = lambda *values: plain(*values, c)  # noqa: E731
        self.name, self.given, self.arguments = name, function, arguments
        self.plain = getattr(function, "py_func", function)
        shapes = zip(arguments.items(), words, strict=True)
        self.shapes = f"in {signature}, " + " and ".join(f"{k} has shape {word} = {v}" for (k, v), word in shapes)

    def probe(self) -> tuple[int, ...]:
        """Call the function with random numbers and return the shape of its result; raise if it is not valid."""
        results = [self._call(*values) for values in self._probes()]
        shapes = {result.shape for result in results}
        if len(shapes) > 1:
            raise ValueError(f"{self.name}: needs to return arrays of one shape, got {sorted(shapes)}; {self.shapes}")
        if results[0].size == 0:
            raise ValueError(f"{self.name}: needs to return at least one number, got shape {results[0].shape}")
        return results[0].shape

    def trace(self, required: bool) -> Program | None:
        """Return the traced function; None if it cannot be traced and this is not required."""
        try:
            program, _ = trace(self.given, list(self.arguments.values()))
        except UntraceableError as error:
            if not required:
                return None
            needs = "operations that can be differentiated"
            raise TypeError(f"{self.name}: needs {needs}, got: {error}{_line_of(error)}; {self.shapes}") from error
        except Exception as error:
            if not required:
                return None
            got = f"{type(error).__name__}: {error}{_line_of(error)}"
            needs = "code that also runs on arrays of recorded numbers"
            raise TypeError(f"{self.name}: needs {needs}, got {got}; {self.shapes}") from error
        for values in self._probes():
            inputs = np.concatenate([np.ravel(v) for v in values])[None]
            with np.errstate(all="ignore"):
                traced, called = evaluate_rows(program, inputs)[0], self._call(*values).ravel()
            if not np.abs(traced - called).max() <= TRACE_ERROR * (1 + np.abs(called).max()):
                if not required:
                    return None
                got = f"{called.tolist()} and {traced.tolist()}"
                needs = "the same values whenever it is called with the same arguments"
                raise ValueError(f"{self.name}: needs {needs}, got {got}; {self.shapes}")
        return program

    def _probes(self) -> list[list[np.ndarray]]:
        rng = np.random.default_rng(3)
        return [[size * rng.standard_normal(shape) for shape in self.arguments.values()] for size in PROBE_SIZES]

    def _call(self, *values: np.ndarray) -> np.ndarray:
        """Return the function's result as an array of numbers."""
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                result = self.plain(*(value.copy() for value in values))
        except Exception as error:
            got = f"{type(error).__name__}: {error}{_line_of(error)}"
            raise TypeError(f"{self.name}: needs to run on arrays of these shapes, got {got}; {self.shapes}") from error
        try:
            array = np.asarray(result)
            if array.dtype.kind not in "fiub":
                raise TypeError
            array = array.astype(float)
        except (TypeError, ValueError):
            needs = "to return a number or an array of real numbers"
            raise TypeError(f"{self.name}: needs {needs}, got {type(result).__name__}; {self.shapes}") from None
        if not np.isfinite(array).all():
            at = ", ".join(f"{k} = {v.round(3).tolist()}" for k, v in zip(self.arguments, values, strict=True))
            needs = "to return finite numbers"
            raise ValueError(f"{self.name}: needs {needs}, got {array.tolist()} for {at}; {self.shapes}")
        return array


def _line_of(error: BaseException) -> str:
    """Return the last line of the user's code that an error passed, as text, or ""."""
    package, numpy_folder = str(Path(__file__).parent.parent), str(Path(np.__file__).parent)
    lines = [frame for frame in extract_tb(error.__traceback__)]
    outside = [f for f in lines if package not in f.filename and numpy_folder not in f.filename]
    return f" (line {outside[-1].lineno} of {Path(outside[-1].filename).name})" if outside else ""
