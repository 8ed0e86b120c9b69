"""Results of solvers: statuses, overlaps, histories, their display, and the error raised on request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from gamp_attention._tools.display import DisplayMixin, Rows, count_noun, format_with_error, to_json

__all__ = ["ConvergenceError", "History", "Overlaps", "Status"]

# symbol of each quantity in tables, and the number of decimals that are shown if its error is unknown
SIGNS = {"q": ("q", 4), "m": ("m_1", 4), "theta": ("θ", 4), "V": ("V", 2)}
SIGNS |= {"train_loss": ("ε_t", 6), "test_error": ("ε_g", 6)}
T = TypeVar("T")
Columns = dict[str, Callable[[Any], str]]  # label of a row in a summary, and function that returns its text


class Status(Enum):
    """Status of a result: the way in which a solver ended.

    Attributes
    ----------
    CONVERGED : the residual is within the tolerance.
    SETTLED : message passing cycled between states, and the descent that followed (settling) converged.
    MAX_ITER, STALLED, DIVERGED, NONFINITE : no solution: too many iterations, no further progress, growth without
        bound, or NaN.
    INACCURATE : a solution, but the requested accuracy was not reached within the budget.
    INTERRUPTED : interrupted by Ctrl-C; only in files of `gamp-attention fit`.
    LOST : the requested branch has no fixed point and another solution was found; or a Bayes-optimal run
        ended with a posterior mean of zero.
    """

    CONVERGED = "converged"
    SETTLED = "settled"
    MAX_ITER = "max_iter"
    STALLED = "stalled"
    DIVERGED = "diverged"
    NONFINITE = "nonfinite"
    INACCURATE = "inaccurate"
    INTERRUPTED = "interrupted"
    LOST = "lost"

    @property
    def converged(self) -> bool:
        """True if the convergence criterion is met."""
        return self in (Status.CONVERGED, Status.SETTLED)


class ConvergenceError(RuntimeError):
    """Error raised by solvers with `raise_on_failure=True`; attribute `result` is the result that did not converge."""

    def __init__(self, message: str, result: Any) -> None:
        super().__init__(message)
        self.result = result


class Result(DisplayMixin):
    """Base class of results of solvers, with conversion to plain data and a printed summary.

    The summary shows the quantities named in SIGNS. A class with other quantities declares `_columns`: for each label a
    function that returns the text of the value, or "" to leave it out.
    """

    _columns: ClassVar[Columns] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except solver states: arrays as lists, NaN as None, statuses as strings."""
        ended = {"converged": self.converged} if hasattr(self, "converged") else {}
        plain = [(name, v) for name, v in self._items() if hasattr(v, "to_dict") or not hasattr(v, "_rows")]
        return {name: to_json(value) for name, value in plain} | ended

    def _heading(self) -> str:
        """Return the first line of the summary: status, number of iterations, and residual, if the result has them."""
        items = dict(self._items())
        status = f": {items['status'].value}" if "status" in items else ""
        iterations = f" after {count_noun(items['n_iter'], 'iteration')}" if "n_iter" in items else ""
        residual = f", residual {items['residual']:.1e}" if "residual" in items and "gradient_norm" not in items else ""
        return f"{type(self).__name__}{status}{iterations}{residual}"

    def _rows(self) -> Rows:
        """Return the heading, a row for each quantity with its error, and the message."""
        items = dict(self._items())
        if "status" not in items and not self._columns:
            return DisplayMixin._rows(self)
        cells = {label: text(self) for label, text in self._columns.items()} or _quantities(items)
        rows: Rows = [self._heading(), *([f"  {label}", text] for label, text in cells.items() if text)]
        return [*rows, f"  {items['message']}"] if items.get("message") else rows


def _quantities(items: dict[str, Any]) -> dict[str, str]:
    """Return label and text of each quantity in SIGNS, with its error, and of the gradient norm."""
    values, errors = dict(items), {name: items.get(f"{name}_error", np.nan) for name in SIGNS}
    if "overlaps" in items:
        values |= items["overlaps"].scalars()
        errors |= items["overlaps_error"].scalars() if "overlaps_error" in items else {}
    cells = {
        sign: format_with_error(float(values[name]), abs(float(errors[name])), digits)
        for name, (sign, digits) in SIGNS.items()
        if name in values
    }
    return cells | ({"‖∇R‖/λ√d": f"{items['gradient_norm']:.1e}"} if "gradient_norm" in items else {})


class Ended(Result):
    """Base class of results that have a status."""

    status: Status

    @property
    def converged(self) -> bool:
        """True if the convergence criterion is met."""
        return self.status.converged


def add_display(cls: type[T]) -> type[T]:
    """Add the display and `to_dict` of `Result` to a NamedTuple, which cannot inherit them."""
    for name in ("__repr__", "__str__", "_repr_html_", "_items", "_columns", "_heading", "_rows", "to_dict"):
        setattr(cls, name, getattr(Result, name))
    return cls


