"""Guarded Newton steps for systems of equations, with finite differences and Broyden's updates of the Jacobian."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# from unknowns (n,) to residuals (n,); FloatingPointError where they are undefined
Residual = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class RootSettings:
    """Settings of Newton steps; lengths are in units of the unknowns."""

    difference: float = 1e-4  # step of finite differences; larger if the equations are not smooth functions
    max_steps: int = 40  # maximum number of steps
    max_move: float = 0.5  # largest change of an unknown in a step
    shortest: float = 1 / 64  # fraction of a step at which the Jacobian is computed again, or the steps end
    slow: float = 0.5  # ratio of successive steps above which the Jacobian is computed again


DEFAULTS = RootSettings()


class FoundRoot(NamedTuple):
    """Last point of Newton steps."""

    x: np.ndarray  # (n,)
    residual: np.ndarray  # (n,) there
    jacobian: np.ndarray | None  # (n, n); None if it has to be computed again
    n_evaluations: int

    @property
    def size(self) -> float:
        """Largest residual."""
        return float(np.abs(self.residual).max())


def differences(residual: Residual, x: np.ndarray, here: np.ndarray, step: float) -> np.ndarray:
    """Return the Jacobian (n, n) at x by differences from the residual `here`; the first unknown is last.

    Differences are forward, or backward in unknowns with an undefined residual ahead.
    """
    columns = []
    for shift in step * np.eye(len(x))[::-1]:
        try:
            columns.append((residual(x + shift) - here) / step)
        except FloatingPointError:
            columns.append((here - residual(x - shift)) / step)
    return np.stack(columns[::-1], axis=1)


def find_root(
    residual_near: Callable[[np.ndarray], Residual], x: np.ndarray, tol: float,
    settings: RootSettings, jacobian: np.ndarray | None = None,
) -> FoundRoot:  # fmt: skip
    """Solve for residual zero from a start x, until the largest residual is at most `tol`.

    `residual_near` returns the function to use near a point; it may change along the way, for example with the grid of
    an integral. A step is accepted if the next step with the same Jacobian is shorter; unlike the norm of residuals,
    this test does not depend on their units (natural monotonicity test, Deuflhard, 2011). The Jacobian is updated
    (Broyden, 1965). The steps also end after `max_steps`, or if no step with a new Jacobian is accepted.

    Raises
    ------
    FloatingPointError, LinAlgError : if the residual at the start, or the Jacobian, is not defined, or if the Jacobian
        is singular.
    """
    residual, J, is_new = residual_near(x), jacobian, False
    here, count = residual(x), 1
    for _ in range(settings.max_steps):
        if (other := residual_near(x)) is not residual:
            residual, here, count = other, other(x), count + 1
        if np.abs(here).max() <= tol:
            break
        if J is None:
            J, is_new, count = differences(residual, x, here, settings.difference), True, count + len(x)
        step = -np.linalg.solve(J, here)
        longest = min(1.0, settings.max_move / np.abs(step).max())
        t, there, ratio = longest, None, np.inf
        while t >= settings.shortest * longest:
            count += 1
            try:
                there = residual(x + t * step)
                ratio = float(np.linalg.norm(np.linalg.solve(J, there)) / np.linalg.norm(step))
                if ratio < 1 - 0.1 * t:
                    break
            except FloatingPointError:
                pass
            there, t = None, 0.5 * t
        if there is None and is_new:
            break
        if there is not None:
            move = t * step
            J = J + np.outer(there - here - J @ move, move) / (move @ move)
            x, here, is_new = x + move, there, False
        if there is None or ratio > settings.slow:
            J = None
    return FoundRoot(x, here, J, count)
