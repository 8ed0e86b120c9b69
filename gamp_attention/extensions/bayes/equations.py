"""Bayes-optimal state evolution, and the curve α(s) that contains all of its fixed points.

`Equations.output` averages over samples: if the fields of token l have posterior means ω_l and covariances V_l, it
returns E[g_l g_lᵀ] with g_l = V_l⁻¹(E[u_l | ω, y] − ω_l); the conjugates are q̂_l = α E[g_l g_lᵀ]. `Equations.input`
averages over coordinates: from the conjugates it returns the covariances V_l and the overlap q. A fixed point
reproduces its V. See Barbier et al. (2019) for generalized linear models.

Iteration at a given α finds only stable fixed points, and slowly near a transition. `AlphaCurve` finds all of them:

1. The conjugates are q̂_l = s S_l, with a given size s and a shape S of size 1 (`AlphaCurve.size`).
2. `input` gives V(s S), and `output` gives E[g gᵀ] at that V; its shape replaces S until S no longer changes.
3. Then V is a fixed point at the sample complexity α(s) = s/‖E[g gᵀ]‖.

`AlphaCurve.trace` evaluates α(s) from nearly no to nearly full information. The fixed points at a given α are the
crossings of the curve with α (`find_crossing`), stable where α(s) increases, and possibly its two ends, s = 0 and s →
∞, see `bayes.state_evolution`. V and ρ − V are both computed from s without cancellation. Steps in log s are shorter
where α(s) is nearly flat, because two crossings close to a maximum or minimum of α could lie between two points. The
curve ends if nothing remains unknown or if noise limits the information of samples, and α is above the requested
value.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.numerics import project_psd, psd_root, symmetrize
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.channel import Posterior
from gamp_attention.extensions.bayes.channels.choice import channel_of
from gamp_attention.extensions.bayes.channels.fibers import symmetric_product
from gamp_attention.extensions.bayes.channels.integrals import FINE, IntegralRule
from gamp_attention.extensions.bayes.priors import kinds_of
from gamp_attention.extensions.bayes.symmetries import (
    find_column_symmetries,
    invariant_projector,
    keeps_tokens,
    restrict_symmetries,
)
from gamp_attention.theory.models.model import Model

MIN_V = 1e-13  # multiple of ρ that is added to V in averages over random points, so that V is never singular
BLURRED_V = 1e-8  # V in units of ρ below which rounding errors dominate the slope −∂g/∂ω


class OutputAverages(NamedTuple):
    """Averages over samples, of `Equations.output`."""

    hats: np.ndarray  # (L, t, t) E[g gᵀ]; the conjugates are α times this
    log_z: float  # E log Z of a sample


class InputAverages(NamedTuple):
    """Averages over coordinates, of `Equations.input`."""

    V: np.ndarray  # (L, t, t) posterior covariances of the fields
    known: np.ndarray  # (L, t, t) covariances of ω, which are ρ − V, computed without cancellation
    q: np.ndarray  # (t, t) lim Q̂ᵀQ*/d
    net: float  # E log Z − ½ Σ_l Tr q̂_l known_l of a coordinate, see `PriorAverages.net`


class Equations:
    """State evolution, averaged over one set of randomized points or by one quadrature rule.

    Attributes
    ----------
    channel, kinds : observation model of the samples, and priors of the kinds of coordinates.
    rho : (L, t, t) prior covariances of the fields.
    rule : quadrature rule of averages over samples, if they are integrals.
    exact : whether averages over samples are computed by this rule; otherwise n_points random points are used.
    symmetries : orthogonal matrices (n, t, t), see `find_column_symmetries`.
    """

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator, rule: IntegralRule = FINE) -> None:
        self.rho, self.rule, self.kinds = model.coordinates.rho, rule, kinds_of(model.coordinates)
        self.channel = channel_of(model).with_other_points(self.rho, rng)
        self._reused: Callable[[np.ndarray, np.ndarray], Posterior] | None = None
        self.exact = self.channel.integrate(0.5 * self.rho, 0.5 * self.rho, rule) is not None
        self._n_points, self._rng = n_points, rng
        self._exchangeable = keeps_tokens(model, self.channel)
        self.symmetries: np.ndarray | None = find_column_symmetries(model, self.channel)

    @cached_property
    def _points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Standard normal numbers for ω and u − ω (N, L, t) each, and for the noise (N, n_noise)."""
        L, t, _ = self.rho.shape
        white = gaussian_points(self._n_points, 2 * L * t + self.channel.n_noise, self._rng)
        if self.channel.has_mirror_images:
            white = white[: len(white) // 2]
        shape = -1, L, t
        return white[:, : L * t].reshape(shape), white[:, L * t : 2 * L * t].reshape(shape), white[:, 2 * L * t :]

    def samples(self, V: np.ndarray, known: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ω (N, L, t) of covariance ρ − V, fields u = ω + N(0, V), and the observations of these samples.

        For teachers that are functions, u and the observations do not depend on V, so that points of their posteriors
        can be reused: ω is drawn given u, with mean (ρ − V)ρ⁻¹u and covariance (ρ − V)ρ⁻¹V.
        """
        first, second, noise = self._points
        known = self.rho - V if known is None else known
        if self.channel.is_function:
            u = np.einsum("lab,nlb->nla", psd_root(self.rho), first)
            share = known @ np.linalg.inv(self.rho)
            cov = share @ V
            omega = np.einsum("lab,nlb->nla", share, u)
            omega += np.einsum("lab,nlb->nla", psd_root(cov), second)
        else:
            omega = np.einsum("lab,nlb->nla", psd_root(known), first)
            u = omega + np.einsum("lab,nlb->nla", psd_root(V), second)
        return omega, u, self.channel.observe(u, noise)

    def posterior(self, V: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, Posterior]:
        """Return ω (N, L, t) and the posteriors of the samples for covariances V of u − ω and `known` of ω."""
        omega, _, y = self.samples(V, known)
        if self._reused is None or not self.channel.is_function:
            self._reused = self.channel.reuse(y, self.rho)
        return omega, self._reused(omega, V)

    def output(self, V: np.ndarray, known: np.ndarray | None = None) -> OutputAverages:
        """Return E[g gᵀ] and E[log Z] for covariances V of u − ω and `known` of ω (ρ − V by default)."""
        known = self.rho - V if known is None else known
        if self.exact:
            averages = self.channel.integrate(known, V, self.rule)
            assert averages is not None
            return OutputAverages(*averages)
        return self._average_over_points(np.maximum(V, 0) if V.shape[1] == 1 else V, known)

    def _average_over_points(self, V: np.ndarray, known: np.ndarray) -> OutputAverages:
        """Average over randomized points, with `controlled_products`, and enforce the symmetries of the problem."""
        if not self.channel.is_function:  # iterations for teachers that are functions have V > 0
            V = V + MIN_V * self.rho
        omega, posterior = self.posterior(V, known)
        hats = controlled_products(posterior, omega, V, self.rho, paired=not self.channel.has_mirror_images)
        if self._exchangeable:
            hats = np.broadcast_to(hats.mean(axis=0), hats.shape)
        if self.channel.is_function:
            hats = hats * self.channel.coupled_columns
        if self.symmetries is not None and len(self.symmetries) > 1:  # keep the symmetries of `known`
            projector = invariant_projector(restrict_symmetries(self.symmetries, known, np.arange(V.shape[1])))
            hats = np.einsum("abcd,lcd->lab", projector, hats)
        hats = project_psd(hats) if self.channel.is_function else hats
        return OutputAverages(hats, float(posterior.log_z.mean()))

    def input(self, hats: np.ndarray) -> InputAverages:
        """Return the averages over coordinates for conjugates q̂ (L, t, t).

        Eq. :eq:`bayes-overlaps`.
        """
        V, known, q, net = np.zeros_like(self.rho), np.zeros_like(self.rho), np.zeros(self.rho.shape[1:]), 0.0
        for kind in self.kinds:
            averages = kind.prior.averages(np.einsum("l,lab->ab", kind.gamma, hats))
            V += kind.fraction * kind.gamma[:, None, None] * averages.cov
            known += kind.fraction * kind.gamma[:, None, None] * averages.known
            q += kind.fraction * averages.known
            net += kind.fraction * averages.net
        return InputAverages(V, known, q, net)

    def free_entropy(self, alpha: float, V: np.ndarray, output: OutputAverages) -> float:
        """Return the free entropy Φ per dimension at V (L, t, t) and at the conjugates α E[g gᵀ] of `output`.

        Eq. :eq:`bayes-entropy`.
        """
        hats = alpha * output.hats
        averages = self.input(hats)
        return alpha * output.log_z + averages.net - 0.5 * float(np.sum(hats * (averages.V - V)))

    @property
    def prior_second_moment(self) -> np.ndarray:
        """Second moment (t, t) of a row of the teacher, which is q if the weights are known exactly."""
        return np.sum([kind.fraction * kind.prior.second for kind in self.kinds], axis=0)

    @property
    def noiseless(self) -> bool:
        """True if samples have no noise, so that enough samples may determine the weights exactly."""
        return self.channel.n_noise == 0

    def linear_growth(self) -> float:
        """Return the largest factor by which a step of state evolution at α = 1 multiplies a small overlap q.

        Its inverse is the weak-recovery threshold if q = 0 is a fixed point. Eq. :eq:`bayes-weak`. Independent objects
        have independent samples and points, so that the spread of their factors is the error of the mean.
        """
        growth = self.growth_map(np.zeros_like(self.rho), np.arange(self.rho.shape[1]))
        return float(np.abs(np.linalg.eigvals(growth)).max())

    def growth_map(self, known: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Return the linear map of a small overlap of columns `unknown` (k,) in one iteration at α = 1.

        `known` (L, t, t) are the covariances of ω, zero if there is no information. The map (L k k, L k k) acts on the
        conjugates of these columns, and on their overlaps after the averages over coordinates. It is restricted to
        overlaps with all symmetries: other directions increase at the same rate, and the largest of several random
        eigenvalues is too large, see `bayes.symmetries`.
        """
        L, k = len(self.rho), len(unknown)
        out = self.responses(known, unknown)
        if self.symmetries is not None:
            part = invariant_projector(restrict_symmetries(self.symmetries, known, unknown))
            out = np.einsum("acef,lefmgh,ghbd->lacmbd", part, out, part, optimize=True)
        back = np.zeros((L, k, k, L, k, k))
        for kind in self.kinds:
            prior = kind.prior.second[unknown[:, None], unknown]
            both = kind.fraction * np.einsum("l,m->lm", kind.gamma, kind.gamma)
            back += np.einsum("lm,ab,cd->lacmbd", both, prior, prior)
        size = L * k * k
        return back.reshape(size, size) @ out.reshape(size, size)

    def responses(self, known: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Return E[G_lm ⊗ G_lm] (L, k, k, L, k, k) of k columns `unknown` without overlap, see `response_of`.

        `known` (L, t, t) are the covariances of ω. The result maps δq (m, b, d) to δq̂ (l, a, c) at α = 1.
        """
        omega, posterior = self.posterior(self.rho - known, known)
        one, other = (response_of(second, self.rho, unknown) for second in posterior.second_moments())
        return np.einsum("nlamb,nlcmd->lacmbd", one, other, optimize=True) / len(omega)

    def squared_means(self, known: np.ndarray) -> np.ndarray:
        """Return E[u | y]² (N, t) of the samples, summed over tokens, for covariances `known` (L, t, t) of ω."""
        halves = self.posterior(self.rho - known, known)[1].halves
        assert halves is not None
        return np.asarray((halves.mean[0] * halves.mean[1]).sum(axis=1))

    def signless_columns(self) -> np.ndarray:
        """Return the columns (t,) whose overlap q = 0 is preserved, since targets do not determine their sign."""
        return self.channel.signless_columns & (not self._prior_has_mean)

    def signs_are_free(self, known: np.ndarray) -> np.ndarray:
        """Return the columns (t,) whose sign targets do not determine even if columns `known` (t,) are known."""
        signs = self.channel.column_signs
        keeping = signs[(signs[:, known] > 0).all(axis=1)]
        return self.signless_columns() & (keeping < 0).any(axis=0)

    def has_zero_fixed_point(self) -> bool:
        """Return whether q = 0 is a fixed point: the prior has mean zero and samples do not determine the sign."""
        return self.channel.even and not self._prior_has_mean

    @property
    def _prior_has_mean(self) -> bool:
        return any(kind.prior.first.any() for kind in self.kinds)


def controlled_products(
    posterior: Posterior, omega: np.ndarray, V: np.ndarray, rho: np.ndarray, paired: bool
) -> np.ndarray:
    """Return E[g gᵀ] (L, t, t), with −E[∂g/∂ω] as a control variate.

    E[g gᵀ] = −E[∂g/∂ω], so that g gᵀ + ∂g/∂ω has mean zero. A part of it in [0, 1], the part that minimizes the
    variance of Tr ρ g gᵀ, is subtracted. Posteriors from random points give two independent estimates of g.

    Parameters
    ----------
    posterior, omega : posteriors of N samples with prior means ω (N, L, t).
    V, rho : (L, t, t) covariances of the fields, and their prior covariances.
    paired : whether the second half of the samples are mirror images of the first half.
    """
    (n, L, t), cov = omega.shape, posterior.cov
    means = np.stack([posterior.mean, posterior.mean])
    if posterior.halves is not None:
        means, second = posterior.halves
        cov = second.mean(axis=0) - symmetric_product(means.reshape(2, n, -1))
    g, other = np.einsum("lab,hnlb->hnla", np.linalg.inv(V), means - omega)
    blocks = cov.reshape(n, L, t, L, t)[:, np.arange(L), :, np.arange(L)]
    root = psd_root(np.linalg.inv(V))  # products with its square would lose directions with different V to rounding
    hats = symmetrize(np.einsum("nla,nlb->lab", g, other, optimize=True) / len(g))
    squares = np.einsum("nla,lab,nlb->n", g, rho, other, optimize=True)
    gains = np.eye(len(V[0])) - np.einsum("lab,lnbc,lcd->lnad", root, blocks, root, optimize=True)
    slopes = np.einsum("lab,lnab->n", root @ rho @ root, gains)
    slope = root @ gains.mean(axis=1) @ root
    pairs = np.stack([squares, squares - slopes])
    if paired:
        pairs = 0.5 * (pairs[:, : pairs.shape[1] // 2] + pairs[:, pairs.shape[1] // 2 :])
    spread = np.cov(pairs)
    unknown = float(np.trace(V, axis1=1, axis2=2).sum() / np.trace(rho, axis1=1, axis2=2).sum())
    part = float(np.clip(spread[0, 1] / spread[1, 1], 0, 1)) if spread[1, 1] > 0 else 0.0
    part *= unknown / (unknown + BLURRED_V)
    return np.asarray((1 - part) * hats + part * symmetrize(slope))


def response_of(second: np.ndarray, rho: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return G (n, L, k, L, k), the response of g to a small change of ω, of k columns without overlap.

    G_lm = ρ_l⁻¹ E[u_l u_mᵀ | y] ρ_m⁻¹ − δ_lm ρ_l⁻¹, with these columns of the second moments `second` (n, L t, L t) and
    of the prior covariances `rho` (L, t, t).
    """
    L, t, _ = rho.shape
    moments = second.reshape(-1, L, t, L, t)[:, :, columns][:, :, :, :, columns]
    inverse = np.linalg.inv(rho[:, columns[:, None], columns])
    G = np.einsum("lab,nlbmc,mcd->nlamd", inverse, moments, inverse, optimize=True)
    for l in range(L):
        G[:, l, :, l] -= inverse[l]
    return G


@dataclass(frozen=True)
class CurveSettings:
    """Range and resolution of the curve; the defaults are for averages over samples that are integrals."""

    first_s: float = 1e-7  # s of the first point; averages over random points do not resolve smaller overlaps
    finest_step: float = 0.08  # shortest distance of points in log s, near maxima and minima of α
    shape_change: float = 1e-11  # relative change of the shape S at which a fixed point has converged
    nothing_unknown: float = 1e-12  # unknown fraction of the fields' variance that counts as zero
    crossing_step: float = 1e-13  # accuracy of log s at a crossing
    max_s: float = 1e30  # largest s; its inverse is the smallest s
    log_step: float = 0.6  # distance of points in log s
    flat: float = 0.35  # slope of log α in log s below which points are inserted
    rough_change: float = 1e-6  # relative change of the shape S at which points of the curve have converged
    max_steps: int = 300  # number of iterations of the shape
    noise_limited: float = 0.9  # ‖E[g gᵀ]‖ over its limit for V → 0, or slope of log α, above which the curve ends
    slope_from_s: float = 1e4  # s above which the slope of log α may end the curve
    slope_points: int = 4  # number of intervals over which the slope at the end of the curve is computed
    level: float = 0.02  # slope of log α in log s at the end below which α has a limit for s → ∞
    divergence: float = 0.05  # maximum distance of d log q̂/d log V from −1 at which conjugates grow like 1/V
    first_reach: float = 0.1  # half-width in log s of the first interval in which another random set is searched
    n_reaches: int = 9  # number of intervals tried, each twice as wide as the last
    weak_s: float = 1e-5  # s from which α is extrapolated to s → 0
    limit_step: float = 3.0  # distance in log s of the points from which α is extrapolated to s → ∞


OF_INTEGRALS = CurveSettings()
OF_RANDOM_POINTS = CurveSettings(1e-4, finest_step=0.3, shape_change=1e-8, nothing_unknown=1e-6, crossing_step=1e-9)


class BayesPoint(NamedTuple):
    """A point of the curve: a fixed point of state evolution at its α."""

    x: float  # log s
    alpha: float  # sample complexity, infinite if samples give no information at this V
    output: OutputAverages
    input: InputAverages

    @property
    def V(self) -> np.ndarray:
        """Posterior covariances of the fields, (L, t, t)."""
        return self.input.V


class AlphaCurve:
    """The curve α(s) that contains all fixed points of `equations`; see the description of the module.

    The shape of the conjugates at the last evaluated point starts the next evaluation. Attribute `evaluations` counts
    averages over samples.
    """

    def __init__(self, equations: Equations) -> None:
        self.equations, self.settings = equations, OF_INTEGRALS if equations.exact else OF_RANDOM_POINTS
        rho = equations.rho
        self._total = float(np.trace(rho, axis1=1, axis2=2).sum())
        self._shape = np.linalg.inv(rho)
        self._shape = self._shape / self.size(self._shape)
        self.without_data = equations.input(np.zeros_like(rho))
        self.evaluations = 0
        self.lowest = float(np.log(self.settings.first_s))

    def size(self, hats: np.ndarray) -> float:
        """Return the size ‖q̂‖ = Σ_l Tr(q̂_l ρ_l)/(L t) of conjugates; it is 1 for q̂ = ρ⁻¹."""
        rho = self.equations.rho
        return float(np.einsum("lab,lba->", hats, rho)) / (rho.shape[0] * rho.shape[1])

    def unknown_fraction(self, V: np.ndarray) -> float:
        """Return the fraction Σ_l Tr V_l/Σ_l Tr ρ_l of the fields' variance that is unknown."""
        return float(np.trace(V, axis1=1, axis2=2).sum()) / self._total

    def solve_at(self, x: float, tol: float | None = None) -> BayesPoint:
        """Return the fixed point whose conjugates have size s = exp(x).

        The shape is iterated until its relative change is below `tol`, at most `max_steps` times. α is infinite if
        E[g gᵀ] is zero or not finite.
        """
        tol = self.settings.shape_change if tol is None else tol
        shape, best, smallest_change = self._shape, self._shape, np.inf
        for _ in range(self.settings.max_steps):
            averages = self.equations.input(np.exp(x) * shape)
            output = self.equations.output(averages.V, averages.known)
            self.evaluations += 1
            size = self.size(output.hats)
            if not size > 0 or not np.isfinite(size):
                return BayesPoint(x, np.inf, output, averages)
            new_shape = output.hats / size
            change = float(np.abs(new_shape - shape).max() / np.abs(shape).max())
            if change < smallest_change:
                best, smallest_change = new_shape, change
            shape = new_shape
            if change < tol:
                break
        self._shape = best
        return BayesPoint(x, float(np.exp(x) / size), output, averages)

    def trace(self, alpha: float | None = None) -> list[BayesPoint]:
        """Return points of the curve in the order of s, with log s at most `log_step` apart.

        If `alpha` is given, the curve is extended at both ends so that it reaches this α from both sides if it can:
        toward s = 0 while α(s) is above it, and toward s → ∞ while α(s) is below it.
        """
        settings = self.settings
        points = [self.solve_at(self.lowest, settings.rough_change)]
        if not self.equations.has_zero_fixed_point():
            # with some overlap at s = 0, α(s) is proportional to s for s → 0 and falls below any given α
            while alpha is not None and points[0].alpha > alpha and points[0].x > -np.log(settings.max_s):
                step = max(2.0, float(np.log(points[0].alpha / alpha)) + 1.0)
                points.insert(0, self.solve_at(points[0].x - step, settings.rough_change))
        limit = self._noise_limit()
        while points[-1].x < np.log(settings.max_s) and not self._is_complete(points, limit, alpha):
            points.append(self.solve_at(points[-1].x + settings.log_step, settings.rough_change))
        return self._refine(points)

    def _noise_limit(self) -> float:
        """Return ‖E[g gᵀ]‖ for V → 0; infinite without noise."""
        if self.equations.noiseless:
            return np.inf
        V = np.zeros_like(self.equations.rho)
        return self.size(self.equations.output(V, self.equations.rho).hats)

    def _is_complete(self, points: list[BayesPoint], limit: float, alpha: float | None) -> bool:
        """Return whether the curve, continued beyond these points, contains no further fixed point at `alpha`."""
        last, above = points[-1], alpha is None or points[-1].alpha > alpha
        if not np.isfinite(last.alpha):
            return True
        settings, negligible = self.settings, self.settings.nothing_unknown
        unknown = self.unknown_fraction(last.V)
        if unknown < negligible:
            return self.ends_level(points) or (above and unknown < 1e-3 * negligible)
        # with noise ‖E[g gᵀ]‖ has a limit for V → 0, and from there on α increases in proportion to s
        linear = (
            len(points) > 2
            and last.x > np.log(settings.slope_from_s)
            and _end_slope(points, 1) > settings.noise_limited
        )
        limited = self.size(last.output.hats) > settings.noise_limited * limit or (linear and np.isfinite(limit))
        return bool(last.x > 0 and above and limited)

    def _refine(self, points: list[BayesPoint]) -> list[BayesPoint]:
        """Return the points with further points inserted where α(s) is nearly flat, at its maxima and minima.

        An interval is halved if the slope of log α in it or next to it is below `flat` and not constant, until it is as
        short as `finest_step`, or longer in proportion to the slope.
        """
        finest, k = self.settings.finest_step, 0
        while k < len(points) - 1:
            a, b = points[k], points[k + 1]
            before, after = points[max(k - 1, 0) : k + 2], points[max(k - 1, 0) + 1 : k + 3]
            slopes = [np.log(p.alpha / o.alpha) / (p.x - o.x) for o, p in zip(before, after, strict=False)]
            is_flat = min(slopes) < self.settings.flat and np.ptp(slopes) > 1e-3
            if is_flat and b.x - a.x > 2 * finest * (1 + 2 * min(np.abs(slopes))):
                points.insert(k + 1, self.solve_at(0.5 * (a.x + b.x), self.settings.rough_change))
            else:
                k += 1
        return points

    def find_crossing(self, alpha: float, low: float, high: float) -> BayesPoint:
        """Return the fixed point at α between two values of log s at which α(s) is on different sides of α."""
        from scipy.optimize import brentq

        def excess(x: float) -> float:
            return min(float(np.log(self.solve_at(x).alpha / alpha)), 600.0)  # finite for an infinite α

        return self.solve_at(float(brentq(excess, low, high, xtol=self.settings.crossing_step, rtol=1e-14)))

    def free_entropy(self, alpha: float, point: BayesPoint) -> float:
        """Return the free entropy Φ of a fixed point at α."""
        return self.equations.free_entropy(alpha, point.V, point.output)

    def ends_level(self, points: list[BayesPoint]) -> bool:
        """Return whether α(s) decreases or has a limit for s → ∞, so that weights are known exactly above some α."""
        return bool(_end_slope(points, self.settings.slope_points) < self.settings.level)

    def conjugates_diverge(self, points: list[BayesPoint]) -> bool:
        """Return whether conjugates grow like 1/V for V → 0, so that the free entropy of full knowledge is infinite."""
        a, b = points[-2:]
        variances = [np.trace(point.V, axis1=1, axis2=2).sum() for point in (a, b)]
        slope = np.log(np.abs(b.output.hats).max() / np.abs(a.output.hats).max()) / np.log(variances[1] / variances[0])
        return bool(abs(slope + 1) < self.settings.divergence)


def _end_slope(points: list[BayesPoint], n_intervals: int) -> float:
    """Return the slope of log α in log s over the last intervals of the curve; infinite if it cannot be computed."""
    a, b = points[-1 - min(n_intervals, len(points) - 1)], points[-1]
    if not np.isfinite(b.alpha) or b.x == a.x:
        return np.inf
    return float(np.log(b.alpha / a.alpha) / (b.x - a.x))
