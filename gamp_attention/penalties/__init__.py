"""Penalties r(Q): the ridge, the elastic net, and user-defined penalties."""

from gamp_attention.penalties.base import register_penalty
from gamp_attention.penalties.standard import ElasticNet, Ridge

__all__ = ["ElasticNet", "Ridge", "register_penalty"]
