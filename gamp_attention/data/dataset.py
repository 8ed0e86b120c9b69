"""Datasets: samples with what the risks need of them, drawn from a model or the user's own arrays.

Datasets of generalised linear models: rows of tokens with labels.

Samples kept aside from training.
"""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.display import DisplayMixin
from gamp_attention._core.numerics import MAX_ROOT, ignore_float_errors
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.data.kernels import Part
from gamp_attention.data.passes import OutputStep, RiskSums, local_fields, output_step, sum_risk
from gamp_attention.data.reduction import mean_squares, own_terms, taught_terms, token_means
from gamp_attention.data.stores import Tokens, TokenStore, as_tokens
from gamp_attention.losses.attention import DotProductAttention, RiskTerms, asymptotic_terms
from gamp_attention.losses.point import WeightedLoss
from gamp_attention.losses.registration import sample_loss
from gamp_attention.models.glm import GLMModel, check_labels, require_loss
from gamp_attention.models.model import Model, check_student
from gamp_attention.models.sources import Sources, by_group
from gamp_attention.penalties.standard import require_penalty

RISKS = ("asymptotic", "exact")
OVERFLOW = (
    f"tokens, outputs, positions: need products of entries below {MAX_ROOT:g}, got larger ones that overflow; "
    "divide all arrays by their standard deviation, or use --standardise (GampAttention(standardise=True))"
)


