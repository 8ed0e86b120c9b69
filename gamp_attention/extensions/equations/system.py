"""Equations x = F(x) of named order parameters, as a function of vectors, with averages to a given accuracy."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.breakpoints import find_breakpoints
from gamp_attention._tools.quadrature import gauss_hermite, pruned_product
from gamp_attention._tools.roots import NonlinearSystem

Values = dict[str, np.ndarray]
MAX_NORMALS = 3  # number of standard normals of an average: the time of an adaptive rule increases by 21 with each


@dataclass(frozen=True)
class AverageSettings:
    """Settings of averages; entries of tuples are for 1, 2 and 3 normals."""

    cells: int = 4096  # cells of the grid on which kinks and jumps for one normal are located, each of width 0.0044
    one_normal: float = 1e-3  # tolerance for one normal, in units of the tolerance: with located kinks, it is cheap
    pilot_nodes: tuple[int, ...] = (60, 24, 10)  # nodes in each direction of the rule that estimates the size of f
    margin: float = 3.0  # standard deviations beyond the point at which the density equals the tolerance
    max_subdivisions: tuple[int, ...] = (2000, 300, 3000)  # functions with a few kinks need fewer


AVERAGE = AverageSettings()


@dataclass(frozen=True)
class Average:
    """The argument `average` of equations: E f(ξ₁, …, ξ_n) over independent standard normals.

    Attributes
    ----------
    tol : error of an average, in units of E|f|.
    errors : estimated errors of the averages so far, which are larger where a function needs too many divisions.
    """

    tol: float
    errors: list[float] = field(default_factory=list)

    def __call__(self, f: Callable[..., ArrayLike], n: int = 1, kinks: Sequence[ArrayLike] = ()) -> Any:
        """Return the average of a function of n arrays (N,), which returns an array (N,) or (N, …).

        Adaptive cubature (`scipy.integrate.cubature`) divides the region where f has kinks or jumps. `kinks`, numbers
        or points (n,), are places at which it is divided from the start; for n = 1 they are located, unless f differs
        from a smooth function only in an interval shorter than 0.01. A function of several normals that jumps along a
        line needs very many divisions: use Stein's identity instead of its derivative, or fewer normals.
        """
        from scipy.integrate import cubature  # takes long to import

        n, tol = check.integer("average: n", n, low=1), self.tol * (AVERAGE.one_normal if n == 1 else 1.0)
        if n > MAX_NORMALS:
            raise check.fail("average: n", n, f"at most {MAX_NORMALS} standard normals")

        def evaluate(points: np.ndarray) -> np.ndarray:
            values = np.asarray(f(*points.T), dtype=float)
            has_points = values.shape[:1] == (len(points),)
            if not has_points and len(points) in values.shape:
                raise check.fail("average: shape of f(ξ)", values.shape, f"the N = {len(points)} points first")
            if not has_points and not np.array_equal(values, f(*points[::-1].T), equal_nan=True):
                needs = "the shape (N, …) for arguments (N,), or a value that does not depend on them"
                raise check.fail("average: shape of f(ξ)", values.shape, needs)
            return values if has_points else np.broadcast_to(values, (len(points), *values.shape))

        def integrand(points: np.ndarray) -> np.ndarray:
            density = np.exp(-0.5 * np.sum(points**2, axis=1)) / (2 * np.pi) ** (n / 2)
            values = evaluate(points) / size
            return values * density.reshape(-1, *[1] * (values.ndim - 1))

        points, weights = pruned_product(*gauss_hermite(AVERAGE.pilot_nodes[n - 1]), n, 0.0)
        size = np.tensordot(weights, np.abs(evaluate(points)), axes=1)
        if not np.isfinite(size).all():
            return size * np.nan
        size = np.where(size > 0, size, 1.0)
        reach = np.full(n, np.sqrt(-2 * np.log(tol)) + AVERAGE.margin)
        if n == 1 and not len(kinks):
            found = find_breakpoints(lambda _, x: (evaluate(x[:, None]) / size).reshape(len(x), -1), 1, AVERAGE.cells)
            kinks = found[0].tolist()
        divided = [np.broadcast_to(np.asarray(point, dtype=float), n) for point in kinks]
        result = cubature(
            integrand, -reach, reach, rule="gk21" if n < 3 else "genz-malik", rtol=0.0, atol=tol, points=divided,
            max_subdivisions=AVERAGE.max_subdivisions[n - 1],
        )  # fmt: skip
        self.errors.append(float(np.max(result.error)))
        return (size * result.estimate)[()]


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
    zero, diverged : sizes of an order parameter, in units of the start, that count as zero and as no solution; for
        the latter, the unit is at least 1.
    difference : step of finite differences.
    """

    equations: Callable[..., Mapping[str, Any]]
    start: Values
    parameters: dict[str, Any] = field(default_factory=dict)
    tol: float = 1e-6
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
        TypeError, ValueError : if the equations return no dict, or other names or shapes than the start.
        FloatingPointError : if a returned value is not finite; the message names it.
        """
        average = Average(self.tol)
        new = self.equations(OrderParameters(**self.unpack(x)), average, **self.parameters)
        if not isinstance(new, Mapping):
            raise check.fail("equations", new, "a function that returns a dict of order parameters", TypeError)
        if set(new) != set(self.start):
            raise check.fail("equations", sorted(new), f"to return the names of the start, {sorted(self.start)}")
        for name, value in new.items():
            if np.shape(value) != self.start[name].shape:
                needs = f"{name} of the start's shape {self.start[name].shape}"
                raise check.fail_words("equations", f"shape {np.shape(value)}", needs)
            if np.iscomplexobj(value) or not np.isfinite(np.asarray(value, dtype=float)).all():
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
