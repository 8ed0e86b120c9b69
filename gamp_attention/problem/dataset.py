"""Datasets: tokens with outputs or labels, reduced to the loss parameters that the two risks need."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.choices import RISKS
from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.numerics import MAX_ROOT, guard_call
from gamp_attention.problem.losses.attention import DotProductAttention, RiskTerms, pack_attention_parameters
from gamp_attention.problem.losses.point import sample_loss
from gamp_attention.problem.passes import TokenMatrix, token_products
from gamp_attention.problem.penalties.base import Penalty
from gamp_attention.problem.penalties.standard import InterceptPenalty, require_penalty, with_lam, without_intercept
from gamp_attention.problem.sources import Group, Sources, by_group
from gamp_attention.problem.stores import as_tokens, join_parts, mean_squares, token_blocks, token_means
from gamp_attention.problem.students import check_columns, check_labels, check_student, require_loss

ZERO_VARIANCE = 1e-100  # variance that is used for tokens that are all zero, because variances must be positive
OVERFLOW = f"tokens, outputs, positions: need products below {MAX_ROOT:g}, got overflow; divide by standard deviations"


class Dataset(DisplayMixin):
    """n samples of L tokens in R^d with their outputs, reduced to the loss parameters of the two risks; immutable.

    Parameters
    ----------
    tokens : (n, L, d) tokens x, centered. Arrays of float32 are kept, which halves the memory; all sums are computed in
        float64. Memory-mapped arrays of numpy stay on the disk. Tokens and outputs are not copied, so the arrays must
        not be changed while the data set is used.
    outputs : (n, L, d) outputs y, in memory or memory-mapped. Training reads them once, to compute (x+p)yᵀ/d.
    positions : (L, d) positional encodings p, of norm Θ(1), that the layer adds to the tokens. If not given, nothing is
        added, because the tokens are assumed to include their positions; `source_means` are then the means of the
        tokens at each of the L indices. The exact risk depends on x + p only, so its minima and the trained layer do
        not depend on this choice.
    lam : ridge λ > 0 of equation (3); or one number for each column of Q (`ColumnRidge`). 0.01 if not given, which is
        necessary with `penalty`.
    rank : number of columns r of the student's Q.
    spectra : (L, 1) or (L, d) eigenvalues of Σ_l along the coordinates. If not given, the mean square of the tokens,
        minus estimated positions. Fixed points do not depend on it.
    student : the attention map S of equation (2); `DotProductAttention()` if not given.
    penalty : a penalty other than Ridge(lam), for example ElasticNet(lam, l1).

    Attributes
    ----------
    penalty, lam : the penalty and its λ, or its strength if it has no λ.
    groups : ranges of samples whose tokens are drawn from the same sources; more than one only in mixtures, see
        `mixture_model`.
    source_means : (S, d) mean of x + p in each source; the positions, except in mixtures.
    Q_star : (d, t) teacher weights, or None.
    targets : (n, L, L) teacher attention matrices T[xQ*/√d], or the targets (n, ...) of a `sequence_model`, or None.
    labels : (n, P) labels of a `LabelledDataset`, else None.
    model : the Model from which the samples were drawn, or None.

    Raises
    ------
    TypeError : if an array does not contain real numbers, or `student` or `penalty` is of an unknown type.
    ValueError : if shapes do not match, numbers are not finite or products of them overflow, `lam` is not positive,
        `rank` is not in 1 to d, a covariance is not positive semi-definite or has trace zero, or `positions` are not
        given for a single sample.

    Examples
    --------
    Samples whose two tokens are to be swapped:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> x = np.random.default_rng(0).normal(size=(200, 2, 100)) / 2
    >>> data = ga.Dataset(x, x[:, ::-1], positions=np.outer([1, -1], np.full(100, 0.1)), lam=0.1)
    >>> data.alpha, ga.run_gamp(data, "positional").converged
    (2.0, True)
    """

    tokens: np.ndarray
    positions: np.ndarray
    source_means: np.ndarray
    groups: tuple[Group, ...]
    spectra: np.ndarray
    student: Any
    penalty: Any
    rank: int
    Q_star: np.ndarray | None = None
    targets: np.ndarray | None = None
    labels: np.ndarray | None = None
    model: Any = None  # the `Model` from which the samples were drawn
    _risks: dict[str, RiskTerms]
    _outputs: np.ndarray | None = None

    @guard_call
    def __init__(
        self,
        tokens: ArrayLike,
        outputs: ArrayLike,
        positions: ArrayLike | None = None,
        lam: float | str | Sequence[float | str] | None = None,
        *,
        rank: int = 1,
        spectra: ArrayLike | None = None,
        student: Any = None,
        penalty: Penalty | None = None,
    ) -> None:
        x, y = as_tokens("tokens", tokens), as_tokens("outputs", outputs)
        n, L, d = x.shape
        if y.shape != (n, L, d):
            raise ValueError(f"outputs: needs shape {(n, L, d)}, got shape {y.shape}")
        require_product_memory("tokens", n, L)
        if positions is None:
            sources = Sources.plain(np.zeros((L, d)), n)._replace(means=token_means(x))
        else:
            sources = Sources.plain(np.array(check.array("positions", positions, (L, d)), order="C"), n)
        student = DotProductAttention() if student is None else student
        self.describe(x, sources, require_penalty(penalty, lam), rank, spectra, student)
        exact = exact_terms(self.matrix, y)
        if not all((np.abs(part) < MAX_ROOT).all() for part in (exact.params, exact.constant)):
            raise ValueError(OVERFLOW)
        vars(self).update(_risks={"exact": exact}, _outputs=y)

    def describe(
        self, tokens: np.ndarray, sources: Sources, penalty: Any, rank: int, spectra: ArrayLike | None, student: Any
    ) -> None:
        """Check and set the attributes that describe tokens, student and penalty, which all constructions need."""
        positions, means, groups = sources
        L, d = positions.shape
        rank = require_rank(rank, student, d)
        if spectra is None:
            spectra = mean_squares(tokens, means if means is not positions else None)[:, None]
            if not (spectra < MAX_ROOT).all():
                raise ValueError(OVERFLOW)
            spectra = np.maximum(spectra, ZERO_VARIANCE)  # tokens may all be zero
        spectra = check.array("spectra", spectra, (len(means), "d"))
        if spectra.shape[1] not in (1, d):
            raise check.fail("spectra", spectra, f"shape ({len(means)}, 1) or ({len(means)}, {d})")
        if (spectra < 0).any():
            raise check.fail("spectra", float(spectra.min()), "positive semi-definite covariances")
        if not spectra.any(axis=1).all():
            raise check.fail("spectra", spectra, "a positive trace of every covariance")
        vars(self).update(
            tokens=tokens, positions=positions, source_means=means, groups=groups, spectra=spectra,
            student=check_student(student, L, rank, "tokens"), penalty=penalty, rank=rank,
        )  # fmt: skip
        check_columns(penalty, self.student, rank)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: cannot be set, because datasets are immutable; use `replace` or a new dataset")

    def copy_with(self, **changes: Any) -> Dataset:
        """Return a copy with other attributes; all arrays that do not change are shared."""
        other = copy(self)
        vars(other).update(changes)
        return other

    @guard_call
    def replace(
        self, *, lam: float | None = None, penalty: Penalty | None = None, rank: int | None = None, student: Any = None
    ) -> Dataset:
        """Return a dataset of the same samples with another penalty, rank or student; arrays are not copied.

        Parameters
        ----------
        lam : another λ of the penalty; all λ_a of a `ColumnRidge` are scaled by one factor, so that their largest
            absolute value is `lam`.
        penalty : another penalty.
        rank : another number of columns of Q.
        student : another attention map, or another loss for labels.

        Returns
        -------
        Dataset, or LabelledDataset; its `model` is replaced accordingly.

        Raises
        ------
        TypeError : if an argument has the wrong type.
        ValueError : if `lam` is not allowed for the penalty, `rank` is not in 1 to d, or labels do not fit the loss.

        Examples
        --------
        >>> import gamp_attention as ga
        >>> data = ga.sample(ga.paper_model(lam=0.01), d=100, alpha=1.5, seed=0)
        >>> other = data.replace(lam=0.1)
        >>> other.lam, data.lam, other.tokens is data.tokens
        (0.1, 0.01, True)
        """
        changes: dict[str, Any] = {}
        if penalty is not None or lam is not None:
            changes["penalty"] = self.penalty if penalty is None else require_penalty(penalty)
            if self.intercept and not changes["penalty"].intercept:
                changes["penalty"] = InterceptPenalty(changes["penalty"])
            if lam is not None:
                changes["penalty"] = with_lam(changes["penalty"], lam)
        if rank is not None or student is not None:
            student = self.student if student is None else student
            rank = require_rank(self.rank if rank is None else rank, student, self.dim)
            changes |= {"rank": rank, "student": check_student(student, self.n_tokens, rank, "student")}
            if self.labels is not None:
                check_labels(require_loss(student), self.labels, self.n_samples, self.n_tokens, rank)
        check_columns(changes.get("penalty", self.penalty), changes.get("student", self.student), rank or self.rank)
        of_model = changes | ({"penalty": without_intercept(changes["penalty"])} if "penalty" in changes else {})
        model = None if self.model is None else replace(self.model, **of_model)
        return self.copy_with(**changes, model=model)

    def select_rows(self, rows: np.ndarray) -> Dataset:
        """Return the samples with given indices (m,), in ascending order, in memory; all other attributes stay.

        Raises
        ------
        ValueError : if `rows` are not ascending indices of samples; indices may occur more than once.
        """
        given, rows, n = rows, np.asarray(rows), self.n_samples
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or not rows.size or (np.diff(rows) < 0).any():
            raise check.fail("rows", given, "integers (m,) in ascending order")
        if rows[0] < 0 or rows[-1] >= n:
            raise check.fail_words("rows", f"{rows[0]} to {rows[-1]}", f"indices of samples from 0 to {n - 1}")
        # both risks may have the same terms
        terms = {id(risk): RiskTerms(risk.params[rows], risk.constant[rows]) for risk in self._risks.values()}
        arrays = {name: getattr(self, name) for name in ("tokens", "_outputs", "targets", "labels")}
        ends = [np.searchsorted(rows, [group.rows.start, group.rows.stop]).tolist() for group in self.groups]
        groups = zip(ends, self.groups, strict=True)
        return self.copy_with(
            groups=tuple(Group(slice(*end), group.sources) for end, group in groups if end[1] > end[0]),
            _risks={name: terms[id(risk)] for name, risk in self._risks.items()},
            **{name: None if values is None else np.asarray(values)[rows] for name, values in arrays.items()},
        )

    def instance_model(self) -> Any:
        """Return the model with the second moments of the teacher and positions of this dataset, not of their prior.

        State evolution of this model predicts runs on these samples without the fluctuations of the teacher, O(1/√d).

        Raises
        ------
        ValueError : if the samples were not drawn from a model.
        """
        if self.model is None or self.Q_star is None:
            raise ValueError("data: needs samples drawn from a model, got your arrays, whose distribution is unknown")
        return self.model.on_coordinates(*self.coordinate_samples())

    def coordinate_samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return γ, √d (p + μ) and √d μ of each source, (d, S), and the teacher (d, t), for `Model.on_coordinates`."""
        assert self.model is not None
        assert self.Q_star is not None
        means, root = self.source_means, np.sqrt(self.dim)
        tau, shift = root * means.T, root * (means - self.positions[self.model.classes.token]).T
        rows = slice(0, self.dim - self.intercept)  # state evolution has a separate equation for the intercept
        return np.broadcast_to(self.spectra, means.shape).T[rows], tau[rows], shift[rows], self.Q_star[rows]

    def _items(self) -> list[tuple[str, Any]]:
        names = ("n_samples", "n_tokens", "dim", "alpha", "rank", "student", "penalty", "Q_star")
        return [(name, getattr(self, name)) for name in names]

    def fields(self, Q: ArrayLike) -> np.ndarray:
        """Return the fields z = (x + p) Q/√d, (n, L, r), of weights Q (d, r); `student(z)` is the attention."""
        return self.matrix.fields(check.array("Q", Q, (self.dim, "r")))

    @guard_call
    def average(
        self, f: Callable[..., Any], Q: ArrayLike, omega: ArrayLike | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of a function over the samples, and its standard error, which takes them as independent.

        `StateEvolutionResult.average` is its limit for d → ∞.

        Parameters
        ----------
        f : function f(target, u, omega, z) of all samples that returns an array (n, ...): labels (n, P), or the
            teacher's targets, or outputs if there is no teacher; fields of the teacher u (n, L, t), without positions,
            NaN if they are not known; fields omega; and fields z (n, L, r) of Q.
        Q : (d, r) weights.
        omega : (n, L, r) fields of weights that are trained without the sample, as `leave_one_out` has them; z if not
            given, which is right for samples that were not used in training.

        Raises
        ------
        TypeError : if `f` is not a function, or `Q` or `omega` not an array of real numbers.
        ValueError : if a shape does not match, or `f` returns an array without the samples in front.

        Examples
        --------
        >>> import gamp_attention as ga
        >>> model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=0.1)
        >>> Q = ga.run_gamp(ga.sample(model, d=200, alpha=2.0, seed=0)).Q
        >>> new = ga.sample(model, d=200, alpha=10.0, seed=1)
        >>> mean, error = new.average(lambda target, u, omega, z: target[:, 0] * u[:, 0, 0] > 0, Q)
        >>> bool(abs(mean - 0.66) < 4 * error)
        True
        """
        z = self.fields(Q)
        cavity = z if omega is None else check.array("omega", omega, z.shape)
        unseen = self.model is not None and self.model.coordinates.unseen.any()
        alone = TokenMatrix(self.tokens, np.zeros_like(self.positions))  # teachers do not see positions
        teacher = np.full_like(z, np.nan) if self.Q_star is None or unseen else alone.fields(self.Q_star)
        target = self.targets if self.labels is None and self.targets is not None else self.outputs
        values = check.over_samples("f", check.function("f", f)(target, teacher, cavity, z), len(z))
        return values.mean(axis=0), values.std(axis=0) / np.sqrt(max(len(z) - 1, 1))

    @property
    def intercept(self) -> bool:
        """True if the last of the d coordinates is an intercept: tokens are 0 and positions are 1 in it."""
        return bool(self.penalty.intercept)

    def intercepts(self, Q: ArrayLike) -> np.ndarray:
        """Return the intercepts (r,) of weights Q (d, r), which are added to all fields; 0 without an intercept."""
        weights = check.array("Q", Q, (self.dim, "r"))
        return weights[-1] / np.sqrt(self.dim) if self.intercept else np.zeros(weights.shape[1])

    @property
    def matrix(self) -> TokenMatrix:
        """Token matrix X̃ = (x + p)/√d, for products with it."""
        return TokenMatrix(self.tokens, self.positions)

    @property
    def lam(self) -> float:
        """λ of the penalty, or its strength if it has no λ."""
        return float(self.penalty.lam)

    @property
    def n_samples(self) -> int:
        """Number of samples n."""
        return self.tokens.shape[0]

    @property
    def n_tokens(self) -> int:
        """Number of tokens per sample L."""
        return self.tokens.shape[1]

    @property
    def n_sources(self) -> int:
        """Number of sources S of the tokens: L, or the number of (token, class) pairs of a mixture."""
        return self.source_means.shape[0]

    @property
    def is_mixture(self) -> bool:
        """True if tokens have several classes."""
        return self.n_sources > self.n_tokens

    @property
    def is_labelled(self) -> bool:
        """True if samples have labels in place of outputs."""
        return self.labels is not None

    @property
    def traces(self) -> np.ndarray:
        """Traces tr Σ/d of the tokens of each sample, (n, L), or (1, L) if they are equal for all samples."""
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
        """Loss per sample of the equivalent generalized linear model."""
        return sample_loss(self.student, self.n_tokens, self.rank)

    @property
    def outputs(self) -> np.ndarray:
        """Outputs y (n, L, d), or labels; outputs of a teacher are computed from its targets at each call."""
        if self.labels is not None:
            return self.labels
        if self._outputs is not None:
            return self._outputs
        assert self.targets is not None
        return self.targets @ self.tokens

    def terms(self, risk: str) -> RiskTerms:
        """Return the loss parameters of a risk.

        Eq. :eq:`glm`.

        Raises
        ------
        TypeError : if `risk` is not a string.
        ValueError : if `risk` is unknown, or "asymptotic" for outputs without a known teacher.
        """
        check.choice("risk", risk, RISKS)
        if risk not in self._risks:
            raise ValueError("risk: needs 'exact' without the teacher's attention matrices, got 'asymptotic'")
        return self._risks[risk]


def exact_terms(matrix: TokenMatrix, outputs: np.ndarray) -> RiskTerms:
    """Return the loss parameters of the exact risk for outputs (n, L, d), in one pass over tokens and outputs.

    The exact risk depends on tokens and outputs only through G = (x+p)(x+p)ᵀ/d, M = (x+p)yᵀ/d and ‖y‖²/d of each
    sample, and on the weights only through the local fields: it is a generalized linear model.
    """
    (tokens, positions), parts = matrix, []
    for rows, _, x in token_blocks(tokens):
        y = outputs[rows]
        M = (token_products(x, y) + positions @ y.transpose(0, 2, 1)) / x.shape[2]
        norm = np.einsum("nld,nld->n", y, y, dtype=float) / x.shape[2]
        parts.append(attention_terms(positions, *token_moments(x, positions), M, norm))
    return RiskTerms(*map(join_parts, zip(*parts, strict=True)))


def require_product_memory(name: str, n: int, L: int) -> None:
    """Raise ValueError if the products of tokens and outputs in n samples do not fit into memory."""
    check.require_memory(name, n, 6, L, L)  # 2 L² loss parameters, and sums of 4 L² numbers to compute them


def token_moments(x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return x xᵀ/d and x pᵀ/d of each sample, (n, L, L)."""
    d = x.shape[2]
    return token_products(x, x) / d, token_products(x, np.broadcast_to(positions, x.shape)) / d


