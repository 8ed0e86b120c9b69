"""What `compare` returns, and its table."""

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
    """One line of the table: a solver's end point.

    Errors are standard errors, of state evolution half-widths of 95 %, and NaN where there is none.
    """

    name: str
    status: str
    n_iter: int
    values: dict[str, float]
    errors: dict[str, float]
    gradient_norm: float
    distance: float  # ‖Q − Q_GAMP‖/√d, up to what the model leaves open
    seconds: float

    def cells(self) -> list[str]:
        """The row of the table."""
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
    """All that was computed on one branch.

    Attributes
    ----------
    gamp, predicted, predicted_descent, fixed_point, descent, quasi_newton, returned : GAMP, whose first iterations take
        predicted responses; the predicted trajectories of it and of gradient descent, and the fixed point of state
        evolution; gradient descent and L-BFGS from the informed start; L-BFGS from GAMP's weights, perturbed. Without
        L-BFGS for other penalties than the ridge: None, and proximal steps.
    instances : how far other instances deviate from their own predictions, each scalar (instances, T + 1).
    rows : the lines of the table.
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
        """Plain data of all fields, and by names of their own what the picture is drawn from."""
        found = super().to_dict()
        gamp, path = found["gamp"], found["predicted"]
        return found | {
            **{name: gamp[name] for name in ("n_off_global", "n_near_jump", "message", "history")},
            "jump_mass": found["fixed_point"]["jump_mass"],
            "trajectory": path,
            "trajectory_error": path["error"],
            "trajectory_jump_mass": path["jump_mass"],
        }

    def _rows(self) -> Rows:
        return [f"{self.name} branch", HEADS, *(row.cells() for row in self.rows), *self._notes()]

    def _notes(self) -> list[str]:
        """What the numbers alone do not tell."""
        gamp, fixed = self.gamp, self.fixed_point
        notes = [f"  GAMP {gamp.message}; {gamp.n_off_global} samples off their global proximal minimum."]
        if not fixed.consistent and np.isfinite(fixed.replicon):
            notes.append(f"  State evolution is {fixed.validity}.")
        if self.quasi_newton is None:
            return notes
        gap = self.quasi_newton.train_loss - gamp.train_loss
        if abs(gap) > 1e-9:
            lower = "GAMP" if gap > 0 else "L-BFGS"
            notes.append(f"  GAMP and L-BFGS end at different minima; the lower is {lower}'s, by {abs(gap):.1e}.")
        return notes


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Result of `compare`; `str()` gives the table, `to_dict()` what --json writes.

    Attributes
    ----------
    settings : what was asked for, with d, n, α, λ and the damping of each branch.
    branches : GAMP, state evolution and descents, one entry for each start.
    baseline : the linear baseline; None for a model without attention.
    seconds : what all took.
    """

    settings: dict[str, Any]
    branches: list[Branch]
    baseline: LinearBaseline | None
    seconds: float

    @property
    def converged(self) -> bool:
        """Whether GAMP and state evolution converged on every branch."""
        return all(branch.gamp.converged and branch.fixed_point.converged for branch in self.branches)

    def to_dict(self) -> dict[str, Any]:
        """Plain data of all fields, with the versions that made them."""
        import numba

        from gamp_attention._version import __version__

        found = super().to_dict()
        versions = {"gamp_attention": __version__, "numpy": np.__version__, "numba": numba.__version__}
        return found | {
            "linear_baseline": found["baseline"],
            "versions": versions | {"python": platform.python_version()},
        }

    def heading(self, *names: str) -> str:
        """Sizes and parameters in a line, those that there are."""
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
            "Numbers in brackets are errors in the last digit: half-widths of 95 % where d → ∞, else standard errors. "
            f"{self.seconds:.0f} s in all.",
        ]


class Interrupted(KeyboardInterrupt):
    """A comparison was interrupted; the branches that were finished are in `.result`."""

    def __init__(self, result: Comparison, unfinished: str) -> None:
        kept = ", ".join(branch.name for branch in result.branches)
        super().__init__(
            f"interrupted on the {unfinished} branch, the {kept} branch is finished: run the same again for both"
        )
        self.result = result
