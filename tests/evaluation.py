"""Evaluation of calls: whether an answer is correct, an error names its cause, and the call ends in time.

`evaluate_call` checks the answer of a line of `calls` independently of the statuses that the package reports. Its time
is processor time, so that other programs on the machine have no effect.
"""

import inspect
import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention.descent.torch_risk import TorchRisk
from gamp_attention.theory.equations.units import relative_change
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.choice import first_rule
from tests.calls import list_arguments
from validation._tools.names import PUBLIC

SLACK = 1.01  # factor on a tolerance, for rounding in the second computation
ROUNDING = 1e-12  # rounding error of a gradient, in units of its summands
MAX_CHANGE = 10  # change of a fixed point in one more iteration, at most, in units of rtol


class RecordingModule:
    """The package, with a record of the arguments of the last call of each solver."""

    def __init__(self) -> None:
        self.last: dict[str, dict[str, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(ga, name)
        if name not in ("run_gamp", "train", "minimize_risk", "solve_state_evolution"):
            return attribute

        def called(*args: Any, **options: Any) -> Any:
            try:
                bound = inspect.signature(attribute).bind(*args, **options)
                bound.apply_defaults()
                self.last[name] = bound.arguments
            except TypeError:
                pass
            return attribute(*args, **options)

        return called


def evaluate_call(line: str, names: dict[str, Any], limit: float) -> dict[str, Any]:
    """Evaluate a line and return its outcome: "answered", "refused" or "raised".

    "refused" means an error that names the argument, its requirement and its value. "faults" lists problems: "false"
    (converged without being so), "nan" (numbers that are not finite and no status that says so), "raised", "warned",
    and "late" if it took more than `limit` seconds, also in a second attempt, after its kernels have been compiled.
    """
    began = time.process_time()
    outcome = _evaluate(line, names)
    if time.process_time() - began > limit:
        began = time.process_time()
        outcome = _evaluate(line, names)
        outcome["faults"] += ["late"] * (time.process_time() - began > limit)
    return outcome


def _evaluate(line: str, names: dict[str, Any]) -> dict[str, Any]:
    watched = names["ga"]
    watched.last.clear()
    row: dict[str, Any] = {"outcome": "answered", "message": None, "faults": []}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = eval(line, names)
        except ga.ConvergenceError as error:
            result, row["message"] = error.result, str(error)
        except Exception as error:
            row["message"] = f"{type(error).__name__}: {error}"
            row["outcome"] = "refused" if is_named(error, line) else "raised"
            row["faults"] += ["raised"] * (row["outcome"] == "raised")
            result = None
    row["warned"] = sorted({f"{each.category.__name__}: {each.message}"[:200] for each in seen})
    row["faults"] += ["warned"] * bool(row["warned"])
    if row["outcome"] == "answered":
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for each in _list_parts(result):
                row["faults"] += [fault for fault in _find_faults(each, watched) if fault not in row["faults"]]
    return row


def is_named(error: Exception, line: str) -> bool:
    """Return whether an error names an argument, what it needs and what it got."""
    words = str(error)
    known = {slot.name for slot in list_arguments(line)} | {
        name for each in PUBLIC if f"{each}(" in line and callable(getattr(ga, each))
        for name in inspect.signature(getattr(ga, each)).parameters
    }  # fmt: skip
    is_worded = isinstance(error, ValueError | TypeError) and ("need" in words or "must" in words) and "got" in words
    return is_worded and any(name in words for name in known)


def _list_parts(result: Any) -> Iterable[Any]:
    """Return the results within a result."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], ga.GampState):
        seen = result[1]  # the report of the step shows whether numbers are finite
        return result if seen.denoised.solved.all() and all_finite([seen.gradient_norm]) else []
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return result
    return [result]


def _find_faults(result: Any, watched: RecordingModule) -> list[str]:
    if isinstance(result, ga.GampResult | ga.DescentResult):
        called = (watched.last.get(name) for name in ("run_gamp", "train", "minimize_risk"))
        return _check_descent(result, next(filter(None, called), None))
    if isinstance(result, ga.StateEvolutionResult):
        return _check_fixed_point(result, watched.last.get("solve_state_evolution"))
    if isinstance(result, ga.Denoised):
        good = result.solved
        return [] if all_finite([result.z[good], result.g[good], result.loss[good], result.moreau[good]]) else ["nan"]
    if isinstance(result, ga.LinearBaseline):
        known = all_finite([result.weights, result.weights_error, result.test_error, result.test_error_error])
        return [] if known or not result.converged else ["nan"]
    if isinstance(result, ga.Trajectory):
        return [] if all_finite([*result.arrays().values(), *result.error.arrays().values()]) else ["nan"]
    if isinstance(result, ga.GampState):
        return [] if all_finite([result.Q, result.V, np.asarray(result.D)]) else ["nan"]
    if isinstance(result, np.ndarray | float):
        return [] if all_finite([result]) else ["nan"]
    return []


def all_finite(values: Iterable[Any]) -> bool:
    """Return whether all numbers are finite."""
    return all(np.isfinite(value).all() for value in values)


def _check_descent(result: Any, arguments: Any) -> list[str]:
    faults = []
    if not all_finite([result.Q]) or (result.converged and not all_finite([result.train_loss, result.gradient_norm])):
        faults.append("nan")
    if result.converged and arguments:
        norm, rounding = compute_gradient_norm(arguments["data"], result.Q, arguments["risk"])
        if not norm <= SLACK * arguments["tol"] + rounding:
            faults.append("false")
    return faults


def compute_gradient_norm(data: ga.Dataset, Q: np.ndarray, risk: str) -> tuple[float, float]:
    """Return the norm of the smallest (sub)gradient by torch, and an upper bound of its rounding error.

    Penalties that torch does not cover use the package's gradient.
    """
    import torch

    there = torch.tensor(Q, requires_grad=True)
    TorchRisk(data, risk, "cpu")(there).backward()
    smooth, penalty = there.grad.numpy(), data.penalty
    if isinstance(penalty, ga.ElasticNet):
        smooth = smooth + penalty.lam * Q
        off = np.sign(smooth) * np.maximum(np.abs(smooth) - penalty.l1, 0)
        smooth = np.where(Q != 0, smooth + penalty.l1 * np.sign(Q), off)
    elif not penalty.quadratic:
        smooth = ga.gradient(data, Q, risk)
    unit = penalty.strength * np.sqrt(data.dim)
    tokens = np.asarray(data.tokens)
    largest = np.sqrt(np.mean(tokens**2)) * data.n_samples**0.5 + np.linalg.norm(data.positions)
    size = largest * np.abs(data.terms(risk).params).max() * (1 + np.abs(Q).max() * largest) + unit * np.abs(Q).max()
    return float(np.linalg.norm(smooth)) / unit, ROUNDING * float(size) / unit


def _check_fixed_point(result: ga.StateEvolutionResult, arguments: Any) -> list[str]:
    if not result.converged:
        return []
    if not all_finite([result.train_loss, result.test_error, *result.overlaps.arrays().values()]):
        return ["nan"]
    if not arguments:
        return []
    model = arguments["model"]
    F = OverlapMap(model, float(arguments["alpha"]), first_rule("auto", model, (0,)), result.response)
    rtol = arguments["rtol"] or 2e-3
    return [] if relative_change(F(result.overlaps), result.overlaps) < MAX_CHANGE * rtol else ["false"]
