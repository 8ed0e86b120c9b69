"""State evolution of Bayes-optimal message passing: from covariances V_l of the fields to conjugates, and back."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gamp_attention._core.gaussian import gaussian_points, psd_root
from gamp_attention.bayes.averages import FINE, IntegralRule, output_averages
from gamp_attention.bayes.priors import kinds_of
from gamp_attention.models.channels.choice import channel_of
from gamp_attention.models.labels import ClassLabels
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import SoftmaxTeacher, keeps_columns, keeps_order


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
