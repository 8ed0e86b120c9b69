"""Both proximal maps: of a sample's fields (output) and of a coordinate's weights (input)."""

from gamp_attention.denoisers.output import Denoised, denoise

__all__ = ["Denoised", "denoise"]
