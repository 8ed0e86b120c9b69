"""What all methods of `trajectory` share: their task, means over independent replicas, and the result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows
from gamp_attention.extensions.dynamics.field_paths import min_paths
from gamp_attention.extensions.dynamics.message_paths import Row
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.results import Overlaps
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import StartLaw, start_law


@dataclass(frozen=True, eq=False)
class TrajectoryTask:
    """Problem, start and size of the computation of a trajectory, as for `trajectory`."""

    model: Model
    alpha: float
    init: str | Overlaps
    n_iter: int
    n_paths: int | None  # None for the default of the method
    n_replicas: int
    rng: np.random.Generator
    progress: bool | None

    def count_paths(self, default: int, n_times: int) -> int:
        """Return the number of paths of a replica, which must be enough for the covariances between `n_times` times."""
        n_paths, enough = default if self.n_paths is None else self.n_paths, min_paths(self.model, n_times)
        if n_paths % 2 or n_paths < enough:
            raise check.fail("n_paths", n_paths, f"an even number of at least {enough} for {self.n_iter} iterations")
        check.require_memory("n_paths, n_iter", n_paths, enough // 4)
        size = 4 * self.model.n_sources * self.model.rank
        check.require_memory("n_replicas, n_iter", self.n_replicas, self.n_iter + 1, size)
        return n_paths

    def require_ridge(self, argument: str, value: Any, intercept: bool = True) -> None:
        """Raise ValueError unless the penalty is a ridge, or if an intercept is not accepted and there is one."""
        if not self.model.penalty.quadratic:
            name = type(self.model.penalty).__name__
            needs = f"MessagePassing without hold_after for {name}, as all other methods need the ridge"
            raise check.fail(argument, value, needs)
        if self.model.intercept and not intercept:
            raise check.fail(argument, value, "another method for a model with an intercept")

    def start(self, needs_V: bool = True) -> StartLaw:
        """Return the distribution of the initial weights."""
        return start_law(self.model, self.init, needs_V)

    @contextmanager
    def finite(self, steps: str) -> Iterator[None]:
        """Raise ValueError if fields overflow; `steps` is the name of the argument with the step sizes."""
        try:
            yield
        except (FloatingPointError, np.linalg.LinAlgError):
            needs = f"numbers for which all fields stay finite, such as a smaller {steps}, alpha or penalty"
            raise check.fail(f"model, alpha, {steps}", self.model, needs) from None


@dataclass(frozen=True, eq=False)
class Trajectory(Overlaps):
    """Overlaps and losses predicted at every iteration, entry 0 being the start: means over independent replicas.

    The attributes from `V_hat` to `U_error` are empty (no times) for gradient descent, which takes no proximal steps.
    With `hold_after` and for survey propagation, `V_hat` is the average of derivatives, and the jump masses are empty.

    Attributes
    ----------
    q, m, theta, V : overlaps with an additional first axis of time (T + 1); V is NaN for descents.
    error : standard errors of the overlaps, from the spread over replicas; if histories are compressed, combined with
        the error of the compression, and for message passing with the bias by the finite number of paths.
    train_loss, test_error : (T + 1,) training loss ε_t and test error ε_g.
    train_loss_error, test_error_error : (T + 1,) standard errors of both, combined in the same way.
    V_hat : (T, L, r, r) responses V̂_t for `IterationOptions(V_hat=...)`; without `hold_after` in Stein's form.
    jump_mass : (T, L, r, r) contribution of jumps V̂_Stein − V̂_derivative, never positive except for numerical errors.
    jump_mass_error : (T, L, r, r) standard error of `jump_mass`.
    jump_share, jump_share_error : (T,) trace of the jump mass, relative to the trace of V̂ in the larger of its two
        forms, both summed over tokens; and the standard error of this ratio.
    jump_shift : (T,) relative change of the new V if the jumps are left out of V̂, as in message passing on data.
    U, U_error : (T + 1, L, r, r) covariances U of the inner fields of survey propagation, and their standard errors;
        empty (no times) for other methods.
    method : the method whose iterations are predicted.
    validity : statement whether runs at finite d follow the prediction.
    stored : times at which the first replica stored its histories; empty for message passing without `hold_after` and
        for descent on new samples, which store none.
    """

    error: Overlaps
    train_loss: np.ndarray
    train_loss_error: np.ndarray
    test_error: np.ndarray
    test_error_error: np.ndarray
    V_hat: np.ndarray
    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    jump_share: np.ndarray
    jump_share_error: np.ndarray
    jump_shift: np.ndarray
    U: np.ndarray
    U_error: np.ndarray
    method: Any = None
    validity: str = ""
    stored: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields: arrays as lists, NaN as None, the method as text."""
        return super().to_dict() | {"method": repr(self.method)}

    def _rows(self) -> Rows:
        return [*super()._rows(), f"  validity: {self.validity}"]


def damping_steps(damping: Any) -> Steps:
    """Return a valid `damping`, sequences as tuples; raise an error if it is not a step or a sequence of steps."""
    Damping(damping)
    return damping if check.ndim("damping", damping) == 0 else tuple(map(float, damping))


def stack_replicas(runs: list[list[Row]]) -> dict[str, np.ndarray]:
    """Return the numbers of replicas, each with rows of all times, by name, with axes of replicas and times.

    Names that the last row of a replica lacks have a time less.
    """
    names = runs[0][0] if runs else {}
    return {name: np.array([[row[name] for row in rows if name in row] for rows in runs]) for name in names}


def join_errors(values: dict[str, Any], errors: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return values and their errors by name, with all names of `stack_replicas`, as fields of `Trajectory`.

    The fields from V̂ to the errors of U have no times if they are not among the values. V̂ has no errors.
    """
    matrices, numbers = np.zeros((0, *values["V"].shape[1:])), np.zeros(0)
    empty = dict.fromkeys(("V_hat", "jump_mass", "jump_mass_error", "U", "U_error"), matrices)
    empty |= dict.fromkeys(("jump_share", "jump_share_error", "jump_shift"), numbers)
    overlaps = {name: errors[name] for name in ("q", "m", "theta", "V")}
    others = {f"{name}_error": error for name, error in errors.items() if name not in (*overlaps, "V_hat")}
    return empty | values | others | {"error": Overlaps(**overlaps)}


def mean_over_replicas(stacks: dict[str, np.ndarray], bias: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Return means over replicas as fields of `Trajectory`, and their standard errors, which include a `bias`."""
    errors = {name: values.std(axis=0, ddof=1) / np.sqrt(len(values)) for name, values in stacks.items()}
    errors |= {name: np.hypot(errors[name], each) for name, each in (bias or {}).items()}
    return join_errors({name: values.mean(axis=0) for name, values in stacks.items()}, errors)


def average_descents(
    stacks: dict[str, np.ndarray], bias: dict[str, np.ndarray] | None = None, **others: Any
) -> Trajectory:
    """Return the means over replicas of a descent, whose V is unknown, with `others` as fields of the result."""
    unknown = np.full_like(stacks["V"], np.nan)
    validity = "consistent: descent takes no proximal steps, which could jump, and its equations hold on every branch"
    return Trajectory(**mean_over_replicas(stacks | {"V": unknown}, bias), **others, validity=validity)
