"""State evolution of Bayes-optimal message passing: from covariances V_l of the fields to conjugates, and back."""

from typing import NamedTuple

import numpy as np

from gamp_attention._core.gaussian import gaussian_points, psd_root
from gamp_attention.bayes.averages import output_averages
from gamp_attention.bayes.priors import kinds_of
from gamp_attention.models.channels.channel import Posterior
from gamp_attention.models.channels.choice import channel_of
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import SoftmaxTeacher, keeps_columns, keeps_order


class OutputAverages(NamedTuple):
    """Averages over samples."""

    hats: np.ndarray  # (L, t, t) E[g gᵀ], which α multiplies
    log_z: float


class InputAverages(NamedTuple):
    """Averages over coordinates."""

    V: np.ndarray  # (L, t, t) of the fields
    q: np.ndarray  # (t, t) lim Q̂ᵀQ*/d
    log_z: float


class Equations:
    """Both halves of state evolution, averaged over one set of randomised points."""

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator) -> None:
        self.channel, self.kinds = channel_of(model), kinds_of(model.coordinates)
        self.rho, self.n_points = model.coordinates.rho, n_points
        L, t, _ = self.rho.shape
        white = gaussian_points(n_points, 2 * L * t + self.channel.n_noise, rng)
        self._known = white[:, : L * t].reshape(-1, L, t)
        self._unknown = white[:, L * t : 2 * L * t].reshape(-1, L, t)
        self._noise = white[:, 2 * L * t :]
        self._alike, self._isotropic = symmetries(model)

    def fields(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ω (N, L, t), of covariance ρ − V, and fields u = ω + N(0, V)."""
        omega = np.einsum("lab,nlb->nla", psd_root(self.rho - V), self._known)
        return omega, omega + np.einsum("lab,nlb->nla", psd_root(V), self._unknown)

    def posterior(self, V: np.ndarray) -> tuple[np.ndarray, Posterior]:
        """ω and the posteriors of samples drawn at V."""
        omega, u = self.fields(V)
        y = self.channel.observe(u, self._noise)
        return omega, self.channel.posterior(y, omega, V)

    def output(self, V: np.ndarray) -> OutputAverages:
        """E[g gᵀ] and E[log Z]."""
        exact = output_averages(self.channel, self.rho, V, self._alike)
        if exact is not None:
            return OutputAverages(*exact)
        omega, found = self.posterior(V)
        g = np.einsum("lab,nlb->nla", np.linalg.inv(V), found.mean - omega)
        hats = np.einsum("nla,nlb->lab", g, g) / len(g)
        if self._alike:
            hats = np.broadcast_to(hats.mean(axis=0), hats.shape)
        if self._isotropic:
            t = hats.shape[1]
            hats = np.trace(hats, axis1=1, axis2=2)[:, None, None] / t * np.eye(t)
        return OutputAverages(hats, float(found.log_z.mean()))

    def input(self, hats: np.ndarray) -> InputAverages:
        """The overlaps that conjugates q̂ (L, t, t) lead to.

        Eq. :eq:`bayes-overlaps`.
        """
        V, q, log_z = np.zeros_like(self.rho), np.zeros(self.rho.shape[1:]), 0.0
        for kind in self.kinds:
            cov, own = kind.prior.averages(np.einsum("l,lab->ab", kind.gamma, hats))
            V += kind.share * kind.gamma[:, None, None] * cov
            q += kind.share * (kind.prior.second - cov)
            log_z += kind.share * own
        return InputAverages(V, q, log_z)

    def free_entropy(self, alpha: float, V: np.ndarray, output: OutputAverages) -> float:
        """Φ at V, of the conjugates that V has.

        Eq. :eq:`bayes-entropy`.
        """
        hats = alpha * output.hats
        coupling = 0.5 * float(np.einsum("lab,lab->", hats, self.rho - V))
        return alpha * output.log_z + self.input(hats).log_z - coupling

    @property
    def exact(self) -> bool:
        """Whether averages are integrals, the same for all sets of points."""
        return output_averages(self.channel, self.rho, 0.5 * self.rho, self._alike) is not None

    def linear_growth(self) -> float:
        """How much q grows in a step near q = 0, at α = 1.

        Eq. :eq:`bayes-weak`.
        """
        L, t = self.rho.shape[:2]
        V = self.rho
        y = self.channel.observe(np.einsum("lab,nlb->nla", psd_root(V), self._unknown), self._noise)
        cov = self.channel.posterior(y, np.zeros_like(self._known), V).cov.reshape(-1, L, t, L, t)
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


def symmetries(model: Model) -> tuple[bool, bool]:
    """Whether tokens in any order, and columns turned in any way, are the same problem."""
    law, L, t = model.coordinates, model.n_tokens, model.teacher_rank
    look = model.teacher.attention if isinstance(model.teacher, SoftmaxTeacher) else model.teacher
    tokens = np.arange(L)
    orders = np.concatenate([tokens[:2][::-1], tokens[2:]]), np.roll(tokens, 1)
    same = all(np.array_equal(law.gamma, law.gamma[:, order]) for order in orders)
    alike = same and (not model.attention or all(keeps_order(look, t, order) for order in orders))
    spread = law.teacher_cov
    round_prior = not law.teacher_mean.any() and np.array_equal(spread, spread[:, :1, :1] * np.eye(t))
    return bool(alike), bool(t > 1 and model.attention and round_prior and keeps_columns(look, L, t))
