"""Equations of Bayes-optimal state evolution: averages over samples and over coordinates.

`Equations.output` averages over samples: if the fields of token l have posterior means ω_l and covariances V_l, it
returns E[g_l g_lᵀ] with g_l = V_l⁻¹(E[u_l | ω, y] − ω_l); the conjugates are q̂_l = α E[g_l g_lᵀ]. `Equations.input`
averages over coordinates: from the conjugates it returns the covariances V_l and the overlap q. A fixed point
reproduces its V. See Barbier et al. (2019) for generalized linear models.

**Symmetries**, which averages over random points do not have exactly. An orthogonal matrix O (t, t) is a symmetry of
the columns if targets are the same for the fields u and u O, and if the prior of the columns does not change. State
evolution then maps covariances with O S Oᵀ = S to such covariances. There may be infinitely many symmetries, for
example all rotations for targets u_1·u_2. Rotations are exponentials of antisymmetric matrices A with Σ ∂y/∂u_la (u
A)_la = 0, a linear system. Finite symmetries are searched among exchanges of columns with changes of signs.

A small overlap δq near a fixed point without overlap becomes Σ_m E[G_lm δq_m G_lmᵀ] (`Equations.growth_map`). This map
preserves positive semidefinite matrices, so that its largest eigenvalue has a positive semidefinite eigenmatrix (Krein
and Rutman, 1948), whose average over the symmetries is another: it suffices to search among matrices that do not
change. Without this restriction the eigenvalue can be degenerate, as for targets u_1·u_2. Random errors then select an
arbitrary combination of columns, and the largest of several random eigenvalues is too large.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import expm

from gamp_attention._tools.numerics import psd_root, raise_spectrum, symmetrize
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.channel import Posterior
from gamp_attention.extensions.bayes.channels.fibers import symmetric_product
from gamp_attention.extensions.bayes.channels.integrals import FINE, IntegralRule
from gamp_attention.extensions.bayes.channels.labels import channel_of
from gamp_attention.extensions.bayes.priors import kinds_of
from gamp_attention.extensions.sequence.sequence_labels import N_SYMMETRY, SequenceLabels
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.model import Model

SMALL_OVERLAP = 1e-6  # overlap in units of the prior, at which the growth of overlaps is computed by integrals
BLURRED_V = 1e-8  # V in units of ρ below which rounding errors dominate the slope −∂g/∂ω
ALL_ORDERS = 4  # number of columns up to which all orders with all signs are tested
STEP = 1e-5  # angle of difference quotients
TARGET_ERROR = 1e-7  # relative change of targets up to which a matrix, as a rotation by one radian, is a symmetry
NO_SLOPE = 1e-12  # eigenvalue, relative to the largest, up to which a squared derivative counts as zero
SAME_MATRIX = 1e-8  # relative difference of matrices up to which they count as equal


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
        averages = self.input(model.coordinates.rho_inverse)
        V = averages.V if averages.V.any() else 0.5 * self.rho  # a prior that is certain needs no averages
        self.exact = self.channel.integrate(self.rho - V, V, rule) is not None
        self._n_points, self._rng = n_points, rng
        labels: Any = getattr(self.channel, "labels", None)
        self.symmetries = find_column_symmetries(model, labels if self.channel.is_function else None)

    @cached_property
    def _fields(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fields u (N, L, t) of the samples, standard normal numbers for ω given u (N, L, t), and the observations."""
        L, t, _ = self.rho.shape
        points = gaussian_points(self._n_points, 2 * L * t + self.channel.n_noise, self._rng)
        if self.channel.has_mirror_images:
            points = points[: len(points) // 2]
        white = points[:, : 2 * L * t].reshape(-1, 2, L, t)
        u = np.einsum("lab,nlb->nla", psd_root(self.rho), white[:, 0])
        return u, white[:, 1], self.channel.observe(u, points[:, 2 * L * t :])

    @cached_property
    def _posterior(self) -> Callable[[np.ndarray, np.ndarray], Posterior]:
        """Posterior of the samples as a function of ω and V, which may reuse its points."""
        return self.channel.reuse(self._fields[2], self.rho)

    def samples(self, V: np.ndarray, known: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return ω (N, L, t) of covariance ρ − V, fields u = ω + N(0, V), and the observations of these samples.

        u and the observations do not depend on V, so that points of their posteriors can be reused: ω is drawn given u,
        with mean (ρ − V)ρ⁻¹u and covariance (ρ − V)ρ⁻¹V.
        """
        u, white, y = self._fields
        share = (self.rho - V if known is None else known) @ np.linalg.inv(self.rho)
        omega = np.einsum("lab,nlb->nla", share, u) + np.einsum("lab,nlb->nla", psd_root(share @ V), white)
        return omega, u, y

    def posterior(self, V: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, Posterior]:
        """Return ω (N, L, t) and the posteriors of the samples for covariances V of u − ω and `known` of ω."""
        omega = self.samples(V, known)[0]
        return omega, self._posterior(omega, V)

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
        return OutputAverages(raise_spectrum(hats), float(posterior.log_z.mean()))

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
        eigenvalues is too large, see the description of the module.
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
    G[:, np.arange(L), :, np.arange(L)] -= inverse[:, None]
    return G


@lru_cache(maxsize=16)
def find_column_symmetries(model: Model, labels: SequenceLabels | None) -> np.ndarray:
    """Return orthogonal matrices O (n, t, t), with the identity, of which each is a symmetry of the columns.

    A matrix that commutes with all of them commutes with all symmetries of the search: rotations, exchanges of columns,
    and changes of signs. For more than `ALL_ORDERS` columns, only exchanges of one pair of columns are tested. Averages
    over labels of generalized linear models have exact symmetries, for which the identity is returned (no `labels`).
    """
    law, L, t = model.coordinates, model.n_tokens, model.teacher_rank
    if t == 1 or labels is None:
        return np.eye(t)[None]
    moved = t if t <= ALL_ORDERS else 2  # largest number of columns that are not at their index
    orders = [order for order in permutations(range(t)) if sum(a != k for k, a in enumerate(order)) <= moved]
    every = [np.eye(t)[list(order)] * signs for order in orders for signs in product((1.0, -1.0), repeat=t)]
    rng, units = np.random.default_rng(9), np.eye(t)
    u, noise = rng.standard_normal((N_SYMMETRY, L, t)), rng.standard_normal((N_SYMMETRY, labels.count))
    generators = np.array([np.outer(a, b) - np.outer(b, a) for a, b in combinations(units, 2)])
    rows, size = [], max(float(np.abs(labels(u, noise)).max()), 1e-150)
    for A in generators:
        ahead, back = (labels(u + sign * STEP * (u @ A), noise).ravel() for sign in (1, -1))
        of_prior = (A @ law.teacher_cov - law.teacher_cov @ A).ravel(), (law.teacher_mean @ A).ravel()
        rows.append(np.concatenate([(ahead - back) / (2 * STEP * size), *of_prior]))
    slopes = np.nan_to_num(rows, nan=1.0, posinf=1.0, neginf=1.0)
    values, vectors = np.linalg.eigh(slopes @ slopes.T)
    still = vectors.T[values <= NO_SLOPE * max(values[-1], 1.0)]
    every += [np.asarray(expm(np.einsum("k,kab->ab", weights, generators))) for weights in still]
    return np.array([O for O in every if _keeps_prior(O, law) and _keeps_targets(O, labels, u, noise)])


def invariant_projector(symmetries: np.ndarray) -> np.ndarray:
    """Return the projector (t, t, t, t) on matrices S = Sᵀ with O S Oᵀ = S for all symmetries O (n, t, t)."""
    t = symmetries.shape[1]
    one = np.eye(t * t)
    conditions = [np.kron(O, O) - one for O in symmetries]
    conditions.append(one.reshape(t, t, t, t).swapaxes(2, 3).reshape(t * t, t * t) - one)
    values, vectors = np.linalg.eigh(sum(condition.T @ condition for condition in conditions))
    basis = vectors[:, values < SAME_MATRIX]
    return np.asarray((basis @ basis.T).reshape(t, t, t, t))


def restrict_symmetries(symmetries: np.ndarray, known: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the symmetries that do not change the covariances `known` (L, t, t), restricted to `columns` (k,).

    The other columns are known, so that these symmetries do not combine both sets of columns.
    """
    changed = np.einsum("nab,lbc,ndc->nlad", symmetries, known, symmetries)
    differences = np.abs(changed - known).max(axis=(1, 2, 3))
    kept = symmetries[differences <= SAME_MATRIX * max(float(np.abs(known).max()), 1e-300)]
    return np.asarray(kept[:, columns[:, None], columns])


def _keeps_targets(O: np.ndarray, labels: SequenceLabels, u: np.ndarray, noise: np.ndarray) -> bool:
    """Return whether targets are the same for fields u and u O, possibly with the other sign of the noise."""
    before = labels(u, noise)
    limit = TARGET_ERROR * (1 + np.abs(before).max())
    return any(np.abs(labels(u @ O, sign * noise) - before).max() <= limit for sign in (1, -1))


def _keeps_prior(O: np.ndarray, law: CoordinateLaw) -> bool:
    """Return whether the prior of the columns in all classes of coordinates is the same after multiplication by O."""
    cov, mean = law.teacher_cov, law.teacher_mean
    return bool(np.allclose(O.T @ cov @ O, cov, rtol=0, atol=SAME_MATRIX * np.abs(cov).max())
                and np.allclose(mean @ O, mean, rtol=0, atol=SAME_MATRIX))  # fmt: skip
