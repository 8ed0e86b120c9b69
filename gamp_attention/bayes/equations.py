"""State evolution of Bayes-optimal message passing: from covariances V_l of the fields to conjugates, and back.

All fixed points at once: the sample complexity α at which state evolution has a fixed point of given conjugates.

Conjugates q̂_l = s S_l with a shape S of unit size give the covariances V_l, and V_l gives the averages E[g gᵀ]. The
shape is iterated until E[g gᵀ] is proportional to it; then α(s) = s/‖E[g gᵀ]‖. Fixed points at a given α are the
crossings of this curve with that α; they are stable if α increases with s. s runs over all positive numbers, from no
information to full information, and V is computed from s without cancellation, so that the curve has no steep end.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention._core.quadrature import gaussian_points
from gamp_attention.bayes.averages import FINE, IntegralRule, output_averages
from gamp_attention.bayes.priors import kinds_of
from gamp_attention.models.channels.choice import channel_of
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import ClassLabels, SoftmaxTeacher, keeps_columns, keeps_order


@dataclass(frozen=True)
class SampledSettings:
    """Limits of averages over randomised points."""

    least: float = 1e-13  # multiple of ρ that is added to V, so that V is never singular
    blurred: float = 1e-8  # V in units of ρ below which rounding blurs the slope −∂g/∂ω


SAMPLED = SampledSettings()


class OutputAverages(NamedTuple):
    """Averages over samples."""

    hats: np.ndarray  # (L, t, t) E[g gᵀ], which α multiplies
    log_z: float


class InputAverages(NamedTuple):
    """Averages over coordinates."""

    V: np.ndarray  # (L, t, t) of the fields
    known: np.ndarray  # (L, t, t) covariances of ω, ρ − V without cancellation
    q: np.ndarray  # (t, t) lim Q̂ᵀQ*/d
    net: float  # E log Z − ½ Σ_l Tr q̂_l known_l


class Equations:
    """State evolution averaged over one set of randomised points or by one quadrature rule."""

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator, rule: IntegralRule = FINE) -> None:
        self.channel, self.kinds = channel_of(model), kinds_of(model.coordinates)
        self.rho, self.rule = model.coordinates.rho, rule
        self.exact = output_averages(self.channel, 0.5 * self.rho, 0.5 * self.rho, rule) is not None
        self._n_points, self._rng = n_points, rng
        self._alike, self._isotropic, self._shifted = symmetries(model)

    @cached_property
    def _points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return standard normal numbers for ω and u − ω (N, L, t), and for the noise."""
        L, t, _ = self.rho.shape
        white = gaussian_points(self._n_points, 2 * L * t + self.channel.n_noise, self._rng)
        shape = -1, L, t
        return white[:, : L * t].reshape(shape), white[:, L * t : 2 * L * t].reshape(shape), white[:, 2 * L * t :]

    def samples(self, V: np.ndarray, known: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ω (N, L, t) of covariance ρ − V, fields u = ω + N(0, V), and the observations of these samples."""
        first, second, noise = self._points
        omega = np.einsum("lab,nlb->nla", psd_root(self.rho - V if known is None else known), first)
        u = omega + np.einsum("lab,nlb->nla", psd_root(V), second)
        return omega, u, self.channel.observe(u, noise)

    def output(self, V: np.ndarray, known: np.ndarray | None = None) -> OutputAverages:
        """Return E[g gᵀ] and E[log Z] for covariances V of u − ω and `known` of ω (ρ − V by default)."""
        known = self.rho - V if known is None else known
        if self.exact:
            found = output_averages(self.channel, known, V, self.rule)
            assert found is not None
            return OutputAverages(*found)
        return self._sampled(np.maximum(V, 0) if V.shape[1] == 1 else V, known)

    def _sampled(self, V: np.ndarray, known: np.ndarray) -> OutputAverages:
        """Average over randomised points, with control variate g gᵀ + ∂g/∂ω (mean zero) if it lowers the variance."""
        V = V + SAMPLED.least * self.rho
        omega, _, y = self.samples(V, known)
        found = self.channel.posterior(y, omega, V)
        inverse = np.linalg.inv(V)
        g = np.einsum("lab,nlb->nla", inverse, found.mean - omega)
        hats = np.einsum("nla,nlb->lab", g, g) / len(g)
        L, t, _ = V.shape
        blocks = found.cov.reshape(-1, L, t, L, t)[:, np.arange(L), :, np.arange(L)]  # (L, n, t, t)
        weight = np.einsum("lab,lbc,lcd->lad", inverse, self.rho, inverse)
        squares = np.einsum("nla,lab,nlb->n", g, self.rho, g)
        slopes = np.einsum("lab,lab->", inverse, self.rho) - np.einsum("lab,lnab->n", weight, blocks)
        both = np.stack([squares, squares - slopes])
        both = 0.5 * (both[:, : len(g) // 2] + both[:, len(g) // 2 :])  # means of points and their mirror images
        cov = np.cov(both)
        unknown = float(np.trace(V, axis1=1, axis2=2).sum() / np.trace(self.rho, axis1=1, axis2=2).sum())
        part = float(np.clip(cov[0, 1] / cov[1, 1], 0, 1)) if cov[1, 1] > 0 else 0.0
        part *= unknown / (unknown + SAMPLED.blurred)
        slope = inverse - inverse @ blocks.mean(axis=1) @ inverse
        hats = (1 - part) * hats + part * 0.5 * (slope + slope.transpose(0, 2, 1))
        if self._alike:
            hats = np.broadcast_to(hats.mean(axis=0), hats.shape)
        if self._isotropic:
            hats = np.trace(hats, axis1=1, axis2=2)[:, None, None] / t * np.eye(t)
        if self._shifted:  # a common shift of all columns does not change the class
            hats = np.trace(hats, axis1=1, axis2=2)[:, None, None] / (t - 1) * (np.eye(t) - 1 / t)
        return OutputAverages(hats, float(found.log_z.mean()))

    def input(self, hats: np.ndarray) -> InputAverages:
        """Return the overlaps for conjugates q̂ (L, t, t).

        Eq. :eq:`bayes-overlaps`.
        """
        V, known, q, net = np.zeros_like(self.rho), np.zeros_like(self.rho), np.zeros(self.rho.shape[1:]), 0.0
        for kind in self.kinds:
            found = kind.prior.averages(np.einsum("l,lab->ab", kind.gamma, hats))
            V += kind.share * kind.gamma[:, None, None] * found.cov
            known += kind.share * kind.gamma[:, None, None] * found.known
            q += kind.share * found.known
            net += kind.share * found.net
        return InputAverages(V, known, q, net)

    def free_entropy(self, alpha: float, V: np.ndarray, output: OutputAverages) -> float:
        """Return Φ at V and at the conjugates that belong to V.

        Eq. :eq:`bayes-entropy`.
        """
        hats = alpha * output.hats
        found = self.input(hats)
        return alpha * output.log_z + found.net - 0.5 * float(np.sum(hats * (found.V - V)))

    @property
    def reveals(self) -> bool:
        """Return whether samples have no noise, so that enough samples may determine the weights exactly."""
        return self.channel.n_noise == 0

    def linear_growth(self) -> float:
        """How much q grows in a step near q = 0, at α = 1.

        Eq. :eq:`bayes-weak`.
        """
        L, t = self.rho.shape[:2]
        V = self.rho
        omega, _, y = self.samples(V, np.zeros_like(V))
        cov = self.channel.posterior(y, omega, V).cov.reshape(-1, L, t, L, t)
        inverse = np.linalg.inv(V)
        G = np.einsum("lab,nlbmc,mcd->nlamd", inverse, cov, inverse, optimize=True)
        for l in range(L):
            G[:, l, :, l] -= inverse[l]
        out = np.einsum("nlamb,nlcmd->lacmbd", G, G, optimize=True) / len(G)
        back = np.zeros((L, t, t, L, t, t))
        for kind in self.kinds:
            cov0 = kind.prior.second
            both = kind.share * np.einsum("l,m->lm", kind.gamma, kind.gamma)
            back += np.einsum("lm,ab,cd->lacmbd", both, cov0, cov0)
        size = L * t * t
        return float(np.abs(np.linalg.eigvals(back.reshape(size, size) @ out.reshape(size, size))).max())

    def says_nothing_alone(self) -> bool:
        """Whether q = 0 is a fixed point: the prior has mean zero and samples do not tell the sign."""
        return self.channel.even and not any(kind.prior.first.any() for kind in self.kinds)


def symmetries(model: Model) -> tuple[bool, bool, bool]:
    """Return whether the problem is invariant under permutations of tokens and classes and rotations of columns."""
    law, L, t = model.coordinates, model.n_tokens, model.teacher_rank
    look = model.teacher.attention if isinstance(model.teacher, SoftmaxTeacher) else model.teacher
    tokens = np.arange(L)
    orders = np.concatenate([tokens[:2][::-1], tokens[2:]]), np.roll(tokens, 1)
    same = all(np.array_equal(law.gamma, law.gamma[:, order]) for order in orders)
    alike = same and (not model.attention or all(keeps_order(look, t, order) for order in orders))
    spread = law.teacher_cov
    round_prior = not law.teacher_mean.any() and np.array_equal(spread, spread[:, :1, :1] * np.eye(t))
    isotropic = t > 1 and model.attention and round_prior and keeps_columns(look, L, t)
    classes = t > 1 and isinstance(model.teacher, ClassLabels) and round_prior
    return bool(alike), bool(isotropic), bool(classes)


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
