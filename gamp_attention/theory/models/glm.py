"""Generalized linear models: a teacher labels samples of tokens, and a registered loss fits the labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._kernels.compiled import plain_kernel
from gamp_attention._tools import check
from gamp_attention._tools.threads import over_blocks
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.problem.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.problem.losses.point import sample_loss
from gamp_attention.problem.losses.protocol import loss_value, make_work, work_size
from gamp_attention.problem.penalties.base import Penalty
from gamp_attention.problem.penalties.standard import InterceptPenalty, require_penalty
from gamp_attention.problem.students import check_labels, require_loss
from gamp_attention.theory.models.coordinate_classes import isotropic_law
from gamp_attention.theory.models.labels import ClassLabels, IntensityLabels, LabelTeacher, LinearLabels, LogisticLabels
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.models.teachers import is_invariant

DEFAULT_LABELS = {  # label model that generates data for each loss of the package
    SquaredLoss: LinearLabels(),
    LogisticLoss: LogisticLabels(),
    MultinomialLoss: ClassLabels(),
    PhaseRetrievalLoss: IntensityLabels(),
}


@dataclass(frozen=True, eq=False)
class LabelTask:
    """Learning labels with a registered loss; the test error is this loss of a fresh sample."""

    teacher: LabelTeacher
    student: Any
    rank: int
    n_noise: int
    jumps: bool  # True if the loss is not convex, so that its proximal map may be discontinuous
    attention = False

    def check(self, n_tokens: int, teacher_rank: int) -> None:
        """Raise TypeError or ValueError unless the loss accepts the teacher's labels for a few fields."""
        rng, n = np.random.default_rng(0), 8
        fields, noise = rng.standard_normal((n, n_tokens, teacher_rank)), rng.standard_normal((n, self.n_noise))
        check_labels(self.student, np.asarray(self.teacher(fields, noise)), n, n_tokens, self.rank)

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Return labels for teacher fields y (N, L, t), given label noise (N, n_noise)."""
        return RiskTerms(np.ascontiguousarray(self.teacher(y, noise), dtype=float), np.zeros(len(y)))

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Return losses (N,) at fields z (N, L, r)."""
        loss, flat = sample_loss(self.student, z.shape[1], self.rank), np.ascontiguousarray(z).reshape(len(z), -1)
        out = np.empty(len(z))
        over_blocks(lambda a, b: _losses(a, b, loss, terms.params, flat, out, np.empty(work_size(loss))), len(z), 4096)
        return out

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Return losses (N,) of samples with fields z, with fresh labels for teacher fields y."""
        return self.errors(z, y, self.terms(y, rng.standard_normal((len(y), self.n_noise))))


@plain_kernel
def _losses(first, last, loss, params, z, out, memory):
    work = make_work(loss, memory)
    for mu in range(first, last):
        out[mu] = loss_value(loss, params[mu], z[mu], work)


@dataclass(frozen=True, eq=False)
class GLMModel(Model):
    """A generalized linear model: a teacher labels the samples, and a registered loss is the student.

    Attributes
    ----------
    teacher : label model, a function of the fields, see `gamp_attention.theory.models.labels`.
    student : registered loss; its mean over fresh samples is the test error.
    intercept : whether the student adds an unpenalized intercept b (r,) to the fields of all tokens.

    Raises
    ------
    ValueError : if there is an intercept and the penalty has spherical columns.
    """

    intercept: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if check.flag("intercept", self.intercept):
            InterceptPenalty(self.penalty)

    @cached_property
    def task(self) -> LabelTask:
        """Learning task of the labels."""
        loss = require_loss(self.student)
        if not (callable(self.teacher) and hasattr(self.teacher, "n_noise")):
            needs = "a label model with `even` and `n_noise`, for example LinearLabels()"
            raise check.fail("labels", self.teacher, needs, TypeError)
        n_noise = self.teacher.n_noise(self.n_tokens, self.teacher_rank)
        return LabelTask(self.teacher, loss, self.rank, n_noise, jumps=not loss.convex)

    @cached_property
    def exchangeable_columns(self) -> bool:  # type: ignore[override]
        """True if columns of student and teacher, at least two of each, may be permuted together; ℓ is convex."""
        law, r, penalty = self.coordinates, self.rank, self.penalty
        if not 1 < r == self.teacher_rank or self.task.jumps or self.is_mixture or not penalty.quadratic:
            return False
        same_law = is_invariant(law.teacher_cov, 1, 2) and is_invariant(law.unseen, 0, 1)
        if penalty.by_column or not same_law or not is_invariant(law.teacher_mean, 1):
            return False
        orders = [1, 0, *range(2, r)], [*range(1, r), 0]
        return all(self._keeps_losses(partial(np.take, indices=order, axis=-1)) for order in orders)

    def _keeps_losses(self, change: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether a change of all fields, or also of noise of their shape, keeps the distribution of losses."""
        rng, shape, sizes = np.random.default_rng(9), (64, self.n_tokens), np.geomspace(0.1, 100, 64)[:, None, None]
        z, u = (sizes * rng.standard_normal((*shape, rank)) for rank in (self.rank, self.teacher_rank))
        noise, find = rng.standard_normal((len(u), self.task.n_noise)), getattr(self.teacher, "outcomes", None)

        def correlations(z: np.ndarray, u: np.ndarray, noise: np.ndarray) -> np.ndarray:
            """Return products of the losses of a label at two fields z, averaged over the label if possible."""
            labels: list[tuple[Any, RiskTerms]] = [(1.0, self.task.terms(u, noise))]
            known = None if find is None else find(u)
            if known is not None:
                pairs = zip(known[0], known[1].T, strict=True)
                labels = [(p, RiskTerms(np.tile(label, (len(u), 1)), np.zeros(len(u)))) for label, p in pairs]
            return sum(p * self.task.errors(z, u, x) * (1 + self.task.errors(z[::-1], u, x)) for p, x in labels)

        noises = [noise, change(noise.reshape(u.shape)).reshape(noise.shape)] if noise.size == u.size else [noise]
        with np.errstate(all="ignore"):  # large fields may overflow
            before, *after = (correlations(*x) for x in [(z, u, noise), *((change(z), change(u), x) for x in noises)])
        return any(np.allclose(x, before, 1e-11, 1e-11, equal_nan=True) for x in after)

    @cached_property
    def reduced(self) -> Model:
        """Model whose noise of the teacher's fields is a part of the fields that the student does not see.

        All overlaps and their conjugates are the same: labels depend on the sum of both only, so that the derivatives
        of the output function in u and in the sum are equal.
        """
        split = getattr(self.teacher, "split_noise", None)
        teacher, noise = (self.teacher, 0.0) if split is None or self.n_tokens > 1 else split()
        if not noise:
            return self
        unseen = self.coordinates.unseen + noise**2 * np.eye(self.teacher_rank)
        return replace(self, teacher=teacher, coordinates=replace(self.coordinates, unseen=unseen))


