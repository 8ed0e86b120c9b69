"""Both proximal maps: of a sample's fields (output) and of a coordinate's weights (input)."""

from gamp_attention.denoisers.input import denoise_weights, precisions, quadratic_response, sphere_multipliers
from gamp_attention.denoisers.newton import NotPositiveDefinite, make_metric
from gamp_attention.denoisers.output import Denoised, denoise
from gamp_attention.denoisers.spectral_weights import posterior_weights
from gamp_attention.denoisers.survey import InnerAverages, average_fields, average_weights, inner_nodes

__all__ = ["Denoised", "denoise"]
