"""Equations of Bayes-optimal state evolution: averages over samples and over coordinates.

`Equations.output` averages over samples: if the fields of token l have posterior means ω_l and covariances V_l, it
returns E[g_l g_lᵀ] with g_l = V_l⁻¹(E[u_l | ω, y] − ω_l); the conjugates are q̂_l = α E[g_l g_lᵀ]. `Equations.input`
averages over coordinates: from the conjugates it returns the covariances V_l and the overlap q. A fixed point
reproduces its V. See Barbier et al. (2019) for generalized linear models.
"""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.numerics import project_psd, psd_root, symmetrize
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.channel import Posterior
from gamp_attention.extensions.bayes.channels.fibers import symmetric_product
from gamp_attention.extensions.bayes.channels.integrals import FINE, IntegralRule
from gamp_attention.extensions.bayes.channels.labels import channel_of
from gamp_attention.extensions.bayes.priors import kinds_of
from gamp_attention.extensions.bayes.symmetries import find_column_symmetries, invariant_projector, restrict_symmetries
from gamp_attention.theory.models.model import Model

SMALL_OVERLAP = 1e-6  # overlap in units of the prior, at which the growth of overlaps is computed by integrals
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
        self.channel = channel_of(model).with_other_points(rng)
        self._reused: Callable[[np.ndarray, np.ndarray], Posterior] | None = None
        averages = self.input(np.linalg.pinv(self.rho))
        V = averages.V if averages.V.any() else 0.5 * self.rho  # a prior that is certain needs no averages
        self.exact = self.channel.integrate(self.rho - V, V, rule) is not None
        self._n_points, self._rng = n_points, rng
        self.symmetries = find_column_symmetries(model, self.channel)

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

        u and the observations do not depend on V, so that points of their posteriors can be reused: ω is drawn given u,
        with mean (ρ − V)ρ⁻¹u and covariance (ρ − V)ρ⁻¹V.
        """
        first, second, noise = self._points
        known = self.rho - V if known is None else known
        u = np.einsum("lab,nlb->nla", psd_root(self.rho), first)
        share = known @ np.linalg.inv(self.rho)
        omega = np.einsum("lab,nlb->nla", share, u) + np.einsum("lab,nlb->nla", psd_root(share @ V), second)
        return omega, u, self.channel.observe(u, noise)

    def posterior(self, V: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, Posterior]:
        """Return ω (N, L, t) and the posteriors of the samples for covariances V of u − ω and `known` of ω."""
        omega, _, y = self.samples(V, known)
        if self._reused is None:
            self._reused = self.channel.reuse(y, self.rho)
        return omega, self._reused(omega, V)

    def output(self, V: np.ndarray, known: np.ndarray | None = None) -> OutputAverages:
        """Return E[g gᵀ] and E[log Z] for covariances V of u − ω and `known` of ω (ρ − V by default).

        Averages over random points use `controlled_products`, and have the symmetries of the problem.
        """
        known = self.rho - V if known is None else known
        if self.exact:
            averages = self.channel.integrate(known, V, self.rule)
            assert averages is not None
            return OutputAverages(*averages)
        omega, posterior = self.posterior(V, known)
        hats = controlled_products(posterior, omega, V, self.rho, paired=not self.channel.has_mirror_images)
        if len(self.symmetries) > 1:  # keep the symmetries of `known`
            projector = invariant_projector(restrict_symmetries(self.symmetries, known, np.arange(V.shape[1])))
            hats = np.einsum("abcd,lcd->lab", projector, hats)
        return OutputAverages(project_psd(hats), float(posterior.log_z.mean()))

    def input(self, hats: np.ndarray) -> InputAverages:
        """Return the averages over coordinates for conjugates q̂ (L, t, t).

        Eq. :eq:`bayes-overlaps`.
        """
        totals = InputAverages(np.zeros_like(self.rho), np.zeros_like(self.rho), np.zeros(self.rho.shape[1:]), 0.0)
        for kind in self.kinds:
            of_kind, gamma = kind.prior.averages(np.einsum("l,lab->ab", kind.gamma, hats)), kind.gamma[:, None, None]
            parts = gamma * of_kind.cov, gamma * of_kind.known, of_kind.known, of_kind.net
            totals = InputAverages(*(a + kind.fraction * b for a, b in zip(totals, parts, strict=True)))
        return totals

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

    def growth(self, known: np.ndarray | None = None, columns: np.ndarray | None = None) -> float:
        """Return the largest factor by which an iteration at α = 1 multiplies a small overlap.

        Its inverse is the weak-recovery threshold if q = 0 is a fixed point. Eq. :eq:`bayes-weak`. The arguments are as
        for `growth_map`; by default there is no information, and all columns are unknown.
        """
        if known is None or columns is None:
            if self.exact:
                one, two = (self._growth_of(k * SMALL_OVERLAP) for k in (1, 2))
                return 2 * one - two  # extrapolated to no overlap
            known, columns = np.zeros_like(self.rho), np.arange(self.rho.shape[1])
        return float(np.real(np.linalg.eigvals(self.growth_map(known, columns))).max())

    def _growth_of(self, size: float) -> float:
        """Return the factor by which an iteration at α = 1 multiplies the covariances of ω, of `size` relative to ρ.

        Their shape is iterated until it does not change.
        """
        known, growth = size * self.rho, np.inf
        for _ in range(200):
            before, after = growth, self.input(self.output(self.rho - known, known).hats).known
            growth = float(np.linalg.norm(after) / np.linalg.norm(known))
            known = after / growth
            if abs(growth - before) <= 1e-10 * growth:
                break
        return growth

    def growth_map(self, known: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Return the linear map of a small overlap of columns `unknown` (k,) in one iteration at α = 1.

        `known` (L, t, t) are the covariances of ω, zero if there is no information. The map (L k k, L k k) acts on the
        conjugates of these columns, and on their overlaps after the averages over coordinates. It is restricted to
        overlaps with all symmetries: other directions increase at the same rate, and the largest of several random
        eigenvalues is too large, see `bayes.symmetries`.
        """
        L, k = len(self.rho), len(unknown)
        omega, posterior = self.posterior(self.rho - known, known)
        one, other = (response_of(second, self.rho, unknown) for second in posterior.second_moments())
        out = np.einsum("nlamb,nlcmd->lacmbd", one, other, optimize=True) / len(omega)
        part = invariant_projector(restrict_symmetries(self.symmetries, known, unknown))
        out = np.einsum("acef,lefmgh,ghbd->lacmbd", part, out, part, optimize=True)
        fractions, gammas = (np.array([getattr(kind, name) for kind in self.kinds]) for name in ("fraction", "gamma"))
        priors = np.array([kind.prior.second[unknown[:, None], unknown] for kind in self.kinds])
        back = np.einsum("j,jl,jm,jab,jcd->lacmbd", fractions, gammas, gammas, priors, priors, optimize=True)
        return np.asarray(np.tensordot(back, out, 3)).reshape(L * k * k, L * k * k)

    def squared_means(self) -> np.ndarray:
        """Return E[u | y]² (N, t) of the samples, summed over tokens, without other information."""
        halves = self.posterior(self.rho, np.zeros_like(self.rho))[1].halves
        assert halves is not None
        return np.asarray((halves.mean[0] * halves.mean[1]).sum(axis=1))

    def signless_columns(self) -> np.ndarray:
        """Return the columns (t,) whose overlap q = 0 is preserved, since targets do not determine their sign."""
        return self.channel.signless_columns & (not any(kind.prior.first.any() for kind in self.kinds))

    def has_zero_fixed_point(self) -> bool:
        """Return whether q = 0 is a fixed point: the prior has mean zero and samples do not determine the sign."""
        return bool(self.signless_columns().all())


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
