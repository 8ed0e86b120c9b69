"""Generalised linear models with several sources: rows of tokens with labels in place of the attention layer."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.compiled import kernel, over_blocks
from gamp_attention.data.stores import TokenStore
from gamp_attention.losses.attention import loss_value, make_work
from gamp_attention.losses.checks import check_loss
from gamp_attention.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.losses.registration import is_registered_loss, sample_loss
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.models.attention import attention_model
from gamp_attention.models.labels import ClassLabels, IntensityLabels, LabelTeacher, LinearLabels, LogisticLabels
from gamp_attention.models.model import Model
from gamp_attention.models.sources import Sources

BLOCK = 4096
USUAL = {  # labels that the package's own losses are made for
    SquaredLoss: LinearLabels(),
    LogisticLoss: LogisticLabels(),
    MultinomialLoss: ClassLabels(),
    PhaseRetrievalLoss: IntensityLabels(),
}


@kernel
def _losses(first, last, loss, params, z, out):
    work = make_work(loss)
    for mu in range(first, last):
        out[mu] = loss_value(loss, params[mu], z[mu], work)


@dataclass(frozen=True, eq=False)
class GLMModel(Model):
    """A GLM: labels from a teacher, a registered loss as the student. Its test error is that loss of a fresh sample.

    Attributes
    ----------
    teacher : labels from fields, see `gamp_attention.models.labels`.
    student : the loss.
    """

    teacher: LabelTeacher  # type: ignore[assignment]

    def _check_teacher(self) -> None:
        if not is_registered_loss(self.student):
            raise check.fail("loss", self.student, "a loss registered by register_loss", TypeError)
        rng = np.random.default_rng(0)
        L, t = self.n_tokens, self.teacher_rank
        labels = np.asarray(self.teacher(rng.standard_normal((8, L, t)), rng.standard_normal((8, self.n_label_noise))))
        check_labels(self.student, labels, 8, L, self.rank)

    @property
    def n_label_noise(self) -> int:
        """Gaussian numbers that the labels of a sample take beside the teacher's fields."""
        return self.teacher.n_noise(self.n_tokens, self.teacher_rank)

    @property
    def reversible(self) -> bool:
        """No use is made of symmetries between tokens."""
        return False

    @property
    def attention(self) -> bool:
        """Labels may jump, and deterministic rules are made for attention."""
        return False

    @property
    def jumps(self) -> bool:
        """The proximal map of a convex loss is continuous."""
        return not self.student.convex

    def terms(self, y: np.ndarray, noise: np.ndarray) -> RiskTerms:
        """Labels for teacher fields y (N, L, t), given label noise (N, n_label_noise)."""
        return RiskTerms(np.ascontiguousarray(self.teacher(y, noise), dtype=float), np.zeros(len(y)))

    def label(
        self,
        tokens: np.ndarray | TokenStore,
        sources: Sources,
        Q_star: np.ndarray,
        spectra: np.ndarray,
        rng: np.random.Generator,
    ) -> Any:
        """The LabelledDataset of tokens (n, L, d) and teacher weights (d, t)."""
        from gamp_attention.data.labelled import label_dataset

        return label_dataset(self, tokens, sources.positions, Q_star, spectra, rng)

    def errors(self, z: np.ndarray, y: np.ndarray, terms: RiskTerms) -> np.ndarray:
        """Losses (N,) at fields z (N, L, r)."""
        out, flat = np.empty(len(z)), np.ascontiguousarray(z).reshape(len(z), -1)
        over_blocks(lambda a, b: _losses(a, b, self.loss, terms.params, flat, out), len(z), BLOCK)
        return out

    def errors_at(
        self, tokens: np.ndarray, positions: np.ndarray, z: np.ndarray, y: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Losses (N,) of tokens (N, L, d) with fields z, given fresh labels at teacher fields y."""
        return self.errors(z, y, self.terms(y, rng.standard_normal((len(y), self.n_label_noise))))


def check_labels(loss: Any, labels: Any, n: int, n_tokens: int, rank: int) -> np.ndarray:
    """Labels (n, P) that a registered loss can be evaluated at.

    Raises
    ------
    TypeError, ValueError : naming the labels or the loss, what is wrong and what is needed.
    """
    labels = np.ascontiguousarray(check.array("labels", labels, (n, "P")))
    wanted = {SquaredLoss: n_tokens * rank}.get(type(loss), 1)
    if type(loss) in USUAL and labels.shape[1] != wanted:
        raise check.fail("labels", labels, f"shape ({n}, {wanted}) for this loss, {n_tokens} token(s) and rank {rank}")
    if isinstance(loss, (LogisticLoss, PhaseRetrievalLoss)) and rank != 1:
        raise check.fail("rank", rank, f"1 for {type(loss).__name__}")
    if isinstance(loss, LogisticLoss) and not np.isin(labels, (-1, 1)).all():
        raise check.fail("labels", np.unique(labels)[:5].tolist(), "-1 and 1 for the logistic loss")
    if isinstance(loss, MultinomialLoss) and not np.isin(labels, np.arange(rank)).all():
        raise check.fail("labels", np.unique(labels)[:5].tolist(), f"classes 0 to {rank - 1}, for rank {rank}")
    check_loss(sample_loss(loss, n_tokens, rank), labels)
    return labels


def glm_model(
    loss: Any,
    labels: LabelTeacher | None = None,
    *,
    n_tokens: int = 1,
    rank: int = 1,
    teacher_rank: int | None = None,
    sigma: Any = 1.0,
    lam: float = 0.01,
    tau: Any = None,
    penalty: Any = None,
) -> GLMModel:
    """A generalised linear model with Gaussian rows and Gaussian teacher weights.

    Parameters
    ----------
    loss : SquaredLoss(), LogisticLoss(), MultinomialLoss(), PhaseRetrievalLoss() or a registered one.
    labels : how a teacher labels samples; what the loss is made for if not given.
    n_tokens, rank, teacher_rank : sources L of a sample, columns r of the weights and t of the teacher's; t = r if not
        given.
    sigma : standard deviation of the tokens, one number or one for each token; fields xQ/√d are then of order σ.
    lam : ridge λ > 0; not used where a penalty is given.
    tau : (L,) means p_l = τ_l 1_d/√d of the tokens as the student sees them; 0 if not given.
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1).

    Returns
    -------
    GLMModel, for `sample`, `run_gamp`, `solve_state_evolution`, `trajectory` and `minimize_risk`.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.LogisticLoss(), lam=0.1)
    >>> gamp = ga.run_gamp(ga.sample(model, d=100, alpha=3.0), init="random")
    >>> gamp.status.value
    'converged'
    """
    if not is_registered_loss(loss):
        raise check.fail("loss", loss, "a loss registered by register_loss", TypeError)
    teacher = USUAL.get(type(loss)) if labels is None else labels
    if teacher is None:
        raise check.fail("labels", labels, "a teacher, as this loss has no usual one", TypeError)
    t = rank if teacher_rank is None else teacher_rank
    zero = np.zeros(check.integer("n_tokens", n_tokens, low=1)) if tau is None else tau
    plain = attention_model(n_tokens, rank, t, sigma=sigma, lam=lam, tau=zero, penalty=penalty)
    return GLMModel(teacher, plain.coordinates, plain.penalty, rank, loss)  # type: ignore[arg-type]
