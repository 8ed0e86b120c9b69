"""Trajectories for d → ∞ of message passing, gradient descent, single-pass descent and survey propagation.

`trajectory` takes a method object, which follows its own equations. Uses: the core; `spectra` (laws of spectral starts)
and `train` (averages of surveys).
"""
