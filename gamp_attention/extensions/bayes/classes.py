"""State evolution of Bayes-optimal estimation for samples with classes.

`gamp_attention.extensions.bayes.channels.classes` has the posterior of a sample. Classes with equal variances of their
tokens form a group g; a token l of a group is one of the S = (number of groups) · L sources of these averages. With the
posterior covariance C of a row of Q* and q = N − C, a sample of class c has

    ω_l = q a_cl + N(0, σ_l² q),   u_l = ω_l + C a_cl + N(0, σ_l² C),

and known means enter by log P(c') ∋ D_cc' − ½ D_c'c' + N(0, D), D_cc' = Σ_l μ_cl·μ_c'l/σ_l². The known means have no
overlap with Q* for d → ∞, because they are independent of it.

The spikes change message passing in two places (`bayes.class_amp`). The factor exp(−½ a·N a/σ²) of each sample is a
function of N = QᵀQ/d, and adds ⟨a aᵀ⟩/σ² to the precision A of the rows, averaged over the posterior of the class. The
output function g_l = V_l⁻¹(E[u_l] − ω_l) contains the shift by the spike. By the Nishimori conditions both sum up to

    A = α Σ_s σ_s² q̂_s,   q̂_s = E[g_l g_lᵀ; g] = −E[∂g_l/∂ω_l; g] + E[a aᵀ; g]/σ_s⁴,

with averages over samples of the group (E[·; g] includes its probability), so that all equations of
`gamp_attention.extensions.bayes.equations` hold with sources in place of tokens. Without targets g_l = ⟨a⟩/σ_l², which
is the state evolution of Gaussian mixtures (Lesieur et al., 2016).
"""

import numpy as np

from gamp_attention._tools.numerics import project_psd, psd_root
from gamp_attention.extensions.bayes.channels.channel import Halves, Posterior
from gamp_attention.extensions.bayes.channels.classes import class_channel, draw_class_samples
from gamp_attention.extensions.bayes.equations import (
    Equations,
    OutputAverages,
    OutputTerms,
    controlled_products,
    output_functions,
    response_of,
)
from gamp_attention.extensions.bayes.priors import Kind, MixturePrior
from gamp_attention.theory.models.model import Model

ZERO_MEAN = 1e-18  # squared mean of the fields, in units of their variances, that counts as rounding


