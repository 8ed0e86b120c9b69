"""Comparison of GAMP, state evolution, descents and the linear baseline on one instance of any model.

`compare` runs every solver from the same start on each branch. The descents use the compiled gradient of the risk.
"""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import RISKS, STARTS
from gamp_attention._tools.display import Rows, format_with_error
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import Progress
from gamp_attention.descent.minimize import is_recorded, stable_step
from gamp_attention.descent.torch_risk import DescentResult, status_of
from gamp_attention.extensions.dynamics.message_passing import MessagePassing
from gamp_attention.extensions.dynamics.replicas import Trajectory
from gamp_attention.extensions.dynamics.stored_times import GradientDescent
from gamp_attention.extensions.dynamics.trajectory import trajectory
from gamp_attention.gamp.damping import DAMPING
from gamp_attention.gamp.descent import settle
from gamp_attention.gamp.options import IterationOptions
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import is_ridge
from gamp_attention.problem.risk import overlaps, proximal_map, risk_at, scale_tolerance
from gamp_attention.problem.starts import initial_weights
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.problem.symmetries import align_weights
from gamp_attention.recorder import Recorder
from gamp_attention.results import SIGNS, Result, Status
from gamp_attention.sampling.draw import require_size, sample, sampled_test_error
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.solve import require_rtol, solve_state_evolution
from gamp_attention.theory.linear import LinearBaseline, linear_baseline
from gamp_attention.theory.models.model import Model, has_omega, softmax_teacher

HEADS = ["", *(sign for sign, _ in SIGNS.values()), "‖∇R‖/λ√d", "‖ΔQ‖/√d", "status", "iterations", "seconds"]
TOL = 1e-8  # gradient norm at which descents have converged
N_ITER = 20  # iterations of the predicted trajectories, after which they hardly change
N_TEST = 4000  # number of new samples for test errors, which are then accurate to about one per cent
TRAINING_TIME = 750.0  # steps of gradient descent times step size: 5000 steps of 0.15, as in the paper
MAX_DESCENT_WORK = 1.6e10  # maximum of n L d × number of steps of gradient descent
SOLVERS = 6  # number of solvers of a branch, for the progress bar


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

    def _rows(self) -> Rows:
        pairs = [(self.values[name], self.errors.get(name, math.nan), digits) for name, (_, digits) in SIGNS.items()]
        norms = ["-" if math.isnan(norm) else f"{norm:.1e}" for norm in (self.gradient_norm, self.distance)]
        numbers = [format_with_error(*pair) for pair in pairs]
        return [HEADS, [self.name, *numbers, *norms, self.status, str(self.n_iter), f"{self.seconds:.1f}"]]


@dataclass(frozen=True, eq=False)
class Branch(Result):
    """Results of all solvers on one branch.

    Attributes
    ----------
    gamp, predicted, predicted_descent, fixed_point, descent, quasi_newton : GAMP, whose first iterations use predicted
        responses; the predicted trajectories of GAMP and of gradient descent, and the fixed point of state evolution;
        gradient descent and L-BFGS from the informed start. Gradient descent has a theory for the ridge only, and for
        penalties with kinks accelerated proximal steps replace L-BFGS.
    rows : rows of the table.
    """

    name: str
    gamp: GampResult
    predicted: Trajectory
    predicted_descent: Trajectory | None
    fixed_point: StateEvolutionResult
    descent: DescentResult
    quasi_newton: DescentResult
    rows: list[Row]

    def _rows(self) -> Rows:
        """Return the table with remarks: how GAMP ended, validity of state evolution, different minima."""
        gamp, fixed, name = self.gamp, self.fixed_point, self.rows[-1].name
        notes = [f"  {gamp.message}"]
        if not fixed.consistent and np.isfinite(fixed.replicon):
            notes.append(f"  Replica symmetry of state evolution: {fixed.validity}.")
        gap = self.quasi_newton.train_loss - gamp.train_loss
        if abs(gap) > 1e-9:
            lower = "GAMP" if gap > 0 else name
            notes.append(f"  GAMP and {name} end at different minima; {lower} has the lower loss, by {abs(gap):.1e}.")
        return [f"{self.name} branch", HEADS, *(row._rows()[1] for row in self.rows), *notes]


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Result of `compare`; `str()` returns the table, `to_dict()` plain data for a report in JSON.

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
            error = format_with_error(base.test_error, base.test_error_error, 6)
            rows += ["", f"linear baseline, d → ∞: ε_g = {error}, {base.status.value}"]
        about = "Numbers in brackets are errors in the last digit: half-widths of 95 % for d → ∞, else standard errors."
        return [*rows, f"{about} Total time {self.seconds:.0f} s."]


