"""Attention layers without value matrices as sequence models, whose targets are the parameters of their loss.

The loss of a sample depends on tokens and outputs through G, M and a constant c (`AttentionLoss`, `RiskTerms`). With
these 2 L² + 1 numbers as its targets, a layer is a sequence model:

    ℓ(y; z) = ½ Tr[S G Sᵀ] − Tr[S M] + c,   y = (G, M, c),   S = S[z]

In the limit d → ∞, a teacher has the targets G = ρ, M = ρ Tᵀ and c = ½ Tr[T ρ Tᵀ], and ℓ = ½ Tr[(S − T) ρ (S − T)ᵀ].
"""

from functools import partial
from typing import Any

import numpy as np

from gamp_attention.losses.attention import DotProductAttention, RiskTerms
from gamp_attention.losses.heads import HeadLayout, MultiHeadAttention, layout_of
from gamp_attention.losses.sequence import SequenceLoss, SequenceSpec, sequence_loss
from gamp_attention.models.model import Model
from gamp_attention.models.sequence import SequenceModel
from gamp_attention.models.sequence_labels import trace_teacher
from gamp_attention.models.user_functions import UserFunction


def is_traceable(student: Any) -> bool:
    """Return whether `attention_loss` accepts the student."""
    return isinstance(student, DotProductAttention | MultiHeadAttention)


def attention_loss(student: Any, L: int, r: int) -> SequenceLoss:
    """Return the loss of a layer with r columns as a function of G, M and c (2 L² + 1,) and of the fields (L, r)."""
    P, loss = 2 * L * L + 1, partial(_evaluate_loss, student)
    program = UserFunction("loss", loss, {"target": (P,), "z": (L, r)}, "(2 L² + 1,)", "(L, r)").trace(required=True)
    assert program is not None
    layout = layout_of(student, r) or HeadLayout(1, student.parts, r // student.parts, 0, (0,))
    return sequence_loss(SequenceSpec(program, (P,), L, r, 0.0, -np.inf, False, student.even, False, layout))


def _evaluate_loss(student: Any, target: Any, z: Any) -> Any:
    """Return the loss of a sample, with operations that can be traced."""
    L = len(z)
    G, M = target[:-1].reshape(2, L, L)
    S = student.torch(z) if isinstance(student, MultiHeadAttention) else student(z)
    return 0.5 * np.sum(S * (S @ G)) - np.sum(S * M.T) + target[-1]


def sequence_targets(terms: RiskTerms) -> np.ndarray:
    """Return the targets (n, 2 L² + 1) of samples of a layer."""
    return np.column_stack([terms.params, terms.constant])


def attention_as_sequence(model: Model) -> SequenceModel:
    """Return the sequence model of an attention layer, in the limit d → ∞, for a student that `is_traceable`."""
    L, t, rho = model.n_tokens, model.teacher_rank, model.coordinates.trace
    teacher = partial(_teach, model.teacher, rho, model.score_noise)
    labels = trace_teacher(teacher, L, t, L * L if model.score_noise else 0, None)
    loss = attention_loss(model.student, L, model.rank)
    return SequenceModel(labels, model.coordinates, model.penalty, model.rank, loss)


def _teach(teacher: Any, rho: np.ndarray, s: float, u: Any, noise: Any) -> Any:
    """Return the targets of a sample with fields u (L, t), with operations that can be traced."""
    T, L = teacher(u), len(rho)
    if s:
        T = T + s * noise.reshape(L, L)
    constant = 0.5 * np.sum(T * T * rho)
    return np.concatenate([np.diag(rho).ravel(), (rho[:, None] * T.T).ravel(), np.array([constant])])
