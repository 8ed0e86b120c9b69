"""What attention matrices without noise say of the fields: all, but for the rotations that leave them as they are."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.teachers import SoftmaxTeacher


def hidden_fields(teacher: Any, n_tokens: int, teacher_rank: int) -> int:
    """Columns of the fields that the matrix does not tell: a vector common to all tokens in so many dimensions.

    Raises ValueError for a teacher whose matrices do not tell the rest up to a rotation.
    """
    known = isinstance(teacher, SoftmaxTeacher) and teacher.omega < 1
    if not known or not teacher.attention.tied or teacher.attention.causal:
        needs = "score_noise > 0, or a softmax or linear attention without a mask and with tied weights, and omega < 1"
        raise check.fail("teacher", type(teacher).__name__, needs)
    told = n_tokens - 1 if teacher.attention.softmax else n_tokens
    hidden = max(teacher_rank - told, 0)
    if told < 1 or (hidden and not teacher.attention.softmax):
        needs = "two tokens at least" if told < 1 else f"at most {n_tokens} columns for linear attention"
        raise check.fail("teacher_rank, n_tokens", (teacher_rank, n_tokens), needs)
    return hidden


def fields_of_targets(teacher: SoftmaxTeacher, targets: np.ndarray, teacher_rank: int) -> np.ndarray:
    """Fields (N, L, t'), up to a common rotation of their columns, of attention matrices (N, L, L).

    Eq. :eq:`bayes-inversion`. t' is t, or L − 1 where the softmax tells no more.
    """
    hidden = hidden_fields(teacher, targets.shape[1], teacher_rank)
    rank = teacher_rank - hidden
    weights = (targets - teacher.omega * teacher.A) / (1 - teacher.omega)
    if not teacher.attention.softmax:
        gram = teacher.attention.temperature * weights
        return _factors(0.5 * (gram + gram.transpose(0, 2, 1)), rank)
    if not (weights > 0).all():
        raise check.fail("targets", float(weights.min()), "positive attention weights, as of the model's teacher")
    scores = teacher.attention.temperature * np.log(weights)  # u uᵀ but for a constant in every row
    centred = scores - scores.mean(axis=2, keepdims=True)  # u (u − ū)ᵀ
    square = centred - centred.mean(axis=1, keepdims=True)  # (u − ū)(u − ū)ᵀ
    F = _factors(0.5 * (square + square.transpose(0, 2, 1)), rank)
    return centred @ F @ np.linalg.inv(F.transpose(0, 2, 1) @ F)


def _factors(gram: np.ndarray, rank: int) -> np.ndarray:
    """F (N, L, rank) with F Fᵀ = gram, of that rank."""
    spectrum, vectors = np.linalg.eigh(gram)
    size = np.sqrt(np.maximum(spectrum[:, -rank:], np.finfo(float).tiny))
    return vectors[:, :, -rank:] * size[:, None, :]
