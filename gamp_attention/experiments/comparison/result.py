"""Result of `compare` and its table."""

import math
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core.text import Rows, with_error
from gamp_attention.baselines.descent import DescentResult
from gamp_attention.baselines.linear import LinearBaseline
from gamp_attention.gamp.run import GampResult
from gamp_attention.results import SIGNS, Result
from gamp_attention.state_evolution.dynamics.trajectory import Trajectory
from gamp_attention.state_evolution.fixed_points.result import StateEvolutionResult

HEADS = ["", *(sign for sign, _ in SIGNS.values()), "‖∇R‖/λ√d", "‖ΔQ‖/√d", "status", "iterations", "seconds"]


@dataclass(frozen=True, eq=False)
class Row(Result):
    """Row of the table: the end point of one solver.

    Errors are standard errors for data of finite d, half-widths of 95 % confidence for d → ∞, and NaN if unknown.
    """

    name: str
    status: str
    n_iter: int
    values: dict[str, float]
    errors: dict[str, float]
    gradient_norm: float
    distance: float  # ‖Q − Q_GAMP‖/√d, minimized over the symmetries of the model
    seconds: float

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        numbers = [
            with_error(self.values[name], self.errors.get(name, math.nan), digits)
            for name, (_, digits) in SIGNS.items()
        ]
        norms = ["-" if math.isnan(norm) else f"{norm:.1e}" for norm in (self.gradient_norm, self.distance)]
        return [self.name, *numbers, *norms, self.status, str(self.n_iter), f"{self.seconds:.1f}"]

    def _rows(self) -> Rows:
        return [HEADS, self.cells()]


@dataclass(frozen=True, eq=False)
class Branch(Result):
    """Results of all solvers on one branch.

    Attributes
    ----------
    gamp, predicted, predicted_descent, fixed_point, descent, quasi_newton, returned : GAMP, whose first iterations use
        predicted responses; the predicted trajectories of GAMP and of gradient descent, and the fixed point of state
        evolution; gradient descent and L-BFGS from the informed start; L-BFGS from the perturbed weights of GAMP. With
        another penalty than the ridge, proximal steps replace L-BFGS and `quasi_newton` is None.
    instances : deviations of other instances from their predictions, an array (instances, T + 1) for each scalar.
    rows : rows of the table.
    """

    name: str
    gamp: GampResult
    predicted: Trajectory
    predicted_descent: Trajectory
    fixed_point: StateEvolutionResult
    descent: DescentResult
    quasi_newton: DescentResult | None
    returned: DescentResult
    instances: dict[str, np.ndarray]
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of all fields, and under separate names the data from which the picture is drawn."""
        data = super().to_dict()
        gamp, path = data["gamp"], data["predicted"]
        return data | {
            **{name: gamp[name] for name in ("n_off_global", "n_near_jump", "message", "history")},
            "jump_mass": data["fixed_point"]["jump_mass"],
            "trajectory": path,
            "trajectory_error": path["error"],
            "trajectory_jump_mass": path["jump_mass"],
        }

    def _rows(self) -> Rows:
        return [f"{self.name} branch", HEADS, *(row.cells() for row in self.rows), *self._notes()]

    def _notes(self) -> list[str]:
        """Return remarks below the table: how GAMP ended, validity of state evolution, different minima."""
        gamp, fixed = self.gamp, self.fixed_point
        notes = [f"  {gamp.message} {gamp.n_off_global} samples are not at their global proximal minimum."]
        if not fixed.consistent and np.isfinite(fixed.replicon):
            notes.append(f"  State evolution is {fixed.validity}.")
        if self.quasi_newton is None:
            return notes
        gap = self.quasi_newton.train_loss - gamp.train_loss
        if abs(gap) > 1e-9:
            lower = "GAMP" if gap > 0 else "L-BFGS"
            notes.append(f"  GAMP and L-BFGS end at different minima; {lower} has the lower loss, by {abs(gap):.1e}.")
        return notes


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Result of `compare`; `str()` returns the table, `to_dict()` the content of the file that --json writes.

    Attributes
    ----------
    settings : arguments, with d, n, α, λ and the damping of each branch.
    branches : results of GAMP, state evolution and descents, one entry for each start.
    baseline : the linear baseline; None for a model without attention.
    seconds : total elapsed time in seconds.
    """

    settings: dict[str, Any]
    branches: list[Branch]
    baseline: LinearBaseline | None
    seconds: float

    @property
    def converged(self) -> bool:
        """True if GAMP and state evolution converged on every branch."""
        return all(branch.gamp.converged and branch.fixed_point.converged for branch in self.branches)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of all fields, with the versions of the packages."""
        import numba

        from gamp_attention._version import __version__

        data = super().to_dict()
        versions = {"gamp_attention": __version__, "numpy": np.__version__, "numba": numba.__version__}
        return data | {
            "linear_baseline": data["baseline"],
            "versions": versions | {"python": platform.python_version()},
        }

    def heading(self, *names: str) -> str:
        """Return a line with the named sizes and parameters, as far as they are set."""
        signs, s = {"alpha": "α", "omega": "ω", "lam": "λ"}, self.settings
        return ", ".join(f"{signs.get(name, name)} = {s[name]:g}" for name in names if name in s)

    def _rows(self) -> Rows:
        s, base = self.settings, self.baseline
        rows: Rows = [f"{self.heading('d', 'n', 'alpha', 'omega', 'lam')}, seed {s['seed']}, {s['risk']} risk"]
        for branch in self.branches:
            first, *others = branch._rows()
            rows += ["", f"{first}, β = {s['damping'][branch.name]:g}", *others]
        if base is not None:
            error = with_error(base.test_error, base.test_error_error, 6)
            rows += ["", f"linear baseline, d → ∞: ε_g = {error}, {base.status.value}"]
        return [
            *rows,
            "Numbers in brackets are errors in the last digit: half-widths of 95 % for d → ∞, else standard errors. "
            f"Total time {self.seconds:.0f} s.",
        ]


class Interrupted(KeyboardInterrupt):
    """Interruption of a comparison; attribute `result` has the finished branches."""

    def __init__(self, result: Comparison, unfinished: str) -> None:
        finished = ", ".join(branch.name for branch in result.branches)
        super().__init__(
            f"interrupted on the {unfinished} branch, the {finished} branch is finished: run the same again for both"
        )
        self.result = result
