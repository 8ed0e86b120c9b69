"""Per-sample losses ℓ(z) and the attention maps S that they are made of, in compiled code."""

from gamp_attention.losses.attention import AttentionLoss, DotProductAttention
from gamp_attention.losses.checks import KinkWarning
from gamp_attention.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.losses.heads import MultiHeadAttention
from gamp_attention.losses.registration import register_attention, register_loss

__all__ = [
    "AttentionLoss", "DotProductAttention", "KinkWarning", "LogisticLoss", "MultiHeadAttention", "MultinomialLoss",
    "PhaseRetrievalLoss", "SquaredLoss", "register_attention", "register_loss",
]  # fmt: skip
