"""Spectra: eigenvalues of the Hessian of the risk and their directions, at given weights.

The extension uses the core only.
"""

from gamp_attention.extensions.spectra.hessian_spectrum import HessianSpectrum, hessian_spectrum

__all__ = ["HessianSpectrum", "hessian_spectrum"]
