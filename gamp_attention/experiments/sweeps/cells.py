"""Cells of a sweep: single solver runs, the grids and lists that define them, and their keys.

The key of a cell is a hash of everything that determines its numbers. Hashes are identical in every process.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from itertools import product
from typing import Any

import numpy as np

from gamp_attention._core import check, hashes
from gamp_attention._core.choices import SOLVERS, STARTS
from gamp_attention.models.model import (
    Model,
    has_common_variance,
    has_omega,
    parameter_value,
    require_model,
    with_parameter,
)
from gamp_attention.penalties.standard import with_lam


def digest(model: Model) -> str:
    """Return a short hash of everything in a model."""
    return short_hash(_describe_value(require_model(model)))


def base_digest(model: Model) -> str:
    """Return a short hash of a model without its ω, λ and σ, which are fields of every cell."""
    model = with_parameter(require_model(model), "lam", 1.0)
    if has_omega(model):
        model = with_parameter(model, "omega", 0.0)
    return digest(with_parameter(model, "sigma", 1.0) if has_common_variance(model) else model)


def short_hash(value: Any) -> str:
    """Return 24 hexadecimal digits for plain finite values, from their JSON text with sorted keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashes.hash_bytes(text.encode(), size=12)


def _describe_value(value: Any) -> Any:
    """Return plain data that describe a value completely."""
    if is_dataclass(value) and not isinstance(value, type):
        used = {f.name: getattr(value, f.name) for f in fields(value) if not _is_unused(f, value)}
        return {"type": type(value).__qualname__} | {name: _describe_value(item) for name, item in used.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"type": type(value).__qualname__} | {name: _describe_value(v) for name, v in value._asdict().items()}
    if isinstance(value, np.ndarray):
        return {"shape": list(value.shape), "values": value.ravel().tolist()}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [_describe_value(v) for v in value]
    raise check.fail("model", value, "fields that are numbers, strings, arrays or dataclasses of them", TypeError)


def _is_unused(f: Field[Any], value: Any) -> bool:
    """Return whether a field was added after cells had been stored and has the value with which they were computed."""
    default: Any = f.default
    return bool(f.metadata.get("later")) and np.array_equal(getattr(value, f.name), default)


AXES = ("method", "branch", "alpha", "omega", "lam", "sigma", "d", "seed")
CELL_FORMAT = 2  # part of every key; increase it if the same cell gives other numbers


@dataclass(frozen=True)
class Cell:
    """One solver at one point of a sweep."""

    method: str  # "SE" (state evolution), "GAMP" or "GD" (gradient descent)
    branch: str  # name of the start
    alpha: float
    omega: float | None  # None if the teacher is not the softmax teacher of equation (16)
    lam: float
    sigma: float | None  # None if the tokens have no common variance
    d: int | None  # dimension of the instance; None for state evolution
    seed: int | None  # seed of the instance; None for state evolution


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
    """Return all combinations of the values on the axes, each given as one value or a sequence of values.

    ω, λ and σ default to the values of the model. State evolution has no d and seed: it has one cell for all of them.
    """
    model = require_model(model)

    def positive(name: str, value: Any) -> float:
        return check.real(name, value, low=0, strict=True)

    def parameter(name: str, given: Any, known: bool, convert: Callable[[str, Any], Any]) -> list[Any]:
        if given is None and not known:
            return [None]
        values = _axis(name, parameter_value(model, 1.0, name) if given is None else given, convert)
        with_parameter(model, name, values[0])  # raises if the model has no such parameter
        return values

    alphas = _axis("alpha", alpha, positive)
    omegas = parameter("omega", omega, has_omega(model), lambda n, v: check.real(n, v, low=0, high=1))
    lams = parameter("lam", lam, True, lambda n, v: with_lam(model.penalty, v).lam)
    sigmas = parameter("sigma", sigma, has_common_variance(model), positive)
    ds = _axis("d", d, lambda n, v: check.integer(n, v, low=1))
    seeds = _axis("seed", seed, lambda n, v: check.integer(n, v, low=0))
    branches = _axis("branch", branch, lambda n, v: check.choice(n, v, STARTS))
    methods = _axis("method", method, lambda n, v: check.choice(n, v, SOLVERS))
    if set(methods) != {"SE"} and round(min(alphas) * min(ds)) < 1:
        raise check.fail("alpha", min(alphas), f"at least one sample, alpha * d >= 1 at d = {min(ds)}")
    cells = [
        Cell(solver, *point, *((None, None) if solver == "SE" else (dim, number)))
        for solver, *point, dim, number in product(methods, branches, alphas, omegas, lams, sigmas, ds, seeds)
    ]
    return list(dict.fromkeys(cells))


def expand_cells(model: Model, cells: Any, **axes: Any) -> list[Cell]:
    """Return the cells of a list of mappings, each of which defines a grid; missing axes are taken from `axes`."""
    if isinstance(cells, (str, Mapping)) or not isinstance(cells, Iterable):
        raise check.fail("cells", cells, "a list of dicts with some of the keys " + ", ".join(AXES), TypeError)
    result: list[Cell] = []
    for number, entry in enumerate(cells):
        if not isinstance(entry, Mapping) or not set(entry) <= set(AXES):
            raise check.fail(f"cells[{number}]", entry, "a dict with some of the keys " + ", ".join(AXES), TypeError)
        chosen = axes | dict(entry)
        if chosen.get("alpha") is None:
            raise check.fail(f"cells[{number}]", entry, "a value of alpha, in this dict or in the argument `alpha`")
        try:
            result += grid(model, **chosen)
        except (TypeError, ValueError) as error:
            raise type(error)(f"cells[{number}]: {error}") from error
    if not result:
        raise check.fail("cells", cells, "at least one cell")
    return list(dict.fromkeys(result))


def cell_key(cell: Cell, base: str, settings: dict[str, Any], predecessor: str | None) -> str:
    """Return a short hash of all that determines the numbers of a cell.

    These are the model (its `base_digest`), the settings that the method uses, and the key of the cell from which this
    cell is started.
    """
    described = {"format": CELL_FORMAT, "model": base, "settings": settings, "predecessor": predecessor}
    return short_hash(described | asdict(cell))


def _axis(name: str, given: Any, convert: Callable[[str, Any], Any]) -> list[Any]:
    """Return the values on an axis, each checked by `convert`."""
    values = [given] if isinstance(given, str) or check.ndim(name, given) == 0 else list(given)
    if not values:
        raise check.fail(name, given, "at least one value")
    checked = [convert(name, value) for value in values]
    if len(set(checked)) < len(checked):
        raise check.fail(name, given, "values that all differ")
    return checked
