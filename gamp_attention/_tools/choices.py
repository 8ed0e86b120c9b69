"""Names that arguments accept, in a module that imports no other: the command line lists them without the solvers."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

STARTS = ("semantic", "positional", "random")  # starts of all solvers, named after the solution that they lead to
# further named starts of solvers on data, added by extensions: functions of data, risk, maximum number of starts and a
# numpy Generator that return pairs of a name and weights (d, r)
FURTHER_STARTS: dict[str, Callable[[Any, str, int, Any], list[tuple[str, Any]]]] = {}
RISKS = ("asymptotic", "exact")  # training risks: with products of tokens at their limit for d → ∞, or as they are
RULES = ("auto", "panels", "lattice", "sobol")  # quadrature rules of state evolution
RESPONSES = ("stein", "derivative")  # formulas for V̂
DESCENTS = ("gd", "momentum", "nesterov", "sgd")  # first-order methods on given data whose trajectories are predicted
SOLVERS = ("SE", "GAMP", "GD")  # solvers of the cells of a sweep


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest known word, or nothing if none is near."""
    near = get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
