"""Cells of a sweep, with their keys, and jobs: chains of cells that start from each other's solutions.

A cell is a single solver run; grids and lists define cells. The key of a cell is a hash of everything that determines
its numbers. Hashes are identical in every process.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from gamp_attention._kernels.user_classes import hash_user_classes
from gamp_attention._tools import check
from gamp_attention._tools.choices import RISKS, SOLVERS, STARTS
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.numerics import guard_call, hash_bytes
from gamp_attention.descent.minimize import METHODS, minimize_risk
from gamp_attention.descent.torch_risk import few_threads
from gamp_attention.gamp.damping import DAMPING
from gamp_attention.gamp.run import run_gamp
from gamp_attention.problem.penalties.standard import with_lam
from gamp_attention.results import Overlaps
from gamp_attention.sampling.draw import sample, sampled_test_error
from gamp_attention.theory.fixed_points.solve import require_rtol, solve_near
from gamp_attention.theory.models.model import (
    Model,
    has_common_variance,
    has_omega,
    parameter_value,
    require_model,
    with_parameter,
)


def digest(model: Model) -> str:
    """Return a short hash of everything in a model, including the code of user-defined classes."""
    described, code = _describe_value(require_model(model)), hash_user_classes(model)
    return short_hash([described, code] if code else described)


def base_digest(model: Model) -> str:
    """Return a short hash of a model without its ω, λ and σ, which are fields of every cell."""
    model = with_parameter(require_model(model), "lam", 1.0)
    if has_omega(model):
        model = with_parameter(model, "omega", 0.0)
    return digest(with_parameter(model, "sigma", 1.0) if has_common_variance(model) else model)


def short_hash(value: Any) -> str:
    """Return 24 hexadecimal digits for plain values, from their JSON text with sorted keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hash_bytes(text.encode(), size=12)


def _describe_value(value: Any) -> Any:
    """Return plain data that describe a value completely."""
    if is_dataclass(value) and not isinstance(value, type):
        used = {f.name: getattr(value, f.name) for f in fields(value) if "display" not in f.metadata}
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


AXES = ("method", "branch", "alpha", "omega", "lam", "sigma", "d", "seed")
CELL_FORMAT = 4  # part of every key; increase it if the same cell gives other numbers


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


def _axis(name: str, given: Any, convert: Callable[[str, Any], Any]) -> list[Any]:
    """Return the values on an axis, each checked by `convert`."""
    values = [given] if isinstance(given, str) or check.ndim(name, given) == 0 else list(given)
    if not values:
        raise check.fail(name, given, "at least one value")
    checked = [convert(name, value) for value in values]
    if len(set(checked)) < len(checked):
        raise check.fail(name, given, "values that all differ")
    return checked


# True if warm starts proceed to lower α: each chain begins at the α at which its branch is sure to exist
DESCENDING = {"semantic": True, "positional": False}
USED = {  # settings on which the result of each method depends
    "SE": ("rtol",),
    "GAMP": ("risk", "n_test", "gamp_steps", "tol"),
    "GD": ("risk", "n_test", "descent", "gd_steps", "tol"),
}


@dataclass(frozen=True)
class Settings:
    """Settings common to all cells of a sweep."""

    rtol: float = 1e-3  # relative accuracy of state evolution; the settings below are for message passing and descent
    risk: str = "exact"  # risk that is minimized, "exact" or "asymptotic"
    n_test: int = 1000  # number of new samples for the test error
    descent: str = "gd"  # method of descent
    gd_steps: int = 5000  # maximum number of iterations of descent
    # maximum number of iterations of message passing, as of `run_gamp`: a run that reaches it has no descent
    gamp_steps: int = 10000
    tol: float = 1e-8  # gradient norm at which a run has converged

    def __post_init__(self) -> None:
        plain = {
            "rtol": require_rtol(self.rtol),
            "risk": check.choice("risk", self.risk, RISKS),
            "n_test": check.integer("n_test", self.n_test, low=2),
            "descent": check.choice("descent", self.descent, METHODS),
            "gd_steps": check.integer("gd_steps", self.gd_steps, low=1),
            "gamp_steps": check.integer("gamp_steps", self.gamp_steps, low=1),
            "tol": check.real("tol", self.tol, low=0),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)


def row_overlaps(row: dict[str, Any], name: str = "overlaps") -> Overlaps | None:
    """Return the overlaps in a row, or None if it has none."""
    lists = row.get(name)
    return None if lists is None else Overlaps(**{key: np.array(values) for key, values in lists.items()})


