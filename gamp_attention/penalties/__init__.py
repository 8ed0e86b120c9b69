"""Penalties r(Q): the ridge, with one strength or one for each column, the elastic net, and user-defined penalties."""

from gamp_attention.penalties.base import Penalty, register_penalty
from gamp_attention.penalties.columns import ColumnRidge
from gamp_attention.penalties.standard import ElasticNet, Ridge, on_kinks

__all__ = ["ColumnRidge", "ElasticNet", "Ridge", "register_penalty"]