def attention_terms(
    positions: np.ndarray, xx: np.ndarray, xp: np.ndarray, M: np.ndarray, norm: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return loss parameters from x xᵀ, x pᵀ and (x+p) yᵀ (n, L, L) and the squares ‖y‖² (n,), all divided by d."""
    G = xx + xp + xp.transpose(0, 2, 1) + positions @ positions.T / positions.shape[1]
    return pack_attention_parameters(G, M), norm / 2


def require_dataset(data: Any) -> Dataset:
    """Return `data`; raise TypeError if it is not a Dataset."""
    if not isinstance(data, Dataset):
        needs = "a gamp_attention.Dataset, for arrays Dataset(tokens, outputs) or LabelledDataset(tokens, labels, loss)"
        raise check.fail("data", data, needs, TypeError)
    return data


def require_rank(rank: Any, student: Any, d: int) -> int:
    """Return a rank; raise TypeError or ValueError if scores of tokens in d dimensions cannot have it."""
    rank = check.integer("rank", rank, low=1)
    if isinstance(student, DotProductAttention) and rank > (most := d * student.parts * student.heads):
        needs = f"at most {most}, the largest rank of scores of tokens in d = {d} dimensions"
        raise check.fail("rank", rank, needs)
    return rank


class LabelledDataset(Dataset):
    """n samples of L tokens in R^d with labels, for a generalized linear model; immutable.

    Both risks are R(Q) = Σ_μ ℓ(z^μ; p^μ) + r(Q), with labels p and fields z = (x + positions) Q/√d.

    Parameters
    ----------
    tokens : (n, L, d), or (n, d) for L = 1.
    labels : (n, P), or (n,) for P = 1.
    loss : SquaredLoss(), LogisticLoss(), MultinomialLoss(), PhaseRetrievalLoss() or a registered loss.
    lam : ridge λ >= 0, or one entry for each column, as for `Dataset`. For λ = 0 the risk may have no
        minimum; `run_gamp` then ends with status DIVERGED.
    rank : number of columns r of Q.
    positions : (L, d) vectors added to the tokens; 0 if not given.
    spectra, penalty : as for `Dataset`.
    intercept : if True, an unpenalized intercept is added to the fields of all tokens. It is one more coordinate, in
        which tokens are 0 and positions are 1, so that d grows by 1, and the last row of Q is √d times the intercept
        (`intercepts`).

    Attributes
    ----------
    labels : (n, P).
    student : the loss.
    Others : as for `Dataset`.

    Raises
    ------
    TypeError : if an array does not contain real numbers, is sparse or has masked entries, or `loss` or `penalty` is of
        an unknown type.
    ValueError : if shapes do not match, labels do not fit the loss, numbers are not finite, `lam` is negative, or
        `rank` is below 1.

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

    @guard_call
    def __init__(
        self,
        tokens: ArrayLike,
        labels: ArrayLike,
        loss: Any,
        lam: float | str | Sequence[float | str] | None = None,
        *,
        rank: int = 1,
        positions: ArrayLike | None = None,
        spectra: ArrayLike | None = None,
        penalty: Penalty | None = None,
        intercept: bool = False,
    ) -> None:
        if check.ndim("tokens", tokens) == 2:
            tokens = check.array("tokens", tokens, ("n", "d"), single=True)[:, None]
        x = as_tokens("tokens", tokens)
        n, L, d = x.shape
        positions = np.zeros((L, d)) if positions is None else check.array("positions", positions, (L, d))
        if isinstance(lam, numbers.Real) and lam == 0:
            lam = (0.0,) * check.integer("rank", rank, low=1)  # the columns have no penalty
        penalty = require_penalty(penalty, lam)
        if check.flag("intercept", intercept):
            penalty = InterceptPenalty(penalty)
            x = np.concatenate([np.asarray(x), np.zeros((n, L, 1), x.dtype)], axis=2)
            spectra = mean_squares(x, None)[:, None] if spectra is None else check.array("spectra", spectra, (L, "d"))
            positions, spectra = add_intercept(positions, np.broadcast_to(spectra, (L, d)))
        sources = Sources.plain(np.array(positions, order="C"), n)
        self.describe(x, sources, penalty, rank, spectra, require_loss(loss))
        if check.ndim("labels", labels) == 1:
            labels = check.array("labels", labels, ("n",))[:, None]
        labels = check_labels(loss, labels, n, L, self.rank)
        vars(self).update(_risks=dict.fromkeys(RISKS, RiskTerms(labels, np.zeros(n))), labels=labels)
        if hasattr(loss, "read_targets"):
            vars(self).update(targets=labels.reshape(n, *loss.spec.target_shape))


def add_intercept(positions: np.ndarray, spectra: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions (L, d + 1) and spectra (S, d + 1) with the coordinate of an intercept."""
    ones, zeros = np.ones((len(positions), 1)), np.zeros((len(spectra), 1))
    return np.concatenate([positions, ones], axis=1), np.concatenate([spectra, zeros], axis=1)