def glm_model(
    loss: Any, labels: LabelTeacher | None = None, *, n_tokens: int = 1, rank: int = 1,
    teacher_rank: int | None = None, sigma: ArrayLike = 1.0, lam: float | str | Sequence[float | str] | None = None,
    tau: ArrayLike | None = None, penalty: Penalty | None = None, intercept: bool = False,
) -> GLMModel:  # fmt: skip
    """Build a generalized linear model (Nelder and Wedderburn, 1972) with Gaussian tokens and teacher weights.

    Parameters
    ----------
    loss : SquaredLoss(), LogisticLoss(), MultinomialLoss(), PhaseRetrievalLoss() or an instance of a registered loss.
    labels : label model of the teacher. If not given: LinearLabels(), LogisticLabels(), ClassLabels() or
        IntensityLabels(), respectively.
    n_tokens, rank, teacher_rank : number of tokens L of a sample, columns r of the student's weights and columns t of
        the teacher's weights; t = r if not given.
    sigma : standard deviation of the tokens, Σ_l = σ_l² I: one number, or one for each token (L,). Fields xQ/√d are of
        order σ.
    lam : ridge strength λ > 0; or one entry for each column of Q, a number or "sphere" for ‖Q_a‖² = d (`ColumnRidge`).
        0.01 if not given, which is necessary with `penalty`.
    tau : (L,) positions p_l = τ_l 1_d/√d, added to the tokens for the student only; 0 if not given.
    penalty : penalty to use instead of Ridge(lam), e.g. ElasticNet(lam, l1).
    intercept : whether the student adds an intercept b (r,) without a penalty to the fields of all tokens. Samples then
        have d + 1 coordinates, and the last row of Q is √(d + 1) b, see `LabelledDataset`.

    Returns
    -------
    GLMModel, for `sample`, `run_gamp`, `solve_state_evolution`, `trajectory` and `minimize_risk`.

    Raises
    ------
    TypeError : if `loss` is not an instance of a registered loss; `labels` is not given for a user-defined loss, or
        lacks `even` or `n_noise`; or an argument has the wrong type.
    ValueError : if `n_tokens` or a rank is below 1; `sigma` or `lam` is not positive; `sigma` or `tau` has another
        shape; or the loss cannot be evaluated with the labels, e.g. for rank 2 and LogisticLoss().

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.LogisticLoss(), lam=0.1)
    >>> gamp = ga.run_gamp(ga.sample(model, d=100, alpha=3.0), init="random")
    >>> gamp.status.value
    'converged'
    """
    require_loss(loss)
    teacher = DEFAULT_LABELS.get(type(loss)) if labels is None else labels
    if teacher is None:
        raise check.fail("labels", labels, "a label model, e.g. LogisticLabels(): this loss has no default", TypeError)
    t = rank if teacher_rank is None else teacher_rank
    n_tokens = check.integer("n_tokens", n_tokens, low=1)
    positions = np.zeros(n_tokens) if tau is None else tau
    penalty = require_penalty(penalty, lam)
    rank, t = check.integer("rank", rank, low=1), check.integer("teacher_rank", t, low=1)
    check.require_memory("n_tokens, rank, teacher_rank", n_tokens + rank + t, n_tokens + rank + t)
    return GLMModel(teacher, isotropic_law(n_tokens, t, sigma, positions), penalty, rank, loss, intercept=intercept)
