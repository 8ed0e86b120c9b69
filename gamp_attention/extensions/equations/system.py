"""Equations x = F(x) of named order parameters, as a function of vectors, with averages to a given accuracy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.roots import NonlinearSystem
from gamp_attention.extensions.equations.average import AVERAGE, Average, AverageSettings

Values = dict[str, np.ndarray]


class OrderParameters(SimpleNamespace):
    """The argument `x` of equations, with the order parameters as attributes."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the order parameters are {', '.join(vars(self))}, not {name!r}")


@dataclass(frozen=True)
class System(NonlinearSystem):
    """Equations of named order parameters, with their parameters and the accuracy of their averages.

    Attributes
    ----------
    equations : function (x, average, **parameters) → dict of the new order parameters.
    start : values that define the names and shapes.
    parameters : values of the parameters.
    tol : relative error of averages.
    settings : spacings and numbers of nodes of averages.
    zero, diverged : sizes of an order parameter, in units of the start, that count as zero and as no solution; for
        the latter, the unit is at least 1.
    difference : step of finite differences.
    """

    equations: Callable[..., Mapping[str, Any]]
    start: Values
    parameters: dict[str, Any] = field(default_factory=dict)
    tol: float = 1e-6
    settings: AverageSettings = AVERAGE
    zero: float = 1e-6
    diverged: float = 1e12
    difference: float = 1e-3

    def pack(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return all entries as one vector (k,)."""
        return np.concatenate([np.ravel(values[name]) for name in self.start]).astype(float)

    def unpack(self, x: np.ndarray) -> Values:
        """Return the order parameters of a vector by name; numbers have shape ()."""
        ends = np.cumsum([value.size for value in self.start.values()])
        parts = np.split(np.asarray(x), ends[:-1])
        return {name: part.reshape(self.start[name].shape)[()] for name, part in zip(self.start, parts, strict=True)}

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the unit of each entry (k,): the largest entry of its order parameter, or 1 if this is zero.

        Order parameters that go to zero have a fraction of their unit at the start.
        """
        now = self.unpack(x)
        sizes = {
            name: np.abs(now[name]).max() and max(np.abs(now[name]).max(), self.zero * (np.abs(first).max() or 1.0))
            for name, first in self.start.items()
        }
        return self.pack({name: np.full(self.start[name].shape, size or 1.0) for name, size in sizes.items()})

    def describe(self, x: np.ndarray) -> str:
        """Return the values in words."""
        with np.printoptions(precision=4, threshold=8):
            return ", ".join(f"{name} = {value}" for name, value in self.unpack(x).items())

    def evaluate(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """Return F(x), and the largest error of an average, in units of the average of its absolute values.

        Raises
        ------
        TypeError, ValueError : if the equations return no dict of real numbers, or not the start's names and shapes.
        FloatingPointError : if a returned value is not finite; the message names it.
        """
        average = Average(self.tol, self.settings)
        new = self.equations(OrderParameters(**self.unpack(x.copy())), average, **self.parameters)
        if not isinstance(new, Mapping):
            raise check.fail("equations", new, "a function that returns a dict of order parameters", TypeError)
        if set(new) != set(self.start):
            raise check.fail("equations", sorted(new), f"to return the names of the start, {sorted(self.start)}")
        for name, value in new.items():
            kind = np.asarray(value).dtype
            if np.shape(value) != self.start[name].shape or kind.kind not in "biufO":
                needs = f"{name} with real numbers, of the start's shape {self.start[name].shape}"
                raise check.fail_words("equations", f"shape {np.shape(value)} of type {kind}", needs)
            if not np.isfinite(np.asarray(value, dtype=float)).all():
                raise FloatingPointError(f"the equation of {name} returns {value} at {self.describe(x)}")
        return self.pack(new), max(average.errors, default=0.0)

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return F(x) − x.

        OverflowError if an order parameter is too large for a solution; FloatingPointError if the equations raise a
        ValueError, as `prox` does for fields that are not finite.
        """
        too_large = np.abs(x) > self.diverged * np.maximum(self.units(self.pack(self.start)), 1.0)
        if too_large.any():
            name = next(name for name, large in self.unpack(too_large).items() if np.any(large))
            raise OverflowError(f"{name} grows without bound")
        try:
            return self.evaluate(x)[0] - x
        except ValueError as error:
            raise FloatingPointError(f"the equations raise “{error}” at {self.describe(x)}") from error


def read_start(start: Mapping[str, Any]) -> Values:
    """Return the start as arrays by name; TypeError or ValueError if it is not a dict of finite numbers or arrays."""
    if not isinstance(start, Mapping) or not start:
        raise check.fail("start", start, "a dict from names of order parameters to numbers or arrays", TypeError)
    for name in start:
        if not isinstance(name, str) or not name.isidentifier() or name.endswith("_error"):
            raise check.fail("start", name, "names that are Python identifiers and do not end with _error")
    arrays = {name: check.read_array(value) for name, value in start.items()}
    for name, value in arrays.items():
        if value.dtype.kind not in "iuf" or not value.size:
            raise check.fail(f"start[{name!r}]", start[name], "a number or an array of numbers", TypeError)
        check.require_finite(f"start[{name!r}]", value)
    return {name: np.array(value, dtype=float) for name, value in arrays.items()}
