"""Estimation of a token distribution from data, and its departures from the assumptions of the theory."""

from gamp_attention.data.law.law_of import law_of
from gamp_attention.data.law.parts import classes_of_moments
from gamp_attention.data.law.tokens import (
    Products,
    Resolvent,
    Spectrum,
    SpectrumFit,
    fit_targets,
    jackknife,
    moments_along,
    score_noise,
)

__all__ = ["law_of"]
