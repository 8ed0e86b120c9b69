"""All fixed points at once: the sample complexity α at which state evolution has a fixed point of given conjugates.

Conjugates q̂_l = s S_l with a shape S of unit size give the covariances V_l, and V_l gives the averages E[g gᵀ]. The
shape is iterated until E[g gᵀ] is proportional to it; then α(s) = s/‖E[g gᵀ]‖. Fixed points at a given α are the
crossings of this curve with that α; they are stable if α increases with s. s runs over all positive numbers, from no
information to full information, and V is computed from s without cancellation, so that the curve has no steep end.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention.bayes.equations import Equations, InputAverages, OutputAverages


@dataclass(frozen=True)
class CurveSettings:
    """Range and resolution of the curve."""

    lowest: float = 1e-7  # s of the first point, for averages by integrals
    start: float = 1e-4  # s of the first point, for averages over samples
    step: float = 0.6  # distance of points in log s
    finest: float = 0.08  # distance in log s near maxima and minima of α, for averages by integrals
    fine: float = 0.3  # distance in log s near maxima and minima of α, for averages over samples
    flat: float = 0.35  # slope of log α in log s below which these smaller distances are used
    everything: float = 1e-12  # unknown fraction of the fields' variance that counts as zero, for averages by integrals
    sampled: float = 1e-6  # unknown fraction that counts as zero, for averages over samples
    limited: float = 0.9  # ratio of E[g gᵀ] to its limit for V → 0 above which the curve ends
    plenty: float = (
        1e4  # s above which the curve also ends if the slope of log α exceeds `limited` and noise is present
    )
    farthest: float = 1e30  # largest s; its inverse is the smallest s
    shape: float = 1e-11  # change of the shape of the conjugates at fixed points, for averages by integrals
    settled: float = 1e-8  # change of the shape at fixed points, for averages over samples
    rough: float = 1e-6  # change of the shape at other points of the curve
    steps: int = 300
    apart: int = 4  # number of points over which slopes at the end of the curve are computed
    level: float = 0.02  # slope of log α in log s below which α has a limit for s → ∞
    noiseless: float = 0.05  # maximum distance of d log ‖E[g gᵀ]‖/d log V from −1 for fields without noise


CURVE = CurveSettings()


class Point(NamedTuple):
    """A fixed point."""

    x: float  # log s
    alpha: float
    output: OutputAverages
    input: InputAverages

    @property
    def V(self) -> np.ndarray:
        """Posterior covariances of the fields, (L, t, t)."""
        return self.input.V


class Curve:
    """The curve α(s) for one set of points."""

    def __init__(self, equations: Equations) -> None:
        self.equations = equations
        rho = equations.rho
        self._total = float(np.trace(rho, axis1=1, axis2=2).sum())
        self._shape = np.linalg.inv(rho)  # shape of the conjugates at the last point
        self._shape = self._shape / self.size(self._shape)
        self.at_nothing = equations.input(np.zeros_like(rho))
        self.evaluations = 0
        self.lowest = float(np.log(CURVE.lowest if equations.exact else CURVE.start))

    def size(self, hats: np.ndarray) -> float:
        """Return ‖q̂‖ in units of the prior: 1 for q̂ = ρ⁻¹."""
        rho = self.equations.rho
        return float(np.einsum("lab,lba->", hats, rho)) / (rho.shape[0] * rho.shape[1])

    def unknown(self, V: np.ndarray) -> float:
        """Return the fraction of the fields' second moment that is unknown."""
        return float(np.trace(V, axis1=1, axis2=2).sum()) / self._total

    def at(self, x: float, tol: float | None = None) -> Point:
        """Return the fixed point whose conjugates have size s = exp(x), with a shape that changes by at most tol."""
        tol = (CURVE.shape if self.equations.exact else CURVE.settled) if tol is None else tol
        shape, best, least = self._shape, self._shape, np.inf
        for _ in range(CURVE.steps):
            before = self.equations.input(np.exp(x) * shape)
            output = self.equations.output(before.V, before.known)
            self.evaluations += 1
            size = self.size(output.hats)
            if not size > 0 or not np.isfinite(size):
                return Point(x, np.inf, output, before)
            found = output.hats / size
            change = float(np.abs(found - shape).max() / np.abs(shape).max())
            if change < least:
                best, least = found, change
            shape = found
            if change < tol:
                break
        self._shape = best
        return Point(x, float(np.exp(x) / size), output, before)

    def points(self, alpha: float | None = None) -> list[Point]:
        """Return points along the whole curve; if α is given, also points that reach α from both sides."""
        found = [self.at(self.lowest, CURVE.rough)]
        if not self.equations.says_nothing_alone():
            while alpha is not None and found[0].alpha > alpha and found[0].x > -np.log(CURVE.farthest):
                back = max(2.0, float(np.log(found[0].alpha / alpha)) + 1.0)
                found.insert(0, self.at(found[0].x - back, CURVE.rough))
        limit = self._noise_limit()
        while found[-1].x < np.log(CURVE.farthest) and not self._ends(found, limit, alpha):
            found.append(self.at(found[-1].x + CURVE.step, CURVE.rough))
        return self._resolved(found)

    def _noise_limit(self) -> float:
        """Return ‖E[g gᵀ]‖ for V → 0, infinite without noise."""
        if self.equations.reveals:
            return np.inf
        V = np.zeros_like(self.equations.rho)
        return self.size(self.equations.output(V, self.equations.rho).hats)

    def _ends(self, found: list[Point], limit: float, alpha: float | None) -> bool:
        last, above = found[-1], alpha is None or found[-1].alpha > alpha
        if not np.isfinite(last.alpha):
            return True
        least = CURVE.everything if self.equations.exact else CURVE.sampled
        if self.unknown(last.V) < least:
            return ends_level(found) or (above and self.unknown(last.V) < 1e-3 * least)
        slow = len(found) > 2 and last.x > np.log(CURVE.plenty) and _slope(found, 1) > CURVE.limited
        limited = self.size(last.output.hats) > CURVE.limited * limit or (slow and np.isfinite(limit))
        return bool(last.x > 0 and above and limited)

    def _resolved(self, found: list[Point]) -> list[Point]:
        """Return the points with further points inserted at small slopes and at changes of the slope's sign."""
        finest, k = CURVE.finest if self.equations.exact else CURVE.fine, 0
        while k < len(found) - 1:
            a, b = found[k], found[k + 1]
            slopes = [
                np.log(p.alpha / o.alpha) / (p.x - o.x)
                for o, p in zip(found[max(k - 1, 0) : k + 2], found[max(k - 1, 0) + 1 : k + 3], strict=False)
            ]
            near = min(slopes) < CURVE.flat and np.ptp(slopes) > 1e-3
            if near and b.x - a.x > 2 * finest * (1 + 2 * min(np.abs(slopes))):
                found.insert(k + 1, self.at(0.5 * (a.x + b.x), CURVE.rough))
            else:
                k += 1
        return found

    def crossing(self, alpha: float, low: float, high: float) -> Point:
        """Return the fixed point at α between two x with α on different sides."""
        from scipy.optimize import brentq

        accuracy = 1e-13 if self.equations.exact else 1e-9

        def excess(x: float) -> float:
            return min(float(np.log(self.at(x).alpha / alpha)), 600.0)

        return self.at(float(brentq(excess, low, high, xtol=accuracy, rtol=1e-14)))

    def free_entropy(self, alpha: float, point: Point) -> float:
        """Φ of a fixed point at α."""
        return self.equations.free_entropy(alpha, point.V, point.output)


def ends_level(points: list[Point]) -> bool:
    """Return whether α decreases or has a limit for s → ∞, so that weights are known exactly above some α."""
    return bool(_slope(points, CURVE.apart) < CURVE.level)


def _slope(points: list[Point], apart: int) -> float:
    """Return the slope of log α in log s at the end of the curve."""
    a, b = points[-1 - min(apart, len(points) - 1)], points[-1]
    if not np.isfinite(b.alpha) or b.x == a.x:
        return np.inf
    return float(np.log(b.alpha / a.alpha) / (b.x - a.x))


def is_noiseless(points: list[Point]) -> bool:
    """Whether conjugates grow like 1/V for V → 0, so that the free entropy of knowing all diverges."""
    a, b = points[-2:]
    volumes = [np.trace(each.V, axis1=1, axis2=2).sum() for each in (a, b)]
    slope = np.log(np.abs(b.output.hats).max() / np.abs(a.output.hats).max()) / np.log(volumes[1] / volumes[0])
    return bool(abs(slope + 1) < CURVE.noiseless)
