"""Datasets: sampled from a model, or the user's own arrays. All data randomness is here."""

from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.attention import DotProductAttention
from gamp_attention.fields import local_fields, token_products
from gamp_attention.losses import pack_attention_parameters
from gamp_attention.models import Model, check_student, require_model
from gamp_attention.penalties import lam_of, require_penalty
from gamp_attention.registration import sample_loss
from gamp_attention.risk_terms import RiskTerms, asymptotic_terms
from gamp_attention.sources import Sources, by_group, draw_tokens

RISKS = ("asymptotic", "exact")
OVERFLOW = "tokens, outputs: need products within the range of doubles, got ones that overflow"


class Dataset:
    """n samples of L tokens in R^d with their outputs, reduced to what the two risks need.

    Parameters
    ----------
    tokens : (n, L, d) tokens x, centred; float32 is kept as such, half the memory, and all sums are taken in float64.
    outputs : (n, L, d) outputs y. Used once, to form (x+p)yᵀ/d; never needed again.
    positions : (L, d) positional encodings p, of norm Θ(1).
    lam : ridge λ > 0 of eq. (3); not used where a penalty is given.
    rank : columns r of the student's Q.
    spectra : (L, 1) or (L, d) eigenvalues of Σ_l along the coordinates; the mean square of the tokens if
        not given. Fixed points do not depend on it.
    student : the attention map S, eq. (2).
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1); an attribute, as lam, λ or else its strength.

    Attributes
    ----------
    groups : samples whose tokens are drawn from the same sources; all of them but in mixtures, see `mixture_model`.
    source_means : (S, d) what x + p has for its mean in each source: the positions, but in mixtures.
    Q_star : (d, t) teacher weights, or None.
    targets : (n, L, L) teacher attention matrices T[xQ*/√d], or None.
    model : the Model it was sampled from, or None.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """

    def __init__(
        self,
        tokens: Any,
        outputs: Any,
        positions: Any,
        lam: float = 0.01,
        *,
        rank: int = 1,
        spectra: Any = None,
        student: DotProductAttention | None = None,
        penalty: Any = None,
    ) -> None:
        self.tokens = np.ascontiguousarray(check.array("tokens", tokens, ("n", "L", "d"), single=True))
        n, L, d = self.tokens.shape
        outputs = check.array("outputs", outputs, (n, L, d))
        positions = np.ascontiguousarray(check.array("positions", positions, (L, d)))
        self._describe(require_penalty(penalty, lam), rank, spectra, student, Sources.plain(positions, n))
        G = self._gram()
        M = token_products(self.tokens, outputs) + self.positions @ outputs.transpose(0, 2, 1)
        norm = np.einsum("nld,nld->n", outputs, outputs)
        self._exact = RiskTerms(pack_attention_parameters(G, M / d), norm / (2 * d))
        if not (np.isfinite(self._exact.params).all() and np.isfinite(self._exact.constant).all()):
            raise ValueError(OVERFLOW)
        self._asymptotic: RiskTerms | None = None
        self._outputs: np.ndarray | None = outputs
        self.Q_star: np.ndarray | None = None
        self.targets: np.ndarray | None = None
        self.model: Model | None = None

    @classmethod
    def from_teacher(
        cls,
        model: Model,
        tokens: np.ndarray,
        positions: np.ndarray,
        Q_star: np.ndarray,
        spectra: np.ndarray,
        sources: Sources | None = None,
    ) -> "Dataset":
        """Samples labelled by a teacher, y = T[xQ*/√d] x; outputs are formed only when asked for."""
        self = cls.__new__(cls)
        self.tokens = tokens
        n, _, d = tokens.shape
        sources = Sources.plain(positions, n) if sources is None else sources
        self._describe(model.penalty, model.rank, spectra, model.student, sources)
        self.Q_star, self.model = Q_star, model
        self.targets = T = model.teacher(local_fields(tokens, np.zeros_like(positions), Q_star))
        T_t = T.transpose(0, 2, 1)
        xx = token_products(tokens, tokens) / d
        px = token_products(tokens, np.broadcast_to(positions, tokens.shape)).transpose(0, 2, 1) / d
        M = (xx + px) @ T_t
        self._exact = RiskTerms(pack_attention_parameters(self._gram(), M), np.einsum("nij,njk,nik->n", T, xx, T) / 2)
        self._asymptotic = asymptotic_terms(T, self.traces)
        self._outputs = None
        return self

    def _describe(
        self, penalty: Any, rank: int, spectra: Any, student: DotProductAttention | None, sources: Sources
    ) -> None:
        self.positions, self.source_means, self.groups = sources
        self.penalty, self.lam = penalty, lam_of(penalty)
        self.rank = check.integer("rank", rank, low=1)
        L, d = self.positions.shape
        if spectra is None:
            spectra = np.einsum("nld,nld->l", self.tokens, self.tokens, dtype=float)[:, None] / (len(self.tokens) * d)
            if not np.isfinite(spectra).all():
                raise ValueError(OVERFLOW)
            spectra = np.maximum(spectra, np.finfo(float).tiny)
        S = len(self.source_means)
        self.spectra = check.array("spectra", spectra, (S, "d"))
        if self.spectra.shape[1] not in (1, d):
            raise check.fail("spectra", self.spectra, f"shape ({S}, 1) or ({S}, {d})")
        if (self.spectra < 0).any():
            raise check.fail("spectra", float(self.spectra.min()), "positive semi-definite covariances")
        self.student = DotProductAttention() if student is None else student
        check_student(self.student, L, self.rank)

    def _gram(self) -> np.ndarray:
        """G = (x+p)(x+p)ᵀ/d, of shape (n, L, L), without forming x + p."""
        x, p = self.tokens, self.positions
        cross = token_products(x, np.broadcast_to(p, x.shape))
        return (token_products(x, x) + cross + cross.transpose(0, 2, 1) + p @ p.T) / x.shape[2]

    def instance_model(self) -> Model:
        """The model with the second moments of this very instance's teacher and positions in place of their law.

        State evolution of it predicts runs on these data without the fluctuations, O(1/√d), that the teacher brings.

        Raises
        ------
        ValueError : for data without a teacher.
        """
        if self.model is None or self.Q_star is None:
            raise ValueError("data: needs samples drawn from a model, got own arrays")
        return self.model.on_coordinates(*self.coordinate_samples())

    def coordinate_samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What `Model.on_coordinates` takes, for every coordinate of this instance.

        γ, √d (p + μ) and √d μ in each source, (d, S), and the teacher's rows (d, t).
        """
        assert self.model is not None
        assert self.Q_star is not None
        means, d = self.source_means, self.dim
        class_means = means - self.positions[self.model.token_of_source]
        gamma = np.broadcast_to(self.spectra, means.shape).T
        return gamma, np.sqrt(d) * means.T, np.sqrt(d) * class_means.T, self.Q_star

    @property
    def n_samples(self) -> int:
        """Number of samples n."""
        return self.tokens.shape[0]

    @property
    def n_tokens(self) -> int:
        """Tokens per sample L."""
        return self.tokens.shape[1]

    @property
    def n_sources(self) -> int:
        """Sources S that tokens are drawn from: L, or the number of (token, class) pairs of a mixture."""
        return self.source_means.shape[0]

    @property
    def traces(self) -> np.ndarray:
        """tr Σ/d of the tokens of each sample, (n, L), or (1, L) where all samples are alike."""
        trace = self.spectra.mean(axis=1)
        if len(self.groups) == 1:
            return trace[self.groups[0].sources][None]
        return by_group(self.groups, lambda rows, at: np.tile(trace[at], (rows.stop - rows.start, 1)))

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return self.tokens.shape[2]

    @property
    def alpha(self) -> float:
        """Sample complexity n/d."""
        return self.n_samples / self.dim

    @property
    def loss(self) -> Any:
        """The per-sample loss of the equivalent GLM."""
        return sample_loss(self.student, self.n_tokens, self.rank)

    @property
    def outputs(self) -> np.ndarray:
        """Outputs y, of shape (n, L, d); formed from the targets at each call where a teacher gave them."""
        return self.targets @ self.tokens if self._outputs is None else self._outputs

    def terms(self, risk: str) -> RiskTerms:
        """The loss parameters of a risk.

        Eq. :eq:`glm`.

        Raises
        ------
        ValueError : for an unknown risk, or the asymptotic one where the teacher is not known.
        """
        check.choice("risk", risk, RISKS)
        if risk == "exact":
            return self._exact
        if self._asymptotic is None:
            raise ValueError("risk: 'asymptotic' needs the teacher's attention matrices; own arrays need 'exact'")
        return self._asymptotic


def sample(model: Model, d: int, alpha: float, seed: Any = 0, dtype: Any = np.float64) -> Dataset:
    """Draw n = round(αd) sentences and the teacher from a model.

    Eq. :eq:`teacher`.

    Parameters
    ----------
    model : what to draw from.
    d : dimension of a token, at least 1.
    alpha : sample complexity n/d; must give at least one sample.
    seed : an integer or a numpy Generator.
    dtype : of the tokens, float64 or float32; the same numbers, rounded.

    Returns
    -------
    Dataset with Q_star (d, t) and targets (n, L, L).

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> data.tokens.shape, data.Q_star.shape
    ((300, 2, 200), (200, 1))
    """
    require_model(model)
    d = check.integer("d", d, low=1)
    n = round(check.real("alpha", alpha, low=0, strict=True) * d)
    if n < 1:
        raise check.fail("alpha", alpha, f"at least one sample, alpha * d >= 1 at d = {d}")
    rng = check.generator(seed)
    law = model.coordinates
    # as many coordinates of each class as its share asks for
    edges = np.round(np.cumsum(law.weight) * d).astype(int)
    k = np.searchsorted(edges, np.arange(d), side="right").clip(max=len(edges) - 1)
    roots = _square_roots(law.teacher_cov)
    Q_star = law.teacher_mean[k] + np.einsum("ist,it->is", roots[k], rng.standard_normal((d, model.teacher_rank)))
    means = positions = np.ascontiguousarray(law.tau[k].T) / np.sqrt(d)
    if model.position_tau is not law.tau:
        positions = np.ascontiguousarray(model.position_tau[k].T) / np.sqrt(d)
    spectra = law.gamma.T.copy() if len(law.weight) == 1 else np.ascontiguousarray(law.gamma[k].T)
    tokens, sources = draw_tokens(rng, n, d, positions, means, spectra, model.draw_groups, _precision(dtype))
    return model.label(tokens, sources, Q_star, spectra, rng)


def _precision(dtype: Any) -> np.dtype:
    if dtype not in (np.float64, np.float32, "float64", "float32"):
        raise check.fail("dtype", dtype, "float64 or float32")
    return np.dtype(dtype)


def _square_roots(covariances: np.ndarray) -> np.ndarray:
    """Symmetric square roots of a stack of positive semi-definite matrices."""
    spectrum, vectors = np.linalg.eigh(covariances)
    return np.einsum("kij,kj,klj->kil", vectors, np.sqrt(spectrum.clip(min=0)), vectors)
