"""Model that combines an estimated token distribution with teacher, student, penalty and noise."""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.law.coordinates import Classes
from gamp_attention.losses.dot_product import DotProductAttention
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.models.glm import USUAL, GLMModel
from gamp_attention.models.mixtures import MixtureModel, ShiftedTeacher
from gamp_attention.models.model import Model
from gamp_attention.models.teachers import SoftmaxTeacher
from gamp_attention.models.token_classes import ClassLaw
from gamp_attention.models.turned import ShiftedLabels, TurnedTeacher, turned_student


class Problem(NamedTuple):
    """The part of the model that is independent of the token distribution: teacher, loss, penalty and noise."""

    data: Dataset
    weights: np.ndarray | None  # (d, t) weights of the teacher; None if unknown
    target: Any  # attention map or label model of the teacher
    noise: float  # score noise s

    @property
    def teacher_rank(self) -> int:
        """Number of columns of the teacher's weights."""
        return self.data.rank if self.weights is None else self.weights.shape[1]


def own_target(data: Dataset, target: Any) -> Any:
    """Return the attention map or label model of the teacher, with the default of the data if `target` is None."""
    if target is not None:
        return target
    if data.model is not None:
        return data.model.teacher
    if data.labels is None:
        if isinstance(data.student, DotProductAttention):
            return SoftmaxTeacher(0.0, np.eye(data.n_tokens), data.student)
        return data.student
    default = USUAL.get(type(data.student))
    if default is None:
        needs = "a label model, because this loss has no default; pass one, for example `LogisticLabels()`"
        raise check.fail("target", target, needs, TypeError)
    return default


def model_of(
    problem: Problem,
    law: Classes,
    token: np.ndarray,
    patterns: tuple[np.ndarray, np.ndarray],
    mixing: np.ndarray | None,
    shift: np.ndarray,
) -> tuple[CoordinateLaw, Model]:
    """Return the distribution of coordinates and the model, for classes with fixed columns √d p (L) and √d μ (S).

    If tokens are mixed by `mixing`, there are only L fixed columns, √d (p + μ) of the decorrelated tokens. `patterns`
    are the patterns of sources and the pattern of each sample; `shift` (L, t) are means of the teacher's fields.
    """
    data, L = problem.data, len(token) if mixing is not None else problem.data.n_tokens
    means = law.fixed[:, L:] if mixing is None else np.zeros_like(law.fixed)
    tau = law.fixed[:, token] + means
    coordinates = CoordinateLaw(law.weight, law.gamma, tau, law.teacher_mean, law.teacher_cov)
    target, student, noise = problem.target, data.student, problem.noise
    if data.labels is not None:
        target = ShiftedLabels(target, shift) if shift.any() else target
        return coordinates, GLMModel(target, coordinates, data.penalty, data.rank, student)
    own_patterns, pattern = patterns
    if len(own_patterns) > 1:
        probability = np.bincount(pattern, minlength=len(own_patterns)) / len(pattern)
        return coordinates, MixtureModel(
            target, coordinates, data.penalty, data.rank, student, score_noise=noise,
            classes=ClassLaw(own_patterns, probability), class_means=means,
        )  # fmt: skip
    target = ShiftedTeacher(target, shift) if shift.any() else target
    if mixing is not None:
        target, student = TurnedTeacher(target, mixing), turned_student(student, mixing)
        noise *= float(np.sqrt(np.trace(mixing @ mixing) / L))  # keeps the total size of N x, approximated as white
    return coordinates, Model(target, coordinates, data.penalty, data.rank, student, score_noise=noise)
