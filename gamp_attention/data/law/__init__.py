"""Estimation of a token distribution from data, and its departures from the assumptions of the theory."""

from gamp_attention.data.law.law_of import law_of

__all__ = ["law_of"]
