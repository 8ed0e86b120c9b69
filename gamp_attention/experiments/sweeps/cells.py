"""Cells of a sweep, their keys, and the grids and lists they come from."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from gamp_attention._core import check
from gamp_attention.experiments.sweeps.digests import short_hash
from gamp_attention.models.model import Model, require_model
from gamp_attention.models.parameters import has_common_variance, has_omega, parameter_value, with_parameter
from gamp_attention.models.starts import STARTS
from gamp_attention.penalties.standard import with_lam

METHODS = ("SE", "GAMP", "GD")
AXES = ("method", "branch", "alpha", "omega", "lam", "sigma", "d", "seed")
CELL_FORMAT = 2  # part of every key: to be raised when the same cell gives other numbers


@dataclass(frozen=True)
class Cell:
    """One solver at one point."""

    method: str  # "SE" (state evolution), "GAMP" or "GD" (descent)
    branch: str  # the start
    alpha: float
    omega: float | None  # None where the teacher is not that of equation (16)
    lam: float
    sigma: float | None  # None where the tokens have no common variance
    d: int | None  # size of the instance; None for state evolution, as its seed
    seed: int | None


def grid(
    model: Model,
    *,
    alpha: Any,
    omega: Any = None,
    lam: Any = None,
    sigma: Any = None,
    d: Any = 1000,
    seed: Any = 0,
    branch: Any = ("semantic", "positional"),
    method: Any = "SE",
) -> list[Cell]:
    """All combinations of the values on the axes, each one value or a sequence of them.

    The model gives ω, λ and σ where they are not given. State evolution has no d and seed: it gives one cell for all
    of them.
    """
    model = require_model(model)

    def positive(name: str, value: Any) -> float:
        return check.real(name, value, low=0, strict=True)

    def parameter(name: str, given: Any, known: bool, one: Callable[[str, Any], Any]) -> list[Any]:
        if given is None and not known:
            return [None]
        values = _axis(name, parameter_value(model, 1.0, name) if given is None else given, one)
        with_parameter(model, name, values[0])  # raises where the model has no such parameter
        return values

    alphas = _axis("alpha", alpha, positive)
    omegas = parameter("omega", omega, has_omega(model), lambda n, v: check.real(n, v, low=0, high=1))
    lams = parameter("lam", lam, True, lambda n, v: with_lam(model.penalty, v).lam)
    sigmas = parameter("sigma", sigma, has_common_variance(model), positive)
    ds = _axis("d", d, lambda n, v: check.integer(n, v, low=1))
    seeds = _axis("seed", seed, lambda n, v: check.integer(n, v, low=0))
    branches = _axis("branch", branch, lambda n, v: check.choice(n, v, STARTS))
    methods = _axis("method", method, lambda n, v: check.choice(n, v, METHODS))
    if set(methods) != {"SE"} and round(min(alphas) * min(ds)) < 1:
        raise check.fail("alpha", min(alphas), f"at least one sample, alpha * d >= 1 at d = {min(ds)}")
    cells = [
        Cell(how, *point, *((None, None) if how == "SE" else (size, number)))
        for how, *point, size, number in product(methods, branches, alphas, omegas, lams, sigmas, ds, seeds)
    ]
    return list(dict.fromkeys(cells))


def listed(model: Model, cells: Any, **axes: Any) -> list[Cell]:
    """Cells from a list of mappings, each a small grid of its own; axes that one lacks are taken from `axes`."""
    if isinstance(cells, (str, Mapping)) or not isinstance(cells, Iterable):
        raise check.fail("cells", cells, "a list of dicts with some of the keys " + ", ".join(AXES), TypeError)
    found: list[Cell] = []
    for number, entry in enumerate(cells):
        if not isinstance(entry, Mapping) or not set(entry) <= set(AXES):
            raise check.fail(f"cells[{number}]", entry, "a dict with some of the keys " + ", ".join(AXES), TypeError)
        chosen = axes | dict(entry)
        if chosen.get("alpha") is None:
            raise check.fail(f"cells[{number}]", entry, "a value of alpha")
        try:
            found += grid(model, **chosen)
        except (TypeError, ValueError) as error:
            raise type(error)(f"cells[{number}]: {error}") from error
    if not found:
        raise check.fail("cells", cells, "at least one cell")
    return list(dict.fromkeys(found))


def cell_key(cell: Cell, base: str, settings: dict[str, Any], predecessor: str | None) -> str:
    """A short hash of all that determines the numbers of a cell.

    The model tells by its `base_digest`, the settings by those that the method uses, and the cell that this one is
    started from by its key.
    """
    described = {"format": CELL_FORMAT, "model": base, "settings": settings, "predecessor": predecessor}
    return short_hash(described | asdict(cell))


def _axis(name: str, given: Any, one: Callable[[str, Any], Any]) -> list[Any]:
    """The checked values on an axis."""
    values = [given] if isinstance(given, str) or check.ndim(name, given) == 0 else list(given)
    if not values:
        raise check.fail(name, given, "at least one value")
    checked = [one(name, value) for value in values]
    if len(set(checked)) < len(checked):
        raise check.fail(name, given, "values that all differ")
    return checked