def _state_evolution(model: Model, cell: Cell, settings: Settings, previous: dict[str, Any] | None) -> dict[str, Any]:
    before = previous if previous is not None and previous.get("converged") else {}
    result, warm = solve_near(model, cell.alpha, cell.branch, row_overlaps(before), settings.rtol)
    numbers = ("relative_error", "train_loss_error", "test_error", "test_error_error", "replicon", "replicon_error")
    total = max(abs(result.V_hat.sum()), abs((result.V_hat - result.jump_mass).sum()))  # V̂ may vanish in one form
    row = _common(result, result.validity, "predecessor" if warm else "name")
    row |= {name: float(getattr(result, name)) for name in numbers}
    return row | {
        "overlaps_error": _lists(result.overlaps_error),
        "jump_share": float(result.jump_mass.sum() / total),
        "jump_share_error": float(result.jump_mass_error.sum() / total),
    }


def _finite_size(model: Model, cell: Cell, settings: Settings, _: dict[str, Any] | None) -> dict[str, Any]:
    """Return the row of message passing or descent on one instance."""
    assert cell.d is not None
    assert cell.seed is not None
    data = sample(model, cell.d, cell.alpha, cell.seed)
    options: Any = {"tol": settings.tol, "seed": cell.seed}
    if cell.method == "GAMP":
        options |= {"damping": DAMPING.get(cell.branch, "adaptive"), "max_iter": settings.gamp_steps}
        result: Any = run_gamp(data, cell.branch, settings.risk, **options)
        message = result.message
    else:
        options |= {"method": settings.descent, "max_iter": settings.gd_steps}
        with few_threads(0):  # sums in torch depend on the number of threads; one thread makes cells reproducible
            result = minimize_risk(data, cell.branch, settings.risk, **options)
        message = f"{settings.descent}: {result.status.value} after {count_noun(result.n_iter, 'step')}"
    error, error_error = sampled_test_error(data, result.Q, n_samples=settings.n_test, seed=cell.seed)
    row = _common(result, message, "name") | {"gradient_norm": float(result.gradient_norm)}
    return row | {"test_error": error, "test_error_error": error_error}


def _common(result: Any, message: str, start: str) -> dict[str, Any]:
    """Return the entries that the rows of all methods have."""
    return {
        "status": result.status.value,
        "message": message,
        "start": start,
        "converged": bool(result.converged),
        "n_iter": int(result.n_iter),
        "residual": float(result.residual),
        "overlaps": _lists(result.overlaps),
        "train_loss": float(result.train_loss),
    }


def _lists(overlaps: Overlaps) -> dict[str, Any]:
    return {name: values.tolist() for name, values in overlaps.arrays().items()}


@dataclass(frozen=True, eq=False)
class CellJob:
    """Job of a cell, to be run by `run_chains`."""

    key: str
    model: Model
    cell: Cell
    settings: Settings

    @property
    def parameters(self) -> dict[str, Any]:
        """Fields of the cell by name."""
        return asdict(self.cell)

    @guard_call
    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """Run the solver of the cell and return its row: plain numbers, lists and strings.

        The cell replaces the model's ω, λ and σ. State evolution is started from the row `previous` of a chain, if it
        is given.

        Returns
        -------
        dict with status and message, and unless the solver raised an error: converged, n_iter, residual, start,
        overlaps and overlaps_error (lists by name), train_loss, test_error, replicon, jump_share, gradient_norm, and
        errors named *_error. Numbers that a method does not compute are left out. If the solver raises an error, the
        status is "error".
        """
        model, solve = self.model, _state_evolution if self.cell.method == "SE" else _finite_size
        try:
            for name in ("omega", "lam", "sigma"):
                if getattr(self.cell, name) is not None:
                    model = with_parameter(model, name, getattr(self.cell, name))
            return solve(model, self.cell, self.settings, previous)
        except Exception as error:
            return {"status": "error", "message": f"{type(error).__name__}: {error}"}


def chains(model: Model, cells: Sequence[Cell], settings: Settings, warm: bool = True) -> list[list[CellJob]]:
    """Return cells as chains of jobs; each job is started from the row of the job before it.

    The key of a job is a short hash of all that determines its numbers: the model, the settings that its method uses,
    and the key of the job before it.

    If `warm`, state evolution follows the semantic branch to lower α and the positional branch to higher α. Every other
    cell is a chain of one job: message passing and descent start from their data, and random starts are independent.
    """
    groups: dict[Cell | tuple[Cell], list[Cell]] = {}
    for cell in cells:
        follows = warm and cell.method == "SE" and cell.branch in DESCENDING
        groups.setdefault(replace(cell, alpha=0.0) if follows else (cell,), []).append(cell)
    base = base_digest(model)
    result = []
    for group in groups.values():
        key, jobs = None, []
        for cell in sorted(group, key=lambda cell: cell.alpha, reverse=DESCENDING.get(group[0].branch, False)):
            used = {name: getattr(settings, name) for name in USED[cell.method]}
            described = {"format": CELL_FORMAT, "model": base, "settings": used, "predecessor": key}
            key = short_hash(described | asdict(cell))
            jobs.append(CellJob(key, model, cell, settings))
        result.append(jobs)
    return result