class Dataset(DisplayMixin):
    """n samples of L tokens in R^d with their outputs, reduced to what the two risks need.

    Parameters
    ----------
    tokens : (n, L, d) tokens x, centred; float32 is kept as such, half the memory, and all sums are taken in float64.
        Memory-mapped arrays, arrays of zarr and datasets of h5py stay on the disk and are read block by block.
    outputs : (n, L, d) outputs y. Used once, to form (x+p)yᵀ/d; never needed again. May be on the disk, too.
    positions : (L, d) positional encodings p, of norm Θ(1), that the layer adds to the tokens. If not given, the tokens
        hold them already: none are added, and `source_means` are the means of the tokens at each of the L places. The
        exact risk is one of x + p alone, so that this changes neither its minima nor what the layer does.
    lam : ridge λ > 0 of equation (3); not used where a penalty is given.
    rank : columns r of the student's Q.
    spectra : (L, 1) or (L, d) eigenvalues of Σ_l along the coordinates; the mean square of the tokens if
        not given, about estimated positions. Fixed points do not depend on it.
    student : the attention map S of equation (2).
    penalty : a penalty other than Ridge(lam), e.g. ElasticNet(lam, l1).
    sample_weight : (n,) positive weights that multiply the losses of the samples in the risk; a weight of 2 counts a
        sample twice. If not given, all weights are 1. Errors of single samples, as of `leave_one_out`, are multiplied
        by the weights, too.

    Attributes
    ----------
    penalty, lam : the penalty and its λ, or its strength where it has none.
    groups : ranges of samples whose tokens are drawn from the same sources; more than one only in mixtures, see
        `mixture_model`.
    source_means : (S, d) mean of x + p in each source; the positions, except in mixtures.
    Q_star : (d, t) teacher weights, or None.
    targets : (n, L, L) teacher attention matrices T[xQ*/√d], or None.
    model : the Model it was sampled from, or None.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    Sentences whose tokens are to change places:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> x = np.random.default_rng(0).normal(size=(200, 2, 100)) / 2
    >>> data = ga.Dataset(x, x[:, ::-1], positions=np.outer([1, -1], np.full(100, 0.1)), lam=0.1)
    >>> data.alpha, ga.run_gamp(data, "positional").converged
    (2.0, True)
    """

    @ignore_float_errors
    def __init__(
        self,
        tokens: Any,
        outputs: Any,
        positions: Any = None,
        lam: float = 0.01,
        *,
        rank: int = 1,
        spectra: Any = None,
        student: DotProductAttention | None = None,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        self.tokens: Tokens = as_tokens("tokens", tokens)
        n, L, d = self.tokens.shape
        self._outputs: Tokens | None = as_tokens("outputs", outputs)
        if self._outputs.shape != (n, L, d):
            raise ValueError(f"outputs: needs shape {(n, L, d)}, got shape {self._outputs.shape}")
        if positions is None:
            sources = Sources.plain(np.zeros((L, d)), n)._replace(means=token_means(self.tokens))
        else:
            sources = Sources.plain(np.ascontiguousarray(check.array("positions", positions, (L, d))), n)
        self._describe(require_penalty(penalty, lam), rank, spectra, student, sources)
        exact = own_terms(self.tokens, self.positions, self._outputs)
        if not all((np.abs(part) < MAX_ROOT).all() for part in (exact.params, exact.constant)):
            raise ValueError(OVERFLOW)
        self.sample_weight = checked_weights(sample_weight, n)
        if self.sample_weight is not None:  # the loss is linear in its parameters
            exact = RiskTerms(exact.params * self.sample_weight[:, None], exact.constant * self.sample_weight)
        self._risks = {"exact": exact}
        self.Q_star: np.ndarray | None = None
        self.targets: np.ndarray | None = None
        self.model: Model | None = None

    @classmethod
    def from_teacher(
        cls,
        model: Model,
        tokens: Tokens,
        positions: np.ndarray,
        Q_star: np.ndarray,
        spectra: np.ndarray,
        sources: Sources | None = None,
        noise: np.ndarray | None = None,
    ) -> "Dataset":
        """Samples labelled by a teacher, y = (T[xQ*/√d] + noise) x; outputs are formed only when asked for."""
        self = cls.__new__(cls)
        self.tokens = tokens
        sources = Sources.plain(positions, len(tokens)) if sources is None else sources
        self._describe(model.penalty, model.rank, spectra, model.student, sources)
        self.Q_star, self.model = Q_star, model
        self.targets, exact = taught_terms(tokens, positions, model.teacher, Q_star, noise)
        self._risks = {"exact": exact, "asymptotic": asymptotic_terms(self.targets, self.traces)}
        self._outputs = None
        return self

    def _describe(
        self, penalty: Any, rank: int, spectra: Any, student: DotProductAttention | None, sources: Sources
    ) -> None:
        self.positions, self.source_means, self.groups = sources
        self.penalty, self.lam = penalty, float(penalty.lam)
        self.rank = check.integer("rank", rank, low=1)
        L, d = self.positions.shape
        parts = getattr(student, "parts", 1)
        if (student is None or isinstance(student, DotProductAttention)) and self.rank > d * parts:
            needs = f"at most {d * parts}, the rank that scores of tokens in d = {d} dimensions can have"
            raise check.fail("rank", self.rank, needs)
        if spectra is None:
            estimated = self.source_means if self.source_means is not self.positions else None
            spectra = mean_squares(self.tokens, estimated)[:, None]
            if not (spectra < MAX_ROOT).all():
                raise ValueError(OVERFLOW)
            spectra = np.maximum(spectra, 1e-100)  # of tokens that are all zero
        S = len(self.source_means)
        self.spectra = check.array("spectra", spectra, (S, "d"))
        if self.spectra.shape[1] not in (1, d):
            raise check.fail("spectra", self.spectra, f"shape ({S}, 1) or ({S}, {d})")
        if (self.spectra < 0).any():
            raise check.fail("spectra", float(self.spectra.min()), "positive semi-definite covariances")
        if not self.spectra.any(axis=1).all():
            raise check.fail("spectra", self.spectra, "a positive trace of every covariance")
        self.student = check_student(DotProductAttention() if student is None else student, L, self.rank)

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
        class_means = means - self.positions[self.model.classes.token]
        gamma = np.broadcast_to(self.spectra, means.shape).T
        return gamma, np.sqrt(d) * means.T, np.sqrt(d) * class_means.T, self.Q_star

    def _items(self) -> list[tuple[str, Any]]:
        names = ("n_samples", "n_tokens", "dim", "alpha", "rank", "student", "penalty", "Q_star")
        return [(name, getattr(self, name)) for name in names]

    def fields(self, Q: Any) -> np.ndarray:
        """The fields z = (x + p) Q/√d, (n, L, r), of weights Q (d, r); `student` of them is the attention."""
        return local_fields(self.tokens, self.positions, check.array("Q", Q, (self.dim, "r")))

    rows_here = True  # whether D and z of the samples are in this process
    labels: np.ndarray | None = None  # (n, P) of a generalised linear model
    sample_weight: np.ndarray | None = None  # (n,) factors of the losses

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
        loss = sample_loss(self.student, self.n_tokens, self.rank)
        return loss if self.labels is None or self.sample_weight is None else WeightedLoss(loss)

    @property
    def outputs(self) -> np.ndarray:
        """Outputs y (n, L, d), in memory, formed from the targets at each call where a teacher gave them; or labels."""
        if self.labels is not None:
            return self.labels
        if self._outputs is not None:
            return np.asarray(self._outputs)
        assert self.targets is not None
        return self.targets @ np.asarray(self.tokens)

    def read_outputs(self, rows: slice) -> np.ndarray:
        """Return the outputs y of a range of samples, (rows, L, d), without the outputs of other samples in memory."""
        if isinstance(self._outputs, np.ndarray):
            return self._outputs[rows]
        if self._outputs is not None:
            return self._outputs.read(rows)
        if self.targets is None:
            raise ValueError("data: needs samples with outputs, got labels")
        tokens = self.tokens[rows] if isinstance(self.tokens, np.ndarray) else self.tokens.read(rows)
        return self.targets[rows] @ tokens

    def output_step(self, risk: str, Q: np.ndarray, D: Any, V: np.ndarray, z: Any, most: int) -> OutputStep:
        """ω, z and g of all samples in an iteration of message passing; see `gamp_attention.data.passes`."""
        return output_step(self._part(risk), risk, Q, D, V, z, most)

    def sum_risk(self, risk: str, Q: np.ndarray) -> RiskSums:
        """A risk at weights Q (d, r), without its penalty."""
        return sum_risk(self._part(risk), risk, Q)

    def _part(self, risk: str) -> Part:
        risks = {risk: self.terms(risk)}
        return Part(self.tokens, self.positions, self.groups, self.n_sources, self.loss, risks)

    def terms(self, risk: str) -> RiskTerms:
        """The loss parameters of a risk.

        Eq. :eq:`glm`.

        Raises
        ------
        ValueError : for an unknown risk, or the asymptotic one where the teacher is not known.
        """
        check.choice("risk", risk, RISKS)
        if risk not in self._risks:
            raise ValueError("risk: needs 'exact' without the teacher's attention matrices, got 'asymptotic'")
        return self._risks[risk]


def require_dataset(data: Any) -> Dataset:
    """The argument, if it is a Dataset."""
    if not isinstance(data, Dataset):
        raise check.fail("data", data, "a gamp_attention.Dataset", TypeError)
    return data


def checked_weights(sample_weight: Any, n: int) -> np.ndarray | None:
    """Return positive weights (n,) of the samples, or None if none are given.

    Raises
    ------
    ValueError, TypeError : if `sample_weight` is not an array of n finite positive numbers.
    """
    if sample_weight is None:
        return None
    weights = check.array("sample_weight", sample_weight, (n,))
    if (weights <= 0).any():
        raise check.fail("sample_weight", float(weights.min()), "positive weights: leave out samples of weight 0")
    return weights


class LabelledDataset(Dataset):
    """n samples of L tokens (sources) in R^d with labels. Both risks are R(Q) = Σ_μ ℓ(z^μ; p^μ) + r(Q).

    Parameters
    ----------
    tokens : (n, L, d), or (n, d) for L = 1; fields are z = (x + p) Q/√d.
    labels : (n, P), or (n,) for P = 1.
    loss : SquaredLoss(), LogisticLoss(), MultinomialLoss(), PhaseRetrievalLoss() or a registered one.
    lam : ridge λ > 0; not used where a penalty is given.
    rank : columns r of Q.
    positions : (L, d) added to the tokens; 0 if not given.
    spectra, penalty, sample_weight : as for `Dataset`.

    Attributes
    ----------
    labels : (n, P).

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    Logistic regression:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> x = np.random.default_rng(0).normal(size=(300, 100))
    >>> data = ga.LabelledDataset(x, np.sign(x[:, 0]), ga.LogisticLoss(), lam=0.1)
    >>> ga.run_gamp(data, "random").converged
    True
    """

    @ignore_float_errors
    def __init__(
        self,
        tokens: Any,
        labels: Any,
        loss: Any,
        lam: float = 0.01,
        *,
        rank: int = 1,
        positions: Any = None,
        spectra: Any = None,
        penalty: Any = None,
        sample_weight: Any = None,
    ) -> None:
        check.require_dense("tokens", tokens)
        check.require_dense("labels", labels)
        if not isinstance(tokens, TokenStore) and check.ndim("tokens", tokens) == 2:
            tokens = np.asarray(check.detach_tensor(tokens))[:, None]
        self.tokens = as_tokens("tokens", tokens)
        n, L, d = self.tokens.shape
        positions = np.zeros((L, d)) if positions is None else check.array("positions", positions, (L, d))
        sources = Sources.plain(np.ascontiguousarray(positions), n)
        self._describe(require_penalty(penalty, lam), rank, spectra, require_loss(loss), sources)
        if check.ndim("labels", labels) == 1:
            labels = np.asarray(check.detach_tensor(labels))[:, None]
        self.labels = check_labels(loss, labels, n, L, self.rank)
        self.sample_weight = checked_weights(sample_weight, n)
        params = self.labels
        if self.sample_weight is not None:
            params = np.column_stack([self.labels, self.sample_weight])
        self._risks = dict.fromkeys(RISKS, RiskTerms(params, np.zeros(n)))
        self._outputs = self.targets = self.Q_star = self.model = None


def label_dataset(
    model: GLMModel,
    tokens: Tokens,
    positions: np.ndarray,
    Q_star: np.ndarray,
    spectra: np.ndarray,
    rng: np.random.Generator,
) -> LabelledDataset:
    """Samples labelled by a teacher."""
    fields = local_fields(tokens, np.zeros_like(positions), Q_star)
    labels = model.task.terms(fields, rng.standard_normal((len(tokens), model.task.n_noise))).params
    data = LabelledDataset(
        tokens, labels, model.student, rank=model.rank, positions=positions, spectra=spectra, penalty=model.penalty
    )
    data.Q_star, data.model = Q_star, model
    return data


def held_out(name: str, share: Any, n: int, seed: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and a share of round(share n) rows drawn at random to test on, each in order.

    A share of 0 holds none out; another has to leave a sample on each side.
    """
    share = check.real(name, share, low=0)
    count = round(share * n)
    if share and not 1 <= count < n:
        needs = f"a fraction of the {n} samples, below 1, that leaves at least one on each side, or 0 for none"
        remedy = f"; for {share:g} samples give {share / n:.3g}" if 1 < share < n and share == round(share) else ""
        raise ValueError(f"{check.fail(name, share, needs)}{remedy}")
    order = generator(seed, Stream.HELD_OUT).permutation(n) if share else np.arange(n)
    return np.sort(order[count:]), np.sort(order[:count])
