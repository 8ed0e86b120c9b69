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
CELL_FORMAT = 1  # part of every key: to be raised when the same cell gives other numbers


@dataclass(frozen=True)
class Cell:
    """One solver at one point.

    Attributes
    ----------
    method : "SE" (state evolution), "GAMP" or "GD" (descent).
    branch : the start, "semantic", "positional" or "random".
    alpha, omega, lam, sigma : the point; omega is None where the teacher is not that of eq. (16), and sigma where the
        tokens have no common variance.
    d, seed : size and seed of the instance; None for state evolution.
    """

    method: str
    branch: str
    alpha: float
    omega: float | None
    lam: float
    sigma: float | None
    d: int | None
    seed: int | None


def model_at(model: Model, cell: Cell) -> Model:
    """The model with the cell's ω, λ and σ."""
    for name in ("omega", "lam", "sigma"):
        value = getattr(cell, name)
        if value is not None:
            model = with_parameter(model, name, value)
    return model


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

    State evolution has no d and seed: it gives one cell for all of them.

    Parameters
    ----------
    model : gives ω, λ and σ where they are not given.
    alpha, omega, lam, sigma, d, seed, branch, method : the axes.

    Raises
    ------
    TypeError, ValueError : naming the axis, what it got and what it needs.
    """
    require_model(model)

    def own(name: str) -> float:
        return parameter_value(model, 1.0, name)

    def positive(name: str, value: Any) -> float:
        return check.real(name, value, low=0, strict=True)

    alphas = _axis("alpha", alpha, positive)
    omegas: list[Any] = [None]
    if omega is not None or has_omega(model):
        omegas = _axis("omega", own("omega") if omega is None else omega, lambda n, v: check.real(n, v, low=0, high=1))
        with_parameter(model, "omega", omegas[0])
    lams = _axis("lam", own("lam") if lam is None else lam, lambda n, v: with_lam(model.penalty, v).lam)
    sigmas: list[Any] = [None]
    if sigma is not None or has_common_variance(model):
        sigmas = _axis("sigma", own("sigma") if sigma is None else sigma, positive)
        with_parameter(model, "sigma", sigmas[0])
    ds = _axis("d", d, lambda n, v: check.integer(n, v, low=1))
    seeds = _axis("seed", seed, lambda n, v: check.integer(n, v, low=0))
    branches = _axis("branch", branch, lambda n, v: check.choice(n, v, STARTS))
    methods = _axis("method", method, lambda n, v: check.choice(n, v, METHODS))
    if set(methods) != {"SE"} and round(min(alphas) * min(ds)) < 1:
        raise check.fail("alpha", min(alphas), f"at least one sample, alpha * d >= 1 at d = {min(ds)}")
    cells = []
    for how, *point, size, number in product(methods, branches, alphas, omegas, lams, sigmas, ds, seeds):
        cells.append(Cell(how, *point, *((None, None) if how == "SE" else (size, number))))
    return list(dict.fromkeys(cells))


def listed(model: Model, cells: Any, **axes: Any) -> list[Cell]:
    """Cells from a list of mappings, each a small grid of its own; axes that one lacks are taken from `axes`.

    Raises
    ------
    TypeError, ValueError : naming the entry of the list.
    """
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

    Parameters
    ----------
    base : `base_digest` of the model.
    settings : those that matter to the cell's method.
    predecessor : key of the cell that it is started from, if any.
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
