"""The solutions of the resolvent's equations below a spectrum, from −∞ to its lower edge, one for each size of V.

x and V grow together up to the edge, where x turns back. In x the equations have no solution beyond it; in the size of
V they always have, so that steps towards the edge and beyond are plain Newton steps.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core import check
from gamp_attention.state_evolution.equations.spectrum import Ensemble, Resolvent


@dataclass(frozen=True)
class BelowSettings:
    """How solutions are followed and the edge is found."""

    newton: int = 30  # steps at most
    converged: float = 1e-11  # relative change of V and x
    growth: float = 1.3  # of the size of V from one solution to the next
    bisections: int = 40  # of the interval of sizes that holds the edge
    rtol: float = 1e-6  # of the size at the edge; x, which is largest there, is known to its square
    largest: float = 1e12  # size of V in units of the first, from which on the edge is zero, as some eigenvalues are


BELOW = BelowSettings()


def size_of(V: np.ndarray) -> float:
    """The trace of V (L, c, c)."""
    return float(np.trace(V, axis1=1, axis2=2).sum())


def solution(ensemble: Ensemble, size: float, near: Resolvent) -> Resolvent | None:
    """The solution with a size of V, by Newton steps from another, scaled; None where they lead nowhere."""
    V, x = near.V * (size / size_of(near.V)), near.x
    identity = np.tile(np.eye(V.shape[1]), (len(V), 1, 1)).ravel()
    for _ in range(BELOW.newton):
        here = Resolvent(ensemble, x, V)
        if not here.inside:
            return None
        rest = np.append((here.W - V).ravel(), size - size_of(V))
        # V_hat falls by R V' R, so that the derivative is the transpose of the map of squares
        system = np.block([[np.eye(V.size) - here.squares, -here.slope.reshape(-1, 1)], [identity, np.zeros(1)]])
        step = np.linalg.lstsq(system, rest, rcond=None)[0]
        change = step[:-1].reshape(V.shape)
        V, x = V + 0.5 * (change + np.swapaxes(change, 1, 2)), x + float(step[-1])
        if max(np.abs(change).max() / np.abs(V).max(), abs(step[-1] / x)) <= BELOW.converged:
            here = Resolvent(ensemble, x, V)
            return here if here.inside else None
    return None


def below(here: Resolvent | None) -> bool:
    """Whether there is a solution and x still grows with its V."""
    return here is not None and float(np.abs(np.linalg.eigvals(here.squares)).max()) < 1


def lowest_edge(ensemble: Ensemble) -> list[Resolvent]:
    """Solutions from far below the spectrum upwards, the last of them at its lower edge."""
    (L, c, _), law = ensemble.shape, ensemble.law
    # ‖X̃‖² is at most this, and positions add what is no part of the bulk
    scale = float(np.abs(ensemble.h).max() * L * c * law.gamma.max() * (1 + np.sqrt(ensemble.alpha * L)) ** 2)
    if not (np.isfinite(scale) and scale > 0):
        raise check.fail("model", scale, "a spectrum within the range of doubles that is not all zero")
    x = -4 * scale
    V = np.einsum("l,ab->lab", law.trace / -x, np.eye(c))
    first = solution(ensemble, size_of(V), Resolvent(ensemble, x, V))
    if first is None:
        raise check.fail("model", scale, "a spectrum within the range of doubles")
    found, low = [first], size_of(first.V)
    high = low
    while high < BELOW.largest * size_of(first.V):
        high = BELOW.growth * low
        there = solution(ensemble, high, found[-1])
        if there is None or not below(there):
            break
        found.append(there)
        low = high
    for _ in range(BELOW.bisections):
        if high - low <= BELOW.rtol * low:
            break
        middle = 0.5 * (low + high)
        there = solution(ensemble, middle, found[-1])
        if there is None or not below(there):
            high = middle
        else:
            found.append(there)
            low = middle
    return found
