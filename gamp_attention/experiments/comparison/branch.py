"""One branch of a comparison: every solver from the same start on one instance."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core.progress import Progress
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.baselines.descent import minimize_risk
from gamp_attention.baselines.stable_step import stable_step
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.sampling import sample
from gamp_attention.data.starts import initial_weights
from gamp_attention.data.test_error import sampled_test_error
from gamp_attention.experiments.comparison.result import Branch, Row
from gamp_attention.gamp.run import run_gamp
from gamp_attention.models.model import Model
from gamp_attention.state_evolution.dynamics.trajectory import trajectory
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution


@dataclass(frozen=True)
class Effort:
    """How much is computed to compare, besides what is asked for."""

    followed: int = 20  # iterations of the trajectory, after which it hardly moves
    test_samples: int = 4000  # for test errors within about a per cent
    perturbation: float = 1e-3  # of GAMP's weights before descent from there, small enough to stay in the same valley
    training_time: float = 750.0  # of gradient descent, steps times their size: 5000 steps of .15, as in the paper
    descent_work: float = 1.6e10  # n L d × steps of it at most
    replicas: int = 4  # of the descent's prediction
    solvers: int = 7  # of a branch at most, for the progress bar


EFFORT = Effort()


@dataclass(frozen=True)
class Plan:
    """How a comparison is made, named as the arguments of `gamp_attention.compare`."""

    alpha: float
    seed: int
    risk: str
    rtol: float | None
    lr: float | None
    gd_steps: int | None
    instances: int
    device: str


def compare_branch(model: Model, data: Dataset, name: str, damping: float, plan: Plan, progress: Progress) -> Branch:
    """Run everything from one start; `progress` counts at most EFFORT.solvers steps."""
    alpha, seed, risk = plan.alpha, plan.seed, plan.risk
    quasi_newton = model.penalty.quadratic

    def timed(what: str, solver: Any, *args: Any, **options: Any) -> tuple[Any, float]:
        progress.describe(f"{name} branch, {what}")
        began = time.perf_counter()
        result = solver(*args, **options)
        progress.update()
        return result, time.perf_counter() - began

    followed: Any = {"n_iter": EFFORT.followed}
    instance = data.instance_model(), data.alpha, name
    predicted, _ = timed("trajectory", trajectory, *instance, damping=damping, **followed)
    tracked: Any = {"onsager": predicted.V_hat, "empirical_after": EFFORT.followed}
    gamp, gamp_time = timed("GAMP", run_gamp, data, name, risk, damping=damping, hold_after=EFFORT.followed, **tracked)
    fixed, fixed_time = timed("state evolution", solve_state_evolution, model, alpha, name, rtol=plan.rtol)
    lr = stable_step(data, initial_weights(data, name, 0), risk) if plan.lr is None else plan.lr
    plain: Any = {"method": "gd", "lr": lr}
    followed |= {"n_replicas": EFFORT.replicas}
    predicted_descent, _ = timed("its trajectory", trajectory, *instance, **plain, **followed)
    plain |= {"max_iter": plan.gd_steps or _steps(data, lr), "device": plan.device}
    descent, descent_time = timed("gradient descent", minimize_risk, data, name, risk, **plain)
    best = {"method": "lbfgs", "device": plan.device} if quasi_newton else plain
    quasi, quasi_time = timed("L-BFGS", minimize_risk, data, name, risk, **best) if quasi_newton else (None, np.nan)
    noise = generator(seed, Stream.PERTURBATIONS).standard_normal(gamp.Q.shape)
    size = EFFORT.perturbation * np.linalg.norm(gamp.Q) / np.linalg.norm(noise)
    returned, returned_time = timed("descent from GAMP", minimize_risk, data, gamp.Q + size * noise, risk, **best)
    others = [
        deviation(sample(model, data.dim, alpha, other), name, risk, damping, seed=other, onsager="state_evolution")[0]
        for other in range(seed + 1, seed + 1 + plan.instances)
    ]

    def row(label: str, result: Any, seconds: float) -> Row:
        test_error, error = sampled_test_error(data, result.Q, n_samples=EFFORT.test_samples, seed=seed)
        norms = result.gradient_norm, _distance(model, result.Q, gamp.Q)
        return _row(label, result, seconds, test_error, {"test_error": error}, norms)

    errors = _floats(fixed.overlaps_error.scalars())
    errors |= {"train_loss": fixed.train_loss_error, "test_error": fixed.test_error_error}
    rows = [
        _row("state evolution", fixed, fixed_time, fixed.test_error, errors, (np.nan, np.nan)),
        row("GAMP", gamp, gamp_time),
        row(f"gradient descent, {descent.n_iter} steps of {lr:g}", descent, descent_time),
        *([] if quasi is None else [row("L-BFGS", quasi, quasi_time)]),
        row(f"{'L-BFGS' if quasi_newton else 'descent'} from GAMP + noise", returned, returned_time),
    ]
    spread = {key: np.array([other[key] for other in others]) for key in others[0]}
    return Branch(name, gamp, predicted, predicted_descent, fixed, descent, quasi, returned, spread, rows)


def _steps(data: Dataset, lr: float) -> int:
    """Steps of gradient descent that make the paper's training time, if these are affordable."""
    affordable = EFFORT.descent_work / data.tokens.size
    return max(1, int(min(np.ceil(EFFORT.training_time / lr), max(affordable, 200))))


def deviation(
    data: Dataset, name: str, risk: str, damping: float, n_iter: int = EFFORT.followed, *, seed: int, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """GAMP's scalars minus their prediction for this instance, at every iteration, and its standard errors.

    Options go to `run_gamp`.
    """
    path = trajectory(data.instance_model(), data.alpha, name, damping=damping, n_iter=n_iter, n_replicas=2, seed=seed)
    if options.get("onsager") == "state_evolution":
        options["onsager"] = path.V_hat
    run = run_gamp(data, name, risk, damping=damping, tol=0, max_iter=n_iter, **options)
    seen, predicted = run.history.scalars(), path.scalars()
    return {key: seen[key] - predicted[key] for key in seen}, path.error.scalars()


def _row(
    label: str, result: Any, seconds: float, test_error: float, errors: dict[str, float], norms: tuple[float, float]
) -> Row:
    """The row of a result; the norms are of its gradient, and of its distance from GAMP's weights."""
    values = _floats(result.overlaps.scalars()) | {"train_loss": result.train_loss, "test_error": test_error}
    return Row(label, result.status.value, result.n_iter, values, errors, *norms, seconds)


def _floats(values: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _distance(model: Model, Q: np.ndarray, other: np.ndarray) -> float:
    """‖Q − Q'‖_F/√d after the best common rotation of the columns, or sign, where these are symmetries."""
    if model.rotations and model.student.parts == 1:
        u, _, v = np.linalg.svd(Q.T @ other)
        Q = Q @ (u @ v)
    elif model.even and np.sum(Q * other) < 0:
        Q = -Q
    return float(np.linalg.norm(Q - other) / np.sqrt(len(Q)))
