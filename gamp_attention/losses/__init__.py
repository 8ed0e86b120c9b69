"""Per-sample losses ℓ(z) and the attention maps S that they are made of, in compiled code."""

from gamp_attention.losses.attention import (
    AttentionLoss,
    DotProductAttention,
    asymptotic_terms,
    pack_attention_parameters,
    softmax_rows,
)
from gamp_attention.losses.checks import KinkWarning, check_loss
from gamp_attention.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.losses.heads import MultiHeadAttention
from gamp_attention.losses.indirect import IndirectLoss
from gamp_attention.losses.point import PointLoss, WeightedLoss, for_kernels, sample_derivatives
from gamp_attention.losses.protocol import loss_curvature
from gamp_attention.losses.registration import DecorrelatedAttention, register_attention, register_loss, sample_loss

__all__ = [
    "AttentionLoss", "DotProductAttention", "KinkWarning", "LogisticLoss", "MultiHeadAttention", "MultinomialLoss",
    "PhaseRetrievalLoss", "SquaredLoss", "register_attention", "register_loss",
]  # fmt: skip
