"""`phase_boundaries`: α_c, α_l and spinodals against ω, λ, σ or A."""

import tempfile
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.text import Rows, with_error
from gamp_attention.experiments.phase_diagram.boundary import Boundary
from gamp_attention.experiments.phase_diagram.diagram_job import BAYES_LINES, DIAGRAM_FORMAT, LINES, DiagramJob, Search
from gamp_attention.experiments.sweeps.digests import base_digest, short_hash
from gamp_attention.experiments.sweeps.scheduler import check_workers, run_chains
from gamp_attention.experiments.sweeps.store import Store
from gamp_attention.models.model import Model, require_attention
from gamp_attention.models.parameters import softmax_teacher, with_parameter
from gamp_attention.results import Result, Status


@dataclass(frozen=True, eq=False)
class PhaseBoundaries(Result):
    """Boundaries in α, one for each value of a parameter. Errors are half-widths that hold in 95 % of cases.

    Attributes
    ----------
    parameter : "omega", "lam", "sigma" or "A".
    values : (K,) its values; (K, L, L) for A.
    low, high : the range of α that was searched.
    lines : by name, K boundaries with value, error and note; where there is none, NaN and why, in words. "alpha_c" and
        "alpha_l"; and for "semantic" and "positional" the range of α where the branch exists, `_from` and `_to`, and
        where it is stable against the overlap that is zero on it, `_stable_from` and `_stable_to`. Where asked for,
        "weak_recovery" and "full_recovery" of the Bayes-optimal estimate, and "hard_from", "hard_to", between which
        the data tell the teacher but message passing does not find it.
    status : K of CONVERGED, INACCURATE (an error is above the tolerance, or a line was not found) or NONFINITE.
    messages : K, what was inaccurate, in words.
    rows : K, what was stored for each value.
    """

    parameter: str
    values: np.ndarray
    low: float
    high: float
    lines: dict[str, list[Boundary]]
    status: list[Status]
    messages: list[str]
    rows: list[dict[str, Any]]

    @property
    def converged(self) -> bool:
        """Whether every line was found to the accuracy asked for, or found not to exist."""
        return all(status.converged for status in self.status)

    @property
    def alpha_c(self) -> np.ndarray:
        """(K,) α at which the positional and the semantic branch have equal training loss, or NaN."""
        return self.line("alpha_c")[0]

    @property
    def alpha_c_error(self) -> np.ndarray:
        """(K,) error of that."""
        return self.line("alpha_c")[1]

    @property
    def alpha_l(self) -> np.ndarray:
        """(K,) α beyond which the semantic branch has a lower test error than the linear baseline, or NaN."""
        return self.line("alpha_l")[0]

    @property
    def alpha_l_error(self) -> np.ndarray:
        """(K,) error of that."""
        return self.line("alpha_l")[1]

    def line(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values (K,) and errors (K,) of a line."""
        check.choice("name", name, tuple(self.lines))
        found = self.lines[name]
        return np.array([line.value for line in found]), np.array([line.error for line in found])

    def _rows(self) -> Rows:
        """A line for each value: α_c, α_l and where the branches exist, then in words which lines do not exist."""
        columns = {
            "alpha_c": "α_c",
            "alpha_l": "α_l",
            "semantic_from": "semantic from",
            "semantic_stable_from": "stable from",
            "positional_from": "positional from",
            "positional_to": "positional to",
            **({"weak_recovery": "weak recovery", "full_recovery": "full"} if "weak_recovery" in self.lines else {}),
        }
        rows: Rows = [[self.parameter, *columns.values(), "status"]]
        for k, value in enumerate(self.values):
            cells = [self.lines[name][k] for name in columns]
            numbers = [with_error(found.value, found.error, 6) for found in cells]
            rows.append([f"{value:g}" if np.ndim(value) == 0 else f"no. {k + 1}", *numbers, self.status[k].value])
            rows += [
                f"    {word}: {found.note}"
                for word, found in zip(columns.values(), cells, strict=True)
                if np.isnan(found.value)
            ]
            rows += [f"    {self.messages[k]}"] if self.messages[k] else []
        return rows


def phase_boundaries(
    model: Model,
    omegas: Any = None,
    *,
    lams: Any = None,
    sigmas: Any = None,
    matrices: Any = None,
    alphas: Any = (0.05, 4.0),
    tol: float = 1e-3,
    bayes: bool = False,
    folder: Any = None,
    executor: Any = None,
    threads: int | None = None,
) -> PhaseBoundaries:
    """Where in α the phases change, against one parameter of the model.

    Eq. :eq:`boundaries`.

    Both branches are solved at a ladder of α and followed to their ends. Roots along them are refined until their
    error is within tol. A branch that appears and ends between two neighbouring α of the ladder is not seen.

    Parameters
    ----------
    model : the problem; its own ω if no values are given.
    omegas, lams, sigmas, matrices : values of ω, λ, σ or A; only one of these may be given.
    alphas : (lowest, highest) α.
    tol : error asked for of every boundary.
    bayes : whether to add where the Bayes-optimal estimate begins to work, is complete, and is hard to find.
    folder : where to keep what is finished, so that a rerun goes on from there; nowhere if not given.
    executor : with `submit` as in concurrent.futures, which gets a job for each value; serial if not given.
    threads : of compiled kernels; if not given, all when serial, and one on an executor.

    Returns
    -------
    PhaseBoundaries

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    RuntimeError : if a worker failed.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> pb = ga.phase_boundaries(ga.paper_model(), omegas=[0.3], alphas=(1.0, 2.0))
    >>> f"{pb.alpha_c[0]:.2f} {pb.alpha_l[0]:.2f}"
    '1.25 1.49'
    """
    model = require_attention(model)
    name, values, models = _varied(model, {"omega": omegas, "lam": lams, "sigma": sigmas, "A": matrices})
    low, high = check.array("alphas", alphas, (2,))
    low = check.real("alphas[0]", float(low), low=0, strict=True)
    high = check.real("alphas[1]", float(high), low=low, strict=True)
    search = Search(low, high, check.real("tol", tol, low=1e-6))
    bayes, wanted = check.flag("bayes", bayes), (*LINES, *(BAYES_LINES if bayes else ()))
    check_workers(executor, threads)
    jobs = [
        DiagramJob(each, name, np.asarray(value).tolist(), search, bayes)
        for each, value in zip(models, values, strict=True)
    ]
    base = base_digest(models[0] if name != "A" else _with_matrix(model, np.zeros_like(softmax_teacher(model).A)))
    about = {"model": short_hash(["boundaries", base]), "settings": asdict(search), "format": DIAGRAM_FORMAT}
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        store = Store(place)
        store.begin(about | {"jobs": [job.parameters | {"key": job.key} for job in jobs]})
        run_chains([[job] for job in jobs], store, executor, threads=threads)
        rows = [store.load(job.key) or {"status": "error", "message": "missing from the folder"} for job in jobs]
    lines = {line: [_boundary(row, line) for row in rows] for line in wanted}
    ended = {"converged": Status.CONVERGED, "inaccurate": Status.INACCURATE}
    status = [ended.get(row["status"], Status.NONFINITE) for row in rows]
    messages = [row["message"] for row in rows]
    return PhaseBoundaries(name, np.array(values, dtype=float), low, high, lines, status, messages, rows)


def _boundary(row: dict[str, Any], line: str) -> Boundary:
    """One line of a row; where the job failed, its message."""
    return Boundary(*row["lines"][line]) if "lines" in row else Boundary.none(f"not found: {row['message']}")


def _varied(model: Model, given: dict[str, Any]) -> tuple[str, list[Any], list[Model]]:
    """The parameter that is varied, its values, and the models."""
    chosen = [name for name, values in given.items() if values is not None]
    if len(chosen) > 1:
        raise check.fail("omegas, lams, sigmas, matrices", chosen, "values of one of them")
    name = chosen[0] if chosen else "omega"
    argument = {"omega": "omegas", "lam": "lams", "sigma": "sigmas", "A": "matrices"}[name]
    values: Any = given[name] if chosen else [softmax_teacher(model).omega]
    if check.ndim(argument, values) == 0 or len(values) == 0:
        raise check.fail(argument, values, "a list of at least one value")
    L = model.n_tokens
    if name == "A":
        values = [check.array(f"{argument}[{i}]", A, (L, L)) for i, A in enumerate(values)]
        return name, values, [_with_matrix(model, A) for A in values]
    try:
        models = [with_parameter(model, name, value) for value in values]
        return name, [float(v) for v in values], models
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {error}") from error


def _with_matrix(model: Model, A: np.ndarray) -> Model:
    return replace(model, teacher=replace(softmax_teacher(model), A=A))