class ClassEquations(Equations):
    """State evolution of samples with classes, averaged over one set of randomized points.

    Eq. :eq:`bayes-class-overlaps`.

    Attributes
    ----------
    channel, kinds, exact : as for `Equations`.
    rho : (S, t, t) prior covariances of the fields of all sources, without the shift by the spikes.
    """

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator) -> None:
        self._law = class_channel(model)
        self.channel, self.rho, self.exact = self._law, self._law.rho, False
        t = self._law.shape[1]
        self.symmetries = np.eye(t) * self._law.column_signs[:, None]
        prior = MixturePrior(np.ones(1), np.zeros((1, t)), self._law.prior[None])
        variance = self._law.group_variance.ravel()
        self.kinds = [Kind(1.0, variance, np.zeros_like(variance), prior)]
        samples = draw_class_samples(self._law, n_points, rng)
        self._of_class, self._u, self._white, self._weight, self._seen = samples

    def omega(self, V: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return means ω (N, L, t) of the fields, drawn given the fields, for covariances V of u − ω and `known` of ω.

        Given u, ω_l has the mean q a + q ρ⁻¹(u_l − ρ a) and the covariance q ρ⁻¹ V, with covariances of the token.
        """
        law, (L, t) = self._law, self._law.shape
        share = known @ np.linalg.inv(self.rho)
        roots = psd_root(share @ V).reshape(-1, L, t, t)
        omega = np.empty_like(self._u)
        for c in range(len(law.probability)):
            rows, g = self._of_class == c, law.group[c]
            part = slice(g * L, (g + 1) * L)
            rest = self._u[rows] - law.spikes[c] @ law.prior
            omega[rows] = np.einsum("lab,nlb->nla", share[part], rest)
            omega[rows] += np.einsum("lab,nlb->nla", roots[g], self._white[rows])
            omega[rows] += np.einsum("lab,lb->la", known[part], law.spikes[c] / law.group_variance[g][:, None])
        return omega

    def posterior(self, V: np.ndarray, known: np.ndarray, blocks: bool = False) -> tuple[np.ndarray, Posterior]:
        """Return ω (N, L, t) and the posteriors of the samples for covariances V of u − ω and `known` of ω.

        With `blocks`, covariances are within tokens only.
        """
        omega = self.omega(V, known)
        return omega, self._law.posterior(self._seen, omega, V, known, blocks)

    def output(self, V: np.ndarray, known: np.ndarray | None = None) -> OutputAverages:
        """Return E[g gᵀ] of all sources, which contains the probability of their group, and E[log Z]."""
        law, L = self._law, self._law.shape[0]
        known = self.rho - V if known is None else known
        omega, posterior = self.posterior(V, known, blocks=True)
        assert posterior.of_class is not None
        hats = np.empty_like(self.rho)
        for k in range(law.n_groups):
            rows, part = self._seen.group == k, slice(k * L, (k + 1) * L)
            halves = posterior.halves and Halves(*(values[:, rows] for values in posterior.halves))
            of_group = posterior._replace(mean=posterior.mean[rows], cov=posterior.cov[rows], halves=halves)
            g, other, blocks = output_functions(of_group, omega[rows], V[part])
            tilt = np.einsum("nc,clab->nlab", posterior.of_class[rows], self.tilts, optimize=True)
            terms = OutputTerms(g, other, blocks, self._weight[rows], False, tilt)
            hats[part] = controlled_products(terms, V[part], self.rho[part])
        return OutputAverages(project_psd(hats * law.coupled_columns), float(self._weight @ posterior.log_z))

    @property
    def tilts(self) -> np.ndarray:
        """Products a aᵀ/σ⁴ (C, L, t, t) of the spikes of each class."""
        a = self._law.spikes / self._law.variance[:, :, None]
        return np.asarray(a[..., None] * a[..., None, :])

    def responses(self, known: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Return E[G_lm ⊗ G_lm] of columns without overlap, as `Equations.responses`, for all pairs of sources."""
        L, S, k = self._law.shape[0], len(self.rho), len(unknown)
        _, posterior = self.posterior(self.rho - known, known)
        out, second = np.zeros((S, k, k, S, k, k)), posterior.second_moments()
        for g in range(self._law.n_groups):
            rows, part = self._seen.group == g, slice(g * L, (g + 1) * L)
            G, other = (response_of(values[rows], self.rho[part], unknown) for values in second)
            out[part, :, :, part] = np.einsum("n,nlamb,nlcmd->lacmbd", self._weight[rows], G, other, optimize=True)
        return out

    def squared_means(self, known: np.ndarray) -> np.ndarray:
        """Return E[u | y]² (N, t) of the samples, summed over tokens, for covariances `known` of ω."""
        posterior = self.posterior(self.rho - known, known, blocks=True)[1]
        squares = (posterior.mean**2).sum(axis=1)
        if posterior.halves is not None:
            squares = (posterior.halves.mean[0] * posterior.halves.mean[1]).sum(axis=1)
            is_known = np.diagonal(known, axis1=1, axis2=2).max(axis=0) > 0
            squares[:, self.signs_are_free(is_known)] = 0.0  # random points of several classes are not symmetric
        return np.where(squares > ZERO_MEAN * np.abs(self.rho).max(), squares, 0.0)

    def test_error(self, V: np.ndarray, known: np.ndarray) -> float:
        """Return the mean square error of the posterior mean of a new sample's target, given its tokens."""
        return float(self._weight @ self._law.target_error(self._seen, self.omega(V, known), V, known))


def build_equations(model: Model, n_points: int, rng: np.random.Generator) -> Equations:
    """Return the state evolution of a model with or without classes."""
    return (ClassEquations if model.is_mixture else Equations)(model, n_points, rng)
