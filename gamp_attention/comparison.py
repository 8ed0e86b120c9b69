"""GAMP, state evolution and gradient descent on one instance of any model, beside the linear baseline."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from gamp_attention import _validation as check
from gamp_attention.data import RISKS, Dataset, sample
from gamp_attention.generalisation import sampled_test_error
from gamp_attention.gradient_descent import LEARNING_RATES, DescentResult, minimize_risk
from gamp_attention.linear_baseline import LinearBaseline, linear_baseline
from gamp_attention.message_passing import GampResult, run_gamp
from gamp_attention.models import Model, require_model
from gamp_attention.penalties import Ridge
from gamp_attention.results import Overlaps
from gamp_attention.starts import STARTS
from gamp_attention.state_evolution.result import StateEvolutionResult
from gamp_attention.state_evolution.solve import solve_state_evolution
from gamp_attention.state_evolution.trajectory import Trajectory, trajectory
from gamp_attention.teachers import SoftmaxTeacher

DAMPING = {"semantic": 0.5, "positional": 0.3}
FOLLOWED = 20  # iterations of the trajectory that are compared
GD_WORK = 1.6e10  # n L d × steps of plain gradient descent that is affordable: 5000 steps at d = 1000, α = 1.5
TEST_SAMPLES = 4000
PERTURBATION = 1e-3  # of GAMP's weights, before descent from there


def scalars(overlaps: Overlaps) -> dict[str, np.ndarray]:
    """One number for each overlap, unchanged by a rotation of the columns of Q; works on histories too.

    q and V are traces (per column for V) averaged over tokens. For r = t = 1, m is m_1 and θ the average over
    tokens, with their signs; else they are the norms of m_1 and of θ_l, averaged.
    """
    m, theta = overlaps.m[..., 0, :], overlaps.theta
    signed = m.shape[-1] == 1 and theta.shape[-1] == 1
    return {
        "q": np.trace(overlaps.q, axis1=-2, axis2=-1).mean(axis=-1),
        "m": m[..., 0] if signed else np.linalg.norm(m, axis=-1),
        "theta": (theta[..., 0, 0] if signed else np.linalg.norm(theta, axis=(-2, -1))).mean(axis=-1),
        "V": np.trace(overlaps.V, axis1=-2, axis2=-1).mean(axis=-1) / overlaps.V.shape[-1],
    }


@dataclass(frozen=True, eq=False)
class Row:
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


@dataclass(frozen=True, eq=False)
class Branch:
    """All that was computed on one branch.

    Attributes
    ----------
    gamp, predicted, fixed_point, descent, quasi_newton, returned : GAMP; its predicted trajectory and the fixed
        point of state evolution; gradient descent and L-BFGS from the informed start; L-BFGS from GAMP's
        weights, perturbed. Without L-BFGS for other penalties than the ridge: None, and proximal steps.
    instances : how far other instances deviate from their own predictions, each scalar (instances, T + 1).
    rows : the lines of the table.
    """

    name: str
    gamp: GampResult
    predicted: Trajectory
    fixed_point: StateEvolutionResult
    descent: DescentResult
    quasi_newton: DescentResult | None
    returned: DescentResult
    instances: dict[str, np.ndarray]
    rows: list[Row]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Result of `compare`; `str()` gives the table, `to_dict()` what --json writes.

    The linear baseline is None for a model without attention.
    """

    settings: dict[str, Any]
    branches: list[Branch]
    baseline: LinearBaseline | None
    seconds: float

    @property
    def converged(self) -> bool:
        """Whether GAMP and state evolution converged on every branch."""
        return all(branch.gamp.converged and branch.fixed_point.converged for branch in self.branches)

    def __str__(self) -> str:
        from gamp_attention.report import comparison_table

        return comparison_table(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings."""
        from gamp_attention.report import comparison_dict

        return comparison_dict(self)


def compare(
    model: Model,
    d: int = 1000,
    alpha: float = 1.5,
    seed: int = 0,
    *,
    risk: str = "asymptotic",
    branches: Any = None,
    damping: float | None = None,
    rtol: float | None = None,
    lr: float | None = None,
    gd_steps: int | None = None,
    instances: int = 6,
    device: str = "cpu",
) -> Comparison:
    """Run everything on one instance, on the semantic and the positional branch.

    Parameters
    ----------
    model : the problem.
    d, alpha, seed : size, sample complexity and seed of the instance.
    risk : "asymptotic" or "exact".
    branches : the starts; "semantic", and "positional" where there are positions, if not given.
    damping : the step β of GAMP and of its trajectory; 0.5 on the semantic and 0.3 on other branches if not given.
    rtol : accuracy of state evolution, see `solve_state_evolution`.
    lr : step of gradient descent; the paper's 0.15 if not given.
    gd_steps : steps of plain gradient descent from the informed start; as many of the paper's 5000 as are
        affordable if not given.
    instances : further instances, whose deviations from their predictions show how much one fluctuates.
    device : torch device of the descents.

    Returns
    -------
    Comparison

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """
    require_model(model)
    check.choice("risk", risk, RISKS)
    if branches is None:
        branches = DAMPING if model.coordinates.tau.any() else ("semantic",)
    names = [check.choice("branches", name, STARTS) for name in ([branches] if isinstance(branches, str) else branches)]
    if not names:
        raise check.fail("branches", branches, "at least one start")
    steps = {name: DAMPING.get(name, DAMPING["positional"]) for name in names}
    if damping is not None:
        steps = dict.fromkeys(names, check.real("damping", damping, low=0, high=1, strict=True))
    lr = LEARNING_RATES["gd"] if lr is None else check.real("lr", lr, low=0, strict=True)
    seed, instances = check.integer("seed", seed, low=0), check.integer("instances", instances, low=2)
    began = time.perf_counter()
    data = sample(model, d, alpha, seed)
    if gd_steps is None:
        gd_steps = int(np.clip(GD_WORK / data.tokens.size, 200, 5000))
    gd_steps = check.integer("gd_steps", gd_steps, low=1)
    with tqdm(total=len(names) * 6, disable=None, leave=False) as progress:
        found = [
            _branch(
                model, data, alpha, name, risk, steps[name], rtol, (gd_steps, lr), instances, seed, device, progress
            )
            for name in names
        ]
    settings = {
        "d": data.dim,
        "n": data.n_samples,
        "alpha": alpha,
        "seed": seed,
        "risk": risk,
        "lam": model.lam,
        "lr": lr,
        "gd_steps": gd_steps,
        "instances": instances,
        "damping": steps,
    }
    if isinstance(model.teacher, SoftmaxTeacher):
        settings["omega"] = model.teacher.omega
    return Comparison(settings, found, linear_baseline(model) if model.attention else None, time.perf_counter() - began)


def _branch(
    model: Model,
    data: Dataset,
    alpha: float,
    name: str,
    risk: str,
    damping: float,
    rtol: float | None,
    plain_descent: tuple[int, float],
    instances: int,
    seed: int,
    device: str,
    progress: Any,
) -> Branch:
    gd_steps, lr = plain_descent
    smooth = type(model.penalty) is Ridge

    def timed(what: str, solver: Any, *args: Any, **options: Any) -> tuple[Any, float]:
        progress.set_description(f"{name}: {what}")
        began = time.perf_counter()
        result = solver(*args, **options)
        progress.update()
        return result, time.perf_counter() - began

    gamp, gamp_time = timed("GAMP", run_gamp, data, name, risk, damping=damping)
    fixed, fixed_time = timed("state evolution", solve_state_evolution, model, alpha, name, rtol=rtol)
    predicted, _ = timed(
        "trajectory", trajectory, data.instance_model(), data.alpha, name, damping=damping, n_iter=FOLLOWED
    )
    plain = {"method": "gd", "lr": lr, "max_iter": gd_steps}
    descent, descent_time = timed("gradient descent", minimize_risk, data, name, risk, **plain, device=device)
    best = {"method": "lbfgs"} if smooth else plain
    quasi, quasi_time = None, np.nan
    if smooth:
        quasi, quasi_time = timed("L-BFGS", minimize_risk, data, name, risk, **best, device=device)
    noise = np.random.default_rng([seed, 1]).standard_normal(gamp.Q.shape)
    size = PERTURBATION * np.linalg.norm(gamp.Q) / np.linalg.norm(noise)
    returned, returned_time = timed(
        "descent from GAMP", minimize_risk, data, gamp.Q + size * noise, risk, **best, device=device
    )
    others = [
        deviation(sample(model, data.dim, alpha, seed + 1 + k), name, risk, damping, seed=seed + 1 + k)[0]
        for k in range(instances)
    ]

    def row(label: str, result: Any, seconds: float) -> Row:
        error, error_error = sampled_test_error(
            data, result.Q, n_samples=TEST_SAMPLES, seed=np.random.default_rng([seed, 2])
        )
        return Row(
            name=label,
            status=result.status.value,
            n_iter=result.n_iter,
            values=_floats(scalars(result.overlaps)) | {"train_loss": result.train_loss, "test_error": error},
            errors={"test_error": error_error},
            gradient_norm=result.gradient_norm,
            distance=_distance(model, result.Q, gamp.Q),
            seconds=seconds,
        )

    rows = [
        Row(
            name="state evolution",
            status=fixed.status.value,
            n_iter=fixed.n_iter,
            values=_floats(scalars(fixed.overlaps)) | {"train_loss": fixed.train_loss, "test_error": fixed.test_error},
            errors=_floats(scalars(fixed.overlaps_error))
            | {"train_loss": fixed.train_loss_error, "test_error": fixed.test_error_error},
            gradient_norm=np.nan,
            distance=np.nan,
            seconds=fixed_time,
        ),
        row("GAMP", gamp, gamp_time),
        row(f"gradient descent, {descent.n_iter} steps", descent, descent_time),
        *([] if quasi is None else [row("L-BFGS", quasi, quasi_time)]),
        row(f"{'L-BFGS' if smooth else 'descent'} from GAMP + noise", returned, returned_time),
    ]
    spread = {key: np.array([other[key] for other in others]) for key in others[0]}
    return Branch(name, gamp, predicted, fixed, descent, quasi, returned, spread, rows)


def deviation(
    data: Dataset, name: str, risk: str, damping: float, n_iter: int = FOLLOWED, *, seed: int, **options: Any
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """GAMP's scalars less the prediction for this instance, at every iteration, and that prediction's standard errors.

    Options go to `run_gamp`.
    """
    path = trajectory(data.instance_model(), data.alpha, name, damping=damping, n_iter=n_iter, n_replicas=2, seed=seed)
    if options.get("onsager") == "state_evolution":
        options["onsager"] = path.V_hat
    run = run_gamp(data, name, risk, damping=damping, tol=0, max_iter=n_iter, **options)
    seen, predicted = scalars(run.history), scalars(path)
    return {key: seen[key] - predicted[key] for key in seen}, scalars(path.error)


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