def gradient_descent(data: Dataset, Q: np.ndarray, risk: str, lr: float, max_iter: int) -> DescentResult:
    """Take steps of gradient descent, proximal if the penalty is not a ridge."""
    tol, record, iterations = scale_tolerance(data, TOL), Recorder(), list[int]()
    for t in range(max_iter + 1):
        at = risk_at(data, Q, risk)
        done = t == max_iter or not at.gradient_norm > tol
        if done or is_recorded(t, max_iter):
            record.add(overlaps(data, Q), at.gradient_norm, at.train_loss)
            iterations.append(t)
        if done:
            break
        if is_ridge(data.penalty):
            Q = Q - lr * at.gradient
        else:
            Q, _ = proximal_map(data.penalty, Q / lr - at.smooth, 1 / lr)
    return end_descent(data, Q, risk, t, Status.MAX_ITER, record.history(), np.array(iterations))


def minimize(data: Dataset, Q: np.ndarray, risk: str) -> DescentResult:
    """Run L-BFGS, or accelerated proximal steps if the penalty has kinks."""
    end = settle(data, risk, Q, scale_tolerance(data, TOL))
    return end_descent(data, end.Q, risk, end.n_iter, Status.STALLED, None, np.zeros(0, dtype=int))


def end_descent(
    data: Dataset, Q: np.ndarray, risk: str, n_iter: int, otherwise: Status, history: Any, iterations: np.ndarray
) -> DescentResult:
    """Return the result of a descent on the compiled risk; `otherwise` is its status if it did not converge."""
    at = risk_at(data, Q, risk)
    loss, norm, ends = at.train_loss, at.gradient_norm, overlaps(data, Q, susceptibility(data, at, Q))
    status = status_of(loss, norm, scale_tolerance(data, TOL), otherwise)
    return DescentResult(status, n_iter, norm, history, iterations, Q, ends, loss, norm)


def _compare_branch(
    model: Model, data: Dataset, name: str, damping: float, progress: Progress, *, alpha: float, seed: int, risk: str,
    rtol: float | None, gd_steps: int | None,
) -> Branch:  # fmt: skip
    """Run all solvers from one start; `progress` counts `SOLVERS` steps."""

    def time_run(task: str, solver: Any, *args: Any, **options: Any) -> tuple[Any, float]:
        progress.describe(f"{name} branch, {task}")
        began = time.perf_counter()
        result = solver(*args, **options)
        progress.update()
        return result, time.perf_counter() - began

    instance, start = (data.instance_model(), data.alpha, name), initial_weights(data, name, 0)
    predicted, _ = time_run("trajectory", trajectory, *instance, MessagePassing(damping), N_ITER)
    tracked = IterationOptions(predicted.V_hat, empirical_after=N_ITER, hold_after=N_ITER)
    gamp, gamp_time = time_run("GAMP", run_gamp, data, name, risk, damping=damping, iteration=tracked)
    fixed, fixed_time = time_run("state evolution", solve_state_evolution, model, alpha, name, rtol=rtol)
    lr = stable_step(data, start, risk)
    predicted_descent = None
    if is_ridge(data.penalty):
        of_descent = *instance, GradientDescent(lr), N_ITER
        predicted_descent, _ = time_run("trajectory of descent", trajectory, *of_descent, n_replicas=4)
    steps = gd_steps or int(min(np.ceil(TRAINING_TIME / lr), max(MAX_DESCENT_WORK / data.tokens.size, 200)))
    descent, descent_time = time_run("gradient descent", gradient_descent, data, start, risk, lr, steps)
    best = "L-BFGS" if data.penalty.smooth else "proximal descent"
    quasi, quasi_time = time_run(best, minimize, data, start, risk)

    def row(label: str, result: Any, seconds: float) -> Row:
        values = {key: float(value) for key, value in result.overlaps.scalars().items()}
        values["train_loss"] = result.train_loss
        norms = np.nan, np.nan
        if result is fixed:
            values["test_error"] = fixed.test_error
            errors = {key: float(error) for key, error in fixed.overlaps_error.scalars().items()}
            errors |= {"train_loss": fixed.train_loss_error, "test_error": fixed.test_error_error}
        else:
            values["test_error"], error = sampled_test_error(data, result.Q, n_samples=N_TEST, seed=seed)
            errors, away = {"test_error": error}, align_weights(model.student, model.penalty, result.Q, gamp.Q) - gamp.Q
            norms = result.gradient_norm, float(np.linalg.norm(away) / np.sqrt(data.dim))
        return Row(label, result.status.value, result.n_iter, values, errors, *norms, seconds)

    rows = [
        row("state evolution", fixed, fixed_time),
        row("GAMP", gamp, gamp_time),
        row(f"gradient descent, {descent.n_iter} steps of {lr:g}", descent, descent_time),
        row(best, quasi, quasi_time),
    ]
    return Branch(name, gamp, predicted, predicted_descent, fixed, descent, quasi, rows)