@dataclass(frozen=True, eq=False)
class Overlaps(Result):
    """Overlaps of the weights: q_l = QᵀΣ_lQ/d, m_l = Qᵀp_l/√d, θ_l = QᵀΣ_lQ*/d, and the variances V_l.

    Eq. :eq:`overlaps`.

    Attributes
    ----------
    q, m, theta, V : (L, r, r), (L, r), (L, r, t) and (L, r, r); t = 0 if no teacher is known. Mixtures have S sources
        instead of L tokens, here and in all arrays that belong to overlaps. A history has an additional first axis,
        the iteration.

    Examples
    --------
    A start of state evolution:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> one = np.ones((2, 1, 1))
    >>> start = ga.Overlaps(q=0.1 * one, m=np.zeros((2, 1)), theta=0.1 * one, V=10 * one)
    >>> ga.solve_state_evolution(ga.paper_model(), 1.5, start, rtol=1e-2, stability=False).converged
    True
    """

    q: np.ndarray
    m: np.ndarray
    theta: np.ndarray
    V: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the four fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(Overlaps)}

    def without(self, family: str) -> "Overlaps":
        """Return a copy in which the field named `family` is zero."""
        return Overlaps(**self.arrays() | {family: np.zeros_like(getattr(self, family))})

    def scalars(self) -> dict[str, Any]:
        """Return one number for each kind of overlap, or an array with a number for each time of a history.

        The numbers do not change under rotations of the columns of Q. q and V are traces (for V divided by the number
        of columns) averaged over tokens. For r = t = 1, m is m_1 and θ the average over tokens, with their signs;
        otherwise they are the norm of m_1 and the average norm of θ_l.
        """
        m, theta = self.m[..., 0, :], self.theta
        signed = m.shape[-1] == 1 and theta.shape[-1] == 1
        return {
            "q": np.trace(self.q, axis1=-2, axis2=-1).mean(axis=-1),
            "m": m[..., 0][()] if signed else np.linalg.norm(m, axis=-1),  # [()] converts shape () to a number
            "theta": (theta[..., 0, 0] if signed else np.linalg.norm(theta, axis=(-2, -1))).mean(axis=-1),
            "V": np.trace(self.V, axis1=-2, axis2=-1).mean(axis=-1) / self.V.shape[-1],
        }

    def _rows(self) -> Rows:
        """Return a table of the scalars with errors if known; a long history is reduced to 12 times."""
        items = dict(self._items())
        values, errors = self.scalars(), items["error"].scalars() if "error" in items else None
        heads = [SIGNS[name][0] for name in values]
        if self.q.ndim == 3:
            return [["", *heads], [type(self).__name__, *cells(values, (), errors)]]
        times = range(len(self.q)) if errors and len(self.q) <= 100 else spread(len(self.q))
        return [["   t", *heads], *([f"{t:4}", *cells(values, t, errors)] for t in times)]


def cells(values: dict[str, np.ndarray], at: Any, errors: dict[str, np.ndarray] | None = None) -> list[str]:
    """Return table cells of the quantities named in SIGNS, at index `at` of their arrays."""
    known = {} if errors is None else {name: abs(float(error[at])) for name, error in errors.items()}
    return [format_with_error(float(v[at]), known.get(name, np.nan), SIGNS[name][1]) for name, v in values.items()]


def spread(n: int, most: int = 12) -> list[int]:
    """Return at most `most` evenly spaced indices below n, including the first and the last, as rows of a table."""
    return sorted({round(k) for k in np.linspace(0, n - 1, most)})


def stack_overlaps(path: Sequence[Overlaps]) -> dict[str, np.ndarray]:
    """Return the four fields of a sequence of overlaps by name, with the sequence as first axis."""
    return {name: np.stack([o.arrays()[name] for o in path]) for name in path[0].arrays()}


@dataclass(frozen=True, eq=False)
class History(Overlaps):
    """Overlaps, gradient norm and training loss before each iteration of a solver; entry 0 is the start.

    Attributes
    ----------
    gradient_norm : (T + 1,) ‖∇R(Q)‖_F / (λ√d).
    train_loss : (T + 1,) training loss ε_t.
    damping : (T,) step β_t of each iteration, or the learning rate.
    """

    gradient_norm: np.ndarray
    train_loss: np.ndarray
    damping: np.ndarray


def finish(result: Any, raise_on_failure: bool, what: str) -> Any:
    """Return the result; if `raise_on_failure` and it did not converge, raise ConvergenceError instead."""
    if raise_on_failure and not result.converged:
        message = getattr(result, "message", "")
        raise ConvergenceError(
            f"{what} ended with status {result.status.value!r} after {count_noun(result.n_iter, 'iteration')}, "
            f"residual {result.residual:.3g}" + (f"; {message}" if message else ""),
            result,
        )
    return result
