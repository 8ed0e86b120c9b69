"""All fixed points at once: the sample complexity α at which state evolution has a fixed point of a given overlap.

At given total variance v = Σ_l Tr V_l/Σ_l Tr ρ_l the conjugates that V asks for are proportional to α, and α is such
that they lead back to v. Where V is one number this is a function α(v) that no iteration is needed for; else the shape
of V is iterated at fixed v. Fixed points at a given α are its crossings, stable where α falls with v.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention.bayes.equations import Equations, InputAverages, OutputAverages


@dataclass(frozen=True)
class CurveSettings:
    """Where the curve is computed, and how well."""

    points: int = 48  # of v, evenly in log v/(1 − v)
    nothing: float = 1e-5  # the least overlap, 1 − v
    everything: float = 1e-9  # the least v
    near: float = 30.0  # points within √v of a jump of the likelihood, at the least v where there is one
    shape: float = 1e-10  # of the change of V at fixed v
    steps: int = 200
    rtol: float = 1e-12  # of α and v
    lowest: float = -60.0  # log α that is looked at
    highest: float = 60.0
    apart: int = 6  # points of the curve that its slope for v → 0 is taken over
    level: float = 0.02  # slope of log α in log v below which α has a limit for v → 0
    noisy: float = -0.9  # a lower slope is that of noise, and smaller v say nothing more
    noiseless: float = 0.05  # of the slope of log q̂ in log v around −1, where fields are known without noise


CURVE = CurveSettings()


class Point(NamedTuple):
    """A fixed point."""

    v: float
    alpha: float
    V: np.ndarray
    output: OutputAverages
    input: InputAverages


class Curve:
    """α(v) of one set of points."""

    def __init__(self, equations: Equations) -> None:
        self.equations = equations
        rho = equations.rho
        self._size = float(np.trace(rho, axis1=1, axis2=2).sum())
        self.largest = self._total(equations.input(np.zeros_like(rho)).V)
        self._V = rho.copy()  # of the last point

    def _total(self, V: np.ndarray) -> float:
        return float(np.trace(V, axis1=1, axis2=2).sum()) / self._size

    def grid(self) -> np.ndarray:
        """v from the largest to the smallest."""
        sampled = self.equations.channel.jumps and not self.equations.exact
        jump = (CURVE.near / self.equations.n_points) ** 2 if sampled else 0.0
        low, high = np.log(min(max(CURVE.everything, jump), 0.1)), -np.log(CURVE.nothing)
        return self.largest / (1 + np.exp(-np.linspace(high, low, CURVE.points)))

    def points(self) -> list[Point]:
        """Along the grid; up to where noise alone decides."""
        found = list[Point]()
        for v in self.grid():
            found.append(self.at(float(v)))
            if len(found) > CURVE.apart and v < 0.1 and _slope(found) < CURVE.noisy:
                break
        return found

    def at(self, v: float) -> Point:
        """The fixed point of total variance v."""
        V = self._V * (v / self._total(self._V))
        room = np.linalg.eigvalsh(self.equations.rho - V).min(axis=1)
        if (room < 0).any():
            V = self.equations.rho * (v / self._total(self.equations.rho))
        for _ in range(CURVE.steps):
            output = self.equations.output(V)
            alpha, found = self._alpha(output.hats, v)
            change = np.abs(found.V - V).max() / np.abs(V).max()
            V = found.V
            if change < CURVE.shape:
                break
        self._V = V
        return Point(v, alpha, V, output, found)

    def _alpha(self, hats: np.ndarray, v: float) -> tuple[float, InputAverages]:
        from scipy.optimize import brentq

        def excess(log_alpha: float) -> float:
            total = self._total(self.equations.input(np.exp(log_alpha) * hats).V)
            return float(np.log(max(total, np.finfo(float).tiny) / v))

        centre = -float(np.log(np.abs(hats).max() * np.abs(self.equations.rho).max()))
        low, high = centre + CURVE.lowest, centre + CURVE.highest
        if excess(low) <= 0 or excess(high) >= 0:
            alpha = np.exp(low) if excess(low) <= 0 else np.inf
            return float(alpha), self.equations.input(np.exp(low if excess(low) <= 0 else high) * hats)
        alpha = float(np.exp(brentq(excess, low, high, xtol=CURVE.rtol, rtol=CURVE.rtol)))
        return alpha, self.equations.input(alpha * hats)

    def crossing(self, alpha: float, low: float, high: float) -> Point:
        """The fixed point at α between two v with α on different sides."""
        from scipy.optimize import brentq

        def excess(x: float) -> float:
            return float(np.log(self.at(_of_logit(x, self.largest)).alpha / alpha))

        x = brentq(excess, _logit(low, self.largest), _logit(high, self.largest), xtol=1e-11, rtol=CURVE.rtol)
        return self.at(_of_logit(x, self.largest))

    def free_entropy(self, alpha: float, point: Point) -> float:
        """Φ of a fixed point at α."""
        return self.equations.free_entropy(alpha, point.V, point.output)


def _logit(v: float, largest: float) -> float:
    return float(np.log(v / (largest - v)))


def _of_logit(x: float, largest: float) -> float:
    return float(largest / (1 + np.exp(-x)))


def ends_level(points: list[Point]) -> bool:
    """Whether α has a limit for v → 0, so that all is known beyond some α."""
    return bool(_slope(points) > -CURVE.level)


def _slope(points: list[Point]) -> float:
    """That of log α in log v at the end."""
    a, b = points[-CURVE.apart], points[-1]
    return float(np.log(b.alpha / a.alpha) / np.log(b.v / a.v)) if np.isfinite(b.alpha) else -np.inf


def is_noiseless(points: list[Point]) -> bool:
    """Whether conjugates grow like 1/V for V → 0, so that the free entropy of knowing all diverges."""
    a, b = points[-2:]
    slope = np.log(np.abs(b.output.hats).max() / np.abs(a.output.hats).max()) / np.log(b.v / a.v)
    return bool(abs(slope + 1) < CURVE.noiseless)