@guard_call
def compare(
    model: Model,
    d: int = 1000,
    alpha: float = 1.5,
    seed: int = 0,
    *,
    risk: str = "asymptotic",
    rtol: float | None = None,
    gd_steps: int | None = None,
) -> Comparison:
    """Compare GAMP, state evolution and descents on one instance, on the semantic and the positional branch.

    Parameters
    ----------
    model : the problem. Without positions, it has the semantic branch only.
    d, alpha, seed : dimension of a token, sample complexity n/d, and seed of the instance.
    risk : "asymptotic", whose values state evolution predicts up to O(1/√d), or "exact", of equation (3).
    rtol : accuracy of state evolution, see `solve_state_evolution`.
    gd_steps : number of steps of plain gradient descent from the informed start, of the largest stable size there; if
        not given, the training time of the paper (5000 steps of 0.15), or fewer for large data.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError : if `model` is not a model, or an argument has the wrong type.
    ValueError : if a number is out of range, or `risk` is unknown.
    MemoryError : if the tokens do not fit into the available memory.

    Examples
    --------
    A small instance of a generalized linear model:

    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.1)
    >>> comparison = ga.compare(model, d=60, alpha=1.5, gd_steps=20)
    >>> comparison.branches[0].name, comparison.branches[0].gamp.converged
    ('semantic', True)
    """
    model, d, alpha = require_size(model, d, alpha)
    check.require_memory("d, alpha", round(alpha * d), model.n_tokens, d)
    check.choice("risk", risk, RISKS)
    names = STARTS[:2] if model.coordinates.tau.any() else STARTS[:1]
    steps = {name: DAMPING[name] for name in names}
    if rtol is not None:
        require_rtol(rtol)
    if gd_steps is not None:
        check.integer("gd_steps", gd_steps, low=1)
    seed = check.integer("seed", seed, low=0)
    began = time.perf_counter()
    data = sample(model, d, alpha, seed)
    options: dict[str, Any] = {"alpha": alpha, "seed": seed, "risk": risk, "gd_steps": gd_steps}
    with Progress("compare ", total=len(names) * SOLVERS) as progress:
        found = [_compare_branch(model, data, name, steps[name], progress, rtol=rtol, **options) for name in names]
    settings = options | {"d": data.dim, "n": data.n_samples, "lam": model.lam, "damping": steps}
    if has_omega(model):
        settings["omega"] = softmax_teacher(model).omega
    base = linear_baseline(model) if model.attention else None
    return Comparison(settings, found, base, time.perf_counter() - began)
