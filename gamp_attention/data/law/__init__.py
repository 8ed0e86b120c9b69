"""Estimation of a token distribution from data, and its departures from the assumptions of the theory."""

from gamp_attention.data.law.law_of import law_of
from gamp_attention.data.law.parts import classes_of_moments
from gamp_attention.data.law.spectrum import Products, Resolvent, Spectrum, jackknife, moments_along
from gamp_attention.data.law.tokens import fit_targets, score_noise

__all__ = ["law_of"]
