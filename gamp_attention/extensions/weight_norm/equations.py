"""Equations of stationary points of R(Q) = Σ_μ ℓ(z_μ, y_μ, s) + λ‖Q‖²/2 with the norm s = ‖Q‖/√d.

Q is a stationary point if it is one of the ordinary risk in which s is a number, a further label of all samples, and
the ridge is

    λ + c/s,    c = (1/d) Σ_μ ∂ℓ(z_μ, y_μ, s)/∂s.

The unknowns log s and c have two equations: the weights of the ordinary problem have the norm s, and c is the
derivative of their losses. A flow leads to the solution (`follow_flow`), from ordinary solution to ordinary solution.
As it leaves solutions that repel, it ends at minima in s. If s decreases without bound, the minimum is at Q = 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.roots import NonlinearSystem, RootSettings, find_root, follow_flow
from gamp_attention.problem.penalties.standard import Ridge, has_one_strength
from gamp_attention.results import Status


@dataclass(frozen=True)
class NormSettings:
    """Settings of the equations of the norm."""

    n_tried: int = 16  # number of random labels at which a loss is tried
    step: float = 1e-5  # step of central differences of losses in s, relative to s
    smallest: float = 1e-4  # norm in units of the first norm, below which the weights count as zero
    flow_tol: float = 1e-3  # tolerance of ordinary results, and of the equations, along the flow
    max_steps: int = 100  # maximum number of steps of the flow
    error: float = 0.05  # relative error of the last ordinary solutions, in units of the requested error
    gradient: float = 0.1  # tolerance of the last ordinary runs, in units of the requested tolerance
    run_tol: float = 1e-7  # largest tolerance of runs: fields at kinks of the loss must be known to be there


NORM = NormSettings()
STEPS = RootSettings(max_steps=10)  # Newton steps from the end of the flow to the requested tolerance
VANISHED = "the weights go to zero: near Q = 0 the loss increases with their norm faster than the samples reduce it"

Solve = Callable[[float, Ridge, float, Any], tuple[Any, float, float]]


def require_one_field(name: str, problem: Any, kind: Any) -> None:
    """Raise TypeError or ValueError unless a model or data set is an instance of `kind` with one field and one λ."""
    if not isinstance(problem, kind):
        raise check.fail(name, problem, f"a gamp_attention.{kind.__name__}", TypeError)
    if problem.n_sources * problem.rank > 1 or problem.intercept or not has_one_strength(problem.penalty):
        got = f"{problem.n_sources} tokens, rank {problem.rank}, {problem.penalty}, intercept = {problem.intercept}"
        needs = "one token without classes, rank 1, and the penalty Ridge, without an intercept"
        raise check.fail_words(name, got, needs)


class NormEquations(NonlinearSystem):
    """Equations of x = (log s, c).

    Parameters
    ----------
    solve : function of s, the ridge, the tolerance and the last result (or None) that returns an ordinary result, its
        norm s and its c, which are NaN if it failed.
    lam : λ of the penalty.

    Attributes
    ----------
    result : the last ordinary result; None before the first.
    tol : tolerance of ordinary results.
    lowest : log s below which the weights count as zero.
    """

    difference = 0.01

    def __init__(self, solve: Solve, lam: float) -> None:
        self.solve, self.lam, self.tol, self.lowest = solve, lam, NORM.flow_tol, -np.inf
        self.result: Any = None

    def evaluate(self, x: np.ndarray) -> np.ndarray:
        """Return log s and c of the ordinary solution at x, and store this solution."""
        norm = float(np.exp(x[0]))
        ridge = self.lam + x[1] / norm
        if ridge <= 0:
            raise FloatingPointError(f"the ridge λ + c/s = {ridge:.3g} is not positive")
        self.result, *values = self.solve(norm, Ridge(ridge), self.tol, self.result)
        outcome = np.array([np.log(values[0]), values[1]])
        if not np.isfinite(outcome).all():
            raise FloatingPointError(self.result.message)
        return outcome

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return the differences of both sides of the equations; OverflowError if s goes to zero."""
        if x[0] < self.lowest:
            raise OverflowError(VANISHED)
        return self.evaluate(x) - x

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the units 1 and |c|."""
        return np.array([1.0, abs(x[1]) or 1.0])

    def find(self, tol: Callable[[float], float]) -> tuple[np.ndarray, Status | None, str]:
        """Return the solution, and a status with the reason if there is none; `tol` is a function of the ridge."""
        x = np.zeros(2)
        try:
            x = self.evaluate(x)
            self.lowest = x[0] + np.log(NORM.smallest)
            flow = follow_flow(self, x, NORM.flow_tol, NORM.max_steps)
            x, reason = flow.x, flow.failure or f"s still changes by {flow.size:.1g}, relatively, in a step"
            if flow.arrived:
                self.tol = tol(self.lam + x[1] / np.exp(x[0]))
                return find_root(self, x, self.tol, STEPS, flow.jacobian).x, None, ""
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            reason = error
        if isinstance(reason, OverflowError):
            return x, Status.LOST, VANISHED
        words = f"no norm is consistent with its weights; the last is s = {np.exp(x[0]):.3g}: {reason}"
        return x, Status.STALLED, words
